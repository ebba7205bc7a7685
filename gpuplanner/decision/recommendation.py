"""Recommendation: the decision derived from the wait model and the policy comparison, with its figures."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

import numpy as np
import polars as pl

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import FULL_GPU, SERVICE_JOB_CLASS
from gpuplanner.core.serialization import from_plain, to_json, to_plain
from gpuplanner.core.stage_cache_and_data_folders import disk_stage, stage
from gpuplanner.core.units_and_number_formats import (
    HOURS_PER_WEEK,
    SECONDS_PER_MINUTE,
    UNALLOCATED_TEAM,
    gpus_text,
    percent_text,
)
from gpuplanner.decision.capacity_measures import (
    RECOMMENDED_LAYOUT,
    MeasureSearch,
    Recommendation,
    RecommendedMeasures,
    TeamWaits,
    add_kept_units,
    find_measures,
    list_changes_against_cause,
    recommend,
    recommend_nothing,
    simulate_wait_curve,
)
from gpuplanner.decision.data_correction import compute_left_out_share, find_correction
from gpuplanner.decision.decision_text import (
    MIN_COMPLETE_LIST_SHARE,
    add_texts,
    make_correction_decision,
    make_empty_decision,
)
from gpuplanner.decision.decision_types import (
    AUTOSCALED_POOLS,
    FEWER_NODES,
    LAYOUT_FULL,
    MIG_DYNAMIC,
    MIG_STATIC,
    PARTITION_ACTIONS,
    POWER_DOWN_IDLE,
    TODAY,
    WAIT_REDUCING_ACTIONS,
    CurvePoint,
    Decision,
    Headroom,
    LayoutOnNodes,
    Measure,
    Saving,
    TeamRow,
    compute_impact,
)
from gpuplanner.decision.explained_waits import ExplainedWaits, take_jobs
from gpuplanner.decision.headroom_and_growth import (
    FittedGrowth,
    MeasuredHeadroom,
    fit_growth_per_week,
    state_growth,
    sum_weekly_work,
)
from gpuplanner.decision.policy_comparison import (
    POLICY_NAMES,
    PolicyResults,
    TuningJobs,
    estimate_weekly_saving,
    find_simulation_obstacle,
    load_fitted_policies,
    load_policy_simulation,
    summarize_policy_run,
)
from gpuplanner.decision.policy_layouts import FleetRules, assign_layouts, keep_layouts, make_fleet_rules, rank_nodes
from gpuplanner.decision.policy_simulation import (
    PolicyRun,
    PolicySetting,
    SettingValues,
    find_servable_requests,
    partition_nodes,
)
from gpuplanner.decision.requested_jobs import JobReplayInputs, classify_job_sizes
from gpuplanner.decision.wait_causes import CAUSES
from gpuplanner.decision.wait_curve import SizedPool, WaitModel, WaitTarget, count_gpus_by_layout
from gpuplanner.ingest.telemetry.telemetry_quality import matched_gpu_hours
from gpuplanner.usage.gpu_hour_ledger import hours_by_bucket, hours_by_tenant
from gpuplanner.usage.period_accounts import scenario_ledger
from gpuplanner.usage.planning_history import History, history, observation_begins_at

UNALLOCATED_BUCKETS = ("unallocated", "fragmented", "idle_pending", "reserved", "reconfiguring", "down")
"""Buckets of installed GPU-hours that were allocated to no team."""
ACTION_BY_IDLE_POLICY = {POWER_DOWN_IDLE: "power_down", AUTOSCALED_POOLS: "autoscale", MIG_DYNAMIC: "repartition"}
"""Policies that may save more than the release of nodes, and the action of the measure that applies each."""
MIN_EXTRA_SAVING_FRACTION = 0.01
"""Share of the fleet by which a policy must save more than the release of nodes to be preferred [0-1]."""
MAX_SHARED_SHARE = 0.20
"""Share of the GPU-hours on GPUs shared without MIG above which nothing is recommended [0-1]."""


@dataclass(frozen=True, eq=False)
class DecisionBasis:
    """Decision with its evidence; None where nothing could be simulated.

    - ``decision``: The decision.
    - ``policy_results``: Policies simulated on the same jobs, and the winner.
    - ``recommendation``: Recommendation of the wait model.
    - ``curve``: The wait curve; empty where there is no recommendation.
    - ``rules``: Rules of the recommended policy.
    """

    decision: Decision
    policy_results: PolicyResults | None = None
    recommendation: Recommendation | None = None
    curve: tuple[CurvePoint, ...] = ()
    rules: FleetRules | None = None


@dataclass(frozen=True, eq=False)
class CourseOfAction:
    """Measures to take, and the fleet that results.

    - ``measures``: Measures, in order.
    - ``policy``, ``run``: Policy of the resulting fleet, and its simulation.
    - ``gpus``, ``gpus_mean``: GPUs provisioned at most, and on average.
    - ``layouts``: GPUs by MIG layout.
    - ``saving``: Capacity freed.
    """

    measures: tuple[Measure, ...]
    policy: str
    run: PolicyRun
    gpus: int
    gpus_mean: float
    layouts: tuple[LayoutOnNodes, ...]
    saving: Saving


def decide(scenario: Scenario, tell: Callable[[str, PolicyRun], object] | None = None) -> DecisionBasis:
    """Decide on the measures for a fleet.

    Parameters
    ----------
    scenario : Scenario
        Data, limits and prices.
    tell : callable, optional
        Called with each policy and its simulation.

    Returns
    -------
    DecisionBasis
    """
    if (correction := find_correction(scenario.data)) is not None:
        return DecisionBasis(make_correction_decision(scenario, correction))
    if (reason := find_simulation_obstacle(scenario)) is not None:
        return DecisionBasis(make_empty_decision(scenario, reason))
    policy_results = load_fitted_policies(scenario, tell)
    recommendation, curve = recommend_from_waits(without_policies(scenario))
    course = sized_course = plan_todays_nodes(policy_results, recommendation)
    # Nodes are not powered down if growth will exhaust the capacity soon.
    if recommendation.action in ("keep", "release") and not recommendation.late_sizes and not recommendation.order_gpus:
        larger, course = _add_idle_policy(policy_results, recommendation, course)
        if larger is not recommendation:
            recommendation, curve = larger, tuple(simulate_wait_curve(larger.model, larger))
            sized_course = plan_todays_nodes(policy_results, larger)
    decision = build_decision(policy_results, recommendation, course, curve)
    policy_results = replace_with_recommended(policy_results, recommendation, sized_course, course)
    rules = make_fleet_rules(policy_results.asked_jobs, course.run, policy_results.abilities, course.policy)
    return DecisionBasis(decision, policy_results, recommendation, curve, rules)


def replace_with_recommended(
    policy_results: PolicyResults, recommendation: Recommendation, sized_course: CourseOfAction, course: CourseOfAction
) -> PolicyResults:
    """Replace the policies of a comparison by their recommended settings.

    The recommendation of the wait model meets the limit if each job size meets its own, or waits no longer than today.
    Policies that power nodes down while idle apply to the nodes that are kept.

    Parameters
    ----------
    policy_results : PolicyResults
        The comparison.
    recommendation : Recommendation
        Recommendation of the wait model.
    sized_course : CourseOfAction
        Recommendation without powering idle nodes down.
    course : CourseOfAction
        The chosen course of action.
    """
    days = (policy_results.training_days, policy_results.evaluation_days)
    results, winner = {result.policy: result for result in policy_results.evaluated_policies}, policy_results.winner
    if winner.run is not None and recommendation.late_sizes:
        why_not = f"not applied while jobs on {', '.join(recommendation.late_sizes)} miss the wait target"
        results |= {name: replace(winner, reason=why_not) for name in results if name == winner.policy}
    is_kept = recommendation.action == "keep" and not recommendation.late_sizes
    if is_kept and FEWER_NODES in results and policy_results.scenario.gpus is None:
        results[FEWER_NODES] = replace(results[FEWER_NODES], reason=recommendation.reason)
    for candidate in (sized_course, course) if course is not sized_course else (sized_course,):
        if candidate.policy == TODAY:
            continue
        is_sized = candidate is sized_course  # by the wait limits, even where waits by size are not shown
        # The record of the sized one states its misses.
        holds = is_sized or policy_results.replayed_jobs.meets_limit(candidate.run, policy_results.evaluation_jobs)
        reason = None if holds else "a job size waits longer than its limit and than today"
        winner = summarize_policy_run(candidate.policy, candidate.run, holds=holds, days=days)
        winner = replace(winner, service=recommendation.service if is_sized else (), reason=reason)
        results[candidate.policy] = winner
    order = [name for name in POLICY_NAMES if name in results]
    return replace(policy_results, evaluated_policies=tuple(results[name] for name in order), winner=winner)


def build_wait_model(inputs: JobReplayInputs, waits: ExplainedWaits) -> WaitModel:
    """Build the wait model of the jobs that today's nodes can serve."""
    servable = find_servable_requests(inputs.requests, inputs.fleet, larger=None)
    if not servable.all():
        rows = np.flatnonzero(servable)
        inputs, waits = take_jobs(inputs, waits, rows, np.zeros(len(rows)))
    return WaitModel(inputs, waits, *classify_job_sizes(inputs, waits.is_evaluated))


