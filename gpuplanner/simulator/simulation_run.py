"""Simulation of requests on nodes, for one or several tenants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import polars as pl

from gpuplanner.core.errors import ScenarioError, resolve_name
from gpuplanner.simulator.planned_layout_changes import (
    LayoutChanges,
    tabulate_change_outcomes,
    tabulate_planned_changes,
)
from gpuplanner.simulator.scheduling_rules import NO_QUOTA_GROUP, QuotaGroup, SharedOutcome, Sharing
from gpuplanner.simulator.simulation_inputs import (
    NodeAutoscaling,
    NodeFleet,
    NodeNetwork,
    NodeRequests,
    Outcome,
    request_kinds,
    serving_profile_table,
)
from gpuplanner.simulator.simulation_state import (
    END_EVENT_DTYPE_BY_COLUMN,
    EVENT_LOOP_STATUS_DTYPE_BY_COLUMN,
    NO_INDEX,
    POWER_LOG_DTYPE_BY_COLUMN,
    QUOTA_DTYPE_BY_COLUMN,
    QUOTA_UNITS_PER_GPU,
    STOPPED_RUN_DTYPE_BY_COLUMN,
    TEAM_REQUEST_DTYPE_BY_COLUMN,
    TEAM_STATUS_DTYPE_BY_COLUMN,
    UNLIMITED_UNITS,
    DynamicMigState,
    Floats,
    InstanceSets,
    Ints,
    SimulationState,
    Table,
    TeamState,
    make_table,
)

QUEUE_RULES = ("easy", "strict", "slurm", "pass")
"""Names of the queue rules: EASY backfill, strict FIFO, Slurm's backfill, every request that fits."""
PLACEMENT_RULES = ("best", "fullest", "lowest", "consolidate", "spread")
"""Names of the placement rules, in the order of their numbers: best fit, most used node, lowest number, within one
network domain where possible, spread.
"""
NUMBER_OF_QUEUES = 2
"""Queues with a head of their own, in Slurm partitions: full GPUs (0), and MIG slices (1); with dynamic MIG only 0."""
POWER_LOG_ROWS = 1 << 14
"""Rows of the power log, one a node that powers up or down: when it is full, the event loop returns to empty it."""


def simulate_requests(
    requests: NodeRequests,
    fleet: NodeFleet,
    *,
    queue: str = "easy",
    order: Floats | None = None,
    placement: str = "best",
    larger: Sequence[Sequence[int]] | None = None,
    switching: NodeAutoscaling | None = None,
    most_waiting: int | None = None,
    changes: LayoutChanges | None = None,
) -> Outcome:
    """Simulate requests on nodes in the order of the queue, until no more can start.

    The queue goes by rank where ranks are given, then by readiness, submission and row.

    MIG slices: a request waits for those before it that ask for the same profile. Full GPUs: in a ``"strict"`` queue
    the first request that has to wait blocks all others; in an ``"easy"`` one others pass it where by their time limits
    they do not delay it [1]_; in a ``"pass"`` queue all that fit start. In ``"slurm"`` a request, for slices as well,
    may pass if it keeps off the nodes on which the first waiting one will start; powered-down nodes are allocated at
    once, and requests stay with them [2]_.

    Nodes that are cordoned or partitioned for a planned change take no requests, and none is reserved. Where
    ``changes.before_change`` is set, requests that still wait after the pass over the queue start on cordoned nodes if
    by their time limits, on nodes of the widest network tier, they end before the changes. None has a reservation
    there, so none waits there for those before it.

    Within one instant requests end, changes end, changes begin, requests become ready, and requests start.

    Parameters
    ----------
    requests : NodeRequests
        Requests of jobs.
    fleet : NodeFleet
        Nodes.
    queue : {"easy", "strict", "slurm", "pass"}
        Queue rule: which requests may pass one that has to wait.
    order : array of float, shape (n_requests,), optional
        Ranks, the lowest first; None: first come, first served.
    placement : {"best", "fullest", "lowest", "consolidate", "spread"}
        Which nodes go first: with least of the profile unallocated, with most in use, of the lowest number, those of
        the narrowest network domain that has enough, or with most unallocated.
    larger : sequence of sequence of int, optional
        For each profile the larger ones that may serve in its place, in this order; None: exact profiles alone.
    switching : NodeAutoscaling, optional
        Autoscaling of nodes; None: they stay in the pool in which they begin.
    most_waiting : int, optional
        The simulation is given up when more requests wait at once: those that wait then never start.
    changes : LayoutChanges, optional
        Planned changes of nodes; not together with `switching` or dynamic MIG.

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
    >>> requests = NodeRequests([0, 1, 2], [0, 1, 2], [100, 100, 10], [100, 100, 10], [0, 0, 0], [8, 8, 4], [1, 1, 1])
    >>> simulate_requests(requests, NodeFleet.of_full_gpus([8, 4])).start_s.tolist()
    [0.0, 100.0, 2.0]
    >>> power_saving = NodeAutoscaling(idle_s=60.0, lead_s=300.0)
    >>> outcome = simulate_requests(requests, NodeFleet.of_full_gpus([8, 4]), switching=power_saving)
    >>> outcome.power_intervals.filter(node=1).rows()
    [(1, 0, -inf, 0.0), (1, 0, 2.0, 362.0)]
    """
    run = SimulationRun.prepare(requests, fleet, queue, placement, larger, order, switching, most_waiting, changes)
    run.process_events()
    return run.outcome()


