"""Decision on a fleet of a stated size: its waits by job size, policies, costs and exhaustion."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import RECOMMENDED, Scenario
from gpuplanner.core.stage_cache_and_data_folders import stage
from gpuplanner.core.units_and_number_formats import SECONDS_PER_DAY, SECONDS_PER_MINUTE, wait_text
from gpuplanner.decision.capacity_measures import (
    MIN_DELAY_S,
    Recommendation,
    describe_count_change,
    keep_fleet,
    scale_units,
)
from gpuplanner.decision.decision_text import find_layout_changes, format_stated_fleet
from gpuplanner.decision.decision_types import TODAY, WAIT_REDUCING_ACTIONS, CurvePoint, Decision, JobSizeWaits, Measure
from gpuplanner.decision.headroom_and_growth import MeasuredHeadroom, date_exhaustion, measure_headroom, state_growth
from gpuplanner.decision.policy_comparison import load_fitted_policies
from gpuplanner.decision.policy_layouts import make_fleet_rules
from gpuplanner.decision.recommendation import (
    DecisionBasis,
    build_decision,
    fit_submitted_growth,
    load_wait_model,
    plan_todays_nodes,
    read_wait_target,
    recommend_from_waits,
    replace_with_recommended,
    search_measures,
    without_policies,
)
from gpuplanner.decision.wait_curve import (
    CURVE_INTERVAL,
    CURVE_RUNS,
    WaitTarget,
    join_pools,
    limit_to_record,
    replay_fleet,
    simulate_curve_points,
)
from gpuplanner.simulator.simulation_state import Floats

UNSTATED_FLEET = {"gpus": None, "growth_per_week": None, "mig_layout": RECOMMENDED, "max_added_wait_minutes": 10.0}
"""Scenario fields with which layouts and policies for a stated fleet size are found, at the demand of its scenario."""
N_PAIRED_DRAWS = 20
"""Number of resampled weeks in which the waits of two fleets are compared."""


def _find_layout_recommendation(scenario: Scenario) -> Recommendation:
    """Return the recommendation with the MIG layouts that the scenario asks for: the recommended ones or today's."""
    unstated = without_policies(scenario.but(**UNSTATED_FLEET))
    if scenario.mig_layout == RECOMMENDED:
        return recommend_from_waits(unstated)[0]
    return _keep_todays_layouts(unstated)


def decide_fleet_size(scenario: Scenario) -> DecisionBasis:
    """Decide for a fleet with the number of GPUs that a scenario states.

    MIG layouts, other policies, today's waits and the wait curve are those found for the demand of the scenario and a
    maximum added wait of 10 min.

    Parameters
    ----------
    scenario : Scenario
        Data and limits, with ``gpus``.

    Returns
    -------
    DecisionBasis

    Raises
    ------
    ScenarioError
        If the number of GPUs is not one of whole nodes.
    """
    assert scenario.gpus is not None
    unstated = scenario.but(**UNSTATED_FLEET)
    results = replace(load_fitted_policies(unstated), scenario=scenario)
    base, curve = recommend_from_waits(without_policies(unstated))
    today, shape = _keep_todays_layouts(without_policies(unstated)), _find_layout_recommendation(scenario)
    growth = fit_submitted_growth(results.job_history)
    resized = resize_recommendation(shape, scenario.gpus, shape.measures if shape is not today else ())
    resized = _measure_fleet(scenario, base.service, today, shape, replace(resized, growth=growth))
    course = plan_todays_nodes(results, resized)
    decision = build_decision(results, resized, course, curve)
    stated = f"fleet of {scenario.gpus:,} GPUs as stated (--set gpus=…)"
    sentence = format_missed_limits(scenario.gpus, decision.service, curve, scenario.mig_layout)
    sentence = sentence or format_stated_fleet(decision, find_layout_changes(decision, results, course.run))
    decision = replace(decision, sentence=sentence, assumptions=(stated, *decision.assumptions))
    results = replace_with_recommended(results, resized, course, course)
    rules = make_fleet_rules(results.asked_jobs, course.run, results.abilities, course.policy)
    return DecisionBasis(decision, results, resized, curve, rules)


