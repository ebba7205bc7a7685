"""What changes cost: a distance in one direction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.planner.program.fluid import Fluid

VECTORS = st.lists(st.integers(0, 4), min_size=4, max_size=4)


@pytest.fixture(scope="module")
def fluid(problem_of: Any) -> Fluid:
    demand = np.ones((1, 4, 1))
    return Fluid.of(problem_of(demand, ["1g.5gb", "3g.20gb", "4g.20gb", "gpu"], change_gpu_hours=0.3))


def test_only_cut_gpus_have_a_price(fluid: Fluid) -> None:
    prices = dict(zip(fluid.layouts, fluid.ways.taking_up.tolist(), strict=True))
    assert prices.pop("gpu") == 0
    assert set(prices.values()) == {0.3}


def test_costs_are_those_of_the_plan(fluid: Fluid) -> None:
    rng = np.random.default_rng(0)
    states = rng.integers(0, 4, size=(20, len(fluid.layouts)))
    costs = fluid.ways.costs(states, states)
    for i, before in enumerate(states):
        for j, after in enumerate(states):
            own = float(fluid.slot_costs(0, after[None])[0])
            assert costs[i, j] == pytest.approx(fluid.cost(after[None], before=before) - own)


@given(x=VECTORS, y=VECTORS, z=VECTORS)
def test_no_detour_is_cheaper(fluid: Fluid, x: list[int], y: list[int], z: list[int]) -> None:
    n = len(fluid.layouts)
    states = np.array([(v * 2)[:n] for v in (x, y, z)])
    costs = fluid.ways.costs(states, states)
    assert costs[0, 2] <= costs[0, 1] + costs[1, 2] + 1e-12
    meet = np.minimum(states[0], states[2])[None]
    there = fluid.ways.costs(states[:1], meet)[0, 0]
    assert there == 0
    assert fluid.ways.costs(meet, states[2:])[0, 0] == pytest.approx(costs[0, 2])
