"""Layout plans of a study: by forecast, with few layouts, robust, and beside the best fixed layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

from gpuplanner.core.errors import ScenarioError, require_no_faults
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.scenario_fields import DRAINED_UNIT_BY_ACTUATOR
from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.core.serialization import round_record
from gpuplanner.core.stage_cache import stage
from gpuplanner.core.units import HOURS_PER_WEEK, SECONDS_PER_HOUR, SECONDS_PER_MINUTE, count_text
from gpuplanner.cost.period_costs import idle_gpus
from gpuplanner.decision.decision_types import DECIMALS
from gpuplanner.decision.plan_rehearsal import RehearsedWeek, open_windows, played_weeks
from gpuplanner.decision.sharing_rules import planned_quotas, read_sharing_rules
from gpuplanner.forecast.demand_outlook import OUTLOOK_STAGE_BY_VIEW, at_quantile, demand_paths, largest_gang
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.hardware.repartitioning_cost import find_change_cost, find_seconds
from gpuplanner.planner.fleet_limits import Limits, StatePrices
from gpuplanner.planner.layout_plan import Plan, check_layout_plan, list_layout_changes, node_states_of_table
from gpuplanner.planner.numbered_gpus import assign, initial_gpu_layouts
from gpuplanner.planner.plan_explanation import realised_costs
from gpuplanner.planner.plan_problem import DEFAULT_UNMET_DEMAND_PRICE, PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.planner.plan_verification import verify
from gpuplanner.usage.job_history import REQUEST_VIEWS, History, begin_of, history
from gpuplanner.usage.period_accounts import WEEKLY_PEAK_QUANTILE
from gpuplanner.usage.requested_demand import demand_series, weekly_demand
from gpuplanner.usage.run_times import remaining_while_busy

NAME_THEM = "Add the list of nodes ('gpuplanner ingest nodes'), of one size, or 'nodes' to the problem; plan again."
"""What to do where nodes have no names: a file for names that are made up would be applied to others."""


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
    wanted = at_quantile(OUTLOOK_STAGE_BY_VIEW[view](scenario).to_cover, scenario.quantile).with_columns(
        tenant=pl.col("unique_id").str.replace(r"/[^/]*$", ""),
        profile=pl.col("unique_id").str.split("/").list.last(),
    )
    tenants = wanted["tenant"].unique().sort().to_list()
    profiles = wanted["profile"].unique().sort().to_list()
    slots = wanted["ds"].unique().sort()
    grid = pl.DataFrame({"tenant": tenants}).join(pl.DataFrame({"profile": profiles}), how="cross")
    grid = grid.join(slots.to_frame(), how="cross")
    dense = grid.join(wanted, on=["tenant", "profile", "ds"], how="left", maintain_order="left")
    demand = dense["y"].fill_null(0.0).to_numpy().reshape(len(tenants), len(profiles), len(slots))
    demand = with_room_for_gangs(demand * scenario.arrival_scale, profiles, largest_gang(scenario))
    found = problem_of(scenario, tenants, profiles, demand, prices=_state_prices(scenario, view))
    if scenario.quotas is None:
        return found
    quotas = planned_quotas(read_sharing_rules(scenario, history(scenario)), tenants)
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
    kept = min(scenario.whole_nodes_kept, fleet.gpus // fleet.node_size)
    slots = change_slots(scenario, fleet.gpu_model, begin)
    limits = Limits(whole_nodes_kept=kept, switches_per_day=scenario.switches_per_day, change_slots=slots)
    # The fleet begins as it is cut today: what the plan cuts first is a change like any other.
    return PlanProblem(
        fleet.gpu_model, fleet.gpus, fleet.node_size, begin, scenario.interval_hours, tenants, profiles, demand,
        tiers=_tiers(known.jobs, list(tenants)), change=find_change_cost(scenario, fleet.gpu_model), prices=prices,
        initial=fleet.layouts, nodes=fleet.node_names, limits=limits,
    )  # fmt: skip


def _state_prices(scenario: Scenario, view: str) -> StatePrices | None:
    """Prices of states where GPUs are parked, emptying by run times of the profiles that have enough jobs.

    Work is waited for as long as a drain takes at most, and then starts again from its last checkpoint.
    """
    known = history(scenario)
    fleet, gpu_model = known.fleet, known.fleet.gpu_model
    price, basis = idle_gpus(scenario, fleet)
    if price is None:
        return None
    jobs = known.views[view].filter(pl.col("run_s") > 0, pl.col("instances") > 0)
    remaining = {}
    for (profile,), group in jobs.group_by("profile", maintain_order=True):
        # Profiles with fewer jobs are emptied at the stated price.
        if profile is not None and group.height >= 30:
            run_h = group["run_s"].to_numpy() / SECONDS_PER_HOUR
            remaining[str(profile)] = remaining_while_busy(run_h, group["instances"].to_numpy()).tolist()
    change = find_change_cost(scenario, gpu_model)
    asked = set(jobs["profile"])
    # What nobody asks for by name would run work of the largest profile that it can stand in for.
    for one in gpu_model.profiles if remaining else ():
        served = [p for p in gpu_model.profiles if p.name in remaining and one.serves(p)]
        if one.name not in asked and served:
            remaining[one.name] = remaining[max(served, key=lambda p: p.size_order).name]
    evicted_h = (find_seconds("checkpoint_s").value / 2 + change.restart_s.value) / SECONDS_PER_HOUR
    return StatePrices.from_change_cost(
        change, fleet.node_size, parked_price=price, basis=basis, remaining_h=remaining, evicted_h=evicted_h
    )


def plan_view(scenario: Scenario, view: str, method: str | None = None, *, calendars: int | None = None) -> Planned:
    """Plan the demand of a view, and check the plan; see :func:`gpuplanner.planner.layout_plan`.

    Without a method the scenario says whether few sets of layouts take turns, or any number.
    """
    return planned_for(plan_problem(scenario, view), scenario, method, calendars=calendars)


def planned_for(
    problem: PlanProblem, scenario: Scenario, method: str | None = None, *, calendars: int | None = None
) -> Planned:
    """Plan a problem within the limits that a scenario sets its plans, and check the plan; see :func:`plan_view`."""
    most = sets_of_layouts(scenario, problem.gpu_model)
    method = method or ("calendar" if most else "milp")
    found = plan(problem, method=method, calendars=calendars or most or 2, **scenario.search_limits)
    planned = Planned(problem, found)
    faults = verify(found, problem, planned.layout_plan) if found.is_feasible else []
    require_no_faults(f"plan ({method})", faults)
    return planned


def sets_of_layouts(scenario: Scenario, gpu_model: GpuModel) -> int:
    """Most sets of layouts that take turns; 0 for any number, as on boards that have no layouts."""
    if not gpu_model.profiles:
        return 0
    # Where whole nodes are emptied for a change, few sets take turns, so that people know which is in force.
    few = 3 if DRAINED_UNIT_BY_ACTUATOR.get(scenario.actuator) == "node" else 0
    return few if scenario.calendars is None else scenario.calendars


def change_slots(scenario: Scenario, gpu_model: GpuModel, start: datetime) -> tuple[int, ...] | None:
    """The first slot that begins in each of the scenario's windows; None without windows."""
    if (windows := open_windows(scenario, gpu_model)) is None:
        return None
    zone, day = ZoneInfo(scenario.tz), 24 * 60
    found = []
    for slot in range(scenario.horizon_intervals):
        now = (start + timedelta(hours=slot * scenario.interval_hours)).astimezone(zone)
        minute = now.hour * 60 + now.minute
        # The slot before began ahead of the window, so that this one is the first in it.
        if any((minute - begin) % day < min(minutes, scenario.interval_hours * 60) for begin, minutes in windows):
            found.append(slot)
    if not found:
        expected = f"windows in which an interval of the plan ({scenario.interval_hours:g} h) begins"
        got = f"{scenario.change_windows} in {scenario.tz}, intervals from {start:%H:%M} UTC on"
        todo = "Move the windows, or shorten interval_hours."
        raise ScenarioError("scenario: change_windows", expected, got, todo)
    return tuple(found)


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
    named = jobs.filter(pl.col("tier").is_in(("guaranteed", "standard", "best_effort")))
    held = named.group_by("tenant", "tier").agg(gpu_s=(pl.col("gpus") * pl.col("run_s")).sum())
    held = held.sort("gpu_s", "tier", descending=[True, False])
    held = held.unique("tenant", keep="first", maintain_order=True)
    known = dict(held.select("tenant", "tier").iter_rows())
    return [known.get(tenant, "standard") for tenant in tenants]


