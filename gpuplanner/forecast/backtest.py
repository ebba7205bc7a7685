"""Rolling-origin backtests and measures of forecast error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd

import numpy as np
import polars as pl

from gpuplanner.core.errors import SchemaError
from gpuplanner.core.libraries_plugins_and_workers import TaskProgress, Workers, run_tasks
from gpuplanner.forecast.statistical_models import (
    MODELS_THAT_NEED_JOBS,
    MODELS_WITH_OWN_QUANTILES,
    QUANTILE_LEVELS,
    REVERTING,
    RUN_OFF,
    RUN_OFF_REVERTING,
    SERIES_MODELS,
    SMOOTHING_HISTORY_WEEKS,
    KnownJobs,
    SeriesGrid,
    add_component_models,
    mean_with_reverting,
    series_grid,
    series_rule,
    time_from_jobs,
    time_univariate,
    usable_candidates,
)


def mae(actual: np.ndarray, predicted: np.ndarray) -> float:
    """Compute the mean absolute error, in the unit of the series.

    Examples
    --------
    >>> mae(np.array([1.0, 2.0]), np.array([2.0, 4.0]))
    1.5
    """
    return float(np.abs(actual - predicted).mean())


def seasonal_scale(history: np.ndarray, season: int) -> float:
    """Compute the mean absolute error of the seasonal naive forecast in the history: the unit of MASE.

    Returns
    -------
    float
        NaN where the history repeats itself exactly or is not longer than a season, so that no error can be
        measured in this unit.

    References
    ----------
    Hyndman, Koehler, "Another look at measures of forecast accuracy", International Journal of Forecasting
    22(4), 2006, doi 10.1016/j.ijforecast.2006.03.001.

    Examples
    --------
    >>> seasonal_scale(np.array([1.0, 2.0, 3.0, 2.0]), 2)
    1.0
    """
    if len(history) <= season:
        return float("nan")
    scale = float(np.abs(history[season:] - history[:-season]).mean())
    return scale if scale > 0 else float("nan")


def smape(actual: np.ndarray, predicted: np.ndarray) -> float:
    """Compute the symmetric mean absolute percentage error, 0 to 2; two zeros count as no error.

    Examples
    --------
    >>> smape(np.array([0.0, 3.0]), np.array([0.0, 1.0]))
    0.5
    """
    size = np.abs(actual) + np.abs(predicted)
    error = 2 * np.abs(actual - predicted)
    return float(np.divide(error, size, out=np.zeros_like(size), where=size > 0).mean())


def pinball(actual: np.ndarray, predicted: np.ndarray, quantile: float) -> float:
    """Compute the mean pinball loss of a quantile forecast.

    Examples
    --------
    >>> pinball(np.array([10.0, 10.0]), np.array([8.0, 12.0]), 0.75)
    1.0
    """
    short = actual - predicted
    return float(np.maximum(quantile * short, (quantile - 1) * short).mean())


@dataclass(frozen=True)
class Backtest:
    """Forecasts of every model at every cutoff, and the actual values.

    Parameters
    ----------
    grid : SeriesGrid
        The series.
    horizon, step : int
        Number of intervals forecast at each cutoff, and number of intervals between two cutoffs.
    origins : tuple of int
        Cutoffs as interval numbers, ascending: the history of a cutoff is ``values[:, :cutoff]``.
    models : tuple of tuple of str
        For each series, the models that its rule allows, from simple to elaborate.
    rules : tuple of str
        For each series, the rule that its history falls under (a key of ``DESCRIPTION_BY_SERIES_RULE``).
    actual : numpy.ndarray, shape (n_series, n_origins, horizon)
        Actual values.
    predicted : dict of str to numpy.ndarray, each of shape (n_series, n_origins, horizon)
        Point forecasts of each model; NaN where a series does not use the model or had not begun.
    scale : numpy.ndarray, shape (n_series, n_origins)
        Unit of MASE at each cutoff, see :func:`seasonal_scale`.
    unit : numpy.ndarray, shape (n_series, n_origins + 1)
        Standard deviation of the last four weeks before each cutoff and before the end of the history; 0 where a series
        had not begun.
    largest : numpy.ndarray, shape (n_series, n_origins + 1)
        Largest observed value before each cutoff, and before the end of the history.
    cap : numpy.ndarray, shape (n_series,)
        Upper limit of each series, such as its quota [GPUs]; infinite if no limit is known.
    allowed : numpy.ndarray of bool, shape (n_origins + 1, n_models, n_series)
        Whether the rule of a series allows a model at each cutoff and at the end of the history; where it does not,
        the last value is forecast instead.
    full : numpy.ndarray of bool, shape (n_origins + 1, n_series)
        Whether a series fell under the rule "full" at that cutoff: only these series count for pooled errors.
    gap : int
        Intervals between a cutoff and the first interval that is forecast.
    own_quantiles : dict of str to numpy.ndarray, each of shape (n_series, n_origins, horizon, n_levels)
        Quantiles of the models that forecast quantiles themselves, by model name.
    history_then : list of numpy.ndarray
        For each cutoff and the end of the history, the demand before it as it was known then, shape (n_series, cutoff);
        empty if that is the series itself.
    cpu_s : dict of str to float
        CPU seconds of each model, over all series and cutoffs.
    """

    grid: SeriesGrid
    horizon: int
    step: int
    origins: tuple[int, ...]
    models: tuple[tuple[str, ...], ...]
    rules: tuple[str, ...]
    actual: np.ndarray
    predicted: dict[str, np.ndarray]
    scale: np.ndarray
    unit: np.ndarray
    largest: np.ndarray
    cap: np.ndarray
    allowed: np.ndarray
    full: np.ndarray
    gap: int = 0
    own_quantiles: dict[str, np.ndarray] = field(default_factory=dict)
    history_then: tuple[np.ndarray, ...] = ()
    cpu_s: dict[str, float] = field(default_factory=dict)

    def raw_quantiles(self, model: str) -> np.ndarray:
        """Return a model's uncalibrated quantiles at every cutoff, shape (n_series, n_origins, horizon, n_levels)."""
        if model in self.own_quantiles:
            return self.own_quantiles[model]
        mean = self.predicted[model]
        return np.broadcast_to(mean[..., None], (*mean.shape, len(QUANTILE_LEVELS)))

    def known_at(self, cutoff_index: int) -> np.ndarray:
        """Return the actual values known at a cutoff, NaN elsewhere; `cutoff_index` may be the end of the history."""
        edge = (*self.origins, self.grid.values.shape[1])[cutoff_index]
        slots = np.array(self.origins)[:, None] + self.gap + np.arange(self.horizon)
        history = self.history_then[cutoff_index] if self.history_then else self.grid.values
        known_values = history[:, np.minimum(slots, edge - 1)]
        return np.where((slots < edge) & ~np.isnan(self.actual), known_values, np.nan)


