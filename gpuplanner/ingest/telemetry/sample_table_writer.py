"""The samples table: built from a buffer, written by month, and merged with an existing folder."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl

from gpuplanner._version import __version__
from gpuplanner.core.errors import NAME_SOURCE_FIX, TraceFormatError, format_message
from gpuplanner.core.schema_checks import make_empty_table
from gpuplanner.core.schemas import OPTIONAL_SAMPLE_COLUMNS, Samples
from gpuplanner.ingest.chunked_tables import DERIVED_SAMPLE_COLUMNS, scan_month_files, split_by_month, write_chunks
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import REJECT_TABLE_SCHEMA, Rows, unique_file_names
from gpuplanner.ingest.quality_report import (
    Finding,
    build_quality_report,
    combine_findings,
    open_end_and_blank_line_findings,
    source_finding,
)
from gpuplanner.ingest.source_fields import format_utc
from gpuplanner.ingest.telemetry.coverage import MAX_GPU_GROUP_ROWS, SampleStatistics, summarise_samples
from gpuplanner.ingest.telemetry.metric_definitions import (
    ACTIVITY_SOURCES,
    DEVICE_KEY,
    DIMENSION_BY_QUANTITY,
    SAMPLE_KEY_COLUMNS,
    TELEMETRY_DEVICE_SCHEMA,
    Metric,
    choose_activity_source,
    find_device_counters,
    keep_best_counter,
    merge_device_counters,
)
from gpuplanner.ingest.telemetry.sample_buffer_and_reading_spans import (
    ColumnArrays,
    SampleBuffer,
    SpillFile,
    add_sample_ends,
)
from gpuplanner.ingest.telemetry.sample_windows import (
    CONTRADICTING_READING_REASON,
    MAX_SORTED_WINDOW_ROWS,
    REPEATED_READING_REASON,
    SampleJoiner,
    device_jobs_table,
)
from gpuplanner.ingest.telemetry.telemetry_join import JOB_SEPARATOR
from gpuplanner.ingest.telemetry.telemetry_quality import (
    FINDING_SAMPLE_COLUMNS,
    find_file_overlaps,
    is_sample_finding,
    rejected_row_findings,
    sample_findings,
)
from gpuplanner.ingest.text_files import FileBlocks, TextFile, read_lines

PROFILE_AND_JOB_COLUMNS = ("profile", "job_id")
"""Columns of samples with MIG profile and job; a merge takes them from whichever sample has them."""
ACTIVITY_COLUMNS = ("sm_activity", "activity_source")
"""Columns of samples with the activity and the counter that gave it; a merge takes them together."""
MERGED_VALUE_COLUMNS = tuple(
    name
    for name in Samples.columns()
    if name not in (*SAMPLE_KEY_COLUMNS, *PROFILE_AND_JOB_COLUMNS, *ACTIVITY_COLUMNS, *DERIVED_SAMPLE_COLUMNS)
)
"""All other value columns of samples; a merge takes each from the old sample, else from the new one."""

NEW_SAMPLE_SUFFIX = " of the new"
"""Suffix of the columns of new samples when they are joined to old samples."""


def merge_telemetry(
    old_dataset: Dataset, stored_months: Mapping[str, Path], new_dataset: Dataset, *, by_metric: bool
) -> tuple[Dataset, dict[str, pl.DataFrame]]:
    """Merge newly read telemetry of a source into its samples stored by month; nothing is written.

    Months are read one by one; those without new samples only if a device was now read by a better counter.

    Parameters
    ----------
    old_dataset : Dataset
        Coverage, rejects, quality report and provenance of the source so far.
    stored_months : mapping of str to Path
        Folder name of a month → file of samples.
    new_dataset : Dataset
        New samples with their origins.
    by_metric : bool
        Rows are readings of single metrics, of which several make one sample.

    Returns
    -------
    tuple of Dataset and dict of str to polars.DataFrame
        The whole source without its samples, and the samples of the months that changed.
    """
    assert new_dataset.sample_origins is not None, "as every reader gives it"
    new_samples = pl.concat([new_dataset.tables["samples"], new_dataset.sample_origins], how="horizontal")
    new_months = split_by_month(new_samples)
    known_counters = find_device_counters(scan_month_files(list(stored_months.values())))
    counters = pl.concat([known_counters, find_device_counters(new_dataset.tables["samples"])])
    counters_now = merge_device_counters(counters).join(known_counters, on=DEVICE_KEY, how="semi", nulls_equal=True)
    have_counters_improved = not merge_device_counters(known_counters).equals(counters_now)
    changed_months: dict[str, pl.DataFrame] = {}
    all_rejects = [new_dataset.rejects]
    for month in sorted({*stored_months, *new_months} if have_counters_improved else new_months):
        stored = scan_month_files([stored_months[month]] if month in stored_months else []).collect()
        samples = keep_best_counter(stored, counters)
        if month in new_months:
            fresh_samples = keep_best_counter(new_months[month], counters)
            samples, repeated = overlay_samples(samples, fresh_samples, by_metric=by_metric)
            samples = keep_best_counter(samples, counters)
            all_rejects += [repeated] if new_dataset.processes is None else []
        if not samples.equals(stored):
            changed_months[month] = samples
    frames = [
        changed_months[month].lazy() if month in changed_months else scan_month_files([stored_months[month]])
        for month in sorted({*stored_months, *changed_months})
    ]
    statistics = summarise_samples(pl.concat([frame.select(FINDING_SAMPLE_COLUMNS) for frame in frames]).collect())
    rejects = pl.concat([old_dataset.rejects, *all_rejects]).sort("file", "row", maintain_order=True)
    days = statistics.coverage()
    provenance = _merge_telemetry_facts(old_dataset.provenance, new_dataset.provenance, statistics, rejects.height)
    earlier = (Finding(*row) for table in (old_dataset.quality, new_dataset.quality) for row in table.iter_rows())
    file_findings = combine_findings(finding for finding in earlier if not is_sample_finding(finding.check))
    findings = [
        *rejected_row_findings(rejects, provenance["rows_in"]),
        *sample_findings(statistics, days),
        *file_findings,
    ]
    merged_dataset = Dataset({"coverage": days}, rejects, build_quality_report(findings), provenance)
    return merged_dataset.with_tables(processes=_merge_processes(old_dataset, new_dataset)), changed_months


def overlay_samples(old: pl.DataFrame, new: pl.DataFrame, *, by_metric: bool) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Merge stored samples with later read ones of the same time span; each device and instant occurs once.

    The first reading wins. For a source whose rows are samples, an old sample is unchanged; for one whose rows are
    readings of single metrics, each quantity that the old sample lacks is taken from the new one, activity from the
    better counter, and the jobs of both, which then share the device. Either way the order of files matters only
    between rows that contradict each other, and merging in several steps gives the same result as merging at once.

    Parameters
    ----------
    old, new : polars.DataFrame
        Table ``schemas.Samples``; the new one with ``file``, ``row`` and ``raw``.
    by_metric : bool
        Rows are readings of single metrics.

    Returns
    -------
    tuple of two polars.DataFrame
        Merged samples, and the reject table of repeated rows.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.core.schemas import Samples
    >>> from gpuplanner.core.schema_checks import conform
    >>> row = {"time": datetime(2026, 1, 1, tzinfo=UTC), "node": "n1", "gpu": 0, "activity_source": "none"}
    >>> first, second = (
    ...     conform(pl.DataFrame([row | read]), Samples, source="example")
    ...     for read in ({"power_w": 400.0}, {"power_w": 410.0, "memory_used_gib": 8.0})
    ... )
    >>> place = {"file": pl.lit("b.prom"), "row": pl.lit(1, pl.Int64), "raw": pl.lit("...")}
    >>> samples, again = overlay_samples(first, second.with_columns(**place), by_metric=True)
    >>> samples["power_w", "memory_used_gib"].row(0), again["reason"].to_list()
    ((400.0, 8.0), ['another value for the same device and time as an earlier row'])
    """
    columns = old.columns
    pairs = old.join(
        new, on=SAMPLE_KEY_COLUMNS, how="inner", suffix=NEW_SAMPLE_SUFFIX, nulls_equal=True, maintain_order="left"
    )
    only_new = new.join(pairs, on=SAMPLE_KEY_COLUMNS, how="anti", nulls_equal=True).select(columns)
    if not by_metric:
        is_equal = pl.all_horizontal(
            pl.col(name).eq_missing(pl.col(name + NEW_SAMPLE_SUFFIX))
            for name in (*MERGED_VALUE_COLUMNS, *ACTIVITY_COLUMNS)
        )
        reason = pl.when(is_equal).then(pl.lit(REPEATED_READING_REASON)).otherwise(pl.lit(CONTRADICTING_READING_REASON))
        return pl.concat([old, only_new]).sort(SAMPLE_KEY_COLUMNS), _reject_repeats(pairs, reason)
    is_better = _counter_rank(NEW_SAMPLE_SUFFIX) < _counter_rank("")
    is_equal_counter = _counter_rank(NEW_SAMPLE_SUFFIX) == _counter_rank("")
    differs = [pl.col(name) != pl.col(name + NEW_SAMPLE_SUFFIX) for name in MERGED_VALUE_COLUMNS]
    adds_value = [
        pl.col(name).is_null() & pl.col(name + NEW_SAMPLE_SUFFIX).is_not_null() for name in MERGED_VALUE_COLUMNS
    ]
    contradicts = pl.any_horizontal(
        *differs, is_equal_counter & (pl.col("sm_activity") != pl.col("sm_activity" + NEW_SAMPLE_SUFFIX))
    )
    is_shared = (pl.col("job_id") != pl.col("job_id" + NEW_SAMPLE_SUFFIX)).fill_null(value=False)
    reason = (
        pl.when(is_shared)
        .then(None)
        .when(contradicts.fill_null(False))
        .then(pl.lit(CONTRADICTING_READING_REASON))
        .when(~pl.any_horizontal(*adds_value, is_better))
        .then(pl.lit(REPEATED_READING_REASON))
    )
    job_ids = pl.concat_list(pl.col(name).str.split(JOB_SEPARATOR) for name in ("job_id", "job_id" + NEW_SAMPLE_SUFFIX))
    filled = pairs.with_columns(
        *(pl.coalesce(name, name + NEW_SAMPLE_SUFFIX) for name in (*MERGED_VALUE_COLUMNS, "profile")),
        pl.when(is_shared)
        .then(job_ids.list.unique().list.sort().list.join(JOB_SEPARATOR))
        .otherwise(pl.coalesce("job_id", "job_id" + NEW_SAMPLE_SUFFIX))
        .alias("job_id"),
        *(
            pl.when(is_better).then(pl.col(name + NEW_SAMPLE_SUFFIX)).otherwise(pl.col(name)).alias(name)
            for name in ACTIVITY_COLUMNS
        ),
    )
    only_old = old.join(pairs, on=SAMPLE_KEY_COLUMNS, how="anti", nulls_equal=True)
    samples = pl.concat([only_old, filled.select(columns), only_new]).sort(SAMPLE_KEY_COLUMNS)
    return samples, _reject_repeats(pairs, reason)


