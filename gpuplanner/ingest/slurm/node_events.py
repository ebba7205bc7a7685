"""Readers of times when nodes were out of service: Slurm events and reservations, and change logs of gpuplanner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import RecordCollector
from gpuplanner.ingest.gpu_model_resolution_and_node_lists import try_expand_node_list
from gpuplanner.ingest.slurm.accounting_fields import SLURM_NULL_TEXTS
from gpuplanner.ingest.slurm.node_records import parse_scontrol_records
from gpuplanner.ingest.source_definition import has_header_columns, register_sniffer
from gpuplanner.ingest.source_fields import (
    Dialect,
    convert_to_utc,
    map_unique_texts,
    source_columns,
    validate_time_zone,
)
from gpuplanner.ingest.table_assembly import assemble_table
from gpuplanner.ingest.text_files import read_text_file, reject_duplicate_files
from gpuplanner.ingest.typed_row_reader import read_rows

FIELD_BY_CHANGE_LOG_COLUMN = source_columns("changes")
"""Column of ``changes.csv``, which gpuplanner's exported scripts write → its field."""

CHANGE_BEGIN_EVENT = "begin"
"""Event in ``changes.csv`` when a node goes out of service for a change."""

CHANGE_END_EVENT = "end"
"""Event in ``changes.csv`` when a node comes into service again."""


@register_sniffer(lambda lines: lines[0].strip() == ",".join(FIELD_BY_CHANGE_LOG_COLUMN))
def read_changes(paths: Sequence[str | Path]) -> Dataset:
    r"""Read changes.csv, which the exported scripts write: when GPUs were out of service while they were repartitioned.

    A change that stopped and was resumed is one outage, from the first of its begin events.

    Parameters
    ----------
    paths : sequence of str or Path
        Files ``changes.csv``.

    Returns
    -------
    Dataset
        With the table ``out_of_service``. [GPUs]

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
    rows = read_rows(paths, FIELD_BY_CHANGE_LOG_COLUMN, source="changes")
    rows = rows.reject({"event: neither begin nor end": ~pl.col("event").is_in([CHANGE_BEGIN_EVENT, CHANGE_END_EVENT])})
    return assemble_table(
        rows, "out_of_service", source="changes",
        sort_columns=("start_time", "node"), reshape=_pair_change_events, row_word="event",
        span_columns=("start_time", "end_time"),
    )  # fmt: skip


def _pair_change_events(events: pl.DataFrame) -> pl.DataFrame:
    """Pair begin and end events of each node into outages; an end without a begin is ignored."""
    is_begin = pl.col("event") == CHANGE_BEGIN_EVENT
    starts_outage = is_begin & (pl.col("event").shift().over("node") != CHANGE_BEGIN_EVENT).fill_null(value=True)
    return (
        events.sort("node", "time", maintain_order=True)
        .with_columns(spell=starts_outage.cum_sum().over("node"))
        .filter(pl.col("spell") > 0)
        .group_by("node", "spell", maintain_order=True)
        .agg(
            start_time=pl.col("time").first(),
            end_time=pl.col("time").filter(~is_begin).first(),
            gpus=pl.col("gpus").first(),
        )
        .select("node", "start_time", "end_time", "gpus", bucket=pl.lit("reconfiguring"))
    )


FIELD_BY_NODE_EVENT_COLUMN = source_columns("slurm_events")
"""Column of ``sacctmgr show events`` → field that it is read into."""

UNAVAILABLE_NODE_STATE_PATTERN = r"(?i)DOWN|DRAIN|FAIL|MAINT|POWERED_OFF|REBOOT"
"""Slurm node states in which a node accepts no jobs: slurm.conf(5) and sinfo(1), NODE STATE CODES."""

CLUSTER_EVENT_REASON = "event of the whole cluster"
"""Reject reason of events that name no node, such as the registration of the cluster's TRES."""


