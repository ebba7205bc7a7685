"""The joint sizing of ``plan --services`` beside the replica schedule, at a constant rate on full GPUs."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest

from gpuplanner.planner.inference_service_plan import plan_services
from gpuplanner.planner.replica_schedule import LatencyTargets, find_fewest_replicas, run_each_alone
from gpuplanner.sizing.replica_queue import ReplicaStepTimes, RequestStream

SPEED = ReplicaStepTimes(0.02 + 0.0003 * np.arange(33), 1.2e-4, 0.0, 2048)
TARGETS = LatencyTargets(2.0, 0.05)
PROMPT, ANSWER = 900, 150


def poisson(rate: float) -> RequestStream:
    arrival_s = np.cumsum(np.random.default_rng(5).exponential(1 / rate, round(1800 * rate)))
    return RequestStream(arrival_s, np.full(len(arrival_s), PROMPT), np.full(len(arrival_s), ANSWER))


@pytest.fixture(scope="module")
def one_replica_per_s() -> float:
    """Highest rate of requests that one replica serves within the targets."""
    low, high = 0.1, 20.0
    while high - low > 0.02:
        middle = (low + high) / 2
        low, high = (middle, high) if find_fewest_replicas(SPEED, poisson(middle), TARGETS) == 1 else (low, middle)
    return low


@pytest.mark.parametrize("factor", [0.9, 2.5, 5.6])
def test_the_schedule_needs_no_more_gpus_than_instances_sized_alone(one_replica_per_s, factor):
    """Of instances that each serve their own share, the joint plan needs the ceiling; a common queue needs fewer."""
    rate = factor * one_replica_per_s
    alone_s = float(run_each_alone(SPEED, poisson(1.0).take(slice(0, 1))).ttft_s[0]) + ANSWER * 0.02
    columns = ["service", "compute_slices", "batch", "processes", "throughput_per_s", "latency_s"]
    profiles = pl.DataFrame([("chat", 7, 1, 1, one_replica_per_s, alone_s)], schema=columns, orient="row")
    joint = plan_services(profiles, {"chat": rate}, {"chat": 1e6}, latency_share=1.0)
    assert joint.proven
    assert joint.gpus == math.ceil(factor)
    replicas = find_fewest_replicas(SPEED, poisson(rate), TARGETS)
    assert joint.gpus - 1 <= replicas <= joint.gpus
