"""A chain of monthly reports, its record and its overview page."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl

from gpuplanner._version import __version__
from gpuplanner.core.errors import GpuPlannerError, MissingDependencyError, ScenarioError
from gpuplanner.core.output_places import MANIFEST, is_intact
from gpuplanner.core.output_writing import lock_for_writing, write_atomically
from gpuplanner.core.scenario import FILE_PATH_FIELDS, Scenario
from gpuplanner.core.serialization import from_plain, load_json, sha256, to_json, to_plain
from gpuplanner.core.stage_cache import input_hashes
from gpuplanner.decision.capacity_check import INFERRED_FLEET_REASON
from gpuplanner.decision.replanning import WatchState
from gpuplanner.decision.study import Study
from gpuplanner.decision.study_pipeline import evaluate
from gpuplanner.decision.track_record import (
    baseline_table,
    evaluate_promises,
    read_ledger,
    read_savings,
    savings_file,
    score_forecasts,
)
from gpuplanner.report import html_page as page
from gpuplanner.report.figure_formats import safe
from gpuplanner.report.policy_and_team_sections import write_scorecards
from gpuplanner.report.report_messages import report_mail
from gpuplanner.report.report_rendering import write_report
from gpuplanner.usage.installed_capacity import describe_node_changes, gpus_of_nodes
from gpuplanner.usage.job_history import begin_of, end_of, load_dataset, months_from, open_long_dataset

FORMAT = "gpuplanner.chain/1"
RECORD, PAGE = "chain.json", "index.html"
DONE, FAILED, LEFT_OUT, NO_DATA = "done", "failed", "left out", "no data"
NAMES = ("data", "study", "report", "teams", "mail")
"""Steps of a month, in their order."""
TEXTS = ("nodes", "jobs_hash", "study", "action", "sentence", "status")
"""Facts that are texts; the others are numbers."""

Fact = str | int | float | None


@dataclass(frozen=True)
class StepRecord:
    """What a step of a month did: its state, hashes of what it wrote, and facts that somebody may ask for later."""

    name: str
    state: str
    outputs: Mapping[str, str]
    facts: Mapping[str, Fact]
    error: str | None = None


@dataclass(frozen=True)
class MonthRecord:
    """What a month was made of: hashes of scenario, data and what months before handed on; version; steps."""

    month: str
    gpuplanner: str
    scenario: str
    data: str
    before: str | None
    steps: tuple[StepRecord, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every step was done, or the month has no data."""
        states = [one.state for one in self.steps]
        return states == [DONE] * len(NAMES) or states == [NO_DATA]

    @property
    def has_data(self) -> bool:
        """Whether months behind it go on from what it handed on."""
        return any(one.name == "report" and one.state == DONE for one in self.steps)

    @property
    def facts(self) -> Mapping[str, Fact]:
        """Facts of all its steps."""
        return {name: fact for step in self.steps for name, fact in step.facts.items()}

    @property
    def nodes(self) -> Mapping[str, int]:
        """GPUs of each node at its end, where there is a list of them."""
        return json.loads(str(self.facts.get("nodes", "{}")))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Chain:
    """All months of a folder, in their order."""

    months: tuple[MonthRecord, ...] = ()

    def to_json(self) -> str:
        """The record as it is kept: the same data, scenario and months give the same bytes."""
        return to_json({"format": FORMAT, "months": [to_plain(one) for one in self.months]})

    def before(self, month: str) -> list[MonthRecord]:
        """Months before it that handed something on."""
        return [one for one in self.months if one.month < month and one.has_data]

    def having(self, record: MonthRecord) -> Chain:
        """With a month in its place."""
        others = [one for one in self.months if one.month != record.month]
        return Chain(tuple(sorted([*others, record], key=lambda one: one.month)))


def read_chain(folder: Path) -> Chain:
    """The chain of a folder; empty where there is none."""
    place = folder / RECORD
    if not place.exists():
        return Chain()
    try:
        values = load_json(place.read_text(encoding="utf-8"), source=str(place), error=ScenarioError)
        if values["format"] != FORMAT:
            raise ValueError(values["format"])
        chain = Chain(tuple(from_plain(MonthRecord, one) for one in values["months"]))
        if odd := next((said for one in chain.months for said in _odd(one)), None):
            raise ValueError(odd)
        if [one.month for one in chain.months] != sorted({one.month for one in chain.months}):
            raise ValueError("months that are not in order, each once")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        todo = "Choose another folder with -o; nothing was changed."
        raise ScenarioError(str(place), f"a file of {FORMAT!r}", str(error), todo) from None
    return chain


