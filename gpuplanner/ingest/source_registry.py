"""All sources that can be read, and how a file finds its own.

Of each family the more special kinds of files stand first. Readers are named here and loaded when they are used.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuplanner.core.errors import TraceFormatError, examples, resolve
from gpuplanner.hardware.catalog import export_command, facts
from gpuplanner.ingest import schedulers
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.schedulers.generic_job_table import JOB_TABLE
from gpuplanner.ingest.source_definition import Form, Source, load, published, useful
from gpuplanner.ingest.text_files import head

TZ = frozenset({"tz"})
ORIGIN = frozenset({"origin"})
BOARDS = frozenset({"boards"})
NODE = frozenset({"node"})
QUERY = frozenset({"query"})
COUNTED = frozenset({"node", "origin", "interval_s"})

NODES, OBJECTS = "nodes", "kubernetes"
"""Node lists come in the forms of two families, of which neither knows the other."""

DESCRIPTIONS = {
    "philly": "Microsoft Philly, 2017: job table (CSV), job log with attempts (JSON) or node sequence (CSV)",
    "itp": "Microsoft ITP job tables of ElasticFlow, 2021 (CSV, one file per cluster)",
    "openb": "Alibaba OpenB, 2023: pod list with GPU shares (CSV; node list with nodes)",
    "helios": "SenseTime Helios, 2020: job table, sequences of virtual clusters or their quotas by day (CSV)",
    "acme": "Shanghai AI Laboratory Acme, 2023: job tables of Seren and Kalos, or distributions (CSV)",
    "pai": "Alibaba PAI, 2020: task table with job and instance tables, or mini-batch times (CSV)",
    "dlrm": "Alibaba DLRM serving instances, 2025 (CSV)",
    "genai": "Alibaba GenAI serving gauges, 2026 (CSV under its own name)",
    "spot": "Alibaba spot GPU cluster, 2026: job list or node list (CSV)",
    "simulator": "job list of a simulator: job_id, submit_time, duration, num_gpus in seconds (CSV)",
    "miso": "MISO experiment, 2022: arrivals and run times of its jobs (two JSON files)",
    "azure-llm": "Azure LLM inference requests, 2023 (CSV; needs tz)",
    "supercloud": "MIT Supercloud Slurm accounting table with integer resources, 2021 (CSV)",
    "focus": "bill in FOCUS 1.0, 1.1 or 1.2 (CSV or Parquet, or a folder of parts)",
    "cur": "AWS Cost and Usage Report, legacy or 2.0 (CSV or Parquet, or a folder of parts)",
    "azure": (
        "Azure cost details, actual or amortised, of an Enterprise or Customer Agreement (CSV or Parquet, or a folder)"
    ),
    "gcp": "Google Cloud billing export, standard or detailed (lines of JSON or Parquet)",
    "slurm-states": "Slurm accounting without times: what jobs there were and how they ended",
    "slurm": "Slurm accounting: sacct --parsable2, with or without header, or sacct --json (alias: sacct)",
    OBJECTS: "Kubernetes dump: kubectl get pods,jobs,nodes -A -o json (or yaml), with Kueue and DRA (alias: kubectl)",
    "kube-state-metrics": (
        "pods and nodes of kube-state-metrics: its page, or saved responses of the Prometheus HTTP API (JSON)"
    ),
    NODES: (
        "node list: node, gpus, gpu_model (CSV), or scontrol show node, sinfo, slurm.conf, kubectl get nodes -o json"
    ),
    "changes": "log of layout changes, as written by the scripts of a change bundle (CSV)",
    "slurm-events": "Slurm's events of nodes: sacctmgr show event --parsable2, with start and end (needs tz)",
    "slurm-reservations": "Slurm's reservations: scontrol show reservation (needs tz)",
    "slurm-associations": "limits and shares of Slurm's accounts: sacctmgr show assoc --parsable2",
    "dcgm-exporter": (
        "text pages of exporters of GPUs (DCGM, AMD, Slurm jobs), or OpenMetrics (--origin if without times)"
    ),
    "dcgm-csv": "DCGM exporter readings in long form (CSV)",
    "node-csv": "one row per GPU and time with profiling fields, one file per node (CSV)",
    "prometheus": "saved answers of the Prometheus HTTP API (JSON)",
    "dcgmi-dmon": "dcgmi dmon (needs --origin)",
    "smi-transcript": "transcript of nvidia-smi commands with a heading each (its --query-gpu parts)",
    "smi-pmon": "nvidia-smi pmon: processes (needs --origin if without times)",
    "smi-dmon": "nvidia-smi dmon (needs --origin if without times)",
    "smi-apps": "nvidia-smi --query-compute-apps: processes (CSV; needs gpu)",
    "nvidia-smi": "nvidia-smi --query-gpu (CSV; needs tz, and columns if without header)",
}
"""Source → what its files are, in a line."""

_together = functools.partial(Form, whole_files=False)
"""A form of which the files of one call belong together."""


def _source(name: str, *forms: Form, by_metric: bool = False, in_blocks: bool = False) -> Source:
    return published(name, DESCRIPTIONS[name], *forms, by_metric=by_metric, in_blocks=in_blocks)


PUBLIC = (
    _source(
        "philly",
        Form("job table", "public.job_lists:PHILLY", TZ),
        Form("job log", "public.attempt_logs:read_philly_log", TZ),
        _together("node sequence", "public.usage_series:read_philly_nodes", TZ),
    ),
    _source("itp", Form("job table", "public.job_lists:ITP", ORIGIN)),
    _source(
        "openb",
        Form("pod list", "public.job_lists:OPENB", ORIGIN | {"nodes"}),
        _together("node list", "slurm.node_records:read_nodes", header=("sn", "gpu", "model")),
    ),
    _source(
        "helios",
        Form("job table", "public.job_lists:HELIOS", TZ),
        _together("sequence", "public.usage_series:read_helios_sequence", TZ),
        _together("quotas", "public.usage_series:read_helios_quotas"),
    ),
    _source(
        "acme",
        Form("job table", "public.job_lists:ACME"),
        _together("distribution", "public.usage_series:read_distributions"),
    ),
    _source(
        "pai",
        _together("tables", "public.attempt_logs:read_pai", ORIGIN),
        _together("mini-batch times", "public.usage_series:read_step_times"),
    ),
    _source("dlrm", Form("instances", "public.job_lists:DLRM", ORIGIN)),
    _source("genai", _together("gauges", "public.usage_series:read_genai")),
    _source(
        "spot",
        Form("job list", "public.job_lists:SPOT", ORIGIN),
        Form("node list", "slurm.node_records:read_nodes", header=("node_name", "gpu_capacity_num")),
    ),
    _source("simulator", Form("job list", "public.job_lists:SIMULATOR", ORIGIN)),
    _source("miso", _together("arrivals and run times", "public.attempt_logs:read_miso", ORIGIN)),
    _source("azure-llm", _together("requests", "public.usage_series:read_azure_llm", TZ)),
    _source("supercloud", Form("job table", "public.attempt_logs:read_supercloud")),
)

BILLS = (
    _source("focus", _together("charges", "bills.aws_and_focus_bills:read_focus")),
    _source("cur", _together("charges", "bills.aws_and_focus_bills:read_cur")),
    _source("azure", _together("charges", "bills.azure_and_gcp_bills:read_azure")),
    _source("gcp", _together("charges", "bills.azure_and_gcp_bills:read_gcp")),
)

SLURM = (
    _source("slurm-states", _together("states", "slurm.accounting:read_slurm_states")),
    _source(
        "slurm",
        Form("accounting", "slurm.accounting:read_slurm", frozenset({"tz", "nodes", "columns", "boards"})),
        in_blocks=True,
    ),
)

KUBERNETES = (
    _source(
        OBJECTS,
        # Pods of one file stand on the nodes of another.
        _together("dump", "kubernetes.cluster_reader:read_kubernetes", BOARDS),
    ),
    _source(
        "kube-state-metrics",
        _together("metrics", "kubernetes.state_metrics:read_state_metrics", BOARDS | ORIGIN),
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
    entry = "kubernetes.cluster_reader:read_kubernetes_nodes" if objects else "slurm.node_records:read_nodes"
    found: Dataset = load(entry)(paths, **options)
    return found


LISTS = (
    Source(
        NODES,
        DESCRIPTIONS[NODES],
        _read_nodes,
        Form("node list", "slurm.node_records:read_nodes").sniff,
        BOARDS | TZ,
        whole_files=lambda _: False,
    ),
)

CHANGES = (
    _source("changes", _together("log", "slurm.node_events:read_changes")),
    _source("slurm-events", _together("events", "slurm.node_events:read_slurm_events", TZ)),
    _source("slurm-reservations", _together("reservations", "slurm.node_events:read_slurm_reservations", TZ)),
    _source("slurm-associations", _together("associations", "slurm.accounting:read_slurm_associations")),
)

TELEMETRY = (
    _source("dcgm-exporter", _together("pages", "telemetry.monitor_logs:read_exporter", COUNTED), by_metric=True),
    _source(
        "dcgm-csv",
        _together("readings", "telemetry.monitor_logs:read_dcgm_csv", NODE | TZ),
        by_metric=True,
        in_blocks=True,
    ),
    _source("node-csv", _together("log", "telemetry.monitor_logs:read_node_csv", NODE | TZ), in_blocks=True),
    _source(
        "prometheus",
        _together("answers", "telemetry.prometheus:read_prometheus", NODE | QUERY),
        by_metric=True,
    ),
    _source("dcgmi-dmon", _together("table", "telemetry.monitor_logs:read_dcgmi_dmon", COUNTED)),
    _source("smi-transcript", _together("transcript", "telemetry.nvidia_smi:read_smi_transcript", NODE | TZ)),
    _source("smi-pmon", _together("table", "telemetry.monitor_logs:read_smi_pmon", COUNTED | TZ)),
    _source("smi-dmon", _together("table", "telemetry.monitor_logs:read_smi_dmon", COUNTED | TZ)),
    _source("smi-apps", _together("list", "telemetry.nvidia_smi:read_smi_apps", NODE | TZ | {"gpu"})),
    _source(
        "nvidia-smi",
        _together("log", "telemetry.nvidia_smi:read_smi_query", COUNTED | TZ | {"gpu", "columns"}),
        in_blocks=True,
    ),
)

_OURS = (*PUBLIC, *BILLS, *SLURM, *CHANGES, *LISTS, *KUBERNETES)
_SCHEDULERS = schedulers.sources(frozenset(source.name for source in (*_OURS, *TELEMETRY)))
SOURCES: dict[str, Source] = {source.name: source for source in (*_OURS, *_SCHEDULERS, *TELEMETRY)}
"""Name → source, in the order in which files are compared with them."""

JOB_SOURCES = frozenset(source.name for source in (*PUBLIC, *SLURM, *KUBERNETES, *_SCHEDULERS))
"""Sources that give lists of jobs."""


AUTO = "auto"
READABLE = "what sacct, scontrol, kubectl, Prometheus or nvidia-smi writes, a bill, a public trace or a job table"
ALIASES = {"sacct": "slurm", "kubectl": "kubernetes"}


def detect(path: str | Path, columns: Sequence[str] | None = None) -> str:
    r"""Name of the source that a file looks like, from its first few kilobytes.

    Parameters
    ----------
    path : str or Path
        File.
    columns : sequence of str, optional
        Fields of a file without a header: they stand for it.

    Raises
    ------
    TraceFormatError
        If it cannot be read or looks like none; the message says what it looks like, and what to run instead.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "jobs.csv"
    ...     _ = path.write_text("job_id,submission_time,duration,num_gpu\n")
    ...     detect(path)
    'itp'
    """
    lines = head(path)
    headed = [lines, *([separator.join(columns), *lines] for separator in ",|" if columns)]
    for source in SOURCES.values():
        if lines and any(map(source.sniff, headed if "columns" in source.options else headed[:1])):
            return NODES if source.name == OBJECTS and _is_list_of_nodes(path) else source.name
    _refuse_foreign(path, lines)
    got = repr(lines[0][:120]) if lines else "an empty file"
    todo = (
        "Name the source to see what it misses ('gpuplanner ingest --list' has them all; nvidia-smi without a header "
        f"needs its columns too), or write a job table: {JOB_TABLE}."
    )
    raise TraceFormatError(str(path), READABLE, got, todo)


def _refuse_foreign(path: str | Path, lines: Sequence[str]) -> None:
    """Refuse a file in a form that is known and not read, with the command that writes what is."""
    if (form := foreign_form(lines)) is not None:
        raise TraceFormatError(str(path), READABLE, f"what looks like {form[0]}", form[1])


def foreign_form(lines: Sequence[str]) -> tuple[str, str] | None:
    """What the first lines of a file look like that no source is, and what to run instead.

    Examples
    --------
    >>> foreign_form(["JobId=7 JobName=train"])[0], foreign_form(["JobID|State"]) is None
    ('scontrol show job', True)
    """
    text = "\n".join(lines)
    for form, pattern, todo in facts("foreign_forms").select("form", "pattern", "todo").iter_rows():
        match = re.search(pattern, text, re.MULTILINE)
        if match is not None:
            for name in ("sacct", "nodes", "kubectl"):
                todo = todo.replace(f"{{{name}}}", export_command(name))
            return form.format(**match.groupdict()), todo.replace("{job_table}", JOB_TABLE)
    return None


@contextmanager
def naming_foreign_forms(paths: Sequence[str | Path]) -> Iterator[None]:
    """Say of files that a reader refuses what they look like, where that is known."""
    try:
        yield
    except TraceFormatError as error:
        for path in paths:
            try:
                lines = head(path)
            except TraceFormatError:
                raise error from None
            _refuse_foreign(path, lines)
        raise


def read(
    source: str,
    paths: str | Path | Sequence[str | Path],
    **options: Any,  # noqa: ANN401 - of any reader
) -> Dataset:
    r"""Read files of one source.

    Parameters
    ----------
    source : str
        A name in :data:`SOURCES` (a unique beginning will do), ``"sacct"``, ``"kubectl"`` or ``"auto"``.
    paths : str, Path or sequence of these
        Files of the same source; their rows follow each other.
    **options
        What the files leave out; None is not given. ``tz``: zone of naive times. ``origin``: instant from which
        seconds are counted, or of the first row. ``columns``: names of the fields of a file without a header.
        ``nodes``: node list that belongs to the jobs. ``boards``: word for a board → board of the catalogue. Of
        telemetry also ``interval_s``: seconds between rows without times; ``node`` and ``gpu``: what all rows are of.

    Returns
    -------
    Dataset
        Tables of the one source, with rejects, quality report and provenance.

    Raises
    ------
    TraceFormatError
        If the source is unknown, the files are of different sources, an option means nothing anywhere, or a file
        cannot be read.

    Warns
    -----
    GpuPlannerWarning
        If an option means nothing for the source.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "cluster01.csv"
    ...     _ = path.write_text("job_id,submission_time,duration,num_gpu\na,0,7200,8\n")
    ...     read("auto", path)
    Dataset(source='itp', rows_in=1, rows_kept=1, rows_rejected=0, span_start='2021-03-04T00:00:00Z',
            span_end='2021-03-04T02:00:00Z', gpu_hours=16.0)
    """
    files = [paths] if isinstance(paths, (str, Path)) else list(paths)
    given = {name: value for name, value in options.items() if value is not None}
    chosen = SOURCES[name_of(source, files, given.get("columns"))]
    with naming_foreign_forms(files):
        return chosen.read(files, **useful(f"source {chosen.name!r}", given, chosen.options))


def name_of(source: str, files: Sequence[str | Path], columns: Sequence[str] | None = None) -> str:
    """Full name of a source; with ``"auto"``, that of the one source which all files look like.

    Examples
    --------
    >>> name_of("dcgm-exp", []), name_of("sacct", [])
    ('dcgm-exporter', 'slurm')
    """
    if source != AUTO:
        name = resolve(source, [AUTO, *SOURCES, *ALIASES], what="source", error=TraceFormatError)
        if name != AUTO:
            full = ALIASES.get(name, name)
            return NODES if full == OBJECTS and files and all(map(_is_list_of_nodes, files)) else full
    found = {str(path): detect(path, columns) for path in files}
    kinds = sorted(set(found.values()))
    if kinds == [OBJECTS, NODES] and all(map(looks_like_kubernetes, files)):
        return OBJECTS  # parts of one dump
    if len(kinds) != 1:
        got = examples([f"{path}: {kind}" for path, kind in found.items()]) if found else "no files"
        todo = "Read each source on its own, or name the source."
        raise TraceFormatError("source 'auto'", "files of one source", got, todo)
    return kinds[0]


def _is_list_of_nodes(path: str | Path) -> bool:
    """True for objects of Kubernetes that are nodes alone: they are a node list, by whichever name they come."""
    return looks_like_kubernetes(path) and bool(load("kubernetes.cluster_reader:is_nodes_alone")(path))
