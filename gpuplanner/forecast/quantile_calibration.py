"""Calibrated quantiles, and tenant forecasts that add up to their pool.

Errors are measured from each quantile of a candidate, in units of what the series moves by, of how much it errs
beside the others, and of the lead; pooled over the series of a source and weighted towards the series' own record,
they say what to add so that the right share lies below. The ends of the interval follow the recent misses of each
series, and of all on each lead day. Old errors count less. Nothing is used before it had happened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from gpuplanner.core.errors import SchemaError, examples
from gpuplanner.core.schema_checks import check
from gpuplanner.core.schemas import Forecast
from gpuplanner.forecast.backtest import Backtest
from gpuplanner.forecast.statistical_models import LEVELS

OWN_FOLDS = 64.0
"""After so many origins the record of a series itself counts as much as that of all."""
SCALE_FOLDS = 6.0
"""After so many, how much it errs beside the others is half believed."""
MOST = 3.0
"""It errs by no more than so many times the others' errors, and by no less than the inverse."""
HALF_LIFE = 10.0
"""Origins after which an error counts half: levels drift, and a candidate is not for ever as good as it was."""
LOOKS = 4.0
"""How many independent errors a series shows at an origin, in the correction for a finite sample: slots of one origin
err together. Series err together too: they are taken for the fourth root of their number."""
GROWTH, GROWTH_OF_PATHS = 0.3, 0.15
"""Power of the lead with which errors grow; that of candidates whose own quantiles grow apart already."""
ADAPT, ADAPT_ALL = 0.25, 1.0
"""By how much, in logarithms, half of an interval grows for an origin that its series missed altogether, and on a lead
day for one at which all series missed that day."""
NARROWEST, WIDEST = np.log(0.6), np.log(2.5)
UNIT_FLOOR = 0.5
"""Smallest unit of an earlier error, in units of today: a quiet beginning says nothing of a busy present."""
SEEN_FACTOR = 4.0
"""No quantile above so many times the largest value seen."""
MIDDLE = LEVELS.index(0.5)


def quantiles_at(
    test: Backtest,
    model: str,
    place: int,
    known: np.ndarray,
    before: np.ndarray,
    said: np.ndarray | None = None,
) -> np.ndarray:
    """Quantiles of a candidate at an origin."""
    base = test.said(model)
    now = base[:, place] if said is None else said
    unit, known, before = test.unit[:, place], known[:, :place], before[:, :place]
    power = GROWTH_OF_PATHS if model in test.own_quantiles else GROWTH
    lead = ((test.gap + np.arange(test.horizon) + 0.5) / test.grid.season) ** power
    floored = np.maximum(test.unit[:, :place], UNIT_FLOOR * unit[:, None])
    size = np.where(floored > 0, floored, np.nan)[..., None] * lead
    weight = 0.5 ** (np.arange(place)[::-1] / HALF_LIFE)
    full = test.full[place] if test.full[place].any() else np.ones(len(unit), dtype=bool)
    apart = min(test.step / test.horizon, 1.0)
    scale = _scales((known - base[:, :place, :, MIDDLE]) / size, full)
    errors = (known[..., None] - base[:, :place]) / (size * scale[:, :-1, None])[..., None]
    found = now + (unit * scale[:, -1])[:, None, None] * lead[:, None] * _shifts(errors, weight, full, apart)
    middle = now[..., MIDDLE : MIDDLE + 1]
    found[..., :MIDDLE] = np.minimum(found[..., :MIDDLE], middle)
    found[..., MIDDLE + 1 :] = np.maximum(found[..., MIDDLE + 1 :], middle)
    # The ends alone: what is planned at costs least where the errors so far put it.
    day = (test.gap + np.arange(test.horizon)) // test.grid.season
    for end, inner, factor in zip((0, -1), (1, -2), _widths(known, before, weight, day), strict=True):
        moved = middle[..., 0] + factor * (found[..., end] - middle[..., 0])
        found[..., end] = (np.maximum if end else np.minimum)(moved, found[..., inner])
    top = np.minimum(SEEN_FACTOR * test.largest[:, place], test.cap)
    found = np.clip(found, 0.0, top[:, None, None])
    return np.asarray(np.maximum.accumulate(found, axis=-1))


