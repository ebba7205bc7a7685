"""One cost of a change: what may be stated instead of the catalogue, and what stays as it is."""

from __future__ import annotations

import math

import pytest

from gpuplanner.errors import GeometryError, ScenarioError
from gpuplanner.hardware import ChangeCost

BOARDS = ("A100-80GB", "H100-80GB-SXM5")


@pytest.mark.parametrize("gpu_hours", [-0.01, math.inf, math.nan])
def test_a_price_is_not_below_zero_and_not_without_end(gpu_hours: float) -> None:
    with pytest.raises(ScenarioError, match="gpu_hours"):
        ChangeCost.of(BOARDS[0], gpu_hours=gpu_hours)


@pytest.mark.parametrize("gpu_hours", [0.0, 2.5])
def test_a_price_that_is_stated_is_what_a_plan_pays(gpu_hours: float) -> None:
    assert ChangeCost.of(BOARDS[0], gpu_hours=gpu_hours).plan_gpu_hours(8) == gpu_hours


def test_a_cost_for_any_board_has_to_be_told_which_before_layouts_are_compared() -> None:
    flat = ChangeCost.flat(60.0)
    with pytest.raises(GeometryError, match="a cost for any"):
        flat.change("gpu", "3g.40gb:2")
    for board in BOARDS:
        assert flat.on(board).change("gpu", "3g.40gb:2").seconds == 60.0
    with pytest.raises(ScenarioError, match="one for H100"):
        flat.on(BOARDS[0]).on(BOARDS[1])


def test_words_tell_the_reboot_where_there_is_one() -> None:
    for board, reboots in zip(BOARDS, (True, False), strict=True):
        assert ("reboot" in ChangeCost.of(board).words()) is reboots
        assert ChangeCost.of(board).change("gpu", "3g.40gb:2").reboot is reboots
