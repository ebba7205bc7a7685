"""Parsers for the fields of Slurm accounting: states, times, TRES, and the GPU use that Slurm or jobstats measured."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.core.schemas import MAX_GPUS_PER_JOB
from gpuplanner.hardware.catalog import export_command, facts
from gpuplanner.ingest.chunked_tables import JOINED_PIECE_REASON, ChunkedRows, join_run_pieces
from gpuplanner.ingest.delimited_rows import OUT_OF_RANGE_TIME_REASON, Rows, is_out_of_range
from gpuplanner.ingest.gpu_model_resolution_and_node_lists import SHARE_RESOURCES
from gpuplanner.ingest.job_gpu_counting import DEVICES_COLUMN, format_device_counts
from gpuplanner.ingest.quality_report import Check, source_check
from gpuplanner.ingest.source_definition import has_header_columns
from gpuplanner.ingest.source_fields import (
    UTC_TIME_DTYPE,
    convert_to_utc,
    map_unique_texts,
    seconds_to_duration,
    source_values,
)
from gpuplanner.ingest.typed_row_reader import looks_like_json

SLURM_STATES: dict[str, str] = dict(facts("slurm_states").select("state", "ours").iter_rows())
"""State of Slurm → job state. A suspended or stopped job keeps its GPUs; a requeued one lost them."""

SLURM_NULL_TEXTS = ("", "Unknown", "None", "N/A", "None assigned", "(null)")
"""Texts that Slurm prints for a missing value."""

SLURM_UNSET_NUMBERS = (0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFE, 0xFFFFFFFFFFFFFFFF)
"""Slurm's numbers NO_VAL (not set) and INFINITE (unlimited), 32 and 64 bit."""

HEADERLESS_FIELD_LISTS = tuple(text.split("|") for text in source_values("sacct without header").values())
"""Field names of the programs that run sacct without a header line."""

SACCT_HEADER_NAMES = frozenset(
    {"jobid", "jobidraw", "state", "submit", "eligible", "start", "end", "elapsed", "elapsedraw"}
    | {"alloctres", "reqtres", "allocgres", "nodelist"}
)
"""Fields of sacct, in lower case, by which its header line is recognised."""

MIN_SACCT_HEADER_NAMES = 3
"""Number of :data:`SACCT_HEADER_NAMES` that make a header line one of sacct."""

SLURM_TIME_PATTERN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d([+-]\d\d:?\d\d)?|\d{9,11}")
"""A time as sacct prints it: ISO with or without an offset, or epoch seconds."""

HEADERLESS_STATE_PATTERN = re.compile(rf"\|(?:{'|'.join(SLURM_STATES)})\b[^|]*(?:\||$)")
"""State of a job between the delimiters of sacct, as in a row of a file without header line."""

HEADERLESS_TRES_PATTERN = re.compile(r"(?:^|\|)(?:[\w/:.]+=[^|,=]+,)*(?:cpu|billing|gres/gpu)=\d")
"""TRES between the delimiters of sacct, as in a row of a file without header line."""

SLURM_JSON_PATTERN = re.compile(r'"(?:slurm_)?jobs"\s*:\s*\[')
"""Field by which JSON text is recognised as a list of Slurm jobs."""

KUBERNETES_JSON_PATTERN = re.compile(r'"(?:apiVersion|kind)"\s*:\s*"')
"""Field by which JSON text is recognised as Kubernetes objects instead of Slurm jobs."""

TYPED_GPU_TRES_PATTERN = re.compile(r"gres/gpu:(.+)")
"""TRES of GPUs of one type, such as ``gres/gpu:a100``."""

GPU_SHARE_TRES_PATTERN = re.compile(r"gres/(shard|mps)(?::(.+))?")
"""TRES of shares of GPUs: ``gres/shard`` or ``gres/mps``, with the GPU type if stated."""


