"""Level changes and growth of demand, announced jobs and calendars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from gpuplanner.core.errors import ScenarioError, SchemaError, examples, first_error_line
from gpuplanner.core.units_and_number_texts import SECONDS_PER_HOUR
from gpuplanner.usage.requested_demand import mean_occupancy

MIN_GROWTH_WEEKS = 4
"""With less the spread of a week cannot be told from its growth."""
WEEKS_IN_YEAR = 365.25 / 7
GROWTH_SAMPLE_PATHS = 8000

WEEKLY_NOISE_SDS = tuple(np.geomspace(0.01, 0.6, 10))
"""Standard deviations of a week's own noise, as shares of the need; each as likely as the next beforehand."""
WALK_SDS_WITH_PRIOR = ((0.0, 0.75), (0.01, 0.06), (0.02, 0.06), (0.04, 0.06), (0.08, 0.05), (0.16, 0.02))
"""Standard deviations of a week's lasting step, and how likely they are before the record is seen: a walk has to be
shown by it."""
TREND_SDS_WITH_PRIOR = ((0.0, 0.2), (0.15, 0.2), (0.5, 0.6))
"""Standard deviations of the growth a year, and how likely: few weeks draw it towards none."""
PRIOR_RELATIVE_NOISE_PROBABILITY = 0.75
"""How likely it is beforehand that growth and noise are shares of the need, not numbers of GPUs."""
LEVEL_JUMP_LOG_SD = 0.4
"""Standard deviation of a sudden change of level."""
LEVEL_JUMP_PROBABILITY_PER_WEEK = 1.0 / WEEKS_IN_YEAR
"""Odds that the level changed suddenly before a given week of the record."""
JUMPS_BEFORE, WEEKS_BEFORE = 0.2, 156.0
"""Sudden changes thought of before the record is seen, and in how many weeks: what lies ahead follows from both."""

Series: TypeAlias = Sequence[float] | np.ndarray


@dataclass(frozen=True, eq=False)
class GrowthLaw:
    """Growth models of weekly demand with their posterior weights, each with its last level.

    - ``weeks``: Weeks with a need in the record.
    - ``unit``: What a need of 1 in the arrays stands for [GPUs].
    - ``whole``: Whether all needs were full GPUs: those to come are then rounded.
    - ``weight``, shape (n_laws,): Posterior probabilities; they add up to 1.
    - ``logs``, ``peaked``, shape (n_laws,): Whether the law holds for the logarithm of the need, else for the need
      itself; whether a week's own noise is that of a largest value (Gumbel), else normal.
    - ``noise``, ``walk``, ``jumps``, shape (n_laws,): Standard deviations of a week's own noise and of its lasting
      step, and sudden changes of level a week.
    - ``level``, ``trend``, shape (n_laws,): Means of the level in the last week and of its growth a week.
    - ``cov``, shape (3, n_laws): Variance of the level, covariance, variance of the trend.
    """

    weeks: int
    unit: float
    whole: bool
    weight: np.ndarray
    logs: np.ndarray
    peaked: np.ndarray
    noise: np.ndarray
    walk: np.ndarray
    jumps: np.ndarray
    level: np.ndarray
    trend: np.ndarray
    cov: np.ndarray

    @property
    def growth_per_year(self) -> float:
        """Mean growth of a year as a share of the level: 0.5 for half as much again."""
        rise = self.trend * WEEKS_IN_YEAR
        share = np.where(self.logs, np.expm1(rise), rise / np.maximum(self.level, 1e-9))
        return float(self.weight @ share)

    def paths(self, weeks_ahead: int = 52, *, seed: int = 1, count: int = GROWTH_SAMPLE_PATHS) -> np.ndarray:
        """Draw weekly demand of the weeks ahead [GPUs], shape (count, weeks_ahead)."""
        rng = np.random.default_rng(seed)
        law = rng.choice(len(self.weight), size=count, p=self.weight)
        first, second = rng.standard_normal((2, count))
        steps, sizes, noise = rng.standard_normal((3, count, weeks_ahead))
        falls = rng.random((count, weeks_ahead))
        highest = (rng.gumbel(size=noise.shape) - np.euler_gamma) * np.sqrt(6) / np.pi
        noise = np.where(self.peaked[law, None], highest, noise)
        var_level, both, var_trend = np.maximum(self.cov[:, law], [[0.0], [-np.inf], [0.0]])
        root = np.sqrt(var_level)
        slope = np.divide(both, root, out=np.zeros(count), where=root > 0)
        level = self.level[law] + root * first
        trend = self.trend[law] + slope * first + np.sqrt(np.maximum(var_trend - slope**2, 0.0)) * second
        moves = trend[:, None] + self.walk[law, None] * steps
        moves += LEVEL_JUMP_LOG_SD * sizes * (falls < self.jumps[law, None])
        values = level[:, None] + moves.cumsum(axis=1) + self.noise[law, None] * noise
        logs = self.logs[law]
        values[logs] = np.exp(np.minimum(values[logs], 50.0))
        return np.asarray(np.maximum(values, 0.0) * self.unit)


