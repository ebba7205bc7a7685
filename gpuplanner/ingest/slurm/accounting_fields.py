"""Fields of Slurm accounting, job steps, and GPU use that Slurm measured."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from gpuplanner.core.errors import TraceFormatError, examples
from gpuplanner.core.schemas import MAX_GPUS_PER_JOB
from gpuplanner.hardware.catalog import export_command, facts
from gpuplanner.ingest.delimited_rows import OUT_OF_TIME, Rows, out_of_time
from gpuplanner.ingest.gpu_model_resolution import SHARES
from gpuplanner.ingest.gpu_shares import DEVICES, device_words
from gpuplanner.ingest.large_tables import LongRows
from gpuplanner.ingest.quality_report import Check, Finding
from gpuplanner.ingest.row_reader import is_json
from gpuplanner.ingest.source_definition import header_has
from gpuplanner.ingest.source_fields import INSTANT, map_texts, seconds, to_utc

STATES: dict[str, str] = dict(facts("slurm_states").select("state", "ours").iter_rows())
"""State of Slurm → ours. A suspended or stopped job keeps its GPUs; a requeued one lost them."""

NO_VALUE = ("", "Unknown", "None", "N/A", "None assigned", "(null)")
"""What sacct prints where there is nothing."""

UNSET = (0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFE, 0xFFFFFFFFFFFFFFFF)
"""Slurm's NO_VAL and INFINITE, 32 and 64 bit: not set, and without limit."""

SONAR_FIELDS = (
    "JobID|JobIDRaw|User|Account|State|Start|End|AveCPU|AveDiskRead|AveDiskWrite|AveRSS|AveVMSize|ElapsedRaw"
    "|ExitCode|Layout|MaxRSS|MaxVMSize|MinCPU|ReqCPUS|ReqMem|ReqNodes|Reservation|Submit|Suspended|SystemCPU"
    "|TimelimitRaw|UserCPU|NodeList|Partition|AllocTRES|Priority|JobName"
)
"""Fields that NordicHPC Sonar asks of sacct, without a header line."""

XDMOD_FIELDS = (
    "JobID|JobIDRaw|Cluster|Partition|QOS|Account|Group|GID|User|UID|Submit|Eligible|Start|End|Elapsed|ExitCode"
    "|State|NNodes|NCPUS|ReqCPUS|ReqMem|ReqTRES|AllocTRES|Timelimit|NodeList|JobName"
)
"""Fields that Open XDMoD asks of sacct, without a header line."""

FIELD_LISTS = tuple(text.split("|") for text in (SONAR_FIELDS, XDMOD_FIELDS))

SACCT_NAMES = frozenset(
    {"jobid", "jobidraw", "state", "submit", "eligible", "start", "end", "elapsed", "elapsedraw"}
    | {"alloctres", "reqtres", "allocgres", "nodelist"}
)
"""Fields of sacct, in small letters, a few of which tell its header line."""
FEWEST_NAMES = 3

INSTANT_PATTERN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d([+-]\d\d:?\d\d)?|\d{9,11}")
SLURM_JSON = re.compile(r'"(?:slurm_)?jobs"\s*:\s*\[')
OTHER_JSON = re.compile(r'"(?:apiVersion|kind)"\s*:\s*"')
TYPED_GPU = re.compile(r"gres/gpu:(.+)")
SHARE_OF_GPU = re.compile(r"gres/(shard|mps)(?::(.+))?")


@dataclass(frozen=True)
class Tres:
    """GPUs and nodes of one TRES text.

    - ``gpus``: Number of devices, GPUs and MIG instances alike: the untyped count where there is one, else the sum of
      the typed ones: never both. None where the devices are shares of GPUs (``gres/shard``, ``gres/mps``), whose size
      the node states.
    - ``types``: Number of different GPU types.
    - ``typed``: Sum of the typed counts.
    - ``devices``: Types and their counts, as :data:`gpuplanner.ingest.gpu_shares.DEVICES` has them.
    - ``nodes``: Number of nodes.
    """

    gpus: float | None
    types: int
    typed: float
    devices: str | None
    nodes: int | None


