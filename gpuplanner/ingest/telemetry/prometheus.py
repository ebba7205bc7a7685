"""Readers of Prometheus: saved responses, and queries of a live server."""

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

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import REJECT_TABLE_SCHEMA, Rows
from gpuplanner.ingest.quality_report import Finding
from gpuplanner.ingest.source_definition import matches_pattern
from gpuplanner.ingest.source_fields import UTC_TIME_DTYPE, format_utc, parse_origin
from gpuplanner.ingest.telemetry.metric_definitions import EXPORTED_METRICS, READING_SCHEMA, parse_devices
from gpuplanner.ingest.telemetry.monitor_logs import QueryMetric, normalise_readings
from gpuplanner.ingest.telemetry.sample_table_writer import SourceNotes, build_telemetry
from gpuplanner.ingest.telemetry.telemetry_row_parsing import TelemetryOptions, page_path, read_pages, telemetry_reader
from gpuplanner.ingest.text_files import TextFile
from gpuplanner.ingest.typed_row_reader import extract_series

PROMETHEUS_SOURCE = "prometheus"
"""Name of this source in messages and provenance."""

STALE_VALUE_NOTE = (
    "range answers hold the last value of a series for up to five minutes after its last scrape; "
    "gpuplanner scrape reads the raw scrapes"
)
"""Provenance note on range queries: they repeat the last value of a series for up to five minutes."""

UNNAMED_SERIES_REASON = "a series without the name of its metric"
"""Reject reason of a series without the name of its metric."""
MAX_RAW_SERIES_CHARACTERS = 500
"""Characters of a series that the reject table keeps."""
MAX_EPOCH_S = 1e11
"""Largest time in seconds since 1970 that is accepted [s]; a larger number must be in milliseconds."""


