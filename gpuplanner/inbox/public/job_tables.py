"""Job tables of public traces, CSV with one row a job or pod, as declarations."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import polars as pl

from gpuplanner.inbox.core.lines.column_tables import source_columns
from gpuplanner.inbox.core.source_checks import source_check
from gpuplanner.inbox.core.times import seconds
from gpuplanner.inbox.public.trace import JobTrace, plain

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

SIMULATOR = JobTrace(
    "simulator",
    source_columns("simulator"),
)
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

PHASES = {
    "Succeeded": "COMPLETED",
    "Failed": "FAILED",
    "Pending": "PENDING",
    "Running": "RUNNING",
    "Unknown": "UNKNOWN",
}
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
    checks=[
        source_check("openb: deleted", pl.col("deleted")),
        IN_PARTS,
    ],
    notes=["the trace names no tenants: all jobs are of 'openb'"],
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
    checks=[
        *OPENB.checks,
        source_check("openb: no times", pl.lit(value=True)),
    ],
)
"""The lists ``multigpu20`` to ``multigpu50`` have five columns only and no times: a queue of pods."""

OPENB = replace(OPENB, reduced=(("creation_time", "deletion_time", "scheduled_time"), UNTIMED))

HELIOS_STATES = {
    **{name: name for name in ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL")},
    "RUNNING": "RUNNING",
    "PENDING": "PENDING",
    "SUSPENDED": "UNKNOWN",
}
"""States of the source (its README names one suspended job) → ours."""
HELIOS = JobTrace(
    "helios",
    source_columns("helios"),
    zone=HELIOS_ZONE,
    states=HELIOS_STATES,
    checks=[
        OTHER_QUEUE,
        source_check("helios: other duration", (RUN_S - pl.col("run_s")).abs() > 1.0),
    ],
    zone_note=UNZONED,
)
"""Helios: jobs of SenseTime clusters, 2020 (Hu et al., SC 2021; S-Lab-System-Group/HeliosData, README: schema of
``cluster_log.csv``). `vc`: virtual cluster; `duration`: end - start [s]; `queue`: start - submission [s]."""

ACME_STATES = {
    name: name
    for name in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "RUNNING", "PENDING", "UNKNOWN")
}
CLASSES = {"Pretrain": "pretraining", "SFT": "fine-tuning", "Evaluation": "evaluation"}
"""Kinds of work of the source → ours; others stay, in lower case."""
IS_SEREN = pl.col("job_id").str.contains(r"^\d+$")
OF_CLUSTER = {
    "seren": IS_SEREN,
    "tenant": pl.when(IS_SEREN).then(pl.lit("seren")).otherwise(pl.lit("kalos")),
}
"""Seren numbers its jobs; Kalos names them."""
REDUCED_COLUMNS = source_columns("acme_reduced")
HELD_S = pl.col("duration_s") - pl.when(IS_SEREN).then(0.0).otherwise(pl.col("queue_s"))
ACME_CHECKS = [
    OTHER_QUEUE,
    source_check("acme: duration with queue", ~pl.col("seren")),
    source_check(
        "acme: other duration",
        (RUN_S + pl.when("seren").then(0.0).otherwise(QUEUE_S) - pl.col("duration_s")).abs() > 1.0,
    ),
]
REDUCED_ACME = JobTrace(
    "acme",
    REDUCED_COLUMNS,
    faults={"duration: below queue, which it contains": HELD_S < 0},
    steps=[
        {**OF_CLUSTER, "start_time": pl.col("submit_time") + seconds(pl.col("queue_s"))},
        {"end_time": pl.col("start_time") + seconds(HELD_S)},
    ],
    checks=[
        *ACME_CHECKS,
        source_check("acme: no start", pl.col("start_time").is_not_null()),
    ],
)
ACME = JobTrace(
    "acme",
    source_columns("acme"),
    states=ACME_STATES,
    steps=[
        {
            **OF_CLUSTER,
            "job_class": pl.col("job_class").replace_strict(
                CLASSES, default=pl.col("job_class").str.to_lowercase()
            ),
        }
    ],
    checks=[
        *ACME_CHECKS,
        source_check(
            "acme: other GPU time", ~pl.col("seren") & (pl.col("gpu_s") > pl.col("gpus") * RUN_S + 1.0)
        ),
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
        {
            "job_id": pl.concat_str(
                pl.lit("philly"), SUBMITTED, "tenant", plain("gpus"), plain("run_s"), separator="-"
            )
        }
    ],
    ids_shared=True,
    checks=[
        source_check(
            "philly: other GPU time", (pl.col("gpu_s") - pl.col("run_s") * pl.col("gpus")).abs() > 1.0
        ),
        source_check("philly: equal rows", ~pl.col("raw").is_first_distinct()),
    ],
)
"""Philly: deep learning training jobs of a Microsoft cluster, 2017 (Jeon et al., USENIX ATC 2019). `timestamp`: local
submission; `gpu_time`: GPUs × duration [GPU s]; `cluster`:
virtual cluster. The table has no user, state, start or job id: a job is named after its submission [epoch s], virtual
cluster, GPUs and run time [s], so that it keeps its name in every export that has it."""
