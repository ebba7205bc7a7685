"""Traces and readings as folders: Parquet and JSON that anyone can open, the same bytes for the same input."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.files import Mark
from gpuplanner.inbox.core.folder import REMEDY, open_folder, write_folder
from gpuplanner.inbox.core.queue_quotas import Quotas
from gpuplanner.inbox.core.reading import READING_SUMMARY, Reading
from gpuplanner.inbox.core.trace import SUMMARY, Trace
from gpuplanner.schemas import LATER_COUNTERS, TABLES, Inventory, Jobs, Samples

FORMAT = "gpuplanner trace 1"
"""Text in provenance.json by which a trace folder is known."""
NAMES = ("provenance.json", "quality.json", "rejects.parquet")
"""Files that every folder holds."""
TABLE_NAMES = (*NAMES, "jobs.parquet", "inventory.parquet", "samples.parquet", "quotas.parquet")
MARK = Mark("provenance.json", FORMAT, names=(*TABLE_NAMES, *(f"parts/*/{name}" for name in TABLE_NAMES)))

READING_MARK = Mark(
    "provenance.json", "gpuplanner reading 1", names=(*NAMES, *(f"{name}.parquet" for name in TABLES))
)
"""By which the folder of a reading is known."""


def write_trace(trace: Trace, directory: str | Path) -> Path:
    r"""Write a trace as a folder of tables, in place of an older trace or an empty folder.

    Parameters
    ----------
    trace : Trace
        What to write.
    directory : str or Path
        Gets jobs.parquet, rejects.parquet, quality.json, provenance.json, and inventory.parquet,
        samples.parquet and quotas.parquet where the trace has them.

    Returns
    -------
    Path
        `directory`.

    Raises
    ------
    OutputError
        If the folder holds anything but a trace, or cannot be written; what stood there is intact.

    Examples
    --------
    >>> import tempfile
    >>> from gpuplanner.inbox import read_itp
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "cluster01.csv"
    ...     _ = path.write_text("job_id,submission_time,duration,num_gpu\na,0,7200,8\n")
    ...     written = write_trace(read_itp([path]), Path(folder) / "trace")
    ...     sorted(file.name for file in written.iterdir())
    ['jobs.parquet', 'manifest.json', 'provenance.json', 'quality.json', 'rejects.parquet']
    """
    return write_folder(directory, MARK, tables_of(trace), trace.quality, trace.provenance)


def tables_of(trace: Trace) -> dict[str, pl.DataFrame | None]:
    """The tables of a trace, by the names of their files."""
    names = ("jobs", "rejects", "inventory", "quotas")
    samples = None if trace.samples is None else as_read(trace.samples)
    return {**{name: getattr(trace, name) for name in names}, "samples": samples}


def as_read(samples: pl.DataFrame) -> pl.DataFrame:
    """Samples without the counters that came later into the table and that their source does not have.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples``.

    Examples
    --------
    >>> as_read(pl.DataFrame({"power_w": [None], "sm_occupancy": [None]})).columns
    ['power_w']
    """
    absent = [
        name for name in LATER_COUNTERS if name in samples and samples[name].null_count() == samples.height
    ]
    return samples.drop(absent)


def open_trace(directory: str | Path, *, columns: Sequence[str] | None = None) -> Trace:
    """Open a folder written by :func:`write_trace`.

    Parameters
    ----------
    directory : str or Path
        Where it stands.
    columns : sequence of str, optional
        Columns of the jobs to keep, text as categories, in little memory; ``job_id`` comes too where there
        are samples. Default: the whole table.

    Raises
    ------
    TraceFormatError
        If the folder is missing, is no trace, or its parts are missing, damaged or do not fit together.

    Examples
    --------
    >>> open_trace("no/such/folder")
    Traceback (most recent call last):
        ...
    gpuplanner.errors.TraceFormatError: no/such/folder: expected a folder that holds a trace; ...
    """
    folder = open_folder(directory, MARK, "a trace")
    if columns is not None and (folder.path / "samples.parquet").exists():
        columns = ["job_id", *columns]
    jobs = folder.table("jobs", Jobs) if columns is None else folder.jobs(columns)
    folder.require({"rows_kept": jobs.height, "rows_rejected": folder.rejects.height})
    folder.require_keys(SUMMARY)
    return Trace(
        jobs=jobs,
        rejects=folder.rejects,
        quality=folder.quality,
        provenance=folder.provenance,
        inventory=folder.table_if_there("inventory", Inventory),
        samples=folder.table_if_there("samples", Samples),
        quotas=folder.table_if_there("quotas", Quotas),
    )


def write_reading(reading: Reading, directory: str | Path) -> Path:
    r"""Write a reading as a folder, in place of an older reading or an empty folder.

    Parameters
    ----------
    reading : Reading
        What to write.
    directory : str or Path
        Gets a Parquet file named as the table, rejects.parquet, quality.json and provenance.json.

    Returns
    -------
    Path
        `directory`.

    Raises
    ------
    OutputError
        If the folder holds anything but a reading, or cannot be written; what stood there is intact.
    """
    tables = {reading.kind: reading.table, "rejects": reading.rejects}
    return write_folder(directory, READING_MARK, tables, reading.quality, reading.provenance)


def open_reading(directory: str | Path) -> Reading:
    """Open a folder written by :func:`write_reading`.

    Raises
    ------
    TraceFormatError
        If the folder is missing, holds no reading, or its parts are missing, damaged or do not fit together.

    Examples
    --------
    >>> open_reading("no/such/folder")
    Traceback (most recent call last):
        ...
    gpuplanner.errors.TraceFormatError: no/such/folder: expected a folder that holds a reading; ...
    """
    folder = open_folder(directory, READING_MARK, "a reading")
    folder.require_keys((*READING_SUMMARY, "table_rows", "totals"))
    kind = folder.provenance["table"]
    if not isinstance(kind, str) or kind not in TABLES:
        text = message(str(folder.path), f"a table among {', '.join(TABLES)}", repr(kind), REMEDY)
        raise TraceFormatError(text)
    table = folder.table(kind, TABLES[kind])
    folder.require({"table_rows": table.height, "rows_rejected": folder.rejects.height})
    return Reading(table, folder.rejects, folder.quality, folder.provenance)


def write(reading: Trace | Reading, directory: str | Path) -> Path:
    """Write what :func:`gpuplanner.inbox.read` gave: a trace or a reading.

    Raises
    ------
    OutputError
        As :func:`write_trace` and :func:`write_reading`.
    """
    if isinstance(reading, Trace):
        return write_trace(reading, directory)
    return write_reading(reading, directory)
