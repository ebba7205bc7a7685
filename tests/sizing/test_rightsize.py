"""Right-sizing: hand-worked needs on an H100 (16, 26, 32, 60, 64, 132 SMs), and what never happens."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.usage.rightsizing import EVIDENCE_KINDS, rightsize
from tests.examples import examples

BOARD = "H100-80GB-SXM5"


def size(jobs, **options):
    return rightsize(jobs, BOARD, **options).row(0, named=True)


@pytest.mark.parametrize(
    ("named", "activity", "peak_gib", "expected", "change"),
    [
        (None, 0.11, 5.0, "1g.10gb", "smaller"),
        (None, 0.20, 5.0, "2g.20gb", "smaller"),
        (None, 0.44, 5.0, "4g.40gb", "smaller"),
        (None, 0.02, 39.0, "gpu", "same"),
        ("2g.20gb", 0.20, 15.0, "2g.20gb", "same"),
        ("1g.10gb", 0.12, 5.0, "1g.10gb", "same"),
        ("1g.10gb", 0.02, 11.0, "1g.20gb", "larger"),
        ("7g.80gb", 0.90, 5.0, "7g.80gb", "same"),
    ],
)
def test_job_statistics(make_jobs, named, activity, peak_gib, expected, change):
    jobs = make_jobs({"profile_requested": named, "sm_activity": activity, "memory_peak_gib": peak_gib})
    row = size(jobs)
    assert (row["profile_needed"], row["change"]) == (expected, change)
    assert row["evidence"] == "job statistics"


def test_a_job_that_held_a_slice_is_measured_against_the_slice(make_jobs):
    half_busy = {"profile_requested": "3g.40gb", "gpus": 3 / 7, "sm_activity": 0.5, "memory_peak_gib": 5.0}
    assert size(make_jobs(half_busy))["sms_needed"] == pytest.approx(0.55 * 60)
    assert size(make_jobs(half_busy | {"gpus": None}))["sms_needed"] == pytest.approx(0.55 * 60)
    assert size(make_jobs(half_busy | {"gpus": 1.0}))["sms_needed"] == pytest.approx(0.55 * 132)


def test_fraction_without_telemetry_is_its_own_need(make_jobs):
    row = size(make_jobs({"gpus": 0.2}))
    assert row["sms_needed"] == pytest.approx(0.2 * 132)
    assert (row["profile_requested"], row["profile_needed"], row["evidence"]) == ("2g.20gb", "2g.20gb", "request")


def test_what_was_not_observed_is_as_large_as_the_request(make_jobs):
    busy_only = size(make_jobs({"profile_requested": "3g.40gb", "sm_activity": 0.02}))
    assert busy_only["profile_needed"] == "3g.40gb"
    assert busy_only["memory_needed_gib"] == 39.5
    memory_only = size(make_jobs({"profile_requested": "3g.40gb", "memory_peak_gib": 5.0}))
    assert memory_only["profile_needed"] == "3g.40gb"
    assert memory_only["sms_needed"] == 60
    nothing = size(make_jobs({}))
    assert (nothing["profile_needed"], nothing["evidence"]) == ("gpu", "request")


def test_telemetry_is_the_95_percent_quantile_of_minutes_without_headroom(make_jobs, make_samples):
    jobs = make_jobs({"sm_activity": 0.9, "memory_peak_gib": 4.0})
    activities = [0.05] * 18 + [0.24, 0.99]  # the 20th minute is above the quantile
    row = size(jobs, samples=make_samples("0", activities, memory_gib=16.0))
    assert row["sms_needed"] == pytest.approx(0.24 * 132)
    assert row["memory_needed_gib"] == pytest.approx(16.0 * 1.1)
    assert (row["profile_needed"], row["evidence"]) == ("2g.20gb", "telemetry")


def test_samples_within_a_minute_are_averaged_first(make_jobs, make_samples):
    minutes = make_samples("0", [0.1] * 6)
    half_minute_later = make_samples("0", [0.3] * 6).with_columns(pl.col("time") + timedelta(seconds=30))
    row = size(make_jobs({}), samples=pl.concat([minutes, half_minute_later]))
    assert row["sms_needed"] == pytest.approx(0.2 * 132)


def test_samples_of_an_instance_are_measured_against_the_instance(make_jobs, make_samples):
    samples = make_samples("0", [0.5] * 10, memory_gib=5.0, instance=1, profile="3g.39gb")
    assert size(make_jobs({"profile_requested": "3g.40gb"}), samples=samples)["sms_needed"] == pytest.approx(30)


def test_too_few_minutes_are_no_evidence(make_jobs, make_samples):
    samples = make_samples("0", [0.01] * 4)
    assert size(make_jobs({}), samples=samples)["evidence"] == "request"
    assert size(make_jobs({}), samples=samples, minimum_evidence=4)["evidence"] == "telemetry"


def test_samples_belong_to_the_attempt_that_ran(make_jobs, make_samples):
    first = {"job_id": "7", "end_time": make_jobs({})["start_time"][0] + timedelta(minutes=10)}
    second = {"job_id": "7", "attempt": 2, "start_time": first["end_time"], "end_time": None}
    samples = make_samples("7", [0.05] * 10 + [0.4] * 10)
    table = rightsize(make_jobs(first, second), BOARD, samples=samples)
    assert table["sms_needed"].to_list() == pytest.approx([0.05 * 132, 0.4 * 132])


SLICES = {
    "1g.10gb": (16, 9.75),
    "1g.20gb": (26, 19.62),
    "2g.20gb": (32, 19.62),
    "3g.40gb": (60, 39.5),
    "4g.40gb": (64, 39.5),
}
JOB = st.fixed_dictionaries(
    {
        "profile_requested": st.sampled_from([None, *SLICES]),
        "sm_activity": st.none() | st.floats(0, 1),
        "memory_peak_gib": st.none() | st.floats(0, 79),
        "job_class": st.sampled_from([None, "x", "y"]),
    }
)


@settings(deadline=None, max_examples=examples(40))
@given(jobs=st.lists(JOB, min_size=1, max_size=12))
def test_every_answer_holds_its_need_or_is_the_request(make_jobs, jobs):
    table = rightsize(make_jobs(*jobs), BOARD, minimum_evidence=2)
    assert table["job_id"].to_list() == [str(number) for number in range(len(jobs))]
    capacity = SLICES | {"gpu": (132, 79.25)}
    for row in table.iter_rows(named=True):
        assert row["evidence"] in EVIDENCE_KINDS
        sms, memory_gib = capacity[row["profile_needed"]]
        if row["change"] != "same" and row["profile_needed"] != "gpu":
            assert row["sms_needed"] <= sms
            assert row["memory_needed_gib"] <= memory_gib
        if row["change"] == "larger":
            assert row["evidence"] in ("telemetry", "job statistics")
        if row["evidence"] == "request":
            assert row["profile_needed"] == row["profile_requested"]


def test_needs_drawn_at_random_are_found_from_noisy_minutes(make_jobs, make_samples):
    """Jobs that fill 60-90 % of a known slice: how often is that slice found?"""
    rng = np.random.default_rng(5)
    names = rng.choice(list(SLICES), 200)
    fills = rng.uniform(0.6, 0.9, (200, 2))
    needs = [
        (SLICES[name][0] * sm / 132, SLICES[name][1] * memory) for name, (sm, memory) in zip(names, fills, strict=True)
    ]
    samples = pl.concat(
        make_samples(str(number), np.clip(sm * rng.normal(1, 0.03, 30), 0, 1), memory_gib=memory)
        for number, (sm, memory) in enumerate(needs)
    )
    found = rightsize(make_jobs(*[{}] * 200), BOARD, samples=samples)
    fits = [
        min(
            (name for name, (sms, memory) in SLICES.items() if sms >= 132 * sm * 1.05 and memory >= peak * 1.1),
            key=list(SLICES).index,
        )
        for sm, peak in needs
    ]
    assert (found["profile_needed"] == pl.Series(fits)).mean() >= 0.95
