"""A problem as the compiled methods see it: numbered moments, and sizes as words of bits.

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

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpuplanner.errors import ScenarioError, message
from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.packing.problem import AnyProblem, Integers, MigPackingProblem
from gpuplanner.schemas.vocabulary import WHOLE_GPU


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
    >>> from gpuplanner.packing.problem import PackingProblem
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
    return Grid(
        low=np.searchsorted(moments, problem.starts).astype(np.int64),
        high=np.searchsorted(moments, problem.ends).astype(np.int64),
        n_moments=len(moments),
        first=first,
        words=words,
        places=places,
        bias=fields.bias,
        guard=fields.guard,
        fill=fields.fill,
    )


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
            text = message(
                f"packing: limits of one bin, at {name}",
                "at most 62 bits for all of them",
                f"{self.width}",
                "Name fewer profiles.",
            )
            raise ScenarioError(text)
        return at


def _instances(problem: MigPackingProblem, fields: _Fields) -> tuple[Integers, Integers, Integers]:
    """Ways of every item: one for each start slice of its profile."""
    board = problem.board
    ways = _ways(board, sorted(set(problem.profiles)), fields)
    counts = np.array([len(ways[name]) for name in problem.profiles])
    first = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    pairs = [pair for name in problem.profiles for pair in ways[name]]
    places, words = np.array(pairs, dtype=np.int64).T
    return first, np.ascontiguousarray(words), np.ascontiguousarray(places)


def _ways(board: GpuModel, names: list[str], fields: _Fields) -> Mapping[str, list[tuple[int, int]]]:
    """Start slice and word of every way to place each profile, in the driver's order of trying."""
    from gpuplanner.hardware.feasibility import driver_starts

    memory = fields.add("memory slices", board.memory_slices)
    slices = [fields.add(f"memory slice {place}", 1) for place in range(board.memory_slices)]
    engines = {
        resource: fields.add(resource, limit)
        for resource, limit in board.budget.items()
        if any(name != WHOLE_GPU and board.profile(name).amount(resource) for name in names)
    }
    ways: dict[str, list[tuple[int, int]]] = {}
    for name in names:
        if name == WHOLE_GPU:
            ways[name] = [(0, (board.memory_slices << memory) | sum(1 << bit for bit in slices))]
            continue
        profile = board.profile(name)
        word = profile.memory_slices << memory
        for resource, bit in engines.items():
            word += (profile.amount(resource) or 0) << bit
        if profile.max_instances < board.memory_slices // profile.memory_slices:
            word += 1 << fields.add(f"instances of {name}", profile.max_instances)
        ways[name] = [
            (start, word + sum(1 << bit for bit in slices[start : start + profile.memory_slices]))
            for start in driver_starts(board, profile)
        ]
    return ways
