"""Page sections on policies and teams, and team scorecards."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from gpuplanner import report as plots
from gpuplanner._version import __version__
from gpuplanner.core.errors import ScenarioError, first_line, printable
from gpuplanner.core.output_places import Mark
from gpuplanner.core.output_writing import replaced_directory
from gpuplanner.core.units import counted, in_locale
from gpuplanner.decision.comparison_record import (
    Comparison,
    frontier_frame,
    limit_in_words,
    policies_met,
    policy_table,
    service_table,
    target_in_words,
)
from gpuplanner.decision.decision_types import TODAY, TeamRow
from gpuplanner.decision.explained_waits import cause_table
from gpuplanner.decision.policy_comparison import SHORT
from gpuplanner.decision.pool_decisions import fleet_sentence
from gpuplanner.decision.quota_comparison import SharingTried
from gpuplanner.decision.quota_recommendation import QuotaAdvice
from gpuplanner.decision.team_fairness import Fairness
from gpuplanner.decision.wait_causes import CAUSES
from gpuplanner.report import html_page as page
from gpuplanner.report.figure_formats import NOBODY, headline, safe
from gpuplanner.report.first_screen import badge, first_screen, fleet_words
from gpuplanner.report.html_page import Section

if TYPE_CHECKING:
    from altair.typing import ChartType


MARK = Mark("scorecard.csv", "team,jobs,held_gpu_hours", ("cards/*.txt",))
SCHEMA = pl.Schema(
    {
        "team": pl.String(), "jobs": pl.Int64(), "held_gpu_hours": pl.Float64(), "idle_gpu_hours": pl.Float64(),
        "idle_share": pl.Float64(), "rank": pl.Int64(), "held_change": pl.Float64(), "idle_share_change": pl.Float64(),
    }
)  # fmt: skip


def write_scorecards(
    teams: Sequence[TeamRow], folder: Path, month: str, before: Path | None, *, locale: str = "en"
) -> None:
    """Write ``scorecard.csv`` and a card for each team; changes are against the table of an earlier month.

    Teams appear as the scenario shows them: with ``smallest_group`` those of few people stand together.
    """
    table = scorecard(teams, None if before is None or not before.exists() else _read(before))
    with replaced_directory(folder, mark=MARK) as place:
        table.write_csv(place / "scorecard.csv", float_precision=6)
        (place / "cards").mkdir()
        for number, row in enumerate(table.iter_rows(named=True), start=1):
            slug = re.sub(r"[^a-z0-9]+", "-", str(row["team"]).lower()).strip("-")[:40] or "team"
            text = _card(month, table.height, locale, **row)
            (place / "cards" / f"{number:03d}-{slug}.txt").write_text(text, encoding="utf-8")


def scorecard(teams: Sequence[TeamRow], before: pl.DataFrame | None = None) -> pl.DataFrame:
    """One row a team, the least idle share first; those of whom nobody measured any behind them, by hours held.

    Examples
    --------
    >>> teams = [TeamRow("a", 100.0, 20.0, 4), TeamRow("b", 50.0, 5.0, 2), TeamRow("nobody", 9.0, None, 0)]
    >>> scorecard(teams).select("team", "rank", "idle_share").rows()
    [('b', 1, 0.1), ('a', 2, 0.2)]
    """
    own = list(SCHEMA)[:4]
    rows = [tuple(getattr(one, name) for name in own) for one in teams if one.team != NOBODY]
    known = pl.DataFrame(rows, schema={name: SCHEMA[name] for name in own}, orient="row")
    share = pl.when(pl.col("held_gpu_hours") > 0).then(pl.col("idle_gpu_hours") / pl.col("held_gpu_hours"))
    known = known.with_columns(idle_share=share)
    last = pl.DataFrame(schema=SCHEMA) if before is None else before
    then = last.select("team", held_then="held_gpu_hours", idle_then="idle_share")
    return (
        known.sort("idle_share", "held_gpu_hours", "team", descending=[False, True, False], nulls_last=True)
        .with_columns(rank=pl.when(pl.col("idle_share").is_not_null()).then(pl.int_range(1, pl.len() + 1)))
        .join(then, on="team", how="left", maintain_order="left")
        .with_columns(
            held_change=pl.col("held_gpu_hours") / pl.col("held_then") - 1,
            idle_share_change=pl.col("idle_share") - pl.col("idle_then"),
        )
        .select(list(SCHEMA))
        .cast(SCHEMA)
    )


def _read(path: Path) -> pl.DataFrame:
    try:
        return pl.read_csv(path, schema_overrides=dict(SCHEMA)).select(list(SCHEMA)).cast(SCHEMA)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ScenarioError(
            str(path), "a scorecard", first_line(error), "Remove it, or report its month again."
        ) from None


def _card(
    month: str, teams: int, locale: str, *, team: str, jobs: int, held_gpu_hours: float, idle_gpu_hours: float | None,
    idle_share: float | None, rank: int | None, held_change: float | None, idle_share_change: float | None,
) -> str:  # fmt: skip
    """What one team is told: its own figures, its place among all, and no other team's name or figure."""
    grown = "" if held_change is None else f", {held_change:+.0%} on the month before"
    lines = [
        f"{printable(team)}, {month}".replace("\n", " "),
        f"{jobs:,} jobs held {held_gpu_hours:,.0f} GPU-hours{grown}.",
    ]
    if idle_share is None or idle_gpu_hours is None:
        lines.append("Nobody measured how much of it was idle.")
    else:
        points = 100 * (idle_share_change or 0.0)
        change = "" if idle_share_change is None else f", {points:+.1f} points on the month before"
        lines.append(f"{idle_gpu_hours:,.0f} of them were held idle: {idle_share:.1%}{change}.")
        lines.append(f"Place {rank} of {teams} teams, the least idle first.")
    return "\n".join([lines[0], *(in_locale(line, locale) for line in lines[1:])]) + "\n"


