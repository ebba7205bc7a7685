"""Delimited lines to typed rows, and the reject table.

A reader declares its columns (:class:`~gpuplanner.ingest.source_fields.Field`), gets its rows from
:mod:`gpuplanner.ingest.row_reader`, and turns the good ones into the columns of a table. No row is lost: each is
in the table or, with its reason, among the rejects.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

import polars as pl

from gpuplanner.core.errors import file_name
from gpuplanner.core.schemas import DECIMAL
from gpuplanner.ingest.quality_report import reasons_of
from gpuplanner.ingest.source_fields import (
    FIRST_INSTANT,
    LAST_INSTANT,
    Dialect,
    Field,
    column_places,
    cut_by_csv,
    header_names,
)
from gpuplanner.ingest.text_files import CONTROL_PATTERN, TextFile, count_bytes

REJECTS = pl.Schema({"file": pl.String(), "row": pl.Int64(), "reason": pl.String(), "raw": pl.String()})
"""Columns of the reject table: file name, 1-based line number, why, and the line as it stood."""


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
        rejects = pl.concat([self.rejects, bad.cast(REJECTS)])
        return replace(self, good=self.good.filter(~faulty), rejects=rejects)


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
            time = raw.str.to_datetime(each.format, time_unit="us", strict=False, cache=False)
            values.append(time.alias(each.name))
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
        texts = zip(self.columns, values, strict=True)
        hidden = [name for name, text in texts if not (text or "").isprintable()]
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
        names = names_of(files)
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


BARE = re.compile(r"[-+]?[0-9]*\.?[0-9]*")
"""A number without a unit, or nothing."""


def with_numbers(
    lines: pl.Series,
    separator: str,
    names: list[str],
    numbers: Collection[int],
    text: bytes = b"",
    above: int = 0,
) -> tuple[pl.DataFrame, pl.Series] | None:
    """Fields of lines, some of them as numbers.

    Examples
    --------
    >>> cells, short = with_numbers(pl.Series(["a,1", "b,", "c"]), ",", ["x", "y"], [1])
    >>> cells.rows(), short.to_list()
    ([('a', 1.0), ('b', None), ('c', None)], [False, False, True])
    >>> with_numbers(pl.Series(["a,1", "b,2 W"]), ",", ["x", "y"], [1]) is None
    True
    """
    first = str(lines[0]).split(separator)
    bare = {place for place in numbers if place < len(first) and BARE.fullmatch(first[place])}
    if not bare:
        return None
    schema = {str(place): pl.Float64 if place in bare else pl.String for place in range(len(names))}
    if not text:
        text, above = lines.str.join("\n").cast(pl.Binary)[0] + b"\n", 0
    try:
        cells = pl.read_csv(
            text,
            has_header=False,
            skip_lines=above,
            schema=schema,
            separator=separator,
            quote_char=None,
            empty_string_is_null=False,
        )
    except pl.exceptions.PolarsError:
        return None
    finite = cells.select(pl.col(pl.Float64).is_finite().all())
    if cells.height != len(lines) or not all(finite.row(0)):
        return None
    # What is missing at the end of a line reads as if nothing stood there.
    last = cells.to_series(-1)
    open_end = last.is_null() if last.dtype == pl.Float64 else last == ""
    places = open_end.arg_true()
    short = open_end
    if len(places):
        marks = lines.gather(places).str.count_matches(separator, literal=True)
        short = open_end.scatter(places, marks < len(names) - 1)
    return cells, short


UNIT_SEPARATOR = "\x1f"
"""Stands between the fields of a line once its quotation marks are gone."""

SOME = 8192
"""Lines that are cut at a time, since memory of small pieces is used again; so many also tell whether cells repeat."""


def all_quoted(
    lines: pl.Series, separator: str, count: int, marks: int | None = None
) -> tuple[pl.DataFrame, pl.Series]:
    r"""Fields of lines that surely have so many, each of them in quotation marks.

    Examples
    --------
    >>> lines = pl.Series(['"a","b ""c"", d"', 'a,"b,c"', '"a","b'])
    >>> cells, sound = all_quoted(lines, ",", 2)
    >>> cells.filter(sound).rows()
    [('a', 'b "c", d')]
    """
    parts = (lines[at : at + SOME] for at in range(0, max(len(lines), 1), SOME))
    cells = pl.concat(part.str.splitn(f'"{separator}"', count).struct.unnest() for part in parts)
    first, last = cells.to_series(0), cells.to_series(-1)
    sound = (first.str.starts_with('"') & last.str.ends_with('"')).fill_null(False)
    cells = cells.with_columns(first.str.strip_prefix('"'))
    whole = sound
    if _come_again(last) or (last.str.find('"', literal=True) < last.str.len_bytes() - 1).any():
        bare, held = _without_twins(last)
        sound = sound & bare.is_not_null()
    else:
        bare, held = last.str.strip_suffix('"'), pl.Series([1]).new_from_index(0, len(last))
    if marks is not None:
        marks -= int(held.filter(whole).sum()) + (2 * count - 1) * int(whole.sum())
        marks -= int(lines.filter(~whole).str.count_matches('"', literal=True).sum())
    for cell in cells.iter_columns() if marks != 0 else ():
        if cell.name != last.name and cell.str.contains('"', literal=True).any():
            among, _ = _without_twins(cell + '"')
            cells, sound = cells.with_columns(among), sound & among.is_not_null()
    return cells.with_columns(bare), sound


def _come_again(cells: pl.Series) -> bool:
    """True if the same few cells, such as labels of devices, come again and again: each is then looked at once."""
    return 2 * cells.head(SOME).n_unique() < min(SOME, len(cells))


def _without_twins(cells: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Cells without the mark at their end and with one mark for two, and the marks in each.

    Null where a mark is left alone: the line was cut in the wrong places.
    """
    text, bare = pl.col(cells.name).str.strip_suffix('"'), pl.col("bare")
    marks, pairs = text.str.count_matches('"', literal=True), text.str.len_bytes() - bare.str.len_bytes()
    table = cells.unique().to_frame().with_columns(bare=text.str.replace_all('""', '"', literal=True))
    table = table.with_columns(bare=pl.when(marks == 2 * pairs).then(bare), marks=marks + 1)
    joined = cells.to_frame().join(table, on=cells.name, how="left", maintain_order="left")
    return joined["bare"].alias(cells.name), joined["marks"]


