"""What changes cost: a distance, the same as pairing GPUs one by one, and one that waits until it is needed."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.hardware import mode_seconds, reconfiguration_cost
from gpuplanner.planner import PlanProblem
from gpuplanner.planner.changes import change_costs
from gpuplanner.planner.effort import Effort
from gpuplanner.planner.fluid import Fluid
from gpuplanner.planner.held import at_need, settled

NAMES = ["1g.5gb", "3g.20gb", "4g.20gb", "gpu"]
CHANGE, MODE = 0.3, 0.11


def fluid_of(problem_of: Any, **changes: Any) -> Fluid:
    values = {"gpus": 6, "change_gpu_hours": CHANGE, "mode_gpu_hours": MODE}
    return Fluid.of(problem_of(np.ones((1, 4, 1)), NAMES, **(values | changes)))


@pytest.fixture(scope="module")
def fluid(problem_of: Any) -> Fluid:
    return fluid_of(problem_of)


def held_states(fluid: Fluid) -> st.SearchStrategy[np.ndarray]:
    """States in which nothing is on: what 6 GPUs have."""
    n = int(fluid.cut.sum())
    deals = st.lists(st.integers(0, n), min_size=6, max_size=6)
    return deals.map(lambda has: fluid.state(np.zeros(n + 1, int), np.bincount(has, minlength=n + 1)[:n]))


def paired(fluid: Fluid, before: np.ndarray, after: np.ndarray) -> float:
    """Cheapest way to turn GPUs into others one by one, by trying all ways to pair them."""
    whole = len(fluid.held(before))

    def gpus(state: np.ndarray) -> list[int]:
        has = np.repeat(np.arange(whole), fluid.held(state)).tolist()
        return has + [whole] * (fluid.problem.gpus - len(has))

    def price(one: int, other: int) -> float:
        return 0.0 if one == other else CHANGE + MODE * ((one == whole) != (other == whole))

    return min(sum(map(price, gpus(before), order)) for order in set(itertools.permutations(gpus(after))))


@given(data=st.data())
def test_costs_are_those_of_pairing_gpus(fluid: Fluid, data: st.DataObject) -> None:
    before, after = data.draw(held_states(fluid)), data.draw(held_states(fluid))
    found = change_costs(fluid, before[None], after[None])[0, 0]
    assert found == pytest.approx(paired(fluid, before, after))
    assert found == pytest.approx(fluid.change_price(before, after))


@given(data=st.data())
def test_no_detour_is_cheaper_and_the_way_back_costs_the_same(fluid: Fluid, data: st.DataObject) -> None:
    states = np.array([data.draw(held_states(fluid)) for _ in range(3)])
    costs = change_costs(fluid, states, states)
    assert costs[0, 2] <= costs[0, 1] + costs[1, 2] + 1e-12
    assert costs == pytest.approx(costs.T)


def test_gpus_that_are_not_on_keep_their_layout_for_nothing(fluid: Fluid) -> None:
    held = np.array([1, 2, 0, 0][: int(fluid.cut.sum())])
    off = fluid.state(np.zeros(len(fluid.layouts), int), held)
    on = np.zeros(len(fluid.layouts), int)
    on[fluid.cut] = held
    assert fluid.changes(off, fluid.state(on, held)) == fluid.changes(fluid.state(on, held), off) == (0, 0)


@pytest.mark.parametrize(
    ("board", "hours"), [("A100-80GB", 600 / 3600), ("A30", 600 / 3600), ("H100-80GB-SXM5", 0.0)]
)
def test_mode_has_the_price_of_the_board(board: str, hours: float) -> None:
    problem = PlanProblem(board, 1, 1, datetime(2026, 11, 2, tzinfo=UTC), 1, ["a"], ["gpu"], [[[1.0]]])
    assert problem.mode_gpu_hours == pytest.approx(hours)
    assert mode_seconds(board) / 3600 == problem.mode_gpu_hours
    cut = {problem.board.profiles[0].name: 1}
    assert reconfiguration_cost(board, {"gpu": 1}, cut).reboot == (hours > 0)


def cheapest(fluid: Fluid, on: np.ndarray) -> float:
    """Least cost of changes under GPUs on, over everything that GPUs can have in every slot."""
    n = int(fluid.cut.sum())
    every = [np.array(h) for h in itertools.product(range(fluid.problem.gpus + 1), repeat=n)]
    every = [h for h in every if h.sum() <= fluid.most_cut]
    value = None
    before = np.zeros((0, len(fluid.pinned)), dtype=np.int64)
    for slot, now in enumerate(on):
        states = [
            fluid.state(now, h)
            for h in every
            if (h >= now[fluid.cut]).all() and h.sum() + now[~fluid.cut].sum() <= fluid.problem.gpus
        ]
        if slot == 0 and fluid.initial is None:
            states = [fluid.state(now, now[fluid.cut])]
        table = np.array(states)
        if value is None:
            first = (
                np.zeros(len(table))
                if fluid.initial is None
                else change_costs(fluid, fluid.initial[None], table)[0]
            )
            value = first
        else:
            value = (value[:, None] + change_costs(fluid, before, table)).min(axis=0)
        before = table
    assert value is not None
    return float(value.min())


@pytest.mark.parametrize("seed", range(25))
def test_what_gpus_keep_is_chosen_at_the_least_cost_and_only_at_need(problem_of: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    initial = {"7g.40gb:1": int(rng.integers(3))} if seed % 3 else None
    problem = problem_of(
        rng.choice([0, 1, 3, 7], size=(1, 3, 7)), ["1g.5gb", "3g.20gb", "gpu"], gpus=3, initial=initial,
        change_gpu_hours=0.3, mode_gpu_hours=float(rng.choice([0.0, 0.1, 2.0])), whole_gpus_kept=int(rng.integers(2)),
    )  # fmt: skip
    fluid = Fluid.of(problem)
    on = np.array(
        [rng.multinomial(rng.integers(4), np.ones(len(fluid.layouts)) / len(fluid.layouts)) for _ in range(7)]
    )
    on = np.where((on[:, fluid.cut].sum(axis=1) <= fluid.most_cut)[:, None], on, 0)
    effort = Effort.begin(gap_target=0, time_limit_s=60, seed=0, solver="highs")
    states = settled(fluid, on, effort)
    steps = itertools.pairwise([fluid.initial, *states])
    assert sum(fluid.change_price(*step) for step in steps) == pytest.approx(cheapest(fluid, on), abs=1e-6)
    assert all(
        fluid.allowed(slot, state[None])[0] or on[slot].sum() == 0 for slot, state in enumerate(states)
    )
    held = fluid.held(states)
    before = held[0] if fluid.initial is None else fluid.held(fluid.initial)
    for slot, now in enumerate(held):
        grown = now > before
        assert (now[grown] == on[slot, fluid.cut][grown]).all()
        before = now
    assert (at_need(fluid, on, held) == states).all()
