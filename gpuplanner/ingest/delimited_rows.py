"""Delimited lines split into fields and parsed to typed rows, with a table of rejected rows.

A reader declares its columns (:class:`~gpuplanner.ingest.source_fields.Field`), gets its rows from
:mod:`gpuplanner.ingest.typed_row_reader`, and turns the accepted ones into the columns of a table. No row is lost:
each is
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

from gpuplanner.core.errors import printable_file_name
from gpuplanner.core.schemas import MONEY_DTYPE
from gpuplanner.ingest.quality_report import count_reject_reasons
from gpuplanner.ingest.source_fields import (
    END_INSTANT,
    FIRST_INSTANT,
    Dialect,
    Field,
    find_column_positions,
    parse_header,
    split_csv_line,
)
from gpuplanner.ingest.text_files import CONTROL_CHARACTER_PATTERN, TextFile, count_bytes

REJECT_TABLE_SCHEMA = pl.Schema({"file": pl.String(), "row": pl.Int64(), "reason": pl.String(), "raw": pl.String()})
"""Columns of the table of rejected rows: file name, 1-based line number, reason, and the raw line."""


REPEATED_HEADER_REASON = "the header line again"
"""Reject reason of a header line below the first line."""
OUT_OF_RANGE_TIME_REASON = f"not between {FIRST_INSTANT.year} and {END_INSTANT.year}"
"""Reject reason of a time outside the years that GPU job traces can have."""
DTYPE_BY_NUMERIC_FIELD_KIND = {"number": pl.Float64(), "decimal": MONEY_DTYPE}
"""Kind of a numeric field of a source (``Field.kind``) → polars type."""
RAW_PREFIX = "raw:"
"""Prefix of the columns that hold the raw text of a field, beside the column of its parsed value."""

POSITION_COLUMNS = ("file", "line", "raw")
"""Columns that trace a row back to its source: number of the file, line number, raw line."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Accepted and rejected rows of one or several files, while a reader turns them into a table.

    - ``files``: Files that were read.
    - ``count``: Rows in the files, without headers and blank lines.
    - ``good``: Rows not rejected so far: ``file``, ``line``, ``raw`` and the fields.
    - ``rejects``: Rows rejected so far, columns :data:`REJECT_TABLE_SCHEMA`.
    - ``unused``: Columns of the files that the reader does not use.
    - ``blank``: Number of blank lines.
    """

    files: tuple[TextFile, ...]
    count: int
    good: pl.DataFrame
    rejects: pl.DataFrame
    unused: tuple[str, ...] = ()
    blank: int = 0

    def file_names(self) -> list[str]:
        """Names of the files, with their folder only where two names are equal."""
        return unique_file_names(self.files)

    @property
    def height(self) -> int:
        """Number of accepted rows."""
        return self.good.height

    @property
    def reasons(self) -> pl.DataFrame:
        """Number of rejected rows by reason, see :func:`~gpuplanner.ingest.quality_report.count_reject_reasons`."""
        return count_reject_reasons(self.rejects)

    def with_columns(
        self, *columns: pl.Expr | pl.Series | Iterable[pl.Expr], **named: pl.Expr | pl.Series | str
    ) -> Rows:
        """Return the rows with added or replaced columns."""
        return replace(self, good=self.good.with_columns(*columns, **named))

    def reject(self, faults: Mapping[str, pl.Expr]) -> Rows:
        """Move rows with a fault to the reject table, each with all its reasons.

        Parameters
        ----------
        faults : mapping of str to polars.Expr
            Reason → condition, true for faulty rows.
        """
        has_fault = self.good.select(fault.fill_null(False).alias(reason) for reason, fault in faults.items())
        faulty = has_fault.select(pl.any_horizontal(pl.all())).to_series()
        if not faulty.any():
            return self
        reason_texts = [pl.when(pl.col(reason)).then(pl.lit(reason)) for reason in faults]
        reasons = has_fault.filter(faulty).select(pl.concat_str(reason_texts, separator="; ", ignore_nulls=True))
        rejected_rows = self.good.filter(faulty).select(
            file=pl.col("file").replace_strict(dict(enumerate(self.file_names())), return_dtype=pl.String),
            row=pl.col("line").cast(pl.Int64),
            reason=reasons.to_series(),
            raw=pl.col("raw"),
        )
        rejects = pl.concat([self.rejects, rejected_rows.cast(REJECT_TABLE_SCHEMA)])
        return replace(self, good=self.good.filter(~faulty), rejects=rejects)


def unique_file_names(files: Sequence[TextFile]) -> list[str]:
    """Return the names of files, with their folder only where two names are equal."""
    names = [printable_file_name(file.path) for file in files]
    if len(set(names)) == len(names):
        return names
    return [f"{printable_file_name(file.path.parent)}/{printable_file_name(file.path)}" for file in files]


def concat_rows(files: tuple[TextFile, ...], row_tables: Sequence[Rows]) -> Rows:
    """Concatenate rows of several files, or of several parts of one file."""
    return Rows(
        files=files,
        count=sum(rows.count for rows in row_tables),
        good=pl.concat([rows.good for rows in row_tables], how="diagonal", rechunk=True),
        rejects=pl.concat([rows.rejects for rows in row_tables]),
        unused=tuple(dict.fromkeys(name for rows in row_tables for name in rows.unused)),
        blank=sum(rows.blank for rows in row_tables),
    )


def parse_fields(rows: Rows, columns: Mapping[str, Field]) -> Rows:
    """Parse the raw fields to their types; rows with unreadable, missing or out-of-bounds values are rejected."""
    values, faults = [], {}
    for name, column in columns.items():
        raw, value = pl.col(RAW_PREFIX + name), pl.col(column.name)
        read_at_once = rows.good.schema[RAW_PREFIX + name] == pl.Float64
        filled = raw.is_not_null() if read_at_once else raw != ""
        if column.kind in DTYPE_BY_NUMERIC_FIELD_KIND:
            dtype = DTYPE_BY_NUMERIC_FIELD_KIND[column.kind]
            values.append(raw.cast(dtype, strict=False).alias(column.name))
            finite = value.is_finite() if column.kind == "number" else value.is_not_null()
            faults[f"{name}: not a number"] = filled & ~finite.fill_null(False)
            faults[f"{name}: below {column.low:g}"] = finite & (value < column.low)
            if column.high < math.inf:
                faults[f"{name}: above {column.high:g}"] = finite & (value > column.high)
        elif column.kind == "time":
            time = raw.str.to_datetime(column.format, time_unit="us", strict=False, cache=False)
            values.append(time.alias(column.name))
            faults[f"{name}: not a time like {column.format}"] = filled & value.is_null()
            faults[f"{name}: {OUT_OF_RANGE_TIME_REASON}"] = is_out_of_range(value)
        elif column.kind == "instant":
            values.append(parse_instants(complete_utc_texts(raw) if column.naive_is_utc else raw).alias(column.name))
            expected = "a time" if column.naive_is_utc else "a time with its offset from UTC"
            faults[f"{name}: not {expected}"] = filled & value.is_null()
            faults[f"{name}: {OUT_OF_RANGE_TIME_REASON}"] = is_out_of_range(value)
        else:
            values.append((raw if read_at_once else pl.when(filled).then(raw)).alias(column.name))
        if not column.nullable:
            faults[f"{name}: missing"] = ~filled.fill_null(False)
    parsed_rows = rows.with_columns(values).reject(faults)
    return replace(parsed_rows, good=parsed_rows.good.drop(RAW_PREFIX + name for name in columns))


def parse_instants(raw: pl.Expr) -> pl.Expr:
    """Expression that parses dates and times with a UTC offset; null where the offset is missing."""
    offset = raw.str.replace(r"\s*(?:Z|UTC)$", "+00:00").str.replace(" ", "T", literal=True)
    return offset.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%z", time_unit="us", strict=False, cache=False)


def complete_utc_texts(raw: pl.Expr) -> pl.Expr:
    """Expression that completes texts of times: missing seconds or times become 0, a missing offset UTC.

    Examples
    --------
    >>> table = pl.DataFrame({"at": ["2026-03-01 00:00:00", "2026-03-01T05:30Z", "2026-03-01"]})
    >>> table.select(complete_utc_texts(pl.col("at"))).to_series().to_list()
    ['2026-03-01T00:00:00Z', '2026-03-01T05:30:00Z', '2026-03-01T00:00:00Z']
    """
    text = raw.str.strip_chars().str.replace(r"^(\d{4}-\d{2}-\d{2}) ?$", "${1}T00:00")
    text = text.str.replace(r"^(\d{4}-\d{2}-\d{2})[ T](\d{2}:\d{2})", "${1}T${2}")
    text = text.str.replace(r"T(\d{2}:\d{2})(Z|\s*UTC|[+-]\d{2}:?\d{2})?$", "T${1}:00${2}")
    return text.str.replace(r"T([\d:.]+)$", "T${1}Z")


def is_out_of_range(value: pl.Expr) -> pl.Expr:
    """Expression for whether a time is outside the years that GPU job traces can have."""
    first_us, last_us = (int(instant.timestamp() * 1e6) for instant in (FIRST_INSTANT, END_INSTANT))
    return ~value.dt.timestamp("us").is_between(first_us, last_us)


CONTROL_CHARACTER_REASON = "a control character"
"""Reject reason of a line with a control character."""

Record = Mapping[str, str | None]
"""One item of JSON or text before parsing: column of the source → text; absent or None is a missing value."""


@dataclass
class RecordCollector:
    """Collect items of JSON or text as records, and rejected items, in their order.

    - ``columns``: Column of the source → how its text is parsed.
    """

    columns: Mapping[str, Field]
    _good: list[tuple[object, ...]] = field(default_factory=list)
    _bad: list[tuple[int, int, str, str]] = field(default_factory=list)

    def add_record(self, file: int, position: int, raw: str, record: Record) -> None:
        """Add the record of an item; unprintable text rejects it.

        Parameters
        ----------
        file : int
            Number of the file.
        position : int
            Line or item number in the file.
        raw : str
            Raw text of the item, for the reject table.
        record : mapping of str to str
            Column of the source → text.
        """
        values = [record.get(name) for name in self.columns]
        texts = zip(self.columns, values, strict=True)
        unprintable_names = [name for name, text in texts if not (text or "").isprintable()]
        if unprintable_names:
            self.reject(file, position, raw, f"{unprintable_names[0]}: {CONTROL_CHARACTER_REASON}")
        else:
            self._good.append((file, position, replace_unprintable(raw), *values))

    def reject(self, file: int, position: int, raw: str, reason: str) -> None:
        """Reject an item, with its reason.

        Parameters
        ----------
        file : int
            Number of the file.
        position : int
            Line or item number in the file.
        raw : str
            Raw text of the item.
        reason : str
            Why it cannot be read.
        """
        self._bad.append((file, position, replace_unprintable(reason), replace_unprintable(raw)))

    def rows(self, files: Sequence[TextFile]) -> Rows:
        """Parse all records to typed rows; unreadable values reject their row.

        Examples
        --------
        >>> records = RecordCollector({"gpus": Field("gpus", "number")})
        >>> records.add_record(0, 1, "{...}", {"gpus": "8"})
        >>> records.add_record(0, 2, "{...}", {"gpus": "4"})
        >>> records.rows([]).good["gpus"].to_list()
        [8.0, 4.0]
        """
        texts = {RAW_PREFIX + name: pl.String for name in self.columns}
        schema = {"file": pl.UInt32, "line": pl.UInt32, "raw": pl.String, **texts}
        good = pl.DataFrame(self._good, schema=schema, orient="row")
        names = unique_file_names(files)
        rejects = [(names[file], position, reason, raw) for file, position, reason, raw in self._bad]
        reject_table = pl.DataFrame(rejects, schema=REJECT_TABLE_SCHEMA, orient="row")
        rows = Rows(tuple(files), good.height + reject_table.height, good, reject_table)
        return parse_fields(rows, self.columns)


def raise_fault(reason: str) -> NoReturn:
    """Raise a ValueError whose text, `reason`, becomes the reject reason of an item."""
    raise ValueError(reason)


def replace_unprintable(text: str) -> str:
    r"""Replace each unprintable character by a question mark.

    Examples
    --------
    >>> replace_unprintable("a\x1b[2J")
    'a?[2J'
    """
    return text if text.isprintable() else "".join(character if character.isprintable() else "?" for character in text)


BARE_NUMBER_PATTERN = re.compile(r"[-+]?[0-9]*\.?[0-9]*")
"""A field that is a number without a unit, or empty."""


def split_with_numbers(
    lines: pl.Series,
    separator: str,
    names: list[str],
    candidate_positions: Collection[int],
    block_text: bytes = b"",
    lines_above: int = 0,
) -> tuple[pl.DataFrame, pl.Series] | None:
    """Split lines into fields with the CSV parser of polars, parsing bare numbers at once.

    Parameters
    ----------
    lines : polars.Series
        Lines without quotation marks.
    separator : str
        Field separator.
    names : list of str
        Names of the fields.
    candidate_positions : collection of int
        Fields that may be parsed as numbers; the first line decides.
    block_text : bytes
        Text that has the lines, to be parsed without joining them again.
    lines_above : int
        Lines of `block_text` to skip.

    Returns
    -------
    tuple of polars.DataFrame and polars.Series, or None
        Fields, and a mask of lines with too few fields; None if the lines hold anything but numbers in those fields.

    Examples
    --------
    >>> cells, short = split_with_numbers(pl.Series(["a,1", "b,", "c"]), ",", ["x", "y"], [1])
    >>> cells.rows(), short.to_list()
    ([('a', 1.0), ('b', None), ('c', None)], [False, False, True])
    >>> split_with_numbers(pl.Series(["a,1", "b,2 W"]), ",", ["x", "y"], [1]) is None
    True
    """
    first_fields = str(lines[0]).split(separator)
    number_positions = {
        position
        for position in candidate_positions
        if position < len(first_fields) and BARE_NUMBER_PATTERN.fullmatch(first_fields[position])
    }
    if not number_positions:
        return None
    schema = {
        str(position): pl.Float64 if position in number_positions else pl.String for position in range(len(names))
    }
    if not block_text:
        block_text, lines_above = lines.str.join("\n").cast(pl.Binary)[0] + b"\n", 0
    try:
        cells = pl.read_csv(
            block_text,
            has_header=False,
            skip_lines=lines_above,
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
    last_cells = cells.to_series(-1)
    open_end = last_cells.is_null() if last_cells.dtype == pl.Float64 else last_cells == ""
    open_rows = open_end.arg_true()
    is_short = open_end
    if len(open_rows):
        separator_counts = lines.gather(open_rows).str.count_matches(separator, literal=True)
        is_short = open_end.scatter(open_rows, separator_counts < len(names) - 1)
    return cells, is_short


FIELD_SEPARATOR_CHARACTER = "\x1f"
"""Character that separates the fields of a line after its quotation marks are removed."""

SPLIT_CHUNK_LINES = 8192
"""Lines that are split at a time, to reuse memory; also the number of lines that tell whether cells repeat."""


def split_quoted_lines(
    lines: pl.Series, separator: str, n_fields: int, n_quotes: int | None = None
) -> tuple[pl.DataFrame, pl.Series]:
    r"""Split lines whose fields are all in quotation marks.

    Parameters
    ----------
    lines : polars.Series
        Lines of text.
    separator : str
        Field separator.
    n_fields : int
        Number of fields in each line.
    n_quotes : int, optional
        Quotation marks in all lines; if they are all accounted for, the check for marks within fields is skipped.

    Returns
    -------
    tuple of polars.DataFrame and polars.Series
        Fields, and a mask of lines that were split correctly.

    Examples
    --------
    >>> lines = pl.Series(['"a","b ""c"", d"', 'a,"b,c"', '"a","b'])
    >>> cells, sound = split_quoted_lines(lines, ",", 2)
    >>> cells.filter(sound).rows()
    [('a', 'b "c", d')]
    """
    chunks = (lines[start : start + SPLIT_CHUNK_LINES] for start in range(0, max(len(lines), 1), SPLIT_CHUNK_LINES))
    cells = pl.concat(chunk.str.splitn(f'"{separator}"', n_fields).struct.unnest() for chunk in chunks)
    first_cells, last_cells = cells.to_series(0), cells.to_series(-1)
    is_split = (first_cells.str.starts_with('"') & last_cells.str.ends_with('"')).fill_null(False)
    cells = cells.with_columns(first_cells.str.strip_prefix('"'))
    is_quoted = is_split
    if _are_repetitive(last_cells) or (last_cells.str.find('"', literal=True) < last_cells.str.len_bytes() - 1).any():
        unescaped_last, quote_counts = _unescape_quotes(last_cells)
        is_split = is_split & unescaped_last.is_not_null()
    else:
        unescaped_last = last_cells.str.strip_suffix('"')
        quote_counts = pl.Series([1]).new_from_index(0, len(last_cells))
    if n_quotes is not None:
        n_quotes -= int(quote_counts.filter(is_quoted).sum()) + (2 * n_fields - 1) * int(is_quoted.sum())
        n_quotes -= int(lines.filter(~is_quoted).str.count_matches('"', literal=True).sum())
    for cell in cells.iter_columns() if n_quotes != 0 else ():
        if cell.name != last_cells.name and cell.str.contains('"', literal=True).any():
            unescaped_cells, _ = _unescape_quotes(cell + '"')
            cells, is_split = cells.with_columns(unescaped_cells), is_split & unescaped_cells.is_not_null()
    return cells.with_columns(unescaped_last), is_split


def _are_repetitive(cells: pl.Series) -> bool:
    """Whether a few values, such as device names, make up most cells, so that distinct ones are handled once."""
    return 2 * cells.head(SPLIT_CHUNK_LINES).n_unique() < min(SPLIT_CHUNK_LINES, len(cells))


def _unescape_quotes(cells: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Remove the final quotation mark of cells, unescape doubled marks, and count the marks in each.

    Null where a single mark is left: the line was split in the wrong places.
    """
    text, unescaped = pl.col(cells.name).str.strip_suffix('"'), pl.col("bare")
    marks, pairs = text.str.count_matches('"', literal=True), text.str.len_bytes() - unescaped.str.len_bytes()
    table = cells.unique().to_frame().with_columns(bare=text.str.replace_all('""', '"', literal=True))
    table = table.with_columns(bare=pl.when(marks == 2 * pairs).then(unescaped), marks=marks + 1)
    joined = cells.to_frame().join(table, on=cells.name, how="left", maintain_order="left")
    return joined["bare"].alias(cells.name), joined["marks"]


