"""What all charts share in looks: colours, sizes, fonts, and the finish on the way out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.schemas.vocabulary import WHOLE_GPU

INK, MUTED, GREY, GRID = "#1f2933", "#52606d", "#c4cbd2", "#e4e7eb"
QUIET = "#8a949e"
"""Marks of what is neither recommended nor today's."""
ALARM = "#b24a00"
"""What asks for attention: vermilion that can be read on white."""
ZONE, TINT, EMPTY = "#eff7fb", "#cfe6f5", "#eef1f4"
"""Grounds: of what lies within a limit, of a slice, and of a cell in which nothing stands yet."""

# Okabe & Ito, "Color Universal Design" (2008), without black, which is kept for totals and text.
BLUE, ORANGE, GREEN, PINK = "#0072b2", "#e69f00", "#009e73", "#cc79a7"
SKY, VERMILION, YELLOW = "#56b4e9", "#d55e00", "#f0e442"
# Chosen one by one to lie farthest from all before, as seen with and without each kind of colour blindness.
BROWN, PURPLE = "#662200", "#9900ff"
PALETTE = (
    *(BLUE, ORANGE, GREEN, PINK, SKY, VERMILION, YELLOW),
    *(BROWN, PURPLE, "#aaff88", "#440066", "#9977ff"),
)

BUCKET_COLOURS = {
    "used": BLUE,
    "unobserved": "#8ecbf0",
    "held_idle": ORANGE,
    "free": "#d5dbe1",
    "fragmented": VERMILION,
    "idle_pending": "#663311",
    "reserved": PINK,
    "reconfiguring": YELLOW,
    "down": "#3e4c59",
}
"""Of each bucket of the ledger."""
POLICY_COLOURS = {
    "today": MUTED,
    "static_whole": BROWN,
    "static_mig": PURPLE,
    "whole_on_off": "#7a6000",
    "node_pools": BLUE,
    "cut_on_demand": "#440066",
}
"""Of each way to run the fleet, on every page; words in these colours can be read on white."""

BAND_HEIGHT = 26
"""Pixels of one row of a horizontal bar chart."""

CONFIG: dict[str, Any] = {
    "font": "system-ui, sans-serif",
    "background": "white",
    # The page gives each chart one text alternative and a table; a label on every mark would repeat it.
    "aria": False,
    "view": {"stroke": None, "continuousWidth": 640, "continuousHeight": 260, "discreteWidth": 640},
    "title": {"anchor": "start", "fontSize": 15, "fontWeight": 600, "color": INK, "offset": 12},
    "axis": {
        "labelFontSize": 12,
        "titleFontSize": 12,
        "labelColor": INK,
        "titleColor": MUTED,
        "titleFontWeight": "normal",
        "gridColor": GRID,
        "domainColor": GREY,
        "tickColor": GREY,
        "labelOverlap": True,
        "labelSeparation": 8,
        "labelLimit": 200,
    },
    "legend": {
        # Browsers draw letters wider than the renderer that lays the legend out thinks.
        "columnPadding": 26,
        "orient": "top",
        "direction": "horizontal",
        "columns": 4,
        "labelFontSize": 12,
        "labelColor": INK,
        "labelLimit": 260,
        "titleFontSize": 12,
        "titleColor": MUTED,
        "titleFontWeight": "normal",
        "symbolStrokeWidth": 2,
        "offset": 10,
    },
    "header": {"labelFontSize": 13, "labelFontWeight": 600, "labelColor": INK, "labelAnchor": "start"},
    "text": {"fontSize": 12, "color": INK},
}

AnyChart = TypeVar("AnyChart", bound=ChartType)


def tenant_colours(names: Iterable[str]) -> dict[str, str]:
    """One colour per tenant, by alphabet; grey for nobody (``-``, ``nobody``) and beyond the palette.

    Make it once from all tenants and hand it to every chart, so that a tenant keeps its colour.

    Examples
    --------
    >>> tenant_colours(["b", "a", "-"])
    {'-': '#c4cbd2', 'a': '#0072b2', 'b': '#e69f00'}
    """
    return numbered(sorted(set(names)), fixed={"-": GREY, "nobody": GREY})


