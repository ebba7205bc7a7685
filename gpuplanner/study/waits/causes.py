"""What kept each job waiting, second by second, by what the observed occupancy left free."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuplanner.jit import compiled_entry
from gpuplanner.simulate.nodes.machine import NodeRequests
from gpuplanner.simulate.nodes.machine import kinds_of
from gpuplanner.simulate.tables import Floats, Ints
from gpuplanner.study.waits.limits import TenantUse, seconds_over
from gpuplanner.study.waits.occupancy import OccupancyChanges

CAUSES = ("insufficient", "fragmented", "wrong_layout", "queued_behind", "limits", "unexplained")
"""Not enough free; enough, but not together; enough of the GPU model, as other instances; it fits, and others come
first by the queue rule; it fits, and its tenant is at its limit; it fits, and nothing says why it waits."""
FITS, INSUFFICIENT, FRAGMENTED, WRONG_LAYOUT = -1, 0, 1, 2
QUEUED_BEHIND, LIMITS, UNEXPLAINED = 3, 4, 5
TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class FitTable:
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
    kinds, kind = kinds_of(requests)
    instants = np.unique(seen.time_s)
    state = np.zeros((len(kinds), len(instants) + 1), np.int8)
    fill_fits(seen.time_s, seen.node, seen.profile, seen.change, seen.capacity.copy(), kinds, weights, state)
    return FitTable(np.concatenate([[-np.inf], instants]), state, kind)


@compiled_entry
def fill_fits(
    time: Floats,
    node: Ints,
    profile: Ints,
    change: Ints,
    free: Ints,
    kinds: Ints,
    weights: Floats,
    state: NDArray[np.int8],
) -> None:
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
        if event == len(time):
            break
        now = time[event]
        column += 1
        while event < len(time) and time[event] == now:
            which, place = profile[event], node[event]
            before = free[place, which]
            after = before + change[event]
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
    >>> from gpuplanner.study.waits.limits import observe_use
    >>> use = observe_use(np.array([0]), np.array([1.0]), np.array([2000.0]), np.array([2500.0]))
    >>> seconds = attribute_waits(table, np.array([100.0]), np.array([2000.0]), np.array([900.0]), 60.0, use)
    >>> {cause: value for cause, value in zip(CAUSES, seconds[0].tolist()) if value}
    {'insufficient': 500.0, 'queued_behind': 300.0, 'unexplained': 1100.0}
    """
    seconds = np.zeros((len(eligible_s), len(CAUSES)))
    until = np.fmax(until_s, eligible_s)
    add_seconds(fits.time_s, fits.state, fits.kind, eligible_s, until, simulated_s, latency_s, use, seconds)
    return seconds


@compiled_entry
def add_seconds(
    time: Floats,
    state: NDArray[np.int8],
    kind: Ints,
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
        place = np.searchsorted(time, eligible[job], side="right") - 1
        now, kept, early, since = eligible[job], -1, 0.0, np.nan
        while now < until[job]:
            cause = state[kind[job], place]
            then = min(time[place + 1], until[job]) if place + 1 < len(time) else until[job]
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
