"""Jobs on several nodes, placed close together and apart, and racks that draw less: a planted fleet of two racks."""

from __future__ import annotations

import json
import sys

import polars as pl
import pytest

from gpuplanner.cli import main
from gpuplanner.errors import ScenarioError
from gpuplanner.inbox import write_dataset
from gpuplanner.report.teams import placed
from gpuplanner.scenario import Scenario
from gpuplanner.sizing.predict.throughput import board_facts, slower_beyond_a_node
from gpuplanner.study.tenants.apart import PlacedApart, placed_apart
from gpuplanner.views.study import Decided
from tests.study.test_fleet import made, nodes

BOARD = "H100-80GB-SXM5"
HOURS = 6
STATED = {"gang_slowdowns": "1.2,1.5"}


def racked(folder, *, racks=True):
    """Four nodes, racks of every other one; each day two jobs on two nodes, one after the other."""
    inventory = nodes(*((f"n{number}", BOARD, 8) for number in range(1, 5)))
    if racks:
        inventory = inventory.with_columns(rack=pl.Series(["r1", "r2", "r1", "r2"]))
    trace = made([(BOARD, 16, 1, HOURS), (BOARD, 16, 10, HOURS)], inventory)
    trace = trace.with_tables(jobs=trace.jobs.with_columns(nodes=pl.lit(2, trace.jobs.schema["nodes"])))
    write_dataset(trace, folder)
    return Scenario(name="racked", data=str(folder))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    return racked(tmp_path_factory.mktemp("racked") / "racked")


def by_way(found):
    return {row["way"]: row for row in found.ways.iter_rows(named=True)}


def test_who_is_placed_close_together_runs_as_long_as_within_a_rack(fleet):
    found = placed_apart(fleet.but(**STATED))
    rows = by_way(found)
    assert {name: row["times"] for name, row in rows.items()} == pytest.approx(
        {"as they come": 1.5, "consolidated": 1.2, "spread": 1.5}
    )
    # Two jobs of 16 GPUs a day: half, and a fifth, of their six hours more.
    week = 7 * 2 * 16 * HOURS
    assert rows["as they come"]["longer"] == pytest.approx(0.5 * week)
    assert rows["consolidated"]["longer"] == pytest.approx(0.2 * week)
    assert rows["consolidated"]["change"] == pytest.approx(-0.3 * week)
    assert rows["consolidated"]["verdict"] != "as before"
    assert rows["as they come"]["verdict"] == "as before"
    assert "run 1.20 times as long as on one instead of 1.50" in found.sentence
    assert found.notes[0] == "Racks and NVLink domains of the node list."


def test_by_the_model_it_costs_what_networks_carry(fleet):
    _, expected, worst = slower_beyond_a_node(board_facts(BOARD))
    rows = by_way(placed_apart(fleet.but(gang_slowdowns="model")))
    assert rows["as they come"]["times"] == pytest.approx(expected)
    assert rows["as they come"]["times_worst"] == pytest.approx(worst)
    assert 1.0 <= expected < worst


def test_racks_that_may_draw_power_for_one_node_hold_jobs_up(fleet):
    """H100s of 700 W: a rack that may draw 5,600 W runs one node of it, a job on two nodes takes one of each rack."""
    found = placed_apart(fleet.but(**STATED, rack_watts=5600.0))
    limited = by_way(found)["5,600 W a rack"]
    assert (limited["never"], limited["times"]) == (0, pytest.approx(1.5))
    short = by_way(placed_apart(fleet.but(**STATED, rack_watts=5000.0)))["5,000 W a rack"]
    assert short["never"] == short["jobs"] > 0
    assert "With 5,600 W a rack" in found.sentence


def test_racks_are_stated_where_no_node_list_has_them(tmp_path):
    bare = racked(tmp_path / "bare", racks=False).but(**STATED)
    assert by_way(placed_apart(bare))["consolidated"]["times"] == pytest.approx(1.5)
    assert by_way(placed_apart(bare.but(nodes_per_rack=2)))["as they come"]["times"] == pytest.approx(1.2)
    with pytest.raises(ScenarioError, match="rack_watts: expected racks; got a node list without any"):
        placed_apart(bare.but(rack_watts=5600.0))


@pytest.mark.parametrize("text", ["fast", "1.3,1.1", "0.9,1.1", "1.1"])
def test_slow_downs_that_are_none_are_refused(text):
    with pytest.raises(ScenarioError, match="gang_slowdowns"):
        Scenario(gang_slowdowns=text)


def test_compare_page_and_notebook_say_the_same(fleet, tmp_path, monkeypatch, capsys):
    asked = fleet.but(**STATED, rack_watts=5600.0)
    expected = placed_apart(asked)
    (tmp_path / "s.yaml").write_text(asked.to_yaml())
    monkeypatch.setattr(sys, "argv", ["gpuplanner", "compare", str(tmp_path / "s.yaml"), "--json", "--quiet"])
    with pytest.raises(SystemExit) as left:
        main()
    told = json.loads(capsys.readouterr().out)
    assert left.value.code == 0
    assert told["placed"] == json.loads(json.dumps(expected.to_dict()))
    kept = PlacedApart.of_tables(expected.to_tables())
    assert kept.to_dict() == expected.to_dict()
    assert expected.sentence in str(placed(kept))
    assert str(placed(None)) == ""
    shown = Decided(fleet, None).placed("1.2,1.5", rack_watts=5600.0)
    assert shown.table.equals(expected.ways)
