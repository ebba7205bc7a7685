"""How fast files become checked tables, against pandas doing the same work in the same run.

Run ``python benchmarks/reading.py`` (minutes; ``--rows`` and ``--samples`` make it shorter).
Philly is read from the folder ``GPUPLANNER_DATA``. Times are CPU seconds, user and system, of this process and the
children it waits for: the least of the rounds, in which the two sides take turns.

The pandas peer (:func:`pandas_jobs`) makes the same table as ``gpuplanner.ingest.source_registry.read``:
it hashes and unpacks the
file, checks that it is UTF-8, types the columns (by its C parser where every cell is a number; as text, cell by
cell, where not), turns local times into UTC with hours shown twice and skipped found, makes ids, ends, states and
the reject table with every reason and the line as it stood, counts what the quality report counts, sorts by
submission and sums GPU-hours by tenant. It does not look for quotation marks that are not closed, control
characters, lines with too few or too many fields, bombs or two files that are equal; we do.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import hashlib
import io
import math
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl

from gpuplanner.ingest.source_registry import read
from gpuplanner.ingest.telemetry.gpu_energy_and_hourly_sums import aggregate_hourly
from gpuplanner.usage.requested_demand import demand_series

ZONE = "America/Los_Angeles"
NUMBERS = ("duration", "num_gpus", "gpu_time")
COLUMNS = ("timestamp", *NUMBERS, "cluster")
HIGH = {"duration": 100 * 365.25 * 86400, "num_gpus": 1e6, "gpu_time": math.inf}
GIB = 1 << 30


def cpu_seconds() -> float:
    """User and system time of this process and of the children it waited for."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(rounds: int, *works: Callable[[], Any]) -> list[tuple[float, Any]]:
    """Least CPU seconds and last result of each; they take turns, so that a busy machine slows all alike."""
    least, results = [math.inf] * len(works), [None] * len(works)
    for _ in range(rounds):
        for number, work in enumerate(works):
            results[number] = None
            gc.collect()
            begin = cpu_seconds()
            results[number] = work()
            least[number] = min(least[number], cpu_seconds() - begin)
    return list(zip(least, results, strict=True))


