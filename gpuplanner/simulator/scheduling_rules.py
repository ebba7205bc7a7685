"""Rules of a simulation for preemption, checkpoints, failures, quotas, fair share and drains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from gpuplanner.core.errors import ScenarioError, resolve_name
from gpuplanner.hardware.repartitioning_cost import find_drain_time
from gpuplanner.simulator.simulation_inputs import Outcome
from gpuplanner.simulator.simulation_state import Floats, Ints


@dataclass(frozen=True)
class PreemptionCosts:
    """Costs and limits of preemption.

    Parameters
    ----------
    overhead_s : float
        Extra time of a preempted job when it starts again. [s]
    min_run_s : float
        Run time before a job may be preempted. [s]
    """

    overhead_s: float = 0.0
    min_run_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the values."""
        if not all(0 <= time < math.inf for time in (self.overhead_s, self.min_run_s)):
            raise ScenarioError("preemption", "seconds not below 0", str(self), "Fix these seconds.")


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints of jobs: work since the last one is lost with a preemption or a failure.

    Parameters
    ----------
    interval_s : float or None
        Work between two checkpoints; 0: saved all the time; infinite: never. None: by Young's formula
        ``sqrt(2 * write_s * MTBF of the job)`` where there are failures, else never. [s]
    write_s : float
        Time to write a checkpoint. [s]

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
        """Compute the work between two checkpoints of a job [s] from its mean time between failures [s]."""
        return math.sqrt(2 * self.write_s * mtbf_s) if self.interval_s is None else self.interval_s


@dataclass(frozen=True)
class Failures:
    """GPU failures that end a run of a job, at a constant rate for each of its GPUs.

    Parameters
    ----------
    mtbf_gpu_h : float
        Mean time between failures of one GPU. [h]
    restart_s : float
        Extra time of a failed job when it starts again. [s]
    seed : int
        Seed of the draws; with one seed a job has the same failures under every policy.

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
        """Compute the mean time between failures of a job [s] from its number of GPUs."""
        return self.mtbf_gpu_h * 3600.0 / gpus


@dataclass(frozen=True)
class FairShare:
    """Fair share: teams with less past use, exponentially decayed, go first.

    Parameters
    ----------
    half_life_s : float
        Time in which past use loses half its weight; infinite: it never decays. [s]

    References
    ----------
    Slurm, multifactor priority plugin, ``PriorityDecayHalfLife`` (7 days by default).
    """

    half_life_s: float = 7 * 86_400.0

    def __post_init__(self) -> None:
        """Check the values."""
        if not self.half_life_s > 0:
            raise ScenarioError("fair share", "half_life_s above 0", str(self), "Fix these values.")


DRAIN_SCOPES = ("node", "gpu")
"""What a drain empties: all GPUs of the node, or only the GPU that is repartitioned."""


@dataclass(frozen=True)
class Drain:
    """Drain before a planned layout change: cordon, drain up to a time limit, repartition, uncordon.

    Parameters
    ----------
    scope : {"node", "gpu"}
        What is emptied: all GPUs of the node (GPU operator), or the GPU alone (NVML, mig-parted).
    ahead_s : float
        Time from the cordon to the planned change. [s]
    limit_s : float or None
        Time after the planned change when it is given up, and the GPUs keep their layout; by default the high end of
        the catalogue's drain time. None: not before the next change of the same GPUs is planned. [s]
    before_change : bool
        Whether jobs may start on cordoned GPUs if by their time limits they end before the planned change; no GPU is
        repartitioned before then. Else no job starts from the cordon on, and GPUs are repartitioned once empty.

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
    limit_s: float | None = field(default_factory=lambda: find_drain_time().high)
    before_change: bool = False

    def __post_init__(self) -> None:
        """Check the values."""
        scope = resolve_name(self.scope, DRAIN_SCOPES, subject="drain: scope", error=ScenarioError)
        object.__setattr__(self, "scope", scope)
        limit = 0.0 if self.limit_s is None else self.limit_s
        if not all(0 <= time < math.inf for time in (self.ahead_s, limit)):
            raise ScenarioError("drain", "ahead_s and limit_s not below 0", str(self), "Fix these values.")


QUEUE_ORDERS_WITHIN_TIER = ("fifo", "fair")
"""Orders of the queue within a tier: by submission, or teams with less past use first."""
NO_QUOTA_GROUP = -1
"""Number in place of a cohort, or of a row of start hours, where there is none."""


@dataclass(frozen=True)
class QuotaGroup:
    """Quota of a team or a cohort.

    Parameters
    ----------
    gpus : float or None
        Nominal quota. None: quotas do not bind it; a team within a cohort then has no quota of its own. [GPU]
    borrow, lend : float or None
        Most that it borrows from others, and lends to others; None: no limit. [GPU]
    parent : int
        Number of its cohort, teams counted first; -1: none, so that it borrows and lends nothing.
    weight : float
        Weight in fair share.
    """

    gpus: float | None = None
    borrow: float | None = None
    lend: float | None = None
    parent: int = NO_QUOTA_GROUP
    weight: float = 1.0

    @property
    def has_quota(self) -> bool:
        """Whether a quota binds the group."""
        return self.gpus is not None or self.parent != NO_QUOTA_GROUP


