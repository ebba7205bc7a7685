"""Where the installed GPU-time went: by day, and by tenant."""

from __future__ import annotations

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import prepare, theme
from gpuplanner.schemas import BUCKETS

NOBODY = "-"
_MAX_BARS = 100
_WORDS = alt.Legend(labelExpr="replace(datum.label, '_', ' ')")
_BINS = (("1h", "hour"), ("1d", "day"), ("1w", "week"), ("1mo", "month"))


def plot_ledger(ledger: pl.DataFrame, *, tz: str = "UTC") -> ChartType:
    """GPU-hours per day by bucket, as stacked bars whose tops are the installed GPU-hours.

    Buckets partition the installed time, so that their sum is the installed line. Bars are hours, days, weeks
    or months: the finest that gives at most 100 bars.

    Parameters
    ----------
    ledger : polars.DataFrame
        Table ``schemas.Ledger``: ``hour, bucket, gpu_hours`` are read.
    tz : str
        Zone in which days begin.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> hour = datetime(2026, 10, 1, tzinfo=UTC)
    >>> rows = pl.DataFrame({"hour": [hour, hour], "bucket": ["used", "free"], "gpu_hours": [5.0, 3.0]})
    >>> plot_ledger(rows).to_dict()["title"]
    'Installed GPU-hours per hour, by where they went'
    """
    prepare.require(ledger, ["hour", "bucket", "gpu_hours"], where="plot_ledger")
    title = "Installed GPU-hours per {}, by where they went"
    if ledger.is_empty():
        return theme.saying("The ledger has no rows.", title=title.format("day"))
    clock = pl.col("hour").dt.convert_time_zone(tz).dt.replace_time_zone(None)
    local = ledger.select(clock, "bucket", "gpu_hours")
    every, word = next((bin_ for bin_ in _BINS if _bars(local, bin_[0]) <= _MAX_BARS), _BINS[-1])
    binned = (
        local.group_by(start=pl.col("hour").dt.truncate(every), bucket=pl.col("bucket").cast(pl.String))
        .agg(pl.col("gpu_hours").sum())
        .with_columns(
            end=pl.col("start").dt.offset_by(every),
            order=pl.col("bucket").replace_strict({name: rank for rank, name in enumerate(BUCKETS)}),
            installed=pl.col("gpu_hours").sum().over("start"),
        )
        .filter(pl.col("gpu_hours") > 0)
        .sort("start", "order")
    )
    shown = [name for name in BUCKETS if name in binned["bucket"]]
    data = alt.Chart(prepare.to_data(binned, where="plot_ledger")).transform_calculate(
        **prepare.utc_text(from_="start"), line="'installed'"
    )
    first, last = binned["start"].item(0), binned["end"].item(-1)
    x = prepare.utc_axis("start", prepare.span(first, last, slot=word, tz=tz))
    hover = [
        alt.Tooltip("from_:N", title=word),
        alt.Tooltip("bucket:N", title="bucket"),
        alt.Tooltip("gpu_hours:Q", title="GPU-hours", format=",.1f"),
        alt.Tooltip("installed:Q", title="installed GPU-hours", format=",.1f"),
    ]
    bars = data.mark_bar(orient="vertical", binSpacing=1).encode(
        x=x,
        x2="end:T",
        y=alt.Y("gpu_hours:Q", title=f"GPU-hours per {word}", stack="zero"),
        color=alt.Color(
            "bucket:N", title=None, legend=_WORDS, scale=theme.scale(theme.bucket_colours(), shown)
        ),
        order=alt.Order("order:Q"),
        tooltip=hover,
    )
    line = data.mark_rule(color=theme.INK, size=2).encode(
        x=x,
        x2="end:T",
        y="installed:Q",
        # Set off from the legend of the buckets, which may end close before it.
        strokeDash=alt.StrokeDash(
            "line:N", title=None, scale=alt.Scale(range=[[1, 0]]), legend=alt.Legend(symbolOffset=24)
        ),
    )
    chart = alt.layer(bars, line).properties(width="container", height=300)
    return theme.finish(chart, title=title.format(word), legend=115)


def plot_ledger_tenants(ledger: pl.DataFrame, *, top: int = 12) -> ChartType:
    """GPU-hours held by each tenant, by bucket, largest first; tenants beyond ``top`` are added up.

    Time that nobody held is no tenant's and is left out.

    Parameters
    ----------
    ledger : polars.DataFrame
        Table ``schemas.Ledger``: ``tenant, bucket, gpu_hours`` are read.
    top : int
        Tenants with a bar of their own.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    prepare.require(ledger, ["tenant", "bucket", "gpu_hours"], where="plot_ledger_tenants")
    title = "GPU-hours held by each tenant, and what became of them"
    held = ledger.filter((pl.col("tenant") != NOBODY) & (pl.col("gpu_hours") > 0))
    if held.is_empty():
        return theme.saying("No tenant held a GPU.", title=title)
    totals = held.group_by("tenant").agg(pl.col("gpu_hours").sum())
    ranked = totals.sort("gpu_hours", "tenant", descending=[True, False])["tenant"].to_list()
    names = prepare.folded(ranked, top)
    rows = (
        held.group_by(tenant=pl.col("tenant").replace_strict(names), bucket=pl.col("bucket").cast(pl.String))
        .agg(pl.col("gpu_hours").sum())
        .with_columns(
            order=pl.col("bucket").replace_strict({name: rank for rank, name in enumerate(BUCKETS)}),
            share=pl.col("gpu_hours") / pl.col("gpu_hours").sum().over("tenant"),
        )
        .sort("tenant", "order")
    )
    shown = [name for name in BUCKETS if name in rows["bucket"]]
    order = list(dict.fromkeys(names.values()))
    chart: alt.Chart = (
        alt.Chart(prepare.to_data(rows, where="plot_ledger_tenants"), width="container")
        .mark_bar()
        .encode(
            x=alt.X("gpu_hours:Q", title="GPU-hours", stack="zero"),
            y=alt.Y("tenant:N", title=None, sort=order),
            color=alt.Color(
                "bucket:N", title=None, legend=_WORDS, scale=theme.scale(theme.bucket_colours(), shown)
            ),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("tenant:N", title="tenant"),
                alt.Tooltip("bucket:N", title="bucket"),
                alt.Tooltip("gpu_hours:Q", title="GPU-hours", format=",.1f"),
                alt.Tooltip("share:Q", title="share of the tenant's", format=".1%"),
            ],
        )
        .properties(height=theme.BAND_HEIGHT * len(order))
    )
    return theme.finish(chart, title=title, legend=115, names=prepare.label_width(order))


def _bars(local: pl.DataFrame, every: str) -> int:
    return local["hour"].dt.truncate(every).n_unique()