def simulate_starts(
    requests: NodeRequests,
    fleet: NodeFleet,
    *,
    queue: str = "easy",
    order: Floats | None = None,
    placement: str = "best",
) -> Floats:
    """Simulate the starts of requests [s], shape (n_requests,), with arguments as of :func:`simulate_requests`.

    Examples
    --------
    >>> requests = NodeRequests([0, 1], [0, 1], [9, 9], [9, 9], [0, 0], [8, 8], [1, 1])
    >>> simulate_starts(requests, NodeFleet.of_full_gpus([8])).tolist()
    [0.0, 9.0]
    """
    run = SimulationRun.prepare(requests, fleet, queue, placement, None, order)
    run.process_events()
    return run.start_s


@dataclass(eq=False)
class SimulationRun:
    """A simulation run in progress.

    - ``fleet``: Nodes.
    - ``count``: Requests in all.
    - ``order``: Rows of the requests that are simulated, in the order of the queue.
    - ``state``: State of the event loop; None where nothing can be simulated.
    - ``planned``: Planned changes.
    - ``power_logs``: Power changes of nodes so far, in parts.
    """

    fleet: NodeFleet
    count: int
    order: Ints
    state: SimulationState | None
    planned: Table
    power_logs: list[np.ndarray] = field(default_factory=list)

    @classmethod
    def prepare(
        cls,
        requests: NodeRequests,
        fleet: NodeFleet,
        queue: str,
        placement: str,
        larger: Sequence[Sequence[int]] | None,
        order: Floats | None = None,
        switching: NodeAutoscaling | None = None,
        most_waiting: int | None = None,
        changes: LayoutChanges | None = None,
    ) -> Self:
        """Check the arguments, which are as of :func:`simulate_requests`, and set up the state of the event loop."""
        if changes is not None and not (switching is None and fleet.flexible is None):
            expected = "nodes that stay, and requests that start on any node with capacity"
            got = "switching or flexible pools beside them"
            raise ScenarioError("planned changes of nodes", expected, got, "Leave one of them out.")
        plan = tabulate_planned_changes(changes, fleet)
        rows, kinds = _startable_rows(requests, fleet, larger)
        queue = resolve_name(queue, QUEUE_RULES, subject="queue", error=ScenarioError)
        rank = None if order is None else np.asarray(order, np.float64)[rows]
        rule = PLACEMENT_RULES.index(resolve_name(placement, PLACEMENT_RULES, subject="placement", error=ScenarioError))

        state = None
        if len(rows) or changes is not None:
            starts_before_change = changes is not None and changes.before_change
            state = _initial_state(
                requests.select(rows), kinds, fleet, queue, rank, rule, larger, switching, most_waiting, plan,
                starts_before_change,
            )  # fmt: skip
        return cls(fleet, len(requests), rows, state, plan[0])

    def process_events(self) -> None:
        """Process all events."""
        if self.state is not None:
            from gpuplanner.simulator.event_loop import run_events

            is_finished = False
            while not is_finished:
                is_finished = run_events(self.state)
                self.collect_power_log()

    @property
    def start_s(self) -> Floats:
        """Start of each request, by row; NaN: it never started [s]."""
        start_s = np.full(self.count, np.nan)
        if self.state is not None:
            start_s[self.order] = self.state.start_s
        return start_s

    def collect_power_log(self) -> None:
        """Keep the rows of the event loop's power log, and empty it."""
        assert self.state is not None
        self.power_logs.append(self.state.power_log[: self.state.status[0].logged].copy())
        self.state.status[0].logged = 0

    def outcome(self) -> Outcome:
        """Collect starts, power intervals, allocations and planned changes, by the rows of the requests."""
        start_s, state = self.start_s, self.state
        power_intervals, changes = _power_intervals(self.power_logs, self.fleet), tabulate_change_outcomes(self.planned)
        if state is None:
            allocations = pl.DataFrame(schema=dict.fromkeys(("request", "node", "profile", "amount"), pl.Int64))
            return Outcome(start_s, power_intervals, allocations, start_s.copy(), changes)

        factor = start_s.copy()
        factor[self.order] = state.run_factor
        is_used = state.allocated_node != NO_INDEX
        request = state.allocated_request[is_used]
        allocations = pl.DataFrame({
            "request": self.order[request], "node": state.allocated_node[is_used],
            "profile": state.served_profile[request], "amount": state.amount[is_used],
        })  # fmt: skip
        return Outcome(start_s, power_intervals, allocations, np.where(np.isnan(start_s), np.nan, factor), changes)


