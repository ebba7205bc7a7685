"""Rules over gangs where the answer can be worked out by hand; what is refused; what never ends."""

from __future__ import annotations

import polars as pl
import pytest

from gpuplanner.errors import ScenarioError, SchemaError
from gpuplanner.lab.gangs import GangRules, schedule, schedule_by
from gpuplanner.simulate import Calendar, Checkpoints, Failures, FairShare, Fleet, Preemption, simulate

BOARD = "H100-80GB-SXM5"
NODE = Fleet(BOARD, 1, 4)
STRICT = GangRules(queue="strict")


def gangs(*rows, **columns):
    """Rows of (job_id, submit_s, run_s, gpus)."""
    frame = pl.DataFrame(rows, schema=["job_id", "submit_s", "run_s", "gpus"], orient="row")
    return frame.with_columns(tenant=pl.lit("t"), profile=pl.lit("gpu")).with_columns(
        **{name: pl.Series(values) for name, values in columns.items()}
    )


class TestTiers:
    PREEMPTION = Preemption(overhead_s=((4, 10.0),), min_run_s=30.0)

    def run(self, jobs, **rules):
        rules = {"queue": "strict", "tiers_preempt": True, "preemption": self.PREEMPTION} | rules
        return schedule(jobs, NODE, GangRules(**rules), policy="p")

    def test_a_stopped_job_loses_the_work_since_its_checkpoint_and_pays_the_overhead(self):
        jobs = gangs(("low", 0, 100, 4), ("high", 50, 20, 2), tier=[1, 0])
        run = self.run(jobs, checkpoints=Checkpoints(interval_s=15.0))
        # Stopped at 50 with 45 s saved; back at 70 with 10 s of overhead and 55 s of work.
        assert run["first_start"].to_list() == [0, 50]
        assert run["end"].to_list() == [135, 70]
        assert run["preemptions"].to_list() == [1, 0]
        assert run["lost_gpu_s"].to_list() == [4 * (5 + 10), 0]
        assert run["queued_s"].to_list() == [20, 0]

    def test_without_checkpoints_all_work_is_lost(self):
        run = self.run(gangs(("low", 0, 100, 4), ("high", 50, 20, 2), tier=[1, 0]))
        assert run["end"].to_list() == [180, 70]
        assert run["lost_gpu_s"].to_list() == [4 * 60, 0]

    def test_writing_checkpoints_takes_time(self):
        run = self.run(gangs(("a", 0, 100, 4)), checkpoints=Checkpoints(interval_s=25.0, write_s=2.0))
        assert run["end"].to_list() == [106]
        assert run["lost_gpu_s"].to_list() == [24]

    def test_a_job_that_began_lately_is_left_alone_until_it_has_run_its_time(self):
        run = self.run(gangs(("low", 0, 100, 4), ("high", 5, 20, 2), tier=[1, 0]))
        assert run["first_start"].to_list() == [0, 30]

    def test_of_those_that_would_do_the_least_urgent_and_latest_is_stopped_and_no_other(self):
        jobs = gangs(
            ("a", 0, 900, 1), ("b", 1, 900, 1), ("c", 2, 900, 1), ("d", 3, 900, 1), ("urgent", 100, 10, 1),
            tier=[2, 2, 1, 1, 0],
        )  # fmt: skip
        assert self.run(jobs)["preemptions"].to_list() == [0, 1, 0, 0, 0]

    def test_who_does_not_stand_in_the_way_is_spared(self):
        # One job of the second node alone makes room for two GPUs; the one stopped before it is spared.
        jobs = gangs(
            ("a", 0, 900, 2), ("b", 0, 900, 1), ("c", 1, 900, 1), ("urgent", 100, 10, 2), tier=[1, 1, 2, 0]
        )
        run = schedule(
            jobs,
            Fleet(BOARD, 2, 2),
            GangRules(queue="strict", tiers_preempt=True, preemption=self.PREEMPTION),
            policy="p",
        )
        assert run["preemptions"].to_list() == [0, 1, 1, 0]

    def test_nobody_is_stopped_for_the_same_tier_or_in_vain(self):
        jobs = gangs(("a", 0, 100, 2), ("b", 0, 100, 2), ("same", 50, 10, 4), tier=[1, 0, 0])
        assert self.run(jobs)["preemptions"].to_list() == [0, 0, 0]


