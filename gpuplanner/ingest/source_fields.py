"""Columns that a source declares, Parquet cells as text, and conversion of times to UTC."""

from __future__ import annotations

import csv
import functools
import io
import json
import math
import operator
import zoneinfo
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import polars as pl

from gpuplanner.core.errors import NAME_SOURCE_FIX, TraceFormatError, examples, nearest_names
from gpuplanner.core.libraries_plugins_and_workers import import_optional
from gpuplanner.core.schemas import MAX_GPUS_PER_JOB
from gpuplanner.core.serialization import read_packaged_rows

MAX_SHOWN_COLUMN_NAME_CHARACTERS = 40
"""Characters of a column name that an error message shows."""


@dataclass(frozen=True)
class Field:
    """How the values of one column of a source are parsed, and the name that the column gets.

    - ``name``: Name of the column in the rows that the reader gets.
    - ``kind``: ``"text"``, ``"number"``, ``"decimal"`` (exact to 18 decimals, for money), ``"time"`` (naive, in
      `format`), ``"instant"`` (a date and time with its UTC offset, as ``Z``, ``UTC`` or ``+08:00``) or
      ``"moment"`` (text of a date and time in one of several forms, which the reader parses).
    - ``nullable``: The value may be empty.
    - ``optional``: The whole column may be absent.
    - ``at_once``: A text column that is parsed to numbers while the lines are split, in blocks of lines in which it has
      only bare numbers and empty fields (:func:`gpuplanner.ingest.typed_row_reader.read_row_blocks`).
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
    """How the lines of a text file are split into fields, and which words mean a missing value.

    - ``separator``: One character.
    - ``quotes``: Fields may be in quotation marks.
    - ``names``: Function from the first lines of a file without a header to its field names; None if the first line is
      a header.
    - ``free_tail``: Lower-case names of fields that may contain the separator, if they are last or the only such
      field.
    - ``any_of``: Groups of columns of which at least one is required.
    - ``missing``: Words that stand for a missing value.
    - ``hint``: What to do where columns are missing.
    - ``tables``: Files may be Parquet as well as text.
    """

    separator: str = ","
    quotes: bool = True
    names: Callable[[Sequence[str]], Sequence[str] | None] = lambda _: None
    free_tail: Collection[str] = ()
    any_of: tuple[tuple[str, ...], ...] = ()
    missing: frozenset[str] = frozenset()
    hint: str = NAME_SOURCE_FIX
    tables: bool = False


CSV_DIALECT = Dialect()
"""Comma-separated lines with a header."""


def split_csv_line(line: str, separator: str) -> list[str] | None:
    """Split a line at a separator by the rules of CSV; None if a quotation mark is not closed."""
    try:
        return next(csv.reader([line], delimiter=separator, strict=True))
    except csv.Error:
        return None


def parse_header(header: str, dialect: Dialect) -> list[str]:
    """Split a header line into field names."""
    if dialect.quotes and '"' in header:
        fields = split_csv_line(header, dialect.separator)
        return [name.strip() for name in fields or ()]
    return [name.strip() for name in header.split(dialect.separator)]


def find_column_positions(
    names: Sequence[str], columns: Mapping[str, Field], path: Path, source: str, dialect: Dialect
) -> dict[str, int]:
    """Find the position of each declared column in a file; refuse missing and repeated columns.

    Parameters
    ----------
    names : sequence of str
        Field names of the file.
    columns : mapping of str to Field
        Columns that the reader declares.
    path : Path
        File, for messages.
    source : str
        Name of the source, for messages.
    dialect : Dialect
        Required groups of columns, and the advice for missing ones.

    Returns
    -------
    dict of str to int
        Column → position.

    Raises
    ------
    TraceFormatError
        If columns are missing or repeated; it names all of them.
    """
    folded = [name.casefold() for name in names]
    positions = {name: folded.index(name.casefold()) for name in columns if name.casefold() in folded}
    repeated_names = sorted(name for name in positions if folded.count(name.casefold()) > 1)
    missing: list[tuple[str, ...]] = [
        (name,) for name, field in columns.items() if name not in positions and not field.optional
    ]
    missing += [group for group in dialect.any_of if not any(name in positions for name in group)]
    if not positions and not missing:  # every column may be absent, but not all of them
        missing = [tuple(columns)]
    if repeated_names:
        got = f"{examples(repeated_names)} more than once"
        raise TraceFormatError(str(path), "each column once", got, "Rename one.")
    if missing:
        wanted_names = ", ".join(" or ".join(map(repr, group)) for group in missing)
        shown = [name[:MAX_SHOWN_COLUMN_NAME_CHARACTERS] for name in names]
        got = f"columns {examples(shown)}"
        unused_names = [name for position, name in enumerate(shown) if position not in positions.values()]
        close_names = {name: nearest_names(name, unused_names)[:1] for group in missing for name in group}
        pairs = ", ".join(
            f"{name!r} may be {close_matches[0]!r} here" for name, close_matches in close_names.items() if close_matches
        )
        todo = f"Was a column renamed? {pairs}. {dialect.hint}" if pairs else dialect.hint
        raise TraceFormatError(str(path), f"columns {wanted_names} of {source}", got, todo)
    return positions


UTC_TIME_DTYPE = pl.Datetime("us", "UTC")
"""Polars type of all instants: microseconds in UTC."""
MAX_DURATION_S = 100 * 365.25 * 86400
"""Longest duration that is accepted: 100 years [s]."""

MAX_OFFSET_TABLE_DAYS = 50_000
"""Longest span of dates for which UTC offsets are tabled by day: 137 years [days]."""

FIRST_INSTANT = datetime(1970, 1, 1, tzinfo=UTC)
"""Earliest accepted time in a source; an earlier one is a fault."""
END_INSTANT = datetime(2100, 1, 1, tzinfo=UTC)
"""Accepted times in a source are before this instant; a later one is a fault."""

AMBIGUOUS_COLUMN = "ambiguous"
"""Column that :func:`convert_to_utc` adds: the row has a local time that occurs twice."""


def seconds_to_duration(expression: pl.Expr) -> pl.Expr:
    """Convert seconds to a duration, to the microsecond.

    Examples
    --------
    >>> pl.select(seconds_to_duration(pl.lit(1.5))).item()
    datetime.timedelta(seconds=1, microseconds=500000)
    """
    return (expression * 1e6).round().cast(pl.Int64).cast(pl.Duration("us"))


def map_unique_texts(
    texts: pl.Series, parse: Callable[[str], object], dtype: pl.DataType | type[pl.DataType]
) -> pl.Expr:
    """Apply a function to the texts of a column, once for each distinct text.

    Parameters
    ----------
    texts : polars.Series
        Column of text.
    parse : callable
        Function from a text to a value.
    dtype : polars data type
        Type of the values.

    Examples
    --------
    >>> texts = pl.Series("n", ["a", "bb", "a", None])
    >>> texts.to_frame().select(map_unique_texts(texts, len, pl.Int64)).to_series().to_list()
    [1, 2, 1, None]
    """
    parsed = {text: parse(text) for text in texts.drop_nulls().unique()}
    return pl.col(texts.name).replace_strict(parsed, default=None, return_dtype=dtype)


def format_utc(instant: datetime | None) -> str | None:
    """Format an instant in UTC as ISO 8601 text.

    Examples
    --------
    >>> format_utc(datetime(2025, 9, 26, 7, 19, tzinfo=UTC))
    '2025-09-26T07:19:00Z'
    """
    return None if instant is None else instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def validate_time_zone(name: str) -> str:
    """Return the name of a time zone, or an offset of whole hours such as ``+02:00``, if it exists.

    Examples
    --------
    >>> validate_time_zone("Europe/Oslo")
    'Europe/Oslo'
    """
    try:
        if name:
            pl.Series([FIRST_INSTANT.replace(tzinfo=None)]).dt.replace_time_zone(name)
            return name
    except pl.exceptions.ComputeError:
        pass
    close_names = nearest_names(name, sorted(zoneinfo.available_timezones())) or ["Europe/Oslo", "UTC"]
    expected, todo = "a name of the time zone database", f"Try {examples(close_names)}."
    raise TraceFormatError(f"time zone {name!r}", expected, repr(name), todo)


def parse_origin(origin: datetime | str) -> datetime:
    """Parse the instant from which a source counts its seconds, in UTC.

    Examples
    --------
    >>> parse_origin("2023-01-01T00:00:00+08:00").isoformat()
    '2022-12-31T16:00:00+00:00'
    """
    expected, todo = "a date and time with its offset from UTC", "Write it like 2023-01-01T00:00:00Z."
    try:
        instant = datetime.fromisoformat(origin) if isinstance(origin, str) else origin
    except ValueError as error:
        raise TraceFormatError("origin", expected, repr(origin), todo) from error
    if instant.tzinfo is None or not FIRST_INSTANT <= instant < END_INSTANT:
        raise TraceFormatError("origin", expected, repr(str(origin)), todo)
    return instant.astimezone(UTC)


def convert_to_utc(frame: pl.DataFrame, columns: Sequence[str], tz: str) -> pl.DataFrame:
    """Convert naive local times to UTC instants.

    When clocks go back, an hour occurs twice. Such a time is read as the earliest instant that is not before the other
    times of its row named earlier in `columns`, and the row is marked in the column ``ambiguous``. A local time that
    the clock skipped becomes null.

    Parameters
    ----------
    frame : polars.DataFrame
        Table with the naive times.
    columns : sequence of str
        Columns to convert, in the order in which their times follow each other.
    tz : str
        Time zone of the local times.

    Examples
    --------
    >>> first, last = datetime(2025, 10, 26, 2, 50), datetime(2025, 10, 26, 2, 10)
    >>> night = convert_to_utc(pl.DataFrame({"start": [first], "end": [last]}), ["start", "end"], "Europe/Oslo")
    >>> (night["end"] - night["start"]).to_list()
    [datetime.timedelta(seconds=1200)]
    """
    converted = frame.with_columns(
        *(_convert_steady_days(frame[name], tz) for name in columns), pl.lit(False).alias(AMBIGUOUS_COLUMN)
    )
    is_unconverted = [converted[name].is_null() != frame[name].is_null() for name in columns]
    rows = functools.reduce(operator.or_, is_unconverted).arg_true()
    if rows.is_empty():
        return converted
    exact_rows = _convert_any_day(frame[rows], columns, tz)
    return converted.with_columns(
        converted[name].clone().scatter(rows, exact_rows[name]) for name in (*columns, AMBIGUOUS_COLUMN)
    )


def _convert_steady_days(naive: pl.Series, tz: str) -> pl.Series:
    """Convert local times on days without a clock change, quickly; null on other days.

    No zone changes its clocks twice within a day.
    """
    days = naive.dt.epoch("d")
    first, last = days.min(), days.max()
    if not (isinstance(first, int) and isinstance(last, int) and last - first < MAX_OFFSET_TABLE_DAYS):
        return pl.Series(naive.name, [None], UTC_TIME_DTYPE).new_from_index(0, len(naive))
    midnights = pl.int_range(first, last + 2, dtype=pl.Int32, eager=True).cast(pl.Date).cast(naive.dtype)
    offsets = midnights - _localise(midnights, tz, "null").dt.replace_time_zone(None)
    offset = pl.col("offset")
    steady_offsets = offsets.to_frame("offset").select(pl.when(offset == offset.shift(-1)).then(offset))
    return (naive - steady_offsets.to_series().gather(days - first)).dt.replace_time_zone("UTC")


def _convert_any_day(frame: pl.DataFrame, columns: Sequence[str], tz: str) -> pl.DataFrame:
    """Convert local times on any day, checking each for hours that occur twice."""
    converted = frame.with_columns(pl.lit(False).alias(AMBIGUOUS_COLUMN))
    for position, name in enumerate(columns):
        earliest, latest = _localise(frame[name], tz, "earliest"), _localise(frame[name], tz, "latest")
        lower_bound = pl.max_horizontal(columns[:position]) if position else pl.lit(None, UTC_TIME_DTYPE)
        converted = converted.with_columns(
            pl.when(earliest < lower_bound).then(latest).otherwise(earliest).alias(name),
            pl.col(AMBIGUOUS_COLUMN) | (earliest != latest).fill_null(False),
        )
    return converted


def _localise(naive: pl.Series, tz: str, ambiguous: Literal["earliest", "latest", "null"]) -> pl.Series:
    """Convert local times to UTC; `ambiguous` says which instant to take where two are possible."""
    return naive.dt.replace_time_zone(tz, ambiguous=ambiguous, non_existent="null").dt.convert_time_zone("UTC")


MAX_BILL_LINE_AMOUNT = 1e12
"""Largest amount on one line of a bill, in its currency; sums of smaller ones stay exact."""
MAX_REQUEST_TOKENS = 100_000_000
"""Largest number of tokens of one request that is accepted."""

FIELD_ARGUMENTS_BY_COLUMN_KIND: dict[str, dict[str, Any]] = {
    "amount": {"kind": "decimal", "low": -MAX_BILL_LINE_AMOUNT, "high": MAX_BILL_LINE_AMOUNT},
    "seconds": {"kind": "number", "high": MAX_DURATION_S},
    "epoch seconds": {"kind": "number", "high": END_INSTANT.timestamp()},
    "GPUs": {"kind": "number", "high": MAX_GPUS_PER_JOB},
    "tokens": {"kind": "number", "high": MAX_REQUEST_TOKENS},
    "precise time": {"kind": "time", "format": "%Y-%m-%d %H:%M:%S%.f"},
    "UTC instant": {"kind": "instant", "naive_is_utc": True},
}
"""Kinds of columns beside those of :class:`Field`: money or a priced quantity, exact to 18 decimals and of either
sign; durations and instants [s]; numbers of GPUs or nodes; tokens of a request; times with fractions of a second;
instants that are UTC where no zone is given.
"""


def source_columns(table: str) -> dict[str, Field]:
    """Return column of the source → how it is parsed, for the kind of file that ``source_columns.csv`` calls `table`.

    Examples
    --------
    >>> source_columns("philly_nodes")["total"].name
    'total'
    """
    rows = read_packaged_rows("gpuplanner.ingest", "source_columns.csv")
    return {row["column"]: _make_field(row) for row in rows if row["table"] == table}


def source_values(table: str) -> dict[str, str]:
    """Return value of the source → value in gpuplanner's tables, as ``source_values.csv`` has them under `table`.

    Examples
    --------
    >>> source_values("philly status")["Pass"]
    'COMPLETED'
    """
    rows = read_packaged_rows("gpuplanner.ingest", "source_values.csv")
    return {row["value"]: row["meaning"] for row in rows if row["table"] == table}


def _make_field(row: dict[str, str]) -> Field:
    """Create a field from a row of ``source_columns.csv``."""
    kind_options = FIELD_ARGUMENTS_BY_COLUMN_KIND.get(row["kind"], {"kind": row["kind"]})
    bounds = {"high": json.loads(row["high"])} if row["high"] else {}
    return Field(
        row["name"], nullable=row["nullable"] == "yes", optional=row["optional"] == "yes", **kind_options, **bounds
    )


EXACTLY_CONVERTIBLE_DTYPES = (pl.String, pl.Decimal, pl.Null)
"""Types whose values convert to text and decimals without loss."""
DTYPES_BY_FIELD_KIND = {
    "text": (*EXACTLY_CONVERTIBLE_DTYPES, pl.Boolean),
    **dict.fromkeys(("decimal", "number"), (*EXACTLY_CONVERTIBLE_DTYPES, pl.Float32, pl.Float64)),
    **dict.fromkeys(("time", "moment", "instant"), (pl.String, pl.Datetime, pl.Date, pl.Null)),
}
"""Kind of a field → column types that it can be read from, beside integers for text and numbers and nested types for
text. A floating-point number is no text: an account number would be rounded.
"""

ISO_UTC_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S%.fZ"
"""Format of instants in UTC as text, for polars."""
DAMAGED_PARQUET_ERRORS = (
    *(OSError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError, NotImplementedError),
    *(pl.exceptions.PolarsError, pl.exceptions.PanicException),
)
"""Errors that Arrow and polars raise on damaged files."""

DAMAGED_PARQUET_ADVICE = "Copy or download it again, or export it as CSV."
"""Advice in the error message for a damaged Parquet file."""


def decode_parquet(data: bytes, path: Path, limit: int) -> pl.DataFrame:
    """Decode the bytes of a Parquet file that may be damaged or malicious; refuse one above `limit` decoded bytes.

    Arrow decodes it because the reader of polars ends the whole process on some damaged files. `path` is for messages.
    """
    arrow = import_optional("pyarrow.parquet", extra="bills")
    with _explain_parquet_errors(path):
        schema = arrow.read_schema(io.BytesIO(data))
        # Texts stay in dictionaries, so that one long text on a million rows does not fill the memory.
        text_columns = [field.name for field in schema if str(field.type) in ("string", "large_string")]
        file = arrow.ParquetFile(io.BytesIO(data), read_dictionary=text_columns, page_checksum_verification=True)
        metadata = file.metadata
        size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
        is_oversized = metadata.num_rows > len(data) or size > limit
        _reject_oversized(is_oversized, path, f"{metadata.num_rows} rows, {size} bytes")
        content = file.read(use_threads=False).replace_schema_metadata(None)
        content.validate(full=True)
        for position, field in enumerate(content.schema):
            if str(field.type).startswith("decimal256"):  # BIGNUMERIC of BigQuery, which polars does not know
                content = content.set_column(position, field.name, content.column(position).cast("string"))
        table = pl.DataFrame(content)
    texts = table.select(pl.col(pl.Categorical, pl.Enum, pl.String)).columns
    lengths = [int(table[name].cast(pl.String).str.len_bytes().cast(pl.UInt64).sum()) for name in texts]
    _reject_oversized(sum(lengths) > limit, path, f"{sum(lengths)} bytes of text")
    return table.cast(dict.fromkeys(texts, pl.String))


def read_parquet_names(path: Path) -> list[str]:
    """Read the column names of a Parquet file."""
    arrow = import_optional("pyarrow.parquet", extra="bills")
    with _explain_parquet_errors(path), path.open("rb") as file:  # Arrow knows no names of files but text
        return list(arrow.read_schema(file).names)


@contextmanager
def _explain_parquet_errors(path: Path) -> Iterator[None]:
    """Turn errors of Arrow and polars into a TraceFormatError that names the file."""
    try:
        yield
    except DAMAGED_PARQUET_ERRORS as error:
        if isinstance(error, TraceFormatError):
            raise
        got = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise TraceFormatError(str(path), "a whole Parquet file", got, DAMAGED_PARQUET_ADVICE) from error


def require_readable_types(schema: pl.Schema, columns: Mapping[str, Field], path: Path) -> None:
    """Refuse Parquet columns of a type that their field cannot be read from.

    Examples
    --------
    >>> require_readable_types(pl.Schema({"cost": pl.Boolean}), {"cost": Field("cost", "decimal")}, Path("a.parquet"))
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.TraceFormatError: a.parquet: expected columns of fitting types; got 'cost (decimal) is ...
    """
    unreadable = [
        f"{name} ({field.kind}) is {schema[name]}"
        for name, field in columns.items()
        if not _is_readable_type(schema[name], field)
    ]
    if unreadable:
        todo = "Export numbers as decimals, times as timestamps and everything else as text."
        raise TraceFormatError(str(path), "columns of fitting types", examples(unreadable), todo)


def format_as_text(name: str, dtype: pl.DataType) -> pl.Expr:
    """Format the values of a column as a CSV file would have them: nested values as JSON, instants in UTC.

    Numbers keep all digits; of a floating-point number, the fewest that identify it. Times without a zone are taken as
    UTC, and line ends within a text become blanks.

    Examples
    --------
    >>> table = pl.DataFrame({"a": [0.1], "b": [[{"key": "team", "value": "x"}]]})
    >>> table.select(format_as_text(name, dtype) for name, dtype in table.schema.items()).row(0)
    ('0.1', '[{"key":"team","value":"x"}]')
    """
    value = pl.col(name)
    if isinstance(dtype, pl.Datetime):
        return (value.dt.convert_time_zone("UTC") if dtype.time_zone else value).dt.strftime(ISO_UTC_TIME_FORMAT)
    if isinstance(dtype, pl.Date):
        return value.cast(pl.Datetime("us")).dt.strftime(ISO_UTC_TIME_FORMAT)
    if dtype.is_nested():  # as the only member of an object, whose braces and name are cut off
        text = pl.struct(value.alias("")).struct.json_encode().str.slice(len('{"":')).str.strip_suffix("}")
        return pl.when(value.is_not_null()).then(text).alias(name)
    if isinstance(dtype, pl.Binary):
        return value.bin.encode("hex")
    return value.cast(pl.String, strict=False).str.replace_all(r"[\r\n]+", " ")


def _is_readable_type(dtype: pl.DataType, field: Field) -> bool:
    """Whether a field can be read from a column type."""
    if dtype.is_integer():
        return field.kind != "instant"
    return isinstance(dtype, DTYPES_BY_FIELD_KIND[field.kind]) or (dtype.is_nested() and field.kind == "text")


def _reject_oversized(is_oversized: bool, path: Path, got: str) -> None:
    """Refuse a Parquet file that expands to more data than is safe; `got` is its decoded size as text."""
    if is_oversized:
        expected = "no more rows than bytes, and no more text than memory"
        raise TraceFormatError(str(path), expected, got, "Check the file, or split it by month.")
