"""A trace folder that grows: only files that are new or changed are read, and every run ends in whole tables.

The folder is a trace like any other, with one more folder in it: ``parts`` holds the trace of each file, named
after the hash of its bytes. The tables on top follow from the parts alone (:func:`~.core.merge_jobs.merge`),
so that files may come in any order and a file that was changed at its source takes back all it said before.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.errors import TraceFormatError, examples, file_name, message
from gpuplanner.files import sole_writer
from gpuplanner.inbox.core.folder import replace_folder
from gpuplanner.inbox.core.growth import TERMS, files_before, linked, require_terms, terms_of
from gpuplanner.inbox.core.merge_jobs import SUPERSEDED, merge
from gpuplanner.inbox.core.store import MARK, open_trace, tables_of, write_trace
from gpuplanner.inbox.core.text_file import fingerprint
from gpuplanner.inbox.core.trace import Trace
from gpuplanner.inbox.registry import ALIASES, AUTO, SOURCES, detect, name_of, read

PARTS = "parts"
KIND = "kind"
HASH_LETTERS = 16
"""Letters of a hash that name a part: 64 bits."""


@dataclass(frozen=True)
class Appended:
    """What a run did to a folder.

    Attributes
    ----------
    trace : Trace
        All that the folder holds now.
    added, replaced, unchanged : tuple of str
        Names of the files that are new, that took the place of an older one of their name, and that were there
        already and not read.
    """

    trace: Trace
    added: tuple[str, ...]
    replaced: tuple[str, ...]
    unchanged: tuple[str, ...]

    def news(self) -> str:
        """One line: what was done, or that there was nothing to do."""
        if not self.added and not self.replaced:
            return f"nothing to do: {len(self.unchanged)} file(s) read before, none new or changed"
        rows = self.trace.rejects.filter(pl.col("reason") == SUPERSEDED).height
        return (
            f"{len(self.added)} file(s) added, {len(self.replaced)} replaced, {len(self.unchanged)} read before; "
            f"{rows} row(s) told again by a later export"
        )


def append(
    source: str,
    paths: Sequence[str | Path],
    directory: str | Path,
    **options: Any,  # noqa: ANN401 - of any reader
) -> Appended:
    r"""Add job lists to a folder; files whose bytes it knows are not read again.

    A file is known by its name without its folder: one of the same name and other bytes takes its place. Where
    files overlap, the latest export wins, see :func:`~.core.merge_jobs.merge`.

    Parameters
    ----------
    source : str
        As in :func:`gpuplanner.inbox.read`.
    paths : sequence of str or Path
        Files, each whole in itself.
    directory : str or Path
        A folder that this function made, or a new or empty one.
    **options
        ``tz``, ``origin`` and ``columns`` as in :func:`gpuplanner.inbox.read`: the same in every run.

    Returns
    -------
    Appended
        The whole trace, and what became of each file. If nothing is new, nothing is written.

    Raises
    ------
    TraceFormatError
        If a file holds no jobs or cannot be read, the folder was not made by this
        function, or was made with another source or other options. Nothing is changed then.
    OutputError
        If the folder cannot be written, or another run is writing it.

    Examples
    --------
    >>> import tempfile
    >>> header = "job_id,submission_time,duration,num_gpu\n"
    >>> with tempfile.TemporaryDirectory() as place:
    ...     january, store = Path(place) / "january.csv", Path(place) / "store"
    ...     _ = january.write_text(header + "a,0,3600,8\nb,60,3600,8\n")
    ...     first = append("itp", [january], store)
    ...     again = append("itp", [january], store)
    ...     _ = january.write_text(header + "a,0,3600,8\n")
    ...     mended = append("itp", [january], store)
    >>> first.added, again.unchanged, mended.replaced, mended.trace.summary()["gpu_hours"]
    (('january.csv',), ('january.csv',), ('january.csv',), 8.0)
    """
    directory = Path(directory)
    files = _by_name(paths)
    hashes = {name: fingerprint(path) for name, path in files.items()}
    with sole_writer(directory):
        before, told = files_before(directory, MARK, "a trace")
        known = dict(before)
        fresh = [name for name, key in hashes.items() if not _is_known(name, key, known)]
        kept = {name: key for name, key in known.items() if name not in fresh}
        _refuse_twins([*kept.items(), *((name, hashes[name]) for name in fresh)])
        wanted = _terms(source, [files[name] for name in fresh], told, options)
        require_terms(directory, told, wanted)
        unchanged = tuple(name for name in files if name not in fresh)
        if not fresh:
            return Appended(open_trace(directory), (), (), unchanged)
        new = [_read(wanted["source"], files[name], options) for name in fresh]
        trace = merge([*(open_trace(_place(directory, key)) for key in kept.values()), *new])
        trace = replace(trace, provenance={**trace.provenance, TERMS: wanted})

        def fill(folder: Path) -> None:
            for key in kept.values():
                shutil.copytree(_place(directory, key), _place(folder, key), copy_function=linked)
            for part in new:
                write_trace(part, _place(folder, part.provenance["files"][0]["sha256"]))

        replace_folder(directory, MARK, tables_of(trace), trace.quality, trace.provenance, more=fill)
    replaced = tuple(name for name in fresh if name in known)
    return Appended(trace, tuple(name for name in fresh if name not in known), replaced, unchanged)


def _by_name(paths: Sequence[str | Path]) -> dict[str, Path]:
    files = {file_name(path): Path(path) for path in paths}
    if len(files) != len(paths) or not files:
        got = examples([str(path) for path in paths]) if paths else "none"
        todo = "Rename one of them: a file is known by its name."
        raise TraceFormatError(message("files to append", "files of different names", got, todo))
    return files


def _is_known(name: str, key: str, known: Mapping[str, str]) -> bool:
    """True if these bytes are there under this name, or under another one: the file was renamed since."""
    return known[name] == key if name in known else key in known.values()


def _refuse_twins(files: Sequence[tuple[str, str]]) -> None:
    """The same bytes under two names would be one part."""
    names: dict[str, str] = {}
    for name, key in files:
        twin = names.setdefault(key, name)
        if twin != name:
            got = f"{twin} and {name}, which are equal"
            raise TraceFormatError(message("files to append", "different files", got, "Give one of them."))


def _terms(
    source: str, fresh: Sequence[Path], told: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Source, kind of its files and options; where nothing is new to look into, "auto" and the kind are as told."""
    if not fresh and told is not None:
        name = (
            str(told["source"]) if source == AUTO else name_of(source, [], SOURCES, detect, aliases=ALIASES)
        )
        return terms_of(name, {**options, KIND: told.get(KIND)})
    name = name_of(source, fresh, SOURCES, detect, aliases=ALIASES)
    kinds = {str(path): SOURCES[name].kind(path) for path in fresh}
    if len(set(kinds.values())) > 1:
        got = examples([f"{path}: {kind}" for path, kind in kinds.items()])
        todo = "Read each kind into a folder of its own."
        raise TraceFormatError(message(f"source {name!r}", "files of one kind", got, todo))
    return terms_of(name, {**options, KIND: next(iter(kinds.values()), None)})


def _read(source: str, path: Path, options: Mapping[str, Any]) -> Trace:
    trace = read(source, path, **options)
    if isinstance(trace, Trace):
        return trace
    got = f"a table {trace.kind!r}"
    raise TraceFormatError(message(str(path), "a list of jobs", got, "Read it without --append."))


def _place(directory: Path, key: str) -> Path:
    return directory / PARTS / key[:HASH_LETTERS]
