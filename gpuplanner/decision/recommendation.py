"""The recommendation: what the wait model says, with its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import polars as pl

from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import SERVICE_JOB_CLASS, WHOLE_GPU
from gpuplanner.core.stage_cache import data_folder, stage
from gpuplanner.core.units import HOURS_PER_WEEK, SECONDS_PER_HOUR, SECONDS_PER_MINUTE, UNALLOCATED, percent_text
from gpuplanner.decision.capacity_answers import Recommendation, TeamWaits, add_units, decline, recommend, wait_curve
from gpuplanner.decision.decision_text import WHOLE_LIST, in_words, no_decision, uncorrected_decision
from gpuplanner.decision.decision_types import (
    AUTOSCALED_POOLS,
    FEWER_NODES,
    FULL,
    MIG_STATIC,
    ON_DEMAND,
    ON_OFF,
    TODAY,
    CurvePoint,
    Decision,
    LayoutOnNodes,
    Measure,
    Saving,
    TeamRow,
    financial_impact_of,
)
from gpuplanner.decision.explained_waits import ExplainedWaits, take_jobs
from gpuplanner.decision.headroom_and_growth import FittedGrowth, fit_growth_per_week, weekly_work
from gpuplanner.decision.policy_comparison import (
    POLICY_NAMES,
    Contest,
    Tuning,
    contest,
    judge,
    nothing_ran,
    opened,
    promised,
)
from gpuplanner.decision.policy_fleets import FleetRules, as_they_are, assign_layouts, kept_longest, rules_of
from gpuplanner.decision.policy_simulation import (
    MAX_LEFT_OUT_SHARE,
    Knobs,
    Trial,
    WaySetting,
    allocated_gpu_hours,
    correction_of,
    cut_fleet,
    servable_requests,
)
from gpuplanner.decision.requests import Asked, size_classes
from gpuplanner.decision.wait_curve import SizedPool, WaitModel, WaitTarget
from gpuplanner.hardware.mig_layouts import format_layout
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.telemetry.telemetry_quality import matched_gpu_hours
from gpuplanner.usage.gpu_hour_ledger import hours_by_bucket, hours_by_tenant
from gpuplanner.usage.job_history import History, begin_of, history
from gpuplanner.usage.period_accounts import scenario_ledger

UNALLOCATED_BUCKETS = ("unallocated", "fragmented", "idle_pending", "reserved", "reconfiguring", "down")
"""Buckets of installed GPU-hours that were allocated to no team."""
IDLE_MEASURES = {ON_OFF: "power_down", AUTOSCALED_POOLS: "autoscale", ON_DEMAND: "repartition"}
"""Policies that may save more than to release nodes does, and the measure that each of them is."""
ALIKE = 0.01
"""A policy that saves by less than this share of the fleet more than a release does is not worth its trouble."""


@dataclass(frozen=True, eq=False)
class Answer:
    """A decision and what it comes from; None where nothing could be simulated.

    - ``decision``: What to do.
    - ``contest``: Policies on the same jobs.
    - ``advice``: What the wait model recommends.
    - ``curve``: The wait curve; empty where no recommendation is given.
    - ``rules``: How the fleet is run then.
    """

    decision: Decision
    contest: Contest | None = None
    advice: Recommendation | None = None
    curve: tuple[CurvePoint, ...] = ()
    rules: FleetRules | None = None


@dataclass(frozen=True, eq=False)
class Course:
    """What to do with the fleet, on its nodes.

    - ``measures``: In order.
    - ``policy``, ``trial``: How the fleet is run then, simulated.
    - ``gpus``, ``gpus_mean``: GPUs provisioned at most, and on average.
    - ``layouts``: How they are partitioned.
    """

    measures: tuple[Measure, ...]
    policy: str
    trial: Trial
    gpus: int
    gpus_mean: float
    layouts: tuple[LayoutOnNodes, ...]
    saving: Saving


def decide(scenario: Scenario, tell: Callable[[str, Trial], object] | None = None) -> Answer:
    """Decide what to do with a fleet."""
    if (correction := correction_of(scenario.data)) is not None:
        return Answer(uncorrected_decision(scenario, correction))
    if (reason := nothing_ran(scenario)) is not None:
        return Answer(no_decision(scenario, reason))
    found = contest(scenario, tell)
    # Neither policies nor who changes the fleet plays a part in what is recommended.
    neutral = scenario.but(policies=None, actuator="mig-manager", ownership=None, node_lead_s=None)
    advice, curve = recommended(neutral)
    course = sized = _course(found, advice)
    # Nodes are not powered down where growth exhausts them soon.
    if advice.action in ("keep", "release") and not advice.late and not advice.order_gpus:
        larger, course = _idle_powered_down(found, advice)
        if larger is not advice:
            advice, curve, sized = larger, tuple(wait_curve(larger.model, larger)), _course(found, larger)
    decision = _decision(found, advice, course, curve)
    found = _with_recommended(found, advice, sized, course)
    rules = rules_of(found.asked, course.trial, found.able, course.policy)
    return Answer(decision, found, advice, curve, rules)


def _with_recommended(found: Contest, advice: Recommendation, sized: Course, course: Course) -> Contest:
    """The policies with what is recommended in place of other settings of the same policies.

    What the wait model recommends meets the limit if each job size meets its own. Nodes that are powered down while
    idle are those that are kept.
    """
    arena, later, days = found.arena, found.later, (found.earlier_days, found.later_days)
    others, winner = {one.policy: one for one in found.judged}, found.winner
    for one in (sized, course) if course is not sized else (sized,):
        if one.policy == TODAY:
            continue
        service = advice.service if one is sized else ()
        holds = all(size.meets_limit for size in service) if service else arena.holds(one.trial, later)
        reason = None if holds else "a job size waits longer than its limit"
        winner = replace(judge(one.policy, one.trial, holds=holds, days=days), service=service, reason=reason)
        others[one.policy] = winner
    order = [name for name in POLICY_NAMES if name in others]
    return replace(found, judged=tuple(others[name] for name in order), winner=winner)


def wait_model(asked: Asked, waits: ExplainedWaits) -> WaitModel:
    """The model that all answers are read from, of the jobs that today's nodes can hold."""
    servable = servable_requests(asked.granted, asked.fleet, larger=None)
    if not servable.all():
        rows = np.flatnonzero(servable)
        asked, waits = take_jobs(asked, waits, rows, np.zeros(len(rows)))
    return WaitModel(asked, waits, *size_classes(asked, waits.judged))


