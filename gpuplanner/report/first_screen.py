"""The first screen of the page and its drawing of the fleet."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import takewhile

import polars as pl

from gpuplanner import report as plots
from gpuplanner.core.errors import GpuPlannerError
from gpuplanner.core.units import NO_FIGURE
from gpuplanner.decision.comparison_record import Comparison, curve_table, service_table
from gpuplanner.decision.decision_types import Decision, LayoutOnNodes, NextStep
from gpuplanner.hardware.gpu_models import GpuModel, load_gpu_model
from gpuplanner.hardware.layout_enumeration import placement_table
from gpuplanner.ingest.quality_report import QualityWarning, warning_text
from gpuplanner.report import html_page as page
from gpuplanner.report.figure_formats import (
    NOBODY,
    OF_ALL,
    TEAMS,
    count,
    day,
    layout_words,
    minutes,
    money,
    nodes_words,
    per_cent,
    safe,
    shown,
    times,
)

MOST_ROWS, MOST_KINDS = 10, 8
"""Nodes that are drawn one by one, and kinds of nodes that are drawn as one row each where there are more."""
MIXED = "cut into slices"
LONGEST_NAME = 8
"""Characters of a name that fit beside a row of boxes."""
MOST_BOXES = 64
BOXES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""GPUs that one box may stand for."""
MAX_NODE_COLUMNS, FLEET_COLUMNS = 8, 16
"""GPUs in a row of a node, and in a row of a fleet whose nodes are not drawn."""
WHOLE = "whole"


def fleet_picture(one: Decision) -> str:
    """Draw the fleet of a decision, with its layouts as a table folded under it.

    One row is a node; of a fleet with more nodes than fit it is all nodes that hold the same, and where nobody names
    nodes, or few are alike, all GPUs of a layout. GPUs that rest are outlines.
    """
    if not one.layouts:
        return ""
    board = _board(one.board)
    kinds = _kinds(one.layouts) if all(part.nodes for part in one.layouts) else {}
    nodes = sum(map(len, kinds.values()))
    by_node = 0 < nodes <= MOST_ROWS or 0 < len(kinds) <= MOST_KINDS < nodes
    groups = _by_node(kinds, board, single=nodes <= MOST_ROWS) if by_node else _by_layout(one, board)
    about = "One box is one GPU" if by_node or _box(one) == 1 else f"One box is {_box(one):,} GPUs"
    about += ", its slices as wide as their memory" if one.cut_gpus else ""
    said = "; ".join(_said(part) for part in one.layouts)
    rest = _resting(one)
    titles = {"buy": "The fleet with what is bought", "keep": "The fleet, as it is"}
    return (
        '<div class="fleet">'
        f'<h3>{titles.get(one.action, "The fleet as recommended")}</h3><p class="about">{about}.</p>'
        f'<div role="img" aria-label="{safe(said)}">{"".join(groups)}{rest}</div>'
        f"{_twin(one)}</div>"
    )


Kind = tuple[tuple[str, int], ...]
"""What a node holds: its layouts, with the GPUs of each."""


def _kinds(layouts: Sequence[LayoutOnNodes]) -> dict[Kind, list[str]]:
    """Nodes by what they hold, in the order in which layouts name them."""
    held: dict[str, list[tuple[str, int]]] = {}
    for part in layouts:
        each, more = divmod(part.gpus, max(len(part.nodes), 1))
        counts = part.by_node or [each + (place < more) for place in range(len(part.nodes))]
        for name, gpus in zip(part.nodes, counts, strict=True):
            held.setdefault(name, []).append((part.layout, gpus))
    found: dict[Kind, list[str]] = {}
    for name, parts in held.items():
        found.setdefault(tuple(parts), []).append(name)
    return found


