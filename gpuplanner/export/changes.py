"""Which nodes are cut anew at each time of a layout plan, and what that costs: for the scripts that do it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import polars as pl

from gpuplanner.export.states import NodeState, node_states
from gpuplanner.hardware import ChangeCost, Reconfiguration, minutes
from gpuplanner.units import SECONDS_PER_MINUTE


def node_changes(plan: pl.DataFrame) -> dict[datetime, dict[str, tuple[NodeState | None, NodeState]]]:
    """Nodes that are cut anew at each time, with the state before (None if the plan says nothing) and after.

    Parameters
    ----------
    plan : polars.DataFrame
        A plan that :func:`~gpuplanner.export.states.checked_plan` returned.
    """
    anew = set(plan.filter("changed").select("node", "slot_start").iter_rows())
    found: dict[datetime, dict[str, tuple[NodeState | None, NodeState]]] = {}
    for node, states in node_states(plan).items():
        before: NodeState | None = None
        for time, state in states.items():
            if (node, time) in anew and before != state.cut:
                found.setdefault(time, {})[node] = (before, state.cut)
            before = state.cut
    return dict(sorted(found.items()))


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
