"""Forecasts of demand with their past error, quantiles with measured coverage."""

from gpuplanner.forecast.backtest import Backtest, backtest
from gpuplanner.forecast.choose import choose, score
from gpuplanner.forecast.models import MODELS, RULES
from gpuplanner.forecast.reconcile import reconcile_to_pool
from gpuplanner.forecast.result import ForecastResult, forecast_demand
from gpuplanner.forecast.scores import coverage, mae, pinball, seasonal_scale, smape

__all__ = [
    "MODELS",
    "RULES",
    "Backtest",
    "ForecastResult",
    "backtest",
    "choose",
    "coverage",
    "forecast_demand",
    "mae",
    "pinball",
    "reconcile_to_pool",
    "score",
    "seasonal_scale",
    "smape",
]
