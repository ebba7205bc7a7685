"""The sources that can be read, by name, and which of them a file looks like."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuplanner.catalog.loader import export_command, facts
from gpuplanner.errors import TraceFormatError, examples, message
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.lines.text_file import head
from gpuplanner.inbox.core.source import load, useful
from gpuplanner.inbox.schedulers.job_table import JOB_TABLE
from gpuplanner.inbox.sources import NODES, OBJECTS, SOURCES, looks_like_kubernetes
from gpuplanner.names import resolve

AUTO = "auto"
READABLE = (
    "what sacct, scontrol, kubectl, Prometheus or nvidia-smi writes, a bill, a public trace or a job table"
)
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
    raise TraceFormatError(message(str(path), READABLE, got, todo))


def _refuse_foreign(path: str | Path, lines: Sequence[str]) -> None:
    """Refuse a file in a form that is known and not read, with the command that writes what is."""
    found = foreign_form(lines)
    if found is not None:
        form, todo = found
        raise TraceFormatError(message(str(path), READABLE, f"what looks like {form}", todo))


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
        raise TraceFormatError(message("source 'auto'", "files of one source", got, todo))
    return kinds[0]


def _is_list_of_nodes(path: str | Path) -> bool:
    """True for objects of Kubernetes that are nodes alone: they are a node list, by whichever name they come."""
    return looks_like_kubernetes(path) and bool(load("kubernetes.reader:is_nodes_alone")(path))
