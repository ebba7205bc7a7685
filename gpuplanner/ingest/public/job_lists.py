"""Public traces with one row a job, as declarations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from gpuplanner.core.errors import file_name
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import Rows
from gpuplanner.ingest.job_table import assemble
from gpuplanner.ingest.quality_report import AMBIGUOUS_TIME, NO_QUEUE, Check, source_check
from gpuplanner.ingest.row_reader import read_rows
from gpuplanner.ingest.slurm.node_records import read_inventory
from gpuplanner.ingest.source_definition import columns_of
from gpuplanner.ingest.source_fields import (
    FIRST_INSTANT,
    INSTANT,
    Field,
    iso,
    known_origin,
    known_zone,
    seconds,
    source_columns,
    to_utc,
)
from gpuplanner.ingest.text_files import TextFile, head

INSTANTS = ("submit", "start", "end")

RELATIVE = source_check("public: relative dates", pl.lit(value=True))


@dataclass(frozen=True)
class JobTrace:
    """A public list of jobs.

    Fields that are named as columns of ``schemas.Jobs`` become these. Of ``submit_s``, ``start_s`` and ``end_s``
    instants are made by the clock. Where there is no start, it is that of the submission, and the end follows from
    ``run_s``. Where nothing names a tenant it is the name of the file, and where nothing names a state, it is UNKNOWN.

    - ``source``: Name of the source.
    - ``columns``: Column of the file → how to read it.
    - ``zone``: Zone of naive times, unless the user states another.
    - ``origin``: Instant of second 0 as the source tells it, unless the user states another.
    - ``states``: State of the source → ours; other ones reject their row.
    - ``faults``: Reason → rows that are none.
    - ``steps``: Columns made of the fields, each step of those before it.
    - ``ids_shared``: Several jobs may have one id, :func:`told_apart`.
    - ``checks``: What the quality report says of its rows.
    - ``notes``: What the provenance says.
    - ``zone_note``: What it says where the zone was not stated, with a place for the zone.
    - ``seen``: Column of seconds up to which the trace was observed, beside the times of its jobs.
    - ``reduced``: Columns, and the declaration that holds where a file has none of them.
    """

    source: str
    columns: Mapping[str, Field]
    zone: str | None = None
    origin: datetime | None = None
    states: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, pl.Expr] = field(default_factory=dict)
    steps: Sequence[Mapping[str, pl.Expr]] = ()
    ids_shared: bool = False
    checks: Sequence[Check] = ()
    notes: Sequence[str] = ()
    zone_note: str = ""
    seen: str | None = None
    reduced: tuple[Collection[str], JobTrace] | None = None

    def sniff(self, lines: Sequence[str]) -> bool:
        """True if the first lines of a file look like this list."""
        columns = self.columns if self.reduced is None else self.reduced[1].columns
        return columns_of(columns)(lines)

    def __call__(
        self,
        paths: Sequence[str | Path],
        *,
        tz: str | None = None,
        origin: datetime | str | None = None,
        nodes: str | Path | None = None,
    ) -> Dataset:
        """Read files of this list."""
        trace = self
        if self.reduced is not None:
            headers = [line for path in paths for line in head(path)[:1]]
            wanted, other = self.reduced
            if not any(name in line for line in headers for name in wanted):
                trace = other
        rows = read_rows(paths, trace.columns, source=self.source)
        return trace.of(rows, tz=tz, origin=origin, nodes=nodes)

    def of(
        self,
        rows: Rows,
        *,
        tz: str | None = None,
        origin: datetime | str | None = None,
        nodes: str | Path | None = None,
        checks: Sequence[Check] = (),
        notes: Sequence[str] = (),
        more_files: Sequence[TextFile] = (),
    ) -> Dataset:
        """Make a dataset of rows with these fields; `checks` and `notes` are those of these files alone."""
        rows = rows.reject(self.faults) if self.faults else rows
        rows = with_states(rows, self.states) if self.states else rows
        zone = None if self.zone is None else known_zone(tz or self.zone)
        if zone is not None:
            called = {each.name: name for name, each in self.columns.items() if each.kind == "time"}
            rows = localized(rows, called, zone)
        counts = any(f"{name}_s" in rows.good.columns for name in INSTANTS)
        first = origin or self.origin
        zero = known_origin(first or FIRST_INSTANT) if counts else None
        relative = counts and first is None
        jobs = rows.good
        for step in self.steps:
            jobs = jobs.with_columns(**step)
        jobs = told_apart(jobs) if self.ids_shared else jobs
        if zero is not None:
            jobs = jobs.with_columns(
                at(zero, f"{name}_s").alias(f"{name}_time") for name in INSTANTS if f"{name}_s" in jobs.columns
            )
        queued = "start_time" in jobs.columns
        if not queued:
            submit = pl.col("submit_time")
            jobs = jobs.with_columns(start_time=submit, end_time=submit + seconds(pl.col("run_s")))
        usual = {"attempt": pl.lit(1), "tenant": stem_of(rows.files), "state": pl.lit("UNKNOWN")}
        jobs = jobs.with_columns(**{name: each for name, each in usual.items() if name not in jobs.columns})
        inventory, node_file = (None, None) if nodes is None else read_inventory(nodes)
        told = [f"times are seconds from the start of the trace; second 0 was set to {iso(zero)}"]
        return assemble(
            replace(rows, good=jobs),
            source=self.source,
            time_zone=zone,
            origin=zero,
            last_seen=None if zero is None or self.seen is None else at(zero, self.seen),
            checks=[
                *self.checks,
                *checks,
                *([] if queued else [NO_QUEUE]),
                *([] if zone is None else [AMBIGUOUS_TIME]),
                *([RELATIVE] if relative else []),
            ],
            notes=[
                *(told if relative else []),
                *self.notes,
                *([self.zone_note.format(zone)] if self.zone_note and not tz else []),
                *notes,
            ],
            inventory=inventory,
            more_files=[*more_files, *([] if node_file is None else [node_file])],
        )


def at(zero: datetime, column: str) -> pl.Expr:
    """Instants of a column of seconds from second 0."""
    return pl.lit(zero, INSTANT) + seconds(pl.col(column))


def stem_of(files: Sequence[TextFile]) -> pl.Expr:
    """Name of the file of each row, up to its first dot."""
    stems = {number: file_name(file.path).split(".")[0] for number, file in enumerate(files)}
    return pl.col("file").replace_strict(stems, return_dtype=pl.String)


def with_states(rows: Rows, words: Mapping[str, str]) -> Rows:
    """Put our states for the source's; rows with a state that is none of its words are rejected."""
    state = pl.col("state")
    rows = rows.reject({f"state: not one of {', '.join(words)}": ~state.is_in(list(words))})
    return rows.with_columns(state.replace_strict(dict(words), default="UNKNOWN"))


