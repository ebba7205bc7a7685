"""What a source calls its columns, and how its lines are cut into them."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpuplanner.errors import OTHER_SOURCE, TraceFormatError, examples, message
from gpuplanner.names import nearest

MAX_NAME = 40
"""Characters of a column name that a message shows."""


@dataclass(frozen=True)
class Field:
    """How one column of a source is read.

    - ``name``: Our name.
    - ``kind``: ``"text"``, ``"number"``, ``"decimal"`` (exact to 18 decimals, for money), ``"time"`` (naive, in
      `format`), ``"instant"`` (a date and time with its offset from UTC, as ``Z``, ``UTC`` or ``+08:00``) or
      ``"moment"`` (text of a date and time in one of several forms, which the reader tells apart).
    - ``nullable``: The value may be empty.
    - ``optional``: The whole column may be absent.
    - ``at_once``: Of a text: where all that a block of lines has in it are bare numbers or nothing, it may be read as
      numbers together with the lines (:func:`gpuplanner.inbox.core.lines.reading.read_row_blocks`).
    - ``low``, ``high``: Bounds of a number or decimal.
    - ``format``: Date format of a time.
    - ``naive_is_utc``: An instant without its offset is UTC.
    """

    name: str
    kind: Literal["text", "number", "decimal", "time", "instant", "moment"] = "text"
    nullable: bool = False
    optional: bool = False
    at_once: bool = False
    low: float = 0.0
    high: float = math.inf
    format: str = "%Y-%m-%d %H:%M:%S"
    naive_is_utc: bool = False


@dataclass(frozen=True)
class Dialect:
    """How lines are cut into fields.

    - ``separator``: One character.
    - ``quotes``: Fields may stand in quotation marks.
    - ``names``: Field names of a file without a header line, from its first lines; None if the first line is a
      header.
    - ``free_tail``: Folded names of fields that may contain the separator, if they stand last or one of them alone.
    - ``any_of``: Of each group, at least one column must be there.
    - ``missing``: Words that stand for a missing value, beside nothing at all.
    - ``hint``: What to do where columns are missing.
    - ``tables``: Files may be Parquet as well as text.
    """

    separator: str = ","
    quotes: bool = True
    names: Callable[[Sequence[str]], Sequence[str] | None] = lambda _: None
    free_tail: Collection[str] = ()
    any_of: tuple[tuple[str, ...], ...] = ()
    missing: frozenset[str] = frozenset()
    hint: str = OTHER_SOURCE
    tables: bool = False


CSV = Dialect()


def cut_by_csv(line: str, separator: str) -> list[str] | None:
    """Fields of a line; None if a quotation mark is not closed."""
    try:
        return next(csv.reader([line], delimiter=separator, strict=True))
    except csv.Error:
        return None


def header_names(header: str, dialect: Dialect) -> list[str]:
    """Field names of a header line."""
    if dialect.quotes and '"' in header:
        fields = cut_by_csv(header, dialect.separator)
        return [name.strip() for name in fields or ()]
    return [name.strip() for name in header.split(dialect.separator)]


def column_places(
    names: Sequence[str], columns: Mapping[str, Field], path: Path, source: str, dialect: Dialect
) -> dict[str, int]:
    """Position of each of our columns among the names of the file; what is missing is named all at once."""
    folded = [name.casefold() for name in names]
    places = {name: folded.index(name.casefold()) for name in columns if name.casefold() in folded}
    twice = sorted(name for name in places if folded.count(name.casefold()) > 1)
    missing: list[tuple[str, ...]] = [
        (name,) for name, field in columns.items() if name not in places and not field.optional
    ]
    missing += [group for group in dialect.any_of if not any(name in places for name in group)]
    if not places and not missing:  # every column may be absent, but not all of them
        missing = [tuple(columns)]
    if twice:
        text = message(str(path), "each column once", f"{examples(twice)} more than once", "Rename one.")
        raise TraceFormatError(text)
    if missing:
        wanted = ", ".join(" or ".join(map(repr, group)) for group in missing)
        shown = [name[:MAX_NAME] for name in names]
        got = f"columns {examples(shown)}"
        free = [name for place, name in enumerate(shown) if place not in places.values()]
        near = {name: nearest(name, free)[:1] for group in missing for name in group}
        pairs = ", ".join(f"{name!r} may be {found[0]!r} here" for name, found in near.items() if found)
        todo = f"Was a column renamed? {pairs}. {dialect.hint}" if pairs else dialect.hint
        raise TraceFormatError(message(str(path), f"columns {wanted} of {source}", got, todo))
    return places
