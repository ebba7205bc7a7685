"""Quantiles and choice at every origin from earlier origins alone: what somebody would have got.

Errors of a candidate are measured from each of its quantiles, in units of the spread of the series, and pooled by
lead over the series of a source; the shift that would have put the right share of them below is added to the
next one. The ends of the interval follow the recent misses of each series. Nothing is used before it had happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpuplanner.forecast.answers import between, say_alone, say_known
from gpuplanner.forecast.backtest import Backtest
from gpuplanner.forecast.candidates import CANDIDATES, NEED_JOBS, RUN_OFF, RUN_OFF_MEDIAN, Known
from gpuplanner.forecast.choose import pick, relative, shrunk
from gpuplanner.forecast.intervals import LEVELS
from gpuplanner.forecast.models import NAIVE

OWN_FOLDS = 64
"""After so many origins the record of a series itself counts as much as that of all."""
LOOKS_A_FOLD = 4.0
"""How many independent errors a fold of all series is taken for, in the correction for a finite sample."""
ADAPT = 0.5
"""By how much, in logarithms, half of an interval grows for an origin missed altogether."""
NARROWEST, WIDEST = np.log(0.8), np.log(2.5)
UNIT_FLOOR = 0.25
"""Smallest unit of an earlier error, in units of today: a quiet beginning says nothing of a busy present."""
SEEN_FACTOR = 4.0
"""No quantile above so many times the largest value seen."""
NOISE = 2.0
"""A candidate that cost a series more than the naive forecast by so many standard errors is not chosen for it."""
MIDDLE = LEVELS.index(0.5)


@dataclass(frozen=True, eq=False)
class Judged:
    """Candidates with quantiles, and which of them was chosen.

    Parameters
    ----------
    test : Backtest
    price : float or None
        Price of a unit short, in prices of a unit planned; None: judged by pinball loss.
    quantiles : dict of str to numpy.ndarray, each of shape (n_series, n_origins, horizon, n_levels)
        What each candidate said at each origin, calibrated by what was known then.
    chosen : numpy.ndarray of str, shape (n_series, n_origins + 1)
        Candidate chosen for each series at each origin; the last column is the choice for the future.
    first : int
        The first origin that is judged; those before it only calibrate.
    """

    test: Backtest
    price: float | None
    quantiles: dict[str, np.ndarray]
    chosen: np.ndarray
    first: int

    def of_chosen(self, values: dict[str, np.ndarray]) -> np.ndarray:
        """Of arrays by candidate, shape (n_series, n_origins, ...), the one that was chosen at each origin."""
        found = np.full_like(values[NAIVE], np.nan)
        for model, array in values.items():
            mine = self.chosen[:, :-1] == model
            found[mine] = array[mine]
        return found


def judge(test: Backtest, *, price: float | None = None, first: int = 0) -> Judged:
    """Calibrate and choose at every origin of a backtest.

    Parameters
    ----------
    test : Backtest
    price : float, optional
        Price of a unit short, in prices of a unit planned, above 1. Without one pinball loss decides.
    first : int
        Origins that only calibrate.

    Returns
    -------
    Judged
    """
    shape = test.actual.shape
    quantiles = {model: np.full((*shape, len(LEVELS)), np.nan) for model in test.predicted}
    chosen = np.full((shape[0], shape[1] + 1), NAIVE, dtype=object)
    for place in range(shape[1] + 1):
        known = test.known_at(place)
        for model, calibrated in quantiles.items():
            if place < shape[1]:
                calibrated[:, place] = quantiles_at(test, model, place, known, calibrated)
        chosen[:, place] = _choice(test, quantiles, known, price, place)
    return Judged(test, price, quantiles, chosen, first)


def ahead(judged: Judged, *, known: Known | None = None, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Forecast what is still to come, with the candidate chosen for each series.

    Returns
    -------
    mean : numpy.ndarray, shape (n_series, horizon)
    quantiles : numpy.ndarray, shape (n_series, horizon, n_levels)
    """
    test, chosen = judged.test, judged.chosen[:, -1]
    grid, end = test.grid, len(test.origins)
    history = test.seen[end] if test.seen else grid.values
    mean = np.zeros((len(grid.ids), test.horizon))
    levels = np.zeros((*mean.shape, len(LEVELS)))
    outcome = test.known_at(end)
    for model in sorted(set(chosen)):
        rows = np.flatnonzero(chosen == model)
        ids = [grid.ids[row] for row in rows]
        alone = "Median" if model == RUN_OFF_MEDIAN else model
        said = None
        if alone != RUN_OFF:
            each = [
                say_alone(
                    history[row][~np.isnan(history[row])],
                    alone,
                    test.gap,
                    test.horizon,
                    grid.season,
                    grid.week,
                )
                for row in rows
            ]
            said = np.array([one[0] for one in each]), np.array([one[1] for one in each])
        if model in NEED_JOBS:
            assert known is not None
            paths = say_known(known, ids, grid.values.shape[1], test.gap, test.horizon, seed)
            said = paths if said is None else between(paths, said[0])
        assert said is not None
        mean[rows] = said[0]
        every = np.zeros((len(grid.ids), test.horizon, len(LEVELS)))
        every[rows] = said[1]
        levels[rows] = quantiles_at(test, model, end, outcome, judged.quantiles[model], every)[rows]
    return mean, levels