def unquote_lines(lines: pl.Series, separator: str) -> pl.Series:
    r"""Replace the separator between quoted fields by one that no field contains; null if a quote is not closed.

    Examples
    --------
    >>> lines = pl.Series(['"a","b ""c"", d"', 'a,"b,c"', "a,b", '"a,b'])
    >>> unquote_lines(lines, ",").to_list()
    ['a\x1fb "c", d', 'a\x1fb,c', 'a\x1fb', None]
    """
    text = lines.str.replace_all(separator, FIELD_SEPARATOR_CHARACTER, literal=True)
    quoted_rows = lines.str.contains('"', literal=True).arg_true()
    if quoted_rows.is_empty():
        return text
    split_lines = [split_csv_line(line, separator) for line in lines.gather(quoted_rows).to_list()]
    texts = [None if fields is None else FIELD_SEPARATOR_CHARACTER.join(fields) for fields in split_lines]
    return text.scatter(quoted_rows, pl.Series(texts, dtype=pl.String))


TOO_FEW_FIELDS_REASON = "fewer fields than columns"
"""Reject reason of a line with too few fields."""
FORMAT_SAMPLE_LINES = 50
"""Number of first lines of a file from which its format is detected."""


@dataclass(frozen=True)
class FileHeader:
    """Header of a file: names and positions of its fields.

    - ``names``: Names of the fields.
    - ``places``: Declared column, by its name in the source → position of its field in a line, from 0.
    - ``header``: Header line; None if the file has none.
    - ``ends_in_separator``: Each line ends with a separator.
    """

    names: list[str]
    places: dict[str, int]
    header: str | None
    ends_in_separator: bool


