"""Named forecasting models behind one function; the only file that imports statsforecast."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from gpuplanner._optional import import_optional
from gpuplanner.forecast.grid import FINEST_SEASON

LEVELS = (0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95)
"""Quantiles of ``schemas.Forecast``."""


NAIVE = "Naive"
MODELS = (NAIVE, "SeasonalNaive", "WeeklyNaive", "WeeklyMean", "Median", "AutoETS")
"""From simple to elaborate.

Naive
    The last value.
SeasonalNaive, WeeklyNaive
    The value one season (a day), one week before.
WeeklyMean
    The mean of the same hour of the week over up to four weeks.
Median
    Of three forecasts that err in different ways, the middle one at each slot: the last value, complex
    exponential smoothing, and the mean of the same hour over a week.
AutoETS
    Exponential smoothing with additive errors and season, no trend ("ANA").
"""
SMOOTHED = ("Median", "AutoETS")
HISTORY_WEEKS = 4
"""The smoothing models see no more than this; older demand costs time and says little."""
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
    ('Naive', 'SeasonalNaive', 'Median', 'AutoETS')
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
    recent = np.ascontiguousarray(history[-HISTORY_WEEKS * week :], dtype=np.float64)
    members = [_answer(part, recent, horizon) for part in _parts(model, rule, len(recent), season, week)]
    answer = np.median([last, *members], axis=0) if model == "Median" else members[0]
    highest = RUNAWAY * history.max()
    return np.clip(answer, 0.0, None) if np.isfinite(answer).all() and answer.max() <= highest else last


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
