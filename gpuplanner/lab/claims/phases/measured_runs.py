"""Measured training runs of the public traces: telemetry of whole nodes, and how long each step took."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import polars as pl

from gpuplanner.inbox import read

RUNS = ("b1", "t2", "t6", "t13_node0")
"""Runs of five minutes on nodes of eight H100, read every second."""
_STEP = re.compile(r"^step:(\d+)/\d+ train_loss:\S+ train_time:(\d+)ms", re.MULTILINE)
_ITERATION = re.compile(r"^ iteration +(\d+)/.*?elapsed time per iteration \(ms\): ([\d.]+)", re.MULTILINE)
_WARM_UP_STEPS = 10
"""Steps at the beginning that compile, and that the logs themselves leave out of their times."""


def telemetry_of_runs(folder: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Readings of the runs, and their jobs."""
    parts = []
    for run in RUNS:
        samples = read("node-csv", folder / f"{run}_telemetry.csv.gz").samples
        assert samples is not None
        parts.append(samples.with_columns(job_id=pl.lit(run)))
    jobs = pl.DataFrame({"job_id": RUNS, "job_class": "measured", "gpus": 8.0})
    return pl.concat(parts), jobs


def step_times(folder: Path) -> pl.DataFrame:
    """Seconds of the steps of every training log that tells them."""
    parts = []
    for path in sorted((*folder.glob("*/*.gz"), *folder.glob("*/*.out"))):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        rows = _steps(text.decode("utf-8", errors="replace"))
        parts.append(rows.select(pl.lit(path.name.split(".")[0]).alias("log"), pl.all()))
    return pl.concat(parts)


def late_over_early_steps(steps: pl.DataFrame) -> pl.DataFrame:
    """Time of a step in the last third of each log over that in the first.

    Examples
    --------
    >>> steps = pl.DataFrame({"log": "a", "step": range(11, 20), "step_s": [1.0] * 6 + [2.0] * 3})
    >>> late_over_early_steps(steps).row(0)
    ('a', 9, 1.0, 2.0, 2.0)
    """
    rank = pl.int_range(pl.len()).over("log") / pl.len().over("log")
    return (
        steps.sort("log", "step")
        .with_columns(rank=rank)
        .group_by("log", maintain_order=True)
        .agg(
            lines=pl.len(),
            early_s=pl.col("step_s").filter(pl.col("rank") < 1 / 3).mean(),
            late_s=pl.col("step_s").filter(pl.col("rank") >= 2 / 3).mean(),
        )
        .with_columns(ratio=pl.col("late_s") / pl.col("early_s"))
    )


def _steps(text: str) -> pl.DataFrame:
    """Steps of one log in either of the two forms; none of another form."""
    schema = {"step": pl.Int64, "step_s": pl.Float64}
    iterations = [(int(step), float(ms) / 1000) for step, ms in _ITERATION.findall(text)]
    if iterations:
        return pl.DataFrame(iterations, schema=schema, orient="row").filter(pl.col("step") > _WARM_UP_STEPS)
    until = pl.DataFrame(
        [(int(step), float(ms) / 1000) for step, ms in _STEP.findall(text)], schema=schema, orient="row"
    )
    since = until.sort("step").with_columns(pl.col("step_s").diff())
    return since.filter(pl.col("step") > _WARM_UP_STEPS + 1).drop_nulls()
