"""Readers of logs of monitors and exporters: CSV, ``dmon``, ``pmon``, ``dcgmi``, OpenMetrics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import polars as pl

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import Processes
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import Rows, unique_file_names
from gpuplanner.ingest.quality_report import Finding, source_finding
from gpuplanner.ingest.source_definition import matches_pattern
from gpuplanner.ingest.source_fields import UTC_TIME_DTYPE, Field, source_columns
from gpuplanner.ingest.telemetry.metric_definitions import (
    AMD_METRICS,
    DCGM_METRICS,
    DCGMI_METRICS,
    DIMENSION_BY_QUANTITY,
    EXPORTED_METRICS,
    NODE_CSV_METRICS,
    OPTIONAL_NODE_CSV_COLUMNS,
    OTHER_AMD_PARTITION_REASON,
    PERCENT_OR_RATIO,
    SMI_DMON_METRICS,
    SMI_UNITS,
    TELEMETRY_DEVICE_SCHEMA,
    Metric,
    is_blank,
    parse_device,
    parse_devices,
)
from gpuplanner.ingest.telemetry.sample_buffer_and_reading_spans import SampleBuffer
from gpuplanner.ingest.telemetry.sample_table_writer import (
    SampleOutput,
    SourceNotes,
    build_buffered_telemetry,
    build_telemetry,
)
from gpuplanner.ingest.telemetry.telemetry_row_parsing import (
    TelemetryOptions,
    first_line_names_columns,
    keep_data_lines,
    page_path,
    parse_times,
    read_pages,
    read_wide_values,
    require_known_unit,
    telemetry_reader,
)
from gpuplanner.ingest.text_files import FileBlocks, TextFile
from gpuplanner.ingest.typed_row_reader import PROMETHEUS_SAMPLE_PATTERN, parse_labels, read_row_blocks

MAX_CACHED_LABEL_TEXTS = 200_000
"""Most label texts whose parsed devices are remembered from block to block."""

MAX_SCRAPE_ROUND_S = 3.0
"""Longest time between readings of one scrape round in the DCGM CSV, which form one sample [s]."""

FIELD_BY_NODE_CSV_COLUMN = {
    "timestamp": Field("timestamp"),
    "gpu": Field("gpu", "number", high=1023),
    "gpu_model": Field("board", nullable=True),
    **{
        column: Field(column, nullable=True, optional=column in OPTIONAL_NODE_CSV_COLUMNS, at_once=True)
        for column in NODE_CSV_METRICS
    },
}
"""Column of the per-node CSV log → its field and type."""
FIELD_BY_DCGM_CSV_COLUMN = source_columns("dcgm_csv")
"""Column of the DCGM CSV (one row per metric, GPU and time) → its field and type."""


@telemetry_reader(first_line_names_columns("timestamp", "gpu", *list(NODE_CSV_METRICS)[:2]))
def read_node_csv(
    paths: Sequence[str | Path], options: TelemetryOptions, output: SampleOutput | None = None
) -> Dataset:
    """Read logs with one row per GPU and time, one file per node, as in the public H100 runs.

    Columns: see :data:`gpuplanner.ingest.telemetry.metric_definitions.NODE_CSV_METRICS`; ``timestamp`` in epoch seconds
    or with an offset. All but the energy counter are required, so that a renamed column is an error.
    """
    output, source = output or SampleOutput(), "node-csv"
    blocks = FileBlocks(paths, output.block_bytes)
    sample_buffer = SampleBuffer(stream=output.open_spill(), keeps_text=output.folder is None)
    for rows in read_row_blocks(blocks, FIELD_BY_NODE_CSV_COLUMN, source=source):
        sample_buffer.add_rows(_parse_node_rows(rows, options) if rows.good.width else rows)
    findings = file_node_findings(blocks.files, sample_buffer.count, options)
    notes = SourceNotes(source, options.tz, extra_findings=findings)
    return build_buffered_telemetry(sample_buffer, blocks.files, notes, output=output, reread_blocks=blocks)


def _parse_node_rows(rows: Rows, options: TelemetryOptions) -> Rows:
    """Parse a block of rows of the per-node CSV log to time, node, GPU and quantities."""
    rows = read_wide_values(parse_times(rows, "timestamp", options.tz, "node-csv"), NODE_CSV_METRICS)
    rows = rows.reject({"gpu: not a whole number": pl.col("gpu") % 1 != 0})
    return rows.with_columns(node=node_by_file(rows, options), gpu=pl.col("gpu").cast(pl.Int32))


@telemetry_reader(first_line_names_columns(*list(FIELD_BY_DCGM_CSV_COLUMN)[:3]))
def read_dcgm_csv(
    paths: Sequence[str | Path], options: TelemetryOptions, output: SampleOutput | None = None
) -> Dataset:
    r"""Read exporter readings in long form: timestamp, metric, gpu, host, value, label text.

    The metrics of a round are read up to 3 s apart; readings of a GPU within that time are one sample.

    Examples
    --------
    >>> import tempfile
    >>> head = "timestamp,metric_name,gpu_id,Hostname,value,labels_raw\n"
    >>> row = '2026-01-01T00:00:00Z,DCGM_FI_DEV_FB_USED,0,n1,2048,"Hostname=""n1"",gpu=""0"", "\n'
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.csv"
    ...     _ = path.write_text(head + row)
    ...     read_dcgm_csv([path]).samples["node", "gpu", "memory_used_gib"].row(0)
    ('n1', 0, 2.0)
    """
    output, source = output or SampleOutput(), "dcgm-csv"
    blocks = FileBlocks(paths, output.block_bytes)
    sample_buffer = SampleBuffer(DCGM_METRICS, stream=output.open_spill(), keeps_text=output.folder is None)
    device_table = _DeviceTable(options.node)
    for rows in read_row_blocks(blocks, FIELD_BY_DCGM_CSV_COLUMN, source=source):
        sample_buffer.add_rows(_parse_exporter_rows(rows, options, device_table) if rows.good.width else rows)
    source_notes = SourceNotes(source, options.tz)
    return build_buffered_telemetry(
        sample_buffer, blocks.files, source_notes, within_s=MAX_SCRAPE_ROUND_S, output=output, reread_blocks=blocks
    )


@dataclass
class _DeviceTable:
    """Cache of parsed devices by the text of their labels, used from block to block of a file."""

    node: str | None
    table: pl.DataFrame = field(
        default_factory=lambda: pl.DataFrame(schema={"labels": pl.String, **TELEMETRY_DEVICE_SCHEMA})
    )

    def look_up(self, labels: pl.Series) -> pl.DataFrame:
        """Return a table of label texts with their devices that covers at least these label texts."""
        texts = labels.unique(maintain_order=True)
        new_texts = texts.filter(~texts.is_in(self.table["labels"].implode(), nulls_equal=True))
        if len(new_texts) and self.table.height > MAX_CACHED_LABEL_TEXTS:
            self.table, new_texts = self.table.clear(), texts
        devices = [(text, *parse_device(None if text is None else parse_labels(text), self.node)) for text in new_texts]
        self.table.extend(pl.DataFrame(devices, schema=self.table.schema, orient="row"))
        return self.table


def _parse_exporter_rows(rows: Rows, options: TelemetryOptions, device_table: _DeviceTable) -> Rows:
    """Parse a block of readings of the DCGM CSV, and add the devices that their labels name."""
    rows = parse_times(rows, "timestamp", options.tz, "dcgm-csv")
    table = device_table.look_up(rows.good["labels"])
    located = rows.good.join(table, on="labels", how="left", maintain_order="left", nulls_equal=True)
    is_contradicting = (pl.col("hostname") != pl.col("node")) | (pl.col("gpu_id") != pl.col("gpu").cast(pl.String))
    fault = pl.coalesce("fault", pl.when(is_contradicting).then(pl.lit("columns and labels name different devices")))
    return replace(rows, good=located.with_columns(fault=fault))


def node_by_file(rows: Rows, options: TelemetryOptions) -> pl.Expr:
    """Return an expression for the node of each row, by file, for a source that does not name nodes."""
    numbers = rows.good["file"].unique()
    nodes = {number: options.node_of(rows.files[number].path) for number in numbers}
    if len(nodes) < 2:
        return pl.lit(next(iter(nodes.values()), None), pl.String)
    return pl.col("file").replace_strict(nodes, return_dtype=pl.String)


def file_node_findings(files: Sequence[TextFile], n_rows: int, options: TelemetryOptions) -> list[Finding]:
    """Return a finding that node names were taken from file names; empty if the user stated the node."""
    if options.node is not None:
        return []
    example = f"{unique_file_names(files)[0]}: {options.node_of(files[0].path)}"
    return [source_finding("rows: node of the file", n_rows, example)]


def assumption_findings(
    has_node_names: bool, n_counted_times: int, files: Sequence[TextFile], n_rows: int, options: TelemetryOptions
) -> list[Finding]:
    """Return findings on assumptions: node names from file names, and times counted from the origin.

    Parameters
    ----------
    has_node_names : bool
        Every row names its node.
    n_counted_times : int
        Rows whose time was counted from the origin.
    files : sequence of TextFile
        Files that were read.
    n_rows : int
        Number of all rows.
    options : TelemetryOptions
        Time zone, origin, interval, node and GPU that the user stated for files that lack them.
    """
    findings = [] if has_node_names else file_node_findings(files, n_rows, options)
    if n_counted_times:
        findings.append(source_finding("rows: counted times", n_counted_times))
    return findings


METRIC_BY_LOWER_NAME = {name.lower(): name for name in EXPORTED_METRICS}
"""Metric name in lower case → its name in the catalogue."""
OTHER_METRIC_PATTERN = re.compile(
    "(amd_|gpu_|nvidia_|slurm_|pcie_|xgmi_|go_|process_|promhttp_|python_|scrape_)", re.IGNORECASE
)
"""Metrics of GPU exporters that do not measure GPU use; all DCGM metrics are of GPUs."""
PROMETHEUS_RANGE_FUNCTION_PATTERN = re.compile(
    r"\b((?:avg|max|min|last)_over_time|increase|i?rate)\s*\(\s*([A-Za-z_:][\w:]*)\s*(?:\{[^}]*\}\s*)?\[(\d+)([smhd])"
)
"""Function over a time range, metric, length and unit of the range in a Prometheus query."""
SECONDS_BY_PROMETHEUS_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400}
"""Unit of time in a Prometheus query → seconds."""
RATE_COUNTER_METRICS = [
    name
    for name, metric in EXPORTED_METRICS.items()
    if DIMENSION_BY_QUANTITY[metric.quantity] == "rate" and not metric.unit.endswith("/s")
]
"""Metrics that count up and are converted to rates."""
UNIT_AMBIGUOUS_METRICS = [name for name, metric in EXPORTED_METRICS.items() if metric.unit == PERCENT_OR_RATIO]
"""Metrics that are in percent or from 0 to 1, depending on the exporter's version."""
AMD_POWER_METRICS = [name for name, metric in AMD_METRICS.items() if metric.quantity == "power"]
"""Power metrics of AMD's exporter, where 0 W means unknown."""
DCGM_ONLY_METRICS = "slurm_job_utilization_gpu", ("slurm_job_sm_occupancy_gpu", "slurm_job_tensor_gpu")
"""Metric of slurm-job-exporter that is SM activity if the metrics next to it are present, which only DCGM gives."""


