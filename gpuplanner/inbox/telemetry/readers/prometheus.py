"""Answers of the Prometheus HTTP API: saved files, and the points that a live server sends."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.lines.reject_columns import REJECTS
from gpuplanner.inbox.core.exposition import series_of_answer
from gpuplanner.inbox.core.findings import Finding
from gpuplanner.inbox.core.lines.rows import Rows
from gpuplanner.inbox.core.source import matches
from gpuplanner.inbox.core.times import INSTANT
from gpuplanner.inbox.telemetry.readers.exported import QueryMetric, exported_readings
from gpuplanner.inbox.telemetry.readers.labels import READING, devices
from gpuplanner.inbox.telemetry.readers.metrics import EXPORTED
from gpuplanner.inbox.telemetry.readers.pages import Hints, path_of, read_pages, reads
from gpuplanner.inbox.telemetry.sample_rows import Story, telemetry_of

SOURCE = "prometheus"
HELD = (
    "range answers hold the last value of a series for up to five minutes after its last scrape; "
    "a live read asks for the scrapes themselves"
)

NAMELESS = "a series without the name of its metric"
MAX_RAW = 500
MAX_EPOCH = 1e11
"""Times beyond it are milliseconds, which the API does not send."""


@reads(matches(r'\A\s*\{.*"resultType"', re.S))
def read_prometheus(paths: Sequence[str | Path], hints: Hints) -> Dataset:
    r"""Read saved answers of ``/api/v1/query_range`` or ``/api/v1/query``.

    Every point is a row, numbered through the file. NaN is missing, and so is a point that is not there. Functions
    over time take the name of the metric away: the query, as ``query`` beside the data or as a hint, tells it, and that
    a mean over a step is of the time before the instant.
    The label ``job`` is the scrape job; jobs are known by ``hpc_job`` or by pod.

    Examples
    --------
    >>> import tempfile
    >>> series = {"metric": {"__name__": "DCGM_FI_DEV_GPU_UTIL", "gpu": "0", "hostname": "n1"}}
    >>> answer = {"resultType": "matrix", "result": [series | {"values": [[1775006190, "98"]]}]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "answer.json"
    ...     _ = path.write_text(json.dumps({"status": "success", "data": answer}))
    ...     read_prometheus([path]).samples["sm_activity", "activity_source"].row(0)
    (0.98, 'legacy')
    """
    warnings: list[str] = []

    def parse(page: Rows) -> Rows:
        path = path_of(page)
        try:
            text = "\n".join(page.good["raw"])
            answer = json.loads(text)
            if "\\ud" in text.lower():  # half of a surrogate pair is no text, though JSON can write it
                json.dumps(answer, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            fault = message(str(path), "a JSON answer", str(error)[:200], "Save the whole answer.")
            raise TraceFormatError(fault) from error
        series = series_of_answer(answer, str(path))
        warnings.extend(str(each)[:200] for each in answer.get("warnings") or ())
        query = hints.query or str(answer.get("query") or "")
        rows = points(series, page.files, int(page.good["file"][0]), hints.node, QueryMetric.of(query))
        if rows.good.is_empty() and (rows.rejects["reason"] == NAMELESS).any():
            raise TraceFormatError(_nameless(series[0], str(path)))
        return rows

    rows = read_pages(paths, parse, source=SOURCE)
    return from_points(rows, warnings, notes=[HELD])


def from_points(rows: Rows, warnings: Sequence[str], notes: Sequence[str] = ()) -> Dataset:
    """Telemetry of the points of :func:`points`, with what the server warned of."""
    effect = "the server may have left out data"
    more = [Finding(f"the server warned: {each}", "warning", 1, effect, "") for each in warnings]
    rows, found = exported_readings(rows)
    return telemetry_of(rows, Story(SOURCE, notes=notes, more=[*more, *found]), EXPORTED)


def _nameless(each: Any, where: str) -> str:  # noqa: ANN401
    """Error for an answer without the names of its metrics."""
    labels = _series(each)[0] or {}
    todo = (
        "Functions and 'by' take the name away: keep the labels, and give the query, for example --query "
        "'avg_over_time(DCGM_FI_PROF_SM_ACTIVE[5m])'."
    )
    got = f"series that are told apart by {', '.join(labels) or 'nothing'} alone"
    return message(where, "the name of the metric, the GPU and its node in each series", got, todo)


def points(
    series: Sequence[Any],
    files: tuple[Any, ...],
    number: int,
    node: str | None,
    query_metric: QueryMetric | None = None,
) -> Rows:
    """Rows of series, one per point, in the order of time; points and series of another form are rejected.

    Parameters
    ----------
    series : sequence
        Series of an answer.
    files : tuple of TextFile
        All files that are read.
    number : int
        Place of the file of the answer among them.
    node : str, optional
        Node of series that do not name theirs.
    query_metric : QueryMetric, optional
        What the query made of the metric.
    """
    series = list(series)
    labels_of = [_series(each)[0] for each in series]
    named = devices(labels_of, node).with_columns(
        metric=pl.Series(
            [None if one is None else one.get("__name__") for one in labels_of], dtype=pl.String
        ),
        series=pl.Series([json.dumps(one, sort_keys=True) for one in labels_of], dtype=pl.String),
    )
    times: list[float | None] = []
    values: list[str | None] = []
    owners: list[int] = []
    for place, each in enumerate(series):
        found = _series(each)[1]
        for point in found:
            time, value = _pair(point)
            times.append(time)
            values.append(value)
        owners += [place] * len(found)
    good = named[owners].with_columns(
        raw=pl.col("series").str.slice(0, MAX_RAW),
        file=pl.lit(number, pl.UInt32),
        line=pl.int_range(1, len(times) + 1, dtype=pl.UInt32, eager=True),
        seconds=pl.Series(times, dtype=pl.Float64),
        value=pl.Series(values, dtype=pl.String),
    )
    good = good.with_columns(
        raw=pl.format("{} {} {}", "raw", pl.col("seconds").fill_null(0.0), pl.col("value").fill_null("?")),
        time=(pl.col("seconds") * 1e6).round().cast(pl.Int64).cast(INSTANT),
    )
    good = good.select(*READING.names(), "series").sort("time", maintain_order=True)
    good = good if query_metric is None else query_metric.apply(good)
    rows = Rows(files, len(times), good, pl.DataFrame(schema=REJECTS))
    return rows.reject(
        {
            "not a pair of a time and a text": pl.col("value").is_null() | pl.col("time").is_null(),
            NAMELESS: pl.col("metric").is_null(),
        }
    )


def _pair(point: Any) -> tuple[float | None, str | None]:  # noqa: ANN401
    """Time and value of a point; None if it is no such pair."""
    match point:
        case [int() | float() as time, str() as value] if (
            not isinstance(time, bool) and abs(time) < MAX_EPOCH
        ):
            return float(time), value
    return None, None


def _series(each: Any) -> tuple[dict[str, str] | None, list[Any]]:  # noqa: ANN401
    """Labels and points of one series."""
    if not isinstance(each, dict):
        return None, [None]
    labels, found = each.get("metric"), each.get("values", [each["value"]] if "value" in each else [None])
    right = isinstance(labels, dict) and all(isinstance(value, str) for value in labels.values())
    return labels if right else None, found if isinstance(found, list) else [None]
