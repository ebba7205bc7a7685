"""Small integer models by branch and bound.

Branching is on sums of columns first, such as all GPUs that are on: for models of few slots that closes the tree in
a handful of nodes, faster than a general solver does. HiGHS solves the linear programs, each from the last basis;
PuLP would hand over the model anew.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuplanner._optional import import_optional
from gpuplanner.solving.effort import Effort
from gpuplanner.solving.highs import Library, hand_over, quiet_highs
from gpuplanner.solving.linear import Columns, LinearModel
from gpuplanner.solving.solver import lowered

Floats = NDArray[np.float64]
Limits = dict[int, tuple[float, float]]
"""Least and most of columns and sums, by place."""

_WHOLE = 1e-6

# Steps of a linear program beside its pivots, as those of solver.py.
_NODE = 20_000


@dataclass(frozen=True)
class Branched:
    """What branch and bound found.

    - ``values``, shape (n_columns,): The best answer seen whose columns to branch on are whole.
    - ``bound``: No answer costs less.
    """

    values: Floats | None
    bound: float


@dataclass
class _TreeNode:
    """The linear program within limits, solved: its cost, and the values that reach it.

    ``point`` is None where there is no answer, at infinite cost, or where HiGHS gave none, at the cost of the parent.
    """

    limits: Limits
    value: float
    point: Floats | None


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
    >>> round(found.bound, 6), float(found.values.sum())
    (3.0, 3.0)
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
        split = search.fraction(node.point)
        if split is None:
            best, values = value, node.point
            heapq.heappush(heap, (value, next(order), node))
            break
        at, below = split
        low, high = node.limits.get(at, search.limits[at])
        for side in ((low, below), (below + 1, high)):
            child = search.child(node, at, side)
            tried += 1
            if child.value < math.inf:
                heapq.heappush(heap, (child.value, next(order), child))
            if child.point is not None and child.value < best and search.fraction(child.point) is None:
                best, values = child.value, child.point
    bound = min(best, heap[0][0] if heap else math.inf)
    if bound == math.inf:
        return None
    return Branched(values, lowered(bound))


class _OpenTree:
    """The linear program of a model with its sums as rows, and the nodes made of it."""

    def __init__(
        self, model: LinearModel, sums: Mapping[str, Columns], columns: Columns, effort: Effort
    ) -> None:
        self.model, self.columns, self.effort = model, columns, effort
        self.n, self.m = len(model.names), len(model.rows)
        self.limits = [*zip(model.low, model.high, strict=True), *[(-math.inf, math.inf)] * len(sums)]
        self.sums = np.zeros((len(sums), self.n))
        for row, held in zip(self.sums, sums.values(), strict=True):
            row[held] = 1.0
        self.states = import_optional("highspy", extra="plan").HighsModelStatus
        self.highs = self._load(list(sums.values()))
        self.applied: Limits = {}

    def _load(self, sums: list[Columns]) -> Library:
        model, highs = self.model, quiet_highs(presolve="off")
        free = np.full(len(sums), math.inf)
        low, high = model.row_limits()
        held = [*(row.columns for row in model.rows), *(columns.tolist() for columns in sums)]
        amounts = [*(row.coefficients for row in model.rows), *([1.0] * len(columns) for columns in sums)]
        limits = (np.append(low, -free), np.append(high, free))
        hand_over(highs, model.cost, (model.low, model.high), limits, held, amounts)
        return highs

    def child(self, parent: _TreeNode, at: int, side: tuple[float, float]) -> _TreeNode:
        """A node within closer limits of one sum or column."""
        limits = {**parent.limits, at: side}
        found = self.node(limits)
        if found is not None:
            return found
        # Columns have limits, so that a program without an optimum has no answer at all; else nothing is known of it.
        none = self.highs.getModelStatus() in (self.states.kInfeasible, self.states.kUnboundedOrInfeasible)
        return _TreeNode(limits, math.inf if none else parent.value, None)

    def node(self, limits: Limits) -> _TreeNode | None:
        """Solve the linear program within limits of columns and sums; None without an answer."""
        self._apply(limits)
        self.highs.run()
        pivots = max(self.highs.getInfo().simplex_iteration_count, 0)
        self.effort.spend(_NODE + pivots * (self.m + len(self.sums)))
        if self.highs.getModelStatus() != self.states.kOptimal:
            return None
        value = float(self.highs.getInfo().objective_function_value)
        return _TreeNode(limits, value, np.array(self.highs.getSolution().col_value))

    def _apply(self, limits: Limits) -> None:
        for at in {*limits, *self.applied}:
            low, high = limits.get(at, self.limits[at])
            if (low, high) == self.applied.get(at, self.limits[at]):
                continue
            if at < self.n:
                self.highs.changeColBounds(at, low, high)
            else:
                self.highs.changeRowBounds(self.m + at - self.n, low, high)
        self.applied = limits

    def fraction(self, point: Floats) -> tuple[int, float] | None:
        """What to branch on, and the whole number below it; None if all is whole."""
        for first, values in ((self.n, self.sums @ point), (0, point[self.columns])):
            away = np.abs(values - np.rint(values))
            if len(away) and away.max() > _WHOLE:
                at = int(np.argmax(away > _WHOLE)) if first else int(np.argmax(away))
                return (first + at if first else int(self.columns[at])), float(np.floor(values[at]))
        return None
