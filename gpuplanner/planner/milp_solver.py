"""Integer programs by branch and bound, and through PuLP.

Branching is on sums of columns first, such as all GPUs that are on: for models of few slots that closes the tree in
a handful of nodes, faster than a general solver does. HiGHS solves the linear programs, each from the last basis;
PuLP would hand over the model anew.

HiGHS gets the model as arrays in one call and starts from a known answer if there is one; CBC is there for
comparison, through PuLP. The word "Optimal" of a solver that was stopped is not believed: an
answer counts as optimal only if the solver proved it within the gap asked for.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpuplanner.core.execution import import_optional
from gpuplanner.planner.linear_model import Columns, Effort, Library, LinearModel, hand_over, quiet_highs

Status = Literal["optimal", "feasible", "infeasible", "unknown"]

_SENSES = {">=": 1, "<=": -1}
_LONG_SOLVE_COLUMNS = 2000

# Programs over all slots have an answer to begin with, where everything is missing: primal simplex takes a third to
# half of the time of dual simplex.
_PRIMAL_SIMPLEX = 4

# Steps of a number of a model that is written down and handed over; of the same in a round of an integer model; and
# pivots beyond which there is no limit. A pivot counts one step for each row. Fitted to processor time, for models of
# 30 to 100,000 rows.
_HAND_OVER = 100
_MIXED_ROUND = 100
_MOST_PIVOTS = 2**31 - 1

# Solvers work to tolerances of 1e-7 and more: a bound is stated lower by this, so that it is one.
_BOUND_SLACK = 1e-7


@dataclass(frozen=True)
class Solution:
    """Answer of a solver.

    - ``status`` {"optimal", "feasible", "infeasible", "unknown"}: ``optimal``: proven within the gap asked for.
      ``feasible``: an answer without that proof.
    - ``values``, shape (n_columns,): Column values; None unless optimal or feasible.
    - ``objective``: Their cost.
    - ``bound``: No answer can cost less. None if the solver proved nothing.
    """

    status: Status
    values: NDArray[np.float64] | None = None
    objective: float | None = None
    bound: float | None = None


def solve(
    model: LinearModel,
    effort: Effort,
    *,
    gap: float = 0.0,
    relaxed: bool = False,
    start: NDArray[np.float64] | None = None,
    nodes: int | None = None,
) -> Solution:
    """Minimise a model.

    Examples
    --------
    >>> model = LinearModel()
    >>> x = model.add_columns(["x"], cost=[3.0], high=[10.0])
    >>> model.add_row("demand", x, [2.0], ">=", 5.0)
    >>> effort = Effort.begin()
    >>> solve(model, effort).objective, solve(model, effort, relaxed=True).objective
    (9.0, 7.5)
    """
    if effort.spent():
        return Solution("unknown")
    if not model.names:
        return Solution("optimal", np.zeros(0), 0.0, 0.0)
    amounts = sum(len(row.columns) for row in model.rows)
    effort.spend(_HAND_OVER * (amounts + len(model.names)))
    if effort.solver == "cbc":
        most = int(min(effort.remaining_steps() / (_MIXED_ROUND * max(1, amounts)), nodes or _MOST_PIVOTS))
        return _solve_with_cbc(model, effort, gap=gap, relaxed=relaxed, nodes=max(1, most))
    pivots = effort.remaining_steps() / max(1, len(model.rows))
    options = {
        "mip_rel_gap": gap,
        "time_limit": effort.remaining_s(),
        "random_seed": effort.seed,
        "mip_max_nodes": nodes,
        "simplex_strategy": _PRIMAL_SIMPLEX if relaxed else None,
        "simplex_iteration_limit": int(pivots) if relaxed and pivots < _MOST_PIVOTS else None,
    }
    options = {name: value for name, value in options.items() if value is not None}
    rounds = _Rounds(effort, _MIXED_ROUND * amounts)
    return _solve_with_highs(model, options, rounds, relaxed=relaxed, start=start)


def _to_pulp(model: LinearModel, *, relaxed: bool) -> tuple[Library, list[Library]]:
    """The model as a PuLP problem, and its variables in the order of the columns."""
    pulp = import_optional("pulp", extra="plan")
    problem = pulp.LpProblem("gpuplanner", pulp.LpMinimize)
    kind = pulp.LpContinuous if relaxed else pulp.LpInteger
    columns = [
        problem.add_variable(name, low, high, kind)
        for name, low, high in zip(model.names, model.low, model.high, strict=True)
    ]
    costs = zip(columns, model.cost, strict=True)
    problem.setObjective(pulp.LpAffineExpression({column: cost for column, cost in costs if cost}))
    for row in model.rows:
        terms = {columns[c]: value for c, value in zip(row.columns, row.coefficients, strict=True)}
        constraint = pulp.LpConstraint(pulp.LpAffineExpression(terms), _SENSES[row.sense], row.name, row.rhs)
        problem.addConstraint(constraint)
    return problem, columns


def _solve_with_cbc(model: LinearModel, effort: Effort, *, gap: float, relaxed: bool, nodes: int) -> Solution:
    problem, columns = _to_pulp(model, relaxed=relaxed)
    pulp = import_optional("pulp", extra="plan")
    with warnings.catch_warnings():
        # The class leaves PuLP with version 4, which the extra excludes.
        warnings.simplefilter("ignore", DeprecationWarning)
        options = [f"randomSeed {effort.seed}", f"randomCbcSeed {effort.seed}"]
        limit_s = effort.remaining_s()
        limits = {"maxNodes": nodes} if limit_s == math.inf else {"maxNodes": nodes, "timeLimit": limit_s}
        cbc = pulp.PULP_CBC_CMD(msg=False, gapRel=gap, threads=1, options=options, **limits)
    try:
        problem.solve(cbc)
    except pulp.PulpSolverError:
        return Solution("unknown")
    if problem.sol_status == pulp.LpSolutionInfeasible:
        return Solution("infeasible")
    if problem.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return Solution("unknown")
    values = np.array([column.varValue or 0.0 for column in columns])
    objective = model.value(values)
    if problem.sol_status == pulp.LpSolutionIntegerFeasible:
        return Solution("feasible", values, objective)
    # CBC says optimal within the gap but not how close it came.
    return Solution("optimal", values, objective, lowered(objective - gap * abs(objective)))


def _solve_with_highs(
    model: LinearModel,
    options: dict[str, Any],
    rounds: _Rounds,
    *,
    relaxed: bool,
    start: NDArray[np.float64] | None,
) -> Solution:
    highspy = import_optional("highspy", extra="plan")
    highs = quiet_highs(**options)
    # An object of PuLP's for every column and row would take as long as the solver: the arrays go straight over.
    columns, amounts = [row.columns for row in model.rows], [row.coefficients for row in model.rows]
    limits = (model.low, model.high)
    hand_over(highs, model.cost, limits, model.row_limits(), columns, amounts, whole=not relaxed)
    highs.cbMipInterrupt.subscribe(rounds.count)
    if start is not None:
        first = highspy.HighsSolution()
        first.col_value = start.tolist()
        highs.setSolution(first)
    if len(model.names) < _LONG_SOLVE_COLUMNS:
        highs.run()
    else:
        _run_interruptibly(highs)
    info = highs.getInfo()
    rounds.effort.spend(max(info.simplex_iteration_count, 0) * len(model.rows))
    state = highs.getModelStatus()
    states = highspy.HighsModelStatus
    if state in (states.kInfeasible, states.kUnboundedOrInfeasible):
        return Solution("infeasible")
    finished = state == states.kOptimal
    mixed = not relaxed
    bound = float(info.mip_dual_bound) if mixed else float(info.objective_function_value)
    proven = lowered(bound) if np.isfinite(bound) and (mixed or finished) else None
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return Solution("unknown", bound=proven)
    answer = highs.getSolution()
    values = np.array(answer.col_value)
    return Solution("optimal" if finished else "feasible", values, model.value(values), proven)


def lowered(bound: float) -> float:
    """A bound of a solver, less its tolerances."""
    return bound - _BOUND_SLACK * max(1.0, abs(bound))


@dataclass(frozen=True)
class _Rounds:
    """Rounds of cuts, dives and nodes that HiGHS makes for an integer model, each counted as so many steps."""

    effort: Effort
    steps: float

    def count(self, event: Library) -> None:
        """Count one, and stop once the work is done: HiGHS has no limit of its own before the first node is done."""
        self.effort.spend(self.steps)
        if not self.effort.remaining_steps():
            event.interrupt()


def _run_interruptibly(highs: Library) -> None:
    """Run in a thread, so that Ctrl-C stops the solver at once instead of waiting for it."""
    highs.HandleUserInterrupt = True
    done = threading.Event()

    def run() -> None:
        try:
            highs.run()
        finally:
            done.set()

    threading.Thread(target=run, daemon=True).start()
    try:
        while not done.wait(0.2):
            pass
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C, and what SIGTERM becomes
        highs.cancelSolve()
        done.wait()
        raise


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

    def __init__(self, model: LinearModel, sums: Mapping[str, Columns], columns: Columns, effort: Effort) -> None:
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
