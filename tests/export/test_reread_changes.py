"""What is written beside layouts is read back as well: scripts, gres.conf and the index of changes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from gpuplanner.export import verify_file
from gpuplanner.export.index import change_index
from gpuplanner.export.reread_changes import read_index
from gpuplanner.hardware import ChangeCost
from gpuplanner.planner import PlanProblem, plan
from gpuplanner.study.handover.calendar import calendar_pack

BOARD = "H100-80GB-SXM5"
START = datetime(2026, 11, 2, tzinfo=UTC)


@pytest.fixture(scope="module", params=["operator", "nvml"])
def pack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All files of a plan of two nodes, in a folder."""
    path: str = request.param
    demand = np.array([[[4.0, 2.0, 0.0], [0.0, 14.0, 8.0], [0.0, 0.0, 6.0]]])
    problem = PlanProblem(
        BOARD, 4, 2, START, 24.0, ["t"], ["gpu", "1g.10gb", "3g.40gb"], demand,
        initial={"gpu": 4}, nodes=["n1", "n2"], change=ChangeCost.of(BOARD, path),
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("pack")
    for name, text in calendar_pack(plan(problem, gap_target=0), problem).files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_every_file_is_understood_and_holds(pack: Path) -> None:
    names = {path.name for path in pack.rglob("*") if path.is_file()}
    assert {"gres.conf", "install-gres.sh", "static-gres.sh", "changes.csv", "changes.md"} < names
    for path in pack.rglob("*"):
        if path.is_file() and path.name != "README.md":
            report = verify_file(path, BOARD, gpus_per_node=2)
            assert report.ok, (path, report.problems)
            assert report.findings, path


@pytest.mark.parametrize(
    ("pattern", "old", "new", "told"),
    [
        ("[no]*/change-*.sh", "set -euo pipefail", "set -euo pipefail; reboot", "is in no script that is shipped"),
        ("[no]*/change-*.sh", "\nset -euo", "\n$(reboot)\nset -euo", "is in no script that is shipped"),
        ("[no]*/change-*.sh", "offers[n2]='", "offers[n2]='$(reboot) ", "is no step"),
        ("[no]*/change-*.sh", "  exit 1\n}\n", "}\n", "lines are missing"),
        ("[no]*/change-*.sh", f"board {BOARD}", "board A30-24GB", "it is for A30-24GB, not for"),
        ("slurm/change-*.sh", "gres[n", "gres[m", "its nodes are"),
        ("slurm/change-*.sh", "_1g.10gb:", "_1g.10gb:9", "do not fit on 2 GPUs"),
        ("slurm/static-gres.sh", "MultipleFiles", "File", "is in no script that is shipped"),
        ("slurm/gres.conf", "nvml\n", "rsmi\n", "AutoDetect=rsmi does not find these GPUs"),
        ("changes.csv", "1g.10gb:7", "1g.10gb:8", "1g.10gb x8"),
        ("changes.csv", "0=gpu", "7=gpu", "no GPU 7 on a node of 2"),
        ("changes.md", "1g.10gb:7", "1g.10gb:6", "is not that of changes.csv"),
    ],
)  # fmt: skip
def test_planted_errors_are_found(
    pack: Path, tmp_path: Path, pattern: str, old: str, new: str, told: str
) -> None:
    found = [path for path in sorted(pack.glob(pattern)) if old in path.read_text()]
    if not found:
        pytest.skip(f"{old!r} stands in no {pattern} of this path")
    path = tmp_path / found[-1].name
    (tmp_path / "changes.csv").write_text((pack / "changes.csv").read_text())
    path.write_text(found[-1].read_text().replace(old, new))
    report = verify_file(path, BOARD, gpus_per_node=2)
    assert not report.ok
    assert any(told in problem for problem in report.problems), report.problems


def test_the_index_is_read_back_as_it_was_made(make_plan: Callable[..., pl.DataFrame]) -> None:
    made = make_plan([("n1", 0, 0, 8, "gpu", True), ("n1", 0, 8, 24, "1g.10gb:7", True)])
    index = change_index(made, BOARD)
    assert read_index(index.write_csv(datetime_format="%Y-%m-%dT%H:%M:%SZ")).equals(index)


GRES = "Name=gpu Type=nvidia_h100_80gb_hbm3_1g.10gb MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap{},/dev/x\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("".join(GRES.format(number) for number in range(7)), "1g.10gb x7 fit on 1 of 2 GPUs"),
        ("".join(GRES.format(number) for number in range(15)), "1g.10gb x15 do not fit on 2 GPUs"),
        ("Name=gpu Type=h100 File=/dev/nvidia[0-1]\n", "gpu x2 fit on 2 of 2 GPUs"),
        ("NodeName=n1 Name=gpu Type=h100 File=/dev/nvidia[0-1,7]\n", "n1: gpu x3 do not fit on 2 GPUs"),
        ("Name=gpu Typ=h100 File=/dev/nvidia0\n", "typ is none of name, type"),
        ("Name=gpu Type=h100_3g.20gb File=/dev/nvidia0\n", "MIG profile '3g.20gb' is unknown"),
        ("AutoDetect=off\nName=gpu Count=2\n", "gpu x2 fit on 2 of 2 GPUs"),
    ],
)
def test_devices_that_are_listed_must_fit(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "gres.conf"
    path.write_text(text)
    report = verify_file(path, BOARD, gpus_per_node=2)
    assert any(told in one for one in [*report.problems, *report.findings]), report
    assert report.ok == ("fit on" in told and "do not" not in told)
