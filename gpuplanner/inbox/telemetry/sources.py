"""The sources of telemetry that can be read, by name, and which of them a file looks like."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.inbox.core.parquet_parts import write_table
from gpuplanner.inbox.core.source import useful
from gpuplanner.inbox.core.store import as_read
from gpuplanner.inbox.core.text_file import head
from gpuplanner.inbox.registry import ALIASES as TRACE_ALIASES
from gpuplanner.inbox.registry import AUTO, name_of
from gpuplanner.inbox.registry import SOURCES as TRACES
from gpuplanner.inbox.telemetry.csv_logs import READING_COLUMNS, read_dcgm_csv, read_node_csv
from gpuplanner.inbox.telemetry.exporter import read_exporter
from gpuplanner.inbox.telemetry.metrics import NODE_CSV
from gpuplanner.inbox.telemetry.monitors import read_dcgmi_dmon, read_smi_dmon, read_smi_pmon
from gpuplanner.inbox.telemetry.pages import Hints
from gpuplanner.inbox.telemetry.prometheus import read_prometheus
from gpuplanner.inbox.telemetry.result import Telemetry
from gpuplanner.inbox.telemetry.sample_spans import Way
from gpuplanner.inbox.telemetry.smi_apps import read_smi_apps
from gpuplanner.inbox.telemetry.smi_query import read_smi_query
from gpuplanner.inbox.telemetry.store import by_month
from gpuplanner.inbox.telemetry.transcript import read_smi_transcript
from gpuplanner.names import resolve
from gpuplanner.schemas import Samples, empty

COUNTED = frozenset({"origin", "interval_s"})
ZONED = frozenset({"tz"})


@dataclass(frozen=True)
class Source:
    """A kind of telemetry file.

    Attributes
    ----------
    name : str
        What the user types.
    description : str
        One line.
    read : callable
        Reads paths, with hints.
    looks_like : re.Pattern
        Found in the first kilobytes of such a file.
    hints : frozenset of str
        Fields of :class:`gpuplanner.inbox.telemetry.Hints` that mean something here, beside ``node``.
    by_metric : bool
        Its rows are readings of single metrics, and several make a sample; otherwise each row is a sample.
    in_blocks : bool
        Files may be longer than the memory: `read` also takes a :class:`~.sample_spans.Way`.
    """

    name: str
    description: str
    read: Callable[..., Telemetry]
    looks_like: re.Pattern[str]
    hints: frozenset[str]
    by_metric: bool = False
    in_blocks: bool = False


def _header(*columns: str) -> re.Pattern[str]:
    """Matches a first line that names the columns."""
    ahead = "".join(rf'(?=(?:.*[,"\s])?{re.escape(column)}[",\s])' for column in columns)
    return re.compile(rf"\A{ahead}")


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "dcgm-exporter",
            "text pages of the DCGM exporter, or OpenMetrics (needs origin if without times)",
            read_exporter,
            re.compile(r"^(?:# (?:HELP|TYPE) )?DCGM_FI_\w+[ {]", re.M),
            COUNTED,
            by_metric=True,
        ),
        Source(
            "dcgm-csv",
            "DCGM exporter readings in long form (CSV)",
            read_dcgm_csv,
            _header(*list(READING_COLUMNS)[:3]),
            ZONED,
            by_metric=True,
            in_blocks=True,
        ),
        Source(
            "node-csv",
            "one row per GPU and time with profiling fields, one file per node (CSV)",
            read_node_csv,
            _header("timestamp", "gpu", *list(NODE_CSV)[:2]),
            ZONED,
            in_blocks=True,
        ),
        Source(
            "prometheus",
            "saved answers of the Prometheus HTTP API (JSON)",
            read_prometheus,
            re.compile(r'\A\s*\{.*"resultType"', re.S),
            frozenset(),
            by_metric=True,
        ),
        Source(
            "dcgmi-dmon",
            "dcgmi dmon (needs origin)",
            read_dcgmi_dmon,
            re.compile(r"^\s*#\s*Entity\s", re.M),
            COUNTED,
        ),
        Source(
            "smi-transcript",
            "transcript of nvidia-smi commands with a heading each (its --query-gpu parts)",
            read_smi_transcript,
            re.compile(r"\A#{20,}"),
            ZONED,
        ),
        Source(
            "smi-pmon",
            "nvidia-smi pmon: processes (needs origin if without times)",
            read_smi_pmon,
            re.compile(r"\A#.*\bgpu\s+pid\s"),
            COUNTED | ZONED,
        ),
        Source(
            "smi-dmon",
            "nvidia-smi dmon (needs origin if without times)",
            read_smi_dmon,
            re.compile(r"\A#.*\bgpu\s"),
            COUNTED | ZONED,
        ),
        Source(
            "smi-apps",
            "nvidia-smi --query-compute-apps: processes (CSV; needs gpu)",
            read_smi_apps,
            _header("pid", "process_name"),
            ZONED | {"gpu"},
        ),
        Source(
            "nvidia-smi",
            "nvidia-smi --query-gpu (CSV; needs tz, and columns if without header)",
            read_smi_query,
            re.compile(r"\A.*(?:power\.draw|memory\.used|utilization\.gpu)"),
            COUNTED | ZONED | {"gpu", "columns"},
            in_blocks=True,
        ),
    )
}
"""Name → source, the more special ones first."""


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
        If it cannot be read or looks like none; the message lists the sources.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.txt"
    ...     _ = path.write_text("# gpu   pwr\n# Idx     W\n    0    70\n")
    ...     detect(path)
    'smi-dmon'
    """
    lines = head(path)
    name = _looking_like(lines, columns)
    if name is not None:
        return name
    expected = f"the first lines of one of the sources {', '.join(SOURCES)}"
    todo = "Name the source; nvidia-smi without a header needs its columns too."
    raise TraceFormatError(message(str(path), expected, repr("\n".join(lines)[:120]), todo))


