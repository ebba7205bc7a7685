"""Amounts by tenant: money, energy, carbon."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import prepare, theme


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
    prepare.require(frame, ["tenant", value], where="plot_costs")
    totals = (
        frame.group_by("tenant")
        .agg(amount=pl.col(value).sum().cast(pl.Float64))
        .sort("amount", "tenant", descending=[True, False])
    )
    if totals.is_empty():
        return theme.saying("There is nothing to charge.", title=title)
    tenants = totals["tenant"].to_list()
    names = prepare.folded(tenants, top)
    order = list(dict.fromkeys(names.values()))
    rows = (
        totals.group_by(pl.col("tenant").replace_strict(names))
        .agg(pl.col("amount").sum())
        .with_columns(share=pl.col("amount") / pl.col("amount").sum())
        .sort("tenant")
    )
    palette = theme.tenant_colours(tenants) if colours is None else colours
    digits = ",.0f" if rows["amount"].max() >= 1000 else ",.2f"  # type: ignore[operator]
    y = alt.Y("tenant:N", title=None, sort=order)
    data = alt.Chart(prepare.to_data(rows, where="plot_costs"))
    bars = data.mark_bar().encode(
        x=alt.X("amount:Q", title=unit),
        y=y,
        color=alt.Color("tenant:N", scale=theme.scale(palette, order), legend=None),
        tooltip=[
            alt.Tooltip("tenant:N", title="tenant"),
            alt.Tooltip("amount:Q", title=unit, format=",.2f"),
            alt.Tooltip("share:Q", title="share", format=".1%"),
        ],
    )
    labels = data.mark_text(align="left", dx=5).encode(
        x="amount:Q", y=y, text=alt.Text("amount:Q", format=digits)
    )
    chart = alt.layer(bars, labels).properties(width="container", height=theme.BAND_HEIGHT * len(order))
    return theme.finish(chart, title=title, names=prepare.label_width(order), room=48)