def mean_at(mean: np.ndarray, said: np.ndarray, calibrated: np.ndarray, cap: np.ndarray | float = np.inf) -> np.ndarray:
    """Mean of a forecast whose quantiles were corrected: it moves as far as the mean of the quantiles does.

    Between levels a correction is taken to run straight, and beyond 10 and 90 % to stay: that of the outermost is made
    for coverage, by the largest error there was while origins are few. The mean of a candidate that says one value
    alone becomes that of its quantiles.

    Examples
    --------
    >>> mean_at(np.array(0.0), np.zeros(7), np.array([0, 0, 0, 0, 2.0, 4.0, 60.0])).round(2).item()
    1.1
    """
    inner = np.array(LEVELS[1:-1])
    outer = np.array([-inner[0], *inner, 2 - inner[-1]])
    share = (outer[2:] - outer[:-2]) / 2
    return np.asarray(np.clip(mean + (calibrated - said)[..., 1:-1] @ share, 0.0, cap))


def _scales(errors: np.ndarray, full: np.ndarray) -> np.ndarray:
    """How much each series errs beside the others, as it was known before each origin, shape (n_series, n_origins + 1).

    Drawn towards 1 while origins are few, as the mean of exponential errors is by a Gamma law of their rate.
    """
    count = (~np.isnan(errors)).sum(axis=2)
    size = np.nansum(np.abs(errors), axis=2) / np.maximum(count, 1)
    share = count / errors.shape[2]
    seen, total = (np.zeros((len(errors), errors.shape[1] + 1)) for _ in range(2))
    fade = 0.5 ** (1 / HALF_LIFE)
    for place in range(errors.shape[1]):
        seen[:, place + 1] = fade * (seen[:, place] + share[:, place])
        total[:, place + 1] = fade * (total[:, place] + share[:, place] * size[:, place])
    weight, summed = seen[full].sum(axis=0), total[full].sum(axis=0)
    pool = np.where(summed > 0, summed / np.maximum(weight, 1e-9), 1.0)
    return np.asarray(np.clip((SCALE_FOLDS + total / pool) / (SCALE_FOLDS + seen), 1 / MOST, MOST))


def _shifts(errors: np.ndarray, weight: np.ndarray, full: np.ndarray, apart: float) -> np.ndarray:
    """What to add to each quantile, in units of the errors, shape (n_series, 1, n_levels).

    The errors of series that are mostly zero say nothing of the others. Few errors may all lie on one side by chance:
    as likely as that is, both ends move as far. Of origins that lie a share of the horizon apart only that counts.
    """
    series, _, horizon, levels = errors.shape
    shift = np.zeros((series, 1, levels))
    judged = (~np.isnan(errors[..., 0])).any(axis=(0, 2))
    if not judged.any():
        return shift
    looks = LOOKS * full.sum() ** 0.25 * weight[judged].sum()
    own_share = judged.sum() / (judged.sum() + OWN_FOLDS)
    weights = np.repeat(weight, horizon)
    for at, level in enumerate(LEVELS):
        if at == MIDDLE:
            continue  # the middle is what the candidate says: to mend it makes the point forecast worse
        wanted = _finite(level, looks)
        flat = errors[..., at].reshape(series, -1)
        pool, rest = (
            _level(flat[part].reshape(1, -1), np.tile(weights, part.sum()), wanted)[0]
            for part in (full, np.ones(series, dtype=bool))
        )
        common = np.where(full, pool, rest)
        own = _level(flat, weights, wanted)
        shift[:, 0, at] = np.where(np.isnan(own), common, own_share * own + (1 - own_share) * common)
    shift = np.nan_to_num(shift)
    independent = (1 + (weight[judged].sum() - 1) * apart) * np.sqrt(full.sum())
    outward = shift[..., [0, -1]] * [-1, 1]
    most = np.maximum(outward.max(axis=-1, keepdims=True), 0.0)
    shift[..., [0, -1]] = (outward + 0.5 ** max(independent - 1, 0.0) * (most - outward)) * [-1, 1]
    return shift


