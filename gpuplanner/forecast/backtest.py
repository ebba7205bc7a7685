"""Rolling-origin backtests and measures of forecast error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd

import numpy as np
import polars as pl

from gpuplanner.core.errors import SchemaError
from gpuplanner.core.execution import TasksDone, Workers, in_turn
from gpuplanner.forecast.statistical_models import (
    HISTORY_WEEKS,
    LEVELS,
    MODELS,
    NEED_JOBS,
    REVERTING,
    RUN_OFF,
    RUN_OFF_REVERTING,
    WITH_QUANTILES,
    Known,
    SeriesGrid,
    as_grid,
    between,
    origin_answers,
    rule_of,
    series_answers,
    usable_candidates,
    with_parts,
)


def mae(actual: np.ndarray, predicted: np.ndarray) -> float:
    """Mean absolute error, in the unit of the series.

    Examples
    --------
    >>> mae(np.array([1.0, 2.0]), np.array([2.0, 4.0]))
    1.5
    """
    return float(np.abs(actual - predicted).mean())


def seasonal_scale(history: np.ndarray, season: int) -> float:
    """Mean absolute error of the seasonal naive forecast within the history: the unit of MASE.

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
    """Symmetric mean absolute percentage error as a share from 0 to 2; two zeros count as no error.

    Examples
    --------
    >>> smape(np.array([0.0, 3.0]), np.array([0.0, 1.0]))
    0.5
    """
    size = np.abs(actual) + np.abs(predicted)
    error = 2 * np.abs(actual - predicted)
    return float(np.divide(error, size, out=np.zeros_like(size), where=size > 0).mean())


def pinball(actual: np.ndarray, predicted: np.ndarray, quantile: float) -> float:
    """Mean loss of a quantile forecast: what it costs to plan at that quantile.

    Examples
    --------
    >>> pinball(np.array([10.0, 10.0]), np.array([8.0, 12.0]), 0.75)
    1.0
    """
    short = actual - predicted
    return float(np.maximum(quantile * short, (quantile - 1) * short).mean())


