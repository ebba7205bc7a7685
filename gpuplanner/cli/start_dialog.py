"""Questions, output folder and messages of the command ``start``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gpuplanner.cli.application import echo, notify
from gpuplanner.core.errors import escape_controls, printable_file_name
from gpuplanner.core.output_manifests_and_overwrite_checks import (
    MANIFEST,
    FolderMark,
    WrittenFile,
    delete_written_files,
    list_written_files,
    read_manifest,
    write_manifest_file,
)
from gpuplanner.core.output_writing import replace_directory
from gpuplanner.core.serialization import sha256
from gpuplanner.core.setting_rules_and_controls import OWNERSHIP_OWNED, OWNERSHIP_RENTED, OWNERSHIPS
from gpuplanner.core.stage_cache_and_data_folders import input_hashes
from gpuplanner.core.units_and_number_formats import count_text, day_text, percent_text, wait_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpuplanner.core.scenario import Scenario
    from gpuplanner.decision.announced_projects import ProjectAnswer
    from gpuplanner.decision.comparison_record import Comparison
    from gpuplanner.decision.decision_types import Decision
    from gpuplanner.decision.inference_answers import InferenceAnswer
    from gpuplanner.decision.study_pipeline import DatasetSummary
    from gpuplanner.ingest.dataset_import import SourceFiles
    from gpuplanner.ingest.quality_report import QualityWarning
    from gpuplanner.usage.planning_history import FleetPools


LABEL_WIDTH_CHARACTERS = 11
"""Width of the label column of messages. [characters]"""
MAX_NAMED_FILES = 4
"""Largest number of imported files that a message names."""
MIN_SHOWN_STEP_S = 2.0
"""Duration from which a running step shows its progress. [s]"""


def print_fact(label: str, text: str) -> None:
    """Print a label and a text on stderr."""
    notify(f"{label:<{LABEL_WIDTH_CHARACTERS}}{text}".rstrip())


class Progress:
    """Progress line on a terminal that shows a long step while it runs."""

    def __init__(self, *, verbose: bool) -> None:
        self.verbose = verbose and sys.stderr.isatty()
        self.began = time.monotonic()

    def __call__(self, policy: str, _: object) -> None:
        """Show the policy that is being simulated."""
        self.show_step(f"simulating {policy}", label="Policies")

    def show_step(self, text: str, label: str = "") -> None:
        """Show a step if it is a policy, or if more than :data:`MIN_SHOWN_STEP_S` have passed."""
        if time.monotonic() - self.began > MIN_SHOWN_STEP_S or not label:
            self._show(f"{label:<{LABEL_WIDTH_CHARACTERS}}{text} ...")

    def clear(self) -> None:
        """Remove the line."""
        self._show("")

    def _show(self, text: str) -> None:
        """Replace the text of the progress line; nothing unless progress is shown (``verbose``)."""
        if self.verbose:
            typer.echo(f"\r\x1b[K{escape_controls(text)}", err=True, nl=False)


def print_files_read(
    parts: Sequence[SourceFiles], summary: DatasetSummary, rows: Mapping[str, int], folder: Path
) -> None:
    """Print the files that were read by source, with the number of days, jobs and teams.

    Parameters
    ----------
    parts : sequence of SourceFiles
        Files by source; empty for a dataset folder.
    summary : DatasetSummary
        Counts of the dataset.
    rows : mapping of str to int
        Imported rows by source.
    folder : Path
        Dataset folder.
    """
    from gpuplanner.ingest.source_registry import SOURCES

    label = "Read"
    folder = min(folder, Path(os.path.relpath(folder)), key=lambda path: len(str(path)))
    sizes = {"day": summary.days, "job": summary.jobs, "team": summary.teams}
    counts = ", ".join(count_text(number, name) for name, number in sizes.items())
    left_out = ""
    if summary.left_out_rows:
        rejects = f"{count_text(summary.left_out_rows, 'row')}: {folder / 'rejects.parquet'}"
        left_out = f"    {100 * summary.left_out_share:.1f} % rejected ({rejects})"
    for part in parts:
        text = SOURCES[part.source].description.partition(":")[0]
        if part.source == summary.source:
            text += f", {counts}"
        elif part.source in rows:
            text += f", {count_text(rows[part.source], 'row')}"
        names = ", ".join(printable_file_name(path) for path in part.files[:MAX_NAMED_FILES])
        unnamed = len(part.files) - MAX_NAMED_FILES
        names += f" and {unnamed} more" if unnamed > 0 else ""
        print_fact(label, f"{names:<14} {text}{left_out if part.source == summary.source else ''}")
        label = ""
    if summary.telemetry is not None:
        print_fact("Telemetry" if parts else "", summary.telemetry)
    if not parts:
        print_fact(label, f"{folder!s:<14} {counts}{left_out}")


def print_today(comparison: Comparison) -> None:
    """Print today's fleet and the causes of its queue waits."""
    decision = comparison.decision
    inferred = ", inferred from the jobs" if decision.fleet_inferred else ""
    text = f"{decision.fleet_gpus:,} {decision.gpu_model or 'GPUs'}{inferred}"
    longest = max(decision.service, key=lambda row: row.observed_p95_minutes, default=None)
    if longest is not None:
        text += f"; p95 queue wait {wait_text(longest.observed_p95_minutes)} (jobs on {longest.size})"
    print_fact("Today", text)
    if comparison.waits is not None:
        print_fact("Waits", comparison.main_cause_text)