@telemetry_reader(matches_pattern(r'\A\s*\{.*"resultType"', re.S))
def read_prometheus(paths: Sequence[str | Path], options: TelemetryOptions) -> Dataset:
    r"""Read saved responses of ``/api/v1/query_range`` or ``/api/v1/query``.

    Every point is a row, numbered through the file. NaN is missing, and so is a point that is absent. Functions over
    time remove the name of the metric: the query, as ``query`` beside the data or as an option, states it, and that a
    mean over a step covers the time before the instant. The label ``job`` is the scrape job; cluster jobs are
    identified by ``hpc_job`` or by pod.

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

    def parse_answer_page(page_rows: Rows) -> Rows:
        """Convert the series of one stored answer of Prometheus to rows of readings."""
        path = page_path(page_rows)
        answer, series = load_answer(page_rows)
        warnings.extend(str(warning)[:200] for warning in answer.get("warnings") or ())
        query = options.query or str(answer.get("query") or "")
        metric = QueryMetric.from_query(query)
        rows = parse_points(series, page_rows.files, int(page_rows.good["file"][0]), options.node, metric)
        if rows.good.is_empty() and (rows.rejects["reason"] == UNNAMED_SERIES_REASON).any():
            _raise_unnamed_series(series[0], str(path))
        return rows

    rows = read_pages(paths, parse_answer_page, source=PROMETHEUS_SOURCE)
    return build_from_points(rows, warnings, notes=[STALE_VALUE_NOTE])


def load_answer(page_rows: Rows) -> tuple[dict[str, Any], list[Any]]:
    """Load a saved answer of Prometheus, and its series."""
    path, text = page_path(page_rows), "\n".join(page_rows.good["raw"])
    try:
        answer = json.loads(text)
        if "\\ud" in text.lower():  # half of a surrogate pair is no text, though JSON can write it
            json.dumps(answer, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        got, todo = str(error)[:200], "Save the whole answer."
        raise TraceFormatError(str(path), "a JSON answer", got, todo) from error
    return answer, extract_series(answer, str(path))


def build_from_points(rows: Rows, warnings: Sequence[str], notes: Sequence[str] = ()) -> Dataset:
    """Build the telemetry dataset from rows of :func:`parse_points`, with the warnings of the server as findings."""
    effect = "the server may have left out data"
    warning_findings = [Finding(f"the server warned: {warning}", "warning", 1, effect, "") for warning in warnings]
    rows, findings = normalise_readings(rows)
    source_notes = SourceNotes(PROMETHEUS_SOURCE, notes=notes, extra_findings=[*warning_findings, *findings])
    return build_telemetry(rows, source_notes, EXPORTED_METRICS)


def _raise_unnamed_series(one_series: Any, location: str) -> NoReturn:  # noqa: ANN401
    """Refuse a response without metric names."""
    labels = parse_series(one_series)[0] or {}
    todo = (
        "Functions and 'by' take the name away: keep the labels, and give the query, for example --query "
        "'avg_over_time(DCGM_FI_PROF_SM_ACTIVE[5m])'."
    )
    got = f"series that differ by {', '.join(labels) or 'nothing'} only"
    raise TraceFormatError(location, "the name of the metric, the GPU and its node in each series", got, todo)


def parse_points(
    series: Sequence[Any],
    files: tuple[Any, ...],
    file_number: int,
    node: str | None,
    query_metric: QueryMetric | None = None,
) -> Rows:
    """Parse Prometheus series to rows, one per point, in the order of time; malformed points and series are rejected.

    Parameters
    ----------
    series : sequence
        Series of a response.
    files : tuple of TextFile
        All files that are read.
    file_number : int
        Number of the file of the response.
    node : str, optional
        Node of series that do not name theirs.
    query_metric : QueryMetric, optional
        Metric and function of the query.
    """
    parsed_series = [parse_series(one_series) for one_series in series]
    labels_of = [labels for labels, _ in parsed_series]
    labelled = parse_devices(labels_of, node).with_columns(
        metric=pl.Series([(labels or {}).get("__name__") for labels in labels_of], dtype=pl.String),
        series=pl.Series([json.dumps(labels, sort_keys=True) for labels in labels_of], dtype=pl.String),
    )
    numbers = [number for number, (_, series_points) in enumerate(parsed_series) for _ in series_points]
    pairs = [parse_point(point) for _, series_points in parsed_series for point in series_points]
    good = labelled[numbers].with_columns(
        raw=pl.col("series").str.slice(0, MAX_RAW_SERIES_CHARACTERS),
        file=pl.lit(file_number, pl.UInt32),
        line=pl.int_range(1, len(pairs) + 1, dtype=pl.UInt32, eager=True),
        seconds=pl.Series([time for time, _ in pairs], dtype=pl.Float64),
        value=pl.Series([value for _, value in pairs], dtype=pl.String),
    )
    good = good.with_columns(
        raw=pl.format("{} {} {}", "raw", pl.col("seconds").fill_null(0.0), pl.col("value").fill_null("?")),
        time=(pl.col("seconds") * 1e6).round().cast(pl.Int64).cast(UTC_TIME_DTYPE),
    )
    good = good.select(*READING_SCHEMA.names(), "series").sort("time", maintain_order=True)
    good = good if query_metric is None else query_metric.apply(good)
    rows = Rows(files, len(pairs), good, pl.DataFrame(schema=REJECT_TABLE_SCHEMA))
    return rows.reject(
        {
            "not a pair of a time and a text": pl.col("value").is_null() | pl.col("time").is_null(),
            UNNAMED_SERIES_REASON: pl.col("metric").is_null(),
        }
    )


def parse_point(point: Any) -> tuple[float | None, str | None]:  # noqa: ANN401
    """Parse a point of a series to its time [epoch s] and its value as text; None for what is malformed."""
    match point:
        case [int() | float() as time, str() as value] if type(time) is not bool and abs(time) < MAX_EPOCH_S:
            return float(time), value
    return None, None


def parse_series(one_series: Any) -> tuple[dict[str, str] | None, list[Any]]:  # noqa: ANN401
    """Parse a Prometheus series to its labels, None if malformed, and its points."""
    if not isinstance(one_series, dict):
        return None, [None]
    labels = one_series.get("metric")
    series_points = one_series.get("values", [one_series["value"]] if "value" in one_series else [None])
    are_text_labels = isinstance(labels, dict) and all(isinstance(value, str) for value in labels.values())
    return labels if are_text_labels else None, series_points if isinstance(series_points, list) else [None]


TOKEN_VARIABLE = "GPUPLANNER_PROMETHEUS_TOKEN"
"""Environment variable with the bearer token for Prometheus; a secret is never an argument."""

MAX_ANSWER_BYTES = 1 << 30
"""Largest response of a Prometheus server that is read [bytes]."""
RESPONSE_STEP_BYTES = 1 << 16
"""Bytes of a response that are read at a time."""
MAX_TIMEOUTS_PER_ANSWER = 10
"""Longest time for a whole response, as a multiple of the time-out of a single read."""


@dataclass(frozen=True)
class PrometheusServer:
    """A Prometheus server, or another one with its HTTP API.

    Attributes
    ----------
    url : str
        Address up to, and without, ``/api/v1``.
    timeout_s : float
        Time-out of a connection, and of a read [s].
    ca_file : str or Path, optional
        Certificates to trust in addition to those of the system. TLS is always verified.
    """

    url: str
    timeout_s: float = 30.0
    ca_file: str | Path | None = None

    def __post_init__(self) -> None:
        parts = self.url_parts
        if parts.scheme not in ("http", "https") or not parts.hostname:
            self.raise_server_error("an http or https address", "none", "Give it like https://prometheus.example:9090.")
        if parts.username or parts.password or parts.query or parts.fragment:
            got = "one with a user, a query or a fragment in it"
            self.raise_server_error("a bare address", got, f"Secrets belong into {TOKEN_VARIABLE}.")

    @property
    def url_parts(self) -> SplitResult:
        """Parts of the server's address: scheme, host, port and path."""
        return urlsplit(self.url)

    @property
    def host(self) -> str:
        """Host and port, the only part of the address that messages show."""
        return self.url_parts.netloc.rpartition("@")[2]

    def query_api(self, path: str, **fields: str) -> tuple[Any, bytes]:
        """Send one query and return the decoded response and its bytes.

        Parameters
        ----------
        path : str
            Path of the API, such as ``/api/v1/query``.
        **fields
            Fields of the query.

        Raises
        ------
        TraceFormatError
            If the server cannot be reached in time, fails its certificate check, redirects to another host, or responds
            with an error or without JSON.
        """
        request = urllib.request.Request(f"{self.url.rstrip('/')}{path}?{urlencode(fields)}")
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        if token:
            if self.url_parts.scheme != "https" and not _is_loopback(self.url_parts.hostname or ""):
                self.raise_server_error("https where a token is sent", "http", f"Use https, or unset {TOKEN_VARIABLE}.")
            request.add_header("Authorization", f"Bearer {token}")
        try:
            context = ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
            https = urllib.request.HTTPSHandler(context=context)
            opener = urllib.request.build_opener(https, _SameHostRedirect(self))
            with opener.open(request, timeout=self.timeout_s) as response:
                body = self._read_body(response)
        except TraceFormatError:
            raise
        except urllib.error.HTTPError as error:
            with error:
                self._raise_http_error(error)
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            todo = "Check the address, the network and the certificate (ca_file)."
            self.raise_server_error("an answer", f"{type(reason).__name__}: {str(reason)[:300]}", todo)
        try:
            return json.loads(body), body
        except (ValueError, RecursionError):
            todo = "Is the address that of the API, not of a login page?"
            return self.raise_server_error("an answer in JSON", repr(body[:100]), todo)

    def raise_server_error(self, expected: str, got: str, todo: str) -> NoReturn:
        """Raise a TraceFormatError with these parts that names the host, but neither token nor query."""
        raise TraceFormatError(f"Prometheus at {self.host!r}", expected, got, todo)

    def _read_body(self, response: Any) -> bytes:  # noqa: ANN401 - urllib's own response
        """Read the body of a response; raise an error if it is too large or takes too long."""
        pieces = []
        size = 0
        deadline_s = time.monotonic() + MAX_TIMEOUTS_PER_ANSWER * self.timeout_s
        while piece := response.read1(RESPONSE_STEP_BYTES):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_ANSWER_BYTES:
                todo = "Request fewer series (--match), or a shorter span."
                self.raise_server_error(f"at most {MAX_ANSWER_BYTES} bytes", "more", todo)
            if time.monotonic() > deadline_s:
                got = f"a part of it after {MAX_TIMEOUTS_PER_ANSWER * self.timeout_s:g} s"
                self.raise_server_error("a whole answer", got, "Request a shorter span, or raise timeout_s.")
        stated = response.headers.get("Content-Length")
        if stated is not None and stated.isdigit() and int(stated) != size:
            self.raise_server_error(f"{stated} bytes", f"{size}: the response is incomplete", "Try again.")
        return b"".join(pieces)

    def _raise_http_error(self, error: urllib.error.HTTPError) -> NoReturn:
        """Raise the error for an HTTP status, with the server's message and advice."""
        try:
            answer = json.loads(error.read(RESPONSE_STEP_BYTES))
            reason = f"{answer['errorType']}: {str(answer['error'])[:300]}"
        except (OSError, HTTPException, ValueError, KeyError, TypeError, RecursionError):
            reason = error.reason
        todo = "Fix the query and try again."
        if error.code in (401, 403):
            todo = f"Put a valid token into {TOKEN_VARIABLE}."
        elif error.code == 404:
            todo = "Give the address up to, and without, /api/v1."
        self.raise_server_error("an answer", f"status {error.code}, {reason}", todo)


