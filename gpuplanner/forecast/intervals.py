"""Split-conformal quantiles: what past forecasts missed by, scaled and pooled, added to the next one.

The errors of a model at all origins, of all series, divided by the spread of each series before the origin,
form one pool for each day of the horizon. A quantile of the pool, times the spread of a series, widens its
point forecast. Pooling pays: a few origins of one series are too few for a 5 % tail.
"""

from __future__ import annotations

import numpy as np

LEVELS = (0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95)
"""Quantiles of ``schemas.Forecast``."""


def conformal_quantiles(errors: np.ndarray, levels: tuple[float, ...] = LEVELS) -> np.ndarray:
    """Order statistics that hold a new error from the same pool at or below each level.

    Of n errors the upper levels take the ceil((n + 1) level)-th smallest, the lower ones the
    floor((n + 1) level)-th: the correction for a finite sample, away from the middle. Where the pool is too
    small for a level, its extreme stands in.

    Parameters
    ----------
    errors : numpy.ndarray, shape (n,)
        Past errors, actual - forecast. NaN are left out; none at all gives zeros.
    levels : tuple of float
        Levels between 0 and 1, ascending.

    Returns
    -------
    numpy.ndarray, shape (n_levels,)

    References
    ----------
    Lei et al., "Distribution-free predictive inference for regression", JASA 113(523), 2018, section 2.2,
    doi 10.1080/01621459.2017.1307116.

    Examples
    --------
    >>> conformal_quantiles(np.arange(1.0, 20.0), (0.05, 0.5, 0.95)).tolist()
    [1.0, 10.0, 19.0]
    """
    pool = np.sort(errors[~np.isnan(errors)], axis=None)
    if not len(pool):
        return np.zeros(len(levels))
    rank = (len(pool) + 1) * np.array(levels)
    middle = np.array(levels) == 0.5
    low, high = np.floor(rank + 1e-9), np.ceil(rank - 1e-9)
    below = np.clip(np.where(np.array(levels) > 0.5, high, low), 1, len(pool)).astype(int) - 1
    above = np.clip(np.where(middle, high, below + 1), 1, len(pool)).astype(int) - 1
    return np.asarray((pool[below] + pool[above]) / 2)


def scaled_errors(actual: np.ndarray, predicted: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Errors in units of the spread before each origin; NaN where there was none.

    Parameters
    ----------
    actual, predicted : numpy.ndarray, shape (n_series, n_origins, horizon)
    spread : numpy.ndarray, shape (n_series, n_origins)

    Returns
    -------
    numpy.ndarray, shape (n_series, n_origins, horizon)

    Examples
    --------
    >>> scaled_errors(np.array([[[3.0]], [[1.0]]]), np.zeros((2, 1, 1)), np.array([[2.0], [0.0]])).ravel()
    array([1.5, nan])
    """
    unit = np.where(spread > 0, spread, np.nan)[..., None]
    return np.asarray((actual - predicted) / unit)


def calibrate(errors: np.ndarray, bucket: int) -> np.ndarray:
    """Quantiles of the pool of scaled errors at each slot of the horizon.

    Parameters
    ----------
    errors : numpy.ndarray, shape (n_series, n_origins, horizon)
        From :func:`scaled_errors`.
    bucket : int
        Slots of the horizon that share a pool.

    Returns
    -------
    numpy.ndarray, shape (horizon, n_levels)

    Examples
    --------
    >>> calibrate(np.ones((2, 3, 4)), bucket=2).shape
    (4, 7)
    """
    horizon = errors.shape[-1]
    pools = [conformal_quantiles(errors[..., first : first + bucket]) for first in range(0, horizon, bucket)]
    return np.repeat(pools, bucket, axis=0)[:horizon]


def widen(mean: np.ndarray, offsets: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Quantiles around point forecasts: non-negative and in order.

    Parameters
    ----------
    mean : numpy.ndarray, shape (..., horizon)
    offsets : numpy.ndarray, shape (horizon, n_levels)
        From :func:`calibrate`.
    spread : numpy.ndarray, shape (...)

    Returns
    -------
    numpy.ndarray, shape (..., horizon, n_levels)

    Examples
    --------
    >>> widen(np.array([1.0]), np.array([[-2.0, 0.0, 1.0]]), np.array(2.0)).tolist()
    [[0.0, 1.0, 3.0]]
    """
    quantiles = mean[..., None] + offsets * spread[..., None, None]
    return np.maximum.accumulate(np.clip(quantiles, 0.0, None), axis=-1)


def left_out_quantiles(mean: np.ndarray, errors: np.ndarray, spread: np.ndarray, bucket: int) -> np.ndarray:
    """Quantiles at each origin from the errors at the other origins: what calibration has not seen.

    Parameters
    ----------
    mean, errors : numpy.ndarray, shape (n_series, n_origins, horizon)
    spread : numpy.ndarray, shape (n_series, n_origins)
    bucket : int
        As in :func:`calibrate`.

    Returns
    -------
    numpy.ndarray, shape (n_series, n_origins, horizon, n_levels)

    Examples
    --------
    >>> left_out_quantiles(np.ones((1, 3, 2)), np.zeros((1, 3, 2)), np.ones((1, 3)), bucket=2).shape
    (1, 3, 2, 7)
    """
    return np.stack(
        [
            widen(mean[:, left], calibrate(np.delete(errors, left, axis=1), bucket), spread[:, left])
            for left in range(mean.shape[1])
        ],
        axis=1,
    )
