"""Sums and tables have one order: a grouping without one gives other bytes from run to run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.lint

ORDERED_PACKAGES = ("cost", "decision", "forecast", "report", "sizing", "usage", "ingest/bills")


def end_of_call(text: str, start: int) -> int:
    """Position after the bracket that closes the one before ``start``."""
    depth, position = 1, start
    while depth:
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        position += 1
    return position


def unordered_groupings(text: str) -> list[str]:
    """Groupings of a module whose rows come in any order and are neither sorted nor summed in blocks."""
    found = []
    for match in re.finditer(r"\.group_by\(", text):
        end = end_of_call(text, match.end())
        line = text[text.rfind("\n", 0, match.start()) : match.start()]
        if "maintain_order=True" in text[match.end() : end] or ">>>" in line:
            continue
        chain_end = end
        while step := re.match(r"\s*\.(\w+)\(", text[chain_end:]):
            chain_end = end_of_call(text, chain_end + step.end())
        chain = text[end:chain_end]
        if ".sort(" not in chain and 'engine="streaming"' not in chain:
            found.append(text[match.start() : end])
    return found


def test_groupings_have_an_order(root: Path):
    for package in ORDERED_PACKAGES:
        for path in sorted((root / "gpuplanner" / package).rglob("*.py")):
            assert not unordered_groupings(path.read_text("utf-8")), path


def test_an_unordered_grouping_is_seen():
    assert unordered_groupings('a.group_by("b").agg(c=d(e))')
    assert not unordered_groupings('a.group_by("b", maintain_order=True).agg(c)')
    assert not unordered_groupings('a.group_by("b").agg(c).sort("b")')
