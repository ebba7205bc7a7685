"""Telemetry at scale: CPU time a row and peak memory of ``gpuplanner ingest`` on made logs of any length.

Run ``python benchmarks/telemetry_scale.py [FORM ...] --rows 1e6`` with forms of :data:`FORMS`; ``--columns`` widens the
rows with columns that nothing is read from, ``--keep`` leaves the files. The logs are seeded: the same options give
the same bytes. One row in 100,000 is cut short, one is told again and one says that it has no value, as real
logs do. Time is user and system time of the one process that reads, its start included; memory is the
largest that it held at any moment.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl

START = datetime(2026, 1, 1, tzinfo=UTC)
GPUS = 8
STEP_S = 10
BLOCK = 250_000
"""Rows that are made at a time."""

FAULTS = 1e-5
BOARD = "NVIDIA H100 80GB HBM3"
METRICS = (
    ("DCGM_FI_PROF_SM_ACTIVE", lambda random, n: decimals(random.random(n), 6)),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", lambda random, n: decimals(random.random(n), 6)),
    ("DCGM_FI_DEV_GPU_UTIL", lambda random, n: whole(random.integers(0, 101, n))),
    ("DCGM_FI_DEV_FB_USED", lambda random, n: whole(random.integers(0, 81000, n))),
    ("DCGM_FI_DEV_POWER_USAGE", lambda random, n: decimals(70 + 600 * random.random(n), 3)),
)
"""Metrics of a round of the long form, and their values."""


def decimals(values: np.ndarray, places: int) -> pl.Series:
    """Numbers as text with so many decimals."""
    scaled = pl.Series(np.rint(values * 10**places).astype(np.int64))
    part = (scaled % 10**places).cast(pl.String).str.zfill(places)
    return (scaled // 10**places).cast(pl.String) + "." + part


def whole(values: np.ndarray) -> pl.Series:
    """Whole numbers as text."""
    return pl.Series(values).cast(pl.String)


def instants(first: int, rows: int, per_instant: int) -> np.ndarray:
    """Number of the instant of each row, of a log with so many rows an instant."""
    return (first + np.arange(rows)) // per_instant


def clock(instant: np.ndarray, form: str, step_s: float = STEP_S) -> pl.Series:
    """Times as text."""
    micros = (instant * int(step_s * 1e6)).astype("int64")
    times = pl.lit(START.replace(tzinfo=None)) + pl.Series("t", micros).cast(pl.Duration("us"))
    return pl.select(times.dt.strftime(form)).to_series()


def smi_rows(random: np.random.Generator, first: int, rows: int, columns: int) -> pl.DataFrame:
    """``nvidia-smi --query-gpu`` with units, a log of one node."""
    n = rows
    table = {
        "timestamp": clock(instants(first, n, GPUS), "%Y/%m/%d %H:%M:%S.%3f"),
        "index": whole((first + np.arange(n)) % GPUS),
        "name": pl.Series([BOARD]).new_from_index(0, n),
        "utilization.gpu [%]": whole(random.integers(0, 101, n)) + " %",
        "utilization.memory [%]": whole(random.integers(0, 101, n)) + " %",
        "memory.used [MiB]": whole(random.integers(0, 81000, n)) + " MiB",
        "memory.total [MiB]": pl.Series(["81559 MiB"]).new_from_index(0, n),
        "power.draw [W]": decimals(70 + 600 * random.random(n), 2) + " W",
        "temperature.gpu": whole(random.integers(30, 90, n)),
        "clocks.current.sm [MHz]": whole(random.integers(345, 1980, n)) + " MHz",
    }
    for extra in range(len(table), columns):
        table[f"clocks.more_{extra} [MHz]"] = whole(random.integers(345, 1980, n)) + " MHz"
    return pl.DataFrame(table)


def node_rows(random: np.random.Generator, first: int, rows: int, columns: int) -> pl.DataFrame:
    """Per-node log with profiling fields, as of the public H100 runs."""
    n = rows
    base = START.timestamp()
    instant = instants(first, n, GPUS)
    table = {
        "timestamp": decimals(base + instant * float(STEP_S) + (instant % 7) / 1000, 3),
        "phase": pl.Series(["steady"]).new_from_index(0, n),
        "gpu": whole((first + np.arange(n)) % GPUS),
        "gpu_model": pl.Series([BOARD]).new_from_index(0, n),
        "power_w": decimals(70 + 600 * random.random(n), 3),
        "temp_c": whole(random.integers(30, 90, n)),
        "mem_used_mib": whole(random.integers(0, 81000, n)),
        "mem_total_mib": pl.Series(["81559"]).new_from_index(0, n),
        "gpu_util_pct": whole(random.integers(0, 101, n)),
        "mem_util_pct": whole(random.integers(0, 101, n)),
        "sm_active": decimals(random.random(n), 6),
        "tensor_active": decimals(random.random(n), 6),
        "dram_active": decimals(random.random(n), 6),
        "pcie_tx_bytes_s": whole(random.integers(0, 2**33, n)),
        "pcie_rx_bytes_s": whole(random.integers(0, 2**33, n)),
        "nvlink_tx_bytes_s": whole(random.integers(0, 2**36, n)),
        "nvlink_rx_bytes_s": whole(random.integers(0, 2**36, n)),
        "throttle_reasons": whole(random.integers(0, 2, n)),
        "energy_mj": whole(instant * STEP_S * 370_000 + random.integers(0, 1000, n)),
    }
    for extra in range(len(table), columns):
        table[f"more_{extra}"] = decimals(random.random(n), 6)
    return pl.DataFrame(table)


def dcgm_rows(random: np.random.Generator, first: int, rows: int, columns: int) -> pl.DataFrame:
    """Readings of the DCGM exporter in long form, all nodes in one file."""
    nodes = 32
    number = first + np.arange(rows)
    instant = number // (nodes * GPUS * len(METRICS))
    device = number // len(METRICS) % (nodes * GPUS)
    metric = number % len(METRICS)
    values = [make(random, rows) for _, make in METRICS]
    frame = pl.DataFrame(
        {
            "timestamp": clock(instant, "%Y-%m-%dT%H:%M:%SZ", 15.0),
            "metric": metric,
            "gpu_id": device % GPUS,
            "node": device // GPUS,
            **{f"value_{place}": value for place, value in enumerate(values)},
        }
    )
    names = dict(enumerate(name for name, _ in METRICS))
    value = pl.coalesce(*(pl.when(pl.col("metric") == place).then(pl.col(f"value_{place}")) for place in names))
    gpu, node = pl.col("gpu_id").cast(pl.String), pl.format("node{}", pl.col("node").cast(pl.String))
    pod = (pl.col("node") * GPUS + pl.col("gpu_id")).cast(pl.String)
    uuid = pl.format("GPU-975edf99-5c0a-9db9-3732-{}", pod.str.zfill(12))
    labels = pl.format(
        'DCGM_FI_DRIVER_VERSION="535.129.03",Hostname="{}",UUID="{}",__name__="{}",device="nvidia{}",gpu="{}",'
        f'instance="{{}}:9400",job="dgx_dcgm_exporter",modelName="{BOARD}"',
        *(node, uuid, pl.col("metric").replace_strict(names), gpu, gpu, node),
    )
    return frame.select(
        "timestamp",
        metric_name=pl.col("metric").replace_strict(names),
        gpu_id=gpu,
        device=pl.format("nvidia{}", gpu),
        uuid=uuid,
        modelName=pl.lit(BOARD),
        Hostname=node,
        container=pl.lit(""),
        pod=pl.lit(""),
        namespace=pl.lit(""),
        value=value,
        labels_raw=labels,
        **{f"more_{extra}": pl.lit("0.5") for extra in range(12, columns)},
    )


Rows = Callable[[np.random.Generator, int, int, int], pl.DataFrame]
FORMS: dict[str, tuple[Rows, int, str, int]] = {
    "nvidia-smi": (smi_rows, 64, ", ", 10),
    "node-csv": (node_rows, 64, ",", 19),
    "dcgm-csv": (dcgm_rows, 1, ",", 12),
}
"""Source → what makes its rows, files they are spread over, separator, usual columns."""


def lines_of(frame: pl.DataFrame, separator: str, *, quoted: bool) -> pl.Series:
    """Rows as lines."""
    cells = [
        pl.format('"{}"', pl.col(name).str.replace_all('"', '""')) if quoted else pl.col(name) for name in frame.columns
    ]
    return frame.select(pl.concat_str(cells, separator=separator)).to_series()


def make_logs(form: str, rows: int, folder: Path, columns: int | None = None) -> Iterator[Path]:
    """Write the logs of a form with so many rows in all."""
    make, files, separator, usual = FORMS[form]
    files = max(1, min(files, rows // 10_000))
    for number in range(files):
        random = np.random.default_rng([number, rows])
        path = folder / f"n{number:03d}.csv"
        count = rows * (number + 1) // files - rows * number // files
        with path.open("wb") as out:
            for first in range(0, count, BLOCK):
                frame = make(random, first, min(BLOCK, count - first), columns or usual)
                if not first:
                    out.write((separator.join(frame.columns) + "\n").encode())
                lines = lines_of(frame, separator, quoted=form == "dcgm-csv").to_list()
                for place in np.flatnonzero(random.random(len(lines)) < FAULTS):
                    lines[place] = lines[place][: len(lines[place]) // 2]
                for place in np.flatnonzero(random.random(len(lines)) < FAULTS)[1:]:
                    lines[place] = lines[place - 1]
                out.write(("\n".join(lines) + "\n").encode())
        yield path


def ingest(form: str, paths: list[Path], out: Path) -> tuple[float, float, str]:
    """CPU seconds and peak GiB of one run of the command, and what it printed."""
    words = [sys.executable, "-c", "from gpuplanner.cli import main; main()", "ingest", form, *map(str, paths)]
    with subprocess.Popen([*words, "-o", str(out), "--json", "--tz", "UTC"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        printed = process.stdout.read().decode()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(process.returncode)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20, printed


def measure(form: str, given: argparse.Namespace) -> None:
    """Make the logs of a form, read them, print the figures."""
    folder = given.folder / f"telemetry_scale_{form}_{given.rows:.0f}_{given.columns or 'usual'}"
    shutil.rmtree(folder / "out", ignore_errors=True)
    try:
        if folder.exists():
            paths = sorted(folder.glob("*.csv"))
        else:
            folder.mkdir(parents=True)
            paths = list(make_logs(form, int(given.rows), folder, given.columns))
        gib = sum(path.stat().st_size for path in paths) / 2**30
        cpu_s, peak_gib, printed = ingest(form, paths, folder / "out")
    finally:
        shutil.rmtree(folder / "out" if given.keep else folder, ignore_errors=True)
    kept = json.loads(printed)["rows_kept"]
    print(f"{form}: {given.rows:.0f} rows, {kept} kept, {gib:.2f} GiB in {len(paths)} file(s)")
    print(f"{cpu_s:.1f} CPU s, {cpu_s / given.rows * 1e6:.2f} us a row, peak {peak_gib:.2f} GiB", flush=True)


def main() -> None:
    """Measure the forms that were asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("forms", nargs="*", metavar="FORM", help=f"of {', '.join(FORMS)}; all if none")
    parser.add_argument("--rows", type=float, default=1e6)
    parser.add_argument("--columns", type=int)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--keep", action="store_true")
    given = parser.parse_args()
    if unknown := set(given.forms) - set(FORMS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    for form in given.forms or FORMS:
        measure(form, given)


if __name__ == "__main__":
    main()
