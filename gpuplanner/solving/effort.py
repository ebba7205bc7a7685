"""How long and how hard to search: seconds, and work that means the same on every machine."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

from gpuplanner.errors import ScenarioError, message

SOLVERS = ("highs", "cbc")
"""Solvers that can be asked for."""

_MOST_SEED = 2**31 - 1
TOLERANCE = 1e-6
"""Two costs that differ by no more than this, relative to the larger of 1 and the cost, count as equal."""
UNIT = 1_000_000
"""Elementary steps (moments of bins looked at, labels made) in one unit of work."""


@dataclass
class Work:
    """How many models may still be solved: a limit that means the same on every machine.

    - ``left``: Models left; None for any number.
    """

    left: int | None = None

    def take(self) -> None:
        """Count one model."""
        if self.left is not None:
            self.left -= 1

    def done(self, kept: int = 0) -> bool:
        """Whether none is left, but for those that are kept for later."""
        return self.left is not None and self.left <= kept


@dataclass(frozen=True)
class Effort:
    """Limits of one search.

    Stop rules are the gap and fixed numbers of passes and nodes, so that the same problem and seed give the
    same plan on every machine; the deadline is a safety net.

    - ``gap_target``: Relative gap between plan and bound at which the search may stop.
    - ``deadline``: Instant of :func:`time.monotonic` after which no further step is begun [s].
    - ``time_limit_s``: Time from the beginning to the deadline [s].
    - ``seed``: Seed of the solver.
    - ``solver`` {"highs", "cbc"}: Name of the solver.
    - ``work``: Models that may still be handed to the solver.
    - ``kept``: Models of these that are kept for what comes later.
    """

    gap_target: float
    deadline: float
    time_limit_s: float = 0.0
    seed: int = 0
    solver: str = "highs"
    work: Work = field(default_factory=Work)
    kept: int = 0

    @classmethod
    def begin(
        cls, *, gap_target: float, time_limit_s: float, seed: int, solver: str, work_limit: int | None = None
    ) -> Effort:
        """Check the limits and start the clock.

        Examples
        --------
        >>> Effort.begin(gap_target=0.005, time_limit_s=60, seed=0, solver="highs").spent()
        False
        """
        faults = []
        if not 0 <= gap_target < 1:
            faults.append(f"gap_target must be at least 0 and below 1, not {gap_target!r}")
        faults += limit_faults(time_limit_s, seed, work_limit)
        if solver not in SOLVERS:
            faults.append(f"solver must be one of {', '.join(SOLVERS)}, not {solver!r}")
        if faults:
            text = message("plan", "limits that can be kept", "; ".join(faults), "Mend them.")
            raise ScenarioError(text)
        return cls(gap_target, time.monotonic() + time_limit_s, time_limit_s, seed, solver, Work(work_limit))

    def remaining_s(self) -> float:
        """Seconds left, at least 0; none once the work allowed is done."""
        return 0.0 if self.work.done(self.kept) else max(0.0, self.deadline - time.monotonic())

    def share(self, part: float, *, keep: int = 0) -> Effort:
        """The same limits with a part of the time that is left, and with some models kept for later."""
        return replace(self, deadline=time.monotonic() + part * self.remaining_s(), kept=self.kept + keep)

    def unlimited(self) -> Effort:
        """The same without limits, for what comes before all of them."""
        return Effort(self.gap_target, deadline=math.inf, seed=self.seed, solver=self.solver)

    def past_half(self) -> bool:
        """Whether more than half of the time is over."""
        return self.deadline - time.monotonic() < 0.5 * self.time_limit_s

    def why_spent(self) -> str | None:
        """Which limit was reached, if one was."""
        if self.work.done():
            return "work_limit"
        return "time_limit" if self.remaining_s() == 0.0 else None

    def spent(self) -> bool:
        """Whether the time is up, or the work done."""
        return self.remaining_s() == 0.0


def limit_faults(time_limit_s: float, seed: int, work_limit: int | None) -> list[str]:
    """What is wrong with the limits of a search; empty if nothing is.

    Examples
    --------
    >>> limit_faults(60.0, 0, None), limit_faults(60.0, -1, None)
    ([], ['seed must be a whole number from 0 to 2147483647, not -1'])
    """
    faults = []
    if not 0 < time_limit_s < math.inf:
        faults.append(f"time_limit_s must be above 0 and finite, not {time_limit_s!r}")
    if not (_is_whole(seed) and 0 <= seed <= _MOST_SEED):
        faults.append(f"seed must be a whole number from 0 to {_MOST_SEED}, not {seed!r}")
    if work_limit is not None and not (_is_whole(work_limit) and work_limit >= 1):
        faults.append(f"work_limit must be a whole number of at least 1, not {work_limit!r}")
    return faults


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def relative_gap(objective: float, bound: float) -> float:
    """How far a cost may lie above the least possible one, as a share of the cost; 0 if within tolerance.

    Examples
    --------
    >>> relative_gap(200.0, 199.0), relative_gap(0.0, 0.0)
    (0.005, 0.0)
    """
    distance = objective - bound
    return distance / objective if distance > TOLERANCE * max(1.0, objective) else 0.0


@dataclass
class Budget:
    """Limits of one search, and what was spent of them.

    - ``time_limit_s``: Most seconds.
    - ``work_limit``: Most units of a million elementary steps. Where it ends the search before the time does, the
      same problem and seed give the same answer on every machine.
    - ``seed``: Seed of everything random.

    A limit that makes no sense is refused with ``ScenarioError``.

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
