"""The model of a range of slots, one function per family of rows.

Columns, all whole numbers: ``on`` GPUs on by slot and layout, ``short`` instances missing by slot and step,
``kept`` GPUs that have a layout but are not on, ``grown`` GPUs that take up a layout, ``whole`` those that are made
whole, and ``mode`` those that were. Whole numbers follow for all others from the first, yet saying so makes the
solver several times faster.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpuplanner.planner.fluid import Fluid
from gpuplanner.planner.linear import Columns, LinearModel
from gpuplanner.planner.problem import Counts, Floats


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
    kept : list of ndarray of int
        Columns by slot; empty where no change is paid, so that what GPUs keep does not matter.
    change : dict of int to ndarray of int
        Columns of GPUs grown, made whole and were whole, by the slot that is entered; slots entered for free
        are left out.
    """

    fluid: Fluid
    slots: range
    linear: LinearModel = field(default_factory=LinearModel)
    on: list[Columns] = field(default_factory=list)
    short: list[Columns] = field(default_factory=list)
    kept: list[Columns] = field(default_factory=list)
    change: dict[int, Columns] = field(default_factory=dict)

    def states(self, values: Floats) -> Counts:
        """States from column values, shape (n_slots, n_columns)."""
        on = np.rint([values[columns] for columns in self.on]).astype(np.int64)
        kept = np.zeros((len(on), int(self.fluid.cut.sum())), dtype=np.int64)
        if self.kept:
            kept = np.rint([values[columns] for columns in self.kept]).astype(np.int64)
        return np.concatenate([on, kept], axis=1)


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
    before, after : ndarray of int, optional, shape (n_columns,)
        Fixed states of the slots around the range. Where None, changes at that end are free.
    floors : sequence of Floor
        Least costs; those of slots beyond the range are left out.
    constant : bool
        One state for all slots.

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
    alone = (constant or len(slots) == 1) and before is None and after is None
    if fluid.cut.any() and (fluid.change_cost or fluid.mode_cost) and not alone:
        add_kept_columns(model, constant=constant)
        add_room(model)
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
        model.linear.narrow(columns, fluid.on(fluid.pinned), high)
        model.on.append(columns)


def add_kept_columns(model: SlotModel, *, constant: bool = False) -> None:
    """GPUs that have a layout with instances but are not on, by slot and layout."""
    fluid = model.fluid
    cut = np.flatnonzero(fluid.cut)
    for slot in model.slots:
        if constant and model.kept:
            model.kept.append(model.kept[0])
            continue
        names = [f"kept_{'all' if constant else slot}_{layout}" for layout in cut]
        most = 0 if slot == 0 and fluid.initial is None else fluid.most_cut
        model.kept.append(model.linear.add_columns(names, cost=[0.0] * len(cut), high=[most] * len(cut)))


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


def add_room(model: SlotModel) -> None:
    """GPUs that are on or have a layout are no more than there are; some are never cut."""
    fluid = model.fluid
    for slot, on, kept in zip(model.slots, model.on, model.kept, strict=True):
        columns = [*on, *kept]
        model.linear.add_row(f"room_{slot}", columns, np.ones(len(columns)), "<=", fluid.problem.gpus)
        if fluid.most_cut < fluid.problem.gpus:
            is_cut = [*fluid.cut.astype(float), *np.ones(len(kept))]
            model.linear.add_row(f"cut_{slot}", columns, is_cut, "<=", fluid.most_cut)


