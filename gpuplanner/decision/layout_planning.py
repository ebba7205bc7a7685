"""Layout plans of a study: from a forecast, with few changes, over sample paths, and against the best fixed layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Self
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

from gpuplanner.core.errors import ScenarioError, require_no_faults
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.serialization import round_record
from gpuplanner.core.setting_rules_and_controls import DRAINED_UNIT_BY_ACTUATOR
from gpuplanner.core.stage_cache_and_data_folders import stage
from gpuplanner.core.units_and_number_formats import HOURS_PER_WEEK, SECONDS_PER_HOUR, SECONDS_PER_MINUTE, count_text
from gpuplanner.cost.period_costs import idle_gpu_price
from gpuplanner.decision.decision_types import RECORD_DECIMALS
from gpuplanner.decision.inference_services import add_service_demand
from gpuplanner.decision.plan_rehearsal import RehearsedWeek, parse_open_windows, simulate_weeks
from gpuplanner.decision.policy_simulation import WAIT_QUANTILE
from gpuplanner.decision.sharing_rules import planned_quotas, read_sharing_rules
from gpuplanner.forecast.rolling_demand_forecast import OUTLOOK_STAGE_BY_VIEW, at_quantile, demand_paths, largest_gang
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.hardware.repartitioning_cost import find_change_cost, find_time_parameter
from gpuplanner.planner.fleet_limits_and_prices import Limits, StatePrices
from gpuplanner.planner.layout_plan import Plan, check_layout_plan, list_layout_changes, node_states_of_table
from gpuplanner.planner.numbered_gpus import assign, initial_gpu_layouts
from gpuplanner.planner.plan_explanation import realised_costs
from gpuplanner.planner.plan_problem import DEFAULT_UNMET_DEMAND_PRICE, PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.planner.plan_verification import verify
from gpuplanner.usage.period_accounts import WEEKLY_PEAK_QUANTILE
from gpuplanner.usage.planning_history import REQUEST_VIEWS, History, history, observation_begins_at
from gpuplanner.usage.requested_demand import DEMAND_COLUMNS, demand_series, weekly_demand
from gpuplanner.usage.run_time_hazards import remaining_while_busy

NODES_ADVICE = "Add the list of nodes ('gpuplanner ingest nodes'), of one size, or 'nodes' to the problem; plan again."
"""Advice for plans of nodes without names: files with synthetic names would be applied to other nodes."""


@dataclass(frozen=True, eq=False)
class PlannedProblem:
    """A plan with its problem; independent code has verified the plan."""

    problem: PlanProblem
    plan: Plan

    @property
    def layout_plan(self) -> pl.DataFrame:
        """The plan by GPU number, a table ``schemas.LayoutPlan``; raises if no plan was found."""
        return assign(self.plan.require(), self.problem)


def make_plan_problem(scenario: Scenario, view: str) -> PlanProblem:
    """Make the planning problem of a view: its demand at the scenario's quantile, on the scenario's fleet."""
    demand_rows = at_quantile(OUTLOOK_STAGE_BY_VIEW[view](scenario).to_cover, scenario.quantile).with_columns(
        tenant=pl.col("unique_id").str.replace(r"/[^/]*$", ""), profile=pl.col("unique_id").str.split("/").list.last()
    )
    tenants = demand_rows["tenant"].unique().sort().to_list()
    profiles = demand_rows["profile"].unique().sort().to_list()
    slots = demand_rows["ds"].unique().sort()
    demand_grid = pl.DataFrame({"tenant": tenants}).join(pl.DataFrame({"profile": profiles}), how="cross")
    demand_grid = demand_grid.join(slots.to_frame(), how="cross")
    dense_rows = demand_grid.join(demand_rows, on=["tenant", "profile", "ds"], how="left", maintain_order="left")
    demand = dense_rows["y"].fill_null(0.0).to_numpy().reshape(len(tenants), len(profiles), len(slots))
    demand = raise_demand_to_gang(demand * scenario.arrival_scale, profiles, largest_gang(scenario))
    tenants, profiles, demand = add_service_demand(scenario, tenants, profiles, demand, slices=view != "whole")
    problem = make_problem_for_demand(scenario, tenants, profiles, demand, prices=_make_state_prices(scenario, view))
    if scenario.quotas is None:
        return problem
    quotas = planned_quotas(read_sharing_rules(scenario, history(scenario)), tenants)
    return replace(problem, limits=replace(problem.limits, quotas=quotas))


def make_problem_for_demand(
    scenario: Scenario,
    tenants: Sequence[str],
    profiles: Sequence[str],
    demand: np.ndarray,
    *,
    prices: StatePrices | None,
    start_time: datetime | None = None,
) -> PlanProblem:
    """Make the planning problem of a demand on the scenario's fleet.

    Parameters
    ----------
    scenario : Scenario
        Fleet, interval, limits and prices.
    tenants, profiles : sequence of str
        Names of the tenants and of the MIG profiles.
    demand : array of float, shape (n_tenants, n_profiles, n_intervals)
        Mean concurrent instances.
    prices : StatePrices or None
        Prices of powered-on and idle GPUs; None: not known.
    start_time : datetime, optional
        Begin of the first interval; default: the begin of the plan.
    """
    job_history = history(scenario)
    fleet = job_history.fleet
    plan_start = start_time or job_history.plan_start
    nodes_kept = min(scenario.whole_nodes_kept, fleet.gpus // fleet.node_size)
    slot_numbers = list_change_slots(scenario, fleet.gpu_model, plan_start)
    limits = Limits(whole_nodes_kept=nodes_kept, switches_per_day=scenario.switches_per_day, change_slots=slot_numbers)
    # The fleet begins as it is cut today: what the plan cuts first is a change like any other.
    return PlanProblem(
        fleet.gpu_model, fleet.gpus, fleet.node_size, plan_start, scenario.interval_hours, tenants, profiles, demand,
        tiers=_find_tenant_tiers(job_history.jobs, list(tenants)), change=find_change_cost(scenario, fleet.gpu_model),
        prices=prices, initial=fleet.layouts, nodes=fleet.node_names, limits=limits,
    )  # fmt: skip


def _make_state_prices(scenario: Scenario, view: str) -> StatePrices | None:
    """Make the prices of powered-on and idle GPUs; the cost to drain a profile follows from the run times of its jobs.

    A drain waits for work as long as the actuator allows; work then restarts from its last checkpoint.
    """
    job_history = history(scenario)
    fleet, gpu_model = job_history.fleet, job_history.fleet.gpu_model
    price, basis = idle_gpu_price(scenario, fleet)
    if price is None:
        return None
    jobs = job_history.views[view].select("profile", "run_s", "instances")
    jobs = jobs.filter(pl.col("run_s") > 0, pl.col("instances") > 0)
    remaining_h = {}
    for (profile,), group in jobs.group_by("profile", maintain_order=True):
        # Profiles with fewer jobs are emptied at the stated price.
        if profile is not None and group.height >= 30:
            run_h = group["run_s"].to_numpy() / SECONDS_PER_HOUR
            remaining_h[str(profile)] = remaining_while_busy(run_h, group["instances"].to_numpy()).tolist()
    change = find_change_cost(scenario, gpu_model)
    requested_profiles = set(jobs["profile"].unique())
    # A profile that no job requests by name would run work of the largest profile that it can replace.
    for profile_offered in gpu_model.profiles if remaining_h else ():
        served_profiles = [p for p in gpu_model.profiles if p.name in remaining_h and profile_offered.serves(p)]
        if profile_offered.name not in requested_profiles and served_profiles:
            remaining_h[profile_offered.name] = remaining_h[max(served_profiles, key=lambda p: p.size_order).name]
    evicted_h = (find_time_parameter("checkpoint_s").value / 2 + change.restart_s.value) / SECONDS_PER_HOUR
    return StatePrices.from_change_cost(
        change, fleet.node_size, parked_price=price, basis=basis, remaining_h=remaining_h, evicted_h=evicted_h
    )


def plan_view(
    scenario: Scenario, view: str, method: str | None = None, *, calendars: int | None = None
) -> PlannedProblem:
    """Plan the layouts for the demand of a view, and verify the plan; see :func:`gpuplanner.planner.layout_plan`.

    Parameters
    ----------
    scenario : Scenario
        Data, fleet and limits.
    view : str
        Requests to plan for: ``"whole"``, ``"requested"`` or ``"rightsized"``.
    method : str, optional
        Planning method; default: ``"calendar"`` or ``"milp"``, by the scenario.
    calendars : int, optional
        Most sets of layouts that take turns.
    """
    return plan_problem_for(make_plan_problem(scenario, view), scenario, method, calendars=calendars)


def plan_problem_for(
    problem: PlanProblem, scenario: Scenario, method: str | None = None, *, calendars: int | None = None
) -> PlannedProblem:
    """Plan a problem within the limits of a scenario, and verify the plan; see :func:`plan_view`.

    Parameters
    ----------
    problem : PlanProblem
        Demand, fleet and prices.
    scenario : Scenario
        Limits of the search.
    method : str, optional
        Planning method; default: ``"calendar"`` or ``"milp"``, by the scenario.
    calendars : int, optional
        Most sets of layouts that take turns.
    """
    max_layout_sets = count_layout_sets(scenario, problem.gpu_model)
    method = method or ("calendar" if max_layout_sets else "milp")
    plan_found = plan(problem, method=method, calendars=calendars or max_layout_sets or 2, **scenario.search_limits)
    planned = PlannedProblem(problem, plan_found)
    violations = verify(plan_found, problem, planned.layout_plan) if plan_found.is_feasible else []
    require_no_faults(f"plan ({method})", violations)
    return planned


def count_layout_sets(scenario: Scenario, gpu_model: GpuModel) -> int:
    """Count the sets of layouts that may take turns; 0 for any number, and for GPU models without layouts."""
    if not gpu_model.profiles:
        return 0
    # Where whole nodes are emptied for a change, few sets take turns, so that people know which is in force.
    default_sets = 3 if DRAINED_UNIT_BY_ACTUATOR.get(scenario.actuator) == "node" else 0
    return default_sets if scenario.calendars is None else scenario.calendars


def list_change_slots(scenario: Scenario, gpu_model: GpuModel, start: datetime) -> tuple[int, ...] | None:
    """List the first interval that begins in each change window of the scenario; None without windows."""
    if (windows := parse_open_windows(scenario, gpu_model)) is None:
        return None
    zone, day = ZoneInfo(scenario.tz), 24 * 60
    slots = []
    for slot in range(scenario.horizon_intervals):
        slot_time = (start + timedelta(hours=slot * scenario.interval_hours)).astimezone(zone)
        minute = slot_time.hour * 60 + slot_time.minute
        # The slot before began ahead of the window, so that this one is the first in it.
        if any((minute - begin) % day < min(length, scenario.interval_hours * 60) for begin, length in windows):
            slots.append(slot)
    if not slots:
        expected = f"windows in which an interval of the plan ({scenario.interval_hours:g} h) begins"
        got = f"{scenario.change_windows} in {scenario.tz}, intervals from {start:%H:%M} UTC on"
        todo = "Move the windows, or shorten interval_hours."
        raise ScenarioError("scenario: change_windows", expected, got, todo)
    return tuple(slots)


@stage
def plan_study_layouts(scenario: Scenario) -> PlannedProblem:
    """Plan the layouts for the rightsized demand forecast of a study."""
    return plan_view(scenario, "rightsized")


def raise_demand_to_gang(demand: np.ndarray, profiles: Sequence[str], largest_gang_gpus: int) -> np.ndarray:
    """Raise the demand for full GPUs to the GPUs of the largest job, where it is lower.

    With a mean demand of a few GPUs a job of sixteen GPUs would never start.

    Parameters
    ----------
    demand : array of float, shape (n_tenants, n_profiles, n_intervals)
        Mean concurrent instances.
    profiles : sequence of str
        Names of the MIG profiles.
    largest_gang_gpus : int
        GPUs of the largest job.

    Examples
    --------
    >>> raise_demand_to_gang(np.array([[[1.0, 9.0]]]), ["gpu"], 4).tolist()
    [[[4.0, 9.0]]]
    """
    if largest_gang_gpus == 0 or FULL_GPU not in profiles:
        return demand
    demand = demand.copy()
    full_demand = demand[:, list(profiles).index(FULL_GPU), :]
    total = full_demand.sum(axis=0)
    share = np.divide(full_demand, total, out=np.full_like(full_demand, 1 / len(full_demand)), where=total > 0)
    full_demand += share * np.maximum(largest_gang_gpus - total, 0.0)
    return demand


def _find_tenant_tiers(jobs: pl.DataFrame, tenants: list[str]) -> list[str]:
    """Find the tier with most GPU-hours of each tenant; ``standard`` if the source names none."""
    tiered_jobs = jobs.select("tenant", "tier", "gpus", "run_s")
    tiered_jobs = tiered_jobs.filter(pl.col("tier").is_in(("guaranteed", "standard", "best_effort")))
    tier_use = tiered_jobs.group_by("tenant", "tier", maintain_order=True).agg(
        gpu_s=(pl.col("gpus") * pl.col("run_s")).sum()
    )
    tier_use = tier_use.sort("gpu_s", "tier", descending=[True, False])
    tier_use = tier_use.unique("tenant", keep="first", maintain_order=True)
    tier_by_tenant = dict(tier_use.select("tenant", "tier").iter_rows())
    return [tier_by_tenant.get(tenant, "standard") for tenant in tenants]


FEW_CHANGES, UNRESTRICTED = "few_changes", "unrestricted"
"""Names of the two layout plans: with few sets of layouts that take turns, or with any number of them."""


@dataclass(frozen=True, eq=False)
class PlanWeek:
    """A resampled week simulated with a plan, in which jobs that never start wait to its end.

    - ``gpu_hours``: GPU-hours provisioned [GPU h].
    - ``waited_gpu_hours``: GPU-hours of jobs between submission and start [GPU h].
    - ``p95_waits``: p95 queue wait of each job size: ``size``, ``wait_s`` [s].
    """

    gpu_hours: float
    waited_gpu_hours: float
    p95_waits: pl.DataFrame

    @classmethod
    def from_simulation(cls, week: RehearsedWeek, until_s: float) -> Self:
        """Summarize a simulated week that ends at an instant [s]."""
        requests = week.requests
        wait_s = np.minimum(np.nan_to_num(week.outcome.start_s, nan=until_s), until_s) - requests.ready_s
        gpus = week.fleet.weights[requests.profile] * requests.total
        waited_hours = float((gpus * np.maximum(wait_s, 0.0)).sum()) / SECONDS_PER_HOUR
        names = np.array(week.fleet.profiles)[requests.profile]
        # On full GPUs, jobs up to these numbers of GPUs are of the same size.
        size = np.where(requests.profile == 0, np.searchsorted((1, 4, 8), requests.total).astype(str), names)
        waits = pl.DataFrame({"size": size, "submit_s": requests.ready_s, "wait_s": wait_s})
        submitted = waits.filter(pl.col("submit_s").is_between(0.0, until_s)).group_by("size", maintain_order=True)
        p95_waits = submitted.agg(pl.col("wait_s").quantile(WAIT_QUANTILE, "equiprobable"))
        return cls(week.count_gpu_hours_on(until_s), waited_hours, p95_waits)


@dataclass(frozen=True)
class SimulatedPlan:
    """A plan simulated on resampled weeks, with changes made by the actuator; means of the weeks.

    - ``cost``: GPUs provisioned, idle GPUs and waiting jobs, each at its price in the plan [GPU h].
    - ``gpu_hours``: GPU-hours provisioned [GPU h].
    - ``waited_gpu_hours``: GPU-hours of jobs between submission and start [GPU h].
    - ``weeks``: Simulated weeks.
    """

    cost: float
    gpu_hours: float
    waited_gpu_hours: float
    weeks: int

    @classmethod
    def from_weeks(cls, weeks: Sequence[PlanWeek], problem: PlanProblem) -> Self:
        """Price the weeks of a plan."""
        gpu_hours, waited_hours = np.mean([(week.gpu_hours, week.waited_gpu_hours) for week in weeks], axis=0).tolist()
        idle_hours = problem.gpus * problem.n_slots * problem.interval_hours - gpu_hours
        idle_cost = 0.0 if problem.prices is None else problem.prices.parked_price * idle_hours
        cost = problem.on_price * gpu_hours + idle_cost + DEFAULT_UNMET_DEMAND_PRICE * waited_hours
        return cls(cost, gpu_hours, waited_hours, len(weeks))


@dataclass(frozen=True)
class PlanChoice:
    """One of the plans to choose from.

    - ``name``, ``method``: :data:`FEW_CHANGES` or :data:`UNRESTRICTED`, and the planning method.
    - ``taken``: Whether it is the plan that is exported.
    - ``objective``, ``bound``, ``gap``, ``unmet_gpu_hours``: Cost of the plan, its lower bound, the optimality gap as a
      fraction, and unmet demand [GPU h].
    - ``changes``, ``drained_gpus``, ``reboots``: GPUs that are repartitioned, that leave a layout, and reboots.
    - ``change_times``, ``files``: Times with a change of layout, and files to apply, one for all times that do the
      same; None if nodes have no names.
    - ``simulated``: The plan simulated on resampled weeks; None without jobs.
    """

    name: str
    method: str
    taken: bool
    objective: float
    bound: float
    gap: float
    unmet_gpu_hours: float
    changes: int
    drained_gpus: int
    reboots: int
    change_times: int | None
    files: int | None
    simulated: SimulatedPlan | None = None

    @classmethod
    def from_plan(
        cls, name: str, method: str, planned: PlannedProblem, simulated: SimulatedPlan | None = None
    ) -> PlanChoice:
        """Make a choice from a plan that was found.

        Parameters
        ----------
        name, method : str
            :data:`FEW_CHANGES` or :data:`UNRESTRICTED`, and the planning method.
        planned : PlannedProblem
            The plan and its problem.
        simulated : SimulatedPlan, optional
            The plan simulated on resampled weeks.
        """
        plan, problem = planned.plan.require(), planned.problem
        assert plan.objective is not None
        assert plan.bound is not None
        assert plan.gap is not None
        change_times = n_files = None
        if problem.nodes is not None and problem.gpu_model.profiles:
            frame = check_layout_plan(planned.layout_plan, problem.gpu_model)
            changes = list_layout_changes(frame, initial=node_states_of_table(initial_gpu_layouts(plan, problem)))
            change_times, n_files = len({time for change in changes for time in change.times}), len(changes)
        choice = cls(
            name, method, name == FEW_CHANGES, plan.objective, plan.bound, plan.gap, plan.unmet_gpu_hours, plan.changes,
            plan.drained_gpus, plan.reboots, change_times, n_files, simulated,
        )  # fmt: skip
        return round_record(choice, RECORD_DECIMALS)

    @property
    def description(self) -> str:
        """The plan and its cost, as the middle of a sentence."""
        text = f"{self.name} plan costs {self.objective:,.5g}"
        if self.simulated is not None:
            text += f" GPU-hours, and {self.simulated.cost:,.5g} in simulation"
        cut = count_text(self.changes, "layout change")
        if self.files is not None and self.change_times is not None:
            cut += f" at {count_text(self.change_times, 'time')} by {count_text(self.files, 'file')}"
        return f"{text}, with {cut}"


def compare_plan_choices(
    planned: PlannedProblem, planned_free: PlannedProblem, method: str,
    scenario: Scenario | None = None, weeks: Sequence[PlanWeek] = (),
) -> tuple[PlanChoice, ...]:  # fmt: skip
    """Compare the plan with few changes and the unrestricted plan, simulated if a scenario is given.

    If the plan with few changes costs no more than the unrestricted one, both are that plan.

    Parameters
    ----------
    planned, planned_free : PlannedProblem
        The plan with few changes, and the unrestricted plan.
    method : str
        Planning method of the unrestricted plan.
    scenario : Scenario, optional
        Jobs to simulate the unrestricted plan on.
    weeks : sequence of PlanWeek
        The plan with few changes, simulated on the jobs of the scenario.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner.plan_problem import PlanProblem
    >>> from gpuplanner.planner.plan_search import plan
    >>> problem = PlanProblem(
    ...     "A100-40GB", 2, 2, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["7g.40gb"], [[[1, 2, 0]]],
    ...     change_gpu_hours=0.1,
    ... )
    >>> few_changes = PlannedProblem(problem, plan(problem, method="calendar", calendars=1))
    >>> for one in compare_plan_choices(few_changes, PlannedProblem(problem, plan(problem)), "auto"):
    ...     print(one.name, one.method, one.objective, one.unmet_gpu_hours, one.simulated)
    few_changes calendar 6.0 0.0 None
    unrestricted auto 3.1 0.0 None
    """
    few_cost, free_cost = (planned.plan.require().objective or 0.0 for planned in (planned, planned_free))
    if few_cost <= free_cost:
        planned_free = planned
    few_run = free_run = None if scenario is None else SimulatedPlan.from_weeks(weeks, planned.problem)
    if scenario is not None and planned_free is not planned:
        free_run = SimulatedPlan.from_weeks(simulate_plan(scenario, planned_free), planned_free.problem)
    few_changes = PlanChoice.from_plan(FEW_CHANGES, "calendar", planned, few_run)
    return few_changes, PlanChoice.from_plan(UNRESTRICTED, method, planned_free, free_run)


def simulate_plan(scenario: Scenario, planned: PlannedProblem) -> list[PlanWeek]:
    """Simulate a plan on resampled weeks: nodes are drained for changes; no week if the plan was not found."""
    if not planned.plan.is_feasible:
        return []
    problem = planned.problem
    until_s = problem.n_slots * problem.interval_hours * SECONDS_PER_HOUR
    weeks = simulate_weeks(scenario, planned.layout_plan, problem)
    return [PlanWeek.from_simulation(week, until_s) for week in weeks]


@stage
def simulate_study_plan(scenario: Scenario) -> list[PlanWeek]:
    """Simulate the plan of a study once for all comparisons; see :func:`simulate_plan`."""
    return simulate_plan(scenario, plan_study_layouts(scenario))


def compare_with_unrestricted(
    scenario: Scenario, planned: PlannedProblem, weeks: Sequence[PlanWeek]
) -> tuple[PlanChoice, ...]:
    """Compare the plan of a scenario, simulated in `weeks`, with an unrestricted one.

    Empty if it is unrestricted already or was not found.
    """
    if planned.plan.method != "calendar" or not planned.plan.is_feasible:
        return ()
    planned_free = plan_problem_for(planned.problem, scenario, "milp")
    if not planned_free.plan.is_feasible:
        return ()
    return compare_plan_choices(planned, planned_free, "milp", scenario, weeks)


@stage
def plan_choices(scenario: Scenario) -> tuple[PlanChoice, ...]:
    """Return the plan of a study and the unrestricted one; see :func:`compare_with_unrestricted`."""
    return compare_with_unrestricted(scenario, plan_study_layouts(scenario), simulate_study_plan(scenario))


def make_choice_table(plan_choices: Sequence[PlanChoice]) -> pl.DataFrame:
    """Make a table with a row for each plan; simulated figures have columns ``simulated_…``, without unknown ones."""
    rows = []
    for choice in plan_choices:
        row = {"plan": choice.name, **vars(choice)}
        if choice.simulated is not None:
            row |= {f"simulated_{name}": value for name, value in vars(choice.simulated).items()}
        left_out = ("name", "taken", "simulated")
        rows.append({key: value for key, value in row.items() if value is not None and key not in left_out})
    return pl.DataFrame(rows)


def format_plan_choice(plan_choices: Sequence[PlanChoice]) -> str:
    """Format which plan is exported, what the other plan costs, and how to choose it."""
    few_changes, unrestricted = plan_choices
    if unrestricted.objective >= few_changes.objective:
        return f"The {few_changes.description}: no plan with more changes costs less."
    text = f"The {few_changes.description}; the {unrestricted.description}: --method {unrestricted.method} takes it."
    if few_changes.changes > unrestricted.changes:
        text += " The few-changes plan repeats few sets of layouts, and here takes more changes."
    if few_changes.simulated is None:
        return text
    return (
        f"{text} The simulation covers {count_text(few_changes.simulated.weeks, 'resampled week')}, with waiting at "
        "the price of unmet demand and nodes drained for changes by the actuator."
    )


@dataclass(frozen=True)
class FixedLayoutComparison:
    """A schedule of layouts against the best fixed layout.

    - ``gpu_hours_saved_per_week``: Provisioned GPU-hours that the schedule saves.
    - ``added_p95_minutes``: Largest rise over job sizes of the p95 queue wait, the median over the weeks [min].
    - ``weeks``: Resampled weeks on which both were simulated.
    """

    gpu_hours_saved_per_week: float
    added_p95_minutes: float
    weeks: int

    @property
    def comparison_text(self) -> str:
        """The comparison in one sentence.

        Examples
        --------
        >>> FixedLayoutComparison(120.0, 4.0, 8).comparison_text
        'Over the best fixed layout the schedule frees 120 GPU-hours a week, and adds 4 min to the p95 queue wait.'
        """
        saved_hours, added = self.gpu_hours_saved_per_week, self.added_p95_minutes
        hours = f"{'frees' if saved_hours >= 0 else 'takes'} {abs(saved_hours):,.0f} GPU-hours a week"
        wait = f"{'adds' if added >= 0 else 'takes'} {abs(added):,.0f} min {'to' if added >= 0 else 'off'} the p95"
        return f"Over the best fixed layout the schedule {hours}, and {wait} queue wait."


def compare_with_fixed(
    schedule: Sequence[PlanWeek], fixed: Sequence[PlanWeek], simulated_hours: float
) -> FixedLayoutComparison:
    """Compare simulations of a schedule and of a fixed layout on the same weeks.

    Parameters
    ----------
    schedule, fixed : sequence of PlanWeek
        Simulated weeks of the schedule, and of the fixed layout.
    simulated_hours : float
        Length of a simulated week. [h]

    Returns
    -------
    FixedLayoutComparison
        GPU-hours saved in a week, largest rise over job sizes of the p95 queue wait, each the median over the weeks
        [min], and number of weeks.
    """
    gpu_hours, fixed_gpu_hours = (np.mean([week.gpu_hours for week in weeks]) for weeks in (schedule, fixed))
    wait_s = [
        pl.concat(week.p95_waits for week in weeks).group_by("size", maintain_order=True).agg(pl.col("wait_s").median())
        for weeks in (schedule, fixed)
    ]
    added = wait_s[0].join(wait_s[1], on="size", suffix="_fixed")
    added_s = added.select((pl.col("wait_s") - pl.col("wait_s_fixed")).max()).item() or 0.0
    saved = HOURS_PER_WEEK / simulated_hours * float(fixed_gpu_hours - gpu_hours)
    return round_record(FixedLayoutComparison(saved, added_s / SECONDS_PER_MINUTE, len(schedule)), RECORD_DECIMALS)


def compare_plan_with_fixed(
    scenario: Scenario, planned: PlannedProblem, weeks: Sequence[PlanWeek]
) -> FixedLayoutComparison | None:
    """Compare a plan, simulated in `weeks`, with the best fixed layout; None if either plan is not found."""
    planned_fixed = plan_problem_for(planned.problem, scenario, "static") if planned.plan.is_feasible else planned
    if not planned_fixed.plan.is_feasible:
        return None
    simulated_hours = planned.problem.n_slots * planned.problem.interval_hours
    return compare_with_fixed(weeks, simulate_plan(scenario, planned_fixed), simulated_hours)


@stage
def compare_study_plan_with_fixed(scenario: Scenario) -> FixedLayoutComparison | None:
    """Compare the plan of a study with the best fixed layout."""
    return compare_plan_with_fixed(scenario, plan_study_layouts(scenario), simulate_study_plan(scenario))


@dataclass(frozen=True, eq=False)
class RobustPlans:
    """Plans for several demands, and the cost of each over sample paths.

    - ``plans``: Plans by name: ``mean``, ``q50``, ``q90``.
    - ``table``: One row for each plan, cheapest first: ``plan``; ``gpu_hours`` provisioned; ``mean_cost`` over the
      paths, where unmet demand waits and has a price in each interval until it is met; ``cvar_cost``, the mean of the
      costliest tenth.
    - ``n_paths``: Number of sample paths.
    """

    plans: Mapping[str, PlannedProblem]
    table: pl.DataFrame
    n_paths: int

    @property
    def preferred_plan(self) -> str:
        """Name of the plan with the lowest mean cost."""
        return str(self.table["plan"][0])

    @property
    def preference_text(self) -> str:
        """The preferred plan and the costs of all, in one sentence."""
        best_row = self.table.row(0, named=True)
        other_rows = self.table[1:].iter_rows(named=True)
        listed = ", ".join(f"{row['plan']} {row['mean_cost']:,.0f} ({row['cvar_cost']:,.0f})" for row in other_rows)
        return (
            f"Choose the plan for {best_row['plan']}: its mean cost over {self.n_paths} paths is "
            f"{best_row['mean_cost']:,.0f} GPU-hours, its CVaR (10 %) {best_row['cvar_cost']:,.0f}; the "
            f"others: {listed}."
        )

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON."""
        return {"preferred": self.preferred_plan, "sentence": self.preference_text, "plans": self.table.to_dicts()}


