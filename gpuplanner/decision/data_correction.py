"""GPU-hours that a dataset excludes, and what to correct before anything is recommended."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from gpuplanner.core.stage_cache_and_data_folders import data_folder
from gpuplanner.core.units_and_number_formats import percent_text
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.quality_report import check_text

MAX_LEFT_OUT_SHARE = 0.20
"""Share of the GPU-hours left out or unresolved above which nothing is recommended but to correct the data."""


@dataclass(frozen=True)
class DataCorrection:
    """What to correct in the data before anything is recommended.

    - ``share``: Share of the GPU-hours excluded or unresolved [0-1].
    - ``finding``: Finding that concerns most of them, naming its node, column or label.
    - ``remedy``: How to correct it.
    """

    share: float
    finding: str
    remedy: str

    @property
    def reason(self) -> str:
        """Reason for recommending nothing, as a sentence."""
        excluded = percent_text(self.share)
        return f"{excluded} of the GPU-hours are excluded or unresolved; correct the data first: {self.finding}"


def has_run_jobs(jobs: pl.DataFrame | pl.LazyFrame) -> bool:
    """Whether any job states when it ran: from its start to its end, or to now.

    Examples
    --------
    >>> has_run_jobs(pl.DataFrame({"start_time": [0], "end_time": [None], "state": ["COMPLETED"]}))
    False
    """
    until_now = pl.col("state").cast(pl.String) == "RUNNING"
    has_run = pl.col("start_time").is_not_null() & (pl.col("end_time").is_not_null() | until_now)
    return bool(jobs.lazy().select(has_run.any()).collect(engine="streaming").item())


def count_lost_rows(dataset: Dataset) -> int:
    """Count the rejected rows of the job source of a dataset, without harmless ones."""
    # Rejected rows that are no loss, such as steps, are ``info`` in the quality report.
    harmless = dataset.quality.filter(severity="info")["check"].str.strip_prefix("rejected: ")
    files = [file.name for file in dataset.source_facts.files]
    is_lost = ~pl.col("reason").is_in(harmless.to_list()) & pl.col("file").is_in(files)
    return dataset.rejects.filter(is_lost).height


def compute_left_out_share(dataset: Dataset) -> float:
    """Compute the share of the GPU-hours left out of all figures [0-1]: quarantined, unknown, untracked or rejected.

    A rejected row counts as a job of mean GPU-hours.
    """
    source_facts = dataset.source_facts
    untracked_gpu_hours = float(
        dataset.quality.filter(check=check_text("devices: untracked shares"))["gpu_hours"].sum()
    )
    lost_gpu_hours = source_facts.uncounted_gpu_hours + untracked_gpu_hours
    counted = source_facts.gpu_hours / (source_facts.gpu_hours + lost_gpu_hours) if lost_gpu_hours else 1.0
    return 1.0 - counted * (1.0 - min(count_lost_rows(dataset) / max(source_facts.rows_in, 1), 1.0))


def find_correction(data: str | Dataset) -> DataCorrection | None:
    """Find what to correct first in a dataset; None if few enough of its GPU-hours are excluded.

    Examples
    --------
    >>> find_correction("sample") is None
    True
    """
    dataset = open_dataset(data_folder(data), columns=["gpus"]) if isinstance(data, str) else data
    share = compute_left_out_share(dataset)
    if share <= MAX_LEFT_OUT_SHARE:
        return None
    leaves_out = pl.col("effect").str.contains(r"leave|left out|not counted")
    serious_findings = dataset.quality.filter(pl.col("severity") != "info", leaves_out)
    named_cause = pl.col("check") != check_text("jobs: unknown GPUs")
    first = serious_findings.sort(named_cause, "gpu_hours", "rows", descending=True, nulls_last=True).head(1)
    if first.is_empty():
        how = "look at rejects.parquet in the folder of the data"
        return DataCorrection(share, "rows that cannot be read", how)
    row = first.row(0, named=True)
    example_text = f" ({row['example']})" if row["example"] else ""
    return DataCorrection(share, f"{row['check']}{example_text}", row["effect"])
