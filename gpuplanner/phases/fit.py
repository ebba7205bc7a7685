"""The smallest slice for each phase of an observed job, and what fitting by phase could save."""

from __future__ import annotations

import polars as pl

from gpuplanner.hardware.gpu import GpuModel, as_board
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.sizing.profile_sizes import smallest_profile

MARGIN = 0.10
"""Share added to the peak of memory; SM activity is a 95 % quantile and gets none, as in right-sizing."""


def fit_phases(phases: pl.DataFrame, board: GpuModel | str) -> pl.DataFrame:
    """Fit each phase, and each job as a whole, to a slice of a board.

    Only jobs on one GPU or slice are fitted; others keep whole GPUs. A phase without readings of activity or memory
    keeps a whole GPU.

    Parameters
    ----------
    phases : polars.DataFrame
        From :func:`gpuplanner.phases.phases_of_jobs`.
    board : GpuModel or str
        The board to fit to, taken to be the one that was sampled.

    Returns
    -------
    polars.DataFrame
        `phases` with ``sms_needed``, ``profile_phase``, ``profile_job``, and ``saved_gpu_hours``: GPU-hours
        that cutting by phase could save against one slice for the whole job, at most, since moving between
        slices costs time and needs a free slice [GPU h].

    Raises
    ------
    GeometryError
        If the board is unknown or no source states its SMs.

    Examples
    --------
    >>> phases = pl.DataFrame({"job_id": "1", "gpus": 1.0, "profile": None, "run_s": 3600.0,
    ...     "sm_need": [0.1, 0.4], "memory_peak_gib": [8.0, 30.0]}, schema_overrides={"profile": pl.String})
    >>> fit_phases(phases, "H100-80GB-SXM5").select("profile_phase", "profile_job", "saved_gpu_hours").rows()
    [('1g.10gb', '3g.40gb', 0.2857142857142857), ('3g.40gb', '3g.40gb', 0.0)]
    """
    known = as_board(board)
    single = pl.col("gpus") <= 1
    held = pl.col("profile").map_elements(lambda name: float(known.sms_of(name)), return_dtype=pl.Float64)
    of_whole = pl.lit(float(known.sms_of(WHOLE_GPU)))
    table = phases.with_columns(
        sms_needed=pl.col("sm_need") * pl.when(pl.col("profile").is_null()).then(of_whole).otherwise(held)
    ).with_columns(
        job_sms=_largest("sms_needed").over("job_id"), job_memory=_largest("memory_peak_gib").over("job_id")
    )

    def fitted(sms: str, memory_gib: str) -> pl.Expr:
        enough = smallest_profile(known, pl.col(sms), pl.col(memory_gib) * (1 + MARGIN))
        return pl.when(single).then(enough).otherwise(pl.lit(WHOLE_GPU))

    shares = {name: known.share(name) for name in (WHOLE_GPU, *(each.name for each in known.profiles))}
    whole = table.with_columns(
        profile_phase=fitted("sms_needed", "memory_peak_gib"), profile_job=fitted("job_sms", "job_memory")
    )
    less = pl.col("profile_job").replace_strict(shares, return_dtype=pl.Float64) - pl.col(
        "profile_phase"
    ).replace_strict(shares, return_dtype=pl.Float64)
    return whole.with_columns(saved_gpu_hours=less.clip(lower_bound=0.0) * pl.col("run_s") / 3600.0).drop(
        "job_sms", "job_memory"
    )


def _largest(name: str) -> pl.Expr:
    """The largest need of a job; null if any phase's is not known."""
    return pl.when(pl.col(name).is_not_null().all()).then(pl.col(name).max())
