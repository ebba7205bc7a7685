"""Nodes of Kubernetes by themselves: an inventory, and one that joins the jobs of a dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gpuplanner.ingest.dataset_import import add_files
from gpuplanner.ingest.kubernetes.cluster_reader import read_kubernetes
from gpuplanner.ingest.kubernetes.node_labels import instances_from_labels
from gpuplanner.ingest.source_registry import read
from gpuplanner.usage.period_accounts import dataset_ledger

GPU = "nvidia.com/gpu"
MIG = "nvidia.com/mig-"
H100 = {f"{GPU}.product": "NVIDIA-H100-80GB-HBM3", f"{GPU}.count": "8"}


def node(name: str, labels: dict[str, str], capacity: dict[str, str], **spec: Any) -> dict[str, Any]:
    ready = {"type": "Ready", "status": spec.pop("ready", "True"), "lastHeartbeatTime": "2026-03-02T00:00:00Z"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "creationTimestamp": "2025-01-01T00:00:00Z"},
        "spec": spec,
        "status": {"capacity": capacity, "conditions": [ready]},
    }


def pod(name: str, on: str, gpus: int) -> dict[str, Any]:
    ended = {"terminated": {"finishedAt": "2026-03-01T12:00:00Z"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ads", "creationTimestamp": "2026-03-01T08:00:00Z"},
        "spec": {"nodeName": on, "containers": [{"resources": {"limits": {GPU: str(gpus)}}}]},
        "status": {"phase": "Succeeded", "startTime": "2026-03-01T09:00:00Z", "containerStatuses": [{"state": ended}]},
    }


NODES = [
    node("cpu", {}, {"cpu": "64"}),
    node("h1", H100, {GPU: "8"}),
    node("h2", H100 | {"nvidia.com/mig.config": "mine"}, {GPU: "0", f"{MIG}3g.40gb": "8", f"{MIG}1g.10gb": "8"}),
    node("h3", H100 | {"nvidia.com/mig.config": "all-2g.20gb"}, {GPU: "0"}, unschedulable=True),
    node("h4", H100 | {f"{MIG}1g.10gb.count": "14"}, {GPU: "0"}, ready="Unknown"),
]
LAYOUTS = [None, ";".join(["3g.40gb:1,1g.10gb:1"] * 8), ";".join(["2g.20gb:3"] * 8), None]


def written(path: Path, *things: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(things)}, indent=2))
    return path


@pytest.mark.parametrize("source", ["nodes", "kubernetes", "auto", "kubectl"])
def test_nodes_alone_are_an_inventory_by_whichever_name_they_come(tmp_path: Path, source: str):
    found = read(source, written(tmp_path / "n.json", *NODES))
    assert found.kind == "inventory"
    assert found.provenance["source"] == "nodes"
    table = found.inventory
    assert table["node"].to_list() == ["h1", "h2", "h3", "h4"]
    assert table["gpus"].to_list() == [8] * 4
    assert table["gpu_model"].unique().to_list() == ["H100-80GB-SXM5"]
    # Fourteen of 1g on eight GPUs may lie on two or on more of them: that does not follow.
    assert table["layouts"].to_list() == LAYOUTS
    assert table["mig_enabled"].to_list() == [False, True, True, True]


def test_nodes_that_take_no_new_jobs_are_named_and_keep_their_gpus(tmp_path: Path):
    found = read_kubernetes([written(tmp_path / "n.json", *NODES)])
    [(rows, example)] = found.quality.filter(check="node that takes no new jobs")["rows", "example"].rows()
    assert rows == 2
    assert "h3 (cordoned)" in example
    assert "h4 (not ready)" in example
    assert found.summary()["gpus"] == 32


def test_since_when_a_node_is_closed_is_what_its_taint_or_its_condition_says(tmp_path: Path):
    added = "2026-03-01T06:00:00Z"
    cordon = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": added}]
    dedicated = [{"key": "dedicated", "value": "ads", "effect": "NoSchedule", "timeAdded": added}]
    fallen = node("h4", H100, {GPU: "8"}, ready="Unknown")
    fallen["status"]["conditions"][0]["lastTransitionTime"] = "2026-03-01T08:00:00Z"
    nodes = [
        node("h1", H100, {GPU: "8"}, unschedulable=True, taints=cordon),
        node("h2", H100, {GPU: "8"}, taints=dedicated),
        node("h3", H100, {GPU: "8"}, unschedulable=True),
        fallen,
    ]
    both = written(tmp_path / "all.json", pod("train", "h1", 2), *nodes)
    for path in (both, written(tmp_path / "n.json", *nodes)):
        closed = read("auto", path).tables["out_of_service"]
        assert closed.select("node", pl.col("start_time").dt.hour(), "end_time", "gpus", "bucket").rows() == [
            ("h1", 6, None, None, "down"), ("h3", 0, None, None, "down"), ("h4", 8, None, None, "down"),
        ]  # fmt: skip
    add_files("auto", [written(tmp_path / "p.json", pod("train", "h1", 2))], tmp_path / "data")
    found = add_files("auto", [tmp_path / "n.json"], tmp_path / "data").dataset
    begin, end = found.source_facts.span
    booked = dataset_ledger(found, begin, end).filter(bucket="down")
    # From the submission at 8 to the end at 12: h1 with two of eight held from 9 on, h4 from 8 on.
    assert booked["gpu_hours"].sum() == pytest.approx(8 + 3 * 6 + 4 * 8)


@pytest.mark.parametrize("source", ["nodes", "kubernetes", "auto"])
def test_nodes_join_the_jobs_that_came_before_them_or_come_after(tmp_path: Path, source: str):
    pods, nodes = written(tmp_path / "p.json", pod("train", "h1", 2)), written(tmp_path / "n.json", *NODES)
    add_files("kubernetes", [pods], tmp_path / "a")
    first = add_files(source, [nodes], tmp_path / "a").dataset
    add_files(source, [nodes], tmp_path / "b")
    last = add_files("auto", [pods], tmp_path / "b").dataset
    for found in (first, last):
        assert found.inventory["gpus"].sum() == 32
        assert found.jobs.select("gpus", "gpu_model").rows() == [(2.0, "H100-80GB-SXM5")]


@pytest.mark.parametrize(
    ("labels", "instances"),
    [
        ({"nvidia.com/mig.config": "all-1g.10gb"}, {"1g.10gb": 56}),
        ({"nvidia.com/mig.config": "all-1g.10gb.me"}, {"1g.10gb+me": 8}),
        ({"nvidia.com/mig.config": "all-balanced"}, {}),
        ({f"{MIG}3g.40gb.count": "4", f"{GPU}.count": "8"}, {"3g.40gb": 4}),
    ],
)
def test_labels_of_a_node_that_offers_nothing_tell_its_instances(labels: dict[str, str], instances: dict[str, int]):
    assert instances_from_labels(labels, 8, "NVIDIA-H100-80GB-HBM3") == instances
