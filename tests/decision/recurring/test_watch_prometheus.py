"""A real Prometheus is fed an hour of replayed time, stopped for ten minutes of it, and watched throughout."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import polars as pl
import pytest

from gpuplanner.ingest.dataset_folder import open_dataset
from tests.decision.recurring.small_fleets import SmallFleet

pytestmark = [pytest.mark.prometheus, pytest.mark.long]
QUICK = ("--once", "--set", "horizon_intervals=12", "--set", "work_limit=20")
MINUTE_MS = 60_000
MINUTES, STOP, STOPPED = 55, 25, 10


@dataclass
class Exporter:
    """Serves one minute of replayed time after the other: power of eight GPUs, with the instant it was seen at."""

    begin_ms: int
    minute: int = 0
    until: int = 0
    served: list[int] = field(default_factory=list)

    def page(self) -> str:
        if self.minute < self.until:
            self.served.append(self.minute)
            self.minute += 1
        at = self.begin_ms + max(self.minute - 1, 0) * MINUTE_MS
        lines = ["# TYPE DCGM_FI_DEV_POWER_USAGE gauge"]
        lines += [
            f'DCGM_FI_DEV_POWER_USAGE{{gpu="{gpu}",Hostname="n0"}} {100 + self.minute + gpu / 8} {at}'
            for gpu in range(8)
        ]
        return "\n".join(lines) + "\n"

    def upto(self, minute: int) -> None:
        """Let replayed time go on to a minute, and wait until it was scraped."""
        self.until = minute
        for _ in range(600):
            if self.minute >= minute:
                time.sleep(1.0)  # the last page is stored
                return
            time.sleep(0.1)
        pytest.fail(f"Prometheus scraped {self.minute} of {minute} minutes")


@pytest.fixture
def exporter() -> Iterator[tuple[Exporter, int]]:
    now_ms = int(time.time()) // 60 * MINUTE_MS
    source = Exporter(now_ms - (MINUTES + 3) * MINUTE_MS)

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            body = source.page().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield source, server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


@dataclass
class Prometheus:
    """A server whose database stays while it is stopped and started."""

    program: str
    folder: Path
    scraped: int
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        if not self.port:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = probe.getsockname()[1]
        config = self.folder / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\nscrape_configs:\n"
            f"- {{job_name: dcgm, static_configs: [{{targets: ['127.0.0.1:{self.scraped}']}}]}}\n"
        )
        self.process = subprocess.Popen(
            [
                self.program,
                f"--config.file={config}",
                f"--storage.tsdb.path={self.folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                "--log.level=error",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(600):
            assert self.process.poll() is None, "Prometheus ended at once"
            try:
                with urllib.request.urlopen(f"{self.address}/-/ready", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        pytest.fail("Prometheus was not ready within a minute")

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)


@pytest.fixture
def prometheus(exporter, tmp_path) -> Iterator[Prometheus]:
    found = shutil.which("prometheus", path=os.environ.get("GPUPLANNER_PROMETHEUS_BIN"))
    if found is None:
        pytest.skip("prometheus not found; 'make test-prometheus' fetches it")
    server = Prometheus(found, tmp_path, exporter[1])
    yield server
    server.stop()


def test_looks_go_on_while_a_prometheus_is_stopped_and_miss_no_minute_that_it_saw(
    exporter, prometheus, command, tmp_path
):
    source, out, folder = exporter[0], tmp_path / "watch", tmp_path / "trace"
    begin = (datetime.now(UTC) - timedelta(weeks=4)).replace(minute=0, second=0, microsecond=0)
    fleet = SmallFleet(2, weeks=4, nodes=1, load=0.3, sizes={1: 1.0}, begin=begin)
    fleet.write(folder)
    asked = ("watch", str(folder), "-o", str(out), *QUICK)

    def looked() -> tuple[int, int, int]:
        prometheus_asked = ("--prometheus", prometheus.address)
        code = command(*asked, *prometheus_asked)[0]
        state = json.loads((out / "watch.json").read_text())
        return code, state["looks"], state["failures"]

    prometheus.start()
    source.upto(STOP)
    assert looked() == (0, 1, 0)
    prometheus.stop()
    assert looked() == (3, 1, 1)  # told and counted; no new data, no new look
    source.minute = STOP + STOPPED  # nobody scraped these ten minutes
    prometheus.start()
    source.upto(MINUTES)
    assert looked() == (0, 2, 1)
    seen = open_dataset(folder).samples
    times = pl.Series(sorted(source.served)) * MINUTE_MS + source.begin_ms
    assert set(range(STOP, STOP + STOPPED)).isdisjoint(source.served)
    assert seen["time"].unique().sort().dt.epoch("ms").to_list() == times.to_list()
    assert seen.height == 8 * len(source.served)
    minute = (seen["time"].dt.epoch("ms") - source.begin_ms) // MINUTE_MS
    assert (seen["power_w"] == 101 + minute + seen["gpu"] / 8).all()
    assert "gpuplanner_watch_failures_total 1\n" in (out / "watch.prom").read_text()
