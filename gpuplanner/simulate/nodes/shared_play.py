"""Play requests on nodes that teams share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from gpuplanner.simulate.nodes.machine import NodeFleet, NodeRequests
from gpuplanner.simulate.nodes.play import Playing
from gpuplanner.simulate.nodes.sharing import NO_GROUP, QuotaGroup, SharedOutcome, Sharing
from gpuplanner.simulate.nodes.tenancy import (
    GROUP,
    STOPPED,
    TENANCY_STATUS,
    TENANT_JOB,
    UNITS,
    UNLIMITED,
    Tenancy,
)
from gpuplanner.errors import refuse
from gpuplanner.simulate.tables import Ints, Table, table


def play_shared(
    requests: NodeRequests,
    fleet: NodeFleet,
    sharing: Sharing,
    *,
    queue: str = "easy",
    placement: str = "best",
    larger: Sequence[Sequence[int]] | None = None,
) -> SharedOutcome:
    """Start requests as :func:`play` does, where teams have quotas, tiers and stops, and GPUs fail.

    Nodes that teams share stay on, and as they are cut. A request runs anew from its last checkpoint where it was
    stopped for others or failed. Failures come by the number of GPUs that it holds or has a slice of, by the same draws
    whatever the rules are.

    Parameters
    ----------
    requests, fleet, queue, placement, larger
        As of :func:`play`.
    sharing : Sharing
        The rules.

    Returns
    -------
    SharedOutcome

    Raises
    ------
    ScenarioError
        If the queue or the placement is unknown, or a request fails so often that it never ends.

    Examples
    --------
    >>> asked = NodeRequests([0, 1, 2], [0, 1, 2], [100, 100, 10], [100, 100, 10], [0, 0, 0], [6, 2, 4], [1, 1, 1])
    >>> teams = (QuotaGroup(4.0, parent=2), QuotaGroup(4.0, parent=2), QuotaGroup(0.0))
    >>> lent = play_shared(asked, NodeFleet.whole([8]), Sharing([0, 0, 1], [0, 0, 0], teams))
    >>> lent.start_s.tolist(), lent.stops.tolist()
    ([0.0, 1.0, 100.0], [0, 0, 0])
    >>> back = play_shared(asked, NodeFleet.whole([8]), Sharing([0, 0, 1], [0, 0, 0], teams, reclaim=True))
    >>> back.start_s.tolist(), back.end_s.tolist(), back.stops.tolist()
    ([0.0, 1.0, 2.0], [112.0, 101.0, 12.0], [1, 0, 0])
    """
    playing = Playing.of(requests, fleet, queue, None, placement, larger, None, None, None)
    if len(sharing.team) != len(requests) or fleet.flexible is not None:
        expected = f"{len(requests)} teams, one a request, on nodes that are not cut on demand"
        refuse("sharing", expected, f"{len(sharing.team)}", "Give each its team.")
    tenancy = _tenancy(requests, fleet, sharing, playing.order)
    stopped: list[np.ndarray] = []
    if playing.world is not None:
        from gpuplanner.simulate.nodes.shared_loop import advance_shared

        world, finished = playing.world, False
        while not finished:
            finished = advance_shared(world, tenancy)
            playing.turn_page()
            stopped.append(tenancy.stopped[: tenancy.status[0].stopped].copy())
            tenancy.status[0].stopped = 0
        _refuse_stuck(tenancy)
    return _outcome(playing, tenancy, stopped)


def _tenancy(requests: NodeRequests, fleet: NodeFleet, sharing: Sharing, order: Ints) -> Tenancy:
    """Fill the tables of the requests that are played, in the order of the queue."""
    count, status, jobs = len(order), table(TENANCY_STATUS, 1), table(TENANT_JOB, len(order))
    total = requests.total[order]
    shares = fleet.weights if sharing.shares is None else np.asarray(sharing.shares)
    failures, marks = sharing.failures, sharing.checkpoints
    mtbf = np.full(count, np.inf) if failures is None else failures.mtbf_s(1) / total
    every = np.full(count, np.inf if marks.interval_s is None else float(marks.interval_s))
    if marks.interval_s is None and failures is not None:
        every = np.sqrt(2.0 * marks.write_s * failures.mtbf_s(1) / total)
    jobs.team, jobs.tier, jobs.row = sharing.team[order], sharing.tier[order], order
    jobs.units = np.round(UNITS * shares).astype(np.int64)[requests.profile[order]] * total
    jobs.left, jobs.every, jobs.mtbf = requests.run_s[order], every, mtbf
    jobs.overhead = sharing.preemption.overhead_s
    jobs.first = jobs.end = jobs.barred = np.nan
    status.fair, status.by_tier, status.reclaim = (
        sharing.order == "fair",
        sharing.tiers_preempt,
        sharing.reclaim,
    )
    status.keep = sharing.head_keeps_quota
    status.decay = np.log(2) / sharing.fair_share.half_life_s
    status.min_run, status.write = sharing.preemption.min_run_s, marks.write_s
    status.restart, status.seed = (0.0, 0) if failures is None else (failures.restart_s, failures.seed)
    status.wake, status.stuck = np.inf, NO_GROUP
    victims, aside, heads, spare = np.zeros((4, count), np.int64)
    # In one instant no more fail than ran as it began.
    stopped = table(STOPPED, 2 * count + 64)
    assert sharing.hours is not None
    jobs.hours = sharing.hours[order]
    hours = np.full((len(sharing.openings), 1 + max(map(len, sharing.openings), default=0)), np.inf)
    for row, instants in zip(hours, sharing.openings, strict=True):
        row[: len(instants)] = instants
    passed = np.zeros(len(hours), np.int64)
    return Tenancy(
        groups_of(sharing.groups), jobs, victims, aside, heads, spare, hours, passed, stopped, status
    )


def groups_of(groups: Sequence[QuotaGroup]) -> Table:
    """Teams and cohorts as the loop takes them.

    Examples
    --------
    >>> found = groups_of([QuotaGroup(4.0, lend=1.0, parent=2), QuotaGroup(2.0, parent=2), QuotaGroup(1.0)])
    >>> (found.local / UNITS).tolist(), (found.subtree / UNITS).tolist()
    ([3.0, 0.0, 0.0], [4.0, 2.0, 4.0])
    """
    found = table(GROUP, len(groups))
    for row, one in zip(found, groups, strict=True):
        row.nominal = round(UNITS * (one.gpus or 0.0))
        row.borrow = UNLIMITED if one.borrow is None else round(UNITS * one.borrow)
        row.parent, row.weight = one.parent, one.weight
        row.limited = one.limited
    above = set(found.parent.tolist())
    found.limited[[number in above for number in range(len(groups))]] = 1
    depth = [_depth(groups, number) for number in range(len(groups))]
    found.subtree = found.nominal
    for number in sorted(range(len(groups)), key=lambda number: -depth[number]):
        row, lend = found[number], groups[number].lend
        row.local = 0 if lend is None else max(row.subtree - round(UNITS * lend), 0)
        if row.parent != NO_GROUP:
            found[row.parent].subtree += row.subtree - row.local
    return found


def _depth(groups: Sequence[QuotaGroup], number: int) -> int:
    parent = groups[number].parent
    return 0 if parent == NO_GROUP else 1 + _depth(groups, parent)


def _refuse_stuck(tenancy: Tenancy) -> None:
    """Raise if a request fails so often that it never ends."""
    stuck = int(tenancy.status[0].stuck)
    if stuck != NO_GROUP:
        from gpuplanner.simulate.nodes.shared_runs import MOST_STARTS

        refuse(
            f"request {int(tenancy.jobs[stuck].row)}",
            f"an end after at most {MOST_STARTS} starts",
            "one that is stopped before it gets on",
            "Lower the rate of failures, or save work more often.",
        )


def _outcome(playing: Playing, tenancy: Tenancy, stopped: list[np.ndarray]) -> SharedOutcome:
    jobs, order, count = tenancy.jobs, playing.order, playing.count

    def spread(values: np.ndarray, fill: float = np.nan) -> np.ndarray:
        found = np.full(count, fill, values.dtype)
        found[order] = values
        return found

    plain = playing.outcome()
    running = np.zeros(len(order), bool)
    if playing.world is not None:
        world = playing.world
        running[world.ends.who[: world.status[0].running]] = True
    last = np.where(running | ~np.isnan(jobs.end), jobs.begun, np.nan)
    log = np.concatenate(stopped) if stopped else table(STOPPED, 0)
    rows = {
        "request": order[log["request"]],
        "begun_s": log["begun"],
        "at_s": log["at"],
        "lost_s": log["lost"],
    }
    return SharedOutcome(
        start_s=spread(jobs.first), on=plain.on, held=plain.held, factor=plain.factor, changes=plain.changes,
        end_s=spread(jobs.end),
        queued_s=spread(jobs.queued, 0.0), lost_s=spread(jobs.lost, 0.0), stops=spread(jobs.stops, 0),
        failures=spread(jobs.failures, 0), stopped=pl.DataFrame(rows | {"failed": log["failed"] == 1}),
        last_s=spread(last), slowed_s=spread(jobs.slowed, 0.0),
    )  # fmt: skip