@register_sniffer(has_header_columns(("NodeName", "TimeStart", "TimeEnd", "State"), "|"))
def read_slurm_events(paths: Sequence[str | Path], *, tz: str | None = None) -> Dataset:
    r"""Read Slurm events: when nodes were down or drained.

    All GPUs of such a node are out of service, except those that are still allocated to jobs. An event may name several
    nodes, as ``n[1-4]``. Events of the whole cluster, which name none, are left out.

    Parameters
    ----------
    paths : sequence of str or Path
        Output of ``sacctmgr --parsable2 show events``.
    tz : str
        Time zone in which sacctmgr ran.

    Returns
    -------
    Dataset
        With the table ``out_of_service``.

    Raises
    ------
    TraceFormatError
        If no time zone is given.

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
    zone = _require_zone(tz, "slurm-events", "sacctmgr")
    dialect = Dialect(separator="|", quotes=False, missing=frozenset({"Unknown", "None"}))
    rows = read_rows(paths, FIELD_BY_NODE_EVENT_COLUMN, source="slurm-events", dialect=dialect)
    rows = rows.reject({CLUSTER_EVENT_REASON: pl.col("node").is_null()})
    nodes = map_unique_texts(rows.good["node"], try_expand_node_list, pl.List(pl.String))
    rows = rows.with_columns(node=nodes).reject({
        "node: no name, and not such as n[1-4]": pl.col("node").is_null(),
        "state: missing": pl.col("state").is_null(),
        "state: one in which a node takes jobs": ~pl.col("state").str.contains(UNAVAILABLE_NODE_STATE_PATTERN),
        "start: no time of Slurm": _is_not_a_time("start_time"),
    })  # fmt: skip

    def make_outages(good: pl.DataFrame) -> pl.DataFrame:
        """Make the table of outages from the good rows."""
        by_node = _with_utc_times(good, zone).explode("node")
        latest_rows = by_node.unique(["node", "start_time"], keep="last", maintain_order=True)
        return latest_rows.select(
            "node", "start_time", "end_time", gpus=pl.lit(None, pl.Float64), bucket=pl.lit("down")
        )

    return assemble_table(
        rows, "out_of_service", source="slurm-events",
        sort_columns=("start_time", "node"), reshape=make_outages, row_word="event",
        span_columns=("start_time", "end_time"), time_zone=zone, harmless_reasons=[CLUSTER_EVENT_REASON],
    )  # fmt: skip


FIELD_BY_RESERVATION_KEY = source_columns("slurm_reservations")
"""Key of ``scontrol show reservations`` → field that it is read into."""


@register_sniffer(lambda lines: bool(lines) and lines[0].lstrip().startswith("ReservationName="))
def read_slurm_reservations(paths: Sequence[str | Path], *, tz: str | None = None) -> Dataset:
    r"""Read Slurm reservations: which nodes were reserved for which accounts, or for maintenance.

    GPUs of a reservation that no job is allocated count as reserved, in maintenance as down. scontrol shows active and
    future reservations; those of the past are known from earlier dumps. GPUs that a reservation counts in its TRES are
    divided evenly among its nodes.

    Parameters
    ----------
    paths : sequence of str or Path
        Output of ``scontrol show reservations``.
    tz : str
        Time zone in which scontrol ran.

    Returns
    -------
    Dataset
        With the table ``out_of_service``. [GPUs]

    Raises
    ------
    TraceFormatError
        If no time zone is given.

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
    zone = _require_zone(tz, "slurm-reservations", "scontrol")
    files = tuple(map(read_text_file, paths))
    reject_duplicate_files(files, "slurm-reservations")
    records = RecordCollector(FIELD_BY_RESERVATION_KEY)
    for file_number, file in enumerate(files):
        for line_number, line, values in parse_scontrol_records(list(file.lines.iter_rows()), "ReservationName="):
            stated_values = {name: value for name, value in values.items() if value not in SLURM_NULL_TEXTS}
            records.add_record(file_number, line_number, line, stated_values)
    rows = records.rows(files)
    nodes = map_unique_texts(rows.good["nodes"], try_expand_node_list, pl.List(pl.String))
    rows = rows.with_columns(node=nodes).reject({
        "nodes: none, or not such as n[1-4]": pl.col("node").is_null(),
        "times: none of Slurm": _is_not_a_time("start_time") | _is_not_a_time("end_time"),
        "end: before the start": pl.col("end_time") < pl.col("start_time"),
    })  # fmt: skip

    def make_outages(good: pl.DataFrame) -> pl.DataFrame:
        """Make the table of outages from the good rows."""
        gpus_per_node = pl.col("tres").str.extract(r"gres/gpu=(\d+)").cast(pl.Float64) / pl.col("node").list.len()
        is_maintenance = pl.col("flags").fill_null("").str.contains(r"\bMAINT\b")
        has_no_team = pl.col("accounts").str.contains("^-") | is_maintenance
        reservations = _with_utc_times(good, zone).with_columns(
            gpus=pl.when(~is_maintenance).then(gpus_per_node),
            bucket=pl.when(is_maintenance).then(pl.lit("down")).otherwise(pl.lit("reserved")),
            tenant=pl.when(~has_no_team).then("accounts"),
        )
        by_node = reservations.explode("node")
        return by_node.select("node", "start_time", "end_time", "gpus", "bucket", "tenant").unique()

    return assemble_table(
        rows, "out_of_service", source="slurm-reservations",
        sort_columns=("start_time", "node", "tenant"), reshape=make_outages,
        row_word="reservation", span_columns=("start_time", "end_time"), time_zone=zone,
    )  # fmt: skip


def _require_zone(tz: str | None, source: str, program: str) -> str:
    """Return the time zone in which a program of Slurm ran, or raise a TraceFormatError if none is given."""
    if tz is None:
        remedy = f"Give the time zone of {program}: --tz Europe/Oslo or --tz UTC."
        raise TraceFormatError(f"{source}: times", "a stated time zone", "times without an offset", remedy)
    return validate_time_zone(tz)


def _is_not_a_time(column: str) -> pl.Expr:
    """Whether each text of a column cannot be read as a time."""
    return pl.col(column).str.to_datetime(strict=False).is_null()


def _with_utc_times(rows: pl.DataFrame, zone: str) -> pl.DataFrame:
    """Convert start and end to UTC, and leave out rows that start in an hour that the zone's clocks skip."""
    names = ["start_time", "end_time"]
    times = pl.col(names).str.to_datetime(time_unit="us", strict=False)
    return convert_to_utc(rows.with_columns(times), names, zone).filter(pl.col("start_time").is_not_null())
