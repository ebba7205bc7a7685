"""Linear models and their solution with HiGHS within a work limit.

Other models go through PuLP. Here one linear program is solved hundreds of times, each time with a few more
columns and from the last basis; PuLP hands a model over anew at every solve, which would take most of the time, so
it is not used.
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
from gpuplanner.core.execution import import_optional

Library: TypeAlias = Any
"""Objects of a library without types that is imported when it is used."""


def quiet_highs(**options: object) -> Library:
    """A solver that prints nothing and runs on one processor."""
    highs = import_optional("highspy", extra="plan").Highs()
    for name, value in {"output_flag": False, "threads": 1, **options}.items():
        highs.setOptionValue(name, value)
    return highs


def hand_over(
    highs: Library,
    cost: ArrayLike,
    columns: tuple[ArrayLike, ArrayLike],
    rows: tuple[ArrayLike, ArrayLike],
    held: Sequence[Sequence[int]],
    amounts: Iterable[Iterable[float]],
    *,
    by_column: bool = False,
    whole: bool = False,
    most: bool = False,
) -> None:
    """Give a solver a program: limits of its columns and rows, and row by row the columns in it with their amounts.

    If `by_column`, `held` and `amounts` are those of the rows that each column is in. If `whole`, columns are whole
    numbers; if `most`, the cost is a worth, of which there is to be as much as possible.
    """
    highspy = import_optional("highspy", extra="plan")
    program = highspy.HighsLp()
    program.col_cost_ = np.array(cost, dtype=np.float64)
    program.col_lower_, program.col_upper_ = (np.array(limit, dtype=np.float64) for limit in columns)
    program.row_lower_, program.row_upper_ = (np.array(limit, dtype=np.float64) for limit in rows)
    program.num_col_, program.num_row_ = len(program.col_cost_), len(program.row_lower_)
    if most:
        program.sense_ = highspy.ObjSense.kMaximize
    matrix, formats = program.a_matrix_, highspy.MatrixFormat
    matrix.format_ = formats.kColwise if by_column else formats.kRowwise
    matrix.start_ = np.cumsum([0, *map(len, held)], dtype=np.int32)
    matrix.index_ = np.fromiter(itertools.chain.from_iterable(held), dtype=np.int32)
    matrix.value_ = np.fromiter(itertools.chain.from_iterable(amounts), dtype=np.float64)
    if whole:
        program.integrality_ = [highspy.HighsVarType.kInteger] * program.num_col_
    highs.passModel(program)


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_MOST_NODES = 20_000  # a limit that means the same on every machine


@dataclass(frozen=True)
class LinearAnswer:
    """Answer of a linear program, to the solver's tolerances: prove nothing by it without a check of your own.

    - ``value``: Objective.
    - ``duals``, shape (n_rows,): Prices of the rows, at least 0.
    - ``work``: Iterations times rows, a measure of effort that does not depend on the machine.
    """

    value: float
    duals: Floats
    work: int


class LinearProgram:
    """A linear program that keeps its basis while it grows.

    Examples
    --------
    >>> program = LinearProgram.covering(2)
    >>> for rows in ([0], [1], [0, 1]):
    ...     program.add_column(np.array(rows), np.ones(len(rows)))
    >>> program.solve().value
    1.0
    """

    def __init__(self) -> None:
        self._highs = quiet_highs()

    @classmethod
    def covering(cls, n_rows: int) -> LinearProgram:
        """Fewest columns that cover every row once: no column yet."""
        program = cls()
        for _ in range(n_rows):
            program._highs.addRow(1.0, math.inf, 0, np.zeros(0, dtype=np.int32), np.zeros(0))
        return program

    @classmethod
    def packing(cls, low: Integers, high: Integers, sizes: Integers, limits: Integers) -> LinearProgram:
        """Most value of items, fractions allowed, with at most ``limits[t]`` of size at every moment t."""
        program, lives = cls(), high - low
        active = [range(first, last) for first, last in zip(low.tolist(), high.tolist(), strict=True)]
        taken = np.split(np.repeat(sizes.astype(np.float64), lives), np.cumsum(lives)[:-1])
        columns = (np.zeros(len(low)), np.ones(len(low)))
        rows = (np.full(len(limits), -math.inf), limits)
        hand_over(program._highs, columns[0], columns, rows, active, taken, by_column=True, most=True)
        return program

    def add_column(self, rows: Integers, amounts: NDArray[Any]) -> None:
        """Add a column that costs 1 and may be used any number of times."""
        self._highs.addCol(1.0, 0.0, math.inf, len(rows), rows.astype(np.int32), amounts.astype(np.float64))

    def set_demand(self, demand: Integers) -> None:
        """Ask that row i is covered ``demand[i]`` times."""
        for row, amount in enumerate(demand.tolist()):
            self._highs.changeRowBounds(row, float(amount), math.inf)

    def set_value(self, values: Floats) -> None:
        """Change what each column is worth."""
        self._highs.changeColsCost(len(values), np.arange(len(values), dtype=np.int32), values)

    def solve(self) -> LinearAnswer:
        """Solve from the last basis."""
        self._highs.run()
        info = self._highs.getInfo()
        duals = np.maximum(np.array(self._highs.getSolution().row_dual), 0.0)
        work = (max(info.simplex_iteration_count, 0) + 1) * self._highs.getNumRow()
        return LinearAnswer(float(info.objective_function_value), duals, work)


def fewest_columns(
    patterns: NDArray[np.bool_], most: int, *, time_limit_s: float, seed: int
) -> tuple[NDArray[np.int64] | None, bool]:
    """Choose at most `most` patterns that together cover every item.

    Examples
    --------
    >>> patterns = np.array([[True, True, False], [False, True, True], [False, False, True]])
    >>> fewest_columns(patterns, 2, time_limit_s=9, seed=0)
    (array([0, 1]), True)
    >>> fewest_columns(patterns, 1, time_limit_s=9, seed=0)
    (None, True)
    """
    highspy = import_optional("highspy", extra="plan")
    highs = quiet_highs(time_limit=time_limit_s, random_seed=seed, mip_max_nodes=_MOST_NODES)
    n_patterns, n_items = patterns.shape
    # The last row counts the patterns that are chosen.
    held = [[*np.flatnonzero(pattern).tolist(), n_items] for pattern in patterns]
    columns = (np.zeros(n_patterns), np.ones(n_patterns))
    rows = (np.append(np.ones(n_items), -math.inf), np.append(np.full(n_items, math.inf), most))
    ones = ([1.0] * len(pattern) for pattern in held)
    hand_over(highs, columns[1], columns, rows, held, ones, by_column=True, whole=True)
    highs.run()
    if highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        return None, True
    if highs.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None, False
    return np.flatnonzero(np.array(highs.getSolution().col_value) > 0.5), True


SOLVERS = ("highs", "cbc")
"""Solvers that can be asked for."""

_MOST_SEED = 2**31 - 1
TOLERANCE = 1e-6
"""Two costs that differ by no more than this, relative to the larger of 1 and the cost, count as equal."""
UNIT = 1_000_000
"""Elementary steps (pivots of a row, moments of bins looked at, labels made) in one unit of work."""


WORK_LIMIT = 2000
"""Units of work of a search that is given no limit: half a minute of one processor of 2026, whatever the machine."""


@dataclass
class Work:
    """Elementary steps that a search has done so far, all of its parts together."""

    done: float = 0.0


@dataclass(frozen=True)
class Effort:
    """Limits of one search.

    Stop rules are the gap, fixed numbers of passes and nodes, and elementary steps, which are counted: pivots, nodes,
    numbers of a model that is handed over. So the same problem and seed give the same plan on every machine, however
    busy it is; the clock is read only where a time limit was asked for.

    - ``gap_target``: Relative gap between plan and bound at which the search may stop.
    - ``deadline``: Instant of :func:`time.monotonic` after which no further step is begun [s].
    - ``time_limit_s``: Time from the beginning to the deadline [s].
    - ``seed``: Seed of the solver.
    - ``solver`` {"highs", "cbc"}: Name of the solver.
    - ``most``: Elementary steps after which no further one is begun.
    - ``work``: Steps done so far.
    """

    gap_target: float = 0.0
    deadline: float = math.inf
    time_limit_s: float = math.inf
    seed: int = 0
    solver: str = "highs"
    most: float = math.inf
    work: Work = field(default_factory=Work)

    @classmethod
    def begin(
        cls,
        *,
        gap_target: float = 0.0,
        time_limit_s: float | None = None,
        seed: int = 0,
        solver: str = "highs",
        work_limit: int | None = None,
        what: str = "plan",
    ) -> Effort:
        """Check the limits, and start the clock where it counts; without any limit, :data:`WORK_LIMIT` holds.

        Examples
        --------
        >>> Effort.begin(gap_target=0.005).remaining_steps() == WORK_LIMIT * UNIT
        True
        """
        faults = []
        if not 0 <= gap_target < 1:
            faults.append(f"gap_target must be at least 0 and below 1, not {gap_target!r}")
        if time_limit_s is not None and not 0 < time_limit_s < math.inf:
            faults.append(f"time_limit_s must be above 0 and finite, not {time_limit_s!r}")
        if not (_is_whole(seed) and 0 <= seed <= _MOST_SEED):
            faults.append(f"seed must be a whole number from 0 to {_MOST_SEED}, not {seed!r}")
        if work_limit is not None and not (_is_whole(work_limit) and work_limit >= 1):
            faults.append(f"work_limit must be a whole number of at least 1, not {work_limit!r}")
        if solver not in SOLVERS:
            faults.append(f"solver must be one of {', '.join(SOLVERS)}, not {solver!r}")
        if faults:
            raise ScenarioError(what, "valid limits", "; ".join(faults), "Fix these limits.")
        if work_limit is None and time_limit_s is None:
            work_limit = WORK_LIMIT
        most = math.inf if work_limit is None else work_limit * float(UNIT)
        if time_limit_s is None:
            return cls(gap_target, seed=seed, solver=solver, most=most)
        return cls(gap_target, time.monotonic() + time_limit_s, time_limit_s, seed, solver, most)

    def spend(self, steps: float) -> None:
        """Count elementary steps."""
        self.work.done += steps

    def remaining_s(self) -> float:
        """Seconds left, at least 0; infinite without a time limit, and then no clock is read."""
        return math.inf if self.deadline == math.inf else max(0.0, self.deadline - time.monotonic())

    def remaining_steps(self) -> float:
        """Elementary steps left, at least 0."""
        return max(0.0, self.most - self.work.done)

    def left(self) -> float:
        """Part of the time, or of the work where less of that is left, that is still allowed."""
        parts = [(self.remaining_s(), self.time_limit_s), (self.remaining_steps(), self.most)]
        return min((left / whole for left, whole in parts if whole < math.inf), default=1.0)

    def share(self, part: float) -> Effort:
        """The same limits with a part of the time and of the work that are left."""
        deadline = self.deadline
        if deadline < math.inf:
            deadline = time.monotonic() + part * self.remaining_s()
        return replace(self, deadline=deadline, most=self.work.done + part * self.remaining_steps())

    def unlimited(self) -> Effort:
        """The same without limits, for what comes before all of them."""
        return Effort(self.gap_target, deadline=math.inf, seed=self.seed, solver=self.solver)

    def why_spent(self) -> str | None:
        """Which limit was reached, if one was."""
        if self.work.done >= self.most:
            return "work_limit"
        return "time_limit" if self.remaining_s() == 0.0 else None

    def spent(self) -> bool:
        """Whether the time is up, or the work done."""
        return self.why_spent() is not None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def relative_gap(objective: float, bound: float) -> float:
    """How far a cost may lie above the least possible one, as a share of the cost; 0 if within tolerance.

    Examples
    --------
    >>> relative_gap(200.0, 199.0), relative_gap(0.0, 0.0)
    (0.005, 0.0)
    """
    distance = objective - bound
    return distance / objective if distance > TOLERANCE * max(1.0, objective) else 0.0


Sense = Literal[">=", "<="]
Columns = NDArray[np.int64]


@dataclass(frozen=True)
class Row:
    """One row: the sum of coefficients times columns stands in ``sense`` to ``rhs``."""

    name: str
    columns: list[int]
    coefficients: list[float]
    sense: Sense
    rhs: float


@dataclass
class LinearModel:
    """Minimise the cost of columns (variables, whole numbers from 0 on unless narrowed) subject to rows.

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
    rows: list[Row] = field(default_factory=list)

    def add_columns(self, names: Sequence[str], *, cost: Iterable[float], high: Iterable[float]) -> Columns:
        """Append whole-number columns and return their positions."""
        first = len(self.names)
        self.names.extend(names)
        self.cost.extend(map(float, cost))
        self.high.extend(map(float, high))
        self.low.extend([0.0] * len(names))
        return np.arange(first, len(self.names))

    def narrow(self, columns: Columns, low: Iterable[float], high: Iterable[float]) -> None:
        """Keep columns within closer bounds."""
        for column, least, most in zip(columns.tolist(), low, high, strict=True):
            self.low[column] = max(self.low[column], float(least))
            self.high[column] = min(self.high[column], float(most))

    def add_row(
        self, name: str, columns: Iterable[int], coefficients: Iterable[float], sense: Sense, rhs: float
    ) -> None:
        """Append one row; zero coefficients are left out."""
        held = [(int(c), float(v)) for c, v in zip(columns, coefficients, strict=True) if v]
        self.rows.append(Row(name, [c for c, _ in held], [v for _, v in held], sense, float(rhs)))

    def row_limits(self) -> tuple[list[float], list[float]]:
        """Least and most of the sum of each row."""
        low = [row.rhs if row.sense == ">=" else -math.inf for row in self.rows]
        high = [row.rhs if row.sense == "<=" else math.inf for row in self.rows]
        return low, high

    def value(self, values: NDArray[np.float64]) -> float:
        """Cost of given column values."""
        return float(np.dot(self.cost, values))