def without_policies(scenario: Scenario) -> Scenario:
    """Reset policies, actuator and ownership of a scenario: the recommendation of the wait model depends on none."""
    return scenario.but(policies=None, actuator="mig-manager", ownership=None, node_lead_s=None)


def read_wait_target(scenario: Scenario) -> WaitTarget:
    """Read the wait target of a scenario."""
    stated = scenario.target_wait_minutes
    target = {} if stated is None else {"target_s": stated * SECONDS_PER_MINUTE, "stated": True}
    return WaitTarget(added_s=scenario.max_added_wait_minutes * SECONDS_PER_MINUTE, **target)  # type: ignore[arg-type]


def fit_submitted_growth(job_history: History) -> FittedGrowth:
    """Fit the weekly growth of the work submitted in the entire record, without services."""
    jobs = job_history.jobs.filter(pl.col("gpus") > 0, (pl.col("job_class") != SERVICE_JOB_CLASS).fill_null(value=True))
    return fit_growth_per_week(sum_weekly_work(jobs, observation_begins_at(job_history.trace), job_history.plan_start))


KEPT_FIELDS = tuple(field.name for field in fields(RecommendedMeasures))
"""Fields of :class:`Recommendation` that :class:`RecommendationRecord` stores unchanged."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RecommendationRecord(RecommendedMeasures):
    """Recommendation on disk, from which it is rebuilt without a search.

    - ``units``: Nodes of each pool, or GPUs.
    - ``layouts``: Layout, GPUs; where GPUs may move between pools.
    - ``headroom``, ``load_factors``: Headroom, and its load factors in resampled weeks.
    - ``waits_of_teams``: Team (None: all jobs), mean queue wait today and as recommended [min].
    - ``curve``: Wait curve.
    """

    units: tuple[int, ...]
    layouts: tuple[tuple[str, int], ...]
    headroom: Headroom | None
    load_factors: tuple[float, ...]
    waits_of_teams: tuple[tuple[str | None, float, float], ...]
    curve: tuple[CurvePoint, ...]

    def restore(self, model: WaitModel, growth: FittedGrowth) -> Recommendation:
        """Return the recommendation for the wait model of the record and its growth."""
        layout = dict(self.layouts) or None
        changes = (change for cause in (*CAUSES, "") for change in list_changes_against_cause(model, cause, layout))
        changed = None
        if self.action in WAIT_REDUCING_ACTIONS:
            changed = next(change for change in changes if change.action == self.action)
        headroom = None if self.headroom is None else MeasuredHeadroom(self.headroom, np.array(self.load_factors))
        return Recommendation(
            **{name: getattr(self, name) for name in KEPT_FIELDS}, growth=growth, headroom=headroom,
            model=model if changed is None else changed.model, pools=model.pools if changed is None else changed.pools,
            units=self.units, team_waits={team: (today, new) for team, today, new in self.waits_of_teams},
        )  # fmt: skip


@stage
def load_wait_model(scenario: Scenario) -> tuple[WaitModel, FittedGrowth, float]:
    """Build the wait model of a scenario, with the growth and the share of jobs that share GPUs without MIG [0-1]."""
    job_history, inputs, replayed_jobs, _ = load_policy_simulation(scenario)
    model = build_wait_model(inputs, replayed_jobs.waits)
    growth = fit_submitted_growth(job_history)
    if scenario.growth_per_week is not None:
        growth = state_growth(scenario.growth_per_week)
    may_partition = scenario.mig_layout == RECOMMENDED_LAYOUT
    return replace(model, may_partition=may_partition), growth, job_history.shared_share


@stage
def recommend_from_waits(scenario: Scenario) -> tuple[Recommendation, tuple[CurvePoint, ...]]:
    """Recommend measures by the wait model, and compute the wait curve; both are read from disk where they are known.

    There is no recommendation where the list of jobs may be incomplete, or jobs share GPUs without MIG.
    """
    record = _record_recommendation(scenario)
    model, growth, _ = load_wait_model(scenario)
    return record.restore(model, growth), record.curve


@disk_stage(
    "recommendations",
    lambda record: to_json(to_plain(record)).encode(),
    lambda content: from_plain(RecommendationRecord, json.loads(content)),
)
def _record_recommendation(scenario: Scenario) -> RecommendationRecord:
    """Find the recommendation of the wait model and its wait curve."""
    recommendation, curve = _recommend(scenario)
    headroom = recommendation.headroom
    pools = zip(recommendation.pools, recommendation.units, strict=True)
    return RecommendationRecord(
        **{name: getattr(recommendation, name) for name in KEPT_FIELDS},
        units=tuple(int(count) for count in recommendation.units),
        layouts=tuple(pair for pool, count in pools for pair in count_gpus_by_layout(pool.layouts, count).items()),
        headroom=None if headroom is None else headroom.headroom,
        load_factors=() if headroom is None else tuple(headroom.factors.tolist()),
        waits_of_teams=tuple((team, *waits) for team, waits in recommendation.team_waits.items()), curve=curve,
    )  # fmt: skip


@stage
def search_measures(scenario: Scenario) -> MeasureSearch:
    """Search for the measures of :func:`recommend_from_waits`, without their headroom and the wait curve."""
    model, growth, shared_share = load_wait_model(scenario)
    reason = None
    teams = team_rows(scenario)  # as the report states it
    unallocated_hours, all_hours = teams[-1].allocated_gpu_hours, sum(row.allocated_gpu_hours for row in teams)
    if (allocated := 1 - unallocated_hours / max(all_hours, 1e-9)) < MIN_COMPLETE_LIST_SHARE:
        share = percent_text(allocated, ".1f")
        reason = f"jobs were allocated {share} of the GPU-hours: the list of jobs may be incomplete"
    elif shared_share > MAX_SHARED_SHARE:
        reason = "jobs share their GPUs without MIG, which the simulation does not follow"
    if reason is not None:
        return MeasureSearch(recommend_nothing(model, reason, growth))
    return find_measures(model, read_wait_target(scenario), growth, lead_days=scenario.purchase_lead_days)


def _recommend(scenario: Scenario) -> tuple[Recommendation, tuple[CurvePoint, ...]]:
    """Complete the measures of :func:`search_measures`, and simulate the wait curve."""
    (model, growth, _), search = load_wait_model(scenario), search_measures(scenario)
    target, lead_days = read_wait_target(scenario), scenario.purchase_lead_days
    recommendation = recommend(model, target, growth, lead_days=lead_days, search=search)
    return recommendation, () if recommendation.action == "none" else tuple(simulate_wait_curve(model, recommendation))


def simulate_fleet_sizes(scenario: Scenario, gpus: tuple[int, ...]) -> tuple[CurvePoint, ...]:
    """Simulate the queue waits on fleets of the given sizes, with today's and with the recommended layout.

    Parameters
    ----------
    scenario : Scenario
        Data and wait limits.
    gpus : tuple of int
        Fleet sizes, rounded to whole nodes. [GPU]

    Returns
    -------
    tuple of CurvePoint

    Raises
    ------
    ScenarioError
        If the data do not support a simulation of waits.
    """
    neutral = without_policies(scenario)
    obstacle = find_simulation_obstacle(scenario)
    if obstacle is None:
        recommendation, _ = recommend_from_waits(neutral)
        obstacle = recommendation.reason if recommendation.action == "none" else None
    if obstacle is not None:
        raise ScenarioError(
            "wait curve", "data that a replay reproduces", obstacle, "Show gp.decide(data): it names the data to add."
        )
    return tuple(simulate_wait_curve(load_wait_model(neutral)[0], recommendation, gpus))


def build_decision(
    results: PolicyResults, recommendation: Recommendation, course: CourseOfAction, curve: Sequence[CurvePoint]
) -> Decision:
    """Build the decision from the recommendation and the chosen course of action.

    Parameters
    ----------
    results : PolicyResults
        Policies compared on the same jobs.
    recommendation : Recommendation
        Recommendation of the wait model.
    course : CourseOfAction
        Chosen measures.
    curve : sequence of CurvePoint
        The wait curve.
    """
    scenario, inputs = results.scenario, results.asked_jobs
    fleet, measures = inputs.nodes.total, course.measures
    mean, service = recommendation.team_waits.get(None, (None, None)), recommendation.service
    if scenario.arrival_scale != 1.0:  # nothing was observed at this demand
        service = tuple(replace(row, observed_p95_minutes=row.today_p95_minutes) for row in service)
    decision = Decision(
        sentence="", action=measures[0].action if measures else recommendation.action, fleet_gpus=fleet,
        gpus=course.gpus, gpus_mean=course.gpus_mean, layouts=course.layouts, policy=course.policy,
        actuator=scenario.actuator, saving=course.saving,
        financial_impact=compute_impact(scenario, course.saving, course.gpus, fleet, recommendation.exhaustion),
        purchase_lead_days=scenario.purchase_lead_days, measures=measures,
        reason=None if measures else recommendation.reason,
        service=service, arrival_scale=scenario.arrival_scale,
        conditions=tuple(filter(None, (measure.condition for measure in measures))),
        teams=team_rows(scenario, recommendation.team_waits),
        left_out_share=compute_left_out_share(results.job_history.trace), fleet_inferred=inputs.nodes.inferred,
        gpu_model=results.job_history.fleet.name,
        telemetry_matched_gpu_hours=matched_gpu_hours(results.job_history.trace),
        today_mean_minutes=mean[0], recommended_mean_minutes=mean[1],
    )  # fmt: skip
    return add_texts(decision, results, recommendation, course.run, curve)


def plan_todays_nodes(results: PolicyResults, recommendation: Recommendation) -> CourseOfAction:
    """Apply the recommendation to today's nodes, all of them powered on, and simulate the resulting fleet."""
    inputs, replayed_jobs, action = results.asked_jobs, results.replayed_jobs, recommendation.action
    fleet = inputs.nodes.total
    if action in PARTITION_ACTIONS:
        policy, run = MIG_STATIC, replayed_jobs.simulate(_partition_as_recommended(inputs, recommendation))
        layouts = _list_layouts(inputs, run)
    else:
        kept_nodes = _list_kept_nodes(recommendation.pools, recommendation.units)
        policy = TODAY if len(kept_nodes) == len(inputs.nodes.gpus) else FEWER_NODES
        setting = keep_layouts(inputs, policy, kept_nodes)
        run = replayed_jobs.today if policy == TODAY else replayed_jobs.simulate(setting)
        layouts = _group_by_layout(inputs, [(number, inputs.nodes.layouts[number]) for number in kept_nodes])
    gpus = sum(layout.gpus for layout in layouts)
    if recommendation.gpus > fleet:
        layouts = (*layouts, *_list_layouts_to_buy(_list_nodes_to_buy(inputs, recommendation)))
        gpus = recommendation.gpus
    freed = float(max(fleet - gpus, 0) * HOURS_PER_WEEK)
    nothing = Saving(None, reason="no GPU is released or powered down")
    saving = Saving(freed, freed, freed) if freed else nothing
    measures = (*recommendation.measures[:-1], *(replace(last, gpus=gpus) for last in recommendation.measures[-1:]))
    return CourseOfAction(measures, policy, run, gpus, float(gpus), layouts, saving)


