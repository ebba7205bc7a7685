"""The first screen of a page: one decision, read from one object, with every figure in the one form it has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import date

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
    of_hundred,
    per_cent,
    share_of_jobs,
    shown,
)
from gpuplanner.report.fleet import fleet_picture
from gpuplanner.report.words import safe
from gpuplanner.study.decision.types import PEAKS, Decision
from gpuplanner.units import NO_FIGURE, NOT_IN_SIGHT

LEFT_OUT = 0.01
"""Share of the GPU-hours that may be left out before the badge warns."""
ASSUMED = "Assumed"
_COMMAND = re.compile(r"(gpuplanner [^;]*)")

Links = Sequence[tuple[str, str]]
"""Files beside the page: how each is called, and its path."""


def first_screen(
    one: Decision,
    *,
    peaks: pl.DataFrame | None = None,
    period: str = "",
    links: Links = (),
    how: Sequence[str] = (),
    doubts: Sequence[str] = (),
    projects: Sequence[str] = (),
    warnings: Sequence[QualityWarning] = (),
) -> str:
    """Everything of a decision that stands above the fold, but its sentence, which is the heading of the page.

    `warnings` are those of the quality report. `projects` are the answers to those that were announced, in sentences;
    `how` are places on the page that say how the numbers of the cards come about.
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
        f'<div class="decision">{warning_list(warnings)}{_shown_cards(one, how)}{_shortage(one)}'
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
    if one.action == "unknown":
        return "Nothing to decide from", True
    if one.confidence == PEAKS:
        return "Thin data: peaks only", True
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


def cards(one: Decision) -> list[Card]:
    """The four numbers of the first screen."""
    return [(label, value, *filter(None, details)) for label, value, *details in (
        _gpus(one), _saved(one), _later(one), _lasts(one)
    )]  # fmt: skip


def _shown_cards(one: Decision, how: Sequence[str]) -> str:
    found = []
    for number, (label, value, *details) in enumerate(cards(one)):
        if how:
            label = f'<a href="#{how[number]}" title="How this number comes about">{label}</a>'
        told = f'<dd class="detail">{" · ".join(details)}</dd>' if details else ""
        kind = "" if number else " class='first'"
        found.append(f'<div{kind}><dt>{label}</dt><dd class="value">{value}</dd>{told}</div>')
    return f'<dl class="cards">{"".join(found)}</dl>'


def _gpus(one: Decision) -> Card:
    label = f"GPUs on at once, at most, for {shown(one, 'horizon_days')} days"
    if one.action == "unknown":
        return (label, "not known", safe(_reason(one)))
    held = one.gpus_hold_rate
    enough = (
        f"enough on {shown(one, 'gpus_hold_rate', per_cent)} of the days not used to set it"
        if held is not None and one.confidence != PEAKS else ""
    )  # fmt: skip
    fleet = shown(one, "fleet_gpus")
    if one.action == "buy":
        return ("GPUs needed at once", f"{shown(one, 'gpus')}",
                     f"{fleet} installed, {shown(one, 'more_gpus')} to buy")  # fmt: skip
    mean = f"{shown(one, 'gpus_mean')} on average" if round(one.gpus_mean) != one.gpus else ""
    return (label, f"{shown(one, 'gpus')} of {fleet}", mean, enough)


def _saved(one: Decision) -> Card:
    label, saving, worth = "Saved a week", one.saving, one.worth
    if saving.value is None:
        return (label, "none", safe(_sentence(saving.reason or "")))
    weeks = f"{shown(one, 'saving.low')} to {shown(one, 'saving.high')} in 9 weeks of 10"
    energy = f"{shown(one, 'worth.kwh_per_week')}&nbsp;kWh" if worth.kwh_per_week else ""
    dollars = "" if worth.usd_per_week is None else shown(one, "worth.usd_per_week", money)
    week = weeks if saving.varies else "the same every week"
    return (label, f"{shown(one, 'saving.value')} GPU-hours", week, energy, dollars, _moved(one))


def _moved(one: Decision) -> str:
    """The purchase that a saving moves: what it costs, from when to when."""
    found = one.worth.purchase
    if found is None or found.today == found.then:
        return ""
    cost = f" of {shown(one, 'worth.purchase.capital')}&nbsp;{safe(found.currency)}"
    return f"next purchase{'' if found.capital is None else cost} moves {_ends(one)}"


