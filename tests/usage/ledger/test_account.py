"""The ledger: hand-worked hours, a count of every minute, the sum to installed time, and honest refusals."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import SchemaError
from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import Ledger
from gpuplanner.usage.gpu_hour_ledger import gpu_time_ledger, ledger_assumptions, reconcile_ledger
from gpuplanner.usage.pool_occupancy_and_inferred_inventory import inferred_inventory, installed_gpu_hours
from tests.examples import examples

BUSY, IDLE = {"sm_activity": 0.5}, {"sm_activity": 0.01}


def sums(ledger):
    """GPU-hours by tenant and bucket."""
    grouped = ledger.group_by("tenant", pl.col("bucket").cast(pl.String)).agg(pl.col("gpu_hours").sum())
    return {(tenant, bucket): pytest.approx(hours) for tenant, bucket, hours in grouped.iter_rows()}


def test_three_hours_by_hand(make_jobs, make_nodes, window):
    jobs = make_jobs(
        ("a", 2.0, 0, 30, 90, BUSY),  # 2 GPU-hours, waits half an hour
        ("b", 1.0, 60, 60, 180, IDLE),  # 2 GPU-hours
        ("b", 0.5, 150, 150, None),  # still runs: 0.25 GPU-hours, nothing known of them
    )
    ledger = gpu_time_ledger(jobs, make_nodes((4, "A100", None, None)), **window)
    assert ledger.equals(check_table(ledger, Ledger, source="ledger"))
    assert sums(ledger) == {
        ("a", "used"): 2.0,
        ("b", "allocated_idle"): 2.0,
        ("b", "no_telemetry"): 0.25,
        ("-", "idle_pending"): 1.0,  # four GPUs are free for the half hour in which a waits for two
        ("-", "unallocated"): 12 - 2 - 2 - 0.25 - 1,
    }
    first_hour = ledger.filter(hour=window["start"]).select("tenant", "bucket", "gpu_hours").rows()
    assert first_hour == [("-", "unallocated", 2.0), ("-", "idle_pending", 1.0), ("a", "used", 1.0)]


def test_no_job_waits_before_it_is_eligible(make_jobs, make_nodes, window):
    nodes = make_nodes((4, "A100", None, None))
    submitted = make_jobs(("a", 2.0, 0, 90, 180))
    eligible_time = pl.lit(window["start"] + timedelta(minutes=90)).cast(submitted.schema["eligible_time"])
    eligible = submitted.with_columns(eligible_time=eligible_time)
    found = [sums(gpu_time_ledger(jobs, nodes, **window)).get(("-", "idle_pending")) for jobs in (submitted, eligible)]
    assert found == [3.0, None]


def test_minutes_with_samples_speak_before_the_record(make_jobs, make_nodes, make_samples, window):
    jobs = make_jobs(("a", 1.0, 0, 0, 60, IDLE), ("b", 1.0, 0, 0, 60))
    samples = make_samples(
        *[("0", minute, 0, 0.9) for minute in range(30)],  # half an hour of work, then no sample
        *[("1", minute, 1, 0.049) for minute in range(15)],
        *[("1", minute, 1, 0.05) for minute in range(15, 30)],
        *[("1", minute, 1, None) for minute in range(30, 60)],  # missing is not zero
        ("gone", 5, 7, 0.9),
    )
    ledger = gpu_time_ledger(jobs, make_nodes((2, "A100", None, None)), samples=samples, **window)
    assert sums(ledger) == {
        ("a", "used"): 0.5,
        ("a", "allocated_idle"): 0.5,
        ("b", "allocated_idle"): 0.25,
        ("b", "used"): 0.25,
        ("b", "no_telemetry"): 0.5,
        ("-", "unallocated"): 4.0,
    }


def test_a_sample_holds_within_its_job_alone(make_jobs, make_nodes, make_samples, window):
    """Samples at 0.25 and 0.75 hold until 1.25: one runs from before the job, the other until its end."""
    jobs = make_jobs(("a", 1.0, 0, 0.5, 1.25, IDLE), ("b", 1.0, 2, 2, 3))
    samples = make_samples(("0", 0.25, 0, 0.9), ("0", 0.75, 0, 0.9), ("1", 2.0, 1, 0.9))
    ledger = gpu_time_ledger(jobs, make_nodes((2, "A100", None, None)), samples=samples, **window)
    assert sums(ledger)["a", "used"] == 0.75 / 60
    assert ("a", "allocated_idle") not in sums(ledger)
    assert sums(ledger)["b", "no_telemetry"] == 1 / 60  # a lone reading holds for no time


@pytest.mark.parametrize("step", [0.5, 1, 2, 5, 10, 60])
def test_used_hours_are_the_same_at_every_step(make_jobs, make_nodes, make_samples, window, step):
    """Two GPUs at work for two hours: four GPU-hours, however far the readings are apart."""
    jobs = make_jobs(("a", 2.0, 0, 0, 120))
    readings = [("0", number * step, gpu, 0.9) for number in range(round(120 / step)) for gpu in range(2)]
    ledger = gpu_time_ledger(jobs, make_nodes((2, "A100", None, None)), samples=make_samples(*readings), **window)
    assert sums(ledger) == {("a", "used"): 4.0, ("-", "unallocated"): 2.0}


def test_a_gap_is_not_used(make_jobs, make_nodes, make_samples, window):
    """Readings every 10 minutes, none from 0:20 to 1:20: the one before the gap holds until 0:30."""
    jobs = make_jobs(("a", 1.0, 0, 0, 120))
    readings = [("0", minute, 0, 0.9) for minute in (0, 10, 20, 80, 90, 100, 110)]
    ledger = gpu_time_ledger(jobs, make_nodes((1, "A100", None, None)), samples=make_samples(*readings), **window)
    assert sums(ledger)["a", "used"] == 70 / 60
    assert sums(ledger)["a", "no_telemetry"] == 50 / 60


def test_activity_read_less_often_than_memory_holds_as_long(make_jobs, make_nodes, make_samples, window):
    """Memory every minute, activity every five: a row without activity does not end the reading before."""
    jobs = make_jobs(("a", 1.0, 0, 0, 60))
    readings = [("0", minute, 0, None if minute % 5 else 0.9) for minute in range(60)]
    ledger = gpu_time_ledger(jobs, make_nodes((1, "A100", None, None)), samples=make_samples(*readings), **window)
    assert sums(ledger)["a", "used"] == 1.0


def test_the_time_of_a_shared_gpu_is_of_all_that_share_it(make_jobs, make_nodes, make_samples, window):
    """Two of four replicas are held: each job used its quarter for an hour; a third job did not share."""
    jobs = make_jobs(("a", 0.25, 0, 0, 60), ("b", 0.25, 0, 0, 60), ("c", 0.25, 0, 0, 60))
    samples = make_samples(*[("0,1", minute, 0, 0.9) for minute in range(60)])
    samples = samples.with_columns(job_evidence=pl.lit("shared"))
    ledger = gpu_time_ledger(jobs, make_nodes((1, "A100", None, None)), samples=samples, **window)
    assert sums(ledger)["a", "used"] == 0.25
    assert sums(ledger)["b", "used"] == 0.25
    assert sums(ledger)["c", "no_telemetry"] == 0.25


def test_jobs_without_gpus_or_out_of_the_window_do_not_count(make_jobs, make_nodes, window):
    jobs = make_jobs(("a", 0.0, 0, None, None), ("a", 4.0, -120, -90, 0), ("a", 4.0, 180, None, None))
    assert sums(gpu_time_ledger(jobs, make_nodes((1, None, None, None)), **window)) == {("-", "unallocated"): 3.0}


def test_installed_time_follows_the_nodes(make_jobs, make_nodes, window):
    nodes = make_nodes((4, "A100", None, 60), (2, "A100", 90, None), (8, "A100", 300, None))
    ledger = gpu_time_ledger(make_jobs(), nodes, **window)
    assert ledger.select("bucket", "gpu_hours").rows() == [
        ("unallocated", 4.0),
        ("unallocated", 1.0),
        ("unallocated", 2.0),
    ]
    assert installed_gpu_hours(nodes, **window) == 7.0


def test_boards_are_kept_apart_when_all_jobs_name_them(make_jobs, make_nodes, window):
    jobs = make_jobs(
        ("a", 1.0, 0, 0, 180, BUSY | {"gpu_model": "a100"}), ("b", 1.0, 0, None, None, {"gpu_model": "V100"})
    )
    nodes = make_nodes((2, "A100", None, None), (1, "V100", None, None))
    ledger = gpu_time_ledger(jobs, nodes, **window)
    totals = ledger.group_by("gpu_model", pl.col("bucket").cast(pl.String)).agg(pl.col("gpu_hours").sum())
    assert sorted(totals.rows()) == [("A100", "unallocated", 3.0), ("A100", "used", 3.0), ("V100", "idle_pending", 3.0)]
    assert ledger_assumptions(jobs, nodes, **window) == []


def test_a_job_that_waits_for_any_board_may_have_any_that_is_free(make_jobs, make_nodes, window):
    jobs = make_jobs(
        ("a", 1.0, 0, 0, 180, BUSY | {"gpu_model": "V100"}), ("b", 2.0, 0, None, None, {"gpu_model": None})
    )
    nodes = make_nodes((3, "A100", None, None), (2, "V100", None, None))
    ledger = gpu_time_ledger(jobs, nodes, **window)
    totals = ledger.group_by("gpu_model", pl.col("bucket").cast(pl.String)).agg(pl.col("gpu_hours").sum())
    assert sorted(totals.rows()) == [
        ("A100", "idle_pending", 6.0),
        ("A100", "unallocated", 3.0),
        ("V100", "unallocated", 3.0),
        ("V100", "used", 3.0),
    ]


@pytest.mark.parametrize("gpu_model", [None, "H200"])
def test_boards_that_do_not_match_are_one_pool(make_jobs, make_nodes, window, gpu_model):
    jobs = make_jobs(("a", 3.0, 0, 0, 180, BUSY | {"gpu_model": gpu_model}))
    nodes = make_nodes((2, "A100", None, None), (1, "V100", None, None))
    ledger = gpu_time_ledger(jobs, nodes, **window)
    assert ledger["gpu_model"].null_count() == ledger.height
    assert sums(ledger) == {("a", "used"): 9.0}
    assert "do not match the inventory" in ledger_assumptions(jobs, nodes, **window)[0]


def test_inventory_can_be_inferred_and_that_is_said(make_jobs, window):
    jobs = make_jobs(
        ("a", 2.0, 0, 0, 60, {"gpu_model": "A100"}),
        ("a", 0.4, 0, 30, 90, {"gpu_model": "A100"}),
        ("b", 1.0, 0, 0, 60, {"gpu_model": "V100"}),
        ("b", None, 0, 0, 60, {"gpu_model": "V100"}),
    )
    nodes = inferred_inventory(jobs, **window)
    assert nodes.select("node", "gpu_model", "gpus").rows() == [
        ("inferred-A100", "A100", 3),
        ("inferred-V100", "V100", 1),
    ]
    assert gpu_time_ledger(jobs, **window).equals(gpu_time_ledger(jobs, nodes, **window))
    said = ledger_assumptions(jobs, **window)
    assert "the number of GPUs is inferred from the jobs" in said[0]
    assert "1 of 4 jobs ran on an unknown number of GPUs" in said[1]


def test_more_held_than_installed_is_refused_with_time_and_amount(make_jobs, make_nodes, window):
    jobs = make_jobs(("a", 2.0, 0, 0, 60), ("b", 1.5, 0, 30, 60))
    with pytest.raises(SchemaError, match=r"up to 1\.5 GPUs more, first at 2026-02-02 09:30:00 UTC") as error:
        gpu_time_ledger(jobs, make_nodes((2, "A100", None, None)), **window)
    assert "GPUs of A100" in str(error.value)
    with pytest.raises(SchemaError, match="all models"):
        gpu_time_ledger(jobs, make_nodes((2, None, None, None)), **window)
    with pytest.raises(SchemaError, match="installed"):
        gpu_time_ledger(jobs, make_nodes(), **window)


def changes(make_jobs, gpu_model=None, **columns):
    times = make_jobs(("-", 2.0, 0, 60, 90)).select("start_time", "end_time", "gpus")
    return times.with_columns(gpu_model=pl.lit(gpu_model, pl.String), bucket=pl.lit("reconfiguring")).with_columns(
        **columns
    )


def test_reconfiguring_time_is_not_free(make_jobs, make_nodes, window):
    nodes = make_nodes((2, "A100", None, None))
    ledger = gpu_time_ledger(make_jobs(), nodes, out_of_service=changes(make_jobs), **window)
    assert sums(ledger) == {("-", "reconfiguring"): 1.0, ("-", "unallocated"): 5.0}
    held = make_jobs(("a", 1.0, 0, 60, 90))
    with pytest.raises(SchemaError, match="out of service"):
        gpu_time_ledger(held, nodes, out_of_service=changes(make_jobs), **window)


def test_reconfiguring_time_names_its_board_where_there_are_several(make_jobs, make_nodes, window):
    nodes = make_nodes((2, "A100", None, None), (2, "V100", None, None))
    ledger = gpu_time_ledger(make_jobs(), nodes, out_of_service=changes(make_jobs, "V100"), **window)
    assert ledger.filter(bucket="reconfiguring")["gpu_model"].to_list() == ["V100"]
    with pytest.raises(SchemaError, match="'H100'"):
        gpu_time_ledger(make_jobs(), nodes, out_of_service=changes(make_jobs, "H100"), **window)
    unnamed = changes(make_jobs).drop("gpu_model")
    with pytest.raises(SchemaError, match="'gpu_model'"):
        gpu_time_ledger(make_jobs(), nodes, out_of_service=unnamed, **window)


def test_window_may_begin_and_end_within_an_hour(make_jobs, make_nodes, window):
    cut = {"start": window["start"] + timedelta(minutes=20), "end": window["start"] + timedelta(minutes=135)}
    jobs = make_jobs(("a", 1.0, 0, 0, 30, BUSY), ("a", 1.0, 120, 120, None, BUSY))
    nodes = make_nodes((1, "A100", None, None))
    ledger = gpu_time_ledger(jobs, nodes, **cut)
    assert sums(ledger) == {("a", "used"): (10 + 15) / 60, ("-", "unallocated"): 1.5}
    assert ledger["hour"].min() == window["start"]
    assert installed_gpu_hours(nodes, **cut) == pytest.approx(115 / 60)


@pytest.mark.parametrize("minutes", [0, -60])
def test_what_is_no_window_is_refused(make_jobs, make_nodes, window, minutes):
    end = window["start"] + timedelta(minutes=minutes)
    with pytest.raises(SchemaError, match="start and end"):
        gpu_time_ledger(make_jobs(), make_nodes(), start=window["start"], end=end)
    naive = window["start"].replace(tzinfo=None)
    with pytest.raises(SchemaError, match="time zone"):
        gpu_time_ledger(make_jobs(), make_nodes(), start=naive, end=naive + timedelta(hours=1))


MINUTES = 180
JOB = st.tuples(
    st.sampled_from(["a", "b"]),
    st.sampled_from([1 / 7, 0.5, 1.0, 8.0]),
    st.integers(-30, 170),
    st.one_of(st.none(), st.integers(0, 60)),
    st.integers(0, 120),
    st.sampled_from([{}, BUSY, IDLE]),
).map(lambda job: (*job[:3], None if job[3] is None else job[2] + job[3], job[2] + (job[3] or 0) + job[4], job[5]))
SEEN = st.lists(
    st.tuples(
        st.integers(0, 2).map(str),
        st.integers(-5, 60),
        st.sampled_from([1, 2, 5, 10]),
        st.lists(st.sampled_from([1, 1, 2, 15]), max_size=20),
        st.sampled_from([None, 0.0, 0.9]),
    ),
    max_size=3,
)
"""By GPU: job, first minute, step, factors of the step from reading to reading, activity."""
HALVES = 2


def held_by_hand(seen):
    """Job, first half minute and first behind it, activity of each reading: a plain loop over the readings."""
    for gpu, (job, first, step, factors, activity) in enumerate(seen):
        times = np.cumsum([first, *(step * factor for factor in factors)])
        steps = [one for one in np.diff(times) if one <= 60]
        usual = float(np.median(steps)) if steps else 0.0
        for place, time in enumerate(times):
            until = times[place + 1] if place + 1 < len(times) else None
            if until is None or until - time > min(2.5 * usual, 60):
                until = time + usual
            if activity is not None:
                yield gpu, job, round(HALVES * time), round(HALVES * until), activity


@settings(deadline=None, max_examples=examples(60))
@given(jobs=st.lists(JOB, max_size=4), seen=SEEN, spare=st.integers(0, 3))
def test_ledger_equals_a_count_of_every_minute(make_jobs, make_nodes, make_samples, window, jobs, seen, spare):
    table = make_jobs(*jobs)
    peak = inferred_inventory(table, **window)["gpus"].sum()
    nodes = make_nodes((peak, None, None, None), (spare, None, 60, 120))
    readings = [
        (job, int(time), gpu, activity)
        for gpu, (job, first, step, factors, activity) in enumerate(seen)
        for time in np.cumsum([first, *(step * factor for factor in factors)])
    ]
    ledger = gpu_time_ledger(table, nodes, samples=make_samples(*readings), **window)
    balance = reconcile_ledger(ledger, installed_gpu_hours(nodes, **window))
    assert balance["balanced"]
    expected = {}

    def add(tenant, bucket, gpus):
        expected[tenant, bucket] = expected.get((tenant, bucket), 0.0) + gpus / 60 / HALVES

    held = list(held_by_hand(seen))
    for half in range(HALVES * MINUTES):
        minute = half / HALVES
        left = peak + (spare if 60 <= minute < 120 else 0)
        for number, (tenant, gpus, _, start, end, record) in enumerate(jobs):
            if start is None or not start <= minute < end:
                continue
            left -= gpus
            devices = [
                activity for _, job, first, until, activity in held if job == str(number) and first <= half < until
            ]
            covered = min(gpus, len(devices))
            for activity in devices:
                add(tenant, "used" if activity >= 0.05 else "allocated_idle", covered / len(devices))
            fallback = {None: "no_telemetry", 0.5: "used", 0.01: "allocated_idle"}[record.get("sm_activity")]
            add(tenant, fallback, gpus - covered)
        waits = [g for _, g, submit, start, end, _ in jobs if submit <= minute < (end if start is None else start)]
        fitting = min(left, sum(gpus for gpus in waits if gpus <= left + 1e-9))
        add("-", "idle_pending", fitting)
        add("-", "unallocated", left - fitting)
    expected = {key: hours for key, hours in expected.items() if hours > 1e-9}
    found = {key: hours for key, hours in sums(ledger).items() if hours.expected > 1e-9}
    assert found.keys() == expected.keys()
    for key, hours in expected.items():
        assert found[key] == hours
