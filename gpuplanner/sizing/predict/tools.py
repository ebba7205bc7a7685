"""What each training tool does unasked, from ``catalog/facts/training_tools.csv``: each fact has its source."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

from gpuplanner.catalog.loader import facts

ANY = "any"
"""The generic row: what is assumed of a tool that is not known."""
OWN_LOOPS = (ANY, "pytorch")
"""Loops of one's own, which have no recipe: what is not stated of them may be anything, and a bound covers it."""


@functools.cache
def _rows(tool: str) -> tuple[tuple[frozenset[str], str, str], ...]:
    """Conditions, fact and value of a tool, in the order of the table."""
    rows = facts("training_tools").filter(tool=tool).select("when", "fact", "value").iter_rows()
    return tuple((frozenset((when or "").split()), fact, value) for when, fact, value in rows)


@functools.cache
def _names() -> dict[str, str]:
    called = facts("training_tools").filter(fact="called").select("tool", "value").iter_rows()
    return {name: tool for tool, names in called for name in (tool, *names.split())}


def tool_called(*names: str | None) -> str:
    """The tool behind the first name that is known, else the generic row.

    Examples
    --------
    >>> tool_called(None, "Lightning-AI/litgpt"), tool_called("my-trainer")
    ('litgpt', 'any')
    """
    known = _names()
    for name in names:
        if name and (found := known.get(name.strip().lower())):
            return found
    return ANY


@functools.lru_cache(4096)
def tool_facts(tool: str, tags: frozenset[str]) -> dict[str, str]:
    """What a tool does in a situation: of rows whose conditions hold, later and the tool's own ones win.

    Examples
    --------
    >>> tool_facts("qwen-finetune", frozenset({"lora"}))["lora_rank"]
    '64'
    """
    sources = (ANY,) if tool == ANY else (ANY, tool)
    return {fact: value or "" for each in sources for when, fact, value in _rows(each) if when <= tags}


@functools.lru_cache(1024)
def figures(kind: str, name: str, fact: str) -> list[float] | None:
    """Numbers of the generic table, such as bytes a parameter of a regime; None where it has no such row.

    Examples
    --------
    >>> figures("regime", "deepspeed", "bytes")
    [2.0, 2.0, 16.0]
    """
    text = tool_facts(ANY, frozenset({kind, name})).get(fact)
    return None if text is None else [float(word) for word in text.split() if word != "x"]


@dataclass(frozen=True)
class ToolFact:
    """One thing that a tool does unasked, and who says so."""

    fact: str
    value: str
    source: str


_OF_PLANS = ("called", "launch", "parallel", "modes", "kernels")
"""Facts that say how a tool is started and how fast it is, not what it does to memory."""


def what_it_does(tool: str, tags: Iterable[str]) -> list[ToolFact]:
    """What a tool does unasked, for people to read."""
    held = frozenset(tags)
    table = facts("training_tools").filter(tool=tool)
    found: dict[str, ToolFact] = {}
    for when, fact, value, source in table.select("when", "fact", "value", "source").iter_rows():
        if frozenset((when or "").split()) <= held and fact not in _OF_PLANS:
            found[fact] = ToolFact(fact, value, source)
    return list(found.values())
