"""The first screen of a page: one decision, read from one object, with every figure in the one form it has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import date
from html import escape

import polars as pl

from gpuplanner import plot
from gpuplanner.report import page
from gpuplanner.report.figures import (
    MISSING,
    NOBODY,
    OF_ALL,
    TEAMS,
    day,
    minutes,
    money,
    of_hundred,
    per_cent,
    share_of_jobs,
    shown,
)
from gpuplanner.report.fleet import fleet_picture
from gpuplanner.study.decision.types import PEAKS, Decision

LEFT_OUT = 0.01
"""Share of the GPU-hours that may be left out before the badge warns."""
NOT_IN_SIGHT = "not within a year"
LEAST_DRAWN = 0.01
"""Chances that stay below this are no picture."""
_COMMAND = re.compile(r"(gpuplanner [^;]*)")

Links = Sequence[tuple[str, str]]
"""Files beside the page: how each is called, and its path."""


def first_screen(
    one: Decision,
    *,
    peaks: pl.DataFrame | None = None,
    period: str = "",
    links: Links = (),
    doubts: Sequence[str] = (),
    projects: Sequence[str] = (),
) -> str:
    """Everything of a decision that stands above the fold, but its sentence, which is the heading of the page.

    `projects` are the answers to those that were announced, in sentences.
    """
    left, right = _left(one, peaks), fleet_picture(one)
    thin = one.confidence == PEAKS or one.action == "unknown"
    missing = _missing(one)
    if thin and missing:
        right, missing = missing, ""
    pictures = "".join(
        f'<div class="{name}">{part}</div>' for name, part in (("left", left), ("right", right)) if part
    )
    lower = f'<div class="by-team">{_teams(one, period)}</div><div class="monday">{_monday(one, links)}</div>'
    return (
        f'{_cards(one)}{_shortage(one)}<div class="pair pictures">{pictures}</div>'
        f'<div class="pair lower">{lower}</div>{_announced(projects)}{missing}{_sure(one, doubts)}'
    )


def badge(one: Decision) -> tuple[str, bool]:
    """What the corner of the page says of the data, and whether it is a warning."""
    if one.left_out_share > LEFT_OUT:
        return f"{shown(one, 'left_out_share', per_cent)} of the GPU-hours left out", True
    if one.action == "unknown":
        return "Nothing to decide from", True
    if one.confidence == PEAKS:
        return "Thin data: peaks only", True
    return f"Data good: {shown(one, 'left_out_share', per_cent)} of hours left out", False


def fleet_words(one: Decision) -> str:
    """The fleet of a decision, for the line above its sentence."""
    if not one.fleet_gpus:
        return "fleet not known"
    known = "inferred from the jobs" if one.fleet_inferred else ""
    words = f"{one.fleet_gpus:,} {one.board or 'GPUs, board not known'}"
    return f"{words}, {known}" if known else words


def _cards(one: Decision) -> str:
    return '<dl class="cards">' + "".join((_gpus(one), _saved(one), _later(one), _lasts(one))) + "</dl>"


def _card(label: str, value: str, *details: str, kind: str = "") -> str:
    detail = " · ".join(text for text in details if text)
    told = f'<dd class="detail">{detail}</dd>' if detail else ""
    return f'<div{kind and f" class={kind!r}"}><dt>{label}</dt><dd class="value">{value}</dd>{told}</div>'


def _gpus(one: Decision) -> str:
    label = f"GPUs on at once, at most, for {shown(one, 'horizon_days')} days"
    if one.action == "unknown":
        return _card(label, "not known", escape(_reason(one)), kind="first")
    held = one.gpus_hold_rate
    enough = (
        f"enough on {shown(one, 'gpus_hold_rate', per_cent)} of the days not used to set it"
        if held is not None and one.confidence != PEAKS else ""
    )  # fmt: skip
    fleet = shown(one, "fleet_gpus")
    if one.action == "buy":
        return _card("GPUs needed at once", f"{shown(one, 'gpus')}",
                     f"{fleet} installed, {shown(one, 'more_gpus')} to buy", kind="first")  # fmt: skip
    mean = f"{shown(one, 'gpus_mean')} on average" if round(one.gpus_mean) != one.gpus else ""
    guessed = f"{fleet} is inferred from the jobs" if one.fleet_inferred else ""
    return _card(label, f"{shown(one, 'gpus')} of {fleet}", mean, enough, guessed, kind="first")


def _saved(one: Decision) -> str:
    label, saving, worth = "Saved a week", one.saving, one.worth
    if saving.value is None:
        return _card(label, "none", escape(_sentence(saving.reason or "")))
    spread = None not in (saving.low, saving.high) and saving.low != saving.high
    weeks = f"{shown(one, 'saving.low')} to {shown(one, 'saving.high')} in 9 weeks of 10"
    energy = f"{shown(one, 'worth.kwh_per_week')}&nbsp;kWh" if worth.kwh_per_week else ""
    dollars = "" if worth.usd_per_week is None else shown(one, "worth.usd_per_week", money)
    week = weeks if spread else "the same every week"
    return _card(label, f"{shown(one, 'saving.value')} GPU-hours", week, energy, dollars)


def _later(one: Decision) -> str:
    share = shown(one, "service.quantile", share_of_jobs)
    label = f"Added delay at most, {share}"
    if one.action == "unknown":
        return _card(label, "not known", escape(_reason(one)))
    service, later = one.service, "no job starts later"
    if service.later_share:
        later = f"{shown(one, 'service.later_share', of_hundred)} jobs pay"
        by = shown(one, "service.longest_minutes", minutes)
        later += f", the longest by {by}" if service.longest_minutes else ""
    never = f"{shown(one, 'service.never_started')} jobs never start" if service.never_started else ""
    limit = f"your limit is {shown(one, 'limit_minutes', minutes)}" if service.by_class else ""
    return _card(label, shown(one, "service.added_minutes", minutes), never, later, limit)


def _lasts(one: Decision) -> str:
    today, then = one.run_out.today, one.run_out.recommended
    label = "The fleet is full"
    if today.date is not None or then.date is not None:
        before, after = (
            NOT_IN_SIGHT if side.date is None else shown(one, f"run_out.{name}.date", day)
            for name, side in (("today", today), ("recommended", then))
        )
        if today.date == then.date:
            return _card(label, after, "more likely than not, as today and as recommended")
        return _card(f"{label}, as recommended", after, f"as today: {before}", "each more likely than not")
    if not today.by_week:
        return _card(label, "no date yet", escape(_sentence(today.reason or "")), _see(one))
    return _card(
        label,
        NOT_IN_SIGHT,
        f"{shown(one, 'run_out_chance', of_hundred)} chances by {day(today.by_week[-1][0])}",
    )


def _see(one: Decision) -> str:
    """The command that would fill an empty card: nodes where the fleet is a guess, else more days."""
    wanted = "ingest nodes" if one.fleet_inferred else "ingest auto"
    for number, each in enumerate(one.missing, start=1):
        if wanted in each.command:
            return f'<a href="#missing">see command {number}</a>'
    return ""


def _shortage(one: Decision) -> str:
    short = one.shortage
    if not short.jobs:
        return ""
    place = (
        f", {shown(one, 'shortage.by_place')} of them by place: enough was free, but not together"
        if short.by_place else ""
    )  # fmt: skip
    ends = f" {shown(one, 'shortage.gpus_needed')} GPUs more would end it." if short.gpus_needed else ""
    ends = " No GPU more would change that." if short.gpus_needed == 0 else ends
    return (
        f'<p class="short"><b>Short today:</b> {shown(one, "shortage.jobs")} jobs a week wait for GPUs, '
        f"{shown(one, 'shortage.gpu_hours')} GPU-hours of waiting{place}.{ends}</p>"
    )


def _left(one: Decision, peaks: pl.DataFrame | None) -> str:
    """When the fleet is full, or else the most that was held, day by day."""
    rows = [
        (way, date.fromisoformat(week[:10]), chance)
        for way, side in (("today", one.run_out.today), ("recommended", one.run_out.recommended))
        for week, chance in side.by_week
    ]
    if rows and max(chance for _, _, chance in rows) >= LEAST_DRAWN:
        frame = pl.DataFrame(rows, schema=["way", "week", "chance"], orient="row")
        return page.figure(
            plot.plot_full(frame, gpus=one.fleet_gpus, best=one.policy),
            title=f"When {one.fleet_gpus:,} GPUs are no longer enough",
            alt=plot.full_text(frame, gpus=one.fleet_gpus),
            numbers=frame,
            formats={"chance": ".0%"},
        )
    if peaks is None or peaks.is_empty() or not one.fleet_gpus:
        return ""
    return page.figure(
        plot.plot_peaks(peaks, gpus=one.fleet_gpus, known=not one.fleet_inferred),
        title="GPUs held in the busiest hour of each day",
        alt=plot.peaks_text(peaks),
        numbers=peaks,
        formats={"gpus": ",.1f"},
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
    note = f'<p class="about">{MISSING} means: not measured.</p>' if unknown else ""
    when = f' <span class="about">{escape(period)}</span>' if period else ""
    return (
        f"<h3>By team{when}</h3>"
        '<div class="scroll" tabindex="0" role="region" aria-label="By team"><table class="teams">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>{note}"
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
    return f'<tr{kind and f" class={kind!r}"}><th scope="row">{escape(name)}</th>{row}</tr>'


def _monday(one: Decision, links: Links) -> str:
    steps = "".join(f"<li>{_with_command(step)}</li>" for step in one.monday)
    body = (
        f'<ol class="steps">{steps}</ol>' if steps else '<p class="about">Nothing before what is missing.</p>'
    )
    opened = "".join(f'<a href="{escape(path)}">{escape(name)}</a> ' for name, path in links)
    more = f'<p class="open"><b>Open</b> {opened}</p>' if opened else ""
    return f"<h3>On Monday</h3>{body}{more}"


def _announced(projects: Sequence[str]) -> str:
    """Whether the fleet can take what was announced, a line each."""
    rows = "".join(f"<li>{escape(text)}</li>" for text in projects)
    return f'<h3>Announced projects</h3><ul class="projects">{rows}</ul>' if rows else ""


def _missing(one: Decision) -> str:
    """What is not known, and the command that adds it, in the order of what it would change."""
    if not one.missing:
        return ""
    rows = "".join(
        f"<li><span>{escape(_sentence(each.what))}</span><code>{escape(each.command)}</code></li>"
        for each in one.missing
    )
    head = "<h3>What is missing, and the command that adds it</h3>"
    return f'<div id="missing">{head}<ol class="missing">{rows}</ol></div>'


def _sure(one: Decision, doubts: Sequence[str]) -> str:
    rows = [*_sure_rows(one), *([("Careful", "<br>".join(map(escape, doubts)))] if doubts else [])]
    return (
        f'<dl class="sure">{"".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in rows)}</dl>'
        if rows
        else ""
    )


def _sure_rows(one: Decision) -> Iterator[tuple[str, str]]:
    if one.how_sure:
        yield "How sure", escape(" ".join(one.how_sure))
    if one.saving.value is not None and one.worth.basis:
        yield "Worth", escape(one.worth.basis.replace("\n", " "))
    if one.assumptions:
        yield "Assumed", escape("; ".join(one.assumptions)) + "."


def _with_command(text: str) -> str:
    """A step, with the command that it names set as one."""
    step, *rest = _COMMAND.split(text, maxsplit=1)
    told = escape(_sentence(step)) if not rest else escape(step[:1].upper() + step[1:])
    return told + (f"<code>{escape(rest[0])}</code>{escape(rest[1])}" if rest else "")


def _sentence(text: str) -> str:
    found = text.strip()
    return f"{found[:1].upper()}{found[1:]}{'' if found.endswith(('.', ':', '?')) else '.'}" if found else ""


def _reason(one: Decision) -> str:
    return _sentence(one.saving.reason or "nothing was played")
