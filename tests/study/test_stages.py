"""A stage depends on what it read, however it came to read it: nobody can forget a field."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.scenario import Scenario
from gpuplanner.study.stages import shelved, stage

SCENARIOS = st.builds(
    Scenario,
    seed=st.integers(0, 2),
    nodes=st.integers(0, 2),
    quantile=st.sampled_from([0.5, 0.9]),
    path=st.sampled_from(["operator", "nvml"]),
    month=st.sampled_from([None, "2026-02"]),
)


def branching(scenario: Scenario) -> tuple[object, ...]:
    """Reads the path only of small fleets, and the month only for even seeds."""
    if scenario.nodes < 2:
        return scenario.path, scenario.nodes
    return (scenario.seed, scenario.month) if scenario.seed % 2 == 0 else (scenario.seed,)


@given(st.lists(SCENARIOS, min_size=1, max_size=30))
def test_what_is_remembered_is_what_would_be_computed(asked):
    inner = stage(branching)
    outer = stage(
        lambda scenario: (inner(scenario.but(quantile=0.5)), scenario.quantile > 0.6 and inner(scenario))
    )
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
    [
        asdict,
        vars,
        hash,
        repr,
        Scenario.to_yaml,
        lambda one: replace(one, seed=1),
        lambda one: one == Scenario(),
    ],
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
        @shelved("trial", json.dumps, json.loads)
        def trial(scenario):
            runs.append(scenario.nodes)
            return list(branching(scenario))

        return trial

    asked = [
        Scenario(nodes=1), Scenario(nodes=1, path="nvml"), Scenario(nodes=2, seed=1), Scenario(nodes=2, seed=2),
        Scenario(nodes=2, seed=2, month="2026-02"),
    ]  # fmt: skip
    assert [fresh()(one) for one in asked] == [list(branching(one)) for one in asked]
    assert runs == [1, 1, 2, 2, 2]
    again = fresh()
    moved = [one.but(value_freed_at=3.0) for one in asked]
    assert [again(one) for one in moved] == [list(branching(one)) for one in asked]
    assert (len(runs), again.computed) == (5, 0)
    outer = stage(lambda scenario: again(scenario))
    assert [outer(one) for one in moved] == [list(branching(one)) for one in asked]
    for place in tmp_path.rglob("*.json"):
        place.write_text("torn")
    assert [fresh()(one) for one in asked] == [list(branching(one)) for one in asked]
    assert len(runs) == 10
