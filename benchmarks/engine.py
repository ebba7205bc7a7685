"""Rate of the simulation engine, in CPU seconds of one process, after compilation.

Run ``python benchmarks/engine.py``. The job list is the synthetic one of the reference values (100 000 jobs on
1 024 GPUs at load 0.9), made here from its recipe; results are checked against those values while timing.
"""

from __future__ import annotations

import importlib.util
import math
import os
import random
import subprocess
import sys
import tempfile
import time

import numpy as np
import polars as pl

from gpuplanner.simulate import Calendar, Fleet, Rules, simulate
from gpuplanner.simulate.build import to_terms, to_world
from gpuplanner.simulate.engine import advance
from gpuplanner.simulate.jobs import checked

BOARD = "H100-80GB-SXM5"
MEAN_DELAY_S = {"nodes": 1939.6810, "pool": 90.9630}
COMPILE = """
import time
import polars as pl
from gpuplanner.simulate import Calendar, Fleet, Rules, simulate
import gpuplanner.simulate.engine
jobs = pl.DataFrame({"job_id": ["a"], "tenant": "t", "submit_s": 0.0, "run_s": 1.0, "gpus": 1, "profile": "gpu"})
begin = time.process_time()
simulate(jobs, Fleet("H100-80GB-SXM5", 1, 1), Calendar.constant({"gpu": 1}), Rules(queue="strict"), policy="p")
print(time.process_time() - begin)
"""


def synthetic(count: int, gpus: int, load: float = 0.9) -> pl.DataFrame:
    """Jobs of 1, 2, 4 or 8 GPUs with log-uniform run times from 1 s to 10 000 s, Poisson arrivals."""
    rng, now, previous, rows = random.Random(42), 0.0, -1, []
    for _ in range(count):
        now += -math.log(1 - rng.random()) * 22798 / (gpus * load)
        duration, kind = int(10 ** (1 + 4 * rng.random())), rng.random()
        previous = max(int(now), previous + 1)
        rows.append((previous, duration, 1 if kind < 0.7 else 2 if kind < 0.8 else 4 if kind < 0.9 else 8))
    return pl.DataFrame(rows, schema=["submit_s", "run_s", "gpus"], orient="row").select(
        pl.int_range(pl.len()).cast(pl.String).alias("job_id"),
        pl.all(),
        tenant=pl.lit("t"),
        profile=pl.lit("gpu"),
        limit_s=2 * pl.col("run_s"),
    )


def sliced(count: int, gpus: int) -> pl.DataFrame:
    """Jobs on MIG instances over a week, filling about 70 % of the fleet's slices."""
    rng = np.random.default_rng(42)
    profile = rng.choice(["1g.10gb", "2g.20gb", "3g.40gb"], count, p=[0.6, 0.2, 0.2])
    slices = 0.6 * 1 + 0.2 * 2 + 0.2 * 3
    mean_run_s = 0.7 * gpus * 7 * 604_800 / (count * slices)
    return pl.DataFrame(
        {
            "job_id": np.arange(count).astype(str),
            "tenant": "t",
            "submit_s": np.sort(rng.random(count) * 604_800),
            "run_s": rng.exponential(mean_run_s, count),
            "gpus": 1,
            "profile": profile,
            "sms_needed": 16.0,
        }
    )


def cpu_seconds(work, repeats=3):
    """Least CPU seconds of some repeats, and the last result."""
    best, result = math.inf, None
    for _ in range(repeats):
        begin = time.process_time()
        result = work()
        best = min(best, time.process_time() - begin)
    return best, result


def loop_seconds(jobs, fleet, calendar, rules):
    """Least CPU seconds of the compiled loop alone."""
    table = checked(jobs, rules).sort("submit_s")
    terms = to_terms(table, fleet, calendar, rules)
    best = math.inf
    for _ in range(3):
        world = to_world(table, terms, fleet, calendar, rules, 0.0)
        begin = time.process_time()
        while not advance(world):
            world.status[0].logged = 0
        best = min(best, time.process_time() - begin)
    return best