def typed(data: bytes) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The table with numbers, and as text where some are none."""
    try:
        table = pd.read_csv(io.BytesIO(data), dtype=dict.fromkeys(COLUMNS, str) | dict.fromkeys(NUMBERS, float))
    except ValueError:
        text = pd.read_csv(io.BytesIO(data), dtype=str)
        return text.assign(**{name: pd.to_numeric(text[name], errors="coerce") for name in NUMBERS}), text
    return table, table


def pandas_jobs(path: Path) -> dict[str, Any]:
    """Read the Philly job table with pandas: jobs, rejects, counts, GPU-hours by tenant, hash."""
    packed = path.read_bytes()
    digest = hashlib.sha256(packed).hexdigest()
    data = gzip.decompress(packed) if packed.startswith(b"\x1f\x8b") else packed
    data.decode()
    table, text = typed(data)
    line = np.arange(2, len(table) + 2)
    naive = pd.to_datetime(table["timestamp"], format="%Y-%m-%d %H:%M:%S", errors="coerce")
    earliest, latest = (
        naive.dt.tz_localize(ZONE, ambiguous=np.full(len(table), summer), nonexistent="NaT") for summer in (True, False)
    )
    submit = earliest.dt.tz_convert("UTC")
    faults = {
        "timestamp: missing": text["timestamp"].isna(),
        "timestamp: not a time like %Y-%m-%d %H:%M:%S": text["timestamp"].notna() & naive.isna(),
        "cluster: missing": text["cluster"].isna(),
    }
    for name in NUMBERS:
        faults[f"{name}: not a number"] = table[name].isna() & text[name].notna()
        faults[f"{name}: below 0"] = table[name] < 0
        faults[f"{name}: above {HIGH[name]:g}"] = table[name] > HIGH[name]
    faults[f"timestamp: the clocks of {ZONE} skip it"] = naive.notna() & earliest.isna()
    marks = np.column_stack([fault.to_numpy() for fault in faults.values()])
    bad = marks.any(axis=1)
    reasons = np.array(list(faults))
    lines = data.decode().split("\n") if bad.any() else []
    rejects = [
        (int(number), "; ".join(reasons[mark]), lines[number - 1])
        for number, mark in zip(line[bad], marks[bad], strict=True)
    ]
    end = submit + pd.to_timedelta((table["duration"] * 1e6).round(), unit="us")
    jobs = pd.DataFrame(
        {
            "attempt": np.int32(1),
            "tenant": table["cluster"],
            "submit_time": submit,
            "start_time": submit,
            "end_time": end,
            "state": pd.Categorical.from_codes(np.zeros(len(table), np.int8), ["UNKNOWN"]),
            "gpus": table["num_gpus"],
        }
    )
    good = slice(None)
    if bad.any():
        good = ~bad
        jobs, table = jobs[good], table[good]
    jobs["job_id"] = job_ids(jobs["submit_time"], table)
    run = jobs["end_time"] - jobs["start_time"]
    counts = {
        "equal to an earlier row in every field": table.duplicated().sum(),
        "gpu_time is not duration × num_gpus": (
            (table["gpu_time"] - table["duration"] * table["num_gpus"]).abs() > 1
        ).sum(),
        "out of order by submission in the file": (jobs["submit_time"] < jobs["submit_time"].cummax()).sum(),
        "local time that the clock showed twice": ((earliest != latest) & earliest.notna())[good].sum(),
        "ran for more than 30 days": (run > pd.Timedelta(days=30)).sum(),
        "no GPU": (jobs["gpus"] == 0).sum(),
        "number of GPUs not known": jobs["gpus"].isna().sum(),
        "ended without an end time": jobs["end_time"].isna().sum(),
    }
    jobs = jobs.sort_values("submit_time", kind="stable", ignore_index=True)
    counts["no submission for more than 24 hours"] = (jobs["submit_time"].diff() > pd.Timedelta(hours=24)).sum()
    hours = jobs["gpus"] * (jobs["end_time"] - jobs["start_time"]).dt.total_seconds() / 3600
    by_tenant = hours.groupby(jobs["tenant"]).sum()
    return {"jobs": jobs, "rejects": rejects, "counts": counts, "hours": by_tenant, "sha256": digest}


def job_ids(submit: pd.Series, table: pd.DataFrame) -> pd.Series:
    """Names that follow from what a row says, with a number behind those of equal rows."""
    numbers = {name: table[name].astype(str).str.removesuffix(".0").replace("nan", "") for name in NUMBERS}
    seconds = ((submit - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(seconds=1)).astype(str)
    name = "philly-" + seconds + "-" + table["cluster"] + "-" + numbers["num_gpus"] + "-" + numbers["duration"]
    twin = name.groupby(name).cumcount()
    return name.where(twin == 0, name + "#" + (twin + 1).astype(str))


def our_jobs(path: Path) -> dict[str, Any]:
    """Read the same file with gpuplanner."""
    trace = read("philly", path)
    held = (pl.col("end_time") - pl.col("start_time")).dt.total_microseconds() / 3.6e9
    hours = trace.jobs.group_by("tenant").agg((pl.col("gpus") * held).sum())
    return {"trace": trace, "hours": hours}


def require_equal(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Stop unless both sides read the same, value for value; say how much was compared."""
    trace, jobs = ours["trace"], theirs["jobs"]
    for name in jobs.columns:
        mine, other = trace.jobs[name], jobs[name]
        if name.endswith("_time"):
            pairs = (
                mine.dt.epoch("us").to_numpy(),
                other.dt.tz_localize(None).to_numpy("datetime64[us]").astype(float),
            )
            same = np.array_equal(pairs[0], np.where(other.isna(), np.nan, pairs[1]), equal_nan=True)
        elif name in ("attempt", "gpus"):
            same = np.array_equal(mine.cast(pl.Float64).to_numpy(), other.to_numpy(float), equal_nan=True)
        else:
            same = mine.cast(pl.String).to_list() == other.astype(str).to_list()
        if not same:
            raise SystemExit(f"column {name} differs")
    if trace.rejects["row", "reason", "raw"].rows() != theirs["rejects"]:
        raise SystemExit("the reject tables differ")
    ours_counts = dict(trace.quality["check", "rows"].iter_rows())
    for check, rows in theirs["counts"].items():
        if ours_counts.get(check, 0) != rows:
            raise SystemExit(f"{check}: {ours_counts.get(check, 0)} and {rows} rows")
    if trace.provenance["files"][0]["sha256"] != theirs["sha256"]:
        raise SystemExit("the hashes differ")
    mine = dict(ours["hours"].iter_rows())
    if mine.keys() != set(theirs["hours"].index) or any(
        not math.isclose(mine[tenant], hours, rel_tol=1e-9) for tenant, hours in theirs["hours"].items()
    ):
        raise SystemExit("GPU-hours by tenant differ")
    return f"{len(jobs)} jobs, {len(theirs['rejects'])} rejects, {len(mine)} tenants equal"


def polars_scan(path: Path) -> pl.DataFrame:
    """Sum a column by tenant, and no more: nothing is checked, kept or accounted for."""
    table = pl.scan_csv(path, schema_overrides={"timestamp": pl.String})
    sums = table.group_by("cluster").agg(pl.col("gpu_time").sum())
    return sums.drop_nulls("cluster").collect()  # a blank line is a row of nulls here, and none to pandas


