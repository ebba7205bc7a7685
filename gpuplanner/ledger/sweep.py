"""Step functions of time over one pool of GPUs, and what they leave free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gpuplanner.intervals import HOUR_TICKS, slot_sums

TOLERANCE_GPUS = 1e-6
"""Fractions of GPUs are sums of floats; less than this is rounding, not a GPU."""


@dataclass(frozen=True)
class Spans:
    """Intervals ``[begin, end)`` in ticks from the first hour of the ledger, each with a number of GPUs."""

    begin: np.ndarray
    end: np.ndarray
    gpus: np.ndarray

    def level(self, edges: np.ndarray) -> np.ndarray:
        """Sum of the GPUs between each edge and the next; every begin and end must be an edge."""
        change = np.zeros(len(edges))
        np.add.at(change, np.searchsorted(edges, self.begin), self.gpus)
        np.add.at(change, np.searchsorted(edges, self.end), -self.gpus)
        return np.cumsum(change)[:-1]

    def where(self, chosen: np.ndarray) -> Spans:
        """Some of the intervals."""
        return Spans(self.begin[chosen], self.end[chosen], self.gpus[chosen])

    def joined(self, other: Spans) -> Spans:
        """Both sets of intervals."""
        return Spans(
            np.concatenate([self.begin, other.begin]),
            np.concatenate([self.end, other.end]),
            np.concatenate([self.gpus, other.gpus]),
        )

    def by_hour(self, hours: int, group: np.ndarray, groups: int) -> np.ndarray:
        """GPU-hours of each group in each hour, shape (groups, hours)."""
        sums = slot_sums(
            self.begin,
            self.end,
            self.gpus,
            group.astype(np.int64),
            groups=groups,
            slots=hours,
            slot_ticks=HOUR_TICKS,
        )
        return np.asarray(sums / HOUR_TICKS)

    def peak(self, length: int) -> float:
        """Most GPUs at one time between 0 and `length`."""
        return float(self.level(_edges([self], length, length)).max())


class Pieces(Protocol):
    """What is known of the nodes: which free GPUs are in pieces, and which waiting jobs would have fitted."""

    def idle(self, edges: np.ndarray, left: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """GPUs that are free in pieces, and GPUs asked for by jobs that fit, between each edge and the next."""


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
    unexplained: np.ndarray
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
    """Walk through every event of a pool, once.

    Parameters
    ----------
    installed, taken : Spans
        GPUs there, and GPUs held or out of service.
    waiting : Spans
        Jobs in the queue, with the GPUs that each asks for.
    reservations : mapping of str to Reservation
        By tenant. What the tenant does not hold of its reservation is reserved, as far as anything is left.
    pieces : Pieces, optional
        None: it is not known on which nodes GPUs are held.
    hours : int
        Length of the ledger.

    Returns
    -------
    PoolHours
        What is left of the installed GPUs: ``reserved`` by tenant; of the rest ``fragmented`` as far as it is in
        pieces, ``unexplained`` as far as waiting jobs that fit asked for it, else ``free``. ``excess_gpus`` is the
        most by which `taken` is above `installed` (0 where it never is) and ``excess_tick`` when that begins.
    """
    spans = [installed, taken, waiting, *(each.kept for each in reservations.values())]
    spans += [each.held for each in reservations.values()]
    edges = _edges(spans, hours * HOUR_TICKS, HOUR_TICKS)
    left = installed.level(edges) - taken.level(edges)
    excess = np.maximum(-left - TOLERANCE_GPUS, 0)
    left = np.maximum(left, 0)
    unused = {
        tenant: np.maximum(each.kept.level(edges) - each.held.level(edges), 0)
        for tenant, each in reservations.items()
    }
    asked = np.sum(list(unused.values()), axis=0) if unused else np.zeros_like(left)
    share = np.divide(np.minimum(asked, left), asked, out=np.zeros_like(left), where=asked > 0)
    left_over = left - np.minimum(asked, left)
    if pieces is None:
        in_pieces, asked_for = np.zeros_like(left), fitting(waiting, edges, left_over)
    else:
        in_pieces, asked_for = pieces.idle(edges, left_over)
    fragmented = np.minimum(in_pieces, left_over)
    unexplained = np.minimum(asked_for, left_over - fragmented)
    hour, length = edges[:-1] // HOUR_TICKS, np.diff(edges) / HOUR_TICKS

    def by_hour(level: np.ndarray) -> np.ndarray:
        return np.bincount(hour, level * length, minlength=hours)

    return PoolHours(
        free=by_hour(left_over - fragmented - unexplained),
        fragmented=by_hour(fragmented),
        unexplained=by_hour(unexplained),
        reserved={tenant: by_hour(level * share) for tenant, level in unused.items()},
        excess_gpus=float(excess.max()),
        excess_tick=int(edges[:-1][excess > 0].min(initial=edges[-1])),
    )


def fitting(waiting: Spans, edges: np.ndarray, left: np.ndarray) -> np.ndarray:
    """GPUs asked for by those of the waiting jobs that each ask for no more than is left.

    Parameters
    ----------
    waiting : Spans
        Jobs in the queue, with the GPUs that each asks for.
    edges, left : numpy.ndarray
        GPUs left between each edge and the next.

    Examples
    --------
    >>> two_and_eight = Spans(np.array([0, 0]), np.array([10, 10]), np.array([2.0, 8.0]))
    >>> fitting(two_and_eight, np.array([0, 10]), np.array([4.0]))
    array([2.])
    """
    queued = waiting.where(waiting.end > waiting.begin)
    total = np.zeros_like(left)
    for need in np.unique(queued.gpus):
        level = queued.where(queued.gpus == need).level(edges)
        total += np.where(left >= need - TOLERANCE_GPUS, level, 0.0)
    return total


def _edges(spans: list[Spans], length: int, step: int) -> np.ndarray:
    """All instants at which something changes, and every `step` from 0 to `length`."""
    changes = [edge for part in spans for edge in (part.begin, part.end)]
    return np.unique(np.concatenate([*changes, np.arange(0, length + 1, step)]))