def weigh_plans_over_paths(scenario: Scenario, method: str | None = None) -> RobustPlans:
    """Plan the rightsized demand for its mean and two quantiles, and cost each plan over all sample paths.

    The mean is that of the paths; the quantiles are those of the forecast.
    """
    problem = make_plan_problem(scenario, "rightsized")
    gang_gpus = largest_gang(scenario)
    sampled_demand = demand_paths(scenario, problem.tenants, problem.profiles) * scenario.arrival_scale
    paths = np.stack([raise_demand_to_gang(path, problem.profiles, gang_gpus) for path in sampled_demand])
    problems = {"mean": replace(problem, demand=paths.mean(axis=0))}
    for name, level in (("q50", 0.5), ("q90", 0.9)):
        problems[name] = make_plan_problem(scenario.but(quantile=level), "rightsized")
    plans = {name: plan_problem_for(planned, scenario, method) for name, planned in problems.items()}
    for planned in plans.values():
        planned.plan.require()

    costs = realised_costs(problem, [planned.plan for planned in plans.values()], paths.sum(axis=1), carry_over=True)
    # The conditional value at risk (CVaR) is the mean cost of the dearest tenth of the paths.
    costliest = np.sort(costs, axis=1)[:, -max(1, round(0.1 * len(paths))) :]
    gpu_hours_on = [planned.plan.gpu_hours_on for planned in plans.values()]
    columns = {"mean_cost": costs.mean(axis=1), "cvar_cost": costliest.mean(axis=1)}
    table = pl.DataFrame({"plan": list(plans), "gpu_hours": gpu_hours_on, **columns})
    return RobustPlans(plans, table.sort("mean_cost", maintain_order=True), len(paths))