def add_changes(
    model: SlotModel, before: Counts | None, after: Counts | None, *, constant: bool = False
) -> None:
    """A change is paid for each GPU by which a layout grows, or the whole ones do; a mode change beside it."""
    fluid, linear = model.fluid, model.linear
    cut = np.flatnonzero(fluid.cut)
    inside: list[_Side | None] = [
        [[int(one), int(other)] for one, other in zip(on[fluid.cut], kept, strict=True)]
        for on, kept in zip(model.on, model.kept, strict=True)
    ]
    sides = [
        _known(fluid, before),
        *(inside[:1] if constant else inside),
        _known(fluid, after),
    ]
    for slot, (earlier, later) in enumerate(itertools.pairwise(sides), model.slots.start):
        if earlier is None or later is None:
            continue
        names = [*(f"grown_{slot}_{layout}" for layout in cut), f"whole_{slot}"]
        prices = [*[fluid.change_cost] * len(cut), fluid.change_cost + fluid.mode_cost]
        if fluid.mode_cost:
            names, prices = [*names, f"mode_{slot}"], [*prices, fluid.mode_cost]
        columns = linear.add_columns(names, cost=prices, high=[fluid.problem.gpus] * len(names))
        model.change[slot] = columns
        for place, layout in enumerate(cut.tolist()):
            one = slice(place, place + 1)
            _add_growth(linear, f"change_{slot}_{layout}", columns[place], earlier[one], later[one])
        _add_growth(linear, f"uncut_{slot}", columns[len(cut)], later, earlier)
        if fluid.mode_cost:
            _add_growth(linear, f"modes_{slot}", columns[-1], earlier, later)


def add_floors(model: SlotModel, floors: Sequence[Floor]) -> None:
    """Some slots cost no less than they would by themselves: true in whole numbers, not of fractions."""
    linear = model.linear
    start, stop = model.slots.start, model.slots.stop
    for floor in [floor for floor in floors if start <= floor.slots.start and floor.slots.stop <= stop]:
        first, last = floor.slots.start - start, floor.slots.stop - start
        columns = [*model.on[first:last], *model.short[first:last]]
        columns += [model.change[slot] for slot in floor.slots[1:] if slot in model.change]
        held = np.concatenate(columns)
        costs = [linear.cost[column] for column in held]
        linear.add_row(f"floor_{floor.slots.start}_{len(floor.slots)}", held, costs, ">=", floor.cost)


def start_values(model: SlotModel, states: Counts, before: Counts | None, after: Counts | None) -> Floats:
    """Column values of known states, to begin a search with.

    Parameters
    ----------
    model : SlotModel
        A model of the same range, not constant, with the same `before` and `after`.
    states : ndarray of int, shape (n_slots, n_columns)
        The states.
    before, after : ndarray of int, optional, shape (n_columns,)
        As for :func:`build`.
    """
    fluid = model.fluid
    values: NDArray[np.float64] = np.zeros(len(model.linear.names))
    for slot, on, short, now in zip(model.slots, model.on, model.short, states, strict=True):
        values[on] = fluid.on(now)
        steps = fluid.steps[slot]
        left = fluid.missing(slot, fluid.on(now))
        for step, column in enumerate(short.tolist()):
            taken = min(int(steps.width[step]), int(left[steps.profile[step]]))
            values[column] = taken
            left[steps.profile[step]] -= taken
    if model.kept:
        for kept, now in zip(model.kept, states, strict=True):
            values[kept] = now[len(fluid.layouts) :]
    sides = itertools.pairwise([before, *states, after])
    for slot, (earlier, later) in enumerate(sides, model.slots.start):
        if slot in model.change and earlier is not None and later is not None:
            more = fluid.held(later) - fluid.held(earlier)
            amounts = [*more.clip(0), max(-int(more.sum()), 0), max(int(more.sum()), 0)]
            values[model.change[slot]] = amounts[: len(model.change[slot])]
    return values


_Side = list[float | list[int]]
"""GPUs that have each layout at one side of a boundary: a number, or columns to add up."""


def _known(fluid: Fluid, state: Counts | None) -> _Side | None:
    return None if state is None else [float(gpus) for gpus in fluid.held(state)]


def _add_growth(linear: LinearModel, name: str, column: int, earlier: _Side, later: _Side) -> None:
    """The column is at least what some layouts together have more at the later side."""
    terms: dict[int, float] = {int(column): 1.0}
    rhs = 0.0
    for side, sign in ((later, -1.0), (earlier, 1.0)):
        for gpus in side:
            if isinstance(gpus, float):
                rhs -= sign * gpus
            else:
                terms |= dict.fromkeys(gpus, sign)
    linear.add_row(name, terms.keys(), terms.values(), ">=", rhs)
