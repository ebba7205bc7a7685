"""Readers of public series: GPUs and nodes in use, quotas, distributions, step times, and gauges of LLM services."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from gpuplanner.core.errors import TraceFormatError, printable_file_name
from gpuplanner.core.output_manifests_and_overwrite_checks import resolve_path
from gpuplanner.core.schemas import MAX_GPUS_PER_JOB
from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import Rows
from gpuplanner.ingest.public.job_lists import (
    ASSUMED_ZONE_NOTE,
    HELIOS_ZONE,
    PHILLY_ZONE,
    convert_local_times,
    file_stem,
    offset_time,
)
from gpuplanner.ingest.quality_report import AMBIGUOUS_TIME_CHECK, Check, source_check, source_finding
from gpuplanner.ingest.source_definition import has_required_columns, register_sniffer
from gpuplanner.ingest.source_fields import (
    CSV_DIALECT,
    FIRST_INSTANT,
    Dialect,
    Field,
    parse_header,
    source_columns,
    validate_time_zone,
)
from gpuplanner.ingest.table_assembly import assemble_table
from gpuplanner.ingest.text_files import read_head
from gpuplanner.ingest.typed_row_reader import read_rows

GPU_COUNT_FIELD = Field("", "number", high=MAX_GPUS_PER_JOB)
"""How a column of GPU counts is parsed, without the name of the column."""

FIELD_BY_HELIOS_SEQUENCE_COLUMN = source_columns("helios_sequence")
"""Column of ``cluster_sequence_vc.csv`` of Helios → how it is parsed; `gpu_utilization` is running / total, so
allocation and not activity."""

FIELD_BY_PHILLY_NODE_COLUMN = source_columns("philly_nodes")
"""Column of Philly's per-minute number of nodes → how it is parsed."""

MAX_SHARE_ROUNDING_ERROR = 0.0005 + 1e-9
"""Largest rounding error of an allocated share that Helios states with three decimals [0-1]."""

ALLOCATED_SHARE_EXPR = pl.col("allocated") / pl.col("total")
"""Allocated share of the GPUs or nodes of a virtual cluster [0-1]."""
OCCUPANCY_CHECKS = (
    AMBIGUOUS_TIME_CHECK,
    source_check("pools: more allocated than installed", pl.col("allocated") > pl.col("total")),
)
"""Checks of the quality report for series of allocated and total GPUs or nodes."""
HELIOS_SEQUENCE_CHECKS = (
    *OCCUPANCY_CHECKS,
    source_check("helios: other idle", pl.col("allocated") + pl.col("idle") != pl.col("total")),
    source_check("helios: other share", (pl.col("share") - ALLOCATED_SHARE_EXPR).abs() > MAX_SHARE_ROUNDING_ERROR),
)
"""Checks of the quality report for ``cluster_sequence_vc.csv`` of Helios."""

QUOTA_DAY_COLUMN = "date"
"""First column of Helios' table of GPUs by day and virtual cluster: the day."""
TOTAL_COLUMN = "total"
"""Last column of Helios' table of GPUs by day and virtual cluster: the sum of the day."""

POOL_COLUMN_PREFIX = "pool:"
"""Prefix given to the columns of virtual clusters, so that their names cannot equal those of other columns."""

QUOTA_CHECKS = (
    source_check("helios: other total", pl.col("stated") != pl.col("sum")),
    source_check("helios: empty pool", pl.col("absent") > 0),
)
"""Checks of the quality report for Helios' table of GPUs by day and virtual cluster."""

PERCENT_SUFFIX = "__cdf_pct"
"""Suffix of the column of cumulative shares [%] of a distribution of Acme, beside the column of its values."""


@register_sniffer(has_required_columns(FIELD_BY_HELIOS_SEQUENCE_COLUMN))
def read_helios_sequence(paths: Sequence[str | Path], *, tz: str | None = None) -> Dataset:
    """Read the per-minute series of allocated GPUs of Helios virtual clusters; the folder names the cluster.

    Parameters
    ----------
    paths : sequence of str or Path
        Files ``cluster_sequence_vc.csv``.
    tz : str, optional
        Time zone of the times. Default: that of the clusters.

    Returns
    -------
    Dataset
        With the table ``occupancy``. [GPUs]
    """
    rows = read_rows(paths, FIELD_BY_HELIOS_SEQUENCE_COLUMN, source="helios")
    pools = {number: printable_file_name(resolve_path(file.path).parent) for number, file in enumerate(rows.files)}
    notes = [] if tz else [ASSUMED_ZONE_NOTE.format(HELIOS_ZONE)]
    return _make_occupancy(
        rows, "helios", "gpu", pools, validate_time_zone(tz or HELIOS_ZONE), HELIOS_SEQUENCE_CHECKS, notes
    )