def unquoted(lines: pl.Series, separator: str) -> pl.Series:
    r"""Lines with quoted fields, with a separator that no field contains; null if a quote is not closed.

    Examples
    --------
    >>> lines = pl.Series(['"a","b ""c"", d"', 'a,"b,c"', "a,b", '"a,b'])
    >>> unquoted(lines, ",").to_list()
    ['a\x1fb "c", d', 'a\x1fb,c', 'a\x1fb', None]
    """
    text = lines.str.replace_all(separator, UNIT_SEPARATOR, literal=True)
    places = lines.str.contains('"', literal=True).arg_true()
    if places.is_empty():
        return text
    by_one = [cut_by_csv(line, separator) for line in lines.gather(places).to_list()]
    texts = [None if fields is None else UNIT_SEPARATOR.join(fields) for fields in by_one]
    return text.scatter(places, pl.Series(texts, dtype=pl.String))


TOO_FEW = "fewer fields than columns"
SAMPLE_LINES = 50


@dataclass(frozen=True)
class Heading:
    """How the lines of one file are cut: names of its fields, where ours are, and its header line, if it has one."""

    names: list[str]
    places: dict[str, int]
    header: str | None
    ends_in_separator: bool


def heading_of(lines: pl.DataFrame, columns: Mapping[str, Field], path: Path, source: str, dialect: Dialect) -> Heading:
    """What the first lines of a file say of the others."""
    names = dialect.names(lines["raw"].head(SAMPLE_LINES).to_list())
    header, open_end = None, False
    if names is None:
        header = str(lines["raw"][0])
        names = header_names(header, dialect)
        # sacct --parsable ends each line with its separator.
        if names[-1:] == [""] and dialect.separator != ",":
            names, open_end = names[:-1], True
    places = column_places(names, columns, path, source, dialect)
    return Heading(list(names), places, header, open_end)


