"""Node events of Slurm, and change logs of our scripts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import Records
from gpuplanner.ingest.gpu_model_resolution import known_nodes
from gpuplanner.ingest.job_table import assemble_reading
from gpuplanner.ingest.row_reader import read_rows
from gpuplanner.ingest.slurm.accounting_fields import NO_VALUE
from gpuplanner.ingest.slurm.node_records import scontrol_records
from gpuplanner.ingest.source_definition import header_has, looks
from gpuplanner.ingest.source_fields import Dialect, Field, known_zone, map_texts, to_utc
from gpuplanner.ingest.text_files import read_text_file, refuse_twins

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


EVENT_COLUMNS = {
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
    zone = _stated_zone(tz, "slurm-events", "sacctmgr")
    dialect = Dialect(separator="|", quotes=False, missing=frozenset({"Unknown", "None"}))
    rows = read_rows(paths, EVENT_COLUMNS, source="slurm-events", dialect=dialect)
    rows = rows.reject({
        "node: an event of the whole cluster": pl.col("node").is_null(),
        "state: one in which a node takes jobs": ~pl.col("state").str.contains(OUT),
        "start: no time of Slurm": _no_time("start_time"),
    })  # fmt: skip

    def spells(good: pl.DataFrame) -> pl.DataFrame:
        shown = _in_utc(good, zone).unique(["node", "start_time"], keep="last")
        return shown.select("node", "start_time", "end_time", gpus=pl.lit(None, pl.Float64), bucket=pl.lit("down"))

    return assemble_reading(
        rows, "out_of_service", source="slurm-events", order=("start_time", "node"), shape=spells, what="event",
        span=("start_time", "end_time"), time_zone=zone,
    )  # fmt: skip


RESERVED = {
    "NODES": Field("nodes", nullable=True),
    "STARTTIME": Field("start_time"),
    "ENDTIME": Field("end_time"),
    "FLAGS": Field("flags", nullable=True),
    "ACCOUNTS": Field("accounts", nullable=True),
    "TRES": Field("tres", nullable=True),
}


@looks(lambda lines: bool(lines) and lines[0].lstrip().startswith("ReservationName="))
def read_slurm_reservations(paths: Sequence[str | Path], *, tz: str | None = None) -> Dataset:
    r"""Read which nodes were kept for whom: what jobs do not hold of them is reserved, in maintenance down.

    Times are those of the zone in which scontrol ran. It shows reservations that are in force or to come: those of the
    past are known from earlier dumps. GPUs that are counted among what is reserved are parted evenly over the nodes.

    References
    ----------
    SchedMD, scontrol(1), RESERVATIONS - SPECIFICATIONS FOR CREATE, UPDATE, AND DELETE COMMANDS.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "reservations.txt"
    ...     times = "StartTime=2026-11-02T08:00:00 EndTime=2026-11-03T08:00:00 Duration=1-00:00:00"
    ...     rest = "Nodes=n[1-2] NodeCnt=2 Flags=SPEC_NODES TRES=cpu=128 Users=(null) Accounts=vision State=ACTIVE"
    ...     _ = path.write_text(f"ReservationName=demo {times}\n   {rest}\n")
    ...     read_slurm_reservations([path], tz="UTC").table.select("node", "bucket", "tenant").rows()
    [('n1', 'reserved', 'vision'), ('n2', 'reserved', 'vision')]
    """
    zone = _stated_zone(tz, "slurm-reservations", "scontrol")
    files = tuple(map(read_text_file, paths))
    refuse_twins(files, "slurm-reservations")
    records = Records(RESERVED)
    for place, file in enumerate(files):
        for number, line, told in scontrol_records(list(file.lines.iter_rows()), "ReservationName="):
            shown = {name: value for name, value in told.items() if value not in NO_VALUE}
            records.add(place, number, line, shown)
    rows = records.rows(files)
    nodes = map_texts(rows.good["nodes"], known_nodes, pl.List(pl.String))
    rows = rows.with_columns(node=nodes).reject({
        "nodes: none, or not such as n[1-4]": pl.col("node").is_null(),
        "times: none of Slurm": _no_time("start_time") | _no_time("end_time"),
        "end: before the start": pl.col("end_time") < pl.col("start_time"),
    })  # fmt: skip

    def spells(good: pl.DataFrame) -> pl.DataFrame:
        each = pl.col("tres").str.extract(r"gres/gpu=(\d+)").cast(pl.Float64) / pl.col("node").list.len()
        closed = pl.col("flags").fill_null("").str.contains(r"\bMAINT\b")
        only = pl.col("accounts").str.contains("^-") | closed
        found = _in_utc(good, zone).with_columns(
            gpus=pl.when(~closed).then(each),
            bucket=pl.when(closed).then(pl.lit("down")).otherwise(pl.lit("reserved")),
            tenant=pl.when(~only).then("accounts"),
        )
        by_node = found.explode("node")
        return by_node.select("node", "start_time", "end_time", "gpus", "bucket", "tenant").unique()

    return assemble_reading(
        rows, "out_of_service", source="slurm-reservations", order=("start_time", "node", "tenant"), shape=spells,
        what="reservation", span=("start_time", "end_time"), time_zone=zone,
    )  # fmt: skip


def _stated_zone(tz: str | None, source: str, program: str) -> str:
    if tz is None:
        todo = f"Give the time zone of {program}: --tz Europe/Oslo or --tz UTC."
        raise TraceFormatError(f"{source}: times", "a stated time zone", "times without an offset", todo)
    return known_zone(tz)


def _no_time(name: str) -> pl.Expr:
    return pl.col(name).str.to_datetime(strict=False).is_null()


def _in_utc(rows: pl.DataFrame, zone: str) -> pl.DataFrame:
    """Rows with both times in UTC, less those that begin in an hour that the zone does not have."""
    names = ["start_time", "end_time"]
    times = pl.col(names).str.to_datetime(time_unit="us", strict=False)
    return to_utc(rows.with_columns(times), names, zone).filter(pl.col("start_time").is_not_null())
