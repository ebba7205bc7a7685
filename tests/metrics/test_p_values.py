"""Holm's correction and p-values against tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.metrics import holm, paired_p_value, student_t


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("degrees", [1, 2, 9, 30])
def test_p_values_are_the_inverse_of_the_quantiles(degrees, level):
    t = student_t((1 + level) / 2, degrees)
    spread = np.resize([1.0, -1.0], degrees + 1)
    spread -= spread.mean()
    spread /= np.std(spread, ddof=1) / np.sqrt(degrees + 1)  # standard error 1
    assert paired_p_value(np.zeros(degrees + 1), spread + t) == pytest.approx(1 - level, rel=1e-9)


def test_p_values_without_spread():
    assert paired_p_value([1.0, 2.0], [1.0, 2.0]) == 1.0
    assert paired_p_value([1.0, 2.0], [2.0, 3.0]) == 0.0
    assert paired_p_value([1.0], [2.0]) is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_holm_lies_between_the_raw_and_bonferroni(values):
    raw = np.array(values)
    adjusted = holm(raw)
    assert (adjusted >= raw).all()
    assert (adjusted <= np.minimum(raw * len(raw), 1.0) + 1e-12).all()
    order = np.argsort(raw, kind="stable")
    assert (np.diff(adjusted[order]) >= 0).all()


def test_holm_published_example():
    """Four p-values at 5 %: 0.01, 0.04, 0.03, 0.005 reject the fourth and the first (Holm's procedure)."""
    assert holm(np.array([0.01, 0.04, 0.03, 0.005])).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
