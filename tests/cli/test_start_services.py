"""``start`` with requests: services alone without a list of jobs, and a hint where requests have no service."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.inference_answers import list_unplanned_requests
from gpuplanner.decision.inference_services import read_services
from gpuplanner.ingest.dataset_import import add_files
from tests.decision.services.request_weeks import request_week


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    """Two days of two models at a gateway."""
    frames = [
        request_week(seed, days=2, peak_per_s=0.05).with_columns(model=pl.lit(model), team=pl.lit("search"))
        for seed, model in ((1, "meta-llama/Llama-3.1-8B-Instruct"), (2, "own"))
    ]
    rows = pl.concat(frames).sort("time").with_columns(pl.col("time").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ"))
    file = tmp_path / "requests.csv"
    rows.select("time", "model", "team", "prompt_tokens", "generated_tokens").write_csv(file)
    return file


def write_services(folder: Path, *rows: str) -> str:
    file = folder / "services.yaml"
    file.write_text("services:\n" + "".join(f"- {row}\n" for row in rows))
    return str(file)


LLAMA = '{name: chat, requests: "meta-llama/Llama-3.1-8B-Instruct", model: llama-3.1-8b, gpu_model: A100-80GB}'


def test_services_are_planned_without_a_list_of_jobs(requests: Path, tmp_path: Path, command):
    services, out = write_services(tmp_path, LLAMA), tmp_path / "out"
    code, text, err = command("start", str(requests), "--services", services, "-o", str(out), "--yes", "--json")
    assert code == 0, err
    answer = json.loads(text)
    inference = answer["inference"]
    assert (inference["standing_gpus"], inference["service_pool_gpus"], inference["job_pool_gpus"]) == (1, 8, None)
    assert inference["services"][0]["backtest"] is None
    assert "not tested on a later week, the trace has 0.3 weeks" in inference["services"][0]["backtest_text"]
    page = (out / "index.html").read_text("utf-8")
    assert "not tested on a later week" in page
    assert "Cost of the trace by model and team" in page
    assert (out / "export" / "services" / "chat-scale.sh").is_file()
    # Requests of the other model lie unused: the lines to add are stated, here and on the page.
    assert [warning["what"].partition(" (")[0] for warning in answer["warnings"]] == [
        "requests without a service are not planned"
    ]
    assert '[{name: "own", model: MODEL}] to services.yaml' in answer["warnings"][0]["what"]
    assert "requests without a service are not planned" in page
    code, text, err = command("start", str(out / "scenario.yaml"), "-o", str(tmp_path / "again"), "--json")
    assert code == 0, err
    assert json.loads(text)["inference"] == inference


def test_requests_alone_ask_for_jobs_or_services(requests: Path, tmp_path: Path, command):
    code, _, err = command("start", str(requests), "-o", str(tmp_path / "out"), "--yes")
    assert code == 3
    assert "add --services services.yaml" in err


def test_a_service_without_a_gpu_model_says_what_to_add(requests: Path, tmp_path: Path, command):
    services = write_services(tmp_path, LLAMA.replace(", gpu_model: A100-80GB", ""))
    code, _, err = command("start", str(requests), "--services", services, "-o", str(tmp_path / "out"), "--yes")
    assert code == 3
    assert "expected a gpu_model" in err


def test_requests_beside_jobs_without_services_are_a_warning_with_lines_that_work(requests: Path, tmp_path: Path):
    add_files("auto", [requests], tmp_path / "data")
    scenario = Scenario(data=str(tmp_path / "data"))
    (warning,) = list_unplanned_requests(scenario)
    assert warning["count"] == pl.read_csv(requests).height
    lines = warning["what"].partition("add ")[2].partition(" to services.yaml")[0]
    file = tmp_path / "added.yaml"
    file.write_text(lines)
    assert {(one.name, one.model) for one in read_services(file)} == {
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"), ("own", "MODEL"),
    }  # fmt: skip
    assert list_unplanned_requests(scenario.but(services=str(file))) == []