def simulate_fleet_waits(scenario: Scenario) -> dict[str, tuple[float, float]]:
    """Simulate the p95 queue waits of :func:`decide_fleet_size` before anything else of it.

    Parameters
    ----------
    scenario : Scenario
        Data and limits, with ``gpus``.

    Returns
    -------
    dict of str to tuple of float
        Job size → p95 wait on today's fleet and on the stated one [min]; empty where none is shown.
    """
    assert scenario.gpus is not None
    unstated = without_policies(scenario.but(**UNSTATED_FLEET))
    recommendation, today = search_measures(unstated).recommendation, _keep_todays_layouts(unstated)
    if recommendation.action == "none" or not today.model.waits.share.size_is_clear:
        return {}
    shape = recommendation if scenario.mig_layout == RECOMMENDED else today
    resized = resize_recommendation(shape, scenario.gpus, ())
    model, fleet = shape.model, resized.fleet
    replays_s = replay_fleet(model, fleet)
    if shape is recommendation and tuple(resized.units) == tuple(recommendation.units):  # its waits are of all replays
        replays_s = [model.replay_waits(fleet, number) for number in range(CURVE_RUNS)]
    both_s = today.model.percentiles(today.model.inputs.fleet, 0), model.summarize_replays(replays_s)[0]
    before, after = (np.minimum(p95_s, model.inputs.observed_s) / SECONDS_PER_MINUTE for p95_s in both_s)
    names = (model.size_names[number] for number in model.sizes)
    return dict(zip(names, zip(before.tolist(), after.tolist(), strict=True), strict=True))


def format_missed_limits(gpus: int, rows: Sequence[JobSizeWaits], curve: Sequence[CurvePoint], mig_layout: str) -> str:
    """Format the waits of all job sizes that miss their limit on a fleet; empty if none does.

    Those of the other layout follow where it misses the limits of fewer or of other job sizes.

    Parameters
    ----------
    gpus : int
        GPUs of the fleet.
    rows : sequence of JobSizeWaits
        Waits on the fleet.
    curve : sequence of CurvePoint
        Waits by number of GPUs with both layouts.
    mig_layout : str
        Layout of the fleet: ``"recommended"`` or ``"today"``.
    """
    missed = sorted(
        (row for row in rows if not row.meets_limit), key=lambda row: row.limit_minutes - row.recommended_p95_minutes
    )
    if not missed:
        return ""
    names, limits = [row.size for row in missed], {row.size: row.limit_minutes for row in rows}
    waits = [f"{row.size} {wait_text(row.recommended_p95_minutes)}" for row in missed]
    title = f"p95 queue wait over the limit of {wait_text(missed[0].limit_minutes)}"
    if len({limits[size] for size in names}) > 1:
        title = "p95 queue wait (limit)"
        waits = [f"{text} ({wait_text(limits[size])})" for text, size in zip(waits, names, strict=True)]

    points = [point for point in curve if point.gpus == gpus and point.layout != mig_layout]
    missed_points = {point.job_size: point for point in points if point.exceeds(limits.get(point.job_size, math.inf))}
    trade = ""
    if points and not {*names} <= {*missed_points}:
        layout = "the recommended" if mig_layout == TODAY else "today's"
        sizes = ", ".join(f"{size} {point.p95_text}" for size, point in missed_points.items()) or "none"
        trade = f"; with {layout} layout: {sizes}"
    in_order = ", ".join(row.size for row in rows if row in missed)
    sizes_text = in_order if len(missed) <= 3 else f"{len(missed)} of {len(rows)} job sizes"
    return f"{gpus:,} GPUs miss the wait limit for jobs on {sizes_text}. {title}: {', '.join(waits)}{trade}."


@stage
def _keep_todays_layouts(scenario: Scenario) -> Recommendation:
    """Return the recommendation to keep today's fleet and layouts."""
    return keep_fleet(load_wait_model(scenario)[0], None)


def resize_recommendation(recommendation: Recommendation, gpus: int, measures: Sequence[Measure]) -> Recommendation:
    """Scale the node pools of a recommendation to a number of GPUs.

    Parameters
    ----------
    recommendation : Recommendation
        Node pools.
    gpus : int
        GPUs, in whole nodes.
    measures : sequence of Measure
        Measures of the decision; those that change layouts stay.

    Raises
    ------
    ScenarioError
        If the number of GPUs is not one of whole nodes.
    """
    pools, fleet_gpus = recommendation.pools, recommendation.fleet_gpus
    units = scale_units(recommendation, gpus / int(recommendation.fleet.gpus.sum()))
    nearest_gpus = int(join_pools(pools, units).gpus.sum())
    if nearest_gpus != gpus:
        raise ScenarioError("gpus", "whole nodes", f"{gpus:,}", f"The nearest fleet has {nearest_gpus:,} GPUs.")
    measures = tuple(measure for measure in measures if measure.action in WAIT_REDUCING_ACTIONS)
    if gpus != fleet_gpus:
        condition = f"after {measures[0].action}" if measures else None
        measures += (describe_count_change(fleet_gpus, gpus, condition),)
    action, reason = (measures[0].action, None) if measures else ("keep", "this is today's fleet")
    return replace(
        recommendation, action=action, reason=reason, units=units, gpus=gpus, measures=measures,
        target_gpus=0, order_gpus=0, waiting_hours_per_gpu_hour=None,
    )  # fmt: skip


