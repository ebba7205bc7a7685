"""Linear models, the limits of a search, and linear programs solved step by step with HiGHS.

Other models go through PuLP. Here one linear program is solved hundreds of times, each time with a few more columns
and from the last basis; PuLP would hand the model over at every solve, which would take most of the time.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.libraries_plugins_and_workers import import_optional

Library: TypeAlias = Any
"""Object of a library without types that is imported only when it is used, such as a HiGHS solver."""


def create_highs(**options: object) -> Library:
    """Create a HiGHS solver that prints nothing and runs on one processor."""
    highs = import_optional("highspy", extra="plan").Highs()
    for name, value in {"output_flag": False, "threads": 1, **options}.items():
        highs.setOptionValue(name, value)
    return highs


def pass_model_to_highs(
    highs: Library,
    cost: ArrayLike,
    column_limits: tuple[ArrayLike, ArrayLike],
    row_limits: tuple[ArrayLike, ArrayLike],
    positions: Sequence[Sequence[int]],
    coefficients: Iterable[Iterable[float]],
    *,
    by_column: bool = False,
    integer: bool = False,
    maximize: bool = False,
) -> None:
    """Pass a linear or integer program to HiGHS as arrays.

    Parameters
    ----------
    highs : Highs
        The solver.
    cost : array of float, shape (n_columns,)
        Objective.
    column_limits, row_limits : tuple of (array, array)
        Lower and upper limits of columns and of rows.
    positions : sequence of sequence of int
        Columns in each row; if `by_column`, rows of each column.
    coefficients : iterable of iterable of float
        Coefficients at these positions.
    by_column : bool
        Whether the matrix is given by column.
    integer : bool
        Whether columns are whole numbers.
    maximize : bool
        Whether the objective is maximized.
    """
    highspy = import_optional("highspy", extra="plan")
    program = highspy.HighsLp()
    program.col_cost_ = np.array(cost, dtype=np.float64)
    program.col_lower_, program.col_upper_ = (np.array(limit, dtype=np.float64) for limit in column_limits)
    program.row_lower_, program.row_upper_ = (np.array(limit, dtype=np.float64) for limit in row_limits)
    program.num_col_, program.num_row_ = len(program.col_cost_), len(program.row_lower_)
    if maximize:
        program.sense_ = highspy.ObjSense.kMaximize
    matrix, formats = program.a_matrix_, highspy.MatrixFormat
    matrix.format_ = formats.kColwise if by_column else formats.kRowwise
    matrix.start_ = np.cumsum([0, *map(len, positions)], dtype=np.int32)
    matrix.index_ = np.fromiter(itertools.chain.from_iterable(positions), dtype=np.int32)
    matrix.value_ = np.fromiter(itertools.chain.from_iterable(coefficients), dtype=np.float64)
    if integer:
        program.integrality_ = [highspy.HighsVarType.kInteger] * program.num_col_
    highs.passModel(program)


Floats = NDArray[np.float64]
"""Array of floats."""
Integers = NDArray[np.int64]
"""Array of whole numbers."""

_MAX_COVER_BRANCH_NODES = 20_000
"""Branch-and-bound nodes of :func:`cover_with_fewest_patterns`: a limit that is the same on every machine."""


@dataclass(frozen=True)
class LinearAnswer:
    """Answer of a linear program, within the solver's tolerances: not a proof without a check.

    - ``value``: Objective.
    - ``duals``, shape (n_rows,): Dual prices of the rows, at least 0.
    - ``work``: Iterations times rows, a measure of work that does not depend on the machine.
    """

    value: float
    duals: Floats
    work: int


class LinearProgram:
    """A linear program that keeps its basis while columns are added (column generation).

    Examples
    --------
    >>> program = LinearProgram.start_covering(2)
    >>> for rows in ([0], [1], [0, 1]):
    ...     program.add_column(np.array(rows), np.ones(len(rows)))
    >>> program.solve().value
    1.0
    """

    def __init__(self) -> None:
        self._highs = create_highs()

    @classmethod
    def start_covering(cls, n_rows: int) -> LinearProgram:
        """Start a covering program without columns: fewest columns such that every row is covered once."""
        program = cls()
        for _ in range(n_rows):
            program._highs.addRow(1.0, math.inf, 0, np.zeros(0, dtype=np.int32), np.zeros(0))
        return program

    @classmethod
    def start_packing(cls, low: Integers, high: Integers, sizes: Integers, limits: Integers) -> LinearProgram:
        """Start a fractional packing program: most value of items of total size at most ``limits[t]`` at each moment t.

        Parameters
        ----------
        low, high : ndarray of int, shape (n_items,)
            First moment of each item, and the first one after it.
        sizes : ndarray of int, shape (n_items,)
            Sizes.
        limits : ndarray of int, shape (n_moments,)
            Capacity at each moment.
        """
        program, durations = cls(), high - low
        active_moments = [range(first, last) for first, last in zip(low.tolist(), high.tolist(), strict=True)]
        coefficients = np.split(np.repeat(sizes.astype(np.float64), durations), np.cumsum(durations)[:-1])
        column_limits = (np.zeros(len(low)), np.ones(len(low)))
        row_limits = (np.full(len(limits), -math.inf), limits)
        pass_model_to_highs(
            program._highs,
            column_limits[0],
            column_limits,
            row_limits,
            active_moments,
            coefficients,
            by_column=True,
            maximize=True,
        )
        return program

    def add_column(self, rows: Integers, amounts: NDArray[Any]) -> None:
        """Add a column of cost 1 without an upper limit."""
        self._highs.addCol(1.0, 0.0, math.inf, len(rows), rows.astype(np.int32), amounts.astype(np.float64))

    def set_cover_demand(self, demand: Integers) -> None:
        """Require that row i is covered ``demand[i]`` times."""
        for row, amount in enumerate(demand.tolist()):
            self._highs.changeRowBounds(row, float(amount), math.inf)

    def set_item_values(self, values: Floats) -> None:
        """Set the value of each item in the objective of a packing program."""
        self._highs.changeColsCost(len(values), np.arange(len(values), dtype=np.int32), values)

    def solve(self) -> LinearAnswer:
        """Solve from the last basis."""
        self._highs.run()
        info = self._highs.getInfo()
        duals = np.maximum(np.array(self._highs.getSolution().row_dual), 0.0)
        work = (max(info.simplex_iteration_count, 0) + 1) * self._highs.getNumRow()
        return LinearAnswer(float(info.objective_function_value), duals, work)


def cover_with_fewest_patterns(
    patterns: NDArray[np.bool_], max_patterns: int, *, time_limit_s: float, seed: int
) -> tuple[NDArray[np.int64] | None, bool]:
    """Choose at most `max_patterns` patterns that together contain every item (set covering).

    Parameters
    ----------
    patterns : ndarray of bool, shape (n_patterns, n_items)
        Items of each pattern.
    max_patterns : int
        Most patterns.
    time_limit_s : float
        Time limit. [s]
    seed : int
        Seed of the solver.

    Returns
    -------
    tuple of (ndarray of int or None, bool)
        Positions of the chosen patterns, None without a cover; and whether it is proven that there is or is not one.

    Examples
    --------
    >>> patterns = np.array([[True, True, False], [False, True, True], [False, False, True]])
    >>> cover_with_fewest_patterns(patterns, 2, time_limit_s=9, seed=0)
    (array([0, 1]), True)
    >>> cover_with_fewest_patterns(patterns, 1, time_limit_s=9, seed=0)
    (None, True)
    """
    highspy = import_optional("highspy", extra="plan")
    highs = create_highs(time_limit=time_limit_s, random_seed=seed, mip_max_nodes=_MAX_COVER_BRANCH_NODES)
    n_patterns, n_items = patterns.shape
    # The last row limits the number of chosen patterns.
    pattern_rows = [[*np.flatnonzero(pattern).tolist(), n_items] for pattern in patterns]
    column_limits = (np.zeros(n_patterns), np.ones(n_patterns))
    row_limits = (np.append(np.ones(n_items), -math.inf), np.append(np.full(n_items, math.inf), max_patterns))
    ones = ([1.0] * len(pattern) for pattern in pattern_rows)
    pass_model_to_highs(
        highs, column_limits[1], column_limits, row_limits, pattern_rows, ones, by_column=True, integer=True
    )
    highs.run()
    if highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        return None, True
    if highs.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None, False
    return np.flatnonzero(np.array(highs.getSolution().col_value) > 0.5), True


MILP_SOLVER_NAMES = ("highs", "cbc")
"""Names of the solvers."""

_MAX_SOLVER_SEED = 2**31 - 1
"""Largest seed of HiGHS and CBC."""
RELATIVE_COST_TOLERANCE = 1e-6
"""Costs that differ by no more than this, relative to the larger of 1 and the cost, count as equal."""
STEPS_PER_WORK_UNIT = 1_000_000
"""Elementary steps in one unit of the work limit: simplex pivots times rows, room tests of a bin at one instant, or
labels of a knapsack search.
"""


DEFAULT_WORK_LIMIT_UNITS = 2000
"""Default limit of a search in units of work: half a minute of one processor of 2026, the same on every machine."""


@dataclass
class StepCounter:
    """Counter of elementary steps, shared by all parts of a search."""

    done: float = 0.0


@dataclass(frozen=True)
class SearchEffort:
    """Limits of one search, and the work that it has done.

    A search stops by gap, fixed numbers of passes and nodes, and elementary steps, which are counted: pivots, nodes,
    numbers of a model that is passed on. So the same problem and seed give the same plan on every machine, however busy
    it is; the clock is read only if there is a time limit.

    - ``gap_target``: Relative optimality gap at which the search may stop.
    - ``deadline``: Time of :func:`time.monotonic` after which no step is started. [s]
    - ``time_limit_s``: Time from the start to the deadline. [s]
    - ``seed``: Seed of the solver.
    - ``solver`` {"highs", "cbc"}: Name of the solver.
    - ``max_steps``: Elementary steps after which no step is started.
    - ``work``: Steps done so far.
    """

    gap_target: float = 0.0
    deadline: float = math.inf
    time_limit_s: float = math.inf
    seed: int = 0
    solver: str = "highs"
    max_steps: float = math.inf
    work: StepCounter = field(default_factory=StepCounter)

    @classmethod
    def begin(
        cls,
        *,
        gap_target: float = 0.0,
        time_limit_s: float | None = None,
        seed: int = 0,
        solver: str = "highs",
        work_limit: int | None = None,
        error_context: str = "plan",
    ) -> SearchEffort:
        """Check the limits and start the clock if there is a time limit.

        Without any limit, :data:`DEFAULT_WORK_LIMIT_UNITS` applies.

        Parameters
        ----------
        gap_target : float
            Relative optimality gap at which to stop. [0-1]
        time_limit_s : float, optional
            Time limit. [s]
        seed : int
            Seed of the solver.
        solver : {"highs", "cbc"}
            Solver.
        work_limit : int, optional
            Units of work.
        error_context : str
            Subject of error messages.

        Raises
        ------
        ScenarioError
            If a limit is invalid.

        Examples
        --------
        >>> SearchEffort.begin(gap_target=0.005).remaining_steps() == DEFAULT_WORK_LIMIT_UNITS * STEPS_PER_WORK_UNIT
        True
        """
        faults = []
        if not 0 <= gap_target < 1:
            faults.append(f"gap_target must be at least 0 and below 1, not {gap_target!r}")
        if time_limit_s is not None and not 0 < time_limit_s < math.inf:
            faults.append(f"time_limit_s must be above 0 and finite, not {time_limit_s!r}")
        if not (_is_whole(seed) and 0 <= seed <= _MAX_SOLVER_SEED):
            faults.append(f"seed must be a whole number from 0 to {_MAX_SOLVER_SEED}, not {seed!r}")
        if work_limit is not None and not (_is_whole(work_limit) and work_limit >= 1):
            faults.append(f"work_limit must be a whole number of at least 1, not {work_limit!r}")
        if solver not in MILP_SOLVER_NAMES:
            faults.append(f"solver must be one of {', '.join(MILP_SOLVER_NAMES)}, not {solver!r}")
        if faults:
            raise ScenarioError(error_context, "valid limits", "; ".join(faults), "Fix these limits.")
        if work_limit is None and time_limit_s is None:
            work_limit = DEFAULT_WORK_LIMIT_UNITS
        max_steps = math.inf if work_limit is None else work_limit * float(STEPS_PER_WORK_UNIT)
        if time_limit_s is None:
            return cls(gap_target, seed=seed, solver=solver, max_steps=max_steps)
        return cls(gap_target, time.monotonic() + time_limit_s, time_limit_s, seed, solver, max_steps)

    def count_steps(self, steps: float) -> None:
        """Count elementary steps."""
        self.work.done += steps

    def remaining_s(self) -> float:
        """Return the seconds left, at least 0; infinite without a time limit."""
        return math.inf if self.deadline == math.inf else max(0.0, self.deadline - time.monotonic())

    def remaining_steps(self) -> float:
        """Return the elementary steps left, at least 0."""
        return max(0.0, self.max_steps - self.work.done)

    def remaining_fraction(self) -> float:
        """Return the fraction of time or of work that is left, whichever is less [0-1]."""
        remaining_and_total = [(self.remaining_s(), self.time_limit_s), (self.remaining_steps(), self.max_steps)]
        return min((remaining / total for remaining, total in remaining_and_total if total < math.inf), default=1.0)

    def with_fraction(self, fraction: float) -> SearchEffort:
        """Return limits for a part of the search: a fraction [0-1] of the remaining time and work."""
        deadline = self.deadline
        if deadline < math.inf:
            deadline = time.monotonic() + fraction * self.remaining_s()
        return replace(self, deadline=deadline, max_steps=self.work.done + fraction * self.remaining_steps())

    def without_limits(self) -> SearchEffort:
        """Return the same effort without limits, for steps that always run."""
        return SearchEffort(self.gap_target, deadline=math.inf, seed=self.seed, solver=self.solver)

    def reached_limit(self) -> str | None:
        """Return the name of the limit that was reached, or None."""
        if self.work.done >= self.max_steps:
            return "work_limit"
        return "time_limit" if self.remaining_s() == 0.0 else None

    def is_spent(self) -> bool:
        """Whether a limit was reached."""
        return self.reached_limit() is not None


def _is_whole(value: object) -> bool:
    """Whether a value is a whole number; booleans are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def relative_gap(objective: float, bound: float) -> float:
    """Return (objective - bound) / objective, the relative optimality gap; 0 within :data:`RELATIVE_COST_TOLERANCE`.

    Examples
    --------
    >>> relative_gap(200.0, 199.0), relative_gap(0.0, 0.0)
    (0.005, 0.0)
    """
    distance = objective - bound
    return distance / objective if distance > RELATIVE_COST_TOLERANCE * max(1.0, objective) else 0.0


