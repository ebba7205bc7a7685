"""Questions, output folder and messages of the command ``start``."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gpuplanner.cli.application import put, say
from gpuplanner.core.errors import escape_controls, printable_file_name
from gpuplanner.core.output_places import MANIFEST, FolderMark, WrittenFile, read_manifest, write_manifest_file
from gpuplanner.core.output_writing import replace_directory
from gpuplanner.core.scenario_fields import OWNERSHIP_OWNED, OWNERSHIP_RENTED, OWNERSHIPS
from gpuplanner.core.serialization import sha256
from gpuplanner.core.units import count_text, day_text, percent_text, wait_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpuplanner.core.scenario import Scenario
    from gpuplanner.decision.comparison_record import Comparison
    from gpuplanner.decision.decision_types import Decision
    from gpuplanner.decision.projects import ProjectAnswer
    from gpuplanner.decision.study_pipeline import DatasetSummary
    from gpuplanner.ingest.dataset_import import SourceFiles
    from gpuplanner.ingest.quality_report import QualityWarning
    from gpuplanner.usage.job_history import FleetPools


INDENT = 11
NAMED = 4
LONG_S = 2.0
"""Seconds after which a step that is still going shows its progress."""


def line(label: str, text: str) -> None:
    """Print one fact on stderr."""
    say(f"{label:<{INDENT}}{text}".rstrip())


class Progress:
    """Shows on a terminal the step that takes long, and removes the line when the step is done."""

    def __init__(self, *, talks: bool) -> None:
        self.talks = talks and sys.stderr.isatty()
        self.began = time.monotonic()

    def __call__(self, policy: str, _: object) -> None:
        """Show the policy that is being simulated."""
        self.doing(f"simulating {policy}", label="Policies")

    def doing(self, text: str, label: str = "") -> None:
        """Show the step, if the wait is longer than two seconds."""
        if time.monotonic() - self.began > LONG_S or not label:
            self._show(f"{label:<{INDENT}}{text} ...")

    def done(self) -> None:
        """Remove the line."""
        self._show("")

    def _show(self, text: str) -> None:
        if self.talks:
            typer.echo(f"\r\x1b[K{escape_controls(text)}", err=True, nl=False)


def read_lines(parts: Sequence[SourceFiles], began: DatasetSummary, rows: Mapping[str, int], folder: Path) -> None:
    """Print the files that were read: the jobs, and each further source."""
    from gpuplanner.ingest.source_registry import SOURCES

    label = "Read"
    folder = min(folder, Path(os.path.relpath(folder)), key=lambda one: len(str(one)))
    counts = f"{count_text(began.days, 'day')}, {count_text(began.jobs, 'job')}, {count_text(began.teams, 'team')}"
    left_out = ""
    if began.left_out_rows:
        rejects = f"{count_text(began.left_out_rows, 'row')}: {folder / 'rejects.parquet'}"
        left_out = f"    {100 * began.left_out_share:.1f} % rejected ({rejects})"
    for part in parts:
        text = SOURCES[part.source].description.partition(":")[0]
        if part.source == began.source:
            text += f", {counts}"
        elif part.source in rows:
            text += f", {count_text(rows[part.source], 'row')}"
        names = ", ".join(printable_file_name(path) for path in part.files[:NAMED])
        more = len(part.files) - NAMED
        names += f" and {more} more" if more > 0 else ""
        line(label, f"{names:<14} {text}{left_out if part.source == began.source else ''}")
        label = ""
    if began.telemetry is not None:
        line("Telemetry" if parts else "", began.telemetry)
    if not parts:
        line(label, f"{folder!s:<14} {counts}{left_out}")


def today_line(found: Comparison) -> None:
    """Print today's fleet and the causes of its queue waits."""
    one = found.decision
    inferred = ", inferred from the jobs" if one.fleet_inferred else ""
    text = f"{one.fleet_gpus:,} {one.gpu_model or 'GPUs'}{inferred}"
    longest = max(one.service, key=lambda row: row.observed_p95_minutes, default=None)
    if longest is not None:
        text += f"; p95 queue wait {wait_text(longest.observed_p95_minutes)} (jobs on {longest.size})"
    line("Today", text)
    if found.waits is not None:
        line("Waits", found.waits.main_cause_text)