def find_wait_limit(today_p95_minutes: float, target: WaitTarget) -> float:
    """Find the wait limit of a job size from its p95 queue wait today [min].

    Examples
    --------
    >>> [find_wait_limit(minutes, WaitTarget()) for minutes in (0.0, 25.0, 500.0)]
    [10.0, 30.0, 30.0]
    """
    target_minutes, added_minutes = target.target_s / SECONDS_PER_MINUTE, target.added_s / SECONDS_PER_MINUTE
    return min(target_minutes, today_p95_minutes + added_minutes)


def _measure_fleet(
    scenario: Scenario,
    rows: tuple[JobSizeWaits, ...],
    todays_recommendation: Recommendation,
    layout_recommendation: Recommendation,
    resized_recommendation: Recommendation,
) -> Recommendation:
    """Return a resized recommendation with its waits, headroom and exhaustion date at the demand of a scenario.

    Parameters
    ----------
    scenario : Scenario
        Demand, growth and wait limits.
    rows : tuple of JobSizeWaits
        Waits at the demand of the scenario, today and as recommended for it.
    todays_recommendation : Recommendation
        Today's fleet.
    layout_recommendation : Recommendation
        Recommendation with the MIG layouts of the fleet, before it was resized.
    resized_recommendation : Recommendation
        The same with the stated number of GPUs.
    """
    target, units = read_wait_target(scenario), tuple(resized_recommendation.units)
    if units != tuple(layout_recommendation.units) or layout_recommendation is todays_recommendation:
        simulated = _simulate_fleet(todays_recommendation, layout_recommendation, units)
        rows = tuple(replace(row, **simulated[row.size]) for row in rows if row.size in simulated)
    if layout_recommendation is todays_recommendation and units == tuple(todays_recommendation.units):
        rows = tuple(replace(row, low=row.today_low, high=row.today_high) for row in rows)
    service = tuple(replace(row, limit_minutes=find_wait_limit(row.today_p95_minutes, target)) for row in rows)
    n_jobs = max(sum(row.jobs for row in service), 1)
    today_mean = sum(row.jobs * row.today_mean_minutes for row in service) / n_jobs
    resized_mean = sum(row.jobs * row.recommended_mean_minutes for row in service) / n_jobs
    stated = scenario.growth_per_week
    growth = resized_recommendation.growth if stated is None else state_growth(stated)
    headroom = None
    if growth.weekly.value is not None:
        headroom = _measure_headroom(layout_recommendation, units, target.target_s, resized_recommendation.growth.slope)
    inputs = todays_recommendation.model.inputs
    days, lead_days = inputs.observed_s / SECONDS_PER_DAY, scenario.purchase_lead_days
    return replace(
        resized_recommendation, service=service,
        team_waits={None: (today_mean, resized_mean)} if service else {}, growth=growth,
        headroom=headroom, exhaustion=date_exhaustion(growth, headroom, inputs.end.date(), days, lead_days),
    )  # fmt: skip


@functools.lru_cache(maxsize=64)
def _simulate_fleet(
    todays_recommendation: Recommendation, layout_recommendation: Recommendation, units: tuple[int, ...]
) -> dict[str, dict[str, Any]]:
    """Simulate the queue waits on a fleet, by job size, as values of :class:`JobSizeWaits`.

    Parameters
    ----------
    todays_recommendation : Recommendation
        Today's fleet.
    layout_recommendation : Recommendation
        Recommendation with the node pools of the fleet.
    units : tuple of int
        Nodes (or GPUs) of each pool.
    """
    fleet, model = join_pools(layout_recommendation.pools, units), layout_recommendation.model
    today_s = todays_recommendation.model.replay_waits(todays_recommendation.fleet)
    is_delayed = model.waits.is_evaluated & (model.replay_waits(fleet) > today_s + MIN_DELAY_S)
    waits = {}
    observed_s = model.inputs.observed_s
    for point in simulate_curve_points(model, layout_recommendation.action, [fleet]):
        of_size = model.size_of_job == model.size_names.index(point.job_size)
        waits[point.job_size] = {
            "jobs": int((of_size & model.waits.is_evaluated).sum()), "jobs_delayed": int((of_size & is_delayed).sum()),
            "recommended_p95_minutes": limit_to_record(point.p95_minutes, observed_s),
            "recommended_mean_minutes": limit_to_record(point.mean_minutes, observed_s),
            "low": limit_to_record(point.low, observed_s), "high": limit_to_record(point.high, observed_s),
            "completion_minutes": point.completion_minutes,
            "completion_low": point.completion_low, "completion_high": point.completion_high,
        }  # fmt: skip
    return waits


