"""How the cluster starts jobs: handover, placement, queue rule and limits, and the replay of jobs by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from gpuplanner.simulate.nodes.machine import NodeFleet, NodeRequests
from gpuplanner.simulate.nodes.play import play
from gpuplanner.simulate.nodes.shared_play import play_shared
from gpuplanner.simulate.nodes.sharing import QuotaGroup, Sharing
from gpuplanner.simulate.tables import Floats, Ints
from gpuplanner.study.waits.limits import NamedLimit
from gpuplanner.study.waits.occupancy import ClosedSpell, Handover, OccupancyChanges, closed_instances
from gpuplanner.study.waits.queue_rule import QueueRule


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
        return self.requests.take(
            np.concatenate([np.flatnonzero(self.node == node % self.nodes) for node in range(nodes)])
        )


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
    return NodeRequests(
        *(np.concatenate([getattr(first, one.name), getattr(second, one.name)]) for one in fields(first))
    )


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
        held = replace(
            requests,
            run_s=requests.run_s + self.handover.median_s,
            limit_s=requests.limit_s + self.handover.median_s,
        )
        placement = "spread" if self.spread else "best"
        order = self.rule.order(requests.ready_s, rows)
        tenant = self.tenant if rows is None else self.tenant[rows]
        if self.closings is not None:
            closed = self.closings.on(len(fleet.gpus))
            held = joined_requests(held, closed)
            order = np.concatenate([order, np.full(len(closed), -np.inf)])
            tenant = np.concatenate([tenant, np.full(len(closed), self.tenant.max(initial=0) + 1)])
        if not self.limits:
            start = play(held, fleet, queue=self.rule.queue, order=order, placement=placement).start_s
        else:
            most = {limit.tenant: limit.gpus for limit in self.limits}
            groups = tuple(QuotaGroup(most.get(number)) for number in range(int(tenant.max()) + 1))
            # A tier of its own for each request: a tenant with room below its limit does not come before others.
            tier = np.argsort(np.lexsort((held.submit_s, held.ready_s, order)))
            sharing = Sharing(tenant, tier, groups, head_keeps_quota=False)
            start = play_shared(held, fleet, sharing, queue=self.rule.queue, placement=placement).start_s
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
    for node, profile, change in zip(
        seen.node.tolist(), seen.profile.tolist(), seen.change.tolist(), strict=True
    ):
        here = free[:, profile]
        if change < 0 and here[node] >= -change:
            able = here[here >= -change]
            if able.max() > able.min():
                emptiest += here[node] == able.max()
                fullest += here[node] == able.min()
        here[node] += change
    return bool(emptiest > fullest)
