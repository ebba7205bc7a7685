"""Hints: hand-worked groups, and risks against leaving out by brute force."""

from __future__ import annotations

import math
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from gpuplanner.core.errors import GeometryError
from gpuplanner.hardware.catalog import mig_model_names
from gpuplanner.hardware.gpu_models import as_gpu_model
from gpuplanner.ingest.public.philly_miso_pai_supercloud_traces import read_supercloud
from gpuplanner.ingest.slurm.accounting import read_slurm
from gpuplanner.usage.planning_history import load_dataset
from gpuplanner.usage.request_recommendations import (
    TIME_LIMIT_MARGIN,
    _covering_limit_s,
    estimate_limit_risks,
    recommend_requests,
)
from gpuplanner.usage.requested_demand import profile_sizes, slice_profiles
from gpuplanner.usage.rightsizing import SAME_REQUEST_KEY_COLUMNS, models_of_jobs, requested_and_used, rightsize
from tests.examples import examples

BOARD = "H100-80GB-SXM5"
BOARDS = {None: BOARD}
MEMORY_GIB = {"1g.10gb": 9.75, "1g.20gb": 19.62, "2g.20gb": 19.62, "3g.40gb": 39.5, "4g.40gb": 39.5, "gpu": 79.25}


def group(jobs, samples=None, boards=BOARDS, **options):
    table = recommend_requests(requested_and_used(jobs, boards, samples=samples), **options)
    assert table.height == 1
    return table.row(0, named=True)


def runs(make_jobs, peaks, **columns):
    usual = {"sm_activity": 0.05, "time_limit_s": 86400.0} | columns
    return make_jobs(*(usual | {"memory_peak_gib": peak} for peak in peaks))


def lasting(make_jobs, *minutes, **columns):
    start = make_jobs({})["start_time"][0]
    return make_jobs(
        *({"time_limit_s": 86400.0, "end_time": start + timedelta(minutes=each)} | columns for each in minutes)
    )


def test_profile_holds_every_measured_peak(make_jobs):
    row = group(runs(make_jobs, [5.0] * 9 + [8.0]))
    assert (row["profile"], row["recommended_profile"], row["size_runs"]) == ("gpu", "1g.10gb", 10)
    assert (row["memory_asked_gib"], row["memory_peak_gib"]) == (79.25, 8.0)
    assert row["saved_gpu_hours"] == pytest.approx(10 * 6 / 7)
    assert (row["size_risk"], row["at_risk_gpu_hours"]) == (0.0, 0.0)


def test_one_run_that_would_not_have_fitted_is_a_risk(make_jobs):
    row = group(runs(make_jobs, [5.0] * 9 + [15.0]))
    assert (row["recommended_profile"], row["size_risk"]) == ("1g.20gb", 0.1)
    assert row["at_risk_gpu_hours"] == pytest.approx(1 / 7)
    held = group(runs(make_jobs, [5.0] * 8 + [15.0]))
    assert held["recommended_profile"] is None
    assert held["saved_gpu_hours"] is None
    assert held["size_reason"] == "not smaller: 1 of 9 runs would not have fitted where the others did"
    assert group(runs(make_jobs, [5.0] * 8 + [15.0]), highest_risk=0.2)["recommended_profile"] == "1g.20gb"


def test_no_failure_in_few_runs_is_no_proof(make_jobs):
    """Hanley and Lippman-Hand: none of n failed leaves about 3 / n."""
    five, many = group(runs(make_jobs, [5.0] * 5)), group(runs(make_jobs, [5.0] * 300))
    assert five["size_risk"] == many["size_risk"] == 0
    assert (five["size_risk_at_most"], many["size_risk_at_most"]) == pytest.approx((0.4507, 0.01), abs=1e-4)
    assert many["size_reason"] == "no run of 300 needed more; at most 1 % of later runs need more (95 % confidence)"
    assert five["size_reason"] == (
        "no run of 5 needed more; at most 46 % of later runs need more (95 % confidence); "
        "test it first: 29 runs bring this to 10 %"
    )
    assert group(runs(make_jobs, [None] * 20))["size_risk_at_most"] is None


