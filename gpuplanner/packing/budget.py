"""How long a search may go on: seconds, and work that means the same on every machine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from gpuplanner.errors import ScenarioError, message
from gpuplanner.solving.effort import limit_faults

UNIT = 1_000_000
"""Elementary steps (moments of bins looked at, labels made) in one unit of work."""


@dataclass
class Budget:
    """Limits of one search, and what was spent of them.

    Parameters
    ----------
    time_limit_s : float
        Most seconds.
    work_limit : int, optional
        Most units of a million elementary steps. Where it ends the search before the time does, the same problem
        and seed give the same answer on every machine.
    seed : int
        Seed of everything random.

    Raises
    ------
    ScenarioError
        If a limit makes no sense.

    Examples
    --------
    >>> budget = Budget(time_limit_s=60, work_limit=2)
    >>> budget.spend(3_000_000)
    >>> budget.why_over()
    'work_limit'
    """

    time_limit_s: float
    work_limit: int | None = None
    seed: int = 0
    work: int = 0
    begun: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if faults := limit_faults(self.time_limit_s, self.seed, self.work_limit):
            text = message("packing", "limits that can be kept", "; ".join(faults), "Mend them.")
            raise ScenarioError(text)

    def spend(self, work: int) -> None:
        """Count elementary steps."""
        self.work += work

    @property
    def seconds(self) -> float:
        """Seconds since the search began."""
        return time.monotonic() - self.begun

    @property
    def remaining_s(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self.time_limit_s - self.seconds)

    def why_over(self) -> str | None:
        """Which limit was reached, if one was."""
        if self.work_limit is not None and self.work >= self.work_limit * UNIT:
            return "work_limit"
        return "time_limit" if self.remaining_s == 0.0 else None
