"""Charts as Vega-Lite specifications, SVG and HTML, without a network."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from gpuplanner.core.errors import escape_controls
from gpuplanner.core.libraries_plugins_and_workers import import_optional

if TYPE_CHECKING:
    from altair.typing import ChartType

INK = "#1f2933"
"""Colour of text and lines."""
SVG_WIDTH_PX = 860
"""Default width of an SVG file [px]."""
NOTEBOOK_CHART_WIDTH_PX = 720
"""Width of a chart in a notebook that is not in sight when it is drawn, and of its picture [px]."""
_FRAME_WIDTH_PX = f"clamp(containerSize()[0] || {NOTEBOOK_CHART_WIDTH_PX}, 480, 1100)"
"""Vega expression of the width that a chart takes in a notebook: that of its output, within limits [px]."""
NARROW_CHART_WIDTH_PX = 360
"""Width of the image that is shown in narrow windows, as on a telephone [px]."""
_SVG_DRAWING_TAG = re.compile(r"<(?:path|g|rect|line)\b[^>]*>")
"""Tags of an SVG image with coordinates, in which long decimals are cut off."""
_LONG_DECIMAL = re.compile(r"(\.\d\d)\d+")
"""Numbers in SVG tags, of which two decimals of a pixel are kept."""

NAMES_SHARE = 0.36
"""Maximum share of a chart's width for the names on its vertical axis [0-1]."""

_FONT_MARGIN_SHARE = 0.16
"""By how much a reader's font may be wider than the font of the layout, as DejaVu Sans is [0-1]."""

_SHARED_SPEC_KEYS = ("$schema", "config", "datasets", "padding", "usermeta", "autosize")
"""Keys of a Vega-Lite specification that charts drawn below each other have once."""
_INDEPENDENT_SCALES = {
    "scale": dict.fromkeys(("x", "y", "color", "shape"), "independent"),
    "legend": {"color": "independent"},
}
"""Vega-Lite ``resolve``: charts drawn below each other have scales and colour legends of their own."""

_BRUSH_MARK = {"fill": INK, "fillOpacity": 0.12, "stroke": INK, "strokeWidth": 2}
"""Look of times that are marked by dragging."""
_VIEW_SUFFIX = "_view"
"""End of the name of a view that a selection of times belongs to."""

VEGA_NUMBER_LOCALE = {"decimal": ".", "thousands": ",", "grouping": [3], "currency": ["", ""], "percent": " %"}
"""Number format of all charts, as a Vega locale; :func:`localize_page` replaces it."""
# JupyterLab 4 has a Vega-Lite 5 runtime; it says so in the console if a specification names another.
_VEGA_LITE_SCHEMA_URL = "https://vega.github.io/schema/vega-lite/v5.json"
"""``$schema`` of charts in notebooks: the Vega-Lite version that JupyterLab draws."""
_VEGA_LITE_MIME_TYPE = "application/vnd.vegalite.v5+json"
"""MIME type of charts in notebook outputs."""


def chart_spec(chart: ChartType) -> dict[str, Any]:
    """Convert a chart to its Vega-Lite specification, data included.

    Examples
    --------
    >>> from gpuplanner.report.usage_and_cost_charts import plot_costs
    >>> import polars as pl
    >>> chart_spec(plot_costs(pl.DataFrame({"tenant": ["a"], "cost": [1.0]}), unit="USD"))["width"]
    'container'
    """
    # The tests validate every chart; each validation takes as long as drawing the chart.
    spec: dict[str, Any] = _escape_texts(chart.to_dict(validate=False))
    return spec


