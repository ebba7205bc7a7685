"""Five hundred random decisions through every format: nothing impossible, the same bytes twice, and few files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from gpuplanner.core.setting_rules_and_controls import PARTITIONER_BY_ACTUATOR
from gpuplanner.decision.policy_layouts import FleetRules, PoolRule
from gpuplanner.hardware.layout_enumeration import list_layouts
from gpuplanner.hardware.repartitioning_cost import ChangeCost
from gpuplanner.report.change_bundle import README_FILE, make_bundle
from gpuplanner.report.change_bundle_parts import Bundle, PageText
from gpuplanner.report.export_verification import verify_file
from gpuplanner.simulator.scheduling_rules import Drain

BOARDS = ("H100-80GB-SXM5", "H100-80GB-PCIe", "A100-40GB", "A100-80GB", "A30-24GB", "H200-141GB")
DECISIONS = 500


def drawn(rng: np.random.Generator) -> FleetRules:
    """A fleet of a few nodes in a few pools, fixed or coming and going, on any path."""
    gpu_model = str(rng.choice(BOARDS))
    layouts = ["gpu", *list_layouts(gpu_model).by_counts["layout"].to_list()]
    size, count = int(rng.choice([1, 2, 4, 8])), int(rng.integers(1, 7))
    names = tuple(f"{rng.choice(['n', 'gpu-', 'a.b'])}{number:02d}" for number in range(count))

    def cut() -> tuple[str, ...]:
        return tuple(str(text) for text in rng.choice(layouts, size))

    path, comes = str(rng.choice(list(PARTITIONER_BY_ACTUATOR))), bool(rng.integers(2))
    kept = names[: int(rng.integers(1, count + 1))]
    if comes:
        pools = tuple(
            PoolRule(f"cut-{one}", cut(), len(kept), kept, len(kept), int(rng.integers(2))) for one in range(2)
        )
    else:
        pools = tuple(PoolRule(f"cut-{name}", cut(), 1, (name,), 1) for name in kept)
    today = tuple(PoolRule(f"today-{name}", cut(), 1, (name,)) for name in names)
    return FleetRules(
        "any", path, gpu_model, pools, len(kept), today, released=names[len(kept) :],
        idle_s=float(rng.integers(1, 60)) * 60 if comes else None, lead_s=300.0, lead_slow_s=900.0,
        cool_s=float(rng.integers(2)) * 600, placement=str(rng.choice(["best", "fullest"])),
        begins="2026-11-02T00:00:00+00:00",
    )  # fmt: skip


def packed(rules: FleetRules) -> Bundle:
    return make_bundle(
        rules, PageText("Do it.", "some way"), ChangeCost.from_catalogue(rules.gpu_model, rules.actuator), Drain()
    )


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, 20))])
def test_random_decisions_in_every_format(part: int, tmp_path: Path) -> None:
    rng = np.random.default_rng([28, part])
    for number in range(DECISIONS // 20):
        rules = drawn(rng)
        pack = packed(rules)
        assert not pack.warnings, rules
        assert pack.files == packed(rules).files
        assert len(pack.files) <= 20
        assert not any(re.search(r"@[A-Z_a-z.-]+@", text) for text in pack.files.values())
        place = tmp_path / f"{number}.yaml"
        for name, text in pack.files.items():
            if name.endswith(("configmap.yaml", "mig-parted.yaml")):
                place.write_text(text)
                report = verify_file(place, rules.gpu_model, gpus_per_node=len(rules.pools[0].layouts))
                assert report.ok, (rules, report.problems)
        assert all(f"`{step.file}`" in pack.files[README_FILE] for step in pack.steps)
