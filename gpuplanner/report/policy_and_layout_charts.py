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
    fold_names,
    folded_names,
    frame_chart,
    make_chart,
    make_tooltips,
    names_in_order,
    panel_title,
    rank_names,
    utc_axis,
    utc_calculations,
    wrap_labels,
)

ABOVE_BOUND_LABEL = "above the bound"
"""Legend label of the part of a plan's cost above the lower bound."""
_TWO_LINE_ROW_PX = 32
"""Height of a row whose policy name may take two lines [px]."""
MAX_DRAWN_WAIT_MIN = 60.0
"""Right end of the axis of added waits [min]; policies with longer waits are only in the table."""
_FRONTIER_HEIGHT_PX = 340
"""Height of the chart of GPU-hours against added wait [px]."""
_LABEL_STEP_PX = 31
"""Minimum vertical distance of two labels [px]; closer ones are moved apart, with a line to their mark."""
_MAX_LABEL_PX = 205
"""Maximum width of a label [px], which fits right of the wait limit on a telephone as well."""
_PLAN_COST_COLUMNS = ("method", "objective", "bound", "gap")
"""Columns that :func:`plot_bounds` needs."""
_FRONTIER_COLUMNS = ("policy", "gpu_hours", "added_wait_p95_minutes", "kind")
"""Columns that :func:`plot_frontier` needs."""
_METRIC_COLUMNS = ("policy", "metric", "unit", "mean", "low", "high")
"""Columns that :func:`plot_policies` needs."""


