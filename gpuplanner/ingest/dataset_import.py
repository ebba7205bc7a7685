"""Import of files into a dataset: recognition of sources, and reading of new files only.

Each source keeps what its tables are built from, so that files may be imported in any order. Lists of jobs are kept in
parts (``table_assembly.merge_job_exports``), samples by month (``sample_table_writer.overlay_samples``); for other
tables, rows with a key that is already there are refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuplanner.core.errors import TraceFormatError, examples, printable_file_name
from gpuplanner.core.libraries_plugins_and_workers import Workers, run_tasks
from gpuplanner.core.output_writing import make_temporary_sibling, reserve_directory
from gpuplanner.hardware.catalog import export_command
from gpuplanner.ingest.chunked_tables import MONTH_PREFIX, SAMPLES
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_folder import (
    DATASET_MARK,
    MERGED_TABLES,
    open_dataset,
    read_metadata,
    read_provenance,
    read_source_facts,
)
from gpuplanner.ingest.dataset_writer import (
    READ_OPTIONS_FACT_KEY,
    DatasetDraft,
    add_written_files,
    load_draft,
    merge_into_draft,
    remove_source,
    replace_dataset,
)
from gpuplanner.ingest.gpu_lists_of_nodes import read_dump_time
from gpuplanner.ingest.source_definition import load_entry, select_known_options
from gpuplanner.ingest.source_registry import (
    AUTO_SOURCE,
    JOB_SOURCE_NAMES,
    KUBERNETES_SOURCE,
    NODES_SOURCE,
    PUBLIC_SOURCES,
    SOURCES,
    detect_source,
    explain_foreign_forms,
    looks_like_kubernetes,
    read,
    resolve_source_name,
)
from gpuplanner.ingest.table_assembly import SUPERSEDED_REASON
from gpuplanner.ingest.telemetry.sample_table_writer import SampleOutput
from gpuplanner.ingest.text_files import hash_file, read_head

if TYPE_CHECKING:
    from gpuplanner.ingest.telemetry.prometheus import PrometheusServer


COMMON_OPTIONS = ("tz", "columns", "boards", "pseudonyms")
"""Reader options that must be equal in every import into a source, such as ``tz``; other options may differ by import.
"""


@dataclass(frozen=True)
class ImportResult:
    """Result of an import into a dataset.

    Attributes
    ----------
    directory : Path
        Dataset folder.
    source : str
        Source that was read.
    added, replaced, unchanged : tuple of str
        Names of the files that are new, that replaced an older file of the same name, and that had been read before.
    months : tuple of str
        Months of samples that were written, ``2026-01``; files of other months are unchanged.
    """

    directory: Path
    source: str
    added: tuple[str, ...]
    replaced: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    months: tuple[str, ...] = ()

    @cached_property
    def dataset(self) -> Dataset:
        """The whole dataset, opened on first use."""
        return open_dataset(self.directory)

    @cached_property
    def metadata(self) -> Dataset:
        """Provenance and quality report of the dataset, without its tables."""
        return read_metadata(self.directory)

    def describe_import(self) -> str:
        """Describe the import in one line: files added and replaced, or that there was nothing to do."""
        if not self.added and not self.replaced:
            return f"nothing to do: {len(self.unchanged)} file(s) read before, none new or changed"
        superseded_rows = self.metadata.quality.filter(check=f"rejected: {SUPERSEDED_REASON}")["rows"].sum()
        details = f"; {superseded_rows} row(s) repeated by a later export" if superseded_rows else ""
        details += f"; months written: {', '.join(self.months)}" if self.months else ""
        counts = f"{len(self.added)} file(s) added, {len(self.replaced)} replaced, {len(self.unchanged)} read before"
        return counts + details


def add_files(
    source: str,
    paths: Sequence[str | Path],
    directory: str | Path,
    *,
    replace_source: bool = False,
    change: Callable[[Dataset], Dataset] = lambda read: read,
    terms: Mapping[str, object] | None = None,
    workers: Workers = 1,
    **options: Any,  # noqa: ANN401 - of any reader
) -> ImportResult:
    r"""Read files of one source into a dataset, next to the data already in it.

    A source that the dataset lacks is added. Of a source that it has, only new or changed files are read.
    Contradictions are refused: another source for an existing table, other options, rows with an existing key. A file
    of a list of jobs is identified by its name without its folder: a file of the same name with other bytes replaces
    it, and where files overlap, the latest export wins. Of telemetry, the first reading wins.

    Parameters
    ----------
    source : str
        As in :func:`gpuplanner.ingest.source_registry.read`.
    paths : sequence of str or Path
        Files, or folders of a delivered bill.
    directory : str or Path
        A dataset, or a new or empty folder.
    replace_source : bool
        Read the source again and drop everything that it gave before.
    change : callable
        Function that transforms the dataset as read, such as replacing names.
    terms : mapping, optional
        Settings of `change`: equal in every import.
    workers : int or str
        Processes that read independent files, or the address of a Dask scheduler (extra ``scale``) whose workers see
        them under the same path; the result is the same.
    **options
        As in :func:`gpuplanner.ingest.source_registry.read`; ``tz``, ``columns`` and, for jobs, ``origin`` equal
        in every import.

    Returns
    -------
    ImportResult
        The whole dataset, and what happened to each file. If no file is new, nothing is written.

    Raises
    ------
    TraceFormatError
        If a file cannot be read, or contradicts the dataset, which is then unchanged.
    OutputError
        If the folder cannot be written, or another process is writing it.

    Examples
    --------
    >>> import tempfile
    >>> jobs = "job_id,submission_time,duration,num_gpu\na,0,3600,1\nb,60,3600,1\n"
    >>> log = "timestamp, index, power.draw [W]\n2021/03/04 00:10:00, 0, 400 W\n"
    >>> with tempfile.TemporaryDirectory() as place:
    ...     january, power, mine = (Path(place) / name for name in ("january.csv", "n1.csv", "mine"))
    ...     _, _ = january.write_text(jobs), power.write_text(log)
    ...     first = add_files("itp", [january], mine)
    ...     second = add_files("auto", [power], mine, tz="UTC")
    ...     again = add_files("itp", [january], mine)
    ...     whole = second.dataset
    >>> sorted(whole.tables), whole.kind, again.unchanged
    (['coverage', 'jobs'], 'jobs', ('january.csv',))
    """
    with reserve_directory(directory, mark=DATASET_MARK, inputs=paths) as directory:
        facts, draft = load_draft(directory)
        given = {name: value for name, value in options.items() if value is not None}
        name = _resolve_source_name(source, paths, facts, given)
        kind, stands_alone = _require_one_kind(name, paths), all(map(SOURCES[name].whole_files, paths))
        record = name if stands_alone or kind is None else f"{name}-{kind.replace(' ', '-')}"
        if replace_source:
            facts, draft = remove_source(facts, draft, record)
        known_facts = facts.get(record)
        hashes = {str(file["name"]): str(file["sha256"]) for file in (known_facts or {}).get("files", ())}
        known_sizes = {int(file["bytes"]) for file in (known_facts or {}).get("files", ())}
        fresh_paths = [path for path in paths if not _is_known_file(path, hashes, known_sizes, by_name=stands_alone)]
        if name == NODES_SOURCE:  # equal lists of two dates are two dumps
            dated_paths = [path for path in paths if read_dump_time(path) and printable_file_name(path) not in hashes]
            fresh_paths = [path for path in paths if path in (*fresh_paths, *dated_paths)]
        unchanged = tuple(printable_file_name(path) for path in paths if path not in fresh_paths)
        read_terms = _collect_read_terms(name, kind, given, terms or {})
        _require_same_terms(directory, known_facts, read_terms)
        _reject_untimed_pages(name, known_facts, given)
        if not fresh_paths:
            return ImportResult(directory, name, (), (), unchanged)
        if stands_alone:
            _require_distinct_files(fresh_paths, hashes)

        own_facts: dict[str, Any] = {READ_OPTIONS_FACT_KEY: read_terms} | ({"layer": record} if record != name else {})

        def transform(datasets: Dataset) -> Dataset:
            """Apply the change of the caller to a dataset and record the options that it was read with."""
            datasets = change(datasets)
            return replace(datasets, provenance={**datasets.provenance, **own_facts})

        long_reader = SOURCES[name].read_long
        is_one_read = known_facts is None and not terms and not (stands_alone and len(fresh_paths) > 1)
        if long_reader is not None and is_one_read:
            # In the folder itself nothing may stand half-written; beside it, what a killed run leaves is swept.
            with make_temporary_sibling(directory) as spare:
                reader_options = select_known_options(f"source {name!r}", given, SOURCES[name].options)
                target = {"into": spare} if stands_alone else {"output": SampleOutput(spare, f"{record}.parquet")}
                with explain_foreign_forms(fresh_paths):
                    read_long = transform(load_entry(long_reader)(fresh_paths, **target, **reader_options))
                _reject_second_source({*read_long.tables, *(["jobs"] if stands_alone else [])}, facts, record)
                new_draft = add_written_files(draft, read_long, record, spare)
                replace_dataset(directory, new_draft)
        else:
            visible_paths = [Path(path).absolute() if isinstance(workers, str) else path for path in fresh_paths]
            tasks = [(name, [path]) for path in visible_paths] if stands_alone else [(name, fresh_paths)]
            datasets = dict(run_tasks(partial(read, **given), tasks, workers=workers))
            new_datasets = [transform(datasets.pop(number)) for number in range(len(tasks))]
            _reject_second_source(new_datasets[0].tables, facts, record)
            new_draft = merge_into_draft(draft, record, new_datasets, known_facts, by_metric=SOURCES[name].by_metric)
            replace_dataset(directory, new_draft)
    names = tuple(printable_file_name(path) for path in fresh_paths)
    replaced = tuple(name for name in names if stands_alone and name in hashes)
    added = tuple(name for name in names if name not in replaced)
    return ImportResult(directory, name, added, replaced, unchanged, _written_months(new_draft, directory))


def add_dataset(dataset: Dataset, directory: str | Path) -> ImportResult:
    """Add the tables of one source that is already read, such as a live Prometheus, to a dataset folder.

    Parameters
    ----------
    dataset : Dataset
        Tables of one source.
    directory : str or Path
        A dataset, or a new or empty folder.

    Returns
    -------
    ImportResult
        The whole dataset, and the months that were written.

    Raises
    ------
    TraceFormatError, OutputError
        As :func:`add_files`.
    """
    name = str(dataset.provenance["source"])
    with reserve_directory(directory, mark=DATASET_MARK) as directory:
        facts_by_source, draft = load_draft(directory)
        known_facts = facts_by_source.get(name)
        _require_same_terms(directory, known_facts, {})
        _reject_second_source(dataset.tables, facts_by_source, name)
        new_dataset = replace(dataset, provenance={**dataset.provenance, READ_OPTIONS_FACT_KEY: {}})
        new_draft = merge_into_draft(draft, name, [new_dataset], known_facts, by_metric=SOURCES[name].by_metric)
        replace_dataset(directory, new_draft)
    files = tuple(file["name"] for file in dataset.provenance["files"])
    return ImportResult(directory, name, files, months=_written_months(new_draft, directory))


def add_live(
    server: PrometheusServer | str, directory: str | Path, *, until: datetime, at_first_s: float = 3600.0
) -> ImportResult:
    """Add the readings of a live Prometheus since the last one that a dataset has of Prometheus; gaps stay gaps.

    Parameters
    ----------
    server : PrometheusServer or str
        Prometheus server or its address.
    directory : str or Path
        A dataset, or a new or empty folder.
    until : datetime
        End of the query [UTC].
    at_first_s : float
        Span before `until` that is queried if the dataset has no readings of Prometheus yet [s].

    Returns
    -------
    ImportResult
        The whole dataset, and the months that were written.

    Raises
    ------
    TraceFormatError
        If Prometheus does not answer, or as :func:`add_files`.
    """
    from gpuplanner.ingest.telemetry.prometheus import read_live

    folder = Path(directory)
    source_facts = read_source_facts(folder) if (folder / DATASET_MARK.file).exists() else []
    span_ends = (facts.span[1] for facts in source_facts if facts.source == "prometheus")
    since = max(span_ends, default=until - timedelta(seconds=at_first_s))
    return add_dataset(read_live(server, since, until), directory)


def _written_months(draft: DatasetDraft, directory: Path) -> tuple[str, ...]:
    """Return the months whose samples an import adds or changes, such as ``2026-01``."""
    written = set[str]()
    for (month, _), samples in draft.months.items():
        if not (isinstance(samples, Path) and directory in samples.parents):
            written.add(month.removeprefix(MONTH_PREFIX))
    return tuple(sorted(written))


def _resolve_source_name(
    source: str, paths: Sequence[str | Path], sources: Mapping[str, Any], given_options: Mapping[str, Any]
) -> str:
    """Return the full name of the source; files that were imported before are recognised by their hash.

    `sources` are the stored facts of each source of the dataset by name, `given_options` the reader options of this
    import.
    """
    if source == AUTO_SOURCE:
        sources_by_hash = {
            file["sha256"]: str(facts["source"]) for facts in sources.values() for file in facts["files"]
        }
        names = {sources_by_hash.get(hash_file(path)) if Path(path).is_file() else None for path in paths}
        if len(names) == 1 and (name := names.pop()) is not None:
            return name
    return resolve_source_name(source, paths, given_options.get("columns"))


def _is_known_file(
    path: str | Path, hashes_by_name: Mapping[str, str], known_sizes: Collection[int], *, by_name: bool
) -> bool:
    """Whether the bytes of a file were imported before.

    Parameters
    ----------
    path : str or Path
        File; a folder is always read again.
    hashes_by_name : mapping of str to str
        File name → SHA-256 hash of the imported files.
    known_sizes : collection of int
        Sizes of the imported files [bytes].
    by_name : bool
        A file of a known name is compared with the imported file of that name only.
    """
    if not Path(path).is_file():
        return False  # a folder: what is new in it shows when it is read
    if Path(path).stat().st_size not in known_sizes:
        return False  # a hash costs as much as reading it
    file_hash, name = hash_file(path), printable_file_name(path)
    if by_name and name in hashes_by_name:
        return hashes_by_name[name] == file_hash
    return file_hash in hashes_by_name.values()


def _require_distinct_files(fresh_paths: Sequence[str | Path], hashes_by_name: Mapping[str, str]) -> None:
    """Refuse files of equal names, which identify files, and equal bytes under two names."""
    files = {printable_file_name(path): Path(path) for path in fresh_paths}
    if len(files) != len(fresh_paths):
        got = examples([str(path) for path in fresh_paths])
        todo = "Rename one of them: a file is known by its name."
        raise TraceFormatError("files to add", "files of different names", got, todo)
    names_by_hash: dict[str, str] = {}
    other_files = [(name, file_hash) for name, file_hash in hashes_by_name.items() if name not in files]
    for name, file_hash in [*other_files, *((name, hash_file(path)) for name, path in files.items())]:
        first_name = names_by_hash.setdefault(file_hash, name)
        if first_name != name:
            got = f"{first_name} and {name}, which are equal"
            raise TraceFormatError("files to add", "different files", got, "Give one of them.")


def _require_one_kind(name: str, paths: Sequence[str | Path]) -> str | None:
    """Return the kind of files (such as job table or job log) that all paths have; refuse several kinds."""
    kinds = {str(path): SOURCES[name].kind(path) for path in paths}
    if len(set(kinds.values())) > 1:
        got = examples([f"{path}: {kind}" for path, kind in kinds.items()])
        raise TraceFormatError(f"source {name!r}", "files of one kind", got, "Read each kind on its own.")
    return next(iter(kinds.values()), None)


def _collect_read_terms(
    name: str, kind: str | None, given: Mapping[str, Any], extra_terms: Mapping[str, Any]
) -> dict[str, Any]:
    """Collect the reader options that must be equal for all files of a source, as values for JSON.

    Parameters
    ----------
    name : str
        Source.
    kind : str, optional
        Kind of files, where the source has several.
    given : mapping
        Reader options of this import.
    extra_terms : mapping
        Further settings that must be equal, such as those of a change.
    """
    options = SOURCES[name].options
    fixed_names = set(COMMON_OPTIONS if "node" in options else (*COMMON_OPTIONS, "origin")) & options
    read_terms = {option: given[option] for option in fixed_names if option in given} | dict(extra_terms)
    read_terms |= {} if kind is None else {"kind": kind}
    return {option: _to_plain_option(value) for option, value in sorted(read_terms.items())}


def _to_plain_option(value: Any) -> Any:  # noqa: ANN401 - anything that is an option
    """Convert the value of a reader option to text, lists and mappings of text, for JSON."""
    if isinstance(value, Mapping):
        return {str(name): _to_plain_option(part) for name, part in value.items()}
    return [str(part) for part in value] if isinstance(value, list | tuple) else str(value)


def _require_same_terms(directory: Path, known_facts: Mapping[str, Any] | None, read_terms: Mapping[str, Any]) -> None:
    """Refuse to add files to a source with other reader options than it was read with."""
    if known_facts is None or known_facts.get(READ_OPTIONS_FACT_KEY) == read_terms:
        return
    todo = "Give the same options, or import all files of the source again with --replace."
    known_terms = known_facts.get(READ_OPTIONS_FACT_KEY)
    expected = "a source that can grow" if known_terms is None else f"the options that it was read with, {known_terms}"
    got = "one that an earlier version read at once" if known_terms is None else str(dict(read_terms))
    raise TraceFormatError(f"{known_facts['source']} in {directory}", expected, got, todo)


def _reject_untimed_pages(name: str, known_facts: Mapping[str, Any] | None, given_options: Mapping[str, Any]) -> None:
    """Refuse to add metrics pages of dcgm-exporter without timestamps to a source that the dataset has.

    Such saved pages get times by their position from first to last, so all must be given at once.
    """
    if known_facts is not None and name == "dcgm-exporter" and given_options.keys() & {"origin", "interval_s"}:
        expected, got = "pages that carry their times", "a start time (--origin)"
        todo = "Scrape Prometheus instead, or give all pages at once, with --replace."
        raise TraceFormatError(f"source {name!r}", expected, got, todo)


def _reject_second_source(tables: Collection[str], facts_by_source: Mapping[str, Mapping[str, Any]], name: str) -> None:
    """Refuse a second source of a table, such as jobs, which would contradict the first.

    Telemetry may have several, and so may an inventory if all its dumps have a date.
    """
    shared = {SAMPLES, *MERGED_TABLES} - {"inventory"}
    for source, source_facts in facts_by_source.items():
        common_tables = set(tables) & set(source_facts.get("tables", ()))
        only_first = sorted(common_tables - shared - ({"inventory"} if "node_dumps" in common_tables else set()))
        if source != name and only_first:
            expected = f"no other source of {', '.join(only_first)}"
            todo = "Give all files of one cluster at once, or keep each in a folder of its own."
            if only_first == ["inventory"]:
                expected = "node lists with a date, as there are two sources of them"
                todo = f"Put the date into the names of both (nodes-2026-11-02.txt), or g{todo[1:]}"
            raise TraceFormatError(f"source {name!r}", expected, f"{source!r} is there", todo)


LOG_TIME_PATTERN = re.compile(r"\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?\s*(Z|UTC|[+-]\d\d:?\d\d)?")
"""A date and time as log files have it, with its UTC offset if there is one."""


@dataclass(frozen=True)
class SourceFiles:
    """Files to import that belong to one source and are of one kind.

    - ``source``: Name of the source.
    - ``files``: In the order in which they were given.
    - ``kind``: Kind of files, where the source has several.
    - ``nodes``: Node list that the source reads with its jobs.
    """

    source: str
    files: tuple[Path, ...]
    kind: str | None = None
    nodes: Path | None = None


def group_files_by_source(paths: Sequence[str | Path]) -> tuple[SourceFiles, ...]:
    r"""Group files by source and kind: lists of jobs first, then node lists, then telemetry and bills.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     nodes, jobs = Path(folder) / "a.txt", Path(folder) / "b.csv"
    ...     _ = nodes.write_text("NodeName=n1 Gres=gpu:a100:4\n")
    ...     _ = jobs.write_text("job_id,submission_time,duration,num_gpu\na,0,7200,8\n")
    ...     [(part.source, part.files[0].name) for part in group_files_by_source([nodes, jobs])]
    [('itp', 'b.csv'), ('nodes', 'a.txt')]
    """
    paths_by_source: dict[tuple[str, str | None], list[Path]] = {}
    for path in _iterate_files(paths):
        source = detect_source(path)
        paths_by_source.setdefault((source, SOURCES[source].kind(path)), []).append(path)
    _merge_kubernetes_lists(paths_by_source)
    source_files = [SourceFiles(source, tuple(files), kind) for (source, kind), files in paths_by_source.items()]
    merged_files = _attach_node_lists(source_files)
    return tuple(
        sorted(merged_files, key=lambda group: (group.source not in JOB_SOURCE_NAMES, group.source != NODES_SOURCE))
    )


def add_sources(source_files: Sequence[SourceFiles], directory: str | Path, **options: Any) -> list[ImportResult]:  # noqa: ANN401 - of any reader
    """Import groups of files into a dataset so that each source has exactly the data of these files.

    Parameters
    ----------
    source_files : sequence of SourceFiles
        Groups of files, each of one source.
    directory : str or Path
        A dataset, or a new or empty folder.
    **options
        Options of any reader; each source takes those that it knows.

    Returns
    -------
    list of ImportResult
        One for each group.
    """
    results = []
    for group in source_files:
        known_options = SOURCES[group.source].options
        group_options = {name: value for name, value in options.items() if name in known_options and value is not None}
        if group.nodes is not None:
            group_options["nodes"] = group.nodes
        is_changed = not _holds_same_files(Path(directory), group, group_options)
        results.append(add_files(group.source, group.files, directory, replace_source=is_changed, **group_options))
    return results


def find_utc_offsets(source_files: Sequence[SourceFiles]) -> tuple[tuple[str, ...], str | None]:
    r"""Find the UTC offsets in the times of files, and a time without one whose zone the user must state.

    Only the first lines of each file are read. Public traces need no zone because their readers know it.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "sacct.txt"
    ...     _ = path.write_text("JobID|Submit\n1|2025-01-06T00:00:01\n2|2025-01-06T00:00:01+01:00\n")
    ...     find_utc_offsets([SourceFiles("slurm", (path,))])
    (('+01:00',), '2025-01-06T00:00:01')
    """
    offsets: dict[str, None] = {}
    time_without_offset = None
    public_names = {source.name for source in PUBLIC_SOURCES}
    for group in source_files:
        needs_zone = "tz" in SOURCES[group.source].options and group.source not in (*public_names, NODES_SOURCE)
        for path in group.files:
            for time_match in LOG_TIME_PATTERN.finditer("\n".join(read_head(path) or ())):
                if time_match[1]:
                    offsets[time_match[1]] = None
                elif needs_zone and time_without_offset is None:
                    time_without_offset = time_match[0].strip()
    return tuple(offsets), time_without_offset


def _iterate_files(paths: Sequence[str | Path]) -> Iterator[Path]:
    """Yield files, and the files inside folders; refuse a folder that is a dataset."""
    for path in map(Path, paths):
        if not path.is_dir():
            yield path
            continue
        if (path / DATASET_MARK.file).is_file():
            todo = "Give the dataset alone: gpuplanner ingest adds files to it."
            raise TraceFormatError(str(path), "a file, or a folder of files", "a dataset", todo)
        inner_paths = sorted(inner for inner in path.iterdir() if inner.is_file() and not inner.name.startswith("."))
        if not inner_paths:
            todo = "Give the files that sacct, kubectl or scontrol wrote."
            raise TraceFormatError(str(path), "files of a cluster", "an empty folder", todo)
        yield from inner_paths


def _merge_kubernetes_lists(paths_by_source: dict[tuple[str, str | None], list[Path]]) -> None:
    """Merge Kubernetes node lists into the group of the Kubernetes dump, in place."""
    if (KUBERNETES_SOURCE, None) not in paths_by_source:
        return
    for path in paths_by_source.pop((NODES_SOURCE, None), []):
        source = KUBERNETES_SOURCE if looks_like_kubernetes(path) else NODES_SOURCE
        paths_by_source.setdefault((source, None), []).append(path)


def _attach_node_lists(source_files: Sequence[SourceFiles]) -> Iterator[SourceFiles]:
    """Yield the groups of files, with a node list put into the group of its jobs where the reader takes both."""
    node_lists = {group.source: group for group in source_files if group.kind == "node list" and len(group.files) == 1}
    n_groups = Counter(group.source for group in source_files)
    for group in source_files:
        node_list = node_lists.get(group.source, group)
        if node_list is not group and "nodes" in SOURCES[group.source].options:
            yield replace(group, nodes=node_list.files[0])
        elif group not in node_lists.values() or n_groups[group.source] == 1:
            yield group


def _holds_same_files(directory: Path, source_files: SourceFiles, group_options: Mapping[str, Any]) -> bool:
    """Whether a dataset has exactly these files of a source, read with the same options, or nothing of the source."""
    if not (directory / DATASET_MARK.file).is_file():
        return True  # nothing there that could be forgotten
    for facts in read_provenance(directory).get("sources", ()):
        read_terms = facts.get("read_with", {})
        if (facts["source"], read_terms.get("kind")) != (source_files.source, source_files.kind):
            continue
        has_same_options = all(read_terms.get(name) == group_options.get(name) for name in ("tz", "boards"))
        files = [*source_files.files, *((source_files.nodes,) if source_files.nodes else ())]
        known_hashes = {str(file["sha256"]) for file in facts["files"]}
        return has_same_options and known_hashes == set(map(hash_file, files))
    return True


def require_jobs(table_names: Iterable[str], files: Sequence[str | Path], folder: str | Path | None = None) -> None:
    """Refuse files that have no list of jobs.

    Parameters
    ----------
    table_names : iterable of str
        Tables that the files gave.
    files : sequence of str or Path
        The files, for the message.
    folder : str or Path, optional
        Dataset folder into which they were read, for the message.

    Raises
    ------
    TraceFormatError
        If there is no table of jobs.

    Examples
    --------
    >>> require_jobs(["inventory"], ["nodes.txt"])
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.TraceFormatError: start: expected a list of jobs; got inventory in 'nodes.txt'. Add ...
    """
    if "jobs" in table_names:
        return
    names_text = examples([printable_file_name(path) for path in files])
    given_tables = list(table_names)
    if {"samples", "coverage", "processes"} & set(given_tables):
        got = f"readings of GPUs alone in {names_text}"
        todo = "Readings show how busy GPUs are, not which jobs requested them."
        if folder is not None:
            todo += f" To use the readings alone: gpuplanner describe {folder}, gpuplanner forecast {folder}."
    else:
        got, todo = f"{', '.join(given_tables) or 'nothing'} in {names_text}", ""
        if {"requests", "serving", "gauges"} & set(given_tables):
            todo = "To plan inference services alone, name them in a file and add --services services.yaml."
    slurm, kubernetes = (f"'{export_command(name)}'" for name in ("sacct", "kubectl"))
    advice = "Add the list of jobs, and start again with all files. Commands that write it: on Slurm"
    todo = f"{advice} {slurm}; on Kubernetes {kubernetes}. {todo}".rstrip()
    raise TraceFormatError("start", "a list of jobs", got, todo)