def _add_idle_policy(
    results: PolicyResults, recommendation: Recommendation, course: CourseOfAction
) -> tuple[Recommendation, CourseOfAction]:
    """Add the winning policy to the recommendation and its course of action, if it saves clearly more."""
    winner, inputs, replayed_jobs = results.winner, results.asked_jobs, results.replayed_jobs
    fleet = inputs.nodes.total
    if winner.run is None or winner.policy not in ACTION_BY_IDLE_POLICY:
        return recommendation, course
    extra_units, run = 0, winner.run
    if winner.policy != MIG_DYNAMIC:
        if (fitted := _fit_policy_on_kept_nodes(results, run, recommendation)) is None:
            return recommendation, course
        extra_units, run = fitted
    saving = _estimate_saving(results, run)
    gained = (saving.value or 0.0) - (course.saving.value or 0.0)
    if (saving.low or 0.0) <= 0 or gained < MIN_EXTRA_SAVING_FRACTION * fleet * HOURS_PER_WEEK:
        return recommendation, course
    if extra_units:
        target, days = read_wait_target(results.scenario), results.scenario.purchase_lead_days
        model, growth = recommendation.model, recommendation.growth
        recommendation = recommend(model, target, growth, lead_days=days, extra_units=extra_units)
        course = plan_todays_nodes(results, recommendation)
    gpus, mean = min(replayed_jobs.peak_gpus(run), course.gpus), fleet - (saving.value or 0.0) / HOURS_PER_WEEK
    text = {
        POWER_DOWN_IDLE: "Power idle nodes down", AUTOSCALED_POOLS: "Scale node pools with the requests of jobs",
        MIG_DYNAMIC: "Partition GPUs on demand",
    }[winner.policy]  # fmt: skip
    text = f"{text}: {gpus_text(mean)} are provisioned on average"
    condition = "after release" if course.measures else None
    measure = Measure(ACTION_BY_IDLE_POLICY[winner.policy], text, gpus, condition)
    layouts = _list_layouts(inputs, run, gpus)
    course = CourseOfAction((*course.measures, measure), winner.policy, run, gpus, mean, layouts, saving)
    return recommendation, course


