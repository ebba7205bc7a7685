"""What words on a page mean, from one table, and text from data as a page may show it."""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path

from gpuplanner.errors import printable

_TABLE = Path(__file__).parent / "glossary.csv"
_TAGS = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL)
_INTRO = "# Words\n\nOne meaning each, in code, tables and reports alike.\n\n| word | meaning |\n|---|---|\n"


def safe(text: str) -> str:
    r"""Text from data as markup: what would be a tag, or turn the direction of what follows, is shown as text.

    Examples
    --------
    >>> safe("<b>\u202ecod")
    '&lt;b&gt;\\u202ecod'
    """
    return escape(printable(text))


@dataclass(frozen=True)
class Word:
    """A word of the glossary: its meaning, and other forms in which pages have it."""

    word: str
    forms: tuple[str, ...]
    meaning: str


@functools.cache
def glossary() -> tuple[Word, ...]:
    """The words of ``glossary.csv``, in its order."""
    with _TABLE.open(encoding="utf-8", newline="") as stream:
        return tuple(
            Word(row["word"], tuple(form for form in row["also"].split("|") if form), row["meaning"])
            for row in csv.DictReader(stream)
        )


def told(text: str) -> str:
    """A heading as markup; where it is a word of the glossary, with its meaning for those who point at it.

    Examples
    --------
    >>> told("nodes"), told("held idle [%]")
    ('nodes', '<abbr title="allocated, and the device was seen not to work">held idle</abbr> [%]')
    """
    stem, _, unit = text.partition(" [")
    meaning = _by_form().get(stem.lower())
    if meaning is None:
        return safe(text)
    return f'<abbr title="{escape(meaning)}">{safe(stem)}</abbr>' + (f" [{safe(unit)}" if unit else "")


def words_on(html: str) -> dict[str, str]:
    """The words of the glossary that a page uses, with their meanings.

    Examples
    --------
    >>> list(words_on("<p>Held idle by nobody.</p>"))
    ['allocated, held', 'held idle']
    """
    text = unescape(_TAGS.sub(" ", html)).lower()
    return {
        one.word: one.meaning
        for one in glossary()
        if any(re.search(rf"(?<!\w){re.escape(form.lower())}(?!\w)", text) for form in (one.word, *one.forms))
    }


def glossary_markdown() -> str:
    """The table of words for the documentation."""
    return _INTRO + "".join(f"| {one.word} | {one.meaning} |\n" for one in glossary())


@functools.cache
def _by_form() -> Mapping[str, str]:
    """Meanings by every form in which a heading may have a word."""
    return {form.lower(): one.meaning for one in glossary() for form in (one.word, *one.forms)}
