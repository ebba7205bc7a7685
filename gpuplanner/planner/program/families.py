"""The model of a range of slots, one function per family of rows.

Columns, all whole numbers: ``on`` GPUs on by slot and layout, ``short`` instances missing by slot and step,
``cut`` GPUs that take up a layout. Whole numbers follow for the last two from the first, yet saying so makes
the solver several times faster.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpuplanner.planner.contract.problem import Counts, Floats
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.solving.linear import Columns, LinearModel


@dataclass(frozen=True)
class Floor:
    """Consecutive slots cost at least so much in any plan, changes between them included."""

    slots: range
    cost: float


@dataclass
class SlotModel:
    """A model of consecutive slots, with the places of its columns.

    Parameters
    ----------
    fluid : Fluid
        The arrays.
    slots : range
        Slots covered.
    linear : LinearModel
        Columns and rows.
    on, short : list of ndarray of int
        Columns by slot.
    cut : dict of int to ndarray of int
        Columns by the slot that is entered; slots entered for free are left out.
    """

    fluid: Fluid
    slots: range
    linear: LinearModel = field(default_factory=LinearModel)
    on: list[Columns] = field(default_factory=list)
    short: list[Columns] = field(default_factory=list)
    cut: dict[int, Columns] = field(default_factory=dict)

    def counts(self, values: Floats) -> Counts:
        """GPUs by layout from column values, shape (n_slots, n_layouts)."""
        counts: Counts = np.rint([values[columns] for columns in self.on]).astype(np.int64)
        return counts


def build(
    fluid: Fluid,
    slots: range,
    *,
    before: Counts | None = None,
    after: Counts | None = None,
    floors: Sequence[Floor] = (),
    constant: bool = False,
) -> SlotModel:
    """Model of a range of slots.

    Parameters
    ----------
    fluid : Fluid
        The arrays.
    slots : range
        Consecutive slots.
    before, after : ndarray of int, optional, shape (n_layouts,)
        Fixed counts of the slots around the range. Where None, changes at that end are free.
    floors : sequence of Floor
        Least costs; those of slots beyond the range are left out.
    constant : bool
        One vector of counts for all slots.

    Returns
    -------
    SlotModel
    """
    model = SlotModel(fluid, slots)
    add_on_columns(model, constant=constant)
    add_short_columns(model)
    add_coverage(model)
    add_fleet(model)
    add_whole_kept(model)
    add_changes(model, before, after, constant=constant)
    add_floors(model, floors)
    return model


def add_on_columns(model: SlotModel, *, constant: bool = False) -> None:
    """GPUs on, by slot and layout."""
    fluid = model.fluid
    n = len(fluid.layouts)
    cost = fluid.on_cost * (len(model.slots) if constant else 1)
    for slot in model.slots:
        if constant and model.on:
            model.on.append(model.on[0])
            continue
        names = [f"on_{'all' if constant else slot}_{layout}" for layout in range(n)]
        high = np.where(fluid.cut, fluid.cuttable[slot], fluid.gpus[slot])
        columns = model.linear.add_columns(names, cost=[cost] * n, high=high)
        model.linear.narrow(columns, fluid.pinned, high)
        model.on.append(columns)


def add_short_columns(model: SlotModel) -> None:
    """Instances missing, by slot and step of their cost."""
    for slot in model.slots:
        steps = model.fluid.steps[slot]
        names = [f"short_{slot}_{step}" for step in range(len(steps.cost))]
        model.short.append(model.linear.add_columns(names, cost=steps.cost, high=steps.width))


def add_coverage(model: SlotModel) -> None:
    """Instances that can serve a set of requests, and those missing, are at least those required."""
    fluid = model.fluid
    required = fluid.demanded @ fluid.problem.required
    for slot, on, short in zip(model.slots, model.on, model.short, strict=True):
        in_set = fluid.demanded[:, fluid.steps[slot].profile]
        for index, (cover, missing) in enumerate(zip(fluid.cover, in_set, strict=True)):
            if required[index, slot]:
                model.linear.add_row(
                    f"coverage_{slot}_{index}", [*on, *short], [*cover, *missing], ">=", required[index, slot]
                )


def add_fleet(model: SlotModel) -> None:
    """No more GPUs are on than are in service."""
    for slot, on in zip(model.slots, model.on, strict=True):
        model.linear.add_row(f"fleet_{slot}", on, np.ones(len(on)), "<=", model.fluid.gpus[slot])


def add_whole_kept(model: SlotModel) -> None:
    """Some GPUs in service are not cut."""
    fluid = model.fluid
    if not fluid.cut.any():
        return
    for slot, on in zip(model.slots, model.on, strict=True):
        if fluid.cuttable[slot] < fluid.gpus[slot]:
            model.linear.add_row(f"whole_{slot}", on, fluid.cut.astype(float), "<=", fluid.cuttable[slot])


def add_changes(
    model: SlotModel, before: Counts | None, after: Counts | None, *, constant: bool = False
) -> None:
    """A cut is paid for each GPU by which a layout grows, into, within and out of the range."""
    fluid = model.fluid
    price = fluid.change_cost
    cuttable = np.flatnonzero(fluid.cut)
    if not price or not len(cuttable):
        return
    sides: list[Columns | Counts | None] = [before, *(model.on[:1] if constant else model.on), after]
    fixed = {0, len(sides) - 1}
    for index in range(1, len(sides)):
        earlier, later = sides[index - 1], sides[index]
        if earlier is None or later is None:
            continue
        slot = model.slots.start + index - 1
        names = [f"cut_{slot}_{layout}" for layout in cuttable]
        columns = model.linear.add_columns(
            names, cost=[price] * len(cuttable), high=[fluid.problem.gpus] * len(cuttable)
        )
        model.cut[slot] = columns
        for layout, column in zip(cuttable.tolist(), columns.tolist(), strict=True):
            terms: dict[int, float] = {column: 1.0}
            rhs = 0.0
            for side, sign, place in ((later, -1.0, index), (earlier, 1.0, index - 1)):
                if place in fixed:
                    rhs -= sign * float(side[layout])
                else:
                    terms[int(side[layout])] = sign
            model.linear.add_row(f"change_{slot}_{layout}", terms.keys(), terms.values(), ">=", rhs)


def add_floors(model: SlotModel, floors: Sequence[Floor]) -> None:
    """Some slots cost no less than they would by themselves: true in whole numbers, not of fractions."""
    linear = model.linear
    start, stop = model.slots.start, model.slots.stop
    for floor in [floor for floor in floors if start <= floor.slots.start and floor.slots.stop <= stop]:
        first, last = floor.slots.start - start, floor.slots.stop - start
        columns = [*model.on[first:last], *model.short[first:last]]
        columns += [model.cut[slot] for slot in floor.slots[1:] if slot in model.cut]
        held = np.concatenate(columns)
        costs = [linear.cost[column] for column in held]
        linear.add_row(f"floor_{floor.slots.start}_{len(floor.slots)}", held, costs, ">=", floor.cost)


def start_values(model: SlotModel, counts: Counts, before: Counts | None, after: Counts | None) -> Floats:
    """Column values of known counts, to begin a search with.

    Parameters
    ----------
    model : SlotModel
        A model of the same range, not constant, with the same `before` and `after`.
    counts : ndarray of int, shape (n_slots, n_layouts)
        GPUs by layout.
    before, after : ndarray of int, optional, shape (n_layouts,)
        As for :func:`build`.
    """
    fluid = model.fluid
    values: NDArray[np.float64] = np.zeros(len(model.linear.names))
    for slot, on, short, now in zip(model.slots, model.on, model.short, counts, strict=True):
        values[on] = now
        steps = fluid.steps[slot]
        left = fluid.missing(slot, now)
        for step, column in enumerate(short.tolist()):
            taken = min(int(steps.width[step]), int(left[steps.profile[step]]))
            values[column] = taken
            left[steps.profile[step]] -= taken
    sides = itertools.pairwise([before, *counts, after])
    for slot, (earlier, later) in enumerate(sides, model.slots.start):
        if slot in model.cut and earlier is not None and later is not None:
            values[model.cut[slot]] = (later - earlier).clip(0)[fluid.cut]
    return values
