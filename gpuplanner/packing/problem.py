"""The question: jobs with a start, an end and a size, and bins of one capacity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuplanner.errors import ScenarioError, examples, message
from gpuplanner.hardware.gpu import GpuModel, as_board
from gpuplanner.schemas.vocabulary import WHOLE_GPU

Integers: TypeAlias = NDArray[np.int64]

LARGEST = 2**31 - 1
"""Largest capacity, and largest instant: what keeps every sum of the bounds exact in 64 bits."""

MAX_ITEMS = 50_000
"""More items than this are refused."""


@dataclass(frozen=True, eq=False)
class PackingProblem:
    """Items that each need one bin from their start to their end; a bin holds `capacity` at every moment.

    An item is active in [start, end): one that ends at t does not meet one that starts at t.

    Parameters
    ----------
    starts, ends : sequence of int, shape (n_items,)
        Instants, in any unit; an item lasts at least one unit.
    sizes : sequence of int, shape (n_items,)
        At least 1 and at most the capacity.
    capacity : int
        Capacity of a bin.

    Raises
    ------
    ScenarioError
        If lengths differ or a value makes no sense; the message names the items.

    Examples
    --------
    >>> PackingProblem([0, 0, 5], [5, 9, 9], [60, 50, 40], capacity=100).n_items
    3
    """

    starts: Integers
    ends: Integers
    sizes: Integers
    capacity: int

    def __post_init__(self) -> None:
        _set_times(self, self.starts, self.ends)
        object.__setattr__(self, "sizes", _whole("sizes", self.sizes, len(self.starts)))
        capacity = self.capacity
        if isinstance(capacity, bool) or not isinstance(capacity, int | np.integer):
            _refuse("capacity", "a whole number", repr(capacity))
        if not 1 <= capacity <= LARGEST:
            _refuse("capacity", f"from 1 to {LARGEST}", repr(capacity))
        object.__setattr__(self, "capacity", int(capacity))
        wrong = np.flatnonzero((self.sizes < 1) | (self.sizes > capacity))
        if wrong.size:
            got = f"{wrong.size} others, at items {examples(wrong.tolist())}: {examples(self.sizes[wrong].tolist())}"
            _refuse("sizes", f"from 1 to the capacity {capacity}", got)

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.starts)


@dataclass(frozen=True, eq=False)
class MigPackingProblem:
    """Items that each ask for one MIG instance; a bin is one GPU of the board.

    An instance cannot move while its job runs: a packing gives each item one start slice for its whole life,
    and the instances that are active together must be a layout that the board can hold.

    Parameters
    ----------
    starts, ends : sequence of int, shape (n_items,)
        Instants; an item is active in [start, end).
    profiles : sequence of str, shape (n_items,)
        MIG profile of each item, or ``"gpu"`` for a GPU that is not cut.
    board : GpuModel or str
        The board; a unique prefix of its name will do.

    Raises
    ------
    ScenarioError
        If lengths differ or an instant makes no sense.
    GeometryError
        If the board or a profile is unknown.

    Examples
    --------
    >>> MigPackingProblem([0, 0], [4, 9], ["3g.39gb", "gpu"], "A100-80GB").profiles
    ('3g.40gb', 'gpu')
    """

    starts: Integers
    ends: Integers
    profiles: tuple[str, ...]
    board: GpuModel

    def __post_init__(self) -> None:
        _set_times(self, self.starts, self.ends)
        board = as_board(self.board)
        if len(self.profiles) != len(self.starts):
            _refuse("profiles", f"one for each of {len(self.starts)} starts", str(len(self.profiles)))
        own = {name: name if name == WHOLE_GPU else board.profile(name).name for name in set(self.profiles)}
        object.__setattr__(self, "board", board)
        object.__setattr__(self, "profiles", tuple(own[name] for name in self.profiles))

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.starts)


AnyProblem: TypeAlias = PackingProblem | MigPackingProblem


def _set_times(problem: AnyProblem, starts: ArrayLike, ends: ArrayLike) -> None:
    object.__setattr__(problem, "starts", first := _whole("starts", starts, None))
    object.__setattr__(problem, "ends", last := _whole("ends", ends, len(first)))
    if not 1 <= len(first) <= MAX_ITEMS:
        _refuse("items", f"from 1 to {MAX_ITEMS}", str(len(first)))
    wrong = np.flatnonzero((last <= first) | (np.abs(first) > LARGEST) | (np.abs(last) > LARGEST))
    if wrong.size:
        got = f"{wrong.size} others, at items {examples(wrong.tolist())}"
        _refuse("starts and ends", f"end > start and both of at most {LARGEST}", got)


def _whole(name: str, values: ArrayLike | Sequence[int], length: int | None) -> Integers:
    """A read-only copy as whole numbers."""
    given = np.array(values)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        _refuse(name, "a list of whole numbers", f"{given.dtype} of shape {given.shape}")
    if length is not None and len(given) != length:
        _refuse(name, f"one for each of {length} starts", str(len(given)))
    if given.dtype == np.uint64 and given.size and given.max() > LARGEST:
        _refuse(name, f"at most {LARGEST}", str(given.max()))
    whole = given.astype(np.int64)
    whole.setflags(write=False)
    return whole


def _refuse(what: str, expected: str, got: str) -> NoReturn:
    raise ScenarioError(message(f"packing: {what}", expected, got, "Mend the problem."))
