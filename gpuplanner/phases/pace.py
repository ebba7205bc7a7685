"""At what pace events come, when some are missed, some belong to others, and readings are uneven."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

REGULAR_BELOW = 0.15
"""Coefficient of variation of the gaps up to which events count as periodic."""
CORRELATED_FROM = 0.3
"""Autocorrelation from which a signal counts as periodic."""
NEARLY = 0.9
"""Share of the highest peak from which another stands for the same period."""
NEAR = 0.08
"""Share of the period by which an event may be early or late."""
MOST_MISSED = 2
"""Events in a row that may be missing."""
EVEN_BELOW = 0.05
"""Coefficient of variation of gaps without any event missed or strange among them, from three events on."""
BY_CHANCE = 0.02
"""Share of sets of events at random that seem to have a pace, of four events or more."""
_CHANCE_AT_NONE, _CHANCE_BY_EVENT = -1.4, 0.2
"""What the reckoning of :func:`find_pace` leaves out, on the scale of logs: the more events, the more ways a chain can
go on. From 1,500 sets at random of 3 to 28 events each; ``benchmarks/phases.py`` measures what it comes to."""
FEWEST_EVENTS = 3
"""Events from which there is a pace."""
REACH = 6
"""How many events on from a given one are tried as its successor."""


@dataclass(frozen=True)
class Pace:
    """Events that come at one distance.

    - ``period_s``: Distance, in seconds.
    - ``members``: Positions of the events that keep the pace.
    - ``spread``: Coefficient of variation of the distances, missed events allowed for.
    - ``log_chance``: Log of the chance that as many events at random have so regular a chain.
    """

    period_s: float
    members: tuple[int, ...]
    spread: float
    log_chance: float = field(default=0.0, repr=False)


def find_pace(times_s: np.ndarray, *, grain_s: float = 1.0) -> Pace | None:
    """Find the pace that events keep, if it is more than chance.

    Each distance between an event and one of the next few is tried as the period, and the events are followed
    from one to the next, as a fold of the time axis would do, but with a slow drift allowed. The pace is
    the chain least likely to arise from as many events at random: each link multiplies that by the chance that
    one falls as near to its due time as the worst link of the chain did, and every chain tried is a chance more.
    The instants need not lie on a grid.

    Examples
    --------
    >>> find_pace(np.array([0.0, 60.0, 75.0, 120.0, 180.0, 300.0]))
    Pace(period_s=60.0, members=(0, 1, 3, 4, 5), spread=0.0)
    >>> find_pace(np.array([0.0, 60.0, 75.0, 240.0])) is None
    True
    """
    n = len(times_s)
    periods = _periods(times_s)
    if n < FEWEST_EVENTS or not periods:
        return None
    rate = n / (times_s[-1] - times_s[0])
    found: tuple[float, list[int], np.ndarray] | None = None
    for period in periods:
        for first in range(min(n, REACH)):
            chain, steps = _chain(times_s, first, period)
            if len(chain) < FEWEST_EVENTS:
                continue
            single = np.diff(times_s[chain]) / np.array(steps)
            worst = max(float(np.abs(single - np.median(single)).max()), grain_s / 2)
            chances = np.minimum(1.0, np.array(steps) * 2 * worst * rate)
            expected = float(np.log(chances).sum() - np.log(chances).max())  # one link sets the period
            if found is None or expected < found[0]:
                found = expected, chain, single
    if found is None:
        return None
    expected, chain, single = found
    spread = float(single.std() / single.mean())
    expected += math.log(len(periods) * min(n, REACH)) + _CHANCE_AT_NONE + _CHANCE_BY_EVENT * n
    missing = np.ptp(np.diff(times_s)) > single.mean() / 2
    even = len(chain) == n and spread < EVEN_BELOW and not (missing and n == FEWEST_EVENTS)
    if spread >= REGULAR_BELOW or (expected >= math.log(BY_CHANCE) and not even):
        return None
    return Pace(float(np.median(single)), tuple(chain), spread, expected)


def find_paces(
    times_s: np.ndarray, kinds: Sequence[np.ndarray] = (), *, grain_s: float = 1.0, most: int = 2
) -> list[Pace]:
    """Find the paces that events keep, the strongest first: whatever their kind, or one of each kind.

    In the first reading, the pace that is least likely to be chance is taken, then that of the events left over. In the
    second, events of one kind cannot hide the pace of another. Of both, that is taken which is less likely as a whole.

    Examples
    --------
    >>> times = np.sort([*range(0, 600, 60), *range(25, 600, 90)])
    >>> [pace.period_s for pace in find_paces(times)]
    [60.0, 90.0]
    """
    everything = np.arange(len(times_s))
    alike = [np.flatnonzero(kind) for kind in kinds]
    mixed: list[Pace] = []
    rest = everything
    while len(mixed) < most:
        sought = [rest, *alike] if mixed else [everything]
        found = [_pace_among(times_s, events, grain_s) for events in sought]
        new = [pace for pace in found if pace is not None and not any(_same(pace, old) for old in mixed)]
        if not new:
            break
        best = min(new, key=lambda pace: pace.log_chance)
        mixed.append(replace(best, members=tuple(np.intersect1d(best.members, rest).tolist())))
        rest = np.setdiff1d(rest, best.members)
    by_kind = [pace for events in alike if (pace := _pace_among(times_s, events, grain_s)) is not None]
    paces = min(mixed, by_kind, key=lambda found: sum(pace.log_chance for pace in found))
    return sorted(paces, key=lambda pace: pace.log_chance)


def _pace_among(times_s: np.ndarray, events: np.ndarray, grain_s: float) -> Pace | None:
    """Pace of some of the events, its members named by their place among all.

    Of a part of the events, three at one distance are no pace, and chance must be rarer: there are several parts.
    """
    pace = find_pace(times_s[events], grain_s=grain_s)
    if pace is None:
        return None
    all_even = len(pace.members) == len(events) > FEWEST_EVENTS
    if len(events) < len(times_s) and not all_even and pace.log_chance >= math.log(BY_CHANCE / 3):
        return None
    return replace(pace, members=tuple(events[list(pace.members)].tolist()))


def _same(pace: Pace, other: Pace) -> bool:
    """Whether a pace is another one again: at a multiple of its distance, or with a third of its events."""
    ratio = pace.period_s / other.period_s
    multiple = round(ratio) > 1 and abs(ratio - round(ratio)) < EVEN_BELOW * ratio
    return multiple or 3 * len(set(pace.members) & set(other.members)) > len(pace.members)


def _periods(times_s: np.ndarray) -> list[float]:
    """Distances worth trying: between each event and the next few, those within 2 % of each other once."""
    apart = [times_s[k:] - times_s[:-k] for k in range(1, min(REACH, len(times_s) - 1) + 1)]
    kept: list[float] = []
    for distance in np.sort(np.concatenate(apart)) if apart else []:
        if distance > 0 and (not kept or distance > 1.02 * kept[-1]):
            kept.append(float(distance))
    return kept


def _chain(times_s: np.ndarray, first: int, period: float) -> tuple[list[int], list[int]]:
    """Events that follow each other at the period, and how many periods lie between each two."""
    chain, steps = [first], list[int]()
    while True:
        last = times_s[chain[-1]]
        for step in range(1, MOST_MISSED + 2):
            due = last + step * period
            near = int(np.abs(times_s - due).argmin())
            if near > chain[-1] and abs(times_s[near] - due) <= NEAR * period:
                chain.append(near)
                steps.append(step)
                break
        else:
            return chain, steps


def correlation_lag(signal: np.ndarray, shortest: int) -> int | None:
    """Lag at which an even signal is most like itself, if that is more than by chance.

    References
    ----------
    Box, Jenkins, Reinsel, Ljung, "Time Series Analysis", 5th ed., 2016, section 2.1.5.

    Examples
    --------
    >>> correlation_lag(np.tile([1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], 20), shortest=3)
    7
    """
    centred = signal - signal.mean()
    n, power = len(centred), float(centred @ centred)
    if n < 3 * shortest or power == 0:
        return None
    spectrum = np.abs(np.fft.rfft(centred, 2 * n)) ** 2
    correlation = np.fft.irfft(spectrum)[:n] / power * n / (n - np.arange(n))
    lags = np.arange(shortest, n // 3)
    peaks = lags[
        (correlation[lags] > CORRELATED_FROM)
        & (correlation[lags] >= correlation[lags - 1])
        & (correlation[lags] >= correlation[lags + 1])
        & (correlation[2 * lags] > CORRELATED_FROM / 2)
    ]
    if not len(peaks):
        return None
    # What comes back after one period does so after two: the first of the peaks that are nearly the highest.
    high = correlation[peaks] >= NEARLY * correlation[peaks].max()
    return int(peaks[high][0])
