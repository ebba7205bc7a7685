"""The finer parts of the ledger: nodes, reservations, outages, processes, states, slices, local periods."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import SchemaError
from gpuplanner.usage.allocated_hours import (
    allocated_and_active,
    allocated_by_state,
    gpu_hours_by_node,
    requested_allocated_active,
)
from gpuplanner.usage.fragmentation import slice_hours
from gpuplanner.usage.gpu_hour_ledger import gpu_time_ledger, hours_by_period, ledger_assumptions, reconcile_ledger
from gpuplanner.usage.pool_occupancy_and_inferred_inventory import inferred_inventory, installed_gpu_hours
from tests.examples import examples

H100 = "H100-80GB-SXM5"


def sums(ledger):
    grouped = ledger.group_by("tenant", pl.col("bucket").cast(pl.String)).agg(pl.col("gpu_hours").sum())
    return {(tenant, bucket): pytest.approx(hours) for tenant, bucket, hours in grouped.iter_rows()}


def out(make_jobs, *rows):
    """Rows of bucket, gpus, tenant, and minutes of begin and end."""
    times = make_jobs(*((tenant or "-", gpus, begin, begin, end) for _, gpus, tenant, begin, end in rows))
    return times.select(
        "start_time", "end_time", "gpus",
        bucket=pl.Series([row[0] for row in rows]), tenant=pl.Series([row[2] for row in rows], dtype=pl.String),
    )  # fmt: skip


def test_what_is_down_is_not_free(make_jobs, make_nodes, window):
    nodes = make_nodes((4, "A100", None, None))
    table = out(make_jobs, ("down", 1.0, None, 0, 60), ("reconfiguring", 2.0, None, 30, 60))
    assert sums(gpu_time_ledger(make_jobs(), nodes, out_of_service=table, **window)) == {
        ("-", "down"): 1.0,
        ("-", "reconfiguring"): 1.0,
        ("-", "unallocated"): 10.0,
    }


def test_of_a_reservation_what_its_tenant_does_not_hold_is_reserved(make_jobs, make_nodes, window):
    jobs = make_jobs(
        ("a", 1.0, 0, 0, 60),  # of its reservation of two
        ("b", 1.0, 0, 60, 120),  # waits an hour
    )
    table = out(make_jobs, ("reserved", 2.0, "a", 0, 120))
    ledger = gpu_time_ledger(jobs, make_nodes((3, None, None, None)), out_of_service=table, **window)
    assert sums(ledger) == {
        ("a", "no_telemetry"): 1.0,
        ("b", "no_telemetry"): 1.0,
        ("a", "reserved"): 1.0 + 2.0,
        ("-", "idle_pending"): 1.0,  # one GPU is left while b waits for one
        ("-", "unallocated"): 3.0,
    }


def test_reservations_share_what_is_left_where_others_took_it(make_jobs, make_nodes, window):
    jobs = make_jobs(("c", 2.0, 0, 0, 180))
    table = out(make_jobs, ("reserved", 2.0, "a", 0, 180), ("reserved", 1.0, "b", 0, 180))
    ledger = gpu_time_ledger(jobs, make_nodes((3, None, None, None)), out_of_service=table, **window)
    assert sums(ledger) == {("c", "no_telemetry"): 6.0, ("a", "reserved"): 2.0, ("b", "reserved"): 1.0}


def on(node, **further):
    return {"node_list": node} | further


def test_free_gpus_are_fragmented_only_where_no_waiting_job_fits(make_jobs, make_nodes, window):
    nodes = make_nodes((4, None, None, None), (4, None, None, None))
    held = [("a", 3.0, 0, 0, 180, on("n0")), ("a", 3.0, 0, 0, 120, on("n1"))]
    wants_two = make_jobs(*held, ("b", 2.0, 0, 120, 180, on("n1")))
    assert sums(gpu_time_ledger(wants_two, nodes, **window)) == {
        ("a", "no_telemetry"): 9.0 + 6.0,
        ("b", "no_telemetry"): 2.0,
        ("-", "fragmented"): 2 * 2.0,  # one GPU on each node is of no use to it
        ("-", "unallocated"): 1.0 + 2.0,
    }
    wants_one = make_jobs(*held, ("b", 1.0, 0, 120, 180, on("n1")))
    found = sums(gpu_time_ledger(wants_one, nodes, **window))
    assert ("-", "fragmented") not in found
    assert found["-", "idle_pending"] == 2.0, "for two hours the GPU it asked for was there"
    over_both = make_jobs(*held, ("b", 2.0, 0, 120, 180, on("n[0-1]", nodes=2)))
    assert sums(gpu_time_ledger(over_both, nodes, **window))["-", "idle_pending"] == 2 * 2.0
    wants_three = sums(gpu_time_ledger(make_jobs(*held, ("b", 3.0, 0, 120, 180, on("n1"))), nodes, **window))
    assert ("-", "fragmented") not in wants_three, "two free GPUs are too few, however they lie"
    assert wants_three["-", "unallocated"] == 2 * 2.0 + 1.0 + 1.0


def test_what_is_in_pieces_counts_only_while_somebody_needs_it_together(make_jobs, make_nodes, window):
    nodes = make_nodes((4, None, None, None), (4, None, None, None))
    held = [("a", 3.0, 0, 0, 180, on("n0"))]  # one GPU is left on n0, four on n1
    four = ("b", 4.0, 0, 180, 200, on("n1"))
    fits = sums(gpu_time_ledger(make_jobs(*held, four), nodes, **window))
    assert (fits["-", "idle_pending"], fits["-", "unallocated"]) == (3 * 4.0, 3 * 1.0)
    five = ("c", 5.0, 0, 180, 200, on("n1", nodes=1))
    both = sums(gpu_time_ledger(make_jobs(*held, four, five), nodes, **window))
    assert (both["-", "idle_pending"], both["-", "fragmented"]) == (3 * 4.0, 3 * 1.0)


@pytest.mark.parametrize("node", [None, "n7", "n[0"])
def test_while_a_node_is_not_known_nothing_is_said_to_be_in_pieces(make_jobs, make_nodes, window, node):
    """One job without a node does not spoil the hours in which it does not run."""
    nodes = make_nodes((4, None, None, None))
    jobs = [("a", 1.0, 0, 0, 180, on("n0")), ("b", 1.0, 60, 60, 120, on(node)), ("c", 1.0, 0, 180, 200, on("n0"))]
    found = sums(gpu_time_ledger(make_jobs(*jobs), nodes, **window))
    assert (found["-", "idle_pending"], found["-", "unallocated"]) == (3.0, 9.0 - 1.0 - 3.0)
    three = [*jobs, ("e", 3.0, 0, 180, 200, on("n0"))]
    known = gpu_time_ledger(make_jobs(*three), nodes, **window)
    assert ("-", "fragmented") not in sums(known)
    crowded = ("d", 4.0, 120, 120, 180, on("n0"))  # five held on a node of four
    other = make_nodes((4, None, None, None), (4, None, None, None))
    assert ("-", "fragmented") not in sums(gpu_time_ledger(make_jobs(*jobs, crowded), other, **window))


PLACED = st.tuples(
    st.sampled_from(["a", "b"]),
    st.sampled_from([1.0, 2.0, 4.0]),
    st.integers(0, 100),
    st.integers(0, 60),
    st.integers(0, 90),
    st.sampled_from(["n0", "n1", "n[0-1]", "n0", "n1", None]),
)
OUTAGE = st.tuples(st.integers(0, 90), st.integers(90, 180), st.sampled_from(["n0", "n1", None]))


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(PLACED, max_size=6), st.none() | OUTAGE)
def test_fragmented_time_equals_a_count_of_every_minute(make_jobs, make_nodes, window, rows, outage):
    jobs = [
        (tenant, gpus, submit, submit + wait, submit + wait + run, on(node, nodes=2 if node == "n[0-1]" else 1))
        for tenant, gpus, submit, wait, run, node in rows
    ]
    begin, until, where = outage or (0, 0, "n0")

    def gone(minute, node):
        return float(begin <= minute < until and node == where)

    # The nodes are cut down to what is held at most, so that free GPUs are scarce.
    there = {
        node: max(1, *(np.ceil(held_at(jobs, node, at) + gone(at, node)) for at in range(180)))
        for node in ("n0", "n1", None)
    }
    nodes = make_nodes(*((int(gpus), None, None, None) for gpus in there.values()))
    table = out(make_jobs, ("down", 1.0, None, begin, until)).with_columns(node=pl.lit(where, pl.String))
    ledger = gpu_time_ledger(make_jobs(*jobs), nodes, out_of_service=table, **window)
    assert reconcile_ledger(ledger, installed_gpu_hours(nodes, **window))["balanced"]
    named = where is not None or any(job[5]["node_list"] and job[4] > 0 for job in jobs)
    expected = {"fragmented": 0.0, "idle_pending": 0.0}
    for minute in range(180):
        free = {node: gpus - held_at(jobs, node, minute) - gone(minute, node) for node, gpus in there.items()}
        left = sum(free.values())
        waits = [(g / w["nodes"], w["nodes"]) for _, g, s, b, _, w in jobs if s <= minute < b]
        waits = [(each, many) for each, many in waits if each * many <= left]
        unclear = held_at(jobs, None, minute) + gone(minute, None) > 0 or not named
        fitting = [(e, n) for e, n in waits if unclear or sum(f >= e for f in free.values()) >= n]
        useful = min((each for each, _ in fitting), default=np.inf)
        pieces = sum(f for f in free.values() if f < useful) if len(fitting) < len(waits) else 0.0
        expected["fragmented"] += pieces / 60
        expected["idle_pending"] += min(left - pieces, sum(e * n for e, n in fitting)) / 60
    found = sums(ledger)
    for bucket, hours in expected.items():
        assert found.get(("-", bucket), pytest.approx(0.0)) == pytest.approx(hours)


def held_at(jobs, node, minute):
    """GPUs held on a node, or where it is not known."""
    return sum(
        gpus / where["nodes"]
        for _, gpus, _, start, end, where in jobs
        if where["node_list"] in ((None,) if node is None else (node, "n[0-1]")) and start <= minute < end
    )


def test_nodes_sum_to_what_jobs_held(make_jobs, make_nodes, window):
    nodes = make_nodes((4, None, None, None), (4, None, 60, None))
    jobs = make_jobs(("a", 4.0, 0, 0, 90, on("n[0-1]")), ("b", 1.0, 0, 30, None, on("n0")), ("b", 1.0, 0, 0, 60))
    table = gpu_hours_by_node(jobs, nodes, **window)
    assert table.group_by("node").agg(pl.col("installed_gpu_hours", "allocated_gpu_hours").sum()).sort(
        "node", nulls_last=True
    ).rows() == [("n0", 12.0, 3.0 + 2.5), ("n1", 8.0, 3.0), (None, 0.0, 1.0)]
    first = table.filter(node="n0").select("hour", "allocated_gpu_hours").rows()
    assert first == [(window["start"] + timedelta(hours=hour), held) for hour, held in enumerate((2.5, 2.0, 1.0))]


def test_idle_time_with_and_without_a_process(make_jobs, make_samples, window):
    idle = {"sm_activity": 0.0}
    jobs = make_jobs(
        ("a", 1.0, 0, 0, 60, idle | {"memory_peak_gib": 0.1}),
        ("a", 1.0, 0, 0, 30, idle | {"memory_peak_gib": 20.0}),
        ("a", 1.0, 0, 0, 15, idle),
        ("b", 1.0, 0, 0, 60),
    )
    seen = make_samples(*[("3", minute, 0, 0.01) for minute in range(30)])
    seen = seen.with_columns(memory_used_gib=pl.Series([0.0] * 12 + [30.0] * 18))
    found = allocated_and_active(jobs, seen, **window).drop("active")
    assert found.drop("tenant", "used").rows() == [(0.5, 1.0, 0.25, 0.0), pytest.approx((0.3, 0.2, 0.0, 0.5))]
    ledger = gpu_time_ledger(jobs, samples=seen, **window)
    idle_columns = found.select(pl.sum_horizontal(pl.selectors.starts_with("idle"))).sum().item()
    assert ledger.filter(bucket="allocated_idle")["gpu_hours"].sum() == pytest.approx(idle_columns)


def test_lost_time_by_state(make_jobs, window):
    jobs = make_jobs(
        ("a", 8.0, 0, 0, 30, {"state": "FAILED"}),
        ("a", 8.0, 0, 170, 300, {"state": "PREEMPTED"}),  # ten minutes of it in the window
        ("b", 1.0, 0, 0, 60, {"state": "COMPLETED"}),
        ("b", 1.0, 0, None, None, {"state": "PENDING"}),
    )
    found = allocated_by_state(jobs, **window)
    assert found.rows() == [
        ("a", "FAILED", 1, 4.0, True),
        ("a", "PREEMPTED", 1, pytest.approx(8 / 6), True),
        ("b", "COMPLETED", 1, 1.0, False),
    ]


def test_of_jobs_that_ended_nobody_knows_when_nothing_is_booked(make_jobs, make_nodes, window):
    """No end: what runs holds its GPUs to the last, what is over neither holds them nor waits for them."""
    jobs = make_jobs(
        ("a", 2.0, 0, 60, None, {"state": "RUNNING"}),
        ("a", 2.0, 0, 0, None, {"state": "FAILED"}),
        ("b", 2.0, 0, None, None, {"state": "CANCELLED"}),
        ("b", 2.0, 0, None, None, {"state": "RUNNING"}),
    )
    nodes = make_nodes((4, None, None, None))
    found = sums(gpu_time_ledger(jobs, nodes, **window))
    assert found == {("a", "no_telemetry"): 4.0, ("-", "idle_pending"): 2.0, ("-", "unallocated"): 6.0}
    assert allocated_by_state(jobs, **window).select("state", "gpu_hours").rows() == [("RUNNING", 4.0)]
    assert gpu_hours_by_node(jobs, nodes, **window)["allocated_gpu_hours"].sum() == 4.0
    assert inferred_inventory(jobs, **window)["gpus"].to_list() == [2]
    assert "3 of 4 jobs with GPUs have no start or end" in " ".join(ledger_assumptions(jobs, nodes, **window))


def test_requested_allocated_and_used_are_kept_apart(make_jobs, window):
    jobs = make_jobs(
        ("a", 2.0, 0, 0, 60, {"time_limit_s": 7200.0, "sm_activity": 0.5}), ("a", 1.0, 0, 0, 120), ("b", 1.0, 0, 0, 60)
    )
    assert requested_allocated_active(jobs, **window).rows() == [
        ("a", 4.0, 4.0, 1.0, 0.5, 0.5),
        ("b", None, 1.0, None, 0.0, 0.0),
    ]


def cut_into(profile, instances=1, **further):
    """What the columns of a job say that holds instances of one profile of an H100."""
    return {"profile_requested": profile, "instances": instances, "gpu_model": H100} | further


def test_slices_sum_to_the_board(make_jobs, make_nodes, window):
    nodes = make_nodes((3, H100, None, None)).with_columns(layouts=pl.lit("3g.40gb:2;gpu;1g.10gb:7"))
    jobs = make_jobs(
        ("a", 3 / 7, 0, 0, 60, cut_into("3g.40gb")),
        ("b", 1 / 7, 0, 0, 180, cut_into("1g.10gb")),
        ("b", 1.0, 0, 0, 180, {"profile_requested": "gpu"}),
    )
    rows = slice_hours(jobs, nodes, **window).drop("gpu_model").rows()
    assert rows == [
        ("allocated", 3 + 3, 4 + 3),
        ("not_allocated", 18 + 21 - 6, 24 + 21 - 7),
        ("lost_to_layout", 3 * 1, 3 * 1),  # a compute slice of 3g + 3g, a memory slice of seven 1g
        ("full_gpu", 21, 24),
    ]
    assert sum(row[1] for row in rows) == 3 * 3 * 7
    many = make_jobs(("a", 9 / 7, 0, 0, 180, cut_into("3g.40gb", 3)))
    with pytest.raises(SchemaError, match=r"3g\.40gb.*9 allocated"):
        slice_hours(many, nodes, **window)


def test_slices_of_two_cut_boards_are_told_apart_beside_one_that_is_never_cut(make_jobs, make_nodes, window):
    nodes = make_nodes((1, H100, None, None), (1, "A30-24GB", None, None), (2, "T4", None, None)).with_columns(
        layouts=pl.Series(["3g.40gb:2", "2g.12gb:2", None])
    )
    small = {"profile_requested": "2g.12gb", "instances": 1, "gpu_model": "A30-24GB"}
    jobs = make_jobs(("a", 3 / 7, 0, 0, 60, cut_into("3g.40gb")), ("a", 2 / 4, 0, 0, 120, small))
    held = slice_hours(jobs, nodes, **window).filter(part="allocated").drop("part").rows()
    assert held == [("A30-24GB", 4.0, 4.0), (H100, 3.0, 4.0), ("T4", 0.0, 0.0)]


@pytest.mark.parametrize("mig_enabled", [True, False, None])
def test_instances_hold_their_share_whatever_the_inventory_says_of_mig(make_jobs, make_nodes, window, mig_enabled):
    nodes = make_nodes((1, H100, None, None), (1, H100, None, None)).with_columns(
        mig_enabled=pl.lit(mig_enabled, pl.Boolean)
    )
    seven = [("a", 1 / 7, 0, 0, 180, on("n0", **cut_into("1g.10gb")))] * 7
    jobs = make_jobs(*seven, ("b", 1.0, 0, 0, 180, on("n1")))
    assert sums(gpu_time_ledger(jobs, nodes, **window)) == pytest.approx(
        {("a", "no_telemetry"): 3.0, ("b", "no_telemetry"): 3.0}
    )
    eight = make_jobs(*seven, ("a", 1 / 7, 0, 0, 60, on("n0", **cut_into("1g.10gb"))), ("b", 1.0, 0, 0, 180))
    with pytest.raises(SchemaError, match=r"up to 0\.142"):
        gpu_time_ledger(eight, nodes, **window)


def test_what_is_inferred_holds_the_instances_on_whole_boards(make_jobs, window):
    def boards(*jobs):
        return inferred_inventory(make_jobs(*jobs), **window).select("gpu_model", "gpus").rows()

    small = ("a", 1 / 7, 0, 0, 60, cut_into("1g.10gb", gpus_by_memory=1 / 8))
    assert boards(*[small] * 7) == [(H100, 1)]
    assert boards(*[small] * 8) == [(H100, 2)]
    # Four of 1g.20gb fill the memory of a board and four sevenths of its compute slices.
    large = ("a", 1 / 7, 0, 0, 60, cut_into("1g.20gb", gpus_by_memory=2 / 8))
    assert boards(*[large] * 4, small) == [(H100, 2)]
    # A board holds one 4g; without the memory and the board only the compute slices are known.
    four = ("a", 4 / 7, 0, 0, 60, cut_into("4g.40gb"))
    assert boards(four, four, four) == [(H100, 3)]
    nameless = ("a", 4 / 7, 0, 0, 60, {"profile_requested": "4g.40gb", "instances": 1})
    assert boards(nameless, nameless, nameless) == [(None, 2)]
    # A board that is cut is no whole GPU for somebody else.
    whole = ("b", 2.0, 0, 0, 60, {"gpu_model": H100})
    assert boards(small, whole) == [(H100, 3)]
    late = ("b", 2.0, 60, 60, 120, {"gpu_model": H100})
    assert boards(small, late) == [(H100, 2)]


DAYS = {
    "Europe/Berlin": {datetime(2026, 3, 29).date(): 23, datetime(2026, 10, 25).date(): 25},
    "Asia/Kolkata": {},
    "Asia/Kathmandu": {},
    "America/Santiago": {datetime(2026, 9, 6).date(): 23, datetime(2026, 4, 4).date(): 25},
}


@pytest.mark.parametrize("tz", DAYS)
def test_local_days_have_the_hours_that_clocks_show(tz):
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    hours = [begin + timedelta(hours=hour) for hour in range(365 * 24)]
    ledger = pl.DataFrame({"tenant": "-", "gpu_model": None, "hour": hours, "bucket": "unallocated", "gpu_hours": 2.0})
    days = hours_by_period(ledger, every="day", tz=tz)
    assert days["gpu_hours"].sum() == pytest.approx(2 * 365 * 24)
    inner = days.slice(1, days.height - 2)
    lengths = {day: hours / 2 for day, hours in inner.select("period", "gpu_hours").iter_rows() if hours != 48}
    assert lengths == DAYS[tz]
    months = hours_by_period(ledger, every="month", tz=tz)
    assert months["gpu_hours"].sum() == pytest.approx(2 * 365 * 24)
    assert all(day.day == 1 for day in months["period"])


def test_a_local_month_has_nothing_from_before_its_first_midnight(make_jobs, make_nodes):
    """Midnight in Kolkata is 18:30 UTC: half of the ledger's first hour, and of its last, is not covered."""
    midnight = datetime(2026, 1, 31, 18, 30, tzinfo=UTC)
    span = {"start": midnight, "end": midnight + timedelta(days=28)}
    ledger = gpu_time_ledger(make_jobs(), make_nodes((3, None, None, None)), **span)
    february = [(datetime(2026, 2, 1).date(), pytest.approx(3 * 28 * 24))]
    months = hours_by_period(ledger, every="month", tz="Asia/Kolkata", **span)
    assert months.select("period", "gpu_hours").rows() == february
    short = {"start": midnight, "end": midnight + timedelta(days=1)}
    with pytest.raises(SchemaError, match="other hours"):
        hours_by_period(ledger, every="month", tz="Asia/Kolkata", **short)
