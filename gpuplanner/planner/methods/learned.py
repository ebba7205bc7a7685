"""What a search learns on its way, for those who come after."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuplanner.planner.contract.problem import Counts
from gpuplanner.planner.program.families import Floor


@dataclass
class Learned:
    """What a search was told, and what it has learnt besides its best plan and bound.

    Parameters
    ----------
    calendars : int
        Most different vectors of counts, for the method ``"calendar"``.
    floors : list of Floor
        Least costs of slots.
    states : list of ndarray of int, shape (n, n_layouts)
        States that were the best for some slot.
    constant : ndarray of int or None, shape (n_slots, n_layouts)
        The best constant plan, if it was looked for.
    """

    calendars: int = 2
    floors: list[Floor] = field(default_factory=list)
    states: list[Counts] = field(default_factory=list)
    constant: Counts | None = None
