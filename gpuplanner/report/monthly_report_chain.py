"""Reports of several months, each step made once, with the outdated ones made again."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl

from gpuplanner._version import __version__
from gpuplanner.core.errors import GpuPlannerError, MissingDependencyError, ScenarioError
from gpuplanner.core.output_manifests_and_overwrite_checks import MANIFEST, is_intact
from gpuplanner.core.output_writing import lock_for_writing, write_atomically
from gpuplanner.core.scenario import FILE_PATH_FIELDS, Scenario
from gpuplanner.core.serialization import sha256, to_json
from gpuplanner.core.stage_cache_and_data_folders import input_hashes
from gpuplanner.decision.study import Study
from gpuplanner.decision.study_pipeline import evaluate
from gpuplanner.report.month_overview_page import render_chain_page
from gpuplanner.report.month_records import (
    MONTH_CHAIN_FILE,
    OVERVIEW_PAGE_FILE,
    STEP_DONE,
    STEP_FAILED,
    STEP_LEFT_OUT,
    STEP_WITHOUT_DATA,
    Fact,
    MonthChain,
    MonthRecord,
    StepRecord,
    ledger_path,
    read_chain,
)
from gpuplanner.report.policy_and_team_sections import write_scorecards
from gpuplanner.report.report_messages_and_pdf import render_mail
from gpuplanner.report.report_rendering import write_report
from gpuplanner.sizing.request_lines_and_gpu_sharing import REQUEST_FORM_BY_ACTUATOR
from gpuplanner.usage.installed_capacity import describe_node_changes, gpus_of_nodes
from gpuplanner.usage.planning_history import (
    load_dataset,
    months_from,
    observation_begins_at,
    observation_ends_at,
    open_long_dataset,
)

ReportProgress = Callable[[str], None]
"""Function that shows a progress message."""


def parse_month_range(text: str, scenario: Scenario) -> list[str]:
    """Parse a range of calendar months ``A..B``.

    An end that is left out is the first month of the data, or the last complete one. The list is empty if no month is
    complete yet.

    Parameters
    ----------
    text : str
        Range of months ``YYYY-MM..YYYY-MM``.
    scenario : Scenario
        Names the dataset and its time zone.

    Returns
    -------
    list of str
        Months ``YYYY-MM``, oldest first.

    Raises
    ------
    ScenarioError
        If the first month is after the last.

    Examples
    --------
    >>> parse_month_range("2026-11..2027-01", Scenario())
    ['2026-11', '2026-12', '2027-01']
    >>> parse_month_range("..", Scenario())
    ['2026-02']
    """
    first, _, last = text.partition("..")
    if not (first and last):
        trace, zone = load_dataset(scenario.data, columns=("submit_time",)), ZoneInfo(scenario.tz)
        begin, end = observation_begins_at(trace).astimezone(zone), observation_ends_at(trace).astimezone(zone)
        # The month in which the data end is whole only where the next one begins.
        first, last = first or f"{begin:%Y-%m}", last or f"{end.replace(day=1) - timedelta(days=1):%Y-%m}"
    for month in (first, last):
        scenario.but(month=month)
    months = months_from(first, last)
    if not months and text == f"{first}..{last}":
        subject, todo = f"report {text}", "Swap the months."
        raise ScenarioError(subject, "a first month before the last", f"{first}..{last}", todo)
    return months


def report_months(
    scenario: Scenario, months: Sequence[str], out: str | Path, *, remake: Sequence[str] = (),
    report_progress: ReportProgress,
) -> MonthChain:  # fmt: skip
    """Report several months into one folder, each extending the forecast ledger of the previous one.

    Completed months stay. A month is reported again if it is named in `remake`, if one of its files is missing or
    changed, or if an earlier month was added or changed. An interrupted month continues at its next step if scenario,
    data and version are unchanged, and ends with the same bytes as an uninterrupted run. The first step that fails is
    recorded, then its error is raised.

    Parameters
    ----------
    scenario : Scenario
        Scenario of all months.
    months : sequence of str
        Months ``YYYY-MM``.
    out : str or Path
        Folder of the reports.
    remake : sequence of str
        Months to report again although they are complete.
    report_progress : callable
        Is called with a line of text before each step.

    Returns
    -------
    MonthChain
        Records of all months of the folder.
    """
    out = Path(out)
    if unknown_months := sorted(set(remake) - set(months)):
        subject, todo = "report --again", "Name months of the range, such as 2026-02."
        raise ScenarioError(subject, f"some of {months[0]}..{months[-1]}", ", ".join(unknown_months), todo)
    with lock_for_writing(out):
        if (out / OVERVIEW_PAGE_FILE).exists() and not (out / MONTH_CHAIN_FILE).exists():
            subject, todo = f"report to {out}", "Choose another folder with -o; nothing was changed."
            raise ScenarioError(
                subject, "a folder of monthly reports, or a new one", f"one with a {OVERVIEW_PAGE_FILE}", todo
            )
        chain, locale = read_chain(out), scenario.number_locale
        for month in sorted(set(months) | {run.month for run in chain.months if run.month > min(months)}):
            if month not in months and not _is_outdated(chain, month, out):
                continue
            run = _MonthRun(scenario.but(month=month), out, chain, report_progress)
            earlier = next((record for record in chain.months if record.month == month), None)
            for record in run.run(None if month in remake else earlier):
                chain = chain.with_month(record)
                _write_text(out / MONTH_CHAIN_FILE, chain.to_json())
                _write_text(out / OVERVIEW_PAGE_FILE, render_chain_page(chain, out, locale))
        _write_text(out / OVERVIEW_PAGE_FILE, render_chain_page(chain, out, locale))
    return chain


def _write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"), protect_foreign=False)


def _previous_ledger(chain: MonthChain, month: str, out: Path) -> Path | None:
    """Return the path of the forecast ledger of the last earlier month that has a report; None without one."""
    before = chain.months_before(month)
    return ledger_path(out, before[-1].month) if before else None


def _is_outdated(chain: MonthChain, month: str, out: Path) -> bool:
    """Whether a month was reported with another forecast ledger than that of the month that now precedes it."""
    record = next(record for record in chain.months if record.month == month)
    return record.has_data and record.before != _hash_ledger(_previous_ledger(chain, month, out))


def _hash_ledger(ledger: Path | None) -> str | None:
    """Hash a forecast ledger and the files beside it with its name, by SHA-256; None without a ledger."""
    if ledger is None or not ledger.exists():
        return None
    return _hash_text("".join(sha256(path) for path in _ledger_files(ledger)))


def _ledger_files(ledger: Path) -> list[Path]:
    """List a forecast ledger and the files beside it that share its name, such as that of promised savings."""
    return sorted(ledger.parent.glob(f"{ledger.stem}.*"))


def _hash_text(text: str) -> str:
    """Hash a text with SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()


