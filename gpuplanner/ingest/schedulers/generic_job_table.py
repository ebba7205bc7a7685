"""The job table that any scheduler can be brought to: one row a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from gpuplanner.core.schemas import MAX_GPUS_PER_JOB
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import Rows
from gpuplanner.ingest.gpu_model_resolution import known_nodes
from gpuplanner.ingest.job_table import assemble
from gpuplanner.ingest.quality_report import AMBIGUOUS_TIME, Check
from gpuplanner.ingest.row_reader import read_rows
from gpuplanner.ingest.slurm.accounting_fields import slurm_state, with_times
from gpuplanner.ingest.slurm.node_records import read_inventory
from gpuplanner.ingest.source_definition import Form, columns_of, looks, published
from gpuplanner.ingest.source_fields import Dialect, Field, known_zone, map_texts

COLUMNS = {
    "job_id": Field("job_id"),
    "user": Field("user", nullable=True),
    "team": Field("tenant", nullable=True),
    "submit": Field("submit", "moment"),
    "start": Field("start", "moment", nullable=True),
    "end": Field("end", "moment", nullable=True),
    "gpus": Field("gpus", "number", nullable=True, high=MAX_GPUS_PER_JOB),
    "gpu_model": Field("gpu_model", nullable=True, optional=True),
    "profile": Field("profile_requested", nullable=True, optional=True),
    "nodes": Field("node_list", nullable=True, optional=True),
    "state": Field("state", nullable=True, optional=True),
    "eligible": Field("eligible", "moment", nullable=True, optional=True),
}
"""Columns of the table. ``gpus`` counts GPUs, or MIG instances of ``profile`` where there is one; ``nodes`` are names
joined by ``+``, or a list as Slurm writes it; without ``state``, one that has started and has no ``end`` runs."""
REQUIRED = [name for name, field in COLUMNS.items() if not field.optional]
JOB_TABLE = f"{','.join(REQUIRED)}[,{','.join(name for name in COLUMNS if name not in REQUIRED)}]"
"""The columns as messages and pages show them; those in brackets may be absent."""
TIMES = {name: name for name in ("submit", "eligible", "start", "end")}
AS_WRITTEN = "Write times as 2026-03-02T08:00:00Z, or as unix seconds."

NO_TEAM = Check("no team", "warning", "put on tenant 'unknown'", pl.col("team_missing"))


@looks(columns_of(COLUMNS))
def read_job_table(
    paths: Sequence[str | Path],
    *,
    tz: str | None = None,
    nodes: str | Path | None = None,
    boards: Mapping[str, str] | None = None,
) -> Dataset:
    r"""Read the job table: one row for each run of a job, so that a job that was requeued has several.

    Times are ISO 8601 with an offset, unix seconds, or naive in the zone `tz`. States are those of Slurm or of
    gpuplanner.

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
    zone = None if tz is None else known_zone(tz)
    rows = read_rows(paths, COLUMNS, source="job-table", dialect=Dialect(tables=True))
    rows = rows.with_columns(_in_one_form(name) for name in TIMES)
    rows = _with_states(with_times(rows, zone, source="job-table", labels=TIMES, todo=AS_WRITTEN))
    inventory, node_file = (None, None) if nodes is None else read_inventory(nodes, boards)
    return assemble(
        _with_runs(_with_nodes(rows)),
        source="job-table",
        time_zone=zone,
        checks=(AMBIGUOUS_TIME, NO_TEAM),
        inventory=inventory,
        boards=boards,
        any_device=True,
        more_files=[] if node_file is None else [node_file],
    )


def _in_one_form(name: str) -> pl.Expr:
    """Times as Slurm writes them: with a T, in whole seconds, with a numeric offset if any."""
    text = pl.col(name).str.strip_chars().str.replace(r"^(\d{4}-\d\d-\d\d) +", "${1}T")
    text = text.str.replace(r"[.,]\d+", "").str.replace(r"\s*(?:Z|UTC)$", "+00:00")
    return text.str.replace(r"T(\d\d:\d\d)([+-]|$)", "T${1}:00${2}")


def _with_states(rows: Rows) -> Rows:
    """Our states; where none is stated, that of its times."""
    words = rows.good["state"].str.to_uppercase().unique().drop_nulls()
    states = {word: "UNKNOWN" if word == "UNKNOWN" else slurm_state(word) for word in words}
    open_end = pl.when(pl.col("start_time").is_null()).then(pl.lit("PENDING")).otherwise(pl.lit("RUNNING"))
    by_times = pl.when(pl.col("end_time").is_null()).then(open_end).otherwise(pl.lit("UNKNOWN"))
    stated = pl.col("state").str.to_uppercase()
    ours = stated.replace_strict(states, default=None, return_dtype=pl.String)
    rows = rows.reject({"state: not one of Slurm": stated.is_not_null() & ours.is_null()})
    return rows.with_columns(state=pl.coalesce(ours, by_times))


def _with_nodes(rows: Rows) -> Rows:
    """Node lists as Slurm writes them, the number of their nodes, and a team for everybody."""
    rows = rows.with_columns(node_list=pl.col("node_list").str.replace_all(r"[+; ]+", ","))
    return rows.with_columns(
        nodes=map_texts(rows.good["node_list"], lambda text: len(known_nodes(text) or ()) or None, pl.Int64),
        team_missing=pl.col("tenant").is_null(),
        tenant=pl.col("tenant").fill_null("unknown"),
    )


def _with_runs(rows: Rows) -> Rows:
    """Number the runs of each job by their start; the same run again is rejected."""
    begin = pl.coalesce("start_time", "submit_time")
    again = ~pl.struct("job_id", begin).is_first_distinct()
    rows = rows.reject({"the same job and start as an earlier row": again})
    return rows.with_columns(attempt=begin.rank("ordinal").over("job_id"))


SOURCE = published(
    "job-table",
    f"job table of any scheduler: {JOB_TABLE} (CSV or Parquet; tz if times are naive)",
    Form("job table", "schedulers.generic_job_table:read_job_table", frozenset({"tz", "nodes", "boards"})),
)