def print_warnings(warnings: Sequence[QualityWarning]) -> None:
    """Print the warnings of the quality report, each with its count and its GPU-hours."""
    from gpuplanner.ingest.quality_report import format_warning

    if warnings:
        echo("\nWarnings", *(f"  {format_warning(warning)}" for warning in warnings))


def print_policies(comparison: Comparison) -> None:
    """Print how many policies meet the wait limit, and the days on which they were fitted and evaluated."""
    from gpuplanner.decision.comparison_record import describe_windows, format_policies_within_limit

    if not comparison.policies:
        print_fact("Policies", f"not compared: {comparison.decision.reason}")
        return
    print_fact("Policies", f"{format_policies_within_limit(comparison)}; {describe_windows(comparison)}")


def print_decision(comparison: Comparison, data: str, out_dir: Path) -> None:
    """Print the recommendation: sentences, key numbers, next steps and missing data.

    `out_dir` is the folder with the change bundle, which the text names.
    """
    decision = comparison.decision
    shown_data = min(data, os.path.relpath(data), key=len)  # as a person types it
    echo("", *split_sentences(decision))
    if rows := decision_key_numbers(comparison):
        echo("", *(f"  {label:<18} {text}" for label, text in rows))
    if decision.next_steps:
        echo("\nNext steps")
        texts = [": ".join(filter(None, (step.who, step.what))) for step in decision.next_steps]
        width = max((len(text) for text in texts if len(text) <= MAX_INLINE_STEP_LENGTH), default=0)
        for number, (step, text) in enumerate(zip(decision.next_steps, texts, strict=True), start=1):
            command = "" if step.command is None else step.command.replace(data, shown_data)
            if comparison.rules is not None and command.startswith("gpuplanner export "):
                command = f"apply the change bundle, open {out_dir / 'export' / 'README.md'}"
            separator = f"\n{'':<5}" if command and len(text) > MAX_INLINE_STEP_LENGTH else "  "
            echo(f"  {number}  {text:<{width}}{separator}{command}".rstrip())
    if decision.missing:
        echo("")
    for number, missing in enumerate(decision.missing):
        label = "Missing" if number == 0 else ""
        echo(f"{label:<{LABEL_WIDTH_CHARACTERS}}{missing.what}: {missing.command.replace(data, shown_data)}")


MAX_INLINE_STEP_LENGTH = 72
"""Longest text of a step whose command is printed on the same line [characters]."""


def split_sentences(decision: Decision) -> list[str]:
    """Split the text of a decision into sentences."""
    parts = decision.sentence.split(". ")
    return [f"{part}." for part in parts[:-1]] + parts[-1:]


