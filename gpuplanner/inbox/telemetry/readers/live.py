"""Telemetry from a live Prometheus: asked in chunks, joined without double borders, gaps left as gaps."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.lines.text_file import TextFile
from gpuplanner.inbox.core.times import iso, known_origin
from gpuplanner.inbox.telemetry.readers.metrics import DCGM
from gpuplanner.inbox.telemetry.readers.prometheus import answered, from_points, points
from gpuplanner.inbox.telemetry.readers.transport import Server

MAX_POINTS = 11_000
"""Most points per series that Prometheus gives in one answer [1]_.

References
----------
.. [1] prometheus/prometheus, issue 2253; web/api/v1/api.go: exceeded maximum resolution of 11,000 points per
   timeseries.
"""

MAX_CHUNKS = 10_000
LABEL_NAME = re.compile(r"[a-zA-Z_]\w*")


@dataclass(frozen=True)
class Chunk:
    """One query: path of the API and its fields."""

    path: str
    fields: Mapping[str, str]


def chunks(selector: str, first_ms: int, last_ms: int, interval_ms: int, *, scrapes: bool) -> Iterator[Chunk]:
    """Queries that together cover a span, none with more than 11,000 points a series.

    The scrapes themselves come from an instant query over a range of time: nothing is interpolated, and
    where there was no scrape there is no point. A range query instead repeats the last value of a series for
    up to five minutes; here it looks back by one step only.

    Examples
    --------
    >>> [chunk.fields["time"] for chunk in chunks("up", 0, 330_000_000, 15_000, scrapes=True)]
    ['164984.999', '329969.999', '330000.0']
    """
    reach = (MAX_POINTS - 1) * interval_ms
    if scrapes:
        # Prometheus 2 counts both ends of a window, Prometheus 3 the later one only: both see the first instant.
        for begin in range(first_ms - 1, last_ms, reach):
            end = min(begin + reach, last_ms)
            yield Chunk("/api/v1/query", {"query": f"{selector}[{end - begin}ms]", "time": str(end / 1e3)})
        return
    query = f"last_over_time({selector}[{interval_ms}ms])"
    for start in range(first_ms, last_ms + 1, reach + interval_ms):
        fields = {"start": start / 1e3, "end": min(start + reach, last_ms) / 1e3, "step": interval_ms / 1e3}
        yield Chunk("/api/v1/query_range", {"query": query} | {name: str(v) for name, v in fields.items()})


def read_live(
    server: Server | str,
    start: datetime | str,
    end: datetime | str,
    *,
    interval_s: float = 15.0,
    step_s: float | None = None,
    matchers: Mapping[str, str] | None = None,
) -> Dataset:
    """Read GPU metrics of a span from a live Prometheus.

    A bearer token is taken from the environment variable ``GPUPLANNER_PROMETHEUS_TOKEN``.

    Parameters
    ----------
    server : Server or str
        The server, or its address.
    start, end : datetime or str
        Span with offsets from UTC, both ends included.
    interval_s : float
        Scrape interval [s]; sets how long a chunk may be.
    step_s : float, optional
        Ask for a grid of this step [s] instead of the scrapes themselves.
    matchers : mapping of str to str, optional
        Label → value that the series must have, such as ``{"cluster": "a"}``.

    Returns
    -------
    Dataset
        The same as from a file with the same points.

    Raises
    ------
    TraceFormatError
        If the span is empty or too long, the server does not answer, or has no such metrics then.
    """
    server = Server(server) if isinstance(server, str) else server
    first, last = (round(known_origin(instant).timestamp() * 1e3) for instant in (start, end))
    interval_ms = round(1e3 * (interval_s if step_s is None else step_s))
    if interval_ms < 1 or last < first:
        got = f"{iso(known_origin(start))} to {iso(known_origin(end))}, interval {interval_ms} ms"
        raise TraceFormatError(message("live telemetry", "a span and an interval", got, "Mend them."))
    if (last - first) / interval_ms > MAX_CHUNKS * MAX_POINTS:
        got = f"{math.ceil((last - first) / interval_ms)} points a series"
        raise TraceFormatError(message("live telemetry", "a shorter span", got, "Read month by month."))
    selector = _selector(matchers or {})
    asked = list(chunks(selector, first, last, interval_ms, scrapes=step_s is None))
    digest, size, warnings, answers = hashlib.sha256(), 0, [], []
    for chunk in asked:
        answer, body = server.get(chunk.path, **chunk.fields)
        digest.update(body)
        size += len(body)
        answers.append(answered(answer, f"Prometheus at {server.host!r}"))
        warnings += [str(each)[:200] for each in answer.get("warnings") or ()]
    lines = pl.DataFrame(schema={"line": pl.UInt32, "text": pl.String})
    file = TextFile(Path(server.host), digest.hexdigest(), size, lines, False, False, False)
    rows = points(joined(answers, first, last), (file,), 0, None)
    note = f"{len(asked)} queries of {asked[0].path} for {selector}"
    return from_points(rows, list(dict.fromkeys(warnings)), notes=[note])


def joined(answers: list[list[Any]], first_ms: int, last_ms: int) -> list[Any]:
    """Series of several answers in time order, each point once, none outside the span.

    Examples
    --------
    >>> early, late = ([{"metric": {"gpu": "0"}, "values": [[t, "1"], [t + 1, "2"]]}] for t in (5, 6))
    >>> joined([early, late], 5000, 6500)
    [{'metric': {'gpu': '0'}, 'values': [[5, '1'], [6, '2']]}]
    """
    series: dict[str, dict[str, Any]] = {}
    strange: list[Any] = []
    for each in itertools.chain.from_iterable(answers):
        if not (isinstance(each, dict) and isinstance(each.get("values"), list)):
            strange.append(each)
            continue
        key = json.dumps(each.get("metric"), sort_keys=True)
        known = series.setdefault(key, {"metric": each.get("metric"), "values": []})["values"]
        latest = known[-1][0] if known else -math.inf
        known += [point for point in each["values"] if _is_due(point, latest, first_ms, last_ms)]
    return [series[key] for key in sorted(series)] + strange


def _is_due(point: Any, latest: float, first_ms: int, last_ms: int) -> bool:  # noqa: ANN401
    """Whether a point is new and within the span; one that cannot be read is due, to be rejected later."""
    match point:
        case [int() | float() as time, str()]:
            return time > latest and first_ms <= round(time * 1e3) <= last_ms
    return True


def _selector(matchers: Mapping[str, str]) -> str:
    """Selector of all metrics that are read, with the matchers quoted."""
    strange = [name for name in matchers if not LABEL_NAME.fullmatch(name)]
    if strange:
        raise TraceFormatError(message("matchers", "names of labels", repr(strange[0]), "Mend the name."))
    parts = [f'__name__=~"{"|".join(DCGM)}"']
    parts += [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in sorted(matchers.items())]
    return "{" + ",".join(parts) + "}"
