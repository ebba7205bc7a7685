"""Folding slots together gives the same optimum as a model that says so in rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuplanner.planner.methods.calendar import tied
from gpuplanner.planner.methods.one_model import static_counts
from gpuplanner.planner.program.families import build, start_values
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.solving.effort import Effort
from gpuplanner.solving.solver import solve


def effort() -> Effort:
    return Effort.begin()


@pytest.fixture
def fluid(problem_of: Any) -> Fluid:
    rng = np.random.default_rng(5)
    demand = rng.uniform(0, 3, size=(1, 2, 8))
    available = [3, 3, 2, 3, 3, 3, 1, 3]
    initial = {"4g.20gb:1,3g.20gb:1": 1}
    return Fluid.of(
        problem_of(demand, ["1g.5gb", "3g.20gb"], change_gpu_hours=0.7, available=available, initial=initial)
    )


def test_slots_by_themselves_stay_a_free_plan(fluid: Fluid) -> None:
    model = build(fluid, range(8), before=fluid.initial)
    folded = tied(model, np.arange(8))
    assert len(folded.linear.names) == len(model.linear.names)
    free, again = solve(model.linear, effort()), solve(folded.linear, effort())
    assert again.objective == pytest.approx(free.objective)


def test_one_group_is_the_static_plan(fluid: Fluid) -> None:
    model = build(fluid, range(8), before=fluid.initial)
    folded = tied(model, np.zeros(8, dtype=np.int64))
    answer = solve(folded.linear, effort())
    assert answer.values is not None
    counts = model.counts(folded.spread(answer.values))
    static, _ = static_counts(fluid, effort())
    assert static is not None
    assert fluid.cost(counts, before=fluid.initial) == pytest.approx(fluid.cost(static, before=fluid.initial))
    assert (counts == counts[0]).all()
    assert len(folded.linear.rows) < len(model.linear.rows)


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_as_good_as_equal_columns_written_as_rows(fluid: Fluid, seed: int) -> None:
    group = np.random.default_rng(seed).integers(0, 3, size=8)
    model = build(fluid, range(8), before=fluid.initial)
    folded = tied(model, group)
    answer = solve(folded.linear, effort())
    assert answer.values is not None
    counts = model.counts(folded.spread(answer.values))
    rows = build(fluid, range(8), before=fluid.initial)
    for slot in range(8):
        first = int(np.flatnonzero(group == group[slot])[0])
        for one, other in zip(rows.on[first], rows.on[slot], strict=True):
            if first < slot:
                rows.linear.add_row(f"least_{slot}_{one}", [one, other], [1, -1], ">=", 0.0)
                rows.linear.add_row(f"most_{slot}_{one}", [one, other], [1, -1], "<=", 0.0)
    assert solve(rows.linear, effort()).objective == pytest.approx(answer.objective)
    assert fluid.cost(counts, before=fluid.initial) == pytest.approx(answer.objective)
    assert all(fluid.allowed(slot, row[None])[0] for slot, row in enumerate(counts))


def test_known_values_can_be_handed_over(fluid: Fluid) -> None:
    model = build(fluid, range(8), before=fluid.initial)
    group = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    counts = np.zeros((8, len(fluid.layouts)), dtype=np.int64)
    counts[group == 0, 0] = 1
    folded = tied(model, group)
    values = folded.gathered(start_values(model, counts, fluid.initial, None))
    assert folded.linear.value(values) == pytest.approx(fluid.cost(counts, before=fluid.initial))
    assert (model.counts(folded.spread(values)) == counts).all()