def fit_growth(needs: Series) -> GrowthLaw:
    """Fit trend, noise and random walk to weekly demand, with posterior weights over their sizes.

    The level of a week moves by a trend, by a lasting step of its own (the walk), and at most once in the record by a
    sudden change; the need is that level with noise of its own on it. Every mixture of the sizes listed in this module
    is weighed by how well it foretold each week from those before (a Kalman filter), for the logarithm of the need and
    for the need itself. Nothing is chosen: what is not told apart stays in with its weight, and widens what is drawn.

    References
    ----------
    Harvey, "Forecasting, Structural Time Series Models and the Kalman Filter", Cambridge University Press, 1989.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> law = fit_growth(100 * 1.5 ** (np.arange(52) / 52) * np.exp(0.05 * rng.standard_normal(52)))
    >>> round(law.growth_per_year, 1)
    0.5
    """
    values = _require_weekly_needs(needs)
    known_needs = values[np.isfinite(values)]
    unit = float(known_needs[known_needs > 0].mean())
    parts = [_posterior_of_laws(values / unit, logs=False)]
    if (known_needs > 0).all():
        parts.append(_posterior_of_laws(values / unit, logs=True))
    evidence, *columns = (np.concatenate(column, axis=-1) for column in zip(*parts, strict=True))
    weight = np.exp(evidence - evidence.max())
    kept = weight > 1e-6
    whole = bool((known_needs == np.floor(known_needs)).all())
    columns = [column[..., kept] for column in columns]
    return GrowthLaw(len(known_needs), unit, whole, weight[kept] / weight[kept].sum(), *columns)


def _require_weekly_needs(needs: Series) -> np.ndarray:
    """Return the demand from the first known week on; raise if too few weeks are known."""
    values = np.asarray(needs, dtype=float)
    finite = np.isfinite(values)
    if finite.sum() < MIN_GROWTH_WEEKS or not (values[finite] >= 0).all() or not values[finite].any():
        expected = f"{MIN_GROWTH_WEEKS} known weeks or more, none below 0 and not all 0"
        below, above = (int(sign.sum()) for sign in (values[finite] < 0, values[finite] > 0))
        got = f"{int(finite.sum())} known, {below} below 0, {above} above"
        raise SchemaError("dataset_writer: weekly needs", expected, got, "Give a longer history.")
    return values[int(finite.argmax()) :]


def _posterior_of_laws(needs: np.ndarray, *, logs: bool) -> tuple[np.ndarray, ...]:
    """Compute the log posterior of each growth model, and the fields of :class:`GrowthLaw` from ``logs`` on."""
    weeks = len(needs)
    # A sudden change before week `at`; 0: none. One before the last week alone cannot be told from its noise.
    noise, (walk, walk_odds), (spread, trend_odds), at = _laws(weeks)
    values = np.log(needs) if logs else needs
    scale_odds = PRIOR_RELATIVE_NOISE_PROBABILITY if logs else 1 - PRIOR_RELATIVE_NOISE_PROBABILITY
    evidence = np.log(scale_odds * walk_odds * trend_odds * np.where(at > 0, LEVEL_JUMP_PROBABILITY_PER_WEEK, 1.0))
    skewed = np.zeros(len(at))
    level = np.full(len(at), values[0])
    trend = np.zeros(len(at))
    var_noise, var_level = noise**2, noise**2
    both, var_trend = np.zeros(len(at)), (spread / WEEKS_IN_YEAR) ** 2
    for week in range(1, weeks):
        level = level + trend
        var_level = var_level + 2 * both + var_trend + walk**2 + LEVEL_JUMP_LOG_SD**2 * (at == week)
        both = both + var_trend
        if np.isfinite(values[week]):
            total = var_level + var_noise
            missed = values[week] - level
            evidence -= 0.5 * (np.log(total) + missed**2 / total)
            skewed += _gumbel_over_normal(missed / np.sqrt(total))
            gain, turn = var_level / total, both / total
            level, trend = level + gain * missed, trend + turn * missed
            var_level, both, var_trend = (1 - gain) * var_level, (1 - gain) * both, var_trend - turn * both
    if logs:  # the density of the need itself
        evidence -= np.nansum(values[1:])
    jumps = (JUMPS_BEFORE + (at > 0)) / (WEEKS_BEFORE + weeks)
    cov = np.stack([var_level, both, var_trend])
    once = (noise, walk, jumps, level, trend, cov)
    peaked = np.repeat([False, True], len(at))
    return (
        np.concatenate([evidence, evidence + skewed]),
        np.full(len(peaked), logs),
        peaked,
        *(np.concatenate([column, column], axis=-1) for column in once),
    )


