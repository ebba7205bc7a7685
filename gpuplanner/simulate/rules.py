"""How planned changes are made; and preemption, checkpoints, failures and shares."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gpuplanner.errors import ScenarioError, refuse
from gpuplanner.hardware.change_cost import drain_time
from gpuplanner.names import resolve


@dataclass(frozen=True)
class Preemption:
    """What it takes to stop a job and to start it again.

    Parameters
    ----------
    overhead_s : float
        Time that a stopped job needs on top [s].
    min_run_s : float
        A job that has run for less is not stopped for one of a more urgent tier [s].
    """

    overhead_s: float = 0.0
    min_run_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the values."""
        if not all(0 <= time < math.inf for time in (self.overhead_s, self.min_run_s)):
            refuse("preemption", "seconds not below 0", str(self))


@dataclass(frozen=True)
class Checkpoints:
    """How often work is saved. What was done since the last checkpoint is lost with a stop or a failure.

    Parameters
    ----------
    interval_s : float or None
        Work between two checkpoints [s]; 0: saved all the time; infinite: never. None: by Young's formula
        ``sqrt(2 * write_s * MTBF of the job)`` where there are failures, else never.
    write_s : float
        Time that writing one takes [s].

    References
    ----------
    J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17 (1974); J. T. Daly,
    A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22 (2006).

    Examples
    --------
    >>> Checkpoints(write_s=60.0).interval_of(mtbf_s=120_000.0)
    3794.73...
    """

    interval_s: float | None = None
    write_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the values."""
        if not 0 <= self.write_s < math.inf or not (self.interval_s is None or self.interval_s >= 0):
            refuse("checkpoints", "seconds not below 0", str(self))
        if self.interval_s == 0 and self.write_s > 0:
            refuse("checkpoints", "an interval above 0 where writing takes time", str(self))

    def interval_of(self, mtbf_s: float) -> float:
        """Work between two checkpoints of a job whose failures come on average so far apart [s]."""
        return math.sqrt(2 * self.write_s * mtbf_s) if self.interval_s is None else self.interval_s


@dataclass(frozen=True)
class Failures:
    """Failures that stop a job, by a constant rate for each GPU that it holds.

    Parameters
    ----------
    mtbf_gpu_h : float
        Mean time between failures of one GPU [h].
    restart_s : float
        Time that a failed job needs on top when it starts again [s].
    seed : int
        The same seed gives a job the same failures under every policy.

    References
    ----------
    Default rate: 419 interruptions in 54 days on 16 384 GPUs, The Llama 3 Herd of Models (2024).

    Examples
    --------
    >>> round(Failures().mtbf_s(gpus=1024) / 3600, 1)
    49.5
    """

    mtbf_gpu_h: float = 50_700.0
    restart_s: float = 300.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the values."""
        if not self.mtbf_gpu_h > 0 or not 0 <= self.restart_s < math.inf or self.seed < 0:
            refuse("failures", "mtbf_gpu_h above 0, restart_s and seed not below 0", str(self))

    def mtbf_s(self, gpus: int) -> float:
        """Mean time between failures of a job that holds that many GPUs [s]."""
        return self.mtbf_gpu_h * 3600.0 / gpus


@dataclass(frozen=True)
class FairShare:
    """Tenants take turns by what they used, seen through an exponential decay.

    Parameters
    ----------
    half_life_s : float
        Time in which past use loses half its weight [s]; infinite: nothing is forgotten.

    References
    ----------
    Slurm, multifactor priority plugin, ``PriorityDecayHalfLife`` (7 days by default).
    """

    half_life_s: float = 7 * 86_400.0

    def __post_init__(self) -> None:
        """Check the values."""
        if not self.half_life_s > 0:
            refuse("fair share", "half_life_s above 0", str(self))


SCOPES = ("node", "gpu")


@dataclass(frozen=True)
class Drain:
    """How a planned change of layout is made: cordon, drain, a time limit, cut, return.

    Parameters
    ----------
    scope : {"node", "gpu"}
        What is emptied for a change: all GPUs of the node (the operator), or the GPU alone (NVML, mig-parted).
    ahead_s : float
        How long before the change is planned the cordon begins [s].
    limit_s : float or None
        How long after the time that it is planned for the change is given up [s]: the high end of ``drain_s`` of the
        change, and if nothing is stated that of the catalogue. None: not before the next one on the same GPUs is
        planned. The GPUs keep their layout until the next change.
    before_change : bool
        Whether the scheduler reserves ahead: until the change is planned jobs start that end by then by their limits,
        and nothing is cut before. Else nothing starts from the cordon on, and what is empty is cut.

    Raises
    ------
    ScenarioError
        If the scope is unknown, or a time is below 0.

    Examples
    --------
    >>> Drain(ahead_s=3600.0, limit_s=7200.0).scope
    'node'
    """

    scope: str = "node"
    ahead_s: float = 0.0
    limit_s: float | None = field(default_factory=lambda: drain_time().high)
    before_change: bool = False

    def __post_init__(self) -> None:
        """Check the values."""
        object.__setattr__(
            self, "scope", resolve(self.scope, SCOPES, what="drain: scope", error=ScenarioError)
        )
        limit = 0.0 if self.limit_s is None else self.limit_s
        if not all(0 <= time < math.inf for time in (self.ahead_s, limit)):
            refuse("drain", "ahead_s and limit_s not below 0", str(self))