def normalise_readings(rows: Rows) -> tuple[Rows, list[Finding]]:
    """Normalise exporter readings to the metric names of ``metric_definitions.EXPORTED_METRICS``, with findings.

    Names are matched in any letter case, as recording rules and agents write them. Of partitioned AMD GPUs, activity
    and power are read of the first partition only: for the others the exporter reports 0 or nothing, which is not idle.
    A power of 0 W is unknown. The rows have ``metric``, ``value`` as text, ``series`` (the labels) and the columns of a
    device.
    """
    if rows.good.is_empty():
        return rows, []
    names = rows.good["metric"].drop_nulls().unique(maintain_order=True).to_list()
    canonical = {name: canonical_metric(name) for name in names}
    if set(DCGM_ONLY_METRICS[1]) & set(canonical.values()):
        canonical = {
            name: f"{metric} of DCGM" if metric == DCGM_ONLY_METRICS[0] else metric
            for name, metric in canonical.items()
        }
    good = rows.good.with_columns(pl.col("metric").replace(canonical))
    other_names = {
        metric for metric in canonical.values() if metric not in EXPORTED_METRICS and OTHER_METRIC_PATTERN.match(metric)
    }
    partition = pl.col("fault") == OTHER_AMD_PARTITION_REASON
    partitions = good.filter(partition.fill_null(value=False)).height
    is_left_out = pl.col("metric").is_in(list(other_names)) | partition
    good = good.filter(~is_left_out.fill_null(value=False))
    good, findings = _unify_ratio_unit(good)
    no_power = pl.col("metric").is_in(AMD_POWER_METRICS) & (pl.col("value").cast(pl.Float64, strict=False) == 0)
    good = _counters_to_rates(good.with_columns(value=pl.when(~no_power.fill_null(value=False)).then("value")))
    count = rows.count - (rows.good.height - good.height)
    if partitions:
        findings.append(source_finding("metrics: other partitions", partitions))
    rows = replace(rows, good=good.drop("series"), count=count, unused=(*rows.unused, *sorted(other_names)))
    metric = pl.col("metric")
    of_gpus = metric.str.starts_with("DCGM_") | metric.is_in(list(EXPORTED_METRICS))
    return rows.reject({"not a GPU metric": ~of_gpus.fill_null(value=False)}), findings


