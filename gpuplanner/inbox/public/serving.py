"""Public traces of serving: requests of Azure's LLM service, and gauges of Alibaba's GenAI containers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from gpuplanner.errors import TraceFormatError, file_name, message
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.findings import AMBIGUOUS_TIME, Finding
from gpuplanner.inbox.core.lines.column_tables import source_columns
from gpuplanner.inbox.core.lines.fields import Dialect, Field
from gpuplanner.inbox.core.lines.reading import read_rows
from gpuplanner.inbox.core.source import columns_of, looks
from gpuplanner.inbox.core.source_checks import source_check
from gpuplanner.inbox.core.table_rows import assemble_reading
from gpuplanner.inbox.core.times import FIRST_INSTANT, known_zone
from gpuplanner.inbox.public.trace import at, localized, stem_of

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

CLOCK = (
    "the source shifted and scaled its clock: dates and durations are not real (steps of 57 s stand for more)"
)
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
        expected, todo = "a stated time zone", "Say in which zone the times are, with --tz; UTC is likely."
        raise TraceFormatError(message("azure-llm: TIMESTAMP", expected, "times without one", todo))
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
        notes=["times are cut to the microsecond"],
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
    metrics = dict(enumerate(_metric(Path(path)) for path in paths))
    rows = read_rows(paths, GAUGE_COLUMNS, source="genai", dialect=NULLS)
    high, names, units = (
        pl.col("file").replace_strict(
            {number: getattr(metric, each) for number, metric in metrics.items()}, return_dtype=dtype
        )
        for each, dtype in (("high", pl.Float64), ("name", pl.String), ("unit", pl.String))
    )
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
        todo = "Give it its name back: nothing inside says which metric it holds."
        raise TraceFormatError(message(str(path), expected, repr(path.name), todo))
    return METRICS[name]
