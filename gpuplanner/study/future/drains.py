"""How planned changes are made on a scenario's path, and what comes of them on weeks that are drawn."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from gpuplanner.errors import ScenarioError, message
from gpuplanner.export import REHEARSED
from gpuplanner.hardware import EMPTIED, ChangeCost, GpuModel
from gpuplanner.planner import PlanProblem
from gpuplanner.scenario import Scenario, windows_of
from gpuplanner.schemas import LayoutPlan, check
from gpuplanner.simulate import Calendar, Drain, Fleet, Rules, Run, simulate
from gpuplanner.study.future.workload import past_jobs, replicate, workload
from gpuplanner.study.past.history import history
from gpuplanner.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE

REHEARSALS = 8
"""Weeks that changes are rehearsed on."""

RESERVE_HOURS = 168.0
"""How long before a planned change the scheduler keeps jobs away that would run past it. [h]"""


def open_windows(scenario: Scenario, board: GpuModel) -> list[tuple[int, int]] | None:
    """Windows for changes as minutes of the day and minutes that they last; None without any."""
    if scenario.change_windows is None:
        return None
    windows, most = windows_of(scenario.change_windows) or [], scenario.change(board).longest_s
    short = [minutes for _, minutes in windows if minutes * SECONDS_PER_MINUTE <= most]
    if short:
        text = message(
            "scenario: change_windows",
            f"windows of more than {most / SECONDS_PER_MINUTE:g} min, which a change takes once a node is empty",
            f"windows too short for any drain: {scenario.change_windows}",
            "Choose longer windows, or a path that changes layouts faster.",
        )
        raise ScenarioError(text)
    return windows


def drain_of(scenario: Scenario, change: ChangeCost) -> Drain:
    """How a planned change is made: what is emptied, how long ahead the scheduler reserves it, and when it is given up.

    That is the longest that the change waits for a GPU to empty; in a window, until there is just time left to cut.

    Examples
    --------
    >>> for scenario in (Scenario(), Scenario(path="nvml")):
    ...     drain = drain_of(scenario, scenario.change("H100-80GB-SXM5"))
    ...     print(drain.scope, drain.limit_s)
    node 3600.0
    gpu 3600.0
    """
    limit_s = change.drain_s.high
    if change.board is not None:
        for _, minutes in open_windows(scenario, change.board) or ():
            limit_s = min(limit_s, minutes * SECONDS_PER_MINUTE - change.longest_s)
    return Drain(
        scope=EMPTIED.get(scenario.path, "gpu"),
        ahead_s=RESERVE_HOURS * SECONDS_PER_HOUR,
        limit_s=limit_s,
        before_change=True,
    )


def numbered_calendar(layout_plan: pl.DataFrame, problem: PlanProblem) -> Calendar:
    """Numbered GPUs as the simulator's calendar, node by node in the order of the problem."""
    place = {node: number for number, node in enumerate(problem.node_names)}
    slot_of = {time: slot for slot, time in enumerate(problem.slot_times)}
    plan = check(layout_plan, LayoutPlan, where="layout plan")
    texts = {*plan["layout"], *plan["parked"].drop_nulls()} - {"off"}
    layouts = sorted(texts if problem.prices is None and texts else {*texts, "gpu"})
    states = np.full((problem.n_slots, len(place) * problem.gpus_per_node), -1)
    held = np.full_like(states, layouts.index("gpu") if "gpu" in layouts else -1)
    for row in plan.iter_rows(named=True):
        gpu = place[row["node"]] * problem.gpus_per_node + row["gpu"]
        slots = slice(slot_of[row["slot_start"]], slot_of[row["slot_end"]])
        if row["layout"] != "off":
            states[slots, gpu] = held[slots, gpu] = layouts.index(row["layout"])
        elif row["parked"] is not None:
            held[slots, gpu] = layouts.index(row["parked"])
    counts = np.stack([(states == number).sum(axis=1) for number in range(len(layouts))], axis=1)
    starts = np.arange(problem.n_slots, dtype=np.float64) * problem.slot_hours * SECONDS_PER_HOUR
    return Calendar(starts, tuple(layouts), counts, states, held=None if problem.prices is None else held)


def played_weeks(scenario: Scenario, layout_plan: pl.DataFrame, problem: PlanProblem) -> Iterator[Run]:
    """Play a plan on drawn weeks, its changes made as the scenario's path makes them; the same weeks for every plan."""
    known, drain = history(scenario), drain_of(scenario, problem.change)
    if known.fleet.board is None or (known.fleet.board.name, known.fleet.gpus) != (
        problem.board.name,
        problem.gpus,
    ):
        text = message(
            "rehearsal of a plan",
            f"a scenario with {problem.gpus} x {problem.board.name}",
            f"{known.fleet.gpus} x {known.fleet.name}",
            "Name the scenario that the plan was made of.",
        )
        raise ScenarioError(text)
    calendar, past = numbered_calendar(layout_plan, problem), past_jobs(known)
    fleet = Fleet(problem.board, len(problem.node_names), problem.gpus_per_node)
    rules = Rules(scenario.queue, change=problem.change, drain=drain)
    until_s = problem.n_slots * problem.slot_hours * SECONDS_PER_HOUR
    for number in range(min(scenario.replications, REHEARSALS)):
        jobs = workload(replicate(scenario, known, past, number), "rightsized")
        yield simulate(jobs, fleet, calendar, rules, policy="plan", until_s=until_s, leave_unservable=True)


def rehearse(scenario: Scenario, layout_plan: pl.DataFrame, problem: PlanProblem) -> pl.DataFrame:
    """Play the changes of a plan on drawn weeks, as the scenario's path makes them."""
    played = []
    for run in played_weeks(scenario, layout_plan, problem):
        held = run.spells.drop_nulls("start_s").select("node", "start_s", "end_s", place="gpu", size="gpus")
        made = run.changes.with_row_index("row")
        there = made.join(held, on="node").filter(
            pl.col("start_s") < pl.col("wanted_s"), pl.col("end_s").fill_null(np.inf) > pl.col("wanted_s"),
            pl.col("gpu").is_null() | (pl.col("gpu") == pl.col("place")),
        )  # fmt: skip
        busy = there.group_by("row").agg(in_the_way=pl.col("size").sum())
        played.append(made.join(busy, on="row", how="left", maintain_order="left").drop("row"))
    late_s = pl.coalesce("drained_s", "ended_s", pl.lit(np.inf)) - pl.col("wanted_s")
    late = late_s.clip(0.0) / SECONDS_PER_MINUTE
    found = (
        pl.concat(played)
        .group_by("wanted_s", "node", "gpu")
        .agg(
            drain_median_minutes=late.median(),
            drain_p95_minutes=late.quantile(0.95, "higher"),
            in_the_way=pl.col("in_the_way").fill_null(0).mean(),
            in_time=(pl.col("outcome") == "done").fill_null(value=False).mean(),
        )
    )
    planned = pl.lit(problem.slot_times[0]) + pl.duration(milliseconds=1000 * pl.col("wanted_s"))
    names = dict(enumerate(problem.node_names))
    return found.select(
        planned=planned.cast(pl.Datetime("us", "UTC")),
        node=pl.col("node").replace_strict(names, return_dtype=pl.String),
        gpu="gpu",
        **{name: pl.col(name).cast(kind) for name, kind in REHEARSED.items()},
    ).sort("planned", "node", "gpu")
