"""The smallest profile that is fast enough, against a search by hand."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.errors import SchemaError
from gpuplanner.lab.speed import smallest_fast_enough
from gpuplanner.sizing.speed import default_model

BOARD = "H100-80GB-SXM5"


def speeds(**facts):
    return default_model().predict(
        pl.DataFrame({"job_class": ["a"]} | {name: [value] for name, value in facts.items()}), BOARD
    )


@settings(max_examples=40)
@given(st.floats(0.01, 1.2), st.floats(0, 1), st.sampled_from([1.0, 15.0, 30.0, 60.0]))
def test_it_is_the_first_in_order_that_fits_and_is_fast_enough_at_its_lower_bound(wanted, power, memory_gib):
    table = speeds(power_share=power, memory_gib=memory_gib)
    found = smallest_fast_enough(
        table.reverse(), pl.DataFrame({"job_class": ["a"], "wanted_speed": wanted}), BOARD
    )
    by_hand = next((row["profile"] for row in table.to_dicts() if row["speed_low"] >= wanted), None)
    assert found["profile"].to_list() == [by_hand]


def test_a_deadline_is_a_speed_and_the_stricter_counts():
    needs = pl.DataFrame(
        {"job_class": ["a"], "whole_gpu_h": [2.0], "deadline_h": [4.0], "wanted_speed": [0.3]}
    )
    found = smallest_fast_enough(speeds(power_share=0.5), needs, BOARD).row(0, named=True)
    assert found["wanted"] == 0.5
    assert found["speed_low"] >= 0.5
    strict = smallest_fast_enough(speeds(power_share=0.5), needs.with_columns(wanted_speed=1.0), BOARD)
    assert strict["wanted"].item() == 1.0


def test_what_no_profile_reaches_stays_open():
    needs = pl.DataFrame({"job_class": ["a"], "whole_gpu_h": [8.0], "deadline_h": [4.0]})
    assert smallest_fast_enough(speeds(), needs, BOARD).row(0) == ("a", 2.0, None, None, None, None)


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        ({"job_class": ["a"], "wanted_speed": [0.0]}, "wanted_speed"),
        ({"job_class": ["a"], "deadline_h": [1.0]}, "deadline h go together"),
        ({"job_class": ["a"]}, "something is wanted"),
        ({"job_class": ["b"], "wanted_speed": [0.5]}, "classes with a row in speeds.*'b'"),
        ({"job_class": ["a", "a"], "wanted_speed": [0.5, 0.6]}, "primary key"),
    ],
)
def test_bad_needs_are_refused(needs, said):
    with pytest.raises(SchemaError, match=said):
        smallest_fast_enough(speeds(), pl.DataFrame(needs), BOARD)


def test_speeds_of_another_board_or_without_columns_are_refused():
    needs = pl.DataFrame({"job_class": ["a"], "wanted_speed": [0.5]})
    with pytest.raises(SchemaError, match="profiles of the board"):
        smallest_fast_enough(speeds(), needs, "A30-24GB")
    with pytest.raises(SchemaError, match="columns 'speed_low'"):
        smallest_fast_enough(speeds().drop("speed_low"), needs, BOARD)
