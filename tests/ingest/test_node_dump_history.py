"""Nodes as dumps of several dates show them: layouts and outages hold from their dump on."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.dataset_import import add_files, add_sources, group_files_by_source
from gpuplanner.ingest.node_dump_history import split_nodes_by_layout
from gpuplanner.ingest.source_registry import read
from gpuplanner.usage.dataset_description_and_data_quality import describe
from gpuplanner.usage.installed_capacity import find_installed
from gpuplanner.usage.planning_history import observation_begins_at, observation_ends_at
from gpuplanner.usage.pool_occupancy_and_inferred_inventory import installed_gpu_hours

CUT, WHOLE = "gpu:a100_1g.5gb:7", "gpu:a100:1"
SACCT = (
    "JobID|User|Account|Partition|State|Submit|Start|End|NNodes|NodeList|ReqTRES|AllocTRES|JobName\n"
    "1|u|t|p|COMPLETED|2026-02-01T00:00:00|2026-02-01T00:00:00|2026-02-02T00:00:00|1|n1"
    "|gres/gpu=1|gres/gpu:a100=1,gres/gpu=1|whole\n"
    "2|u|t|p|COMPLETED|2026-02-06T00:00:00|2026-02-06T00:00:00|2026-02-07T00:00:00|1|n1"
    "|gres/gpu=1|gres/gpu:a100_1g.5gb=1,gres/gpu=1|slice\n"
    "3|u|t|p|COMPLETED|2026-02-07T00:00:00|2026-02-07T00:00:00|2026-02-08T00:00:00|1|n2"
    "|gres/gpu=1|gres/gpu:a100=1,gres/gpu=1|other\n"
)


SLICES_TITLE = "slices of MIG instances by state, and of all GPUs with MIG disabled"


def scontrol(gres: str, state: str = "IDLE", *, busy: str | None = None) -> str:
    seen = f"   LastBusyTime={busy}\n" if busy else ""
    return f"NodeName=n1 Gres={gres} State={state}\n{seen}\nNodeName=n2 Gres={WHOLE} State=IDLE\n"


def slurm_folder(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "sacct.txt").write_text(SACCT)
    (folder / "nodes-2026-02-03.txt").write_text(scontrol(WHOLE))
    (folder / "nodes-20260205T0000Z.txt").write_text(scontrol(CUT))
    return folder


def remarks(dataset: Dataset) -> tuple[str, ...]:
    return find_installed(dataset, observation_begins_at(dataset), observation_ends_at(dataset)).remarks


def test_slices_follow_the_layout_of_each_time_and_add_up_to_the_installed_hours(tmp_path: Path):
    add_sources(group_files_by_source([slurm_folder(tmp_path / "in")]), tmp_path / "out", tz="UTC")
    tables = describe(str(tmp_path / "out")).tables
    slices = dict(tables[SLICES_TITLE].select("part", "compute_slice_hours").iter_rows())
    # One week of two GPUs; n1 is whole for four days, also before its first dump, and cut for three.
    assert slices == {"allocated": 24, "not_allocated": 72 * 7 - 24, "lost_to_layout": 0, "full_gpu": (96 + 168) * 7}
    assert sum(slices.values()) == 7 * describe(str(tmp_path / "out")).hours["gpu_hours"].sum()  # type: ignore[index]
    over_time = tables["MIG layouts of nodes over time"].select("node", "layouts", "since")
    assert [(node, layout, since.day) for node, layout, since in over_time.iter_rows()] == [
        ("n1", None, 3), ("n1", "1g.5gb:7", 5), ("n2", None, 3),
    ]  # fmt: skip
    dataset = open_dataset(tmp_path / "out")
    assert dataset.inventory is not None
    assert dict(dataset.inventory.select("node", "layouts").iter_rows()) == {"n1": "1g.5gb:7", "n2": None}
    [sentence] = remarks(dataset)
    assert "known since 2026-02-03" in sentence
    assert "simulations use the last ones, of 2026-02-05" in sentence
    begin, end = observation_begins_at(dataset), observation_ends_at(dataset)
    split = split_nodes_by_layout(dataset.inventory, dataset.tables["node_dumps"])
    assert installed_gpu_hours(split, begin, end) == installed_gpu_hours(dataset.inventory, begin, end) == 336


@pytest.mark.parametrize("order", list(permutations(["sacct.txt", "nodes-2026-02-03.txt", "nodes-20260205T0000Z.txt"])))
def test_dumps_may_be_imported_one_by_one_in_any_order(order: tuple[str, ...], tmp_path: Path):
    folder = slurm_folder(tmp_path / "in")
    for name in order:
        add_files("auto", [folder / name], tmp_path / "out", tz="UTC")
    tables = describe(str(tmp_path / "out")).tables
    assert tables[SLICES_TITLE]["compute_slice_hours"].to_list() == [24, 480, 0, 1848]
    assert tables["nodes by GPU model"]["gpus"].sum() == 2


def test_a_drained_node_is_out_of_service_until_the_dump_that_shows_it_open(tmp_path: Path):
    drained = "IDLE+DRAIN\n   Reason=fan [root@2026-02-02T06:00:00]"
    for day, state in ((3, drained), (4, drained), (6, "IDLE")):
        (tmp_path / f"nodes-2026-02-0{day}.txt").write_text(scontrol(WHOLE, state))
    outages = read("auto", sorted(tmp_path.iterdir()), tz="UTC").tables["out_of_service"]
    [(node, start, end)] = outages.select("node", "start_time", "end_time").rows()
    assert (node, start.isoformat(), end.isoformat()) == (
        "n1",
        "2026-02-02T06:00:00+00:00",
        "2026-02-06T00:00:00+00:00",
    )
    (tmp_path / "nodes-2026-02-06.txt").unlink()
    assert read("auto", sorted(tmp_path.iterdir()), tz="UTC").tables["out_of_service"]["end_time"].to_list() == [None]


def test_without_a_date_in_its_name_a_dump_is_as_old_as_its_last_busy_time(tmp_path: Path):
    for name, gres, busy in (("b.txt", WHOLE, "2026-02-03T10:00:00"), ("a.txt", CUT, "2026-02-05T10:00:00")):
        (tmp_path / name).write_text(scontrol(gres, busy=busy))
    dataset = read("auto", sorted(tmp_path.iterdir()), tz="Europe/Oslo")
    assert dataset.inventory is not None
    assert dataset.inventory["layouts"].to_list() == ["1g.5gb:7", None]
    assert [time.hour for time in dataset.tables["node_dumps"]["time"]] == [9] * 4
    with pytest.raises(TraceFormatError, match="need the date in the file name"):
        read("auto", sorted(tmp_path.iterdir()))


def kubernetes_node(instances: dict[str, str], at: str, **spec: Any) -> dict[str, Any]:
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.count": "1",
        "nvidia.com/mig.config": "own",
        "nvidia.com/mig.config.state": "success",
        "nvidia.com/mig.strategy": "mixed",
    }
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": at}
    about = {"name": "n1", "labels": labels, "creationTimestamp": "2025-01-01T00:00:00Z"}
    status = {"capacity": instances, "allocatable": instances, "conditions": [ready]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": about, "spec": spec, "status": status}


def kubernetes_pod(name: str, day: int, resource: str) -> dict[str, Any]:
    start, end = f"2026-02-0{day}T00:00:00Z", f"2026-02-0{day + 1}T00:00:00Z"
    terminated = {"state": {"terminated": {"finishedAt": end}}}
    about = {"name": name, "uid": name, "namespace": "ads", "creationTimestamp": start}
    spec = {"nodeName": "n1", "containers": [{"resources": {"limits": {resource: "1"}}}]}
    status = {"phase": "Succeeded", "startTime": start, "containerStatuses": [terminated]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec, "status": status}


@pytest.mark.parametrize("at_once", [True, False])
def test_kubernetes_dumps_of_two_dates_keep_both_layouts(tmp_path: Path, *, at_once: bool):
    whole = kubernetes_node({"nvidia.com/gpu": "1"}, "2026-02-03T00:00:00Z", unschedulable=True)
    cut = kubernetes_node({"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "7"}, "2026-02-08T00:00:00Z")
    first = [kubernetes_pod("whole", 1, "nvidia.com/gpu"), whole]
    last = [kubernetes_pod("slice", 6, "nvidia.com/mig-1g.10gb"), cut]
    paths = [tmp_path / "z-first.json", tmp_path / "a-last.json"]
    for path, items in zip(paths, (first, last), strict=True):
        path.write_text(json.dumps({"kind": "List", "items": items}))
    for group in [list(reversed(paths))] if at_once else [[path] for path in paths]:
        add_files("auto", group, tmp_path / "out")
    dataset = open_dataset(tmp_path / "out")
    assert dataset.inventory is not None
    assert dataset.inventory["layouts"].to_list() == ["1g.10gb:7"]
    dumps = dataset.tables["node_dumps"]
    assert [(time.day, bool(mig)) for time, mig in dumps.select("time", "mig_enabled").iter_rows()] == [
        (3, False),
        (8, True),
    ]
    [(start, end)] = dataset.tables["out_of_service"].select("start_time", "end_time").rows()
    assert (start.day, end.day) == (3, 8)
    assert len(remarks(dataset)) == 1
