"""Serve elastic jobs, which grow and shrink in rounds by their goodput."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.errors import ScenarioError, message
from gpuplanner.lab.claims.heterogeneous.allocation import by_power_mean
from gpuplanner.lab.claims.heterogeneous.elastic_jobs import ElasticModel, checked_elastic, rates_of
from gpuplanner.lab.claims.heterogeneous.rounds import Allocate, JobPhase, RoundJob, run_rounds
from gpuplanner.lab.gangs.outcomes import gang_outcomes
from gpuplanner.lab.orders.mixed.mixed import GpuType
from gpuplanner.lab.orders.mixed.spells import placed_spells
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.simulate.fleet import Fleet
from gpuplanner.simulate.slices.world import Floats, Ints


@dataclass(frozen=True)
class ElasticRun:
    """What became of elastic jobs.

    Parameters
    ----------
    outcomes : polars.DataFrame
        Table ``schemas.Outcomes`` in the order of the jobs; ``gpus`` is what the user chose, ``preemptions``
        counts restarts with other GPUs, and ``gpu_s`` is what was held [GPU s].
    places : polars.DataFrame
        ``job_id``, ``gpu_type``, ``node``, ``gpus``, ``start_s``, ``end_s``: who held what.
    spells : polars.DataFrame
        As of :class:`~gpuplanner.simulate.GangRun`, with the GPUs that a job held each time, ``gpu_type``, and
        ``ended``: ``"finished"``, ``"resized"`` or ``"preempted"``.
    """

    outcomes: pl.DataFrame
    places: pl.DataFrame
    spells: pl.DataFrame


def schedule_elastic(
    jobs: pl.DataFrame,
    models: Mapping[str, ElasticModel],
    fleet: Fleet,
    *,
    policy: str,
    allocate: Allocate | None = None,
    round_s: float = 60.0,
    restart_s: float = 30.0,
    replication: int = 0,
) -> ElasticRun:
    """Serve elastic jobs in rounds.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``ElasticJobs``.
    models : mapping of str to ElasticModel
        By class of job.
    fleet : Fleet
        What is installed, all of it as whole GPUs.
    policy : str
        Name written into the outcomes.
    allocate : callable
        Who gets how many GPUs; :func:`by_power_mean` unless given.
    round_s : float
        Time between decisions [s].
    restart_s : float
        What a running job loses when its GPUs change, and a stopped one when it goes on [s].
    replication : int
        Number written into the outcomes.

    Returns
    -------
    ElasticRun
        Outcomes and places.

    Raises
    ------
    SchemaError, ScenarioError
        If the input is not sound, or a job gets on with no number of GPUs.

    References
    ----------
    A. Qiao et al., Pollux, OSDI 2021: rounds of 60 s, and 30 s for a restart in its simulator.

    Examples
    --------
    >>> from gpuplanner.lab.claims.heterogeneous import Goodput
    >>> linear = ElasticModel(Goodput((0.0, 1.0)), phases=((1.0, np.inf),))
    >>> jobs = pl.DataFrame({"job_id": ["a"], "tenant": "t", "submit_s": 0.0, "job_class": "linear",
    ...     "examples": 800.0, "gpus": 1}, schema_overrides={"gpus": pl.Int32})
    >>> fleet = Fleet("H100-80GB-SXM5", nodes=1, gpus_per_node=8)
    >>> schedule_elastic(jobs, {"linear": linear}, fleet, policy="elastic").outcomes["end"].to_list()
    [100.0]
    """
    table = checked_elastic(jobs, models, fleet)
    sizes = _sizes(fleet)
    rates = {name: rates_of(model, fleet, sizes) for name, model in models.items()}
    work = [_job(row, models, rates, sizes) for row in table.iter_rows(named=True)]
    kind = GpuType(fleet.model.name, fleet.nodes, fleet.gpus_per_node, memory_gib=1.0)
    places = run_rounds(work, (kind,), allocate or by_power_mean(), round_s=round_s, restart_s=restart_s)
    outcomes = _outcomes(table, work, places, policy, replication)
    return ElasticRun(outcomes, places, placed_spells(table, places, restart_s))


def _sizes(fleet: Fleet) -> Ints:
    """Numbers of GPUs that a job may get: all up to a node, then whole nodes."""
    within = np.arange(1, fleet.gpus_per_node + 1)
    return np.concatenate([within, fleet.gpus_per_node * np.arange(2, fleet.nodes + 1)])


def _job(
    row: dict[str, Any],
    models: Mapping[str, ElasticModel],
    rates: Mapping[str, list[tuple[Floats, Floats]]],
    sizes: Ints,
) -> RoundJob:
    """One job with its phases."""
    name = row["job_class"]
    stages = tuple(
        JobPhase(row["examples"] * share, near, apart)
        for (share, _), (near, apart) in zip(models[name].phases, rates[name], strict=True)
    )
    if any(not (stage.rates > 0).any() for stage in stages):
        text = message(
            f"elastic job {row['job_id']!r}",
            "a number of GPUs with which it gets on",
            "none",
            "Mend its model.",
        )
        raise ScenarioError(text)
    return RoundJob(row["job_id"], max(row["submit_s"], 0.0), np.zeros(len(sizes), np.int64), sizes, stages)


def _outcomes(
    table: pl.DataFrame, work: list[RoundJob], places: pl.DataFrame, policy: str, replication: int
) -> pl.DataFrame:
    """Outcomes of all jobs, and what they held."""
    gpus = table["gpus"].to_numpy()
    span = pl.col("end_s") - pl.col("start_s")
    held = places.group_by("job_id").agg(gpu_s=(span * pl.col("gpus")).sum())
    found = {
        "start": np.array([job.start for job in work]),
        "end": np.array([job.end for job in work]),
        "queued": np.array([job.queued for job in work]),
        "lost": np.array([job.lost_gpu_s for job in work]) / gpus,
        "starts": np.array([job.restarts + 1 for job in work]),
        "node": np.zeros(len(work), np.int64),
    }
    outcomes = gang_outcomes(table.with_columns(profile=pl.lit(WHOLE_GPU)), found, policy, replication)
    return outcomes.with_columns(node=pl.lit(None, pl.Int32)).join(
        held, on="job_id", how="left", maintain_order="left"
    )
