"""Programs that grow by columns, handed to HiGHS by its own interface.

Other models go through PuLP. Here one linear program is solved hundreds of times, each time with a few more
columns and from the last basis; PuLP hands a model over anew at every solve, which would take most of the time, so
it is not used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuplanner._optional import import_optional
from gpuplanner.solving.highs import hand_over, quiet_highs

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
