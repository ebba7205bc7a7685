"""Services sized together, against sizing each alone and against the plans that ParvaGPU ships.

Run ``python benchmarks/services.py --data FOLDER`` with the folder of the public traces (or set
``GPUPLANNER_DATA``). Everything runs in one process on one core; seconds are CPU seconds of planning, the least
of some repeats. The second table replaces the scenarios by made-up mixes of the same eleven models, up to
thousands of GPUs.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import polars as pl

from gpuplanner.planner.inference_service_measurements import read_service_demands, read_service_profiles
from gpuplanner.planner.inference_service_plan import BATCH_LATENCY_FRACTION, plan_services, verify_services

SHIPPED = {1: (2, 10), 2: (3, 20), 3: (5, 33), 4: (7, 48)}
"""GPUs and compute slices by scenario: rows of ``deployment/SLO*/SLO*_ParvaGPU_deploy.csv``."""
# Latency limits of scenario 2, in the order of the models [ms].
LIMITS_MS = (6434, 183, 216.5, 168.5, 418.5, 167, 211.5, 212.5, 204.5, 399.5, 396.5)
MIXES = ((11, 1), (11, 10), (11, 100), (11, 1000), (50, 1), (50, 5), (200, 1), (200, 5))


def timed(repeats, **arguments):
    """A plan, and the least CPU seconds of some repeats."""
    best = math.inf
    for _ in range(repeats):
        begin = time.process_time()
        plan = plan_services(**arguments)
        best = min(best, time.process_time() - begin)
    return plan, best


def line(name, arguments, shipped, repeats):
    """One row: joint plan, its bounds and seconds, beside the others; every plan is checked."""
    plan, seconds = timed(repeats, **arguments)
    alone, _ = timed(1, **arguments, method="alone")
    asked = (arguments["profiles"], arguments["rates"], arguments["latencies"])
    faults = verify_services(plan, *asked) + verify_services(alone, *asked)
    theirs = "" if shipped is None else f"{shipped[0]:>4} {shipped[1]:>4}"
    print(
        f"{name:28} {plan.gpus:>6} {plan.bound:>6} {plan.slices:>7} {plan.slices_bound:>7} "
        f"{'yes' if plan.proven else 'NO':>6} {seconds:>8.3f} {alone.gpus:>6} {alone.slices:>7} "
        f"{'ok' if not faults else 'WRONG':>5}  {theirs}",
        flush=True,
    )


def mix(profiles, services, scale, seed):
    """So many services, each one of the models, at 200 to 1,500 requests a second times the scale."""
    rng = np.random.default_rng(seed)
    models = profiles["service"].unique(maintain_order=True).to_list()
    tables, rates, latencies = [], {}, {}
    for number in range(services):
        model = number % len(models)
        name = f"{models[model]}-{number:03}"
        tables.append(profiles.filter(service=models[model]).with_columns(service=pl.lit(name)))
        rates[name] = float(rng.uniform(200, 1500)) * scale
        latencies[name] = LIMITS_MS[model] * float(rng.uniform(0.6, 1.6))
    return {"profiles": pl.concat(tables), "rates": rates, "latencies": latencies}


def main():
    """Run both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=os.environ.get("GPUPLANNER_DATA"), help="folder of the public traces")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.data is None:
        parser.error("give --data or set GPUPLANNER_DATA")
    folder = Path(given.data) / "parvagpu"
    packages = " ".join(f"{name} {version(name)}" for name in ("pulp", "highspy", "polars"))
    print(f"Python {platform.python_version()}, {packages}, seed {given.seed}, board A100-80GB\n")
    print(
        f"{'':28} {'together (proven best)':^46} {'alone':>14}        shipped\n"
        f"{'case':28} {'GPUs':>6} {'bound':>6} {'slices':>7} {'bound':>7} {'proven':>6} {'cpu s':>8} "
        f"{'GPUs':>6} {'slices':>7} {'check':>5}  GPUs slices"
    )
    for reading in ("process", "instance"):
        profiles = read_service_profiles(folder / "prof_data", throughput_of=reading)
        names = profiles["service"].unique(maintain_order=True).to_list()
        for share in (BATCH_LATENCY_FRACTION, 0.5, 1.0):
            print(f"throughput of one {reading}, a batch may take {share:g} of the limit")
            for row, shipped in SHIPPED.items():
                files = (folder / "SLO" / f"SLO_{name}.csv" for name in ("req_rate", "latency"))
                rates, latencies = read_service_demands(*files, names, row=row)
                asked = {"profiles": profiles, "rates": rates, "latencies": latencies, "latency_share": share}
                line(f"scenario {row}", asked, shipped, repeats=5)
    print("\nmade-up mixes")
    profiles = read_service_profiles(folder / "prof_data")
    for services, scale in MIXES:
        asked = mix(profiles, services, scale, given.seed)
        line(f"{services} services, rates x {scale}", asked, None, repeats=1)


if __name__ == "__main__":
    main()
