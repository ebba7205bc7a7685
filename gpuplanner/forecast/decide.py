"""From sample paths to a decision: the quantile to plan at, and when the fleet runs out."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import polars as pl

from gpuplanner.errors import SchemaError, message

QUANTILES = (0.05, 0.10, 0.25, 0.50, 0.60, 0.70, 0.75, 0.80, 0.85, 0.90, 0.95, 0.975, 0.99)
WEEKS_IN_YEAR = 365.25 / 7
OWN_WEEKS = 12.0
"""After so many weeks the trend of the past counts as much as the assumption that there is none."""


def cost_curve(paths: np.ndarray, price: float) -> pl.DataFrame:
    """What planning at each quantile costs on average over sample paths, slot by slot.

    Parameters
    ----------
    paths : numpy.ndarray, shape (n_paths, n_slots)
        Demand [GPUs].
    price : float
        Price of a GPU-hour short, in prices of a GPU-hour planned, above 1.

    Returns
    -------
    polars.DataFrame
        ``quantile``, ``planned`` and ``short`` (mean GPUs planned for and lacking), ``cost`` (of both, in prices of a
        GPU-hour), ``best``: whether it is 1 - 1 / price, the quantile that costs least.

    References
    ----------
    Arrow, Harris, Marschak, "Optimal inventory policy", Econometrica 19(3), 1951 (the newsvendor's critical fractile).

    Examples
    --------
    >>> draws = np.random.default_rng(1).normal(100, 10, (2000, 1))
    >>> cost_curve(draws, 5.0).sort("cost")["quantile"][0]
    0.8
    """
    if not price > 1:
        text = message(
            "cost curve: price", "above 1: else nothing is worth planning", f"{price}", "Raise it."
        )
        raise SchemaError(text)
    best = 1 - 1 / price
    levels = sorted({*QUANTILES, round(best, 6)})
    plans = np.quantile(paths, levels, axis=0)
    short = np.array([np.maximum(paths - plan, 0.0).mean() for plan in plans])
    planned = plans.mean(axis=1)
    return pl.DataFrame(
        {
            "quantile": levels,
            "planned": planned,
            "short": short,
            "cost": planned + price * short,
            "best": [abs(level - best) < 1e-6 for level in levels],
        }
    )


def peak_walks(
    peaks: np.ndarray, *, weeks: int = 52, growth: float | None = None, paths: int = 4000, seed: int = 1
) -> np.ndarray:
    """Random walks of the weekly peak, see :func:`run_out`.

    Returns
    -------
    numpy.ndarray, shape (paths, weeks)

    Raises
    ------
    SchemaError
        If there are fewer than three weeks with demand.

    Examples
    --------
    >>> peak_walks(np.array([50.0, 60.0, 55.0]), weeks=8, paths=10).shape
    (10, 8)
    """
    last, drift, spread = _law_of_steps(peaks, growth)
    draws = np.random.default_rng(seed).normal(drift, spread, (paths, weeks))
    return np.asarray(np.exp(last + draws.cumsum(axis=1)))


def _law_of_steps(peaks: np.ndarray, growth: float | None) -> tuple[float, float, float]:
    """Logarithm of the last peak, and mean and standard deviation of its weekly steps."""
    logs = np.log(peaks[peaks > 0])
    if len(logs) < 3:
        text = message(
            "run-out", "three weeks with demand", f"{len(logs)} with demand", "Give a longer history."
        )
        raise SchemaError(text)
    steps = np.diff(logs)
    drift = steps.mean() * len(steps) / (len(steps) + OWN_WEEKS)
    if growth is not None:
        drift = float(np.log1p(growth)) / WEEKS_IN_YEAR
    return float(logs[-1]), float(drift), float(steps.std(ddof=1))


def run_out(
    peaks: np.ndarray,
    capacity: float,
    *,
    weeks: int = 52,
    growth: float | None = None,
    lead_weeks: int = 0,
    paths: int = 4000,
    seed: int = 1,
) -> pl.DataFrame:
    """How likely weekly peaks are to pass what there is, week by week.

    The logarithm of the peak is a random walk: steps are normal with the spread of the past, and drift with the
    growth that is assumed, else with that of the past, drawn towards none while weeks are few.

    Parameters
    ----------
    peaks : numpy.ndarray, shape (n,)
        Peaks of past weeks, at least 3, the last one last; weeks without demand are left out.
    capacity : float
        GPUs that there are.
    weeks : int
        Weeks ahead.
    growth : float, optional
        Growth a year that is assumed: 0.5 for half as much again.
    lead_weeks : int
        Weeks from an order to GPUs in service.
    paths, seed : int
        Random walks, and their seed.

    Returns
    -------
    polars.DataFrame
        ``week`` (1 is the next), ``q05``, ``q50``, ``q95`` (peak [GPUs]), ``over`` (probability that the peak of this
        week passes the capacity), ``run_out_by`` (that one of the weeks up to it does), ``order_now`` (whether the
        week lies within the lead time).

    Raises
    ------
    SchemaError
        If there are fewer than three weeks with demand, or the capacity is not above 0.

    Examples
    --------
    >>> table = run_out(np.array([50.0, 60.0, 55.0, 65.0]), 80.0, weeks=8)
    >>> table["run_out_by"].is_sorted(), table.height
    (True, 8)
    """
    last, drift, step = _law_of_steps(peaks, growth)
    if not capacity > 0:
        text = message("run-out", "a capacity above 0", f"{capacity}", "Say how many GPUs there are.")
        raise SchemaError(text)
    walks = peak_walks(peaks, weeks=weeks, growth=growth, paths=paths, seed=seed)
    low, middle, high = np.quantile(walks, (0.05, 0.5, 0.95), axis=0)
    week = np.arange(1, weeks + 1)
    spread = np.maximum(step * np.sqrt(week), 1e-12)
    far = (np.log(capacity) - last - drift * week) / spread
    return pl.DataFrame(
        {
            "week": week,
            "q05": low,
            "q50": middle,
            "q95": high,
            "over": [1 - NormalDist().cdf(float(one)) for one in far],
            "run_out_by": np.maximum.accumulate(walks > capacity, axis=1).mean(axis=0),
            "order_now": week <= lead_weeks,
        }
    )


def representatives(paths: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """A few paths that stand for all, and how many of all each stands for.

    One after the other, that path is taken which brings the others nearest to a path that was taken.

    Parameters
    ----------
    paths : numpy.ndarray, shape (n_paths, ...)
        Of one or of several series together.
    most : int
        Paths to keep, at least 1.

    Returns
    -------
    numbers : numpy.ndarray of int, shape (k,)
        Of the paths that were taken, in the order of taking.
    weights : numpy.ndarray, shape (k,)
        Share of all paths that each is nearest to; they add up to 1.

    References
    ----------
    Heitsch, Romisch, "Scenario reduction algorithms in stochastic programming", Computational Optimization and
    Applications 24, 2003 (fast forward selection), doi 10.1023/A:1021805924152.

    Examples
    --------
    >>> numbers, weights = representatives(np.array([[0.0], [0.1], [9.0], [0.2]]), 2)
    >>> numbers.tolist(), weights.tolist()
    ([1, 2], [0.75, 0.25])
    """
    flat = paths.reshape(len(paths), -1)
    apart = np.array([np.abs(flat - one).sum(axis=1) for one in flat])
    nearest = np.full(len(flat), np.inf)
    numbers: list[int] = []
    for _ in range(min(most, len(flat))):
        number = int(np.minimum(nearest, apart).sum(axis=1).argmin())
        if number in numbers:
            break
        numbers.append(number)
        nearest = np.minimum(nearest, apart[number])
    home = apart[numbers].argmin(axis=0)
    return np.array(numbers), np.bincount(home, minlength=len(numbers)) / len(flat)