def quantiles_at(
    test: Backtest,
    model: str,
    place: int,
    known: np.ndarray,
    before: np.ndarray,
    said: np.ndarray | None = None,
) -> np.ndarray:
    """Quantiles of a candidate at an origin.

    Parameters
    ----------
    test : Backtest
    model : str
    place : int
        Number of the origin; the number of all origins for the forecast of what is still to come.
    known : numpy.ndarray, shape (n_series, n_origins, horizon)
        What was known then of the outcomes; NaN elsewhere.
    before : numpy.ndarray, shape (n_series, n_origins, horizon, n_levels)
        Its quantiles at the origins before.
    said : numpy.ndarray, shape (n_series, horizon, n_levels), optional
        What it says there; from the backtest if not given.

    Returns
    -------
    numpy.ndarray, shape (n_series, horizon, n_levels)
        Ordered, not negative, and capped.
    """
    base = test.said(model)
    now = base[:, place] if said is None else said
    unit = test.unit[:, place]
    parts = _leads(test.gap, test.horizon, test.grid.season)
    shift = _shifts(base[:, :place], known[:, :place], test.unit[:, :place], unit, parts, test.full[place])
    found = now + unit[:, None, None] * shift
    middle = now[..., MIDDLE : MIDDLE + 1]
    found[..., :MIDDLE] = np.minimum(found[..., :MIDDLE], middle)
    found[..., MIDDLE + 1 :] = np.maximum(found[..., MIDDLE + 1 :], middle)
    # The ends alone: what is planned at costs least where the errors so far put it.
    for end, inner, factor in zip(
        (0, -1), (1, -2), _widths(known[:, :place], before[:, :place]), strict=True
    ):
        moved = middle[..., 0] + factor[:, None] * (found[..., end] - middle[..., 0])
        found[..., end] = (np.maximum if end else np.minimum)(moved, found[..., inner])
    top = np.minimum(SEEN_FACTOR * test.largest[:, place], test.cap)
    found = np.clip(found, 0.0, top[:, None, None])
    return np.asarray(np.maximum.accumulate(found, axis=-1))


