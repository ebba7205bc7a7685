"""Services beside jobs: the file, the GPUs that they hold in record, plan and decision, and what cannot be served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from gpuplanner.core.errors import GpuPlannerError, InfeasiblePlanError, ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.inference_answers import answer_services, tabulate_services
from gpuplanner.decision.inference_services import (
    add_service_demand,
    count_replicas,
    plan_inference_services,
    read_services,
)
from gpuplanner.decision.policy_comparison import load_policy_simulation
from gpuplanner.ingest.dataset_import import add_files
from tests.decision.services.request_weeks import azure_csv, request_week

HEADER = "JobID|User|Account|Partition|State|Submit|Start|End|NNodes|NodeList|ReqTRES|AllocTRES"
NODES = "\n".join(f"NodeName=n{number} Gres=gpu:a100:4 State=IDLE" for number in range(1, 5)) + "\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Scenario]:
    """Four nodes of four A100, with jobs of 4 GPUs on two of them, and two request traces; by services.yaml."""
    folder = tmp_path_factory.mktemp("services")
    lines = [HEADER]
    for number in range(12 * 21):
        day, hour = divmod(2 * number, 24)
        times = [
            f"2026-01-{5 + day:02d}T{at // 60:02d}:{at % 60:02d}:00" for at in (60 * hour, 60 * hour, 60 * hour + 90)
        ]
        tres = "cpu=1,gres/gpu:a100=4,node=1"
        lines.append(
            "|".join([str(number), "ann", "vision", "gpu", "COMPLETED", *times, "1", f"n{1 + number % 2}", tres, tres])
        )
    (folder / "sacct.txt").write_text("\n".join(lines) + "\n")
    (folder / "nodes.txt").write_text(NODES)
    (folder / "chat.csv").write_text(azure_csv(request_week(7, days=2, peak_per_s=6.0)))
    (folder / "office.csv").write_text(azure_csv(request_week(8, days=2, peak_per_s=0.5, closed=(0, 6))))
    data = folder / "data"
    add_files("slurm", [folder / "sacct.txt"], data, tz="UTC", nodes=folder / "nodes.txt")
    add_files("azure-llm", [folder / "chat.csv", folder / "office.csv"], data, tz="UTC")

    def make(text: str) -> Scenario:
        file = folder / f"{abs(hash(text))}.yaml"
        file.write_text(text)
        return Scenario(name="c", data=str(data), services=str(file), gpu_model="A100-80GB", ownership="owned")

    return make


TWO = """services:
- {name: chat, model: llama-3.1-8b, team: assistants, startup_s: 600}
- {name: office, model: llama-3.1-8b, team: office, min_replicas: 0}
"""


def test_services_hold_gpus_in_the_record_by_hour(cluster):
    scenario = cluster(TWO)
    _, without, _, _ = load_policy_simulation(scenario.but(services=None))
    _, inputs, replayed_jobs, _ = load_policy_simulation(scenario)
    added = np.arange(len(without.start_s), len(inputs.start_s))
    assert len(added)
    assert inputs.is_service[added].all()
    assert not replayed_jobs.waits.is_evaluated[added].any()
    gpus, begin, end = inputs.gpus_by_job()[added], inputs.start_s[added], inputs.end_s[added]
    services = plan_inference_services(scenario)
    hours = int(inputs.observed_s // 3600)
    planned = sum(count_replicas(one, inputs.replay_start, hours, "UTC") * one.device.gpus for one in services)
    for hour in range(hours):
        held = gpus[(begin <= 3600 * hour) & (end >= 3600 * (hour + 1))].sum()
        assert held == planned[hour]
    assert set(inputs.jobs["tenant"][int(added[0]) :]) == {"assistants", "office"}


def test_services_are_demand_of_the_plan_beside_jobs(cluster):
    scenario = cluster(TWO)
    jobs = np.full((1, 1, scenario.horizon_intervals), 2.0)
    teams, profiles, demand = add_service_demand(scenario, ["vision"], ["gpu"], jobs, slices=True)
    assert (teams, profiles) == (["vision", "assistants", "office"], ["gpu"])
    assert (demand[0] == 2.0).all()
    chat, office = demand[1, 0], demand[2, 0]
    assert chat.min() < chat.max()
    assert office.min() == 0 < office.max()


def test_one_start_answers_and_the_money_adds_up(cluster):
    scenario = cluster(TWO)
    answer = answer_services(scenario)
    assert answer is not None
    assert [service.name for service in answer.services] == ["chat", "office"]
    assert answer.standing_gpus < answer.peak_gpus
    for service in answer.services:
        assert service.hindsight_gpu_hours <= service.gpu_hours <= service.peak_gpu_hours
        assert service.ttft_p99_ms is not None
        assert service.ttft_p99_ms <= service.ttft_target_ms
    assert (
        "6 of 24 observed hours of the day have no requests, each observed 1 time at least"
        in answer.services[1].zero_text
    )
    tables = tabulate_services(scenario)
    assert tables["token_costs"]["cost"].sum() == tables["service_costs"]["cost"].sum()
    hours = float(tables["service_costs"]["gpu_hours"].sum())
    assert hours == pytest.approx(sum(service.gpu_hours for service in answer.services))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("services:\n- {name: a}\n", "model"),
        ("services:\n- {name: a, model: llama-3.1-8b, ttft: 5}\n", "ttft"),
        ("services:\n- {name: a, model: llama-3.1-8b, ttft_ms: 0}\n", "ttft_ms, a number from 1"),
        ("services:\n- {name: a, model: llama-3.1-8b, min_replicas: 1.5}\n", "min_replicas, a whole number"),
        ("services:\n- {name: a, model: m, gpu_model: Q100}\n", "a GPU model of the catalog"),
        ("services:\n- {name: a, model: m}\n- {name: a, model: m}\n", "a"),
        ("- 5\n", "the file"),
    ],
)
def test_faults_of_the_file_are_named_with_their_line(tmp_path, text, message):
    file = tmp_path / "services.yaml"
    file.write_text(text)
    with pytest.raises(ScenarioError, match=message) as caught:
        read_services(file)
    assert "services.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        (
            "{name: x, model: llama-3.1-8b}",
            ScenarioError,
            "requests of 'x' in the data; got requests of 'chat', 'office'",
        ),
        ("{name: chat, model: gpt-9}", GpuPlannerError, "gpt-9"),
        ("{name: chat, model: llama-3.1-8b, gpu_model: A30}", ScenarioError, "one of 'A100-80GB'; got A30-24GB"),
        ("{name: chat, model: llama-3.1-405b, gpus: 1}", InfeasiblePlanError, "do not fit in memory"),
        ("{name: chat, model: llama-3.1-8b, ttft_ms: 5}", InfeasiblePlanError, "a first token takes"),
        ("{name: chat, model: llama-3.1-8b, itl_ms: 1}", InfeasiblePlanError, "at full memory bandwidth"),
        ("{name: chat, model: llama-3.1-8b, ttft_ms: 120}", InfeasiblePlanError, "each request runs alone"),
    ],
)
def test_services_that_cannot_be_served_are_errors(cluster, row, error, message):
    with pytest.raises(error, match=message):
        plan_inference_services(cluster(f"services:\n- {row}\n"))


def test_requests_without_prompt_tokens_or_team_are_kept_or_rejected_with_a_reason(tmp_path: Path):
    file = tmp_path / "gateway.csv"
    file.write_text(
        "time,model,team,prompt_tokens,generated_tokens\n"
        "2026-03-02T08:00:00Z,m,a,10,5\n"
        "2026-03-02T08:00:01Z,m,,10,0\n"
        "2026-03-02T08:00:02Z,m,a,0,5\n"
        "2026-03-02T08:00:03Z,m,a,,5\n"
        "2026-03-02T08:00:04Z,m,a,1.5,5\n"
        "2026-03-02T08:00:05Z,,a,10,5\n"
    )
    dataset = add_files("auto", [file], tmp_path / "data").dataset
    assert dataset.table["team"].to_list() == ["a", None]
    assert dataset.rejects.height == 4
    reasons = " ".join(dataset.rejects["reason"])
    assert "no prompt tokens" in reasons
    assert "whole number of tokens" in reasons
    check = dataset.quality.filter(pl.col("check").str.contains("answer tokens"))
    assert check["rows"].to_list() == [1]


def test_azure_of_2024_and_burstgpt(tmp_path: Path):
    azure, burst = tmp_path / "conv24.csv", tmp_path / "BurstGPT_1.csv"
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n")
    burst.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,0,1087,API log\n"
    )
    row = add_files("auto", [azure], tmp_path / "a").dataset.table.row(0, named=True)
    assert (row["time"].isoformat(), row["service"]) == ("2024-05-10T00:00:00.009930+00:00", "conv24")
    table = add_files("auto", [burst], tmp_path / "b").dataset.table
    assert table["service", "team"].rows() == [("ChatGPT", "Conversation log"), ("GPT-4", "API log")]
