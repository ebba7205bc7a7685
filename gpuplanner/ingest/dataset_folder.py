"""Dataset folders of Parquet and JSON: layout and reading.

The top folder has the tables of all sources combined. ``sources/NAME`` has the record of each source (facts, rejects,
quality report) and, for lists of jobs, one part per exported file from which the combined jobs are built. Samples are
stored by month, one file per source. Telemetry is joined to jobs when it is read, see
:mod:`gpuplanner.ingest.telemetry.telemetry_join`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import dataframely as dy
import polars as pl

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.core.output_manifests_and_overwrite_checks import DATASET_FORMAT, FolderMark
from gpuplanner.core.output_writing import find_stranded_folder
from gpuplanner.core.schemas import TABLES
from gpuplanner.core.step_functions import require_time_zone
from gpuplanner.ingest.chunked_tables import (
    RUN_INGEST_ADVICE,
    SAMPLES,
    LazyJobs,
    explain_table_errors,
    find_files_in_span,
    iterate_checked_jobs,
    read_findings,
    read_jobs,
    read_json,
    read_table,
    scan_month_files,
)
from gpuplanner.ingest.dataset import Dataset, SampleScan, SourceFacts
from gpuplanner.ingest.delimited_rows import REJECT_TABLE_SCHEMA
from gpuplanner.ingest.telemetry.metric_definitions import DEVICE_KEY, find_device_counters, keep_best_counter
from gpuplanner.ingest.telemetry.sample_buffer_and_reading_spans import add_sample_ends
from gpuplanner.ingest.telemetry.telemetry_join import (
    ALLOCATION_SPAN_SCHEMA,
    TELEMETRY_DEVICES_WITH_KIND_SCHEMA,
    DeviceAllocations,
)

JOB_NAME_LINK_SCHEMA = pl.Schema({"name": pl.String(), "job_id": pl.String()})
"""Schema of the table that links names of jobs or pods in telemetry to job ids."""
SCHEMA_BY_JOIN_TABLE: dict[str, type[dy.Schema] | pl.Schema] = {
    "devices": TELEMETRY_DEVICES_WITH_KIND_SCHEMA,
    "holders": ALLOCATION_SPAN_SCHEMA,
    "shared_names": JOB_NAME_LINK_SCHEMA,
}
"""Table that joins telemetry to jobs, a Parquet file of the dataset folder → its schema. These tables are stored
because computing them reads all samples."""
DATASET_MARK = FolderMark(
    "provenance.json",
    DATASET_FORMAT,
    names=(
        *("provenance.json", "quality.json"),
        *(f"{name}.parquet" for name in ("rejects", *TABLES, *SCHEMA_BY_JOIN_TABLE)),
        "sources/*/*.*",
        "samples/month=*/*.parquet",
    ),
)
"""The file that marks a folder as a dataset, and the file names that a dataset folder may hold."""

DAY = timedelta(days=1)
"""One UTC day, read before and after a span to know until when each of its samples is valid."""
SOURCES_FOLDER = "sources"
"""Folder in a dataset folder with the record of each source."""
MERGED_TABLES = ("coverage", "processes", "inventory", "out_of_service", "node_dumps")
"""Tables that several sources may give; the top folder of a dataset has them combined."""


@dataclass(frozen=True, eq=False)
class SourceRecord:
    """Record of one source in a dataset folder: facts, quality report, rejected rows and its own tables.

    - ``facts``: Provenance of the source, with the names of its tables.
    - ``quality``: Quality report of the source.
    - ``rejects``: Rejected rows, or the Parquet file that has them, to be stored unchanged.
    - ``tables``: Tables of :data:`MERGED_TABLES` that the source gave.
    """

    facts: Mapping[str, Any]
    quality: pl.DataFrame
    rejects: pl.DataFrame | Path
    tables: Mapping[str, pl.DataFrame]


@dataclass(frozen=True, eq=False)
class StoredDataset:
    """A dataset folder whose tables are read on use.

    - ``path``: The folder.
    - ``provenance``: Content of its ``provenance.json``.
    """

    path: Path
    provenance: Mapping[str, Any]

    @cached_property
    def facts_by_source(self) -> dict[str, Mapping[str, Any]]:
        """Name of each source record → its facts (row counts, span, files)."""
        return {record_name(facts): facts for facts in self.provenance["sources"]}

    def read_record(self, source: str) -> SourceRecord:
        """Read the record of one source."""
        folder, facts = self.path / SOURCES_FOLDER / source, self.facts_by_source[source]
        tables = _read_tables_in(folder, MERGED_TABLES)
        if "inventory" in facts["tables"] and "inventory" not in tables:  # written before several sources could give it
            tables["inventory"] = read_table(self.path / "inventory.parquet", TABLES["inventory"])
        return SourceRecord(facts, read_findings(folder / "quality.json"), folder / "rejects.parquet", tables)

    def read_combined_table(self, name: str) -> pl.DataFrame | None:
        """Read a table of the top folder, which combines all sources; None if the folder lacks it."""
        path = self.path / f"{name}.parquet"
        return read_table(path, TABLES.get(name) or SCHEMA_BY_JOIN_TABLE[name]) if path.exists() else None

    @cached_property
    def telemetry_sources(self) -> list[str]:
        """Names of the sources that gave samples."""
        return [name for name, facts in self.facts_by_source.items() if SAMPLES in facts["tables"]]

    def scan(self, start: datetime | None = None, end: datetime | None = None) -> pl.LazyFrame:
        """Scan the samples of a span with their jobs, sorted by time; they are read when the frame is collected."""
        inside = pl.lit(value=True)
        if start is not None:
            inside &= pl.col("time") >= start
        if end is not None:
            inside &= pl.col("time") < end
        files = find_files_in_span(self.path, self.telemetry_sources, start, end)
        stated_rows = self.provenance.get("rows", {}).get(SAMPLES, 0)
        all_files = find_files_in_span(self.path, self.telemetry_sources, None, None)
        if stated_rows and not all_files:
            expected = "the samples its provenance.json states"
            raise TraceFormatError(str(self.path), expected, "none of their files", RUN_INGEST_ADVICE)
        samples = scan_month_files(files).filter(inside)
        if len(self.telemetry_sources) > 1:  # a device is judged by the best counter that any source read it by
            counters = find_device_counters(scan_month_files(all_files))
            samples = keep_best_counter(samples.sort("time", *DEVICE_KEY), counters)
        devices, spans = self.read_combined_table("devices"), self.read_combined_table("holders")
        if devices is None or spans is None:
            return samples
        name_tables = (self.read_combined_table("job_names"), self.read_combined_table("shared_names"))
        names_by_table = (table.select(JOB_NAME_LINK_SCHEMA.names()) for table in name_tables if table is not None)
        names = pl.concat([JOB_NAME_LINK_SCHEMA.to_frame(), *names_by_table])
        return DeviceAllocations(devices, spans, names).assign_jobs(samples)

    def scan_samples_with_end(self, start: datetime | None = None, end: datetime | None = None) -> pl.LazyFrame:
        """Scan the samples that are valid in a span, with column ``until`` [UTC], also those that begin before it.

        How long a sample is valid depends on the other samples of its UTC day, so whole days are read.
        """
        first_day, last_day = (
            None if instant is None else instant.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
            for instant in (start, end)
        )
        samples = self.scan(first_day and first_day - DAY, last_day and last_day + DAY).map_batches(add_sample_ends)
        if start is not None:
            samples = samples.filter((pl.col("until") > start) | (pl.col("time") >= start))
        return samples if end is None else samples.filter(pl.col("time") < end)


def open_dataset(directory: str | Path, *, columns: Sequence[str] | None = None, jobs_on_disk: bool = False) -> Dataset:
    """Open a folder written by ``gpuplanner ingest`` or :func:`~gpuplanner.ingest.dataset_writer.write_dataset`.

    Samples are read on first use.

    Parameters
    ----------
    directory : str or Path
        Dataset folder.
    columns : sequence of str, optional
        Columns of the jobs to load, text as categories to save memory; ``job_id`` is added if there are samples.
        Default: all columns.
    jobs_on_disk : bool
        Leave the jobs on disk to be read in chunks; every row is checked.

    Returns
    -------
    Dataset
        Dataset with all tables of the folder.

    Raises
    ------
    TraceFormatError
        If the folder is missing, is no dataset, or its files are missing, damaged or inconsistent.

    Examples
    --------
    >>> open_dataset("no/such/folder")
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.TraceFormatError: no/such/folder: expected a folder that holds a dataset; ...
    """
    folder = Path(directory)
    provenance = read_provenance(folder)
    stored_dataset = StoredDataset(folder, provenance)
    stored_names = [path.stem for path in sorted(folder.glob("*.parquet"))]
    stated_names = {name for facts in stored_dataset.facts_by_source.values() for name in facts["tables"]} - {SAMPLES}
    names = [name for name in TABLES if name in stated_names or (name in stored_names and name != SAMPLES)]
    lazy_jobs = None
    if jobs_on_disk and "jobs" in names:
        path = folder / "jobs.parquet"
        with explain_table_errors(path, "a table"):
            lazy_jobs = LazyJobs.open_file(path, sum(piece.height for piece in iterate_checked_jobs(path)))
    tables = {
        name: _read_merged_table(folder, name, columns, has_samples=bool(stored_dataset.telemetry_sources))
        for name in names
        if name != "jobs" or lazy_jobs is None
    }
    rejects = read_table(folder / "rejects.parquet", REJECT_TABLE_SCHEMA)
    row_counts = {name: table.height for name, table in tables.items()} | {"rejects": rejects.height}
    row_counts |= {} if lazy_jobs is None else {"jobs": lazy_jobs.height}
    scan: SampleScan | None = None
    if stored_dataset.telemetry_sources:
        scan = stored_dataset.scan_samples_with_end
        with explain_table_errors(folder / SAMPLES):
            files = find_files_in_span(folder, stored_dataset.telemetry_sources, None, None)
            row_counts[SAMPLES] = scan_month_files(files).select(pl.len()).collect().item()
    if row_counts != provenance.get("rows"):
        expected = f"the rows its provenance.json states: {provenance.get('rows')}"
        raise TraceFormatError(str(folder), expected, str(row_counts), RUN_INGEST_ADVICE)
    explained_scan = None if scan is None else explain_table_errors(folder / SAMPLES)(scan)
    return replace(read_metadata(folder), tables=tables, rejects=rejects, scan=explained_scan, stored_jobs=lazy_jobs)


def read_metadata(folder: Path) -> Dataset:
    """Read the provenance and quality report of a dataset folder, without its tables."""
    provenance = read_provenance(folder)
    first_facts, *other_facts = (
        {name: value for name, value in facts.items() if name != "tables"} for facts in provenance["sources"]
    )
    quality, no_rejects = read_findings(folder / "quality.json"), pl.DataFrame(schema=REJECT_TABLE_SCHEMA)
    return Dataset({}, no_rejects, quality, first_facts, other_sources=tuple(other_facts), join=provenance.get("join"))


def scan_samples(directory: str | Path, *, start: datetime | None = None, end: datetime | None = None) -> pl.LazyFrame:
    """Scan the samples of a dataset; they are read when the frame is collected.

    Months outside the span are not opened. Within a month, row groups whose statistics exclude the span or later
    filters are skipped.

    Parameters
    ----------
    directory : str or Path
        Dataset folder.
    start, end : datetime, optional
        First instant, and first instant after the span; with a time zone.

    Returns
    -------
    polars.LazyFrame
        Table ``schemas.Samples``.

    Raises
    ------
    TraceFormatError
        If the folder is missing, or no source in it gave samples.
    SchemaError
        If `start` or `end` has no time zone.

    Examples
    --------
    >>> scan_samples("no/such/folder")
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.TraceFormatError: no/such/folder: expected a folder that holds a dataset; ...
    """
    require_time_zone(start, end, source="samples")
    folder = Path(directory)
    stored_dataset = StoredDataset(folder, read_provenance(folder))
    if not stored_dataset.telemetry_sources:
        todo = "Ingest telemetry into the same folder."
        raise TraceFormatError(str(directory), "samples", "other tables", todo)
    return explain_table_errors(folder / SAMPLES)(stored_dataset.scan)(start, end)


def record_name(facts: Mapping[str, Any]) -> str:
    """Return the name of a source record: the source, with the kind of its files where it has several kinds."""
    return str(facts.get("layer") or facts["source"])


def job_part_folder(folder: Path, source: str, key: str) -> Path:
    """Return the folder of one part (exported file) of a source's job list.

    `key` is the name of the part, made of the hash of its file.
    """
    return folder / SOURCES_FOLDER / source / "parts" / key


def open_job_part(folder: Path) -> Dataset:
    """Read one part (exported file) of a source's job list as a dataset."""
    return Dataset(
        _read_tables_in(folder, TABLES),
        read_table(folder / "rejects.parquet", REJECT_TABLE_SCHEMA),
        read_findings(folder / "quality.json"),
        read_json(folder / "provenance.json"),
    )


