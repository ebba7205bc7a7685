"""Parquet files that nobody should trust, as text: so that their rows pass the same checks as those of a CSV file."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from gpuplanner._optional import import_optional
from gpuplanner.errors import TraceFormatError, examples, message
from gpuplanner.inbox.core.lines.fields import Field

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
        raise TraceFormatError(message(str(path), "a whole Parquet file", got, REMEDY)) from error


def require_types(schema: pl.Schema, columns: Mapping[str, Field], path: Path) -> None:
    """Refuse columns whose values are of no type that a field can be read from.

    Examples
    --------
    >>> require_types(pl.Schema({"cost": pl.Boolean}), {"cost": Field("cost", "decimal")}, Path("a.parquet"))
    Traceback (most recent call last):
        ...
    gpuplanner.errors.TraceFormatError: a.parquet: expected columns of fitting types; got 'cost (decimal) is Boolean'...
    """
    strange = [
        f"{name} ({field.kind}) is {schema[name]}"
        for name, field in columns.items()
        if not _fits(schema[name], field)
    ]
    if strange:
        todo = "Export numbers as decimals, times as timestamps and everything else as text."
        raise TraceFormatError(message(str(path), "columns of fitting types", examples(strange), todo))


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
        raise TraceFormatError(message(str(path), expected, got, "Split it by month; is it what it says?"))
