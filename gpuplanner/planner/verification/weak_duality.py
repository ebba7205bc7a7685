r"""What prices of rows prove: no answer of a linear program costs less, by weak duality, safely rounded.

For rows :math:`l \le A x \le h`, columns :math:`p \le x \le q`, costs c and any prices z,
:math:`c x \ge \sum_{z_i > 0} z_i l_i + \sum_{z_i < 0} z_i h_i + \sum_j \min(r_j p_j, r_j q_j)` with
:math:`r = c - A^T z`. Every sum is lowered by a bound on its rounding error, so that what is stated is never too
much, whatever the prices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuplanner.planner.contract.plain_values import is_count, is_number

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

_DEEPEST = 2_000

# As many as a quarter of an hour can look at; the largest certificates have a hundredth of it.
MOST_LEAVES = 1_000_000
_EPS = float(np.finfo(np.float64).eps)


class NoProof(ValueError):
    """A certificate that proves nothing: what is wrong with it."""


class Unfinished(NoProof):
    """A certificate that is sound as far as it goes, and leaves something out: what it is."""


@dataclass(frozen=True, eq=False)
class PricedRow:
    """A weighted sum of columns within limits."""

    columns: Places
    weights: Floats
    low: float
    high: float


@dataclass(eq=False)
class PricedProgram:
    """Columns with bounds and costs, and named rows; `whole` names sums and columns that are whole numbers.

    Of `leaves` one is taken for each that is looked at: a file of some megabytes can name more than anybody has time
    for, since a tree may serve any number of floors.
    """

    names: dict[str, int] = field(default_factory=dict)
    cost: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    rows: dict[str, PricedRow] = field(default_factory=dict)
    whole: dict[str, Places] = field(default_factory=dict)
    leaves: Iterator[int] = field(default_factory=lambda: iter(range(MOST_LEAVES)))

    def column(self, name: str, cost: float, low: float, high: float) -> int:
        """Add a column; say its place."""
        self.names[name] = len(self.cost)
        self.cost.append(cost)
        self.low.append(low)
        self.high.append(high)
        return len(self.cost) - 1

    def row(
        self, name: str, terms: Mapping[int, float], low: float = -math.inf, high: float = math.inf
    ) -> None:
        """Add a row."""
        columns = np.fromiter(terms, dtype=np.int64, count=len(terms))
        weights = np.fromiter(terms.values(), dtype=np.float64, count=len(terms))
        self.rows[name] = PricedRow(columns, weights, low, high)

    def least(self, tree: Any) -> float:  # noqa: ANN401 - what a file holds
        """What a tree of prices proves: the least of its leaves."""
        arrays = tuple(np.array(values, dtype=np.float64) for values in (self.cost, self.low, self.high))
        leaves: list[float] = []
        open_nodes: list[tuple[Any, dict[str, tuple[float, float]]]] = [(tree, {})]
        while open_nodes:
            node, limits = open_nodes.pop()
            if isinstance(node, dict):
                if next(self.leaves, None) is None:
                    text = f"its trees have more than {MOST_LEAVES} leaves"
                    raise NoProof(text)
                leaves.append(self._leaf(node, limits, *arrays))
                continue
            name, below, small, large = _branch(node, limits)
            if name not in self.whole:
                text = f"it branches on {name!r}, which need not be a whole number"
                raise NoProof(text)
            low, high = limits.get(name, (-math.inf, math.inf))
            open_nodes.append((small, {**limits, name: (low, min(high, below))}))
            open_nodes.append((large, {**limits, name: (max(low, below + 1), high)}))
        return min(leaves)

    def _leaf(
        self,
        prices: Mapping[str, Any],
        limits: Mapping[str, tuple[float, float]],
        cost: Floats,
        low: Floats,
        high: Floats,
    ) -> float:
        """What prices prove within limits of sums and columns."""
        low, high = low.copy(), high.copy()
        for name, (least, most) in limits.items():
            if name in self.names:
                at = self.names[name]
                low[at], high[at] = max(low[at], least), min(high[at], most)
        left, size, terms = cost.copy(), np.abs(cost), []
        for name, price in prices.items():
            if not is_number(price):
                text = f"the price of {name} is {price!r:.60}"
                raise NoProof(text)
            row = self._row(name, limits)
            side = row.low if price > 0 else row.high
            if price and not math.isfinite(side):
                return -math.inf
            terms.append(price * side if price else 0.0)
            np.add.at(left, row.columns, -price * row.weights)
            np.add.at(size, row.columns, np.abs(price * row.weights))
        own = np.where(left > 0, left * low, left * high)
        error = float((size * np.maximum(np.abs(low), np.abs(high))).sum()) + sum(map(abs, terms))
        proven: float = math.fsum([*terms, *own.tolist()]) - 4 * (len(prices) + 4) * _EPS * error
        if not math.isfinite(proven):
            text = "its sums leave the range of numbers"
            raise NoProof(text)
        return proven

    def _row(self, name: str, limits: Mapping[str, tuple[float, float]]) -> PricedRow:
        if name in self.rows:
            return self.rows[name]
        if name not in self.whole:
            text = f"it prices {name!r}, which this problem does not have"
            raise NoProof(text)
        columns = self.whole[name]
        return PricedRow(columns, np.ones(len(columns)), *limits.get(name, (-math.inf, math.inf)))


def _branch(node: Any, limits: Mapping[str, Any]) -> tuple[str, int, Any, Any]:  # noqa: ANN401 - as above
    if not isinstance(node, list) or len(node) != 4 or not isinstance(node[0], str):
        text = "a tree is neither prices nor a name, a number and two trees"
        raise NoProof(text)
    if not is_count(node[1]):
        text = f"it branches at {node[1]!r:.60}, no whole number of at least 0"
        raise NoProof(text)
    if len(limits) > _DEEPEST:
        text = "a tree is too deep"
        raise NoProof(text)
    return node[0], node[1], node[2], node[3]