def _startable_rows(
    requests: NodeRequests, fleet: NodeFleet, larger: Sequence[Sequence[int]] | None
) -> tuple[Ints, tuple[Ints, Ints]]:
    """Find the rows of the requests that could start on an empty fleet, in queue order, and their kinds."""
    max_capacity = fleet.capacity.max(axis=1)
    serving_profiles = serving_profile_table(max_capacity.shape[1], larger)
    kinds, kind = request_kinds(requests)
    can_start = np.zeros(len(kinds), bool)
    for number, (profile, per_node, nodes, on_last_node) in enumerate(kinds.tolist()):
        for serving in serving_profiles[profile][serving_profiles[profile] != NO_INDEX]:
            capacity = max_capacity[:, serving]
            fit, fit_last = int((capacity >= per_node).sum()), int((capacity >= on_last_node).sum())
            can_start[number] |= fit >= nodes - 1 and fit_last >= nodes
    # As np.lexsort, which takes twice as long.
    rows = np.argsort(requests.submit_s, kind="stable")
    rows = rows[np.argsort(requests.ready_s[rows], kind="stable")]
    rows = np.asarray(rows[can_start[kind[rows]]])
    return rows, (kinds[can_start], (np.cumsum(can_start) - 1)[kind[rows]])


def _initial_state(
    requests: NodeRequests,
    kinds: tuple[Ints, Ints],
    fleet: NodeFleet,
    queue: str,
    rank: Floats | None,
    placement: int,
    larger: Sequence[Sequence[int]] | None,
    switching: NodeAutoscaling | None,
    most_waiting: int | None,
    plan: tuple[Table, Ints],
    starts_before_change: bool,
) -> SimulationState:
    """Set up the state of the event loop.

    Parameters
    ----------
    requests : NodeRequests
        Requests that are simulated, in the order of the queue.
    kinds : tuple of arrays of int
        Their kinds, as of :func:`request_kinds`.
    fleet, queue, larger, switching, most_waiting
        As of :func:`simulate_requests`.
    rank : array of float, shape (n_requests,), optional
        Ranks of these requests.
    placement : int
        Number of the placement rule, by its position in :data:`PLACEMENT_RULES`.
    plan : tuple of (Table, array of int)
        As of :func:`tabulate_planned_changes`.
    starts_before_change : bool
        Whether requests may start on cordoned nodes.
    """
    nodes, pools, profiles = fleet.capacity.shape
    serving_profiles = serving_profile_table(profiles, larger)
    preferences = serving_profiles.shape[1]
    kind_columns, kind = kinds
    count, n_kinds = len(requests), len(kind_columns)
    first_allocation = np.concatenate([[0], np.cumsum(requests.nodes)]).astype(np.int64)
    allocations, max_nodes = int(first_allocation[-1]), int(requests.nodes.max(initial=0))
    scaling = switching or NodeAutoscaling(0.0, 0.0)
    is_slice = np.arange(profiles) > 0
    network = fleet.network or NodeNetwork(np.zeros((0, nodes), np.int64), np.ones(2))
    domains = int(network.domains.max(initial=-1)) + 1
    largest, is_fixed = int(fleet.capacity.max(initial=0)), switching is None and fleet.flexible is None
    counts_nodes = is_fixed and not len(plan[0]) and largest < nodes
    status = make_table(EVENT_LOOP_STATUS_DTYPE_BY_COLUMN, 1)
    status[0].last_power_up_s = status[0].next_change_s = -np.inf
    status[0].next_power_down_s = np.inf

    def ints(*shape: int, fill: int = 0) -> Ints:
        return np.full(shape, fill, np.int64)

    def floats(*shape: int) -> Floats:
        return np.zeros(shape)

    return SimulationState(
        # Rules
        is_strict=queue == "strict", all_may_pass=queue == "pass", is_ranked=rank is not None,
        is_slurm=queue == "slurm" and fleet.flexible is None, placement=placement, is_autoscaled=switching is not None,
        has_dynamic_mig=fleet.flexible is not None, has_changes=len(plan[0]) > 0,
        counts_nodes=counts_nodes,
        starts_before_change=starts_before_change,
        idle_s=float(scaling.idle_s), power_up_s=float(scaling.lead_s), poll_s=float(scaling.look_s),
        cooldown_s=float(scaling.cool_s), max_waiting=count if most_waiting is None else most_waiting,
        min_idle_nodes=np.array([*scaling.kept, *[0] * pools][:pools], np.int64),
        # Requests
        ready_s=requests.ready_s, run_s=requests.run_s, rank=requests.run_s if rank is None else rank,
        limit_s=requests.limit_s, profile=requests.profile, node_count=requests.nodes, per_node=requests.per,
        on_last_node=requests.on_last_node, kind=kind, first_allocation=first_allocation,
        serving_profiles=serving_profiles, gpu_fraction=fleet.weights,
        queue_of_profile=np.where(is_slice & (fleet.flexible is None), NO_INDEX, 0),
        partition_of_profile=is_slice.astype(np.int64),
        # Network and nodes
        slowdown=network.slowdowns, domain=np.ascontiguousarray(network.domains), gpus=fleet.gpus,
        capacity=np.ascontiguousarray(fleet.capacity), pool=fleet.first.copy(), node_state=ints(nodes),
        online_at_s=floats(nodes), idle_since_s=floats(nodes), used_gpus=floats(nodes), allocation_count=ints(nodes),
        unallocated=ints(nodes, profiles), nodes_by_unallocated=ints(profiles, largest + 1 if counts_nodes else 0),
        node_allocation=ints(nodes, fill=NO_INDEX),
        # Allocations
        allocated_node=ints(allocations, fill=NO_INDEX), amount=ints(allocations),
        next_allocation=ints(allocations, fill=NO_INDEX), previous_allocation=ints(allocations, fill=NO_INDEX),
        allocated_request=ints(allocations),
        # Starts and the queue
        start_s=np.full(count, np.nan), run_factor=np.ones(count), served_profile=ints(count, fill=NO_INDEX),
        queue=ints(count), ends=make_table(END_EVENT_DTYPE_BY_COLUMN, count), chosen_node=ints(max_nodes),
        chosen_amount=ints(max_nodes), chosen_by=ints(nodes), is_blocked=ints(max(profiles, NUMBER_OF_QUEUES)),
        head=ints(NUMBER_OF_QUEUES, fill=NO_INDEX), head_profile=ints(NUMBER_OF_QUEUES),
        shadow_s=floats(NUMBER_OF_QUEUES),
        is_closed=ints(NUMBER_OF_QUEUES), is_wanted=ints(profiles), waiting_of_kind=ints(n_kinds),
        kind_profile=kind_columns[:, 0].copy(), is_unplaceable=ints(n_kinds),
        # Cached searches
        searched_at=ints(n_kinds, preferences), infeasible_from_s=floats(n_kinds, preferences),
        found_tier=ints(n_kinds, preferences), is_unprovisionable=ints(n_kinds), room_s=floats(nodes),
        node_changes=ints(nodes), cached_need=ints(NUMBER_OF_QUEUES, nodes, fill=NO_INDEX),
        cached_at=ints(NUMBER_OF_QUEUES, nodes),
        cached_room_s=floats(NUMBER_OF_QUEUES, nodes), is_shadow_node=ints(nodes), reserved_from_s=np.full(nodes,
        np.inf),
        extra=ints(nodes), domain_nodes=ints(domains), domain_last_nodes=ints(domains),
        domain_unallocated=ints(domains), unclaimed=ints(nodes, profiles), is_claimed=ints(nodes),
        idle_nodes=ints(pools), mig=_dynamic_mig_state(fleet),
        # Planned changes
        planned=plan[0], first_change=plan[1], stage=ints(nodes), next_drain=ints(nodes),
        next_power_change=ints(nodes), partitioned_for=ints(nodes, fill=NO_INDEX),
        power_log=make_table(POWER_LOG_DTYPE_BY_COLUMN, POWER_LOG_ROWS + 8 * nodes + 2 * len(plan[0])), status=status,
    )  # fmt: skip