def _finite(level: float, looks: float) -> float:
    """Level to ask of a sample of so many independent errors, so that a new value lies below with the level.

    The outermost alone are mended: to widen the inner ones costs more than it saves.
    """
    if LEVELS[0] < level < LEVELS[-1]:
        return level
    grown = (looks + 1) / looks
    return min(level * grown, 1.0) if level > 0.5 else max(1 - (1 - level) * grown, 0.0)


def _level(rows: np.ndarray, weight: np.ndarray, level: float) -> np.ndarray:
    """Quantile of each row, NaN left out; NaN for rows without a value.

    Examples
    --------
    >>> _level(np.array([[1.0, 2.0, np.nan]]), np.array([1.0, 3.0, 9.0]), 0.5).round(2).tolist()
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


def _widths(
    known: np.ndarray, before: np.ndarray, weight: np.ndarray, day: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Factors of both halves of the intervals, shape (n_series, horizon), from the misses of their ends so far.

    A series' own misses move all of its intervals, those of all series the ones of the same lead day.
    """
    seen = ~np.isnan(known) & ~np.isnan(before[..., 0])
    found = []
    for missed in (known < before[..., 0], known > before[..., -1]):
        more = np.where(seen, missed - LEVELS[0], 0.0)
        total = np.bincount(day, weights=np.einsum("sfh,f->h", more, weight))
        by_day = total / (len(more) * np.maximum(np.bincount(day), 1))
        moved = ADAPT * (more.mean(axis=2) @ weight)[:, None] + ADAPT_ALL * by_day[day]
        found.append(np.exp(np.clip(moved, NARROWEST, WIDEST)))
    return found[0], found[1]


FEWEST = 3
"""Errors of a series, or at the same slots, below which their covariance is not measured."""
VALUES = ("mean", *(f"q{round(100 * level):02d}" for level in LEVELS))


def reconcile_to_pool(tenants: pl.DataFrame, pool: pl.DataFrame, *, own_quantiles: bool = False) -> pl.DataFrame:
    """Share the pool's forecast out to its tenants, top down.

    The quantiles of tenants do not add up: their peaks do not meet, so the 95 % quantile of the pool lies
    below the sum of theirs. Each tenant gets, of every quantile of the pool, the share that its mean has in
    the sum of all means in that slot; so the sums are the pool's, and the quantiles stay in order.

    Parameters
    ----------
    tenants, pool : polars.DataFrame
        Tables ``schemas.Forecast``; ``unique_id`` is ``tenant/profile`` and ``all/profile``.
    own_quantiles : bool
        Share out the mean alone: the quantiles of a tenant grow or shrink as its mean does, and hold what they say of
        it; they do not add up.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Forecast`` of the tenants, sorted by ``unique_id`` and ``ds``. Where every mean is
        zero, the tenants get equal shares.

    Raises
    ------
    SchemaError
        If a profile and slot of the tenants is missing in the pool, or the other way round.

    References
    ----------
    Hyndman, Athanasopoulos, "Forecasting: Principles and Practice", 3rd edition, section 11.2 (top-down
    approaches, forecast proportions), https://otexts.com/fpp3.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> now = datetime(2026, 2, 2, tzinfo=UTC)
    >>> def made(uid, mean, high):
    ...     low = dict.fromkeys(VALUES[:-1], mean)
    ...     return {"unique_id": uid, "ds": now, "model": "Naive", **low, "q95": high, "cutoff": now}
    >>> tenants = pl.DataFrame([made("a/gpu", 1.0, 4.0), made("b/gpu", 3.0, 6.0)])
    >>> pool = pl.DataFrame([made("all/gpu", 4.0, 8.0)])
    >>> reconcile_to_pool(tenants, pool)["q95"].to_list()
    [2.0, 6.0]
    """
    profile = pl.col("unique_id").str.split("/").list.last()
    below = check(tenants, Forecast, where="forecast of the teams").with_columns(profile=profile)
    above = check(pool, Forecast, where="forecast of the pool").select("ds", *VALUES, profile=profile)
    keys = ["profile", "ds"]
    only_below = below.join(above, on=keys, how="anti").select("unique_id", "ds")
    only_above = above.with_columns(unique_id=pl.format("all/{}", "profile")).join(below, on=keys, how="anti")
    alone = pl.concat([only_below, only_above.select("unique_id", "ds")])
    if alone.height:
        series = alone["unique_id"].unique().sort().to_list()
        expected = "teams and pool with the same profiles and intervals"
        got = f"{alone.height} rows of one side only, in {examples(series)}"
        todo = "Forecast both from the same demand with the same horizon."
        raise SchemaError("reconcile_to_pool", expected, got, todo)
    total, members = pl.col("mean").sum().over(keys), pl.len().over(keys)
    share = pl.when(total > 0).then(pl.col("mean") / total).otherwise(1 / members)
    parted = ("mean",) if own_quantiles else VALUES
    shared = (
        below.sort("unique_id", "ds")
        .with_columns(share=share)
        .join(above, on=keys, how="left", suffix="_pool", maintain_order="left")
        .with_columns(old="mean")
        .with_columns((pl.col("share") * pl.col(f"{name}_pool")).alias(name) for name in parted)
    )
    if own_quantiles:
        grown = pl.when(pl.col("old") > 0).then(pl.col("mean") / pl.col("old"))
        own = {name: pl.coalesce(grown * pl.col(name), pl.col(name) + pl.col("mean")) for name in VALUES[1:]}
        shared = shared.with_columns(**own)
    return check(shared, Forecast, where="reconciled forecast")


