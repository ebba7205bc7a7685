"""When requests became ready, by the occupancy that was seen: what the fleet itself kept waiting, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from gpuplanner.simulate.nodes.machine import NodeFleet, NodeRequests, kinds_of, serving_table
from gpuplanner.simulate.slices.world import Floats, Ints

TRUNCATED_S = 1.0
"""Accounting drops parts of a second: what ends within one of a start is over by then."""
LATENCY_S = 60.0
"""A scheduler looks at its queue now and then: a request that fitted for no longer was not kept by anything else."""
NONE = -1


@dataclass(frozen=True, eq=False)
class Readiness:
    """When each request became ready, and what kept it.

    Attributes
    ----------
    ready_s : array of float, shape (n_requests,)
        When its request last began to fit nowhere, at the earliest its submission; its real start where it fitted.
        Of one that was not seen to start, where it fits nowhere at the end, since when; else NaN.
    by_count_s, by_place_s : array of float, shape (n_requests,)
        Of the time from then on: fewer slices were free than it asks for, or they were free but not together [s].
    held : polars.DataFrame
        ``request, node, amount``: where it was, as the source has it, or as it may have been.
    oversubscribed : int
        Starts on nodes that had no room for them.
    """

    ready_s: Floats
    by_count_s: Floats
    by_place_s: Floats
    held: pl.DataFrame
    oversubscribed: int


def readiness(
    requests: NodeRequests,
    fleet: NodeFleet,
    start_s: Floats,
    end_s: Floats,
    *,
    seen_s: float,
    nodes: Sequence[Sequence[int] | None] | None = None,
    larger: Sequence[Sequence[int]] | None = None,
    memory: Floats | None = None,
) -> Readiness:
    """Replay what was seen, and find since when each request had nowhere to go before it started.

    Parameters
    ----------
    requests : NodeRequests
        What was asked for; readiness and run times do not count.
    fleet : NodeFleet
        The fleet as it was, in the pools that its nodes begin in.
    start_s, end_s : array of float, shape (n_requests,)
        When each was seen to start and to end; NaN where it was not.
    seen_s : float
        When the observation ended [s].
    nodes : sequence, optional
        Nodes where each was, or None where nobody knows: those are put where they fit best.
    larger : sequence of sequence of int, optional
        For each profile those that may serve in its place.
    memory : array of float, shape (n_profiles,), optional
        Share of a board's memory that an instance is; None: that of its GPU.

    Examples
    --------
    >>> asked = NodeRequests([0, 0, 5, 8], [0, 0, 5, 8], [100, 50, 10, 10], [0] * 4, [0] * 4, [4, 4, 8, 4], [1] * 4)
    >>> start, end = np.array([0.0, 0, 100, 200]), np.array([100.0, 50, 110, 210])
    >>> found = readiness(asked, NodeFleet.whole([4, 4, 8]).only([0, 1]), start, end, seen_s=300.0)
    >>> found.ready_s.tolist()  # 8 GPUs on one node never fit on nodes of 4; the last fitted long before it started
    [0.0, 0.0, 5.0, 200.0]
    """
    start_s = np.array(start_s)  # one that must not be written to would be another type to the compiler
    kinds, kind = kinds_of(requests)
    served_by = serving_table(len(fleet.profiles), larger)
    capacity = np.where(
        fleet.first[:, None] >= 0, fleet.capacity[np.arange(len(fleet.first)), fleet.first.clip(0)], 0
    )
    pins = [list(nodes[row] or ()) if nodes is not None else [] for row in range(len(requests))]
    places = np.maximum(requests.nodes, np.array([len(one) for one in pins], np.int64))
    hold = np.concatenate([[0], np.cumsum(places)]).astype(np.int64)
    on_node, amount = np.full(hold[-1], NONE), np.zeros(hold[-1], np.int64)
    for row, names in enumerate(pins):
        on_node[hold[row] : hold[row] + len(names)] = names
    ended = _at_the_start_after(np.where(np.isnan(end_s), np.inf, end_s), start_s)
    at, what, who = _events(requests.submit_s, start_s, ended)
    count = len(requests)
    ready, by_count, by_place = np.full(count, np.nan), np.zeros(count), np.zeros(count)
    shares = np.stack([fleet.weights, fleet.weights if memory is None else memory])
    from gpuplanner.simulate.nodes.occupancy import look_back

    over = look_back(
        at, what, who, requests.submit_s, start_s, requests.profile, requests.total, kind, kinds, served_by,
        np.ascontiguousarray(capacity), shares, float(fleet.gpus @ (fleet.first >= 0)), hold,
        np.array([len(one) > 0 for one in pins]), on_node, amount, seen_s, LATENCY_S, ready, by_count, by_place,
        np.zeros((len(kinds), served_by.shape[1], 2), np.int64), np.zeros((len(kinds), 8)), np.zeros((count, 2)),
    )  # fmt: skip
    owner = np.repeat(np.arange(count), places)
    was = (on_node != NONE) & (amount > 0)
    held = pl.DataFrame({"request": owner[was], "node": on_node[was], "amount": amount[was]})
    return Readiness(ready, by_count, by_place, held, int(over))


def _at_the_start_after(end_s: Floats, start_s: Floats) -> Floats:
    """Ends, those less than a second behind some start put at that start: it may have had the room that they left."""
    starts = np.unique(start_s[~np.isnan(start_s)])
    place = np.searchsorted(starts, end_s - TRUNCATED_S)
    near = starts[np.minimum(place, len(starts) - 1)] if len(starts) else end_s
    # Where something starts at the very end, that is what took the room.
    moved = (near < end_s) & (near >= np.fmax(end_s - TRUNCATED_S, start_s)) & ~np.isin(end_s, starts)
    return np.where(moved, near, end_s)


def _events(submit_s: Floats, start_s: Floats, end_s: Floats) -> tuple[Floats, Ints, Ints]:
    """Instants with what happens: 0 a submission, 1 a start that is looked back from, 2 an end, 3 the start itself."""
    rows = np.arange(len(submit_s))
    began = ~np.isnan(start_s)
    over = began & np.isfinite(end_s)
    parts = [
        (submit_s, 0, rows),
        (start_s[began], 1, rows[began]),
        (end_s[over], 2, rows[over]),
        (start_s[began], 3, rows[began]),
    ]
    at = np.concatenate([part[0] for part in parts])
    what = np.concatenate([np.full(len(part[2]), part[1]) for part in parts])
    who = np.concatenate([part[2] for part in parts])
    # A request that began and ended at once gives back what it took, in this order.
    brief = np.isin(who, rows[over & (end_s <= start_s)]) & (what == 2)
    order = np.lexsort((who, np.where(brief, 4, what), at))
    return at[order], what[order], who[order]
