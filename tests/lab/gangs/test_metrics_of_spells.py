"""Measures of runs whose jobs go through phases or are stopped, against counting second by second."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.errors import SchemaError
from gpuplanner.hardware import ChangeCost, load_gpu_model
from gpuplanner.lab.gangs import GangRules, run_gangs, schedule
from gpuplanner.metrics import (
    always_on,
    claims,
    measure,
    spells_of,
    tenant_accounts,
)
from gpuplanner.simulate import Calendar, Checkpoints, Failures, Fleet, Rules, simulate

BOARD = load_gpu_model("H100-80GB-SXM5")
LAYOUTS = ("gpu", "3g.40gb:1,2g.20gb:1,1g.10gb:2")
SLICES = {"gpu": 7, "3g.40gb": 3, "2g.20gb": 2, "1g.10gb": 1}
FLEET = Fleet(BOARD, 2, 2)


@st.composite
def cases_in_phases(draw):
    """Jobs of up to three phases with needs of their own, on a fleet cut by a calendar."""
    need = st.tuples(st.sampled_from(list(SLICES)), st.integers(0, 20))
    job = st.tuples(st.integers(0, 40), st.sampled_from("xyz"), st.lists(need, min_size=1, max_size=3))
    rows = draw(st.lists(job, min_size=1, max_size=12))
    jobs = pl.DataFrame(
        [(str(number), float(submit), tenant) for number, (submit, tenant, _) in enumerate(rows)],
        schema=["job_id", "submit_s", "tenant"],
        orient="row",
    ).with_columns(run_s=pl.lit(1.0), gpus=pl.lit(1), profile=pl.lit("gpu"))
    phases = pl.DataFrame(
        [(str(number), *each) for number, (_, _, needs) in enumerate(rows) for each in needs],
        schema={"job_id": pl.String, "profile": pl.String, "run_s": pl.Float64},
        orient="row",
    )
    counts = [draw(st.sampled_from([(2, 2), (1, 3), (1, 2)])) for _ in range(draw(st.integers(1, 3)))]
    calendar = Calendar([30.0 * slot for slot in range(len(counts))], LAYOUTS, counts)
    rules = Rules(
        "strict",
        change=ChangeCost.of(
            BOARD, change_s=2.0, instance_s=1.0, restart_s=draw(st.sampled_from([0.0, 5.0]))
        ),
    )
    return jobs, phases, calendar, rules


def run_of(case):
    """Run a case: not while it is drawn, since that may compile."""
    jobs, phases, calendar, rules = case
    return simulate(
        jobs, FLEET, calendar, rules, policy="p", leave_unservable=True, phases=phases, until_s=60.0
    )


def holding(run, now):
    """Spells under way at an instant."""
    return [
        row for row in run.spells.drop_nulls("start_s").to_dicts() if row["start_s"] <= now < row["end_s"]
    ]


@settings(max_examples=40, deadline=None)
@given(case=cases_in_phases(), begin=st.integers(0, 30), length=st.integers(1, 40))
def test_every_second_of_a_job_in_phases_counts_with_what_it_then_held(case, begin, length):
    run = run_of(case)
    end = min(begin + length, int(run.states["end_s"].max()))
    slice_s, by_name = 0, dict.fromkeys("xyz", 0)
    for second in range(begin, end):
        mine = holding(run, second + 0.5)
        slice_s += sum(SLICES[row["served_on"]] for row in mine)
        for row in mine:
            by_name[row["tenant"]] += SLICES[row["served_on"]]
    window = (float(begin), float(end))
    found = measure(run, BOARD, window=window)
    assert found["busy_gpu_hours"] * 3600 == pytest.approx(slice_s / 7)
    assert found["utilisation_server"] == pytest.approx(slice_s / 7 / (FLEET.gpus * (end - begin)))
    accounts = tenant_accounts(claims(run, BOARD, window=window), dict.fromkeys("xyz", 1.0))
    for tenant, busy in by_name.items():
        assert accounts.filter(tenant=tenant)["held_gpu_hours"].item() * 3600 == pytest.approx(busy / 7)


@settings(max_examples=40, deadline=None)
@given(case=cases_in_phases())
def test_over_the_whole_run_held_is_work_and_restarts(case):
    run = run_of(case)
    found = measure(run, BOARD)
    slices = pl.col("served_on").replace_strict(SLICES, return_dtype=pl.Int64)
    span = pl.col("end_s") - pl.col("start_s")
    held, lost = (
        run.spells.drop_nulls("start_s")
        .select((span * slices).sum(), lost=(pl.col("lost_s") * slices).sum())
        .row(0)
    )
    assert found["busy_gpu_hours"] * 3600 * 7 == pytest.approx(held)
    assert found["useful_gpu_hours"] * 3600 * 7 == pytest.approx(held - lost)
    if found["utilisation_provisioned"] is not None:
        assert found["utilisation_provisioned"] <= 1 + 1e-12


def test_a_job_in_phases_by_hand():
    jobs = pl.DataFrame(
        {"job_id": ["a"], "tenant": "t", "submit_s": 0.0, "run_s": 1.0, "gpus": 1, "profile": "gpu"}
    )
    phases = pl.DataFrame({"job_id": "a", "profile": ["1g.10gb", "3g.40gb"], "run_s": [3600.0, 1800.0]})
    calendar = Calendar.constant({LAYOUTS[1]: 1})
    run = simulate(jobs, Fleet(BOARD, 1, 1), calendar, Rules("strict"), policy="p", phases=phases)
    found = measure(run, BOARD)
    # An hour on a seventh and half an hour on three, with the start on the other instance: not an hour and a half on
    # a seventh.
    restart_h = ChangeCost.of(BOARD).restart_s.value / 3600.0
    assert found["busy_gpu_hours"] == pytest.approx((1 + 3 * (0.5 + restart_h)) / 7)
    assert measure(run, BOARD, window=(3600.0, 5400.0))["utilisation_server"] == pytest.approx(3 / 7)


STOPPING = [
    GangRules(queue="strict", tiers_preempt=True, checkpoints=Checkpoints(5.0)),
    GangRules(queue="pass", failures=Failures(0.02, 4.0, seed=2), checkpoints=Checkpoints(6.0, 1.0)),
]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 20), st.integers(1, 4), st.integers(0, 1)),
        min_size=1,
        max_size=15,
    ),
    rules=st.sampled_from(STOPPING),
    cut=st.floats(0.1, 0.9),
)
def test_goodput_and_what_was_lost_are_what_was_held(rows, rules, cut):
    jobs = pl.DataFrame(rows, schema=["submit_s", "run_s", "gpus", "tier"], orient="row").with_columns(
        job_id=pl.int_range(pl.len()).cast(pl.String), tenant=pl.lit("t"), profile=pl.lit("gpu")
    )
    gangs = run_gangs(jobs, Fleet(BOARD, 1, 4), rules, policy="p")
    run = always_on(gangs, 4)
    found = measure(run, BOARD)
    work, lost = (jobs["run_s"] * jobs["gpus"]).sum(), gangs.outcomes["lost_gpu_s"].sum()
    assert found["useful_gpu_hours"] * 3600 == pytest.approx(work)
    assert found["busy_gpu_hours"] * 3600 == pytest.approx(work + lost)
    # Two windows that part the run part what was held, each with what was held then.
    end = run.states["end_s"].max()
    halves = [measure(run, BOARD, window=window) for window in ((0.0, cut * end), (cut * end, end))]
    for half, window in zip(halves, ((0.0, cut * end), (cut * end, end)), strict=True):
        held = sum(
            max(0.0, min(row["end_s"], window[1]) - max(row["start_s"], window[0])) * row["gpus"]
            for row in gangs.spells.to_dicts()
        )
        assert half["busy_gpu_hours"] * 3600 == pytest.approx(held)
        assert -1e-9 <= half["useful_gpu_hours"] <= half["busy_gpu_hours"] + 1e-9
    assert sum(half["useful_gpu_hours"] for half in halves) == pytest.approx(found["useful_gpu_hours"])


def test_outcomes_alone_do_for_runs_without_stops_only():
    jobs = pl.DataFrame(
        {
            "job_id": ["low", "high"],
            "tenant": "t",
            "submit_s": [0.0, 5.0],
            "run_s": 10.0,
            "gpus": 4,
            "tier": [1, 0],
        }
    ).with_columns(profile=pl.lit("gpu"))
    plain = run_gangs(jobs, Fleet(BOARD, 1, 4), GangRules(queue="strict"), policy="p")
    names = ["job_id", "since_s", "start_s", "end_s", "lost_s", "gpus", "served_on", "node"]
    assert spells_of(plain.outcomes).select(names).equals(plain.spells.select(names))
    stopped = schedule(jobs, Fleet(BOARD, 1, 4), GangRules(queue="strict", tiers_preempt=True), policy="p")
    with pytest.raises(SchemaError, match=r"1 that were stopped: 'low'.*with its spells"):
        measure(always_on(stopped, 4), BOARD)
