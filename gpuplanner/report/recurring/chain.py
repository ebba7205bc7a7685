"""The record of a chain of months: what each step of each month did, and where its files are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from gpuplanner.errors import ScenarioError, message
from gpuplanner.files.text import to_json
from gpuplanner.plain import of_plain, to_plain
from gpuplanner.strict_json import load_json

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
        values = load_json(place.read_text(encoding="utf-8"), where=str(place), error=ScenarioError)
        if values["format"] != FORMAT:
            raise ValueError(values["format"])
        chain = Chain(tuple(of_plain(MonthRecord, one) for one in values["months"]))
        if odd := next((said for one in chain.months for said in _odd(one)), None):
            raise ValueError(odd)
        if [one.month for one in chain.months] != sorted({one.month for one in chain.months}):
            text = "months that are not in order, each once"
            raise ValueError(text)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        todo = "Choose another folder with -o; nothing was changed."
        raise ScenarioError(message(str(place), f"a file of {FORMAT!r}", str(error), todo)) from None
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