def _dynamic_mig_state(fleet: NodeFleet) -> DynamicMigState:
    """Set up the state of GPUs with dynamic MIG; without rows where there are none."""
    flexible, first_gpu = fleet.flexible, np.concatenate([[0], np.cumsum(fleet.gpus)]).astype(np.int64)
    if flexible is None:
        no_sets = np.zeros((0, len(fleet.profiles)), np.int64)
        sets, gpus = InstanceSets(no_sets, no_sets, no_sets, no_sets, no_sets), 0
        pools, make_s, restore_s = np.zeros(0, np.int64), 0.0, 0.0
    else:
        sets, gpus = flexible.places, int(fleet.gpus.sum())
        pools = np.array(flexible.pools, np.int64)
        make_s, restore_s = float(flexible.make_s), float(flexible.whole_s)
    return DynamicMigState(
        is_dynamic_pool=pools, instance_sets=sets, make_s=make_s, restore_s=restore_s, first_gpu=first_gpu,
        gpu_set=np.zeros(gpus, np.int64), planned_set=np.zeros(gpus, np.int64),
        slice_request=np.full((gpus, sets.after_removing.shape[1]), NO_INDEX),
        was_partitioned=np.zeros(gpus, np.int64),
    )  # fmt: skip


def _power_intervals(power_logs: Sequence[np.ndarray], fleet: NodeFleet) -> pl.DataFrame:
    """Tabulate the intervals in which nodes were on or powering up; nodes that are on at the last event stay on.

    Returns
    -------
    polars.DataFrame
        ``node, pool, from_s, until_s``. [s]
    """
    schema = {"node": pl.Int64, "pool": pl.Int64, "from_s": pl.Float64, "until_s": pl.Float64}
    if not power_logs:
        pools = enumerate(fleet.first.tolist())
        rows = [(node, pool, -np.inf, np.inf) for node, pool in pools if pool != NO_INDEX]
        return pl.DataFrame(rows, schema=schema, orient="row")

    log = np.concatenate(power_logs)
    log = log[np.argsort(log["node"], kind="stable")]
    node, time_s = log["node"], log["time_s"]
    begins = np.flatnonzero(log["is_on"] == 1)
    # A node that was powered up is powered down by its next row, if it has one.
    following = np.minimum(begins + 1, len(log) - 1)
    has_end = (begins + 1 < len(log)) & (node[following] == node[begins])
    until_s = np.where(has_end, time_s[following], np.inf)
    columns = (node[begins], log["pool"][begins], time_s[begins], until_s)
    return pl.DataFrame(dict(zip(schema, columns, strict=True)), schema=schema)