@pytest.mark.parametrize("runs_before", [5, 19, 60])
def test_the_largest_share_of_later_runs_is_exceeded_in_one_case_of_twenty(make_jobs, runs_before):
    """The share above the largest of n even draws on 0-1 is what is left of 1: whatever the distribution."""
    beyond = 1 - np.random.default_rng(0).random((20_000, runs_before)).max(axis=1)
    at_most = group(runs(make_jobs, [5.0] * runs_before))["size_risk_at_most"]
    assert (beyond > at_most).mean() == pytest.approx(0.05, abs=0.006)  # four standard errors


def test_slower_is_not_out_of_memory(make_jobs):
    quiet, busy = {"sm_activity": 0.05, "memory_peak_gib": 5.0}, {"sm_activity": 0.20, "memory_peak_gib": 5.0}
    row = group(make_jobs(*[quiet] * 9, busy))
    assert (row["recommended_profile"], row["size_risk"]) == ("2g.20gb", 0.0)


def test_no_hint_without_evidence(make_jobs):
    few = group(runs(make_jobs, [5.0] * 4))
    assert (few["recommended_profile"], few["recommended_time_limit_s"]) == (None, None)
    assert few["size_reason"] == "4 full runs with measured memory, 5 needed"
    assert few["limit_reason"] == "time limit unchanged: 4 full runs, a new limit needs 19"
    assert group(runs(make_jobs, [5.0]))["limit_reason"] == "time limit unchanged: 1 full run, a new limit needs 19"
    assert group(runs(make_jobs, [5.0] * 2))["size_reason"] == "2 full runs with measured memory, 5 needed"
    # Of 19 runs the longest covers 19/20 of what follows; of 18 none covers 95 %.
    assert (
        group(runs(make_jobs, [5.0] * 18))["limit_reason"] == "time limit unchanged: 18 full runs, a new limit needs 19"
    )
    assert group(runs(make_jobs, [5.0] * 19))["recommended_time_limit_s"] is not None
    assert (
        group(runs(make_jobs, [5.0] * 19), minimum_evidence=30)["limit_reason"]
        == "time limit unchanged: 19 full runs, a new limit needs 30"
    )
    blind = group(runs(make_jobs, [None] * 20))
    assert (blind["recommended_profile"], blind["size_reason"]) == (None, "0 full runs with measured memory, 5 needed")
    unknown = group(runs(make_jobs, [5.0] * 20, gpu_model="l40s"))
    assert (unknown["recommended_profile"], unknown["memory_asked_gib"]) == (None, None)
    assert unknown["size_reason"] == "GPU model l40s is not in the catalog"
    assert group(runs(make_jobs, [5.0] * 20), boards=None)["size_reason"] == "GPU model not named"
    gang = group(runs(make_jobs, [5.0] * 20, gpus=8.0))
    assert (gang["instances_hint"], gang["size_reason"]) == (None, "0 full runs with samples of all GPUs, 5 needed")


def test_failed_runs_raise_the_need_but_prove_nothing(make_jobs):
    low_failures = runs(make_jobs, [1.0] * 20, state="FAILED")
    assert group(low_failures)["size_reason"] == "0 full runs with measured memory, 5 needed"
    mixed = pl.concat([runs(make_jobs, [5.0] * 10), runs(make_jobs, [30.0], state="FAILED")])
    row = group(mixed)
    assert (row["recommended_profile"], row["size_runs"], row["size_risk"]) == ("3g.40gb", 10, 0.0)


def one_after_the_other(make_jobs, minutes, **columns):
    """Runs of these lengths, a day apart, so that each has ended when the next begins."""
    start = make_jobs({})["start_time"][0]
    return make_jobs(
        *(
            {"start_time": start + timedelta(days=day), "end_time": start + timedelta(days=day, minutes=each)}
            | {"time_limit_s": 86400.0}
            | columns
            for day, each in enumerate(minutes)
        )
    )


def test_limit_covers_95_percent_of_later_runs(make_jobs):
    row = group(one_after_the_other(make_jobs, range(1, 41)))
    # Of 41 runs that are alike the 39th has 2 of 41 above it, and the 38th has 3, which is more than 5 %.
    assert (row["run_p95_s"], row["recommended_time_limit_s"]) == (38 * 60, 69 * 60)
    assert (row["limit_runs"], row["later_runs"]) == (40, 21)
    # They grow by a minute each: three quarters above the longest but one is more than the next.
    assert row["risk_time_out"] == 0
    assert row["freed_limit_gpu_hours"] == pytest.approx(40 * (24 - 69 / 60))
    assert row["limit_reason"] == (
        "time limit: 75 % above the p95 of 40 runs; 0 of 21 later runs outlast the limit of those before"
    )


