"""Steps from the fields of Slurm accounting to the columns of jobs, whatever form the fields came in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import polars as pl

from gpuplanner.catalog.loader import export_command
from gpuplanner.errors import TraceFormatError, message
from gpuplanner.inbox.core.findings import Check
from gpuplanner.inbox.core.lines.rows import OUT_OF_TIME, Rows, out_of_time
from gpuplanner.inbox.core.long_rows import LongRows
from gpuplanner.inbox.core.shares import DEVICES
from gpuplanner.inbox.core.times import INSTANT, seconds, to_utc
from gpuplanner.inbox.slurm.fields import NO_VALUE, Tres, duration_s, parse_tres, slurm_state
from gpuplanner.schemas.domain import MAX_GPUS_PER_JOB

SEEN_AGAIN = "the same job and submission again: the row that knows more was kept"
TIMES = {"submit": "Submit", "eligible": "Eligible", "start": "Start", "end": "End"}
NAIVE = "%Y-%m-%dT%H:%M:%S"
TRES_SCHEMA = {
    "tres": pl.String,
    "gpus": pl.Float64,
    "types": pl.Int64,
    "typed": pl.Float64,
    DEVICES: pl.String,
    "nodes": pl.Int64,
}


def with_times(
    rows: Rows, zone: str | None, *, source: str = "slurm", labels: Mapping[str, str] = TIMES, todo: str = ""
) -> Rows:
    """Read the instants: naive in the zone, with an offset, or as epoch seconds (``SLURM_TIME_FORMAT=%s``).

    Parameters
    ----------
    rows : Rows
        Rows with a column of text for each instant.
    zone : str, optional
        Zone of naive times.
    source : str
        Source of the rows, for messages.
    labels : mapping of str to str
        Column of text → what the source calls it.
    todo : str
        How to write times that can be read; default: as sacct does it.
    """
    names = [f"{text}_time" for text in labels]
    frame = rows.good.with_columns(pl.when(~pl.col(text).is_in(NO_VALUE)).then(text) for text in labels)
    naive = frame.with_columns(
        pl.col(list(labels)).str.to_datetime(NAIVE, time_unit="us", strict=False).name.suffix("_time")
    )
    zoneless = naive.filter(pl.any_horizontal(pl.col(names).is_not_null()))
    if zone is None and zoneless.height:
        shown = zoneless.select(pl.coalesce(*labels)).item(0, 0)
        where = f"{source}: times of {zoneless.height} rows"
        got = f"times without an offset, such as {shown!r}"
        stated = "Say in which zone they are: --tz Europe/Oslo or --tz UTC."
        raise TraceFormatError(message(where, "a stated time zone", got, stated))
    read = to_utc(naive, names, zone or "UTC").with_columns(
        pl.coalesce(f"{text}_time", _absolute(pl.col(text))).alias(f"{text}_time") for text in labels
    )
    _require_times(read, source, labels, todo)
    skipped = f", or one that the clocks of {zone} skip" if zone else ""
    faults = {}
    for text, label in labels.items():
        instant = pl.col(f"{text}_time")
        faults[f"{label}: not a time{skipped}"] = pl.col(text).is_not_null() & instant.is_null()
        faults[f"{label}: {OUT_OF_TIME}"] = out_of_time(instant)
    return replace(rows, good=read).reject(faults)


def _require_times(read: pl.DataFrame, source: str, labels: Mapping[str, str], todo: str) -> None:
    """Refuse files of several jobs in which no submission, or no start, is a time."""
    for text in ("submit", "start"):
        told = read[text].drop_nulls()
        if len(told) > 1 and read[f"{text}_time"].null_count() == read.height:
            got = f"{told[0]!r} in the first of {len(told)} rows, of which none is one"
            usual = f"Set SLURM_TIME_FORMAT=%s: {export_command('sacct')}."
            raise TraceFormatError(message(f"{source}: {labels[text]}", "times", got, todo or usual))


def _absolute(text: pl.Expr) -> pl.Expr:
    """Instants that need no zone: with an offset, or epoch seconds."""
    offset = text.str.to_datetime(f"{NAIVE}%z", time_unit="us", strict=False)
    epoch = text.str.extract(r"^(\d{9,10})$").cast(pl.Int64) * 1_000_000
    return pl.coalesce(offset.dt.convert_time_zone("UTC"), epoch.cast(INSTANT))


def with_our_states(rows: Rows) -> Rows:
    """Our states for those of Slurm."""
    states = {word: slurm_state(word) for word in rows.good["slurm_state"].unique()}
    state = pl.col("slurm_state").replace_strict(states, return_dtype=pl.String)
    return rows.with_columns(state=state).reject({"State: not a state of Slurm": pl.col("state").is_null()})


def derived_times(absent: Collection[str]) -> tuple[list[pl.Expr], list[Check]]:
    """Times that a field list leaves out, from those that it has: columns one after the other, and what to say."""
    submit, start, end = (pl.col(f"{name}_time") for name in ("submit", "start", "end"))
    elapsed, columns, checks = seconds(pl.col("elapsed_s")), [], []
    if "End" in absent:
        over = ~pl.col("state").is_in(["RUNNING", "PENDING"])
        columns.append(pl.when(over).then(start + elapsed).alias("end_time"))
        effect = "it was taken from the start and the elapsed time: too early for jobs that were suspended"
        checks.append(Check("end not in the source", "warning", effect, end.is_not_null()))
    if "Start" in absent:
        columns.append(pl.when(pl.col("elapsed_s") > 0).then(end - elapsed).alias("start_time"))
        effect = "it was taken from the end and the elapsed time: too late for jobs that were suspended"
        checks.append(Check("start not in the source", "warning", effect, start.is_not_null()))
    if "Submit" in absent:
        columns.append(pl.coalesce("eligible_time", start, end).alias("submit_time"))
        effect = "the first time known was taken instead: queueing delays are too short"
        checks.append(Check("submission not in the source", "warning", effect, submit.is_not_null()))
    return columns, checks


def with_resources(rows: Rows) -> Rows:
    """Devices, nodes and time limit. Each different TRES text is parsed once."""
    text = pl.coalesce("alloc_tres", "req_tres")
    parsed: dict[str, Tres] = {}
    faulty = []
    for tres in rows.good.select(text).to_series().drop_nulls().unique().to_list():
        try:
            parsed[tres] = parse_tres(tres)
        except ValueError:
            faulty.append(tres)
    rows = rows.reject({"TRES: not a list of name=value": text.is_in(faulty)})
    facts = [(tres, *vars(facts).values()) for tres, facts in parsed.items()]
    table = pl.DataFrame(facts, schema=TRES_SCHEMA, orient="row")
    minutes = pl.col("limit_min").cast(pl.Float64, strict=False) * 60
    good = (
        rows.good.with_columns(tres=text)
        .join(table, on="tres", how="left", maintain_order="left")
        .with_columns(
            untyped="gpus",
            # What was given has its type wherever Slurm counts by type; what was asked for has one if it was named.
            board_named=pl.col("req_tres").str.contains(r"(?:^|,)gres/gpu:"),
            tenant=pl.col("account").fill_null("unknown"),
            time_limit_s=pl.coalesce(minutes, duration_s(pl.col("limit"))),
        )
    )
    return replace(rows, good=good).reject(
        {f"GPUs: above {MAX_GPUS_PER_JOB}": pl.col("gpus") > MAX_GPUS_PER_JOB}
    )


def with_attempts(rows: LongRows) -> LongRows:
    """Number the submissions of each job; of the same submission seen twice keep what knows most.

    Slurm keeps one record per job id and submission: a requeued job, or a reused id, is submitted again.
    """
    if not rows.has_twins("job_id"):
        return rows.then(lambda part: part.with_columns(attempt=pl.lit(1)))
    twins = rows.settle().twins("job_id", ["submit_time", "start_time", "end_time"])
    knows = pl.col("end_time").is_not_null().cast(pl.Int8) * 2 + pl.col("start_time").is_not_null()
    rank = knows.rank("ordinal", descending=True).over("job_id", "submit_time")
    attempt = pl.col("submit_time").rank("dense").over("job_id")
    numbers = twins.select("file", "line", attempt=pl.when(rank == 1).then(attempt).otherwise(0))

    def numbered(part: Rows) -> Rows:
        table = part.good.join(numbers, on=["file", "line"], how="left", maintain_order="left")
        part = replace(part, good=table.with_columns(pl.col("attempt").fill_null(1)))
        return part.reject({SEEN_AGAIN: pl.col("attempt") == 0})

    return rows.then(numbered)
