"""Calibrated quantiles, and tenant forecasts that add up to their pool.

Past errors of each quantile of a model are scaled by the standard deviation of the series, by its error relative to
the other series, and by the lead time. Pooled over the series of a source, and weighted towards the series' own errors,
they give the shift after which the right share of actual values lies below the quantile. The ends of the 90 % interval
follow the recent misses of each series, and of all series on each lead day. Old errors count less. At each cutoff only
errors known by then are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from gpuplanner.core.errors import SchemaError, examples
from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import Forecast
from gpuplanner.forecast.backtest import Backtest
from gpuplanner.forecast.statistical_models import QUANTILE_LEVELS

CUTOFFS_FOR_EQUAL_OWN_WEIGHT = 64.0
"""Number of cutoffs after which the errors of a series itself count as much as the errors pooled over all series."""
CUTOFFS_FOR_HALF_ERROR_SCALE = 6.0
"""Number of cutoffs after which a series' own ratio of its error to the pooled one counts as much as a ratio of 1."""
MAX_ERROR_RATIO = 3.0
"""Largest error of a series relative to the pooled error of the others; the smallest is its inverse."""
ERROR_HALF_LIFE_CUTOFFS = 10.0
"""Number of later cutoffs after which an error counts half, since levels and the quality of models drift."""
INDEPENDENT_ERRORS_PER_CUTOFF = 4.0
"""Number of independent errors of a series at a cutoff, for the finite-sample correction: errors of one cutoff are
correlated. Errors of series are correlated too: n series count as n ** 0.25."""
ERROR_GROWTH_POWER, PATH_ERROR_GROWTH_POWER = 0.3, 0.15
"""Power of the lead time with which errors are assumed to grow: of models without own quantiles, and of models whose
own quantiles already widen with the lead time."""
OWN_MISS_GROWTH, COMMON_MISS_GROWTH = 0.25, 1.0
"""Growth of half an interval, in natural logarithms, for a cutoff at which all actual values of the series lay outside
it, and for a lead day on which those of all series did."""
MIN_INTERVAL_LOG_FACTOR, MAX_INTERVAL_LOG_FACTOR = np.log(0.6), np.log(2.5)
"""Bounds of the factor by which half an interval is scaled for past misses, in natural logarithms."""
MIN_ERROR_UNIT_RATIO = 0.5
"""Smallest error unit (standard deviation of the series) of an earlier cutoff relative to that of the present one, so
that errors of a quiet start do not inflate those of a busy present."""
MAX_QUANTILE_TO_PEAK_RATIO = 4.0
"""Largest calibrated quantile relative to the largest value of the series so far."""
MEDIAN_INDEX = QUANTILE_LEVELS.index(0.5)
"""Index of the median in :data:`QUANTILE_LEVELS`."""


