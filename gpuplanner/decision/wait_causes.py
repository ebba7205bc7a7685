"""Causes of waiting, second by second, and GPU limits of tenants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuplanner.core.libraries_plugins_and_workers import compile_entry, compile_helper
from gpuplanner.decision.decision_types import CAUSES as CAUSES
from gpuplanner.decision.free_gpus_over_time import OccupancyChanges
from gpuplanner.simulator.simulation_inputs import NodeRequests, request_kinds
from gpuplanner.simulator.simulation_state import Floats, Ints

MIN_WAITS_AT_LIMIT = 10
"""Fewest waits that must point to a GPU limit of a tenant before the limit is reported."""
MIN_TIME_AT_LIMIT_SHARE = 0.8
"""Smallest share of a tenant's unexplained waiting in which one more job would have exceeded its limit [0-1]."""
MIN_STARTS_AFTER_OWN_END_SHARE = 0.7
"""Smallest share of the starts after such waiting that follow the end of a job of the same tenant within the latency
[0-1].
"""
MIN_CHANCE_RATIO = 2.0
"""Smallest ratio of the share of starts that follow an end of the same tenant to that share by chance."""


@dataclass(frozen=True)
class TenantGpuLimit:
    """GPU limit of a tenant, stated or found in the record.

    - ``tenant``: Number of the tenant.
    - ``gpus``: Most GPUs that it may use, or ever used, at once.
    """

    tenant: int
    gpus: float


class TenantUse(NamedTuple):
    """GPUs of tenants over time, and the use above which each request exceeds the limit of its tenant.

    Attributes
    ----------
    tenant : array of int, shape (n_requests,)
        Number of the tenant of each request.
    first_change : array of int, shape (n_tenants + 1,)
        Index of the first change of each tenant.
    time_s, gpus : array of float, shape (n_changes,)
        When the use of a tenant changed [s], and its GPUs from then on.
    room_gpus : array of float, shape (n_requests,)
        GPUs of its tenant above which each request exceeds the limit; infinite where there is none.
    """

    tenant: Ints
    first_change: Ints
    time_s: Floats
    gpus: Floats
    room_gpus: Floats


def observe_tenant_use(
    tenant: Ints, gpus: Floats, start_s: Floats, end_s: Floats, limits: Sequence[TenantGpuLimit] = ()
) -> TenantUse:
    """Sum the GPUs of each tenant over time.

    Parameters
    ----------
    tenant : array of int, shape (n_requests,)
        Number of the tenant of each request.
    gpus : array of float, shape (n_requests,)
        GPUs of each request.
    start_s, end_s : array of float, shape (n_requests,)
        Start and end of each request [s]; NaN: not observed.
    limits : sequence of TenantGpuLimit
        GPU limits of tenants.

    Returns
    -------
    TenantUse

    Examples
    --------
    >>> use = observe_tenant_use(np.array([1, 1]), np.array([2.0, 1]), np.array([0.0, 5]), np.array([9.0, np.nan]))
    >>> use.first_change.tolist(), use.time_s.tolist(), use.gpus.tolist()
    ([0, 0, 3], [0.0, 5.0, 9.0], [2.0, 3.0, 1.0])
    """
    began, over = ~np.isnan(start_s), ~np.isnan(start_s) & ~np.isnan(end_s)
    owner = np.concatenate([tenant[began], tenant[over]])
    time = np.concatenate([start_s[began], end_s[over]])
    change = np.concatenate([gpus[began], -gpus[over]])
    order = np.lexsort((change, time, owner))
    first = np.searchsorted(owner[order], np.arange(int(tenant.max(initial=0)) + 2))
    total = np.concatenate([[0.0], np.cumsum(change[order])])
    allocated = total[1:] - np.repeat(total[first[:-1]], np.diff(first))
    limit_gpus = np.full(len(first) - 1, np.inf)
    for limit in limits:
        limit_gpus[limit.tenant] = limit.gpus
    return TenantUse(tenant, first, time[order], allocated, limit_gpus[tenant] - gpus + TOLERANCE)


def confirm_limits(stated_limits: Mapping[int, float], use: TenantUse) -> tuple[TenantGpuLimit, ...]:
    """Keep the stated limits that no use exceeded: others are newer than the record, or count otherwise.

    Examples
    --------
    >>> use = observe_tenant_use(np.array([0, 1]), np.array([2.0, 4]), np.zeros(2), np.ones(2))
    >>> [limit.tenant for limit in confirm_limits({0: 2.0, 1: 3.0}, use)]
    [0]
    """
    first = use.first_change
    peak_gpus = {tenant: use.gpus[first[tenant] : first[tenant + 1]].max(initial=0.0) for tenant in stated_limits}
    kept = {tenant: gpus for tenant, gpus in stated_limits.items() if peak_gpus[tenant] <= gpus + TOLERANCE}
    return tuple(TenantGpuLimit(tenant, gpus) for tenant, gpus in kept.items())