@dataclass(frozen=True, eq=False)
class Sharing:
    """Rules by which teams share nodes: quotas, tiers, fair share, preemption, failures and start hours.

    Within a tier teams with quota of their own left go first, then, in the order ``"fair"``, teams with less past use,
    then earlier requests. A request that lacks quota is passed over; in a strict queue it blocks its own team.

    Parameters
    ----------
    team, tier : array of int, shape (n_requests,)
        Number of each request's team in ``groups``, and its priority tier, 0 the most urgent.
    groups : tuple of QuotaGroup
        Teams, then cohorts.
    shares : array of float, shape (n_profiles,)
        Quota that an instance of each profile uses; None: its weight in the fleet. [GPU]
    order : {"fifo", "fair"}
        Order within a tier.
    fair_share : FairShare
        Decay of past use; weights are those of the groups.
    tiers_preempt : bool
        Whether a request that does not fit preempts requests of less urgent tiers: its own team's, and those of teams
        that use more than their own quota.
    reclaim : bool
        Whether a request that does not fit, of a team within its own quota, preempts requests of teams that use more
        than theirs.
    preemption : PreemptionCosts
        Cost of preemptions, and protected run time.
    checkpoints : Checkpoints
        Work that preemptions and failures lose.
    failures : Failures, optional
        None: no GPU fails.
    hours : array of int, shape (n_requests,), optional
        Row of ``openings`` in which a request may start, -1: at any time. Outside these hours it is passed over.
    openings : tuple of sequence of float
        Begins and ends of start hours, in turn and ascending; the last begin may have no end. [s]
    head_keeps_quota : bool
        Whether the request that waits first for nodes keeps its quota too; in Slurm its team's next may use it.

    Raises
    ------
    ScenarioError
        If the groups form no tree, or a request's team does not exist.
    """

    team: Ints
    tier: Ints
    groups: tuple[QuotaGroup, ...] = (QuotaGroup(),)
    shares: Floats | None = None
    order: str = "fifo"
    fair_share: FairShare = field(default_factory=FairShare)
    tiers_preempt: bool = False
    reclaim: bool = False
    preemption: PreemptionCosts = field(default_factory=PreemptionCosts)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    failures: Failures | None = None
    hours: Ints | None = None
    openings: tuple[Sequence[float], ...] = ()
    head_keeps_quota: bool = True

    def __post_init__(self) -> None:
        """Cast and check the values."""
        for name in ("team", "tier"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), np.int64))
        order = resolve_name(self.order, QUEUE_ORDERS_WITHIN_TIER, subject="sharing: order", error=ScenarioError)
        object.__setattr__(self, "order", order)
        hours = np.full(len(self.team), NO_QUOTA_GROUP) if self.hours is None else np.asarray(self.hours, np.int64)
        object.__setattr__(self, "hours", hours)
        is_valid_hours = (hours >= NO_QUOTA_GROUP) & (hours < len(self.openings))
        if hours.shape != self.team.shape or not is_valid_hours.all():
            expected = f"{len(self.team)} rows of {len(self.openings)} openings, or -1"
            raise ScenarioError("sharing: hours", expected, "others", "Fix the start hours.")

        count = len(self.groups)
        is_valid = len(self.team) == len(self.tier) and bool(((self.team >= 0) & (self.team < count)).all())
        is_valid = is_valid and all(
            NO_QUOTA_GROUP <= group.parent < count and group.weight > 0 for group in self.groups
        )
        if not is_valid or not _is_tree(self.groups):
            expected = "a team and a tier for every request, and cohorts that form a tree"
            todo = "Give every team a row, cohorts after them."
            raise ScenarioError("sharing", expected, f"{count} groups", todo)


def _is_tree(groups: Sequence[QuotaGroup]) -> bool:
    """Whether the parents of all groups lead to a top without a cycle."""
    for start in range(len(groups)):
        group, steps = start, 0
        while group != NO_QUOTA_GROUP and steps <= len(groups):
            group, steps = groups[group].parent, steps + 1
        if group != NO_QUOTA_GROUP:
            return False
    return True


@dataclass(frozen=True, eq=False)
class SharedOutcome(Outcome):
    """Outcome of a simulation in which requests may be preempted and may fail.

    Attributes
    ----------
    start_s, power_intervals, allocations, factor
        As of :class:`Outcome`: the first start, and the allocations of the last run.
    end_s : array of float, shape (n_requests,)
        End of all its work; NaN: it never ended. [s]
    queued_s : array of float, shape (n_requests,)
        Time in the queue, before the first start and after preemptions and failures. [s]
    lost_s : array of float, shape (n_requests,)
        Time on its nodes without lasting progress: repeated work, checkpoints, restarts. [s]
    stops, failures : array of int, shape (n_requests,)
        Number of preemptions, and of failures.
    stopped : polars.DataFrame
        ``request, begun_s, at_s, lost_s, failed``: runs that a preemption or a failure ended, in order of time. [s]
    slowed_s : array of float, shape (n_requests,)
        Run time beyond that on one node with what it requested, by GPU model and network; below 0: less. [s]
    last_s : array of float, shape (n_requests,)
        Begin of its last allocation; NaN: it waits. [s]
    """

    end_s: Floats
    queued_s: Floats
    lost_s: Floats
    stops: Ints
    failures: Ints
    stopped: pl.DataFrame

    def runs(self) -> pl.DataFrame:
        """Tabulate when each request had its nodes, run by run.

        Returns
        -------
        polars.DataFrame
            ``request, begun_s, at_s`` [s]; the end is null for runs that have not ended.
        """
        columns = {"request": np.arange(len(self.end_s)), "begun_s": self.last_s, "at_s": self.end_s}
        last = pl.DataFrame(columns, nan_to_null=True).drop_nulls("begun_s")
        before = self.stopped.select("request", "begun_s", "at_s")
        return pl.concat([before, last]).sort("request", "begun_s", maintain_order=True)

    slowed_s: Floats
    last_s: Floats
