"""Programs that grow by columns, handed to HiGHS by its own interface.

Other models go through PuLP. Here one linear program is solved hundreds of times, each time with a few more
columns and from the last basis; PuLP hands a model over anew at every solve, which would take most of the time, so
it is not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuplanner._optional import import_optional

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_MOST_NODES = 20_000  # a limit that means the same on every machine


@dataclass(frozen=True)
class LinearAnswer:
    """Answer of a linear program, to the solver's tolerances: prove nothing by it without a check of your own.

    Parameters
    ----------
    value : float
        Objective.
    duals : ndarray of float, shape (n_rows,)
        Prices of the rows, at least 0.
    work : int
        Iterations times rows, a measure of effort that does not depend on the machine.
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
        self._highspy = import_optional("highspy", extra="plan")
        self._highs = _quiet(self._highspy)

    @classmethod
    def covering(cls, n_rows: int) -> LinearProgram:
        """Fewest columns that cover every row once: no column yet."""
        program = cls()
        for _ in range(n_rows):
            program._highs.addRow(1.0, program._highspy.kHighsInf, 0, _no_rows, _no_values)
        return program

    @classmethod
    def packing(cls, low: Integers, high: Integers, sizes: Integers, limits: Integers) -> LinearProgram:
        """Most value of items, fractions allowed, with at most ``limits[t]`` of size at every moment t."""
        program = cls()
        highspy, lives = program._highspy, high - low
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(low), len(limits)
        model.sense_ = highspy.ObjSense.kMaximize
        model.col_cost_, model.col_lower_ = np.zeros(len(low)), np.zeros(len(low))
        model.col_upper_ = np.ones(len(low))
        model.row_lower_ = np.full(len(limits), -highspy.kHighsInf)
        model.row_upper_ = limits.astype(np.float64)
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        model.a_matrix_.start_ = np.concatenate(([0], np.cumsum(lives))).astype(np.int32)
        model.a_matrix_.index_ = np.concatenate(
            [np.arange(first, last) for first, last in zip(low, high, strict=True)]
        ).astype(np.int32)
        model.a_matrix_.value_ = np.repeat(sizes.astype(np.float64), lives)
        program._highs.passModel(model)
        return program

    def add_column(self, rows: Integers, amounts: NDArray[Any]) -> None:
        """Add a column that costs 1 and may be used any number of times."""
        count, infinity = len(rows), self._highspy.kHighsInf
        self._highs.addCol(1.0, 0.0, infinity, count, rows.astype(np.int32), amounts.astype(np.float64))

    def set_demand(self, demand: Integers) -> None:
        """Ask that row i is covered ``demand[i]`` times."""
        infinity = self._highspy.kHighsInf
        for row, amount in enumerate(demand.tolist()):
            self._highs.changeRowBounds(row, float(amount), infinity)

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
    highs = _quiet(highspy)
    highs.setOptionValue("time_limit", time_limit_s)
    highs.setOptionValue("random_seed", seed)
    highs.setOptionValue("mip_max_nodes", _MOST_NODES)
    n_patterns, n_items = patterns.shape
    columns, rows = np.nonzero(patterns)
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = n_patterns, n_items + 1
    model.col_cost_, model.col_lower_ = np.ones(n_patterns), np.zeros(n_patterns)
    model.col_upper_ = np.ones(n_patterns)
    model.row_lower_ = np.concatenate((np.ones(n_items), [-highspy.kHighsInf]))
    model.row_upper_ = np.concatenate((np.full(n_items, highspy.kHighsInf), [float(most)]))
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    counts = patterns.sum(axis=1) + 1
    model.a_matrix_.start_ = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    order = np.argsort(np.concatenate((columns, np.arange(n_patterns))), kind="stable")
    model.a_matrix_.index_ = np.concatenate((rows, np.full(n_patterns, n_items)))[order].astype(np.int32)
    model.a_matrix_.value_ = np.ones(len(order))
    model.integrality_ = [highspy.HighsVarType.kInteger] * n_patterns
    highs.passModel(model)
    highs.run()
    if highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        return None, True
    if highs.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None, False
    return np.flatnonzero(np.array(highs.getSolution().col_value) > 0.5), True


_no_rows = np.empty(0, dtype=np.int32)
_no_values = np.empty(0, dtype=np.float64)


def _quiet(highspy: Any) -> Any:  # noqa: ANN401 - library objects
    highs = highspy.Highs()
    for option, value in {"output_flag": False, "threads": 1}.items():
        highs.setOptionValue(option, value)
    return highs
