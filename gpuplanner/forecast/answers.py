"""What candidates say, series by series and origin by origin: each answer depends on what it is asked alone."""

from __future__ import annotations

from collections.abc import Sequence
from time import process_time

import numpy as np

from gpuplanner.forecast.candidates import HOUR_OF_DAY, Known, hour_quantiles
from gpuplanner.forecast.models import LEVELS, NAIVE, predict

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
