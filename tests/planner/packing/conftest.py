"""Small problems, and their optimum by trying everything."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gpuplanner.hardware.mig_layouts import Layout, Placement, find_layout_faults
from gpuplanner.planner.packing_problem import MigPackingProblem, PackingProblem


def draw_problem(seed: int, *, most_items: int = 7) -> PackingProblem:
    rng = np.random.default_rng(seed)
    n_items = int(rng.integers(1, most_items + 1))
    starts = rng.integers(0, 8, n_items)
    capacity = int(rng.choice([1, 7, 10, 100]))
    low = int(rng.choice([1, max(1, capacity // 4)]))
    sizes = rng.integers(low, capacity + 1, n_items)
    return PackingProblem(starts, starts + rng.integers(1, 7, n_items), sizes, capacity)


def partitions(n_items: int, holds: Callable[[list[int]], bool]):
    """Every way to put items into bins that all hold; bins are alike."""

    def seat(item: int, bins: list[list[int]]):
        if item == n_items:
            yield [tuple(members) for members in bins]
            return
        for members in [*bins, None]:
            chosen = [] if members is None else members
            chosen.append(item)
            if members is None:
                bins.append(chosen)
            if holds(chosen):
                yield from seat(item + 1, bins)
            chosen.pop()
            if members is None:
                bins.pop()

    return seat(0, [])


def scalar_holds(problem: PackingProblem) -> Callable[[list[int]], bool]:
    def holds(members: list[int]) -> bool:
        return all(
            sum(
                problem.sizes[other]
                for other in members
                if problem.starts[other] <= problem.starts[item] < problem.ends[other]
            )
            <= problem.capacity
            for item in members
        )

    return holds


def mig_holds(problem: MigPackingProblem) -> Callable[[list[int]], bool]:
    """Whether some choice of start slices, fixed for life, is a layout at every start."""

    def holds(members: list[int]) -> bool:
        def place(index: int, starts: dict[int, int]) -> bool:
            if index == len(members):
                return True
            item = members[index]
            options = (
                (0,) if problem.profiles[item] == "gpu" else problem.gpu_model.profile(problem.profiles[item]).starts
            )
            return any(
                fine({**starts, item: option}) and place(index + 1, {**starts, item: option}) for option in options
            )

        def fine(starts: dict[int, int]) -> bool:
            for moment in {int(problem.starts[item]) for item in starts}:
                active = [item for item in starts if problem.starts[item] <= moment < problem.ends[item]]
                if any(problem.profiles[item] == "gpu" for item in active):
                    if len(active) > 1:
                        return False
                    continue
                placed = [Placement.at_start(problem.gpu_model.profile(problem.profiles[i]), starts[i]) for i in active]
                if find_layout_faults(problem.gpu_model, Layout(tuple(placed))):
                    return False
            return True

        return place(0, {})

    return holds


@pytest.fixture(scope="session")
def fewest() -> Callable[[PackingProblem | MigPackingProblem], int]:
    """Optimum by enumeration."""

    def solve(problem: PackingProblem | MigPackingProblem) -> int:
        holds = scalar_holds(problem) if isinstance(problem, PackingProblem) else mig_holds(problem)
        return min(len(bins) for bins in partitions(problem.n_items, holds))

    return solve


@pytest.fixture(scope="session")
def draw() -> Callable[..., PackingProblem]:
    return draw_problem


@pytest.fixture(scope="session")
def every_packing() -> Callable[[PackingProblem], list[list[tuple[int, ...]]]]:
    return lambda problem: list(partitions(problem.n_items, scalar_holds(problem)))


@pytest.fixture(autouse=True, scope="module")
def _unhurried(unhurried: None) -> None:
    """No packing here may end because the machine is busy."""