def _looking_like(lines: Sequence[str], columns: Sequence[str] | None) -> str | None:
    """Name of the first source whose files begin so."""
    for source in SOURCES.values():
        header = [",".join(columns)] if columns and "columns" in source.hints else []
        if source.looks_like.search("\n".join([*header, *lines])):
            return source.name
    return None


def speaks(source: str, paths: Sequence[str | Path], columns: Sequence[str] | None = None) -> bool:
    r"""True if a source is one of telemetry; for ``"auto"``, if the first file looks like one and like no trace.

    Parameters
    ----------
    source : str
        What the user typed.
    paths : sequence of str or Path
        Files to look into for ``"auto"``.
    columns : sequence of str, optional
        As for :func:`detect`.

    Raises
    ------
    TraceFormatError
        If the name is unknown among traces and telemetry, or the file cannot be read or looks like neither.

    Examples
    --------
    >>> speaks("dcgm-exp", []), speaks("philly", [])
    (True, False)
    """
    if source == AUTO and paths:
        lines = head(paths[0])
        if any(lines and each.sniff(lines) for each in TRACES.values()):
            return False
        if _looking_like(lines, columns) is not None:
            return True
        expected = f"the first lines of one of the sources {', '.join([*TRACES, *SOURCES])}"
        got = repr(lines[0][:120]) if lines else "an empty file"
        todo = "Name the source to see what it misses; nvidia-smi without a header needs its columns too."
        raise TraceFormatError(message(str(paths[0]), expected, got, todo))
    names = [AUTO, *TRACES, *TRACE_ALIASES, *SOURCES]
    return resolve(source, names, what="source", error=TraceFormatError) in SOURCES