@dataclass(frozen=True)
class ParsedTres:
    """GPUs and nodes of one TRES (trackable resources) text of Slurm.

    - ``gpus``: Number of devices, GPUs and MIG instances alike: the untyped count where there is one, else the sum of
      the typed counts. None where the devices are shares of GPUs (``gres/shard``, ``gres/mps``), whose size only the
      node list gives.
    - ``types``: Number of different GPU types.
    - ``typed``: Sum of the typed counts. [devices]
    - ``devices``: Types and their counts, in the format of :data:`gpuplanner.ingest.job_gpu_counting.DEVICES_COLUMN`.
    - ``nodes``: Number of nodes.
    """

    gpus: float | None
    types: int
    typed: float
    devices: str | None
    nodes: int | None


def parse_tres(text: str) -> ParsedTres:
    """Parse a TRES text such as ``billing=32,cpu=32,gres/gpu:a100=2,gres/gpu=2,mem=128G,node=1``.

    Raises
    ------
    ValueError
        If an item is not ``name=value`` or a count is not a number.

    Examples
    --------
    >>> parse_tres("cpu=8,gres/gpu:a100=4,gres/gpu=4,node=1").gpus
    4.0
    >>> parse_tres("gres/gpu:a100=2,gres/gpu:nvidia_a100_3g.20gb=1").devices
    'a100=2,nvidia_a100_3g.20gb=1'
    >>> parse_tres("cpu=4,gres/shard=2,gres/shard:a100=2").devices
    'shard:a100=2'
    """
    untyped: int | None = None
    nodes: int | None = None
    typed: dict[str, int] = {}
    shares: dict[str, int] = {}
    for item in text.split(","):
        name, equals, value = item.strip().partition("=")
        if not (name and equals and value):
            raise ValueError(item)
        if name == "gres/gpu":
            untyped = _parse_count(value)
        elif name == "node":
            nodes = _parse_count(value)
        elif match := TYPED_GPU_TRES_PATTERN.fullmatch(name):
            typed[match[1]] = typed.get(match[1], 0) + _parse_count(value)
        elif match := GPU_SHARE_TRES_PATTERN.fullmatch(name):
            shares[name.removeprefix("gres/")] = _parse_count(value)
    total = sum(typed.values())
    for name in SHARE_RESOURCES:
        # Like GPUs, shares may be counted both with and without a type: the untyped count includes the typed ones.
        typed_shares = sum(count for word, count in shares.items() if word.startswith(f"{name}:"))
        shares[name] = max(shares.get(name, 0) - typed_shares, 0)
    share_devices = format_device_counts(dict(sorted(shares.items())))
    return ParsedTres(
        gpus=None if share_devices else float(total if untyped is None else untyped),
        types=len(typed),
        typed=float(total),
        devices=share_devices or format_device_counts(dict(sorted(typed.items()))),
        nodes=nodes,
    )


