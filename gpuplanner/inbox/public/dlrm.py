"""Alibaba DLRM serving: instances of recommendation models, 2025 (Yang et al., USENIX NSDI 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import polars as pl

from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.findings import Check
from gpuplanner.inbox.core.job_rows import assemble
from gpuplanner.inbox.core.lines.fields import Field
from gpuplanner.inbox.core.lines.reading import read_rows
from gpuplanner.inbox.core.times import MAX_SECONDS
from gpuplanner.inbox.public.clocks import Clock
from gpuplanner.schemas.tables import MAX_GPUS_PER_JOB

COLUMN_MAP = {
    "instance_sn": Field("job_id"),
    "role": Field("role"),
    "app_name": Field("tenant"),
    "gpu_request": Field("gpus", "number", nullable=True, high=MAX_GPUS_PER_JOB),
    "creation_time": Field("submit_s", "number", nullable=True, high=MAX_SECONDS),
    "scheduled_time": Field("start_s", "number", nullable=True, high=MAX_SECONDS),
    "deletion_time": Field("end_s", "number", nullable=True, high=MAX_SECONDS),
}
"""Times in seconds from the start of the trace; an empty one lies outside it. `role`: ``HN`` on GPU nodes, ``CN``
on CPU nodes."""

ROLES = ("CN", "HN")

CHECKS = (
    Check(
        "existed before the trace began",
        "info",
        "their submission and start were set to second 0: run times are lower bounds, queueing is unknown",
        pl.col("censored"),
    ),
    Check(
        "ran on CPU nodes (role CN)",
        "info",
        "they count as jobs but ask for no GPU",
        pl.col("role") == "CN",
    ),
    Check(
        "a GPU on a CPU node",
        "warning",
        "the role contradicts gpu_request, which is used",
        (pl.col("role") == "CN") & (pl.col("gpus") > 0),
    ),
)


def read_dlrm(paths: Sequence[str | Path], *, origin: datetime | str | None = None) -> Dataset:
    r"""Read instances with their lifetimes, which the trace cuts at both ends.

    An instance without creation time existed before the trace; one without deletion time outlived it and still
    runs. How the others ended is not told.

    Examples
    --------
    >>> import tempfile
    >>> header = "instance_sn,role,app_name,gpu_request,creation_time,scheduled_time,deletion_time"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "instances.csv"
    ...     _ = path.write_text(header + "\ni0,HN,a,1,,,3600.0\ni1,HN,a,1,1800.0,1800.0,\n")
    ...     trace = read_dlrm([path])
    >>> trace.jobs["state"].to_list(), trace.provenance["gpu_hours"]
    (['UNKNOWN', 'RUNNING'], 1.5)
    """
    clock = Clock.of(origin)
    rows = read_rows(paths, COLUMN_MAP, source="dlrm")
    rows = rows.reject({f"role: not one of {', '.join(ROLES)}": ~pl.col("role").is_in(list(ROLES))})
    before = pl.col("submit_s").is_null()
    first = pl.when(before).then(0.0)
    open_end = pl.when(pl.col("start_s").is_null()).then(pl.lit("PENDING")).otherwise(pl.lit("RUNNING"))
    jobs = rows.good.with_columns(
        censored=before,
        start_s=pl.coalesce("start_s", first),
        submit_s=pl.coalesce("submit_s", first),
    ).with_columns(
        attempt=pl.lit(1),
        job_class=pl.lit("inference"),
        submit_time=clock.at("submit_s"),
        start_time=clock.at("start_s"),
        end_time=clock.at("end_s"),
        state=pl.when(pl.col("end_s").is_null()).then(open_end).otherwise(pl.lit("UNKNOWN")),
    )
    return assemble(
        replace(rows, good=jobs),
        source="dlrm",
        origin=clock.zero,
        checks=[*clock.checks, *CHECKS],
        notes=clock.notes,
    )
