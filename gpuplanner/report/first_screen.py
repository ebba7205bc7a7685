"""The first screen of the page with the target MIG layout."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, takewhile

import polars as pl

from gpuplanner import report as plots
from gpuplanner.core.errors import GpuPlannerError
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.units import MISSING_VALUE_TEXT, UNALLOCATED_TEAM
from gpuplanner.decision.comparison_record import Comparison, make_service_table, make_wait_curve_table
from gpuplanner.decision.decision_types import LAYOUT_FULL, Decision, LayoutOnNodes, NextStep
from gpuplanner.decision.policy_fleets import FleetRules
from gpuplanner.hardware.gpu_models import GpuModel, load_gpu_model
from gpuplanner.hardware.layout_enumeration import make_placement_table
from gpuplanner.ingest.quality_report import QualityWarning, format_warning
from gpuplanner.report import html_page as page
from gpuplanner.report.figure_formats import (
    OF_ALL,
    TEAMS,
    above_one,
    count,
    day,
    late_sizes,
    layout_words,
    mean_minutes,
    minutes,
    nodes_words,
    per_cent,
    safe,
    shown,
    tenths,
    value_of,
    whole_percent,
)

MOST_ROWS, MOST_KINDS = 10, 8
"""Nodes that are drawn one by one; kinds of nodes that are drawn as one row each where there are more nodes."""
MIXED = "with mixed layouts"
LONGEST_NAME = 8
"""Characters of a name that fit beside a row of boxes."""
MOST_BOXES = 64
BOXES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""GPUs that one box may stand for."""
MAX_NODE_COLUMNS, FLEET_COLUMNS = 8, 16
"""GPUs in a row of a node, and in a row of a fleet whose nodes are not drawn."""


def fleet_picture(one: Decision, rules: FleetRules | None = None) -> str:
    """Draw the target MIG layout of a decision, with a folded table; with `rules`, GPUs are in the order of the nodes.

    One row is a node; in a large fleet, all nodes of one layout; without names of nodes, all GPUs of a layout.
    Released GPUs are dashed outlines.
    """
    if not one.layouts:
        return ""
    gpu_model = _gpu_model(one.gpu_model)
    own = [part for part in one.layouts if not part.to_buy]
    kinds = _kinds(own, _in_order(rules)) if own and all(part.nodes for part in own) else {}
    nodes = sum(map(len, kinds.values()))
    by_node = 0 < nodes <= MOST_ROWS or 0 < len(kinds) <= MOST_KINDS < nodes
    groups = _by_node(kinds, gpu_model, single=nodes <= MOST_ROWS) if by_node else _by_layout(one, gpu_model)
    about = "One box is a GPU" if by_node or _box(one) == 1 else f"One box is {_box(one):,} GPUs"
    about += " (not by index), widths are memory slices" if one.partitioned_gpus else ""
    bought = sum(part.gpus for part in one.layouts if part.to_buy)
    full = sum(part.gpus for part in own if part.layout == LAYOUT_FULL)
    released = max(one.fleet_gpus - one.gpus, 0)
    parts = {"full": full, "partitioned": one.partitioned_gpus, released_word(one): released, "full to buy": bought}
    sums = " + ".join(f"{gpus:,} {word}" for word, gpus in parts.items() if gpus)
    label = "; ".join(f"{part.gpus:,} × {layout_words(part.layout)}" for part in one.layouts)
    title = "Target MIG layout" if one.partitioned_gpus else "Target fleet"
    return (
        f'<div class="fleet"><h3>{title}</h3>'
        f'<p class="about">{about}. {sums} = {max(one.fleet_gpus, one.gpus):,} GPUs.</p>'
        f'<div role="img" aria-label="{safe(label)}">{"".join(groups)}{_released(one)}{_to_buy(one)}</div>'
        f"{_twin(one)}</div>"
    )


def released_word(one: Decision) -> str:
    """Whether GPUs that are not kept are released or powered down."""
    return "released" if any(step.action == "release" for step in one.measures) else "powered down"


Kind = tuple[tuple[str, int], ...]
"""Layouts of a node, with the GPUs of each."""


