"""What a batch amounts to: completion time, and utilisation by three definitions that must not be mixed up."""

from __future__ import annotations

import numpy as np
import polars as pl

from gpuplanner.errors import GpuPlannerError, message
from gpuplanner.hardware import parse_layout
from gpuplanner.lab.claims.twenty_jobs.design import Design
from gpuplanner.lab.claims.twenty_jobs.serve import LEAD_S, MINUTE_S, ServedBatch
from gpuplanner.lab.claims.twenty_jobs.speed import capacities, demand, whole_capacity

TOLERANCE = 1e-9
"""By how much, relative, work done may differ from work drawn: rounding of sums of some dozen floats."""


def account(served: ServedBatch, design: Design, *, speed: str = "slices") -> dict[str, float]:
    """Sum up one batch, and check that no work appeared or vanished.

    Parameters
    ----------
    served : ServedBatch
        From :func:`gpuplanner.lab.claims.twenty_jobs.serve.serve`.
    design : Design
        The fleet.
    speed : str
        The model it was served with.

    Returns
    -------
    dict
        completion_min
            From queueing to the end of the last job.
        mean_jct_min, mean_wait_min
            From queueing to the end, and to the last start, mean over jobs that ended.
        utilisation_provisioned
            Work done / (capacity of the instances that exist, integrated to completion). An instance counts
            from the start of the reconfiguration that makes it.
        utilisation_server
            Work done / (capacity of all boards, cut or not, on or off, integrated to completion).
        utilisation_instances
            Mean over instances, each counting alike, of the share of its capacity that was used.
        provisioned_slices
            Capacity that existed, mean over time (in units of the speed model): the C of U * C * T.
        gpus_on
            GPUs that were on, mean over time.
        work, work_drawn
            Work of the jobs that ended, from the simulated times; and from the jobs as drawn [capacity min].
        identity_error
            U * C * T / work drawn - 1; checked.
        lost
            Capacity-minutes of attempts that ran out of memory.
        restarts, unserved
            Attempts that ran out of memory; jobs that never ended.

    Raises
    ------
    GpuPlannerError
        If the identity does not hold to rounding.

    Examples
    --------
    >>> from gpuplanner.lab.claims.twenty_jobs.arrange import arrange
    >>> from gpuplanner.lab.claims.twenty_jobs.draw import draw
    >>> from gpuplanner.lab.claims.twenty_jobs.serve import serve
    >>> jobs = draw(Design(), seed=0)
    >>> served = serve(jobs, arrange(jobs["asks_for"].to_list(), Design(), "static"), Design())
    >>> found = account(served, Design())
    >>> found["provisioned_slices"], found["identity_error"] < 1e-9
    (56.0, True)
    """
    capacity = capacities(design.board, speed)
    ended = served.attempts.filter(~pl.col("dies"), pl.col("end_min").is_not_null())
    dead = served.attempts.filter("dies", pl.col("end_min").is_not_null())
    completion_min = float(served.attempts["end_min"].max() or 0.0)  # type: ignore[arg-type]
    supply = _supply(served, design, speed, completion_min)
    done = _work(ended)
    drawn = float((ended["run_min"].to_numpy() * demand(ended, capacity)).sum())
    per_instance = _work(ended, ended["profile"].replace_strict(capacity, return_dtype=pl.Float64).to_numpy())
    provisioned = supply["capacity"] / completion_min
    used = done / supply["capacity"]
    error = used * provisioned * completion_min / drawn - 1.0
    if not abs(error) <= TOLERANCE:
        text = message(
            "account of a case", "utilisation * slices * time = work drawn", f"{error:.2e} off", "Report it."
        )
        raise GpuPlannerError(text)
    names = served.attempts["job_id"].n_unique()
    return {
        "completion_min": completion_min,
        "mean_jct_min": ended.select((pl.col("end_min") - _queued()).mean()).item(),
        "mean_wait_min": ended.select((pl.col("start_min") - _queued()).mean()).item(),
        "utilisation_provisioned": used,
        "utilisation_server": done / (design.gpus * whole_capacity(design.board, speed) * completion_min),
        "utilisation_instances": per_instance / supply["instances"],
        "provisioned_slices": provisioned,
        "gpus_on": supply["gpus"] / completion_min,
        "work": done,
        "work_drawn": drawn,
        "identity_error": error,
        "lost": _work(dead),
        "restarts": dead.height,
        "unserved": names - ended.height,
    }


def _queued() -> pl.Expr:
    """When the job was first queued: a restart has waited since then."""
    return pl.when(pl.col("attempt") == 1).then("submit_min").otherwise(0.0)


def _work(attempts: pl.DataFrame, capacity: np.ndarray | float = 1.0) -> float:
    """Rate times simulated time, over all attempts; as a share of capacity if that is given."""
    held = (attempts["end_min"] - attempts["start_min"]).to_numpy()
    return float((attempts["rate"].to_numpy() * held / capacity).sum())


def _supply(served: ServedBatch, design: Design, speed: str, until_min: float) -> dict[str, float]:
    """Minutes of capacity, of instances and of GPUs, from the queueing to completion."""
    capacity = capacities(design.board, speed)
    total = dict.fromkeys(("capacity", "instances", "gpus"), 0.0)
    until_s = LEAD_S + MINUTE_S * until_min
    for start_s, end_s, layout, state in served.run.states.select(
        "start_s", "end_s", "layout", "state"
    ).iter_rows():
        minutes = max(0.0, min(end_s, until_s) - max(start_s, LEAD_S)) / MINUTE_S
        if state != "off":
            held = parse_layout(layout)
            total["capacity"] += minutes * sum(n * capacity[profile] for profile, n in held.items())
            total["instances"] += minutes * sum(held.values())
            total["gpus"] += minutes
    return total