def calibrate_quantiles(
    backtest: Backtest,
    model: str,
    cutoff_index: int,
    known_values: np.ndarray,
    before: np.ndarray,
    forecast: np.ndarray | None = None,
) -> np.ndarray:
    """Calibrate the quantiles of a model at a cutoff by its past errors.

    Parameters
    ----------
    backtest : Backtest
        Forecasts and actual values at all cutoffs.
    model : str
        Name of the model.
    cutoff_index : int
        Index of the cutoff; the number of cutoffs stands for the end of the history.
    known_values : numpy.ndarray, shape (n_series, n_origins, horizon)
        Actual values as far as they were known at the cutoff, NaN elsewhere.
    before : numpy.ndarray, shape (n_series, n_origins, horizon, n_levels)
        Calibrated quantiles of the earlier cutoffs.
    forecast : numpy.ndarray, optional
        Quantiles to calibrate; None: those of the backtest at the cutoff.
    """
    base = backtest.raw_quantiles(model)
    now = base[:, cutoff_index] if forecast is None else forecast
    unit = backtest.unit[:, cutoff_index]
    known_values = known_values[:, :cutoff_index]
    before = before[:, :cutoff_index]
    power = PATH_ERROR_GROWTH_POWER if model in backtest.own_quantiles else ERROR_GROWTH_POWER
    lead = ((backtest.gap + np.arange(backtest.horizon) + 0.5) / backtest.grid.season) ** power
    floored = np.maximum(backtest.unit[:, :cutoff_index], MIN_ERROR_UNIT_RATIO * unit[:, None])
    size = np.where(floored > 0, floored, np.nan)[..., None] * lead
    weight = 0.5 ** (np.arange(cutoff_index)[::-1] / ERROR_HALF_LIFE_CUTOFFS)
    full = backtest.full[cutoff_index] if backtest.full[cutoff_index].any() else np.ones(len(unit), dtype=bool)
    step_share = min(backtest.step / backtest.horizon, 1.0)
    scale = _estimate_relative_errors((known_values - base[:, :cutoff_index, :, MEDIAN_INDEX]) / size, full)
    errors = (known_values[..., None] - base[:, :cutoff_index]) / (size * scale[:, :-1, None])[..., None]
    shifts = _quantile_shifts(errors, weight, full, step_share)
    calibrated = now + (unit * scale[:, -1])[:, None, None] * lead[:, None] * shifts
    middle = now[..., MEDIAN_INDEX : MEDIAN_INDEX + 1]
    calibrated[..., :MEDIAN_INDEX] = np.minimum(calibrated[..., :MEDIAN_INDEX], middle)
    calibrated[..., MEDIAN_INDEX + 1 :] = np.maximum(calibrated[..., MEDIAN_INDEX + 1 :], middle)
    # The ends alone: what is planned at costs least where the errors so far put it.
    day = (backtest.gap + np.arange(backtest.horizon)) // backtest.grid.season
    for end, inner, factor in zip((0, -1), (1, -2), _interval_factors(known_values, before, weight, day), strict=True):
        moved = middle[..., 0] + factor * (calibrated[..., end] - middle[..., 0])
        calibrated[..., end] = (np.maximum if end else np.minimum)(moved, calibrated[..., inner])
    top = np.minimum(MAX_QUANTILE_TO_PEAK_RATIO * backtest.largest[:, cutoff_index], backtest.cap)
    calibrated = np.clip(calibrated, 0.0, top[:, None, None])
    return np.asarray(np.maximum.accumulate(calibrated, axis=-1))


def calibrated_mean(
    mean: np.ndarray, uncalibrated: np.ndarray, calibrated: np.ndarray, cap: np.ndarray | float = np.inf
) -> np.ndarray:
    """Shift the mean of a forecast by as much as calibration shifts the mean of its quantiles.

    Corrections are interpolated linearly between quantile levels and held constant below 10 % and above 90 %, because
    the outermost levels are corrected for coverage. The mean of a model with a single value becomes the mean of its
    calibrated quantiles.

    Parameters
    ----------
    mean : numpy.ndarray, shape (...)
        Mean of the forecast.
    uncalibrated, calibrated : numpy.ndarray, shape (..., n_levels)
        Quantiles before and after calibration.
    cap : numpy.ndarray or float
        Largest possible value.

    Examples
    --------
    >>> calibrated_mean(np.array(0.0), np.zeros(7), np.array([0, 0, 0, 0, 2.0, 4.0, 60.0])).round(2).item()
    1.1
    """
    inner = np.array(QUANTILE_LEVELS[1:-1])
    outer = np.array([-inner[0], *inner, 2 - inner[-1]])
    share = (outer[2:] - outer[:-2]) / 2
    return np.asarray(np.clip(mean + (calibrated - uncalibrated)[..., 1:-1] @ share, 0.0, cap))