@register_sniffer(has_required_columns(FIELD_BY_PHILLY_NODE_COLUMN))
def read_philly_nodes(paths: Sequence[str | Path], *, tz: str | None = None) -> Dataset:
    r"""Read the per-minute number of active and of all Philly nodes.

    Parameters
    ----------
    paths : sequence of str or Path
        CSV files.
    tz : str, optional
        Time zone of the times. Default: that of the cluster.

    Returns
    -------
    Dataset
        With the table ``occupancy``. [nodes]

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "nodes.csv"
    ...     _ = path.write_text("time,active,total\n2017-10-03 00:00:00,312,420\n2017-10-03 00:01:00,300,420\n")
    ...     read_philly_nodes([path]).summary()["allocated_hours"]
    10.2
    """
    rows = read_rows(paths, FIELD_BY_PHILLY_NODE_COLUMN, source="philly")
    pools = dict.fromkeys(range(len(rows.files)), "philly")
    return _make_occupancy(rows, "philly", "node", pools, validate_time_zone(tz or PHILLY_ZONE), OCCUPANCY_CHECKS, [])


def _make_occupancy(
    rows: Rows,
    source: str,
    resource: str,
    pools: Mapping[int, str],
    zone: str,
    checks: Sequence[Check],
    notes: Sequence[str],
) -> Dataset:
    """Make a dataset from series of allocated and total GPUs or nodes.

    Parameters
    ----------
    rows : Rows
        Readings with local times.
    source : str
        Name of the source.
    resource : str
        ``gpu`` or ``node``.
    pools : mapping of int to str
        Number of a file → its pool.
    zone : str
        Time zone of the times.
    checks : sequence of Check
        Checks of the quality report.
    notes : sequence of str
        Notes of the provenance.
    """
    rows = convert_local_times(rows, {"time": "time"}, zone)
    counts = pl.col("total", "allocated", *(["pending"] if resource == "gpu" else []))
    rows = rows.reject({"not a whole number": pl.any_horizontal(counts != counts.floor())})
    pool = pl.col("file").replace_strict(dict(pools), return_dtype=pl.String)
    rows = rows.with_columns(pool=pool, resource=pl.lit(resource))
    sorted_readings = rows.good.sort("pool", "time")
    gaps_s = sorted_readings.select(pl.col("time").diff().over("pool").dt.total_seconds()).to_series().drop_nulls()
    step_s = int(gaps_s.mode().sort()[0]) if len(gaps_s) else 0
    hours = step_s / SECONDS_PER_HOUR
    missing = int((gaps_s > step_s).sum())
    return assemble_table(
        rows,
        "occupancy",
        source=source,
        sort_columns=["pool", "time"],
        key_columns=["pool", "time"],
        row_word="reading",
        checks=checks,
        findings=[source_finding("pools: gaps", missing, step_s=step_s)] if missing else [],
        totals={
            "pools": pl.col("pool").n_unique(),
            "allocated_hours": pl.col("allocated").sum() * hours,
            "total_hours": pl.col("total").sum() * hours,
        },
        time_zone=zone,
        notes=[f"a series of allocated {resource}s, not jobs: one reading each {step_s} s", *notes],
    )


def looks_like_quotas(lines: Sequence[str]) -> bool:
    """Whether the first lines of a file look like quotas by day: columns of virtual clusters between date and total."""
    names = parse_header(lines[0], CSV_DIALECT)
    return len(names) > 2 and names[0] == QUOTA_DAY_COLUMN and names[-1] == TOTAL_COLUMN