def _parse_count(text: str) -> int:
    """Parse a count of at most nine decimal digits, so that it fits a 32-bit column."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ValueError(text)
    return int(text)


def parse_slurm_state(text: str) -> str | None:
    """Map a state that Slurm prints, in full or abbreviated with a plus sign, to a state of the job table.

    None if Slurm has no such state, or the abbreviation fits several.

    Examples
    --------
    >>> parse_slurm_state("CANCELLED by 380693"), parse_slurm_state("OUT_OF_ME+"), parse_slurm_state("LOST")
    ('CANCELLED', 'OUT_OF_MEMORY', None)
    """
    word = text.split(" ")[0]
    if not word.endswith("+"):
        return SLURM_STATES.get(word)
    matching_states = {state for name, state in SLURM_STATES.items() if name.startswith(word[:-1]) and len(word) > 3}
    return matching_states.pop() if len(matching_states) == 1 else None


def parse_duration_s(text: pl.Expr) -> pl.Expr:
    """Parse durations such as ``[days-][hours:]minutes:seconds`` into seconds [s]; null for any other text.

    Examples
    --------
    >>> pl.select(parse_duration_s(pl.lit("10-13:27:06"))).item()
    912426.0
    """
    groups = text.str.extract_groups(r"^(?:(\d{1,6})-)?(?:(\d{1,6}):)?(\d{1,6}):(\d{1,2}(?:\.\d{1,6})?)$")
    days, hours, minutes, seconds_ = (groups.struct.field(str(number)).cast(pl.Float64) for number in range(1, 5))
    return days.fill_null(0) * 86400 + hours.fill_null(0) * 3600 + minutes * 60 + seconds_


def detect_fields(lines: Sequence[str]) -> list[str] | None:
    """Detect the field names of sacct output without a header line, from the number and content of its fields.

    None if most lines fit no known list of fields.

    Examples
    --------
    >>> detect_fields(["JobID|State|Submit"]) is None
    True
    """
    for names in HEADERLESS_FIELD_LISTS:
        if 2 * sum(_line_fits_fields(line, names) for line in lines) > len(lines):
            return list(names)
    return None


def _line_fits_fields(line: str, names: Sequence[str]) -> bool:
    """Whether a line has as many fields as there are names, a state of Slurm, and a submission time."""
    values = dict(zip(names, line.split("|", len(names) - 1), strict=False))
    return (
        len(values) == len(names)
        and parse_slurm_state(values["State"]) is not None
        and SLURM_TIME_PATTERN.fullmatch(values["Submit"]) is not None
    )


def looks_like_sacct(lines: Sequence[str]) -> bool:
    """Whether the first lines of a file look like output of sacct, as text or JSON.

    Examples
    --------
    >>> looks_like_sacct(["JobID|State|Start"]), looks_like_sacct(['{"meta": {}, "jobs": [']), looks_like_sacct(["a,b"])
    (True, True, False)
    """
    if looks_like_json(lines):
        text = "\n".join(lines)
        return SLURM_JSON_PATTERN.search(text) is not None and not KUBERNETES_JSON_PATTERN.search(text)
    header = {name.strip().casefold() for name in lines[0].split("|")}
    return (
        any(has_header_columns([name, "State"], "|")(lines) for name in ("JobID", "JobIDRaw"))
        or len(header & SACCT_HEADER_NAMES) >= MIN_SACCT_HEADER_NAMES
        or detect_fields(lines) is not None
        or (HEADERLESS_STATE_PATTERN.search(lines[0]) and HEADERLESS_TRES_PATTERN.search(lines[0])) is not None
    )


DUPLICATE_SUBMISSION_REASON = "the same job and submission again: the row that knows more was kept"
"""Reject reason of a row of a submission that lacks times which another row of it has."""

SACCT_FIELD_BY_TIME_COLUMN = {"submit": "Submit", "eligible": "Eligible", "start": "Start", "end": "End"}
"""Text column of a time, such as ``submit`` → its field in sacct."""

SLURM_NAIVE_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"
"""Format of Slurm's times without an offset from UTC."""

TRES_SCHEMA = {
    "tres": pl.String,
    "gpus": pl.Float64,
    "types": pl.Int64,
    "typed": pl.Float64,
    DEVICES_COLUMN: pl.String,
    "nodes": pl.Int64,
}
"""Columns of the table of parsed TRES texts: the text and the fields of its :class:`ParsedTres`."""


