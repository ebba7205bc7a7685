"""All that the GPUs of a small fleet can have, listed level by level."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuplanner.planner.fluid import Fluid
from gpuplanner.planner.problem import Counts, Floats

_LARGEST_KEY = 2**62


@dataclass(frozen=True, eq=False)
class Lattice:
    """Vectors of GPUs by layout; with a vector, every one that has fewer GPUs of some layout is there as well.

    Parameters
    ----------
    cut : ndarray of bool, shape (n_layouts,)
        Whether a GPU with the layout is cut. Whole GPUs come last where no layout of the problem is whole.
    vectors : ndarray of int, shape (n, n_layouts)
        GPUs by layout, by number of GPUs.
    levels : list of slice
        Rows with equal numbers of GPUs, fewest first.
    below : ndarray of int, shape (n_layouts, n)
        Row of the vector with one GPU less of the layout; -1 where there is none to take away.
    """

    cut: NDArray[np.bool_]
    vectors: Counts
    levels: list[slice]
    below: Counts

    @classmethod
    def of(cls, fluid: Fluid, most: int) -> Lattice | None:
        """List what GPUs may have in an optimal plan; None if that is more than a number of vectors.

        Never more GPUs need have a layout than had it at first, or than are of use with it in some slot: a GPU
        takes a layout up when it is on with it, and only if no idle one has it.
        """
        caps, cut = _caps(fluid), fluid.cut
        if cut.all() and fluid.mode_cost:
            caps, cut = np.append(caps, fluid.problem.gpus), np.append(cut, values=False)
        radix = np.concatenate([[1], np.cumprod((caps + 1).astype(object))])
        if radix[-1] >= _LARGEST_KEY:
            return None
        steps = radix[:-1].astype(np.int64)
        keys, found = np.zeros(1, dtype=np.int64), [np.zeros(1, dtype=np.int64)]
        while len(keys) and len(steps):
            vectors = keys[:, None] // steps % (caps + 1)
            more = [
                keys[(vectors[:, i] < cap) & _has_room(fluid, vectors, cut, i)] + step
                for i, (cap, step) in enumerate(zip(caps.tolist(), steps.tolist(), strict=True))
            ]
            keys = np.unique(np.concatenate(more))
            if sum(map(len, found)) + len(keys) > most:
                return None
            if len(keys):
                found.append(keys)
        return cls._linked(cut, found, steps, caps)

    @classmethod
    def _linked(cls, cut: NDArray[np.bool_], found: list[Counts], steps: Counts, caps: Counts) -> Lattice:
        ends = np.cumsum([0, *map(len, found)]).tolist()
        every = np.concatenate(found)
        vectors = every[:, None] // steps % (caps + 1)
        below = np.full((len(steps), len(every)), -1)
        for level, (first, keys) in enumerate(zip(ends[1:], found[1:], strict=False), 1):
            rows = slice(first, first + len(keys))
            for layout, step in enumerate(steps.tolist()):
                there = vectors[rows, layout] > 0
                place = ends[level - 1] + np.searchsorted(found[level - 1], keys[there] - step)
                below[layout, first + np.flatnonzero(there)] = place
        return cls(cut, vectors, [slice(*pair) for pair in itertools.pairwise(ends)], below)

    def least_within(
        self, values: Floats, layouts: Sequence[int] | slice = slice(None)
    ) -> tuple[Floats, Counts]:
        """Least value of any vector that has no more of some layouts, and as much of others, and its row."""
        best, at = values.copy(), np.arange(len(values))
        for level in self.levels:
            for below in self.below[layouts, level]:
                there = np.flatnonzero(below >= 0)
                rows, down = level.start + there, below[there]
                better = best[down] < best[rows]
                best[rows[better]], at[rows[better]] = best[down[better]], at[down[better]]
        return best, at

    def nearest(self, values: Floats, prices: Floats) -> Floats:
        """Least value of any vector and of the way from it, where taking away is free and each GPU more is paid."""
        cost = values.copy()
        for level in reversed(self.levels):
            for below in self.below[:, level]:
                there = below >= 0
                down = below[there]
                cost[down] = np.minimum(cost[down], cost[level][there])
        for level in self.levels:
            best = cost[level]
            for below, price in zip(self.below[:, level], prices.tolist(), strict=True):
                np.minimum(best, np.where(below >= 0, cost[below], np.inf) + price, out=best)
        return cost


def _has_room(fluid: Fluid, vectors: Counts, cut: NDArray[np.bool_], layout: int) -> NDArray[np.bool_]:
    """Whether one GPU more may have a layout."""
    room: NDArray[np.bool_] = vectors.sum(axis=1) < fluid.problem.gpus
    if cut[layout]:
        room &= vectors[:, cut].sum(axis=1) < fluid.most_cut
    return room


def _caps(fluid: Fluid) -> Counts:
    """Most GPUs that need have each layout."""
    asked = np.array(
        [fluid.demanded[:, steps.profile] @ steps.width for steps in fluid.steps], dtype=np.int64
    ).reshape(len(fluid.steps), len(fluid.demanded))
    useful = np.where(fluid.cover > 0, -(-asked[:, :, None] // fluid.cover.clip(1)), 0).max(axis=(0, 1))
    caps = np.maximum(useful, fluid.on(fluid.pinned)).astype(np.int64)
    if fluid.initial is not None:
        caps[fluid.cut] = np.maximum(caps[fluid.cut], fluid.held(fluid.initial))
    caps[~fluid.cut] = fluid.problem.gpus
    capped: Counts = np.minimum(caps, fluid.problem.gpus)
    return capped