@register_sniffer(looks_like_quotas)
def read_helios_quotas(paths: Sequence[str | Path]) -> Dataset:
    r"""Read ``cluster_gpu_number.csv`` of Helios: GPUs by day (rows) and virtual cluster (columns).

    A virtual cluster with 0 GPUs did not exist on that day.

    Parameters
    ----------
    paths : sequence of str or Path
        CSV files.

    Returns
    -------
    Dataset
        With the table ``quotas``. [GPUs]

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
    names = (name for name in _read_header_names(paths) if name not in ("", QUOTA_DAY_COLUMN, TOTAL_COLUMN))
    columns = {
        QUOTA_DAY_COLUMN: Field("day", "time", format="%Y-%m-%d"),
        **{name: replace(GPU_COUNT_FIELD, name=POOL_COLUMN_PREFIX + name) for name in names},
        TOTAL_COLUMN: replace(GPU_COUNT_FIELD, name="stated", nullable=True),
    }
    rows = read_rows(paths, columns, source="helios")
    pool_columns = pl.col(f"^{POOL_COLUMN_PREFIX}.*$")
    rows = rows.reject({
        "not a whole number of GPUs": pl.any_horizontal(pool_columns != pool_columns.floor()),
        "the same day as an earlier row": ~pl.col("day").is_first_distinct(),
    })  # fmt: skip
    return assemble_table(
        rows.with_columns(sum=pl.sum_horizontal(pool_columns), absent=pl.sum_horizontal(pool_columns == 0)),
        "quotas",
        source="helios",
        sort_columns=["day", "pool"],
        row_word="day",
        reshape=_unpivot_pools,
        checks=QUOTA_CHECKS,
        totals={"pools": pl.col("pool").n_unique(), "gpu_days": pl.col("gpus").cast(pl.Int64).sum()},
        span_columns=(),
        notes=["days are local days; the source names no zone"],
    )


def _read_header_names(paths: Sequence[str | Path]) -> list[str]:
    """Return the column names of all files, each once."""
    headers = (parse_header(line, CSV_DIALECT) for path in paths for line in read_head(path)[:1])
    return list(dict.fromkeys(name for header in headers for name in header))


def _unpivot_pools(wide: pl.DataFrame) -> pl.DataFrame:
    """Turn columns of virtual clusters into one row for each day and virtual cluster that existed."""
    pools = [name for name in wide.columns if name.startswith(POOL_COLUMN_PREFIX)]
    unpivoted = wide.unpivot(pools, index="day", variable_name="pool", value_name="gpus")
    renamed = unpivoted.with_columns(pl.col("day").dt.date(), pl.col("pool").str.strip_prefix(POOL_COLUMN_PREFIX))
    return renamed.filter(pl.col("gpus") > 0)


@register_sniffer(lambda lines: PERCENT_SUFFIX in lines[0])
def read_distributions(paths: Sequence[str | Path]) -> Dataset:
    r"""Read cumulative distributions of utilisation and power of Acme: pairs of columns ``x`` and ``x__cdf_pct``.

    Parameters
    ----------
    paths : sequence of str or Path
        CSV files.

    Returns
    -------
    Dataset
        With the table ``distributions``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "gpu_power_kalos.csv"
    ...     _ = path.write_text("gpu_power_w,gpu_power_w__cdf_pct\n55.7,0.0\n400,100.0\n")
    ...     read_distributions([path]).table["series"].unique().to_list()
    ['gpu_power_kalos: gpu_power_w']
    """
    series_names = [
        name.removesuffix(PERCENT_SUFFIX) for name in _read_header_names(paths) if name.endswith(PERCENT_SUFFIX)
    ]
    names = list(dict.fromkeys(series_names)) or ["x"]
    value = Field("", "number", nullable=True, optional=True, low=-1e12)
    share = replace(value, low=0.0, high=100.0)
    columns = {name: replace(value, name=f"value:{name}") for name in names}
    columns |= {name + PERCENT_SUFFIX: replace(share, name=f"percent:{name}") for name in names}
    rows = read_rows(paths, columns, source="acme")
    is_incomplete = [pl.col(f"value:{name}").is_null() != pl.col(f"percent:{name}").is_null() for name in names]
    series_columns = [pl.col(f"{column}:{name}") for name in names for column in ("value", "percent")]
    is_falling = [column < column.cum_max().over("file") for column in series_columns]
    rows = rows.reject({
        "a value without its share, or a share without its value": pl.any_horizontal(is_incomplete),
        "below an earlier row: a cumulative distribution rises": pl.any_horizontal(is_falling),
    })  # fmt: skip
    stem = file_stem(rows.files)

    def make_points(wide: pl.DataFrame) -> pl.DataFrame:
        """Make one row for each point of each distribution."""
        frames = [
            wide.select(series=stem + pl.lit(f": {name}"), value=f"value:{name}", percent=f"percent:{name}")
            for name in names
        ]
        return pl.concat(frames).drop_nulls("value")

    finding = source_finding("acme: distribution", rows.good.height)
    return assemble_table(
        rows,
        "distributions",
        source="acme",
        sort_columns=["series", "percent"],
        row_word="point",
        reshape=make_points,
        findings=[finding],
        totals={"series": pl.col("series").n_unique()},
        span_columns=(),
        notes=[finding.effect],
    )


FIELD_BY_GENAI_GAUGE_COLUMN = source_columns("genai_gauges")
"""Column of a gauge file of Alibaba's GenAI serving trace → how it is parsed. Long format; `timestamp_anon`: shifted
seconds; `container_ip`: hash, empty for requests to the API."""

GENAI_DIALECT = Dialect(missing=frozenset({"NULL", "None"}))
"""How lines of Alibaba's GenAI serving trace are split, and its words for missing values."""


