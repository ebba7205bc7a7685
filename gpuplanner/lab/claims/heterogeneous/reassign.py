"""Jobs on a fleet of several types that are assigned anew in rounds, in the manner of Sia."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.lab.claims.heterogeneous.rounds import (
    Allocate,
    JobPhase,
    Round,
    RoundJob,
    run_rounds,
)
from gpuplanner.lab.gangs.outcomes import gang_outcomes
from gpuplanner.lab.orders.mixed.dispatch import MixedRun
from gpuplanner.lab.orders.mixed.mixed import GpuType, MixedJob, mixed_jobs
from gpuplanner.lab.orders.mixed.spells import placed_spells
from gpuplanner.schemas import WHOLE_GPU


@dataclass(frozen=True)
class Assignment:
    """Which option each job gets: at most one, within the GPUs of every type, with the largest sum of values.

    Parameters
    ----------
    value : array of float, shape (n_options,)
        Rate of the option relative to the best of its job, less the restart where it is a change.
    job, kind, gpus : array of int, shape (n_options,)
        Whose option it is, on which type, and how many GPUs it takes.
    capacity : tuple of int
        GPUs of each type.
    """

    value: NDArray[np.float64]
    job: NDArray[np.int64]
    kind: NDArray[np.int64]
    gpus: NDArray[np.int64]
    capacity: tuple[int, ...]


Solve = Callable[[Assignment], NDArray[np.bool_]]
"""Marks the options that are chosen."""


def by_assignment(solve: Solve) -> Allocate:
    """Make an allocation of a solver for the assignment, for example an integer programme.

    References
    ----------
    S. Jayaram Subramanya et al., Sia: heterogeneity-aware, goodput-optimized ML-cluster scheduling, SOSP 2023.
    """
    return functools.partial(_assign, solve=solve)


def _assign(question: Round, solve: Solve) -> list[int]:
    jobs = question.jobs
    value = []
    for job in jobs:
        mine = job.rates / job.rates.max() * job.discount(question.now, question.restart_s)
        if job.option >= 0:
            mine[job.option] = job.rates[job.option] / job.rates.max()
        value.append(mine)
    sizes = [len(mine) for mine in value]
    problem = Assignment(
        np.concatenate(value),
        np.repeat(np.arange(len(jobs)), sizes),
        np.concatenate([job.kinds for job in jobs]),
        np.concatenate([job.gpus for job in jobs]),
        question.capacity,
    )
    chosen = [-1] * len(jobs)
    first = np.cumsum(sizes) - sizes
    for place in np.flatnonzero(solve(problem)).tolist():
        chosen[problem.job[place]] = place - int(first[problem.job[place]])
    return chosen


def reassign(
    jobs: pl.DataFrame,
    plans: pl.DataFrame,
    fleet: tuple[GpuType, ...],
    allocate: Allocate,
    *,
    policy: str,
    round_s: float = 60.0,
    restart_s: float = 30.0,
    replication: int = 0,
) -> MixedRun:
    """Serve jobs in rounds that give every job one of its plans on one type, or none.

    Parameters
    ----------
    jobs, plans, fleet, policy, replication
        As for :func:`~gpuplanner.lab.orders.mixed.dispatch`.
    allocate : callable
        Such as :func:`by_assignment` makes.
    round_s : float
        Time between decisions [s].
    restart_s : float
        What a job that has run before loses when its GPUs change [s].

    Returns
    -------
    MixedRun
        With the number of GPUs and the type of the last run of each job; ``decisions`` counts jobs in rounds.

    Raises
    ------
    SchemaError, ScenarioError
        If the input is not sound, a job fits nowhere, or an allocation is not possible.

    Examples
    --------
    >>> def first_of_each(problem):
    ...     return np.append(True, np.diff(problem.job) > 0)
    >>> fleet = (GpuType("small", 1, 4, memory_gib=24.0), GpuType("large", 1, 4, memory_gib=80.0))
    >>> jobs = pl.DataFrame({"job_id": ["a", "b"], "tenant": "t", "submit_s": [0.0, 1.0]})
    >>> plans = pl.DataFrame({"job_id": ["a", "b"], "gpus": [2, 2], "tp": 1, "memory_gib": 20.0, "run_s": 90.0})
    >>> reassign(jobs, plans, fleet, by_assignment(first_of_each), policy="p").outcomes["end"].to_list()
    [90.0, 150.0]
    """
    table, ways = mixed_jobs(jobs, plans, fleet)
    work = [_round_job(job) for job in ways]
    asked = _Counting(allocate)
    places = run_rounds(work, fleet, asked, round_s=round_s, restart_s=restart_s)
    outcomes = _outcomes(table, work, places, policy, replication)
    return MixedRun(outcomes, places, asked.count, placed_spells(table, places, restart_s))


class _Counting:
    """An allocation that counts the jobs it was asked about."""

    def __init__(self, allocate: Allocate) -> None:
        self.allocate, self.count = allocate, 0

    def __call__(self, question: Round) -> list[int]:
        self.count += len(question.jobs)
        return self.allocate(question)


def _round_job(job: MixedJob) -> RoundJob:
    """The share of a job's work that is done each second is the reciprocal of its run time."""
    rates = np.array([1.0 / option.run_s for option in job.options])
    kinds, gpus = np.array([(option.kind, option.gpus) for option in job.options]).T
    return RoundJob(job.job_id, job.submit_s, kinds, gpus, (JobPhase(1.0, rates, rates),))


def _outcomes(
    table: pl.DataFrame, work: list[RoundJob], places: pl.DataFrame, policy: str, replication: int
) -> pl.DataFrame:
    """Outcomes by the last run of each job."""
    last = table.select("job_id", "row").join(
        places.group_by("job_id", maintain_order=True).agg(
            pl.col("gpu_type", "node").filter(pl.col("end_s") == pl.col("end_s").max()).first(),
            last_gpus=pl.col("gpus").filter(pl.col("end_s") == pl.col("end_s").max()).sum(),
        ),
        on="job_id",
        maintain_order="left",
    )
    gpus = last["last_gpus"].to_numpy()
    found = {
        "start": np.array([job.start for job in work]),
        "end": np.array([job.end for job in work]),
        "queued": np.array([job.queued for job in work]),
        "lost": np.array([job.lost_gpu_s for job in work]) / gpus,
        "starts": np.array([job.restarts + 1 for job in work]),
        "node": last["node"].to_numpy(),
    }
    done = table.with_columns(gpus=pl.Series(gpus), profile=pl.lit(WHOLE_GPU))
    outcomes = gang_outcomes(done, found, policy, replication)
    return outcomes.with_columns(gpu_type=last.sort("row")["gpu_type"])