def _odd(month: MonthRecord) -> Iterator[str]:
    """What of a month nobody wrote who keeps this record."""
    if not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", month.month):
        yield f"month {month.month[:40]!r}"
    for step, name in zip_longest(month.steps, NAMES[: len(month.steps)]):
        if step.name != name or step.state not in (DONE, FAILED, LEFT_OUT, NO_DATA):
            yield f"step {step.name[:40]!r}, {step.state[:40]!r} in {month.month}"
    for name, fact in month.facts.items():
        if fact is not None and isinstance(fact, str) != (name in TEXTS):
            yield f"{name[:40]} {str(fact)[:40]!r} in {month.month}"
    nodes = month.nodes
    if not (isinstance(nodes, dict) and all(isinstance(gpus, int) for gpus in nodes.values())):
        yield f"nodes {str(nodes)[:40]!r} in {month.month}"


def ledger_of(out: Path, month: str) -> Path:
    """Where a month keeps what it hands on: forecasts, and what was promised beside them."""
    return out / "ledgers" / f"{month}.parquet"


MONTH_FILES = {
    "page": "{month}/index.html", "tables": "{month}/workbook.xlsx", "teams": "teams/{month}/scorecard.csv",
    "mail": "mail/{month}.eml",
}  # fmt: skip
"""Of each month, how it is called and where it lies; what is not there has no link."""
SAVINGS = {
    "month": "promised in", "seen": "measured in", "promised": "promised [GPU h per week]",
    "realised": "realised [GPU h per week]", "demand": "variance: demand", "service": "variance: queue waits",
    "rest": "variance: not carried out",
}  # fmt: skip
FORECASTS = {
    "month": "forecast of", "slots": "intervals observed", "coverage": "within the 90 % interval",
    "error": "mean error against the naive forecast",
}  # fmt: skip


def chain_page(chain: Chain, out: Path, locale: str = "en") -> str:
    """The page of a folder of months; it leads to nothing that is not in the folder."""
    told = [one for one in chain.months if one.has_data]
    guessed = [one.month for one in told if one.facts.get("fleet_inferred")]
    notes = [page.note(f"{', '.join(guessed)}: {INFERRED_FLEET_REASON}.")] if guessed else []
    changes = [(after.month, describe_node_changes(before.nodes, after.nodes)) for before, after in pairwise(told)]
    notes += [page.note(f"{month}: {words}") for month, words in changes if words]
    parts = [page.section("Months", _months(chain), *notes, _links(chain, out))]
    if told:
        ledger = ledger_of(out, told[-1].month)
        parts += [page.section("Savings: promised and realised", *_savings(ledger)),
                  page.section("Forecast accuracy", *_forecasts(ledger))]  # fmt: skip
    months = f"{chain.months[0].month} to {chain.months[-1].month}" if chain.months else "no month yet"
    provenance = {"gpuplanner": __version__}
    return page.render_page(
        "\n".join(parts), title="GPU reports", subtitle=months, provenance=provenance, locale=locale
    )


def _months(chain: Chain) -> str:
    rows = [
        {
            "month": one.month,
            "jobs": one.facts.get("jobs"),
            "GPUs": one.facts.get("fleet_gpus"),
            "advised": one.facts.get("gpus"),
            "saves": one.facts.get("saving_gpu_hours_per_week"),
            "decision": f"{one.facts.get('sentence', '') if one.has_data else ''} {_missing(one)}".strip(),
        }
        for one in reversed(chain.months)
    ]
    names = {"GPUs": "installed GPUs", "advised": "recommended", "saves": "capacity freed [GPU h per week]"}
    schema = {"month": pl.String, "jobs": pl.Int64, "GPUs": pl.Int64, "advised": pl.Int64, "saves": pl.Float64,
              "decision": pl.String}  # fmt: skip
    table = page.table(
        pl.DataFrame(rows, schema=schema), caption="Months, newest first", headings=names,
        formats={"saves": ",.0f"},
    )  # fmt: skip
    for one in chain.months:  # a name of digits, and a page that was written
        if one.has_data:
            row = f'<th scope="row">{one.month}</th>'
            link = f'<th scope="row"><a href="{one.month}/index.html">{one.month}</a></th>'
            table = table.replace(row, link)
    return table


def _missing(month: MonthRecord) -> str:
    last = next((step for step in month.steps if step.state != DONE), None)
    if last is not None:
        return f"{last.state.capitalize()} ({last.name}): {last.error or ''}"
    return "" if month.complete else "Started, not complete."


def _links(chain: Chain, out: Path) -> str:
    """Of each month the files that are there."""
    lines = []
    for one in reversed(chain.months):
        places = {name: place.format(month=one.month) for name, place in MONTH_FILES.items()}
        there = [f'<a href="{place}">{name}</a>' for name, place in places.items() if (out / place).is_file()]
        lines += [f"<li>{safe(one.month)}: {', '.join(there)}</li>"] if there else []
    return f"<ul>{''.join(lines)}</ul>" if lines else ""


