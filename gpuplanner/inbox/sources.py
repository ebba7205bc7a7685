"""All sources that can be read: what each is called, which kinds of files it has, and where their readers are.

Of each family the more special kinds of files stand first. Readers are named here and loaded when they are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpuplanner.inbox import schedulers
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.lines.text_file import head
from gpuplanner.inbox.core.source import Form, Source, load, published

TZ = frozenset({"tz"})
ORIGIN = frozenset({"origin"})
BOARDS = frozenset({"boards"})
NODE = frozenset({"node"})
QUERY = frozenset({"query"})
COUNTED = frozenset({"node", "origin", "interval_s"})

NODES, OBJECTS = "nodes", "kubernetes"
"""Node lists come in the forms of two families, of which neither knows the other."""

PUBLIC = (
    published(
        "philly",
        "Microsoft Philly, 2017: job table (CSV), job log with attempts (JSON) or node sequence (CSV)",
        Form("job table", "public.job_tables:PHILLY", TZ),
        Form("job log", "public.json_logs:read_philly_log", TZ),
        Form("node sequence", "public.series:read_philly_nodes", TZ, whole_files=False),
    ),
    published(
        "itp",
        "Microsoft ITP job tables of ElasticFlow, 2021 (CSV, one file per cluster)",
        Form("job table", "public.job_tables:ITP", ORIGIN),
    ),
    published(
        "openb",
        "Alibaba OpenB, 2023: pod list with GPU shares (CSV; node list with nodes)",
        Form("pod list", "public.job_tables:OPENB", ORIGIN | {"nodes"}),
        Form("node list", "slurm.inventory:read_nodes", whole_files=False, header=("sn", "gpu", "model")),
    ),
    published(
        "helios",
        "SenseTime Helios, 2020: job table, sequences of virtual clusters or their quotas by day (CSV)",
        Form("job table", "public.job_tables:HELIOS", TZ),
        Form("sequence", "public.series:read_helios_sequence", TZ, whole_files=False),
        Form("quotas", "public.series:read_helios_quotas", whole_files=False),
    ),
    published(
        "acme",
        "Shanghai AI Laboratory Acme, 2023: job tables of Seren and Kalos, or distributions (CSV)",
        Form("job table", "public.job_tables:ACME"),
        Form("distribution", "public.series:read_distributions", whole_files=False),
    ),
    published(
        "pai",
        "Alibaba PAI, 2020: task table with job and instance tables, or mini-batch times (CSV)",
        Form("tables", "public.pai:read_pai", ORIGIN, whole_files=False),
        Form("mini-batch times", "public.series:read_step_times", whole_files=False),
    ),
    published(
        "dlrm",
        "Alibaba DLRM serving instances, 2025 (CSV)",
        Form("instances", "public.job_tables:DLRM", ORIGIN),
    ),
    published(
        "genai",
        "Alibaba GenAI serving gauges, 2026 (CSV under its own name)",
        Form("gauges", "public.serving:read_genai", whole_files=False),
    ),
    published(
        "spot",
        "Alibaba spot GPU cluster, 2026: job list or node list (CSV)",
        Form("job list", "public.job_tables:SPOT", ORIGIN),
        Form("node list", "slurm.inventory:read_nodes", header=("node_name", "gpu_capacity_num")),
    ),
    published(
        "simulator",
        "job list of a simulator: job_id, submit_time, duration, num_gpus in seconds (CSV)",
        Form("job list", "public.job_tables:SIMULATOR", ORIGIN),
    ),
    published(
        "miso",
        "MISO experiment, 2022: arrivals and run times of its jobs (two JSON files)",
        Form("arrivals and run times", "public.json_logs:read_miso", ORIGIN, whole_files=False),
    ),
    published(
        "azure-llm",
        "Azure LLM inference requests, 2023 (CSV; needs tz)",
        Form("requests", "public.serving:read_azure_llm", TZ, whole_files=False),
    ),
    published(
        "supercloud",
        "MIT Supercloud Slurm accounting table with integer resources, 2021 (CSV)",
        Form("job table", "public.supercloud:read_supercloud"),
    ),
)

BILLS = (
    published(
        "focus",
        "bill in FOCUS 1.0, 1.1 or 1.2 (CSV or Parquet, or a folder of parts)",
        Form("charges", "bills.focus:read_focus", whole_files=False),
    ),
    published(
        "cur",
        "AWS Cost and Usage Report, legacy or 2.0 (CSV or Parquet, or a folder of parts)",
        Form("charges", "bills.cur:read_cur", whole_files=False),
    ),
    published(
        "azure",
        "Azure cost details, actual or amortised, of an Enterprise or Customer Agreement (CSV or Parquet, or a folder)",
        Form("charges", "bills.azure:read_azure", whole_files=False),
    ),
    published(
        "gcp",
        "Google Cloud billing export, standard or detailed (lines of JSON or Parquet)",
        Form("charges", "bills.gcp:read_gcp", whole_files=False),
    ),
)

SLURM = (
    published(
        "slurm-states",
        "Slurm accounting without times: what jobs there were and how they ended",
        Form("states", "slurm.sacct:read_slurm_states", whole_files=False),
    ),
    published(
        "slurm",
        "Slurm accounting: sacct --parsable2, with or without header, or sacct --json (alias: sacct)",
        Form("accounting", "slurm.sacct:read_slurm", frozenset({"tz", "nodes", "columns", "boards"})),
        in_blocks=True,
    ),
)

KUBERNETES = (
    published(
        OBJECTS,
        "Kubernetes dump: kubectl get pods,jobs,nodes -A -o json (or yaml), with Kueue and DRA (alias: kubectl)",
        # Pods of one file stand on the nodes of another.
        Form("dump", "kubernetes.reader:read_kubernetes", BOARDS, whole_files=False),
    ),
    published(
        "kube-state-metrics",
        "pods and nodes as kube-state-metrics tells them: its page, or saved answers of the Prometheus HTTP API (JSON)",
        Form("metrics", "kubernetes.state_metrics:read_state_metrics", BOARDS | ORIGIN, whole_files=False),
    ),
)


def looks_like_kubernetes(path: str | Path) -> bool:
    """True if a file looks like objects of Kubernetes."""
    return KUBERNETES[0].sniff(head(path) or [""])


def _read_nodes(paths: Sequence[str | Path], **options: object) -> Dataset:
    """Read node lists in a form of Slurm, in ours, or in that of Kubernetes."""
    objects = bool(paths) and all(map(looks_like_kubernetes, paths))
    if objects:
        options.pop("tz", None)  # its times are in UTC
    entry = "kubernetes.reader:read_kubernetes_nodes" if objects else "slurm.inventory:read_nodes"
    found: Dataset = load(entry)(paths, **options)
    return found


LISTS = (
    Source(
        NODES,
        "node list: node, gpus, gpu_model (CSV), or scontrol show node, sinfo, slurm.conf, kubectl get nodes -o json",
        _read_nodes,
        Form("node list", "slurm.inventory:read_nodes").sniff,
        BOARDS | TZ,
        whole_files=lambda _: False,
    ),
)

CHANGES = (
    published(
        "changes",
        "log of layout changes, as the scripts of a pack write it (CSV)",
        Form("log", "core.change_log:read_changes", whole_files=False),
    ),
    published(
        "slurm-events",
        "Slurm's events of nodes: sacctmgr show event --parsable2, with start and end (needs tz)",
        Form("events", "slurm.events:read_slurm_events", TZ, whole_files=False),
    ),
    published(
        "slurm-reservations",
        "Slurm's reservations: scontrol show reservation (needs tz)",
        Form("reservations", "slurm.events:read_slurm_reservations", TZ, whole_files=False),
    ),
    published(
        "slurm-associations",
        "limits and shares of Slurm's accounts: sacctmgr show assoc --parsable2",
        Form("associations", "slurm.associations:read_slurm_associations", whole_files=False),
    ),
)

TELEMETRY = (
    published(
        "dcgm-exporter",
        "text pages of exporters of GPUs (DCGM, AMD, Slurm jobs), or OpenMetrics (origin if without times)",
        Form("pages", "telemetry.readers.exporter:read_exporter", COUNTED, whole_files=False),
        by_metric=True,
    ),
    published(
        "dcgm-csv",
        "DCGM exporter readings in long form (CSV)",
        Form("readings", "telemetry.readers.csv_logs:read_dcgm_csv", NODE | TZ, whole_files=False),
        by_metric=True,
        in_blocks=True,
    ),
    published(
        "node-csv",
        "one row per GPU and time with profiling fields, one file per node (CSV)",
        Form("log", "telemetry.readers.csv_logs:read_node_csv", NODE | TZ, whole_files=False),
        in_blocks=True,
    ),
    published(
        "prometheus",
        "saved answers of the Prometheus HTTP API (JSON)",
        Form("answers", "telemetry.readers.prometheus:read_prometheus", NODE | QUERY, whole_files=False),
        by_metric=True,
    ),
    published(
        "dcgmi-dmon",
        "dcgmi dmon (needs origin)",
        Form("table", "telemetry.readers.monitors:read_dcgmi_dmon", COUNTED, whole_files=False),
    ),
    published(
        "smi-transcript",
        "transcript of nvidia-smi commands with a heading each (its --query-gpu parts)",
        Form("transcript", "telemetry.readers.transcript:read_smi_transcript", NODE | TZ, whole_files=False),
    ),
    published(
        "smi-pmon",
        "nvidia-smi pmon: processes (needs origin if without times)",
        Form("table", "telemetry.readers.monitors:read_smi_pmon", COUNTED | TZ, whole_files=False),
    ),
    published(
        "smi-dmon",
        "nvidia-smi dmon (needs origin if without times)",
        Form("table", "telemetry.readers.monitors:read_smi_dmon", COUNTED | TZ, whole_files=False),
    ),
    published(
        "smi-apps",
        "nvidia-smi --query-compute-apps: processes (CSV; needs gpu)",
        Form("list", "telemetry.readers.smi_csv:read_smi_apps", NODE | TZ | {"gpu"}, whole_files=False),
    ),
    published(
        "nvidia-smi",
        "nvidia-smi --query-gpu (CSV; needs tz, and columns if without header)",
        Form(
            "log",
            "telemetry.readers.smi_csv:read_smi_query",
            COUNTED | TZ | {"gpu", "columns"},
            whole_files=False,
        ),
        in_blocks=True,
    ),
)

_OURS = (*PUBLIC, *BILLS, *SLURM, *CHANGES, *LISTS, *KUBERNETES)
_SCHEDULERS = schedulers.sources(frozenset(source.name for source in (*_OURS, *TELEMETRY)))
SOURCES: dict[str, Source] = {source.name: source for source in (*_OURS, *_SCHEDULERS, *TELEMETRY)}
"""Name → source, in the order in which files are compared with them."""

JOB_SOURCES = frozenset(source.name for source in (*PUBLIC, *SLURM, *KUBERNETES, *_SCHEDULERS))
"""Sources that give lists of jobs."""