FEW_CHANGES, UNRESTRICTED = "few_changes", "unrestricted"
"""Few sets of layouts take turns; any number of them."""


@dataclass(frozen=True)
class Played:
    """A plan on weeks that are drawn, its changes made as the actuator makes them; means of the weeks [GPU h].

    - ``cost``: GPUs on and parked, and what jobs waited for, each at its price in the plan.
    - ``gpu_hours``: Of GPUs that are on.
    - ``waited_gpu_hours``: Of jobs between submission and start.
    - ``weeks``: That were played.
    """

    cost: float
    gpu_hours: float
    waited_gpu_hours: float
    weeks: int


@dataclass(frozen=True)
class PlanChoice:
    """One of the plans to choose from.

    - ``name``, ``method``: :data:`FEW_CHANGES` or :data:`UNRESTRICTED`, and the method that finds it.
    - ``taken``: Whether it is the one that is handed over.
    - ``objective``, ``bound``, ``gap``, ``unmet_gpu_hours``: As of the plan [GPU h].
    - ``changes``, ``departures``, ``reboots``: As of the plan: GPUs that are cut, that leave a layout, and reboots.
    - ``change_times``, ``files``: Times at which something is cut anew, and files to apply, one for all times that do
      the same; None where nodes have no names.
    - ``played``: None where there are no jobs to play.
    """

    name: str
    method: str
    taken: bool
    objective: float
    bound: float
    gap: float
    unmet_gpu_hours: float
    changes: int
    departures: int
    reboots: int
    change_times: int | None
    files: int | None
    played: Played | None = None

    @classmethod
    def of(cls, name: str, method: str, planned: Planned, played: Played | None = None) -> PlanChoice:
        """A plan that was found; the calm one is taken where both are made."""
        plan, problem = planned.plan.require(), planned.problem
        assert plan.objective is not None
        assert plan.bound is not None
        assert plan.gap is not None
        times = files = None
        if problem.nodes is not None and problem.gpu_model.profiles:
            frame = check_layout_plan(planned.layout_plan, problem.gpu_model)
            changes = list_layout_changes(frame, initial=node_states_of_table(initial_gpu_layouts(plan, problem)))
            times, files = len({time for one in changes for time in one.times}), len(changes)
        found = cls(
            name, method, name == FEW_CHANGES, plan.objective, plan.bound, plan.gap, plan.unmet_gpu_hours, plan.changes,
            plan.departures, plan.reboots, times, files, played,
        )  # fmt: skip
        return round_record(found, DECIMALS)

    @property
    def words(self) -> str:
        """The plan in one sentence without its article and its end."""
        text = f"{self.name} plan costs {self.objective:,.5g}"
        if self.played is not None:
            text += f" GPU-hours, and {self.played.cost:,.5g} in simulation"
        cut = count_text(self.changes, "layout change")
        if self.files is not None and self.change_times is not None:
            cut += f" at {count_text(self.change_times, 'time')} by {count_text(self.files, 'file')}"
        return f"{text}, with {cut}"


