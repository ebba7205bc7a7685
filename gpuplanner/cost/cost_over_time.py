"""Cost by week and by month, with the change from one period to the next."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Sequence
from decimal import Decimal

import polars as pl

from gpuplanner.core.units_and_number_formats import UNALLOCATED_TEAM, count_text, split_table
from gpuplanner.cost.showback import CENTS_DTYPE
from gpuplanner.usage.gpu_hour_ledger import UNALLOCATED_TENANT_LABEL
from gpuplanner.usage.grouped_usage import TIME_GROUPS, time_group

SPREAD_GROUPS = ("team", "gpu_model", "bucket", *TIME_GROUPS)
"""Groups by which the cost of charge lines can be spread over time, in any combination."""
ROUNDING_TEXT = "Amounts are GPU-hours × mean price of the period, rounded to the cent so that all sums are exact."
"""Rule of rounding, for pages, files and notebooks."""
MAX_LINE_ROUNDING = 0.03
"""Largest difference of a charge line from its GPU-hours times the rate that is rounding [currency]."""


def spread_cost(costs: pl.DataFrame, ledger: pl.DataFrame, by: Sequence[str], *, tz: str = "UTC") -> pl.DataFrame:
    """Spread charge lines over the hours of the ledger, in proportion to their GPU-hours, and sum them by group.

    A cost is its GPU-hours times their price, rounded up or down to the cent so that the parts of the time sum to the
    charge lines of a group, and the groups to the cost of a part of the time.

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
    >>> lines = {"SubAccountName": ["nlp"], "x_GpuModel": ["A30"], "x_Bucket": ["used"], "PricingQuantity": [3.0]}
    >>> costs = pl.DataFrame(lines).with_columns(EffectiveCost=pl.lit("10.00").cast(CENTS_DTYPE))
    >>> days = [datetime(2026, 3, day, tzinfo=UTC) for day in (2, 9)]
    >>> hours = {"tenant": ["nlp"] * 2, "gpu_model": ["A30"] * 2, "bucket": ["used"] * 2, "hour": days}
    >>> ledger = pl.DataFrame(hours | {"gpu_hours": [1.0, 2.0]})
    >>> spread_cost(costs, ledger, ["week"])["cost"].to_list()
    [Decimal('3.33'), Decimal('6.67')]
    """
    keys = {"team": "SubAccountName", "gpu_model": "x_GpuModel", "bucket": "x_Bucket"}
    lines = costs.group_by(**keys, maintain_order=True).agg(
        cost=pl.col("EffectiveCost").sum(), quantity=pl.col("PricingQuantity").sum()
    )
    # Lines at one rate differ from it by their rounding alone, which the rate of all of them does not have.
    cost, quantity = pl.col("cost").cast(pl.Float64), pl.col("quantity")
    is_one_rate = (cost - cost.sum() / quantity.sum() * quantity).abs().max() < MAX_LINE_ROUNDING
    rate = pl.when(is_one_rate.over("gpu_model")).then((cost.sum() / quantity.sum()).over("gpu_model"))
    lines = lines.with_columns(rate=rate.otherwise((cost / quantity).fill_nan(0.0)), whole=0)
    times = [name for name in by if name in TIME_GROUPS]
    row_groups = [name for name in by if name not in TIME_GROUPS]
    rows = ledger.select(
        pl.col("gpu_model", "bucket").cast(pl.String),
        "gpu_hours",
        *(time_group(name, "hour", tz) for name in times),
        team=pl.col("tenant").cast(pl.String).replace({UNALLOCATED_TENANT_LABEL: UNALLOCATED_TEAM}),
        calendar_day=time_group("day", "hour", tz),
        whole=0,
    )
    priced = rows.join(lines, on=[*keys], how="left", nulls_equal=True, maintain_order="left")
    n_days = pl.col("calendar_day").n_unique()
    priced = priced.with_columns(cost=pl.col("gpu_hours") * pl.col("rate"), days=n_days.over("whole", *times))
    sums = priced.group_by("whole", *by, maintain_order=True).agg(
        pl.col("days").first(), pl.col("gpu_hours", "cost").sum()
    )
    totals = dict.fromkeys(sums.select("whole", *row_groups).rows(), Decimal("0.00"))
    by_row = lines.group_by("whole", *row_groups, maintain_order=True).agg(pl.col("cost").sum())
    totals |= {tuple(row): cost for *row, cost in by_row.iter_rows()}
    places = zip(sums.select("whole", *row_groups).rows(), sums.select("whole", *times).rows(), strict=True)
    cents = split_table(totals, dict(zip(places, sums["cost"], strict=True)))
    amounts = pl.Series("cost", [*cents.values()], CENTS_DTYPE)
    return sums.select(*by, "days", "gpu_hours", amounts).sort(*times, *row_groups)


def tabulate_teams_over_time(costs: pl.DataFrame, by_period: pl.DataFrame, every: str, currency: str) -> pl.DataFrame:
    """Tabulate the cost of each team by calendar week or month, to the cent, with the total of each team.

    Parameters
    ----------
    costs : polars.DataFrame
        Charge lines, table ``schemas.Costs``.
    by_period : polars.DataFrame
        Their table of :func:`spread_cost` by ``team`` and `every`.
    every : {"week", "month"}
        Length of a period.
    currency : str
        Currency of the charge lines, for the names of the columns.

    Returns
    -------
    polars.DataFrame
        ``team`` in the order of the charge lines, a column for each week, which its Monday names, or month, with its
        days where it was observed in part, and ``total``. [currency]

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> lines = {"SubAccountName": ["nlp"], "x_GpuModel": ["A30"], "x_Bucket": ["used"], "PricingQuantity": [3.0]}
    >>> costs = pl.DataFrame(lines).with_columns(EffectiveCost=pl.lit("10.00").cast(CENTS_DTYPE))
    >>> days = [datetime(2026, 3, day, tzinfo=UTC) for day in (2, 9)]
    >>> hours = {"tenant": ["nlp"] * 2, "gpu_model": ["A30"] * 2, "bucket": ["used"] * 2, "hour": days}
    >>> ledger = pl.DataFrame(hours | {"gpu_hours": [1.0, 2.0]})
    >>> table = tabulate_teams_over_time(costs, spread_cost(costs, ledger, ["team", "week"]), "week", "USD")
    >>> table.columns[1], [str(amount) for amount in table.row(0)[1:]]
    ('week from Mon 2026-03-02, 1 day [USD]', ['3.33', '6.67', '10.00'])
    >>> tabulate_teams_over_time(costs, spread_cost(costs, ledger, ["team", "month"]), "month", "USD").columns
    ['team', 'Mar 2026, 2 days [USD]', 'total [USD]']
    """
    names = []
    for begin, days in by_period.select(every, "days").unique(maintain_order=True).iter_rows():
        name, length = f"week from Mon {begin}", 7
        if every == "month":
            name, length = f"{begin:%b %Y}", monthrange(begin.year, begin.month)[1]
        names.append(name + (f", {count_text(days, 'day')}" if days < length else "") + f" [{currency}]")
    totals = costs.group_by(team="SubAccountName", maintain_order=True).agg(pl.col("EffectiveCost").sum())
    # A team may have no GPU-hours in a period.
    wide = by_period.pivot(every, index="team", values="cost").fill_null(0)
    wide.columns = ["team", *names]
    return totals.join(wide, "team", "left", maintain_order="left").select(
        "team", *names, pl.col("EffectiveCost").alias(f"total [{currency}]")
    )


def mark_partial_weeks(table: pl.DataFrame) -> pl.DataFrame:
    """Write the observed days behind each week of a table of :func:`spread_cost` that was observed in part.

    Examples
    --------
    >>> from datetime import date
    >>> weeks = pl.DataFrame({"week": [date(2026, 1, 26), date(2026, 2, 2)], "days": [1, 7]})
    >>> mark_partial_weeks(weeks)["week"].to_list()
    ['2026-01-26 (1 of 7 days)', '2026-02-02']
    """
    if not {"week", "days"} <= {*table.columns}:
        return table
    days = pl.when(pl.col("days") < 7).then(pl.format(" ({} of 7 days)", "days")).otherwise(pl.lit(""))
    return table.with_columns(week=pl.col("week").cast(pl.String) + days)


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
    daily = pl.col("cost").cast(pl.Float64) / pl.col("days")
    before = daily.shift()
    return sums.with_columns(
        cost_per_day=daily, change_fraction=pl.when(before > 0).then((daily / before - 1).round(4) + 0.0)
    )