def decision_key_numbers(comparison: Comparison) -> list[tuple[str, str]]:
    """Return label and text of the key numbers of a decision: GPUs, allocation, energy and the next purchase."""
    from gpuplanner.decision.decision_types import IDLE_ACTIONS

    decision, exhaustion, impact = comparison.decision, comparison.exhaustion, comparison.decision.financial_impact
    if decision.action == "none":
        return []
    saving = decision.saving
    freed = "" if saving.value is None else f"    {saving.value:,.0f} GPU-hours freed a week"
    if freed and saving.varies:
        freed += f" (90 % interval {saving.low:,.0f} to {saving.high:,.0f})"
    grows = decision.gpus > decision.fleet_gpus
    gpus = f"{decision.fleet_gpus:,} → {decision.gpus:,}" if grows else f"{decision.gpus:,} of {decision.fleet_gpus:,}"
    missed = [size.size for size in decision.service if not size.meets_limit]
    missed_text = f"    wait limit still missed on {', '.join(missed)}" if missed else ""
    rows = [("GPUs recommended" if missed else "GPUs needed", f"{gpus}{freed}{missed_text}")]
    today_row, policy_row = comparison.today, comparison.find_row(decision.policy) or comparison.today
    if today_row is not None and policy_row is not None:
        utilization = [row.busy_gpu_hours / row.gpu_hours for row in (today_row, policy_row)
                if row.gpu_hours and row.busy_gpu_hours is not None]  # fmt: skip
        period = " in the evaluation window"
        if grows:  # no policy was simulated on the GPUs of a purchase
            curve = {point.gpus: point.allocation_rate for point in comparison.wait_curve}
            utilization = [curve[gpus] for gpus in (decision.fleet_gpus, decision.gpus) if gpus in curve]
            period = ""
        shares = [percent_text(share) for share in utilization]
        # Policies that power idle nodes down have no times to completion of their own.
        n_known = 1 if decision.measures and decision.measures[-1].action in IDLE_ACTIONS else 2
        times = [wait_text(minutes) for minutes in (decision.mean_completion_minutes or ())[:n_known]]
        today_text = "today " * (n_known == 1)
        completion = f"    mean completion time {today_text}{_change_text(times)}" if times else ""
        label = "Allocated" if len(shares) == 2 else "Allocated today"
        rows.append((label, f"{_change_text(shares) or '–'} of provisioned GPU-hours{period}{completion}"))
    if impact.kwh_per_week == 0:
        rows.append(("Energy", "unchanged: released GPUs stay powered on"))
    elif impact.kwh_per_week is not None:
        dollars = "" if not impact.usd_per_week else f", {impact.usd_per_week:,.2f} USD"
        rows.append(("Energy", f"{impact.kwh_per_week:,.0f} kWh less a week{dollars}"))
    elif impact.ownership == OWNERSHIP_OWNED:
        why = "not known: it rises with the GPUs that are bought" if grows else saving.reason
        rows.append(("Energy", f"– ({why or 'the power of the GPU model is not known'})"))
    else:
        rows.append(("Financial impact", impact.basis.replace("\n", " ")))
    if any(measure.action == "buy" for measure in decision.measures):
        rows.append(("Next purchase", f"now, {decision.gpus - decision.fleet_gpus:,} GPUs"))
    elif exhaustion.date is None or exhaustion.order_by is None:
        headroom = comparison.headroom
        shortage = "no headroom; date not known: " if headroom is not None and headroom.factor < 1.005 else ""
        rows.append(("Next purchase", f"– ({shortage}{exhaustion.reason or 'no date'})"))
    else:
        rows.append(("Next purchase", f"{day_text(exhaustion.date)}, order by {day_text(exhaustion.order_by)}"))
    if decision.left_out_share >= 0.01:
        share_text = f"{percent_text(decision.left_out_share)} of the allocated GPU-hours"
        rows.append(("Excluded", f"{share_text}, in no team's sums but in Unallocated: see Data quality"))
    return rows


def _change_text(texts: Sequence[str]) -> str:
    """Format a quantity today and as recommended, with an arrow between both texts if they differ."""
    return " → ".join(dict.fromkeys(texts))


def print_projects(answers: Sequence[ProjectAnswer]) -> None:
    """Print the announced projects, a line each."""
    if answers:
        echo("\nProjects", *(f"  {answer.sentence}" for answer in answers))


