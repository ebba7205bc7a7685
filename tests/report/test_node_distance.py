"""GPU-hours lost by jobs on several nodes: a planted fleet of two racks."""

from __future__ import annotations

import json
import sys

import polars as pl
import pytest

from gpuplanner.cli.application import main
from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.quota_and_placement_comparison import compare_placements
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.notebook.study_views import StudyView
from gpuplanner.report.policy_and_team_sections import render_placement_section
from tests.usage.test_fleet import made, nodes

BOARD = "H100-80GB-SXM5"
HOURS = 6


def racked(folder, *, racks=True):
    """Four nodes, racks of every other one; each day two jobs on two nodes, one after the other."""
    inventory = nodes(*((f"n{number}", BOARD, 8) for number in range(1, 5)))
    if racks:
        inventory = inventory.with_columns(rack=pl.Series(["r1", "r2", "r1", "r2"]))
    trace = made([(BOARD, 16, 1, HOURS), (BOARD, 16, 10, HOURS)], inventory)
    trace = trace.with_tables(jobs=trace.jobs.with_columns(nodes=pl.lit(2, trace.jobs.schema["nodes"])))
    write_dataset(trace, folder)
    return Scenario(name="racked", data=str(folder), gang_slowdowns="1.2,1.5")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    return racked(tmp_path_factory.mktemp("racked") / "racked")


def by_placement(table):
    return {row["placement"]: row for row in table.iter_rows(named=True)}


def test_consolidated_jobs_run_as_long_as_within_a_rack(fleet):
    rows = by_placement(compare_placements(fleet))
    assert {name: row["slowdown"] for name, row in rows.items()} == pytest.approx(
        {"first idle nodes": 1.5, "consolidated": 1.2, "spread": 1.5}
    )
    week = 7 * 2 * 16 * HOURS  # GPU-hours of two jobs of 16 GPUs a day
    assert rows["first idle nodes"]["lost_gpu_hours"] == pytest.approx(0.5 * week)
    assert rows["consolidated"]["lost_gpu_hours"] == pytest.approx(0.2 * week)
    assert {row["never_started"] for row in rows.values()} == {0}
    assert {row["multi_node_jobs"] for row in rows.values()} == {rows["spread"]["jobs"]}


def test_nodes_without_a_rack_are_racks_of_their_own(tmp_path):
    rows = by_placement(compare_placements(racked(tmp_path / "bare", racks=False)))
    assert rows["consolidated"]["slowdown"] == pytest.approx(1.5)


def test_few_jobs_on_several_nodes_have_an_interval_that_a_single_run_lacks():
    """Nine jobs of the sample: in one run, nodes that happen to be idle may let spread jobs lose less than others."""
    rows = by_placement(compare_placements(Scenario(gang_slowdowns="1.1,1.3")))
    assert rows["consolidated"]["multi_node_jobs"] == 9
    assert rows["consolidated"]["lost_gpu_hours"] < rows["spread"]["lost_gpu_hours"]
    for row in rows.values():
        assert row["lost_gpu_hours_low"] < row["lost_gpu_hours"] < row["lost_gpu_hours_high"]


@pytest.mark.parametrize("text", ["fast", "1.3,1.1", "0.9,1.1", "1.1", "model"])
def test_invalid_slow_downs_are_rejected(text):
    with pytest.raises(ScenarioError, match="gang_slowdowns"):
        Scenario(gang_slowdowns=text)


def test_command_page_and_notebook_show_the_same_table(fleet, tmp_path, monkeypatch, capsys):
    expected = compare_placements(fleet)
    (tmp_path / "s.yaml").write_text(fleet.to_yaml())
    monkeypatch.setattr(sys, "argv", ["gpuplanner", "compare", str(tmp_path / "s.yaml"), "--json", "--quiet"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["placements"] == json.loads(json.dumps(expected.to_dicts()))
    assert "consolidated" in str(render_placement_section(expected))
    assert str(render_placement_section(None)) == ""
    assert StudyView(fleet.but(gang_slowdowns=None), None).placements("1.2,1.5").df.equals(expected)
