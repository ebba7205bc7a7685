"""Arrays and tables of the compiled loops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Table: TypeAlias = np.recarray[Any, Any]
Row: TypeAlias = Any  # one row of a table

EVENT = {"at": float, "who": int}
"""When something happens, and the number of whoever it happens to."""


def table(columns: Mapping[str, type], rows: int) -> Table:
    """A table of zeros.

    Parameters
    ----------
    columns : mapping of str to type
        Type of each column by its name.
    rows : int
        Number of rows.

    Examples
    --------
    >>> table(EVENT, 2).who.tolist()
    [0, 0]
    """
    return np.zeros(rows, np.dtype(list(columns.items()), align=True)).view(np.recarray)
