"""Priorities, stops, failures and checkpoints whose means are known, on nodes that teams share: 99 % intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpuplanner.simulator.replications import mean_interval
from gpuplanner.simulator.scheduling_rules import Checkpoints, Failures, PreemptionCosts, Sharing
from gpuplanner.simulator.simulation_inputs import NodeFleet, NodeRequests
from gpuplanner.simulator.simulation_run import simulate_shared_requests

pytestmark = pytest.mark.long
MEAN_S = 100.0
JOBS, WARM_UP, REPLICATIONS = 20_000, 2_000, 20
URGENT = 0.3
"""Share of the jobs in the urgent one of two tiers."""


def erlang_c(servers: int, load: float) -> float:
    """Probability that a job of M/M/c has to wait; load is the utilization of a server."""
    offered = servers * load
    waiting = offered**servers / math.factorial(servers) / (1 - load)
    return waiting / (sum(offered**k / math.factorial(k) for k in range(servers)) + waiting)


def replicate(servers, load, measure, **rules):
    """Mean of a measure in each replication after the warm-up, by tier; shape (replications, tiers)."""
    means = []
    for replication in range(REPLICATIONS):
        rng = np.random.default_rng([2026, servers, replication])
        submit_s = np.cumsum(rng.exponential(MEAN_S / servers / load, JOBS))
        run_s = rng.exponential(MEAN_S, JOBS)
        tier = rng.choice(2, JOBS, p=[URGENT, 1 - URGENT])
        none, one = np.zeros(JOBS, np.int64), np.ones(JOBS, np.int64)
        requests = NodeRequests(submit_s, submit_s, run_s, run_s, none, one, one)
        run = simulate_shared_requests(
            requests, NodeFleet.of_full_gpus([1] * servers), Sharing(none, tier, **rules), queue="strict"
        )
        values = measure(run, submit_s)[WARM_UP:]
        means.append([values[tier[WARM_UP:] == number].mean() for number in range(2)])
    return np.array(means)


def assert_mean_is(values, expected, width):
    """The 99 % interval of the mean holds a value, and is narrow."""
    found = mean_interval(list(values), level=0.99)
    assert found.low < expected < found.high
    assert found.high - found.low < width * expected


@pytest.mark.parametrize(("servers", "load"), [(1, 0.7), (4, 0.8)])
def test_waits_of_m_m_c_with_two_priorities(servers, load):
    """Cobham (1954), nobody stopped, equal service: W_k = C / (c mu (1 - s_(k-1)) (1 - s_k))."""
    waits = replicate(servers, load, lambda run, submit_s: run.start_s - submit_s)
    waiting = MEAN_S * erlang_c(servers, load) / servers
    assert_mean_is(waits[:, 0], waiting / (1 - URGENT * load), 0.2)
    assert_mean_is(waits[:, 1], waiting / (1 - URGENT * load) / (1 - load), 0.25)


def test_time_in_m_m_1_with_two_priorities_that_stop_others():
    """All work saved: T_1 as if alone; T_2 = 1 / ((1 - s_1) mu) + load / (mu (1 - s_1) (1 - load))."""
    load = 0.7
    times = replicate(
        1, load, lambda run, submit_s: run.end_s - submit_s,
        tiers_preempt=True, preemption=PreemptionCosts(), checkpoints=Checkpoints(interval_s=0.0),
    )  # fmt: skip
    urgent = URGENT * load
    assert_mean_is(times[:, 0], MEAN_S / (1 - urgent), 0.1)
    assert_mean_is(times[:, 1], MEAN_S / (1 - urgent) * (1 + load / (1 - load)), 0.2)


@pytest.mark.parametrize("interval_s", [None, 4_000.0])
def test_time_to_finish_with_failures_and_checkpoints(interval_s):
    """Exact by renewal: each stretch between checkpoints is tried until it does not fail.

    With rate r, a stretch of w takes (e^(r w) - 1) / r where a failure costs no restart (Daly, 2006); after a
    failure each try takes the restart R on top.
    """
    gpus, work, write, restart, jobs = 8, 100_000.0, 60.0, 300.0, 4_000
    failures, saved = Failures(mtbf_gpu_h=40.0, restart_s=restart), Checkpoints(interval_s, write)
    mtbf = failures.mtbf_s(gpus)
    every = saved.interval_of(mtbf)
    stretches = math.ceil(work / every)

    def seconds(stretch):
        fails = 1 - math.exp(-stretch / mtbf)
        return mtbf * fails + fails * mtbf * (math.exp((restart + stretch) / mtbf) - 1)

    expected = (stretches - 1) * seconds(every + write) + seconds(work - (stretches - 1) * every)
    none = np.zeros(jobs, np.int64)
    requests = NodeRequests(none, none, np.full(jobs, work), np.full(jobs, work), none, np.full(jobs, gpus), none + 1)
    sharing = Sharing(none, none, failures=failures, checkpoints=saved)
    run = simulate_shared_requests(requests, NodeFleet.of_full_gpus([gpus] * jobs), sharing, queue="strict")
    assert run.failures.sum() > jobs
    assert_mean_is(run.end_s, expected, 0.05)
