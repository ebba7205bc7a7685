"""Logs of monitors and exporters: CSV, ``dmon``, ``pmon``, ``dcgmi``, OpenMetrics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from gpuplanner.core.errors import TraceFormatError, message
from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import Processes
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import Rows, names_of
from gpuplanner.ingest.quality_report import Finding, source_finding
from gpuplanner.ingest.row_reader import SAMPLE, parse_labels, read_row_blocks
from gpuplanner.ingest.source_definition import matches
from gpuplanner.ingest.source_fields import INSTANT, Field, source_columns
from gpuplanner.ingest.telemetry.metric_definitions import (
    AMD,
    DCGM,
    DCGMI,
    DEVICE,
    EXPORTED,
    NODE_CSV,
    NODE_CSV_OPTIONAL,
    OTHER_PARTITION,
    PERCENT_OR_RATIO,
    QUANTITIES,
    SMI_DMON,
    SMI_UNITS,
    Metric,
    device,
    devices,
    is_blank,
)
from gpuplanner.ingest.telemetry.sample_buffer import Gathering
from gpuplanner.ingest.telemetry.sample_table import Story, Way, finish, telemetry_of
from gpuplanner.ingest.telemetry.telemetry_files import (
    Hints,
    data_only,
    header_begins,
    known_unit,
    path_of,
    read_pages,
    read_wide,
    reads,
    with_instants,
)
from gpuplanner.ingest.text_files import FileBlocks, TextFile

MANY_LABELS = 200_000
"""Texts of labels that are remembered from block to block."""

ROUND_S = 3.0
"""Readings of one round of the DCGM CSV are up to this far apart."""

NODE_COLUMNS = {
    "timestamp": Field("timestamp"),
    "gpu": Field("gpu", "number", high=1023),
    "gpu_model": Field("board", nullable=True),
    **{column: Field(column, nullable=True, optional=column in NODE_CSV_OPTIONAL, at_once=True) for column in NODE_CSV},
}
READING_COLUMNS = source_columns("dcgm_csv")


@reads(header_begins("timestamp", "gpu", *list(NODE_CSV)[:2]))
def read_node_csv(paths: Sequence[str | Path], hints: Hints, way: Way | None = None) -> Dataset:
    """Read logs with one row per GPU and time, one file per node, as of the public H100 runs.

    Columns: see :data:`gpuplanner.ingest.telemetry.metric_definitions.NODE_CSV`; ``timestamp`` in epoch seconds or
    with an
    offset. All but the energy counter are needed: a column that was renamed is an error.
    """
    way, source = way or Way(), "node-csv"
    blocks = FileBlocks(paths, way.block_bytes)
    gathered = Gathering(stream=way.room(), keeps_text=way.into is None)
    for rows in read_row_blocks(blocks, NODE_COLUMNS, source=source):
        gathered.add(_of_node(rows, hints) if rows.good.width else rows)
    more = node_finding(blocks.files, gathered.count, hints)
    return finish(gathered, blocks.files, Story(source, hints.tz, more=more), way=way, again=blocks)


def _of_node(rows: Rows, hints: Hints) -> Rows:
    """Rows of a block of a node's log."""
    rows = read_wide(with_instants(rows, "timestamp", hints.tz, "node-csv"), NODE_CSV)
    rows = rows.reject({"gpu: not a whole number": pl.col("gpu") % 1 != 0})
    return rows.with_columns(node=node_by_file(rows, hints), gpu=pl.col("gpu").cast(pl.Int32))


