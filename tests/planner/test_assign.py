"""Numbered GPUs: few cuts, whole nodes for gangs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.errors import InfeasiblePlanError, ScenarioError
from gpuplanner.planner import PlanProblem, assign, plan, plan_from_json, plan_to_json, verify

NAMES = ["1g.5gb", "3g.20gb", "gpu"]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_cuts_are_as_few_as_the_counts_allow(problem_of: Any, data: st.DataObject) -> None:
    slots = data.draw(st.integers(1, 6))
    size = 3 * slots
    demand = np.array(data.draw(st.lists(st.integers(0, 9), min_size=size, max_size=size)))
    per_node = data.draw(st.integers(1, 4))
    initial = data.draw(st.sampled_from([None, {"1g.5gb:7": 2, "gpu": 1}, {"4g.20gb:1,3g.20gb:1": 1}]))
    problem = problem_of(
        demand.reshape(1, 3, slots),
        NAMES,
        gpus=7,
        gpus_per_node=per_node,
        initial=initial,
        change_gpu_hours=0.3,
    )
    found = plan(problem)
    frame = assign(found, problem)
    assert verify(found, problem, frame) == []
    assert frame["changed"].sum() == found.changes
    assert frame.equals(frame.sort("node", "gpu", "slot_start"))
    assert frame.equals(assign(found, problem))


def whole_nodes(frame: pl.DataFrame, problem: PlanProblem, slot: int) -> int:
    """Nodes on which every GPU is whole in a slot."""
    time = problem.slot_times[slot]
    now = frame.filter(pl.col("slot_start") <= time, pl.col("slot_end") > time)
    return now.group_by("node").agg((pl.col("layout") == "gpu").all()).get_column("layout").sum()


def test_whole_gpus_stand_together_on_nodes(problem_of: Any) -> None:
    """16 whole GPUs and 8 cut ones on nodes of eight: a job of 16 finds two nodes, in every slot."""
    problem = problem_of([[[56] * 5, [16] * 5]], ["1g.5gb", "gpu"], gpus=24, gpus_per_node=8)
    frame = assign(plan(problem), problem)
    assert all(whole_nodes(frame, problem, slot) == 2 for slot in range(5))


def test_a_whole_gpu_stays_where_it_is_while_cuts_come_and_go(problem_of: Any) -> None:
    demand = [[[14, 35, 7, 28, 14], [3, 2, 3, 3, 4]]]
    problem = problem_of(demand, ["1g.5gb", "gpu"], gpus=8, gpus_per_node=4)
    frame = assign(plan(problem), problem)
    always = frame.filter(
        pl.col("layout") == "gpu",
        pl.col("slot_start") == problem.slot_times[0],
        pl.col("slot_end") == problem.slot_times[-1],
    )
    assert always.height == 2


def test_nodes_keep_the_names_of_the_user(problem_of: Any) -> None:
    problem = replace(problem_of([[[3.0]]], ["gpu"]), nodes=["rack-b", "rack-a"])
    found = plan(problem)
    frame = assign(found, problem)
    assert set(frame["node"]) == {"rack-a", "rack-b"}
    assert verify(found, problem, frame) == []
    assert plan_from_json(plan_to_json(found, problem))[1].nodes == ("rack-b", "rack-a")
    renamed = frame.with_columns(pl.col("node").replace("rack-a", "rack-c"))
    assert any("rack-c" in fault for fault in verify(found, problem, renamed))
    for wrong in (["one"], ["same", "same"], ["a", "b", "c"]):
        with pytest.raises(ScenarioError, match="2 different names"):
            replace(problem, nodes=wrong)


def test_names_sort_like_numbers(problem_of: Any) -> None:
    problem = problem_of([[[1.0]]], ["gpu"], gpus=11, gpus_per_node=1)
    assert assign(plan(problem), problem)["node"].to_list() == [f"node{n:02d}" for n in range(11)]


def test_without_a_plan_there_is_nothing_to_assign(problem_of: Any) -> None:
    problem = problem_of([[[1.0]]], ["gpu"], whole_gpus_kept=2, available=[1])
    with pytest.raises(InfeasiblePlanError, match="keep at most 1 whole, or have 1 more in service"):
        assign(plan(problem), problem)