def _fit_policy_on_kept_nodes(
    results: PolicyResults, run: PolicyRun, recommendation: Recommendation
) -> tuple[int, PolicyRun] | None:
    """Fit a policy to the nodes that the recommendation keeps, or to more nodes where that saves clearly more.

    Several settings are tried for each number of nodes, so that no number is excluded by a single setting.

    Returns
    -------
    tuple of int and PolicyRun, or None
        Number of added units and the simulation; None where no setting meets the limit.
    """
    tuning = TuningJobs(results.replayed_jobs, results.training_jobs, results.training_days, results.abilities)
    pools, units = recommendation.pools, recommendation.units
    max_extra_units = sum(pool.today for pool in pools) - sum(units)
    fitted: list[tuple[int, PolicyRun, float]] = []
    for extra_units in sorted({0, max_extra_units, *(2**power for power in range(max_extra_units.bit_length()))}):
        numbers = _list_kept_nodes(pools, add_kept_units(pools, units, extra_units))
        tried = tuning.try_settings(tuning.list_settings_on_nodes(run.setting, numbers))
        best = tuning.choose_cheapest(run.setting.policy, tried)
        if best is not None and results.replayed_jobs.meets_limit(best, results.evaluation_jobs):
            fitted.append((extra_units, best, _estimate_saving(results, best).value or 0.0))
    most_saved = max((saved for *_, saved in fitted), default=0.0)
    enough = most_saved - MIN_EXTRA_SAVING_FRACTION * results.asked_jobs.nodes.total * HOURS_PER_WEEK
    return next(((extra_units, best) for extra_units, best, saved in fitted if saved >= enough), None)


