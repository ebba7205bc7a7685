"""By which rules gangs are served: order, queue, stops by tiers, checkpoints, failures, shares."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import polars as pl

from gpuplanner.errors import ScenarioError
from gpuplanner.names import resolve
from gpuplanner.simulate.rules import Checkpoints, Failures, FairShare, Preemption, Rules

if TYPE_CHECKING:
    from gpuplanner.lab.gangs.arrays import Gangs
    from gpuplanner.simulate.slices.world import Table

QUEUES = ("strict", "pass", "easy")
ORDERS = ("fifo", "sjf", "qssf", "fair")


@dataclass(frozen=True)
class GangRules(Rules):
    """How jobs on whole GPUs are served: an order, stops and failures beside what core rules have.

    Parameters
    ----------
    queue : {"easy", "strict", "pass"}
        What may overtake a job that does not fit; ``"pass"``: all that fits.
    substitute, change, drain
        As of :class:`~gpuplanner.simulate.Rules`; they change nothing here.
    order : {"fifo", "sjf", "qssf", "fair"}
        Who is first in the queue: the first to arrive; the shortest; the least predicted GPU-time (column
        ``predicted_gpu_s``); the tenant with the least decayed use per share. Ties go by arrival. Jobs with a
        smaller ``tier`` come before all others in any order.
    tiers_preempt : bool
        A job that does not fit stops running jobs of less urgent tiers.
    preemption : Preemption
        What stops cost.
    checkpoints : Checkpoints
        What stops by tiers, and failures, undo.
    failures : Failures, optional
        None: nothing fails.
    fair_share : FairShare
        Shares and decay, for ``"fair"``.

    References
    ----------
    QSSF: Q. Hu et al., Characterization and prediction of deep learning workloads in large-scale GPU datacenters, SC
    2021.

    Examples
    --------
    >>> GangRules(queue="strict", order="SJF").order
    'sjf'
    >>> GangRules(order="sjff")
    Traceback (most recent call last):
        ...
    gpuplanner.errors.ScenarioError: rules: order 'sjff' is unknown: ... Did you mean 'sjf', ...
    """

    queues: ClassVar[tuple[str, ...]] = QUEUES
    orders: ClassVar[tuple[str, ...]] = ORDERS

    order: str = "fifo"
    tiers_preempt: bool = False
    preemption: Preemption = field(default_factory=Preemption)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    failures: Failures | None = None
    fair_share: FairShare = field(default_factory=FairShare)

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        given = resolve(self.order, self.orders, what="rules: order", error=ScenarioError)
        object.__setattr__(self, "order", given)

    @property
    def stop_jobs(self) -> bool:
        """Whether running jobs may be stopped, or fail."""
        return self.tiers_preempt or self.failures is not None

    @property
    def saved_every_s(self) -> float:
        """Work between two checkpoints [s]; NaN: by Young's formula, for each job."""
        if self.checkpoints.interval_s is None:
            return math.inf if self.failures is None else math.nan
        return float(self.checkpoints.interval_s)

    def lacking(self, jobs: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, str, str, str]]:
        """What the rules need of jobs and some have not: those jobs, the column, what was expected, what to do."""
        if self.order == "qssf":
            yield (
                jobs.filter(pl.col("predicted_gpu_s").is_null()),
                "predicted_gpu_s",
                "a prediction for every job, since order 'qssf' goes by it",
                "Fill it, for example with the mean of the tenant's earlier jobs.",
            )

    def run(self, gangs: Gangs) -> Table:
        """Serve gangs to their end, and return the runs that were stopped. Rules of another kind bring another loop."""
        from gpuplanner.lab.gangs.queues import run_queues
        from gpuplanner.lab.gangs.schedule import in_pages

        return in_pages(run_queues, gangs)
