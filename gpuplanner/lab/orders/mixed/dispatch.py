"""Serve jobs on a fleet of several types, one decision for each job: the loop in Python."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import polars as pl

from gpuplanner.errors import ScenarioError
from gpuplanner.lab.gangs.outcomes import gang_outcomes
from gpuplanner.lab.orders.mixed.machines import PLACES, Choice, Decide, Machines, opportunistic
from gpuplanner.lab.orders.mixed.mixed import GpuType, MixedJob, mixed_jobs, refuse_without_request
from gpuplanner.lab.orders.mixed.spells import placed_spells
from gpuplanner.names import resolve
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.simulate.slices.world import Floats


@dataclass(frozen=True)
class MixedRun:
    """What became of jobs on a fleet of several types.

    Parameters
    ----------
    outcomes : polars.DataFrame
        Table ``schemas.Outcomes`` in the order of the jobs, with the GPUs of the plan that was used and the node
        counted within its type, and ``queued_s``, ``gpu_type`` and ``tp``.
    places : polars.DataFrame
        One row for each node that a job held: ``job_id``, ``gpu_type``, ``node``, ``gpus``, ``start_s``,
        ``end_s``.
    decisions : int
        How often a policy was asked about a job.
    spells : polars.DataFrame
        As of :class:`~gpuplanner.simulate.GangRun`, with the GPUs that a job held each time, ``gpu_type``, and
        ``ended``: ``"finished"``, or if GPUs are given anew ``"resized"`` or ``"preempted"``.
    """

    outcomes: pl.DataFrame
    places: pl.DataFrame
    decisions: int
    spells: pl.DataFrame


def dispatch(
    jobs: pl.DataFrame,
    plans: pl.DataFrame,
    fleet: tuple[GpuType, ...],
    decide: Decide,
    *,
    policy: str,
    queue: str = "pass",
    replication: int = 0,
) -> MixedRun:
    """Serve jobs first come first served, each by a decision of its own; nothing is moved once it runs.

    Within one instant: ends, then arrivals, then decisions. A job that did not fit is looked at again when
    something was released.

    Parameters
    ----------
    jobs, plans : polars.DataFrame
        Tables ``MixedJobs`` and ``Plans``.
    fleet : tuple of GpuType
        What is installed.
    decide : callable
        :func:`heterogeneity_aware`, :func:`opportunistic` or one's own.
    policy : str
        Name written into the outcomes.
    queue : {"pass", "strict"}
        Whether jobs that fit pass one that does not.
    replication : int
        Number written into the outcomes.

    Returns
    -------
    MixedRun
        Outcomes and places.

    Raises
    ------
    SchemaError, ScenarioError
        If the input is not sound, or a job fits nowhere.

    Examples
    --------
    >>> from gpuplanner.lab.orders.mixed.machines import heterogeneity_aware
    >>> fleet = (GpuType("small", 1, 4, memory_gib=24.0), GpuType("large", 1, 4, memory_gib=80.0, speed=2.0))
    >>> jobs = pl.DataFrame({"job_id": ["a", "b"], "tenant": "t", "submit_s": [0.0, 1.0]})
    >>> plans = pl.DataFrame({"job_id": ["a", "b", "b"], "gpus": [4, 2, 4], "tp": 1,
    ...     "memory_gib": [20.0, 40.0, 20.0], "run_s": [100.0, 60.0, 40.0]})
    >>> run = dispatch(jobs, plans, fleet, heterogeneity_aware, policy="HAS")
    >>> run.outcomes.select("job_id", "gpu_type", "gpus", "end").rows()
    [('a', 'small', 4, 100.0), ('b', 'large', 2, 31.0)]
    """
    passing = resolve(queue, ("pass", "strict"), what="dispatch: queue", error=ScenarioError) == "pass"
    table, work = mixed_jobs(jobs, plans, fleet)
    if decide is opportunistic:
        refuse_without_request(work)
    machines = [Machines(kind) for kind in fleet]
    running: list[tuple[float, int]] = []
    waiting: list[MixedJob] = []
    starts, choices = [np.nan] * len(work), [Choice(job.options[0], {}) for job in work]
    arrived, decisions = 0, 0
    while running or arrived < len(work):
        now = min([job.submit_s for job in work[arrived : arrived + 1]] + [end for end, _ in running[:1]])
        first_new, released = len(waiting), False
        while running and running[0][0] <= now:
            ended = choices[heapq.heappop(running)[1]]
            machines[ended.option.kind].take(ended.nodes, -1)
            released = True
        while arrived < len(work) and work[arrived].submit_s <= now:
            waiting.append(work[arrived])
            arrived += 1
        # Those who waited before and found nothing would find nothing now, unless something was released.
        kept = [] if released else waiting[:first_new]
        for rank in range(len(kept), len(waiting)):
            job = waiting[rank]
            choice = None
            if passing or not kept:
                choice = decide(machines, job)
                decisions += 1
            if choice is None:
                kept.append(job)
                continue
            machines[choice.option.kind].take(choice.nodes)
            starts[job.number], choices[job.number] = now, choice
            heapq.heappush(running, (now + choice.option.run_s, job.number))
        waiting = kept
    return _run(table, fleet, np.array(starts), choices, policy, replication, decisions)


def _run(
    table: pl.DataFrame,
    fleet: tuple[GpuType, ...],
    starts: Floats,
    choices: list[Choice],
    policy: str,
    replication: int,
    decisions: int,
) -> MixedRun:
    """Tables of what was chosen."""
    ends = starts + [choice.option.run_s for choice in choices]
    names = [fleet[choice.option.kind].name for choice in choices]
    done = table.with_columns(
        gpus=pl.Series([choice.option.gpus for choice in choices]), profile=pl.lit(WHOLE_GPU)
    )
    found = {
        "start": starts,
        "end": ends,
        "queued": starts - np.maximum(table["submit_s"].to_numpy(), 0.0),
        "lost": np.zeros(len(starts)),
        "starts": np.ones(len(starts), np.int64),
        "node": np.array([next(iter(choice.nodes)) for choice in choices], np.int64),
    }
    chosen = table.select(
        "row", gpu_type=pl.Series(names), tp=pl.Series([choice.option.tp for choice in choices])
    )
    places = [
        (job_id, name, node, gpus, start, end)
        for job_id, name, choice, start, end in zip(
            table["job_id"], names, choices, starts, ends, strict=True
        )
        for node, gpus in choice.nodes.items()
    ]
    outcomes = gang_outcomes(done, found, policy, replication).with_columns(chosen.sort("row").drop("row"))
    held = pl.DataFrame(places, schema=PLACES, orient="row")
    return MixedRun(outcomes, held, decisions, placed_spells(table, held))
