"""Forecast models by name, behind one function, on series as a matrix."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import process_time
from typing import Any, Protocol

import numpy as np
import polars as pl

from gpuplanner.core.errors import SchemaError, examples
from gpuplanner.core.libraries_plugins_and_workers import import_optional
from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import Demand

DAY_LENGTH = timedelta(days=1)
WEEK_LENGTH = timedelta(days=7)
MAX_ETS_SEASON_INTERVALS = 24
"""Longest season for which exponential smoothing is fitted; a grid with more intervals a day uses cheaper models."""


@dataclass(frozen=True)
class SeriesGrid:
    """Demand series on one time axis.

    - ``ids``: Names of the series, sorted as text.
    - ``start``: Start of the first interval.
    - ``slot``: Length of an interval.
    - ``values``, shape (n_series, n_slots): Demand [GPUs or MIG instances]; NaN before a series begins, later gaps are
      filled with the last value.
    - ``filled``: Number of intervals of each series that were filled.
    """

    ids: tuple[str, ...]
    start: datetime
    slot: timedelta
    values: np.ndarray
    filled: tuple[int, ...]

    @property
    def week(self) -> int:
        """Number of intervals in a week, at least 1."""
        return max(WEEK_LENGTH // self.slot, 1)

    @property
    def season(self) -> int:
        """Number of intervals in a season: a day, or a week where an interval is a day or longer."""
        day = DAY_LENGTH // self.slot
        return day if day > 1 else self.week

    def time(self, index: int) -> datetime:
        """Return the start of an interval; the first one beyond the history is ``values.shape[1]``."""
        return self.start + index * self.slot


def series_grid(demand: pl.DataFrame) -> SeriesGrid:
    """Arrange demand series (table ``schemas.Demand``) as a matrix on their common time axis.

    An interval without a row is not a zero: after the first row of a series it gets the last value and is counted in
    ``filled``, before it the demand is unknown.

    Examples
    --------
    >>> from datetime import UTC
    >>> hours = [datetime(2026, 2, 2, hour, tzinfo=UTC) for hour in (0, 1, 3)]
    >>> demand = pl.DataFrame({"unique_id": "a/gpu", "tenant": "a", "profile": "gpu", "ds": hours})
    >>> grid = series_grid(demand.with_columns(y=pl.Series([1, 2, 5])))
    >>> grid.values.tolist(), grid.filled, grid.season
    ([[1.0, 2.0, 2.0, 5.0]], (1,), 24)
    """
    table = conform(demand, Demand, source="forecast: demand").select("unique_id", "ds", "y")
    odd = table.filter(~pl.col("y").is_finite() | (pl.col("y") < 0))
    if odd.height:
        first = odd.sort("unique_id", "ds").row(0, named=True)
        got = f"{odd.height} others, first {first['y']} in {first['unique_id']!r} at {first['ds']}"
        todo = "Fix or remove these rows; an interval without a row repeats the last value."
        raise SchemaError("forecast: demand", "finite values of at least 0", got, todo)
    times = table["ds"].unique().sort()
    if len(times) < 2:
        todo = "Give a longer history of demand."
        raise SchemaError("forecast: demand", "at least two intervals", f"{len(times)}", todo)
    microseconds = (times - times[0]).dt.total_microseconds().to_numpy()
    step = int(np.diff(microseconds).min())
    slot = timedelta(microseconds=step)
    slots = int(microseconds[-1]) // step + 1
    offset_us = (table["ds"] - times[0]).dt.total_microseconds()
    off = table.filter(offset_us % step != 0)
    twice = table.filter(table.select("unique_id", "ds").is_duplicated())
    if off.height or twice.height:
        fault, rows = ("off the grid", off) if off.height else ("that stand twice", twice)
        expected = f"one row per series and interval of {slot}"
        got = f"{rows.height} rows {fault}, first {examples(rows['ds'].cast(pl.String).to_list())}"
        raise SchemaError("forecast: demand", expected, got, "Make the series with demand_series.")
    ids = table["unique_id"].unique().sort()
    values = np.full((len(ids), slots), np.nan)
    row = table["unique_id"].cast(pl.Enum(ids)).to_physical().to_numpy()
    values[row, (offset_us // step).to_numpy()] = table["y"]
    missing = np.isnan(values)
    # The column of the last known value at or before each slot; -1 before a series begins.
    last_known = np.maximum.accumulate(np.where(missing, -1, np.arange(slots)), axis=1)
    carried = np.take_along_axis(values, np.maximum(last_known, 0), axis=1)
    filled = tuple((missing & (last_known >= 0)).sum(axis=1).tolist())
    return SeriesGrid(tuple(ids), times[0], slot, carried, filled)


QUANTILE_LEVELS = (0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95)
"""Quantile levels of every forecast, as in table ``schemas.Forecast``."""


NAIVE, REVERTING = "Naive", "Reverting"
"""Names of the models that forecast the last value, and the mean day plus a decaying departure from it."""
SERIES_MODELS = (NAIVE, "SeasonalNaive", "WeeklyNaive", "WeeklyMean", REVERTING, "Median", "AutoETS")
"""Names of the models that use a series alone, from simple to elaborate.

