"""The made-up fleet has the shapes that published traces have."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from sample_generator import BOARD, SLICES, as_jobs, make_requests, make_samples

from gpuplanner.hardware.catalog import find_parameter
from gpuplanner.hardware.gpu_models import load_gpu_model

MONDAY = datetime(2026, 2, 2, tzinfo=UTC)


@pytest.fixture(scope="module")
def requests() -> pl.DataFrame:
    """Eight weeks of requests."""
    return make_requests(start=MONDAY, days=56, seed=7).with_columns(gpu_s=pl.col("gpus") * pl.col("run_s"))


def test_same_seed_same_jobs_and_another_seed_others(requests):
    again = make_requests(start=MONDAY, days=56, seed=7)
    assert again.equals(requests.drop("gpu_s"))
    assert not make_requests(start=MONDAY, days=56, seed=8).equals(again)


def test_two_jobs_in_five_fail_or_are_cancelled_and_mostly_early(requests):
    """Acme: about 40 % of the jobs fail; Philly: 60 % complete."""
    shares = requests.group_by("state").len().with_columns(pl.col("len") / requests.height)
    completed = shares.filter(state="COMPLETED")["len"].item()
    assert 0.5 < completed < 0.63
    lengths = requests.filter(job_class="evaluation").group_by("state").agg(pl.col("run_s").median())
    by_state = dict(lengths.iter_rows())
    assert by_state["FAILED"] < 0.5 * by_state["COMPLETED"]


def test_evaluation_is_most_jobs_and_pretraining_most_time_per_job(requests):
    """Acme: evaluation is the bulk of the jobs and little GPU time; pretraining is the reverse."""
    by_class = requests.group_by("job_class").agg(n=pl.len(), gpu_s=pl.col("gpu_s").sum())
    by_class = by_class.with_columns(pl.col("n", "gpu_s") / pl.col("n", "gpu_s").sum())
    share = {row["job_class"]: row for row in by_class.iter_rows(named=True)}
    assert share["evaluation"]["n"] > 0.6
    assert share["evaluation"]["gpu_s"] < 0.1
    assert share["pretraining"]["n"] < 0.01
    assert share["pretraining"]["gpu_s"] > 20 * share["pretraining"]["n"]


def test_run_times_are_minutes_in_the_median_and_hours_in_the_mean(requests):
    """Heavy right tail as in Philly, Helios and Acme, and one GPU asked for in nine jobs of ten."""
    assert 180 < requests["run_s"].median() < 900
    assert requests["run_s"].mean() > 8 * requests["run_s"].median()
    assert (requests["gpus"] == 1).mean() == pytest.approx(0.9, abs=0.02)
    assert set(requests["gpus"].unique()) <= {1, 2, 4, 8, 16}


def test_days_and_weeks_have_a_rhythm(requests):
    by_day = requests.group_by(pl.col("submit_time").dt.weekday()).len().sort("submit_time")["len"]
    assert by_day[5:].mean() < 0.7 * by_day[:5].mean()
    by_hour = requests.group_by(pl.col("submit_time").dt.hour()).len().sort("submit_time")["len"]
    assert 13 <= by_hour.arg_max() <= 17
    assert by_hour.max() > 3 * by_hour.min()


def test_half_ask_for_more_memory_than_they_fill(requests):
    """Three in five name a larger size; some of those differ in compute only (1g.20gb and 2g.20gb)."""
    gpu_model = load_gpu_model(BOARD)
    single = requests.filter((pl.col("gpus") == 1) & pl.col("memory_peak_gib").is_not_null())
    sizes = [gpu_model.profile(name).memory_gib for name in SLICES] + [gpu_model.profile("7g.80gb").memory_gib]
    # Memory fills 55 to 95 % of the needed slice, so at least that slice is asked for.
    held = [sizes[SLICES.index(name) if name else len(SLICES)] for name in single["profile_requested"].to_list()]
    assert (np.array(held) >= single["memory_peak_gib"].to_numpy()).all()
    smallest = [min(size for size in sizes if size >= used) for used in single["memory_peak_gib"]]
    assert 0.4 < (np.array(held) > np.array(smallest)).mean() < 0.6


def test_scale_multiplies_arrivals():
    once = make_requests(start=MONDAY, days=28, seed=3).height
    twice = make_requests(start=MONDAY, days=28, seed=3, scale=2.0).height
    assert twice / once == pytest.approx(2, rel=0.05)


def test_arrivals_are_a_poisson_process(requests):
    """Within an hour of the day, the counts of many working days have a variance near their mean."""
    hour = requests.filter((pl.col("job_class") == "evaluation") & (pl.col("submit_time").dt.weekday() <= 5)).filter(
        pl.col("submit_time").dt.hour() == 15
    )
    counts = hour.group_by(pl.col("submit_time").dt.date()).len()["len"]
    assert len(counts) == 40
    assert 0.5 < counts.var() / counts.mean() < 1.7


def test_what_has_not_happened_yet_is_not_told(requests):
    """A job still on the GPU at the end of the observation has no end, activity or peak."""
    end = MONDAY + timedelta(days=7)
    placed = requests.select(
        "job_id",
        start_time=pl.col("submit_time"),
        end_time=pl.col("submit_time") + pl.duration(seconds="run_s"),
        node_list=pl.lit("n01"),
        nodes=pl.lit(1, pl.Int32),
    )
    jobs = as_jobs(requests.drop("gpu_s"), placed, start=MONDAY, end=end)
    running = jobs.filter(pl.col("state") == "RUNNING")
    assert running.height > 0
    assert running.select("end_time", "sm_activity", "memory_peak_gib").null_count().sum_horizontal().item() == (
        3 * running.height
    )
    assert (jobs["end_time"].drop_nulls() <= end).all()
    assert (jobs["submit_time"] < end).all()


@pytest.fixture(scope="module")
def watched() -> pl.DataFrame:
    """One long job of each class, with telemetry."""
    names = ["pretraining", "fine-tuning", "evaluation", "inference", "interactive"]
    return pl.DataFrame(
        {
            "job_id": names,
            "job_class": names,
            "start_time": [MONDAY] * 5,
            "end_time": [MONDAY + timedelta(hours=20)] * 5,
            "node": ["n01"] * 5,
            "gpu": [0, 1, 2, 3, 4],
            "gpus": [8.0, 1.0, 1.0, 1.0, 1.0],
            "sm_activity": [0.6, 0.5, 0.2, 0.3, 0.1],
            "memory_peak_gib": [70.0, 40.0, 8.0, 30.0, 6.0],
        },
        schema_overrides={"start_time": pl.Datetime("us", "UTC"), "end_time": pl.Datetime("us", "UTC")},
    )


@pytest.fixture(scope="module")
def samples(watched) -> pl.DataFrame:
    return make_samples(watched, seed=5)


def test_one_sample_a_minute_with_the_activity_of_the_job(watched, samples):
    found = samples.group_by("job_id").agg(pl.len(), pl.col("sm_activity").mean())
    for name, count, activity in found.iter_rows():
        expected = watched.filter(job_id=name)["sm_activity"].item()
        assert count == 20 * 60
        # The clip at 1 takes a little from bursts.
        assert activity == pytest.approx(expected, rel=0.1)


def test_evaluation_idles_while_it_loads_and_while_it_scores(samples):
    """Acme: loading 29.5 % and metrics 19 % of the time, the GPU idle in both."""
    activity = samples.filter(job_id="evaluation").sort("time")["sm_activity"].to_numpy()
    idle = activity < 0.02
    assert idle.mean() == pytest.approx(0.295 + 0.19, abs=0.01)
    assert idle[: int(0.29 * len(idle))].all()
    assert idle[-int(0.18 * len(idle)) :].all()


def test_power_is_idle_without_work_and_below_the_limit_with_it(samples):
    idle_w = find_parameter("idle_fraction").value * 700
    quiet = samples.filter(pl.col("sm_activity") < 0.01)["power_w"]
    assert quiet.mean() == pytest.approx(idle_w, rel=0.05)
    busy = samples.filter(pl.col("sm_activity") > 0.3)["power_w"]
    assert busy.min() > 0.5 * 700
    assert busy.max() <= 700


def test_training_starts_idle_and_checkpoints(samples):
    activity = samples.filter(job_id="pretraining").sort("time")["sm_activity"].to_numpy()
    assert activity[:3].max() < 0.02
    level = np.median(activity)
    dips = (activity[60:] < 0.2 * level) & (np.roll(activity[60:], 1) >= 0.2 * level)
    assert 20 * 60 / 90 - 3 <= dips.sum() <= 20 * 60 / 45
