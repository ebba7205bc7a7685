"""What ``start`` says: a line a fact, aligned, the decision last; numbers as on the page, from the same object."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gpuplanner.cli.app import put, say
from gpuplanner.errors import file_name, printable
from gpuplanner.units import NOT_IN_SIGHT, counted, day_text, figure_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuplanner.inbox.core.findings import QualityWarning
    from gpuplanner.inbox.together import SourcePart
    from gpuplanner.study.decision.beginning import Beginning
    from gpuplanner.study.decision.projects import ProjectAnswer
    from gpuplanner.study.decision.record import Comparison
    from gpuplanner.study.decision.types import Decision

INDENT = 8
SHORT_CLASSES = 2
NAMED = 4


def line(label: str, text: str) -> None:
    """Say one fact."""
    say(f"{label:<{INDENT}}{text}".rstrip())


class PlayedWays:
    """Says which way is being tuned while that takes time; on a terminal it goes when it is done."""

    def __init__(self, *, talks: bool) -> None:
        self.talks = talks and sys.stderr.isatty()
        self.policy = ""

    def __call__(self, policy: str, _: object) -> None:
        """Say it where it is another one than before."""
        if policy != self.policy:
            self.policy = policy
            self._show(f"{'Ways':<{INDENT}}tuning {policy} ...")

    def doing(self, text: str) -> None:
        """Say what else takes time."""
        self._show(f"{'':<{INDENT}}{text} ...")

    def done(self) -> None:
        """Take it away."""
        self._show("")

    def _show(self, text: str) -> None:
        if self.talks:
            typer.echo(f"\r\x1b[K{printable(text)}", err=True, nl=False)


def read_lines(parts: Sequence[SourcePart], began: Beginning, rows: Mapping[str, int], folder: Path) -> None:
    """Say what was read: the jobs, and each further source."""
    from gpuplanner.inbox import SOURCES

    label = "Read"
    folder = min(folder, Path(os.path.relpath(folder)), key=lambda one: len(str(one)))
    for part in parts:
        text = SOURCES[part.source].description.partition(":")[0]
        if part.source == began.source:
            text += f", {counted(began.days, 'day')}, {counted(began.jobs, 'job')}, {counted(began.teams, 'team')}"
        elif part.source in rows:
            text += f", {counted(rows[part.source], 'row')}"
        names = ", ".join(file_name(path) for path in part.files[:NAMED])
        more = len(part.files) - NAMED
        names += f" and {more} more" if more > 0 else ""
        line(label, f"{names:<14} {text}{_left_out(began, folder) if part.source == began.source else ''}")
        label = ""
    if began.telemetry is not None:
        line("Match" if parts else "", began.telemetry)
    if not parts:
        counts = f"{counted(began.days, 'day')}, {counted(began.jobs, 'job')}, {counted(began.teams, 'team')}"
        line(label, f"{folder!s:<14} {counts}{_left_out(began, folder)}")


def _left_out(began: Beginning, folder: Path) -> str:
    if not began.left_out_rows:
        return ""
    rows = counted(began.left_out_rows, "row")
    return f"      {began.left_out_share:.1%} left out ({rows}: {folder / 'rejects.parquet'})"


def today_line(found: Comparison) -> None:
    """Say what today's fleet is, and how it serves."""
    one = found.decision
    board = one.board or "GPUs"
    inferred = ", inferred from its jobs" if one.fleet_inferred else ""
    text = f"{one.fleet_gpus:,} {board}{inferred}"
    if found.today is not None and found.today.by_class:
        worst = figure_text(max(row.late_quantile_min for row in found.today.by_class), ",.0f")
        text += f"; in the simulation {one.service.quantile:.0%} of each job size wait at most {worst} min"
    line("Today", text)


