"""The plan of a study: layouts over time that follow the forecast of demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

from gpuplanner.demand.hazards import remaining_while_busy
from gpuplanner.errors import ScenarioError, message, require_sound
from gpuplanner.paths import EMPTIED
from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.hardware.change_cost import cost_of_change
from gpuplanner.hardware.seconds import known_seconds
from gpuplanner.planner.contract.limits import Limits
from gpuplanner.planner.contract.plan import Plan
from gpuplanner.planner.contract.problem import PlanProblem
from gpuplanner.planner.contract.state_prices import StatePrices
from gpuplanner.planner.numbered.assign import assign
from gpuplanner.planner.methods.search import plan
from gpuplanner.planner.verification.plans import verify
from gpuplanner.scenario import Scenario
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.study.cache import stage
from gpuplanner.study.future.drains import open_windows
from gpuplanner.study.future.idle_gpus import idle_gpus
from gpuplanner.study.future.outlook import OUTLOOKS, at_quantile, largest_gang
from gpuplanner.study.past.history import history
from gpuplanner.study.tenants.quotas import planned_quotas, rules_of
from gpuplanner.units import SECONDS_PER_HOUR

SETS_OF_LAYOUTS = 3
"""Sets of layouts that take turns where whole nodes are emptied for a change, so that people know which is in force."""
NAME_THEM = (
    "Add the list of nodes ('gpuplanner ingest nodes'), of one size, or 'nodes' to the problem; plan again."
)
"""What to do where nodes have no names: a file for names that are made up would be applied to others."""
TIER_ORDER = ("guaranteed", "standard", "best_effort")
# Profiles with fewer jobs are emptied at the stated price.
_FEWEST_JOBS = 30


@dataclass(frozen=True, eq=False)
class Planned:
    """A plan and its problem; a plan that was found is verified by code that shares nothing with the planner."""

    problem: PlanProblem
    plan: Plan

    @property
    def layout_plan(self) -> pl.DataFrame:
        """GPUs by number, table ``schemas.LayoutPlan``; raises if no plan was found."""
        return assign(self.plan.require(), self.problem)


def plan_problem(scenario: Scenario, view: str) -> PlanProblem:
    """Demand of a view at the scenario's quantile, on the scenario's fleet."""
    wanted = at_quantile(OUTLOOKS[view](scenario).to_cover, scenario.quantile).with_columns(
        tenant=pl.col("unique_id").str.replace(r"/[^/]*$", ""),
        profile=pl.col("unique_id").str.split("/").list.last(),
    )
    tenants = wanted["tenant"].unique().sort().to_list()
    profiles = wanted["profile"].unique().sort().to_list()
    slots = wanted["ds"].unique().sort()
    dense = (
        pl.DataFrame({"tenant": tenants})
        .join(pl.DataFrame({"profile": profiles}), how="cross")
        .join(slots.to_frame(), how="cross")
        .join(wanted, on=["tenant", "profile", "ds"], how="left", maintain_order="left")
    )
    demand = dense["y"].fill_null(0.0).to_numpy().reshape(len(tenants), len(profiles), len(slots))
    demand = with_room_for_gangs(demand * scenario.arrival_scale, profiles, largest_gang(scenario))
    found = problem_of(scenario, tenants, profiles, demand, prices=_state_prices(scenario, view))
    if scenario.quotas is None:
        return found
    quotas = planned_quotas(rules_of(scenario, history(scenario)), tenants)
    return replace(found, limits=replace(found.limits, quotas=quotas))


def problem_of(
    scenario: Scenario,
    tenants: Sequence[str],
    profiles: Sequence[str],
    demand: np.ndarray,
    *,
    prices: StatePrices | None,
    start: datetime | None = None,
) -> PlanProblem:
    """A demand on the scenario's fleet, by its prices and limits; slots begin where the plan does, or at `start`."""
    known = history(scenario)
    fleet = known.fleet
    begin = start or known.plan_start
    limits = Limits(
        whole_nodes_kept=min(scenario.whole_nodes_kept, fleet.gpus // fleet.node_size),
        switches_per_day=scenario.switches_per_day,
        change_slots=change_slots(scenario, fleet.board, begin),
    )
    # The fleet begins as it is cut today: what the plan cuts first is a change like any other.
    return PlanProblem(
        fleet.board, fleet.gpus, fleet.node_size, begin, scenario.slot_hours, tenants, profiles, demand,
        tiers=_tiers(known.jobs, list(tenants)), change=cost_of_change(scenario, fleet.board), prices=prices,
        initial=fleet.layouts, nodes=fleet.node_names, limits=limits,
    )  # fmt: skip


def _state_prices(scenario: Scenario, view: str) -> StatePrices | None:
    """Prices of states where GPUs are parked, emptying by run times of the profiles that have enough jobs.

    Work is waited for as long as a drain takes at most, and then starts again from its last checkpoint.
    """
    known = history(scenario)
    parked_price, basis = idle_gpus(scenario, known.fleet)
    if parked_price is None:
        return None
    jobs = known.views[view].filter(pl.col("run_s") > 0, pl.col("instances") > 0)
    remaining = {
        str(profile): remaining_while_busy(
            group["run_s"].to_numpy() / SECONDS_PER_HOUR, group["instances"].to_numpy()
        ).tolist()
        for (profile,), group in jobs.group_by("profile", maintain_order=True)
        if profile is not None and group.height >= _FEWEST_JOBS
    }
    change = cost_of_change(scenario, known.fleet.board)
    board, asked = known.fleet.board, set(jobs["profile"])
    # What nobody asks for by name would run work of the largest profile that it can stand in for.
    for one in board.profiles if remaining else ():
        served = [p for p in board.profiles if p.name in remaining and one.serves(p)]
        if one.name not in asked and served:
            remaining[one.name] = remaining[max(served, key=lambda p: p.size_order).name]
    return StatePrices.of(
        change,
        known.fleet.node_size,
        parked_price=parked_price,
        basis=basis,
        remaining_h=remaining,
        evicted_h=(known_seconds("checkpoint_s").value / 2 + change.restart_s.value) / SECONDS_PER_HOUR,
    )


def plan_view(
    scenario: Scenario, view: str, method: str | None = None, *, calendars: int | None = None
) -> Planned:
    """Plan the demand of a view, and check the plan; see :func:`gpuplanner.planner.contract.plan`.

    Without a method the scenario says whether few sets of layouts take turns, or any number.
    """
    return planned_for(plan_problem(scenario, view), scenario, method, calendars=calendars)


def planned_for(
    problem: PlanProblem, scenario: Scenario, method: str | None = None, *, calendars: int | None = None
) -> Planned:
    """Plan a problem within the limits that a scenario sets its plans, and check the plan; see :func:`plan_view`."""
    most = sets_of_layouts(scenario, problem.board)
    method = method or ("calendar" if most else "milp")
    found = plan(problem, method=method, calendars=calendars or most or 2, **scenario.effort)
    planned = Planned(problem, found)
    faults = verify(found, problem, planned.layout_plan) if found.found else []
    require_sound(f"plan ({method})", faults)
    return planned


def sets_of_layouts(scenario: Scenario, board: GpuModel) -> int:
    """Most sets of layouts that take turns; 0 for any number, as on boards that have no layouts."""
    if not board.profiles:
        return 0
    few = SETS_OF_LAYOUTS if EMPTIED.get(scenario.path) == "node" else 0
    return few if scenario.calendars is None else scenario.calendars


def change_slots(scenario: Scenario, board: GpuModel, start: datetime) -> tuple[int, ...] | None:
    """The first slot that begins in each of the scenario's windows; None without windows."""
    windows = open_windows(scenario, board)
    if windows is None:
        return None
    zone, day = ZoneInfo(scenario.tz), 24 * 60
    found = []
    for slot in range(scenario.horizon_slots):
        now = (start + timedelta(hours=slot * scenario.slot_hours)).astimezone(zone)
        minute = now.hour * 60 + now.minute
        for begin, minutes in windows:
            since = (minute - begin) % day
            # The slot before began ahead of the window, so that this one is the first in it.
            if since < minutes and since < scenario.slot_hours * 60:
                found.append(slot)
    if not found:
        expected = f"windows in which one of the plan's slots of {scenario.slot_hours:g} h begins"
        got = f"{scenario.change_windows} in {scenario.tz}, slots from {start:%H:%M} UTC on"
        todo = "Move the windows, or choose shorter slots."
        raise ScenarioError(message("scenario: change_windows", expected, got, todo))
    return tuple(sorted(set(found)))


@stage
def planned_calendar(scenario: Scenario) -> Planned:
    """Layouts over time for the right-sized demand of the forecast."""
    return plan_view(scenario, "rightsized")


def with_room_for_gangs(demand: np.ndarray, profiles: Sequence[str], gang: int) -> np.ndarray:
    """Raise the demand for whole GPUs, where it is lower, to what the largest job asks for at once.

    A mean of a few GPUs per hour would never let a job of sixteen start.

    Examples
    --------
    >>> with_room_for_gangs(np.array([[[1.0, 9.0]]]), ["gpu"], 4).tolist()
    [[[4.0, 9.0]]]
    """
    if gang == 0 or WHOLE_GPU not in profiles:
        return demand
    demand = demand.copy()
    whole = demand[:, list(profiles).index(WHOLE_GPU), :]
    total = whole.sum(axis=0)
    share = np.divide(whole, total, out=np.full_like(whole, 1 / len(whole)), where=total > 0)
    whole += share * np.maximum(gang - total, 0.0)
    return demand


def _tiers(jobs: pl.DataFrame, tenants: list[str]) -> list[str]:
    """Tier in which a tenant holds most GPU-hours; ``standard`` where the source names none of ours."""
    held = (
        jobs.filter(pl.col("tier").is_in(TIER_ORDER))
        .group_by("tenant", "tier")
        .agg(gpu_s=(pl.col("gpus") * pl.col("run_s")).sum())
        .sort("gpu_s", "tier", descending=[True, False])
        .unique("tenant", keep="first", maintain_order=True)
    )
    known = dict(held.select("tenant", "tier").iter_rows())
    return [known.get(tenant, "standard") for tenant in tenants]
