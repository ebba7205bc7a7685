"""Step functions of time over one pool of GPUs, and what they leave free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gpuplanner.intervals import HOUR_TICKS, slot_sums
from gpuplanner.ledger.slabs import Changes, Kinds, Slabs, Steps

TOLERANCE_GPUS = 1e-6
"""Fractions of GPUs are sums of floats; less than this is rounding, not a GPU."""


@dataclass(frozen=True)
class Spans:
    """Intervals ``[begin, end)`` in ticks from the first hour of the ledger, each with a number of GPUs."""

    begin: np.ndarray
    end: np.ndarray
    gpus: np.ndarray

    def steps(self, slabs: Slabs) -> Steps:
        """Sum of the GPUs over time, slab by slab."""
        return Steps(self.begin, self.end, self.gpus, slabs)

    def joined(self, other: Spans) -> Spans:
        """Both sets of intervals."""
        if not len(other.begin):
            return self
        return Spans(
            np.concatenate([self.begin, other.begin]),
            np.concatenate([self.end, other.end]),
            np.concatenate([self.gpus, other.gpus]),
        )

    def by_hour(self, hours: int, group: np.ndarray, groups: int) -> np.ndarray:
        """GPU-hours of each group in each hour, shape (groups, hours)."""
        sums = slot_sums(
            self.begin, self.end, self.gpus, group, groups=groups, slots=hours, slot_ticks=HOUR_TICKS
        )
        return np.asarray(sums / HOUR_TICKS)


Idle = Callable[[int, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Number of a slab, its edges and the GPUs left between each edge and the next → of these, GPUs that are free in
pieces, and GPUs asked for by jobs that would have fitted. It is asked for slab after slab."""


class Pieces(Protocol):
    """What is known of the nodes: which free GPUs are in pieces, and which waiting jobs would have fitted."""

    def idle(self, slabs: Slabs) -> Idle:
        """Begin a sweep over slabs."""


@dataclass(frozen=True)
class Reservation:
    """GPUs kept for a tenant, and what the tenant holds of the pool."""

    kept: Spans
    held: Spans


@dataclass(frozen=True)
class PoolHours:
    """GPU-hours of one pool that nobody holds, by hour; and by how much it is held beyond what there is."""

    free: np.ndarray
    fragmented: np.ndarray
    idle_pending: np.ndarray
    reserved: dict[str, np.ndarray]
    excess_gpus: float
    excess_tick: int


def sweep_pool(
    *,
    installed: Spans,
    taken: Spans,
    waiting: Spans,
    reservations: Mapping[str, Reservation],
    pieces: Pieces | None,
    hours: int,
) -> PoolHours:
    """Walk through every event of a pool, once."""
    kept = {tenant: each.kept for tenant, each in reservations.items()}
    own = {tenant: each.held for tenant, each in reservations.items()}
    levels = [installed, taken, *kept.values(), *own.values()]
    slabs = Slabs(hours, (instants for each in (*levels, waiting) for instants in (each.begin, each.end)))
    steps, queue = [each.steps(slabs) for each in levels], Changes(waiting.begin, waiting.end, slabs)
    idle = _Fitting(waiting, slabs).idle if pieces is None else pieces.idle(slabs)
    free, fragmented, idle_pending = np.zeros((3, hours))
    reserved = {tenant: np.zeros(hours) for tenant in kept}
    excess_gpus, excess_tick = 0.0, hours * HOUR_TICKS
    for slab in range(len(slabs)):
        edges = slabs.edges(slab, (ticks for each in (*steps, queue) for ticks in each.instants(slab)))
        there, held, *kept_and_own = (each.level(slab, edges) for each in steps)
        left = there - held
        excess = np.maximum(-left - TOLERANCE_GPUS, 0)
        if excess.any():
            excess_tick = min(excess_tick, int(edges[:-1][excess > 0][0]))
            excess_gpus = max(excess_gpus, float(excess.max()))
        left = np.maximum(left, 0)
        pairs = zip(kept_and_own[: len(kept)], kept_and_own[len(kept) :], strict=True)
        unused = {
            tenant: np.maximum(most - some, 0) for tenant, (most, some) in zip(kept, pairs, strict=True)
        }
        asked = np.sum(list(unused.values()), axis=0) if unused else np.zeros_like(left)
        share = np.divide(np.minimum(asked, left), asked, out=np.zeros_like(left), where=asked > 0)
        left_over = left - np.minimum(asked, left)
        in_pieces, asked_for = idle(slab, edges, left_over)
        in_pieces = np.minimum(in_pieces, left_over)
        asked_for = np.minimum(asked_for, left_over - in_pieces)
        here = slice(*slabs.hours(slab))
        free[here] = slabs.by_hour(slab, edges, left_over - in_pieces - asked_for)
        fragmented[here] = slabs.by_hour(slab, edges, in_pieces)
        idle_pending[here] = slabs.by_hour(slab, edges, asked_for)
        for tenant, level in unused.items():
            reserved[tenant][here] = slabs.by_hour(slab, edges, level * share)
    return PoolHours(free, fragmented, idle_pending, reserved, excess_gpus, excess_tick)


class _Fitting:
    """GPUs asked for by those of the waiting jobs that each ask for no more than is left in the pool."""

    def __init__(self, waiting: Spans, slabs: Slabs) -> None:
        self._needs, kind = np.unique(waiting.gpus, return_inverse=True)
        self._queue = Kinds(waiting.begin, waiting.end, kind, len(self._needs), slabs)

    def idle(self, slab: int, edges: np.ndarray, left: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Nothing in pieces, and what is asked for, between each edge and the next."""
        total = np.zeros_like(left)
        for kind, jobs in self._queue.counts(slab, edges):
            need = self._needs[kind]
            total += np.where(left >= need - TOLERANCE_GPUS, jobs * need, 0.0)
        return np.zeros_like(left), total
