"""ITP: deep learning training jobs of Microsoft clusters, 2021 (Gu et al., ElasticFlow, ASPLOS 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.fields import Field
from gpuplanner.inbox.core.origin_clock import Clock
from gpuplanner.inbox.core.times import MAX_SECONDS
from gpuplanner.inbox.public.job_lists import read_list
from gpuplanner.schemas.tables import MAX_GPUS_PER_JOB

ORIGIN = datetime(2021, 3, 4, tzinfo=UTC)
"""First day of the collection; the source does not give the hour or the zone."""

COLUMN_MAP = {
    "job_id": Field("job_id"),
    "submission_time": Field("submit_s", "number", high=MAX_SECONDS),
    "duration": Field("run_s", "number", nullable=True, high=MAX_SECONDS),
    "num_gpu": Field("gpus", "number", nullable=True, high=MAX_GPUS_PER_JOB),
}
"""`submission_time`: seconds after the start of the collection; `duration`: run time [s]."""


def read_itp(paths: Sequence[str | Path], *, origin: datetime | str | None = None) -> Dataset:
    r"""Read ITP job tables, one file per cluster; the name of the file is the tenant.

    Columns `job_id`, `submission_time`, `duration`, `num_gpu`; see :data:`COLUMN_MAP`. Queueing is not in
    the source: the start is set to the submission.

    Parameters
    ----------
    paths : sequence of str or Path
        CSV files, plain or gzip.
    origin : datetime or str, optional
        Instant of second 0; :data:`ORIGIN` if not given.

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
    ...     path = Path(folder) / "cluster01.csv"
    ...     _ = path.write_text("job_id,submission_time,duration,num_gpu\n965d744f,1932025,2429,64\n")
    ...     read_itp([path]).jobs["tenant", "submit_time"].row(0)
    ('cluster01', datetime.datetime(2021, 3, 26, 8, 40, 25, tzinfo=zoneinfo.ZoneInfo(key='UTC')))
    """
    return read_list(
        paths,
        COLUMN_MAP,
        Clock.of(origin, known=ORIGIN),
        source="itp",
        notes=[
            "the source kept jobs of about 600 s and longer only: arrival rates are not those of the queue"
        ],
    )
