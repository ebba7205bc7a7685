"""The fleet of a plan and its changes by hand: nodes and single GPUs, released and parked, and jobs of drawn weeks."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.decision.plan_rehearsal import GpuCalendar, PlannedNodes, RehearsedWeek, make_week_requests
from gpuplanner.decision.requested_jobs import list_larger_profiles
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.hardware.repartitioning_cost import ChangeCost
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.simulator.scheduling_rules import Drain
from gpuplanner.simulator.simulation_run import simulate_requests
from tests.decision.planned_operations import operations_on_an_idle_fleet
from tests.examples import examples

BOARD = load_gpu_model("H100-80GB-SXM5")
LAYOUTS = ("gpu", "1g.10gb:7", "3g.40gb:2")
COST = ChangeCost.from_catalogue(BOARD, "mig-manager", change_s=60.0)
OFF = -1


def problem_of(gpus, per_node, slots, interval_hours=1.0):
    begin = datetime(2026, 11, 2, tzinfo=UTC)
    demand = np.ones((1, 1, slots))
    return PlanProblem(BOARD, gpus, per_node, begin, interval_hours, ["t"], ["gpu"], demand, change=COST)


def calendar_of(on, held=None):
    """GPUs that are off are released, unless it is said how they stay partitioned."""
    on = np.array(on)
    return GpuCalendar(LAYOUTS, on, on if held is None else np.array(held))


def jobs_of(*rows, **columns):
    """Rows of (submit_s, run_s, gpus, profile)."""
    frame = pl.DataFrame(rows, schema=["submit_s", "run_s", "gpus", "profile"], orient="row").with_columns(
        pl.col("submit_s", "run_s").cast(pl.Float64), sms_needed=pl.lit(None, pl.Float64), limit_s=pl.col("run_s") * 2.0
    )
    return frame.with_columns(**{name: pl.Series(values) for name, values in columns.items()})


def rehearsed(jobs, calendar, problem, drain):
    planned = PlannedNodes.from_calendar(calendar, problem, drain)
    fleet = planned.node_fleet(problem, jobs["profile"].unique())
    requests = make_week_requests(jobs, fleet, BOARD)
    placement = "best" if fleet.network is None else "consolidate"
    larger = list_larger_profiles(BOARD, fleet.profiles)
    outcome = simulate_requests(requests, fleet, changes=planned.changes, placement=placement, larger=larger)
    return RehearsedWeek(requests, fleet, planned, outcome)


def test_what_was_released_comes_back_as_a_full_gpu_and_what_was_parked_as_it_is_partitioned():
    on = [[1, 0], [OFF, 0], [1, 0], [OFF, 0], [0, 0]]
    problem = problem_of(2, 2, 5)
    released = operations_on_an_idle_fleet(calendar_of(on), problem, Drain())
    assert released.select("wanted_s", "before", "after").rows() == [(7200, "0=gpu", "0=1g.10gb:7")]
    parked = operations_on_an_idle_fleet(calendar_of(on, [[1, 0]] * 4 + [[0, 0]]), problem, Drain())
    assert parked.select("wanted_s", "before", "after").rows() == [(14_400, "0=1g.10gb:7", "0=gpu")]


def test_nodes_have_the_pools_that_the_plan_puts_them_in_and_no_others():
    on = [[0, 0, 1, 2], [0, 1, 2, 1], [1, 0, OFF, 1]]
    planned = PlannedNodes.from_calendar(calendar_of(on), problem_of(4, 2, 3), Drain(limit_s=900.0))
    assert len(planned.layouts_by_pool) == 4
    fleet = planned.node_fleet(problem_of(4, 2, 3), ["2g.20gb"])
    assert fleet.profiles == ("gpu", "1g.10gb", "2g.20gb", "3g.40gb")
    offered = fleet.capacity[np.arange(2), planned.pool_by_slot]
    assert offered.tolist() == [
        [[2, 0, 0, 0], [0, 7, 0, 2]],
        [[1, 7, 0, 0], [0, 7, 0, 2]],
        [[1, 7, 0, 0], [0, 7, 0, 0]],
    ]
    assert (fleet.capacity[0, planned.pool_by_slot[0, 1]] == 0).all()
    changes = planned.changes
    assert list(zip(changes.node.tolist(), changes.planned_s.tolist(), changes.drained.tolist(), strict=True)) == [
        (0, 3600.0, True), (1, 3600.0, True), (0, 7200.0, True), (1, 7200.0, False)
    ]  # fmt: skip
    assert changes.deadline_s[:3].tolist() == [4500.0, 4500.0, 8100.0]


def test_a_change_is_given_up_at_the_latest_when_the_next_one_of_its_node_is_planned():
    planned = PlannedNodes.from_calendar(
        calendar_of([[0], [1], [2]]), problem_of(1, 1, 3), Drain(limit_s=None, ahead_s=5000.0)
    )
    assert planned.changes.deadline_s.tolist() == [7200.0, np.inf]
    assert planned.changes.cordon_s.tolist() == [0.0, 2200.0]


@pytest.mark.parametrize(("scope", "nodes"), [("node", 2), ("gpu", 4)])
def test_jobs_on_many_gpus_ask_for_as_many_nodes_as_they_need(scope, nodes):
    jobs = jobs_of((0, 5000, 4, "gpu"), (-2, 9, 1, "1g.10gb"), (0, 9, 1, "1g.10gb"))
    week = rehearsed(jobs, calendar_of([[0, 0, 0, 0], [0, 0, 0, 1]]), problem_of(4, 2, 2), Drain(scope, limit_s=None))
    assert week.requests.nodes.tolist() == [nodes, 1, 1]
    assert week.outcome.start_s.tolist() == [0.0, 5060.0, 5060.0]
    assert week.outcome.changes.select("began_s", "drained_s", "ended_s").rows() == [(3600, 5000, 5060)]


def test_where_gpus_are_drained_one_by_one_the_others_of_the_node_stay_in_use():
    jobs = jobs_of((0, 8000, 1, "gpu"), (4000, 10, 1, "1g.10gb"))
    calendar, problem = calendar_of([[0, 0], [0, 1], [0, 1]]), problem_of(2, 2, 3)
    assert rehearsed(jobs, calendar, problem, Drain("gpu", limit_s=900.0)).outcome.start_s.tolist() == [0.0, 4000.0]
    week = rehearsed(jobs, calendar, problem, Drain("node", limit_s=900.0))
    assert np.isnan(week.outcome.start_s).tolist() == [False, True]
    assert week.outcome.changes["outcome"].to_list() == ["given up"]


def test_a_job_that_can_use_more_sms_than_it_asked_for_runs_as_much_longer():
    jobs = jobs_of((0, 100, 1, "1g.10gb"), (0, 100, 1, "1g.10gb"), (0, 100, 1, "gpu"), sms_needed=[8.0, 40.0, None])
    fleet = PlannedNodes.from_calendar(calendar_of([[1, 0]]), problem_of(2, 2, 1), Drain()).node_fleet(
        problem_of(2, 2, 1), ()
    )
    requests = make_week_requests(jobs, fleet, BOARD)
    assert requests.run_s.tolist() == [100.0, 250.0, 100.0]
    assert requests.limit_s.tolist() == [200.0, 500.0, 200.0]


@pytest.mark.parametrize("scope", ["node", "gpu"])
def test_gpu_hours_are_those_of_gpus_that_are_on_and_of_jobs_that_hold_others_up(scope):
    """Of two GPUs one is powered down after an hour of three. Two jobs run on: for half an hour, and for 6 min."""
    calendar, problem = calendar_of([[0, 0], [0, OFF], [0, OFF]], [[0, 0]] * 3), problem_of(2, 2, 3)
    jobs = jobs_of((0, 5400, 1, "gpu"), (0, 3960, 1, "gpu"))
    week = rehearsed(jobs, calendar, problem, Drain(scope))
    # With the first of them to end one GPU goes; which one it was is known where each is a node.
    assert week.count_gpu_hours_on(10_800.0) == pytest.approx(4.0 + 0.1)
    assert week.count_gpu_hours_on(3_780.0) == pytest.approx(2 * 1.05)
    assert rehearsed(jobs[:1], calendar, problem, Drain("node")).count_gpu_hours_on(10_800.0) == pytest.approx(4.0)


@st.composite
def cases(draw):
    """Jobs, planned layouts of numbered GPUs, and how they are changed."""
    per_node, nodes = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kinds = st.sampled_from(["gpu", "1g.10gb", "3g.40gb"])
    rows = draw(
        st.lists(
            st.tuples(st.integers(0, 600), st.integers(1, 200), st.integers(1, per_node), kinds),
            min_size=1,
            max_size=25,
        )
    )
    jobs = jobs_of(*((at, run, gpus if name == "gpu" else 1, name) for at, run, gpus, name in rows))
    row = st.lists(st.integers(-1, 2), min_size=per_node * nodes, max_size=per_node * nodes)
    on = np.array(draw(st.lists(row, min_size=2, max_size=5)))
    drain = Drain(
        draw(st.sampled_from(["node", "gpu"])),
        draw(st.sampled_from([0.0, 50.0])),
        draw(st.sampled_from([None, 100.0, 30.0])),
        draw(st.booleans()),
    )
    return jobs, on, drain, problem_of(per_node * nodes, per_node, len(on), 150 / 3600)


@settings(max_examples=examples(40), deadline=None)
@given(cases())
def test_changes_are_those_of_the_plan_and_touch_no_running_job(case):
    jobs, on, drain, problem = case
    week = rehearsed(jobs, calendar_of(on), problem, drain)
    size = problem.gpus_per_node if drain.scope == "node" else 1
    planned = {
        (150.0 * slot, gpu // size)
        for slot in range(1, len(on))
        for gpu, (before, after) in enumerate(zip(on[slot - 1].tolist(), on[slot].tolist(), strict=True))
        if after not in (OFF, max(before, 0))  # what is off comes back as a full GPU
    }
    changes, made = week.planned_nodes.changes, week.outcome.changes
    drains = np.flatnonzero(changes.drained)
    rows = list(zip(changes.planned_s[drains].tolist(), changes.node[drains].tolist(), strict=True))
    assert sorted(rows) == sorted(planned)
    assert made["outcome"].null_count() == 0
    assert (made["ended_s"] >= made["began_s"]).all()
    drained = made[drains.tolist()].drop_nulls("drained_s")
    most_s = drain.ahead_s + (np.inf if drain.limit_s is None else drain.limit_s) + 1e-6
    assert (drained["drained_s"] - drained["began_s"] <= most_s).all()
    # While a node is partitioned nothing runs on it.
    request = week.outcome.allocations["request"]
    spells = week.outcome.allocations.with_columns(start_s=week.outcome.start_s[request], end_s=week.ends_s[request])
    done = made.with_columns(node=pl.Series(changes.node)).filter(pl.col("drained_s").is_not_null(), outcome="done")
    both = done.join(spells, on="node").filter(
        pl.col("start_s") < pl.col("ended_s"), pl.col("end_s") > pl.max_horizontal("drained_s", "ended_s") - 1e-9
    )
    assert both.is_empty()
    assert week.count_gpu_hours_on(900.0) <= problem.gpus * 0.25 + 1e-9
