"""Nodes of Slurm as the inventory: scontrol show node and sinfo."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest.slurm.node_records import read_inventory
from gpuplanner.ingest.source_registry import read

File = Callable[..., Path]

SCONTROL = """\
NodeName=gpu-1 Arch=x86_64 CoresPerSocket=24
   CPUAlloc=32 CPUEfctv=96 CPUTot=96 CPULoad=18.41
   ActiveFeatures=rack_f1,gpua100
   Gres=gpu:a100:4(S:0-1)
   NodeAddr=gpu-1 NodeHostName=gpu-1 Version=23.11.3
   State=MIXED ThreadsPerCore=1 TmpDisk=0 Weight=10 Owner=N/A MCS_label=N/A
   CfgTRES=cpu=96,mem=500G,billing=96,gres/gpu=4,gres/gpu:a100=4
   AllocTRES=cpu=32,mem=128G,gres/gpu=1,gres/gpu:a100=1

NodeName=gpu-2 Arch=x86_64 CoresPerSocket=24
   Gres=gpu:rtx30:6,gpu:v100:2,mps:400
   State=DOWN+DRAIN ThreadsPerCore=1
   Reason=Gres= NodeName=gpu-9 [root@2026-03-11T11:05:51]

NodeName=c-1 Arch=x86_64 CoresPerSocket=24
   Gres=(null)
   State=IDLE
