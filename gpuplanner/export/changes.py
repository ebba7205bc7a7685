"""Which nodes are cut anew at each time of a layout plan, and what that costs: for the scripts that do it."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import resources

import polars as pl

from gpuplanner.export.states import NodeState, file_stamp, node_states, stamp, states_at
from gpuplanner.hardware.change_cost import ChangeCost
from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.hardware.reconfigure import Reconfiguration
from gpuplanner.hardware.seconds import minutes
from gpuplanner.units import SECONDS_PER_MINUTE

SHARED_PARTS = {"COMMON": "common.sh", "KUBERNETES": "kubernetes.sh"}
"""Files that several scripts hold, by their word between at-signs."""


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


def change_note(cost: ChangeCost, node: str, before: NodeState | None, after: NodeState) -> str:
    """Comment lines on one node: what changes and what it costs."""
    lines = [f"# {node}: {before.config_name if before else 'as it is'} -> {after.config_name}"]
    was: Mapping[int, str] = dict(before.gpus) if before else {}
    changes: list[Reconfiguration] = []
    for gpu, layout in after.gpus:
        if gpu not in was:
            lines.append(f"#   GPU {gpu}: {layout}")
        elif was[gpu] != layout:
            lines.append(f"#   GPU {gpu}: {was[gpu]} -> {layout}")
            changes.append(cost.change(was[gpu], layout))
    if changes:
        longest = max(changes, key=lambda change: change.seconds)
        reboot = (
            "; MIG mode changes, which needs a reboot (WITH_REBOOT of the MIG manager)"
            if longest.reboot
            else ""
        )
        lines.append(
            f"#   {sum(len(change.destroyed) for change in changes)} instances go, "
            f"{sum(len(change.created) for change in changes)} come; about {minutes(longest.seconds)} "
            f"({longest.low_s / SECONDS_PER_MINUTE:.4g} to {longest.high_s / SECONDS_PER_MINUTE:.4g}) by "
            f"{longest.path}, without the drain{reboot}"
        )
    return "\n".join(lines)


def change_script(
    template: str, one: LayoutChange, cost: ChangeCost, board: GpuModel, parts: Mapping[str, str]
) -> str:
    """A script of this room with what it needs to know of a change: times, board, nodes, notes, how long it waits."""
    notes = "\n".join(change_note(cost, node, *states) for node, states in one.nodes.items())
    known = {
        "TIME": one.stamps,
        "TIMES": " ".join(map(stamp, one.times)),
        "NAME": one.name,
        "BOARD": board.name,
        "NODES": " ".join(one.nodes),
        "NOTES": notes,
        "TIMEOUT_S": f"{_FOREVER_S if one.limit_s is None else one.limit_s:.0f}",
        "CUT_S": f"{_slowest_s(cost):.0f}",
    }
    return filled_template(template, known | dict(parts))


def filled_template(name: str, values: Mapping[str, str]) -> str:
    """A file of this room with what others share with it, and its words between at-signs replaced."""
    text = template_text(name)
    for key, value in {
        **{word: template_text(part) for word, part in SHARED_PARTS.items()},
        **values,
    }.items():
        text = text.replace(f"@{key}@", value)
    return text


def template_text(name: str) -> str:
    """A script of this room as it is shipped."""
    return (resources.files("gpuplanner.export") / name).read_text(encoding="utf-8")


def _slowest_s(cost: ChangeCost) -> float:
    """How long cutting an empty node takes where all is slow [s]."""
    profiles = () if cost.board is None else cost.board.profiles
    most = 2 * max((profile.max_instances for profile in profiles), default=0)
    reboot_s = 0.0 if cost.reboot_s is None else cost.reboot_s.high
    return math.ceil(max(cost.change_s.high + most * cost.instance_s.high, reboot_s, SECONDS_PER_MINUTE))


_FOREVER_S = 2**31
"""A wait without a limit [s]."""
