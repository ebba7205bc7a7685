"""Job lists as simulators of clusters read them: number, submission, run time and GPUs, in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.fields import Field
from gpuplanner.inbox.core.origin_clock import Clock
from gpuplanner.inbox.core.times import MAX_SECONDS
from gpuplanner.inbox.public.job_lists import read_list
from gpuplanner.schemas.tables import MAX_GPUS_PER_JOB

COLUMN_MAP = {
    "job_id": Field("job_id"),
    "submit_time": Field("submit_s", "number", high=MAX_SECONDS),
    "duration": Field("run_s", "number", nullable=True, high=MAX_SECONDS),
    "num_gpus": Field("gpus", "number", nullable=True, high=MAX_GPUS_PER_JOB),
}
"""`submit_time`: seconds from the start of the list; `duration`: run time [s]."""


def read_simulator(paths: Sequence[str | Path], *, origin: datetime | str | None = None) -> Dataset:
    r"""Read a simulator's job list; the name of the file is the tenant.

    Columns `job_id`, `submit_time`, `duration`, `num_gpus`; see :data:`COLUMN_MAP`.

    Parameters
    ----------
    paths : sequence of str or Path
        CSV files, plain or gzip.
    origin : datetime or str, optional
        Instant of second 0. The default, 1970-01-01, makes it plain that the dates are relative.

    Returns
    -------
    Dataset
        One row per job.

    Raises
    ------
    TraceFormatError
        If a file cannot be read as this source, or no row is left.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "jobs.csv"
    ...     _ = path.write_text("job_id,submit_time,duration,num_gpus\n0,201,3600,8\n")
    ...     read_simulator([path]).summary()["gpu_hours"]
    8.0
    """
    return read_list(paths, COLUMN_MAP, Clock.of(origin), source="simulator")
