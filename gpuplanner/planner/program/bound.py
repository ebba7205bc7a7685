"""What no plan can beat: a linear program over all slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuplanner.planner.contract.certificate import Certificate
from gpuplanner.planner.contract.problem import Floats
from gpuplanner.planner.program.families import Floor, build
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.solving.branching import ProofTree
from gpuplanner.solving.effort import TOLERANCE, Effort
from gpuplanner.solving.solver import solve

_DIGITS = 10
_PART = 168


@dataclass(frozen=True, eq=False)
class Relaxation:
    """The linear program over all slots, solved.

    - ``bound``: Cost that no plan undercuts; 0 if the program was not solved in time.
    - ``guide``, shape (n_slots, n_layouts): GPUs by layout, in fractions, that reach the bound.
    - ``floors``: Floors that it had.
    - ``prices``: Prices of its rows; or a tree of branchings with prices at its leaves, which bring the bound higher.
    """

    bound: float
    guide: Floats | None = None
    floors: tuple[Floor, ...] = ()
    prices: ProofTree | None = None

    def certificate(self, fluid: Fluid) -> Certificate | None:
        """Why the bound holds; None where a solver did not say."""
        if self.prices is None:
            return None
        used, held = _floors_named(self.prices, 0), []
        for floor in reversed(self.floors):
            name = f"floor_{floor.slots.start}_{len(floor.slots)}"
            if name in used:
                if floor.proof is None:
                    return None
                held.append((floor.slots.start, len(floor.slots), floor.proof))
                used |= _floors_named(floor.proof.tree, floor.slots.start - floor.proof.first)
        names = fluid.problem.profiles
        return Certificate(
            bound=self.bound,
            rest="",
            layouts=fluid.layouts,
            requests=tuple(tuple(names[p] for p in np.flatnonzero(row)) for row in fluid.demanded),
            floors=tuple(reversed(held)),
            tree=self.prices,
        )


def instant_bound(fluid: Fluid) -> Relaxation:
    """Cost that no plan undercuts, without a solver: slot by slot, the set of requests that costs most by itself.

    An instance of a set is missing at its price, or takes at least its part of the GPU that holds most of them.
    """
    total = fluid.idle_cost * fluid.problem.n_slots
    prices: dict[str, float] = {}
    most = fluid.cover.max(axis=1, initial=0)
    part = np.where(most > 0, fluid.on_cost / most.clip(1), np.inf)
    for slot, steps in enumerate(fluid.steps):
        asked = fluid.demanded[:, steps.profile] * steps.width
        alone = (asked * np.minimum(steps.cost, part[:, None])).sum(axis=1)
        if not len(alone) or alone.max() <= 0:
            continue
        best = int(alone.argmax())
        total += float(alone[best])
        dearest = steps.cost[asked[best] > 0].max()
        prices[f"coverage_{slot}_{best}"] = float(min(part[best], dearest))
    return Relaxation(total * (1 - TOLERANCE), prices=prices) if fluid.on_cost >= 0 else Relaxation(0.0)


def lower_bound(fluid: Fluid, floors: Sequence[Floor], effort: Effort, *, parts: int = 1) -> Relaxation:
    """Cost that no plan undercuts.

    All slots with all changes, in fractions of GPUs, with rows that bring back what fractions lose: the
    optimum, in whole GPUs, of each slot, and of each few slots in a row, by themselves. A horizon of many slots is
    taken week by week, as the time of a program grows nearly with the square of its size: changes from one part to
    the next are then free, so that the sum of all bounds is a bound, and their prices prove it together. Where GPUs
    are parked, which doubles the program of a slot, a week is taken in as many `parts` as asked for.
    """
    n_slots = fluid.problem.n_slots
    width = _PART // parts if fluid.parks else _PART
    if n_slots <= (width if width < _PART else 2 * width):
        width = n_slots
    bound, proven = 0.0, True
    guides: list[Floats] = []
    prices: dict[str, float] = {}
    for start in range(0, n_slots, width):
        part = range(start, min(start + width, n_slots))
        model = build(fluid, part, before=None if start else fluid.initial, floors=floors)
        answer = solve(model.linear, effort, relaxed=True)
        if answer.bound is None or answer.values is None:
            return Relaxation(0.0)
        bound += answer.bound
        guides += [answer.values[columns] for columns in model.on]
        proven = proven and answer.prices is not None
        duals = [0.0] * len(model.linear.rows) if answer.prices is None else answer.prices.tolist()
        rows = zip(model.linear.rows, duals, strict=True)
        right = {row.name: p for row, p in rows if abs(p) > 1e-13 and (p > 0) == (row.sense == ">=")}
        prices |= {name: float(f"{price:.{_DIGITS}g}") for name, price in right.items()}
    return Relaxation(max(0.0, bound), np.array(guides), tuple(floors), prices if proven else None)


def _floors_named(tree: object, shift: int) -> set[str]:
    """Floors that a proof uses, with slots moved."""
    if isinstance(tree, dict):
        parts = (name.split("_") for name in tree if name.startswith("floor_"))
        return {f"floor_{int(start) + shift}_{width}" for _, start, width in parts}
    assert isinstance(tree, list)
    return _floors_named(tree[2], shift) | _floors_named(tree[3], shift)
