"""ITP: deep learning training jobs of Microsoft clusters, 2021 (Gu et al., ElasticFlow, ASPLOS 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from gpuplanner.schemas.tables import MAX_GPUS_PER_JOB
from gpuplanner.traces.assemble import assemble
from gpuplanner.traces.fields import Field
from gpuplanner.traces.quality import NO_QUEUE
from gpuplanner.traces.reader import read_rows
from gpuplanner.traces.times import MAX_SECONDS, known_origin, seconds
from gpuplanner.traces.trace import Trace

ORIGIN = datetime(2021, 3, 4, tzinfo=UTC)
"""First day of the collection; the source does not give the hour or the zone."""

COLUMN_MAP = {
    "job_id": Field("job_id"),
    "submission_time": Field("submit_s", "number", high=MAX_SECONDS),
    "duration": Field("run_s", "number", nullable=True, high=MAX_SECONDS),
    "num_gpu": Field("gpus", "number", nullable=True, high=MAX_GPUS_PER_JOB),
}
"""`submission_time`: seconds after the start of the collection; `duration`: run time [s]."""


def read_itp(paths: Sequence[str | Path], *, origin: datetime | str | None = None) -> Trace:
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
    Trace
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
    zero = known_origin(ORIGIN if origin is None else origin)
    rows = read_rows(paths, COLUMN_MAP, source="itp")
    clusters = {number: file.path.name.split(".")[0] for number, file in enumerate(rows.files)}
    submit = pl.lit(zero, pl.Datetime("us", "UTC")) + seconds(pl.col("submit_s"))
    jobs = rows.good.with_columns(
        attempt=pl.lit(1),
        tenant=pl.col("file").replace_strict(clusters, return_dtype=pl.String),
        submit_time=submit,
        start_time=submit,
        end_time=submit + seconds(pl.col("run_s")),
        state=pl.lit("UNKNOWN"),
    )
    return assemble(
        replace(rows, good=jobs),
        source="itp",
        origin=zero,
        checks=[NO_QUEUE],
        notes=[
            "the source kept jobs of about 600 s and longer only: arrival rates are not those of the queue"
        ],
    )