def wait_target(scenario: Scenario) -> WaitTarget:
    """What waits are held to."""
    stated = scenario.target_wait_minutes
    target = {} if stated is None else {"target_s": stated * SECONDS_PER_MINUTE, "stated": True}
    return WaitTarget(added_s=scenario.max_added_wait_minutes * SECONDS_PER_MINUTE, **target)  # type: ignore[arg-type]


def growth_of(known: History) -> FittedGrowth:
    """Growth of the work submitted in the whole record, services left out."""
    jobs = known.jobs.filter(pl.col("gpus") > 0, (pl.col("job_class") != SERVICE_JOB_CLASS).fill_null(value=True))
    return fit_growth_per_week(weekly_work(jobs, begin_of(known.trace), known.plan_start))


@stage
def recommended(scenario: Scenario) -> tuple[Recommendation, tuple[CurvePoint, ...]]:
    """What the wait model recommends, and its curve.

    Nothing where the list of jobs may lack most, or they share GPUs without MIG.
    """
    known, asked, arena, _ = opened(scenario)
    model, growth = wait_model(asked, arena.waits), growth_of(known)
    reason = None
    if (held := allocated_share(asked)) < WHOLE_LIST:
        reason = f"jobs were allocated {percent_text(held, '.1f')} of the GPU-hours: the list of jobs may be incomplete"
    elif known.shared_share > MAX_LEFT_OUT_SHARE:
        reason = "jobs share their GPUs without MIG, which the simulation does not follow"
    if reason is not None:
        return decline(model, reason, growth), ()
    advice = recommend(model, wait_target(scenario), growth, lead_days=scenario.purchase_lead_days)
    return advice, () if advice.action == "none" else tuple(wait_curve(model, advice))