def choices(planned: Planned, free: Planned, method: str, scenario: Scenario | None = None) -> tuple[PlanChoice, ...]:
    """The calm plan and the free one beside it, played where there is a scenario.

    A calm plan that costs no more than the free one that was found is free enough: both are then the same.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner.plan_problem import PlanProblem
    >>> from gpuplanner.planner.plan_search import plan
    >>> problem = PlanProblem(
    ...     "A100-40GB", 2, 2, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["7g.40gb"], [[[1, 2, 0]]],
    ...     change_gpu_hours=0.1,
    ... )
    >>> calm = Planned(problem, plan(problem, method="calendar", calendars=1))
    >>> for one in choices(calm, Planned(problem, plan(problem)), "auto"):
    ...     print(one.name, one.method, one.objective, one.unmet_gpu_hours, one.played)
    few_changes calendar 6.0 0.0 None
    unrestricted auto 3.1 0.0 None
    """
    calm_price, free_price = (one.plan.require().objective or 0.0 for one in (planned, free))
    if calm_price <= free_price:
        free = planned
    calm_played = None if scenario is None else play(scenario, planned)
    free_played = calm_played if free is planned or scenario is None else play(scenario, free)
    calm = PlanChoice.of(FEW_CHANGES, "calendar", planned, calm_played)
    return calm, PlanChoice.of(UNRESTRICTED, method, free, free_played)


