"""The linear program over all intervals, which gives the bound.

Columns, all whole numbers: ``on`` GPUs on (and, after them, parked) by slot and layout, ``short`` instances
missing by slot and step, ``cut`` GPUs that take up a layout, or go any other way that costs something. Whole
numbers follow for the last two from the first, yet saying so makes the solver several times faster.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpuplanner.planner.linear_model import TOLERANCE, Columns, Effort, LinearModel
from gpuplanner.planner.milp_solver import branch_and_bound, solve
from gpuplanner.planner.plan_arrays import Fluid
from gpuplanner.planner.plan_problem import Counts, Floats


@dataclass(frozen=True)
class Floor:
    """Consecutive slots cost at least so much in any plan, changes between them included."""

    slots: range
    cost: float


@dataclass
class SlotModel:
    """A model of consecutive slots, with the places of its columns.

    - ``fluid``: The arrays.
    - ``slots``: Slots covered.
    - ``linear``: Columns and rows.
    - ``on``, ``short``: Columns by slot.
    - ``idle``: Column that is 1, by slot: the price of a fleet that is parked, where there is one.
    - ``cut``: Columns by the slot that is entered; slots entered for free are left out.
    - ``ways``: Way, and 1 or -1 for out or back, of each column of a slot that is entered.
    """

    fluid: Fluid
    slots: range
    linear: LinearModel = field(default_factory=LinearModel)
    on: list[Columns] = field(default_factory=list)
    short: list[Columns] = field(default_factory=list)
    idle: dict[int, int] = field(default_factory=dict)
    cut: dict[int, Columns] = field(default_factory=dict)
    ways: list[tuple[int, int]] = field(default_factory=list)

    def counts(self, values: Floats) -> Counts:
        """GPUs by column from column values, shape (n_slots, n_columns)."""
        return np.rint([values[columns] for columns in self.on]).astype(np.int64)


def build(
    fluid: Fluid,
    slots: range,
    *,
    before: Counts | None = None,
    after: Counts | None = None,
    floors: Sequence[Floor] = (),
    constant: bool = False,
) -> SlotModel:
    """Model of a range of slots."""
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
    """GPUs on, by slot and layout; then those parked."""
    fluid = model.fluid
    n = len(fluid.owner)
    costs = fluid.on_cost * fluid.used * (len(model.slots) if constant else 1)
    for slot in model.slots:
        if constant and model.on:
            model.on.append(model.on[0])
            continue
        names = [f"on_{'all' if constant else slot}_{layout}" for layout in range(n)]
        high = np.where(fluid.cut, fluid.cuttable[slot], fluid.gpus[slot])
        high = np.where(fluid.used, high, fluid.problem.gpus_held_cut)
        columns = model.linear.add_columns(names, cost=costs, high=high)
        model.linear.narrow(columns, fluid.pinned, high)
        model.on.append(columns)
    for slot in model.slots if fluid.idle_cost else ():
        column = model.linear.add_columns([f"idle_{slot}"], cost=[fluid.idle_cost], high=[1.0])
        model.linear.narrow(column, [1.0], [1.0])
        model.idle[slot] = int(column[0])


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
            if needed := required[index, slot]:
                name = f"coverage_{slot}_{index}"
                model.linear.add_row(name, [*on, *short], [*cover, *missing], ">=", needed)


def add_fleet(model: SlotModel) -> None:
    """No more GPUs are on than are in service, and no more on or parked than there are."""
    fluid = model.fluid
    for slot, on in zip(model.slots, model.on, strict=True):
        model.linear.add_row(f"fleet_{slot}", on, fluid.used.astype(float), "<=", fluid.gpus[slot])
        if fluid.parks:
            model.linear.add_row(f"parked_{slot}", on, np.ones(len(on)), "<=", fluid.problem.gpus_held)


def add_whole_kept(model: SlotModel) -> None:
    """Some GPUs in service are not cut."""
    fluid = model.fluid
    if not fluid.cut.any():
        return
    for slot, on in zip(model.slots, model.on, strict=True):
        if fluid.cuttable[slot] < fluid.gpus[slot]:
            cut = (fluid.cut & fluid.used).astype(float)
            model.linear.add_row(f"whole_{slot}", on, cut, "<=", fluid.cuttable[slot])
        most = fluid.problem.gpus_held_cut
        if fluid.parks and most < fluid.problem.gpus_held:
            model.linear.add_row(f"whole_parked_{slot}", on, fluid.cut.astype(float), "<=", most)


def add_changes(model: SlotModel, before: Counts | None, after: Counts | None, *, constant: bool = False) -> None:
    """What goes over an edge of the tree of states is paid for, into, within and out of the range."""
    fluid, ways = model.fluid, model.fluid.ways
    prices = [price for way in zip(ways.come.tolist(), ways.go.tolist(), strict=True) for price in way]
    model.ways = [(place // 2, 1 - place % 2 * 2) for place, price in enumerate(prices) if price]
    if not model.ways:
        return
    paid = [price for price in prices if price]
    beyond = [np.flatnonzero(row) for row in ways.beyond]
    names = [(ways.names[way][sign < 0], int(beyond[way][0])) for way, sign in model.ways]
    sides: list[Columns | Counts | None] = [before, *(model.on[:1] if constant else model.on), after]
    fixed = {0, len(sides) - 1}
    batches = ways.batch.tolist()
    for index in range(1, len(sides)):
        earlier, later = sides[index - 1], sides[index]
        if earlier is None or later is None:
            continue
        slot = model.slots.start + index - 1
        labels = [f"{name}_{slot}_{place}" for name, place in names]
        columns = model.linear.add_columns(labels, cost=paid, high=[fluid.problem.gpus] * len(paid))
        model.cut[slot] = columns
        for (way, sign), (name, label), column in zip(model.ways, names, columns.tolist(), strict=True):
            terms: dict[int, float] = {column: float(batches[way])}
            rhs = 0.0
            for side, towards, place in ((later, -sign, index), (earlier, sign, index - 1)):
                if place in fixed:
                    rhs -= towards * float(side[beyond[way]].sum())
                else:
                    terms |= dict.fromkeys(side[beyond[way]].tolist(), float(towards))
            row = f"{'change' if name == 'cut' else name}_{slot}_{label}"
            model.linear.add_row(row, terms.keys(), terms.values(), ">=", rhs)


def add_floors(model: SlotModel, floors: Sequence[Floor]) -> None:
    """Some slots cost no less than they would by themselves: true in whole numbers, not of fractions."""
    linear = model.linear
    start, stop = model.slots.start, model.slots.stop
    for floor in [floor for floor in floors if start <= floor.slots.start and floor.slots.stop <= stop]:
        first, last = floor.slots.start - start, floor.slots.stop - start
        columns = [*model.on[first:last], *model.short[first:last]]
        columns += [model.cut[slot] for slot in floor.slots[1:] if slot in model.cut]
        columns += [np.array([model.idle[slot]]) for slot in floor.slots if slot in model.idle]
        held = np.concatenate(columns)
        costs = [linear.cost[column] for column in held]
        linear.add_row(f"floor_{floor.slots.start}_{len(floor.slots)}", held, costs, ">=", floor.cost)


def whole_sums(model: SlotModel) -> dict[str, Columns]:
    """Sums of columns that are whole numbers in every plan, by name: what to branch on first.

    GPUs that are on, instances missing of each set of requests and of each profile, and what goes over the edges of
    the tree of states, by the name of the edge; slot by slot.
    """
    fluid = model.fluid
    sums: dict[str, Columns] = {}
    kinds = [fluid.ways.names[way][sign < 0] for way, sign in model.ways]
    for slot, on, short in zip(model.slots, model.on, model.short, strict=True):
        sums[f"on_{slot}"] = on[fluid.used]
        profile = fluid.steps[slot].profile
        for index, asked in enumerate(fluid.demanded[:, profile]):
            sums[f"lacking_{slot}_{index}"] = short[asked > 0]
        for index in np.unique(profile).tolist():
            sums[f"missing_{slot}_{index}"] = short[profile == index]
        for kind in dict.fromkeys(kinds if slot in model.cut else ()):
            sums[f"{kind}_{slot}"] = model.cut[slot][[one == kind for one in kinds]]
    return {name: columns for name, columns in sums.items() if len(columns)}


def start_values(model: SlotModel, counts: Counts, before: Counts | None, after: Counts | None) -> Floats:
    """Column values of known counts, to begin a search with."""
    fluid = model.fluid
    values: NDArray[np.float64] = np.zeros(len(model.linear.names))
    values[list(model.idle.values())] = 1.0
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
            more = fluid.ways.beyond @ (later - earlier)
            for (way, sign), column in zip(model.ways, model.cut[slot].tolist(), strict=True):
                values[column] = -(-max(0, sign * int(more[way])) // int(fluid.ways.batch[way]))
    return values


_PART = 168


@dataclass(frozen=True, eq=False)
class Relaxation:
    """The linear program over all slots, solved.

    - ``bound``: Cost that no plan undercuts; 0 if the program was not solved in time.
    - ``guide``, shape (n_slots, n_layouts): GPUs by layout, in fractions, that reach the bound.
    """

    bound: float
    guide: Floats | None = None


def instant_bound(fluid: Fluid) -> float:
    """Cost that no plan undercuts, without a solver: slot by slot, the set of requests that costs most by itself.

    An instance of a set is missing at its price, or takes at least its part of the GPU that holds most of them.
    """
    total = fluid.idle_cost * fluid.problem.n_slots
    most = fluid.cover.max(axis=1, initial=0)
    part = np.where(most > 0, fluid.on_cost / most.clip(1), np.inf)
    for steps in fluid.steps:
        asked = fluid.demanded[:, steps.profile] * steps.width
        alone = (asked * np.minimum(steps.cost, part[:, None])).sum(axis=1)
        total += float(alone.max(initial=0.0))
    return total * (1 - TOLERANCE) if fluid.on_cost >= 0 else 0.0


def lower_bound(fluid: Fluid, floors: Sequence[Floor], effort: Effort, *, parts: int = 1) -> Relaxation:
    """Cost that no plan undercuts.

    All slots with all changes, in fractions of GPUs, with rows that bring back what fractions lose: the
    optimum, in whole GPUs, of each slot, and of each few slots in a row, by themselves. A horizon of many slots is
    taken week by week, as the time of a program grows nearly with the square of its size: changes from one part to
    the next are then free, so that the sum of all bounds is a bound. Where GPUs are parked, which doubles the program
    of a slot, a week is taken in as many `parts` as asked for.
    """
    n_slots = fluid.problem.n_slots
    width = _PART // parts if fluid.parks else _PART
    if n_slots <= (width if width < _PART else 2 * width):
        width = n_slots
    bound = 0.0
    guides: list[Floats] = []
    for start in range(0, n_slots, width):
        part = range(start, min(start + width, n_slots))
        model = build(fluid, part, before=None if start else fluid.initial, floors=floors)
        answer = solve(model.linear, effort, relaxed=True)
        if answer.bound is None or answer.values is None:
            return Relaxation(0.0)
        bound += answer.bound
        guides += [answer.values[columns] for columns in model.on]
    return Relaxation(max(0.0, bound), np.array(guides))


_NODES = 300


@dataclass(frozen=True)
class Floors:
    """Result of :func:`window_floors`.

    - ``floors``: One for each window, as far as the time sufficed.
    - ``states``, shape (n_floors * width, n_columns): Counts in each slot of each window that reach, or nearly reach,
      its floor.
    - ``complete``: Whether every window has its floor.
    """

    floors: list[Floor]
    states: Counts
    complete: bool


def window_floors(fluid: Fluid, width: int, known: Sequence[Floor], effort: Effort) -> Floors:
    """Least cost of every window of consecutive slots: a tiny model each, solved once if windows repeat."""
    solved: dict[tuple[bytes, ...], tuple[float, Counts]] = {}
    floors: list[Floor] = []
    states = [np.zeros((0, len(fluid.owner)), dtype=np.int64)]
    last = fluid.problem.n_slots - width
    for start in range(last + 1):
        window = range(start, start + width)
        key = tuple(part for slot in window for part in _key(fluid, slot))
        if key not in solved:
            model = build(fluid, window, floors=known)
            # For single slots the gap must be small: all that follows rests on their floors.
            gap = effort.gap_target * (0.05 if width == 1 else 0.2)
            answer = best_in_window(model, effort, gap=gap, nodes=_NODES)
            if answer is None:
                break
            values, bound = answer
            solved[key] = (max(0.0, bound), model.counts(values))
        cost, counts = solved[key]
        floors.append(Floor(window, cost))
        states.append(counts)
    return Floors(floors, np.concatenate(states), complete=len(floors) > last)


def best_in_window(model: SlotModel, effort: Effort, *, gap: float, nodes: int) -> tuple[Floats, float] | None:
    """Column values of a model of few slots, and what no values undercut; None without an answer in time.

    With HiGHS by branch and bound on its linear programs; where that finds no answer, and with CBC, by the solver.
    """
    found = None
    if effort.solver == "highs":
        columns = np.concatenate(model.on)
        found = branch_and_bound(model.linear, whole_sums(model), columns, effort, gap=gap, nodes=nodes)
    if found is not None and found.values is not None:
        return found.values, found.bound
    answer = solve(model.linear, effort, gap=gap, nodes=nodes)
    if answer.values is None:
        return None
    return answer.values, found.bound if found is not None else answer.bound or 0.0


def _key(fluid: Fluid, slot: int) -> tuple[bytes, ...]:
    """All that the model of one slot depends on."""
    steps = fluid.steps[slot]
    limits = (fluid.gpus[slot], fluid.cuttable[slot])
    arrays = (fluid.problem.required[:, slot], steps.profile, steps.width, steps.cost, *limits)
    return tuple(array.tobytes() for array in arrays)
