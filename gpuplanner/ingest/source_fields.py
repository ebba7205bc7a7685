"""Columns of a source, Parquet as text, and times to UTC."""

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
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import polars as pl

from gpuplanner.core.errors import OTHER_SOURCE, TraceFormatError, examples, nearest
from gpuplanner.core.execution import import_optional
from gpuplanner.core.schemas import MAX_GPUS_PER_JOB

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
      numbers together with the lines (:func:`gpuplanner.ingest.row_reader.read_row_blocks`).
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
        got = f"{examples(twice)} more than once"
        raise TraceFormatError(str(path), "each column once", got, "Rename one.")
    if missing:
        wanted = ", ".join(" or ".join(map(repr, group)) for group in missing)
        shown = [name[:MAX_NAME] for name in names]
        got = f"columns {examples(shown)}"
        free = [name for place, name in enumerate(shown) if place not in places.values()]
        near = {name: nearest(name, free)[:1] for group in missing for name in group}
        pairs = ", ".join(f"{name!r} may be {found[0]!r} here" for name, found in near.items() if found)
        todo = f"Was a column renamed? {pairs}. {dialect.hint}" if pairs else dialect.hint
        raise TraceFormatError(str(path), f"columns {wanted} of {source}", got, todo)
    return places


INSTANT = pl.Datetime("us", "UTC")
MAX_SECONDS = 100 * 365.25 * 86400
"""Longest time span that is believed: 100 years."""

MAX_DAYS = 50_000
"""Longest span of dates that is tabled by day: 137 years."""

FIRST_INSTANT = datetime(1970, 1, 1, tzinfo=UTC)
LAST_INSTANT = datetime(2100, 1, 1, tzinfo=UTC)
"""Times outside these two are faults of a source, not dates."""

AMBIGUOUS = "ambiguous"
"""Column that :func:`to_utc` adds: the row has a time that the clock showed twice."""


def seconds(expression: pl.Expr) -> pl.Expr:
    """Seconds as a duration, to the microsecond.

    Examples
    --------
    >>> pl.select(seconds(pl.lit(1.5))).item()
    datetime.timedelta(seconds=1, microseconds=500000)
    """
    return (expression * 1e6).round().cast(pl.Int64).cast(pl.Duration("us"))


def map_texts(texts: pl.Series, read: Callable[[str], object], dtype: pl.DataType | type[pl.DataType]) -> pl.Expr:
    """What each text of a column says; each different one is read once.

    Examples
    --------
    >>> texts = pl.Series("n", ["a", "bb", "a", None])
    >>> texts.to_frame().select(map_texts(texts, len, pl.Int64)).to_series().to_list()
    [1, 2, 1, None]
    """
    found = {text: read(text) for text in texts.drop_nulls().unique()}
    return pl.col(texts.name).replace_strict(found, default=None, return_dtype=dtype)


def iso(instant: datetime | None) -> str | None:
    """Print an instant in UTC, the same way everywhere.

    Examples
    --------
    >>> iso(datetime(2025, 9, 26, 7, 19, tzinfo=UTC))
    '2025-09-26T07:19:00Z'
    """
    return None if instant is None else instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def known_zone(name: str) -> str:
    """Return the name of a time zone, or an offset of whole hours such as ``+02:00``, if there is such a one.

    Examples
    --------
    >>> known_zone("Europe/Oslo")
    'Europe/Oslo'
    """
    try:
        if name:
            pl.Series([FIRST_INSTANT.replace(tzinfo=None)]).dt.replace_time_zone(name)
            return name
    except pl.exceptions.ComputeError:
        pass
    near = nearest(name, sorted(zoneinfo.available_timezones())) or ["Europe/Oslo", "UTC"]
    expected, todo = "a name of the time zone database", f"Try {examples(near)}."
    raise TraceFormatError(f"time zone {name!r}", expected, repr(name), todo)


def known_origin(origin: datetime | str) -> datetime:
    """Return the instant from which a source counts its seconds, in UTC.

    Examples
    --------
    >>> known_origin("2023-01-01T00:00:00+08:00").isoformat()
    '2022-12-31T16:00:00+00:00'
    """
    expected, todo = "a date and time with its offset from UTC", "Write it like 2023-01-01T00:00:00Z."
    try:
        instant = datetime.fromisoformat(origin) if isinstance(origin, str) else origin
    except ValueError as error:
        raise TraceFormatError("origin", expected, repr(origin), todo) from error
    if instant.tzinfo is None or not FIRST_INSTANT <= instant < LAST_INSTANT:
        raise TraceFormatError("origin", expected, repr(str(origin)), todo)
    return instant.astimezone(UTC)


