"""Public instances against the best bounds and packings known."""

from __future__ import annotations

import csv
import json

import pytest

from gpuplanner.cli.application import main
from gpuplanner.planner.least_cost_packing import pack_for_cost
from gpuplanner.planner.packing_files_and_verification import read_packing, verify_cost, verify_packing
from gpuplanner.planner.packing_search import pack

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def known(public_data):
    with (public_data / "tbpp" / "best_known.csv").open() as stream:
        return {row["instance"]: row for row in csv.DictReader(stream)}


INSTANCES = [
    "a1/n50_t50_LonSm/cap100_n50_t50_LonSm_1.txt",
    "a1/n100_t120_LonLr/cap100_n100_t120_LonLr_3.txt",
    "a1/n150_t180_ShLr/cap100_n150_t180_ShLr_2.txt",
    "a2/n500_t500_ShSm/cap100_n500_t500_ShSm_2.txt",
    "b1/150/I_50.txt",
    "b2/250/I_50.txt",
    "d1/1000_24_1.txt",
    "d2/2000_8_1.txt",
]


@pytest.mark.parametrize("name", INSTANCES)
def test_proven_within_what_is_known(public_data, known, name):
    problem = read_packing(public_data / "tbpp" / name)
    found = pack(problem, time_limit_s=60, work_limit=400)
    assert verify_packing(found, problem) == []
    assert found.proven
    assert int(known[name]["lower_bound"]) <= found.bins <= int(known[name]["bins"])


def test_fire_ups_within_what_is_known(public_data, known):
    """Bins plus fire-ups, where a commercial solver proved the optimum."""
    name = "a1/n50_t50_ShLr/cap100_n50_t50_ShLr_1.txt"
    problem = read_packing(public_data / "tbpp" / name)
    costs = {"bin_cost": 1.0, "fire_up_cost": 1.0, "busy_cost": 0.0}
    found = pack_for_cost(problem, **costs, time_limit_s=60, work_limit=100)
    assert verify_cost(found, problem, **costs) == []
    row = known[name]
    assert row["fireup_proved_optimal"] == "True"
    assert found.bound <= float(row["fireup_best_objective"]) <= found.cost


def test_command_on_a_public_instance(public_data, capsys, monkeypatch, tmp_path):
    file = public_data / "tbpp" / INSTANCES[0]
    monkeypatch.setattr("sys.argv", ["gpuplanner", "binpack", str(file), "--json", "-o", str(tmp_path / "a.csv")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["bins"], told["lower_bound"], told["proven"], told["gap"]) == (16, 16, True, 0.0)
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 51
