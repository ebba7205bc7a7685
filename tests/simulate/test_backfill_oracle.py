"""The compiled queues against a slow simulator written from the same sentences, on random small fleets."""

from __future__ import annotations

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.simulate import Calendar, Fleet, Rules, simulate
from tests.examples import examples

BOARD = "H100-80GB-SXM5"


class Naive:
    """Whole GPUs on nodes, strict or EASY; recounts everything at every instant."""

    def __init__(self, jobs, nodes, per_node, easy):
        self.jobs, self.per_node, self.easy = jobs, per_node, easy
        self.idle = [per_node] * nodes
        self.running = {}  # job -> (end, due, {node: GPUs})
        self.queue, self.starts, self.promises = [], {}, {}

    def simulate(self):
        instants = {submit for submit, _, _, _ in self.jobs}
        while instants or self.running:
            now = min([*instants, *(end for end, _, _ in self.running.values())])
            for job in [job for job, (end, _, _) in self.running.items() if end == now]:
                for node, gpus in self.running.pop(job)[2].items():
                    self.idle[node] += gpus
            if now in instants:
                instants.discard(now)
                self.queue += [job for job, row in enumerate(self.jobs) if row[0] == now]
            while self.queue and self.start(self.queue[0], now, self.place(self.queue[0], self.idle)):
                pass
            if self.queue and self.easy:
                self.backfill(now)
        return self.starts

    def place(self, job, idle, ceiling=None):
        gpus = self.jobs[job][2]
        part, count = min(gpus, self.per_node), -(-gpus // self.per_node)
        able = [n for n, free in enumerate(idle) if free >= part and (ceiling is None or ceiling[n] >= part)]
        chosen = sorted(able, key=lambda node: (idle[node], node))[:count]
        if len(chosen) < count:
            return None
        return {node: min(gpus - k * self.per_node, self.per_node) for k, node in enumerate(chosen)}

    def start(self, job, now, where):
        if where is None:
            return False
        _, run, _, limit = self.jobs[job]
        for node, gpus in where.items():
            self.idle[node] -= gpus
        self.queue.remove(job)
        self.starts[job], self.running[job] = now, (now + run, now + limit, where)
        return True

    def backfill(self, now):
        head = self.queue[0]
        future, ceiling = list(self.idle), [self.per_node] * len(self.idle)
        for shadow in sorted({max(due, now) for _, due, _ in self.running.values()}):
            future = list(self.idle)
            for _, due, where in self.running.values():
                if max(due, now) <= shadow:
                    for node, gpus in where.items():
                        future[node] += gpus
            if where := self.place(head, future):
                break
        self.promises.setdefault(head, shadow)
        part = min(self.jobs[head][2], self.per_node)
        for node in where:
            ceiling[node] = future[node] - part
        for job in self.queue[1:]:
            in_the_way = now + self.jobs[job][3] > shadow
            where = self.place(job, self.idle, ceiling if in_the_way else None)
            if self.start(job, now, where) and in_the_way:
                for node, gpus in where.items():
                    ceiling[node] -= gpus


@st.composite
def clusters(draw, exact_limits):
    nodes, per_node = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    n = draw(st.integers(1, 25))
    submit = sorted(draw(st.lists(st.integers(0, 40), min_size=n, max_size=n)))
    jobs = []
    for instant in submit:
        run = draw(st.integers(0, 30))
        limit = run if exact_limits else draw(st.integers(0, 60))
        jobs.append((instant, run, draw(st.integers(1, nodes * per_node)), limit))
    return jobs, nodes, per_node


def compiled_starts(jobs, nodes, per_node, queue):
    frame = pl.DataFrame(jobs, schema=["submit_s", "run_s", "gpus", "limit_s"], orient="row").select(
        pl.int_range(pl.len()).cast(pl.String).alias("job_id"),
        pl.all(),
        tenant=pl.lit("t"),
        profile=pl.lit("gpu"),
    )
    calendar = Calendar.constant({"gpu": nodes * per_node})
    run = simulate(frame, Fleet(BOARD, nodes, per_node), calendar, Rules(queue=queue), policy=queue)
    return dict(enumerate(run.outcomes["first_start"]))


@settings(max_examples=examples(60), deadline=None)
@given(clusters(exact_limits=False))
def test_strict_queue(cluster):
    assert compiled_starts(*cluster, "strict") == Naive(*cluster, easy=False).simulate()


@settings(max_examples=examples(80), deadline=None)
@given(clusters(exact_limits=False))
def test_easy_with_limits_that_are_too_long_or_too_short(cluster):
    assert compiled_starts(*cluster, "easy") == Naive(*cluster, easy=True).simulate()


@settings(max_examples=examples(60), deadline=None)
@given(clusters(exact_limits=True))
def test_easy_never_delays_the_head_beyond_what_it_was_promised(cluster):
    naive = Naive(*cluster, easy=True)
    starts = compiled_starts(*cluster, "easy")
    assert starts == naive.simulate()
    assert all(starts[head] <= promise for head, promise in naive.promises.items())