def _list_kept_nodes(pools: Sequence[SizedPool], units: Sequence[int]) -> list[int]:
    """List the numbers of today's nodes that are kept."""
    return sorted(number for pool, count in zip(pools, units, strict=True) for number in pool.nodes[:count])


def _partition_as_recommended(inputs: JobReplayInputs, recommendation: Recommendation) -> PolicySetting:
    """Build the setting of today's nodes partitioned as recommended; GPUs that no profile needs stay full."""
    nodes = inputs.nodes
    wanted = _list_partitioned_gpus(recommendation)[: nodes.total]
    layouts = assign_layouts(nodes.layouts, rank_nodes(inputs), sorted(wanted, key=lambda layout: layout != FULL_GPU))
    kept = list(layouts)
    fleet, named = partition_nodes(inputs, kept, [[layouts[number]] for number in kept])
    values: SettingValues = {"gpus": int(fleet.gpus.sum()), "requests": recommendation.view}
    return PolicySetting(MIG_STATIC, recommendation.view, fleet, named, tuple(kept), values=values)


def _list_partitioned_gpus(recommendation: Recommendation) -> list[str]:
    """List the layouts of the GPUs of a recommendation that repartitions them, those with MIG instances first."""
    mig_layouts: list[str] = []
    for pool, count in zip(recommendation.pools, recommendation.units, strict=True):
        gpus_by_layout = count_gpus_by_layout(pool.layouts, count)
        mig_layouts += [layout for layout, gpus in gpus_by_layout.items() if layout != FULL_GPU for _ in range(gpus)]
    return mig_layouts + [FULL_GPU] * (recommendation.gpus - len(mig_layouts))


