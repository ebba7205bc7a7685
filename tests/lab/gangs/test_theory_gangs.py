"""Queues and checkpoints whose means are known, on the loops over gangs: 99 % intervals from replications."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest

from gpuplanner.lab.gangs import GangRules, schedule
from gpuplanner.metrics import mean_interval
from gpuplanner.simulate import Checkpoints, Failures, Fleet, Preemption

BOARD = "H100-80GB-SXM5"
MEAN_S = 100.0
JOBS, WARM_UP, REPLICATIONS = 30_000, 3_000, 20


def erlang_c(servers: int, load: float) -> float:
    """Probability that a job of M/M/c has to wait; load is the utilisation of a server."""
    offered = servers * load
    waiting = offered**servers / math.factorial(servers) / (1 - load)
    return waiting / (sum(offered**k / math.factorial(k) for k in range(servers)) + waiting)


def replicate(rules, servers, load, draw_service, tiers=(1.0,), column="queued_s"):
    """Mean of a column in every replication, after the warm-up, by tier; shape (replications, tiers)."""
    means = []
    for replication in range(REPLICATIONS):
        rng = np.random.default_rng([2026, servers, replication])
        jobs = pl.DataFrame(
            {
                "job_id": pl.int_range(JOBS, eager=True).cast(pl.String),
                "tenant": "t",
                "submit_s": np.cumsum(rng.exponential(MEAN_S / servers / load, JOBS)),
                "run_s": draw_service(rng),
                "gpus": 1,
                "profile": "gpu",
                "tier": rng.choice(len(tiers), JOBS, p=tiers),
            }
        )
        run = schedule(jobs, Fleet(BOARD, 1, servers), rules, policy="q")[WARM_UP:]
        tier = jobs["tier"][WARM_UP:]
        means.append([run.filter(tier == number)[column].mean() for number in range(len(tiers))])
    return np.array(means)


def exponential(rng):
    return rng.exponential(MEAN_S, JOBS)


def hyperexponential(rng):
    """Nine short for one long; squared coefficient of variation about 4.6."""
    return rng.exponential(np.where(rng.random(JOBS) < 0.9, 0.5, 5.5) * MEAN_S)


def constant(rng):
    return np.full(JOBS, MEAN_S)


def uniform(rng):
    return rng.uniform(0.0, 2 * MEAN_S, JOBS)


def contains(values, expected, width):
    found = mean_interval(list(values), level=0.99)
    assert found.low < expected < found.high
    assert found.high - found.low < width * expected


@pytest.mark.parametrize(("servers", "load"), [(1, 0.7), (4, 0.8), (7, 0.8)])
def test_wait_of_m_m_c(servers, load):
    waits = replicate(GangRules(queue="strict"), servers, load, exponential)
    contains(waits[:, 0], MEAN_S * erlang_c(servers, load) / (servers * (1 - load)), 0.2)


@pytest.mark.parametrize(
    ("draw", "second_moment"),
    [
        (constant, 1.0),
        (uniform, 4 / 3),
        (exponential, 2.0),
        (hyperexponential, 2 * (0.9 * 0.25 + 0.1 * 30.25)),
    ],
)
def test_wait_of_m_g_1(draw, second_moment):
    """Pollaczek and Khinchine: load * E[S^2] / (2 E[S] (1 - load))."""
    waits = replicate(GangRules(queue="strict"), 1, 0.6, draw)
    contains(waits[:, 0], MEAN_S * 0.6 * second_moment / (2 * (1 - 0.6)), 0.25)


@pytest.mark.parametrize(("servers", "load"), [(1, 0.7), (4, 0.8)])
def test_waits_of_m_m_c_with_two_priorities(servers, load):
    """Cobham (1954), non-preemptive, equal service: W_k = C / (c mu (1 - s_(k-1)) (1 - s_k))."""
    waits = replicate(GangRules(queue="strict"), servers, load, exponential, tiers=(0.3, 0.7))
    waiting = MEAN_S * erlang_c(servers, load) / servers
    urgent = 0.3 * load
    contains(waits[:, 0], waiting / (1 - urgent), 0.2)
    contains(waits[:, 1], waiting / (1 - urgent) / (1 - load), 0.2)


def test_time_in_m_m_1_with_two_preemptive_priorities():
    """Preemptive resume: T_1 as if alone; T_2 = 1 / ((1 - s_1) mu) + load / (mu (1 - s_1) (1 - load))."""
    rules = GangRules(
        queue="strict",
        tiers_preempt=True,
        preemption=Preemption(((1, 0.0),), 0.0),
        checkpoints=Checkpoints(interval_s=0.0),
    )
    times = replicate(rules, 1, 0.7, exponential, tiers=(0.3, 0.7), column="jct_s")
    urgent = 0.3 * 0.7
    contains(times[:, 0], MEAN_S / (1 - urgent), 0.1)
    contains(times[:, 1], MEAN_S / (1 - urgent) * (1 + 0.7 / (1 - 0.7)), 0.2)


@pytest.mark.parametrize("interval_s", [None, 4_000.0])
def test_time_to_finish_with_failures_and_checkpoints(interval_s):
    """Exact by renewal: each stretch between checkpoints is tried until it does not fail.

    With rate r, a stretch of w takes (e^(r w) - 1) / r where a failure costs no restart (Daly, 2006); after a
    failure each try takes the restart R on top.
    """
    gpus, work, write, restart = 8, 100_000.0, 60.0, 300.0
    failures = Failures(mtbf_gpu_h=40.0, restart_s=restart)
    saved = Checkpoints(interval_s, write)
    mtbf = failures.mtbf_s(gpus)
    every = saved.interval_of(mtbf)
    stretches = math.ceil(work / every)

    def seconds(stretch):
        fails = 1 - math.exp(-stretch / mtbf)
        return mtbf * fails + fails * mtbf * (math.exp((restart + stretch) / mtbf) - 1)

    expected = (stretches - 1) * seconds(every + write) + seconds(work - (stretches - 1) * every)
    jobs = pl.DataFrame({"job_id": [str(number) for number in range(20_000)]}).with_columns(
        tenant=pl.lit("t"), submit_s=0.0, run_s=work, gpus=gpus, profile=pl.lit("gpu")
    )
    rules = GangRules(queue="pass", failures=failures, checkpoints=saved)
    run = schedule(jobs, Fleet(BOARD, 20_000, gpus), rules, policy="p")
    contains(run["jct_s"], expected, 0.02)