def _gumbel_over_normal(missed: np.ndarray) -> np.ndarray:
    """Compute the log ratio of the Gumbel and the normal density, both of mean 0 and variance 1."""
    spread = np.pi / np.sqrt(6)
    reduced = spread * np.maximum(missed, -8.0) + np.euler_gamma
    return np.asarray(np.log(spread * np.sqrt(2 * np.pi)) - reduced - np.exp(-reduced) + missed**2 / 2)


def _laws(weeks: int) -> tuple[np.ndarray, tuple[np.ndarray, ...], tuple[np.ndarray, ...], np.ndarray]:
    """List every combination of noise, walk (with prior), trend (with prior) and week of a level change."""
    grid = np.indices((len(WEEKLY_NOISE_SDS), len(WALK_SDS_WITH_PRIOR), len(TREND_SDS_WITH_PRIOR), weeks))
    noise, walk, trend, at = grid.reshape(len(grid), -1)
    walks, trends = np.array(WALK_SDS_WITH_PRIOR)[walk].T, np.array(TREND_SDS_WITH_PRIOR)[trend].T
    return np.array(WEEKLY_NOISE_SDS)[noise], tuple(walks), tuple(trends), at


MAX_MISSING_DEMAND_FRACTION = 0.1
"""Share of the demand that may be missing at the end of what is called complete."""
MIN_DEMAND_LEVEL_DAYS = 3
"""A level lasts at least as long; less is a peak."""
EXTRA_LEVEL_PENALTY = 4.0
"""Of one more level, in squares of the noise of a day times the logarithm of the days: 3 would find chance levels in
noise that lasts from one day into the next."""
MIN_WEEKS_FOR_WEEKDAYS = 3
"""From so many weeks on the usual difference of each day of the week is taken out first."""


def complete_until(jobs: pl.DataFrame, end: datetime) -> datetime:
    """Find the instant from which more than a tenth of the demand is missing from the record.

    A record that holds a job that still runs lists jobs as they begin, and is complete to its end. One that holds
    only ended jobs lacks those that ended later. Of the GPU-hours of its jobs, the share that lies more than x
    hours behind their start is what is missing x hours before its end.

    Parameters
    ----------
    jobs : polars.DataFrame
        ``start_time``, ``end_time`` and ``gpus``.
    end : datetime
        End of the record.

    Returns
    -------
    datetime
        `end` itself, or a full hour before it, at most half of the record before.

    Examples
    --------
    >>> from datetime import UTC
    >>> days = [datetime(2026, 2, day, tzinfo=UTC) for day in range(1, 21)]
    >>> jobs = pl.DataFrame({"start_time": days, "end_time": [day + timedelta(hours=20) for day in days], "gpus": 1.0})
    >>> complete_until(jobs, datetime(2026, 2, 21, tzinfo=UTC))
    datetime.datetime(2026, 2, 20, 6, 0, tzinfo=datetime.timezone.utc)
    """
    if jobs["end_time"].null_count() or jobs.is_empty():
        return end
    begun = jobs.filter(pl.col("start_time").is_not_null(), pl.col("gpus") > 0)
    hours = (begun["end_time"] - begun["start_time"]).dt.total_microseconds().to_numpy() / 3.6e9
    gpus = begun["gpus"].to_numpy()
    total = float((gpus * hours).sum())
    if total == 0:
        return end
    longest = (end - begun.select(pl.col("start_time").min()).item()) / timedelta(hours=2)
    low, high = 0.0, longest
    for _ in range(50):
        middle = (low + high) / 2
        left = float((gpus * np.maximum(hours - middle, 0.0)).sum())
        low, high = (middle, high) if left > MAX_MISSING_DEMAND_FRACTION * total else (low, middle)
    cut = end - timedelta(hours=high)
    return cut.replace(minute=0, second=0, microsecond=0)


