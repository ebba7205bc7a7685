"""Simulate the queue of a GPU cluster exactly, with the state that holds each waiting job back.

The simulator is the truth of the planted clusters: it shares no code with gpuplanner. Jobs start in the order of
their score. The first job that does not fit gets a reservation (EASY backfill, Mu'alem and Feitelson 2001): later
jobs pass it only if they end before it, or use GPUs that it leaves over. Each layout has its own reservation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

NEVER_S = 1 << 40
"""Later than all events; half of it too, so that times may be added to it."""
MAX_NODES_PER_JOB = 4
CAUSES = ("queued_behind", "limits", "fragmented", "wrong_layout", "insufficient")
QUEUED_BEHIND, LIMITS, FRAGMENTED, WRONG_LAYOUT, INSUFFICIENT, REPARTITIONABLE = range(6)
CLOSED = 1 << 20
"""Subtracted from the free GPUs of a unit that is out of service, so that nothing fits there."""
IN_SERVICE, DRAINED, DOWN = range(3)


class QueueJobs(NamedTuple):
    """Jobs in order of eligibility; one array a field, times in seconds."""

    eligible_s: np.ndarray
    gpus_per_node: np.ndarray
    nodes: np.ndarray
    run_s: np.ndarray
    time_limit_s: np.ndarray
    patience_s: np.ndarray
    tenant: np.ndarray
    layout: np.ndarray
    boost_s: np.ndarray
    request: np.ndarray


class Fleet(NamedTuple):
    """Units that jobs are placed on: nodes of full GPUs, or single GPUs that are MIG-partitioned."""

    capacity: np.ndarray
    layout: np.ndarray
    node: np.ndarray
    instances_per_gpu: np.ndarray


class QueueRule(NamedTuple):
    """How jobs are ordered, placed and limited."""

    spread: bool = False
    reserve_for_head: bool = True
    backfill_depth: int = 200
    gap_s: int = 2
    fair_share_weight_s: float = 0.0
    fair_share_half_life_s: float = 7 * 86400.0


class Outages(NamedTuple):
    """Changes of the service state of units, in order of time."""

    time_s: np.ndarray
    unit: np.ndarray
    state: np.ndarray


class SimulationResult(NamedTuple):
    """Outcome of each job; a job that never started has ``start_s`` of NEVER_S."""

    start_s: np.ndarray
    end_s: np.ndarray
    units: np.ndarray
    killed: np.ndarray
    withdrawn_s: np.ndarray
    promised_start_s: np.ndarray
    cause_s: np.ndarray

    def wait_s(self, jobs: QueueJobs) -> np.ndarray:
        """Return the seconds from eligibility to the start, or to the withdrawal."""
        return np.minimum(self.start_s, self.withdrawn_s) - jobs.eligible_s


def make_fleet(gpus_by_layout, instances_per_gpu, node_gpus: int) -> Fleet:
    """Build the units of a fleet.

    Parameters
    ----------
    gpus_by_layout : sequence of int
        GPUs of each layout.
    instances_per_gpu : sequence of int
        MIG instances on a GPU of each layout; 1 where MIG is disabled.
    node_gpus : int
        GPUs of a node; the last node of a layout may have fewer.
    """
    units = []
    node = 0
    for layout, (gpus, instances) in enumerate(zip(gpus_by_layout, instances_per_gpu, strict=True)):
        for first in range(0, gpus, node_gpus):
            on_node = min(node_gpus, gpus - first)
            if instances == 1:
                units.append((on_node, layout, node))
            else:
                units.extend([(instances, layout, node)] * on_node)
            node += 1
    capacity, layouts, nodes = np.array(units, dtype=np.int64).reshape(-1, 3).T.copy()
    return Fleet(capacity, layouts, nodes, np.array(instances_per_gpu, dtype=np.int64))


def no_outages() -> Outages:
    """Return the outages of a fleet that is always in service."""
    return Outages(*(np.zeros(0, dtype=np.int64) for _ in range(3)))


def simulate(jobs: QueueJobs, fleet: Fleet, rule: QueueRule, **options) -> SimulationResult:
    """Simulate the queue until it is empty, or until nothing that waits can ever start.

    Parameters
    ----------
    jobs : QueueJobs
        Jobs in order of eligibility.
    fleet : Fleet
        Units that the jobs are placed on.
    rule : QueueRule
        Order, placement and backfill.
    options : tenant_limits, tenant_shares, outages, window_s
        GPUs that a tenant may use at once, its share, outages of units, and the window in which the causes of
        waiting are counted. [s]
    """
    tenants = int(jobs.tenant.max(initial=0)) + 1
    limits = options.get("tenant_limits")
    limits = np.full(tenants, NEVER_S) if limits is None else np.asarray(limits, dtype=np.int64)
    shares = options.get("tenant_shares")
    shares = np.full(tenants, 1 / tenants) if shares is None else np.asarray(shares, dtype=np.float64)
    outages = options.get("outages") or no_outages()
    window_s = options.get("window_s", (-NEVER_S, NEVER_S))
    count = len(jobs.eligible_s)
    result = SimulationResult(
        start_s=np.full(count, NEVER_S),
        end_s=np.full(count, NEVER_S),
        units=np.full((count, MAX_NODES_PER_JOB), -1),
        killed=np.zeros(count, dtype=np.bool_),
        withdrawn_s=np.full(count, NEVER_S),
        promised_start_s=np.full(count, NEVER_S),
        cause_s=np.zeros((count, 6), dtype=np.int64),
    )
    _run(jobs, fleet, rule, limits, shares, outages, window_s, result)
    return result


@njit(cache=True)
def _choose_units(free, unit_layout, layout, gpus, count, spread, chosen):
    """Fill ``chosen`` with units that have the GPUs, fullest first or, spread, emptiest first; say if they do."""
    for position in range(count):
        best = -1
        for unit in range(len(free)):
            if unit_layout[unit] != layout or free[unit] < gpus:
                continue
            if best >= 0 and (free[unit] <= free[best] if spread else free[unit] >= free[best]):
                continue
            taken = False
            for earlier in range(position):
                taken = taken or chosen[earlier] == unit
            if not taken:
                best = unit
        if best < 0:
            return False
        chosen[position] = best
    return True


@njit(cache=True)
def _reserve(job, now, jobs, fleet, spread, free, running, running_count, expected, units, spare):
    """Return when a job can start at the latest, and lower ``spare`` to what it leaves over on its units then."""
    order = np.argsort(expected[running[:running_count]])
    later = free.copy()
    chosen = np.empty(MAX_NODES_PER_JOB, dtype=np.int64)
    for position in range(running_count):
        other = running[order[position]]
        for place in range(jobs.nodes[other]):
            later[units[other, place]] += jobs.gpus_per_node[other]
        if position + 1 < running_count and expected[running[order[position + 1]]] == expected[other]:
            continue
        gpus, count = jobs.gpus_per_node[job], jobs.nodes[job]
        if _choose_units(later, fleet.layout, jobs.layout[job], gpus, count, spread, chosen):
            for place in range(count):
                spare[chosen[place]] = later[chosen[place]] - gpus
            return max(now, expected[other])
    return NEVER_S


@njit(cache=True)
def _request_states(jobs, fleet, free, example, state):
    """Fill for each request how the free GPUs meet it: QUEUED_BEHIND if it fits, else the cause that it does not."""
    layouts = len(fleet.instances_per_gpu)
    free_instances = np.zeros(layouts)
    idle_gpus = np.zeros(layouts)
    for unit in range(len(free)):
        if free[unit] > 0:
            layout = fleet.layout[unit]
            free_instances[layout] += free[unit]
            if fleet.instances_per_gpu[layout] == 1:
                idle_gpus[layout] += free[unit]
            elif free[unit] == fleet.capacity[unit]:
                idle_gpus[layout] += 1
    free_gpus = (free_instances / fleet.instances_per_gpu).sum()
    chosen = np.empty(MAX_NODES_PER_JOB, dtype=np.int64)
    for request in range(len(example)):
        job = example[request]
        layout = jobs.layout[job]
        gpus = jobs.gpus_per_node[job]
        instances = gpus * jobs.nodes[job]
        per_gpu = fleet.instances_per_gpu[layout]
        repartitioned = free_instances[layout] + (idle_gpus.sum() - idle_gpus[layout]) * per_gpu
        if _choose_units(free, fleet.layout, layout, gpus, jobs.nodes[job], False, chosen):
            state[request] = QUEUED_BEHIND
        elif free_instances[layout] >= instances:
            state[request] = FRAGMENTED
        elif repartitioned >= instances:
            state[request] = REPARTITIONABLE
        elif free_gpus * per_gpu >= instances - 1e-9:
            state[request] = WRONG_LAYOUT
        else:
            state[request] = INSUFFICIENT


@njit(cache=True)
def _sort_queue(queue, waiting, score):
    """Sort the queue by falling score; jobs of equal score keep their order. It is nearly sorted already."""
    for position in range(1, waiting):
        job = queue[position]
        place = position
        while place > 0 and score[queue[place - 1]] < score[job]:
            queue[place] = queue[place - 1]
            place -= 1
        queue[place] = job


@njit(cache=True)
def _run(jobs, fleet, rule, tenant_limits, tenant_shares, outages, window_s, result):
    count = len(jobs.eligible_s)
    start_s, end_s, units = result.start_s, result.end_s, result.units
    free = fleet.capacity.copy()
    used = np.zeros(len(tenant_limits), dtype=np.int64)
    usage = np.zeros(len(tenant_limits))
    factor = np.zeros(len(tenant_limits))
    queue = np.empty(count, dtype=np.int64)
    running = np.empty(count, dtype=np.int64)
    score = np.zeros(count)
    release = np.full(count, NEVER_S)
    expected = np.full(count, NEVER_S)
    example = np.zeros(jobs.request.max() + 1, dtype=np.int64)
    for job in range(count):
        example[jobs.request[job]] = job
    state = np.zeros(len(example), dtype=np.int64)
    layouts = len(fleet.instances_per_gpu)
    chosen = np.empty(MAX_NODES_PER_JOB, dtype=np.int64)
    waiting = running_count = arrived = outage = 0
    now = jobs.eligible_s[0] if count else 0

    while True:
        # 1. What ends, opens or closes, arrives and is withdrawn now.
        kept = 0
        for position in range(running_count):
            job = running[position]
            if release[job] <= now:
                for place in range(jobs.nodes[job]):
                    free[units[job, place]] += jobs.gpus_per_node[job]
                used[jobs.tenant[job]] -= jobs.gpus_per_node[job] * jobs.nodes[job]
            else:
                running[kept] = job
                kept += 1
        running_count = kept
        while outage < len(outages.time_s) and outages.time_s[outage] <= now:
            unit = outages.unit[outage]
            if outages.state[outage] == IN_SERVICE:
                free[unit] += CLOSED
            else:
                free[unit] -= CLOSED
            for position in range(running_count):
                job = running[position]
                if outages.state[outage] == DOWN and (units[job] == unit).any() and end_s[job] > now:
                    end_s[job] = now
                    release[job] = now + rule.gap_s
                    result.killed[job] = True
            outage += 1
        while arrived < count and jobs.eligible_s[arrived] <= now:
            queue[waiting] = arrived
            waiting += 1
            arrived += 1
        kept = 0
        for position in range(waiting):
            job = queue[position]
            if jobs.eligible_s[job] + jobs.patience_s[job] <= now:
                result.withdrawn_s[job] = now
            else:
                queue[kept] = job
                kept += 1
        waiting = kept

        # 2. Jobs start in the order of their score.
        for tenant in range(len(used)):
            factor[tenant] = 2.0 ** (-usage[tenant] / max(usage.sum(), 1.0) / tenant_shares[tenant])
        for position in range(waiting):
            job = queue[position]
            score[job] = jobs.boost_s[job] - jobs.eligible_s[job]
            score[job] += rule.fair_share_weight_s * factor[jobs.tenant[job]]
        _sort_queue(queue, waiting, score)
        reserved = np.zeros(layouts, dtype=np.bool_)
        shadow = np.full(layouts, NEVER_S)
        tested = np.zeros(layouts, dtype=np.int64)
        spare = np.full(len(free), NEVER_S)
        kept = 0
        for position in range(waiting):
            job = queue[position]
            layout, gpus, nodes = jobs.layout[job], jobs.gpus_per_node[job], jobs.nodes[job]
            fits = False
            past_shadow = False
            within_limit = used[jobs.tenant[job]] + gpus * nodes <= tenant_limits[jobs.tenant[job]]
            if within_limit and tested[layout] <= rule.backfill_depth:
                tested[layout] += reserved[layout]
                past_shadow = now + jobs.time_limit_s[job] + rule.gap_s > shadow[layout]
                allowed = np.minimum(free, spare) if past_shadow else free
                fits = _choose_units(allowed, fleet.layout, layout, gpus, nodes, rule.spread, chosen)
                if not fits and not reserved[layout] and rule.reserve_for_head:
                    reserved[layout] = True
                    shadow[layout] = _reserve(
                        job,
                        now,
                        jobs,
                        fleet,
                        rule.spread,
                        free,
                        running,
                        running_count,
                        expected,
                        units,
                        spare,
                    )
                    result.promised_start_s[job] = min(result.promised_start_s[job], shadow[layout])
            if not fits:
                queue[kept] = job
                kept += 1
                continue
            for place in range(nodes):
                units[job, place] = chosen[place]
                free[chosen[place]] -= gpus
                if past_shadow:
                    spare[chosen[place]] -= gpus
            used[jobs.tenant[job]] += gpus * nodes
            start_s[job] = now
            end_s[job] = now + jobs.run_s[job]
            release[job] = end_s[job] + rule.gap_s
            expected[job] = now + max(jobs.time_limit_s[job], jobs.run_s[job]) + rule.gap_s
            running[running_count] = job
            running_count += 1
        waiting = kept

        # 3. The next event, and what holds each waiting job back until then.
        following = jobs.eligible_s[arrived] if arrived < count else NEVER_S
        for position in range(running_count):
            following = min(following, release[running[position]])
        for position in range(waiting):
            following = min(following, jobs.eligible_s[queue[position]] + jobs.patience_s[queue[position]])
        if outage < len(outages.time_s):
            following = min(following, outages.time_s[outage])
        if following >= NEVER_S // 2 or (arrived == count and waiting == 0 and running_count == 0):
            break
        counted = min(following, window_s[1]) - max(now, window_s[0])
        if waiting and counted > 0:
            _request_states(jobs, fleet, free, example, state)
            for position in range(waiting):
                job = queue[position]
                cause = state[jobs.request[job]]
                wanted = used[jobs.tenant[job]] + jobs.gpus_per_node[job] * jobs.nodes[job]
                if cause == QUEUED_BEHIND and wanted > tenant_limits[jobs.tenant[job]]:
                    cause = LIMITS
                result.cause_s[job, cause] += counted
        if rule.fair_share_weight_s > 0:
            usage *= 0.5 ** ((following - now) / rule.fair_share_half_life_s)
            usage += used * float(following - now)
        now = following
