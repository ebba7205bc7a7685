"""The sources that can be read, by name, and which of them a file looks like."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gpuplanner.errors import TraceFormatError, examples, message
from gpuplanner.names import resolve
from gpuplanner.traces.fields import Field
from gpuplanner.traces.itp import COLUMN_MAP as ITP_COLUMNS
from gpuplanner.traces.itp import read_itp
from gpuplanner.traces.openb import read_openb
from gpuplanner.traces.philly import COLUMN_MAP as PHILLY_COLUMNS
from gpuplanner.traces.philly import read_philly
from gpuplanner.traces.slurm import read_slurm
from gpuplanner.traces.slurm_words import known_fields
from gpuplanner.traces.textfile import head
from gpuplanner.traces.trace import Trace

AUTO = "auto"
ALIASES = {"sacct": "slurm"}


@dataclass(frozen=True)
class Source:
    """A kind of file that can be read.

    Attributes
    ----------
    name : str
        What the user types.
    description : str
        One line.
    read : callable
        Reads paths; takes the keyword arguments in `options`.
    sniff : callable
        True if the first lines of a file look like this source.
    options : frozenset of str
        Which of ``tz``, ``origin`` and ``nodes`` mean something here.
    """

    name: str
    description: str
    read: Callable[..., Trace]
    sniff: Callable[[Sequence[str]], bool]
    options: frozenset[str]


def _header_has(lines: Sequence[str], names: Iterable[str], separator: str = ",") -> bool:
    header = {name.strip().strip('"').casefold() for name in lines[0].split(separator)}
    return {name.casefold() for name in names} <= header


def _needed(columns: Mapping[str, Field]) -> list[str]:
    return [name for name, field in columns.items() if not field.optional]


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "philly",
            "Microsoft Philly job table, 2017 (CSV)",
            read_philly,
            lambda lines: _header_has(lines, _needed(PHILLY_COLUMNS)),
            frozenset({"tz"}),
        ),
        Source(
            "itp",
            "Microsoft ITP job tables of ElasticFlow, 2021 (CSV, one file per cluster)",
            read_itp,
            lambda lines: _header_has(lines, _needed(ITP_COLUMNS)),
            frozenset({"origin"}),
        ),
        Source(
            "openb",
            "Alibaba OpenB pod list with GPU shares, 2023 (CSV; node list with nodes)",
            read_openb,
            lambda lines: _header_has(lines, ["name", "num_gpu", "gpu_milli"]),
            frozenset({"origin", "nodes"}),
        ),
        Source(
            "slurm",
            "Slurm accounting: sacct --parsable2, with or without header (alias: sacct)",
            read_slurm,
            lambda lines: _header_has(lines, ["JobID", "State"], "|") or known_fields(lines) is not None,
            frozenset({"tz", "nodes"}),
        ),
    )
}
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
) -> Trace:
    r"""Read files of one source into a trace.

    Parameters
    ----------
    source : str
        A name in :data:`SOURCES` (a unique beginning will do), ``"sacct"``, or ``"auto"``.
    paths : str, Path or sequence of these
        Files of the same source; their rows follow each other.
    nodes : str or Path, optional
        Node list (sources ``openb`` and ``slurm``).
    tz : str, optional
        Zone of naive times (``philly``, ``slurm``).
    origin : datetime or str, optional
        Instant from which seconds are counted (``itp``, ``openb``).

    Returns
    -------
    Trace
        Jobs, rejects, quality report and provenance.

    Raises
    ------
    TraceFormatError
        If the source is unknown, the files are of different sources, an option means nothing for the
        source, or a file cannot be read.

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
    chosen = SOURCES[_name(source, files)]
    given: dict[str, Any] = {"nodes": nodes, "tz": tz, "origin": origin}
    options = {name: value for name, value in given.items() if value is not None}
    strange = sorted(options.keys() - chosen.options)
    if strange:
        text = message(
            f"source {chosen.name!r}",
            f"no options but {', '.join(sorted(chosen.options))}",
            ", ".join(strange),
            "Leave it out: it would change nothing.",
        )
        raise TraceFormatError(text)
    return chosen.read(files, **options)


def _name(source: str, files: Sequence[str | Path]) -> str:
    """Resolve the name of a source; with "auto", all files must look like the same one."""
    if source != AUTO:
        name = resolve(source, [AUTO, *SOURCES, *ALIASES], what="source", error=TraceFormatError)
        if name != AUTO:
            return ALIASES.get(name, name)
    found = {str(path): detect(path) for path in files}
    names = sorted(set(found.values()))
    if len(names) != 1:
        got = examples([f"{path}: {name}" for path, name in found.items()]) if found else "no files"
        text = message(
            "source 'auto'", "files of one source", got, "Read each source on its own, or name the source."
        )
        raise TraceFormatError(text)
    return names[0]
