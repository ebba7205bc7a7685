"""Policies side by side, what each costs at each wait, and what each step saves."""

from __future__ import annotations

import itertools

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import prepare, theme

_TWO_LINES = 32
"""Pixels of a row whose name may take two lines."""
_SHAPES = ("square", "circle", "diamond", "triangle-up", "triangle-down", "cross")
_FRONTIER_HEIGHT = 340
_TICKS = (0, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 500)
_KINDS = {"setting": "circle", "tuned": "diamond", "today": "square", "pinned": "triangle-up"}


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
        return alt.layer(line, mark).properties(height=height, title=heading)

    metrics = rows.select("metric", "unit").unique(maintain_order=True)
    chart = alt.concat(*[panel(metric, unit) for metric, unit in metrics.iter_rows()], columns=2)
    return theme.finish(
        chart,
        title=title,
        finding=policies_text(frame),
        names=labels.pixels,
        panels={"columns": 2, "minimum": 340, "margin": 24},
    )


def plot_frontier(frame: pl.DataFrame) -> ChartType:
    """GPU-hours a week against wait: settings of a policy joined by a line, tuned ones and today's fleet marked.

    Left of the dashed line every class of jobs waits no longer than it may.

    Parameters
    ----------
    frame : polars.DataFrame
        ``policy, gpu_hours, wait_over_target, kind``, the kind one of ``"setting"``, ``"tuned"``, ``"today"``, and
        ``"pinned"`` for those of another comparison, drawn as outlines. Policies stand in the order of their first
        rows, today's fleet first.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> points = pl.DataFrame({"policy": ["today", "reactive"], "gpu_hours": [10752.0, 4000.0],
    ...     "wait_over_target": [1.0, 0.5], "kind": ["today", "tuned"]})
    >>> plot_frontier(points).to_dict()["title"]
    'GPU-hours a week against wait'
    """
    prepare.require(frame, ["policy", "gpu_hours", "wait_over_target", "kind"], where="plot_frontier")
    title = "GPU-hours a week against wait"
    if frame.is_empty():
        return theme.saying("No policy was simulated.", title=title)
    policies = frame["policy"].unique(maintain_order=True).to_list()
    data = prepare.to_data(frame.sort("wait_over_target", maintain_order=True), where="plot_frontier")
    x = alt.X(
        "wait_over_target:Q",
        title="wait of the class that is worst off, over its target",
        scale=alt.Scale(type="symlog", constant=0.2, domainMin=0, nice=False),
        axis=alt.Axis(values=list(_TICKS), format=",.3~g"),
    )
    y = alt.Y("gpu_hours:Q", title="GPUs on [GPU h a week]", scale=alt.Scale(domainMin=0))
    colour = alt.Color(
        "policy:N", title=None, scale=theme.scale(theme.policy_colours(policies), policies), sort=policies
    )
    hover = [
        alt.Tooltip("policy:N", title="policy"),
        alt.Tooltip("kind:N", title="setting"),
        alt.Tooltip("gpu_hours:Q", title="GPU h a week", format=",.0f"),
        alt.Tooltip("wait_over_target:Q", title="wait over target", format=",.2f"),
    ]
    shapes = {kind: shape for kind, shape in _KINDS.items() if kind in frame["kind"]}
    shape = alt.Shape(
        "kind:N",
        title=None,
        scale=alt.Scale(domain=list(shapes), range=list(shapes.values())),
        legend=alt.Legend(orient="bottom"),
    )
    size = alt.condition("datum.kind == 'setting'", alt.value(35), alt.value(150))
    mark = {"x": x, "y": y, "color": colour, "shape": shape, "size": size, "tooltip": hover}
    base = alt.Chart(data)
    own, pinned = (base.transform_filter(f"datum.kind {side} 'pinned'") for side in ("!=", "=="))
    parts: list[ChartType] = [
        own.mark_line(size=1.5, opacity=0.6).encode(x=x, y=y, color=colour, order="wait_over_target:Q"),
        # A layer without rows has no extent, and Vega warns of it.
        *([pinned.mark_point(filled=False, opacity=1).encode(**mark)] if "pinned" in shapes else []),
        own.mark_point(filled=True, opacity=1).encode(**mark),
    ]
    limit = alt.Chart(prepare.to_data(pl.DataFrame({"wait_over_target": [1.0]}), where="plot_frontier"))
    parts.append(limit.mark_rule(strokeDash=[4, 4], color=theme.MUTED).encode(x="wait_over_target:Q"))
    chart = alt.layer(*parts).properties(width="container", height=_FRONTIER_HEIGHT)
    return theme.finish(chart, title=title, finding=frontier_text(frame), legend=150)


