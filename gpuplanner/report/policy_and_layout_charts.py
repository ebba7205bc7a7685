"""Charts of policies, plans and MIG layouts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.core.errors import SchemaError
from gpuplanner.report import chart_theme as theme
from gpuplanner.report.chart_theme import (
    chart_of,
    drawn,
    each,
    folded,
    heading,
    in_order,
    ranked,
    tips,
    utc_axis,
    utc_text,
    wrapped,
)

ABOVE = "above the bound"
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
_PLANS = ("method", "objective", "bound", "gap")
_POINTS = ("policy", "gpu_hours", "added_wait_p95_minutes", "kind")
_MEASURES = ("policy", "metric", "unit", "mean", "low", "high")


@drawn("Policy comparison: mean and interval", *_MEASURES, empty="No policy was simulated.")
def plot_policies(frame: pl.DataFrame, *, names: Mapping[str, str] | None = None) -> ChartType:
    """One panel per metric: the mean of each policy as a mark, its interval as a line.

    Parameters
    ----------
    frame : polars.DataFrame
        ``policy, metric, unit, mean, low, high``. Policies and metrics stand in the order of their first
        rows. ``low`` and ``high`` may be null.
    names : mapping, optional
        Names of policies in words, by policy.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> frame = pl.DataFrame({"policy": ["static", "dynamic"], "metric": "GPUs provisioned", "unit": "GPU h",
    ...     "mean": [10.0, 8.0], "low": [9.0, 7.0], "high": [11.0, 9.0]})
    >>> len(plot_policies(frame).to_dict()["concat"])
    1
    """
    said = pl.col("policy").replace(names or {})
    rows = frame.select(*_MEASURES, name=said)
    policies, words = (in_order(rows, column) for column in ("policy", "name"))
    labels = wrapped(words)
    y = alt.Y("name:N", title=None, sort=words, axis=labels.axis)
    colours = theme.policy_colours(policies)
    colour = alt.Color("policy:N", scale=theme.scale(colours, policies), legend=None)
    shapes = alt.Scale(domain=policies, range=[_SHAPES[rank % len(_SHAPES)] for rank in range(len(policies))])

    def panel(metric: str, unit: str) -> ChartType:
        mine = rows.filter(metric=metric)
        x = alt.X("mean:Q", title=f"[{unit}]" if unit else None, scale=alt.Scale(zero=False, nice=True))
        mean = f"mean [{unit}]" if unit else "mean"
        hover = tips(name="policy", mean=(mean, ",.4~g"), low=("low", ",.4~g"), high=("high", ",.4~g"))
        base = chart_of(mine).encode(y=y, color=colour, tooltip=hover)
        line = base.mark_rule(size=2).encode(x=alt.X("low:Q"), x2="high:Q")
        mark = base.mark_point(filled=True, size=110, opacity=1).encode(
            x=x, shape=alt.Shape("policy:N", scale=shapes, legend=None)
        )
        # A line without ends has no extent, and Vega warns of it.
        layers = [line, mark] if mine["low"].count() else [mark]
        return alt.layer(*layers).properties(height=_TWO_LINES * len(policies), title=heading(metric))

    metrics = rows.select("metric", "unit").unique(maintain_order=True)
    chart = alt.concat(*[panel(metric, unit) for metric, unit in metrics.iter_rows()], columns=2)
    panels = {"columns": 2, "minimum": 340, "margin": 24}
    return theme.finish(chart, finding=policies_text(frame, names=names), names=labels.pixels, panels=panels)


@drawn("Provisioned GPU-hours per week against added queue wait", *_POINTS, empty="No policy was simulated.")
def plot_frontier(
    frame: pl.DataFrame, *, limit: float = 10.0, best: str | None = None, names: Mapping[str, str] | None = None
) -> ChartType:
    """Provisioned GPU-hours per week against the added queue wait, each policy with its name.

    Left of the dashed line every class of jobs starts within the limit. GPU-hours do not begin at zero.

    Parameters
    ----------
    frame : polars.DataFrame
        ``policy, gpu_hours, added_wait_p95_minutes, kind``, kind one of ``"setting"``, ``"tuned"``, ``"today"``, and
        ``"pinned"`` for those of another comparison, drawn as outlines. Today's fleet stands first.
    limit : float
        Minutes that may be added.
    best : str, optional
        The recommended policy: the only one in the colour that it has everywhere.
    names : mapping, optional
        Names of policies in words, by policy.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> points = pl.DataFrame({"policy": ["today", "pools"], "gpu_hours": [10752.0, 4000.0],
    ...     "added_wait_p95_minutes": [0.0, 4.0], "kind": ["today", "tuned"]})
    >>> plot_frontier(points, best="pools").to_dict()["title"]
    'Provisioned GPU-hours per week against added queue wait'
    """
    near = pl.col("added_wait_p95_minutes").is_between(0.0, LONGEST_MIN) & pl.col("gpu_hours").is_not_null()
    rows = frame.filter(near).select(
        *_POINTS,
        name=pl.col("policy").replace(names or {}),
        look=pl.when(pl.col("policy") == (best or "")).then(pl.lit("best"))
        .when(pl.col("kind") == "today").then(pl.lit("today")).otherwise(pl.lit("other")),
    )  # fmt: skip
    if rows.is_empty():
        return theme.saying("No policy was simulated.")
    low, high = _ends(rows["gpu_hours"])
    # What matters most is drawn last, on top of the others.
    order = {"other": 0, "today": 1, "best": 2}
    marks = rows.filter(pl.col("kind") != "setting").sort(
        pl.col("look").replace_strict(order, return_dtype=pl.Int64), maintain_order=True
    )
    pinned = pl.col("kind") == "pinned"
    labels = _labels(marks.filter(~pinned), limit, low, high)
    colours = theme.policy_colours(["today", *([best] if best else [])])
    looks = {"today": colours["today"], "best": colours.get(best or "", theme.QUIET), "other": theme.QUIET}
    texts = looks | {"today": theme.INK, "other": theme.MUTED}
    scale = alt.Scale(domain=[0, LONGEST_MIN], nice=False, clamp=True)
    axis = alt.Axis(values=[0, 10, 20, 30, 40, 50, 60])
    x = alt.X("added_wait_p95_minutes:Q", title="added queue wait, p95 [min]", scale=scale, axis=axis)
    y = alt.Y(
        "gpu_hours:Q", title="provisioned [GPU h per week]", scale=alt.Scale(domain=[low, high], nice=False, zero=False)
    )
    colour = alt.Color("look:N", scale=theme.scale(looks, list(looks)), legend=None)
    hover = tips(
        name="policy",
        kind="setting",
        gpu_hours=("provisioned [GPU h per week]", ",.0f"),
        added_wait_p95_minutes=("added queue wait, p95 [min]", ",.1f"),
    )
    zone = chart_of(pl.DataFrame({"from": [0.0], "to": [limit]}))
    lines, filled, outlined = (
        chart_of(some).encode(x=x, y=y, color=colour)
        for some in (rows.filter(~pinned).sort("added_wait_p95_minutes"), marks.filter(~pinned), marks.filter(pinned))
    )
    said = chart_of(labels).encode(x=alt.X("label_x:Q"), y=alt.Y("label_y:Q"))
    parts: list[ChartType] = [
        zone.mark_rect(color=theme.ZONE).encode(x="from:Q", x2="to:Q"),
        zone.mark_rule(strokeDash=[5, 3], color=theme.INK).encode(x="to:Q"),
        zone.transform_calculate(word=f"'maximum added wait: {limit:g} min'")
        .mark_text(align="left", dx=6, dy=10, fontWeight=600, baseline="top")
        .encode(x="to:Q", y=alt.value(-6), text="word:N"),
        lines.mark_line(size=1.2, opacity=0.7).encode(detail="policy:N", order="added_wait_p95_minutes:Q"),
        lines.mark_point(filled=True, size=14, opacity=0.8).encode(tooltip=hover),
        said.mark_rule(color=theme.GREY, size=1).encode(x2="added_wait_p95_minutes:Q", y2="gpu_hours:Q"),
    ]
    if "pinned" in marks["kind"]:
        parts.append(outlined.mark_point(filled=False, size=110).encode(shape=alt.value("triangle-up"), tooltip=hover))
    parts += [
        filled.mark_point(filled=True, size=130, opacity=1).encode(tooltip=hover),
        said.mark_text(align="left", dx=5, dy=-6, lineBreak="\n", limit=_WORDS).encode(
            text="label:N", color=alt.Color("look:N", scale=theme.scale(texts, list(texts)), legend=None)
        ),
    ]
    chart: ChartType = alt.layer(*parts).resolve_scale(color="independent")
    return theme.finish(chart, height=_HEIGHT, finding=frontier_text(frame, names=names))


def frontier_text(frame: pl.DataFrame, *, names: Mapping[str, str] | None = None) -> str:
    """GPU-hours and added waits of today's fleet and the policies, the most expensive first.

    Examples
    --------
    >>> points = pl.DataFrame({"policy": ["today", "pools"], "gpu_hours": [10752.0, 4000.0],
    ...     "added_wait_p95_minutes": [0.0, 4.2], "kind": ["today", "tuned"]})
    >>> frontier_text(points, names={"today": "today"})
    'today: 10,752 GPU-hours per week; pools: 4,000, +4 min.'
    """
    ends = frame.filter(pl.col("kind").is_in(["today", "tuned"]), pl.col("gpu_hours").is_not_null()).sort(
        "gpu_hours", descending=True, maintain_order=True
    )
    said: list[str] = []
    for policy, hours, added in ends.select("policy", "gpu_hours", "added_wait_p95_minutes").iter_rows():
        later = f", +{added:,.0f} min" if added is not None and added >= 0.5 else ""
        unit = "" if said else " GPU-hours per week"
        said.append(f"{(names or {}).get(policy, policy)}: {hours:,.0f}{unit}{later}")
    return "; ".join(said) + "." if said else "No policy was simulated."


def policies_text(frame: pl.DataFrame, *, names: Mapping[str, str] | None = None) -> str:
    """Each metric of the first policy and of the last.

    Examples
    --------
    >>> rows = {"policy": ["static", "dynamic"], "metric": "provisioned", "unit": "GPU h", "mean": [1200.0, 8.0]}
    >>> policies_text(pl.DataFrame(rows))
    'From "static" to "dynamic": provisioned 1,200 to 8 GPU h.'
    """
    policies = frame["policy"].unique(maintain_order=True)
    ends = frame.filter(pl.col("policy").is_in([policies[0], policies[-1]]), pl.col("mean").is_not_null())
    measures = [
        f"{metric} {' to '.join(map(_figure, mine['mean']))} {unit or ''}".rstrip()
        for (metric, unit), mine in ends.group_by("metric", "unit", maintain_order=True)
    ]
    first, last = ((names or {}).get(name, name) for name in (policies[0], policies[-1]))
    return f'From "{first}" to "{last}": {"; ".join(measures) or "nothing was measured"}.'


def _figure(mean: float) -> str:
    """Four figures, but never an exponent for what people count."""
    return f"{mean:,.0f}" if abs(mean) >= 1000 else f"{mean:,.4g}"


def _ends(hours: pl.Series) -> tuple[float, float]:
    """Round ends of the axis, with room above for the words at the top."""
    least, most = float(hours.min()), float(hours.max())  # type: ignore[arg-type]
    room = max(most - least, 0.1 * most, 1.0)
    step = 10.0 ** math.floor(math.log10(room))
    step = step / 2 if room / step < 3 else step
    return max(math.floor((least - 0.08 * room) / step) * step, 0.0), math.ceil((most + 0.12 * room) / step) * step


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
    added = rows["added_wait_p95_minutes"].to_list()
    right = [min(max(minutes, limit) + 1.2, 0.6 * LONGEST_MIN) for minutes in added]
    text = [
        f"{name}\n{hours:,.0f}" + (f", +{minutes:,.0f} min" if minutes >= 0.5 else "")
        for name, hours, minutes in zip(rows["name"], rows["gpu_hours"], added, strict=True)
    ]
    return rows.with_columns(
        label=pl.Series(text, dtype=pl.String),
        label_x=pl.Series(right, dtype=pl.Float64),
        label_y=pl.Series([high - place * per_pixel for place in places], dtype=pl.Float64),
    )


@drawn("Cost of each plan and its lower bound", *_PLANS, empty="No plan was found.")
def plot_bounds(frame: pl.DataFrame) -> ChartType:
    """Cost of each plan as a bar, with the proven bound of all plans as a rule, and the gap between them.

    Parameters
    ----------
    frame : polars.DataFrame
        ``method, objective, bound, gap``, one row per plan, as ``compare_plans`` makes it: costs in
        GPU-hours, the gap as a share of the cost. A plan that was not found has no objective and no bar;
        without a bound there is no rule.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> frame = pl.DataFrame(
    ...     {"method": ["static", "auto"], "objective": [120.0, 100.0], "bound": 99.0, "gap": [0.175, 0.01]}
    ... )
    >>> plot_bounds(frame).to_dict()["title"]
    'Cost of each plan and its lower bound'
    """
    rows = frame.select(_PLANS).drop_nulls("objective")
    if rows.is_empty():
        return theme.saying("No plan was found.")
    order, proven = rows["method"].to_list(), _proven(frame)
    colours = {proven: theme.MUTED, ABOVE: theme.ORANGE}
    parts = _parts(rows, proven)
    shown = [part for part in colours if part in parts["part"]]
    base = chart_of(parts).encode(y=alt.Y("method:N", title=None, sort=order))
    hover = tips(
        method="plan",
        objective=("cost [GPU h]", ",.1f"),
        bound=("lower bound [GPU h]", ",.1f"),
        gap=("optimality gap", ".2%"),
    )
    layers: list[ChartType] = [
        base.mark_bar().encode(
            x=alt.X("start:Q", title="cost [GPU h]"),
            x2="end:Q",
            color=alt.Color("part:N", title=None, scale=theme.scale(colours, shown)),
            tooltip=hover,
        ),
        base.transform_filter("datum.end === datum.objective")
        .mark_text(align="left", dx=6)
        .encode(x=alt.X("end:Q"), text="label:N"),
    ]
    if rows["bound"].count():
        rule = chart_of(rows.select(pl.col("bound").max()))
        layers.insert(1, rule.mark_rule(color=theme.INK, size=2).encode(x=alt.X("bound:Q")))
    cheapest = rows.sort("objective", maintain_order=True).row(0, named=True)
    finding = f"Cheapest: {cheapest['method']}, {cheapest['objective']:,.0f} GPU-hours; {proven}."
    height = 32 * len(order)
    return theme.finish(alt.layer(*layers), finding=finding, height=height, bands=order, legend=190, room=40)


def _proven(frame: pl.DataFrame) -> str:
    """Name of what every plan costs at least."""
    bounds = frame["bound"].drop_nulls().to_list()
    return f"lower bound: {max(bounds):,.0f}" if bounds else "cost"


def _parts(rows: pl.DataFrame, proven: str) -> pl.DataFrame:
    """Each bar in two: up to the bound, and beyond."""
    share = pl.format(", gap {} %", (100 * pl.col("gap")).round(1))
    cost = pl.col("objective").map_elements(lambda value: format(value, ",.0f"), return_dtype=pl.String)
    turn = pl.min_horizontal("bound", "objective")
    named = rows.with_columns(label=cost + share.fill_null(""), rank=pl.int_range(pl.len()))
    low = named.with_columns(part=pl.lit(proven), start=pl.lit(0.0), end=turn)
    high = named.filter(turn < pl.col("objective")).with_columns(part=pl.lit(ABOVE), start=turn, end="objective")
    return pl.concat([low, high], how="diagonal_relaxed").sort("rank", "start").drop("rank")


MAX_GPUS = 128
"""Rows of the calendar; larger fleets are shown as counts by :func:`plot_layout_counts`."""

TOP_LAYOUTS = 10
"""Layouts with a colour of their own; the others share grey."""

_PLACES = ("layout", "profile", "start", "size")
_PLAN = ("node", "gpu", "slot_start", "slot_end", "layout", "changed")


@drawn("MIG instances on the memory slices of a GPU", *_PLACES, empty="No GPU is MIG-partitioned.")
def plot_board(placements: pl.DataFrame, *, memory_slices: int) -> ChartType:
    """Draw layouts on the memory slices of their board, one row per layout.

    Parameters
    ----------
    placements : polars.DataFrame
        ``layout, profile, start, size``: an instance of ``profile`` on ``size`` memory slices from ``start``.
    memory_slices : int
        Memory slices of the board.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> one = pl.DataFrame({"layout": ["3g.40gb:1"], "profile": ["3g.40gb"], "start": [0], "size": [4]})
    >>> plot_board(one, memory_slices=8).to_dict()["title"]
    'MIG instances on the memory slices of a GPU'
    """
    layouts = in_order(placements, "layout")
    end = pl.col("start") + pl.col("size")
    # Only the compute part of a name fits on a box that is one slice wide.
    compute = pl.col("profile").str.split(".").list.first()
    rows = placements.select(
        *_PLACES,
        end=end,
        mid=(pl.col("start") + end) / 2,
        label=pl.when(pl.col("size") > 1).then("profile").otherwise(compute),
    ).sort("layout", "start")
    scale = alt.Scale(domain=[0, memory_slices], nice=False)
    axis = alt.Axis(values=list(range(memory_slices + 1)), format="d", gridColor=theme.GREY)
    x = alt.X("start:Q", title="memory slice", scale=scale, axis=axis)
    y = alt.Y("layout:N", axis=None, sort=layouts, scale=alt.Scale(paddingInner=0.5, paddingOuter=0.5))
    base = chart_of(rows).encode(y=y)
    hover = tips(layout="layout", profile="profile", start="first memory slice", size="memory slices")
    chart = alt.layer(
        base.mark_bar(fill=theme.TINT, stroke=theme.BLUE, strokeWidth=1.5, cornerRadius=3).encode(
            x=x, x2="end:Q", tooltip=hover
        ),
        base.mark_text(fontSize=11).encode(x=alt.X("mid:Q"), text="label:N"),
        chart_of(pl.DataFrame({"layout": layouts}))
        .mark_text(align="left", dy=-21, fontWeight=600)
        .encode(x=alt.value(0), y=y, text="layout:N"),
    )
    return theme.finish(chart, finding=f"Layouts: {'; '.join(layouts)}.", height=52 * len(layouts))


@drawn("MIG layout of each GPU over time", *_PLAN, empty="The plan has no rows.")
def plot_layout_calendar(layout_plan: pl.DataFrame) -> ChartType:
    """Layout of each numbered GPU over time, one row per GPU, with a mark where it is cut anew.

    Parameters
    ----------
    layout_plan : polars.DataFrame
        Table ``schemas.LayoutPlan``.

    Raises
    ------
    SchemaError
        If a column is missing, or there are more than :data:`MAX_GPUS` GPUs.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> day = [datetime(2026, 10, number, tzinfo=UTC) for number in (1, 2)]
    >>> row = {"node": "n1", "gpu": 0, "slot_start": day[0], "slot_end": day[1], "layout": "gpu"}
    >>> plot_layout_calendar(pl.DataFrame([row | {"changed": False}])).to_dict()["title"]
    'MIG layout of each GPU over time'
    """
    name = pl.format("{} · {}", "node", "gpu")
    hours = (pl.col("slot_end") - pl.col("slot_start")).dt.total_seconds() / 3600
    plan = layout_plan.sort("node", "gpu", "slot_start").select(*_PLAN, name=name, hours=hours)
    gpus = in_order(plan, "name")
    if len(gpus) > MAX_GPUS:
        todo = "Filter the plan to some nodes, or show the fleet with plot_layout_counts."
        raise SchemaError("plot_layout_calendar", f"at most {MAX_GPUS} GPUs", f"{len(gpus)}", todo)
    names = folded(ranked(plan, "layout", "hours"), TOP_LAYOUTS)
    order = each(names)
    axis = alt.Axis(labelFontSize=10, labelOverlap=False)
    base = (
        chart_of(plan.with_columns(shown=pl.col("layout").replace_strict(names)))
        .transform_calculate(**utc_text(from_="slot_start", to="slot_end"), mark="'GPU repartitioned'")
        .encode(
            x=utc_axis(plan, "slot_start", "slot_end"),
            y=alt.Y("name:N", title="node · GPU", sort=gpus, axis=axis),
            tooltip=tips(node="node", gpu="GPU", layout="layout", from_="from (UTC)", to="to (UTC)"),
        )
    )
    colours = theme.scale(theme.layout_colours(order), order)
    bars = base.mark_bar().encode(x2="slot_end:T", color=alt.Color("shown:N", title="layout", scale=colours))
    shape = alt.Shape(
        "mark:N", legend=alt.Legend(title=None, orient="bottom"), scale=alt.Scale(range=["triangle-right"])
    )
    cuts = (
        base.transform_filter("datum.changed")
        .mark_point(filled=True, size=34, color=theme.INK, stroke="white", strokeWidth=0.8, opacity=1)
        .encode(shape=shape)
    )
    # Vega lays out the legend of an empty layer without end.
    layers = [bars, cuts] if plan["changed"].any() else [bars]
    finding = f"{len(gpus)} GPUs, {plan['changed'].sum()} repartitions. Most GPU-hours: {order[0]}."
    height = (14 if len(gpus) <= 64 else 12) * len(gpus)
    return theme.finish(alt.layer(*layers), finding=finding, height=height, legend=270, names=theme.label_width(gpus))


@drawn("GPUs with each MIG layout over time", "slot_start", "layout", "gpus", empty="No GPU has a layout.")
def plot_layout_counts(counts: pl.DataFrame) -> ChartType:
    """GPUs with each layout over time, as stacked steps; it costs the same for any number of GPUs.

    Parameters
    ----------
    counts : polars.DataFrame
        ``slot_start, layout, gpus``: one row per slot and layout, slots of one length; a layout that a slot
        does not have may be left out.

    Raises
    ------
    SchemaError
        If a column is missing, or the layouts change too often for one chart.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> slots = [datetime(2026, 10, 1, hour, tzinfo=UTC) for hour in (0, 1)]
    >>> counts = pl.DataFrame({"slot_start": slots, "layout": ["gpu", "gpu"], "gpus": [2, 3]})
    >>> plot_layout_counts(counts).to_dict()["encoding"]["y"]["title"]
    'GPUs'
    """
    held = counts.filter(pl.col("gpus") > 0)
    if held.is_empty():
        return theme.saying("No GPU has a layout.")
    names = folded(ranked(held, "layout", "gpus"), TOP_LAYOUTS)
    order = each(names)
    rows = _merged(counts, held.with_columns(shown=pl.col("layout").replace_strict(names)), order)
    colours = theme.scale(theme.layout_colours(order), order)
    chart: alt.Chart = (
        chart_of(rows)
        .mark_bar(orient="vertical", binSpacing=0, strokeWidth=0.7)
        .transform_calculate(**utc_text(from_="start", to="end"))
        .encode(
            x=utc_axis(rows, "start", "end"),
            x2="end:T",
            y=alt.Y("gpus:Q", title="GPUs", stack="zero"),
            # Without a stroke of the same colour, thin white seams show between neighbours.
            fill=alt.Fill("shown:N", title="layout", scale=colours),
            stroke=alt.Stroke("shown:N", title="layout", scale=colours),
            order=alt.Order("order:Q"),
            tooltip=tips(shown="layout", gpus="GPUs", from_="from (UTC)", to="to (UTC)"),
        )
    )
    return theme.finish(chart, height=280, legend=270)


def _merged(counts: pl.DataFrame, held: pl.DataFrame, order: Sequence[str]) -> pl.DataFrame:
    """Runs of slots with the same counts, as ``start, end, shown, gpus, order``."""
    slots = counts.select("slot_start").unique().sort("slot_start")
    length = slots["slot_start"].diff().min() or pl.duration(hours=1)
    sums = held.group_by("slot_start", "shown").agg(pl.col("gpus").sum())
    wide = (
        slots.join(sums, on="slot_start", how="left")
        .pivot(on="shown", on_columns=[*order], index="slot_start", values="gpus")
        .sort("slot_start")
        .fill_null(0)
    )
    new_run = pl.any_horizontal(pl.col(name) != pl.col(name).shift() for name in order).fill_null(True)
    slot = pl.col("slot_start")
    runs = (
        wide.with_columns(run=new_run.cum_sum())
        .group_by("run", maintain_order=True)
        .agg(pl.col(*order).first(), start=slot.first(), end=slot.last() + length)
    )
    return (
        runs.unpivot(on=order, index=["start", "end"], variable_name="shown", value_name="gpus")
        .filter(pl.col("gpus") > 0)
        .with_columns(order=pl.col("shown").replace_strict({name: rank for rank, name in enumerate(order)}))
        .sort("start", "order")
    )
