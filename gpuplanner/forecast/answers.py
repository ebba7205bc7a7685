"""What candidates say, series by series and origin by origin, on as many processes as wanted.

An answer depends on its task alone, and is put where its task belongs: the number of processes and the order in which
they end change nothing.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from time import process_time
from typing import Any

import numpy as np

from gpuplanner._optional import import_optional
from gpuplanner.forecast.candidates import HOUR_OF_DAY, Known, hour_quantiles
from gpuplanner.forecast.models import LEVELS, NAIVE, predict

CHUNK = 64
"""Series whose paths are held at once."""
Progress = Callable[[int, int], None]
"""Is told how many of how many tasks are done."""


def in_turn(
    work: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    *,
    workers: int | str = 1,
    progress: Progress | None = None,
) -> Iterator[tuple[int, Any]]:
    """Run a function on every task, and give back the number of the task with what it said, as they end.

    Examples
    --------
    >>> list(in_turn(pow, [(2, 3), (3, 2)]))
    [(0, 8), (1, 9)]
    """
    if isinstance(workers, str):
        dask = import_optional("distributed", extra="scale")
        with dask.Client(workers) as client:
            # Each task is work to be done again where a worker was lost, never an answer from before.
            futures = [client.submit(work, *task, pure=False) for task in tasks]
            places = {future.key: number for number, future in enumerate(futures)}
            for done, future in enumerate(dask.as_completed(futures), 1):
                yield places[future.key], future.result()
                if progress:
                    progress(done, len(tasks))
        return
    if workers <= 1 or len(tasks) < 2:
        for number, task in enumerate(tasks):
            yield number, work(*task)
            if progress:
                progress(number + 1, len(tasks))
        return
    # Begun anew and not forked: libraries hold threads, of which a forked child would have none.
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(tasks)), mp_context=fresh) as processes:
        running = {processes.submit(work, *task): number for number, task in enumerate(tasks)}
        for done, future in enumerate(as_completed(running), 1):
            yield running.pop(future), future.result()
            if progress:
                progress(done, len(tasks))


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


def between(paths: tuple[np.ndarray, np.ndarray], median: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean of what paths say and of the model Median."""
    return (paths[0] + median) / 2, (paths[1] + median[..., None]) / 2
