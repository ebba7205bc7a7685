"""Fleets of several types of GPU, and jobs that can run by one of several plans."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import dataframely as dy
import polars as pl

from gpuplanner.errors import ScenarioError, SchemaError, examples, message
from gpuplanner.schemas import check


@dataclass(frozen=True)
class GpuType:
    """Nodes with GPUs of one type.

    Parameters
    ----------
    name : str
        What users call it.
    nodes, gpus_per_node : int
        At least 1 each.
    memory_gib : float
        Memory of one GPU [GiB].
    speed : float
        Work per second of one GPU, relative to any reference.
    class_speeds : mapping of str to float
        The same for jobs of a class, where it differs.

    Examples
    --------
    >>> a100 = GpuType("A100-40GB", nodes=2, gpus_per_node=8, memory_gib=40.0, class_speeds={"vision": 0.7})
    >>> a100.gpus, a100.speed_of("vision"), a100.speed_of(None)
    (16, 0.7, 1.0)
    """

    name: str
    nodes: int
    gpus_per_node: int
    memory_gib: float
    speed: float = 1.0
    class_speeds: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the numbers."""
        rates = (self.memory_gib, self.speed, *self.class_speeds.values())
        if min(self.nodes, self.gpus_per_node) < 1 or not all(0 < rate < math.inf for rate in rates):
            text = message(
                f"GPU type {self.name!r}",
                "at least one node and one GPU on it, memory and speeds above 0",
                str(self),
                "Change it.",
            )
            raise ScenarioError(text)

    @property
    def gpus(self) -> int:
        """GPUs installed."""
        return self.nodes * self.gpus_per_node

    def speed_of(self, job_class: str | None) -> float:
        """Speed for jobs of a class."""
        return self.speed if job_class is None else self.class_speeds.get(job_class, self.speed)


class MixedJobs(dy.Schema):
    """One job for a fleet of several types."""

    job_id = dy.String(nullable=False, primary_key=True)
    tenant = dy.String(nullable=False)
    submit_s = dy.Float64(nullable=False)
    """From the start of the run."""
    job_class = dy.String(nullable=True)
    """For speeds that depend on it."""
    asked_type = dy.String(nullable=True)
    """Type that its user would pick."""
    asked_gpus = dy.Int32(nullable=True, min=1)
    """GPUs that its user would pick; one of its plans has as many."""


class Plans(dy.Schema):
    """One way to run a job."""

    job_id = dy.String(nullable=False)
    gpus = dy.Int32(nullable=False, min=1)
    tp = dy.Int32(nullable=False, min=1)
    """Tensor-parallel width."""
    memory_gib = dy.Float64(nullable=False, min=0.0)
    """Memory that every one of its GPUs needs."""
    run_s = dy.Float64(nullable=False, min_exclusive=0.0)
    """On GPUs of speed 1."""


class PlanOption(NamedTuple):
    """One plan of a job on one type: number of the type in the fleet, the plan, and the run time there [s]."""

    kind: int
    gpus: int
    tp: int
    run_s: float


@dataclass(frozen=True)
class MixedJob:
    """One job, with all that it could run on.

    - ``number``: In order of arrival.
    - ``job_id``: Its identity.
    - ``submit_s``: Not below 0 [s].
    - ``options``: Plans by fewest GPUs, then least tensor parallelism; for each the types with enough memory, the
      smallest first, then the fastest.
    - ``asked``: What its user would pick.
    """

    number: int
    job_id: str
    submit_s: float
    options: tuple[PlanOption, ...]
    asked: PlanOption | None


def mixed_jobs(
    jobs: pl.DataFrame, plans: pl.DataFrame, fleet: tuple[GpuType, ...]
) -> tuple[pl.DataFrame, list[MixedJob]]:
    """Check jobs and plans against a fleet; return the table in order of arrival, and every job's options."""
    names = [kind.name for kind in fleet]
    if not fleet or len(set(names)) < len(names):
        raise ScenarioError(message("fleet", "at least one type, each once", str(names), "Change it."))
    table = check(jobs, MixedJobs, where="jobs to schedule").with_row_index("row").sort("submit_s", "row")
    rows = _options(table, check(plans, Plans, where="plans"), fleet).rows()
    ways = {
        number: [PlanOption(*row[1:]) for row in mine] for number, mine in groupby(rows, key=itemgetter(0))
    }
    asked = table.select("submit_s", "job_id", "asked_type", "asked_gpus").rows()
    found = []
    for number, (submit, job_id, name, gpus) in enumerate(asked):
        mine = tuple(ways.get(number, ()))
        picked = (way for way in mine if way.gpus == gpus and names[way.kind] == name)
        found.append(MixedJob(number, job_id, max(submit, 0.0), mine, next(picked, None)))
    homeless = [job.job_id for job in found if not job.options]
    if homeless:
        text = message(
            "jobs to schedule",
            "a plan for every job that a type has memory and GPUs for",
            f"{len(homeless)} without: {examples(homeless)}",
            "Give them more plans, or drop them.",
        )
        raise ScenarioError(text)
    return table, found


def _options(jobs: pl.DataFrame, plans: pl.DataFrame, fleet: tuple[GpuType, ...]) -> pl.DataFrame:
    """All plans on all types that hold them, in the order of :class:`MixedJob`."""
    classes = jobs["job_class"].unique().to_list()
    speeds = pl.DataFrame(
        [
            (name, number, kind.memory_gib, kind.gpus, kind.speed_of(name))
            for name in classes
            for number, kind in enumerate(fleet)
        ],
        schema={
            "job_class": pl.String,
            "kind": pl.Int64,
            "held_gib": pl.Float64,
            "most": pl.Int64,
            "speed": pl.Float64,
        },
        orient="row",
    )
    return (
        plans.with_row_index("plan")
        .join(jobs.select("job_id", "job_class").with_row_index("number"), on="job_id")
        .join(speeds, on="job_class", nulls_equal=True)
        .filter(pl.col("memory_gib") <= pl.col("held_gib"), pl.col("gpus") <= pl.col("most"))
        .sort("number", "gpus", "tp", "plan", "held_gib", -pl.col("speed"), "kind")
        .select("number", "kind", "gpus", "tp", pl.col("run_s") / pl.col("speed"))
    )


def refuse_without_request(jobs: list[MixedJob]) -> None:
    """Raise unless every user picked a type and a size that hold the job."""
    vague = [job.job_id for job in jobs if job.asked is None]
    if vague:
        text = message(
            "jobs to schedule: columns 'asked_type' and 'asked_gpus'",
            "a type of the fleet with memory for one of the job's plans, and the GPUs of that plan",
            f"{len(vague)} others: {examples(vague)}",
            "Fill them.",
        )
        raise SchemaError(text)
