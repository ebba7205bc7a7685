"""Integer programs by own branch and bound, by HiGHS, and by CBC through PuLP.

The own branch and bound branches on sums of columns first, such as all powered-on GPUs: for models of few intervals
that closes the tree in a few nodes, faster than a general solver. HiGHS solves the linear programs, each from the
last basis; PuLP would hand the model over every time.

HiGHS gets a model as arrays in one call and starts from a known answer if there is one; CBC is for comparison. The
status "Optimal" of a solver that was stopped is not trusted: an answer counts as optimal only if the solver proved it
within the requested gap.

References
----------
Land and Doig, An automatic method of solving discrete programming problems, Econometrica 28 (1960).
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

from gpuplanner.core.libraries_plugins_and_workers import import_optional
from gpuplanner.planner.linear_programs_and_search_limits import (
    Columns,
    Library,
    LinearModel,
    SearchEffort,
    create_highs,
    pass_model_to_highs,
)

Status = Literal["optimal", "feasible", "infeasible", "unknown"]
"""Result of a solver, as of :attr:`Solution.status`."""

_SIGN_BY_ROW_SENSE = {">=": 1, "<=": -1}
"""PuLP's number of a constraint's relation, by the sense of a row."""
_MIN_COLUMNS_FOR_SOLVER_THREAD = 2000
"""Columns from which HiGHS runs in a thread, so that Ctrl-C stops it at once."""

# Programs over all intervals have a feasible start, with every instance missing: primal simplex takes a third to half
# of the time of dual simplex.
_HIGHS_PRIMAL_SIMPLEX_OPTION = 4
"""Value of HiGHS's option ``simplex_strategy`` for primal simplex."""

# Elementary steps of one number of a model: to pass it to the solver, and in one round of an integer model; and the
# number of pivots from which there is no limit. A pivot counts one step for each row. Fitted to processor time, for
# models of 30 to 100,000 rows.
_WORK_STEPS_PER_MODEL_COEFFICIENT = 100
"""Elementary steps that passing one coefficient of a model to the solver counts for."""
_WORK_STEPS_PER_MIP_COEFFICIENT = 100
"""Elementary steps of one coefficient of an integer model in one callback of HiGHS."""
_MAX_SIMPLEX_PIVOTS = 2**31 - 1
"""Number of pivots or nodes that stands for no limit: the largest 32-bit integer."""

# Relative tolerance of solvers, 1e-7 or more: a bound is lowered by this, so that it is valid.
_BOUND_SLACK_FRACTION = 1e-7
"""Fraction by which a solver's bound is lowered, so that it is valid despite the solver's tolerance."""


@dataclass(frozen=True)
class Solution:
    """Answer of a solver.

    - ``status`` {"optimal", "feasible", "infeasible", "unknown"}: ``optimal``: proven within the requested gap.
      ``feasible``: an answer without that proof.
    - ``values``, shape (n_columns,): Column values; None unless optimal or feasible.
    - ``objective``: Their cost.
    - ``bound``: No answer costs less; None if the solver proved nothing.
    """

    status: Status
    values: NDArray[np.float64] | None = None
    objective: float | None = None
    bound: float | None = None


def solve(
    model: LinearModel,
    effort: SearchEffort,
    *,
    gap: float = 0.0,
    relaxed: bool = False,
    start: NDArray[np.float64] | None = None,
    nodes: int | None = None,
) -> Solution:
    """Minimize a model with the solver and within the limits of an effort.

    Parameters
    ----------
    model : LinearModel
        The model.
    effort : SearchEffort
        Solver, seed and limits.
    gap : float
        Relative gap at which to stop. [0-1]
    relaxed : bool
        Solve the linear relaxation.
    start : ndarray of float, shape (n_columns,), optional
        Known answer to start from.
    nodes : int, optional
        Most branch-and-bound nodes.

    Examples
    --------
    >>> model = LinearModel()
    >>> x = model.add_columns(["x"], cost=[3.0], high=[10.0])
    >>> model.add_row("demand", x, [2.0], ">=", 5.0)
    >>> effort = SearchEffort.begin()
    >>> solve(model, effort).objective, solve(model, effort, relaxed=True).objective
    (9.0, 7.5)
    """
    if effort.is_spent():
        return Solution("unknown")
    if not model.names:
        return Solution("optimal", np.zeros(0), 0.0, 0.0)
    n_coefficients = sum(len(row.columns) for row in model.rows)
    effort.count_steps(_WORK_STEPS_PER_MODEL_COEFFICIENT * (n_coefficients + len(model.names)))
    if effort.solver == "cbc":
        max_nodes = int(
            min(
                effort.remaining_steps() / (_WORK_STEPS_PER_MIP_COEFFICIENT * max(1, n_coefficients)),
                nodes or _MAX_SIMPLEX_PIVOTS,
            )
        )
        return _solve_with_cbc(model, effort, gap=gap, relaxed=relaxed, nodes=max(1, max_nodes))
    pivots = effort.remaining_steps() / max(1, len(model.rows))
    options = {
        "mip_rel_gap": gap,
        "time_limit": effort.remaining_s(),
        "random_seed": effort.seed,
        "mip_max_nodes": nodes,
        "simplex_strategy": _HIGHS_PRIMAL_SIMPLEX_OPTION if relaxed else None,
        "simplex_iteration_limit": int(pivots) if relaxed and pivots < _MAX_SIMPLEX_PIVOTS else None,
    }
    options = {name: value for name, value in options.items() if value is not None}
    step_counter = _HighsStepCounter(effort, _WORK_STEPS_PER_MIP_COEFFICIENT * n_coefficients)
    return _solve_with_highs(model, options, step_counter, relaxed=relaxed, start=start)