def _decision(found: Contest, advice: Recommendation, course: Course, curve: Sequence[CurvePoint]) -> Decision:
    scenario, asked = found.scenario, found.asked
    fleet, measures = asked.nodes.total, course.measures
    mean = advice.team_waits.get(None, (None, None))
    decision = Decision(
        sentence="", action=measures[0].action if measures else advice.action, fleet_gpus=fleet,
        gpus=course.gpus, gpus_mean=course.gpus_mean, layouts=course.layouts, policy=course.policy,
        actuator=scenario.actuator,
        saving=course.saving,
        financial_impact=financial_impact_of(scenario, course.saving, course.gpus, fleet, advice.exhaustion),
        purchase_lead_days=scenario.purchase_lead_days, reason=None if measures else advice.reason, measures=measures,
        service=advice.service, conditions=tuple(filter(None, (one.condition for one in measures))),
        teams=team_rows(scenario, advice.team_waits), left_out_share=_left_out(found),
        fleet_inferred=asked.nodes.inferred,
        gpu_model=found.known.fleet.name, telemetry_matched_gpu_hours=matched_gpu_hours(found.known.trace),
        today_mean_minutes=mean[0], recommended_mean_minutes=mean[1],
    )  # fmt: skip
    return in_words(decision, found, advice, course.trial, curve)


def _course(found: Contest, advice: Recommendation) -> Course:
    """The recommendation on today's nodes, all of them powered on."""
    asked, arena, action = found.asked, found.arena, advice.action
    fleet = asked.nodes.total
    if action in ("repartition", "rightsize"):
        policy, trial = MIG_STATIC, arena.play(_partitioned(asked, advice))
        layouts = _layouts(asked, trial)
    else:
        numbers = _kept_nodes(advice.pools, advice.units)
        policy = TODAY if len(numbers) == len(asked.nodes.gpus) else FEWER_NODES
        trial = arena.today if policy == TODAY else arena.play(as_they_are(asked, policy, numbers))
        layouts = _grouped(asked, [(number, asked.nodes.layouts[number]) for number in numbers])
    gpus = sum(one.gpus for one in layouts)
    if advice.gpus > fleet:
        layouts, gpus = _with_more(layouts, advice.gpus - gpus, asked.usual_node), advice.gpus
    freed = float(max(fleet - gpus, 0) * HOURS_PER_WEEK)
    nothing = Saving(None, reason="no GPU is released or powered down")
    saving = Saving(freed, freed, freed) if freed else nothing
    measures = (*advice.measures[:-1], *(replace(last, gpus=gpus) for last in advice.measures[-1:]))
    return Course(measures, policy, trial, gpus, float(gpus), layouts, saving)


def _idle_powered_down(found: Contest, advice: Recommendation) -> tuple[Recommendation, Course]:
    """The recommendation with the policy that wins, where that saves clearly more."""
    winner, asked, arena = found.winner, found.asked, found.arena
    course, fleet = _course(found, advice), asked.nodes.total
    if winner.trial is None or winner.policy not in IDLE_MEASURES:
        return advice, course
    more, trial = 0, winner.trial
    if winner.policy != ON_DEMAND:
        if (fitted := _fitted_on_kept(found, trial, advice)) is None:
            return advice, course
        more, trial = fitted
    saving = _saving(found, trial)
    gained = (saving.value or 0.0) - (course.saving.value or 0.0)
    if (saving.low or 0.0) <= 0 or gained < ALIKE * fleet * HOURS_PER_WEEK:
        return advice, course
    if more:
        target, days = wait_target(found.scenario), found.scenario.purchase_lead_days
        advice = recommend(advice.model, target, advice.growth, lead_days=days, more_units=more)
        course = _course(found, advice)
    gpus, mean = min(arena.peak_gpus(trial), course.gpus), fleet - (saving.value or 0.0) / HOURS_PER_WEEK
    text = {
        ON_OFF: "Power idle nodes down", AUTOSCALED_POOLS: "Scale node pools with the requests of jobs",
        ON_DEMAND: "Partition GPUs on demand",
    }[winner.policy]  # fmt: skip
    text = f"{text}: {mean:,.0f} GPUs are provisioned on average"
    condition = "after release" if course.measures else None
    measure = Measure(IDLE_MEASURES[winner.policy], text, gpus, condition)
    layouts = _layouts(asked, trial, gpus)
    return advice, Course((*course.measures, measure), winner.policy, trial, gpus, mean, layouts, saving)


