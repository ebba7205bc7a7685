"""CPU seconds of runs on MIG instances: static, planned and on-demand layouts, phases, and a sweep of layouts.

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

from gpuplanner.hardware import ChangeCost
from gpuplanner.simulate import Calendar, Fleet, OnDemand, Rules, hold_largest, simulate
from gpuplanner.study.future.sweep import static_mixes, sweep

BOARD = "H100-80GB-SXM5"
FLEET = Fleet(BOARD, 64, 8)
WEEK_S = 604_800.0
STATIC = Calendar.constant({"1g.10gb:7": 200, "2g.20gb:3,1g.10gb:1": 152, "3g.40gb:2": 160})
FIRST_CALL = """
import sys, time
import polars as pl
from gpuplanner.simulate import Calendar, Fleet, OnDemand, Rules, simulate
import gpuplanner.simulate.slices.ondemand_loop
jobs = pl.DataFrame({"job_id": ["a"], "tenant": "t", "submit_s": 0.0, "run_s": 1.0, "gpus": 1, "profile": "1g.10gb"})
layouts = {"static": Calendar.constant({"1g.10gb:7": 1}), "on demand": OnDemand()}[sys.argv[1]]
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
    for kind in ("static", "on demand"):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", FIRST_CALL, kind]
            environment = os.environ | {"NUMBA_CACHE_DIR": folder}
            fresh, kept = (
                float(
                    subprocess.run(
                        command, env=environment, capture_output=True, text=True, check=True
                    ).stdout
                )
                for _ in range(2)
            )
        print(f"first call, {kind:<10}{fresh:>8.1f} s compiled afresh{kept:>8.2f} s from the cache on disk")


def runs():
    """Whole calls, and what comes out of them."""
    jobs = sliced(100_000, {"1g.10gb": 0.6, "2g.20gb": 0.2, "3g.40gb": 0.2})
    other = sliced(100_000, {"1g.10gb": 0.2, "1g.20gb": 0.2, "2g.20gb": 0.2, "3g.40gb": 0.2, "4g.40gb": 0.2})
    shares = {"1g.10gb": 0.4, "2g.20gb": 0.2, "3g.40gb": 0.2, "7g.80gb": 0.1, "gpu": 0.1}
    full, over = sliced(100_000, shares, 0.9), sliced(100_000, shares, 1.2)
    phases = in_three(jobs)
    driver, operator = (Rules("strict", change=ChangeCost.of(BOARD, path)) for path in ("nvml", "operator"))
    start = dict(zip(STATIC.layouts, STATIC.counts[0].tolist(), strict=True))
    cases = {
        "static": (jobs, STATIC, operator, None),
        "on demand, driver": (jobs, OnDemand(), driver, None),
        "on demand, operator": (jobs, OnDemand(), operator, None),
        "on demand, driver, from static": (jobs, OnDemand(start), driver, None),
        "on demand, driver, five profiles": (other, OnDemand(), driver, None),
        "on demand, patience and limit": (jobs, OnDemand(start, 300.0, 4), driver, None),
        "on demand, driver, load 0.9": (full, OnDemand(), driver, None),
        "on demand, operator, load 0.9": (full, OnDemand(), operator, None),
        "on demand, driver, load 1.2": (over, OnDemand(), driver, None),
        "on demand, operator, load 1.2": (over, OnDemand(), operator, None),
        "three phases, largest held": (jobs, STATIC, driver, hold_largest(phases, BOARD)),
        "three phases, on demand": (jobs, OnDemand(start), driver, phases),
    }
    print(f"\n{'100 000 jobs, 512 GPUs':<36}{'CPU s':>8}{'mean JCT':>12}{'p95 wait':>12}{'changes':>10}")
    for name, (work, layouts, rules, chain) in cases.items():
        seconds, run = least(lambda: simulate(work, FLEET, layouts, rules, policy="p", phases=chain))  # noqa: B023
        changes = run.states.filter(pl.col("state").is_in(["reconfiguring", "changing"])).height
        jct, wait = run.outcomes["jct_s"].mean(), run.outcomes["wait_s"].quantile(0.95)
        print(f"{name:<36}{seconds:>8.3f}{jct:>12,.0f}{wait:>12,.0f}{changes:>10,}")


def sweeps():
    """Twenty static layouts, the best known before, on the same jobs."""
    jobs = sliced(100_000, {"1g.10gb": 0.6, "2g.20gb": 0.2, "3g.40gb": 0.2}, 0.9)
    begin = time.process_time()
    mixes = static_mixes(jobs, FLEET)
    listed = time.process_time()
    found = sweep(jobs, FLEET, mixes, Rules("strict"))
    ended = time.process_time()
    print(
        f"\nsweep of {found.done} layouts: {listed - begin:.2f} s to list them, {ended - listed:.2f} s to simulate"
    )
    with pl.Config(tbl_rows=5, fmt_str_lengths=70, tbl_width_chars=160):
        print(found.table.select("rank", "policy", "mean_jct_s", "p95_queueing_delay_s", "difference"))


def main():
    """Print the tables."""
    first_calls()
    runs()
    sweeps()


if __name__ == "__main__":
    main()