def _to_pulp(model: LinearModel, *, relaxed: bool) -> tuple[Library, list[Library]]:
    """Convert a model to a PuLP problem; return it with its variables in the order of the columns."""
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
        constraint = pulp.LpConstraint(pulp.LpAffineExpression(terms), _SIGN_BY_ROW_SENSE[row.sense], row.name, row.rhs)
        problem.addConstraint(constraint)
    return problem, columns


def _solve_with_cbc(model: LinearModel, effort: SearchEffort, *, gap: float, relaxed: bool, nodes: int) -> Solution:
    """Solve a model with CBC.

    Parameters
    ----------
    model : LinearModel
        The model.
    effort : SearchEffort
        Time and work limits of the search.
    gap : float
        Relative gap at which to stop. [0-1]
    relaxed : bool
        Solve the linear relaxation.
    nodes : int
        Most branch-and-bound nodes.
    """
    problem, columns = _to_pulp(model, relaxed=relaxed)
    pulp = import_optional("pulp", extra="plan")
    with warnings.catch_warnings():
        # PuLP 4, which the extra excludes, drops the class.
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
    # CBC reports "optimal" within the gap, but no bound.
    return Solution("optimal", values, objective, subtract_tolerance(objective - gap * abs(objective)))


def _solve_with_highs(
    model: LinearModel,
    options: dict[str, Any],
    step_counter: _HighsStepCounter,
    *,
    relaxed: bool,
    start: NDArray[np.float64] | None,
) -> Solution:
    """Solve a model with HiGHS and the given options.

    Parameters
    ----------
    model : LinearModel
        The model.
    options : dict of str to object
        Options of HiGHS.
    step_counter : _HighsStepCounter
        Counts elementary steps, and stops HiGHS at the work limit.
    relaxed : bool
        Solve the linear relaxation.
    start : ndarray of float, optional
        Known answer to start from.
    """
    highspy = import_optional("highspy", extra="plan")
    highs = create_highs(**options)
    # PuLP objects for every column and row would take as long as the solver: the arrays are passed directly.
    columns, amounts = [row.columns for row in model.rows], [row.coefficients for row in model.rows]
    limits = (model.low, model.high)
    pass_model_to_highs(highs, model.cost, limits, model.row_limits(), columns, amounts, integer=not relaxed)
    highs.cbMipInterrupt.subscribe(step_counter.count_callback)
    if start is not None:
        first = highspy.HighsSolution()
        first.col_value = start.tolist()
        highs.setSolution(first)
    if len(model.names) < _MIN_COLUMNS_FOR_SOLVER_THREAD:
        highs.run()
    else:
        _run_with_interrupts(highs)
    info = highs.getInfo()
    step_counter.effort.count_steps(max(info.simplex_iteration_count, 0) * len(model.rows))
    state = highs.getModelStatus()
    states = highspy.HighsModelStatus
    if state in (states.kInfeasible, states.kUnboundedOrInfeasible):
        return Solution("infeasible")
    finished = state == states.kOptimal
    mixed = not relaxed
    bound = float(info.mip_dual_bound) if mixed else float(info.objective_function_value)
    proven = subtract_tolerance(bound) if np.isfinite(bound) and (mixed or finished) else None
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return Solution("unknown", bound=proven)
    answer = highs.getSolution()
    values = np.array(answer.col_value)
    return Solution("optimal" if finished else "feasible", values, model.value(values), proven)