def parse_times(
    rows: Rows,
    zone: str | None,
    *,
    source: str = "slurm",
    labels: Mapping[str, str] = SACCT_FIELD_BY_TIME_COLUMN,
    remedy: str = "",
) -> Rows:
    """Parse text columns into UTC instants, as columns with the suffix ``_time``.

    Times are naive in the zone, have an offset, or are epoch seconds (``SLURM_TIME_FORMAT=%s``). Rows with a text that
    is no such time are rejected.

    Parameters
    ----------
    rows : Rows
        Rows with a text column for each instant.
    zone : str, optional
        Time zone of naive times.
    source : str
        Name of the source in error messages.
    labels : mapping of str to str
        Text column → name of the field in the source.
    remedy : str
        Advice in the error message for a file without readable times. Default: how to set the format of sacct.

    Returns
    -------
    Rows

    Raises
    ------
    TraceFormatError
        If times are naive and no zone is given, or if no submission or start of a file is a time.
    """
    time_names = [f"{text}_time" for text in labels]
    frame = rows.good.with_columns(pl.when(~pl.col(text).is_in(SLURM_NULL_TEXTS)).then(text) for text in labels)
    naive_times = pl.col(list(labels)).str.to_datetime(SLURM_NAIVE_TIME_FORMAT, time_unit="us", strict=False)
    with_naive_times = frame.with_columns(naive_times.name.suffix("_time"))
    zoneless = with_naive_times.filter(pl.any_horizontal(pl.col(time_names).is_not_null()))
    if zone is None and zoneless.height:
        example_time = zoneless.select(pl.coalesce(*labels)).item(0, 0)
        error_place = f"{source}: times of {zoneless.height} rows"
        got = f"times without an offset, such as {example_time!r}"
        zone_remedy = "Give the time zone: --tz Europe/Oslo or --tz UTC."
        raise TraceFormatError(error_place, "a stated time zone", got, zone_remedy)
    with_instants = convert_to_utc(with_naive_times, time_names, zone or "UTC").with_columns(
        pl.coalesce(f"{text}_time", _parse_zoned_times(pl.col(text))).alias(f"{text}_time") for text in labels
    )
    _require_times(with_instants, source, labels, remedy)
    skipped_hour = f", or one that the clocks of {zone} skip" if zone else ""
    faults = {}
    for text, label in labels.items():
        instant = pl.col(f"{text}_time")
        faults[f"{label}: not a time{skipped_hour}"] = pl.col(text).is_not_null() & instant.is_null()
        faults[f"{label}: {OUT_OF_RANGE_TIME_REASON}"] = is_out_of_range(instant)
    return replace(rows, good=with_instants).reject(faults)


def _require_times(rows: pl.DataFrame, source: str, labels: Mapping[str, str], remedy: str) -> None:
    """Raise a TraceFormatError if a file of several jobs has texts for submissions, or starts, and none is a time."""
    for column in ("submit", "start"):
        texts = rows[column].drop_nulls()
        if len(texts) > 1 and rows[f"{column}_time"].null_count() == rows.height:
            got = f"{texts[0]!r} in the first of {len(texts)} rows, of which none is one"
            default_remedy = f"Set SLURM_TIME_FORMAT=%s: {export_command('sacct')}."
            raise TraceFormatError(f"{source}: {labels[column]}", "times", got, remedy or default_remedy)


def _parse_zoned_times(text: pl.Expr) -> pl.Expr:
    """Parse times that need no time zone: those with an offset from UTC, and epoch seconds; others become null."""
    offset = text.str.to_datetime(f"{SLURM_NAIVE_TIME_FORMAT}%z", time_unit="us", strict=False)
    epoch = text.str.extract(r"^(\d{9,10})$").cast(pl.Int64) * 1_000_000
    return pl.coalesce(offset.dt.convert_time_zone("UTC"), epoch.cast(UTC_TIME_DTYPE))


def map_states(rows: Rows) -> Rows:
    """Add the column ``state``: Slurm's states mapped to those of the job table. Unknown states reject their rows."""
    state = map_unique_texts(rows.good["slurm_state"], parse_slurm_state, pl.String)
    return rows.with_columns(state=state).reject({"State: not a state of Slurm": pl.col("state").is_null()})


def derive_missing_times(missing_fields: Collection[str]) -> tuple[list[pl.Expr], list[Check]]:
    """Derive the times that a file lacks from those that it has.

    Parameters
    ----------
    missing_fields : collection of str
        Those of the fields Submit, Start and End that no row has.

    Returns
    -------
    columns : list of polars.Expr
        Columns to add one after the other, as a later one may use an earlier one.
    checks : list of Check
        Lines of the quality report on the derived times.
    """
    submit, start, end = (pl.col(f"{name}_time") for name in ("submit", "start", "end"))
    elapsed = seconds_to_duration(pl.col("elapsed_s"))
    columns = []
    checks = []
    if "End" in missing_fields:
        has_ended = ~pl.col("state").is_in(["RUNNING", "PENDING"])
        columns.append(pl.when(has_ended).then(start + elapsed).alias("end_time"))
        checks.append(source_check("slurm: no end", end.is_not_null()))
    if "Start" in missing_fields:
        columns.append(pl.when(pl.col("elapsed_s") > 0).then(end - elapsed).alias("start_time"))
        checks.append(source_check("slurm: no start", start.is_not_null()))
    if "Submit" in missing_fields:
        columns.append(pl.coalesce("eligible_time", start, end).alias("submit_time"))
        checks.append(source_check("slurm: no submission", submit.is_not_null()))
    return columns, checks


