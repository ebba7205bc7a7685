"""Tables larger than memory: reading and writing in chunks, and samples by month."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import dataframely as dy
import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from gpuplanner.core.errors import SchemaError, TraceFormatError, first_error_line
from gpuplanner.core.privacy import merge_small_tenants_expression
from gpuplanner.core.schema_checks import check_table, make_empty_table
from gpuplanner.core.schemas import OPTIONAL_SAMPLE_COLUMNS, Jobs, Samples
from gpuplanner.ingest.delimited_rows import REJECT_TABLE_SCHEMA, Rows
from gpuplanner.ingest.quality_report import DTYPE_BY_QUALITY_COLUMN, count_reject_reasons
from gpuplanner.ingest.text_files import TextFile

RUN_INGEST_ADVICE = "Make it with: gpuplanner ingest SOURCE PATH... -o DIR."
"""Advice in the error messages about a damaged or missing dataset."""


def read_table(path: Path, schema: type[dy.Schema] | pl.Schema) -> pl.DataFrame:
    """Read a Parquet table and check its columns, and also its values if `schema` is a dataframely schema."""
    with explain_table_errors(path, "a table"):
        frame = pl.read_parquet(path, glob=False)
        if isinstance(schema, pl.Schema):
            return frame.match_to_schema(schema)
        return check_table(frame, schema, source=str(path))


def scan_table(table: pl.DataFrame | Path) -> pl.LazyFrame:
    """Scan a table in memory or in a Parquet file; it is read when the frame is collected."""
    return pl.scan_parquet(table, glob=False) if isinstance(table, Path) else table.lazy()


def read_findings(path: Path) -> pl.DataFrame:
    """Read the quality report of a dataset from a JSON file as a table."""
    quality = read_json(path)
    try:
        return pl.DataFrame(quality, schema=DTYPE_BY_QUALITY_COLUMN, orient="row")
    except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
        raise TraceFormatError(str(path), "a list of findings", first_error_line(error), RUN_INGEST_ADVICE) from error


def read_json(path: Path) -> Any:  # noqa: ANN401 - anything that JSON can hold
    """Read a JSON file and raise a TraceFormatError if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TraceFormatError(str(path), "a JSON file", first_error_line(error), RUN_INGEST_ADVICE) from error


@contextmanager
def explain_table_errors(path: Path, expected_content: str = "tables") -> Iterator[None]:
    """Turn errors of polars and the disk inside the ``with`` block into a TraceFormatError that names the file.

    `expected_content` is what the message names as expected in the file.
    """
    try:
        yield
    except (OSError, pl.exceptions.PolarsError, SchemaError) as error:
        expected = f"{expected_content} written by this program"
        raise TraceFormatError(str(path), expected, first_error_line(error), RUN_INGEST_ADVICE) from error


READ_CHUNK_ROWS = 1 << 19
"""Rows of a Parquet table that are read and checked at a time."""
UNIQUE_TEXT_COLUMNS = ("job_id",)
"""Text columns of jobs with a different value in nearly every row, which polars categories would enlarge."""


def read_jobs(path: str | Path, columns: Sequence[str]) -> pl.DataFrame:
    """Read some columns of a Parquet table of jobs; every row and every column is checked.

    Ten million jobs take about as much memory as one chunk and the selected columns.

    Examples
    --------
    >>> from gpuplanner.core.stage_cache_and_data_folders import sample_folder
    >>> jobs = read_jobs(sample_folder() / "jobs.parquet", ["tenant", "gpus"])
    >>> jobs.height, [str(dtype) for dtype in jobs.dtypes]
    (11521, ['Categorical', 'Float64'])
    """
    types = compact_column_types(columns)
    series_by_column: dict[str, list[pl.Series]] = {name: [] for name in columns}
    for piece in iterate_checked_jobs(path):
        for name in columns:
            series_by_column[name].append(piece[name].cast(types[name]))
    filled_names = [
        name for name in columns if any(series.null_count() < len(series) for series in series_by_column[name])
    ]
    filled_columns = {name: pl.concat(series_by_column.pop(name)) for name in filled_names}
    if not filled_columns:
        return pl.DataFrame({name: pl.concat(series) for name, series in series_by_column.items()})
    null_columns = [pl.lit(None, types[name]).alias(name) for name in series_by_column]
    return pl.DataFrame(filled_columns).with_columns(null_columns).select(columns)