def pandas_scan(path: Path) -> pd.Series:
    """The same with pandas."""
    return pd.read_csv(path).groupby("cluster")["gpu_time"].sum()


def made_up(path: Path, rows: int, seed: int) -> Path:
    """A table in the form of Philly: two years with both clock changes, one row in 1,000 damaged."""
    rng = np.random.default_rng(seed)
    seconds = np.sort(rng.integers(0, 2 * 365 * 86400, rows))
    run = np.round(rng.lognormal(7, 2, rows).clip(1, 6e6), 1)
    gpus = rng.choice([1, 2, 4, 8, 16, 64], rows, p=[0.6, 0.12, 0.12, 0.12, 0.03, 0.01])
    table = pl.DataFrame(
        {
            "timestamp": pl.Series(seconds * 1_000_000).cast(pl.Duration("us")) + datetime(2024, 1, 1),
            "duration": run,
            "num_gpus": gpus,
            "gpu_time": run * gpus,
            "cluster": pl.Series([f"team{n:02d}" for n in range(14)])[rng.integers(0, 14, rows)],
        }
    ).with_columns(pl.col("timestamp").dt.strftime("%Y-%m-%d %H:%M:%S"), pl.col("num_gpus").cast(pl.String))
    damaged = rng.random(rows) < 0.001
    table = table.with_columns(num_gpus=pl.when(pl.Series(damaged)).then(pl.lit("-1")).otherwise("num_gpus"))
    table.write_csv(path)
    return path


def reading(path: Path, title: str, rounds: int, target: float) -> None:
    """One line: both sides, their ratio, and what was compared."""
    (ours, mine), (theirs, other) = measure(rounds, lambda: our_jobs(path), lambda: pandas_jobs(path))
    said = require_equal(mine, other)
    (bare, sums), (bare_pandas, pandas_sums) = measure(rounds, lambda: polars_scan(path), lambda: pandas_scan(path))
    for tenant, total in sums.iter_rows():
        if not math.isclose(total, pandas_sums[tenant], rel_tol=1e-9):
            raise SystemExit(f"sums of {tenant} differ")
    print(
        f"{title:20} {ours:8.3f} {theirs:8.3f} {theirs / ours:7.2f}  (target {target:g})  {said}\n"
        f"{'  scan and sum alone':20} {bare:8.3f} {bare_pandas:8.3f} {bare_pandas / bare:7.2f}",
        flush=True,
    )


def series(jobs: int, rounds: int, seed: int) -> None:
    """A demand series of many jobs, and its integral against whole microseconds summed by Python."""
    rng = np.random.default_rng(seed)
    first = datetime(2026, 1, 1, tzinfo=UTC)
    begin = rng.integers(0, 90 * 86400 * 10**6, jobs)
    run = rng.integers(10**6, 2 * 86400 * 10**6, jobs)
    instances = rng.integers(1, 9, jobs)
    instant = pl.Datetime("us", "UTC")
    offset = int(first.timestamp() * 1e6)
    table = pl.DataFrame(
        {
            "job_id": pl.int_range(jobs, eager=True).cast(pl.String),
            "attempt": pl.repeat(1, jobs, eager=True),
            "tenant": pl.Series([f"team{n}" for n in range(8)])[rng.integers(0, 8, jobs)],
            "submit_time": pl.Series(begin + offset).cast(instant),
            "start_time": pl.Series(begin + offset).cast(instant),
            "end_time": pl.Series(begin + run + offset).cast(instant),
            "state": pl.repeat("COMPLETED", jobs, eager=True),
            "profile": pl.Series(["gpu", "3g.40gb"])[rng.integers(0, 2, jobs)],
            "instances": instances,
        }
    )
    ((seconds, made),) = measure(rounds, lambda: demand_series(table))
    exact = sum(int(n) * int(length) for n, length in zip(instances, run, strict=True)) / 3.6e9
    error = abs(math.fsum(made["y"]) - exact) / exact
    print(
        f"demand series of {jobs} jobs: {seconds:.3f} CPU s (target 0.1), {made.height} slots, integral "
        f"{exact:.3f} instance hours, off by {error:.1e} of it",
        flush=True,
    )
    if error > 1e-12:
        raise SystemExit("the integral is not exact")


DEVICES, GPUS_PER_NODE, STEP_S = 256, 8, 15


