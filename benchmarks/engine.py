"""Rate of the simulator on lists of jobs, in CPU seconds of one process, after compilation.

Run ``python benchmarks/engine.py`` (peers: ``pip install gpuplanner[bench]``). Lists are made here from the recipe of
the published ones; results are checked against the published values, and against each peer, while timing. Simulators
that cannot be installed are quoted from their published rates.
"""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars as pl
from peers import accasim_pool, simpy_pool

from gpuplanner.core.libraries_plugins_and_workers import import_optional
from gpuplanner.simulator.job_list_simulation import simulate_job_list

TENANTS = 8
# Mean queue wait of the published lists [s].
PUBLISHED = {
    ("syn10k", "pool", "fifo"): 2106.3482,
    ("syn100k", "pool", "fifo"): 90.9630,
    ("syn10k", "nodes", "fifo"): 65956.9969,
    ("syn100k", "nodes", "fifo"): 1939.6810,
    ("syn10k", "nodes", "sjf"): 3723.2160,
    ("syn10k", "pool", "pass"): 695.7123,
}
# Jobs per CPU second of simulators that step every second: HeliosArtifact bdaae109 and PAI 2020 7a6c496e.
QUOTED = {
    ("syn10k", "nodes", "fifo"): ("Helios", 67),
    ("syn100k", "nodes", "fifo"): ("Helios", 578),
    ("syn10k", "pool", "pass"): ("PAI 2020", 155),
}
MILLION = """
import resource, sys, time
from gpuplanner.simulator.job_list_simulation import read_job_list, simulate_job_list
simulate_job_list(read_job_list(sys.argv[2])[0], gpus=8192, gpus_per_node=8)
begin = time.process_time()
jobs, _ = read_job_list(sys.argv[1])
read = time.process_time()
outcomes = simulate_job_list(jobs, gpus=8192, gpus_per_node=8)
end = time.process_time()
print(read - begin, end - read, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, outcomes.height)
"""
FIRST_CALL = """
import time
import polars as pl
from gpuplanner.simulator.job_list_simulation import simulate_job_list
times = {"submit_s": [0.0], "run_s": [1.0], "limit_s": [1.0]}
jobs = pl.DataFrame({"job_id": ["a"], "tenant": ["-"], **times, "gpus": [1]})
begin = time.process_time()
simulate_job_list(jobs, gpus=1, gpus_per_node=1)
print(time.process_time() - begin)
"""


def synthetic(count, gpus, load=0.9):
    """Jobs of 1, 2, 4 or 8 GPUs with log-uniform run times from 10 s to 100 000 s, Poisson arrivals."""
    rng, now, previous, rows = random.Random(42), 0.0, -1, []
    for _ in range(count):
        now += -math.log(1 - rng.random()) * 22798 / (gpus * load)
        duration, kind = int(10 ** (1 + 4 * rng.random())), rng.random()
        previous = max(int(now), previous + 1)
        rows.append((previous, duration, 1 if kind < 0.7 else 2 if kind < 0.8 else 4 if kind < 0.9 else 8))
    table = pl.DataFrame(rows, schema=["submit_s", "run_s", "gpus"], orient="row")
    return table.with_columns(pl.col("submit_s", "run_s").cast(pl.Float64)).with_columns(
        job_id=pl.int_range(pl.len()).cast(pl.String),
        tenant=(pl.int_range(pl.len()) % TENANTS).cast(pl.String),
        limit_s=2.0 * pl.col("run_s"),
    )


def least(work, repeats=3):
    """Least CPU seconds of some repeats, and the last result."""
    best, result = math.inf, None
    for _ in range(repeats):
        begin = time.process_time()
        result = work()
        best = min(best, time.process_time() - begin)
    return best, result


def mean_wait_s(outcomes):
    """Mean queue wait [s]."""
    return (outcomes["start_s"] - outcomes["submit_s"]).mean()


def python(code, *arguments, **environment):
    """Numbers that a fresh interpreter prints."""
    command = [sys.executable, "-c", code, *arguments]
    child = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    return [float(number) for number in child.stdout.split()]


