"""Laws of the sources that are no lines of a table: damaged files give an error or a full account."""

from __future__ import annotations

import copy
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import Inventory, Jobs
from gpuplanner.core.schemas import QueueQuotas as Quotas
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.kubernetes.cluster_reader import read_kubernetes
from gpuplanner.ingest.slurm.accounting import read_slurm
from gpuplanner.ingest.slurm.node_records import read_inventory
from gpuplanner.ingest.source_registry import detect_source
from tests.examples import examples

T0 = 1_756_706_400
DAY = "2025-09-01T"

SLURM: dict[str, Any] = {
    "meta": {"Slurm": {"release": "23.11.4"}},
    "jobs": [
        {
            "job_id": 7 + number,
            "array": {"job_id": 0, "task_id": {"set": False, "infinite": False, "number": 0}},
            "account": "bio",
            "user": "ann",
            "nodes": "n1",
            "state": {"current": [state], "reason": "None"},
            "time": {
                "elapsed": 3600, "eligible": T0, "start": T0, "end": T0 + 7200, "submission": T0, "suspended": 0,
                "limit": {"set": True, "infinite": False, "number": 60},
            },
            "tres": {"allocated": [{"type": "gres", "name": "gpu", "count": 2}], "requested": []},
            "steps": [{"time": {"start": T0 + 60, "elapsed": 60, "end": 0}}],
        }
        for number, state in enumerate(("COMPLETED", "RUNNING"))
    ],
}  # fmt: skip


def kube(kind: str, name: str, spec: Any, status: Any = None, **about: Any) -> dict[str, Any]:
    stamp = {"creationTimestamp": f"{DAY}08:00:00Z", "uid": f"uid-{name}", "namespace": "ads", "name": name}
    return {"apiVersion": "v1", "kind": kind, "metadata": stamp | about, "spec": spec, "status": status or {}}


