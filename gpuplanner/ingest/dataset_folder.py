"""Datasets as folders of Parquet and JSON.

On top stand the tables of all sources together; ``sources/NAME`` holds what each source said of itself (facts,
rejects, quality) and, for lists of jobs, the parts from which the table on top follows. Samples stand by month, a file
for each source. Telemetry is joined to jobs when it is read, see :mod:`gpuplanner.ingest.telemetry.telemetry_join`.
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
from gpuplanner.core.output_places import DATASET_FORMAT, Mark
from gpuplanner.core.output_writing import kept_aside
from gpuplanner.core.schemas import TABLES
from gpuplanner.core.step_functions import require_zone
from gpuplanner.ingest.dataset import Dataset, Scan, Stated
from gpuplanner.ingest.delimited_rows import REJECTS
from gpuplanner.ingest.large_tables import (
    REMEDY,
    SAMPLES,
    LongJobs,
    checked_jobs,
    explained,
    of_span,
    read_findings,
    read_jobs,
    read_json,
    read_table,
    scan_months,
)
from gpuplanner.ingest.telemetry.metric_definitions import DEVICE_KEY, on_one_rung, rungs
from gpuplanner.ingest.telemetry.sample_buffer import with_until
from gpuplanner.ingest.telemetry.telemetry_join import DEVICES, SPANS, Holders

NAMES = pl.Schema({"name": pl.String(), "job_id": pl.String()})
JOINED: dict[str, type[dy.Schema] | pl.Schema] = {"devices": DEVICES, "holders": SPANS, "shared_names": NAMES}
"""What joins telemetry to jobs: kept, since working it out takes a look at every sample."""
_FILES = ("provenance.json", "quality.json", "rejects.parquet", *(f"{name}.parquet" for name in TABLES))
MARK = Mark(
    "provenance.json",
    DATASET_FORMAT,
    names=(*_FILES, *(f"{name}.parquet" for name in JOINED), "sources/*/*.*", "samples/month=*/*.parquet"),
)

DAY = timedelta(days=1)
SOURCES = "sources"
OF_EACH = ("coverage", "processes", "out_of_service")
"""Tables that several sources may give, put together on top."""


@dataclass(frozen=True, eq=False)
class Layer:
    """What one source said of itself."""

    facts: Mapping[str, Any]
    quality: pl.DataFrame
    rejects: pl.DataFrame | Path
    """Or the file that holds them as they are."""
    tables: Mapping[str, pl.DataFrame]
    """Those of :data:`OF_EACH`."""


@dataclass(frozen=True, eq=False)
class Stored:
    """A dataset as it lies in its folder; tables are read when they are asked for."""

    path: Path
    provenance: Mapping[str, Any]

    @cached_property
    def facts(self) -> dict[str, Mapping[str, Any]]:
        """Source → its facts, in the order in which they came."""
        return {layer_of(each): each for each in self.provenance["sources"]}

    def layer(self, source: str) -> Layer:
        """What a source said of itself."""
        folder = self.path / SOURCES / source
        return Layer(
            self.facts[source],
            read_findings(folder / "quality.json"),
            folder / "rejects.parquet",
            _tables_in(folder, OF_EACH),
        )

    def table(self, name: str) -> pl.DataFrame | None:
        """A table on top, or None."""
        path = self.path / f"{name}.parquet"
        return read_table(path, TABLES.get(name) or JOINED[name]) if path.exists() else None

    @cached_property
    def telemetry(self) -> list[str]:
        """Sources of samples."""
        return [name for name, facts in self.facts.items() if SAMPLES in facts["tables"]]

    def scan(self, start: datetime | None = None, end: datetime | None = None) -> pl.LazyFrame:
        """Samples of a span with their jobs, sorted by time, read only when they are collected."""
        inside = pl.lit(value=True)
        if start is not None:
            inside &= pl.col("time") >= start
        if end is not None:
            inside &= pl.col("time") < end
        files = of_span(self.path, self.telemetry, start, end)
        stated = self.provenance.get("rows", {}).get(SAMPLES, 0)
        if stated and not files and not of_span(self.path, self.telemetry, None, None):
            expected = "the samples its provenance.json states"
            raise TraceFormatError(str(self.path), expected, "none of their files", REMEDY)
        samples = scan_months(files).filter(inside)
        if len(self.telemetry) > 1:  # a device is judged by the best counter that any source read it by
            ever = rungs(scan_months(of_span(self.path, self.telemetry, None, None)))
            samples = on_one_rung(samples.sort("time", *DEVICE_KEY), ever)
        devices, spans = self.table("devices"), self.table("holders")
        if devices is None or spans is None:
            return samples
        told = (self.table("job_names"), self.table("shared_names"))
        known = (each.select(NAMES.names()) for each in told if each is not None)
        names = pl.concat([NAMES.to_frame(), *known])
        return Holders(devices, spans, names).give_jobs(samples)

    def scan_held(self, start: datetime | None = None, end: datetime | None = None) -> pl.LazyFrame:
        """Samples that hold in a span, with ``until``: also those before it that go on into it.

        How long a sample holds follows from its UTC day, which is read whole.
        """
        first, last = (
            None if one is None else one.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
            for one in (start, end)
        )
        held = self.scan(first and first - DAY, last and last + DAY).map_batches(with_until)
        if start is not None:
            held = held.filter((pl.col("until") > start) | (pl.col("time") >= start))
        return held if end is None else held.filter(pl.col("time") < end)


def open_dataset(directory: str | Path, *, columns: Sequence[str] | None = None, long: bool = False) -> Dataset:
    """Open a folder written by ``gpuplanner ingest`` or :func:`~gpuplanner.ingest.dataset_writer.write_dataset`.

    Samples are read when they are asked for.

    Parameters
    ----------
    directory : str or Path
        Where it stands.
    columns : sequence of str, optional
        Columns of the jobs to keep, text as categories, in little memory; ``job_id`` comes too where there
        are samples. Default: the whole table.
    long : bool
        Leave the jobs on disk, to be read some at a time; every row is checked.

    Raises
    ------
    TraceFormatError
        If the folder is missing, is no dataset, or its parts are missing, damaged or do not fit together.

    Examples
    --------
    >>> open_dataset("no/such/folder")
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.TraceFormatError: no/such/folder: expected a folder that holds a dataset; ...
    """
    folder = Path(directory)
    provenance = read_provenance(folder)
    stored = Stored(folder, provenance)
    there = [path.stem for path in sorted(folder.glob("*.parquet"))]
    stated = {name for facts in stored.facts.values() for name in facts["tables"]} - {SAMPLES}
    names = [name for name in TABLES if name in stated or (name in there and name != SAMPLES)]
    kept = None
    if long and "jobs" in names:
        path = folder / "jobs.parquet"
        with explained(path, "a table"):
            kept = LongJobs.kept(path, sum(piece.height for piece in checked_jobs(path)))
    tables = {
        name: _table_on_top(folder, name, columns, seen=bool(stored.telemetry))
        for name in names
        if name != "jobs" or kept is None
    }
    rejects = read_table(folder / "rejects.parquet", REJECTS)
    counted = {name: table.height for name, table in tables.items()} | {"rejects": rejects.height}
    counted |= {} if kept is None else {"jobs": kept.height}
    scan: Scan | None = None
    if stored.telemetry:
        scan = stored.scan_held
        with explained(folder / SAMPLES):
            files = of_span(folder, stored.telemetry, None, None)
            counted[SAMPLES] = scan_months(files).select(pl.len()).collect().item()
    if counted != provenance.get("rows"):
        expected = f"the rows its provenance.json states: {provenance.get('rows')}"
        raise TraceFormatError(str(folder), expected, str(counted), REMEDY)
    read = None if scan is None else _checked(scan, folder)
    return replace(told_by(folder), tables=tables, rejects=rejects, scan=read, kept=kept)


def told_by(folder: Path) -> Dataset:
    """What a folder says of itself, without its tables."""
    provenance = read_provenance(folder)
    # That of the jobs first, then that of the samples, else as they came.
    stated = Stored(folder, provenance).facts.values()
    ordered = sorted(stated, key=lambda each: ("jobs" not in each["tables"], SAMPLES not in each["tables"]))
    first, *others = ({name: value for name, value in facts.items() if name != "tables"} for facts in ordered)
    quality, none = read_findings(folder / "quality.json"), pl.DataFrame(schema=REJECTS)
    return Dataset({}, none, quality, first, others=tuple(others), join=provenance.get("join"))


def scan_samples(directory: str | Path, *, start: datetime | None = None, end: datetime | None = None) -> pl.LazyFrame:
    """Samples of a dataset, read only when they are collected.

    Months outside the span are not opened, and within a month the parts of the file that cannot hold such
    times, or that later filters exclude, are skipped by their statistics.

    Parameters
    ----------
    directory : str or Path
        A dataset.
    start, end : datetime, optional
        First instant, and first instant after the last; with a zone.

    Returns
    -------
    polars.LazyFrame
        Table ``schemas.Samples``.

    Raises
    ------
    TraceFormatError
        If the folder is missing, or no source in it gave samples.
    SchemaError
        If `start` or `end` has no zone.

    Examples
    --------
    >>> scan_samples("no/such/folder")
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.TraceFormatError: no/such/folder: expected a folder that holds a dataset; ...
    """
    require_zone(start, end, where="samples")
    folder = Path(directory)
    stored = Stored(folder, read_provenance(folder))
    if not stored.telemetry:
        todo = "Ingest telemetry into the same folder."
        raise TraceFormatError(str(directory), "samples", "other tables", todo)
    return _checked(stored.scan, folder)(start, end)


def layer_of(facts: Mapping[str, Any]) -> str:
    """Name by which a dataset keeps what a source said: its own, and the kind of its files where it has several."""
    return str(facts.get("layer") or facts["source"])


def part_of(folder: Path, source: str, key: str) -> Path:
    """Where a part of a list of jobs stands in a dataset."""
    return folder / SOURCES / source / "parts" / key


def open_part(folder: Path) -> Dataset:
    """Open a part of a list of jobs."""
    return Dataset(
        _tables_in(folder, TABLES),
        read_table(folder / "rejects.parquet", REJECTS),
        read_findings(folder / "quality.json"),
        read_json(folder / "provenance.json"),
    )


def _tables_in(folder: Path, names: Iterable[str]) -> dict[str, pl.DataFrame]:
    """Those of some tables that a folder has."""
    paths = {name: folder / f"{name}.parquet" for name in names}
    return {name: read_table(path, TABLES[name]) for name, path in paths.items() if path.exists()}


def _table_on_top(folder: Path, name: str, columns: Sequence[str] | None, *, seen: bool) -> pl.DataFrame:
    path = folder / f"{name}.parquet"
    if name != "jobs" or columns is None:
        return read_table(path, TABLES[name])
    with explained(path, "a table"):
        return read_jobs(path, [*dict.fromkeys(["job_id", *columns])] if seen else columns)


def read_provenance(folder: Path) -> dict[str, Any]:
    """What a folder says of itself."""
    path = folder / MARK.file
    if not path.is_file():
        got = "nothing there"
        if folder.exists():
            got = f"a folder without a {MARK.file}" if folder.is_dir() else "a file"
        elif (aside := kept_aside(folder)) is not None:
            got = f"nothing there, since a run was stopped; what stood there is {aside}"
        raise TraceFormatError(str(folder), "a folder that holds a dataset", got, REMEDY)
    told = read_json(path)
    if not isinstance(told, dict) or told.get("format") != DATASET_FORMAT:
        if isinstance(told, dict) and str(told.get("format")).startswith("gpuplanner dataset"):
            raise TraceFormatError(f"{folder}: made by an earlier version: ingest again")
        got = f"a {MARK.file} of another format"
        raise TraceFormatError(str(folder), f"a {DATASET_FORMAT!r}", got, REMEDY)
    if not _is_whole(told.get("sources")):
        expected = "the facts of each source, with its name and its tables"
        raise TraceFormatError(str(path), expected, "none that can be read", REMEDY)
    return told


def read_sources(folder: Path) -> list[Stated]:
    """What each source of a folder says of itself, as they came."""
    return [Stated.of(facts) for facts in read_provenance(folder)[SOURCES]]


def _checked(scan: Scan, folder: Path) -> Scan:
    """Explain what is wrong with samples when they are read."""

    def checked(start: datetime | None, end: datetime | None) -> pl.LazyFrame:
        with explained(folder / SAMPLES):
            return scan(start, end)

    return checked


def _is_whole(sources: object) -> bool:
    return (
        isinstance(sources, list)
        and bool(sources)
        and all(
            isinstance(each, dict)
            and isinstance(each.get("source"), str)
            and isinstance(each.get("tables"), list)
            and all(isinstance(name, str) and name in TABLES for name in each["tables"])
            and isinstance(each.get("files"), list)
            and all(isinstance(file, dict) and {"name", "sha256"} <= file.keys() for file in each["files"])
            and {"rows_in", "rows_kept", "rows_rejected", "span_start", "span_end"} <= each.keys()
            for each in sources
        )
    )
