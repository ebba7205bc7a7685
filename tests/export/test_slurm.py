"""Layout plans as Slurm lines."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import polars as pl
import pytest

from gpuplanner.errors import GeometryError, SchemaError
from gpuplanner.export import to_slurm, to_slurm_files

BOARD = "H100-80GB-SXM5"
NIGHT, DAY = datetime(2026, 11, 2, tzinfo=UTC), datetime(2026, 11, 2, 8, tzinfo=UTC)

BY_DAY = """\
# slurm.conf from 2026-11-02T08:00:00Z, board H100-80GB-SXM5.
# Cut the GPUs first, then merge these lines into yours; restart slurmctld and the changed slurmd.
# A type must be part of the 'MIG Profile' that slurmd prints at debug2; else it drains.
# gres.conf: AutoDetect=nvml
GresTypes=gpu
AccountingStorageTRES=gres/gpu,gres/gpu:h100,gres/gpu:h100_3g.40gb,gres/gpu:h100_2g.20gb,gres/gpu:h100_1g.10gb
# n1 gpu 0: gpu
# n1 gpu 1: 3g.40gb:1,2g.20gb:1,1g.10gb:2
NodeName=n1 Gres=gpu:h100:1,gpu:h100_3g.40gb:1,gpu:h100_2g.20gb:1,gpu:h100_1g.10gb:2
# n2 gpu 0: 1g.10gb:7
# n2 gpu 1: off
NodeName=n2 Gres=gpu:h100_1g.10gb:7
"""


def test_lines_of_one_time(plan: pl.DataFrame) -> None:
    assert to_slurm(plan, BOARD, DAY) == BY_DAY


def test_files_of_the_whole_calendar(plan: pl.DataFrame) -> None:
    files = to_slurm_files(plan, BOARD)
    assert list(files) == ["gres.conf", "slurm-20261102T000000Z.conf", "slurm-20261102T080000Z.conf"]
    assert files["gres.conf"] == "AutoDetect=nvml\n"
    assert files["slurm-20261102T080000Z.conf"] == BY_DAY
    assert "NodeName=n2 Gres=gpu:h100:2\n" in files["slurm-20261102T000000Z.conf"]


def test_type_as_slurmd_detects_it(plan: pl.DataFrame) -> None:
    text = to_slurm(plan, BOARD, DAY, gres_type="nvidia_h100_80gb_hbm3")
    assert "gpu:nvidia_h100_80gb_hbm3_1g.10gb:7" in text


@pytest.mark.parametrize("gres_type", ["", "H100", "h100:2", "h100 State=DOWN", "h100\n"])
def test_types_that_slurm_could_mistake(plan: pl.DataFrame, gres_type: str) -> None:
    with pytest.raises(GeometryError, match="Slurm GRES type"):
        to_slurm(plan, BOARD, DAY, gres_type=gres_type)


def test_node_without_any_gpu_needed(make_plan: Callable[..., pl.DataFrame]) -> None:
    plan = make_plan([("n1", 0, 0, 1, "off", False)])
    assert to_slurm(plan, BOARD, NIGHT).endswith(
        "AccountingStorageTRES=gres/gpu\n# n1 gpu 0: off\nNodeName=n1\n"
    )


def test_time_outside_the_plan(plan: pl.DataFrame) -> None:
    with pytest.raises(SchemaError, match="a time within"):
        to_slurm(plan, BOARD, datetime(2027, 1, 1, tzinfo=UTC))