def _by_node(kinds: dict[Kind, list[str]], board: GpuModel | None, *, single: bool) -> Iterator[str]:
    """Nodes under a caption for whole ones, one for each layout that fills nodes, and one for all that are mixed.

    A row is a node, or, of many, all nodes that hold the same.
    """
    short = _told_apart([name for names in kinds.values() for name in names])
    columns = min(max(sum(count for _, count in kind) for kind in kinds), MAX_NODE_COLUMNS)
    captions: dict[str, list[Kind]] = {}
    for kind in kinds:
        alone = kind[0][0] if len(kind) == 1 else ""
        captions.setdefault(WHOLE if alone == WHOLE else layout_words(alone) or MIXED, []).append(kind)
    for caption, mine in captions.items():
        names = [name for kind in mine for name in kinds[kind]]
        gpus = sum(count * len(kinds[kind]) for kind in mine for _, count in kind)
        cut = sum(count * len(kinds[kind]) for kind in mine for layout, count in kind if layout != WHOLE)
        many = f"{cut:,} of {gpus:,}" if caption == MIXED and cut < gpus else f"{gpus:,} ×"
        yield f"<p><b>{many} {safe(caption)}</b> on {safe(nodes_words(names))}</p>"
        for kind in mine:
            boxes = "".join(_gpu(layout, board) * count for layout, count in kind)
            for name in kinds[kind] if single else kinds[kind][:1]:
                label = short[name] if single else f"× {len(kinds[kind]):,}"
                full = f' title="{safe(name)}"' if label != name else ""
                yield (
                    f'<div class="row"><span class="label"{full}>{safe(label)}</span>{_grid(boxes, columns)}</div>'
                )


def _grid(boxes: str, columns: int) -> str:
    """A grid of GPUs with a number of columns."""
    return f'<div class="gpus" style="--columns:{columns}">{boxes}</div>'


