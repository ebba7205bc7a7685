"""Run times of jobs that have not ended: drawn from those that ran at least as long."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import polars as pl


def impute_run_times(jobs: pl.DataFrame, until: datetime, *, seed: int) -> pl.DataFrame:
    """Give every job a run time.

    Leaving unended jobs out would leave out the longest ones. A job that runs for ``a`` seconds already gets
    the run time of an ended job of its class, drawn among those that ran for at least ``a``; where no job of
    the class ran that long, twice its age. A job that waits is drawn among all of its class.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    until : datetime
        End of the observation.
    seed : int
        Of the draws.

    Returns
    -------
    polars.DataFrame
        The jobs with ``run_s`` [s] (null for those that ended without ever starting) and ``run_known``.

    Examples
    --------
    >>> from datetime import UTC, timedelta
    >>> t0 = datetime(2026, 1, 1, tzinfo=UTC)
    >>> jobs = pl.DataFrame({
    ...     "job_id": ["a", "b"], "tenant": "t", "job_class": None, "state": ["COMPLETED", "RUNNING"],
    ...     "start_time": [t0, t0], "end_time": [t0 + timedelta(hours=5), None]})
    >>> impute_run_times(jobs, t0 + timedelta(hours=2), seed=1)["run_s"].to_list()
    [18000.0, 18000.0]
    """
    rng = np.random.default_rng(seed)
    known_s = (
        pl.col("end_time").cast(pl.Datetime("us", "UTC")) - pl.col("start_time")
    ).dt.total_microseconds()
    age_s = (pl.lit(until) - pl.col("start_time")).dt.total_microseconds()
    table = jobs.with_columns(
        run_s=known_s / 1e6,
        age_s=pl.when(pl.col("state") == "RUNNING").then(age_s / 1e6).otherwise(0.0).clip(lower_bound=0.0),
        kind=pl.coalesce(pl.col("job_class").cast(pl.String), pl.col("tenant")),
        open=pl.col("end_time").is_null() & pl.col("state").cast(pl.String).is_in(["RUNNING", "PENDING"]),
    )
    ended = table.filter(pl.col("run_s").is_not_null())
    pools = {
        kind: np.sort(group["run_s"].to_numpy())
        for (kind,), group in ended.group_by("kind", maintain_order=True)
    }
    everyone = np.sort(ended["run_s"].to_numpy())
    drawn = [
        _draw(pools.get(kind, everyone), age, rng) if is_open else None
        for kind, age, is_open in table.select("kind", "age_s", "open").iter_rows()
    ]
    return table.with_columns(
        run_known=pl.col("run_s").is_not_null(),
        run_s=pl.coalesce("run_s", pl.Series(drawn, dtype=pl.Float64)),
    ).drop("age_s", "kind", "open")


def _draw(pool: np.ndarray, age_s: float, rng: np.random.Generator) -> float:
    longer = pool[np.searchsorted(pool, age_s) :]
    return float(rng.choice(longer)) if len(longer) else 2.0 * age_s
