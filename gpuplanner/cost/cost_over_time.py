"""Cost by week and by month, with the change from one period to the next."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from gpuplanner.core.units_and_number_formats import UNALLOCATED_TEAM, count_text, split_amount
from gpuplanner.usage.gpu_hour_ledger import UNALLOCATED_TENANT_LABEL
from gpuplanner.usage.grouped_usage import TIME_GROUPS, time_group

SPREAD_GROUPS = ("team", "gpu_model", "bucket", *TIME_GROUPS)
"""Groups by which the cost of charge lines can be spread over time, in any combination."""


def spread_cost(costs: pl.DataFrame, ledger: pl.DataFrame, by: Sequence[str], *, tz: str = "UTC") -> pl.DataFrame:
    """Spread charge lines over the hours of the ledger, in proportion to their GPU-hours, and sum them by group.

    Parameters
    ----------
    costs : polars.DataFrame
        Charge lines, table ``schemas.Costs``.
    ledger : polars.DataFrame
        Table ``schemas.Ledger`` of the same period.
    by : sequence of str
        Groups, of :data:`SPREAD_GROUPS`; weeks begin on Monday.
    tz : str
        IANA zone in which periods begin.

    Returns
    -------
    polars.DataFrame
        The groups, ``days`` of their part of the time with GPU-hours, ``gpu_hours`` and ``cost``; the cost of all rows
        is that of the charge lines. Sorted by the parts of the time, then by the other groups.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> lines = {"SubAccountName": ["nlp"], "x_GpuModel": ["A30"], "x_Bucket": ["used"], "EffectiveCost": [30.0]}
    >>> days = [datetime(2026, 3, day, tzinfo=UTC) for day in (2, 9)]
    >>> hours = {"tenant": ["nlp"] * 2, "gpu_model": ["A30"] * 2, "bucket": ["used"] * 2, "hour": days}
    >>> ledger = pl.DataFrame(hours | {"gpu_hours": [1.0, 2.0]})
    >>> spread_cost(pl.DataFrame(lines), ledger, ["week"])["cost"].to_list()
    [10.0, 20.0]
    """
    keys = ["team", "gpu_model", "bucket"]
    lines = costs.group_by(team="SubAccountName", gpu_model="x_GpuModel", bucket="x_Bucket", maintain_order=True).agg(
        cost=pl.col("EffectiveCost").cast(pl.Float64).sum()
    )
    times = [name for name in by if name in TIME_GROUPS]
    rows = ledger.select(
        pl.col("gpu_model", "bucket").cast(pl.String),
        "gpu_hours",
        *(time_group(name, "hour", tz) for name in times),
        team=pl.col("tenant").cast(pl.String).replace({UNALLOCATED_TENANT_LABEL: UNALLOCATED_TEAM}),
        calendar_day=time_group("day", "hour", tz),
    )
    share = pl.col("gpu_hours") / pl.col("gpu_hours").sum().over(keys)
    priced = rows.join(lines, on=keys, how="left", nulls_equal=True).with_columns(cost=pl.col("cost") * share)
    n_days = pl.col("calendar_day").n_unique()
    priced = priced.with_columns(days=n_days.over(times) if times else n_days)
    sums = priced.group_by(by, maintain_order=True).agg(pl.col("days").first(), pl.col("gpu_hours", "cost").sum())
    return sums.select(*by, "days", "gpu_hours", "cost").sort(*times, *(name for name in by if name not in times))


def tabulate_teams_by_week(
    costs: pl.DataFrame, ledger: pl.DataFrame, *, tz: str = "UTC", currency: str = "USD"
) -> pl.DataFrame:
    """Tabulate the cost of each team by calendar week, to the cent, with the total of each team.

    Parameters
    ----------
    costs, ledger, tz
        As of :func:`spread_cost`.
    currency : str
        Currency of the charge lines, for the names of the columns.

    Returns
    -------
    polars.DataFrame
        ``team`` in the order of the charge lines, a column for each week, which its Monday names, with its days where
        it was observed in part, and ``total``. [currency]

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> lines = {"SubAccountName": ["nlp"], "x_GpuModel": ["A30"], "x_Bucket": ["used"], "EffectiveCost": [10.0]}
    >>> costs = pl.DataFrame(lines).cast({"EffectiveCost": pl.Decimal(18, 2)})
    >>> days = [datetime(2026, 3, day, tzinfo=UTC) for day in (2, 9)]
    >>> hours = {"tenant": ["nlp"] * 2, "gpu_model": ["A30"] * 2, "bucket": ["used"] * 2, "hour": days}
    >>> table = tabulate_teams_by_week(costs, pl.DataFrame(hours | {"gpu_hours": [1.0, 2.0]}))
    >>> table.columns[1], [str(amount) for amount in table.row(0)[1:]]
    ('week from Mon 2026-03-02, 1 day [USD]', ['3.33', '6.67', '10.00'])
    """
    by_week = spread_cost(costs, ledger, ["team", "week"], tz=tz)
    names = [
        f"week from Mon {week}" + (f", {count_text(days, 'day')}" if days < 7 else "") + f" [{currency}]"
        for week, days in by_week.select("week", "days").unique(maintain_order=True).iter_rows()
    ]
    totals = costs.group_by(team="SubAccountName", maintain_order=True).agg(pl.col("EffectiveCost").sum())
    weekly = totals.join(by_week.pivot("week", index="team", values="cost"), "team", "left", maintain_order="left")
    weights = weekly.with_columns(pl.selectors.float().fill_null(0.0))  # a team without GPU-hours in a week
    parts = [split_amount(total, amounts) for _, total, *amounts in weights.iter_rows()]
    amounts = pl.DataFrame(parts, schema=dict.fromkeys(names, totals.dtypes[1]), orient="row")
    return totals.select("team", *amounts, pl.col("EffectiveCost").alias(f"total [{currency}]"))


def compare_periods(by_team: pl.DataFrame, every: str) -> pl.DataFrame:
    """Sum the cost of all teams by period, with the change against the period before.

    Parameters
    ----------
    by_team : polars.DataFrame
        Table of :func:`spread_cost`.
    every : {"week", "month"}
        Length of a period.

    Returns
    -------
    polars.DataFrame
        `every`, ``days`` observed, ``gpu_hours``, ``cost``, ``cost_per_day``, and ``change_fraction`` of the latter
        against the period before: months differ in length, and the first and last period may be observed in part.

    Examples
    --------
    >>> rows = {"team": ["a", "a"], "days": [7, 7], "gpu_hours": [10.0, 12.0], "cost": [20.0, 24.0], "week": [1, 2]}
    >>> compare_periods(pl.DataFrame(rows), "week")["change_fraction"].to_list()[1]
    0.2
    """
    sums = by_team.group_by(every).agg(pl.col("days").first(), pl.col("gpu_hours", "cost").sum()).sort(every)
    daily = pl.col("cost") / pl.col("days")
    before = daily.shift()
    return sums.with_columns(
        cost_per_day=daily,
        change_fraction=pl.when(before > 0).then((daily / before - 1).round(4) + 0.0),
    )
