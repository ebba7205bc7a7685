"""The decision: the first action that fits what was found, with its figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from gpuplanner.demand.peaks import daily_peaks, level_for
from gpuplanner.export import FleetRules
from gpuplanner.inbox import open_dataset
from gpuplanner.inbox.telemetry.join_report import matched_gpu_hours
from gpuplanner.ledger import by_bucket, by_tenant
from gpuplanner.scenario import Scenario
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.study.bundled import data_folder
from gpuplanner.study.decision.ahead import gpus_for, run_out_of, within
from gpuplanner.study.decision.arena import Arena, Trial, gpu_hours
from gpuplanner.study.decision.asked import AS_TODAY, REQUESTED, RIGHTSIZED, Asked
from gpuplanner.study.decision.compare import Contest, contest, hold_rate, nothing_ran
from gpuplanner.study.decision.layouts import as_they_are, rules_of
from gpuplanner.study.decision.left_out import MAX_LEFT_OUT_SHARE, correction_of
from gpuplanner.study.decision.policies import WAYS
from gpuplanner.study.decision.promise import promised
from gpuplanner.study.decision.sentences import WHOLE_LIST, in_words, uncorrected_decision, unknown_decision
from gpuplanner.study.decision.shortage import (
    SHORT_SHARE,
    ends_waiting,
    gpus_needed,
    short_share,
    shortage_of,
    waited_s,
    waiting_share,
)
from gpuplanner.study.decision.tuning import Tuning
from gpuplanner.study.decision.types import (
    HELD_BACK,
    PEAKS,
    STATIC_MIG,
    TODAY,
    ClassService,
    Decision,
    LayoutOnNodes,
    Saving,
    Service,
    TeamRow,
)
from gpuplanner.study.decision.worth import worth_for
from gpuplanner.study.past.accounts import ledger
from gpuplanner.study.past.history import history
from gpuplanner.units import HOURS_PER_WEEK, SECONDS_PER_DAY, SECONDS_PER_HOUR

EXCEEDED = 0.10
"""What peaks may exceed with this chance is given back where peaks are all that is known."""
NOBODY = "nobody"
NOBODYS = ("free", "fragmented", "unexplained", "reserved", "reconfiguring", "down")
"""Parts of the installed hours that no team held."""


@dataclass(frozen=True, eq=False)
class Answer:
    """A decision, the contest that it comes from and what runs the fleet then; None where nothing could be played."""

    decision: Decision
    contest: Contest | None
    rules: FleetRules | None = None


def decide(
    scenario: Scenario,
    policies: Sequence[str] | None = None,
    tell: Callable[[str, Trial], object] | None = None,
) -> Answer:
    """Decide what to do with a fleet: keep it, cut it otherwise, give some of it back, or buy."""
    correction = correction_of(scenario.data)
    if correction is not None:
        return Answer(uncorrected_decision(scenario, correction), None)
    reason = nothing_ran(scenario)
    if reason is not None:
        return Answer(unknown_decision(scenario, reason), None)
    found = contest(scenario, policies, tell)
    decision, way = _decided(found)
    return Answer(decision, found, rules_of(found.asked, way, found.able, decision.policy))


@dataclass(frozen=True, eq=False)
class _Proposal:
    """What to do with the fleet: how many GPUs are on at most and on average, cut how, and by which way of running it.

    ``performed`` is what the files set up where that is not ``way``, by which service is counted.
    """

    action: str
    policy: str
    way: Trial
    gpus: int
    gpus_mean: float
    layouts: tuple[LayoutOnNodes, ...]
    saving: Saving
    performed: Trial | None = None


def _decided(found: Contest) -> tuple[Decision, Trial]:
    scenario, arena, asked = found.scenario, found.arena, found.asked
    fleet = asked.nodes.total
    # A job that shares a GPU has one of its own in the simulation, so what that lacks is nothing to buy.
    measured = not asked.nodes.snapshot and found.known.shared_share <= MAX_LEFT_OUT_SHARE
    needed = gpus_needed(arena) if measured and not asked.starts_assumed else 0
    winner = found.winner.trial
    assert winner is not None
    rightsized = winner.setting.view == RIGHTSIZED
    ahead = run_out_of(found, rightsized=rightsized)
    peaks, held = _daily_peaks(asked), _held_share(asked)
    cut = _cut_that_ends(found) if waiting_share(arena) > SHORT_SHARE and asked.board.profiles else None
    short = bool(needed) and short_share(arena) > SHORT_SHARE
    if measured and not short and within(ahead.recommended, scenario.horizon_days):
        more = gpus_for(found, scenario.purchase_lead_days, rightsized=rightsized)
    else:
        more = needed if short and cut is None else 0
    course = _bought(found, more) if more else _with_what_there_is(found, cut, peaks, held)
    shortage = shortage_of(arena, needed)
    decision = Decision(
        sentence="", action=course.action, fleet_gpus=fleet, gpus=course.gpus, gpus_mean=course.gpus_mean,
        layouts=course.layouts, policy=course.policy, path=scenario.path,
        confidence=found.confidence, shortage=replace(shortage, gpus_needed=more) if more else shortage,
        saving=course.saving,
        worth=worth_for(scenario, course.saving, freed=fleet - course.gpus, fleet_gpus=fleet, run_out=ahead),
        service=_service(found, course.way), run_out=ahead, monday=(), missing=(),
        teams=team_rows(scenario),
        gpus_hold_rate=_rate_of(found, course), left_out_share=_left_out(found),
        horizon_days=scenario.horizon_days, purchase_lead_days=scenario.purchase_lead_days,
        fleet_inferred=asked.nodes.inferred, board=found.known.fleet.name,
        telemetry_matched_gpu_hours=matched_gpu_hours(found.known.trace),
    )  # fmt: skip
    said = in_words(decision, found, held_share=held, kept_elsewhere=_kept_elsewhere(arena), peaks=peaks)
    return said, course.performed or course.way


def _with_what_there_is(found: Contest, cut: Trial | None, peaks: np.ndarray, held: float) -> _Proposal:
    """Nothing is bought: fewer GPUs do, or today's cut otherwise where that ends the waiting, or all stays as it is."""
    if found.confidence == PEAKS:
        course = _as_peaks_allow(found, peaks, held)
    elif cut is None and found.winner.policy != TODAY and held >= WHOLE_LIST:
        course = _run_by_the_winner(found)
    else:
        course = _kept(found, "nothing is set free")
    return course if course.action != "keep" or cut is None else _cut_otherwise(found, cut)


