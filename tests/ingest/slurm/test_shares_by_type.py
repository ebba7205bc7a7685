"""Shares of GPUs by type, and as many of them as do not divide evenly: GPU-hours counted by hand."""

from __future__ import annotations

import pytest

from gpuplanner.ingest.slurm.accounting import read_slurm

HEAD = "JobID|State|Submit|Start|End|NodeList|AllocTRES"


@pytest.mark.parametrize(
    ("gres", "tres", "gpus", "model"),
    [
        ("gpu:a100:2,gpu:h100:1,shard:a100:8,shard:h100:8", "gres/shard:a100=4,gres/shard=4", 1.0, "a100"),
        ("gpu:a100:2,gpu:h100:1,shard:a100:8,shard:h100:8", "gres/shard:h100=4", 0.5, "h100"),
        ("gpu:a100:2,gpu:h100:1,shard:a100:8,shard:h100:8", "gres/shard=4", None, None),
        ("gpu:a100:2,gpu:h100:1,shard:a100:8", "gres/shard=4", 1.0, None),
        ("gpu:a100:3,shard:16", "gres/shard=5", 15 / 16, "a100"),
        ("gpu:a100:3,shard:a100:16", "gres/shard:a100=5,gres/shard=5", 15 / 16, "a100"),
        ("gpu:a100:3,shard:16", "gres/shard:a100=5", 15 / 16, "a100"),
        ("gpu:a100:3,gpu:h100:1,mps:a100:300,mps:h100:50", "gres/mps:h100=25", 0.5, "h100"),
    ],
)
def test_shares_are_parts_of_the_gpus_of_their_type(gres, tres, gpus, model, tmp_path):
    (tmp_path / "nodes.txt").write_text(f"NodeName=n1 Arch=x86_64\n   Gres={gres}\n")
    rows = [HEAD, f"1|COMPLETED|1772410000|1772410000|1772413600|n1|cpu=1,{tres},node=1"]
    (tmp_path / "sacct.txt").write_text("\n".join(rows) + "\n")
    trace = read_slurm([tmp_path / "sacct.txt"], tz="UTC", nodes=tmp_path / "nodes.txt")
    (held,) = trace.jobs["gpus"].to_list()
    assert held == (None if gpus is None else pytest.approx(gpus, rel=1e-12))
    if gpus is None:
        assert "shares of GPUs on nodes that are not known" in trace.quality["check"].to_list()
    else:
        assert trace.jobs["gpu_model"].to_list() == [model]
