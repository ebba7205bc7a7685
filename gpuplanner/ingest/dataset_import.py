"""Import of files into a dataset: recognition, and only new rows are read.

Each source keeps what its tables follow from, so that files may come in any order. Lists of jobs are kept in parts
(``job_table.merge``), samples by month (``sample_table.overlay``); of other tables, rows of
which there are some already are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuplanner.core.errors import TraceFormatError, examples, file_name
from gpuplanner.core.execution import Workers, in_turn
from gpuplanner.core.output_writing import held_directory, spare_room
from gpuplanner.hardware.catalog import export_command
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_folder import (
    MARK,
    OF_EACH,
    open_dataset,
    read_provenance,
    read_sources,
    told_by,
)
from gpuplanner.ingest.dataset_writer import (
    TERMS,
    Draft,
    as_it_is,
    laid_over,
    replace_dataset,
    with_files,
    without,
)
from gpuplanner.ingest.job_table import SUPERSEDED
from gpuplanner.ingest.large_tables import MONTH, SAMPLES
from gpuplanner.ingest.source_definition import load, useful
from gpuplanner.ingest.source_registry import (
    AUTO,
    JOB_SOURCES,
    NODES,
    OBJECTS,
    PUBLIC,
    SOURCES,
    detect,
    looks_like_kubernetes,
    name_of,
    naming_foreign_forms,
    read,
)
from gpuplanner.ingest.telemetry.sample_table import Way
from gpuplanner.ingest.text_files import fingerprint, head

if TYPE_CHECKING:
    from gpuplanner.ingest.telemetry.prometheus import Server


LASTING = ("tz", "columns", "boards", "pseudonyms")
"""Options that must be the same in every run; the others tell of the files of one run."""
Change = Callable[[Dataset], Dataset]


@dataclass(frozen=True)
class Added:
    """What a run did to a dataset.

    Attributes
    ----------
    directory : Path
        The folder.
    source : str
        The source that was read.
    added, replaced, unchanged : tuple of str
        Names of the files that are new, that took the place of an older one of their name, and that were there
        already and not read.
    months : tuple of str
        Months of samples that were written, ``2026-01``; the others keep their bytes.
    """

    directory: Path
    source: str
    added: tuple[str, ...]
    replaced: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    months: tuple[str, ...] = ()

    @cached_property
    def dataset(self) -> Dataset:
        """All that the folder holds, read when it is first asked for."""
        return open_dataset(self.directory)

    @cached_property
    def told(self) -> Dataset:
        """What the folder says of itself, without its tables."""
        return told_by(self.directory)

    def news(self) -> str:
        """One line: what was done, or that there was nothing to do."""
        if not self.added and not self.replaced:
            return f"nothing to do: {len(self.unchanged)} file(s) read before, none new or changed"
        again = self.told.quality.filter(check=f"rejected: {SUPERSEDED}")["rows"].sum()
        told = f"; {again} row(s) repeated by a later export" if again else ""
        told += f"; months written: {', '.join(self.months)}" if self.months else ""
        counts = f"{len(self.added)} file(s) added, {len(self.replaced)} replaced, {len(self.unchanged)} read before"
        return counts + told


def add(
    source: str,
    paths: Sequence[str | Path],
    directory: str | Path,
    *,
    replace_source: bool = False,
    change: Change = lambda read: read,
    terms: Mapping[str, object] | None = None,
    workers: Workers = 1,
    **options: Any,  # noqa: ANN401 - of any reader
) -> Added:
    r"""Read files of one source into a dataset, beside what is there.

    A source that the dataset lacks is added; of one that it has, only files are read that are new or changed. What
    would contradict is refused: another source for a table that is there, other options, rows of a table without a
    later word. A file of a list of jobs is known by its name without its folder: one of the same name and other
    bytes takes its place, and where files overlap, the latest export wins. Of telemetry, what was read first counts.

    Parameters
    ----------
    source : str
        As in :func:`gpuplanner.ingest.source_registry.read`.
    paths : sequence of str or Path
        Files, or folders of a delivered bill.
    directory : str or Path
        A dataset, or a new or empty folder.
    replace_source : bool
        Read the source anew: all that it said before is forgotten.
    change : callable
        What is done to the dataset as read, such as replacing names.
    terms : mapping, optional
        What `change` depends on: the same in every run.
    workers : int or str
        Processes that read files which stand each for itself, or the address of a Dask scheduler (extra ``scale``)
        whose workers see them under the same path; what is read is the same.
    **options
        As in :func:`gpuplanner.ingest.source_registry.read`; ``tz``, ``columns`` and, for jobs, ``origin`` the same
        in every run.

    Returns
    -------
    Added
        The whole dataset, and what became of each file. If nothing is new, nothing is written.

    Raises
    ------
    TraceFormatError
        If a file cannot be read, or contradicts what is there. Nothing is changed then.
    OutputError
        If the folder cannot be written, or another run is writing it.

    Examples
    --------
    >>> import tempfile
    >>> jobs = "job_id,submission_time,duration,num_gpu\na,0,3600,1\nb,60,3600,1\n"
    >>> log = "timestamp, index, power.draw [W]\n2021/03/04 00:10:00, 0, 400 W\n"
    >>> with tempfile.TemporaryDirectory() as place:
    ...     january, power, mine = (Path(place) / name for name in ("january.csv", "n1.csv", "mine"))
    ...     _, _ = january.write_text(jobs), power.write_text(log)
    ...     first = add("itp", [january], mine)
    ...     second = add("auto", [power], mine, tz="UTC")
    ...     again = add("itp", [january], mine)
    ...     whole = second.dataset
    >>> sorted(whole.tables), whole.kind, again.unchanged
    (['coverage', 'jobs'], 'jobs', ('january.csv',))
    """
    with held_directory(directory, mark=MARK, inputs=paths) as directory:
        facts, draft = as_it_is(directory)
        given = {name: value for name, value in options.items() if value is not None}
        name = _name(source, paths, facts, given)
        kind, whole = _kind(name, paths), all(map(SOURCES[name].whole_files, paths))
        layer = name if whole or kind is None else f"{name}-{kind.replace(' ', '-')}"
        if replace_source:
            facts, draft = without(facts, draft, layer)
        known = facts.get(layer)
        before = {str(file["name"]): str(file["sha256"]) for file in (known or {}).get("files", ())}
        sizes = {int(file["bytes"]) for file in (known or {}).get("files", ())}
        fresh = [path for path in paths if not _is_known(path, before, sizes, by_name=whole)]
        unchanged = tuple(file_name(path) for path in paths if path not in fresh)
        wanted = _terms(name, kind, given, terms or {})
        _require_terms(directory, known, wanted)
        _refuse_numbered(name, known, given)
        if not fresh:
            return Added(directory, name, (), (), unchanged)
        if whole:
            _refuse_twins(fresh, before)

        own: dict[str, Any] = {TERMS: wanted} | ({"layer": layer} if layer != name else {})

        def changed(found: Dataset) -> Dataset:
            found = change(found)
            return replace(found, provenance={**found.provenance, **own})

        long = SOURCES[name].read_long
        if long is not None and known is None and not terms and not (whole and len(fresh) > 1):
            # In the folder itself nothing may stand half-written; beside it, what a killed run leaves is swept.
            with spare_room(directory) as room:
                files = useful(f"source {name!r}", given, SOURCES[name].options)
                target = {"into": room} if whole else {"way": Way(room, f"{layer}.parquet")}
                with naming_foreign_forms(fresh):
                    read_long = changed(load(long)(fresh, **target, **files))
                _refuse_rivals({*read_long.tables, *(["jobs"] if whole else [])}, facts, layer)
                grown = with_files(draft, read_long, layer, room)
                replace_dataset(directory, grown)
        else:
            seen = [Path(path).absolute() if isinstance(workers, str) else path for path in fresh]
            tasks = [(name, [path]) for path in seen] if whole else [(name, fresh)]
            found = dict(in_turn(partial(read, **given), tasks, workers=workers))
            new = [changed(found.pop(number)) for number in range(len(tasks))]
            _refuse_rivals(new[0].tables, facts, layer)
            grown = laid_over(draft, layer, new, known, by_metric=SOURCES[name].by_metric)
            replace_dataset(directory, grown)
    names = tuple(file_name(path) for path in fresh)
    again = tuple(each for each in names if whole and each in before)
    added = tuple(each for each in names if each not in again)
    return Added(directory, name, added, again, unchanged, _months(grown, directory))


def add_read(read: Dataset, directory: str | Path) -> Added:
    """Add what was read elsewhere, such as a live Prometheus, to a dataset, beside what is there.

    Parameters
    ----------
    read : Dataset
        Of one source.
    directory : str or Path
        A dataset, or a new or empty folder.

    Raises
    ------
    TraceFormatError, OutputError
        As :func:`add`.
    """
    name = str(read.provenance["source"])
    with held_directory(directory, mark=MARK) as directory:
        facts, draft = as_it_is(directory)
        known = facts.get(name)
        _require_terms(directory, known, {})
        _refuse_rivals(read.tables, facts, name)
        new = replace(read, provenance={**read.provenance, TERMS: {}})
        grown = laid_over(draft, name, [new], known, by_metric=SOURCES[name].by_metric)
        replace_dataset(directory, grown)
    files = tuple(file["name"] for file in read.provenance["files"])
    return Added(directory, name, files, months=_months(grown, directory))


def add_live(server: Server | str, directory: str | Path, *, until: datetime, at_first_s: float = 3600.0) -> Added:
    """Add what a live Prometheus saw since the last reading that a dataset has of it; gaps stay gaps.

    The first reading begins ``at_first_s`` before ``until``. What it does not answer raises, as in :func:`add`.
    """
    from gpuplanner.ingest.telemetry.prometheus import read_live

    folder = Path(directory)
    known = read_sources(folder) if (folder / MARK.file).exists() else []
    seen = (each.span[1] for each in known if each.source == "prometheus")
    since = max(seen, default=until - timedelta(seconds=at_first_s))
    return add_read(read_live(server, since, until), directory)


def _months(grown: Draft, directory: Path) -> tuple[str, ...]:
    """Months whose samples are new or changed."""
    written = set[str]()
    for (month, _), samples in grown.months.items():
        if not (isinstance(samples, Path) and directory in samples.parents):
            written.add(month.removeprefix(MONTH))
    return tuple(sorted(written))


def _name(source: str, paths: Sequence[str | Path], facts: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Full name of the source; files that were read before need no look into them."""
    if source == AUTO:
        known = {file["sha256"]: name for name, each in facts.items() for file in each["files"]}
        names = {known.get(fingerprint(path)) if Path(path).is_file() else None for path in paths}
        [*only] = names
        if len(only) == 1 and only[0] is not None:
            return only[0]
    return name_of(source, paths, given.get("columns"))