def test_later_runs_are_held_against_what_had_ended_before_them(make_jobs):
    row = group(one_after_the_other(make_jobs, [10] * 30 + [19] + [10] * 9))
    assert (row["later_runs"], row["risk_time_out"]) == (21, 1 / 21)
    assert row["time_out_gpu_hours"] == pytest.approx(40 / 21 * row["recommended_time_limit_s"] / 3600)
    drifting = group(one_after_the_other(make_jobs, [10] * 20 + [30] * 3))
    # The third of the long ones is judged by a limit that knows the first two.
    assert (drifting["later_runs"], drifting["risk_time_out"], drifting["recommended_time_limit_s"]) == (4, 1 / 4, None)
    assert drifting["limit_reason"] == "not recommended: 1 of 4 later runs outlast the limit of those before"
    # All at once: none had ended when another began.
    together = group(lasting(make_jobs, *[10] * 30, 50))
    assert (together["later_runs"], together["risk_time_out"]) == (0, None)
    assert together["limit_reason"].endswith("p95 of 31 runs; no later run to test it on")


def test_a_run_that_was_stopped_needs_more_than_it_had(make_jobs):
    stopped = lasting(make_jobs, 60, state="TIMEOUT", time_limit_s=3600.0)
    ended = lasting(make_jobs, *[20] * 38, time_limit_s=3600.0)
    one = group(pl.concat([ended, stopped]))
    assert (one["recommended_time_limit_s"], one["run_p95_s"]) == (2100.0, 1200.0)
    three = group(pl.concat([ended, stopped, stopped, stopped]))
    assert (three["recommended_time_limit_s"], three["run_p95_s"]) == (None, None)
    assert three["limit_reason"] == "more than 5 % of 41 runs were stopped by their limit"


def test_no_limit_is_asked_for_above_those_of_today(make_jobs):
    assert group(lasting(make_jobs, *[61] * 20, time_limit_s=6000.0))["recommended_time_limit_s"] is None
    none_known = group(lasting(make_jobs, *[61] * 20, time_limit_s=None))
    assert (none_known["recommended_time_limit_s"], none_known["freed_limit_gpu_hours"]) == (6420.0, None)


def test_number_of_gpus_that_worked(make_jobs, make_samples):
    jobs = make_jobs(*({"job_id": str(number), "gpus": 4.0} for number in range(10)))
    working = {0: 0.9, 1: 0.06, 2: 0.04, 3: 0.0}
    devices = [
        make_samples(str(job), [activity] * 6, gpu=gpu) for job in range(10) for gpu, activity in working.items()
    ]
    row = group(jobs, pl.concat(devices))
    assert (row["instances_hint"], row["size_runs"], row["size_risk"]) == (2, 10, 0.0)
    assert row["saved_gpu_hours"] == pytest.approx(20.0)
    assert row["size_reason"] == (
        "at most 2 GPUs worked in 10 full runs; at most 26 % of later runs need more (95 % confidence); "
        "test it first: 29 runs bring this to 10 %"
    )
    alone = group(jobs, pl.concat(each.with_columns(sm_activity=0.9 * (each["gpu"] == 0)) for each in devices))
    assert alone["size_reason"].startswith("at most 1 GPU worked in 10 full runs; ")
    # One GPU of a job is not all of them: nothing may be said of the others.
    assert group(jobs, pl.concat(devices[::4]))["instances_hint"] is None


def test_groups_are_equal_requests(make_jobs):
    requests = ((1.0, None), (1.0, "3g.40gb"), (2.0, None))
    rows = [
        {"user": user, "job_class": kind, "gpus": gpus, "profile_requested": profile, "memory_peak_gib": 5.0}
        for user in ("a", None)
        for kind in ("evaluation", None)
        for gpus, profile in requests
        for _ in range(6)
    ]
    table = recommend_requests(requested_and_used(make_jobs(*rows), BOARDS))
    assert table.height == table.select(SAME_REQUEST_KEY_COLUMNS).n_unique() == 12
    assert table["jobs"].to_list() == [6] * 12
    without = make_jobs({"gpus": 0.0}, {"gpus": None})
    assert requested_and_used(without, BOARDS).is_empty()
    assert recommend_requests(requested_and_used(without, BOARDS)).is_empty()


