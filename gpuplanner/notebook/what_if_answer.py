"""Answer of the what-if panel as HTML: headline, four numbers, wait curve and policies of a fleet."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import pairwise
from pathlib import Path

import numpy as np

from gpuplanner.core.errors import GpuPlannerError, first_error_line
from gpuplanner.core.scenario import RECOMMENDED, Scenario
from gpuplanner.core.setting_rules_and_controls import PARTITIONER_BY_ACTUATOR
from gpuplanner.core.units_and_number_formats import HOURS_PER_WEEK, MISSING_VALUE_TEXT, figure_text, wait_text
from gpuplanner.cost.period_costs import find_price
from gpuplanner.decision.comparison_record import Comparison, PolicyRow, compare_policies
from gpuplanner.decision.decision_types import FEWER_NODES, TODAY, CurvePoint, JobSizeWaits
from gpuplanner.decision.fleet_size_decision import find_wait_limit, format_missed_limits
from gpuplanner.decision.policy_comparison import EXCLUSION_REASON_BY_POLICY, POLICIES, SHORT_NAMES
from gpuplanner.decision.policy_simulation import PolicyRun
from gpuplanner.decision.recommendation import read_wait_target
from gpuplanner.hardware.actuators import find_abilities
from gpuplanner.report.number_formats_and_glossary import metric_value
from gpuplanner.usage.grouped_usage import group_waits
from gpuplanner.usage.planning_history import history
from gpuplanner.usage.study_fleet import PlannedFleet

PENDING = "…"
"""Text of a value that only an exact answer gives."""
MAX_PANELS = 3
"""Maximum number of job sizes of the wait curve: those that wait longest today."""
SVG_WIDTH, PANEL_TOP, PANEL_HEIGHT, AXIS_WIDTH = 620, 18, 130, 52
"""Sizes of the wait curve [px]."""
WAIT_TICKS = {1.0: "≤ 1 min", 10.0: "10 min", 60.0: "1 h", 360.0: "6 h", 1440.0: "1 d"}
"""Labelled waits of the axis [min]."""
MAX_DRAWN_MINUTES = 2880.0
"""Upper end of the wait axis [min]."""
MIN_LABEL_DISTANCE = 24
"""Smallest distance between two labels of the axis of GPUs [px]."""
DRAWN_RANGE = (0.5, 1.5)
"""Drawn fleet sizes, over the fleet of today."""
MAX_LOOK_AHEAD_JOBS = 50_000
"""Largest number of jobs with which the policies of other actuators are simulated without being asked for."""


def style_html() -> str:
    """Read the style sheet of the panel as a style element."""
    return f"<style>{Path(__file__).with_suffix('').with_name('what_if.css').read_text('utf-8')}</style>"


@dataclass(frozen=True, eq=False)
class PanelAnswer:
    """Answer that the what-if panel shows for a scenario.

    - ``scenario``: Settings of the controls.
    - ``comparison``: Policies and decision; of an estimate those of the start.
    - ``start``: Comparison without a stated fleet at the same demand, with the wait curve and today's waits; of an
      estimate at another demand than the newest answer, still the one at the demand before.
    - ``waits``: p95 queue wait by job size [min]; None: not known yet.
    - ``is_exact``: Whether everything was simulated.
    - ``has_exact_waits``: Whether at least the waits on the fleet, and today's at this demand, were.
    - ``other_rows``: Rows of policies that another actuator can apply, by policy.
    """

    scenario: Scenario
    comparison: Comparison
    start: Comparison
    waits: Mapping[str, float | None]
    is_exact: bool = True
    has_exact_waits: bool = True
    other_rows: Mapping[str, PolicyRow] = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        """GPUs of the fleet."""
        return self.comparison.decision.gpus if self.scenario.gpus is None else self.scenario.gpus

    @property
    def approx(self) -> str:
        """Mark of waits that are estimates."""
        return "" if self.has_exact_waits else "≈ "

    @property
    def service(self) -> list[JobSizeWaits]:
        """Waits by job size where they are known, with the limits of the scenario."""
        target = read_wait_target(self.scenario)
        return [
            replace(row, recommended_p95_minutes=wait, limit_minutes=find_wait_limit(row.today_p95_minutes, target))
            for row in self.start.decision.service
            if (wait := self.waits.get(row.size)) is not None
        ]

    @property
    def sizes_over_limit(self) -> list[JobSizeWaits]:
        """Job sizes that miss their wait limit, the one that misses it by most first."""
        rows = [row for row in self.service if not row.meets_limit]
        return sorted(rows, key=lambda row: row.limit_minutes - row.recommended_p95_minutes)

    @property
    def missed_text(self) -> str:
        """Names of the job sizes that miss their wait limit, in the order of the table."""
        return ", ".join(row.size for row in self.service if not row.meets_limit)

    @property
    def shown_size(self) -> JobSizeWaits | None:
        """Job size on the card: the one that misses its limit by most, else the one that improves most."""
        most_improved = min(self.service, key=lambda row: row.added_p95_minutes, default=None)
        return next(iter(self.sizes_over_limit), most_improved)


def recorded_waits_html(scenario: Scenario) -> str:
    """Render the recorded queue waits by job size, which the panel shows until its first answer is simulated."""
    waits = group_waits(history(scenario).trace, "job_size", percentile=0.95).drop_nulls("p95_wait_minutes")
    rows = "".join(
        f"<tr><th scope='row'>{escape(size)}</th><td>{jobs:,}</td><td>{wait_text(p95)}</td><td><div "
        f"style='width: {1 - (_y(p95) - PANEL_TOP) / PANEL_HEIGHT:.0%}; height: 12px; background: var(--mark)'></div>"
        for size, jobs, p95 in waits.select("job_size", "jobs", "p95_wait_minutes").iter_rows()
    )
    head = "<th>jobs on</th><th>jobs</th><th>p95 wait</th><th style='width: 60%'>up to 2 days, logarithmic</th>"
    title = "Recorded queue wait by job size <small>until the start; the recommendation follows</small>"
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<div class='gpuplanner-what-if'><h3>{title}</h3>{table}</div>"


def exact_answer(scenario: Scenario, comparison: Comparison, start_comparison: Comparison) -> PanelAnswer:
    """Make the answer of a comparison."""
    waits = {row.size: row.recommended_p95_minutes for row in comparison.decision.service}
    return PanelAnswer(scenario, comparison, start_comparison, waits)


def answer_waits(
    scenario: Scenario, waits: Mapping[str, tuple[float, float]], earlier_comparison: Comparison
) -> PanelAnswer:
    """Make the answer of simulated waits at another demand, before curve, recommendation and policies are known.

    Parameters
    ----------
    scenario : Scenario
        Settings of the controls.
    waits : mapping of str to tuple of float
        p95 queue wait today and on the fleet at the demand of the scenario, by job size [min].
    earlier_comparison : Comparison
        Comparison at another demand, whose fleet of today is the same.
    """
    decision, service = earlier_comparison.decision, []
    for row in (row for row in decision.service if row.size in waits):
        today, stated = waits[row.size]
        service.append(replace(row, today_p95_minutes=today, recommended_p95_minutes=stated))
    decision = replace(decision, service=tuple(service), arrival_scale=scenario.arrival_scale)
    without_curve = replace(earlier_comparison, decision=decision, wait_curve=())
    return replace(exact_answer(scenario, without_curve, without_curve), is_exact=False)


def estimate_answer(scenario: Scenario, start_comparison: Comparison) -> PanelAnswer:
    """Estimate the answer for other settings from the wait curve of a comparison.

    Waits at another demand, and outside the simulated fleet sizes, stay unknown: waits grow too fast with the load.
    """
    estimate = PanelAnswer(scenario, start_comparison, start_comparison, {}, is_exact=False, has_exact_waits=False)
    if scenario.arrival_scale != start_comparison.decision.arrival_scale:
        return estimate
    layouts = {point.layout for point in start_comparison.wait_curve}
    layout = scenario.mig_layout if scenario.mig_layout in layouts else TODAY
    waits = {size: _read_curve(points, estimate.gpus) for size, points in _curves(start_comparison, layout).items()}
    return replace(estimate, waits=waits)


def _curves(comparison: Comparison, layout: str) -> dict[str, list[CurvePoint]]:
    """Group the points of the wait curve of a layout by job size, fewest GPUs first."""
    curves: dict[str, list[CurvePoint]] = {}
    for point in sorted(comparison.wait_curve, key=lambda point: point.gpus):
        if point.layout == layout:
            curves.setdefault(point.job_size, []).append(point)
    return curves


def _read_curve(points: list[CurvePoint], gpus: float) -> float | None:
    """Interpolate the logarithm of the p95 wait at a number of GPUs [min]; None outside the simulated fleets."""
    waits = {point.gpus: math.log1p(point.p95_minutes) for point in points if point.p95_minutes is not None}
    if not min(waits, default=math.inf) <= gpus <= max(waits, default=0):
        return None
    return float(np.expm1(np.interp(gpus, [*waits], [*waits.values()])))


def answer_html(answer: PanelAnswer) -> str:
    """Render an answer as HTML; the panel holds its style sheet."""
    decision = answer.comparison.decision
    if not (answer.start.wait_curve or answer.waits):
        missing = "".join(
            f"<li>{escape(fact.what)} <code>{escape(fact.command)}</code></li>" for fact in decision.missing
        )
        body = f"<h2>{escape(decision.sentence)}</h2><ol>{missing}</ol>"
        return f"<div class='gpuplanner-what-if'>{body}</div>"
    state = "gw-exact" if answer.has_exact_waits else "gw-estimate"
    first, second = map(escape, headline(answer))
    return (
        f"<div class='gpuplanner-what-if'><div class='{state}'>"
        f"<h2>{answer.approx}{first}<span>{second}</span></h2>"
        f"<div class='gw-cards'>{''.join(_cards_html(answer))}</div>{wait_curve_svg(answer)}{_policies_html(answer)}"
        "</div></div>"
    )


def headline(answer: PanelAnswer) -> tuple[str, str]:
    """Return the two lines of the headline: what the fleet is or misses, and its waits."""
    text, shown = answer.comparison.decision.sentence, answer.shown_size
    if not answer.is_exact:
        if shown is None:
            return f"{answer.gpus:,} GPUs …", "No estimate for this demand or fleet: the exact answer follows."
        wait = f"{wait_text(shown.recommended_p95_minutes)}, limit {wait_text(shown.limit_minutes)}"
        text = format_missed_limits(answer.gpus, answer.service, answer.start.wait_curve, answer.scenario.mig_layout)
        text = text or f"{answer.gpus:,} GPUs meet the wait limits. p95 queue wait on {shown.size}: {wait}."
    first, _, second = text.partition(". ")
    return f"{first.rstrip('.')}.", second and f"{answer.approx}{second}"


def _cards_html(answer: PanelAnswer) -> Iterator[str]:
    """Yield the four cards: GPUs, p95 wait, capacity cost and months to exhaustion, each today and on the fleet."""
    decision, gpus = answer.comparison.decision, answer.gpus
    fleet_gpus, approx = decision.fleet_gpus, answer.approx
    mean_gpus = decision.gpus_mean if answer.is_exact else float(gpus)
    hours = (mean_gpus - fleet_gpus) * HOURS_PER_WEEK
    note = f"{hours:+,.0f} GPU-h/week" if hours else "unchanged"
    enough = answer.start.decision.gpus
    is_enough = bool(answer.start.wait_curve) and all(row.meets_limit for row in answer.start.decision.service)
    if is_enough and answer.sizes_over_limit and enough > gpus:
        condition = " if repartitioned" if answer.scenario.mig_layout == TODAY else ""
        note += f" · {enough:,} meet the limits{condition}"
    if answer.sizes_over_limit and (enough := find_fewest_gpus_today(answer)) > gpus:
        note += f" · ≤ {enough:,} meet them with today’s layout"
    yield _card("GPUs at peak", f"{fleet_gpus:,}", f"{gpus:,}", note)

    size = answer.shown_size
    if size is None:
        yield _card("p95 wait", MISSING_VALUE_TEXT, PENDING, "", approx=bool(approx))
    else:
        other_sizes = (row for row in answer.service if row.size in drawn_sizes(answer) and row.size != size.size)
        note = " · ".join(f"{row.size}: {wait_text(row.recommended_p95_minutes)}" for row in other_sizes)
        note = f"{approx}{note}" if note else ""
        if size.replay_deviates and answer.scenario.arrival_scale == decision.arrival_scale == 1.0:
            note = f"observed {wait_text(size.observed_p95_minutes)} · {note}"
        after = approx + wait_text(size.recommended_p95_minutes)
        today = wait_text(size.today_p95_minutes)
        yield _card(f"p95 wait, {size.size}", today, after, note, approx=bool(approx))

    price = find_price(answer.scenario, history(answer.scenario).fleet)
    if price is None:
        yield _card("Capacity cost per week", MISSING_VALUE_TEXT, MISSING_VALUE_TEXT, "state a GPU price")
    else:
        before, after_cost = (count * HOURS_PER_WEEK * price.value for count in (fleet_gpus, mean_gpus))
        spend = {None: "at this price", 0.0: "spend unchanged"}.get(
            decision.financial_impact.usd_per_week, "spend falls"
        )
        spend = "at this price" if after_cost > before else spend
        note = f"{after_cost - before:+,.0f}, {spend}" if after_cost != before else "unchanged"
        yield _card(f"Capacity cost, {price.currency}/week", f"{before:,.0f}", f"{after_cost:,.0f}", note)

    months, today_months = (metric_value(answer.comparison, name) for name in ("months_left", "months_left_today"))
    reason = answer.comparison.exhaustion.reason or ""
    if not answer.is_exact:
        months, reason = PENDING, "exact only: simulated next"
    if today_months is not None and months is None:  # a number today, and none after it, reads as an error
        reason = f"today {today_months}: a limit is missed · {reason}"
        today_months = None
    today, months_text = ("not known" if value is None else str(value) for value in (today_months, months))
    yield _card("Months to exhaustion", today, months_text, reason, approx=not answer.is_exact)


def _card(label: str, before: str, after: str, note: str, *, approx: bool = False) -> str:
    """Render a card: label, value today and on the fleet, and a note.

    Parameters
    ----------
    label, before, after, note : str
        Plain texts.
    approx : bool
        Draw the value in grey.
    """
    kind = " class='first'" if label == "GPUs at peak" else ""
    style = " class='gw-approx'" if approx else ""
    change = f"{escape(before)} → " if before != after.removeprefix("≈ ") else ""
    value = f"<div class='value'>{change}<b{style}>{escape(after)}</b></div>"
    label_html, note_html = (f"<div class='small'>{escape(text)}</div>" for text in (label, note))
    return f"<div{kind}>{label_html}{value}{note_html}</div>"


def find_fewest_gpus_today(answer: PanelAnswer) -> int:
    """Find the fewest GPUs of the curve with which today's layout meets all limits; 0 if none do, or it is kept."""
    if not _curves(answer.start, RECOMMENDED):
        return 0
    limits = {row.size: row.limit_minutes for row in answer.service}
    points = [point for point in answer.start.wait_curve if point.layout == TODAY and point.job_size in limits]
    too_few = max((point.gpus for point in points if point.exceeds(limits[point.job_size])), default=0)
    return min((point.gpus for point in points if point.gpus > too_few), default=0)


