"""Public occupancy series and serving traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from gpuplanner.core.errors import TraceFormatError, file_name
from gpuplanner.core.schemas import MAX_GPUS_PER_JOB
from gpuplanner.core.units import SECONDS_PER_HOUR
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import Rows
from gpuplanner.ingest.job_table import assemble_reading
from gpuplanner.ingest.public.job_lists import HELIOS_ZONE, PHILLY_ZONE, UNZONED, at, localized, stem_of
from gpuplanner.ingest.quality_report import AMBIGUOUS_TIME, Check, Finding, source_check
from gpuplanner.ingest.row_reader import read_rows
from gpuplanner.ingest.source_definition import columns_of, looks
from gpuplanner.ingest.source_fields import (
    CSV,
    FIRST_INSTANT,
    Dialect,
    Field,
    header_names,
    known_zone,
    source_columns,
)
from gpuplanner.ingest.text_files import head

COUNT = Field("", "number", high=MAX_GPUS_PER_JOB)

HELIOS_COLUMNS = source_columns("helios_sequence")
"""Columns of ``cluster_sequence_vc.csv``; `gpu_utilization`: running / total, so allocation and not activity."""

PHILLY_COLUMNS = source_columns("philly_nodes")

HALF_DIGIT = 0.0005 + 1e-9
"""The source rounds shares to three decimals."""

ALLOCATED_SHARE = pl.col("allocated") / pl.col("total")
OCCUPANCY_CHECKS = (
    AMBIGUOUS_TIME,
    source_check("pools: more allocated than installed", pl.col("allocated") > pl.col("total")),
)
HELIOS_CHECKS = (
    *OCCUPANCY_CHECKS,
    source_check("helios: other idle", pl.col("allocated") + pl.col("idle") != pl.col("total")),
    source_check("helios: other share", (pl.col("share") - ALLOCATED_SHARE).abs() > HALF_DIGIT),
)

DAY, TOTAL = "date", "total"
POOL = "pool:"
"""Stands in front of the names of pools, so that none is taken for another column."""

QUOTA_CHECKS = (
    source_check("helios: other total", pl.col("stated") != pl.col("sum")),
    source_check("helios: empty pool", pl.col("absent") > 0),
)

PERCENT = "__cdf_pct"
"""End of the name of the column that holds the share, beside the column of the value."""

NO_SERIES = "a distribution, not a time series: no demand, phase or ledger can be made of it"

STEP_COLUMNS = source_columns("step_times")
"""`gpu`: share of a GPU [%]; `time`: position in the series; `batch_time_norm`: 0..1000, without unit."""

STEP_AGAIN = source_check("pai: step again", ~pl.struct("file", "worker", "step").is_first_distinct())


@looks(columns_of(HELIOS_COLUMNS))
def read_helios_sequence(paths: Sequence[str | Path], *, tz: str | None = None) -> Dataset:
    """Read the per-minute sequences of Helios virtual clusters; the folder of a file names its pool."""
    rows = read_rows(paths, HELIOS_COLUMNS, source="helios")
    pools = {number: file_name(file.path.resolve().parent) for number, file in enumerate(rows.files)}
    notes = [] if tz else [UNZONED.format(HELIOS_ZONE)]
    return _occupancy(rows, "helios", "gpu", pools, known_zone(tz or HELIOS_ZONE), HELIOS_CHECKS, notes)


@looks(columns_of(PHILLY_COLUMNS))
def read_philly_nodes(paths: Sequence[str | Path], *, tz: str | None = None) -> Dataset:
    r"""Read the per-minute count of active and of all Philly nodes.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "nodes.csv"
    ...     _ = path.write_text("time,active,total\n2017-10-03 00:00:00,312,420\n2017-10-03 00:01:00,300,420\n")
    ...     read_philly_nodes([path]).summary()["allocated_hours"]
    10.2
    """
    rows = read_rows(paths, PHILLY_COLUMNS, source="philly")
    pools = dict.fromkeys(range(len(rows.files)), "philly")
    return _occupancy(rows, "philly", "node", pools, known_zone(tz or PHILLY_ZONE), OCCUPANCY_CHECKS, [])


def _occupancy(
    rows: Rows,
    source: str,
    resource: str,
    pools: Mapping[int, str],
    zone: str,
    checks: Sequence[Check],
    notes: Sequence[str],
) -> Dataset:
    rows = localized(rows, {"time": "time"}, zone)
    counts = pl.col("total", "allocated", *(["pending"] if resource == "gpu" else []))
    rows = rows.reject({"not a whole number": pl.any_horizontal(counts != counts.floor())})
    pool = pl.col("file").replace_strict(dict(pools), return_dtype=pl.String)
    rows = rows.with_columns(pool=pool, resource=pl.lit(resource))
    ordered = rows.good.sort("pool", "time")
    gaps_s = ordered.select(pl.col("time").diff().over("pool").dt.total_seconds()).to_series().drop_nulls()
    step_s = int(gaps_s.mode().sort()[0]) if len(gaps_s) else 0
    hours = step_s / SECONDS_PER_HOUR
    missing = int((gaps_s > step_s).sum())
    effect = f"readings are missing there; each row counts {step_s} s and no more"
    return assemble_reading(
        rows,
        "occupancy",
        source=source,
        order=["pool", "time"],
        key=["pool", "time"],
        what="reading",
        checks=checks,
        findings=[Finding("gap in the series", "warning", missing, effect, "")] if missing else [],
        totals={
            "pools": pl.col("pool").n_unique(),
            "allocated_hours": pl.col("allocated").sum() * hours,
            "total_hours": pl.col("total").sum() * hours,
        },
        time_zone=zone,
        notes=[f"a series of allocated {resource}s, not jobs: one reading each {step_s} s", *notes],
    )


def looks_like_quotas(lines: Sequence[str]) -> bool:
    """True if the first lines of a file look like quotas by day: pools between a date and their total."""
    names = header_names(lines[0], CSV)
    return len(names) > 2 and names[0] == DAY and names[-1] == TOTAL


@looks(looks_like_quotas)
def read_helios_quotas(paths: Sequence[str | Path]) -> Dataset:
    r"""Read ``cluster_gpu_number.csv``: a row a day, a column a virtual cluster; 0 means that it did not exist.

    References
    ----------
    .. [1] S-Lab-System-Group/HeliosData, README: schema of ``cluster_gpu_number.csv``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "gpus.csv"
    ...     _ = path.write_text("date,vc1,vc2,total\n2020-04-01,112,0,112\n")
    ...     read_helios_quotas([path]).table["pool", "gpus"].rows()
    [('vc1', 112)]
    """
    names = (name for name in _header_names(paths) if name not in ("", DAY, TOTAL))
    columns = {
        DAY: Field("day", "time", format="%Y-%m-%d"),
        **{name: replace(COUNT, name=POOL + name) for name in names},
        TOTAL: replace(COUNT, name="stated", nullable=True),
    }
    rows = read_rows(paths, columns, source="helios")
    each = pl.col(f"^{POOL}.*$")
    rows = rows.reject(
        {
            "not a whole number of GPUs": pl.any_horizontal(each != each.floor()),
            "the same day as an earlier row": ~pl.col("day").is_first_distinct(),
        }
    )
    return assemble_reading(
        rows.with_columns(sum=pl.sum_horizontal(each), absent=pl.sum_horizontal(each == 0)),
        "quotas",
        source="helios",
        order=["day", "pool"],
        what="day",
        shape=_by_pool,
        checks=QUOTA_CHECKS,
        totals={"pools": pl.col("pool").n_unique(), "gpu_days": pl.col("gpus").cast(pl.Int64).sum()},
        span=(),
        notes=["days are local days; the source names no zone"],
    )


def _header_names(paths: Sequence[str | Path]) -> list[str]:
    """Names in the header lines of all files, each once."""
    headers = (header_names(line, CSV) for path in paths for line in head(path)[:1])
    return list(dict.fromkeys(name for header in headers for name in header))


def _by_pool(wide: pl.DataFrame) -> pl.DataFrame:
    """One row per day and pool that existed."""
    pools = [name for name in wide.columns if name.startswith(POOL)]
    long = wide.unpivot(pools, index="day", variable_name="pool", value_name="gpus")
    named = long.with_columns(pl.col("day").dt.date(), pl.col("pool").str.strip_prefix(POOL))
    return named.filter(pl.col("gpus") > 0)


@looks(lambda lines: PERCENT in lines[0])
def read_distributions(paths: Sequence[str | Path]) -> Dataset:
    r"""Read cumulative distributions of utilisation and power of Acme: pairs of columns ``x`` and ``x__cdf_pct``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "gpu_power_kalos.csv"
    ...     _ = path.write_text("gpu_power_w,gpu_power_w__cdf_pct\n55.7,0.0\n400,100.0\n")
    ...     read_distributions([path]).table["series"].unique().to_list()
    ['gpu_power_kalos: gpu_power_w']
    """
    ends = [name.removesuffix(PERCENT) for name in _header_names(paths) if name.endswith(PERCENT)]
    names = list(dict.fromkeys(ends)) or ["x"]
    value = Field("", "number", nullable=True, optional=True, low=-1e12)
    share = replace(value, low=0.0, high=100.0)
    columns = {name: replace(value, name=f"value:{name}") for name in names}
    columns |= {name + PERCENT: replace(share, name=f"percent:{name}") for name in names}
    rows = read_rows(paths, columns, source="acme")
    half = [pl.col(f"value:{name}").is_null() != pl.col(f"percent:{name}").is_null() for name in names]
    parts = [pl.col(f"{part}:{name}") for name in names for part in ("value", "percent")]
    falls = [part < part.cum_max().over("file") for part in parts]
    rows = rows.reject(
        {
            "a value without its share, or a share without its value": pl.any_horizontal(half),
            "below an earlier row: a cumulative distribution rises": pl.any_horizontal(falls),
        }
    )
    stem = stem_of(rows.files)

    def points(wide: pl.DataFrame) -> pl.DataFrame:
        """One row per point of each distribution."""
        series = {name: stem + pl.lit(f": {name}") for name in names}
        each = [wide.select(series=series[name], value=f"value:{name}", percent=f"percent:{name}") for name in names]
        return pl.concat(each).drop_nulls("value")

    return assemble_reading(
        rows,
        "distributions",
        source="acme",
        order=["series", "percent"],
        what="point",
        shape=points,
        findings=[Finding("a distribution", "info", rows.good.height, NO_SERIES, "")],
        totals={"series": pl.col("series").n_unique()},
        span=(),
        notes=[NO_SERIES],
    )


@looks(columns_of(STEP_COLUMNS))
def read_step_times(paths: Sequence[str | Path]) -> Dataset:
    r"""Read mini-batch times of workers on shares of GPUs (Alibaba PAI), one file per training job, its name.

    They are no jobs and no telemetry: the times have no unit and the steps no dates.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "job_1_norm.csv"
    ...     _ = path.write_text(",worker,gpu,time,batch_time_norm\n0,0,25,1,476\n")
    ...     read_step_times([path]).table.row(0)
    ('job_1', 0, 1, 0.25, 476.0)
    """
    rows = read_rows(paths, STEP_COLUMNS, source="pai")
    counts = pl.col("worker", "step")
    rows = rows.reject({"worker or time: not a whole number": pl.any_horizontal(counts != counts.floor())})
    job = stem_of(rows.files).str.strip_suffix("_norm")
    return assemble_reading(
        rows.with_columns(job=job, gpu_share=pl.col("percent") / 100),
        "step_times",
        source="pai",
        order=["job", "worker", "step"],
        what="step",
        checks=[STEP_AGAIN],
        totals={"jobs": pl.col("job").n_unique(), "mean_step_time": pl.col("step_time").mean()},
        span=(),
        notes=["times are scaled to 0..1000 within each job: they compare within one job only"],
    )


MAX_TOKENS = 100_000_000
TOKENS = ("prompt_tokens", "generated_tokens")

REQUEST_COLUMNS = {
    "TIMESTAMP": Field("time", "time", format="%Y-%m-%d %H:%M:%S%.f"),
    "ContextTokens": Field("prompt_tokens", "number", high=MAX_TOKENS),
    "GeneratedTokens": Field("generated_tokens", "number", high=MAX_TOKENS),
}
"""`TIMESTAMP`: seven decimals, no zone; what is finer than a microsecond is cut off."""

REQUEST_CHECKS = (
    AMBIGUOUS_TIME,
    source_check("azure-llm: out of order", pl.col("time") < pl.col("time").cum_max()),
    source_check("azure-llm: equal rows", ~pl.col("raw").is_first_distinct()),
)

GAUGE_COLUMNS = source_columns("genai_gauges")
"""Long format; `timestamp_anon`: shifted seconds; `container_ip`: hash, empty for requests to the API."""

NULLS = Dialect(missing=frozenset({"NULL", "None"}))


@dataclass(frozen=True)
class GaugeMetric:
    """What one file holds: its name, unit and upper bound."""

    name: str
    unit: str
    high: float | None = None


METRICS = {
    "pod_gpu_duty_cycle": GaugeMetric("gpu_duty_cycle", "%", 100.0),
    "pod_gpu_memory_used_bytes": GaugeMetric("gpu_memory_used", "bytes"),
    "pod_memory_util": GaugeMetric("memory_used", "%", 100.0),
    "qps": GaugeMetric("requests", "scaled requests/s"),
    "queue_size_raw": GaugeMetric("queue_size", "requests"),
    "queue_rt_raw": GaugeMetric("queue_time", "ms"),
}
"""File name → metric: nothing in a file says which it is."""

CLOCK = "the source shifted and scaled its clock: dates and durations are not real (steps of 57 s stand for more)"
OF_SERVICE = source_check("genai: whole service", pl.col("subject").is_null())


@looks(columns_of(REQUEST_COLUMNS))
def read_azure_llm(paths: Sequence[str | Path], *, tz: str | None = None) -> Dataset:
    r"""Read a log of requests with their tokens; the name of a file is its service.

    References
    ----------
    .. [1] Patel et al., Splitwise, ISCA 2024: Azure LLM inference requests, 2023.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "conv.csv"
    ...     _ = path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n")
    ...     read_azure_llm([path], tz="UTC").summary()["prompt_tokens"]
    374
    """
    if tz is None:
        expected, todo = "a stated time zone", "Give the time zone of the times with --tz; UTC is likely."
        raise TraceFormatError("azure-llm: TIMESTAMP", expected, "times without one", todo)
    zone = known_zone(tz)
    rows = localized(read_rows(paths, REQUEST_COLUMNS, source="azure-llm"), {"time": "time"}, zone)
    tokens = pl.col(TOKENS)
    rows = rows.reject({"not a whole number of tokens": pl.any_horizontal(tokens != tokens.floor())})
    return assemble_reading(
        rows.with_columns(service=stem_of(rows.files)),
        "requests",
        source="azure-llm",
        order=["time"],
        what="request",
        checks=REQUEST_CHECKS,
        totals={name: pl.col(name).cast(pl.Int64).sum() for name in TOKENS},
        time_zone=zone,
        notes=["times are truncated to the microsecond"],
    )


@looks(columns_of(GAUGE_COLUMNS))
def read_genai(paths: Sequence[str | Path]) -> Dataset:
    r"""Read gauges of serving containers: duty cycle, memory and request rates, one metric a file.

    References
    ----------
    .. [1] Lin et al., SoCC 2025; alibaba/clusterdata, cluster-trace-v2026-GenAI, README: detailed file descriptions.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "pod_gpu_duty_cycle_anon.csv"
    ...     _ = path.write_text("value,timestamp_anon,container_ip\n40.0,1662858720.0,23b8\n")
    ...     read_genai([path]).table["metric", "value", "unit"].row(0)
    ('gpu_duty_cycle', 40.0, '%')
    """
    metrics = [_metric(Path(path)) for path in paths]
    rows = read_rows(paths, GAUGE_COLUMNS, source="genai", dialect=NULLS)
    schema = {"name": pl.String, "unit": pl.String, "high": pl.Float64}
    about = pl.DataFrame(metrics, schema=schema)
    high, names, units = (pl.lit(about[name]).gather("file") for name in ("high", "name", "unit"))
    rows = rows.reject({"value: above what its unit allows": pl.col("value") > high})
    good = rows.good.with_columns(time=at(FIRST_INSTANT, "time_s"), metric=names, unit=units)
    return assemble_reading(
        replace(rows, good=good),
        "gauges",
        source="genai",
        order=["metric", "subject", "time", "kind"],
        key=["metric", "subject", "kind", "time"],
        what="reading",
        checks=[OF_SERVICE],
        findings=[Finding("clock shifted and scaled", "warning", good.height, CLOCK, "")],
        totals={
            "containers": pl.col("subject").drop_nulls().n_unique(),
            "steps": pl.col("time").n_unique(),
            "mean_value": pl.when(pl.col("metric").n_unique() == 1).then(pl.col("value").mean()),
        },
        notes=[CLOCK],
    )


def _metric(path: Path) -> GaugeMetric:
    name = file_name(path).split(".")[0].removesuffix("_anon")
    if name not in METRICS:
        expected = f"a file named {', '.join(METRICS)}, with or without _anon"
        todo = "Restore its name: the content does not name the metric."
        raise TraceFormatError(str(path), expected, repr(path.name), todo)
    return METRICS[name]
