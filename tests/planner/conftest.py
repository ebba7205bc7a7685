"""A small problem to vary, and the best cost by trying everything."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from gpuplanner.hardware import format_layout, pareto_counts, parse_layout
from gpuplanner.planner import TIERS, PlanProblem
from gpuplanner.planner.substitution import serves

MONDAY = datetime(2026, 11, 2, tzinfo=UTC)


def make_problem(demand: Any, profiles: Sequence[str], **changes: Any) -> PlanProblem:
    """A problem on A100-40GB; demand has the axes tenant, profile, slot."""
    values: dict[str, Any] = {
        "board": "A100-40GB",
        "gpus": 3,
        "gpus_per_node": 2,
        "slot_start": MONDAY,
        "slot_hours": 1.0,
        "tenants": [f"tenant{i}" for i in range(len(demand))],
        "profiles": profiles,
        "demand": demand,
        "mode_gpu_hours": 0.0,
    }
    return PlanProblem(**{**values, **changes})


def shortage_cost(problem: PlanProblem, slot: int, served: Sequence[int]) -> float:
    """Price of what is left when so many instances serve each profile: lowest tier, then cheapest, first."""
    order = sorted(
        range(len(problem.tenants)), key=lambda i: (-TIERS.index(problem.tiers[i]), problem.unmet_price[i])
    )
    cost = 0.0
    for profile, instances in enumerate(served):
        left = max(0.0, float(problem.demand[:, profile, slot].sum()) - instances)
        for tenant in order:
            taken = min(left, float(problem.demand[tenant, profile, slot]))
            cost += taken * problem.unmet_price[tenant] * problem.board.share(problem.profiles[profile])
            left -= taken
    return cost * problem.slot_hours


def best_service(problem: PlanProblem, slot: int, instances: dict[str, int]) -> float:
    """Least shortage cost over every vector of served instances that passes Hall's test on every subset."""
    names = range(len(problem.profiles))
    able = [{i for i in instances if serves(problem.board, i, p)} for p in problem.profiles]
    subsets = [s for size in range(1, len(able) + 1) for s in itertools.combinations(names, size)]
    limits = [(s, sum(instances[i] for i in set().union(*(able[p] for p in s)))) for s in subsets]
    wanted = [math.ceil(problem.demand[:, p, slot].sum() - 1e-9) for p in names]
    return min(
        shortage_cost(problem, slot, served)
        for served in itertools.product(*(range(w + 1) for w in wanted))
        if all(sum(served[p] for p in s) <= limit for s, limit in limits)
    )


def states_of(problem: PlanProblem, layouts: Sequence[dict[str, int]]) -> Iterator[tuple[int, ...]]:
    """Every way to have at most all GPUs on."""
    for size in range(problem.gpus + 1):
        for chosen in itertools.combinations_with_replacement(range(len(layouts)), size):
            yield tuple(chosen.count(i) for i in range(len(layouts)))


def brute_force(problem: PlanProblem) -> float:
    """Least cost, by dynamic programming over what every GPU has, with every layout that is not part of another.

    GPUs are told apart by what they have alone: the whole ones and those with each layout. From one slot to the
    next, the best way to pair GPUs is found by trying all numbers that could keep their layout.
    """
    slices = [p for p in problem.profiles if p != "gpu"]
    layouts = [{"gpu": 1}, *(pareto_counts(problem.board, slices) if slices else [])]
    texts = [format_layout(layout) for layout in layouts]
    initial = dict(problem.initial or {})
    layouts += [parse_layout(text) for text in initial if text not in texts]
    cut_at_first = sum(gpus for text, gpus in initial.items() if text != "gpu")
    most_cut = max(problem.gpus - problem.kept_whole, cut_at_first)
    on_states = np.array(list(states_of(problem, layouts)))
    states = on_states[(on_states.sum(axis=1) == problem.gpus)]
    allowed = states[:, 1:].sum(axis=1) <= most_cut
    ways = np.array([[way(problem, one, other) for other in states] for one in states])
    within = (on_states[None] <= states[:, None]).all(axis=2)
    value = None
    for slot in range(problem.n_slots):
        costs = np.array([slot_cost(problem, slot, layouts, state) for state in on_states])
        possible = within.copy()
        if slot == 0 and problem.initial is None:
            # Cut GPUs are those that are on.
            possible &= (on_states[None, :, 1:] == states[:, None, 1:]).all(axis=2)
            entering = np.zeros(len(states))
        elif slot == 0:
            known = [format_layout(layout) for layout in layouts]
            first = np.array([0, *(initial.get(text, 0) for text in known[1:])])
            first[0] = problem.gpus - first.sum()
            entering = np.array([way(problem, first, state) for state in states])
        else:
            assert value is not None
            entering = (value[:, None] + ways).min(axis=0)
        value = entering + np.where(possible, costs, np.inf).min(axis=1)
        value[~allowed] = math.inf
    assert value is not None
    return float(value.min())


def slot_cost(problem: PlanProblem, slot: int, layouts: Sequence[dict[str, int]], on: Any) -> float:
    """Cost of having on so many GPUs with each layout, the whole ones first; infinite beyond the limits."""
    cut = int(on[1:].sum())
    if on.sum() > problem.gpus_in_service[slot] or cut > problem.gpus_in_service[slot] - problem.kept_whole:
        return math.inf
    held = {
        name: int(sum(n * layout.get(name, 0) for n, layout in zip(on, layouts, strict=True)))
        for name in problem.profiles
    }
    supply = {name for layout in layouts for name in layout}
    held |= {
        name: int(sum(n * layout.get(name, 0) for n, layout in zip(on, layouts, strict=True)))
        for name in supply
    }
    on_cost = problem.on_price * problem.slot_hours * float(on.sum())
    return on_cost + _best_service(problem, slot, tuple(sorted(held.items())))


@functools.lru_cache(maxsize=100_000)
def _best_service(problem: PlanProblem, slot: int, held: tuple[tuple[str, int], ...]) -> float:
    return best_service(problem, slot, dict(held))


def way(problem: PlanProblem, before: Any, after: Any) -> float:
    """Price of giving GPUs other layouts, the whole ones first: whoever can keep its layout does."""
    gone, come = (before - after).clip(0), (after - before).clip(0)
    modes = max(int(gone[0]), int(come[0]))
    return problem.change_gpu_hours * float(come.sum()) + problem.mode_gpu_hours * modes


@pytest.fixture(scope="session")
def problem_of() -> Callable[..., PlanProblem]:
    return make_problem


@pytest.fixture(scope="session")
def least_cost() -> Callable[[PlanProblem], float]:
    return brute_force