def print_services(answer: InferenceAnswer | None) -> None:
    """Print the inference services, a line each, and how they share the fleet with jobs."""
    if answer is not None:
        sentences = [f"{service.sentence} {service.backtest_text}" for service in answer.services]
        echo("\nServices", *(f"  {text}" for text in [*sentences, answer.sentence]))


UTC_ZONE_NAME = "UTC"
"""Name of the time zone UTC in the tz database."""
MAX_UTC_OFFSET_H = 14
"""Largest offset from UTC for which the tz database has a zone, such as ``Etc/GMT-14``. [h]"""


@dataclass
class StartPrompt:
    """Asks questions on a terminal, and takes defaults elsewhere.

    - ``interactive``: Whether questions can be asked.
    - ``verbose``: Whether facts are printed.
    """

    interactive: bool
    verbose: bool

    @classmethod
    def for_terminal(cls, *, yes: bool, verbose: bool) -> StartPrompt:
        """Make a prompt that asks questions only on a terminal and without ``--yes``."""
        return cls(interactive=verbose and not yes and sys.stdin.isatty() and sys.stderr.isatty(), verbose=verbose)

    def print_assumption(self, label: str, value: str, basis: str) -> None:
        """Print an assumption and its basis."""
        if self.verbose:
            print_fact(label, f"{value:<14} {basis}")

    def answer(self, label: str, question: str, default: str, check: Callable[[str], str]) -> tuple[str, bool]:
        """Ask a question until the answer is valid; without a terminal take the default.

        Parameters
        ----------
        label, question : str
            Label and text of the prompt.
        default : str
            Answer without input.
        check : callable
            Returns the answer as it is used; raises ValueError if it is invalid.

        Returns
        -------
        tuple of str and bool
            The answer, and whether the user gave it.
        """
        if not self.interactive:
            return default, False
        while True:
            prompt = f"{label:<{LABEL_WIDTH_CHARACTERS}}{question}, Enter = {default}]"
            text = typer.prompt(prompt, default=default, show_default=False, err=True)
            try:
                return check(text.strip()), True
            except ValueError as fault:
                print_fact("", str(fault))


def ask_time_zone(
    prompt: StartPrompt, parts: tuple[SourceFiles, ...], stated: str | None
) -> tuple[str | None, str | None, str]:
    """Find the time zones of the files: as stated, from offsets in the files, or by a question.

    Parameters
    ----------
    prompt : StartPrompt
        Asks for the zone of times without an offset.
    parts : tuple of SourceFiles
        Files by source.
    stated : str, optional
        Value of ``--tz``.

    Returns
    -------
    tuple of str or None, str or None, and str
        Zone of times without an offset; zone of calendar months; basis of both, for the user.
    """
    from gpuplanner.ingest.dataset_import import find_utc_offsets

    if stated is not None:
        return stated, stated, "as stated"
    offsets, naive = find_utc_offsets(parts)
    if naive is None:
        return None, zone_of_offsets(offsets) if offsets else None, "from the offsets in the file (--tz)"
    question = f"times such as {naive!r} have no offset [name of the zone, such as Europe/Oslo"
    time_zone, is_given = prompt.answer("Time zone", question, UTC_ZONE_NAME, check_zone)
    basis = "as answered" if is_given else f"assumed: times such as {naive} have no offset (--tz)"
    return time_zone, time_zone, basis


def zone_of_offsets(offsets: tuple[str, ...]) -> str:
    """Name of the time zone of a single offset of whole hours; UTC for other or several offsets.

    Examples
    --------
    >>> zone_of_offsets(("+01:00",)), zone_of_offsets(("Z",)), zone_of_offsets(("+01:00", "+02:00"))
    ('Etc/GMT-1', 'UTC', 'UTC')
    """
    if len(offsets) != 1 or offsets[0] in ("Z", UTC_ZONE_NAME):
        return UTC_ZONE_NAME
    sign, digits = offsets[0][0], offsets[0][1:].replace(":", "")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours == 0 or minutes or hours > MAX_UTC_OFFSET_H:
        return UTC_ZONE_NAME
    return f"Etc/GMT{'-' if sign == '+' else '+'}{hours}"  # POSIX zones have the inverted sign


