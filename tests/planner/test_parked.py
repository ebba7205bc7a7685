"""Pools that park what they do not need: prices of states, racks and files."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.optimize import linear_sum_assignment

from gpuplanner.hardware.gpu_models import as_gpu_model
from gpuplanner.hardware.layout_enumeration import list_pareto_counts
from gpuplanner.hardware.mig_layouts import format_layout, parse_layout
from gpuplanner.planner.fleet_limits_and_prices import Limits, StatePrices
from gpuplanner.planner.layout_plan import plan_from_json, plan_to_json
from gpuplanner.planner.numbered_gpus import assign
from gpuplanner.planner.plan_arrays import PlanArrays
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.planner.plan_verification import verify
from tests.planner.exact import exact_cost
from tests.seeds import seeds

PROFILES = {
    "A100-40GB": ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb", "gpu"),
    "H100-80GB-SXM5": ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", "gpu"),
    "A30-24GB": ("1g.6gb", "2g.12gb", "4g.24gb", "gpu"),
}


def random_problem(problem_of: Any, seed: int) -> PlanProblem:
    """Two or three GPUs of one of three boards, few slots; any prices of states."""
    rng = np.random.default_rng(seed)
    gpu_model = str(rng.choice(list(PROFILES)))
    gpus, slots = int(rng.integers(2, 4)), int(rng.integers(2, 6))
    profiles = rng.choice(PROFILES[gpu_model], size=rng.integers(1, 4), replace=False).tolist()
    known = {name: rng.choice([0, 0.2, 1, 5], size=2).tolist() for name in profiles if rng.random() < 0.7}
    prices = StatePrices(
        parked_price=float(rng.choice([0, 0.1, 1])),
        wake=float(rng.choice([0, 0.02, 0.1])),
        dress=float(rng.choice([0, 0.02, 0.3])),
        instance=float(rng.choice([0, 0.01, 0.1])),
        mode=float(rng.choice([0, 0.2, 1])),
        reboot=float(rng.choice([0, 0.5])) if gpu_model.startswith("A") else 0.0,
        drain=float(rng.choice([0, 0.1, 0.5])),
        remaining_h=known,
        limit_h=None if rng.random() < 0.5 else 2.0,
        evicted_h=float(rng.choice([0, 0.3])),
    )
    initial = parked = None
    if rng.random() < 0.5:
        texts = [format_layout(one) for one in list_pareto_counts(as_gpu_model(gpu_model), _slices(profiles))] or [
            "gpu"
        ]
        initial = {str(rng.choice([*texts, "gpu"])): int(rng.integers(2))}
        parked = {texts[0]: int(rng.integers(gpus))} if texts[0] != "gpu" else {}
    return problem_of(
        rng.choice([0, 0.5, 1, 1.3, 2, 3.7], size=(1, len(profiles), slots)),
        profiles,
        gpu_model=gpu_model,
        gpus=gpus,
        gpus_per_node=4,
        unmet_price=float(rng.choice([0.5, 3, 10])),
        available=rng.integers(0, gpus + 1, slots).tolist() if rng.random() < 0.2 else None,
        initial=initial,
        parked=parked,
        prices=prices,
    )


def _slices(profiles: list[str]) -> list[str]:
    return [name for name in profiles if name != "gpu"]


def emptying(prices: StatePrices, problem: PlanProblem, layout: str) -> float:
    """What emptying a GPU loses, by trying every combination of remaining times."""
    names = list(Counter(parse_layout(layout)).elements())
    if not all(name in prices.remaining_h for name in names):
        return prices.drain
    most = math.inf if prices.limit_h is None else prices.limit_h
    shares = [problem.gpu_model.gpu_fraction(name) for name in names]
    lost = []
    for times in itertools.product(*(prices.remaining_h[name] for name in names)):
        ends = [min(time, most) for time in times]
        used = sum(share * end for share, end in zip(shares, ends, strict=True))
        again = sum(share * prices.evicted_h for share, time in zip(shares, times, strict=True) if time > most)
        lost.append((max(ends), used, again))
    longest, used, again = np.mean(lost, axis=0)
    return max(0.0, longest - used) + again


def ways_between(problem: PlanProblem, layouts: list[str]) -> np.ndarray:
    """Cheapest cost between the states of one GPU, reboots left out: used, then parked, by shortest paths."""
    prices, n = problem.prices, len(layouts)
    cost = np.full((2 * n + 2, 2 * n + 2), np.inf)
    np.fill_diagonal(cost, 0)
    for i, layout in enumerate(layouts):
        instances = sum(k for name, k in parse_layout(layout).items() if name != "gpu")
        hub = 2 * n + (layout != "gpu")
        cost[i, n + i], cost[n + i, i] = emptying(prices, problem, layout), prices.wake
        cost[n + i, hub] = instances * prices.instance
        cost[hub, n + i] = prices.dress + instances * prices.instance
    cost[2 * n, 2 * n + 1] = cost[2 * n + 1, 2 * n] = prices.mode
    for k in range(2 * n + 2):
        cost = np.minimum(cost, cost[:, k : k + 1] + cost[k : k + 1, :])
    return cost[: 2 * n, : 2 * n]


@pytest.mark.parametrize("seed", seeds(6, 12))
def test_racks_have_power_for_all_that_keep_a_layout(problem_of: Any, seed: int) -> None:
    """Racks with power for one GPU: what dynamic programming over numbered GPUs does within each rack."""
    while True:
        problem = random_problem(problem_of, 5000 + seed)
        limits = Limits(nodes_per_rack=2, gpus_on_per_rack=1)
        prices = replace(problem.prices, reboot=0.0)
        problem = replace(
            problem, gpus_per_node=1, prices=prices, limits=limits, initial=None, parked=None, change=None
        )
        if (best := exact_cost(problem)) is not None:
            break
        seed += 100
    for method in ("dp", "milp"):
        found = plan(problem, gap_target=0, method=method)
        assert found.objective == pytest.approx(best, abs=1e-6)
        assert verify(found, problem, assign(found, problem)) == []


@pytest.mark.parametrize("seed", seeds(8, 15))
def test_numbered_gpus_stay_within_the_power_of_racks(problem_of: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, racks, of_rack = int(rng.integers(1, 4)), int(rng.integers(2, 4)), int(rng.integers(1, 3))
    power = int(rng.integers(1, size * of_rack + 1))
    limits = Limits(whole_nodes_kept=of_rack * int(rng.integers(2)), nodes_per_rack=of_rack, gpus_on_per_rack=power)
    gpus = size * of_rack * racks - int(rng.integers(size))
    demand = rng.uniform(0, power * racks, size=(1, 3, 6)) * rng.choice([0, 0.3, 1], size=(1, 3, 6))
    prices = StatePrices(parked_price=0.1, dress=0.2, instance=0.01, drain=0.1, mode=float(rng.choice([0, 0.3])))
    first = {"initial": {"gpu": 1}, "parked": {"2g.10gb:3": 1}} if power * racks > 2 and rng.random() < 0.5 else {}
    problem = problem_of(
        demand, ["2g.10gb", "3g.20gb", "gpu"], gpus=gpus, gpus_per_node=size, prices=prices, limits=limits, **first
    )
    found = plan(problem, gap_target=0.02)
    assert verify(found, problem, assign(found, problem)) == []
    wrong = replace(found, parked=found.parked + 100)
    assert any("powered on, at most" in fault for fault in verify(wrong, problem))


@pytest.mark.parametrize("seed", seeds(20, 40))
def test_a_transition_costs_what_the_best_assignment_of_gpus_costs(problem_of: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(problem_of, seed)
    problem = problem_of(
        problem.demand, problem.profiles, gpu_model=problem.gpu_model, gpus=6, prices=problem.prices, gpus_per_node=6
    )
    arrays = PlanArrays.from_problem(problem)
    layouts = list(dict.fromkeys([*arrays.layouts, "gpu"]))
    one = ways_between(problem, layouts)
    for _ in range(20):
        states = rng.integers(0, 2 * len(layouts), (2, problem.gpus))
        if "gpu" not in arrays.layouts:  # a GPU that nobody asks for uncut is never on uncut
            states[states == layouts.index("gpu")] += len(layouts)
        pairs = one[states[0][:, None], states[1][None, :]]
        cheapest = pairs[linear_sum_assignment(pairs)].sum()
        counts = [np.bincount(row, minlength=2 * len(layouts)) for row in states]
        n, on, beside = len(layouts), len(arrays.layouts), arrays.layout_of_column[len(arrays.layouts) :]
        columns = [np.concatenate([row[:on], row[n:][beside]]) for row in counts]
        modes = abs(arrays.is_partitioned @ (columns[1] - columns[0]))
        reboot = problem.prices.reboot * (modes > 0)
        assert arrays.transitions.transition_cost(*columns) == pytest.approx(cheapest + reboot)
        costs = arrays.transitions.pairwise_costs(np.array(columns), np.array(columns))
        assert costs[0, 1] == pytest.approx(cheapest + reboot)
        assert costs[0, 0] == costs[1, 1] == 0


def test_a_parked_gpu_that_returns_is_not_cut_again(problem_of: Any) -> None:
    """One instance, a pause of an hour, the same again: emptied once, cut never, and on for two hours of three."""
    prices = StatePrices(dress=0.3, drain=0.1, parked_price=0.2)
    problem = problem_of([[[1, 0, 1]]], ["7g.40gb"], gpus=1, gpus_per_node=1, prices=prices)
    found = plan(problem, gap_target=0)
    assert (found.counts.ravel().tolist(), found.parked.ravel().tolist()) == ([1, 0, 1], [0, 1, 0])
    assert (found.changes, found.drained_gpus) == (0, 1)
    assert found.objective == pytest.approx(2 + 0.2 + 0.1)
    rows = assign(found, problem).select("layout", "changed", "parked").rows()
    assert rows == [("7g.40gb:1", False, None), ("off", False, "7g.40gb:1"), ("7g.40gb:1", False, None)]
    released = plan(problem_of([[[1, 0, 1]]], ["7g.40gb"], gpus=1, change_gpu_hours=0.3), gap_target=0)
    assert (released.changes, released.objective) == (1, pytest.approx(2.3))


def test_uncutting_is_a_change_and_a_node_reboots_once_for_all_its_gpus(problem_of: Any) -> None:
    prices = StatePrices(dress=0.1, reboot=1.0)
    demand = [[[2, 0], [0, 2]]]
    problem = problem_of(demand, ["7g.40gb", "gpu"], gpus=2, gpus_per_node=2, prices=prices, unmet_price=50.0)
    found = plan(problem, gap_target=0)
    assert (found.changes, found.drained_gpus) == (2, 2)
    assert found.objective == pytest.approx(4 + 2 * 0.1 + 1.0)
    assert assign(found, problem)["changed"].sum() == 2


def test_prices_stand_in_the_plan_file_and_plans_without_them_are_read(problem_of: Any) -> None:
    prices = StatePrices(dress=0.1, drain=0.1, remaining_h={"7g.40gb": [1, 0]}, limit_h=2)
    problem = problem_of([[[1, 0]]], ["7g.40gb"], prices=prices, initial={"gpu": 1}, parked={"7g.40gb:1": 1})
    found = plan(problem)
    again, same = plan_from_json(plan_to_json(found, problem))
    assert same.prices == prices
    assert same.parked == {"7g.40gb:1": 1}
    assert (again.parked == found.parked).all()
    assert verify(again, same) == []
    older = problem.to_dict()
    older["prices"]["parked"] = older["prices"].pop("parked_price")
    assert PlanProblem.from_dict(older).prices == prices
    before = problem_of([[[1, 0]]], ["7g.40gb"]).to_dict()
    for name in ("prices", "parked"):
        before.pop(name)
    assert PlanProblem.from_dict(before).prices is None
    assert "released; partitioning one again costs 0.05" in PlanProblem.from_dict(before).idle_gpus_text
    assert (
        "idle and powered on, each hour as 0 GPU-hours in use; draining a GPU costs the remaining run time of a job on "
        "7g.40gb, else 0.1 GPU-hours" in same.idle_gpus_text
    )


def test_what_a_plan_says_of_departures_and_parked_gpus_is_checked(problem_of: Any) -> None:
    prices = StatePrices(dress=0.3, drain=0.1)
    problem = problem_of([[[1, 0, 1]]], ["7g.40gb"], prices=prices)
    found = plan(problem)
    frame = assign(found, problem)
    assert verify(replace(found, drained_gpus=7), problem) == ["drained_gpus: the plan states 7, its counts give 1"]
    assert "changes" in verify(replace(found, parked=0 * found.parked), problem)[0]
    many = replace(found, parked=found.parked + 3)
    assert "GPUs are powered on, at most 3 allowed" in verify(many, problem)[0]
    wrong = frame.with_columns(parked=pl.lit(None, pl.String))
    assert "expected that off GPUs keep" in verify(found, problem, wrong)[0]
    moved = frame.with_columns(pl.when(pl.col("layout") == "off").then(pl.lit("gpu")).alias("parked"))
    assert "are idle with 7g.40gb:1" in verify(found, problem, moved)[0]
