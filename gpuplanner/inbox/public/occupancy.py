"""Series of how much of a pool was held: Helios virtual clusters by GPU, Philly by node. No jobs are in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.errors import file_name
from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.findings import AMBIGUOUS_TIME, Check, Finding
from gpuplanner.inbox.core.lines.fields import Field
from gpuplanner.inbox.core.lines.reading import read_rows
from gpuplanner.inbox.core.lines.rows import Rows
from gpuplanner.inbox.core.table_rows import assemble_reading
from gpuplanner.inbox.core.times import known_zone
from gpuplanner.inbox.public.clocks import localized
from gpuplanner.inbox.public.helios import TIME_ZONE as HELIOS_ZONE
from gpuplanner.inbox.public.helios import ZONE_NOTE
from gpuplanner.inbox.public.philly import TIME_ZONE as PHILLY_ZONE
from gpuplanner.schemas.tables import MAX_GPUS_PER_JOB
from gpuplanner.units import SECONDS_PER_HOUR

HELIOS_COLUMNS = {
    "time": Field("time", "time"),
    "total_gpu_num": Field("total", "number", high=MAX_GPUS_PER_JOB),
    "running_gpu_num": Field("allocated", "number", high=MAX_GPUS_PER_JOB),
    "pending_gpu_num": Field("pending", "number", nullable=True, high=MAX_GPUS_PER_JOB),
    "idle_gpu_num": Field("idle", "number", nullable=True, high=MAX_GPUS_PER_JOB),
    "gpu_utilization": Field("share", "number", nullable=True, high=1.0),
}
"""Columns of ``cluster_sequence_vc.csv``; `gpu_utilization`: running / total, so allocation and not activity."""

PHILLY_COLUMNS = {
    "time": Field("time", "time"),
    "active": Field("allocated", "number", high=MAX_GPUS_PER_JOB),
    "total": Field("total", "number", high=MAX_GPUS_PER_JOB),
}

HALF_DIGIT = 0.0005 + 1e-9
"""The source rounds shares to three decimals."""

MORE_THAN_ALL = Check(
    "more held than there is",
    "warning",
    "occupancy above 100 %: the pool borrowed, or its size is out of date",
    pl.col("allocated") > pl.col("total"),
)
HELIOS_CHECKS = (
    AMBIGUOUS_TIME,
    MORE_THAN_ALL,
    Check(
        "running and idle GPUs are not the total",
        "warning",
        "what is free follows from total - running; idle is not used",
        pl.col("allocated") + pl.col("idle") != pl.col("total"),
    ),
    Check(
        "gpu_utilization is not running / total",
        "warning",
        "shares follow from the counts; gpu_utilization is not used",
        (pl.col("share") - pl.col("allocated") / pl.col("total")).abs() > HALF_DIGIT,
    ),
)


def read_helios_sequence(paths: Sequence[str | Path], *, tz: str | None = None) -> Dataset:
    r"""Read the per-minute sequences of Helios virtual clusters; the folder of a file names its pool."""
    zone = known_zone(tz or HELIOS_ZONE)
    rows = read_rows(paths, HELIOS_COLUMNS, source="helios")
    pools = {number: file_name(file.path.resolve().parent) for number, file in enumerate(rows.files)}
    notes = [] if tz else [ZONE_NOTE.format(zone)]
    return _occupancy(rows, "helios", "gpu", pools, zone, HELIOS_CHECKS, notes)


def read_philly_nodes(paths: Sequence[str | Path], *, tz: str | None = None) -> Dataset:
    r"""Read the per-minute count of active and of all Philly nodes.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "nodes.csv"
    ...     _ = path.write_text("time,active,total\n2017-10-03 00:00:00,312,420\n2017-10-03 00:01:00,300,420\n")
    ...     read_philly_nodes([path]).summary()["allocated_hours"]
    10.2
    """
    zone = known_zone(tz or PHILLY_ZONE)
    rows = read_rows(paths, PHILLY_COLUMNS, source="philly")
    pools = dict.fromkeys(range(len(rows.files)), "philly")
    return _occupancy(rows, "philly", "node", pools, zone, [AMBIGUOUS_TIME, MORE_THAN_ALL], [])


def _occupancy(
    rows: Rows,
    source: str,
    resource: str,
    pools: Mapping[int, str],
    zone: str,
    checks: Sequence[Check],
    notes: Sequence[str],
) -> Dataset:
    rows = localized(rows, ["time"], zone)
    counts = pl.col("total", "allocated", *(["pending"] if resource == "gpu" else []))
    rows = rows.reject({"not a whole number": pl.any_horizontal(counts != counts.floor())})
    pool = pl.col("file").replace_strict(dict(pools), return_dtype=pl.String)
    rows = replace(rows, good=rows.good.with_columns(pool=pool, resource=pl.lit(resource)))
    ordered = rows.good.sort("pool", "time")
    gaps_s = ordered.select(pl.col("time").diff().over("pool").dt.total_seconds()).to_series().drop_nulls()
    step_s = int(gaps_s.mode().sort()[0]) if len(gaps_s) else 0
    hours = step_s / SECONDS_PER_HOUR
    missing = int((gaps_s > step_s).sum())
    effect = f"readings are missing there; each row counts {step_s} s and no more"
    return assemble_reading(
        rows,
        "occupancy",
        source=source,
        order=["pool", "time"],
        key=["pool", "time"],
        what="reading",
        checks=checks,
        findings=[Finding("gap in the series", "warning", missing, effect, "")] if missing else [],
        totals={
            "pools": pl.col("pool").n_unique(),
            "allocated_hours": pl.col("allocated").sum() * hours,
            "total_hours": pl.col("total").sum() * hours,
        },
        time_zone=zone,
        notes=[f"a series of held {resource}s, not jobs: one reading each {step_s} s", *notes],
    )