def simulate_shared_requests(
    requests: NodeRequests,
    fleet: NodeFleet,
    sharing: Sharing,
    *,
    queue: str = "easy",
    placement: str = "best",
    larger: Sequence[Sequence[int]] | None = None,
) -> SharedOutcome:
    """Simulate requests of several teams with quotas, tiers, preemption and GPU failures.

    Nodes stay on, in the pools in which they begin. A request that was preempted or failed starts again from its last
    checkpoint. Its failure rate goes by the GPUs of which it has all or a slice; the draws are the same under all
    rules.

    Parameters
    ----------
    requests, fleet, queue, placement, larger
        As of :func:`simulate_requests`.
    sharing : Sharing
        Rules by which teams share the nodes.

    Returns
    -------
    SharedOutcome

    Raises
    ------
    ScenarioError
        If the queue or the placement is unknown, or a request fails so often that it never ends.

    Examples
    --------
    >>> requests = NodeRequests([0, 1, 2], [0, 1, 2], [100, 100, 10], [100, 100, 10], [0, 0, 0], [6, 2, 4], [1, 1, 1])
    >>> fleet = NodeFleet.of_full_gpus([8])
    >>> teams = (QuotaGroup(4.0, parent=2), QuotaGroup(4.0, parent=2), QuotaGroup(0.0))
    >>> lending = simulate_shared_requests(requests, fleet, Sharing([0, 0, 1], [0, 0, 0], teams))
    >>> lending.start_s.tolist(), lending.stops.tolist()
    ([0.0, 1.0, 100.0], [0, 0, 0])
    >>> rules = Sharing([0, 0, 1], [0, 0, 0], teams, reclaim=True)
    >>> reclaiming = simulate_shared_requests(requests, fleet, rules)
    >>> reclaiming.start_s.tolist(), reclaiming.end_s.tolist(), reclaiming.stops.tolist()
    ([0.0, 1.0, 2.0], [112.0, 101.0, 12.0], [1, 0, 0])
    """
    run = SimulationRun.prepare(requests, fleet, queue, placement, larger)
    if len(sharing.team) != len(requests) or fleet.flexible is not None:
        expected = f"{len(requests)} teams, one for each request, on nodes without MIG on demand"
        raise ScenarioError("sharing", expected, f"{len(sharing.team)}", "Give each its team.")
    tenancy = _initial_team_state(requests, fleet, sharing, run.order)
    stopped: list[np.ndarray] = []
    if run.state is not None:
        from gpuplanner.simulator.multi_tenant_event_loop import run_shared_events

        is_finished = False
        while not is_finished:
            is_finished = run_shared_events(run.state, tenancy)
            run.collect_power_log()
            stopped.append(tenancy.stopped[: tenancy.status[0].stopped_rows].copy())
            tenancy.status[0].stopped_rows = 0
        _require_progress(tenancy)
    return _shared_outcome(run, tenancy, stopped)