def warning_lines(warnings: Sequence[QualityWarning]) -> None:
    """Show the warnings of the quality report, each with its count and its GPU-hours."""
    from gpuplanner.ingest.quality_report import format_warning

    if warnings:
        put("\nWarnings", *(f"  {format_warning(warning)}" for warning in warnings))


def policies_line(found: Comparison) -> None:
    """Print how many policies meet the limit, as in the table of policies, and the days behind that."""
    from gpuplanner.decision.comparison_record import format_policies_within_limit

    if not found.policies:
        line("Policies", "not compared: the record is too short")
        return
    text = format_policies_within_limit(found)
    if found.tuned_from is not None and found.judged_from is not None and found.judged_to is not None:
        first, split = day_text(found.tuned_from), day_text(found.judged_from)
        text += f"; fitted from {first}" if first != split else ""
        text += f"{', ' if first != split else '; '}evaluated from {split} to {day_text(found.judged_to)}"
    line("Policies", text)


def decision_lines(found: Comparison, data: str, out_dir: Path) -> None:
    """Print the recommendation: sentences, figures, next steps and missing data; the bundle is in a folder."""
    one = found.decision
    here = min(data, os.path.relpath(data), key=len)  # as a person types it
    put("", *sentences(one))
    if rows := figures(found):
        put("", *(f"  {label:<18} {text}" for label, text in rows))
    if one.next_steps:
        put("\nNext steps")
        texts = [": ".join(filter(None, (step.who, step.what))) for step in one.next_steps]
        width = max((len(text) for text in texts if len(text) <= STEP), default=0)
        for number, (step, text) in enumerate(zip(one.next_steps, texts, strict=True), start=1):
            command = "" if step.command is None else step.command.replace(data, here)
            if found.rules is not None and command.startswith("gpuplanner export "):
                command = f"apply the change bundle, open {out_dir / 'export' / 'README.md'}"
            apart = f"\n{'':<5}" if command and len(text) > STEP else "  "
            put(f"  {number}  {text:<{width}}{apart}{command}".rstrip())
    if one.missing:
        put("")
    for number, missing in enumerate(one.missing):
        put(f"{'Missing' if number == 0 else '':<{INDENT}}{missing.what}: {missing.command.replace(data, here)}")


STEP = 72
"""Longest text of a step whose command stands beside it."""


def sentences(one: Decision) -> list[str]:
    """The sentences of a decision, a line each."""
    parts = one.sentence.split(". ")
    return [f"{part}." for part in parts[:-1]] + parts[-1:]


def figures(found: Comparison) -> list[tuple[str, str]]:
    """Four lines under the recommendation: GPUs, allocation, energy and the next purchase."""
    one, ends, impact = found.decision, found.exhaustion, found.decision.financial_impact
    if one.action == "none":
        return []
    saving = one.saving
    freed = "" if saving.value is None else f"    {saving.value:,.0f} GPU-hours freed a week"
    if freed and saving.varies:
        freed += f" (90 % interval {saving.low:,.0f} to {saving.high:,.0f})"
    gpus = f"{one.fleet_gpus:,} → {one.gpus:,}" if one.gpus > one.fleet_gpus else f"{one.gpus:,} of {one.fleet_gpus:,}"
    rows = [("GPUs needed", f"{gpus}{freed}")]
    now, then = found.today, found.find_row(one.policy) or found.today
    if now is not None and then is not None:
        used = [row.busy_gpu_hours / row.gpu_hours for row in (now, then)
                if row.gpu_hours and row.busy_gpu_hours is not None]  # fmt: skip
        if one.gpus > one.fleet_gpus:  # no policy was simulated on the GPUs of a purchase
            curve = {point.gpus: point.utilization for point in found.wait_curve}
            used = [curve[gpus] for gpus in (one.fleet_gpus, one.gpus) if gpus in curve]
        shares = [percent_text(share) for share in used]
        ended = [wait_text(row.completion_mean_min) for row in (now, then) if row.completion_mean_min is not None]
        completion = f"    mean completion time {_change(ended)}" if ended else ""
        rows.append(("Allocated", f"{_change(shares) or '–'} of provisioned GPU-hours{completion}"))
    if impact.kwh_per_week is not None:
        dollars = "" if not impact.usd_per_week else f", {impact.usd_per_week:,.2f} USD"
        rows.append(("Energy", f"{impact.kwh_per_week:,.0f} kWh less a week{dollars}"))
    elif impact.ownership == OWNERSHIP_OWNED:
        why = "not known: it rises with the GPUs that are bought" if one.gpus > one.fleet_gpus else saving.reason
        rows.append(("Energy", f"– ({why or 'the power of the GPU model is not known'})"))
    else:
        rows.append(("Financial impact", impact.basis.replace("\n", " ")))
    bought = any(measure.action == "buy" for measure in one.measures)
    if bought:
        rows.append(("Next purchase", f"now, {one.gpus - one.fleet_gpus:,} GPUs"))
    elif ends.date is None or ends.order_by is None:
        rows.append(("Next purchase", f"– ({ends.reason or 'no date'})"))
    else:
        rows.append(("Next purchase", f"{day_text(ends.date)}, order by {day_text(ends.order_by)}"))
    if one.left_out_share >= 0.01:
        rows.append(("Left out", f"{100 * one.left_out_share:.0f} % of the GPU-hours, of implausible jobs"))
    return rows


