"""Simulate the queue of a GPU cluster exactly, with the state that holds each waiting job back.

The simulator is the truth of the planted clusters: it shares no code with gpuplanner. Jobs start in the order of
their score. The first job that does not fit gets a reservation (EASY backfill, Mu'alem and Feitelson 2001): later
jobs pass it only if they end before it, or use GPUs that it leaves over. Each layout has its own reservation.

Nodes may be powered down while idle, by the rules of Slurm's power saving (https://slurm.schedmd.com/power_save.html):
jobs are given powered-down nodes at once, after all others, and start when the last of their nodes has booted.
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
POWERED_UP, BOOTING, POWERED_DOWN = range(3)
"""In the order in which jobs are given nodes."""


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
    lowest: bool = False  # jobs go to the node of the lowest number


class PowerRule(NamedTuple):
    """How nodes are powered down and up; by default they are always on.

    - ``idle_s``: How long a node has been idle when it is powered down (SuspendTime). [s]
    - ``boot_s``: How long a powered-down node takes until it takes work. [s]
    - ``kept``: Idle nodes that are not powered down, those of the lowest numbers (SuspendExcNodes).
    - ``refill``: Nodes are powered up until as many are idle or booting without work as are kept. Slurm itself does
      not do this.
    """

    idle_s: int = NEVER_S
    boot_s: int = 0
    kept: int = 0
    refill: bool = False


ALWAYS_ON = PowerRule()


class Outages(NamedTuple):
    """Changes of the service state of units, in order of time."""

    time_s: np.ndarray
    unit: np.ndarray
    state: np.ndarray


class SimulationResult(NamedTuple):
    """Outcome of each job; a job that never started has ``start_s`` of NEVER_S.

    ``powered``, shape (n_spells, 3): node, power-up and power-down of each time that a node was booting or on; -NEVER_S
    and NEVER_S stand for before the first and after the last event.
    """

    start_s: np.ndarray
    end_s: np.ndarray
    units: np.ndarray
    killed: np.ndarray
    withdrawn_s: np.ndarray
    promised_start_s: np.ndarray
    cause_s: np.ndarray
    powered: np.ndarray

    def wait_s(self, jobs: QueueJobs) -> np.ndarray:
        """Return the seconds from eligibility to the start, or to the withdrawal."""
        return np.minimum(self.start_s, self.withdrawn_s) - jobs.eligible_s

    def node_hours(self, begin_s: int, end_s: int) -> float:
        """Return the hours that nodes were booting or on within a window."""
        up_s, down_s = self.powered[:, 1:].clip(begin_s, end_s).T
        return float((down_s - up_s).sum()) / 3600

    def power_ups(self, begin_s: int, end_s: int) -> int:
        """Return how often a node was powered up within a window."""
        return int(((self.powered[:, 1] >= begin_s) & (self.powered[:, 1] < end_s)).sum())


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
    options : tenant_limits, tenant_shares, outages, window_s, power
        GPUs that a tenant may use at once, its share, outages of units, the window in which the causes of waiting are
        counted [s], and the rule by which nodes are powered down. What a job waits for its nodes to boot has no cause.
    """
    tenants = int(jobs.tenant.max(initial=0)) + 1
    limits = options.get("tenant_limits")
    limits = np.full(tenants, NEVER_S) if limits is None else np.asarray(limits, dtype=np.int64)
    shares = options.get("tenant_shares")
    shares = np.full(tenants, 1 / tenants) if shares is None else np.asarray(shares, dtype=np.float64)
    outages = options.get("outages") or no_outages()
    window_s = options.get("window_s", (-NEVER_S, NEVER_S))
    power = options.get("power", ALWAYS_ON)
    if power.idle_s < NEVER_S and (len(outages.time_s) or (fleet.instances_per_gpu[fleet.layout] > 1).any()):
        raise ValueError("power saving is simulated for nodes of full GPUs that are always in service")
    count = len(jobs.eligible_s)
    result = SimulationResult(
        start_s=np.full(count, NEVER_S),
        end_s=np.full(count, NEVER_S),
        units=np.full((count, MAX_NODES_PER_JOB), -1),
        killed=np.zeros(count, dtype=np.bool_),
        withdrawn_s=np.full(count, NEVER_S),
        promised_start_s=np.full(count, NEVER_S),
        cause_s=np.zeros((count, 6), dtype=np.int64),
        powered=np.zeros((0, 3), dtype=np.int64),
    )
    powered = _run(jobs, fleet, rule, power, limits, shares, outages, window_s, result)
    return result._replace(powered=powered)


