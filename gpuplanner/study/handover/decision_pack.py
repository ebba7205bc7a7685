"""The files of what was decided, for those who carry it out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.errors import ScenarioError, message
from gpuplanner.export.fleet_rules import FleetRules, TenantQuota
from gpuplanner.export.pack import (PAGE, to_pack)
from gpuplanner.export.bundle_files import MeasureWords, Pack, PageWords
from gpuplanner.files.manifest import MANIFEST, Mark
from gpuplanner.files.folder import replaced_directory
from gpuplanner.hardware.change_cost import cost_of_change
from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.asked import RIGHTSIZED
from gpuplanner.study.decision.frames import curve_table, policy_table, service_table
from gpuplanner.study.decision.policies import WAYS
from gpuplanner.study.decision.record import Comparison, compared
from gpuplanner.study.decision.sentences import IDLE_ACTIONS
from gpuplanner.study.decision.types import ROUNDING_MINUTES, Decision
from gpuplanner.study.future.drains import drain_of
from gpuplanner.study.past.history import History, history
from gpuplanner.units import wait_text

MARK = Mark(MANIFEST, "gpuplanner export 1")
ENDS_WAITS = ("pack", "raise_limit", "repartition", "rightsize")
FOLDER = "export"
"""Where the pack stands in the folder of a report or of a start."""


def decision_pack(scenario: Scenario, found: Comparison, *, gres_type: str | None = None) -> Pack | None:
    """The files of what was decided, and the page that says how to use them; None where nothing was."""
    rules, decision = found.rules, found.decision
    if rules is None:
        return None
    known = history(scenario)
    change = cost_of_change(scenario, known.fleet.board)
    rules = replace(rules, quotas=tuple(_quotas(known)))
    told = PageWords(
        decision.sentence,
        WAYS[decision.policy].meaning,
        touched=tuple(_touched(decision)),
        means=_means(rules),
        measures=tuple(_measures(decision)),
        command=f"gpuplanner export {scenario.data} --path {rules.path}",
    )
    return to_pack(rules, told, change, drain_of(scenario, change), gres_type=gres_type)


def pack_into(scenario: Scenario, found: Comparison, folder: Path) -> Pack | None:
    """Write the pack into a folder of its own in the folder of a page."""
    pack = decision_pack(scenario, found)
    if pack is not None:
        write_pack(pack, folder / FOLDER)
    return pack


def export_decision(
    scenario: Scenario, out: str | Path, *, gres_type: str | None = None
) -> tuple[list[Path], tuple[str, ...]]:
    """Decide, and write the files of it: their places, and what was left out of them."""
    found = compared(scenario)
    pack = decision_pack(scenario, found, gres_type=gres_type)
    if pack is None:
        text = message(f"export of {scenario.name}", "a decision", found.decision.sentence, "Read more jobs.")
        raise ScenarioError(text)
    with replaced_directory(out, mark=MARK) as folder:
        write_pack(pack, folder)
    return [Path(out) / name for name in sorted(pack.files)], tuple(pack.warnings)


def hand_over(scenario: Scenario, found: Comparison, out: str | Path) -> Path:
    """Write the pack of a comparison that is at hand, and a workbook of its figures, into a folder: its README.

    It is what the button of the what-if panel does: ``hand_over(scenario, found, "build/export")``.
    """
    from gpuplanner.export.workbook import write_workbook

    pack = decision_pack(scenario, found)
    tables = {
        "Policies": policy_table(found),
        "Waits": service_table(found),
        "Wait curve": curve_table(found),
    }
    notes = {"Decision": found.decision.sentence, "How sure": " ".join(found.decision.how_sure)}
    with replaced_directory(out, mark=MARK) as folder:
        if pack is not None:
            write_pack(pack, folder)
        write_workbook(
            folder / "workbook.xlsx", tables, title=scenario.name, notes=notes, locale=scenario.number_locale
        )
    return Path(out) / (PAGE if pack is not None else "workbook.xlsx")


def write_pack(pack: Pack, folder: Path) -> list[Path]:
    """Write the files of a pack into a folder."""
    for name, text in pack.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in sorted(pack.files)]


def _quotas(known: History) -> Iterator[TenantQuota]:
    """What tenants may hold of the board, where its queues were read; flavors of other boards are left out."""
    board, table = known.fleet.board, known.trace.quotas
    if table is None:
        return
    share = pl.col("profile").map_elements(board.share, return_dtype=pl.Float64).fill_null(1.0)
    gpus = {name: (pl.col(name) * share).sum() for name in ("nominal", "borrow", "lend")}
    mine = table.filter(pl.col("gpu_model").fill_null(board.name) == board.name)
    rows = mine.group_by("tenant", maintain_order=True).agg(
        gpus["nominal"],
        *(
            pl.when(pl.col(name).is_null().any()).then(None).otherwise(gpus[name]).alias(name)
            for name in ("borrow", "lend")
        ),
        pl.col("cohort", "namespaces").first(),
    )  # fmt: skip
    for tenant, own, borrow, lend, cohort, namespaces in rows.iter_rows():
        yield TenantQuota(
            tenant, own, cohort, borrow, lend, tuple((namespaces or "").split(",") if namespaces else ())
        )


def _touched(decision: Decision) -> Iterator[str]:
    """Who starts later than today, and who is asked to ask otherwise."""
    later = [one for one in decision.service if one.added_p95_minutes > ROUNDING_MINUTES]
    for one in later:
        yield (
            f"Jobs on {one.size}: p95 queue wait {wait_text(one.recommended_p95_minutes)}, today "
            f"{wait_text(one.today_p95_minutes)}."
        )
    if decision.measures and decision.measures[-1].action in IDLE_ACTIONS:
        yield "Jobs that find no node powered on: they wait until one has come."
    elif not later and len(decision.measures) > 1:
        yield "None if the measures are in force in this order: then the p95 queue wait rises for no job size."
    elif not later:
        yield "None: the p95 queue wait rises for no job size."


def _measures(decision: Decision) -> Iterator[MeasureWords]:
    """The measures in order, each with what has to be seen before it."""
    latest = decision.latest
    again = decision.next_steps[-1].command if decision.next_steps else None
    for number, one in enumerate(decision.measures):
        condition = f"Only once {number} is in force." if one.condition else ""
        if one.condition and latest and decision.measures[number - 1].action in ENDS_WAITS:
            condition = (
                f"Only once {number} is in force and has shortened waits: p95 queue wait on {latest.size} "
                f"{wait_text(latest.today_p95_minutes)} today, {wait_text(latest.recommended_p95_minutes)} simulated "
                f"with all measures. Let a week pass, export the jobs again, and see it with `{again}`: "
                f"without {number} jobs wait longer."
            )
        steps = [(step.what, step.command) for step in decision.next_steps if step.action == one.action]
        yield MeasureWords(one.action, one.text, condition, steps)


def _means(rules: FleetRules) -> str:
    """What has to hold for the figures to hold."""
    if rules.requests == RIGHTSIZED:
        return (
            "It holds if jobs ask for the slice that they need and not for more: `gpuplanner hints DATA` lists what to "
            "write into which job, from the data that this was decided on; agree on it with owners before anything "
            "below, and have jobs changed once the check below passes."
        )
    return "Jobs ask for what they ask for today."