def _change(texts: Sequence[str]) -> str:
    """Text of today's value, and of the recommended one where it differs."""
    return " → ".join(dict.fromkeys(texts))


def project_lines(answers: Sequence[ProjectAnswer]) -> None:
    """Print the announced projects, a line each."""
    if answers:
        put("\nProjects", *(f"  {one.sentence}" for one in answers))


UTC = "UTC"
OFFSET_HOURS = 14


@dataclass
class Asker:
    """Asks on a terminal, and takes defaults elsewhere.

    - ``asks``: Whether questions can be asked.
    - ``talks``: Whether facts are printed.
    """

    asks: bool
    talks: bool

    @classmethod
    def of(cls, *, yes: bool, talks: bool) -> Asker:
        """Ask only on a terminal, and not with ``--yes``."""
        return cls(asks=talks and not yes and sys.stdin.isatty() and sys.stderr.isatty(), talks=talks)

    def said(self, label: str, value: str, basis: str) -> None:
        """Print an assumption and its basis."""
        if self.talks:
            line(label, f"{value:<14} {basis}")

    def answer(self, label: str, question: str, default: str, check: Callable[[str], str]) -> tuple[str, bool]:
        """The answer to a question, as checked, and whether somebody gave it."""
        if not self.asks:
            return default, False
        while True:
            asked = f"{label:<{INDENT}}{question}, Enter = {default}]"
            text = typer.prompt(asked, default=default, show_default=False, err=True)
            try:
                return check(text.strip()), True
            except ValueError as fault:
                line("", str(fault))


def zone(asker: Asker, parts: tuple[SourceFiles, ...], stated: str | None) -> tuple[str | None, str | None, str]:
    """Zone to read naive times in, if there are any; the zone of calendar months, if files say; what both rest on."""
    from gpuplanner.ingest.dataset_import import find_utc_offsets

    if stated is not None:
        return stated, stated, "as stated"
    offsets, naive = find_utc_offsets(parts)
    if naive is None:
        return None, zone_of(offsets) if offsets else None, "from the offsets in the file (--tz)"
    question = f"times such as {naive!r} have no offset [name of the zone, such as Europe/Oslo"
    found, given = asker.answer("Time zone", question, UTC, known_zone)
    basis = "as answered" if given else f"assumed: times such as {naive} have no offset (--tz)"
    return found, found, basis


def zone_of(offsets: tuple[str, ...]) -> str:
    """Name of the zone of one offset of whole hours; UTC for others, and where there are several.

    Examples
    --------
    >>> zone_of(("+01:00",)), zone_of(("Z",)), zone_of(("+01:00", "+02:00"))
    ('Etc/GMT-1', 'UTC', 'UTC')
    """
    if len(offsets) != 1 or offsets[0] in ("Z", UTC):
        return UTC
    sign, digits = offsets[0][0], offsets[0][1:].replace(":", "")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours == 0 or minutes or hours > OFFSET_HOURS:
        return UTC
    return f"Etc/GMT{'-' if sign == '+' else '+'}{hours}"  # POSIX: the sign is the other way round


