"""Readers of the metrics of language-model servers (vLLM, SGLang) in answers of Prometheus, and its live queries."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.hardware.catalog import facts
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import REJECT_TABLE_SCHEMA, Rows
from gpuplanner.ingest.quality_report import source_finding
from gpuplanner.ingest.source_definition import matches_pattern, register_sniffer
from gpuplanner.ingest.source_fields import UTC_TIME_DTYPE
from gpuplanner.ingest.table_assembly import assemble_table
from gpuplanner.ingest.telemetry.prometheus import (
    PrometheusServer,
    load_answer,
    make_selector,
    parse_point,
    parse_series,
    query_span,
)
from gpuplanner.ingest.telemetry.telemetry_row_parsing import read_pages

SERVING_SOURCE = "serving"
"""Name of this source in messages and provenance."""
SERVING_QUANTITY_BY_METRIC: dict[str, str] = dict(
    facts("telemetry_metrics").filter(tool=SERVING_SOURCE).select("name", "quantity").iter_rows()
)
"""Name of a metric of vLLM or SGLang → the quantity that it measures, such as ``generated_tokens``."""
SERVING_PATTERN = "(?:vllm|sglang):"
"""Regular expression of the beginning of the names of metrics of vLLM and SGLang."""
GAUGE = "running"
"""Quantity that is a gauge, the number of running requests; all others are counters."""
HISTOGRAM_SUFFIX_PATTERN = re.compile(r"_(sum|count|bucket)$")
"""Ending of the metric name of a series that belongs to a Prometheus histogram."""
SERVICE_LABELS, TEAM_LABELS = ("model_name", "model"), ("team", "namespace", "exported_namespace")
"""Labels that name the model of a server, and its team, the first that is there."""
REPLICA_LABELS = ("pod", "instance", "engine")
"""Labels that tell the replicas of a model apart."""
INTERVAL_TEXT = "1m"
"""Interval over which readings are summed, one minute, as polars writes durations."""
MAX_NUMBER = 1e15
"""Largest value of a metric of vLLM or SGLang that is accepted."""


@register_sniffer(matches_pattern(rf'(?s)\A\s*\{{(?=.*"resultType").*"{SERVING_PATTERN}'))
def read_serving(paths: Sequence[str | Path]) -> Dataset:
    r"""Read saved answers of ``/api/v1/query_range`` or ``/api/v1/query`` with metrics of vLLM or SGLang.

    Counters are turned into what they rise by from reading to reading; after a reset they count from zero. Readings are
    summed by minute and replica.

    Parameters
    ----------
    paths : sequence of str or Path
        JSON files.

    Returns
    -------
    Dataset
        With the table ``serving``: requests, tokens, running requests and latencies by minute and replica.

    References
    ----------
    .. [1] vLLM documentation, production metrics.
    .. [2] SGLang documentation, production metrics.

    Examples
    --------
    >>> import json, tempfile
    >>> labels = {"__name__": "vllm:generation_tokens_total", "model_name": "llama-3.1-8b", "pod": "a"}
    >>> series = {"metric": labels, "values": [[1775006160, "100"], [1775006175, "400"], [1775006190, "50"]]}
    >>> answer = {"status": "success", "data": {"resultType": "matrix", "result": [series]}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "answer.json"
    ...     _ = path.write_text(json.dumps(answer))
    ...     read_serving([path]).table["generated_tokens"].to_list()
    [350.0]
    """

    def parse_answer_page(page_rows: Rows) -> Rows:
        """Convert the series of one stored answer of Prometheus to rows of readings."""
        return parse_serving_points(load_answer(page_rows)[1], page_rows.files, int(page_rows.good["file"][0]))

    return build_serving(read_pages(paths, parse_answer_page, source=SERVING_SOURCE))


def parse_serving_points(series: Sequence[Any], files: tuple[Any, ...], file_number: int) -> Rows:
    """Parse series of Prometheus to rows, one a point; points that are no numbers are rejected.

    Parameters
    ----------
    series : sequence
        Series of an answer.
    files : tuple of TextFile
        All files that are read.
    file_number : int
        Number of the file of the answer.
    """
    points: list[tuple[Any, ...]] = []
    for number, one_series in enumerate(series):
        labels, values = parse_series(one_series)
        labels = labels or {}
        name = labels.get("__name__", "")
        part = HISTOGRAM_SUFFIX_PATTERN.search(name)
        quantity = SERVING_QUANTITY_BY_METRIC.get(HISTOGRAM_SUFFIX_PATTERN.sub("", name))
        service, team = (_first_label(labels, names) for names in (SERVICE_LABELS, TEAM_LABELS))
        replica = "/".join(filter(None, (labels.get(label) for label in REPLICA_LABELS))) or "-"
        head = (number, name, quantity, part[1] if part else "value", labels.get("le"), service, team, replica)
        points += [(*head, *parse_point(point)) for point in values]
    schema = {
        "series": pl.Int64, "metric": pl.String, "quantity": pl.String, "part": pl.String, "le": pl.String,
        "service": pl.String, "team": pl.String, "replica": pl.String, "seconds": pl.Float64, "text": pl.String,
    }  # fmt: skip
    good = pl.DataFrame(points, schema=schema, orient="row").with_columns(
        value=pl.col("text").cast(pl.Float64, strict=False),
        file=pl.lit(file_number, pl.UInt32),
        line=pl.int_range(1, len(points) + 1, dtype=pl.UInt32, eager=True),
        raw=pl.format("{} {} {}", "metric", pl.col("seconds").fill_null(0.0), pl.col("text").fill_null("?")),
        time=(pl.col("seconds") * 1e6).round().cast(pl.Int64).cast(UTC_TIME_DTYPE),
    )
    rows = Rows(files, len(points), good, pl.DataFrame(schema=REJECT_TABLE_SCHEMA))
    value = pl.col("value")
    return rows.reject({
        "not a pair of a time and a number": value.is_null() | pl.col("time").is_null(),
        "no number of a counter": ~value.is_between(0, MAX_NUMBER).fill_null(value=False),
        "a series without the name of its model (model_name)": pl.col("service").is_null(),
    })  # fmt: skip


def _first_label(labels: Mapping[str, str], names: Sequence[str]) -> str | None:
    """Return the value of the first label that a series has; None without any."""
    return next((labels[name] for name in names if labels.get(name)), None)


def build_serving(rows: Rows) -> Dataset:
    """Build the dataset of serving metrics from the rows of :func:`parse_serving_points`."""
    good = rows.good
    unused_metrics = good.filter(pl.col("quantity").is_null())["metric"].unique().sort().to_list()
    findings = []
    if unused_metrics:
        listed = ", ".join(unused_metrics[:6])
        findings.append(
            source_finding("serving: unused metrics", len(unused_metrics), unused_metrics[0], metrics=listed)
        )
    readings = good.filter(pl.col("quantity").is_not_null()).sort("series", "file", "time")
    readings = readings.with_columns(
        before=pl.col("value").shift().over("series", "file"), begin=pl.col("time").shift().over("series", "file")
    )
    resets = readings.filter(pl.col("quantity") != GAUGE, pl.col("value") < pl.col("before"))
    if resets.height:
        findings.append(source_finding("serving: counter resets", resets.height, str(resets["metric"][0])))
    edges = readings.filter(part="bucket").group_by("quantity", "replica").agg(pl.col("le").unique().sort())
    differing = edges.group_by("quantity").agg(pl.col("le").n_unique()).filter(pl.col("le") > 1)
    if differing.height:
        findings.append(source_finding("serving: other buckets", differing.height, differing["quantity"][0]))
    return assemble_table(
        replace(rows, good=readings),
        "serving",
        source=SERVING_SOURCE,
        sort_columns=["service", "replica", "time"],
        row_word="reading",
        reshape=sum_readings,
        findings=findings,
        totals={name: pl.col(name).sum() for name in ("requests", "prompt_tokens", "generated_tokens")},
    )


def sum_readings(readings: pl.DataFrame) -> pl.DataFrame:
    """Sum readings to table ``serving`` by minute and replica: rises of counters, means of gauges and histograms."""
    is_gauge, before = pl.col("quantity") == GAUGE, pl.col("before")
    rise = pl.when(pl.col("value") < before).then("value").otherwise(pl.col("value") - before)
    # What a counter rises by belongs to the time before the reading; the first reading of a series tells nothing.
    keys = ["service", "team", "replica", "time"]
    rises = readings.filter(~is_gauge, before.is_not_null())
    rises = rises.with_columns(rise=rise, time=pl.col("begin").dt.truncate(INTERVAL_TEXT))
    name = pl.col("quantity") + "/" + pl.col("part")
    counted = rises.filter(pl.col("part") != "bucket").group_by(*keys, name=name).agg(pl.col("rise").sum())
    gauges = (
        readings.filter(is_gauge)
        .with_columns(time=pl.col("time").dt.truncate(INTERVAL_TEXT))
        .group_by(*keys, "series")
        .agg(pl.col("value").mean())
        .group_by(*keys)
        .agg(rise=pl.col("value").sum())
        .with_columns(name=pl.lit(f"{GAUGE}/value"))
    )
    wide = pl.concat([counted, gauges.select(counted.columns)]).pivot("name", index=keys, values="rise")
    pair = pl.format("{}:{}", "le", pl.col("rise").round().cast(pl.Int64))
    buckets = rises.filter(part="bucket").group_by(*keys, "quantity", "le").agg(pl.col("rise").sum())
    for quantity in ("ttft", "prompt", "generated"):
        rows = buckets.filter(quantity=quantity).sort(*keys, "le").group_by(*keys, maintain_order=True)
        texts = rows.agg(pair.str.join(" ").alias(f"{quantity}_buckets"))
        wide = wide.join(texts, on=keys, how="full", coalesce=True, nulls_equal=True)
    names = [f"{quantity}/value" for quantity in ("requests", "prompt_tokens", "generated_tokens", GAUGE)]
    names += [f"{quantity}/{part}" for quantity in ("ttft", "token") for part in ("sum", "count")]
    wide = wide.with_columns(pl.lit(None, pl.Float64).alias(name) for name in names if name not in wide.columns)

    def mean(quantity: str) -> pl.Expr:
        """Mean latency in an interval by the sum and count of a histogram [s]; null without observations."""
        count = pl.col(f"{quantity}/count")
        return pl.when(count > 0).then(pl.col(f"{quantity}/sum") / count)

    return wide.select(
        "time", "service", "team", "replica",
        requests=pl.col("requests/value"), prompt_tokens=pl.col("prompt_tokens/value"),
        generated_tokens=pl.col("generated_tokens/value"), running=pl.col(f"{GAUGE}/value"),
        ttft_s=mean("ttft"), token_s=mean("token"),
        buckets=pl.struct("^.*_buckets$"),
    ).unnest("buckets")  # fmt: skip


def read_live_serving(
    server: PrometheusServer, start: datetime | str, end: datetime | str, *, interval_s: float = 15.0,
    matchers: Mapping[str, str] | None = None,
) -> Dataset:  # fmt: skip
    """Read the metrics of vLLM and SGLang of a time span from a live Prometheus.

    Parameters
    ----------
    server : PrometheusServer
        The server.
    start, end : datetime or str
        Span with UTC offsets, both ends included.
    interval_s : float
        Scrape interval [s].
    matchers : mapping of str to str, optional
        Label → value that the series must have.
    """
    names = "|".join(f"{name}(_sum|_count|_bucket)?" for name in SERVING_QUANTITY_BY_METRIC)
    answers = query_span(server, make_selector(names, matchers or {}), start, end, interval_s=interval_s)
    if not answers.series:
        todo = "Does this Prometheus scrape the servers in the span? Check --start, --end and --match."
        server.raise_server_error("series of vllm: or sglang: metrics", "none", todo)
    rows = parse_serving_points(answers.series, (answers.file,), 0)
    return build_serving(rows)