def play(scenario: Scenario, planned: Planned) -> Played:
    """What comes of a plan on drawn weeks: nodes are kept free for changes, and waiting has a price."""
    problem = planned.problem
    until_s = problem.n_slots * problem.interval_hours * SECONDS_PER_HOUR
    parked_price = 0.0 if problem.prices is None else problem.prices.parked_price
    installed = problem.gpus * problem.n_slots * problem.interval_hours
    weeks = []
    for week in played_weeks(scenario, planned.layout_plan, problem):
        on, requests = week.gpu_hours_on(until_s), week.requests
        gpus = week.fleet.weights[requests.profile] * requests.total
        waited = float(gpus @ np.maximum(_waits_s(week, until_s), 0.0)) / SECONDS_PER_HOUR
        cost = problem.on_price * on + parked_price * (installed - on) + DEFAULT_UNMET_DEMAND_PRICE * waited
        weeks.append((cost, on, waited))
    cost, on, waited = np.mean(weeks, axis=0).tolist()
    return Played(cost, on, waited, len(weeks))


def _waits_s(week: RehearsedWeek, until_s: float) -> np.ndarray:
    """How long each request of a week waits, until it starts or until an instant [s]."""
    return np.minimum(np.nan_to_num(week.outcome.start_s, nan=until_s), until_s) - week.requests.ready_s


def few_changes_and_unrestricted(scenario: Scenario, planned: Planned) -> tuple[PlanChoice, ...]:
    """The calm plan of a scenario and the free one; nothing beside a plan that is free already, or was not found."""
    if planned.plan.method != "calendar" or not planned.plan.is_feasible:
        return ()
    free = planned_for(planned.problem, scenario, "milp")
    return choices(planned, free, "milp", scenario) if free.plan.is_feasible else ()


@stage
def plan_choices(scenario: Scenario) -> tuple[PlanChoice, ...]:
    """The plan of a study, with the free one beside it; see :func:`few_changes_and_unrestricted`."""
    return few_changes_and_unrestricted(scenario, planned_calendar(scenario))


def choice_table(found: Sequence[PlanChoice]) -> pl.DataFrame:
    """A row for each plan, what was played in columns of its own; what nothing is known of is left out."""
    rows = []
    for one in found:
        row = {"plan": one.name, **vars(one)}
        if one.played is not None:
            row |= {f"played_{name}": value for name, value in vars(one.played).items()}
        left_out = ("name", "taken", "played")
        rows.append({key: value for key, value in row.items() if value is not None and key not in left_out})
    return pl.DataFrame(rows)


def choice_sentence(found: Sequence[PlanChoice]) -> str:
    """What is taken, what the other plan would cost, and how to take that."""
    calm, free = found
    if free.objective >= calm.objective:
        return f"The {calm.words}: no plan with more changes costs less."
    text = f"The {calm.words}; the {free.words}: --method {free.method} takes it."
    if calm.played is None:
        return text
    return (
        f"{text} The simulation covers {count_text(calm.played.weeks, 'drawn week')}, with waiting at the price of "
        "unmet demand and nodes drained for changes by the actuator."
    )


@dataclass(frozen=True)
class OverFixed:
    """A schedule of layouts against the best fixed layout.

    - ``gpu_hours_saved_per_week``: GPU-hours that it provisions less.
    - ``added_p95_minutes``: The largest rise of the p95 queue wait over job sizes.
    - ``weeks``: Drawn weeks on which both were replayed.
    """

    gpu_hours_saved_per_week: float
    added_p95_minutes: float
    weeks: int

    @property
    def sentence(self) -> str:
        """The comparison in words.

        Examples
        --------
        >>> OverFixed(120.0, 4.0, 8).sentence
        'Over the best fixed layout the schedule frees 120 GPU-hours a week, and adds 4 min to the p95 queue wait.'
        """
        saved, added = self.gpu_hours_saved_per_week, self.added_p95_minutes
        hours = f"{'frees' if saved >= 0 else 'takes'} {abs(saved):,.0f} GPU-hours a week"
        wait = f"{'adds' if added >= 0 else 'takes'} {abs(added):,.0f} min {'to' if added >= 0 else 'off'} the p95"
        return f"Over the best fixed layout the schedule {hours}, and {wait} queue wait."


