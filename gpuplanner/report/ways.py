"""Ways to run a fleet side by side: a picture, tables, a page of their own, and the decision that follows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from gpuplanner import plot
from gpuplanner._version import __version__
from gpuplanner.report import page
from gpuplanner.report.figures import headline
from gpuplanner.report.first_screen import badge, first_screen, fleet_words
from gpuplanner.report.section import Section
from gpuplanner.report.words import safe
from gpuplanner.study.decision.frames import (
    frontier_frame,
    limit_in_words,
    policies_met,
    policy_table,
    service_table,
    target_in_words,
)
from gpuplanner.study.decision.policies import SHORT
from gpuplanner.study.decision.record import Comparison
from gpuplanner.study.decision.types import TODAY
from gpuplanner.study.fleet_decision import fleet_sentence
from gpuplanner.study.waits.causes import CAUSES
from gpuplanner.study.waits.summary import cause_table
from gpuplanner.units import counted

if TYPE_CHECKING:
    from altair.typing import ChartType

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
    "limits": "limits",
    "unexplained": "not explained",
}


def frontier_chart(found: Comparison, pinned: Comparison | None = None) -> ChartType:
    """The frontier of a comparison, every way by its name in words."""
    return plot.plot_frontier(
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
            alt=f"{plot.frontier_text(frame, names=SHORT)} Lower is cheaper, left is faster.",
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
    return page.section("The decision", sentence, _screen(found))


def _screen(found: Comparison) -> str:
    return first_screen(found)


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
        origin = {
            "path": one.path,
            "target": target_in_words(first),
            "days": _judged(first),
        }
        return page.render_page(
            page.section("The decision", _screen(first)) + waits_section(first) + ways(first),
            title=title,
            subtitle=fleet_words(one),
            provenance=origin | {"gpuplanner": __version__},
            decision=headline(one),
            badge=badge(one),
        )
    body = [
        part
        for name, each in found.items()
        for part in (page.section(f"{name}: {headline(each.decision)}", _screen(each)), ways(each, name))
    ]
    decisions = {name: each.decision for name, each in found.items()}
    return page.render_page(
        "".join(body),
        title=title,
        subtitle=counted(len(found), "pool"),
        provenance={
            "pools": ", ".join(found), "target": target_in_words(first), "gpuplanner": __version__,
        },
        decision=fleet_sentence(decisions),
    )  # fmt: skip


def _named(frame: pl.DataFrame) -> pl.DataFrame:
    """Ways by what they are called on a page."""
    return frame.with_columns(pl.col("policy").replace(SHORT))


def _energy(found: Comparison) -> str:
    """Energy and carbon of a week under each way, with the range of the power, by the state of the GPUs."""
    names = (
        "policy",
        "off_gpu_hours",
        "saved_kwh",
        "energy_kwh",
        "energy_kwh_low",
        "energy_kwh_high",
        "carbon_kg",
    )
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
    table = table.sort(
        "best",
        ~pl.col("performable"),
        pl.col("gpu_hours_promised").is_null(),
        "gpu_hours_promised",
        nulls_last=True,
        maintain_order=True,
    )
    return table.with_columns(policy="name")