def _fitted_on_kept(found: Contest, trial: Trial, advice: Recommendation) -> tuple[int, Trial] | None:
    """A policy on the nodes that the recommendation keeps, or on more where that saves clearly more: how many more.

    On each number of nodes several settings are tried, so that no number is ruled out by one of them.
    """
    tuning = Tuning(found.arena, found.earlier, found.earlier_days, found.able)
    most = sum(pool.today for pool in advice.pools) - sum(advice.units)
    fitted: list[tuple[int, Trial, float]] = []
    for more in sorted({0, most, *(2**power for power in range(most.bit_length()))}):
        numbers = _kept_nodes(advice.pools, add_units(advice.pools, advice.units, more))
        tried = tuning.try_settings(tuning.settings_on(trial.setting, numbers))
        best = tuning.tuned(trial.setting.policy, tried)
        if best is not None and found.arena.holds(best, found.later):
            fitted.append((more, best, _saving(found, best).value or 0.0))
    most_saved = max((saved for *_, saved in fitted), default=0.0)
    enough = most_saved - ALIKE * found.asked.nodes.total * HOURS_PER_WEEK
    return next(((more, best) for more, best, saved in fitted if saved >= enough), None)


def _kept_nodes(pools: Sequence[SizedPool], units: Sequence[int]) -> list[int]:
    """Numbers of today's nodes that stay."""
    return sorted(number for pool, count in zip(pools, units, strict=True) for number in pool.nodes[:count])


def _partitioned(asked: Asked, advice: Recommendation) -> WaySetting:
    """Today's nodes partitioned as recommended; what no profile needs stays full."""
    nodes, profiles = asked.nodes, asked.fleet.profiles
    gpus = min(advice.gpus, nodes.total)
    parts: list[str] = []
    for pool, count in zip(advice.pools, advice.units, strict=True):
        if name := [profiles[number] for number in pool.profiles if number]:
            parts += [format_layout({name[0]: asked.gpu_model.profile(name[0]).max_instances})] * count
    wanted = [WHOLE_GPU] * (gpus - len(parts)) + parts[:gpus]
    layouts = assign_layouts(nodes.layouts, kept_longest(asked), wanted)
    kept = list(layouts)
    fleet, named = cut_fleet(asked, kept, [[layouts[number]] for number in kept])
    knobs: Knobs = {"gpus": int(fleet.gpus.sum()), "requests": advice.view}
    return WaySetting(MIG_STATIC, advice.view, fleet, named, tuple(kept), knobs=knobs)


def _saving(found: Contest, trial: Trial) -> Saving:
    saved = found.arena.today.day_hours - trial.day_hours
    value, low, high = promised(saved[found.earlier_days], float(found.asked.nodes.total * HOURS_PER_WEEK))
    later = saved[found.later_days] if found.holdout else np.zeros(0)
    weeks = tuple(float(later[at : at + 7].sum()) for at in range(0, len(later) - 6, 7))
    return Saving(round(value, 3), round(low, 3), round(high, 3), None, tuple(round(one, 3) for one in weeks))


def _layouts(asked: Asked, trial: Trial, gpus: int | None = None) -> tuple[LayoutOnNodes, ...]:
    """GPUs by layout where most are on: fixed nodes as they are; of pools the most that were cut at once, and whole."""
    setting = trial.setting
    if setting.fleet.capacity.shape[1] == 1:
        numbers = setting.numbers
        return _grouped(asked, [(number, setting.layouts[place][0]) for place, number in enumerate(numbers)])
    cut = trial.outcome.power_intervals.filter(pl.col("pool") == 1)
    most = replace(trial.outcome, power_intervals=cut).peak_gpus(setting.fleet.gpus, 0.0, asked.seen_s)
    total = setting.gpus if gpus is None else gpus
    left = min(most, total)
    rows: list[tuple[int, tuple[str, ...]]] = []
    count = 0
    for number, layouts in reversed(list(zip(setting.numbers, setting.layouts, strict=True))):
        size = asked.nodes.gpus[number]
        sliced = left >= size
        left -= size if sliced else 0
        if count + size <= total:
            rows.append((number, layouts[1 if sliced else 0]))
            count += size
    return _grouped(asked, rows)


