"""Charts under each other in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from altair.typing import ChartType

from gpuplanner.plot.render import SVG_WIDTH, chart_spec, spec_to_svg

_WHOLE = ("$schema", "config", "datasets", "padding", "usermeta", "autosize")
_OWN = {
    "scale": dict.fromkeys(("x", "y", "color", "shape"), "independent"),
    "legend": {"color": "independent"},
}


def charts_to_svg(charts: Sequence[ChartType], *, width: int = SVG_WIDTH) -> str:
    """Draw charts of one panel each under each other, with one left edge, as SVG text.

    Parameters
    ----------
    charts : sequence of altair charts
        Of this package; at least one.
    width : int
        Of the whole drawing, in pixels.

    Examples
    --------
    >>> from gpuplanner.plot import plot_costs
    >>> import polars as pl
    >>> costs = plot_costs(pl.DataFrame({"tenant": ["a"], "cost": [1.0]}), unit="USD")
    >>> charts_to_svg([costs, costs])[:4]
    '<svg'
    """
    specs = [chart_spec(chart) for chart in charts]
    facts = [spec["usermeta"] for spec in specs]
    whole: dict[str, Any] = {name: specs[0][name] for name in ("$schema", "config", "padding")}
    whole |= {
        "datasets": {name: rows for spec in specs for name, rows in spec.get("datasets", {}).items()},
        "usermeta": {
            "legend": max(each["legend"] for each in facts),
            "names": max(each["names"] for each in facts),
            "panels": {"columns": 1, "minimum": 1, "margin": 48},
        },
        "concat": [{name: part for name, part in spec.items() if name not in _WHOLE} for spec in specs],
        "spacing": 30,
        "resolve": _OWN,
    }
    return spec_to_svg(whole, width=width)
