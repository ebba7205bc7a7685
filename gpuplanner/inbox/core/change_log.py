"""What the scripts of a pack note down: when they began to cut a node, and when it was back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.lines.fields import Field
from gpuplanner.inbox.core.lines.reading import read_rows
from gpuplanner.inbox.core.source import looks
from gpuplanner.inbox.core.table_rows import assemble_reading

CHANGE_LOG_COLUMNS = {
    "time": Field("time", "instant"),
    "change": Field("change"),
    "node": Field("node"),
    "gpus": Field("gpus", "number"),
    "event": Field("event"),
}
BEGIN, END = "begin", "end"


@looks(lambda lines: lines[0].strip() == ",".join(CHANGE_LOG_COLUMNS))
def read_changes(paths: Sequence[str | Path]) -> Dataset:
    r"""Read changes.csv as scripts write it: GPUs that were out of service while they were cut.

    A change that stopped and was gone on with is one; the first of its beginnings counts.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "changes.csv"
    ...     text = "2026-11-02T08:00:00Z,c,n1,8,begin\n2026-11-02T08:05:00Z,c,n1,8,end\n"
    ...     _ = path.write_text(f"time,change,node,gpus,event\n{text}")
    ...     read_changes([path]).table.select("node", "gpus", "bucket").rows()
    [('n1', 8.0, 'reconfiguring')]
    """
    rows = read_rows(paths, CHANGE_LOG_COLUMNS, source="changes")
    rows = rows.reject({"event: neither begin nor end": ~pl.col("event").is_in([BEGIN, END])})
    return assemble_reading(
        rows, "out_of_service", source="changes", order=("start_time", "node"), shape=_spells, what="event",
        span=("start_time", "end_time"),
    )  # fmt: skip


def _spells(events: pl.DataFrame) -> pl.DataFrame:
    """One row for each time that a node was out of service; an end without a beginning says nothing."""
    begins = pl.col("event") == BEGIN
    fresh = begins & (pl.col("event").shift().over("node") != BEGIN).fill_null(value=True)
    return (
        events.sort("node", "time", maintain_order=True)
        .with_columns(spell=fresh.cum_sum().over("node"))
        .filter(pl.col("spell") > 0)
        .group_by("node", "spell", maintain_order=True)
        .agg(
            start_time=pl.col("time").first(),
            end_time=pl.col("time").filter(~begins).first(),
            gpus=pl.col("gpus").first(),
        )
        .select("node", "start_time", "end_time", "gpus", bucket=pl.lit("reconfiguring"))
    )
