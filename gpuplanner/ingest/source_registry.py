"""The registry of all sources, and detection of the source of a file.

Within each family the more specific kinds of files come first. Readers are named here and imported on use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuplanner.core.errors import TraceFormatError, examples, resolve_name
from gpuplanner.core.serialization import read_packaged_rows
from gpuplanner.hardware.catalog import export_command, facts
from gpuplanner.ingest import schedulers
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.gpu_lists_of_nodes import is_gpu_list
from gpuplanner.ingest.schedulers.generic_job_table import JOB_TABLE_COLUMNS_TEXT
from gpuplanner.ingest.source_definition import Source, SourceForm, define_source, load_entry, select_known_options
from gpuplanner.ingest.text_files import read_head

NODES_SOURCE = "nodes"
"""Name of the source of node lists, as Slurm, Kubernetes or gpuplanner writes them."""
KUBERNETES_SOURCE = "kubernetes"
"""Name of the source of dumps of Kubernetes objects."""


def _define_sources(family: str) -> tuple[Source, ...]:
    """Define the sources of a family from ``sources.csv``, which has a row for each of their kinds of files.

    ``joint`` files of one import are read together, because none is a complete list of jobs.
    """
    rows_by_source: dict[str, list[dict[str, str]]] = {}
    for row in read_packaged_rows("gpuplanner.ingest", "sources.csv"):
        if row["family"] == family:
            rows_by_source.setdefault(row["source"], []).append(row)
    return tuple(_define_source(name, rows) for name, rows in rows_by_source.items())


def _define_source(name: str, rows: Sequence[dict[str, str]]) -> Source:
    """Define a source from the rows of its kinds of files; the first one describes it."""
    forms = [
        SourceForm(
            row["content"],
            row["entry"],
            options=frozenset(row["options"].split()),
            whole_files=row["joint"] != "yes",
            header=tuple(row["header"].split()),
        )
        for row in rows
    ]
    by_metric, in_blocks = (rows[0][column] == "yes" for column in ("by_metric", "in_blocks"))
    return define_source(name, rows[0]["description"], *forms, by_metric=by_metric, in_blocks=in_blocks)


PUBLIC_SOURCES = _define_sources("public")
"""Sources that are public traces, such as Philly."""

CLOUD_BILL_SOURCES = _define_sources("bill")
"""Sources that are bills of clouds, such as FOCUS."""

SLURM_SOURCES = _define_sources("slurm")
"""Sources that are output of Slurm accounting."""

KUBERNETES_SOURCES = _define_sources("kubernetes")
"""Sources that are output of Kubernetes and its metrics; pods of one file may stand on the nodes of another."""

TELEMETRY_READERS = _define_sources("telemetry")
"""Sources of GPU telemetry, such as DCGM and nvidia-smi."""


def looks_like_kubernetes(path: str | Path) -> bool:
    """Whether a file looks like Kubernetes objects."""
    return KUBERNETES_SOURCES[0].sniff(read_head(path) or [""])


def _list_kind(path: str | Path) -> str | None:
    """Return the kind of a node list whose files have one node each; None for the others."""
    return "of one node" if is_gpu_list(read_head(path)) else None


def _read_node_lists(paths: Sequence[str | Path], **options: object) -> Dataset:
    """Read node lists in the form of Slurm, of gpuplanner or of Kubernetes."""
    if not all(_list_kind(path) for path in paths):
        options.pop("nodes", None)  # they have their GPUs themselves
    are_kubernetes = bool(paths) and all(map(looks_like_kubernetes, paths))
    if are_kubernetes:
        options.pop("tz", None)  # its times are in UTC
    entry = "kubernetes.cluster_reader:read_kubernetes_nodes" if are_kubernetes else "slurm.node_records:read_nodes"
    dataset: Dataset = load_entry(entry)(paths, **options)
    return dataset


NODE_LIST_SOURCES = (
    Source(
        NODES_SOURCE,
        "node list: node, gpus, gpu_model (CSV), scontrol show node, sinfo, slurm.conf, kubectl get nodes -o json; by "
        "node, in files such as n1-2026-11-02.txt: nvidia-smi -L, nvidia-mig-parted export",
        _read_node_lists,
        SourceForm("node list", "slurm.node_records:read_nodes").sniff,
        frozenset({"boards", "tz", "nodes"}),
        kind=_list_kind,
        whole_files=lambda _: False,
    ),
)
"""Sources that list the nodes of a cluster and their GPUs."""

_BUILT_IN_SOURCES = (
    *PUBLIC_SOURCES,
    *CLOUD_BILL_SOURCES,
    *SLURM_SOURCES,
    *_define_sources("change"),
    *NODE_LIST_SOURCES,
    *KUBERNETES_SOURCES,
    *_define_sources("serving"),
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