def localized(rows: Rows, called: Mapping[str, str], zone: str) -> Rows:
    """Turn naive times into UTC instants; `called` says what the source calls each of their columns."""
    columns = list(called)
    was = [pl.col(name).is_not_null().alias(f"was:{name}") for name in columns]
    good = to_utc(rows.good.with_columns(was), columns, zone)
    skipped = {
        f"{word}: the clocks of {zone} skip it": pl.col(f"was:{name}") & pl.col(name).is_null()
        for name, word in called.items()
    }
    read = replace(rows, good=good).reject(skipped)
    return replace(read, good=read.good.drop(f"was:{name}" for name in columns))


def told_apart(rows: pl.DataFrame) -> pl.DataFrame:
    """Give rows of one file that share an id a number behind it, ``twin`` + 1; rows of different files keep theirs.

    An export lists no job twice, so equal ids within it are different jobs that its columns cannot tell apart.
    In a second export the same id is the same job again.

    Examples
    --------
    >>> told_apart(pl.DataFrame({"file": [0, 0, 1], "job_id": ["a", "a", "a"]}))["job_id"].to_list()
    ['a', 'a#2', 'a']
    """
    rows = rows.with_columns(pl.zeros(rows.height, pl.Int64, eager=True).alias("twin"))
    shared = rows["job_id"].is_duplicated()
    if not shared.any():  # few are: all of them would take as long as reading them
        return rows
    before = rows.filter(shared).select(pl.int_range(pl.len()).over("file", "job_id")).to_series()
    again = shared.arg_true().filter(before > 0)
    number = before.filter(before > 0)
    named = rows["job_id"].gather(again) + "#" + (number + 1).cast(pl.String)
    return rows.with_columns(rows["twin"].scatter(again, number), rows["job_id"].scatter(again, named))


