"""Kubernetes dumps: what a pod asks for and how long it held it, gangs, nodes, Kueue and DRA."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.ingest.kubernetes.api_objects import parse_count, parse_gpu_resource, parse_quantity
from gpuplanner.ingest.kubernetes.cluster_dump import DUPLICATE_OBJECT_REASON, UNREAD_KIND_REASON
from gpuplanner.ingest.kubernetes.cluster_reader import read_kubernetes
from gpuplanner.ingest.kubernetes.gpu_requests import pod_gpu_requests
from gpuplanner.ingest.kubernetes.job_rows import COUNTED_WITH_JOB_REASON, NO_GPU_REQUEST_REASON
from gpuplanner.ingest.kubernetes.node_labels import count_installed_gpus
from gpuplanner.ingest.quality_report import check_text
from gpuplanner.planner.fleet_limits_and_prices import Limits, Quota

File = Callable[..., Path]
Json = dict[str, Any]

GPU = "nvidia.com/gpu"


def at(time: str) -> str:
    return f"2025-09-01T{time}Z"


def utc(time: str) -> datetime:
    return datetime.fromisoformat(at(time)).astimezone(UTC)


def meta(name: str, created: str | None = "08:00:00", owner: tuple[str, str] | None = None, **more: Any) -> Json:
    about: Json = {"name": name, "namespace": "ads", "uid": f"uid-{name}", **more}
    if created:
        about["creationTimestamp"] = at(created)
    if owner:
        kind, its = owner
        about["ownerReferences"] = [
            {"apiVersion": "batch/v1", "kind": kind, "name": its, "uid": f"uid-{its}", "controller": True}
        ]
    return about


def box(gpus: Any = 1, resource: str = GPU, **more: Any) -> Json:
    return {"name": "main", "resources": {"limits": {resource: gpus}, "requests": {resource: gpus}}, **more}


def pod(
    name: str,
    *,
    bound: str | None = "09:00:00",
    ended: str | None = None,
    phase: str | None = None,
    node: str | None = "n1",
    boxes: list[Json] | None = None,
    owner: tuple[str, str] | None = None,
    spec: Json | None = None,
    status: Json | None = None,
    exit_reason: str = "Completed",
    **about: Any,
) -> Json:
    conditions = [
        {
            "type": "PodScheduled",
            "status": "True" if bound else "False",
            "lastTransitionTime": at(bound or "08:00:01"),
            **({} if bound else {"reason": "Unschedulable"}),
        }
    ]
    terminated = {"terminated": {"exitCode": 0, "finishedAt": at(ended), "reason": exit_reason}} if ended else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta(name, owner=owner, **about),
        "spec": {
            "containers": [box()] if boxes is None else boxes,
            **({"nodeName": node} if bound and node else {}),
            **(spec or {}),
        },
        "status": {
            "phase": phase or ("Succeeded" if ended else "Running" if bound else "Pending"),
            "conditions": conditions,
            "containerStatuses": [{"name": "main", "restartCount": 0, "state": terminated}],
            **(status or {}),
        },
    }


def node(name: str = "n1", labels: Json | None = None, capacity: Json | None = None, beat: str = "12:00:00") -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "creationTimestamp": at("00:00:00"), "labels": labels or {}},
        "status": {
            "capacity": {"cpu": "96", "memory": "1056270744Ki", **(capacity or {})},
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": at(beat)}],
        },
    }


H100 = {f"{GPU}.product": "NVIDIA-H100-80GB-HBM3", f"{GPU}.count": "8", f"{GPU}.replicas": "1"}


def dump(file: File, *things: Json, name: str = "dump.json") -> Dataset:
    listed = {"apiVersion": "v1", "items": list(things), "kind": "List", "metadata": {"resourceVersion": ""}}
    return read_kubernetes([file(json.dumps(listed, indent=4), name)])


def test_a_pod_holds_its_gpus_from_its_binding_to_the_end_of_its_last_container(file: File):
    trace = dump(file, pod("a", ended="11:30:00", boxes=[box("4")]), node(labels=H100))
    assert trace.jobs.select("job_id", "tenant", "gpus", "gpu_model", "state", "nodes", "node_list").rows() == [
        ("ads/a", "ads", 4.0, "H100-80GB-SXM5", "COMPLETED", 1, "n1")
    ]
    times = trace.jobs.select("submit_time", "start_time", "end_time").row(0)
    assert times == (utc("08:00:00"), utc("09:00:00"), utc("11:30:00"))
    assert trace.provenance["gpu_hours"] == 4 * 2.5


def test_a_running_pod_counts_up_to_the_last_heartbeat_of_a_node(file: File):
    trace = dump(file, pod("a"), pod("b", bound=None), node(labels=H100, beat="12:00:00"))
    assert trace.jobs["state"].to_list() == ["RUNNING", "PENDING"]
    assert trace.summary()["span_end"] == at("12:00:00")
    assert trace.provenance["gpu_hours"] == 3.0


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"containers": [box(2), box(1)]}, {GPU: 3}),
        ({"containers": [box(2)], "initContainers": [box(4)]}, {GPU: 4}),
        ({"containers": [box(2)], "initContainers": [box(1, restartPolicy="Always")]}, {GPU: 3}),
        # A sidecar runs beside the init containers that stand behind it, not beside those before it.
        ({"containers": [box(1)], "initContainers": [box(1, restartPolicy="Always"), box(3)]}, {GPU: 4}),
        ({"containers": [box(1)], "initContainers": [box(3), box(1, restartPolicy="Always")]}, {GPU: 3}),
        ({"containers": [{"resources": {"limits": {GPU: "1"}}}]}, {GPU: 1}),
        ({"containers": [box(0)]}, {}),
        ({"containers": [box(1, "amd.com/gpu"), box(2, "nvidia.com/mig-1g.10gb")]},
         {"amd.com/gpu": 1, "nvidia.com/mig-1g.10gb": 2}),
    ],
)  # fmt: skip
def test_a_pod_needs_the_most_of_start_up_and_run(spec: Json, expected: dict[str, int]):
    assert pod_gpu_requests(spec) == expected


def naive_pod_gpus(init: list[tuple[int, bool]], main: list[int]) -> int:
    """Walks through the life of a pod and notes the largest number of GPUs in use at once."""
    sidecars, peak = 0, 0
    for gpus, sidecar in init:
        peak = max(peak, sidecars + gpus)
        sidecars += gpus if sidecar else 0
    return max(peak, sidecars + sum(main))


@given(
    init=st.lists(st.tuples(st.integers(0, 8), st.booleans()), max_size=5), main=st.lists(st.integers(0, 8), max_size=4)
)
def test_the_rule_equals_a_walk_through_the_life_of_a_pod(init: list[tuple[int, bool]], main: list[int]):
    spec = {
        "initContainers": [box(gpus, **({"restartPolicy": "Always"} if side else {})) for gpus, side in init],
        "containers": [box(gpus) for gpus in main],
    }
    assert pod_gpu_requests(spec).get(GPU, 0) == naive_pod_gpus(init, main)


@pytest.mark.parametrize(
    ("name", "profile", "shared"),
    [
        ("nvidia.com/gpu.shared", None, True),
        ("nvidia.com/mig-3g.40gb", "3g.40gb", False),
        ("nvidia.com/mig-1g.10gb.me", "1g.10gb+me", False),
        ("amd.com/gpu", None, False),
    ],
)
def test_names_of_gpu_resources(name: str, profile: str | None, shared: bool):
    resource = parse_gpu_resource(name)
    assert resource is not None
    assert (resource.profile, resource.is_shared) == (profile, shared)


@pytest.mark.parametrize("name", ["cpu", "memory", "nvidia.com/gpumem", "example.com/gpu", "nvidia.com/mig-", ""])
def test_other_resources_are_no_gpus(name: str):
    assert parse_gpu_resource(name) is None


@pytest.mark.parametrize(("text", "number"), [("8", 8), (8, 8), ("2k", 2000), ("1e2", 100), ("2000m", 2), ("0", 0)])
def test_counts(text: object, number: int):
    assert parse_count(text, "x") == number


@pytest.mark.parametrize("text", ["", "x", "1.5", "-1", "100001", "1 ", "NaN", "1e99", None, True, [], "1Qi", 0.5])
def test_what_is_no_count_is_refused(text: object):
    with pytest.raises(ValueError, match=r"no quantity|no number of GPUs"):
        parse_count(text, "x")


def test_a_quantity_of_bytes():
    assert parse_quantity("1056270744Ki") == 1056270744 * 1024


@pytest.mark.parametrize(
    ("more", "state"),
    [
        ({"phase": "Failed", "exit_reason": "Error"}, "FAILED"),
        ({"phase": "Failed", "exit_reason": "OOMKilled"}, "OUT_OF_MEMORY"),
        ({"phase": "Failed", "status": {"reason": "Evicted"}}, "PREEMPTED"),
        ({"phase": "Failed", "status": {"reason": "DeadlineExceeded"}}, "TIMEOUT"),
        ({}, "COMPLETED"),
    ],
)
def test_how_a_pod_ended(file: File, more: Json, state: str):
    assert dump(file, pod("a", ended="10:00:00", **more)).jobs["state"].to_list() == [state]


def test_a_preempted_pod_tells_so_in_its_condition(file: File):
    preempted = pod("a", ended="10:00:00", phase="Failed")
    preempted["status"]["conditions"].append(
        {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
         "lastTransitionTime": at("09:59:30")}
    )  # fmt: skip
    evicted = pod("b", phase="Failed")
    evicted["status"]["conditions"] += preempted["status"]["conditions"][1:]
    trace = dump(file, preempted, evicted)
    assert trace.jobs["state"].to_list() == ["PREEMPTED", "PREEMPTED"]
    assert trace.jobs["end_time"].to_list() == [utc("10:00:00"), utc("09:59:30")]


def test_rows_are_kept_or_rejected_each_with_its_reason(file: File):
    broken = pod("late")
    broken["metadata"]["creationTimestamp"] = "yesterday"
    service = {"apiVersion": "v1", "kind": "Service", "metadata": meta("svc")}
    trace = dump(
        file,
        pod("a"),
        pod("web", boxes=[{"name": "nginx"}]),
        broken,
        pod("many", boxes=[box("1.5")]),
        service,
        {"apiVersion": "v1", "kind": "Pod"},
        pod("bad", bound="07:00:00"),
        pod("esc\x1b[2J"),
    )
    reasons = dict(trace.rejects["row", "reason"].iter_rows())
    assert reasons == {
        2: NO_GPU_REQUEST_REASON,
        3: "creationTimestamp: 'yesterday' is no time of these days with its offset from UTC",
        4: "nvidia.com/gpu: '1.5' is no number of GPUs",
        5: UNREAD_KIND_REASON,
        6: "not an object of Kubernetes: no kind or no metadata",
        7: "start before submission",
        8: r"'uid-esc\x1b[2J': a control character",
    }
    assert trace.summary()["rows_in"] == 8 == trace.jobs.height + trace.rejects.height
    assert trace.rejects.filter(row=2)["raw"].item() == "Pod ads/web"  # a dump holds secrets: no more of it
    assert trace.rejects["raw"].str.contains("\x1b").sum() == 0


def test_pods_of_a_job_that_ran_together_are_one_gang_and_its_retry_another_attempt(file: File):
    owner = ("PyTorchJob", "llm")
    first = [pod(f"llm-{rank}", bound=f"09:00:0{rank}", ended="10:00:00", phase="Failed", node=f"n{rank}",
                 boxes=[box(8)], owner=owner) for rank in range(4)]  # fmt: skip
    again = [pod(f"llm-r{rank}", bound="10:05:00", ended="12:05:00", node=f"n{rank}", boxes=[box(8)], owner=owner)
             for rank in range(4)]  # fmt: skip
    trace = dump(file, *first, *again)
    assert trace.jobs.select("job_id", "attempt", "state", "gpus", "nodes").rows() == [
        ("ads/llm", 1, "FAILED", 32.0, 4),
        ("ads/llm", 2, "COMPLETED", 32.0, 4),
    ]
    assert trace.rejects["reason"].to_list() == [COUNTED_WITH_JOB_REASON] * 6
    # The four of the first gang were bound one second after another, and their hours are their own.
    assert trace.provenance["gpu_hours"] == pytest.approx(32 * 1 - 8 * (1 + 2 + 3) / 3600 + 32 * 2, rel=1e-9)


def test_replicas_of_a_service_are_jobs_of_their_own(file: File):
    owner = ("ReplicaSet", "serve-5d9")
    trace = dump(file, pod("serve-5d9-a", owner=owner), pod("serve-5d9-b", owner=owner))
    assert sorted(trace.jobs["job_id"]) == ["ads/serve-5d9-a", "ads/serve-5d9-b"]


def test_pods_of_a_job_one_after_another_are_its_attempts(file: File):
    tries = [
        pod("t-1", bound="09:00:00", ended="09:30:00", phase="Failed", owner=("Job", "t")),
        pod("t-2", bound="09:31:00", ended="10:31:00", owner=("Job", "t")),
    ]
    trace = dump(file, *tries)
    assert trace.jobs["job_id", "attempt", "state"].rows() == [("ads/t", 1, "FAILED"), ("ads/t", 2, "COMPLETED")]
    assert trace.provenance["gpu_hours"] == 1.5


def test_runs_of_a_cron_job_are_different_jobs(file: File):
    jobs = [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta(name, owner=("CronJob", "night")), "spec": {}}
        for name in ("night-1", "night-2")
    ]
    pods = [pod(f"{job['metadata']['name']}-x", owner=("Job", job["metadata"]["name"])) for job in jobs]
    assert sorted(dump(file, *jobs, *pods).jobs["job_id"]) == ["ads/night-1", "ads/night-2"]


def test_a_job_whose_pods_are_gone_is_read_from_itself(file: File):
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta("old"),
        "spec": {"parallelism": 2, "activeDeadlineSeconds": 7200, "template": {"spec": {"containers": [box(4)]}}},
        "status": {
            "startTime": at("09:00:00"),
            "conditions": [
                {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "lastTransitionTime": at("11:00:00")}
            ],
        },
    }
    trace = dump(file, job)
    row = trace.jobs.row(0, named=True)
    assert (row["gpus"], row["state"], row["time_limit_s"]) == (8.0, "TIMEOUT", 7200.0)
    assert trace.provenance["gpu_hours"] == 16.0
    assert "a Job whose pods are gone" in trace.quality["check"].to_list()


def test_nodes_become_the_inventory(file: File):
    single = {
        f"{GPU}.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb",
        f"{GPU}.count": "14",
        "nvidia.com/mig.strategy": "single",
        "nvidia.com/mig.config": "all-1g.10gb",
        "nvidia.com/mig.config.state": "success",
    }
    mixed = {**H100, f"{GPU}.count": "4", "nvidia.com/mig.config": "half", "nvidia.com/mig.config.state": "pending"}
    nodes = [
        node("n1", {**H100, f"{GPU}.clique": "c.1", "karpenter.sh/capacity-type": "spot"}, {GPU: "8"}),
        node("n2", single, {GPU: "14"}),
        node("n3", mixed, {"nvidia.com/mig-1g.10gb": "7", GPU: "3"}),
        node("n4", {"amd.com/gpu.product-name": "AMD_Instinct_MI300X"}, {"amd.com/gpu": "8"}),
        node("n5", {f"{GPU}.replicas": "4"}, {GPU: "8"}),
        node("cpu"),
    ]
    trace = dump(file, pod("a"), *nodes)
    assert trace.inventory is not None
    assert trace.inventory.select("node", "gpus", "mig_enabled", "ownership", "nvlink_domain").rows() == [
        ("n1", 8, False, "spot", "c.1"),
        ("n2", 2, True, None, None),
        ("n3", 4, True, None, None),
        ("n4", 8, False, None, None),
        ("n5", 2, False, None, None),
    ]
    assert trace.inventory["gpu_model"].to_list() == [*["H100-80GB-SXM5"] * 3, "MI300X", None]
    cut = ["1g.10gb:7", "1g.10gb:7"]
    assert trace.inventory["layouts"].to_list() == [None, ";".join(cut), ";".join(["gpu"] * 3 + cut[:1]), None, None]
    assert any("'n3 (pending)'" in note for note in trace.provenance["notes"])


def test_a_node_that_does_not_tell_its_gpus_leaves_no_inventory(file: File):
    trace = dump(file, pod("a"), node("n1", H100, {GPU: "8"}), node("n2", {}, {"nvidia.com/mig-1g.10gb": "7"}))
    assert trace.inventory is None
    [(severity, rows, named)] = trace.quality.filter(check=check_text("kubernetes: unknown GPU count"))[
        "severity", "rows", "example"
    ].rows()
    assert (severity, rows, named) == ("warning", 1, "'n2'")


def test_shared_gpus_count_with_their_share_and_unknown_shares_stay_unknown(file: File):
    labels = {f"{GPU}.product": "NVIDIA-A100-SXM4-80GB-SHARED", f"{GPU}.count": "2", f"{GPU}.replicas": "4"}
    trace = dump(
        file,
        node("n1", labels, {f"{GPU}.shared": "8"}),
        node("n2", labels | {f"{GPU}.replicas": "2"}, {f"{GPU}.shared": "4"}),
        pod("a", boxes=[box(1, f"{GPU}.shared")]),
        pod("b", bound=None, boxes=[box(1, f"{GPU}.shared")]),
    )
    assert trace.jobs["gpus"].to_list() == [0.25, None]
    assert trace.jobs["gpu_model"].to_list() == ["A100-80GB", None]
    assert trace.inventory is not None
    assert trace.inventory["gpus"].to_list() == [2, 2]


def test_under_the_strategy_single_a_gpu_is_an_instance(file: File):
    labels = {
        f"{GPU}.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
        f"{GPU}.count": "56",
        "nvidia.com/mig.config": "all-1g.5gb",
    }
    trace = dump(file, pod("a"), pod("b", boxes=[box(2, "nvidia.com/mig-2g.10gb")], node="n9"), node("n1", labels))
    assert trace.jobs.sort("job_id")["profile_requested"].to_list() == ["1g.5gb", "2g.10gb"]
    assert trace.jobs.sort("job_id")["gpus"].to_list() == pytest.approx([1 / 7, 4 / 7])
    assert trace.jobs.sort("job_id")["instances"].to_list() == [1, 2]
    assert "MIG instances counted as shares of GPUs" in trace.quality["check"].to_list()
    assert trace.inventory is not None
    assert trace.inventory.select("node", "gpus").rows() == [("n1", 8), ("n9", 1)], "a pod runs on n9"


# Kueue


def workload(name: str, *, job: str, conditions: list[Json], admission: Json | None = None, **more: Any) -> Json:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": meta(name, owner=("Job", job)),
        "spec": {
            "active": True,
            "queueName": "ads-queue",
            "podSets": [{"name": "main", "count": 2, "template": {"spec": {"containers": [box(4)]}}}],
            **more,
        },
        "status": {"conditions": conditions, **({"admission": admission} if admission else {})},
    }


def holds(kind: str, time: str, status: str = "True", reason: str = "") -> Json:
    return {"type": kind, "status": status, "reason": reason, "lastTransitionTime": at(time)}


ADMISSION = {
    "clusterQueue": "team-ads",
    "podSetAssignments": [
        {"name": "main", "count": 2, "flavors": {GPU: "h100", "cpu": "h100"}, "resourceUsage": {GPU: "8", "cpu": "4"}}
    ],
}
QUEUES = [
    {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "ClusterQueue",
        "metadata": {"name": "team-ads", "uid": "uid-cq"},
        "spec": {
            "cohort": "web",
            "resourceGroups": [
                {
                    "coveredResources": ["cpu", GPU, "nvidia.com/mig-1g.10gb"],
                    "flavors": [
                        {
                            "name": "h100",
                            "resources": [
                                {"name": "cpu", "nominalQuota": "100"},
                                {"name": GPU, "nominalQuota": "16", "borrowingLimit": "8"},
                                {"name": "nvidia.com/mig-1g.10gb", "nominalQuota": 14, "lendingLimit": 7},
                            ],
                        }
                    ],
                }
            ],
        },
    },
    {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "LocalQueue",
        "metadata": {"name": "ads-queue", "namespace": "ads", "uid": "uid-lq"},
        "spec": {"clusterQueue": "team-ads"},
    },
    {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "ResourceFlavor",
        "metadata": {"name": "h100", "uid": "uid-rf"},
        "spec": {"nodeLabels": {f"{GPU}.product": "NVIDIA-H100-80GB-HBM3"}},
    },
]


def test_a_workload_tells_queueing_admission_and_end(file: File):
    done = workload(
        "job-a-1", job="a", admission=ADMISSION,
        conditions=[holds("QuotaReserved", "08:30:00"), holds("Admitted", "08:31:00"),
                    holds("Finished", "10:31:00", reason="Succeeded")],
    )  # fmt: skip
    pods = [pod(f"a-{rank}", bound="08:31:20", ended="10:30:00", boxes=[box(4)], owner=("Job", "a")) for rank in (0, 1)]
    trace = dump(file, done, *pods, *QUEUES)
    row = trace.jobs.row(0, named=True)
    assert trace.jobs.height == 1
    assert (row["job_id"], row["tenant"], row["gpus"]) == ("ads/a", "team-ads", 8.0)
    # Its pods are all there: it held GPUs from their binding to their end, and not from its admission.
    assert (row["start_time"] - row["submit_time"]).total_seconds() == 31 * 60 + 20
    assert row["gpu_model"] == "H100-80GB-SXM5"
    assert trace.provenance["gpu_hours"] == pytest.approx(8 * (2 * 3600 - 80) / 3600, rel=1e-9)
    assert trace.rejects["reason"].to_list() == [COUNTED_WITH_JOB_REASON, COUNTED_WITH_JOB_REASON]


def test_waiting_evicted_and_deactivated_workloads(file: File):
    evicted = [holds("QuotaReserved", "09:00:00", "False"), holds("Admitted", "09:00:00", "False"),
               holds("Evicted", "09:00:00", reason="Preempted")]  # fmt: skip
    back = workload("b", job="b", conditions=evicted)
    back["status"]["schedulingStats"] = {"evictions": [{"reason": "Preempted", "underlyingCause": "", "count": 2}]}
    gone = workload("c", job="c", conditions=[holds("Evicted", "09:30:00", reason="Deactivated")], active=False)
    late = workload("d", job="d", conditions=[holds("Evicted", "09:40:00", reason="MaximumExecutionTimeExceeded")])
    trace = dump(file, workload("a", job="a", conditions=[]), back, gone, late, *QUEUES)
    assert trace.jobs.sort("job_id").select("job_id", "attempt", "state", "tenant", "gpus").rows() == [
        ("ads/a", 1, "PENDING", "team-ads", 8.0),
        ("ads/b", 3, "PENDING", "team-ads", 8.0),
        ("ads/c", 1, "CANCELLED", "team-ads", 8.0),
        ("ads/d", 1, "TIMEOUT", "team-ads", 8.0),
    ]
    assert "sent back to the queue before" in trace.quality["check"].to_list()


def test_quotas_become_limits_of_the_planner_and_survive_the_folder(file: File, tmp_path: Path):
    trace = open_dataset(write_dataset(dump(file, pod("a"), *QUEUES), tmp_path / "trace"))
    assert trace.quotas is not None
    assert trace.quotas.select("tenant", "cohort", "gpu_model", "profile", "nominal", "borrow", "lend").rows() == [
        ("team-ads", "web", "NVIDIA-H100-80GB-HBM3", None, 16.0, 8.0, None),
        ("team-ads", "web", "NVIDIA-H100-80GB-HBM3", "1g.10gb", 14.0, None, 7.0),
    ]
    assert trace.quotas["namespaces"].unique().to_list() == ["ads"]
    whole = trace.quotas.filter(trace.quotas["profile"].is_null())
    quotas = {row["tenant"]: Quota(row["nominal"], row["cohort"], row["borrow"]) for row in whole.to_dicts()}
    assert Limits(quotas=quotas).quotas == {"team-ads": Quota(16.0, "web", 8.0)}


def test_the_newer_version_of_kueue_calls_the_cohort_differently(file: File):
    queue = json.loads(json.dumps(QUEUES[0]))
    queue["apiVersion"] = "kueue.x-k8s.io/v1beta2"
    queue["spec"]["cohortName"] = queue["spec"].pop("cohort")
    quotas = dump(file, pod("a"), queue).quotas
    assert quotas is not None
    assert quotas["cohort"].to_list() == ["web", "web"]


# Dynamic Resource Allocation


def device(name: str, kind: str, version: str, **words: str) -> Json:
    strings = {"type": kind, "productName": "NVIDIA H100 80GB HBM3", **words}
    facts = {
        "attributes": {key: {"string": value} for key, value in strings.items()},
        "capacity": {"memory": {"value": "80Gi"}},
    }
    return {"name": name, **({"basic": facts} if version == "v1beta1" else facts)}


def resource_slice(version: str, *devices: Json) -> Json:
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceSlice",
        "metadata": {"name": "n1-gpu.nvidia.com-x", "uid": "uid-slice"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": "n1",
            "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }


def claim(name: str, version: str, devices: list[str], **request: Any) -> Json:
    body = {"deviceClassName": "mig.nvidia.com", **request}
    asked = {"name": "r", **(body if version == "v1beta1" else {"exactly": body})}
    results = [{"request": "r", "driver": "gpu.nvidia.com", "pool": "n1", "device": each} for each in devices]
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaim",
        "metadata": meta(name),
        "spec": {"devices": {"requests": [asked]}},
        "status": {"allocation": {"devices": {"results": results}}} if devices else {},
    }


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2", "v1"])
def test_claims_hold_devices_of_slices(file: File, version: str):
    slices = resource_slice(
        version,
        device("gpu-0", "gpu", version, uuid="GPU-0"),
        device("gpu-1-mig-9-0-4", "mig", version, uuid="MIG-a", parentUUID="GPU-1", profile="3g.40gb"),
        device("gpu-1-mig-9-4-4", "mig", version, uuid="MIG-b", parentUUID="GPU-1", profile="3g.40gb"),
    )
    selector = [{"cel": {"expression": "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"}}]
    claims = [
        claim("whole", version, ["gpu-0"], deviceClassName="gpu.nvidia.com"),
        claim("half-x7z", version, ["gpu-1-mig-9-0-4"]),
        claim("waits", version, [], count=2, selectors=selector),
    ]
    named = [{"name": "g", "resourceClaimName": "whole"}]
    made = [{"name": "g", "resourceClaimTemplateName": "half"}]
    pods = [
        pod("a", boxes=[{}], spec={"resourceClaims": named}),
        pod("b", bound="09:10:00", boxes=[{}], spec={"resourceClaims": named}),
        pod("c", boxes=[{}], spec={"resourceClaims": made},
            status={"resourceClaimStatuses": [{"name": "g", "resourceClaimName": "half-x7z"}]}),
        pod("d", bound=None, boxes=[{}], spec={"resourceClaims": [{"name": "g", "resourceClaimName": "waits"}]}),
    ]  # fmt: skip
    trace = dump(file, slices, *claims, *pods)
    assert trace.jobs.sort("job_id").select("job_id", "gpus", "profile_requested", "gpu_model").rows() == [
        ("ads/a", 1.0, None, "H100-80GB-SXM5"),
        ("ads/b", 0.0, None, None),  # it shares the claim of the pod before it
        ("ads/c", 3 / 7, "3g.40gb", "H100-80GB-SXM5"),
        ("ads/d", 2 / 7, "1g.10gb", "H100-80GB-SXM5"),  # there is no other board
    ]
    assert trace.inventory is not None
    assert trace.inventory.select("node", "gpus", "mig_enabled").rows() == [("n1", 2, True)]


def test_candidate_placements_of_dynamic_mig_are_not_counted_as_boards(file: File):
    slices = resource_slice(
        "v1",
        device("gpu-0", "gpu", "v1", uuid="GPU-0"),
        *(device(f"gpu-0-mig-1g23gb-19-{start}", "mig", "v1", parentUUID="GPU-0", profile="1g.23gb")
          for start in range(7)),
    )  # fmt: skip
    trace = dump(file, pod("a"), slices)
    assert trace.inventory is not None
    assert trace.inventory.select("gpus", "mig_enabled").rows() == [(1, True)]  # partitioned on demand


def test_a_template_without_claims_tells_what_is_asked_for(file: File):
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": meta("two"),
        "spec": {
            "spec": {
                "devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}]}
            }
        },
    }
    waiting = pod(
        "a", bound=None, boxes=[{}], spec={"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "two"}]}
    )
    assert dump(file, template, waiting).jobs["gpus"].to_list() == [2.0]


# Forms


def test_lists_lines_and_several_files_are_the_same(file: File):
    things = [pod("a", ended="10:00:00"), pod("b"), node(labels=H100)]
    listed = dump(file, *things)
    lines = "\n".join(json.dumps(thing) for thing in things) + "\n"
    raw = json.dumps({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [
        {key: value for key, value in thing.items() if key != "kind"} for thing in things[:2]]})  # fmt: skip
    row = "\n".join(json.dumps(thing, indent=2) for thing in things)
    single = [file(json.dumps(thing), f"{number}.json") for number, thing in enumerate(things)]
    for paths in ([file(lines, "l.json")], [file(row, "r.json")], [file(gzip.compress(lines.encode()), "g.gz")], single,
                  [file(raw, "raw.json"), single[2]]):  # fmt: skip
        other = read_kubernetes(paths)
        assert other.jobs.equals(listed.jobs)
        assert other.provenance["gpu_hours"] == listed.provenance["gpu_hours"]


def in_yaml(thing: Json) -> str:
    """As kubectl prints it: keys in order, block style, no anchors."""
    return yaml.safe_dump(json.loads(json.dumps(thing)))


def test_yaml_gives_the_same_rows_as_json(file: File):
    things = [pod("a", ended="10:00:00"), pod("b"), node(labels=H100), pod("null"), pod("1.5e+3"), pod("0x1f")]
    things.append({**pod("job"), "kind": "ConfigMap", "data": {"conf": "kind: Pod\n# '*' & {\n"}})
    listed = dump(file, *things)
    whole = in_yaml({"apiVersion": "v1", "items": things, "kind": "List"})
    documents = "".join(f"---\n{in_yaml(thing)}" for thing in things)
    flow = yaml.safe_dump(json.loads(json.dumps(things)), default_flow_style=True)
    commented = f"# kubectl get\n%YAML 1.1\n---\n{documents}...\n"
    parted = "".join(f"{in_yaml({'kind': 'List', 'items': each})}---\n" for each in (things[:3], things[3:]))
    packed = gzip.compress(whole.encode())
    for number, text in enumerate((whole, documents, f"apiVersion: v1\nitems: {flow}", commented, parted, packed)):
        other = read_kubernetes([file(text, f"{number}.yaml")])
        assert other.jobs.equals(listed.jobs)
        assert other.rejects["reason"].value_counts().equals(listed.rejects["reason"].value_counts())
        assert other.provenance["gpu_hours"] == listed.provenance["gpu_hours"]


def test_a_time_without_quotation_marks_is_the_same_time(file: File):
    text = in_yaml({"items": [pod("a", ended="10:00:00")]}).replace("'", "")
    assert re.search(r"creationTimestamp: 2025-09-01T08:00:00Z$", text, re.MULTILINE)
    assert read_kubernetes([file(text, "a.yaml")]).provenance["gpu_hours"] == 1.0


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kind: Pod\na: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", r"line 3, column \d+: .* an alias"),
        ("kind: Pod\nmetadata: !!python/object/apply:os.system [true]\n", r"line 2, column \d+: .* a tag"),
        (f"kind: Pod\nx: {'[' * 3000}", "nested more than 64 deep"),
        (f"kind: Pod\nx: {'{a: ' * 3000}", "nested more than 64 deep"),
        ("kind: List\nitems:\n- kind: Pod\n x: 1\n", r"line 4, column \d+: expected YAML"),
        ("kind: Pod\n? [a]\n: b\n", "a key that is no word"),
        ("kind: Pod\nx: \x01\n", "a character that YAML does not allow"),
    ],
    ids=["aliases", "tag", "deep lists", "deep objects", "indentation", "key", "control character"],
)
def test_yaml_that_is_no_plain_data_is_refused_with_its_line(file: File, text: str, fault: str):
    with pytest.raises(TraceFormatError, match=fault):
        read_kubernetes([file(text, "x.yaml")])


def test_an_object_with_a_key_twice_is_rejected_and_the_others_are_read(file: File):
    double = in_yaml(pod("b")).replace("kind: Pod", "kind: Pod\nkind: Node")
    trace = read_kubernetes([file(f"{in_yaml(pod('a'))}---\n{double}---\n{in_yaml(pod('c'))}", "x.yaml")])
    assert trace.jobs["job_id"].to_list() == ["ads/a", "ads/c"]
    assert "the same key twice" in trace.rejects["reason"][0]


def test_of_two_dumps_of_a_pod_the_one_that_knows_its_end_counts(file: File):
    running, done = (file(json.dumps(pod("a")), "1.json"), file(json.dumps(pod("a", ended="10:00:00")), "2.json"))
    for paths in ([running, done], [done, running]):
        trace = read_kubernetes(paths)
        assert trace.jobs["state"].to_list() == ["COMPLETED"]
        assert trace.rejects["reason"].to_list() == [DUPLICATE_OBJECT_REASON]


@pytest.mark.parametrize(
    ("labels", "capacity", "gpus", "layouts"),
    [
        ({}, {GPU: "2", "nvidia.com/mig-3g.40gb": "3"}, 4, "gpu;gpu;3g.40gb:2;3g.40gb:1"),
        ({f"{GPU}.count": "4"}, {GPU: "2", "nvidia.com/mig-3g.40gb": "2"}, 4, None),  # one each, or both on one
        ({f"{GPU}.count": "2"}, {"nvidia.com/mig-9g.90gb": "2", GPU: "0"}, 2, None),
        ({f"{GPU}.replicas": "3"}, {GPU: "4"}, None, None),  # units that are no whole number of GPUs
        ({f"{GPU}.replicas": "3", f"{GPU}.count": "4"}, {GPU: "4"}, 4, None),
        ({}, {"nvidia.com/mig-3g.40gb": "0", GPU: "8"}, 8, None),
    ],
)
def test_gpus_of_a_node_follow_from_labels_and_capacity(labels: Json, capacity: Json, gpus, layouts):
    counted = {name: int(number) for name, number in capacity.items()}
    replicas = {GPU: int(labels[f"{GPU}.replicas"])} if f"{GPU}.replicas" in labels else {}
    stated = int(labels[f"{GPU}.count"]) if f"{GPU}.count" in labels else None
    found = count_installed_gpus(labels, counted, replicas, "NVIDIA-H100-80GB-HBM3", None, stated=stated)
    assert found == (gpus, layouts)


def test_under_the_strategy_single_instances_that_no_board_has_leave_the_number_open():
    unknown = count_installed_gpus({}, {GPU: 8}, {}, "NVIDIA-H100-80GB-HBM3", "9g.90gb", instances_stated=8)
    assert unknown == (None, None)
    assert count_installed_gpus({}, {}, {}, "NVIDIA-H100-80GB-HBM3", "1g.10gb") == (None, None)


def queue(name: str, kind: str, **spec: Any) -> Json:
    return {"apiVersion": kind, "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def test_queues_of_kai_and_volcano_are_teams_with_quotas(file: File) -> None:
    kai, volcano = "scheduling.run.ai/v2", "scheduling.volcano.sh/v1beta1"
    pods = [pod("a", boxes=[box(2)]), pod("b", boxes=[box(1)])]
    pods[0]["metadata"]["labels"] = {"kai.scheduler/queue": "vision"}
    pods[1]["metadata"]["annotations"] = {"scheduling.volcano.sh/queue-name": "chem"}
    limits = {"quota": 8, "limit": 12, "overQuotaWeight": 2}
    found = dump(
        file, *pods, queue("research", kai, resources={"gpu": {"quota": -1, "limit": -1}}),
        queue("vision", kai, parentQueue="research", resources={"gpu": limits}),
        queue("chem", volcano, weight=3, deserved={GPU: "4", "cpu": "9"}, guarantee={"resource": {GPU: "1"}}),
    )  # fmt: skip
    assert sorted(found.jobs["tenant"]) == ["chem", "vision"]
    assert found.quotas is not None
    shown = found.quotas.select("tenant", "cohort", "resource", "nominal", "borrow", "lend", "weight").rows()
    assert shown == [
        ("chem", None, GPU, 4.0, None, 3.0, 3.0), ("vision", "research", "gpu", 8.0, 4.0, None, 2.0),
    ]  # fmt: skip
