"""Queue model of a cluster: queue rule, placement and hand-over times, chosen by replays of the record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from gpuplanner.core.libraries_plugins_and_workers import compile_entry
from gpuplanner.decision.free_gpus_over_time import (
    Handover,
    OccupancyChanges,
    OutOfServiceSpell,
    count_closed_instances,
)
from gpuplanner.decision.wait_causes import MIN_WAITS_AT_LIMIT, TenantGpuLimit, TenantUse
from gpuplanner.simulator.scheduling_rules import QuotaGroup, Sharing
from gpuplanner.simulator.simulation_inputs import NodeFleet, NodeRequests
from gpuplanner.simulator.simulation_run import simulate_shared_requests, simulate_starts
from gpuplanner.simulator.simulation_state import Floats, Ints

EASY_QUEUE, PASS_QUEUE = "easy", "pass"
"""Queue rules of the simulator: EASY backfill; and every waiting job that fits may start first."""
MIN_HEAD_START_CHANGE_S = 1.0
"""Largest change of any head start at which the iterative fit of head starts ends [s]."""
MAX_ARRIVAL_JITTER_S = 30.0
"""Arrivals of a replay are delayed at random by at most this [s]: queues are chaotic, one replay is a random draw."""
RULE_REPLAYS = 4
"""Number of replays by which a queue rule is compared with the record; their two halves show the random error."""


@dataclass(frozen=True, eq=False)
class QueueRule:
    """Order in which jobs start, and which jobs may pass a waiting job.

    Attributes
    ----------
    queue : {"easy", "pass"}
        Whether jobs may pass the first waiting job where they do not delay it by their time limits (EASY backfill), or
        whenever they fit.
    head_start_s : array of float, shape (n_requests,), optional
        How much earlier each job counts as eligible in the order of the queue [s]; None: first come, first served.
    """

    queue: str = EASY_QUEUE
    head_start_s: Floats | None = None

    @property
    def name(self) -> str:
        """Name of the queue rule, and whether it has head starts."""
        return self.queue if self.head_start_s is None else f"{self.queue}, head starts"

    def order(self, ready_s: Floats, rows: Ints | None = None) -> Floats:
        """Return the sort key of requests, the lowest first.

        Parameters
        ----------
        ready_s : array of float, shape (n_requests,)
            When each request is eligible [s].
        rows : array of int, shape (n_requests,), optional
            Job of the record that each request is; None: all jobs, in their order.
        """
        if self.head_start_s is None:
            return ready_s
        return ready_s - (self.head_start_s if rows is None else self.head_start_s[rows])


@dataclass(frozen=True, eq=False)
class ObservedWaits:
    """Observed waits that replays are compared with.

    - ``waited_s``, shape (n_jobs,): Wait from eligibility to start, or to the end of the record [s].
    - ``group``, shape (n_jobs,): Number of tenant and size of each job.
    - ``is_evaluated``, shape (n_jobs,): Jobs that count.
    - ``latency_s``: Scheduler latency: a wait up to it is no queueing [s].
    """

    waited_s: Floats
    group: Ints
    is_evaluated: NDArray[np.bool_]
    latency_s: float = 60.0

    @property
    def has_queued_jobs(self) -> bool:
        """Whether enough jobs waited longer than the scheduler latency for a comparison."""
        return int((self.waited_s[self.is_evaluated] > self.latency_s).sum()) >= MIN_WAITS_AT_LIMIT

    def error(self, simulated_s: Floats, waited_s: Floats | None = None) -> float:
        """Sum over tenants and sizes of |simulated - observed waiting|, relative to all observed waiting.

        Parameters
        ----------
        simulated_s : array of float, shape (n_jobs,)
            Simulated wait of each job [s].
        waited_s : array of float, shape (n_jobs,), optional
            Waits to compare with instead of the observed ones [s].

        Examples
        --------
        >>> seen = ObservedWaits(np.array([100.0, 0, 100]), np.array([0, 0, 1]), np.ones(3, bool))
        >>> seen.error(np.array([0.0, 100, 150]))  # the first two are of one group
        0.25
        """
        reference_s = self.waited_s if waited_s is None else waited_s
        difference_s = np.bincount(self.group[self.is_evaluated], (simulated_s - reference_s)[self.is_evaluated])
        return float(np.abs(difference_s).sum() / max(self.waited_s[self.is_evaluated].sum(), 1.0))


def choose_queue_rule(
    replay: Callable[[QueueRule, Floats], Floats], observed: ObservedWaits, head_start_s: Floats | None
) -> tuple[QueueRule, Floats]:
    """Choose the queue rule whose replays are closest to the record, the simplest within the random error.

    Parameters
    ----------
    replay : callable
        Maps a rule and arrival delays [s] to the wait of each job [s].
    observed : ObservedWaits
        Waits that replays are compared with.
    head_start_s : array of float, optional
        Head starts found in the record; None: no job starts before an earlier one.

    Returns
    -------
    rule : QueueRule
        First come, first served with backfill, unless the error of another rule is lower by more than the error
        between two halves of the replays, which differ in arrival delays alone.
    waits_s : array of float, shape (n_jobs,)
        Wait of each job by the rule, the mean of its replays [s].

    Examples
    --------
    >>> seen = ObservedWaits(np.arange(0.0, 2000, 100), np.arange(20), np.ones(20, bool))
    >>> replay = lambda rule, late: seen.waited_s * (rule.queue == "pass")
    >>> rule, waits = choose_queue_rule(replay, seen, None)
    >>> rule.queue
    'pass'
    """
    default_rule = best = QueueRule()
    jitters_s = [arrival_jitter_s(len(observed.group), number) for number in range(RULE_REPLAYS)]
    replays = np.array([replay(default_rule, jitter_s) for jitter_s in jitters_s])
    chance_error = observed.error(replays[::2].mean(axis=0), replays[1::2].mean(axis=0))
    waits = replays.mean(axis=0)
    errors = {default_rule.name: observed.error(waits)}
    candidates = [QueueRule(PASS_QUEUE)] if observed.has_queued_jobs else []
    if observed.has_queued_jobs and head_start_s is not None:
        candidates += [QueueRule(EASY_QUEUE, head_start_s), QueueRule(PASS_QUEUE, head_start_s)]

    # Below this error of the default rule no other is tried: forecasts of waits are less accurate in any case.
    for rule in candidates if errors[default_rule.name] > max(chance_error, 0.05) else ():
        candidate_waits = [replay(rule, jitters_s[0])]
        # A rule with a larger error cannot win: its other replays are skipped.
        if observed.error(candidate_waits[0]) <= min(errors[default_rule.name], errors[best.name] + chance_error):
            candidate_waits += [replay(rule, jitter_s) for jitter_s in jitters_s[1:]]
        mean_waits = np.mean(candidate_waits, axis=0)
        errors[rule.name] = observed.error(mean_waits)
        is_better = errors[rule.name] < min(errors[default_rule.name] - chance_error, errors[best.name])
        if is_better and len(candidate_waits) == len(jitters_s):
            best, waits = rule, mean_waits
    return best, waits


def arrival_jitter_s(n_jobs: int, replay: int) -> Floats:
    """Draw the random arrival delay of each job in a replay, shape (n_jobs,) [s]; the replay number is the seed."""
    return np.random.default_rng(1 + replay).uniform(0, MAX_ARRIVAL_JITTER_S, n_jobs)


def find_head_starts(
    requests: NodeRequests,
    start_s: Floats,
    queued: NDArray[np.bool_],
    groups: Sequence[Ints],
    use: TenantUse,
    latency_s: float,
) -> Floats | None:
    """Find how much earlier tenants and sizes are placed in the queue than their jobs were eligible.

    A job that starts precedes each waiting job that could have started instead: one that requests at most as many GPUs
    (or instances of the same profile) on at most as many nodes, with at most the same time limit, and does not exceed
    the GPU limit of its tenant. Head starts contradict the fewest such pairs, summed in seconds; the smallest of equal
    ones.

    Parameters
    ----------
    requests : NodeRequests
        Requests of jobs, ready when they are eligible.
    start_s : array of float, shape (n_requests,)
        When each started [s]; NaN: it waits to the end of the record.
    queued : array of bool, shape (n_requests,)
        Jobs that arrived through the queue.
    groups : sequence of array of int, shape (n_requests,)
        Numbers of the tenant, the size, the partition, the tier of each: a head start is the sum of theirs.
    use : TenantUse
        GPUs of tenants over time, and their limits.
    latency_s : float
        Scheduler latency: a job that is eligible for less does not wait yet [s].

    Returns
    -------
    array of float, shape (n_requests,), or None
        Head starts [s]; None if the record never contradicts first come, first served.
    """
    start = np.where(np.isnan(start_s), np.inf, start_s)
    rows = np.flatnonzero(queued)
    by_start = rows[np.argsort(start[rows], kind="stable")]
    by_ready = rows[np.argsort(requests.ready_s[rows], kind="stable")]
    group_number = np.zeros(len(start), np.int64)
    for group in groups:
        group_number = group_number * (int(group.max(initial=0)) + 1) + group
    request_keys = np.stack([requests.profile, requests.per, requests.nodes, group_number], axis=1)
    arguments = (by_start, by_ready, start, requests.ready_s, requests.limit_s, request_keys, use, latency_s)
    n_pairs = fill_overtaking_pairs(*arguments, 1, np.zeros((0, 2), np.int64))
    # Evenly sampled pairs are enough: more pairs do not make head starts more accurate.
    stride = max(-(-n_pairs // 20_000), 1)
    pairs = np.zeros((-(-n_pairs // stride), 2), np.int64)
    fill_overtaking_pairs(*arguments, stride, pairs)

    ready_s = requests.ready_s[pairs]
    offsets = fit_head_starts(groups, pairs, ready_s[:, 0] - ready_s[:, 1])
    total = sum((values[group] for values, group in zip(offsets, groups, strict=True)), np.zeros(len(start)))
    return total if total.any() else None


@compile_entry
def fill_overtaking_pairs(
    by_start: Ints,
    by_ready: Ints,
    start: Floats,
    ready: Floats,
    limit: Floats,
    request_keys: Ints,
    use: TenantUse,
    latency: float,
    stride: int,
    pairs: Ints,
) -> int:
    """Write every ``stride``-th pair of a job that starts and a waiting job that could have started instead; count all.

    Parameters
    ----------
    by_start, by_ready : array of int, shape (n_queued,)
        Jobs in the order of their starts, and of their eligibility.
    start, ready, limit : array of float, shape (n_requests,)
        Start, eligibility and time limit of each job [s].
    request_keys : array of int, shape (n_requests, 4)
        Profile, GPUs (or instances) per node, nodes, and number of the combination of its groups (tenant, size, ...).
    use : TenantUse
        GPUs of tenants over time, and their limits.
    latency : float
        Scheduler latency [s].
    stride : int
        One pair of this number is written.
    pairs : array of int, shape (n_pairs, 2)
        Output: the job that starts and the one that waits.

    Returns
    -------
    int
        Number of all pairs.
    """
    waiting, n_waiting, n_arrived, n_pairs = np.empty(len(by_ready), np.int64), 0, 0, 0
    next_change = use.first_change.copy()
    for job in by_start:
        now = start[job]
        if now == np.inf:
            break
        while n_arrived < len(by_ready) and ready[by_ready[n_arrived]] <= now - latency:
            waiting[n_waiting] = by_ready[n_arrived]
            n_waiting += 1
            n_arrived += 1
        n_kept = 0
        for position in range(n_waiting):
            candidate = waiting[position]
            if start[candidate] <= now:
                continue
            waiting[n_kept] = candidate
            n_kept += 1
            if request_keys[candidate, 3] == request_keys[job, 3] or request_keys[candidate, 0] != request_keys[job, 0]:
                continue
            if limit[candidate] > limit[job]:
                continue
            if request_keys[candidate, 1] > request_keys[job, 1] or request_keys[candidate, 2] > request_keys[job, 2]:
                continue
            tenant = use.tenant[candidate]
            while next_change[tenant] < use.first_change[tenant + 1] and use.time_s[next_change[tenant]] <= now:
                next_change[tenant] += 1
            change = next_change[tenant]
            allocated = use.gpus[change - 1] if change > use.first_change[tenant] else 0.0
            if allocated > use.room_gpus[candidate]:
                continue
            if n_pairs % stride == 0 and n_pairs // stride < len(pairs):
                pairs[n_pairs // stride, 0], pairs[n_pairs // stride, 1] = job, candidate
            n_pairs += 1
        n_waiting = n_kept
    return n_pairs


def fit_head_starts(groups: Sequence[Ints], pairs: Ints, later_s: Floats) -> list[Floats]:
    """Fit head starts by group, so that pairs that start in another order than they became eligible are explained.

    Each head start in turn is set to the quantile that minimizes the sum of unexplained seconds.

    Parameters
    ----------
    groups : sequence of array of int, shape (n_requests,)
        Numbers of the tenant, of the size, ... of each request.
    pairs : array of int, shape (n_pairs, 2)
        Rows of the first and the second of each pair.
    later_s : array of float, shape (n_pairs,)
        How much later the first was eligible [s].

    Returns
    -------
    list of array of float
        Head start of each value of each group [s].

    Examples
    --------
    >>> tenant, pairs = np.array([0, 1]), np.array([[0, 1], [0, 1], [1, 0]])
    >>> fit_head_starts([tenant], pairs, np.array([3600.0, -60, -7200]))  # an hour is enough, two are allowed
    [array([3600.,    0.])]
    """
    offsets = [np.zeros(int(group.max(initial=0)) + 1) for group in groups]
    lead = -later_s
    for _ in range(20):
        largest_change = 0.0
        for values, group in zip(offsets, groups, strict=True):
            first, second = group[pairs[:, 0]], group[pairs[:, 1]]
            for number in range(len(values)):
                sign = (first == number) * 1 - (second == number) * 1
                thresholds = np.sort((values[number] - sign * lead)[sign != 0])
                if not len(thresholds):
                    continue
                above = int((sign > 0).sum())
                edges = np.concatenate([[-np.inf], thresholds, [np.inf]])
                best = float(np.clip(0.0, edges[above], edges[above + 1]))
                largest_change = max(largest_change, abs(best - values[number]))
                lead = lead + sign * (best - values[number])
                values[number] = best
        if largest_change < MIN_HEAD_START_CHANGE_S:
            break
    return offsets


@dataclass(frozen=True, eq=False)
class Closings:
    """Times of nodes out of service, as simulator requests that precede all jobs in the queue.

    - ``requests``: One for each profile of a node, or for some of its GPUs, and each spell.
    - ``node``, shape (n_spells,): Number of the node.
    - ``nodes``: Nodes of the fleet.
    """

    requests: NodeRequests
    node: Ints
    nodes: int

    def requests_on(self, nodes: int) -> NodeRequests:
        """Return the requests for a number of nodes: added nodes repeat the closings of today's nodes in turn."""
        rows = [np.flatnonzero(self.node == node % self.nodes) for node in range(nodes)]
        return self.requests.select(np.concatenate(rows))


