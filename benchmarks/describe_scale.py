"""What ``gpuplanner describe`` of a year of jobs costs: CPU seconds and largest memory, against plain polars.

Run ``python benchmarks/describe_scale.py`` (minutes; ``--jobs 1000000`` makes it shorter). A made-up year of 50
tenants and 5,000 users on 1,000 nodes of eight GPUs is written as a folder: every lane of a
node (one, two, four or eight GPUs, an instance of a cut GPU, or four whole nodes) serves one job after the other, so
nothing is ever held twice. Each run is a process of its own, as a user starts it; its memory is the largest that the
system saw. Three folders: with node list and inventory, without inventory, and with every fifth node cut by MIG.

The peer (:func:`plain_ledger`) is what an analyst writes first with polars: every job is put into each clock hour that
it touches, and held GPU-hours are summed by tenant and hour. It says nothing of waits, free or fragmented time, and
checks nothing. Its sum must be ours.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import numpy as np
import polars as pl

from gpuplanner.core.output_manifests_and_overwrite_checks import DATASET_FORMAT
from gpuplanner.core.schema_checks import make_empty_table
from gpuplanner.core.schemas import JOB_STATES, Inventory, Jobs
from gpuplanner.ingest.dataset import gpu_hours
from gpuplanner.ingest.delimited_rows import REJECT_TABLE_SCHEMA

BEGIN = datetime(2025, 1, 1, tzinfo=UTC)
YEAR = timedelta(days=365)
NODES, GPUS_PER_NODE, TENANTS, USERS = 1000, 8, 50, 5000
BOARD = "H100-80GB-SXM5"
PROFILES = {"1g.10gb": (1, 1), "2g.20gb": (2, 2), "3g.40gb": (3, 4)}
CUT = ("3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb")
GIB = 1 << 30


def lanes(cut_share: float) -> pl.DataFrame:
    """What runs one job after the other: ``gpus``, ``memory``, ``profile``, ``nodes``, ``node_list``."""
    rows = []
    for node in range(NODES):
        name, kind = f"g{node:04d}", node % 25
        if node < cut_share * NODES:
            pieces = [(c / 7, m / 8, p, 1, name) for p in CUT for c, m in [PROFILES[p]]] * GPUS_PER_NODE
        elif kind < 15:
            pieces = [(1.0, 1.0, None, 1, name)] * 8
        elif kind < 19:
            pieces = [(2.0, 2.0, None, 1, name), (2.0, 2.0, None, 1, name), (4.0, 4.0, None, 1, name)]
        elif kind == 20:
            pieces = [(32.0, 32.0, None, 4, f"g[{node:04d}-{node + 3:04d}]")]
        elif kind == 19 or kind > 23:
            pieces = [(8.0, 8.0, None, 1, name)]
        else:
            pieces = []
        rows += pieces
    names = {"gpus": pl.Float64, "memory": pl.Float64, "profile": pl.String, "nodes": pl.Int32}
    return pl.DataFrame(rows, schema={**names, "node_list": pl.String}, orient="row")


def made_up_jobs(jobs: int, seed: int, cut_share: float) -> pl.LazyFrame:
    """Table ``schemas.Jobs`` of about so many jobs, sorted by submission; text is made as it is written."""
    rng = np.random.default_rng(seed)
    lane = lanes(cut_share)
    shape = (lane.height, -(-jobs // lane.height))
    run, gap = rng.lognormal(8.2, 1.6, shape), rng.exponential(1500.0, shape)
    clock = np.cumsum(run + gap, axis=1)
    scale = YEAR.total_seconds() / clock[:, -1:]
    end = np.floor(clock * scale).astype(np.int64).ravel()
    start = np.floor((clock - run) * scale).astype(np.int64).ravel()
    size = end.size
    waited = np.where(rng.random(size) < 0.55, rng.integers(0, 30, size), rng.lognormal(7.5, 1.5, size))
    state = rng.choice(len(JOB_STATES), size, p=[0.7, 0.12, 0.1, 0.05, 0.02, 0.005, 0.005, 0, 0, 0])
    state.reshape(shape)[:, -1] = JOB_STATES.index("RUNNING")
    popular = rng.zipf(1.3, size) % USERS
    codes = pl.DataFrame(
        {
            "submit": start - waited.clip(0, 7 * 86400).astype(np.int64),
            "start": start,
            "end": end,
            "state": state.astype(np.uint8),
            "user": popular.astype(np.uint16),
            "name": rng.integers(0, 400, size, dtype=np.uint16),
            "limit": rng.choice([3600.0, 14400.0, 86400.0, 604800.0], size).astype(np.float32),
            "lane": np.repeat(np.arange(shape[0], dtype=np.uint16), shape[1]),
            "withdrawn": rng.random(size) < 0.01,
        }
    )
    codes = codes.sort("submit").with_row_index("id")

    def words(code: pl.Expr, names: list[str]) -> pl.Expr:
        return code.cast(pl.UInt8 if len(names) < 256 else pl.UInt16).cat.to(pl.Enum(names)).cast(pl.String)

    def instant(seconds: pl.Expr) -> pl.Expr:
        return ((seconds + int(BEGIN.timestamp())) * 1_000_000).cast(pl.Datetime("us", "UTC"))

    runs, begun = pl.col("state") == JOB_STATES.index("RUNNING"), ~pl.col("withdrawn")
    known = {
        "job_id": (pl.col("id") + 4_000_000).cast(pl.String),
        "attempt": pl.lit(1, pl.Int32),
        "tenant": words(pl.col("user") % TENANTS, [f"project{number:02d}" for number in range(TENANTS)]),
        "user": words(pl.col("user"), [f"user{number:04d}" for number in range(USERS)]),
        "job_name": words(pl.col("name"), [f"train-{number}" for number in range(400)]),
        "partition": pl.lit("gpu"),
        "submit_time": instant(pl.col("submit")),
        "start_time": pl.when(begun).then(instant(pl.col("start"))),
        "end_time": pl.when(~begun).then(instant(pl.col("start"))).when(~runs).then(instant(pl.col("end"))),
        "state": pl.when(begun)
        .then(pl.col("state"))
        .otherwise(pl.lit(JOB_STATES.index("CANCELLED"), pl.UInt8))
        .cat.to(pl.Enum(JOB_STATES)),
        "gpus": pl.col("gpus"),
        "gpus_by_memory": pl.col("memory"),
        "instances": pl.when(pl.col("profile").is_not_null()).then(1),
        "gpu_model": pl.lit(BOARD),
        "profile_requested": pl.col("profile"),
        "nodes": pl.col("nodes"),
        "node_list": pl.when(begun).then("node_list"),
        "time_limit_s": pl.col("limit"),
    }
    table = codes.lazy().join(lane.with_row_index("lane").cast({"lane": pl.UInt16}).lazy(), on="lane")
    types = {name: column.dtype for name, column in Jobs.columns().items()}
    return table.sort("id").select(
        known.get(name, pl.lit(None)).cast(dtype).alias(name) for name, dtype in types.items()
    )


def write_year(folder: Path, jobs: int, seed: int, *, inventory: bool, cut_share: float) -> None:
    """Write the year as ``ingest`` does, but the whole table need not be in memory for it."""
    cut = [node < cut_share * NODES for node in range(NODES)]
    layout = ";".join(["3g.40gb:1,2g.20gb:1,1g.10gb:2"] * GPUS_PER_NODE)
    nodes = pl.DataFrame({"node": [f"g{node:04d}" for node in range(NODES)], "mig_enabled": cut}).with_columns(
        gpus=GPUS_PER_NODE, gpu_model=pl.lit(BOARD), layouts=pl.when(pl.col("mig_enabled")).then(pl.lit(layout))
    )
    types = {name: column.dtype for name, column in Inventory.columns().items()}
    table = pl.concat([make_empty_table(Inventory), nodes.cast({"gpus": types["gpus"]})], how="diagonal").select(*types)
    folder.mkdir()
    place = folder / "jobs.parquet"
    made_up_jobs(jobs, seed, cut_share).sink_parquet(place, row_group_size=1 << 18)
    seen = pl.scan_parquet(place)
    kept, first = seen.select(pl.len(), pl.col("submit_time").min()).collect().row(0)
    until = BEGIN + YEAR
    held = seen.select("start_time", "end_time", "state", "gpus").collect(engine="streaming")
    known = {
        "source": "synthetic", "files": [], "rows_in": kept, "rows_kept": kept, "rows_rejected": 0,
        "span_start": first.isoformat(), "span_end": until.isoformat(), "time_zone": None, "origin": None,
        "notes": [f"made up, seed {seed}"], "gpu_hours": gpu_hours(held, until),
        "gpuplanner": version("gpuplanner"), "tables": ["jobs", *(["inventory"] if inventory else [])],
    }  # fmt: skip
    rows = {"jobs": kept, "rejects": 0} | ({"inventory": table.height} if inventory else {})
    whole = {"format": DATASET_FORMAT, "sources": [known], "rows": rows}
    (folder / "provenance.json").write_text(json.dumps(whole))
    (folder / "quality.json").write_text("[]")
    pl.DataFrame(schema=REJECT_TABLE_SCHEMA).write_parquet(folder / "rejects.parquet")
    if inventory:
        table.write_parquet(folder / "inventory.parquet")


def plain_ledger(path: Path) -> None:
    """What the peer's child does: held GPU-hours by tenant and hour, and their sum on one line."""
    until, hour = pl.lit(BEGIN + YEAR), pl.duration(hours=1)
    first = pl.col("start_time").dt.truncate("1h")
    held = (
        pl.scan_parquet(path)
        .filter((pl.col("gpus") > 0) & pl.col("start_time").is_not_null())
        .select("tenant", "gpus", "start_time", end_time=pl.col("end_time").fill_null(until))
        .filter(pl.col("end_time") > pl.col("start_time"))
        .with_columns(hour=pl.datetime_ranges(first, "end_time", "1h", closed="left"))
        .explode("hour")
        .with_columns(
            part=(pl.min_horizontal("end_time", pl.col("hour") + hour) - pl.max_horizontal("start_time", "hour"))
        )
        .group_by("tenant", "hour")
        .agg(gpu_hours=(pl.col("gpus") * pl.col("part").dt.total_microseconds()).sum() / 3.6e9)
        .collect(engine="streaming")
    )
    sys.stdout.write(json.dumps({"held": held["gpu_hours"].sum()}))


