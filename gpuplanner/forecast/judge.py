"""Quantiles and choice at every origin from earlier origins alone: what somebody would have got."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from gpuplanner.forecast.answers import between, say_alone, say_known
from gpuplanner.forecast.backtest import Backtest
from gpuplanner.forecast.calibrate import mean_at, quantiles_at
from gpuplanner.forecast.candidates import CANDIDATES, NEED_JOBS, RUN_OFF, RUN_OFF_MEDIAN, Known
from gpuplanner.forecast.models import LEVELS, NAIVE

OWN_WEIGHT = 0.25
"""Weight of a series' own record in the choice; the rest is the record of the model on all series. A handful
of backtests is a noisy judge: on the Philly trace, choosing by the own record alone did worse than keeping
the naive forecast everywhere."""
WORST = 3.0
"""Relative records are cut off here, so that one odd series does not judge a model for all."""
PRIOR, UNTRIED, PRIOR_SEASONS = {NAIVE: 1.0, RUN_OFF: 0.85, RUN_OFF_MEDIAN: 0.85}, 1.2, 16.0
"""Cost relative to the naive forecast that a candidate is believed to reach before it was tried here, that of one
not named, and how many seasons that belief counts for: an origin from which a week was forecast says more of it than
one of a day. Public traces stand behind it, see ``docs/forecast.md``."""
FLOOR = 0.05
"""Relative records below it are told apart no further."""
NOISE = 2.0
"""A candidate that cost a series more than the naive forecast by so many standard errors is not chosen for it."""


def choose(scores: pl.DataFrame, *, seasons: float = 1.0) -> pl.DataFrame:
    """Choose a model for each series by its record relative to the naive forecast.

    The record of a model is what it cost, or its pinball loss, or its mean MASE (MAE where that is not defined),
    whichever the table has, divided by that of the naive forecast on the same origins. A quarter of it is the
    series' own, the rest the mean over all series of the rule "full" that use the model. Where the table says
    from how many ``windows``, a few are believed less (see :data:`PRIOR`); what is marked ``worse`` is not chosen.
    The best record wins; of equal ones, the simpler model.

    Parameters
    ----------
    scores : polars.DataFrame
        From :func:`score`.
    seasons : float
        How many seasons were forecast from each origin.

    Returns
    -------
    polars.DataFrame
        ``unique_id`` and ``model``, one row per series.

    Examples
    --------
    >>> scores = pl.DataFrame({"unique_id": ["a", "a"], "model": ["Naive", "Median"], "rule": "full"})
    >>> choose(scores.with_columns(mase=pl.Series([2.0, 1.0]), mae=pl.Series([4.0, 2.0]))).rows()
    [('a', 'Median')]
    """
    preferred: list[str] = [name for name in ("realised_cost", "pinball") if name in scores.columns]
    table = scores.with_columns(error=pl.coalesce(preferred or ["mase", "mae"]))
    ids = table["unique_id"].unique(maintain_order=True).to_list()
    models = [model for model in CANDIDATES if (table["model"] == model).any()]
    place = {uid: number for number, uid in enumerate(ids)}
    error = np.full((len(models), len(ids)), np.nan)
    usable, full = np.zeros(error.shape, dtype=bool), np.zeros(len(ids), dtype=bool)
    count = np.zeros(error.shape, dtype=np.int64)
    for row in table.iter_rows(named=True):
        at = models.index(row["model"]), place[row["unique_id"]]
        error[at] = np.nan if row["error"] is None else row["error"]
        usable[at], count[at] = not row.get("worse", False), row.get("windows", 0)
        full[place[row["unique_id"]]] = row["rule"] == "full"
    naive = error[models.index(NAIVE)] if NAIVE in models else np.full(len(ids), np.nan)
    own = relative(error, naive)
    if "windows" in table.columns:
        own = shrunk(own, models, count * seasons)
    chosen = pick(own, full, shut_out=~usable)
    return pl.DataFrame({"unique_id": ids, "model": [models[one] for one in chosen]})


def shrunk(own: np.ndarray, models: Sequence[str], seasons: np.ndarray) -> np.ndarray:
    """Records drawn towards what is believed of each model before it was tried, by the seasons forecast so far.

    Examples
    --------
    >>> shrunk(np.array([[1.0], [0.5]]), ["Naive", "AutoETS"], np.array([[16], [16]])).round(2).tolist()
    [[1.0], [0.77]]
    """
    prior = np.log([PRIOR.get(model, UNTRIED) for model in models])[:, None]
    seen = np.where(np.isnan(own), 0, seasons)
    logs = np.log(np.maximum(np.where(np.isnan(own), 1.0, own), FLOOR))
    return np.asarray(np.exp((seen * logs + PRIOR_SEASONS * prior) / (seen + PRIOR_SEASONS)))


def relative(error: np.ndarray, naive: np.ndarray) -> np.ndarray:
    """Records relative to the naive forecast, cut off at :data:`WORST`.

    Examples
    --------
    >>> relative(np.array([[2.0, 0.0], [1.0, 3.0]]), np.array([2.0, 0.0])).tolist()
    [[1.0, 1.0], [0.5, 3.0]]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(
            naive > 0, error / naive, np.where(error > 0, WORST, np.where(error == 0, 1.0, np.nan))
        )
    return np.minimum(ratio, WORST)


def pick(own: np.ndarray, full: np.ndarray, *, shut_out: np.ndarray) -> np.ndarray:
    """Number of the model with the best record, own and common; of equal ones the first.

    Examples
    --------
    >>> none = np.zeros((2, 1), dtype=bool)
    >>> pick(np.array([[1.0], [0.5]]), np.array([True]), shut_out=none).tolist()
    [1]
    """
    seen = ~np.isnan(own) & full
    count = seen.sum(axis=1)
    common = np.where(count > 0, np.where(seen, own, 0.0).sum(axis=1) / np.maximum(count, 1), np.nan)[:, None]
    record = OWN_WEIGHT * own + (1 - OWN_WEIGHT) * np.where(np.isnan(common), own, common)
    record = np.where(shut_out | np.isnan(record), np.inf, record)
    return np.asarray(record.argmin(axis=0))


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
