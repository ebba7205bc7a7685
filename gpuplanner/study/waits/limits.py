"""Limits of tenants: those that are stated, and the most that each ever held, where that is what kept its jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpuplanner.jit import part
from gpuplanner.simulate.tables import Floats, Ints

FEWEST_WAITS = 10
"""A limit is named only if at least so many waits show it."""
TIME_AT_LIMIT = 0.8
"""Share of the unexplained time in which one more job would have passed the limit, at least."""
STARTS_AFTER_OWN_END = 0.7
"""Share of those starts that follow the end of a job of the same tenant within the latency, at least."""
TIMES_CHANCE = 2.0
"""That share is also so many times what ends of the tenant at random would give, at least."""
TOLERANCE = 1e-9


@dataclass(frozen=True)
class NamedLimit:
    """A limit that is stated, or that the record shows.

    - ``tenant``: Number of the tenant.
    - ``gpus``: The most that it may hold, or ever held, at once.
    """

    tenant: int
    gpus: float


class TenantUse(NamedTuple):
    """What tenants held, and the use above which each request passes the limit of its tenant.

    Attributes
    ----------
    tenant : array of int, shape (n_requests,)
        Number of the tenant of each request.
    first : array of int, shape (n_tenants + 1,)
        Where the changes of each tenant begin.
    time_s, gpus : array of float, shape (n_changes,)
        When the use of a tenant changed, and what it held from then on.
    room : array of float, shape (n_requests,)
        Use of its tenant above which each passes the limit; infinite where there is none.
    """

    tenant: Ints
    first: Ints
    time_s: Floats
    gpus: Floats
    room: Floats


def observe_use(
    tenant: Ints, gpus: Floats, start_s: Floats, end_s: Floats, limits: Sequence[NamedLimit] = ()
) -> TenantUse:
    """Add up what each tenant held, of requests that held so many GPUs from start to end; NaN: not observed.

    Examples
    --------
    >>> use = observe_use(np.array([1, 1]), np.array([2.0, 1]), np.array([0.0, 5]), np.array([9.0, np.nan]))
    >>> use.first.tolist(), use.time_s.tolist(), use.gpus.tolist()
    ([0, 0, 3], [0.0, 5.0, 9.0], [2.0, 3.0, 1.0])
    """
    began, over = ~np.isnan(start_s), ~np.isnan(start_s) & ~np.isnan(end_s)
    owner = np.concatenate([tenant[began], tenant[over]])
    time = np.concatenate([start_s[began], end_s[over]])
    change = np.concatenate([gpus[began], -gpus[over]])
    order = np.lexsort((change, time, owner))
    first = np.searchsorted(owner[order], np.arange(int(tenant.max(initial=0)) + 2))
    total = np.concatenate([[0.0], np.cumsum(change[order])])
    held = total[1:] - np.repeat(total[first[:-1]], np.diff(first))
    most = np.full(len(first) - 1, np.inf)
    for limit in limits:
        most[limit.tenant] = limit.gpus
    return TenantUse(tenant, first, time[order], held, most[tenant] - gpus + TOLERANCE)


def known_limits(stated: Mapping[int, float], use: TenantUse) -> tuple[NamedLimit, ...]:
    """Limits that are stated, by tenant, but for those that a tenant passed: they came later, or count otherwise.

    Examples
    --------
    >>> use = observe_use(np.array([0, 1]), np.array([2.0, 4]), np.zeros(2), np.ones(2))
    >>> [limit.tenant for limit in known_limits({0: 2.0, 1: 3.0}, use)]
    [0]
    """
    return tuple(
        NamedLimit(tenant, gpus)
        for tenant, gpus in stated.items()
        if use.gpus[use.first[tenant] : use.first[tenant + 1]].max(initial=0.0) <= gpus + TOLERANCE
    )


@part
def seconds_over(use: TenantUse, tenant: int, room: float, begin: float, end: float) -> float:
    """For how long from begin to end a tenant held more than so much."""
    found, since = 0.0, begin
    first, last = use.first[tenant], use.first[tenant + 1]
    place = first + np.searchsorted(use.time_s[first:last], begin, side="right")
    while since < end:
        until = min(use.time_s[place], end) if place < last else end
        if (use.gpus[place - 1] if place > first else 0.0) > room:
            found += until - since
        since = until
        place += 1
    return found


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
    use, found = observe_use(tenant, gpus, start_s, end_s), []
    for number in np.unique(tenant).tolist():
        mine = (tenant == number) & ~np.isnan(start_s)
        late = np.flatnonzero(mine & (unexplained_s > latency_s))
        if len(late) < FEWEST_WAITS:
            continue
        most = float(use.gpus[use.first[number] : use.first[number + 1]].max())
        begin, room = start_s - unexplained_s, most - gpus + TOLERANCE
        at_limit = sum(seconds_over(use, number, room[n], begin[n], start_s[n]) for n in late.tolist())
        ends = np.sort(end_s[mine & ~np.isnan(end_s)])
        before = np.searchsorted(ends, start_s[late] + 0.5) - 1
        after_own = (before >= 0) & (start_s[late] - ends[np.maximum(before, 0)] <= latency_s)
        chance = 1.0 - np.exp(-len(ends) * latency_s / seen_s)
        if at_limit > TIME_AT_LIMIT * unexplained_s[late].sum() and after_own.mean() > max(
            STARTS_AFTER_OWN_END, min(TIMES_CHANCE * chance, 1.0 - 1e-9)
        ):
            found.append(NamedLimit(number, most))
    return tuple(found)
