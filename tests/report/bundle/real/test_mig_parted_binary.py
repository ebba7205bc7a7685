"""Configurations put through the real nvidia-mig-parted, or held against what came of that when it was last done.

``GPUPLANNER_MIG_PARTED`` names the binary (NVIDIA/mig-parted, ``go build ./cmd/nvidia-mig-parted``). Where
``GPUPLANNER_RECORD`` says what it was built from, what it says is written down for machines that have none.
"""

from __future__ import annotations

import csv
import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import yaml

from gpuplanner.hardware.catalog import mig_model_names
from gpuplanner.hardware.layout_enumeration import list_pareto_counts
from gpuplanner.hardware.mig_layouts import format_layout
from gpuplanner.report.mig_manager_files import to_mig_parted

BINARY = os.environ.get("GPUPLANNER_MIG_PARTED")
RECORD = Path(__file__).with_name("mig_parted.csv")
COLUMNS = ("gpu_model", "configs", "accepted", "sha256", "binary")

pytestmark = [pytest.mark.mig_parted, pytest.mark.long]
needs_binary = pytest.mark.skipif(BINARY is None, reason="GPUPLANNER_MIG_PARTED names no nvidia-mig-parted")


def valid(path: Path, name: str) -> bool:
    """What ``nvidia-mig-parted assert --valid-config`` says, which the MIG manager asks first."""
    command = [str(BINARY), "assert", "--valid-config", "-f", str(path), "-c", name]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


def everything(gpu_model: str, make_plan: Callable[..., pl.DataFrame]) -> str:
    """A file with every layout that leaves no room, two to a node."""
    layouts = sorted({format_layout(counts) for counts in list_pareto_counts(gpu_model)} | {"gpu"})
    rows = [(f"n{number:03}", 0, 0, 1, layout, True) for number, layout in enumerate(layouts)]
    rows += [(f"n{number:03}", 1, 0, 1, layout, True) for number, layout in enumerate(reversed(layouts))]
    return to_mig_parted(make_plan(rows), gpu_model)


@pytest.mark.parametrize("gpu_model", mig_model_names())
def test_every_configuration_is_accepted(
    gpu_model: str, tmp_path: Path, make_plan: Callable[..., pl.DataFrame]
) -> None:
    text = everything(gpu_model, make_plan)
    configs = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    digest, names = hashlib.sha256(configs.encode()).hexdigest(), list(yaml.safe_load(text)["mig-configs"])
    with RECORD.open() as stream:
        records = {row["gpu_model"]: row for row in csv.DictReader(stream)}
    if BINARY is None:
        found = records[gpu_model]
        assert found["sha256"] == digest, "written otherwise than what was tried: try it with a binary"
        assert found["accepted"] == found["configs"] == str(len(names))
        return
    path = tmp_path / "config.yaml"
    path.write_text(text)
    accepted = sum(valid(path, name) for name in names)
    if os.environ.get("GPUPLANNER_RECORD"):
        values = (gpu_model, len(names), accepted, digest, os.environ["GPUPLANNER_RECORD"])
        records[gpu_model] = dict(zip(COLUMNS, map(str, values), strict=True))
        with RECORD.open("w", newline="") as stream:
            table = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
            table.writeheader()
            table.writerows(records[name] for name in sorted(records))
    assert "all-disabled" in names
    assert accepted == len(names)


@needs_binary
@pytest.mark.parametrize(
    ("old", "new"),
    [("mig-enabled", "mig-enable"), ("version: v1", "version: v2"), ('"3g.40gb": 2', '"3g.40gb": two'), ("3g", "x")],
)
def test_what_is_wrong_is_not_accepted(
    old: str, new: str, tmp_path: Path, make_plan: Callable[..., pl.DataFrame]
) -> None:
    """The negative control."""
    text = to_mig_parted(make_plan([("n1", 0, 0, 1, "3g.40gb:2", True)]), "H100-80GB-SXM5")
    names = list(yaml.safe_load(text)["mig-configs"])
    path = tmp_path / "config.yaml"
    path.write_text(text)
    assert valid(path, names[-1])
    assert not valid(path, "all-balanced")
    broken = text.replace(f"{old}", new)
    assert broken != text
    path.write_text(broken)
    assert not valid(path, list(yaml.safe_load(broken)["mig-configs"])[-1])