class TestOrders:
    def test_qssf_goes_by_the_prediction_not_by_the_duration(self):
        jobs = gangs(("a", 0, 10, 4), ("b", 1, 10, 4), ("c", 1, 99, 4), predicted_gpu_s=[1.0, 50.0, 40.0])
        run = schedule(jobs, NODE, GangRules(queue="strict", order="qssf"), policy="p")
        assert run["first_start"].to_list() == [0, 109, 10]

    @pytest.mark.parametrize(
        ("fair", "starts"),
        [
            (FairShare(half_life_s=1e9), [0, 900, 920, 910]),
            (FairShare(half_life_s=10.0), [0, 900, 910, 920]),
            (FairShare(1e9, {"x": 1000.0}), [0, 900, 910, 920]),
        ],
    )
    def test_fair_share_goes_by_use_for_each_share_and_forgets(self, fair, starts):
        jobs = gangs(
            ("x1", 0, 100, 4), ("y1", 900, 10, 4), ("x2", 905, 10, 4), ("y2", 905, 10, 4), tenant=list("xyxy")
        )  # fmt: skip
        run = schedule(jobs, NODE, GangRules(queue="strict", order="fair", fair_share=fair), policy="p")
        assert run["first_start"].to_list() == starts


class TestFailures:
    JOBS = gangs(*((str(job), job, 50_000, 1 + job % 4) for job in range(200)))

    def run(self, order="fifo", **values):
        rules = GangRules(
            queue="pass", order=order, failures=Failures(**({"mtbf_gpu_h": 20.0} | values)),
            checkpoints=Checkpoints(write_s=30.0),
        )  # fmt: skip
        return schedule(self.JOBS, Fleet(BOARD, 4, 8), rules, policy="p")

    def test_held_time_is_work_and_loss(self):
        run = self.run()
        assert run["preemptions"].sum() > 50
        held = (run["jct_s"] - run["queued_s"]) * run["gpus"]
        parts = 50_000.0 * run["gpus"] + run["lost_gpu_s"]
        assert (held - parts).abs().max() < 1e-3

    def test_the_same_seed_fails_the_same_jobs_under_another_policy(self):
        first = self.run()
        assert first.equals(self.run())
        assert first["preemptions"].to_list() == self.run(order="sjf")["preemptions"].to_list()
        assert first["preemptions"].to_list() != self.run(seed=1)["preemptions"].to_list()

    def test_a_job_that_never_gets_on_is_named_instead_of_run_for_ever(self):
        rules = GangRules(queue="strict", failures=Failures(mtbf_gpu_h=0.001))
        with pytest.raises(ScenarioError, match="job 'doomed': expected an end after at most 10000 starts"):
            schedule(gangs(("fine", 0, 1, 1), ("doomed", 1, 1000, 4)), NODE, rules, policy="p")


