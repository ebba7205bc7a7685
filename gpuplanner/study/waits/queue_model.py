"""How the cluster starts jobs: handover, placement and limits, and the replay of jobs by them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuplanner.simulate.nodes import NodeFleet, NodeRequests, play
from gpuplanner.simulate.nodes.shared_play import play_shared
from gpuplanner.simulate.nodes.sharing import QuotaGroup, Sharing
from gpuplanner.simulate.slices.world import Floats, Ints
from gpuplanner.study.waits.limits import NamedLimit
from gpuplanner.study.waits.occupancy import Handover, OccupancyChanges


@dataclass(frozen=True, eq=False)
class QueueModel:
    """How jobs start on a cluster.

    Attributes
    ----------
    handover : Handover
        What the scheduler needs from an end to the next start.
    spread : bool
        Whether the emptiest nodes are taken first.
    tenant : array of int, shape (n_requests,)
        Number of the tenant of each.
    limits : tuple of NamedLimit
        Most GPUs of tenants.
    """

    handover: Handover
    spread: bool
    tenant: Ints
    limits: tuple[NamedLimit, ...] = ()

    def start(self, requests: NodeRequests, fleet: NodeFleet, rows: Ints | None = None) -> Floats:
        """Start requests, ready as they are, and return when [s]; infinite for those that never start.

        Parameters
        ----------
        requests : NodeRequests
            What is asked for; rows of the record, where ``rows`` says which.
        fleet : NodeFleet
            Where.
        rows : array of int, optional
            Row of the record that each request is; None: they are the record.
        """
        held = replace(
            requests,
            run_s=requests.run_s + self.handover.median_s,
            limit_s=requests.limit_s + self.handover.median_s,
        )
        placement = "spread" if self.spread else "best"
        if not self.limits:
            start = play(held, fleet, placement=placement).start_s
        else:
            tenant = self.tenant if rows is None else self.tenant[rows]
            most = {limit.tenant: limit.gpus for limit in self.limits}
            groups = tuple(QuotaGroup(most.get(number)) for number in range(int(self.tenant.max()) + 1))
            sharing = Sharing(tenant, np.zeros(len(tenant), np.int64), groups)
            start = play_shared(held, fleet, sharing, placement=placement).start_s
        return np.where(np.isnan(start), np.inf, start)


def starts_are_spread(seen: OccupancyChanges) -> bool:
    """Whether jobs started on the emptiest nodes rather than on the fullest that had room.

    Examples
    --------
    >>> node, none, one = np.array([0, 1, 0, 1]), np.zeros(4, int), np.array([-1, -1, -1, -1])
    >>> starts_are_spread(OccupancyChanges(np.arange(4.0), node, none, one, np.array([[8], [8]])))
    True
    """
    free, emptiest, fullest = seen.capacity.copy(), 0, 0
    for node, profile, change in zip(
        seen.node.tolist(), seen.profile.tolist(), seen.change.tolist(), strict=True
    ):
        here = free[:, profile]
        if change < 0 and here[node] >= -change:
            able = here[here >= -change]
            if able.max() > able.min():
                emptiest += here[node] == able.max()
                fullest += here[node] == able.min()
        here[node] += change
    return bool(emptiest > fullest)
