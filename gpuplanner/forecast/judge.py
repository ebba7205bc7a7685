"""Quantiles and choice at every origin from earlier origins alone: what somebody would have got."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuplanner.forecast.answers import between, say_alone, say_known
from gpuplanner.forecast.backtest import Backtest
from gpuplanner.forecast.calibrate import mean_at, quantiles_at
from gpuplanner.forecast.candidates import CANDIDATES, NEED_JOBS, RUN_OFF, RUN_OFF_MEDIAN, Known
from gpuplanner.forecast.choose import pick, relative, shrunk
from gpuplanner.forecast.intervals import LEVELS
from gpuplanner.forecast.models import NAIVE

NOISE = 2.0
"""A candidate that cost a series more than the naive forecast by so many standard errors is not chosen for it."""


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
    means : dict of str to numpy.ndarray, each of shape (n_series, n_origins, horizon)
        Means of the same, which energy and money are counted with; the point forecast is the median.
    chosen : numpy.ndarray of str, shape (n_series, n_origins + 1)
        Candidate chosen for each series at each origin; the last column is the choice for the future.
    first : int
        The first origin that is judged; those before it only calibrate.
    """

    test: Backtest
    price: float | None
    quantiles: dict[str, np.ndarray]
    means: dict[str, np.ndarray]
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
    means = {
        model: mean_at(test.predicted[model], test.said(model), said, test.cap[:, None, None])
        for model, said in quantiles.items()
    }
    return Judged(test, price, quantiles, means, chosen, first)


def ahead(judged: Judged, *, known: Known | None = None, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Forecast what is still to come, with the candidate chosen for each series."""
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
        every = np.zeros((len(grid.ids), test.horizon, len(LEVELS)))
        every[rows] = said[1]
        levels[rows] = quantiles_at(test, model, end, outcome, judged.quantiles[model], every)[rows]
        mean[rows] = mean_at(*said, levels[rows], test.cap[rows, None])
    return mean, levels


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