def separate_spells(closed: Sequence[OutOfServiceSpell]) -> list[OutOfServiceSpell]:
    """Merge out-of-service spells of a node that overlap or touch, and trim spells of single GPUs by them.

    Examples
    --------
    >>> separate_spells([(0.0, 90.0, 0, np.inf), (10.0, 95.0, 0, np.inf), (50.0, 99.0, 0, 2.0)])
    [(0.0, 95.0, 0, inf), (95.0, 99.0, 0, 2.0)]
    """
    spells = []
    for node in sorted({spell[2] for spell in closed}):
        node_spells: list[tuple[float, float]] = []
        for begin, stop, _, _ in sorted(spell for spell in closed if spell[2] == node and np.isinf(spell[3])):
            if node_spells and begin <= node_spells[-1][1]:
                node_spells[-1] = (node_spells[-1][0], max(node_spells[-1][1], stop))
            else:
                node_spells.append((begin, stop))
        spells += [(begin, stop, node, np.inf) for begin, stop in node_spells]

        for begin, stop, _, gpus in (spell for spell in closed if spell[2] == node and np.isfinite(spell[3])):
            since = begin
            for whole_begin, whole_stop in [*node_spells, (stop, stop)]:
                if since < min(whole_begin, stop):
                    spells.append((since, min(whole_begin, stop), node, gpus))
                since = max(since, whole_stop)
    return spells


