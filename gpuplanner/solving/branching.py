"""Small integer models by branch and bound, with a proof that anybody can check by adding up.

Solvers say how good their answer is, not why. Here every leaf of the search tree leaves the prices (dual values) of
its linear program behind, from which the least cost of the leaf follows by weak duality alone. Branching is on
sums of columns first, such as all GPUs that are on: for models of few slots that closes the tree in a handful of
nodes. HiGHS solves the linear programs, each from the last basis; PuLP would hand over the model anew.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuplanner._optional import import_optional
from gpuplanner.solving.effort import Effort
from gpuplanner.solving.highs import Library, hand_over, quiet_highs
from gpuplanner.solving.linear import Columns, LinearModel

Floats = NDArray[np.float64]

ProofTree = list[Any] | dict[str, float]
"""A leaf: prices by name of row. A branch: name of a sum or column, a whole number, the tree with the sum at most
that, and the tree with the sum above it."""

_WHOLE = 1e-6
_DIGITS = 10

# Steps of a linear program beside its pivots, as those of solver.py.
_NODE = 20_000

# Lowered as bounds of solvers are, see solver.py.
_BOUND_SLACK = 1e-7


@dataclass(frozen=True)
class Branched:
    """What branch and bound found.

    - ``values``, shape (n_columns,): The best answer seen whose columns to branch on are whole.
    - ``bound``: No answer costs less.
    - ``tree``: Why, see :data:`ProofTree`.
    """

    values: Floats | None
    bound: float
    tree: ProofTree


@dataclass
class _TreeNode:
    limits: dict[int, tuple[float, float]]
    value: float
    point: Floats | None
    prices: dict[str, float]
    split: tuple[int, float] | None = None
    children: list[_TreeNode] = field(default_factory=list)


def branch_and_bound(
    model: LinearModel,
    sums: Mapping[str, Columns],
    columns: Columns,
    effort: Effort,
    *,
    gap: float = 0.0,
    nodes: int = 300,
) -> Branched | None:
    """Minimise a small model whose columns are whole numbers.

    Examples
    --------
    >>> model = LinearModel()
    >>> x = model.add_columns(["x", "y"], cost=[1.0, 1.0], high=[9.0, 9.0])
    >>> model.add_row("demand", x, [2.0, 2.0], ">=", 5.0)
    >>> effort = Effort.begin()
    >>> found = branch_and_bound(model, {"both": x}, x, effort)
    >>> round(found.bound, 6), found.tree[:2]
    (3.0, ['both', 2])
    """
    if effort.spent():
        return None
    search = _OpenTree(model, sums, columns, effort)
    root = search.node({})
    if root is None:
        return None
    order = itertools.count()
    heap = [(root.value, next(order), root)]
    best, values, tried = math.inf, None, 1
    while heap:
        value, _, node = heap[0]
        if value >= best - max(gap * abs(best), 1e-9) or tried >= nodes:
            break
        if tried % 16 == 0 and effort.spent():
            break
        if node.point is None:
            break
        heapq.heappop(heap)
        node.split = search.fraction(node)
        if node.split is None:
            best, values = value, node.point
            heapq.heappush(heap, (value, next(order), node))
            break
        at, below = node.split
        low, high = node.limits.get(at, search.limits[at])
        for side in ((low, below), (below + 1, high)):
            child = search.child(node, at, side)
            tried += 1
            node.children.append(child)
            if child.value < math.inf:
                heapq.heappush(heap, (child.value, next(order), child))
            if child.point is not None and child.value < best and search.fraction(child) is None:
                best, values = child.value, child.point
    bound = min(best, heap[0][0] if heap else math.inf)
    return Branched(values, bound - _BOUND_SLACK * max(1.0, abs(bound)), search.tree(root, bound))


class _OpenTree:
    """The linear program of a model with its sums as rows, and the nodes made of it."""

    def __init__(
        self, model: LinearModel, sums: Mapping[str, Columns], columns: Columns, effort: Effort
    ) -> None:
        self.model, self.columns, self.effort = model, columns, effort
        self.n, self.m = len(model.names), len(model.rows)
        self.names = [*model.names, *sums]
        self.limits = [*zip(model.low, model.high, strict=True), *[(-math.inf, math.inf)] * len(sums)]
        self.sums = np.zeros((len(sums), self.n))
        for row, held in zip(self.sums, sums.values(), strict=True):
            row[held] = 1.0
        self.highspy = import_optional("highspy", extra="plan")
        self.highs = self._load(list(sums.values()))
        self.rising = np.array([row.sense == ">=" for row in model.rows], dtype=bool)
        self.row_names = [*(row.name for row in model.rows), *sums]
        self.applied: dict[int, tuple[float, float]] = {}

    def _load(self, sums: list[Columns]) -> Library:
        model, highs = self.model, quiet_highs(presolve="off")
        free = np.full(len(sums), math.inf)
        low = [row.rhs if row.sense == ">=" else -math.inf for row in model.rows]
        high = [row.rhs if row.sense == "<=" else math.inf for row in model.rows]
        held = [*(row.columns for row in model.rows), *(columns.tolist() for columns in sums)]
        amounts = [*(row.coefficients for row in model.rows), *([1.0] * len(columns) for columns in sums)]
        limits = (np.append(low, -free), np.append(high, free))
        hand_over(highs, model.cost, (model.low, model.high), limits, held, amounts)
        return highs

    def child(self, parent: _TreeNode, at: int, side: tuple[float, float]) -> _TreeNode:
        """A node within closer limits of one sum or column; without an answer, with prices that prove that."""
        limits = {**parent.limits, at: side}
        found = self.node(limits)
        if found is None:
            prices = self._conflict(parent, at, side)
            found = _TreeNode(limits, math.inf, None, prices)
            if self._worth(found) <= _WHOLE:
                # Nothing is proven but what holds for the parent.
                found = _TreeNode(limits, parent.value, None, parent.prices)
        return found

    def node(self, limits: dict[int, tuple[float, float]]) -> _TreeNode | None:
        """Solve the linear program within limits of columns and sums; None without an answer."""
        self._apply(limits)
        self._run()
        if self.highs.getModelStatus() != self.highspy.HighsModelStatus.kOptimal:
            return None
        answer = self.highs.getSolution()
        value = float(self.highs.getInfo().objective_function_value)
        return _TreeNode(limits, value, np.array(answer.col_value), self._prices(answer.row_dual, limits))

    def _run(self) -> None:
        self.highs.run()
        pivots = max(self.highs.getInfo().simplex_iteration_count, 0)
        self.effort.spend(_NODE + pivots * (self.m + len(self.sums)))

    def _apply(self, limits: dict[int, tuple[float, float]]) -> None:
        for at in {*limits, *self.applied}:
            low, high = limits.get(at, self.limits[at])
            if (low, high) == self.applied.get(at, self.limits[at]):
                continue
            if at < self.n:
                self.highs.changeColBounds(at, low, high)
            else:
                self.highs.changeRowBounds(self.m + at - self.n, low, high)
        self.applied = limits

    def _conflict(self, parent: _TreeNode, at: int, side: tuple[float, float]) -> dict[str, float]:
        """Prices that prove that a sum cannot come to lie within limits: how near it comes to them."""
        self._apply(parent.limits)
        sign = 1.0 if side[1] < parent.limits.get(at, self.limits[at])[1] else -1.0
        aim = np.zeros(self.n)
        aim[at if at < self.n else self.sums[at - self.n] > 0] = sign
        every = np.arange(self.n, dtype=np.int32)
        self.highs.changeColsCost(self.n, every, aim)
        self._run()
        optimal = self.highs.getModelStatus() == self.highspy.HighsModelStatus.kOptimal
        duals = np.array(self.highs.getSolution().row_dual) if optimal else None
        self.highs.changeColsCost(self.n, every, np.array(self.model.cost))
        if duals is not None and at >= self.n:
            duals[self.m + at - self.n] -= sign
        return self._prices(duals, {**parent.limits, at: side})

    def _prices(self, duals: Any, limits: dict[int, tuple[float, float]]) -> dict[str, float]:  # noqa: ANN401
        """Prices by name; those of the wrong sign, which prove nothing, are rounding and left out."""
        if duals is None:
            return {}
        prices = np.array(duals, dtype=np.float64)
        own = prices[: self.m]
        own[:] = np.where(self.rising, own.clip(min=0.0), own.clip(max=0.0))
        for place in np.flatnonzero(prices[self.m :]).tolist():
            low, high = limits.get(self.n + place, (-math.inf, math.inf))
            price = prices[self.m + place]
            prices[self.m + place] = price if math.isfinite(low if price > 0 else high) else 0.0
        return {
            self.row_names[at]: float(f"{prices[at]:.{_DIGITS}g}")
            for at in np.flatnonzero(np.abs(prices) > 1e-13).tolist()
        }

    def fraction(self, node: _TreeNode) -> tuple[int, float] | None:
        """What to branch on, and the whole number below it; None if all is whole."""
        assert node.point is not None
        for first, values in ((self.n, self.sums @ node.point), (0, node.point[self.columns])):
            away = np.abs(values - np.rint(values))
            if len(away) and away.max() > _WHOLE:
                at = int(np.argmax(away > _WHOLE)) if first else int(np.argmax(away))
                return (first + at if first else int(self.columns[at])), float(np.floor(values[at]))
        return None

    def tree(self, node: _TreeNode, bound: float) -> ProofTree:
        """The proof below a node that no answer costs less than the bound."""
        if node.split is not None and len(node.children) == 2:
            at, below = node.split
            return [self.names[at], int(below), *(self.tree(child, bound) for child in node.children)]
        return node.prices if node.value < math.inf else self._far(node, bound)

    def _far(self, node: _TreeNode, bound: float) -> dict[str, float]:
        """Prices along a ray, so far out that they prove the bound."""
        worth = self._worth(node)
        scale = 2.0 * (abs(bound) + 1.0) / worth if worth > 0 else 0.0
        return {name: float(f"{scale * price:.{_DIGITS}g}") for name, price in node.prices.items()}

    def _worth(self, node: _TreeNode) -> float:
        """What the prices of a ray prove if nothing costs anything."""
        at = {name: place for place, name in enumerate(self.row_names)}
        total, left = 0.0, np.zeros(self.n)
        for name, price in node.prices.items():
            place = at[name]
            if place < self.m:
                row = self.model.rows[place]
                total += price * row.rhs
                np.add.at(left, row.columns, -price * np.array(row.coefficients))
            else:
                low, high = node.limits.get(self.n + place - self.m, (-math.inf, math.inf))
                total += price * (low if price > 0 else high)
                left -= price * self.sums[place - self.m]
        low, high = np.array([node.limits.get(c, self.limits[c]) for c in range(self.n)]).T
        return total + float(np.where(left > 0, left * low, left * high).sum())