def read(source: str, paths: str | Path | Sequence[str | Path], **hints: Any) -> Telemetry:  # noqa: ANN401
    r"""Read telemetry files of one source.

    Parameters
    ----------
    source : str
        A name in :data:`SOURCES` (a unique beginning will do), or ``"auto"``.
    paths : str, Path or sequence of these
        Files of the same source.
    **hints
        What the files leave out: fields of :class:`gpuplanner.inbox.telemetry.Hints`; None is not given.

    Returns
    -------
    Telemetry
        Samples, rejects, quality report, coverage and provenance.

    Raises
    ------
    TraceFormatError
        If the source is unknown, a hint means nothing anywhere, the files are of different sources, or one
        cannot be read.

    Warns
    -----
    GpuPlannerWarning
        If a hint means nothing for the source.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "n1.txt"
    ...     _ = path.write_text("# gpu   pwr\n# Idx     W\n    0    70\n    0    80\n")
    ...     read("auto", path, origin="2026-01-01T00:00:00Z", interval_s=1800)
    Telemetry(source='smi-dmon', rows_in=2, rows_kept=2, rows_rejected=0, span_start='2026-01-01T00:00:00Z',
              span_end='2026-01-01T00:30:00Z', gpu_hours=0.5)
    """
    chosen, files, stated = _asked(source, paths, hints)
    return chosen.read(files, stated)


def read_months(
    source: str,
    paths: str | Path | Sequence[str | Path],
    into: str | Path,
    *,
    name: str = "samples.parquet",
    **hints: Any,  # noqa: ANN401 - fields of Hints
) -> Telemetry:
    r"""Read telemetry of any length into a folder of months; samples are not in memory.

    For the same files, the months hold the samples of :func:`read`, in the same order, and all else that comes
    back is the same. Of the sources with ``in_blocks`` no more is in memory at a time than a block of text, a
    span of :data:`~.joining.WINDOW_ROWS` rows, and the rejected rows; the others are read whole first. What must
    wait is in unnamed files in `into`, which go by themselves. To append to a folder, :func:`read` is still
    needed: the months that change are laid over each other in memory.

    Parameters
    ----------
    source, paths, **hints
        As for :func:`read`.
    into : str or Path
        A folder that is there; gets a folder ``month=2026-01`` for each month in UTC, with one file in it.
    name : str
        Name of those files.

    Returns
    -------
    Telemetry
        Without samples, and without ``told``; ``provenance["samples"]`` says how many were written.

    Raises
    ------
    TraceFormatError
        As :func:`read`; months may then be half-written, and the folder is to be thrown away.
    OSError
        If the folder cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path, months = Path(folder) / "n1.csv", Path(folder) / "samples"
    ...     _ = path.write_text("timestamp, index, power.draw [W]\n2026/07/14 09:00:26.5, 0, 70 W\n")
    ...     months.mkdir()
    ...     told = read_months("nvidia-smi", path, months, tz="UTC")
    ...     told.provenance["samples"], [month.name for month in months.iterdir()]
    (1, ['month=2026-07'])
    """
    chosen, files, stated = _asked(source, paths, hints)
    folder = Path(into)
    if chosen.in_blocks:
        return chosen.read(files, stated, Way(folder, name))
    telemetry = chosen.read(files, stated)
    for month, samples in by_month(telemetry.samples).items():
        (folder / month).mkdir(parents=True, exist_ok=True)
        write_table(as_read(samples), folder / month / name)
    return replace(telemetry, samples=empty(Samples), told=None)


def _asked(
    source: str, paths: str | Path | Sequence[str | Path], hints: Mapping[str, Any]
) -> tuple[Source, list[str | Path], Hints]:
    """The source that is meant, the files, and what was said of them."""
    files = [paths] if isinstance(paths, (str, Path)) else list(paths)
    detected = functools.partial(detect, columns=hints.get("columns"))
    chosen = SOURCES[name_of(source, files, SOURCES, detected)]
    given = {name: hint for name, hint in hints.items() if hint is not None}
    stated = useful(f"source {chosen.name!r}", given, chosen.hints | {"node"})
    return chosen, files, Hints(**stated)
