"""Slurm's events of nodes, ``sacctmgr show event --parsable2``: when nodes were down, drained or in maintenance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.lines.fields import Dialect, Field
from gpuplanner.inbox.core.lines.reading import read_rows
from gpuplanner.inbox.core.source import header_has, looks
from gpuplanner.inbox.core.table_rows import assemble_reading
from gpuplanner.inbox.core.times import known_zone, to_utc

COLUMNS = {
    "NodeName": Field("node", nullable=True),
    "TimeStart": Field("start_time"),
    "TimeEnd": Field("end_time", nullable=True),
    "State": Field("state"),
}
OUT = r"(?i)DOWN|DRAIN|FAIL|MAINT|POWERED_OFF|REBOOT"
"""States in which a node takes nothing new: slurm.conf(5) and sinfo(1), NODE STATE CODES."""


@looks(header_has(("NodeName", "TimeStart", "TimeEnd", "State"), "|"))
def read_slurm_events(paths: Sequence[str | Path], *, tz: str | None = None) -> Dataset:
    r"""Read when nodes took no jobs; all of a node is out, but for what jobs still hold there.

    Times are those of the zone in which sacctmgr ran. An event of the cluster alone, which names no node, says nothing.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "events.txt"
    ...     row = "n1|2026-11-02T08:00:00|Unknown|DOWN*|power"
    ...     _ = path.write_text(f"NodeName|TimeStart|TimeEnd|State|Reason\n{row}\n")
    ...     read_slurm_events([path], tz="UTC").table.select("node", "gpus", "bucket").rows()
    [('n1', None, 'down')]
    """
    if tz is None:
        text = message(
            "slurm-events: times", "a stated time zone", "times without an offset",
            "Say in which zone sacctmgr ran: --tz Europe/Oslo or --tz UTC.",
        )  # fmt: skip
        raise TraceFormatError(text)
    zone = known_zone(tz)
    dialect = Dialect(separator="|", quotes=False, missing=frozenset({"Unknown", "None"}))
    rows = read_rows(paths, COLUMNS, source="slurm-events", dialect=dialect)
    rows = rows.reject({
        "node: an event of the whole cluster": pl.col("node").is_null(),
        "state: one in which a node takes jobs": ~pl.col("state").str.contains(OUT),
        "start: no time of Slurm": pl.col("start_time").str.to_datetime(strict=False).is_null(),
    })  # fmt: skip

    def spells(good: pl.DataFrame) -> pl.DataFrame:
        times = pl.col("start_time", "end_time").str.to_datetime(time_unit="us", strict=False)
        found = to_utc(good.with_columns(times), ["start_time", "end_time"], zone)
        shown = found.filter(pl.col("start_time").is_not_null()).unique(["node", "start_time"], keep="last")
        return shown.select(
            "node", "start_time", "end_time", gpus=pl.lit(None, pl.Float64), bucket=pl.lit("down")
        )

    return assemble_reading(
        rows, "out_of_service", source="slurm-events", order=("start_time", "node"), shape=spells, what="event",
        span=("start_time", "end_time"), time_zone=zone,
    )  # fmt: skip
