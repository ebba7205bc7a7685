"""From sample paths to a decision: the quantile to plan at, and a few paths that stand for all."""

from __future__ import annotations

import numpy as np
import polars as pl

from gpuplanner.errors import SchemaError, message

QUANTILES = (0.05, 0.10, 0.25, 0.50, 0.60, 0.70, 0.75, 0.80, 0.85, 0.90, 0.95, 0.975, 0.99)


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
