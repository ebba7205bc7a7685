"""A field is one row: what it says of itself is what errors, help, controls and pages say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.cli.application import field_option
from gpuplanner.core.errors import GpuPlannerError
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.setting_rules_and_controls import DropDown, Slider, settings_of

ROWS = settings_of(Scenario)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_row_is_whole(row):
    assert row.group
    assert row.meaning.endswith((".", "?", ")"))
    assert row.default_text != "None"
    assert row.cast_value(row.default) == row.default
    assert row.meets_rule(row.default, Scenario())
    assert row.default is not None or row.none
    assert f"{row.name} : {row.types}, default: {row.default_text}" in Scenario.__doc__
    option = field_option(row.name)
    assert row.default_text in option.help.replace("`", "") or "`" in row.default_text
    assert row.unit in option.help
    assert all(choice in option.help for choice in (row.rule.options() if row.rule else ()))


@pytest.mark.parametrize("row", [row for row in ROWS.values() if row.control], ids=lambda row: row.name)
def test_a_control_asks_for_what_the_rule_allows(row):
    whole = Scenario()
    if isinstance(row.control, Slider):
        assert row.control.low < row.control.high
        assert all(row.meets_rule(end, whole) for end in (row.control.low, row.control.high))
    else:
        assert isinstance(row.control, DropDown)
        assert all(row.meets_rule(option, whole) for option in row.rule.options())


@given(st.sampled_from(sorted(ROWS)), st.one_of(st.none(), st.integers(-9, 9), st.floats(), st.text(max_size=9)))
def test_a_refusal_names_the_field_and_its_rule(name, value):
    row = ROWS[name]
    try:
        made = Scenario(**{name: value})
    except GpuPlannerError as fault:
        words = (f"{name} of type {row.types}", row.rule.words if row.rule else "gpu_model")
        said = str(fault)
    else:
        words, said = (name,), name
        assert getattr(made, name) == value
    assert any(text in said for text in words)


def test_text_is_read_by_the_type_of_its_row():
    read = Scenario().with_text(
        ["gpu_mtbf_hours=observed", "max_added_wait_minutes=5", "month=null", "name=007", "policies=on"]
    )
    assert (read.gpu_mtbf_hours, read.max_added_wait_minutes) == ("observed", 5.0)
    assert (read.month, read.name, read.policies) == (None, "007", "on")
    assert Scenario().with_text(['tz="Europe/Oslo"', "actuator='nvidia-smi'"]) == Scenario(
        tz="Europe/Oslo", actuator="nvidia-smi"
    )