def _list_nodes_to_buy(inputs: JobReplayInputs, recommendation: Recommendation) -> list[Sequence[str]]:
    """List the layouts of the GPUs of each node that a recommendation adds in simulation."""
    nodes, size = inputs.nodes, inputs.node_gpus
    if recommendation.action in PARTITION_ACTIONS:
        added = _list_partitioned_gpus(recommendation)[nodes.total :]
        return [added[first : first + size] for first in range(0, len(added), size)]
    pools = zip(recommendation.pools, recommendation.units, strict=True)
    return [nodes.layouts[pool.added_node] for pool, count in pools for _ in range(count - pool.today)]


def _list_layouts_to_buy(nodes: Sequence[Sequence[str]]) -> Iterator[LayoutOnNodes]:
    """Yield the GPUs to buy by layout; their nodes have no names yet."""
    for layout in dict.fromkeys(itertools.chain(*nodes)):
        by_node = tuple(node.count(layout) for node in nodes)
        name = LAYOUT_FULL if layout == FULL_GPU else layout
        new_nodes = sum(map(bool, by_node))
        yield LayoutOnNodes(name, sum(by_node), by_node=by_node, to_buy=True, new_nodes=new_nodes)


def _estimate_saving(results: PolicyResults, run: PolicyRun) -> Saving:
    """Estimate the GPU-hours a week that a policy saves over today, with its 90 % interval and the weeks evaluated."""
    saved = results.replayed_jobs.today.daily_gpu_hours - run.daily_gpu_hours
    value, low, high = estimate_weekly_saving(
        saved[results.training_days], float(results.asked_jobs.nodes.total * HOURS_PER_WEEK)
    )
    later = saved[results.evaluation_days] if results.has_holdout else np.zeros(0)
    weeks = tuple(float(later[at : at + 7].sum()) for at in range(0, len(later) - 6, 7))
    return Saving(round(value, 3), round(low, 3), round(high, 3), None, tuple(round(hours, 3) for hours in weeks))


