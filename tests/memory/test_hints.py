"""Hints: hand-worked groups, and risks against leaving out by brute force."""

from __future__ import annotations

import math
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from gpuplanner.catalog import board_names
from gpuplanner.errors import GeometryError, SchemaError
from gpuplanner.ledger.activity import USED_FROM
from gpuplanner.memory import (
    REQUEST,
    asked_and_used,
    boards_of,
    hints,
    rightsize,
    slices,
)
from gpuplanner.memory.history import ACTIVE_FROM
from gpuplanner.study.history import load_trace
from gpuplanner.traces import read_slurm

BOARD = "H100-80GB-SXM5"
BOARDS = {None: BOARD}
MEMORY_GIB = {
    "1g.10gb": 9.75,
    "1g.20gb": 19.62,
    "2g.20gb": 19.62,
    "3g.40gb": 39.5,
    "4g.40gb": 39.5,
    "gpu": 79.25,
}


def group(jobs, samples=None, boards=BOARDS, **options):
    table = hints(asked_and_used(jobs, boards, samples=samples), **options)
    assert table.height == 1
    return table.row(0, named=True)


def runs(make_jobs, peaks, **columns):
    usual = {"sm_activity": 0.05, "time_limit_s": 86400.0} | columns
    return make_jobs(*(usual | {"memory_peak_gib": peak} for peak in peaks))


def lasting(make_jobs, *minutes, **columns):
    start = make_jobs({})["start_time"][0]
    return make_jobs(
        *(
            {"time_limit_s": 86400.0, "end_time": start + timedelta(minutes=each)} | columns
            for each in minutes
        )
    )


def test_profile_holds_every_measured_peak(make_jobs):
    row = group(runs(make_jobs, [5.0] * 9 + [8.0]))
    assert (row["profile"], row["profile_hint"], row["size_runs"]) == ("gpu", "1g.10gb", 10)
    assert (row["memory_asked_gib"], row["memory_peak_gib"]) == (79.25, 8.0)
    assert row["saved_gpu_hours"] == pytest.approx(10 * 6 / 7)
    assert (row["risk_out_of_memory"], row["at_risk_gpu_hours"]) == (0.0, 0.0)


def test_one_run_that_would_not_have_fitted_is_a_risk(make_jobs):
    row = group(runs(make_jobs, [5.0] * 9 + [15.0]))
    assert (row["profile_hint"], row["risk_out_of_memory"], row["risk_too_small"]) == ("1g.20gb", 0.1, 0.1)
    assert row["at_risk_gpu_hours"] == pytest.approx(1 / 7)
    held = group(runs(make_jobs, [5.0] * 8 + [15.0]))
    assert held["profile_hint"] is None
    assert held["saved_gpu_hours"] is None
    assert held["size_reason"] == "held back: 1 of 9 runs would not have fitted where the others did"
    assert group(runs(make_jobs, [5.0] * 8 + [15.0]), highest_risk=0.2)["profile_hint"] == "1g.20gb"


def test_slower_is_not_out_of_memory(make_jobs):
    quiet, busy = {"sm_activity": 0.05, "memory_peak_gib": 5.0}, {"sm_activity": 0.20, "memory_peak_gib": 5.0}
    row = group(make_jobs(*[quiet] * 9, busy))
    assert (row["profile_hint"], row["risk_out_of_memory"], row["risk_too_small"]) == ("2g.20gb", 0.0, 0.1)


def test_no_hint_without_evidence(make_jobs):
    few = group(runs(make_jobs, [5.0] * 4))
    assert (few["profile_hint"], few["limit_hint_s"]) == (None, None)
    assert few["size_reason"] == "4 full runs with measured memory, 5 needed"
    assert few["limit_reason"] == "4 full runs, 5 needed"
    blind = group(runs(make_jobs, [None] * 20))
    assert (blind["profile_hint"], blind["size_reason"]) == (
        None,
        "0 full runs with measured memory, 5 needed",
    )
    unknown = group(runs(make_jobs, [5.0] * 20, gpu_model="l40s"))
    assert (unknown["profile_hint"], unknown["memory_asked_gib"]) == (None, None)
    assert unknown["size_reason"] == "board l40s is not known as one of the catalogue"
    assert group(runs(make_jobs, [5.0] * 20), boards=None)["size_reason"] == "board not named"
    gang = group(runs(make_jobs, [5.0] * 20, gpus=8.0))
    assert (gang["instances_hint"], gang["size_reason"]) == (
        None,
        "0 full runs with samples of all GPUs, 5 needed",
    )