def _initial_team_state(requests: NodeRequests, fleet: NodeFleet, sharing: Sharing, order: Ints) -> TeamState:
    """Set up the state of teams, quotas and their requests for the event loop.

    Parameters
    ----------
    requests : NodeRequests
        All requests.
    fleet : NodeFleet
        Nodes.
    sharing : Sharing
        Rules by which teams share the nodes.
    order : array of int, shape (n_simulated,)
        Rows of the requests that are simulated, in the order of the queue.
    """
    count, total = len(order), requests.total[order]
    failures, checkpoints = sharing.failures, sharing.checkpoints
    mtbf_s = np.full(count, np.inf) if failures is None else failures.mtbf_s(1) / total
    checkpoint_s = np.full(count, np.inf if checkpoints.interval_s is None else float(checkpoints.interval_s))
    if checkpoints.interval_s is None and failures is not None:
        checkpoint_s = np.sqrt(2.0 * checkpoints.write_s * failures.mtbf_s(1) / total)
    shares = fleet.weights if sharing.shares is None else np.asarray(sharing.shares)
    units = np.round(QUOTA_UNITS_PER_GPU * shares).astype(np.int64)

    jobs = make_table(TEAM_REQUEST_DTYPE_BY_COLUMN, count)
    jobs.team, jobs.tier, jobs.row = sharing.team[order], sharing.tier[order], order
    jobs.units = units[requests.profile[order]] * total
    jobs.work_left_s = requests.run_s[order]
    jobs.checkpoint_s = checkpoint_s
    jobs.mtbf_s = mtbf_s
    jobs.overhead_s = sharing.preemption.overhead_s
    jobs.first_start_s = jobs.end_s = jobs.reclaimed_s = np.nan

    status = make_table(TEAM_STATUS_DTYPE_BY_COLUMN, 1)
    status.is_fair_share = sharing.order == "fair"
    status.tiers_preempt = sharing.tiers_preempt
    status.reclaims = sharing.reclaim
    status.heads_keep_quota = sharing.head_keeps_quota
    status.decay_per_s = np.log(2) / sharing.fair_share.half_life_s
    status.min_run_s = sharing.preemption.min_run_s
    status.write_s = checkpoints.write_s
    if failures is not None:
        status.restart_s, status.seed = failures.restart_s, failures.seed
    status.next_pass_s, status.stuck_request = np.inf, NO_INDEX

    assert sharing.hours is not None
    jobs.hours = sharing.hours[order]
    hours_s = np.full((len(sharing.openings), 1 + max(map(len, sharing.openings), default=0)), np.inf)
    for row, instants in zip(hours_s, sharing.openings, strict=True):
        row[: len(instants)] = instants
    passed_hours = np.zeros(len(hours_s), np.int64)

    victims, over_quota, heads, merge_buffer = np.zeros((4, count), np.int64)
    # In one instant no more requests fail than were running when it began.
    stopped = make_table(STOPPED_RUN_DTYPE_BY_COLUMN, 2 * count + 64)
    groups = tabulate_quota_groups(sharing.groups)
    return TeamState(groups, jobs, victims, over_quota, heads, merge_buffer, hours_s, passed_hours, stopped, status)