def _ends(one: Decision) -> str:
    """When the fleet is full, as today and as recommended."""
    today, then = one.run_out.today.date, one.run_out.recommended.date
    before, after = (
        "beyond a year" if date is None else shown(one, f"run_out.{name}.date", day)
        for name, date in (("today", today), ("recommended", then))
    )
    return f"from {before} to {after}"


def _later(one: Decision) -> Card:
    share = shown(one, "service.quantile", share_of_jobs)
    label = f"Added delay at most, {share}"
    if one.action == "unknown":
        return (label, "not known", safe(_reason(one)))
    service, later = one.service, "no job starts later"
    if service.later_share:
        later = f"{shown(one, 'service.later_share', of_hundred)} jobs pay"
        by = shown(one, "service.longest_minutes", minutes)
        later += f", at most {by}" if service.longest_minutes else ""
    never = f"{shown(one, 'service.never_started')} jobs never start" if service.never_started else ""
    limit = f"your limit: {shown(one, 'limit_minutes', minutes)}" if service.by_class else ""
    return (label, shown(one, "service.added_minutes", minutes), never, later, limit)


def _lasts(one: Decision) -> Card:
    today, then = one.run_out.today, one.run_out.recommended
    label = "The fleet is full"
    if today.date is not None or then.date is not None:
        before, after = (
            NOT_IN_SIGHT if side.date is None else shown(one, f"run_out.{name}.date", day)
            for name, side in (("today", today), ("recommended", then))
        )
        if today.date == then.date:
            return (label, after, "more likely than not, as today and as recommended")
        return (f"{label}, as recommended", after, f"as today: {before}", "more likely than not")
    if not today.by_week:
        return (label, "no date yet", safe(_sentence(today.reason or "")), _see(one))
    return (
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


def needs_frame(one: Decision) -> pl.DataFrame:
    """GPUs needed by week as :func:`gpuplanner.plot.plot_need` takes them; empty where no week ahead is known."""
    sides = (("today", one.run_out.today), ("recommended", one.run_out.recommended))
    rows: list[tuple[str, date, float | None, float, float | None, float | None]] = [
        ("seen", date.fromisoformat(week), None, need, None, None) for week, need in one.run_out.today.needed
    ]
    for way, side in sides:
        chances = dict(side.by_week)
        rows += [
            (way, date.fromisoformat(week), low, need, high, chances[week])
            for week, low, need, high in side.need_by_week
        ]
    schema: dict[str, type[pl.DataType]] = {"way": pl.String, "week": pl.Date}
    schema |= dict.fromkeys(("low", "need", "high", "chance"), pl.Float64)
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return frame if frame["chance"].count() else frame.clear()


def _left(one: Decision, peaks: pl.DataFrame | None) -> str:
    """When the fleet is full, or else the most that was held, day by day."""
    frame = needs_frame(one)
    if frame.height:
        return page.figure(
            plot.plot_need(frame, gpus=one.fleet_gpus, best=one.policy),
            title=f"When {one.fleet_gpus:,} GPUs are no longer enough",
            alt="GPUs needed each week, growing as so far; shaded: range. "
            f"{plot.need_text(frame, gpus=one.fleet_gpus)}",
            numbers=frame,
            formats={"chance": ".0%"},
        )
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


def monday(one: Decision) -> list[str]:
    """What to do, as plain sentences."""
    return [_sentence(step) for step in one.monday]


def _monday(one: Decision, links: Links) -> str:
    steps = "".join(f"<li>{_with_command(step)}</li>" for step in one.monday)
    body = (
        f'<ol class="steps">{steps}</ol>' if steps else '<p class="about">Nothing before what is missing.</p>'
    )
    opened = "".join(f'<a href="{safe(path)}">{safe(name)}</a> ' for name, path in links)
    more = f'<p class="open"><b>Open</b> {opened}</p>' if opened else ""
    return f"<h3>On Monday</h3>{body}{more}"


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


def _with_command(text: str) -> str:
    """A step, with the command that it names set as one."""
    step, *rest = _COMMAND.split(text, maxsplit=1)
    told = safe(_sentence(step)) if not rest else safe(step[:1].upper() + step[1:])
    return told + (f"<code>{safe(rest[0])}</code>{safe(rest[1])}" if rest else "")


def _sentence(text: str) -> str:
    found = text.strip()
    return f"{found[:1].upper()}{found[1:]}{'' if found.endswith(('.', ':', '?')) else '.'}" if found else ""


def _reason(one: Decision) -> str:
    return _sentence(one.saving.reason or "nothing was played")
