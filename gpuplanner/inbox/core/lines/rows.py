"""Rows on their way to a trace: named fields with their types, and a reject for every row that is none.

A reader declares its columns (:class:`~gpuplanner.inbox.core.lines.fields.Field`), gets its rows from
:mod:`gpuplanner.inbox.core.lines.reading`, and turns the good ones into the columns of a table. No row is lost: each is
in the table or, with its reason, among the rejects.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from gpuplanner.errors import file_name
from gpuplanner.inbox.core.dataset import REJECTS
from gpuplanner.inbox.core.lines.fields import Field
from gpuplanner.inbox.core.lines.text_file import TextFile
from gpuplanner.inbox.core.times import FIRST_INSTANT, LAST_INSTANT
from gpuplanner.schemas.columns import DECIMAL

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

    Attributes
    ----------
    files : tuple of TextFile
        What was read.
    count : int
        Rows in the files, without headers and blank lines.
    good : polars.DataFrame
        Rows not rejected so far: ``file``, ``line``, ``raw`` and the fields.
    rejects : polars.DataFrame
        Rows rejected so far.
    unused : tuple of str
        Columns of the files that nothing was read from.
    blank : int
        Blank lines.
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
    for name, field in columns.items():
        raw, value = pl.col(RAW + name), pl.col(field.name)
        read_at_once = rows.good.schema[RAW + name] == pl.Float64
        filled = raw.is_not_null() if read_at_once else raw != ""
        if field.kind in NUMBERS:
            dtype = NUMBERS[field.kind]
            values.append(raw.cast(dtype, strict=False).alias(field.name))
            finite = value.is_finite() if field.kind == "number" else value.is_not_null()
            faults[f"{name}: not a number"] = filled & ~finite.fill_null(False)
            faults[f"{name}: below {field.low:g}"] = finite & (value < field.low)
            if field.high < math.inf:
                faults[f"{name}: above {field.high:g}"] = finite & (value > field.high)
        elif field.kind == "time":
            values.append(
                raw.str.to_datetime(field.format, time_unit="us", strict=False, cache=False).alias(field.name)
            )
            faults[f"{name}: not a time like {field.format}"] = filled & value.is_null()
            faults[f"{name}: {OUT_OF_TIME}"] = out_of_time(value)
        elif field.kind == "instant":
            values.append(_instant(raw).alias(field.name))
            faults[f"{name}: not a time with its offset from UTC"] = filled & value.is_null()
            faults[f"{name}: {OUT_OF_TIME}"] = out_of_time(value)
        else:
            values.append((raw if read_at_once else pl.when(filled).then(raw)).alias(field.name))
        if not field.nullable:
            faults[f"{name}: missing"] = ~filled.fill_null(False)
    read = replace(rows, good=rows.good.with_columns(values)).reject(faults)
    return replace(read, good=read.good.drop(RAW + name for name in columns))


def _instant(raw: pl.Expr) -> pl.Expr:
    """Dates and times with an offset from UTC; null where the offset is missing."""
    offset = raw.str.replace(r"\s*(?:Z|UTC)$", "+00:00").str.replace(" ", "T", literal=True)
    return offset.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%z", time_unit="us", strict=False, cache=False)


def out_of_time(value: pl.Expr) -> pl.Expr:
    """True for dates that no trace of GPU jobs can have."""
    first, last = (int(instant.timestamp() * 1e6) for instant in (FIRST_INSTANT, LAST_INSTANT))
    return ~value.dt.timestamp("us").is_between(first, last)