def _kept(found: Contest, why: str) -> _Proposal:
    today, fleet = found.arena.today, found.asked.nodes.total
    layouts = _layouts(found.asked, today)
    return _Proposal("keep", TODAY, today, fleet, float(fleet), layouts, Saving(None, reason=why))


def _bought(found: Contest, more: int) -> _Proposal:
    kept = _kept(found, "nothing is set free")
    gpus = kept.gpus + more
    layouts = _with_more(kept.layouts, more)
    return replace(kept, action="buy", gpus=gpus, gpus_mean=float(gpus), layouts=layouts)


def _cut_otherwise(found: Contest, cut: Trial) -> _Proposal:
    kept = _kept(found, "all GPUs stay on, cut otherwise")
    layouts = _layouts(found.asked, cut)
    return replace(kept, action="cut", policy=cut.setting.policy, way=cut, layouts=layouts)


def _as_peaks_allow(found: Contest, peaks: np.ndarray, held: float) -> _Proposal:
    """Only as many nodes as hold the peaks to come: nothing more is known of a short record."""
    asked, today = found.asked, found.arena.today
    fleet = asked.nodes.total
    kept = _kept(found, "nothing is set free")
    level = None if held < WHOLE_LIST or asked.nodes.inferred else _level(peaks, found.scenario, fleet)
    if level is None:
        return kept
    numbers = _nodes_for(asked, level)
    gpus = int(sum(asked.nodes.gpus[number] for number in numbers))
    freed = float((fleet - gpus) * HOURS_PER_WEEK)
    return replace(
        kept,
        action="give_back" if gpus < fleet else "keep",
        gpus=gpus,
        gpus_mean=float(gpus),
        layouts=_grouped(asked, [(number, asked.nodes.layouts[number]) for number in numbers]),
        saving=Saving(freed, freed, freed) if gpus < fleet else kept.saving,
        performed=replace(today, setting=as_they_are(asked, TODAY, numbers)),
    )


def _run_by_the_winner(found: Contest) -> _Proposal:
    """The fleet as the way runs it that serves jobs as today for least, if a week to come may save anything by it."""
    arena, asked, winner = found.arena, found.asked, found.winner.trial
    assert winner is not None
    fleet = asked.nodes.total
    saving = _saving(found)
    gpus = min(arena.most_gpus(winner), fleet)
    layouts = _layouts(asked, winner, gpus)
    if gpus < fleet or (saving.low or 0.0) > 1e-6:
        action = "give_back"
    elif winner.setting.view != AS_TODAY and layouts != _layouts(asked, arena.today):
        action = "cut"
    else:
        return _kept(found, "what could be saved may be nothing in a week to come")
    mean = fleet - (saving.value or 0.0) / HOURS_PER_WEEK
    return _Proposal(action, found.winner.policy, winner, gpus, mean, layouts, saving)


def _rate_of(found: Contest, course: _Proposal) -> float | None:
    """Share of the days kept back that what is decided held: nodes that are cut to end waiting were tuned by nobody."""
    if course.action == "cut" and course.way is not found.winner.trial:
        return hold_rate(found.arena, course.way, found.later, found.later_days)
    return next((one.hold_rate for one in (found.today, *found.judged) if one.policy == course.policy), None)


