"""Numbered GPUs: few cuts, whole nodes for gangs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import ScenarioError
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.hardware.repartitioning_cost import ChangeCost
from gpuplanner.planner.fleet_limits_and_prices import Limits
from gpuplanner.planner.layout_plan import plan_from_json, plan_to_json
from gpuplanner.planner.numbered_gpus import assign, count_numbered_changes
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.planner.plan_verification import verify

NAMES = ["1g.5gb", "3g.20gb", "gpu"]
CUTS = ("7g.40gb:1", "4g.20gb:1,3g.20gb:1", "4g.20gb:1,1g.5gb:3", "3g.20gb:2", "2g.10gb:3,1g.5gb:1", "1g.5gb:7")


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_cuts_are_as_few_as_the_counts_allow(problem_of: Any, data: st.DataObject) -> None:
    slots = data.draw(st.integers(1, 6))
    size = 3 * slots
    demand = np.array(data.draw(st.lists(st.integers(0, 9), min_size=size, max_size=size)))
    per_node = data.draw(st.integers(1, 4))
    initial = data.draw(st.sampled_from([None, {"1g.5gb:7": 2, "gpu": 1}, {"4g.20gb:1,3g.20gb:1": 1}]))
    problem = problem_of(
        demand.reshape(1, 3, slots), NAMES, gpus=7, gpus_per_node=per_node, initial=initial, change_gpu_hours=0.3
    )
    found = plan(problem)
    frame = assign(found, problem)
    assert verify(found, problem, frame) == []
    assert frame["changed"].sum() == found.changes
    assert frame.equals(frame.sort("node", "gpu", "slot_start"))
    assert frame.equals(assign(found, problem))


def numbered(problem: PlanProblem, layouts: Sequence[str], counts: Sequence[Sequence[int]]) -> list[list[str]]:
    """Layout of every GPU in every slot, if a plan has these counts."""
    found = replace(plan(problem), layouts=tuple(layouts), counts=np.array(counts))
    rows = assign(found, problem).to_dicts()
    held = [[row for row in rows if row["slot_start"] <= time < row["slot_end"]] for time in problem.slot_times[:-1]]
    return [[row["layout"] for row in sorted(slot, key=lambda row: (row["node"], row["gpu"]))] for slot in held]


def rough(gpu_model: GpuModel, before: Sequence[str], after: Sequence[str]) -> tuple[int, int, int]:
    """Reboots, instances destroyed and instances made, if GPUs are cut so through NVML."""
    changes = [
        ChangeCost.from_catalogue(gpu_model, "nvidia-smi").change(was, now)
        for was, now in zip(before, after, strict=True)
        if was != now
    ]
    return (
        sum(change.reboot for change in changes),
        sum(len(change.destroyed) for change in changes),
        sum(len(change.created) for change in changes),
    )


def other_ways(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[list[str], list[str]]]:
    """GPUs cut anew before and after, for every choice among all that neither stay as they are nor are whole."""
    free = [gpu for gpu, (was, now) in enumerate(zip(before, after, strict=True)) if now == "off" or was != now]
    free = [gpu for gpu in free if after[gpu] != "gpu"]
    new = [after[gpu] for gpu in free if after[gpu] != "off"]
    for chosen in itertools.permutations(free, len(new)):
        yield [before[gpu] for gpu in chosen], new


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_new_cuts_harm_as_little_as_any_choice_would(problem_of: Any, data: st.DataObject) -> None:
    """Every way to take up the new cuts is tried: none has fewer reboots, then fewer instances lost or made."""
    gpus = data.draw(st.integers(3, 6))
    layouts = data.draw(st.lists(st.sampled_from([*CUTS, "gpu"]), min_size=3, max_size=5, unique=True))
    state = st.lists(st.sampled_from([*layouts, "off"]), min_size=gpus, max_size=gpus)
    states = data.draw(st.lists(state, min_size=2, max_size=4))
    counts = [[slot.count(text) for text in layouts] for slot in states]
    problem = problem_of(
        np.zeros((1, 1, len(states))), ["1g.5gb"], gpus=gpus, gpus_per_node=data.draw(st.integers(1, 3))
    )
    slots = numbered(problem, layouts, counts)
    assert [Counter(slot) for slot in slots] == [Counter(slot) for slot in states]
    for before, after in itertools.pairwise(slots):
        stays = Counter(was for was, now in zip(before, after, strict=True) if was == now)
        for text in set(layouts) - {"gpu"}:
            assert stays[text] == min(before.count(text), after.count(text))
        cut = [(was, now) for was, now in zip(before, after, strict=True) if now not in (was, "off", "gpu")]
        best = min((rough(problem.gpu_model, *way) for way in other_ways(before, after)), default=(0, 0, 0))
        assert rough(problem.gpu_model, [was for was, _ in cut], [now for _, now in cut]) == best
    cuts = [
        sum(now not in (was, "off") and (was, now) != ("off", "gpu") for was, now in itertools.pairwise(gpu))
        for gpu in zip(*slots, strict=True)
    ]
    assert count_numbered_changes(problem, layouts, np.array(counts))[0] == max(cuts)


def test_an_idle_cut_that_keeps_an_instance_is_taken_rather_than_a_gpu_that_needs_a_reboot(problem_of: Any) -> None:
    """Its 4g stays, no A100 is rebooted, and fewer instances are made than on one where as many are destroyed."""
    old, new, other = "4g.20gb:1,3g.20gb:1", "4g.20gb:1,1g.5gb:3", "7g.40gb:1"
    problem = problem_of(np.zeros((1, 1, 2)), ["1g.5gb"], gpus=5, gpus_per_node=2)
    before, after = numbered(problem, [old, new, other, "gpu"], [[1, 0, 2, 2], [0, 1, 1, 1]])
    assert before.index(old) == after.index(new)
    change = ChangeCost.from_catalogue(problem.gpu_model, "nvidia-smi").change(old, new)
    assert [str(each) for each in change.kept] == ["4g.20gb@0"]
    assert not change.reboot
    assert ChangeCost.from_catalogue(problem.gpu_model, "nvidia-smi").change("gpu", new).reboot


@pytest.mark.parametrize("first", [("7g.40gb:1", "3g.20gb:2"), ("3g.20gb:2", "7g.40gb:1")])
def test_of_gpus_cut_alike_the_one_that_was_cut_today_stays(problem_of: Any, first: tuple[str, str]) -> None:
    """Two become alike, then one of them is cut anew: each is cut once, wherever the first of them stood."""
    problem = problem_of(np.zeros((1, 1, 3)), ["1g.5gb"], gpus=2, gpus_per_node=1, limits=Limits(switches_per_day=1))
    slots = numbered(problem, [*first, "1g.5gb:7"], [[1, 1, 0], [2, 0, 0], [1, 0, 1]])
    cuts = [sum(was != now for was, now in itertools.pairwise(gpu)) for gpu in zip(*slots, strict=True)]
    assert cuts == [1, 1]


def test_without_whole_gpus_cuts_still_stand_together(problem_of: Any) -> None:
    """Three cut GPUs and three that are off, on nodes of three: one node has all the cuts, whatever they become."""
    problem = problem_of(np.zeros((1, 1, 3)), ["1g.5gb"], gpus=6, gpus_per_node=3)
    slots = numbered(problem, ["1g.5gb:7", "3g.20gb:2"], [[1, 1], [2, 1], [1, 2]])
    assert [slot[:3].count("off") for slot in slots] == [3, 3, 3]
    assert [slot[3:].count("off") for slot in slots] == [1, 0, 0]


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
