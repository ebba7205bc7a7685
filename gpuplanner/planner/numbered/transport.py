"""The cheapest way from what there is to what is wanted: a small transport problem, solved exactly."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import ArrayLike, NDArray

_UNREACHED = np.iinfo(np.int64).max // 4


def transport(supply: ArrayLike, demand: ArrayLike, cost: ArrayLike) -> NDArray[np.int64]:
    """Carry whole units from sources to sinks at the least cost.

    Successive shortest paths: each step sends as much as fits along the cheapest way that is left, rerouting
    earlier units where that helps. The number of steps grows with sources times sinks, not with units [1]_.

    References
    ----------
    .. [1] Ahuja, Magnanti, Orlin: Network Flows, 1993, section 9.7.

    Examples
    --------
    Taking the cheapest way first would cost 0 + 9; the best is 1 + 2:

    >>> transport([1, 1], [1, 1], [[0, 1], [2, 9]]).tolist()
    [[0, 1], [1, 0]]
    """
    left, wanted = np.array(supply, dtype=np.int64), np.array(demand, dtype=np.int64)
    price = np.array(cost, dtype=np.int64).reshape(len(left), len(wanted))
    flow = np.zeros_like(price)
    while left.any() and wanted.any():
        to_sink, source_of, sink_of = _distances(left, price, flow)
        reachable = np.where(wanted > 0, to_sink, _UNREACHED)
        if not len(reachable) or reachable.min() >= _UNREACHED:
            break
        sink = int(reachable.argmin())
        path = []
        end = sink
        while True:
            source = int(source_of[end])
            path.append((source, end))
            if sink_of[source] < 0:
                break
            end = int(sink_of[source])
        back = [(source, after) for (source, _), (_, after) in itertools.pairwise(path)]
        units = min(
            int(left[path[-1][0]]), int(wanted[sink]), *(int(flow[source, to]) for source, to in back)
        )
        for source, to in path:
            flow[source, to] += units
        for source, to in back:
            flow[source, to] -= units
        left[path[-1][0]] -= units
        wanted[sink] -= units
    return flow


def _distances(
    left: NDArray[np.int64], price: NDArray[np.int64], flow: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Cheapest ways from sources with units left to every sink (Bellman-Ford), and where they come from."""
    to_source = np.where(left > 0, 0, _UNREACHED)
    to_sink = np.full(price.shape[1], _UNREACHED)
    source_of, sink_of = np.full(len(to_sink), -1), np.full(len(to_source), -1)
    for _ in range(len(to_source) + 1):
        ways = to_source[:, None] + price
        best = ways.argmin(axis=0)
        better = ways[best, np.arange(len(to_sink))] < to_sink
        to_sink = np.where(better, ways[best, np.arange(len(to_sink))], to_sink)
        source_of = np.where(better, best, source_of)
        back = np.where(flow > 0, to_sink[None, :] - price, _UNREACHED)
        best = back.argmin(axis=1)
        shorter = back[np.arange(len(to_source)), best] < to_source
        if not shorter.any() and not better.any():
            break
        to_source = np.where(shorter, back[np.arange(len(to_source)), best], to_source)
        sink_of = np.where(shorter, best, sink_of)
    return to_sink, source_of, sink_of