def known_zone(text: str) -> str:
    """A zone of the tz database."""
    from gpuplanner.ingest.source_fields import validate_time_zone as checked

    checked(text)
    return text


def gpu_model(asker: Asker) -> str | None:
    """GPU model that the data do not name; None: planned without MIG."""
    from gpuplanner.hardware.catalog import resolve_gpu_model

    none = "none"
    found, given = asker.answer(
        "GPU model", "not in the data [name of the model, such as A100-40GB", none,
        lambda text: none if text == none else resolve_gpu_model(text),
    )  # fmt: skip
    basis = "as answered" if given else "not in the data: planned without MIG and energy (--gpu-model)"
    asker.said("GPU model", found, basis)
    return None if found == none else found


def ownership(asker: Asker, actuator: str) -> str:
    """Whether the GPUs are owned, rented or reserved."""
    from gpuplanner.core.errors import resolve_name

    usual = OWNERSHIP_RENTED if actuator == "autoscaler" else OWNERSHIP_OWNED
    found, given = asker.answer(
        "Ownership", f"not in the data [{' / '.join(OWNERSHIPS)}", usual,
        lambda text: resolve_name(text, OWNERSHIPS, subject="ownership"),
    )  # fmt: skip
    basis = "as answered" if given else "assumed, not in the data (--set ownership=…)"
    asker.said("Ownership", found, basis)
    return found


NAME = "scenario.yaml"
BEGUN = FolderMark(MANIFEST, "gpuplanner report 1", names=("index.html", NAME))
"""The kind of folder that a report is, so that the one takes the place of the other; told without its libraries."""


def scenario_into(asked: Scenario, place: Path, found: Comparison) -> None:
    """Write scenario and pack alone: an older page would show another decision, and goes."""
    from gpuplanner.report.change_bundle import pack_into

    with replace_directory(place, mark=BEGUN) as folder:
        pack_into(asked, found, folder)
        (folder / NAME).write_text(_from(asked, place).to_yaml(), encoding="utf-8")


def page_into(asked: Scenario, place: Path) -> None:
    """Write the page with all that belongs to it."""
    from gpuplanner.report.report_rendering import write_report

    write_report(asked, place)
    # The report writes the scenario as it was asked, from the folder that it was asked in.
    if read_manifest(place) is not None:
        _write_scenario(asked, place)


def _write_scenario(asked: Scenario, place: Path) -> None:
    """Write the scenario with its files as they are found from its folder, and note it in the manifest."""
    told = read_manifest(place)
    (place / NAME).write_text(_from(asked, place).to_yaml(), encoding="utf-8")
    if told is not None:
        file = WrittenFile((place / NAME).stat().st_size, sha256(place / NAME))
        write_manifest_file(place, BEGUN, {**told[1], NAME: file})


def pools_into(
    pools: FleetPools,
    scenarios: Sequence[Scenario],
    place: Path,
    *,
    found: Mapping[str, Comparison] | None = None,
) -> None:
    """Write the page of several pools with a page of each; with what was found, the files of each alone.

    The scenario of a fleet in one dataset stands beside; several clusters are given again as they were.
    """
    from gpuplanner.report.change_bundle import pack_into
    from gpuplanner.report.report_rendering import FOLDER, folder_of, write_fleet_report

    if found is None:
        write_fleet_report(pools, " + ".join(one.name for one in scenarios), place)
    else:
        with replace_directory(place, mark=BEGUN) as folder:
            for name, own in pools.pools.items():
                (folder / FOLDER / folder_of(name)).mkdir(parents=True)
                pack_into(own, found[name], folder / FOLDER / folder_of(name))
    if len(scenarios) == 1:
        _write_scenario(scenarios[0], place)


def _from(asked: Scenario, place: Path) -> Scenario:
    """The scenario with its files as they are found from its folder."""
    own = asked if asked.data == "sample" else replace(asked, data=os.path.relpath(asked.data, place))
    from gpuplanner.core.scenario import FILE_PATH_FIELDS

    named = {name: file for name in FILE_PATH_FIELDS if (file := getattr(own, name)) is not None}
    return own.but(**{name: os.path.relpath(file, place) for name, file in named.items()})
