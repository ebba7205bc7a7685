"""Answers of the Prometheus HTTP API: saved files, and the points that a live server sends."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.inbox.core.dataset import REJECTS, Dataset
from gpuplanner.inbox.core.findings import Finding
from gpuplanner.inbox.core.lines.rows import Rows
from gpuplanner.inbox.core.source import matches
from gpuplanner.inbox.core.times import INSTANT
from gpuplanner.inbox.telemetry.readers.labels import DEVICE, READING, device
from gpuplanner.inbox.telemetry.readers.metrics import DCGM
from gpuplanner.inbox.telemetry.readers.pages import Hints, path_of, read_pages, reads
from gpuplanner.inbox.telemetry.sample_rows import Story, telemetry_of

SOURCE = "prometheus"
HELD = (
    "range answers hold the last value of a series for up to five minutes after its last scrape; "
    "a live read asks for the scrapes themselves"
)

MAX_RAW = 500
MAX_EPOCH = 1e11
"""Times beyond it are milliseconds, which the API does not send."""


@reads(matches(r'\A\s*\{.*"resultType"', re.S))
def read_prometheus(paths: Sequence[str | Path], hints: Hints) -> Dataset:
    r"""Read saved answers of ``/api/v1/query_range`` or ``/api/v1/query``.

    Every point is a row, numbered through the file. NaN is missing, and so is a point that is not there.
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
        series = answered(answer, str(path))
        warnings.extend(str(each)[:200] for each in answer.get("warnings") or ())
        return points(series, page.files, int(page.good["file"][0]), hints.node)

    rows = read_pages(paths, parse, source=SOURCE)
    return from_points(rows, warnings, notes=[HELD])


def from_points(rows: Rows, warnings: Sequence[str], notes: Sequence[str] = ()) -> Dataset:
    """Telemetry of the points of :func:`points`, with what the server warned of."""
    effect = "the server may have left out data"
    more = [Finding(f"the server warned: {each}", "warning", 1, effect, "") for each in warnings]
    return telemetry_of(rows, Story(SOURCE, notes=notes, more=more), DCGM)


def answered(answer: Any, where: str) -> list[Any]:  # noqa: ANN401 - anything that JSON can hold
    """Series of an answer of the HTTP API.

    Examples
    --------
    >>> answered({"status": "error", "errorType": "bad_data", "error": "parse error"}, "a.json")
    Traceback (most recent call last):
        ...
    gpuplanner.errors.TraceFormatError: a.json: expected an answer with data; got bad_data: parse error. ...
    """
    expected, todo = "an answer with data", "Mend the query and ask again."
    if isinstance(answer, dict) and answer.get("status") == "error":
        got = f"{answer.get('errorType')}: {str(answer.get('error'))[:300]}"
        raise TraceFormatError(message(where, expected, got, todo))
    data = answer.get("data") if isinstance(answer, dict) else None
    kind = data.get("resultType") if isinstance(data, dict) else None
    if kind not in ("matrix", "vector") or not isinstance(data.get("result"), list):  # type: ignore[union-attr]
        got = f"resultType {repr(kind)[:80]}"
        raise TraceFormatError(message(where, "an answer with a matrix or a vector", got, todo))
    return list(data["result"])  # type: ignore[index]


def points(series: Sequence[Any], files: tuple[Any, ...], number: int, node: str | None) -> Rows:
    """Rows of series, one per point; points and series of another form are rejected."""
    table: list[tuple[object, ...]] = []
    times: list[float | None] = []
    values: list[str | None] = []
    owners: list[int] = []
    for place, each in enumerate(series):
        labels, found = _series(each)
        name = None if labels is None else labels.get("__name__")
        table.append((json.dumps(labels, sort_keys=True)[:MAX_RAW], *device(labels, node), name))
        for point in found:
            time, value = _pair(point)
            times.append(time)
            values.append(value)
        owners += [place] * len(found)
    schema = pl.Schema({"raw": pl.String(), **DEVICE, "metric": pl.String()})
    good = pl.DataFrame(table, schema=schema, orient="row")[owners].with_columns(
        file=pl.lit(number, pl.UInt32),
        line=pl.int_range(1, len(times) + 1, dtype=pl.UInt32, eager=True),
        seconds=pl.Series(times, dtype=pl.Float64),
        value=pl.Series(values, dtype=pl.String),
    )
    good = good.with_columns(
        raw=pl.format("{} {} {}", "raw", pl.col("seconds").fill_null(0.0), pl.col("value").fill_null("?")),
        time=(pl.col("seconds") * 1e6).round().cast(pl.Int64).cast(INSTANT),
    )
    rows = Rows(files, len(times), good.select(READING.names()), pl.DataFrame(schema=REJECTS))
    return rows.reject(
        {
            "not a pair of a time and a text": pl.col("value").is_null() | pl.col("time").is_null(),
            "not a GPU metric": ~pl.col("metric").str.starts_with("DCGM_").fill_null(False),
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
