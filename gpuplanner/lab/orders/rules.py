"""Rules with the orders and queues of the lab, which bring event loops of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from gpuplanner.errors import ScenarioError, message
from gpuplanner.lab.gangs import rules as gangs_alone
from gpuplanner.lab.gangs.arrays import Gangs
from gpuplanner.lab.gangs.rules import GangRules
from gpuplanner.lab.gangs.schedule import in_pages
from gpuplanner.simulate.rules import Checkpoints
from gpuplanner.simulate.slices.world import EVENT, Table, table

BY_QUOTA = ("srtf", "las")
"""Orders that share out the GPUs anew whenever something changes, and stop running jobs for it."""
ORDERS = (*gangs_alone.ORDERS, *BY_QUOTA)
QUEUES = (*gangs_alone.QUEUES, "conservative")


@dataclass(frozen=True)
class ResearchRules(GangRules):
    """How jobs are served, with three ways more than :class:`~gpuplanner.lab.gangs.GangRules` knows.

    ``order="srtf"`` serves the shortest remaining time first, ``"las"`` the least attained GPU-time, in steps; both
    stop running jobs for it, save work before, and share out the GPUs by quota, where smaller jobs pass: the queues
    ``"strict"`` and ``"pass"`` are the same to them, and they take no other. ``queue="conservative"`` is backfill that
    delays nobody who came before; of a job larger than a node the last node has to have room for the remainder alone.

    Parameters
    ----------
    queue, substitute, change, drain, order, tiers_preempt, preemption, checkpoints, failures, fair_share
        As of :class:`~gpuplanner.lab.gangs.GangRules`.
    las_thresholds_gpu_s : tuple of float
        GPU-seconds at which a job sinks to the next step of LAS, ascending.

    References
    ----------
    Conservative: A. Mu'alem and D. Feitelson, IEEE TPDS 12 (2001). LAS: J. Gu et al., Tiresias, NSDI 2019; the default
    threshold is the first example of its repository.

    Examples
    --------
    >>> from gpuplanner.lab.gangs import run_gangs
    >>> from gpuplanner.simulate import Fleet
    >>> jobs = pl.DataFrame({"job_id": ["a", "b"], "tenant": "t", "submit_s": [0.0, 10.0],
    ...     "run_s": [100.0, 50.0], "gpus": [8, 8], "profile": "gpu"})
    >>> fleet = Fleet("H100-80GB-SXM5", nodes=1, gpus_per_node=8)
    >>> run = run_gangs(jobs, fleet, ResearchRules(queue="strict", order="srtf"), policy="srtf")
    >>> run.spells.select("job_id", "since_s", "start_s", "end_s", "lost_s", "ended").rows()
    [('a', 0.0, 0.0, 10.0, 0.0, 'preempted'), ('a', 10.0, 61.0, 182.0, 31.0, 'finished'), ...]
    """

    queues: ClassVar[tuple[str, ...]] = QUEUES
    orders: ClassVar[tuple[str, ...]] = ORDERS

    las_thresholds_gpu_s: tuple[float, ...] = (3600.0,)

    def __post_init__(self) -> None:
        """Check the values, and that they go together."""
        super().__post_init__()
        steps = self.las_thresholds_gpu_s
        if not all(low < high for low, high in zip((0.0, *steps), steps, strict=False)):
            _refuse("rules", "las_thresholds_gpu_s above 0 and ascending", str(steps))
        given = {
            "tiers_preempt": self.tiers_preempt,
            "failures": self.failures is not None,
            "checkpoints": self.checkpoints != Checkpoints(),
        }
        stops = [name for name, there in given.items() if there]
        if self.by_quota and (stops or self.queue in ("easy", "conservative")):
            got = ", ".join([f"queue {self.queue!r}", *stops])
            _refuse(f"rules, order {self.order!r}", "queue 'strict' or 'pass', and no stops but its own", got)
        if self.queue == "conservative" and stops:
            _refuse("rules, queue 'conservative'", "jobs that end within what was reserved", ", ".join(stops))

    @property
    def by_quota(self) -> bool:
        """Whether the order shares out the GPUs anew at every change."""
        return self.order in BY_QUOTA

    @property
    def stop_jobs(self) -> bool:
        """Whether running jobs may be stopped, or fail."""
        return self.by_quota or super().stop_jobs

    @property
    def by_limits(self) -> bool:
        """Whether the queue plans by run-time limits."""
        return self.queue == "conservative" or super().by_limits

    @property
    def saved_every_s(self) -> float:
        """Work between two checkpoints [s]: orders that stop jobs themselves save work before."""
        return 0.0 if self.by_quota else super().saved_every_s

    def lacking(self, jobs: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, str, str, str]]:
        """What the rules need of jobs and some have not: limits that hold, where others reserve what follows."""
        yield from super().lacking(jobs)
        if self.queue == "conservative":
            yield (
                jobs.filter(pl.col("limit_s") < pl.col("run_s")),
                "limit_s",
                "limits not below run_s, since others have reserved what follows",
                "Raise them, or cut run_s to what the limit leaves.",
            )

    def run(self, gangs: Gangs) -> Table:
        """Serve gangs to their end, and return the runs that were stopped."""
        if self.queue == "conservative":
            from gpuplanner.lab.orders.reservations import run_reserved, to_reserved, with_more

            # Where reservations keep jobs apart, those that take no time run beside others.
            gangs = gangs._replace(ends=table(EVENT, len(gangs.jobs)))
            pieces = to_reserved(gangs)
            while not run_reserved(gangs, pieces):
                pieces = with_more(pieces)
            return gangs.stops
        if self.by_quota:
            from gpuplanner.lab.orders.shared_out import run_quota, to_shares

            steps, lag_s = self.las_thresholds_gpu_s, self.preemption.start_lag_s
            quota = to_shares(gangs, las=self.order == "las", lag_s=lag_s, thresholds_gpu_s=steps)
            return in_pages(lambda one: run_quota(one, quota), gangs)
        return super().run(gangs)


def _refuse(what: str, expected: str, got: str) -> None:
    raise ScenarioError(message(what, expected, got, "Change it."))
