"""Readings of exporters that Prometheus scrapes: one name a metric, units that values show, counters as rates."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import polars as pl

from gpuplanner.inbox.core.findings import Finding
from gpuplanner.inbox.core.lines.rows import Rows
from gpuplanner.inbox.core.source_checks import source_finding
from gpuplanner.inbox.telemetry.readers.labels import OTHER_PARTITION
from gpuplanner.inbox.telemetry.readers.metrics import AMD, EXPORTED, PERCENT_OR_RATIO, QUANTITIES

PREFIX = "amd_"
"""What AMD's exporter may be told to put before each of its names."""
CANONICAL = {name.lower(): name for name in EXPORTED}
NOT_READ = re.compile(
    "(amd_|gpu_|nvidia_|slurm_|pcie_|xgmi_|go_|process_|promhttp_|python_|scrape_)", re.IGNORECASE
)
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
    """Readings with the names of :data:`~.metrics.EXPORTED`, and what is to be said of them.

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
    good = _rates(good.with_columns(_without_zero_power()))
    count = rows.count - (rows.good.height - good.height)
    if partitions:
        findings.append(source_finding("metrics: other partitions", partitions))
    rows = replace(rows, good=good.drop("series"), count=count, unused=(*rows.unused, *sorted(other)))
    return rows.reject({"not a GPU metric": ~_is_of_gpus()}), findings


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
        return rows.with_columns(
            pl.col("time") - pl.duration(microseconds=round(self.window_s * 1e6)),
            pl.col("metric").fill_null(metric),
            value=value,
        )


def _is_of_gpus() -> pl.Expr:
    metric = pl.col("metric")
    return (metric.str.starts_with("DCGM_") | metric.is_in(list(EXPORTED))).fill_null(value=False)


def _without_zero_power() -> pl.Expr:
    nothing = pl.col("metric").is_in(AMD_POWER) & (pl.col("value").cast(pl.Float64, strict=False) == 0)
    return pl.when(~nothing.fill_null(value=False)).then("value").alias("value")


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
    decided = nodes.filter(pl.col("percent") | ~pl.col("whole"))["percent"]
    of_others = decided[0] if decided.n_unique() == 1 else None
    percent = nodes.with_columns(
        percent=pl.when(pl.col("percent") | ~pl.col("whole")).then("percent").otherwise(of_others)
    )
    in_percent = percent.filter("percent")["node"]
    good = good.with_columns(
        value=pl.when(mine & pl.col("node").is_in(in_percent.implode()))
        .then((value / 100).cast(pl.String))
        .otherwise("value")
    )
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