def _is_known(path: str | Path, before: Mapping[str, str], sizes: Collection[int], *, by_name: bool) -> bool:
    """True if these bytes are there: under this name, or, unless a file of this name changed, under another one."""
    if not Path(path).is_file():
        return False  # a folder: what is new in it shows when it is read
    if Path(path).stat().st_size not in sizes:
        return False  # a hash costs as much as reading it
    key, name = fingerprint(path), file_name(path)
    return before[name] == key if by_name and name in before else key in before.values()


def _refuse_twins(fresh: Sequence[str | Path], before: Mapping[str, str]) -> None:
    """Files that are known by their names need different ones, and the same bytes under two names would be one part."""
    files = {file_name(path): Path(path) for path in fresh}
    if len(files) != len(fresh):
        got = examples([str(path) for path in fresh])
        todo = "Rename one of them: a file is known by its name."
        raise TraceFormatError("files to add", "files of different names", got, todo)
    names: dict[str, str] = {}
    kept = [(name, key) for name, key in before.items() if name not in files]
    for name, key in [*kept, *((name, fingerprint(path)) for name, path in files.items())]:
        twin = names.setdefault(key, name)
        if twin != name:
            got = f"{twin} and {name}, which are equal"
            raise TraceFormatError("files to add", "different files", got, "Give one of them.")


