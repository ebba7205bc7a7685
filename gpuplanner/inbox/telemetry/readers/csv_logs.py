"""Per-node logs in CSV, and the DCGM exporter's readings exported as a long CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.exposition import parse_labels
from gpuplanner.inbox.core.findings import Finding
from gpuplanner.inbox.core.lines.column_tables import source_columns
from gpuplanner.inbox.core.lines.fields import Field
from gpuplanner.inbox.core.lines.reading import read_row_blocks
from gpuplanner.inbox.core.lines.rows import Rows, names_of
from gpuplanner.inbox.core.lines.text_blocks import FileBlocks
from gpuplanner.inbox.core.lines.text_file import TextFile
from gpuplanner.inbox.core.source_checks import source_finding
from gpuplanner.inbox.telemetry.gathering import Gathering
from gpuplanner.inbox.telemetry.readers.instants import with_instants
from gpuplanner.inbox.telemetry.readers.labels import DEVICE, device
from gpuplanner.inbox.telemetry.readers.metrics import DCGM, NODE_CSV, NODE_CSV_OPTIONAL
from gpuplanner.inbox.telemetry.readers.numbers import read_wide
from gpuplanner.inbox.telemetry.readers.pages import Hints, header_begins, reads
from gpuplanner.inbox.telemetry.sample_rows import Story, finish
from gpuplanner.inbox.telemetry.sample_spans import Way

MANY_LABELS = 200_000
"""Texts of labels that are remembered from block to block."""

ROUND_S = 3.0
"""Readings of one round of the DCGM CSV are up to this far apart."""

NODE_COLUMNS = {
    "timestamp": Field("timestamp"),
    "gpu": Field("gpu", "number", high=1023),
    "gpu_model": Field("board", nullable=True),
    **{
        column: Field(column, nullable=True, optional=column in NODE_CSV_OPTIONAL, at_once=True)
        for column in NODE_CSV
    },
}
READING_COLUMNS = source_columns("dcgm_csv")


@reads(header_begins("timestamp", "gpu", *list(NODE_CSV)[:2]))
def read_node_csv(paths: Sequence[str | Path], hints: Hints, way: Way | None = None) -> Dataset:
    """Read logs with one row per GPU and time, one file per node, as of the public H100 runs.

    Columns: see :data:`gpuplanner.inbox.telemetry.readers.metrics.NODE_CSV`; ``timestamp`` in epoch seconds or with an
    offset. All but the energy counter are needed: a column that was renamed is an error.
    """
    way, source = way or Way(), "node-csv"
    blocks = FileBlocks(paths, way.block_bytes)
    gathered = Gathering(stream=way.room(), keeps_text=way.into is None)
    for rows in read_row_blocks(blocks, NODE_COLUMNS, source=source):
        gathered.add(_of_node(rows, hints) if rows.good.width else rows)
    more = node_finding(blocks.files, gathered.count, hints)
    return finish(gathered, blocks.files, Story(source, hints.tz, more=more), way=way, again=blocks)


def _of_node(rows: Rows, hints: Hints) -> Rows:
    """Rows of a block of a node's log."""
    rows = read_wide(with_instants(rows, "timestamp", hints.tz, "node-csv"), NODE_CSV)
    rows = rows.reject({"gpu: not a whole number": pl.col("gpu") % 1 != 0})
    return rows.with_columns(node=node_by_file(rows, hints), gpu=pl.col("gpu").cast(pl.Int32))


@reads(header_begins(*list(READING_COLUMNS)[:3]))
def read_dcgm_csv(paths: Sequence[str | Path], hints: Hints, way: Way | None = None) -> Dataset:
    r"""Read exporter readings in long form: timestamp, metric, gpu, host, value, label text.

    The metrics of a round are read up to 3 s apart; readings of a GPU within that are one sample.

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
    way, source = way or Way(), "dcgm-csv"
    blocks = FileBlocks(paths, way.block_bytes)
    gathered = Gathering(DCGM, stream=way.room(), keeps_text=way.into is None)
    devices = _Devices(hints.node)
    for rows in read_row_blocks(blocks, READING_COLUMNS, source=source):
        gathered.add(_of_exporter(rows, hints, devices) if rows.good.width else rows)
    story = Story(source, hints.tz)
    return finish(gathered, blocks.files, story, within_s=ROUND_S, way=way, again=blocks)


@dataclass
class _Devices:
    """Devices by the labels that name them, remembered from block to block."""

    node: str | None
    table: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema={"labels": pl.String, **DEVICE}))

    def of(self, labels: pl.Series) -> pl.DataFrame:
        """The devices that labels name, among others."""
        texts = labels.unique(maintain_order=True)
        fresh = texts.filter(~texts.is_in(self.table["labels"].implode(), nulls_equal=True))
        if len(fresh) and self.table.height > MANY_LABELS:
            self.table, fresh = self.table.clear(), texts
        named = [(text, *device(None if text is None else parse_labels(text), self.node)) for text in fresh]
        self.table.extend(pl.DataFrame(named, schema=self.table.schema, orient="row"))
        return self.table


def _of_exporter(rows: Rows, hints: Hints, devices: _Devices) -> Rows:
    """Readings of a block, with the devices that their labels name."""
    rows = with_instants(rows, "timestamp", hints.tz, "dcgm-csv")
    table = devices.of(rows.good["labels"])
    named = rows.good.join(table, on="labels", how="left", maintain_order="left", nulls_equal=True)
    other = (pl.col("hostname") != pl.col("node")) | (pl.col("gpu_id") != pl.col("gpu").cast(pl.String))
    fault = pl.coalesce("fault", pl.when(other).then(pl.lit("columns and labels name different devices")))
    return replace(rows, good=named.with_columns(fault=fault))


def node_by_file(rows: Rows, hints: Hints) -> pl.Expr:
    """Node of each row of a source that does not name nodes."""
    numbers = rows.good["file"].unique()
    nodes = {number: hints.node_of(rows.files[number].path) for number in numbers}
    if len(nodes) < 2:
        return pl.lit(next(iter(nodes.values()), None), pl.String)
    return pl.col("file").replace_strict(nodes, return_dtype=pl.String)


def node_finding(files: Sequence[TextFile], rows: int, hints: Hints) -> list[Finding]:
    """Say where the node names of so many rows come from, if the source has none."""
    if hints.node is not None:
        return []
    example = f"{names_of(files)[0]}: {hints.node_of(files[0].path)}"
    return [source_finding("rows: node of the file", rows, example)]


def found_on_trust(
    named: bool, counted: int, files: Sequence[TextFile], rows: int, hints: Hints
) -> list[Finding]:
    """What is not in the files: nodes, unless every row was `named`, and the times of `counted` rows."""
    more = [] if named else node_finding(files, rows, hints)
    if counted:
        more.append(source_finding("rows: counted times", counted))
    return more