class _SameHostRedirect(urllib.request.HTTPRedirectHandler):
    """Handler that follows a redirect only to the same scheme, host and port."""

    def __init__(self, server: PrometheusServer) -> None:
        self.server = server

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        """Return the redirected request, or raise if it leaves the host."""
        new_url, server_url = urlsplit(newurl), self.server.url_parts
        if (new_url.scheme, new_url.netloc) != (server_url.scheme, server_url.netloc):
            fp.close()
            got = f"a redirect to {new_url.scheme}://{new_url.netloc.rpartition('@')[2]}"
            self.server.raise_server_error("an answer from this host", got, "Give that address, if you trust it.")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


MAX_POINTS_PER_SERIES = 11_000
"""Most points per series that Prometheus returns in one response [1]_.

References
----------
.. [1] prometheus/prometheus, issue 2253; web/api/v1/api.go: exceeded maximum resolution of 11,000 points per
   timeseries.
"""

MAX_QUERIES_PER_SPAN = 10_000
"""Most queries to a Prometheus server for the time span of one import."""
LABEL_NAME_PATTERN = re.compile(r"[a-zA-Z_]\w*")
"""A valid name of a Prometheus label, for matchers."""


@dataclass(frozen=True)
class HttpQuery:
    """One query of the Prometheus HTTP API: its path, such as ``/api/v1/query``, and its fields."""

    path: str
    fields: Mapping[str, str]