def canonical_metric(name: str) -> str:
    """Return the name of a metric in the catalogue, or the name unchanged.

    Examples
    --------
    >>> [canonical_metric(name) for name in ("dcgm_fi_prof_gr_engine_active", "amd_gpu_gfx_activity", "other")]
    ['DCGM_FI_PROF_GR_ENGINE_ACTIVE', 'gpu_gfx_activity', 'other']
    """
    lower_name = name.lower()
    known_name = METRIC_BY_LOWER_NAME.get(lower_name) or METRIC_BY_LOWER_NAME.get(lower_name.removeprefix("amd_"))
    return known_name or (name.upper() if lower_name.startswith("dcgm_fi_") else name)


@dataclass(frozen=True)
class QueryMetric:
    """The metric that a Prometheus query reads, and the range function that it applies.

    - ``metric``: Name of the metric.
    - ``window_s``: Time before an instant that its value covers [s].
    - ``per_s``: Factor that makes the value a rate; None where it is none.
    """

    metric: str
    window_s: float
    per_s: float | None

    @classmethod
    def from_query(cls, query: str) -> QueryMetric | None:
        """Parse a query; None where it names no metric that is read.

        Examples
        --------
        >>> QueryMetric.from_query("avg by (gpu) (avg_over_time(DCGM_FI_DEV_GPU_UTIL{node='n1'}[5m]))")
        QueryMetric(metric='DCGM_FI_DEV_GPU_UTIL', window_s=300.0, per_s=None)
        """
        range_match = PROMETHEUS_RANGE_FUNCTION_PATTERN.search(query)
        names = [range_match[2]] if range_match else re.findall(r"[A-Za-z_:][\w:]*", query)
        known_metrics = [name for name in map(canonical_metric, names) if name in EXPORTED_METRICS]
        if not known_metrics:
            return None
        if range_match is None:
            return cls(known_metrics[0], 0.0, None)
        length_s = float(range_match[3]) * SECONDS_BY_PROMETHEUS_UNIT[range_match[4]]
        rates = {"increase": 1 / length_s, "rate": 1.0, "irate": 1.0}
        window_s = 0.0 if range_match[1] in ("last_over_time", "irate") else length_s
        return cls(known_metrics[0], window_s, rates.get(range_match[1]))

    def apply(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Name readings after the metric, shift them to the begin of their range, turn energy rates into power."""
        value, metric = pl.col("value"), self.metric
        if self.per_s is not None and EXPORTED_METRICS[metric].quantity == "energy_counter":
            watts = value.cast(pl.Float64, strict=False) * self.per_s / EXPORTED_METRICS[metric].divisor
            value, metric = watts.cast(pl.String), "DCGM_FI_DEV_POWER_USAGE"
        window = pl.duration(microseconds=round(self.window_s * 1e6))
        return rows.with_columns(pl.col("time") - window, pl.col("metric").fill_null(metric), value=value)


def _unify_ratio_unit(good: pl.DataFrame) -> tuple[pl.DataFrame, list[Finding]]:
    """Convert percent to shares for :data:`UNIT_AMBIGUOUS_METRICS`: a node with a value above 1 reports percent."""
    is_ambiguous = pl.col("metric").is_in(UNIT_AMBIGUOUS_METRICS).fill_null(value=False)
    if not good.select(is_ambiguous.any()).item():
        return good, []
    value = pl.col("value").cast(pl.Float64, strict=False)
    nodes = (
        good.filter(is_ambiguous)
        .group_by("node")
        .agg(percent=(value > 1).any(), whole=value.is_in([0.0, 1.0]).all(), rows=pl.len())
    )
    is_decided = pl.col("percent") | ~pl.col("whole")
    decisions = nodes.filter(is_decided)["percent"]
    common_decision = decisions[0] if decisions.n_unique() == 1 else None
    percent = nodes.with_columns(percent=pl.when(is_decided).then("percent").otherwise(common_decision))
    in_percent = is_ambiguous & pl.col("node").is_in(percent.filter("percent")["node"].implode())
    ratio = (value / 100).cast(pl.String)
    good = good.with_columns(value=pl.when(in_percent).then(ratio).otherwise("value"))
    unknown = percent.filter(pl.col("percent").is_null())
    if unknown.is_empty():
        return good, []
    example = f"{UNIT_AMBIGUOUS_METRICS[0]} on {unknown['node'][0]}"
    return good, [source_finding("metrics: unit not known", int(unknown["rows"].sum()), example)]


def _counters_to_rates(good: pl.DataFrame) -> pl.DataFrame:
    """Convert counters to their increase per second since the previous reading, summed over the links of a GPU."""
    is_counter = pl.col("metric").is_in(RATE_COUNTER_METRICS).fill_null(value=False)
    counters = good.filter(is_counter)
    if counters.is_empty():
        return good
    rise = pl.col("value").cast(pl.Float64, strict=False).diff().over("metric", "series")
    seconds = pl.col("time").diff().over("metric", "series").dt.total_microseconds() / 1e6
    rates = (
        counters.sort("time", maintain_order=True)
        .with_columns(value=pl.when(rise >= 0, seconds > 0).then(rise / seconds))
        .group_by("metric", "time", "node", "gpu", "instance", "job_id", maintain_order=True)
        .agg(
            pl.exclude("value").first(),
            pl.when(pl.col("value").count() > 0).then(pl.col("value").sum()).cast(pl.String).alias("value"),
        )
    )
    return pl.concat([good.filter(~is_counter), rates.select(good.columns)])


PLACEHOLDER_ORIGIN_TEXT = "1970-01-01T00:00:00Z"
"""Time of the first exporter page if pages have no times and none is stated."""
PLACEHOLDER_ORIGIN_END_EXPR = pl.lit("1970-01-02T00:00:00Z").str.to_datetime(time_unit="us", time_zone="UTC")
"""Instant before which times were counted from :data:`PLACEHOLDER_ORIGIN_TEXT`."""
EXPORTER_PAGE_PATTERN = (
    r"^(?:# (?:HELP|TYPE) )?(?:dcgm_fi_\w+|(?:amd_)?gpu_(?:(?:gfx|umc)_activity|\w+_vram|\w*power\w*)"
    r"|nvidia_smi_\w+|nvidia_gpu_\w+|slurm_job_\w+_gpu)[ {]"
)
"""Line by which a metrics page of a GPU exporter is recognised."""


@telemetry_reader(matches_pattern(EXPORTER_PAGE_PATTERN, re.M | re.I))
def read_exporter(paths: Sequence[str | Path], options: TelemetryOptions) -> Dataset:
    r"""Read pages of GPU exporters, in the order in which they were fetched.

    Pages have no times: the first was fetched at the origin, each other one interval later. Without an origin they are
    counted from 1970, with a warning. Samples with times keep them. ``HELP`` and ``TYPE`` lines are not rows.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "n1.prom"
    ...     _ = path.write_text('DCGM_FI_PROF_SM_ACTIVE{gpu="0",hostname="n1"} 0.25\n')
    ...     page = read_exporter([path], TelemetryOptions(origin="2026-01-01T00:00:00Z"))
    >>> page.samples["node", "sm_activity", "activity_source"].row(0)
    ('n1', 0.25, 'profiling')
    """
    known_hints = options if options.origin is not None else replace(options, origin=PLACEHOLDER_ORIGIN_TEXT)
    parse = partial(_parse_exporter_page, options=known_hints)
    rows = read_pages(paths, parse, source="dcgm-exporter", allow_duplicates=True)
    rows, findings = normalise_readings(rows)
    n_timeless = rows.good.filter(pl.col("time") < PLACEHOLDER_ORIGIN_END_EXPR).height if options.origin is None else 0
    if n_timeless:
        findings.append(source_finding("metrics: no times", n_timeless))
    return build_telemetry(rows, SourceNotes("dcgm-exporter", extra_findings=findings), EXPORTED_METRICS)


def _parse_exporter_page(page_rows: Rows, options: TelemetryOptions) -> Rows:
    """Parse the lines of an exporter page to readings with metric, device, value and time."""
    path, number = page_path(page_rows), int(page_rows.good["file"][0])
    is_open_metrics = page_rows.good["raw"][-1].strip() == "# EOF"
    page_rows = keep_data_lines(page_rows, ~pl.col("raw").str.strip_chars_start().str.starts_with("#"))
    parts = pl.col("raw").str.extract_groups(PROMETHEUS_SAMPLE_PATTERN).struct
    good = page_rows.good.with_columns(metric=parts[0], labels=parts[1].fill_null(""), value=parts[2], at=parts[3])
    page_rows = replace(page_rows, good=good).reject({"not a sample of the text format": pl.col("metric").is_null()})
    texts = page_rows.good["labels"].unique(maintain_order=True)
    table = parse_devices([parse_labels(text) for text in texts], options.node_of(path))
    per_second = 1e6 if is_open_metrics else 1e3
    instant = (pl.col("at").cast(pl.Float64, strict=False) * per_second).round().cast(pl.Int64, strict=False)
    if page_rows.good["at"].null_count():
        fetched = options.nth_instant(pl.lit(number), str(path), None if number else 0.0)
        instant = pl.coalesce(instant.cast(UTC_TIME_DTYPE), pl.when(pl.col("at").is_null()).then(fetched))
    joined = page_rows.good.join(table.with_columns(labels=texts), on="labels", how="left", maintain_order="left")
    good = joined.with_columns(time=instant.cast(UTC_TIME_DTYPE)).drop("at").rename({"labels": "series"})
    return replace(page_rows, good=good)


DEFAULT_SAMPLING_INTERVAL_S = 1.0
"""Default sampling interval of nvidia-smi dmon, nvidia-smi pmon and dcgmi dmon (option ``-d``) [s]."""

DCGMI_DMON_ROW_PATTERN = r"^\s*(GPU|GPU-I|GPU-CI)\s+([0-9]{1,4})\s+(.*)$"
"""A row of ``dcgmi dmon``: kind and number of the entity, values."""
UNKNOWN_PARENT_REASON = "an instance whose GPU the table does not name: fetch 'dcgmi discovery -c', or monitor one GPU"
"""Reject reason of a MIG instance whose GPU is unknown."""


@telemetry_reader(matches_pattern(r"\A#.*\bgpu\s"))
def read_smi_dmon(paths: Sequence[str | Path], options: TelemetryOptions) -> Dataset:
    r"""Read ``nvidia-smi dmon``.

    Its ``sm`` is the legacy counter, not the SM activity. Without the columns of ``-o DT``, rows of a GPU are counted
    from the origin, by default one second apart.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "n1.txt"
    ...     _ = path.write_text("# gpu  pwr  sm\n# Idx    W   %\n    0   70   -\n")
    ...     options = TelemetryOptions(origin="2026-01-01T00:00:00Z")
    ...     read_smi_dmon([path], options).samples["power_w", "sm_activity"].row(0)
    (70.0, None)
    """
    source = "smi-dmon"

    def parse_dmon_page(page_rows: Rows) -> Rows:
        """Convert the lines of ``nvidia-smi dmon`` to rows of readings."""
        path = page_path(page_rows)
        names, units = _read_dmon_header(page_rows, path, source)
        page_rows = _split_fields(page_rows, names)
        page_rows = _add_times(page_rows, names, options, path, pl.int_range(pl.len()).over("gpu"))
        metrics = {
            name: require_known_unit(SMI_DMON_METRICS[name], SMI_UNITS.get(unit, unit), f"{path}, column {name!r}")
            for name, unit in zip(names, units, strict=False)
            if name in SMI_DMON_METRICS
        }
        unused = tuple(name for name in names if name not in {*metrics, "gpu", "Date", "Time"})
        return replace(read_wide_values(page_rows, metrics), unused=unused)

    rows = _add_device(read_pages(paths, parse_dmon_page, source=source), options)
    return build_telemetry(rows, SourceNotes(source, options.tz, extra_findings=_counted_time_findings(rows, options)))


@telemetry_reader(matches_pattern(r"\A#.*\bgpu\s+pid\s"))
def read_smi_pmon(paths: Sequence[str | Path], options: TelemetryOptions) -> Dataset:
    r"""Read ``nvidia-smi pmon``: processes on the GPUs.

    The samples prove that a GPU was observed; activity per process is a share of the legacy counter that cannot be
    added up, so it is not read. A GPU without a process has a row of dashes.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "n1.txt"
    ...     _ = path.write_text("# gpu pid type command\n# Idx # C/G name\n 0 77 C NVIDIA Share.exe\n")
    ...     read_smi_pmon([path], TelemetryOptions(origin="2026-01-01T00:00:00Z")).processes["pid", "command"].row(0)
    (77, 'NVIDIA Share.exe')
    """
    source = "smi-pmon"

    def parse_pmon_page(page_rows: Rows) -> Rows:
        """Convert the lines of ``nvidia-smi pmon`` to rows of processes."""
        path = page_path(page_rows)
        names, _ = _read_dmon_header(page_rows, path, source, required=("gpu", "pid", "type", "command"))
        page_rows = _split_fields(page_rows, names)
        pairs = list(zip(page_rows.good["gpu"], page_rows.good["pid"], strict=True))
        rounds = pl.lit(pl.Series(_number_sampling_rounds(pairs), dtype=pl.Int64))
        page_rows = _add_times(page_rows, names, options, path, rounds)
        number = pl.col("pid").cast(pl.Int64, strict=False)
        page_rows = page_rows.reject({"pid: not a number": number.is_null() & ~is_blank(pl.col("pid"))})
        memory = {"fb": Metric("memory_used", "MiB")} if "fb" in names else {}
        return replace(read_wide_values(page_rows, memory), unused=("sm", "mem", "enc", "dec"))

    rows = _add_device(read_pages(paths, parse_pmon_page, source=source), options)
    pid = pl.col("pid")
    process_columns = {"pid": pid.cast(pl.Int64), "kind": pl.col("type"), "memory_gib": pl.col("memory_used")}
    processes = rows.good.filter(~is_blank(pid)).select("time", "node", "gpu", "command", **process_columns)
    rows = rows.with_columns(memory_used=pl.lit(None, pl.Float64))
    table = conform(processes, Processes, source="processes")
    findings = _counted_time_findings(rows, options)
    return build_telemetry(rows, SourceNotes(source, options.tz, extra_findings=findings, processes=table))


@telemetry_reader(matches_pattern(r"^\s*#\s*Entity\s", re.M))
def read_dcgmi_dmon(paths: Sequence[str | Path], options: TelemetryOptions) -> Dataset:
    r"""Read ``dcgmi dmon``, with GPUs and MIG instances as entities.

    DCGM numbers instances per node and not per GPU. Their GPU is known only where the table names a single one; the
    numbers are those of DCGM, not those of nvidia-smi.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "n1.txt"
    ...     _ = path.write_text("#Entity  SMACT  TENSO\nID\nGPU 0  N/A  N/A\nGPU 0  0.5  0.25\n")
    ...     read_dcgmi_dmon([path], TelemetryOptions(origin="2026-01-01T00:00:00Z")).samples["sm_activity"].to_list()
    [None, 0.5]
    """
    source = "dcgmi-dmon"

    def parse_dcgmi_page(page_rows: Rows) -> Rows:
        """Convert the lines of ``dcgmi dmon`` to rows of readings."""
        path = page_path(page_rows)
        titles = page_rows.good["raw"].filter(page_rows.good["raw"].str.contains(r"^\s*#\s*Entity\s"))
        if titles.is_empty():
            _raise_missing_header(path, "# Entity", source)
        names = titles[0].replace("#", " ").split()[1:]
        page_rows = keep_data_lines(page_rows, ~pl.col("raw").str.contains(r"^\s*(#|I[dD]\b)"))
        parts = pl.col("raw").str.extract_groups(DCGMI_DMON_ROW_PATTERN).struct
        good = page_rows.good.with_columns(entity=parts[0], number=parts[1].cast(pl.Int32), tail=parts[2])
        page_rows = replace(page_rows, good=good).reject(
            {
                "not a row of a GPU or an instance": pl.col("entity").is_null(),
                "a compute instance: its GPU instance counts": pl.col("entity") == "GPU-CI",
            }
        )
        page_rows = _split_fields(page_rows, names, "tail")
        gpus = page_rows.good.filter(pl.col("entity") == "GPU")["number"].unique()
        page_rows = page_rows.reject({UNKNOWN_PARENT_REASON: (pl.col("entity") == "GPU-I") & pl.lit(len(gpus) != 1)})
        parent = pl.lit(gpus[0] if len(gpus) else None, pl.Int32)
        is_full_gpu = pl.col("entity") == "GPU"
        sample_number = pl.int_range(pl.len()).over("entity", "number")
        good = page_rows.good.with_columns(
            gpu=pl.when(is_full_gpu).then("number").otherwise(parent).cast(pl.String),
            instance=pl.when(~is_full_gpu).then("number"),
            time=options.nth_instant(sample_number, str(path), DEFAULT_SAMPLING_INTERVAL_S),
        )
        unused = tuple(name for name in names if name not in DCGMI_METRICS)
        metrics = {name: DCGMI_METRICS[name] for name in names if name in DCGMI_METRICS}
        return replace(read_wide_values(replace(page_rows, good=good), metrics), unused=unused)

    rows = _add_device(read_pages(paths, parse_dcgmi_page, source=source), options)
    return build_telemetry(rows, SourceNotes(source, options.tz, extra_findings=_counted_time_findings(rows, options)))


def _read_dmon_header(
    page_rows: Rows, path: Path, source: str, required: tuple[str, ...] = ("gpu",)
) -> tuple[list[str], list[str]]:
    """Read column names and units from the two header lines of ``dmon`` or ``pmon``, which repeat every few rows.

    Parameters
    ----------
    page_rows : Rows
        Lines of a file.
    path : Path
        The file, for messages.
    source : str
        Name of the source, for messages.
    required : tuple of str
        Columns that must be present.
    """
    header_lines = page_rows.good["raw"].filter(page_rows.good["raw"].str.starts_with("#")).to_list()
    names, units = (header_line.removeprefix("#").split() for header_line in [*header_lines[:2], "", ""][:2])
    names = [{"date": "Date", "time": "Time"}.get(name.casefold(), name) for name in names]
    if not set(required) <= set(names):
        _raise_missing_header(path, f"# {' '.join(required)}", source)
    other_headers = [header_line for header_line in header_lines[::2] if header_line.split() != header_lines[0].split()]
    if other_headers or len(units) < len(names):
        got = repr(other_headers[0]) if other_headers else f"{len(units)} units for {len(names)} columns"
        todo = "Split the file where its columns change."
        raise TraceFormatError(str(path), "the same two header lines throughout", got, todo)
    return names, units


def _split_fields(page_rows: Rows, names: Sequence[str], column: str = "raw") -> Rows:
    """Split data lines at blanks into named fields; the command, last in a pmon row, may contain blanks."""
    page_rows = keep_data_lines(page_rows, ~pl.col("raw").str.starts_with("#"))
    last_field = r"(\S.*?)" if names[-1] in ("command", "name") else r"(\S+)"
    pattern = r"^\s*" + r"\s+".join([*([r"(\S+)"] * (len(names) - 1)), last_field]) + r"\s*$"
    parts = pl.col(column).str.extract_groups(pattern).struct
    page_rows = page_rows.with_columns(**{name: parts[position] for position, name in enumerate(names)})
    return page_rows.reject({"the fields do not match the header": pl.col(names[0]).is_null()})


def _add_times(
    page_rows: Rows, names: Sequence[str], options: TelemetryOptions, path: Path, sample_number: pl.Expr
) -> Rows:
    """Add the time of each ``dmon`` or ``pmon`` row: from its date and time columns, or counted from the origin.

    Parameters
    ----------
    page_rows : Rows
        Rows of a file.
    names : sequence of str
        Its columns.
    options : TelemetryOptions
        Zone, origin and interval that the user stated.
    path : Path
        The file, for messages.
    sample_number : polars.Expr
        Number of the sample of each row.
    """
    if {"Date", "Time"} <= set(names):
        day = pl.col("Date").str.replace(r"^(\d{4})(\d{2})(\d{2})$", "$1-$2-$3")
        page_rows = page_rows.with_columns(stamp=day + " " + pl.col("Time"))
        return parse_times(page_rows, "stamp", options.tz, str(path))
    instant = options.nth_instant(sample_number, str(path), DEFAULT_SAMPLING_INTERVAL_S)
    return page_rows.with_columns(time=instant)


def _number_sampling_rounds(pairs: Sequence[tuple[str, str]]) -> list[int]:
    """Number the sampling rounds of ``pmon`` rows: a new round begins when a pair of GPU and process occurs again."""
    pairs_in_round: set[tuple[str, str]] = set()
    rounds, current = [], 0
    for pair in pairs:
        if pair in pairs_in_round:
            pairs_in_round, current = set(), current + 1
        pairs_in_round.add(pair)
        rounds.append(current)
    return rounds


def _add_device(rows: Rows, options: TelemetryOptions) -> Rows:
    """Add GPU number and node to rows."""
    gpu = pl.col("gpu").cast(pl.Int32, strict=False)
    return rows.with_columns(gpu=gpu, node=node_by_file(rows, options))


def _counted_time_findings(rows: Rows, options: TelemetryOptions) -> list[Finding]:
    """Return findings on node names taken from file names, and on times counted from the origin."""
    n_counted_times = 0 if options.origin is None else rows.count
    return assumption_findings(False, n_counted_times, rows.files, rows.count, options)


def _raise_missing_header(path: Path, header: str, source: str) -> NoReturn:
    """Refuse a file without its header line."""
    expected, todo = f"a header line {header!r} of {source}", "Keep the header of the output."
    raise TraceFormatError(str(path), expected, "no such line", todo)
