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
from gpuplanner.core.execution import import_optional
from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import Demand

DAY = timedelta(days=1)
WEEK = timedelta(days=7)
FINEST_SEASON = 24
"""Longest season that exponential smoothing is fitted with; finer grids use the cheaper models only."""


@dataclass(frozen=True)
class SeriesGrid:
    """All series on one time axis.

    - ``ids``: Names of the series, sorted as text.
    - ``start``: First slot.
    - ``slot``: Length of a slot.
    - ``values``, shape (n_series, n_slots): Instances. NaN before a series begins; gaps after that carry the last
      value on.
    - ``filled``: Number of slots filled in each series.
    """

    ids: tuple[str, ...]
    start: datetime
    slot: timedelta
    values: np.ndarray
    filled: tuple[int, ...]

    @property
    def week(self) -> int:
        """Slots in a week, at least 1."""
        return max(WEEK // self.slot, 1)

    @property
    def season(self) -> int:
        """Slots after which the pattern repeats: a day, or a week where a slot is a day or longer."""
        day = DAY // self.slot
        return day if day > 1 else self.week

    def time(self, index: int) -> datetime:
        """Start of the slot with this number; the first slot behind the history is ``values.shape[1]``."""
        return self.start + index * self.slot


def as_grid(demand: pl.DataFrame) -> SeriesGrid:
    """Lay series out on their common time axis.

    A slot without a row is not a zero: within and behind a series it carries the last value on and is
    counted, before the first row of a series it stays unknown.

    Examples
    --------
    >>> from datetime import UTC
    >>> hours = [datetime(2026, 2, 2, hour, tzinfo=UTC) for hour in (0, 1, 3)]
    >>> demand = pl.DataFrame({"unique_id": "a/gpu", "tenant": "a", "profile": "gpu", "ds": hours})
    >>> grid = as_grid(demand.with_columns(y=pl.Series([1, 2, 5])))
    >>> grid.values.tolist(), grid.filled, grid.season
    ([[1.0, 2.0, 2.0, 5.0]], (1,), 24)
    """
    table = conform(demand, Demand, where="forecast: demand").select("unique_id", "ds", "y")
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
    place = (table["ds"] - times[0]).dt.total_microseconds()
    off = table.filter(place % step != 0)
    twice = table.filter(table.select("unique_id", "ds").is_duplicated())
    if off.height or twice.height:
        fault, rows = ("off the grid", off) if off.height else ("that stand twice", twice)
        expected = f"one row per series and interval of {slot}"
        got = f"{rows.height} rows {fault}, first {examples(rows['ds'].cast(pl.String).to_list())}"
        raise SchemaError("forecast: demand", expected, got, "Make the series with demand_series.")
    ids = table["unique_id"].unique().sort()
    values = np.full((len(ids), slots), np.nan)
    row = table["unique_id"].cast(pl.Enum(ids)).to_physical().to_numpy()
    values[row, (place // step).to_numpy()] = table["y"]
    missing = np.isnan(values)
    # The column of the last known value at or before each slot; -1 before a series begins.
    last_known = np.maximum.accumulate(np.where(missing, -1, np.arange(slots)), axis=1)
    carried = np.take_along_axis(values, np.maximum(last_known, 0), axis=1)
    filled = tuple((missing & (last_known >= 0)).sum(axis=1).tolist())
    return SeriesGrid(tuple(ids), times[0], slot, carried, filled)


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
    "intermittent": "zero in more than 90 % of the intervals: Croston (TSB) instead of smoothing",
    "fine": "season of more than 24 intervals: TSB instead of smoothing",
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
COST_S = dict.fromkeys(CANDIDATES, 0.0002)
COST_S |= {REVERTING: 0.003, "Median": 0.02, "AutoETS": 0.04, RUN_OFF: 0.01}
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
    # With known jobs the slowest are baseline models only: the forecast is no worse (``docs/results/forecast.md``).
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


def hour_quantiles(history: np.ndarray, steps: int, *, season: int, week: int) -> tuple[np.ndarray, np.ndarray]:
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


CHUNK = 64
"""Series whose paths are held at once."""


def series_answers(
    pasts: Sequence[np.ndarray], models: Sequence[str], gap: int, horizon: int, season: int, week: int
) -> tuple[dict[str, list[tuple[np.ndarray, np.ndarray]]], dict[str, float]]:
    """What candidates say of one series from each of its pasts, and the CPU seconds of each candidate."""
    said: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    cpu_s = {}
    for model in models:
        clock = process_time()
        said[model] = [say_alone(past, model, gap, horizon, season, week) for past in pasts]
        cpu_s[model] = process_time() - clock
    return said, cpu_s


def origin_answers(
    known: Known, ids: Sequence[str], origin: int, gap: int, horizon: int, seed: int
) -> tuple[tuple[np.ndarray, np.ndarray], float]:
    """What sample paths say of every series at one origin, and the CPU seconds that it took."""
    clock = process_time()
    return say_known(known, ids, origin, gap, horizon, seed), process_time() - clock


def say_alone(
    past: np.ndarray, model: str, gap: int, horizon: int, season: int, week: int
) -> tuple[np.ndarray, np.ndarray]:
    """What a candidate says of one series that it sees alone: mean (horizon,), quantiles (horizon, n_levels)."""
    if model == HOUR_OF_DAY:
        if len(past) < season:
            return say_alone(past, NAIVE, gap, horizon, season, week)
        mean, levels = hour_quantiles(past, gap + horizon, season=season, week=week)
        return mean[gap:], levels[gap:]
    mean = predict(past, model, gap + horizon, season=season, week=week)[gap:]
    return mean, np.broadcast_to(mean[:, None], (horizon, len(LEVELS)))


def say_known(
    known: Known, ids: Sequence[str], origin: int, gap: int, horizon: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """What sample paths say: mean (n_series, horizon), quantiles (n_series, horizon, n_levels)."""
    means, levels = [], []
    for first in range(0, len(ids), CHUNK):
        paths = known.draws(ids[first : first + CHUNK], origin, gap + horizon, seed)[..., gap:]
        means.append(paths.mean(axis=1))
        levels.append(np.moveaxis(np.quantile(paths, LEVELS, axis=1), 0, -1))
    return np.concatenate(means), np.concatenate(levels)


def between(paths: tuple[np.ndarray, np.ndarray], reverting: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean of what paths say and of the model Reverting."""
    return (paths[0] + reverting) / 2, (paths[1] + reverting[..., None]) / 2
