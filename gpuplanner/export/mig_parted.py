"""Layout plans as configuration of mig-parted: one named config per distinct state of a node.

mig-parted takes profile counts per device, neither places nor an order. Each state is proved to fit before
it is written.
"""

from __future__ import annotations

import json
from datetime import datetime

import polars as pl

from gpuplanner.export.states import NodeState, checked_plan, node_states
from gpuplanner.hardware.gpu import GpuModel, as_board
from gpuplanner.hardware.layout import parse_layout
from gpuplanner.schemas.vocabulary import WHOLE_GPU

ALL_DISABLED = "all-disabled"
"""Config with which the GPU operator labels its MIG nodes; no state of a plan has this name."""


def to_mig_parted(plan: pl.DataFrame, board: GpuModel | str, *, at: datetime | None = None) -> str:
    """Print the node states of a plan as a mig-parted file.

    Parameters
    ----------
    plan : polars.DataFrame
        Table ``schemas.LayoutPlan``.
    board : GpuModel or str
        The board of all nodes.
    at : datetime, optional
        Only the states in force at this time (with its zone); the nodes are then named in comments. All
        states of the plan if None.

    Returns
    -------
    str
        YAML, ``version: v1``. Configs are sorted by name; the same state has the same name in every plan. Beside
        them stands ``all-disabled``: the operator labels its nodes so, and what a node was labelled before must
        be there for the first change to be taken back.

    Raises
    ------
    SchemaError
        If the table is not a layout plan, or it says nothing about the time.
    GeometryError
        If a layout cannot be placed on the board.

    Examples
    --------
    >>> from datetime import UTC
    >>> from gpuplanner.schemas.domain import LayoutPlan
    >>> start, end = datetime(2026, 11, 2, tzinfo=UTC), datetime(2026, 11, 3, tzinfo=UTC)
    >>> plan = pl.DataFrame({
    ...     "node": ["n1", "n1"], "gpu": [0, 1], "slot_start": start, "slot_end": end,
    ...     "layout": ["3g.40gb:1,2g.20gb:2", "gpu"], "changed": True,
    ... })
    >>> print(to_mig_parted(plan, "H100-80GB-SXM5"), end="")
    # MIG configs for H100-80GB-SXM5, one per distinct state of a node.
    # Check with: gpuplanner verify FILE --gpu-model H100-80GB-SXM5
    version: v1
    mig-configs:
      "all-disabled":
        - devices: all
          mig-enabled: false
      "1xgpu_1x3g.40gb_2x2g.20gb_6212e63e6b":
        - devices: [0]
          mig-enabled: true
          mig-devices:
            "3g.40gb": 1
            "2g.20gb": 2
        - devices: [1]
          mig-enabled: false
    """
    board = as_board(board)
    configs = named_configs(checked_plan(plan, board), at)
    lines = [
        f"# MIG configs for {board.name}, one per distinct state of a node.",
        f"# Check with: gpuplanner verify FILE --gpu-model {board.name}",
        "version: v1",
        "mig-configs:",
        f"  {json.dumps(ALL_DISABLED)}:",
        "    - devices: all",
        "      mig-enabled: false",
    ]
    for name, (state, nodes) in configs.items():
        if at is not None:
            lines.append(f"  # {', '.join(nodes)}")
        lines.append(f"  {json.dumps(name)}:")
        for layout, gpus in state.by_layout.items():
            lines += _entry(layout, gpus)
    return "\n".join(lines) + "\n"


def named_configs(plan: pl.DataFrame, at: datetime | None = None) -> dict[str, tuple[NodeState, list[str]]]:
    """Distinct states by config name, sorted, each with the nodes that have it at some time."""
    found: dict[str, tuple[NodeState, list[str]]] = {}
    for node, states in node_states(plan, at).items():
        for state in dict.fromkeys(states.values()):
            same, nodes = found.setdefault(state.config_name, (state, []))
            assert same.gpus == state.gpus, "two states share a digest"
            if node not in nodes:
                nodes.append(node)
    return dict(sorted(found.items()))


def _entry(layout: str, gpus: list[int]) -> list[str]:
    devices = f"    - devices: [{', '.join(map(str, gpus))}]"
    if layout == WHOLE_GPU:
        return [devices, "      mig-enabled: false"]
    counts = [f"        {json.dumps(name)}: {count}" for name, count in parse_layout(layout).items()]
    return [devices, "      mig-enabled: true", "      mig-devices:", *counts]
