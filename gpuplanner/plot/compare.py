"""Ways to run a fleet side by side, and what each costs at the minutes that it adds."""

from __future__ import annotations

import math
from collections.abc import Mapping

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import prepare, theme

_TWO_LINES = 32
"""Pixels of a row whose name may take two lines."""
_SHAPES = ("square", "circle", "diamond", "triangle-up", "triangle-down", "cross")
LONGEST_MIN = 60.0
"""Right end of the axis: what adds more is named in the table alone."""
_HEIGHT = 340
_GAP = 31
"""Least distance of two labels [px]; nearer ones are moved apart, with a line to their mark."""
_WORDS = 205
"""Most pixels of a label: right of the limit there is so much on a telephone as well."""
_COLUMNS = ["policy", "gpu_hours", "added_minutes", "kind"]


def plot_policies(frame: pl.DataFrame) -> ChartType:
    """One panel per metric: the mean of each policy as a mark, its interval as a line.

    Parameters
    ----------
    frame : polars.DataFrame
        ``policy, metric, unit, mean, low, high``. Policies and metrics stand in the order of their first
        rows; the first policy is the baseline, the last the plan. ``low`` and ``high`` may be null.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> frame = pl.DataFrame({"policy": ["static", "dynamic"], "metric": "GPUs switched on", "unit": "GPU h",
    ...     "mean": [10.0, 8.0], "low": [9.0, 7.0], "high": [11.0, 9.0]})
    >>> len(plot_policies(frame).to_dict()["concat"])
    1
    """
    columns = ["policy", "metric", "unit", "mean", "low", "high"]
    prepare.require(frame, columns, where="plot_policies")
    title = "Policies compared: mean and interval"
    if frame.is_empty():
        return theme.saying("No policy was simulated.", title=title)
    policies = frame["policy"].unique(maintain_order=True).to_list()
    rows = prepare.to_data(frame.select(columns), where="plot_policies")
    colours = theme.policy_colours(policies)
    labels = prepare.wrapped(policies)
    height = _TWO_LINES * len(policies)
    shapes = alt.Scale(domain=policies, range=[_SHAPES[rank % len(_SHAPES)] for rank in range(len(policies))])

    def panel(metric: str, unit: str) -> ChartType:
        y = alt.Y("policy:N", title=None, sort=policies, axis=labels.axis)
        x = alt.X("mean:Q", title=f"[{unit}]" if unit else None, scale=alt.Scale(zero=False, nice=True))
        colour = alt.Color("policy:N", scale=theme.scale(colours, policies), legend=None)
        hover = [
            alt.Tooltip("policy:N", title="policy"),
            alt.Tooltip("mean:Q", title=f"mean [{unit}]" if unit else "mean", format=",.4~g"),
            alt.Tooltip("low:Q", title="low", format=",.4~g"),
            alt.Tooltip("high:Q", title="high", format=",.4~g"),
        ]
        base = alt.Chart(rows.filter(metric=metric))
        line = base.mark_rule(size=2).encode(x=alt.X("low:Q"), x2="high:Q", y=y, color=colour, tooltip=hover)
        mark = base.mark_point(filled=True, size=110, opacity=1).encode(
            x=x, y=y, color=colour, shape=alt.Shape("policy:N", scale=shapes, legend=None), tooltip=hover
        )
        heading = alt.TitleParams(metric, fontSize=13, offset=6)
        # A line without ends has no extent, and Vega warns of it.
        ranged = rows.filter(pl.col("metric") == metric, pl.col("low").is_not_null()).height > 0
        return alt.layer(*([line] if ranged else []), mark).properties(height=height, title=heading)

    metrics = rows.select("metric", "unit").unique(maintain_order=True)
    chart = alt.concat(*[panel(metric, unit) for metric, unit in metrics.iter_rows()], columns=2)
    return theme.finish(
        chart,
        title=title,
        finding=policies_text(frame),
        names=labels.pixels,
        panels={"columns": 2, "minimum": 340, "margin": 24},
    )