Naive
    The last value.
SeasonalNaive, WeeklyNaive
    The value one season (a day), one week before.
WeeklyMean
    The mean of the same hour of the week over up to four weeks.
Reverting
    The mean day, plus the present departure from it times the share that usually remains after as many intervals
    (:func:`predict_reverting`).
Median
    The median of three different forecasts at each interval: the last value, complex
    exponential smoothing, and the mean of the same hour over a week.
AutoETS
    Exponential smoothing with additive errors and season, no trend ("ANA").
"""
SLOWEST_SERIES_MODELS = ("Median", "AutoETS")
"""The slowest models, which get no weight in a forecast if the jobs behind a series are known."""
SMOOTHING_HISTORY_WEEKS = 4
"""Length of the recent history that smoothing models are fitted to; older demand costs time and adds little. [weeks]"""
REVERTING_HISTORY_WEEKS = 8
"""Length of the recent history from which :func:`predict_reverting` estimates the mean day and persistence. [weeks]"""
PERSISTENCE_LEADS = 10
"""Number of lead times at which the remaining share of a departure is estimated; it is interpolated between them over
the logarithm of the lead time."""
PRIOR_PERSISTENCE_DAYS = (28.0, 7.0)
"""Days of history that the prior of full persistence counts as: for the weekly mean of a departure, and for the
distance of the last interval from it."""
MEAN_DAY_SHRINKAGE_FACTOR = 3.0
"""Multiple of its sampling variance by which the daily profile is shrunk towards a constant, since a few days of a
series without a daily rhythm only seem to have one."""
MAX_ZERO_INTERVALS_FRACTION = 0.9
"""Largest share of zero intervals in recent history of a series that is not intermittent [0-1]."""
MAX_FORECAST_TO_PEAK_RATIO = 2.0
"""Largest accepted forecast relative to the highest past value; above it the model has failed, and the last value is
forecast instead."""
DESCRIPTION_BY_SERIES_RULE = {
    "short": "less than two seasons: Naive only",
    "constant": "one value over the last four weeks: Naive only",
    "intermittent": "zero in more than 90 % of the intervals: Croston (TSB) instead of smoothing",
    "fine": "season of more than 24 intervals: TSB instead of smoothing",
    "full": "every model",
}
"""Rules for the models of a series: the condition on its history, and the models that it may use."""


def series_rule(history: np.ndarray, *, season: int, week: int) -> str:
    """Find the first of :data:`DESCRIPTION_BY_SERIES_RULE` that applies to a history.

    Examples
    --------
    >>> series_rule(np.zeros(400), season=24, week=168)
    'constant'
    """
    recent = history[-SMOOTHING_HISTORY_WEEKS * week :]
    if len(history) < 2 * season:
        return "short"
    if recent.min() == recent.max():
        return "constant"
    if (recent == 0).mean() > MAX_ZERO_INTERVALS_FRACTION:
        return "intermittent"
    return "fine" if season > MAX_ETS_SEASON_INTERVALS else "full"


def usable_models(rule: str, *, length: int, season: int, week: int) -> tuple[str, ...]:
    """List the models that the rule (:func:`series_rule`) and length of a series allow, from simple to elaborate.

    Parameters
    ----------
    rule : str
        Rule of the series, see :func:`series_rule`.
    length : int
        Intervals of history.
    season : int
        Intervals in a season.
    week : int
        Intervals in a week.

    Examples
    --------
    >>> usable_models("full", length=100, season=24, week=168)
    ('Naive', 'SeasonalNaive', 'Reverting', 'Median', 'AutoETS')
    """
    unfit = set()
    if rule in ("short", "constant"):
        unfit |= set(SERIES_MODELS) - {NAIVE}
    if rule in ("intermittent", "fine"):
        unfit.add("AutoETS")
    if season == 1:
        unfit.add("SeasonalNaive")
    if week == season or length < 2 * week:
        unfit |= {"WeeklyNaive", "WeeklyMean"}
    return tuple(model for model in SERIES_MODELS if model not in unfit)


def predict_series(history: np.ndarray, model: str, horizon: int, *, season: int, week: int) -> np.ndarray:
    """Forecast one series with one model.

    The last value is forecast if the rule of the series excludes the model, or if the model's forecast is not finite or
    exceeds :data:`MAX_FORECAST_TO_PEAK_RATIO`.

    Parameters
    ----------
    history : numpy.ndarray, shape (n,)
        Values of the series.
    model : str
        Name of the model.
    horizon : int
        Intervals to forecast.
    season : int
        Intervals in a season.
    week : int
        Intervals in a week.

    Examples
    --------
    >>> predict_series(np.array([1.0, 3.0] * 4), "SeasonalNaive", 3, season=2, week=14).tolist()
    [1.0, 3.0, 1.0]
    """
    last = np.full(horizon, history[-1], dtype=np.float64)
    rule = series_rule(history, season=season, week=week)
    if model == NAIVE or model not in usable_models(rule, length=len(history), season=season, week=week):
        return last
    if model == REVERTING:
        reverted = predict_reverting(history, horizon, season=season, week=week)
        return np.asarray(np.minimum(reverted, MAX_FORECAST_TO_PEAK_RATIO * history.max()))
    recent = np.ascontiguousarray(history[-SMOOTHING_HISTORY_WEEKS * week :], dtype=np.float64)
    members = [
        _fit_and_predict(part, recent, horizon) for part in _library_models(model, rule, len(recent), season, week)
    ]
    answer = np.median([last, *members], axis=0) if model == "Median" else members[0]
    highest = MAX_FORECAST_TO_PEAK_RATIO * history.max()
    return np.clip(answer, 0.0, None) if np.isfinite(answer).all() and answer.max() <= highest else last


def predict_reverting(history: np.ndarray, horizon: int, *, season: int, week: int) -> np.ndarray:
    """Forecast the mean day, plus the share of the present departure from it that usually remains.

    A departure has two parts: its mean over a week, and the distance of the last interval from that mean. For each lead
    time, the remaining share of each part [0-1] has the least absolute error in the past. With few days of history it
    is shrunk towards 1, which gives the last value. The history must have at least one season.

    Parameters
    ----------
    history : numpy.ndarray, shape (n,)
        Values of the series.
    horizon : int
        Intervals to forecast.
    season : int
        Intervals in a season.
    week : int
        Intervals in a week.

    References
    ----------
    Efron, Morris, "Stein's estimation rule and its competitors", Journal of the American Statistical Association
    68(341), 1973 (shrinkage of the means).

    Examples
    --------
    Steps that stay, and peaks of a single interval:

    >>> steps = np.repeat([2.0, 8.0, 3.0, 9.0], 200)
    >>> predict_reverting(steps, 2, season=24, week=168).round(0).tolist()
    [9.0, 9.0]
    >>> peaks = np.where(np.arange(800) % 37 == 36, 9.0, 2.0)
    >>> predict_reverting(peaks[:777], 2, season=24, week=168).round(0).tolist()
    [3.0, 3.0]
    """
    days = min(len(history), REVERTING_HISTORY_WEEKS * week) // season
    table = history[len(history) - days * season :].reshape(days, season).astype(np.float64)
    level = table.mean()
    shape = table.mean(axis=0) - level
    noise = ((table - table.mean(axis=1, keepdims=True) - shape) ** 2).sum() / max(days - 1, 1)
    shape_variation = days * (shape**2).sum()
    kept_share = max(1 - MEAN_DAY_SHRINKAGE_FACTOR * noise / shape_variation, 0.0) if shape_variation > 0 else 0.0
    day = level + shape * kept_share
    departure = (table - day).ravel()
    summed, end = np.concatenate([[0.0], np.cumsum(departure)]), np.arange(1, len(departure) + 1)
    begin = np.maximum(end - week, 0)
    slow = (summed[end] - summed[begin]) / (end - begin)
    fast = departure - slow
    leads = np.unique(np.geomspace(1, max(min(horizon, len(departure) // 2), 1), PERSISTENCE_LEADS).astype(np.int64))
    left = np.ones((len(leads), 2))
    for at, lead in enumerate(leads):
        for _ in range(2):
            for part, (component, other_component) in enumerate(((slow, fast), (fast, slow))):
                errs = departure[lead:] - left[at, 1 - part] * other_component[:-lead]
                share = np.clip(_least_absolute_factor(component[:-lead], errs), 0.0, 1.0)
                left[at, part] = (days * share + PRIOR_PERSISTENCE_DAYS[part]) / (days + PRIOR_PERSISTENCE_DAYS[part])
    ahead = np.log(np.arange(1, horizon + 1))
    of_slow, of_fast = (np.interp(ahead, np.log(leads), share_by_lead) for share_by_lead in left.T)
    forecast = day[np.arange(horizon) % season] + of_slow * slow[-1] + of_fast * fast[-1]
    return np.asarray(np.maximum(forecast, 0.0))


def _least_absolute_factor(cause: np.ndarray, effect: np.ndarray) -> float:
    """Fit `effect` = factor x `cause` by least absolute error: a weighted median of ratios; 1 if all causes are 0."""
    is_nonzero = np.abs(cause) > 1e-9
    if not is_nonzero.any():
        return 1.0
    ratio, weight = effect[is_nonzero] / cause[is_nonzero], np.abs(cause[is_nonzero])
    order = np.argsort(ratio)
    mass = np.cumsum(weight[order])
    return float(ratio[order][np.searchsorted(mass, mass[-1] / 2)])


def _library_models(model: str, rule: str, length: int, season: int, week: int) -> list[Any]:
    """Create the statsforecast models whose forecasts make up a model of :data:`SERIES_MODELS`.

    Parameters
    ----------
    model : str
        Name of the model.
    rule : str
        Rule of the series, see :func:`series_rule`.
    length : int
        Intervals of history.
    season : int
        Intervals in a season.
    week : int
        Intervals in a week.
    """
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


def _fit_and_predict(part: Any, history: np.ndarray, horizon: int) -> np.ndarray:  # noqa: ANN401 - a library's model
    """Fit a statsforecast model and forecast `horizon` intervals; NaN where it cannot be fitted."""
    with warnings.catch_warnings():
        # Whatever a fit complains about shows in its answer, which is judged by what came.
        warnings.simplefilter("ignore")
        try:
            return np.asarray(part.forecast(y=history, h=horizon)["mean"], dtype=np.float64)
        except Exception:  # the library raises the bare class: "no model able to be fitted"
            return np.full(horizon, np.nan)


class KnownJobs(Protocol):
    """Protocol of objects that know the jobs behind demand series as of any cutoff, such as :class:`RunOff`."""

    def demand_before(self, series: Sequence[str], origin: int) -> np.ndarray:
        """Return the demand before a cutoff as it was known then, shape (n_series, cutoff)."""

    def draws(self, series: Sequence[str], origin: int, steps: int, seed: int) -> np.ndarray:
        """Draw sample paths of the demand from a cutoff on, shape (n_series, n_paths, steps).

        Parameters
        ----------
        series : sequence of str
            Names of the series.
        origin : int
            Cutoff: index of the first interval after the known history.
        steps : int
            Intervals from the cutoff on.
        seed : int
            Seed of the sample paths.
        """


HOUR_OF_DAY, RUN_OFF, RUN_OFF_REVERTING = "HourOfDay", "RunOff", "RunOffReverting"
"""Names of the models with own quantiles; see :data:`CANDIDATE_MODELS`."""
MODELS_WITH_OWN_QUANTILES = (HOUR_OF_DAY, RUN_OFF, RUN_OFF_REVERTING)
"""Models that forecast quantiles themselves; the others forecast one value for each interval."""
MODELS_THAT_NEED_JOBS = (RUN_OFF, RUN_OFF_REVERTING)
"""Models that need the jobs behind a series."""
COMPONENT_MODELS_BY_CANDIDATE = {RUN_OFF_REVERTING: (RUN_OFF, REVERTING)}
"""Models that are averages of others, with the names of those, which are always tried as well."""
CANDIDATE_MODELS = (*SERIES_MODELS, *MODELS_WITH_OWN_QUANTILES)
"""Names of all models, from simple to elaborate: those of a series alone, and those with own quantiles.