def write_samples(folder: Path, rows: int, seed: int) -> tuple[int, float]:
    """Write samples by month and day; give their number and the energy they hold [kWh], by whole numbers."""
    rng = np.random.default_rng(seed)
    first, rounds = datetime(2026, 1, 20, tzinfo=UTC), rows // DEVICES
    names = pl.Series([f"n{n:03d}" for n in range(DEVICES // GPUS_PER_NODE)])
    device, per_day = np.arange(DEVICES), 86400 // STEP_S
    joules, before = 0, None
    for begin in range(0, rounds, per_day):
        count = min(per_day, rounds - begin)
        watts = rng.integers(60, 700, (count, DEVICES))
        held = watts if before is None else np.vstack([before, watts])
        joules += int((held[1:] + held[:-1]).sum()) * STEP_S
        before = watts[-1:]
        ticks = np.repeat(np.arange(begin, begin + count) * STEP_S * 10**6, DEVICES)
        size = count * DEVICES
        day = pl.DataFrame(
            {
                "time": pl.Series(ticks + int(first.timestamp() * 1e6)).cast(pl.Datetime("us", "UTC")),
                "node": names[np.tile(device // GPUS_PER_NODE, count)],
                "gpu": np.tile(device % GPUS_PER_NODE, count).astype(np.int32),
                "instance": pl.repeat(None, size, dtype=pl.Int32, eager=True),
                "profile": pl.repeat(None, size, dtype=pl.String, eager=True),
                "job_id": pl.Series(["a", "b", None])[np.tile(device % 3, count)],
                "sm_activity": rng.random(size),
                "tensor_activity": rng.random(size),
                "dram_activity": rng.random(size),
                "nvlink_gb_s": pl.repeat(None, size, dtype=pl.Float64, eager=True),
                "pcie_gb_s": pl.repeat(None, size, dtype=pl.Float64, eager=True),
                "memory_used_gib": rng.random(size) * 80,
                "power_w": watts.ravel().astype(float),
                "energy_counter_j": pl.repeat(None, size, dtype=pl.Float64, eager=True),
                "activity_source": pl.repeat("profiling", size, eager=True),
            }
        )
        date = first + timedelta(seconds=begin * STEP_S)
        place = folder / f"month={date:%Y-%m}"
        place.mkdir(exist_ok=True)
        day.write_parquet(place / f"{date:%d}.parquet")
    joules += 2 * int(before.sum()) * STEP_S  # the last sample of each device holds for one step
    return rounds * DEVICES, joules / 2 / 3.6e6


def aggregate(folder: Path) -> None:
    """What the child does: hours of all samples, and on one line what it took."""
    hours = aggregate_hourly(pl.scan_parquet(folder / "*" / "*.parquet", hive_partitioning=False))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(hours.height, hours["samples"].sum(), repr(hours["energy_kwh"].sum()), peak, cpu_seconds())


def telemetry(rows: int, seed: int) -> None:
    """Aggregate many samples in a process of its own, whose largest memory is then known."""
    with tempfile.TemporaryDirectory(prefix="samples-") as place:
        folder = Path(place)
        written, energy = write_samples(folder, rows, seed)
        size = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
        command = [sys.executable, __file__, "--aggregate", place]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    hours, samples, kwh, peak, seconds = (float(word) for word in said)
    print(
        f"{written} samples ({size / GIB:.1f} GiB of Parquet) to {hours:.0f} hours of devices: {seconds:.1f} CPU s, "
        f"{written / seconds / 1e6:.1f} million samples/s, {peak / GIB:.2f} GiB at most (target 4); "
        f"energy {kwh:.3f} kWh, off by {abs(kwh - energy) / energy:.1e} of it",
        flush=True,
    )
    if samples != written or not math.isclose(kwh, energy, rel_tol=1e-9):
        raise SystemExit(f"{samples:.0f} samples and {kwh} kWh, but {written} and {energy} were written")


def main() -> None:
    """Run the parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table that is made up")
    parser.add_argument("--jobs", type=int, default=100_000, help="jobs of the demand series")
    parser.add_argument("--samples", type=int, default=50_000_000, help="telemetry rows; 0 leaves them out")
    parser.add_argument("--rounds", type=int, default=25, help="of Philly; a quarter of them elsewhere")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--aggregate", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.aggregate is not None:
        aggregate(given.aggregate)
        return
    used = ", ".join(f"{name} {version(name)}" for name in ("gpuplanner", "polars", "pandas", "numpy"))
    print(f"Python {platform.python_version()}, {used}; seed {given.seed}; least of {given.rounds} rounds")
    print(f"{'CPU s':20} {'ours':>8} {'pandas':>8} {'ratio':>7}")
    data = Path(os.environ.get("GPUPLANNER_DATA", "../shared/data"))
    reading(data / "philly" / "philly.csv.gz", "Philly", given.rounds, 2.5)
    with tempfile.TemporaryDirectory() as place:
        table = made_up(Path(place) / "jobs.csv", given.rows, given.seed)
        reading(table, f"{given.rows} rows", max(given.rounds // 4, 1), 2.0)
    series(given.jobs, max(given.rounds // 4, 1), given.seed)
    if given.samples:
        telemetry(given.samples, given.seed)


if __name__ == "__main__":
    main()
