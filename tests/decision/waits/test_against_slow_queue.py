"""Starts and causes of waits on random clusters against a slow program in plain Python."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from gpuplanner.decision.free_gpus_over_time import Handover, close_handover_gaps, observe_occupancy
from gpuplanner.decision.queue_model import QueueModel, QueueRule, build_closing_requests
from gpuplanner.decision.wait_causes import CAUSES, TenantGpuLimit, attribute_waits, find_fit_times, observe_tenant_use
from gpuplanner.simulator.simulation_inputs import NodeFleet, NodeRequests
from tests.decision.waits.slow_queue import (
    Closure,
    Cluster,
    Job,
    Record,
    Rules,
    closure_jobs,
    find_causes,
    replay_queue,
)

SEEDS = range(200)
WEIGHTS = [1.0, 1 / 7, 0.5]
"""Whole GPUs, and two profiles of slices."""
INSTANCES_PER_GPU = [1, 7, 2]


@dataclass(frozen=True)
class Case:
    """A cluster and its jobs.

    - ``jobs``, ``cluster``, ``rules``, ``closures``: As the slow program takes them.
    - ``median_s``: Handover [s].
    - ``head_start_s``: By job; None: first come, first served.
    """

    jobs: list[Job]
    cluster: Cluster
    rules: Rules
    closures: list[Closure]
    median_s: float
    head_start_s: list[float] | None


def random_cluster(rng: np.random.Generator, partitioned: bool) -> Cluster:
    """Two to six unequal nodes of 1 to 8 GPUs; some of them cut, each in its own way, if they are partitioned."""
    capacity = []
    for _ in range(int(rng.integers(2, 7))):
        gpus = int(rng.choice([1, 2, 4, 4, 8, 8, 3, 5]))
        cut = rng.multinomial(gpus, [0.4, 0.3, 0.3]) if partitioned and rng.random() < 0.6 else [gpus, 0, 0]
        capacity.append([int(count) * per for count, per in zip(cut, INSTANCES_PER_GPU, strict=True)])
    capacity[0][0] = max(capacity[0][0], 1)
    return Cluster(capacity, WEIGHTS, [False, True, True])


def random_job(rng: np.random.Generator, row: int, cluster: Cluster, tenants: int) -> Job:
    """A job of whole GPUs on one or more nodes, or of instances on one; now and then one that never fits."""
    most = [max(column) for column in zip(*cluster.capacity, strict=True)]
    offered = [profile for profile in range(3) if most[profile]]
    profile = int(rng.choice(offered)) if rng.random() < 0.5 else 0
    nodes = int(rng.choice([1, 2, 3], p=[0.7, 0.2, 0.1])) if profile == 0 else 1
    total = int(rng.integers(1, max(2, min(most[profile], 8) * nodes) + 1))
    nodes = min(nodes, total)
    while total - math.ceil(total / nodes) * (nodes - 1) < 1:
        nodes -= 1
    ready_s = float(30 * rng.integers(0, 60))
    run_s = float(rng.choice([0, 30, 60, 90, 200, 450, 901]))
    limit_s = run_s * float(rng.choice([0.5, 1, 1, 2, 4]))
    submit_s = ready_s - float(rng.choice([0, 0, 10, 500]))
    return Job(row, ready_s, submit_s, run_s, limit_s, profile, total, nodes, int(rng.integers(tenants)), ready_s)


def random_closures(rng: np.random.Generator, cluster: Cluster) -> list[Closure]:
    """Nodes that were drained, or of which some GPUs were closed; spells may overlap, and some have no end."""
    closures = []
    for begin_s in sorted(30.0 * rng.integers(0, 60, int(rng.integers(1, 5)))):
        node = int(rng.integers(len(cluster.capacity)))
        gpus = float(rng.integers(1, 4)) if rng.random() < 0.5 else math.inf
        lasts_s = 30.0 * rng.integers(1, 40) if rng.random() < 0.9 else math.inf
        closures.append(Closure(float(begin_s), float(begin_s + lasts_s), node, gpus))
    return closures


@functools.cache
def random_case(seed: int) -> Case:
    """Every mixture of queue, placement, limits, closures and slices once in 32 seeds; head starts in each fifth."""
    rng = np.random.default_rng(seed)
    passing, spread, limited, closed, partitioned = ((seed >> bit) % 2 == 1 for bit in range(5))
    cluster = random_cluster(rng, partitioned)
    tenants = int(rng.integers(1, 5))
    jobs = [random_job(rng, row, cluster, tenants) for row in range(int(rng.integers(20, 61)))]
    head_start_s = None
    if seed % 5 == 0:
        of_tenant = [float(start) for start in rng.choice([0, 60, 600], tenants)]
        head_start_s = [of_tenant[job.tenant or 0] for job in jobs]
        jobs = [replace(job, rank=job.ready_s - head_start_s[job.row]) for job in jobs]
    gpus = sum(row[0] for row in cluster.capacity)
    peak_gpus = {tenant: float(rng.integers(1, gpus + 1)) for tenant in range(tenants) if rng.random() < 0.8}
    rules = Rules("pass" if passing else "easy", spread, peak_gpus if limited else {})
    closures = random_closures(rng, cluster) if closed else []
    return Case(jobs, cluster, rules, closures, float(rng.choice([0, 2, 5.5])), head_start_s)


@functools.cache
def slow_record(seed: int) -> Record:
    """Jobs as the slow program starts them, each with a gap after it, of which one in six is not in the record.

    The record ends before some jobs do. In each fourth record some jobs name no nodes. Closures are as stated,
    wherever the jobs were.
    """
    case = random_case(seed)
    rng = np.random.default_rng(1000 + seed)
    runs = replay_queue(with_handover(case.jobs, case.median_s), case.cluster, case.rules)
    kept = [job for job in case.jobs if rng.random() < 5 / 6]
    jobs = [replace(job, row=row) for row, job in enumerate(kept)]
    end_s = float(rng.choice([2000.0, 3000.0, 9000.0]))
    observed = {}
    for row, job in enumerate(kept):
        run = runs.get(job.row)
        if run is not None and run.start_s < end_s:
            stop_s = run.start_s + job.run_s
            is_named = seed % 4 or rng.random() < 0.8
            observed[row] = (run.start_s, stop_s if stop_s <= end_s else math.inf, run.amounts if is_named else None)
    return Record(jobs, observed, case.closures, end_s)


def with_handover(jobs: list[Job], median_s: float) -> list[Job]:
    """The same jobs, each longer by the handover."""
    return [replace(job, run_s=job.run_s + median_s, limit_s=max(job.limit_s, job.run_s) + median_s) for job in jobs]


def requests_of(jobs: list[Job]) -> NodeRequests:
    """Jobs as the package takes them."""
    names = ("ready_s", "submit_s", "run_s", "limit_s", "profile", "total", "nodes")
    return NodeRequests(*([getattr(job, name) for job in jobs] for name in names))


def fleet_of(cluster: Cluster) -> NodeFleet:
    """Nodes as the package takes them."""
    gpus = [sum(count // per for count, per in zip(row, INSTANCES_PER_GPU, strict=True)) for row in cluster.capacity]
    capacity = np.array(cluster.capacity)[:, None, :]
    return NodeFleet(
        ("gpu", "1g.10gb", "3g.40gb"), np.array(gpus), capacity, np.zeros(len(gpus), int), np.array(WEIGHTS)
    )


def observed_times(record: Record) -> tuple[np.ndarray, np.ndarray, list[list[int] | None]]:
    """Starts, ends and nodes of all jobs of a record; NaN and None where nothing was observed."""
    start_s, end_s = np.full((2, len(record.jobs)), np.nan)
    nodes: list[list[int] | None] = [None] * len(record.jobs)
    for row, (start, end, amounts) in record.runs.items():
        start_s[row] = start
        end_s[row] = end if end < math.inf else np.nan
        nodes[row] = None if amounts is None else [node for node, _ in amounts]
    return start_s, end_s, nodes


def package_starts(case: Case, record: Record, jobs: list[Job]) -> np.ndarray:
    """Starts of jobs by the package, with the closures of the record."""
    closed = [(closure.begin_s, closure.end_s, closure.node, closure.gpus) for closure in case.closures]
    start_s, end_s, nodes = observed_times(record)
    closings = build_closing_requests(closed, nodes, start_s, end_s, np.array(case.cluster.capacity))
    limits = tuple(TenantGpuLimit(tenant, gpus) for tenant, gpus in case.rules.peak_gpus.items())
    head_start_s = None if case.head_start_s is None else np.array(case.head_start_s)
    model = QueueModel(
        Handover(60.0, case.median_s),
        case.rules.spread,
        np.array([job.tenant for job in jobs]),
        limits,
        QueueRule(case.rules.queue, head_start_s),
        closings,
    )
    return model.start(requests_of(jobs), fleet_of(case.cluster))


def slow_starts(case: Case, record: Record, jobs: list[Job]) -> np.ndarray:
    """Starts of jobs by the slow program, with the closures of the record."""
    observed = [(start, end, [node for node, _ in amounts or ()]) for start, end, amounts in record.runs.values()]
    closed = closure_jobs(case.closures, observed, case.cluster, len(jobs))
    runs = replay_queue(with_handover(jobs, case.median_s) + closed, case.cluster, case.rules)
    return np.array([runs[job.row].start_s if job.row in runs else math.inf for job in jobs])


@pytest.mark.parametrize("seed", SEEDS)
def test_jobs_start_to_the_second_as_in_the_slow_program(seed):
    case, record = random_case(seed), slow_record(seed)
    assert package_starts(case, record, case.jobs).tolist() == slow_starts(case, record, case.jobs).tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_second_of_waiting_has_the_cause_of_the_slow_program(seed):
    case, record = random_case(seed), slow_record(seed)
    latency_s = [5.0, 60.0, 120.0][seed % 3]
    # Any other rule will do for the simulation: its starts are data here.
    other = replace(case.rules, queue="pass" if case.rules.queue == "easy" else "easy", peak_gpus={})
    runs = replay_queue(record.jobs, case.cluster, other)
    simulated_s = [runs[job.row].start_s if job.row in runs else math.inf for job in record.jobs]
    slow = find_causes(record, case.cluster, latency_s, simulated_s, case.rules.peak_gpus)

    requests, fleet = requests_of(record.jobs), fleet_of(case.cluster)
    start_s, end_s, nodes = observed_times(record)
    closed = [(closure.begin_s, closure.end_s, closure.node, closure.gpus) for closure in case.closures]
    occupancy = observe_occupancy(requests, start_s, end_s, nodes, np.array(case.cluster.capacity), closed)
    fits = find_fit_times(requests, close_handover_gaps(occupancy, latency_s), fleet.weights)
    use = observe_tenant_use(
        np.array([job.tenant for job in record.jobs]),
        fleet.weights[requests.profile] * requests.total,
        start_s,
        end_s,
        [TenantGpuLimit(tenant, gpus) for tenant, gpus in case.rules.peak_gpus.items()],
    )
    until_s = np.where(np.isnan(start_s), record.end_s, start_s)
    seconds = attribute_waits(fits, requests.ready_s, until_s, np.array(simulated_s), latency_s, use)
    assert seconds == pytest.approx(np.array([[row[cause] for cause in CAUSES] for row in slow]), abs=1e-6)
