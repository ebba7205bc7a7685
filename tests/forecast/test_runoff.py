"""Sample paths of demand: theory of the infinite-server queue, sums, and nothing of the future in sight."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.forecast import run_off as runoff
from gpuplanner.forecast.run_off import (
    BLOCK_DIFFERENCE_SCALE,
    BLOCK_HALF_LIFE_H,
    RUN_OFF_SAMPLE_PATHS,
    _block_starts,
    lay_out_run_off,
    mean_occupancy,
)
from gpuplanner.usage.requested_demand import demand_series

MONDAY = datetime(2026, 1, 5, tzinfo=UTC)


def jobs_of(submit_h, wait_h, run_h, *, tenant="a", gpus=1.0, now_h=np.inf, limit_s=None):
    """Jobs table from hours since Monday, as it stands at ``now_h``."""
    begin, end = np.asarray(submit_h) + wait_h, np.asarray(submit_h) + wait_h + run_h

    def times(hours):
        return [None if hour > now_h else MONDAY + timedelta(hours=float(hour)) for hour in hours]

    state = np.select([end <= now_h, begin <= now_h], ["COMPLETED", "RUNNING"], "PENDING")
    return pl.DataFrame(
        {
            "job_id": [f"{number:06d}" for number in range(len(begin))],
            "attempt": 1,
            "tenant": tenant,
            "submit_time": times(submit_h),
            "start_time": times(begin),
            "end_time": times(end),
            "state": state,
            "gpus": gpus,
            "time_limit_s": limit_s,
        },
        schema_overrides={"gpus": pl.Float64, "time_limit_s": pl.Float64},
    )


def poisson(rate_h, hours, rng):
    return np.sort(rng.uniform(0, hours, rng.poisson(rate_h * hours)))


@pytest.mark.parametrize("law", ["exponential", "uniform"])
def test_mean_and_variance_of_the_infinite_server_queue(law):
    """M/G/infinity: survivors are independent coins, arrivals Poisson thinned by S; the sum has both variances."""
    rate, mean, ahead = 8.0, 6.0, 30
    fine = np.linspace(0, ahead, 30 * 60 + 1)
    alive = np.exp(-fine / mean) if law == "exponential" else np.clip(1 - fine / (2 * mean), 0, 1)
    means, variances, true_means, true_variances = [], [], [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        submit = poisson(rate, 24 * 60 + ahead, rng)
        run = rng.exponential(mean, len(submit)) if law == "exponential" else rng.uniform(0, 2 * mean, len(submit))
        known = lay_out_run_off(jobs_of(submit, 0.0, run), start=MONDAY)
        now = 24 * 60
        running, coming = known.split_paths(["a"], now, ahead, seed=1)
        age = (now - submit)[(submit < now) & (submit + run > now)]
        chance = np.array(
            [np.interp(age + hour, fine, alive, right=0) / np.interp(age, fine, alive) for hour in range(ahead)]
        )
        thinned = rate * np.array(
            [np.trapezoid(alive[: 60 * hour + 1], fine[: 60 * hour + 1]) for hour in range(ahead)]
        )
        # A slot holds the mean of an hour; at its edges stand the instants that theory speaks of.
        means.append(((running + coming)[0, :, :-1] + (running + coming)[0, :, 1:]).mean(axis=0)[1::4] / 2)
        true_means.append((chance.sum(axis=1) + thinned)[2::4])
        variances.append((running + coming)[0].var(axis=0)[2::4])
        true_variances.append(((chance * (1 - chance)).sum(axis=1) + thinned)[2::4])
    assert np.mean(means, axis=0) == pytest.approx(np.mean(true_means, axis=0), rel=0.05)
    # The mean of an hour varies less than an instant does, by up to a sixth of an hour over the mean run.
    assert np.mean(variances, axis=0) == pytest.approx(np.mean(true_variances, axis=0), rel=0.2)


def test_demand_that_is_known_is_what_the_series_of_the_clock_wanted_counts():
    rng = np.random.default_rng(1)
    submit = poisson(2.0, 240, rng)
    table = jobs_of(submit, rng.exponential(2.0, len(submit)), rng.exponential(9.0, len(submit)), gpus=2.0, now_h=240)
    series = demand_series(
        table.with_columns(profile=pl.lit("gpu"), instances=pl.col("gpus").cast(pl.Int64)),
        start=MONDAY,
        end=MONDAY + timedelta(hours=240),
        clock="wanted",
    )
    over = table.filter(pl.col("end_time").is_not_null())
    seen = lay_out_run_off(table, start=MONDAY).demand_before(["a"], 240)[0]
    # A job that runs is taken to be wanted up to the origin; the series ends it as long before as it waited.
    gaps = seen - series["y"].to_numpy()
    assert gaps[:180] == pytest.approx(0.0, abs=1e-9)
    assert gaps.min() > -1e-9
    counted = over.select((pl.col("gpus") * (pl.col("end_time") - pl.col("start_time")).dt.total_microseconds()).sum())
    assert lay_out_run_off(over, start=MONDAY).demand_before(["a"], 240).sum() == pytest.approx(counted.item() / 3.6e9)


def test_a_queue_is_part_of_what_is_wanted_and_its_wait_is_taken_off():
    rng = np.random.default_rng(2)
    done = jobs_of(np.arange(0, 200, 0.25), 0.0, rng.exponential(10.0, 800), now_h=240)
    waiting = jobs_of(np.full(50, 239.0), 100.0, 10.0, now_h=240).with_columns(job_id="w" + pl.col("job_id"))
    jobs = pl.concat([done, waiting])
    running, _ = lay_out_run_off(jobs, start=MONDAY).split_paths(["a"], 240, 40, seed=1)
    # Fifty jobs with mean 10 h, of which an hour has passed while they waited.
    hours = running.mean(axis=1).sum()
    assert hours == pytest.approx(50 * 10 * np.exp(-0.1), rel=0.15)


def test_a_time_limit_ends_a_job():
    jobs = jobs_of(np.array([0.0]), 0.0, 99.0, now_h=24, limit_s=26 * 3600.0)
    running, _ = lay_out_run_off(jobs, start=MONDAY).split_paths(["a"], 24, 6, seed=1)
    assert running[0, :, 2:].max() == 0
    assert running[0, :, 0].max() == 1


def with_total(known):
    """Add the series ``all``, the sum of the others."""
    return replace(known, totals={"all": tuple(range(len(known.names)))})


@pytest.mark.parametrize("queued", [False, True])
def test_nothing_after_the_origin_is_seen(queued):
    rng = np.random.default_rng(3)
    submit = poisson(3.0, 600, rng)
    wait = rng.exponential(3.0, len(submit)) * queued
    run = rng.lognormal(1.0, 1.5, len(submit))
    tenant = rng.choice(["a", "b"], len(submit)).tolist()
    for origin in range(100, 600, 50):
        begin, end = submit + wait, submit + wait + run
        late, open_then = submit >= origin, (begin < origin) & (end > origin)
        other_run = np.where(open_then, origin - begin + rng.exponential(50, len(run)), run)
        other_run[begin >= origin] = rng.exponential(9, (begin >= origin).sum())
        other_wait = np.where(late | (begin < origin), wait, origin - submit + rng.exponential(9, len(run)))
        other_submit = submit.copy()
        other_submit[late] = np.sort(rng.uniform(origin, 900, late.sum()))
        one = with_total(lay_out_run_off(jobs_of(submit, wait, run, tenant=tenant), start=MONDAY))
        other_jobs = jobs_of(other_submit, other_wait, other_run, tenant=tenant)
        two = with_total(lay_out_run_off(other_jobs, start=MONDAY))
        names = ["a", "b", "all"]
        assert one.demand_before(names, origin).tobytes() == two.demand_before(names, origin).tobytes()
        assert one.draws(names, origin, 30, 1).tobytes() == two.draws(names, origin, 30, 1).tobytes()


def test_paths_of_a_fleet_are_the_sums_of_its_tenants_and_draws_do_not_depend_on_who_is_asked():
    rng = np.random.default_rng(4)
    submit = poisson(3.0, 600, rng)
    tenant = rng.choice(["a", "b", "c"], len(submit)).tolist()
    jobs = jobs_of(submit, 0.0, rng.exponential(5, len(submit)), tenant=tenant)
    known = with_total(lay_out_run_off(jobs, start=MONDAY))
    paths = known.draws(["a", "b", "c", "all"], 500, 24, seed=1)
    assert (paths[:3].sum(axis=0) == paths[3]).all()
    assert (known.draws(["b"], 500, 24, seed=1)[0] == paths[1]).all()
    assert (known.draws(["b"], 500, 24, seed=2)[0] != paths[1]).any()
    assert paths.shape == (4, RUN_OFF_SAMPLE_PATHS, 24)


@given(st.lists(st.tuples(st.floats(-5, 15), st.floats(-1, 12), st.integers(1, 8)), min_size=1, max_size=20))
@settings(deadline=None)
def test_occupancy_is_the_integral_of_what_is_held(spans):
    begin = np.array([one[0] for one in spans])
    end, size = begin + np.array([one[1] for one in spans]), np.array([float(one[2]) for one in spans])
    held = mean_occupancy(begin, end, size, np.zeros(len(spans), dtype=np.int64), 1, 10)[0]
    edges = np.arange(10)
    brute = (
        np.clip(np.minimum(end[:, None], edges + 1) - np.maximum(begin[:, None], edges), 0, 1) * size[:, None]
    ).sum(0)
    assert held == pytest.approx(brute, abs=1e-8)


def test_a_short_past_is_repeated_day_by_day_and_no_past_gives_no_block():
    """Two days ahead with three days behind: each of the two days may repeat a day of its own."""
    assert _block_starts(72, 48, 1.0).shape[0] == 2
    assert _block_starts(72 * 24, 48, 1.0).shape[0] == 1
    assert _block_starts(0, 48, 1.0).size == 0


def test_days_with_as_much_running_as_now_are_likelier_to_come_again():
    """Of two past weeks without arrivals one had 100 GPUs running as now: it weighs e to the load's distance more."""
    jobs = jobs_of([0.0, 600.0], 0.0, np.array([240.0, 200.0]), gpus=100.0, now_h=672.0)
    known = lay_out_run_off(jobs, start=MONDAY).as_of(672)
    busy, idle = known._block_weights(672.0, 24, np.array([[168.0, 336.0]]))[0]
    older = 0.5 ** ((336.0 - 168.0) / BLOCK_HALF_LIFE_H)
    assert busy / idle == pytest.approx(older * np.exp(np.log1p(100 / 24) / BLOCK_DIFFERENCE_SCALE))


def test_paths_do_not_depend_on_how_many_jobs_are_laid_out_at_a_time(monkeypatch):
    rng = np.random.default_rng(3)
    submit = np.sort(rng.uniform(0, 24 * 40, 600))
    known = lay_out_run_off(jobs_of(submit, np.zeros(600), rng.exponential(20, 600), now_h=24 * 40), start=MONDAY)
    at_once = known.draws(["a"], 24 * 40, 48, 1)
    monkeypatch.setattr(runoff, "MAX_BLOCK_JOBS", 7)
    assert np.array_equal(known.draws(["a"], 24 * 40, 48, 1), at_once)
