"""Demand that several pools may serve: against trying everything, one pool, two equal ones, and their check."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuplanner.errors import ScenarioError
from gpuplanner.planner import (
    FleetPlan,
    Movable,
    PlanProblem,
    certified,
    certified_together,
    fleet_to_json,
    plan,
    plan_fleet,
    verify_fleet,
    verify_together,
)
from gpuplanner.planner.contract.movable import after_moves
from gpuplanner.study.handover.read_back import verify_any
from tests.planner.conftest import MONDAY
from tests.planner.exact import layouts_of, service, ways

BOARDS = {"old": ("A100-40GB", ("3g.20gb", "1g.5gb")), "new": ("H100-80GB-SXM5", ("3g.40gb", "1g.10gb"))}
HALVES = (0.0, 0.5, 1.0, 1.5, 2.5)


def two_boards(seed: int, each: float = 1.0) -> tuple[dict[str, PlanProblem], list[Movable]]:
    """Two GPUs of two boards; some demand of the older may be served by the newer, some the other way round."""
    rng = np.random.default_rng(seed)
    slots, price = int(rng.integers(1, 4)), float(rng.choice([3, 10]))
    pools = {
        name: PlanProblem(
            board, 2, 2, MONDAY, 1, ["a"], profiles, rng.choice(HALVES, size=(1, 2, slots)),
            change_gpu_hours=float(rng.choice([0, 0.25, 2])), unmet_price=price,
        )
        for name, (board, profiles) in BOARDS.items()
    }  # fmt: skip
    movable = [Movable("old", "3g.20gb", 1.0, {("new", "3g.40gb"): each})]
    if rng.random() < 0.5:
        movable.append(Movable("new", "1g.10gb", 1.0, {("old", "1g.5gb"): 1.0}))
    return pools, movable


def least(pools: dict[str, PlanProblem], movable: list[Movable]) -> float:
    """Cost of the best plans: every split of movable demand by halves, every state of all GPUs, slot by slot."""
    names = list(pools)
    known = {name: layouts_of(most_of(pools, movable, name)) for name in names}
    value = np.zeros([(len(known[name]) + 1) ** 2 for name in names])
    for slot in range(pools["old"].n_slots):
        if slot:
            for axis, name in enumerate(names):
                pair = pair_ways(pools[name], known[name])
                value = np.moveaxis(
                    np.array([(np.moveaxis(value, axis, -1) + column).min(axis=-1) for column in pair.T]),
                    0,
                    axis,
                )
        here = np.full(value.shape, np.inf)
        free = [
            pools[one.pool].demand[0, pools[one.pool].profiles.index(one.profile), slot] for one in movable
        ]
        for sent in itertools.product(*(np.arange(0, amount + 0.1, 0.5) for amount in free)):
            demand = {name: pools[name].demand[:, :, [slot]].copy() for name in names}
            for one, amount in zip(movable, sent, strict=True):
                demand[one.pool][0, pools[one.pool].profiles.index(one.profile)] -= amount
                for (to, profile), each in one.places.items():
                    demand[to][0, pools[to].profiles.index(profile)] += amount * each
            costs = [cost_of(replace(pools[name], demand=demand[name]), known[name]) for name in names]
            np.minimum(here, costs[0][:, None] + costs[1][None], out=here)
        value = value + here
    return float(value.min())


def most_of(pools: dict[str, PlanProblem], movable: list[Movable], name: str) -> PlanProblem:
    """A pool with all demand that it may ever have, for the layouts that can be of use."""
    return replace(pools[name], demand=np.ones_like(pools[name].demand))


def cost_of(problem: PlanProblem, layouts: list[str]) -> np.ndarray:
    """Cost of the one slot in every state of both GPUs, the last place of each standing for off."""
    on = np.arange(len(layouts) + 1) < len(layouts)
    hours = on[:, None].astype(float) + on[None]
    return (service(problem, layouts, 0) + hours).ravel()


def pair_ways(problem: PlanProblem, layouts: list[str]) -> np.ndarray:
    """Cost for two GPUs to come from each pair of states to each other, whichever of them takes which."""
    n = len(layouts)
    one = ways(problem, layouts)[: n + 1, : n + 1]  # where nothing is kept, one that is off has no layout
    return (one[:, None, :, None] + one[None, :, None, :]).reshape((n + 1) ** 2, -1)


@pytest.mark.parametrize("seed", range(12))
def test_routed_plans_are_the_best_of_all(seed: int) -> None:
    pools, movable = two_boards(seed)
    best = least(pools, movable)
    found = plan_fleet(pools, movable, gap_target=0)
    assert verify_fleet(found, pools, movable) == []
    assert found.status == "optimal"
    assert found.objective == pytest.approx(best, abs=1e-6)
    assert found.bound == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_a_board_half_as_fast_takes_two_instances_for_one(seed: int) -> None:
    pools, movable = two_boards(seed, each=2.0)
    best = least(pools, movable)
    found = plan_fleet(pools, movable, gap_target=0)
    assert verify_fleet(found, pools, movable) == []
    assert found.bound == pytest.approx(best, abs=1e-5)
    assert found.objective is not None
    assert found.objective >= best - 1e-6
    apart = plan_fleet(pools, gap_target=0).objective
    assert apart is not None
    assert found.objective <= apart + 1e-9


def test_one_pool_is_planned_as_it_ever_was(problem_of: Any) -> None:
    problem = problem_of([[[1.5, 2.0, 0.5]]], ["3g.20gb"], gpus=2)
    found = plan_fleet({"one": problem}, [Movable("one", "3g.20gb", 1.0, {})], gap_target=0)
    alone = plan(problem, gap_target=0)
    assert found.objective == alone.objective
    assert (found.plans["one"].counts == alone.counts).all()


@pytest.mark.parametrize("seed", range(6))
def test_two_equal_pools_cost_what_one_of_both_costs(problem_of: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    demand = rng.choice([0, 0.3, 0.8, 1.7, 3.2], size=(1, 2, 3))
    profiles = ["3g.20gb", "1g.5gb"]
    merged = plan(problem_of(demand, profiles, gpus=4, gpus_per_node=4, change_gpu_hours=0.25), gap_target=0)
    share = rng.uniform(size=demand.shape)
    pools = {
        name: problem_of(part, profiles, gpus=2, gpus_per_node=4, change_gpu_hours=0.25)
        for name, part in (("a", demand * share), ("b", demand * (1 - share)))
    }
    movable = [
        Movable(one, profile, 1.0, {(other, profile): 1.0})
        for one, other in (("a", "b"), ("b", "a"))
        for profile in profiles
    ]
    found = plan_fleet(pools, movable, gap_target=0)
    assert verify_fleet(found, pools, movable) == []
    assert found.objective == pytest.approx(merged.objective, abs=1e-5)


def test_a_wrong_move_is_seen() -> None:
    pools, movable = two_boards(3)
    pools = {name: replace(one, demand=np.full_like(one.demand, 0.5)) for name, one in pools.items()}
    found = plan_fleet(pools, movable, gap_target=0)
    assert found.moves
    assert verify_fleet(found, pools, movable) == []
    move = found.moves[0]
    more = replace(found, moves=(replace(move, amount=move.amount + 0.5),))
    assert any("more of a in slot 0 than may go" in fault for fault in verify_fleet(more, pools, movable))
    cheaper = replace(found, moves=(replace(move, each=0.5),))
    assert any("none that may be made" in fault for fault in verify_fleet(cheaper, pools, movable))
    assert any("none that may be made" in fault for fault in verify_fleet(found, pools))


def test_what_may_not_move_is_named() -> None:
    pools, _ = two_boards(0)
    for wrong, said in (
        (Movable("older", "gpu", 1.0, {}), "demand of no pool"),
        (Movable("old", "3g.20gb", 1.2, {}), "shares from 0 to 1"),
        (Movable("old", "3g.20gb", 1.0, {("old", "1g.5gb"): 1.0}), "to other pools of the fleet"),
        (Movable("old", "3g.20gb", 1.0, {("new", "3g.40gb"): 0.0}), "a number above 0"),
        (Movable("old", "3g.20gb", 1.0, {("new", "9g.90gb"): 1.0}), "9g.90gb"),
    ):
        with pytest.raises(ScenarioError, match=said):
            plan_fleet(pools, [wrong])


def proven_of(words: str) -> float:
    """What is proven of a bound that is not."""
    return float(re.findall(r"not proven above (-?[0-9][0-9.e+-]*)", words)[0])


@pytest.mark.parametrize("seed", range(8))
def test_a_certificate_of_all_pools_never_proves_more_than_the_best_costs(seed: int) -> None:
    pools, movable = two_boards(seed, each=1.0 + seed % 2)
    best = least(pools, movable)
    proof = certified_together(pools, movable, (), 1e6)
    assert proof is not None
    found = verify_together(proof, after_moves(pools, ()), best)
    assert found.faults == []
    assert not found.proven  # nothing costs a million
    assert 0.5 * best <= proven_of(found.words) <= best + 1e-6
    # Any prices prove something, and nothing too much.
    half = verify_together(replace(proof, prices=tuple(0.5 * row for row in proof.prices)), pools, best)
    assert half.faults or proven_of(half.words) <= best + 1e-6


def written(folder: Path, fleet: FleetPlan, pools: dict[str, PlanProblem], movable: list[Movable]) -> Path:
    given = after_moves(pools, fleet.moves)
    plans = {name: certified(one, given[name]) for name, one in fleet.plans.items()}
    proof = certified_together(pools, movable, fleet.moves, fleet.least or 0.0)
    path = folder / "plan.json"
    path.write_text(fleet_to_json(replace(fleet, plans=plans, proof=proof), given), "utf-8")
    return path


def test_a_file_of_all_boards_is_proven_again_and_a_forged_one_is_not(tmp_path: Path) -> None:
    pools, movable = two_boards(3)
    pools = {name: replace(one, demand=np.full_like(one.demand, 0.5)) for name, one in pools.items()}
    fleet = plan_fleet(pools, movable, gap_target=0)
    assert fleet.moves
    path = written(tmp_path, fleet, pools, movable)
    held = verify_any(path, None)
    assert held.problems == []
    assert any(line.startswith("all boards: ") for line in (*held.findings, *held.unproven))
    values = json.loads(path.read_text("utf-8"))
    forged = tmp_path / "forged.json"
    for change, said in (
        (lambda one: one["moves"][0].update(amount=(np.array(one["moves"][0]["amount"]) + 5).tolist()), "than may go"),
        (lambda one: one["movable"][0].update(part=0.0), "than may go"),
        (lambda one: one["pools"]["old"].update(gpus=1), "another problem"),
    ):  # fmt: skip
        other = json.loads(json.dumps(values))
        change(other["together"])
        forged.write_text(json.dumps(other), "utf-8")
        report = verify_any(forged, None)
        assert not report.ok
        assert any(said in fault for fault in report.problems), report.problems
    values["together"]["bound"] = 1e6
    forged.write_text(json.dumps(values), "utf-8")
    assert any("bound not proven above" in line for line in verify_any(forged, None).unproven)
    del values["together"]["prices"]
    forged.write_text(json.dumps(values), "utf-8")
    with pytest.raises(ScenarioError, match="prices"):
        verify_any(forged, None)