@reads(header_begins(*list(READING_COLUMNS)[:3]))
def read_dcgm_csv(paths: Sequence[str | Path], hints: Hints, way: Way | None = None) -> Dataset:
    r"""Read exporter readings in long form: timestamp, metric, gpu, host, value, label text.

    The metrics of a round are read up to 3 s apart; readings of a GPU within that are one sample.

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
    way, source = way or Way(), "dcgm-csv"
    blocks = FileBlocks(paths, way.block_bytes)
    gathered = Gathering(DCGM, stream=way.room(), keeps_text=way.into is None)
    devices = _Devices(hints.node)
    for rows in read_row_blocks(blocks, READING_COLUMNS, source=source):
        gathered.add(_of_exporter(rows, hints, devices) if rows.good.width else rows)
    story = Story(source, hints.tz)
    return finish(gathered, blocks.files, story, within_s=ROUND_S, way=way, again=blocks)


@dataclass
class _Devices:
    """Devices by the labels that name them, remembered from block to block."""

    node: str | None
    table: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema={"labels": pl.String, **DEVICE}))

    def of(self, labels: pl.Series) -> pl.DataFrame:
        """The devices that labels name, among others."""
        texts = labels.unique(maintain_order=True)
        fresh = texts.filter(~texts.is_in(self.table["labels"].implode(), nulls_equal=True))
        if len(fresh) and self.table.height > MANY_LABELS:
            self.table, fresh = self.table.clear(), texts
        named = [(text, *device(None if text is None else parse_labels(text), self.node)) for text in fresh]
        self.table.extend(pl.DataFrame(named, schema=self.table.schema, orient="row"))
        return self.table


def _of_exporter(rows: Rows, hints: Hints, devices: _Devices) -> Rows:
    """Readings of a block, with the devices that their labels name."""
    rows = with_instants(rows, "timestamp", hints.tz, "dcgm-csv")
    table = devices.of(rows.good["labels"])
    named = rows.good.join(table, on="labels", how="left", maintain_order="left", nulls_equal=True)
    other = (pl.col("hostname") != pl.col("node")) | (pl.col("gpu_id") != pl.col("gpu").cast(pl.String))
    fault = pl.coalesce("fault", pl.when(other).then(pl.lit("columns and labels name different devices")))
    return replace(rows, good=named.with_columns(fault=fault))


def node_by_file(rows: Rows, hints: Hints) -> pl.Expr:
    """Node of each row of a source that does not name nodes."""
    numbers = rows.good["file"].unique()
    nodes = {number: hints.node_of(rows.files[number].path) for number in numbers}
    if len(nodes) < 2:
        return pl.lit(next(iter(nodes.values()), None), pl.String)
    return pl.col("file").replace_strict(nodes, return_dtype=pl.String)


def node_finding(files: Sequence[TextFile], rows: int, hints: Hints) -> list[Finding]:
    """Say where the node names of so many rows come from, if the source has none."""
    if hints.node is not None:
        return []
    example = f"{names_of(files)[0]}: {hints.node_of(files[0].path)}"
    return [source_finding("rows: node of the file", rows, example)]


def found_on_trust(named: bool, counted: int, files: Sequence[TextFile], rows: int, hints: Hints) -> list[Finding]:
    """What is not in the files: nodes, unless every row was `named`, and the times of `counted` rows."""
    more = [] if named else node_finding(files, rows, hints)
    if counted:
        more.append(source_finding("rows: counted times", counted))
    return more


PREFIX = "amd_"
"""What AMD's exporter may be told to put before each of its names."""
CANONICAL = {name.lower(): name for name in EXPORTED}
NOT_READ = re.compile("(amd_|gpu_|nvidia_|slurm_|pcie_|xgmi_|go_|process_|promhttp_|python_|scrape_)", re.IGNORECASE)
"""Metrics of such exporters that are not of how busy GPUs are, beside those of DCGM, which are all of GPUs."""
OVER_TIME = re.compile(
    r"\b((?:avg|max|min|last)_over_time|increase|i?rate)\s*\(\s*([A-Za-z_:][\w:]*)\s*(?:\{[^}]*\}\s*)?\[(\d+)([smhd])"
)
"""Function over a range of time, metric, length and unit of the range in a query of Prometheus."""
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
POWER = "DCGM_FI_DEV_POWER_USAGE"
COUNTERS = [
    name
    for name, metric in EXPORTED.items()
    if QUANTITIES[metric.quantity] == "rate" and not metric.unit.endswith("/s")
]
UNDECIDED = [name for name, metric in EXPORTED.items() if metric.unit == PERCENT_OR_RATIO]
AMD_POWER = [name for name, metric in AMD.items() if metric.quantity == "power"]
BY_DCGM = "slurm_job_utilization_gpu", ("slurm_job_sm_occupancy_gpu", "slurm_job_tensor_gpu")
"""Metric of slurm-job-exporter that is SM activity where the other ones are there, which DCGM alone gives."""


