"""Simulation of requests on nodes, for one or several tenants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import polars as pl

from gpuplanner.core.errors import ScenarioError, resolve
from gpuplanner.simulator.planned_changes import LayoutChanges, changes_made, planned_table
from gpuplanner.simulator.scheduling_rules import NO_GROUP, QuotaGroup, SharedOutcome, Sharing
from gpuplanner.simulator.simulated_fleet import (
    NodeFleet,
    NodeNetwork,
    NodeRequests,
    Outcome,
    Switching,
    kinds_of,
    serving_table,
)
from gpuplanner.simulator.simulation_state import (
    CHANGE,
    EVENT,
    GROUP,
    STATUS,
    STOPPED,
    TENANCY_STATUS,
    TENANT_JOB,
    UNITS,
    UNLIMITED,
    Cuts,
    Floats,
    InstanceSets,
    Ints,
    NodeWorld,
    Table,
    Tenancy,
    table,
)

QUEUES = ("easy", "strict", "slurm", "pass")
PLACEMENTS = ("best", "fullest", "lowest", "consolidate", "spread")
NO_NODE = -1
PARTS = 2
"""Partitions of Slurm: whole GPUs, and slices. The line of whole GPUs, and of all where pools are flexible, is 0."""
ROOM = 1 << 14
"""Changes of nodes that are written before the loop hands them over."""


def play(
    requests: NodeRequests,
    fleet: NodeFleet,
    *,
    queue: str = "easy",
    order: Floats | None = None,
    placement: str = "best",
    larger: Sequence[Sequence[int]] | None = None,
    switching: Switching | None = None,
    most_waiting: int | None = None,
    changes: LayoutChanges | None = None,
) -> Outcome:
    """Start requests in the order of the queue, until nothing more can start.

    The queue goes by readiness, submission and row; where ranks are given, by the rank of each request before that.

    Requests for instances of a profile wait for those before them that ask for the same profile. On whole GPUs, the
    first that has to wait holds all others up in a ``"strict"`` queue; in an ``"easy"`` one others pass where by their
    limits they do not delay it [1]_, and in a ``"pass"`` queue all that fit start. In ``"slurm"`` whoever passes,
    slices as well, leaves alone the nodes that the first to wait will start on; and requests are given nodes that sleep
    at once, and stay with them [2]_.

    A node under the cordon of a planned change, or that is partitioned for one, is not there: nothing starts on it, and
    no request that waits is promised it. Where the changes let requests start before them, those that still wait once
    the queue has been served start on nodes under a cordon alone, in the order of the queue, if they end by their
    limits, on nodes as far apart as any, before each of these nodes is to be changed. Nobody has a claim on such nodes,
    so nobody waits there for those before.

    Within one instant requests end, changes are done, changes begin, requests become ready, and requests start.

    Parameters
    ----------
    requests : NodeRequests
        What is asked for.
    fleet : NodeFleet
        Where.
    queue : {"easy", "strict", "slurm", "pass"}
        Which requests may pass one that has to wait.
    order : array of float, shape (n_requests,), optional
        Ranks, the lowest first; None: first come, first served.
    placement : {"best", "fullest", "lowest", "consolidate", "spread"}
        Which nodes are taken first: with least of the profile to spare, with most in use, of the lowest number, those
        of the narrowest domain that has enough, or with most to spare.
    larger : sequence of sequence of int, optional
        For each profile those that may serve in its place, in this order; None: exact profiles alone.
    switching : Switching, optional
        How nodes come and go; None: they stay in the pool that they begin in.
    most_waiting : int, optional
        Where more requests wait at once the play is given up: none that has not started by then ever does.
    changes : LayoutChanges, optional
        Planned changes of what nodes offer; not together with `switching` or flexible pools.

    Returns
    -------
    Outcome

    Raises
    ------
    ScenarioError
        If the queue or the placement is unknown, or the changes do not fit the nodes.

    References
    ----------
    .. [1] D. Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995, doi:10.1007/3-540-60153-8_35.
    .. [2] SchedMD, slurm.conf(5), SchedulerParameters bf_job_part_count_reserve, and power_save.html.

    Examples
    --------
    >>> asked = NodeRequests([0, 1, 2], [0, 1, 2], [100, 100, 10], [100, 100, 10], [0, 0, 0], [8, 8, 4], [1, 1, 1])
    >>> play(asked, NodeFleet.whole([8, 4])).start_s.tolist()
    [0.0, 100.0, 2.0]
    >>> gone = play(asked, NodeFleet.whole([8, 4]), switching=Switching(idle_s=60.0, lead_s=300.0))
    >>> gone.on.filter(node=1).rows()
    [(1, 0, -inf, 0.0), (1, 0, 2.0, 362.0)]
    """
    playing = Playing.of(requests, fleet, queue, placement, larger, order, switching, most_waiting, changes)
    if playing.world is not None:
        from gpuplanner.simulator.event_loop import advance

        finished = False
        while not finished:
            finished = advance(playing.world)
            playing.turn_page()
    return playing.outcome()


@dataclass(eq=False)
class Playing:
    """A play under way.

    - ``fleet``: Where.
    - ``count``: Requests in all.
    - ``order``: Rows of those that are played, in the order of the queue.
    - ``world``: The tables of the loop; None where nothing can be played.
    - ``planned``: The planned changes.
    - ``pages``: When nodes came and went, so far.
    """

    fleet: NodeFleet
    count: int
    order: Ints
    world: NodeWorld | None
    planned: Table
    pages: list[np.ndarray] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        requests: NodeRequests,
        fleet: NodeFleet,
        queue: str,
        placement: str,
        larger: Sequence[Sequence[int]] | None,
        order: Floats | None = None,
        switching: Switching | None = None,
        most_waiting: int | None = None,
        changes: LayoutChanges | None = None,
    ) -> Self:
        """Lay out the tables; arguments as of :func:`play`."""
        if changes is not None and not (switching is None and fleet.flexible is None):
            expected = "nodes that stay, and requests that start on any node with capacity"
            got = "switching or flexible pools beside them"
            raise ScenarioError("planned changes of nodes", expected, got, "Leave one of them out.")
        plan = planned_table(changes, fleet)
        kept, rows = _playable(requests, fleet, larger)
        queue = resolve(queue, QUEUES, what="queue", error=ScenarioError)
        turn = None if order is None else np.asarray(order, np.float64)[rows]
        place = PLACEMENTS.index(resolve(placement, PLACEMENTS, what="placement", error=ScenarioError))
        early, world = changes is not None and changes.before_change, None
        if len(rows) or changes is not None:
            world = _world(kept, fleet, queue, turn, place, larger, switching, most_waiting, plan, early)
        return cls(fleet, len(requests), rows, world, plan[0])

    def turn_page(self) -> None:
        """Keep what the loop has written, and let it go on."""
        assert self.world is not None
        self.pages.append(self.world.log[: self.world.status[0].logged].copy())
        self.world.status[0].logged = 0

    def outcome(self) -> Outcome:
        """What came of it."""
        start, world = np.full(self.count, np.nan), self.world
        if world is None:
            held = pl.DataFrame(schema=dict.fromkeys(("request", "node", "profile", "amount"), pl.Int64))
            return Outcome(start, _on([], self.fleet), held, start.copy(), changes_made(self.planned))
        factor = start.copy()
        start[self.order], factor[self.order] = world.start, world.factor
        started = world.on_node != NO_NODE
        owner = world.owner[started]
        held = pl.DataFrame({
            "request": self.order[owner], "node": world.on_node[started], "profile": world.served[owner],
            "amount": world.amount[started],
        })  # fmt: skip
        ran = np.where(np.isnan(start), np.nan, factor)
        return Outcome(start, _on(self.pages, self.fleet), held, ran, changes_made(self.planned))


def _playable(
    requests: NodeRequests, fleet: NodeFleet, larger: Sequence[Sequence[int]] | None
) -> tuple[NodeRequests, Ints]:
    """Requests that could start on an empty fleet, in the order of the queue, and their rows."""
    most = fleet.capacity.max(axis=1)
    served_by = serving_table(most.shape[1], larger)
    kinds, kind = kinds_of(requests)
    able = np.zeros(len(kinds), bool)
    for number, (profile, per, nodes, rest) in enumerate(kinds.tolist()):
        for serving in served_by[profile][served_by[profile] != NO_NODE]:
            room = most[:, serving]
            enough, last = int((room >= per).sum()), int((room >= rest).sum())
            able[number] |= enough >= nodes - 1 and last >= nodes
    rows = np.lexsort((np.arange(len(requests)), requests.submit_s, requests.ready_s))
    rows = rows[able[kind[rows]]]
    return requests.take(rows), rows


def _world(
    kept: NodeRequests,
    fleet: NodeFleet,
    queue: str,
    turn: Floats | None,
    placement: int,
    larger: Sequence[Sequence[int]] | None,
    switching: Switching | None,
    most_waiting: int | None,
    plan: tuple[Table, Ints],
    before_change: bool,
) -> NodeWorld:
    """Fill the tables of a play."""
    nodes, pools, wide = fleet.capacity.shape
    serving = serving_table(wide, larger)
    ranks = serving.shape[1]
    asks, kind = kinds_of(kept)
    count, kinds = len(kept), int(kind.max(initial=-1)) + 1
    hold = np.concatenate([[0], np.cumsum(kept.nodes)])
    how = switching or Switching(0.0, 0.0)
    sliced = np.arange(wide) > 0
    net = fleet.network or NodeNetwork(np.zeros((0, nodes), np.int64), np.ones(2))
    domains = int(net.domains.max(initial=-1)) + 1
    status = table(STATUS, 1)
    status[0].last_add, status[0].timer, status[0].due = -np.inf, np.inf, -np.inf

    def ints(*shape: int, fill: int = 0) -> Ints:
        return np.full(shape, fill, np.int64)

    def floats(*shape: int) -> Floats:
        return np.zeros(shape)

    return NodeWorld(
        strict=queue == "strict", passing=queue == "pass", ranked=turn is not None,
        slurm=queue == "slurm" and fleet.flexible is None, placement=placement, switching=switching is not None,
        flexible=fleet.flexible is not None, changing=len(plan[0]) > 0, before_change=before_change,
        idle_s=float(how.idle_s), lead_s=float(how.lead_s), look_s=float(how.look_s), cool_s=float(how.cool_s),
        most_waiting=count if most_waiting is None else most_waiting,
        kept=np.array([*how.kept, *[0] * pools][:pools], np.int64),
        ready=kept.ready_s, run=kept.run_s, turn=kept.run_s if turn is None else turn, limit=kept.limit_s,
        profile=kept.profile, nodes=kept.nodes,
        per=kept.per, rest=kept.rest, kind=kind, hold=hold.astype(np.int64),
        larger=serving, line=np.where(sliced & (fleet.flexible is None), NO_NODE, 0), part=sliced.astype(np.int64),
        apart=net.slowdowns,
        domain=np.ascontiguousarray(net.domains),
        full=ints(domains), last=ints(domains), spare=ints(domains),
        head=ints(PARTS, fill=NO_NODE), wants=ints(PARTS), shadow=floats(PARTS), shut=ints(PARTS),
        factor=np.ones(count),
        weight=fleet.weights, gpus=fleet.gpus, capacity=np.ascontiguousarray(fleet.capacity),
        pool=fleet.first.copy(), state=ints(nodes), come=floats(nodes), since=floats(nodes), used=floats(nodes),
        busy=ints(nodes), free=ints(nodes, wide), first_of=ints(nodes, fill=NO_NODE),
        on_node=ints(int(hold[-1]), fill=NO_NODE), amount=ints(int(hold[-1])), next_of=ints(int(hold[-1]),
        fill=NO_NODE),
        before=ints(int(hold[-1]), fill=NO_NODE), owner=ints(int(hold[-1])), start=np.full(count, np.nan),
        served=ints(count, fill=NO_NODE), queue=ints(count), ends=table(EVENT, count),
        chosen=ints(int(kept.nodes.max(initial=0))), given=ints(int(kept.nodes.max(initial=0))), taken=ints(nodes),
        blocked=ints(max(wide, PARTS)),
        wanted=ints(wide), of_kind=ints(kinds),
        asks=asks[:, 0].copy(), dead=ints(kinds), lost=ints(kinds),
        tried=ints(kinds, ranks), tight=floats(kinds, ranks), tier=ints(kinds, ranks),
        at=floats(nodes), in_shadow=ints(nodes),
        moves=ints(nodes), asked=ints(PARTS, nodes, fill=NO_NODE), moved=ints(PARTS, nodes), then=floats(PARTS, nodes),
        reserved=np.full(nodes, np.inf),
        extra=ints(nodes), virtual=ints(nodes, wide), claimed=ints(nodes), idle=ints(pools),
        cuts=_cuts(fleet), plan=plan[0], plan_of=plan[1], stage=ints(nodes), drain=ints(nodes), power=ints(nodes),
        made_for=ints(nodes, fill=NO_NODE), log=table(CHANGE, ROOM + 8 * nodes + 2 * len(plan[0])), status=status,
    )  # fmt: skip


def _cuts(fleet: NodeFleet) -> Cuts:
    """GPUs that are cut as jobs come and go; without rows where there are none."""
    how, wide = fleet.flexible, len(fleet.profiles)
    gpus, none = 0 if how is None else int(fleet.gpus.sum()), np.zeros((0, wide), np.int64)
    tables = InstanceSets(none, none, none, none, none) if how is None else how.places
    return Cuts(
        pools=np.array([] if how is None else how.pools, np.int64), places=tables,
        make_s=0.0 if how is None else float(how.make_s), whole_s=0.0 if how is None else float(how.whole_s),
        first=np.concatenate([[0], np.cumsum(fleet.gpus)]).astype(np.int64),
        state=np.zeros(gpus, np.int64), paper=np.zeros(gpus, np.int64), was_cut=np.zeros(gpus, np.int64),
        owner=np.full((gpus, tables.take.shape[1]), NO_NODE),
    )  # fmt: skip


def _on(pages: Sequence[np.ndarray], fleet: NodeFleet) -> pl.DataFrame:
    """Intervals in which nodes were on or coming; what was on when nothing more happened stays on."""
    schema = {"node": pl.Int64, "pool": pl.Int64, "from_s": pl.Float64, "until_s": pl.Float64}
    if not pages:
        placed = [(node, pool) for node, pool in enumerate(fleet.first.tolist()) if pool != NO_NODE]
        return pl.DataFrame([(*one, -np.inf, np.inf) for one in placed], schema=schema, orient="row")
    log = np.concatenate(pages)
    by_node = np.argsort(log["node"], kind="stable")
    node, at, on = log["node"][by_node], log["at"][by_node], log["on"][by_node]
    begins = np.flatnonzero(on == 1)
    follows = begins + 1
    ended = (follows < len(on)) & (node[np.minimum(follows, len(on) - 1)] == node[begins])
    until = np.where(ended, at[np.minimum(follows, len(on) - 1)], np.inf)
    columns = (node[begins], log["pool"][by_node][begins], at[begins], until)
    return pl.DataFrame(dict(zip(schema, columns, strict=True)), schema=schema)


def play_shared(
    requests: NodeRequests,
    fleet: NodeFleet,
    sharing: Sharing,
    *,
    queue: str = "easy",
    placement: str = "best",
    larger: Sequence[Sequence[int]] | None = None,
) -> SharedOutcome:
    """Start requests as :func:`play` does, where teams have quotas, tiers and stops, and GPUs fail.

    Nodes that teams share stay on, and as they are cut. A request runs anew from its last checkpoint where it was
    stopped for others or failed. Failures come by the number of GPUs that it holds or has a slice of, by the same draws
    whatever the rules are.

    Parameters
    ----------
    requests, fleet, queue, placement, larger
        As of :func:`play`.
    sharing : Sharing
        The rules.

    Returns
    -------
    SharedOutcome

    Raises
    ------
    ScenarioError
        If the queue or the placement is unknown, or a request fails so often that it never ends.

    Examples
    --------
    >>> asked = NodeRequests([0, 1, 2], [0, 1, 2], [100, 100, 10], [100, 100, 10], [0, 0, 0], [6, 2, 4], [1, 1, 1])
    >>> teams = (QuotaGroup(4.0, parent=2), QuotaGroup(4.0, parent=2), QuotaGroup(0.0))
    >>> lent = play_shared(asked, NodeFleet.whole([8]), Sharing([0, 0, 1], [0, 0, 0], teams))
    >>> lent.start_s.tolist(), lent.stops.tolist()
    ([0.0, 1.0, 100.0], [0, 0, 0])
    >>> back = play_shared(asked, NodeFleet.whole([8]), Sharing([0, 0, 1], [0, 0, 0], teams, reclaim=True))
    >>> back.start_s.tolist(), back.end_s.tolist(), back.stops.tolist()
    ([0.0, 1.0, 2.0], [112.0, 101.0, 12.0], [1, 0, 0])
    """
    playing = Playing.of(requests, fleet, queue, placement, larger)
    if len(sharing.team) != len(requests) or fleet.flexible is not None:
        expected = f"{len(requests)} teams, one for each request, on nodes without MIG on demand"
        raise ScenarioError("sharing", expected, f"{len(sharing.team)}", "Give each its team.")
    tenancy = _tenancy(requests, fleet, sharing, playing.order)
    stopped: list[np.ndarray] = []
    if playing.world is not None:
        from gpuplanner.simulator.multi_tenant_loop import advance_shared

        world, finished = playing.world, False
        while not finished:
            finished = advance_shared(world, tenancy)
            playing.turn_page()
            stopped.append(tenancy.stopped[: tenancy.status[0].stopped].copy())
            tenancy.status[0].stopped = 0
        _refuse_stuck(tenancy)
    return _outcome(playing, tenancy, stopped)


def _tenancy(requests: NodeRequests, fleet: NodeFleet, sharing: Sharing, order: Ints) -> Tenancy:
    """Fill the tables of the requests that are played, in the order of the queue."""
    count, status, jobs = len(order), table(TENANCY_STATUS, 1), table(TENANT_JOB, len(order))
    total = requests.total[order]
    shares = fleet.weights if sharing.shares is None else np.asarray(sharing.shares)
    failures, marks = sharing.failures, sharing.checkpoints
    mtbf = np.full(count, np.inf) if failures is None else failures.mtbf_s(1) / total
    every = np.full(count, np.inf if marks.interval_s is None else float(marks.interval_s))
    if marks.interval_s is None and failures is not None:
        every = np.sqrt(2.0 * marks.write_s * failures.mtbf_s(1) / total)
    jobs.team, jobs.tier, jobs.row = sharing.team[order], sharing.tier[order], order
    jobs.units = np.round(UNITS * shares).astype(np.int64)[requests.profile[order]] * total
    jobs.left, jobs.every, jobs.mtbf = requests.run_s[order], every, mtbf
    jobs.overhead = sharing.preemption.overhead_s
    jobs.first = jobs.end = jobs.barred = np.nan
    status.fair, status.by_tier = sharing.order == "fair", sharing.tiers_preempt
    status.reclaim = sharing.reclaim
    status.keep = sharing.head_keeps_quota
    status.decay = np.log(2) / sharing.fair_share.half_life_s
    status.min_run, status.write = sharing.preemption.min_run_s, marks.write_s
    status.restart, status.seed = (0.0, 0) if failures is None else (failures.restart_s, failures.seed)
    status.wake, status.stuck = np.inf, NO_GROUP
    victims, aside, heads, spare = np.zeros((4, count), np.int64)
    # In one instant no more fail than ran as it began.
    stopped = table(STOPPED, 2 * count + 64)
    assert sharing.hours is not None
    jobs.hours = sharing.hours[order]
    hours = np.full((len(sharing.openings), 1 + max(map(len, sharing.openings), default=0)), np.inf)
    for row, instants in zip(hours, sharing.openings, strict=True):
        row[: len(instants)] = instants
    passed = np.zeros(len(hours), np.int64)
    groups = groups_of(sharing.groups)
    return Tenancy(groups, jobs, victims, aside, heads, spare, hours, passed, stopped, status)


def groups_of(groups: Sequence[QuotaGroup]) -> Table:
    """Teams and cohorts as the loop takes them.

    Examples
    --------
    >>> found = groups_of([QuotaGroup(4.0, lend=1.0, parent=2), QuotaGroup(2.0, parent=2), QuotaGroup(1.0)])
    >>> (found.local / UNITS).tolist(), (found.subtree / UNITS).tolist()
    ([3.0, 0.0, 0.0], [4.0, 2.0, 4.0])
    """
    found = table(GROUP, len(groups))
    for row, one in zip(found, groups, strict=True):
        row.nominal = round(UNITS * (one.gpus or 0.0))
        row.borrow = UNLIMITED if one.borrow is None else round(UNITS * one.borrow)
        row.parent, row.weight = one.parent, one.weight
        row.limited = one.limited
    above = set(found.parent.tolist())
    found.limited[[number in above for number in range(len(groups))]] = 1
    depth = [_depth(groups, number) for number in range(len(groups))]
    found.subtree = found.nominal
    for number in sorted(range(len(groups)), key=lambda number: -depth[number]):
        row, lend = found[number], groups[number].lend
        row.local = 0 if lend is None else max(row.subtree - round(UNITS * lend), 0)
        if row.parent != NO_GROUP:
            found[row.parent].subtree += row.subtree - row.local
    return found


def _depth(groups: Sequence[QuotaGroup], number: int) -> int:
    parent = groups[number].parent
    return 0 if parent == NO_GROUP else 1 + _depth(groups, parent)


def _refuse_stuck(tenancy: Tenancy) -> None:
    """Raise if a request fails so often that it never ends."""
    stuck = int(tenancy.status[0].stuck)
    if stuck != NO_GROUP:
        from gpuplanner.simulator.multi_tenant_loop import MOST_STARTS

        where = f"request {int(tenancy.jobs[stuck].row)}"
        expected = f"an end after at most {MOST_STARTS} starts"
        todo = "Lower the rate of failures, or save work more often."
        raise ScenarioError(where, expected, "one that is stopped before it gets on", todo)


def _outcome(playing: Playing, tenancy: Tenancy, stopped: list[np.ndarray]) -> SharedOutcome:
    jobs, order, count = tenancy.jobs, playing.order, playing.count

    def spread(values: np.ndarray, fill: float = np.nan) -> np.ndarray:
        found = np.full(count, fill, values.dtype)
        found[order] = values
        return found

    plain = playing.outcome()
    running = np.zeros(len(order), bool)
    if playing.world is not None:
        world = playing.world
        running[world.ends.who[: world.status[0].running]] = True
    last = np.where(running | ~np.isnan(jobs.end), jobs.begun, np.nan)
    log = np.concatenate(stopped) if stopped else table(STOPPED, 0)
    times = {f"{name}_s": log[name] for name in ("begun", "at", "lost")}
    return SharedOutcome(
        start_s=spread(jobs.first), on=plain.on, held=plain.held, factor=plain.factor, changes=plain.changes,
        end_s=spread(jobs.end),
        queued_s=spread(jobs.queued, 0.0), lost_s=spread(jobs.lost, 0.0), stops=spread(jobs.stops, 0),
        failures=spread(jobs.failures, 0),
        stopped=pl.DataFrame({"request": order[log["request"]], **times, "failed": log["failed"] == 1}),
        last_s=spread(last), slowed_s=spread(jobs.slowed, 0.0),
    )  # fmt: skip
