"""Where the installed GPU-time went, what became of the time that was held, and what each tenant pays."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import theme
from gpuplanner.plot.prepare import (
    chart_of,
    drawn,
    each,
    folded,
    in_order,
    ranked,
    require,
    stacked,
    tips,
    utc_axis,
    utc_text,
)
from gpuplanner.schemas.vocabulary import BUCKETS

NOBODY = "-"
_MAX_BARS = 100
_BINS = (("1h", "hour"), ("1d", "day"), ("1w", "week"), ("1mo", "month"))
_WORDS = alt.Legend(title=None, labelExpr="replace(datum.label, '_', ' ')")
_SEEN = {
    "used": ("used", theme.BLUE),
    "idle_with_process": ("idle, with a process", theme.ORANGE),
    "idle_without_process": ("idle, no process", theme.VERMILION),
    "idle_unclear": ("idle, process not known", theme.PINK),
    "unobserved": ("not observed", theme.GREY),
}
"""Name and colour of each part of held time, in the order in which they stand."""
_FATES = {"not lost": theme.BLUE, "may have to be spent again": theme.VERMILION}


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
    require(ledger, ["hour", "bucket", "gpu_hours"], where="plot_ledger")
    title = "Installed GPU-hours per {}, by where they went"
    if ledger.is_empty():
        return theme.saying("The ledger has no rows.", title=title.format("day"))
    clock = pl.col("hour").dt.convert_time_zone(tz).dt.replace_time_zone(None)
    local = ledger.select(clock, "gpu_hours", bucket=pl.col("bucket").cast(pl.String))
    every, word = next((bin_ for bin_ in _BINS if _bars(local, bin_[0]) <= _MAX_BARS), _BINS[-1])
    binned = (
        local.group_by("bucket", start=pl.col("hour").dt.truncate(every))
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
    base = (
        chart_of(binned)
        .transform_calculate(**utc_text(from_="start"), line="'installed'")
        .encode(x=utc_axis(binned, "start", "end", slot=word, tz=tz), x2="end:T")
    )
    hover = tips(
        from_=word,
        bucket="bucket",
        gpu_hours=("GPU-hours", ",.1f"),
        installed=("installed GPU-hours", ",.1f"),
    )
    bars = base.mark_bar(orient="vertical", binSpacing=1).encode(
        y=alt.Y("gpu_hours:Q", title=f"GPU-hours per {word}", stack="zero"),
        color=alt.Color("bucket:N", legend=_WORDS, scale=theme.scale(theme.BUCKET_COLOURS, shown)),
        order=alt.Order("order:Q"),
        tooltip=hover,
    )
    # Set off from the legend of the buckets, which may end close before it.
    apart = alt.Legend(title=None, symbolOffset=24)
    line = base.mark_rule(color=theme.INK, size=2).encode(
        y="installed:Q", strokeDash=alt.StrokeDash("line:N", scale=alt.Scale(range=[[1, 0]]), legend=apart)
    )
    return theme.finish(alt.layer(bars, line), title=title.format(word), height=300, legend=115)


@drawn(
    "GPU-hours held by each tenant, and what became of them",
    *("tenant", "bucket", "gpu_hours"),
    empty="No tenant held a GPU.",
)
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
    held = ledger.filter(pl.col("tenant") != NOBODY, pl.col("gpu_hours") > 0)
    rows = held.select("tenant", "gpu_hours", part=pl.col("bucket").cast(pl.String))
    return _held_by_tenant(rows, theme.BUCKET_COLOURS, top, part="bucket", legend=115)


@drawn("Held GPU-hours by tenant, and what was seen of them", "tenant", *_SEEN, empty="No tenant held a GPU.")
def plot_held_activity(held: pl.DataFrame, *, top: int = 12) -> ChartType:
    """GPU-hours that each tenant held, by what was seen of them; tenants beyond `top` are added up.

    Parameters
    ----------
    held : polars.DataFrame
        ``tenant`` and the GPU-hours ``used, idle_with_process, idle_without_process, idle_unclear, unobserved``, from
        :func:`gpuplanner.ledger.held_by_activity`.
    top : int
        Tenants with a bar of their own.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    words = {part: word for part, (word, _) in _SEEN.items()}
    seen = held.unpivot(list(_SEEN), index="tenant", variable_name="part", value_name="gpu_hours")
    rows = seen.filter(pl.col("gpu_hours") > 0).with_columns(pl.col("part").replace_strict(words))
    return _held_by_tenant(rows, dict(_SEEN.values()), top, part="seen as", legend=165)