def change_points(demand: pl.DataFrame) -> pl.DataFrame:
    """Find the days on which the level of a series changed.

    Parameters
    ----------
    demand : polars.DataFrame
        ``ds`` and ``y`` of one series.

    Returns
    -------
    polars.DataFrame
        ``ds`` (the first day of a new level) and ``before``, ``after``: the mean of the levels on both sides.

    References
    ----------
    Killick, Fearnhead, Eckley, "Optimal detection of changepoints with a linear computational cost", Journal of the
    American Statistical Association 107(500), 2012, doi 10.1080/01621459.2012.737745.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> day = [datetime(2026, 2, 1, tzinfo=UTC) + timedelta(days=number) for number in range(20)]
    >>> level = [5.0, 6.0] * 5 + [15.0, 16.0] * 5
    >>> change_points(pl.DataFrame({"ds": day, "y": level}))["ds"].dt.day().to_list()
    [11]
    """
    days = demand.sort("ds").group_by_dynamic("ds", every="1d").agg(pl.col("y").mean())
    means = days["y"].to_numpy()
    cuts = _pelt(_without_week(means))
    edges = [0, *cuts, len(means)]
    level = [float(means[low:high].mean()) for low, high in pairwise(edges) if high > low]
    return pl.DataFrame(
        {"ds": days["ds"].gather(cuts), "before": level[: len(cuts)], "after": level[1 : len(cuts) + 1]},
        schema_overrides={"before": pl.Float64, "after": pl.Float64},
    )


def _without_week(means: np.ndarray) -> np.ndarray:
    """Subtract the usual difference of each day of the week from daily means."""
    if len(means) < 7 * MIN_WEEKS_FOR_WEEKDAYS:
        return means
    around = np.array([np.median(means[max(day - 3, 0) : day + 4]) for day in range(len(means))])
    usual = [np.median((means - around)[day::7]) for day in range(7)]
    return np.asarray(means - np.resize(usual, len(means)))


def _pelt(values: np.ndarray) -> list[int]:
    """Find changes of the mean (PELT), each level at least :data:`MIN_DEMAND_LEVEL_DAYS` long."""
    count = len(values)
    if count < 2 * MIN_DEMAND_LEVEL_DAYS:
        return []
    noise = np.median(np.abs(np.diff(values))) / (0.6745 * np.sqrt(2))  # 0.6745: the quartile of a normal
    noise = max(float(noise), 1e-3 * float(np.abs(values).max()), 1e-12)
    first = np.concatenate([[0.0], np.cumsum(values / noise)])
    second = np.concatenate([[0.0], np.cumsum((values / noise) ** 2)])

    def segment_cost(low: np.ndarray, high: int) -> np.ndarray:
        total = first[high] - first[low]
        return np.asarray(second[high] - second[low] - total**2 / (high - low))

    penalty = EXTRA_LEVEL_PENALTY * np.log(count)
    best = np.full(count + 1, np.inf)
    best[0] = -penalty
    last = np.zeros(count + 1, dtype=np.int64)
    open_at = np.array([0])
    for high in range(MIN_DEMAND_LEVEL_DAYS, count + 1):
        whole = best[open_at] + segment_cost(open_at, high)
        best[high], last[high] = whole.min() + penalty, open_at[whole.argmin()]
        open_at = np.append(open_at[whole <= best[high]], high - MIN_DEMAND_LEVEL_DAYS + 1)
    cuts, high = [], count
    while (high := int(last[high])) > 0:
        cuts.append(high)
    return cuts[::-1]


ANNOUNCED_JOBS_SCHEMA = {"tenant": pl.String, "start_time": pl.Datetime, "end_time": pl.Datetime, "gpus": pl.Float64}
EVENT_CALENDAR_SCHEMA = {"kind": pl.String, "start_time": pl.Datetime, "end_time": pl.Datetime}


def read_announced(path: str | Path) -> pl.DataFrame:
    """Read announced jobs from CSV or Parquet with ``tenant, start_time, end_time, gpus``."""
    table = _read_table(Path(path), ANNOUNCED_JOBS_SCHEMA)
    odd = table.filter(~((pl.col("gpus") > 0) & pl.col("gpus").is_finite()))
    return _require_valid_rows(table, odd, Path(path), "gpus above 0")


def read_calendar(path: str | Path) -> pl.DataFrame:
    """Read a calendar of releases, holidays and maintenance from CSV or Parquet with ``kind, start_time, end_time``."""
    table = _read_table(Path(path), EVENT_CALENDAR_SCHEMA)
    return _require_valid_rows(table, table.clear(), Path(path), "")


