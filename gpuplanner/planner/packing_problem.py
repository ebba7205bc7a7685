"""Temporal bin packing: problem, arrays for compiled code, and result.

Only some moments matter. The items active just after a start can be a largest set only if some item ends before the
next start, so a packing that is feasible at these starts is always feasible [1]_.

The load of a bin is a word with one field for each limit of the bin, and a guard bit on top of each field. An empty
bin starts at a bias such that a guard bit is set if and only if its field exceeds the limit. One addition and one test
thus check a plain size, or all memory slices and engines of a MIG GPU at once.

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
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.hardware.gpu_models import GpuModel, as_gpu_model

Integers: TypeAlias = NDArray[np.int64]
"""Array of whole numbers."""

MAX_PACKING_INTEGER = 2**31 - 1
"""Largest capacity and largest instant: keeps every sum of the bounds exact in 64 bits."""

MAX_PACKING_ITEMS = 50_000
"""Most items of a packing problem."""


@dataclass(frozen=True, eq=False)
class PackingProblem:
    """Temporal bin packing: each item needs one bin from its start to its end; a bin holds `capacity` at every moment.

    An item is active in [start, end): an item that ends at t does not overlap one that starts at t.

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
        If lengths differ or a value is invalid; the message names the items.

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
        object.__setattr__(self, "sizes", _as_whole_numbers("sizes", self.sizes, len(self.starts)))
        capacity = self.capacity
        if isinstance(capacity, bool) or not isinstance(capacity, int | np.integer):
            _raise_packing_error("capacity", "a whole number", repr(capacity))
        if not 1 <= capacity <= MAX_PACKING_INTEGER:
            _raise_packing_error("capacity", f"from 1 to {MAX_PACKING_INTEGER}", repr(capacity))
        object.__setattr__(self, "capacity", int(capacity))
        wrong = np.flatnonzero((self.sizes < 1) | (self.sizes > capacity))
        if wrong.size:
            got = f"{wrong.size} others, at items {examples(wrong.tolist())}: {examples(self.sizes[wrong].tolist())}"
            _raise_packing_error("sizes", f"from 1 to the capacity {capacity}", got)

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.starts)


@dataclass(frozen=True, eq=False)
class MigPackingProblem:
    """Temporal packing of MIG instances: each item needs one instance; a bin is one GPU.

    An instance cannot move while its job runs: a packing gives each item one start slice for its whole life, and the
    instances that are active together must be a layout that the GPU model can have.

    Parameters
    ----------
    starts, ends : sequence of int, shape (n_items,)
        Instants; an item is active in [start, end).
    profiles : sequence of str, shape (n_items,)
        MIG profile of each item, or ``"gpu"`` for a full GPU.
    gpu_model : GpuModel or str
        The GPU model; a unique prefix of its name will do.

    Raises
    ------
    ScenarioError
        If lengths differ or an instant is invalid.
    GeometryError
        If the GPU model or a profile is unknown.

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
        gpu_model = as_gpu_model(self.gpu_model)
        if len(self.profiles) != len(self.starts):
            _raise_packing_error("profiles", f"one for each of {len(self.starts)} starts", str(len(self.profiles)))
        canonical_names = {
            name: name if name == FULL_GPU else gpu_model.profile(name).name for name in set(self.profiles)
        }
        object.__setattr__(self, "gpu_model", gpu_model)
        object.__setattr__(self, "profiles", tuple(canonical_names[name] for name in self.profiles))

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.starts)


AnyPackingProblem: TypeAlias = PackingProblem | MigPackingProblem
"""Either kind of packing problem."""


def _set_times(problem: AnyPackingProblem, starts: ArrayLike, ends: ArrayLike) -> None:
    """Check starts and ends of a problem, and store them as read-only arrays."""
    object.__setattr__(problem, "starts", first := _as_whole_numbers("starts", starts, None))
    object.__setattr__(problem, "ends", last := _as_whole_numbers("ends", ends, len(first)))
    if not 1 <= len(first) <= MAX_PACKING_ITEMS:
        _raise_packing_error("items", f"from 1 to {MAX_PACKING_ITEMS}", str(len(first)))
    wrong = np.flatnonzero(
        (last <= first) | (np.abs(first) > MAX_PACKING_INTEGER) | (np.abs(last) > MAX_PACKING_INTEGER)
    )
    if wrong.size:
        got = f"{wrong.size} others, at items {examples(wrong.tolist())}"
        _raise_packing_error("starts and ends", f"end > start and both of at most {MAX_PACKING_INTEGER}", got)


def _as_whole_numbers(name: str, values: ArrayLike | Sequence[int], length: int | None) -> Integers:
    """Copy values to a read-only array of whole numbers, or raise a ScenarioError."""
    array = np.array(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        _raise_packing_error(name, "a list of whole numbers", f"{array.dtype} of shape {array.shape}")
    if length is not None and len(array) != length:
        _raise_packing_error(name, f"one for each of {length} starts", str(len(array)))
    if array.dtype == np.uint64 and array.size and array.max() > MAX_PACKING_INTEGER:
        _raise_packing_error(name, f"at most {MAX_PACKING_INTEGER}", str(array.max()))
    integers = array.astype(np.int64)
    integers.setflags(write=False)
    return integers


def _raise_packing_error(item_name: str, expected: str, got: str) -> NoReturn:
    """Raise a ScenarioError on an argument of a packing problem."""
    raise ScenarioError(f"packing: {item_name}", expected, got, f"Fix {item_name}.")


@dataclass(frozen=True, eq=False)
class PackingGrid:
    """Items over moments (numbered instants), each with one or more possible placements in a bin, for compiled code.

    - ``low``, ``high``, shape (n_items,): Item j is active at moments ``low[j]`` to ``high[j] - 1``.
    - ``n_moments``: Number of moments.
    - ``first``, shape (n_items + 1,): The placements of item j are ``first[j]`` to ``first[j + 1] - 1``.
    - ``words``, shape (n_placements,): Word that a placement adds to the load of its bin.
    - ``places``, shape (n_placements,): Start slice of a placement; 0 for plain sizes.
    - ``bias``, ``guard``, ``fill``: Load word of an empty bin, mask of the guard bits, and mask of the field that
      measures how full a bin is.
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
    def durations(self) -> Integers:
        """Number of moments at which each item is active, shape (n_items,)."""
        return self.high - self.low