_TITLE = "What teams were due"
_HOURS = ",.0f"
_COLUMNS = {
    "tenant": "team",
    "jobs": "jobs",
    "entitled_gpus": "due, GPUs",
    "held_gpu_hours": "got, GPU-hours",
    "lent_gpu_hours": "lent",
    "borrowed_gpu_hours": "borrowed",
    "owed_gpu_hours": "owed",
    "satisfaction": "got of what it was due",
    "starvation_h": "starved, hours",
    "mean_rho": "time against alone",
    "late_share": "jobs later than alone",
}
_HOURS_TRIED = ("waited_before", "waited_after", "change", "change_low", "change_high")
_LOST_TRIED = ("lost_before", "lost_after", "stops_after", "failures_after")
_NEVER_TRIED = {"never_before": "never start before", "never_after": "never start after"}
_TRIED = {"change_low": "change, low", "change_high": "change, high", **_NEVER_TRIED}
"""Headings of the rules that were tried, where they are not those of the columns."""
_PLACEMENTS = {
    "multi_node_jobs": "on several nodes",
    "slowdown": "slow-down of these",
    "mean_wait_minutes": "mean wait, min",
}
_SAID = {"tenant": "team", "why": "why its jobs waited", "next_step": "next step"}


def teams(
    found: Fairness,
    ahead: QuotaAdvice | None = None,
    tried: SharingTried | None = None,
    *,
    title: str = _TITLE,
) -> Section:
    """What every team was due and got, why its jobs waited, what other rules change, and what is ahead."""
    table = found.teams
    accounts = _accounts(found)
    alone = ""
    if found.mean_rho is not None:
        alone = page.paragraph(
            f"Jobs took {found.mean_rho:.2f} times as long as on their team's share alone (a pool without fragments), "
            f"at most {found.max_rho:,.1f} times; 1 is what sharing promises."
        )
    return page.fold(
        title,
        page.paragraph(found.sentence),
        *(page.note(note) for note in found.notes),
        page.figure(
            plots.plot_entitlements(accounts),
            title="GPU-hours held and missing, by team",
            alt=plots.entitlements_text(accounts),
            numbers=table.select("tenant", "held_gpu_hours", "borrowed_gpu_hours", "owed_gpu_hours"),
        ),
        page.table(
            table.select(list(_COLUMNS)),
            caption=f"Teams in figures ({found.rules.source}; {found.basis})",
            headings=_COLUMNS,
            formats=dict.fromkeys([name for name in _COLUMNS if name.endswith("_gpu_hours")], _HOURS)
            | {"satisfaction": ".0%", "late_share": ".0%", "mean_rho": ".2f", "starvation_h": ",.1f"},
        ),
        page.table(table.select(list(_SAID)), caption="Why jobs waited", headings=_SAID),
        alone,
        "" if tried is None else _tried(tried),
        *(() if ahead is None else (page.table(table, caption=title) for title, table in ahead.told)),
        *(() if ahead is None else map(page.note, ahead.notes)),
        page.figure(
            plots.plot_borrowing(found.borrowed),
            title="GPU-hours borrowed, by borrower and lender",
            alt=plots.borrowing_text(found.borrowed),
            numbers=found.borrowed,
        )
        if found.borrowed.height
        else "",
        page.figure(
            plots.plot_tenant_shares(found.shares),
            title="GPUs held over time, by team",
            alt="How many GPUs each team held, slot by slot.",
        )
        if found.shares["gpus"].max()
        else "",
        about="what each was due, got, lent, borrowed and is owed",
    )