def _estimate_relative_errors(errors: np.ndarray, full: np.ndarray) -> np.ndarray:
    """Estimate each series' error relative to the pooled error before each cutoff, shape (n_series, n_origins + 1).

    The ratio is shrunk towards 1 while there are few cutoffs, as the posterior mean of exponential errors with a Gamma
    prior.
    """
    count = (~np.isnan(errors)).sum(axis=2)
    size = np.nansum(np.abs(errors), axis=2) / np.maximum(count, 1)
    share = count / errors.shape[2]
    weight_sums, total = (np.zeros((len(errors), errors.shape[1] + 1)) for _ in range(2))
    fade = 0.5 ** (1 / ERROR_HALF_LIFE_CUTOFFS)
    for cutoff_index in range(errors.shape[1]):
        weight_sums[:, cutoff_index + 1] = fade * (weight_sums[:, cutoff_index] + share[:, cutoff_index])
        total[:, cutoff_index + 1] = fade * (total[:, cutoff_index] + share[:, cutoff_index] * size[:, cutoff_index])
    weight, summed = weight_sums[full].sum(axis=0), total[full].sum(axis=0)
    pool = np.where(summed > 0, summed / np.maximum(weight, 1e-9), 1.0)
    return np.asarray(
        np.clip(
            (CUTOFFS_FOR_HALF_ERROR_SCALE + total / pool) / (CUTOFFS_FOR_HALF_ERROR_SCALE + weight_sums),
            1 / MAX_ERROR_RATIO,
            MAX_ERROR_RATIO,
        )
    )


def _quantile_shifts(errors: np.ndarray, weight: np.ndarray, full: np.ndarray, step_share: float) -> np.ndarray:
    """Compute the shift of each quantile, in units of the scaled errors, shape (n_series, 1, n_levels).

    The median is not shifted. Series that are mostly zero do not count in the pooled errors. Few errors may all lie on
    one side by chance: with that probability, both ends are shifted outwards by the larger of the two shifts. Cutoffs
    closer than a horizon count only for the part of the horizon that does not overlap.

    Parameters
    ----------
    errors : numpy.ndarray, shape (n_series, n_origins, horizon, n_levels)
        Past errors of each quantile: actual value minus quantile, over its error unit.
    weight : numpy.ndarray, shape (n_origins,)
        Weight of each cutoff; older ones weigh less.
    full : numpy.ndarray of bool, shape (n_series,)
        Whether a series has the rule "full" and so counts in the pooled errors.
    step_share : float
        Intervals between two cutoffs over the horizon, at most 1.
    """
    series, _, horizon, levels = errors.shape
    shift = np.zeros((series, 1, levels))
    judged = (~np.isnan(errors[..., 0])).any(axis=(0, 2))
    if not judged.any():
        return shift
    n_errors = INDEPENDENT_ERRORS_PER_CUTOFF * full.sum() ** 0.25 * weight[judged].sum()
    own_share = judged.sum() / (judged.sum() + CUTOFFS_FOR_EQUAL_OWN_WEIGHT)
    weights = np.repeat(weight, horizon)
    for at, level in enumerate(QUANTILE_LEVELS):
        if at == MEDIAN_INDEX:
            continue  # the middle is what the candidate says: to mend it makes the point forecast worse
        wanted = _finite_sample_level(level, n_errors)
        flat = errors[..., at].reshape(series, -1)
        pool, all_series = (
            _weighted_row_quantiles(flat[part].reshape(1, -1), np.tile(weights, part.sum()), wanted)[0]
            for part in (full, np.ones(series, dtype=bool))
        )
        common = np.where(full, pool, all_series)
        own_shift = _weighted_row_quantiles(flat, weights, wanted)
        shift[:, 0, at] = np.where(np.isnan(own_shift), common, own_share * own_shift + (1 - own_share) * common)
    shift = np.nan_to_num(shift)
    independent = (1 + (weight[judged].sum() - 1) * step_share) * np.sqrt(full.sum())
    outward = shift[..., [0, -1]] * [-1, 1]
    larger_end = np.maximum(outward.max(axis=-1, keepdims=True), 0.0)
    shift[..., [0, -1]] = (outward + 0.5 ** max(independent - 1, 0.0) * (larger_end - outward)) * [-1, 1]
    return shift


