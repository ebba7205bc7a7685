"""CPU seconds of runs on MIG instances: static and planned layouts, phases, repartitioning on demand.

Run ``python benchmarks/mig_engine.py``. All on 512 H100 with 100 000 jobs on instances over a week, at 70 % of the
fleet's slices or as said; whole calls with checks and tables, after compilation.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import polars as pl

from gpuplanner.hardware import ChangeCost, load_gpu_model
from gpuplanner.simulate import Calendar, Fleet, Rules, simulate
from gpuplanner.simulate.nodes import Flexible, NodeFleet, NodeRequests, play

BOARD = "H100-80GB-SXM5"
FLEET = Fleet(BOARD, 64, 8)
WEEK_S = 604_800.0
STATIC = Calendar.constant({"1g.10gb:7": 200, "2g.20gb:3,1g.10gb:1": 152, "3g.40gb:2": 160})
FIRST_CALL = """
import time
import polars as pl
from gpuplanner.simulate import Calendar, Fleet, Rules, simulate
import gpuplanner.simulate.slices.calendar_loop
jobs = pl.DataFrame({"job_id": ["a"], "tenant": "t", "submit_s": 0.0, "run_s": 1.0, "gpus": 1, "profile": "1g.10gb"})
layouts = Calendar.constant({"1g.10gb:7": 1})
begin = time.process_time()
simulate(jobs, Fleet("H100-80GB-SXM5", 1, 1), layouts, Rules(queue="strict"), policy="p")
print(time.process_time() - begin)
"""


def sliced(count, shares, load=0.7):
    """Jobs on instances over a week; shares of the profiles sum to 1."""
    rng = np.random.default_rng(42)
    profile = rng.choice(list(shares), count, p=list(shares.values()))
    slices = sum(share * (7 if name == "gpu" else int(name[0])) for name, share in shares.items())
    mean_run_s = load * FLEET.gpus * 7 * WEEK_S / (count * slices)
    return pl.DataFrame(
        {
            "job_id": np.arange(count).astype(str),
            "tenant": "t",
            "submit_s": np.sort(rng.random(count) * WEEK_S),
            "run_s": rng.exponential(mean_run_s, count),
            "gpus": 1,
            "profile": profile,
            "sms_needed": 16.0,
        }
    )


def in_three(jobs):
    """Three phases for every job: a small one, one as it asks for, and a small one again."""
    parts = [
        jobs.select("job_id", "run_s", "profile").with_columns(phase=pl.lit(phase)) for phase in range(3)
    ]
    small = pl.when(pl.col("phase") == 1).then("profile").otherwise(pl.lit("1g.10gb"))
    return (
        pl.concat(parts)
        .sort("job_id", "phase")
        .select(
            "job_id",
            profile=small,
            run_s=pl.col("run_s") * pl.when(pl.col("phase") == 1).then(0.8).otherwise(0.1),
        )
    )


def least(work, repeats=3):
    """Least CPU seconds of some repeats, and the last result."""
    best, result = math.inf, None
    for _ in range(repeats):
        begin = time.process_time()
        result = work()
        best = min(best, time.process_time() - begin)
    return best, result


def first_calls():
    """CPU seconds of the first call in a fresh interpreter, compiled afresh and from the cache on disk."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", FIRST_CALL]
        environment = os.environ | {"NUMBA_CACHE_DIR": folder}
        fresh, kept = (
            float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
            for _ in range(2)
        )
    print(f"first call{fresh:>8.1f} s compiled afresh{kept:>8.2f} s from the cache on disk")


def runs():
    """Whole calls, and what comes out of them."""
    jobs = sliced(100_000, {"1g.10gb": 0.6, "2g.20gb": 0.2, "3g.40gb": 0.2})
    phases = in_three(jobs)
    driver, operator = (Rules("strict", change=ChangeCost.of(BOARD, path)) for path in ("nvml", "operator"))
    cases = {
        "static": (jobs, STATIC, operator, None),
        "three phases": (jobs, STATIC, driver, phases),
    }
    print(f"\n{'100 000 jobs, 512 GPUs':<36}{'CPU s':>8}{'mean JCT':>12}{'p95 wait':>12}{'changes':>10}")
    for name, (work, layouts, rules, chain) in cases.items():
        seconds, run = least(lambda: simulate(work, FLEET, layouts, rules, policy="p", phases=chain))  # noqa: B023
        changes = run.states.filter(pl.col("state") == "reconfiguring").height
        jct, wait = run.outcomes["jct_s"].mean(), run.outcomes["wait_s"].quantile(0.95)
        print(f"{name:<36}{seconds:>8.3f}{jct:>12,.0f}{wait:>12,.0f}{changes:>10,}")


def on_demand():
    """Instances that are made for each job, beside jobs on whole GPUs, in one queue with backfill."""
    few = {"1g.10gb": 0.6, "2g.20gb": 0.2, "3g.40gb": 0.2}
    many = {"1g.10gb": 0.4, "2g.20gb": 0.2, "3g.40gb": 0.2, "7g.80gb": 0.1, "gpu": 0.1}
    board = load_gpu_model(BOARD)
    profiles = ("gpu", *list(many)[:-1])
    how = Flexible.of(board, profiles, ChangeCost.of(board, "nvml"))
    offer = np.array([[how.capacity(FLEET.gpus_per_node, whole=True)]] * FLEET.nodes)
    shares = np.array([1.0, *(board.share(name) for name in profiles[1:])])
    gpus, first = np.full(FLEET.nodes, FLEET.gpus_per_node), np.zeros(FLEET.nodes, np.int64)
    fleet = NodeFleet(profiles, gpus, offer, first, shares, how)
    print(f"\n{'100 000 jobs, cut on demand':<36}{'CPU s':>8}{'mean wait':>12}{'p95 wait':>12}")
    for name, mix, load in (("instances alone", few, 0.7), ("with whole GPUs", many, 0.7), ("", many, 0.9)):
        jobs = sliced(100_000, mix, load)
        ready, run = jobs["submit_s"].to_numpy(), jobs["run_s"].to_numpy()
        profile = (
            jobs["profile"].replace_strict({name: place for place, name in enumerate(profiles)}).to_numpy()
        )
        one = np.ones(len(ready), np.int64)
        asked = NodeRequests(ready, ready, run, 2 * run, profile, one, one)
        seconds, found = least(lambda: play(asked, fleet))  # noqa: B023
        wait = found.start_s - ready
        print(
            f"{f'{name} load {load}':<36}{seconds:>8.3f}{wait.mean():>12,.0f}{np.quantile(wait, 0.95):>12,.0f}"
        )


def main():
    """Print the tables."""
    first_calls()
    runs()
    on_demand()


if __name__ == "__main__":
    main()
