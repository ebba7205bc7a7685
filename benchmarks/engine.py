"""Rate of the simulation engine, in CPU seconds of one process, after compilation.

Run ``python benchmarks/engine.py`` (peers: ``pip install gpuplanner[bench]``). Job lists are made here from the
recipe of the published ones; results are checked against the published values, and against each peer, while
timing. Peers that cannot be installed are quoted from their published rates.
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

import numpy as np
import polars as pl
from peers import accasim_pool, simpy_pool

from gpuplanner._optional import import_optional
from gpuplanner.lab.gangs import GangRules, prepare, schedule
from gpuplanner.lab.gangs.arrays import to_gangs
from gpuplanner.lab.gangs.schedule import checked_gangs
from gpuplanner.lab.job_lists import read_job_list
from gpuplanner.lab.orders import ResearchRules
from gpuplanner.simulate import Calendar, Fleet, Rules, simulate

BOARD = "H100-80GB-SXM5"
STRICT = GangRules(queue="strict")
# Mean queueing delay of the published lists [s].
PUBLISHED = {
    ("syn10k", "pool"): 2106.3482,
    ("syn100k", "pool"): 90.9630,
    ("syn10k", "nodes"): 65956.9969,
    ("syn100k", "nodes"): 1939.6810,
}
# Jobs per CPU second of simulators that step every second: HeliosArtifact bdaae109 and PAI 2020 7a6c496e.
QUOTED = {("syn100k", "nodes", "fifo"): ("Helios", 578), ("syn10k", "nodes", "fifo"): ("Helios", 67)}
QUOTED_PASS = ("PAI 2020", 155)
HELIOS_SRTF_S = 29.0
MILLION = """
import resource, sys, time
from gpuplanner.lab.job_lists import read_job_list
from gpuplanner.lab.gangs import GangRules, prepare, schedule
from gpuplanner.simulate import Fleet
rules = GangRules(queue="strict")
prepare(rules)
begin = time.process_time()
jobs, _ = read_job_list(sys.argv[1])
outcomes = schedule(jobs, Fleet("H100-80GB-SXM5", 1024, 8), rules, policy="fifo")
print(time.process_time() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, outcomes.height)
"""
FIRST_CALL = """
import time
from gpuplanner.lab.gangs import GangRules, prepare
import gpuplanner.lab.gangs.queues
begin = time.process_time()
prepare(GangRules(queue="strict"))
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
    return pl.DataFrame(rows, schema=["submit_s", "run_s", "gpus"], orient="row").select(
        pl.int_range(pl.len()).cast(pl.String).alias("job_id"),
        pl.all(),
        tenant=pl.lit("t"),
        profile=pl.lit("gpu"),
        limit_s=2.0 * pl.col("run_s"),
    )


def sliced(count, gpus):
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


def least(work, repeats=3):
    """Least CPU seconds of some repeats, and the last result."""
    best, result = math.inf, None
    for _ in range(repeats):
        begin = time.process_time()
        result = work()
        best = min(best, time.process_time() - begin)
    return best, result


def loop_seconds(jobs, fleet, rules):
    """Least CPU seconds of the compiled loop alone."""
    table, best = checked_gangs(jobs, fleet, rules), math.inf
    for _ in range(3):
        gangs = to_gangs(table, fleet, rules)
        begin = time.process_time()
        rules.run(gangs)
        best = min(best, time.process_time() - begin)
    return best


def python(code, *arguments, **environment):
    """Numbers that a fresh interpreter prints."""
    command = [sys.executable, "-c", code, *arguments]
    child = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    return [float(number) for number in child.stdout.split()]


def against_peers(lists):
    """First come first served on one pool: loop and whole call against both peers, equal results required."""
    print(f"{'FIFO, one pool':<20}{'loop':>9}{'schedule()':>12}{'SimPy':>9}{'AccaSim':>9}{'loop is':>10}")
    for name, (jobs, gpus) in lists.items():
        fleet = Fleet(BOARD, 1, gpus)
        loop = loop_seconds(jobs, fleet, STRICT)
        whole, outcomes = least(lambda: schedule(jobs, fleet, STRICT, policy="p"))  # noqa: B023
        simpy_s, simpy_delay = simpy_pool(jobs, gpus)
        accasim_s, accasim_delay = accasim_pool(jobs, gpus)
        for delay in (outcomes["queued_s"].mean(), simpy_delay, accasim_delay):
            assert f"{delay:.4f}" == f"{PUBLISHED[name, 'pool']:.4f}", delay
        ratio = min(simpy_s, accasim_s) / loop
        print(f"{name:<20}{loop:>8.4f}s{whole:>11.3f}s{simpy_s:>8.2f}s{accasim_s:>8.2f}s{ratio:>9.0f}x")