class _MonthRun:
    """Run of one monthly report: its inputs and the steps that write its files."""

    def __init__(self, scenario: Scenario, out: Path, chain: MonthChain, report_progress: ReportProgress) -> None:
        self.scenario, self.out, self.report_progress = scenario, out, report_progress
        self.month = str(scenario.month)
        self.previous_ledger = _previous_ledger(chain, self.month, out)
        self.nodes_before = next((record.nodes for record in reversed(chain.months_before(self.month))), {})
        self.nodes: Mapping[str, int] = {}
        self.study: Study | None = None

    def hash_inputs(self) -> MonthRecord:
        """Hash the present inputs of the month, as a record without steps."""
        hashes = input_hashes(self.scenario.data, *(getattr(self.scenario, name) for name in FILE_PATH_FIELDS))
        portable = self.scenario.but(data="")
        data_hash, scenario_hash = _hash_text(to_json(hashes)), _hash_text(portable.to_yaml())
        return MonthRecord(self.month, __version__, scenario_hash, data_hash, _hash_ledger(self.previous_ledger))

    def run(self, earlier_record: MonthRecord | None) -> Iterator[MonthRecord]:
        """Run the steps that are missing; yield the record of the month after each."""
        current_record = self.hash_inputs()
        finished = [] if earlier_record is None else self._find_valid_steps(earlier_record, current_record)
        if earlier_record is not None and len(finished) == len(earlier_record.steps) and earlier_record.is_complete:
            self._report_up_to_date(earlier_record, current_record)
            return
        record = replace(current_record, steps=tuple(finished))
        yield record
        for name in list(STEP_FUNCTIONS)[len(finished) :]:
            self.report_progress(f"{self.month}: {name}")
            self.nodes = record.nodes
            step, failure = self._run_step(name)
            record = replace(record, steps=(*record.steps, step))
            yield record
            if failure is not None:
                raise failure
            if step.state == STEP_WITHOUT_DATA:
                self.report_progress(f"{self.month}: {step.error}")
                return
        if replace(self.hash_inputs(), steps=record.steps) != record:
            yield current_record
            subject, todo = f"report {self.month}", "Run it again when no other process writes the data."
            raise ScenarioError(subject, "data that do not change during the run", "changed data", todo)

    def _find_valid_steps(self, earlier_record: MonthRecord, current_record: MonthRecord) -> list[StepRecord]:
        """List the recorded steps that are still valid, up to the first that failed or whose files changed."""
        inputs_of = attrgetter("scenario", "data", "gpuplanner")
        has_same_inputs = inputs_of(earlier_record) == inputs_of(current_record)
        if not (earlier_record.is_complete or has_same_inputs) or (
            earlier_record.steps
            and earlier_record.steps[-1].state == STEP_WITHOUT_DATA
            and earlier_record.data != current_record.data
        ):
            return []
        kept: list[StepRecord] = []
        for step in earlier_record.steps:
            depends_on_changed = earlier_record.before != current_record.before and step.name in CHAINED_STEPS
            if (
                step.state not in (STEP_DONE, STEP_WITHOUT_DATA)
                or depends_on_changed
                or not self._has_intact_files(step)
            ):
                break
            kept.append(step)
        # If data or version changed, all steps run again: a report never mixes results of two versions.
        return kept if has_same_inputs or len(kept) == len(earlier_record.steps) else []

    def _has_intact_files(self, step: StepRecord) -> bool:
        """Whether the files of a step, and those that its manifests list, are unchanged."""
        hash_by_path = {self.out / name: digest for name, digest in step.outputs.items()}
        if not all(path.is_file() and sha256(path) == digest for path, digest in hash_by_path.items()):
            return False
        return all(is_intact(path.parent) for path in hash_by_path if path.name == MANIFEST)

    def _report_up_to_date(self, earlier_record: MonthRecord, current_record: MonthRecord) -> None:
        """Report that a month is complete, and which of its inputs have changed since."""
        has_new_data = earlier_record.data != current_record.data
        differences = {
            f"by version {earlier_record.gpuplanner}": earlier_record.gpuplanner != current_record.gpuplanner,
            "from other jobs than the present data": has_new_data and self._have_jobs_changed(earlier_record),
            "for another scenario": earlier_record.scenario != current_record.scenario,
        }
        changes = [words for words, differs in differences.items() if differs]
        remake_text = f", made {', '.join(changes)}; add --again {self.month} to make it again" if changes else ""
        self.report_progress(f"{self.month}: up to date{remake_text}")

    def _have_jobs_changed(self, earlier_record: MonthRecord) -> bool:
        """Whether the jobs of the month differ from the recorded ones; jobs of later months do not count."""
        step, _ = self._run_step("data")
        return any(earlier_record.steps[0].facts.get(name) != step.facts.get(name) for name in JOB_FACTS)

    def _run_step(self, name: str) -> tuple[StepRecord, GpuPlannerError | None]:
        """Run one step and record its result; return the error that must be raised, if any."""
        try:
            outputs, facts = STEP_FUNCTIONS[name](self)
        except _NoJobsError as nothing:
            return StepRecord(name, STEP_WITHOUT_DATA, {}, {}, str(nothing)), None
        except MissingDependencyError as error:
            self.report_progress(f"{self.month}: {name} is skipped: {error}")
            return StepRecord(name, STEP_LEFT_OUT, {}, {}, str(error)), None
        except GpuPlannerError as error:
            return StepRecord(name, STEP_FAILED, {}, {}, str(error)), error
        hashes = {path.relative_to(self.out).as_posix(): sha256(path) for path in outputs}
        return StepRecord(name, STEP_DONE, hashes, facts), None

    def evaluate_study(self) -> Study:
        """Evaluate the scenario of the month once and keep the study."""
        if self.study is None:
            self.study = evaluate(self.scenario)
        return self.study

    def check_data(self) -> tuple[list[Path], dict[str, Fact]]:
        """Check that the month has jobs, and record their hash and the rows read."""
        trace = open_long_dataset(self.scenario.data)
        span = self.scenario.month_span()
        assert span is not None, "every step is of a month"
        begin, end = max(span[0], observation_begins_at(trace)), min(span[1], observation_ends_at(trace))
        was_submitted = pl.col("submit_time").is_between(begin, end, closed="left")
        # As it stood at the end of the month: what comes later is no change to it.
        times_until_end = (pl.when(pl.col(name) <= end).then(name) for name in ("start_time", "end_time"))
        jobs = trace.lazy_jobs.collect_between(begin, end, HASHED_JOB_COLUMNS).with_columns(*times_until_end)
        if begin >= end or not jobs.select(was_submitted.any()).item():
            raise _NoJobsError("no job was submitted in this month: skipped")
        source_facts = trace.source_facts
        return [], {
            "nodes": json.dumps(gpus_of_nodes(trace.inventory, end), ensure_ascii=False),
            "rows_in": source_facts.rows_in, "rows_rejected": source_facts.rows_rejected,
            "rows_quarantined": source_facts.rows_quarantined, "jobs": jobs.height,
            "observed_share": round((end - begin) / (span[1] - span[0]), 6),
            "jobs_hash": _hash_text(jobs.select(HASHED_JOB_COLUMNS).sort(HASHED_JOB_COLUMNS).write_csv()),
        }  # fmt: skip

    def record_decision(self) -> tuple[list[Path], dict[str, Fact]]:
        """Evaluate the month and record its decision."""
        study = self.evaluate_study()
        decision, plan = study.decision, study.plan
        facts: dict[str, Fact] = {
            "study": _hash_text(study.to_json()), "seed": self.scenario.seed, "action": decision.action,
            "sentence": decision.sentence, "saving_gpu_hours_per_week": decision.saving.value,
            "fleet_gpus": decision.fleet_gpus, "gpus": decision.gpus,
            "fleet_inferred": int(decision.fleet_inferred),
        }  # fmt: skip
        if plan is not None:
            facts |= {name: getattr(plan, name) for name in PLAN_FACTS}
        return [], facts

    def write_report(self) -> tuple[list[Path], dict[str, Fact]]:
        """Write the report; its forecasts and promised savings are added to those of earlier months."""
        ledger, folder = ledger_path(self.out, self.month), self.out / self.month
        ledger.parent.mkdir(parents=True, exist_ok=True)
        for path in _ledger_files(ledger):
            path.unlink()
        for path in [] if self.previous_ledger is None else _ledger_files(self.previous_ledger):
            name = path.name.replace(self.previous_ledger.stem, ledger.stem, 1)  # type: ignore[union-attr]
            write_atomically(ledger.parent / name, partial(shutil.copyfile, path), protect_foreign=False)
        try:
            write_report(self.scenario, folder, inputs=[self.scenario.data], ledger=ledger)
        except BaseException:
            for path in _ledger_files(ledger):
                path.unlink()
            raise
        return [folder / "manifest.json", *_ledger_files(ledger)], {}

    def write_team_scorecards(self) -> tuple[list[Path], dict[str, Fact]]:
        """Write the scorecard of every team."""
        previous = self.previous_ledger
        scorecard = None if previous is None else self.out / "teams" / previous.stem / "scorecard.csv"
        folder = self.out / "teams" / self.month
        decision, locale = self.evaluate_study().decision, self.scenario.number_locale
        form = REQUEST_FORM_BY_ACTUATOR.get(self.scenario.actuator, "pod")
        data = str(self.scenario.data)
        write_scorecards(decision, folder, self.month, scorecard, data=data, form=form, locale=locale)
        return [folder / "manifest.json"], {"teams": len(decision.teams)}

    def write_mail(self) -> tuple[list[Path], dict[str, Fact]]:
        """Write the report as a mail message that can be sent without changes."""
        path = self.out / "mail" / f"{self.month}.eml"
        page, base_url = f"{self.month}/index.html", self.scenario.report_url
        if not (self.out / page).is_file():  # left out: the overview names why
            page = OVERVIEW_PAGE_FILE
        text = render_mail(
            self.evaluate_study(),
            page,
            base_url=base_url,
            node_changes=describe_node_changes(self.nodes_before, self.nodes),
        )
        _write_text(path, text)
        return [path], {}


class _NoJobsError(GpuPlannerError):
    """The month has no jobs, so it has no report; this is not a failure."""


StepFunctions = Mapping[str, Callable[[_MonthRun], tuple[list[Path], dict[str, Any]]]]
"""Methods that run a step and return its files and its facts, by step name."""
STEP_FUNCTIONS: StepFunctions = {
    "data": _MonthRun.check_data,
    "study": _MonthRun.record_decision,
    "report": _MonthRun.write_report,
    "teams": _MonthRun.write_team_scorecards,
    "mail": _MonthRun.write_mail,
}
"""Method that runs each step of a monthly report, by step name."""
PLAN_FACTS = ("status", "objective", "bound", "gap")
"""Fields of the layout plan that are recorded as facts of a month."""
HASHED_JOB_COLUMNS = ("submit_time", "start_time", "end_time", "tenant", "user", "gpus")
"""Columns of jobs that are hashed to find out whether the jobs of a month have changed."""
JOB_FACTS = ("jobs_hash", "observed_share")
"""Facts of the data step that change with the jobs of the month."""
CHAINED_STEPS = ("report", "teams", "mail")
"""Steps that depend on the forecast ledger of the previous month."""
