"""Cost of a layout change, from the rules of drivers, mig-parted and the GPU operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpuplanner.core.setting_rules_and_controls import MIG_PARTITIONERS
from gpuplanner.hardware.catalog import find_parameter
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.hardware.layout_enumeration import list_profile_counts
from gpuplanner.hardware.mig_layouts import parse_placements
from gpuplanner.hardware.repartitioning_cost import ChangeCost

H100 = "H100-80GB-SXM5"


def test_nvml_keeps_what_both_layouts_have() -> None:
    cost = ChangeCost.from_catalogue(H100, "nvidia-smi").change("3g.40gb:2", "3g.40gb:1,1g.10gb:4")
    assert [str(p) for p in cost.destroyed] == ["3g.40gb@0"]
    assert [str(p) for p in cost.kept] == ["3g.40gb@4"]
    assert [str(p) for p in cost.created] == [f"1g.10gb@{start}" for start in range(4)]
    assert cost.seconds == pytest.approx(5 * 0.3)
    assert (cost.low_s, cost.high_s) == (pytest.approx(0.5), pytest.approx(5.0))


def test_mig_parted_destroys_everything_unless_counts_match() -> None:
    cost = ChangeCost.from_catalogue(H100, "mig-parted").change("3g.40gb:2", "3g.40gb:1,1g.10gb:4")
    assert (len(cost.destroyed), len(cost.created), cost.kept) == (2, 5, ())
    assert cost.seconds == find_parameter("reconfigure_mig_parted_s").value == 1
    same = ChangeCost.from_catalogue(H100, "mig-parted").change(
        parse_placements(H100, "3g.40gb@0"), parse_placements(H100, "3g.40gb@4")
    )
    assert (same.destroyed, same.created, len(same.kept), same.seconds) == ((), (), 1, 0)


def test_operator_takes_a_minute_per_node() -> None:
    cost = ChangeCost.from_catalogue(H100).change("3g.40gb:2", "7g.80gb:1")
    assert (cost.actuator, cost.seconds, cost.low_s, cost.high_s) == ("mig-manager", 60, 30, 300)
    assert not cost.reboot


@pytest.mark.parametrize(("gpu_model", "reboot"), [("A100-40GB", True), ("A30", True), (H100, False), ("B200", False)])
@pytest.mark.parametrize("actuator", MIG_PARTITIONERS)
def test_mode_change_needs_a_reboot_on_ampere_only(gpu_model: str, actuator: str, reboot: bool) -> None:
    profile = load_gpu_model(gpu_model).profiles[0].name
    for before, after in [("gpu", f"{profile}:1"), (f"{profile}:1", "gpu"), ("off", f"{profile}:1")]:
        cost = ChangeCost.from_catalogue(gpu_model, actuator).change(before, after)
        assert cost.mode_change
        assert cost.reboot is reboot
        assert (cost.seconds == 600) is reboot
    kept = ChangeCost.from_catalogue(gpu_model, actuator).change(f"{profile}:1", f"{profile}:1")
    assert (kept.mode_change, kept.reboot, kept.seconds, len(kept.kept)) == (False, False, 0, 1)


def test_unknown_architecture_counts_the_more_expensive_case(toy_rows: Callable[..., list[dict[str, Any]]]) -> None:
    cost = ChangeCost.from_catalogue(load_gpu_model("TOY", toy_rows())).change("gpu", "2g.16gb:2")
    assert (cost.reboot, cost.seconds) == (True, 600)


@pytest.mark.parametrize("actuator", MIG_PARTITIONERS)
def test_books_balance(actuator: str) -> None:
    """Kept and destroyed make up what was, kept and created what will be."""
    every = list_profile_counts("A30")
    for before in every:
        for after in every:
            cost = ChangeCost.from_catalogue("A30", actuator).change(before, after)
            assert len(cost.destroyed) + len(cost.kept) == sum(before.values())
            assert len(cost.created) + len(cost.kept) == sum(after.values())
            assert not set(cost.kept) & {*cost.destroyed, *cost.created}
            assert cost.low_s <= cost.seconds <= cost.high_s