def _in_order(rules: FleetRules | None) -> dict[str, list[str]]:
    """Layout of each GPU of a node, by its index, as files for operators have it."""
    pools = () if rules is None else rules.pools
    words = {FULL_GPU: LAYOUT_FULL}
    return {name: [words.get(one, one) for one in pool.layouts] for pool in pools for name in pool.nodes}


def _kinds(layouts: Sequence[LayoutOnNodes], in_order: dict[str, list[str]]) -> dict[Kind, list[str]]:
    """Nodes by their layouts, in the order of the GPUs where that is known, else of the decision."""
    on_node: dict[str, list[tuple[str, int]]] = {}
    for part in layouts:
        each, more = divmod(part.gpus, max(len(part.nodes), 1))
        counts = part.by_node or [each + (place < more) for place in range(len(part.nodes))]
        for name, gpus in zip(part.nodes, counts, strict=True):
            on_node.setdefault(name, []).append((part.layout, gpus))
    found: dict[Kind, list[str]] = {}
    for name, parts in on_node.items():
        if Counter(in_order.get(name)) == dict(parts):
            parts = [(layout, len(list(same))) for layout, same in groupby(in_order[name])]
        found.setdefault(tuple(parts), []).append(name)
    return dict(sorted(found.items(), key=lambda kind: (len(kind[1][0]), kind[1][0])))


def _by_node(kinds: dict[Kind, list[str]], gpu_model: GpuModel | None, *, single: bool) -> Iterator[str]:
    """Nodes under a caption for each layout that fills nodes, and one for all nodes of several layouts."""
    short = _short_names([name for names in kinds.values() for name in names])
    columns = min(max(sum(count for _, count in kind) for kind in kinds), MAX_NODE_COLUMNS)
    captions: dict[str, list[Kind]] = {}
    for kind in kinds:
        alone = kind[0][0] if len(kind) == 1 else ""
        captions.setdefault(layout_words(alone) or MIXED, []).append(kind)
    for caption, mine in captions.items():
        names = [name for kind in mine for name in kinds[kind]]
        gpus = sum(count * len(kinds[kind]) for kind in mine for _, count in kind)
        yield f"<p>{_caption(f'{gpus:,}', caption)} on {safe(nodes_words(names))}</p>"
        for kind in mine:
            boxes = "".join(_gpu(layout, gpu_model) * count for layout, count in kind)
            for name in kinds[kind] if single else kinds[kind][:1]:
                label = short[name] if single else f"× {len(kinds[kind]):,}"
                full = f' title="{safe(name)}"' if label != name else ""
                yield (f'<div class="row"><span class="label"{full}>{safe(label)}</span>{_grid(boxes, columns)}</div>')


def _grid(boxes: str, columns: int) -> str:
    """A grid of GPUs with a number of columns."""
    return f'<div class="gpus" style="--columns:{columns}">{boxes}</div>'


def _caption(gpus: str, layout: str) -> str:
    """GPUs and their layout in words, as markup."""
    if layout == layout_words(LAYOUT_FULL):
        return f"<b>{gpus} full GPUs</b> (MIG disabled)"
    return f"<b>{gpus} partitioned</b> as {safe(layout)}" if layout != MIXED else f"<b>{gpus} GPUs</b> {MIXED}"


def _short_names(names: Sequence[str]) -> dict[str, str]:
    """Labels of rows: of long names the part that they do not share, with its number.

    Examples
    --------
    >>> _short_names(["gpu-worker-09.cluster", "gpu-worker-10.cluster"]), _short_names(["n01", "n02"])
    ({'gpu-worker-09.cluster': '…09', 'gpu-worker-10.cluster': '…10'}, {'n01': 'n01', 'n02': 'n02'})
    """
    if max(map(len, names)) <= LONGEST_NAME or len(set(names)) == 1:
        return {name: name for name in names}
    begin = _shared(names).rstrip("0123456789")
    end = _shared([name[len(begin) :][::-1] for name in names])[::-1].lstrip("0123456789")
    return {name: "…" * bool(begin) + (name[len(begin) : len(name) - len(end)] or name) for name in names}


def _shared(texts: Sequence[str]) -> str:
    """The characters that all texts begin with."""
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False))
    return "".join(letters[0] for letters in same)