def subtract_tolerance(bound: float) -> float:
    """Lower a bound of a solver by the tolerance of solvers, so that it is valid despite rounding."""
    return bound - _BOUND_SLACK_FRACTION * max(1.0, abs(bound))


@dataclass(frozen=True)
class _HighsStepCounter:
    """Counts each callback of HiGHS in an integer model (round of cuts, dive or node) as elementary steps."""

    effort: SearchEffort
    steps: float

    def count_callback(self, event: Library) -> None:
        """Count the steps of a callback, and interrupt HiGHS once the work limit is reached."""
        self.effort.count_steps(self.steps)
        if not self.effort.remaining_steps():
            event.interrupt()


def _run_with_interrupts(highs: Library) -> None:
    """Run HiGHS in a thread, so that Ctrl-C stops it at once."""
    highs.HandleUserInterrupt = True
    is_finished = threading.Event()

    def run_solver() -> None:
        try:
            highs.run()
        finally:
            is_finished.set()

    threading.Thread(target=run_solver, daemon=True).start()
    try:
        while not is_finished.wait(0.2):
            pass
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C or SIGTERM
        highs.cancelSolve()
        is_finished.wait()
        raise


Floats = NDArray[np.float64]
"""Array of floats."""
RangeLimits = dict[int, tuple[float, float]]
"""Lower and upper limits of columns and sums, by position."""

_INTEGER_TOLERANCE = 1e-6
"""Largest distance from a whole number that counts as whole."""

# Elementary steps of a linear program besides its pivots.
_WORK_STEPS_PER_BRANCH_NODE = 20_000
"""Elementary steps that one linear program of the branch and bound counts for besides its pivots."""


@dataclass(frozen=True)
class BranchAndBoundAnswer:
    """Answer of :func:`branch_and_bound`.

    - ``values``, shape (n_columns,): Best answer found with whole numbers in the columns to branch on; None if none.
    - ``bound``: No answer costs less.
    """

    values: Floats | None
    bound: float


@dataclass
class _TreeNode:
    """Linear program within limits, solved: its optimum and the values that reach it.

    ``point`` is None if there is no answer, at infinite cost, or if HiGHS gave none, at the cost of the parent.
    """

    limits: RangeLimits
    value: float
    point: Floats | None


def branch_and_bound(
    model: LinearModel,
    sums: Mapping[str, Columns],
    columns: Columns,
    effort: SearchEffort,
    *,
    gap: float = 0.0,
    nodes: int = 300,
) -> BranchAndBoundAnswer | None:
    """Minimize a small integer model by best-first branch and bound.

    Parameters
    ----------
    model : LinearModel
        The model.
    sums : mapping of str to ndarray of int
        Sums of columns that are whole numbers, branched on first.
    columns : ndarray of int
        Columns to branch on.
    effort : SearchEffort
        Time and work limits of the search.
    gap : float
        Relative gap at which to stop. [0-1]
    nodes : int
        Most nodes.

    Returns
    -------
    BranchAndBoundAnswer or None
        None if the effort was spent before a bound was proven.

    Examples
    --------
    >>> model = LinearModel()
    >>> x = model.add_columns(["x", "y"], cost=[1.0, 1.0], high=[9.0, 9.0])
    >>> model.add_row("demand", x, [2.0, 2.0], ">=", 5.0)
    >>> effort = SearchEffort.begin()
    >>> found = branch_and_bound(model, {"both": x}, x, effort)
    >>> round(found.bound, 6), float(found.values.sum())
    (3.0, 3.0)
    """
    if effort.is_spent():
        return None
    search = _BranchAndBoundTree(model, sums, columns, effort)
    root = search.solve_node({})
    if root is None:
        return None
    tie_breaker = itertools.count()
    heap = [(root.value, next(tie_breaker), root)]
    best = math.inf
    values = None
    n_solved = 1
    while heap:
        value, _, node = heap[0]
        if value >= best - max(gap * abs(best), 1e-9) or n_solved >= nodes:
            break
        if n_solved % 16 == 0 and effort.is_spent():
            break
        if node.point is None:
            break
        heapq.heappop(heap)
        branch = search.find_fraction(node.point)
        if branch is None:
            best, values = value, node.point
            heapq.heappush(heap, (value, next(tie_breaker), node))
            break
        position, below = branch
        low, high = node.limits.get(position, search.limits[position])
        for side in ((low, below), (below + 1, high)):
            child = search.solve_child(node, position, side)
            n_solved += 1
            if child.value < math.inf:
                heapq.heappush(heap, (child.value, next(tie_breaker), child))
            if child.point is not None and child.value < best and search.find_fraction(child.point) is None:
                best, values = child.value, child.point
    bound = min(best, heap[0][0] if heap else math.inf)
    if bound == math.inf:
        return None
    return BranchAndBoundAnswer(values, subtract_tolerance(bound))