def backtest(
    demand: pl.DataFrame,
    *,
    horizon: int,
    windows: int = 8,
    step: int | None = None,
    gap: int = 0,
    known_jobs: KnownJobs | None = None,
    models: Sequence[str] = SERIES_MODELS,
    caps: Mapping[str, float] | None = None,
    walk: bool = False,
    seed: int = 1,
    workers: Workers = 1,
    progress: TaskProgress | None = None,
) -> Backtest:
    """Forecast every series from several cutoffs in its past (rolling origin).

    Parameters
    ----------
    demand : polars.DataFrame
        Table ``schemas.Demand`` on one grid (see ``demand_series``).
    horizon : int
        Intervals to forecast at each cutoff.
    windows : int
        Number of cutoffs; the last one lies `gap` and `horizon` before the end of the history. Fewer if the
        history is too short for so many different ones.
    step : int, optional
        Intervals between cutoffs. Default: as far apart as the history allows, whole seasons where it can, no
        more than the horizon or three seasons, whichever is longer.
    gap : int
        Intervals between a cutoff and the first one that is forecast: the time that it takes to act on a forecast.
    known_jobs : KnownJobs, optional
        Jobs from which the series were computed; without them the models that need jobs are left out.
    models : sequence of str
        Models from :data:`CANDIDATE_MODELS`; the naive forecast and the components of combined models are added.
    caps : mapping of str to float, optional
        Upper limit of each series by name: its quota, or the GPUs of its fleet. [GPUs]
    walk : bool
        Spread the cutoffs over the last half of the history, so that they fall on different hours of the day.
    seed : int
        Seed of the sample paths.
    workers : int or str
        Number of processes, or the address of a Dask scheduler (extra ``scale``). It does not change the forecasts. A
        program that uses several processes must be importable (``if __name__ == "__main__"``).
    progress : callable, optional
        Called with the number of finished tasks and of all tasks: series first, then cutoffs.

    Returns
    -------
    Backtest
        Forecasts and actual values. The models are fitted again at each cutoff, on the intervals before it alone.

    Raises
    ------
    SchemaError
        If the history has not even two intervals more than the horizon: without a past error no forecast is made.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> ds = [datetime(2026, 2, 2, tzinfo=UTC) + timedelta(hours=hour) for hour in range(96)]
    >>> demand = pl.DataFrame({"unique_id": "a/gpu", "tenant": "a", "profile": "gpu", "ds": ds, "y": 2.0})
    >>> test = backtest(demand, horizon=24, windows=4)
    >>> test.origins, test.rules
    ((48, 56, 64, 72), ('constant',))
    """
    grid = series_grid(demand)
    origins, step = _choose_cutoffs(grid, gap + horizon, windows, step, walk)
    ends = (*origins, grid.values.shape[1])
    demand_then = tuple(_demand_known_before(grid, known_jobs, end) for end in ends) if known_jobs else ()
    recent = SMOOTHING_HISTORY_WEEKS * grid.week
    wanted = [model for model in add_component_models(models) if known_jobs or model not in MODELS_THAT_NEED_JOBS]
    shape = (len(grid.ids), len(origins), horizon)
    predicted = {model: np.full(shape, np.nan) for model in wanted}
    quantiles = {
        model: np.full((*shape, len(QUANTILE_LEVELS)), np.nan) for model in wanted if model in MODELS_WITH_OWN_QUANTILES
    }
    cpu_s = dict.fromkeys(wanted, 0.0)
    actual = np.full(shape, np.nan)
    scale = np.full(shape[:2], np.nan)
    unit, largest = (np.zeros((len(grid.ids), len(ends))) for _ in range(2))
    rules, usable = [], []
    pasts: list[list[np.ndarray]] = [[] for _ in grid.ids]
    full = np.zeros((len(ends), len(grid.ids)), dtype=bool)
    allowed = np.zeros((len(ends), len(wanted), len(grid.ids)), dtype=bool)
    for row in range(len(grid.ids)):
        begin = int(np.isnan(grid.values[row]).sum())  # unknown only before the series begins
        history = grid.values[row, begin:]
        rules.append(series_rule(history, season=grid.season, week=grid.week))
        fit = usable_candidates(rules[-1], length=len(history), season=grid.season, week=grid.week)
        usable.append(tuple(model for model in wanted if model in fit))
        for cutoff_index, end in enumerate(ends):
            past = (demand_then[cutoff_index] if known_jobs else grid.values)[row, begin:end]
            if len(past) < 2:
                allowed[cutoff_index, 0, row] = True
                continue
            rule = series_rule(past, season=grid.season, week=grid.week)
            full[cutoff_index, row] = rule == "full"
            fit = usable_candidates(rule, length=len(past), season=grid.season, week=grid.week)
            allowed[cutoff_index, :, row] = [model in fit for model in wanted]
            unit[row, cutoff_index], largest[row, cutoff_index] = past[-recent:].std(), past.max()
            if cutoff_index == len(origins):
                continue
            actual[row, cutoff_index] = grid.values[row, end + gap : end + gap + horizon]
            scale[row, cutoff_index] = seasonal_scale(past, grid.season)
            pasts[row].append(past)
    univariate = [model for model in wanted if model not in MODELS_THAT_NEED_JOBS]
    tasks = [(past, univariate, gap, horizon, grid.season, grid.week) for past in pasts]
    for row, (answers, took) in run_tasks(time_univariate, tasks, workers=workers, progress=progress):
        places = np.flatnonzero(~np.isnan(actual[row, :, 0]))
        for model in univariate:
            cpu_s[model] += took[model]
            for at, (mean, levels) in zip(places, answers[model], strict=True):
                predicted[model][row, at] = mean
                if model in quantiles:
                    quantiles[model][row, at] = levels
    if known_jobs and RUN_OFF in wanted:
        tasks_with_jobs = [(known_jobs, grid.ids, origin, gap, horizon, seed) for origin in origins]
        for cutoff_index, (drawn, spent) in run_tasks(
            time_from_jobs, tasks_with_jobs, workers=workers, progress=progress
        ):
            predicted[RUN_OFF][:, cutoff_index], quantiles[RUN_OFF][:, cutoff_index] = drawn
            cpu_s[RUN_OFF] += spent
        for arrays in (predicted, quantiles):
            arrays[RUN_OFF][np.isnan(actual)] = np.nan
        if RUN_OFF_REVERTING in wanted:
            mean, levels = mean_with_reverting((predicted[RUN_OFF], quantiles[RUN_OFF]), predicted[REVERTING])
            predicted[RUN_OFF_REVERTING], quantiles[RUN_OFF_REVERTING] = mean, levels
            cpu_s[RUN_OFF_REVERTING] = cpu_s[RUN_OFF] + cpu_s[REVERTING]
    cap = np.array([(caps or {}).get(uid, np.inf) for uid in grid.ids])
    return Backtest(
        grid, horizon, step, origins, tuple(usable), tuple(rules), actual, predicted, scale, unit, largest, cap,
        allowed, full, gap, quantiles, demand_then, cpu_s,
    )  # fmt: skip