def _finite_sample_level(level: float, n_errors: float) -> float:
    """Correct a quantile level [0-1] for the finite number `n_errors` of independent errors.

    Only the outermost levels are corrected: wider inner intervals cost more accuracy than they gain.
    """
    if QUANTILE_LEVELS[0] < level < QUANTILE_LEVELS[-1]:
        return level
    grown = (n_errors + 1) / n_errors
    return min(level * grown, 1.0) if level > 0.5 else max(1 - (1 - level) * grown, 0.0)


def _weighted_row_quantiles(rows: np.ndarray, weight: np.ndarray, level: float) -> np.ndarray:
    """Compute the weighted quantile of each row, ignoring NaN; NaN for rows without a value.

    Examples
    --------
    >>> _weighted_row_quantiles(np.array([[1.0, 2.0, np.nan]]), np.array([1.0, 3.0, 9.0]), 0.5).round(2).tolist()
    [1.75]
    """
    order = np.argsort(rows, axis=1)  # NaN go last
    ordered = np.take_along_axis(rows, order, axis=1)
    mass = np.where(np.isnan(ordered), 0.0, weight[order])
    middle = np.cumsum(mass, axis=1) - mass / 2
    target = level * mass.sum(axis=1)
    last = np.maximum((~np.isnan(ordered)).sum(axis=1) - 1, 0)
    high = np.minimum((middle < target[:, None]).sum(axis=1), last)
    low, row = np.maximum(high - 1, 0), np.arange(len(rows))
    gap = middle[row, high] - middle[row, low]
    share = np.clip((target - middle[row, low]) / np.where(gap > 0, gap, 1.0), 0.0, 1.0)
    return np.asarray(ordered[row, low] * (1 - share) + ordered[row, high] * share)


