"""``gpuplanner compare``: one object as text, JSON and page, equal to that of the study."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.comparison_record import study_comparison
from gpuplanner.ingest.dataset_import import add_files
from gpuplanner.usage.planning_history import FleetPools

FEW = ["--policies", "fewer_nodes", "--actuator", "slurm"]


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> str:
    """Four nodes of four GPUs, on which a job of four GPUs comes every two hours, for an hour."""
    folder = tmp_path_factory.mktemp("small")
    lines = ["JobID|User|Account|Partition|State|Submit|Start|End|NNodes|NodeList|ReqTRES|AllocTRES"]
    for number in range(12 * 21):
        begin = datetime(2026, 1, 5, tzinfo=UTC) + timedelta(hours=2 * number)
        told = [f"{one:%Y-%m-%dT%H:%M:%S}" for one in (begin, begin, begin + timedelta(hours=1))]
        tres = "cpu=1,gres/gpu:a100=4,node=1"
        lines.append("|".join([str(number), "ann", "vision", "gpu", "COMPLETED", *told, "1", "n1", tres, tres]))
    (folder / "sacct.txt").write_text("\n".join(lines) + "\n")
    (folder / "nodes.csv").write_text("node,gpus,gpu_model\n" + "".join(f"n{n},4,A100-80GB\n" for n in range(1, 5)))
    add_files("slurm", [folder / "sacct.txt"], folder / "data", tz="UTC")
    add_files("nodes", [folder / "nodes.csv"], folder / "data")
    return str(folder / "data")


def test_text_json_and_study_show_one_object(command, small):
    code, out, _ = command("compare", small, *FEW, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["projects"] == []
    same = study_comparison(Scenario(data=small, policies="fewer_nodes", actuator="slurm"))
    assert found == json.loads(json.dumps(same.to_dict()))
    assert {row["policy"] for row in found["policies"]} == {"fewer_nodes", found["winner"]}
    assert found["target"] == {"quantile": 0.95, "minutes": 10.0}
    decision = found["decision"]
    assert found["winner"] == decision["policy"]
    assert found["saving_gpu_hours_per_week"] == decision["saving_gpu_hours_per_week"]["value"]
    code, out, _ = command("compare", small, *FEW)
    assert code == 0
    assert decision["sentence"] in out
    assert f"* {found['winner']}" in out
    shown = next(line for line in out.splitlines() if ("fewer_nodes" in line and "yes" in line) or "no:" in line)
    assert shown
    for text in decision["confidence"]:
        assert text in out


def test_a_policy_that_is_out_says_why_and_the_recommended_one_is_among_them(command, small):
    found = json.loads(command("compare", small, "--actuator", "slurm", "--json")[1])
    for row in found["policies"]:
        assert (row["gpu_hours"] is not None and row["meets_target"]) or row["reason"]
    # At least half of the hours of one node of four are needed, and less than all of it.
    winner = next(row for row in found["policies"] if row["policy"] == found["winner"])
    assert 84 * 4 <= winner["gpu_hours"] <= 168 * 4.01


def test_a_chart_is_written_beside(command, small, tmp_path):
    page = tmp_path / "page.html"
    code, out, _ = command("compare", small, *FEW, "--json", "--chart", page)
    assert code == 0
    hours = json.loads(out)["today"]["gpu_hours"]
    assert f"{hours:,.0f}" in page.read_text("utf-8")


def test_projects_are_answered_beside(command, small, tmp_path):
    file = tmp_path / "projects.yaml"
    file.write_text("projects:\n- {name: x, team: vision, gpus: 640, from: 2026-09, chance: 0.5}\n")
    code, out, _ = command("compare", small, *FEW, "--projects", str(file), "--json")
    assert code == 0
    [answer] = json.loads(out)["projects"]
    assert (answer["fits"], answer["chance"], answer["order_by"]) == (False, 0.5, "2026-06-03")
    assert answer["gpus_more"] >= 640 - 16
    file.write_text("projects:\n- {name: x, team: vision, gpu: 640, from: 2026-09}\n")
    code, _, err = command("compare", small, *FEW, "--projects", str(file))
    assert code == 3
    assert "did you mean 'gpus'?" in err


@pytest.mark.long
def test_a_longer_wait_never_costs_more(command):
    hours = []
    for minutes in ("2", "240"):
        code, out, _ = command(
            "compare", "sample", *FEW, "--set", "month=2026-02", "--max-added-wait-minutes", minutes, "--json"
        )
        assert code == 0
        row = json.loads(out)["policies"][0]
        hours.append(float("inf") if row["gpu_hours"] is None else row["gpu_hours"])
    assert hours[1] <= hours[0]


def test_scenarios_stand_side_by_side_with_paired_differences(command, small, tmp_path):
    files = []
    for gpus in (16, 4):
        files.append(tmp_path / f"{gpus}.yaml")
        files[-1].write_text(f"data: {small}\npolicies: fewer_nodes\nactuator: slurm\ngpus: {gpus}\n")
    code, out, err = command("compare", *map(str, files), "--json", "--quiet")
    assert code == 0, err
    told = json.loads(out)
    first, second = told["decisions"]
    assert (first["gpus"], second["gpus"], first["p95_difference_minutes"]) == (16, 4, None)
    # A job an hour long every two hours on as many GPUs as it needs: on both fleets it runs at once.
    assert second["completion_minutes"] == pytest.approx(60.0, abs=1.0)
    assert second["completion_low"] <= second["completion_minutes"] <= second["completion_high"]
    measures = {"p95 queue wait", "mean completion time", "end of the last job"}
    assert {row["measure"] for row in told["differences"]} == measures
    [makespan] = [row for row in told["differences"] if row["job_size"] == "all"]
    assert makespan["measure"] == "end of the last job"
    assert second["makespan_difference_minutes"] == makespan["difference_minutes"]
    for row in told["differences"]:
        if row["measure"] == "end of the last job":  # in resampled weeks that of the longest job, on any fleet
            assert (row["low"], row["high"]) == (None, None)
        else:
            assert row["low"] <= 0 <= row["high"]
    code, out, _ = command("compare", *map(str, files), "--quiet")
    assert code == 0
    assert [row["study"] for row in told["decisions"]] == ["16 GPUs", "4 GPUs"]
    assert "4 GPUs" in out
    assert "not distinguishable" in out
    code, _, err = command("compare", *map(str, files), "--chart", tmp_path / "a.html")
    assert code == 2
    assert "--chart takes one SCENARIO" in err


def test_gpu_models_stand_side_by_side_one_after_another(command, small, monkeypatch):
    def two_pools(scenario):
        return FleetPools({"A100-40GB": scenario, "H100-80GB-SXM5": scenario}, {})

    monkeypatch.setattr("gpuplanner.usage.planning_history.split_into_pools", two_pools)
    code, out, err = command("compare", small, small, *FEW, "--json", "--quiet")
    assert code == 0, err
    pools = json.loads(out)["pools"]
    assert list(pools) == ["A100-40GB", "H100-80GB-SXM5"]
    assert [len(pool["decisions"]) for pool in pools.values()] == [2, 2]
    code, out, _ = command("compare", small, small, *FEW, "--quiet")
    assert code == 0
    assert out.count("Decisions side by side") == 2
    assert "H100-80GB-SXM5\n==" in out
