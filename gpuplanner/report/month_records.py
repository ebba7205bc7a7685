"""Records of the months of a report chain, and the file that holds them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import is_month
from gpuplanner.core.serialization import from_plain, load_json, to_json, to_plain

MONTH_CHAIN_FORMAT = "gpuplanner.chain/1"
"""Format name in ``chain.json``."""
MONTH_CHAIN_FILE = "chain.json"
"""File of the records of all months."""
OVERVIEW_PAGE_FILE = "index.html"
"""Overview page of the folder of monthly reports."""
STEP_DONE, STEP_FAILED, STEP_LEFT_OUT, STEP_WITHOUT_DATA = "done", "failed", "left out", "no data"
"""States of a step of a monthly report; without data, the month has no jobs."""
STEP_NAMES = ("data", "study", "report", "teams", "mail")
"""Names of the steps of a monthly report, in their order."""
TEXT_FACT_NAMES = ("nodes", "jobs_hash", "study", "action", "sentence", "status")
"""Names of the recorded facts that are texts; all others are numbers."""

Fact = str | int | float | None
"""Value that a step records for the overview page; None: not known."""


@dataclass(frozen=True)
class StepRecord:
    """Record of one step of a month.

    - ``name``: Step, one of :data:`STEP_NAMES`.
    - ``state``: ``done``, ``failed``, ``left out`` or ``no data``.
    - ``outputs``: SHA-256 of each file written, by its path in the folder.
    - ``facts``: Figures that the overview page shows.
    - ``error``: Error message of a step that is not done.
    """

    name: str
    state: str
    outputs: Mapping[str, str]
    facts: Mapping[str, Fact]
    error: str | None = None


@dataclass(frozen=True)
class MonthRecord:
    """Record of one month: its inputs as hashes, and its steps.

    - ``month``: ``YYYY-MM``.
    - ``gpuplanner``: Version that made it.
    - ``scenario``, ``data``: Hashes of the scenario and of its input files.
    - ``before``: Hash of the forecast ledger (past forecasts and promised savings) of the previous month; None for the
      first.
    - ``steps``: Steps in the order of :data:`STEP_NAMES`.
    """

    month: str
    gpuplanner: str
    scenario: str
    data: str
    before: str | None
    steps: tuple[StepRecord, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every step is done, or the month has no data."""
        states = [step.state for step in self.steps]
        return states == [STEP_DONE] * len(STEP_NAMES) or states == [STEP_WITHOUT_DATA]

    @property
    def has_data(self) -> bool:
        """Whether the report of the month is done, so that later months build on it."""
        return any(step.name == "report" and step.state == STEP_DONE for step in self.steps)

    @property
    def facts(self) -> Mapping[str, Fact]:
        """Facts of all steps by name, such as the number of jobs."""
        return {name: fact for step in self.steps for name, fact in step.facts.items()}

    @property
    def nodes(self) -> Mapping[str, int]:
        """GPUs of each node at the end of the month; empty without a node list."""
        return json.loads(str(self.facts.get("nodes", "{}")))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class MonthChain:
    """Records of the monthly reports in a folder, oldest first; each extends the forecast ledger of the one before."""

    months: tuple[MonthRecord, ...] = ()

    def to_json(self) -> str:
        """Convert the records to JSON text; the same data, scenario and months give the same bytes."""
        return to_json({"format": MONTH_CHAIN_FORMAT, "months": [to_plain(record) for record in self.months]})

    def months_before(self, month: str) -> list[MonthRecord]:
        """List the earlier months that have a report."""
        return [record for record in self.months if record.month < month and record.has_data]

    def with_month(self, record: MonthRecord) -> MonthChain:
        """Add a month, or replace its earlier record."""
        other_months = [month for month in self.months if month.month != record.month]
        return MonthChain(tuple(sorted([*other_months, record], key=lambda month: month.month)))


def read_chain(folder: Path) -> MonthChain:
    """Read the records of the monthly reports in a folder; empty if it has none.

    Raises
    ------
    ScenarioError
        If the file is not a record of monthly reports.
    """
    path = folder / MONTH_CHAIN_FILE
    if not path.exists():
        return MonthChain()
    try:
        values = load_json(path.read_text(encoding="utf-8"), source=str(path), error=ScenarioError)
        if values["format"] != MONTH_CHAIN_FORMAT:
            raise ValueError(values["format"])
        chain = MonthChain(tuple(from_plain(MonthRecord, record) for record in values["months"]))
        if fault := next((fault_text for record in chain.months for fault_text in _find_faults(record)), None):
            raise ValueError(fault)
        if [record.month for record in chain.months] != sorted({record.month for record in chain.months}):
            raise ValueError("months that are not in order, each once")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        todo = "Choose another folder with -o; nothing was changed."
        raise ScenarioError(str(path), f"a file of {MONTH_CHAIN_FORMAT!r}", str(error), todo) from None
    # A month that is no longer accepted, with no step done, is of a call that failed at once.
    return MonthChain(tuple(record for record in chain.months if record.steps or is_month(record.month)))


def _find_faults(month: MonthRecord) -> Iterator[str]:
    """Yield a text for each value in the record of a month that cannot be valid."""
    if not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", month.month):
        yield f"month {month.month[:40]!r}"
    for step, name in zip_longest(month.steps, STEP_NAMES[: len(month.steps)]):
        if step.name != name or step.state not in (STEP_DONE, STEP_FAILED, STEP_LEFT_OUT, STEP_WITHOUT_DATA):
            yield f"step {step.name[:40]!r}, {step.state[:40]!r} in {month.month}"
    for name, fact in month.facts.items():
        if fact is not None and isinstance(fact, str) != (name in TEXT_FACT_NAMES):
            yield f"{name[:40]} {str(fact)[:40]!r} in {month.month}"
    nodes = month.nodes
    if not (isinstance(nodes, dict) and all(isinstance(gpus, int) for gpus in nodes.values())):
        yield f"nodes {str(nodes)[:40]!r} in {month.month}"


def ledger_path(out: Path, month: str) -> Path:
    """Return the path of a month's forecast ledger, beside which the file of promised savings lies."""
    return out / "ledgers" / f"{month}.parquet"
