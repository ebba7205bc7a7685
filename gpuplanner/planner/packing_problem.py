"""Temporal bin packing: problem, arrays and result.

Only some moments matter. What is active just after a start can only be the largest set around it if some item
ends before the next start, so a packing that holds at these starts holds always [1]_.

A word has one field for each thing that a bin has a limit of, and a guard bit on top of each field. A load
begins at a bias such that a guard bit is set if and only if its field is above the limit. One addition and one
test thus check a plain size, or all memory slices and engines of a MIG board at once.

References
----------
.. [1] M. Dell'Amico, F. Furini, M. Iori, "A branch-and-price algorithm for the temporal bin packing problem",
   Computers & Operations Research 114, 2020, doi:10.1016/j.cor.2019.104825.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from gpuplanner.core.errors import ScenarioError, examples
from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.hardware.gpu_models import GpuModel, as_board

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
    gpu_model : GpuModel or str
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
    gpu_model: GpuModel

    def __post_init__(self) -> None:
        _set_times(self, self.starts, self.ends)
        gpu_model = as_board(self.gpu_model)
        if len(self.profiles) != len(self.starts):
            _refuse("profiles", f"one for each of {len(self.starts)} starts", str(len(self.profiles)))
        own = {name: name if name == WHOLE_GPU else gpu_model.profile(name).name for name in set(self.profiles)}
        object.__setattr__(self, "gpu_model", gpu_model)
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
    raise ScenarioError(f"packing: {what}", expected, got, f"Fix {what}.")


@dataclass(frozen=True, eq=False)
class Grid:
    """Items over numbered moments, each with one or more ways to sit in a bin.

    - ``low``, ``high``, shape (n_items,): Item j is active at moments ``low[j]`` to ``high[j] - 1``.
    - ``n_moments``: Number of moments.
    - ``first``, shape (n_items + 1,): The ways of item j are ``first[j]`` to ``first[j + 1] - 1``.
    - ``words``, shape (n_ways,): What a way takes.
    - ``places``, shape (n_ways,): Start slice of a way; 0 for plain sizes.
    - ``bias``, ``guard``, ``fill``: Word of an empty bin, guard bits, and mask of the field by which bins count as
      full.
    """

    low: Integers
    high: Integers
    n_moments: int
    first: Integers
    words: Integers
    places: Integers
    bias: int
    guard: int
    fill: int

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.low)

    @property
    def lives(self) -> Integers:
        """Moments that each item is active at, shape (n_items,)."""
        return self.high - self.low


def as_grid(problem: AnyProblem, moments: Integers | None = None) -> Grid:
    """Number the moments of a problem and turn sizes into words.

    Examples
    --------
    >>> grid = as_grid(PackingProblem([0, 1, 6], [5, 9, 9], [60, 50, 40], 100))
    >>> grid.n_moments, grid.low.tolist(), grid.high.tolist()
    (2, [0, 0, 1], [1, 2, 2])
    """
    if moments is None:
        moments = moments_that_matter(problem.starts, problem.ends)
    fields = _Fields()
    if isinstance(problem, MigPackingProblem):
        first, words, places = _instances(problem, fields)
    else:
        size = fields.add("size", problem.capacity)
        first = np.arange(problem.n_items + 1, dtype=np.int64)
        words, places = problem.sizes << size, np.zeros(problem.n_items, dtype=np.int64)
    low, high = (np.searchsorted(moments, times).astype(np.int64) for times in (problem.starts, problem.ends))
    return Grid(low, high, len(moments), first, words, places, fields.bias, fields.guard, fields.fill)


def moments_that_matter(starts: Integers, ends: Integers) -> Integers:
    """Distinct starts after which some item ends before the next start.

    Examples
    --------
    >>> moments_that_matter(np.array([0, 1, 6]), np.array([5, 9, 9])).tolist()
    [1, 6]
    """
    distinct, stops = np.unique(starts), np.unique(ends)
    following = np.append(distinct[1:], stops[-1])
    next_end = stops[np.searchsorted(stops, distinct, side="right")]
    return distinct[next_end <= following]


class _Fields:
    """Lays out the fields of a word, the lowest first; the first one says how full a bin is."""

    def __init__(self) -> None:
        self.width = 0
        self.bias = self.guard = self.fill = 0

    def add(self, name: str, limit: int) -> int:
        """Reserve a field with a limit, and return its lowest bit."""
        bits = limit.bit_length()
        at = self.width
        self.bias |= ((1 << bits) - 1 - limit) << at
        self.guard |= 1 << (at + bits)
        self.fill = self.fill or (1 << (at + bits + 1)) - 1
        self.width += bits + 1
        if self.width > 62:
            where = f"packing: limits of one bin, at {name}"
            expected = "at most 62 bits for all of them"
            raise ScenarioError(where, expected, f"{self.width}", "Name fewer profiles.")
        return at


def _instances(problem: MigPackingProblem, fields: _Fields) -> tuple[Integers, Integers, Integers]:
    """Ways of every item: one for each start slice of its profile."""
    gpu_model = problem.gpu_model
    ways = _ways(gpu_model, sorted(set(problem.profiles)), fields)
    counts = np.array([len(ways[name]) for name in problem.profiles])
    first = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    pairs = [pair for name in problem.profiles for pair in ways[name]]
    places, words = np.array(pairs, dtype=np.int64).T
    return first, np.ascontiguousarray(words), np.ascontiguousarray(places)


def _ways(gpu_model: GpuModel, names: list[str], fields: _Fields) -> Mapping[str, list[tuple[int, int]]]:
    """Start slice and word of every way to place each profile, in the driver's order of trying."""
    from gpuplanner.hardware.mig_layouts import driver_starts

    memory = fields.add("memory slices", gpu_model.memory_slices)
    slices = [fields.add(f"memory slice {place}", 1) for place in range(gpu_model.memory_slices)]
    engines = {
        resource: fields.add(resource, limit)
        for resource, limit in gpu_model.budget.items()
        if any(name != WHOLE_GPU and gpu_model.profile(name).amount(resource) for name in names)
    }
    ways: dict[str, list[tuple[int, int]]] = {}
    for name in names:
        if name == WHOLE_GPU:
            ways[name] = [(0, (gpu_model.memory_slices << memory) | sum(1 << bit for bit in slices))]
            continue
        profile = gpu_model.profile(name)
        word = profile.memory_slices << memory
        for resource, bit in engines.items():
            word += (profile.amount(resource) or 0) << bit
        if profile.max_instances < gpu_model.memory_slices // profile.memory_slices:
            word += 1 << fields.add(f"instances of {name}", profile.max_instances)
        ways[name] = [
            (start, word + sum(1 << bit for bit in slices[start : start + profile.memory_slices]))
            for start in driver_starts(gpu_model, profile)
        ]
    return ways