def build_packing_grid(problem: AnyPackingProblem, moments: Integers | None = None) -> PackingGrid:
    """Number the relevant instants (moments) of a problem, and convert item sizes to packed words.

    Parameters
    ----------
    problem : PackingProblem or MigPackingProblem
        The problem.
    moments : ndarray of int, optional
        Instants of the moments, ascending; those of :func:`list_relevant_moments` if None.

    Examples
    --------
    >>> grid = build_packing_grid(PackingProblem([0, 1, 6], [5, 9, 9], [60, 50, 40], 100))
    >>> grid.n_moments, grid.low.tolist(), grid.high.tolist()
    (2, [0, 0, 1], [1, 2, 2])
    """
    if moments is None:
        moments = list_relevant_moments(problem.starts, problem.ends)
    fields = _WordFields()
    if isinstance(problem, MigPackingProblem):
        first, words, places = _item_placements(problem, fields)
    else:
        size = fields.add_field("size", problem.capacity)
        first = np.arange(problem.n_items + 1, dtype=np.int64)
        words, places = problem.sizes << size, np.zeros(problem.n_items, dtype=np.int64)
    low, high = (np.searchsorted(moments, times).astype(np.int64) for times in (problem.starts, problem.ends))
    return PackingGrid(low, high, len(moments), first, words, places, fields.bias, fields.guard, fields.fill)


def list_relevant_moments(starts: Integers, ends: Integers) -> Integers:
    """Return the distinct starts after which some item ends before the next start, ascending.

    Examples
    --------
    >>> list_relevant_moments(np.array([0, 1, 6]), np.array([5, 9, 9])).tolist()
    [1, 6]
    """
    distinct, stops = np.unique(starts), np.unique(ends)
    following = np.append(distinct[1:], stops[-1])
    next_end = stops[np.searchsorted(stops, distinct, side="right")]
    return distinct[next_end <= following]


class _WordFields:
    """Bit fields of the word that holds the load of a bin, the lowest first; the first measures how full a bin is."""

    def __init__(self) -> None:
        self.width = 0
        self.bias = self.guard = self.fill = 0

    def add_field(self, name: str, limit: int) -> int:
        """Reserve a field with a limit, and return its lowest bit."""
        bits = limit.bit_length()
        lowest_bit = self.width
        self.bias |= ((1 << bits) - 1 - limit) << lowest_bit
        self.guard |= 1 << (lowest_bit + bits)
        self.fill = self.fill or (1 << (lowest_bit + bits + 1)) - 1
        self.width += bits + 1
        if self.width > 62:
            context = f"packing: limits of one bin, at {name}"
            expected = "at most 62 bits for all of them"
            raise ScenarioError(context, expected, f"{self.width}", "Name fewer profiles.")
        return lowest_bit