def _grouped(asked: Asked, rows: Sequence[tuple[int, Sequence[str]]]) -> tuple[LayoutOnNodes, ...]:
    """GPUs by layout with the nodes that they are on."""
    gpus: Counter[str] = Counter()
    nodes: dict[str, Counter[str]] = {}
    for number, layouts in sorted(rows, key=lambda row: row[0]):
        for layout in layouts:
            name = FULL if layout == WHOLE_GPU else layout
            gpus[name] += 1
            if asked.nodes.named:
                nodes.setdefault(name, Counter())[asked.nodes.names[number]] += 1
    order = sorted(gpus, key=lambda name: (name != FULL, -gpus[name], name))
    on_nodes = ((name, nodes.get(name, Counter())) for name in order)
    return tuple(LayoutOnNodes(name, gpus[name], tuple(one), tuple(one.values())) for name, one in on_nodes)


def _with_more(layouts: tuple[LayoutOnNodes, ...], more: int, node: int) -> tuple[LayoutOnNodes, ...]:
    """The same layouts, and full GPUs on nodes that are bought, with no names yet."""
    nodes = 0 if more % node else more // node
    return (*layouts, LayoutOnNodes(FULL, more, to_buy=True, new_nodes=nodes))


def allocated_share(asked: Asked) -> float:
    """GPU-hours held over those installed."""
    installed = asked.seen_s * asked.nodes.total / SECONDS_PER_HOUR
    return allocated_gpu_hours(asked, np.ones(len(asked.start_s), bool)) / max(installed, 1e-9)


def team_rows(scenario: Scenario, waits: TeamWaits = MappingProxyType({})) -> tuple[TeamRow, ...]:
    """GPU-hours and waits by team, the largest first, with the unallocated GPU-hours last."""
    known = history(scenario)
    booked = known.fleet.hours_of(scenario_ledger(scenario))
    ended_before = (pl.col("end_time") <= known.begin).fill_null(value=False)
    in_window = known.jobs.filter(pl.col("submit_time") < known.end, ~ended_before)
    jobs = dict(in_window.group_by("tenant").len().iter_rows())
    rows = []
    for row in hours_by_tenant(booked).sort("allocated_gpu_hours", descending=True).iter_rows(named=True):
        measured = (row["used"] or 0.0) + (row["allocated_idle"] or 0.0) > 0
        idle, busy = (float(row[name]) if measured else None for name in ("allocated_idle", "used"))
        hours, count = float(row["allocated_gpu_hours"]), int(jobs.get(row["tenant"], 0))
        rows.append(TeamRow(str(row["tenant"]), hours, idle, count, busy, *waits.get(row["tenant"], ())))
    buckets = dict(hours_by_bucket(booked).select("bucket", "gpu_hours").iter_rows())
    free = sum(hours for name, hours in buckets.items() if name in UNALLOCATED_BUCKETS)
    return (*rows, TeamRow(UNALLOCATED, float(free), float(free), 0, 0.0))


def _left_out(found: Contest) -> float:
    """Share of the GPU-hours of the record that no figure counts: jobs that cannot be true beside the others."""
    columns = ["gpus", "start_time", "end_time", "quarantined"]
    raw = open_dataset(data_folder(found.scenario.data), columns=columns)
    hours = pl.col("gpus") * (pl.col("end_time") - pl.col("start_time")).dt.total_seconds()
    out = hours.filter(pl.col("quarantined").is_not_null())
    every, left_out = raw.jobs.select(all=hours.sum(), out=out.sum()).row(0)
    unresolved = raw.source_facts.unresolved_gpu_hours * SECONDS_PER_HOUR
    return float(((left_out or 0.0) + unresolved) / (every + unresolved)) if every else 0.0
