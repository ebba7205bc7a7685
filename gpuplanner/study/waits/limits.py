"""Limits of tenants that the record shows: the most that each ever held, where that is what kept its jobs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuplanner.simulate.slices.world import Floats, Ints

FEWEST_WAITS = 10
"""A limit is named only if at least so many waits show it."""
TIME_AT_LIMIT = 0.8
"""Share of the unexplained time in which one more job would have passed the limit, at least."""
STARTS_AFTER_OWN_END = 0.7
"""Share of those starts that follow the end of a job of the same tenant within the latency, at least."""
TIMES_CHANCE = 2.0
"""That share is also so many times what ends of the tenant at random would give, at least."""


@dataclass(frozen=True)
class NamedLimit:
    """A limit that the record shows.

    - ``tenant``: Number of the tenant.
    - ``gpus``: The most that it ever held at once.
    - ``waits``: Waits that show it.
    - ``hours``: Waiting that nothing else explains [h].
    """

    tenant: int
    gpus: float
    waits: int
    hours: float


def find_limits(
    tenant: Ints,
    gpus: Floats,
    start_s: Floats,
    end_s: Floats,
    unexplained_s: Floats,
    *,
    latency_s: float,
    seen_s: float,
) -> tuple[NamedLimit, ...]:
    """Find tenants whose jobs waited, though they fitted, until a job of their own ended.

    Parameters
    ----------
    tenant : array of int, shape (n_requests,)
        Number of the tenant, or of the partition, QOS or user, of each.
    gpus : array of float, shape (n_requests,)
        What each held.
    start_s, end_s : array of float, shape (n_requests,)
        When each started and ended [s]; NaN where it was not observed.
    unexplained_s : array of float, shape (n_requests,)
        Time before its start in which it fitted and nothing explains why it waited [s].
    latency_s, seen_s : float
        What the scheduler needs from an end to the next start, and the length of the record [s].

    Examples
    --------
    >>> rows = np.arange(12)  # one job after the other on an empty cluster, each an hour, all submitted at once
    >>> start, end = 3600.0 * rows, 3600.0 * (rows + 1.0)
    >>> tenant, one = np.zeros(12, int), np.ones(12)
    >>> find_limits(tenant, one, start, end, start, latency_s=60.0, seen_s=43200.0)[0].gpus
    1.0
    """
    found = []
    for number in np.unique(tenant).tolist():
        mine = (tenant == number) & ~np.isnan(start_s)
        late = np.flatnonzero(mine & (unexplained_s > latency_s))
        if len(late) < FEWEST_WAITS:
            continue
        ends = np.sort(end_s[mine & ~np.isnan(end_s)])
        time = np.concatenate([start_s[mine], end_s[mine & ~np.isnan(end_s)]])
        change = np.concatenate([gpus[mine], -gpus[mine & ~np.isnan(end_s)]])
        order = np.lexsort((change, time))
        time, held = time[order], np.cumsum(change[order])
        most = float(held.max())
        at_limit = whole = 0.0
        for row in late.tolist():
            begin, stop = start_s[row] - unexplained_s[row], start_s[row]
            first, last = np.searchsorted(time, [begin, stop], side="left")
            edges = np.concatenate([[begin], time[first:last], [stop]])
            level = np.concatenate([[held[first - 1] if first else 0.0], held[first:last]])
            span = np.diff(edges)
            at_limit += float(span[level + gpus[row] > most + 1e-9].sum())
            whole += float(span.sum())
        before = np.searchsorted(ends, start_s[late] + 0.5) - 1
        after_own = (before >= 0) & (start_s[late] - ends[np.maximum(before, 0)] <= latency_s)
        chance = 1.0 - np.exp(-len(ends) * latency_s / seen_s)
        if at_limit > TIME_AT_LIMIT * whole and after_own.mean() > max(
            STARTS_AFTER_OWN_END, min(TIMES_CHANCE * chance, 1.0 - 1e-9)
        ):
            found.append(NamedLimit(number, most, len(late), whole / 3600))
    return tuple(found)
