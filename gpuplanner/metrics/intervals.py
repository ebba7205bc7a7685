"""How sure a mean over replications is, and the difference between two policies on the same jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuplanner.errors import SchemaError, message


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval.

    Parameters
    ----------
    mean : float
        Mean of the values.
    low, high : float or None
        Bounds of the interval; None where a single value says nothing about spread.
    replications : int
        Number of values.
    level : float
        Confidence level, such as 0.95.
    """

    mean: float
    low: float | None
    high: float | None
    replications: int
    level: float


@dataclass(frozen=True)
class PairedChange:
    """What a policy changes against a baseline, replication by replication.

    Parameters
    ----------
    difference : Interval
        Value minus baseline.
    ratio : float or None
        Mean value over mean baseline; None where the latter is 0.
    """

    difference: Interval
    ratio: float | None


def mean_interval(values: Sequence[float] | NDArray[np.float64], *, level: float = 0.95) -> Interval:
    """Student's t interval for the mean of independent values.

    Parameters
    ----------
    values : array of float, shape (n,)
        One value per replication.
    level : float
        Confidence level between 0 and 1.

    Returns
    -------
    Interval
        Of width 0 where all values are equal.

    Raises
    ------
    SchemaError
        If there are no values, or one is missing or infinite.

    Examples
    --------
    >>> found = mean_interval([10.0, 12.0, 14.0])
    >>> found.mean, round(found.low, 3), round(found.high, 3)
    (12.0, 7.032, 16.968)
    """
    sample = _finite(values)
    n, mean = len(sample), float(np.mean(sample))
    if n == 1:
        return Interval(mean, None, None, n, level)
    half = student_t((1 + level) / 2, n - 1) * float(np.std(sample, ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n, level)


def paired(
    baseline: Sequence[float] | NDArray[np.float64],
    values: Sequence[float] | NDArray[np.float64],
    *,
    level: float = 0.95,
) -> PairedChange:
    """Compare two policies that served the same jobs in every replication.

    The interval is that of the differences. With common random numbers it is far narrower than those of the
    two means, because what was a hard week for one policy was a hard week for the other.

    Parameters
    ----------
    baseline, values : array of float, shape (n,)
        One value per replication, in the same order.
    level : float
        Confidence level between 0 and 1.

    Raises
    ------
    SchemaError
        If the lengths differ, there are no values, or one is missing or infinite.

    Examples
    --------
    >>> found = paired([100.0, 140.0, 120.0], [50.0, 88.0, 66.0])
    >>> found.difference.mean, round(found.difference.low, 3), round(found.ratio, 3)
    (-52.0, -56.968, 0.567)
    """
    before, after = _finite(baseline), _finite(values)
    if len(before) != len(after):
        text = message(
            "paired values",
            "as many values as baseline values",
            f"{len(before)} and {len(after)}",
            "Run both policies on the same replications.",
        )
        raise SchemaError(text)
    reference = float(np.mean(before))
    ratio = float(np.mean(after)) / reference if reference else None
    return PairedChange(mean_interval(after - before, level=level), ratio)


def student_t(probability: float, degrees: int) -> float:
    """Quantile of Student's t distribution.

    The distribution function for whole degrees of freedom is a finite sum of powers of a cosine [1]_; it is
    inverted by bisection over the angle, to the precision of a float.

    Parameters
    ----------
    probability : float
        Between 0 and 1.
    degrees : int
        Degrees of freedom, at least 1.

    References
    ----------
    .. [1] M. Abramowitz, I. Stegun (eds.), "Handbook of Mathematical Functions", 1964, 26.7.3 and 26.7.4.

    Examples
    --------
    >>> round(student_t(0.975, 9), 3), round(student_t(0.95, 1), 3), student_t(0.5, 4)
    (2.262, 6.314, 0.0)
    """
    if not (0 < probability < 1 and degrees >= 1):
        text = message(
            "Student's t quantile",
            "a probability between 0 and 1 and at least 1 degree of freedom",
            f"{probability} and {degrees}",
            "Give a level between 0 and 1 and at least two values.",
        )
        raise SchemaError(text)
    wanted = abs(2 * probability - 1)
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _within(middle, degrees) < wanted else (low, middle)
    return math.copysign(math.tan(low) * math.sqrt(degrees), probability - 0.5) if wanted else 0.0


def _within(angle: float, degrees: int) -> float:
    """Probability that a t variable lies between -t and t, where t = sqrt(degrees) tan(angle)."""
    odd = degrees % 2
    cosine_squared = math.cos(angle) ** 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for power in range(odd, degrees - 1, 2):
        total += term
        term *= cosine_squared * (power + 1) / (power + 2)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def _finite(values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """The values as an array, after refusing what no mean can be taken of."""
    sample = np.array(values, dtype=np.float64)
    if sample.ndim != 1 or not len(sample) or not np.isfinite(sample).all():
        text = message(
            "values of replications",
            "at least one number, all finite",
            f"{sample.size} values, {int((~np.isfinite(sample)).sum())} of them missing",
            "Leave out measures that a replication does not have.",
        )
        raise SchemaError(text)
    return sample