def _tried(found: SharingTried) -> str:
    """The same weeks under two sets of rules."""
    shown = found.teams.select("team", "jobs", *_HOURS_TRIED, "verdict", *_LOST_TRIED, *_NEVER_TRIED)
    caption = f"{found.after} instead of {found.before}, GPU-hours a week (intervals {found.blocks})"
    formats = dict.fromkeys((*_HOURS_TRIED, *_LOST_TRIED), ",.1f")
    table = page.table(shown, caption=caption, headings=_TRIED, formats=formats)
    return "".join([page.paragraph(found.sentence), table, *map(page.note, found.notes)])


def placements(table: pl.DataFrame | None) -> Section:
    """The GPU-hours that jobs on several nodes lose to distance, by placement."""
    if table is None:
        return Section("")
    return page.fold(
        "Distance of nodes",
        page.table(
            table,
            caption="Jobs on several nodes by placement (GPU-hours a week)",
            headings=_PLACEMENTS,
            formats={"slowdown": ",.2f", "lost_gpu_hours": ",.1f", "mean_wait_minutes": ",.1f"},
        ),
        page.note(
            "Racks and NVLink domains are those of the inventory; a node without one is a rack of its own. Run times "
            "in the data count as those of nodes next to each other."
        ),
        about="GPU-hours lost to slow-down by tier: one node, one rack, and beyond",
    )


def _accounts(found: Fairness) -> pl.DataFrame:
    """Entitlements in the words of the chart."""
    return found.teams.rename(
        {"borrowed_gpu_hours": "above_gpu_hours", "owed_gpu_hours": "deficit_gpu_hours"}
    )


def write_teams(
    found: Mapping[str, Fairness],
    path: str | Path,
    *,
    title: str,
    ahead: Mapping[str, QuotaAdvice],
    locale: str = "en",
) -> Path:
    """Write the accounts of teams, pool by pool, as a page of its own (``.html``) or as a picture (``.svg``)."""
    several = len(found) > 1
    said = {name: f"{name}: {one.sentence}" if several else one.sentence for name, one in found.items()}
    sections = [
        teams(one, ahead.get(name), title=f"{_TITLE}: {name}" if several else _TITLE)
        for name, one in found.items()
    ]
    sources = "; ".join(dict.fromkeys(one.rules.source for one in found.values()))
    starts = "; ".join(dict.fromkeys(one.basis for one in found.values()))
    return page.write_drawn(
        path,
        page=lambda: page.render_page(
            "".join(sections).replace("<details><summary><h2>", "<details open><summary><h2>"),
            title=title,
            subtitle=" ".join(said.values()),
            provenance={"entitlements": sources, "starts": starts, "gpuplanner": __version__},
        ),
        picture=lambda: page.told_svg(
            [plots.plot_entitlements(_accounts(one)) for one in found.values()], list(said.values())
        ),
        locale=locale,
    )


