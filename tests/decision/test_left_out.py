"""Above a fifth of the GPU-hours left out or unresolved, nothing is recommended but what to correct first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.data_correction import find_correction
from gpuplanner.decision.inference_answers import list_data_warnings
from gpuplanner.decision.recommendation import decide
from gpuplanner.ingest.dataset_import import add_files

GPU = "nvidia.com/gpu"


def pod(name: str, resource: str, hours: int) -> dict[str, Any]:
    ended = {"terminated": {"finishedAt": f"2026-03-02T{8 + hours:02d}:00:00Z"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team", "creationTimestamp": "2026-03-02T08:00:00Z"},
        "spec": {"nodeName": "n1", "containers": [{"resources": {"limits": {resource: "1"}}}]},
        "status": {"phase": "Succeeded", "startTime": "2026-03-02T08:00:00Z", "containerStatuses": [{"state": ended}]},
    }


def dataset(folder: Path, *pods: dict[str, Any]) -> str:
    labels = {f"{GPU}.product": "NVIDIA-L40S", f"{GPU}.count": "8"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": labels}, "status": {}}
    path = folder / "dump.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node, *pods]}))
    add_files("kubernetes", [path], folder / "data")
    return str(folder / "data")


@pytest.mark.parametrize(("hours", "stopped"), [(2, False), (3, True)])
def test_a_fifth_is_the_limit(tmp_path: Path, hours: int, stopped: bool):
    # Eight hours of a GPU are known, and two or three of a device that may be one: 20.0 % or 27.3 %.
    data = dataset(tmp_path, pod("a", GPU, 8), pod("b", "nvidia.com/NVIDIA_A10-12Q", hours))
    correction = find_correction(data)
    assert (correction is not None) == stopped
    found = decide(Scenario(data=data, actuator="mig-manager")).decision
    assert (found.fleet_gpus == 0) == stopped
    if correction is not None:
        assert correction.share == pytest.approx(3 / 11)
        assert "nvidia.com/NVIDIA_A10-12Q is not read" in found.sentence
        assert [missing.what for missing in found.missing] == [correction.finding]
        assert found.gpus == found.fleet_gpus == 0
        assert found.next_steps == ()


def test_the_badge_counts_unresolved_hours_too(tmp_path: Path):
    data = dataset(tmp_path, pod("a", GPU, 9), pod("b", "nvidia.com/NVIDIA_A10-12Q", 1))
    assert decide(Scenario(data=data, actuator="mig-manager")).decision.left_out_share == pytest.approx(0.1)


def sacct_with_a_rejected_row(tmp_path: Path, good_rows: int) -> str:
    lines = ["JobID|User|Account|State|Submit|Start|End|NNodes|AllocTRES"]
    times = "2026-03-02T08:00:00|2026-03-02T08:00:00|2026-03-02T{}:00:00"
    lines += [f"{number}|u|lab|COMPLETED|{times.format(16)}|1|gres/gpu=1" for number in range(good_rows)]
    lines += ["99|u|lab|COMPLETED|never|never|never|1|gres/gpu=1"]
    path = tmp_path / "sacct.txt"
    path.write_text("\n".join(lines) + "\n")
    add_files("slurm", [path], tmp_path / "data", tz="UTC")
    return str(tmp_path / "data")


def test_the_badge_counts_rejected_rows_too(tmp_path: Path):
    data = sacct_with_a_rejected_row(tmp_path, 9)
    assert find_correction(data) is None
    assert decide(Scenario(data=data, actuator="slurm")).decision.left_out_share == pytest.approx(1 / 10)


def test_a_rejected_row_counts_as_a_job_like_the_others(tmp_path: Path):
    data = sacct_with_a_rejected_row(tmp_path, 3)
    correction = find_correction(data)
    assert correction is not None
    assert correction.share == pytest.approx(1 / 4)
    assert "rejected" in correction.finding
    assert [warning["count"] for warning in list_data_warnings(Scenario(data=data))] == [1]
