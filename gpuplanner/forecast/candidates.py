"""Every way to forecast a series: the named models, the hours of past weeks, and what is known of its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from gpuplanner.forecast.models import (
    HISTORY_WEEKS,
    LEVELS,
    MODELS,
    NAIVE,
    REVERTING,
    SMOOTHED,
    usable_models,
)


class Known(Protocol):
    """What is known of the jobs behind series, at any origin and of nothing later."""

    def seen(self, series: Sequence[str], origin: int) -> np.ndarray:
        """Demand before the origin as it was known then, shape (n_series, origin)."""

    def draws(self, series: Sequence[str], origin: int, steps: int, seed: int) -> np.ndarray:
        """Sample paths of the demand from the origin on, shape (n_series, n_paths, steps)."""


HOUR_OF_DAY, RUN_OFF, RUN_OFF_REVERTING = "HourOfDay", "RunOff", "RunOffReverting"
WITH_QUANTILES = (HOUR_OF_DAY, RUN_OFF, RUN_OFF_REVERTING)
NEED_JOBS = (RUN_OFF, RUN_OFF_REVERTING)
PARTS = {RUN_OFF_REVERTING: (RUN_OFF, REVERTING)}
"""Candidates that are made of others, which are tried wherever they are."""
CANDIDATES = (*MODELS, *WITH_QUANTILES)
"""All candidates, from simple to elaborate: the models of a series alone, and those that say quantiles.

HourOfDay
    Quantiles of the same hour over four weeks.
RunOff
    Quantiles of sample paths of what runs and what will come.
RunOffReverting
    The mean of those and of the model Reverting.
"""
COST_S = dict.fromkeys(CANDIDATES, 0.0002) | {
    REVERTING: 0.003,
    "Median": 0.02,
    "AutoETS": 0.04,
    RUN_OFF: 0.01,
}
"""CPU seconds of one forecast of an hourly series beside those of its parts, as measured: what a budget is held
against, alike anywhere."""


def usable_candidates(rule: str, *, length: int, season: int, week: int) -> tuple[str, ...]:
    """Candidates that a series of this rule and length is forecast with, from simple to elaborate.

    What is known of its jobs says something of any series, however short or quiet.

    Examples
    --------
    >>> usable_candidates("constant", length=400, season=24, week=168)
    ('Naive', 'RunOff')
    """
    alone = usable_models(rule, length=length, season=season, week=week)
    hours = (HOUR_OF_DAY,) if rule not in ("short", "constant") and season > 1 else ()
    return (*alone, *hours, RUN_OFF, *((RUN_OFF_REVERTING,) if REVERTING in alone else ()))


def with_parts(models: Sequence[str]) -> tuple[str, ...]:
    """Candidates with those that they are made of, and the naive forecast, from simple to elaborate.

    Examples
    --------
    >>> with_parts(["RunOffReverting"])
    ('Naive', 'Reverting', 'RunOff', 'RunOffReverting')
    """
    wanted = {NAIVE, *models, *(part for model in models for part in PARTS.get(model, ()))}
    return tuple(model for model in CANDIDATES if model in wanted)


def weighed(models: Sequence[str], *, with_jobs: bool) -> tuple[str, ...]:
    """Candidates that may weigh something, where jobs are known or not.

    Examples
    --------
    >>> weighed(["Naive", "AutoETS"], with_jobs=True)
    ('Naive',)
    """
    # Where jobs are known the dearest are yardsticks alone: what is said is no worse without (``docs/forecast.md``).
    return tuple(model for model in models if not (with_jobs and model in SMOOTHED))


def affordable(budget_s: float | None, forecasts: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Candidates that fit a budget of CPU seconds a series, and those that do not, the dearest first.

    What is made of one that does not fit goes with it.

    Examples
    --------
    >>> affordable(0.1, 21)[1]
    ('RunOff', 'RunOffReverting')
    """
    kept, left = list(CANDIDATES), []
    # Yardsticks stand in every table, whatever they cost.
    free = [model for model in CANDIDATES if model not in (NAIVE, "SeasonalNaive", *SMOOTHED)]
    for model in sorted(free, key=lambda one: -COST_S[one]):
        if budget_s is None or sum(COST_S[one] for one in free if one in kept) * forecasts <= budget_s:
            break
        for gone in (model, *(made for made, parts in PARTS.items() if model in parts)):
            if gone in kept:
                kept.remove(gone)
                left.append(gone)
    return tuple(kept), tuple(left)


def expected_cpu_s(models: Sequence[str], forecasts: int) -> float:
    """CPU seconds that so many forecasts with each of these candidates take, about.

    Examples
    --------
    >>> expected_cpu_s(["Median", "AutoETS"], 100)
    6.0
    """
    return round(sum(COST_S[model] for model in models) * forecasts, 6)


def hour_quantiles(
    history: np.ndarray, steps: int, *, season: int, week: int
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and quantiles of the same slot of the day over the last four weeks.

    Examples
    --------
    >>> mean, quantiles = hour_quantiles(np.tile([1.0, 5.0], 10), 3, season=2, week=14)
    >>> mean.tolist(), quantiles[:, 3].tolist()
    ([1.0, 5.0, 1.0], [1.0, 5.0, 1.0])
    """
    days = min(len(history) // season, HISTORY_WEEKS * week // season)
    table = history[len(history) - days * season :].reshape(days, season)
    slots = np.arange(steps) % season
    return table.mean(axis=0)[slots], np.quantile(table, LEVELS, axis=0).T[slots]