def to_utc(frame: pl.DataFrame, columns: Sequence[str], tz: str) -> pl.DataFrame:
    """Turn naive local times into UTC instants.

    When clocks go back, an hour is shown twice. Such a time is read as the earliest instant that is not
    before the other times of its row named earlier in `columns`, and the row is marked in the column
    ``ambiguous``. A time that the clock skipped becomes null.

    Examples
    --------
    >>> first, last = datetime(2025, 10, 26, 2, 50), datetime(2025, 10, 26, 2, 10)
    >>> night = to_utc(pl.DataFrame({"start": [first], "end": [last]}), ["start", "end"], "Europe/Oslo")
    >>> (night["end"] - night["start"]).to_list()
    [datetime.timedelta(seconds=1200)]
    """
    read = frame.with_columns(*(_by_day(frame[name], tz) for name in columns), pl.lit(False).alias(AMBIGUOUS))
    unread = [read[name].is_null() != frame[name].is_null() for name in columns]
    rows = functools.reduce(operator.or_, unread).arg_true()
    if rows.is_empty():
        return read
    exact = _by_clock(frame[rows], columns, tz)
    return read.with_columns(read[name].clone().scatter(rows, exact[name]) for name in (*columns, AMBIGUOUS))


def _by_day(naive: pl.Series, tz: str) -> pl.Series:
    """Instants on days whose two midnights have the same offset: quick. Null on days with a clock change.

    No zone changes its clocks twice within a day.
    """
    days = naive.dt.epoch("d")
    first, last = days.min(), days.max()
    if not (isinstance(first, int) and isinstance(last, int) and last - first < MAX_DAYS):
        return pl.Series(naive.name, [None], INSTANT).new_from_index(0, len(naive))
    midnights = pl.int_range(first, last + 2, dtype=pl.Int32, eager=True).cast(pl.Date).cast(naive.dtype)
    offsets = midnights - _zoned(midnights, tz, "null").dt.replace_time_zone(None)
    offset = pl.col("offset")
    steady = offsets.to_frame("offset").select(pl.when(offset == offset.shift(-1)).then(offset))
    return (naive - steady.to_series().gather(days - first)).dt.replace_time_zone("UTC")


def _by_clock(frame: pl.DataFrame, columns: Sequence[str], tz: str) -> pl.DataFrame:
    """Instants on any day: every hour that is shown twice is looked at."""
    read = frame.with_columns(pl.lit(False).alias(AMBIGUOUS))
    for position, name in enumerate(columns):
        first, last = _zoned(frame[name], tz, "earliest"), _zoned(frame[name], tz, "latest")
        before = pl.max_horizontal(columns[:position]) if position else pl.lit(None, INSTANT)
        read = read.with_columns(
            pl.when(first < before).then(last).otherwise(first).alias(name),
            pl.col(AMBIGUOUS) | (first != last).fill_null(False),
        )
    return read


def _zoned(naive: pl.Series, tz: str, which: Literal["earliest", "latest", "null"]) -> pl.Series:
    return naive.dt.replace_time_zone(tz, ambiguous=which, non_existent="null").dt.convert_time_zone("UTC")


MAX_AMOUNT = 1e12
"""A larger amount on one line of a bill is a fault of the file; sums of less stay exact."""

COLUMN_KINDS: dict[str, dict[str, Any]] = {
    "amount": {"kind": "decimal", "low": -MAX_AMOUNT, "high": MAX_AMOUNT},
    "seconds": {"kind": "number", "high": MAX_SECONDS},
    "epoch seconds": {"kind": "number", "high": LAST_INSTANT.timestamp()},
    "GPUs": {"kind": "number", "high": MAX_GPUS_PER_JOB},
    "UTC instant": {"kind": "instant", "naive_is_utc": True},
}
"""Kinds of columns beside those of :class:`Field`: money or a priced quantity, exact to 18 decimals and of either
sign; spans and instants in seconds; numbers of GPUs or nodes; instants that are UTC where no zone stands."""


def source_columns(table: str) -> dict[str, Field]:
    """Columns of one kind of file, in the words of the source, and how each is read.

    Examples
    --------
    >>> source_columns("philly_nodes")["total"].name
    'total'
    """
    return {row["column"]: _field(row) for row in _declared_columns() if row["table"] == table}


