"""Node lists as a source of their own, without jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.findings import Check
from gpuplanner.inbox.core.shares import resolve_nodes
from gpuplanner.inbox.core.table_rows import assemble_reading
from gpuplanner.inbox.slurm.inventory import columns_of_nodes, inventory_rows
from gpuplanner.inbox.slurm.node_dump import is_slurm_nodes

CPU_ONLY = Check("node without GPUs", "info", "it adds nothing to capacity", pl.col("gpus") == 0)

# In words of its own: POWERED_DOWN is a node that comes back when it is needed.
CLOSED_STATE = r"(?i)\b(?:DOWN|DRAIN|DRAINED|DRAINING|DRNG|FAIL|FAILING|FUTURE|MAINT|NOT_RESPONDING)\b"
CLOSED = Check(
    "node that takes no new jobs",
    "info",
    "its GPUs count as installed",
    (pl.col("gpus") > 0) & pl.col("state").str.contains(CLOSED_STATE),
)


def looks_like_nodes(lines: Sequence[str]) -> bool:
    """True if the first lines of a file look like a node list."""
    return columns_of_nodes(lines) is not None or is_slurm_nodes(lines)


def read_nodes(paths: Sequence[str | Path], *, boards: Mapping[str, str] | None = None) -> Dataset:
    r"""Read node lists.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "node_info_df.csv"
    ...     _ = path.write_text("gpu_model,gpu_capacity_num,cpu_num,node_name\nA10,4,192,0\n")
    ...     read_nodes([path]).summary()["gpus"]
    4
    """
    rows = inventory_rows(paths, boards)
    nodes, findings = resolve_nodes(rows.good, boards)
    return assemble_reading(
        replace(rows, good=nodes),
        "inventory",
        source="nodes",
        order=["node"],
        what="node",
        checks=[CPU_ONLY, *([CLOSED] if "state" in nodes.columns else [])],
        findings=findings,
        totals={
            "gpus": pl.col("gpus").cast(pl.Int64).sum(),
            "models": pl.col("gpu_model").drop_nulls().n_unique(),
        },
        span=(),
    )