def _read_tables_in(folder: Path, names: Iterable[str]) -> dict[str, pl.DataFrame]:
    """Read those of the named tables that a folder has."""
    paths = {name: folder / f"{name}.parquet" for name in names}
    return {name: read_table(path, TABLES[name]) for name, path in paths.items() if path.exists()}


def _read_merged_table(folder: Path, name: str, columns: Sequence[str] | None, *, has_samples: bool) -> pl.DataFrame:
    """Read a combined table of the top folder; `columns` select those of jobs, plus ``job_id`` with samples."""
    path = folder / f"{name}.parquet"
    if name != "jobs" or columns is None:
        return read_table(path, TABLES[name])
    with explain_table_errors(path, "a table"):
        return read_jobs(path, [*dict.fromkeys(["job_id", *columns])] if has_samples else columns)


def read_provenance(folder: Path) -> dict[str, Any]:
    """Read and check the ``provenance.json`` of a dataset folder.

    Raises
    ------
    TraceFormatError
        If the folder is missing, is no dataset, or was written in another format.
    """
    path = folder / DATASET_MARK.file
    if not path.is_file():
        description = "nothing there"
        if folder.exists():
            description = f"a folder without a {DATASET_MARK.file}" if folder.is_dir() else "a file"
        elif (aside := find_stranded_folder(folder)) is not None:
            description = f"nothing there, since a run was stopped; what stood there is {aside}"
        inner = folder / "data"  # of an output folder of start
        advice = f"Did you mean {inner}?" if (inner / DATASET_MARK.file).is_file() else RUN_INGEST_ADVICE
        raise TraceFormatError(str(folder), "a folder that holds a dataset", description, advice)
    provenance = read_json(path)
    if not isinstance(provenance, dict) or provenance.get("format") != DATASET_FORMAT:
        if isinstance(provenance, dict) and str(provenance.get("format")).startswith("gpuplanner dataset"):
            raise TraceFormatError(f"{folder}: made by an earlier version: ingest again")
        description = f"a {DATASET_MARK.file} of another format"
        raise TraceFormatError(str(folder), f"a {DATASET_FORMAT!r}", description, RUN_INGEST_ADVICE)
    if not _are_complete_facts(provenance.get("sources")):
        expected = "the facts of each source, with its name and its tables"
        raise TraceFormatError(str(path), expected, "none that can be read", RUN_INGEST_ADVICE)
    return provenance


def read_source_facts(folder: Path) -> list[SourceFacts]:
    """Read the facts of each source of a dataset folder."""
    return [SourceFacts.from_provenance(facts) for facts in read_provenance(folder)[SOURCES_FOLDER]]


def _are_complete_facts(sources: object) -> bool:
    """Whether a value read from JSON is a list of source facts with every required key."""
    return (
        isinstance(sources, list)
        and bool(sources)
        and all(
            isinstance(facts, dict)
            and isinstance(facts.get("source"), str)
            and isinstance(facts.get("tables"), list)
            and all(isinstance(name, str) and name in TABLES for name in facts["tables"])
            and isinstance(facts.get("files"), list)
            and all(isinstance(file, dict) and {"name", "sha256"} <= file.keys() for file in facts["files"])
            and {"rows_in", "rows_kept", "rows_rejected", "span_start", "span_end"} <= facts.keys()
            for facts in sources
        )
    )
