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
from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR
from gpuplanner.usage.requested_demand import mean_occupancy

MIN_GROWTH_WEEKS = 4
"""Weeks of known demand below which no growth is fitted: noise and growth cannot be separated."""
WEEKS_IN_YEAR = 365.25 / 7
"""Mean number of weeks in a year."""
GROWTH_SAMPLE_PATHS = 8000
"""Default number of sample paths of weekly demand."""

WEEKLY_NOISE_SDS = tuple(np.geomspace(0.01, 0.6, 10))
"""Candidate standard deviations of the noise of a single week, as shares of demand; all have the same prior
probability."""
WALK_SDS_WITH_PRIOR = ((0.0, 0.75), (0.01, 0.06), (0.02, 0.06), (0.04, 0.06), (0.08, 0.05), (0.16, 0.02))
"""Candidate standard deviations of the lasting weekly change of the level (random walk), as shares of demand, each with
its prior probability; most of it is on 0, so a random walk needs evidence."""
TREND_SDS_WITH_PRIOR = ((0.0, 0.2), (0.15, 0.2), (0.5, 0.6))
"""Candidate prior standard deviations of the growth per year, as shares of demand, each with its prior probability;
with few weeks the growth is shrunk towards 0."""
PRIOR_RELATIVE_NOISE_PROBABILITY = 0.75
"""Prior probability that growth and noise are proportional to demand, rather than numbers of GPUs."""
LEVEL_JUMP_LOG_SD = 0.4
"""Standard deviation of a sudden change of the level, in natural logarithms of demand."""
LEVEL_JUMP_PROBABILITY_PER_WEEK = 1.0 / WEEKS_IN_YEAR
"""Prior probability that the level changed suddenly before a given week of the record."""
PRIOR_LEVEL_JUMPS, PRIOR_LEVEL_JUMP_WEEKS = 0.2, 156.0
"""Prior of the rate of sudden level changes: this many changes in this many weeks, added to the changes and weeks of
the record."""

Series: TypeAlias = Sequence[float] | np.ndarray
"""Weekly demand, oldest week first."""


@dataclass(frozen=True, eq=False)
class GrowthLaw:
    """Growth models of weekly demand with their posterior weights, each with its level in the last week.

    - ``weeks``: Number of weeks with known demand in the record.
    - ``unit``: Demand that 1 in the arrays stands for: the mean of the record [GPUs].
    - ``whole``: Whether the demand of every week was a whole number; sampled demand is then rounded.
    - ``weight``, shape (n_laws,): Posterior probabilities; they add up to 1.
    - ``logs``, ``peaked``, shape (n_laws,): Whether the model is of the logarithm of demand (else of demand itself);
      whether the weekly noise has a Gumbel
      distribution (else normal).
    - ``noise``, ``walk``, ``jumps``, shape (n_laws,): Standard deviations of the weekly noise and of the weekly random
      walk step, and rate of sudden level changes per
      week.
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
        """Mean growth per year as a share of the level: 0.5 for 50 % more."""
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
    """Fit trend, noise and random walk to weekly demand [GPUs], oldest week first, with weights over their sizes.

    The level changes each week by a trend and a random walk step, and at most once in the record by a sudden jump;
    demand is the level plus noise. Each combination of the candidate sizes in this module is weighted by the likelihood
    of each week given the weeks before (Kalman filter), both for demand and for its logarithm. No single model is
    selected: all keep their weight, which widens the sample paths where the data cannot separate them.

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
    """Return weekly demand from the first known week on; raise SchemaError if too few (MIN_GROWTH_WEEKS) are known."""
    values = np.asarray(needs, dtype=float)
    finite = np.isfinite(values)
    if finite.sum() < MIN_GROWTH_WEEKS or not (values[finite] >= 0).all() or not values[finite].any():
        expected = f"{MIN_GROWTH_WEEKS} known weeks or more, none below 0 and not all 0"
        below, above = (int(sign.sum()) for sign in (values[finite] < 0, values[finite] > 0))
        got = f"{int(finite.sum())} known, {below} below 0, {above} above"
        raise SchemaError("dataset_writer: weekly needs", expected, got, "Give a longer history.")
    return values[int(finite.argmax()) :]