def plain(name: str) -> pl.Expr:
    """Text of a number for an id, without the decimals of a whole one; empty where it is missing.

    Examples
    --------
    >>> pl.DataFrame({"gpus": [4.0, 0.5, None]}).select(plain("gpus"))["gpus"].to_list()
    ['4', '0.5', '']
    """
    return pl.col(name).cast(pl.String).str.strip_suffix(".0").fill_null("")


RUN_S = (pl.col("end_time") - pl.col("start_time")).dt.total_microseconds() / 1e6
QUEUE_S = (pl.col("start_time") - pl.col("submit_time")).dt.total_microseconds() / 1e6
HELIOS_ZONE = "Asia/Shanghai"
"""Zone of naive times: the clusters stood in China, whose clocks are never changed."""
PHILLY_ZONE = "America/Los_Angeles"
"""Zone of naive times: the utilisation files of the trace carry PDT and PST."""
UNZONED = "the source names no zone: times were read as {}"

IN_PARTS = source_check("public: part of a GPU", pl.col("gpus") != pl.col("gpus").floor())
OTHER_QUEUE = source_check("public: other queue", (QUEUE_S - pl.col("queue_s")).abs() > 1.0)


ITP = JobTrace(
    "itp",
    source_columns("itp"),
    origin=datetime(2021, 3, 4, tzinfo=UTC),
    notes=["the source kept jobs of about 600 s and longer only: arrival rates are not those of the queue"],
)
"""Microsoft's ITP clusters, one file each (Gu et al., ElasticFlow, ASPLOS 2023). The origin is the first day of the
collection; the source gives neither hour nor zone."""

SIMULATOR = JobTrace("simulator", source_columns("simulator"))
"""What simulators of clusters read."""

TIERS = {"HP": "guaranteed", "Spot": "best_effort"}
SPOT = JobTrace(
    "spot",
    source_columns("spot"),
    steps=[
        {
            "gpus": pl.col("gpus_per_worker") * pl.col("workers"),
            "tier": pl.col("job_type").replace_strict(TIERS, default=pl.col("job_type")),
        }
    ],
)
"""Alibaba's spot GPU cluster (Duan et al., GFS, ASPLOS 2026; alibaba/clusterdata, cluster-trace-v2026-spot-gpu, README:
columns of ``job_info_df.csv``). `organization`: cost organisation; `gpu_request`: GPUs of one worker."""

