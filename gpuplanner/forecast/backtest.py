"""Rolling-origin backtests: forecast from the past, with nothing of the future in sight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from gpuplanner.errors import SchemaError, message
from gpuplanner.forecast.grid import SeriesGrid, as_grid
from gpuplanner.forecast.models import HISTORY_WEEKS, MODELS, predict, rule_of, usable_models
from gpuplanner.forecast.scores import seasonal_scale


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
    spread : numpy.ndarray, shape (n_series, n_origins)
        Standard deviation of the last four weeks before each origin.
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
    spread: np.ndarray

    def to_frame(self) -> pl.DataFrame:
        """All forecasts as a long table.

        Returns
        -------
        polars.DataFrame
            ``unique_id, model, cutoff, ds, y, mean``, sorted by the first four.
        """
        grid = self.grid
        ahead = np.arange(self.horizon)
        return pl.concat(
            pl.DataFrame(
                {
                    "unique_id": uid,
                    "model": model,
                    "cutoff": grid.time(origin),
                    "ds": [grid.time(origin + int(slot)) for slot in ahead],
                    "y": self.actual[row, place],
                    "mean": self.predicted[model][row, place],
                }
            )
            for row, uid in enumerate(grid.ids)
            for model in self.models[row]
            for place, origin in enumerate(self.origins)
        ).sort("unique_id", "model", "cutoff", "ds")


def backtest(demand: pl.DataFrame, *, horizon: int, windows: int = 8, step: int | None = None) -> Backtest:
    """Forecast every series from several origins in its past.

    Parameters
    ----------
    demand : polars.DataFrame
        Table ``schemas.Demand`` on one grid (see ``demand_series``).
    horizon : int
        Slots to forecast at each origin.
    windows : int
        Number of origins; the last one lies `horizon` before the end of the history. Fewer if the history
        is too short for so many different ones.
    step : int, optional
        Slots between origins. Default: as far apart as the history allows, whole seasons where it can, no
        more than the horizon or three seasons, whichever is longer.

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
    origins, step = _origins(grid, horizon, windows, step)
    recent = HISTORY_WEEKS * grid.week
    shape = (len(grid.ids), len(origins), horizon)
    predicted = {model: np.full(shape, np.nan) for model in MODELS}
    actual = np.full(shape, np.nan)
    scale, spread = np.full(shape[:2], np.nan), np.full(shape[:2], np.nan)
    rules, models = [], []
    for row in range(len(grid.ids)):
        begin = int(np.isnan(grid.values[row]).sum())  # unknown only before the series begins
        history = grid.values[row, begin:]
        rules.append(rule_of(history, season=grid.season, week=grid.week))
        models.append(usable_models(rules[-1], length=len(history), season=grid.season, week=grid.week))
        for place, origin in enumerate(origins):
            if origin - begin < 2:
                continue
            past = grid.values[row, begin:origin]
            actual[row, place] = grid.values[row, origin : origin + horizon]
            scale[row, place] = seasonal_scale(past, grid.season)
            spread[row, place] = past[-recent:].std()
            for model in models[-1]:
                predicted[model][row, place] = predict(
                    past, model, horizon, season=grid.season, week=grid.week
                )
    return Backtest(
        grid, horizon, step, origins, tuple(models), tuple(rules), actual, predicted, scale, spread
    )


def _origins(grid: SeriesGrid, horizon: int, windows: int, step: int | None) -> tuple[tuple[int, ...], int]:
    """Ends of history to forecast from, ascending, and the distance between them."""
    last = grid.values.shape[1] - horizon
    if horizon < 1 or windows < 1 or last < 2 or (step is not None and step < 1):
        text = message(
            "forecast: history",
            "horizon, windows and step of at least 1, and two slots more than the horizon",
            f"horizon {horizon}, windows {windows}, step {step}, {grid.values.shape[1]} slots",
            "Shorten the horizon or give a longer history.",
        )
        raise SchemaError(text)
    earliest = min(2 * grid.week, max(2 * grid.season, last // 2), last)
    if step is None:
        room = (last - earliest) // max(windows - 1, 1)
        step = max(min(room, max(horizon, 3 * grid.season)), 1)
        step -= step % grid.season if step > grid.season else 0
    origins = [last - step * back for back in range(windows) if last - step * back >= earliest]
    return tuple(reversed(origins)), step