def plot_frontier(
    frame: pl.DataFrame,
    *,
    limit: float = 10.0,
    best: str | None = None,
    names: Mapping[str, str] | None = None,
) -> ChartType:
    """GPU-hours a week against the minutes that a way adds: every way by its name beside its mark.

    Left of the dashed line every class of jobs starts within the limit. GPU-hours do not begin at zero.

    Parameters
    ----------
    frame : polars.DataFrame
        ``policy, gpu_hours, added_minutes, kind``, the kind one of ``"setting"``, ``"tuned"``, ``"today"``, and
        ``"pinned"`` for those of another comparison, drawn as outlines. Today's fleet stands first.
    limit : float
        Minutes that may be added.
    best : str, optional
        The recommended way: the only one in colour.
    names : mapping, optional
        Names of ways in words, by policy.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> points = pl.DataFrame({"policy": ["today", "pools"], "gpu_hours": [10752.0, 4000.0],
    ...     "added_minutes": [0.0, 4.0], "kind": ["today", "tuned"]})
    >>> plot_frontier(points, best="pools").to_dict()["title"]
    'GPU-hours a week against added minutes'
    """
    prepare.require(frame, _COLUMNS, where="plot_frontier")
    title = "GPU-hours a week against added minutes"
    shown = frame.filter(
        pl.col("added_minutes").is_between(0.0, LONGEST_MIN), pl.col("gpu_hours").is_not_null()
    )
    if shown.is_empty():
        return theme.saying("No way to run the fleet was played.", title=title)
    low, high = _ends(shown["gpu_hours"])
    words = names or {}
    rows = shown.select(
        *_COLUMNS,
        name=pl.col("policy").replace(words),
        look=pl.when(pl.col("policy") == (best or "")).then(pl.lit("best"))
        .when(pl.col("kind") == "today").then(pl.lit("today")).otherwise(pl.lit("other")),
    )  # fmt: skip
    # What matters most is drawn last, on top of the others.
    order = {"other": 0, "today": 1, "best": 2}
    marks = rows.filter(pl.col("kind").is_in(["today", "tuned", "pinned"])).sort(
        pl.col("look").replace_strict(order, return_dtype=pl.Int64), maintain_order=True
    )
    labels = _labels(marks.filter(pl.col("kind") != "pinned"), limit, low, high)
    x = alt.X(
        "added_minutes:Q",
        title="minutes of added delay",
        scale=alt.Scale(domain=[0, LONGEST_MIN], nice=False, clamp=True),
        axis=alt.Axis(values=[0, 10, 20, 30, 40, 50, 60]),
    )
    y = alt.Y(
        "gpu_hours:Q",
        title="GPUs on [GPU h a week]",
        scale=alt.Scale(domain=[low, high], nice=False, zero=False),
    )
    looks = {"today": theme.INK, "best": theme.PALETTE[0], "other": theme.QUIET}
    colour = alt.Color("look:N", scale=theme.scale(looks, list(looks)), legend=None)
    hover = [
        alt.Tooltip("name:N", title="way"),
        alt.Tooltip("kind:N", title="setting"),
        alt.Tooltip("gpu_hours:Q", title="GPU h a week", format=",.0f"),
        alt.Tooltip("added_minutes:Q", title="minutes added", format=",.1f"),
    ]
    zone = alt.Chart(prepare.to_data(pl.DataFrame({"from": [0.0], "to": [limit]}), where="plot_frontier"))
    lines = alt.Chart(
        prepare.to_data(rows.filter(pl.col("kind") != "pinned").sort("added_minutes"), where="plot_frontier")
    )
    points = alt.Chart(prepare.to_data(marks, where="plot_frontier"))
    said = alt.Chart(prepare.to_data(labels, where="plot_frontier"))
    there = set(marks["kind"])
    fixed = {"x": x, "y": y, "color": colour, "tooltip": hover}
    label_at = {"x": alt.X("label_x:Q"), "y": alt.Y("label_y:Q")}
    parts: list[ChartType] = [
        zone.mark_rect(color=theme.ZONE).encode(x="from:Q", x2="to:Q"),
        zone.mark_rule(strokeDash=[5, 3], color=theme.INK).encode(x="to:Q"),
        zone.transform_calculate(word=f"'your limit: {limit:g} min'")
        .mark_text(align="left", dx=6, dy=10, fontWeight=600, baseline="top")
        .encode(x="to:Q", y=alt.value(-6), text="word:N"),
        lines.mark_line(size=1.2, opacity=0.7).encode(
            x=x, y=y, color=colour, detail="policy:N", order="added_minutes:Q"
        ),
        lines.mark_point(filled=True, size=14, opacity=0.8).encode(**fixed),
        said.mark_rule(color=theme.GREY, size=1).encode(
            **label_at, x2="added_minutes:Q", y2="gpu_hours:Q"
        ),
        *(
            [points.transform_filter("datum.kind == 'pinned'").mark_point(filled=False, size=110).encode(
                **fixed, shape=alt.value("triangle-up"))]
            if "pinned" in there else []
        ),
        points.transform_filter("datum.kind != 'pinned'").mark_point(filled=True, size=130, opacity=1).encode(**fixed),
        said.mark_text(align="left", dx=5, dy=-6, lineBreak="\n", limit=_WORDS).encode(
            **label_at, text="label:N", color=alt.Color("look:N", scale=theme.scale(_TEXT, list(_TEXT)), legend=None)
        ),
    ]  # fmt: skip
    chart: ChartType = alt.layer(*parts).resolve_scale(color="independent")
    chart = chart.properties(width="container", height=_HEIGHT)
    return theme.finish(chart, title=title, finding=frontier_text(frame, names=names))