ROLES = ("CN", "HN")
BEFORE = pl.col("submit_s").is_null()
OPEN_END = pl.when(pl.col("start_s").is_null()).then(pl.lit("PENDING")).otherwise(pl.lit("RUNNING"))
DLRM = JobTrace(
    "dlrm",
    source_columns("dlrm"),
    faults={f"role: not one of {', '.join(ROLES)}": ~pl.col("role").is_in(list(ROLES))},
    steps=[
        {
            "censored": BEFORE,
            "job_class": pl.lit("inference"),
            "start_s": pl.coalesce("start_s", pl.when(BEFORE).then(0.0)),
            "submit_s": pl.col("submit_s").fill_null(0.0),
        },
        {"state": pl.when(pl.col("end_s").is_null()).then(OPEN_END).otherwise(pl.lit("UNKNOWN"))},
    ],
    checks=[
        source_check("dlrm: before the trace", pl.col("censored")),
        source_check("dlrm: CPU node", pl.col("role") == "CN"),
        source_check("dlrm: GPU on a CPU node", (pl.col("role") == "CN") & (pl.col("gpus") > 0)),
    ],
)
"""Alibaba DLRM serving: instances of recommendation models, 2025 (Yang et al., USENIX NSDI 2025). One without creation
time existed before the trace, one without deletion time outlived it; how the others ended is not told. `role`: ``HN``
on GPU nodes, ``CN`` on CPU nodes."""

PHASES = {"Succeeded": "COMPLETED", "Failed": "FAILED"}
PHASES |= {phase: phase.upper() for phase in ("Pending", "Running", "Unknown")}
PHASE = pl.col("phase")
AT_END = pl.col("end_s") == pl.max_horizontal(pl.col("submit_s", "start_s", "end_s").max())
STILL_RUNS = (PHASE == "Running") & (AT_END | pl.col("end_s").is_null())
OPENB = JobTrace(
    "openb",
    source_columns("openb"),
    faults={f"pod_phase: not one of {', '.join(PHASES)}": ~PHASE.is_in(list(PHASES))},
    steps=[
        {
            "tenant": pl.lit("openb"),
            "tier": pl.col("qos").str.to_lowercase(),
            "gpus": pl.col("whole_gpus") * pl.col("gpu_milli") / 1000,
            "deleted": (PHASE == "Running") & ~AT_END,
            "seen_s": pl.col("end_s"),
            "end_s": pl.when(~STILL_RUNS.fill_null(value=False)).then(pl.col("end_s")),
        },
        {
            "state": pl.when("deleted")
            .then(pl.lit("UNKNOWN"))
            .otherwise(PHASE.replace_strict(PHASES, default="UNKNOWN"))
        },
    ],
    checks=[source_check("openb: deleted", pl.col("deleted")), IN_PARTS],
    notes=["the trace names no teams: all jobs are of 'openb'"],
    seen="seen_s",
)
"""Alibaba OpenB: pods with whole and fractional GPUs, 2023 (Weng et al., USENIX ATC 2023). A running pod deleted at the
last instant of the trace still ran; one deleted earlier ended in a state that is not told. The variant lists are
resamplings of the same pods: read them one at a time. `gpu_milli`: thousandths of one GPU; `gpu_spec`: wanted models
joined by ``|``."""

UNTIMED = replace(
    OPENB,
    columns={
        name: each if place < 3 else replace(each, nullable=True, optional=True)
        for place, (name, each) in enumerate(OPENB.columns.items())
    },
    faults={},
    steps=[{"phase": pl.lit("Pending"), "submit_s": pl.lit(0.0)}, *OPENB.steps],
    checks=[*OPENB.checks, source_check("openb: no times", pl.lit(value=True))],
)
"""The lists ``multigpu20`` to ``multigpu50`` have five columns only and no times: a queue of pods."""

OPENB = replace(OPENB, reduced=(("creation_time", "deletion_time", "scheduled_time"), UNTIMED))

STATES = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "RUNNING", "PENDING")
HELIOS_STATES = {**{state: state for state in STATES}, "SUSPENDED": "UNKNOWN"}
"""States of the source (its README names one suspended job) → ours."""
HELIOS = JobTrace(
    "helios",
    source_columns("helios"),
    zone=HELIOS_ZONE,
    states=HELIOS_STATES,
    checks=[OTHER_QUEUE, source_check("helios: other duration", (RUN_S - pl.col("run_s")).abs() > 1.0)],
    zone_note=UNZONED,
)
"""Helios: jobs of SenseTime clusters, 2020 (Hu et al., SC 2021; S-Lab-System-Group/HeliosData, README: schema of
``cluster_log.csv``). `vc`: virtual cluster; `duration`: end - start [s]; `queue`: start - submission [s]."""

