"""Charts to specifications and SVG without a network."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from html import escape
from typing import Any

import altair as alt
from altair.typing import ChartType

from gpuplanner.core.errors import escape_controls
from gpuplanner.core.execution import import_optional

SVG_WIDTH = 860
NOTEBOOK_WIDTH = 720
NARROW_WIDTH = 360
"""Of pictures where the window is narrow, as on a telephone."""
_TAG = re.compile(r"<(?:path|g|rect|line)\b[^>]*>")
_LONG_NUMBER = re.compile(r"(\.\d\d)\d+")  # a hundredth of a pixel is enough

NAMES_SHARE = 0.36
"""At most this share of the width goes to names on the vertical axis."""

_WIDER = 0.16
"""A reader's font may be wider than the one that pictures are laid out with by this share, as DejaVu Sans is."""

_SHARED = ("$schema", "config", "datasets", "padding", "usermeta", "autosize")
_BY_PART = {
    "scale": dict.fromkeys(("x", "y", "color", "shape"), "independent"),
    "legend": {"color": "independent"},
}

# JupyterLab 4 has a Vega-Lite 5 runtime; it says so in the console if a specification names another.
_NOTEBOOK_SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
_NOTEBOOK_TYPE = "application/vnd.vegalite.v5+json"


def chart_spec(chart: ChartType) -> dict[str, Any]:
    """Vega-Lite specification of a chart, validated, data included.

    Examples
    --------
    >>> from gpuplanner.report.usage_charts import plot_costs
    >>> import polars as pl
    >>> chart_spec(plot_costs(pl.DataFrame({"tenant": ["a"], "cost": [1.0]}), unit="USD"))["width"]
    'container'
    """
    spec: dict[str, Any] = _shown(chart.to_dict())
    return spec


def _shown(value: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """Texts of a specification as they may be shown: a control character among them ends the process that draws."""
    if isinstance(value, str):
        return escape_controls(value)
    if isinstance(value, dict):
        return {key: _shown(each) for key, each in value.items()}
    return [_shown(each) for each in value] if isinstance(value, list) else value


def fitted(spec: dict[str, Any], width: int) -> dict[str, Any]:
    """Lay a specification out for a width in pixels, where no browser can say how wide the page is.

    The page does the same in its script when it draws and when the window changes.

    Parameters
    ----------
    spec : dict
        From :func:`chart_spec`; it is not changed.
    width : int
        Of the whole chart, in pixels.
    """
    facts = spec["usermeta"]
    names = min(facts["names"], int(width * NAMES_SHARE))
    config = spec["config"]
    beside, limit = max(1, (width - names) // facts["legend"]), max(60, min(260, width - names - 30))
    legend = config["legend"] | {"columns": beside, "labelLimit": limit}
    fit = spec | {"config": config | {"axisYDiscrete": {"labelLimit": names}, "legend": legend}}
    panels = facts.get("panels")
    if panels is None:
        if fit.get("width") == "container":
            fit |= {"width": width, "autosize": {"type": "fit-x", "contains": "padding"}}
        return fit
    columns = max(1, min(panels["columns"], width // panels["minimum"]))
    panel = {"width": max(80, width // columns - names - panels["margin"])}
    fit["columns"] = columns
    if "concat" in fit:
        fit["concat"] = [part | panel for part in fit["concat"]]
    else:
        fit["spec"] = fit["spec"] | panel
    return fit


def chart_to_svg(chart: ChartType | dict[str, Any], *, width: int = SVG_WIDTH) -> str:
    """Draw a chart as SVG text, without a browser and without a network.

    Parameters
    ----------
    chart : altair chart or dict
        Any chart of this package, or its specification from :func:`chart_spec`.
    width : int
        Of the whole drawing, in pixels.

    Raises
    ------
    MissingDependencyError
        If vl-convert is not installed.

    Examples
    --------
    >>> from gpuplanner.report.usage_charts import plot_costs
    >>> import polars as pl
    >>> chart_to_svg(plot_costs(pl.DataFrame({"tenant": ["a"], "cost": [1.0]}), unit="USD"))[:4]
    '<svg'
    """
    return _drawn(fitted(chart if isinstance(chart, dict) else chart_spec(chart), width))


def enable_offline_renderer(*, width: int = NOTEBOOK_WIDTH) -> None:
    """Show charts in notebooks without a network: JupyterLab draws the chart, exports take a picture.

    JupyterLab prefers the specification to Markdown. ``nbconvert --to html`` prefers Markdown to a bare SVG, for
    which it knows no text alternative; here that is the description of the chart. Altair's own default loads its
    runtime from a content network. Call this once in a notebook.

    Parameters
    ----------
    width : int
        Of each chart, in pixels.
    """

    def offline(spec: dict[str, Any], **_: object) -> dict[str, Any]:
        spec = _shown(spec)
        ours = "names" in spec.get("usermeta", {})  # a chart of the user's own is shown as it is
        fit = fitted(spec, width) if ours else spec
        picture, told = _drawn(fit), str(spec.get("description") or spec.get("title") or "untitled")
        narrow = chart_to_svg(spec, width=NARROW_WIDTH) if ours else picture
        return {
            _NOTEBOOK_TYPE: fit | {"$schema": _NOTEBOOK_SCHEMA},
            "text/markdown": _responsive_image(told, picture, narrow),
            "image/svg+xml": picture,
            "text/plain": f"<chart: {told}>",
        }

    alt.renderers.register("offline", offline)
    alt.renderers.enable("offline")


def picture_html(chart: ChartType, *, width: int = NOTEBOOK_WIDTH) -> str:
    """A chart as markup that needs nothing else: a picture, and a narrower one for narrow windows.

    Examples
    --------
    >>> from gpuplanner.report.usage_charts import plot_costs
    >>> import polars as pl
    >>> text = picture_html(plot_costs(pl.DataFrame({"tenant": ["a"], "cost": [1.0]}), unit="USD"))
    >>> text[:9], text.count("data:image/svg+xml")
    ('<picture>', 2)
    """
    spec = chart_spec(chart)
    wide, narrow = (chart_to_svg(spec, width=pixels) for pixels in (width, NARROW_WIDTH))
    return _responsive_image(str(chart.description), wide, narrow)


def _responsive_image(told: str, wide: str, narrow: str) -> str:
    image = f'<img alt="{escape(told)}" src="{svg_address(wide)}">'
    return f'<picture><source media="(max-width: 640px)" srcset="{svg_address(narrow)}">{image}</picture>'


def svg_address(svg: str) -> str:
    """A ``data:`` address that holds a picture.

    Examples
    --------
    >>> svg_address("<svg/>")
    'data:image/svg+xml;base64,PHN2Zy8+'
    """
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def _drawn(spec: dict[str, Any]) -> str:
    names = spec.get("usermeta", {}).get("names", 0)
    if names:
        padding = spec["padding"]
        room = round(_WIDER * spec["config"].get("axisYDiscrete", {}).get("labelLimit", names))
        spec = spec | {"padding": padding | {"left": max(padding["left"], room)}}
    converter = import_optional("vl_convert", extra="plot")
    # An empty list of addresses: data come with the specification, and nothing is fetched.
    svg: str = converter.vegalite_to_svg(spec, allowed_base_urls=[])
    return _TAG.sub(lambda tag: _LONG_NUMBER.sub(r"\1", tag[0]), svg)


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
    >>> from gpuplanner.report.usage_charts import plot_costs
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
        "concat": [{name: part for name, part in spec.items() if name not in _SHARED} for spec in specs],
        "spacing": 30,
        "resolve": _BY_PART,
    }
    return chart_to_svg(whole, width=width)