def layout_colours(layouts: Iterable[str]) -> dict[str, str]:
    """One colour per layout, in the given order; grey for whole GPUs, light grey for GPUs that are off.

    Examples
    --------
    >>> layout_colours(["gpu", "7g.80gb:1", "off"])
    {'gpu': '#52606d', '7g.80gb:1': '#0072b2', 'off': '#e4e7eb'}
    """
    return numbered(layouts, fixed={WHOLE_GPU: MUTED, "off": GRID})


def policy_colours(policies: Iterable[str]) -> dict[str, str]:
    """One colour per way to run a fleet, the same whichever ways stand beside it.

    Ways that have none in :data:`POLICY_COLOURS` take the colours that those leave, in the given order.

    Examples
    --------
    >>> policy_colours(["today", "node_pools", "mine"])
    {'today': '#52606d', 'node_pools': '#0072b2', 'mine': '#e69f00'}
    """
    return numbered(policies, fixed=POLICY_COLOURS)


def scale(colours: Mapping[str, str], domain: Sequence[str]) -> alt.Scale:
    """Colour scale over the given names, in their order."""
    return alt.Scale(domain=list(domain), range=[colours.get(name, GREY) for name in domain])


def label_width(names: Iterable[str]) -> int:
    """Pixels that the longest of some labels takes, at most 200.

    Examples
    --------
    >>> label_width(["a", "static"])
    56
    """
    return min(200, 14 + 7 * max(map(len, names), default=0))


def finish(
    chart: AnyChart,
    *,
    title: str = "",
    finding: str = "",
    height: int | None = None,
    bands: Sequence[str] = (),
    legend: int = 140,
    names: int = 60,
    room: int = 5,
    panels: Mapping[str, int] | None = None,
) -> AnyChart:
    """Give a chart the common look, its words, and the numbers [px] by which it is laid out for a width.

    With a height, or the names of its bands, it is one panel as wide as the page; without a title it gets that of
    :func:`prepare.drawn`.
    """
    if bands:
        height, names = height or BAND_HEIGHT * len(bands), label_width(bands)
    facts: dict[str, Any] = {"legend": legend, "names": names}
    if panels:
        facts["panels"] = dict(panels)
    own: dict[str, Any] = {"width": "container", "height": height} if height else {}
    own |= {"title": title} if title else {}
    padding = {"left": 5, "top": 5, "right": room, "bottom": 5}
    finished: AnyChart = chart.properties(
        description=_told(title, finding), usermeta=facts, padding=padding, **own
    ).configure(**CONFIG)
    return finished


def described(chart: ChartType, finding: str) -> ChartType:
    """Say what a chart shows to those who cannot see it.

    Parameters
    ----------
    chart : altair chart
        Of this package.
    finding : str
        A sentence; with the title it is the text alternative of the chart.

    Examples
    --------
    >>> described(saying("No job.", title="Waits"), "Nobody waited.").description
    'Waits. Nobody waited.'
    """
    return chart.properties(description=_told(str(chart.title), finding))


def saying(text: str, *, title: str = "") -> alt.Chart:
    """A chart that says why there is nothing to draw."""
    chart: alt.Chart = (
        alt.Chart(pl.DataFrame({"text": [text]}), width="container", height=60)
        .mark_text(align="center", color=MUTED, fontSize=13)
        .encode(text="text:N")
    )
    return finish(chart, title=title, finding=text)


def _told(title: str, finding: str) -> str:
    return ". ".join(filter(None, (title, finding)))


def numbered(names: Iterable[str], fixed: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """One colour a name: its fixed one, or the next of the palette that no fixed one takes; grey beyond."""
    names = list(dict.fromkeys(names))
    left = [colour for colour in PALETTE if colour not in fixed.values()]
    colours = dict(zip((name for name in names if name not in fixed), left, strict=False))
    return {name: fixed.get(name) or colours.get(name, GREY) for name in names}
