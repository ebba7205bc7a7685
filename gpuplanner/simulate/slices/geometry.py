"""The places of a board as the flat tables of the loop that cuts on demand."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpuplanner.hardware import GpuModel, MigProfile, driver_starts
from gpuplanner.simulate.slices.world import NONE, Floats, Ints


@dataclass(frozen=True, eq=False)
class Geometry:
    """Where instances of the profiles in use may be. Profile 0 is the whole GPU, which has no place.

    Parameters
    ----------
    starts : array of int, shape (n_profiles, most starts)
        Slices where an instance may begin, in the order in which the driver tries them, then ``NONE``.
    spans : array of int, shape (n_profiles,)
        Slices of an instance that begins at slice 0, as bits.
    open : array of int, shape (n_profiles, 2 ** n_slices)
        1 if the profile has a start left where some slices, the bits of the second index, are taken.
    loss : array of float, shape (2 ** n_slices,)
        Fragmentation: slices left that a profile has no start for, summed over profiles.
    takes : array of int, shape (n_profiles, n_resources)
        What an instance takes of engines, and of the number of instances allowed of its profile; resources that
        disjoint places can never exhaust are left out.
    budget : array of int, shape (n_resources,)
        What a GPU has of each.
    """

    starts: Ints
    spans: Ints
    open: Ints
    loss: Floats
    takes: Ints
    budget: Ints


@functools.lru_cache(maxsize=64)
def geometry(board: GpuModel, profiles: tuple[str, ...]) -> Geometry:
    """Tables for a board and the profiles in use, without the whole GPU.

    Examples
    --------
    >>> from gpuplanner.hardware import load_gpu_model
    >>> places = geometry(load_gpu_model("H100-80GB-SXM5"), ("1g.10gb", "3g.40gb"))
    >>> places.starts[2].tolist(), bin(places.spans[2]), len(places.budget)
    ([4, 0, -1, -1, -1, -1, -1], '0b1111', 0)
    >>> places.loss[[0, 0b1, 0b10001]].tolist()  # slice 7 is of no use to 1g; 3 slices beside, or 6, of none to 3g
    [1.0, 4.0, 7.0]
    """
    used = [board.profile(name) for name in profiles]
    starts = [driver_starts(board, profile) for profile in used]
    width = max(map(len, starts), default=1)
    masks = np.arange(1 << board.memory_slices)
    spans = [0, *((1 << profile.memory_slices) - 1 for profile in used)]
    opened = np.zeros((len(spans), len(masks)), np.int64)
    loss = np.zeros(len(masks))
    for number, begins in enumerate(starts, start=1):
        reach = np.zeros(len(masks), np.int64)
        for start in begins:
            span = spans[number] << start
            reach |= np.where(masks & span, 0, span)
        opened[number] = reach != 0
        loss += np.bitwise_count(masks[-1] & ~masks & ~reach)
    takes, budget = _scarce(board, used, starts)
    return Geometry(
        starts=np.array([[NONE] * width, *([*begins, *[NONE] * (width - len(begins))] for begins in starts)]),
        spans=np.array(spans),
        open=opened,
        loss=loss,
        takes=takes,
        budget=budget,
    )


def _scarce(board: GpuModel, used: list[MigProfile], starts: list[tuple[int, ...]]) -> tuple[Ints, Ints]:
    """What instances take of the resources that disjoint places could exhaust, and what there is of these."""
    engines = np.array([[profile.amount(name) or 0 for name in board.budget] for profile in used], np.int64)
    takes = np.hstack([engines.reshape(len(used), len(board.budget)), np.eye(len(used), dtype=np.int64)])
    budget = np.array([*board.budget.values(), *(profile.max_instances for profile in used)], np.int64)
    most = np.zeros(len(budget), np.int64)
    for counts in _disjoint(
        [(profile.memory_slices, begins) for profile, begins in zip(used, starts, strict=True)]
    ):
        most = np.maximum(most, counts @ takes)
    scarce = most > budget
    whole = np.zeros((1, int(scarce.sum())), np.int64)
    return np.vstack([whole, takes[:, scarce]]), budget[scarce]


def _disjoint(places: list[tuple[int, tuple[int, ...]]]) -> Iterator[Ints]:
    """Counts of each profile in every set of disjoint places, the empty one included."""
    counts = np.zeros(len(places), np.int64)

    def walk(lowest: int) -> Iterator[Ints]:
        yield counts
        for number, (size, begins) in enumerate(places):
            for start in begins:
                if start >= lowest:
                    counts[number] += 1
                    yield from walk(start + size)
                    counts[number] -= 1

    return walk(0)
