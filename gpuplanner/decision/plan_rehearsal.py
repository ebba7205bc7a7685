"""Planned layout changes simulated on past weeks before they are recommended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import Scenario, parse_change_windows
from gpuplanner.core.scenario_fields import DRAINED_UNIT_BY_ACTUATOR
from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import WHOLE_GPU, LayoutPlan
from gpuplanner.core.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE
from gpuplanner.decision.requests import build_requests, count_layout_instances, list_larger_profiles, sort_profiles
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.hardware.mig_layouts import UNUSED_LAYOUT, parse_layout
from gpuplanner.hardware.repartitioning_cost import ChangeCost, find_change_cost
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.simulator.planned_changes import LayoutChanges
from gpuplanner.simulator.replications import draw_replication, past_jobs, simulator_jobs
from gpuplanner.simulator.scheduling_rules import Drain
from gpuplanner.simulator.simulated_fleet import NodeFleet, NodeNetwork, NodeRequests, Outcome
from gpuplanner.simulator.simulation_run import simulate_requests
from gpuplanner.simulator.simulation_state import Ints
from gpuplanner.usage.job_history import history

RESERVE_HOURS = 168.0
"""How long before a planned change the scheduler keeps jobs away that would run past it. [h]"""


def open_windows(scenario: Scenario, gpu_model: GpuModel) -> list[tuple[int, int]] | None:
    """Windows for changes as minutes of the day and minutes that they last; None without any."""
    if scenario.change_windows is None:
        return None
    windows, most = parse_change_windows(scenario.change_windows) or [], find_change_cost(scenario, gpu_model).longest_s
    short = [minutes for _, minutes in windows if minutes * SECONDS_PER_MINUTE <= most]
    if short:
        longest = f"{most / SECONDS_PER_MINUTE:g} min"
        expected = f"windows of more than {longest}, which a change takes once a node is empty"
        got = f"windows too short for any drain: {scenario.change_windows}"
        todo = "Choose longer windows, or an actuator that changes layouts faster."
        raise ScenarioError("scenario: change_windows", expected, got, todo)
    return windows


def drain_of(scenario: Scenario, change: ChangeCost) -> Drain:
    """How a planned change is made: what is emptied, how long ahead the scheduler reserves it, and when it is given up.

    That is the longest that the change waits for a GPU to empty; in a window, until there is just time left to cut.

    Examples
    --------
    >>> for scenario in (Scenario(), Scenario(actuator="nvidia-smi")):
    ...     drain = drain_of(scenario, find_change_cost(scenario, "H100-80GB-SXM5"))
    ...     print(drain.scope, drain.limit_s)
    node 3600.0
    gpu 3600.0
    """
    limit_s = change.drain_s.high
    if change.gpu_model is not None:
        for _, minutes in open_windows(scenario, change.gpu_model) or ():
            limit_s = min(limit_s, minutes * SECONDS_PER_MINUTE - change.longest_s)
    scope, ahead_s = DRAINED_UNIT_BY_ACTUATOR.get(scenario.actuator, "gpu"), RESERVE_HOURS * SECONDS_PER_HOUR
    return Drain(scope, ahead_s, limit_s, before_change=True)


@dataclass(frozen=True, eq=False)
class GpuCalendar:
    """Layout of each GPU in each slot of a plan.

    Attributes
    ----------
    layouts : tuple of str
        Layouts by number, the full GPU first.
    on : array of int, shape (n_slots, n_gpus)
        Layout of each GPU, node by node; -1: it is powered down.
    held : array of int, shape (n_slots, n_gpus)
        How each is partitioned, on or off; -1: it is released, and comes back as a full GPU.
    """

    layouts: tuple[str, ...]
    on: Ints
    held: Ints

    @classmethod
    def of(cls, layout_plan: pl.DataFrame, problem: PlanProblem) -> GpuCalendar:
        """Read a layout plan, node by node in the order of the problem."""
        place = {node: number for number, node in enumerate(problem.node_names)}
        slot_of = {time: slot for slot, time in enumerate(problem.slot_times)}
        plan = check_table(layout_plan, LayoutPlan, source="layout plan")
        layouts = (WHOLE_GPU, *sorted({*plan["layout"], *plan["parked"].drop_nulls()} - {UNUSED_LAYOUT, WHOLE_GPU}))
        on = np.full((problem.n_slots, len(place) * problem.gpus_per_node), -1)
        held = np.full_like(on, -1 if problem.prices is None else 0)
        for row in plan.iter_rows(named=True):
            gpu = place[row["node"]] * problem.gpus_per_node + row["gpu"]
            slots = slice(slot_of[row["slot_start"]], slot_of[row["slot_end"]])
            if row["layout"] != UNUSED_LAYOUT:
                on[slots, gpu] = held[slots, gpu] = layouts.index(row["layout"])
            elif row["parked"] is not None and problem.prices is not None:
                held[slots, gpu] = layouts.index(row["parked"])
        return cls(layouts, on, held)

    @property
    def held_before(self) -> Ints:
        """How each GPU was partitioned in the slot before; one that was released is a full GPU."""
        return np.asarray(np.maximum(np.concatenate([self.held[:1], self.held[:-1]]), 0))

    @property
    def repartitioned(self) -> NDArray[np.bool_]:
        """Which GPUs are partitioned otherwise as each slot begins; nothing is done to one that is released."""
        return np.asarray((self.held >= 0) & (self.held != self.held_before))


@dataclass(frozen=True, eq=False)
class PlannedNodes:
    """The nodes of a plan as the simulator takes them.

    Where GPUs are drained one by one, each is a node of its own: a job on several of them asks for that many nodes, and
    the domains of the network are the real nodes, so that jobs keep together.

    Attributes
    ----------
    pools : array of int, shape (n_pools, n_gpus_per_node)
        Layouts on a node in each pool, by number; -1: a GPU that is powered down.
    pool : array of int, shape (n_slots, n_nodes)
        Pool of each node in each slot.
    changes : LayoutChanges
        Changes from slot to slot. One that partitions a GPU drains its node; the others power GPUs down or up.
    """

    calendar: GpuCalendar
    pools: Ints
    pool: Ints
    changes: LayoutChanges

    @classmethod
    def of(cls, calendar: GpuCalendar, problem: PlanProblem, drain: Drain) -> PlannedNodes:
        """Plan the changes of a calendar of layouts, each given up at the latest when the next one is planned."""
        size = problem.gpus_per_node if drain.scope == "node" else 1
        slots = len(calendar.on)
        on = np.sort(calendar.on.reshape(slots, -1, size), axis=2)
        pools, pool = np.unique(on.reshape(-1, size), axis=0, return_inverse=True)
        pool = pool.reshape(slots, -1)
        repartitioned = calendar.repartitioned.reshape(slots, -1, size)
        drains = np.asarray(repartitioned.any(axis=2))
        slot, node = np.nonzero(drains | (pool != np.concatenate([pool[:1], pool[:-1]])))
        drained = drains[slot, node]

        planned_s = np.asarray(slot * problem.interval_hours * SECONDS_PER_HOUR, np.float64)
        cordon_s = np.where(drained, np.maximum(planned_s - drain.ahead_s, 0.0), planned_s)
        deadline_s = planned_s + np.float64(np.inf if drain.limit_s is None else drain.limit_s)
        next_s: dict[int, float] = {}
        for row in np.flatnonzero(drained)[::-1].tolist():
            deadline_s[row] = min(deadline_s[row], next_s.get(node[row], np.inf))
            next_s[node[row]] = planned_s[row]

        before, after = (held.reshape(slots, -1, size) for held in (calendar.held_before, calendar.held))
        layouts = [parse_layout(text) for text in calendar.layouts]
        change_s = np.zeros(len(slot))
        for row in np.flatnonzero(drained):
            here = slot[row], node[row]
            pairs = set(zip(before[here][repartitioned[here]], after[here][repartitioned[here]], strict=True))
            change_s[row] = max(problem.change.seconds(layouts[old], layouts[new]) for old, new in pairs)
        changes = LayoutChanges(
            node, planned_s, cordon_s, deadline_s, change_s, pool[slot, node], drained, drain.before_change
        )
        return cls(calendar, pools, pool, changes)

    def node_fleet(self, problem: PlanProblem, profiles: Iterable[str]) -> NodeFleet:
        """The nodes, with what each offers of these profiles and those of its layouts in the pools that it is in."""
        layouts = self.calendar.layouts
        own = {name for text in layouts[1:] for name in parse_layout(text)}
        names = sort_profiles(problem.gpu_model, {*profiles, *own})
        offered = np.array([
            count_layout_instances([UNUSED_LAYOUT if layout < 0 else layouts[layout] for layout in gpus], names)
            for gpus in self.pools.tolist()
        ])  # fmt: skip
        nodes, size = self.pool.shape[1], self.pools.shape[1]
        capacity = np.zeros((nodes, *offered.shape), np.int64)
        for slot in self.pool:
            capacity[np.arange(nodes), slot] = offered[slot]
        network = None
        if size < problem.gpus_per_node:
            network = NodeNetwork(np.arange(nodes)[None] // problem.gpus_per_node, np.ones(3))
        weights = np.array([1.0, *(problem.gpu_model.gpu_fraction(name) for name in names[1:])])
        return NodeFleet(names, np.full(nodes, size), capacity, self.pool[0], weights, network=network)


@dataclass(frozen=True, eq=False)
class RehearsedWeek:
    """A drawn week on the fleet of a plan.

    - ``requests``, ``fleet``, ``outcome``: What was simulated, and its outcome.
    - ``planned``: The fleet with its changes, as planned.
    """

    requests: NodeRequests
    fleet: NodeFleet
    planned: PlannedNodes
    outcome: Outcome

    @property
    def ends_s(self) -> NDArray[np.float64]:
        """When each request ends [s]; NaN where it never starts."""
        return np.asarray(self.outcome.start_s + self.requests.run_s * self.outcome.factor)

    def gpu_hours_on(self, until_s: float) -> float:
        """GPU-hours of GPUs that are on from the begin of the week to an instant.

        A GPU that is powered down while a job runs on it stays on until the job ends, as far as the node has no other
        that the job could be on: an instance counts as its share of one.
        """
        on, held = self.outcome.power_intervals, self.outcome.allocations
        node, pool, from_s, to_s = (on[name].to_numpy() for name in ("node", "pool", "from_s", "until_s"))
        powered_s = np.maximum(np.minimum(to_s, until_s) - np.maximum(from_s, 0.0), 0.0)

        # What jobs hold beyond what their node offers, by profile: each event is a step of the difference.
        offered = self.fleet.capacity[node, pool]
        row, profile = np.nonzero(offered)
        count = offered[row, profile]
        steps = [(node[row], profile, at[row], sign * count) for at, sign in ((from_s, -1), (to_s, 1))]
        job, amount = held["request"].to_numpy(), held["amount"].to_numpy()
        place = held["node"].to_numpy(), held["profile"].to_numpy()
        starts_and_ends = ((self.outcome.start_s, 1), (self.ends_s, -1))
        steps += [(*place, at[job], sign * amount) for at, sign in starts_and_ends]
        where, what, at, step = (np.concatenate(column) for column in zip(*steps, strict=True))
        order = np.lexsort((step, at, what, where))
        lasting_s = np.diff(np.clip(at[order], 0.0, until_s), append=until_s)
        beyond = np.maximum(np.cumsum(step[order]), 0) * self.fleet.weights[what[order]]
        gpus_on = (self.planned.pools >= 0).sum(axis=1)
        return float(gpus_on[pool] @ powered_s + beyond @ lasting_s) / SECONDS_PER_HOUR


def played_weeks(scenario: Scenario, layout_plan: pl.DataFrame, problem: PlanProblem) -> Iterator[RehearsedWeek]:
    """Simulate a plan on at most eight drawn weeks, the same for each plan, with changes of the scenario's actuator."""
    known, drain = history(scenario), drain_of(scenario, problem.change)
    if (known.fleet.gpu_model.name, known.fleet.gpus) != (problem.gpu_model.name, problem.gpus):
        expected, got = (
            f"{problem.gpus} x {problem.gpu_model.name}",
            f"{known.fleet.gpus} x {known.fleet.name}",
        )
        todo = "Name the scenario that the plan was made of."
        raise ScenarioError("rehearsal of a plan", f"a scenario with {expected}", got, todo)
    past = past_jobs(known)
    planned = PlannedNodes.of(GpuCalendar.of(layout_plan, problem), problem, drain)
    fleet = planned.node_fleet(problem, past["profile_rightsized"].drop_nulls().unique())
    larger = list_larger_profiles(problem.gpu_model, fleet.profiles)
    for number in range(min(scenario.replications, 8)):
        jobs = simulator_jobs(draw_replication(scenario, known, past, number), "rightsized")
        requests = week_requests(jobs, fleet, problem.gpu_model)
        outcome = simulate_requests(
            requests, fleet, queue=scenario.queue, larger=larger, changes=planned.changes,
            placement="best" if fleet.network is None else "consolidate",
        )  # fmt: skip
        yield RehearsedWeek(requests, fleet, planned, outcome)


