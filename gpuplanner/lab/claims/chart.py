"""The chart of a claim: what was claimed as a band, what was measured as a mark with its interval."""

from __future__ import annotations

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.lab.claims.verdict import FIGURES
from gpuplanner.plot import prepare, theme

WORDS = {True: "within what was claimed", False: "outside", None: "cannot tell"}
COLOURS = {WORDS[True]: theme.PALETTE[0], WORDS[False]: theme.PALETTE[5], WORDS[None]: theme.MUTED}
_SHAPES = {WORDS[True]: "circle", WORDS[False]: "diamond", WORDS[None]: "square"}
_ROW, _LINE = 38, 15
"""Pixels of a figure, and of a line of its name."""
_AROUND = 0.05
"""Share of the range that stays free on either side."""


def plot_claimed(figures: pl.DataFrame) -> ChartType:
    """What was claimed and what was measured, one panel for each unit.

    Examples
    --------
    >>> from gpuplanner.lab.claims.verdict import figure, figures_of
    >>> waits, used = figure("waits", "min", 3.0, claimed=(None, 4.0)), figure("used", "%", 80.0, claimed=(90, 100))
    >>> len(plot_claimed(figures_of([waits, used])).to_dict()["concat"])
    2
    """
    prepare.require(figures, list(FIGURES), where="plot_claimed")
    title = "Claimed (grey) and measured (mark, with its 95 % interval)"
    shown = figures.drop_nulls("measured").with_columns(
        said=pl.col("holds").replace_strict(WORDS, return_dtype=pl.String, default=WORDS[None])
    )
    if shown.is_empty():
        return theme.saying("Nothing was measured.", title=title)
    said = [words for words in COLOURS if words in shown["said"]]
    labels = prepare.wrapped(shown["figure"].to_list())
    row = max(_ROW, _LINE * labels.lines + 8)

    def panel(unit: str) -> ChartType:
        rows = _with_ends(shown.filter(unit=unit))
        names = rows["figure"].to_list()
        domain = alt.Scale(domain=rows.select("left", "right").row(0), nice=False, zero=False)
        base = alt.Chart(prepare.to_data(rows, where="plot_claimed"))
        y = alt.Y("figure:N", title=None, sort=names, axis=labels.axis)
        axis = alt.Axis(tickCount=8, tickMinStep=1 if _whole(rows) else 0)
        x = alt.X("from:Q", title=f"[{unit}]" if unit else None, scale=domain, axis=axis)
        colour = alt.Color("said:N", title=None, scale=theme.scale(COLOURS, said))
        shape = alt.Shape(
            "said:N", title=None, scale=alt.Scale(domain=said, range=[_SHAPES[s] for s in said])
        )
        hover = [
            alt.Tooltip("figure:N"),
            alt.Tooltip("claimed_low:Q", title="claimed, least", format=",.4~g"),
            alt.Tooltip("claimed_high:Q", title="claimed, most", format=",.4~g"),
            alt.Tooltip("measured:Q", format=",.4~g"),
            alt.Tooltip("low:Q", format=",.4~g"),
            alt.Tooltip("high:Q", format=",.4~g"),
        ]
        band = base.mark_bar(color=theme.GREY, opacity=0.6, height=22).encode(
            x=x, x2="to:Q", y=y, tooltip=hover
        )
        ends = [
            base.transform_filter(f"isValid(datum.{end})")
            .mark_tick(color=theme.MUTED, thickness=2, size=22)
            .encode(x=f"{end}:Q", y=y)
            for end in ("claimed_low", "claimed_high")
        ]
        line = base.mark_rule(size=2).encode(x="low:Q", x2="high:Q", y=y, color=colour)
        mark = base.mark_point(filled=True, size=110, opacity=1).encode(
            x="measured:Q", y=y, color=colour, shape=shape, tooltip=hover
        )
        return alt.layer(band, *ends, line, mark).properties(height=row * len(names))

    units = shown["unit"].unique(maintain_order=True).to_list()
    chart = alt.concat(*(panel(unit) for unit in units), columns=1)
    return theme.finish(
        chart,
        title=title,
        legend=190,
        names=labels.pixels,
        panels={"columns": 1, "minimum": 200, "margin": 30},
    )


def _with_ends(rows: pl.DataFrame) -> pl.DataFrame:
    """The range of a panel, and the band of each claim within it: open claims reach to its end."""
    values = pl.concat(
        [rows[name].cast(pl.Float64) for name in ("claimed_low", "claimed_high", "measured", "low", "high")]
    )
    least, most = float(values.min() or 0.0), float(values.max() or 0.0)  # type: ignore[arg-type]
    free = _AROUND * (most - least) or max(abs(most), 1.0) * _AROUND
    left, right = least - free, most + free
    return rows.with_columns(
        left=pl.lit(left),
        right=pl.lit(right),
        **{"from": pl.col("claimed_low").fill_null(left), "to": pl.col("claimed_high").fill_null(right)},
    )


def _whole(rows: pl.DataFrame) -> bool:
    """Whether all figures of a panel are whole numbers, so that ticks between them say nothing."""
    values = rows.select("claimed_low", "claimed_high", "measured").unpivot()["value"].drop_nulls()
    return bool((values == values.round()).all())
