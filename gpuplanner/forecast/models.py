"""Named forecasting models behind one function; the only file that imports statsforecast."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from gpuplanner._optional import import_optional
from gpuplanner.forecast.grid import FINEST_SEASON

LEVELS = (0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95)
"""Quantiles of ``schemas.Forecast``."""


NAIVE, REVERTING = "Naive", "Reverting"
MODELS = (NAIVE, "SeasonalNaive", "WeeklyNaive", "WeeklyMean", REVERTING, "Median", "AutoETS")
"""From simple to elaborate.

Naive
    The last value.
SeasonalNaive, WeeklyNaive
    The value one season (a day), one week before.
WeeklyMean
    The mean of the same hour of the week over up to four weeks.
Reverting
    The mean day, and of the departure from it as much as was left after so many slots before (:func:`reverting`).
Median
    Of three forecasts that err in different ways, the middle one at each slot: the last value, complex
    exponential smoothing, and the mean of the same hour over a week.
AutoETS
    Exponential smoothing with additive errors and season, no trend ("ANA").
"""
SMOOTHED = ("Median", "AutoETS")
HISTORY_WEEKS = 4
"""The smoothing models see no more than this; older demand costs time and says little."""
REVERTING_WEEKS = 8
"""How far back the mean day and what is left of departures are learned from."""
LEADS = 10
"""Leads at which what is left is learned; between them it is drawn straight over the logarithm of the lead."""
STAYS_DAYS = (28.0, 7.0)
"""For how many days it counts that a departure stays as it is, before any was seen: its mean over a week, and how far
the last slot lies from that."""
DOUBT = 3.0
"""The mean day is drawn towards its mean by so many times what chance alone would make it vary: days err alike, and
without a daily rhythm a mean day of few days only seems to have one."""
MOSTLY_ZERO = 0.9
RUNAWAY = 2.0
"""A forecast above this multiple of the highest value seen is a fault of the model, not a forecast."""
RULES = {
    "short": "less than two seasons: Naive only",
    "constant": "one value over the last four weeks: Naive only",
    "intermittent": "zero in more than 90 % of the slots: Croston's way (TSB) in place of smoothing",
    "fine": "season of more than 24 slots: TSB in place of smoothing",
    "full": "every model",
}
"""How a series is treated, and why."""


def rule_of(history: np.ndarray, *, season: int, week: int) -> str:
    """Say which of :data:`RULES` a history falls under; the first that fits.

    Examples
    --------
    >>> rule_of(np.zeros(400), season=24, week=168)
    'constant'
    """
    recent = history[-HISTORY_WEEKS * week :]
    if len(history) < 2 * season:
        return "short"
    if recent.min() == recent.max():
        return "constant"
    if (recent == 0).mean() > MOSTLY_ZERO:
        return "intermittent"
    return "fine" if season > FINEST_SEASON else "full"


def usable_models(rule: str, *, length: int, season: int, week: int) -> tuple[str, ...]:
    """Models that a series of this rule and length is forecast with, from simple to elaborate.

    Examples
    --------
    >>> usable_models("full", length=100, season=24, week=168)
    ('Naive', 'SeasonalNaive', 'Reverting', 'Median', 'AutoETS')
    """
    unfit = set()
    if rule in ("short", "constant"):
        unfit |= set(MODELS) - {NAIVE}
    if rule in ("intermittent", "fine"):
        unfit.add("AutoETS")
    if season == 1:
        unfit.add("SeasonalNaive")
    if week == season or length < 2 * week:
        unfit |= {"WeeklyNaive", "WeeklyMean"}
    return tuple(model for model in MODELS if model not in unfit)


def predict(history: np.ndarray, model: str, horizon: int, *, season: int, week: int) -> np.ndarray:
    """Forecast one series with one model.

    Where the history falls under a rule that forbids the model, and where the model answers with something
    that is not a number or runs away, the last value stands in.

    Examples
    --------
    >>> predict(np.array([1.0, 3.0] * 4), "SeasonalNaive", 3, season=2, week=14).tolist()
    [1.0, 3.0, 1.0]
    """
    last = np.full(horizon, history[-1], dtype=np.float64)
    rule = rule_of(history, season=season, week=week)
    if model == NAIVE or model not in usable_models(rule, length=len(history), season=season, week=week):
        return last
    if model == REVERTING:
        said = reverting(history, horizon, season=season, week=week)
        return np.asarray(np.minimum(said, RUNAWAY * history.max()))
    recent = np.ascontiguousarray(history[-HISTORY_WEEKS * week :], dtype=np.float64)
    members = [_answer(part, recent, horizon) for part in _parts(model, rule, len(recent), season, week)]
    answer = np.median([last, *members], axis=0) if model == "Median" else members[0]
    highest = RUNAWAY * history.max()
    return np.clip(answer, 0.0, None) if np.isfinite(answer).all() and answer.max() <= highest else last


def reverting(history: np.ndarray, horizon: int, *, season: int, week: int) -> np.ndarray:
    """Forecast the mean day, as far as days are alike, and what will be left of the departure from it.

    A departure has two parts: its mean over a week, and how far the last slot lies from that. The share of each that
    is left after so many slots is the one with the least absolute error in the past, between none and all; a few days
    of history say little of it, and it is drawn towards all: the last value.

    Of at least a season of history comes an array of the horizon's length.

    References
    ----------
    Efron, Morris, "Stein's estimation rule and its competitors", Journal of the American Statistical Association
    68(341), 1973 (how far means are drawn together).

    Examples
    --------
    Steps that stay, and peaks of a single slot:

    >>> steps = np.repeat([2.0, 8.0, 3.0, 9.0], 200)
    >>> reverting(steps, 2, season=24, week=168).round(0).tolist()
    [9.0, 9.0]
    >>> peaks = np.where(np.arange(800) % 37 == 36, 9.0, 2.0)
    >>> reverting(peaks[:777], 2, season=24, week=168).round(0).tolist()
    [3.0, 3.0]
    """
    days = min(len(history), REVERTING_WEEKS * week) // season
    table = history[len(history) - days * season :].reshape(days, season).astype(np.float64)
    level = table.mean()
    shape = table.mean(axis=0) - level
    noise = ((table - table.mean(axis=1, keepdims=True) - shape) ** 2).sum() / max(days - 1, 1)
    seen = days * (shape**2).sum()
    day = level + shape * (max(1 - DOUBT * noise / seen, 0.0) if seen > 0 else 0.0)
    apart = (table - day).ravel()
    summed, end = np.concatenate([[0.0], np.cumsum(apart)]), np.arange(1, len(apart) + 1)
    begin = np.maximum(end - week, 0)
    slow = (summed[end] - summed[begin]) / (end - begin)
    fast = apart - slow
    leads = np.unique(np.geomspace(1, max(min(horizon, len(apart) // 2), 1), LEADS).astype(np.int64))
    left = np.ones((len(leads), 2))
    for at, lead in enumerate(leads):
        for _ in range(2):
            for part, (mine, other) in enumerate(((slow, fast), (fast, slow))):
                errs = apart[lead:] - left[at, 1 - part] * other[:-lead]
                share = np.clip(_least_absolute(mine[:-lead], errs), 0.0, 1.0)
                left[at, part] = (days * share + STAYS_DAYS[part]) / (days + STAYS_DAYS[part])
    ahead = np.log(np.arange(1, horizon + 1))
    of_slow, of_fast = (np.interp(ahead, np.log(leads), each) for each in left.T)
    said = day[np.arange(horizon) % season] + of_slow * slow[-1] + of_fast * fast[-1]
    return np.asarray(np.maximum(said, 0.0))


def _least_absolute(cause: np.ndarray, effect: np.ndarray) -> float:
    """The factor of a cause with the least sum of absolute errors: a weighted median of ratios; 1 without a cause."""
    seen = np.abs(cause) > 1e-9
    if not seen.any():
        return 1.0
    ratio, weight = effect[seen] / cause[seen], np.abs(cause[seen])
    order = np.argsort(ratio)
    mass = np.cumsum(weight[order])
    return float(ratio[order][np.searchsorted(mass, mass[-1] / 2)])


def _parts(model: str, rule: str, length: int, season: int, week: int) -> list[Any]:
    """The statsforecast models that a named model is made of."""
    library = import_optional("statsforecast.models", extra="forecast")
    if model == "SeasonalNaive":
        return [library.SeasonalNaive(season)]
    if model == "WeeklyNaive":
        return [library.SeasonalNaive(week)]
    if model == "WeeklyMean":
        return [library.SeasonalWindowAverage(week, length // week)]
    if model == "AutoETS":
        return [library.AutoETS(season, model="ANA" if season > 1 else "ANN")]
    seasons_in_week = max(week // season, 1)
    smooth = library.AutoCES(season) if rule == "full" else library.TSB(alpha_d=0.1, alpha_p=0.1)
    return [smooth, library.SeasonalWindowAverage(season, min(seasons_in_week, length // season))]


def _answer(part: Any, history: np.ndarray, horizon: int) -> np.ndarray:  # noqa: ANN401 - a library's model
    """What a library's model says; NaN where it cannot be fitted."""
    with warnings.catch_warnings():
        # Whatever a fit complains about shows in its answer, which is judged by what came.
        warnings.simplefilter("ignore")
        try:
            return np.asarray(part.forecast(y=history, h=horizon)["mean"], dtype=np.float64)
        except Exception:  # the library raises the bare class: "no model able to be fitted"
            return np.full(horizon, np.nan)
