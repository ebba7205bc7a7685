"""By which rules teams share nodes, and what became of requests that may be stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from gpuplanner.errors import ScenarioError
from gpuplanner.names import resolve
from gpuplanner.simulate.nodes.machine import Outcome
from gpuplanner.simulate.rules import (Checkpoints, Failures, FairShare, Preemption)
from gpuplanner.errors import refuse
from gpuplanner.simulate.tables import Floats, Ints

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
        object.__setattr__(
            self, "order", resolve(self.order, SHARED_ORDERS, what="sharing: order", error=ScenarioError)
        )
        anytime = np.full(len(self.team), NO_GROUP) if self.hours is None else np.asarray(self.hours, np.int64)
        object.__setattr__(self, "hours", anytime)
        if anytime.shape != self.team.shape or not ((anytime >= NO_GROUP) & (anytime < len(self.openings))).all():
            refuse(
                "sharing: hours",
                f"{len(self.team)} rows of {len(self.openings)} openings, or -1",
                "others",
                "Mend them.",
            )
        known = len(self.groups)
        sound = (
            len(self.team) == len(self.tier)
            and bool(((self.team >= 0) & (self.team < known)).all())
            and all(NO_GROUP <= one.parent < known and one.weight > 0 for one in self.groups)
        )
        if not sound or not _is_tree(self.groups):
            refuse(
                "sharing",
                "a team and a tier for every request, and cohorts that form a tree",
                f"{known} groups",
                "Give every team a row, cohorts after them.",
            )


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
        last = pl.DataFrame(
            {"request": np.arange(len(self.end_s)), "begun_s": self.last_s, "at_s": self.end_s}
        )
        last = last.with_columns(pl.col("begun_s", "at_s").fill_nan(None)).drop_nulls("begun_s")
        before = self.stopped.select("request", "begun_s", "at_s")
        return pl.concat([before, last]).sort("request", "begun_s", maintain_order=True)

    slowed_s: Floats
    """Time that its runs took longer than on what it asked for, by board and network; below 0: less long [s]."""
    last_s: Floats
    """When each got its nodes for its last run; NaN: it waits."""