def parse_tres(text: str) -> Tres:
    """Read a TRES text such as ``billing=32,cpu=32,gres/gpu:a100=2,gres/gpu=2,mem=128G,node=1``.

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
            untyped = _count(value)
        elif name == "node":
            nodes = _count(value)
        elif match := TYPED_GPU.fullmatch(name):
            typed[match[1]] = typed.get(match[1], 0) + _count(value)
        elif match := SHARE_OF_GPU.fullmatch(name):
            shares[name.removeprefix("gres/")] = _count(value)
    total = sum(typed.values())
    for name in SHARES:
        # Like GPUs, shares may be counted both with and without a type.
        of_types = sum(count for word, count in shares.items() if word.startswith(f"{name}:"))
        shares[name] = max(shares.get(name, 0) - of_types, 0)
    shared = device_words(dict(sorted(shares.items())))
    return Tres(
        gpus=None if shared else float(total if untyped is None else untyped),
        types=len(typed),
        typed=float(total),
        devices=shared or device_words(dict(sorted(typed.items()))),
        nodes=nodes,
    )


def _count(text: str) -> int:
    """A number of things: decimal digits, and no more of them than a 32-bit table column holds."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ValueError(text)
    return int(text)


def slurm_state(text: str) -> str | None:
    """Our state for one of Slurm's; None if it is unknown.

    Examples
    --------
    >>> slurm_state("CANCELLED by 380693"), slurm_state("OUT_OF_ME+"), slurm_state("LOST")
    ('CANCELLED', 'OUT_OF_MEMORY', None)
    """
    word = text.split(" ")[0]
    if not word.endswith("+"):
        return STATES.get(word)
    ours = {state for name, state in STATES.items() if name.startswith(word[:-1]) and len(word) > 3}
    return ours.pop() if len(ours) == 1 else None


def duration_s(text: pl.Expr) -> pl.Expr:
    """Seconds of ``[days-][hours:]minutes:seconds``; null where it is no such text.

    Examples
    --------
    >>> pl.select(duration_s(pl.lit("10-13:27:06"))).item()
    912426.0
    """
    parts = text.str.extract_groups(r"^(?:(\d{1,6})-)?(?:(\d{1,6}):)?(\d{1,6}):(\d{1,2}(?:\.\d{1,6})?)$")
    days, hours, minutes, rest = (parts.struct.field(str(place)).cast(pl.Float64) for place in range(1, 5))
    return days.fill_null(0) * 86400 + hours.fill_null(0) * 3600 + minutes * 60 + rest


def known_fields(lines: Sequence[str]) -> list[str] | None:
    """Field names of a file without a header line, from the number of fields and what stands in them.

    Examples
    --------
    >>> known_fields(["JobID|State|Submit"]) is None
    True
    """
    for names in FIELD_LISTS:
        if 2 * sum(_fits(line, names) for line in lines) > len(lines):
            return list(names)
    return None


def _fits(line: str, names: Sequence[str]) -> bool:
    values = dict(zip(names, line.split("|", len(names) - 1), strict=False))
    return (
        len(values) == len(names)
        and slurm_state(values["State"]) is not None
        and INSTANT_PATTERN.fullmatch(values["Submit"]) is not None
    )


def looks_like_slurm(lines: Sequence[str]) -> bool:
    """True if the first lines of a file look like output of sacct, as text or JSON.

    Examples
    --------
    >>> looks_like_slurm(["JobID|State|Start"]), looks_like_slurm(['{"meta": {}, "jobs": [']), looks_like_slurm(["a,b"])
    (True, True, False)
    """
    if is_json(lines):
        text = "\n".join(lines)
        return SLURM_JSON.search(text) is not None and not OTHER_JSON.search(text)
    header = {name.strip().casefold() for name in lines[0].split("|")}
    return (
        any(header_has([name, "State"], "|")(lines) for name in ("JobID", "JobIDRaw"))
        or len(header & SACCT_NAMES) >= FEWEST_NAMES
        or known_fields(lines) is not None
    )


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
    local = pl.col(list(labels)).str.to_datetime(NAIVE, time_unit="us", strict=False)
    naive = frame.with_columns(local.name.suffix("_time"))
    zoneless = naive.filter(pl.any_horizontal(pl.col(names).is_not_null()))
    if zone is None and zoneless.height:
        shown = zoneless.select(pl.coalesce(*labels)).item(0, 0)
        where = f"{source}: times of {zoneless.height} rows"
        got = f"times without an offset, such as {shown!r}"
        stated = "Give the time zone: --tz Europe/Oslo or --tz UTC."
        raise TraceFormatError(where, "a stated time zone", got, stated)
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
            raise TraceFormatError(f"{source}: {labels[text]}", "times", got, todo or usual)


