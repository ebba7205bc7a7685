"""Every file of every pack holds when it is read back, and what is planted in it is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuplanner.export import verify_file
from gpuplanner.export.pack import PAGE
from tests.export.test_crds import QUOTAS
from tests.export.test_pack import BOARD, fixed, jobs_cut, packed, pools, written

RULES = {
    "operator": replace(fixed("operator"), quotas=QUOTAS),
    "autoscaler": replace(pools("autoscaler"), quotas=QUOTAS),
    "slurm": pools("slurm"),
    "dra": jobs_cut(),
}


@pytest.mark.parametrize("path", RULES)
def test_every_file_but_the_page_is_read_back(path: str, tmp_path: Path) -> None:
    folder = written(packed(RULES[path]), tmp_path)
    for file in sorted(file for file in folder.rglob("*") if file.is_file() and file.name != PAGE):
        report = verify_file(file, BOARD, gpus_per_node=2)
        assert report.ok, (file.name, report.problems)


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        (
            "autoscaler/karpenter.yaml",
            '"nvidia.com/mig-1g.10gb": "11"',
            '"nvidia.com/mig-1g.10gb": "15"',
            "do not fit",
        ),
        ("autoscaler/karpenter.yaml", "mig-3g.40gb", "mig-3g.80gb", "has no '3g.80gb'"),
        ("autoscaler/karpenter.yaml", "kind: NodeOverlay", "kind: NodeCover", "is none of"),
        (
            "autoscaler/node-groups.json",
            'es/nvidia.com/gpu": "2"',
            'es/nvidia.com/gpu": "3"',
            "do not fit",
        ),
        ("autoscaler/node-groups.json", '"min": 0', '"min": 9', "min 9, max"),
        ("autoscaler/node-groups.json", "{", "", "no node groups"),
        ("operator/kueue.yaml", "kind: ResourceFlavor", "kind: Topology", "there is no flavor"),
        (
            "operator/kueue.yaml",
            '            - {"name": "nvidia.com/gpu", "nominalQuota": 0}\n',
            "",
            "other resources",
        ),
        ("operator/kai.yaml", "parentQueue: web", "parentQueue: wed", "no queue 'wed' above it"),
        ("operator/kai.yaml", "limit: 3", "limit: 1", "is below its quota"),
        (
            "operator/volcano.yaml",
            '"nvidia.com/mig-1g.10gb": "3"',
            '"nvidia.com/mig-1g.10gb": "0"',
            "deserves less",
        ),
        ("operator/volcano.yaml", '"nvidia.com/gpu": "5"', '"nvidia.com/gpu": "0"', "more than it may have"),
        ("dra/device-classes.yaml", ".profile == '3g.40gb'", ".profile == '3g.80gb'", "has no '3g.80gb'"),
        ("slurm/layouts.txt", "n1-cut n1 ", "n1-cut n1;reboot ", "is no name"),
        ("slurm/controller-gres.conf", "[0-", "[0-9", "do not fit"),
        ("slurm/reserve.sh", "keep gpuplanner-whole 1", "keep gpuplanner-whole 1; reboot", "in no script"),
        ("slurm/pools.conf", "_1g.10gb:11", "_1g.10gb:15", "do not fit"),
    ],
)
def test_what_is_planted_is_found(file: str, old: str, new: str, told: str, tmp_path: Path) -> None:
    path, name = file.split("/")
    text = packed(RULES[path]).files[file]
    assert old in text
    place = tmp_path / name
    place.write_text(text.replace(old, new, 1))
    report = verify_file(place, BOARD, gpus_per_node=2)
    assert not report.ok
    assert any(told in problem for problem in report.problems), report.problems
