"""Peaks of a few complete days: how likely the days to come are to pass them, and by how much."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib import resources
from typing import TypeAlias

import numpy as np
import polars as pl

from gpuplanner.errors import SchemaError, message

FEWEST_DAYS = 2
"""One day says nothing of the next."""
RISING = 0.05
"""So seldom would days in no order rise as clearly as these did: then growth shows."""
NUMBERS = {"n": pl.Int32, "m": pl.Int32, "exceeded": pl.Float64, "quantile": pl.Float64, "ratio": pl.Float64}

Peaks: TypeAlias = Sequence[float] | np.ndarray


@functools.cache
def peak_excess() -> pl.DataFrame:
    """The shipped table of how far the days to come passed the largest of those before, on public traces.

    Examples
    --------
    >>> peak_excess().filter(n=10, m=28, quantile=0.5)["ratio"][0] > 1
    True
    """
    path = resources.files("gpuplanner.catalog") / "facts" / "peak_excess.csv"
    rows = pl.read_csv(path.read_bytes(), infer_schema=False)
    return rows.with_columns(pl.col(name).cast(dtype) for name, dtype in NUMBERS.items())


def daily_peaks(begin: np.ndarray, end: np.ndarray, size: np.ndarray, days: int) -> np.ndarray:
    """Most that was held at once in each of so many whole days, exactly.

    Examples
    --------
    >>> daily_peaks(np.array([-1.0, 0.2, 0.5]), np.array([0.1, 0.5, 1.5]), np.array([2.0, 3.0, 4.0]), 3).tolist()
    [4.0, 4.0, 0.0]
    """
    time = np.concatenate([begin, end, np.arange(days, dtype=float)])
    change = np.concatenate([size, -np.asarray(size, dtype=float), np.zeros(days)])
    order = np.lexsort((change, time))  # what ends makes room for what begins
    time, held = time[order], change[order].cumsum()
    # The level at an instant is that after its last change; so is that at midnight, which is in the list.
    last = np.append(time[1:] != time[:-1], True)
    time, held = time[last], held[last]
    within = (time >= 0) & (time < days)
    peaks = np.zeros(days)
    np.maximum.at(peaks, time[within].astype(np.int64), held[within])
    return peaks


def chance_of_more(n: int, m: int) -> float:
    """Probability that the largest of the next days is above the largest of those seen.

    If days are exchangeable, the largest of all `n` + `m` is as likely to be any of them, so it is one of the `m` to
    come with probability m / (n + m). Nothing is assumed of how peaks are spread.

    Examples
    --------
    >>> [round(chance_of_more(10, ahead), 2) for ahead in (1, 7, 28)]
    [0.09, 0.41, 0.74]
    """
    return m / (n + m)


def exceed_chance(
    daily_peaks: Peaks, level: float, days_ahead: int, *, fleet: float | None = None
) -> float | None:
    """Probability that demand passes a level on at least one of the days ahead, from daily peaks alone.

    The chance that the largest peak is passed at all follows from counting (:func:`chance_of_more`); by how much, from
    public traces (:func:`peak_excess`). Between their days and lengths the table is read on straight lines; more days
    than it has are read as its most, and longer spans as so many of its longest, which is on the safe side.

    References
    ----------
    David, Nagaraja, "Order Statistics", 3rd edition, Wiley 2003, section 7.3 (distribution-free prediction).

    Examples
    --------
    >>> week = [30, 22, 41, 35, 38, 12, 9]
    >>> exceed_chance(week, 41, 7)
    0.5
    >>> exceed_chance(week, 82, 7) < 0.25
    True
    >>> exceed_chance(week, 82, 7, fleet=41) is None
    True
    """
    peaks = _checked(daily_peaks, days_ahead)
    if unknown_because(peaks, fleet=fleet) is not None:
        return None
    n, largest = len(peaks), float(peaks.max())
    above = int((peaks > level).sum())
    if above:
        # The largest above + 1 of all days would have to be among those seen.
        rank = np.arange(min(above + 1, n))
        return float(1 - np.prod((n - rank) / (n + days_ahead - rank))) if above < n else 1.0
    return float(_excess(n, days_ahead, np.array([level / largest]))[0])


def level_for(
    daily_peaks: Peaks, days_ahead: int, chance: float = 0.10, *, fleet: float | None = None
) -> float | None:
    """The level that demand passes on one of the days ahead with no more than a given chance.

    Examples
    --------
    >>> week = [30, 22, 41, 35, 38, 12, 9]
    >>> level = level_for(week, 28)
    >>> level > 2 * max(week), exceed_chance(week, level, 28) <= 0.1
    (True, True)
    >>> level_for(week[:1], 28) is None
    True
    """
    if not 0 < chance < 1:
        text = message("peaks: chance", "above 0 and below 1", f"{chance}", "Give for example 0.1.")
        raise SchemaError(text)
    peaks = _checked(daily_peaks, days_ahead)
    if unknown_because(peaks, fleet=fleet) is not None:
        return None
    known = peak_excess()["ratio"].to_numpy()
    ratios = np.unique(np.concatenate([np.geomspace(1.0, known.max(), 2000), known]))
    enough = _excess(len(peaks), days_ahead, ratios) <= chance
    return float(ratios[enough.argmax()] * peaks.max()) if enough.any() else None


def unknown_because(daily_peaks: Peaks, *, fleet: float | None = None) -> str | None:
    """Why daily peaks say nothing of the days to come; None where they do.

    Growth shows where days as they came rise more clearly than one order in twenty of them would (Mann-Kendall, one
    side); three days or fewer cannot show it.

    Examples
    --------
    >>> unknown_because([3, 5, 6, 9, 12, 13])
    'peaks rise from day to day'
    >>> unknown_because([13, 5, 9, 12, 3, 6], fleet=13)
    'peaks touch the fleet'
    """
    peaks = np.asarray(daily_peaks, dtype=float)
    if len(peaks) < FEWEST_DAYS:
        return f"fewer than {FEWEST_DAYS} complete days"
    if not peaks.any():
        return "nothing was held"
    if fleet is not None and peaks.max() >= fleet:
        return "peaks touch the fleet"
    return "peaks rise from day to day" if _rising(peaks) <= RISING else None


def _checked(daily_peaks: Peaks, days_ahead: int) -> np.ndarray:
    peaks = np.asarray(daily_peaks, dtype=float)
    wrong = int((~(peaks >= 0)).sum())
    if wrong or days_ahead < 1:
        text = message(
            "peaks",
            "peaks of 0 and more, and one day ahead or more",
            f"{wrong} other peaks, {days_ahead} days ahead",
            "Leave incomplete days out.",
        )
        raise SchemaError(text)
    return peaks


def _rising(peaks: np.ndarray) -> float:
    """Probability that days in no order rise as clearly as these: share of orders with as few falls, ties as half."""
    days = len(peaks)
    later = np.triu_indices(days, 1)
    signs = np.sign(peaks[later[1]] - peaks[later[0]])
    falls = int(np.ceil((signs < 0).sum() + 0.5 * (signs == 0).sum()))
    # Orders of one more day by their number of falls: it may pass none to all of those before.
    shares = np.ones(1)
    for day in range(2, days + 1):
        shares = np.convolve(shares, np.full(day, 1 / day))
    return float(shares[: falls + 1].sum())


def _excess(n: int, m: int, ratios: np.ndarray) -> np.ndarray:
    """Chance that the largest of `m` days is above so many times the largest of `n`, for ratios from 1 on."""
    seen, ahead = (peak_excess()[name].unique().sort().to_numpy() for name in ("n", "m"))
    passed = np.zeros_like(ratios)
    for days, weight in _between(seen, n):
        for length, share in _between(ahead, m):
            passed += weight * share * _passed(days, length, ratios)
    # A longer span is so many of the longest known, each of which may pass the level.
    longest = int(ahead[-1])
    passed *= chance_of_more(n, min(m, longest)) * max(m / longest, 1.0)
    return np.asarray(np.minimum(passed, chance_of_more(n, m)))


def _between(known: np.ndarray, wanted: int) -> list[tuple[int, float]]:
    """The two known lengths around one, with their weights; the nearest where there are none."""
    at = float(np.interp(np.log(wanted), np.log(known), np.arange(len(known))))
    low = int(at)
    return [(int(known[low]), 1 - (at - low)), (int(known[min(low + 1, len(known) - 1)]), at - low)]


@functools.cache
def _curve(n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of ratios, and the share of the excesses above each."""
    rows = peak_excess().filter(n=n, m=m).sort("quantile")
    ratio = np.maximum.accumulate(np.concatenate([[1.0], rows["ratio"].to_numpy()]))
    return np.log(ratio), 1 - np.concatenate([[0.0], rows["quantile"].to_numpy()])


def _passed(n: int, m: int, ratios: np.ndarray) -> np.ndarray:
    """Share of the excesses above each ratio; beyond the largest quantile that of it, as no more is known."""
    return np.asarray(np.interp(np.log(ratios), *_curve(n, m)))