def against_peers(lists):
    """First come, first served on one pool: against both peers, equal results required."""
    print(f"{'FIFO, one pool':<16}{'whole':>9}{'SimPy':>9}{'AccaSim':>9}{'SimPy':>8}{'AccaSim':>9}")
    for name, (jobs, gpus) in lists.items():
        whole, outcomes = least(lambda: simulate_job_list(jobs, gpus=gpus, gpus_per_node=gpus))  # noqa: B023
        simpy_s, simpy_wait_s = simpy_pool(jobs, gpus)
        accasim_s, accasim_wait_s = accasim_pool(jobs, gpus)
        for wait_s in (mean_wait_s(outcomes), simpy_wait_s, accasim_wait_s):
            assert f"{wait_s:.4f}" == f"{PUBLISHED[name, 'pool', 'fifo']:.4f}", wait_s
        print(
            f"{name:<16}{whole:>8.4f}s{simpy_s:>8.2f}s{accasim_s:>8.2f}s"
            f"{simpy_s / whole:>7.0f}x{accasim_s / whole:>8.0f}x"
        )


def against_quoted(lists):
    """Every queue rule: rates of the whole call, and ratios to quoted ones."""
    print(f"\n{'nodes of 8, or one pool':<28}{'whole':>9}{'jobs/s':>12}{'quoted':>28}")
    cases = [(name, "nodes", queue) for name in lists for queue in ("fifo", "sjf")]
    cases += [("syn10k", "pool", "pass")]
    cases += [("syn100k", "nodes", queue) for queue in ("pass", "backfill", "fair")]
    for name, where, queue in cases:
        jobs, gpus = lists[name]
        size = {"gpus": gpus, "gpus_per_node": 8 if where == "nodes" else gpus, "queue": queue}
        simulate_job_list(jobs.head(10), **size)
        seconds, outcomes = least(lambda: simulate_job_list(jobs, **size))  # noqa: B023
        if (name, where, queue) in PUBLISHED:
            assert f"{mean_wait_s(outcomes):.4f}" == f"{PUBLISHED[name, where, queue]:.4f}"
        rate, beside = jobs.height / seconds, ""
        if (name, where, queue) in QUOTED:
            peer, quoted = QUOTED[name, where, queue]
            beside = f"{peer} {quoted}/s: {rate / quoted:,.0f}x"
        print(f"{f'{name}, {where}, {queue}':<28}{seconds:>8.4f}s{rate:>12,.0f}{beside:>28}")


def million():
    """One million jobs at load 1.02 on 1,024 nodes: simulated by queue rule, and reading and simulating a file."""
    jobs = synthetic(1_000_000, 8192, 1.02)
    print("\none million jobs, 1,024 nodes of 8, load 1.02")
    for queue in ("fifo", "sjf", "pass"):
        seconds, _ = least(lambda: simulate_job_list(jobs, gpus=8192, gpus_per_node=8, queue=queue), 1)  # noqa: B023
        print(f"{queue:<10}{seconds:>8.2f} s")
    names = {"submit_s": "submit_time", "run_s": "duration", "gpus": "num_gpus"}
    table = jobs.select("job_id", *names).rename(names)
    with tempfile.TemporaryDirectory() as folder:
        whole, few = Path(folder) / "million.csv", Path(folder) / "few.csv"
        table.write_csv(whole)
        table.head(10).write_csv(few)
        read, simulated, gib, rows = python(MILLION, str(whole), str(few))
    assert rows == 1_000_000
    print(f"command, fifo: read {read:.2f} s, simulate {simulated:.2f} s, peak {gib:.2f} GiB")


def main():
    """Print the tables."""
    import_optional("simpy", extra="bench")
    with tempfile.TemporaryDirectory() as folder:
        fresh, kept = (python(FIRST_CALL, NUMBA_CACHE_DIR=folder)[0] for _ in range(2))
    print(f"first call: {fresh:.1f} CPU s compiled afresh, {kept:.2f} CPU s from the cache on disk\n")
    lists = {"syn10k": (synthetic(10_000, 128), 128), "syn100k": (synthetic(100_000, 1024), 1024)}
    simulate_job_list(lists["syn10k"][0].head(10), gpus=128, gpus_per_node=128)  # compiled
    against_peers(lists)
    against_quoted(lists)
    million()


if __name__ == "__main__":
    main()
