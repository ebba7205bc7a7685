"""What ``start`` says: a line a fact, aligned, the decision last; numbers as on the page, from the same object."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gpuplanner.cli.app import put, say
from gpuplanner.errors import file_name, printable
from gpuplanner.units import counted, day_text, wait_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuplanner.inbox.core.findings import QualityWarning
    from gpuplanner.inbox.together import SourcePart
    from gpuplanner.study.decision.beginning import Beginning
    from gpuplanner.study.decision.projects import ProjectAnswer
    from gpuplanner.study.decision.record import Comparison
    from gpuplanner.study.decision.types import Decision

INDENT = 8
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
    from gpuplanner.inbox.sources import SOURCES

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
    longest = max(one.service, key=lambda row: row.observed_p95_minutes, default=None)
    if longest is not None:
        wait = wait_text(longest.observed_p95_minutes)
        text += f"; observed p95 queue wait at most {wait} (jobs on {longest.size})"
    line("Today", text)
    if found.waits is not None:
        line("Waits", found.waits.sentence)


def warning_lines(warnings: Sequence[QualityWarning]) -> None:
    """Show the warnings of the quality report, each with its count and its GPU-hours."""
    from gpuplanner.inbox.core.findings import warning_text

    if warnings:
        put("\nWarnings")
    for warning in warnings:
        put(f"  {warning_text(warning)}")


def ways_line(found: Comparison) -> None:
    """Say how many policies meet the limit, as in the table of policies, and on which days."""
    from gpuplanner.study.decision.frames import policies_met

    if not found.policies:
        line("Policy", "none could be evaluated: the record is too short")
        return
    text = policies_met(found)
    if found.tuned_from is not None and found.judged_from is not None and found.judged_to is not None:
        first, split, last = (
            day_text(text) for text in (found.tuned_from, found.judged_from, found.judged_to)
        )
        apart = f"fitted from {first}, evaluated from {split} to {last}"
        text += f", {apart}" if first != split else f", evaluated from {first} to {last}"
    line("Policy", text)


def decision_lines(found: Comparison, data: str) -> None:
    """The decision: its sentences, figures, next steps, and what is missing."""
    one = found.decision
    here = min(data, os.path.relpath(data), key=len)  # as a person types it
    put("")
    for text in sentences(one):
        put(text)
    rows = list(figures(found))
    if rows:
        put("")
    width = max((len(label) for label, _ in rows), default=0)
    for label, text in rows:
        put(f"  {label:<{width}}   {text}")
    if one.next_steps:
        put("\nNext steps")
        for number, step in enumerate(one.next_steps, start=1):
            put(f"  {number}  {step.text.replace(data, here)}")
    if one.missing:
        put("")
    for number, missing in enumerate(one.missing):
        put(f"{'Missing' if number == 0 else '':<9} {missing.what}: {missing.command.replace(data, here)}")


def sentences(one: Decision) -> list[str]:
    """The sentences of a decision, a line each."""
    parts = one.sentence.split(". ")
    return [f"{part}." for part in parts[:-1]] + parts[-1:]


def figures(found: Comparison) -> list[tuple[str, str]]:
    """Figures under the decision: what is not known is left out."""
    one, ends, saving = found.decision, found.exhaustion, found.decision.saving
    if one.action == "none":
        return []
    rows = [("GPUs needed", f"{one.gpus:,} of {one.fleet_gpus:,}")]
    if one.latest is not None:
        now, then = (
            wait_text(each) for each in (one.latest.today_p95_minutes, one.latest.recommended_p95_minutes)
        )
        observed = wait_text(one.latest.observed_p95_minutes)
        how = "" if observed == now else f" simulated, observed {observed}"
        limit = f"limit {one.latest.limit_minutes:,.0f} min"
        rows.append(("p95 wait", f"{now} -> {then}{how} for jobs on {one.latest.size}, {limit}"))
    if saving.value is not None:
        span = "" if not saving.varies else f"     {saving.low:,.0f} to {saving.high:,.0f} in 9 of 10 weeks"
        rows.append(("Freed a week", f"{saving.value:,.0f} GPU-hours{span}"))
    if saving.value is not None or one.worth.usd_per_week is not None:
        rows.append(("Worth", one.worth.basis.replace("\n", " ")))
    if ends.date is not None and ends.order_by is not None:
        rows.append(("Exhausted", f"by {day_text(ends.date)}; order by {day_text(ends.order_by)}"))
    if one.left_out_share >= 0.01:
        rows.append(("Left out", f"{one.left_out_share:.0%} of the GPU-hours, whose jobs cannot be true"))
    return rows


def project_lines(answers: Sequence[ProjectAnswer]) -> None:
    """What was announced, a line each."""
    if answers:
        put("\nProjects")
    for one in answers:
        put(f"  {one.sentence}")
