"""What all charts share in looks: colours, sizes, fonts, and the finish on the way out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.schemas import BUCKETS, WHOLE_GPU

INK = "#1f2933"
MUTED = "#52606d"
GRID = "#e4e7eb"
GREY = "#c4cbd2"
QUIET = "#8a949e"
"""Marks of what is neither recommended nor today's."""
ACCENT, WARN = "#005a8c", "#b24a00"
"""Words about what is recommended, and about what needs attention."""
ZONE = "#eff7fb"
"""Ground of what lies within a limit."""

# Okabe & Ito, "Color Universal Design" (2008), without black, which is kept for totals and text; then colours
# chosen one by one to lie farthest from all before, as seen with and without each kind of colour blindness.
PALETTE = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#f0e442",
    "#662200",
    "#9900ff",
    "#aaff88",
    "#440066",
    "#9977ff",
)

_BUCKETS = {
    "used": "#0072b2",
    "unobserved": "#8ecbf0",
    "held_idle": "#e69f00",
    "free": "#d5dbe1",
    "fragmented": "#d55e00",
    "unexplained": "#663311",
    "reserved": "#cc79a7",
    "reconfiguring": "#f0e442",
    "down": "#3e4c59",
}

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


def bucket_colours() -> dict[str, str]:
    """Colour of each bucket of the ledger, in the order of :data:`gpuplanner.schemas.BUCKETS`.

    Examples
    --------
    >>> bucket_colours()["used"]
    '#0072b2'
    """
    return {bucket: _BUCKETS[bucket] for bucket in BUCKETS}


def tenant_colours(names: Iterable[str]) -> dict[str, str]:
    """One colour per tenant, by alphabet; grey for nobody (``-``, ``Unallocated``) and beyond the palette.

    Make it once from all tenants and hand it to every chart, so that a tenant keeps its colour.

    Examples
    --------
    >>> tenant_colours(["b", "a", "-"])
    {'-': '#c4cbd2', 'a': '#0072b2', 'b': '#e69f00'}
    """
    return _numbered(sorted(set(names)), fixed={"-": GREY, "Unallocated": GREY})


def layout_colours(layouts: Iterable[str]) -> dict[str, str]:
    """One colour per layout, in the given order; grey for whole GPUs, light grey for GPUs that are off.

    Examples
    --------
    >>> layout_colours(["gpu", "7g.80gb:1", "off"])
    {'gpu': '#52606d', '7g.80gb:1': '#0072b2', 'off': '#e4e7eb'}
    """
    return _numbered(list(dict.fromkeys(layouts)), fixed={WHOLE_GPU: MUTED, "off": GRID})


def policy_colours(policies: Iterable[str]) -> dict[str, str]:
    """One colour per policy, in the given order: the first is the baseline, the last the plan.

    Examples
    --------
    >>> policy_colours(["installed", "static", "dynamic"])
    {'installed': '#52606d', 'static': '#e69f00', 'dynamic': '#0072b2'}
    """
    names = list(dict.fromkeys(policies))
    between = zip(names[1:-1], PALETTE[1:], strict=False)
    ends = dict.fromkeys(names[-1:], PALETTE[0]) | dict.fromkeys(names[:1], MUTED)
    return dict.fromkeys(names, GREY) | dict(between) | ends


def scale(colours: Mapping[str, str], domain: Sequence[str]) -> alt.Scale:
    """Colour scale over the given names, in their order."""
    return alt.Scale(domain=list(domain), range=[colours.get(name, GREY) for name in domain])


def finish(
    chart: AnyChart,
    *,
    title: str,
    finding: str = "",
    legend: int = 140,
    names: int = 60,
    room: int = 5,
    panels: Mapping[str, int] | None = None,
) -> AnyChart:
    """Give a chart its title, the common look, and the numbers by which it is laid out for a width."""
    facts: dict[str, Any] = {"legend": legend, "names": names}
    if panels:
        facts["panels"] = dict(panels)
    padding = {"left": 5, "top": 5, "right": room, "bottom": 5}
    finished: AnyChart = chart.properties(
        title=title, description=_told(title, finding), usermeta=facts, padding=padding
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


def saying(text: str, *, title: str) -> alt.Chart:
    """A chart that says why there is nothing to draw."""
    chart: alt.Chart = (
        alt.Chart(pl.DataFrame({"text": [text]}), width="container", height=60)
        .mark_text(align="center", color=MUTED, fontSize=13)
        .encode(text="text:N")
    )
    return finish(chart, title=title, finding=text)


def _told(title: str, finding: str) -> str:
    return f"{title}. {finding}" if finding else title


def _numbered(names: Sequence[str], fixed: Mapping[str, str]) -> dict[str, str]:
    free = [name for name in names if name not in fixed]
    colours = dict(zip(free, PALETTE, strict=False))
    return {name: fixed.get(name) or colours.get(name, GREY) for name in names}
