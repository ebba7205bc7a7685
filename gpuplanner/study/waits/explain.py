"""Explain the waits of a record: causes of each job, limits, the queue replayed, and when jobs arrive in a what-if."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpuplanner.simulate.slices.world import Floats, Ints
from gpuplanner.study.decision.asked import Asked
from gpuplanner.study.waits.causes import CAUSES, UNEXPLAINED, attribute_waits, find_fits
from gpuplanner.study.waits.limits import find_limits
from gpuplanner.study.waits.occupancy import close_gaps, observe_handover, observe_occupancy
from gpuplanner.study.waits.queue_model import QueueModel, starts_are_spread

DELAY_SHARE = 0.1
"""A tenant's waiting of which a smaller share is unexplained has what a replay gets wrong anyhow, and no delay."""


@dataclass(frozen=True, eq=False)
class ExplainedWaits:
    """What kept the jobs of a record waiting.

    Attributes
    ----------
    seconds : array of float, shape (n_jobs, n_causes)
        By job and cause, of :data:`~gpuplanner.study.waits.causes.CAUSES`.
    arrival_s : array of float, shape (n_jobs,)
        When each arrives in any simulation: its eligibility and the delay that neither capacity nor queue explains.
    delay_s : array of float, shape (n_jobs,)
        That delay [s].
    queue : QueueModel
        How jobs start: handover, placement, and limits that the record shows.
    judged : array of bool, shape (n_jobs,)
        Jobs that came within the record; the others were there already.
    simulated_s, waited_s : array of float, shape (n_jobs,)
        What each waits in the replay of today, without the delay that nothing explains, and what it waited [s].
    """

    seconds: Floats
    arrival_s: Floats
    delay_s: Floats
    queue: QueueModel
    judged: NDArray[np.bool_]
    simulated_s: Floats
    waited_s: Floats

    @property
    def eligible_s(self) -> Floats:
        """Since when each could have started, but for capacity and queue; its start if before the record [s]."""
        return self.arrival_s - self.delay_s

    def seconds_of(self, *causes: str) -> Floats:
        """Seconds that each job waited for some causes."""
        return np.asarray(self.seconds[:, [CAUSES.index(cause) for cause in causes]].sum(axis=1))

    def arrivals_without_limits(self) -> Floats:
        """When each arrives where no simulation holds tenants to limits: what these held back is delayed [s]."""
        tenant, latency_s = self.queue.tenant, self.queue.handover.latency_s
        tenants = int(tenant.max(initial=0)) + 1
        return self.eligible_s + unexplained_delay(self.seconds, tenant, tenants, latency_s)

    def replay_error(self, size: Ints) -> float:
        """Difference of the waiting simulated and observed, by tenant and size, as a share of what was observed."""
        judged = self.judged
        group = self.queue.tenant[judged] * (int(size.max(initial=0)) + 1) + size[judged]
        simulated = np.bincount(group, self.simulated_s[judged])
        waited = np.bincount(group, self.waited_s[judged])
        return float(np.abs(simulated - waited).sum() / max(waited.sum(), 1.0))

    def take(self, rows: Ints, later_s: Floats) -> ExplainedWaits:
        """Some of the jobs, each so much later, some of them more than once."""
        moved = replace(
            self,
            **{
                name: getattr(self, name)[rows]
                for name in ("seconds", "delay_s", "judged", "simulated_s", "waited_s")
            },
        )
        queue = replace(self.queue, tenant=self.queue.tenant[rows])
        return replace(moved, arrival_s=self.arrival_s[rows] + later_s, queue=queue)


def explain_waits(asked: Asked) -> ExplainedWaits:
    """Explain what kept jobs waiting on today's nodes."""
    requests, fleet = asked.granted, asked.fleet
    capacity = np.ascontiguousarray(fleet.capacity[:, 0, :])
    seen = observe_occupancy(requests, asked.start_s, asked.end_s, asked.pins, capacity)
    handover = observe_handover(requests, asked.start_s, seen)
    fits = find_fits(requests, close_gaps(seen, handover.latency_s), fleet.weights)
    carried = asked.start_s < 0
    known = np.where(carried, asked.start_s, requests.ready_s)
    until = np.where(np.isnan(asked.start_s), asked.seen_s, asked.start_s)
    tenants, tenant = np.unique(asked.jobs["tenant"].fill_null("?").to_numpy(), return_inverse=True)
    queue = QueueModel(handover, starts_are_spread(seen), tenant.astype(np.int64))

    def replay_and_attribute() -> tuple[Floats, Floats]:
        start_s = queue.start(requests.at(known), fleet)
        seconds = attribute_waits(fits, np.maximum(known, 0.0), until, start_s, handover.latency_s)
        seconds[carried] = 0.0
        return np.minimum(start_s, asked.seen_s) - known, seconds

    simulated, seconds = replay_and_attribute()
    left = seconds
    limits = find_limits(
        queue.tenant, asked.gpus(), asked.start_s, asked.end_s, seconds[:, UNEXPLAINED],
        latency_s=handover.latency_s, seen_s=asked.seen_s,
    )  # fmt: skip
    if limits:
        queue = replace(queue, limits=limits)
        simulated, left = replay_and_attribute()
    delay = unexplained_delay(left, queue.tenant, len(tenants), handover.latency_s)
    judged = ~carried & ~asked.standing
    return ExplainedWaits(seconds, known + delay, delay, queue, judged, simulated, until - known)


def unexplained_delay(seconds: Floats, tenant: Ints, tenants: int, latency_s: float) -> Floats:
    """What of the waiting nothing explains, where it is more of the tenant's waiting than a replay gets wrong [s].

    Examples
    --------
    >>> seconds = np.array([[0.0, 0, 0, 0, 500], [10_000, 0, 0, 0, 500]])
    >>> unexplained_delay(seconds, np.array([0, 1]), 2, 60.0).tolist()
    [500.0, 0.0]
    """
    unexplained = seconds[:, UNEXPLAINED]
    share = np.bincount(tenant, unexplained, tenants) / np.maximum(
        np.bincount(tenant, seconds.sum(axis=1), tenants), 1e-9
    )
    return np.where((share > DELAY_SHARE)[tenant] & (unexplained > latency_s), unexplained, 0.0)
