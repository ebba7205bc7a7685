"""Queues on instances whose mean waits are known: M/M/c by Erlang's C formula, M/D/1 by Pollaczek and Khinchine."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpuplanner.simulator.planned_layout_changes import LayoutChanges
from gpuplanner.simulator.replications import mean_interval
from gpuplanner.simulator.simulation_inputs import NodeRequests
from gpuplanner.simulator.simulation_run import simulate_requests
from tests.simulator.hand_cases import PROFILES, fleet_of

SERVICE_S = 100.0
JOBS, WARM_UP, REPLICATIONS = 40_000, 4_000, 20


def erlang_c_wait(servers: int, load: float) -> float:
    """Mean wait of M/M/c in units of the mean service time; load is the utilisation of the servers."""
    offered = servers * load
    waiting = offered**servers / math.factorial(servers) / (1 - load)
    idle = sum(offered**k / math.factorial(k) for k in range(servers))
    return waiting / (idle + waiting) / (servers * (1 - load))


def replicate(profile, servers, load, draw_service, changes=None):
    """Mean wait and utilisation of the instances in every replication, after the warm-up."""
    waits, utilisations = [], []
    for replication in range(REPLICATIONS):
        rng = np.random.default_rng([2026, servers, replication])
        ready_s = np.cumsum(rng.exponential(SERVICE_S / servers / load, JOBS))
        run_s, one = draw_service(rng), np.ones(JOBS, int)
        requests = NodeRequests(ready_s, ready_s, run_s, run_s, one * PROFILES.index(profile), one, one)
        pool = [{profile: servers}]
        start_s = simulate_requests(requests, fleet_of(pool, pool), queue="strict", changes=changes).start_s
        begin, end = ready_s[WARM_UP], ready_s[-1]
        held_s = np.clip(start_s + run_s, begin, end) - np.clip(start_s, begin, end)
        waits.append((start_s - ready_s)[WARM_UP:].mean())
        utilisations.append(held_s.sum() / (servers * (end - begin)))
    return waits, utilisations


@pytest.mark.parametrize(
    ("profile", "servers", "load"), [("3g.40gb", 1, 0.7), ("gpu", 1, 0.5), ("3g.40gb", 2, 0.8), ("1g.10gb", 7, 0.85)]
)
def test_mean_wait_with_exponential_service(profile, servers, load):
    waits, utilisations = replicate(profile, servers, load, lambda rng: rng.exponential(SERVICE_S, JOBS))
    expected = SERVICE_S * erlang_c_wait(servers, load)
    found = mean_interval(waits, level=0.99)
    assert found.low < expected < found.high
    assert found.high - found.low < 0.15 * expected
    busy = mean_interval(utilisations, level=0.99)
    assert busy.low < load < busy.high


def test_mean_wait_with_constant_service():
    waits, _ = replicate("3g.40gb", 1, 0.7, lambda rng: np.full(JOBS, SERVICE_S))
    found = mean_interval(waits, level=0.99)
    assert found.low < SERVICE_S * 0.7 / (2 * (1 - 0.7)) < found.high
    assert found.high - found.low < 0.15 * found.mean


def test_changes_that_change_nothing_and_drain_nothing_leave_the_mean_wait_as_it_is():
    """GPUs that are powered down and up at once, from one pool to another that offers the same."""
    at = np.arange(1, 2_000) * 1_000.0
    none, no = np.zeros(len(at)), np.zeros(len(at), bool)
    changes = LayoutChanges(none, at, at, at, none, np.arange(len(at)) % 2, no)
    waits, _ = replicate("1g.10gb", 7, 0.85, lambda rng: rng.exponential(SERVICE_S, JOBS), changes)
    found = mean_interval(waits, level=0.99)
    assert found.low < SERVICE_S * erlang_c_wait(7, 0.85) < found.high