def _counter_rank(suffix: str) -> pl.Expr:
    """Return an expression for the rank of a sample's activity counter: 0 for the best, the highest for no activity.

    `suffix` is that of the columns of the sample: "", or :data:`NEW_SAMPLE_SUFFIX` for the new one of a pair.
    """
    rank_by_source = {rung: rank for rank, rung in enumerate(ACTIVITY_SOURCES)}
    rank = pl.col("activity_source" + suffix).replace_strict(rank_by_source)
    return pl.when(pl.col("sm_activity" + suffix).is_not_null()).then(rank).otherwise(len(ACTIVITY_SOURCES))


def _reject_repeats(pairs: pl.DataFrame, reason: pl.Expr) -> pl.DataFrame:
    """Return new samples that repeat or contradict old ones as reject rows; a null reason means accepted."""
    table = pairs.select("file", "row", reason.alias("reason"), "raw")
    return table.filter(pl.col("reason").is_not_null()).cast(REJECT_TABLE_SCHEMA)


def _merge_processes(old_dataset: Dataset, new_dataset: Dataset) -> pl.DataFrame | None:
    """Concatenate the processes of both datasets without identical rows; None if neither has any."""
    tables = [dataset.processes for dataset in (old_dataset, new_dataset) if dataset.processes is not None]
    return pl.concat(tables).unique(maintain_order=True) if tables else None


