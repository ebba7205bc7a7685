"""Page sections on policies and teams, and team scorecards."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from gpuplanner import report as plots
from gpuplanner._version import __version__
from gpuplanner.core.errors import ScenarioError, escape_controls, first_error_line
from gpuplanner.core.output_places import FolderMark
from gpuplanner.core.output_writing import replace_directory
from gpuplanner.core.units import UNALLOCATED_TEAM, count_text, localize_text, percent_text
from gpuplanner.decision.comparison_record import (
    Comparison,
    format_left_out_policies,
    format_limit,
    format_policies_within_limit,
    format_wait_target,
    frontier_frame,
    make_policy_table,
    make_service_table,
)
from gpuplanner.decision.decision_types import TODAY, TeamRow
from gpuplanner.decision.explained_waits import make_cause_table
from gpuplanner.decision.policy_comparison import SHORT_NAMES
from gpuplanner.decision.pool_decisions import format_fleet_decision
from gpuplanner.decision.quota_comparison import RulesComparison
from gpuplanner.decision.quota_recommendation import QuotaAdvice
from gpuplanner.decision.team_fairness import Fairness
from gpuplanner.decision.wait_causes import CAUSES
from gpuplanner.report import html_page as page
from gpuplanner.report.figure_formats import safe
from gpuplanner.report.first_screen import badges, first_screen, fleet_words
from gpuplanner.report.html_page import Section

if TYPE_CHECKING:
    from altair.typing import ChartType


MARK = FolderMark("scorecard.csv", "team,jobs,allocated_gpu_hours", ("cards/*.txt",))
SCHEMA = pl.Schema(
    {
        "team": pl.String(), "jobs": pl.Int64(), "allocated_gpu_hours": pl.Float64(), "idle_gpu_hours": pl.Float64(),
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
    with replace_directory(folder, mark=MARK) as place:
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
    >>> teams = [TeamRow("a", 100.0, 20.0, 4), TeamRow("b", 50.0, 5.0, 2), TeamRow("__unallocated__", 9.0, None, 0)]
    >>> scorecard(teams).select("team", "rank", "idle_share").rows()
    [('b', 1, 0.1), ('a', 2, 0.2)]
    """
    own = list(SCHEMA)[:4]
    rows = [tuple(getattr(one, name) for name in own) for one in teams if one.team != UNALLOCATED_TEAM]
    known = pl.DataFrame(rows, schema={name: SCHEMA[name] for name in own}, orient="row")
    share = pl.when(pl.col("allocated_gpu_hours") > 0).then(pl.col("idle_gpu_hours") / pl.col("allocated_gpu_hours"))
    known = known.with_columns(idle_share=share)
    last = pl.DataFrame(schema=SCHEMA) if before is None else before
    then = last.select("team", held_then="allocated_gpu_hours", idle_then="idle_share")
    return (
        known.sort("idle_share", "allocated_gpu_hours", "team", descending=[False, True, False], nulls_last=True)
        .with_columns(rank=pl.when(pl.col("idle_share").is_not_null()).then(pl.int_range(1, pl.len() + 1)))
        .join(then, on="team", how="left", maintain_order="left")
        .with_columns(
            held_change=pl.col("allocated_gpu_hours") / pl.col("held_then") - 1,
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
            str(path), "a scorecard", first_error_line(error), "Remove it, or report its month again."
        ) from None


def _card(
    month: str, teams: int, locale: str, *, team: str, jobs: int, allocated_gpu_hours: float,
    idle_gpu_hours: float | None,
    idle_share: float | None, rank: int | None, held_change: float | None, idle_share_change: float | None,
) -> str:  # fmt: skip
    """What one team is told: its own figures, its place among all, and no other team's name or figure."""
    grown = "" if held_change is None else f", {percent_text(held_change, '+.0f')} on the month before"
    lines = [
        f"{escape_controls(team)}, {month}".replace("\n", " "),
        f"{jobs:,} jobs, {allocated_gpu_hours:,.0f} GPU-hours allocated{grown}.",
    ]
    if idle_share is None or idle_gpu_hours is None:
        lines.append("Allocated but idle: no telemetry.")
    else:
        points = 100 * (idle_share_change or 0.0)
        change = "" if idle_share_change is None else f", {points:+.1f} points on the month before"
        lines.append(f"Allocated but idle: {idle_gpu_hours:,.0f} GPU-hours, {percent_text(idle_share, '.1f')}{change}.")
        lines.append(f"Rank {rank} of {teams} teams (lowest idle share first).")
    return "\n".join([lines[0], *(localize_text(line, locale) for line in lines[1:])]) + "\n"


_TITLE = "Fair share by team"
_HOURS = ",.0f"
_COLUMNS = {
    "tenant": "team", "jobs": "jobs", "entitled_gpus": "quota or fair share [GPUs]",
    "allocated_gpu_hours": "allocated [GPU h]", "lent_gpu_hours": "lent [GPU h]",
    "borrowed_gpu_hours": "borrowed [GPU h]", "shortfall_gpu_hours": "shortfall [GPU h]",
    "fair_share_received": "fair share received", "starved_hours": "no GPU while jobs waited [h]",
    "mean_slowdown": "slowdown against a dedicated share", "slower_share": "jobs slower than on a dedicated share",
}  # fmt: skip
_HOURS_TRIED = ("waited_before", "waited_after", "change", "change_low", "change_high")
_LOST_TRIED = ("lost_before", "lost_after", "stops_after", "failures_after")
_NEVER_TRIED = {"never_before": "never started, before", "never_after": "never started, after"}
_TRIED = {"change_low": "change, low", "change_high": "change, high", **_NEVER_TRIED}
"""Headings of the rules that were tried, where they are not those of the columns."""
_PLACEMENTS = {
    "multi_node_jobs": "multi-node jobs", "slowdown": "slowdown of these", "mean_wait_minutes": "mean wait [min]",
}  # fmt: skip
_SAID = {"tenant": "team", "why": "cause of waiting", "next_step": "option"}


def teams(
    found: Fairness, ahead: QuotaAdvice | None = None, tried: RulesComparison | None = None, *, title: str = _TITLE
) -> Section:
    """Fair share by team, causes of waiting, effects of other rules, and the forecast."""
    table = found.teams
    accounts = _accounts(found)
    alone = ""
    if found.mean_slowdown is not None:
        alone = page.paragraph(
            f"Slowdown against a dedicated share (finish-time fairness): mean {found.mean_slowdown:.2f}; 1 is fair."
        )
    return page.fold(
        title,
        page.paragraph(found.shortfall_sentence),
        *(page.note(note) for note in found.notes),
        page.figure(
            plots.plot_entitlements(accounts),
            title="GPU-hours allocated and short, by team",
            alt=plots.entitlements_text(accounts),
            numbers=table.select("tenant", "allocated_gpu_hours", "borrowed_gpu_hours", "shortfall_gpu_hours"),
        ),
        page.table(
            table.select(list(_COLUMNS)),
            caption=f"Teams in figures ({found.rules.source}; {found.basis}). A MIG instance counts as the larger of "
            "its compute and memory share, as in quotas; all other GPU-hours of the page count its compute slices",
            headings=_COLUMNS,
            formats=dict.fromkeys([name for name in _COLUMNS if name.endswith("_gpu_hours")], _HOURS)
            | {"fair_share_received": ".0%", "slower_share": ".0%", "mean_slowdown": ".2f", "starved_hours": ",.1f"},
        ),
        page.table(
            table.select(list(_SAID)),
            caption="Causes of waiting by team, and options beside the recommendation; where the recommendation is "
            "carried out, look at the waits again first",
            headings=_SAID,
        ),
        alone,
        "" if tried is None else _tried(tried),
        *(() if ahead is None else (page.table(table, caption=title) for title, table in ahead.titled_tables)),
        *(() if ahead is None else map(page.note, ahead.notes)),
        page.figure(
            plots.plot_borrowing(found.borrowed),
            title="GPU-hours above the fair share, by team and team short",
            alt=plots.borrowing_text(found.borrowed),
            numbers=found.borrowed.select(
                pl.col("borrower").replace("-", "(idle GPUs)").alias("team above its share"),
                pl.col("lender").replace("-", "(no team)").alias("team short"),
                "gpu_hours",
            ),
        )
        if found.borrowed.height
        else "",
        page.figure(
            plots.plot_tenant_shares(found.shares),
            title="GPUs allocated over time, by team",
            alt="Mean GPUs allocated to each team, in intervals of 1/120 of the record and at least an hour.",
        )
        if found.shares["gpus"].max()
        else "",
        about="quota or fair share, allocated, lent, borrowed and shortfall",
    )


def _tried(found: RulesComparison) -> str:
    """The same weeks under two sets of rules."""
    shown = found.teams.select("team", "jobs", *_HOURS_TRIED, "verdict", *_LOST_TRIED, *_NEVER_TRIED)
    caption = f"{found.after} instead of {found.before}, GPU-hours per week (intervals {found.blocks})"
    formats = dict.fromkeys((*_HOURS_TRIED, *_LOST_TRIED), ",.1f")
    table = page.table(shown, caption=caption, headings=_TRIED, formats=formats)
    return "".join([page.paragraph(found.verdict_sentence), table, *map(page.note, found.notes)])


def placements(table: pl.DataFrame | None) -> Section:
    """The GPU-hours that jobs on several nodes lose to distance, by placement."""
    if table is None:
        return Section("")
    return page.fold(
        "Multi-node placement",
        page.table(
            table,
            caption="Multi-node jobs by placement (GPU-hours per week)",
            headings=_PLACEMENTS,
            formats={"slowdown": ",.2f", "lost_gpu_hours": ",.1f", "mean_wait_minutes": ",.1f"},
        ),
        page.note(
            "Racks and NVLink domains are from the inventory; a node without one is a rack of its own. Run times "
            "in the data count as run times on adjacent nodes."
        ),
        about="GPU-hours lost to slowdown on one node, in one rack, and beyond",
        appendix=True,
    )


def _accounts(found: Fairness) -> pl.DataFrame:
    """Entitlements in the words of the chart."""
    return found.teams.rename({"borrowed_gpu_hours": "above_gpu_hours", "shortfall_gpu_hours": "deficit_gpu_hours"})


def write_teams(
    found: Mapping[str, Fairness], path: str | Path, *, title: str, ahead: Mapping[str, QuotaAdvice], locale: str = "en"
) -> Path:
    """Write the accounts of teams, pool by pool, as a page of its own (``.html``) or as a picture (``.svg``)."""
    several = len(found) > 1
    said = {
        name: f"{name}: {one.shortfall_sentence}" if several else one.shortfall_sentence for name, one in found.items()
    }
    sections = [
        teams(one, ahead.get(name), title=f"{_TITLE}: {name}" if several else _TITLE) for name, one in found.items()
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
    "policy": "policy", "meaning": "description", "gpu_hours_promised": "provisioned, GPU-hours per week",
    "of_today": "% of today", "peak_gpus": "GPUs provisioned at peak",
    "added_wait_p95_minutes": "added wait [min]", "delayed_share": "jobs delayed [%]",
    "longest_added_wait_minutes": "longest wait [min]", "power_ups_per_week": "power-ups per week",
    "meets_target": "adds at most the limit", "reason": "reason",
}  # fmt: skip
_SERVICE = {
    "size": "job size", "observed_p95_minutes": "p95, observed", "today_p95_minutes": "p95, simulated today",
    "recommended_p95_minutes": "p95, recommended",
    "low": "resampled records, recommended: 80 % interval, low", "high": "80 % interval, high",
    "today_mean_minutes": "mean, simulated today", "recommended_mean_minutes": "mean, recommended",
    "jobs_delayed": "jobs delayed (number)", "limit_minutes": "limit of the p95",
    "today_low": "resampled records, today: 80 % interval, low", "today_high": "80 % interval, high (today)",
}  # fmt: skip
_CAUSES = {
    "waited": "hours of waiting", "wrong_layout": "wrong layout", "queued_behind": "queued behind",
}  # fmt: skip


def frontier_chart(found: Comparison, pinned: Comparison | None = None) -> ChartType:
    """The frontier of a comparison, each policy by its name."""
    return plots.plot_frontier(frontier_frame(found, pinned), limit=found.minutes, best=found.winner, names=SHORT_NAMES)


def ways(found: Comparison, pool: str = "") -> Section:
    """All policies: GPU-hours against added queue waits, and the causes of waiting today."""
    title, about = f"Policy comparison{pool and f' on {pool}'}", _about(found)
    if not found.rows:
        return page.fold(title, page.paragraph("No policy could be simulated."), about=about)
    frame, table = frontier_frame(found), _ways_table(found)
    note = (
        "Added wait: p95 queue wait less that of today's fleet, of the job size where it grows most; or the growth of "
        f"the mean of all jobs, if that is more. {format_limit(found)} The waits of the recommended policy are those "
        f"of the whole record, as in the table below. {format_left_out_policies(found)}"
    )
    chart = ""
    if frame.select("gpu_hours", "added_wait_p95_minutes").n_unique() > 1:
        chart = page.figure(
            page.roomy(frontier_chart(found)),
            title="Provisioned GPU-hours per week and added queue wait",
            alt=f"{plots.frontier_text(frame, names=SHORT_NAMES)} Lower: fewer GPU-hours; left: shorter waits. Other "
            "settings of fewer GPU-hours than the chosen one were rejected: they miss the limit on too many single "
            "days, in a further replay or with slow node power-up, or are unusual and gain too little.",
            numbers=_named(frame),
        )
    return page.fold(
        title,
        chart,
        page.table(
            table.select(name for name in _WAYS if table[name].count()),
            caption=f"Policies: {_judged(found)}",
            formats=dict.fromkeys(("of_today", "delayed_share"), ".0%"),
            headings=_WAYS,
            muted=(~table["performable"]).to_list(),
        ),
        page.note(note),
        *_waits(found),
        about=about,
    )


def waits_section(found: Comparison) -> Section:
    """The causes of waiting, by job size and team."""
    parts = _waits(found)
    return page.fold("Causes of waiting", *parts, about=found.waits.main_cause_text) if found.waits else Section()


def _waits(found: Comparison) -> list[str]:
    """Queue waits by job size, and hours of waiting by cause."""
    waits = found.waits
    if waits is None:
        return []
    formats = dict.fromkeys(("waited", *CAUSES), ",.0f")
    service = page.table(
        make_service_table(found),
        caption="Queue wait by job size [min]: p95 and mean; observed, simulated today, and recommended",
        headings=_SERVICE,
        formats=dict.fromkeys(_SERVICE, ",.1f") | {"jobs_delayed": ",.0f"},
    )
    tables = (
        page.table(
            make_cause_table(rows),
            caption=f"Hours of waiting by cause and {by}",
            formats=formats,
            headings=_CAUSES | {"name": by},
        )
        for by, rows in (("job size", waits.causes.job_size), ("team", waits.causes.team))
    )
    limits = "; ".join(f"{one.tenant} at {one.gpus:g} GPUs" for one in waits.limits)
    return [
        page.paragraph(waits.main_cause_text),
        page.paragraph(format_wait_target(found)) if found.decision.service else "",
        page.paragraph(f"Teams at a limit in the record: {limits}.") if limits else "",
        service if found.decision.service else "",
        *tables,
    ]


def _about(found: Comparison) -> str:
    """One line: policies that meet the limit, and the GPU-hours of the best."""
    if found.today is None or found.today.gpu_hours is None:
        return "no policy could be simulated"
    text = f"{format_policies_within_limit(found)}; today {found.today.gpu_hours:,.0f} GPU-hours per week"
    best = found.find_row(found.winner)
    if best is None or best.gpu_hours_promised is None or best.policy == TODAY:
        return text
    return f"{text}, {SHORT_NAMES.get(best.policy, best.policy)} {best.gpu_hours_promised:,.0f}"


def decided(found: Comparison) -> Section:
    """Headline and first screen of a comparison, for notebooks."""
    sentence = f"<h3>{safe(found.decision.sentence)}</h3>"
    return page.section("Recommendation", sentence, first_screen(found))


def write_ways(found: Mapping[str, Comparison], path: str | Path, *, title: str, locale: str = "en") -> Path:
    """Write the comparison of each pool as a page of its own (``.html``) or as a picture (``.svg``)."""
    said = [one.decision.sentence for one in found.values()]
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
        origin = {"actuator": one.actuator, "target": format_wait_target(first), "days": _judged(first)}
        return page.render_page(
            page.section("Recommendation", first_screen(first)) + ways(first),
            title=title,
            subtitle=fleet_words(one),
            provenance=origin | {"gpuplanner": __version__},
            decision=one.sentence,
            badges=badges(one),
        )
    body = [
        part
        for name, each in found.items()
        for part in (page.section(f"{name}: {each.decision.sentence}", first_screen(each)), ways(each, name))
    ]
    decisions = {name: each.decision for name, each in found.items()}
    return page.render_page(
        "".join(body),
        title=title,
        subtitle=count_text(len(found), "pool"),
        provenance={"pools": ", ".join(found), "target": format_wait_target(first), "gpuplanner": __version__},
        decision=format_fleet_decision(decisions),
    )


def _named(frame: pl.DataFrame) -> pl.DataFrame:
    """Policies by their names on a page, each with the setting that was chosen and others."""
    kinds = {"tuned": "chosen setting", "setting": "other setting"}
    return frame.with_columns(pl.col("policy").replace(SHORT_NAMES), pl.col("kind").replace(kinds))


def _judged(found: Comparison) -> str:
    if found.tuned_from is None or found.judged_from is None or found.judged_to is None:
        return "nothing was simulated"
    tuned, judged, end = (text[:10] for text in (found.tuned_from, found.judged_from, found.judged_to))
    if tuned == judged:
        return f"all of {judged} to {end}"
    return f"GPU-hours in the training window, {tuned} to {judged}; waits in the evaluation window, {judged} to {end}"


def _ways_table(found: Comparison) -> pl.DataFrame:
    """A row a policy: the recommended one first, those that are out with the reason, last what cannot be performed."""
    today = None if found.today is None else found.today.gpu_hours_promised
    met = pl.when(pl.col("meets_target")).then(pl.lit("yes")).otherwise(pl.lit("no"))
    table = make_policy_table(found).with_columns(
        meets_target=pl.when(pl.col("policy") == TODAY).then(pl.lit("baseline")).otherwise(met),
        of_today=pl.col("gpu_hours_promised") / today if today else pl.lit(None, pl.Float64),
        best=pl.col("policy") != found.winner,
        name=pl.col("policy").replace(SHORT_NAMES),
    )
    hours = pl.col("gpu_hours_promised")
    order = ("best", ~pl.col("performable"), hours.is_null(), hours)
    return table.sort(*order, nulls_last=True, maintain_order=True).with_columns(policy="name")
