"""Jobs for fleets of several types, and elastic jobs: drawn by seed, with the habits of users in them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from gpuplanner.lab.claims.heterogeneous.elastic_jobs import ElasticModel
from gpuplanner.lab.claims.heterogeneous.goodput import Goodput
from gpuplanner.lab.orders.mixed.mixed import GpuType

KINDS = (
    GpuType("80 GiB", 2, 8, 80.0, speed=2.0),
    GpuType("40 GiB", 3, 8, 40.0, speed=1.0),
    GpuType("24 GiB", 4, 4, 24.0, speed=0.5),
)
"""56 GPUs of three types."""
SIZES = (1, 2, 4, 8)
ELASTIC_JOBS = 160
ELASTIC_SPAN_S = 8 * 3600
STAGES = ((0.3, 500.0), (0.4, 3000.0), (0.3, 20_000.0))
"""Shares of the work, and noise scales that rise; read from the end they fall."""


def draw_mixed_jobs(seed: int, count: int, load: float) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Jobs with plans of 1, 2, 4 or 8 GPUs whose memory falls with tensor parallelism; users pick by habit.

    Examples
    --------
    >>> jobs, plans = draw_mixed_jobs(0, count=3, load=0.9)
    >>> jobs.height, plans.height
    (3, 21)
    """
    rng = np.random.default_rng(seed)
    memory, work = rng.choice([10.0, 30.0, 60.0], count, p=[0.5, 0.3, 0.2]), rng.lognormal(6.5, 1.2, count)
    rate = load * sum(kind.gpus * kind.speed for kind in KINDS) / work.mean()
    submit = np.cumsum(rng.exponential(1 / rate, count))
    plans = [
        (str(job), gpus, tp, memory[job] / tp, work[job] / gpus**0.9 * 1.05 ** (tp > 1))
        for job in range(count)
        for gpus in SIZES
        for tp in (1, 2)
        if tp <= gpus
    ]
    able = [[kind.name for kind in KINDS if kind.memory_gib >= need] for need in memory]
    jobs = pl.DataFrame(
        {
            "job_id": np.arange(count).astype(str),
            "tenant": "t",
            "submit_s": submit,
            "asked_type": [rng.choice(names) for names in able],
            "asked_gpus": rng.choice([1, 2, 4], count, p=[0.5, 0.25, 0.25]).astype(np.int32),
        }
    )
    schema = {
        "job_id": pl.String,
        "gpus": pl.Int32,
        "tp": pl.Int32,
        "memory_gib": pl.Float64,
        "run_s": pl.Float64,
    }
    return jobs, pl.DataFrame(plans, schema=schema, orient="row")


def draw_elastic(seed: int) -> pl.DataFrame:
    """Vision and language jobs over eight hours, with sizes by habit: table ``ElasticJobs``.

    Examples
    --------
    >>> draw_elastic(0)["job_class"].value_counts(sort=True).height
    2
    """
    rng, count = np.random.default_rng(seed), ELASTIC_JOBS
    name = rng.choice(["vision", "language"], count)
    submit = np.sort(rng.uniform(0, ELASTIC_SPAN_S, count))
    vision, language = rng.lognormal(14.5, 1.2, count), rng.lognormal(11.5, 1.2, count)
    gpus = rng.choice([1, 2, 4, 8, 16], count, p=[0.3, 0.2, 0.2, 0.2, 0.1]).astype(np.int32)
    return pl.DataFrame(
        {
            "job_id": np.arange(count).astype(str),
            "tenant": "t",
            "submit_s": submit,
            "job_class": name,
            "examples": np.where(name == "vision", vision, language),
            "gpus": gpus,
        }
    )


def elastic_models(*, rising: bool) -> dict[str, ElasticModel]:
    """How vision jobs, whose noise scale rises or falls, and language jobs get on.

    Examples
    --------
    >>> [noise for _, noise in elastic_models(rising=False)["vision"].phases]
    [20000.0, 3000.0, 500.0]
    """
    vision = Goodput((0.03, 0.002), (0.01, 0.001), (0.05, 0.002), 1.5, 128, 8192, 256, 2)
    language = Goodput((0.08, 0.02), (0.03, 0.002), (0.15, 0.003), 1.5, 12, 384, 12, 8)
    stages = STAGES if rising else STAGES[::-1]
    return {"vision": ElasticModel(vision, stages), "language": ElasticModel(language, ((1.0, 200.0),))}


def largest_useful(models: Mapping[str, ElasticModel]) -> dict[str, int]:
    """Most GPUs of one node at which a job of each class is still half as fast as with linear speed-up.

    Examples
    --------
    >>> largest_useful(elastic_models(rising=True))
    {'vision': 8, 'language': 8}
    """
    sizes = {}
    for name, model in models.items():
        noise = sum(share * phi for share, phi in model.phases)
        rates = [model.goodput.best(gpus, one_node=True, noise_scale=noise) for gpus in range(1, 9)]
        sizes[name] = max(gpus for gpus, rate in enumerate(rates, 1) if rate >= 0.5 * gpus * rates[0])
    return sizes
