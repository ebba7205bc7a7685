"""The harder case: the same totals, but needs that the static layout lacks, and jobs that come one by one."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

from gpuplanner.errors import ScenarioError, message
from gpuplanner.forecast import ForecastResult, forecast_demand
from gpuplanner.lab.claims.twenty_jobs.design import Design
from gpuplanner.lab.claims.twenty_jobs.draw import JOBS, generator, within

SMALL, LARGE = ("1g.10gb", "2g.20gb", "3g.40gb"), ("4g.40gb", "7g.80gb")
PROFILES = (*SMALL, *LARGE)
MORNING = datetime(2026, 1, 5, 9, tzinfo=UTC)
"""When the batch of a day begins; a day of history goes from one morning to the next."""
HISTORY_SEEDS = 1_000_000
"""Seeds from here on draw the days of the history, which no evaluated seed shares."""


@dataclass(frozen=True)
class Harder:
    """Ranges of the harder case. Everybody asks for what they need, so that layouts alone make the difference.

    Parameters
    ----------
    design : Design
        Fleet, static layout, ranges of fill and memory; and the totals that are kept: its jobs and the compute
        slices that they need.
    large_jobs : int
        Jobs that need 4g or 7g, each as likely.
    arrivals_per_min : float
        Rate of the Poisson arrivals [1/min].
    run_median_min, run_sigma : float
        Lognormal run times on an instance that is large enough: median [min] and sigma.
    history_days : int
        Days with a batch each, from which is forecast.
    slot_min : float
        Length of a planning slot [min].
    horizon : int
        Slots planned ahead.

    Raises
    ------
    ScenarioError
        If a value makes no sense.
    """

    design: Design = field(default_factory=Design)
    large_jobs: int = 3
    arrivals_per_min: float = 0.4
    run_median_min: float = 55.5
    run_sigma: float = 0.8
    history_days: int = 28
    slot_min: float = 15.0
    horizon: int = 8

    def __post_init__(self) -> None:
        """Check the values."""
        positive = (self.arrivals_per_min, self.run_median_min, self.slot_min, self.horizon)
        if min(positive) <= 0 or self.run_sigma < 0 or not 0 <= self.large_jobs <= self.design.jobs:
            text = message(
                "harder case",
                "rates, times and slots above 0, large jobs among all jobs",
                str(self),
                "Mend it.",
            )
            raise ScenarioError(text)


def draw_harder(harder: Harder, seed: int) -> pl.DataFrame:
    """Draw the jobs of one batch, in order of arrival.

    Large needs are drawn first; the mix of the others is one of all that keep the totals, each as likely.

    Returns
    -------
    polars.DataFrame
        As of :func:`gpuplanner.lab.claims.twenty_jobs.draw.draw`; ``submit_min`` from the beginning of the batch.

    Examples
    --------
    >>> jobs = draw_harder(Harder(), seed=1)
    >>> jobs.height, jobs["need"].is_in(["4g.40gb", "7g.80gb"]).sum(), jobs["submit_min"].is_sorted()
    (20, 3, True)
    >>> sum(int(need[0]) for need in jobs["need"])
    43
    """
    rng, design = generator(seed, JOBS), harder.design
    large = rng.choice(LARGE, harder.large_jobs).tolist()
    slices = {name: design.model.profile(name).compute_slices for name in PROFILES}
    rest = design.needed_slices - sum(slices[name] for name in large)
    mixes = _mixes(design.jobs - len(large), rest, tuple(slices[name] for name in SMALL))
    mix = mixes[int(rng.integers(len(mixes)))]
    needs = rng.permutation([*large, *np.repeat(SMALL, mix)])
    n = len(needs)
    memory_gib = np.array([design.model.profile(need).memory_gib for need in needs.tolist()])
    width = len(str(n))
    return pl.DataFrame(
        {
            "seed": seed,
            "job_id": [f"{number:0{width}d}" for number in range(1, n + 1)],
            "kind": np.where(np.isin(needs, LARGE), "large", "small"),
            "asks_for": needs,
            "need": needs,
            "fill": within(design.fill, rng.random(n)),
            "run_min": harder.run_median_min * np.exp(harder.run_sigma * rng.standard_normal(n)),
            "memory_gib": within(design.memory_share, rng.random(n)) * memory_gib,
            "peak_at_share": within(design.peak_at_share, rng.random(n)),
            "submit_min": rng.exponential(1 / harder.arrivals_per_min, n).cumsum(),
        }
    )


@functools.lru_cache(maxsize=64)
def _mixes(jobs: int, slices: int, sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All counts of small jobs with the right totals."""
    counts = itertools.product(range(jobs + 1), repeat=len(sizes))
    found = [
        mix
        for mix in counts
        if sum(mix) == jobs and sum(n * size for n, size in zip(mix, sizes, strict=True)) == slices
    ]
    if not found:
        text = message(
            "harder case",
            "totals that small jobs can make up",
            f"{jobs} jobs, {slices} slices",
            "Change them.",
        )
        raise ScenarioError(text)
    return found


