"""Jobs on nodes of equal size against a slow program, and queues whose mean wait is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpuplanner.simulator.replications import mean_interval
from tests.simulator.equal_nodes import start_jobs

CASES = 40


def random_jobs(seed):
    """Jobs and a fleet; instants coincide, some jobs are larger than a node and some last no time."""
    rng = np.random.default_rng(seed)
    nodes, per_node = int(rng.choice([1, 2, 5, 70])), int(rng.choice([1, 4, 8]))
    count = int(rng.integers(1, 120))
    submit_s = np.sort(rng.integers(0, 60, count)).astype(float)
    run_s = rng.choice([0.0, 1.0, 5.0, 30.0, 31.0], count)
    gpus = np.minimum(rng.choice([1, 2, 3, 8, 12, 16], count), nodes * per_node)
    return submit_s, run_s, gpus, nodes, per_node


def start_slowly(submit_s, run_s, gpus, nodes, per_node, passing, shortest_first):
    """The same rules, with a list of nodes and a look at every job and every node at every instant."""
    free, waiting, running = [per_node] * nodes, [], []
    start_s = [math.nan] * len(gpus)
    for now in sorted({*submit_s.tolist(), *np.cumsum(np.ones(4000)) - 1}):
        settled = False
        while not settled:
            for end, job, held in [entry for entry in running if entry[0] <= now]:
                running.remove((end, job, held))
                for node, part in held:
                    free[node] += part
            settled = True
            waiting += [
                job
                for job in range(len(gpus))
                if submit_s[job] == now and math.isnan(start_s[job]) and job not in waiting
            ]
            if shortest_first:
                waiting.sort(key=lambda job: (run_s[job], job))
            for job in list(waiting):
                full, rest = divmod(int(gpus[job]), per_node)
                parts = [per_node] * full + [rest] * (rest > 0)
                held, left = [], list(free)
                for part in parts:
                    able = [node for node in range(nodes) if left[node] >= part]
                    if not able:
                        break
                    node = min(able, key=lambda node: (left[node], node))
                    left[node] -= part
                    held.append((node, part))
                if len(held) < len(parts):
                    if not passing:
                        break
                    continue
                free[:] = left
                start_s[job] = now
                waiting.remove(job)
                running.append((now + run_s[job], job, held))
                settled &= run_s[job] > 0
        if not waiting and not running and now > submit_s.max():
            break
    return start_s


@pytest.mark.parametrize("queue", ["fifo", "pass", "sjf"])
def test_starts_are_those_of_the_slow_program(queue):
    for seed in range(CASES):
        submit_s, run_s, gpus, nodes, per_node = random_jobs(seed)
        found = start_jobs(submit_s, run_s, gpus, nodes=nodes, gpus_per_node=per_node, queue=queue)
        slow = start_slowly(submit_s, run_s, gpus, nodes, per_node, queue == "pass", queue == "sjf")
        assert found.tolist() == slow, seed


@pytest.mark.parametrize(("servers", "load"), [(1, 0.7), (4, 0.8), (7, 0.8)])
def test_mean_wait_is_that_of_erlang_c(servers, load):
    """M/M/c: the 99 % interval of 20 replications holds the mean wait, and is narrow."""
    jobs, warm_up, mean_s, waits = 30_000, 3_000, 100.0, []
    for replication in range(20):
        rng = np.random.default_rng([2026, servers, replication])
        submit_s = np.cumsum(rng.exponential(mean_s / servers / load, jobs))
        run_s = rng.exponential(mean_s, jobs)
        start_s = start_jobs(submit_s, run_s, np.ones(jobs, np.int64), nodes=servers, gpus_per_node=1)
        waits.append(float((start_s - submit_s)[warm_up:].mean()))
    offered = servers * load
    waiting = offered**servers / math.factorial(servers) / (1 - load)
    share = waiting / (sum(offered**k / math.factorial(k) for k in range(servers)) + waiting)
    expected = mean_s * share / (servers * (1 - load))
    known = mean_interval(waits, level=0.99)
    assert known.low < expected < known.high
    assert known.high - known.low < 0.2 * expected


@pytest.mark.parametrize(
    ("draw", "second_moment"),
    [
        (lambda rng, count: np.ones(count), 1.0),
        (lambda rng, count: rng.uniform(0.0, 2.0, count), 4 / 3),
        (lambda rng, count: rng.exponential(1.0, count), 2.0),
        # Nine short for one long.
        (
            lambda rng, count: rng.exponential(np.where(rng.random(count) < 0.9, 0.5, 5.5)),
            2 * (0.9 * 0.25 + 0.1 * 30.25),
        ),
    ],
    ids=["constant", "uniform", "exponential", "hyperexponential"],
)
def test_mean_wait_of_one_server_is_that_of_pollaczek_and_khinchine(draw, second_moment):
    """M/G/1: load * E[S^2] / (2 E[S] (1 - load))."""
    jobs, warm_up, load, mean_s, waits = 30_000, 3_000, 0.6, 100.0, []
    for replication in range(20):
        rng = np.random.default_rng([2026, 1, replication])
        submit_s = np.cumsum(rng.exponential(mean_s / load, jobs))
        start_s = start_jobs(submit_s, mean_s * draw(rng, jobs), np.ones(jobs, np.int64), nodes=1, gpus_per_node=1)
        waits.append(float((start_s - submit_s)[warm_up:].mean()))
    expected = mean_s * load * second_moment / (2 * (1 - load))
    known = mean_interval(waits, level=0.99)
    assert known.low < expected < known.high
    assert known.high - known.low < 0.25 * expected