def _interval_factors(
    known_values: np.ndarray, before: np.ndarray, weight: np.ndarray, day: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute factors for the lower and upper half of the 90 % intervals from past misses, each (n_series, horizon).

    A series' own misses scale all of its intervals; misses of all series on a lead day scale the intervals of that lead
    day.

    Parameters
    ----------
    known_values : numpy.ndarray, shape (n_series, n_origins, horizon)
        Actual values as far as they were known at the cutoff, NaN elsewhere.
    before : numpy.ndarray, shape (n_series, n_origins, horizon, n_levels)
        Calibrated quantiles of earlier cutoffs.
    weight : numpy.ndarray, shape (n_origins,)
        Weight of each cutoff; older ones weigh less.
    day : numpy.ndarray of int, shape (horizon,)
        Lead day of each interval.
    """
    is_evaluated = ~np.isnan(known_values) & ~np.isnan(before[..., 0])
    factors = []
    for missed in (known_values < before[..., 0], known_values > before[..., -1]):
        excess = np.where(is_evaluated, missed - QUANTILE_LEVELS[0], 0.0)
        total = np.bincount(day, weights=np.einsum("sfh,f->h", excess, weight))
        by_day = total / (len(excess) * np.maximum(np.bincount(day), 1))
        moved = OWN_MISS_GROWTH * (excess.mean(axis=2) @ weight)[:, None] + COMMON_MISS_GROWTH * by_day[day]
        factors.append(np.exp(np.clip(moved, MIN_INTERVAL_LOG_FACTOR, MAX_INTERVAL_LOG_FACTOR)))
    return factors[0], factors[1]


MIN_COVARIANCE_ERRORS = 3
"""Smallest number of errors of a series, or of intervals common to all series, from which covariances are estimated."""
FORECAST_VALUE_COLUMNS = ("mean", *(f"q{round(100 * level):02d}" for level in QUANTILE_LEVELS))
"""Columns of table ``schemas.Forecast`` with forecast values: ``mean`` and the quantiles ``q05`` to ``q95``."""


def reconcile_to_pool(tenants: pl.DataFrame, pool: pl.DataFrame, *, own_quantiles: bool = False) -> pl.DataFrame:
    """Split the forecast of a GPU pool over its tenants (top-down reconciliation).

    Quantiles of tenants do not add up, because their peaks do not coincide: the 95 % quantile of the pool lies below
    the sum of the tenants' 95 % quantiles. Each quantile of the pool is split in proportion to the means of the tenants
    in that interval, so the parts sum to the pool and stay in order.

    Parameters
    ----------
    tenants, pool : polars.DataFrame
        Tables ``schemas.Forecast``; ``unique_id`` is ``tenant/profile`` and ``all/profile``.
    own_quantiles : bool
        Split the mean alone: the quantiles of a tenant are scaled as its mean and keep their own coverage, but do not
        add up.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Forecast`` of the tenants, sorted by ``unique_id`` and ``ds``. Where every mean is
        zero, the tenants get equal shares.

    Raises
    ------
    SchemaError
        If a profile and interval of the tenants is missing in the pool, or the other way round.

    References
    ----------
    Hyndman, Athanasopoulos, "Forecasting: Principles and Practice", 3rd edition, section 11.2 (top-down
    approaches, forecast proportions), https://otexts.com/fpp3.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> now = datetime(2026, 2, 2, tzinfo=UTC)
    >>> def made(uid, mean, high):
    ...     low = dict.fromkeys(FORECAST_VALUE_COLUMNS[:-1], mean)
    ...     return {"unique_id": uid, "ds": now, "model": "Naive", **low, "q95": high, "cutoff": now}
    >>> tenants = pl.DataFrame([made("a/gpu", 1.0, 4.0), made("b/gpu", 3.0, 6.0)])
    >>> pool = pl.DataFrame([made("all/gpu", 4.0, 8.0)])
    >>> reconcile_to_pool(tenants, pool)["q95"].to_list()
    [2.0, 6.0]
    """
    profile = pl.col("unique_id").str.split("/").list.last()
    below = check_table(tenants, Forecast, source="forecast of the teams").with_columns(profile=profile)
    above = check_table(pool, Forecast, source="forecast of the pool")
    above = above.select("ds", *FORECAST_VALUE_COLUMNS, profile=profile)
    keys = ["profile", "ds"]
    only_below = below.join(above, on=keys, how="anti").select("unique_id", "ds")
    only_above = above.with_columns(unique_id=pl.format("all/{}", "profile")).join(below, on=keys, how="anti")
    unmatched = pl.concat([only_below, only_above.select("unique_id", "ds")])
    if unmatched.height:
        series = unmatched["unique_id"].unique().sort().to_list()
        expected = "teams and pool with the same profiles and intervals"
        got = f"{unmatched.height} rows of one side only, in {examples(series)}"
        todo = "Forecast both from the same demand with the same horizon."
        raise SchemaError("reconcile_to_pool", expected, got, todo)
    total, members = pl.col("mean").sum().over(keys), pl.len().over(keys)
    share = pl.when(total > 0).then(pl.col("mean") / total).otherwise(1 / members)
    parted = ("mean",) if own_quantiles else FORECAST_VALUE_COLUMNS
    shared = (
        below.sort("unique_id", "ds")
        .with_columns(share=share)
        .join(above, on=keys, how="left", suffix="_pool", maintain_order="left")
        .with_columns(old="mean")
        .with_columns((pl.col("share") * pl.col(f"{name}_pool")).alias(name) for name in parted)
    )
    if own_quantiles:
        grown = pl.when(pl.col("old") > 0).then(pl.col("mean") / pl.col("old"))
        own_values = {
            name: pl.coalesce(grown * pl.col(name), pl.col(name) + pl.col("mean"))
            for name in FORECAST_VALUE_COLUMNS[1:]
        }
        shared = shared.with_columns(**own_values)
    return check_table(shared, Forecast, source="reconciled forecast")


def reconcile_mint(
    forecast: pl.DataFrame, sums: Mapping[str, Sequence[str]], errors: Mapping[str, np.ndarray]
) -> pl.DataFrame:
    """Reconcile forecasts of sums and parts by minimum trace of the error covariance (MinT).

    Means move to the nearest values that add up and are not negative, measured by the covariance of past errors: a
    series with large errors moves most. Quantiles above the mean of a series are shifted by as much as the mean, those
    below it in proportion, so that a quantile of zero stays zero.

    Parameters
    ----------
    forecast : polars.DataFrame
        Table ``schemas.Forecast``.
    sums : mapping of str to sequence of str
        Names of the series that are sums, each with the names of its parts, none of which is a sum itself.
    errors : mapping of str to numpy.ndarray, each of shape (n,)
        Past errors of each series' mean, at the same intervals; NaN where one was not forecast.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Forecast`` with the same rows; the mean of every sum is the sum of the means of its parts.

    Raises
    ------
    SchemaError
        If a sum or a part of one is missing, or a series has no errors.

    References
    ----------
    Wickramasuriya, Athanasopoulos, Hyndman, "Optimal forecast reconciliation for hierarchical and grouped time
    series through trace minimization", Journal of the American Statistical Association 114(526), 2019, equation
    (11) with the shrinkage of section 2.4, doi 10.1080/01621459.2018.1448825.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> now = datetime(2026, 2, 2, tzinfo=UTC)
    >>> def made(uid, mean):
    ...     values = dict.fromkeys(FORECAST_VALUE_COLUMNS, mean)
    ...     return {"unique_id": uid, "ds": now, "model": "Naive", **values, "cutoff": now}
    >>> table = pl.DataFrame([made("a/gpu", 1.0), made("all/gpu", 7.0), made("b/gpu", 3.0)])
    >>> alike = np.hstack([np.eye(3), -np.eye(3)])  # wrong as often, and each for itself
    >>> errors = dict(zip(["a/gpu", "all/gpu", "b/gpu"], alike, strict=True))
    >>> reconcile_mint(table, {"all/gpu": ["a/gpu", "b/gpu"]}, errors)["mean"].round(1).to_list()
    [2.0, 6.0, 4.0]
    """
    table = check_table(forecast, Forecast, source="forecast").sort("unique_id", "ds")
    ids = table["unique_id"].unique(maintain_order=True).to_list()
    needed = {*sums, *(part for parts in sums.values() for part in parts)}
    if not all(sums.values()) or not sums or needed - set(ids) or set(ids) - set(errors):
        expected = f"{examples(sorted(needed))}, each sum with its parts, and past errors of every series"
        got = f"series {examples(ids)}, errors of {len(errors)}"
        raise SchemaError("reconcile_mint", expected, got, "Forecast all of them from the same demand.")
    leaves = [uid for uid in ids if uid not in sums]
    adds = [[uid == leaf or leaf in sums.get(uid, ()) for uid in ids] for leaf in leaves]
    summing = np.array(adds, dtype=float)
    base = table["mean"].to_numpy().reshape(len(ids), -1)
    weight = np.linalg.inv(_shrunk_covariance(np.array([errors[uid] for uid in ids]), base.mean(axis=1)))
    leaf_means = np.linalg.solve(summing @ weight @ summing.T, summing @ weight @ base)
    at = [ids.index(leaf) for leaf in leaves]
    step = np.zeros(base.shape)
    step[at] = np.maximum(leaf_means, 0.0) - base[at]
    moved = table.with_columns(_shift_quantiles(pl.Series("step", step.ravel())))
    moved = moved.filter(pl.col("unique_id").is_in(leaves))
    return pl.concat([moved, sum_parts(moved, table, sums)]).sort("unique_id", "ds")


def sum_parts(parts: pl.DataFrame, forecast: pl.DataFrame, sums: Mapping[str, Sequence[str]]) -> pl.DataFrame:
    """Replace the forecasts of sums by ones whose means are the sums of their parts' means.

    Quantiles do not add up, because peaks do not coincide: those above the mean keep their distance to it, those below
    it their ratio.

    Parameters
    ----------
    parts, forecast : polars.DataFrame
        Tables ``schemas.Forecast``: the reconciled parts, and the forecast that has the sums.
    sums : mapping of str to sequence of str
        Names of the series that are sums, each with the names of its parts.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Forecast`` of the sums alone, sorted by ``unique_id`` and ``ds``.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> now = datetime(2026, 2, 2, tzinfo=UTC)
    >>> def made(uid, mean):
    ...     values = dict.fromkeys(FORECAST_VALUE_COLUMNS, mean)
    ...     return {"unique_id": uid, "ds": now, "model": "Naive", **values, "cutoff": now}
    >>> parts = pl.DataFrame([made("a/gpu", 1.0), made("b/gpu", 3.0)])
    >>> sum_parts(parts, pl.DataFrame([made("all/gpu", 7.0)]), {"all/gpu": ["a/gpu", "b/gpu"]})["mean"].to_list()
    [4.0]
    """
    added = pl.concat(
        parts.filter(pl.col("unique_id").is_in(list(members)))
        .group_by("ds", maintain_order=True)
        .agg(total=pl.col("mean").sum())
        .with_columns(unique_id=pl.lit(whole))
        for whole, members in sums.items()
    )
    rows = forecast.filter(pl.col("unique_id").is_in(list(sums)))
    rows = rows.join(added, on=["unique_id", "ds"], how="left", maintain_order="left")
    moved = rows.with_columns(_shift_quantiles(pl.col("total") - pl.col("mean"))).with_columns(mean="total")
    return check_table(moved.sort("unique_id", "ds"), Forecast, source="reconciled forecast")


def _shift_quantiles(step: pl.Series | pl.Expr) -> list[pl.Expr]:
    """Make expressions that add `step` to mean and quantiles: in proportion for those below the mean; at least 0."""
    shares = {
        name: (pl.col(name) / pl.col("mean")).fill_nan(1.0).clip(upper_bound=1.0) for name in FORECAST_VALUE_COLUMNS
    }
    return [pl.max_horizontal(pl.col(name) + share * step, 0.0).alias(name) for name, share in shares.items()]


def _shrunk_covariance(errors: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Estimate the error covariance, shape (n_series, n_series), with correlations shrunk towards 0.

    The shrinkage is the variance of the correlations over the sum of their squares (Schaefer, Strimmer, 2005). A series
    with few errors gets the variance of a Poisson count of its mean.
    """
    is_known = ~np.isnan(errors)
    few = is_known.sum(axis=1) < MIN_COVARIANCE_ERRORS
    size = np.sqrt(np.nansum(errors**2, axis=1) / np.maximum(is_known.sum(axis=1), 1))
    scale = np.where(few, np.sqrt(np.maximum(mean, 0.0)), size)
    scale = np.maximum(scale, 1e-6 * max(float(scale.max()), 1.0))
    common_errors = errors[:, is_known[~few].all(axis=0)][~few]
    mixed = np.eye(len(errors))
    if common_errors.shape[1] >= MIN_COVARIANCE_ERRORS and len(common_errors) > 1:
        deviation = np.maximum(common_errors.std(axis=1, keepdims=True), 1e-12)
        unit = (common_errors - common_errors.mean(axis=1, keepdims=True)) / deviation
        correlation = unit @ unit.T / common_errors.shape[1]
        spread = ((unit**2) @ (unit**2).T / common_errors.shape[1] - correlation**2) / common_errors.shape[1]
        off_diagonal = ~np.eye(len(common_errors), dtype=bool)
        share = min(spread[off_diagonal].sum() / max((correlation[off_diagonal] ** 2).sum(), 1e-12), 1.0)
        mixed[np.ix_(~few, ~few)] = np.where(off_diagonal, (1 - share) * correlation, 1.0)
    return np.asarray(scale[:, None] * mixed * scale)
