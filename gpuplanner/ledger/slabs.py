"""Time cut into slabs that hold few events each, so that a sweep over any number of jobs fits into the cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from gpuplanner.intervals import HOUR_TICKS

EVENTS = 1 << 17
"""Beginnings and ends that a slab holds at most, unless a single hour has more."""


class Slabs:
    """Whole clock hours, put together to slabs of about :data:`EVENTS` events.

    - ``hours``: Length of the time in hours.
    - ``instants``: Events in ticks, from 0 to the end of the last hour. Those at the very end fall into no slab.

    Examples
    --------
    >>> slabs = Slabs(3, [np.array([0, 2 * HOUR_TICKS])])
    >>> len(slabs), slabs.hours(0)
    (1, (0, 3))
    """

    def __init__(self, hours: int, instants: Iterable[np.ndarray]) -> None:
        counts = np.zeros(hours + 1, dtype=np.int64)
        for ticks in instants:
            counts += np.bincount(ticks // HOUR_TICKS, minlength=hours + 1)
        before = np.cumsum(counts) - counts
        last = np.r_[True, np.diff(before[:hours] // EVENTS) > 0]
        self._borders = np.append(np.flatnonzero(last), hours)
        number = np.append(np.cumsum(last) - 1, len(self._borders) - 1)
        self._slab_of_hour = number.astype(np.min_scalar_type(int(number[-1])))

    def __len__(self) -> int:
        return len(self._borders) - 1

    def hours(self, slab: int) -> tuple[int, int]:
        """First hour of a slab, and the first behind it."""
        return int(self._borders[slab]), int(self._borders[slab + 1])

    def edges(self, slab: int, instants: Iterable[np.ndarray]) -> np.ndarray:
        """Sorted instants of a slab at which something changes, with all its clock hours and its end."""
        first, end = self.hours(slab)
        # Forty times as fast as numpy.unique, which puts whole numbers into a hash table since numpy 2.3.
        ticks = np.sort(np.concatenate([*instants, np.arange(first, end + 1) * HOUR_TICKS]))
        return np.asarray(ticks[np.append(True, np.diff(ticks) > 0)])

    def by_hour(self, slab: int, edges: np.ndarray, level: np.ndarray) -> np.ndarray:
        """Level x time of each hour of a slab, in hours; the level holds from each edge to the next."""
        first, end = self.hours(slab)
        return np.bincount(
            edges[:-1] // HOUR_TICKS - first, level * (np.diff(edges) / HOUR_TICKS), minlength=end - first
        )

    def parted(self, ticks: np.ndarray) -> list[np.ndarray]:
        """Numbers of the events in each slab, in their own order."""
        # Sorting numbers of 16 bits is linear, and stable: sums of floats keep their order.
        slab = self._slab_of_hour[ticks // HOUR_TICKS]
        order = np.argsort(slab, kind="stable").astype(np.uint32)
        ends = np.cumsum(np.bincount(slab, minlength=len(self) + 1))
        return np.split(order, ends)[: len(self)]


class Changes:
    """Beginnings and ends of intervals ``[begin, end)``, in ticks, slab by slab."""

    def __init__(self, begin: np.ndarray, end: np.ndarray, slabs: Slabs) -> None:
        self._begin, self._end = begin, end
        self.begins, self.ends = slabs.parted(begin), slabs.parted(end)

    def instants(self, slab: int) -> tuple[np.ndarray, np.ndarray]:
        """Where intervals begin, and where they end, in a slab."""
        return self._begin[self.begins[slab]], self._end[self.ends[slab]]


class Steps(Changes):
    """Level of a sum of intervals, slab by slab.

    - ``begin``, ``end``: Intervals ``[begin, end)`` in ticks.
    - ``weight``: Height of each.
    - ``slabs``: Slabs of the time.
    """

    def __init__(self, begin: np.ndarray, end: np.ndarray, weight: np.ndarray, slabs: Slabs) -> None:
        super().__init__(begin, end, slabs)
        self._weight, self._level = weight, 0.0

    def level(self, slab: int, edges: np.ndarray) -> np.ndarray:
        """Sum of the weights between each edge of a slab and the next; slabs must be asked for in order."""
        change = np.zeros(len(edges))
        begin, end = self.instants(slab)
        np.add.at(change, np.searchsorted(edges, begin), self._weight[self.begins[slab]])
        np.subtract.at(change, np.searchsorted(edges, end), self._weight[self.ends[slab]])
        level = running_sum(change, self._level)
        self._level = float(level[-1])
        return level


class Kinds(Changes):
    """How many intervals of each of several kinds there are at a time, slab by slab.

    - ``begin``, ``end``: Intervals ``[begin, end)`` in ticks.
    - ``kind``: Kind of each, from 0 to `kinds` - 1.
    - ``kinds``: Number of kinds.
    - ``slabs``: Slabs of the time.
    """

    def __init__(
        self, begin: np.ndarray, end: np.ndarray, kind: np.ndarray, kinds: int, slabs: Slabs
    ) -> None:
        super().__init__(begin, end, slabs)
        self._kind, self._count = kind, np.zeros(kinds)

    def counts(self, slab: int, edges: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Kinds of which there is any in a slab, in order: number of the kind, intervals between the edges."""
        begins, ends = self.begins[slab], self.ends[slab]
        kind = np.concatenate([self._kind[begins], self._kind[ends]])
        place = np.searchsorted(edges, np.concatenate(self.instants(slab)))
        sign = np.repeat([1.0, -1.0], [len(begins), len(ends)])
        order = np.argsort(kind, kind="stable")
        borders = np.searchsorted(kind[order], np.arange(len(self._count) + 1))
        for number in np.flatnonzero((self._count > 0) | (np.diff(borders) > 0)):
            mine = order[borders[number] : borders[number + 1]]
            change = np.bincount(place[mine], sign[mine], minlength=len(edges))
            count = running_sum(change, self._count[number])
            self._count[number] = count[-1]
            if count.any():  # not where all of them end as they begin
                yield int(number), count


def running_sum(change: np.ndarray, begin: float) -> np.ndarray:
    """Level after each change but the last, from a level before the first.

    Examples
    --------
    >>> running_sum(np.array([1.0, 2.0, 0.0]), 4.0)
    array([5., 7.])
    """
    change[0] += begin
    return np.asarray(np.cumsum(change)[:-1])
