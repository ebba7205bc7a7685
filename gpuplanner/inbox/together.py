"""Files of several sources in one go: each is known by its content, and all end in one dataset, jobs first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuplanner.catalog.loader import export_command
from gpuplanner.errors import TraceFormatError, examples, file_name, message
from gpuplanner.inbox.additions import Added, add
from gpuplanner.inbox.core.lines.text_file import fingerprint, head
from gpuplanner.inbox.registry import detect
from gpuplanner.inbox.sources import JOB_SOURCES, NODES, OBJECTS, PUBLIC, SOURCES, looks_like_kubernetes
from gpuplanner.inbox.store import MARK, read_provenance

INSTANT = re.compile(r"\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?\s*(Z|UTC|[+-]\d\d:?\d\d)?")
"""A time as logs write it, with its offset if it has one."""


@dataclass(frozen=True)
class SourcePart:
    """Files of one source, and which of its kinds they are.

    - ``source``: Name of the source.
    - ``files``: In the order in which they were given.
    - ``kind``: Kind of files, where the source has several.
    - ``nodes``: Node list that the source reads with its jobs.
    """

    source: str
    files: tuple[Path, ...]
    kind: str | None = None
    nodes: Path | None = None


def parts_of(paths: Sequence[str | Path]) -> tuple[SourcePart, ...]:
    r"""Sort files by what they are: lists of jobs first, then node lists, then telemetry and bills.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     nodes, jobs = Path(folder) / "a.txt", Path(folder) / "b.csv"
    ...     _ = nodes.write_text("NodeName=n1 Gres=gpu:a100:4\n")
    ...     _ = jobs.write_text("job_id,submission_time,duration,num_gpu\na,0,7200,8\n")
    ...     [(part.source, part.files[0].name) for part in parts_of([nodes, jobs])]
    [('itp', 'b.csv'), ('nodes', 'a.txt')]
    """
    groups: dict[tuple[str, str | None], list[Path]] = {}
    for path in _files(paths):
        source = detect(path)
        groups.setdefault((source, SOURCES[source].kind(path)), []).append(path)
    _join_objects(groups)
    found = [SourcePart(source, tuple(files), kind) for (source, kind), files in groups.items()]
    return tuple(sorted(_with_own_nodes(found), key=lambda part: _rank(part.source)))


def add_together(parts: Sequence[SourcePart], directory: str | Path, **options: Any) -> list[Added]:  # noqa: ANN401 - of any reader
    """Read parts into a dataset, so that each source says what these files say, and nothing that it said before."""
    done = []
    for part in parts:
        known = SOURCES[part.source].options
        given = {name: value for name, value in options.items() if name in known and value is not None}
        if part.nodes is not None:
            given["nodes"] = part.nodes
        again = not _has(Path(directory), part, given)
        done.append(add(part.source, part.files, directory, replace_source=again, **given))
    return done


def offsets_of(parts: Sequence[SourcePart]) -> tuple[tuple[str, ...], str | None]:
    r"""Offsets that the times of these files state, and a time that states none where somebody has to say its zone.

    The first lines of each file speak for it. Public traces need no zone: their readers know it.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "sacct.txt"
    ...     _ = path.write_text("JobID|Submit\n1|2025-01-06T00:00:01\n2|2025-01-06T00:00:01+01:00\n")
    ...     offsets_of([SourcePart("slurm", (path,))])
    (('+01:00',), '2025-01-06T00:00:01')
    """
    offsets: dict[str, None] = {}
    naive = None
    known = {source.name for source in PUBLIC}
    for part in parts:
        takes = "tz" in SOURCES[part.source].options and part.source not in (*known, NODES)
        for path in part.files:
            for hit in INSTANT.finditer("\n".join(head(path) or ())):
                if hit[1]:
                    offsets[hit[1]] = None
                elif takes and naive is None:
                    naive = hit[0].strip()
    return tuple(offsets), naive


def _files(paths: Sequence[str | Path]) -> Iterator[Path]:
    """The files, and those in folders; a folder that is a dataset is no file."""
    for each in map(Path, paths):
        if not each.is_dir():
            yield each
            continue
        if (each / MARK.file).is_file():
            todo = "Give the dataset alone: gpuplanner ingest adds files to it."
            raise TraceFormatError(message(str(each), "a file, or a folder of files", "a dataset", todo))
        inside = sorted(path for path in each.iterdir() if path.is_file() and not path.name.startswith("."))
        if not inside:
            todo = "Give the files that sacct, kubectl or scontrol wrote."
            raise TraceFormatError(message(str(each), "files of a cluster", "an empty folder", todo))
        yield from inside


def _join_objects(groups: dict[tuple[str, str | None], list[Path]]) -> None:
    """Node lists of Kubernetes beside its pods are parts of one dump."""
    if (OBJECTS, None) not in groups:
        return
    lists = groups.pop((NODES, None), [])
    dumps = [path for path in lists if looks_like_kubernetes(path)]
    groups[OBJECTS, None] += dumps
    if rest := [path for path in lists if path not in dumps]:
        groups[NODES, None] = rest


def _with_own_nodes(parts: Sequence[SourcePart]) -> Iterator[SourcePart]:
    """Of a source that reads a node list of its own form with its jobs, the two kinds as one part."""
    lists = {part.source: part for part in parts if part.kind == "node list" and len(part.files) == 1}
    for part in parts:
        own = lists.get(part.source)
        if own is part and any(other.source == part.source and other is not part for other in parts):
            continue
        if own is not None and own is not part and "nodes" in SOURCES[part.source].options:
            yield SourcePart(part.source, part.files, part.kind, own.files[0])
        else:
            yield part


def _rank(source: str) -> int:
    return 0 if source in JOB_SOURCES else 1 if source == NODES else 2


def _has(directory: Path, part: SourcePart, given: Mapping[str, Any]) -> bool:
    """Whether a dataset says of a source what these very files say, read in the same way."""
    if not (directory / MARK.file).is_file():
        return True  # nothing there that could be forgotten
    for facts in read_provenance(directory).get("sources", ()):
        if facts["source"] != part.source:
            continue
        terms = facts.get("read_with", {})
        same = all(terms.get(name) == given.get(name) for name in ("tz", "boards"))
        files = [*part.files, *((part.nodes,) if part.nodes else ())]
        return same and {str(file["sha256"]) for file in facts["files"]} == {
            fingerprint(path) for path in files
        }
    return True


TELEMETRY = frozenset({"samples", "coverage", "processes"})
"""Tables of readings: of how busy GPUs are."""
JOBS_TO_ADD = "Add the list of jobs that {} or {} writes, beside these files"


def require_jobs(found: Iterable[str], files: Sequence[str | Path], folder: str | Path | None = None) -> None:
    """Refuse files among which there is no list of jobs; ``folder`` is where what they said was read into.

    Examples
    --------
    >>> require_jobs(["inventory"], ["nodes.txt"])
    Traceback (most recent call last):
        ...
    gpuplanner.errors.TraceFormatError: start: expected a list of jobs; got inventory in 'nodes.txt'. Add the list ...
    """
    if {"jobs", "job_states"} & set(found):
        return
    named = examples([file_name(path) for path in files])
    told = list(found)
    to_add = JOBS_TO_ADD.format(export_command("sacct"), export_command("kubectl"))
    if TELEMETRY & set(told):
        got = f"readings of GPUs alone in {named}"
        todo = f"{to_add}: readings say how busy GPUs are, not who asked for them."
        if folder is not None:
            todo += f" For that alone: gpuplanner describe {folder}, gpuplanner forecast {folder}."
    else:
        got, todo = f"{', '.join(told) or 'nothing'} in {named}", f"{to_add}."
    raise TraceFormatError(message("start", "a list of jobs", got, todo))
