"""What words on a page mean, from one table, text from data as a page may show it, and in the way of its readers."""

from __future__ import annotations

import base64
import csv
import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from typing import Any

from gpuplanner.errors import printable
from gpuplanner.units import LOCALES, in_locale

_TABLE = Path(__file__).parent / "glossary.csv"
_TAGS = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL)
_PARTS = re.compile(
    r'(?P<chart><script type="application/json">.*?</script>)|<(?P<kept>script|style|code|pre)\b.*?</(?P=kept)>'
    r'|(?P<facts><dl>.*?</dl>)|(?P<named><th scope="row".*?</th>)|<[^>]*>',
    re.DOTALL,
)
_SAID = re.compile(r'(?<= )(aria-label|alt|title)="([^"]*)"')
_PICTURE = re.compile(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)")
_TEXTS = ("text", "title", "description", "subtitle", "word", "label")
"""Keys of a chart, and columns of its data, under which words stand that a reader sees."""


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


@functools.cache
def _by_form() -> Mapping[str, str]:
    """Meanings by every form in which a heading may have a word."""
    return {form.lower(): one.meaning for one in glossary() for form in (one.word, *one.forms)}


def as_json(spec: Mapping[str, object]) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(spec, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def localised(html: str, name: str) -> str:
    """A page of ours with numbers and days written as a locale does; code, provenance and names in tables stay.

    Examples
    --------
    >>> localised('<p title="1.5 h">1,344.5 h</p><code>0.5</code><th scope="row">0.5</th>', "de")
    '<p title="1,5 h">1.344,5 h</p><code>0.5</code><th scope="row">0.5</th>'
    """
    if name == next(iter(LOCALES)):
        return html
    texts, at = list[str](), 0
    for found in _PARTS.finditer(html):
        texts += [in_locale(html[at : found.start()], name), _part(found, name)]
        at = found.end()
    return "".join([*texts, in_locale(html[at:], name)])


def _part(found: re.Match[str], name: str) -> str:
    if found["chart"]:
        return _chart(found["chart"], name)
    if found["named"]:
        return in_locale(found["named"], name, numbers=False)
    return found[0] if found["kept"] or found["facts"] else _tag(found[0], name)


def _tag(tag: str, name: str) -> str:
    """A tag with what it says in words, and the text of a picture in it."""
    tag = _SAID.sub(lambda found: f'{found[1]}="{in_locale(found[2], name)}"', tag)
    return _PICTURE.sub(lambda found: f"data:image/svg+xml;base64,{_redrawn(found[1], name)}", tag)


def _redrawn(picture: str, name: str) -> str:
    svg = localised(base64.b64decode(picture).decode("utf-8"), name)
    return base64.b64encode(svg.encode("utf-8")).decode("ascii")


def _chart(script: str, name: str) -> str:
    """A chart that formats its numbers so, and says its texts so; data are as they are."""
    opening, _, rest = script.partition(">")
    spec = _worded(json.loads(rest.removesuffix("</script>")), name)
    to = LOCALES[name]
    marks = {"decimal": to.decimal, "thousands": to.thousands, "grouping": [3], "currency": ["", ""]}
    spec["config"] = spec.get("config", {}) | {"locale": {"number": marks}}
    return f"{opening}>{as_json(spec)}</script>"


def _worded(value: Any, name: str, key: str = "") -> Any:  # noqa: ANN401 - JSON of any shape
    if isinstance(value, dict):
        return {each: _worded(one, name, each) for each, one in value.items()}
    if isinstance(value, list):
        return [_worded(one, name, key) for one in value]
    return in_locale(value, name) if isinstance(value, str) and key in _TEXTS else value