@functools.lru_cache(maxsize=64)
def _measure_headroom(
    layout_recommendation: Recommendation, units: tuple[int, ...], target_s: float, slope: float
) -> MeasuredHeadroom | None:
    """Measure the headroom of a fleet over the demand of its wait model.

    Parameters
    ----------
    layout_recommendation : Recommendation
        Recommendation with the node pools of the fleet.
    units : tuple of int
        Nodes (or GPUs) of each pool.
    target_s : float
        Target of the p95 queue wait. [s]
    slope : float
        Growth of the logarithm of the submitted work a week in the record.
    """
    fleet, growth = join_pools(layout_recommendation.pools, units), state_growth(math.expm1(slope))
    return measure_headroom(layout_recommendation.model, fleet, WaitTarget(target_s), growth)


def find_sized_fleet(scenario: Scenario, decision: Decision) -> Recommendation | None:
    """Find the nodes of a decision, with the wait model at the demand of its scenario; None without any."""
    if decision.action == "none" or not decision.fleet_gpus:
        return None
    if scenario.gpus is None:
        return resize_recommendation(recommend_from_waits(without_policies(scenario))[0], decision.gpus, ())
    return resize_recommendation(_find_layout_recommendation(scenario), decision.gpus, ())


PAIRED_SCHEMA = {
    "job_size": pl.String, "measure": pl.String, "difference_minutes": pl.Float64, "low": pl.Float64,
    "high": pl.Float64,
}  # fmt: skip
"""Columns of :func:`compare_paired_waits`."""
P95_WAIT, MEAN_COMPLETION, LAST_END = PAIRED_MEASURES = "p95 queue wait", "mean completion time", "end of the last job"
"""Measures of :func:`compare_paired_waits` by job size, and the last also of all jobs, which is the makespan [min]."""


def compare_paired_waits(first_recommendation: Recommendation, second_recommendation: Recommendation) -> pl.DataFrame:
    """Compare queue waits, completion times and makespan of two fleets on the same jobs with the same random draws.

    The end of the last job has no interval: in a resampled record it is that of the longest job of the last days, on
    any fleet.

    Parameters
    ----------
    first_recommendation, second_recommendation : Recommendation
        Fleets of the same record.

    Returns
    -------
    polars.DataFrame
        ``job_size, measure, difference_minutes, low, high``: difference of the second to the first in the record, and
        its 80 % interval over resampled weeks, of each of :data:`PAIRED_MEASURES` [min]; null where there is none.
    """
    common = [name for name in first_recommendation.model.size_names if name in second_recommendation.model.size_names]

    def draw(sized_recommendation: Recommendation, row: int) -> Floats:
        """Return the measures in the record (row 0) or a resampled record, shape (n_common + 1, 3) [min].

        A row for each job size, then one of all jobs, where only the end of the last job is known.
        """
        model = sized_recommendation.model
        measures_s = model.measures(sized_recommendation.fleet, row)[:3]
        measures_s[0] = np.minimum(measures_s[0], model.inputs.observed_s)
        by_size = dict(zip((model.size_names[size] for size in model.sizes), measures_s.T, strict=True))
        all_jobs = (np.nan, np.nan, np.fmax.reduce(measures_s[2]))
        return np.array([*(by_size.get(name, (np.nan,) * 3) for name in common), all_jobs]) / SECONDS_PER_MINUTE

    differences = np.array(
        [draw(second_recommendation, row) - draw(first_recommendation, row) for row in range(1 + N_PAIRED_DRAWS)]
    )
    rows = []
    names = [*common, "all"]
    for (size, name), (measure, title) in itertools.product(enumerate(names), enumerate(PAIRED_MEASURES)):
        drawn = (column := differences[1:, size, measure])[~np.isnan(column)]  # some draws lack the jobs of a size
        if not np.isnan(differences[0, size, measure]):
            has_interval = len(drawn) and title != LAST_END
            ends = np.quantile(drawn, CURVE_INTERVAL) if has_interval else (None, None)
            rows.append((name, title, float(differences[0, size, measure]), *ends))
    return pl.DataFrame(rows, schema=PAIRED_SCHEMA, orient="row")
