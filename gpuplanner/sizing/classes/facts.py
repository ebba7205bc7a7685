"""What rules may look at: names of a job, and numbers that follow from its record and its samples."""

from __future__ import annotations

import polars as pl

from gpuplanner.inbox.core.times import known_zone
from gpuplanner.schemas.domain import Jobs
from gpuplanner.schemas.check import conform
from gpuplanner.sizing.evidence import samples_of_runs

TEXTS = ("job_name", "partition", "queue")
"""Names, where the table has such columns; ``schemas.Jobs`` alone has none of them."""

NUMBERS = {
    "gpus": "GPUs",
    "nodes": "nodes",
    "time_limit_s": "s",
    "run_s": "s",
    "wait_s": "s",
    "sm_activity": "0-1, mean",
    "activity_spread": "0-1, standard deviation of the minute means of SM activity",
    "memory_peak_gib": "GiB",
    "hour": "hours of the local clock at submission, 0 to 24",
    "weekday": "1 for Monday to 7 for Sunday, at submission",
    "repeats": "jobs of the same user with the same request and limit on the same local day",
}
"""Numbers with their units."""

BEFORE_RUN = (*TEXTS, "gpus", "nodes", "time_limit_s", "hour", "weekday")
"""Facts that are known when a job is submitted; the others are known of its past alone."""

SCRIPT_ENDING = r"\.(sh|bash|csh|zsh|py|r|jl|m|pl|slurm|sbatch|job|run|cmd)$"
"""Endings of the names of scripts."""

REQUEST = ("tenant", "user", "gpus", "profile_requested", "time_limit_s")


def job_facts(jobs: pl.DataFrame, samples: pl.DataFrame | None = None, *, tz: str = "UTC") -> pl.DataFrame:
    """Facts of each job, null where they are not known.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> jobs = pl.DataFrame({"job_id": ["1", "2"], "attempt": 1, "tenant": "a", "user": "u", "state": "PENDING",
    ...     "gpus": 1.0, "submit_time": datetime(2026, 7, 1, 23, 30, tzinfo=UTC)})
    >>> job_facts(jobs, tz="Europe/Oslo").select("hour", "weekday", "repeats").row(0)
    (1.5, 4, 2)
    """
    local = pl.col("submit_time").dt.convert_time_zone(known_zone(tz))
    named = conform(jobs, Jobs, where="job classes: jobs").with_columns(
        jobs[name].cast(pl.String) if name in jobs.columns else pl.lit(None, pl.String).alias(name)
        for name in TEXTS
    )
    table = named.with_row_index("row").with_columns(
        run_s=(pl.col("end_time") - pl.col("start_time")).dt.total_microseconds() / 1e6,
        wait_s=(pl.col("start_time") - pl.col("submit_time")).dt.total_microseconds() / 1e6,
        hour=local.dt.hour() + local.dt.minute() / 60 + local.dt.second() / 3600,
        weekday=local.dt.weekday(),
        day=local.dt.date(),
    )
    return (
        table.with_columns(repeats=pl.when(pl.col("user").is_not_null()).then(pl.len().over(*REQUEST, "day")))
        .join(_steadiness(table, samples), on="row", how="left", maintain_order="left")
        .with_columns(sm_activity=pl.coalesce("sm_activity", "sampled_activity"))
        .drop("row", "day", "sampled_activity")
    )


def spaced(text: pl.Expr) -> pl.Expr:
    """Words of a name in small letters, with one blank before, between and behind them.

    The ending of a script is no word: ``submit.bash`` is sent off, ``bash`` is typed into.

    Examples
    --------
    >>> pl.select(spaced(pl.lit("LLM_fine-tune7b (v2)"))).item()
    ' llm fine tune b v '
    >>> pl.select(spaced(pl.lit("submit.bash"))).item()
    ' submit '
    """
    name = text.str.to_lowercase().str.replace(SCRIPT_ENDING, "")
    return pl.concat_str(pl.lit(" "), name.str.replace_all(r"[^\p{L}]+", " ").str.strip_chars(), pl.lit(" "))


def _steadiness(jobs: pl.DataFrame, samples: pl.DataFrame | None) -> pl.DataFrame:
    """Mean and standard deviation of SM activity over the minutes that a job held its GPUs."""
    return (
        samples_of_runs(jobs, samples, where="job classes: samples")
        .filter(pl.col("sm_activity").is_not_null())
        .group_by("row", pl.col("time").dt.truncate("1m"))
        .agg(pl.col("sm_activity").mean())
        .sort("row", "time")  # floats are added in a fixed order
        .group_by("row", maintain_order=True)
        .agg(sampled_activity=pl.col("sm_activity").mean(), activity_spread=pl.col("sm_activity").std())
    )
