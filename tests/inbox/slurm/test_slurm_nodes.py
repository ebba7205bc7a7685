"""Nodes of Slurm as the inventory: scontrol show node and sinfo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuplanner.errors import TraceFormatError
from gpuplanner.inbox import read_inventory, read_slurm

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
    assert nodes(file(SCONTROL, "nodes.txt")) == [
        ("c-1", 0, None),
        ("gpu-1", 4, "a100"),
        ("gpu-2", 8, "rtx30|v100"),
    ]


def test_one_line_per_node_is_the_same(file: File):
    records = [" ".join(part.split()) for part in SCONTROL.split("\n\n")]
    assert nodes(file("\n".join(records) + "\n", "a")) == nodes(file(SCONTROL, "b"))


def test_sinfo_lists_a_node_once_per_partition(file: File):
    text = "NODELIST GRES\ngpu-1 gpu:a100:4(S:0-1)\ngpu-1 gpu:a100:4(S:0-1)\nc-1 (null)\n"
    assert nodes(file(text)) == [("c-1", 0, None), ("gpu-1", 4, "a100")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("NODELIST GRES\ngpu-[1-4] gpu:a100:4\n", "several nodes on one line: use sinfo -N"),
        ("NODELIST GRES\ngpu-1 gpu:a100:4\ngpu-1 gpu:a100:2\n", "the same node again"),
        ("NODELIST GRES\ngpu-1\n", "not a name and a Gres"),
        (
            "NodeName=n1\n   Gres=gpu:a100_1g.10gb:14\n",
            "MIG instances on a number of GPUs that does not follow: name the board, --board a100=BOARD",
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
        "JobID|State|Submit|Start|End|AllocTRES\n1|COMPLETED|1756706400|1756710000|1756717200|gres/gpu=1\n",
        "j",
    )
    trace = read_slurm([jobs], nodes=file(SCONTROL, "nodes.txt"))
    assert trace.inventory is not None
    assert trace.inventory["gpus"].sum() == 12
    assert [each["name"] for each in trace.provenance["files"]] == ["j", "nodes.txt"]
