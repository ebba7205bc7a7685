"""Departures, changes and reboots of a plan are the same number wherever they are counted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl
import pytest

from gpuplanner.export.changes import layout_changes_of
from gpuplanner.export.index import change_index
from gpuplanner.export.states import checked_plan
from gpuplanner.planner import (
    Plan,
    PlanProblem,
    StatePrices,
    assign,
    layout_changes,
    plan,
    transition,
    verify,
)
from gpuplanner.simulate import Calendar, Drain, Fleet, Rules, simulate
from gpuplanner.study.future.drains import numbered_calendar

BOARDS = {
    "A100-80GB": ["1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb", "gpu"],
    "H100-80GB-SXM5": ["1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb", "gpu"],
}
NO_JOBS = pl.DataFrame(
    {
        "job_id": ["one"],
        "tenant": "t",
        "submit_s": [1e7],
        "run_s": [1.0],
        "gpus": [1],
        "profile": "gpu",
        "limit_s": 1.0,
    }
)


def counted(found: Plan, problem: PlanProblem) -> dict[str, tuple[int, ...]]:
    """Departures, changes and reboots after the first slot, by who counts them; what one does not say is left out."""
    frame = assign(found, problem)
    assert verify(found, problem, frame) == []
    steps = [
        transition(frame, at=at, board=problem.board, change=problem.change, at_once=problem.gpus)
        for at in problem.slot_times[1:-1]
    ]
    rows = [row for step in steps for row in step.iter_rows(named=True)]
    left = sum(row["before"] not in ("off", row["after"]) for row in rows)
    cut = sum(bool(row["destroyed"] or row["created"]) for row in rows)
    reboots = sum(step.filter("reboot").select("step", "node").n_unique() for step in steps)
    exported = [
        (before, after, len(one.times))
        for one in layout_changes_of(checked_plan(frame, problem.board))
        for before, after in one.nodes.values()
        if before is not None
    ]
    pairs = [
        [
            problem.change.change(was, is_)
            for (_, was), (_, is_) in zip(a.gpus, b.gpus, strict=True)
            if was != is_
        ]
        for a, b, times in exported
        for _ in range(times)
    ]
    nodes = len(problem.node_names)
    fleet = Fleet(problem.board, nodes, problem.gpus_per_node)
    games = {
        scope: simulate(
            NO_JOBS, fleet, numbered_calendar(frame, problem),
            Rules(change=problem.change, drain=Drain(scope=scope, limit_s=None)), policy="plan",
            until_s=problem.n_slots * 3600.0, leave_unservable=True,
        ).changes
        for scope in ("node", "gpu")
    }  # fmt: skip
    index = {
        scope: change_index(frame, problem.board, change=problem.change, drain=Drain(scope=scope))
        for scope in ("node", "gpu")
    }
    table = layout_changes(found, problem)
    return {
        "departures": (found.departures, left),
        "changes": (
            found.changes, cut, table["changes"].sum(), sum(map(len, pairs)),
            *(game["gpus"].sum() for game in games.values()),
            *(one["gpus"].sum() for one in index.values()),
        ),
        "reboots": (found.reboots, reboots, sum(any(change.reboot for change in node) for node in pairs)),
    }  # fmt: skip


def random_plan(seed: int) -> tuple[Plan, PlanProblem]:
    rng = np.random.default_rng(seed)
    board = list(BOARDS)[seed % 2]
    profiles = rng.choice(BOARDS[board], size=3, replace=False).tolist()
    prices = StatePrices(
        parked=float(rng.choice([0, 0.1])),
        dress=float(rng.choice([0.02, 0.2])),
        drain=float(rng.choice([0, 0.2])),
        reboot=float(rng.choice([0, 0.4, 1.3])) if board.startswith("A") else 0.0,
    )
    demand = rng.choice([0, 1, 3.5, 8], size=(1, 3, 5))
    problem = PlanProblem(
        board, 12, 4, datetime(2026, 11, 2, tzinfo=UTC), 1, ["t"], profiles, demand, prices=prices
    )
    return plan(problem, gap_target=0.02), problem


@pytest.mark.parametrize("ten", [0, *(pytest.param(ten, marks=pytest.mark.long) for ten in range(1, 10))])
def test_random_plans_are_counted_alike_everywhere(ten: int) -> None:
    total = np.zeros(3, dtype=int)
    for seed in range(10 * ten, 10 * ten + 10):
        found, problem = random_plan(seed)
        numbers = counted(found, problem)
        assert all(len(set(values)) == 1 for values in numbers.values()), (seed, numbers)
        total += [values[0] for values in numbers.values()]
    assert total[:2].min() > 0


def calendar_of(problem: Any, plan: Any) -> Calendar:
    """The counts of a plan as the simulator's calendar, from its first slot on."""
    starts = np.arange(problem.n_slots, dtype=np.float64) * problem.slot_hours * 3600.0
    none = np.zeros((len(starts), 1), int)
    counts, parked = (plan.counts, plan.parked) if plan.layouts else (none, none)
    return Calendar(
        starts, plan.layouts or ("gpu",), counts, parked=None if problem.prices is None else parked
    )


def engine_reconfigurations(planned: Any) -> int:
    """Changes that the engine makes when it follows counts, without jobs."""
    problem = planned.problem
    fleet = Fleet(problem.board, len(problem.node_names), problem.gpus_per_node)
    run = simulate(
        NO_JOBS, fleet, calendar_of(problem, planned.plan), Rules(change=problem.change), policy="counts",
        until_s=problem.n_slots * 3600.0, leave_unservable=True,
    )  # fmt: skip
    return run.layouts.filter(pl.col("state") == "reconfiguring").height