@dataclass(frozen=True)
class GaugeMetric:
    """The metric that one gauge file of Alibaba's GenAI serving trace holds.

    - ``name``, ``unit``: Its name and unit in the table.
    - ``high``: Largest value that is accepted, in that unit.
    """

    name: str
    unit: str
    high: float | None = None


GAUGE_METRIC_BY_FILE_NAME = {
    "pod_gpu_duty_cycle": GaugeMetric("gpu_duty_cycle", "%", 100.0),
    "pod_gpu_memory_used_bytes": GaugeMetric("gpu_memory_used", "bytes"),
    "pod_memory_util": GaugeMetric("memory_used", "%", 100.0),
    "qps": GaugeMetric("requests", "scaled requests/s"),
    "queue_size_raw": GaugeMetric("queue_size", "requests"),
    "queue_rt_raw": GaugeMetric("queue_time", "ms"),
}
"""Name of a gauge file of the GenAI trace, without its ending → metric, which its content does not name."""


@register_sniffer(has_required_columns(FIELD_BY_GENAI_GAUGE_COLUMN))
def read_genai(paths: Sequence[str | Path]) -> Dataset:
    r"""Read gauges of LLM serving containers (Alibaba GenAI): duty cycle, memory, request rates; one metric a file.

    Parameters
    ----------
    paths : sequence of str or Path
        CSV files, named after their metrics.

    Returns
    -------
    Dataset
        With the table ``gauges``.

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
    metrics = [_gauge_metric_of(Path(path)) for path in paths]
    rows = read_rows(paths, FIELD_BY_GENAI_GAUGE_COLUMN, source="genai", dialect=GENAI_DIALECT)
    schema = {"name": pl.String, "unit": pl.String, "high": pl.Float64}
    metric_table = pl.DataFrame(metrics, schema=schema)
    high, names, units = (pl.lit(metric_table[name]).gather("file") for name in ("high", "name", "unit"))
    rows = rows.reject({"value: above what its unit allows": pl.col("value") > high})
    good = rows.good.with_columns(time=offset_time(FIRST_INSTANT, "time_s"), metric=names, unit=units)
    finding = source_finding("genai: scaled clock", good.height)
    return assemble_table(
        replace(rows, good=good),
        "gauges",
        source="genai",
        sort_columns=["metric", "subject", "time", "kind"],
        key_columns=["metric", "subject", "kind", "time"],
        row_word="reading",
        checks=[source_check("genai: whole service", pl.col("subject").is_null())],
        findings=[finding],
        totals={
            "containers": pl.col("subject").drop_nulls().n_unique(),
            "steps": pl.col("time").n_unique(),
            "mean_value": pl.when(pl.col("metric").n_unique() == 1).then(pl.col("value").mean()),
        },
        notes=[finding.effect],
    )


def _gauge_metric_of(path: Path) -> GaugeMetric:
    """Return the metric of a file of gauges by its name."""
    name = printable_file_name(path).split(".")[0].removesuffix("_anon")
    if name not in GAUGE_METRIC_BY_FILE_NAME:
        expected = f"a file named {', '.join(GAUGE_METRIC_BY_FILE_NAME)}, with or without _anon"
        todo = "Restore its name: the content does not name the metric."
        raise TraceFormatError(str(path), expected, repr(path.name), todo)
    return GAUGE_METRIC_BY_FILE_NAME[name]