def exported_readings(rows: Rows) -> tuple[Rows, list[Finding]]:
    """Readings with the names of ``metric_definitions.EXPORTED``, and what is to be said of them.

    Names are known in any case of their letters, as recording rules and agents write them. Activity and power of AMD
    GPUs that are partitioned are read of the first partition alone: of the others the exporter says 0 or nothing,
    which is not idle. A power of 0 W is one that is not known.
    The rows have ``metric``, ``value`` as text, ``series`` (the labels) and the columns of a device.
    """
    if rows.good.is_empty():
        return rows, []
    names = rows.good["metric"].drop_nulls().unique(maintain_order=True).to_list()
    known = {name: canonical(name) for name in names}
    if set(BY_DCGM[1]) & set(known.values()):
        known = {name: f"{one} of DCGM" if one == BY_DCGM[0] else one for name, one in known.items()}
    good = rows.good.with_columns(pl.col("metric").replace(known))
    other = {one for one in known.values() if one not in EXPORTED and NOT_READ.match(one)}
    partition = pl.col("fault") == OTHER_PARTITION
    partitions = good.filter(partition.fill_null(value=False)).height
    left_out = pl.col("metric").is_in(list(other)) | partition
    good = good.filter(~left_out.fill_null(value=False))
    good, findings = _in_one_unit(good)
    no_power = pl.col("metric").is_in(AMD_POWER) & (pl.col("value").cast(pl.Float64, strict=False) == 0)
    good = _rates(good.with_columns(value=pl.when(~no_power.fill_null(value=False)).then("value")))
    count = rows.count - (rows.good.height - good.height)
    if partitions:
        findings.append(source_finding("metrics: other partitions", partitions))
    rows = replace(rows, good=good.drop("series"), count=count, unused=(*rows.unused, *sorted(other)))
    metric = pl.col("metric")
    of_gpus = metric.str.starts_with("DCGM_") | metric.is_in(list(EXPORTED))
    return rows.reject({"not a GPU metric": ~of_gpus.fill_null(value=False)}), findings


def canonical(name: str) -> str:
    """Name of a metric in the catalogue, or the name as it is.

    Examples
    --------
    >>> canonical("dcgm_fi_prof_gr_engine_active"), canonical("amd_gpu_gfx_activity"), canonical("other")
    ('DCGM_FI_PROF_GR_ENGINE_ACTIVE', 'gpu_gfx_activity', 'other')
    """
    folded = name.lower()
    found = CANONICAL.get(folded) or CANONICAL.get(folded.removeprefix(PREFIX))
    return found or (name.upper() if folded.startswith("dcgm_fi_") else name)