def _cut_that_ends(found: Contest) -> Trial | None:
    """All of today's nodes in other layouts that end the waiting for the fleet, for the requests that are made."""
    cuts = WAYS[STATIC_MIG].performed_by(found.able, can_be_cut=found.known.fleet.can_be_cut)
    if not cuts or REQUESTED not in found.asked.views or found.asked.nodes.shared:
        return None
    arena = found.arena
    tuning = Tuning(arena, arena.judged, np.ones(len(arena.today.day_hours), bool), None, found.able)

    def waiting(trial: Trial) -> float:
        return arena.waiting_share(trial, arena.judged)

    best = min(tuning.recut(), key=waiting, default=None)
    if best is None or not arena.holds(best, arena.judged):
        return None
    better = ends_waiting(arena, best) or waiting(best) < waiting(arena.today) / 2
    return arena.play(best.setting) if better and waiting(best) <= SHORT_SHARE else None


def _promised(found: Contest, arena: Arena, trial: Trial) -> tuple[float, float, float]:
    saved = (arena.today.day_hours - trial.day_hours)[found.earlier_days]
    return promised(saved, float(found.asked.nodes.total * HOURS_PER_WEEK))


def _saving(found: Contest) -> Saving:
    trial = found.winner.trial
    assert trial is not None
    value, low, high = _promised(found, found.arena, trial)
    saved = found.arena.today.day_hours - trial.day_hours
    later = saved[found.later_days] if found.confidence == HELD_BACK else np.zeros(0)
    weeks = tuple(float(later[at : at + 7].sum()) for at in range(0, len(later) - 6, 7))
    return Saving(round(value, 3), round(low, 3), round(high, 3), None, tuple(round(one, 3) for one in weeks))


def _layouts(asked: Asked, trial: Trial, gpus: int | None = None) -> tuple[LayoutOnNodes, ...]:
    """GPUs by layout where most are on: fixed nodes as they are; of pools the most that were cut at once, and whole."""
    setting = trial.setting
    if setting.fleet.capacity.shape[1] == 1:
        numbers = setting.numbers
        return _grouped(asked, [(number, setting.layouts[place][0]) for place, number in enumerate(numbers)])
    cut = trial.outcome.on.filter(pl.col("pool") == 1)
    most = replace(trial.outcome, on=cut).most_gpus(setting.fleet.gpus, 0.0, asked.seen_s)
    total = setting.gpus if gpus is None else gpus
    left = min(most, total)
    rows: list[tuple[int, tuple[str, ...]]] = []
    for place in reversed(range(len(setting.numbers))):
        size = asked.nodes.gpus[setting.numbers[place]]
        sliced = left >= size
        rows.append((setting.numbers[place], setting.layouts[place][1 if sliced else 0]))
        left -= size if sliced else 0
    kept, count = [], 0
    for number, layouts in rows:
        if count + len(layouts) <= total:
            kept.append((number, layouts))
            count += len(layouts)
    return _grouped(asked, kept)


def _grouped(asked: Asked, rows: Sequence[tuple[int, Sequence[str]]]) -> tuple[LayoutOnNodes, ...]:
    """GPUs by layout with the nodes that they are on."""
    gpus: dict[str, int] = {}
    nodes: dict[str, dict[str, int]] = {}
    for number, layouts in sorted(rows, key=lambda row: row[0]):
        for layout in layouts:
            name = "whole" if layout == WHOLE_GPU else layout
            gpus[name] = gpus.get(name, 0) + 1
            if asked.nodes.named:
                mine = nodes.setdefault(name, {})
                mine[asked.nodes.names[number]] = mine.get(asked.nodes.names[number], 0) + 1
    order = sorted(gpus, key=lambda name: (name != "whole", -gpus[name], name))
    return tuple(
        LayoutOnNodes(name, gpus[name], tuple(there := nodes.get(name, {})), tuple(there.values()))
        for name in order
    )


def _with_more(layouts: tuple[LayoutOnNodes, ...], more: int) -> tuple[LayoutOnNodes, ...]:
    """The same with so many whole GPUs more, on nodes that are not there yet."""
    whole = next((one for one in layouts if one.layout == "whole"), LayoutOnNodes("whole", 0))
    return (replace(whole, gpus=whole.gpus + more), *(one for one in layouts if one.layout != "whole"))


