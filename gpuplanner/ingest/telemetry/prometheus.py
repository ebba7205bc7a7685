"""Prometheus: saved answers, and queries of a live server."""

from __future__ import annotations

import hashlib
import ipaddress
import itertools
import json
import math
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any, NoReturn
from urllib.parse import SplitResult, urlencode, urlsplit

import polars as pl

from gpuplanner.core.errors import TraceFormatError, message
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import REJECTS, Rows
from gpuplanner.ingest.quality_report import Finding
from gpuplanner.ingest.row_reader import series_of_answer
from gpuplanner.ingest.source_definition import matches
from gpuplanner.ingest.source_fields import INSTANT, iso, known_origin
from gpuplanner.ingest.telemetry.metric_definitions import EXPORTED, READING, devices
from gpuplanner.ingest.telemetry.monitor_logs import QueryMetric, exported_readings
from gpuplanner.ingest.telemetry.sample_table import Story, telemetry_of
from gpuplanner.ingest.telemetry.telemetry_files import Hints, path_of, read_pages, reads
from gpuplanner.ingest.text_files import TextFile

SOURCE = "prometheus"
HELD = (
    "range answers hold the last value of a series for up to five minutes after its last scrape; "
    "gpuplanner scrape reads the raw scrapes"
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
            got, todo = str(error)[:200], "Save the whole answer."
            raise TraceFormatError(str(path), "a JSON answer", got, todo) from error
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
    got = f"series that differ by {', '.join(labels) or 'nothing'} only"
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
    read = [_series(each) for each in series]
    labels_of = [labels for labels, _ in read]
    named = devices(labels_of, node).with_columns(
        metric=pl.Series([(labels or {}).get("__name__") for labels in labels_of], dtype=pl.String),
        series=pl.Series([json.dumps(one, sort_keys=True) for one in labels_of], dtype=pl.String),
    )
    owners = [place for place, (_, found) in enumerate(read) for _ in found]
    pairs = [_pair(point) for _, found in read for point in found]
    good = named[owners].with_columns(
        raw=pl.col("series").str.slice(0, MAX_RAW),
        file=pl.lit(number, pl.UInt32),
        line=pl.int_range(1, len(pairs) + 1, dtype=pl.UInt32, eager=True),
        seconds=pl.Series([time for time, _ in pairs], dtype=pl.Float64),
        value=pl.Series([value for _, value in pairs], dtype=pl.String),
    )
    good = good.with_columns(
        raw=pl.format("{} {} {}", "raw", pl.col("seconds").fill_null(0.0), pl.col("value").fill_null("?")),
        time=(pl.col("seconds") * 1e6).round().cast(pl.Int64).cast(INSTANT),
    )
    good = good.select(*READING.names(), "series").sort("time", maintain_order=True)
    good = good if query_metric is None else query_metric.apply(good)
    rows = Rows(files, len(pairs), good, pl.DataFrame(schema=REJECTS))
    return rows.reject(
        {
            "not a pair of a time and a text": pl.col("value").is_null() | pl.col("time").is_null(),
            NAMELESS: pl.col("metric").is_null(),
        }
    )


def _pair(point: Any) -> tuple[float | None, str | None]:  # noqa: ANN401
    """Time and value of a point; None if it is no such pair."""
    match point:
        case [int() | float() as time, str() as value] if type(time) is not bool and abs(time) < MAX_EPOCH:
            return float(time), value
    return None, None


def _series(each: Any) -> tuple[dict[str, str] | None, list[Any]]:  # noqa: ANN401
    """Labels and points of one series."""
    if not isinstance(each, dict):
        return None, [None]
    labels, found = each.get("metric"), each.get("values", [each["value"]] if "value" in each else [None])
    right = isinstance(labels, dict) and all(isinstance(value, str) for value in labels.values())
    return labels if right else None, found if isinstance(found, list) else [None]


TOKEN_VARIABLE = "GPUPLANNER_PROMETHEUS_TOKEN"
"""Environment variable that holds the bearer token; a secret is never an argument."""

MAX_ANSWER_BYTES = 1 << 30
STEP_BYTES = 1 << 16
PATIENCE = 10
"""A whole answer may take this many times the time-out of a single read."""


@dataclass(frozen=True)
class Server:
    """A Prometheus, or anything that speaks its HTTP API.

    Attributes
    ----------
    url : str
        Up to, and without, ``/api/v1``.
    timeout_s : float
        Seconds to wait for a connection, and for more of an answer.
    ca_file : str or Path, optional
        Certificates to trust, where the system's do not suffice. TLS is always verified.
    """

    url: str
    timeout_s: float = 30.0
    ca_file: str | Path | None = None

    def __post_init__(self) -> None:
        parts = self.parts
        if parts.scheme not in ("http", "https") or not parts.hostname:
            self.refuse("an http or https address", "none", "Give it like https://prometheus.example:9090.")
        if parts.username or parts.password or parts.query or parts.fragment:
            got = "one with a user, a query or a fragment in it"
            self.refuse("a bare address", got, f"Secrets belong into {TOKEN_VARIABLE}.")

    @property
    def parts(self) -> SplitResult:
        """Parts of the address."""
        return urlsplit(self.url)

    @property
    def host(self) -> str:
        """Host and port, the only part of the address that messages show."""
        return self.parts.netloc.rpartition("@")[2]

    def get(self, path: str, **fields: str) -> tuple[Any, bytes]:
        """Answer to one query, as read and as sent.

        Raises
        ------
        TraceFormatError
            If the server cannot be reached in time, is not whom its certificate should show, sends the
            query elsewhere, or answers with an error or something else than JSON.
        """
        request = urllib.request.Request(f"{self.url.rstrip('/')}{path}?{urlencode(fields)}")
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        if token:
            if self.parts.scheme != "https" and not _is_loopback(self.parts.hostname or ""):
                self.refuse("https where a token is sent", "http", f"Use https, or unset {TOKEN_VARIABLE}.")
            request.add_header("Authorization", f"Bearer {token}")
        try:
            context = ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
            https = urllib.request.HTTPSHandler(context=context)
            opener = urllib.request.build_opener(https, _SameHost(self))
            with opener.open(request, timeout=self.timeout_s) as response:
                body = self._body(response)
        except TraceFormatError:
            raise
        except urllib.error.HTTPError as error:
            with error:
                self._refused(error)
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            todo = "Check the address, the network and the certificate (ca_file)."
            self.refuse("an answer", f"{type(reason).__name__}: {str(reason)[:300]}", todo)
        try:
            return json.loads(body), body
        except (ValueError, RecursionError):
            todo = "Is the address that of the API, not of a login page?"
            return self.refuse("an answer in JSON", repr(body[:100]), todo)

    def refuse(self, expected: str, got: str, todo: str) -> NoReturn:
        """Raise the four-part message; it names the host, and neither token nor query."""
        raise TraceFormatError(f"Prometheus at {self.host!r}", expected, got, todo)

    def _body(self, response: Any) -> bytes:  # noqa: ANN401 - urllib's own response
        pieces, size, give_up = [], 0, time.monotonic() + PATIENCE * self.timeout_s
        while piece := response.read1(STEP_BYTES):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_ANSWER_BYTES:
                todo = "Request fewer series (--match), or a shorter span."
                self.refuse(f"at most {MAX_ANSWER_BYTES} bytes", "more", todo)
            if time.monotonic() > give_up:
                got = f"a part of it after {PATIENCE * self.timeout_s:g} s"
                self.refuse("a whole answer", got, "Request a shorter span, or raise timeout_s.")
        stated = response.headers.get("Content-Length")
        if stated is not None and stated.isdigit() and int(stated) != size:
            self.refuse(f"{stated} bytes", f"{size}: the response is incomplete", "Try again.")
        return b"".join(pieces)

    def _refused(self, error: urllib.error.HTTPError) -> NoReturn:
        """Say what the server's status and its own words mean."""
        try:
            answer = json.loads(error.read(STEP_BYTES))
            words = f"{answer['errorType']}: {str(answer['error'])[:300]}"
        except (OSError, HTTPException, ValueError, KeyError, TypeError, RecursionError):
            words = error.reason
        todo = "Fix the query and try again."
        if error.code in (401, 403):
            todo = f"Put a valid token into {TOKEN_VARIABLE}."
        elif error.code == 404:
            todo = "Give the address up to, and without, /api/v1."
        self.refuse("an answer", f"status {error.code}, {words}", todo)


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follow a redirect only where it stays at the same scheme, host and port."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        there, here = urlsplit(newurl), self.server.parts
        if (there.scheme, there.netloc) != (here.scheme, here.netloc):
            fp.close()
            got = f"a redirect to {there.scheme}://{there.netloc.rpartition('@')[2]}"
            self.server.refuse("an answer from this host", got, "Give that address, if you trust it.")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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
        raise TraceFormatError("live telemetry", "an end after the start", got, "Fix --start or --end.")
    if (last - first) / interval_ms > MAX_CHUNKS * MAX_POINTS:
        got = f"{math.ceil((last - first) / interval_ms)} points a series"
        raise TraceFormatError("live telemetry", "a shorter span", got, "Read month by month.")
    selector = _selector(matchers or {})
    asked = list(chunks(selector, first, last, interval_ms, scrapes=step_s is None))
    digest, size, warnings, answers = hashlib.sha256(), 0, [], []
    for chunk in asked:
        answer, body = server.get(chunk.path, **chunk.fields)
        digest.update(body)
        size += len(body)
        answers.append(series_of_answer(answer, f"Prometheus at {server.host!r}"))
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
        raise TraceFormatError("matchers", "names of labels", repr(strange[0]), "Fix --match LABEL=VALUE.")
    parts = [f'__name__=~"{"|".join(name for name in EXPORTED if " " not in name)}"']
    parts += [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in sorted(matchers.items())]
    return "{" + ",".join(parts) + "}"