@functools.lru_cache(maxsize=16)
def forecast_day(harder: Harder) -> ForecastResult:
    """Forecast the instances wanted in the slots of the coming day, from the days of the history.

    Examples
    --------
    >>> found = forecast_day(Harder(history_days=7))
    >>> found.forecast["unique_id"].n_unique()
    5
    """
    slots = int(timedelta(days=1) / timedelta(minutes=harder.slot_min))
    days = [
        wanted(draw_harder(harder, HISTORY_SEEDS + day), slots, harder.slot_min)
        for day in range(harder.history_days)
    ]
    y = np.concatenate(days, axis=1)
    first = MORNING - timedelta(days=harder.history_days)
    times = [first + timedelta(minutes=harder.slot_min) * slot for slot in range(y.shape[1])]
    demand = pl.concat(
        pl.DataFrame({"ds": times, "y": row}).with_columns(
            unique_id=pl.lit(f"case/{profile}"), tenant=pl.lit("case"), profile=pl.lit(profile)
        )
        for profile, row in zip(PROFILES, y, strict=True)
    )
    return forecast_demand(demand, horizon=slots, step=slots, windows=4)


def forecast_of_day(harder: Harder) -> np.ndarray:
    """Mean instances forecast for each slot, shape (n_profiles, n_slots); zero beyond the day."""
    table = forecast_day(harder).forecast
    rows = [table.filter(unique_id=f"case/{profile}").sort("ds")["mean"].to_numpy() for profile in PROFILES]
    return np.pad(np.array(rows), ((0, 0), (0, 10 * harder.horizon)))


@functools.lru_cache(maxsize=16)
def past_runs_min(harder: Harder) -> np.ndarray:
    """Run times of all jobs of the history [min]."""
    days = range(harder.history_days)
    return np.concatenate([draw_harder(harder, HISTORY_SEEDS + day)["run_min"].to_numpy() for day in days])


def wanted(jobs: pl.DataFrame, slots: int, slot_min: float) -> np.ndarray:
    """Mean instances wanted of each profile in each slot if nobody waited, shape (n_profiles, slots).

    Examples
    --------
    >>> jobs = pl.DataFrame({"need": ["1g.10gb"], "submit_min": [5.0], "run_min": [10.0]})
    >>> wanted(jobs, 3, 10.0)[0].tolist()
    [0.5, 0.5, 0.0]
    """
    edges = slot_min * np.arange(slots + 1)
    start = jobs["submit_min"].to_numpy()[:, None]
    end = start + jobs["run_min"].to_numpy()[:, None]
    share = (np.minimum(end, edges[1:]) - np.maximum(start, edges[:-1])).clip(0.0) / slot_min
    needs = jobs["need"].to_numpy()
    return np.array([share[needs == profile].sum(axis=0) for profile in PROFILES])