@frame_chart("Policy comparison: mean and interval", *_METRIC_COLUMNS, empty="No policy was simulated.")
def plot_policies(frame: pl.DataFrame) -> ChartType:
    """Plot one panel per metric: the mean of each policy as a mark, its interval as a line.

    Parameters
    ----------
    frame : polars.DataFrame
        ``policy, metric, unit, mean, low, high``. Policies and metrics are in the order of their first rows. ``low``
        and ``high`` may be null.

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
    rows = frame.select(*_METRIC_COLUMNS)
    policies = names_in_order(rows, "policy")
    labels = wrap_labels(policies)
    y = alt.Y("policy:N", title=None, sort=policies, axis=labels.axis)
    colours = theme.policy_colours(policies)
    colour = alt.Color("policy:N", scale=theme.colour_scale(colours, policies), legend=None)

    def draw_metric_panel(metric: str, unit: str) -> ChartType:
        metric_rows = rows.filter(metric=metric)
        x = alt.X("mean:Q", title=f"[{unit}]" if unit else None, scale=alt.Scale(zero=False, nice=True))
        mean = f"mean [{unit}]" if unit else "mean"
        hover = make_tooltips(policy="policy", mean=(mean, ",.4~g"), low=("low", ",.4~g"), high=("high", ",.4~g"))
        base = make_chart(metric_rows).encode(y=y, color=colour, tooltip=hover)
        line = base.mark_rule(size=2).encode(x=alt.X("low:Q"), x2="high:Q")
        mark = base.mark_point(filled=True, size=110, opacity=1).encode(x=x)
        # A line without ends has no extent, and Vega warns of it.
        layers = [line, mark] if metric_rows["low"].count() else [mark]
        return alt.layer(*layers).properties(height=_TWO_LINE_ROW_PX * len(policies), title=panel_title(metric))

    metrics = rows.select("metric", "unit").unique(maintain_order=True)
    chart = alt.concat(*[draw_metric_panel(metric, unit) for metric, unit in metrics.iter_rows()], columns=2)
    panels = {"columns": 2, "minimum": 340, "margin": 24}
    return theme.finish(chart, finding=policies_text(frame), names=labels.pixels, panels=panels)


@frame_chart(
    "Provisioned GPU-hours per week against added queue wait", *_FRONTIER_COLUMNS, empty="No policy was simulated."
)
def plot_frontier(
    frame: pl.DataFrame, *, limit: float = 10.0, best: str | None = None, names: Mapping[str, str] | None = None
) -> ChartType:
    """Plot provisioned GPU-hours per week against the added queue wait, each policy with its name.

    Left of the dashed line, every job size meets the limit. The axis of GPU-hours does not begin at zero.

    Parameters
    ----------
    frame : polars.DataFrame
        ``policy, gpu_hours, added_wait_p95_minutes, kind``. Kinds are ``"today"`` (today's fleet, the first row),
        ``"tuned"`` (a policy with its fitted setting), ``"setting"`` (another setting of it) and ``"pinned"`` (a point
        of another comparison, drawn as an outline).
    limit : float
        Maximum added queue wait. [min]
    best : str, optional
        Recommended policy, the only one in its own colour.
    names : mapping, optional
        Names of policies on the page, by policy.

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
    is_drawn = pl.col("added_wait_p95_minutes").is_between(0.0, MAX_DRAWN_WAIT_MIN) & pl.col("gpu_hours").is_not_null()
    rows = frame.filter(is_drawn).select(
        *_FRONTIER_COLUMNS,
        name=pl.col("policy").replace(names or {}),
        look=pl.when(pl.col("policy") == (best or "")).then(pl.lit("best"))
        .when(pl.col("kind") == "today").then(pl.lit("today")).otherwise(pl.lit("other")),
    )  # fmt: skip
    if rows.is_empty():
        return theme.make_empty_chart("No policy was simulated.")
    low, high = _axis_ends(rows["gpu_hours"])
    # What matters most is drawn last, on top of the others.
    order = {"other": 0, "today": 1, "best": 2}
    marks = rows.filter(pl.col("kind") != "setting").sort(
        pl.col("look").replace_strict(order, return_dtype=pl.Int64), maintain_order=True
    )
    pinned = pl.col("kind") == "pinned"
    labels = _place_labels(marks.filter(~pinned), limit, low, high)
    colours = theme.policy_colours(["today", *([best] if best else [])])
    looks = {
        "today": colours["today"],
        "best": colours.get(best or "", theme.OTHER_POLICY_COLOUR),
        "other": theme.OTHER_POLICY_COLOUR,
    }
    texts = looks | {"today": theme.INK, "other": theme.MUTED}
    scale = alt.Scale(domain=[0, MAX_DRAWN_WAIT_MIN], nice=False, clamp=True)
    axis = alt.Axis(values=[0, 10, 20, 30, 40, 50, 60])
    x = alt.X("added_wait_p95_minutes:Q", title="added queue wait, p95 [min]", scale=scale, axis=axis)
    y_scale = alt.Scale(domain=[low, high], nice=False, zero=False)
    y = alt.Y("gpu_hours:Q", title="provisioned [GPU h per week]", scale=y_scale)
    colour = alt.Color("look:N", scale=theme.colour_scale(looks, list(looks)), legend=None)
    hover = make_tooltips(
        name="policy",
        kind="setting",
        gpu_hours=("provisioned [GPU h per week]", ",.0f"),
        added_wait_p95_minutes=("added queue wait, p95 [min]", ",.1f"),
    )
    zone = make_chart(pl.DataFrame({"from": [0.0], "to": [limit]}))
    lines, filled, outlined = (
        make_chart(subset).encode(x=x, y=y, color=colour)
        for subset in (rows.filter(~pinned).sort("added_wait_p95_minutes"), marks.filter(~pinned), marks.filter(pinned))
    )
    labelled = make_chart(labels).encode(x=alt.X("label_x:Q"), y=alt.Y("label_y:Q"))
    parts: list[ChartType] = [
        zone.mark_rect(color=theme.ZONE).encode(x="from:Q", x2="to:Q"),
        zone.mark_rule(strokeDash=[5, 3], color=theme.INK).encode(x="to:Q"),
        zone.transform_calculate(word=f"'maximum added wait: {limit:g} min'")
        .mark_text(align="left", dx=6, dy=10, fontWeight=600, baseline="top")
        .encode(x="to:Q", y=alt.value(-6), text="word:N"),
        lines.mark_line(size=1.2, opacity=0.7).encode(detail="policy:N", order="added_wait_p95_minutes:Q"),
        lines.mark_point(filled=True, size=14, opacity=0.8).encode(tooltip=hover),
        labelled.mark_rule(color=theme.GREY, size=1).encode(x2="added_wait_p95_minutes:Q", y2="gpu_hours:Q"),
    ]
    if "pinned" in marks["kind"]:
        parts.append(outlined.mark_point(filled=False, size=110).encode(shape=alt.value("triangle-up"), tooltip=hover))
    parts += [
        filled.mark_point(filled=True, size=130, opacity=1).encode(tooltip=hover),
        labelled.mark_text(align="left", dx=5, dy=-6, lineBreak="\n", limit=_MAX_LABEL_PX).encode(
            text="label:N", color=alt.Color("look:N", scale=theme.colour_scale(texts, list(texts)), legend=None)
        ),
    ]
    chart: ChartType = alt.layer(*parts).resolve_scale(color="independent")
    return theme.finish(chart, height=_FRONTIER_HEIGHT_PX, finding=frontier_text(frame, names=names))


def frontier_text(frame: pl.DataFrame, *, names: Mapping[str, str] | None = None) -> str:
    """Describe GPU-hours and added waits of today's fleet and the policies, the most expensive first.

    Examples
    --------
    >>> points = pl.DataFrame({"policy": ["today", "pools"], "gpu_hours": [10752.0, 4000.0],
    ...     "added_wait_p95_minutes": [0.0, 4.2], "kind": ["today", "tuned"]})
    >>> frontier_text(points, names={"today": "today"})
    'today: 10,752 GPU-hours per week; pools: 4,000, +4 min.'
    """
    chosen = frame.filter(pl.col("kind").is_in(["today", "tuned"]), pl.col("gpu_hours").is_not_null()).sort(
        "gpu_hours", descending=True, maintain_order=True
    )
    texts: list[str] = []
    for policy, hours, added in chosen.select("policy", "gpu_hours", "added_wait_p95_minutes").iter_rows():
        added_text = f", +{added:,.0f} min" if added is not None and added >= 0.5 else ""
        unit = "" if texts else " GPU-hours per week"
        texts.append(f"{(names or {}).get(policy, policy)}: {hours:,.0f}{unit}{added_text}")
    return "; ".join(texts) + "." if texts else "No policy was simulated."


def policies_text(frame: pl.DataFrame) -> str:
    """Describe in sentences each metric of the first policy and of the last.

    Examples
    --------
    >>> rows = {"policy": ["static", "dynamic"], "metric": "provisioned", "unit": "GPU h", "mean": [1200.0, 8.0]}
    >>> policies_text(pl.DataFrame(rows))
    'From "static" to "dynamic": provisioned 1,200 to 8 GPU h.'
    """
    policies = frame["policy"].unique(maintain_order=True)
    ends = frame.filter(pl.col("policy").is_in([policies[0], policies[-1]]), pl.col("mean").is_not_null())
    measures = [
        f"{metric} {' to '.join(map(_format_mean, metric_rows['mean']))} {unit or ''}".rstrip()
        for (metric, unit), metric_rows in ends.group_by("metric", "unit", maintain_order=True)
    ]
    return f'From "{policies[0]}" to "{policies[-1]}": {"; ".join(measures) or "nothing was measured"}.'


def _format_mean(mean: float) -> str:
    """Format a mean: whole from 1,000 on, else in four significant digits."""
    return f"{mean:,.0f}" if abs(mean) >= 1000 else f"{mean:,.4g}"


def _axis_ends(hours: pl.Series) -> tuple[float, float]:
    """Choose round lower and upper ends of the axis of GPU-hours, with room for labels at the top."""
    lowest, highest = float(hours.min()), float(hours.max())  # type: ignore[arg-type]
    room = max(highest - lowest, 0.1 * highest, 1.0)
    step = 10.0 ** math.floor(math.log10(room))
    step = step / 2 if room / step < 3 else step
    return max(math.floor((lowest - 0.08 * room) / step) * step, 0.0), math.ceil((highest + 0.12 * room) / step) * step


def _place_labels(marks: pl.DataFrame, limit: float, low: float, high: float) -> pl.DataFrame:
    """Place one label per policy, right of the limit, without overlaps.

    Parameters
    ----------
    marks : polars.DataFrame
        Points with their names.
    limit : float
        Maximum added queue wait. [min]
    low, high : float
        Ends of the axis. [GPU h per week]

    Returns
    -------
    polars.DataFrame
        `marks` with ``label, label_x, label_y``.
    """
    rows = marks.sort("gpu_hours", descending=True, maintain_order=True)
    per_pixel = (high - low) / _FRONTIER_HEIGHT_PX
    positions: list[float] = []
    top = 1.2 * _LABEL_STEP_PX  # the words at the limit stand above
    for hours in rows["gpu_hours"]:
        wanted_position = max((high - hours) / per_pixel, top)
        positions.append(max(wanted_position, positions[-1] + _LABEL_STEP_PX) if positions else wanted_position)
    for index in range(len(positions) - 1, -1, -1):
        lowest = _FRONTIER_HEIGHT_PX - 8 if index == len(positions) - 1 else positions[index + 1] - _LABEL_STEP_PX
        positions[index] = min(positions[index], lowest)
    added = rows["added_wait_p95_minutes"].to_list()
    label_x = [min(max(minutes, limit) + 1.2, 0.6 * MAX_DRAWN_WAIT_MIN) for minutes in added]
    label_text = [
        f"{name}\n{hours:,.0f}" + (f", +{minutes:,.0f} min" if minutes >= 0.5 else "")
        for name, hours, minutes in zip(rows["name"], rows["gpu_hours"], added, strict=True)
    ]
    return rows.with_columns(
        label=pl.Series(label_text, dtype=pl.String),
        label_x=pl.Series(label_x, dtype=pl.Float64),
        label_y=pl.Series([high - position * per_pixel for position in positions], dtype=pl.Float64),
    )


@frame_chart("Cost of each plan and its lower bound", *_PLAN_COST_COLUMNS, empty="No plan was found.")
def plot_bounds(frame: pl.DataFrame) -> ChartType:
    """Plot the cost of each plan as a bar, with the lower bound of all plans as a line.

    Parameters
    ----------
    frame : polars.DataFrame
        ``method, objective, bound, gap``, one row per plan, from ``compare_plans``: costs in GPU-hours, the gap as a
        share of the cost. A plan that was not found has no objective and no bar; without a bound there is no rule.

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
    rows = frame.select(_PLAN_COST_COLUMNS).drop_nulls("objective")
    if rows.is_empty():
        return theme.make_empty_chart("No plan was found.")
    order, proven = rows["method"].to_list(), _bound_label(frame)
    colours = {proven: theme.MUTED, ABOVE_BOUND_LABEL: theme.ORANGE}
    parts = _split_at_bound(rows, proven)
    shown = [part for part in colours if part in parts["part"]]
    base = make_chart(parts).encode(y=alt.Y("method:N", title=None, sort=order))
    hover = make_tooltips(
        method="plan",
        objective=("cost [GPU h]", ",.1f"),
        bound=("lower bound [GPU h]", ",.1f"),
        gap=("optimality gap", ".2%"),
    )
    layers: list[ChartType] = [
        base.mark_bar().encode(
            x=alt.X("start:Q", title="cost [GPU h]"),
            x2="end:Q",
            color=alt.Color("part:N", title=None, scale=theme.colour_scale(colours, shown)),
            tooltip=hover,
        ),
        base.transform_filter("datum.end === datum.objective")
        .mark_text(align="left", dx=6)
        .encode(x=alt.X("end:Q"), text="label:N"),
    ]
    if rows["bound"].count():
        rule = make_chart(rows.select(pl.col("bound").max()))
        layers.insert(1, rule.mark_rule(color=theme.INK, size=2).encode(x=alt.X("bound:Q")))
    cheapest = rows.sort("objective", maintain_order=True).row(0, named=True)
    finding = f"Cheapest: {cheapest['method']}, {cheapest['objective']:,.0f} GPU-hours; {proven}."
    height = 32 * len(order)
    return theme.finish(alt.layer(*layers), finding=finding, height=height, bands=order, legend=190, room=40)


def _bound_label(frame: pl.DataFrame) -> str:
    """Return the legend label of the part of a bar up to the lower bound of all plans."""
    bounds = frame["bound"].drop_nulls().to_list()
    return f"lower bound: {max(bounds):,.0f}" if bounds else "cost"


def _split_at_bound(rows: pl.DataFrame, proven: str) -> pl.DataFrame:
    """Split the cost of each plan in two parts: up to the lower bound (labelled `proven`), and above it."""
    share = pl.format(", gap {} %", (100 * pl.col("gap")).round(1))
    cost = pl.col("objective").map_elements(lambda value: format(value, ",.0f"), return_dtype=pl.String)
    end_of_bound = pl.min_horizontal("bound", "objective")
    labelled = rows.with_columns(label=cost + share.fill_null(""), rank=pl.int_range(pl.len()))
    low = labelled.with_columns(part=pl.lit(proven), start=pl.lit(0.0), end=end_of_bound)
    high = labelled.filter(end_of_bound < pl.col("objective")).with_columns(
        part=pl.lit(ABOVE_BOUND_LABEL), start=end_of_bound, end="objective"
    )
    return pl.concat([low, high], how="diagonal_relaxed").sort("rank", "start").drop("rank")


MAX_CALENDAR_ROWS = 128
"""Maximum number of GPUs in the calendar of layouts; for larger fleets :func:`plot_layout_counts` shows counts."""

MAX_NAMED_LAYOUTS = 10
"""Number of layouts with a colour of their own; the others are grey."""

_PLACEMENT_COLUMNS = ("layout", "profile", "start", "size")
"""Columns that :func:`plot_placements` needs."""
_CALENDAR_COLUMNS = ("node", "gpu", "slot_start", "slot_end", "layout", "changed")
"""Columns that :func:`plot_layout_calendar` needs."""


@frame_chart("MIG instances on the memory slices of a GPU", *_PLACEMENT_COLUMNS, empty="No GPU is MIG-partitioned.")
def plot_placements(placements: pl.DataFrame, *, memory_slices: int) -> ChartType:
    """Draw MIG layouts on the memory slices of their GPU model, one row per layout.

    Parameters
    ----------
    placements : polars.DataFrame
        ``layout, profile, start, size``: an instance of ``profile`` on ``size`` memory slices from ``start``; optional
        ``is_left_over``: drawn light.
    memory_slices : int
        Memory slices of the GPU model.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> one = pl.DataFrame({"layout": ["3g.40gb:1"], "profile": ["3g.40gb"], "start": [0], "size": [4]})
    >>> plot_placements(one, memory_slices=8).to_dict()["title"]
    'MIG instances on the memory slices of a GPU'
    """
    layouts = names_in_order(placements, "layout")
    end = pl.col("start") + pl.col("size")
    # Only the compute part of a name fits on a box that is one slice wide.
    compute = pl.col("profile").str.split(".").list.first()
    opacity = pl.lit(1.0)
    if "is_left_over" in placements.columns:
        opacity = pl.when("is_left_over").then(0.3).otherwise(1.0)
    rows = placements.select(
        *_PLACEMENT_COLUMNS,
        opacity=opacity,
        end=end,
        mid=(pl.col("start") + end) / 2,
        label=pl.when(pl.col("size") > 1).then("profile").otherwise(compute),
    ).sort("layout", "start")
    scale = alt.Scale(domain=[0, memory_slices], nice=False)
    axis = alt.Axis(values=list(range(memory_slices + 1)), format="d", grid=False)
    x = alt.X("start:Q", title="memory slice", scale=scale, axis=axis)
    y = alt.Y("layout:N", axis=None, sort=layouts, scale=alt.Scale(paddingInner=0.5, paddingOuter=0.5))
    base = make_chart(rows).encode(y=y)
    hover = make_tooltips(layout="layout", profile="profile", start="first memory slice", size="memory slices")
    chart = alt.layer(
        base.mark_bar(fill=theme.TINT, stroke=theme.BLUE, strokeWidth=1.5, cornerRadius=3).encode(
            x=x, x2="end:Q", tooltip=hover, opacity=alt.Opacity("opacity:Q", scale=None)
        ),
        base.mark_text(fontSize=11).encode(x=alt.X("mid:Q"), text="label:N"),
        make_chart(pl.DataFrame({"layout": layouts}))
        .mark_text(align="left", dy=-21, fontWeight=600)
        .encode(x=alt.value(0), y=y, text="layout:N"),
    )
    return theme.finish(chart, finding=f"Layouts: {'; '.join(layouts)}.", height=52 * len(layouts))


@frame_chart("MIG layout of each GPU over time", *_CALENDAR_COLUMNS, empty="The plan has no rows.")
def plot_layout_calendar(layout_plan: pl.DataFrame) -> ChartType:
    """Plot the layout of each numbered GPU over time, with a mark at each repartitioning.

    Parameters
    ----------
    layout_plan : polars.DataFrame
        Table ``schemas.LayoutPlan``.

    Raises
    ------
    SchemaError
        If a column is missing, or there are more than :data:`MAX_CALENDAR_ROWS` GPUs.

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
    plan = layout_plan.sort("node", "gpu", "slot_start").select(*_CALENDAR_COLUMNS, name=name, hours=hours)
    gpus = names_in_order(plan, "name")
    if len(gpus) > MAX_CALENDAR_ROWS:
        todo = "Filter the plan to some nodes, or show the fleet with plot_layout_counts."
        raise SchemaError("plot_layout_calendar", f"at most {MAX_CALENDAR_ROWS} GPUs", f"{len(gpus)}", todo)
    names = fold_names(rank_names(plan, "layout", "hours"), MAX_NAMED_LAYOUTS)
    order = folded_names(names)
    axis = alt.Axis(labelFontSize=10, labelOverlap=False)
    base = (
        make_chart(plan.with_columns(shown=pl.col("layout").replace_strict(names)))
        .transform_calculate(**utc_calculations(from_="slot_start", to="slot_end"), mark="'GPU repartitioned'")
        .encode(
            x=utc_axis(plan, "slot_start", "slot_end"),
            y=alt.Y("name:N", title="node · GPU", sort=gpus, axis=axis),
            tooltip=make_tooltips(node="node", gpu="GPU", layout="layout", from_="from (UTC)", to="to (UTC)"),
        )
    )
    colours = theme.colour_scale(theme.layout_colours(order), order)
    bars = base.mark_bar().encode(x2="slot_end:T", color=alt.Color("shown:N", title="layout", scale=colours))
    legend = alt.Legend(title=None, orient="bottom")
    shape = alt.Shape("mark:N", legend=legend, scale=alt.Scale(range=["triangle-right"]))
    repartitions = (
        base.transform_filter("datum.changed")
        .mark_point(filled=True, size=34, color=theme.INK, stroke="white", strokeWidth=0.8, opacity=1)
        .encode(shape=shape)
    )
    # Vega lays out the legend of an empty layer without end.
    layers = [bars, repartitions] if plan["changed"].any() else [bars]
    finding = f"{len(gpus)} GPUs, {plan['changed'].sum()} repartitions. Most GPU-hours: {order[0]}."
    height = (14 if len(gpus) <= 64 else 12) * len(gpus)
    return theme.finish(alt.layer(*layers), finding=finding, height=height, legend=270, names=theme.label_width(gpus))


@frame_chart("GPUs with each MIG layout over time", "slot_start", "layout", "gpus", empty="No GPU has a layout.")
def plot_layout_counts(counts: pl.DataFrame) -> ChartType:
    """Plot the number of GPUs with each layout over time, as stacked steps, for fleets of any size.

    Parameters
    ----------
    counts : polars.DataFrame
        ``slot_start, layout, gpus``: one row per interval and layout, intervals of one length; a layout without GPUs in
        an interval may be left out.

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
    present = counts.filter(pl.col("gpus") > 0)
    if present.is_empty():
        return theme.make_empty_chart("No GPU has a layout.")
    names = fold_names(rank_names(present, "layout", "gpus"), MAX_NAMED_LAYOUTS)
    order = folded_names(names)
    rows = _merge_equal_slots(counts, present.with_columns(shown=pl.col("layout").replace_strict(names)), order)
    colours = theme.colour_scale(theme.layout_colours(order), order)
    chart: alt.Chart = (
        make_chart(rows)
        .mark_bar(orient="vertical", binSpacing=0, strokeWidth=0.7)
        .transform_calculate(**utc_calculations(from_="start", to="end"))
        .encode(
            x=utc_axis(rows, "start", "end"),
            x2="end:T",
            y=alt.Y("gpus:Q", title="GPUs", stack="zero"),
            # Without a stroke of the same colour, thin white seams show between neighbours.
            fill=alt.Fill("shown:N", title="layout", scale=colours),
            stroke=alt.Stroke("shown:N", title="layout", scale=colours),
            order=alt.Order("order:Q"),
            tooltip=make_tooltips(shown="layout", gpus="GPUs", from_="from (UTC)", to="to (UTC)"),
        )
    )
    return theme.finish(chart, height=280, legend=270)


def _merge_equal_slots(counts: pl.DataFrame, present: pl.DataFrame, order: Sequence[str]) -> pl.DataFrame:
    """Merge consecutive intervals with equal counts into ``start, end, shown, gpus, order``."""
    slots = counts.select("slot_start").unique().sort("slot_start")
    length = slots["slot_start"].diff().min() or pl.duration(hours=1)
    sums = present.group_by("slot_start", "shown", maintain_order=True).agg(pl.col("gpus").sum())
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