def _absolute(text: pl.Expr) -> pl.Expr:
    """Instants that need no zone: with an offset, or epoch seconds."""
    offset = text.str.to_datetime(f"{NAIVE}%z", time_unit="us", strict=False)
    epoch = text.str.extract(r"^(\d{9,10})$").cast(pl.Int64) * 1_000_000
    return pl.coalesce(offset.dt.convert_time_zone("UTC"), epoch.cast(INSTANT))


def with_our_states(rows: Rows) -> Rows:
    """Our states for those of Slurm."""
    state = map_texts(rows.good["slurm_state"], slurm_state, pl.String)
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
        effect = "computed from end and elapsed time: after the true start of suspended jobs"
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
            gpu_model_requested=pl.col("req_tres").str.contains(r"(?:^|,)gres/gpu:"),
            tenant=pl.col("account").fill_null("unknown"),
            time_limit_s=pl.coalesce(minutes, duration_s(pl.col("limit"))),
        )
    )
    too_many = pl.col("gpus") > MAX_GPUS_PER_JOB
    return replace(rows, good=good).reject({f"GPUs: above {MAX_GPUS_PER_JOB}": too_many})


ATTEMPTS = {"file": pl.UInt32, "line": pl.UInt32, "attempt": pl.UInt32}


def attempts_of(rows: LongRows) -> pl.DataFrame:
    """Numbers of the submissions of each job that has several; 0: of the same one another row knows more.

    Slurm keeps one record per job id and submission: a requeued job, or a reused id, is submitted again.
    """
    if not rows.has_twins("job_id"):
        return pl.DataFrame(schema=ATTEMPTS)
    twins = rows.settle().twins("job_id", ["submit_time", "start_time", "end_time"])
    knows = pl.col("end_time").is_not_null().cast(pl.Int8) * 2 + pl.col("start_time").is_not_null()
    rank = knows.rank("ordinal", descending=True).over("job_id", "submit_time")
    attempt = pl.col("submit_time").rank("dense").over("job_id")
    return twins.select("file", "line", attempt=pl.when(rank == 1).then(attempt).otherwise(0))


