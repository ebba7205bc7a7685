"""Pools of nodes of fixed layouts that come and go: what node autoscalers and Slurm's power saving can do today."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from gpuplanner.hardware import GpuModel
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.simulate import AutoscaledPools
from gpuplanner.study.equal_service.play import PolicySetting
from gpuplanner.study.equal_service.tuning import Arena, Trial, cheaper_of
from gpuplanner.units import SECONDS_PER_MINUTE

AUTOSCALED_POOLS = "autoscaled_pools"
IDLE_MINUTES = (1, 15, 60)
RESERVED_NODES = (0, 1)
"""Idle nodes of every pool that stay on."""


def pool_layouts(board: GpuModel, asked: pl.DataFrame) -> list[tuple[str, ...]]:
    """Sets of pools to try: one pool of slices that serves everybody, that and the busiest profile, one for each.

    Parameters
    ----------
    board : GpuModel
        The board.
    asked : polars.DataFrame
        ``profile``, ``run_s``, ``gpus`` of jobs.

    Examples
    --------
    >>> from gpuplanner.hardware import load_gpu_model
    >>> jobs = pl.DataFrame({"profile": ["3g.40gb", "1g.10gb", "gpu"], "run_s": [60.0, 90.0, 50.0], "gpus": 1})
    >>> for layouts in pool_layouts(load_gpu_model("H100-80GB-SXM5"), jobs): print(layouts)
    ('gpu', '3g.40gb:2')
    ('gpu', '3g.40gb:2', '1g.10gb:7')
    """
    work = (
        asked.group_by("profile").agg(work=(pl.col("run_s") * pl.col("gpus")).sum()).sort("work", "profile")
    )
    busiest = [board.profile(name) for name in reversed(work["profile"].to_list()) if name != WHOLE_GPU]
    if not busiest:
        return [(WHOLE_GPU,)]
    largest = max(busiest, key=lambda one: (one.compute_slices, one.memory_slices))
    chosen = [[largest], [largest, busiest[0]], [largest, *busiest]]
    names = [dict.fromkeys(f"{one.name}:{one.max_instances}" for one in some) for some in chosen]
    return list(dict.fromkeys((WHOLE_GPU, *some) for some in names))


def tune_pools(arena: Arena, lead_s: float) -> Trial | None:
    """The cheapest set of pools, idle time and reserve; None where nodes do not come and go."""
    fleet = arena.fleet
    asked = pl.concat([week.asked["rightsized"] for week in arena.weeks])
    return cheaper_of(
        arena.trial(pools(layouts, idle, reserved, lead_s))
        for layouts in pool_layouts(fleet.model, asked)
        for idle in IDLE_MINUTES
        for reserved in RESERVED_NODES
        if reserved * len(layouts) <= fleet.nodes
    )


def pools(layouts: Sequence[str], idle: int, reserved: int, lead_s: float) -> PolicySetting:
    """Pools of these layouts, whose nodes go when they have been idle for so many minutes."""
    control = AutoscaledPools(
        layouts, idle * SECONDS_PER_MINUTE, lead_s, reserve=dict.fromkeys(layouts, reserved)
    )
    knobs: dict[str, float | int | str] = {
        "pools": "; ".join(layouts), "idle_minutes": idle, "idle_nodes_kept": reserved,
    }  # fmt: skip
    return PolicySetting(AUTOSCALED_POOLS, "rightsized", control, knobs)
