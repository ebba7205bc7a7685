"""What the fleet itself kept waiting: by too few GPUs, or by none in the right place; and what would end it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.study.decision.arena import Arena, Mask, Trial, WaySetting, least, order_statistic
from gpuplanner.study.decision.asked import counts_of
from gpuplanner.study.decision.types import ClassShortage, Shortage
from gpuplanner.study.waits.explain import ExplainedWaits
from gpuplanner.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, SECONDS_PER_MINUTE

WEEK_S = 7 * SECONDS_PER_DAY
HOPELESS = 0.2
"""Share of all jobs that wait at once where so many more GPUs are surely too few."""
MOST_TIMES = 3
"""Fleets up to so many times today's are tried."""
SHORT_SHARE = 0.05
"""More of all jobs than this that waited for want of GPUs: the fleet is short."""


def waited_s(arena: Arena) -> tuple[NDArray[np.float64], Mask]:
    """How long each job waited for want of GPUs [s], and who counts: not those that came before the record."""
    if arena.played_waits_s is not None:  # other jobs than were seen: as they would wait
        return arena.played_waits_s, arena.judged
    counts = arena.asked.granted.submit_s >= 0
    return np.where(counts, kept_waiting_s(arena.waits), 0.0), counts


def kept_waiting_s(waits: ExplainedWaits) -> NDArray[np.float64]:
    """How long each job waited for want of GPUs, in their place, or behind jobs that did [s]."""
    return waits.seconds_of("insufficient", "fragmented", "wrong_layout", "queued_behind")


def _waited_long(arena: Arena) -> tuple[Mask, Mask]:
    """Jobs that waited longer than the limit for want of GPUs, and those that count."""
    waited, counts = waited_s(arena)
    return counts & (waited > arena.minutes * SECONDS_PER_MINUTE), counts


def shortage_of(arena: Arena, gpus_needed: int | None) -> Shortage:
    """The waiting that was seen, a week, by class and cause."""
    waited, (long, _) = waited_s(arena)[0], _waited_long(arena)
    weeks = max(arena.asked.seen_s / WEEK_S, 1e-9)
    by_place = long & _kept_by_place(arena)
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
    """Share of all jobs that waited longer than the limit, most of it while fewer GPUs were free than they request."""
    long, counts = _waited_long(arena)
    return float((long & ~_kept_by_place(arena)).sum() / max(counts.sum(), 1))


def _kept_by_place(arena: Arena) -> Mask:
    """Jobs that waited longest while enough was free, but not together or as other instances."""
    if arena.played_waits_s is not None:  # the causes are those of the jobs that were seen
        return np.zeros(len(arena.size), bool)
    place = arena.waits.seconds_of("fragmented", "wrong_layout")
    return np.asarray(place > arena.waits.seconds_of("insufficient"))


def waiting_share(arena: Arena) -> float:
    """Share of all jobs that waited longer than the limit for want of GPUs, in their number or place."""
    long, counts = _waited_long(arena)
    return float(long.sum() / max(counts.sum(), 1))


def ends_waiting(arena: Arena, trial: Trial) -> bool:
    """Whether such a share of each class starts within the limit of its arrival."""
    return all(
        _in_time(arena, trial, arena.judged & (arena.size == number)) for number in range(len(arena.classes))
    )


def _in_time(arena: Arena, trial: Trial, which: Mask) -> bool:
    waits = order_statistic(trial.wait_s[which], arena.quantile)
    return waits <= arena.minutes * SECONDS_PER_MINUTE


def gpus_needed(arena: Arena) -> int | None:
    """GPUs more with which each class starts within the limit of its arrival: whole nodes, cut as its kind is.

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
