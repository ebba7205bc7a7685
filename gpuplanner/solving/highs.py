"""HiGHS by its own interface: a quiet solver, and programs handed over as arrays in one call."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from gpuplanner._optional import import_optional

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
