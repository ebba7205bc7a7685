"""Measures of forecast error: pure functions of what happened and what was said."""

from __future__ import annotations

import numpy as np


def mae(actual: np.ndarray, predicted: np.ndarray) -> float:
    """Mean absolute error, in the unit of the series.

    Examples
    --------
    >>> mae(np.array([1.0, 2.0]), np.array([2.0, 4.0]))
    1.5
    """
    return float(np.abs(actual - predicted).mean())


def seasonal_scale(history: np.ndarray, season: int) -> float:
    """Mean absolute error of the seasonal naive forecast within the history: the unit of MASE.

    Returns
    -------
    float
        NaN where the history repeats itself exactly or is not longer than a season, so that no error can be
        measured in this unit.

    References
    ----------
    Hyndman, Koehler, "Another look at measures of forecast accuracy", International Journal of Forecasting
    22(4), 2006, doi 10.1016/j.ijforecast.2006.03.001.

    Examples
    --------
    >>> seasonal_scale(np.array([1.0, 2.0, 3.0, 2.0]), 2)
    1.0
    """
    if len(history) <= season:
        return float("nan")
    scale = float(np.abs(history[season:] - history[:-season]).mean())
    return scale if scale > 0 else float("nan")


def smape(actual: np.ndarray, predicted: np.ndarray) -> float:
    """Symmetric mean absolute percentage error as a share from 0 to 2; two zeros count as no error.

    Examples
    --------
    >>> smape(np.array([0.0, 3.0]), np.array([0.0, 1.0]))
    0.5
    """
    size = np.abs(actual) + np.abs(predicted)
    error = 2 * np.abs(actual - predicted)
    return float(np.divide(error, size, out=np.zeros_like(size), where=size > 0).mean())


def pinball(actual: np.ndarray, predicted: np.ndarray, quantile: float) -> float:
    """Mean loss of a quantile forecast: what it costs to plan at that quantile.

    Examples
    --------
    >>> pinball(np.array([10.0, 10.0]), np.array([8.0, 12.0]), 0.75)
    1.0
    """
    short = actual - predicted
    return float(np.maximum(quantile * short, (quantile - 1) * short).mean())
