"""Month after month: a chain of reports of which every step is done once, whatever stops a run."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl

from gpuplanner._version import __version__
from gpuplanner.errors import GpuPlannerError, MissingDependencyError, ScenarioError, message
from gpuplanner.files.manifest import MANIFEST, is_intact
from gpuplanner.files.text import sha256, to_json
from gpuplanner.files.lock import sole_writer
from gpuplanner.files.single import write_atomically
from gpuplanner.report.mail import report_mail
from gpuplanner.report.recurring.chain import (
    DONE,
    FAILED,
    LEFT_OUT,
    NAMES,
    NO_DATA,
    PAGE,
    RECORD,
    Chain,
    Fact,
    MonthRecord,
    StepRecord,
    ledger_of,
    read_chain,
)  # fmt: skip
from gpuplanner.report.recurring.overview import chain_page
from gpuplanner.report.render import write_report
from gpuplanner.report.scorecards import write_scorecards
from gpuplanner.scenario import FILES, Scenario
from gpuplanner.study.study import Study
from gpuplanner.study.evaluation import evaluate
from gpuplanner.study.bundled import input_hashes
from gpuplanner.study.past.history import begin_of, end_of, load_trace, long_trace, months_from
from gpuplanner.study.recurring.nodes_seen import nodes_changed, nodes_seen

Told = Callable[[str], None]


def months_between(text: str, scenario: Scenario) -> list[str]:
    """Calendar months of ``A..B``; an end that is left out is the first month of the data, or the last whole one.

    None where no month is whole yet.

    Examples
    --------
    >>> months_between("2026-11..2027-01", Scenario())
    ['2026-11', '2026-12', '2027-01']
    >>> months_between("..", Scenario())
    ['2026-02']
    """
    first, _, last = text.partition("..")
    if not (first and last):
        trace, zone = load_trace(scenario.data, columns=("submit_time",)), ZoneInfo(scenario.tz)
        begin, end = begin_of(trace).astimezone(zone), end_of(trace).astimezone(zone)
        # The month in which the data end is whole only where the next one begins.
        first, last = first or f"{begin:%Y-%m}", last or f"{_first_of_month(end) - timedelta(days=1):%Y-%m}"
    for one in (first, last):
        scenario.but(month=one)
    found = months_from(first, last)
    if not found and text == f"{first}..{last}":
        what, todo = f"report {text}", "Turn them round."
        raise ScenarioError(
            message(what, "a first month that is not behind the last", f"{first}..{last}", todo)
        )
    return found


def _first_of_month(time: datetime) -> datetime:
    return time.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def report_months(
    scenario: Scenario, months: Sequence[str], out: str | Path, *, again: Sequence[str] = (), told: Told
) -> Chain:
    """Report months one after the other into a folder, each going on from what the one before handed on.

    What was done stands: a month is made anew where it is named in `again`, where what it wrote is gone or changed, or
    where a month before it came or changed. A month that was begun goes on at the step that is missing, if scenario,
    data and version are still those that it was begun with. A run that is stopped at any moment and started again
    leaves the same bytes as one that was not. The first step that fails raises its error after it was written down.
    """
    out = Path(out)
    if strange := sorted(set(again) - set(months)):
        what, todo = "report: months to make anew", "Name months of the range, as 2026-02."
        raise ScenarioError(message(what, f"some of {months[0]}..{months[-1]}", ", ".join(strange), todo))
    with sole_writer(out):
        if (out / PAGE).exists() and not (out / RECORD).exists():
            what, todo = f"report to {out}", "Choose another folder with -o; nothing was changed."
            raise ScenarioError(message(what, "a folder of months, or a new one", f"one with a {PAGE}", todo))
        chain, write = read_chain(out), scenario.number_locale
        for month in sorted(set(months) | {one.month for one in chain.months if one.month > min(months)}):
            if month not in months and not _stale(chain, month, out):
                continue
            one = _Month(scenario.but(month=month), out, chain, told)
            known = next((each for each in chain.months if each.month == month), None)
            for record in one.run(None if month in again else known):
                chain = chain.having(record)
                _write_text(out / RECORD, chain.to_json())
                _write_text(out / PAGE, chain_page(chain, out, write))
        _write_text(out / PAGE, chain_page(chain, out, write))
    return chain


def _write_text(place: Path, text: str) -> None:
    write_atomically(place, lambda new: new.write_text(text, encoding="utf-8"), guarded=False)


def _handed_on(chain: Chain, month: str, out: Path) -> Path | None:
    """Ledger of the last month before, of which there is one."""
    before = chain.before(month)
    return ledger_of(out, before[-1].month) if before else None


def _stale(chain: Chain, month: str, out: Path) -> bool:
    """Whether a month rests on others than those that stand before it now."""
    known = next(one for one in chain.months if one.month == month)
    return known.has_data and known.before != _hash_of(_handed_on(chain, month, out))


def _hash_of(ledger: Path | None) -> str | None:
    """Hash of a ledger and of what is kept beside it."""
    if ledger is None or not ledger.exists():
        return None
    return _sha("".join(sha256(path) for path in _beside(ledger)))


def _beside(ledger: Path) -> list[Path]:
    return sorted(ledger.parent.glob(f"{ledger.stem}.*"))


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class _Month:
    """One month on its way: what it rests on, and its steps."""

    def __init__(self, scenario: Scenario, out: Path, chain: Chain, told: Told) -> None:
        self.scenario, self.out, self.told = scenario, out, told
        self.month = str(scenario.month)
        self.before = _handed_on(chain, self.month, out)
        self.nodes_before = next((one.nodes for one in reversed(chain.before(self.month))), {})
        self.nodes: Mapping[str, int] = {}
        self.study: Study | None = None

    def rests_on(self) -> MonthRecord:
        """Hashes of all that the month is made of, as it is now."""
        hashes = input_hashes(self.scenario.data, *(getattr(self.scenario, name) for name in FILES))
        kept = self.scenario.but(data="")
        data, asked = _sha(to_json(hashes)), _sha(kept.to_yaml())
        return MonthRecord(self.month, __version__, asked, data, _hash_of(self.before))

    def run(self, known: MonthRecord | None) -> Iterator[MonthRecord]:
        """Do what is missing; yields the month as it stands after each step."""
        now = self.rests_on()
        kept = [] if known is None else self._kept(known, now)
        if known is not None and len(kept) == len(known.steps) and known.complete:
            self._tell_standing(known, now)
            return
        record = replace(now, steps=tuple(kept))
        yield record
        for name in list(STEPS)[len(kept) :]:
            self.told(f"{self.month}: {name}")
            self.nodes = record.nodes
            step, failure = self._done(name)
            record = replace(record, steps=(*record.steps, step))
            yield record
            if failure is not None:
                raise failure
            if step.state == NO_DATA:
                self.told(f"{self.month}: {step.error}")
                return
        if replace(self.rests_on(), steps=record.steps) != record:
            yield now
            what, todo = f"report {self.month}", "Run it again when nobody writes them."
            raise ScenarioError(
                message(what, "data that stay as they are during the run", "data that changed", todo)
            )

    def _kept(self, known: MonthRecord, now: MonthRecord) -> list[StepRecord]:
        """Steps that stand: up to the first that failed, or whose files are not as they were written."""
        fixed = known.complete or (known.scenario, known.data, known.gpuplanner) == (
            now.scenario, now.data, now.gpuplanner,
        )  # fmt: skip
        if not fixed or (known.steps and known.steps[-1].state == NO_DATA and known.data != now.data):
            return []
        kept: list[StepRecord] = []
        for step in known.steps:
            moved = known.before != now.before and step.name in AFTER_OTHERS
            if step.state not in (DONE, NO_DATA) or moved or not self._intact(step):
                break
            kept.append(step)
        # What is made anew is made of one thing: not half of it of other data or by another version.
        same = (known.scenario, known.data, known.gpuplanner) == (now.scenario, now.data, now.gpuplanner)
        return kept if same or len(kept) == len(known.steps) else []

    def _intact(self, step: StepRecord) -> bool:
        """Whether the files of a step, and those that its manifests list, are there as they were written."""
        places = [self.out / name for name in step.outputs]
        if not all(place.is_file() for place in places):
            return False
        if [sha256(place) for place in places] != list(step.outputs.values()):
            return False
        return all(is_intact(place.parent) for place in places if place.name == MANIFEST)

    def _tell_standing(self, known: MonthRecord, now: MonthRecord) -> None:
        since = [
            words
            for words, other in (
                (f"by version {known.gpuplanner}", known.gpuplanner != now.gpuplanner),
                ("of other jobs than there are now", known.data != now.data and self._jobs_changed(known)),
                ("for another scenario", known.scenario != now.scenario),
            )
            if other
        ]
        made = f", made {', '.join(since)}; --again {self.month} makes it anew" if since else ""
        self.told(f"{self.month}: stands{made}")

    def _jobs_changed(self, known: MonthRecord) -> bool:
        """Whether what the month was made of changed: months that were added behind it are no news to it."""
        step, _ = self._done("data")
        return any(known.steps[0].facts.get(name) != step.facts.get(name) for name in SAME_JOBS)

    def _done(self, name: str) -> tuple[StepRecord, GpuPlannerError | None]:
        try:
            outputs, facts = STEPS[name](self)
        except _NothingThereError as nothing:
            return StepRecord(name, NO_DATA, {}, {}, str(nothing)), None
        except MissingDependencyError as error:
            self.told(f"{self.month}: {name} is left out: {error}")
            return StepRecord(name, LEFT_OUT, {}, {}, str(error)), None
        except GpuPlannerError as error:
            return StepRecord(name, FAILED, {}, {}, str(error)), error
        hashes = {path.relative_to(self.out).as_posix(): sha256(path) for path in outputs}
        return StepRecord(name, DONE, hashes, facts), None

    def evaluated(self) -> Study:
        """The study of the month, from the disk where it was made before."""
        if self.study is None:
            self.study = evaluate(self.scenario)
        return self.study

    def data(self) -> tuple[list[Path], dict[str, Fact]]:
        """Look whether there are jobs in the month, and what became of the rows."""
        trace = long_trace(self.scenario.data)
        span = self.scenario.month_span()
        assert span is not None, "every step is of a month"
        begin, end = max(span[0], begin_of(trace)), min(span[1], end_of(trace))
        came = pl.col("submit_time").is_between(begin, end, closed="left")
        # As it stood at the end of the month: what comes later is no change to it.
        by_then = (pl.when(pl.col(name) <= end).then(name) for name in ("start_time", "end_time"))
        jobs = trace.long.there(begin, end, SEEN).with_columns(*by_then)
        if begin >= end or not jobs.select(came.any()).item():
            text = "no job came in this month: it is left out"
            raise _NothingThereError(text)
        stated = trace.stated
        return [], {
            "nodes": json.dumps(nodes_seen(trace.inventory, end), ensure_ascii=False),
            "rows_in": stated.rows_in, "rows_rejected": stated.rows_rejected,
            "rows_quarantined": stated.rows_quarantined, "jobs": jobs.height,
            "observed_share": round((end - begin) / (span[1] - span[0]), 6),
            "jobs_hash": _sha(jobs.select(SEEN).sort(SEEN).write_csv()),
        }  # fmt: skip

    def walk(self) -> tuple[list[Path], dict[str, Fact]]:
        """Evaluate the month."""
        study = self.evaluated()
        decision, plan = study.decision, study.plan
        facts: dict[str, Fact] = {
            "study": _sha(study.to_json()), "seed": self.scenario.seed, "action": decision.action,
            "sentence": decision.sentence, "saving_gpu_hours_per_week": decision.saving.value,
            "fleet_gpus": decision.fleet_gpus, "gpus": decision.gpus,
            "fleet_inferred": int(decision.fleet_inferred),
        }  # fmt: skip
        if plan is not None:
            facts |= {name: getattr(plan, name) for name in PLAN_FACTS}
        return [], facts

    def report(self) -> tuple[list[Path], dict[str, Fact]]:
        """Write the report, its forecasts and its promises added to those of the months before."""
        ledger, folder = ledger_of(self.out, self.month), self.out / self.month
        ledger.parent.mkdir(parents=True, exist_ok=True)
        for path in _beside(ledger):
            path.unlink()
        for path in [] if self.before is None else _beside(self.before):
            name = path.name.replace(self.before.stem, ledger.stem, 1)  # type: ignore[union-attr]
            write_atomically(ledger.parent / name, partial(shutil.copyfile, path), guarded=False)
        try:
            write_report(self.scenario, folder, inputs=[self.scenario.data], ledger=ledger)
        except BaseException:
            for path in _beside(ledger):
                path.unlink()
            raise
        return [folder / "manifest.json", *_beside(ledger)], {}

    def teams(self) -> tuple[list[Path], dict[str, Fact]]:
        """Score every team."""
        before = None if self.before is None else self.out / "teams" / self.before.stem / "scorecard.csv"
        folder = self.out / "teams" / self.month
        teams, write = self.evaluated().decision.teams, self.scenario.number_locale
        write_scorecards(teams, folder, self.month, before, locale=write)
        return [folder / "manifest.json"], {"teams": len(teams)}

    def mail(self) -> tuple[list[Path], dict[str, Fact]]:
        """Write a message that can be sent as it is."""
        place = self.out / "mail" / f"{self.month}.eml"
        page, at = f"{self.month}/index.html", self.scenario.report_url
        text = report_mail(self.evaluated(), page, at=at, fleet=nodes_changed(self.nodes_before, self.nodes))
        _write_text(place, text)
        return [place], {}


class _NothingThereError(GpuPlannerError):
    """A month without data: no fault, and no report."""


Steps = Mapping[str, Callable[[_Month], tuple[list[Path], dict[str, Any]]]]
STEPS: Steps = dict(
    zip(NAMES, (_Month.data, _Month.walk, _Month.report, _Month.teams, _Month.mail), strict=True)
)
PLAN_FACTS = ("status", "objective", "bound", "gap")
"""What is told alike of a plan that was just made and of one that was kept."""
SEEN = ("submit_time", "start_time", "end_time", "tenant", "user", "gpus")
SAME_JOBS = ("jobs_hash", "observed_share")
"""What is looked at of each job, and facts by which it is told whether a month was made of the jobs there are now."""
AFTER_OTHERS = ("report", "teams", "mail")
"""Steps that go on from what the month before handed on."""