@njit(cache=True)
def _choose_units(free, state, unit_layout, layout, gpus, count, rule, chosen):
    """Fill ``chosen`` with units that have the GPUs, by their state, then by the placement of the rule; say if they do.

    The fullest is taken first or, spread, the emptiest, and of equals, or of those that are off, the lowest number.
    """
    for position in range(count):
        best = -1
        least = 0
        for unit in range(len(free)):
            if unit_layout[unit] != layout or free[unit] < gpus:
                continue
            left = -free[unit] if rule.spread else free[unit]
            if rule.lowest or state[unit] == POWERED_DOWN:
                left = 0
            if best >= 0 and (state[unit] > state[best] or (state[unit] == state[best] and left >= least)):
                continue
            taken = False
            for earlier in range(position):
                taken = taken or chosen[earlier] == unit
            if not taken:
                best = unit
                least = left
        if best < 0:
            return False
        chosen[position] = best
    return True


@njit(cache=True)
def _reserve(job, now, jobs, fleet, rule, free, state, running, running_count, expected, units, spare):
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
        if _choose_units(later, state, fleet.layout, jobs.layout[job], gpus, count, rule, chosen):
            for place in range(count):
                spare[chosen[place]] = later[chosen[place]] - gpus
            return max(now, expected[other])
    return NEVER_S


@njit(cache=True)
def _request_states(jobs, fleet, rule, free, power_state, example, state):
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
        if _choose_units(free, power_state, fleet.layout, layout, gpus, jobs.nodes[job], rule, chosen):
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
def _begin(now, power, state, up_s, chosen):
    """Return when the last of the chosen units takes work."""
    begin_s = now
    for unit in chosen:
        if state[unit] == BOOTING:
            begin_s = max(begin_s, up_s[unit] + power.boot_s)
        elif state[unit] == POWERED_DOWN:
            begin_s = max(begin_s, now + power.boot_s)
    return begin_s


@njit(cache=True)
def _power_down(now, power, idle, state, idle_since_s, up_s, spells):
    """Power nodes down that have been idle long enough, but for the lowest idle ones that are kept."""
    kept = 0
    for unit in range(len(state)):
        if state[unit] != POWERED_UP or not idle[unit]:
            continue
        if kept < power.kept:
            kept += 1
        elif idle_since_s[unit] + power.idle_s <= now:
            state[unit] = POWERED_DOWN
            spells.append((unit, up_s[unit], now))


@njit(cache=True)
def _refill(now, power, idle, state, up_s):
    """Power nodes up, the lowest numbers first, until as many as are kept are idle, or boot without work."""
    missing = power.kept
    for unit in range(len(state)):
        missing -= idle[unit] and state[unit] != POWERED_DOWN
    for unit in range(len(state)):
        if missing > 0 and state[unit] == POWERED_DOWN:
            state[unit] = BOOTING
            up_s[unit] = now
            missing -= 1


@njit(cache=True)
def _next_change_of_power(now, power, idle, state, idle_since_s, up_s):
    """Return when a node has booted, or has been idle long enough; those that are kept although they have are not."""
    following = NEVER_S
    for unit in range(len(state)):
        if state[unit] == BOOTING:
            following = min(following, up_s[unit] + power.boot_s)
        elif state[unit] == POWERED_UP and idle[unit] and idle_since_s[unit] + power.idle_s > now:
            following = min(following, idle_since_s[unit] + power.idle_s)
    return following