def event_hours(calendar: pl.DataFrame, start: datetime) -> tuple[np.ndarray, ...]:
    """Convert a calendar to spans of each kind in hours since `start`, each of shape (n, 2), by name of the kind.

    Examples
    --------
    >>> from datetime import UTC
    >>> day = datetime(2026, 2, 2, tzinfo=UTC)
    >>> six, next_day = day.replace(hour=6), day.replace(day=3)
    >>> table = pl.DataFrame({"kind": ["release"], "start_time": [six], "end_time": [next_day]})
    >>> event_hours(table, day)[0].tolist()
    [[6.0, 24.0]]
    """
    since = (pl.col("start_time", "end_time") - start).dt.total_microseconds()
    spans = calendar.sort("kind", "start_time", "end_time").select("kind", since / (1e6 * SECONDS_PER_HOUR))
    kinds = spans.partition_by("kind", maintain_order=True, include_key=False)
    return tuple(part.to_numpy() for part in kinds)


def gpus_announced(
    jobs: pl.DataFrame, ids: Sequence[str], whole: str, start: datetime, interval_hours: float, slots: int
) -> np.ndarray:
    """Compute the mean GPUs of announced jobs in every interval from `start` on.

    A tenant that no series is of counts in the whole alone.

    Parameters
    ----------
    jobs : polars.DataFrame
        Announced jobs, see :func:`read_announced`.
    ids : sequence of str
        Names of the series.
    whole : str
        Series of the whole fleet.
    start : datetime
        First interval.
    interval_hours : float
        Length of an interval. [h]
    slots : int
        Number of intervals.

    Examples
    --------
    >>> from datetime import UTC
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"tenant": ["a"], "start_time": [nine], "end_time": [nine.replace(hour=11)], "gpus": [4.0]})
    >>> gpus_announced(jobs, ["a/gpu", "all/gpu"], "all/gpu", nine.replace(hour=8), 1.0, 4).tolist()
    [[0.0, 4.0, 4.0, 0.0], [0.0, 4.0, 4.0, 0.0]]
    """
    begin, end = (
        ((jobs[name] - start).dt.total_microseconds() / (1e6 * SECONDS_PER_HOUR * interval_hours)).to_numpy()
        for name in ("start_time", "end_time")
    )
    named = [uid.rpartition("/")[0] for uid in ids]
    whole_row = list(ids).index(whole)
    rows = np.array(
        [named.index(tenant) if tenant in named else whole_row for tenant in jobs["tenant"]], dtype=np.int64
    )
    gpus = mean_occupancy(begin, end, jobs["gpus"].to_numpy(), rows, len(ids), slots)
    if whole.startswith("all/"):
        gpus[whole_row] = gpus.sum(axis=0)
    return gpus


def _read_table(path: Path, columns: Mapping[str, Any]) -> pl.DataFrame:
    names = ", ".join(columns)
    try:
        parquet = path.suffix == ".parquet"
        table = pl.read_parquet(path) if parquet else pl.read_csv(path, try_parse_dates=True)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ScenarioError(str(path), f"a table with {names}", first_error_line(error), f"Fix {path.name}.") from None
    faults = [name for name in columns if name not in table.columns]
    zones = {name: getattr(kind, "time_zone", None) for name, kind in table.schema.items()}
    faults += [name for name in ("start_time", "end_time") if name in zones and zones[name] is None]
    if faults or not table.height:
        expected = f"columns {names}, times with a zone such as 2026-02-14T09:00Z, one row or more"
        got = f"{table.height} rows; missing or without a zone: {examples(faults)}"
        raise ScenarioError(str(path), expected, got, f"Fix {path.name}.")
    times = pl.col("start_time", "end_time").dt.convert_time_zone("UTC").dt.cast_time_unit("us")
    value_columns = [pl.col(name).cast(kind) for name, kind in columns.items() if kind is not pl.Datetime]
    return table.select(*value_columns, times).select(list(columns))


def _require_valid_rows(table: pl.DataFrame, odd: pl.DataFrame, path: Path, rule: str) -> pl.DataFrame:
    bad = table.filter(~(pl.col("end_time") > pl.col("start_time")).fill_null(False)).vstack(odd)
    if bad.height:
        expected = " and ".join(filter(None, (rule, "an end after its start")))
        got = f"{bad.height} other rows, first {bad.row(0)}"
        raise ScenarioError(str(path), expected, got, f"Fix {path.name}.")
    return table