def check_zone(text: str) -> str:
    """Return the name of a time zone; raise an error if it is not in the tz database."""
    from gpuplanner.ingest.source_fields import validate_time_zone

    validate_time_zone(text)
    return text


def ask_gpu_model(prompt: StartPrompt, word: str | None) -> str | None:
    """Ask for the GPU model that the data do not name, or name with an ambiguous word; None: plan without MIG."""
    from gpuplanner.decision.decision_text import find_likely_gpu_model
    from gpuplanner.hardware.catalog import resolve_gpu_model
    from gpuplanner.usage.study_fleet import explain_full_gpus

    default = word or "none"
    problem = explain_full_gpus(word) if word else "not in the data"
    example = find_likely_gpu_model(word) if word else "A100-40GB"
    name, is_given = prompt.answer(
        "GPU model", f"{problem} [name of the model, such as {example}", default,
        lambda text: default if text == default else resolve_gpu_model(text),
    )  # fmt: skip
    is_answer = is_given and name != default
    prompt.print_assumption(
        "GPU model", name, "as answered" if is_answer else f"{problem}: planned without MIG and energy (--gpu-model)"
    )
    return name if is_answer else None


def ask_ownership(prompt: StartPrompt, actuator: str) -> str:
    """Ask whether the GPUs are owned, rented or reserved."""
    from gpuplanner.core.errors import resolve_name

    usual = OWNERSHIP_RENTED if actuator == "autoscaler" else OWNERSHIP_OWNED
    answer, is_given = prompt.answer(
        "Ownership", f"not in the data [{' / '.join(OWNERSHIPS)}", usual,
        lambda text: resolve_name(text, OWNERSHIPS, subject="ownership"),
    )  # fmt: skip
    basis = "as answered" if is_given else "assumed, not in the data (--set ownership=…)"
    prompt.print_assumption("Ownership", answer, basis)
    return answer


SCENARIO_FILE = "scenario.yaml"
"""Name of the scenario file in the output folder of ``start``."""
START_REPORT_MARK = FolderMark(MANIFEST, "gpuplanner report 1", names=("index.html", SCENARIO_FILE))
"""File names and format by which a report folder is recognized, so that ``start`` and ``report`` may replace each
other's; a copy of that in the report package, which is not imported for it."""


@contextmanager
def withdraw_report(folder: Path) -> Iterator[None]:
    """Withdraw the report of an earlier start while its dataset is replaced.

    The page is moved aside first, so that a killed run never leaves new data beside an old page. If the block fails, or
    leaves the data as they were, the page is put back; otherwise the files of the earlier report are deleted.

    Parameters
    ----------
    folder : Path
        Folder of the results, with the dataset in ``data``.
    """
    page, aside = folder / "index.html", folder / ".index.html.earlier"
    aside.unlink(missing_ok=True)  # of a killed run: its data are not known
    written, data_before = list_written_files(folder, START_REPORT_MARK), input_hashes(str(folder / "data"))
    if page.is_file() and page.name in written:
        page.replace(aside)
    try:
        yield
    finally:
        if aside.is_file() and input_hashes(str(folder / "data")) == data_before:
            aside.replace(page)
    if aside.is_file():
        aside.unlink()
        unchanged = {name: file for name, file in written.items() if file.is_unchanged_at(folder / name)}
        delete_written_files(folder, {MANIFEST: WrittenFile(None, None), **unchanged})


def write_scenario_and_bundle(scenario: Scenario, folder: Path, comparison: Comparison) -> None:
    """Write scenario and change bundle without a page; an older page in the folder is removed.

    Parameters
    ----------
    scenario : Scenario
        Scenario of the decision.
    folder : Path
        Folder of the results.
    comparison : Comparison
        Policies and decision.
    """
    from gpuplanner.report.bundle_export import write_bundle_into

    with replace_directory(folder, mark=START_REPORT_MARK) as new_folder:
        write_bundle_into(scenario, comparison, new_folder)
        text = _scenario_with_relative_paths(scenario, folder).to_yaml()
        (new_folder / SCENARIO_FILE).write_text(text, encoding="utf-8")


