"""Fit the law and the links to measured speeds."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import polars as pl

from gpuplanner.sizing.mig_speed_law import (
    BOUNDNESS_TELEMETRY_COLUMNS,
    BoundnessLink,
    FittedSpeedLaw,
    Floats,
    SpeedLaw,
    regressor,
)
from speed_fit.measurements import JOB

LIMIT_QUANTILE = 0.25
"""Quantile, over models, of the slowest speed of each on a slice, that is the limit: not every model has a batch
size that fits the slice and binds it, and some keep a part on the host that grows with the batch."""

_SHARPNESS = np.arange(0.8, 8.01, 0.2)
_LOG_ODDS = np.linspace(-20.0, 20.0, 321)  # of the share of the GPU in a step, the term s of the law
_HEIGHTS = np.linspace(-2.0, 2.0, 9)
_SLOPES = np.linspace(-1.0, 2.0, 13)
_ROUNDED = 4  # decimals of what is fitted; more would be noise


def fit_law(speeds: pl.DataFrame) -> FittedSpeedLaw:
    """Fit the limits, then the sharpness, then each link, in least absolute deviations of the log speed.

    Training and inference count alike, and within each every model. The sharpness is the one at which the
    speeds of each job on all slices agree best, whatever its boundness.

    Examples
    --------
    >>> from speed_fit.measurements import own_measurements, relative_speeds
    >>> frame = pl.DataFrame({"kind": "inference", "gpu_model": "A100-80GB", "model": "m", "batch": 8,
    ...     "profile": ["1g.10gb", "7g.80gb"], "step_s": [0.4, 0.1]})
    >>> fitted = fit_law(relative_speeds(own_measurements(frame)))
    >>> fitted.law.limits, sorted(fitted.links)
    ((0.25, 1.0), ['batch', 'nothing'])
    """
    # A slice does not outrun its board: above 1 is noise.
    speeds = speeds.with_columns(pl.col("speed").clip(upper_bound=1.0))
    fractions, limits = _limits(speeds)
    law = SpeedLaw(fractions, limits, _sharpness(speeds, fractions, limits))
    inference = speeds.filter(pl.col("kind") == "inference")
    links = {fact: _link(law, speeds.drop_nulls(fact), fact) for fact in BOUNDNESS_TELEMETRY_COLUMNS}
    links["batch"] = _link(law, inference, "batch")
    links["nothing"] = _link(law, speeds, None)
    return FittedSpeedLaw(law, {name: link for name, link in links.items() if link is not None})


def _limits(speeds: pl.DataFrame) -> tuple[tuple[float, ...], tuple[float, ...]]:
    slowest = speeds.group_by("fraction", "source", "model").agg(pl.col("speed").min())
    table = slowest.group_by("fraction").agg(pl.col("speed").quantile(LIMIT_QUANTILE, "linear")).sort("fraction")
    return (*table["fraction"].to_list(), 1.0), (*table["speed"].round(_ROUNDED).to_list(), 1.0)


def _sharpness(speeds: pl.DataFrame, fractions: tuple[float, ...], limits: tuple[float, ...]) -> float:
    """Each job may have the boundness that suits it best: only the shape of its speeds is judged."""
    log_speed, weight = np.log(speeds["speed"].to_numpy()), _weights(speeds)
    job = speeds.select(pl.struct(JOB).rle_id()).to_series().to_numpy()
    first = np.flatnonzero(np.diff(job, prepend=-1))
    size = np.searchsorted(fractions, speeds["fraction"].to_numpy())
    losses = []
    for sharpness in _SHARPNESS:
        law = SpeedLaw(fractions, limits, float(sharpness))
        fitted = np.log(law.speed((_LOG_ODDS / sharpness)[:, None], limits))
        error = np.abs(fitted[:, size] - log_speed) * weight
        losses.append(np.add.reduceat(error, first, axis=1).min(axis=0).sum())
    return float(_SHARPNESS[int(np.argmin(losses))].round(_ROUNDED))


def _link(law: SpeedLaw, speeds: pl.DataFrame, fact: str | None) -> BoundnessLink | None:
    """Line from a fact to the log of the boundness; without a fact, a constant."""
    if speeds.is_empty():
        return None
    log_speed, weight = np.log(speeds["speed"].to_numpy()), _weights(speeds)
    limit = law.limit(speeds["fraction"].to_numpy())
    x = np.zeros(speeds.height) if fact is None else regressor(fact, speeds[fact].cast(pl.Float64).to_numpy())
    middle = float(np.mean(x))  # height and slope of a line in its middle do not get in each other's way

    def loss(line: Floats) -> float:
        height, slope = line
        error = np.log(law.speed(height + slope * (x - middle), limit)) - log_speed
        return float((np.abs(error) * weight).sum())

    starts = [np.array([height, slope]) for height in _HEIGHTS for slope in (_SLOPES if fact else (0.0,))]
    step = np.array([0.25, 0.25 if fact else 0.0])
    height, slope = minimise(loss, min(starts, key=loss), step)
    return BoundnessLink(round(float(height - slope * middle), _ROUNDED), round(float(slope), _ROUNDED))


def _weights(speeds: pl.DataFrame) -> Floats:
    """Training and inference count alike, and within each every model."""
    models = pl.struct("source", "model").n_unique().over("kind")
    return speeds.select(1 / (models * pl.len().over("source", "model"))).to_series().to_numpy()


def minimise(loss: Callable[[Floats], float], start: Floats, step: Floats, *, precision: float = 1e-4) -> Floats:
    """Minimum of a function of few variables by pattern search along axes and diagonals: no derivative, no chance.

    References
    ----------
    Kolda, Lewis and Torczon, Optimization by direct search, SIAM Review 45 (2003).

    Examples
    --------
    >>> minimise(lambda x: abs(x[0] - 1.5) + abs(x[1] + 2), np.zeros(2), np.ones(2)).round(3)
    array([ 1.5, -2. ])
    """
    best, least = start.astype(np.float64), loss(start)
    moves = np.array([move for move in itertools.product((0.0, 1.0, -1.0), repeat=start.size) if any(move)])
    while step.max() > precision:
        tried = [best + step * move for move in moves]
        losses = [loss(point) for point in tried]
        if min(losses) < least:
            best, least = tried[int(np.argmin(losses))], min(losses)
        else:
            step = step / 2
    return best
