"""Shared way in: files → numbered lines → named fields → typed values, and a reject for every other row.

A reader declares its columns (:class:`Field`) and turns good rows into the columns of ``schemas.Jobs``;
everything else happens here. No row is lost: each is in the jobs or, with its reason, in the reject table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from gpuplanner.errors import TraceFormatError, file_name, message
from gpuplanner.inbox.core.dataset import REJECTS
from gpuplanner.inbox.core.lines.fields import (
    CSV,
    Dialect,
    Field,
    column_places,
    header_names,
)
from gpuplanner.inbox.core.lines.numbers_at_once import with_numbers
from gpuplanner.inbox.core.lines.parquet_text import as_text, require_types
from gpuplanner.inbox.core.lines.quoted import UNIT_SEPARATOR, all_quoted, unquoted
from gpuplanner.inbox.core.lines.text_blocks import FileBlocks, refuse_twins
from gpuplanner.inbox.core.lines.text_file import CONTROL_PATTERN, TextFile, read_text_file
from gpuplanner.inbox.core.times import FIRST_INSTANT, LAST_INSTANT
from gpuplanner.schemas.columns import DECIMAL

HEADER_AGAIN = "the header line again"
TOO_FEW = "fewer fields than columns"
OUT_OF_TIME = f"not between {FIRST_INSTANT.year} and {LAST_INSTANT.year}"
SAMPLE_LINES = 50
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
        """Move the rows with a fault to the reject table, each with all its reasons.

        Parameters
        ----------
        faults : mapping of str to polars.Expr
            Reason → condition; null counts as false.
        """
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


def read_rows(
    paths: Sequence[str | Path], columns: Mapping[str, Field], *, source: str, dialect: Dialect = CSV
) -> Rows:
    r"""Read files of one source and give their columns names and types.

    Parameters
    ----------
    paths : sequence of str or Path
        At least one; rows follow each other in this order.
    columns : mapping of str to Field
        Column of the source (case ignored) → how to read it. Other columns are not read.
    source : str
        Name of the source, for messages.
    dialect : Dialect
        How lines are cut.

    Returns
    -------
    Rows
        One column per field beside ``file``, ``line`` and ``raw``; unreadable rows are rejected.

    Raises
    ------
    TraceFormatError
        If a file cannot be read, is empty, lacks columns (near names are given), or is given twice.

    Examples
    --------
    >>> import tempfile
    >>> columns = {"num_gpu": Field("gpus", "number")}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.csv"
    ...     _ = path.write_text("num_gpu\n8\neight\n")
    ...     rows = read_rows([path], columns, source="example")
    >>> rows.good["gpus"].to_list(), rows.rejects["row", "reason"].rows()
    ([8.0], [(3, 'num_gpu: not a number')])
    """
    if not paths:
        raise TraceFormatError(message(source, "at least one file", "none", "Give the path of a file."))
    files = tuple(read_text_file(path, tables=dialect.tables) for path in paths)
    refuse_twins(files, source)
    parts = [
        _cut(files, number, columns, source, dialect)
        if file.table is None
        else _picked(files, number, file.table, columns, source, dialect)
        for number, file in enumerate(files)
    ]
    rows = Rows(
        files=files,
        count=sum(part.count for part in parts),
        good=pl.concat([part.good for part in parts], rechunk=True),
        rejects=pl.concat([part.rejects for part in parts]),
        unused=tuple(dict.fromkeys(name for part in parts for name in part.unused)),
        blank=sum(part.blank for part in parts),
    )
    return typed(rows, columns)


@dataclass(frozen=True)
class _Heading:
    """How the lines of one file are cut: names of its fields, where ours are, and its header line, if it has one."""

    names: list[str]
    places: dict[str, int]
    header: str | None
    ends_in_separator: bool


def read_row_blocks(
    blocks: FileBlocks, columns: Mapping[str, Field], *, source: str, dialect: Dialect = CSV
) -> Iterator[Rows]:
    """Do what :func:`read_rows` does, of a block of lines at a time; Parquet is not read.

    Parameters
    ----------
    blocks : FileBlocks
        Files; what they turn out to be stands in its ``files`` afterwards.
    columns, source, dialect
        As for :func:`read_rows`.

    Yields
    ------
    Rows
        Of one block; its ``files`` are those of `blocks`, of which only the paths are known yet.

    Raises
    ------
    TraceFormatError
        As :func:`read_rows`, once it comes to the fault.
    """
    if not blocks.paths:
        raise TraceFormatError(message(source, "at least one file", "none", "Give the path of a file."))
    files = tuple(blocks.files)
    heading, current = None, 0
    for number, block in blocks:
        if number != current:
            _require_begun(heading, files[current].path, source)
            heading, current = None, number
        body = block.lines.rename({"text": "raw"}).filter(pl.col("raw") != "")
        blank = block.lines.height - body.height
        if heading is None and body.height:
            heading = _heading(body, columns, block.path, source, dialect)
            body = body if heading.header is None else body.slice(1)
        if heading is None:
            yield Rows(files, 0, pl.DataFrame(), pl.DataFrame(schema=REJECTS), blank=blank)
        else:
            rows = _cut_at_once(files, number, block, body, heading, columns, dialect) or _cut_body(
                files, number, block, body, heading, columns, dialect
            )
            yield typed(replace(rows, blank=blank), columns)
    _require_begun(heading, files[current].path, source)
    refuse_twins(blocks.files, source)


def _require_begun(heading: object, path: Path, source: str) -> None:
    if heading is None:
        what = message(str(path), f"rows of {source}", "an empty file", "Is this the right file?")
        raise TraceFormatError(what)


def _cut(
    files: tuple[TextFile, ...], number: int, columns: Mapping[str, Field], source: str, dialect: Dialect
) -> Rows:
    """Cut the lines of one file into raw fields; ragged and unreadable lines are rejected."""
    file = files[number]
    body = file.lines.rename({"text": "raw"}).filter(pl.col("raw") != "")
    blank = file.lines.height - body.height
    _require_begun(None if body.is_empty() else body, file.path, source)
    heading = _heading(body, columns, file.path, source, dialect)
    body = body if heading.header is None else body.slice(1)
    return replace(_cut_body(files, number, file, body, heading, columns, dialect), blank=blank)


def _heading(
    body: pl.DataFrame, columns: Mapping[str, Field], path: Path, source: str, dialect: Dialect
) -> _Heading:
    names = dialect.names(body["raw"].head(SAMPLE_LINES).to_list())
    header, open_end = None, False
    if names is None:
        header = str(body["raw"][0])
        names = header_names(header, dialect)
        if (
            names[-1:] == [""] and dialect.separator != ","
        ):  # sacct --parsable ends each line with its separator
            names, open_end = names[:-1], True
    places = column_places(names, columns, path, source, dialect)
    return _Heading(list(names), places, header, open_end)


def _cut_at_once(
    files: tuple[TextFile, ...],
    number: int,
    file: TextFile,
    body: pl.DataFrame,
    heading: _Heading,
    columns: Mapping[str, Field],
    dialect: Dialect,
) -> Rows | None:
    """Cut lines below the header with their numbers; None if they hold more than that."""
    names, places = heading.names, heading.places
    numbers = {places[name] for name, field in columns.items() if field.at_once and name in places}
    plain = not (file.has_quotes or file.has_controls or heading.ends_in_separator or dialect.missing)
    if not (numbers and plain and body.height) or names[-1].casefold() in dialect.free_tail:
        return None
    read = with_numbers(body["raw"], dialect.separator, names, numbers)
    if read is None:
        return None
    cells, short = read
    found = [
        (cells.to_series(places[name]) if name in places else pl.lit(None, pl.String)).alias(RAW + name)
        for name in columns
    ]
    rows = Rows(
        files=files,
        count=body.height,
        good=body.select("line", "raw", file=pl.lit(number, pl.UInt32)).select(*PLACE).with_columns(found),
        rejects=pl.DataFrame(schema=REJECTS),
        unused=_unused(heading),
    )
    faults = {TOO_FEW: pl.lit(short)}
    if heading.header is not None:
        faults = {HEADER_AGAIN: pl.col("raw") == heading.header} | faults
    return rows.reject(faults)


def _unused(heading: _Heading) -> tuple[str, ...]:
    """Columns of a file that nothing is read from."""
    places = heading.places.values()
    return tuple(name for place, name in enumerate(heading.names) if place not in places)


def _cut_body(
    files: tuple[TextFile, ...],
    number: int,
    file: TextFile,
    body: pl.DataFrame,
    heading: _Heading,
    columns: Mapping[str, Field],
    dialect: Dialect,
) -> Rows:
    """Cut lines below the header; `file` tells what may stand in them."""
    if not (dialect.quotes and file.has_quotes and len(heading.names) > 1):
        return _cut_one_by_one(files, number, file, body, heading, columns, dialect)
    cells, sound = all_quoted(body["raw"], dialect.separator, len(heading.names))
    if heading.header is not None:
        sound &= body["raw"] != heading.header
    if file.has_controls:
        sound &= ~body["raw"].str.contains(CONTROL_PATTERN)
    found = {
        RAW + name: cells.to_series(heading.places[name])
        if name in heading.places
        else pl.lit(None, pl.String)
        for name in columns
    }
    quick = body.select("raw", "line", file=pl.lit(number, pl.UInt32)).select(*PLACE).with_columns(**found)
    quick = _without_words(quick.filter(sound), dialect)
    rest = _cut_one_by_one(files, number, file, body.filter(~sound), heading, columns, dialect)
    good = pl.concat([quick, rest.good]).sort("line") if rest.good.height else quick
    return replace(rest, count=body.height, good=good)


def _cut_one_by_one(
    files: tuple[TextFile, ...],
    number: int,
    file: TextFile,
    body: pl.DataFrame,
    heading: _Heading,
    columns: Mapping[str, Field],
    dialect: Dialect,
) -> Rows:
    """Cut lines below the header, whatever stands in each."""
    names, places, separator, faults = heading.names, heading.places, dialect.separator, {}
    if heading.header is not None:
        faults[HEADER_AGAIN] = pl.col("raw") == heading.header
    text = pl.col("raw").str.strip_suffix(separator) if heading.ends_in_separator else pl.col("raw")
    body = body.with_columns(text=text)
    if dialect.quotes and file.has_quotes:
        body = body.with_columns(text=unquoted(body["raw"], separator))
        separator = UNIT_SEPARATOR
        faults["a quotation mark that is not closed"] = pl.col("fields").is_null()
    if file.has_controls:
        faults["a control character"] = pl.col("raw").str.contains(CONTROL_PATTERN)
    cut = body.select(
        "line", "raw", fields=pl.col("text").str.split(separator), file=pl.lit(number, pl.UInt32)
    )
    fields, count = pl.col("fields"), pl.col("fields").list.len()
    free = names[-1].casefold() in dialect.free_tail
    faults[TOO_FEW] = count < len(names)
    if not free:  # such a last field takes whatever follows
        faults["more fields than columns"] = count > len(names)
    rows = Rows(
        files=files,
        count=body.height,
        good=cut,
        rejects=pl.DataFrame(schema=REJECTS),
        unused=_unused(heading),
    ).reject(faults)
    found = {
        RAW + name: pl.lit(None, pl.String)
        if name not in places
        else fields.list.slice(places[name]).list.join(separator)
        if free and places[name] == len(names) - 1
        else fields.list.get(places[name], null_on_oob=True)
        for name in columns
    }
    return replace(rows, good=_without_words(rows.good.select(*PLACE, **found), dialect))


def _picked(
    files: tuple[TextFile, ...],
    number: int,
    table: pl.DataFrame,
    columns: Mapping[str, Field],
    source: str,
    dialect: Dialect,
) -> Rows:
    """Pick the columns of a Parquet file, as text; its rows are numbered as lines below a header are."""
    path, names = files[number].path, table.columns
    places = {
        name: names[place] for name, place in column_places(names, columns, path, source, dialect).items()
    }
    require_types(table.schema, {places[name]: columns[name] for name in places}, path)
    texts = table.select(as_text(name, dtype) for name, dtype in table.schema.items())
    found = [
        (pl.col(places[name]) if name in places else pl.lit(None, pl.String)).alias(RAW + name)
        for name in columns
    ]
    good = texts.select(
        file=pl.lit(number, pl.UInt32),
        line=pl.int_range(2, pl.len() + 2, dtype=pl.UInt32),
        raw=pl.concat_str(pl.all().fill_null(""), separator=dialect.separator),
    ).hstack(texts.select(found))
    rows = Rows(
        files=files,
        count=table.height,
        good=_without_words(good, dialect),
        rejects=pl.DataFrame(schema=REJECTS),
        unused=tuple(name for name in names if name not in places.values()),
    )
    return rows.reject({"a control character": pl.col("raw").str.contains(CONTROL_PATTERN)})


def _without_words(good: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """Words that stand for a missing value become none at all."""
    if not dialect.missing:
        return good
    texts = pl.col(f"^{RAW}.*$")
    return good.with_columns(pl.when(~texts.is_in(list(dialect.missing))).then(texts).otherwise(pl.lit("")))


def typed(rows: Rows, columns: Mapping[str, Field]) -> Rows:
    """Cast every field; values that cannot be read or are out of bounds reject their row.

    Parameters
    ----------
    rows : Rows
        Each column of the source as text, or as numbers read at once, named with :data:`RAW` in front.
    columns : mapping of str to Field
        How to read each.

    Returns
    -------
    Rows
        With the fields' own names, and without the text columns.
    """
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