_WAYS = {
    "policy": "policy",
    "meaning": "what it means",
    "gpu_hours_promised": "GPU-hours powered on, a week",
    "of_today": "of today",
    "most_gpus": "powered on at peak",
    "added_minutes": "added wait, min",
    "later_share": "jobs delayed",
    "longest_min": "longest wait, min",
    "power_ups_per_week": "power-ups a week",
    "meets_target": "meets the limit",
    "reason": "why not",
}
_SERVICE = {
    "observed_p95_minutes": "observed p95",
    "today_p95_minutes": "today p95",
    "recommended_p95_minutes": "recommended p95",
    "low": "from",
    "high": "to",
    "today_mean_minutes": "today mean",
    "recommended_mean_minutes": "recommended mean",
    "limit_minutes": "limit",
}
_CAUSES = {
    "waited": "hours waited",
    "insufficient": "too few free",
    "fragmented": "not together",
    "wrong_layout": "other layout",
    "queued_behind": "behind others",
    "unexplained": "not explained",
}


def frontier_chart(found: Comparison, pinned: Comparison | None = None) -> ChartType:
    """The frontier of a comparison, every way by its name in words."""
    return plots.plot_frontier(
        frontier_frame(found, pinned), limit=found.minutes, best=found.winner, names=SHORT
    )


def ways(found: Comparison, pool: str = "") -> Section:
    """Every way to run the fleet: its hours against the minutes that it adds, who waits, and why ways are out."""
    title, about = f"Ways compared{pool and f' on {pool}'}", _about(found)
    if not found.rows:
        return page.fold(title, page.paragraph("No way could be played."), about=about)
    frame, table = frontier_frame(found), _ways_table(found)
    note = (
        f"Added wait is the largest rise of the p95 wait over job sizes, or of the mean wait. {limit_in_words(found)} "
        "Points joined by a line are other settings of the same policy."
    )
    return page.fold(
        title,
        page.figure(
            page.roomy(frontier_chart(found)),
            title="GPU-hours a week that each way keeps on, against the minutes it adds",
            alt=f"{plots.frontier_text(frame, names=SHORT)} Lower is cheaper, left is faster.",
            numbers=_named(frame),
        ),
        page.table(
            table.select(name for name in _WAYS if table[name].count()),
            caption=f"The same in figures, {_judged(found)}",
            formats=dict.fromkeys(("of_today", "later_share"), ".0%"),
            headings=_WAYS,
            muted=(~table["performable"]).to_list(),
        ),
        page.note(note),
        _energy(found),
        about=about,
    )


def waits_section(found: Comparison) -> Section:
    """What kept jobs waiting, by job size and team."""
    waits = found.waits
    if waits is None:
        return Section()
    formats = dict.fromkeys(("waited", *CAUSES), ",.0f")
    service = page.table(
        service_table(found),
        caption="p95 and mean queue wait [min] by job size: observed, simulated today, and as recommended",
        headings=_SERVICE,
        formats=dict.fromkeys(_SERVICE, ",.1f"),
    )
    tables = (
        page.table(
            cause_table(rows),
            caption=f"Hours waited, by {by}",
            formats=formats,
            headings=_CAUSES | {"name": by},
        )
        for by, rows in (("job size", waits.causes.job_size), ("team", waits.causes.team))
    )
    limits = "; ".join(f"{one.tenant} as if held to {one.gpus:g} GPUs" for one in waits.limits)
    return page.fold(
        "Why jobs waited",
        page.paragraph(f"Tenants at a limit: {limits}.") if limits else "",
        service if found.decision.service else "",
        *tables,
        about=waits.sentence,
    )


def _about(found: Comparison) -> str:
    """The ways in one line: how many there are, and what the best of them needs."""
    if found.today is None or found.today.gpu_hours is None:
        return "none could be played"
    there = policies_met(found)
    hours, best = f"{found.today.gpu_hours:,.0f}", found.row(found.winner)
    if best is None or best.gpu_hours_promised is None:
        return (
            f"{there}, as today {hours} GPU-hours a week; what is decided serves better, not with fewer hours"
        )
    if best.policy == TODAY:
        met = [row for row in found.policies if row.meets_target and row.gpu_hours_promised is not None]
        least = min(met, key=lambda row: row.gpu_hours_promised or 0.0, default=None)
        if least is None or not (least.gpu_hours_promised or 0.0) < found.today.gpu_hours:
            return f"{there}; none serves as today with less than its {hours} GPU-hours a week"
        name = SHORT.get(least.policy, least.policy)
        return (
            f"{there}, as today {hours} GPU-hours a week; {name} serves as today with "
            f"{least.gpu_hours_promised:,.0f}, and ends "
            "no waiting"
        )
    name = SHORT.get(best.policy, best.policy)
    return f"{there}; {name}: {best.gpu_hours_promised:,.0f} GPU-hours a week, today {hours}"


