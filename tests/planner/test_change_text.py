"""The cost of a change in a plan file is read as it was written."""

from __future__ import annotations

import pytest

from gpuplanner.errors import ScenarioError
from gpuplanner.hardware import PATHS, ChangeCost, load_gpu_model
from gpuplanner.planner.contract.plain_values import change_from_plain, to_plain

BOARDS = ("A100-80GB", "H100-80GB-SXM5")


@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("path", PATHS)
def test_what_is_written_is_read_back_and_what_is_missing_comes_from_the_catalogue(
    board: str, path: str
) -> None:
    model = load_gpu_model(board)
    for cost in (ChangeCost.of(board, path), ChangeCost.of(board, path, seconds=90, restart_s=5)):
        plain = to_plain(cost)
        assert change_from_plain(model, plain) == cost
        for name in set(plain) - {"path"}:
            rest = {key: value for key, value in plain.items() if key != name}
            assert (
                to_plain(change_from_plain(model, rest))[name] == to_plain(ChangeCost.of(board, path))[name]
            )


@pytest.mark.parametrize(
    ("change", "said"),
    [({"speed": 1}, "speed"), ({"change_s": 60.0}, "low, high, basis"), ({"change_s": [1]}, "low")],
)
def test_what_is_no_cost_is_refused(change: dict[str, object], said: str) -> None:
    plain = to_plain(ChangeCost.of(BOARDS[0])) | change
    with pytest.raises(ScenarioError, match=said):
        change_from_plain(load_gpu_model(BOARDS[0]), plain)