@dataclass(frozen=True, eq=False)
class Body:
    """Lines of one file, or of a block of it, below its header, and how they are cut.

    - ``files``: All files.
    - ``number``: Which of them the lines are of.
    - ``file``: It, or the block, which tells what may stand in the lines.
    - ``lines``: ``line`` and ``raw``, without blank ones.
    - ``heading``: Of the file.
    - ``columns``: Columns to read.
    - ``dialect``: How lines are cut.
    """

    files: tuple[TextFile, ...]
    number: int
    file: TextFile
    lines: pl.DataFrame
    heading: Heading
    columns: Mapping[str, Field]
    dialect: Dialect

    @property
    def _has_quotes(self) -> bool:
        return self.dialect.quotes and self.file.has_quotes

    @property
    def _above(self) -> int:
        """Lines of the file, or the block, above the first."""
        return int(self.lines["line"][0]) - int(self.file.lines["line"][0]) if self.lines.height else 0

    @property
    def _again(self) -> dict[str, pl.Expr]:
        """The fault of lines that are the header."""
        header = self.heading.header
        return {} if header is None else {HEADER_AGAIN: pl.col("raw") == header}

    def _rows(self, good: pl.DataFrame) -> Rows:
        """Rows of all lines, none of them rejected so far."""
        names, places = self.heading.names, self.heading.places.values()
        unused = tuple(name for place, name in enumerate(names) if place not in places)
        return Rows(self.files, self.lines.height, good, pl.DataFrame(schema=REJECTS), unused)

    def _placed(self, cells: pl.DataFrame) -> pl.DataFrame:
        """Our columns of the fields of all lines, beside the places of these."""
        places = self.heading.places
        found = [
            (cells.to_series(places[name]) if name in places else pl.lit(None, pl.String)).alias(RAW + name)
            for name in self.columns
        ]
        placed = self.lines.select("line", "raw", file=pl.lit(self.number, pl.UInt32)).select(*PLACE)
        return placed.with_columns(found)

    def at_once(self) -> Rows | None:
        """Cut the lines with their numbers; None if they hold more than that."""
        names, places, separator = self.heading.names, self.heading.places, self.dialect.separator
        numbers = {places[name] for name, field in self.columns.items() if field.at_once and name in places}
        file = self.file
        mixed = (
            file.has_quotes
            or file.has_controls
            or self.heading.ends_in_separator
            or self.dialect.missing
            or names[-1].casefold() in self.dialect.free_tail
        )
        if mixed or not numbers or not self.lines.height:
            return None
        as_they_stand = self._above + self.lines.height == file.lines.height and b"\r" not in file.text
        text = file.text if as_they_stand else b""
        read = with_numbers(self.lines["raw"], separator, names, numbers, text, self._above)
        if read is None:
            return None
        cells, short = read
        return self._rows(self._placed(cells)).reject(self._again | {TOO_FEW: pl.lit(short)})

    def quoted(self) -> Rows | None:
        """Cut lines all of whose fields stand in quotation marks, and the others one by one; None without such."""
        if not self._has_quotes or len(self.heading.names) < 2:
            return None
        raw = self.lines["raw"]
        cells, sound = all_quoted(raw, self.dialect.separator, len(self.heading.names), self._marks())
        if self.heading.header is not None:
            sound &= raw != self.heading.header
        if self.file.has_controls:
            sound &= ~raw.str.contains(CONTROL_PATTERN)
        quick = without_words(self._placed(cells).filter(sound), self.dialect)
        rest = self.one_by_one(self.lines.filter(~sound))
        good = pl.concat([quick, rest.good]).sort("line") if rest.good.height else quick
        return replace(rest, count=self.lines.height, good=good)

    def _marks(self) -> int | None:
        """Quotation marks in the lines, of a block."""
        if not self.file.text:
            return None
        above = self.file.lines["text"].head(self._above).str.count_matches('"', literal=True).sum()
        return count_bytes(self.file.text, lambda codes: codes == ord('"')) - int(above)

    def one_by_one(self, lines: pl.DataFrame) -> Rows:
        """Cut some of the lines, whatever stands in each; ragged and unreadable ones are rejected."""
        names, places, separator = self.heading.names, self.heading.places, self.dialect.separator
        faults, text = self._again, pl.col("raw")
        if self.heading.ends_in_separator:
            text = text.str.strip_suffix(separator)
        lines = lines.with_columns(text=text)
        if self._has_quotes:
            lines = lines.with_columns(text=unquoted(lines["raw"], separator))
            separator = UNIT_SEPARATOR
            faults["a quotation mark that is not closed"] = pl.col("fields").is_null()
        if self.file.has_controls:
            faults["a control character"] = pl.col("raw").str.contains(CONTROL_PATTERN)
        file = pl.lit(self.number, pl.UInt32)
        cut = lines.select("line", "raw", fields=pl.col("text").str.split(separator), file=file)
        fields, count = pl.col("fields"), pl.col("fields").list.len()
        free = [place for place, name in enumerate(names) if name.casefold() in self.dialect.free_tail]
        faults[TOO_FEW] = count < len(names)
        more = count.cast(pl.Int64) - len(names)
        if len(free) == 1 and cut.select((more > 0).any()).item():
            # Of several fields the only one of free text has the separator in it.
            head, rest = fields.list.head(free[0]), fields.list.tail(len(names) - 1 - free[0])
            text = fields.list.slice(free[0], 1 + more).list.join(separator)
            whole = pl.concat_list(head, text, rest)
            cut = cut.with_columns(fields=pl.when(more > 0).then(whole).otherwise(fields))
        elif free[-1:] != [len(names) - 1]:  # such a last field takes whatever follows
            faults["more fields than columns"] = more > 0
        rows = self._rows(cut).reject(faults)
        found = {
            RAW + name: pl.lit(None, pl.String)
            if name not in places
            else fields.list.slice(places[name]).list.join(separator)
            if places[name] == len(names) - 1 and places[name] in free
            else fields.list.get(places[name], null_on_oob=True)
            for name in self.columns
        }
        return replace(rows, good=without_words(rows.good.select(*PLACE, **found), self.dialect))


def without_words(good: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """Words that stand for a missing value become none at all."""
    if not dialect.missing:
        return good
    texts = pl.col(f"^{RAW}.*$")
    return good.with_columns(pl.when(~texts.is_in(list(dialect.missing))).then(texts).otherwise(pl.lit("")))
