"""Slurm accounting: the text that ``sacct --parsable2`` prints, with or without a header line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.schemas.tables import MAX_GPUS_PER_JOB
from gpuplanner.traces.assemble import assemble
from gpuplanner.traces.fields import Dialect, Field
from gpuplanner.traces.inventory import read_inventory
from gpuplanner.traces.quality import AMBIGUOUS_TIME, RUN_S, Check
from gpuplanner.traces.reader import OUT_OF_TIME, Rows, out_of_time, read_rows
from gpuplanner.traces.slurm_words import NO_VALUE, Tres, duration_s, known_fields, parse_tres, slurm_state
from gpuplanner.traces.times import INSTANT, MAX_SECONDS, known_zone, seconds, to_utc
from gpuplanner.traces.trace import Trace

COLUMN_MAP = {
    "JobID": Field("job_id"),
    "State": Field("slurm_state"),
    "Submit": Field("submit"),
    "Start": Field("start", nullable=True),
    "End": Field("end", nullable=True),
    "AllocTRES": Field("alloc_tres", nullable=True, optional=True),
    "ReqTRES": Field("req_tres", nullable=True, optional=True),
    "Account": Field("account", nullable=True, optional=True),
    "User": Field("user", nullable=True, optional=True),
    "QOS": Field("tier", nullable=True, optional=True),
    "NodeList": Field("node_list", nullable=True, optional=True),
    "ElapsedRaw": Field("elapsed_s", "number", nullable=True, optional=True, high=MAX_SECONDS),
    "Elapsed": Field("elapsed", nullable=True, optional=True),
    "TimelimitRaw": Field("limit_min", nullable=True, optional=True),
    "Timelimit": Field("limit", nullable=True, optional=True),
}
"""Fields of sacct that are read; the others are not. Account is the tenant, QOS the tier."""

SACCT = Dialect(
    separator="|",
    quotes=False,
    names=known_fields,
    free_tail=frozenset({"jobname", "comment", "admincomment", "systemcomment", "workdir", "submitline"}),
    any_of=(("AllocTRES", "ReqTRES"),),
    hint="Let sacct print its header line, and ask for these fields with --format.",
)

STEP = "step of a job: its GPUs are counted on the job row"
SEEN_AGAIN = "the same job and submission again: the row that knows more was kept"
TIMES = {"submit": "Submit", "start": "Start", "end": "End"}
NAIVE = "%Y-%m-%dT%H:%M:%S"

CHECKS = (
    AMBIGUOUS_TIME,
    Check(
        "typed and untyped GPUs of a job both given",
        "info",
        "none: the untyped count was taken, they were not added",
        (pl.col("types") > 0) & pl.col("alloc_tres").str.contains(r"(?:^|,)gres/gpu="),
    ),
    Check(
        "typed and untyped GPUs of a job differ",
        "warning",
        "GPU-hours follow the untyped count",
        (pl.col("types") > 0) & (pl.col("typed") != pl.col("gpus")),
    ),
    Check(
        "several GPU types in one job",
        "warning",
        "the boards are joined by '|'; figures per board leave such jobs out",
        pl.col("types") > 1,
    ),
    Check(
        "MIG instances counted as GPUs",
        "warning",
        "gpus counts instances: GPU-hours of these jobs are too high until instances are weighed by profile",
        pl.col("profile_requested").is_not_null(),
    ),
    Check(
        "array of waiting tasks on one row",
        "warning",
        "the row counts as one job: waiting demand is too low",
        pl.col("job_id").str.contains("[", literal=True),
    ),
    Check(
        "no account",
        "warning",
        "put on tenant 'unknown'",
        pl.col("account").is_null(),
    ),
    Check(
        "elapsed time is not end - start",
        "warning",
        "the job was suspended or the time zone is wrong: GPU-hours follow start and end",
        (RUN_S - pl.col("elapsed_s")).abs() > 1.0,
    ),
)


def read_slurm(
    paths: Sequence[str | Path], *, tz: str | None = None, nodes: str | Path | None = None
) -> Trace:
    r"""Read sacct output.

    With a header line, any list of fields that has JobID, State, Submit, Start, End and AllocTRES or
    ReqTRES, in any order; without one, the lists of Sonar and Open XDMoD. Put JobName last: it may contain
    the separator. Steps of jobs go to the reject table. A requeued job has one row per submission; these
    become its attempts.

    Parameters
    ----------
    paths : sequence of str or Path
        Text files, plain or gzip.
    tz : str, optional
        Zone of the times. Needed unless they carry an offset or are epoch seconds
        (``SLURM_TIME_FORMAT=%s``).
    nodes : str or Path, optional
        Node list, see :func:`gpuplanner.traces.inventory.read_inventory`.

    Returns
    -------
    Trace
        One row per job and attempt.

    Raises
    ------
    TraceFormatError
        If a file cannot be read as this source, the zone is needed and not given, or no row is left.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "sacct.txt"
    ...     _ = path.write_text(
    ...         "JobID|State|Submit|Start|End|AllocTRES\n"
    ...         "7|COMPLETED|2025-09-01T08:00:00|2025-09-01T09:00:00|2025-09-01T11:30:00|gres/gpu=2\n"
    ...         "7.batch|COMPLETED|2025-09-01T09:00:00|2025-09-01T09:00:00|2025-09-01T11:30:00|gres/gpu=2\n"
    ...     )
    ...     trace = read_slurm([path], tz="Europe/Oslo")
    >>> trace.jobs.height, trace.rejects.height, trace.provenance["gpu_hours"]
    (1, 1, 5.0)
    """
    zone = None if tz is None else known_zone(tz)
    rows = read_rows(paths, COLUMN_MAP, source="slurm", dialect=SACCT)
    rows = rows.reject({STEP: pl.col("job_id").str.contains(".", literal=True)})
    rows = _with_times(rows, zone)
    rows = _with_states(rows)
    rows = _with_resources(rows)
    rows = _with_attempts(rows)
    inventory, node_file = (None, None) if nodes is None else read_inventory(nodes)
    return assemble(
        rows,
        source="slurm",
        time_zone=zone,
        last_seen=pl.when(pl.col("end_time").is_null()).then(
            pl.col("start_time") + seconds(pl.col("elapsed_s"))
        ),
        checks=CHECKS,
        harmless=[STEP],
        inventory=inventory,
        more_files=[] if node_file is None else [node_file],
    )


def _with_times(rows: Rows, zone: str | None) -> Rows:
    """Read the instants: naive in the zone, with an offset, or as epoch seconds."""
    names = [f"{text}_time" for text in TIMES]
    frame = rows.good.with_columns(pl.when(~pl.col(text).is_in(NO_VALUE)).then(text) for text in TIMES)
    naive = frame.with_columns(
        pl.col(list(TIMES)).str.to_datetime(NAIVE, time_unit="us", strict=False).name.suffix("_time")
    )
    zoneless = naive.filter(pl.any_horizontal(pl.col(names).is_not_null()))
    if zone is None and zoneless.height:
        text = message(
            f"slurm: times of {zoneless.height} rows",
            "a stated time zone",
            f"times without an offset, such as {zoneless['submit'][0]!r}",
            "Say in which zone sacct ran: --tz Europe/Oslo or --tz UTC.",
        )
        raise TraceFormatError(text)
    read = to_utc(naive, names, zone or "UTC").with_columns(
        pl.coalesce(f"{text}_time", _absolute(pl.col(text))) for text in TIMES
    )
    skipped = f", or one that the clocks of {zone} skip" if zone else ""
    faults = {"Submit: missing": pl.col("submit").is_null()}
    for text, label in TIMES.items():
        instant = pl.col(f"{text}_time")
        faults[f"{label}: not a time{skipped}"] = pl.col(text).is_not_null() & instant.is_null()
        faults[f"{label}: {OUT_OF_TIME}"] = out_of_time(instant)
    return replace(rows, good=read).reject(faults)


def _absolute(text: pl.Expr) -> pl.Expr:
    """Instants that need no zone: with an offset, or epoch seconds."""
    offset = text.str.to_datetime(f"{NAIVE}%z", time_unit="us", strict=False)
    epoch = text.str.extract(r"^(\d{9,10})$").cast(pl.Int64) * 1_000_000
    return pl.coalesce(offset.dt.convert_time_zone("UTC"), epoch.cast(INSTANT))


def _with_states(rows: Rows) -> Rows:
    """Our states; a job that waits, or never had a node, has no start."""
    words = rows.good["slurm_state"].unique().to_list()
    states = {word: slurm_state(word) for word in words}
    unknown = sorted(word for word, state in states.items() if state is None)
    rows = rows.reject({"State: not a state of Slurm": pl.col("slurm_state").is_in(unknown)})
    state = pl.col("slurm_state").replace_strict(states, return_dtype=pl.String)
    placed = (state != "PENDING") & (pl.col("node_list") != "None assigned").fill_null(True)
    nodes = pl.when(~pl.col("node_list").is_in(NO_VALUE)).then("node_list")
    good = rows.good.with_columns(state=state, start_time=pl.when(placed).then("start_time"), node_list=nodes)
    return replace(rows, good=good)


def _with_resources(rows: Rows) -> Rows:
    """GPUs, board, profile, nodes, time limit and elapsed time. Each different TRES text is parsed once."""
    text = pl.coalesce("alloc_tres", "req_tres")
    parsed: dict[str, Tres] = {}
    faulty = []
    for tres in rows.good.select(text).to_series().drop_nulls().unique().to_list():
        try:
            parsed[tres] = parse_tres(tres)
        except ValueError:
            faulty.append(tres)
    rows = rows.reject({"TRES: not a list of name=value": text.is_in(faulty)})
    table = pl.DataFrame(
        [(tres, *vars(facts).values()) for tres, facts in parsed.items()],
        schema={
            "tres": pl.String,
            "gpus": pl.Float64,
            "types": pl.Int64,
            "typed": pl.Float64,
            "gpu_model": pl.String,
            "profile_requested": pl.String,
            "nodes": pl.Int64,
        },
        orient="row",
    )
    minutes = pl.col("limit_min").cast(pl.Float64, strict=False) * 60
    good = (
        rows.good.with_columns(tres=text)
        .join(table, on="tres", how="left", maintain_order="left")
        .with_columns(
            tenant=pl.col("account").fill_null("unknown"),
            elapsed_s=pl.coalesce("elapsed_s", duration_s(pl.col("elapsed"))),
            time_limit_s=pl.coalesce(minutes, duration_s(pl.col("limit"))),
        )
    )
    return replace(rows, good=good).reject(
        {f"GPUs: above {MAX_GPUS_PER_JOB}": pl.col("gpus") > MAX_GPUS_PER_JOB}
    )


def _with_attempts(rows: Rows) -> Rows:
    """Number the submissions of each job; of the same submission seen twice keep what knows most.

    Slurm keeps one record per job id and submission: a requeued job, or a reused id, is submitted again.
    """
    if rows.good["job_id"].n_unique() == rows.good.height:
        return replace(rows, good=rows.good.with_columns(attempt=pl.lit(1)))
    knows = pl.col("end_time").is_not_null().cast(pl.Int8) * 2 + pl.col("start_time").is_not_null()
    key = ["job_id", "submit_time"]
    rank = knows.rank("ordinal", descending=True).over(key)
    rows = rows.reject({SEEN_AGAIN: rank > 1})
    return replace(
        rows, good=rows.good.with_columns(attempt=pl.col("submit_time").rank("dense").over("job_id"))
    )
