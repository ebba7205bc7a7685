"""A scenario is checked whole, survives YAML, and names what is wrong."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner import decide
from gpuplanner.cli.application import ScenarioOptions, scenario_beside
from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.hardware.actuators import find_scenario_abilities


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
        {"month": "2026-00"}, {"currency": "usd"}, {"pue": 0.5}, {"name": " "}, {"interval_hours": 0.0},
    ],
)  # fmt: skip
def test_wrong_values_are_refused(values):
    with pytest.raises(ScenarioError, match=next(iter(values))):
        Scenario(**values)


def test_data_is_found_beside_the_file(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("data: trace\n")
    assert Scenario.from_yaml(path).data == str(tmp_path / "trace")


def test_what_is_played_forgets_prices_alone():
    moved = Scenario(seed=5, quantile=0.6, price_per_gpu_hour=9, currency="EUR", pue=1.2)
    assert moved.without_prices() == Scenario(seed=5, quantile=0.6)


def test_months_are_local_calendar_months():
    spring, autumn = (Scenario(month=m, tz="Europe/Berlin").month_span() for m in ("2026-03", "2026-10"))
    # March loses an hour and October gains one; December runs into the next year.
    assert (spring[1] - spring[0]).total_seconds() == (31 * 24 - 1) * 3600
    assert (autumn[1] - autumn[0]).total_seconds() == (31 * 24 + 1) * 3600
    assert Scenario(month="2026-12").month_span()[1] == datetime(2027, 1, 1, tzinfo=UTC)


def test_what_a_scenario_says_of_its_nodes_reaches_the_path():
    said = find_scenario_abilities(Scenario(actuator="autoscaler", node_lead_s=90, ownership="owned"), "T4")
    assert (said.actuator, said.boot.value, said.returns) == ("autoscaler", 90.0, "idled")
    # The inventory's word counts only where the scenario has none.
    assert find_scenario_abilities(Scenario(), ownership="on_demand").returns == "returned"
    assert find_scenario_abilities(Scenario(ownership="owned"), ownership="on_demand").returns == "idled"


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Scenario(wait_minute=5), ScenarioError, "did you mean 'max_added_wait_minutes'"),
        (lambda: Scenario("sample"), ScenarioError, "Write Scenario(name='sample')."),
        (lambda: Scenario(nodes="4"), ScenarioError, "nodes of type int; got '4'"),
        (lambda: Scenario.from_dict({"path": "slurm"}), ScenarioError,
         "made by an earlier version: 'path' is now 'actuator'"),
        (lambda: decide(5), TypeError, "a name, a folder, a cluster, a scenario or a study; got 5: write for example"),
    ],
)  # fmt: skip
def test_mistakes_of_users_are_answered_with_one_sentence_and_a_suggestion(make, error, text):
    with pytest.raises(error) as raised:
        make()
    assert text in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"month": "2026-13"}, "--month: expected YYYY-MM from 1900-01 to 9000-12; got '2026-13'. Fix --month."),
        ({"tz": "Berlin"}, "--tz: expected a time zone, such as Europe/Berlin; got 'Berlin'. Fix --tz."),
    ],
)
def test_a_wrong_option_is_named_as_it_was_typed(fields, message):
    with pytest.raises(ScenarioError) as caught:
        ScenarioOptions(fields).apply_to(Scenario())
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "month", ["9999-12", "9999-11", "0000-01", "0001-01", "2026-13", "2026-2", "２０２６-02", "1899-12"]
)
def test_months_at_the_edge_of_the_calendar_are_refused(month):
    with pytest.raises(ScenarioError, match="month YYYY-MM from 1900-01 to 9000-12"):
        Scenario(month=month)


@pytest.mark.parametrize("month", ["1900-01", "9000-12"])
@pytest.mark.parametrize("tz", ["UTC", "Pacific/Kiritimati", "Etc/GMT+12"])
def test_months_that_are_accepted_have_a_begin_and_an_end(month, tz):
    begin, end = Scenario(month=month, tz=tz).month_span()
    assert 27 < (end - begin).days < 32


def test_a_scenario_beside_a_dataset_counts_only_if_start_wrote_it(tmp_path):
    """Any ``scenario.yaml`` may lie beside a dataset: that of another study, or one that is not whole."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "provenance.json").write_text("{}")
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("data: data\nseed: 7\n")
    assert scenario_beside(data) is None
    (tmp_path / "manifest.json").write_text('{"format": "gpuplanner report 1", "files": {"scenario.yaml": "0"}}')
    assert scenario_beside(data).seed == 7
    scenario.write_text("data: elsewhere\n")
    assert scenario_beside(data) is None
