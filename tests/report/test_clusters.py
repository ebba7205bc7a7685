"""The report of clusters that are cut: their own board, their own fleet, and the GPU-hours of a plain count."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.study_pipeline import evaluate
from tests.ingest.kubernetes.test_made_up_cluster import Cluster
from tests.ingest.slurm.made_up_cluster import made_up_cluster

SHORT = (
    "--set",
    "replications=2",
    "--set",
    "horizon_intervals=24",
    "--set",
    "gap_target=0.05",
    "--set",
    'policies="fewer_nodes"',
)


@pytest.fixture
def run(answer, monkeypatch, tmp_path):
    """Run a command without studies of other tests, and read what it prints as JSON."""
    monkeypatch.setenv("GPUPLANNER_CACHE", str(tmp_path / "cache"))
    return answer


def hours_of(headline):
    first, last = (datetime.fromisoformat(headline[f"observed_{side}"]) for side in ("from", "to"))
    return (last - first).total_seconds() / 3600


@pytest.fixture(scope="module")
def slurm():
    return made_up_cluster()


@pytest.mark.long
def test_slurm_cluster_with_its_nodes(run, tmp_path, slurm):
    (tmp_path / "sacct.txt").write_text(slurm.text)
    (tmp_path / "nodes.txt").write_text(slurm.nodes["scontrol"])
    words = (tmp_path / "sacct.txt", "--tz", "Europe/Oslo", "--nodes", tmp_path / "nodes.txt")
    run("ingest", "slurm", *words, "-o", tmp_path / "t", "--json")
    told = run("report", tmp_path / "t", *SHORT, "-o", tmp_path / "r", "--json")["headline"]
    agrees(told, slurm, gpus=slurm.gpus)
    assert told["cut_gpus"] == 8
    assert told["boards"] == f"{slurm.gpus} × A100-40GB"
    page = (tmp_path / "r" / "index.html").read_text()
    assert "A100-40GB" in page
    assert "H100-80GB" not in page
    assert (tmp_path / "r" / "export" / "README.md").exists()


@pytest.mark.long
def test_slurm_cluster_without_its_nodes(run, tmp_path, slurm):
    (tmp_path / "sacct.txt").write_text(slurm.text)
    words = (tmp_path / "sacct.txt", "--tz", "Europe/Oslo")
    run("ingest", "slurm", *words, "-o", tmp_path / "t", "--json")
    fields = dict(word.split("=") for word in SHORT[1::2])
    numbers = {name: json.loads(value) for name, value in fields.items()}
    study = evaluate(Scenario(data=str(tmp_path / "t"), **numbers), cache=False)
    agrees(study.headline.to_dict(), slurm, gpus=slurm.most_boards())
    assert study.headline.cut_gpus == 8  # as the jobs on them were seen to hold them


def agrees(told, cluster, *, gpus):
    assert told["gpu_model"] == "A100-40GB"
    assert told["fleet_gpus"] == told["installed_gpus"] == gpus
    assert told["installed_gpu_hours"] == pytest.approx(gpus * hours_of(told), rel=1e-6)
    assert told["allocated_gpu_hours"] == pytest.approx(cluster.gpu_hours(), rel=1e-6)


@pytest.mark.long
def test_kubernetes_cluster(run, tmp_path):
    cluster = Cluster(2)
    (tmp_path / "dump.json").write_text(cluster.dump())
    run("ingest", "kubernetes", tmp_path / "dump.json", "-o", tmp_path / "t", "--json")
    told = run("report", tmp_path / "t", *SHORT, "-o", tmp_path / "r", "--json")["headline"]
    assert (told["gpu_model"], told["fleet_gpus"]) == ("H100-80GB-SXM5", 24)
    assert told["cut_gpus"] == len(cluster.cut)
    assert told["installed_gpu_hours"] == pytest.approx(24 * hours_of(told), rel=1e-6)
    held = sum(entry.gpu_hours() for entry in cluster.diary)
    assert told["allocated_gpu_hours"] == pytest.approx(held, rel=1e-6)
    assert told["boards"] == "24 × H100-80GB-SXM5"
    assert "H100-80GB-SXM5" in (tmp_path / "r" / "index.html").read_text()