def plan_queries(selector: str, first_ms: int, last_ms: int, interval_ms: int, *, scrapes: bool) -> Iterator[HttpQuery]:
    """Plan Prometheus queries that together cover a time span, none with more than 11,000 points per series.

    The raw scrapes come from an instant query over a time range: nothing is interpolated, and without a scrape there is
    no point. A range query repeats the last value of a series for up to five minutes; here it looks back by one step
    only.

    Parameters
    ----------
    selector : str
        Series selector.
    first_ms, last_ms : int
        Span, both ends included [ms since 1970].
    interval_ms : int
        Scrape interval, or step of the grid [ms].
    scrapes : bool
        Query raw scrapes instead of a grid.

    Examples
    --------
    >>> [chunk.fields["time"] for chunk in plan_queries("up", 0, 330_000_000, 15_000, scrapes=True)]
    ['164984.999', '329969.999', '330000.0']
    """
    reach_ms = (MAX_POINTS_PER_SERIES - 1) * interval_ms
    if scrapes:
        # Prometheus 2 counts both ends of a window, Prometheus 3 the later one only: both see the first instant.
        for begin in range(first_ms - 1, last_ms, reach_ms):
            end = min(begin + reach_ms, last_ms)
            yield HttpQuery("/api/v1/query", {"query": f"{selector}[{end - begin}ms]", "time": str(end / 1e3)})
        return
    query = f"last_over_time({selector}[{interval_ms}ms])"
    for start in range(first_ms, last_ms + 1, reach_ms + interval_ms):
        fields = {"start": start / 1e3, "end": min(start + reach_ms, last_ms) / 1e3, "step": interval_ms / 1e3}
        yield HttpQuery("/api/v1/query_range", {"query": query} | {name: str(value) for name, value in fields.items()})


