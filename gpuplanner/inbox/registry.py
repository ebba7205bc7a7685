"""The sources that can be read, by name, and which of them a file looks like."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpuplanner.errors import TraceFormatError, examples, message
from gpuplanner.inbox.bills.sources import BILLS
from gpuplanner.inbox.core.reading import Reading
from gpuplanner.inbox.core.source import Source, useful
from gpuplanner.inbox.core.text_file import head
from gpuplanner.inbox.core.trace import Trace
from gpuplanner.inbox.kubernetes.sources import KUBERNETES
from gpuplanner.inbox.public.sources import PUBLIC
from gpuplanner.inbox.slurm.sources import SLURM
from gpuplanner.names import resolve

AUTO = "auto"
ALIASES = {"sacct": "slurm", "kubectl": "kubernetes"}

SOURCES: dict[str, Source] = {source.name: source for source in (*PUBLIC, *BILLS, *SLURM, *KUBERNETES)}
"""Name → source."""


def detect(path: str | Path) -> str:
    r"""Name of the source that a file looks like, from its first few kilobytes.

    Raises
    ------
    TraceFormatError
        If it cannot be read or looks like none; the message lists the sources.

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
    for source in SOURCES.values():
        if lines and source.sniff(lines):
            return source.name
    text = message(
        str(path),
        f"the first lines of one of the sources {', '.join(SOURCES)}",
        repr(lines[0][:120]) if lines else "an empty file",
        "If a column was renamed, name the source to see which.",
    )
    raise TraceFormatError(text)


def read(
    source: str,
    paths: str | Path | Sequence[str | Path],
    *,
    nodes: str | Path | None = None,
    tz: str | None = None,
    origin: datetime | str | None = None,
    columns: Sequence[str] | None = None,
    boards: Mapping[str, str] | None = None,
) -> Trace | Reading:
    r"""Read files of one source into a trace.

    Parameters
    ----------
    source : str
        A name in :data:`SOURCES` (a unique beginning will do), ``"sacct"``, or ``"auto"``.
    paths : str, Path or sequence of these
        Files of the same source; their rows follow each other.
    nodes : str or Path, optional
        Node list that belongs to the jobs (``openb``, ``slurm``).
    tz : str, optional
        Zone of naive times (``philly``, ``helios``, ``azure-llm``, ``slurm``).
    origin : datetime or str, optional
        Instant from which seconds are counted (``itp``, ``openb``, ``pai``, ``dlrm``, ``spot``, ``simulator``).
    columns : sequence of str, optional
        Names of the fields of a file without a header line (``slurm``).
    boards : mapping of str to str, optional
        Word for a board → board of the catalogue, where the word does not decide it (``slurm``, ``kubernetes``,
        ``nodes``).

    Returns
    -------
    Trace or Reading
        Jobs, or rows of another table, with rejects, quality report and provenance.

    Raises
    ------
    TraceFormatError
        If the source is unknown, the files are of different sources, or a file cannot be read.

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
    Trace(source='itp', rows_in=1, rows_kept=1, rows_rejected=0, span_start='2021-03-04T00:00:00Z',
          span_end='2021-03-04T02:00:00Z', gpu_hours=16.0)
    """
    files = [paths] if isinstance(paths, (str, Path)) else list(paths)
    chosen = SOURCES[name_of(source, files, SOURCES, detect, aliases=ALIASES)]
    given: dict[str, Any] = {
        "nodes": nodes,
        "tz": tz,
        "origin": origin,
        "columns": columns,
        "boards": boards or None,
    }
    options = {name: value for name, value in given.items() if value is not None}
    return chosen.read(files, **useful(f"source {chosen.name!r}", options, chosen.options))


def name_of(
    source: str,
    files: Sequence[str | Path],
    names: Collection[str],
    detect: Callable[[str | Path], str],
    *,
    aliases: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Full name of a source; with ``"auto"``, that of the one source which all files look like.

    Parameters
    ----------
    source : str
        What the user typed: a name, a unique beginning of one, an alias or ``"auto"``.
    files : sequence of str or Path
        Files to look into for ``"auto"``.
    names : collection of str
        Names that there are.
    detect : callable
        Name of the source that a file looks like.
    aliases : mapping of str to str
        Other words → names.

    Raises
    ------
    TraceFormatError
        If the name is unknown, or the files are of none or of different sources.
    """
    if source != AUTO:
        name = resolve(source, [AUTO, *names, *aliases], what="source", error=TraceFormatError)
        if name != AUTO:
            return aliases.get(name, name)
    found = {str(path): detect(path) for path in files}
    kinds = sorted(set(found.values()))
    if len(kinds) != 1:
        got = examples([f"{path}: {kind}" for path, kind in found.items()]) if found else "no files"
        todo = "Read each source on its own, or name the source."
        raise TraceFormatError(message("source 'auto'", "files of one source", got, todo))
    return kinds[0]
