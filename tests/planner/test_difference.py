"""A cluster as dumps tell it, beside a plan: what goes, who is in the way, and what keeps it from being done."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.planner.layout_plan import plan_to_json
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.report.plan_and_bundle_verification import compare_with_plan, verify_carried_out

BOARD = "H100-80GB-SXM5"
Run = Callable[..., tuple[int, str, str]]
START = datetime(2026, 11, 2, tzinfo=UTC)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """n1 is cut into four 1g.20gb on two of its three GPUs, as it is from the first slot on."""
    demand = np.array([[[1.0, 1.0], [8.0, 8.0]]])
    problem = PlanProblem(
        BOARD, 3, 3, START, 1.0, ["t"], ["gpu", "1g.20gb"], demand,
        initial={"gpu": 1, "1g.10gb:7": 2}, nodes=["n1"],
    )  # fmt: skip
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    path.write_text(plan_to_json(plan(problem, gap_target=0), problem))
    return path


def node(name: str, resources: dict[str, int], product: str = "NVIDIA-H100-80GB-HBM3") -> dict[str, Any]:
    counts = {key: str(count) for key, count in resources.items()}
    labels = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.count": "3"}
    return {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"capacity": counts, "allocatable": counts},
    }  # fmt: skip


def pod(name: str, host: str, resource: str, deadline_s: int | None = None) -> dict[str, Any]:
    start = "2026-11-02T00:10:00Z"
    spec = {"nodeName": host, "containers": [{"name": "c", "resources": {"limits": {resource: "1"}}}]}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "ads", "uid": name, "creationTimestamp": start},
        "spec": spec | ({} if deadline_s is None else {"activeDeadlineSeconds": deadline_s}),
        "status": {
            "phase": "Running", "startTime": start,
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": start}],
        },
    }  # fmt: skip


SEVENTHS = {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.10gb": 14}
DONE = {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.20gb": 8}


@pytest.fixture
def dump(tmp_path: Path) -> Any:
    def made(*objects: dict[str, Any]) -> Path:
        path = tmp_path / "dump.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
        return path

    return made


def test_what_goes_and_who_is_in_the_way(dump: Any, planned: Path) -> None:
    """Two GPUs of seven instances each: fourteen go. The whole one is named, too, and its pod has to end."""
    now = dump(node("n1", SEVENTHS), pod("train", "n1", "nvidia.com/mig-1g.10gb"), pod("big", "n1", "nvidia.com/gpu"))
    found = compare_with_plan([now], planned)
    assert found.changes["instances_removed"].sum() == 14
    assert found.changes["instances_made"].sum() == 8
    assert sorted(zip(found.changes["before"], found.changes["after"], strict=True)) == [
        ("1g.10gb:7", "1g.20gb:4"),
        ("1g.10gb:7", "1g.20gb:4"),
        ("gpu", "gpu"),
    ]
    assert found.ending_jobs.select("job", "tenant", "profile").rows() == [
        ("ads/big", "ads", "gpu"),
        ("ads/train", "ads", "1g.10gb"),
    ]
    assert found.problems == ()
    assert found.describe() == (
        "2 GPUs on 1 nodes change: 14 instances and full GPUs are removed, 8 are created; 1 other GPUs in the files "
        "stay unchanged; 2 running jobs have to end"
    )


def test_the_command_and_the_check_after_the_change(dump: Any, planned: Path, command: Run) -> None:
    before = dump(node("n1", SEVENTHS), pod("train", "n1", "nvidia.com/mig-1g.10gb"))
    code, out, _ = command("diff", str(before), str(planned))
    assert (code, "14 instances and full GPUs are removed, 8 are created" in out) == (0, True)
    code, out, _ = command("verify", str(before), "--against", str(planned))
    assert (code, "n1 GPU 1: 1g.10gb:7 in the cluster, 1g.20gb:4 in the plan" in out) == (1, True)
    after = dump(node("n1", DONE), pod("train", "n1", "nvidia.com/mig-1g.20gb"))
    code, out, _ = command("verify", str(after), "--against", str(planned))
    assert (code, "n1: as planned" in out) == (0, True)
    assert compare_with_plan([after], planned).ending_jobs.is_empty()


def test_lists_of_slurm(tmp_path: Path, planned: Path) -> None:
    nodes = tmp_path / "nodes.txt"
    kind = "nvidia_h100_80gb_hbm3"
    nodes.write_text(
        f"NodeName=n1 Arch=x86_64\n   Gres=gpu:{kind}:1,gpu:{kind}_1g.10gb:14\n   State=IDLE\n\n"
        f"NodeName=n9 Arch=x86_64\n   Gres=gpu:{kind}:3\n   State=IDLE\n"
    )
    found = compare_with_plan([nodes], planned)
    assert found.changes["instances_removed"].sum() == 14
    assert found.notes == ("not in the plan, unchanged: 'n9'",)
    nodes.write_text(f"NodeName=n1 Arch=x86_64\n   Gres=gpu:{kind}:1,gpu:{kind}_1g.20gb:8\n   State=IDLE\n")
    assert verify_carried_out(nodes, planned).ok


def test_a_job_that_runs_longer_than_the_change_waits_is_named(dump: Any, planned: Path) -> None:
    now = dump(node("n1", SEVENTHS), pod("long", "n1", "nvidia.com/mig-1g.10gb", deadline_s=86400))
    problems = compare_with_plan([now], planned).problems
    assert problems == (
        "n1: job ads/long may run until 2026-11-03T00:10:00Z, after the timeout of the change at 2026-11-02T01:00:00Z",
    )


def test_nodes_that_are_not_as_the_plan_has_them(dump: Any, planned: Path) -> None:
    fewer = node("n1", {"nvidia.com/gpu": 2})
    fewer["metadata"]["labels"]["nvidia.com/gpu.count"] = "2"
    assert compare_with_plan([dump(fewer)], planned).problems == ("n1: 2 GPUs in the cluster, 3 in the plan",)
    other = node("n1", {"nvidia.com/gpu": 3}, "NVIDIA-A30")
    with pytest.raises(ScenarioError, match="n1: A30-24GB, but the plan is for H100-80GB-SXM5"):
        compare_with_plan([dump(other)], planned)


@pytest.mark.parametrize("objects", [[node("m1", {"nvidia.com/gpu": 3})], []])
def test_a_dump_of_another_cluster_or_without_gpus_is_refused(
    dump: Any, planned: Path, objects: list[dict[str, Any]], command: Run
) -> None:
    code, out, err = command("diff", str(dump(*objects)), str(planned))
    assert code not in (0, 1)
    assert (out, "Traceback" in err) == ("", False)
    code, _, err = command("diff", str(planned))
    assert (code, "expected a dump of the cluster and a plan" in err) == (2, True)
