"""Readers of public traces with one row for each job, as declarations of their columns, states and checks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from gpuplanner.core.errors import printable_file_name
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import Rows
from gpuplanner.ingest.quality_report import AMBIGUOUS_TIME_CHECK, NO_START_CHECK, RUN_S_EXPR, Check, source_check
from gpuplanner.ingest.slurm.node_records import read_inventory
from gpuplanner.ingest.source_definition import has_required_columns
from gpuplanner.ingest.source_fields import (
    FIRST_INSTANT,
    UTC_TIME_DTYPE,
    Field,
    convert_to_utc,
    format_utc,
    parse_origin,
    seconds_to_duration,
    source_columns,
    source_values,
    validate_time_zone,
)
from gpuplanner.ingest.table_assembly import assemble_jobs
from gpuplanner.ingest.text_files import TextFile, read_head
from gpuplanner.ingest.typed_row_reader import read_rows

JOB_TIME_PREFIXES = ("submit", "start", "end")

"""Prefixes of the columns for the times of a job: ``submit_s`` are seconds, ``submit_time`` is an instant."""


@dataclass(frozen=True)
class JobTrace:
    """The declaration of a public list of jobs; called with paths, it reads them.

    Fields that are named as columns of ``schemas.Jobs`` become these columns. ``submit_s``, ``start_s`` and ``end_s``
    are seconds after the origin. A list without starts has jobs that start at submission and end after ``run_s``.
    Without a tenant, it is the name of the file; without a state, it is UNKNOWN.

    - ``source``: Name of the source.
    - ``columns``: Column of the file → how to read it.
    - ``zone``: Time zone of naive times, unless the user gives another.
    - ``origin``: Time of second 0 according to the source, unless the user gives another.
    - ``states``: State of the source → state in the job table; other states reject their row.
    - ``faults``: Reason → condition for rows that are rejected.
    - ``steps``: Columns computed from the fields, each step from those before it.
    - ``ids_shared``: Several jobs may have one id, see :func:`number_shared_ids`.
    - ``checks``: Checks of the quality report on its rows.
    - ``notes``: Notes in the provenance.
    - ``zone_note``: Note for an assumed time zone, with ``{}`` in place of its name.
    - ``observed_column``: Column of the time up to which the trace was observed [s after the origin].
    - ``reduced_form``: Columns of the full list, and the declaration for files that have none of them.
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
    observed_column: str | None = None
    reduced_form: tuple[Collection[str], JobTrace] | None = None

    def sniff(self, lines: Sequence[str]) -> bool:
        """Whether the first lines of a file look like this list."""
        columns = self.columns if self.reduced_form is None else self.reduced_form[1].columns
        return has_required_columns(columns)(lines)

    def __call__(
        self,
        paths: Sequence[str | Path],
        *,
        tz: str | None = None,
        origin: datetime | str | None = None,
        nodes: str | Path | None = None,
    ) -> Dataset:
        """Read files of this list.

        Parameters
        ----------
        paths : sequence of str or Path
            Files of one form.
        tz : str, optional
            Time zone of naive times.
        origin : datetime or str, optional
            Time of second 0.
        nodes : str or Path, optional
            Node list of the cluster; it becomes the inventory.

        Returns
        -------
        Dataset
        """
        trace = self
        if self.reduced_form is not None:
            headers = [line for path in paths for line in read_head(path)[:1]]
            full_columns, reduced_trace = self.reduced_form
            if not any(name in line for line in headers for name in full_columns):
                trace = reduced_trace
        rows = read_rows(paths, trace.columns, source=self.source)
        return trace.make_dataset(rows, tz=tz, origin=origin, nodes=nodes)

    def make_dataset(
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
        """Make a dataset from rows with the fields of this list.

        Parameters
        ----------
        rows : Rows
            Rows of the files.
        tz : str, optional
            Time zone of naive times.
        origin : datetime or str, optional
            Time of second 0.
        nodes : str or Path, optional
            Node list of the cluster; it becomes the inventory.
        checks : sequence of Check
            Checks in addition to those of the list.
        notes : sequence of str
            Notes in addition to those of the list.
        more_files : sequence of TextFile
            Further files that the rows were made from.

        Returns
        -------
        Dataset
        """
        rows = rows.reject(self.faults) if self.faults else rows
        rows = map_source_states(rows, self.states) if self.states else rows
        zone = None if self.zone is None else validate_time_zone(tz or self.zone)
        if zone is not None:
            source_names = {field_.name: name for name, field_ in self.columns.items() if field_.kind == "time"}
            rows = convert_local_times(rows, source_names, zone)

        has_relative_times = any(f"{name}_s" in rows.good.columns for name in JOB_TIME_PREFIXES)
        stated_origin = origin or self.origin
        origin_time = parse_origin(stated_origin or FIRST_INSTANT) if has_relative_times else None
        is_relative = has_relative_times and stated_origin is None

        jobs = rows.good
        for step in self.steps:
            jobs = jobs.with_columns(**step)
        jobs = number_shared_ids(jobs) if self.ids_shared else jobs
        if origin_time is not None:
            names = [name for name in JOB_TIME_PREFIXES if f"{name}_s" in jobs.columns]
            jobs = jobs.with_columns(offset_time(origin_time, f"{name}_s").alias(f"{name}_time") for name in names)
        has_starts = "start_time" in jobs.columns
        if not has_starts:
            submit = pl.col("submit_time")
            jobs = jobs.with_columns(start_time=submit, end_time=submit + seconds_to_duration(pl.col("run_s")))
        defaults = {"attempt": pl.lit(1), "tenant": file_stem(rows.files), "state": pl.lit("UNKNOWN")}
        jobs = jobs.with_columns(**{name: value for name, value in defaults.items() if name not in jobs.columns})

        inventory, node_file = (None, None) if nodes is None else read_inventory(nodes)[:2]
        last_seen = None
        if origin_time is not None and self.observed_column is not None:
            last_seen = offset_time(origin_time, self.observed_column)
        relative_note = f"times are seconds from the start of the trace; second 0 was set to {format_utc(origin_time)}"
        return assemble_jobs(
            replace(rows, good=jobs),
            source=self.source,
            time_zone=zone,
            origin=origin_time,
            last_seen=last_seen,
            checks=[
                *self.checks,
                *checks,
                *([] if has_starts else [NO_START_CHECK]),
                *([] if zone is None else [AMBIGUOUS_TIME_CHECK]),
                *([source_check("public: relative dates", pl.lit(value=True))] if is_relative else []),
            ],
            notes=[
                *([relative_note] if is_relative else []),
                *self.notes,
                *([self.zone_note.format(zone)] if self.zone_note and not tz else []),
                *notes,
            ],
            inventory=inventory,
            extra_files=[*more_files, *([] if node_file is None else [node_file])],
        )


def offset_time(origin_time: datetime, column: str) -> pl.Expr:
    """Expression for the instants of a column of seconds after the origin."""
    return pl.lit(origin_time, UTC_TIME_DTYPE) + seconds_to_duration(pl.col(column))


def file_stem(files: Sequence[TextFile]) -> pl.Expr:
    """Expression for the name of the file of each row, up to its first dot."""
    stems = {number: printable_file_name(file.path).split(".")[0] for number, file in enumerate(files)}
    return pl.col("file").replace_strict(stems, return_dtype=pl.String)


def map_source_states(rows: Rows, state_map: Mapping[str, str]) -> Rows:
    """Map the states of a source to those of the job table; rows with other states are rejected."""
    state = pl.col("state")
    rows = rows.reject({f"state: not one of {', '.join(state_map)}": ~state.is_in(list(state_map))})
    return rows.with_columns(state.replace_strict(dict(state_map), default="UNKNOWN"))


def convert_local_times(rows: Rows, source_names: Mapping[str, str], zone: str) -> Rows:
    """Convert naive local times to UTC; rows with a time that the clocks skip are rejected.

    Parameters
    ----------
    rows : Rows
        Rows with columns of naive times.
    source_names : mapping of str to str
        Column of times → its name in the source, for the reasons of rejects.
    zone : str
        Time zone.
    """
    columns = list(source_names)
    was_present = [pl.col(name).is_not_null().alias(f"was:{name}") for name in columns]
    good = convert_to_utc(rows.good.with_columns(was_present), columns, zone)
    skipped_times = {
        f"{source_name}: the clocks of {zone} skip it": pl.col(f"was:{name}") & pl.col(name).is_null()
        for name, source_name in source_names.items()
    }
    converted = replace(rows, good=good).reject(skipped_times)
    return replace(converted, good=converted.good.drop(f"was:{name}" for name in columns))


def number_shared_ids(rows: pl.DataFrame) -> pl.DataFrame:
    """Number the jobs of one file that share an id, as suffix of the id; ``twin`` counts from 0.

    An export lists no job twice, so equal ids within it are different jobs that its columns do not distinguish.
    In a second export the same id is the same job.

    Examples
    --------
    >>> number_shared_ids(pl.DataFrame({"file": [0, 0, 1], "job_id": ["a", "a", "a"]}))["job_id"].to_list()
    ['a', 'a#2', 'a']
    """
    rows = rows.with_columns(pl.zeros(rows.height, pl.Int64, eager=True).alias("twin"))
    is_shared = rows["job_id"].is_duplicated()
    if not is_shared.any():
        return rows
    # Only the few shared ids are numbered: numbering all would take as long as reading the file.
    earlier_rows = rows.filter(is_shared).select(pl.int_range(pl.len()).over("file", "job_id")).to_series()
    repeated_rows = is_shared.arg_true().filter(earlier_rows > 0)
    number = earlier_rows.filter(earlier_rows > 0)
    numbered_ids = rows["job_id"].gather(repeated_rows) + "#" + (number + 1).cast(pl.String)
    twin = rows["twin"].scatter(repeated_rows, number)
    return rows.with_columns(twin, rows["job_id"].scatter(repeated_rows, numbered_ids))


def format_number(column: str) -> pl.Expr:
    """Expression that formats numbers as parts of an id: whole ones without decimals, missing ones as "".

    Examples
    --------
    >>> pl.DataFrame({"gpus": [4.0, 0.5, None]}).select(format_number("gpus"))["gpus"].to_list()
    ['4', '0.5', '']
    """
    return pl.col(column).cast(pl.String).str.strip_suffix(".0").fill_null("")


QUEUE_WAIT_S_EXPR = (pl.col("start_time") - pl.col("submit_time")).dt.total_microseconds() / 1e6
"""Queue wait of a job: start - submission [s]."""

HELIOS_ZONE = "Asia/Shanghai"
"""Time zone of naive times of Helios: the clusters were in China, which has no daylight saving time."""

PHILLY_ZONE = "America/Los_Angeles"
"""Time zone of naive times of Philly: the utilisation files of the trace have PDT and PST."""

ASSUMED_ZONE_NOTE = "the source names no zone: times were read as {}"
"""Remark in the provenance of a trace that names no time zone, with a place for the zone that was used."""

GPU_FRACTION_CHECK = source_check("public: part of a GPU", pl.col("gpus") != pl.col("gpus").floor())
"""Check that finds jobs with a fraction of a GPU."""
QUEUE_MISMATCH_CHECK = source_check("public: other queue", (QUEUE_WAIT_S_EXPR - pl.col("queue_s")).abs() > 1.0)
"""Check that finds jobs whose stated queue time is not start - submission."""


ITP_TRACE = JobTrace(
    "itp",
    source_columns("itp"),
    origin=datetime(2021, 3, 4, tzinfo=UTC),
    notes=["the source kept jobs of about 600 s and longer only: arrival rates are not those of the queue"],
)
"""Microsoft's ITP clusters, one file each (Gu et al., ElasticFlow, ASPLOS 2023). The origin is the first day of the
collection; the source gives neither hour nor zone."""

SIMULATOR_TRACE = JobTrace("simulator", source_columns("simulator"))
"""How job lists that cluster simulators read (submission, run time, GPUs) become a job table."""

SPOT_TRACE = JobTrace(
    "spot",
    source_columns("spot"),
    steps=[
        {
            "gpus": pl.col("gpus_per_worker") * pl.col("workers"),
            "tier": pl.col("job_type").replace_strict(source_values("spot job type"), default=pl.col("job_type")),
        }
    ],
)
"""Alibaba's spot GPU cluster (Duan et al., GFS, ASPLOS 2026; alibaba/clusterdata, cluster-trace-v2026-spot-gpu, README:
columns of ``job_info_df.csv``). `organization`: cost organisation; `gpu_request`: GPUs of one worker."""

DLRM_ROLES = ("CN", "HN")
"""Roles of instances in the Alibaba DLRM trace: ``CN`` on CPU nodes, ``HN`` on GPU nodes."""
STARTED_BEFORE_TRACE_EXPR = pl.col("submit_s").is_null()
"""Whether an instance of the DLRM trace existed before the trace: it has no creation time."""
STATE_WITHOUT_END_EXPR = pl.when(pl.col("start_s").is_null()).then(pl.lit("PENDING")).otherwise(pl.lit("RUNNING"))
"""State of an instance of the DLRM trace that was not deleted: pending without a start, else running."""
DLRM_TRACE = JobTrace(
    "dlrm",
    source_columns("dlrm"),
    faults={f"role: not one of {', '.join(DLRM_ROLES)}": ~pl.col("role").is_in(list(DLRM_ROLES))},
    steps=[
        {
            "censored": STARTED_BEFORE_TRACE_EXPR,
            "job_class": pl.lit("inference"),
            "start_s": pl.coalesce("start_s", pl.when(STARTED_BEFORE_TRACE_EXPR).then(0.0)),
            "submit_s": pl.col("submit_s").fill_null(0.0),
        },
        {"state": pl.when(pl.col("end_s").is_null()).then(STATE_WITHOUT_END_EXPR).otherwise(pl.lit("UNKNOWN"))},
    ],
    checks=[
        source_check("dlrm: before the trace", pl.col("censored")),
        source_check("dlrm: CPU node", pl.col("role") == "CN"),
        source_check("dlrm: GPU on a CPU node", (pl.col("role") == "CN") & (pl.col("gpus") > 0)),
    ],
)
"""Alibaba DLRM serving: instances of recommendation models, 2025 (Yang et al., USENIX NSDI 2025). One without creation
time existed before the trace, one without deletion time outlived it; the trace lacks the result of the others. `role`:
``HN`` on GPU nodes, ``CN`` on CPU nodes."""

STATE_BY_OPENB_PHASE = source_values("openb phase")
"""Kubernetes phase of a pod in the Alibaba OpenB trace → state in the job table."""
ENDS_WITH_TRACE_EXPR = pl.col("end_s") == pl.max_horizontal(pl.col("submit_s", "start_s", "end_s").max())
"""Whether a pod of the OpenB trace was deleted at the last instant of the trace."""
IS_STILL_RUNNING_EXPR = (pl.col("phase") == "Running") & (ENDS_WITH_TRACE_EXPR | pl.col("end_s").is_null())
"""Whether a pod of the OpenB trace still ran when the trace ended."""
OPENB_TIMED_TRACE = JobTrace(
    "openb",
    source_columns("openb"),
    faults={
        f"pod_phase: not one of {', '.join(STATE_BY_OPENB_PHASE)}": ~pl.col("phase").is_in(list(STATE_BY_OPENB_PHASE))
    },
    steps=[
        {
            "tenant": pl.lit("openb"),
            "tier": pl.col("qos").str.to_lowercase(),
            "gpus": pl.col("whole_gpus") * pl.col("gpu_milli") / 1000,
            "deleted": (pl.col("phase") == "Running") & ~ENDS_WITH_TRACE_EXPR,
            "seen_s": pl.col("end_s"),
            "end_s": pl.when(~IS_STILL_RUNNING_EXPR.fill_null(value=False)).then(pl.col("end_s")),
        },
        {
            "state": pl.when("deleted")
            .then(pl.lit("UNKNOWN"))
            .otherwise(pl.col("phase").replace_strict(STATE_BY_OPENB_PHASE, default="UNKNOWN"))
        },
    ],
    checks=[source_check("openb: deleted", pl.col("deleted")), GPU_FRACTION_CHECK],
    notes=["the trace names no teams: all jobs are of 'openb'"],
    observed_column="seen_s",
)
"""Alibaba OpenB: pods with whole and fractional GPUs, 2023 (Weng et al., USENIX ATC 2023). A running pod deleted at the
last instant of the trace still ran; one deleted earlier ended in an unknown state. The variant lists are resamplings of
the same pods: read them one at a time. `gpu_milli`: thousandths of one GPU; `gpu_spec`: requested GPU models joined by
``|``."""

OPENB_UNTIMED_TRACE = replace(
    OPENB_TIMED_TRACE,
    columns={
        name: column if number < 3 else replace(column, nullable=True, optional=True)
        for number, (name, column) in enumerate(OPENB_TIMED_TRACE.columns.items())
    },
    faults={},
    steps=[{"phase": pl.lit("Pending"), "submit_s": pl.lit(0.0)}, *OPENB_TIMED_TRACE.steps],
    checks=[*OPENB_TIMED_TRACE.checks, source_check("openb: no times", pl.lit(value=True))],
)
"""How the OpenB lists ``multigpu20`` to ``multigpu50`` become a job table: they have five columns and no times, a queue
of pods."""

OPENB_TRACE = replace(
    OPENB_TIMED_TRACE, reduced_form=(("creation_time", "deletion_time", "scheduled_time"), OPENB_UNTIMED_TRACE)
)
"""How a pod list of the Alibaba OpenB trace becomes a job table, with times or, in the lists without them, as a queue.
"""

HELIOS_TRACE = JobTrace(
    "helios",
    source_columns("helios"),
    zone=HELIOS_ZONE,
    states=source_values("helios state"),
    checks=[QUEUE_MISMATCH_CHECK, source_check("helios: other duration", (RUN_S_EXPR - pl.col("run_s")).abs() > 1.0)],
    zone_note=ASSUMED_ZONE_NOTE,
)
"""Helios: jobs of SenseTime clusters, 2020 (Hu et al., SC 2021; S-Lab-System-Group/HeliosData, README: schema of
``cluster_log.csv``). `vc`: virtual cluster; `duration`: end - start [s]; `queue`: start - submission [s]. The README
names one suspended job."""

IS_SEREN_JOB_EXPR = pl.col("job_id").str.contains(r"^\d+$")
"""Whether a job of the Acme trace ran on the cluster Seren, whose job ids are numbers."""
ACME_CLUSTER_JOB_FIELDS = {
    "seren": IS_SEREN_JOB_EXPR,
    "tenant": pl.when(IS_SEREN_JOB_EXPR).then(pl.lit("seren")).otherwise(pl.lit("kalos")),
}
"""Columns of a job of the Acme trace that tell its cluster: job ids of Seren are numbers, those of Kalos are names."""

ACME_RUN_TIME_S_EXPR = pl.col("duration_s") - pl.when(IS_SEREN_JOB_EXPR).then(0.0).otherwise(pl.col("queue_s"))
"""Run time of a job of the Acme trace by its stated duration, which on Kalos includes the queue wait [s]."""
ACME_DURATION_S_EXPR = RUN_S_EXPR + pl.when("seren").then(0.0).otherwise(QUEUE_WAIT_S_EXPR)
"""Duration that the Acme trace should state for a job, by its times: on Kalos with the queue wait [s]."""
ACME_CHECKS = [
    QUEUE_MISMATCH_CHECK,
    source_check("acme: duration with queue", ~pl.col("seren")),
    source_check("acme: other duration", (ACME_DURATION_S_EXPR - pl.col("duration_s")).abs() > 1.0),
]
"""Checks of the quality report for both forms of the Acme trace."""
ACME_REDUCED_TRACE = JobTrace(
    "acme",
    source_columns("acme_reduced"),
    faults={"duration: below queue, which it contains": ACME_RUN_TIME_S_EXPR < 0},
    steps=[
        {**ACME_CLUSTER_JOB_FIELDS, "start_time": pl.col("submit_time") + seconds_to_duration(pl.col("queue_s"))},
        {"end_time": pl.col("start_time") + seconds_to_duration(ACME_RUN_TIME_S_EXPR)},
    ],
    checks=[*ACME_CHECKS, source_check("acme: no start", pl.col("start_time").is_not_null())],
)
"""How the Acme trace reduced to five columns, which lacks start times, becomes a job table."""
ACME_TRACE = JobTrace(
    "acme",
    source_columns("acme"),
    states=source_values("acme state"),
    steps=[
        {
            **ACME_CLUSTER_JOB_FIELDS,
            "job_class": pl.col("job_class").replace_strict(
                source_values("acme type"), default=pl.col("job_class").str.to_lowercase()
            ),
        }
    ],
    checks=[
        *ACME_CHECKS,
        source_check("acme: other GPU time", ~pl.col("seren") & (pl.col("gpu_s") > pl.col("gpus") * RUN_S_EXPR + 1.0)),
    ],
    reduced_form=(("start_time",), ACME_REDUCED_TRACE),
)
"""Acme: jobs of the LLM clusters Seren and Kalos, 2023 (Hu et al., USENIX NSDI 2024; InternLM/AcmeTrace, README: schema
of ``trace_seren.csv`` and ``trace_kalos.csv``), full or reduced to five columns. The columns differ in meaning: the
duration of Seren is end - start, that of Kalos is end - submission, against its documentation. `gpu_time`:
GPUs × duration [GPU s]."""

PHILLY_TRACE = JobTrace(
    "philly",
    source_columns("philly"),
    zone=PHILLY_ZONE,
    steps=[
        {
            "job_id": pl.concat_str(
                pl.lit("philly"),
                pl.col("submit_time").dt.epoch("s").cast(pl.String),
                "tenant",
                format_number("gpus"),
                format_number("run_s"),
                separator="-",
            )
        }
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