def tabulate_quota_groups(groups: Sequence[QuotaGroup]) -> Table:
    """Tabulate teams and cohorts for the event loop, with ``QUOTA_DTYPE_BY_COLUMN``.

    Examples
    --------
    >>> table = tabulate_quota_groups([QuotaGroup(4.0, lend=1.0, parent=2), QuotaGroup(2.0, parent=2), QuotaGroup(1.0)])
    >>> (table.local / QUOTA_UNITS_PER_GPU).tolist(), (table.subtree / QUOTA_UNITS_PER_GPU).tolist()
    ([3.0, 0.0, 0.0], [4.0, 2.0, 4.0])
    """
    table = make_table(QUOTA_DTYPE_BY_COLUMN, len(groups))
    for row, group in zip(table, groups, strict=True):
        row.nominal = round(QUOTA_UNITS_PER_GPU * (group.gpus or 0.0))
        row.borrow = UNLIMITED_UNITS if group.borrow is None else round(QUOTA_UNITS_PER_GPU * group.borrow)
        row.parent, row.weight = group.parent, group.weight
        row.has_quota = group.has_quota
    parents = set(table.parent.tolist())
    table.has_quota[[number in parents for number in range(len(groups))]] = 1

    # From the leaves to the top: a cohort has its own quota and what the groups below it lend.
    table.subtree = table.nominal
    for number in sorted(range(len(groups)), key=lambda number: -_cohort_depth(groups, number)):
        row, lend = table[number], groups[number].lend
        row.local = 0 if lend is None else max(row.subtree - round(QUOTA_UNITS_PER_GPU * lend), 0)
        if row.parent != NO_QUOTA_GROUP:
            table[row.parent].subtree += row.subtree - row.local
    return table


