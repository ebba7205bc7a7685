"""What jobs wanted and held, from when to when: the ground of every account of tenants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True, eq=False)
class Claims:
    """Jobs over time, in whole units, so that sums are exact.

    Parameters
    ----------
    table : polars.DataFrame
        One claim a row: ``tenant``, ``submit_s`` (it waits from then on), ``start_s`` (it holds from then on),
        ``end_s``, and the units ``wanted`` and ``held``. A job that was stopped is several claims.
    units_per_gpu : int
        1, or the compute slices of the board.
    window : tuple of float
        Start and end of what is accounted [s].
    """

    table: pl.DataFrame
    units_per_gpu: int
    window: tuple[float, float]

    def by_tenant(self, tenants: frozenset[str] = frozenset()) -> pl.DataFrame:
        """Units held and waited for, tenant by tenant, over the whole window.

        Parameters
        ----------
        tenants : frozenset of str
            Tenants to list though they claim nothing.

        Returns
        -------
        polars.DataFrame
            ``tenant, start_s, end_s, held, waiting`` (units): adjacent pieces that fill the window for every
            tenant.
        """
        begin, end = self.window
        held, wanted = pl.col("held"), pl.col("wanted")
        everyone = sorted(tenants.union(self.table["tenant"]))
        none = {"tenant": everyone, "at_s": begin, "held": 0, "waiting": 0}
        events = [
            pl.DataFrame(none, schema={"tenant": pl.String, "at_s": float, "held": int, "waiting": int})
        ]
        for instant, more, longer in (
            ("submit_s", pl.lit(0), wanted),
            ("start_s", held, -wanted),
            ("end_s", -held, pl.lit(0)),
        ):
            at = pl.col(instant).clip(begin, end)
            events.append(self.table.select("tenant", at_s=at, held=more.cast(int), waiting=longer.cast(int)))
        return steps(pl.concat(events), "tenant", ["held", "waiting"], until_s=end)


def steps(events: pl.DataFrame, by: str, changes: Sequence[str], *, until_s: float) -> pl.DataFrame:
    """Sum up changes over time, group by group.

    Changes of one instant count at once. Sorting is all that costs more than one pass: O(n log n). Integer
    changes are summed exactly.

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
