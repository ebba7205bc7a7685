"""Nodes that list each partition of a GPU as a GPU: GPU-hours counted by hand."""

from __future__ import annotations

import polars as pl
import pytest

from gpuplanner.ingest.slurm.accounting import read_slurm

HEAD = "JobID|State|Submit|Start|End|NodeList|AllocTRES"


@pytest.mark.parametrize(
    ("gres", "tres", "gpus", "installed", "warning"),
    [
        ("gpu:mi300x:64", "gres/gpu:mi300x=3,gres/gpu=3", 3 / 8, 8, "GPUs of nodes that are partitions of a GPU"),
        ("gpu:mi300x:64", "gres/gpu=64", 8, 8, "GPUs of nodes that are partitions of a GPU"),
        ("gpu:mi300x:32", "gres/gpu:mi300x=3,gres/gpu=3", 3 / 4, 8, "GPUs of nodes that are partitions of a GPU"),
        ("gpu:mi300x:60", "gres/gpu:mi300x=3,gres/gpu=3", 3, 60, "nodes that list more than 16 GPUs"),
        ("gpu:h100:64", "gres/gpu:h100=3,gres/gpu=3", 3, 64, "nodes that list more than 16 GPUs"),
        ("gpu:mi300x:8", "gres/gpu:mi300x=3,gres/gpu=3", 3, 8, None),
    ],
)
def test_units_that_no_server_has_are_partitions(gres, tres, gpus, installed, warning, tmp_path):
    (tmp_path / "nodes.txt").write_text(f"NodeName=n1 Arch=x86_64\n   Gres={gres}\n")
    rows = [HEAD, f"1|COMPLETED|1772410000|1772410000|1772413600|n1|cpu=1,{tres},node=1"]
    (tmp_path / "sacct.txt").write_text("\n".join(rows) + "\n")
    trace = read_slurm([tmp_path / "sacct.txt"], tz="UTC", nodes=tmp_path / "nodes.txt")
    assert trace.inventory is not None
    assert trace.jobs["gpus"].to_list() == pytest.approx([gpus], rel=1e-12)
    assert trace.inventory["gpus"].to_list() == [installed]
    found = trace.quality.filter(pl.col("check").str.contains("16 GPUs|partitions"))["check"].to_list()
    assert found == ([warning] if warning else []), trace.quality
