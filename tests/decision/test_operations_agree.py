"""What the engine plays and what the written pack does are the same operations, one by one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.layout_planning import plan_view
from gpuplanner.decision.plan_rehearsal import GpuCalendar, make_drain_rule
from gpuplanner.hardware.repartitioning_cost import ChangeCost
from gpuplanner.planner.numbered_gpus import assign
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.report.change_bundle_parts import change_index
from gpuplanner.report.mig_manager_files import to_change_scripts
from gpuplanner.simulator.scheduling_rules import Drain
from tests.decision.planned_operations import operations_on_an_idle_fleet
from tests.examples import examples

START = datetime(2026, 11, 2, tzinfo=UTC)
LAYOUTS = {
    "A100-80GB": ("off", "gpu", "3g.40gb:2", "4g.40gb:1,3g.40gb:1", "1g.10gb:7"),
    "H100-80GB-SXM5": ("off", "gpu", "3g.40gb:2", "2g.20gb:3,1g.10gb:1", "1g.20gb:4"),
}


def problem_of(gpu_model: str, gpus: int, per_node: int, slots: int) -> PlanProblem:
    return PlanProblem(gpu_model, gpus, per_node, START, 1.0, ["t"], ["gpu"], np.ones((1, 1, slots)))


def layout_plan_of(problem: PlanProblem, states: list[list[str]]) -> pl.DataFrame:
    """Runs of slots with one layout as rows of a layout plan; states are by slot and GPU."""
    rows: list[dict[str, Any]] = []
    for number, mine in enumerate(zip(*states, strict=True)):
        for slot, layout in enumerate(mine):
            if slot and layout == mine[slot - 1]:
                rows[-1]["slot_end"] = problem.slot_times[slot + 1]
                continue
            place = {"node": problem.node_names[number // problem.gpus_per_node]}
            place |= {"gpu": number % problem.gpus_per_node, "layout": layout}
            times = {"slot_start": problem.slot_times[slot], "slot_end": problem.slot_times[slot + 1]}
            rows.append(place | times | {"changed": layout not in ("gpu", "off")})
    return pl.DataFrame(rows, schema_overrides={"gpu": pl.Int32})


def agree(plan: pl.DataFrame, problem: PlanProblem, change: ChangeCost, drain: Drain) -> int:
    """Hold the operations of the engine, on an idle fleet, against the index and the scripts; say how many."""
    begin = problem.slot_times[0]
    index = change_index(plan, problem.gpu_model, change=change, drain=drain).filter(pl.col("planned") > begin)
    problem = replace(problem, change=change)
    made = operations_on_an_idle_fleet(GpuCalendar.from_layout_plan(plan, problem), problem, drain).sort(
        "wanted_s", "node", "gpu"
    )
    assert (made["outcome"] == "done").all()
    assert made.height == index.height
    scripts = to_change_scripts(plan, problem.gpu_model, change=change)
    texts = [text for text in plan["layout"].unique() if text != "off"]
    seconds_of_any = [change.change(old, new).seconds for old in ("gpu", *texts) for new in texts]
    for engine, pack in zip(made.iter_rows(named=True), index.iter_rows(named=True), strict=True):
        assert pack["planned"] == begin + timedelta(seconds=engine["wanted_s"])
        assert pack["node"] == problem.node_names[engine["node"]]
        for same in ("gpu", "gpus", "before", "after"):
            assert pack[same] == engine[same], same
        # Nothing is cut before its time; the next cordon comes when the last change is over.
        seconds = [
            change.change(old.partition("=")[2], new.partition("=")[2]).seconds
            for old, new in zip(engine["before"].split(), engine["after"].split(), strict=True)
        ]
        assert engine["ended_s"] - engine["wanted_s"] == pytest.approx(max(seconds))
        cordon = max((pack["reserve_from"] - begin).total_seconds(), 0.0)
        assert cordon <= engine["began_s"] <= cordon + max(seconds_of_any)
        assert f"{pack['node']}" in scripts[f"{pack['change']}.sh"]
        assert pack["planned"].strftime("%Y-%m-%dT%H:%M:%SZ") in scripts[f"{pack['change']}.sh"].splitlines()[1]
    return made.height


@st.composite
def cases(draw: st.DrawFn) -> tuple[PlanProblem, pl.DataFrame, ChangeCost, Drain]:
    gpu_model = draw(st.sampled_from(sorted(LAYOUTS)))
    per_node, gpus, slots = draw(st.integers(1, 3)), draw(st.integers(1, 6)), draw(st.integers(2, 6))
    problem = problem_of(gpu_model, gpus, per_node, slots)
    row = st.lists(st.sampled_from(LAYOUTS[gpu_model]), min_size=gpus, max_size=gpus)
    plan = layout_plan_of(problem, draw(st.lists(row, min_size=slots, max_size=slots)))
    drain = Drain(
        draw(st.sampled_from(["node", "gpu"])), draw(st.sampled_from([0.0, 3600.0, 1e5])), 1800.0, before_change=True
    )
    return (
        problem,
        plan,
        ChangeCost.from_catalogue(gpu_model, draw(st.sampled_from(["mig-manager", "nvidia-smi"]))),
        drain,
    )


@pytest.mark.long
@settings(max_examples=examples(60), deadline=None)
@given(cases())
def test_operations_of_random_plans(case: Any) -> None:
    problem, plan, change, drain = case
    agree(plan, problem, change, drain)


@pytest.mark.long
@pytest.mark.parametrize(
    ("gpu_model", "actuator"),
    [pytest.param("A100-80GB", "mig-manager", marks=pytest.mark.long), ("H100-80GB-SXM5", "nvidia-smi")],
)
def test_operations_of_the_sample(quick: Scenario, gpu_model: str, actuator: str) -> None:
    asked = {"actuator": actuator, "gpu_model": gpu_model, "horizon_intervals": 48}
    scenario = quick.but(**asked, change_gpu_hours=0.1)
    planned = plan_view(scenario, "rightsized", "greedy")
    drain = make_drain_rule(scenario, planned.problem.change)
    assert drain.scope == ("node" if actuator == "mig-manager" else "gpu")
    plan = assign(planned.plan, planned.problem)
    assert agree(plan, planned.problem, planned.problem.change, drain) > 5
