"""Elastic jobs: goodput against all batches, allocation against all allocations, runs against closed forms."""

from __future__ import annotations

import itertools
import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.errors import ScenarioError, SchemaError
from gpuplanner.lab.claims.heterogeneous import (
    ElasticModel,
    Goodput,
    by_power_mean,
    rigid_jobs,
    schedule_elastic,
)
from gpuplanner.lab.claims.heterogeneous.allocation import costs, offered
from gpuplanner.lab.claims.heterogeneous.rounds import JobPhase, Round, RoundJob
from gpuplanner.lab.gangs import GangRules, schedule
from gpuplanner.simulate import Fleet

BOARD = "H100-80GB-SXM5"
NODE = Fleet(BOARD, 1, 8)
LINEAR = {"linear": ElasticModel(Goodput((0.0, 1.0)), ((1.0, math.inf),))}
REAL = Goodput((0.03, 0.002), (0.01, 0.001), (0.05, 0.002), 1.5, 128, 8192, 256, 2)


def jobs_of(*rows):
    """Rows of (submit_s, examples, gpus, class)."""
    frame = pl.DataFrame(rows, schema=["submit_s", "examples", "gpus", "job_class"], orient="row")
    return frame.select(
        pl.int_range(pl.len()).cast(pl.String).alias("job_id"),
        pl.lit("t").alias("tenant"),
        pl.col("submit_s", "examples").cast(pl.Float64),
        "job_class",
        pl.col("gpus").cast(pl.Int32),
    )


class TestGoodput:
    @settings(max_examples=60, deadline=None)
    @given(
        st.integers(1, 12), st.booleans(), st.sampled_from([0.0, 30.0, 1000.0]), st.sampled_from([1.0, 1.7, 4.0]),
        st.integers(1, 40), st.integers(0, 3),
    )  # fmt: skip
    def test_the_best_batch_is_the_best_of_all(
        self, gpus, one_node, noise, gamma, most_per_gpu, accumulation
    ):
        sync = (0.02, 0.003) if one_node else (0.2, 0.01)
        job = Goodput((0.05, 0.01), (0.02, 0.003), (0.2, 0.01), gamma, 20, 200, most_per_gpu, accumulation)
        best = 0.0
        for each, more in itertools.product(range(1, most_per_gpu + 1), range(accumulation + 1)):
            batch = gpus * each * (more + 1)
            grad, wait = 0.05 + 0.01 * each, sync[0] + sync[1] * (gpus - 2) if gpus > 1 else 0.0
            time = more * grad + (grad**gamma + wait**gamma) ** (1 / gamma)
            if 20 <= batch <= 200:
                best = max(best, batch / time * (noise + 20) / (noise + batch))
        assert job.best(gpus, one_node=one_node, noise_scale=noise) == pytest.approx(best, rel=1e-12)

    def test_complete_overlap_is_the_longer_of_both(self):
        job = Goodput((0.5, 0.0), (2.0, 0.0), gamma=math.inf, most_per_gpu=1)
        assert job.best(2, one_node=True, noise_scale=math.inf) == 2 / 2.0

    def test_without_noise_more_examples_are_worth_nothing(self):
        assert Goodput((0.0, 1.0), batch0=8, most_batch=64).best(8, one_node=True, noise_scale=0.0) == 8.0

    def test_numbers_out_of_range(self):
        for values in ({"gamma": 0.5}, {"batch0": 0}, {"batch0": 9, "most_batch": 8}, {"most_per_gpu": 0}):
            with pytest.raises(ScenarioError, match="goodput"):
                Goodput((0.0, 1.0), **values)
        with pytest.raises(ScenarioError, match="phases"):
            ElasticModel(REAL, ((0.5, 1.0),))


def question_of(rates, capacity, options=None, age=1000.0):
    jobs = []
    for number, rate in enumerate(rates):
        sizes = np.arange(1, len(rate) + 1)
        job = RoundJob(str(number), 0.0, 0 * sizes, sizes, (JobPhase(1.0, np.array(rate), np.array(rate)),))
        if options is not None:
            job.option, job.start = options[number], 0.0
        jobs.append(job)
    return Round(age, jobs, (capacity,), 30.0)


