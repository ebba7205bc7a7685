"""Requests of inference services in a dataset: of a trace, of serving metrics or of rates, and measured latencies."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import numpy as np
import polars as pl

from gpuplanner.core.errors import ScenarioError, examples
from gpuplanner.planner.replica_schedule import TTFT_LATE_SHARE
from gpuplanner.sizing.replica_queue import RequestStream

REQUESTS_TABLE, SERVING_TABLE, GAUGES_TABLE = "requests", "serving", "gauges"
"""Tables of a dataset with one row a request, one a minute and replica, and one a reading of a container."""
REQUEST_TABLES = (REQUESTS_TABLE, SERVING_TABLE, GAUGES_TABLE)
"""Tables of a dataset that services are planned from."""


def read_request_stream(requests: pl.DataFrame) -> tuple[RequestStream, datetime]:
    """Read requests as a stream from the begin of their first hour; requests without tokens count as one token."""
    first: datetime = requests["time"][0]
    begin = first.replace(minute=0, second=0, microsecond=0)
    arrival_s = requests.select((pl.col("time") - begin).dt.total_microseconds() / 1e6).to_series().to_numpy()
    tokens = [
        np.maximum(requests[name].to_numpy().astype(np.int64), 1) for name in ("prompt_tokens", "generated_tokens")
    ]
    return RequestStream(arrival_s, *tokens), begin


def count_requests_by_service(tables: Mapping[str, pl.LazyFrame]) -> dict[str, int]:
    """Count the requests of each service in the tables of a dataset, or the readings of their rate; most first.

    Examples
    --------
    >>> count_requests_by_service({"requests": pl.LazyFrame({"service": ["chat", "code", "chat"]})})
    {'chat': 2, 'code': 1}
    """
    columns = {REQUESTS_TABLE: ("service", pl.lit(1)), SERVING_TABLE: ("service", pl.col("requests"))}
    columns[GAUGES_TABLE] = ("kind", pl.lit(1))
    counts: dict[str, int] = {}
    for name, (column, count) in columns.items():
        if name in tables:
            table = tables[name].filter(metric="requests") if name == GAUGES_TABLE else tables[name]
            rows = table.select(service=pl.col(column).cast(pl.String), count=count).drop_nulls("service")
            sums = rows.group_by("service").agg(pl.col("count").sum()).sort("service").collect()
            # A service of a trace is not counted again in its metrics.
            counts = {service: round(total) for service, total in sums.iter_rows()} | counts
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def draw_requests(minutes: pl.DataFrame, seed: int) -> pl.DataFrame:
    """Draw requests from serving metrics: at random instants of each minute, with the mean lengths of its hour.

    Lengths scatter about the mean as the histograms of all minutes do; without histograms all are equal.

    Parameters
    ----------
    minutes : polars.DataFrame
        Table ``serving`` of one service.
    seed : int
        Seed of instants and lengths.

    Returns
    -------
    polars.DataFrame
        ``time``, ``team``, ``prompt_tokens`` and ``generated_tokens``, one row a request.

    Raises
    ------
    ScenarioError
        If the metrics count no requests, or no tokens.
    """
    counters = ("requests", "prompt_tokens", "generated_tokens")
    totals = minutes.group_by("time", "team", maintain_order=True).agg(pl.col(counters).sum()).sort("time", "team")
    missing = [name for name in counters if not totals[name].sum()]
    if missing:
        name = str(minutes["service"][0])
        todo = "Query the counters of requests and of tokens too: vllm:.*_total or sglang:.*_total."
        raise ScenarioError(f"serving metrics of {name}", ", ".join(counters), f"no {examples(missing)}", todo)
    # A request may end in another minute than its tokens are counted: lengths are those of the hour.
    hour = pl.col("time").dt.truncate("1h")
    means = totals.group_by("team", hour=hour, maintain_order=True).agg(pl.col(counters).sum())
    rows = totals.with_columns(hour=hour).join(means, on=["team", "hour"], suffix="_of_hour", nulls_equal=True)
    rows = rows.with_columns(pl.col("requests").round().cast(pl.Int64)).filter(pl.col("requests") > 0)
    drawn = rows.select(pl.all().repeat_by("requests").explode())
    rng = np.random.default_rng([seed, 59])
    offset_us = rng.integers(0, 60_000_000, drawn.height)
    lengths = {
        name: (pl.col(f"{name}_of_hour") / pl.col("requests_of_hour") * scatter).round().clip(1).cast(pl.Int64)
        for name in counters[1:]
        for scatter in [_draw_relative_lengths(minutes, f"{name.removesuffix('_tokens')}_buckets", drawn.height, rng)]
    }
    return drawn.select(
        pl.col("time") + pl.Series(offset_us).cast(pl.Duration("us")), "team", **lengths
    ).sort("time")  # fmt: skip


def _draw_relative_lengths(minutes: pl.DataFrame, column: str, count: int, rng: np.random.Generator) -> pl.Series:
    """Draw lengths over their mean from a histogram of serving metrics, evenly within a bucket; 1 without any."""
    sums = sum_buckets(minutes, column)
    lengths = np.ones(count)
    if count and sums["bound"].is_finite().any():
        upper_bounds = sums["bound"].to_numpy()
        bounds = [0.0, *np.minimum(upper_bounds, upper_bounds[np.isfinite(upper_bounds)].max())]
        lengths = np.interp(rng.random(count), [0.0, *(sums["count"] / sums["count"][-1])], bounds)
    return pl.Series(lengths / lengths.mean())


def sum_buckets(minutes: pl.DataFrame, column: str) -> pl.DataFrame:
    """Sum the cumulative buckets of a histogram of serving metrics over minutes and replicas; empty without any.

    Replicas may have other buckets: only the bounds that all of them have are used.

    Parameters
    ----------
    minutes : polars.DataFrame
        Table ``serving`` of one service.
    column : str
        Column of the histogram, such as ``ttft_buckets``.

    Returns
    -------
    polars.DataFrame
        ``bound`` and ``count``, the observations up to it, by bound.
    """
    bucket = pl.col("bucket").str.split_exact(":", 1)
    rows = minutes.select("replica", bucket=pl.col(column).str.split(" ")).explode("bucket").drop_nulls()
    bound = bucket.struct[0].str.to_lowercase().str.strip_prefix("+").cast(pl.Float64)
    sums = rows.group_by(bound=bound).agg(
        count=bucket.struct[1].cast(pl.Int64).sum(), replicas=pl.col("replica").n_unique()
    ).filter(pl.col("replicas") == rows["replica"].n_unique()).sort("bound")  # fmt: skip
    return sums.drop("replicas") if sums["count"].sum() else sums.clear()


def measure_ttft_p99(minutes: pl.DataFrame) -> tuple[float, float] | None:
    """Measure the bounds of the p99 time to the first token by the buckets of serving metrics; None without any [s].

    Examples
    --------
    >>> buckets = ["0.2:0 0.5:7 1.0:9 +Inf:9", "0.5:4 1.0:5 +Inf:5"]
    >>> measure_ttft_p99(pl.DataFrame({"replica": ["a", "b"], "ttft_buckets": buckets}))
    (0.5, 1.0)
    """
    sums = sum_buckets(minutes, "ttft_buckets")
    if sums.is_empty():
        return None
    rank = int(np.searchsorted(sums["count"].to_numpy(), (1 - TTFT_LATE_SHARE) * sums["count"][-1]))
    bounds_s = [0.0, *sums["bound"]]
    return bounds_s[rank], bounds_s[rank + 1]
