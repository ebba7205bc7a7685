"""Alibaba OpenB: pods with whole and fractional GPUs, 2023 (Weng et al., USENIX ATC 2023)."""

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
from gpuplanner.inbox.core.lines.text_file import head
from gpuplanner.inbox.core.times import MAX_SECONDS
from gpuplanner.inbox.public.clocks import Clock
from gpuplanner.inbox.slurm.inventory import read_inventory
from gpuplanner.schemas.tables import MAX_GPUS_PER_JOB

COLUMN_MAP = {
    "name": Field("job_id"),
    "num_gpu": Field("whole_gpus", "number", nullable=True, high=MAX_GPUS_PER_JOB),
    "gpu_milli": Field("gpu_milli", "number", nullable=True, high=1000.0),
    "gpu_spec": Field("gpu_model", nullable=True),
    "qos": Field("qos", nullable=True),
    "pod_phase": Field("phase", nullable=True),
    "creation_time": Field("submit_s", "number", high=MAX_SECONDS),
    "deletion_time": Field("end_s", "number", nullable=True, high=MAX_SECONDS),
    "scheduled_time": Field("start_s", "number", nullable=True, high=MAX_SECONDS),
}
"""Times in seconds from the start of the trace; `gpu_milli`: thousandths of one GPU; `gpu_spec`: wanted
models joined by ``|``."""

TIMES = ("creation_time", "deletion_time", "scheduled_time")
FIRST_FIVE = ("name", "num_gpu", "gpu_milli")
UNTIMED_COLUMNS = {
    name: field if name in FIRST_FIVE else replace(field, nullable=True, optional=True)
    for name, field in COLUMN_MAP.items()
}
"""The lists ``multigpu20`` to ``multigpu50`` have five columns only, and no times."""

PHASES = {
    "Succeeded": "COMPLETED",
    "Failed": "FAILED",
    "Pending": "PENDING",
    "Running": "RUNNING",
    "Unknown": "UNKNOWN",
}

UNTIMED = Check(
    "no times in the source",
    "warning",
    "all pods are taken to wait from second 0: neither demand over time nor GPU-hours can be made of them",
    pl.col("untimed"),
)


def read_openb(
    paths: Sequence[str | Path], *, nodes: str | Path | None = None, origin: datetime | str | None = None
) -> Dataset:
    r"""Read an OpenB pod list, and its node list if given.

    A pod is a job: submitted at `creation_time`, started at `scheduled_time` (never, if that is empty),
    ended at `deletion_time`. A running pod deleted at the last instant of the trace still ran; one deleted
    earlier ended in a state that the source does not tell. A list without times is a queue of pods that all
    wait from second 0. The variant lists are resamplings of the same pods: read them one at a time.

    Parameters
    ----------
    paths : sequence of str or Path
        CSV files, plain or gzip.
    nodes : str or Path, optional
        Node list, see :func:`gpuplanner.inbox.slurm.inventory.read_inventory`.
    origin : datetime or str, optional
        Instant of second 0. The default, 1970-01-01, makes it plain that the dates are relative.

    Returns
    -------
    Dataset
        One row per pod; `inventory` if `nodes` was given.

    Raises
    ------
    TraceFormatError
        If a file cannot be read as this source, or no row is left.

    Examples
    --------
    >>> import tempfile
    >>> header = "name,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "pods.csv"
    ...     _ = path.write_text(header + "\npod-1,1,460,,LS,Succeeded,0,7200,3600\n")
    ...     read_openb([path]).jobs["gpus", "tier", "state"].row(0)
    (0.46, 'ls', 'COMPLETED')
    """
    clock = Clock.of(origin)
    untimed = not any(name in line for path in paths for line in head(path)[:1] for name in TIMES)
    rows = read_rows(paths, UNTIMED_COLUMNS if untimed else COLUMN_MAP, source="openb")
    phase = pl.lit("Pending") if untimed else pl.col("phase")
    rows = rows.reject({f"pod_phase: not one of {', '.join(PHASES)}": ~phase.is_in(list(PHASES))})
    rows = replace(
        rows,
        good=rows.good.with_columns(
            phase=phase, untimed=pl.lit(untimed), submit_s=pl.lit(0.0) if untimed else pl.col("submit_s")
        ),
    )
    phase = pl.col("phase")
    instants = {f"{name}_time": clock.at(f"{name}_s") for name in ("submit", "start", "end")}
    at_end = pl.col("end_s") == pl.max_horizontal(pl.col("submit_s", "start_s", "end_s").max())
    jobs = rows.good.with_columns(
        **instants,
        attempt=pl.lit(1),
        tenant=pl.lit("openb"),
        tier=pl.col("qos").str.to_lowercase(),
        gpus=pl.col("whole_gpus") * pl.col("gpu_milli") / 1000,
        still_runs=(phase == "Running") & (at_end | pl.col("end_s").is_null()),
        deleted=(phase == "Running") & ~at_end,
    ).with_columns(
        end_time=pl.when(~pl.col("still_runs").fill_null(False)).then(pl.col("end_time")),
        state=pl.when("deleted")
        .then(pl.lit("UNKNOWN"))
        .otherwise(phase.replace_strict(PHASES, default="UNKNOWN")),
    )
    checks = [
        *clock.checks,
        UNTIMED,
        Check(
            "deleted while running, before the trace ended",
            "info",
            "state UNKNOWN: how they ended is not told",
            pl.col("deleted"),
        ),
        Check(
            "a share of a GPU",
            "info",
            "GPU-hours count the share asked for, not the whole GPU",
            pl.col("gpus") != pl.col("gpus").floor(),
        ),
    ]
    inventory, node_file = (None, None) if nodes is None else read_inventory(nodes)
    return assemble(
        replace(rows, good=jobs),
        source="openb",
        origin=clock.zero,
        last_seen=clock.at("end_s"),
        checks=checks,
        notes=[*clock.notes, "the trace names no tenants: all jobs are of 'openb'"],
        inventory=inventory,
        more_files=[] if node_file is None else [node_file],
    )
