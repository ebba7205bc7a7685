"""Samples by month: one Parquet file for each month and source, read only as far as they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
from polars.io.plugins import register_io_source

from gpuplanner.schemas.domain import LATER_COUNTERS, Samples
from gpuplanner.schemas.check import empty

ROW_GROUP = 1 << 18
"""Rows of a part of a file that is read at once."""


def write_table(table: pl.DataFrame | pl.LazyFrame, path: Path) -> None:
    """Write a table, in parts of which a few are in memory if it is not."""
    table.lazy().sink_parquet(path, row_group_size=ROW_GROUP, engine="streaming")


def write_parts(parts: Callable[[], Iterator[pl.DataFrame]], schema: pl.Schema, path: Path) -> None:
    """Write what :func:`write_table` writes of all parts below each other, with a few of them in memory.

    Examples
    --------
    >>> import tempfile
    >>> table = pl.DataFrame({"x": [1, 2, 3]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     one, other = Path(folder) / "one.parquet", Path(folder) / "other.parquet"
    ...     write_table(table, one)
    ...     write_parts(lambda: iter([table[:1], table[1:]]), table.schema, other)
    ...     one.read_bytes() == other.read_bytes()
    True
    """

    def batches(
        columns: list[str] | None, _predicate: pl.Expr | None, _rows: int | None, _size: int | None
    ) -> Iterator[pl.DataFrame]:
        for part in parts():
            yield part if columns is None else part.select(columns)

    source = register_io_source(batches, schema=schema)
    source.sink_parquet(path, row_group_size=ROW_GROUP, engine="streaming")


SAMPLES = "samples"
"""Folder of the months in a dataset."""
MONTH = "month="
"""Beginning of the name of a month's folder, as Hive names it, so that other programs find the column."""
DERIVED = ("until", "job_evidence")
"""Columns that follow from the other samples and the jobs, and are not kept."""


def as_read(samples: pl.DataFrame) -> pl.DataFrame:
    """Samples without the counters that came later into the table and that their source does not have.

    Examples
    --------
    >>> as_read(pl.DataFrame({"power_w": [None], "sm_occupancy": [None]})).columns
    ['power_w']
    """
    absent = [
        name for name in LATER_COUNTERS if name in samples and samples[name].null_count() == samples.height
    ]
    return samples.drop(*absent, *DERIVED, strict=False)


def by_month(samples: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Name of the folder of each month in UTC → its samples, in the order of the samples.

    Examples
    --------
    >>> list(by_month(pl.DataFrame({"time": [datetime(2026, 1, 31, 23, tzinfo=UTC)]})))
    ['month=2026-01']
    """
    month = (pl.lit(MONTH) + pl.col("time").dt.strftime("%Y-%m")).alias("month")
    parts = samples.with_columns(month).partition_by("month", include_key=False, as_dict=True)
    return {str(name): part for (name,), part in parts.items()}


def write_month(samples: pl.DataFrame, path: Path) -> None:
    """Write the samples of one month; equal rows give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(as_read(samples), path)


def months(folder: Path, source: str) -> dict[str, Path]:
    """Name of the folder of each month → its file of one source, in the order of time."""
    return {path.parent.name: path for path in sorted((folder / SAMPLES).glob(f"{MONTH}*/{source}.parquet"))}


def scan_months(files: Sequence[Path]) -> pl.LazyFrame:
    """Samples of the files of some months, read only when they are collected.

    Counters that a file does not have, since nobody read them then, are null.
    """
    if not files:
        return empty(Samples).lazy()
    types = {name: column.dtype for name, column in Samples.columns().items()}
    return pl.scan_parquet(
        list(files),
        glob=False,
        hive_partitioning=False,
        schema=types,
        missing_columns="insert",
        extra_columns="ignore",
    )


def of_span(folder: Path, sources: Sequence[str], start: datetime | None, end: datetime | None) -> list[Path]:
    """Files of all months that may hold times of a span, in the order of time."""
    first = "" if start is None else f"{MONTH}{start.astimezone(UTC):%Y-%m}"
    last = "~" if end is None else f"{MONTH}{end.astimezone(UTC):%Y-%m}"
    found = [(name, path) for source in sources for name, path in months(folder, source).items()]
    return [path for name, path in sorted(found) if first <= name <= last]
