"""A comparison of policies as tables and typed values."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, Self

import numpy as np
import polars as pl

from gpuplanner.core.scenario import Scenario
from gpuplanner.core.scenario_fields import OWNERSHIP_OWNED, OWNERSHIP_RENTED, OWNERSHIP_RESERVED
from gpuplanner.core.serialization import from_plain, round_record, to_json, to_plain
from gpuplanner.core.stage_cache import disk_stage, stage
from gpuplanner.core.units import (
    GRAMS_PER_KILOGRAM,
    HOURS_PER_WEEK,
    SECONDS_PER_DAY,
    SECONDS_PER_MINUTE,
    UNALLOCATED,
    count_text,
    percent_text,
)
from gpuplanner.cost.energy_and_carbon import RangedAmount
from gpuplanner.cost.period_costs import book_of, energy_of_week, power_of, price_of, pue_of
from gpuplanner.decision.decision_types import (
    DECIMALS,
    TODAY,
    CurvePoint,
    Decision,
    Exhaustion,
    FinancialImpact,
    Headroom,
    SizeService,
    WeeklyGrowth,
    electricity_kwh,
    financial_impact_of,
    powered_down_hours,
)
from gpuplanner.decision.explained_waits import WaitSummary, sum_waits
from gpuplanner.decision.policy_comparison import BY_WAITS, MEANINGS, POLICY_NAMES, SHORT, Contest, JudgedWay
from gpuplanner.decision.policy_fleets import FleetRules
from gpuplanner.decision.policy_simulation import Mask, Trial, gpu_hours
from gpuplanner.decision.projects import ProjectAnswer, answer_projects
from gpuplanner.decision.recommendation import Answer, decide, read_wait_target
from gpuplanner.hardware.power_and_carbon import find_carbon_factor
from gpuplanner.usage.job_history import history


@dataclass(frozen=True)
class PolicyRow:
    """One policy: its GPU-hours, and its waits in the evaluation window.

    - ``policy``, ``meaning``: Its name, and what it does.
    - ``gpu_hours``, ``gpu_hours_promised``: GPU-hours on, a week, on the days kept back and on those tuned on; None
      where it is out.
    - ``off_gpu_hours``: GPU-hours a week of the saving in which GPUs draw no power.
    - ``saved_kwh``: Electricity a week that they save, as the decision counts it.
    - ``energy_kwh``, ``carbon_kg``: Energy of a week at the building's meter: that of today's fleet less what is saved.
    - ``busy_gpu_hours``: Of the GPU-hours on, held by jobs.
    - ``peak_gpus``: GPUs on at once, at most.
    - ``added_wait_mean_minutes``, ``added_wait_p95_minutes``, ``delayed_share``, ``longest_added_wait_minutes``: Mean
      added queue wait; the largest change of a p95 wait over job sizes; the share of jobs that start later than on
      today's fleet; the longest added wait.
    - ``completion_mean_min``: From arrival to the end, on average.
    - ``power_ups_per_week``: Nodes that were powered up, a week; None where the policy powers none.
    - ``never_started``: Jobs that never started.
    - ``meets_target``: Whether ``added_wait_p95_minutes`` is within the limit and all jobs start; of what the model
      recommends, whether each job size is within its limit in ``decision.service``, from which its waits are as well.
    - ``performable``: Whether the actuator can perform it.
    - ``reason``: Why it is out.
    - ``knobs``: What was set.
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
    completion_mean_min: float | None = None
    power_ups_per_week: float | None = None
    never_started: int = 0
    meets_target: bool = False
    performable: bool = True
    reason: str | None = None
    knobs: Mapping[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class FrontierPoint:
    """A setting that was tried: its cost [GPU h a week] and the minutes that it adds where it adds most."""

    policy: str
    gpu_hours: float
    added_wait_p95_minutes: float


@dataclass(frozen=True)
class Comparison:
    """All policies for a fleet, and the decision that follows.

    - ``decision``: What to do.
    - ``quantile``, ``minutes``: Such a share of each class starts at most so many minutes later than today.
    - ``target_minutes``: Target of the p95 queue wait of each job size.
    - ``today``: Today's fleet; None where nothing could be played.
    - ``policies``: The other policies in a stated order, those that the actuator cannot perform with the reason.
    - ``frontier``: Settings that no other of the same way beats in both.
    - ``tuned_from``, ``judged_from``, ``judged_to``: Instants between which is tuned and judged.
    - ``projects``: Answers to the projects that the scenario names.
    - ``rules``: How the fleet is run as decided, for those who write files.
    - ``waits``: What kept jobs waiting; None where nothing could be simulated.
    - ``wait_curve``: Waits by job size against GPUs; empty where there is no recommendation.
    - ``headroom``: Load that the recommended GPUs carry, in times that of the record.
    - ``growth_per_week``, ``exhaustion``: Growth of the submitted work, and when it exhausts these GPUs.
    """

    decision: Decision
    quantile: float
    minutes: float
    today: PolicyRow | None = None
    policies: tuple[PolicyRow, ...] = ()
    frontier: tuple[FrontierPoint, ...] = ()
    tuned_from: str | None = None
    judged_from: str | None = None
    judged_to: str | None = None
    projects: tuple[ProjectAnswer, ...] = ()
    rules: FleetRules | None = None
    waits: WaitSummary | None = None
    wait_curve: tuple[CurvePoint, ...] = ()
    headroom: Headroom | None = None
    growth_per_week: WeeklyGrowth = field(default_factory=WeeklyGrowth)
    exhaustion: Exhaustion = field(default_factory=Exhaustion)
    target_minutes: float = 30.0

    @property
    def winner(self) -> str:
        """The recommended policy."""
        return self.decision.policy

    @property
    def rows(self) -> tuple[PolicyRow, ...]:
        """Today's fleet and the other policies."""
        return (() if self.today is None else (self.today,)) + self.policies

    def row(self, policy: str) -> PolicyRow | None:
        """A policy by its name."""
        return next((one for one in self.rows if one.policy == policy), None)

    def to_dict(self) -> dict[str, Any]:
        """The object of ``compare --json``: ``decision``, and the figures behind it."""
        found: dict[str, Any] = to_plain(self, DECIMALS)
        saving = self.decision.saving
        found["decision"] = to_plain(self.decision.to_dict(), DECIMALS)
        found |= {"target": {"quantile": self.quantile, "minutes": self.minutes}, "winner": self.winner}
        found |= {"saving_gpu_hours_per_week": saving.value, "saving_low": saving.low}
        return found | {"saving_high": saving.high, "reason": saving.reason}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The same object from what :meth:`to_dict` gave."""
        decision = dict(values["decision"])
        decision["saving"] = decision.pop("saving_gpu_hours_per_week")
        return from_plain(cls, {**values, "decision": decision})


def comparison_of(scenario: Scenario, answer: Answer) -> Comparison:
    """Put a contest and its decision into a record."""
    decision, found, advice = answer.decision, answer.contest, answer.recommendation
    if found is None or advice is None:
        return Comparison(decision, scenario.wait_percentile, scenario.max_added_wait_minutes)
    days = int(found.earlier_days.sum())
    zero = found.asked.replay_start
    split = zero + timedelta(days=days) if found.holdout else zero
    measured = advice.headroom
    return round_record(Comparison(
        decision=answer.decision,
        quantile=found.arena.quantile,
        minutes=found.arena.minutes,
        today=_row(found, found.today),
        policies=tuple(_row(found, one) for one in found.judged),
        frontier=tuple(_frontier(found)),
        tuned_from=zero.isoformat(),
        judged_from=split.isoformat(),
        judged_to=(zero + timedelta(days=len(found.later_days))).isoformat(),
        rules=answer.rules,
        waits=sum_waits(found.asked, found.arena.waits),
        wait_curve=answer.curve,
        headroom=None if measured is None else measured.headroom,
        growth_per_week=advice.growth.weekly,
        exhaustion=advice.exhaustion,
        target_minutes=read_wait_target(scenario).target_s / SECONDS_PER_MINUTE,
    ), DECIMALS)  # fmt: skip


def compared(scenario: Scenario, tell: Callable[[str, Trial], object] | None = None) -> Comparison:
    """Compare, decide and answer what was announced; what was played before is read from disk."""
    found = priced(scenario, played(scenario, tell))
    return found if found.today is None else replace(found, projects=answer_projects(scenario))


def priced(scenario: Scenario, found: Comparison) -> Comparison:
    """The same comparison at the scenario's own prices."""
    decision = found.decision
    if not decision.fleet_gpus:
        return found
    if found.today is not None:
        hours = found.today.gpu_hours or 0.0
        busy = min(found.today.busy_gpu_hours or 0.0, hours)
        energy = energy_of_week(scenario, busy_gpu_hours=busy, idle_gpu_hours=hours - busy)
        rows = (_with_energy(scenario, one, found, energy) for one in found.rows)
        found = replace(found, today=next(rows), policies=tuple(rows))
    impact = financial_impact_of(scenario, decision.saving, decision.gpus, decision.fleet_gpus, found.exhaustion)
    basis = _purchase(scenario, decision, impact) or _not_allocated(scenario, decision, impact) or impact.basis
    impact = replace(impact, basis=basis)
    impact = round_record(impact, DECIMALS)  # as all that is kept
    return replace(found, decision=replace(decision, financial_impact=impact))


def _purchase(scenario: Scenario, decision: Decision, impact: FinancialImpact) -> str:
    """What the GPUs to buy cost: their rent a week, or their price by the price book; empty where none is bought."""
    more = decision.gpus - decision.fleet_gpus
    if more <= 0:
        return ""
    fleet, gpus = history(scenario).fleet, count_text(more, "GPU")
    price, lots = price_of(scenario, fleet), book_of(scenario).lots_of(fleet.name)
    rent = "their price per GPU-hour is not known (--set price_usd_per_gpu_hour=…)"
    if price is not None:
        amount = more * HOURS_PER_WEEK * price.value
        basis = "public on-demand list price, not your cost" if price.low != price.high else "your rate"
        rent = f"{amount:,.0f} {price.currency} per week ({52 * amount:,.0f} per year) at {basis}"
    if impact.ownership == OWNERSHIP_RENTED:
        return f"Rent of {gpus} more, around the clock: {rent}."
    if lots:
        return f"Purchase of {gpus}: {more * lots[-1].capex:,.0f} {lots[-1].currency} by the price book."
    return f"Purchase price of {gpus}: not known (state it in the price book). For scale only, renting them: {rent}."


def _not_allocated(scenario: Scenario, decision: Decision, impact: FinancialImpact) -> str:
    """Why GPU-hours that no team was allocated save nothing; empty where GPUs are released or nothing is known."""
    hours = sum(row.allocated_gpu_hours for row in decision.teams if row.team == UNALLOCATED)
    if not hours or decision.action == "none" or decision.saving.value is not None:
        return ""
    share = percent_text(hours / sum(row.allocated_gpu_hours for row in decision.teams))
    text = (
        f"{share} of the GPU-hours ({hours:,.0f}) stay unallocated: with fewer than {decision.fleet_gpus:,} GPUs a job "
        "size would exceed its wait limit."
    )
    if impact.ownership in (OWNERSHIP_OWNED, OWNERSHIP_RESERVED):
        return f"No cash impact: no GPU is bought or released. {text}"
    return f"{impact.basis.rstrip('.')}. {text}"


def _with_energy(scenario: Scenario, row: PolicyRow, found: Comparison, today: RangedAmount | None) -> PolicyRow:
    """The row with the energy and carbon of its week: today's, as the jobs are the same, less what is saved."""
    if row.gpu_hours_promised is None or found.today is None or found.today.gpu_hours_promised is None:
        return row
    saved = found.today.gpu_hours_promised - row.gpu_hours_promised
    if row.policy == found.winner != TODAY and found.decision.saving.value is not None:
        saved = found.decision.saving.value
    off = powered_down_hours(scenario, max(saved, 0.0))
    kwh = electricity_kwh(power_of(history(scenario).fleet), off, pue_of(scenario))
    row = replace(row, off_gpu_hours=off, saved_kwh=kwh)
    if today is not None and kwh is not None:
        value, low, high = (max(side - kwh, 0.0) for side in (today.value, today.low, today.high))
        kg = value * find_carbon_factor(scenario.carbon_region).gco2e_per_kwh / GRAMS_PER_KILOGRAM
        row = replace(row, energy_kwh=value, energy_kwh_low=low, energy_kwh_high=high, carbon_kg=kg)
    return round_record(row, DECIMALS)


@disk_stage(
    "decisions",
    lambda comparison: to_json(comparison.to_dict()).encode(),
    lambda content: Comparison.from_dict(json.loads(content)),
)
def played(scenario: Scenario, tell: Callable[[str, Trial], object] | None = None) -> Comparison:
    """What was played: no price plays anything again."""
    scenario = scenario.without_prices()
    return comparison_of(scenario, decide(scenario, tell=tell))


@stage
def comparison(scenario: Scenario) -> Comparison:
    """The one comparison of a study, at the scenario's own prices."""
    return priced(scenario, played(scenario))


def _row(found: Contest, one: JudgedWay) -> PolicyRow:
    arena, trial = found.arena, one.trial
    if trial is None:
        return PolicyRow(one.policy, MEANINGS[one.policy], reason=one.reason, performable=one.performable)
    which = found.later
    late = trial.late_s[0, which]
    added_wait_p95_minutes = arena.late_minutes(trial, which) - arena.todays_minutes(which)
    done = trial.wait_s + found.asked.views[trial.setting.view].run_s
    weeks = max(float(found.later_days.sum()) / 7, 1e-9)
    busy = _busy_hours(found, trial) / weeks
    finite = which & np.isfinite(done)
    row = PolicyRow(
        policy=one.policy,
        meaning=MEANINGS[one.policy],
        gpu_hours=one.hours_per_week,
        gpu_hours_promised=one.promised_per_week,
        busy_gpu_hours=busy,
        peak_gpus=arena.peak_gpus(trial),
        added_wait_mean_minutes=float(late[np.isfinite(late)].mean()) / SECONDS_PER_MINUTE if len(late) else 0.0,
        added_wait_p95_minutes=max(float(added_wait_p95_minutes.max()), 0.0),
        # Who starts more than a minute later than today is said to start later.
        delayed_share=float(np.mean(late - arena.today.late_s[0, which] > SECONDS_PER_MINUTE)) if len(late) else 0.0,
        longest_added_wait_minutes=float(late.max(initial=0.0)) / SECONDS_PER_MINUTE,
        completion_mean_min=float(done[finite].mean()) / SECONDS_PER_MINUTE if finite.any() else None,
        power_ups_per_week=None if trial.setting.switching is None else power_ups(trial, found.later_days) / weeks,
        never_started=int(np.isinf(late).sum()),
        meets_target=one.holds,
        reason=one.reason,
        knobs=dict(trial.setting.knobs),
    )  # fmt: skip
    return _as_recommended(row, one.service) if one.service else row


def power_ups(trial: Trial, days: Mask) -> int:
    """Nodes that were called on some days. What is on from the beginning was not called."""
    day = np.floor(trial.outcome.power_intervals["from_s"].to_numpy() / SECONDS_PER_DAY)
    return int(np.isin(day, np.flatnonzero(days)).sum())


def _as_recommended(row: PolicyRow, service: Sequence[SizeService]) -> PolicyRow:
    """The row with the waits of the recommendation, by job size, in place of those of its own simulation."""
    jobs = max(sum(one.jobs for one in service), 1)
    added = max(one.recommended_p95_minutes - one.today_p95_minutes for one in service)
    return replace(
        row,
        added_wait_mean_minutes=sum(one.jobs * one.recommended_mean_minutes for one in service) / jobs,
        added_wait_p95_minutes=max(added, 0.0),
        delayed_share=sum(one.jobs_delayed for one in service) / jobs,
        longest_added_wait_minutes=None,
        completion_mean_min=None,
    )


def _busy_hours(found: Contest, trial: Trial) -> float:
    """GPU-hours that jobs hold on the days that are judged."""
    begin = found.arena.ready_s + trial.wait_s
    run, gpus = found.asked.views[trial.setting.view].run_s, found.asked.gpus_by_job(trial.setting.view)
    there, days = np.isfinite(begin), np.flatnonzero(found.later_days)
    edges = [0.0, 0.0]
    if len(days):
        edges = [float(days[0]) * SECONDS_PER_DAY, float(days[-1] + 1) * SECONDS_PER_DAY]
    return float(gpu_hours(begin[there], (begin + run)[there], gpus[there], edges)[0])


def _frontier(found: Contest) -> typing.Iterator[FrontierPoint]:
    """Settings of each policy that no other one beats in both hours and minutes, at most five, evenly."""
    arena = found.arena
    for policy in MEANINGS:
        if policy in BY_WAITS:  # the wait model finds their one setting
            continue
        tried = [trial for trial in arena.trials if trial.setting.policy == policy]
        points = []
        for number, trial in enumerate(tried):
            hours = 7 * float(trial.day_hours[found.earlier_days].mean())
            added = max(arena.excess(trial, found.earlier) + arena.minutes, 0.0)
            points.append((hours, added, number))
        kept: list[tuple[float, float, int]] = []
        for point in sorted(points):
            if np.isfinite(point[1]) and (not kept or point[1] < kept[-1][1]):
                kept.append(point)
        places = np.unique(np.linspace(0, len(kept) - 1, min(5, len(kept))).round().astype(int))
        for hours, added in (kept[place][:2] for place in places if kept):
            yield FrontierPoint(policy, round(hours, DECIMALS), round(added, DECIMALS))


_TYPES = {"str": pl.String, "int": pl.Int64, "bool": pl.Boolean, "float": pl.Float64}
_OF_POLICIES = {
    field.name: _TYPES[str(field.type).removesuffix(" | None")]
    for field in fields(PolicyRow)
    if field.name not in ("busy_gpu_hours", "knobs")
}


def policy_table(found: Comparison) -> pl.DataFrame:
    """A row for today's fleet and each policy: its meaning, GPU-hours and added waits."""
    rows = [tuple(getattr(row, name) for name in _OF_POLICIES) for row in (*found.rows, *_purchase_row(found))]
    table = pl.DataFrame(rows, schema=_OF_POLICIES, orient="row")
    return table.with_columns(meets_target=pl.when(pl.col("policy") != TODAY).then("meets_target"))


def _purchase_row(comparison: Comparison) -> typing.Iterator[PolicyRow]:
    """The purchase that is recommended, as a row beside the policies, with the waits of the recommendation."""
    decision = comparison.decision
    if decision.gpus > decision.fleet_gpus and decision.service:
        hours = float(decision.gpus * HOURS_PER_WEEK)
        meaning = f"{count_text(decision.gpus - decision.fleet_gpus, 'GPU')} more, all nodes powered on"
        met = all(size.meets_limit for size in decision.service)
        row = PolicyRow("buy", meaning, hours, hours, peak_gpus=decision.gpus, meets_target=met)
        yield _as_recommended(row, decision.service)


def policies_met(found: Comparison) -> str:
    """How many of the policies that the actuator can perform keep to the added-wait limit and the wait target.

    Only of those that the wait model sizes are waits by job size known: others are measured against today.
    """
    rows = [row for row in found.policies if row.performable]
    kept = [row for row in rows if row.meets_target]
    able = f" that {found.decision.actuator} can apply" if len(rows) < len(found.policies) else ""
    text = (
        f"{len(kept)} of {len(rows)} policies{able} {'adds' if len(kept) == 1 else 'add'} at most {found.minutes:g} min"
    )
    longest = found.decision.latest
    if not kept or longest is None or longest.today_p95_minutes <= longest.limit_minutes:
        return text
    reached = sum(row.policy in BY_WAITS for row in kept)
    ends = (
        f"{reached or 'none'} of these {'brings' if reached < 2 else 'bring'} p95 on {longest.size} to the wait limit"
    )
    return f"{text}; {ends}"


def service_table(found: Comparison) -> pl.DataFrame:
    """A row for each job size: its queue waits, observed, simulated today and as recommended."""
    return pl.DataFrame(found.decision.service, schema=[field.name for field in fields(SizeService)])


def curve_table(found: Comparison) -> pl.DataFrame:
    """The wait curve: a row for each layout, number of GPUs and job size."""
    return pl.DataFrame(found.wait_curve, schema=[field.name for field in fields(CurvePoint)])


def frontier_frame(found: Comparison, pinned: Comparison | None = None) -> pl.DataFrame:
    """Points of a comparison: ``policy, gpu_hours, added_wait_p95_minutes, kind``, today's fleet first."""
    tuned = [(row, "today" if row.policy == TODAY else "tuned") for row in found.rows]
    rows = [(row.policy, row.gpu_hours_promised, row.added_wait_p95_minutes, kind) for row, kind in tuned]
    settings = [point for point in found.frontier if point.policy != TODAY]
    rows += [(point.policy, point.gpu_hours, point.added_wait_p95_minutes, "setting") for point in settings]
    pinned_rows = () if pinned is None else pinned.rows
    rows += [(row.policy, row.gpu_hours_promised, row.added_wait_p95_minutes, "pinned") for row in pinned_rows]
    schema = {"policy": pl.String, "gpu_hours": pl.Float64, "added_wait_p95_minutes": pl.Float64, "kind": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row").drop_nulls("gpu_hours")


def target_in_words(found: Comparison) -> str:
    """The wait target, and the wait limit of each job size that follows from it.

    Examples
    --------
    >>> from gpuplanner.core.scenario import Scenario
    >>> from gpuplanner.decision.decision_text import no_decision
    >>> target_in_words(Comparison(no_decision(Scenario(), "no job states when it ran"), 0.95, 10.0))
    'p95 wait target 30 min. A job size above it today must come down to it; one below it may wait at most 10 min longer
    than today and never above the target.'
    """
    return (
        f"p95 wait target {found.target_minutes:g} min. A job size above it today must come down to it; one below it "
        f"may wait at most {found.minutes:g} min longer than today and never above the target."
    )


def not_compared(found: Comparison) -> str:
    """Policies that were not simulated, as the scenario names others; empty where all were."""
    names = [SHORT[name] for name in POLICY_NAMES if found.row(name) is None]
    return f"Not compared (--set policies=…): {', '.join(names)}." if names else ""


def limit_in_words(found: Comparison) -> str:
    """The rule by which policies meet the limit.

    Examples
    --------
    >>> from gpuplanner.core.scenario import Scenario
    >>> from gpuplanner.decision.decision_text import no_decision
    >>> limit_in_words(Comparison(no_decision(Scenario(), "no job states when it ran"), 0.95, 10.0))
    'A policy is within the limit if it adds at most 10 min in the evaluation window and every job starts.'
    """
    fitted = (
        f"A policy is within the limit if it adds at most {found.minutes:g} min in the evaluation window and every "
        "job starts"
    )
    names = [SHORT[row.policy] for row in found.policies if row.policy in BY_WAITS and row.gpu_hours is not None]
    return f"{fitted}; {' and '.join(names)}, if each job size is within its limit below." if names else f"{fitted}."