def frontier_text(frame: pl.DataFrame) -> str:
    """Say what today's fleet and the tuned policies cost, dearest first.

    Examples
    --------
    >>> points = pl.DataFrame({"policy": ["today", "reactive"], "gpu_hours": [10752.0, 4000.0],
    ...     "wait_over_target": [1.0, 0.5], "kind": ["today", "tuned"]})
    >>> frontier_text(points)
    'today: 10,752 GPU-hours a week; reactive: 4,000.'
    """
    ends = frame.filter(pl.col("kind").is_in(["today", "tuned"])).sort(
        "gpu_hours", descending=True, maintain_order=True
    )
    said = [f"{policy}: {hours:,.0f}" for policy, hours in ends.select("policy", "gpu_hours").iter_rows()]
    return "; ".join([f"{said[0]} GPU-hours a week", *said[1:]]) + "." if said else "Nothing was tuned."


def plot_growth(frame: pl.DataFrame) -> ChartType:
    """GPUs that hold the target against growth of arrivals: a band from the easiest to the hardest week drawn.

    Parameters
    ----------
    frame : polars.DataFrame
        ``policy, factor, gpus_low, gpus, gpus_high, installed``; GPUs may be null where none of the fleets tried is
        enough. Above the dashed line more GPUs are needed than are installed.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> rows = pl.DataFrame({"policy": "today", "factor": [1.0, 2.0], "gpus_low": [56, 112], "gpus": [64, 120],
    ...     "gpus_high": [72, 128], "installed": 64})
    >>> plot_growth(rows).to_dict()["title"]
    'GPUs that hold the target as arrivals grow'
    """
    prepare.require(
        frame, ["policy", "factor", "gpus_low", "gpus", "gpus_high", "installed"], where="plot_growth"
    )
    title = "GPUs that hold the target as arrivals grow"
    if frame.is_empty():
        return theme.saying("No growth was played.", title=title)
    policies = frame["policy"].unique(maintain_order=True).to_list()
    base = alt.Chart(prepare.to_data(frame, where="plot_growth"))
    x = alt.X("factor:Q", title="arrivals over today's", scale=alt.Scale(zero=False))
    colour = alt.Color(
        "policy:N", title=None, scale=theme.scale(theme.policy_colours(policies), policies), sort=policies
    )
    hover = [
        alt.Tooltip("policy:N", title="policy"),
        alt.Tooltip("factor:Q", title="arrivals over today's", format=".2f"),
        *(alt.Tooltip(f"{name}:Q", title=name, format=",.0f") for name in ("gpus_low", "gpus", "gpus_high")),
    ]
    band = base.mark_area(opacity=0.2).encode(
        x=x, y=alt.Y("gpus_low:Q", title="GPUs"), y2="gpus_high:Q", color=colour
    )
    line = base.mark_line(point=True).encode(x=x, y=alt.Y("gpus:Q"), color=colour, tooltip=hover)
    installed = base.mark_rule(strokeDash=[4, 4], color=theme.MUTED).encode(y="min(installed):Q")
    chart = alt.layer(band, line, installed).properties(width="container", height=_FRONTIER_HEIGHT)
    return theme.finish(chart, title=title, finding=growth_text(frame), legend=150)


def growth_text(frame: pl.DataFrame) -> str:
    """Say what each policy needs at the least and at the most growth.

    Examples
    --------
    >>> rows = pl.DataFrame({"policy": "today", "factor": [1.0, 2.0], "gpus": [64, None]})
    >>> growth_text(rows)
    'today: 64 GPUs at 1 times the arrivals, more than were tried at 2.'
    """
    said = []
    for (policy,), mine in frame.group_by("policy", maintain_order=True):
        ends = mine.sort("factor").select("factor", "gpus").rows()
        known = [f"{gpus:,.0f} GPUs" if gpus is not None else "more than were tried" for _, gpus in ends]
        said.append(
            f"{policy}: {known[0]} at {ends[0][0]:g} times the arrivals, {known[-1]} at {ends[-1][0]:g}"
        )
    return "; ".join(said) + "." if said else "No growth was played."


