"""What the fleet itself kept waiting: by too few GPUs, or by none in the right place; and what would end it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.simulate.nodes import Readiness
from gpuplanner.study.decision.arena import Arena, Mask, Trial, WaySetting, least, order_statistic
from gpuplanner.study.decision.asked import Asked, counts_of
from gpuplanner.study.decision.types import ClassShortage, Shortage
from gpuplanner.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, SECONDS_PER_MINUTE

WEEK_S = 7 * SECONDS_PER_DAY
HOPELESS = 0.2
"""Share of all jobs that wait at once where so many more GPUs are surely too few."""
MOST_TIMES = 3
"""Fleets up to so many times today's are tried."""
SHORT_SHARE = 0.05
"""More of all jobs than this that waited for want of GPUs: the fleet is short."""


def waited_s(arena: Arena) -> tuple[NDArray[np.float64], Mask]:
    """How long each job waited from readiness to its start, or to the end of the observation [s]; and who counts.

    Jobs that were there before the observation began do not count.
    """
    if arena.played_waits_s is not None:  # other jobs than were seen: as they would wait
        return arena.played_waits_s, arena.judged
    counts = (arena.asked.granted.submit_s >= 0) & arena.played
    return np.where(counts, kept_waiting_s(arena.asked, arena.back), 0.0), counts


def kept_waiting_s(asked: Asked, back: Readiness) -> NDArray[np.float64]:
    """How long each job waited for the fleet alone, from readiness to its start or to the end of the record [s]."""
    until = np.where(np.isnan(asked.start_s), asked.seen_s, asked.start_s)
    waited = np.where(np.isnan(back.ready_s), 0.0, until - back.ready_s)
    return np.asarray(np.maximum(waited, 0.0))


def _waited_long(arena: Arena) -> tuple[Mask, Mask]:
    """Jobs that waited longer than the limit from readiness, and those that count."""
    waited, counts = waited_s(arena)
    return counts & (waited > arena.minutes * SECONDS_PER_MINUTE), counts


def shortage_of(arena: Arena, gpus_needed: int | None) -> Shortage:
    """The waiting that was seen, a week, by class and cause."""
    waited, (long, _) = waited_s(arena)[0], _waited_long(arena)
    weeks = max(arena.asked.seen_s / WEEK_S, 1e-9)
    by_place = long & (arena.back.by_place_s > arena.back.by_count_s)
    rows = []
    for number, name in enumerate(arena.classes):
        mine = arena.size == number
        jobs, place = (int((mine & which).sum()) for which in (long, by_place))
        hours = float(waited[mine].sum()) / SECONDS_PER_HOUR / weeks
        rows.append(ClassShortage(name, hours, *(round(one / weeks) for one in (jobs, jobs - place, place))))
    return Shortage(
        gpu_hours=float(waited @ arena.asked.gpus()) / SECONDS_PER_HOUR / weeks,
        jobs=round(int(long.sum()) / weeks),
        by_place=round(int(by_place.sum()) / weeks),
        gpus_needed=gpus_needed,
        by_class=tuple(rows),
    )


def short_share(arena: Arena) -> float:
    """Share of all jobs that waited longer than the limit from readiness while fewer slices were free than they ask."""
    long, counts = _waited_long(arena)
    return float((long & (arena.back.by_count_s >= arena.back.by_place_s)).sum() / max(counts.sum(), 1))


def waiting_share(arena: Arena) -> float:
    """Share of all jobs that waited longer than the limit from readiness, for whatever the fleet lacked."""
    long, counts = _waited_long(arena)
    return float(long.sum() / max(counts.sum(), 1))


def ends_waiting(arena: Arena, trial: Trial) -> bool:
    """Whether such a share of each class starts within the limit of becoming ready."""
    return all(
        _in_time(arena, trial, arena.judged & (arena.size == number)) for number in range(len(arena.classes))
    )


def _in_time(arena: Arena, trial: Trial, which: Mask) -> bool:
    waits = order_statistic(trial.wait_s[which], arena.quantile)
    return waits <= arena.minutes * SECONDS_PER_MINUTE


def gpus_needed(arena: Arena) -> int | None:
    """GPUs more with which each class starts within the limit of becoming ready: whole nodes, cut as its kind is.

    Classes are helped one after the other, slices first; None where three times the fleet is not enough.
    """
    if ends_waiting(arena, arena.today):
        return 0
    asked = arena.asked
    usual = asked.usual_node
    extra: list[tuple[str, ...]] = []
    for number in range(len(arena.classes)):
        which = arena.judged & (arena.size == number)
        layouts = _like(arena, which, usual)

        enough = partial(_enough, arena, which, tuple(extra), layouts)
        found = least(enough, 0, MOST_TIMES * len(asked.nodes.gpus))
        if found is None:
            return None
        extra += [layouts] * found
    return usual * len(extra)


def _enough(
    arena: Arena, which: Mask, before: Sequence[tuple[str, ...]], layouts: tuple[str, ...], count: int
) -> bool:
    """Whether some jobs start in time with so many more nodes of some layouts, behind others that are added."""
    return _in_time(
        arena, arena.play(_with_nodes(arena, [*before, *[layouts] * count]), 1, hopeless=HOPELESS), which
    )


def _like(arena: Arena, which: Mask, gpus: int) -> tuple[str, ...]:
    """Layouts of a further node for some jobs: whole, or as the GPUs today that have most of what they are on."""
    asked = arena.asked
    profile = int(np.bincount(asked.granted.profile[which]).argmax()) if which.any() else 0
    cut = {layout for layouts in asked.nodes.layouts for layout in layouts}
    best = max(sorted(cut), key=lambda layout: counts_of([layout], asked.fleet.profiles)[profile])
    return (WHOLE_GPU if profile == 0 else best,) * gpus


def _with_nodes(arena: Arena, more: Sequence[tuple[str, ...]]) -> WaySetting:
    """Today's fleet and further nodes."""
    today = arena.today.setting
    base, capacity = today.fleet, [[counts_of(one, today.fleet.profiles)] for one in more]
    fleet = replace(
        base,
        gpus=np.concatenate([base.gpus, [len(one) for one in more]]),
        capacity=np.concatenate([base.capacity, np.array(capacity).reshape(-1, *base.capacity.shape[1:])]),
        first=np.concatenate([base.first, np.zeros(len(more), np.int64)]),
    )
    return replace(today, policy="more", fleet=fleet)
