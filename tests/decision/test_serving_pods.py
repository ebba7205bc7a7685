"""Serving pods have no end: the decision keeps GPUs for them, and no size of job is evaluated by them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.policy_comparison import load_policy_simulation
from gpuplanner.decision.policy_layouts import keep_layouts
from gpuplanner.decision.recommendation import decide
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.dataset_import import add_files

FIRST = datetime(2026, 1, 5, tzinfo=UTC)
DAYS, NODES, SERVED = 21, 4, 6
DUMP = FIRST + timedelta(days=DAYS)


def _z(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _pod(name: str, owner: tuple[str, str], begin: datetime, end: datetime | None, node: str) -> dict:
    about = {"name": name, "namespace": "a", "uid": f"u-{name}", "creationTimestamp": _z(begin),
             "ownerReferences": [{"kind": owner[0], "name": owner[1], "uid": owner[1], "controller": True}
             ]}  # fmt: skip
    ran = {"startedAt": _z(begin)} | (
        {} if end is None else {"finishedAt": _z(end), "exitCode": 0, "reason": "Completed"}
    )
    status = {
        "phase": "Running" if end is None else "Succeeded", "startTime": _z(begin),
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": _z(begin)}],
        "containerStatuses": [{"name": "c", "ready": True, "restartCount": 0, "image": "i", "imageID": "",
                               "state": {"running" if end is None else "terminated": ran}}],
    }  # fmt: skip
    asks = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "status": status,
            "spec": {"nodeName": node, "containers": [{"name": "c", "resources": asks}]}}  # fmt: skip


def _cluster(place, owner: str | None) -> Scenario:
    """Four nodes of four GPUs: two jobs of a GPU every hour for half of it, and from the third day on six pods more."""
    pods = [
        _pod(f"j{number}", ("Job", f"j{number}"), begin, begin + timedelta(minutes=30), "n0")
        for number in range(2 * 24 * DAYS)
        for begin in [FIRST + timedelta(hours=number // 2)]
        if begin < DUMP - timedelta(hours=1)
    ]
    if owner is not None:
        pods += [_pod(f"serve-{n}", (owner, f"serve-{n // 6}"), FIRST + timedelta(days=3), None, f"n{1 + n // 4}")
                 for n in range(SERVED)]  # fmt: skip
    items = json.dumps({"apiVersion": "v1", "kind": "List", "items": pods})
    (place / "pods.json").write_text(items)
    (place / "nodes.csv").write_text(
        "node,gpus,gpu_model\n" + "".join(f"n{number},4,A100-80GB\n" for number in range(NODES))
    )
    add_files("kubernetes", [place / "pods.json"], place / "data")
    add_files("nodes", [place / "nodes.csv"], place / "data")
    return Scenario(data=str(place / "data"), policies="fewer_nodes", actuator="nvidia-smi")


@pytest.fixture
def serving(tmp_path) -> Scenario:
    return _cluster(tmp_path, "ReplicaSet")


def test_pods_of_a_deployment_are_services_and_those_of_a_job_are_not(serving):
    jobs = open_dataset(serving.data).jobs
    served = jobs.filter(job_class="service")
    assert served.height == SERVED
    assert served["end_time"].null_count() == SERVED
    assert served["job_id"].str.starts_with("a/serve").all()


def test_no_size_of_job_is_judged_by_them(serving, tmp_path_factory):
    replayed_jobs = load_policy_simulation(serving)[2]
    assert int(replayed_jobs.standing.sum()) == SERVED
    assert not (replayed_jobs.is_evaluated & replayed_jobs.standing).any()
    bare = load_policy_simulation(_cluster(tmp_path_factory.mktemp("bare"), None))[2]
    assert int(replayed_jobs.is_evaluated.sum()) == int(bare.is_evaluated.sum())
    assert replayed_jobs.asked_jobs.service_gpus == SERVED


@pytest.mark.long
def test_the_decision_keeps_gpus_for_them(serving, tmp_path_factory):
    with_them, without = (decide(one).decision for one in (serving, _cluster(tmp_path_factory.mktemp("bare"), None)))
    assert (with_them.action, without.action) == ("release", "release")
    assert without.gpus == 4, "two jobs at once fit on one node"
    assert with_them.gpus == 8, "two jobs at once and six pods"
    assert any("6.0 GPUs" in text for text in with_them.assumptions)


def test_a_fleet_that_has_no_room_for_them_does_not_hold_whoever_else_it_serves(serving):
    replayed_jobs = load_policy_simulation(serving)[2]
    small = replayed_jobs.simulate(keep_layouts(replayed_jobs.asked_jobs, "fewer", [0]))
    assert (small.waits_s[:, replayed_jobs.standing] > 3600).any()
    assert not replayed_jobs.meets_limit(small, replayed_jobs.is_evaluated)


def test_a_job_that_merely_still_runs_is_none(tmp_path):
    replayed_jobs = load_policy_simulation(_cluster(tmp_path, "Job"))[2]
    assert not replayed_jobs.standing.any(), "it began lately, and its source calls it a job"
