"""Who held what, who was kept from what, and who borrowed from whom."""

from __future__ import annotations

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import prepare, theme

WITHIN, ABOVE, MISSING = "held, within entitlement", "held, above entitlement", "due, but not given"
NOBODY = "-"
_PARTS = {WITHIN: "held_gpu_hours", ABOVE: "above_gpu_hours", MISSING: "deficit_gpu_hours"}


def plot_tenant_shares(shares: pl.DataFrame, *, top: int = 8) -> ChartType:
    """GPUs that tenants held over time, stacked.

    Parameters
    ----------
    shares : polars.DataFrame
        ``tenant, slot_s, gpus``, as :func:`gpuplanner.metrics.shares_over_time` makes it. Slots are averaged
        until the chart is small enough.
    top : int
        Tenants with an area of their own: those that held most.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> frame = pl.DataFrame({"tenant": ["a", "a"], "slot_s": [0.0, 3600.0], "gpus": [4.0, 2.0]})
    >>> plot_tenant_shares(frame).to_dict()["title"]
    'GPUs held over time, by tenant'
    """
    prepare.require(shares, ["tenant", "slot_s", "gpus"], where="plot_tenant_shares")
    title = "GPUs held over time, by tenant"
    if shares.is_empty():
        return theme.saying("No tenant held a GPU.", title=title)
    totals = shares.group_by("tenant").agg(pl.col("gpus").sum())
    names = prepare.folded(totals.sort("gpus", "tenant", descending=[True, False])["tenant"].to_list(), top)
    order = list(dict.fromkeys(names.values()))
    starts = shares["slot_s"].unique().sort()
    together = -(-len(starts) * len(order) // prepare.MAX_ROWS)
    bins = pl.DataFrame({"slot_s": starts, "bin": pl.int_range(len(starts), eager=True) // together})
    rows = (
        shares.join(bins, on="slot_s")
        .group_by("bin", "slot_s", tenant=pl.col("tenant").replace_strict(names))
        .agg(pl.col("gpus").sum())
        .group_by("bin", "tenant")
        .agg(pl.col("gpus").mean(), hour=pl.col("slot_s").min() / 3600.0)
        .sort("bin", "tenant")
        .drop("bin")
    )
    colours = dict(zip(order, theme.PALETTE, strict=False))
    rank = {name: rank for rank, name in enumerate(order)}
    data = alt.Chart(
        prepare.to_data(
            rows.with_columns(rank=pl.col("tenant").replace_strict(rank)), where="plot_tenant_shares"
        )
    )
    chart: ChartType = (
        data.mark_area(interpolate="step-after", opacity=0.9)
        .encode(
            x=alt.X("hour:Q", title="hours from the start", scale=alt.Scale(nice=False)),
            y=alt.Y("gpus:Q", title="GPUs held", stack="zero"),
            color=alt.Color("tenant:N", title=None, scale=theme.scale(colours, order)),
            order=alt.Order("rank:Q"),
            tooltip=[
                alt.Tooltip("tenant:N", title="tenant"),
                alt.Tooltip("hour:Q", title="from hour", format=",.1f"),
                alt.Tooltip("gpus:Q", title="GPUs held", format=",.1f"),
            ],
        )
        .properties(width="container", height=260)
    )
    return theme.finish(chart, title=title)


def plot_entitlements(accounts: pl.DataFrame, *, top: int = 15) -> ChartType:
    """GPU-hours of each tenant: held within its entitlement, above it, and due but not given.

    Parameters
    ----------
    accounts : polars.DataFrame
        ``tenant, held_gpu_hours, above_gpu_hours, deficit_gpu_hours``, as
        :func:`gpuplanner.metrics.tenant_accounts` makes it.
    top : int
        Tenants shown: those that lack most, then those that hold most above.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> frame = pl.DataFrame({"tenant": ["a"], "held_gpu_hours": [9.0], "above_gpu_hours": [3.0],
    ...     "deficit_gpu_hours": [0.0]})
    >>> plot_entitlements(frame).to_dict()["title"]
    'GPU-hours held and missing, by tenant'
    """
    prepare.require(accounts, ["tenant", *_PARTS.values()], where="plot_entitlements")
    title = "GPU-hours held and missing, by tenant"
    if accounts.is_empty():
        return theme.saying("There is no tenant.", title=title)
    most = ["deficit_gpu_hours", "above_gpu_hours", "tenant"]
    shown = accounts.sort(most, descending=[True, True, False]).head(top)
    order = shown["tenant"].to_list()
    parts = shown.select(
        "tenant",
        pl.col("held_gpu_hours").sub(pl.col("above_gpu_hours")).clip(lower_bound=0.0).alias(WITHIN),
        pl.col("above_gpu_hours").alias(ABOVE),
        pl.col("deficit_gpu_hours").alias(MISSING),
    ).unpivot(list(_PARTS), index="tenant", variable_name="part", value_name="gpu_hours")
    rank = {part: rank for rank, part in enumerate(_PARTS)}
    rows = parts.with_columns(rank=pl.col("part").replace_strict(rank))
    colours = {WITHIN: theme.PALETTE[0], ABOVE: theme.PALETTE[4], MISSING: theme.PALETTE[5]}
    chart: ChartType = (
        alt.Chart(prepare.to_data(rows, where="plot_entitlements"))
        .mark_bar()
        .encode(
            x=alt.X("gpu_hours:Q", title="GPU-hours", stack="zero"),
            y=alt.Y("tenant:N", title=None, sort=order),
            color=alt.Color("part:N", title=None, scale=theme.scale(colours, list(_PARTS))),
            order=alt.Order("rank:Q"),
            tooltip=[
                alt.Tooltip("tenant:N", title="tenant"),
                alt.Tooltip("part:N", title="part"),
                alt.Tooltip("gpu_hours:Q", title="GPU-hours", format=",.1f"),
            ],
        )
        .properties(width="container", height=theme.BAND_HEIGHT * len(order))
    )
    return theme.finish(chart, title=title, legend=200, names=prepare.label_width(order))


def entitlements_text(accounts: pl.DataFrame) -> str:
    """Text alternative of :func:`plot_entitlements`: who lacks most.

    Examples
    --------
    >>> entitlements_text(pl.DataFrame({"tenant": ["a", "b"], "deficit_gpu_hours": [0.0, 4.0]}))
    '1 of 2 tenants lack GPU-hours that are due to them; b lacks most, 4.0.'
    """
    lacking = accounts.filter(pl.col("deficit_gpu_hours") > 0)
    if lacking.is_empty():
        return "No tenant lacks GPU-hours that are due to it."
    row = lacking.sort("deficit_gpu_hours", "tenant", descending=[True, False]).row(0, named=True)
    return (
        f"{lacking.height} of {accounts.height} tenants lack GPU-hours that are due to them; "
        f"{row['tenant']} lacks most, {row['deficit_gpu_hours']:,.1f}."
    )


def plot_borrowing(borrowed: pl.DataFrame, *, top: int = 12) -> ChartType:
    """GPU-hours that each tenant (row) held above its entitlement at the cost of each other one (column).

    Parameters
    ----------
    borrowed : polars.DataFrame
        ``borrower, lender, gpu_hours``, as :func:`gpuplanner.metrics.borrowing` makes it, where ``-`` is nobody:
        as borrower GPUs that stood idle, as lender entitlement that nobody claimed.
    top : int
        Borrowers and lenders with a row or column of their own; the others are added up.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> frame = pl.DataFrame({"borrower": ["a", "-"], "lender": ["b", "b"], "gpu_hours": [4.0, 1.0]})
    >>> plot_borrowing(frame).to_dict()["title"]
    'GPU-hours borrowed, by borrower and lender'
    """
    prepare.require(borrowed, ["borrower", "lender", "gpu_hours"], where="plot_borrowing")
    title = "GPU-hours borrowed, by borrower and lender"
    if borrowed.is_empty():
        return theme.saying("No tenant held more than its entitlement, and none lacked any.", title=title)
    sides, words = {}, {"borrower": "idle GPUs", "lender": "unclaimed"}
    for side in words:
        totals = borrowed.filter(pl.col(side) != NOBODY).group_by(side).agg(pl.col("gpu_hours").sum())
        ranked = totals.sort("gpu_hours", side, descending=[True, False])[side].to_list()
        sides[side] = prepare.folded(ranked, top) | {NOBODY: words[side]}
    rows = (
        borrowed.with_columns(pl.col(side).replace_strict(names) for side, names in sides.items())
        .group_by("borrower", "lender")
        .agg(pl.col("gpu_hours").sum())
        .sort("borrower", "lender")
    )
    orders = {
        side: [name for name in dict.fromkeys(names.values()) if name in set(rows[side])]
        for side, names in sides.items()
    }
    half = float(rows["gpu_hours"].max()) / 2  # type: ignore[arg-type]
    data = alt.Chart(prepare.to_data(rows, where="plot_borrowing")).encode(
        x=alt.X(
            "lender:N", title="from", sort=orders["lender"], axis=alt.Axis(labelAngle=-35, labelLimit=120)
        ),
        y=alt.Y("borrower:N", title="borrower", sort=orders["borrower"]),
    )
    cells = data.mark_rect().encode(
        color=alt.Color(
            "gpu_hours:Q", legend=None, scale=alt.Scale(range=["#eef3f8", theme.PALETTE[0]], zero=True)
        ),
        tooltip=[
            alt.Tooltip("borrower:N", title="borrower"),
            alt.Tooltip("lender:N", title="from"),
            alt.Tooltip("gpu_hours:Q", title="GPU-hours", format=",.1f"),
        ],
    )
    numbers = data.mark_text(fontSize=11).encode(
        text=alt.Text("gpu_hours:Q", format=".3~s"),
        color=alt.condition(f"datum.gpu_hours > {half!r}", alt.value("white"), alt.value(theme.INK)),
    )
    chart = alt.layer(cells, numbers).properties(
        width="container", height=theme.BAND_HEIGHT * len(orders["borrower"])
    )
    return theme.finish(chart, title=title, names=prepare.label_width(orders["borrower"]) + 20)


def borrowing_text(borrowed: pl.DataFrame) -> str:
    """Text alternative of :func:`plot_borrowing`: how much was borrowed, and the largest pair.

    Examples
    --------
    >>> borrowing_text(pl.DataFrame({"borrower": ["a", "-"], "lender": ["b", "b"], "gpu_hours": [4.0, 1.0]}))
    'Tenants borrowed 4.0 GPU-hours that were due to others; most a from b, 4.0. 1.0 more ... GPUs were idle.'
    """
    between = borrowed.filter(pl.col("borrower") != NOBODY, pl.col("lender") != NOBODY)
    idle = float(borrowed.filter(pl.col("borrower") == NOBODY)["gpu_hours"].sum())
    rest = f" {idle:,.1f} more were due while GPUs were idle." if idle else ""
    if between.is_empty():
        return f"No tenant held GPUs that were due to another.{rest}"
    row = between.sort("gpu_hours", descending=True, maintain_order=True).row(0, named=True)
    return (
        f"Tenants borrowed {between['gpu_hours'].sum():,.1f} GPU-hours that were due to others; most "
        f"{row['borrower']} from {row['lender']}, {row['gpu_hours']:,.1f}.{rest}"
    )