def parse_resources(rows: Rows) -> Rows:
    """Add the allocated GPUs, number of nodes, team and time limit [s] of jobs, parsed from their texts."""
    tres_text = pl.coalesce("alloc_tres", "req_tres")
    parsed: dict[str, ParsedTres] = {}
    unreadable = []
    for text in rows.good.select(tres_text).to_series().drop_nulls().unique().to_list():
        try:
            parsed[text] = parse_tres(text)
        except ValueError:
            unreadable.append(text)
    rows = rows.reject({"TRES: not a list of name=value": tres_text.is_in(unreadable)})
    tres_rows = [(text, *vars(tres).values()) for text, tres in parsed.items()]
    table = pl.DataFrame(tres_rows, schema=TRES_SCHEMA, orient="row")
    limit_s = pl.col("limit_min").cast(pl.Float64, strict=False) * 60
    good = (
        rows.good.with_columns(tres=tres_text)
        .join(table, on="tres", how="left", maintain_order="left")
        .with_columns(
            untyped="gpus",
            # Allocated GPUs have a type wherever Slurm counts by type; requested GPUs have one only if it was named.
            gpu_model_requested=pl.col("req_tres").str.contains(r"(?:^|,)gres/gpu:"),
            tenant=pl.col("account").fill_null("unknown"),
            time_limit_s=pl.coalesce(limit_s, parse_duration_s(pl.col("limit"))),
        )
    )
    too_many = pl.col("gpus") > MAX_GPUS_PER_JOB
    return replace(rows, good=good).reject({f"GPUs: above {MAX_GPUS_PER_JOB}": too_many})


ATTEMPT_NUMBER_SCHEMA = {"file": pl.UInt32(), "line": pl.UInt32(), "run_start": UTC_TIME_DTYPE, "attempt": pl.Int64()}
"""Columns of :func:`number_attempts`: file and line of a row, start of its run, and the number of its attempt."""


def number_attempts(rows: ChunkedRows) -> pl.DataFrame:
    """Number the submissions of each job that has several rows, by time.

    Slurm keeps one record per job id and submission: a requeued job, or a reused id, is submitted again.

    Parameters
    ----------
    rows : ChunkedRows
        Jobs with the columns ``job_id``, ``submit_time``, ``start_time`` and ``end_time``.

    Returns
    -------
    polars.DataFrame
        ``file``, ``line``, ``run_start`` [UTC] and ``attempt``, from 1; 0 for a row whose submission another row
        describes more fully, -1 for a piece that is joined to another row.
    """
    if rows.find_repeated_hashes("job_id").is_empty():
        return pl.DataFrame(schema=ATTEMPT_NUMBER_SCHEMA)
    columns = ["submit_time", "start_time", "end_time", "gpus", "node_list"]
    duplicates = join_run_pieces(rows.apply_steps().find_duplicates("job_id", columns), ["job_id"])
    # Of several rows of one submission, the one with an end is best, then the one with a start.
    known_times = pl.col("end_time").is_not_null().cast(pl.Int8) * 2 + pl.col("start_time").is_not_null()
    rank = pl.when(~pl.col("is_piece")).then(known_times).rank("ordinal", descending=True).over("job_id", "submit_time")
    attempt = pl.col("submit_time").rank("dense").over("job_id")
    number = pl.when("is_piece").then(-1).when(rank == 1).then(attempt).otherwise(0)
    return duplicates.select("file", "line", run_start="start_time", attempt=number.cast(pl.Int64))


JOBSTATS_COMMENT_PREFIX = "JS1:"
"""Beginning of the summary that jobstats puts into AdminComment: base64 of JSON packed with gzip."""