HourOfDay
    Quantiles of the same hour over four weeks.
RunOff
    Quantiles of sample paths of running, queued and arriving jobs.
RunOffReverting
    The mean of the forecasts RunOff and Reverting.
"""
CPU_S_PER_FORECAST_BY_MODEL = dict.fromkeys(CANDIDATE_MODELS, 0.0002)
CPU_S_PER_FORECAST_BY_MODEL |= {REVERTING: 0.003, "Median": 0.02, "AutoETS": 0.04, RUN_OFF: 0.01}
"""Measured CPU seconds of one forecast of an hourly series by model, without its component models. A CPU budget is
compared with these constants, so it selects the same models on every machine."""


def usable_candidates(rule: str, *, length: int, season: int, week: int) -> tuple[str, ...]:
    """List the models of :data:`CANDIDATE_MODELS` that the rule and length of a series allow, from simple to elaborate.

    RunOff is always allowed, because known jobs are informative for any series.

    Parameters
    ----------
    rule : str
        Rule of the series, see :func:`series_rule`.
    length : int
        Intervals of history.
    season : int
        Intervals in a season.
    week : int
        Intervals in a week.

    Examples
    --------
    >>> usable_candidates("constant", length=400, season=24, week=168)
    ('Naive', 'RunOff')
    """
    univariate = usable_models(rule, length=length, season=season, week=week)
    hours = (HOUR_OF_DAY,) if rule not in ("short", "constant") and season > 1 else ()
    return (*univariate, *hours, RUN_OFF, *((RUN_OFF_REVERTING,) if REVERTING in univariate else ()))


def add_component_models(models: Sequence[str]) -> tuple[str, ...]:
    """Add the naive forecast and the component models of averaged models, from simple to elaborate.

    Examples
    --------
    >>> add_component_models(["RunOffReverting"])
    ('Naive', 'Reverting', 'RunOff', 'RunOffReverting')
    """
    wanted = {NAIVE, *models, *(part for model in models for part in COMPONENT_MODELS_BY_CANDIDATE.get(model, ()))}
    return tuple(model for model in CANDIDATE_MODELS if model in wanted)


def weighable_candidates(models: Sequence[str], *, with_jobs: bool) -> tuple[str, ...]:
    """List the models that may get a weight in the forecast; where jobs are known, without the slowest.

    Examples
    --------
    >>> weighable_candidates(["Naive", "AutoETS"], with_jobs=True)
    ('Naive',)
    """
    # With known jobs the slowest are baseline models only: the forecast is no worse (``docs/results/forecast.md``).
    return tuple(model for model in models if not (with_jobs and model in SLOWEST_SERIES_MODELS))


def affordable_candidates(budget_s: float | None, forecasts: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the models into those whose `forecasts` forecasts fit a budget of CPU seconds for each series, and others.

    The most expensive models are left out first, together with the averages that contain them.

    Examples
    --------
    >>> affordable_candidates(0.1, 21)[1]
    ('RunOff', 'RunOffReverting')
    """
    kept, left = list(CANDIDATE_MODELS), []
    # Yardsticks stand in every table, whatever they cost.
    free = [model for model in CANDIDATE_MODELS if model not in (NAIVE, "SeasonalNaive", *SLOWEST_SERIES_MODELS)]
    for model in sorted(free, key=lambda candidate: -CPU_S_PER_FORECAST_BY_MODEL[candidate]):
        if (
            budget_s is None
            or sum(CPU_S_PER_FORECAST_BY_MODEL[candidate] for candidate in free if candidate in kept) * forecasts
            <= budget_s
        ):
            break
        for removed in (model, *(made for made, parts in COMPONENT_MODELS_BY_CANDIDATE.items() if model in parts)):
            if removed in kept:
                kept.remove(removed)
                left.append(removed)
    return tuple(kept), tuple(left)