def against_quoted(lists):
    """Nodes and other queues: rates, and ratios to quoted ones."""
    print(f"\n{'nodes of 8, or pool':<38}{'loop':>9}{'jobs/s':>13}{'quoted':>26}")
    cases = [(name, "nodes", GangRules(queue="strict")) for name in lists] + [
        ("syn10k", "pool", GangRules(queue="pass"))
    ]
    cases += [("syn100k", "nodes", ResearchRules(queue=queue)) for queue in ("pass", "easy", "conservative")]
    cases += [
        ("syn100k", "nodes", ResearchRules(queue="pass", order=order))
        for order in ("sjf", "fair", "srtf", "las")
    ]
    for name, where, rules in cases:
        jobs, gpus = lists[name]
        fleet = Fleet(BOARD, gpus // 8, 8) if where == "nodes" else Fleet(BOARD, 1, gpus)
        prepare(rules)
        loop = loop_seconds(jobs, fleet, rules)
        rate, quoted = jobs.height / loop, QUOTED.get((name, where, rules.order))
        if rules == STRICT:
            delay = schedule(jobs, fleet, rules, policy="p")["queued_s"].mean()
            assert f"{delay:.4f}" == f"{PUBLISHED[name, where]:.4f}"
        elif (name, where) == ("syn10k", "pool"):
            quoted = QUOTED_PASS
        else:
            quoted = None
        beside = f"{quoted[0]} {quoted[1]}/s: {rate / quoted[1]:,.0f}x" if quoted else ""
        print(
            f"{name + ', ' + where + ', ' + rules.order + ' ' + rules.queue:<38}{loop:>8.4f}s{rate:>13,.0f}{beside:>26}"
        )


def philly():
    """SRTF on the published list, if it is there."""
    path = Path(os.environ.get("GPUPLANNER_DATA", "../shared/data")) / "sim" / "philly_2869ce.csv"
    if not path.exists():
        return
    rules = ResearchRules(queue="pass", order="srtf")
    jobs, fleet = read_job_list(path)[0], Fleet(BOARD, 16, 8)
    loop = loop_seconds(jobs, fleet, rules)
    whole, outcomes = least(lambda: schedule(jobs, fleet, rules, policy="srtf"))
    assert f"{outcomes['jct_s'].mean():.4f}" == "90635.8286"
    print(
        f"\nSRTF on philly_2869ce: loop {loop * 1e3:.2f} ms, {HELIOS_SRTF_S / loop:,.0f}x Helios (29 s quoted);"
        f" schedule() {whole * 1e3:.1f} ms, {HELIOS_SRTF_S / whole:,.0f}x"
    )


def million():
    """One million jobs at load 1.02 on 1 024 nodes: the loop, and all with load and table of outcomes."""
    jobs = synthetic(1_000_000, 8192, 1.02)
    loop = loop_seconds(jobs, Fleet(BOARD, 1024, 8), STRICT)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "million.csv"
        names = {"submit_s": "submit_time", "run_s": "duration", "gpus": "num_gpus"}
        jobs.select("job_id", *names).rename(names).write_csv(path)
        seconds, gib, rows = python(MILLION, str(path))
    assert rows == 1_000_000
    print(f"\none million jobs, 1 024 nodes: loop {loop:.2f} s, all {seconds:.2f} s, peak {gib:.2f} GiB")


def instances():
    """Static and dynamic layouts on 100 000 jobs on MIG instances."""
    jobs, fleet = sliced(100_000, 512), Fleet(BOARD, 64, 8)
    layouts = ("1g.10gb:7", "2g.20gb:3,1g.10gb:1", "3g.40gb:2")
    swing = [[180 + 40 * (slot % 24 > 12), 152, 180 - 40 * (slot % 24 > 12)] for slot in range(168)]
    calendars = {
        "static": Calendar(np.zeros(1), layouts, [[200, 152, 160]]),
        "168 hourly slots": Calendar(np.arange(168) * 3600.0, layouts, swing),
    }
    simulate(jobs.head(1), fleet, calendars["static"], Rules(queue="strict"), policy="p")
    print("\n100 000 jobs on instances of 512 GPUs, whole call")
    for name, calendar in calendars.items():
        seconds, _ = least(lambda: simulate(jobs, fleet, calendar, Rules(queue="strict"), policy="p"))  # noqa: B023
        print(f"{name:<20}{seconds:>8.3f}s")


def main():
    """Print the tables."""
    import_optional("simpy", extra="bench")
    with tempfile.TemporaryDirectory() as folder:
        fresh, kept = (python(FIRST_CALL, NUMBA_CACHE_DIR=folder)[0] for _ in range(2))
    print(f"first call: {fresh:.1f} CPU s compiled afresh, {kept:.2f} CPU s from the cache on disk\n")
    prepare(STRICT)
    lists = {"syn10k": (synthetic(10_000, 128), 128), "syn100k": (synthetic(100_000, 1024), 1024)}
    against_peers(lists)
    against_quoted(lists)
    philly()
    million()
    instances()


if __name__ == "__main__":
    main()
