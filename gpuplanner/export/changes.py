"""Which nodes are cut anew at each time of a layout plan, and what that costs: for the scripts that do it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

import polars as pl

from gpuplanner.export.states import NodeState, file_stamp, node_states, stamp, states_at


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """Nodes that are cut anew together, at one time or at several.

    - ``times``: When; the fleet looks the same before, and the same afterwards, each time.
    - ``nodes``: State before (None if nothing is known) and after, by node. GPUs that are released then are whole in
      both.
    - ``limit_s``: How long it waits for its nodes to empty [s]: until it is given up, or the next change of one of
      them. None: for ever.
    """

    times: tuple[datetime, ...]
    nodes: Mapping[str, tuple[NodeState | None, NodeState]]
    limit_s: float | None = None

    @property
    def name(self) -> str:
        """Name of its files, by the first time."""
        return f"change-{file_stamp(self.times[0])}"

    @property
    def stamps(self) -> str:
        """Its times, for people."""
        return ", ".join(map(stamp, self.times))


def layout_changes_of(
    plan: pl.DataFrame, limit_s: float | None = None, initial: Mapping[str, NodeState] | None = None
) -> list[LayoutChange]:
    """List the changes of a plan that :func:`~gpuplanner.export.states.checked_plan` returned, by their first time.

    What nodes hold before the plan begins is `initial`, as far as it is known; each waits `limit_s` at most.
    """
    anew = set(plan.filter("changed").select("node", "slot_start").iter_rows())
    at: dict[datetime, dict[str, tuple[NodeState | None, NodeState]]] = {}
    for node, states in node_states(plan).items():
        before = (initial or {}).get(node)
        for time, state in states.items():
            # Nothing is done to a GPU that goes.
            before = before and before.without_layout(state.released)
            # At first the plan only says what is cut anew; what stays is as it is.
            differs = before is None or before.gpus != state.gpus
            if differs and (before is not None or (node, time) in anew):
                at.setdefault(time, {})[node] = (before, state)
            before = state
    alike: dict[tuple[object, ...], tuple[list[datetime], dict[str, tuple[NodeState | None, NodeState]]]] = {}
    for time, nodes in sorted(at.items()):
        key = (tuple(nodes.items()), tuple(states_at(plan, time).items()))
        alike.setdefault(key, ([], nodes))[0].append(time)
    times_of: dict[str, list[datetime]] = {}
    for time, nodes in sorted(at.items()):
        for node in nodes:
            times_of.setdefault(node, []).append(time)
    return [
        LayoutChange(tuple(times), nodes, _limit(times, nodes, times_of, limit_s))
        for times, nodes in alike.values()
    ]


def held_by(layouts: pl.DataFrame | None) -> dict[str, NodeState]:
    """State of each node in a table of node, gpu and layout."""
    found: dict[str, list[tuple[int, str]]] = {}
    for node, gpu, layout in [] if layouts is None else layouts.select("node", "gpu", "layout").iter_rows():
        found.setdefault(node, []).append((gpu, layout))
    return {node: NodeState(tuple(sorted(gpus))) for node, gpus in found.items()}


def _limit(
    times: Iterable[datetime],
    nodes: Iterable[str],
    times_of: Mapping[str, list[datetime]],
    limit_s: float | None,
) -> float | None:
    """The limit, or the shortest time until one of the nodes is changed again."""
    gaps = [
        (mine[after] - time).total_seconds()
        for mine in (times_of[node] for node in nodes)
        for time in times
        if (after := bisect_right(mine, time)) < len(mine)
    ]
    return min([*gaps, *([] if limit_s is None else [limit_s])], default=None)












