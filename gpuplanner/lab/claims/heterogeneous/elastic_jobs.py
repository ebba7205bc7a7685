"""Elastic jobs, how they get on, and the same jobs with the size that their users chose."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import dataframely as dy
import numpy as np
import polars as pl

from gpuplanner.errors import ScenarioError, SchemaError, examples, message
from gpuplanner.lab.claims.heterogeneous.goodput import Goodput
from gpuplanner.schemas import WHOLE_GPU, check
from gpuplanner.simulate.fleet import Fleet
from gpuplanner.simulate.slices.world import Floats, Ints


class ElasticJobs(dy.Schema):
    """One elastic job."""

    job_id = dy.String(nullable=False, primary_key=True)
    tenant = dy.String(nullable=False)
    submit_s = dy.Float64(nullable=False)
    """From the start of the run."""
    job_class = dy.String(nullable=False)
    """Whose model it follows."""
    examples = dy.Float64(nullable=False, min_exclusive=0.0)
    """To be seen at the initial batch size."""
    gpus = dy.Int32(nullable=False, min=1)
    """Size that its user would choose."""


@dataclass(frozen=True)
class ElasticModel:
    """How jobs of a class get on.

    Parameters
    ----------
    goodput : Goodput
        Throughput and efficiency.
    phases : tuple of (float, float)
        Share of the work, and gradient noise scale in it [examples]. Whether it rises or falls is for the data
        of the job to say: in most measured jobs it rises, so that late phases can use more GPUs, not fewer.

    Examples
    --------
    >>> model = ElasticModel(Goodput((0.0, 0.01)), phases=((0.3, 100.0), (0.7, 2000.0)))
    >>> len(model.phases)
    2
    """

    goodput: Goodput
    phases: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        """Check the phases."""
        shares, noises = [share for share, _ in self.phases], [noise for _, noise in self.phases]
        whole = bool(shares) and min(shares) > 0 and math.isclose(sum(shares), 1.0, abs_tol=1e-9)
        if not whole or not min(noises) >= 0:
            expected = "shares above 0 that sum to 1, and noise scales not below 0"
            raise ScenarioError(message("elastic model: phases", expected, str(self.phases), "Change them."))


def rigid_jobs(jobs: pl.DataFrame, models: Mapping[str, ElasticModel], fleet: Fleet) -> pl.DataFrame:
    """The same jobs with the size that their users chose, for :func:`~gpuplanner.lab.gangs.schedule`.

    Each runs at the best batch for that size, on one node if it fits on one.

    Parameters
    ----------
    jobs, models, fleet
        As for :func:`schedule_elastic`.

    Returns
    -------
    polars.DataFrame
        Table ``Workload``.

    Raises
    ------
    SchemaError, ScenarioError
        If the input is not sound, or a job gets on with none of its GPUs.

    Examples
    --------
    >>> linear = ElasticModel(Goodput((0.0, 1.0)), phases=((1.0, np.inf),))
    >>> jobs = pl.DataFrame({"job_id": ["a"], "tenant": "t", "submit_s": 0.0, "job_class": "linear",
    ...     "examples": 800.0, "gpus": 4}, schema_overrides={"gpus": pl.Int32})
    >>> rigid_jobs(jobs, {"linear": linear}, Fleet("H100-80GB-SXM5", 1, 8))["run_s"].to_list()
    [200.0]
    """
    table = checked_elastic(jobs, models, fleet).sort("row")
    per_example = []
    for name, gpus in table.select("job_class", "gpus").unique(maintain_order=True).rows():
        rates = [float(rate[0]) for rate, _ in rates_of(models[name], fleet, np.array([gpus]))]
        shares = [share for share, _ in models[name].phases]
        parts = zip(shares, rates, strict=True)
        seconds = sum(share / rate for share, rate in parts) if min(rates) > 0 else None
        per_example.append((name, gpus, seconds))
    schema = {"job_class": pl.String, "gpus": pl.Int32, "seconds": pl.Float64}
    known = pl.DataFrame(per_example, schema=schema, orient="row")
    timed = table.join(known, on=["job_class", "gpus"], how="left", maintain_order="left")
    stuck = timed.filter(pl.col("seconds").is_null())["job_id"].to_list()
    if stuck:
        text = message(
            "elastic jobs: column 'gpus'", "sizes that some batch allows", examples(stuck), "Change them."
        )
        raise SchemaError(text)
    run_s = pl.col("examples") * pl.col("seconds")
    return timed.select("job_id", "tenant", "submit_s", "gpus", run_s=run_s, profile=pl.lit(WHOLE_GPU))


def checked_elastic(jobs: pl.DataFrame, models: Mapping[str, ElasticModel], fleet: Fleet) -> pl.DataFrame:
    """Jobs in order of arrival, with ``row``."""
    table = check(jobs, ElasticJobs, where="elastic jobs").with_row_index("row").sort("submit_s", "row")
    unknown = sorted(set(table["job_class"]) - set(models))
    if unknown:
        text = message(
            "elastic jobs: column 'job_class'",
            f"classes with a model: {examples(sorted(models))}",
            examples(unknown),
            "Add models.",
        )
        raise SchemaError(text)
    large = table.filter(pl.col("gpus") > fleet.gpus)["job_id"].to_list()
    if large:
        text = message(
            "elastic jobs: column 'gpus'",
            f"at most the {fleet.gpus} GPUs of the fleet",
            examples(large),
            "Drop them.",
        )
        raise ScenarioError(text)
    return table


def rates_of(model: ElasticModel, fleet: Fleet, sizes: Ints) -> list[tuple[Floats, Floats]]:
    """Goodput of every phase and size, on as few nodes as hold it, and on several."""
    found = []
    for _, noise in model.phases:
        best = functools.partial(model.goodput.best, noise_scale=noise)
        near = [best(gpus, one_node=gpus <= fleet.gpus_per_node) for gpus in sizes.tolist()]
        apart = [best(gpus, one_node=False) for gpus in sizes.tolist()]
        found.append((np.array(near), np.array(apart)))
    return found
