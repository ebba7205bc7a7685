"""Tasks that know nothing of each other on as many processes as wanted, or on the workers of a Dask scheduler.

An answer depends on its task alone, and is put where its task belongs: the number of workers, the order in which they
end, and a worker that dies change nothing but the time.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from gpuplanner._optional import import_optional
from gpuplanner.errors import WorkerError, message

TasksDone = Callable[[int, int], None]
"""Is told how many of how many tasks are done."""
Workers = int | str
"""Processes, or the address of a Dask scheduler such as ``tcp://host:8786`` (extra ``scale``)."""
MOST_LOST = 3
"""So often in a row, with no answer in between, workers may die before the task is taken to be what kills them."""


def in_turn(
    work: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    *,
    workers: Workers = 1,
    progress: TasksDone | None = None,
) -> Iterator[tuple[int, Any]]:
    """Run a function on every task, and give back the number of the task with what it said, as they end.

    Whoever stops asking ends the rest: what is not begun is never begun.

    Examples
    --------
    >>> list(in_turn(pow, [(2, 3), (3, 2)]))
    [(0, 8), (1, 9)]
    """
    if isinstance(workers, str):
        answers = _on_dask(work, tasks, workers)
    elif workers <= 1 or len(tasks) < 2:
        answers = ((number, work(*task)) for number, task in enumerate(tasks))
    else:
        answers = _on_processes(work, tasks, workers)
    for done, (number, answer) in enumerate(answers, 1):
        yield number, answer
        if progress:
            progress(done, len(tasks))


def _on_dask(
    work: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], address: str
) -> Iterator[tuple[int, Any]]:
    dask = import_optional("distributed", extra="scale")
    try:
        with dask.Client(address) as client:
            # Each task is work to be done again where a worker was lost, never an answer from before.
            futures = [client.submit(work, *task, pure=False) for task in tasks]
            places = {future.key: number for number, future in enumerate(futures)}
            try:
                for future in dask.as_completed(futures):
                    yield places[future.key], future.result()
            finally:
                client.cancel(futures)
    except (OSError, dask.KilledWorker) as error:
        todo = "Is the scheduler up, and do its workers have memory and this version of gpuplanner?"
        got = f"{type(error).__name__}: {str(error)[:300]}"
        raise WorkerError(
            message(f"workers at {address}", "a scheduler and workers that stay", got, todo)
        ) from error


def _on_processes(
    work: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], workers: int
) -> Iterator[tuple[int, Any]]:
    left, lost = dict(enumerate(tasks)), 0
    # Begun anew and not forked: libraries hold threads, of which a forked child would have none.
    fresh = multiprocessing.get_context("spawn")
    while left:
        processes = ProcessPoolExecutor(min(workers, len(left)), mp_context=fresh)
        try:
            running = {processes.submit(work, *task): number for number, task in left.items()}
            for future in as_completed(running):
                answer, lost = future.result(), 0
                number = running.pop(future)
                del left[number]
                yield number, answer
        except BrokenProcessPool as error:
            lost += 1
            if lost == MOST_LOST:
                got = f"{lost} times in a row a process that ended, with {len(left):,} of {len(tasks):,} left"
                todo = "Is memory short? Ask for fewer processes."
                raise WorkerError(message("workers", "processes that stay", got, todo)) from error
        finally:
            processes.shutdown(cancel_futures=True)