def read_heading(
    lines: pl.DataFrame, columns: Mapping[str, Field], path: Path, source: str, dialect: Dialect
) -> FileHeader:
    """Read the field names and positions from the first lines of a file.

    Parameters
    ----------
    lines : polars.DataFrame
        ``raw`` lines of the file.
    columns : mapping of str to Field
        Columns that the reader declares.
    path : Path
        File, for messages.
    source : str
        Name of the source, for messages.
    dialect : Dialect
        How lines are split.
    """
    names = dialect.names(lines["raw"].head(FORMAT_SAMPLE_LINES).to_list())
    header, ends_in_separator = None, False
    if names is None:
        header = str(lines["raw"][0])
        names = parse_header(header, dialect)
        # sacct --parsable ends each line with its separator.
        if names[-1:] == [""] and dialect.separator != ",":
            names, ends_in_separator = names[:-1], True
    places = find_column_positions(names, columns, path, source, dialect)
    return FileHeader(list(names), places, header, ends_in_separator)


@dataclass(frozen=True, eq=False)
class FileBody:
    """Lines of one file, or of a block of it, below its header, with the methods that split them into fields.

    - ``files``: All files that are read.
    - ``number``: Position in `files` of the file that the lines are from, from 0.
    - ``file``: The file or block, with flags for quotation marks and control characters.
    - ``lines``: ``line`` and ``raw``, without blank ones.
    - ``heading``: Header of the file.
    - ``columns``: Column of the source → how it is parsed.
    - ``dialect``: How lines are split.
    """

    files: tuple[TextFile, ...]
    number: int
    file: TextFile
    lines: pl.DataFrame
    heading: FileHeader
    columns: Mapping[str, Field]
    dialect: Dialect

    @property
    def _has_quotes(self) -> bool:
        """Whether quotation marks occur in the lines and enclose fields."""
        return self.dialect.quotes and self.file.has_quotes

    @property
    def _lines_above(self) -> int:
        """Number of lines of the file or block above the first of `lines`."""
        return int(self.lines["line"][0]) - int(self.file.lines["line"][0]) if self.lines.height else 0

    @property
    def _header_fault(self) -> dict[str, pl.Expr]:
        """Reject reason → condition for lines that repeat the header."""
        header = self.heading.header
        return {} if header is None else {REPEATED_HEADER_REASON: pl.col("raw") == header}

    def _to_rows(self, good: pl.DataFrame) -> Rows:
        """Return split fields of all lines as accepted rows."""
        names, places = self.heading.names, self.heading.places.values()
        unused = tuple(name for position, name in enumerate(names) if position not in places)
        return Rows(self.files, self.lines.height, good, pl.DataFrame(schema=REJECT_TABLE_SCHEMA), unused)

    def _select_columns(self, cells: pl.DataFrame) -> pl.DataFrame:
        """Select the declared columns from the fields of all lines, with file, line number and raw line."""
        places = self.heading.places
        selected = [
            (cells.to_series(places[name]) if name in places else pl.lit(None, pl.String)).alias(RAW_PREFIX + name)
            for name in self.columns
        ]
        positions = self.lines.select("line", "raw", file=pl.lit(self.number, pl.UInt32)).select(*POSITION_COLUMNS)
        return positions.with_columns(selected)

    def split_with_numbers(self) -> Rows | None:
        """Split the lines and parse their numbers at once; None if the lines cannot be split so."""
        names, places = self.heading.names, self.heading.places
        separator = self.dialect.separator
        numbers = {places[name] for name, field in self.columns.items() if field.at_once and name in places}
        file = self.file
        needs_other_split = (
            file.has_quotes
            or file.has_controls
            or self.heading.ends_in_separator
            or self.dialect.missing
            or names[-1].casefold() in self.dialect.free_tail
        )
        if needs_other_split or not numbers or not self.lines.height:
            return None
        covers_whole_text = self._lines_above + self.lines.height == file.lines.height and b"\r" not in file.text
        text = file.text if covers_whole_text else b""
        split_cells = split_with_numbers(self.lines["raw"], separator, names, numbers, text, self._lines_above)
        if split_cells is None:
            return None
        cells, is_short = split_cells
        return self._to_rows(self._select_columns(cells)).reject(
            self._header_fault | {TOO_FEW_FIELDS_REASON: pl.lit(is_short)}
        )

    def split_all_quoted(self) -> Rows | None:
        """Split lines whose fields are all quoted, and other lines one by one; None without quotation marks."""
        if not self._has_quotes or len(self.heading.names) < 2:
            return None
        raw = self.lines["raw"]
        cells, is_split = split_quoted_lines(raw, self.dialect.separator, len(self.heading.names), self._count_quotes())
        if self.heading.header is not None:
            is_split &= raw != self.heading.header
        if self.file.has_controls:
            is_split &= ~raw.str.contains(CONTROL_CHARACTER_PATTERN)
        quick_rows = blank_missing_words(self._select_columns(cells).filter(is_split), self.dialect)
        other_rows = self.split_line_by_line(self.lines.filter(~is_split))
        good = pl.concat([quick_rows, other_rows.good]).sort("line") if other_rows.good.height else quick_rows
        return replace(other_rows, count=self.lines.height, good=good)

    def _count_quotes(self) -> int | None:
        """Count the quotation marks in the lines of a block; None if its text is unknown."""
        if not self.file.text:
            return None
        quotes_above = self.file.lines["text"].head(self._lines_above).str.count_matches('"', literal=True).sum()
        return count_bytes(self.file.text, lambda codes: codes == ord('"')) - int(quotes_above)

    def split_line_by_line(self, lines: pl.DataFrame) -> Rows:
        """Split `lines` one by one, of any format; ragged and unreadable lines are rejected."""
        names, places = self.heading.names, self.heading.places
        separator = self.dialect.separator
        faults, text = self._header_fault, pl.col("raw")
        if self.heading.ends_in_separator:
            text = text.str.strip_suffix(separator)
        lines = lines.with_columns(text=text)
        if self._has_quotes:
            lines = lines.with_columns(text=unquote_lines(lines["raw"], separator))
            separator = FIELD_SEPARATOR_CHARACTER
            faults["a quotation mark that is not closed"] = pl.col("fields").is_null()
        if self.file.has_controls:
            faults["a control character"] = pl.col("raw").str.contains(CONTROL_CHARACTER_PATTERN)
        file = pl.lit(self.number, pl.UInt32)
        split_lines = lines.select("line", "raw", fields=pl.col("text").str.split(separator), file=file)
        fields, count = pl.col("fields"), pl.col("fields").list.len()
        free_positions = [position for position, name in enumerate(names) if name.casefold() in self.dialect.free_tail]
        faults[TOO_FEW_FIELDS_REASON] = count < len(names)
        n_excess = count.cast(pl.Int64) - len(names)
        if len(free_positions) == 1 and split_lines.select((n_excess > 0).any()).item():
            # Of several fields the only one of free text has the separator in it.
            fields_before = fields.list.head(free_positions[0])
            fields_after = fields.list.tail(len(names) - 1 - free_positions[0])
            text = fields.list.slice(free_positions[0], 1 + n_excess).list.join(separator)
            joined_fields = pl.concat_list(fields_before, text, fields_after)
            split_lines = split_lines.with_columns(fields=pl.when(n_excess > 0).then(joined_fields).otherwise(fields))
        elif free_positions[-1:] != [len(names) - 1]:  # such a last field takes whatever follows
            faults["more fields than columns"] = n_excess > 0
        rows = self._to_rows(split_lines).reject(faults)
        selected = {}
        for name in self.columns:
            position = places.get(name)
            if position is None:
                cell = pl.lit(None, pl.String)
            elif position == len(names) - 1 and position in free_positions:
                # Such a last field takes whatever follows.
                cell = fields.list.slice(position).list.join(separator)
            else:
                cell = fields.list.get(position, null_on_oob=True)
            selected[RAW_PREFIX + name] = cell
        return replace(rows, good=blank_missing_words(rows.good.select(*POSITION_COLUMNS, **selected), self.dialect))


def blank_missing_words(good: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """Replace words that stand for a missing value, such as ``NULL``, by empty text in accepted rows."""
    if not dialect.missing:
        return good
    texts = pl.col(f"^{RAW_PREFIX}.*$")
    return good.with_columns(pl.when(~texts.is_in(list(dialect.missing))).then(texts).otherwise(pl.lit("")))