def _leads(gap: int, horizon: int, season: int) -> list[slice]:
    """Slots of the horizon that are calibrated together: up to a quarter of a season from the origin, then seasons.

    Examples
    --------
    >>> _leads(6, 48, 24)
    [slice(0, 18, None), slice(18, 42, None), slice(42, 48, None)]
    """
    edges = {max(season // 4 - gap, 0), *range(season - gap % season, horizon, season), 0, horizon}
    ordered = sorted(edge for edge in edges if edge <= horizon)
    return [slice(*pair) for pair in pairwise(ordered)]


def _shifts(
    base: np.ndarray,
    known: np.ndarray,
    spread: np.ndarray,
    unit: np.ndarray,
    parts: Sequence[slice],
    full: np.ndarray,
) -> np.ndarray:
    """What to add to each quantile, in units of the spread, shape (n_series, horizon, n_levels).

    The errors of series that are mostly zero say nothing of the others.
    """
    series, _, horizon, levels = base.shape
    shift = np.zeros((series, horizon, levels))
    size = np.maximum(spread, UNIT_FLOOR * unit[:, None])
    size = np.where(size > 0, size, np.nan)[:, :, None, None]
    last = np.zeros((series, levels))
    for part in parts:
        errors = (known[:, :, part, None] - base[:, :, part]) / size
        folds = int((~np.isnan(errors[..., 0])).any(axis=(0, 2)).sum()) if errors.size else 0
        if folds:
            own_share = folds / (folds + OWN_FOLDS)
            for at, level in enumerate(LEVELS):
                if at == MIDDLE:
                    continue  # the middle is what the candidate says: to mend it makes the point forecast worse
                wanted = _finite(level, folds)
                flat = errors[..., at].reshape(series, -1)
                pool = _level(flat.reshape(1, -1), wanted)
                if full.any():
                    pool = np.where(full, _level(flat[full].reshape(1, -1), wanted), pool)
                own = _level(flat, wanted)
                last[:, at] = np.where(np.isnan(own), pool, own_share * own + (1 - own_share) * pool)
            last = np.nan_to_num(last)
        shift[:, part] = last[:, None]
    return shift


def _finite(level: float, folds: int) -> float:
    """Level to ask of a sample of so many folds, so that a new value lies below with the level.

    The outermost alone are mended: to widen the inner ones costs more than it saves.
    """
    if LEVELS[0] < level < LEVELS[-1]:
        return level
    grown = (LOOKS_A_FOLD * folds + 1) / (LOOKS_A_FOLD * folds)
    return min(level * grown, 1.0) if level > 0.5 else max(1 - (1 - level) * grown, 0.0)


def _level(rows: np.ndarray, level: float) -> np.ndarray:
    """Quantile of each row, NaN left out; NaN for rows without a value."""
    ordered = np.sort(rows, axis=1)  # NaN go last
    count = (~np.isnan(rows)).sum(axis=1)
    place = level * np.maximum(count - 1, 0)
    low = np.floor(place).astype(np.int64)
    high = np.minimum(low + 1, np.maximum(count - 1, 0))
    row, weight = np.arange(len(rows)), place - low
    return np.asarray(ordered[row, low] * (1 - weight) + ordered[row, high] * weight)


def _widths(known: np.ndarray, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Factors of both halves of the interval of each series, from the misses of its ends so far."""
    seen = ~np.isnan(known) & ~np.isnan(before[..., 0])
    found = []
    for missed in (known < before[..., 0], known > before[..., -1]):
        misses = np.where(seen, missed, np.nan)
        count = seen.sum(axis=2)
        rate = np.where(count > 0, np.nansum(misses, axis=2) / np.maximum(count, 1), LEVELS[0]) - LEVELS[0]
        rate *= count / seen.shape[2]
        moved = ADAPT / 2 * (rate.sum(axis=1) + rate.mean(axis=0).sum())
        found.append(np.exp(np.clip(moved, NARROWEST, WIDEST)))
    return found[0], found[1]


def plan_at(quantiles: np.ndarray, price: float) -> np.ndarray:
    """What to plan for: the quantile 1 - 1 / price, on straight lines between those that are stored.

    Examples
    --------
    >>> plan_at(np.arange(7.0), 5.0).round(3).item()
    4.333
    """
    level = 1 - 1 / price
    above = int(np.clip(np.searchsorted(LEVELS, level), 1, len(LEVELS) - 1))
    weight = np.clip((level - LEVELS[above - 1]) / (LEVELS[above] - LEVELS[above - 1]), 0.0, 1.0)
    return np.asarray(
        quantiles[..., above - 1] + weight * (quantiles[..., above] - quantiles[..., above - 1])
    )


def realised(actual: np.ndarray, quantiles: np.ndarray, price: float | None) -> np.ndarray:
    """What a slot cost, in prices of a unit planned; without a price the pinball loss, mean over the levels.

    Parameters
    ----------
    actual : numpy.ndarray, shape (...)
    quantiles : numpy.ndarray, shape (..., n_levels)
    price : float or None

    Examples
    --------
    >>> realised(np.array(10.0), np.full(7, 8.0), 5.0).item()
    18.0
    """
    if price is None:
        short = actual[..., None] - quantiles
        levels = np.array(LEVELS)
        return np.asarray(np.maximum(levels * short, (levels - 1) * short).mean(axis=-1))
    plan = plan_at(quantiles, price)
    return np.asarray(plan + price * np.maximum(actual - plan, 0.0))


def _choice(
    test: Backtest, quantiles: dict[str, np.ndarray], known: np.ndarray, price: float | None, place: int
) -> np.ndarray:
    """Candidate of each series, from what the quantiles of earlier origins cost."""
    models = [model for model in CANDIDATES if model in quantiles]
    cost = np.array([realised(known[:, :place], quantiles[model][:, :place], price) for model in models])
    seen = ~np.isnan(cost).all(axis=3)
    folds = np.where(seen, np.nansum(cost, axis=3), np.nan)
    total = np.where(seen.any(axis=2), np.nansum(folds, axis=2), np.nan)
    ahead = max(test.horizon / test.grid.season, 1.0)
    own = shrunk(relative(total, total[0]), models, seen.sum(axis=2) * ahead)
    out = np.array([worse_than(folds[0], one) for one in folds]) | ~test.allowed[place]
    return np.asarray(np.array(models, dtype=object)[pick(own, test.full[place], shut_out=out)])


def worse_than(naive: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """Whether a candidate cost a series more than the naive forecast by more than noise.

    Parameters
    ----------
    naive, cost : numpy.ndarray, shape (n_series, n_origins)
        What each origin cost; NaN where that is not known.

    Returns
    -------
    numpy.ndarray of bool, shape (n_series,)

    Examples
    --------
    >>> worse_than(np.array([[1.0, 1.0, 2.0]]), np.array([[2.0, 2.1, 2.9]])).tolist()
    [True]
    """
    more = np.nan_to_num(cost - naive)
    count = np.maximum((~np.isnan(cost - naive)).sum(axis=1), 1)
    mean = more.sum(axis=1) / count
    noise = np.sqrt(np.maximum((more**2).sum(axis=1) / count - mean**2, 0.0) / np.maximum(count - 1, 1))
    return np.asarray((mean > NOISE * noise) & (count > 1))