def drawn_sizes(answer: PanelAnswer) -> list[str]:
    """List the job sizes of the wait curve: those that miss their limit by most, then those that wait longest today."""
    rows = answer.start.decision.service
    longest = sorted(rows, key=lambda row: (-row.today_p95_minutes, -row.jobs))
    sizes = list(dict.fromkeys(row.size for row in (*answer.sizes_over_limit, *longest)))[:MAX_PANELS]
    return [row.size for row in rows if row.size in sizes]


def wait_curve_svg(answer: PanelAnswer) -> str:
    """Draw the wait curve: a panel for each job size, with the fleet of today, the recommended and the chosen one."""
    start, sizes = answer.start, drawn_sizes(answer)
    if not sizes:
        return "<p>Waits by job size are not shown: the simulation does not reproduce the recorded waits.</p>"
    width = (SVG_WIDTH - AXIS_WIDTH) / len(sizes)
    axis_y = PANEL_TOP + PANEL_HEIGHT + 17
    ticks = "".join(
        f"<text x='{AXIS_WIDTH - 6}' y='{_y(minutes) + 4:.1f}' text-anchor='end'>{label}</text>"
        for minutes, label in WAIT_TICKS.items()
    )
    rows = {row.size: row for row in answer.service} | {
        row.size: row for row in start.decision.service if row.size not in answer.waits
    }
    panels = "".join(
        _panel_svg(answer, rows[size], AXIS_WIDTH + index * width, width - 14)
        for index, size in enumerate(sizes)
        if size in rows
    )
    height = PANEL_TOP + PANEL_HEIGHT + 22
    has_layout = any(point.layout != TODAY for point in start.wait_curve)
    words = "grey: today’s layout, blue: recommended" if has_layout else "today’s layout"
    words = words if start.wait_curve else "the curve is simulated next"
    is_old = answer.start.decision.arrival_scale != answer.scenario.arrival_scale
    demand = f"{_demand_text(answer)}, before this change" if is_old else _demand_text(answer)
    waits = "; ".join(f"{row.size}: {wait_text(row.recommended_p95_minutes)}" for row in answer.service)
    label = escape(f"p95 wait on {answer.gpus} GPUs. {waits}", quote=True)
    return (
        f"<h3>Queue wait by number of GPUs <small>p95, 80 % interval; {words}{demand}</small></h3>"
        f"<svg viewBox='0 0 {SVG_WIDTH} {height}' role='img' aria-label='{label}'>"
        f"{ticks}<text x='{AXIS_WIDTH - 6}' y='{axis_y}' text-anchor='end'>GPUs</text>"
        f"<g opacity='{0.35 if is_old else 1}'>{panels}</g></svg>"
    )


