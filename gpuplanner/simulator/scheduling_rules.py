"""Preemption, checkpoints, failures, sharing rules and drains of a simulation; queue rules are in the loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from gpuplanner.core.errors import ScenarioError, resolve
from gpuplanner.hardware.repartitioning_cost import drain_time
from gpuplanner.simulator.simulated_fleet import Outcome
from gpuplanner.simulator.simulation_state import Floats, Ints


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
            raise ScenarioError("preemption", "seconds not below 0", str(self), "Fix these seconds.")


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
            raise ScenarioError("checkpoints", "seconds not below 0", str(self), "Fix these seconds.")
        if self.interval_s == 0 and self.write_s > 0:
            expected = "an interval above 0 where writing takes time"
            raise ScenarioError("checkpoints", expected, str(self), "Fix these values.")

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
            expected = "mtbf_gpu_h above 0, restart_s and seed not below 0"
            raise ScenarioError("failures", expected, str(self), "Fix these values.")

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
            raise ScenarioError("fair share", "half_life_s above 0", str(self), "Fix these values.")


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
        scope = resolve(self.scope, SCOPES, what="drain: scope", error=ScenarioError)
        object.__setattr__(self, "scope", scope)
        limit = 0.0 if self.limit_s is None else self.limit_s
        if not all(0 <= time < math.inf for time in (self.ahead_s, limit)):
            raise ScenarioError("drain", "ahead_s and limit_s not below 0", str(self), "Fix these values.")


SHARED_ORDERS = ("fifo", "fair")
NO_GROUP = -1


@dataclass(frozen=True)
class QuotaGroup:
    """What a team or a cohort has, in GPUs.

    Parameters
    ----------
    gpus : float or None
        Its own. None: quotas do not bind it, and it runs on what is free; a team within a cohort has none of its own.
    borrow, lend : float or None
        Of others at most, and to others at most; None: no limit.
    parent : int
        Number of the cohort that it is in, teams counted first; -1: in none, so that it borrows and lends nothing.
    weight : float
        Its share where teams take turns by use.
    """

    gpus: float | None = None
    borrow: float | None = None
    lend: float | None = None
    parent: int = NO_GROUP
    weight: float = 1.0

    @property
    def limited(self) -> bool:
        """Whether quotas bind it."""
        return self.gpus is not None or self.parent != NO_GROUP


@dataclass(frozen=True, eq=False)
class Sharing:
    """How teams share nodes.

    Within a tier requests of teams with quota of their own left come first, then those of teams that used less where
    the order is ``"fair"``, then those that came first. Who lacks quota is passed over; in a strict queue it holds up
    its own team.

    Parameters
    ----------
    team, tier : array of int, shape (n_requests,)
        Number of the team of each request in ``groups``, and its tier, 0 the most urgent.
    groups : tuple of QuotaGroup
        Teams, then cohorts.
    shares : array of float, shape (n_profiles,)
        What an instance counts against quotas, in GPUs; None: its weight in the fleet.
    order : {"fifo", "fair"}
        Who is first within a tier.
    fair_share : FairShare
        In which time use is half forgotten; weights are those of the groups.
    tiers_preempt : bool
        Who does not fit stops requests of less urgent tiers: its own team's, and those of teams that hold more than
        their own quota.
    reclaim : bool
        Who does not fit, and stays within its own team's quota, stops requests of teams that hold more than theirs.
    preemption : Preemption
        What stops cost, and who is spared.
    checkpoints : Checkpoints
        What stops and failures undo.
    failures : Failures, optional
        None: nothing fails.
    hours : array of int, shape (n_requests,), optional
        Row of ``openings`` in which a request may start, -1: at any time. Who may not now is passed over.
    openings : tuple of sequence of float
        When hours begin and end, in turn and in order [s]; what begins last may have no end.
    head_keeps_quota : bool
        Whether who waits first for nodes keeps its quota as well; in Slurm the next of its team may take it.

    Raises
    ------
    ScenarioError
        If the groups are no tree, or a request is of none.
    """

    team: Ints
    tier: Ints
    groups: tuple[QuotaGroup, ...] = (QuotaGroup(),)
    shares: Floats | None = None
    order: str = "fifo"
    fair_share: FairShare = field(default_factory=FairShare)
    tiers_preempt: bool = False
    reclaim: bool = False
    preemption: Preemption = field(default_factory=Preemption)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    failures: Failures | None = None
    hours: Ints | None = None
    openings: tuple[Sequence[float], ...] = ()
    head_keeps_quota: bool = True

    def __post_init__(self) -> None:
        """Cast and check the values."""
        for name in ("team", "tier"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), np.int64))
        order = resolve(self.order, SHARED_ORDERS, what="sharing: order", error=ScenarioError)
        object.__setattr__(self, "order", order)
        hours = np.full(len(self.team), NO_GROUP) if self.hours is None else np.asarray(self.hours, np.int64)
        object.__setattr__(self, "hours", hours)
        known_hours = (hours >= NO_GROUP) & (hours < len(self.openings))
        if hours.shape != self.team.shape or not known_hours.all():
            expected = f"{len(self.team)} rows of {len(self.openings)} openings, or -1"
            raise ScenarioError("sharing: hours", expected, "others", "Fix the start hours.")
        known = len(self.groups)
        sound = len(self.team) == len(self.tier) and bool(((self.team >= 0) & (self.team < known)).all())
        sound = sound and all(NO_GROUP <= one.parent < known and one.weight > 0 for one in self.groups)
        if not sound or not _is_tree(self.groups):
            expected = "a team and a tier for every request, and cohorts that form a tree"
            todo = "Give every team a row, cohorts after them."
            raise ScenarioError("sharing", expected, f"{known} groups", todo)


def _is_tree(groups: Sequence[QuotaGroup]) -> bool:
    for start in range(len(groups)):
        group, steps = start, 0
        while group != NO_GROUP and steps <= len(groups):
            group, steps = groups[group].parent, steps + 1
        if group != NO_GROUP:
            return False
    return True


@dataclass(frozen=True, eq=False)
class SharedOutcome(Outcome):
    """What came of requests that may be stopped and may fail.

    Attributes
    ----------
    start_s, on, held, factor
        As of :class:`Outcome`; the first start, and what each held in its last run.
    end_s : array of float, shape (n_requests,)
        When all its work was done; NaN: never.
    queued_s : array of float, shape (n_requests,)
        Time in the queue, before the first start and after stops and failures [s].
    lost_s : array of float, shape (n_requests,)
        Time that it held its nodes for nothing that lasts: work done again, checkpoints, restarts [s].
    stops, failures : array of int, shape (n_requests,)
        How often it was stopped for others, and failed.
    stopped : polars.DataFrame
        ``request, begun_s, at_s, lost_s, failed``: the runs that ended so, in order of time.
    """

    end_s: Floats
    queued_s: Floats
    lost_s: Floats
    stops: Ints
    failures: Ints
    stopped: pl.DataFrame

    def runs(self) -> pl.DataFrame:
        """``request, begun_s, at_s``: when each request held its nodes, run by run; those under way have no end."""
        columns = {"request": np.arange(len(self.end_s)), "begun_s": self.last_s, "at_s": self.end_s}
        last = pl.DataFrame(columns, nan_to_null=True).drop_nulls("begun_s")
        before = self.stopped.select("request", "begun_s", "at_s")
        return pl.concat([before, last]).sort("request", "begun_s", maintain_order=True)

    slowed_s: Floats
    """Time that its runs took longer than on what it asked for, by board and network; below 0: less long [s]."""
    last_s: Floats
    """When each got its nodes for its last run; NaN: it waits."""
