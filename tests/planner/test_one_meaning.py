"""Departures, changes, instances that go and come, and reboots of a plan are the same wherever they are counted."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.layout_planning import make_plan_problem
from gpuplanner.decision.plan_rehearsal import GpuCalendar
from gpuplanner.planner.fleet_limits_and_prices import StatePrices
from gpuplanner.planner.layout_plan import Plan, check_layout_plan, list_layout_changes, node_states_of_table
from gpuplanner.planner.numbered_gpus import assign, initial_gpu_layouts, layout_changes
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.planner.plan_verification import verify
from gpuplanner.report.change_bundle_parts import change_index
from gpuplanner.report.mig_manager_files import to_change_scripts
from gpuplanner.report.slurm_files import to_slurm_files
from gpuplanner.simulator.scheduling_rules import Drain
from tests.decision.planned_operations import operations_on_an_idle_fleet

BOARDS = {
    "A100-80GB": ["1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb", "gpu"],
    "H100-80GB-SXM5": ["1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb", "gpu"],
}


def with_the_past(calendar: GpuCalendar, before: pl.DataFrame | None, problem: PlanProblem) -> GpuCalendar:
    """A calendar that begins a slot earlier, as the fleet was cut then; where nothing is known of that, as it is."""
    if before is None:
        return calendar
    held = dict(zip(before.select("node", "gpu").rows(), before["layout"], strict=True))
    texts = [held[node, gpu] for node in problem.node_names for gpu in range(problem.gpus_per_node)]
    layouts = tuple(dict.fromkeys((*calendar.layouts, *texts)))
    first = np.array([layouts.index(text) for text in texts])
    return GpuCalendar(
        layouts, np.vstack([first, calendar.powered_layouts]), np.vstack([first, calendar.assigned_layouts])
    )


def counted(found: Plan, problem: PlanProblem) -> dict[str, tuple[int, ...]]:
    """Departures, changes, instances that go or come, and reboots, by who counts them; who does not say is left out.

    They begin with the first slot where initial layouts are known, else after it.
    """
    frame, initial = assign(found, problem), initial_gpu_layouts(found, problem)
    assert verify(found, problem, frame) == []
    exported = [
        (before, after, len(one.times))
        for one in list_layout_changes(
            check_layout_plan(frame, problem.gpu_model), initial=node_states_of_table(initial)
        )
        for before, after in one.nodes.values()
        if before is not None
    ]
    pairs = [
        [problem.change.change(was, is_) for (_, was), (_, is_) in zip(a.gpus, b.gpus, strict=True) if was != is_]
        for a, b, times in exported
        for _ in range(times)
    ]
    calendar = with_the_past(GpuCalendar.from_layout_plan(frame, problem), initial, problem)
    games = {
        scope: operations_on_an_idle_fleet(calendar, problem, Drain(scope=scope, limit_s=None))
        for scope in ("node", "gpu")
    }
    index = {
        scope: change_index(frame, problem.gpu_model, change=problem.change, drain=Drain(scope=scope), initial=initial)
        for scope in ("node", "gpu")
    }
    table = layout_changes(found, problem)
    options = {"change": problem.change, "initial": initial}
    scripts = [
        to_change_scripts(frame, problem.gpu_model, **options),
        {k: v for k, v in to_slurm_files(frame, problem.gpu_model, **options).items() if k.startswith("change")},
    ]
    return {
        "drained_gpus": (found.drained_gpus,),
        "changes": (
            found.changes, table["changes"].sum(), sum(map(len, pairs)),
            *(game["gpus"].sum() for game in games.values()),
            *(one["gpus"].sum() for one in index.values()),
            *(sum(in_script(text, r"^#   GPU \d+: .* -> ") for text in made.values()) for made in scripts),
        ),
        "instances": (
            sum(change.operations for node in pairs for change in node),
            sum(problem.change.change(old, new).operations * times
                for old, new, times in table.select("before", "after", "changes").iter_rows()),
            *(played(game, problem) for game in games.values()),
            *(sum(in_script(text, r"^#   (\d+) instances deleted, (\d+) created") for text in made.values())
              for made in scripts),
        ),
        "emptied": (
            sum(change.drained_units for node in pairs for change in node),
            *(one["instances_removed"].sum() for one in index.values()),
        ),
        "reboots": (
            found.reboots, sum(any(change.reboot for change in node) for node in pairs),
            *(sum(in_script(text, "needs a reboot") for text in made.values()) for made in scripts),
        ),
    }  # fmt: skip


def in_script(text: str, line: str) -> int:
    """How often a script is planned to do what such lines in it say."""
    times = re.findall(r"\d{4}-\d\d-\d\dT[\d:]+Z", next(one for one in text.splitlines() if "layout change for" in one))
    told = re.findall(line, text, re.MULTILINE)
    return len(times) * sum(sum(map(int, one)) if isinstance(one, tuple) else 1 for one in told)


def played(game: pl.DataFrame, problem: PlanProblem) -> int:
    """Instances that go or come in a game."""
    pairs = zip(game["before"].str.split(" "), game["after"].str.split(" "), strict=True)
    each = [(old.split("=")[1], new.split("=")[1]) for row in pairs for old, new in zip(*row, strict=True)]
    return sum(problem.change.change(old, new).operations for old, new in each)


def random_plan(seed: int, *, released: bool, cut: bool = False) -> tuple[Plan, PlanProblem]:
    rng = np.random.default_rng(seed)
    gpu_model = list(BOARDS)[seed % 2]
    profiles = rng.choice(BOARDS[gpu_model], size=3, replace=False).tolist()
    prices = StatePrices(
        parked_price=float(rng.choice([0, 0.1])),
        dress=float(rng.choice([0.02, 0.2])),
        drain=float(rng.choice([0, 0.2])),
        reboot=float(rng.choice([0, 0.4, 1.3])) if gpu_model.startswith("A") else 0.0,
    )
    demand = rng.choice([0, 1, 3.5, 8], size=(1, 3, 5))
    texts = ["gpu", "1g.10gb:7", "3g.40gb:2", "2g.20gb:3,1g.10gb:1", "7g.80gb:1"]
    first = rng.multinomial(12, rng.dirichlet(np.ones(len(texts)))).tolist()
    initial = {text: gpus for text, gpus in zip(texts, first, strict=True) if gpus} if cut else None
    problem = PlanProblem(
        gpu_model, 12, 4, datetime(2026, 11, 2, tzinfo=UTC), 1, ["t"], profiles, demand,
        prices=None if released else prices, change_gpu_hours=prices.dress, initial=initial,
    )  # fmt: skip
    return plan(problem, gap_target=0.02), problem


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("released", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("ten", [0, *(pytest.param(ten, marks=pytest.mark.long) for ten in range(1, 10))])
def test_random_plans_are_counted_alike_everywhere(ten: int, released: bool, cut: bool) -> None:
    total = np.zeros(5, dtype=int)
    for seed in range(10 * ten, 10 * ten + 10):
        found, problem = random_plan(seed, released=released, cut=cut)
        numbers = counted(found, problem)
        assert all(len(set(values)) == 1 for values in numbers.values()), (seed, numbers)
        total += [values[0] for values in numbers.values()]
    assert total.min() > 0


@pytest.mark.parametrize(("seed", "paid", "made"), [(4, 2, 3), (0, None, None)])
def test_reboots_beyond_those_paid_for_are_named(seed: int, paid: int | None, made: int | None) -> None:
    """Four GPUs become whole on two nodes at once, where there is room for them on one."""
    found, _ = random_plan(seed, released=False)
    said = f"With numbered GPUs nodes reboot {made} times; the cost includes {paid}, "
    assert (said in found.explanation) == (paid is not None)
    assert ("nodes reboot" in found.explanation) == (paid is not None)
    assert paid is None or found.reboots == made


def planned_without_a_past(scenario: Scenario) -> tuple[Plan, PlanProblem]:
    """A week from a fleet that may begin as it likes, so that all that is counted lies within the week."""
    problem = replace(make_plan_problem(scenario, "rightsized"), initial=None)
    return plan(problem), problem


@pytest.mark.long
@pytest.mark.parametrize("actuator", ["mig-manager", "slurm"])
@pytest.mark.parametrize("gpu_model", BOARDS)
def test_a_week_of_the_sample_is_counted_alike_everywhere(gpu_model: str, actuator: str) -> None:
    numbers = counted(*planned_without_a_past(Scenario(gpu_model=gpu_model, actuator=actuator)))
    assert all(len(set(values)) == 1 for values in numbers.values()), numbers
    assert numbers["drained_gpus"][0] > 100