@functools.cache
def _declared_columns() -> list[dict[str, str]]:
    text = (resources.files(__package__) / "source_columns.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _field(row: dict[str, str]) -> Field:
    how = COLUMN_KINDS.get(row["kind"], {"kind": row["kind"]})
    bounds = {"high": json.loads(row["high"])} if row["high"] else {}
    return Field(row["name"], nullable=row["nullable"] == "yes", optional=row["optional"] == "yes", **how, **bounds)


EXACT = (pl.String, pl.Decimal, pl.Null)
FITTING = {
    "text": (*EXACT, pl.Boolean),
    "decimal": (*EXACT, pl.Float32, pl.Float64),
    "moment": (pl.String, pl.Datetime, pl.Date, pl.Null),
    "instant": (pl.String, pl.Datetime, pl.Date, pl.Null),
}
"""Kind of a field → types of columns whose values have one meaning as such, beside whole numbers for the first two
and what is nested for text. A floating-point number is no text: an account number would be rounded."""

ISO = "%Y-%m-%dT%H:%M:%S%.fZ"
FAULTS = (
    *(OSError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError, NotImplementedError),
    *(pl.exceptions.PolarsError, pl.exceptions.PanicException),
)
"""What Arrow and polars raise on damaged files."""

REMEDY = "Copy or download it again, or export it as CSV."


def table_of(data: bytes, path: Path, limit: int) -> pl.DataFrame:
    """Decode a Parquet file that may have been damaged or made to do harm.

    That is left to Arrow: the reader of polars ends the whole process on some damaged files.
    """
    arrow = import_optional("pyarrow.parquet", extra="bills")
    with _explained(path):
        schema = arrow.read_schema(io.BytesIO(data))
        # Texts stay in dictionaries, so that one long text on a million rows does not fill the memory.
        packed = [field.name for field in schema if str(field.type) in ("string", "large_string")]
        file = arrow.ParquetFile(io.BytesIO(data), read_dictionary=packed, page_checksum_verification=True)
        known = file.metadata
        size = sum(known.row_group(number).total_byte_size for number in range(known.num_row_groups))
        _refuse_bomb(known.num_rows > len(data) or size > limit, path, f"{known.num_rows} rows, {size} bytes")
        content = file.read(use_threads=False).replace_schema_metadata(None)
        content.validate(full=True)
        for place, field in enumerate(content.schema):
            if str(field.type).startswith("decimal256"):  # BIGNUMERIC of BigQuery, which polars does not know
                content = content.set_column(place, field.name, content.column(place).cast("string"))
        table = pl.DataFrame(content)
    texts = table.select(pl.col(pl.Categorical, pl.Enum, pl.String)).columns
    lengths = [int(table[name].cast(pl.String).str.len_bytes().cast(pl.UInt64).sum()) for name in texts]
    _refuse_bomb(sum(lengths) > limit, path, f"{sum(lengths)} bytes of text")
    return table.cast(dict.fromkeys(texts, pl.String))


def names_of(path: Path) -> list[str]:
    """Names of the columns of a Parquet file."""
    arrow = import_optional("pyarrow.parquet", extra="bills")
    with _explained(path), path.open("rb") as file:  # Arrow knows no names of files but text
        return list(arrow.read_schema(file).names)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what Arrow and polars say of a file into the four-part message."""
    try:
        yield
    except FAULTS as error:
        if isinstance(error, TraceFormatError):
            raise
        got = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise TraceFormatError(str(path), "a whole Parquet file", got, REMEDY) from error


def require_types(schema: pl.Schema, columns: Mapping[str, Field], path: Path) -> None:
    """Refuse columns whose values are of no type that a field can be read from.

    Examples
    --------
    >>> require_types(pl.Schema({"cost": pl.Boolean}), {"cost": Field("cost", "decimal")}, Path("a.parquet"))
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.TraceFormatError: a.parquet: expected columns of fitting types; got 'cost (decimal) is ...
    """
    strange = [
        f"{name} ({field.kind}) is {schema[name]}" for name, field in columns.items() if not _fits(schema[name], field)
    ]
    if strange:
        todo = "Export numbers as decimals, times as timestamps and everything else as text."
        raise TraceFormatError(str(path), "columns of fitting types", examples(strange), todo)


def as_text(name: str, dtype: pl.DataType) -> pl.Expr:
    """Values of a column as a CSV file would have them; what is nested as JSON, instants in UTC.

    Numbers keep every digit that they have: of a floating-point number, the fewest that tell it from its neighbours.
    Times without a zone are taken as UTC, and line ends within a text become blanks.

    Examples
    --------
    >>> table = pl.DataFrame({"a": [0.1], "b": [[{"key": "team", "value": "x"}]]})
    >>> table.select(as_text(name, dtype) for name, dtype in table.schema.items()).row(0)
    ('0.1', '[{"key":"team","value":"x"}]')
    """
    value = pl.col(name)
    if isinstance(dtype, pl.Datetime):
        return (value.dt.convert_time_zone("UTC") if dtype.time_zone else value).dt.strftime(ISO)
    if isinstance(dtype, pl.Date):
        return value.cast(pl.Datetime("us")).dt.strftime(ISO)
    if dtype.is_nested():  # as the only member of an object, whose braces and name are cut off
        text = pl.struct(value.alias("")).struct.json_encode().str.slice(len('{"":')).str.strip_suffix("}")
        return pl.when(value.is_not_null()).then(text).alias(name)
    if isinstance(dtype, pl.Binary):
        return value.bin.encode("hex")
    return value.cast(pl.String, strict=False).str.replace_all(r"[\r\n]+", " ")


def _fits(dtype: pl.DataType, field: Field) -> bool:
    if dtype.is_integer():
        return field.kind != "instant"
    return isinstance(dtype, FITTING[field.kind]) or (dtype.is_nested() and field.kind == "text")


def _refuse_bomb(found: bool, path: Path, got: str) -> None:
    if found:
        expected = "no more rows than bytes, and no more text than memory"
        raise TraceFormatError(str(path), expected, got, "Check the file, or split it by month.")
