"""The queue that is replayed, against theory; and fleets, records and layouts that the curve is drawn from."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpuplanner.decision.fewest_gpus_and_best_layout import share_gpus
from gpuplanner.decision.free_gpus_over_time import Handover
from gpuplanner.decision.queue_model import QueueModel
from gpuplanner.decision.wait_causes import TenantGpuLimit
from gpuplanner.decision.wait_curve import draw_record, resize_node_fleet, wait_p95
from gpuplanner.simulator.simulation_inputs import NodeFleet, NodeRequests

DAY = 86_400.0


def exponential_jobs(seed: int, count: int, load: float, gpus: int) -> NodeRequests:
    """Jobs of one GPU: Poisson arrivals, exponential run times of mean 1."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1 / (load * gpus), count))
    one = np.ones(count, int)
    return NodeRequests(arrival, arrival, rng.exponential(1.0, count), np.full(count, 1e9), 0 * one, one, one)


def erlang_c(gpus: int, load: float) -> float:
    """Chance that a job waits, by Erlang's formula."""
    offered = load * gpus
    last = offered**gpus / math.factorial(gpus) / (1 - load)
    return last / (sum(offered**k / math.factorial(k) for k in range(gpus)) + last)


@pytest.mark.parametrize(("gpus", "load"), [(4, 0.8), (8, 0.9)])
def test_mean_waits_are_those_of_theory(gpus, load):
    queue = QueueModel(Handover(60.0, 0.0), spread=False, tenant=np.zeros(0, int))
    means = []
    for seed in range(4):
        jobs = exponential_jobs(seed, 60_000, load, gpus)
        waited = queue.start(jobs, NodeFleet.of_full_gpus([gpus])) - jobs.ready_s
        means.append(waited[5_000:].mean())
    assert np.mean(means) == pytest.approx(erlang_c(gpus, load) / (gpus * (1 - load)), rel=0.1)


def test_the_handover_is_held_and_a_limit_binds():
    rows = np.zeros(3)
    jobs = NodeRequests(rows, rows, rows + 100, rows + 100, [0] * 3, [1] * 3, [1] * 3)
    tenant = np.array([0, 0, 1])
    free = QueueModel(Handover(60.0, 5.0), spread=False, tenant=tenant)
    assert free.start(jobs, NodeFleet.of_full_gpus([2])).tolist() == [0.0, 0.0, 105.0]
    limited = QueueModel(Handover(60.0, 5.0), False, tenant, (TenantGpuLimit(0, 1.0),))
    assert limited.start(jobs, NodeFleet.of_full_gpus([2])).tolist() == [0.0, 105.0, 0.0]


def test_a_drawn_record_takes_whole_days_of_the_same_weekday():
    rng = np.random.default_rng(3)
    arrival = np.sort(rng.uniform(0, 21 * DAY, 500))
    fixed = np.zeros(500, bool)
    fixed[:5] = True
    rows, drawn = draw_record(arrival, fixed, 21 * DAY, np.random.default_rng(0))
    assert np.isin(np.arange(5), rows).all()
    moved = (drawn - arrival[rows]) / DAY
    assert np.allclose(moved, np.round(moved))
    assert set((np.round(moved).astype(int) % 7).tolist()) == {0}
    assert not np.array_equal(np.sort(rows), np.arange(500))


def test_percentile_is_a_wait_that_95_of_100_jobs_do_not_pass():
    assert wait_p95(np.arange(100.0)) == 94.0
    assert wait_p95(np.array([7.0])) == 7.0


def test_more_nodes_are_like_most_of_todays():
    fleet = resize_node_fleet(NodeFleet.of_full_gpus([8, 4, 4]), 5)
    assert fleet.gpus.tolist() == [8, 4, 4, 4, 4]
    assert fleet.capacity[:, 0, 0].tolist() == [8, 4, 4, 4, 4]


def test_shares_are_the_cheapest_of_all():
    rng = np.random.default_rng(0)
    for _ in range(50):
        costs = [np.sort(rng.integers(0, 20, 7).astype(float))[::-1] for _ in range(3)]
        found, value = share_gpus(costs, 6)
        every = [
            sum(cost[share] for cost, share in zip(costs, (a, b, c), strict=True))
            for a in range(7)
            for b in range(7 - a)
            for c in range(7 - a - b)
        ]
        assert value == min(every) == sum(cost[share] for cost, share in zip(costs, found, strict=True))
