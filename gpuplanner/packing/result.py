"""The answer: which item sits in which bin, and how few bins there could be at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.packing.problem import Integers

STOPS = ("proof", "time_limit", "work_limit", "user")
"""Why a search ended: bins and bound met; the time was up; the work was done; somebody pressed Ctrl-C."""


@dataclass(frozen=True, eq=False, repr=False)
class Packing:
    """Items in bins, with the proof of how good it is.

    Parameters
    ----------
    bins : int
        Bins in use.
    lower_bound : int
        No packing has fewer.
    assignment : ndarray of int, shape (n_items,)
        Bin of each item, from 0 to ``bins - 1``.
    places : ndarray of int or None, shape (n_items,)
        Start slice of each MIG instance for its whole life; None for plain sizes.
    stopped_by : str
        One of :data:`STOPS`; ``proof`` where the bound on what was asked for, bins or cost, was met.
    seconds : float
        Time that the search took [s].

    Examples
    --------
    >>> import numpy as np
    >>> found = Packing(4, 3, np.array([0, 1, 2, 3]), None, "time_limit", 5.0)
    >>> found.gap, found.proven
    (0.25, False)
    """

    bins: int
    lower_bound: int
    assignment: Integers
    places: Integers | None
    stopped_by: str
    seconds: float

    def __repr__(self) -> str:
        proof = "proven" if self.proven else f"at least {self.lower_bound}"
        return f"<Packing: {self.bins} bins, {proof}, {len(self.assignment)} items>"

    @property
    def gap(self) -> float:
        """How many of the bins may be too many, as a share: (bins - lower_bound) / bins."""
        return (self.bins - self.lower_bound) / self.bins

    @property
    def proven(self) -> bool:
        """Whether no packing has fewer bins."""
        return self.bins == self.lower_bound

    def to_dict(self) -> dict[str, Any]:
        """What there is to say about it in short."""
        return {name: getattr(self, name) for name in ("bins", "lower_bound", "gap", "proven", "seconds")}

    def to_frame(self) -> pl.DataFrame:
        """One row an item: its number, its bin, and the start slice on MIG boards.

        Examples
        --------
        >>> import numpy as np
        >>> Packing(1, 1, np.array([0, 0]), None, "proof", 0.1).to_frame().rows()
        [(0, 0), (1, 0)]
        """
        columns = {"item": np.arange(len(self.assignment)), "bin": self.assignment}
        return pl.DataFrame(columns if self.places is None else columns | {"start_slice": self.places})


@dataclass(frozen=True, eq=False)
class CostedPacking:
    """A packing under a cost of bins, fire-ups and time on.

    Parameters
    ----------
    packing : Packing
        The packing; its own bound is on the number of bins alone.
    cost, bound : float
        Its cost, and what no packing undercuts.
    fire_ups : int
        Changes of a bin from empty to used.
    busy_time : int
        Total time that bins are on, in the problem's unit.
    """

    packing: Packing
    cost: float
    bound: float
    fire_ups: int
    busy_time: int

    @property
    def gap(self) -> float:
        """(cost - bound) / cost; 0 if it costs nothing."""
        return (self.cost - self.bound) / self.cost if self.cost > self.bound else 0.0

    @property
    def proven(self) -> bool:
        """Whether no packing costs less, to a part in a million million."""
        return self.cost <= self.bound * (1 + 1e-12)

    def to_dict(self) -> dict[str, Any]:
        """What there is to say about it in short; `lower_bound` is on the bins, `bound` on the cost."""
        own = ("cost", "bound", "gap", "proven", "fire_ups", "busy_time")
        of_packing = ("bins", "lower_bound", "seconds")
        return {name: getattr(self, name) for name in own} | {
            name: getattr(self.packing, name) for name in of_packing
        }