@stage
def table_weekly_fewest_gpus(scenario: Scenario) -> pl.DataFrame:
    """Make a table of the weekly demand of small jobs in each view, and of the fewest GPUs that serve it.

    Small jobs request at most one GPU. The GPUs serve the demand that 95 % of the hours of a week do not exceed, by the
    integer optimum of a single interval; ``whole`` gives each such job a GPU of its own.
    """
    job_history = history(scenario)
    start, end = observation_begins_at(job_history.trace), job_history.plan_start
    start = start.replace(minute=0, second=0, microsecond=0)
    by_view = {}
    for view in REQUEST_VIEWS:
        small_jobs = job_history.views[view].lazy().filter(pl.col("gpus") <= 1).select(DEMAND_COLUMNS).collect()
        demand = demand_series(small_jobs, start=start, end=end, clock="wanted")
        by_view[view] = weekly_demand(demand, quantile=WEEKLY_PEAK_QUANTILE)
    rows = []
    for week, slots in by_view["whole"].select("week", "slots").unique(maintain_order=True).iter_rows():
        fewest = {view: _fewest_gpus(scenario, job_history, needs.filter(week=week)) for view, needs in by_view.items()}
        whole = by_view["whole"].filter(week=week)
        row = {"week": week.date(), "hours": slots, "mean_gpus_whole": float(whole["mean"].sum())}
        row |= {f"gpus_{view}": fewest[view][0] for view in ("whole", "requested", "rightsized")}
        rows.append(row | {"layouts_rightsized": fewest["rightsized"][1]})
    return pl.DataFrame(rows)


def _fewest_gpus(scenario: Scenario, job_history: History, needs: pl.DataFrame) -> tuple[int, str]:
    """Find the fewest GPUs for a week's instances of each profile (column ``quantile``), and format their layouts."""
    needs = needs.filter(pl.col("quantile") > 0)
    if needs.is_empty():
        return 0, "-"
    ceiling = int(needs["quantile"].ceil().sum())
    problem = PlanProblem(
        job_history.fleet.gpu_model, ceiling, job_history.fleet.node_size, needs["week"][0], HOURS_PER_WEEK, ["all"],
        needs["profile"].to_list(), needs["quantile"].to_numpy().reshape(1, -1, 1), unmet_price=1e4,
    )  # fmt: skip
    plan_found = plan(problem, **scenario.but(gap_target=0.0).search_limits).require()
    counts = zip(plan_found.layouts, plan_found.counts[0], strict=True)
    return int(plan_found.counts[0].sum()), "; ".join(f"{count} x {text}" for text, count in counts if count)