def _merge_telemetry_facts(
    old_facts: Mapping[str, Any], new_facts: Mapping[str, Any], statistics: SampleStatistics, n_rejected: int
) -> dict[str, Any]:
    """Merge the provenance of old and new telemetry.

    Parameters
    ----------
    old_facts, new_facts : mapping
        Provenance of the two.
    statistics : SampleStatistics
        Statistics of the merged samples.
    n_rejected : int
        Number of rejected rows of both.
    """
    first, last = statistics.span()
    rows_in = old_facts["rows_in"] + new_facts["rows_in"]
    return {
        **new_facts,
        "files": [*old_facts["files"], *new_facts["files"]],
        "rows_in": rows_in,
        "rows_kept": rows_in - n_rejected,
        "rows_rejected": n_rejected,
        "samples": statistics.samples,
        "span_start": format_utc(first),
        "span_end": format_utc(last),
        "gpu_hours": statistics.observed_gpu_hours(),
        "boards": sorted({*old_facts["boards"], *new_facts["boards"]}),
        "notes": list(dict.fromkeys([*old_facts["notes"], *new_facts["notes"]])),
        "gpuplanner": __version__,
    }


TELEMETRY_BLOCK_BYTES = 24 << 20
"""Text of a telemetry file that is read at a time [bytes]."""
QUANTITY_BY_OPTIONAL_COLUMN = {"sm_occupancy": "sm_occupancy", "energy_counter_j": "energy_counter", "xid": "xid"}
"""Column of samples that earlier versions did not write → quantity that it holds."""
assert set(QUANTITY_BY_OPTIONAL_COLUMN) == set(OPTIONAL_SAMPLE_COLUMNS)


