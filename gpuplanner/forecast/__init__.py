"""Forecasts of demand with their past error, quantiles with measured coverage."""

from gpuplanner.forecast.backtest import Backtest, backtest
from gpuplanner.forecast.candidates import CANDIDATES, affordable, expected_cpu_s, weighed
from gpuplanner.forecast.decide import cost_curve, representatives
from gpuplanner.forecast.judge import Judged, judge, realised
from gpuplanner.forecast.models import LEVELS, RULES
from gpuplanner.forecast.reconcile import add_up, reconcile_mint, reconcile_to_pool
from gpuplanner.forecast.record import CHOSEN, best_fixed, fold_scores, fold_table, mean_scores, score
from gpuplanner.forecast.result import ForecastResult, ahead_table, forecast_demand, weights_in_words

__all__ = [
    "CANDIDATES",
    "CHOSEN",
    "LEVELS",
    "RULES",
    "Backtest",
    "ForecastResult",
    "Judged",
    "add_up",
    "affordable",
    "ahead_table",
    "backtest",
    "best_fixed",
    "cost_curve",
    "expected_cpu_s",
    "fold_scores",
    "fold_table",
    "forecast_demand",
    "judge",
    "mean_scores",
    "realised",
    "reconcile_mint",
    "reconcile_to_pool",
    "representatives",
    "score",
    "weighed",
    "weights_in_words",
]
