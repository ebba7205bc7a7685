"""Teams of one fleet on a page: what each was due and got, who borrowed from whom, why jobs waited."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from gpuplanner import plot
from gpuplanner._version import __version__
from gpuplanner.report import page
from gpuplanner.report.section import Section
from gpuplanner.study.tenants.advice import QuotaAdvice
from gpuplanner.study.tenants.fairness import Fairness
from gpuplanner.study.tenants.tried import SharingTried

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
_TRIED = {
    "team": "team",
    "jobs": "jobs",
    "waited_before": "waited before",
    "waited_after": "waited after",
    "change": "change",
    "change_low": "change, low",
    "change_high": "change, high",
    "verdict": "verdict",
    "lost_before": "lost before",
    "lost_after": "lost after",
    "stops_after": "stops after",
    "failures_after": "failures after",
    "never_before": "never start before",
    "never_after": "never start after",
}
_PLACEMENTS = {
    "placement": "placement",
    "jobs": "jobs",
    "multi_node_jobs": "on several nodes",
    "slowdown": "slow-down of these",
    "lost_gpu_hours": "lost GPU-hours",
    "mean_wait_minutes": "mean wait, min",
    "never_started": "never started",
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
    alone = (
        ""
        if found.mean_rho is None
        else f"Jobs took {found.mean_rho:.2f} times as long as on their team's share alone (a pool without fragments), "
        f"at most {found.max_rho:,.1f} times; 1 is what sharing promises."
    )
    return page.fold(
        title,
        page.paragraph(found.sentence),
        *(page.note(note) for note in found.notes),
        page.figure(
            plot.plot_entitlements(accounts),
            title="GPU-hours held and missing, by team",
            alt=plot.entitlements_text(accounts),
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
        page.paragraph(alone) if alone else "",
        "" if tried is None else _tried(tried),
        *(() if ahead is None else (page.table(table, caption=title) for title, table in ahead.told)),
        *(() if ahead is None else (page.note(note) for note in ahead.notes)),
        page.figure(
            plot.plot_borrowing(found.borrowed),
            title="GPU-hours borrowed, by borrower and lender",
            alt=plot.borrowing_text(found.borrowed),
            numbers=found.borrowed,
        )
        if found.borrowed.height
        else "",
        page.figure(
            plot.plot_tenant_shares(found.shares),
            title="GPUs held over time, by team",
            alt="How many GPUs each team held, slot by slot.",
        )
        if found.shares["gpus"].max()
        else "",
        about="what each was due, got, lent, borrowed and is owed",
    )


def _tried(found: SharingTried) -> str:
    """The same weeks under two sets of rules."""
    return "".join(
        (
            page.paragraph(found.sentence),
            page.table(
                found.teams.select(list(_TRIED)),
                caption=f"{found.after} instead of {found.before}, GPU-hours a week (intervals {found.blocks})",
                headings=_TRIED,
                formats=dict.fromkeys(
                    _TRIED.keys() - {"team", "jobs", "verdict", "never_before", "never_after"}, ",.1f"
                ),
            ),
            *(page.note(note) for note in found.notes),
        )
    )


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
    sources, starts = (
        "; ".join(dict.fromkeys(texts))
        for texts in ([one.rules.source for one in found.values()], [one.basis for one in found.values()])
    )
    return page.write_drawn(
        path,
        page=lambda: page.render_page(
            "".join(sections).replace("<details><summary><h2>", "<details open><summary><h2>"),
            title=title,
            subtitle=" ".join(said.values()),
            provenance={"entitlements": sources, "starts": starts, "gpuplanner": __version__},
        ),
        picture=lambda: page.told_svg(
            [plot.plot_entitlements(_accounts(one)) for one in found.values()], list(said.values())
        ),
        locale=locale,
    )
