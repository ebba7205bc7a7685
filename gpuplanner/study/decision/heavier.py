"""Weeks with more jobs than those seen, as far as today's own fleet bears them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpuplanner.study.decision.arena import Arena, Mask, gpu_hours
from gpuplanner.study.decision.asked import Asked, AskedView
from gpuplanner.study.decision.promise import by_draw
from gpuplanner.study.waits.explain import ExplainedWaits
from gpuplanner.units import SECONDS_PER_DAY

SURE = 0.8
"""Level of two-sided intervals whose upper end must hold the target: nine of ten weeks to come ask for less."""
MOST = 2.0
STEPS = 4
"""Steps in which a heavier week is made lighter until today's own fleet bears it."""
LEAST = 1.02


def heavier_arena(arena: Arena, earlier: Mask, days: Mask) -> tuple[Arena | None, float]:
    """The earlier days with as many more jobs as a week to come may have, fewer where today's fleet bears less."""
    daily = _daily_gpu_hours(arena, earlier, days)
    mean = float(daily.mean()) if len(daily) else 0.0
    if mean <= 0.0:
        return None, 1.0
    wanted = min(1.0 + by_draw(daily, SURE) / mean, MOST)
    for step in range(STEPS):
        times = 1.0 + (wanted - 1.0) * (1.0 - step / STEPS)
        if times < LEAST:
            break
        found = _with_more(arena, earlier, times)
        today = found.late_minutes(found.today, found.judged)
        if (today <= arena.limits(earlier) + 1e-9).all():
            return found, times
    return None, 1.0


def _daily_gpu_hours(arena: Arena, which: Mask, days: Mask) -> NDArray[np.float64]:
    """GPU-hours that jobs would hold on each day if nobody waited."""
    begin, edges = arena.ready_s[which], np.arange(len(days) + 1) * SECONDS_PER_DAY
    run, gpus = arena.asked.granted.run_s[which], arena.asked.gpus()[which]
    return gpu_hours(begin, begin + run, gpus, edges.tolist())[days]


def scaled(arena: Arena, times: float) -> Arena:
    """The same weeks with so many times the jobs: what was seen of today's fleet no longer holds, and is played."""
    found = _with_more(arena, np.ones(len(arena.judged), bool), times)
    found.played_waits_s = np.where(np.isfinite(found.today.wait_s), found.today.wait_s, 0.0)
    return found


def _with_more(arena: Arena, earlier: Mask, times: float) -> Arena:
    """The earlier jobs, a part of them again: copies come within the day after the original."""
    rng = np.random.default_rng([arena.seed, 43])
    rows = np.flatnonzero(earlier | arena.carried | arena.standing)
    if times < 1.0:
        rows = rows[rng.random(len(rows)) < times]
    copies = np.floor(times - 1.0 + rng.random(len(rows))).astype(np.int64).clip(0)
    again = np.repeat(rows, np.where(earlier[rows] & ~arena.carried[rows] & ~arena.standing[rows], copies, 0))
    order = np.concatenate([rows, again])
    moved = np.concatenate([np.zeros(len(rows)), rng.uniform(0, SECONDS_PER_DAY, len(again))])

    asked, waits = again_later(arena, order, moved)
    found = replace(arena, asked=asked, waits=waits)
    # The classes are those of the target, however many jobs each has here.
    found.size, found.classes = arena.size[order], arena.classes
    return found


def again_later(
    arena: Arena, order: NDArray[np.int64], later_s: NDArray[np.float64]
) -> tuple[Asked, ExplainedWaits]:
    """Jobs of an arena by their rows, some of them more than once, each so much later than it came."""
    asked = arena.asked

    def of(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(values[order] + later_s)

    views = {}
    for name, view in asked.views.items():
        taken = view.requests.take(order)
        moved = replace(taken, submit_s=taken.submit_s + later_s, ready_s=taken.ready_s + later_s)
        views[name] = AskedView(moved, view.slowdown[order])
    more = replace(
        asked, jobs=asked.jobs[order], views=views, start_s=of(asked.start_s), end_s=of(asked.end_s),
        pins=[asked.pins[row] for row in order], standing=asked.standing[order],
    )  # fmt: skip
    return more, arena.waits.take(order, later_s)