"""


def nodes(path: Path) -> list[tuple[str, int, str | None]]:
    return read_inventory(path)[0].select("node", "gpus", "gpu_model").rows()


def test_each_node_counts_its_gres(file: File):
    assert nodes(file(SCONTROL, "nodes.txt")) == [("c-1", 0, None), ("gpu-1", 4, "a100"), ("gpu-2", 8, "rtx30|v100")]


def test_one_line_per_node_is_the_same(file: File):
    records = [" ".join(part.split()) for part in SCONTROL.split("\n\n")]
    assert nodes(file("\n".join(records) + "\n", "a")) == nodes(file(SCONTROL, "b"))


def test_sinfo_lists_a_node_once_per_partition(file: File):
    text = "NODELIST GRES\ngpu-1 gpu:a100:4(S:0-1)\ngpu-1 gpu:a100:4(S:0-1)\nc-1 (null)\n"
    assert nodes(file(text)) == [("c-1", 0, None), ("gpu-1", 4, "a100")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("NODELIST GRES\ngpu-1 gpu:a100:4\ngpu-1 gpu:a100:2\n", "the same node again"),
        ("NODELIST GRES\ngpu-1\n", "not a name and a Gres"),
        (
            "NodeName=n1\n   Gres=gpu:a100_1g.10gb:14\n",
            "MIG instances on an unknown number of GPUs: give --map-gpu a100=MODEL",
        ),
        ("NodeName=n1\n   Gres=gpu:a100:many\n", "'gpu:a100:many' is no number of GPUs"),
        ("NodeName= Arch=x86_64\n", "not a name and a Gres"),
    ],
)
def test_a_node_whose_gpus_do_not_follow_is_an_error(file: File, text: str, reason: str):
    with pytest.raises(TraceFormatError, match="expected one whole row per node") as error:
        read_inventory(file(text))
    assert reason in str(error.value)


def test_nodes_go_with_the_jobs(file: File):
    jobs = file(
        "JobID|State|Submit|Start|End|AllocTRES\n1|COMPLETED|1756706400|1756710000|1756717200|gres/gpu=1\n", "j"
    )
    trace = read("slurm", jobs, nodes=file(SCONTROL, "nodes.txt"))
    assert trace.inventory is not None
    assert trace.inventory["gpus"].sum() == 12
    assert [each["name"] for each in trace.provenance["files"]] == ["j", "nodes.txt"]


CSV = "node,gpus,gpu_model,rack,installed,retired,mig_enabled,layouts\n"


def test_a_node_list_keeps_mig_mode_layouts_and_times(file: File):
    text = (
        CSV
        + 'n1,2,a100,r1,2026-01-15,,TRUE,"3g.20gb:2;4g.20gb:1,1g.5gb:3"\n'
        + "n2,2,a100,r1,2026-01-15T06:30:00+02:00,2026-03-01 00:00:00 UTC,no,\n"
        + "n3,1,a100,,,2026-03-01T12:00:00.5Z,,1g.5gb:7\n"
        + "n4,1,a100,,,,on,\n"
        + "n5,1,a100,,,,,off\n"
    )
    table = read_inventory(file(text))[0]
    assert table["mig_enabled"].to_list() == [True, False, True, True, None]
    assert table["layouts"].to_list() == ["3g.20gb:2;4g.20gb:1,1g.5gb:3", None, "1g.5gb:7", None, "off"]
    at = [datetime(2026, 1, 15, tzinfo=UTC), datetime(2026, 1, 15, 4, 30, tzinfo=UTC), None, None, None]
    assert table["installed"].to_list() == at
    assert table["retired"].to_list()[1:3] == [
        datetime(2026, 3, 1, tzinfo=UTC),
        datetime(2026, 3, 1, 12, 0, 0, 500_000, tzinfo=UTC),
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("n1,2,a100,,,,maybe,", "mig_enabled: neither true nor false"),
        ("n1,2,a100,,,,,gpu;gpu;gpu", "layouts: of more GPUs than the node has"),
        ("n1,2,a100,,,,false,1g.5gb:7", "layouts: of MIG instances, and mig_enabled is false"),
        ("n1,2,a100,,2026-01-15T06:30:00,,,", "installed: neither a date nor a time with its offset"),
    ],
)
def test_a_value_that_cannot_be_right_names_its_line_and_column(file: File, row: str, reason: str):
    with pytest.raises(TraceFormatError, match="expected one whole row per node") as error:
        read_inventory(file(f"{CSV}n0,1,a100,,,,,\n{row}\n"))
    assert f"line 3: {reason}" in str(error.value)


@pytest.mark.parametrize(
    ("gres", "boards", "gpus", "layouts"),
    [
        ("gpu:a100_1g.5gb:8", None, 2, "1g.5gb:7;1g.5gb:1"),
        ("gpu:a100:4(S:0),gpu:a100_1g.5gb:28(S:1)", None, 8, ";".join(["gpu"] * 4 + ["1g.5gb:7"] * 4)),
        ("gpu:a30_2g.12gb:2,gpu:a100_1g.5gb:1", None, 2, "2g.12gb:2;1g.5gb:1"),
        ("gpu:1g.10gb:7", {"gpu": "H100-80GB-SXM5"}, 1, "1g.10gb:7"),
        ("gpu:a100_1g.10gb:4", {"a100": "A100-80GB"}, 1, "1g.10gb:4"),
        ("gpu:h100_1g.10gb:0,gpu:h100:1", None, 1, None),
    ],
)
def test_instances_are_on_the_fewest_boards_that_hold_them(file: File, gres, boards, gpus, layouts):
    table = read_inventory(file(f"NodeName=n1 Arch=x86_64\n   Gres={gres}\n"), boards)[0]
    assert table.select("gpus", "layouts").row(0) == (gpus, layouts)
    assert table["mig_enabled"].to_list() == [True if layouts else None]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (SCONTROL, 1),  # gpu-2 is DOWN+DRAIN; c-1 has no GPUs
        ("NodeName=n1 Arch=x86_64 Gres=gpu:a100:4 State=IDLE+POWERED_DOWN Reason=x\n", 0),
        ("NODELIST GRES STATE\nn1 gpu:a100:4 drng\nn2 gpu:a100:4 down*\nn3 gpu:a100:4 mix\n", 2),
    ],
)
def test_nodes_that_take_no_new_jobs_are_named_and_count(file: File, text: str, rows: int):
    found = read("nodes", file(text))
    told = dict(found.quality.select("check", "rows").iter_rows())
    assert told.get("node that takes no new jobs", 0) == rows


@pytest.mark.parametrize(
    ("text", "powered_up", "off"),
    [
        # Slurm 23 in text and JSON, and Slurm 20, which prints POWER: cloud nodes. Owned ones stay, off or not.
        ("NodeName=n1 Gres=gpu:4 State=IDLE+CLOUD\nNodeName=n2 Gres=gpu:4 State=IDLE+CLOUD+POWERED_DOWN\n", ["n1"], 1),
        ("NodeName=n1 Gres=gpu:4 State=MIXED+CLOUD\nNodeName=n[2-3] Gres=gpu:4 State=IDLE+CLOUD+POWER\n", ["n1"], 2),
        ("NodeName=n1 Gres=gpu:4 State=IDLE+POWERED_DOWN\nNodeName=n2 Gres=gpu:4 State=ALLOCATED\n", ["n1", "n2"], 0),
        ("NodeName=n1 Gres=gpu:4 State=MIXED+CLOUD+POWER_DOWN\nNodeName=n2 State=IDLE+CLOUD+POWERED_DOWN\n", ["n1"], 0),
        (
            '{"nodes": [{"name": "n1", "gres": "gpu:4", "state": ["POWERING_UP", "CLOUD", "ALLOCATED"]},'
            ' {"name": "n2", "gres": "gpu:4", "state": ["IDLE", "CLOUD"]}]}', ["n2"], 1,
        ),
        ("NODELIST GRES STATE\nn1 gpu:4 idle~\nn2 gpu:4 mix-\nn3 gpu:4 alloc#\nn4 gpu:4 down*%\n", ["n2"], 3),
    ],
)  # fmt: skip
def test_cloud_nodes_that_do_not_run_are_no_capacity(file: File, text: str, powered_up: list[str], off: int):
    found = read("nodes", file(text, "nodes"))
    assert found.inventory is not None
    assert found.inventory.filter(pl.col("gpus") > 0)["node"].to_list() == powered_up
    told = dict(found.quality.select("check", "rows").iter_rows())
    assert told.get("cloud nodes of Slurm that are not running", 0) == off


def test_a_list_of_cloud_nodes_of_which_none_runs_is_refused(file: File):
    path = file("NodeName=n[1-2] Gres=gpu:4 State=IDLE+CLOUD+POWERED_DOWN\n")
    with pytest.raises(TraceFormatError, match=r"got 2 cloud nodes powered down .'n1', 'n2'.*Leave the list out"):
        read("nodes", path)


def test_jobs_of_the_past_count_on_cloud_nodes_that_do_not_run_today():
    case = Path(__file__).parent.parent / "cluster_dumps" / "slurm" / "53-powered-down"
    found = read("slurm", case / "sacct.txt", tz="UTC", nodes=case / "nodes.txt")
    assert found.inventory is not None
    today = found.inventory.filter(pl.col("retired").is_null())
    assert (today["gpus"].sum(), found.provenance["gpu_hours"]) == (16, 60.0)
    check = found.quality.filter(check="cloud nodes of Slurm that are not running")
    assert "they have 16 GPUs" in check["effect"].item()