def reconcile_mint(
    forecast: pl.DataFrame, sums: Mapping[str, Sequence[str]], errors: Mapping[str, np.ndarray]
) -> pl.DataFrame:
    """Make forecasts of sums and their parts add up with the least trace of the error covariance (MinT).

    The means move to the nearest ones that add up, nearest in units of the errors made so far: a series that was
    often wrong moves most, and none below zero. Quantiles above the mean of a series move as far as it does, those
    below it in proportion: what may be nothing at all may be so still.

    Parameters
    ----------
    forecast : polars.DataFrame
        Table ``schemas.Forecast``.
    sums : mapping of str to sequence of str
        Series that are sums, with the series that each is the sum of; none of these is a sum itself.
    errors : mapping of str to numpy.ndarray, each of shape (n,)
        Past errors of each series' mean, at the same slots; NaN where one was not forecast.

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
    ...     return {"unique_id": uid, "ds": now, "model": "Naive", **dict.fromkeys(VALUES, mean), "cutoff": now}
    >>> table = pl.DataFrame([made("a/gpu", 1.0), made("all/gpu", 7.0), made("b/gpu", 3.0)])
    >>> alike = np.hstack([np.eye(3), -np.eye(3)])  # wrong as often, and each for itself
    >>> errors = dict(zip(["a/gpu", "all/gpu", "b/gpu"], alike, strict=True))
    >>> reconcile_mint(table, {"all/gpu": ["a/gpu", "b/gpu"]}, errors)["mean"].round(1).to_list()
    [2.0, 6.0, 4.0]
    """
    table = check(forecast, Forecast, where="forecast").sort("unique_id", "ds")
    ids = table["unique_id"].unique(maintain_order=True).to_list()
    needed = {*sums, *(part for parts in sums.values() for part in parts)}
    if not all(sums.values()) or not sums or needed - set(ids) or set(ids) - set(errors):
        expected = f"{examples(sorted(needed))}, each sum with its parts, and past errors of every series"
        got = f"series {examples(ids)}, errors of {len(errors)}"
        todo = "Forecast all of them from the same demand."
        raise SchemaError("reconcile_mint", expected, got, todo)
    leaves = [uid for uid in ids if uid not in sums]
    adds = [[uid == leaf or leaf in sums.get(uid, ()) for uid in ids] for leaf in leaves]
    summing = np.array(adds, dtype=float)
    base = table["mean"].to_numpy().reshape(len(ids), -1)
    weight = np.linalg.inv(_shrunk_covariance(np.array([errors[uid] for uid in ids]), base.mean(axis=1)))
    found = np.linalg.solve(summing @ weight @ summing.T, summing @ weight @ base)
    at = [ids.index(leaf) for leaf in leaves]
    step = np.zeros(base.shape)
    step[at] = np.maximum(found, 0.0) - base[at]
    moved = table.with_columns(_moved(pl.Series("step", step.ravel())))
    moved = moved.filter(pl.col("unique_id").is_in(leaves))
    return pl.concat([moved, add_up(moved, table, sums)]).sort("unique_id", "ds")