class TestRefused:
    def test_jobs_larger_than_the_fleet(self):
        jobs = gangs(("a", 0, 1, 9), ("b", 0, 1, 8), ("c", 0, 1, 6))
        with pytest.raises(ScenarioError, match=r"nodes=2, gpus_per_node=4; got 1 others: 'a'"):
            schedule(jobs, Fleet(BOARD, 2, 4), STRICT, policy="p")
        with pytest.raises(ScenarioError, match="'a', 'c'"):
            schedule(jobs.filter(pl.col("job_id") != "b"), Fleet(BOARD, 1, 5), STRICT, policy="p")

    def test_instances_unknown_predictions_and_limits(self):
        with pytest.raises(SchemaError, match="'profile': expected jobs on whole GPUs"):
            schedule(gangs(("a", 0, 1, 1), profile=["1g.10gb"]), NODE, STRICT, policy="p")
        with pytest.raises(SchemaError, match=r"'predicted_gpu_s'.*'a'"):
            schedule(gangs(("a", 0, 1, 1)), NODE, GangRules(order="qssf", queue="pass"), policy="p")
        with pytest.raises(SchemaError, match="'limit_s'"):
            schedule(gangs(("a", 0, 1, 1)), NODE, GangRules(queue="easy"), policy="p")

    def test_negative_durations(self):
        with pytest.raises(SchemaError, match="run_s below 0"):
            schedule(gangs(("a", 0, -1, 1)), NODE, STRICT, policy="p")

    @pytest.mark.parametrize(
        ("values", "words"),
        [
            ({"queue": "backfil"}, "rules: queue 'backfil' is unknown"),
            ({"order": "sjff"}, "Did you mean 'sjf'"),
        ],
    )
    def test_rules_that_do_not_go_together(self, values, words):
        with pytest.raises(ScenarioError, match=words):
            GangRules(**values)

    @pytest.mark.parametrize(
        "make",
        [
            lambda: Preemption(overhead_s=((8, 1.0), (1, 2.0))),
            lambda: Preemption(start_lag_s=-1.0),
            lambda: Checkpoints(interval_s=-1.0),
            lambda: Checkpoints(interval_s=0.0, write_s=1.0),
            lambda: Failures(mtbf_gpu_h=0.0),
            lambda: FairShare(half_life_s=0.0),
            lambda: FairShare(shares={"a": 0.0}),
        ],
    )
    def test_parts_of_rules_out_of_range(self, make):
        with pytest.raises(ScenarioError, match=r"not below 0|above 0"):
            make()

    @pytest.mark.parametrize("values", [{"order": "sjf"}, {"queue": "pass"}, {"failures": Failures()}])
    def test_a_run_over_a_calendar_knows_fifo_alone(self, values):
        jobs, calendar = gangs(("a", 0, 1, 1), limit_s=[1.0]), Calendar.constant({"gpu": 4})
        with pytest.raises(ScenarioError, match="Orders and stops are for gangs"):
            simulate(jobs, NODE, calendar, GangRules(**values), policy="p")


def test_no_jobs_give_no_outcomes():
    for rules in (STRICT, GangRules(), GangRules(order="sjf", queue="pass")):
        assert schedule(gangs(("a", 0, 1, 1)).clear(), NODE, rules, policy="p").height == 0


def test_jobs_without_duration_and_all_at_once_end():
    jobs = gangs(*((str(number), 0, 0, 1 + number % 4) for number in range(100))).with_columns(
        limit_s="run_s"
    )
    for rules in (STRICT, GangRules(), GangRules(queue="pass", order="sjf")):
        run = schedule(jobs, NODE, rules, policy="p")
        assert run["end"].to_list() == [0.0] * 100


class TestOwnPolicy:
    def test_a_policy_that_starts_nothing_is_told_so(self):
        with pytest.raises(ScenarioError, match="1 that wait in an empty fleet, 'a' first"):
            schedule_by(lambda cluster: None, gangs(("a", 0, 1, 1)), NODE, policy="idle")

    def test_a_policy_that_stops_and_starts_for_ever_is_cut_short(self):
        def thrash(cluster):
            for job in list(cluster.running):
                cluster.stop(job)
            for job in list(cluster.waiting):
                cluster.start(job)
            cluster.wake_at(cluster.now + 1)

        with pytest.raises(ScenarioError, match="job 'a': expected at most 10000 starts"):
            schedule_by(thrash, gangs(("a", 0, 1000, 1)), NODE, policy="thrash", preemption=Preemption())

    def test_starting_who_runs_and_stopping_who_waits_is_named(self):
        def start_twice(cluster):
            job = cluster.waiting[0]
            cluster.start(job)
            cluster.start(job)

        def stop_who_waits(cluster):
            cluster.stop(cluster.waiting[0])

        jobs = gangs(("a", 0, 1, 1))
        with pytest.raises(ScenarioError, match="job 'a': expected a job that waits; got one that runs"):
            schedule_by(start_twice, jobs, NODE, policy="mine")
        with pytest.raises(ScenarioError, match="job 'a': expected a job that runs; got one that waits"):
            schedule_by(stop_who_waits, jobs, NODE, policy="mine")