def compare_with_fixed(schedule: Iterable[RehearsedWeek], fixed: Iterable[RehearsedWeek], until_s: float) -> OverFixed:
    """Compare replays of a schedule with replays of a fixed layout on the same weeks.

    Parameters
    ----------
    schedule, fixed : iterable of RehearsedWeek
        One for each week.
    until_s : float
        End of a week, at which a job that has not started waits no longer [s].
    """
    weeks, fixed_weeks = ([_week(one, until_s) for one in some] for some in (schedule, fixed))
    hours, fixed_hours = (np.mean([one for one, _ in some]) for some in (weeks, fixed_weeks))
    wait_s = [
        pl.concat([waits for _, waits in some]).group_by("size").agg(pl.col("wait_s").median())
        for some in (weeks, fixed_weeks)
    ]
    added = wait_s[0].join(wait_s[1], on="size", suffix="_fixed")
    added_s = added.select((pl.col("wait_s") - pl.col("wait_s_fixed")).max()).item() or 0.0
    saved = HOURS_PER_WEEK * SECONDS_PER_HOUR / until_s * float(fixed_hours - hours)
    return round_record(OverFixed(saved, added_s / SECONDS_PER_MINUTE, len(weeks)), DECIMALS)


def _week(week: RehearsedWeek, until_s: float) -> tuple[float, pl.DataFrame]:
    """GPU-hours provisioned, and the p95 queue wait of each job size [s]."""
    asked = week.requests
    names = np.array(week.fleet.profiles)[asked.profile]
    # On full GPUs, jobs up to these numbers of GPUs are of the same size.
    size = np.where(asked.profile == 0, np.searchsorted((1, 4, 8), asked.total).astype(str), names)
    waits = pl.DataFrame({"size": size, "submit_s": asked.ready_s, "wait_s": _waits_s(week, until_s)})
    judged = waits.filter(pl.col("submit_s").is_between(0.0, until_s))
    p95 = judged.group_by("size").agg(pl.col("wait_s").quantile(0.95, "higher"))
    return week.gpu_hours_on(until_s), p95


def over_fixed(scenario: Scenario, planned: Planned) -> OverFixed | None:
    """Replay a plan and the best layout that never changes; None where either is not found."""
    fixed = planned_for(planned.problem, scenario, "static") if planned.plan.is_feasible else planned
    if not fixed.plan.is_feasible:
        return None
    problem = planned.problem
    schedule, static = (played_weeks(scenario, one.layout_plan, problem) for one in (planned, fixed))
    return compare_with_fixed(schedule, static, problem.n_slots * problem.interval_hours * SECONDS_PER_HOUR)


@stage
def plan_over_fixed(scenario: Scenario) -> OverFixed | None:
    """The plan of a study against the best fixed layout."""
    return over_fixed(scenario, planned_calendar(scenario))


@dataclass(frozen=True, eq=False)
class RobustPlans:
    """Plans for several demands, and what each costs over sample paths.

    - ``plans``: By name: ``mean``, ``q50``, ``q90``.
    - ``table``: One row for each, cheapest first: ``plan``; ``gpu_hours`` of GPUs on; ``mean_cost`` over the paths,
      where unmet demand waits and is paid for in every slot until it is met; ``cvar_cost``, the mean of the dearest
      tenth.
    - ``n_paths``: Sample paths that all are weighed over.
    """

    plans: Mapping[str, Planned]
    table: pl.DataFrame
    n_paths: int

    @property
    def preferred(self) -> str:
        """Name of the plan of least mean cost."""
        return str(self.table["plan"][0])

    @property
    def sentence(self) -> str:
        """Which plan to prefer, and why."""
        best = self.table.row(0, named=True)
        rest = self.table[1:].iter_rows(named=True)
        others = ", ".join(f"{row['plan']} {row['mean_cost']:,.0f} ({row['cvar_cost']:,.0f})" for row in rest)
        return (
            f"Choose the plan for {best['plan']}: its mean cost over {self.n_paths} paths is {best['mean_cost']:,.0f} "
            f"GPU-hours, its CVaR (10 %) {best['cvar_cost']:,.0f}; the others: {others}."
        )

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {"preferred": self.preferred, "sentence": self.sentence, "plans": self.table.to_dicts()}