@compile_helper
def seconds_over_limit(use: TenantUse, tenant: int, room: float, begin: float, end: float) -> float:
    """Sum the seconds in which the GPUs of a tenant exceed a limit.

    Parameters
    ----------
    use : TenantUse
        GPUs of tenants over time.
    tenant : int
        Number of the tenant.
    room : float
        GPUs of the tenant above which time counts as over the limit.
    begin, end : float
        Period [s].

    Returns
    -------
    float
        Seconds.
    """
    total_s, since = 0.0, begin
    first, last = use.first_change[tenant], use.first_change[tenant + 1]
    change = first + np.searchsorted(use.time_s[first:last], begin, side="right")
    while since < end:
        until = min(use.time_s[change], end) if change < last else end
        if (use.gpus[change - 1] if change > first else 0.0) > room:
            total_s += until - since
        since = until
        change += 1
    return total_s


def find_tenant_limits(
    tenant: Ints,
    gpus: Floats,
    start_s: Floats,
    end_s: Floats,
    unexplained_s: Floats,
    *,
    latency_s: float,
    seen_s: float,
) -> tuple[TenantGpuLimit, ...]:
    """Find tenants whose jobs waited, though they fitted, until a job of the same tenant ended.

    Parameters
    ----------
    tenant : array of int, shape (n_requests,)
        Number of the tenant, or of the partition, QOS or user, of each.
    gpus : array of float, shape (n_requests,)
        GPUs of each.
    start_s, end_s : array of float, shape (n_requests,)
        When each started and ended [s]; NaN where it was not observed.
    unexplained_s : array of float, shape (n_requests,)
        Time before its start in which it fitted and no cause explains its wait [s].
    latency_s, seen_s : float
        Time that the scheduler takes from an end to the next start, and length of the record [s].

    Returns
    -------
    tuple of TenantGpuLimit

    Examples
    --------
    >>> rows = np.arange(12)  # one job after the other on an empty cluster, each an hour, all submitted at once
    >>> start, end = 3600.0 * rows, 3600.0 * (rows + 1.0)
    >>> tenant, one = np.zeros(12, int), np.ones(12)
    >>> find_tenant_limits(tenant, one, start, end, start, latency_s=60.0, seen_s=43200.0)[0].gpus
    1.0
    """
    use, limits = observe_tenant_use(tenant, gpus, start_s, end_s), []
    for number in np.unique(tenant).tolist():
        of_tenant = (tenant == number) & ~np.isnan(start_s)
        late = np.flatnonzero(of_tenant & (unexplained_s > latency_s))
        if len(late) < MIN_WAITS_AT_LIMIT:
            continue
        peak_gpus = float(use.gpus[use.first_change[number] : use.first_change[number + 1]].max())
        begin, room = start_s - unexplained_s, peak_gpus - gpus + TOLERANCE
        at_limit = sum(seconds_over_limit(use, number, room[n], begin[n], start_s[n]) for n in late.tolist())
        ends = np.sort(end_s[of_tenant & ~np.isnan(end_s)])
        before = np.searchsorted(ends, start_s[late] + 0.5) - 1
        after_own = (before >= 0) & (start_s[late] - ends[np.maximum(before, 0)] <= latency_s)
        chance = 1.0 - np.exp(-len(ends) * latency_s / seen_s)
        fewest = max(MIN_STARTS_AFTER_OWN_END_SHARE, min(MIN_CHANCE_RATIO * chance, 1.0 - 1e-9))
        if at_limit > MIN_TIME_AT_LIMIT_SHARE * unexplained_s[late].sum() and after_own.mean() > fewest:
            limits.append(TenantGpuLimit(number, peak_gpus))
    return tuple(limits)


FITS, INSUFFICIENT, FRAGMENTED, WRONG_LAYOUT = -1, 0, 1, 2
"""State of a request that fits (-1), and numbers of the first three causes in :data:`CAUSES`."""
QUEUED_BEHIND: int = 3
"""Number of the cause ``queued_behind`` in :data:`CAUSES`."""
LIMITS: int = 4
"""Number of the cause ``limits`` in :data:`CAUSES`."""
UNEXPLAINED: int = 5
"""Number of the cause ``unexplained`` in :data:`CAUSES`."""
TOLERANCE = 1e-9
"""Largest difference between numbers of GPUs that count as equal [GPUs]."""


