"""Nodes as dumps of several dates show them: layouts and outages hold from their dump on."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.dataset_import import add_files, add_sources, group_files_by_source
from gpuplanner.ingest.node_dump_history import describe_layout_changes, split_nodes_by_layout
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
    over_time, full = tables["MIG layouts of nodes over time"], "full GPUs"
    over_time = over_time.select("node", "layouts", "since")
    assert [(node, layout, since.day) for node, layout, since in over_time.iter_rows()] == [
        ("n1", full, 3), ("n1", "1g.5gb:7", 5), ("n2", full, 3),
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


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "DOWN*", "IDLE+DRAIN\n   Reason=fan"])
def test_a_node_drained_without_a_dated_reason_is_out_of_service_from_its_dump_on(state: str, tmp_path: Path):
    for day, shown in ((3, "IDLE"), (4, state), (5, state), (7, "MIXED")):
        (tmp_path / f"nodes-2026-02-0{day}.txt").write_text(scontrol(WHOLE, shown))
    outages = read("auto", sorted(tmp_path.iterdir()), tz="UTC").tables["out_of_service"]
    days = outages.select("node", pl.col("start_time", "end_time").dt.day()).rows()
    assert days == [("n1", 4, 5), ("n1", 5, 7)]


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


UNTYPED = SACCT.replace("gres/gpu:a100=1,", "").replace("gres/gpu:a100_1g.5gb=1,", "")


def dataset_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("order", list(permutations(["sacct.txt", "nodes-2026-02-03.txt", "nodes-20260205T0000Z.txt"])))
def test_the_order_of_imports_changes_no_byte_where_layouts_decide_what_a_gpu_is(
    order: tuple[str, ...], tmp_path: Path
):
    # The second list undoes the first one's layout: what the first made of untyped GPUs must not stay.
    folder = slurm_folder(tmp_path / "in")
    (folder / "sacct.txt").write_text(UNTYPED)
    (folder / "nodes-2026-02-03.txt").write_text(scontrol(CUT))
    (folder / "nodes-20260205T0000Z.txt").write_text(scontrol(WHOLE))
    for out, names in ((tmp_path / "a", order), (tmp_path / "b", sorted(order))):
        for name in names:
            add_files("auto", [folder / name], out, tz="UTC")
    assert dataset_bytes(tmp_path / "a") == dataset_bytes(tmp_path / "b")
    dataset = open_dataset(tmp_path / "a")
    assert dataset.jobs["gpus"].to_list() == [1, 1, 1]
    assert dataset.quality["check"].str.contains("MIG instances counted").sum() == 0


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0)])
def test_a_dump_of_nodes_alone_adds_the_layout_of_its_date(order: tuple[int, ...], tmp_path: Path):
    whole = kubernetes_node({"nvidia.com/gpu": "1"}, "2026-02-03T00:00:00Z")
    cut = [
        kubernetes_node({"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": str(7)}, f"2026-02-0{day}T00:00:00Z")
        for day in (5, 8)
    ]
    items = [[kubernetes_pod("whole", 1, "nvidia.com/gpu"), whole], [cut[0]], [cut[1]]]
    for number in order:
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps({"kind": "List", "items": items[number]}))
        add_files("auto", [path], tmp_path / "out")
    dataset = open_dataset(tmp_path / "out")
    assert dataset.inventory is not None
    assert dataset.inventory.select("layouts", "gpu_model").row(0) == ("1g.10gb:7", "H100-80GB-SXM5")
    assert [time.day for time in dataset.tables["node_dumps"]["time"]] == [3, 5, 8]
    assert [fact["source"] for fact in dataset.other_sources] == ["nodes"]
    [sentence] = remarks(dataset)
    assert "layouts known since 2026-02-03" in sentence


def test_a_second_list_of_nodes_without_a_date_is_refused_with_the_way_to_date_it(tmp_path: Path):
    node = kubernetes_node({"nvidia.com/gpu": "1"}, "2026-02-03T00:00:00Z")
    path, undated = tmp_path / "dump.json", tmp_path / "nodes.txt"
    path.write_text(json.dumps({"kind": "List", "items": [kubernetes_pod("p", 1, "nvidia.com/gpu"), node]}))
    undated.write_text(scontrol(WHOLE))
    add_files("auto", [path], tmp_path / "out")
    with pytest.raises(TraceFormatError, match=r"node lists with a date.*'kubernetes' is there.*nodes-2026-11-02\.txt"):
        add_files("auto", [undated], tmp_path / "out")


def test_renamed_and_vanished_nodes_count_until_the_last_dump_that_lists_them(tmp_path: Path):
    folder = slurm_folder(tmp_path / "in")
    # n2 is renamed to m2 between both dumps: two GPUs at all times.
    (folder / "nodes-2026-02-03.txt").write_text(scontrol(WHOLE).replace("a100", "a100-40gb"))
    renamed = scontrol(WHOLE).replace("a100", "a100-40gb").replace("NodeName=n2", "NodeName=m2")
    (folder / "nodes-20260205T0000Z.txt").write_text(renamed)
    (folder / "sacct.txt").write_text(SACCT.replace("|n2|", "|m2|"))
    for path in sorted(folder.iterdir(), reverse=True):
        add_files("auto", [path], tmp_path / "out", tz="UTC")
    dataset = open_dataset(tmp_path / "out")
    assert dataset.inventory is not None
    spans = dataset.inventory.select("node", "installed", "retired").rows()
    assert [(node, came and came.day, went and went.day) for node, came, went in spans] == [
        ("m2", 3, None), ("n1", None, None), ("n2", None, 3),
    ]  # fmt: skip
    begin, end = observation_begins_at(dataset), observation_ends_at(dataset)
    assert installed_gpu_hours(dataset.inventory, begin, end) == 2 * 7 * 24
    assert [sentence.split(" (")[0] for sentence in remarks(dataset)[:2]] == [
        "Listed since a later dump: 1 node", "Not listed any more: 1 node",
    ]  # fmt: skip


def test_a_changed_number_of_gpus_and_dumps_of_another_cluster_are_reported(tmp_path: Path):
    (tmp_path / "nodes-2026-02-03.txt").write_text(scontrol("gpu:a100:4"))
    (tmp_path / "nodes-2026-02-05.txt").write_text(scontrol("gpu:a100:3"))
    (tmp_path / "other-2026-02-06.txt").write_text("NodeName=x1 Gres=gpu:a100:8 State=IDLE\n")
    for path in sorted(tmp_path.glob("*.txt")):
        add_files("auto", [path], tmp_path / "out")
    dataset = open_dataset(tmp_path / "out")
    assert dataset.inventory is not None
    assert dict(dataset.inventory.select("node", "gpus").iter_rows()) == {"n1": 3, "n2": 1, "x1": 8}
    assert dataset.inventory["retired"].null_count() == 3
    size, clusters = describe_layout_changes(dataset.tables["node_dumps"])
    assert "n1: 4, then 3" in size
    assert "'n1', 'x1' have none in common" in clusters


def test_a_node_that_comes_back_unchanged_is_not_retired(tmp_path: Path):
    # The last list has the same bytes as the first: it is a dump of its own date.
    for day in (3, 4, 5):
        text = scontrol(WHOLE) if day != 4 else scontrol(WHOLE).partition("\nNodeName=n2")[0] + "\n"
        (tmp_path / f"nodes-2026-02-0{day}.txt").write_text(text)
        add_files("auto", [tmp_path / f"nodes-2026-02-0{day}.txt"], tmp_path / "out")
    dataset = open_dataset(tmp_path / "out")
    assert dataset.inventory is not None
    assert dataset.inventory["retired"].null_count() == 2
    assert dataset.tables["node_dumps"].height == 5
    assert add_files("auto", [tmp_path / "nodes-2026-02-05.txt"], tmp_path / "out").unchanged
    (tmp_path / "nodes-2026-13-05.txt").write_text(scontrol(CUT))
    with pytest.raises(TraceFormatError, match=r"a date in the name of the file.*2026-13-05.*nodes-2026-11-02\.txt"):
        add_files("auto", [tmp_path / "nodes-2026-13-05.txt"], tmp_path / "out")


@pytest.mark.parametrize("at_once", [True, False])
def test_a_kubernetes_node_that_was_created_again_was_there_before(tmp_path: Path, *, at_once: bool):
    first, again = (kubernetes_node({"nvidia.com/gpu": "1"}, f"2026-02-0{day}T00:00:00Z") for day in (3, 6))
    again["metadata"]["creationTimestamp"] = "2026-02-05T00:00:00Z"
    del again["status"]["conditions"]  # no heartbeat: the name of the file has the date
    paths = [tmp_path / "pods.json", tmp_path / "nodes-2026-02-06.json"]
    for path, items in zip(paths, ([kubernetes_pod("p", 3, "nvidia.com/gpu"), first], [again]), strict=True):
        path.write_text(json.dumps({"kind": "List", "items": items}))
    for group in [paths] if at_once else [[path] for path in paths]:
        add_files("auto", group, tmp_path / "out")
    dataset = open_dataset(tmp_path / "out")
    assert dataset.inventory is not None
    assert dataset.inventory["installed"].item().year == 2025
    assert [time.day for time in dataset.tables["node_dumps"]["time"]] == [3, 6]


def test_two_states_of_a_node_at_one_time_are_refused(tmp_path: Path):
    for name, gres in (("a-2026-02-03.txt", WHOLE), ("b-2026-02-03.txt", CUT)):
        (tmp_path / name).write_text(scontrol(gres))
    add_files("auto", [tmp_path / "a-2026-02-03.txt"], tmp_path / "out")
    with pytest.raises(TraceFormatError, match=r"one state of node n1 at 2026-02-03.*in b-2026-02-03\.txt.*0630Z"):
        add_files("auto", [tmp_path / "b-2026-02-03.txt"], tmp_path / "out")


DEVICE_LIST = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)\n"
EXPORTED = "version: v1\nmig-configs:\n  current:\n  - devices: all\n    mig-enabled: true\n    mig-devices:\n      "


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 2, 0, 3, 1), (3, 4, 1, 2, 0)])
def test_lists_of_nvidia_smi_and_mig_parted_add_layouts_of_their_dates(order: tuple[int, ...], tmp_path: Path):
    files = {
        "sacct.txt": SACCT,
        "nodes-2026-02-02.txt": scontrol(WHOLE).replace("a100", "a100-40gb"),
        "n1-2026-02-04.txt": DEVICE_LIST + "  MIG 1g.5gb      Device  0: (UUID: MIG-1)\n" * 7,
        "n1-20260205T1200Z.txt": DEVICE_LIST + "  MIG 3g.20gb     Device  0: (UUID: MIG-1)\n" * 2,
        "n1-2026-02-06.yaml": EXPORTED + "7g.40gb: 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    names = list(files)
    for name in (names[number] for number in order):
        nodes = {"nodes": tmp_path / "nodes-2026-02-02.txt"} if name.startswith("n1") else {}
        add_files("auto", [tmp_path / name], tmp_path / "out", **({"tz": "UTC"} if not nodes else {}), **nodes)
    dataset = open_dataset(tmp_path / "out")
    assert dataset.inventory is not None
    assert dataset.inventory.select("node", "gpus", "gpu_model", "layouts", "retired").rows() == [
        ("n1", 1, "A100-40GB", "7g.40gb:1", None), ("n2", 1, "A100-40GB", None, None),
    ]  # fmt: skip
    of_n1 = dataset.tables["node_dumps"].filter(node="n1")
    assert [(time.day, layouts) for time, layouts in of_n1.select("time", "layouts").iter_rows()] == [
        (2, None), (4, "1g.5gb:7"), (5, "3g.20gb:2"), (6, "7g.40gb:1"),
    ]  # fmt: skip
    slices = describe(str(tmp_path / "out")).tables[SLICES_TITLE]["compute_slice_hours"]
    assert slices.sum() == 2 * 7 * 7 * 24


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("n1.txt", DEVICE_LIST, r"node and the date \(UTC\) in the name.*got 'n1\.txt'.*gn01-2026-11-02\.txt"),
        ("2026-02-03.txt", DEVICE_LIST, "node and the date"),
        ("n1-2026-02-03.yaml", EXPORTED + "1g.5gb: 7\n", "'devices: all'.*--nodes"),
        (
            "n1-2026-02-03.txt",
            DEVICE_LIST + "  MIG 1c.3g.20gb Device 0: (UUID: MIG-1)\n",
            "compute instance 1c.3g.20gb",
        ),
        ("n1-2026-02-03.xml", '<?xml version="1.0" ?>\n<nvidia_smi_log>\n', "nvidia-smi -q -x.*nvidia-smi -L > "),
        ("n1-2026-02-03.yaml", "version: v1\nmig-configs:\n  a: []\n  b: []\n", "expected GPUs of one node"),
        ("lgi.txt", "+---+\n| GPU instances:            |\n", "nvidia-smi mig -lgi.*nvidia-smi -L > "),
    ],
)
def test_a_list_of_a_node_that_leaves_a_doubt_is_refused(name: str, text: str, message: str, tmp_path: Path):
    (tmp_path / name).write_text(text)
    with pytest.raises(TraceFormatError, match=message):
        add_files("auto", [tmp_path / name], tmp_path / "out")