def weigh_plans_over_paths(scenario: Scenario, method: str | None = None) -> RobustPlans:
    """Plan right-sized demand for its mean and two quantiles, and weigh each plan over all sample paths of it.

    The mean is that of the paths; quantiles are those of the forecast, as a plan without paths covers one of them.
    """
    problem = plan_problem(scenario, "rightsized")
    gang = largest_gang(scenario)
    drawn = demand_paths(scenario, problem.tenants, problem.profiles) * scenario.arrival_scale
    paths = np.stack([with_room_for_gangs(path, problem.profiles, gang) for path in drawn])
    problems = {"mean": replace(problem, demand=paths.mean(axis=0))}
    for name, level in (("q50", 0.5), ("q90", 0.9)):
        problems[name] = plan_problem(scenario.but(quantile=level), "rightsized")
    plans = {name: planned_for(one, scenario, method) for name, one in problems.items()}
    for one in plans.values():
        one.plan.require()

    costs = realised_costs(problem, [one.plan for one in plans.values()], paths.sum(axis=1), carry_over=True)
    # The conditional value at risk (CVaR) is the mean cost of the dearest tenth of the paths.
    dearest = np.sort(costs, axis=1)[:, -max(1, round(0.1 * len(paths))) :]
    hours = [one.plan.gpu_hours_on for one in plans.values()]
    columns = {"mean_cost": costs.mean(axis=1), "cvar_cost": dearest.mean(axis=1)}
    table = pl.DataFrame({"plan": list(plans), "gpu_hours": hours, **columns})
    return RobustPlans(plans, table.sort("mean_cost", maintain_order=True), len(paths))


@stage
def weeks(scenario: Scenario) -> pl.DataFrame:
    """Week by week: what each view of the small jobs wants, and the fewest GPUs that serve it.

    Small jobs are those that ask for at most one GPU. The figures cover the 95 % quantile of the hours of each
    week, by the integer optimum of a single slot; ``whole`` gives every such job a GPU of its own.
    """
    known = history(scenario)
    small = {view: known.views[view].filter(pl.col("gpus") <= 1) for view in REQUEST_VIEWS}
    start, end = begin_of(known.trace), known.plan_start
    start = start.replace(minute=0, second=0, microsecond=0)
    demand = {view: demand_series(jobs, start=start, end=end, clock="wanted") for view, jobs in small.items()}
    if demand["whole"].is_empty():
        return pl.DataFrame()
    summed = {view: weekly_demand(series, quantile=WEEKLY_PEAK_QUANTILE) for view, series in demand.items()}
    rows = []
    for week, slots in summed["whole"].select("week", "slots").unique(maintain_order=True).iter_rows():
        fewest = {view: _fewest_gpus(scenario, known, one.filter(week=week)) for view, one in summed.items()}
        whole = summed["whole"].filter(week=week)
        row = {"week": week.date(), "hours": slots, "mean_gpus_whole": float(whole["mean"].sum())}
        row |= {f"gpus_{view}": fewest[view][0] for view in ("whole", "requested", "rightsized")}
        rows.append(row | {"layouts_rightsized": fewest["rightsized"][1]})
    return pl.DataFrame(rows)


def _fewest_gpus(scenario: Scenario, known: History, wanted: pl.DataFrame) -> tuple[int, str]:
    """Fewest GPUs for one demand vector, and their layouts in words."""
    wanted = wanted.filter(pl.col("quantile") > 0)
    if wanted.is_empty():
        return 0, "-"
    ceiling = int(wanted["quantile"].ceil().sum())
    problem = PlanProblem(
        known.fleet.gpu_model, ceiling, known.fleet.node_size, wanted["week"][0], HOURS_PER_WEEK, ["all"],
        wanted["profile"].to_list(), wanted["quantile"].to_numpy().reshape(1, -1, 1), unmet_price=1e4,
    )  # fmt: skip
    found = plan(problem, **scenario.but(gap_target=0.0).search_limits).require()
    counts = zip(found.layouts, found.counts[0], strict=True)
    return int(found.counts[0].sum()), "; ".join(f"{count} x {text}" for text, count in counts if count)