def _savings(ledger: Path) -> list[str]:
    months = read_savings(savings_file(ledger))
    came = list(evaluate_promises(months))
    if not came:
        text = "Savings are measured once the next month is reported, for a fleet with a node list."
        return [page.note(text)]
    if not any(one.promised or one.realised for one in came):
        return [page.note("The measured months had no promised and no realised savings.")]
    rows = [
        (one.month, one.next_month, one.promised, one.realised, one.demand, one.service, one.not_carried_out)
        for one in came
    ]
    schema = {name: pl.String if name in ("month", "seen") else pl.Float64 for name in SAVINGS}
    standing = baseline_table(months)
    hours, worth = standing["saved_gpu_hours"].sum(), standing["total_usd"][-1]
    money = f" ({worth:,.2f} USD)" if worth else ""
    less = f"All months used {hours:,.0f} GPU-hours less than at the level of the first month{money}."
    return [
        page.paragraph(less),
        page.table(pl.DataFrame(rows, schema=schema, orient="row"), caption="Promised and realised savings",
                   headings=SAVINGS, formats=dict.fromkeys(list(SAVINGS)[2:], "+,.0f")),
    ]  # fmt: skip


def _forecasts(ledger: Path) -> list[str]:
    record = score_forecasts(read_ledger(ledger))
    if record.is_empty():
        return [page.note("Forecast accuracy is known in the next month, once the forecast hours are over.")]
    frame = record.select(
        month=pl.col("cutoff").dt.strftime("%Y-%m-%d"), slots="slots", coverage="coverage_90",
        error=pl.col("mae") / pl.col("naive_mae"),
    )  # fmt: skip
    about = page.note("Below 1, the forecast beats the naive forecast, which repeats the last value.")
    formats = {"coverage": ".0%", "error": ".2f"}
    return [page.table(frame, caption="Evaluated forecasts", headings=FORECASTS, formats=formats), about]


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
        trace, zone = load_dataset(scenario.data, columns=("submit_time",)), ZoneInfo(scenario.tz)
        begin, end = begin_of(trace).astimezone(zone), end_of(trace).astimezone(zone)
        # The month in which the data end is whole only where the next one begins.
        first, last = first or f"{begin:%Y-%m}", last or f"{_first_of_month(end) - timedelta(days=1):%Y-%m}"
    for one in (first, last):
        scenario.but(month=one)
    found = months_from(first, last)
    if not found and text == f"{first}..{last}":
        what, todo = f"report {text}", "Swap the months."
        raise ScenarioError(what, "a first month before the last", f"{first}..{last}", todo)
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
        what, todo = "report --again", "Name months of the range, such as 2026-02."
        raise ScenarioError(what, f"some of {months[0]}..{months[-1]}", ", ".join(strange), todo)
    with lock_for_writing(out):
        if (out / PAGE).exists() and not (out / RECORD).exists():
            what, todo = f"report to {out}", "Choose another folder with -o; nothing was changed."
            raise ScenarioError(what, "a folder of monthly reports, or a new one", f"one with a {PAGE}", todo)
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
    write_atomically(place, lambda new: new.write_text(text, encoding="utf-8"), protect_foreign=False)


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
        hashes = input_hashes(self.scenario.data, *(getattr(self.scenario, name) for name in FILE_PATH_FIELDS))
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
            what, todo = f"report {self.month}", "Run it again when no other process writes the data."
            raise ScenarioError(what, "data that do not change during the run", "changed data", todo)

    def _kept(self, known: MonthRecord, now: MonthRecord) -> list[StepRecord]:
        """Steps that stand: up to the first that failed, or whose files are not as they were written."""
        same = (known.scenario, known.data, known.gpuplanner) == (now.scenario, now.data, now.gpuplanner)
        if not (known.complete or same) or (
            known.steps and known.steps[-1].state == NO_DATA and known.data != now.data
        ):
            return []
        kept: list[StepRecord] = []
        for step in known.steps:
            moved = known.before != now.before and step.name in AFTER_OTHERS
            if step.state not in (DONE, NO_DATA) or moved or not self._intact(step):
                break
            kept.append(step)
        # What is made anew is made of one thing: not half of it of other data or by another version.
        return kept if same or len(kept) == len(known.steps) else []

    def _intact(self, step: StepRecord) -> bool:
        """Whether the files of a step, and those that its manifests list, are there as they were written."""
        places = {self.out / name: digest for name, digest in step.outputs.items()}
        if not all(place.is_file() and sha256(place) == digest for place, digest in places.items()):
            return False
        return all(is_intact(place.parent) for place in places if place.name == MANIFEST)

    def _tell_standing(self, known: MonthRecord, now: MonthRecord) -> None:
        differences = {
            f"by version {known.gpuplanner}": known.gpuplanner != now.gpuplanner,
            "from other jobs than the present data": known.data != now.data and self._jobs_changed(known),
            "for another scenario": known.scenario != now.scenario,
        }
        since = [words for words, differs in differences.items() if differs]
        made = f", made {', '.join(since)}; add --again {self.month} to make it again" if since else ""
        self.told(f"{self.month}: up to date{made}")

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
            self.told(f"{self.month}: {name} is skipped: {error}")
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
        trace = open_long_dataset(self.scenario.data)
        span = self.scenario.month_span()
        assert span is not None, "every step is of a month"
        begin, end = max(span[0], begin_of(trace)), min(span[1], end_of(trace))
        came = pl.col("submit_time").is_between(begin, end, closed="left")
        # As it stood at the end of the month: what comes later is no change to it.
        by_then = (pl.when(pl.col(name) <= end).then(name) for name in ("start_time", "end_time"))
        jobs = trace.lazy_jobs.collect_between(begin, end, SEEN).with_columns(*by_then)
        if begin >= end or not jobs.select(came.any()).item():
            raise _NothingThereError("no job was submitted in this month: skipped")
        stated = trace.source_facts
        return [], {
            "nodes": json.dumps(gpus_of_nodes(trace.inventory, end), ensure_ascii=False),
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
            write_atomically(ledger.parent / name, partial(shutil.copyfile, path), protect_foreign=False)
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
        text = report_mail(self.evaluated(), page, at=at, fleet=describe_node_changes(self.nodes_before, self.nodes))
        _write_text(place, text)
        return [place], {}


class _NothingThereError(GpuPlannerError):
    """A month without data: no fault, and no report."""


Steps = Mapping[str, Callable[[_Month], tuple[list[Path], dict[str, Any]]]]
STEPS: Steps = dict(zip(NAMES, (_Month.data, _Month.walk, _Month.report, _Month.teams, _Month.mail), strict=True))
PLAN_FACTS = ("status", "objective", "bound", "gap")
"""What is told alike of a plan that was just made and of one that was kept."""
SEEN = ("submit_time", "start_time", "end_time", "tenant", "user", "gpus")
SAME_JOBS = ("jobs_hash", "observed_share")
"""What is looked at of each job, and facts by which it is told whether a month was made of the jobs there are now."""
AFTER_OTHERS = ("report", "teams", "mail")
"""Steps that go on from what the month before handed on."""


GPU_HOURS = {
    "at": "run", "gain": "expected gain [GPU h]", "chance": "probability", "realised": "realised gain [GPU h]",
    "regret": "regret against hindsight [GPU h]",
}  # fmt: skip


def watch_page(state: WatchState, *, refresh_s: float | None = None, locale: str = "en") -> str:
    """The page of a watch; it asks for itself again every so many seconds.

    Examples
    --------
    >>> html = watch_page(WatchState(at="2026-02-02T00:00:00Z", sentence="The fleet stays as it is."), refresh_s=60)
    >>> '<meta http-equiv="refresh" content="60">' in html, "The fleet stays as it is." in html
    (True, True)
    """
    counts = {
        "runs": f"{state.looks:,}",
        "change bundles written": f"{state.packs:,}",
        "failed runs": f"{state.failures:,}",
        "evaluated runs": f"{state.judged:,}",
        "realised gain of their change bundles": f"{state.realised:,.0f} GPU-hours",
        "regret of their recommendations against hindsight": f"{state.regret:,.0f} GPU-hours",
    }
    pack = [f'<p><a href="pack/steps.csv">Latest change bundle</a>, {safe(state.pack_at)}: its changes in order.</p>']
    found = [page.paragraph(state.sentence or "No run yet."), *(pack if state.pack_at else [])]
    parts = [page.section("Status", *found, page.answers(counts, caption="Runs so far"))]
    if state.jobs:
        jobs = pl.DataFrame([vars(one) for one in state.jobs])
        parts.append(page.section("Jobs to move", page.table(jobs, caption="Jobs that outgrow their allocation")))
    if state.past:
        about = page.note("A gain covers the hours until the next run, which can change the rest of the plan.")
        looks = page.table(
            state.runs_table(), caption="Runs, newest first", headings=GPU_HOURS, formats={"chance": ".0%"}
        )
        parts.append(page.section("Runs", about, looks))
    return page.render_page(
        "\n".join(parts),
        title="Watch",
        subtitle=f"data to {state.at}" if state.at else "no run yet",
        provenance={"gpuplanner": __version__, "data": state.data or "none"},
        refresh_s=refresh_s,
        locale=locale,
    )
