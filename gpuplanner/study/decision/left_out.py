"""GPU-hours that no figure counts: how many, why, and what to correct first where they are too many."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from gpuplanner.inbox.store import open_dataset
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.findings import UNKNOWN_GPUS, QualityWarning, warnings_of
from gpuplanner.inbox.core.shares import UNTRACKED
from gpuplanner.inbox.store import told_by
from gpuplanner.study.bundled import data_folder

MAX_LEFT_OUT_SHARE = 0.20
"""Share of the GPU-hours left out or unresolved above which nothing is recommended but to correct the data."""
REJECTED = "rejected: "
"""How the lines of the quality report on rejected rows begin; those that are no loss, such as steps, are ``info``."""
LEAVES_OUT = r"leave|left out|not counted"
"""Words of the effect of a finding that takes GPU-hours out of every figure."""


@dataclass(frozen=True)
class Correction:
    """What to correct before anything is recommended.

    - ``share``: Share of the GPU-hours left out or unresolved.
    - ``what``: The finding that concerns most of them, naming its node, column or label.
    - ``how``: How to correct it.
    """

    share: float
    what: str
    how: str

    @property
    def reason(self) -> str:
        """Why nothing is recommended, in words."""
        return f"{self.share:.0%} of the GPU-hours are left out or unresolved; correct the data first: {self.what}"


def any_ran(jobs: pl.DataFrame) -> bool:
    """Whether a job states when it ran: from its start to its end, or to now.

    Examples
    --------
    >>> any_ran(pl.DataFrame({"start_time": [0], "end_time": [None], "state": ["COMPLETED"]}))
    False
    """
    until_now = pl.col("state").cast(pl.String) == "RUNNING"
    ran = pl.col("start_time").is_not_null() & (pl.col("end_time").is_not_null() | until_now)
    return bool(jobs.select(ran.any()).item())


def left_out_rows(trace: Dataset) -> int:
    """Rejected rows of the first source of a dataset, its jobs, but for those that are no loss."""
    harmless = trace.quality.filter(severity="info")["check"].str.strip_prefix(REJECTED)
    files = [file.name for file in trace.stated.files]
    lost = ~pl.col("reason").is_in(harmless.to_list()) & pl.col("file").is_in(files)
    return trace.rejects.filter(lost).height


def left_out_share(trace: Dataset) -> float:
    """Share of the GPU-hours that no figure counts: in quarantine, unknown, untracked shares, rejected.

    A rejected row is taken to be a job as long as the others.
    """
    stated = trace.stated
    untracked = float(trace.quality.filter(check=UNTRACKED)["gpu_hours"].sum())
    lost = stated.quarantined_gpu_hours + stated.unresolved_gpu_hours + untracked
    counted = stated.gpu_hours / (stated.gpu_hours + lost) if lost else 1.0
    rows = max(stated.rows_in, 1)
    return 1.0 - counted * (1.0 - min(left_out_rows(trace) / rows, 1.0))


def correction_of(data: str | Dataset) -> Correction | None:
    """What to correct first; None where few enough of the GPU-hours are left out.

    Examples
    --------
    >>> correction_of("sample") is None
    True
    """
    trace = open_dataset(data_folder(data), columns=["gpus"]) if isinstance(data, str) else data
    share = left_out_share(trace)
    if share <= MAX_LEFT_OUT_SHARE:
        return None
    grave = trace.quality.filter(pl.col("severity") != "info", pl.col("effect").str.contains(LEAVES_OUT))
    named_cause = pl.col("check") != UNKNOWN_GPUS.check
    first = grave.sort(named_cause, "gpu_hours", "rows", descending=True, nulls_last=True).head(1)
    if first.is_empty():
        how = "look at rejects.parquet in the folder of the data"
        return Correction(share, "rows that cannot be read", how)
    row = first.row(0, named=True)
    named = f" ({row['example']})" if row["example"] else ""
    return Correction(share, f"{row['check']}{named}", row["effect"])


def warnings_about(data: str) -> list[QualityWarning]:
    """Warnings and errors of the quality report of a dataset, gravest first.

    Examples
    --------
    >>> warnings_about("sample")
    []
    """
    return warnings_of(told_by(data_folder(data)).quality)