def read_live(
    server: PrometheusServer | str,
    start: datetime | str,
    end: datetime | str,
    *,
    interval_s: float = 15.0,
    step_s: float | None = None,
    matchers: Mapping[str, str] | None = None,
) -> Dataset:
    """Read the GPU metrics of a time span from a live Prometheus server.

    A bearer token is taken from the environment variable ``GPUPLANNER_PROMETHEUS_TOKEN``.

    Parameters
    ----------
    server : PrometheusServer or str
        The server, or its address.
    start, end : datetime or str
        Span with UTC offsets, both ends included.
    interval_s : float
        Scrape interval, which limits the span of one query [s].
    step_s : float, optional
        Query a grid of this step instead of the raw scrapes [s].
    matchers : mapping of str to str, optional
        Label → value that the series must have, such as ``{"cluster": "a"}``.

    Returns
    -------
    Dataset
        As read from a file with the same points.

    Raises
    ------
    TraceFormatError
        If the span is empty or too long, the server does not respond, or has no such metrics in it.
    """
    server = PrometheusServer(server) if isinstance(server, str) else server
    names = "|".join(name for name in EXPORTED_METRICS if " " not in name)
    selector = make_selector(names, matchers or {})
    answers = query_span(server, selector, start, end, interval_s=interval_s, step_s=step_s)
    rows = parse_points(answers.series, (answers.file,), 0, None)
    return build_from_points(rows, list(dict.fromkeys(answers.warnings)), notes=[answers.note])


@dataclass(frozen=True, eq=False)
class SpanAnswers:
    """Answers of a live Prometheus to the queries of a time span.

    - ``series``: Series of all answers, as Prometheus encodes them in JSON.
    - ``file``: Stands for the answers in the provenance, as if they had been read from a file.
    - ``warnings``: Warnings of the server.
    - ``note``: Remark for the provenance on what was queried.
    """

    series: list[Any]
    file: TextFile
    warnings: tuple[str, ...]
    note: str