Sense = Literal[">=", "<="]
"""Relation of the left-hand side of a row to its right-hand side."""
Columns = NDArray[np.int64]
"""Positions of columns (variables) in a model."""


@dataclass(frozen=True)
class ConstraintRow:
    """One row of a model: coefficients times columns, summed, are at least or at most ``rhs``, as ``sense`` states."""

    name: str
    columns: list[int]
    coefficients: list[float]
    sense: Sense
    rhs: float


@dataclass
class LinearModel:
    """Minimize the cost of columns (whole numbers from 0, unless narrowed) subject to rows.

    Examples
    --------
    >>> model = LinearModel()
    >>> x = model.add_columns(["x"], cost=[3.0], high=[10.0])
    >>> model.add_row("demand", x, [2.0], ">=", 5.0)
    >>> len(model.names), model.rows[0].columns
    (1, [0])
    """

    names: list[str] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    rows: list[ConstraintRow] = field(default_factory=list)

    def add_columns(self, names: Sequence[str], *, cost: Iterable[float], high: Iterable[float]) -> Columns:
        """Append whole-number columns with costs and upper limits; return their positions."""
        first = len(self.names)
        self.names.extend(names)
        self.cost.extend(map(float, cost))
        self.high.extend(map(float, high))
        self.low.extend([0.0] * len(names))
        return np.arange(first, len(self.names))

    def narrow_bounds(self, columns: Columns, low: Iterable[float], high: Iterable[float]) -> None:
        """Narrow the limits of columns."""
        for column, minimum, maximum in zip(columns.tolist(), low, high, strict=True):
            self.low[column] = max(self.low[column], float(minimum))
            self.high[column] = min(self.high[column], float(maximum))

    def add_row(
        self, name: str, columns: Iterable[int], coefficients: Iterable[float], sense: Sense, rhs: float
    ) -> None:
        """Append one row; zero coefficients are left out.

        Parameters
        ----------
        name : str
            Name of the row.
        columns : iterable of int
            Positions of its columns.
        coefficients : iterable of float
            Their coefficients.
        sense : {">=", "<="}
            Relation to `rhs`.
        rhs : float
            Right-hand side.
        """
        terms = [(int(c), float(v)) for c, v in zip(columns, coefficients, strict=True) if v]
        self.rows.append(ConstraintRow(name, [c for c, _ in terms], [v for _, v in terms], sense, float(rhs)))

    def row_limits(self) -> tuple[list[float], list[float]]:
        """Return lower and upper limits of all rows."""
        low = [row.rhs if row.sense == ">=" else -math.inf for row in self.rows]
        high = [row.rhs if row.sense == "<=" else math.inf for row in self.rows]
        return low, high

    def value(self, values: NDArray[np.float64]) -> float:
        """Return the objective of the model at the given column values."""
        return float(np.dot(self.cost, values))