def test_failed_runs_raise_the_need_but_prove_nothing(make_jobs):
    low_failures = runs(make_jobs, [1.0] * 20, state="FAILED")
    assert group(low_failures)["size_reason"] == "0 full runs with measured memory, 5 needed"
    mixed = pl.concat([runs(make_jobs, [5.0] * 10), runs(make_jobs, [30.0], state="FAILED")])
    row = group(mixed)
    assert (row["profile_hint"], row["size_runs"], row["risk_out_of_memory"]) == ("3g.40gb", 10, 0.0)


def test_limit_covers_95_percent_of_the_runs(make_jobs):
    row = group(lasting(make_jobs, *range(1, 41)))
    assert (row["run_p95_s"], row["limit_hint_s"], row["limit_runs"]) == (38 * 60, 38 * 60, 40)
    # Of 39 others the 38th covers: the 38 shortest; two of forty outlast it.
    assert row["risk_time_out"] == 2 / 40
    assert row["freed_limit_gpu_hours"] == pytest.approx(40 * (24 - 38 / 60))
    assert row["time_out_gpu_hours"] == pytest.approx(2 * 38 / 60)
    assert row["limit_reason"] == "covers 95 % of 40 full runs"


def test_a_run_that_was_stopped_needs_more_than_it_had(make_jobs):
    stopped = lasting(make_jobs, 30, state="TIMEOUT", time_limit_s=1800.0)
    ended = lasting(make_jobs, *[20] * 19, time_limit_s=1800.0)
    one = group(pl.concat([ended, stopped]))
    assert (one["limit_hint_s"], one["risk_time_out"]) == (1200.0, 1 / 20)
    two = group(pl.concat([ended, stopped, stopped]))
    assert (two["limit_hint_s"], two["run_p95_s"]) == (None, None)
    assert two["limit_reason"] == "more than 5 % of 21 runs were stopped by their limit"


def test_no_limit_is_asked_for_above_those_of_today(make_jobs):
    assert group(lasting(make_jobs, *[61] * 20, time_limit_s=3660.0))["limit_hint_s"] is None
    none_known = group(lasting(make_jobs, *[61] * 20, time_limit_s=None))
    assert (none_known["limit_hint_s"], none_known["freed_limit_gpu_hours"]) == (3660.0, None)


def test_number_of_gpus_that_worked(make_jobs, make_samples):
    jobs = make_jobs(*({"job_id": str(number), "gpus": 4.0} for number in range(10)))
    working = {0: 0.9, 1: 0.06, 2: 0.04, 3: 0.0}
    devices = [
        make_samples(str(job), [activity] * 6, gpu=gpu)
        for job in range(10)
        for gpu, activity in working.items()
    ]
    row = group(jobs, pl.concat(devices))
    assert (row["instances_hint"], row["active_runs"], row["risk_too_few"]) == (2, 10, 0.0)
    assert row["saved_gpu_hours"] == pytest.approx(20.0)
    assert row["size_reason"] == "at most 2 GPUs worked in 10 full runs"
    # One GPU of a job is not all of them: nothing may be said of the others.
    assert group(jobs, pl.concat(devices[::4]))["instances_hint"] is None


def test_active_is_what_the_ledger_calls_used():
    assert ACTIVE_FROM == USED_FROM


def test_groups_are_equal_requests(make_jobs):
    requests = ((1.0, None), (1.0, "3g.40gb"), (2.0, None))
    rows = [
        {"user": user, "job_class": kind, "gpus": gpus, "profile_requested": profile, "memory_peak_gib": 5.0}
        for user in ("a", None)
        for kind in ("evaluation", None)
        for gpus, profile in requests
        for _ in range(6)
    ]
    table = hints(asked_and_used(make_jobs(*rows), BOARDS))
    assert table.height == table.select(REQUEST).n_unique() == 12
    assert table["jobs"].to_list() == [6] * 12
    without = make_jobs({"gpus": 0.0}, {"gpus": None})
    assert asked_and_used(without, BOARDS).is_empty()
    assert hints(asked_and_used(without, BOARDS)).is_empty()


def test_boards_are_looked_up_and_never_guessed(make_jobs):
    words = make_jobs({"gpu_model": "a100"}, {"gpu_model": "a30"}, {}, {"gpu_model": "l40s"})
    names = {word: board and board.name for word, board in boards_of(words).items()}
    assert names == {"a100": None, "a30": "A30-24GB", None: None, "l40s": None}
    assert boards_of(words, {"a100": "A100-40GB"})["a100"].name == "A100-40GB"
    with pytest.raises(GeometryError, match="l40s"):
        boards_of(words, {"l40s": "l40s"})


@pytest.mark.parametrize("board", board_names())
def test_sizes_in_order_hold_more_and_more(board):
    # A hint is the largest size by rank: that is right only while no later one has less of anything.
    parts = slices(board)
    for small, large in pairwise(parts):
        assert small.sms <= large.sms
        assert small.memory_gib <= large.memory_gib


