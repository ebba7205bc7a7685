"""Telemetry as a folder: Parquet by month and JSON that anyone can open, the same bytes for the same input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from gpuplanner.errors import SchemaError, TraceFormatError, message
from gpuplanner.files import Mark
from gpuplanner.inbox.core.folder import REMEDY, Folder, open_folder, write_folder
from gpuplanner.inbox.core.parquet_parts import write_table
from gpuplanner.inbox.core.store import NAMES, as_read
from gpuplanner.inbox.core.trace import SUMMARY
from gpuplanner.inbox.telemetry.result import PROCESSES, Telemetry
from gpuplanner.intervals import require_zone
from gpuplanner.schemas import Samples, check, empty

FORMAT = "gpuplanner telemetry 2"
"""Text in provenance.json by which a folder of telemetry is known."""
MARK = Mark(
    "provenance.json",
    FORMAT,
    names=(*NAMES, "coverage.parquet", "processes.parquet", "samples/month=*/samples.parquet"),
)

COVERAGE = pl.Schema(
    {
        "node": pl.String(),
        "day": pl.Date(),
        "gpus": pl.Int32(),
        "samples": pl.Int64(),
        "observed_gpu_h": pl.Float64(),
        "expected_gpu_h": pl.Float64(),
        "covered": pl.Float64(),
    }
)
"""Columns of :func:`gpuplanner.inbox.telemetry.coverage.coverage`."""

PARTS = "samples"
MONTH = "month="
FILE = "samples.parquet"


def write_telemetry(telemetry: Telemetry, directory: str | Path) -> Path:
    """Write telemetry as a folder, in place of older telemetry or an empty folder.

    Parameters
    ----------
    telemetry : Telemetry
        What to write.
    directory : str or Path
        Gets the folder samples with a folder ``month=2026-01`` for each month in UTC (as Hive names them, so
        that other programs find the column), rejects.parquet, coverage.parquet, quality.json, provenance.json,
        and processes.parquet where there are any.

    Returns
    -------
    Path
        `directory`.

    Raises
    ------
    OutputError
        If the folder holds anything else, cannot be written, or is being written by another run; what stood
        there is intact.
    """
    return write_folder(
        directory,
        MARK,
        tables_of(telemetry),
        telemetry.quality,
        telemetry.provenance,
        more=lambda folder: write_months(telemetry.samples, folder / PARTS),
    )


def tables_of(telemetry: Telemetry) -> dict[str, pl.DataFrame | None]:
    """The tables of telemetry beside its samples, by the names of their files."""
    return {name: getattr(telemetry, name) for name in ("rejects", "coverage", "processes")}


def write_months(samples: pl.DataFrame, folder: Path) -> None:
    """Write samples in order of time, a file for each month in UTC.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples``, sorted by time.
    folder : Path
        Gets ``month=2026-01/samples.parquet`` and so on.

    Examples
    --------
    >>> import tempfile
    >>> from datetime import UTC
    >>> times = [datetime(2026, 1, 31, 23, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)]
    >>> with tempfile.TemporaryDirectory() as place:
    ...     write_months(pl.DataFrame({"time": times}), Path(place))
    ...     sorted(path.name for path in Path(place).iterdir())
    ['month=2026-01', 'month=2026-02']
    """
    for month, part in by_month(samples).items():
        write_month(part, folder / month)


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


def write_month(samples: pl.DataFrame, place: Path) -> None:
    """Write the samples of one month into a new folder; equal rows give equal bytes."""
    place.mkdir(parents=True)
    write_table(as_read(samples), place / FILE)


def months(folder: Path) -> dict[str, Path]:
    """Name of the folder of each month → its file, in the order of time."""
    return {path.parent.name: path for path in sorted((folder / PARTS).glob(f"{MONTH}*/{FILE}"))}


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


def scan_samples(
    directory: str | Path, *, start: datetime | None = None, end: datetime | None = None
) -> pl.LazyFrame:
    """Samples of a folder of telemetry, read only when they are collected.

    Months outside the span are not opened, and within a month the parts of the file that cannot hold such
    times, or that later filters exclude, are skipped by their statistics.

    Parameters
    ----------
    directory : str or Path
        Folder written by :func:`write_telemetry`.
    start, end : datetime, optional
        First instant, and first instant after the last; with a zone.

    Returns
    -------
    polars.LazyFrame
        Table ``schemas.Samples``.

    Raises
    ------
    TraceFormatError
        If the folder is missing or is no telemetry.
    SchemaError
        If `start` or `end` has no zone.

    Examples
    --------
    >>> scan_samples("no/such/folder")
    Traceback (most recent call last):
        ...
    gpuplanner.errors.TraceFormatError: no/such/folder: expected a folder that holds telemetry; ...
    """
    require_zone(start, end, where="samples")
    folder = open_folder(directory, MARK, "telemetry").path
    inside = pl.lit(True)
    if start is not None:
        inside &= pl.col("time") >= start
    if end is not None:
        inside &= pl.col("time") < end
    return _scan(folder, start, end).filter(inside)


def open_telemetry(directory: str | Path) -> Telemetry:
    """Open a folder written by :func:`write_telemetry`, with all its samples in memory.

    Raises
    ------
    TraceFormatError
        If the folder is missing, is no telemetry, or its parts are missing, damaged or do not fit together.

    Examples
    --------
    >>> open_telemetry("no/such/folder")
    Traceback (most recent call last):
        ...
    gpuplanner.errors.TraceFormatError: no/such/folder: expected a folder that holds telemetry; ...
    """
    folder = open_whole(directory)
    with _explained(folder):
        samples = check(_scan(folder.path).collect(), Samples, where=str(folder.path / PARTS))
    return Telemetry(
        samples=samples,
        rejects=folder.rejects,
        quality=folder.quality,
        coverage=folder.table("coverage", COVERAGE),
        provenance=folder.provenance,
        processes=folder.table_if_there("processes", PROCESSES),
    )


def open_whole(directory: str | Path) -> Folder:
    """Open all but the samples of a folder, once it has as many of them as it states.

    Raises
    ------
    TraceFormatError
        As :func:`open_telemetry`.
    """
    folder = open_folder(directory, MARK, "telemetry")
    with _explained(folder):
        rows = _scan(folder.path).select(pl.len()).collect().item()
    folder.require({"samples": rows, "rows_rejected": folder.rejects.height})
    folder.require_keys(SUMMARY)
    return folder


@contextmanager
def _explained(folder: Folder) -> Iterator[None]:
    try:
        yield
    except (OSError, pl.exceptions.PolarsError, SchemaError) as error:
        got = (str(error).splitlines() or [type(error).__name__])[0]
        text = message(str(folder.path / PARTS), "tables written by this program", got, REMEDY)
        raise TraceFormatError(text) from error


def _scan(folder: Path, start: datetime | None = None, end: datetime | None = None) -> pl.LazyFrame:
    """All months that may hold times of the span, in their order."""
    first = "" if start is None else f"{MONTH}{start.astimezone(UTC):%Y-%m}"
    last = "~" if end is None else f"{MONTH}{end.astimezone(UTC):%Y-%m}"
    return scan_months([path for name, path in months(folder).items() if first <= name <= last])
