"""A small problem to vary, and the best cost by trying everything."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from gpuplanner.hardware.layout_enumeration import list_pareto_counts
from gpuplanner.hardware.mig_layouts import format_layout
from gpuplanner.planner.plan_problem import SERVICE_TIERS, PlanProblem, can_serve

MONDAY = datetime(2026, 11, 2, tzinfo=UTC)


def make_problem(demand: Any, profiles: Sequence[str], **changes: Any) -> PlanProblem:
    """A problem on A100-40GB; demand has the axes tenant, profile, slot."""
    values: dict[str, Any] = {
        "gpu_model": "A100-40GB",
        "gpus": 3,
        "gpus_per_node": 2,
        "slot_start": MONDAY,
        "interval_hours": 1.0,
        "tenants": [f"tenant{i}" for i in range(len(demand))],
        "profiles": profiles,
        "demand": demand,
        "change_gpu_hours": 0.05,
    }
    return PlanProblem(**{**values, **changes})


def shortage_cost(problem: PlanProblem, slot: int, served: Sequence[int]) -> float:
    """Price of what is left when so many instances serve each profile: lowest tier, then cheapest, first."""
    order = sorted(
        range(len(problem.tenants)), key=lambda i: (-SERVICE_TIERS.index(problem.tiers[i]), problem.unmet_price[i])
    )
    cost = 0.0
    for profile, instances in enumerate(served):
        left = max(0.0, float(problem.demand[:, profile, slot].sum()) - instances)
        for tenant in order:
            taken = min(left, float(problem.demand[tenant, profile, slot]))
            cost += taken * problem.unmet_price[tenant] * problem.gpu_model.gpu_fraction(problem.profiles[profile])
            left -= taken
    return cost * problem.interval_hours


def best_service(problem: PlanProblem, slot: int, instances: dict[str, int]) -> float:
    """Least shortage cost over every vector of served instances that passes Hall's test on every subset."""
    names = range(len(problem.profiles))
    able = [{i for i in instances if can_serve(problem.gpu_model, i, p)} for p in problem.profiles]
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
    """Least cost, by dynamic programming over all states, with every layout that is not part of another."""
    slices = [p for p in problem.profiles if p != "gpu"]
    layouts = list_pareto_counts(problem.gpu_model, slices) if slices else []
    layouts += [{"gpu": 1}] if "gpu" in problem.profiles else []
    cut = np.array(["gpu" not in layout for layout in layouts], dtype=bool)
    states = np.array(list(states_of(problem, layouts))).reshape(-1, len(layouts))
    value = np.zeros(len(states))
    arrivals = (states[None, :, :] - states[:, None, :]).clip(0)[:, :, cut].sum(axis=2)
    for slot in range(problem.n_slots):
        costs = np.empty(len(states))
        service: dict[tuple[int, ...], float] = {}
        for index, state in enumerate(states):
            held = {
                name: int(sum(n * layout.get(name, 0) for n, layout in zip(state, layouts, strict=True)))
                for name in problem.profiles
            }
            key = tuple(held.values())
            if key not in service:
                service[key] = best_service(problem, slot, held)
            allowed = state.sum() <= problem.gpus_in_service[slot] and state[cut].sum() <= (
                problem.gpus_in_service[slot] - problem.whole_gpus_kept
            )
            on = problem.on_price * problem.interval_hours * state.sum()
            costs[index] = on + service[key] if allowed else math.inf
        if slot:
            value = (value[:, None] + problem.change_gpu_hours * arrivals).min(axis=0) + costs
        else:
            entering = np.zeros(len(states), dtype=int)
            if problem.initial is not None:
                first = np.array([problem.initial.get(format_layout(layout), 0) for layout in layouts])
                entering = (states - first).clip(0)[:, cut].sum(axis=1)
            value = problem.change_gpu_hours * entering + costs
    return float(value.min())


@pytest.fixture(scope="session")
def problem_of() -> Callable[..., PlanProblem]:
    return make_problem


@pytest.fixture(scope="session")
def least_cost() -> Callable[[PlanProblem], float]:
    return brute_force
