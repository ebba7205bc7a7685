"""The law against its own definition, its limits, and Amdahl's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.sizing.mig_speed_law import MAX_LOG_BOUNDNESS, SpeedLaw

sharpness = st.floats(0.8, 8.0)
limits = st.floats(0.1, 0.9)
boundness = st.floats(-1.0, 1.0)


def of(q):
    return SpeedLaw((0.25, 1.0), (0.3, 1.0), q)


@given(sharpness, limits, boundness)
def test_speed_is_the_ratio_of_two_smooth_minima_of_the_rates(q, limit, log_u):
    host_rate, gpu_rate = np.exp(log_u), 1.0  # in units of the GPU's rate

    def throughput(gpu):
        return (host_rate**-q + gpu**-q) ** (-1 / q)

    expected = throughput(gpu_rate * limit) / throughput(gpu_rate)
    assert of(q).speed(log_u, limit) == pytest.approx(expected, rel=1e-9)


@given(limits, boundness)
def test_with_sharpness_1_it_is_the_law_of_amdahl(limit, log_u):
    gpu_share = np.exp(log_u) / (1 + np.exp(log_u))
    assert of(1.0).speed(log_u, limit) == pytest.approx(1 / (1 - gpu_share + gpu_share / limit))


@given(sharpness, limits, boundness)
def test_boundness_is_found_again_from_the_speed(q, limit, log_u):
    law = of(q)
    assert law.speed(law.from_speed(law.speed(log_u, limit), limit), limit) == pytest.approx(law.speed(log_u, limit))


@given(sharpness, st.floats(0.001, 0.1), st.floats(1e-4, 1e-2), st.integers(1, 64), st.integers(65, 512))
def test_boundness_is_found_from_two_batch_sizes(q, host_s, per_item_s, batch, other):
    def step_s(size):
        return (host_s**q + (size * per_item_s) ** q) ** (1 / q)

    law = of(q)
    true = np.clip(np.log(batch * per_item_s / host_s), -MAX_LOG_BOUNDNESS, MAX_LOG_BOUNDNESS)
    for one, two in ((batch, other), (other, batch)):
        found = law.boundness_from_batch_times(one, step_s(one), two, step_s(two))
        expected = (
            true
            if one == batch
            else np.clip(np.log(other * per_item_s / host_s), -MAX_LOG_BOUNDNESS, MAX_LOG_BOUNDNESS)
        )
        assert law.speed(found, 0.3) == pytest.approx(law.speed(expected, 0.3), rel=1e-3)


@given(sharpness, limits)
def test_bound_by_the_host_nothing_is_lost_and_by_the_slice_all_but_the_limit(q, limit):
    assert of(q).speed(-np.inf, limit) == 1
    assert of(q).speed(np.inf, limit) == pytest.approx(limit)


def test_a_larger_slice_is_never_slower_nor_a_more_bound_job_faster():
    law = of(3.8)
    speeds = law.speed(np.linspace(-2, 2, 41)[:, None], law.limit(np.linspace(0.05, 1, 39)))
    assert (np.diff(speeds, axis=1) >= 0).all()
    assert (np.diff(speeds, axis=0) <= 0).all()


def test_limits_pass_through_what_was_measured():
    law = SpeedLaw(fractions=(1 / 7, 2 / 7, 3 / 7, 4 / 7, 1.0), limits=(0.16, 0.31, 0.5, 0.6, 1.0), sharpness=3.0)
    assert law.limit(law.fractions) == pytest.approx(law.limits)
    assert law.limit(1 / 14) == pytest.approx(law.limits[0] / 2)


def test_noise_that_no_law_allows_ends_at_the_bounds():
    law = of(4.0)
    assert law.from_speed(1.08, 0.3) == -MAX_LOG_BOUNDNESS
    assert law.from_speed(0.1, 0.3) == MAX_LOG_BOUNDNESS
    assert law.boundness_from_batch_times(8, 0.02, 64, 0.019) == -MAX_LOG_BOUNDNESS