GIB_PER_TRES_MEMORY_UNIT = {"": 2.0**-30, "K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10}
"""Suffix of a memory amount in TRES texts → GiB."""


def with_cluster_prefix(column: str) -> pl.Expr:
    """Return an expression for job names as ``cluster/name``, or the name alone where the row has no cluster."""
    return pl.concat_str([pl.col("cluster"), pl.lit("/"), pl.col(column)]).fill_null(pl.col(column))


def read_step_use(rows: pl.DataFrame) -> list[pl.DataFrame]:
    """Read the GPU use that Slurm measured for the steps of jobs.

    Parameters
    ----------
    rows : polars.DataFrame
        Rows of jobs and steps with TRESUsageInTot as ``tres_used``, or TRESUsageInAve, its mean over the tasks of a
        step, as ``tres_used_mean`` and their number as ``tasks``.

    Returns
    -------
    list of polars.DataFrame
        One frame with ``cluster``, ``job_id``, ``percent`` (utilization summed over GPUs, null for a mean over an
        unknown number of tasks) [%], ``gib`` (memory) [GiB] and ``seconds`` (run time) [s]; an empty list if Slurm
        measured nothing.

    References
    ----------
    SchedMD, sacct(1): TRESUsageInTot, TRESUsageInAve, NTasks; SchedMD/slurm src/plugins/gpu/nvml: gpu_p_usage_read
    sums over devices.
    """
    usage_text = pl.coalesce("tres_used", "tres_used_mean")
    steps = rows.filter(pl.col("job_id").str.contains(".", literal=True), usage_text.str.contains("gres/gpuutil="))
    if steps.is_empty():
        return []
    n_tasks = (
        pl.when(pl.col("tres_used").is_not_null()).then(1.0).otherwise(pl.col("tasks").cast(pl.Float64, strict=False))
    )
    memory = usage_text.str.extract_groups(r"gres/gpumem=(\d+(?:\.\d+)?)([KMGT]?)")
    unit = memory.struct.field("2").replace_strict(GIB_PER_TRES_MEMORY_UNIT, default=None, return_dtype=pl.Float64)
    return [
        steps.select(
            "cluster",
            job_id=pl.col("job_id").str.extract(r"^([^.]+)\."),
            percent=usage_text.str.extract(r"gres/gpuutil=(\d+(?:\.\d+)?)").cast(pl.Float64) * n_tasks,
            gib=memory.struct.field("1").cast(pl.Float64) * unit * n_tasks,
            seconds=pl.coalesce("elapsed_s", parse_duration_s(pl.col("elapsed"))),
        )
    ]


def join_gpu_use(
    rows: Rows,
    *,
    attempts: pl.DataFrame,
    step_use_frames: list[pl.DataFrame],
    has_several_clusters: bool,
    job_name_frames: list[pl.DataFrame],
) -> Rows:
    """Add the attempt, the mean SM activity and the peak memory of each job, as far as Slurm or jobstats measured them.

    A job that ran several times gets no use of its steps, as they name no run; MIG instances get none, as NVML measures
    none for them. Values of jobstats take precedence: it measures each GPU.

    Parameters
    ----------
    rows : Rows
        Jobs.
    attempts : polars.DataFrame
        Numbers of their submissions, from :func:`number_attempts`.
    step_use_frames : list of polars.DataFrame
        Use by the steps of jobs, from :func:`read_step_use`.
    has_several_clusters : bool
        Whether job ids carry their cluster.
    job_name_frames : list of polars.DataFrame
        Is appended to: the raw ids of array tasks, which a prolog may give to telemetry, and their job ids.

    Returns
    -------
    Rows
        With ``attempt``, ``sm_activity`` [0-1] and ``memory_peak_gib`` [GiB].
    """
    numbered_jobs = rows.good.join(attempts, on=["file", "line"], how="left", maintain_order="left")
    # The elapsed time of a joined run is that of its last piece alone.
    is_joined = (pl.col("run_start") < pl.col("start_time")).fill_null(value=False)
    numbered_jobs = numbered_jobs.with_columns(
        pl.col("attempt").fill_null(1),
        start_time=pl.coalesce("run_start", "start_time"),
        elapsed_s=pl.when(~is_joined).then("elapsed_s"),
    )
    rows = replace(rows, good=numbered_jobs)
    reasons = {DUPLICATE_SUBMISSION_REASON: pl.col("attempt") == 0, JOINED_PIECE_REASON: pl.col("attempt") == -1}
    rows = rows.reject(reasons)
    names = rows.good.select(name="job_id_raw", job_id="job_id")
    job_name_frames.append(names.filter(pl.col("name") != pl.col("job_id")))
    use = _read_jobstats(rows.good)
    if step_use_frames:
        steps = pl.concat(step_use_frames)
        steps = steps.with_columns(job_id=with_cluster_prefix("job_id")) if has_several_clusters else steps
        # A step names its job, not the run of it, and its use covers all GPUs: only jobs that ran once, on full GPUs,
        # get the use of their steps, and only jobs of one GPU its memory.
        run_s = (pl.col("end_time") - pl.col("start_time")).dt.total_seconds()
        jobs = rows.good.select("job_id", "gpus", "attempt", run_s=run_s)
        is_measured = pl.col("percent").is_not_null().all()
        gpu_busy_s = pl.when(is_measured).then((pl.col("percent") * pl.col("seconds")).sum() / 100.0)
        use_by_job = steps.group_by("job_id").agg(busy_s=gpu_busy_s, gib=pl.col("gib").max())
        is_attributable = (pl.len().over("job_id") == 1) & (pl.col("attempt") == 1) & (pl.col("gpus") >= 1)
        is_attributable &= ~rows.good["devices"].str.contains(r"\dg\.").fill_null(value=False)
        activity = (pl.col("busy_s") / (pl.col("gpus") * pl.col("run_s"))).clip(0.0, 1.0)
        columns = jobs.join(use_by_job, on="job_id", how="left", maintain_order="left").select(
            sm_activity=pl.when(is_attributable & (pl.col("run_s") > 0)).then(activity),
            memory_peak_gib=pl.when(is_attributable & (pl.col("gpus") == 1)).then("gib"),
        )
        use = use.with_columns(pl.col(name).fill_null(columns[name]) for name in columns.columns)
    return rows.with_columns(use["sm_activity"], use["memory_peak_gib"])


def _read_jobstats(rows: pl.DataFrame) -> pl.DataFrame:
    """Read the mean utilization of the GPUs of each job [0-1] and its peak memory [GiB] from summaries of jobstats.

    References
    ----------
    PrincetonUniversity/jobstats: jobstats.py, ``force_recalc`` and ``JOBSTATS`` in AdminComment.
    """
    comments = rows.select("admin_comment")
    texts = [text for text in comments["admin_comment"].drop_nulls().unique() if JOBSTATS_COMMENT_PREFIX in text]
    schema = {"admin_comment": pl.String, "sm_activity": pl.Float64, "memory_peak_gib": pl.Float64}
    use = pl.DataFrame([(text, *_decode_jobstats(text)) for text in texts], schema=schema, orient="row")
    return comments.join(use, on="admin_comment", how="left", maintain_order="left")


def _decode_jobstats(text: str) -> tuple[float | None, float | None]:
    """Decode a summary of jobstats: mean utilization of the GPUs [0-1], and memory of the fullest GPU [GiB]."""
    try:
        packed = base64.b64decode(text.partition(JOBSTATS_COMMENT_PREFIX)[2], validate=False)
        nodes = json.loads(gzip.decompress(packed))["nodes"].values()
        percents = [float(value) for node in nodes for value in node.get("gpu_utilization", {}).values()]
        used_bytes = [float(value) for node in nodes for value in node.get("gpu_used_memory", {}).values()]
    except (ValueError, OSError, EOFError, KeyError, AttributeError, TypeError):
        return None, None
    utilization = min(sum(percents) / len(percents) / 100.0, 1.0) if percents else None
    memory_gib = max(used_bytes) * GIB_PER_TRES_MEMORY_UNIT[""] if used_bytes else None
    return utilization, memory_gib