class _BranchAndBoundTree:
    """Linear program of a model with its sums as rows, and the nodes of its search tree."""

    def __init__(self, model: LinearModel, sums: Mapping[str, Columns], columns: Columns, effort: SearchEffort) -> None:
        self.model = model
        self.columns = columns
        self.effort = effort
        self.n, self.m = len(model.names), len(model.rows)
        self.limits = [*zip(model.low, model.high, strict=True), *[(-math.inf, math.inf)] * len(sums)]
        self.sums = np.zeros((len(sums), self.n))
        for row, columns_of_sum in zip(self.sums, sums.values(), strict=True):
            row[columns_of_sum] = 1.0
        self.states = import_optional("highspy", extra="plan").HighsModelStatus
        self.highs = self._load_program(list(sums.values()))
        self.applied: RangeLimits = {}

    def _load_program(self, sums: list[Columns]) -> Library:
        """Pass the program, with one row for each sum, to HiGHS."""
        model, highs = self.model, create_highs(presolve="off")
        unlimited = np.full(len(sums), math.inf)
        low, high = model.row_limits()
        positions = [*(row.columns for row in model.rows), *(columns.tolist() for columns in sums)]
        coefficients = [*(row.coefficients for row in model.rows), *([1.0] * len(columns) for columns in sums)]
        limits = (np.append(low, -unlimited), np.append(high, unlimited))
        pass_model_to_highs(highs, model.cost, (model.low, model.high), limits, positions, coefficients)
        return highs

    def solve_child(self, parent: _TreeNode, position: int, side: tuple[float, float]) -> _TreeNode:
        """Solve a child of a node of the search tree: `side` are closer (lower, upper) limits of one sum or column."""
        limits = {**parent.limits, position: side}
        solved = self.solve_node(limits)
        if solved is not None:
            return solved
        # Columns are bounded, so that a program without an optimum is infeasible; other statuses prove nothing.
        is_infeasible = self.highs.getModelStatus() in (self.states.kInfeasible, self.states.kUnboundedOrInfeasible)
        return _TreeNode(limits, math.inf if is_infeasible else parent.value, None)

    def solve_node(self, limits: RangeLimits) -> _TreeNode | None:
        """Solve the linear program within limits of columns and sums; None without an optimum."""
        self._apply_limits(limits)
        self.highs.run()
        pivots = max(self.highs.getInfo().simplex_iteration_count, 0)
        self.effort.count_steps(_WORK_STEPS_PER_BRANCH_NODE + pivots * (self.m + len(self.sums)))
        if self.highs.getModelStatus() != self.states.kOptimal:
            return None
        value = float(self.highs.getInfo().objective_function_value)
        return _TreeNode(limits, value, np.array(self.highs.getSolution().col_value))

    def _apply_limits(self, limits: RangeLimits) -> None:
        """Change the limits in HiGHS where they differ from the last ones."""
        for position in {*limits, *self.applied}:
            low, high = limits.get(position, self.limits[position])
            if (low, high) == self.applied.get(position, self.limits[position]):
                continue
            if position < self.n:
                self.highs.changeColBounds(position, low, high)
            else:
                self.highs.changeRowBounds(self.m + position - self.n, low, high)
        self.applied = limits

    def find_fraction(self, point: Floats) -> tuple[int, float] | None:
        """Return the position of a fractional sum or column to branch on, and its value rounded down, or None."""
        for first, values in ((self.n, self.sums @ point), (0, point[self.columns])):
            distance = np.abs(values - np.rint(values))
            if len(distance) and distance.max() > _INTEGER_TOLERANCE:
                position = int(np.argmax(distance > _INTEGER_TOLERANCE)) if first else int(np.argmax(distance))
                return (first + position if first else int(self.columns[position])), float(np.floor(values[position]))
        return None