def week_requests(jobs: pl.DataFrame, fleet: NodeFleet, gpu_model: GpuModel) -> NodeRequests:
    """Requests of the jobs of :func:`simulator_jobs`; those from before the week are there as it begins."""
    submit_s, run_s, limit_s = (jobs[name].to_numpy() for name in ("submit_s", "run_s", "limit_s"))
    table = jobs.select("profile", "sms_needed", instances="gpus", nodes=pl.lit(1))
    return build_requests(table, fleet, gpu_model, (submit_s, np.maximum(submit_s, 0.0)), run_s, limit_s)


def rehearse(scenario: Scenario, layout_plan: pl.DataFrame, problem: PlanProblem) -> pl.DataFrame:
    """Play the changes of a plan on drawn weeks, as the scenario's actuator makes them."""
    weeks = []
    for week in played_weeks(scenario, layout_plan, problem):
        changes, outcome = week.planned.changes, week.outcome
        made = outcome.changes.with_columns(
            wanted_s=pl.Series(changes.planned_s), place=pl.Series(changes.node), drained=pl.Series(changes.drained)
        ).filter("drained")  # fmt: skip
        spells = outcome.allocations.select(
            "amount", place="node",
            start_s=outcome.start_s[outcome.allocations["request"]],
            end_s=week.ends_s[outcome.allocations["request"]],
        )  # fmt: skip
        running = made.join(spells, on="place")
        running = running.filter(pl.col("start_s") < pl.col("wanted_s"), pl.col("end_s") > pl.col("wanted_s"))
        busy = running.group_by("row").agg(in_the_way=pl.col("amount").sum())
        weeks.append(made.join(busy, on="row", how="left", maintain_order="left"))
    late_s = pl.coalesce("drained_s", "ended_s", pl.lit(np.inf)) - pl.col("wanted_s")
    late = late_s.clip(0.0) / SECONDS_PER_MINUTE
    planned = pl.lit(problem.slot_times[0]) + pl.duration(milliseconds=1000 * pl.col("wanted_s"))
    names = dict(enumerate(problem.node_names))
    single = week.fleet.network is not None
    per_node = problem.gpus_per_node if single else 1
    changes_over_weeks = pl.concat(weeks).group_by(
        planned=planned.cast(pl.Datetime("us", "UTC")),
        node=(pl.col("place") // per_node).replace_strict(names, return_dtype=pl.String),
        gpu=pl.when(pl.lit(single)).then(pl.col("place") % per_node).cast(pl.Int32),
    )
    return changes_over_weeks.agg(
        drain_median_minutes=late.median(),
        drain_p95_minutes=late.quantile(0.95, "higher"),
        in_the_way=pl.col("in_the_way").fill_null(0).mean(),
        in_time=(pl.col("outcome") == "done").fill_null(value=False).mean(),
    ).sort("planned", "node", "gpu")
