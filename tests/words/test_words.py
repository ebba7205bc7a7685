"""Texts that users read keep to one vocabulary: the words of the field, one for each concept."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.words.visible_text import python_texts, visible_texts

pytestmark = pytest.mark.lint

HERE = Path(__file__).parent


def rows_of(name: str) -> list[dict[str, str]]:
    """Read a table of this folder."""
    with (HERE / name).open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def misplaced_words(texts: Iterator[tuple[str, int, str]]) -> Iterator[tuple[str, str]]:
    """Yield each word that has a better one with its place, and the words around it that may excuse it."""
    patterns = [(re.compile(row["pattern"], re.IGNORECASE), row["write"]) for row in rows_of("words.csv")]
    for name, line, text in texts:
        for pattern, better in patterns:
            for found in pattern.finditer(text):
                around = " ".join(text[max(found.start() - 60, 0) : found.end() + 60].split())
                yield name, f"{name}:{line}: {found[0]!r} in …{around}… write: {better}"


def test_visible_texts_keep_to_the_vocabulary(root: Path):
    exceptions = [(re.compile(row["file"]), re.compile(row["text"])) for row in rows_of("exceptions.csv")]
    used, faults = set(), []
    for name, fault in misplaced_words(visible_texts(root)):
        excuses = {number for number, (file, text) in enumerate(exceptions) if file.search(name) and text.search(fault)}
        used |= excuses
        if not excuses:
            faults.append(fault)
    assert not faults, f"{len(faults)} words:\n" + "\n".join(faults[:40])
    unused = [exceptions[number] for number in range(len(exceptions)) if number not in used]
    assert not unused, f"exceptions that excuse nothing: {unused}"


def test_literals_and_help_are_read_and_docstrings_and_keys_are_not():
    module = '"""About boards."""\nNAME = "board"\n@app.command()\ndef run():\n    """Show boards."""\n'
    module += '    return f"{NAME} boards"\n'
    assert [text for _, text in python_texts(module)] == ["{} boards"]
    assert [text for _, text in python_texts(module, help_texts=True)] == ["Show boards.", "{} boards"]


def test_a_word_with_a_better_one_is_named_with_its_place():
    found = [fault for _, fault in misplaced_words(iter([("a.md", 3, "Nobody says which board.")]))]
    assert len(found) == 3
    assert all(fault.startswith("a.md:3: ") for fault in found)