def _demand_text(answer: PanelAnswer) -> str:
    """Format the demand of curve and policies for the end of a heading; empty if all is at the recorded demand."""
    scale = answer.start.decision.arrival_scale
    return "" if scale == answer.scenario.arrival_scale == 1.0 else f", demand × {scale:.2f}"


def _y(minutes: float | None) -> float:
    """Return the vertical position of a wait [px]; waits below a minute lie on the axis, None (no start) at the top."""
    drawn = MAX_DRAWN_MINUTES if minutes is None else min(max(minutes, 1.0), MAX_DRAWN_MINUTES)
    share = math.log(drawn) / math.log(MAX_DRAWN_MINUTES)
    return PANEL_TOP + PANEL_HEIGHT * (1 - share)


def _panel_svg(answer: PanelAnswer, size_waits: JobSizeWaits, left: float, width: float) -> str:
    """Draw the panel of a job size.

    Parameters
    ----------
    answer : PanelAnswer
        Answer with the wait curve.
    size_waits : JobSizeWaits
        Waits of the job size.
    left, width : float
        Position and width. [px]
    """
    decision, bottom = answer.start.decision, PANEL_TOP + PANEL_HEIGHT
    low, high = (share * decision.fleet_gpus for share in DRAWN_RANGE)
    low, high = min(low, decision.gpus, answer.gpus), max(high, decision.gpus, answer.gpus)

    def x(gpus: float) -> float:
        return left + width * (gpus - low) / max(high - low, 1)

    def mark(gpus: float, minutes: float | None, radius: float, style: str) -> str:
        return f"<circle cx='{x(gpus):.1f}' cy='{_y(minutes):.1f}' r='{radius}' {style}/>"

    parts = [
        f"<line x1='{left}' x2='{left + width}' y1='{_y(minutes):.1f}' y2='{_y(minutes):.1f}' stroke='var(--line)'/>"
        for minutes in WAIT_TICKS
    ]
    layouts = {point.layout for point in answer.start.wait_curve}
    for layout in sorted(layouts, key=lambda name: name != TODAY):
        points = [
            point for point in _curves(answer.start, layout).get(size_waits.size, []) if low <= point.gpus <= high
        ]
        is_accent = layout != TODAY or len(layouts) == 1
        colour = "var(--mark)" if is_accent else "var(--grey)"
        if is_accent:
            band = [(point.gpus, point.high) for point in points] + [
                (point.gpus, point.low) for point in reversed(points)
            ]
            corners = " ".join(f"{x(gpus):.1f},{_y(wait):.1f}" for gpus, wait in band)
            parts.append(f"<polygon points='{corners}' fill='var(--tint)'/>")
        # A part of the line above the drawn waits is left out: the queue never empties there.
        parts += [
            f"<line x1='{x(left_point.gpus):.1f}' y1='{_y(left_point.p95_minutes):.1f}' x2='{x(right_point.gpus):.1f}' "
            f"y2='{_y(right_point.p95_minutes):.1f}' stroke='{colour}' stroke-width='{2.5 if is_accent else 1.2}'/>"
            for left_point, right_point in pairwise(points)
            if max(_y(left_point.p95_minutes), _y(right_point.p95_minutes)) > _y(None)
        ]
        parts += [mark(point.gpus, point.p95_minutes, 1.6, f"fill='{colour}'") for point in points]
    limit_y = _y(size_waits.limit_minutes)
    parts.append(  # over the curves, which the outline of the text interrupts
        f"<line x1='{left}' x2='{left + width}' y1='{limit_y:.1f}' y2='{limit_y:.1f}' stroke='var(--ink)' "
        f"stroke-dasharray='4 3'/><text x='{left + width}' y='{limit_y - 4:.1f}' text-anchor='end' class='halo'>"
        f"limit {wait_text(size_waits.limit_minutes)}</text>"
    )
    ring = "fill='var(--paper)' stroke='var(--grey)' stroke-width='1.8'"
    parts.append(mark(decision.fleet_gpus, size_waits.today_p95_minutes, 4.5, ring))
    recommended = next((waits for waits in decision.service if waits.size == size_waits.size), None)
    if recommended is not None and answer.start.wait_curve:
        parts.append(mark(decision.gpus, recommended.recommended_p95_minutes, 4.5, "fill='var(--mark)'"))
    minutes = answer.waits.get(size_waits.size)
    stroke = "var(--ink)" if answer.has_exact_waits else "var(--grey)"
    parts.append(
        f"<line x1='{x(answer.gpus):.1f}' x2='{x(answer.gpus):.1f}' y1='{PANEL_TOP}' y2='{bottom}' stroke='{stroke}'/>"
    )
    if minutes is not None:
        fill = stroke if answer.has_exact_waits else "var(--paper)"
        parts.append(mark(answer.gpus, minutes, 6, f"fill='{fill}' stroke='{stroke}' stroke-width='2.2'"))
    kind = "strong" if answer.has_exact_waits else ""
    value = PENDING if minutes is None else answer.approx + wait_text(minutes)
    parts.append(f"<text x='{left}' y='11' class='strong'>{escape(size_waits.size)}</text>")
    parts.append(f"<text x='{left + width}' y='11' text-anchor='end' class='{kind}'>{answer.gpus}: {value}</text>")
    taken: list[float] = []
    labels = {round(low): ("", "start"), round(high): ("", "end"), decision.fleet_gpus: ("", "middle")}
    labels |= {decision.gpus: ("chosen", "middle")} if answer.start.wait_curve else {}
    for gpus, (kind, anchor) in reversed(labels.items()):
        if all(abs(x(gpus) - label_x) > MIN_LABEL_DISTANCE for label_x in taken):
            taken.append(x(gpus))
            position = f"x='{x(gpus):.1f}' y='{bottom + 17}' text-anchor='{anchor}'"
            parts.append(f"<text {position} class='{kind}'>{gpus}</text>")
    return "".join(parts)


