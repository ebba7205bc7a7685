"""Results that are kept are those that would be computed: of stages, on disk, and of simulation runs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.core import stage_cache_and_data_folders as cache
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.stage_cache_and_data_folders import disk_stage, stage
from gpuplanner.decision import policy_simulation
from gpuplanner.decision.policy_simulation import simulate_once
from gpuplanner.forecast.demand_forecast import ForecastResult
from gpuplanner.forecast.rolling_demand_forecast import forecast_from_bytes, forecast_to_bytes
from gpuplanner.simulator.simulation_inputs import NodeAutoscaling, NodeFleet, NodeRequests
from gpuplanner.simulator.simulation_run import simulate_requests

SCENARIOS = st.builds(
    Scenario,
    seed=st.integers(0, 2),
    nodes=st.integers(0, 2),
    quantile=st.sampled_from([0.5, 0.9]),
    actuator=st.sampled_from(["mig-manager", "nvidia-smi"]),
    month=st.sampled_from([None, "2026-02"]),
)


def branching(scenario: Scenario) -> tuple[object, ...]:
    """Reads the actuator only of small fleets, and the month only for even seeds."""
    if scenario.nodes < 2:
        return scenario.actuator, scenario.nodes
    return (scenario.seed, scenario.month) if scenario.seed % 2 == 0 else (scenario.seed,)


@given(st.lists(SCENARIOS, min_size=1, max_size=30))
def test_what_is_remembered_is_what_would_be_computed(asked):
    inner = stage(branching)
    outer = stage(lambda scenario: (inner(scenario.but(quantile=0.5)), scenario.quantile > 0.6 and inner(scenario)))
    for one in asked:
        assert inner(one) == branching(one)
        assert outer(one) == (branching(one), one.quantile > 0.6 and branching(one))


def test_what_an_inner_stage_read_before_it_failed_counts_as_well():
    @stage
    def failing(scenario):
        if scenario.nodes == 0:
            raise ValueError
        return scenario.nodes

    @stage
    def patient(scenario):
        try:
            return failing(scenario)
        except ValueError:
            return None

    assert patient(Scenario()) is None
    assert patient(Scenario(nodes=5)) == 5


@pytest.mark.parametrize(
    "whole",
    [asdict, vars, hash, repr, Scenario.to_yaml, lambda one: replace(one, seed=1), lambda one: one == Scenario()],
    ids=["asdict", "vars", "hash", "repr", "yaml", "replace", "equal"],
)
def test_who_takes_a_scenario_as_a_whole_reads_all_of_it(whole):
    found = stage(lambda scenario: str(whole(scenario)))
    for one in (Scenario(), Scenario(purchase_lead_days=7)):
        assert found(one) == str(whole(one))
    assert found.computed == 2


def test_a_scenario_that_was_kept_answers_for_what_was_read_alone():
    found = stage(lambda scenario: (scenario.seed, scenario))
    _, kept = found(Scenario(seed=3))
    assert kept.seed == 3
    with pytest.raises(RuntimeError, match="reads \\['nodes'\\], which its stage did not"):
        kept.nodes  # noqa: B018 - reading it is the fault


def test_a_folder_on_disk_knows_what_was_read_too(monkeypatch, tmp_path):
    monkeypatch.setenv("GPUPLANNER_CACHE", str(tmp_path))
    runs = []

    def fresh():
        @disk_stage("trial", lambda result: json.dumps(result).encode(), json.loads)
        def trial(scenario):
            runs.append(scenario.nodes)
            return list(branching(scenario))

        return trial

    asked = [
        Scenario(nodes=1), Scenario(nodes=1, actuator="nvidia-smi"), Scenario(nodes=2, seed=1),
        Scenario(nodes=2, seed=2),
        Scenario(nodes=2, seed=2, month="2026-02"),
    ]  # fmt: skip
    assert [fresh()(one) for one in asked] == [list(branching(one)) for one in asked]
    assert runs == [1, 1, 2, 2, 2]
    again = fresh()
    moved = [one.but(price_usd_per_kwh=3.0) for one in asked]
    assert [again(one) for one in moved] == [list(branching(one)) for one in asked]
    assert (len(runs), again.computed) == (5, 0)
    outer = stage(lambda scenario: again(scenario))
    assert [outer(one) for one in moved] == [list(branching(one)) for one in asked]
    for place in [*tmp_path.rglob("*.json"), *tmp_path.rglob("*.result")]:
        place.write_text("torn")
    assert [fresh()(one) for one in asked] == [list(branching(one)) for one in asked]
    assert len(runs) == 10


def test_a_file_that_a_field_names_counts_with_its_content(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUPLANNER_CACHE", str(tmp_path / "cache"))
    rules = tmp_path / "quotas.yaml"
    rules.write_text("one")
    asked = Scenario(quotas=str(rules))
    on_disk = disk_stage("trial", str.encode, bytes.decode)(lambda scenario: Path(scenario.quotas).read_text())
    in_memory = stage(lambda scenario: Path(scenario.quotas).read_text())
    assert (on_disk(asked), in_memory(asked)) == ("one", "one")
    rules.write_text("two")
    assert (on_disk(asked), in_memory(asked)) == ("two", "two")


def test_the_oldest_results_on_disk_go_first(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUPLANNER_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "MAX_DISK_CACHE_BYTES", 300)
    sized = disk_stage("trial", str.encode, bytes.decode)(lambda scenario: f"{scenario.seed:0100d}")
    for seed in range(4):
        sized(Scenario(seed=seed))
        for age, path in enumerate(sorted(tmp_path.rglob("*.result"), key=lambda path: path.read_bytes()[-100:])):
            os.utime(path, (age, age))
    kept = sorted(int(path.read_bytes()[-100:]) for path in tmp_path.rglob("*.result"))
    assert kept == [2, 3]


@pytest.mark.parametrize("damage", [b"", b"PK torn"])
def test_a_damaged_forecast_is_made_again(damage):
    frame = pl.DataFrame({"y": [1.0, 2.0]})
    whole = ForecastResult(frame, frame, frame)
    assert forecast_from_bytes(forecast_to_bytes(whole)).scores.equals(frame)
    with pytest.raises(ValueError, match="damaged"):
        forecast_from_bytes(damage)


ASKED = NodeRequests([0, 1, 2], [0, 1, 2], [100, 100, 10], [100, 100, 10], [0, 0, 0], [8, 8, 4], [1, 1, 1])
FLEET = NodeFleet.of_full_gpus([8, 4])


def test_another_job_node_or_rule_is_another_play():
    other = [
        (replace(ASKED, run_s=np.array([100.0, 100.0, 11.0])), FLEET, {}),
        (ASKED, NodeFleet.of_full_gpus([8, 8]), {}),
        (ASKED, FLEET, {"queue": "strict"}),
        (ASKED, FLEET, {"switching": NodeAutoscaling(idle_s=60.0, lead_s=300.0)}),
        (ASKED, FLEET, {"switching": NodeAutoscaling(idle_s=60.0, lead_s=301.0)}),
        (ASKED, FLEET, {"larger": [[]]}),
    ]
    first = simulate_once(ASKED, FLEET)
    for requests, fleet, how in other:
        found = simulate_once(requests, fleet, **how)
        assert found is not first
        np.testing.assert_array_equal(found.start_s, simulate_requests(requests, fleet, **how).start_s)
        assert simulate_once(requests, fleet, **how) is found


def test_nobody_changes_what_is_remembered():
    with pytest.raises(ValueError, match="read-only"):
        simulate_once(ASKED, FLEET).start_s[0] = 1.0


def test_what_was_not_asked_for_longest_goes_first(monkeypatch):
    monkeypatch.setattr(policy_simulation, "_memory", {})
    monkeypatch.setattr(policy_simulation, "MAX_MEMORY_BYTES", 1)
    first = simulate_once(ASKED, FLEET)
    simulate_once(ASKED, FLEET, queue="strict")
    assert len(policy_simulation._memory) == 1
    assert simulate_once(ASKED, FLEET) is not first
