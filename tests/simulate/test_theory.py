"""Queues whose mean waits are known: M/M/c by Erlang's C formula, M/D/1 by Pollaczek and Khinchine."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest

from gpuplanner.metrics import mean_interval, measure
from gpuplanner.simulate import Calendar, Fleet, Rules, simulate

BOARD = "H100-80GB-SXM5"
SERVICE_S = 100.0
JOBS, WARM_UP, REPLICATIONS = 40_000, 4_000, 20


def erlang_c_wait(servers: int, load: float) -> float:
    """Mean wait of M/M/c in units of the mean service time; load is the utilisation of the servers."""
    offered = servers * load
    waiting = offered**servers / math.factorial(servers) / (1 - load)
    idle = sum(offered**k / math.factorial(k) for k in range(servers))
    return waiting / (idle + waiting) / (servers * (1 - load))


def replicate(profile, layout, servers, load, draw_service):
    """Mean wait and utilisation of every replication, after the warm-up."""
    waits, utilisations = [], []
    for replication in range(REPLICATIONS):
        rng = np.random.default_rng([2026, servers, replication])
        jobs = pl.DataFrame(
            {
                "job_id": pl.int_range(JOBS, eager=True).cast(pl.String),
                "tenant": "t",
                "submit_s": np.cumsum(rng.exponential(SERVICE_S / servers / load, JOBS)),
                "run_s": draw_service(rng),
                "gpus": 1,
                "profile": profile,
            }
        )
        rules = Rules(queue="strict")
        run = simulate(jobs, Fleet(BOARD, 1, 1), Calendar.constant({layout: 1}), rules, policy="q")
        window = (jobs["submit_s"][WARM_UP], jobs["submit_s"][-1])
        found = measure(run, BOARD, window=window)
        waits.append(found["mean_queueing_delay_s"])
        utilisations.append(found["utilisation_instances"])
    return waits, utilisations


@pytest.mark.parametrize(
    ("profile", "layout", "servers", "load"),
    [
        ("7g.80gb", "7g.80gb:1", 1, 0.7),
        ("gpu", "gpu", 1, 0.5),
        ("3g.40gb", "3g.40gb:2", 2, 0.8),
        ("1g.10gb", "1g.10gb:7", 7, 0.85),
    ],
)
def test_mean_wait_with_exponential_service(profile, layout, servers, load):
    def exponential(rng):
        return rng.exponential(SERVICE_S, JOBS)

    waits, utilisations = replicate(profile, layout, servers, load, exponential)
    expected = SERVICE_S * erlang_c_wait(servers, load)
    found = mean_interval(waits, level=0.99)
    assert found.low < expected < found.high
    assert found.high - found.low < 0.15 * expected
    busy = mean_interval(utilisations, level=0.99)
    assert busy.low < load < busy.high


def test_mean_wait_with_constant_service():
    def constant(rng):
        return np.full(JOBS, SERVICE_S)

    waits, _ = replicate("7g.80gb", "7g.80gb:1", 1, 0.7, constant)
    found = mean_interval(waits, level=0.99)
    assert found.low < SERVICE_S * 0.7 / (2 * (1 - 0.7)) < found.high
    assert found.high - found.low < 0.15 * found.mean