def test_bad_parameters(make_jobs):
    history = asked_and_used(runs(make_jobs, [5.0]), BOARDS)
    for options in ({"minimum_evidence": 1}, {"highest_risk": 1.5}):
        with pytest.raises(SchemaError, match="minimum_evidence"):
            hints(history, **options)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["COMPLETED", "COMPLETED", "COMPLETED", "TIMEOUT", "FAILED"]),
            st.integers(1, 5000),
            st.sampled_from([2.0, 5.0, 9.5, 12.0, 18.5, 30.0, 38.0, None]),
            st.sampled_from([0.03, 0.1, 0.2, 0.4]),
        ),
        min_size=6,
        max_size=30,
    )
)
def test_risks_are_those_of_leaving_each_run_out(make_jobs, drawn):
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
    too_small = out_of_memory = 0
    for number in judged:
        others = max((needed[other] for other in measured if other != number), key=order.index)
        too_small += order.index(needed[number]) > order.index(others)
        out_of_memory += drawn[number][2] > MEMORY_GIB[others]
    assert row["size_runs"] == len(judged)
    if judged:
        assert row["risk_too_small"] == pytest.approx(too_small / len(judged))
        assert row["risk_out_of_memory"] == pytest.approx(out_of_memory / len(judged))
    lengths = [
        math.inf if state == "TIMEOUT" else run
        for state, run, _, _ in drawn
        if state in ("COMPLETED", "TIMEOUT")
    ]
    assert row["limit_runs"] == len(lengths)
    if len(lengths) > 1:
        outlasting = sum(
            run > covering(lengths[:number] + lengths[number + 1 :]) for number, run in enumerate(lengths)
        )
        assert row["risk_time_out"] == pytest.approx(outlasting / len(lengths))
        limit = covering(lengths)
        assert row["limit_hint_s"] == (limit if math.isfinite(limit) else None)


def covering(lengths):
    """Smallest whole minute that is long enough for 95 % of the runs, found by trying each."""
    for run in sorted(lengths):
        limit = math.ceil(run / 60) * 60 if math.isfinite(run) else run
        if 100 * sum(each <= run for each in lengths) >= 95 * len(lengths):
            return limit
    return None


def test_sample_saves_less_than_job_by_job_and_fails_seldom():
    trace = load_trace("sample")
    history = asked_and_used(trace.jobs, samples=trace.samples)
    table = hints(history)
    assert table["jobs"].sum() == trace.jobs.height
    assert table["gpu_hours"].sum() == pytest.approx(history["gpu_hours"].sum())
    # Knowing each job's own peak beforehand is a bound on what hints from other runs can save.
    single = rightsize(trace.jobs, BOARD, samples=trace.samples)
    own = single.filter(pl.col("evidence").is_in(["telemetry", "job statistics"]))
    bound = own.select((pl.col("gpu_hours_requested") - pl.col("gpu_hours_needed")).sum()).item()
    saved = table["saved_gpu_hours"].sum()
    assert 0.2 * bound < saved < bound
    given = table.filter(pl.col("profile_hint").is_not_null())
    assert given["risk_out_of_memory"].max() <= 0.10
    failed = given.select((pl.col("risk_out_of_memory") * pl.col("size_runs")).sum()).item()
    assert failed / given["size_runs"].sum() < 0.02
    assert table.filter(pl.col("profile_hint").is_null() & pl.col("size_reason").is_null()).is_empty()


def test_order_of_jobs_does_not_matter():
    trace = load_trace("sample")
    jobs = trace.jobs.head(3000)
    keys = [*REQUEST]
    one, other = (hints(asked_and_used(table)).sort(keys) for table in (jobs, jobs.reverse()))
    assert_frame_equal(one, other, rel_tol=1e-12)


@pytest.mark.data
def test_fox_has_one_group_with_enough_runs_for_a_limit(public_data: Path):
    jobs = read_slurm([public_data / "slurm" / "sacct_fox_2025.txt"], tz="Europe/Oslo").jobs
    table = hints(asked_and_used(jobs))
    assert table["profile_hint"].is_null().all()
    (row,) = table.filter(pl.col("limit_hint_s").is_not_null()).to_dicts()
    ended = jobs.filter((pl.col("user") == "ec313-autotekst") & (pl.col("state") == "COMPLETED"))
    seconds = (ended["end_time"] - ended["start_time"]).dt.total_seconds().sort()
    assert (row["user"], row["limit_runs"], seconds.len()) == ("ec313-autotekst", 43, 43)
    assert row["run_p95_s"] == seconds[40]  # the 41st of 43 covers 95 %
    assert row["limit_hint_s"] == math.ceil(seconds[40] / 60) * 60
    assert row["risk_time_out"] == (seconds > math.ceil(seconds[39] / 60) * 60).sum() / 43