def _service(found: Contest, trial: Trial) -> Service:
    arena, which = found.arena, found.later
    today, mine = arena.todays_minutes(which), arena.late_minutes(trial, which)
    jobs = np.bincount(arena.size[which & arena.judged], minlength=len(arena.classes))
    rows = tuple(
        ClassService(name, int(jobs[number]), float(today[number]), float(mine[number]),
                     float(today[number] + arena.minutes))
        for number, name in enumerate(arena.classes)
    )  # fmt: skip
    added = max((float(one) for one in mine - today), default=0.0)
    never = int(np.isinf(trial.late_s[0, which & arena.judged]).sum())
    return Service(arena.quantile, max(added, 0.0), rows, arena.later_share(trial, which),
                   arena.longest_minutes(trial, which), never)  # fmt: skip


def _daily_peaks(asked: Asked) -> np.ndarray:
    """Most GPUs that jobs held at once in each complete day, the day that the record begins in left out."""
    begun = ~np.isnan(asked.start_s)
    end = np.where(np.isnan(asked.end_s), np.inf, asked.end_s)[begun] / SECONDS_PER_DAY
    first = -(asked.zero.hour * 3600 + asked.zero.minute * 60 + asked.zero.second) / SECONDS_PER_DAY
    offset = first + 1.0 if first < 0 else first
    days = max(int(asked.seen_s / SECONDS_PER_DAY - offset), 0)
    return daily_peaks(
        asked.start_s[begun] / SECONDS_PER_DAY - offset, end - offset, asked.gpus()[begun], days
    )


def _held_share(asked: Asked) -> float:
    """GPU-hours held over those installed."""
    begun = ~np.isnan(asked.start_s)
    end = np.where(np.isnan(asked.end_s), asked.seen_s, asked.end_s)[begun]
    [held] = gpu_hours(asked.start_s[begun], end, asked.gpus()[begun], [0.0, asked.seen_s])
    return float(held) / max(asked.seen_s * asked.nodes.total / SECONDS_PER_HOUR, 1e-9)


def _level(peaks: np.ndarray, scenario: Scenario, fleet: int) -> float | None:
    return level_for(peaks, scenario.horizon_days, EXCEEDED, fleet=float(fleet)) if len(peaks) else None


def _nodes_for(asked: Asked, level: float) -> list[int]:
    """The fewest of today's nodes with so many GPUs, the largest first."""
    order = sorted(range(len(asked.nodes.gpus)), key=lambda number: -asked.nodes.gpus[number])
    kept = [number for number in order if asked.nodes.names[number] in asked.nodes.shared]
    order = [number for number in order if number not in kept]
    while order and sum(asked.nodes.gpus[number] for number in kept) < level:
        kept.append(order.pop(0))
    return sorted(kept)


def _kept_elsewhere(arena: Arena) -> tuple[float, int]:
    """Share of all waiting in which the request fitted, and the jobs that waited over the limit so."""
    waited, counts = waited_s(arena)
    until = np.where(np.isnan(arena.asked.start_s), arena.asked.seen_s, arena.asked.start_s)
    whole = np.where(counts, np.maximum(until - arena.asked.granted.submit_s, 0.0), 0.0)
    other = whole - np.minimum(waited, whole)
    return float(other.sum() / max(whole.sum(), 1e-9)), int((other > arena.minutes * 60.0).sum())


def team_rows(scenario: Scenario) -> tuple[TeamRow, ...]:
    """Who held what, the largest first, and last what nobody held."""
    known = history(scenario)
    booked = known.fleet.hours_of(ledger(scenario))
    in_window = (pl.col("submit_time") < known.end) & ~(pl.col("end_time") <= known.begin).fill_null(
        value=False
    )
    jobs = dict(known.jobs.filter(in_window).group_by("tenant").len().iter_rows())
    rows = []
    for row in by_tenant(booked).sort("held_gpu_hours", descending=True).iter_rows(named=True):
        measured = row["used"] + row["held_idle"] > 0
        idle = float(row["held_idle"]) if measured else None
        rows.append(
            TeamRow(str(row["tenant"]), float(row["held_gpu_hours"]), idle, int(jobs.get(row["tenant"], 0)))
        )
    buckets = dict(by_bucket(booked).select("bucket", "gpu_hours").iter_rows())
    free = sum(hours for name, hours in buckets.items() if name in NOBODYS)
    return (*rows, TeamRow(NOBODY, float(free), float(free), 0))


def _left_out(found: Contest) -> float:
    """Share of the GPU-hours of the record that no figure counts: jobs that cannot be true beside the others."""
    raw = open_dataset(
        data_folder(found.scenario.data), columns=["gpus", "start_time", "end_time", "quarantined"]
    )
    hours = pl.col("gpus") * (pl.col("end_time") - pl.col("start_time")).dt.total_seconds()
    out = hours.filter(pl.col("quarantined").is_not_null())
    every, left_out = raw.jobs.select(all=hours.sum(), out=out.sum()).row(0)
    unresolved = raw.stated.unresolved_gpu_hours * SECONDS_PER_HOUR
    return float(((left_out or 0.0) + unresolved) / (every + unresolved)) if every else 0.0
