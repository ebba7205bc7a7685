"""Node lists: which nodes there are, with how many GPUs of which kind."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from gpuplanner.errors import TraceFormatError, examples, message
from gpuplanner.schemas import Inventory, conform
from gpuplanner.schemas.tables import MAX_GPUS_PER_JOB
from gpuplanner.traces.fields import Field
from gpuplanner.traces.reader import read_rows
from gpuplanner.traces.textfile import TextFile, head

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


def read_inventory(path: str | Path) -> tuple[pl.DataFrame, TextFile]:
    r"""Read a node list: CSV with `node`, `gpus`, `gpu_model`, or with OpenB's `sn`, `gpu`, `model`.

    An inventory is a denominator, so a fault in it is an error, never a reject.

    Parameters
    ----------
    path : str or Path
        CSV file, plain or gzip.

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
    header = {name.strip().casefold() for line in head(path)[:1] for name in line.split(",")}
    columns = OPENB_COLUMN_MAP if {"sn", "gpu"} <= header else COLUMN_MAP
    rows = read_rows([path], columns, source="node list").reject(
        {
            "the same node again": ~pl.col("node").is_first_distinct(),
            "not a whole number of GPUs": pl.col("gpus") != pl.col("gpus").floor(),
        }
    )
    faults = [f"line {line}: {reason}" for line, reason in rows.rejects["row", "reason"].iter_rows()]
    if faults or rows.good.is_empty():
        got = f"{len(faults)} faulty rows: {examples(faults)}" if faults else "no rows below the header"
        raise TraceFormatError(message(str(path), "one whole row per node", got, "Mend the list."))
    return conform(rows.good, Inventory, where=str(path)).sort("node"), rows.files[0]