STOPS = ("proof", "time_limit", "work_limit", "user")
"""Why a search ended: bins and bound met; the time was up; the work was done; somebody pressed Ctrl-C."""


@dataclass(frozen=True, eq=False, repr=False)
class Packing:
    """Items in bins, with the proof of how good it is.

    Parameters
    ----------
    bins : int
        Bins in use.
    lower_bound : int
        No packing has fewer.
    assignment : ndarray of int, shape (n_items,)
        Bin of each item, from 0 to ``bins - 1``.
    places : ndarray of int or None, shape (n_items,)
        Start slice of each MIG instance for its whole life; None for plain sizes.
    stopped_by : str
        One of :data:`STOPS`; ``proof`` where the bound on what was asked for, bins or cost, was met.
    seconds : float
        Time that the search took [s].

    Examples
    --------
    >>> import numpy as np
    >>> found = Packing(4, 3, np.array([0, 1, 2, 3]), None, "time_limit", 5.0)
    >>> found.gap, found.proven
    (0.25, False)
    """

    bins: int
    lower_bound: int
    assignment: Integers
    places: Integers | None
    stopped_by: str
    seconds: float

    def __repr__(self) -> str:
        proof = "proven" if self.proven else f"at least {self.lower_bound}"
        return f"<Packing: {self.bins} bins, {proof}, {len(self.assignment)} items>"

    @property
    def gap(self) -> float:
        """How many of the bins may be too many, as a share: (bins - lower_bound) / bins."""
        return (self.bins - self.lower_bound) / self.bins

    @property
    def proven(self) -> bool:
        """Whether no packing has fewer bins."""
        return self.bins == self.lower_bound

    def to_dict(self) -> dict[str, Any]:
        """What there is to say about it in short."""
        return {name: getattr(self, name) for name in ("bins", "lower_bound", "gap", "proven", "seconds")}

    def to_frame(self) -> pl.DataFrame:
        """One row an item: its number, its bin, and the start slice on MIG boards.

        Examples
        --------
        >>> import numpy as np
        >>> Packing(1, 1, np.array([0, 0]), None, "proof", 0.1).to_frame().rows()
        [(0, 0), (1, 0)]
        """
        columns = {"item": np.arange(len(self.assignment)), "bin": self.assignment}
        return pl.DataFrame(columns if self.places is None else columns | {"start_slice": self.places})


@dataclass(frozen=True, eq=False)
class CostedPacking:
    """A packing under a cost of bins, fire-ups and time on.

    Parameters
    ----------
    packing : Packing
        The packing; its own bound is on the number of bins alone.
    cost, bound : float
        Its cost, and what no packing undercuts.
    fire_ups : int
        Changes of a bin from empty to used.
    busy_time : int
        Total time that bins are on, in the problem's unit.
    """

    packing: Packing
    cost: float
    bound: float
    fire_ups: int
    busy_time: int

    @property
    def gap(self) -> float:
        """(cost - bound) / cost; 0 if it costs nothing."""
        return (self.cost - self.bound) / self.cost if self.cost > self.bound else 0.0

    @property
    def proven(self) -> bool:
        """Whether no packing costs less, to a part in a million million."""
        return self.cost <= self.bound * (1 + 1e-12)

    def to_dict(self) -> dict[str, Any]:
        """What there is to say about it in short; `lower_bound` is on the bins, `bound` on the cost."""
        own = ("cost", "bound", "gap", "proven", "fire_ups", "busy_time")
        of_packing = ("bins", "lower_bound", "seconds")
        packed = {name: getattr(self.packing, name) for name in of_packing}
        return {name: getattr(self, name) for name in own} | packed
