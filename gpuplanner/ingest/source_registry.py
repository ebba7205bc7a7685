"""The registry of all sources, and detection of the source of a file.

Within each family the more specific kinds of files come first. Readers are named here and imported on use.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuplanner.core.errors import TraceFormatError, examples, resolve_name
from gpuplanner.hardware.catalog import export_command, facts
from gpuplanner.ingest import schedulers
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.schedulers.generic_job_table import JOB_TABLE_COLUMNS_TEXT
from gpuplanner.ingest.source_definition import Source, SourceForm, define_source, load_entry, select_known_options
from gpuplanner.ingest.text_files import read_head

TZ_OPTION_NAMES = frozenset({"tz"})
"""Set with the name of the reader option for the time zone of sources with naive times."""
ORIGIN_OPTION_NAMES = frozenset({"origin"})
"""Set with the name of the reader option for the instant from which a source counts seconds."""
BOARDS_OPTION_NAMES = frozenset({"boards"})
"""Set with the name of the reader option that maps the device names of a source to GPU models."""
NODE_OPTION_NAMES = frozenset({"node"})
"""Set with the name of the reader option for the node of telemetry that does not name it."""
QUERY_OPTION_NAMES = frozenset({"query"})
"""Set with the name of the reader option for the query of Prometheus responses that do not name it."""
UNTIMED_OPTION_NAMES = frozenset({"node", "origin", "interval_s"})
"""Names of the reader options of telemetry without times: node, first instant, and time between rows [s]."""

NODES_SOURCE = "nodes"
"""Name of the source of node lists, as Slurm, Kubernetes or gpuplanner writes them."""
KUBERNETES_SOURCE = "kubernetes"
"""Name of the source of dumps of Kubernetes objects."""

DESCRIPTION_BY_SOURCE = {
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
    "azure-llm": "Azure LLM inference requests, 2023 (CSV; needs tz) and 2024",
    "burstgpt": "BurstGPT requests to ChatGPT and GPT-4, 2023 (CSV)",
    "requests": "requests to models with their tokens (CSV: time, model, team, prompt_tokens, generated_tokens)",
    "supercloud": "MIT Supercloud Slurm accounting table with integer resources, 2021 (CSV)",
    "focus": "bill in FOCUS 1.0, 1.1 or 1.2 (CSV or Parquet, or a folder of parts)",
    "cur": "AWS Cost and Usage Report, legacy or 2.0 (CSV or Parquet, or a folder of parts)",
    "azure": (
        "Azure cost details, actual or amortised, of an Enterprise or Customer Agreement (CSV or Parquet, or a folder)"
    ),
    "gcp": "Google Cloud billing export, standard or detailed (lines of JSON or Parquet)",
    "slurm-states": "Slurm accounting without times: what jobs there were and how they ended",
    "slurm": "Slurm accounting: sacct --parsable2, with or without header, or sacct --json (alias: sacct)",
    KUBERNETES_SOURCE: (
        "Kubernetes dump: kubectl get pods,jobs,nodes -A -o json (or yaml), with Kueue and DRA (alias: kubectl)"
    ),
    "kube-state-metrics": (
        "pods and nodes of kube-state-metrics: its page, or saved responses of the Prometheus HTTP API (JSON)"
    ),
    NODES_SOURCE: (
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
    "serving": "metrics of vLLM and SGLang in answers of Prometheus (JSON)",
    "prometheus": "saved answers of the Prometheus HTTP API (JSON)",
    "dcgmi-dmon": "dcgmi dmon (needs --origin)",
    "smi-transcript": "transcript of nvidia-smi commands with a heading each (its --query-gpu parts)",
    "smi-pmon": "nvidia-smi pmon: processes (needs --origin if without times)",
    "smi-dmon": "nvidia-smi dmon (needs --origin if without times)",
    "smi-apps": "nvidia-smi --query-compute-apps: processes (CSV; needs gpu)",
    "nvidia-smi": "nvidia-smi --query-gpu (CSV; needs tz, and columns if without header)",
}
"""Source → what its files are, in one line."""

_make_joint_form = functools.partial(SourceForm, whole_files=False)
"""Make a :class:`SourceForm` whose files of one import are read together, because none is a complete list of jobs."""


def _define(name: str, *forms: SourceForm, by_metric: bool = False, in_blocks: bool = False) -> Source:
    """Define a source with its description in :data:`DESCRIPTION_BY_SOURCE`."""
    return define_source(name, DESCRIPTION_BY_SOURCE[name], *forms, by_metric=by_metric, in_blocks=in_blocks)


PUBLIC_SOURCES = (
    _define(
        "philly",
        SourceForm("job table", "public.job_lists:PHILLY_TRACE", TZ_OPTION_NAMES),
        SourceForm("job log", "public.philly_miso_pai_supercloud_traces:read_philly_log", TZ_OPTION_NAMES),
        _make_joint_form("node sequence", "public.usage_and_request_series:read_philly_nodes", TZ_OPTION_NAMES),
    ),
    _define("itp", SourceForm("job table", "public.job_lists:ITP_TRACE", ORIGIN_OPTION_NAMES)),
    _define(
        "openb",
        SourceForm("pod list", "public.job_lists:OPENB_TRACE", ORIGIN_OPTION_NAMES | {"nodes"}),
        _make_joint_form("node list", "slurm.node_records:read_nodes", header=("sn", "gpu", "model")),
    ),
    _define(
        "helios",
        SourceForm("job table", "public.job_lists:HELIOS_TRACE", TZ_OPTION_NAMES),
        _make_joint_form("sequence", "public.usage_and_request_series:read_helios_sequence", TZ_OPTION_NAMES),
        _make_joint_form("quotas", "public.usage_and_request_series:read_helios_quotas"),
    ),
    _define(
        "acme",
        SourceForm("job table", "public.job_lists:ACME_TRACE"),
        _make_joint_form("distribution", "public.usage_and_request_series:read_distributions"),
    ),
    _define(
        "pai",
        _make_joint_form("tables", "public.philly_miso_pai_supercloud_traces:read_pai", ORIGIN_OPTION_NAMES),
        _make_joint_form("mini-batch times", "public.usage_and_request_series:read_step_times"),
    ),
    _define("dlrm", SourceForm("instances", "public.job_lists:DLRM_TRACE", ORIGIN_OPTION_NAMES)),
    _define("genai", _make_joint_form("gauges", "public.usage_and_request_series:read_genai")),
    _define(
        "spot",
        SourceForm("job list", "public.job_lists:SPOT_TRACE", ORIGIN_OPTION_NAMES),
        SourceForm("node list", "slurm.node_records:read_nodes", header=("node_name", "gpu_capacity_num")),
    ),
    _define("simulator", SourceForm("job list", "public.job_lists:SIMULATOR_TRACE", ORIGIN_OPTION_NAMES)),
    _define(
        "miso",
        _make_joint_form(
            "arrivals and run times", "public.philly_miso_pai_supercloud_traces:read_miso", ORIGIN_OPTION_NAMES
        ),
    ),
    _define("azure-llm", _make_joint_form("requests", "public.request_traces:read_azure_llm", TZ_OPTION_NAMES)),
    _define("burstgpt", _make_joint_form("requests", "public.request_traces:read_burstgpt", ORIGIN_OPTION_NAMES)),
    _define("requests", _make_joint_form("requests", "public.request_traces:read_requests")),
    _define("supercloud", SourceForm("job table", "public.philly_miso_pai_supercloud_traces:read_supercloud")),
)
"""Sources that are public traces, such as Philly."""

CLOUD_BILL_SOURCES = (
    _define("focus", _make_joint_form("charges", "bills.aws_and_focus_bills:read_focus")),
    _define("cur", _make_joint_form("charges", "bills.aws_and_focus_bills:read_cur")),
    _define("azure", _make_joint_form("charges", "bills.azure_and_gcp_bills:read_azure")),
    _define("gcp", _make_joint_form("charges", "bills.azure_and_gcp_bills:read_gcp")),
)
"""Sources that are bills of clouds, such as FOCUS."""

SLURM_SOURCES = (
    _define("slurm-states", _make_joint_form("states", "slurm.accounting:read_slurm_states")),
    _define(
        "slurm",
        SourceForm("accounting", "slurm.accounting:read_slurm", frozenset({"tz", "nodes", "columns", "boards"})),
        in_blocks=True,
    ),
)
"""Sources that are output of Slurm accounting."""

KUBERNETES_SOURCES = (
    _define(
        KUBERNETES_SOURCE,
        # Pods of one file stand on the nodes of another.
        _make_joint_form("dump", "kubernetes.cluster_reader:read_kubernetes", BOARDS_OPTION_NAMES),
    ),
    _define(
        "kube-state-metrics",
        _make_joint_form(
            "metrics", "kubernetes.state_metrics:read_state_metrics", BOARDS_OPTION_NAMES | ORIGIN_OPTION_NAMES
        ),
    ),
)
"""Sources that are output of Kubernetes and its metrics."""


def looks_like_kubernetes(path: str | Path) -> bool:
    """Whether a file looks like Kubernetes objects."""
    return KUBERNETES_SOURCES[0].sniff(read_head(path) or [""])


def _read_node_lists(paths: Sequence[str | Path], **options: object) -> Dataset:
    """Read node lists in the form of Slurm, of gpuplanner or of Kubernetes."""
    are_kubernetes = bool(paths) and all(map(looks_like_kubernetes, paths))
    if are_kubernetes:
        options.pop("tz", None)  # its times are in UTC
    entry = "kubernetes.cluster_reader:read_kubernetes_nodes" if are_kubernetes else "slurm.node_records:read_nodes"
    dataset: Dataset = load_entry(entry)(paths, **options)
    return dataset


NODE_LIST_SOURCES = (
    Source(
        NODES_SOURCE,
        DESCRIPTION_BY_SOURCE[NODES_SOURCE],
        _read_node_lists,
        SourceForm("node list", "slurm.node_records:read_nodes").sniff,
        BOARDS_OPTION_NAMES | TZ_OPTION_NAMES,
        whole_files=lambda _: False,
    ),
)
"""Sources that list the nodes of a cluster and their GPUs."""

CHANGE_SOURCES = (
    _define("changes", _make_joint_form("log", "slurm.node_events:read_changes")),
    _define("slurm-events", _make_joint_form("events", "slurm.node_events:read_slurm_events", TZ_OPTION_NAMES)),
    _define(
        "slurm-reservations",
        _make_joint_form("reservations", "slurm.node_events:read_slurm_reservations", TZ_OPTION_NAMES),
    ),
    _define("slurm-associations", _make_joint_form("associations", "slurm.accounting:read_slurm_associations")),
)
"""Sources that log changes of nodes, reservations and quotas."""

SERVING_SOURCES = (_define("serving", _make_joint_form("answers", "telemetry.serving_metrics:read_serving")),)
"""Sources that are metrics of language-model servers."""

TELEMETRY_READERS = (
    _define(
        "dcgm-exporter",
        _make_joint_form("pages", "telemetry.monitor_logs:read_exporter", UNTIMED_OPTION_NAMES),
        by_metric=True,
    ),
    _define(
        "dcgm-csv",
        _make_joint_form("readings", "telemetry.monitor_logs:read_dcgm_csv", NODE_OPTION_NAMES | TZ_OPTION_NAMES),
        by_metric=True,
        in_blocks=True,
    ),
    _define(
        "node-csv",
        _make_joint_form("log", "telemetry.monitor_logs:read_node_csv", NODE_OPTION_NAMES | TZ_OPTION_NAMES),
        in_blocks=True,
    ),
    _define(
        "prometheus",
        _make_joint_form("answers", "telemetry.prometheus:read_prometheus", NODE_OPTION_NAMES | QUERY_OPTION_NAMES),
        by_metric=True,
    ),
    _define("dcgmi-dmon", _make_joint_form("table", "telemetry.monitor_logs:read_dcgmi_dmon", UNTIMED_OPTION_NAMES)),
    _define(
        "smi-transcript",
        _make_joint_form("transcript", "telemetry.nvidia_smi:read_smi_transcript", NODE_OPTION_NAMES | TZ_OPTION_NAMES),
    ),
    _define(
        "smi-pmon",
        _make_joint_form("table", "telemetry.monitor_logs:read_smi_pmon", UNTIMED_OPTION_NAMES | TZ_OPTION_NAMES),
    ),
    _define(
        "smi-dmon",
        _make_joint_form("table", "telemetry.monitor_logs:read_smi_dmon", UNTIMED_OPTION_NAMES | TZ_OPTION_NAMES),
    ),
    _define(
        "smi-apps",
        _make_joint_form("list", "telemetry.nvidia_smi:read_smi_apps", NODE_OPTION_NAMES | TZ_OPTION_NAMES | {"gpu"}),
    ),
    _define(
        "nvidia-smi",
        _make_joint_form(
            "log", "telemetry.nvidia_smi:read_smi_query", UNTIMED_OPTION_NAMES | TZ_OPTION_NAMES | {"gpu", "columns"}
        ),
        in_blocks=True,
    ),
)
"""Sources of GPU telemetry, such as DCGM and nvidia-smi."""

_BUILT_IN_SOURCES = (
    *PUBLIC_SOURCES,
    *CLOUD_BILL_SOURCES,
    *SLURM_SOURCES,
    *CHANGE_SOURCES,
    *NODE_LIST_SOURCES,
    *KUBERNETES_SOURCES,
    *SERVING_SOURCES,
)
"""Sources that this module defines, without telemetry."""
_SCHEDULER_SOURCES = schedulers.sources(frozenset(source.name for source in (*_BUILT_IN_SOURCES, *TELEMETRY_READERS)))
"""Sources of schedulers other than Slurm and Kubernetes, and of plugins."""
SOURCES: dict[str, Source] = {
    source.name: source for source in (*_BUILT_IN_SOURCES, *_SCHEDULER_SOURCES, *TELEMETRY_READERS)
}
"""Name → source, for all sources, in the order in which a file is tested for them."""

JOB_SOURCE_NAMES = frozenset(
    source.name for source in (*PUBLIC_SOURCES, *SLURM_SOURCES, *KUBERNETES_SOURCES, *_SCHEDULER_SOURCES)
)
"""Names of the sources that give lists of jobs."""


AUTO_SOURCE = "auto"
"""Name that a user gives to have the source of each file detected."""
READABLE_FILES_TEXT = (
    "what sacct, scontrol, kubectl, Prometheus or nvidia-smi writes, a bill, a public trace or a job table"
)
"""Text in the error message for an unrecognised file: the files that can be read."""
SOURCE_ALIASES = {"sacct": "slurm", "kubectl": "kubernetes"}
"""Other name of a source, the program that writes its files → name of the source."""


def detect_source(path: str | Path, columns: Sequence[str] | None = None) -> str:
    r"""Detect the source of a file from its first few kilobytes.

    Parameters
    ----------
    path : str or Path
        File.
    columns : sequence of str, optional
        Fields of a file without a header.

    Returns
    -------
    str
        Name of the source.

    Raises
    ------
    TraceFormatError
        If the file cannot be read or is of no known source; the message says what it looks like, and what to run.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "jobs.csv"
    ...     _ = path.write_text("job_id,submission_time,duration,num_gpu\n")
    ...     detect_source(path)
    'itp'
    """
    lines = read_head(path)
    candidate_lines = [lines, *([separator.join(columns), *lines] for separator in ",|" if columns)]
    for source in SOURCES.values():
        if lines and any(map(source.sniff, candidate_lines if "columns" in source.options else candidate_lines[:1])):
            return NODES_SOURCE if source.name == KUBERNETES_SOURCE and _is_list_of_nodes(path) else source.name
    _reject_foreign_form(path, lines)
    got = repr(lines[0][:120]) if lines else "an empty file"
    todo = (
        "Run 'gpuplanner ingest SOURCE FILE' to see what a source misses ('gpuplanner ingest --list' has them all; "
        f"nvidia-smi without a header needs its columns too), or write a job table: {JOB_TABLE_COLUMNS_TEXT}."
    )
    raise TraceFormatError(str(path), READABLE_FILES_TEXT, got, todo)


def _reject_foreign_form(path: str | Path, lines: Sequence[str]) -> None:
    """Refuse a file in a known but unsupported format, with the command that writes a supported one."""
    if (form := find_foreign_form(lines)) is not None:
        raise TraceFormatError(str(path), READABLE_FILES_TEXT, f"what looks like {form[0]}", form[1])


def find_foreign_form(lines: Sequence[str]) -> tuple[str, str] | None:
    """Return the known unsupported format of a file's first lines, and the command to run instead; None if unknown.

    Examples
    --------
    >>> find_foreign_form(["JobId=7 JobName=train"])[0], find_foreign_form(["JobID|State"]) is None
    ('scontrol show job', True)
    """
    text = "\n".join(lines)
    for form, pattern, todo in facts("foreign_forms").select("form", "pattern", "todo").iter_rows():
        match = re.search(pattern, text, re.MULTILINE)
        if match is not None:
            for name in ("sacct", "nodes", "kubectl"):
                todo = todo.replace(f"{{{name}}}", export_command(name))
            return form.format(**match.groupdict()), todo.replace("{job_table}", JOB_TABLE_COLUMNS_TEXT)
    return None


@contextmanager
def explain_foreign_forms(paths: Sequence[str | Path]) -> Iterator[None]:
    """Replace the error of a reader by one that names the unsupported format of its files, where it is known."""
    try:
        yield
    except TraceFormatError as error:
        for path in paths:
            try:
                lines = read_head(path)
            except TraceFormatError:
                raise error from None
            _reject_foreign_form(path, lines)
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
        What the files leave out; None is ignored. ``tz``: zone of naive times. ``origin``: instant from which
        seconds are counted, or of the first row. ``columns``: names of the fields of a file without a header.
        ``nodes``: node list of the same cluster. ``boards``: word of the source → GPU model. Of telemetry also
        ``interval_s``: time between rows without times [s]; ``node`` and ``gpu``: node and GPU of all rows.

    Returns
    -------
    Dataset
        Tables of the source, with rejects, quality report and provenance.

    Raises
    ------
    TraceFormatError
        If the source is unknown, the files are of different sources, an option is known to no source, or a file cannot
        be read.

    Warns
    -----
    GpuPlannerWarning
        If an option does not apply to the source.

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
    chosen = SOURCES[resolve_source_name(source, files, given.get("columns"))]
    with explain_foreign_forms(files):
        return chosen.read(files, **select_known_options(f"source {chosen.name!r}", given, chosen.options))


def resolve_source_name(source: str, files: Sequence[str | Path], columns: Sequence[str] | None = None) -> str:
    """Return the full name of a source; for ``"auto"``, of the one source that all files look like.

    Examples
    --------
    >>> resolve_source_name("dcgm-exp", []), resolve_source_name("sacct", [])
    ('dcgm-exporter', 'slurm')
    """
    if source != AUTO_SOURCE:
        name = resolve_name(source, [AUTO_SOURCE, *SOURCES, *SOURCE_ALIASES], subject="source", error=TraceFormatError)
        if name != AUTO_SOURCE:
            full = SOURCE_ALIASES.get(name, name)
            return NODES_SOURCE if full == KUBERNETES_SOURCE and files and all(map(_is_list_of_nodes, files)) else full
    sources_by_path = {str(path): detect_source(path, columns) for path in files}
    distinct_sources = sorted(set(sources_by_path.values()))
    if distinct_sources == [KUBERNETES_SOURCE, NODES_SOURCE] and all(map(looks_like_kubernetes, files)):
        return KUBERNETES_SOURCE  # parts of one dump
    if len(distinct_sources) != 1:
        got = examples([f"{path}: {kind}" for path, kind in sources_by_path.items()]) if sources_by_path else "no files"
        todo = "Read each source on its own, or name the source."
        raise TraceFormatError("source 'auto'", "files of one source", got, todo)
    return distinct_sources[0]


def _is_list_of_nodes(path: str | Path) -> bool:
    """Whether Kubernetes objects are nodes only, so that they are a node list."""
    return looks_like_kubernetes(path) and bool(load_entry("kubernetes.cluster_reader:has_only_nodes")(path))
