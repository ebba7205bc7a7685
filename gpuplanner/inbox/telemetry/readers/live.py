"""Telemetry from a live Prometheus: asked in chunks, joined without double borders, gaps left as gaps."""

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any, NoReturn
from urllib.parse import SplitResult, urlencode, urlsplit

import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.exposition import series_of_answer
from gpuplanner.inbox.core.lines.text_file import TextFile
from gpuplanner.inbox.core.times import iso, known_origin
from gpuplanner.inbox.telemetry.readers.metrics import EXPORTED
from gpuplanner.inbox.telemetry.readers.prometheus import from_points, points

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
            got = repr(body[:100])
            return self.refuse(
                "an answer in JSON", got, "Is the address that of the API, not of a login page?"
            )

    def refuse(self, expected: str, got: str, todo: str) -> NoReturn:
        """Raise the four-part message; it names the host, and neither token nor query."""
        raise TraceFormatError(message(f"Prometheus at {self.host!r}", expected, got, todo))

    def _body(self, response: Any) -> bytes:  # noqa: ANN401 - urllib's own response
        pieces, size, give_up = [], 0, time.monotonic() + PATIENCE * self.timeout_s
        while piece := response.read1(STEP_BYTES):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_ANSWER_BYTES:
                todo = "Ask for fewer series (matchers), or state a shorter chunk."
                self.refuse(f"at most {MAX_ANSWER_BYTES} bytes", "more", todo)
            if time.monotonic() > give_up:
                got = f"a part of it after {PATIENCE * self.timeout_s:g} s"
                self.refuse("a whole answer", got, "Ask for less at a time, or raise timeout_s.")
        stated = response.headers.get("Content-Length")
        if stated is not None and stated.isdigit() and int(stated) != size:
            self.refuse(f"{stated} bytes", f"{size}: the answer was cut short", "Ask again.")
        return b"".join(pieces)

    def _refused(self, error: urllib.error.HTTPError) -> NoReturn:
        """Say what the server's status and its own words mean."""
        try:
            answer = json.loads(error.read(STEP_BYTES))
            words = f"{answer['errorType']}: {str(answer['error'])[:300]}"
        except (OSError, HTTPException, ValueError, KeyError, TypeError, RecursionError):
            words = error.reason
        todo = "Mend the query and ask again."
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
        raise TraceFormatError(message("matchers", "names of labels", repr(strange[0]), "Mend the name."))
    parts = [f'__name__=~"{"|".join(name for name in EXPORTED if " " not in name)}"']
    parts += [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in sorted(matchers.items())]
    return "{" + ",".join(parts) + "}"
