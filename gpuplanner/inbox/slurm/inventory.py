"""Node lists: which nodes there are, with how many GPUs of which kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from gpuplanner.errors import TraceFormatError, examples, message
from gpuplanner.inbox.core.fields import CSV, Field, header_names
from gpuplanner.inbox.core.rows import Rows, read_rows
from gpuplanner.inbox.core.text_file import TextFile, head
from gpuplanner.inbox.slurm.node_dump import is_slurm_nodes, read_slurm_nodes
from gpuplanner.schemas import Inventory, conform
from gpuplanner.schemas.tables import MAX_GPUS_PER_JOB

COLUMN_MAP = {
    "node": Field("node"),
    "gpus": Field("gpus", "number", high=MAX_GPUS_PER_JOB),
    "gpu_model": Field("gpu_model", nullable=True),
    "rack": Field("rack", nullable=True, optional=True),
    "nvlink_domain": Field("nvlink_domain", nullable=True, optional=True),
    "ownership": Field("ownership", nullable=True, optional=True),
}
"""Columns of ``schemas.Inventory`` that a node list may give."""

OPENB_COLUMN_MAP = {
    "sn": Field("node"),
    "gpu": Field("gpus", "number", high=MAX_GPUS_PER_JOB),
    "model": Field("gpu_model", nullable=True),
}
"""The node lists of Alibaba OpenB."""

SPOT_COLUMN_MAP = {
    "node_name": Field("node"),
    "gpu_capacity_num": Field("gpus", "number", high=MAX_GPUS_PER_JOB),
    "gpu_model": Field("gpu_model", nullable=True),
}
"""The node list of Alibaba's spot GPU cluster, 2026."""

KINDS = (OPENB_COLUMN_MAP, SPOT_COLUMN_MAP, COLUMN_MAP)
"""Columns by which a node list is known, then those that it may have."""


def read_inventory(path: str | Path) -> tuple[pl.DataFrame, TextFile]:
    r"""Read a node list.

    It is CSV with `node`, `gpus`, `gpu_model`, or with the columns of OpenB or of the spot cluster; or the text of
    ``scontrol show node`` or ``sinfo -N -o "%N %G"``. An inventory is a denominator, so a
    fault in it is an error, never a reject.

    Parameters
    ----------
    path : str or Path
        File, plain or gzip.

    Returns
    -------
    inventory : polars.DataFrame
        Table ``schemas.Inventory``, sorted by node.
    file : TextFile
        The file, for the provenance.

    Raises
    ------
    TraceFormatError
        If the file is not such a list, or any row is faulty or names a node again.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "nodes.csv"
    ...     _ = path.write_text("node,gpus,gpu_model\nn1,8,H100\n")
    ...     read_inventory(path)[0]["node", "gpus"].row(0)
    ('n1', 8)
    """
    rows = inventory_rows([path])
    return conform(rows.good, Inventory, where=str(path)).sort("node"), rows.files[0]


def inventory_rows(paths: Sequence[str | Path]) -> Rows:
    """Rows of node lists, in whichever of the forms they are.

    Raises
    ------
    TraceFormatError
        As :func:`read_inventory`.
    """
    rows = _rows(paths).reject(
        {
            "the same node again": ~pl.col("node").is_first_distinct(),
            "not a whole number of GPUs": pl.col("gpus") != pl.col("gpus").floor(),
        }
    )
    faults = [f"line {line}: {reason}" for line, reason in rows.rejects["row", "reason"].iter_rows()]
    if faults or rows.good.is_empty():
        got = f"{len(faults)} faulty rows: {examples(faults)}" if faults else "no rows below the header"
        where = ", ".join(str(path) for path in paths)
        raise TraceFormatError(message(where, "one whole row per node", got, "Mend the list."))
    return rows


def columns_of_nodes(lines: Sequence[str]) -> dict[str, Field] | None:
    """Columns of a node list with this header line; None if it looks like none."""
    header = {name.casefold() for line in lines[:1] for name in header_names(line, CSV)}
    return next((columns for columns in KINDS if set(list(columns)[:2]) <= header), None)


def _rows(paths: Sequence[str | Path]) -> Rows:
    first = [head(path) for path in paths[:1]]
    if len(paths) == 1 and is_slurm_nodes(first[0]):
        return read_slurm_nodes(paths[0], COLUMN_MAP)
    columns = next(filter(None, map(columns_of_nodes, first)), COLUMN_MAP)
    return read_rows(paths, columns, source="node list")