JOBSTATS = "JS1:"
"""How the summary of jobstats begins that stands in AdminComment: base64 of JSON packed with gzip."""
GIB = {"": 2.0**-30, "K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10}


def of_cluster(name: str) -> pl.Expr:
    """Name of a job with its cluster before it, where a file has several."""
    return pl.concat_str([pl.col("cluster"), pl.lit("/"), pl.col(name)]).fill_null(pl.col(name))


def several_clusters(clusters: Collection[str]) -> Finding:
    """A line of the quality report on files of several clusters."""
    effect = "none on jobs, whose ids carry the cluster; nodes are planned together: export each with --clusters=NAME"
    named = examples(sorted(clusters))
    return Finding("jobs of several clusters", "info", len(clusters), effect, named)


def step_use(rows: pl.DataFrame) -> list[pl.DataFrame]:
    """Use of GPUs by the steps of jobs: percent summed over GPUs, and GiB, times seconds; none where Slurm has none.

    References
    ----------
    SchedMD, sacct(1): TRESUsageInTot; SchedMD/slurm src/plugins/gpu/nvml: gpu_p_usage_read sums over devices.
    """
    if rows["tres_used"].null_count() == rows.height:
        return []
    used = pl.col("tres_used")
    steps = rows.filter(pl.col("job_id").str.contains(".", literal=True), used.str.contains("gres/gpuutil="))
    memory = used.str.extract_groups(r"gres/gpumem=(\d+(?:\.\d+)?)([KMGT]?)")
    unit = memory.struct.field("2").replace_strict(GIB, default=None, return_dtype=pl.Float64)
    return [
        steps.select(
            "cluster",
            job_id=pl.col("job_id").str.extract(r"^([^.]+)\."),
            percent=used.str.extract(r"gres/gpuutil=(\d+(?:\.\d+)?)").cast(pl.Float64),
            gib=memory.struct.field("1").cast(pl.Float64) * unit,
            seconds=pl.coalesce("elapsed_s", duration_s(pl.col("elapsed"))),
        )
    ]


def with_use(
    rows: Rows, *, attempts: pl.DataFrame, used: list[pl.DataFrame], several: bool, named: list[pl.DataFrame]
) -> Rows:
    """Jobs with their numbers, the mean activity of their GPUs, and the memory used where they held one.

    Of a job that ran several times it is not known which run a step belongs to, and of MIG instances NVML states no
    use: both stay without. jobstats goes first, as it has each GPU.

    Parameters
    ----------
    rows : Rows
        Jobs.
    attempts : polars.DataFrame
        Numbers of their submissions, as :func:`attempts_of` gives them.
    used : list of polars.DataFrame
        Use by the steps of jobs, as :func:`step_use` gives it.
    several : bool
        The jobs are of several clusters.
    named : list of polars.DataFrame
        Gets the own numbers of tasks of arrays, by which a prolog names their jobs to telemetry.
    """
    numbered = rows.good.join(attempts, on=["file", "line"], how="left", maintain_order="left")
    rows = replace(rows, good=numbered.with_columns(pl.col("attempt").fill_null(1)))
    rows = rows.reject({SEEN_AGAIN: pl.col("attempt") == 0})
    names = rows.good.select(name="job_id_raw", job_id="job_id")
    named.append(names.filter(pl.col("name") != pl.col("job_id")))
    stats = _jobstats(rows.good)
    if used:
        steps = pl.concat(used)
        steps = steps.with_columns(job_id=of_cluster("job_id")) if several else steps
        run_s = (pl.col("end_time") - pl.col("start_time")).dt.total_seconds()
        whole = rows.good.select("job_id", "gpus", "attempt", run_s=run_s)
        busy_s = (pl.col("percent") * pl.col("seconds")).sum() / 100.0
        busy = steps.group_by("job_id").agg(busy_s=busy_s, gib=pl.col("gib").max())
        once = (pl.len().over("job_id") == 1) & (pl.col("attempt") == 1) & (pl.col("gpus") >= 1)
        once &= ~rows.good["devices"].str.contains(r"\dg\.").fill_null(value=False)
        activity = (pl.col("busy_s") / (pl.col("gpus") * pl.col("run_s"))).clip(0.0, 1.0)
        columns = whole.join(busy, on="job_id", how="left", maintain_order="left").select(
            sm_activity=pl.when(once & (pl.col("run_s") > 0)).then(activity),
            memory_peak_gib=pl.when(once & (pl.col("gpus") == 1)).then("gib"),
        )
        stats = stats.with_columns(pl.col(name).fill_null(columns[name]) for name in columns.columns)
    return rows.with_columns(stats["sm_activity"], stats["memory_peak_gib"])


def _jobstats(rows: pl.DataFrame) -> pl.DataFrame:
    """Mean use of the GPUs of each job, and memory of the fullest, as jobstats summed them up.

    References
    ----------
    PrincetonUniversity/jobstats: jobstats.py, ``force_recalc`` and ``JOBSTATS`` in AdminComment.
    """
    comments = rows.select("admin_comment")
    texts = [text for text in comments["admin_comment"].drop_nulls().unique() if JOBSTATS in text]
    schema = {"admin_comment": pl.String, "sm_activity": pl.Float64, "memory_peak_gib": pl.Float64}
    use = pl.DataFrame([(text, *_summary(text)) for text in texts], schema=schema, orient="row")
    return comments.join(use, on="admin_comment", how="left", maintain_order="left")


def _summary(text: str) -> tuple[float | None, float | None]:
    try:
        packed = base64.b64decode(text.partition(JOBSTATS)[2], validate=False)
        nodes = json.loads(gzip.decompress(packed))["nodes"].values()
        percent = [float(value) for node in nodes for value in node.get("gpu_utilization", {}).values()]
        used = [float(value) for node in nodes for value in node.get("gpu_used_memory", {}).values()]
    except (ValueError, OSError, EOFError, KeyError, AttributeError, TypeError):
        return None, None
    return (
        min(sum(percent) / len(percent) / 100.0, 1.0) if percent else None,
        max(used) * GIB[""] if used else None,
    )