def build_closing_requests(
    closed: Sequence[OutOfServiceSpell],
    nodes: Sequence[Sequence[int] | None],
    start_s: Floats,
    end_s: Floats,
    capacity: Ints,
) -> Closings | None:
    """Build requests that occupy nodes or GPUs while they are out of service.

    A drained node is closed when its last job ends. In a simulation its request arrives when the drain begins, waits
    for an empty node, and occupies it as long as the node was closed and empty. A MIG-partitioned node has a request
    for the instances of each profile.

    Parameters
    ----------
    closed : sequence of tuple
        Begin, end [s], node and GPUs of each spell; infinite GPUs: the entire node.
    nodes : sequence of sequence of int, or None
        Nodes of each job.
    start_s, end_s : array of float, shape (n_jobs,)
        Start and end of each job [s].
    capacity : array of int, shape (n_nodes, n_profiles)
        Instances of each profile.

    Returns
    -------
    Closings or None
        None where nothing was out of service.

    Examples
    --------
    >>> start, end = np.array([0.0]), np.array([50.0])
    >>> found = build_closing_requests([(10.0, 90.0, 0, np.inf)], [[0]], start, end, np.array([[8], [8]]))
    >>> found.requests.ready_s.tolist(), found.requests.run_s.tolist(), found.requests.total.tolist()
    ([10.0], [40.0], [8])
    >>> len(found.requests_on(4))
    2
    """
    rows = []
    for begin, stop, node, gpus in separate_spells(closed):
        running = np.flatnonzero((start_s < begin) & ~(end_s <= begin)).tolist()
        ends = [end_s[row] for row in running if node in (nodes[row] or ())]
        last_end_s = np.nan_to_num(np.array([begin, *ends]), nan=np.inf).max()
        since = max(begin, last_end_s) if np.isinf(gpus) else begin
        if since >= stop:
            continue
        for profile, total in enumerate(count_closed_instances(gpus, capacity[node]).tolist()):
            if total:
                rows.append((begin, begin, stop - since, stop - since, profile, total, 1, node))
    if not rows:
        return None
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return Closings(NodeRequests(*columns[:-1]), columns[-1], len(capacity))