def simpy_pool(jobs, gpus):
    """The loop that any Python user writes first: one process per job, one container of GPUs."""
    import simpy

    environment = simpy.Environment()
    pool = simpy.Container(environment, capacity=gpus, init=gpus)
    delays = []

    def job(submit, run, size):
        yield environment.timeout(submit)
        yield pool.get(size)
        delays.append(environment.now - submit)
        yield environment.timeout(run)
        yield pool.put(size)

    for row in jobs.select("submit_s", "run_s", "gpus").iter_rows():
        environment.process(job(*row))
    environment.run()
    return sum(delays) / len(delays)


def compile_seconds():
    """CPU seconds of a first call with nothing kept on disk, and with."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"NUMBA_CACHE_DIR": folder}
        command = [sys.executable, "-c", COMPILE]
        runs = [
            subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            for _ in range(2)
        ]
    return [float(run.stdout) for run in runs]


def main():
    """Print the table."""
    fresh, kept = compile_seconds()
    print(f"first call: {fresh:.1f} CPU s compiled afresh, {kept:.2f} CPU s from the cache on disk\n")
    print(f"{'case':<58}{'simulate':>10}{'loop':>9}{'jobs/s':>13}")
    syn, million = synthetic(100_000, 1024), synthetic(1_000_000, 8192)
    cut = sliced(100_000, 512)
    layouts = ("1g.10gb:7", "2g.20gb:3,1g.10gb:1", "3g.40gb:2")
    swing = [[180 + 40 * (slot % 24 > 12), 152, 180 - 40 * (slot % 24 > 12)] for slot in range(168)]
    hourly = Calendar(np.arange(168) * 3600.0, layouts, swing)
    static = Calendar(np.zeros(1), layouts, [[200, 152, 160]])
    cases = [
        ("100 000 jobs, 128 nodes, strict", syn, (128, 8), None, "strict", "nodes"),
        ("100 000 jobs, 128 nodes, EASY", syn, (128, 8), None, "easy", None),
        ("100 000 jobs, pool of 1 024 GPUs, strict", syn, (1, 1024), None, "strict", "pool"),
        ("1 000 000 jobs, 1 024 nodes, strict", million, (1024, 8), None, "strict", None),
        ("1 000 000 jobs, 1 024 nodes, EASY", million, (1024, 8), None, "easy", None),
        ("100 000 jobs on instances, 512 GPUs, static", cut, (64, 8), static, "strict", None),
        ("100 000 jobs on instances, 512 GPUs, 168 hourly layouts", cut, (64, 8), hourly, "strict", None),
    ]
    pool_s = 0.0
    for name, jobs, (nodes, per_node), given, queue, known in cases:
        fleet, rules = Fleet(BOARD, nodes, per_node), Rules(queue=queue)
        calendar = given or Calendar.constant({"gpu": fleet.gpus})
        total, run = cpu_seconds(lambda: simulate(jobs, fleet, calendar, rules, policy="p"))  # noqa: B023
        loop = loop_seconds(jobs, fleet, calendar, rules)
        if known:
            assert f"{run.outcomes['wait_s'].mean():.4f}" == f"{MEAN_DELAY_S[known]:.4f}"
        pool_s = total if known == "pool" else pool_s
        print(f"{name:<58}{total:>9.3f}s{loop:>8.3f}s{jobs.height / loop:>13,.0f}")
    if importlib.util.find_spec("simpy"):
        seconds, delay = cpu_seconds(lambda: simpy_pool(syn, 1024), repeats=1)
        assert f"{delay:.4f}" == f"{MEAN_DELAY_S['pool']:.4f}"
        print(
            f"{'SimPy, 100 000 jobs, pool of 1 024 GPUs':<58}{seconds:>9.3f}s{'':>9}{100_000 / seconds:>13,.0f}"
        )
        print(f"{'simulate() against SimPy on the pool':<58}{seconds / pool_s:>9.0f}x")


if __name__ == "__main__":
    main()
