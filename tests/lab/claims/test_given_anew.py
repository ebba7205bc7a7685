"""Spells and measures of elastic jobs, and of jobs that move between types: what holds of all others holds of them."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.lab.claims.heterogeneous import (
    ElasticModel,
    Goodput,
    by_assignment,
    reassign,
    schedule_elastic,
)
from gpuplanner.lab.orders.mixed.mixed import GpuType
from gpuplanner.metrics import always_on, claims, measure, tenant_accounts
from gpuplanner.simulate import Fleet
from tests.lab.gangs import test_spells as spells

BOARD = "H100-80GB-SXM5"


class TestGivenAnew:
    """Elastic jobs, and jobs on a fleet of several types."""

    LINEAR = ElasticModel(Goodput((0.0, 1.0)), ((1.0, math.inf),))

    @settings(max_examples=25, deadline=None)
    @given(
        st.lists(
            st.tuples(st.integers(0, 900), st.integers(500, 9000), st.integers(1, 4)),
            min_size=1,
            max_size=8,
        )
    )
    def test_elastic_spells_are_what_was_held(self, rows):
        jobs = pl.DataFrame(rows, schema=["submit_s", "examples", "gpus"], orient="row").select(
            pl.int_range(pl.len()).cast(pl.String).alias("job_id"),
            pl.col("submit_s", "examples").cast(pl.Float64),
            pl.col("gpus").cast(pl.Int32),
            tenant=pl.lit("t"),
            job_class=pl.lit("linear"),
        )
        run = schedule_elastic(jobs, {"linear": self.LINEAR}, Fleet(BOARD, 2, 2), policy="p")
        turns = spells.assert_sound(jobs, run, 4)
        assert np.allclose(turns["gross_gpu_s"], run.outcomes["gpu_s"])
        # One example takes one GPU one second, wherever it is done.
        assert np.allclose(turns["gross_gpu_s"], jobs["examples"].to_numpy() + turns["lost_gpu_s"].to_numpy())

    def test_growing_is_no_wait_and_losing_all_is_one(self):
        jobs = pl.DataFrame(
            {"job_id": ["a", "b"], "tenant": "t", "submit_s": [0.0, 60.0], "job_class": "linear",
             "examples": [960.0, 240.0], "gpus": 1},
            schema_overrides={"gpus": pl.Int32},
        )  # fmt: skip

        def last_takes_all(question):
            return [-1] * (len(question.jobs) - 1) + [3]

        run = schedule_elastic(
            jobs, {"linear": self.LINEAR}, Fleet(BOARD, 1, 4), policy="p", allocate=last_takes_all
        )
        assert run.spells.select(
            "job_id", "since_s", "start_s", "end_s", "gpus", "lost_s", "ended"
        ).rows() == [
            ("a", 0.0, 0.0, 60.0, 4, 0.0, "preempted"),
            ("a", 60.0, 120.0, 330.0, 4, 30.0, "finished"),
            ("b", 60.0, 60.0, 120.0, 4, 0.0, "finished"),
        ]
        assert run.outcomes["queued_s"].to_list() == [60.0, 0.0]

    def test_a_move_to_another_type_is_a_spell_of_its_own(self):
        jobs = pl.DataFrame({"job_id": ["a"], "tenant": "t", "submit_s": [0.0]})
        plans = pl.DataFrame({"job_id": "a", "gpus": [2], "tp": 1, "memory_gib": 8.0, "run_s": 100.0})
        fleet = (
            GpuType("small", 1, 4, memory_gib=16.0),
            GpuType("large", 1, 4, memory_gib=80.0, speed=2.0),
        )
        asked = iter([0, 1])
        rounds = pl.DataFrame({"job_id": ["b"], "tenant": "t", "submit_s": [20.0]})
        more = plans.with_columns(job_id=pl.lit("b"), run_s=10.0)

        def small_then_large(problem):
            turn = next(asked, 1)
            return (problem.kind == turn) & (problem.job == 0) | (problem.kind == 0) & (problem.job == 1)

        run = reassign(
            pl.concat([jobs, rounds]), pl.concat([plans, more]), fleet, by_assignment(small_then_large),
            policy="p", round_s=20.0, restart_s=6.0,
        )  # fmt: skip
        mine = run.spells.filter(job_id="a")
        assert mine.select("start_s", "end_s", "gpu_type", "lost_s", "ended").rows() == [
            (0.0, 20.0, "small", 0.0, "resized"),
            (20.0, 66.0, "large", 6.0, "finished"),
        ]


def test_elastic_jobs_count_with_the_gpus_that_they_had():
    linear = ElasticModel(Goodput((0.0, 1.0)), ((1.0, float("inf")),))
    jobs = pl.DataFrame(
        {"job_id": ["a", "b"], "tenant": ["x", "y"], "submit_s": 0.0, "job_class": "linear",
         "examples": [4800.0, 2400.0], "gpus": 1},
        schema_overrides={"gpus": pl.Int32},
    )  # fmt: skip
    run = schedule_elastic(jobs, {"linear": linear}, Fleet(BOARD, 1, 8), policy="p")
    # Four GPUs each until 600 s, then eight for what is left of the first, after a restart of 30 s.
    found = measure(always_on(run, 8), BOARD)
    assert found["busy_gpu_hours"] * 3600 == pytest.approx(8 * 600 + 8 * 330)
    assert found["useful_gpu_hours"] * 3600 == pytest.approx(4800 + 2400)
    assert found["utilisation_server"] == pytest.approx(1.0)
    accounts = tenant_accounts(claims(run), {"x": 4.0, "y": 4.0})
    assert (accounts["held_gpu_hours"] * 3600).to_list() == pytest.approx([4 * 600 + 8 * 330, 2400])
    assert (accounts["above_gpu_hours"] * 3600).to_list() == pytest.approx([4 * 330, 0])