def _told_apart(names: Sequence[str]) -> dict[str, str]:
    """What fits beside a row: of long names the part that they do not share, with its number whole.

    Examples
    --------
    >>> _told_apart(["gpu-worker-09.cluster", "gpu-worker-10.cluster"]), _told_apart(["n01", "n02"])
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


def _by_layout(one: Decision, board: GpuModel | None) -> Iterator[str]:
    """One row of boxes a layout."""
    unit = _box(one)
    for place, part in enumerate(one.layouts):
        where = f" on {safe(nodes_words(part.nodes))}" if part.nodes else ""
        total = shown(one, f"layouts.{place}.gpus")
        yield f"<p><b>{total} × {safe(layout_words(part.layout))}</b>{where}</p>"
        boxes = _grid(_gpu(part.layout, board) * max(round(part.gpus / unit), 1), FLEET_COLUMNS)
        yield f'<div class="row loose">{boxes}</div>'


def _resting(one: Decision) -> str:
    """GPUs that are not on: outlines, as many as there are."""
    rest = max(one.fleet_gpus - one.gpus, 0)
    if not rest:
        return ""
    boxes = _grid('<div class="gpu rests"></div>' * max(round(rest / _box(one)), 1), FLEET_COLUMNS)
    word = "GPUs rest" if rest > 1 else "GPU rests"
    return f'<p><b>{shown(one, "resting_gpus")} {word}</b></p><div class="row loose">{boxes}</div>'


def _box(one: Decision) -> int:
    return next((unit for unit in BOXES if max(one.fleet_gpus, one.gpus) <= MOST_BOXES * unit), BOXES[-1])


def _gpu(layout: str, board: GpuModel | None) -> str:
    if layout == WHOLE or board is None or not board.memory_slices:
        return '<div class="gpu whole"></div>'
    parts, end = [], 0
    for _, profile, start, size in placement_table(board, [layout]).sort("start").rows():
        parts += [("", start - end)] if start > end else []
        parts.append((profile, size))
        end = start + size
    parts += [("", board.memory_slices - end)] if end < board.memory_slices else []
    cells = "".join(_slice(name, size) for name, size in parts)
    return f'<div class="gpu" title="{safe(layout_words(layout))}">{cells}</div>'


def _slice(name: str, size: int) -> str:
    if not name:
        return f'<div class="slice none" style="flex:{size}"></div>'
    kind = name.split(".")[0]
    return f'<div class="slice g{kind[0]}" style="flex:{size}"><span>{safe(kind)}</span></div>'


def _board(name: str | None) -> GpuModel | None:
    """The board, if the catalogue has it."""
    with contextlib.suppress(GpuPlannerError):
        return None if name is None else load_gpu_model(name)
    return None


def _said(part: LayoutOnNodes) -> str:
    where = f" on {nodes_words(part.nodes)}" if part.nodes else ""
    return f"{part.gpus:,} × {layout_words(part.layout)}{where}"


def _twin(one: Decision) -> str:
    """Layout, GPUs and nodes as a table: what the picture shows, and what is to be typed."""
    rows = "".join(
        f'<tr><th scope="row">{safe(part.layout)}</th><td class="number">{shown(one, f"layouts.{place}.gpus")}</td>'
        f'<td class="long">{safe(", ".join(part.nodes)) or "–"}</td></tr>'
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
"""Share of the GPU-hours that may be left out before the badge warns."""
ASSUMED = "Assumed"

Links = Sequence[tuple[str, str]]
"""Files beside the page: how each is called, and its path."""


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
    """Everything of a decision that stands above the fold, but its sentence, which is the heading of the page.

    `warnings` are those of the quality report. `how` are places on the page that say how the numbers of the cards come
    about.
    """
    one = found.decision
    left, right = _left(found, peaks), fleet_picture(one)
    missing = _missing(one)
    if one.action == "none" and missing:
        right, missing = missing, ""
    sides = {"left": left, "right": right}
    pictures = "".join(f'<div class="{name}">{part}</div>' for name, part in sides.items() if part)
    lower = (
        f'<div class="by-team">{_teams(one, period)}</div><div class="monday">{_next_steps(one, links)}</div>'
    )
    projects = "".join(f"<li>{safe(answer.sentence)}</li>" for answer in found.projects)
    announced = f'<h3>Announced projects</h3><ul class="projects">{projects}</ul>' if projects else ""
    reasons = "" if found.waits is None else f'<p class="short">{safe(found.waits.sentence)}</p>'
    return (
        f'<div class="decision">{warning_list(warnings)}{_shown_cards(found, how)}{reasons}'
        f'<div class="pair pictures">{pictures}</div>'
        f'<div class="pair lower">{lower}</div>{announced}{missing}{_sure(one, doubts)}</div>'
    )


def warning_list(warnings: Sequence[QualityWarning]) -> str:
    """What was observed and not understood, above all figures."""
    rows = [f"<li>{safe(warning_text(warning))}</li>" for warning in warnings]
    return f'<ul class="warnings">{"".join(rows)}</ul>' if rows else ""


def badge(one: Decision) -> tuple[str, bool]:
    """What the corner of the page says of the data, and whether it is a warning."""
    if one.left_out_share > LEFT_OUT:
        return f"{shown(one, 'left_out_share', per_cent)} of the GPU-hours left out", True
    if one.action == "none":
        return "No recommendation", True
    if one.telemetry_matched_gpu_hours == 0:
        return "No telemetry matched to jobs", True
    return f"Data good: {shown(one, 'left_out_share', per_cent)} of hours left out", False


def fleet_words(one: Decision) -> str:
    """The fleet of a decision, for the line above its sentence."""
    if not one.fleet_gpus:
        return "fleet not known"
    words = f"{one.fleet_gpus:,} {one.board or 'GPUs, board not known'}"
    return f"{words}, inferred from the jobs" if one.fleet_inferred else words


Card = tuple[str, ...]
"""Label and value of a card as markup, and its details, of which empty ones are left out."""


def cards(found: Comparison) -> list[Card]:
    """The four numbers of the first screen."""
    one = found.decision
    rows = (_gpus(one), _wait(one), _freed(one), _lasts(found))
    return [(label, value, *filter(None, details)) for label, value, *details in rows]


def _shown_cards(found: Comparison, how: Sequence[str]) -> str:
    rows = []
    for number, (label, value, *details) in enumerate(cards(found)):
        if how:
            label = f'<a href="#{how[number]}" title="How this number comes about">{label}</a>'
        told = f'<dd class="detail">{" · ".join(details)}</dd>' if details else ""
        kind = "" if number else " class='first'"
        rows.append(f'<div{kind}><dt>{label}</dt><dd class="value">{value}</dd>{told}</div>')
    return f'<dl class="cards">{"".join(rows)}</dl>'


def _gpus(one: Decision) -> Card:
    label = "GPUs needed at peak"
    if one.action == "none":
        return (label, "not known", safe(_reason(one)))
    fleet, gpus = shown(one, "fleet_gpus"), shown(one, "gpus")
    value = gpus if one.gpus == one.fleet_gpus else f"{fleet} → {gpus}"
    mean = f"{shown(one, 'gpus_mean')} on average" if round(one.gpus_mean) != one.gpus else ""
    more = f"{shown(one, 'more_gpus')} to buy" if one.gpus > one.fleet_gpus else ""
    return (label, value, f"{fleet} installed", more, mean)


def _wait(one: Decision) -> Card:
    if one.latest is None:
        why = "" if one.action == "none" else "a replay of today is too far from the record"
        return ("p95 queue wait", "not known", safe(_sentence(why or _reason(one))))
    name = f"service.{one.service.index(one.latest)}"
    now, then, observed = (
        shown(one, f"{name}.{field}_p95_minutes", minutes) for field in ("today", "recommended", "observed")
    )
    same = round(one.latest.today_p95_minutes, 1) == round(one.latest.recommended_p95_minutes, 1)
    limit = f"limit {shown(one, f'{name}.limit_minutes', minutes)}"
    delayed = f"{shown(one, 'jobs_delayed')} of {shown(one, 'jobs')} jobs start later"
    return (
        f"p95 queue wait, jobs on {safe(one.latest.size)}", now if same else f"{now} → {then}",
        "simulated" if one.latest.replay_is_apart else "", f"observed {observed}", limit, delayed,
    )  # fmt: skip


def _freed(one: Decision) -> Card:
    label, saving, worth = "Capacity freed a week", one.saving, one.worth
    if saving.value is None:
        return (label, "none", safe(_sentence(saving.reason or "")))
    weeks = f"{shown(one, 'saving.low')} to {shown(one, 'saving.high')} in 9 of 10 weeks"
    energy = f"{shown(one, 'worth.kwh_per_week')}&nbsp;kWh" if worth.kwh_per_week else ""
    dollars = "" if worth.usd_per_week is None else shown(one, "worth.usd_per_week", money)
    week = weeks if saving.varies else "the same every week"
    return (label, f"{shown(one, 'saving.value')} GPU-hours", week, energy, dollars)


def _lasts(found: Comparison) -> Card:
    label, ends = "Capacity exhausted", found.exhaustion
    load = ""
    if found.headroom is not None:
        then = "as recommended" if found.decision.measures else "as they run today"
        load = f"{then}, waits stay within the target up to {shown(found, 'headroom.factor', times)} the load"
    if ends.date is None:
        return (label, "no date", safe(_sentence(ends.reason or _reason(found.decision))), load)
    return (
        label, shown(found, "exhaustion.date", day), f"order by {shown(found, 'exhaustion.order_by', day)}", load,
        f"{shown(found, 'exhaustion.probability', per_cent)} likely within a year",
    )  # fmt: skip


def curve_figure(found: Comparison) -> str:
    """The wait curve, with what the p95 wait of each job size is held to."""
    one, frame = found.decision, curve_table(found)
    limits = service_table(found).select("limit_minutes", job_size="size")
    ends = {"today": one.fleet_gpus, "recommended": one.gpus}
    numbers = frame.pivot(
        "job_size", index=("layout", "gpus"), values="p95_minutes", aggregate_function="first"
    )
    return page.figure(
        plots.plot_wait_curve(frame, **ends, limits=limits),
        title="Queue wait against number of GPUs",
        alt=plots.wait_curve_text(frame, **ends),
        numbers=numbers,
        formats=dict.fromkeys(limits["job_size"], ",.1f"),
    )


def _left(found: Comparison, peaks: pl.DataFrame | None) -> str:
    """The wait curve, or else the most that was held, day by day."""
    one = found.decision
    if found.wait_curve:
        return curve_figure(found)
    if peaks is None or peaks.is_empty() or not one.fleet_gpus:
        return ""
    return peaks_figure(peaks, gpus=one.fleet_gpus, known=not one.fleet_inferred)


def peaks_figure(peaks: pl.DataFrame, *, gpus: int, known: bool) -> str:
    """The most that was held, day by day, beside what there is."""
    return page.figure(
        plots.plot_peaks(peaks, gpus=gpus, known=known),
        title="GPUs held in the busiest hour of each day",
        alt=plots.peaks_text(peaks),
        numbers=peaks,
    )


def _teams(one: Decision, period: str) -> str:
    """Who held what, with what nobody held and the sum; a dash where nobody measured."""
    if not one.teams:
        return ""
    places = [number for number, row in enumerate(one.teams) if row.team != NOBODY]
    rows = [_team(one, one.teams[number].team, f"teams.{number}") for number in places[:TEAMS]]
    if len(places) > TEAMS:
        rows.append(_team(one, f"{len(places) - TEAMS:,} more teams", "other"))
    nobody = [number for number, row in enumerate(one.teams) if row.team == NOBODY]
    rows += [_team(one, NOBODY, f"teams.{number}", kind="nobody") for number in nobody]
    rows.append(_team(one, "all", "all", kind="all"))
    columns = ("jobs", "held,<br>GPU-hours", "share<br>of all", "idle while held,<br>GPU-hours")
    head = '<th scope="col">team</th>' + "".join(
        f'<th scope="col" class="number">{name}</th>' for name in columns
    )
    unknown = any(row.idle_gpu_hours is None for row in one.teams)
    about = "; ".join(filter(None, (period, f"{NO_FIGURE} is not measured" if unknown else "")))
    when = f' <span class="about">{safe(about)}</span>' if about else ""
    return (
        f"<h3>By team{when}</h3>"
        '<div class="scroll" tabindex="0" role="region" aria-label="By team"><table class="teams">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def teams_table(one: Decision) -> pl.DataFrame:
    """The table by team as it is shown, in plain words; no row where no team is known."""
    found = [
        (row.team, "" if row.team == NOBODY else count(row.jobs), count(row.held_gpu_hours),
         "" if row.team == NOBODY else NO_FIGURE if row.idle_gpu_hours is None else count(row.idle_gpu_hours))
        for row in one.teams
    ]  # fmt: skip
    return pl.DataFrame(
        found,
        schema=dict.fromkeys(("team", "jobs", "held, GPU-hours", "idle, GPU-hours"), pl.String),
        orient="row",
    )


def _team(one: Decision, name: str, path: str, kind: str = "") -> str:
    part = path.startswith("teams.")
    jobs, held, idle = (
        (f"{path}.{field}" if part else f"{path}_{short}")
        for field, short in (("jobs", "jobs"), ("held_gpu_hours", "held"), ("idle_gpu_hours", "idle"))
    )
    nobody = kind == "nobody"
    cells = (
        "" if nobody else shown(one, jobs),
        shown(one, held),
        shown(one, OF_ALL + held, per_cent),
        "" if nobody or kind == "all" else shown(one, idle),
    )
    row = "".join(f'<td class="number">{cell}</td>' for cell in cells)
    return f'<tr{kind and f" class={kind!r}"}><th scope="row">{safe(name)}</th>{row}</tr>'


def next_steps(one: Decision) -> list[str]:
    """What to do, as plain sentences."""
    return [_sentence(step.text) for step in one.next_steps]


def _next_steps(one: Decision, links: Links) -> str:
    steps = "".join(f"<li>{_with_command(step)}</li>" for step in one.next_steps)
    body = (
        f'<ol class="steps">{steps}</ol>' if steps else '<p class="about">Nothing before what is missing.</p>'
    )
    opened = "".join(f'<a href="{safe(path)}">{safe(name)}</a> ' for name, path in links)
    more = f'<p class="open"><b>Open</b> {opened}</p>' if opened else ""
    return f"<h3>Next steps</h3>{body}{more}"


def _missing(one: Decision) -> str:
    """What is not known, and the command that adds it, in the order of what it would change."""
    if not one.missing:
        return ""
    rows = "".join(
        f"<li><span>{safe(_sentence(each.what))}</span><code>{safe(each.command)}</code></li>"
        for each in one.missing
    )
    head = "<h3>What is missing, and the command that adds it</h3>"
    return f'<div id="missing">{head}<ol class="missing">{rows}</ol></div>'


def _sure(one: Decision, doubts: Sequence[str]) -> str:
    rows = [*sure(one), *([("Careful", "<br>".join(map(safe, doubts)))] if doubts else [])]
    told = (
        f"<dt>{name}</dt><dd>{f'<details><summary>{text}</summary></details>' if name == ASSUMED else text}</dd>"
        for name, text in rows
    )
    return f'<dl class="sure">{"".join(told)}</dl>' if rows else ""


def sure(one: Decision) -> Iterator[tuple[str, str]]:
    """How sure it is, what it is worth and what was assumed: name and markup of each."""
    if one.how_sure:
        yield "How sure", safe(" ".join(one.how_sure))
    if one.saving.value is not None and one.worth.basis:
        yield "Worth", safe(one.worth.basis.replace("\n", " "))
    if one.assumptions:
        yield ASSUMED, safe("; ".join(one.assumptions)) + "."


def _with_command(step: NextStep) -> str:
    """A step with who does it, and its command set as one."""
    command = f" <code>{safe(step.command)}</code>" if step.command else ""
    return f"<b>{safe(_sentence(step.who).rstrip('.'))}</b>: {safe(step.what)}{command}"


def _sentence(text: str) -> str:
    found = text.strip()
    return f"{found[:1].upper()}{found[1:]}{'' if found.endswith(('.', ':', '?')) else '.'}" if found else ""


def _reason(one: Decision) -> str:
    return _sentence(one.reason or one.saving.reason or "nothing was simulated")