def _cohort_depth(groups: Sequence[QuotaGroup], number: int) -> int:
    """Count the cohorts above a team or cohort."""
    parent = groups[number].parent
    return 0 if parent == NO_QUOTA_GROUP else 1 + _cohort_depth(groups, parent)


def _require_progress(team_state: TeamState) -> None:
    """Raise if a request fails so often that it never ends."""
    stuck_request = int(team_state.status[0].stuck_request)
    if stuck_request != NO_INDEX:
        from gpuplanner.simulator.multi_tenant_event_loop import MAX_STARTS_PER_REQUEST

        location = f"request {int(team_state.jobs[stuck_request].row)}"
        expected = f"an end after at most {MAX_STARTS_PER_REQUEST} starts"
        todo = "Lower the rate of failures, or save work more often."
        raise ScenarioError(location, expected, "one that is stopped before it gets on", todo)


def _shared_outcome(run: SimulationRun, team_state: TeamState, stopped: list[np.ndarray]) -> SharedOutcome:
    """Collect the outcome of a simulation with teams, by the rows of the requests."""
    jobs, order = team_state.jobs, run.order

    def by_row(values: np.ndarray, fill: float = np.nan) -> np.ndarray:
        column = np.full(run.count, fill, values.dtype)
        column[order] = values
        return column

    outcome = run.outcome()
    is_running = np.zeros(len(order), bool)
    if run.state is not None:
        is_running[run.state.ends.request[: run.state.status[0].running]] = True
    last_s = np.where(is_running | ~np.isnan(jobs.end_s), jobs.allocated_s, np.nan)
    log = np.concatenate(stopped) if stopped else make_table(STOPPED_RUN_DTYPE_BY_COLUMN, 0)
    times = {f"{name}_s": log[name] for name in ("begun", "at", "lost")}
    return SharedOutcome(
        start_s=by_row(jobs.first_start_s), power_intervals=outcome.power_intervals,
        allocations=outcome.allocations, factor=outcome.factor, changes=outcome.changes,
        end_s=by_row(jobs.end_s), queued_s=by_row(jobs.queued_s, 0.0),
        lost_s=by_row(jobs.lost_s, 0.0), stops=by_row(jobs.preemptions, 0), failures=by_row(jobs.failures, 0),
        stopped=pl.DataFrame({"request": order[log["request"]], **times, "failed": log["failed"] == 1}),
        last_s=by_row(last_s), slowed_s=by_row(jobs.slowed_s, 0.0),
    )  # fmt: skip
