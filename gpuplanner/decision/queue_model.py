"""How the cluster starts jobs: queue rule, placement and hand-over times, and the replay of the record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from gpuplanner.core.execution import compile_entry
from gpuplanner.decision.occupancy_changes import ClosedSpell, Handover, OccupancyChanges, closed_instances
from gpuplanner.decision.wait_causes import FEWEST_WAITS, NamedLimit, TenantUse
from gpuplanner.simulator.scheduling_rules import QuotaGroup, Sharing
from gpuplanner.simulator.simulated_fleet import NodeFleet, NodeRequests
from gpuplanner.simulator.simulation_run import simulate_requests, simulate_shared_requests
from gpuplanner.simulator.simulation_state import Floats, Ints

EASY, PASS = "easy", "pass"
NEAR_S = 1.0
"""Head starts that move by less have been found [s]."""
JITTER_S = 30.0
"""Replays differ by arrivals up to so much later: a queue is chaotic, and one replay is a draw."""
REPLAYS = 4
"""Replays of which the mean is compared with the record: two halves of two show what is chance."""


@dataclass(frozen=True, eq=False)
class QueueRule:
    """Which jobs start first, and which may pass a job that waits.

    Attributes
    ----------
    queue : {"easy", "pass"}
        Whether jobs pass the first that waits where they do not delay it by their time limits, or all that fit.
    head_start_s : array of float, shape (n_requests,), optional
        How much earlier each counts as eligible in the order of the queue [s]; None: first come, first served.
    """

    queue: str = EASY
    head_start_s: Floats | None = None

    @property
    def name(self) -> str:
        """The queue, and whether there are head starts."""
        return self.queue if self.head_start_s is None else f"{self.queue}, head starts"

    def order(self, ready_s: Floats, rows: Ints | None = None) -> Floats:
        """The order of requests that are eligible at some times, the lowest first; rows of the record as in a queue."""
        if self.head_start_s is None:
            return ready_s
        return ready_s - (self.head_start_s if rows is None else self.head_start_s[rows])


@dataclass(frozen=True, eq=False)
class ObservedWaits:
    """Waits that replays are compared with.

    - ``waited_s``, shape (n_jobs,): From eligibility to start, or to the end of the record [s].
    - ``group``, shape (n_jobs,): Number of tenant and size of each.
    - ``judged``, shape (n_jobs,): Jobs that count.
    - ``latency_s``: A wait of no longer is the scheduler's own [s].
    """

    waited_s: Floats
    group: Ints
    judged: NDArray[np.bool_]
    latency_s: float = 60.0

    @property
    def jobs_queued(self) -> bool:
        """Whether enough jobs waited for what they requested to compare anything with."""
        return int((self.waited_s[self.judged] > self.latency_s).sum()) >= FEWEST_WAITS

    def error(self, simulated_s: Floats, waited_s: Floats | None = None) -> float:
        """Sum over tenants and sizes of |simulated - observed waiting|, for each second observed.

        Examples
        --------
        >>> seen = ObservedWaits(np.array([100.0, 0, 100]), np.array([0, 0, 1]), np.ones(3, bool))
        >>> seen.error(np.array([0.0, 100, 150]))  # the first two are of one group
        0.25
        """
        other = self.waited_s if waited_s is None else waited_s
        wrong = np.bincount(self.group[self.judged], (simulated_s - other)[self.judged])
        return float(np.abs(wrong).sum() / max(self.waited_s[self.judged].sum(), 1.0))


def choose_rule(
    replay: Callable[[QueueRule, Floats], Floats], seen: ObservedWaits, head_start_s: Floats | None
) -> tuple[QueueRule, Floats]:
    """Choose the rule whose replays are nearest to the record; a simpler one where the difference may be chance.

    Parameters
    ----------
    replay : callable
        Waits of all jobs [s] by a rule, with arrivals so much later.
    seen : ObservedWaits
        What replays are compared with.
    head_start_s : array of float, optional
        Head starts that the record shows; None: nobody overtakes anybody.

    Returns
    -------
    rule : QueueRule
        First come, first served with backfill, unless the error of another rule is lower by more than the error
        between two halves of the replays, which differ in jitter alone.
    waits_s : array of float, shape (n_jobs,)
        What each job waits by the rule, the mean of its replays [s].

    Examples
    --------
    >>> seen = ObservedWaits(np.arange(0.0, 2000, 100), np.arange(20), np.ones(20, bool))
    >>> replay = lambda rule, late: seen.waited_s * (rule.queue == "pass")
    >>> rule, waits = choose_rule(replay, seen, None)
    >>> rule.queue
    'pass'
    """
    plain = best = QueueRule()
    late = [arrival_jitter_s(len(seen.group), number) for number in range(REPLAYS)]
    replays = np.array([replay(plain, later_s) for later_s in late])
    chance = seen.error(replays[::2].mean(axis=0), replays[1::2].mean(axis=0))
    waits = replays.mean(axis=0)
    errors = {plain.name: seen.error(waits)}
    others = [QueueRule(PASS)] if seen.jobs_queued else []
    if seen.jobs_queued and head_start_s is not None:
        others += [QueueRule(EASY, head_start_s), QueueRule(PASS, head_start_s)]

    # Where the plain rule is wrong by no more, no other is tried: forecasts of waits are not that sure in any case.
    for rule in others if errors[plain.name] > max(chance, 0.05) else ():
        found = [replay(rule, late[0])]
        # A rule of a larger error will not be taken: its other replays are left out.
        if seen.error(found[0]) <= min(errors[plain.name], errors[best.name] + chance):
            found += [replay(rule, later_s) for later_s in late[1:]]
        mean = np.mean(found, axis=0)
        errors[rule.name] = seen.error(mean)
        lower = errors[rule.name] < min(errors[plain.name] - chance, errors[best.name])
        if lower and len(found) == len(late):
            best, waits = rule, mean
    return best, waits


def arrival_jitter_s(jobs: int, replay: int) -> Floats:
    """How much later each job arrives in a replay, by its number, shape (n_jobs,) [s]."""
    return np.random.default_rng(1 + replay).uniform(0, JITTER_S, jobs)


def find_head_starts(
    requests: NodeRequests,
    start_s: Floats,
    queued: NDArray[np.bool_],
    groups: Sequence[Ints],
    use: TenantUse,
    latency_s: float,
) -> Floats | None:
    """Find by how much tenants and sizes come earlier in the order of the queue than their jobs were eligible.

    A job that starts is before each in the order that could have started in its place: that waits, needs no more on
    no more nodes for no longer by its time limit, and does not pass the limit of its tenant. The head starts are those
    with which the eligibility of the fewest such pairs contradicts it, summed in seconds; the least of equal ones.

    Parameters
    ----------
    requests : NodeRequests
        What jobs ask for, ready when they are eligible.
    start_s : array of float, shape (n_requests,)
        When each started [s]; NaN: it waits to the end of the record.
    queued : array of bool, shape (n_requests,)
        Jobs that came through the queue.
    groups : sequence of array of int, shape (n_requests,)
        Numbers of the tenant, the size, the partition, the tier of each: a head start is the sum of theirs.
    use : TenantUse
        What tenants held, and their limits.
    latency_s : float
        What the scheduler needs: who is eligible for less does not wait yet [s].

    Returns
    -------
    array of float, shape (n_requests,), or None
        Head starts [s]; None if the record contradicts first come, first served nowhere.
    """
    start = np.where(np.isnan(start_s), np.inf, start_s)
    rows = np.flatnonzero(queued)
    by_start = rows[np.argsort(start[rows], kind="stable")]
    by_ready = rows[np.argsort(requests.ready_s[rows], kind="stable")]
    number = np.zeros(len(start), np.int64)
    for group in groups:
        number = number * (int(group.max(initial=0)) + 1) + group
    asked = np.stack([requests.profile, requests.per, requests.nodes, number], axis=1)
    arguments = (by_start, by_ready, start, requests.ready_s, requests.limit_s, asked, use, latency_s)
    count = fill_pairs(*arguments, 1, np.zeros((0, 2), np.int64))
    # Pairs are taken evenly from all: more make head starts no surer.
    every = max(-(-count // 20_000), 1)
    pairs = np.zeros((-(-count // every), 2), np.int64)
    fill_pairs(*arguments, every, pairs)

    ready_s = requests.ready_s[pairs]
    found = fit_head_starts(groups, pairs, ready_s[:, 0] - ready_s[:, 1])
    total = sum((values[group] for values, group in zip(found, groups, strict=True)), np.zeros(len(start)))
    return total if total.any() else None


@compile_entry
def fill_pairs(
    by_start: Ints,
    by_ready: Ints,
    start: Floats,
    ready: Floats,
    limit: Floats,
    asked: Ints,
    use: TenantUse,
    latency: float,
    every: int,
    pairs: Ints,
) -> int:
    """Write each so-manieth pair of a job that starts and one that could have in its place, and count them all."""
    waiting, many, came, count = np.empty(len(by_ready), np.int64), 0, 0, 0
    place = use.first.copy()
    for job in by_start:
        now = start[job]
        if now == np.inf:
            break
        while came < len(by_ready) and ready[by_ready[came]] <= now - latency:
            waiting[many] = by_ready[came]
            many += 1
            came += 1
        kept = 0
        for rank in range(many):
            other = waiting[rank]
            if start[other] <= now:
                continue
            waiting[kept] = other
            kept += 1
            if asked[other, 3] == asked[job, 3] or asked[other, 0] != asked[job, 0]:
                continue
            if limit[other] > limit[job]:
                continue
            if asked[other, 1] > asked[job, 1] or asked[other, 2] > asked[job, 2]:
                continue
            mine = use.tenant[other]
            while place[mine] < use.first[mine + 1] and use.time_s[place[mine]] <= now:
                place[mine] += 1
            if (use.gpus[place[mine] - 1] if place[mine] > use.first[mine] else 0.0) > use.room[other]:
                continue
            if count % every == 0 and count // every < len(pairs):
                pairs[count // every, 0], pairs[count // every, 1] = job, other
            count += 1
        many = kept
    return count


def fit_head_starts(groups: Sequence[Ints], pairs: Ints, later_s: Floats) -> list[Floats]:
    """Fit head starts, of which those of the first of each pair exceed those of the second by as much as it was later.

    Each in turn is moved to where the sum of what pairs lack is least: a quantile.

    Parameters
    ----------
    groups : sequence of array of int, shape (n_requests,)
        Numbers of the tenant, of the size, ... of each request.
    pairs : array of int, shape (n_pairs, 2)
        Rows of the first and the second of each pair.
    later_s : array of float, shape (n_pairs,)
        By how much the first was eligible later [s].

    Examples
    --------
    >>> tenant, pairs = np.array([0, 1]), np.array([[0, 1], [0, 1], [1, 0]])
    >>> fit_head_starts([tenant], pairs, np.array([3600.0, -60, -7200]))  # an hour is enough, two are allowed
    [array([3600.,    0.])]
    """
    found = [np.zeros(int(group.max(initial=0)) + 1) for group in groups]
    lead = -later_s
    for _ in range(20):
        moved = 0.0
        for values, group in zip(found, groups, strict=True):
            first, second = group[pairs[:, 0]], group[pairs[:, 1]]
            for number in range(len(values)):
                side = (first == number) * 1 - (second == number) * 1
                needs = np.sort((values[number] - side * lead)[side != 0])
                if not len(needs):
                    continue
                above = int((side > 0).sum())
                edges = np.concatenate([[-np.inf], needs, [np.inf]])
                best = float(np.clip(0.0, edges[above], edges[above + 1]))
                moved = max(moved, abs(best - values[number]))
                lead = lead + side * (best - values[number])
                values[number] = best
        if moved < NEAR_S:
            break
    return found


@dataclass(frozen=True, eq=False)
class Closings:
    """Nodes that were out of service, as requests that come before all others.

    - ``requests``: One for each profile of a node, or for some of its GPUs, and each spell.
    - ``node``, shape (n_spells,): Number of the node.
    - ``nodes``: Nodes of the fleet.
    """

    requests: NodeRequests
    node: Ints
    nodes: int

    def on(self, nodes: int) -> NodeRequests:
        """The closings of so many nodes: further ones are closed as those of today are, in turn."""
        rows = [np.flatnonzero(self.node == node % self.nodes) for node in range(nodes)]
        return self.requests.select(np.concatenate(rows))


def separate_spells(closed: Sequence[ClosedSpell]) -> list[ClosedSpell]:
    """Join spells of a whole node that overlap or follow each other, and keep of its GPUs what lies outside of them.

    Examples
    --------
    >>> separate_spells([(0.0, 90.0, 0, np.inf), (10.0, 95.0, 0, np.inf), (50.0, 99.0, 0, 2.0)])
    [(0.0, 95.0, 0, inf), (95.0, 99.0, 0, 2.0)]
    """
    spells = []
    for node in sorted({spell[2] for spell in closed}):
        whole: list[tuple[float, float]] = []
        for begin, stop, _, _ in sorted(spell for spell in closed if spell[2] == node and np.isinf(spell[3])):
            if whole and begin <= whole[-1][1]:
                whole[-1] = (whole[-1][0], max(whole[-1][1], stop))
            else:
                whole.append((begin, stop))
        spells += [(begin, stop, node, np.inf) for begin, stop in whole]

        for begin, stop, _, gpus in (spell for spell in closed if spell[2] == node and np.isfinite(spell[3])):
            since = begin
            for whole_begin, whole_stop in [*whole, (stop, stop)]:
                if since < min(whole_begin, stop):
                    spells.append((since, min(whole_begin, stop), node, gpus))
                since = max(since, whole_stop)
    return spells


def closing_requests(
    closed: Sequence[ClosedSpell],
    nodes: Sequence[Sequence[int] | None],
    start_s: Floats,
    end_s: Floats,
    capacity: Ints,
) -> Closings | None:
    """Read what was out of service as requests; arguments as of ``observe_occupancy``; None where nothing was.

    A node that is drained is closed when the last of its jobs is over. In a simulation a request for it comes when
    the drain began, waits for an empty node, and holds it as long as the node was closed and empty. A node that is cut
    has a request for the instances of each profile.

    Examples
    --------
    >>> start, end = np.array([0.0]), np.array([50.0])
    >>> found = closing_requests([(10.0, 90.0, 0, np.inf)], [[0]], start, end, np.array([[8], [8]]))
    >>> found.requests.ready_s.tolist(), found.requests.run_s.tolist(), found.requests.total.tolist()
    ([10.0], [40.0], [8])
    >>> len(found.on(4))
    2
    """
    rows = []
    for begin, stop, node, gpus in separate_spells(closed):
        running = np.flatnonzero((start_s < begin) & ~(end_s <= begin)).tolist()
        ends = [end_s[row] for row in running if node in (nodes[row] or ())]
        last = np.nan_to_num(np.array([begin, *ends]), nan=np.inf).max()
        since = max(begin, last) if np.isinf(gpus) else begin
        if since >= stop:
            continue
        for profile, total in enumerate(closed_instances(gpus, capacity[node]).tolist()):
            if total:
                rows.append((begin, begin, stop - since, stop - since, profile, total, 1, node))
    if not rows:
        return None
    columns = [np.array(one) for one in zip(*rows, strict=True)]
    return Closings(NodeRequests(*columns[:-1]), columns[-1], len(capacity))


def joined_requests(first: NodeRequests, second: NodeRequests) -> NodeRequests:
    """All of some requests and of others, in this order."""
    names = (one.name for one in fields(first))
    return NodeRequests(*(np.concatenate([getattr(first, name), getattr(second, name)]) for name in names))


@dataclass(frozen=True, eq=False)
class QueueModel:
    """How jobs start on a cluster.

    Attributes
    ----------
    handover : Handover
        What the scheduler needs from an end to the next start.
    spread : bool
        Whether the emptiest nodes are taken first.
    tenant : array of int, shape (n_requests,)
        Number of the tenant of each.
    limits : tuple of NamedLimit
        Most GPUs of tenants.
    rule : QueueRule
        Who is first, and who may pass.
    closings : Closings, optional
        What was out of service; None: nothing was.
    """

    handover: Handover
    spread: bool
    tenant: Ints
    limits: tuple[NamedLimit, ...] = ()
    rule: QueueRule = field(default_factory=QueueRule)
    closings: Closings | None = None

    def start(self, requests: NodeRequests, fleet: NodeFleet, rows: Ints | None = None) -> Floats:
        """Start requests, ready as they are, and return when [s]; infinite for those that never start.

        Parameters
        ----------
        requests : NodeRequests
            What is asked for; rows of the record, where ``rows`` says which.
        fleet : NodeFleet
            Where.
        rows : array of int, optional
            Row of the record that each request is; None: they are the record.
        """
        more_s = self.handover.median_s
        held = replace(requests, run_s=requests.run_s + more_s, limit_s=requests.limit_s + more_s)
        placement = "spread" if self.spread else "best"
        order = self.rule.order(requests.ready_s, rows)
        tenant = self.tenant if rows is None else self.tenant[rows]
        if self.closings is not None:
            closed = self.closings.on(len(fleet.gpus))
            held = joined_requests(held, closed)
            order = np.concatenate([order, np.full(len(closed), -np.inf)])
            tenant = np.concatenate([tenant, np.full(len(closed), self.tenant.max(initial=0) + 1)])
        if not self.limits:
            start = simulate_requests(held, fleet, queue=self.rule.queue, order=order, placement=placement).start_s
        else:
            most = {limit.tenant: limit.gpus for limit in self.limits}
            groups = tuple(QuotaGroup(most.get(number)) for number in range(int(tenant.max()) + 1))
            # A tier of its own for each request: a tenant with room below its limit does not come before others.
            tier = np.argsort(np.lexsort((held.submit_s, held.ready_s, order)))
            sharing = Sharing(tenant, tier, groups, head_keeps_quota=False)
            start = simulate_shared_requests(held, fleet, sharing, queue=self.rule.queue, placement=placement).start_s
        return np.where(np.isnan(start), np.inf, start)[: len(requests)]


def starts_are_spread(seen: OccupancyChanges) -> bool:
    """Whether jobs started on the emptiest nodes rather than on the fullest that had room.

    Examples
    --------
    >>> node, none, one = np.array([0, 1, 0, 1]), np.zeros(4, int), np.array([-1, -1, -1, -1])
    >>> starts_are_spread(OccupancyChanges(np.arange(4.0), node, none, one, np.array([[8], [8]])))
    True
    """
    free, emptiest, fullest = seen.capacity.copy(), 0, 0
    changes = zip(seen.node.tolist(), seen.profile.tolist(), seen.change.tolist(), strict=True)
    for node, profile, change in changes:
        here = free[:, profile]
        if change < 0 and here[node] >= -change:
            able = here[here >= -change]
            if able.max() > able.min():
                emptiest += here[node] == able.max()
                fullest += here[node] == able.min()
        here[node] += change
    return bool(emptiest > fullest)
