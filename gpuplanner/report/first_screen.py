"""First screen of the report: headline, figures, warnings, wait curve, teams and next steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import polars as pl

from gpuplanner import report as plots
from gpuplanner.core.units_and_number_formats import (
    MISSING_VALUE_TEXT,
    UNALLOCATED_LABEL,
    UNALLOCATED_TEAM,
    gpu_figure_text,
)
from gpuplanner.decision.comparison_record import Comparison, make_wait_curve_table, make_wait_table
from gpuplanner.decision.decision_types import PARTITION_ACTIONS, Decision, JobSizeWaits, NextStep
from gpuplanner.ingest.quality_report import QualityWarning, format_warning
from gpuplanner.report import html_page as page
from gpuplanner.report.fleet_drawing import draw_fleet
from gpuplanner.report.number_formats_and_glossary import (
    MAX_NAMED_TEAMS,
    SHARE_PREFIX,
    escape_html,
    format_count,
    format_day,
    format_mean_wait,
    format_share,
    format_tenth_percent,
    format_wait,
    format_whole_percent,
    metric_html,
    metric_value,
    sizes_over_limit,
)

MAX_EXCLUDED_SHARE = 0.01
"""Share of GPU-hours excluded for bad data above which the data-quality badge is a warning [0-1]."""

Links = Sequence[tuple[str, str]]
"""Links to files beside the page: text and relative path of each."""
BUNDLE_LINK = ("Change bundle", "export/")
"""Link to the change bundle beside the page: text and path."""
EXPORT_COMMAND = "gpuplanner export "
"""Start of the command that writes a change bundle."""


def render_first_screen(
    comparison: Comparison, *, peaks: pl.DataFrame | None = None, period: str = "", links: Links = (),
    formula_anchors: Sequence[str] = (), doubts: Sequence[str] = (), warnings: Sequence[QualityWarning] = (),
) -> str:  # fmt: skip
    """Render the first screen of a decision as HTML, without its headline, which is the title of the page.

    Parameters
    ----------
    comparison : Comparison
        Comparison of policies with its decision.
    peaks : polars.DataFrame, optional
        ``day, gpus``: GPUs allocated in the busiest hour of each day; drawn where there is no wait curve.
    period : str
        Period of the report, shown beside the table by team.
    links : sequence of (str, str)
        Files to download: name and path relative to the page.
    formula_anchors : sequence of str
        Anchors of the formulas of the four cards, in their order.
    doubts : sequence of str
        Cautions about the decision.
    warnings : sequence of QualityWarning
        Warnings of the quality report.

    Returns
    -------
    str
        HTML.
    """
    decision = comparison.decision
    sides = {"left": _wait_curve_or_peaks(comparison, peaks), "right": draw_fleet(decision, comparison.rules)}
    missing = _render_missing_data(decision)
    if decision.action == "none" and missing:
        sides["right"], missing = missing, ""
    charts = "".join(f'<div class="{name}">{part}</div>' for name, part in sides.items() if part)
    steps = f'<div class="next-steps">{_render_next_steps(decision, links)}{missing}</div>'
    projects = "".join(f"<li>{escape_html(answer.sentence)}</li>" for answer in comparison.projects)
    announced = f'<h3>Announced projects</h3><ul class="projects">{projects}</ul>' if projects else ""
    if comparison.inference is not None:
        texts = [*(service.sentence for service in comparison.inference.services), comparison.inference.sentence]
        services = "".join(f"<li>{escape_html(text)}</li>" for text in texts)
        announced += f'<h3>Inference services</h3><ul class="projects">{services}</ul>'
    head = f"{render_warnings(warnings)}{_today_line(comparison)}{_render_cards(comparison, formula_anchors)}"
    return (
        f'<div class="decision">{head}<div class="pair charts">{charts}</div>'
        f'<div class="pair lower"><div class="by-team">{_team_table(decision, period)}</div>{steps}</div>'
        f"{announced}{_render_facts(decision, doubts, links)}</div>"
    )


def render_warnings(warnings: Sequence[QualityWarning]) -> str:
    """Render the warnings of the data-quality report as an HTML list for the top of the page; the remedy unfolds."""
    rows = []
    for warning in warnings:
        problem, _, remedy = warning["what"].partition("; ")
        row = escape_html(format_warning({**warning, "what": problem}))
        if remedy:
            row = f"<details><summary>{row}</summary>{escape_html(_to_sentence(remedy))}</details>"
        rows.append(f"<li>{row}</li>")
    return f'<ul class="warnings">{"".join(rows)}</ul>' if rows else ""


def list_badges(decision: Decision) -> list[tuple[str, bool]]:
    """List the badges on data quality and queue waits: the HTML of each, and whether it is a warning."""
    excluded = metric_html(decision, "left_out_share", format_share)
    quality = f"Data quality: good ({excluded} excluded)", False
    if metric_value(decision, "use_known_share"):
        known_share = metric_html(decision, "use_known_share", format_share)
        quality = f"Data quality: good ({excluded} excluded, use known {known_share})", False
    if decision.left_out_share > MAX_EXCLUDED_SHARE:
        quality = f"Data quality: {excluded} of allocated GPU-hours excluded", True
    elif decision.action == "none":
        quality = "Data quality: no recommendation", True
    elif decision.telemetry_matched_gpu_hours == 0:
        quality = "Data quality: no telemetry matched to jobs", True
    worst_size = max(decision.service, key=lambda size: size.observed_p95_minutes - size.limit_minutes, default=None)
    if worst_size is None or worst_size.observed_p95_minutes <= worst_size.limit_minutes:
        return [quality]
    path = f"service.{decision.service.index(worst_size)}"
    wait, limit = (metric_html(decision, f"{path}.{name}_minutes", format_wait) for name in ("observed_p95", "limit"))
    return [(f"Waits: p95 {wait} on {escape_html(worst_size.size)} (limit {limit})", True), quality]


def describe_fleet(decision: Decision) -> str:
    """Describe the installed GPUs of a decision, such as ``64 × H100-80GB-SXM5``, for the line above the headline."""
    if not decision.fleet_gpus:
        return "fleet not known"
    gpus = f"× {decision.gpu_model}" if decision.gpu_model else "GPUs, model not known"
    return f"{decision.fleet_gpus:,} {gpus}{', inferred from jobs' if decision.fleet_inferred else ''}"


def _today_line(comparison: Comparison) -> str:
    """Render the observed utilization and waits in one line, with a bar of the causes of waiting.

    Where excluded GPU-hours prevent a recommendation, the bar shows the share of GPU-hours that could be resolved [%].
    """
    decision = comparison.decision
    if decision.action == "none" and decision.left_out_share > MAX_EXCLUDED_SHARE:
        resolved = round(100 * (1 - decision.left_out_share))
        bar = _cause_bar({"resolved": resolved, "not resolved": 100 - resolved}, {})
        return f'<div class="today"><p><b>Today</b> GPU-hours by whether they could be resolved:</p>{bar}</div>'
    figures = [
        (name, metric_html(decision, f"{SHARE_PREFIX}{path}", format_share))
        for name, path in (("allocated", "teams_allocated"), ("used", "all_busy"))
        if decision.teams
    ]
    if decision.longest_waiting is not None:
        path = f"service.{decision.service.index(decision.longest_waiting)}.observed_p95_minutes"
        name = f"p95 queue wait on {escape_html(decision.longest_waiting.size)}"
        figures.append((name, metric_html(decision, path, format_wait)))
    line = " · ".join(f"{name} {figure}" for name, figure in figures)
    percent_by_cause = {} if comparison.waits is None else comparison.waits.cause_percent
    if comparison.waits is not None and not percent_by_cause:
        line += f" · {escape_html(comparison.main_cause_text.rstrip('.').lower())}"
    bar = ""
    if percent_by_cause:
        words = "hours of waiting as recorded, by cause" if decision.demand_text else "hours of waiting by cause"
        line += f" · {metric_html(comparison, 'waiting')} {words}:"
        names = {cause: f"waiting.{cause}" for cause in percent_by_cause}
        shares = {cause: metric_html(comparison, name, format_whole_percent) for cause, name in names.items()}
        bar = _cause_bar(percent_by_cause, shares)
    # Waits beside services that are to come were not observed.
    label = "Observed" if comparison.inference is None else "Simulated with services"
    scaled = f"GPU-hours as recorded, waits of today’s fleet simulated at {decision.demand_text}:"
    label = scaled if decision.demand_text else label
    return f'<div class="today"><p><b>{label}</b> {line}</p>{bar}</div>' if line else ""


def _cause_bar(percent_by_cause: dict[str, int], figures: dict[str, str]) -> str:
    """Render percentages by cause as a bar with a list below; `figures` has the HTML of each percentage."""
    largest = max(percent_by_cause, key=lambda name: percent_by_cause[name])
    cells, names = [], []
    for name, percent in percent_by_cause.items():
        word, figure = name.replace("_", " "), figures.get(name, format_whole_percent(percent))
        is_open = name in ("unexplained", "not resolved")
        css_class = f"{'most ' if name == largest else ''}{'open' if is_open else ''}".strip()
        cells += [f'<span class="{css_class}" style="flex:{percent}"></span>'] if percent else []
        names.append(f"<b>{word} {figure}</b>" if name == largest else f"<span>{word} {figure}</span>")
    words = " · ".join(names)
    return f'<div class="causes" aria-hidden="true">{"".join(cells)}</div><p class="causes-list">{words}</p>'


Card = tuple[str, ...]
"""HTML of a card: label, value, and any number of details."""


def make_cards(comparison: Comparison) -> list[Card]:
    """Make the four cards: GPUs needed, queue wait, utilization and months until capacity is exhausted."""
    decision = comparison.decision
    rows = (_gpus_card(decision), _wait_card(decision), _utilization_card(decision), _exhaustion_card(comparison))
    return [(*row[:2], *(detail.removesuffix(".") for detail in row[2:] if detail)) for row in rows]


def _render_cards(comparison: Comparison, formula_anchors: Sequence[str]) -> str:
    """Render the cards as an HTML list, with links to their formulas."""
    rows = []
    for number, (label, value, *details) in enumerate(make_cards(comparison)):
        if formula_anchors:
            label = f'<a href="#{formula_anchors[number]}" title="How this number is computed">{label}</a>'
        small = f'<dd class="detail">{" · ".join(details)}</dd>' if details else ""
        kind = "" if number or comparison.decision.action == "none" else " class='first'"
        rows.append(f'<div{kind}><dt>{label}</dt><dd class="value">{value}</dd>{small}</div>')
    return f'<dl class="cards">{"".join(rows)}</dl>'


def _today_and_recommended(before: str, after: str) -> str:
    """Join HTML of a value today and as recommended with an arrow; only one value if both read the same."""
    is_unchanged = before.split(">", 1)[-1] == after.split(">", 1)[-1]
    return after if is_unchanged else f'<span class="before">{before} →</span> {after}'


def _gpus_card(decision: Decision) -> Card:
    """Make the card of the GPUs needed to meet the wait limit."""
    missed = [size.size for size in decision.service if not size.meets_limit]
    label = "GPUs recommended" if missed else "GPUs needed to meet the wait limit"
    if decision.action == "none":
        return (label, MISSING_VALUE_TEXT, escape_html(_no_answer_reason(decision)))
    value = _today_and_recommended(metric_html(decision, "fleet_gpus"), metric_html(decision, "gpus"))
    to_buy = f"{metric_html(decision, 'more_gpus')} to buy" if decision.gpus > decision.fleet_gpus else ""
    varies = round(decision.gpus_mean) != decision.gpus
    on_average = (
        f"{metric_html(decision, 'gpus_mean', lambda gpus: gpu_figure_text(float(gpus)))} on average" if varies else ""
    )
    freed = ""
    if decision.saving.value is not None:
        freed = f"capacity freed: {metric_html(decision, 'saving.value')} GPU-hours per week"
        if decision.saving.varies:
            freed += f" (90 % interval {metric_html(decision, 'saving.low')} to {metric_html(decision, 'saving.high')})"
    condition = "in the recorded period" + (" after the change" if decision.measures else "")
    verdict = f"not met on {escape_html(', '.join(missed))}" if missed else "met"
    risks = [
        escape_html(size.size) + ("" if size.rises_if_resampled else " (today too)")
        for size in decision.service
        if size.misses_if_resampled
    ]
    resampled = f"; missed in resampled weeks on {', '.join(risks)}" if risks else ""
    limits = f"wait limit {verdict} {condition}{resampled}" if decision.service else ""
    installed = f"{metric_html(decision, 'fleet_gpus')} installed"
    return (label, value, installed, limits, to_buy, on_average, freed)


def _wait_card(decision: Decision) -> Card:
    """Make the card of the p95 queue wait of the job size that improves most."""
    improved_size = decision.most_improved_size
    if improved_size is None:
        reason = "" if decision.action == "none" else "the simulation does not reproduce the recorded waits"
        return ("p95 queue wait", MISSING_VALUE_TEXT, escape_html(_to_sentence(reason or _no_answer_reason(decision))))

    def wait(size: JobSizeWaits, column: str) -> str:
        return metric_html(decision, f"service.{decision.service.index(size)}.{column}_minutes", format_wait)

    # Sizes that wait longest after the change come first, so that none over its limit is left out for one that is not.
    waits_shown = {size: (size.recommended_p95_minutes, size.observed_p95_minutes) for size in decision.service}
    other_sizes = [
        f"{escape_html(size.size)} {_today_and_recommended(wait(size, 'today_p95'), wait(size, 'recommended_p95'))}"
        for size in sorted(waits_shown, key=waits_shown.__getitem__, reverse=True)
        if size is not improved_size and max(waits_shown[size]) >= 1.0
    ]
    return (
        f"p95 queue wait, {escape_html(improved_size.size)}, simulated",
        _today_and_recommended(wait(improved_size, "today_p95"), wait(improved_size, "recommended_p95")),
        f"observed {wait(improved_size, 'observed_p95')}" if improved_size.replay_deviates else "",
        f"limit {wait(improved_size, 'limit')}", *other_sizes[:MAX_OTHER_SIZES],
        f"{metric_html(decision, 'delayed_share', format_share)} of jobs start later",
    )  # fmt: skip


_TODAY_AND_RECOMMENDED = ("today", "recommended")
"""Fleets whose mean queue waits a card shows, as the prefixes of fields such as ``today_mean_minutes``."""
MAX_OTHER_SIZES = 2
"""Maximum number of further job sizes on the card of the queue wait."""


def _utilization_card(decision: Decision) -> Card:
    """Make the card of the utilization of provisioned GPUs, or of the mean queue wait.

    The mean wait replaces utilization where it was not measured, or where rightsizing or repartitioning changes it.
    """
    label = "Utilization of provisioned GPUs"
    is_rightsized = any(step.action in PARTITION_ACTIONS for step in decision.measures)
    if decision.action == "none" or metric_value(decision, "busy_as_recommended") is None or is_rightsized:
        if not decision.service:
            has_telemetry = not decision.teams or metric_value(decision, "all_busy") is not None
            reason = _no_answer_reason(decision) if has_telemetry else "no telemetry"
            return (label, MISSING_VALUE_TEXT, escape_html(_to_sentence(reason)))
        waits = (metric_html(decision, f"{fleet}_mean_minutes", format_mean_wait) for fleet in _TODAY_AND_RECOMMENDED)
        return ("Mean queue wait, all jobs, simulated", _today_and_recommended(*waits), "mean over jobs of all sizes")
    names = (f"{SHARE_PREFIX}all_busy", "busy_as_recommended")
    shares = (metric_html(decision, name, format_share) for name in names)
    return (label, _today_and_recommended(*shares), "share of their GPU-hours that were used")


def _exhaustion_card(comparison: Comparison) -> Card:
    """Make the card of the months until the recommended GPUs are exhausted, or whether they miss the target already."""
    label, exhaustion, decision = "Months until capacity is exhausted", comparison.exhaustion, comparison.decision
    sizes_late, headroom_text = sizes_over_limit(decision), ""
    factor = None if comparison.headroom is None else comparison.headroom.factor
    if factor is not None:
        share = metric_html(comparison, "headroom_share", format_share)
        headroom_text = f"headroom {share}" if factor >= 1.005 else "no headroom"
    sizes_text = f"{len(sizes_late)} job sizes" if len(sizes_late) > MAX_OTHER_SIZES else ", ".join(sizes_late)
    missed_text = f"today over limit: {escape_html(sizes_text)}" if sizes_late else ""
    after = "after the change: " if sizes_late and decision.measures and headroom_text else ""
    if factor is not None and factor < 1.0:
        load = metric_html(comparison, "headroom.factor", format_share)
        return (label, "target missed", missed_text, f"{after}wait target met at {load} of today's load")
    value = MISSING_VALUE_TEXT if decision.action == "none" else "not known"
    if metric_value(comparison, "months_left") is not None:
        value = metric_html(comparison, "months_left", str)
    if exhaustion.date is None and exhaustion.probability is None:
        reason = escape_html(exhaustion.reason or _no_answer_reason(decision))
        return (label, value, missed_text, f"{after}{headroom_text}", f"date not known: {reason}")
    risk = metric_html(comparison, "exhaustion.probability", format_share) if exhaustion.probability else ""
    dates = ""
    if exhaustion.date is not None:
        days = (metric_html(comparison, f"exhaustion.{name}", format_day) for name in ("date", "order_by"))
        dates = ", order by ".join(days)
    return (label, value, dates, missed_text, risk and f"{risk} risk within a year", headroom_text)


_WAIT_CURVE_TEXT = "Gray today, blue recommended, dashed limit"
"""Legend of the chart of queue waits, which is also its text alternative."""
_BAND_TEXT = "Band: 80 % of resampled weeks, covered 60 to 67 % of true waits in tests; the line can lie outside."
"""Legend of the interval in the same chart, with its measured coverage."""


def wait_curve_figure(comparison: Comparison) -> str:
    """Render the chart of the queue wait [min] against the number of GPUs, with the limit of each job size."""
    decision, frame = comparison.decision, make_wait_curve_table(comparison)
    limits = make_wait_table(comparison).select("limit_minutes", job_size="size")
    gpu_counts = {"today": decision.fleet_gpus, "recommended": decision.gpus}
    labelled = frame.with_columns(job_size="p95, " + pl.col("job_size") + " [min]")
    numbers = labelled.pivot("job_size", index=("layout", "gpus"), values="p95_minutes", aggregate_function="first")
    never = ", triangles at the top edge: no start" if frame["p95_minutes"].null_count() else ""
    html = page.figure(
        plots.plot_wait_curve(frame, **gpu_counts, limits=limits),
        title="Queue wait by number of GPUs",
        alt=f"{_WAIT_CURVE_TEXT}{never}. {_BAND_TEXT}",
        numbers=numbers,
        formats=dict.fromkeys(numbers.columns[2:], ",.1f"),
    )
    return html.replace(f'<td class="number">{MISSING_VALUE_TEXT}</td>', '<td class="number">no start</td>')


def _wait_curve_or_peaks(comparison: Comparison, peaks: pl.DataFrame | None) -> str:
    """Render the wait curve; without one, the peak allocation of each day."""
    decision = comparison.decision
    if comparison.wait_curve:
        return wait_curve_figure(comparison)
    if peaks is None or peaks.is_empty() or not decision.fleet_gpus:
        return ""
    return peaks_figure(peaks, gpus=decision.fleet_gpus, is_counted=not decision.fleet_inferred)


def peaks_figure(peaks: pl.DataFrame, *, gpus: int, is_counted: bool) -> str:
    """Render the chart of the GPUs allocated in the busiest hour of each day.

    Parameters
    ----------
    peaks : polars.DataFrame
        ``day, gpus``.
    gpus : int
        Installed GPUs.
    is_counted : bool
        Whether the installed GPUs come from a node list; if not, they are inferred from jobs.
    """
    return page.figure(
        plots.plot_peaks(peaks, gpus=gpus, is_counted=is_counted),
        title="GPUs allocated in the busiest hour of each day",
        alt=plots.peaks_text(peaks),
        numbers=peaks,
    )


_TEAM_TABLE_HEADINGS_HTML = (
    '<th scope="col" rowspan="2">team</th><th scope="col" class="number" rowspan="2">jobs</th>'
    '<th scope="col" class="number" rowspan="2">GPU-hours</th>'
    '<th scope="col" class="number" rowspan="2">% of<br>installed</th>'
    '<th scope="col" class="number" rowspan="2">allocated but<br>idle, GPU-hours</th>'
)
"""HTML of the headings of the table by team, without queue waits."""
_TEAM_WAIT_HEADINGS_HTML = (
    '<th scope="colgroup" class="number" colspan="2">simulated mean wait</th></tr>'
    '<tr><th scope="col" class="number">today</th><th scope="col" class="number">recommended</th></tr>'
)
"""HTML of the headings of queue waits in the table by team."""


def _team_table(decision: Decision, period: str) -> str:
    """Render GPU-hours and queue waits by team, with the unallocated GPU-hours and the total.

    Figures that were not measured are dashes; without a simulation there are no columns of waits.
    """
    if not decision.teams:
        return ""
    has_waits = decision.today_mean_minutes is not None
    positions = [position for position, row in enumerate(decision.teams) if row.team != UNALLOCATED_TEAM]
    rows = [(decision.teams[position].team, f"teams.{position}", "") for position in positions[:MAX_NAMED_TEAMS]]
    if len(positions) > MAX_NAMED_TEAMS:
        rows.append((f"{len(positions) - MAX_NAMED_TEAMS:,} other teams", "other", ""))
    unallocated = [position for position, row in enumerate(decision.teams) if row.team == UNALLOCATED_TEAM]
    rows += [(UNALLOCATED_LABEL, f"teams.{position}", "unallocated") for position in unallocated]
    body = "".join(_team_row(decision, *row, has_waits=has_waits) for row in [*rows, ("Total", "all", "all")])
    has_gaps = any(row.idle_gpu_hours is None for row in decision.teams)
    scaled = f"jobs and GPU-hours as recorded, waits at {decision.demand_text}" if decision.demand_text else ""
    notes = "; ".join(filter(None, (period, scaled, f"{MISSING_VALUE_TEXT} is not measured" if has_gaps else "")))
    heading_note = f' <span class="about">{escape_html(notes)}</span>' if notes else ""
    return (
        f"<h3>By team{heading_note}</h3>"
        '<div class="scroll" tabindex="0" role="region" aria-label="By team"><table class="teams">'
        f"<thead><tr>{_TEAM_TABLE_HEADINGS_HTML}{_TEAM_WAIT_HEADINGS_HTML if has_waits else '</tr>'}</thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


TEAM_TABLE_HEADINGS = (
    "team", "jobs", "GPU-hours", "allocated but idle, GPU-hours", "simulated mean queue wait today",
    "simulated mean queue wait recommended",
)  # fmt: skip
"""Columns of :func:`teams_table`."""


def teams_table(decision: Decision) -> pl.DataFrame:
    """Tabulate jobs, GPU-hours and waits by team as formatted text; empty if no team is known."""

    def wait(value: float | None) -> str:
        return MISSING_VALUE_TEXT if value is None else format_mean_wait(value)

    rows = []
    for row in decision.teams:
        is_unallocated = row.team == UNALLOCATED_TEAM
        idle = MISSING_VALUE_TEXT if row.idle_gpu_hours is None else format_count(row.idle_gpu_hours)
        figures = (format_count(row.jobs), format_count(row.allocated_gpu_hours), idle)
        waits = (wait(row.today_mean_minutes), wait(row.recommended_mean_minutes))
        rows.append((UNALLOCATED_LABEL, "", figures[1], "", "", "") if is_unallocated else (row.team, *figures, *waits))
    return pl.DataFrame(rows, schema=dict.fromkeys(TEAM_TABLE_HEADINGS, pl.String), orient="row")


def _team_row(decision: Decision, name: str, path: str, kind: str, *, has_waits: bool) -> str:
    """Render one row of the table by team.

    Parameters
    ----------
    decision : Decision
        Decision with the figures.
    name : str
        Heading of the row.
    path : str
        Start of the names of the numbers in :data:`DECISION_METRICS`: ``teams.N``, ``other`` or ``all``.
    kind : str
        CSS class of the row; ``unallocated`` leaves out jobs, idle GPU-hours and waits.
    has_waits : bool
        Whether the table has columns of waits.
    """
    names = {field: f"{path}_{field}" for field in ("jobs", "allocated", "idle")}
    if path.startswith("teams."):
        columns = ("jobs", "allocated_gpu_hours", "idle_gpu_hours")
        names = {field: f"{path}.{column}" for field, column in zip(names, columns, strict=True)}
    fleets = _TODAY_AND_RECOMMENDED if has_waits else ()
    mean = [f"{path}.{fleet}_mean_minutes" if "." in path else f"{fleet}_mean_minutes" for fleet in fleets]
    is_unallocated = kind == "unallocated"
    cells = (
        "" if is_unallocated else metric_html(decision, names["jobs"]),
        metric_html(decision, names["allocated"]),
        metric_html(decision, SHARE_PREFIX + names["allocated"], format_tenth_percent),
        "" if is_unallocated else metric_html(decision, names["idle"]),
        *("" if is_unallocated or path == "other" else metric_html(decision, wait, format_mean_wait) for wait in mean),
    )
    row = "".join(f'<td class="number">{cell}</td>' for cell in cells)
    return f'<tr{kind and f" class={kind!r}"}><th scope="row">{escape_html(name)}</th>{row}</tr>'


def next_step_texts(decision: Decision, links: Links = ()) -> list[str]:
    """List the next steps as plain text; a command ends its line, so that it can be copied."""
    steps = steps_with_bundle(decision, links)
    return [f"{step.text[:1].upper()}{step.text[1:]}{'' if step.command else '.'}" for step in steps]


def steps_with_bundle(decision: Decision, links: Links) -> list[NextStep]:
    """List the next steps; where a change bundle is linked, its README replaces the command that exports one."""
    if BUNDLE_LINK not in links:
        return list(decision.next_steps)
    readme = "apply the change bundle, open export/README.md"
    exports = {step for step in decision.next_steps if (step.command or "").startswith(EXPORT_COMMAND)}
    applied = {step: replace(step, what=f"{readme}: {step.what}", command=None) for step in exports}
    return [applied.get(step, step) for step in decision.next_steps]


def _render_next_steps(decision: Decision, links: Links) -> str:
    """Render the next steps as a numbered list."""
    steps = "".join(f"<li>{_render_step(step)}</li>" for step in steps_with_bundle(decision, links))
    body = f'<ol class="steps">{steps}</ol>' if steps else '<p class="about">First add the missing data.</p>'
    return f"<h3>Next steps</h3>{body}"


def _render_missing_data(decision: Decision) -> str:
    """Render missing data with the command that adds each, largest effect first."""
    if not decision.missing:
        return ""
    texts = [(escape_html(_to_sentence(fact.what)), escape_html(fact.command)) for fact in decision.missing]
    rows = "".join(f"<li><span>{text}</span><code>{command}</code></li>" for text, command in texts)
    return f'<div id="missing"><h3>Missing data</h3><ol class="missing">{rows}</ol></div>'


def _render_facts(decision: Decision, doubts: Sequence[str], links: Links) -> str:
    """Render confidence, financial impact, assumptions, cautions and downloads."""
    rows = [(name, escape_html(text)) for name, text in confidence_rows(decision, doubts)]
    downloads = "".join(f'<a href="{escape_html(path)}">{escape_html(name)}</a> ' for name, path in links)
    rows += [("Download", downloads)] if downloads else []
    body = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in rows)
    return f'<dl class="facts">{body}</dl>' if rows else ""


def confidence_rows(decision: Decision, doubts: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield confidence, financial impact, assumptions and cautions of a decision as pairs of name and text."""
    if decision.confidence:
        yield "Confidence", " ".join(decision.confidence)
    if decision.action != "none" and decision.financial_impact.basis:
        yield "Financial impact", decision.financial_impact.basis.replace("\n", " ")
    if decision.assumptions and decision.action != "none":
        yield "Assumptions", format_assumptions(decision)
    if doubts:
        yield "Caution", " ".join(doubts)


def format_assumptions(decision: Decision) -> str:
    """Format ownership and the other assumptions of a decision, each with its option."""
    owner = f"ownership of the GPUs: {decision.financial_impact.ownership} (--set ownership=…)"
    return " · ".join((owner, *decision.assumptions))


def _render_step(step: NextStep) -> str:
    """Render a next step: who does it, what to do and the command."""
    command = f" <code>{escape_html(step.command)}</code>" if step.command else ""
    return f"<b>{escape_html(_to_sentence(step.who).rstrip('.'))}:</b> {escape_html(step.what)}{command}"


def _to_sentence(text: str) -> str:
    """Capitalize a text and end it with a full stop."""
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if not text or text.endswith(('.', ':', '?')) else '.'}"


def _no_answer_reason(decision: Decision) -> str:
    """Return the reason why a number of the decision is not known, as a sentence."""
    return _to_sentence(decision.reason or decision.saving.reason or "nothing was simulated")
