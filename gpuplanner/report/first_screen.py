"""The first screen of a page: one decision, read from one object, with every figure in the one form it has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from gpuplanner import plot
from gpuplanner.inbox.core.findings import QualityWarning, warning_text
from gpuplanner.report import page
from gpuplanner.report.figures import (
    NOBODY,
    OF_ALL,
    TEAMS,
    count,
    day,
    minutes,
    money,
    per_cent,
    shown,
    times,
)
from gpuplanner.report.fleet import fleet_picture
from gpuplanner.report.words import safe
from gpuplanner.study.decision.frames import curve_table, service_table
from gpuplanner.study.decision.record import Comparison
from gpuplanner.study.decision.types import Decision, NextStep
from gpuplanner.units import NO_FIGURE

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
    pictures = "".join(
        f'<div class="{name}">{part}</div>' for name, part in (("left", left), ("right", right)) if part
    )
    lower = (
        f'<div class="by-team">{_teams(one, period)}</div><div class="monday">{_next_steps(one, links)}</div>'
    )
    projects = [answer.sentence for answer in found.projects]
    reasons = "" if found.waits is None else f'<p class="short">{safe(found.waits.sentence)}</p>'
    return (
        f'<div class="decision">{warning_list(warnings)}{_shown_cards(found, how)}{reasons}'
        f'<div class="pair pictures">{pictures}</div>'
        f'<div class="pair lower">{lower}</div>{_announced(projects)}{missing}{_sure(one, doubts)}</div>'
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
    known = "inferred from the jobs" if one.fleet_inferred else ""
    words = f"{one.fleet_gpus:,} {one.board or 'GPUs, board not known'}"
    return f"{words}, {known}" if known else words


Card = tuple[str, ...]
"""Label and value of a card as markup, and its details, of which empty ones are left out."""


def cards(found: Comparison) -> list[Card]:
    """The four numbers of the first screen."""
    return [
        (label, value, *filter(None, details))
        for label, value, *details in (
            _gpus(found.decision),
            _wait(found.decision),
            _freed(found.decision),
            _lasts(found),
        )
    ]


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
    return page.figure(
        plot.plot_wait_curve(frame, **ends, limits=limits),
        title="Queue wait against number of GPUs",
        alt=plot.wait_curve_text(frame, **ends),
        numbers=frame.pivot(
            "job_size", index=("layout", "gpus"), values="p95_minutes", aggregate_function="first"
        ),
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
        plot.plot_peaks(peaks, gpus=gpus, known=known),
        title="GPUs held in the busiest hour of each day",
        alt=plot.peaks_text(peaks),
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
    rows += [
        _team(one, NOBODY, f"teams.{number}", kind="nobody")
        for number, row in enumerate(one.teams)
        if row.team == NOBODY
    ]
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


def _announced(projects: Sequence[str]) -> str:
    """Whether the fleet can take what was announced, a line each."""
    rows = "".join(f"<li>{safe(text)}</li>" for text in projects)
    return f'<h3>Announced projects</h3><ul class="projects">{rows}</ul>' if rows else ""


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