def _posterior_of_laws(needs: np.ndarray, *, logs: bool) -> tuple[np.ndarray, ...]:
    """Compute the log posterior of each growth model of weekly demand, and the fields ``logs`` to ``cov`` of GrowthLaw.

    With `logs`, the models are of the logarithm of demand.
    """
    weeks = len(needs)
    # A sudden change before week `at`; 0: none. One before the last week alone cannot be told from its noise.
    noise, (walk, walk_odds), (spread, trend_odds), at = _list_growth_models(weeks)
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
    jumps = (PRIOR_LEVEL_JUMPS + (at > 0)) / (PRIOR_LEVEL_JUMP_WEEKS + weeks)
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
    """Compute the log ratio of Gumbel to normal density for standardized residuals, both of mean 0 and variance 1."""
    spread = np.pi / np.sqrt(6)
    reduced = spread * np.maximum(missed, -8.0) + np.euler_gamma
    return np.asarray(np.log(spread * np.sqrt(2 * np.pi)) - reduced - np.exp(-reduced) + missed**2 / 2)


def _list_growth_models(weeks: int) -> tuple[np.ndarray, tuple[np.ndarray, ...], tuple[np.ndarray, ...], np.ndarray]:
    """List every combination of noise, random walk and trend (both with prior) and week of a level change."""
    grid = np.indices((len(WEEKLY_NOISE_SDS), len(WALK_SDS_WITH_PRIOR), len(TREND_SDS_WITH_PRIOR), weeks))
    noise, walk, trend, at = grid.reshape(len(grid), -1)
    walks, trends = np.array(WALK_SDS_WITH_PRIOR)[walk].T, np.array(TREND_SDS_WITH_PRIOR)[trend].T
    return np.array(WEEKLY_NOISE_SDS)[noise], tuple(walks), tuple(trends), at


MAX_MISSING_DEMAND_FRACTION = 0.1
"""Largest share of the demand that may be missing from a record that counts as complete."""
MIN_DEMAND_LEVEL_DAYS = 3
"""Shortest duration of a demand level; a shorter one counts as a peak. [days]"""
EXTRA_LEVEL_PENALTY = 4.0
"""Cost of one more change point, in multiples of the daily noise variance times the logarithm of the number of days. A
factor of 3 would find spurious levels in noise that is correlated from day to day."""
MAX_DAILY_DEVIATION = 5.0
"""Largest distance of a usual day from the days around it, in robust standard deviations of daily demand."""
MIN_WEEKS_FOR_WEEKDAYS = 3
"""Weeks of history from which the mean effect of each weekday is subtracted before change points are searched."""