@dataclass(frozen=True)
class Backtest:
    """What every model would have said at every origin, and what came.

    Parameters
    ----------
    grid : SeriesGrid
        The series.
    horizon, step : int
        Slots forecast at each origin, and between origins.
    origins : tuple of int
        Slots at which the history ended, ascending: the history is ``values[:, :origin]``.
    models : tuple of tuple of str
        For each series, the models that its rule allows, from simple to elaborate.
    rules : tuple of str
        For each series, the rule that its history falls under (``forecast.RULES``).
    actual : numpy.ndarray, shape (n_series, n_origins, horizon)
        What came.
    predicted : dict of str to numpy.ndarray, each of shape (n_series, n_origins, horizon)
        What each model said; NaN where a series does not use the model or had not begun.
    scale : numpy.ndarray, shape (n_series, n_origins)
        Unit of MASE at each origin.
    unit : numpy.ndarray, shape (n_series, n_origins + 1)
        Standard deviation of the last four weeks before each origin and the end; 0 where a series had not begun.
    largest : numpy.ndarray, shape (n_series, n_origins + 1)
        Largest value seen before each origin, and before the end.
    cap : numpy.ndarray, shape (n_series,)
        What each series can at most be; infinite where nothing is known of it.
    allowed : numpy.ndarray of bool, shape (n_origins + 1, n_models, n_series)
        Whether a candidate fits what was seen of a series before each origin, and before the end; where it does
        not, the last value stands in for it.
    full : numpy.ndarray of bool, shape (n_origins + 1, n_series)
        Whether a series fell under the rule "full" then: the others make no common record.
    gap : int
        Slots between an origin and the first slot that is forecast.
    own_quantiles : dict of str to numpy.ndarray, each of shape (n_series, n_origins, horizon, n_levels)
        Of candidates that say quantiles themselves.
    seen : list of numpy.ndarray
        For each origin and the end, the demand before it as it was known then, shape (n_series, origin); empty
        where that is the series itself.
    cpu_s : dict of str to float
        CPU seconds of each candidate, over all series and origins.
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
    seen: tuple[np.ndarray, ...] = ()
    cpu_s: dict[str, float] = field(default_factory=dict)

    def said(self, model: str) -> np.ndarray:
        """Quantiles that a candidate said at every origin, shape (n_series, n_origins, horizon, n_levels)."""
        if model in self.own_quantiles:
            return self.own_quantiles[model]
        mean = self.predicted[model]
        return np.broadcast_to(mean[..., None], (*mean.shape, len(LEVELS)))

    def known_at(self, place: int) -> np.ndarray:
        """Outcomes of all origins as far as they were known at one, NaN elsewhere; `place` may be the end."""
        edge = (*self.origins, self.grid.values.shape[1])[place]
        slots = np.array(self.origins)[:, None] + self.gap + np.arange(self.horizon)
        history = self.seen[place] if self.seen else self.grid.values
        known = history[:, np.minimum(slots, edge - 1)]
        return np.where((slots < edge) & ~np.isnan(self.actual), known, np.nan)


def backtest(
    demand: pl.DataFrame,
    *,
    horizon: int,
    windows: int = 8,
    step: int | None = None,
    gap: int = 0,
    known: Known | None = None,
    models: Sequence[str] = MODELS,
    caps: Mapping[str, float] | None = None,
    walk: bool = False,
    seed: int = 1,
    workers: Workers = 1,
    progress: TasksDone | None = None,
) -> Backtest:
    """Forecast every series from several origins in its past.

    Parameters
    ----------
    demand : polars.DataFrame
        Table ``schemas.Demand`` on one grid (see ``demand_series``).
    horizon : int
        Slots to forecast at each origin.
    windows : int
        Number of origins; the last one lies `gap` and `horizon` before the end of the history. Fewer if the
        history is too short for so many different ones.
    step : int, optional
        Slots between origins. Default: as far apart as the history allows, whole seasons where it can, no
        more than the horizon or three seasons, whichever is longer.
    gap : int
        Slots between an origin and the first slot that is forecast: the time that it takes to act on a forecast.
    known : Known, optional
        What is known of the jobs behind the series; candidates that need it are left out without it.
    models : sequence of str
        Candidates, of ``forecast.CANDIDATES``; the naive forecast and what they are made of are always among them.
    caps : mapping of str to float, optional
        What a series can at most be: its quota, or the GPUs of its fleet.
    walk : bool
        Spread the origins over the last half of the history, at hours that walk through the day.
    seed : int
        Of the sample paths.
    workers : int or str
        Processes that forecast, or the address of a Dask scheduler (extra ``scale``). They change nothing of what is
        said; a program that asks for several must be one that
        can be imported (``if __name__ == "__main__"``).
    progress : callable, optional
        Is told how many tasks of how many are done: series first, then origins.

    Returns
    -------
    Backtest
        Forecasts and outcomes. Each origin fits anew, on the slots before it alone.

    Raises
    ------
    SchemaError
        If the history has not even two slots more than the horizon: without a past error no forecast is made.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> ds = [datetime(2026, 2, 2, tzinfo=UTC) + timedelta(hours=hour) for hour in range(96)]
    >>> demand = pl.DataFrame({"unique_id": "a/gpu", "tenant": "a", "profile": "gpu", "ds": ds, "y": 2.0})
    >>> test = backtest(demand, horizon=24, windows=4)
    >>> test.origins, test.rules
    ((48, 56, 64, 72), ('constant',))
    """
    grid = as_grid(demand)
    origins, step = _origins(grid, gap + horizon, windows, step, walk)
    ends = (*origins, grid.values.shape[1])
    seen = tuple(_as_seen(grid, known, end) for end in ends) if known else ()
    recent = HISTORY_WEEKS * grid.week
    wanted = [model for model in with_parts(models) if known or model not in NEED_JOBS]
    shape = (len(grid.ids), len(origins), horizon)
    predicted = {model: np.full(shape, np.nan) for model in wanted}
    quantiles = {model: np.full((*shape, len(LEVELS)), np.nan) for model in wanted if model in WITH_QUANTILES}
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
        rules.append(rule_of(history, season=grid.season, week=grid.week))
        fit = usable_candidates(rules[-1], length=len(history), season=grid.season, week=grid.week)
        usable.append(tuple(model for model in wanted if model in fit))
        for place, end in enumerate(ends):
            past = (seen[place] if known else grid.values)[row, begin:end]
            if len(past) < 2:
                allowed[place, 0, row] = True
                continue
            rule = rule_of(past, season=grid.season, week=grid.week)
            full[place, row] = rule == "full"
            fit = usable_candidates(rule, length=len(past), season=grid.season, week=grid.week)
            allowed[place, :, row] = [model in fit for model in wanted]
            unit[row, place], largest[row, place] = past[-recent:].std(), past.max()
            if place == len(origins):
                continue
            actual[row, place] = grid.values[row, end + gap : end + gap + horizon]
            scale[row, place] = seasonal_scale(past, grid.season)
            pasts[row].append(past)
    alone = [model for model in wanted if model not in NEED_JOBS]
    tasks = [(past, alone, gap, horizon, grid.season, grid.week) for past in pasts]
    for row, (said, took) in in_turn(series_answers, tasks, workers=workers, progress=progress):
        places = np.flatnonzero(~np.isnan(actual[row, :, 0]))
        for model in alone:
            cpu_s[model] += took[model]
            for at, (mean, levels) in zip(places, said[model], strict=True):
                predicted[model][row, at] = mean
                if model in quantiles:
                    quantiles[model][row, at] = levels
    if known and RUN_OFF in wanted:
        asked = [(known, grid.ids, origin, gap, horizon, seed) for origin in origins]
        for place, (drawn, spent) in in_turn(origin_answers, asked, workers=workers, progress=progress):
            predicted[RUN_OFF][:, place], quantiles[RUN_OFF][:, place] = drawn
            cpu_s[RUN_OFF] += spent
        for each in (predicted, quantiles):
            each[RUN_OFF][np.isnan(actual)] = np.nan
        if RUN_OFF_REVERTING in wanted:
            mean, levels = between((predicted[RUN_OFF], quantiles[RUN_OFF]), predicted[REVERTING])
            predicted[RUN_OFF_REVERTING], quantiles[RUN_OFF_REVERTING] = mean, levels
            cpu_s[RUN_OFF_REVERTING] = cpu_s[RUN_OFF] + cpu_s[REVERTING]
    cap = np.array([(caps or {}).get(uid, np.inf) for uid in grid.ids])
    return Backtest(
        grid, horizon, step, origins, tuple(usable), tuple(rules), actual, predicted, scale, unit, largest, cap,
        allowed, full, gap, quantiles, seen, cpu_s,
    )  # fmt: skip


def _as_seen(grid: SeriesGrid, known: Known, end: int) -> np.ndarray:
    """Demand before a slot as it was known then; unknown before a series begins."""
    return np.where(np.isnan(grid.values[:, :end]), np.nan, known.seen(grid.ids, end))


def _origins(grid: SeriesGrid, ahead: int, windows: int, step: int | None, walk: bool) -> tuple[tuple[int, ...], int]:
    """Ends of history to forecast from, ascending, and the distance between them."""
    last = grid.values.shape[1] - ahead
    if ahead < 1 or windows < 1 or last < 2 or (step is not None and step < 1):
        expected = "horizon, windows and step of at least 1, and two intervals more than the horizon"
        got = f"horizon {ahead}, windows {windows}, step {step}, {grid.values.shape[1]} intervals"
        todo = "Shorten the horizon or give a longer history."
        raise SchemaError("forecast: history", expected, got, todo)
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
    origins = [last - step * back for back in range(windows) if last - step * back >= earliest]
    return tuple(reversed(origins)), step
