"""Alibaba spot GPU cluster, 2026: job list (Duan et al., GFS, ASPLOS 2026)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import polars as pl

from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.fields import Field
from gpuplanner.inbox.core.origin_clock import Clock
from gpuplanner.inbox.core.times import MAX_SECONDS
from gpuplanner.inbox.public.job_lists import read_list
from gpuplanner.schemas.tables import MAX_GPUS_PER_JOB

COLUMN_MAP = {
    "job_name": Field("job_id"),
    "organization": Field("tenant"),
    "gpu_model": Field("gpu_model", nullable=True),
    "gpu_request": Field("gpus_per_worker", "number", nullable=True, high=MAX_GPUS_PER_JOB),
    "worker_num": Field("workers", "number", nullable=True, high=MAX_GPUS_PER_JOB),
    "submit_time": Field("submit_s", "number", high=MAX_SECONDS),
    "duration": Field("run_s", "number", nullable=True, high=MAX_SECONDS),
    "job_type": Field("job_type", nullable=True),
}
"""`organization`: cost organisation; `gpu_request`: GPUs of one worker; `submit_time`: seconds after the first
job; `job_type`: ``HP`` or ``Spot``."""

TIERS = {"HP": "guaranteed", "Spot": "best_effort"}


def read_spot(paths: Sequence[str | Path], *, origin: datetime | str | None = None) -> Dataset:
    r"""Read the job list; its node list is read as source ``nodes``.

    Parameters
    ----------
    paths : sequence of str or Path
        CSV files, plain or gzip.
    origin : datetime or str, optional
        Instant of second 0. The default, 1970-01-01, makes it plain that the dates are relative.

    Returns
    -------
    Dataset
        One row per job, with GPUs = GPUs of one worker × workers.

    Raises
    ------
    TraceFormatError
        If a file cannot be read as this source, or no row is left.

    References
    ----------
    .. [1] alibaba/clusterdata, cluster-trace-v2026-spot-gpu, README: columns of ``job_info_df.csv``.

    Examples
    --------
    >>> import tempfile
    >>> header = "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "job_info_df.csv"
    ...     _ = path.write_text(header + "\n437260,57,A100-SXM4-80GB,15,1,16,9589663,3600,Spot\n")
    ...     read_spot([path]).jobs["gpus", "tier"].row(0)
    (16.0, 'best_effort')
    """
    fills = {
        "tenant": pl.col("tenant"),
        "gpus": pl.col("gpus_per_worker") * pl.col("workers"),
        "tier": pl.col("job_type").replace_strict(TIERS, default=pl.col("job_type")),
    }
    return read_list(paths, COLUMN_MAP, Clock.of(origin), source="spot", fills=fills)