def expected_cpu_s(models: Sequence[str], forecasts: int) -> float:
    """Estimate the CPU seconds of `forecasts` forecasts with each of the models.

    Examples
    --------
    >>> expected_cpu_s(["Median", "AutoETS"], 100)
    6.0
    """
    return round(sum(CPU_S_PER_FORECAST_BY_MODEL[model] for model in models) * forecasts, 6)


def hour_quantiles(history: np.ndarray, steps: int, *, season: int, week: int) -> tuple[np.ndarray, np.ndarray]:
    """Forecast by the same time of day in the last four weeks: mean (steps,) and quantiles (steps, n_levels).

    Parameters
    ----------
    history : numpy.ndarray, shape (n,)
        Values of the series.
    steps : int
        Intervals from the cutoff on.
    season : int
        Intervals in a season.
    week : int
        Intervals in a week.

    Examples
    --------
    >>> mean, quantiles = hour_quantiles(np.tile([1.0, 5.0], 10), 3, season=2, week=14)
    >>> mean.tolist(), quantiles[:, 3].tolist()
    ([1.0, 5.0, 1.0], [1.0, 5.0, 1.0])
    """
    days = min(len(history) // season, SMOOTHING_HISTORY_WEEKS * week // season)
    table = history[len(history) - days * season :].reshape(days, season)
    slots = np.arange(steps) % season
    return table.mean(axis=0)[slots], np.quantile(table, QUANTILE_LEVELS, axis=0).T[slots]


SERIES_PER_PATH_CHUNK = 64
"""Number of series whose sample paths are in memory at the same time."""


def time_univariate(
    pasts: Sequence[np.ndarray], models: Sequence[str], gap: int, horizon: int, season: int, week: int
) -> tuple[dict[str, list[tuple[np.ndarray, np.ndarray]]], dict[str, float]]:
    """Forecast one series at each cutoff with models of a series alone, and measure their CPU seconds.

    Returns mean and quantiles at each cutoff, and the CPU seconds, both by model.

    Parameters
    ----------
    pasts : sequence of numpy.ndarray
        Values of the series up to each cutoff.
    models : sequence of str
        Names of the models.
    gap : int
        Intervals from the cutoff to the first one that is forecast.
    horizon : int
        Intervals to forecast.
    season : int
        Intervals in a season.
    week : int
        Intervals in a week.
    """
    answers: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    cpu_s = {}
    for model in models:
        clock = process_time()
        answers[model] = [forecast_univariate(past, model, gap, horizon, season, week) for past in pasts]
        cpu_s[model] = process_time() - clock
    return answers, cpu_s


def time_from_jobs(
    known_jobs: KnownJobs, ids: Sequence[str], origin: int, gap: int, horizon: int, seed: int
) -> tuple[tuple[np.ndarray, np.ndarray], float]:
    """Forecast every series at one cutoff from sample paths of its jobs, and measure the CPU seconds.

    Returns mean and quantiles as :func:`forecast_from_jobs`, and the CPU seconds.

    Parameters
    ----------
    known_jobs : KnownJobs
        Jobs behind the series.
    ids : sequence of str
        Names of the series.
    origin : int
        Cutoff: index of the first interval after the known history.
    gap : int
        Intervals from the cutoff to the first one that is forecast.
    horizon : int
        Intervals to forecast.
    seed : int
        Seed of the sample paths.
    """
    clock = process_time()
    return forecast_from_jobs(known_jobs, ids, origin, gap, horizon, seed), process_time() - clock


def forecast_univariate(
    past: np.ndarray, model: str, gap: int, horizon: int, season: int, week: int
) -> tuple[np.ndarray, np.ndarray]:
    """Forecast one series from its history alone: mean (horizon,), quantiles (horizon, n_levels).

    Parameters
    ----------
    past : numpy.ndarray, shape (n,)
        Values of the series up to the cutoff.
    model : str
        Name of the model.
    gap : int
        Intervals from the cutoff to the first one that is forecast.
    horizon : int
        Intervals to forecast.
    season : int
        Intervals in a season.
    week : int
        Intervals in a week.
    """
    if model == HOUR_OF_DAY:
        if len(past) < season:
            return forecast_univariate(past, NAIVE, gap, horizon, season, week)
        mean, levels = hour_quantiles(past, gap + horizon, season=season, week=week)
        return mean[gap:], levels[gap:]
    mean = predict_series(past, model, gap + horizon, season=season, week=week)[gap:]
    return mean, np.broadcast_to(mean[:, None], (horizon, len(QUANTILE_LEVELS)))


def forecast_from_jobs(
    known_jobs: KnownJobs, ids: Sequence[str], origin: int, gap: int, horizon: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Forecast from sample paths of jobs: mean (n_series, horizon), quantiles (n_series, horizon, n_levels).

    Parameters
    ----------
    known_jobs : KnownJobs
        Jobs behind the series.
    ids : sequence of str
        Names of the series.
    origin : int
        Cutoff: index of the first interval after the known history.
    gap : int
        Intervals from the cutoff to the first one that is forecast.
    horizon : int
        Intervals to forecast.
    seed : int
        Seed of the sample paths.
    """
    means, levels = [], []
    for first in range(0, len(ids), SERIES_PER_PATH_CHUNK):
        paths = known_jobs.draws(ids[first : first + SERIES_PER_PATH_CHUNK], origin, gap + horizon, seed)[..., gap:]
        means.append(paths.mean(axis=1))
        levels.append(np.moveaxis(np.quantile(paths, QUANTILE_LEVELS, axis=1), 0, -1))
    return np.concatenate(means), np.concatenate(levels)


def mean_with_reverting(paths: tuple[np.ndarray, np.ndarray], reverting: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Average a forecast from sample paths, (mean, quantiles), with the point forecast of the model Reverting."""
    return (paths[0] + reverting) / 2, (paths[1] + reverting[..., None]) / 2
