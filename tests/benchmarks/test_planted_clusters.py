"""Laws that the simulator of the planted clusters keeps, and that its files say what its truth says."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise

import clusters
import numpy as np
import polars as pl
import pytest
from counterfactuals import Truth
from queue_simulator import NEVER_S, QueueJobs, QueueRule, make_fleet, simulate
from workloads import RECORD_S, Demand
from worlds import WORLDS

HOUR_S = 3600


def random_jobs(seed, count=400, *, gpus=(1, 1, 1, 2, 4, 8, 16), tenants=3, interval_s=600):
    """Jobs of a small random queue; times may be negative, and limits are one to five times the run."""
    rng = np.random.default_rng(seed)
    size = rng.choice(gpus, count)
    run_s = rng.lognormal(8.3, 1.2, count).astype(np.int64) + 1
    fields = {
        "eligible_s": np.sort(rng.integers(0, count * interval_s, count)) - count * interval_s // 2,
        "gpus_per_node": np.minimum(size, 8),
        "nodes": np.maximum(1, size // 8),
        "run_s": run_s,
        "time_limit_s": (run_s * rng.uniform(1, 5, count)).astype(np.int64),
        "patience_s": np.where(rng.random(count) < 0.1, rng.integers(10, 4 * HOUR_S, count), NEVER_S),
        "tenant": rng.integers(0, tenants, count),
        "layout": np.zeros(count, dtype=np.int64),
        "boost_s": np.zeros(count, dtype=np.int64),
        "request": np.unique(size, return_inverse=True)[1],
    }
    return QueueJobs(**fields)


def occupied_s(jobs, result, gap_s):
    """Start and release of each job that started."""
    return result.start_s, np.where(result.start_s < NEVER_S, result.end_s + gap_s, NEVER_S)


@cache
def truth_of(name, seed=3):
    return Truth(WORLDS[name], seed, 2)


@pytest.mark.parametrize(("servers", "load"), [(1, 0.6), (4, 0.8)])
def test_mean_wait_is_that_of_erlang(servers, load):
    """Erlang C: a queue of Poisson arrivals and exponential runs waits P(wait) / (c mu - lambda) on average."""
    rng = np.random.default_rng(servers)
    count, mean_run_s = 60_000, 100_000
    eligible_s = np.cumsum(rng.exponential(mean_run_s / (load * servers), count)).astype(np.int64)
    run_s = rng.exponential(mean_run_s, count).astype(np.int64)
    ones, zeros = np.ones(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    jobs = QueueJobs(eligible_s, ones, ones, run_s, run_s, ones * NEVER_S, zeros, zeros, zeros, zeros)
    result = simulate(jobs, make_fleet((servers,), (1,), servers), QueueRule(gap_s=0))
    offered = load * servers
    tail = offered**servers / math.factorial(servers) / (1 - load)
    waits = tail / (sum(offered**k / math.factorial(k) for k in range(servers)) + tail)
    expected_s = waits * mean_run_s / (servers * (1 - load))
    assert result.wait_s(jobs).mean() == pytest.approx(expected_s, rel=0.1)


@pytest.mark.parametrize("rule", [QueueRule(), QueueRule(spread=True), QueueRule(reserve_for_head=False, gap_s=30)])
def test_no_gpu_is_used_twice_and_no_limit_exceeded(rule):
    jobs, fleet, limits = random_jobs(1), make_fleet((24,), (1,), 8), (16, 16, 20)
    result = simulate(jobs, fleet, rule, tenant_limits=limits)
    started = np.flatnonzero(result.start_s < NEVER_S)
    start_s, release_s = occupied_s(jobs, result, rule.gap_s)
    assert (result.end_s - result.start_s == jobs.run_s)[started].all()
    assert (result.start_s >= jobs.eligible_s)[started].all()
    for moment in start_s[started]:
        running = started[(start_s[started] <= moment) & (release_s[started] > moment)]
        used = np.zeros(len(fleet.capacity), dtype=np.int64)
        for job in running:
            units = result.units[job][: jobs.nodes[job]]
            assert len(set(units)) == jobs.nodes[job]
            used[units] += jobs.gpus_per_node[job]
        assert (used <= fleet.capacity).all()
        gpus = jobs.gpus_per_node[running] * jobs.nodes[running]
        assert (np.bincount(jobs.tenant[running], gpus, minlength=3) <= limits).all()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("spread", [False, True])
def test_backfill_never_delays_the_head(seed, spread):
    jobs = random_jobs(seed, interval_s=700)
    result = simulate(jobs, make_fleet((24,), (1,), 8), QueueRule(spread=spread))
    promised = result.promised_start_s < NEVER_S
    assert promised.sum() > 20
    started = np.minimum(result.start_s, result.withdrawn_s)
    assert (started <= result.promised_start_s)[promised].all()


@pytest.mark.parametrize("seed", range(5))
def test_causes_sum_to_the_waiting(seed):
    jobs = random_jobs(seed)
    result = simulate(jobs, make_fleet((24,), (1,), 8), QueueRule(), tenant_limits=(16, 16, 20))
    assert (result.cause_s.sum(axis=1) == result.wait_s(jobs)).all()


def test_each_cause_is_that_of_its_case():
    """The last job waits; the others run for an hour."""

    def waiting(sizes, fleet, *, layouts=None, limits=None, hours=1):
        count = len(sizes)
        gpus, ones = np.array(sizes), np.ones(count, dtype=np.int64)
        hour_s, zeros = ones * HOUR_S, ones * 0
        hour_s[-1] *= hours
        layout = zeros if layouts is None else np.array(layouts)
        jobs = QueueJobs(zeros, gpus, ones, hour_s, hour_s, ones * NEVER_S, zeros, layout, zeros, np.arange(count))
        return simulate(jobs, fleet, QueueRule(spread=True, gap_s=0), tenant_limits=limits).cause_s[-1].tolist()

    nodes = make_fleet((8,), (1,), 4)
    assert waiting([1, 4, 4], nodes) == [0, 0, 0, 0, HOUR_S, 0]
    assert waiting([2, 2, 3], nodes) == [0, 0, HOUR_S, 0, 0, 0]
    assert waiting([2, 2], nodes, limits=(3,)) == [0, HOUR_S, 0, 0, 0, 0]
    assert waiting([3, 4, 1], make_fleet((4,), (1,), 4), hours=2) == [HOUR_S, 0, 0, 0, HOUR_S, 0]
    partitioned = make_fleet((4, 1), (1, 2), 4)
    assert waiting([1, 1, 1], partitioned, layouts=[1, 1, 1]) == [0, 0, 0, 0, 0, HOUR_S]
    assert waiting([1, 1, 1], make_fleet((1, 1), (1, 3), 4), layouts=[1, 0, 0]) == [0, 0, 0, 0, HOUR_S, 0]
    partitioned = make_fleet((1, 2), (1, 3), 4)  # 4 of 6 instances are free, but no GPU is idle
    assert waiting([1, 1, 1, 1], partitioned, layouts=[1, 1, 0, 0]) == [0, 0, 0, HOUR_S, 0, 0]


def test_more_gpus_do_not_lengthen_the_waits():
    """More GPUs may delay single jobs (Graham's anomalies), hence the sum and the tolerance."""
    for seed in range(8):
        jobs = random_jobs(seed)._replace(patience_s=np.full(400, NEVER_S))
        waits_s = [
            simulate(jobs, make_fleet((gpus,), (1,), 8), QueueRule()).wait_s(jobs).sum() for gpus in (16, 24, 32, 48)
        ]
        assert all(more <= 1.02 * fewer for fewer, more in pairwise(waits_s))


@pytest.mark.parametrize("gap_s", [0, 30])
def test_gpus_are_free_the_gap_after_an_end(gap_s):
    jobs = random_jobs(4, gpus=(8,), interval_s=300)
    result = simulate(jobs, make_fleet((8,), (1,), 8), QueueRule(gap_s=gap_s))
    order = np.argsort(result.start_s[result.start_s < NEVER_S])
    start_s, end_s = (result.start_s[result.start_s < NEVER_S][order], result.end_s[result.start_s < NEVER_S][order])
    assert (start_s[1:] - end_s[:-1]).min() == gap_s


def test_submitted_work_grows_as_planted():
    jobs = truth_of("e").all_jobs.with_columns(week=pl.col("submit_s") // (7 * 24 * HOUR_S))
    weekly = jobs.group_by("week").len().filter(pl.col("week").is_between(0, 22)).sort("week")["len"].to_numpy()
    assert np.exp(np.polyfit(np.arange(len(weekly)), np.log(weekly), 1)[0]) == pytest.approx(1.05, abs=0.015)


def test_load_is_as_planted():
    for name in "af":
        jobs = truth_of(name).policy.jobs.filter(pl.col("submit_s").is_between(0, RECORD_S, closed="left"))
        for demand in WORLDS[name].demands:
            of_layout = jobs.filter(pl.col("layout") == demand.layout)
            assert (of_layout["gpus"] * of_layout["run_s"]).sum() / RECORD_S == pytest.approx(demand.load, rel=0.01)


def test_fewest_gpus_meets_the_limit_and_one_node_less_does_not():
    answer, rows = truth_of("a").answer()
    waits = {row["gpus"]: row["meets"] for row in rows[0]["simulated"]}
    assert answer["measure"] == "release"
    assert waits[answer["fewest_gpus"]]
    assert not waits[answer["fewest_gpus"] - 8]


def test_same_seed_same_bytes(tmp_path, monkeypatch):
    small = replace(WORLDS["d"], demands=(Demand(400, 20.0, {1: 0.8, 2: 0.2}),))
    monkeypatch.setitem(WORLDS, "small", small)
    for folder in ("first", "second"):
        clusters.write_cluster(tmp_path / folder, "small", 5, 2)
    for path in sorted((tmp_path / "first").iterdir()):
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes(), path.name


def test_files_are_read_with_all_jobs_and_gpu_hours(tmp_path, monkeypatch):
    world = WORLDS["f"]
    demands = tuple(replace(demand, jobs=300) for demand in world.demands)
    monkeypatch.setitem(WORLDS, "small", replace(world, demands=demands))
    record = clusters.write_cluster(tmp_path, "small", 4, 2)["record"]
    command = [sys.executable, "-m", "gpuplanner", "ingest", "auto", str(tmp_path / "sacct.txt"), "--nodes"]
    subprocess.run([*command, str(tmp_path / "nodes.txt"), "-o", str(tmp_path / "trace"), "--quiet"], check=True)
    read = pl.read_parquet(tmp_path / "trace" / "jobs.parquet").filter(pl.col("gpus") > 0)
    end = pl.col("end_time").fill_null(
        pl.from_epoch(pl.lit(record["start_unix_s"] + RECORD_S)).dt.replace_time_zone("UTC")
    )
    hours = (end - pl.col("start_time")).dt.total_seconds() / HOUR_S * pl.col("gpus")
    assert read.height == record["jobs"]
    assert read.select(hours.sum()).item() == pytest.approx(record["gpu_hours"], rel=1e-6)
    assert pl.read_parquet(tmp_path / "trace" / "inventory.parquet").height > 0
