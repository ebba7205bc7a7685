"""The definition of a source: file kinds, how to recognise and read each."""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gpuplanner.core.errors import GpuPlannerWarning, TraceFormatError, examples
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.source_fields import Field
from gpuplanner.ingest.text_files import head

Sniff = Callable[[Sequence[str]], bool]
Reader = TypeVar("Reader", bound=Callable[..., Dataset])

OPTIONS = frozenset({"tz", "origin", "nodes", "columns", "boards", "node", "gpu", "interval_s", "query"})
"""What files may leave out and a user may tell."""


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
        Reads paths into a :class:`Dataset` of one source; takes the keyword arguments in `options`.
    sniff : callable
        True if the first lines of a file look like this source.
    options : frozenset of str
        Which options mean something here: ``tz``, ``origin``, ``nodes``, ``columns``, ``boards``; for telemetry
        also ``node``, ``gpu`` and ``interval_s``.
    kind : callable
        Which of its kinds of files a path is; None where it has but one. Files of two kinds may tell of the same
        jobs under other names, so they are never put together.
    whole_files : callable
        True if a path is of a list of jobs that is whole in itself, so that files may come one by one and a changed
        one takes back all it said. Otherwise the files of one call belong together.
    by_metric : bool
        Of telemetry: rows are readings of single metrics, and several make a sample; otherwise each row is one.
    read_long : str, optional
        Where the reader is of files that may be longer than the memory, ``module:name`` below ``gpuplanner.ingest``:
        it takes the same options. Of a list of jobs it takes a folder ``into`` too, which gets the tables of jobs and
        rejects, and what is given back has neither; of telemetry a ``way``, whose folder gets a file in each month,
        and what is given back has no samples.
    """

    name: str
    description: str
    read: Callable[..., Dataset]
    sniff: Sniff
    options: frozenset[str] = frozenset()
    kind: Callable[[str | Path], str | None] = lambda _: None
    whole_files: Callable[[str | Path], bool] = lambda _: True
    by_metric: bool = False
    read_long: str | None = None


@dataclass(frozen=True)
class Form:
    """One kind of files that a source publishes.

    - ``what``: What it holds, for messages.
    - ``entry``: Where its reader is, ``module:name`` below ``gpuplanner.ingest``: it is loaded when it is used. It
      says itself how its files look (:func:`looks`) and takes the keyword arguments in `options`.
    - ``options``: As in :class:`Source`.
    - ``whole_files``: It is a list of jobs, and each file is whole in itself.
    - ``header``: Columns by which it is known, where its reader takes other files too.
    """

    what: str
    entry: str
    options: frozenset[str] = frozenset()
    whole_files: bool = True
    header: tuple[str, ...] = ()

    def sniff(self, lines: Sequence[str]) -> bool:
        """True if the first lines of a file look like it."""
        return header_has(self.header)(lines) if self.header else bool(load(self.entry).sniff(lines))


def published(name: str, description: str, *forms: Form, by_metric: bool = False, in_blocks: bool = False) -> Source:
    """A source of one or several kinds of files, which are told apart by their first lines.

    `by_metric` as in :class:`Source`; `in_blocks`: the reader of its one kind can read files of any length.
    """

    def of(path: str | Path) -> Form:
        lines = head(path) if len(forms) > 1 else []
        return next((form for form in forms if lines and form.sniff(lines)), forms[0])

    def read(paths: Sequence[str | Path], **options: Any) -> Dataset:  # noqa: ANN401 - of any reader
        chosen = {str(path): of(path) for path in paths}
        if len({form.what for form in chosen.values()}) > 1:
            got = examples([f"{path}: {form.what}" for path, form in chosen.items()])
            raise TraceFormatError(f"source {name!r}", "files of one kind", got, "Read each kind on its own.")
        form = next(iter(chosen.values()), forms[0])
        where = f"source {name!r}, {form.what}" if len(forms) > 1 else f"source {name!r}"
        found: Dataset = load(form.entry)(paths, **useful(where, options, form.options))
        return found

    return Source(
        name,
        description,
        read,
        sniff=lambda lines: any(form.sniff(lines) for form in forms),
        options=frozenset().union(*(form.options for form in forms)),
        kind=lambda path: of(path).what if len(forms) > 1 else None,
        whole_files=lambda path: of(path).whole_files,
        by_metric=by_metric,
        read_long=forms[0].entry if in_blocks else None,
    )


def load(entry: str) -> Any:  # noqa: ANN401 - whatever has a name
    """What has a name in a module below ``gpuplanner.ingest``: ``module:name``."""
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(f"gpuplanner.ingest.{module}"), name)


def looks(sniff: Sniff) -> Callable[[Reader], Reader]:
    """Say of a reader how the files look that it reads."""

    def marked(reader: Reader) -> Reader:
        reader.__dict__["sniff"] = sniff
        return reader

    return marked


def useful(where: str, options: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """Leave out the options that would change nothing, with a warning, so that one script can read many sources.

    Examples
    --------
    >>> useful("source 'philly'", {"tz": "UTC"}, frozenset({"tz"}))
    {'tz': 'UTC'}
    """
    strange = sorted(set(options) - known)
    nowhere = [name for name in strange if name not in OPTIONS]
    if nowhere:
        expected = f"no options but {', '.join(sorted(known))}" if known else "no options"
        todo = "Leave it out: it would change nothing."
        raise TraceFormatError(where, expected, ", ".join(nowhere), todo)
    if strange:
        warnings.warn(f"{where}: {', '.join(strange)}: changes nothing here", GpuPlannerWarning, stacklevel=3)
    return {name: value for name, value in options.items() if name in known}


def header_has(names: Iterable[str], separator: str = ",") -> Sniff:
    """A test for files whose header line has all these names.

    Examples
    --------
    >>> header_has(["a", "b"])(['"B",c,A'])
    True
    """
    wanted = {name.casefold() for name in names}

    def sniff(lines: Sequence[str]) -> bool:
        return wanted <= {name.strip().strip('"').casefold() for name in lines[0].split(separator)}

    return sniff


def matches(pattern: str, flags: int = 0) -> Sniff:
    r"""A test for files in whose first lines a pattern is found.

    Examples
    --------
    >>> matches(r"\A#.*\bgpu\s")(["# gpu   pwr", "# Idx     W"])
    True
    """
    found = re.compile(pattern, flags)
    return lambda lines: found.search("\n".join(lines)) is not None


def columns_of(columns: Mapping[str, Field]) -> Sniff:
    """A test for files whose header line has every column that a reader needs."""
    return header_has(name for name, field in columns.items() if not field.optional)
