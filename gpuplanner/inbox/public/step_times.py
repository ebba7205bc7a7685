"""Alibaba PAI: mini-batch times of workers on shares of GPUs, 2020 (Weng et al., USENIX NSDI 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.errors import file_name
from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.findings import Check
from gpuplanner.inbox.core.lines.fields import Field
from gpuplanner.inbox.core.lines.reading import read_rows
from gpuplanner.inbox.core.table_rows import assemble_reading

MAX_COUNT = 2.0**31 - 1

COLUMN_MAP = {
    "worker": Field("worker", "number", high=MAX_COUNT),
    "gpu": Field("percent", "number", high=100.0),
    "time": Field("step", "number", high=MAX_COUNT),
    "batch_time_norm": Field("step_time", "number", high=1000.0),
}
"""`gpu`: share of a GPU [%]; `time`: position in the series; `batch_time_norm`: 0..1000, without unit."""

AGAIN = Check(
    "the same worker and step as an earlier row",
    "info",
    "kept: means of the worker count it twice",
    ~pl.struct("file", "worker", "step").is_first_distinct(),
)


def read_step_times(paths: Sequence[str | Path]) -> Dataset:
    r"""Read mini-batch times, one file per training job; its name is the job.

    They are no jobs and no telemetry: the times have no unit and the steps no dates.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "job_1_norm.csv"
    ...     _ = path.write_text(",worker,gpu,time,batch_time_norm\n0,0,25,1,476\n")
    ...     read_step_times([path]).table.row(0)
    ('job_1', 0, 1, 0.25, 476.0)
    """
    rows = read_rows(paths, COLUMN_MAP, source="pai")
    counts = pl.col("worker", "step")
    rows = rows.reject({"worker or time: not a whole number": pl.any_horizontal(counts != counts.floor())})
    stems = {
        number: file_name(file.path).split(".")[0].removesuffix("_norm")
        for number, file in enumerate(rows.files)
    }
    good = rows.good.with_columns(
        job=pl.col("file").replace_strict(stems, return_dtype=pl.String), gpu_share=pl.col("percent") / 100
    )
    return assemble_reading(
        replace(rows, good=good),
        "step_times",
        source="pai",
        order=["job", "worker", "step"],
        what="step",
        checks=[AGAIN],
        totals={"jobs": pl.col("job").n_unique(), "mean_step_time": pl.col("step_time").mean()},
        span=(),
        notes=["times are scaled to 0..1000 within each job: they compare within one job only"],
    )
