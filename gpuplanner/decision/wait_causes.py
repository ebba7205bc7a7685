"""Causes of waiting, second by second, and the limits of tenants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuplanner.core.execution import compile_entry, compile_helper
from gpuplanner.decision.occupancy_changes import OccupancyChanges
from gpuplanner.simulator.simulated_fleet import NodeRequests, request_kinds
from gpuplanner.simulator.simulation_state import Floats, Ints

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
    most = {one: use.gpus[use.first[one] : use.first[one + 1]].max(initial=0.0) for one in stated}
    kept = {tenant: gpus for tenant, gpus in stated.items() if most[tenant] <= gpus + TOLERANCE}
    return tuple(NamedLimit(tenant, gpus) for tenant, gpus in kept.items())


@compile_helper
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
        fewest = max(STARTS_AFTER_OWN_END, min(TIMES_CHANCE * chance, 1.0 - 1e-9))
        if at_limit > TIME_AT_LIMIT * unexplained_s[late].sum() and after_own.mean() > fewest:
            found.append(NamedLimit(number, most))
    return tuple(found)


CAUSES = ("insufficient", "fragmented", "wrong_layout", "queued_behind", "limits", "unexplained")
"""Not enough free; enough, but not together; enough of the GPU model, as other instances; it fits, and others come
first by the queue rule; it fits, and its tenant is at its limit; it fits, and nothing says why it waits."""
FITS, INSUFFICIENT, FRAGMENTED, WRONG_LAYOUT = -1, 0, 1, 2
QUEUED_BEHIND: int = 3
LIMITS: int = 4
UNEXPLAINED: int = 5
TOLERANCE = 1e-9


class FitTable(NamedTuple):
    """Whether each kind of request fits, from change to change of the occupancy.

    Attributes
    ----------
    time_s : array of float, shape (n_times,)
        From when on [s]; the first is minus infinity.
    state : array of int8, shape (n_kinds, n_times)
        -1 where it fits, else the number of the cause in :data:`CAUSES`.
    kind : array of int, shape (n_requests,)
        Row of each request.
    """

    time_s: Floats
    state: NDArray[np.int8]
    kind: Ints


def find_fits(requests: NodeRequests, seen: OccupancyChanges, weights: Floats) -> FitTable:
    """Find when each kind of request fits on what is free, and what is short where it does not.

    Parameters
    ----------
    requests : NodeRequests
        What jobs need.
    seen : OccupancyChanges
        What nodes had free.
    weights : array of float, shape (n_profiles,)
        Share of a GPU that an instance is.

    Examples
    --------
    >>> asked = NodeRequests([0, 0], [0, 0], [60, 60], [60, 60], [0, 0], [4, 8], [1, 1])
    >>> times, place, taken = np.array([0.0, 30]), np.array([0, 0]), np.array([-4, 4])
    >>> seen = OccupancyChanges(times, place, np.array([0, 0]), taken, np.array([[4], [4]]))
    >>> table = find_fits(asked, seen, np.array([1.0]))
    >>> table.time_s.tolist(), table.state[table.kind].tolist()  # 8 on one node never fit: they are not together
    ([-inf, 0.0, 30.0], [[-1, -1, -1], [1, 0, 1]])
    """
    kinds, kind = request_kinds(requests)
    instants = np.unique(seen.time_s)
    state = np.zeros((len(kinds), len(instants) + 1), np.int8)
    fill_fits(seen, seen.capacity.copy(), kinds, weights, state)
    return FitTable(np.concatenate([[-np.inf], instants]), state, kind)


@compile_entry
def fill_fits(seen: OccupancyChanges, free: Ints, kinds: Ints, weights: Floats, state: NDArray[np.int8]) -> None:
    """Go through the changes and write how each kind of request stands after each instant."""
    count, wide = len(kinds), free.shape[1]
    able, rest_able = np.zeros(count, np.int64), np.zeros(count, np.int64)
    total, all_free = np.zeros(wide, np.int64), 0.0
    for one in range(free.shape[0]):
        for which in range(wide):
            total[which] += max(free[one, which], 0)
            all_free += max(free[one, which], 0) * weights[which]
        for number in range(count):
            able[number] += free[one, kinds[number, 0]] >= kinds[number, 1]
            rest_able[number] += free[one, kinds[number, 0]] >= kinds[number, 3]
    event, column = 0, 0
    while True:
        for number in range(count):
            which, per, nodes, rest = kinds[number]
            needed = per * (nodes - 1) + rest
            if able[number] >= nodes - 1 and rest_able[number] >= nodes:
                state[number, column] = FITS
            elif total[which] >= needed:
                state[number, column] = FRAGMENTED
            elif all_free - total[which] * weights[which] >= needed * weights[which] - TOLERANCE:
                state[number, column] = WRONG_LAYOUT
            else:
                state[number, column] = INSUFFICIENT
        if event == len(seen.time_s):
            break
        now = seen.time_s[event]
        column += 1
        while event < len(seen.time_s) and seen.time_s[event] == now:
            which, place = seen.profile[event], seen.node[event]
            before = free[place, which]
            after = before + seen.change[event]
            free[place, which] = after
            gained = max(after, 0) - max(before, 0)
            total[which] += gained
            all_free += gained * weights[which]
            for number in range(count):
                if kinds[number, 0] == which:
                    able[number] += (after >= kinds[number, 1]) * 1 - (before >= kinds[number, 1]) * 1
                    rest_able[number] += (after >= kinds[number, 3]) * 1 - (before >= kinds[number, 3]) * 1
            event += 1


def attribute_waits(
    fits: FitTable, eligible_s: Floats, until_s: Floats, simulated_s: Floats, latency_s: float, use: TenantUse
) -> Floats:
    """Attribute the seconds that each job waited to their causes.

    A spell in which it fits counts to what kept it before if it is no longer than the latency. Of a longer one, limits
    have the time in which its tenant would pass its limit; the rest is queued behind others while it waits in the
    simulation as well, and unexplained after that.

    Parameters
    ----------
    fits : FitTable
        Whether each kind of request fits.
    eligible_s, until_s : array of float, shape (n_requests,)
        From when on each waited, and until when: its start, or the end of the record [s].
    simulated_s : array of float, shape (n_requests,)
        When it starts in the simulation of today's fleet and queue [s].
    latency_s : float
        What the scheduler needs from a release to the next start [s].
    use : TenantUse
        What tenants held, and their limits.

    Returns
    -------
    array of float, shape (n_requests, 6)
        Seconds by cause, in the order of :data:`CAUSES`; their sum is the time waited.

    Examples
    --------
    >>> table = FitTable(np.array([-np.inf, 0.0, 600.0]), np.array([[-1, 0, -1]], np.int8), np.array([0]))

    >>> use = observe_use(np.array([0]), np.array([1.0]), np.array([2000.0]), np.array([2500.0]))
    >>> seconds = attribute_waits(table, np.array([100.0]), np.array([2000.0]), np.array([900.0]), 60.0, use)
    >>> {cause: value for cause, value in zip(CAUSES, seconds[0].tolist()) if value}
    {'insufficient': 500.0, 'queued_behind': 300.0, 'unexplained': 1100.0}
    """
    seconds = np.zeros((len(eligible_s), len(CAUSES)))
    add_seconds(fits, eligible_s, np.fmax(until_s, eligible_s), simulated_s, latency_s, use, seconds)
    return seconds


@compile_entry
def add_seconds(
    fits: FitTable,
    eligible: Floats,
    until: Floats,
    simulated: Floats,
    latency: float,
    use: TenantUse,
    seconds: Floats,
) -> None:
    """Walk from the eligibility of each job to its start over the changes of what was free."""
    for job in range(len(eligible)):
        if not until[job] > eligible[job]:
            continue
        place = np.searchsorted(fits.time_s, eligible[job], side="right") - 1
        now, kept, early, since = eligible[job], -1, 0.0, np.nan
        while now < until[job]:
            cause = fits.state[fits.kind[job], place]
            then = min(fits.time_s[place + 1], until[job]) if place + 1 < len(fits.time_s) else until[job]
            if cause == FITS and np.isnan(since):
                since = now
            if not np.isnan(since) and (cause != FITS or then >= until[job]):
                over = then if cause == FITS else now
                spell = over - since
                if spell > latency:
                    limited = seconds_over(use, use.tenant[job], use.room[job], since, over)
                    # Seconds at the limit are no seconds behind others, whether the simulation waits then or not.
                    waits_until = min(max(simulated[job], since), over)
                    behind = waits_until - since
                    behind -= seconds_over(use, use.tenant[job], use.room[job], since, waits_until)
                    seconds[job, LIMITS] += limited
                    seconds[job, QUEUED_BEHIND] += behind
                    seconds[job, UNEXPLAINED] += spell - limited - behind
                elif kept < 0:
                    early += spell
                else:
                    seconds[job, kept] += spell
                since = np.nan
            if cause != FITS:
                seconds[job, cause] += then - now + early
                early, kept = 0.0, cause
            now = then
            place += 1
        seconds[job, INSUFFICIENT] += early