def _demand_known_before(grid: SeriesGrid, known_jobs: KnownJobs, end: int) -> np.ndarray:
    """Return the demand before interval `end` as it was known then, (n_series, end); NaN before a series begins."""
    return np.where(np.isnan(grid.values[:, :end]), np.nan, known_jobs.demand_before(grid.ids, end))


def _choose_cutoffs(
    grid: SeriesGrid, ahead: int, windows: int, step: int | None, walk: bool
) -> tuple[tuple[int, ...], int]:
    """Choose the cutoffs of a backtest, as ascending interval numbers, and the number of intervals between them.

    Parameters
    ----------
    grid : SeriesGrid
        The series.
    ahead : int
        Intervals from a cutoff to the end of its forecast.
    windows : int
        Number of cutoffs.
    step : int or None
        Intervals between cutoffs; None: derived from the length of the history.
    walk : bool
        Whether successive cutoffs fall on different hours of the day.
    """
    last = grid.values.shape[1] - ahead
    if ahead < 1 or windows < 1 or last < 2 or (step is not None and step < 1):
        expected = "horizon, windows and step of at least 1, and two intervals more than the horizon"
        got = f"horizon {ahead}, windows {windows}, step {step}, {grid.values.shape[1]} intervals"
        raise SchemaError("forecast: history", expected, got, "Shorten the horizon or give a longer history.")
    earliest = min(2 * grid.week, max(2 * grid.season, last // 2), last)
    if step is None and walk:
        earliest = min(max(earliest, grid.values.shape[1] // 2), last)
        step = max((last - earliest) // max(windows - 1, 1), 1)
        while step > 1 and gcd(step, grid.season) > 1:
            step -= 1
    elif step is None:
        room = (last - earliest) // max(windows - 1, 1)
        step = max(min(room, max(ahead, 3 * grid.season)), 1)
        step -= step % grid.season if step > grid.season else 0
    origins = [last - step * number for number in range(windows) if last - step * number >= earliest]
    return tuple(reversed(origins)), step