def _list_layouts(inputs: JobReplayInputs, run: PolicyRun, gpus: int | None = None) -> tuple[LayoutOnNodes, ...]:
    """List GPUs by layout at the time when most GPUs are provisioned.

    Nodes that stay in one node pool keep their layouts. Of others as many GPUs are partitioned as at most at once, and
    the remaining ones are full.
    """
    setting = run.setting
    if setting.fleet.capacity.shape[1] == 1:
        fixed = [(number, pools[0]) for number, pools in zip(setting.node_numbers, setting.layouts, strict=True)]
        return _group_by_layout(inputs, fixed)
    intervals = run.outcome.power_intervals.filter(pl.col("pool") == 1)
    partitioned = replace(run.outcome, power_intervals=intervals)
    max_partitioned = partitioned.peak_gpus(setting.fleet.gpus, 0.0, inputs.observed_s)
    total = setting.total_gpus if gpus is None else gpus
    left = min(max_partitioned, total)
    rows: list[tuple[int, tuple[str, ...]]] = []
    count = 0
    for number, layouts in reversed(list(zip(setting.node_numbers, setting.layouts, strict=True))):
        size = inputs.nodes.gpus[number]
        sliced = left >= size
        left -= size if sliced else 0
        if count + size <= total:
            rows.append((number, layouts[1 if sliced else 0]))
            count += size
    return _group_by_layout(inputs, rows)