def test_boards_are_looked_up_and_never_guessed(make_jobs):
    words = make_jobs({"gpu_model": "a100"}, {"gpu_model": "a30"}, {}, {"gpu_model": "l40s"})
    names = {word: gpu_model and gpu_model.name for word, gpu_model in models_of_jobs(words).items()}
    assert names == {"a100": None, "a30": "A30-24GB", None: None, "l40s": None}
    assert models_of_jobs(words, {"a100": "A100-40GB"})["a100"].name == "A100-40GB"
    with pytest.raises(GeometryError, match="l40s"):
        models_of_jobs(words, {"l40s": "l40s"})


@pytest.mark.parametrize("gpu_model", mig_model_names())
def test_sizes_in_order_hold_more_and_more(gpu_model):
    # A hint is the largest size by rank: that is right only while no later one has less of anything.
    parts = slice_profiles(gpu_model)
    for small, large in pairwise(parts):
        assert small.sms <= large.sms
        assert small.memory_gib <= large.memory_gib


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["COMPLETED", "COMPLETED", "COMPLETED", "TIMEOUT", "FAILED"]),
            st.integers(1, 5000),
            st.sampled_from([2.0, 5.0, 9.5, 12.0, 18.5, 30.0, 38.0, None]),
            st.sampled_from([0.03, 0.1, 0.2, 0.4]),
        ),
        min_size=6,
        max_size=45,
    )
)
def test_the_risk_is_that_of_each_run_against_all_others(make_jobs, drawn):
    start = make_jobs({})["start_time"][0]
    jobs = make_jobs(
        *(
            {"state": state, "end_time": start + timedelta(seconds=run), "memory_peak_gib": peak,
             "sm_activity": activity, "time_limit_s": 1e6}
            for state, run, peak, activity in drawn
        )
    )  # fmt: skip
    row = group(jobs, minimum_evidence=2, highest_risk=1.0)
    needed = rightsize(jobs, BOARD)["profile_needed"].to_list()
    order = list(MEMORY_GIB)
    full = [state in ("COMPLETED", "TIMEOUT") for state, *_ in drawn]
    measured = [number for number, (_, _, peak, _) in enumerate(drawn) if peak is not None]
    judged = [number for number in measured if full[number] and len(measured) > 1]
    out_of_memory = 0
    for number in judged:
        others = max((needed[other] for other in measured if other != number), key=order.index)
        out_of_memory += drawn[number][2] > MEMORY_GIB[others]
    assert row["size_runs"] == len(judged)
    if judged:
        assert row["size_risk"] == pytest.approx(out_of_memory / len(judged))
    lengths = [
        math.inf if state == "TIMEOUT" else run for state, run, _, _ in drawn if state in ("COMPLETED", "TIMEOUT")
    ]
    assert row["limit_runs"] == len(lengths)
    limit = covering(lengths)
    assert row["recommended_time_limit_s"] == (limit if limit is not None and math.isfinite(limit) else None)


def covering(lengths):
    """Three quarters above the run that at most one in twenty of these and one more exceed, found by trying each."""
    for place, run in enumerate(sorted(lengths), start=1):
        above = len(lengths) + 1 - place
        if 20 * above <= len(lengths) + 1:
            return math.ceil(1.75 * run / 60 - 1e-9) * 60 if math.isfinite(run) else run
    return None


def test_the_bound_holds_whatever_the_distribution():
    """Without the margin, the next of runs that are alike outlasts the limit in one of twenty cases and no more."""
    rng = np.random.default_rng(8)
    outlasted, cases = 0, 0
    for n in (19, 25, 39, 70):
        for draw in (rng.exponential, rng.standard_cauchy, lambda size: rng.lognormal(0, 2, size)):
            runs_s = 1e6 * (1 + np.abs(draw(size=(500, n + 1))))
            limits_s = np.array([_covering_limit_s(sorted(each)) for each in runs_s[:, :-1]]) / (1 + TIME_LIMIT_MARGIN)
            outlasted += (runs_s[:, -1] > limits_s).sum()
            cases += 500
    assert outlasted / cases == pytest.approx(0.045, abs=0.01)