def least_cost(question, power=-1.0):
    """Of all allocations that serve as many jobs as there is room for, the least sum."""
    ways = [offered(job, 0.0) for job in question.jobs]
    table = [costs(question, job, power) for job in question.jobs]
    best = math.inf
    for chosen in itertools.product(*ways):
        if (
            sum(job.gpus[option] for job, option in zip(question.jobs, chosen, strict=True))
            <= question.capacity[0]
        ):
            best = min(best, sum(cost[option] for cost, option in zip(table, chosen, strict=True)))
    return best


class TestAllocation:
    RISING = st.lists(st.floats(0.05, 1.0), min_size=8, max_size=8)

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(RISING, min_size=1, max_size=3), st.integers(3, 8), st.sampled_from([-1.0, -3.0]), st.data()
    )
    def test_against_all_allocations(self, gains, capacity, power, data):
        # Gains that fall are concave, where greedy is exact; any others are what exchanges are for.
        concave = data.draw(st.booleans())
        rates = [np.cumsum(sorted(gain, reverse=True) if concave else gain) for gain in gains]
        question = question_of(rates, capacity)
        chosen = by_power_mean(power)(question)
        table = [costs(question, job, power) for job in question.jobs]
        found = sum(cost[option] for cost, option in zip(table, chosen, strict=True))
        used = sum(job.gpus[option] for job, option in zip(question.jobs, chosen, strict=True))
        assert used <= capacity
        best = least_cost(question, power)
        assert found <= best * (1 + 1e-9 if concave else 1.1)

    def test_who_came_first_is_served_where_there_is_too_little(self):
        assert by_power_mean()(question_of([[1.0, 2.0]] * 3, 2)) == [0, 0, -1]

    def test_a_small_gain_is_not_worth_a_restart(self):
        rates, present = [[1.0, 1.01, 1.02]], [0]
        assert by_power_mean()(question_of(rates, 3, present, age=100.0)) == [0]
        assert by_power_mean()(question_of(rates, 3, present, age=1e6)) == [2]

    def test_gpus_that_add_nothing_are_given_back_even_if_nobody_waits(self):
        assert by_power_mean()(question_of([[1.0, 1.5, 1.4]], 3, [2])) == [1]
        assert by_power_mean(least_gain=0.6)(question_of([[1.0, 1.5, 1.4]], 3, [2])) == [0]


