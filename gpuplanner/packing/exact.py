"""Exact for small problems: list every pattern that a packing of so few bins could use, and choose among them.

Take whole values v of the items such that no pattern is worth more than V. In a packing of L bins the values add
up to sum v, and L - 1 of the bins hold at most V each, so every bin holds at least sum v - (L - 1) V [1]_. With the
prices of the pattern program few patterns are worth that much. If no L of them cover the items, L + 1 bins are
needed.

References
----------
.. [1] R. Baldacci, N. Christofides, A. Mingozzi, "An exact algorithm for the vehicle routing problem based on the
   set partitioning formulation with additional cuts", Mathematical Programming 115, 2008,
   doi:10.1007/s10107-007-0178-5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuplanner.packing.pattern_bound import SCALE, PatternBound
from gpuplanner.packing.pricing import price
from gpuplanner.packing.problem import Integers
from gpuplanner.solving.column_generation import fewest_columns

_MOST_PATTERNS = 30_000
_MOST_LABELS = 300_000  # few of the labels that are made on the way end as patterns
_LEAST_VALUE = SCALE // 10**6  # an item worth nothing would be in no pattern


@dataclass(frozen=True)
class Settled:
    """Answer of :func:`settle`.

    - ``bin_of``, shape (n_items,): A packing, if one was found.
    - ``impossible``: Whether it is proven that there is none.
    - ``work``: Labels made.
    """

    bin_of: Integers | None
    impossible: bool
    work: int


def settle(program: PatternBound, most: int, *, time_limit_s: float, seed: int) -> Settled:
    """Find a packing of at most `most` bins, or prove that there is none, or give up.

    Examples
    --------
    >>> import numpy as np
    >>> from gpuplanner.packing.pattern_bound import as_knapsack
    >>> low, high = np.zeros(4, np.int64), np.ones(4, np.int64)
    >>> program = PatternBound(as_knapsack(low, high, np.array([40, 40, 60, 60]), 100), np.eye(4, dtype=bool))
    >>> while not program.exhausted:
    ...     _ = program.step()
    >>> sorted(settle(program, 2, time_limit_s=9, seed=0).bin_of.tolist())
    [0, 0, 1, 1]
    >>> settle(program, 1, time_limit_s=9, seed=0).impossible
    True
    """
    values = np.maximum(program.values, _LEAST_VALUE)
    prices, work = program.moment_prices(values)
    top = price(program.knapsack, values, prices, floor=0, most_labels=_MOST_PATTERNS)
    least = max(int(values.sum()) - (most - 1) * top.ceiling, 1)
    listed = price(
        program.knapsack, values, prices, floor=least - 1, most_labels=_MOST_LABELS, merge=False,
        most_patterns=_MOST_PATTERNS,
    )  # fmt: skip
    work += top.work + listed.work
    if least > top.ceiling:
        return Settled(None, True, work)
    whole = not listed.truncated and len(listed.patterns) < _MOST_PATTERNS
    # Without the whole list the patterns of the program may still make a packing, but prove nothing.
    patterns = listed.patterns if whole else np.array(program.patterns)
    if not patterns.any(axis=0).all():
        return Settled(None, whole, work)
    chosen, decided = fewest_columns(patterns, most, time_limit_s=time_limit_s, seed=seed)
    if chosen is None:
        return Settled(None, whole and decided, work)
    _, bin_of = np.unique(np.argmax(patterns[chosen], axis=0), return_inverse=True)
    return Settled(bin_of.astype(np.int64), False, work)
