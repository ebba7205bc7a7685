"""``scrape --serving`` against a small server: the selector, counters that are reset, and unlike histograms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gpuplanner.decision.service_requests import draw_requests, measure_ttft_p99
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.telemetry.prometheus import TOKEN_VARIABLE
from tests.ingest.telemetry.test_live import START_S, Fake, Reply, encoded, serving

Command = Callable[..., tuple[int, str, str]]
SPAN = ("--start", "2026-03-31T23:33:20Z", "--end", "2026-03-31T23:38:20Z", "--interval", "60")
TTFT = "vllm:time_to_first_token_seconds"
COUNTERS: list[tuple[str, dict[str, str], list[int]]] = [
    # The server of pod a is started again after two minutes.
    ("vllm:request_success_total", {"pod": "a"}, [100, 130, 160, 20, 50, 80]),
    ("vllm:request_success_total", {"pod": "b"}, [0, 10, 20, 30, 40, 50]),
    ("vllm:prompt_tokens_total", {"pod": "a"}, [0, 3000, 6000, 2000, 5000, 8000]),
    ("vllm:generation_tokens_total", {"pod": "a"}, [0, 300, 600, 200, 500, 800]),
    (f"{TTFT}_sum", {"pod": "a"}, [0, 3, 6, 2, 5, 8]),
    (f"{TTFT}_count", {"pod": "a"}, [0, 30, 60, 20, 50, 80]),
    (f"{TTFT}_bucket", {"pod": "a", "le": "0.1"}, [0, 10, 20, 5, 15, 25]),
    (f"{TTFT}_bucket", {"pod": "a", "le": "0.5"}, [0, 20, 40, 10, 40, 70]),
    (f"{TTFT}_bucket", {"pod": "a", "le": "1.0"}, [0, 30, 60, 20, 50, 80]),
    (f"{TTFT}_bucket", {"pod": "a", "le": "+Inf"}, [0, 30, 60, 20, 50, 80]),
    (f"{TTFT}_bucket", {"pod": "b", "le": "0.25"}, [0, 10, 20, 30, 40, 50]),
    (f"{TTFT}_bucket", {"pod": "b", "le": "1.0"}, [0, 10, 20, 30, 40, 50]),
    (f"{TTFT}_bucket", {"pod": "b", "le": "+Inf"}, [0, 10, 20, 30, 40, 50]),
    ("vllm:gpu_cache_usage_perc", {"pod": "a"}, [0, 0, 0, 0, 0, 0]),
]


def answer(path: str, fields: dict[str, str]) -> Reply:
    """The series that the selector names, in the window that ends at the asked time."""
    assert urlsplit(path).path == "/api/v1/query"
    selector = re.fullmatch(r'\{__name__=~"(.+?)".*\}\[(\d+)ms\]', fields["query"])
    assert selector is not None, fields["query"]
    pattern, window_ms = selector.groups()
    end = float(fields["time"])
    found = []
    for name, labels, values in COUNTERS:
        points = [[START_S + 60 * number, str(value)] for number, value in enumerate(values)]
        inside = [point for point in points if end - int(window_ms) / 1000 <= point[0] <= end]
        if re.fullmatch(pattern.replace("\\\\", "\\"), name) and inside:
            metric = {"__name__": name, "model_name": "llama", "namespace": "nlp", **labels}
            found.append({"metric": metric, "values": inside})
    return 200, {}, encoded(*found)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    yield from serving(Fake(reply=answer))


def test_serving_metrics_are_scraped_with_resets_and_unlike_buckets(fake: Fake, tmp_path: Path, command: Command):
    code, _, err = command("scrape", fake.address, *SPAN, "--serving", "-o", str(tmp_path / "data"), "--quiet")
    assert code == 0, err
    dataset = open_dataset(tmp_path / "data")
    table = dataset.tables["serving"]
    assert table["requests"].sum() == 60 + 20 + 60 + 50
    assert table["prompt_tokens"].sum() == 6000 + 2000 + 6000
    checks = dict(dataset.quality.select("check", "rows").iter_rows())
    assert checks["counters that were reset"] == 9  # all series of pod a
    assert "histograms differ" in checks
    # Of 190 first tokens, those above 0.1, 0.25 and 0.5 s are counted by one pod alone: 1 s is the bound of both.
    assert measure_ttft_p99(table) == (0.0, 1.0)
    of_pod = table.filter(replica="a")
    assert of_pod["ttft_buckets"][0] == "+Inf:30 0.1:10 0.5:20 1.0:30"
    assert of_pod["ttft_buckets"][2] == "+Inf:20 0.1:5 0.5:10 1.0:20"
    assert measure_ttft_p99(of_pod) == (0.5, 1.0)
    assert draw_requests(table, seed=1).height == 190


def test_no_series_is_an_error_that_says_what_to_check(fake: Fake, tmp_path: Path, command: Command):
    fake.reply = lambda path, fields: (200, {}, encoded())
    code, _, err = command("scrape", fake.address, *SPAN, "--serving", "-o", str(tmp_path / "data"))
    assert code == 3
    assert "Does this Prometheus scrape the servers" in err
    assert not (tmp_path / "data").exists()
