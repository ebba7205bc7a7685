"""Layout plans as Slurm lines."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from gpuplanner.core.errors import GeometryError
from gpuplanner.report.slurm_files import to_slurm, to_slurm_files

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")

BOARD = "H100-80GB-SXM5"
NIGHT, DAY = datetime(2026, 11, 2, tzinfo=UTC), datetime(2026, 11, 2, 8, tzinfo=UTC)

BY_DAY = """\
# Lines of slurm.conf from 2026-11-02T08:00:00Z, GPU model H100-80GB-SXM5.
# Order: drain the changed nodes, wait until they are empty, repartition their GPUs, copy the Gres of these
# lines into yours ('bash install-gres.sh --dry-run FILE' shows it; a second line for a node is fatal),
# 'scontrol reconfigure' (before Slurm 23.11: restart slurmctld, then slurmd of the nodes), resume.
# change-20261102T080000Z.sh does this for repartitioned nodes. Slurm drains nodes with too few devices.
# Types as slurmd detects them on NVIDIA H100 80GB HBM3.
# Other variants of this GPU model need --gres-type: NVIDIA H800: nvidia_h800.
# gres.conf: AutoDetect=nvml; if Slurm has no NVML plugin, the output of static-gres.sh on the node.
GresTypes=gpu
# Only with slurmdbd; without it, slurmctld does not start with this line:
# AccountingStorageTRES=gres/gpu,gres/gpu:TYPE,gres/gpu:TYPE_3g.40gb,gres/gpu:TYPE_2g.20gb,gres/gpu:TYPE_1g.10gb
# n1 gpu 0: gpu
# n1 gpu 1: 3g.40gb:1,2g.20gb:1,1g.10gb:2
NodeName=n1 Gres=gpu:TYPE:1,gpu:TYPE_3g.40gb:1,gpu:TYPE_2g.20gb:1,gpu:TYPE_1g.10gb:2
# n2 gpu 0: 1g.10gb:7
# n2 gpu 1: gpu
NodeName=n2 Gres=gpu:TYPE:1,gpu:TYPE_1g.10gb:7
""".replace("TYPE", "nvidia_h100_80gb_hbm3")


def test_lines_of_one_time(plan: pl.DataFrame) -> None:
    assert to_slurm(plan, BOARD, DAY) == BY_DAY


def test_files_of_the_whole_calendar(plan: pl.DataFrame) -> None:
    files = to_slurm_files(plan, BOARD)
    assert list(files) == [
        "gres.conf",
        "static-gres.sh",
        "install-gres.sh",
        "slurm-20261102T000000Z.conf",
        "slurm-20261102T080000Z.conf",
        "change-20261102T000000Z.sh",
        "change-20261102T080000Z.sh",
    ]
    assert files["gres.conf"].splitlines()[-1] == "AutoDetect=nvml"
    assert files["slurm-20261102T080000Z.conf"] == BY_DAY
    assert "NodeName=n2 Gres=gpu:nvidia_h100_80gb_hbm3:2\n" in files["slurm-20261102T000000Z.conf"]


def found_by_slurmd(product: str, profile: str) -> str:
    """What slurmd 22.05 and later log as "MIG Profile" for an instance, and as type of a whole GPU."""
    name = product.lower().replace(" ", "_")
    return name if profile == "gpu" else f"{name.split('-')[0]}_{profile}"


@pytest.mark.parametrize(
    ("gpu_model", "product", "layout"),
    [
        ("H100-80GB-SXM5", "NVIDIA H100 80GB HBM3", "3g.40gb:1,1g.10gb+me:1,1g.10gb:3"),
        ("H100-80GB-PCIe", "NVIDIA H100 PCIe", "3g.40gb:2"),
        ("A100-40GB", "NVIDIA A100-SXM4-40GB", "3g.20gb:1,1g.5gb:4"),
        ("A30-24GB", "NVIDIA A30", "2g.12gb:2"),
        ("H200-141GB", "NVIDIA H200", "3g.71gb:1,1g.18gb+me:1"),
        ("RTX-PRO-6000-Blackwell-96GB", "NVIDIA RTX PRO 6000 Blackwell Server Edition", "1g.24gb:4"),
    ],
)
def test_types_are_part_of_what_slurmd_finds(
    make_plan: Callable[..., pl.DataFrame], gpu_model: str, product: str, layout: str
) -> None:
    plan = make_plan([("n1", 0, 0, 1, layout, True), ("n1", 1, 0, 1, "gpu", False)])
    (line,) = (line for line in to_slurm(plan, gpu_model, NIGHT).splitlines() if line.startswith("NodeName"))
    profiles = ["gpu", *(part.split(":")[0] for part in layout.split(","))]
    types = [part.split(":")[1] for part in line.partition("Gres=")[2].split(",")]
    # Slurm pairs the longest names first, so each type may be part of only one of what is left.
    assert len(types) == len(profiles)
    left = sorted((found_by_slurmd(product, profile) for profile in profiles), key=len, reverse=True)
    for kind in sorted(types, key=len, reverse=True):
        left.remove(next(name for name in left if kind in name))


@pytest.mark.parametrize("gres_type", ["", "h100:2", "h100 State=DOWN", "h100\n", "-h100"])
def test_types_that_slurm_could_mistake(plan: pl.DataFrame, gres_type: str) -> None:
    with pytest.raises(GeometryError, match="Slurm GRES type"):
        to_slurm(plan, BOARD, DAY, gres_type=gres_type)


@pytest.mark.parametrize(("parked", "left"), [("1g.10gb:7", "1g.10gb:7"), (None, "off")])
def test_what_is_parked_counts_as_it_is_cut_and_what_is_released_does_not(
    make_plan: Callable[..., pl.DataFrame], parked: str | None, left: str
) -> None:
    rows = [("n1", 0, 0, 9, "gpu", False), ("n1", 1, 0, 8, "1g.10gb:7", True), ("n1", 1, 8, 9, "off", False)]
    keeps = pl.when(pl.col("layout") == "off").then(pl.lit(parked, pl.String))
    plan = make_plan(rows).with_columns(parked=keeps)
    sevenths = {NIGHT: ",gpu:t_1g.10gb:7", DAY: ",gpu:t_1g.10gb:7" if parked else ""}
    for time, layout in {NIGHT: "1g.10gb:7", DAY: left}.items():
        assert to_slurm(plan, BOARD, time, gres_type="t").endswith(
            f"# n1 gpu 0: gpu\n# n1 gpu 1: {layout}\nNodeName=n1 Gres=gpu:t:1{sevenths[time]}\n"
        )
    assert [name for name in to_slurm_files(plan, BOARD) if "change" in name] == ["change-20261102T000000Z.sh"]


NVIDIA_SMI = r"""#!/usr/bin/env bash
case "$*" in
  --query-gpu=*) printf '0, Enabled\n1, Disabled\n2, [N/A]\n' ;;
  "mig -lgi") cat <<'END'
