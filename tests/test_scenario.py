"""A scenario is checked whole, survives YAML, and names what is wrong."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.errors import GeometryError, ScenarioError
from gpuplanner.scenario import Scenario


@given(
    quantile=st.floats(0.05, 0.95),
    nodes=st.integers(0, 1000),
    month=st.none() | st.sampled_from(["2026-02", "1999-12"]),
)
def test_yaml_round_trip(tmp_path_factory, quantile, nodes, month):
    scenario = Scenario(quantile=quantile, nodes=nodes, month=month)
    path = tmp_path_factory.mktemp("s") / "s.yaml"
    path.write_text(scenario.to_yaml())
    assert Scenario.from_yaml(path) == scenario


def test_every_fault_is_named_at_once():
    with pytest.raises(ScenarioError) as caught:
        Scenario(quantile=1.5, replications=1, queue="fifo", tz="Mars/Olympus")
    for name in ("quantile", "replications", "queue", "tz"):
        assert name in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"nodes": True}, {"nodes": 1.5}, {"quantile": "0.9"}, {"quantile": float("nan")}, {"seed": -1},
        {"month": "2026-00"}, {"currency": "usd"}, {"pue": 0.5}, {"name": " "}, {"slot_hours": 0.0},
    ],
)  # fmt: skip
def test_wrong_values_are_refused(values):
    with pytest.raises(ScenarioError, match=next(iter(values))):
        Scenario(**values)


def test_unknown_board_is_refused():
    with pytest.raises(GeometryError, match="ambiguous"):
        Scenario(board="H100")


def test_whole_numbers_serve_as_floats():
    assert Scenario(arrival_scale=2).arrival_scale == 2.0
    assert isinstance(Scenario(arrival_scale=2).arrival_scale, float)


@pytest.mark.parametrize("text", ["- a\n", "42\n", ""])
def test_file_must_be_a_mapping(tmp_path, text):
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match="mapping"):
        Scenario.from_yaml(path)


def test_data_is_found_beside_the_file(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("data: trace\n")
    assert Scenario.from_yaml(path).data == str(tmp_path / "trace")


def test_command_line_assignments():
    base = Scenario()
    assert base.with_text(["nodes=4", "pool=null", "month=2026-02"]) == replace(
        base, nodes=4, month="2026-02"
    )
    with pytest.raises(ScenarioError, match="did you mean 'quantile'"):
        base.with_text(["quantil=0.9"])
    with pytest.raises(ScenarioError, match="key=value"):
        base.with_text(["quantile"])


def test_what_is_played_forgets_prices_alone():
    moved = Scenario(seed=5, quantile=0.6, price_usd_per_gpu_hour=9, currency="EUR", pue=1.2)
    assert moved.without_prices() == Scenario(seed=5, quantile=0.6)


def test_months_are_local_calendar_months():
    spring, autumn = (Scenario(month=m, tz="Europe/Berlin").month_span() for m in ("2026-03", "2026-10"))
    # March loses an hour and October gains one; December runs into the next year.
    assert (spring[1] - spring[0]).total_seconds() == (31 * 24 - 1) * 3600
    assert (autumn[1] - autumn[0]).total_seconds() == (31 * 24 + 1) * 3600
    assert Scenario(month="2026-12").month_span()[1] == datetime(2027, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "values",
    [
        {"node_lead_s": -1}, {"ownership": "spot"}, {"price_usd_per_kwh": -0.1}, {"horizon_days": 0},
        {"purchase_lead_days": -1}, {"projects": " "},
    ],
)  # fmt: skip
def test_wrong_words_on_nodes_and_money_are_refused(values):
    with pytest.raises(ScenarioError, match=next(iter(values))):
        Scenario(**values)


def test_what_a_scenario_says_of_its_nodes_reaches_the_path():
    said = Scenario(path="autoscaler", node_lead_s=90, ownership="owned").abilities("T4")
    assert (said.path, said.boot.value, said.returns) == ("autoscaler", 90.0, "idled")
    # The inventory's word counts only where the scenario has none.
    assert Scenario().abilities(ownership="on_demand").returns == "returned"
    assert Scenario(ownership="owned").abilities(ownership="on_demand").returns == "idled"


def test_projects_are_found_beside_the_file(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("projects: projects.yaml\nownership: owned\n")
    found = Scenario.from_yaml(path)
    assert found.projects == str(tmp_path / "projects.yaml")
    assert found.ownership == "owned"
    assert Scenario().with_text(["node_lead_s=45"]).node_lead_s == 45.0


def test_a_key_of_a_newer_version_says_so():
    with pytest.raises(ScenarioError, match=r"unknown 'quantum_nodes'.*needs that version, this is \d+\.\d+"):
        Scenario.from_dict({"quantum_nodes": 3})


def test_own_data_are_not_called_the_sample(tmp_path):
    path = tmp_path / "october.yaml"
    path.write_text("data: clusters/north\n")
    assert Scenario.from_yaml(path).name == "north"
    path.write_text("data: clusters/north\nname: ours\n")
    assert Scenario.from_yaml(path).name == "ours"
    path.write_text("seed: 2\n")
    assert Scenario.from_yaml(path).name == Scenario().name