ACME_STATES = {
    name: name for name in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "RUNNING", "PENDING", "UNKNOWN")
}
CLASSES = {"Pretrain": "pretraining", "SFT": "fine-tuning", "Evaluation": "evaluation"}
"""Kinds of work of the source → ours; others stay, in lower case."""
KIND = pl.col("job_class")
IS_SEREN = pl.col("job_id").str.contains(r"^\d+$")
OF_CLUSTER = {"seren": IS_SEREN, "tenant": pl.when(IS_SEREN).then(pl.lit("seren")).otherwise(pl.lit("kalos"))}
"""Seren numbers its jobs; Kalos names them."""
REDUCED_COLUMNS = source_columns("acme_reduced")
HELD_S = pl.col("duration_s") - pl.when(IS_SEREN).then(0.0).otherwise(pl.col("queue_s"))
KNOWN_S = RUN_S + pl.when("seren").then(0.0).otherwise(QUEUE_S)
ACME_CHECKS = [
    OTHER_QUEUE,
    source_check("acme: duration with queue", ~pl.col("seren")),
    source_check("acme: other duration", (KNOWN_S - pl.col("duration_s")).abs() > 1.0),
]
REDUCED_ACME = JobTrace(
    "acme",
    REDUCED_COLUMNS,
    faults={"duration: below queue, which it contains": HELD_S < 0},
    steps=[
        {**OF_CLUSTER, "start_time": pl.col("submit_time") + seconds(pl.col("queue_s"))},
        {"end_time": pl.col("start_time") + seconds(HELD_S)},
    ],
    checks=[*ACME_CHECKS, source_check("acme: no start", pl.col("start_time").is_not_null())],
)
ACME = JobTrace(
    "acme",
    source_columns("acme"),
    states=ACME_STATES,
    steps=[
        {
            **OF_CLUSTER,
            "job_class": KIND.replace_strict(CLASSES, default=KIND.str.to_lowercase()),
        }
    ],
    checks=[
        *ACME_CHECKS,
        source_check("acme: other GPU time", ~pl.col("seren") & (pl.col("gpu_s") > pl.col("gpus") * RUN_S + 1.0)),
    ],
    reduced=(("start_time",), REDUCED_ACME),
)
"""Acme: jobs of the LLM clusters Seren and Kalos, 2023 (Hu et al., USENIX NSDI 2024; InternLM/AcmeTrace, README: schema
of ``trace_seren.csv`` and ``trace_kalos.csv``), whole or reduced to five columns. They mean different things in each:
the duration of Seren is end - start, that of Kalos is end - submission, against its documentation. `gpu_time`:
GPUs × duration [GPU s]."""

SUBMITTED = pl.col("submit_time").dt.epoch("s").cast(pl.String)
PHILLY = JobTrace(
    "philly",
    source_columns("philly"),
    zone=PHILLY_ZONE,
    steps=[
        {"job_id": pl.concat_str(pl.lit("philly"), SUBMITTED, "tenant", plain("gpus"), plain("run_s"), separator="-")}
    ],
    ids_shared=True,
    checks=[
        source_check("philly: other GPU time", (pl.col("gpu_s") - pl.col("run_s") * pl.col("gpus")).abs() > 1.0),
        source_check("philly: equal rows", ~pl.col("raw").is_first_distinct()),
    ],
)
"""Philly: deep learning training jobs of a Microsoft cluster, 2017 (Jeon et al., USENIX ATC 2019). `timestamp`: local
submission; `gpu_time`: GPUs × duration [GPU s]; `cluster`:
virtual cluster. The table has no user, state, start or job id: a job is named after its submission [epoch s], virtual
cluster, GPUs and run time [s], so that it keeps its name in every export that has it."""