def query_span(
    server: PrometheusServer, selector: str, start: datetime | str, end: datetime | str, *, interval_s: float = 15.0,
    step_s: float | None = None,
) -> SpanAnswers:  # fmt: skip
    """Query the series of a selector over a span from a live Prometheus; parameters as for :func:`read_live`.

    Parameters
    ----------
    server : PrometheusServer
        The server.
    selector : str
        Series selector.
    start, end : datetime or str
        Span with UTC offsets, both ends included.
    interval_s, step_s : float, optional
        Scrape interval, and step of the grid that is queried instead of the raw scrapes [s].
    """
    first_ms, last_ms = (round(parse_origin(instant).timestamp() * 1e3) for instant in (start, end))
    interval_ms = round(1e3 * (interval_s if step_s is None else step_s))
    if interval_ms < 1 or last_ms < first_ms:
        got = f"{format_utc(parse_origin(start))} to {format_utc(parse_origin(end))}, interval {interval_ms} ms"
        raise TraceFormatError("live telemetry", "an end after the start", got, "Fix --start or --end.")
    if (last_ms - first_ms) / interval_ms > MAX_QUERIES_PER_SPAN * MAX_POINTS_PER_SERIES:
        got = f"{math.ceil((last_ms - first_ms) / interval_ms)} points a series"
        raise TraceFormatError("live telemetry", "a shorter span", got, "Read month by month.")
    queries = list(plan_queries(selector, first_ms, last_ms, interval_ms, scrapes=step_s is None))
    digest, size, warnings, answers = hashlib.sha256(), 0, [], []
    for query in queries:
        answer, body = server.query_api(query.path, **query.fields)
        digest.update(body)
        size += len(body)
        answers.append(extract_series(answer, f"Prometheus at {server.host!r}"))
        warnings += [str(warning)[:200] for warning in answer.get("warnings") or ()]
    lines = pl.DataFrame(schema={"line": pl.UInt32, "text": pl.String})
    file = TextFile(Path(server.host), digest.hexdigest(), size, lines, False, False, False)
    note = f"{len(queries)} queries of {queries[0].path} for {selector}"
    return SpanAnswers(join_series_of_answers(answers, first_ms, last_ms), file, tuple(warnings), note)


def join_series_of_answers(answers: list[list[Any]], first_ms: int, last_ms: int) -> list[Any]:
    """Join the series of successive Prometheus responses, each point once and none outside the span [ms since 1970].

    Examples
    --------
    >>> early, late = ([{"metric": {"gpu": "0"}, "values": [[t, "1"], [t + 1, "2"]]}] for t in (5, 6))
    >>> join_series_of_answers([early, late], 5000, 6500)
    [{'metric': {'gpu': '0'}, 'values': [[5, '1'], [6, '2']]}]
    """
    series: dict[str, dict[str, Any]] = {}
    unreadable: list[Any] = []
    for one_series in itertools.chain.from_iterable(answers):
        if not (isinstance(one_series, dict) and isinstance(one_series.get("values"), list)):
            unreadable.append(one_series)
            continue
        key = json.dumps(one_series.get("metric"), sort_keys=True)
        known_points = series.setdefault(key, {"metric": one_series.get("metric"), "values": []})["values"]
        latest = known_points[-1][0] if known_points else -math.inf
        known_points += [point for point in one_series["values"] if _is_new_point(point, latest, first_ms, last_ms)]
    return [series[key] for key in sorted(series)] + unreadable


def _is_new_point(point: Any, latest: float, first_ms: int, last_ms: int) -> bool:  # noqa: ANN401
    """Whether a point is new and within the span; a malformed one counts as new, to be rejected later.

    Parameters
    ----------
    point : list
        Time [s] and value.
    latest : float
        Time of the last point of the series [s].
    first_ms, last_ms : int
        Span, both ends included [ms].
    """
    match point:
        case [int() | float() as time, str()]:
            return time > latest and first_ms <= round(time * 1e3) <= last_ms
    return True


def make_selector(names: str, matchers: Mapping[str, str]) -> str:
    """Return the PromQL selector of metrics by a regular expression, with label matchers such as ``cluster="a"``.

    Examples
    --------
    >>> make_selector("up|down", {"cluster": "a"})
    '{__name__=~"up|down",cluster="a"}'
    """
    invalid_names = [name for name in matchers if not LABEL_NAME_PATTERN.fullmatch(name)]
    if invalid_names:
        raise TraceFormatError("matchers", "names of labels", repr(invalid_names[0]), "Fix --match LABEL=VALUE.")
    parts = [f'__name__=~"{names}"']
    parts += [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in sorted(matchers.items())]
    return "{" + ",".join(parts) + "}"
