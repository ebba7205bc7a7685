"""The compiled loops over gangs against Python functions written from the same sentences, on small clusters."""

from __future__ import annotations

import math

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from gpuplanner.lab.gangs import GangRules, in_order, run_gangs, run_gangs_by, schedule
from gpuplanner.simulate import Calendar, Checkpoints, FairShare, Fleet, Preemption, Rules, simulate

pytestmark = pytest.mark.long
BOARD = "H100-80GB-SXM5"
FREE = Preemption(overhead_s=((1, 0.0),), start_lag_s=0.0)


@st.composite
def clusters(draw, most=25):
    """A small fleet, and jobs for which time and nodes are short."""
    nodes, per_node = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    instant, small = st.integers(0, 40), st.integers(0, 60)
    size = st.integers(1, nodes * per_node).filter(lambda gpus: -(-gpus // per_node) <= nodes)
    row = st.tuples(
        instant, st.integers(0, 30), size, small, st.sampled_from("abc"), st.integers(0, 2), small
    )
    rows = draw(st.lists(row, min_size=1, max_size=most))
    names = ["submit_s", "run_s", "gpus", "slack_s", "tenant", "tier", "predicted_gpu_s"]
    jobs = pl.DataFrame(rows, schema=names, orient="row").select(
        pl.int_range(pl.len()).cast(pl.String).alias("job_id"),
        pl.exclude("slack_s"),
        profile=pl.lit("gpu"),
        limit_s=pl.col("run_s") + pl.col("slack_s"),
    )
    return jobs, Fleet(BOARD, nodes, per_node)


def assert_same(jobs, fleet, rules, choose, **options):
    """The compiled loop and the function give the same outcomes, and the same spells."""
    compiled = run_gangs(jobs, fleet, rules, policy="p")
    mine = run_gangs_by(choose, jobs, fleet, policy="p", **options)
    assert_frame_equal(compiled.outcomes, mine.outcomes)
    assert_frame_equal(compiled.spells, mine.spells)


KEYS = {
    "fifo": lambda job: (job.tier, job.number),
    "sjf": lambda job: (job.tier, job.left_s, job.number),
    "qssf": lambda job: (job.tier, job.predicted_gpu_s, job.number),
}


@pytest.mark.parametrize("queue", ["strict", "pass"])
@pytest.mark.parametrize("order", list(KEYS))
@settings(max_examples=30, deadline=None)
@given(cluster=clusters())
def test_orders_known_beforehand(cluster, order, queue):
    jobs, fleet = cluster
    assert_same(
        jobs, fleet, GangRules(order=order, queue=queue), in_order(KEYS[order], passing=queue == "pass")
    )


class Fair:
    """Tenants in turn by decayed use per share, counted from the whole history at every instant."""

    def __init__(self, shares, half_life, passing):
        self.shares, self.half_life, self.passing = shares, half_life, passing
        self.seen = []

    def used(self, cluster, tenant):
        rate, total = math.log(2) / self.half_life, 0.0
        for job in self.seen:
            if job.tenant == tenant and job.starts:
                end = min(job.end_s, cluster.now)
                young, old = (
                    math.exp(-rate * (cluster.now - end)),
                    math.exp(-rate * (cluster.now - job.since_s)),
                )
                total += job.gpus * (young - old) / rate
        return round(total / self.shares[tenant], 6)

    def __call__(self, cluster):
        self.seen += [job for job in cluster.waiting if job not in self.seen]
        use = {tenant: self.used(cluster, tenant) for tenant in self.shares}
        policy = in_order(lambda job: (job.tier, use[job.tenant], job.number), passing=self.passing)
        policy(cluster)


@settings(max_examples=50, deadline=None)
@given(clusters(), st.booleans())
def test_fair_share(cluster, passing):
    jobs, fleet = cluster
    shares = {"a": 1.0, "b": 2.5, "c": 0.7}
    rules = GangRules(order="fair", queue="pass" if passing else "strict", fair_share=FairShare(20.0, shares))
    assert_same(jobs, fleet, rules, Fair(shares, 20.0, passing))


class Tiers:
    """A job that does not fit stops less urgent ones, and spares those not in its way."""

    def __init__(self, min_run):
        self.min_run = min_run

    def __call__(self, cluster):
        while cluster.waiting:
            job = min(cluster.waiting, key=lambda job: (job.tier, job.number))
            if cluster.start(job):
                continue
            for victim in self.victims(cluster, job):
                cluster.stop(victim)
            if not cluster.start(job):
                return

    def victims(self, cluster, job):
        lower = [other for other in cluster.running if other.tier > job.tier]
        for other in lower:
            cluster.wake_at(other.since_s + self.min_run)
        able = [other for other in lower if other.since_s + self.min_run <= cluster.now]
        able.sort(key=lambda other: (other.tier, other.since_s, other.number), reverse=True)
        stopped = []
        for victim in able:
            if self.fits(cluster, job, stopped):
                break
            stopped.append(victim)
        if not self.fits(cluster, job, stopped):
            return []
        for victim in reversed(list(stopped)):
            rest = [other for other in stopped if other is not victim]
            if self.fits(cluster, job, rest):
                stopped = rest
        return stopped

    def fits(self, cluster, job, stopped):
        before = list(cluster.idle)
        for victim in stopped:
            for node, gpus in victim.nodes.items():
                cluster.idle[node] += gpus
        found = bool(cluster.place(job.gpus))
        cluster.idle = before
        return found


@settings(max_examples=80, deadline=None)
@given(clusters(), st.sampled_from([0.0, 7.0]))
def test_tiers_that_stop_others(cluster, min_run):
    jobs, fleet = cluster
    preemption = Preemption(overhead_s=((1, 0.0),), start_lag_s=0.0, min_run_s=min_run)
    rules = GangRules(
        queue="strict", tiers_preempt=True, preemption=preemption, checkpoints=Checkpoints(interval_s=0.0)
    )
    assert_same(jobs, fleet, rules, Tiers(min_run), preemption=preemption)


@settings(max_examples=50, deadline=None)
@given(clusters(), st.sampled_from(["strict", "easy"]))
def test_the_loop_over_calendars_gives_the_same(cluster, queue):
    jobs, fleet = cluster
    calendar = Calendar.constant({"gpu": fleet.gpus})
    rules = GangRules(queue=queue)
    run = simulate(jobs, fleet, calendar, Rules(queue=queue), policy="p")
    mine = schedule(jobs.with_columns(tier=0), fleet, rules, policy="p")
    assert_frame_equal(mine.drop("gpu"), run.outcomes.drop("gpu"))
