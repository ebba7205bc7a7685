"""A linear model as plain lists, filled family by family and handed to a solver in one piece."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

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