def _kind(name: str, paths: Sequence[str | Path]) -> str | None:
    """The one kind of files of a source that all paths are."""
    kinds = {str(path): SOURCES[name].kind(path) for path in paths}
    if len(set(kinds.values())) > 1:
        got = examples([f"{path}: {kind}" for path, kind in kinds.items()])
        raise TraceFormatError(f"source {name!r}", "files of one kind", got, "Read each kind on its own.")
    return next(iter(kinds.values()), None)


def _terms(name: str, kind: str | None, given: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """What all files of a source are read with, ready for JSON; what means nothing to it may differ."""
    options = SOURCES[name].options
    names = set(LASTING if "node" in options else (*LASTING, "origin")) & options
    stated = {each: given[each] for each in names if each in given} | dict(more)
    stated |= {} if kind is None else {"kind": kind}
    return {each: _plain(value) for each, value in sorted(stated.items())}


def _plain(value: Any) -> Any:  # noqa: ANN401 - anything that is an option
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    return [str(part) for part in value] if isinstance(value, list | tuple) else str(value)


def _require_terms(directory: Path, known: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> None:
    """Refuse to add to a source on other terms than it was read on."""
    if known is None or known.get(TERMS) == wanted:
        return
    todo = "Give the same options, or import all files of the source again with --replace."
    told = known.get(TERMS)
    expected = "a source that can grow" if told is None else f"the options that it was read with, {told}"
    got = "one that an earlier version read at once" if told is None else str(dict(wanted))
    raise TraceFormatError(f"{known['source']} in {directory}", expected, got, todo)


def _refuse_numbered(name: str, known: Mapping[str, Any] | None, given: Mapping[str, Any]) -> None:
    """Pages without times are numbered from the first to the last, so they must come at once."""
    if known is not None and name == "dcgm-exporter" and given.keys() & {"origin", "interval_s"}:
        expected, got = "pages that carry their times", "a start time (--origin)"
        todo = "Scrape Prometheus instead, or give all pages at once, with --replace."
        raise TraceFormatError(f"source {name!r}", expected, got, todo)


def _refuse_rivals(tables: Collection[str], facts: Mapping[str, Mapping[str, Any]], name: str) -> None:
    """Two sources of one table would contradict each other; telemetry may come from several."""
    shared = {SAMPLES, *OF_EACH}
    for source, each in facts.items():
        both = sorted(set(tables) & set(each.get("tables", ())) - shared)
        if source != name and both:
            expected = f"no other source of {', '.join(both)}"
            todo = "Keep each in a folder of its own."
            raise TraceFormatError(f"source {name!r}", expected, f"{source!r} is there", todo)


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
    parts = [SourcePart(source, tuple(files), kind) for (source, kind), files in groups.items()]
    found = _with_own_nodes(parts)
    return tuple(sorted(found, key=lambda part: (part.source not in JOB_SOURCES, part.source != NODES)))


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
            raise TraceFormatError(str(each), "a file, or a folder of files", "a dataset", todo)
        inside = sorted(path for path in each.iterdir() if path.is_file() and not path.name.startswith("."))
        if not inside:
            todo = "Give the files that sacct, kubectl or scontrol wrote."
            raise TraceFormatError(str(each), "files of a cluster", "an empty folder", todo)
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
        stated = {str(file["sha256"]) for file in facts["files"]}
        return same and stated == set(map(fingerprint, files))
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
    gpuplanner.core.errors.TraceFormatError: start: expected a list of jobs; got inventory in 'nodes.txt'. Add ...
    """
    if {"jobs", "job_states"} & set(found):
        return
    named = examples([file_name(path) for path in files])
    told = list(found)
    to_add = JOBS_TO_ADD.format(export_command("sacct"), export_command("kubectl"))
    if TELEMETRY & set(told):
        got = f"readings of GPUs alone in {named}"
        todo = f"{to_add}: readings show how busy GPUs are, not which jobs requested them."
        if folder is not None:
            todo += f" To use the readings alone: gpuplanner describe {folder}, gpuplanner forecast {folder}."
    else:
        got, todo = f"{', '.join(told) or 'nothing'} in {named}", f"{to_add}."
    raise TraceFormatError("start", "a list of jobs", got, todo)
