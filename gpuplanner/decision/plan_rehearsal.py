"""Planned layout changes simulated on past weeks before they are recommended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import Scenario, parse_change_windows
from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import FULL_GPU, LayoutPlan
from gpuplanner.core.setting_rules_and_controls import DRAINED_UNIT_BY_ACTUATOR
from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR, SECONDS_PER_MINUTE
from gpuplanner.decision.requested_jobs import (
    build_requests,
    count_layout_instances,
    list_larger_profiles,
    sort_profiles,
)
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.hardware.mig_layouts import UNUSED_LAYOUT, parse_layout
from gpuplanner.hardware.repartitioning_cost import ChangeCost, find_change_cost
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.simulator.planned_layout_changes import LayoutChanges
from gpuplanner.simulator.replications import draw_replication, past_jobs, to_simulator_jobs
from gpuplanner.simulator.scheduling_rules import Drain
from gpuplanner.simulator.simulation_inputs import NodeFleet, NodeNetwork, NodeRequests, Outcome
from gpuplanner.simulator.simulation_run import simulate_requests
from gpuplanner.simulator.simulation_state import Ints
from gpuplanner.usage.planning_history import history

MAX_RESERVATION_HOURS = 168.0
"""Longest time before a planned layout change in which the scheduler starts no job that would run past it [h]."""


def parse_open_windows(scenario: Scenario, gpu_model: GpuModel) -> list[tuple[int, int]] | None:
    """Parse the windows for changes of a scenario: begin as minute of the day, and length [min]; None without any."""
    if scenario.change_windows is None:
        return None
    windows = parse_change_windows(scenario.change_windows) or []
    longest_s = find_change_cost(scenario, gpu_model).longest_s
    too_short_minutes = [minutes for _, minutes in windows if minutes * SECONDS_PER_MINUTE <= longest_s]
    if too_short_minutes:
        longest = f"{longest_s / SECONDS_PER_MINUTE:g} min"
        expected = f"windows of more than {longest}, which a change takes once a node is empty"
        got = f"windows too short for any drain: {scenario.change_windows}"
        todo = "Choose longer windows, or an actuator that changes layouts faster."
        raise ScenarioError("scenario: change_windows", expected, got, todo)
    return windows


def make_drain_rule(scenario: Scenario, change_cost: ChangeCost) -> Drain:
    """Make the drain rule of planned changes: what is drained, how long ahead it is reserved, and when it is given up.

    A change waits at most for its longest drain; in a window, until there is just time left to repartition.

    Examples
    --------
    >>> for scenario in (Scenario(), Scenario(actuator="nvidia-smi")):
    ...     drain = make_drain_rule(scenario, find_change_cost(scenario, "H100-80GB-SXM5"))
    ...     print(drain.scope, drain.limit_s)
    node 3600.0
    gpu 3600.0
    """
    limit_s = change_cost.drain_s.high
    if change_cost.gpu_model is not None:
        for _, minutes in parse_open_windows(scenario, change_cost.gpu_model) or ():
            limit_s = min(limit_s, minutes * SECONDS_PER_MINUTE - change_cost.longest_s)
    scope, ahead_s = DRAINED_UNIT_BY_ACTUATOR.get(scenario.actuator, "gpu"), MAX_RESERVATION_HOURS * SECONDS_PER_HOUR
    return Drain(scope, ahead_s, limit_s, before_change=True)


@dataclass(frozen=True, eq=False)
class GpuCalendar:
    """Layout of each GPU in each interval of a plan.

    Attributes
    ----------
    layouts : tuple of str
        Layouts by number, the full GPU first.
    powered_layouts : array of int, shape (n_intervals, n_gpus)
        Layout of each GPU, node by node; -1: it is powered down.
    assigned_layouts : array of int, shape (n_intervals, n_gpus)
        Layout of each GPU, on or off; -1: it is released, and returns as a full GPU.
    """

    layouts: tuple[str, ...]
    powered_layouts: Ints
    assigned_layouts: Ints

    @classmethod
    def from_layout_plan(cls, layout_plan: pl.DataFrame, problem: PlanProblem) -> GpuCalendar:
        """Read a layout plan, node by node in the order of the problem."""
        node_number = {node: number for number, node in enumerate(problem.node_names)}
        slot_of = {time: slot for slot, time in enumerate(problem.slot_times)}
        rows = check_table(layout_plan, LayoutPlan, source="layout plan")
        layouts = (FULL_GPU, *sorted({*rows["layout"], *rows["parked"].drop_nulls()} - {UNUSED_LAYOUT, FULL_GPU}))
        layouts_on = np.full((problem.n_slots, len(node_number) * problem.gpus_per_node), -1)
        numbers = np.full_like(layouts_on, -1 if problem.prices is None else 0)
        for row in rows.iter_rows(named=True):
            gpu = node_number[row["node"]] * problem.gpus_per_node + row["gpu"]
            slots = slice(slot_of[row["slot_start"]], slot_of[row["slot_end"]])
            if row["layout"] != UNUSED_LAYOUT:
                layouts_on[slots, gpu] = numbers[slots, gpu] = layouts.index(row["layout"])
            elif row["parked"] is not None and problem.prices is not None:
                numbers[slots, gpu] = layouts.index(row["parked"])
        return cls(layouts, layouts_on, numbers)

    @property
    def assigned_before(self) -> Ints:
        """Layout of each GPU in the interval before; a released GPU is a full GPU."""
        return np.asarray(np.maximum(np.concatenate([self.assigned_layouts[:1], self.assigned_layouts[:-1]]), 0))

    @property
    def is_repartitioned(self) -> NDArray[np.bool_]:
        """Whether each GPU gets another layout at the begin of each interval; released GPUs do not."""
        return np.asarray((self.assigned_layouts >= 0) & (self.assigned_layouts != self.assigned_before))


@dataclass(frozen=True, eq=False)
class PlannedNodes:
    """The nodes of a plan for the simulator.

    If GPUs are drained one by one, each is a node of its own: a job on several GPUs requests that many nodes, and the
    domains of the network are the real nodes, so that jobs stay on one.

    Attributes
    ----------
    calendar : GpuCalendar
        Layout of each GPU in each interval.
    layouts_by_pool : array of int, shape (n_pools, n_gpus_per_node)
        Layouts on a node in each pool, by number; -1: a GPU that is powered down.
    pool_by_slot : array of int, shape (n_intervals, n_nodes)
        Pool of each node in each interval.
    changes : LayoutChanges
        Changes from interval to interval: repartitions drain a node, the others power GPUs down or up.
    """

    calendar: GpuCalendar
    layouts_by_pool: Ints
    pool_by_slot: Ints
    changes: LayoutChanges

    @classmethod
    def from_calendar(cls, calendar: GpuCalendar, problem: PlanProblem, drain: Drain) -> PlannedNodes:
        """Plan the changes of a calendar of layouts; each is given up at the latest when the next one is planned."""
        size = problem.gpus_per_node if drain.scope == "node" else 1
        slots = len(calendar.powered_layouts)
        layouts_on = np.sort(calendar.powered_layouts.reshape(slots, -1, size), axis=2)
        pools, pool = np.unique(layouts_on.reshape(-1, size), axis=0, return_inverse=True)
        pool = pool.reshape(slots, -1)
        repartitioned = calendar.is_repartitioned.reshape(slots, -1, size)
        needs_drain = np.asarray(repartitioned.any(axis=2))
        slot, node = np.nonzero(needs_drain | (pool != np.concatenate([pool[:1], pool[:-1]])))
        is_drained = needs_drain[slot, node]

        planned_s = np.asarray(slot * problem.interval_hours * SECONDS_PER_HOUR, np.float64)
        cordon_s = np.where(is_drained, np.maximum(planned_s - drain.ahead_s, 0.0), planned_s)
        deadline_s = planned_s + np.float64(np.inf if drain.limit_s is None else drain.limit_s)
        next_s: dict[int, float] = {}
        for row in np.flatnonzero(is_drained)[::-1].tolist():
            deadline_s[row] = min(deadline_s[row], next_s.get(node[row], np.inf))
            next_s[node[row]] = planned_s[row]

        before, after = (x.reshape(slots, -1, size) for x in (calendar.assigned_before, calendar.assigned_layouts))
        layouts = [parse_layout(text) for text in calendar.layouts]
        change_s = np.zeros(len(slot))
        for row in np.flatnonzero(is_drained):
            at = slot[row], node[row]
            pairs = set(zip(before[at][repartitioned[at]], after[at][repartitioned[at]], strict=True))
            change_s[row] = max(problem.change.seconds(layouts[old], layouts[new]) for old, new in pairs)
        changes = LayoutChanges(
            node, planned_s, cordon_s, deadline_s, change_s, pool[slot, node], is_drained, drain.before_change
        )
        return cls(calendar, pools, pool, changes)

    def node_fleet(self, problem: PlanProblem, profiles: Iterable[str]) -> NodeFleet:
        """Make the fleet of the simulator: instances of the given profiles and layouts, by node and node pool."""
        layouts = self.calendar.layouts
        layout_profiles = {name for text in layouts[1:] for name in parse_layout(text)}
        names = sort_profiles(problem.gpu_model, {*profiles, *layout_profiles})
        offered_by_pool = np.array([
            count_layout_instances([UNUSED_LAYOUT if layout < 0 else layouts[layout] for layout in gpus], names)
            for gpus in self.layouts_by_pool.tolist()
        ])  # fmt: skip
        nodes, size = self.pool_by_slot.shape[1], self.layouts_by_pool.shape[1]
        capacity = np.zeros((nodes, *offered_by_pool.shape), np.int64)
        for slot in self.pool_by_slot:
            capacity[np.arange(nodes), slot] = offered_by_pool[slot]
        network = None
        if size < problem.gpus_per_node:
            network = NodeNetwork(np.arange(nodes)[None] // problem.gpus_per_node, np.ones(3))
        weights = np.array([1.0, *(problem.gpu_model.gpu_fraction(name) for name in names[1:])])
        return NodeFleet(names, np.full(nodes, size), capacity, self.pool_by_slot[0], weights, network=network)


@dataclass(frozen=True, eq=False)
class RehearsedWeek:
    """A resampled week simulated on the fleet of a plan.

    - ``requests``, ``fleet``, ``outcome``: Simulated requests and nodes, and the outcome.
    - ``planned_nodes``: The fleet with its planned changes.
    """

    requests: NodeRequests
    fleet: NodeFleet
    planned_nodes: PlannedNodes
    outcome: Outcome

    @property
    def ends_s(self) -> NDArray[np.float64]:
        """End of each request [s]; NaN if it never starts."""
        return np.asarray(self.outcome.start_s + self.requests.run_s * self.outcome.factor)

    def count_gpu_hours_on(self, until_s: float) -> float:
        """Count the GPU-hours of powered-on GPUs from the begin of the week to an instant.

        A GPU that is powered down while a job runs on it stays on until the job ends, as far as its node has no other
        GPU for the job: an instance counts as its share of a GPU.
        """
        power_intervals, allocations = self.outcome.power_intervals, self.outcome.allocations
        node, pool, from_s, to_s = (power_intervals[name].to_numpy() for name in ("node", "pool", "from_s", "until_s"))
        powered_s = np.maximum(np.minimum(to_s, until_s) - np.maximum(from_s, 0.0), 0.0)

        # What jobs hold beyond what their node offers, by profile: each event is a step of the difference.
        offered_instances = self.fleet.capacity[node, pool]
        row, profile = np.nonzero(offered_instances)
        count = offered_instances[row, profile]
        steps = [(node[row], profile, event_s[row], sign * count) for event_s, sign in ((from_s, -1), (to_s, 1))]
        job, amount = allocations["request"].to_numpy(), allocations["amount"].to_numpy()
        node_and_profile = allocations["node"].to_numpy(), allocations["profile"].to_numpy()
        starts_and_ends = ((self.outcome.start_s, 1), (self.ends_s, -1))
        steps += [(*node_and_profile, event_s[job], sign * amount) for event_s, sign in starts_and_ends]
        event_node, profiles, event_s, amounts = (np.concatenate(column) for column in zip(*steps, strict=True))
        order = np.lexsort((amounts, event_s, profiles, event_node))
        lasting_s = np.diff(np.clip(event_s[order], 0.0, until_s), append=until_s)
        extra_gpus = np.maximum(np.cumsum(amounts[order]), 0) * self.fleet.weights[profiles[order]]
        gpus_on = (self.planned_nodes.layouts_by_pool >= 0).sum(axis=1)
        return float(gpus_on[pool] @ powered_s + extra_gpus @ lasting_s) / SECONDS_PER_HOUR


def simulate_weeks(scenario: Scenario, layout_plan: pl.DataFrame, problem: PlanProblem) -> Iterator[RehearsedWeek]:
    """Simulate a plan on at most eight resampled weeks, the same for each plan.

    The changes are made as by the scenario's actuator.
    """
    job_history, drain = history(scenario), make_drain_rule(scenario, problem.change)
    if (job_history.fleet.gpu_model.name, job_history.fleet.gpus) != (problem.gpu_model.name, problem.gpus):
        expected = f"{problem.gpus} x {problem.gpu_model.name}"
        got = f"{job_history.fleet.gpus} x {job_history.fleet.name}"
        todo = "Name the scenario that the plan was made of."
        raise ScenarioError("rehearsal of a plan", f"a scenario with {expected}", got, todo)
    past = past_jobs(job_history)
    planned = PlannedNodes.from_calendar(GpuCalendar.from_layout_plan(layout_plan, problem), problem, drain)
    fleet = planned.node_fleet(problem, past["profile_rightsized"].drop_nulls().unique())
    larger = list_larger_profiles(problem.gpu_model, fleet.profiles)
    for number in range(min(scenario.replications, 8)):
        jobs = to_simulator_jobs(draw_replication(scenario, job_history, past, number), "rightsized")
        requests = make_week_requests(jobs, fleet, problem.gpu_model)
        outcome = simulate_requests(
            requests, fleet, queue=scenario.queue, larger=larger, changes=planned.changes,
            placement="best" if fleet.network is None else "consolidate",
        )  # fmt: skip
        yield RehearsedWeek(requests, fleet, planned, outcome)


def make_week_requests(job_rows: pl.DataFrame, fleet: NodeFleet, gpu_model: GpuModel) -> NodeRequests:
    """Make the requests of the jobs of :func:`to_simulator_jobs`; jobs from before the week are there at its begin."""
    submit_s, run_s, limit_s = (job_rows[name].to_numpy() for name in ("submit_s", "run_s", "limit_s"))
    table = job_rows.select("profile", "sms_needed", instances="gpus", nodes=pl.lit(1))
    return build_requests(table, fleet, gpu_model, (submit_s, np.maximum(submit_s, 0.0)), run_s, limit_s)


def rehearse_layout_changes(scenario: Scenario, layout_plan: pl.DataFrame, problem: PlanProblem) -> pl.DataFrame:
    """Simulate the changes of a plan on resampled weeks, as the scenario's actuator makes them.

    Returns
    -------
    polars.DataFrame
        A row for each planned change that drains: ``planned``, ``node``, ``gpu``; over the weeks, median and p95 of the
        drain time [min], ``in_the_way`` (mean number of GPUs or instances with running jobs at the planned time), and
        ``in_time``, the share of weeks in which the change is made before it is given up [0-1].
    """
    weeks = []
    for week in simulate_weeks(scenario, layout_plan, problem):
        changes, outcome = week.planned_nodes.changes, week.outcome
        drained_changes = outcome.changes.with_columns(
            wanted_s=pl.Series(changes.planned_s), place=pl.Series(changes.node), drained=pl.Series(changes.drained)
        ).filter("drained")  # fmt: skip
        allocation_spells = outcome.allocations.select(
            "amount", place="node",
            start_s=outcome.start_s[outcome.allocations["request"]],
            end_s=week.ends_s[outcome.allocations["request"]],
        )  # fmt: skip
        running = drained_changes.join(allocation_spells, on="place")
        running = running.filter(pl.col("start_s") < pl.col("wanted_s"), pl.col("end_s") > pl.col("wanted_s"))
        blocking_jobs = running.group_by("row", maintain_order=True).agg(in_the_way=pl.col("amount").sum())
        weeks.append(drained_changes.join(blocking_jobs, on="row", how="left", maintain_order="left"))
    delay_s = pl.coalesce("drained_s", "ended_s", pl.lit(np.inf)) - pl.col("wanted_s")
    delay_minutes = delay_s.clip(0.0) / SECONDS_PER_MINUTE
    planned_time = pl.lit(problem.slot_times[0]) + pl.duration(milliseconds=1000 * pl.col("wanted_s"))
    node_names = dict(enumerate(problem.node_names))
    is_one_gpu_a_node = week.fleet.network is not None
    per_node = problem.gpus_per_node if is_one_gpu_a_node else 1
    changes_over_weeks = pl.concat(weeks).group_by(
        planned=planned_time.cast(pl.Datetime("us", "UTC")),
        node=(pl.col("place") // per_node).replace_strict(node_names, return_dtype=pl.String),
        gpu=pl.when(pl.lit(is_one_gpu_a_node)).then(pl.col("place") % per_node).cast(pl.Int32),
        maintain_order=True,
    )
    return changes_over_weeks.agg(
        drain_median_minutes=delay_minutes.median(),
        drain_p95_minutes=delay_minutes.quantile(0.95, "higher"),
        in_the_way=pl.col("in_the_way").fill_null(0).mean(),
        in_time=(pl.col("outcome") == "done").fill_null(value=False).mean(),
    ).sort("planned", "node", "gpu")
