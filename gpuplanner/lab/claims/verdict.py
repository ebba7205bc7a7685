"""From figures to a verdict: what was claimed and what was measured, with its interval, side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl

DRAWS = 2000
"""Resamples of an interval over units."""
HOLDS, IN_PART, DOES_NOT_HOLD = "holds", "holds in part", "does not hold"
CANNOT_TELL, CANNOT_BE_TESTED_HERE, NOT_YET = "cannot tell", "cannot be tested here", "not yet testable"
VERDICTS = (HOLDS, IN_PART, DOES_NOT_HOLD, CANNOT_TELL, CANNOT_BE_TESTED_HERE, NOT_YET)
"""Every figure lies within what was claimed; some do; none does; the intervals are too wide; data are absent; there
is nothing yet that could be measured."""

FIGURES = {
    "figure": pl.String,
    "unit": pl.String,
    "claimed_low": pl.Float64,
    "claimed_high": pl.Float64,
    "measured": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "holds": pl.Boolean,
}


def figure(
    name: str,
    unit: str,
    measured: float | None,
    *,
    claimed: tuple[float | None, float | None],
    interval: tuple[float | None, float | None] | None = None,
) -> dict[str, Any]:
    """One figure beside the claim.

    Examples
    --------
    >>> figure("waits", "min", 3.0, claimed=(None, 4.0), interval=(2.5, 3.5))["holds"]
    True
    >>> figure("waits", "min", 3.0, claimed=(None, 2.0), interval=(2.5, 3.5))["holds"]
    False
    >>> figure("waits", "min", 3.0, claimed=(None, 3.2), interval=(2.5, 3.5))["holds"] is None
    True
    """
    low, high = (measured, measured) if interval is None else interval
    row = {"figure": name, "unit": unit, "claimed_low": claimed[0], "claimed_high": claimed[1]}
    return row | {"measured": measured, "low": low, "high": high, "holds": _lies_within(low, high, claimed)}


def figures_of(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Table of rows that :func:`figure` made."""
    return pl.DataFrame(rows, schema=FIGURES)


def no_figures() -> pl.DataFrame:
    """The table where nothing was measured."""
    return figures_of([])


def verdict_of(holds: Iterable[bool | None]) -> str:
    """Verdict that follows from the figures.

    Examples
    --------
    >>> verdict_of([True, True]), verdict_of([True, None]), verdict_of([False, None]), verdict_of([None])
    ('holds', 'holds in part', 'does not hold', 'cannot tell')
    """
    said = list(holds)
    if said and all(said):
        return HOLDS
    if any(said):
        return IN_PART
    return DOES_NOT_HOLD if False in said else CANNOT_TELL


def share_interval(hits: int, of: int) -> tuple[float, float] | None:
    """Interval of a share at 95 %, by Wilson; None of nothing.

    References
    ----------
    E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927).

    Examples
    --------
    >>> [round(end, 3) for end in share_interval(9, 10)]
    [0.596, 0.982]
    """
    if not of:
        return None
    z = 1.959964
    share, spread = hits / of, z * z / of
    middle = share + spread / 2
    half = z * math.sqrt(share * (1 - share) / of + spread / (4 * of))
    return (middle - half) / (1 + spread), (middle + half) / (1 + spread)


def share_over_units(hits: Sequence[int], of: Sequence[int], *, seed: int = 0) -> tuple[float, float]:
    """Interval of a share at 95 % where hits come in units that resemble each other, such as jobs or models.

    Whole units are drawn anew with replacement, and the share taken of all that is in them [1]_.

    References
    ----------
    .. [1] Field, Welsh, Bootstrapping clustered data, J. R. Statist. Soc. B 69(3), 2007.

    Examples
    --------
    >>> share_over_units([3, 3, 3], [4, 4, 4])
    (0.75, 0.75)
    >>> low, high = share_over_units([0, 4] * 10, [4, 4] * 10)
    >>> low < 0.35, high > 0.65
    (True, True)
    """
    pairs = np.array([(hit, whole) for hit, whole in zip(hits, of, strict=True) if whole], dtype=np.float64)
    drawn = np.random.default_rng(seed).multinomial(len(pairs), np.full(len(pairs), 1 / len(pairs)), DRAWS)
    sums = drawn @ pairs
    low, high = np.quantile(sums[:, 0] / sums[:, 1], (0.025, 0.975))
    return float(low), float(high)


def signed(value: float, decimals: int = 0) -> str:
    """A change in words, with its sign.

    Examples
    --------
    >>> signed(-2.84, 1), signed(3.0)
    ('−2.8', '+3')
    """
    return f"{value:+.{decimals}f}".replace("-", "−")


def _lies_within(
    low: float | None, high: float | None, claimed: tuple[float | None, float | None]
) -> bool | None:
    if low is None or high is None:
        return None
    least = -math.inf if claimed[0] is None else claimed[0]
    most = math.inf if claimed[1] is None else claimed[1]
    if least <= low and high <= most:
        return True
    return False if high < least or low > most else None
