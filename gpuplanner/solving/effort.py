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
"""Elementary steps (pivots of a row, moments of bins looked at, labels made) in one unit of work."""


WORK_LIMIT = 2000
"""Units of work of a search that is given no limit: half a minute of one processor of 2026, whatever the machine."""


@dataclass
class Work:
    """Elementary steps that a search has done so far, all of its parts together."""

    done: float = 0.0


@dataclass(frozen=True)
class Effort:
    """Limits of one search.

    Stop rules are the gap, fixed numbers of passes and nodes, and elementary steps, which are counted: pivots, nodes,
    numbers of a model that is handed over. So the same problem and seed give the same plan on every machine, however
    busy it is; the clock is read only where a time limit was asked for.

    - ``gap_target``: Relative gap between plan and bound at which the search may stop.
    - ``deadline``: Instant of :func:`time.monotonic` after which no further step is begun [s].
    - ``time_limit_s``: Time from the beginning to the deadline [s].
    - ``seed``: Seed of the solver.
    - ``solver`` {"highs", "cbc"}: Name of the solver.
    - ``most``: Elementary steps after which no further one is begun.
    - ``work``: Steps done so far.
    """

    gap_target: float = 0.0
    deadline: float = math.inf
    time_limit_s: float = math.inf
    seed: int = 0
    solver: str = "highs"
    most: float = math.inf
    work: Work = field(default_factory=Work)

    @classmethod
    def begin(
        cls,
        *,
        gap_target: float = 0.0,
        time_limit_s: float | None = None,
        seed: int = 0,
        solver: str = "highs",
        work_limit: int | None = None,
        what: str = "plan",
    ) -> Effort:
        """Check the limits, and start the clock where it counts; without any limit, :data:`WORK_LIMIT` holds.

        Examples
        --------
        >>> Effort.begin(gap_target=0.005).remaining_steps() == WORK_LIMIT * UNIT
        True
        """
        faults = []
        if not 0 <= gap_target < 1:
            faults.append(f"gap_target must be at least 0 and below 1, not {gap_target!r}")
        if time_limit_s is not None and not 0 < time_limit_s < math.inf:
            faults.append(f"time_limit_s must be above 0 and finite, not {time_limit_s!r}")
        if not (_is_whole(seed) and 0 <= seed <= _MOST_SEED):
            faults.append(f"seed must be a whole number from 0 to {_MOST_SEED}, not {seed!r}")
        if work_limit is not None and not (_is_whole(work_limit) and work_limit >= 1):
            faults.append(f"work_limit must be a whole number of at least 1, not {work_limit!r}")
        if solver not in SOLVERS:
            faults.append(f"solver must be one of {', '.join(SOLVERS)}, not {solver!r}")
        if faults:
            text = message(what, "limits that can be kept", "; ".join(faults), "Mend them.")
            raise ScenarioError(text)
        if work_limit is None and time_limit_s is None:
            work_limit = WORK_LIMIT
        most = math.inf if work_limit is None else work_limit * float(UNIT)
        if time_limit_s is None:
            return cls(gap_target, seed=seed, solver=solver, most=most)
        return cls(gap_target, time.monotonic() + time_limit_s, time_limit_s, seed, solver, most)

    def spend(self, steps: float) -> None:
        """Count elementary steps."""
        self.work.done += steps

    def remaining_s(self) -> float:
        """Seconds left, at least 0; infinite without a time limit, and then no clock is read."""
        return math.inf if self.deadline == math.inf else max(0.0, self.deadline - time.monotonic())

    def remaining_steps(self) -> float:
        """Elementary steps left, at least 0."""
        return max(0.0, self.most - self.work.done)

    def left(self) -> float:
        """Part of the time, or of the work where less of that is left, that is still allowed."""
        parts = [(self.remaining_s(), self.time_limit_s), (self.remaining_steps(), self.most)]
        return min((left / whole for left, whole in parts if whole < math.inf), default=1.0)

    def share(self, part: float) -> Effort:
        """The same limits with a part of the time and of the work that are left."""
        deadline = self.deadline
        if deadline < math.inf:
            deadline = time.monotonic() + part * self.remaining_s()
        return replace(self, deadline=deadline, most=self.work.done + part * self.remaining_steps())

    def unlimited(self) -> Effort:
        """The same without limits, for what comes before all of them."""
        return Effort(self.gap_target, deadline=math.inf, seed=self.seed, solver=self.solver)

    def why_spent(self) -> str | None:
        """Which limit was reached, if one was."""
        if self.work.done >= self.most:
            return "work_limit"
        return "time_limit" if self.remaining_s() == 0.0 else None

    def spent(self) -> bool:
        """Whether the time is up, or the work done."""
        return self.why_spent() is not None


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