+-------------------------------------------------------+
| GPU instances:                                        |
| GPU   Name             Profile  Instance   Placement  |
|                          ID       ID       Start:Size |
|=======================================================|
|   0  MIG 1g.10gb+me      20       13          6:1     |
+-------------------------------------------------------+
|   0  MIG 3g.40gb          9        1          0:4     |
+-------------------------------------------------------+
END
  ;;
  -q*) echo "    Minor Number                          : $((3 - $3))" ;;
esac
"""
MINORS = "config 1\ngpu3/gi1/access 12\ngpu3/gi1/ci0/access 13\ngpu3/gi13/access 120\ngpu3/gi13/ci0/access 121\n"


@needs_bash
def test_gres_conf_without_nvml_lists_the_files_of_each_instance(plan: pl.DataFrame, tmp_path: Path) -> None:
    """Index and minor number of a GPU need not agree; the files go by the minor number."""
    (tmp_path / "nvidia-smi").write_text(NVIDIA_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    (tmp_path / "minors").write_text(MINORS)
    script = tmp_path / "static-gres.sh"
    script.write_text(to_slurm_files(plan, BOARD)["static-gres.sh"])

    def run(word: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "MIG_MINORS": str(tmp_path / "minors")}
        command = ["bash", str(script), word]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)

    assert run("t").stdout.splitlines() == [
        "Name=gpu Type=t_1g.10gb+me "
        "MultipleFiles=/dev/nvidia3,/dev/nvidia-caps/nvidia-cap120,/dev/nvidia-caps/nvidia-cap121",
        "Name=gpu Type=t_3g.40gb "
        "MultipleFiles=/dev/nvidia3,/dev/nvidia-caps/nvidia-cap12,/dev/nvidia-caps/nvidia-cap13",
        "Name=gpu Type=t File=/dev/nvidia2",
        "Name=gpu Type=t File=/dev/nvidia1",
    ]
    assert run("t Count=9").returncode == 2
    (tmp_path / "minors").write_text(MINORS.replace("gi13", "gi14"))
    failed = run("t")
    assert failed.returncode == 1
    assert "Fix gpu3/gi13/access: it is not in" in failed.stderr