def plot_savings(frame: pl.DataFrame) -> ChartType:
    """GPU-hours needed, step by step from the baseline to the plan, as a waterfall.

    Parameters
    ----------
    frame : polars.DataFrame
        ``step, gpu_hours, low, high`` in the order of the steps. The first row is the baseline; each further
        row has the GPU-hours that are needed with this step and all before it, and their interval (may be
        null). The bar of a step reaches from the level before it to its own; the last bar is the plan.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> steps = pl.DataFrame({"step": ["as installed", "cutting GPUs"], "gpu_hours": [100.0, 60.0],
    ...     "low": [None, 55.0], "high": [None, 66.0]})
    >>> plot_savings(steps).to_dict()["title"]
    'GPU-hours needed, from the baseline to the plan'
    """
    prepare.require(frame, ["step", "gpu_hours", "low", "high"], where="plot_savings")
    title = "GPU-hours needed, from the baseline to the plan"
    if frame.is_empty():
        return theme.saying("No step was measured.", title=title)
    rows = _waterfall(frame)
    order = rows["name"].to_list()
    kinds = {"needed": theme.MUTED, "saved": theme.PALETTE[2], "added": theme.PALETTE[5]}
    shown = [kind for kind in kinds if kind in rows["kind"]]
    named = prepare.wrapped(order)
    y = alt.Y("name:N", title=None, sort=order, axis=named.axis)
    data = alt.Chart(prepare.to_data(rows, where="plot_savings"))
    hover = [
        alt.Tooltip("name:N", title="step"),
        alt.Tooltip("after:Q", title="GPU-hours needed", format=",.0f"),
        alt.Tooltip("low:Q", title="low", format=",.0f"),
        alt.Tooltip("high:Q", title="high", format=",.0f"),
        alt.Tooltip("label:N", title="change"),
    ]
    bars = data.mark_bar().encode(
        x=alt.X("before:Q", title="GPU-hours"),
        x2="after:Q",
        y=y,
        color=alt.Color("kind:N", title=None, scale=theme.scale(kinds, shown)),
        tooltip=hover,
    )
    whiskers = data.transform_filter("isValid(datum.low)").mark_rule(color=theme.INK, size=1.5)
    labels = data.mark_text(align="left", dx=6).encode(x=alt.X("edge:Q"), y=y, text="label:N")
    chart = alt.layer(bars, whiskers.encode(x=alt.X("low:Q"), x2="high:Q", y=y), labels)
    chart = chart.properties(width="container", height=_TWO_LINES * len(order))
    finding = "; ".join(f"{name}: {label}" for name, label in rows.select("name", "label").iter_rows()) + "."
    return theme.finish(chart, title=title, finding=finding, legend=110, names=named.pixels, room=48)


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


def _waterfall(frame: pl.DataFrame) -> pl.DataFrame:
    """Bars from ``before`` to ``after`` with a label each; the baseline and the plan begin at zero."""
    steps = frame.select("step", pl.col("gpu_hours", "low", "high").cast(pl.Float64)).rows()
    (first, baseline, *ends), *moves = steps
    bars = [(first, 0.0, baseline, *ends, "needed", f"{baseline:,.0f}")]
    for (_, before, *_), (name, after, low, high) in itertools.pairwise(steps):
        kind = "added" if after > before else "saved"
        change = "±0" if round(after - before) == 0 else f"{after - before:+,.0f}".replace("-", "−")
        bars.append((name, before, after, low, high, kind, change))
    if moves:
        _, last, low, high = steps[-1]
        share = f" ({last / baseline - 1:+.0%})".replace("-", "−") if baseline else ""
        bars.append(("plan", 0.0, last, low, high, "needed", f"{last:,.0f}{share}"))
    names = ["name", "before", "after", "low", "high", "kind", "label"]
    numbers = dict.fromkeys(names[1:5], pl.Float64)
    rows = pl.DataFrame(bars, schema=names, schema_overrides=numbers, orient="row")
    return rows.with_columns(edge=pl.max_horizontal("before", "after", "high"))
