"""Sums over slots against a tick-by-tick count, and grids that are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import SchemaError
from gpuplanner.core.step_functions import count_intervals, sum_overlap_by_interval

MONDAY = datetime(2026, 2, 2, tzinfo=UTC)
SPANS = st.lists(
    st.tuples(st.integers(-15, 60), st.integers(-15, 60), st.integers(0, 9), st.integers(0, 2)), max_size=12
)


@settings(deadline=None)
@given(spans=SPANS, slot=st.integers(1, 7), slots=st.integers(1, 6))
def test_sums_equal_a_count_of_every_tick(spans, slot, slots):
    expected = np.zeros((3, slots), dtype=np.int64)
    for begin, end, weight, group in spans:
        for tick in range(max(begin, 0), min(end, slot * slots)):
            expected[group, tick // slot] += weight
    begin, end, weight, group = np.array(spans, dtype=np.int64).reshape(-1, 4).T
    sums = sum_overlap_by_interval(begin, end, weight, group, n_groups=3, n_intervals=slots, interval_ticks=slot)
    assert sums.dtype == np.int64
    np.testing.assert_array_equal(sums, expected)
    fractions = sum_overlap_by_interval(
        begin, end, weight / 7, group, n_groups=3, n_intervals=slots, interval_ticks=slot
    )
    np.testing.assert_allclose(fractions, expected / 7, atol=1e-12)


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (MONDAY.replace(tzinfo=None), MONDAY.replace(tzinfo=None) + timedelta(days=1)),
        (MONDAY, MONDAY),
        (MONDAY, MONDAY + timedelta(minutes=90)),
        (MONDAY + timedelta(minutes=5), MONDAY + timedelta(minutes=65)),
    ],
    ids=["no zone", "empty", "part of a slot", "off the quarter"],
)
def test_what_is_not_a_grid_is_refused(start, end):
    with pytest.raises(SchemaError, match="start and end"):
        count_intervals(start, end, 1.0, source="demand")


def test_zones_with_odd_offsets_have_a_grid():
    india = timezone(timedelta(hours=5, minutes=30))
    midnight = datetime(2026, 2, 1, tzinfo=india)
    assert count_intervals(midnight, midnight + timedelta(days=28), 1.0, source="demand") == 672