class FitTable(NamedTuple):
    """Whether each kind of request fits, from change to change of the occupancy.

    Attributes
    ----------
    time_s : array of float, shape (n_times,)
        Begin of each period [s]; the first is minus infinity.
    state : array of int8, shape (n_kinds, n_times)
        -1 where it fits, else the number of the cause in :data:`CAUSES`.
    kind : array of int, shape (n_requests,)
        Row of each request.
    """

    time_s: Floats
    state: NDArray[np.int8]
    kind: Ints


def find_fit_times(requests: NodeRequests, occupancy: OccupancyChanges, weights: Floats) -> FitTable:
    """Find when each kind of request fits on the unallocated GPUs, and the missing capacity where it does not.

    Parameters
    ----------
    requests : NodeRequests
        Requests of jobs.
    occupancy : OccupancyChanges
        Unallocated instances of nodes over time.
    weights : array of float, shape (n_profiles,)
        Fraction of a GPU that an instance is. [0-1]

    Returns
    -------
    FitTable

    Examples
    --------
    >>> asked = NodeRequests([0, 0], [0, 0], [60, 60], [60, 60], [0, 0], [4, 8], [1, 1])
    >>> times, place, taken = np.array([0.0, 30]), np.array([0, 0]), np.array([-4, 4])
    >>> seen = OccupancyChanges(times, place, np.array([0, 0]), taken, np.array([[4], [4]]))
    >>> table = find_fit_times(asked, seen, np.array([1.0]))
    >>> table.time_s.tolist(), table.state[table.kind].tolist()  # 8 on one node never fit: they are not together
    ([-inf, 0.0, 30.0], [[-1, -1, -1], [1, 0, 1]])
    """
    kinds, kind = request_kinds(requests)
    instants = np.unique(occupancy.time_s)
    state = np.zeros((len(kinds), len(instants) + 1), np.int8)
    fill_fit_states(occupancy, occupancy.capacity.copy(), kinds, weights, state)
    return FitTable(np.concatenate([[-np.inf], instants]), state, kind)


@compile_entry
def fill_fit_states(
    occupancy: OccupancyChanges, free: Ints, kinds: Ints, weights: Floats, state: NDArray[np.int8]
) -> None:
    """Apply the changes in order, and write after each instant whether each kind of request fits.

    Parameters
    ----------
    occupancy : OccupancyChanges
        Changes of unallocated instances, in order.
    free : array of int, shape (n_nodes, n_profiles)
        Unallocated instances; changed in place.
    kinds : array of int, shape (n_kinds, 4)
        Profile, instances per node, nodes, and instances on the last node of each kind of request.
    weights : array of float, shape (n_profiles,)
        Fraction of a GPU that an instance is. [0-1]
    state : array of int8, shape (n_kinds, n_times)
        Output: -1 where it fits, else the number of the cause.
    """
    n_kinds, n_profiles = len(kinds), free.shape[1]
    n_fitting, n_fitting_rest = np.zeros(n_kinds, np.int64), np.zeros(n_kinds, np.int64)
    total, all_free = np.zeros(n_profiles, np.int64), 0.0
    for node in range(free.shape[0]):
        for profile in range(n_profiles):
            total[profile] += max(free[node, profile], 0)
            all_free += max(free[node, profile], 0) * weights[profile]
        for kind in range(n_kinds):
            n_fitting[kind] += free[node, kinds[kind, 0]] >= kinds[kind, 1]
            n_fitting_rest[kind] += free[node, kinds[kind, 0]] >= kinds[kind, 3]
    event, column = 0, 0
    while True:
        for kind in range(n_kinds):
            profile, per, nodes, rest_size = kinds[kind]
            needed = per * (nodes - 1) + rest_size
            if n_fitting[kind] >= nodes - 1 and n_fitting_rest[kind] >= nodes:
                state[kind, column] = FITS
            elif total[profile] >= needed:
                state[kind, column] = FRAGMENTED
            elif all_free - total[profile] * weights[profile] >= needed * weights[profile] - TOLERANCE:
                state[kind, column] = WRONG_LAYOUT
            else:
                state[kind, column] = INSUFFICIENT
        if event == len(occupancy.time_s):
            break
        now = occupancy.time_s[event]
        column += 1
        while event < len(occupancy.time_s) and occupancy.time_s[event] == now:
            profile, node = occupancy.profile[event], occupancy.node[event]
            before = free[node, profile]
            after = before + occupancy.change[event]
            free[node, profile] = after
            gained = max(after, 0) - max(before, 0)
            total[profile] += gained
            all_free += gained * weights[profile]
            for kind in range(n_kinds):
                if kinds[kind, 0] == profile:
                    n_fitting[kind] += (after >= kinds[kind, 1]) * 1 - (before >= kinds[kind, 1]) * 1
                    n_fitting_rest[kind] += (after >= kinds[kind, 3]) * 1 - (before >= kinds[kind, 3]) * 1
            event += 1


