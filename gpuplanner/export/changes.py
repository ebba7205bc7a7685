"""Which nodes are cut anew at each time of a layout plan, and what that costs: for the scripts that do it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import resources

import polars as pl

from gpuplanner.export.states import NodeState, file_stamp, node_states, stamp, states_at
from gpuplanner.hardware import ChangeCost, GpuModel, Reconfiguration, minutes
from gpuplanner.units import SECONDS_PER_MINUTE


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """Nodes that are cut anew together, at one time or at several.

    Parameters
    ----------
    times : tuple of datetime
        When; the fleet looks the same before, and the same afterwards, each time.
    nodes : mapping of str to (NodeState or None, NodeState)
        State before (None if the plan says nothing) and after, by node. GPUs that are released then are whole in both.
    """

    times: tuple[datetime, ...]
    nodes: Mapping[str, tuple[NodeState | None, NodeState]]

    @property
    def name(self) -> str:
        """Name of its files, by the first time."""
        return f"change-{file_stamp(self.times[0])}"

    @property
    def stamps(self) -> str:
        """Its times, for people."""
        return ", ".join(map(stamp, self.times))


def layout_changes_of(plan: pl.DataFrame) -> list[LayoutChange]:
    """List the changes of a plan that :func:`~gpuplanner.export.states.checked_plan` returned, by their first time."""
    anew = set(plan.filter("changed").select("node", "slot_start").iter_rows())
    at: dict[datetime, dict[str, tuple[NodeState | None, NodeState]]] = {}
    for node, states in node_states(plan).items():
        before: NodeState | None = None
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
    return [LayoutChange(tuple(times), nodes) for times, nodes in alike.values()]


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
    known = {"TIME": one.stamps, "BOARD": board.name, "NODES": " ".join(one.nodes), "NOTES": notes}
    text = (resources.files("gpuplanner.export") / template).read_text(encoding="utf-8")
    for key, value in (known | {"TIMEOUT_S": f"{cost.drain_s.high:.0f}"} | dict(parts)).items():
        text = text.replace(f"@{key}@", value)
    return text