def child(*command: str) -> tuple[float, float, float, dict]:
    """CPU seconds, GiB at most and wall seconds of a process, and the JSON that it wrote."""
    with tempfile.TemporaryFile("w+") as said:
        begin = datetime.now(UTC)
        process = subprocess.Popen([sys.executable, *command], stdout=said)
        _, status, usage = os.wait4(process.pid, 0)
        wall = (datetime.now(UTC) - begin).total_seconds()
        if status:
            raise SystemExit(f"{command} ended with {status}")
        said.seek(0)
        return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / GIB, wall, json.load(said)


def main() -> None:
    """Make the folders, describe each, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the data, which then stay")
    parser.add_argument("--no-peer", action="store_true", help="leave the peer out: it takes long")
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.plain is not None:
        plain_ledger(given.plain)
        return
    used = ", ".join(f"{name} {version(name)}" for name in ("gpuplanner", "polars", "numpy"))
    print(f"Python {platform.python_version()}, {used}; {given.jobs} jobs, seed {given.seed}")
    print(f"{'describe':34} {'CPU s':>8} {'wall s':>8} {'GiB':>6}", flush=True)
    kinds = {
        "nodes and inventory": (True, 0.0),
        "nodes, no inventory": (False, 0.0),
        "every fifth node cut by MIG": (True, 0.2),
    }
    with tempfile.TemporaryDirectory() as temporary:
        place = given.keep or Path(temporary)
        for number, (kind, (inventory, cut_share)) in enumerate(kinds.items()):
            folder = place / f"year{number}-{given.jobs}"
            if not folder.exists():
                place.mkdir(parents=True, exist_ok=True)
                write_year(folder, given.jobs, given.seed, inventory=inventory, cut_share=cut_share)
            command = ["-c", "from gpuplanner.cli import main; main()", "describe", str(folder), "--json"]
            cpu, peak, wall, told = child(*command)
            print(f"{kind:34} {cpu:8.1f} {wall:8.1f} {peak:6.2f}", flush=True)
            if given.no_peer or number:
                continue
            peer = child(__file__, "--plain", str(folder / "jobs.parquet"))
            print(f"{'  plain polars: held by hour':34} {peer[0]:8.1f} {peer[2]:8.1f} {peer[1]:6.2f}")
            print(f"{'  ratio':34} {peer[0] / cpu:8.2f} {peer[2] / wall:8.2f} {peer[1] / peak:6.2f}", flush=True)
            held = sum(row["gpu_hours"] for row in told["ledger"] if row["bucket"] in HELD)
            if not math.isclose(held, peer[3]["held"], rel_tol=1e-9):
                raise SystemExit(f"held GPU-hours: {held} and {peer[3]['held']}")


HELD = ("used", "allocated_idle", "no_telemetry")

if __name__ == "__main__":
    main()