def decided(found: Comparison) -> Section:
    """The sentence and the first screen of a comparison, without a study around them: for notebooks."""
    sentence = f"<h3>{safe(headline(found.decision))}</h3>"
    return page.section("The decision", sentence, first_screen(found))


def write_ways(found: Mapping[str, Comparison], path: str | Path, *, title: str, locale: str = "en") -> Path:
    """Write the comparison of each pool as a page of its own (``.html``) or as a picture (``.svg``)."""
    said = [headline(one.decision) for one in found.values()]
    if len(found) > 1:
        said = [f"{name}: {text}" for name, text in zip(found, said, strict=True)]
    return page.write_drawn(
        path,
        page=lambda: _page(found, title),
        picture=lambda: page.told_svg([frontier_chart(one) for one in found.values()], said),
        locale=locale,
    )


def _page(found: Mapping[str, Comparison], title: str) -> str:
    first = next(iter(found.values()))
    one = first.decision
    if len(found) == 1:
        origin = {"path": one.path, "target": target_in_words(first), "days": _judged(first)}
        return page.render_page(
            page.section("The decision", first_screen(first)) + waits_section(first) + ways(first),
            title=title,
            subtitle=fleet_words(one),
            provenance=origin | {"gpuplanner": __version__},
            decision=headline(one),
            badge=badge(one),
        )
    body = [
        part
        for name, each in found.items()
        for part in (page.section(f"{name}: {headline(each.decision)}", first_screen(each)), ways(each, name))
    ]
    decisions = {name: each.decision for name, each in found.items()}
    return page.render_page(
        "".join(body),
        title=title,
        subtitle=counted(len(found), "pool"),
        provenance={"pools": ", ".join(found), "target": target_in_words(first), "gpuplanner": __version__},
        decision=fleet_sentence(decisions),
    )


def _named(frame: pl.DataFrame) -> pl.DataFrame:
    """Ways by what they are called on a page."""
    return frame.with_columns(pl.col("policy").replace(SHORT))


def _energy(found: Comparison) -> str:
    """Energy and carbon of a week under each way, with the range of the power, by the state of the GPUs."""
    names = ("policy", "off_gpu_hours", "saved_kwh", "^energy_kwh.*$", "carbon_kg")
    table = _named(policy_table(found)).select(names).drop_nulls("energy_kwh")
    if table.is_empty():
        return ""
    return page.table(
        table,
        caption="Energy of a week at the building's meter, and its carbon: today's, less what GPUs that are off save",
        headings={"policy": "policy", "off_gpu_hours": "GPU-hours off", "saved_kwh": "saved [kWh]"},
    )


def _judged(found: Comparison) -> str:
    if found.tuned_from is None or found.judged_from is None or found.judged_to is None:
        return "nothing was played"
    tuned, judged, end = (text[:10] for text in (found.tuned_from, found.judged_from, found.judged_to))
    if tuned == judged:
        return f"all of {judged} to {end}"
    return f"GPU-hours of the training window, {tuned} to {judged}; waits of the evaluation window, {judged} to {end}"


def _ways_table(found: Comparison) -> pl.DataFrame:
    """A row a policy: the recommended one first, those that are out with the reason, last what cannot be performed."""
    today = None if found.today is None else found.today.gpu_hours_promised
    met = pl.when(pl.col("meets_target")).then(pl.lit("yes")).otherwise(pl.lit("no"))
    table = policy_table(found).with_columns(
        meets_target=pl.when(pl.col("policy") == TODAY).then(pl.lit("baseline")).otherwise(met),
        of_today=pl.col("gpu_hours_promised") / today if today else pl.lit(None, pl.Float64),
        best=pl.col("policy") != found.winner,
        name=pl.col("policy").replace(SHORT),
    )
    hours = pl.col("gpu_hours_promised")
    order = ("best", ~pl.col("performable"), hours.is_null(), hours)
    return table.sort(*order, nulls_last=True, maintain_order=True).with_columns(policy="name")