def warning_lines(warnings: Sequence[QualityWarning]) -> None:
    """Show the warnings of the quality report, each with its count and its GPU-hours."""
    from gpuplanner.inbox.core.findings import warning_text

    if warnings:
        put("\nWarnings")
    for warning in warnings:
        put(f"  {warning_text(warning)}")


def ways_line(found: Comparison) -> None:
    """Say how many ways were played, and on which days."""
    if not found.policies:
        line("Ways", f"none could be judged: {found.decision.confidence}")
        return
    there = sum(row.gpu_hours is not None for row in found.policies)
    text = f"{there} of {len(found.policies)} can be had"
    if found.tuned_from is not None and found.judged_from is not None and found.judged_to is not None:
        first, split, last = (
            day_text(text) for text in (found.tuned_from, found.judged_from, found.judged_to)
        )
        apart = f"tuned from {first}, judged from {split} to {last}"
        text += f", {apart if first != split else f'each day from {first} to {last} judged by the others'}"
    line("Ways", text)


def decision_lines(one: Decision, data: str) -> None:
    """The decision: its sentences, figures, what to do on Monday, and what is missing."""
    here = min(data, os.path.relpath(data), key=len)  # as a person types it
    put("")
    for text in sentences(one):
        put(text)
    rows = list(figures(one))
    if rows:
        put("")
    width = max((len(label) for label, _ in rows), default=0)
    for label, text in rows:
        put(f"  {label:<{width}}   {text}")
    if one.monday:
        put("\nOn Monday")
        for number, text in enumerate(one.monday, start=1):
            put(f"  {number}  {text.replace(data, here)}")
    if one.missing:
        put("")
    for number, missing in enumerate(one.missing):
        put(f"{'Missing' if number == 0 else '':<9} {missing.what}: {missing.command.replace(data, here)}")


def sentences(one: Decision) -> list[str]:
    """The sentences of a decision, a line each."""
    parts = one.sentence.split(". ")
    return [f"{part}." for part in parts[:-1]] + parts[-1:]


def figures(one: Decision) -> list[tuple[str, str]]:
    """Figures under the decision: what is not known is left out."""
    if one.action == "unknown":
        return []
    held = (
        ""
        if one.gpus_hold_rate is None
        else f"held in {one.gpus_hold_rate:.0%} of the days not used to set it"
    )
    rows = [("GPUs on at once", f"{one.gpus:,} of {one.fleet_gpus:,}     {held}".rstrip())]
    saving = one.saving
    if saving.value is not None:
        span = "" if not saving.varies else f"     {saving.low:,.0f} to {saving.high:,.0f} in 9 weeks of 10"
        rows.append(("GPU-hours a week", f"{saving.value:,.0f} saved{span}"))
    if saving.value is not None or one.worth.usd_per_week is not None:
        rows.append(("Worth", one.worth.basis.replace("\n", " ")))
    if one.run_out.today.date is not None:
        later = one.run_out.recommended.date
        rows.append(
            (
                "Too small",
                f"by {day_text(one.run_out.today.date)}; as recommended {day_text(later) if later else NOT_IN_SIGHT}",
            )
        )
    if one.shortage.jobs:
        short = sorted(one.shortage.by_class, key=lambda row: -row.jobs)[:SHORT_CLASSES]
        named = ", ".join(f"{row.size_class} {row.jobs:,}" for row in short if row.jobs)
        why = (
            f"{one.shortage.by_place:,} of them by place, not number"
            if one.shortage.by_place
            else "by number"
        )
        rows.append(("Short", f"{one.shortage.jobs:,} jobs a week waited ({named}); {why}"))
    if one.left_out_share >= 0.01:
        rows.append(("Left out", f"{one.left_out_share:.0%} of the GPU-hours, whose jobs cannot be true"))
    rows.append(("Rests on", one.confidence))
    return rows


def project_lines(answers: Sequence[ProjectAnswer]) -> None:
    """What was announced, a line each."""
    if answers:
        put("\nProjects")
    for one in answers:
        put(f"  {one.sentence}")
