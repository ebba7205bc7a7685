"""Who held what, who was kept from what, and who borrowed from whom."""

from __future__ import annotations

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import theme
from gpuplanner.plot.prepare import (
    MAX_ROWS,
    chart_of,
    drawn,
    each,
    folded,
    ranked,
    stacked,
    tips,
)

WITHIN, ABOVE, MISSING = "held, within entitlement", "held, above entitlement", "due, but not given"
NOBODY = "-"
_PARTS = {WITHIN: "held_gpu_hours", ABOVE: "above_gpu_hours", MISSING: "deficit_gpu_hours"}
_COLOURS = {WITHIN: theme.BLUE, ABOVE: theme.SKY, MISSING: theme.VERMILION}
_SHARES = ("tenant", "slot_s", "gpus")
_PAIRS = ("borrower", "lender", "gpu_hours")


@drawn("GPUs held over time, by tenant", *_SHARES, empty="No tenant held a GPU.")
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
    names = folded(ranked(shares, "tenant", "gpus"), top)
    order = each(names)
    starts = shares["slot_s"].unique().sort()
    together = -(-len(starts) * len(order) // MAX_ROWS)
    bins = pl.DataFrame({"slot_s": starts, "bin": pl.int_range(len(starts), eager=True) // together})
    ranks = {name: rank for rank, name in enumerate(order)}
    rows = (
        shares.join(bins, on="slot_s")
        .group_by("bin", "slot_s", tenant=pl.col("tenant").replace_strict(names))
        .agg(pl.col("gpus").sum())
        .group_by("bin", "tenant")
        .agg(pl.col("gpus").mean(), hour=pl.col("slot_s").min() / 3600.0)
        .sort("bin", "tenant")
        .select("tenant", "gpus", "hour", rank=pl.col("tenant").replace_strict(ranks))
    )
    chart: alt.Chart = (
        chart_of(rows)
        .mark_area(interpolate="step-after", opacity=0.9)
        .encode(
            x=alt.X("hour:Q", title="hours from the start", scale=alt.Scale(nice=False)),
            y=alt.Y("gpus:Q", title="GPUs held", stack="zero"),
            color=alt.Color("tenant:N", title=None, scale=theme.scale(theme.numbered(order), order)),
            order=alt.Order("rank:Q"),
            tooltip=tips(tenant="tenant", hour=("from hour", ",.1f"), gpus=("GPUs held", ",.1f")),
        )
    )
    return theme.finish(chart, height=260)


@drawn("GPU-hours held and missing, by tenant", "tenant", *_PARTS.values(), empty="There is no tenant.")
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
    most = ["deficit_gpu_hours", "above_gpu_hours", "tenant"]
    shown = accounts.sort(most, descending=[True, True, False]).head(top)
    order = shown["tenant"].to_list()
    within = (pl.col("held_gpu_hours") - pl.col("above_gpu_hours")).clip(lower_bound=0.0)
    parts = shown.select(
        "tenant", within.alias(WITHIN), *(pl.col(_PARTS[part]).alias(part) for part in (ABOVE, MISSING))
    ).unpivot(list(_PARTS), index="tenant", variable_name="part", value_name="gpu_hours")
    chart = stacked(
        parts,
        alt.X("gpu_hours:Q", title="GPU-hours"),
        y="tenant",
        order=order,
        part="part",
        colours=_COLOURS,
        hover=tips(tenant="tenant", part="part", gpu_hours=("GPU-hours", ",.1f")),
    )
    return theme.finish(chart, bands=order, legend=200)


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


@drawn(
    "GPU-hours borrowed, by borrower and lender",
    *_PAIRS,
    empty="No tenant held more than its entitlement, and none lacked any.",
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
    sides = {}
    for side, nobody in {"borrower": "idle GPUs", "lender": "unclaimed"}.items():
        known = ranked(borrowed.filter(pl.col(side) != NOBODY), side, "gpu_hours")
        sides[side] = folded(known, top) | {NOBODY: nobody}
    rows = (
        borrowed.with_columns(pl.col(side).replace_strict(names) for side, names in sides.items())
        .group_by("borrower", "lender")
        .agg(pl.col("gpu_hours").sum())
        .sort("borrower", "lender")
    )
    lenders, borrowers = (
        [name for name in each(sides[side]) if name in rows[side]] for side in ("lender", "borrower")
    )
    half = float(rows["gpu_hours"].max()) / 2  # type: ignore[arg-type]
    base = chart_of(rows).encode(
        x=alt.X("lender:N", title="from", sort=lenders, axis=alt.Axis(labelAngle=-35, labelLimit=120)),
        y=alt.Y("borrower:N", title="borrower", sort=borrowers),
    )
    shades = alt.Scale(range=[theme.EMPTY, theme.BLUE], zero=True)
    cells = base.mark_rect().encode(
        color=alt.Color("gpu_hours:Q", legend=None, scale=shades),
        tooltip=tips(borrower="borrower", lender="from", gpu_hours=("GPU-hours", ",.1f")),
    )
    numbers = base.mark_text(fontSize=11).encode(
        text=alt.Text("gpu_hours:Q", format=",.1f"),
        color=alt.condition(f"datum.gpu_hours > {half!r}", alt.value("white"), alt.value(theme.INK)),
    )
    height, names = theme.BAND_HEIGHT * len(borrowers), theme.label_width(borrowers) + 20
    return theme.finish(alt.layer(cells, numbers), height=height, names=names)


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