def add_up(parts: pl.DataFrame, forecast: pl.DataFrame, sums: Mapping[str, Sequence[str]]) -> pl.DataFrame:
    """Rows of series that are sums, their means the sums of those of their parts.

    Quantiles do not add up: peaks do not meet. Those above the mean keep their distance to it, those below their share
    of it.

    Parameters
    ----------
    parts, forecast : polars.DataFrame
        Tables ``schemas.Forecast``: the parts as they are now, and the sums as they were forecast.
    sums : mapping of str to sequence of str
        Series that are sums, with their parts.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Forecast`` of the sums alone, sorted by ``unique_id`` and ``ds``.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> now = datetime(2026, 2, 2, tzinfo=UTC)
    >>> def made(uid, mean):
    ...     return {"unique_id": uid, "ds": now, "model": "Naive", **dict.fromkeys(VALUES, mean), "cutoff": now}
    >>> parts = pl.DataFrame([made("a/gpu", 1.0), made("b/gpu", 3.0)])
    >>> add_up(parts, pl.DataFrame([made("all/gpu", 7.0)]), {"all/gpu": ["a/gpu", "b/gpu"]})["mean"].to_list()
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
    moved = rows.with_columns(_moved(pl.col("total") - pl.col("mean"))).with_columns(mean="total")
    return check(moved.sort("unique_id", "ds"), Forecast, where="reconciled forecast")


def _moved(step: pl.Series | pl.Expr) -> list[pl.Expr]:
    shares = {name: (pl.col(name) / pl.col("mean")).fill_nan(1.0).clip(upper_bound=1.0) for name in VALUES}
    return [pl.max_horizontal(pl.col(name) + share * step, 0.0).alias(name) for name, share in shares.items()]


def _shrunk_covariance(errors: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Covariance of errors, shape (n_series, n_series), its correlations drawn towards none.

    By how much: the variance of the correlations over the sum of their squares (Schaefer, Strimmer, 2005). A series
    with few errors, as one that has just begun, is taken to vary as counts of its mean do.
    """
    known = ~np.isnan(errors)
    few = known.sum(axis=1) < FEWEST
    size = np.sqrt(np.nansum(errors**2, axis=1) / np.maximum(known.sum(axis=1), 1))
    scale = np.where(few, np.sqrt(np.maximum(mean, 0.0)), size)
    scale = np.maximum(scale, 1e-6 * max(float(scale.max()), 1.0))
    seen = errors[:, known[~few].all(axis=0)][~few]
    mixed = np.eye(len(errors))
    if seen.shape[1] >= FEWEST and len(seen) > 1:
        unit = (seen - seen.mean(axis=1, keepdims=True)) / np.maximum(seen.std(axis=1, keepdims=True), 1e-12)
        correlation = unit @ unit.T / seen.shape[1]
        spread = ((unit**2) @ (unit**2).T / seen.shape[1] - correlation**2) / seen.shape[1]
        apart = ~np.eye(len(seen), dtype=bool)
        share = min(spread[apart].sum() / max((correlation[apart] ** 2).sum(), 1e-12), 1.0)
        mixed[np.ix_(~few, ~few)] = np.where(apart, (1 - share) * correlation, 1.0)
    return np.asarray(scale[:, None] * mixed * scale)