def write_services(
    scenario: Scenario, folder: Path, answer: InferenceAnswer, warnings: Sequence[QualityWarning], *, page: bool
) -> None:
    """Write scenario, schedules and page of services that are planned without a list of jobs.

    Parameters
    ----------
    scenario : Scenario
        Data and services.
    folder : Path
        Folder of the results.
    answer : InferenceAnswer
        Answers on the services.
    warnings : sequence of QualityWarning
        Warnings of the data.
    page : bool
        Write the page.
    """
    from gpuplanner.decision.inference_services import plan_inference_services
    from gpuplanner.report.bundle_export import BUNDLE_FOLDER
    from gpuplanner.report.inference_sections import render_services_page
    from gpuplanner.report.service_schedule_files import make_service_bundle

    with replace_directory(folder, mark=START_REPORT_MARK) as new_folder:
        bundle = make_service_bundle(plan_inference_services(scenario), scenario.tz)
        if bundle is not None:
            bundle.write(new_folder / BUNDLE_FOLDER)
        text = _scenario_with_relative_paths(scenario, folder).to_yaml()
        (new_folder / SCENARIO_FILE).write_text(text, encoding="utf-8")
        if page:
            html = render_services_page(scenario, answer, warnings)
            (new_folder / "index.html").write_text(html, encoding="utf-8")


def write_page(scenario: Scenario, folder: Path) -> None:
    """Write the report of a scenario, with its page."""
    from gpuplanner.report.report_rendering import write_report

    write_report(scenario, folder)
    # The report writes the scenario with paths relative to the working directory.
    if read_manifest(folder) is not None:
        _write_scenario(scenario, folder)


def _write_scenario(scenario: Scenario, folder: Path) -> None:
    """Write the scenario with paths relative to its folder, and record the file in the manifest."""
    manifest = read_manifest(folder)
    (folder / SCENARIO_FILE).write_text(_scenario_with_relative_paths(scenario, folder).to_yaml(), encoding="utf-8")
    if manifest is not None:
        file = WrittenFile((folder / SCENARIO_FILE).stat().st_size, sha256(folder / SCENARIO_FILE))
        write_manifest_file(folder, START_REPORT_MARK, {**manifest[1], SCENARIO_FILE: file})


def write_pools(
    pools: FleetPools,
    scenarios: Sequence[Scenario],
    folder: Path,
    *,
    comparisons: Mapping[str, Comparison] | None = None,
) -> None:
    """Write the report of several GPU pools with a page for each, or the files of each pool without a page.

    Parameters
    ----------
    pools : FleetPools
        Scenario of each pool.
    scenarios : sequence of Scenario
        Scenario of each cluster; if there is one, it is written too.
    folder : Path
        Folder of the results.
    comparisons : mapping of str to Comparison, optional
        Comparison by pool; writes no pages.
    """
    from gpuplanner.report.bundle_export import write_bundle_into
    from gpuplanner.report.report_rendering import POOLS_FOLDER, pool_folder_name, write_fleet_report

    if comparisons is None:
        write_fleet_report(pools, " + ".join(scenario.name for scenario in scenarios), folder)
    else:
        with replace_directory(folder, mark=START_REPORT_MARK) as new_folder:
            for name, pool_scenario in pools.pools.items():
                (new_folder / POOLS_FOLDER / pool_folder_name(name)).mkdir(parents=True)
                write_bundle_into(pool_scenario, comparisons[name], new_folder / POOLS_FOLDER / pool_folder_name(name))
    if len(scenarios) == 1:
        _write_scenario(scenarios[0], folder)


def _scenario_with_relative_paths(scenario: Scenario, folder: Path) -> Scenario:
    """Return the scenario with the paths of its data and files relative to a folder."""
    data = "sample" if scenario.data == "sample" else os.path.relpath(scenario.data, folder)
    local_scenario = replace(scenario, data=data)
    from gpuplanner.core.scenario import FILE_PATH_FIELDS

    files = {name: file for name in FILE_PATH_FIELDS if (file := getattr(local_scenario, name)) is not None}
    return local_scenario.but(**{name: os.path.relpath(file, folder) for name, file in files.items()})
