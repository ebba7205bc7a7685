"""One cost of a change: what may be stated instead of the catalogue, and what stays as it is."""

from __future__ import annotations

import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.hardware.repartitioning_cost import ChangeCost

BOARDS = ("A100-80GB", "H100-80GB-SXM5")


def test_a_cost_holds_for_its_own_board_alone() -> None:
    cost = ChangeCost.from_catalogue(BOARDS[0])
    assert cost.require_model(BOARDS[0]) == cost
    with pytest.raises(ScenarioError, match="one for H100"):
        cost.require_model(BOARDS[1])
