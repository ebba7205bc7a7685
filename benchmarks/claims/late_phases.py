"""Late phases of training: whether jobs need less of their GPUs as they go on.

Claim: jobs need most GPUs early; their demand shrinks by a tenth or more in late phases (a vendor's premise; published
recipes raise the batch size as training goes on, and with it the GPUs that are useful).

Run ``python benchmarks/claims/late_phases.py`` with the folder of the public traces in ``GPUPLANNER_DATA``. It takes
some seconds, and nothing in it is random.

Demand of a job is GPUs held times the share of them that it needs: the larger of SM activity and memory. Measured are
five minutes of training on eight H100 (telemetry), and the time of a step in training logs: a step that takes as long
on as many GPUs is work that has not shrunk. The bundled sample, which is synthetic, shows that the test tells late
from early; it says nothing about clusters. ``gpuplanner phases FOLDER`` makes the same test on your own jobs.
"""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Sequence
from pathlib import Path

import polars as pl
from claim_table import argument_parser, figure_row, figure_table, report

from gpuplanner.core.stage_cache_and_data_folders import sample_folder
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.source_registry import read
from gpuplanner.usage.demand_by_phase_and_late_demand_test import (
    judge_late_demand,
    late_demand_by_class,
    late_demand_table,
    phases_of_jobs,
)

REDUCTION = 0.10
"""Smallest reduction of late demand that counts."""
GPU_MODEL = "H100-80GB-SXM5"
TELEMETRY, LOGS = "h100_runs", "training_logs"
RUNS = ("b1", "t2", "t6", "t13_node0")
"""Training runs of five minutes on nodes of eight H100, read every second."""
WARM_UP_STEPS = 10
"""First steps, which compile; the logs themselves leave them out of their times."""
STEP = re.compile(r"^step:(\d+)/\d+ train_loss:\S+ train_time:(\d+)ms", re.MULTILINE)
ITERATION = re.compile(r"^ iteration +(\d+)/.*?elapsed time per iteration \(ms\): ([\d.]+)", re.MULTILINE)


def measured_runs(folder: Path) -> pl.DataFrame:
    """Late over early demand of the measured runs, by each definition of late and of need.

    Parameters
    ----------
    folder : Path
        Folder of the telemetry.
    """
    parts = []
    for run in RUNS:
        samples = read("node-csv", folder / f"{run}_telemetry.csv.gz").samples
        assert samples is not None
        parts.append(samples.with_columns(job_id=pl.lit(run)))
    samples = pl.concat(parts)
    jobs = pl.DataFrame({"job_id": RUNS, "job_class": "measured", "gpus": 8.0})
    phases = phases_of_jobs(samples, jobs)
    return late_demand_table(samples, phases, GPU_MODEL, effect=REDUCTION).drop("reason")


def step_times(text: str) -> pl.DataFrame:
    """Number and duration of the steps of a training log, in either of two forms: ``step, step_s``.

    modded-nanogpt prints the time since the start; Megatron-DeepSpeed prints the time of each iteration.
    """
    schema = {"step": pl.Int64, "step_s": pl.Float64}
    iterations = [(int(step), float(ms) / 1000) for step, ms in ITERATION.findall(text)]
    if iterations:
        steps = pl.DataFrame(iterations, schema=schema, orient="row")
        return steps.filter(pl.col("step") > WARM_UP_STEPS)
    elapsed = [(int(step), float(ms) / 1000) for step, ms in STEP.findall(text)]
    steps = pl.DataFrame(elapsed, schema=schema, orient="row").sort("step")
    differences = steps.with_columns(pl.col("step_s").diff()).drop_nulls()
    return differences.filter(pl.col("step") > WARM_UP_STEPS + 1)


def late_over_early_steps(folder: Path) -> pl.DataFrame:
    """Mean time of a step in the last third of each log over that in its first third.

    Parameters
    ----------
    folder : Path
        Folder of the logs, plain or gzip, one folder a source.

    Returns
    -------
    polars.DataFrame
        ``log, steps, early_s, late_s, ratio``; logs without step times have no row.
    """
    rows = []
    for path in sorted((*folder.glob("*/*.gz"), *folder.glob("*/*.out"))):
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        steps = step_times(content.decode("utf-8", errors="replace")).sort("step")
        if steps.is_empty():
            continue
        rank = pl.int_range(pl.len()) / pl.len()
        early = steps.filter(rank < 1 / 3)["step_s"].mean()
        late = steps.filter(rank >= 2 / 3)["step_s"].mean()
        rows.append((path.name.split(".")[0], steps.height, early, late))
    columns = ["log", "steps", "early_s", "late_s"]
    table = pl.DataFrame(rows, schema=columns, orient="row")
    return table.with_columns(ratio=pl.col("late_s") / pl.col("early_s"))


def synthetic_jobs() -> pl.DataFrame:
    """The same test on the jobs of the bundled sample, by class."""
    sample = open_dataset(sample_folder())
    samples = sample.samples.filter(pl.col("job_id").is_not_null())
    phases = phases_of_jobs(samples, sample.jobs)
    return late_demand_by_class(samples, phases, GPU_MODEL, effect=REDUCTION).drop("reason")


def tables(public_data: Path) -> dict[str, pl.DataFrame]:
    """All tables by file name, the figures first.

    Parameters
    ----------
    public_data : Path
        Folder of the public traces.
    """
    by_definition = measured_runs(public_data / TELEMETRY)
    logs = late_over_early_steps(public_data / LOGS)
    steps = judge_late_demand(logs["ratio"].to_numpy(), effect=REDUCTION)
    demand = by_definition.row(0, named=True)
    claimed = (None, 1 - REDUCTION)
    unit = "final / early"
    rows = [
        figure_row(
            f"demand of {demand['jobs']} measured runs",
            unit,
            demand["ratio"],
            claimed=claimed,
            interval=(demand["low"], demand["high"]),
        ),
        figure_row(
            f"time of a step in {steps.jobs} training logs",
            unit,
            steps.ratio,
            claimed=claimed,
            interval=(steps.low, steps.high),
        ),
    ]
    return {
        "late_phases": figure_table(rows),
        "late_phases_runs": by_definition,
        "late_phases_logs": logs,
        "late_phases_synthetic": synthetic_jobs(),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, and write them."""
    assert __doc__ is not None
    parser = argument_parser(__doc__)
    folder = os.environ.get("GPUPLANNER_DATA")
    parser.add_argument("--data", type=Path, default=folder, help="folder of the public traces")
    options = parser.parse_args(arguments)
    if options.data is None:
        parser.error("give --data FOLDER or set GPUPLANNER_DATA to the folder of the public traces")
    remarks = (
        f"A reduction counts from {REDUCTION:.0%} on; fewer than six jobs give no interval: inconclusive.",
        "The measured runs last five minutes each, the logs minutes to hours.",
        "The jobs of late_phases_synthetic are synthetic: they show that the test works, nothing about clusters.",
    )
    report(__doc__.split("\n\n")[1], tables(options.data), remarks, options.out)


if __name__ == "__main__":
    main()
