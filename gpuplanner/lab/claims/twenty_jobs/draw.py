"""Jobs of a design, drawn by seed. What is hidden from policies is drawn here and named so."""

from __future__ import annotations

import numpy as np
import polars as pl

from gpuplanner.lab.claims.twenty_jobs.design import Design, Range

JOBS, TELEMETRY = 0, 1
"""Streams of a seed: what jobs are, and what is seen of them, so that one does not move the other."""


def generator(seed: int, stream: int) -> np.random.Generator:
    """Generator of one stream of a seed."""
    return np.random.default_rng([seed, stream])


def draw(design: Design, seed: int) -> pl.DataFrame:
    """Draw the jobs of a design, in the order in which they are queued.

    Parameters
    ----------
    design : Design
        Groups and ranges.
    seed : int
        The same seed draws the same shares from other ranges (common random numbers).

    Returns
    -------
    polars.DataFrame, shape (n_jobs, 10)
        ``seed``, ``job_id``, ``kind``, ``asks_for``; and the truth that no policy may read: ``need``, ``fill``
        (share of the need kept busy), ``run_min`` (on an instance that is large enough), ``memory_gib`` (peak),
        ``peak_at_share`` (when), ``submit_min``, 0 for all.

    Examples
    --------
    >>> jobs = draw(Design(), seed=1)
    >>> jobs.height, jobs["run_min"].is_between(52, 59).all(), jobs.equals(draw(Design(), seed=1))
    (20, True, True)
    """
    rng = generator(seed, JOBS)
    groups = [group for group in design.groups for _ in range(group.jobs)]
    memory_gib = np.array([design.model.profile(group.need).memory_gib for group in groups])
    names = ("fill", "run_min", "memory_share", "peak_at_share")
    drawn = {name: within(getattr(design, name), rng.random(len(groups))) for name in names}
    jobs = pl.DataFrame(
        {
            "kind": [group.kind for group in groups],
            "asks_for": [group.asks_for for group in groups],
            "need": [group.need for group in groups],
            "fill": drawn["fill"],
            "run_min": drawn["run_min"],
            "memory_gib": drawn["memory_share"] * memory_gib,
            "peak_at_share": drawn["peak_at_share"],
            "submit_min": 0.0,
        }
    )[rng.permutation(len(groups))]
    width = len(str(len(groups)))
    names_in_order = [f"{number:0{width}d}" for number in range(1, len(groups) + 1)]
    return jobs.insert_column(0, pl.Series("job_id", names_in_order)).insert_column(
        0, pl.lit(seed).alias("seed")
    )


def within(span: Range, shares: np.ndarray) -> np.ndarray:
    """Values at shares of a range.

    Examples
    --------
    >>> within((10.0, 20.0), np.array([0.0, 0.25])).tolist()
    [10.0, 12.5]
    """
    low, high = span
    return low + (high - low) * shares
