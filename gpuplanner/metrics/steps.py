"""Step functions: what a sweep over sorted events makes of them."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl


def steps(events: pl.DataFrame, by: str, changes: Sequence[str], *, until_s: float) -> pl.DataFrame:
    """Sum up changes over time, group by group.

    Changes of one instant count at once. Sorting is all that costs more than one pass: O(n log n). Integer
    changes are summed exactly.

    Parameters
    ----------
    events : polars.DataFrame
        The columns `by`, ``at_s`` [s] and `changes`.
    by : str
        Column of the groups.
    changes : sequence of str
        By how much each value changes.
    until_s : float
        End of the last piece of every group [s].

    Returns
    -------
    polars.DataFrame
        Pieces of a length above 0, sorted by group and time: `by`, ``start_s``, ``end_s`` and the values. The
        pieces of a group are adjacent, from its first event on.

    Examples
    --------
    >>> events = pl.DataFrame({"node": 0, "at_s": [5.0, 0.0, 5.0], "held": [-2, 3, 1]})
    >>> steps(events, "node", ["held"], until_s=9.0).rows()
    [(0, 0.0, 5.0, 3), (0, 5.0, 9.0, 2)]
    """
    return (
        events.group_by(by, start_s="at_s")
        .agg(pl.col(changes).sum())
        .sort(by, "start_s")
        .with_columns(
            pl.col(changes).cum_sum().over(by),
            end_s=pl.col("start_s").shift(-1).over(by).fill_null(until_s),
        )
        .filter(pl.col("end_s") > pl.col("start_s"))
        .select(by, "start_s", "end_s", *changes)
    )