def _group_by_layout(inputs: JobReplayInputs, rows: Sequence[tuple[int, Sequence[str]]]) -> tuple[LayoutOnNodes, ...]:
    """Count GPUs by layout, with their nodes, from rows of a node's number and the layouts of its GPUs."""
    gpus: Counter[str] = Counter()
    nodes: dict[str, Counter[str]] = {}
    for number, layouts in sorted(rows, key=lambda row: row[0]):
        for layout in layouts:
            name = LAYOUT_FULL if layout == FULL_GPU else layout
            gpus[name] += 1
            if inputs.nodes.named:
                nodes.setdefault(name, Counter())[inputs.nodes.names[number]] += 1
    order = sorted(gpus, key=lambda name: (name != LAYOUT_FULL, -gpus[name], name))
    on_nodes = ((name, nodes.get(name, Counter())) for name in order)
    return tuple(LayoutOnNodes(name, gpus[name], tuple(counts), tuple(counts.values())) for name, counts in on_nodes)


def team_rows(scenario: Scenario, waits: TeamWaits = MappingProxyType({})) -> tuple[TeamRow, ...]:
    """List GPU-hours and waits by team, the largest first, with the unallocated GPU-hours last."""
    job_history = history(scenario)
    ledger = job_history.fleet.hours_of(scenario_ledger(scenario))
    ended_before = (pl.col("end_time") <= job_history.begin).fill_null(value=False)
    in_window = job_history.jobs.lazy().filter(pl.col("submit_time") < job_history.end, ~ended_before)
    jobs = dict(in_window.group_by("tenant", maintain_order=True).len().collect().iter_rows())
    rows = []
    for row in hours_by_tenant(ledger).sort("allocated_gpu_hours", descending=True).iter_rows(named=True):
        measured = (row["used"] or 0.0) + (row["allocated_idle"] or 0.0) > 0
        idle, busy = (float(row[name]) if measured else None for name in ("allocated_idle", "used"))
        hours, n_jobs = float(row["allocated_gpu_hours"]), int(jobs.get(row["tenant"], 0))
        rows.append(TeamRow(str(row["tenant"]), hours, idle, n_jobs, busy, *waits.get(row["tenant"], ())))
    buckets = dict(hours_by_bucket(ledger).select("bucket", "gpu_hours").iter_rows())
    unallocated_hours = sum(hours for name, hours in buckets.items() if name in UNALLOCATED_BUCKETS)
    return (*rows, TeamRow(UNALLOCATED_TEAM, float(unallocated_hours), float(unallocated_hours), 0, 0.0))
