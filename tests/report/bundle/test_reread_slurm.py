"""Slurm lines: the GPUs and slices of a node must fit on its GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplanner.report.export_verification import FileReport, verify_file
from gpuplanner.report.plan_and_bundle_verification import verify_any


def check(folder: Path, text: str, gpu_model: str = "H100-80GB-SXM5", gpus_per_node: int = 8) -> FileReport:
    path = folder / "slurm.conf"
    path.write_text(text)
    return verify_file(path, gpu_model, gpus_per_node=gpus_per_node)


def test_counts_that_fit(tmp_path: Path) -> None:
    report = check(tmp_path, "GresTypes=gpu\nNodeName=n[1-4] Gres=gpu:h100:4,gpu:h100_1g.10gb:14\n")
    assert report == FileReport(
        findings=["node n[1-4]: gpu x4, 1g.10gb x14 fit on 6 of 8 GPUs: 1g.10gb:7 on 2; gpu on 4"]
    )


def test_counts_that_do_not_fit(tmp_path: Path) -> None:
    report = check(tmp_path, "NodeName=n1 Gres=gpu:h100:7,gpu:h100_1g.10gb:14\n")
    assert report.problems == ["line 1: node n1: gpu x7, 1g.10gb x14 do not fit on 8 GPUs of H100-80GB-SXM5"]


@pytest.mark.parametrize(
    ("gres", "gpus", "ok"),
    [
        ("gpu:a100_4g.20gb:2,gpu:a100_3g.20gb:2", 2, True),
        ("gpu:a100_4g.20gb:2,gpu:a100_3g.20gb:2,gpu:a100_1g.5gb:1", 2, False),  # 14 compute slices in both
        ("gpu:a100_3g.20gb:4", 2, True),
        ("gpu:a100_3g.20gb:2,gpu:a100_2g.10gb:2,gpu:a100_1g.5gb:4", 2, True),
        ("gpu:a100_3g.20gb:3,gpu:a100_1g.5gb:4", 2, True),
        ("gpu:a100_3g.20gb:3,gpu:a100_1g.5gb:5", 2, False),
        ("gpu:a100_1g.10gb:4,gpu:a100_1g.5gb:3", 1, False),
        ("gpu:a100_7g.40gb:1,gpu:a100:1", 2, True),
        ("gpu:a100_7g.40gb:1,gpu:a100:1", 1, False),
    ],
)
def test_search_is_exact(tmp_path: Path, gres: str, gpus: int, ok: bool) -> None:
    assert check(tmp_path, f"NodeName=n1 Gres={gres}\n", "A100-40GB", gpus).ok is ok


def test_forms_of_gres(tmp_path: Path) -> None:
    text = (
        "nodename = n1 cpus=64 \\\n"
        "  GRES=gpu:h100:2(S:0-1),shard:32,gpu:nvidia_h100_80gb_hbm3_3g.40gb:2 # note\n"
        "NodeName=n2 Gres=gpu,gpu:h100\n"
        "NodeName=n3 CPUs=8\n"
        "NodeName=n4 Gres=gpu:1g.10gb.me:1\n"
        "NodeName=DEFAULT Gres=gpu:8\n"
        "NodeName=n5\n"
        "PartitionName=p Nodes=n1\n"
    )
    assert check(tmp_path, text).findings == [
        "node n1: gpu x2, 3g.40gb x2 fit on 3 of 8 GPUs: 3g.40gb:2 on 1; gpu on 2",
        "node n2: gpu x2 fit on 2 of 8 GPUs: gpu on 2",
        "node n3: no GPU declared",
        "node n4: 1g.10gb+me x1 fit on 1 of 8 GPUs: 1g.10gb+me:1 on 1",
        "node n5: gpu x8 fit on 8 of 8 GPUs: gpu on 8",
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("NodeName=n1 Gres=gpu:h100:0", "gpu:h100:0 must be gpu[:type][:count] with a count above 0"),
        ("NodeName=n1 Gres=gpu:h100:1K", "must be gpu[:type][:count]"),
        ("NodeName=n1 Gres=gpu:h100:9999999", "must be gpu[:type][:count]"),
        (f"NodeName=n1 Gres=gpu:{'9' * 5000}", "must be gpu[:type][:count]"),
        ("NodeName=n1 Gres=gpu:a:b:1", "must be gpu[:type][:count]"),
        ("NodeName=n1 Gres=gpu:h100_3g.20gb:1", "MIG profile '3g.20gb' is unknown"),
        ("NodeName=n1 Gres=gpu:1\nNodeName=n1 Gres=gpu:2", "line 2: node n1: listed twice, first in line 1"),
        ("NodeName=n1 \\\n Gres=gpu:9 \\", "line 1: node n1: gpu x9 do not fit on 8 GPUs"),
    ],
)
def test_faults(tmp_path: Path, line: str, problem: str) -> None:
    report = check(tmp_path, line + "\n")
    assert len(report.problems) == 1
    assert problem in report.problems[0]
    assert len(report.problems[0]) < 500


STATED = """\
# n1 gpu 0: gpu
# n1 gpu 1: 3g.40gb:1,1g.10gb:4
# n1 gpu 2: off
NodeName=n1 Gres=gpu:h100:1,gpu:h100_3g.40gb:1,gpu:h100_1g.10gb:4
"""


def test_stated_layouts_are_proved_one_by_one(tmp_path: Path) -> None:
    report = check(tmp_path, STATED, gpus_per_node=3)
    assert report.ok
    assert report.findings == [
        "node n1: gpu 0: gpu",
        "node n1: gpu 1: 1g.10gb@0 1g.10gb@1 1g.10gb@2 1g.10gb@3 3g.40gb@4",
        "node n1: gpu 2: off",
    ]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("1g.10gb:4\n#", "1g.10gb:5\n#", "gpu 1: 3g.40gb x1 (4 memory slices each) and 1g.10gb x5"),
        ("1g.10gb:4\n#", "1g.10gb:3\n#", "gpu x1, the layouts in the comments have 1g.10gb x3"),
        ("gpu 2: off", "gpu 2: gpu", "the layouts in the comments have 1g.10gb x4, 3g.40gb x1, gpu x2"),
        ("gpu 2: off", "gpu 3: off", "gpu 3 has a layout, but the node has 3 GPUs"),
        ("gpu 2: off", "gpu 1: off", "gpu 1 has 2 layouts"),
        ("gpu 2: off", "gpu 2: x:1", "gpu 2: MIG profile 'x'"),
        ("n1 gpu 2: off", "n7 gpu 2: off", "node n7: layouts in comments, but no NodeName line"),
        ("Gres=gpu:h100:1,", "Gres=", "Gres has 1g.10gb x4, 3g.40gb x1, the layouts in the comments have"),
    ],
)
def test_stated_layouts_that_do_not_hold(tmp_path: Path, old: str, new: str, problem: str) -> None:
    report = check(tmp_path, STATED.replace(old, new), gpus_per_node=3)
    assert any(problem in found for found in report.problems), report.problems


def test_comments_of_people_are_left_alone(tmp_path: Path) -> None:
    assert check(tmp_path, "# n1 gpu 0: replaced last week\nNodeName=n1 Gres=gpu:8\n").ok


def test_lines_of_a_board_without_mig_are_proven_as_well(tmp_path: Path) -> None:
    lines = "# slurm.conf, board L40S.\nGresTypes=gpu\nNodeName=n1 Gres=gpu:nvidia_l40s:"
    path = tmp_path / "slurm.conf"
    for gpus, held in ((4, True), (9, False)):
        path.write_text(f"{lines}{gpus}\n")
        assert verify_any(path, None).ok is held


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
    report = check(tmp_path, text, gpus_per_node=2)
    assert any(told in one for one in [*report.problems, *report.findings]), report
    assert report.ok == ("fit on" in told and "do not" not in told)