def _by_layout(one: Decision, gpu_model: GpuModel | None) -> Iterator[str]:
    """One row of boxes a layout."""
    unit = _box(one)
    for place, part in enumerate(one.layouts):
        if part.to_buy:
            continue
        where = f" on {safe(nodes_words(part.nodes))}" if part.nodes else ""
        yield f"<p>{_caption(shown(one, f'layouts.{place}.gpus'), layout_words(part.layout))}{where}</p>"
        boxes = _grid(_gpu(part.layout, gpu_model) * max(round(part.gpus / unit), 1), FLEET_COLUMNS)
        yield f'<div class="row loose">{boxes}</div>'


def _released(one: Decision) -> str:
    """GPUs that are released or powered down, as dashed outlines."""
    gpus = max(one.fleet_gpus - one.gpus, 0)
    if not gpus:
        return ""
    boxes = _grid('<div class="gpu released"></div>' * max(round(gpus / _box(one)), 1), FLEET_COLUMNS)
    return f'<p><b>{shown(one, "released_gpus")} {released_word(one)}</b></p><div class="row loose">{boxes}</div>'


def _to_buy(decision: Decision) -> str:
    """GPUs to buy, as dashed outlines."""
    number, part = next(((number, part) for number, part in enumerate(decision.layouts) if part.to_buy), (0, None))
    if part is None:
        return ""
    boxes = _grid('<div class="gpu released"></div>' * max(round(part.gpus / _box(decision)), 1), FLEET_COLUMNS)
    text = f"<p><b>{shown(decision, f'layouts.{number}.gpus')} full GPUs</b> {safe(part.node_text)}</p>"
    return f'{text}<div class="row loose">{boxes}</div>'


def _box(one: Decision) -> int:
    return next((unit for unit in BOXES if max(one.fleet_gpus, one.gpus) <= MOST_BOXES * unit), BOXES[-1])


def _gpu(layout: str, gpu_model: GpuModel | None) -> str:
    if layout == LAYOUT_FULL or gpu_model is None or not gpu_model.memory_slices:
        return '<div class="gpu full"></div>'
    parts, end = [], 0
    for _, profile, start, size in make_placement_table(gpu_model, [layout]).sort("start").rows():
        parts += [("", start - end)] if start > end else []
        parts.append((profile, size))
        end = start + size
    parts += [("", gpu_model.memory_slices - end)] if end < gpu_model.memory_slices else []
    cells = "".join(_slice(name, size) for name, size in parts)
    return f'<div class="gpu" title="{safe(layout_words(layout))}">{cells}</div>'


def _slice(name: str, size: int) -> str:
    if not name:
        return f'<div class="slice none" style="flex:{size}"></div>'
    kind = name.split(".")[0]
    return f'<div class="slice g{kind[0]}" style="flex:{size}"><span>{safe(kind)}</span></div>'


def _gpu_model(name: str | None) -> GpuModel | None:
    """The GPU model, if the catalogue has it."""
    with contextlib.suppress(GpuPlannerError):
        return None if name is None else load_gpu_model(name)
    return None


