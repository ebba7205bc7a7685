"""Alibaba GenAI serving: gauges of serving containers on a scaled clock, 2026 (Lin et al., SoCC 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from gpuplanner.errors import TraceFormatError, file_name, message
from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.findings import Check, Finding
from gpuplanner.inbox.core.lines.fields import Dialect, Field
from gpuplanner.inbox.core.lines.reading import read_rows
from gpuplanner.inbox.core.table_rows import assemble_reading
from gpuplanner.inbox.core.times import FIRST_INSTANT, MAX_SECONDS
from gpuplanner.inbox.public.clocks import Clock

COLUMN_MAP = {
    "value": Field("value", "number"),
    "timestamp_anon": Field("time_s", "number", high=MAX_SECONDS),
    "container_ip": Field("subject", nullable=True),
    "request_type": Field("kind", nullable=True, optional=True),
}
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

CLOCK = (
    "the source shifted and scaled its clock: dates and durations are not real (steps of 57 s stand for more)"
)


def read_genai(paths: Sequence[str | Path]) -> Dataset:
    r"""Read gauges of serving containers: duty cycle, memory and request rates, one metric a file.

    References
    ----------
    .. [1] alibaba/clusterdata, cluster-trace-v2026-GenAI, README: detailed file descriptions.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "pod_gpu_duty_cycle_anon.csv"
    ...     _ = path.write_text("value,timestamp_anon,container_ip\n40.0,1662858720.0,23b8\n")
    ...     read_genai([path]).table["metric", "value", "unit"].row(0)
    ('gpu_duty_cycle', 40.0, '%')
    """
    metrics = {number: _metric(Path(path)) for number, path in enumerate(paths)}
    rows = read_rows(paths, COLUMN_MAP, source="genai", dialect=NULLS)
    file = pl.col("file")
    high = file.replace_strict(
        {number: metric.high for number, metric in metrics.items()}, return_dtype=pl.Float64
    )
    rows = rows.reject({"value: above what its unit allows": pl.col("value") > high})
    names = {number: metric.name for number, metric in metrics.items()}
    units = {number: metric.unit for number, metric in metrics.items()}
    good = rows.good.with_columns(
        time=Clock(FIRST_INSTANT, relative=False).at("time_s"),
        metric=file.replace_strict(names, return_dtype=pl.String),
        unit=file.replace_strict(units, return_dtype=pl.String),
    )
    checks = [
        Check(
            "reading of the whole service",
            "info",
            "the container is not named: such rows are not added to those of containers",
            pl.col("subject").is_null(),
        )
    ]
    return assemble_reading(
        replace(rows, good=good),
        "gauges",
        source="genai",
        order=["metric", "subject", "time", "kind"],
        key=["metric", "subject", "kind", "time"],
        what="reading",
        checks=checks,
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
        todo = "Give it its name back: nothing inside says which metric it holds."
        raise TraceFormatError(message(str(path), expected, repr(path.name), todo))
    return METRICS[name]