def iterate_checked_jobs(path: str | Path) -> Iterator[pl.DataFrame]:
    """Yield a Parquet table of jobs in chunks whose schema is checked; at least one chunk."""
    scan = pl.scan_parquet(path, glob=False)
    for first_row in range(0, max(scan.select(pl.len()).collect().item(), 1), READ_CHUNK_ROWS):
        jobs = scan.slice(first_row, READ_CHUNK_ROWS).collect()
        yield check_table(jobs, Jobs, source=f"{path}, from row {first_row}")


def compact_column_types(columns: Sequence[str]) -> dict[str, pl.DataType]:
    """Return the polars types in which job columns take little memory: text as categories."""
    types = {name: Jobs.columns()[name].dtype for name in columns}
    return {
        name: pl.Categorical() if dtype == pl.String and name not in UNIQUE_TEXT_COLUMNS else dtype
        for name, dtype in types.items()
    }


MAX_JOBS_IN_MEMORY = 1 << 21
"""Approximate number of jobs that are loaded at a time; sums over more jobs are added chunk by chunk and may differ in
their last digit."""


@dataclass(frozen=True, eq=False)
class LazyJobs:
    """Table ``schemas.Jobs`` sorted by submission, read on use; queries leave out jobs in quarantine.

    - ``table``: All rows; text as categories where it is read from a file.
    - ``height``: Number of rows, with those in quarantine.
    """

    table: pl.LazyFrame
    height: int

    @classmethod
    def from_table(cls, jobs: pl.DataFrame | LazyJobs) -> LazyJobs:
        """Wrap a table of jobs in memory.

        Examples
        --------
        >>> LazyJobs.from_table(pl.DataFrame({"gpus": [1.0, 2.0]})).collect_rows()["gpus"].to_list()
        [1.0, 2.0]
        """
        return jobs if isinstance(jobs, LazyJobs) else cls(jobs.lazy(), jobs.height)

    @classmethod
    def open_file(cls, path: Path, height: int) -> LazyJobs:
        """Open a Parquet file of jobs; columns that the file lacks are null."""
        table, types = pl.scan_parquet(path, glob=False), compact_column_types(Jobs.column_names())
        stored_columns = set(table.collect_schema())
        casts = (
            pl.col(name).cast(dtype) if name in stored_columns else pl.lit(None, dtype).alias(name)
            for name, dtype in types.items()
        )
        return cls(table.with_columns(casts), height)

    def scan_unquarantined(self, columns: Sequence[str] | None = None) -> pl.LazyFrame:
        """Scan all jobs outside quarantine; requested columns that the table lacks are left out."""
        return self._select_unquarantined(self.table, columns)

    def collect_rows(self, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Load all jobs outside quarantine into memory."""
        return self.scan_unquarantined(columns).collect(engine="streaming")

    def iterate_chunks(self, columns: Sequence[str] | None = None) -> Iterator[pl.DataFrame]:
        """Yield all jobs outside quarantine in chunks of about :data:`MAX_JOBS_IN_MEMORY` rows."""
        for first_row in range(0, max(self.height, 1), MAX_JOBS_IN_MEMORY):
            chunk = self.table.slice(first_row, MAX_JOBS_IN_MEMORY)
            yield self._select_unquarantined(chunk, columns).collect(engine="streaming")

    def collect_between(self, begin: datetime, end: datetime, columns: Sequence[str]) -> pl.DataFrame:
        """Load the jobs submitted before `end` that had not ended before `begin`."""
        jobs = self.table.filter(pl.col("submit_time") < end)
        if "end_time" in jobs.collect_schema():
            jobs = jobs.filter(pl.col("end_time").is_null() | (pl.col("end_time") > begin))
        return self._select_unquarantined(jobs, columns).collect(engine="streaming")

    def split_span(self, begin: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
        """Split a span at whole hours so that about :data:`MAX_JOBS_IN_MEMORY` jobs are submitted in each part.

        Examples
        --------
        >>> from datetime import UTC
        >>> year = [datetime(2025, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)]
        >>> LazyJobs.from_table(pl.DataFrame({"submit_time": year})).split_span(*year) == [tuple(year)]
        True
        """
        every_nth_hour = pl.col("submit_time").gather_every(MAX_JOBS_IN_MEMORY, MAX_JOBS_IN_MEMORY).dt.truncate("1h")
        cut_hours = self.table.select(every_nth_hour).collect(engine="streaming")["submit_time"].drop_nulls()
        return list(pairwise(sorted({begin, end, *(hour for hour in cut_hours if begin < hour < end)})))

    def merge_small_tenants(self, min_people: int) -> LazyJobs:
        """Replace the names of tenants with fewer than `min_people` distinct users by a common one; 0 merges none."""
        if not min_people:
            return self
        tenant = merge_small_tenants_expression(self.scan_unquarantined(), min_people)
        return replace(self, table=self.table.with_columns(tenant))

    def _select_unquarantined(self, table: pl.LazyFrame, columns: Sequence[str] | None) -> pl.LazyFrame:
        """Filter a lazy table to jobs outside quarantine and select columns."""
        names = table.collect_schema().names()
        if "quarantined" in names:
            table = table.filter(pl.col("quarantined").is_null())
        return table if columns is None else table.select(name for name in columns if name in names)


RowStep = Callable[[Rows], Rows]
"""Function that transforms the rows of one chunk, see :class:`ChunkedRows`."""
ORDERED_CHUNK_ROWS = 1 << 18
"""Rows of a sorted table that are in memory at a time."""

_CHUNK_FILE_NUMBERS = itertools.count()
"""Counter that numbers the files of chunks."""


@dataclass(eq=False)
class ChunkedTable:
    """One table in chunks, which are in memory or, with a folder, in Parquet files.

    - ``folder``: Folder for the chunks; None keeps them in memory.
    - ``chunks``: The chunks or their files, in order.
    """

    folder: Path | None = None
    chunks: list[pl.DataFrame | Path] = field(default_factory=list)

    def append(self, table: pl.DataFrame) -> None:
        """Append a chunk; an empty one only if it is the first, for its columns."""
        if self.chunks and table.is_empty():
            return
        if self.folder is None:
            self.chunks.append(table)
            return
        path = self.folder / f"piece-{next(_CHUNK_FILE_NUMBERS)}.parquet"
        table.write_parquet(path, compression="lz4")
        self.chunks.append(path)

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[pl.DataFrame]:
        """Yield each chunk as a table, or some of its columns; columns that it lacks are left out.

        Examples
        --------
        >>> pieces = ChunkedTable()
        >>> pieces.append(pl.DataFrame({"x": [1], "y": [2]}))
        >>> [table.columns for table in pieces.tables(["y", "z"])]
        [['y']]
        """
        for chunk in self.chunks:
            frame = scan_table(chunk)
            present_columns = columns and [name for name in columns if name in frame.collect_schema().names()]
            yield (frame if present_columns is None else frame.select(present_columns)).collect()

    def clear(self) -> None:
        """Drop all chunks and their files."""
        for chunk in self.chunks:
            if isinstance(chunk, Path):
                chunk.unlink()
        self.chunks.clear()

    def iterate_ordered(
        self, key: str, bounds: Sequence[Any], tie_columns: Sequence[str] = ()
    ) -> Iterator[pl.DataFrame]:
        """Yield all rows sorted by a column, one table for each interval between bounds.

        Parameters
        ----------
        key : str
            Column to sort by.
        bounds : sequence
            Values of `key` at which a new table begins, ascending.
        tie_columns : sequence of str
            Columns that order rows of equal `key`.

        Examples
        --------
        >>> pieces = ChunkedTable()
        >>> for values in ([3, 1], [2, 4]):
        ...     pieces.append(pl.DataFrame({"x": values}))
        >>> [part["x"].to_list() for part in pieces.iterate_ordered("x", [3])]
        [[1, 2], [3, 4]]
        """
        spans = [(table[key].min(), table[key].max()) for table in self.tables([key])]
        for lower_bound, upper_bound in itertools.pairwise([None, *bounds, None]):
            inside = pl.lit(value=True) if lower_bound is None else pl.col(key) >= lower_bound
            inside = inside if upper_bound is None else inside & (pl.col(key) < upper_bound)
            overlapping_chunks = [
                chunk
                for chunk, (chunk_min, chunk_max) in zip(self.chunks, spans, strict=True)
                if chunk_min is None
                or (
                    (lower_bound is None or chunk_max >= lower_bound)
                    and (upper_bound is None or chunk_min < upper_bound)
                )
            ]
            tables = ChunkedTable(chunks=overlapping_chunks or self.chunks[:1]).tables()
            rows = pl.concat(table.filter(inside) for table in tables)
            yield rows.sort(key, *tie_columns, maintain_order=True)


@dataclass(eq=False)
class ChunkedRows:
    """Accepted and rejected rows of files, in chunks; a :class:`~gpuplanner.ingest.delimited_rows.Rows` on disk.

    - ``folder``: Folder for the chunks; None keeps them in memory.
    - ``files``: Files that were read.
    - ``count``, ``blank``: Number of rows in the files, without headers and blank lines; number of blank lines.
    - ``unused``: Columns of the files that the reader does not use.
    - ``good``, ``rejects``: Accepted rows; rejected rows, columns :data:`REJECT_TABLE_SCHEMA`.
    - ``height``: Number of accepted rows.
    - ``steps``: Transformations that are still to be applied to every chunk.
    - ``last_reject``: Highest line number of a rejected row.
    - ``reasons``: Number of rejected rows by reason, with the position of the first.
    """

    folder: Path | None = None
    files: tuple[TextFile, ...] = ()
    count: int = 0
    unused: dict[str, None] = field(default_factory=dict)
    blank: int = 0
    height: int = 0
    steps: list[RowStep] = field(default_factory=list)
    last_reject: int = 0
    good: ChunkedTable = field(init=False)
    rejects: ChunkedTable = field(init=False)
    reasons: pl.DataFrame = field(init=False)

    def __post_init__(self) -> None:
        self.good, self.rejects = ChunkedTable(self.folder), ChunkedTable(self.folder)
        self.rejects.append(pl.DataFrame(schema=REJECT_TABLE_SCHEMA))
        self.reasons = count_reject_reasons(pl.DataFrame(schema=REJECT_TABLE_SCHEMA))

    def queue_steps(self, *steps: RowStep) -> ChunkedRows:
        """Queue transformations for every chunk until :meth:`apply_steps` is called."""
        self.steps += steps
        return self

    def apply_steps(self) -> ChunkedRows:
        """Apply the queued transformations to every chunk and collect the rows that they reject."""
        previous_rows, self.good, self.height = self.good, ChunkedTable(self.folder), 0
        for table in previous_rows.tables():
            rows = Rows(self.files, 0, table, pl.DataFrame(schema=REJECT_TABLE_SCHEMA))
            for step in self.steps:
                rows = step(rows)
            self.add_rows(rows)
        previous_rows.clear()
        self.steps.clear()
        return self

    def add_rows(self, rows: Rows) -> None:
        """Append rows as a chunk."""
        self.files = rows.files
        self.count += rows.count
        self.blank += rows.blank
        self.unused |= dict.fromkeys(rows.unused)
        if rows.good.width:
            self.good.append(rows.good)
        self.height += rows.good.height
        self.rejects.append(rows.rejects)
        self.last_reject = max(self.last_reject, rows.rejects.select(pl.col("row").max().fill_null(0)).item())
        reasons = pl.concat([self.reasons, count_reject_reasons(rows.rejects)]).group_by("reason", maintain_order=True)
        self.reasons = reasons.agg(pl.col("rows").sum(), pl.col("file", "row").first())

    def find_duplicates(self, key: str, columns: Sequence[str]) -> pl.DataFrame:
        """Collect some columns of the rows whose key repeats, with their file and line numbers.

        Examples
        --------
        >>> table = pl.DataFrame({"file": 0, "line": [2, 3, 4], "raw": "", "id": ["a", "b", "a"]})
        >>> rows = ChunkedRows()
        >>> rows.add_rows(Rows((), 3, table, pl.DataFrame(schema=REJECT_TABLE_SCHEMA)))
        >>> rows.find_duplicates("id", ["id"]).rows()
        [(0, 2, 'a'), (0, 4, 'a')]
        """
        names = list(dict.fromkeys(["file", "line", key, *columns]))
        has_repeated_hash = pl.col(key).hash().is_in(self.find_repeated_hashes(key).implode())
        return pl.concat(table.filter(has_repeated_hash) for table in self.good.tables(names))

    def find_repeated_hashes(self, key: str) -> pl.Series:
        """Return the hashes of values of the key column that occur in several accepted rows, ascending."""
        hashes = np.concatenate([table[key].hash().to_numpy() for table in self.good.tables([key])])
        hashes.sort()
        return pl.Series(np.unique(hashes[1:][hashes[1:] == hashes[:-1]]), dtype=pl.UInt64)


MAX_PIECE_GAP = timedelta(seconds=60)
"""Longest time between two pieces of one run, as daily exports end at 00:00, 23:59:59 or 23:59."""

JOINED_PIECE_REASON = "part of a run that exports divide by day (sacct --truncate): joined to one job"
"""Reject reason of the rows of a run that its last piece stands for."""


def join_run_pieces(rows: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """Join the parts of a run that daily or monthly exports end at their bounds, such as ``sacct --truncate``.

    Parts agree in key, submission, GPUs and nodes, start at different times, and adjoin or overlap. The row that ends
    last stands for the run: it gets the start of the first, and the use that was measured in all of them.

    Parameters
    ----------
    rows : polars.DataFrame
        Rows with columns of the table of jobs, of which several may be of one run.
    key : sequence of str
        Columns that identify a run together with its submission.

    Returns
    -------
    polars.DataFrame
        The rows with ``is_piece``: whether another row stands for it.

    Examples
    --------
    >>> days = [datetime(2026, 4, day, tzinfo=UTC) for day in (1, 2, 3)]
    >>> about = {"job_id": "7", "submit_time": days[0], "gpus": 2.0, "node_list": "n1"}
    >>> pieces = pl.DataFrame([about | {"start_time": days[i], "end_time": days[i + 1]} for i in (0, 1)])
    >>> joined = join_run_pieces(pieces, ["job_id"])
    >>> joined.select(pl.col("start_time").dt.day(), pl.col("end_time").dt.day(), "is_piece").rows()
    [(1, 2, True), (1, 3, False)]
    """
    keys = [*key, "submit_time", "gpus", "node_list"]
    ordered = rows.sort("start_time", "end_time", maintain_order=True)
    previous_end = pl.col("end_time").cum_max().shift().over(keys)
    is_adjoining = (pl.col("start_time") - previous_end <= MAX_PIECE_GAP).fill_null(value=False)
    # A row without an end is of a run that has not ended, which no bound has cut.
    run_keys = [*keys, "run", pl.col("end_time").is_null()]
    is_cut = (pl.col("start_time").n_unique().over(run_keys) > 1) & pl.col("end_time").is_not_null()
    is_piece = is_cut & (pl.col("end_time").rank("ordinal", descending=True).over(run_keys) > 1)
    joined = {"start_time": pl.col("start_time").min().over(run_keys)}
    runs = ordered.with_columns(run=(~is_adjoining).cum_sum().over(keys))
    if {"sm_activity", "memory_peak_gib"} <= set(rows.columns):
        run_s = (pl.col("end_time") - pl.col("start_time")).dt.total_seconds()
        is_first = pl.struct("start_time", "end_time").is_first_distinct().over(run_keys)
        measured_s = pl.when(is_first & pl.col("sm_activity").is_not_null()).then(run_s)
        busy_s = (pl.col("sm_activity") * measured_s).sum().over(run_keys)
        activity = (busy_s / measured_s.sum().over(run_keys)).fill_nan(None)
        joined |= {"sm_activity": activity, "memory_peak_gib": pl.col("memory_peak_gib").max().over(run_keys)}
    columns = {name: pl.when(is_cut).then(value).otherwise(name) for name, value in joined.items()}
    return runs.with_columns(is_piece=is_piece, **columns).drop("run")


MAX_PARQUET_ROW_GROUP_ROWS = 1 << 18
"""Rows of a Parquet row group, which is read at once."""


def write_table(table: pl.DataFrame | pl.LazyFrame, path: Path) -> None:
    """Write a table to Parquet in row groups, of which a few are in memory if the table is lazy."""
    table.lazy().sink_parquet(path, row_group_size=MAX_PARQUET_ROW_GROUP_ROWS, engine="streaming")


def write_chunks(iterate_chunks: Callable[[], Iterator[pl.DataFrame]], schema: pl.Schema, path: Path) -> None:
    """Write chunks of a table to one Parquet file with a few of them in memory, as :func:`write_table` would.

    Examples
    --------
    >>> import tempfile
    >>> table = pl.DataFrame({"x": [1, 2, 3]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     one, other = Path(folder) / "one.parquet", Path(folder) / "other.parquet"
    ...     write_table(table, one)
    ...     write_chunks(lambda: iter([table[:1], table[1:]]), table.schema, other)
    ...     one.read_bytes() == other.read_bytes()
    True
    """

    def batches(
        columns: list[str] | None, _predicate: pl.Expr | None, _rows: int | None, _size: int | None
    ) -> Iterator[pl.DataFrame]:
        """Yield the chunks, with the requested columns only; polars calls it when the scan is collected."""
        for chunk in iterate_chunks():
            yield chunk if columns is None else chunk.select(columns)

    source = register_io_source(batches, schema=schema)
    source.sink_parquet(path, row_group_size=MAX_PARQUET_ROW_GROUP_ROWS, engine="streaming")


SAMPLES = "samples"
"""Name of the table of telemetry, and of the folder of its months in a dataset."""
MONTH_PREFIX = "month="
"""Prefix of the folder of a month of samples, such as ``month=2026-01``, as Hive partitions are named, so that other
programs read it as a column."""
DERIVED_SAMPLE_COLUMNS = ("until", "job_evidence")
"""Columns of telemetry samples that are computed on reading and not stored."""


def drop_derived_columns(samples: pl.DataFrame) -> pl.DataFrame:
    """Drop derived columns of samples, and optional counters that their source does not have.

    Examples
    --------
    >>> drop_derived_columns(pl.DataFrame({"power_w": [None], "sm_occupancy": [None]})).columns
    ['power_w']
    """
    absent = [
        name for name in OPTIONAL_SAMPLE_COLUMNS if name in samples and samples[name].null_count() == samples.height
    ]
    return samples.drop(*absent, *DERIVED_SAMPLE_COLUMNS, strict=False)


def split_by_month(samples: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Split samples by UTC month: folder name → samples in their order.

    Examples
    --------
    >>> list(split_by_month(pl.DataFrame({"time": [datetime(2026, 1, 31, 23, tzinfo=UTC)]})))
    ['month=2026-01']
    """
    month = (pl.lit(MONTH_PREFIX) + pl.col("time").dt.strftime("%Y-%m")).alias("month")
    samples_by_month = samples.with_columns(month).partition_by("month", include_key=False, as_dict=True)
    return {str(name): month_samples for (name,), month_samples in samples_by_month.items()}


def write_month(samples: pl.DataFrame, path: Path) -> None:
    """Write the samples of one month; equal rows give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(drop_derived_columns(samples), path)


def find_month_files(folder: Path, source: str) -> dict[str, Path]:
    """Find the sample files of a source in a dataset folder: ``month=2026-01`` → file, in the order of time."""
    return {path.parent.name: path for path in sorted((folder / SAMPLES).glob(f"{MONTH_PREFIX}*/{source}.parquet"))}


def scan_month_files(files: Sequence[Path]) -> pl.LazyFrame:
    """Scan the given sample files, each of one month, as one lazy table; columns that a file lacks are null."""
    if not files:
        return make_empty_table(Samples).lazy()
    types = {name: column.dtype for name, column in Samples.columns().items()}
    return pl.scan_parquet(
        list(files), glob=False, hive_partitioning=False, schema=types, missing_columns="insert", extra_columns="ignore"
    )


def find_files_in_span(
    folder: Path, sources: Sequence[str], start: datetime | None, end: datetime | None
) -> list[Path]:
    """Find the sample files of some sources in a dataset folder whose months overlap a span, in the order of time.

    The span is from `start` to `end`; None leaves that side open.
    """
    first_folder = "" if start is None else f"{MONTH_PREFIX}{start.astimezone(UTC):%Y-%m}"
    last_folder = "~" if end is None else f"{MONTH_PREFIX}{end.astimezone(UTC):%Y-%m}"
    month_files = [(name, path) for source in sources for name, path in find_month_files(folder, source).items()]
    return [path for name, path in sorted(month_files) if first_folder <= name <= last_folder]
