"""Small numbers in place of tuples that come again and again, such as devices, and back."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
import polars as pl


@dataclass
class Codes:
    """Numbers tuples of values in the order in which they are first seen.

    Attributes
    ----------
    names : tuple of str
        Columns of which the values come.
    rows : list of tuple
        The tuples, by number.
    """

    names: tuple[str, ...]
    rows: list[tuple[Hashable, ...]] = field(default_factory=list)
    _known: dict[tuple[Hashable, ...], int] = field(default_factory=dict)

    def code(self, values: tuple[Hashable, ...]) -> int:
        """Number of one tuple."""
        known = self._known.get(values)
        if known is None:
            known = self._known[values] = len(self.rows)
            self.rows.append(values)
        return known

    def of(self, frame: pl.DataFrame) -> np.ndarray:
        """Number of each row of a table.

        Examples
        --------
        >>> codes = Codes(("node", "gpu"))
        >>> codes.of(pl.DataFrame({"node": ["n1", "n1", "n1"], "gpu": [0, 1, 0]})).tolist(), codes.rows
        ([0, 1, 0], [('n1', 0), ('n1', 1)])
        """
        varied = [name for name in self.names if not is_constant(frame[name])]
        if not varied:
            number = self.code(frame.select(self.names).row(0)) if frame.height else 0
            return np.full(frame.height, number, np.uint32)
        unique = frame.select(self.names).unique(varied, keep="first", maintain_order=True)
        numbers = [self.code(values) for values in unique.iter_rows()]
        table = unique.select(varied).with_columns(code=pl.Series(numbers, dtype=pl.UInt32))
        joined = frame.select(varied).join(
            table, on=varied, how="left", nulls_equal=True, maintain_order="left"
        )
        return joined["code"].to_numpy()


def is_constant(series: pl.Series) -> bool:
    """True if all values are the same, or all missing.

    Examples
    --------
    >>> is_constant(pl.Series([1, 1])), is_constant(pl.Series([None, 1]))
    (True, False)
    """
    if series.null_count():
        return series.null_count() == len(series)
    return not len(series) or bool((series == series[0]).all())