def _policies_html(answer: PanelAnswer) -> str:
    """Render all policies: GPUs, GPU-hours, added wait, and whether they meet the limit or what they need."""
    if not answer.comparison.wait_curve:
        return f"<h3>Policies <small>{PENDING} simulated next{_demand_text(answer)}</small></h3>"
    scenario, comparison, rows = answer.scenario, answer.comparison, list(answer.comparison.rows)
    shown = comparison.find_row(comparison.recommended_policy) if answer.is_exact else _estimated_row(answer)
    if shown is not None and not answer.is_exact:
        numbers = [number for number, row in enumerate(rows) if row.policy == shown.policy]
        rows[slice(numbers[0], numbers[0] + 1) if numbers else slice(0, 0)] = [shown]
    fleet = history(scenario).fleet
    body = "".join(_policy_row(answer, row, fleet, is_shown=row is shown) for row in rows)
    lacks = any(not row.performable for row in rows)
    note = f"grey: {escape(scenario.actuator)} cannot apply it" if lacks else ""
    note = f"{note}{_demand_text(answer)}".removeprefix(", ")
    head = "".join(
        f"<th scope='col'>{text}</th>"
        for text in ("policy", "GPUs at peak", "GPU-h/week", "added wait, p95", "meets limit / needs")
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div class='gw-policies'><h3>Policies <small>{note}</small></h3>{table}</div>"


def _estimated_row(answer: PanelAnswer) -> PolicyRow:
    """Make the row of the fleet of an estimate, all nodes powered on."""
    fleet_gpus, policy = answer.start.decision.fleet_gpus, answer.start.winner
    if policy not in EXCLUSION_REASON_BY_POLICY or answer.scenario.mig_layout == TODAY:
        policy = TODAY if answer.gpus == fleet_gpus else FEWER_NODES if answer.gpus < fleet_gpus else "buy"
    missed = f"{answer.missed_text} over the wait limit" if answer.missed_text else None
    added = max((row.added_p95_minutes for row in answer.service), default=0.0)
    return PolicyRow(
        policy, "", gpu_hours_promised=float(answer.gpus * HOURS_PER_WEEK), peak_gpus=answer.gpus, meets_target=True,
        added_wait_p95_minutes=max(added, 0.0), reason=missed,
    )  # fmt: skip


def _policy_row(answer: PanelAnswer, row: PolicyRow, fleet: PlannedFleet, *, is_shown: bool) -> str:
    """Render the row of a policy; that of the fleet of the headline is marked."""
    figures, kind = row, "best" if is_shown else ""
    # Today's fleet, and the shown one, have a reason where a job size is over its wait limit.
    is_met = row.meets_target and not (row.reason and (is_shown or row.policy == TODAY))
    verdict = "yes" if is_met else f"no: {row.reason or 'misses the limit'}"
    if not row.performable:
        able = list_able_actuators(row.policy, fleet)
        kind, figures = "muted", answer.other_rows.get(row.policy, replace(row, reason=_needs_text(able) or row.reason))
        verdict = figures.reason or ""
    cells = [
        figure_text(figures.peak_gpus, ",.0f"),
        figure_text(figures.gpu_hours_promised, ",.0f"),
        MISSING_VALUE_TEXT if figures.added_wait_p95_minutes is None else wait_text(figures.added_wait_p95_minutes),
    ]
    if not row.performable and row.policy not in answer.other_rows and verdict.startswith("needs"):
        cells, next_step = [PENDING] * 3, "simulated next" if looks_ahead(answer.scenario) else "choose it to simulate"
        verdict = f"{verdict} · {next_step}"
    if is_shown and not answer.is_exact:
        cells[2], verdict = (f"≈ {cells[2]}", f"≈ {verdict}") if answer.service else (PENDING, PENDING)
    columns = "".join(f"<td>{escape(cell)}</td>" for cell in (*cells, verdict))
    return f"<tr class='{kind}'><th scope='row'>{escape(SHORT_NAMES.get(row.policy, row.policy))}</th>{columns}</tr>"


def simulate_with_able_actuator(
    scenario: Scenario, row: PolicyRow, report_run: Callable[[str, PolicyRun], object] | None = None
) -> PolicyRow:
    """Simulate a policy that the actuator cannot apply with one that can; the row itself where none can.

    The reason of the row names the actuators that can apply the policy and the one that was simulated.

    Parameters
    ----------
    scenario : Scenario
        Fleet, demand and limits.
    row : PolicyRow
        Row of the policy.
    report_run : callable, optional
        Called with each policy and its simulation.
    """
    able = [] if row.performable else list_able_actuators(row.policy, history(scenario).fleet)
    if not able:
        return row
    try:
        simulated = compare_policies(scenario.but(actuator=able[0]), report_run).find_row(row.policy) or row
    except GpuPlannerError as error:
        simulated = replace(row, reason=first_error_line(error))
    needs = _needs_text([f"{able[0]} (simulated)", *able[1:]] if simulated.gpu_hours is not None else able)
    why = simulated.reason if simulated.reason != row.reason else None
    return replace(simulated, performable=False, reason="; ".join(filter(None, (needs, why))))


def _needs_text(actuators: Sequence[str]) -> str:
    """State the actuators of which a policy needs one; empty where none can apply it."""
    return f"needs {' or '.join(actuators)}" if actuators else ""


def looks_ahead(scenario: Scenario) -> bool:
    """Whether the panel simulates the policies of other actuators without being asked for."""
    return history(scenario).jobs.height <= MAX_LOOK_AHEAD_JOBS


@functools.cache
def list_able_actuators(policy: str, fleet: PlannedFleet) -> list[str]:
    """List the actuators that can apply a policy to a fleet."""
    return [name for name in PARTITIONER_BY_ACTUATOR
            if POLICIES[policy].find_obstacle(find_abilities(name, fleet.gpu_model), fleet) is None]  # fmt: skip
