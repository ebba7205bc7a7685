"""The reader of the generic job table, to which the history of any scheduler can be exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import Rows
from gpuplanner.ingest.gpu_model_resolution_and_node_lists import try_expand_node_list
from gpuplanner.ingest.quality_report import AMBIGUOUS_TIME_CHECK, source_check
from gpuplanner.ingest.slurm.accounting_fields import parse_slurm_state, parse_times
from gpuplanner.ingest.slurm.node_records import read_inventory
from gpuplanner.ingest.source_definition import SourceForm, define_source, has_required_columns, register_sniffer
from gpuplanner.ingest.source_fields import Dialect, map_unique_texts, source_columns, validate_time_zone
from gpuplanner.ingest.table_assembly import assemble_jobs
from gpuplanner.ingest.typed_row_reader import read_rows

JOB_TABLE_COLUMNS = source_columns("job_table")
"""Columns of the table. ``gpus`` counts GPUs, or MIG instances of ``profile`` where there is one; ``nodes`` are names
joined by ``+``, or a list as Slurm writes it; without ``state``, a started job without ``end`` is running."""

REQUIRED_JOB_TABLE_COLUMNS = [name for name, field in JOB_TABLE_COLUMNS.items() if not field.optional]
"""Columns of the generic job table that a file must have."""

JOB_TABLE_COLUMNS_TEXT = (
    f"{','.join(REQUIRED_JOB_TABLE_COLUMNS)}"
    f"[,{','.join(name for name in JOB_TABLE_COLUMNS if name not in REQUIRED_JOB_TABLE_COLUMNS)}]"
)
"""Columns of the generic job table as messages and pages show them; those in brackets are optional."""

JOB_TABLE_FIELD_BY_TIME = {name: name for name in ("submit", "eligible", "start", "end")}
"""Time column of the generic job table → its name in error messages."""

TIME_FORMAT_ADVICE = "Write times as 2026-03-02T08:00:00Z, or as unix seconds."
"""Advice of the error for times of the generic job table that cannot be read."""


@register_sniffer(has_required_columns(JOB_TABLE_COLUMNS))
def read_job_table(
    paths: Sequence[str | Path],
    *,
    tz: str | None = None,
    nodes: str | Path | None = None,
    boards: Mapping[str, str] | None = None,
) -> Dataset:
    r"""Read the generic job table: one row for each run of a job, so that a job that was requeued has several.

    Times are ISO 8601 with an offset, unix seconds, or naive in the zone `tz`. States are those of Slurm or of
    gpuplanner.

    Parameters
    ----------
    paths : sequence of str or Path
        CSV or Parquet files with the columns of :data:`JOB_TABLE_COLUMNS`.
    tz : str, optional
        Time zone of naive times.
    nodes : str or Path, optional
        Node list of the cluster; it becomes the inventory.
    boards : mapping of str to str, optional
        GPU type in the table or node list → GPU model.

    Returns
    -------
    Dataset

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "jobs.csv"
    ...     row = "7,ada,vision,2026-03-02T08:00:00Z,2026-03-02T09:00:00Z,2026-03-02T11:00:00Z,4,A100-80GB"
    ...     _ = path.write_text(f"job_id,user,team,submit,start,end,gpus,gpu_model\n{row}\n")
    ...     read_job_table([path]).summary()["gpu_hours"]
    8.0
    """
    zone = None if tz is None else validate_time_zone(tz)
    rows = read_rows(paths, JOB_TABLE_COLUMNS, source="job-table", dialect=Dialect(tables=True))
    rows = rows.with_columns(_normalize_times(name) for name in JOB_TABLE_FIELD_BY_TIME)
    rows = parse_times(rows, zone, source="job-table", labels=JOB_TABLE_FIELD_BY_TIME, remedy=TIME_FORMAT_ADVICE)
    inventory, node_file, node_findings = (None, None, []) if nodes is None else read_inventory(nodes, boards)
    return assemble_jobs(
        _with_attempts(_with_nodes(_with_job_states(rows))),
        source="job-table",
        time_zone=zone,
        checks=(AMBIGUOUS_TIME_CHECK, source_check("job table: no team", pl.col("team_missing"))),
        findings_of_reader=node_findings,
        inventory=inventory,
        boards=boards,
        any_device=True,
        extra_files=[] if node_file is None else [node_file],
    )


def _normalize_times(column: str) -> pl.Expr:
    """Return an expression for the times of a column as Slurm prints them: with T, whole seconds, a numeric offset."""
    text = pl.col(column).str.strip_chars().str.replace(r"^(\d{4}-\d\d-\d\d) +", "${1}T")
    text = text.str.replace(r"[.,]\d+", "").str.replace(r"\s*(?:Z|UTC)$", "+00:00")
    return text.str.replace(r"T(\d\d:\d\d)([+-]|$)", "T${1}:00${2}")


def _with_job_states(rows: Rows) -> Rows:
    """Map the states of Slurm or gpuplanner to job states; rows without one get the state that their times imply."""
    stated_words = rows.good["state"].str.to_uppercase().unique().drop_nulls()
    states = {word: "UNKNOWN" if word == "UNKNOWN" else parse_slurm_state(word) for word in stated_words}
    open_end = pl.when(pl.col("start_time").is_null()).then(pl.lit("PENDING")).otherwise(pl.lit("RUNNING"))
    by_times = pl.when(pl.col("end_time").is_null()).then(open_end).otherwise(pl.lit("UNKNOWN"))
    stated_state = pl.col("state").str.to_uppercase()
    mapped_state = stated_state.replace_strict(states, default=None, return_dtype=pl.String)
    rows = rows.reject({"state: not one of Slurm": stated_state.is_not_null() & mapped_state.is_null()})
    return rows.with_columns(state=pl.coalesce(mapped_state, by_times))


def _with_nodes(rows: Rows) -> Rows:
    """Write node lists as Slurm does, and add the number of nodes, and tenant ``unknown`` where the team is missing."""
    rows = rows.with_columns(node_list=pl.col("node_list").str.replace_all(r"[+; ]+", ","))
    return rows.with_columns(
        nodes=map_unique_texts(
            rows.good["node_list"], lambda text: len(try_expand_node_list(text) or ()) or None, pl.Int64
        ),
        team_missing=pl.col("tenant").is_null(),
        tenant=pl.col("tenant").fill_null("unknown"),
    )


def _with_attempts(rows: Rows) -> Rows:
    """Add ``attempt``, the number of each run of a job by start time; a repeated run is rejected."""
    first_time = pl.coalesce("start_time", "submit_time")
    is_repeated = ~pl.struct("job_id", first_time).is_first_distinct()
    rows = rows.reject({"the same job and start as an earlier row": is_repeated})
    return rows.with_columns(attempt=first_time.rank("ordinal").over("job_id"))


SOURCE = define_source(
    "job-table",
    f"job table of any scheduler: {JOB_TABLE_COLUMNS_TEXT} (CSV or Parquet; tz if times are naive)",
    SourceForm("job table", "schedulers.generic_job_table:read_job_table", frozenset({"tz", "nodes", "boards"})),
)
"""Registration of the generic job table as a source: name, help text and reader."""