_TEXT = {"today": theme.INK, "best": theme.ACCENT, "other": theme.MUTED}


def frontier_text(frame: pl.DataFrame, *, names: Mapping[str, str] | None = None) -> str:
    """Say what today's fleet and the tuned ways cost, dearest first.

    Examples
    --------
    >>> points = pl.DataFrame({"policy": ["today", "pools"], "gpu_hours": [10752.0, 4000.0],
    ...     "added_minutes": [0.0, 4.2], "kind": ["today", "tuned"]})
    >>> frontier_text(points, names={"today": "as today"})
    'as today: 10,752 GPU-hours a week; pools: 4,000, 4 minutes later.'
    """
    ends = frame.filter(pl.col("kind").is_in(["today", "tuned"]), pl.col("gpu_hours").is_not_null()).sort(
        "gpu_hours", descending=True, maintain_order=True
    )
    said: list[str] = []
    for policy, hours, added in ends.select("policy", "gpu_hours", "added_minutes").iter_rows():
        later = f", {added:,.0f} minutes later" if added is not None and added >= 0.5 else ""
        unit = "" if said else " GPU-hours a week"
        said.append(f"{(names or {}).get(policy, policy)}: {hours:,.0f}{unit}{later}")
    return "; ".join(said) + "." if said else "Nothing was tuned."


def policies_text(frame: pl.DataFrame) -> str:
    """Say each measure of the first policy and of the last.

    Examples
    --------
    >>> rows = {"policy": ["static", "dynamic"], "metric": "GPUs on", "unit": "GPU h", "mean": [1200.0, 8.0]}
    >>> policies_text(pl.DataFrame(rows))
    'From "static" to "dynamic": GPUs on 1,200 to 8 GPU h.'
    """
    policies = frame["policy"].unique(maintain_order=True)
    ends = frame.filter(pl.col("policy").is_in([policies[0], policies[-1]]), pl.col("mean").is_not_null())
    measures = [
        f"{metric} {' to '.join(map(_figure, mine['mean']))} {unit or ''}".rstrip()
        for (metric, unit), mine in ends.group_by("metric", "unit", maintain_order=True)
    ]
    return f'From "{policies[0]}" to "{policies[-1]}": {"; ".join(measures) or "nothing was measured"}.'


def _figure(mean: float) -> str:
    """Four figures, but never an exponent for what people count."""
    return f"{mean:,.0f}" if abs(mean) >= 1000 else f"{mean:,.4g}"


def _ends(hours: pl.Series) -> tuple[float, float]:
    """Round ends of the axis, with room above for the words at the top."""
    least, most = float(hours.min()), float(hours.max())  # type: ignore[arg-type]
    room = max(most - least, 0.1 * most, 1.0)
    step = 10.0 ** math.floor(math.log10(room))
    step = step / 2 if room / step < 3 else step
    return max(math.floor((least - 0.08 * room) / step) * step, 0.0), math.ceil(
        (most + 0.12 * room) / step
    ) * step


def _labels(marks: pl.DataFrame, limit: float, low: float, high: float) -> pl.DataFrame:
    """One label a way, right of the limit, moved apart where two would touch."""
    rows = marks.sort("gpu_hours", descending=True, maintain_order=True)
    per_pixel = (high - low) / _HEIGHT
    places: list[float] = []
    top = 1.2 * _GAP  # the words at the limit stand above
    for hours in rows["gpu_hours"]:
        wanted = max((high - hours) / per_pixel, top)
        places.append(max(wanted, places[-1] + _GAP) if places else wanted)
    for at in range(len(places) - 1, -1, -1):
        most = _HEIGHT - 8 if at == len(places) - 1 else places[at + 1] - _GAP
        places[at] = min(places[at], most)
    added = rows["added_minutes"].to_list()
    right = [min(max(minutes, limit) + 1.2, 0.6 * LONGEST_MIN) for minutes in added]
    text = [
        f"{name}\n{hours:,.0f}" + (f", {minutes:,.0f} min later" if minutes >= 0.5 else "")
        for name, hours, minutes in zip(rows["name"], rows["gpu_hours"], added, strict=True)
    ]
    return rows.with_columns(
        label=pl.Series(text, dtype=pl.String),
        label_x=pl.Series(right, dtype=pl.Float64),
        label_y=pl.Series([high - place * per_pixel for place in places], dtype=pl.Float64),
    )