@drawn("Held GPU-hours by how attempts ended", "state", "lost", "gpu_hours", empty="No attempt held a GPU.")
def plot_held_states(ended: pl.DataFrame) -> ChartType:
    """GPU-hours held by attempts, by how they ended; those that may have to be spent again stand out.

    Parameters
    ----------
    ended : polars.DataFrame
        ``state, lost, gpu_hours``, from :func:`gpuplanner.ledger.held_by_state`; rows of one state are added up.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    kept, again = _FATES
    rows = ended.group_by(name="state", part=pl.when("lost").then(pl.lit(again)).otherwise(pl.lit(kept))).agg(
        pl.col("gpu_hours").sum()
    )
    order = in_order(rows.sort("gpu_hours", "name", descending=[True, False]), "name")
    return _held(rows, order, _FATES, row="ended", part="time", legend=190)


def plot_costs(
    frame: pl.DataFrame,
    *,
    unit: str,
    value: str = "cost",
    title: str = "Cost by tenant",
    colours: Mapping[str, str] | None = None,
    top: int = 15,
) -> ChartType:
    """Bars of an amount by tenant, largest first; tenants beyond ``top`` are added up.

    Parameters
    ----------
    frame : polars.DataFrame
        ``tenant`` and the column ``value``; rows of one tenant are added.
    unit : str
        Unit of the amount: a currency code, ``"kWh"``, ``"kg CO2e"``.
    value : str
        Column with the amount.
    title : str
        The quantity.
    colours : mapping, optional
        From :func:`tenant_colours` of all tenants, so that each keeps its colour in every chart.
    top : int
        Tenants with a bar of their own.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> bars = plot_costs(pl.DataFrame({"tenant": ["a"], "cost": [12.5]}), unit="USD")
    >>> bars.to_dict()["layer"][0]["encoding"]["x"]["title"]
    'USD'
    """
    require(frame, ["tenant", value], where="plot_costs")
    if frame.is_empty():
        return theme.saying("There is nothing to charge.", title=title)
    tenants = ranked(frame, "tenant", value)
    names = folded(tenants, top)
    order = each(names)
    rows = (
        frame.group_by(pl.col("tenant").replace_strict(names))
        .agg(amount=pl.col(value).sum().cast(pl.Float64))
        .with_columns(share=pl.col("amount") / pl.col("amount").sum())
        .sort("tenant")
    )
    palette = theme.tenant_colours(tenants) if colours is None else colours
    digits = ",.0f" if rows["amount"].max() >= 1000 else ",.2f"  # type: ignore[operator]
    base = chart_of(rows).encode(x=alt.X("amount:Q", title=unit), y=alt.Y("tenant:N", title=None, sort=order))
    bars = base.mark_bar().encode(
        color=alt.Color("tenant:N", scale=theme.scale(palette, order), legend=None),
        tooltip=tips(tenant="tenant", amount=(unit, ",.2f"), share=("share", ".1%")),
    )
    labels = base.mark_text(align="left", dx=5).encode(text=alt.Text("amount:Q", format=digits))
    return theme.finish(alt.layer(bars, labels), title=title, bands=order, room=48)


@drawn("What is saved, by lever", "step", "amount", "low", "high", empty="Nothing is saved.")
def plot_waterfall(frame: pl.DataFrame, *, unit: str) -> ChartType:
    """Steps that add up to a sum, each from where the last one ended; a range of the sum as a line across its bar.

    Parameters
    ----------
    frame : polars.DataFrame
        ``step, amount, low, high`` in order; the last row is the sum, the only one that needs a range.
    unit : str
        Unit of the amounts: a currency code, ``"GPU-hours a week"``.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> steps = {"step": ["off", "all"], "amount": [2.0, 2.0], "low": [None, 1.0], "high": [None, 3.0]}
    >>> plot_waterfall(pl.DataFrame(steps), unit="USD").to_dict()["layer"][0]["encoding"]["x"]["title"]
    'USD'
    """
    amounts = frame["amount"].to_list()
    ends = [sum(amounts[: place + 1]) for place in range(len(amounts) - 1)] + [amounts[-1]]
    begins = [end - amount for end, amount in zip(ends, amounts, strict=True)]
    rows = frame.with_columns(
        begin=pl.Series(begins, dtype=pl.Float64), end=pl.Series(ends, dtype=pl.Float64),
        kind=pl.Series(["step"] * (len(amounts) - 1) + ["sum"]),
    )  # fmt: skip
    order = frame["step"].to_list()
    base = chart_of(rows).encode(y=alt.Y("step:N", title=None, sort=order))
    bars = base.mark_bar().encode(
        x=alt.X("begin:Q", title=unit),
        x2="end:Q",
        color=alt.Color(
            "kind:N",
            scale=theme.scale({"step": theme.GREEN, "sum": theme.BLUE}, ["step", "sum"]),
            legend=None,
        ),
        tooltip=tips(step="lever", amount=(unit, ",.1f"), low=("low", ",.1f"), high=("high", ",.1f")),
    )
    layers = [bars]
    if rows["low"].is_not_null().any():
        ranged = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2)
        layers.append(ranged.encode(x="low:Q", x2="high:Q"))
    return theme.finish(alt.layer(*layers), bands=order, room=48)


def _held_by_tenant(
    rows: pl.DataFrame, colours: Mapping[str, str], top: int, *, part: str, legend: int
) -> ChartType:
    """Held GPU-hours of ``tenant, part, gpu_hours``, the tenants that held most by name."""
    if rows.is_empty():
        return theme.saying("No tenant held a GPU.")
    names = folded(ranked(rows, "tenant", "gpu_hours"), top)
    sums = rows.group_by("part", name=pl.col("tenant").replace_strict(names)).agg(pl.col("gpu_hours").sum())
    return _held(sums, each(names), colours, row="tenant", part=part, legend=legend)


def _held(
    rows: pl.DataFrame, order: list[str], colours: Mapping[str, str], *, row: str, part: str, legend: int
) -> ChartType:
    """Held GPU-hours of ``name, part, gpu_hours``: one bar a name."""
    chart = stacked(
        rows.filter(pl.col("gpu_hours") > 0).with_columns(
            share=pl.col("gpu_hours") / pl.col("gpu_hours").sum().over("name")
        ),
        alt.X("gpu_hours:Q", title="GPU-hours"),
        y="name",
        order=order,
        part="part",
        colours=colours,
        hover=tips(name=row, part=part, gpu_hours=("GPU-hours", ",.1f"), share=("share of the bar", ".1%")),
        legend=_WORDS,
    )
    return theme.finish(chart, bands=order, legend=legend)


def _bars(local: pl.DataFrame, every: str) -> int:
    return local["hour"].dt.truncate(every).n_unique()
