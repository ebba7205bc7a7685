"""Measures of runs whose jobs go through phases, against counting second by second."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.hardware import ChangeCost, load_gpu_model
from gpuplanner.metrics import measure
from gpuplanner.simulate import Calendar, Fleet, Rules, simulate
from tests.examples import examples

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


@settings(max_examples=examples(40), deadline=None)
@given(case=cases_in_phases(), begin=st.integers(0, 30), length=st.integers(1, 40))
def test_every_second_of_a_job_in_phases_counts_with_what_it_then_held(case, begin, length):
    run = run_of(case)
    end = min(begin + length, int(run.states["end_s"].max()))
    slice_s = 0
    for second in range(begin, end):
        slice_s += sum(SLICES[row["served_on"]] for row in holding(run, second + 0.5))
    found = measure(run, BOARD, window=(float(begin), float(end)))
    assert found["busy_gpu_hours"] * 3600 == pytest.approx(slice_s / 7)
    assert found["utilisation_server"] == pytest.approx(slice_s / 7 / (FLEET.gpus * (end - begin)))


@settings(max_examples=examples(40), deadline=None)
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