GPUS = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}], "nodeName": "n1"}
ADMITTED = {"type": "Admitted", "status": "True", "lastTransitionTime": f"{DAY}09:00:00Z"}
KUBERNETES: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        kube("Pod", "a", GPUS | {"resourceClaims": [{"name": "g", "resourceClaimName": "c"}]}, {
            "phase": "Succeeded", "startTime": f"{DAY}09:00:00Z",
            "containerStatuses": [{"state": {"terminated": {"finishedAt": f"{DAY}11:00:00Z"}}}],
        }, ownerReferences=[{"kind": "Job", "name": "j", "uid": "uid-j", "controller": True}]),
        kube("Pod", "hami", {"nodeName": "n2", "containers": [{"resources": {"limits": {
            "nvidia.com/gpu": "1", "nvidia.com/gpumem": "10240", "nvidia.com/gpucores": 30}}}]}),
        kube("Pod", "kai", {"nodeName": "n2", "containers": [{}]},
             annotations={"gpu-memory": "2000", "gpu-fraction-num-devices": "2"}),
        kube("Node", "n2", {}, {"capacity": {"nvidia.com/gpu": "10"}},
             labels={"nvidia.com/gpu.memory": "81559"},
             annotations={"hami.io/node-nvidia-register": "GPU-0,10,81559,100,NVIDIA-NVIDIA H100,0,true,0,hami-core:"}),
        kube("Job", "old", {"parallelism": 2, "template": {"spec": GPUS}},
             {"startTime": f"{DAY}09:00:00Z", "active": 2}),
        kube("Workload", "w", {
            "queueName": "q", "podSets": [{"name": "main", "count": 2, "template": {"spec": GPUS}}],
        }, {
            "conditions": [ADMITTED],
            "admission": {"clusterQueue": "cq", "podSetAssignments": [
                {"name": "main", "flavors": {"nvidia.com/gpu": "f"}, "resourceUsage": {"nvidia.com/gpu": "4"}}]},
        }),
        kube("Node", "n1", {}, {"capacity": {"nvidia.com/gpu": "8"}, "conditions": [
            {"type": "Ready", "status": "True", "lastHeartbeatTime": f"{DAY}12:00:00Z"}]},
            labels={"nvidia.com/gpu.product": "H100", "nvidia.com/gpu.count": "8", "nvidia.com/gpu.replicas": "1"}),
        kube("ClusterQueue", "cq", {"cohort": "x", "resourceGroups": [{"flavors": [
            {"name": "f", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "8"}]}]}]}),
        kube("LocalQueue", "q", {"clusterQueue": "cq"}),
        kube("ResourceFlavor", "f", {"nodeLabels": {"nvidia.com/gpu.product": "H100"}}),
        kube("ResourceClaim", "c", {"devices": {"requests": [
            {"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 1}}]}}),
        kube("ResourceSlice", "s", {"driver": "gpu.nvidia.com", "nodeName": "n1", "pool": {"name": "n1"}, "devices": [
            {"name": "gpu-0", "attributes": {"type": {"string": "gpu"}, "uuid": {"string": "GPU-0"}}}]}),
    ],
}  # fmt: skip

SCONTROL = "NodeName=n1 Arch=x86_64\n   Gres=gpu:a100:4(S:0-1)\n\nNodeName=n2\n   Gres=gpu:2,mps:1\n"
SINFO = "NODELIST GRES\nn1 gpu:a100:4(S:0-1)\nn2 (null)\n"

NASTY: list[Any] = [
    None, True, "", " ", "x", -1, 0, 1, 1.5, 1e308, 10**18, 10**30, [], {}, [[]], [{}], {"a": 1}, "\0", "\x1b[2J",
    "\ud800", "9" * 400, "1e99", "-1", "NaN", "2025-09-01T08:00:00", "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59", "2025-09-01T08:00:00.123456Z", {"set": True, "infinite": False, "number": -1},
    {"set": False}, "nvidia.com/gpu", "8Gi", "1k", "RUNNING", "Failed", "Node", "Pod", "=", ",", "é",
]  # fmt: skip


def spots(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from spots(each, (*path, key))


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The document with something else at one place."""
    if not path:
        return value
    document = copy.deepcopy(document)
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return document


def lawful(content: bytes, reader: Callable[[list[Path]], Dataset]) -> None:
    """An error of ours, or a trace whose tables are whole and whose rows add up."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dump.json"
        path.write_bytes(content)
        try:
            trace = reader([path])
        except TraceFormatError:
            return
    check_table(trace.jobs, Jobs, source="jobs")
    assert trace.summary()["rows_in"] == trace.jobs.height + trace.rejects.height
    assert math.isfinite(trace.provenance["gpu_hours"])
    assert trace.provenance["gpu_hours"] >= 0
    if trace.inventory is not None:
        check_table(trace.inventory, Inventory, source="inventory")
    if trace.quotas is not None:
        check_table(trace.quotas, Quotas, source="quotas")
    json.dumps(trace.provenance).encode()


def in_yaml(document: Any) -> str:
    """As kubectl prints it: keys in order, block style, no anchors."""
    return yaml.safe_dump(json.loads(json.dumps(document)), allow_unicode=True)


JSON_READERS = {"slurm": (SLURM, read_slurm), "kubernetes": (KUBERNETES, read_kubernetes)}


@pytest.mark.long
@pytest.mark.parametrize("source", sorted(JSON_READERS))
@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_a_document_with_other_things_in_it_gives_an_error_or_a_full_account(source: str, data: st.DataObject):
    document, reader = JSON_READERS[source]
    places = list(spots(document))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(places))
        try:
            document = changed(document, place, data.draw(st.sampled_from(NASTY)))
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took that place away
    lawful(json.dumps(document).encode(), reader)
    if source == "kubernetes":
        lawful(in_yaml(document).encode(), reader)


@pytest.mark.parametrize("source", sorted(JSON_READERS))
@settings(max_examples=examples(25), deadline=None)
@given(cut=st.floats(0, 1), length=st.integers(0, 9), new=st.binary(max_size=6), lines=st.booleans())
def test_damaged_bytes_give_an_error_or_a_full_account(source: str, cut: float, length: int, new: bytes, lines: bool):
    document, reader = JSON_READERS[source]
    items = next(value for value in document.values() if isinstance(value, list))
    text = "\n".join(map(json.dumps, items)) if lines else json.dumps(document)
    content = text.encode()
    start = int(cut * len(content))
    lawful(content[:start] + new + content[start + length :], reader)


@settings(max_examples=examples(25), deadline=None)
@given(
    cut=st.floats(0, 1),
    length=st.integers(0, 9),
    new=st.binary(max_size=6)
    | st.sampled_from([b"&a ", b"*a ", b"<<: ", b"!!python/name:os.x ", b"? ", b"\n---\n", b"- ", b"\t"]),
    documents=st.booleans(),
)
def test_damaged_yaml_gives_an_error_or_a_full_account(cut: float, length: int, new: bytes, documents: bool):
    text = "---\n".join(map(in_yaml, KUBERNETES["items"])) if documents else in_yaml(KUBERNETES)
    content = text.encode()
    start = int(cut * len(content))
    lawful(content[:start] + new + content[start + length :], read_kubernetes)


@settings(max_examples=examples(25), deadline=None)
@given(
    text=st.sampled_from([SCONTROL, SINFO]),
    cut=st.floats(0, 1),
    length=st.integers(0, 9),
    new=st.sampled_from(
        ["", "\0", "\n", "gpu:", "=", "(", "[1-4]", "-5", "99999999", " ", ",", "é", "a100_1g.5gb", "NodeName="]
    ),
)
def test_a_damaged_list_of_nodes_gives_an_error_or_whole_nodes(text: str, cut: float, length: int, new: str):
    start = int(cut * len(text))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nodes.txt"
        path.write_text(text[:start] + new + text[start + length :])
        try:
            inventory = read_inventory(path)[0]
        except TraceFormatError:
            return
    check_table(inventory, Inventory, source="inventory")
    assert inventory["node"].is_unique().all()


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (json.dumps(SLURM), "slurm"),
        (json.dumps(KUBERNETES), "kubernetes"),
        ("\n".join(map(json.dumps, KUBERNETES["items"])), "kubernetes"),
        (in_yaml(KUBERNETES), "kubernetes"),
        ("JobIDRaw|State|Start|End|AllocTRES\n", "slurm"),
    ],
)
def test_forms_are_told_apart(tmp_path: Path, text: str, source: str):
    path = tmp_path / "dump"
    path.write_text(text)
    assert detect_source(path) == source
