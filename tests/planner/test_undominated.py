"""States that an optimal plan may need, and the property that the list rests on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.planner.methods.dynamic import undominated
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.solving.effort import Effort

PROFILES = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb", "1g.5gb+me")


def effort() -> Effort:
    return Effort.begin()


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_gpu_earns_no_more_beside_others(problem_of: Any, data: st.DataObject) -> None:
    profiles = data.draw(st.lists(st.sampled_from(PROFILES), min_size=1, max_size=4, unique=True))
    amounts = st.lists(
        st.sampled_from([0, 0.4, 1, 1.6, 3, 7.5]), min_size=len(profiles), max_size=len(profiles)
    )
    demand = np.array([data.draw(amounts), data.draw(amounts)])[:, :, None]
    problem = problem_of(demand, profiles, unmet_price=[4.0, 0.7], tiers=["guaranteed", "best_effort"])
    fluid = Fluid.of(problem)
    n = len(fluid.layouts)
    if not n:
        return
    one, other = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, n - 1))
    state = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    steps = np.eye(n, dtype=np.int64)
    alone, beside = state, state + steps[other]
    costs = fluid.slot_costs(0, np.array([alone, alone + steps[one], beside, beside + steps[one]]))
    assert costs[0] - costs[1] >= costs[2] - costs[3] - 1e-9


def test_list_is_closed_downwards_and_costs_are_right(problem_of: Any) -> None:
    rng = np.random.default_rng(0)
    problem = problem_of(rng.uniform(0, 4, size=(1, 3, 5)), ["1g.5gb", "2g.10gb", "3g.20gb"], gpus=4)
    fluid = Fluid.of(problem)
    lattice = undominated(fluid, 10_000, effort())
    assert lattice is not None
    rows = {tuple(state): row for row, state in enumerate(lattice.states.tolist())}
    for layout, below in enumerate(lattice.below):
        for row, state in enumerate(lattice.states.tolist()):
            smaller = tuple(n - (i == layout) for i, n in enumerate(state))
            assert below[row] == rows.get(smaller, -1)
            assert (below[row] >= 0) == (state[layout] > 0)
    for slot, (own, costs) in enumerate(zip(lattice.own, lattice.costs, strict=True)):
        assert costs == pytest.approx(fluid.slot_costs(slot, lattice.states[own]))
        assert fluid.allowed(slot, lattice.states[own]).all()
    totals = lattice.states.sum(axis=1)
    assert (np.diff(totals) >= 0).all()
    assert [len(set(totals[level])) for level in lattice.levels] == [1] * len(lattice.levels)


def test_idle_gpus_are_listed_only_where_keeping_them_is_cheaper_than_a_cut(problem_of: Any) -> None:
    demand = np.array([[[1, 0, 1, 0, 0]]])
    held = {}
    for change in (0.05, 5.0):
        problem = problem_of(demand, ["7g.40gb"], change_gpu_hours=change, initial={"7g.40gb:1": 0})
        lattice = undominated(Fluid.of(problem), 100, effort())
        assert lattice is not None
        held[change] = [lattice.states[own].max() for own in lattice.own]
    assert held[0.05] == [1, 0, 1, 0, 0]
    # Nothing is asked for after the third slot, so nothing is kept for it.
    assert held[5.0] == [1, 1, 1, 0, 0]


def test_gpus_for_later_are_not_taken_before_they_can_serve(problem_of: Any) -> None:
    demand = np.array([[[1, 1, 3]]])
    known = problem_of(demand, ["7g.40gb"], change_gpu_hours=5.0, initial={"7g.40gb:1": 0})
    free = problem_of(demand, ["7g.40gb"], change_gpu_hours=5.0)
    most = []
    for problem in (known, free):
        lattice = undominated(Fluid.of(problem), 100, effort())
        assert lattice is not None
        most.append([int(lattice.states[own].max()) for own in lattice.own])
    # Where the first cuts are free, GPUs may be kept from the first slot on.
    assert most == [[1, 1, 3], [3, 3, 3]]


def test_too_many_states_and_no_time_give_none(problem_of: Any) -> None:
    fluid = Fluid.of(problem_of(np.full((1, 2, 2), 5.0), ["1g.5gb", "3g.20gb"], gpus=9))
    assert undominated(fluid, 3, effort()) is None
    assert undominated(fluid, 10_000, Effort(gap_target=0, deadline=0.0)) is None
    assert undominated(fluid, 10_000, effort()) is not None
