"""Slurm listings without times: jobs and how they ended, of which no GPU-time follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.findings import Finding
from gpuplanner.inbox.core.lines.fields import Dialect, Field
from gpuplanner.inbox.core.lines.reading import read_rows
from gpuplanner.inbox.core.source import header_has, looks
from gpuplanner.inbox.core.table_rows import assemble_reading
from gpuplanner.inbox.slurm.fields import slurm_state

NAMED = ("JobID", "State")
TIMES = ("Submit", "Eligible", "Start", "End")
COLUMN_MAP = {
    "JobID": Field("job_id"),
    "State": Field("slurm_state"),
    "Account": Field("tenant", nullable=True, optional=True),
    "JobName": Field("job_name", nullable=True, optional=True),
    "Partition": Field("partition", nullable=True, optional=True),
    "AllocCPUS": Field("cpus", "number", nullable=True, optional=True, high=2**31 - 1),
    "ExitCode": Field("exit_code", nullable=True, optional=True),
}
LISTING = Dialect(separator="|", quotes=False)
STEP = "step of a job"
NO_TIMES = "no times and no GPUs: ask sacct for Submit,Start,End,AllocTRES as well to read it as jobs"


@looks(lambda lines: header_has(NAMED, "|")(lines) and not any(header_has([n], "|")(lines) for n in TIMES))
def read_slurm_states(paths: Sequence[str | Path]) -> Dataset:
    r"""Read sacct output that has no times, such as that of a plain ``sacct --parsable2``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "sacct.txt"
    ...     _ = path.write_text("JobID|Account|State\n7|vision|COMPLETED\n7.batch|vision|COMPLETED\n")
    ...     read_slurm_states([path]).table.select("job_id", "tenant", "state").rows()
    [('7', 'vision', 'COMPLETED')]
    """
    rows = read_rows(paths, COLUMN_MAP, source="slurm-states", dialect=LISTING)
    rows = rows.reject({STEP: pl.col("job_id").str.contains(".", literal=True)})
    states = {word: slurm_state(word) for word in rows.good["slurm_state"].unique()}
    state = pl.col("slurm_state").replace_strict(states, return_dtype=pl.String)
    rows = replace(rows, good=rows.good.with_columns(state=state))
    rows = rows.reject({"State: not a state of Slurm": pl.col("state").is_null()})
    return assemble_reading(
        rows,
        "job_states",
        source="slurm-states",
        order=["job_id"],
        what="job",
        findings=[Finding("no times", "warning", rows.good.height, NO_TIMES, "")],
        totals={
            f"jobs_{name.lower()}": (pl.col("state") == name).sum()
            for name in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "RUNNING", "PENDING")
        },
        span=(),
        notes=[NO_TIMES],
    )
