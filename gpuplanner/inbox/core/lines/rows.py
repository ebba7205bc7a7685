"""Rows on their way to a trace: named fields with their types, and a reject for every row that is none.

A reader declares its columns (:class:`~gpuplanner.inbox.core.lines.fields.Field`), gets its rows from
:mod:`gpuplanner.inbox.core.lines.reading`, and turns the good ones into the columns of a table. No row is lost: each is
in the table or, with its reason, among the rejects.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

import polars as pl

from gpuplanner.errors import file_name
from gpuplanner.inbox.core.lines.reject_columns import REJECTS
from gpuplanner.inbox.core.findings import reasons_of
from gpuplanner.inbox.core.lines.fields import Field
from gpuplanner.inbox.core.lines.text_file import TextFile
from gpuplanner.inbox.core.times import FIRST_INSTANT, LAST_INSTANT
from gpuplanner.schemas.kinds import DECIMAL

HEADER_AGAIN = "the header line again"
OUT_OF_TIME = f"not between {FIRST_INSTANT.year} and {LAST_INSTANT.year}"
NUMBERS = {"number": pl.Float64(), "decimal": DECIMAL}
RAW = "raw:"
"""Prefix of the columns that hold a field as it stood, beside its typed value."""

PLACE = ("file", "line", "raw")
"""Columns that trace a row back to its place: number of the file, line number, the line."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one or several files on their way to a trace.

    - ``files``: What was read.
    - ``count``: Rows in the files, without headers and blank lines.
    - ``good``: Rows not rejected so far: ``file``, ``line``, ``raw`` and the fields.
    - ``rejects``: Rows rejected so far.
    - ``unused``: Columns of the files that nothing was read from.
    - ``blank``: Blank lines.
    """

    files: tuple[TextFile, ...]
    count: int
    good: pl.DataFrame
    rejects: pl.DataFrame
    unused: tuple[str, ...] = ()
    blank: int = 0

    def file_names(self) -> list[str]:
        """Names of the files, with their folders only where the names alone do not tell them apart."""
        return names_of(self.files)

    @property
    def height(self) -> int:
        """Number of good rows."""
        return self.good.height

    @property
    def reasons(self) -> pl.DataFrame:
        """Rejected rows by reason."""
        return reasons_of(self.rejects)

    def with_columns(
        self, *columns: pl.Expr | pl.Series | Iterable[pl.Expr], **named: pl.Expr | pl.Series | str
    ) -> Rows:
        """The same rows with more columns, or others of some names."""
        return replace(self, good=self.good.with_columns(*columns, **named))

    def reject(self, faults: Mapping[str, pl.Expr]) -> Rows:
        """Move the rows with a fault to the reject table, each with all its reasons."""
        marks = self.good.select(fault.fill_null(False).alias(reason) for reason, fault in faults.items())
        faulty = marks.select(pl.any_horizontal(pl.all())).to_series()
        if not faulty.any():
            return self
        words = [pl.when(pl.col(reason)).then(pl.lit(reason)) for reason in faults]
        reasons = marks.filter(faulty).select(pl.concat_str(words, separator="; ", ignore_nulls=True))
        bad = self.good.filter(faulty).select(
            file=pl.col("file").replace_strict(dict(enumerate(self.file_names())), return_dtype=pl.String),
            row=pl.col("line").cast(pl.Int64),
            reason=reasons.to_series(),
            raw=pl.col("raw"),
        )
        return replace(
            self, good=self.good.filter(~faulty), rejects=pl.concat([self.rejects, bad.cast(REJECTS)])
        )


def names_of(files: Sequence[TextFile]) -> list[str]:
    """Names of files, with their folders only where the names alone do not tell them apart."""
    names = [file_name(file.path) for file in files]
    if len(set(names)) == len(names):
        return names
    return [f"{file_name(file.path.parent)}/{file_name(file.path)}" for file in files]


def together(files: tuple[TextFile, ...], parts: Sequence[Rows]) -> Rows:
    """Rows of several files, or of several parts of one, below each other."""
    return Rows(
        files=files,
        count=sum(part.count for part in parts),
        good=pl.concat([part.good for part in parts], how="diagonal", rechunk=True),
        rejects=pl.concat([part.rejects for part in parts]),
        unused=tuple(dict.fromkeys(name for part in parts for name in part.unused)),
        blank=sum(part.blank for part in parts),
    )


def typed(rows: Rows, columns: Mapping[str, Field]) -> Rows:
    """Cast every field; values that cannot be read or are out of bounds reject their row."""
    values, faults = [], {}
    for name, each in columns.items():
        raw, value = pl.col(RAW + name), pl.col(each.name)
        read_at_once = rows.good.schema[RAW + name] == pl.Float64
        filled = raw.is_not_null() if read_at_once else raw != ""
        if each.kind in NUMBERS:
            dtype = NUMBERS[each.kind]
            values.append(raw.cast(dtype, strict=False).alias(each.name))
            finite = value.is_finite() if each.kind == "number" else value.is_not_null()
            faults[f"{name}: not a number"] = filled & ~finite.fill_null(False)
            faults[f"{name}: below {each.low:g}"] = finite & (value < each.low)
            if each.high < math.inf:
                faults[f"{name}: above {each.high:g}"] = finite & (value > each.high)
        elif each.kind == "time":
            values.append(
                raw.str.to_datetime(each.format, time_unit="us", strict=False, cache=False).alias(each.name)
            )
            faults[f"{name}: not a time like {each.format}"] = filled & value.is_null()
            faults[f"{name}: {OUT_OF_TIME}"] = out_of_time(value)
        elif each.kind == "instant":
            values.append(with_offset(in_utc(raw) if each.naive_is_utc else raw).alias(each.name))
            expected = "a time" if each.naive_is_utc else "a time with its offset from UTC"
            faults[f"{name}: not {expected}"] = filled & value.is_null()
            faults[f"{name}: {OUT_OF_TIME}"] = out_of_time(value)
        else:
            values.append((raw if read_at_once else pl.when(filled).then(raw)).alias(each.name))
        if not each.nullable:
            faults[f"{name}: missing"] = ~filled.fill_null(False)
    read = rows.with_columns(values).reject(faults)
    return replace(read, good=read.good.drop(RAW + name for name in columns))


def with_offset(raw: pl.Expr) -> pl.Expr:
    """Dates and times with an offset from UTC; null where the offset is missing."""
    offset = raw.str.replace(r"\s*(?:Z|UTC)$", "+00:00").str.replace(" ", "T", literal=True)
    return offset.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%z", time_unit="us", strict=False, cache=False)


def in_utc(raw: pl.Expr) -> pl.Expr:
    """Dates and times as text with an offset: where there is none they are UTC; seconds, or the whole time, may lack.

    Examples
    --------
    >>> table = pl.DataFrame({"at": ["2026-03-01 00:00:00", "2026-03-01T05:30Z", "2026-03-01"]})
    >>> table.select(in_utc(pl.col("at"))).to_series().to_list()
    ['2026-03-01T00:00:00Z', '2026-03-01T05:30:00Z', '2026-03-01T00:00:00Z']
    """
    text = raw.str.strip_chars().str.replace(r"^(\d{4}-\d{2}-\d{2}) ?$", "${1}T00:00")
    text = text.str.replace(r"^(\d{4}-\d{2}-\d{2})[ T](\d{2}:\d{2})", "${1}T${2}")
    text = text.str.replace(r"T(\d{2}:\d{2})(Z|\s*UTC|[+-]\d{2}:?\d{2})?$", "T${1}:00${2}")
    return text.str.replace(r"T([\d:.]+)$", "T${1}Z")


def out_of_time(value: pl.Expr) -> pl.Expr:
    """True for dates that no trace of GPU jobs can have."""
    first, last = (int(instant.timestamp() * 1e6) for instant in (FIRST_INSTANT, LAST_INSTANT))
    return ~value.dt.timestamp("us").is_between(first, last)


CONTROL = "a control character"

Record = Mapping[str, str | None]
"""Text of each column of the source that a thing gives; what is absent or None is missing."""


@dataclass
class Records:
    """Collects records and rejects, in their order.

    - ``columns``: Column of the source → how to read it.
    """

    columns: Mapping[str, Field]
    _good: list[tuple[object, ...]] = field(default_factory=list)
    _bad: list[tuple[int, int, str, str]] = field(default_factory=list)

    def add(self, file: int, place: int, raw: str, record: Record) -> None:
        """Keep a record of the item at `place` of file number `file`; text that cannot be shown rejects it."""
        values = [record.get(name) for name in self.columns]
        hidden = [
            name for name, value in zip(self.columns, values, strict=True) if not (value or "").isprintable()
        ]
        if hidden:
            self.reject(file, place, raw, f"{hidden[0]}: {CONTROL}")
        else:
            self._good.append((file, place, printable(raw), *values))

    def reject(self, file: int, place: int, raw: str, reason: str) -> None:
        """Reject an item, with its reason."""
        self._bad.append((file, place, printable(reason), printable(raw)))

    def rows(self, files: Sequence[TextFile]) -> Rows:
        """Give all records their types; values that cannot be read reject their row.

        Examples
        --------
        >>> records = Records({"gpus": Field("gpus", "number")})
        >>> records.add(0, 1, "{...}", {"gpus": "8"})
        >>> records.add(0, 2, "{...}", {"gpus": "4"})
        >>> records.rows([]).good["gpus"].to_list()
        [8.0, 4.0]
        """
        texts = {RAW + name: pl.String for name in self.columns}
        empty = Rows(tuple(files), 0, pl.DataFrame(), pl.DataFrame(schema=REJECTS))
        names = empty.file_names()
        rejects = [(names[file], place, reason, raw) for file, place, reason, raw in self._bad]
        rows = Rows(
            files=tuple(files),
            count=len(self._good) + len(self._bad),
            good=pl.DataFrame(
                self._good,
                schema={"file": pl.UInt32, "line": pl.UInt32, "raw": pl.String, **texts},
                orient="row",
            ),
            rejects=pl.DataFrame(rejects, schema=REJECTS, orient="row"),
        )
        return typed(rows, self.columns)


def refuse(reason: str) -> NoReturn:
    """Say why a thing cannot be read, which goes to the reject table with this reason."""
    raise ValueError(reason)


def printable(text: str) -> str:
    r"""Text with a question mark for each character that cannot be shown.

    Examples
    --------
    >>> printable("a\x1b[2J")
    'a?[2J'
    """
    return text if text.isprintable() else "".join(each if each.isprintable() else "?" for each in text)
