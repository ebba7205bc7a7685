"""The panel of boards in plain Python: one board is told alone, and the figures are those of each board by itself."""

from __future__ import annotations

import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.comparison_record import compare_policies
from gpuplanner.decision.gpu_model_decisions import ComparedFleet
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.notebook.dataset_and_quota_panels import ALL_GPU_MODELS
from gpuplanner.notebook.study_views import decide
from gpuplanner.usage.planning_history import split_into_pools
from tests.usage.test_fleet import H200S, MIXED, TWO_BOARDS, made


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A small fleet of A100 and T4."""
    folder = tmp_path_factory.mktemp("two") / "two"
    write_dataset(made(MIXED, TWO_BOARDS), folder)
    return Scenario(name="two", data=str(folder), policies="power_down_idle")


@pytest.fixture(scope="module")
def found(two):
    return decide(two)


@pytest.mark.long
def test_each_board_shows_what_it_is_decided_by_itself(two, found):
    panel, fleet = found.gpu_models(), split_into_pools(two)
    assert panel.gpu_model.options == (*fleet.pools, ALL_GPU_MODELS)
    for name, own in fleet.pools.items():
        panel.gpu_model.value = name
        assert panel.scenario == own
        assert panel.ask().result(timeout=600).decision == compare_policies(own).decision
        assert panel.status.value == "Done."
        assert found.on(panel.scenario).comparison.decision == compare_policies(own).decision
    assert found.on(two) is found


@pytest.mark.long
def test_all_boards_are_told_with_their_sum(two, found):
    panel, fleet = found.gpu_models(), split_into_pools(two)
    panel.gpu_model.value = ALL_GPU_MODELS
    answer = panel.ask().result(timeout=600)
    by_hand = ComparedFleet({name: compare_policies(own) for name, own in fleet.pools.items()})
    assert answer.to_dict() == by_hand.to_dict()
    shown = panel.answer.value
    assert by_hand.decision_text in shown
    assert panel.scenario == two


def test_a_fleet_of_one_board_has_nothing_to_choose(tmp_path):
    write_dataset(made(H200S), tmp_path / "one")
    panel = decide(Scenario(data=str(tmp_path / "one"), policies="power_down_idle")).gpu_models()
    assert panel.gpu_model.disabled
    assert panel.gpu_model.options == ("H200-141GB",)
