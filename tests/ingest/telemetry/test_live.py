"""The live client against a small server in the same process: chunks, borders, gaps, secrets, faults."""

from __future__ import annotations

import json
import ssl
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.cli.application import main
from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.telemetry.prometheus import (
    MAX_POINTS_PER_SERIES,
    TOKEN_VARIABLE,
    PrometheusServer,
    plan_queries,
    read_live,
)

START_S = 1_775_000_000
METRIC = {"__name__": "DCGM_FI_DEV_POWER_USAGE", "gpu": "0", "hostname": "n1"}
SPAN = ("2026-03-31T23:33:20Z", "2026-04-01T03:33:20Z")
TOKEN = "s3cret-token"

Reply = tuple[int, dict[str, str], bytes]


@dataclass
class Fake:
    """A server that keeps points and answers as Prometheus 2 does: windows hold both of their ends."""

    points: dict[int, str] = field(default_factory=dict)
    asked: list[dict[str, str]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    reply: Callable[[str, dict[str, str]], Reply] | None = None
    address: str = ""

    def answer(self, path: str, fields: dict[str, str]) -> Reply:
        """Status, headers and body."""
        if self.reply is not None:
            return self.reply(path, fields)
        if path == "/api/v1/query":
            end = round(float(fields["time"]) * 1000)
            window = int(fields["query"].rpartition("[")[2].removesuffix("ms]"))
            values = [[at / 1000, v] for at, v in self.points.items() if end - window <= at <= end]
        else:
            step = round(float(fields["step"]) * 1000)
            window = int(fields["query"].rpartition("[")[2].removesuffix("ms])"))
            assert window == step
            grid = range(round(float(fields["start"]) * 1000), round(float(fields["end"]) * 1000) + 1, step)
            assert len(grid) <= MAX_POINTS_PER_SERIES
            known = sorted(self.points)
            values = []
            for at in grid:
                place = bisect_right(known, at) - 1
                if place >= 0 and known[place] > at - window:
                    values.append([at / 1000, self.points[known[place]]])
        return 200, {}, encoded({"metric": METRIC, "values": values})


def encoded(*series: dict[str, Any]) -> bytes:
    """Body of an answer with these series."""
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": list(series)}}).encode()


def serving(fake: Fake) -> Iterator[Fake]:
    """Let the fake answer on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            fields = {name: values[0] for name, values in parse_qs(parts.query).items()}
            fake.asked.append(fields)
            fake.tokens.append(self.headers.get("Authorization"))
            status, headers, body = fake.answer(parts.path, fields)
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        fake.address = f"http://127.0.0.1:{server.server_address[1]}"
        yield fake
        server.shutdown()
        thread.join()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """A server with four hours of points, one a second, and a gap of ten minutes."""
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    seconds = [second for second in range(4 * 3600 + 1) if not 6000 < second < 6600]
    yield from serving(Fake({(START_S + second) * 1000: str(100 + second % 7) for second in seconds}))


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """Another server, which should never see a token."""
    yield from serving(Fake())


def test_chunks_join_without_double_borders_and_the_gap_stays(fake: Fake):
    live = read_live(fake.address, *SPAN, interval_s=1)
    assert len(fake.asked) == 2
    assert live.samples.height == live.provenance["rows_in"] == len(fake.points)
    assert live.rejects.is_empty()
    assert live.samples["power_w"].to_list() == [float(value) for value in fake.points.values()]
    assert "gaps between samples" in live.quality["check"].to_list()
    assert live.provenance["gpu_hours"] == pytest.approx((4 * 3600 - 600 + 2) / 3600)  # each reading holds a second


@settings(deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 10**9), st.integers(1, 10**5), st.booleans())
def test_no_query_exceeds_the_limit_and_together_they_cover_the_span(
    first: int, length: int, interval: int, scrapes: bool
):
    if length / interval > 50 * MAX_POINTS_PER_SERIES:
        interval = length // (50 * MAX_POINTS_PER_SERIES) + 1
    last = first + length
    covered = first - 1
    for chunk in plan_queries("x", first, last, interval, scrapes=scrapes):
        if scrapes:
            end = round(float(chunk.fields["time"]) * 1000)
            window = int(chunk.fields["query"].rpartition("[")[2].removesuffix("ms]"))
            begin = end - window
            assert begin == covered
            assert window // interval + 1 <= MAX_POINTS_PER_SERIES
            covered = end
        else:
            begin, end, step = (round(float(chunk.fields[name]) * 1000) for name in ("start", "end", "step"))
            assert begin == (first if covered < first else covered + step)
            assert (end - begin) // step + 1 <= MAX_POINTS_PER_SERIES
            covered = begin + (end - begin) // step * step
    assert last - covered < (1 if scrapes else interval)


def test_the_token_comes_from_the_environment_and_shows_nowhere(fake: Fake, monkeypatch: pytest.MonkeyPatch):
    read_live(fake.address, *SPAN)
    assert set(fake.tokens) == {None}
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    live = read_live(fake.address, *SPAN)
    assert fake.tokens[-1] == f"Bearer {TOKEN}"
    assert TOKEN not in repr(live.provenance) + repr(live.quality.to_dicts())


def test_a_redirect_to_another_host_is_not_followed(fake: Fake, other: Fake, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    for target in (other.address, "file:///etc/passwd", f"http://user@{urlsplit(fake.address).netloc}"):
        fake.reply = lambda path, fields, target=target: (302, {"Location": target + path}, b"")
        with pytest.raises(TraceFormatError, match=r"a redirect to|Redirection to url 'file:") as caught:
            read_live(fake.address, *SPAN)
        assert TOKEN not in str(caught.value)
    assert other.asked == []


def test_a_redirect_on_the_same_host_is_followed(fake: Fake, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)

    def moved(path: str, fields: dict[str, str]) -> Reply:
        if path.startswith("/new"):
            return 200, {}, encoded({"metric": METRIC, "values": [[START_S, "5"]]})
        return 302, {"Location": f"{fake.address}/new"}, b""

    fake.reply = moved
    assert read_live(fake.address, *SPAN).samples["power_w"].to_list() == [5.0]
    assert fake.tokens == [f"Bearer {TOKEN}"] * 2


def test_a_token_is_not_sent_in_the_clear(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    with pytest.raises(TraceFormatError, match="expected https where a token is sent"):
        read_live("http://prometheus.invalid:9090", *SPAN)


def test_a_server_without_the_right_certificate_is_refused(fake: Fake):
    with pytest.raises(TraceFormatError, match=r"Prometheus at '127\.0\.0\.1.*expected an answer; got SSL"):
        read_live(fake.address.replace("http:", "https:"), *SPAN)


def test_certificates_are_verified_by_default(monkeypatch: pytest.MonkeyPatch):
    made: list[ssl.SSLContext] = []
    create = ssl.create_default_context

    def noted(**fields: Any) -> ssl.SSLContext:
        made.append(create(**fields))
        return made[-1]

    monkeypatch.setattr("gpuplanner.ingest.telemetry.prometheus.ssl.create_default_context", noted)
    with pytest.raises(TraceFormatError):
        read_live("https://127.0.0.1:1", *SPAN)
    assert (made[0].verify_mode, made[0].check_hostname) == (ssl.CERT_REQUIRED, True)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ((401, {}, b"no"), f"status 401, .*Put a valid token into {TOKEN_VARIABLE}"),
        ((404, {}, b"no"), "up to, and without, /api/v1"),
        (
            (422, {}, b'{"status":"error","errorType":"execution","error":"too many samples"}'),
            "status 422, execution: too many samples",
        ),
        ((200, {}, b"<html>sign in</html>"), "an answer in JSON; got b'<html>"),
        ((200, {}, b'{"status":"error","errorType":"timeout","error":"slow"}'), "timeout: slow"),
        ((200, {"Content-Length": "1000"}, b'{"status"'), "is incomplete|IncompleteRead"),
        ((200, {}, encoded()), "got no rows"),
    ],
)
def test_faults_of_the_server_are_explained(fake: Fake, reply: Reply, words: str):
    fake.reply = lambda path, fields: reply
    server = PrometheusServer(fake.address, timeout_s=60)
    with pytest.raises(TraceFormatError, match=words):
        read_live(server, *SPAN)


def test_a_server_that_is_silent_or_slow_is_given_up(fake: Fake, monkeypatch: pytest.MonkeyPatch):
    release = threading.Event()

    def silent(path: str, fields: dict[str, str]) -> Reply:
        release.wait(20)
        return 200, {}, encoded()

    fake.reply = silent
    with pytest.raises(TraceFormatError, match="timed out"):
        read_live(PrometheusServer(fake.address, timeout_s=0.2), *SPAN)
    release.set()
    fake.reply = lambda path, fields: (200, {}, b" " * (1 << 20))
    monkeypatch.setattr("gpuplanner.ingest.telemetry.prometheus.MAX_TIMEOUTS_PER_ANSWER", -1)
    with pytest.raises(TraceFormatError, match="a part of it after"):
        read_live(fake.address, *SPAN)


def test_an_endless_answer_is_stopped(fake: Fake, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gpuplanner.ingest.telemetry.prometheus.MAX_ANSWER_BYTES", 1000)
    with pytest.raises(TraceFormatError, match="expected at most 1000 bytes; got more"):
        read_live(fake.address, *SPAN)


@pytest.mark.parametrize("url", ["ftp://a", "a:9090", "", "http://", "https://user:pw@a", "https://a?x=1"])
def test_addresses_that_are_none(url: str):
    with pytest.raises(TraceFormatError) as caught:
        PrometheusServer(url)
    assert "pw" not in str(caught.value)


def test_spans_that_are_none():
    with pytest.raises(TraceFormatError, match="an end after the start"):
        read_live("http://127.0.0.1:1", *reversed(SPAN))
    with pytest.raises(TraceFormatError, match="a shorter span"):
        read_live("http://127.0.0.1:1", "1971-01-01T00:00:00Z", SPAN[0], interval_s=0.001)
    with pytest.raises(TraceFormatError, match="its offset from UTC"):
        read_live("http://127.0.0.1:1", "2026-01-01T00:00:00", SPAN[1])
    with pytest.raises(TraceFormatError, match="names of labels"):
        read_live("http://127.0.0.1:1", *SPAN, matchers={'a="1"} or {': "x"})


def test_matchers_are_quoted(fake: Fake):
    read_live(fake.address, *SPAN, matchers={"cluster": 'a"} or {b="c'})
    assert r'cluster="a\"} or {b=\"c"}' in fake.asked[0]["query"]


def test_the_command_writes_what_the_server_has(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    span = [f"--start={SPAN[0]}", f"--end={SPAN[1]}"]
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    words = ["gpuplanner", "scrape", fake.address, *span, "--interval=1", "--match=hostname=n1", "--json"]
    monkeypatch.setattr("sys.argv", [*words, "-o", str(tmp_path)])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert json.loads(capsys.readouterr().out)["rows_in"] == len(fake.points)
    assert 'hostname="n1"' in fake.asked[0]["query"]
    assert set(fake.tokens) == {f"Bearer {TOKEN}"}
    assert open_dataset(tmp_path).samples.height == len(fake.points)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 5
    assert not any(TOKEN in path.read_text("latin-1") for path in files)