@dataclass(frozen=True)
class SampleOutput:
    """Where telemetry samples are written, and how many rows are in memory at a time.

    - ``folder``: Folder that gets a file for each UTC month; None keeps all samples in memory.
    - ``name``: Name of these files, each in a folder ``month=2026-01``.
    - ``block_bytes``: Text that is read at a time [bytes].
    - ``window_rows``, ``group_rows``: Rows that are sorted at a time, by time and by GPU.
    """

    folder: Path | None = None
    name: str = "samples.parquet"
    block_bytes: int = TELEMETRY_BLOCK_BYTES
    window_rows: int = MAX_SORTED_WINDOW_ROWS
    group_rows: int = MAX_GPU_GROUP_ROWS

    def open_spill(self) -> BinaryIO:
        """Open a stream for intermediate rows: in memory, or a temporary file in the folder."""
        if self.folder is None:
            return io.BytesIO()
        return tempfile.TemporaryFile(dir=self.folder)


@dataclass
class SampleWriter:
    """Writer of the samples table, which joins all buffered rows to samples and stores them by month.

    - ``joiner``: Joiner that yields samples in the order of time.
    - ``output``: Where samples are written.
    - ``months``: Month, counted from year 0 → numbers of its batches in the spill file.
    """

    joiner: SampleJoiner
    output: SampleOutput
    months: dict[int, list[int]] = field(default_factory=dict)
    _used_numbers: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.sample_buffer: SampleBuffer = self.joiner.sample_buffer
        metrics = self.sample_buffer.metrics or {}
        read = {metrics[str(name)].quantity for (name,) in self.sample_buffer.names.rows if name in metrics}
        has_counter = "energy_counter" in read or self.sample_buffer.spill.has_column("energy_counter")
        self.statistics = SampleStatistics(
            self.joiner.devices, has_counter, self.output.open_spill(), self.output.group_rows
        )
        self._spill = SpillFile(self.output.open_spill(), "time")
        count = len(self.joiner.devices)
        self._has_samples, self._has_sm, self._has_better, self._has_engine, self._has_legacy = np.zeros(
            (5, count), bool
        )
        self._counters_by_month: dict[int, set[str]] = {}

    def write_samples(self) -> pl.DataFrame:
        """Build all samples and write them by month; without a folder they are returned, in order."""
        dropped_columns = {"rank", "memory_total", *(() if self.output.folder is None else ("id", "line"))}
        for month, rows in self.joiner.samples():
            if not len(rows["time"]):
                continue
            self.statistics.add_rows(rows)
            self._record_counters(month, rows)
            self.months.setdefault(month, []).append(len(self._spill))
            self._spill.append_batch({name: values for name, values in rows.items() if name not in dropped_columns})
        self.device_jobs = device_jobs_table(self.sample_buffer.device_jobs)
        self.device_counters = self._find_device_counters()
        if self.output.folder is None:
            frames = [frame for month in self.months for frame in self._iterate_frames(month, Samples.column_names())]
            return pl.concat(frames, rechunk=True) if frames else make_empty_table(Samples)
        for month in self.months:
            month_folder = self.output.folder / f"month={month // 12:04d}-{month % 12 + 1:02d}"
            absent = [
                name
                for name, quantity in QUANTITY_BY_OPTIONAL_COLUMN.items()
                if quantity not in self._counters_by_month[month]
            ]
            types = {
                name: column.dtype
                for name, column in Samples.columns().items()
                if name not in (*absent, *DERIVED_SAMPLE_COLUMNS)
            }
            month_folder.mkdir(parents=True, exist_ok=True)
            iterate_frames = partial(self._iterate_frames, month, list(types))
            write_chunks(iterate_frames, pl.Schema(types), month_folder / self.output.name)
        return make_empty_table(Samples)

    def _record_counters(self, month: int, rows: ColumnArrays) -> None:
        """Record which activity counters each device had in a month, and the devices that have samples."""
        rank = rows["rank"]
        self._has_samples[rank] = True
        self._used_numbers.update(np.unique(rows["who"]).tolist())
        has_value = {name: ~np.isnan(rows[name]) for name in DIMENSION_BY_QUANTITY if name in rows}
        month_counters = self._counters_by_month.setdefault(month, set())
        month_counters.update(
            name for name in QUANTITY_BY_OPTIONAL_COLUMN.values() if name in has_value and has_value[name].any()
        )
        no_values = np.zeros(len(rank), bool)
        has_sm, has_engine = has_value.get("sm_active", no_values), has_value.get("engine_active", no_values)
        self._has_sm[rank[has_sm]] = True
        self._has_better[rank[has_sm]] = True
        if has_sm.all():
            return
        has_side_counter = has_value.get("tensor_active", no_values) | has_value.get("dram_active", no_values)
        self._has_engine[rank[has_engine & ~has_sm]] = True
        self._has_better[rank[has_engine | has_side_counter]] = True
        legacy_only = has_value.get("gpu_util", no_values) & ~(has_sm | has_engine | has_side_counter)
        self._has_legacy[rank[legacy_only]] = True

    def _find_device_counters(self) -> pl.DataFrame | None:
        """Return the activity counters that each device ever had; None if no device had more than one kind."""
        partitioned_gpus = {
            device[:2]
            for device, has_samples in zip(self.joiner.devices, self._has_samples, strict=True)
            if has_samples and device[2] is not None
        }
        is_partitioned = np.array([device[:2] in partitioned_gpus for device in self.joiner.devices], bool)
        if (
            not (self._has_engine & self._has_sm).any()
            and not (self._has_legacy & (self._has_better | is_partitioned)).any()
        ):
            return None
        schema = {name: TELEMETRY_DEVICE_SCHEMA[name] for name in DEVICE_KEY}
        devices = pl.DataFrame(self.joiner.devices, schema, orient="row")
        counters = devices.with_columns(has_sm=pl.Series(self._has_sm), has_better=pl.Series(self._has_better))
        return counters.filter(pl.Series(self._has_samples))

    def _iterate_frames(self, month: int, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Yield columns of the samples of a month, batch by batch, as tables."""
        for number in self.months[month]:
            frame = self._build_frame(self._spill.read_batch(number))
            self.statistics.count_activity_sources(frame)
            yield frame.select(columns)

    def _build_frame(self, rows: ColumnArrays) -> pl.DataFrame:
        """Build the samples of a batch, with activity from the best counter of each device."""
        numbers = pl.Series(rows["who"])
        device_columns = {
            name: self.device_jobs[name].new_from_index(0, len(numbers))
            if self.device_jobs[name].n_unique() == 1
            else self.device_jobs[name].gather(numbers)
            for name in ("node", "gpu", "instance", "profile", "job_id", "mig_enabled")
        }
        values = {name: pl.Series(rows[name], nan_to_null=True) for name in DIMENSION_BY_QUANTITY if name in rows}
        time = pl.Series(rows["time"]).cast(pl.Datetime("us", "UTC"))
        samples = choose_activity_source(pl.DataFrame({"time": time, **device_columns, **values}))
        return samples if self.device_counters is None else keep_best_counter(samples, self.device_counters)

    def source_models(self) -> list[str]:
        """List the names of the GPU models of the samples, as the source writes them."""
        models = self.device_jobs["board"].gather(pl.Series(sorted(self._used_numbers), dtype=pl.UInt32))
        return models.drop_nulls().unique().sort().to_list()

    def sample_origins(self, file_names: list[str]) -> pl.DataFrame:
        """Return where each sample was first read: columns ``file`` (name), ``row`` (line) and ``raw`` (its text)."""
        batches = [self._spill.read_batch(number) for month in self.months for number in self.months[month]]
        ids, lines = (
            np.concatenate([batch[name] for batch in batches]) if batches else np.empty(0, np.int64)
            for name in ("id", "line")
        )
        file, raw = file_names_of(self.sample_buffer, ids, file_names), kept_texts_of(self.sample_buffer, ids)
        return pl.DataFrame({"file": file, "row": lines.astype(np.int64), "raw": raw})


def file_names_of(sample_buffer: SampleBuffer, ids: np.ndarray, names: list[str]) -> pl.Series:
    """Return the names of the files that the buffered rows with numbers `ids` are from, of the `names` of all files."""
    return pl.Series(names, dtype=pl.String).gather(pl.Series(sample_buffer.file_numbers_of(ids)))


def kept_texts_of(sample_buffer: SampleBuffer, ids: np.ndarray) -> pl.Series:
    """Return the raw lines of the buffered rows with numbers `ids`; null where these did not stay in memory."""
    return pl.concat([pl.Series(dtype=pl.String), *sample_buffer.texts]).gather(pl.Series(ids))


MAX_SHOWN_NAMES = 30
"""Most unread columns and metrics that the provenance names."""


@dataclass
class SourceNotes:
    """Facts on telemetry files, beside their rows, that a reader passes on: source, time zone, notes, findings.

    - ``source``: Name of the source.
    - ``time_zone``: Zone in which naive times were read.
    - ``notes``: Remarks for the provenance.
    - ``extra_findings``: Findings of this source.
    - ``processes``: Table ``schemas.Processes``; rows are then processes, of which a device and time may have
      several.
    - ``allow_empty``: Files without rows are valid.
    """

    source: str
    time_zone: str | None = None
    notes: Sequence[str] = ()
    extra_findings: Sequence[Finding] = ()
    processes: pl.DataFrame | None = None
    allow_empty: bool = False


def build_telemetry(rows: Rows, source_notes: SourceNotes, metrics: dict[str, Metric] | None = None) -> Dataset:
    """Build the telemetry dataset from rows in memory.

    Parameters
    ----------
    rows : Rows
        One row per device and time or, with `metrics`, per device, time and metric.
    source_notes : SourceNotes
        What the reader states about the files.
    metrics : dict of str to Metric, optional
        Metric name → definition.
    """
    sample_buffer = SampleBuffer(metrics)
    sample_buffer.add_rows(rows)
    return build_buffered_telemetry(sample_buffer, rows.files, source_notes)


def build_buffered_telemetry(
    sample_buffer: SampleBuffer,
    files: Sequence[TextFile],
    source_notes: SourceNotes,
    *,
    within_s: float = 0.0,
    output: SampleOutput | None = None,
    reread_blocks: FileBlocks | None = None,
) -> Dataset:
    """Build the telemetry dataset from all buffered rows.

    Parameters
    ----------
    sample_buffer : SampleBuffer
        All rows.
    files : sequence of TextFile
        Files that were read.
    source_notes : SourceNotes
        What the reader states about the files.
    within_s : float
        Longest time between readings of one sample [s].
    output : SampleOutput, optional
        Where samples are written; None keeps them in memory.
    reread_blocks : FileBlocks, optional
        The files, to quote the raw lines of repeated rows.

    Returns
    -------
    Dataset
        Samples (unless written to a folder), coverage and processes with rejects, quality report and provenance.

    Raises
    ------
    TraceFormatError
        If no sample is readable, or values are in an unexpected unit.
    """
    output = output or SampleOutput()
    file_names = unique_file_names(files)
    location = f"{source_notes.source}: {', '.join(file_names[:5])}"
    sample_buffer.unit_check.require_expected_units(location)
    rejects = pl.concat([pl.DataFrame(schema=REJECT_TABLE_SCHEMA), *sample_buffer.rejects])
    if not sample_buffer.good and not (source_notes.allow_empty and rejects.is_empty()):
        raise TraceFormatError(_no_samples_message(sample_buffer.count, rejects, location))
    joiner = SampleJoiner(sample_buffer, within_s, source_notes.processes is not None, output.window_rows)
    writer = SampleWriter(joiner, output)
    samples = add_sample_ends(writer.write_samples())
    statistics = writer.statistics.measure_gaps()
    days = statistics.coverage()
    repeated_rows = _find_repeated_rows(joiner, file_names, reread_blocks)
    rejects = pl.concat([rejects, repeated_rows.drop("id")])
    repeated_ids = repeated_rows["id"].to_numpy()
    first, last = statistics.span()
    unread_names = [name[:40] for name in (*sample_buffer.unused, *sorted(sample_buffer.other_metrics))]
    more_text = f" and {len(unread_names) - MAX_SHOWN_NAMES} more" if len(unread_names) > MAX_SHOWN_NAMES else ""
    provenance = {
        "source": source_notes.source,
        "files": [
            {"name": name, "sha256": file.sha256, "bytes": file.bytes}
            for name, file in zip(file_names, files, strict=True)
        ],
        "rows_in": sample_buffer.count,
        "rows_kept": sample_buffer.good - repeated_rows.height,
        "rows_rejected": rejects.height,
        "samples": statistics.samples,
        "span_start": format_utc(first),
        "span_end": format_utc(last),
        "gpu_hours": statistics.observed_gpu_hours(),
        "boards": writer.source_models(),
        "time_zone": source_notes.time_zone,
        "notes": [
            *source_notes.notes,
            *([f"not read: {', '.join(unread_names[:MAX_SHOWN_NAMES])}{more_text}"] if unread_names else []),
        ],
        "gpuplanner": __version__,
    }
    n_falls, file, line = sample_buffer.count_clock_falls(repeated_ids)
    clock_finding = source_finding("samples: clock went back", n_falls, f"{file_names[file]}, line {line}")
    findings = [
        *rejected_row_findings(rejects, sample_buffer.count),
        *sample_findings(statistics, days),
        *find_file_overlaps(sample_buffer.device_spans_without(repeated_ids), sample_buffer.devices.rows, file_names),
        *([clock_finding] if n_falls else []),
        *open_end_and_blank_line_findings(file_names, [file.ends_open for file in files], sample_buffer.blank),
        *source_notes.extra_findings,
    ]
    tables = {"coverage": days} if output.folder is not None else {"samples": samples, "coverage": days}
    if source_notes.processes is not None:
        tables["processes"] = source_notes.processes.unique(maintain_order=True)
    ordered_rejects = rejects.sort("file", "row", maintain_order=True)
    origins = writer.sample_origins(file_names) if sample_buffer.keeps_text and output.folder is None else None
    return Dataset(tables, ordered_rejects, build_quality_report(findings), provenance, sample_origins=origins)


def _find_repeated_rows(joiner: SampleJoiner, file_names: list[str], reread_blocks: FileBlocks | None) -> pl.DataFrame:
    """Return rows that repeat or contradict an earlier reading, as a reject table sorted by row number ``id``."""
    sample_buffer = joiner.sample_buffer
    frames = [
        pl.DataFrame({"id": id_and_line[0], "row": id_and_line[1]}).with_columns(reason=pl.lit(reason))
        for reason, repeated in (
            (REPEATED_READING_REASON, joiner.repeated),
            (CONTRADICTING_READING_REASON, joiner.contradicting),
        )
        for id_and_line in repeated
    ]
    schema = {"id": pl.Int64, "row": pl.Int64, "reason": pl.String}
    rows = pl.concat([pl.DataFrame(schema=schema), *frames]).sort("id")
    ids = rows["id"].to_numpy()
    numbers = sample_buffer.file_numbers_of(ids) if len(ids) else ids
    if sample_buffer.keeps_text or reread_blocks is None:
        raw = kept_texts_of(sample_buffer, ids)
    else:
        raw = _reread_texts(reread_blocks, rows.select("row", number=pl.Series(numbers, dtype=pl.Int64)))
    repeated = rows.with_columns(file=file_names_of(sample_buffer, ids, file_names), raw=raw)
    return repeated.select("id", *(pl.col(name).cast(dtype) for name, dtype in REJECT_TABLE_SCHEMA.items()))


def _reread_texts(blocks: FileBlocks, rows: pl.DataFrame) -> pl.Series:
    """Read the raw lines of rows from their files again, by the file and line numbers of `rows`."""
    lines_by_file: dict[int, set[int]] = {}
    for row, number in rows.select("row", "number").iter_rows():
        lines_by_file.setdefault(number, set()).add(row)
    texts = read_lines(blocks, lines_by_file)
    return pl.Series([texts[number, row] for row, number in rows.iter_rows()], dtype=pl.String)


def _no_samples_message(count: int, rejects: pl.DataFrame, location: str) -> str:
    """Return the error message for files without a readable sample."""
    reasons = rejects["reason"].value_counts(sort=True).head(5).iter_rows()
    reasons_text = "; ".join(f"{reason} in {rows} row(s)" for reason, rows in reasons)
    description = f"{count} rows and none of them: {reasons_text}" if count else "no rows"
    return format_message(location, "at least one readable sample", description, NAME_SOURCE_FIX)