def complete_until(jobs: pl.DataFrame, end: datetime) -> datetime:
    """Find the instant after which more than a tenth of the demand is missing from the record.

    A record that contains a running job lists jobs when they begin, so it is complete to its end. A record of ended
    jobs only lacks the jobs that were running at its end. The share of demand missing x hours before the end is
    estimated as the share of GPU-hours that jobs use more than x hours after their start.

    Parameters
    ----------
    jobs : polars.DataFrame
        ``start_time``, ``end_time`` and ``gpus``.
    end : datetime
        End of the record.

    Returns
    -------
    datetime
        `end` itself, or an earlier full hour, not before the middle of the record.

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
    cuts = _pelt(_subtract_weekday_means(means))
    edges = [0, *cuts, len(means)]
    level = [float(means[low:high].mean()) for low, high in pairwise(edges) if high > low]
    return pl.DataFrame(
        {"ds": days["ds"].gather(cuts), "before": level[: len(cuts)], "after": level[1 : len(cuts) + 1]},
        schema_overrides={"before": pl.Float64, "after": pl.Float64},
    )


def find_anomalies(demand: pl.DataFrame) -> pl.DataFrame:
    """Find the days on which demand was far from that of the days around it.

    A day is marked if its mean, less the usual deviation of its weekday, differs from the median of the seven days
    around it by more than :data:`MAX_DAILY_DEVIATION` robust standard deviations (1.4826 median absolute deviations of
    all days), and by more than a tenth of the level, both in GPUs and as a share of the level. A change of the level
    that lasts is no anomaly: the days around it, before it or after it have changed too. Days that the record covers in
    part are left out, and nothing is marked in fewer than :data:`MIN_WEEKS_FOR_WEEKDAYS` weeks, in which weekends look
    like anomalies.

    Parameters
    ----------
    demand : polars.DataFrame
        ``ds`` and ``y`` of one series.

    Returns
    -------
    polars.DataFrame
        ``ds`` (the day), ``y`` (its mean) and ``usual`` (expected from the days around it).

    References
    ----------
    Davies, Gather, "The identification of multiple outliers", Journal of the American Statistical Association
    88(423), 1993 (Hampel identifier), doi 10.1080/01621459.1993.10476339.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> day = [datetime(2026, 2, 1, tzinfo=UTC) + timedelta(days=number) for number in range(28)]
    >>> level = [5.0] * 10 + [25.0] + [5.0] * 17
    >>> find_anomalies(pl.DataFrame({"ds": day, "y": level})).select(pl.col("ds").dt.day(), "y", "usual").rows()
    [(11, 25.0, 5.0)]
    """
    days = demand.sort("ds").group_by_dynamic("ds", every="1d").agg(pl.col("y").mean(), rows=pl.len())
    days = days.filter(pl.col("rows") == pl.col("rows").max()).drop("rows")
    if days.height < 7 * MIN_WEEKS_FOR_WEEKDAYS:
        return days.clear().with_columns(usual=pl.lit(None, pl.Float64))
    means = days["y"].to_numpy()
    around = _median_around(means)
    is_anomaly, usual = np.full(len(means), fill_value=True), around
    # Where the level changes, the deviation of a weekday stays as it was in GPUs, or as a share of the level.
    for scale in (np.where(around > 0, around, 1.0), np.ones(len(means))):
        without_weekdays = scale * _subtract_weekday_means(means / scale)
        # A day beside a change of the level is like the days of one side.
        sides = np.array(
            [without_weekdays - _median_around(without_weekdays, *side) for side in ((3, 3), (6, 0), (0, 6))]
        )
        distance = sides[np.abs(sides).argmin(axis=0), np.arange(len(means))]
        spread = 1.4826 * float(np.median(np.abs(sides[0]) / scale))
        is_anomaly &= np.abs(distance) > np.maximum(MAX_DAILY_DEVIATION * spread * scale, 0.1 * np.abs(around))
        usual = means - distance
    return days.with_columns(usual=usual).filter(is_anomaly)


def _median_around(means: np.ndarray, n_before: int = 3, n_after: int = 3) -> np.ndarray:
    """Median of each day and a number of days before and after it."""
    return np.array([np.median(means[max(day - n_before, 0) : day + n_after + 1]) for day in range(len(means))])


def _subtract_weekday_means(means: np.ndarray) -> np.ndarray:
    """Subtract the mean deviation of each weekday from daily means."""
    if len(means) < 7 * MIN_WEEKS_FOR_WEEKDAYS:
        return means
    around = _median_around(means)
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
"""Columns and types of a file of announced jobs."""
EVENT_CALENDAR_SCHEMA = {"kind": pl.String, "start_time": pl.Datetime, "end_time": pl.Datetime}
"""Columns and types of a calendar file of releases, holidays and maintenance."""


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
    """Convert a calendar to time spans in hours since `start`: an array of shape (n, 2) for each kind, sorted by kind.

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
    """Compute the mean GPUs of announced jobs in each interval from `start` on, shape (n_series, slots).

    Jobs of a tenant without a series count for the whole fleet only.

    Parameters
    ----------
    jobs : polars.DataFrame
        Announced jobs, see :func:`read_announced`.
    ids : sequence of str
        Names of the series.
    whole : str
        Name of the series of the whole fleet.
    start : datetime
        Start of the first interval.
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
    """Read the given columns of a CSV or Parquet file, with times in UTC; raise ScenarioError if any is missing."""
    names = ", ".join(columns)
    try:
        table = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path, try_parse_dates=True)
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
    """Return the table; raise ScenarioError, with `rule`, for rows in `odd` and rows that end before they start."""
    bad = table.filter(~(pl.col("end_time") > pl.col("start_time")).fill_null(False)).vstack(odd)
    if bad.height:
        expected = " and ".join(filter(None, (rule, "an end after its start")))
        raise ScenarioError(str(path), expected, f"{bad.height} other rows, first {bad.row(0)}", f"Fix {path.name}.")
    return table
