"""The view of boards: the figures are those of each board by itself."""

from __future__ import annotations

import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.comparison_record import compare_policies
from gpuplanner.decision.gpu_model_decisions import ComparedFleet
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.notebook.study_views import decide
from gpuplanner.usage.planning_history import split_into_pools
from tests.usage.test_fleet import H200S, MIXED, TWO_BOARDS, made


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A small fleet of A100 and T4."""
    folder = tmp_path_factory.mktemp("two") / "two"
    write_dataset(made(MIXED, TWO_BOARDS), folder)
    return Scenario(name="two", data=str(folder), policies="power_down_idle")


@pytest.mark.long
def test_each_board_is_decided_by_itself_and_told_with_their_sum(two):
    view, pools = decide(two).gpu_models(), split_into_pools(two).pools
    by_hand = ComparedFleet({name: compare_policies(own) for name, own in pools.items()})
    assert view.df["pool"].to_list() == [*pools]
    assert view.df["needed"].to_list() == [own.gpus for own in by_hand.decisions.values()]
    assert by_hand.decision_text in view._repr_html_()


def test_a_fleet_of_one_board_shows_its_own_decision(tmp_path):
    write_dataset(made(H200S), tmp_path / "one")
    study = decide(Scenario(data=str(tmp_path / "one"), policies="power_down_idle"))
    assert study.gpu_models().df.select("pool", "needed").rows() == [("H200-141GB", study.decision.gpus)]
