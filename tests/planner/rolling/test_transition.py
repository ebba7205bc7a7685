"""Steps at one slot boundary: who is drained and cut when, and what is short meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest

from gpuplanner.core.errors import GeometryError, ScenarioError, SchemaError
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.hardware.mig_layouts import parse_layout
from gpuplanner.hardware.repartitioning_cost import ChangeCost
from gpuplanner.planner.drain_order import DRAIN_ACTIONS, transition
from gpuplanner.planner.numbered_gpus import assign
from gpuplanner.planner.plan_problem import can_serve
from gpuplanner.planner.plan_search import plan
from gpuplanner.planner.plan_verification import InstanceMatching
from tests.seeds import seeds

NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)
HOPPER = "H100-80GB-SXM5"
AMPERE = "A100-80GB"


def table(gpus: Mapping[tuple[str, int], tuple[str, ...]]) -> pl.DataFrame:
    """Layouts by GPU, one hour each, the last one from noon on."""
    rows = []
    for (node, gpu), layouts in gpus.items():
        for index, layout in enumerate(layouts):
            start = NOON + timedelta(hours=index + 1 - len(layouts))
            rows.append((node, gpu, start, start + timedelta(hours=1), layout, False))
    names = ["node", "gpu", "slot_start", "slot_end", "layout", "changed"]
    return pl.DataFrame(rows, schema=names, orient="row").with_columns(pl.col("gpu").cast(pl.Int32))


def actions(frame: pl.DataFrame) -> dict[tuple[str, int], tuple[int, str]]:
    return {(r["node"], r["gpu"]): (r["step"], r["action"]) for r in frame.to_dicts()}


def test_every_action_in_its_place() -> None:
    gpus = {
        ("n", 0): ("3g.40gb:2", "3g.40gb:2", "3g.40gb:2"),
        ("n", 1): ("3g.40gb:2", "off", "gpu"),
        ("n", 2): ("7g.80gb:1", "off", "7g.80gb:1"),
        ("n", 3): ("7g.80gb:1", "7g.80gb:1", "1g.10gb:7"),
        ("n", 4): ("7g.80gb:1", "7g.80gb:1", "gpu"),
        ("n", 5): ("3g.40gb:2", "3g.40gb:2", "off"),
        ("n", 6): ("off", "off", "off"),
    }
    found = actions(transition(table(gpus), at=NOON, gpu_model=HOPPER, at_once=2))
    assert found == {
        ("n", 1): (1, "return"),
        ("n", 2): (1, "partition"),
        ("n", 3): (2, "repartition"),
        ("n", 4): (2, "disable_mig"),
        ("n", 5): (3, "release"),
    }
    assert {action for _, action in found.values()} < set(DRAIN_ACTIONS)


def test_times_add_up_and_a_gpu_that_was_parked_is_not_cut() -> None:
    gpus = {("n", 0): ("3g.40gb:2", "off", "3g.40gb:2"), ("n", 1): ("7g.80gb:1", "7g.80gb:1", "3g.40gb:2")}
    parked = pl.when(pl.col("layout") == "off").then(pl.lit("3g.40gb:2"))
    found = transition(table(gpus).with_columns(parked=parked), at=NOON, gpu_model=HOPPER, drain_s=300).to_dicts()
    cost = ChangeCost.from_catalogue(HOPPER).change("7g.80gb:1", "3g.40gb:2")
    assert [row["minutes"] for row in found] == [0, pytest.approx((300 + cost.seconds) / 60)]
    assert [row["start_min"] for row in found] == [0, 0]
    assert [row["created"] for row in found] == ["", "3g.40gb@0 3g.40gb@4"]
    assert [row["drain"] for row in found] == [False, True]


def test_at_most_so_many_are_out_at_once() -> None:
    gpus = {("n", gpu): ("7g.80gb:1", "1g.10gb:7") for gpu in range(5)}
    steps = transition(table(gpus), at=NOON, gpu_model=HOPPER, at_once=2)
    assert steps["step"].to_list() == [1, 1, 2, 2, 3]
    assert steps["start_min"].to_list() == [0, 0, 1, 1, 2]


def test_what_others_wait_for_comes_first() -> None:
    """Two of three 7g stay wanted, so one GPU at a time; the idle GPU that becomes a 7g goes first of all."""
    gpus = {
        ("n", 0): ("7g.80gb:1", "1g.10gb:7"),
        ("n", 1): ("1g.10gb:7", "7g.80gb:1"),
        ("n", 2): ("off", "7g.80gb:1"),
        ("n", 3): ("7g.80gb:1", "7g.80gb:1"),
    }
    steps = transition(table(gpus), at=NOON, gpu_model=HOPPER, at_once=4)
    assert {(r["gpu"], r["step"]) for r in steps.to_dicts()} == {(2, 1), (0, 2), (1, 3)}
    assert steps["short"].to_list() == [0, 0, 0]


def test_what_cannot_be_avoided_is_counted() -> None:
    gpus = {("n", 0): ("7g.80gb:1", "1g.10gb:7"), ("n", 1): ("1g.10gb:7", "7g.80gb:1")}
    steps = transition(table(gpus), at=NOON, gpu_model=HOPPER)
    # Seven small and a large one are wanted throughout. The large one goes first, 1 short; once it is cut, its
    # seven small ones stand in for those of the other GPU, and only the large one is short again.
    assert {(r["gpu"], r["step"], r["short"]) for r in steps.to_dicts()} == {(0, 1, 1), (1, 2, 1)}


def test_nvml_keeps_instances_that_both_want() -> None:
    gpus = {("n", 0): ("4g.40gb:1,3g.40gb:1", "4g.40gb:1,1g.10gb:3")}
    through = {
        actuator: transition(table(gpus), at=NOON, gpu_model=HOPPER, change=ChangeCost.from_catalogue(HOPPER, actuator))
        for actuator in ("nvidia-smi", "mig-manager")
    }
    assert through["nvidia-smi"]["kept"].to_list() == ["4g.40gb@0"]
    assert through["nvidia-smi"]["short"].to_list() == [0]
    assert through["mig-manager"]["kept"].to_list() == [""]
    assert through["mig-manager"]["short"].to_list() == [1]


def test_mode_changes_on_ampere_take_the_node_along() -> None:
    gpus = {
        ("a", 0): ("gpu", "3g.40gb:2"),
        ("a", 1): ("3g.40gb:2", "3g.40gb:2"),
        ("a", 2): ("off", "off"),
        ("b", 0): ("3g.40gb:2", "7g.80gb:1"),
    }
    ampere = transition(table(gpus), at=NOON, gpu_model=AMPERE, at_once=2, drain_s=60)
    rows = {(r["node"], r["gpu"]): r for r in ampere.to_dicts()}
    assert set(rows) == {("a", 0), ("a", 1), ("b", 0)}
    assert rows["a", 1]["action"] == "wait"
    assert rows["a", 1]["drain"]
    reboot = ChangeCost.from_catalogue(AMPERE).change("gpu", "3g.40gb:2")
    assert reboot.reboot
    assert rows["a", 0]["minutes"] == rows["a", 1]["minutes"] == pytest.approx((60 + reboot.seconds) / 60)
    assert ampere.filter("reboot").select("step", "node").unique().height == 1
    hopper = transition(table(gpus), at=NOON, gpu_model=HOPPER, at_once=2)
    assert not hopper["reboot"].any()
    assert hopper.height == 2


def test_a_reboot_that_takes_too_many_is_refused() -> None:
    gpus = {("a", gpu): ("gpu", "3g.40gb:2" if gpu == 0 else "gpu") for gpu in range(4)}
    with pytest.raises(ScenarioError, match="at_once=4"):
        transition(table(gpus), at=NOON, gpu_model=AMPERE, at_once=2)


@pytest.mark.parametrize("seed", seeds(6, 12))
def test_steps_of_a_plan_lead_where_it_says(problem_of: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    demand = rng.uniform(0, 6, size=(1, 4, 4))
    profiles = ["1g.10gb", "2g.20gb", "3g.40gb", "gpu"]
    problem = problem_of(demand, profiles, gpu_model=[HOPPER, AMPERE][seed % 2], gpus=14, gpus_per_node=4)
    made = assign(plan(problem, gap_target=0.05), problem)
    at_once = 4 + seed % 3
    for boundary in problem.slot_times[1:-1]:
        steps = transition(made, at=boundary, gpu_model=problem.gpu_model, at_once=at_once)
        before = made.filter(pl.col("slot_start") < boundary, pl.col("slot_end") >= boundary)
        after = made.filter(pl.col("slot_start") <= boundary, pl.col("slot_end") > boundary)
        state = {(n, g): layout for n, g, layout in before.select("node", "gpu", "layout").rows()}
        wanted = {(n, g): layout for n, g, layout in after.select("node", "gpu", "layout").rows()}
        in_use = {key for key, layout in state.items() if layout != "off"}
        needed = instances(state.values()) & instances(wanted.values())
        for step in sorted(set(steps["step"])):
            rows = steps.filter(step=step).to_dicts()
            keys = {(row["node"], row["gpu"]) for row in rows}
            assert all(state[row["node"], row["gpu"]] == row["before"] for row in rows)
            meanwhile = instances(layout for key, layout in state.items() if key not in keys)
            assert {row["short"] for row in rows} == {unmatched(problem.gpu_model, needed, meanwhile)}
            if {row["action"] for row in rows} != {"release"}:
                assert len(keys & in_use) <= at_once
            state |= {(row["node"], row["gpu"]): row["after"] for row in rows}
        assert state == wanted
        assert steps.select("node", "gpu").n_unique() == steps.height


def instances(layouts: Iterable[str]) -> Counter[str]:
    held: Counter[str] = Counter()
    for layout in layouts:
        if layout != "off":
            held.update(parse_layout(layout))
    return held


def unmatched(gpu_model: GpuModel, requests: Counter[str], there: Counter[str]) -> int:
    """Requests without an instance, by augmenting actuators."""
    able = [[name for name in there if can_serve(gpu_model, name, request)] for request in requests]
    matching = InstanceMatching(able, there)
    return sum(n - matching.serve(index, n) for index, n in enumerate(requests.values()))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"at": NOON - timedelta(days=1)}, SchemaError, "just before and after it"),
        ({"at": NOON.replace(tzinfo=None)}, ScenarioError, "without zone"),
        ({"change": ChangeCost.from_catalogue(AMPERE)}, ScenarioError, "one for H100-80GB-SXM5; got A100-80GB"),
        ({"gpu_model": "A30"}, GeometryError, "7g.80gb"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    values: dict[str, Any] = {"at": NOON, "gpu_model": HOPPER} | changes
    with pytest.raises(error, match=words):
        transition(table({("n", 0): ("7g.80gb:1", "1g.10gb:7")}), **values)
