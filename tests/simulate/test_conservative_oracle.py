"""Conservative backfill against a slow planner that counts GPUs second by second."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.errors import SchemaError
from gpuplanner.simulate import Fleet, Rules, schedule

BOARD = "H100-80GB-SXM5"
RULES = Rules(queue="conservative")


class Naive:
    """Every waiting job has a start and nodes; room is counted at every second from the list of holders."""

    def __init__(self, jobs, nodes, per_node):
        self.jobs, self.nodes, self.per_node = jobs, nodes, per_node
        self.plans = {}  # job -> (start, due, {node: GPUs}), waiting or running
        self.waiting, self.starts, self.promises = [], {}, {}

    def room(self, node, second, without):
        held = (
            where.get(node, 0)
            for job, (start, due, where) in self.plans.items()
            if job != without and start <= second < due
        )
        return self.per_node - sum(held)

    def plan(self, job, now):
        _, _, gpus, limit = self.jobs[job]
        part, count = min(gpus, self.per_node), -(-gpus // self.per_node)
        start = now
        while True:
            window = range(start, start + max(limit, 1))
            least = [min(self.room(node, second, job) for second in window) for node in range(self.nodes)]
            able = sorted((room, node) for node, room in enumerate(least) if room >= part)
            if len(able) >= count:
                where = {
                    node: min(gpus - rank * self.per_node, self.per_node)
                    for rank, (_, node) in enumerate(able[:count])
                }
                self.plans[job] = (start, start + limit, where)
                return
            start += 1

    def simulate(self):
        arrivals = list(range(len(self.jobs)))
        ends = {}
        while arrivals or ends:
            now = min([self.jobs[job][0] for job in arrivals[:1]] + list(ends.values()))
            early = False
            for job in [job for job, end in ends.items() if end == now]:
                early |= self.plans.pop(job)[1] > ends.pop(job)
            for job in self.waiting if early else []:
                self.plan(job, now)
            while arrivals and self.jobs[arrivals[0]][0] == now:
                job = arrivals.pop(0)
                self.waiting.append(job)
                self.plan(job, now)
                self.promises[job] = self.plans[job][0]
            for job in [job for job in self.waiting if self.plans[job][0] == now]:
                self.waiting.remove(job)
                self.starts[job], ends[job] = now, now + self.jobs[job][1]
        return self.starts


@st.composite
def clusters(draw):
    nodes, per_node = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    submits = sorted(draw(st.lists(st.integers(0, 15), min_size=1, max_size=12)))
    factor = draw(st.sampled_from([1, 2, 5]))
    jobs = []
    for submit in submits:
        run = draw(st.integers(0, 8))
        jobs.append((submit, run, draw(st.integers(1, nodes * per_node)), factor * run))
    return jobs, nodes, per_node


def starts_of(jobs, nodes, per_node, rules=RULES):
    frame = pl.DataFrame(jobs, schema=["submit_s", "run_s", "gpus", "limit_s"], orient="row").select(
        pl.int_range(pl.len()).cast(pl.String).alias("job_id"),
        pl.all(),
        tenant=pl.lit("t"),
        profile=pl.lit("gpu"),
    )
    run = schedule(frame, Fleet(BOARD, nodes, per_node), rules, policy="p")
    return dict(enumerate(run["first_start"]))


@settings(max_examples=60, deadline=None)
@given(clusters())
def test_starts_with_limits_exact_or_two_or_five_times_too_long(cluster):
    naive = Naive(*cluster)
    starts = starts_of(*cluster)
    assert starts == naive.simulate()
    # A job without duration reserves nothing: for an instant it may hold GPUs that are promised to another. A
    # job over several nodes asks for as many free GPUs on the last as on the others: where it holds fewer there
    # and others fill the rest, it does not find its own old place again, and may start later than promised.
    per_node = cluster[2]
    if all(run and (gpus <= per_node or gpus % per_node == 0) for _, run, gpus, _ in cluster[0]):
        assert all(starts[job] <= naive.promises[job] for job in starts)


def test_many_reservations_at_once_need_more_pieces_than_there_are_to_begin_with():
    jobs = [(0, 80, 4, 80), *((second, 5, 1 + second % 4, 5) for second in range(1, 60))]
    assert starts_of(jobs, 1, 4) == Naive(jobs, 1, 4).simulate()


def test_it_keeps_a_promise_that_easy_breaks():
    # The head needs 3 GPUs at 20; the last job leaves them to it, but not all 4 to the one in between at 25.
    jobs = [(0, 10, 2, 10), (0, 20, 2, 20), (1, 5, 3, 5), (2, 5, 4, 5), (3, 30, 1, 30)]
    assert starts_of(jobs, 1, 4) == {0: 0, 1: 0, 2: 20, 3: 25, 4: 30}
    assert starts_of(jobs, 1, 4, Rules(queue="easy")) == {0: 0, 1: 0, 2: 20, 3: 40, 4: 10}


def test_a_limit_below_the_run_time_is_refused():
    with pytest.raises(SchemaError, match=r"limits not below run_s.*1 others: '1'"):
        starts_of([(0, 10, 1, 10), (0, 10, 1, 9)], 1, 4)