def _twin(one: Decision) -> str:
    """Layout, GPUs and nodes as a table."""
    rows = "".join(
        f'<tr><th scope="row">{safe(part.layout)}</th><td class="number">{shown(one, f"layouts.{place}.gpus")}</td>'
        f'<td class="long">{safe(part.node_text) or "–"}</td></tr>'
        for place, part in enumerate(one.layouts)
    )
    return (
        "<details><summary>Layouts and nodes as a table</summary>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Layouts and nodes"><table>'
        '<caption>Layouts and nodes</caption><thead><tr><th scope="col">layout</th>'
        '<th scope="col" class="number">GPUs</th><th scope="col">nodes</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )


LEFT_OUT = 0.01
"""Share of the GPU-hours that may be excluded before the badge warns."""

Links = Sequence[tuple[str, str]]
"""Files beside the page: name and path."""
BUNDLE, EXPORT = ("Change bundle", "export/"), "gpuplanner export "


def first_screen(
    found: Comparison,
    *,
    peaks: pl.DataFrame | None = None,
    period: str = "",
    links: Links = (),
    how: Sequence[str] = (),
    doubts: Sequence[str] = (),
    warnings: Sequence[QualityWarning] = (),
) -> str:
    """The first screen of a decision, without its headline, which is the heading of the page.

    `warnings` are those of the quality report. `how` are the anchors of the formulas of the cards.
    """
    one = found.decision
    left, right = _left(found, peaks), fleet_picture(one, found.rules)
    missing = _missing(one)
    if one.action == "none" and missing:
        right, missing = missing, ""
    sides = {"left": left, "right": right}
    charts = "".join(f'<div class="{name}">{part}</div>' for name, part in sides.items() if part)
    steps = f'<div class="next-steps">{_next_steps(one, links)}{missing}</div>'
    projects = "".join(f"<li>{safe(answer.sentence)}</li>" for answer in found.projects)
    announced = f'<h3>Announced projects</h3><ul class="projects">{projects}</ul>' if projects else ""
    return (
        f'<div class="decision">{warning_list(warnings)}{_today(found)}{_shown_cards(found, how)}'
        f'<div class="pair charts">{charts}</div>'
        f'<div class="pair lower"><div class="by-team">{_teams(one, period)}</div>{steps}</div>'
        f"{announced}{_facts(one, doubts, links)}</div>"
    )


def warning_list(warnings: Sequence[QualityWarning]) -> str:
    """Warnings of the quality report, above all figures."""
    rows = [f"<li>{safe(format_warning(warning))}</li>" for warning in warnings]
    return f'<ul class="warnings">{"".join(rows)}</ul>' if rows else ""


def badges(one: Decision) -> list[tuple[str, bool]]:
    """Markup of the badges of the page, each with whether it is a warning."""
    excluded = shown(one, "left_out_share", per_cent)
    known = f", use known {shown(one, 'use_known_share', per_cent)}" if value_of(one, "use_known_share") else ""
    quality = f"Data quality: good ({excluded} excluded{known})", False
    if one.left_out_share > LEFT_OUT:
        quality = f"Data quality: {excluded} of GPU-hours excluded", True
    elif one.action == "none":
        quality = "Data quality: no recommendation", True
    elif one.telemetry_matched_gpu_hours == 0:
        quality = "Data quality: no telemetry matched to jobs", True
    late = max(one.service, key=lambda size: size.observed_p95_minutes - size.limit_minutes, default=None)
    if late is None or late.observed_p95_minutes <= late.limit_minutes:
        return [quality]
    path = f"service.{one.service.index(late)}"
    wait, limit = (shown(one, f"{path}.{name}_minutes", minutes) for name in ("observed_p95", "limit"))
    return [(f"Waits: p95 {wait} on {safe(late.size)} (limit {limit})", True), quality]


def fleet_words(one: Decision) -> str:
    """The fleet of a decision, for the line above the headline."""
    if not one.fleet_gpus:
        return "fleet not known"
    words = f"{one.fleet_gpus:,} × {one.gpu_model}" if one.gpu_model else f"{one.fleet_gpus:,} GPUs, model not known"
    return f"{words}, inferred from jobs" if one.fleet_inferred else words


def _today(found: Comparison) -> str:
    """One line on today, with a bar of the causes of waiting; of excluded GPU-hours where these prevent an answer."""
    one = found.decision
    if one.action == "none" and one.left_out_share > LEFT_OUT:
        resolved = round(100 * (1 - one.left_out_share))
        bar = _bar({"resolved": resolved, "not resolved": 100 - resolved}, {})
        return f'<div class="today"><p><b>Today</b> GPU-hours by whether they could be resolved:</p>{bar}</div>'
    figures = [
        (name, shown(one, f"{OF_ALL}{path}", per_cent))
        for name, path in (("allocated", "teams_allocated"), ("used", "all_busy"))
        if one.teams
    ]
    if one.longest_waiting is not None:
        place = f"service.{one.service.index(one.longest_waiting)}.observed_p95_minutes"
        figures.append((f"p95 queue wait on {safe(one.longest_waiting.size)}", shown(one, place, minutes)))
    line = " · ".join(f"{name} {figure}" for name, figure in figures)
    parts = {} if found.waits is None else found.waits.cause_percent
    if found.waits is not None and not parts:
        line += f" · {safe(found.waits.main_cause_text.rstrip('.').lower())}"
    if parts:
        line += f" · {shown(found, 'waiting')} hours of waiting by cause:"
    bar = _bar(parts, {cause: shown(found, f"waiting.{cause}", whole_percent) for cause in parts}) if parts else ""
    return f'<div class="today"><p><b>Observed</b> {line}</p>{bar}</div>' if line else ""


def _bar(parts: dict[str, int], figures: dict[str, str]) -> str:
    """A bar of percentages that sum to 100, with their names as a list below; the largest part is the darkest."""
    most = max(parts, key=lambda name: parts[name])
    cells, names = [], []
    for name, percent in parts.items():
        word, figure = name.replace("_", " "), figures.get(name, whole_percent(percent))
        kind = f"{'most ' if name == most else ''}{'open' if name in ('unexplained', 'not resolved') else ''}".strip()
        cells += [f'<span class="{kind}" style="flex:{percent}"></span>'] if percent else []
        names.append(f"<b>{word} {figure}</b>" if name == most else f"<span>{word} {figure}</span>")
    words = " · ".join(names)
    return f'<div class="causes" aria-hidden="true">{"".join(cells)}</div><p class="causes-list">{words}</p>'


Card = tuple[str, ...]
"""Label and value of a card as markup, and its details, of which empty ones are left out."""


def cards(found: Comparison) -> list[Card]:
    """The four numbers of the first screen."""
    one = found.decision
    rows = (_gpus(one), _wait(one), _busy(one), _months(found))
    return [(label, value, *(each.removesuffix(".") for each in details if each)) for label, value, *details in rows]


def _shown_cards(found: Comparison, how: Sequence[str]) -> str:
    rows = []
    for number, (label, value, *details) in enumerate(cards(found)):
        if how:
            label = f'<a href="#{how[number]}" title="How this number is computed">{label}</a>'
        small = f'<dd class="detail">{" · ".join(details)}</dd>' if details else ""
        kind = "" if number or found.decision.action == "none" else " class='first'"
        rows.append(f'<div{kind}><dt>{label}</dt><dd class="value">{value}</dd>{small}</div>')
    return f'<dl class="cards">{"".join(rows)}</dl>'


def _then(before: str, after: str) -> str:
    """A value before and after; once where both read alike."""
    same = before.split(">", 1)[-1] == after.split(">", 1)[-1]
    return after if same else f'<span class="before">{before} →</span> {after}'


def _gpus(one: Decision) -> Card:
    label = "GPUs needed to meet the wait limit"
    if one.action == "none":
        return (label, MISSING_VALUE_TEXT, safe(_reason(one)))
    value = _then(shown(one, "fleet_gpus"), shown(one, "gpus"))
    more = f"{shown(one, 'more_gpus')} to buy" if one.gpus > one.fleet_gpus else ""
    mean = f"{shown(one, 'gpus_mean')} on average" if round(one.gpus_mean) != one.gpus else ""
    freed = ""
    if one.saving.value is not None:
        freed = f"capacity freed: {shown(one, 'saving.value')} GPU-hours per week"
        if one.saving.varies:
            freed += f" (90 % interval {shown(one, 'saving.low')} to {shown(one, 'saving.high')})"
    met = one.service and all(size.meets_limit for size in one.service)
    limits = "wait limit met for every job size in the record" if met else ""
    installed = f"{shown(one, 'fleet_gpus')} installed"
    return (label, value, installed, limits, more, mean, freed)


def _wait(one: Decision) -> Card:
    gains = one.most_improved_size
    if gains is None:
        why = "" if one.action == "none" else "the replay of today is too far from the record"
        return ("p95 queue wait", MISSING_VALUE_TEXT, safe(_sentence(why or _reason(one))))
    name = f"service.{one.service.index(gains)}"
    now, then, observed = (
        shown(one, f"{name}.{field}_p95_minutes", minutes) for field in ("today", "recommended", "observed")
    )
    others = [
        f"{safe(size.size)} {_then(*(shown(one, f'service.{place}.{when}_p95_minutes', minutes) for when in _WHEN))}"
        for place, size in enumerate(one.service)
        if size is not gains and max(size.observed_p95_minutes, size.recommended_p95_minutes) >= 1.0
    ]
    return (
        f"p95 queue wait, {safe(gains.size)}, simulated", _then(now, then),
        f"observed {observed}" if gains.replay_deviates else "",
        f"limit {shown(one, f'{name}.limit_minutes', minutes)}", *others[:MOST_OTHERS],
        f"{shown(one, 'delayed_share', per_cent)} of jobs start later",
    )  # fmt: skip


_WHEN, MOST_OTHERS = ("today", "recommended"), 2


def _busy(one: Decision) -> Card:
    """Utilization of provisioned GPUs; where it was not measured or changes by rightsizing, the mean wait."""
    resized = any(step.action in ("rightsize", "repartition") for step in one.measures)
    if one.action == "none" or value_of(one, "busy_as_recommended") is None or resized:
        if not one.service:
            reason = "no telemetry" if one.teams and value_of(one, "all_busy") is None else _reason(one)
            return ("Utilization of provisioned GPUs", MISSING_VALUE_TEXT, safe(_sentence(reason)))
        now, then = (shown(one, f"mean_wait_{when}_minutes", mean_minutes) for when in _WHEN)
        return ("Mean queue wait, all jobs, simulated", _then(now, then), "mean over jobs of all sizes")
    now, then = (shown(one, name, per_cent) for name in (f"{OF_ALL}all_busy", "busy_as_recommended"))
    return ("Utilization of provisioned GPUs", _then(now, then), "share of their GPU-hours that were used")


def _months(found: Comparison) -> Card:
    """Months until the recommended GPUs are exhausted: 0 today where a job size misses its limit already."""
    label, ends, one = "Months until capacity is exhausted", found.exhaustion, found.decision
    late = late_sizes(one)
    load = ""
    gpus = f"{shown(one, 'gpus')} GPUs"
    if found.headroom is not None:
        low, high = (shown(found, f"headroom.{side}", above_one) for side in ("low", "high"))
        load = f"{gpus}: headroom {shown(found, 'headroom_share', per_cent)} (80 % interval {low} to {high})"
        if found.headroom.factor < 1.0:
            load = f"{gpus} carry {shown(found, 'headroom.factor', per_cent)} of today's load within the wait target"
        elif found.headroom.factor < 1.005:
            load = f"{gpus} have no headroom: any growth exceeds the wait target (80 % interval {low} to {high})"
    missed = f"{safe(', '.join(late))} {'misses' if len(late) == 1 else 'miss'} the limit today" if late else ""
    value = MISSING_VALUE_TEXT if value_of(found, "months_left") is None else shown(found, "months_left", str)
    if late and one.measures:
        value = _then(shown(found, "months_left_today"), value)
    if ends.date is None and ends.probability is None:
        return (label, value, load, missed, f"no date: {safe(ends.reason or _reason(one))}")
    chance = f"{shown(found, 'exhaustion.probability', per_cent)} risk within a year" if ends.probability else ""
    due = ""
    if ends.date is not None:
        due = f"{shown(found, 'exhaustion.date', day)}, order by {shown(found, 'exhaustion.order_by', day)}"
    return (label, value, due, missed, chance, load)


_MARKS = "p95, log scale. Gray: today (ring). Blue: recommended (dot), 80 % interval. Dashed: wait limit."


def curve_figure(found: Comparison) -> str:
    """The wait curve, with the wait limit of each job size."""
    one, frame = found.decision, make_wait_curve_table(found)
    limits = make_service_table(found).select("limit_minutes", job_size="size")
    ends = {"today": one.fleet_gpus, "recommended": one.gpus}
    named = frame.with_columns(job_size="p95, " + pl.col("job_size") + " [min]")
    numbers = named.pivot("job_size", index=("layout", "gpus"), values="p95_minutes", aggregate_function="first")
    return page.figure(
        plots.plot_wait_curve(frame, **ends, limits=limits),
        title="Queue wait by number of GPUs",
        alt=_MARKS,
        numbers=numbers,
        formats=dict.fromkeys(numbers.columns[2:], ",.1f"),
    )


def _left(found: Comparison, peaks: pl.DataFrame | None) -> str:
    """The wait curve, or else the peak allocation of each day."""
    one = found.decision
    if found.wait_curve:
        return curve_figure(found)
    if peaks is None or peaks.is_empty() or not one.fleet_gpus:
        return ""
    return peaks_figure(peaks, gpus=one.fleet_gpus, known=not one.fleet_inferred)


def peaks_figure(peaks: pl.DataFrame, *, gpus: int, known: bool) -> str:
    """GPUs allocated in the busiest hour of each day, beside installed GPUs."""
    return page.figure(
        plots.plot_peaks(peaks, gpus=gpus, known=known),
        title="GPUs allocated in the busiest hour of each day",
        alt=plots.peaks_text(peaks),
        numbers=peaks,
    )


_TEAM_HEAD = (
    '<th scope="col" rowspan="2">team</th><th scope="col" class="number" rowspan="2">jobs</th>'
    '<th scope="col" class="number" rowspan="2">allocated,<br>GPU-hours</th>'
    '<th scope="col" class="number" rowspan="2">% of<br>installed</th>'
    '<th scope="col" class="number" rowspan="2">allocated but<br>idle, GPU-hours</th>'
)
_WAIT_HEADS = (
    '<th scope="colgroup" class="number" colspan="2">mean queue wait,<br>simulated</th></tr>'
    '<tr><th scope="col" class="number">today</th><th scope="col" class="number">recommended</th></tr>'
)


def _teams(one: Decision, period: str) -> str:
    """GPU-hours and waits by team, with what was not allocated and their sum; a dash where nothing was measured.

    Waits have no columns where none was simulated.
    """
    if not one.teams:
        return ""
    waits = one.today_mean_minutes is not None
    places = [number for number, row in enumerate(one.teams) if row.team != UNALLOCATED_TEAM]
    rows = [(one.teams[number].team, f"teams.{number}", "") for number in places[:TEAMS]]
    if len(places) > TEAMS:
        rows.append((f"{len(places) - TEAMS:,} other teams", "other", ""))
    unallocated = [number for number, row in enumerate(one.teams) if row.team == UNALLOCATED_TEAM]
    rows += [(NOT_ALLOCATED, f"teams.{number}", "unallocated") for number in unallocated]
    body = "".join(_team(one, *row, waits=waits) for row in [*rows, ("Total", "all", "all")])
    unknown = any(row.idle_gpu_hours is None for row in one.teams)
    about = "; ".join(filter(None, (period, f"{MISSING_VALUE_TEXT} is not measured" if unknown else "")))
    when = f' <span class="about">{safe(about)}</span>' if about else ""
    return (
        f"<h3>By team{when}</h3>"
        '<div class="scroll" tabindex="0" role="region" aria-label="By team"><table class="teams">'
        f"<thead><tr>{_TEAM_HEAD}{_WAIT_HEADS if waits else '</tr>'}</thead><tbody>{body}</tbody></table></div>"
    )


NOT_ALLOCATED = "Unallocated"
"""Name of the GPU-hours that no team was allocated, of all causes; `unallocated` is one of them."""
TEAM_COLUMNS = (
    "team", "jobs", "allocated, GPU-hours", "allocated but idle, GPU-hours", "simulated mean queue wait today",
    "simulated mean queue wait recommended",
)  # fmt: skip


def teams_table(one: Decision) -> pl.DataFrame:
    """The table by team as text; no row where no team is known."""

    def wait(value: float | None) -> str:
        return MISSING_VALUE_TEXT if value is None else mean_minutes(value)

    rows = []
    for row in one.teams:
        rest = row.team == UNALLOCATED_TEAM
        idle = MISSING_VALUE_TEXT if row.idle_gpu_hours is None else count(row.idle_gpu_hours)
        figures = (count(row.jobs), count(row.allocated_gpu_hours), idle)
        waits = (wait(row.today_mean_minutes), wait(row.recommended_mean_minutes))
        rows.append((NOT_ALLOCATED, "", figures[1], "", "", "") if rest else (row.team, *figures, *waits))
    return pl.DataFrame(rows, schema=dict.fromkeys(TEAM_COLUMNS, pl.String), orient="row")


def _team(one: Decision, name: str, path: str, kind: str, *, waits: bool) -> str:
    names = {field: f"{path}_{field}" for field in ("jobs", "allocated", "idle")}
    if path.startswith("teams."):
        columns = ("jobs", "allocated_gpu_hours", "idle_gpu_hours")
        names = {field: f"{path}.{column}" for field, column in zip(names, columns, strict=True)}
    when = _WHEN if waits else ()
    mean = [f"{path}.{time}_mean_minutes" if "." in path else f"{time}_mean_minutes" for time in when]
    rest = kind == "unallocated"
    cells = (
        "" if rest else shown(one, names["jobs"]),
        shown(one, names["allocated"]),
        shown(one, OF_ALL + names["allocated"], tenths),
        "" if rest else shown(one, names["idle"]),
        *("" if rest or path == "other" else shown(one, wait, mean_minutes) for wait in mean),
    )
    row = "".join(f'<td class="number">{cell}</td>' for cell in cells)
    return f'<tr{kind and f" class={kind!r}"}><th scope="row">{safe(name)}</th>{row}</tr>'


def next_steps(one: Decision, links: Links = ()) -> list[str]:
    """The next steps as plain text; a command ends its line, so that it can be copied."""
    steps = steps_with_bundle(one, links)
    return [f"{step.text[:1].upper()}{step.text[1:]}{'' if step.command else '.'}" for step in steps]


def steps_with_bundle(one: Decision, links: Links) -> list[NextStep]:
    """The next steps; where a change bundle stands beside the page, its README in place of the command to write one."""
    written = [step for step in one.next_steps if BUNDLE in links and (step.command or "").startswith(EXPORT)]
    readme = "apply the change bundle, open export/README.md"
    applied = {step: replace(step, what=f"{readme}: {step.what}", command=None) for step in written}
    return [applied.get(step, step) for step in one.next_steps]


def _next_steps(one: Decision, links: Links) -> str:
    steps = "".join(f"<li>{_with_command(step)}</li>" for step in steps_with_bundle(one, links))
    body = f'<ol class="steps">{steps}</ol>' if steps else '<p class="about">First add the missing data.</p>'
    return f"<h3>Next steps</h3>{body}"


def _missing(one: Decision) -> str:
    """Missing data and the command that adds each, in the order of their effect."""
    if not one.missing:
        return ""
    rows = "".join(
        f"<li><span>{safe(_sentence(each.what))}</span><code>{safe(each.command)}</code></li>" for each in one.missing
    )
    return f'<div id="missing"><h3>Missing data</h3><ol class="missing">{rows}</ol></div>'


def _facts(one: Decision, doubts: Sequence[str], links: Links) -> str:
    rows = [(name, safe(text)) for name, text in confidence_rows(one, doubts)]
    opened = "".join(f'<a href="{safe(path)}">{safe(name)}</a> ' for name, path in links)
    rows += [("Download", opened)] if opened else []
    body = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in rows)
    return f'<dl class="facts">{body}</dl>' if rows else ""


def confidence_rows(one: Decision, doubts: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Confidence, financial impact, assumptions and cautions: name and text of each."""
    if one.confidence:
        yield "Confidence", " ".join(one.confidence)
    if one.action != "none" and one.financial_impact.basis:
        yield "Financial impact", one.financial_impact.basis.replace("\n", " ")
    owner = f"ownership of the GPUs: {one.financial_impact.ownership} (--set ownership=…)"
    if one.assumptions:
        yield "Assumptions", " · ".join((owner, *one.assumptions))
    if doubts:
        yield "Caution", " ".join(doubts)


def _with_command(step: NextStep) -> str:
    """A step with who does it and its command."""
    command = f" <code>{safe(step.command)}</code>" if step.command else ""
    return f"<b>{safe(_sentence(step.who).rstrip('.'))}:</b> {safe(step.what)}{command}"


def _sentence(text: str) -> str:
    found = text.strip()
    return f"{found[:1].upper()}{found[1:]}{'' if found.endswith(('.', ':', '?')) else '.'}" if found else ""


def _reason(one: Decision) -> str:
    return _sentence(one.reason or one.saving.reason or "nothing was simulated")