def _item_placements(problem: MigPackingProblem, fields: _WordFields) -> tuple[Integers, Integers, Integers]:
    """Return first placement of every item, and word and start slice of every placement, one for each start slice."""
    gpu_model = problem.gpu_model
    placements = _placements_by_profile(gpu_model, sorted(set(problem.profiles)), fields)
    counts = np.array([len(placements[name]) for name in problem.profiles])
    first = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    pairs = [pair for name in problem.profiles for pair in placements[name]]
    places, words = np.array(pairs, dtype=np.int64).T
    return first, np.ascontiguousarray(words), np.ascontiguousarray(places)


def _placements_by_profile(
    gpu_model: GpuModel, names: list[str], fields: _WordFields
) -> Mapping[str, list[tuple[int, int]]]:
    """Return start slice and word of every placement of each profile, in the order in which the driver tries them."""
    from gpuplanner.hardware.mig_layouts import order_driver_starts

    memory = fields.add_field("memory slices", gpu_model.memory_slices)
    slices = [
        fields.add_field(f"memory slice {slice_position}", 1) for slice_position in range(gpu_model.memory_slices)
    ]
    engines = {
        resource: fields.add_field(resource, limit)
        for resource, limit in gpu_model.budget.items()
        if any(name != FULL_GPU and gpu_model.profile(name).amount(resource) for name in names)
    }
    placements: dict[str, list[tuple[int, int]]] = {}
    for name in names:
        if name == FULL_GPU:
            placements[name] = [(0, (gpu_model.memory_slices << memory) | sum(1 << bit for bit in slices))]
            continue
        profile = gpu_model.profile(name)
        word = profile.memory_slices << memory
        for resource, bit in engines.items():
            word += (profile.amount(resource) or 0) << bit
        if profile.max_instances < gpu_model.memory_slices // profile.memory_slices:
            word += 1 << fields.add_field(f"instances of {name}", profile.max_instances)
        placements[name] = [
            (start, word + sum(1 << bit for bit in slices[start : start + profile.memory_slices]))
            for start in order_driver_starts(gpu_model, profile)
        ]
    return placements


PACKING_STOP_REASONS = ("proof", "time_limit", "work_limit", "user")
"""Why a packing search ended: number of bins and lower bound met; time limit; work limit; Ctrl-C."""


@dataclass(frozen=True, eq=False, repr=False)
class Packing:
    """Items in bins, with a lower bound on the number of bins.

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
        One of :data:`PACKING_STOP_REASONS`; ``proof`` if the bound on bins or cost, whichever was requested, was met.
    seconds : float
        Run time of the search. [s]

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
        """(bins - lower_bound) / bins [0-1]."""
        return (self.bins - self.lower_bound) / self.bins

    @property
    def proven(self) -> bool:
        """Whether no packing has fewer bins."""
        return self.bins == self.lower_bound

    def to_dict(self) -> dict[str, Any]:
        """Convert bins, lower bound, gap, proof and run time to plain values for JSON."""
        return {name: getattr(self, name) for name in ("bins", "lower_bound", "gap", "proven", "seconds")}

    def to_frame(self) -> pl.DataFrame:
        """Return one row an item: its number, its bin, and on MIG GPUs its start slice.

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
    """A packing with its cost of bins, fire-ups and time on.

    Parameters
    ----------
    packing : Packing
        The packing; its own lower bound is on the number of bins alone.
    cost, bound : float
        Its cost, and a lower bound on the cost of all packings.
    fire_ups : int
        Changes of a bin from empty to used.
    busy_time : int
        Total time that bins are in use, in the unit of the problem.
    """

    packing: Packing
    cost: float
    bound: float
    fire_ups: int
    busy_time: int

    @property
    def gap(self) -> float:
        """(cost - bound) / cost; 0 if it costs nothing [0-1]."""
        return (self.cost - self.bound) / self.cost if self.cost > self.bound else 0.0

    @property
    def proven(self) -> bool:
        """Whether no packing costs less, to a relative 1e-12."""
        return self.cost <= self.bound * (1 + 1e-12)

    def to_dict(self) -> dict[str, Any]:
        """Convert costs, counts and bounds to plain values; `lower_bound` is on the bins, `bound` on the cost."""
        cost_fields = ("cost", "bound", "gap", "proven", "fire_ups", "busy_time")
        packing_fields = ("bins", "lower_bound", "seconds")
        packing_values = {name: getattr(self.packing, name) for name in packing_fields}
        return {name: getattr(self, name) for name in cost_fields} | packing_values
