"""Student's t against printed tables, and intervals against their promise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpuplanner.simulator.replications import compare_paired, mean_interval, student_t

# Upper quantiles as printed in Abramowitz & Stegun, table 26.10, and NIST/SEMATECH e-Handbook 1.3.6.7.2.
TABLE = {
    (0.95, 1): 6.314, (0.975, 1): 12.706, (0.995, 1): 63.657,
    (0.95, 2): 2.920, (0.975, 2): 4.303, (0.995, 2): 9.925,
    (0.90, 5): 1.476, (0.975, 5): 2.571, (0.999, 5): 5.893,
    (0.95, 9): 1.833, (0.975, 9): 2.262, (0.995, 9): 3.250,
    (0.95, 19): 1.729, (0.975, 19): 2.093, (0.995, 19): 2.861,
    (0.975, 30): 2.042, (0.975, 60): 2.000, (0.975, 100): 1.984,
}  # fmt: skip


@pytest.mark.parametrize(("probability", "degrees"), TABLE)
def test_quantiles_equal_the_printed_ones(probability, degrees):
    assert round(student_t(probability, degrees), 3) == TABLE[probability, degrees]
    assert student_t(1 - probability, degrees) == pytest.approx(-student_t(probability, degrees))


def test_many_degrees_are_the_normal_distribution():
    assert student_t(0.975, 100_001) == pytest.approx(1.959963985, abs=3e-5)


def test_closed_forms():
    # One degree is Cauchy's distribution; for two the quantile is (2p - 1) / sqrt(2 p (1 - p)).
    for probability in (0.6, 0.9, 0.999):
        assert student_t(probability, 1) == pytest.approx(math.tan(math.pi * (probability - 0.5)), rel=1e-12)
        two = (2 * probability - 1) / math.sqrt(2 * probability * (1 - probability))
        assert student_t(probability, 2) == pytest.approx(two, rel=1e-12)


def test_intervals_hold_the_mean_as_often_as_they_say():
    rng = np.random.default_rng(11)
    samples = rng.normal(3.0, 2.0, (4000, 6))
    hits = sum(found.low <= 3.0 <= found.high for found in map(mean_interval, samples))
    # Binomial, three standard deviations around 95 %.
    assert abs(hits / 4000 - 0.95) < 3 * math.sqrt(0.95 * 0.05 / 4000)


def test_pairing_removes_what_both_policies_share():
    rng = np.random.default_rng(4)
    hard_weeks = rng.normal(1000.0, 300.0, 20)
    gain = rng.normal(-50.0, 10.0, 20)
    found = compare_paired(hard_weeks, hard_weeks + gain)
    assert found.difference.mean == pytest.approx(gain.mean())
    assert found.difference.high < 0
    assert found.difference.high - found.difference.low < 12
    assert found.ratio == pytest.approx((hard_weeks + gain).mean() / hard_weeks.mean())
