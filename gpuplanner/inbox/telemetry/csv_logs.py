"""Per-node logs in CSV, and the DCGM exporter's readings exported as a long CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.inbox.core.fields import Field
from gpuplanner.inbox.core.findings import Finding
from gpuplanner.inbox.core.rows import Rows, read_rows
from gpuplanner.inbox.telemetry.instants import with_instants
from gpuplanner.inbox.telemetry.labels import devices, parse_labels
from gpuplanner.inbox.telemetry.metrics import DCGM, NODE_CSV, NODE_CSV_OPTIONAL
from gpuplanner.inbox.telemetry.numbers import read_wide
from gpuplanner.inbox.telemetry.pages import Hints
from gpuplanner.inbox.telemetry.result import Telemetry
from gpuplanner.inbox.telemetry.sample_rows import from_readings, from_table

ROUND_S = 3.0
"""Readings of one round of the DCGM CSV are up to this far apart."""

NODE_COLUMNS = {
    "timestamp": Field("timestamp"),
    "gpu": Field("gpu", "number", high=1023),
    "gpu_model": Field("board", nullable=True),
    **{column: Field(column, nullable=True, optional=column in NODE_CSV_OPTIONAL) for column in NODE_CSV},
}
READING_COLUMNS = {
    "timestamp": Field("timestamp"),
    "metric_name": Field("metric"),
    "gpu_id": Field("gpu_id"),
    "Hostname": Field("hostname", nullable=True),
    "value": Field("value", nullable=True),
    "labels_raw": Field("labels", nullable=True),
}


def read_node_csv(paths: Sequence[str | Path], hints: Hints | None = None) -> Telemetry:
    """Read logs with one row per GPU and time, one file per node, as of the public H100 runs.

    Columns: see :data:`gpuplanner.inbox.telemetry.metrics.NODE_CSV`; ``timestamp`` in epoch seconds or with an
    offset. All but the energy counter are needed: a column that was renamed is an error.

    Parameters
    ----------
    paths : sequence of str or Path
        CSV files, plain or gzip.
    hints : Hints, optional
        Node, and zone of times without an offset.

    Returns
    -------
    Telemetry
        One sample per row.

    Raises
    ------
    TraceFormatError
        If a file cannot be read, or lacks columns.
    """
    hints = hints or Hints()
    source = "node-csv"
    rows = read_rows(paths, NODE_COLUMNS, source=source)
    rows = with_instants(rows, "timestamp", hints.tz, source)
    rows = read_wide(rows, NODE_CSV)
    rows = rows.reject({"gpu: not a whole number": pl.col("gpu") % 1 != 0})
    good = rows.good.with_columns(node=node_by_file(rows, hints), gpu=pl.col("gpu").cast(pl.Int32))
    return from_table(
        replace(rows, good=good), source=source, time_zone=hints.tz, more=node_finding(rows, hints)
    )


def read_dcgm_csv(paths: Sequence[str | Path], hints: Hints | None = None) -> Telemetry:
    r"""Read exporter readings in long form: timestamp, metric, gpu, host, value, label text.

    The metrics of a round are read up to 3 s apart; readings of a GPU within that are one sample.

    Parameters
    ----------
    paths : sequence of str or Path
        CSV files, plain or gzip.
    hints : Hints, optional
        Zone of times without an offset; node of readings that do not name it.

    Returns
    -------
    Telemetry
        One sample per GPU or MIG instance and round.

    Raises
    ------
    TraceFormatError
        If a file cannot be read, or lacks columns.

    Examples
    --------
    >>> import tempfile
    >>> head = "timestamp,metric_name,gpu_id,Hostname,value,labels_raw\n"
    >>> row = '2026-01-01T00:00:00Z,DCGM_FI_DEV_FB_USED,0,n1,2048,"Hostname=""n1"",gpu=""0"", "\n'
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.csv"
    ...     _ = path.write_text(head + row)
    ...     read_dcgm_csv([path]).samples["node", "gpu", "memory_used_gib"].row(0)
    ('n1', 0, 2.0)
    """
    hints = hints or Hints()
    source = "dcgm-csv"
    rows = with_instants(read_rows(paths, READING_COLUMNS, source=source), "timestamp", hints.tz, source)
    texts = rows.good["labels"].unique(maintain_order=True)
    table = devices([None if text is None else parse_labels(text) for text in texts], hints.node)
    named = rows.good.join(
        table.with_columns(labels=texts), on="labels", how="left", maintain_order="left", nulls_equal=True
    )
    other = (pl.col("hostname") != pl.col("node")) | (pl.col("gpu_id") != pl.col("gpu").cast(pl.String))
    fault = pl.coalesce("fault", pl.when(other).then(pl.lit("columns and labels name different devices")))
    rows = replace(rows, good=named.with_columns(fault=fault))
    return from_readings(rows, DCGM, source=source, within_s=ROUND_S, time_zone=hints.tz)


def node_by_file(rows: Rows, hints: Hints) -> pl.Expr:
    """Node of each row of a source that does not name nodes."""
    nodes = {number: hints.node_of(file.path) for number, file in enumerate(rows.files)}
    return pl.col("file").replace_strict(nodes, return_dtype=pl.String)


def node_finding(rows: Rows, hints: Hints) -> list[Finding]:
    """Say where the node names come from, if the source has none."""
    if hints.node is not None:
        return []
    effect = "samples meet jobs and inventory only if files are named after their nodes"
    example = f"{rows.file_names()[0]}: {hints.node_of(rows.files[0].path)}"
    return [Finding("node named after the file", "info", rows.count, effect, example)]
