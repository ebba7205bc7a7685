"""What the fleet itself kept waiting: by too few GPUs, or by none in the right place; and what would end it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.study.decision.arena import Arena, Mask, Trial, WaySetting, cut_fleet, order_statistic
from gpuplanner.study.decision.asked import AS_TODAY, counts_of
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
    asked = arena.asked
    if arena.played_waits_s is not None:  # other jobs than were seen: as they would wait
        return arena.played_waits_s, arena.judged
    until = np.where(np.isnan(asked.start_s), asked.seen_s, asked.start_s)
    waited = np.where(np.isnan(arena.back.ready_s), 0.0, until - arena.back.ready_s)
    submit = asked.views[AS_TODAY].requests.submit_s
    counts = (submit >= 0) & arena.played
    return np.where(counts, np.maximum(waited, 0.0), 0.0), counts


def shortage_of(arena: Arena, gpus_needed: int | None) -> Shortage:
    """The waiting that was seen, a week, by class and cause."""
    waited, counts = waited_s(arena)
    requests = arena.asked.views[AS_TODAY].requests
    gpus = arena.asked.fleet.weights[requests.profile] * requests.total
    weeks = max(arena.asked.seen_s / WEEK_S, 1e-9)
    long = counts & (waited > arena.minutes * SECONDS_PER_MINUTE)
    by_place = long & (arena.back.by_place_s > arena.back.by_count_s)
    rows = []
    for number, name in enumerate(arena.classes):
        mine = arena.size == number
        jobs = int((mine & long).sum())
        place = int((mine & by_place).sum())
        hours = float(waited[mine].sum()) / SECONDS_PER_HOUR / weeks
        rows.append(
            ClassShortage(
                name, hours, round(jobs / weeks), round((jobs - place) / weeks), round(place / weeks)
            )
        )
    return Shortage(
        gpu_hours=float(waited @ gpus) / SECONDS_PER_HOUR / weeks,
        jobs=round(int(long.sum()) / weeks),
        by_place=round(int(by_place.sum()) / weeks),
        gpus_needed=gpus_needed,
        by_class=tuple(rows),
    )


def short_share(arena: Arena) -> float:
    """Share of all jobs that waited longer than the limit from readiness while fewer slices were free than they ask."""
    waited, counts = waited_s(arena)
    long = counts & (waited > arena.minutes * SECONDS_PER_MINUTE)
    return float((long & (arena.back.by_count_s >= arena.back.by_place_s)).sum() / max(counts.sum(), 1))


def waiting_share(arena: Arena) -> float:
    """Share of all jobs that waited longer than the limit from readiness, for whatever the fleet lacked."""
    waited, counts = waited_s(arena)
    return float((counts & (waited > arena.minutes * SECONDS_PER_MINUTE)).sum() / max(counts.sum(), 1))


def ends_waiting(arena: Arena, trial: Trial) -> bool:
    """Whether such a share of each class starts within the limit of becoming ready."""
    counts = arena.judged
    for number in range(len(arena.classes)):
        waits = trial.wait_s[counts & (arena.size == number)]
        if order_statistic(waits, arena.quantile) > arena.minutes * SECONDS_PER_MINUTE:
            return False
    return True


def gpus_needed(arena: Arena) -> int | None:
    """GPUs more with which each class starts within the limit of becoming ready: whole nodes, cut as its kind is.

    Classes are helped one after the other, slices first; None where three times the fleet is not enough.
    """
    if ends_waiting(arena, arena.today):
        return 0
    asked = arena.asked
    sizes = asked.nodes.gpus
    usual = max(set(sizes), key=lambda size: (sizes.count(size), size))
    extra: list[tuple[str, ...]] = []
    for number in range(len(arena.classes)):
        which = arena.judged & (arena.size == number)
        layouts = _like(arena, which, usual)

        def enough(
            count: int,
            which: Mask = which,
            layouts: tuple[str, ...] = layouts,
            before: Sequence[tuple[str, ...]] = tuple(extra),
        ) -> bool:
            trial = arena.play(_with_nodes(arena, [*before, *[layouts] * count]), 1, hopeless=HOPELESS)
            waits = order_statistic(trial.wait_s[which], arena.quantile)
            return waits <= arena.minutes * SECONDS_PER_MINUTE

        found = least(enough, MOST_TIMES * len(sizes))
        if found is None:
            return None
        extra += [layouts] * found
    return usual * len(extra)


def least(enough: Callable[[int], bool], most: int) -> int | None:
    """The smallest number from 0 to `most` that is enough, by doubling and halving; more is taken to be better.

    Examples
    --------
    >>> least(lambda count: count >= 11, 64), least(lambda count: False, 8)
    (11, None)
    """
    low, high = -1, 1
    if enough(0):
        return 0
    low = 0
    while high <= most and not enough(high):
        low, high = high, high * 2
    if high > most:
        if low >= most or not enough(most):
            return None
        high = most
    while high - low > 1:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def _like(arena: Arena, which: Mask, gpus: int) -> tuple[str, ...]:
    """Layouts of a further node for some jobs: whole, or as the GPUs today that have most of what they are on."""
    asked = arena.asked
    profile = int(np.bincount(asked.views[AS_TODAY].requests.profile[which]).argmax()) if which.any() else 0
    cut = {layout for layouts in asked.nodes.layouts for layout in layouts}
    best = max(sorted(cut), key=lambda layout: counts_of([layout], asked.fleet.profiles)[profile])
    return (WHOLE_GPU if profile == 0 else best,) * gpus


def _with_nodes(arena: Arena, more: Sequence[tuple[str, ...]]) -> WaySetting:
    """Today's fleet and further nodes."""
    asked = arena.asked
    numbers = list(range(len(asked.nodes.gpus)))
    base, layouts = cut_fleet(asked, numbers, [[one] for one in asked.nodes.layouts])
    if not more:
        return WaySetting("more", AS_TODAY, base, layouts, tuple(numbers))
    fleet = replace(
        base,
        gpus=np.concatenate([base.gpus, [len(one) for one in more]]),
        capacity=np.concatenate([base.capacity, [[counts_of(one, base.profiles)] for one in more]]),
        first=np.concatenate([base.first, np.zeros(len(more), np.int64)]),
    )
    return WaySetting("more", AS_TODAY, fleet, layouts, tuple(numbers))
