"""From a template to the phases of one job, as the simulator takes them."""

from __future__ import annotations

import math

import polars as pl

from gpuplanner.errors import ScenarioError, message
from gpuplanner.hardware import GpuModel, as_board
from gpuplanner.phases.fit import MARGIN
from gpuplanner.phases.templates import Template
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.sizing import smallest_profile

COLUMNS = ("job_id", "phase", "profile", "run_s", "gpus", "sms_needed")
_DRAWN_UP = {
    "job_id": pl.String,
    "phase": pl.String,
    "run_s": pl.Float64,
    "gpus": pl.Int32,
    "sms_needed": pl.Float64,
    "memory_gib": pl.Float64,
}


def apply_template(
    template: Template, jobs: pl.DataFrame, board: GpuModel | str, *, margin: float = MARGIN
) -> pl.DataFrame:
    """Give jobs the phases of a template.

    Shares of time are taken relative to their sum, and GPUs relative to the phase that has most, so that one template
    serves jobs of any length and size. A phase on one GPU is given the smallest slice that holds it.

    Parameters
    ----------
    template : Template
        Measured or edited; edited values hold.
    jobs : polars.DataFrame
        ``job_id``, ``run_s`` [s], and optionally ``gpus``; without, or where null, those of the template.
    board : GpuModel or str
        The board.
    margin : float
        Share added to the memory of a phase.

    Returns
    -------
    polars.DataFrame
        ``job_id``, ``phase``, ``profile``, ``run_s`` [s], ``gpus``, ``sms_needed`` (of one GPU), in order of time.
        The run times of a job add up to its own.

    Raises
    ------
    ScenarioError
        If a job has no positive run time.

    Examples
    --------
    >>> from gpuplanner.phases.templates import Figure, TemplatePhase
    >>> steady = TemplatePhase("steady", Figure(0.75), Figure(0.4), Figure(30.0), Figure(1.0))
    >>> decay = TemplatePhase("decay", Figure(0.25), Figure(0.1), Figure(8.0), Figure(1.0))
    >>> jobs = pl.DataFrame({"job_id": ["a"], "run_s": [3600.0]})
    >>> rows = apply_template(Template("tuning", 3, (steady, decay)), jobs, "H100-80GB-SXM5")
    >>> rows.select("job_id", "phase", "profile", "run_s").rows()
    [('a', 'steady', '3g.40gb', 2700.0), ('a', 'decay', '1g.10gb', 900.0)]
    """
    known = as_board(board)
    whole_sms = known.sms_of(WHOLE_GPU)
    shares = sum(phase.share_of_time.value for phase in template.phases)
    most = max(phase.gpus.value for phase in template.phases)
    rows = []
    for job in jobs.iter_rows(named=True):
        if job["run_s"] is None or not job["run_s"] > 0:
            where = f"apply_template: run_s of job {job['job_id']!r}"
            raise ScenarioError(
                message(where, "more than 0 seconds", repr(job["run_s"]), "Leave the job out.")
            )
        held = most if job.get("gpus") is None else float(job["gpus"])
        for phase in template.phases:
            gpus = max(1, math.ceil(held * phase.gpus.value / most - 1e-9))
            sms = phase.sm_activity.value * whole_sms
            run_s = job["run_s"] * phase.share_of_time.value / shares
            rows.append((job["job_id"], phase.name, run_s, gpus, sms, phase.memory_gib.value))
    enough = smallest_profile(known, pl.col("sms_needed"), pl.col("memory_gib") * (1 + margin))
    profile = pl.when(pl.col("gpus") == 1).then(enough).otherwise(pl.lit(WHOLE_GPU))
    return pl.DataFrame(rows, schema=_DRAWN_UP, orient="row").with_columns(profile=profile).select(COLUMNS)
