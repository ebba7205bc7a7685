"""The record of a policy comparison as typed values, tables and JSON."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, Self

import numpy as np
import polars as pl

from gpuplanner.core.scenario import Scenario
from gpuplanner.core.serialization import from_plain, round_record, to_json, to_plain
from gpuplanner.core.setting_rules_and_controls import OWNERSHIP_OWNED, OWNERSHIP_RENTED, OWNERSHIP_RESERVED
from gpuplanner.core.stage_cache_and_data_folders import disk_stage, stage
from gpuplanner.core.units_and_number_formats import (
    HOURS_PER_WEEK,
    SECONDS_PER_DAY,
    SECONDS_PER_MINUTE,
    UNALLOCATED_TEAM,
    count_text,
    day_text,
    last_day_text,
    percent_text,
)
from gpuplanner.cost.energy_and_carbon import RangedAmount
from gpuplanner.cost.period_costs import estimate_energy, find_power_model, find_price, find_pue, load_price_book, money
from gpuplanner.decision.announced_projects import ProjectAnswer, answer_projects
from gpuplanner.decision.decision_types import (
    RECORD_DECIMALS,
    TODAY,
    WAIT_TOLERANCE_MINUTES,
    CurvePoint,
    Decision,
    Exhaustion,
    FinancialImpact,
    Headroom,
    JobSizeWaits,
    WeeklyGrowth,
    compute_impact,
    compute_saved_kwh,
    count_powered_down_hours,
    has_interval,
)
from gpuplanner.decision.explained_waits import WaitSummary, explain_waits, sum_waits
from gpuplanner.decision.fleet_size_decision import UNSTATED_FLEET, decide_fleet_size
from gpuplanner.decision.inference_answers import InferenceAnswer, answer_services
from gpuplanner.decision.policy_comparison import (
    EXCLUSION_REASON_BY_POLICY,
    MEANINGS,
    POLICY_NAMES,
    SHORT_NAMES,
    EvaluatedPolicy,
    PolicyResults,
)
from gpuplanner.decision.policy_layouts import FleetRules
from gpuplanner.decision.policy_simulation import WAIT_QUANTILE, Mask, PolicyRun, sum_gpu_hours
from gpuplanner.decision.recommendation import DecisionBasis, decide, read_wait_target
from gpuplanner.decision.requested_jobs import read_replay_inputs
from gpuplanner.usage.planning_history import history


@dataclass(frozen=True)
class PolicyRow:
    """One policy with its GPU-hours and its queue waits in the evaluation window.

    - ``policy``, ``meaning``: Name of the policy, and what it does.
    - ``gpu_hours``, ``gpu_hours_promised``: Provisioned GPU-hours a week in the evaluation window and in the training
      window; None if the policy was not simulated.
    - ``off_gpu_hours``: GPU-hours a week of the saving in which GPUs are powered down.
    - ``saved_kwh``: Electricity saved a week [kWh].
    - ``energy_kwh`` with bounds ``_low`` and ``_high``, ``carbon_kg``: Facility energy of a week [kWh], and its carbon
      [kg CO2e].
    - ``busy_gpu_hours``: Provisioned GPU-hours a week that are allocated to jobs.
    - ``peak_gpus``: Most GPUs that are provisioned at once.
    - ``added_wait_mean_minutes``, ``added_wait_p95_minutes``, ``delayed_share``, ``longest_added_wait_minutes``: Mean
      added queue wait; the largest change of a p95 wait over job sizes; the share of jobs that start later than on
      today's fleet; the longest added wait.
    - ``power_ups_per_week``: Nodes that are powered up a week; None if the policy powers none.
    - ``never_started``: Jobs that never started.
    - ``meets_target``: Whether ``added_wait_p95_minutes`` is within the limit and all jobs start; for a policy whose
      nodes the wait model finds, whether each job size is within its limit in ``decision.service``.
    - ``performable``: Whether the actuator can apply the policy.
    - ``reason``: Why the policy is excluded, or which job sizes are over their wait limit.
    - ``setting_values``: Settings of the policy by name, such as idle minutes.
    """

    policy: str
    meaning: str
    gpu_hours: float | None = None
    gpu_hours_promised: float | None = None
    off_gpu_hours: float | None = None
    saved_kwh: float | None = None
    energy_kwh: float | None = None
    energy_kwh_low: float | None = None
    energy_kwh_high: float | None = None
    carbon_kg: float | None = None
    busy_gpu_hours: float | None = None
    peak_gpus: int | None = None
    added_wait_mean_minutes: float | None = None
    added_wait_p95_minutes: float | None = None
    delayed_share: float | None = None
    longest_added_wait_minutes: float | None = None
    power_ups_per_week: float | None = None
    never_started: int = 0
    meets_target: bool = False
    performable: bool = True
    reason: str | None = None
    setting_values: Mapping[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class FrontierPoint:
    """A simulated policy setting: GPU-hours a week, and the largest added p95 queue wait over job sizes [min]."""

    policy: str
    gpu_hours: float
    added_wait_p95_minutes: float


@dataclass(frozen=True)
class Comparison:
    """All policies for a fleet, and the decision that follows.

    - ``decision``: The decision.
    - ``minutes``: The most that the p95 queue wait of a job size may rise [min].
    - ``target_minutes``: Target of the p95 queue wait of each job size [min].
    - ``today``: Today's fleet; None if nothing could be simulated.
    - ``policies``: The other policies in order, those that the actuator cannot apply with the reason; last the fleet of
      the decision, where it has today's layouts and other measures, such as a purchase.
    - ``frontier``: Settings that no other of the same policy beats in both GPU-hours and added wait.
    - ``tuned_from``, ``evaluated_from``, ``evaluated_to``: Begin of the training window, begin and end of the
      evaluation window.
    - ``projects``: Answers to the projects that the scenario names.
    - ``inference``: Answer to its inference services; None without services.
    - ``rules``: How the fleet is run as decided, for exports.
    - ``waits``: Causes of waiting in the record, at any demand; None if nothing could be simulated.
    - ``wait_curve``: Waits by job size and number of GPUs; empty without a recommendation.
    - ``headroom``: Load that the recommended GPUs carry, as a factor of the observed load.
    - ``growth_per_week``, ``exhaustion``: Growth of the submitted work, and when it exhausts these GPUs.
    """

    decision: Decision
    minutes: float
    today: PolicyRow | None = None
    policies: tuple[PolicyRow, ...] = ()
    frontier: tuple[FrontierPoint, ...] = ()
    tuned_from: str | None = None
    evaluated_from: str | None = None
    evaluated_to: str | None = None
    projects: tuple[ProjectAnswer, ...] = ()
    inference: InferenceAnswer | None = None
    rules: FleetRules | None = None
    waits: WaitSummary | None = None
    wait_curve: tuple[CurvePoint, ...] = ()
    headroom: Headroom | None = None
    growth_per_week: WeeklyGrowth = field(default_factory=WeeklyGrowth)
    exhaustion: Exhaustion = field(default_factory=Exhaustion)
    target_minutes: float = 30.0

    @property
    def winner(self) -> str:
        """Name of the recommended policy."""
        return self.decision.policy

    @property
    def recommended_policy(self) -> str:
        """Name in the row of the fleet of the decision: the winner, or the action of another measure."""
        return next((row.policy for row in self.policies if row.policy not in MEANINGS), self.winner)

    @property
    def main_cause_text(self) -> str:
        """The largest cause of the recorded waiting, in one sentence; empty if nothing could be simulated."""
        text = "" if self.waits is None else self.waits.main_cause_text
        return f"At the recorded demand, {text[:1].lower()}{text[1:]}" if text and self.decision.demand_text else text

    @property
    def rows(self) -> tuple[PolicyRow, ...]:
        """Rows of today's fleet and of the other policies."""
        return (() if self.today is None else (self.today,)) + self.policies

    def find_row(self, policy: str) -> PolicyRow | None:
        """Find the row of a policy by its name."""
        return next((row for row in self.rows if row.policy == policy), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the object of ``compare --json``."""
        values: dict[str, Any] = to_plain(self, RECORD_DECIMALS)
        saving = self.decision.saving
        values["decision"] = to_plain(self.decision.to_dict(), RECORD_DECIMALS)
        values |= {"target": {"quantile": WAIT_QUANTILE, "minutes": self.minutes}, "winner": self.winner}
        values |= {"saving_gpu_hours_per_week": saving.value, "saving_low": saving.low}
        return values | {"saving_high": saving.high, "reason": saving.reason}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Restore a comparison from the output of :meth:`to_dict`."""
        decision = dict(values["decision"])
        decision["saving"] = decision.pop("saving_gpu_hours_per_week")
        return from_plain(cls, {**values, "decision": decision})


def record_comparison(scenario: Scenario, basis: DecisionBasis) -> Comparison:
    """Record simulated policies and the decision on them as a comparison."""
    decision, results, recommendation = basis.decision, basis.policy_results, basis.recommendation
    if results is None or recommendation is None:
        return Comparison(decision, scenario.max_added_wait_minutes)
    training_days = int(results.training_days.sum())
    record_start = results.asked_jobs.replay_start
    record_end = min(record_start + timedelta(days=len(results.evaluation_days)), results.asked_jobs.end)
    evaluation_start = record_start + timedelta(days=training_days) if results.has_holdout else record_start
    headroom = recommendation.headroom
    asked_jobs, waits = results.asked_jobs, results.replayed_jobs.waits
    if scenario.arrival_scale != 1.0:  # causes are known of recorded waits alone
        asked_jobs = replace(read_replay_inputs(results.job_history), tenant_limits=asked_jobs.tenant_limits)
        waits = explain_waits(asked_jobs)
    return round_record(Comparison(
        decision=basis.decision, minutes=results.replayed_jobs.limit_minutes,
        today=_make_policy_row(results, results.today, decision),
        policies=tuple(_make_policy_row(results, policy, decision) for policy in results.evaluated_policies)
        + ((_make_recommended_row(decision),) if decision.policy == TODAY and decision.measures else ()),
        frontier=tuple(_find_frontier_points(results)), tuned_from=record_start.isoformat(),
        evaluated_from=evaluation_start.isoformat(), evaluated_to=record_end.isoformat(), rules=basis.rules,
        waits=sum_waits(asked_jobs, waits), wait_curve=basis.curve,
        headroom=None if headroom is None else headroom.headroom, growth_per_week=recommendation.growth.weekly,
        exhaustion=recommendation.exhaustion, target_minutes=read_wait_target(scenario).target_s / SECONDS_PER_MINUTE,
    ), RECORD_DECIMALS)  # fmt: skip


def compare_policies(scenario: Scenario, report_run: Callable[[str, PolicyRun], object] | None = None) -> Comparison:
    """Compare policies at the scenario's prices, decide, and answer its projects; simulated results are read from disk.

    Parameters
    ----------
    scenario : Scenario
        Data, actuator, limits and prices.
    report_run : callable, optional
        Called with the policy and the result of each simulation run.
    """
    comparison = reprice_comparison(scenario, load_comparison(scenario, report_run))
    if comparison.today is None:
        return comparison
    return replace(comparison, projects=answer_projects(scenario), inference=answer_services(scenario))


def reprice_comparison(scenario: Scenario, comparison: Comparison) -> Comparison:
    """Compute the financial figures of a comparison with the prices of a scenario."""
    decision = comparison.decision
    if not decision.fleet_gpus:
        return comparison
    if comparison.today is not None:
        provisioned_hours = comparison.today.gpu_hours or 0.0
        busy_hours = min(comparison.today.busy_gpu_hours or 0.0, provisioned_hours)
        energy = estimate_energy(scenario, busy_gpu_hours=busy_hours, idle_gpu_hours=provisioned_hours - busy_hours)
        repriced_rows = (_add_energy(scenario, row, comparison, energy) for row in comparison.rows)
        comparison = replace(comparison, today=next(repriced_rows), policies=tuple(repriced_rows))
    impact = compute_impact(scenario, decision.saving, decision.gpus, decision.fleet_gpus, comparison.exhaustion)
    basis = (
        _format_purchase(scenario, decision, impact) or _explain_unallocated(scenario, decision, impact) or impact.basis
    )
    impact = replace(impact, basis=basis)
    impact = round_record(impact, RECORD_DECIMALS)  # as all that is kept
    return replace(comparison, decision=replace(decision, financial_impact=impact))


def _format_purchase(scenario: Scenario, decision: Decision, impact: FinancialImpact) -> str:
    """Format the cost of the GPUs to buy: their rent a week, or their price by the price book; empty without any."""
    bought_gpus = decision.gpus - decision.fleet_gpus
    if bought_gpus <= 0:
        return ""
    fleet, gpus_text = history(scenario).fleet, count_text(bought_gpus, "GPU")
    price, lots = find_price(scenario, fleet), load_price_book(scenario).lots_of(fleet.name)
    rent = "their price per GPU-hour is not known (--set price_per_gpu_hour=…)"
    if price is not None:
        amount = bought_gpus * HOURS_PER_WEEK * price.value
        basis = "public on-demand list price, not your cost" if price.low != price.high else "your rate"
        rent = f"{amount:,.0f} {price.currency} per week ({52 * amount:,.0f} per year) at {basis}"
    if impact.ownership == OWNERSHIP_RENTED:
        return f"Rent of {gpus_text} more, around the clock: {rent}."
    if lots:
        return f"Purchase of {gpus_text}: {bought_gpus * lots[-1].capex:,.0f} {lots[-1].currency} by the price book."
    return (
        f"Purchase price of {gpus_text}: not known (state it in the price book). For scale only, renting them: {rent}."
    )


def _explain_unallocated(scenario: Scenario, decision: Decision, impact: FinancialImpact) -> str:
    """Explain why unallocated GPU-hours save nothing; empty if GPUs are released or nothing is known."""
    hours = sum(row.allocated_gpu_hours for row in decision.teams if row.team == UNALLOCATED_TEAM)
    if not hours or decision.action == "none" or decision.saving.value is not None:
        return ""
    share = percent_text(hours / sum(row.allocated_gpu_hours for row in decision.teams))
    reason = "" if decision.action != "keep" or scenario.gpus is not None else f": {decision.reason}"
    if not all(row.meets_limit for row in decision.service):
        reason = f": with fewer than {decision.fleet_gpus:,} GPUs a job size would wait longer than today"
    text = f"{share} of the GPU-hours ({hours:,.0f}) were unallocated{reason}."
    if impact.ownership in (OWNERSHIP_OWNED, OWNERSHIP_RESERVED):
        return f"No cash impact: no GPU is bought or released. {text}"
    return f"{impact.basis.rstrip('.')}. {text}"


def _add_energy(scenario: Scenario, row: PolicyRow, comparison: Comparison, today: RangedAmount | None) -> PolicyRow:
    """Return a policy row with energy and carbon of its week: today's energy less what the policy saves.

    Parameters
    ----------
    scenario : Scenario
        Prices, PUE and carbon region.
    row : PolicyRow
        Row without energy.
    comparison : Comparison
        Comparison that the row belongs to.
    today : RangedAmount or None
        Facility energy of a week of today's fleet. [kWh]
    """
    todays_hours = None if comparison.today is None else comparison.today.gpu_hours_promised
    # The power of GPUs to buy is not estimated.
    if row.gpu_hours_promised is None or todays_hours is None or row.gpu_hours_promised > todays_hours:
        return row
    saved_hours = todays_hours - row.gpu_hours_promised
    if row.policy == comparison.winner != TODAY and comparison.decision.saving.value is not None:
        saved_hours = comparison.decision.saving.value
    powered_down_gpu_hours = count_powered_down_hours(scenario, max(saved_hours, 0.0))
    kwh = compute_saved_kwh(find_power_model(history(scenario).fleet), powered_down_gpu_hours, find_pue(scenario))
    row = replace(row, off_gpu_hours=powered_down_gpu_hours, saved_kwh=kwh)
    if today is not None and kwh is not None:
        value, low, high = (max(energy - kwh, 0.0) for energy in (today.value, today.low, today.high))
        carbon, period = money(scenario).carbon_kg["location"], money(scenario).energy
        kg = value * carbon.value / period.value if carbon is not None and period is not None and period.value else None
        row = replace(row, energy_kwh=value, energy_kwh_low=low, energy_kwh_high=high, carbon_kg=kg)
    return round_record(row, RECORD_DECIMALS)


@disk_stage(
    "decisions",
    lambda comparison: to_json(comparison.to_dict()).encode(),
    lambda content: Comparison.from_dict(json.loads(content)),
)
def load_comparison(scenario: Scenario, report_run: Callable[[str, PolicyRun], object] | None = None) -> Comparison:
    """Load the comparison of a scenario from disk, or simulate it; prices are ignored, as they change no simulation."""
    scenario = scenario.without_prices()
    if scenario.gpus is None:
        return record_comparison(scenario, decide(scenario, report_run))
    base = load_comparison(scenario.but(**UNSTATED_FLEET), report_run)
    if base.decision.action == "none":
        return base
    return record_comparison(scenario, decide_fleet_size(scenario))


@stage
def study_comparison(scenario: Scenario) -> Comparison:
    """Return the comparison of a study at the scenario's prices."""
    return reprice_comparison(scenario, load_comparison(scenario))


def _make_recommended_row(decision: Decision) -> PolicyRow:
    """Make the row of a fleet with GPUs to buy, or of measures that change how jobs start; no policy has either."""
    policy, measures = decision.policy, decision.measures[int(decision.policy != TODAY) :]
    meaning = "; ".join([MEANINGS[policy], *(f"{measure.text[:1].lower()}{measure.text[1:]}" for measure in measures)])
    hours = float(decision.gpus * HOURS_PER_WEEK)
    name = measures[-1].action if policy == TODAY else policy
    row = PolicyRow(name, meaning, hours, hours, peak_gpus=decision.gpus, meets_target=True)
    return _use_recommended_waits(row, decision) if decision.service else row


def _make_policy_row(results: PolicyResults, policy: EvaluatedPolicy, decision: Decision) -> PolicyRow:
    """Make the policy row of a comparison from its simulation run: GPU-hours, power-ups and added queue waits."""
    replayed_jobs, run = results.replayed_jobs, policy.run
    reason, margin = policy.reason, WAIT_TOLERANCE_MINUTES
    if policy.policy == TODAY:
        late = (size.size for size in decision.service if size.today_p95_minutes > size.limit_minutes + margin)
        reason = _format_over_limit(late)
    elif policy.policy == decision.policy and decision.gpus > decision.fleet_gpus:
        return _make_recommended_row(decision)
    if run is None:
        return PolicyRow(policy.policy, MEANINGS[policy.policy], reason=policy.reason, performable=policy.performable)
    jobs, days = results.evaluation_jobs, results.evaluation_days
    waited_s = run.waits_s[0, jobs]
    mean_s = float(waited_s[np.isfinite(waited_s)].mean()) if len(waited_s) else 0.0
    # A job that starts more than a minute later than today is delayed.
    is_delayed = waited_s - replayed_jobs.today.waits_s[0, jobs] > SECONDS_PER_MINUTE
    added_wait_p95_minutes = replayed_jobs.wait_minutes(run, jobs) - replayed_jobs.todays_minutes(jobs)
    weeks = max(float(days.sum()) / 7, 1e-9)
    busy_gpu_hours = _count_busy_gpu_hours(results, run) / weeks
    row = PolicyRow(
        policy=policy.policy, meaning=MEANINGS[policy.policy], gpu_hours=policy.evaluation_hours,
        gpu_hours_promised=policy.training_hours, busy_gpu_hours=busy_gpu_hours, peak_gpus=replayed_jobs.peak_gpus(run),
        added_wait_mean_minutes=mean_s / SECONDS_PER_MINUTE,
        added_wait_p95_minutes=max(float(added_wait_p95_minutes.max()), 0.0),
        delayed_share=float(is_delayed.mean()) if len(waited_s) else 0.0,
        longest_added_wait_minutes=float(waited_s.max(initial=0.0)) / SECONDS_PER_MINUTE,
        power_ups_per_week=None if run.setting.switching is None else count_power_ups(run, days) / weeks,
        never_started=int(np.isinf(waited_s).sum()), meets_target=policy.meets_limit, reason=reason,
        setting_values=dict(run.setting.values),
    )  # fmt: skip
    if policy.policy in EXCLUSION_REASON_BY_POLICY and not policy.service:  # the wait model states no waits by size
        return replace(
            row, added_wait_mean_minutes=None, added_wait_p95_minutes=None, delayed_share=None,
            longest_added_wait_minutes=None,
        )  # fmt: skip
    return _use_recommended_waits(row, decision) if policy.service else row


def count_power_ups(run: PolicyRun, days: Mask) -> int:
    """Count the nodes that were powered up on selected days; nodes that are on from the start do not count."""
    power_up_day = np.floor(run.outcome.power_intervals["from_s"].to_numpy() / SECONDS_PER_DAY)
    return int(np.isin(power_up_day, np.flatnonzero(days)).sum())


def _use_recommended_waits(row: PolicyRow, decision: Decision) -> PolicyRow:
    """Return a policy row with the waits of the decision by job size instead of those of its own simulation."""
    service = decision.service
    jobs = max(sum(size.jobs for size in service), 1)
    added = max(size.added_p95_minutes for size in service)
    reason = _format_over_limit(size.size for size in service if not size.meets_limit)
    is_no_worse = all(size.is_no_worse for size in service)
    return replace(
        row,
        added_wait_mean_minutes=sum(size.jobs * size.recommended_mean_minutes for size in service) / jobs,
        added_wait_p95_minutes=max(added, 0.0),
        delayed_share=sum(size.jobs_delayed for size in service) / jobs,
        meets_target=is_no_worse,
        reason=f"{reason}, no longer than today" if reason and is_no_worse else reason,
    )


def _format_over_limit(sizes: Iterable[str]) -> str | None:
    """Format the names of job sizes over their wait limit; None without any."""
    names = ", ".join(sizes)
    return f"{names} over the wait limit" if names else None


def _count_busy_gpu_hours(results: PolicyResults, run: PolicyRun) -> float:
    """Count the GPU-hours that are allocated to jobs in the evaluation window."""
    start_s = results.replayed_jobs.arrival_s + run.start_delay_s
    run_s, gpus = results.asked_jobs.views[run.setting.view].run_s, results.asked_jobs.gpus_by_job(run.setting.view)
    started, days = np.isfinite(start_s), np.flatnonzero(results.evaluation_days)
    edges = [0.0, 0.0]
    if len(days):
        edges = [float(days[0]) * SECONDS_PER_DAY, float(days[-1] + 1) * SECONDS_PER_DAY]
    return float(sum_gpu_hours(start_s[started], (start_s + run_s)[started], gpus[started], edges)[0])


def _find_frontier_points(results: PolicyResults) -> typing.Iterator[FrontierPoint]:
    """Yield for each policy up to five settings that no other beats in both GPU-hours and added wait."""
    replayed_jobs = results.replayed_jobs
    for policy in MEANINGS:
        if policy in EXCLUSION_REASON_BY_POLICY:  # the wait model finds their one setting
            continue
        runs = [run for run in replayed_jobs.runs if run.setting.policy == policy]
        points = []
        for number, run in enumerate(runs):
            hours = 7 * float(run.daily_gpu_hours[results.training_days].mean())
            excess_minutes = replayed_jobs.worst_excess_minutes(run, results.training_jobs)
            added = max(excess_minutes + replayed_jobs.limit_minutes, 0.0)
            points.append((hours, added, number))
        unbeaten: list[tuple[float, float, int]] = []
        for point in sorted(points):
            if np.isfinite(point[1]) and (not unbeaten or point[1] < unbeaten[-1][1]):
                unbeaten.append(point)
        indices = np.unique(np.linspace(0, len(unbeaten) - 1, min(5, len(unbeaten))).round().astype(int))
        for hours, added in (unbeaten[index][:2] for index in indices if unbeaten):
            yield FrontierPoint(policy, round(hours, RECORD_DECIMALS), round(added, RECORD_DECIMALS))


_COLUMN_TYPES = {"str": pl.String, "int": pl.Int64, "bool": pl.Boolean, "float": pl.Float64}
"""Polars type of a table column by the annotation of its field."""
_POLICY_SCHEMA = {
    field.name: _COLUMN_TYPES[str(field.type).removesuffix(" | None")]
    for field in fields(PolicyRow)
    if field.name not in ("busy_gpu_hours", "setting_values")
}
"""Columns of the policy table."""


def make_policy_table(comparison: Comparison) -> pl.DataFrame:
    """Tabulate today's fleet and each policy: its meaning, GPU-hours and added waits.

    What a simulation would tell is missing for a policy that the actuator cannot apply.
    """
    values = [tuple(getattr(row, name) for name in _POLICY_SCHEMA) for row in comparison.rows]
    table = pl.DataFrame(values, _POLICY_SCHEMA, orient="row")
    is_known = pl.col("performable") | pl.col("gpu_hours").is_not_null()
    return table.with_columns(
        meets_target=pl.when(is_known, pl.col("policy") != TODAY).then("meets_target"),
        never_started=pl.when(is_known).then("never_started"),
    )


def describe_windows(comparison: Comparison, *, split: bool = True) -> str:
    """Describe the training and evaluation windows of a comparison, or its period where they are the same."""
    if comparison.tuned_from is None or comparison.evaluated_from is None or comparison.evaluated_to is None:
        return "nothing was simulated"
    training, evaluation = map(day_text, (comparison.tuned_from, comparison.evaluated_from))
    last_day = last_day_text(comparison.evaluated_to)
    if not split or training == evaluation:
        return f"{training} to {last_day}"
    hours = f"GPU-hours in the training window, {training} to {last_day_text(comparison.evaluated_from)}"
    return f"{hours}; waits in the evaluation window, {evaluation} to {last_day}"


def format_policies_within_limit(comparison: Comparison) -> str:
    """Format how many of the policies that the actuator can apply keep to the added-wait limit and the wait target.

    Only policies whose number of nodes the wait model finds have waits by job size to compare with the wait target; all
    others are measured against today's waits alone.
    """
    policies = [row for row in comparison.policies if row.policy in MEANINGS]
    applicable = [row for row in policies if row.performable]
    within_limit = [row for row in applicable if row.meets_target]
    actuator = comparison.decision.actuator
    actuator_text = f" that {actuator} can apply" if len(applicable) < len(policies) else ""
    verb = "keeps" if len(within_limit) == 1 else "keep"
    names = ", ".join(SHORT_NAMES[row.policy] for row in within_limit)
    text = (
        f"{len(within_limit)} of {len(applicable)} policies{actuator_text} {verb} to the maximum added wait of "
        f"{comparison.minutes:g} min in the recorded weeks{names and f' ({names})'}"
    )
    if within_limit and comparison.decision.action == "none":
        return f"{text}; none is recommended, for the reason in the headline"
    longest = comparison.decision.longest_waiting
    if not within_limit or longest is None or longest.today_p95_minutes <= longest.limit_minutes:
        return text
    is_reached = longest.meets_limit
    reached = sum(row.policy in EXCLUSION_REASON_BY_POLICY for row in within_limit) if is_reached else 0
    subject = f"{reached or 'none'} of these {'brings' if reached < 2 else 'bring'}"
    if len(within_limit) == 1:
        subject = "it brings" if reached else "it does not bring"
    return f"{text}; {subject} p95 on {longest.size} within the wait limit"


def make_wait_table(comparison: Comparison) -> pl.DataFrame:
    """Tabulate the queue waits of each job size: observed, simulated on today's fleet and as recommended.

    Ends of an interval are null where it is none of the wait in the record, as :func:`has_interval` says.
    """
    table = pl.DataFrame(comparison.decision.service, schema=_column_types(JobSizeWaits))
    for columns in (("recommended_p95_minutes", "low", "high"), ("today_p95_minutes", "today_low", "today_high")):
        is_shown = pl.Series([has_interval(*row) for row in table.select(columns).rows()], dtype=pl.Boolean)
        table = table.with_columns(pl.when(is_shown).then(pl.col(columns[1:])))
    # Nothing was observed at another demand than the recorded one.
    is_observed = pl.lit(comparison.decision.arrival_scale == 1.0)
    return table.with_columns(observed_p95_minutes=pl.when(is_observed).then("observed_p95_minutes"))


def make_wait_curve_table(comparison: Comparison) -> pl.DataFrame:
    """Make a table of the wait curve: a row for each layout, number of GPUs and job size."""
    return pl.DataFrame(comparison.wait_curve, schema=_column_types(CurvePoint))


def _column_types(row_class: type[JobSizeWaits | CurvePoint]) -> dict[str, Any]:
    """Return the polars type of each field of a row; without rows polars could not infer them."""
    return {field.name: _COLUMN_TYPES[str(field.type).removesuffix(" | None")] for field in fields(row_class)}


def frontier_frame(comparison: Comparison) -> pl.DataFrame:
    """Tabulate the simulated policies and settings by GPU-hours and added wait, today's fleet first.

    Parameters
    ----------
    comparison : Comparison
        Policies and settings to show.

    Returns
    -------
    polars.DataFrame
        Columns ``policy``, ``gpu_hours`` [GPU h a week], ``added_wait_p95_minutes`` and ``kind``:
        ``today``, ``tuned`` (setting that was chosen for a policy) or ``setting`` (another one).
    """
    kinds_of_rows = [(row, "today" if row.policy == TODAY else "tuned") for row in comparison.rows]
    rows = [(row.policy, row.gpu_hours_promised, row.added_wait_p95_minutes, kind) for row, kind in kinds_of_rows]
    settings = [point for point in comparison.frontier if point.policy != TODAY]
    rows += [(point.policy, point.gpu_hours, point.added_wait_p95_minutes, "setting") for point in settings]
    schema = {"policy": pl.String, "gpu_hours": pl.Float64, "added_wait_p95_minutes": pl.Float64, "kind": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row").drop_nulls("gpu_hours")


def format_wait_target(comparison: Comparison) -> str:
    """Format the wait target, and the wait limit of each job size that follows from it.

    Examples
    --------
    >>> from gpuplanner.core.scenario import Scenario
    >>> from gpuplanner.decision.decision_text import make_empty_decision
    >>> format_wait_target(Comparison(make_empty_decision(Scenario(), "no job states when it ran"), 10.0))
    'p95 wait target 30 min. A job size above it in 80 % of the resampled weeks of the record must come down to it, or
    wait no longer than today where neither another layout nor a purchase that pays off brings it there; one above it in
    fewer weeks must wait no longer than today; one below it at most 10 min longer, and never above the target.'
    """
    return (
        f"p95 wait target {comparison.target_minutes:g} min. A job size above it in 80 % of the resampled weeks of the "
        "record must come down to it, or wait no longer than today where neither another layout nor a purchase that "
        "pays off brings it there; one above it in fewer weeks must wait no longer than today; one below it at most "
        f"{comparison.minutes:g} min longer, and never above the target."
    )


def format_left_out_policies(comparison: Comparison) -> str:
    """Format the policies that were not simulated because the scenario names others; empty if all were."""
    names = [SHORT_NAMES[name] for name in POLICY_NAMES if comparison.find_row(name) is None]
    return f"Not compared (--set policies=…): {', '.join(names)}." if names else ""


def format_limit(comparison: Comparison) -> str:
    """Format the rule by which policies meet the wait limit.

    Examples
    --------
    >>> from gpuplanner.core.scenario import Scenario
    >>> from gpuplanner.decision.decision_text import make_empty_decision
    >>> format_limit(Comparison(make_empty_decision(Scenario(), "no job states when it ran"), 10.0))
    'A policy is within the maximum added wait if it adds at most 10 min in the evaluation window and every job starts.'
    """
    rule = (
        f"A policy is within the maximum added wait if it adds at most {comparison.minutes:g} min in the evaluation "
        "window and every job starts."
    )
    fitted = [row.policy for row in comparison.policies if row.gpu_hours is not None]
    names = [SHORT_NAMES[policy] for policy in fitted if policy in EXCLUSION_REASON_BY_POLICY]
    sized = f" For {' and '.join(names)}, each job size has to meet its wait limit, or wait no longer than today."
    return rule + sized if names else rule