def attribute_waits(
    fits: FitTable, eligible_s: Floats, until_s: Floats, simulated_s: Floats, latency_s: float, use: TenantUse
) -> Floats:
    """Attribute the seconds that each job waited to their causes.

    A period in which the job fits counts to the cause before it if it is no longer than the latency; a whole wait that
    short is unexplained. Of a longer period, the time in which its tenant would exceed its GPU limit counts to limits;
    the remaining time is queued behind others while the job waits in the simulation too, and unexplained after that.

    Parameters
    ----------
    fits : FitTable
        Whether each kind of request fits.
    eligible_s, until_s : array of float, shape (n_requests,)
        Begin and end of the wait of each: its eligibility, and its start or the end of the record [s].
    simulated_s : array of float, shape (n_requests,)
        When it starts in the simulation of today's fleet and queue [s].
    latency_s : float
        Time that the scheduler takes from a release to the next start [s].
    use : TenantUse
        GPUs of tenants over time, and their limits.

    Returns
    -------
    array of float, shape (n_requests, 6)
        Seconds by cause, in the order of :data:`CAUSES`; their sum is the time waited.

    Examples
    --------
    >>> table = FitTable(np.array([-np.inf, 0.0, 600.0]), np.array([[-1, 0, -1]], np.int8), np.array([0]))

    >>> use = observe_tenant_use(np.array([0]), np.array([1.0]), np.array([2000.0]), np.array([2500.0]))
    >>> seconds = attribute_waits(table, np.array([100.0]), np.array([2000.0]), np.array([900.0]), 60.0, use)
    >>> {cause: value for cause, value in zip(CAUSES, seconds[0].tolist()) if value}
    {'insufficient': 500.0, 'queued_behind': 300.0, 'unexplained': 1100.0}
    """
    seconds = np.zeros((len(eligible_s), len(CAUSES)))
    # A column of a table is read-only, for which the function would be compiled a second time.
    eligible_s = np.array(eligible_s)
    add_cause_seconds(fits, eligible_s, np.fmax(until_s, eligible_s), simulated_s, latency_s, use, seconds)
    return seconds


@compile_entry
def add_cause_seconds(
    fits: FitTable, eligible: Floats, until: Floats, simulated: Floats, latency: float, use: TenantUse, seconds: Floats
) -> None:
    """Add the waiting seconds of each job by cause, over the changes from its eligibility to its start.

    Parameters
    ----------
    fits : FitTable
        Whether each kind of request fits.
    eligible, until : array of float, shape (n_requests,)
        Begin and end of the wait of each [s].
    simulated : array of float, shape (n_requests,)
        Simulated start [s].
    latency : float
        Scheduler latency [s].
    use : TenantUse
        GPUs of tenants over time, and their limits.
    seconds : array of float, shape (n_requests, n_causes)
        Output: seconds by cause [s].
    """
    for job in range(len(eligible)):
        if not until[job] > eligible[job]:
            continue
        change = np.searchsorted(fits.time_s, eligible[job], side="right") - 1
        now, last_cause, unassigned_s, spell_begin = eligible[job], -1, 0.0, np.nan
        while now < until[job]:
            cause = fits.state[fits.kind[job], change]
            then = min(fits.time_s[change + 1], until[job]) if change + 1 < len(fits.time_s) else until[job]
            if cause == FITS and np.isnan(spell_begin):
                spell_begin = now
            if not np.isnan(spell_begin) and (cause != FITS or then >= until[job]):
                spell_end = then if cause == FITS else now
                spell = spell_end - spell_begin
                if spell > latency:
                    limited = seconds_over_limit(use, use.tenant[job], use.room_gpus[job], spell_begin, spell_end)
                    # Seconds at the limit never count as queued behind others, even if the simulation waits then.
                    waits_until = min(max(simulated[job], spell_begin), spell_end)
                    behind = waits_until - spell_begin
                    behind -= seconds_over_limit(use, use.tenant[job], use.room_gpus[job], spell_begin, waits_until)
                    seconds[job, LIMITS] += limited
                    seconds[job, QUEUED_BEHIND] += behind
                    seconds[job, UNEXPLAINED] += spell - limited - behind
                elif last_cause < 0:
                    unassigned_s += spell
                else:
                    seconds[job, last_cause] += spell
                spell_begin = np.nan
            if cause != FITS:
                seconds[job, cause] += then - now + unassigned_s
                unassigned_s, last_cause = 0.0, cause
            now = then
            change += 1
        # It fitted all the time, for no longer than the latency: start-up, and no shortage.
        seconds[job, UNEXPLAINED] += unassigned_s