@dataclass(frozen=True)
class QueryMetric:
    """What a query makes of a metric.

    - ``metric``: Name of the metric.
    - ``window_s``: The value at an instant is of so long before it [s].
    - ``per_s``: What the value is multiplied by to be a rate; None where it is none.
    """

    metric: str
    window_s: float
    per_s: float | None

    @classmethod
    def of(cls, query: str) -> QueryMetric | None:
        """What a query asks for, or None where it names no metric that is read.

        Examples
        --------
        >>> QueryMetric.of("avg by (gpu) (avg_over_time(DCGM_FI_DEV_GPU_UTIL{node='n1'}[5m]))")
        QueryMetric(metric='DCGM_FI_DEV_GPU_UTIL', window_s=300.0, per_s=None)
        """
        over = OVER_TIME.search(query)
        names = [over[2]] if over else re.findall(r"[A-Za-z_:][\w:]*", query)
        known = [name for name in map(canonical, names) if name in EXPORTED]
        if not known:
            return None
        if over is None:
            return cls(known[0], 0.0, None)
        length_s = float(over[3]) * SECONDS[over[4]]
        rates = {"increase": 1 / length_s, "rate": 1.0, "irate": 1.0}
        window_s = 0.0 if over[1] in ("last_over_time", "irate") else length_s
        return cls(known[0], window_s, rates.get(over[1]))

    def apply(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Readings at the begin of the time that they are of, under the name of the metric."""
        value, metric = pl.col("value"), self.metric
        if self.per_s is not None and EXPORTED[metric].quantity == "energy_counter":
            watts = value.cast(pl.Float64, strict=False) * self.per_s / EXPORTED[metric].divisor
            value, metric = watts.cast(pl.String), POWER
        window = pl.duration(microseconds=round(self.window_s * 1e6))
        return rows.with_columns(pl.col("time") - window, pl.col("metric").fill_null(metric), value=value)


def _in_one_unit(good: pl.DataFrame) -> tuple[pl.DataFrame, list[Finding]]:
    """Shares from 0 to 1 of metrics that are in percent on some nodes: those that have a value above 1."""
    mine = pl.col("metric").is_in(UNDECIDED).fill_null(value=False)
    if not good.select(mine.any()).item():
        return good, []
    value = pl.col("value").cast(pl.Float64, strict=False)
    nodes = (
        good.filter(mine)
        .group_by("node")
        .agg(percent=(value > 1).any(), whole=value.is_in([0.0, 1.0]).all(), rows=pl.len())
    )
    is_decided = pl.col("percent") | ~pl.col("whole")
    decided = nodes.filter(is_decided)["percent"]
    of_others = decided[0] if decided.n_unique() == 1 else None
    percent = nodes.with_columns(percent=pl.when(is_decided).then("percent").otherwise(of_others))
    in_percent = mine & pl.col("node").is_in(percent.filter("percent")["node"].implode())
    ratio = (value / 100).cast(pl.String)
    good = good.with_columns(value=pl.when(in_percent).then(ratio).otherwise("value"))
    unknown = percent.filter(pl.col("percent").is_null())
    if unknown.is_empty():
        return good, []
    example = f"{UNDECIDED[0]} on {unknown['node'][0]}"
    return good, [source_finding("metrics: unit not known", int(unknown["rows"].sum()), example)]


def _rates(good: pl.DataFrame) -> pl.DataFrame:
    """Readings of counters as what was added a second since the reading before, summed over the links of a GPU."""
    mine = pl.col("metric").is_in(COUNTERS).fill_null(value=False)
    counters = good.filter(mine)
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
    return pl.concat([good.filter(~mine), rates.select(good.columns)])


NO_ORIGIN = "1970-01-01T00:00:00Z"
END_OF_DAY = pl.lit("1970-01-02T00:00:00Z").str.to_datetime(time_unit="us", time_zone="UTC")
END = "# EOF"
"""Last line of an OpenMetrics file; a Prometheus page has none, which tells their times apart."""


PAGE = (
    r"^(?:# (?:HELP|TYPE) )?(?:dcgm_fi_\w+|(?:amd_)?gpu_(?:(?:gfx|umc)_activity|\w+_vram|\w*power\w*)"
    r"|nvidia_smi_\w+|nvidia_gpu_\w+|slurm_job_\w+_gpu)[ {]"
)


@reads(matches(PAGE, re.M | re.I))
def read_exporter(paths: Sequence[str | Path], hints: Hints) -> Dataset:
    r"""Read pages of exporters of GPUs, in the order in which they were fetched.

    Pages have no times: the first was fetched at the origin, each other an interval later. Where no origin is given,
    they are counted from 1970, with a warning. Samples that do carry times keep them. ``HELP`` and ``TYPE`` lines are
    not rows.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "n1.prom"
    ...     _ = path.write_text('DCGM_FI_PROF_SM_ACTIVE{gpu="0",hostname="n1"} 0.25\n')
    ...     page = read_exporter([path], Hints(origin="2026-01-01T00:00:00Z"))
    >>> page.samples["node", "sm_activity", "activity_source"].row(0)
    ('n1', 0.25, 'profiling')
    """
    asked = hints if hints.origin is not None else replace(hints, origin=NO_ORIGIN)
    rows = read_pages(paths, lambda page: _parse(page, asked), source="dcgm-exporter", twins=True)
    rows, found = exported_readings(rows)
    timeless = rows.good.filter(pl.col("time") < END_OF_DAY).height if hints.origin is None else 0
    if timeless:
        found.append(source_finding("metrics: no times", timeless))
    return telemetry_of(rows, Story("dcgm-exporter", more=found), EXPORTED)


def _parse(page: Rows, hints: Hints) -> Rows:
    path, number = path_of(page), int(page.good["file"][0])
    open_metrics = page.good["raw"][-1].strip() == END
    page = data_only(page, ~pl.col("raw").str.strip_chars_start().str.starts_with("#"))
    parts = pl.col("raw").str.extract_groups(SAMPLE).struct
    good = page.good.with_columns(metric=parts[0], labels=parts[1].fill_null(""), value=parts[2], at=parts[3])
    page = replace(page, good=good).reject({"not a sample of the text format": pl.col("metric").is_null()})
    texts = page.good["labels"].unique(maintain_order=True)
    table = devices([parse_labels(text) for text in texts], hints.node_of(path))
    per_second = 1e6 if open_metrics else 1e3
    instant = (pl.col("at").cast(pl.Float64, strict=False) * per_second).round().cast(pl.Int64, strict=False)
    if page.good["at"].null_count():
        fetched = hints.nth_instant(pl.lit(number), str(path), None if number else 0.0)
        instant = pl.coalesce(instant.cast(INSTANT), pl.when(pl.col("at").is_null()).then(fetched))
    joined = page.good.join(table.with_columns(labels=texts), on="labels", how="left", maintain_order="left")
    good = joined.with_columns(time=instant.cast(INSTANT)).drop("at").rename({"labels": "series"})
    return replace(page, good=good)


DEFAULT_INTERVAL_S = 1.0
"""Sampling interval of all three programs unless told otherwise (option ``-d``)."""

ENTITY = r"^\s*(GPU|GPU-I|GPU-CI)\s+([0-9]{1,4})\s+(.*)$"
OTHER_INSTANCE = "an instance whose GPU the table does not name: fetch 'dcgmi discovery -c', or monitor one GPU"


@reads(matches(r"\A#.*\bgpu\s"))
def read_smi_dmon(paths: Sequence[str | Path], hints: Hints) -> Dataset:
    r"""Read ``nvidia-smi dmon``.

    Its ``sm`` is the legacy counter, not the SM activity. Without the columns of ``-o DT``, rows of a GPU
    are counted from the origin, by default a second apart.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "n1.txt"
    ...     _ = path.write_text("# gpu  pwr  sm\n# Idx    W   %\n    0   70   -\n")
    ...     read_smi_dmon([path], Hints(origin="2026-01-01T00:00:00Z")).samples["power_w", "sm_activity"].row(0)
    (70.0, None)
    """
    source = "smi-dmon"

    def parse(page: Rows) -> Rows:
        path = path_of(page)
        names, units = _header(page, path, source)
        page = _cut(page, names)
        page = _timed(page, names, hints, path, pl.int_range(pl.len()).over("gpu"))
        metrics = {
            name: known_unit(SMI_DMON[name], SMI_UNITS.get(unit, unit), f"{path}, column {name!r}")
            for name, unit in zip(names, units, strict=False)
            if name in SMI_DMON
        }
        unused = tuple(name for name in names if name not in {*metrics, "gpu", "Date", "Time"})
        return replace(read_wide(page, metrics), unused=unused)

    rows = _with_gpu(read_pages(paths, parse, source=source), hints)
    return telemetry_of(rows, Story(source, hints.tz, more=_assumed(rows, hints)))


@reads(matches(r"\A#.*\bgpu\s+pid\s"))
def read_smi_pmon(paths: Sequence[str | Path], hints: Hints) -> Dataset:
    r"""Read ``nvidia-smi pmon``: which processes are on the GPUs.

    The samples say that a GPU was looked at; activity per process is a share of the legacy counter that
    cannot be added up, so it is not read. A GPU without a process has a row of dashes.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "n1.txt"
    ...     _ = path.write_text("# gpu pid type command\n# Idx # C/G name\n 0 77 C NVIDIA Share.exe\n")
    ...     read_smi_pmon([path], Hints(origin="2026-01-01T00:00:00Z")).processes["pid", "command"].row(0)
    (77, 'NVIDIA Share.exe')
    """
    source = "smi-pmon"

    def parse(page: Rows) -> Rows:
        path = path_of(page)
        names, _ = _header(page, path, source, needed=("gpu", "pid", "type", "command"))
        page = _cut(page, names)
        pairs = list(zip(page.good["gpu"], page.good["pid"], strict=True))
        rounds = pl.lit(pl.Series(_rounds(pairs), dtype=pl.Int64))
        page = _timed(page, names, hints, path, rounds)
        number = pl.col("pid").cast(pl.Int64, strict=False)
        page = page.reject({"pid: not a number": number.is_null() & ~is_blank(pl.col("pid"))})
        memory = {"fb": Metric("memory_used", "MiB")} if "fb" in names else {}
        return replace(read_wide(page, memory), unused=("sm", "mem", "enc", "dec"))

    rows = _with_gpu(read_pages(paths, parse, source=source), hints)
    pid = pl.col("pid")
    named = {"pid": pid.cast(pl.Int64), "kind": pl.col("type"), "memory_gib": pl.col("memory_used")}
    processes = rows.good.filter(~is_blank(pid)).select("time", "node", "gpu", "command", **named)
    rows = rows.with_columns(memory_used=pl.lit(None, pl.Float64))
    told = conform(processes, Processes, where="processes")
    return telemetry_of(rows, Story(source, hints.tz, more=_assumed(rows, hints), processes=told))


@reads(matches(r"^\s*#\s*Entity\s", re.M))
def read_dcgmi_dmon(paths: Sequence[str | Path], hints: Hints) -> Dataset:
    r"""Read ``dcgmi dmon``, with GPUs and MIG instances as entities.

    DCGM numbers instances through the node and not through the GPU. Their GPU is known only where the table
    names a single one; the numbers are DCGM's, not those of nvidia-smi.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "n1.txt"
    ...     _ = path.write_text("#Entity  SMACT  TENSO\nID\nGPU 0  N/A  N/A\nGPU 0  0.5  0.25\n")
    ...     read_dcgmi_dmon([path], Hints(origin="2026-01-01T00:00:00Z")).samples["sm_activity"].to_list()
    [None, 0.5]
    """
    source = "dcgmi-dmon"

    def parse(page: Rows) -> Rows:
        path = path_of(page)
        titles = page.good["raw"].filter(page.good["raw"].str.contains(r"^\s*#\s*Entity\s"))
        if titles.is_empty():
            raise TraceFormatError(_no_header(path, "# Entity", source))
        names = titles[0].replace("#", " ").split()[1:]
        page = data_only(page, ~pl.col("raw").str.contains(r"^\s*(#|I[dD]\b)"))
        parts = pl.col("raw").str.extract_groups(ENTITY).struct
        good = page.good.with_columns(entity=parts[0], number=parts[1].cast(pl.Int32), tail=parts[2])
        page = replace(page, good=good).reject(
            {
                "not a row of a GPU or an instance": pl.col("entity").is_null(),
                "a compute instance: its GPU instance counts": pl.col("entity") == "GPU-CI",
            }
        )
        page = _cut(page, names, "tail")
        gpus = page.good.filter(pl.col("entity") == "GPU")["number"].unique()
        page = page.reject({OTHER_INSTANCE: (pl.col("entity") == "GPU-I") & pl.lit(len(gpus) != 1)})
        parent = pl.lit(gpus[0] if len(gpus) else None, pl.Int32)
        whole = pl.col("entity") == "GPU"
        turn = pl.int_range(pl.len()).over("entity", "number")
        good = page.good.with_columns(
            gpu=pl.when(whole).then("number").otherwise(parent).cast(pl.String),
            instance=pl.when(~whole).then("number"),
            time=hints.nth_instant(turn, str(path), DEFAULT_INTERVAL_S),
        )
        unused = tuple(name for name in names if name not in DCGMI)
        metrics = {name: DCGMI[name] for name in names if name in DCGMI}
        return replace(read_wide(replace(page, good=good), metrics), unused=unused)

    rows = _with_gpu(read_pages(paths, parse, source=source), hints)
    return telemetry_of(rows, Story(source, hints.tz, more=_assumed(rows, hints)))


def _header(page: Rows, path: Path, source: str, needed: tuple[str, ...] = ("gpu",)) -> tuple[list[str], list[str]]:
    """Names and units of the two header lines, which repeat every few rows."""
    heads = page.good["raw"].filter(page.good["raw"].str.starts_with("#")).to_list()
    names, units = (head.removeprefix("#").split() for head in [*heads[:2], "", ""][:2])
    names = [{"date": "Date", "time": "Time"}.get(name.casefold(), name) for name in names]
    if not set(needed) <= set(names):
        raise TraceFormatError(_no_header(path, f"# {' '.join(needed)}", source))
    other = [head for head in heads[::2] if head.split() != heads[0].split()]
    if other or len(units) < len(names):
        got = repr(other[0]) if other else f"{len(units)} units for {len(names)} columns"
        todo = "Split the file where its columns change."
        raise TraceFormatError(str(path), "the same two header lines throughout", got, todo)
    return names, units


def _cut(page: Rows, names: Sequence[str], column: str = "raw") -> Rows:
    """Cut the data lines into the named fields; the last field of a pmon row, the command, may hold blanks."""
    page = data_only(page, ~pl.col("raw").str.starts_with("#"))
    last = r"(\S.*?)" if names[-1] in ("command", "name") else r"(\S+)"
    pattern = r"^\s*" + r"\s+".join([*([r"(\S+)"] * (len(names) - 1)), last]) + r"\s*$"
    parts = pl.col(column).str.extract_groups(pattern).struct
    page = page.with_columns(**{name: parts[place] for place, name in enumerate(names)})
    return page.reject({"the fields do not match the header": pl.col(names[0]).is_null()})


def _timed(page: Rows, names: Sequence[str], hints: Hints, path: Path, turn: pl.Expr) -> Rows:
    if {"Date", "Time"} <= set(names):
        day = pl.col("Date").str.replace(r"^(\d{4})(\d{2})(\d{2})$", "$1-$2-$3")
        page = page.with_columns(stamp=day + " " + pl.col("Time"))
        return with_instants(page, "stamp", hints.tz, str(path))
    instant = hints.nth_instant(turn, str(path), DEFAULT_INTERVAL_S)
    return page.with_columns(time=instant)


def _rounds(pairs: Sequence[tuple[str, str]]) -> list[int]:
    """Number of the sampling round of each row: a new one begins when a GPU and process come again."""
    seen: set[tuple[str, str]] = set()
    rounds, current = [], 0
    for pair in pairs:
        if pair in seen:
            seen, current = set(), current + 1
        seen.add(pair)
        rounds.append(current)
    return rounds


def _with_gpu(rows: Rows, hints: Hints) -> Rows:
    gpu = pl.col("gpu").cast(pl.Int32, strict=False)
    return rows.with_columns(gpu=gpu, node=node_by_file(rows, hints))


def _assumed(rows: Rows, hints: Hints) -> list[Finding]:
    counted = 0 if hints.origin is None else rows.count
    return found_on_trust(False, counted, rows.files, rows.count, hints)


def _no_header(path: Path, header: str, source: str) -> str:
    got = "no such line"
    return message(str(path), f"a header line {header!r} of {source}", got, "Keep the header of the output.")
