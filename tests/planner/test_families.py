"""Each family of rows against a stored model. ``GPUPLANNER_WRITE_LP=1`` writes the files anew."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuplanner.planner.program import families
from gpuplanner.planner.program.families import Floor, SlotModel
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.solving.effort import Effort
from gpuplanner.solving.solver import solve
from tests.lp_text import lp_text

FOLDER = Path(__file__).with_name("lp_files")


def add_changes(model: SlotModel) -> None:
    families.add_changes(model, np.array([1, 0, 0]), np.array([0, 2, 1]))


def add_floors(model: SlotModel) -> None:
    """Of one slot, of two with the changes between them, and of one that the model does not cover."""
    add_changes(model)
    families.add_floors(model, [Floor(range(1, 2), 1.5), Floor(range(1, 3), 3.25), Floor(range(2, 4), 9.0)])


FAMILIES: dict[str, Callable[[SlotModel], None]] = {
    "add_coverage": families.add_coverage,
    "add_fleet": families.add_fleet,
    "add_whole_kept": families.add_whole_kept,
    "add_changes": add_changes,
    "add_floors": add_floors,
}


@pytest.fixture
def fluid(problem_of: Any) -> Fluid:
    demand = [[[1, 2.5, 3], [0, 0.5, 1], [1, 0, 1]]]
    names = ["2g.10gb", "3g.20gb", "gpu"]
    return Fluid.of(problem_of(demand, names, whole_gpus_kept=1, change_gpu_hours=0.25))


def test_layouts_of_the_stored_models(fluid: Fluid) -> None:
    assert fluid.layouts == ("3g.20gb:2", "3g.20gb:1,2g.10gb:2", "gpu")


def test_no_family_is_without_a_stored_model() -> None:
    found = {name for name in vars(families) if name.startswith("add_") and not name.endswith("_columns")}
    assert found == set(FAMILIES) == {path.stem for path in FOLDER.glob("*.lp")}


@pytest.mark.parametrize("name", FAMILIES)
def test_family_writes_the_stored_model(fluid: Fluid, name: str) -> None:
    model = SlotModel(fluid, range(1, 3))
    families.add_on_columns(model)
    families.add_short_columns(model)
    FAMILIES[name](model)
    text, path = lp_text(model.linear), FOLDER / f"{name}.lp"
    if os.environ.get("GPUPLANNER_WRITE_LP"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("after", [None, np.array([2, 0, 1])])
@pytest.mark.parametrize("before", [None, np.array([0, 1, 1])])
def test_start_values_are_a_feasible_answer_of_the_same_cost(fluid: Fluid, before: Any, after: Any) -> None:
    counts = np.array([[1, 0, 1], [0, 2, 0], [1, 1, 1]])
    model = families.build(fluid, range(3), before=before, after=after)
    values = families.start_values(model, counts, before, after)
    assert (values <= model.linear.high).all()
    for row in model.linear.rows:
        left = float(values[row.columns] @ row.coefficients)
        assert left >= row.rhs if row.sense == ">=" else left <= row.rhs, row.name
    leaving = 0.0 if after is None else fluid.ways.cost(counts[-1], after)
    assert model.linear.value(values) == pytest.approx(fluid.cost(counts, before=before) + leaving)


def test_least_cost_of_fixed_counts_is_what_the_arrays_say(problem_of: Any) -> None:
    """The model with counts fixed, solved, against the greedy service of :class:`Fluid`."""
    rng = np.random.default_rng(3)
    effort = Effort.begin()
    for _ in range(20):
        demand = rng.choice([0.1, 0.4, 1, 2.6, 5], size=(2, 4, 1))
        names = ["1g.5gb", "1g.10gb", "3g.20gb", "1g.5gb+me"]
        fluid = Fluid.of(
            problem_of(demand, names, gpus=4, tiers=["guaranteed", "standard"], unmet_price=[9, 2])
        )
        counts = (
            rng.multinomial(3, np.ones(len(fluid.layouts)) / len(fluid.layouts))
            if fluid.layouts
            else np.zeros(0, int)
        )
        model = families.build(fluid, range(1))
        model.linear.narrow(model.on[0], counts, counts)
        assert solve(model.linear, effort).objective == pytest.approx(fluid.slot_costs(0, counts[None])[0])
