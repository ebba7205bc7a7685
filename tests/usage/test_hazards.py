"""Hazards of run times: known laws are found again, with jobs that still run counted as censored."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest

from gpuplanner.core.errors import SchemaError
from gpuplanner.usage.run_time_hazards import JOB_AGE_BIN_WIDTHS_H, JOB_AGE_EDGES_H, fit_hazards, remaining_run_time

JOBS = 20_000


def censored(law_h, seed, share=0.3):
    """Run times seen up to exponential times at which about that share still runs."""
    rng = np.random.default_rng(seed)
    low, high = 1e-3, 1e6
    unit = rng.exponential(size=len(law_h))
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if (unit * middle < law_h).mean() > share else (low, middle)
    seen = unit * low
    return np.minimum(law_h, seen), law_h <= seen


def survival(law, age_h, more_h):
    """Probability that a job that has run for `age_h` runs for `more_h` more."""
    kind = np.zeros(len(age_h), dtype=np.int64)
    return np.exp(law.used(kind, age_h) - law.used(kind, age_h + more_h))


def survival_error(law, age_h):
    """Standard error of the probability to reach one age, from the number of ends that were seen."""
    inside = np.clip(age_h - JOB_AGE_EDGES_H[:-1], 0.0, JOB_AGE_BIN_WIDTHS_H)
    variance = (inside**2 * law.rate[0] / law.seen_h[0]).sum()
    return survival(law, np.zeros(1), age_h)[0] * math.sqrt(variance)


@pytest.mark.parametrize("shape", [0.5, 1.0, 2.0])
def test_a_known_weibull_law_is_found_with_three_tenths_censored(shape):
    ran, ended = censored(12.0 * np.random.default_rng(1).weibull(shape, JOBS), seed=2)
    assert ended.mean() == pytest.approx(0.7, abs=0.01)
    law = fit_hazards(ran, ended)
    for quantile in (0.1, 0.25, 0.5, 0.75):
        age = 12.0 * (-math.log1p(-quantile)) ** (1 / shape)
        found = survival(law, np.zeros(1), age)[0]
        error = survival_error(law, age)
        assert error < 0.01
        # Within a bin, which is a fifth of the age wide, the hazard is taken to be constant.
        assert found == pytest.approx(1 - quantile, abs=4 * error + 0.003)


def test_a_known_mixture_is_found_and_long_jobs_run_on_as_the_long_part_does():
    rng = np.random.default_rng(3)
    means = np.where(rng.random(JOBS) < 0.8, 0.5, 50.0)
    ran, ended = censored(rng.exponential(means), seed=4)
    law = fit_hazards(ran, ended)
    zero = np.array([0])
    for age in (0.1, 1.0, 5.0, 20.0, 80.0):
        true = 0.8 * math.exp(-age / 0.5) + 0.2 * math.exp(-age / 50.0)
        error = survival_error(law, age)
        assert survival(law, np.zeros(1), age)[0] == pytest.approx(true, abs=3 * error + 0.003)
    assert law.remaining(zero, np.array([10.0]), np.array([[math.log(2)]]))[0, 0] > 20


def test_leaving_running_jobs_out_would_shorten_what_remains():
    ran, ended = censored(np.random.default_rng(5).exponential(10.0, JOBS), seed=6)
    zero = np.array([0])
    half = np.array([math.log(2)])
    whole = fit_hazards(ran, ended).remaining(zero, np.zeros(1), half)[0]
    only = fit_hazards(ran[ended], ended[ended]).remaining(zero, np.zeros(1), half)[0]
    assert whole == pytest.approx(10.0 * math.log(2), rel=0.05)
    assert only < 0.8 * whole


def test_draws_quantiles_and_mean_of_what_remains_agree():
    ran, ended = censored(np.random.default_rng(7).exponential(4.0, JOBS), seed=8)
    law = fit_hazards(ran, ended)
    kind, age = np.zeros(3, dtype=np.int64), np.array([0.0, 1.0, 9.0])
    drawn = law.remaining(kind, age, np.random.default_rng(9).exponential(size=(20_000, 3)))
    fine = np.geomspace(1e-4, 1e5, 20_000)
    area = [np.trapezoid(survival(law, np.array([one]), fine), fine) for one in age]
    assert law.mean_remaining(kind, age) == pytest.approx(area, rel=0.01)
    middle = law.remaining(kind, age, np.full(3, math.log(2)))
    assert np.median(drawn, axis=0) == pytest.approx(middle, rel=0.05)
    assert survival(law, age, middle) == pytest.approx([0.5] * 3)


def test_a_class_without_an_end_runs_like_its_group_and_not_for_ever():
    ran, ended = np.full(1001, 2.0), np.ones(1001, dtype=bool)
    ended[-1] = False
    group = np.zeros(1001, dtype=np.int64)
    group[-1] = 1
    law = fit_hazards(ran, ended, [group])
    both = law.mean_remaining(np.array([0, 1]), np.zeros(2))
    assert both[0] == pytest.approx(2.0, rel=0.2)
    assert both[0] < both[1] < 20


def test_what_remains_is_told_for_jobs_that_run_alone():
    jobs = pl.DataFrame(
        {"ran_h": [3.0] * 40 + [30.0] * 40 + [5.0], "ended": [True] * 80 + [False], "gpus": 1.0, "tenant": "a"}
    )
    found = remaining_run_time(jobs, levels=(0.5,), by=("tenant",))
    assert found["remaining_h"].null_count() == 80
    assert found["remaining_q50_h"][-1] == pytest.approx(25.0, rel=0.2)
    with pytest.raises(SchemaError, match="hours of at least 0"):
        remaining_run_time(jobs.with_columns(ran_h=-pl.col("ran_h")))
