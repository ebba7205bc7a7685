"""Other records like the one observed, on other fleets: drawn days, more or fewer jobs, and what each job waits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuplanner.simulate.nodes.machine import NodeFleet, NodeRequests
from gpuplanner.simulate.tables import Floats, Ints
from gpuplanner.study.decision.asked import Asked
from gpuplanner.study.waits.explain import ExplainedWaits
from gpuplanner.units import SECONDS_PER_DAY

REPLAYS = 5
"""Replays of one record with arrivals up to half a minute later: one alone is a draw of something chaotic."""
APART_S = 1800.0
"""Standard deviation of the hour of a job that comes once more [s]."""
PERCENTILE = 0.95
INTERVAL = (0.1, 0.9)
DAYS_A_WEEK = 7


def resize_fleet(fleet: NodeFleet, nodes: int) -> NodeFleet:
    """The first of some nodes, or all and further ones like most of them.

    Examples
    --------
    >>> [resize_fleet(NodeFleet.whole([8, 8, 4]), nodes).gpus.tolist() for nodes in (2, 4)]
    [[8, 8], [8, 8, 4, 8]]
    """
    today = len(fleet.gpus)
    sizes, first, count = np.unique(fleet.gpus, return_index=True, return_counts=True)
    usual = first[len(sizes) - 1 - np.argmax(count[::-1])]
    added = np.full(max(nodes - today, 0), usual)
    return fleet.only(np.concatenate([np.arange(min(nodes, today)), added]))


def draw_record(
    arrival_s: Floats, fixed: NDArray[np.bool_], seen_s: float, rng: np.random.Generator
) -> tuple[Ints, Floats]:
    """Draw another record of the same length: each day takes the jobs of some day of the same weekday.

    Parameters
    ----------
    arrival_s : array of float, shape (n_jobs,)
        When each job of the record arrives [s].
    fixed : array of bool, shape (n_jobs,)
        Jobs that every record has: those that were there at the beginning, and services.
    seen_s : float
        Length of the record [s].
    rng : numpy.random.Generator
        Draws.

    Returns
    -------
    rows : array of int
        Jobs of the record that come, some of them more than once.
    arrival_s : array of float
        When each comes [s].
    """
    days = max(int(np.ceil(seen_s / SECONDS_PER_DAY)), 1)
    day = np.clip(np.floor(arrival_s / SECONDS_PER_DAY).astype(np.int64), 0, days - 1)
    by_day = [np.flatnonzero((day == one) & ~fixed) for one in range(days)]
    rows, arrivals = [np.flatnonzero(fixed)], [arrival_s[fixed]]
    for target in range(days):
        source = int(rng.choice(np.arange(target % DAYS_A_WEEK, days, DAYS_A_WEEK)))
        rows.append(by_day[source])
        arrivals.append(arrival_s[by_day[source]] + (target - source) * SECONDS_PER_DAY)
    return np.concatenate(rows), np.concatenate(arrivals)


def scale_load(
    arrival_s: Floats, fixed: NDArray[np.bool_], load: float | Floats, seen_s: float
) -> tuple[Ints, Floats]:
    """Let jobs come more or less often; what comes once more does so in another week, at about the same hour.

    Parameters
    ----------
    arrival_s : array of float, shape (n_jobs,)
        When each job of the record arrives [s].
    fixed : array of bool, shape (n_jobs,)
        Jobs that come once, whatever the load.
    load : float or array of float, shape (n_jobs,)
        How many times each comes; of more load all jobs of less load are a part.
    seen_s : float
        Length of the record [s].

    Returns
    -------
    rows : array of int
        Jobs of the record that come.
    arrival_s : array of float
        When each comes [s].

    Examples
    --------
    >>> rows, arrival = scale_load(np.array([0.0, 9.0]), np.array([True, False]), 2.0, 14 * 86400.0)
    >>> rows.tolist(), (arrival > 86400).tolist()
    ([0, 1, 1], [False, False, True])
    """
    count = len(arrival_s)
    rng = np.random.default_rng(7)
    copies = np.where(fixed, 1, np.floor(load + rng.random(count))).astype(np.int64)
    weeks, apart = rng.random(count), rng.normal(0, APART_S, count)
    rows = np.repeat(np.arange(count), copies)
    nth = np.arange(len(rows)) - np.repeat(np.cumsum(copies) - copies, copies)
    others = max(int(seen_s / (DAYS_A_WEEK * SECONDS_PER_DAY)) - 1, 1)
    later = DAYS_A_WEEK * SECONDS_PER_DAY * ((np.floor(weeks[rows] * others) + nth - 1) % others + 1)
    moved = (arrival_s[rows] + later + nth * apart[rows]) % np.maximum(seen_s, 1.0)
    return rows, np.where(nth > 0, moved, arrival_s[rows])


def simulate_waits(
    asked: Asked, waits: ExplainedWaits, fleet: NodeFleet, rows: Ints, arrival_s: Floats
) -> Floats:
    """Simulate jobs of the record on a fleet, and return what each waits from its eligibility on [s]."""
    requests: NodeRequests = asked.granted.take(rows).at(arrival_s)
    start = waits.queue.start(requests, fleet, rows)
    return np.asarray(start - arrival_s + waits.delay_s[rows])


def percentile(waits_s: Floats) -> float:
    """Return the wait that 95 % of jobs do not pass."""
    if not len(waits_s):
        return 0.0
    place = int(np.ceil(PERCENTILE * len(waits_s))) - 1
    return float(np.partition(waits_s, place)[place])