class TestRuns:
    @pytest.mark.parametrize("nodes", [1, 3])
    def test_one_job_that_scales_linearly_takes_work_over_gpus(self, nodes):
        fleet = Fleet(BOARD, nodes, 8)
        run = schedule_elastic(jobs_of((60.0, 4800.0, 1, "linear")), LINEAR, fleet, policy="p", restart_s=0.0)
        assert run.outcomes["end"].to_list() == [60 + 4800 / fleet.gpus]
        assert run.outcomes["gpu_s"].to_list() == [4800.0]

    def test_two_equal_jobs_share_and_the_last_gets_all(self):
        run = schedule_elastic(
            jobs_of((0, 4800.0, 1, "linear"), (0, 2400.0, 1, "linear")), LINEAR, NODE, policy="p"
        )
        # Four GPUs each until 600 s, then a restart of 30 s, then eight for what is left.
        assert run.outcomes["end"].to_list() == [600 + 30 + 2400 / 8, 600]
        assert run.outcomes["lost_gpu_s"].to_list() == [8 * 30, 0]
        assert run.outcomes["preemptions"].to_list() == [1, 0]

    def test_decisions_fall_on_rounds(self):
        run = schedule_elastic(jobs_of((61.0, 800.0, 1, "linear")), LINEAR, NODE, policy="p", round_s=60.0)
        assert run.outcomes.select("first_start", "queued_s").row(0) == (120, 59)

    @settings(max_examples=25, deadline=None)
    @given(
        st.lists(st.tuples(st.integers(0, 3000), st.floats(1e3, 5e6), st.integers(1, 8)), min_size=1, max_size=15),
        st.integers(1, 3), st.integers(1, 8),
    )  # fmt: skip
    def test_work_is_conserved_and_no_gpu_is_held_twice(self, most_held, rows, nodes, per_node):
        models = {"real": ElasticModel(REAL, ((0.4, 500.0), (0.6, 5000.0)))}
        fleet = Fleet(BOARD, nodes, per_node)
        jobs = jobs_of(*((submit, examples, min(gpus, per_node), "real") for submit, examples, gpus in rows))
        run = schedule_elastic(jobs, models, fleet, policy="p")
        assert all(gpus <= per_node for gpus in most_held(run.places).values())
        assert run.outcomes["end"].null_count() == 0
        for row, job in zip(run.outcomes.iter_rows(named=True), jobs.iter_rows(named=True), strict=True):
            held = run.places.filter(pl.col("job_id") == row["job_id"]).group_by("start_s", "end_s")
            spells = held.agg(pl.col("gpus").sum(), nodes=pl.len()).sort("start_s").rows()
            left, done = [0.4 * job["examples"], 0.6 * job["examples"]], 0
            for number, (start, end, gpus, count) in enumerate(spells):
                seconds = end - start - (30.0 if number else 0.0)
                while seconds > 1e-6 and done < 2:
                    rate = REAL.best(gpus, one_node=count == 1, noise_scale=(500.0, 5000.0)[done])
                    spent = min(seconds, left[done] / rate)
                    left[done] -= spent * rate
                    seconds -= spent
                    done += left[done] <= 1e-6 * job["examples"]
            assert done == 2
            assert seconds < 1e-3
        changes = run.outcomes["preemptions"].sum()
        assert (
            changes <= 4 * jobs.height * jobs.height
        )  # rounds are held at arrivals, ends and changes of phase alone

    @pytest.mark.parametrize(
        ("noise", "late"),
        [((20000.0, 100.0), "fewer"), ((100.0, 20000.0), "more"), ((900.0, 900.0), "as many")],
    )
    def test_late_phases_give_back_gpus_only_if_their_noise_scale_says_so(self, noise, late):
        models = {"real": ElasticModel(REAL, ((0.5, noise[0]), (0.5, noise[1])))}
        allocate = by_power_mean(least_gain=0.25)
        run = schedule_elastic(jobs_of((0, 5e7, 1, "real")), models, NODE, policy="p", allocate=allocate)
        gpus = run.places.sort("start_s")["gpus"].to_list()
        assert {"fewer": gpus[-1] < gpus[0], "more": gpus[-1] > gpus[0], "as many": len(gpus) == 1}[late]

    @pytest.mark.long
    def test_the_rigid_twin_takes_its_own_closed_form(self):
        models = {"real": ElasticModel(REAL, ((0.25, 500.0), (0.75, 5000.0)))}
        jobs = jobs_of((0, 1e6, 8, "real"))
        rigid = rigid_jobs(jobs, models, NODE)
        rates = [REAL.best(8, one_node=True, noise_scale=noise) for noise in (500.0, 5000.0)]
        assert rigid["run_s"].to_list() == [pytest.approx(0.25e6 / rates[0] + 0.75e6 / rates[1])]
        alone = schedule(rigid, NODE, GangRules(queue="strict"), policy="rigid")
        elastic = schedule_elastic(jobs, models, NODE, policy="elastic")
        assert elastic.outcomes["end"].to_list() == pytest.approx(alone["end"].to_list())


class TestRefused:
    def test_bad_input(self):
        with pytest.raises(SchemaError, match=r"'job_class'.*'other'"):
            schedule_elastic(jobs_of((0, 1.0, 1, "other")), LINEAR, NODE, policy="p")
        with pytest.raises(ScenarioError, match=r"at most the 8 GPUs.*'0'"):
            rigid_jobs(jobs_of((0, 1.0, 9, "linear")), LINEAR, NODE)
        with pytest.raises(ScenarioError, match="round_s above 0"):
            schedule_elastic(jobs_of((0, 1.0, 1, "linear")), LINEAR, NODE, policy="p", round_s=0.0)

    def test_jobs_that_no_batch_allows(self):
        stuck = {"linear": ElasticModel(Goodput((0.0, 1.0), batch0=100, most_per_gpu=2), ((1.0, 1.0),))}
        with pytest.raises(ScenarioError, match="elastic job '0'"):
            schedule_elastic(jobs_of((0, 1.0, 1, "linear")), stuck, NODE, policy="p")
        with pytest.raises(SchemaError, match="sizes that some batch allows"):
            rigid_jobs(jobs_of((0, 1.0, 1, "linear")), stuck, NODE)