def concatenate_requests(first_requests: NodeRequests, second_requests: NodeRequests) -> NodeRequests:
    """Concatenate two sets of requests, in this order."""
    parts, names = (first_requests, second_requests), (column.name for column in fields(first_requests))
    return NodeRequests(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True, eq=False)
class QueueModel:
    """How jobs start on a cluster.

    Attributes
    ----------
    handover : Handover
        Time that the scheduler takes from an end to the next start.
    spread : bool
        Whether the emptiest nodes are filled first.
    tenant : array of int, shape (n_requests,)
        Number of the tenant of each request.
    limits : tuple of TenantGpuLimit
        Maximum GPUs of tenants.
    rule : QueueRule
        Order of the queue, and which jobs may pass.
    closings : Closings, optional
        Nodes out of service; None: none.
    """

    handover: Handover
    spread: bool
    tenant: Ints
    limits: tuple[TenantGpuLimit, ...] = ()
    rule: QueueRule = field(default_factory=QueueRule)
    closings: Closings | None = None

    def start(self, requests: NodeRequests, fleet: NodeFleet, rows: Ints | None = None) -> Floats:
        """Simulate requests on a fleet, and return their start times [s]; infinite for those that never start.

        Parameters
        ----------
        requests : NodeRequests
            Requests to simulate, ready as stated.
        fleet : NodeFleet
            Nodes to run on.
        rows : array of int, optional
            Row of the record that each request is; None: all rows, in their order.

        Returns
        -------
        array of float, shape (n_requests,)
            Start times [s].
        """
        handover_s = self.handover.median_s
        padded = replace(requests, run_s=requests.run_s + handover_s, limit_s=requests.limit_s + handover_s)
        placement = "spread" if self.spread else "best"
        order = self.rule.order(requests.ready_s, rows)
        tenant = self.tenant if rows is None else self.tenant[rows]
        if self.closings is not None:
            closed = self.closings.requests_on(len(fleet.gpus))
            padded = concatenate_requests(padded, closed)
            order = np.concatenate([order, np.full(len(closed), -np.inf)])
            tenant = np.concatenate([tenant, np.full(len(closed), self.tenant.max(initial=0) + 1)])
        if not self.limits:
            start = simulate_starts(padded, fleet, queue=self.rule.queue, order=order, placement=placement)
        else:
            max_gpus = {limit.tenant: limit.gpus for limit in self.limits}
            groups = tuple(QuotaGroup(max_gpus.get(number)) for number in range(int(tenant.max()) + 1))
            # A tier of its own for each request: a tenant with room below its limit does not come before others.
            tier = np.argsort(np.lexsort((padded.submit_s, padded.ready_s, order)))
            sharing = Sharing(tenant, tier, groups, head_keeps_quota=False)
            start = simulate_shared_requests(padded, fleet, sharing, queue=self.rule.queue, placement=placement).start_s
        return np.where(np.isnan(start), np.inf, start)[: len(requests)]


def jobs_start_on_emptiest_nodes(occupancy: OccupancyChanges) -> bool:
    """Whether jobs started on the emptiest nodes rather than on the fullest nodes with enough capacity.

    Examples
    --------
    >>> node, none, one = np.array([0, 1, 0, 1]), np.zeros(4, int), np.array([-1, -1, -1, -1])
    >>> jobs_start_on_emptiest_nodes(OccupancyChanges(np.arange(4.0), node, none, one, np.array([[8], [8]])))
    True
    """
    free, n_emptiest, n_fullest = occupancy.capacity.copy(), 0, 0
    changes = zip(occupancy.node.tolist(), occupancy.profile.tolist(), occupancy.change.tolist(), strict=True)
    for node, profile, change in changes:
        free_by_node = free[:, profile]
        if change < 0 and free_by_node[node] >= -change:
            fitting = free_by_node[free_by_node >= -change]
            if fitting.max() > fitting.min():
                n_emptiest += free_by_node[node] == fitting.max()
                n_fullest += free_by_node[node] == fitting.min()
        free_by_node[node] += change
    return bool(n_emptiest > n_fullest)
