"""Slots that share their counts: a model of all slots folded into a smaller one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuplanner.planner.contract.problem import Counts, Floats
from gpuplanner.planner.program.families import SlotModel
from gpuplanner.solving.linear import Columns, LinearModel


@dataclass(frozen=True)
class TiedModel:
    """A model whose slots share counts by group.

    Parameters
    ----------
    linear : LinearModel
        Its columns and rows.
    place : ndarray of int
        Column of the folded model for each column of the model of all slots.
    """

    linear: LinearModel
    place: Columns

    def spread(self, values: Floats) -> Floats:
        """Column values of the model of all slots from those of the folded one."""
        return values[self.place]

    def gathered(self, values: Floats) -> Floats:
        """Column values of the folded model from those of the model of all slots."""
        folded = np.zeros(len(self.linear.names))
        folded[self.place] = values
        return folded


def tied(model: SlotModel, group: Counts) -> TiedModel:
    """Fold a model: slots of one group have the same counts.

    Columns that must be equal become one, with their costs added up and the closest of their bounds: GPUs on
    in the slots of a group, and cuts between slots of the same two groups. Of rows that then have the same
    left-hand side, the strictest stays. Whatever rows the model has, they keep their meaning.
    """
    place = np.arange(len(model.linear.names))
    leader: dict[int | tuple[int, int], Columns] = {}
    for member, on in zip(group.tolist(), model.on, strict=True):
        place[on] = leader.setdefault(member, on)
    for slot, cut in model.cut.items():
        index = slot - model.slots.start
        if 0 < index < len(group):
            pair = (int(group[index - 1]), int(group[index]))
            place[cut] = leader.setdefault(pair, cut)
    kept, place = np.unique(place, return_inverse=True)
    old = model.linear
    low, high, cost = np.full(len(kept), -np.inf), np.full(len(kept), np.inf), np.zeros(len(kept))
    np.add.at(cost, place, old.cost)
    np.maximum.at(low, place, old.low)
    np.minimum.at(high, place, old.high)
    folded = LinearModel([old.names[column] for column in kept], cost.tolist(), low.tolist(), high.tolist())
    _fold_rows(old, folded, place.tolist())
    return TiedModel(folded, place)


def _fold_rows(old: LinearModel, folded: LinearModel, place: list[int]) -> None:
    """Add the rows of a model, each left-hand side once."""
    seen: dict[tuple[object, ...], int] = {}
    for row in old.rows:
        terms: dict[int, float] = {}
        for column, coefficient in zip(row.columns, row.coefficients, strict=True):
            terms[place[column]] = terms.get(place[column], 0.0) + coefficient
        terms = {column: terms[column] for column in sorted(terms) if terms[column]}
        key = (row.sense, *terms.items())
        if key not in seen:
            seen[key] = len(folded.rows)
            folded.add_row(row.name, terms.keys(), terms.values(), row.sense, row.rhs)
        else:
            strictest = max if row.sense == ">=" else min
            same = folded.rows[seen[key]]
            rhs = strictest(same.rhs, row.rhs)
            folded.rows[seen[key]] = type(same)(same.name, same.columns, same.coefficients, same.sense, rhs)