@pytest.mark.data
def test_later_runs_of_a_public_trace_keep_the_limit(public_data: Path):
    """The margin was chosen by Philly and ITP; Supercloud had no part in it."""
    jobs = read_supercloud([public_data / "supercloud" / "slurm-log-queueing-clean.csv.gz"]).jobs
    ended = jobs.filter(pl.col("state") == "COMPLETED").with_columns(
        group=pl.struct("tenant", "user", "gpus", "time_limit_s"),
        run_s=(pl.col("end_time") - pl.col("start_time")).dt.total_seconds().cast(pl.Float64),
    )
    told = estimate_limit_risks(ended).filter(pl.col("later_runs") > 0)
    later = told["later_runs"].sum()
    assert later > 1000
    assert (told["later_runs"] * told["risk_time_out"]).sum() / later <= 0.05


def test_sample_saves_less_than_job_by_job_and_fails_seldom():
    trace = load_dataset("sample")
    history = requested_and_used(trace.jobs, samples=trace.samples)
    table = recommend_requests(history)
    assert table["jobs"].sum() == trace.jobs.height
    assert table["gpu_hours"].sum() == pytest.approx(history["gpu_hours"].sum())
    # Knowing each job's own peak beforehand is a bound on what hints from other runs can save.
    shares = dict(profile_sizes(as_gpu_model(BOARD)).select("profile", "share").iter_rows())
    needed = pl.col("profile_needed").replace_strict(shares, return_dtype=pl.Float64)
    bound = history.select((pl.col("gpu_hours") * (1 - needed / pl.col("share_asked"))).sum()).item()
    saved = table["saved_gpu_hours"].sum()
    assert 0.2 * bound < saved < bound
    given = table.filter(pl.col("recommended_profile").is_not_null())
    assert given["size_risk"].max() <= 0.10
    failed = given.select((pl.col("size_risk") * pl.col("size_runs")).sum()).item()
    assert failed / given["size_runs"].sum() < 0.02
    assert table.filter(pl.col("recommended_profile").is_null() & pl.col("size_reason").is_null()).is_empty()


def test_order_of_jobs_does_not_matter():
    trace = load_dataset("sample")
    jobs = trace.jobs.head(3000)
    keys = [*SAME_REQUEST_KEY_COLUMNS]
    one, other = (recommend_requests(requested_and_used(table)).sort(keys) for table in (jobs, jobs.reverse()))
    assert_frame_equal(one, other, rel_tol=1e-12)


@pytest.mark.data
def test_fox_has_one_group_with_enough_runs_for_a_limit(public_data: Path):
    jobs = read_slurm([public_data / "slurm" / "sacct_fox_2025.txt"], tz="Europe/Oslo").jobs
    history = requested_and_used(jobs)
    table = recommend_requests(history)
    assert table["recommended_profile"].is_null().all()
    (row,) = table.filter(pl.col("limit_runs") >= 19).to_dicts()
    ended = jobs.filter((pl.col("user") == "ec313-autotekst") & (pl.col("state") == "COMPLETED"))
    seconds = (ended["end_time"] - ended["start_time"]).dt.total_seconds().sort()
    assert (row["user"], row["limit_runs"], seconds.len()) == ("ec313-autotekst", 43, 43)
    assert row["run_p95_s"] == seconds[40]  # the 41st of 43 covers 95 % of them
    (told,) = estimate_limit_risks(history.with_columns(group=pl.lit(0)).filter(user="ec313-autotekst")).to_dicts()
    assert told["limit"] == math.ceil(1.75 * seconds[41] / 60) * 60  # and the 42nd 95 % of what follows
    assert (row["later_runs"], row["risk_time_out"]) == (23, 0.0)
    # Eleven minutes were asked for, and one run in twenty takes more than nine of them: nothing to be had.
    assert (row["recommended_time_limit_s"], row["time_limit_s"]) == (None, 660.0)
    assert row["limit_reason"] == "the requested limits are tighter already"