@njit(cache=True)
def _run(jobs, fleet, rule, power, tenant_limits, tenant_shares, outages, window_s, result):
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
    saving = power.idle_s < NEVER_S
    power_state = np.full(len(free), POWERED_UP)
    up_s = np.full(len(free), -NEVER_S)
    idle_since_s = np.full(len(free), now)
    spells = [(0, now, now)]
    spells.pop()

    while True:
        # 1. What boots, ends, opens or closes, arrives and is withdrawn now.
        for unit in range(len(free)):
            if power_state[unit] == BOOTING and up_s[unit] + power.boot_s <= now:
                power_state[unit] = POWERED_UP
                idle_since_s[unit] = now
        kept = 0
        for position in range(running_count):
            job = running[position]
            if release[job] <= now:
                for place in range(jobs.nodes[job]):
                    free[units[job, place]] += jobs.gpus_per_node[job]
                    idle_since_s[units[job, place]] = now
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
                fits = _choose_units(free, power_state, fleet.layout, layout, gpus, nodes, rule, chosen)
                begin_s = _begin(now, power, power_state, up_s, chosen[:nodes]) if fits else now
                past_shadow = begin_s + jobs.time_limit_s[job] + rule.gap_s > shadow[layout]
                if fits and past_shadow:
                    allowed = np.minimum(free, spare)
                    fits = _choose_units(allowed, power_state, fleet.layout, layout, gpus, nodes, rule, chosen)
                if not fits and not reserved[layout] and rule.reserve_for_head:
                    reserved[layout] = True
                    shadow[layout] = _reserve(
                        job, now, jobs, fleet, rule, free, power_state, running, running_count, expected, units, spare
                    )
                    result.promised_start_s[job] = min(result.promised_start_s[job], shadow[layout])
            if not fits:
                queue[kept] = job
                kept += 1
                continue
            begin_s = _begin(now, power, power_state, up_s, chosen[:nodes])
            for place in range(nodes):
                if power_state[chosen[place]] == POWERED_DOWN:
                    power_state[chosen[place]] = BOOTING
                    up_s[chosen[place]] = now
                units[job, place] = chosen[place]
                free[chosen[place]] -= gpus
                if past_shadow:
                    spare[chosen[place]] -= gpus
            used[jobs.tenant[job]] += gpus * nodes
            start_s[job] = begin_s
            end_s[job] = begin_s + jobs.run_s[job]
            release[job] = end_s[job] + rule.gap_s
            expected[job] = begin_s + max(jobs.time_limit_s[job], jobs.run_s[job]) + rule.gap_s
            running[running_count] = job
            running_count += 1
        waiting = kept

        # 3. Idle nodes go, and those that shall be idle come.
        change_of_power = NEVER_S
        if saving:
            idle = free == fleet.capacity
            _power_down(now, power, idle, power_state, idle_since_s, up_s, spells)
            if power.refill:
                _refill(now, power, idle, power_state, up_s)
            change_of_power = _next_change_of_power(now, power, idle, power_state, idle_since_s, up_s)

        # 4. The next event, and what holds each waiting job back until then.
        following = jobs.eligible_s[arrived] if arrived < count else NEVER_S
        for position in range(running_count):
            following = min(following, release[running[position]])
        for position in range(waiting):
            following = min(following, jobs.eligible_s[queue[position]] + jobs.patience_s[queue[position]])
        if outage < len(outages.time_s):
            following = min(following, outages.time_s[outage])
        if arrived == count and waiting == 0 and running_count == 0:
            following = NEVER_S
        following = min(following, change_of_power)
        if following >= NEVER_S // 2:
            break
        counted = min(following, window_s[1]) - max(now, window_s[0])
        if waiting and counted > 0:
            _request_states(jobs, fleet, rule, free, power_state, example, state)
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

    spells += [(unit, up_s[unit], NEVER_S) for unit in range(len(free)) if power_state[unit] != POWERED_DOWN]
    powered = np.empty((len(spells), 3), dtype=np.int64)
    for position in range(len(spells)):
        powered[position, 0], powered[position, 1], powered[position, 2] = spells[position]
    return powered