def _escape_texts(value: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """Escape control characters in a specification, recursively; the renderer would crash on them."""
    if isinstance(value, str):
        return escape_controls(value)
    if isinstance(value, dict):
        return {key: _escape_texts(item) for key, item in value.items()}
    return [_escape_texts(item) for item in value] if isinstance(value, list) else value


def fitted(spec: dict[str, Any], width: int) -> dict[str, Any]:
    """Fit a Vega-Lite specification to a width: panels, legend columns and lengths of labels.

    In a browser, ``page.js`` does the same when it draws and when the window changes its width.

    Parameters
    ----------
    spec : dict
        From :func:`chart_spec`; it is not changed.
    width : int
        Width of the whole chart. [px]

    Returns
    -------
    dict
        Specification with widths, legend columns and label limits.
    """
    layout_facts = spec["usermeta"]
    names = min(layout_facts["names"], int(width * NAMES_SHARE))
    config = spec["config"]
    legend_columns, limit = max(1, (width - names) // layout_facts["legend"]), max(60, min(260, width - names - 30))
    legend = config["legend"] | {"columns": legend_columns, "labelLimit": limit}
    fitted_spec = spec | {"config": config | {"axisYDiscrete": {"labelLimit": names}, "legend": legend}}
    panels = layout_facts.get("panels")
    if panels is None:
        if fitted_spec.get("width") == "container":
            fitted_spec |= {"width": width, "autosize": {"type": "fit-x", "contains": "padding"}}
        return fitted_spec
    columns = max(1, min(panels["columns"], width // panels["minimum"]))
    panel = {"width": max(80, width // columns - names - panels["margin"])}
    fitted_spec["columns"] = columns
    if "concat" in fitted_spec:
        fitted_spec["concat"] = [part | panel for part in fitted_spec["concat"]]
    else:
        fitted_spec["spec"] = fitted_spec["spec"] | panel
    return fitted_spec


def chart_to_svg(chart: ChartType | dict[str, Any], *, width: int = SVG_WIDTH_PX) -> str:
    """Draw a chart as SVG, without a browser and without a network.

    Parameters
    ----------
    chart : altair chart or dict
        Any chart of this package, or its specification from :func:`chart_spec`.
    width : int
        Width of the whole drawing. [px]

    Raises
    ------
    MissingDependencyError
        If vl-convert is not installed.

    Examples
    --------
    >>> from gpuplanner.report.usage_and_cost_charts import plot_costs
    >>> import polars as pl
    >>> chart_to_svg(plot_costs(pl.DataFrame({"tenant": ["a"], "cost": [1.0]}), unit="USD"))[:4]
    '<svg'
    """
    return _render_svg(fitted(chart if isinstance(chart, dict) else chart_spec(chart), width))


def interactive(spec: Mapping[str, Any], *, width: int = NOTEBOOK_CHART_WIDTH_PX, brush: str = "") -> dict[str, Any]:
    """Fit a chart to the width of a notebook; a time axis is moved by dragging and zoomed by Alt and the mouse wheel.

    Parameters
    ----------
    spec : mapping
        Vega-Lite specification; it is not changed.
    width : int
        Width for which the panels and the legend of a chart of this package are laid out. [px]
    brush : str
        Name of a selection of times by dragging, in place of moving and zooming.

    Examples
    --------
    >>> spec = {"mark": "line", "encoding": {"x": {"field": "day", "type": "temporal"}}}
    >>> interactive(spec)["params"][0]["bind"]
    'scales'
    """
    select: dict[str, Any] = {"type": "interval", "encodings": ["x"]}
    common: dict[str, Any] = {"select": select | {"mark": _BRUSH_MARK}}
    if not brush:
        common = {"select": select | {"zoom": "wheel![event.altKey]"}, "bind": "scales"}
    views: list[str] = []
    followed = _follow_frame(dict(spec), width) if "usermeta" in spec else dict(spec)
    named = _name_time_views(followed, brush or "zoom", views)
    # Stated at the top, by the names of the views: Altair would repeat what stands in a layer.
    params = [common | {"name": view.removesuffix(_VIEW_SUFFIX), "views": [view]} for view in views]
    return named | {"params": params} if params and "params" not in named else named


def _follow_frame(spec: dict[str, Any], width: int) -> dict[str, Any]:
    """Fit a specification to a width, which the browser replaces by that of the frame."""
    followed = fitted(spec, width)
    columns, panels = followed.get("columns", 1), followed["usermeta"].get("panels")
    part = followed.get("concat", [followed.get("spec", followed)])[0]
    update = f"round({_FRAME_WIDTH_PX} / {columns}) - {width // columns - part['width']}"
    # Vega-Lite alone follows the frame only in charts of one panel, and one that is drawn out of sight stays empty.
    signal = {"init": update, "on": [{"events": "window:resize", "update": update}]}
    if panels is None:
        followed["width"] = "container"
    is_column = "concat" in followed and columns == 1
    name = "width" if panels is None or is_column else "child_width" if "spec" in followed else "childWidth"
    patch = {"op": "add" if is_column else "replace", "path": "/signals/0", "value": {"name": name} | signal}
    return followed | {"usermeta": followed["usermeta"] | {"embedOptions": {"patch": [patch]}}}


def _name_time_views(part: dict[str, Any], name: str, views: list[str]) -> dict[str, Any]:
    """Name the first mark with a time axis of a chart, or of each of its panels, and add the names to `views`."""
    if "concat" in part:
        panels = [_name_time_views(panel, f"{name}_{n}", views) for n, panel in enumerate(part["concat"])]
        return part | {"concat": panels}
    if "spec" in part:
        return part | {"spec": _name_time_views(part["spec"], name, views)}
    if "layer" in part:
        layers, n_before = list(part["layer"]), len(views)
        for number, layer in enumerate(layers):
            if len(views) == n_before:
                layers[number] = _name_time_views(layer, name, views)
        return part | {"layer": layers}
    if part.get("encoding", {}).get("x", {}).get("type") != "temporal":
        return part
    views.append(name + _VIEW_SUFFIX)
    return part | {"name": views[-1]}


def chart_outputs(spec: dict[str, Any], *, width: int = NOTEBOOK_CHART_WIDTH_PX) -> dict[str, Any]:
    """Make the outputs of a chart in a notebook, by MIME type: JupyterLab draws the chart, exports use a picture.

    JupyterLab prefers the specification to Markdown; ``nbconvert --to html`` prefers Markdown, whose picture has a text
    alternative.

    Parameters
    ----------
    spec : dict
        Vega-Lite specification; a chart of the user's own is shown as it is.
    width : int
        Width of the chart. [px]

    Examples
    --------
    >>> spec = {"data": {"values": [{"x": 1}]}, "mark": "point", "encoding": {"x": {"field": "x", "type": "nominal"}}}
    >>> chart_outputs(spec)["text/plain"]
    '<chart: untitled>'
    """
    spec = _escape_texts(spec)
    is_own_chart = "names" in spec.get("usermeta", {})
    picture = _render_svg(fitted(spec, width) if is_own_chart else spec)
    narrow = chart_to_svg(spec, width=NARROW_CHART_WIDTH_PX) if is_own_chart else picture
    description = str(spec.get("description") or spec.get("title") or "untitled")
    return live_chart_output(spec, width=width) | {
        "text/markdown": _responsive_image(description, picture, narrow),
        "image/svg+xml": picture,
        "text/plain": f"<chart: {description}>",
    }


def live_chart_output(spec: dict[str, Any], *, width: int = NOTEBOOK_CHART_WIDTH_PX) -> dict[str, Any]:
    """Make the output of a chart that JupyterLab draws, by MIME type; parameters as of :func:`chart_outputs`."""
    live_spec = interactive(spec, width=width) if "names" in spec.get("usermeta", {}) else spec
    return {_VEGA_LITE_MIME_TYPE: live_spec | {"$schema": _VEGA_LITE_SCHEMA_URL}}


def _responsive_image(description: str, wide: str, narrow: str) -> str:
    """Make HTML that shows one of two pictures, depending on the width of the window."""
    image = f'<img alt="{escape(description)}" src="{svg_data_url(wide)}">'
    return f'<picture><source media="(max-width: 640px)" srcset="{svg_data_url(narrow)}">{image}</picture>'


def svg_data_url(svg: str) -> str:
    """Encode an SVG picture as a ``data:`` address.

    Examples
    --------
    >>> svg_data_url("<svg/>")
    'data:image/svg+xml;base64,PHN2Zy8+'
    """
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def _render_svg(spec: dict[str, Any]) -> str:
    """Render a Vega-Lite specification as SVG, with room for names in fonts wider than that of the layout."""
    names = spec.get("usermeta", {}).get("names", 0)
    if names:
        padding = spec["padding"]
        room = round(_FONT_MARGIN_SHARE * spec["config"].get("axisYDiscrete", {}).get("labelLimit", names))
        spec = spec | {"padding": padding | {"left": max(padding["left"], room)}}
    converter = import_optional("vl_convert", extra="plot")
    # An empty list of addresses: data come with the specification, and nothing is fetched.
    svg: str = converter.vegalite_to_svg(spec, allowed_base_urls=[])
    return _SVG_DRAWING_TAG.sub(lambda tag: _LONG_DECIMAL.sub(r"\1", tag[0]), svg)


def charts_to_svg(charts: Sequence[ChartType], *, width: int = SVG_WIDTH_PX) -> str:
    """Draw charts of one panel each below each other, with a common left edge, as SVG.

    Parameters
    ----------
    charts : sequence of altair charts
        Charts of this package; at least one.
    width : int
        Width of the whole drawing. [px]

    Examples
    --------
    >>> from gpuplanner.report.usage_and_cost_charts import plot_costs
    >>> import polars as pl
    >>> costs = plot_costs(pl.DataFrame({"tenant": ["a"], "cost": [1.0]}), unit="USD")
    >>> charts_to_svg([costs, costs])[:4]
    '<svg'
    """
    specs = [chart_spec(chart) for chart in charts]
    layout_facts = [spec["usermeta"] for spec in specs]
    spec_of_all: dict[str, Any] = {name: specs[0][name] for name in ("$schema", "config", "padding")}
    spec_of_all |= {
        "datasets": {name: rows for spec in specs for name, rows in spec.get("datasets", {}).items()},
        "usermeta": {
            "legend": max(facts["legend"] for facts in layout_facts),
            "names": max(facts["names"] for facts in layout_facts),
            "panels": {"columns": 1, "minimum": 1, "margin": 48},
        },
        "concat": [{name: part for name, part in spec.items() if name not in _SHARED_SPEC_KEYS} for spec in specs],
        "spacing": 30,
        "resolve": _INDEPENDENT_SCALES,
    }
    return chart_to_svg(spec_of_all, width=width)
