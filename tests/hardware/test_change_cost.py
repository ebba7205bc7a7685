"""One cost of a change: what may be stated instead of the catalogue, and what stays as it is."""

from __future__ import annotations

import pytest

from gpuplanner.errors import GeometryError, ScenarioError
from gpuplanner.hardware import ChangeCost

BOARDS = ("A100-80GB", "H100-80GB-SXM5")


def test_a_cost_for_any_board_has_to_be_told_which_before_layouts_are_compared() -> None:
    flat = ChangeCost.flat(60.0)
    with pytest.raises(GeometryError, match="a cost for any"):
        flat.change("gpu", "3g.40gb:2")
    for board in BOARDS:
        assert flat.on(board).change("gpu", "3g.40gb:2").seconds == 60.0
    with pytest.raises(ScenarioError, match="one for H100"):
        flat.on(BOARDS[0]).on(BOARDS[1])
