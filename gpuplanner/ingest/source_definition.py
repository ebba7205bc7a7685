"""The definition of a source: its kinds of files, and how each is recognised and read."""

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
from gpuplanner.ingest.text_files import read_head

Sniffer = Callable[[Sequence[str]], bool]
"""Function that tells from the first lines of a file whether it is of a certain source."""
Reader = TypeVar("Reader", bound=Callable[..., Dataset])
"""Type of a function that reads files into a dataset, kept by the decorator :func:`register_sniffer`."""

READER_OPTIONS = frozenset({"tz", "origin", "nodes", "columns", "boards", "node", "gpu", "interval_s", "query"})
"""Names of all options of readers, with which a user states what files leave out, such as ``tz``."""


@dataclass(frozen=True)
class Source:
    """A source: a program or publication whose files can be read.

    Attributes
    ----------
    name : str
        Name that the user types.
    description : str
        Description in one line.
    read : callable
        Reads paths into a :class:`Dataset` of one source; takes the keyword arguments in `options`.
    sniff : callable
        Whether the first lines of a file look like this source.
    options : frozenset of str
        Options that apply to this source: ``tz``, ``origin``, ``nodes``, ``columns``, ``boards``; for telemetry also
        ``node``, ``gpu`` and ``interval_s``.
    kind : callable
        Returns the kind of files that a path is; None where the source has one kind. Files of two kinds may describe
        the same jobs under other names, so they are never combined.
    whole_files : callable
        Whether a path is a list of jobs that is complete in itself, so that files may be imported one by one and a
        changed file replaces its old rows. Otherwise the files of one call belong together.
    by_metric : bool
        For telemetry: rows are readings of single metrics, of which several make a sample; otherwise each row is a
        sample.
    read_long : str, optional
        Reader of files larger than memory, ``module:name`` below ``gpuplanner.ingest``, with the same options. For a
        list of jobs it takes a folder ``into``, to which jobs and rejects are written instead of being returned; for
        telemetry an ``output``, whose folder gets a file for each month instead of returned samples.
    """

    name: str
    description: str
    read: Callable[..., Dataset]
    sniff: Sniffer
    options: frozenset[str] = frozenset()
    kind: Callable[[str | Path], str | None] = lambda _: None
    whole_files: Callable[[str | Path], bool] = lambda _: True
    by_metric: bool = False
    read_long: str | None = None


@dataclass(frozen=True)
class SourceForm:
    """One kind of files of a source, such as the job log of Philly, with its reader.

    - ``content``: What the files hold, for messages.
    - ``entry``: Its reader, ``module:name`` below ``gpuplanner.ingest``, imported on use. The reader has a test for its
      files (:func:`register_sniffer`) and takes the keyword arguments in `options`.
    - ``options``: As in :class:`Source`.
    - ``whole_files``: Each file is a complete list of jobs.
    - ``header``: Columns that identify it, where its reader takes other files too.
    """

    content: str
    entry: str
    options: frozenset[str] = frozenset()
    whole_files: bool = True
    header: tuple[str, ...] = ()

    def sniff(self, lines: Sequence[str]) -> bool:
        """Whether the first lines of a file look like this kind."""
        return has_header_columns(self.header)(lines) if self.header else bool(load_entry(self.entry).sniff(lines))


def define_source(
    name: str, description: str, *forms: SourceForm, by_metric: bool = False, in_blocks: bool = False
) -> Source:
    """Define a source of one or several kinds of files, which are recognised by their first lines.

    Parameters
    ----------
    name : str
        Name that the user types.
    description : str
        Description in one line.
    *forms : SourceForm
        Kinds of files, the more specific ones first.
    by_metric : bool
        For telemetry: rows are readings of single metrics, of which several make a sample.
    in_blocks : bool
        The reader of the only kind can read files larger than memory.
    """

    def find_form(path: str | Path) -> SourceForm:
        """Return the kind of files of the source that a file is of, by its first lines; else the first kind."""
        lines = read_head(path) if len(forms) > 1 else []
        return next((form for form in forms if lines and form.sniff(lines)), forms[0])

    def read_paths(paths: Sequence[str | Path], **options: Any) -> Dataset:  # noqa: ANN401 - of any reader
        """Read files of this source, of one or several kinds."""
        forms_by_path = {str(path): find_form(path) for path in paths}
        if len({form.content for form in forms_by_path.values()}) > 1:
            got = examples([f"{path}: {form.content}" for path, form in forms_by_path.items()])
            raise TraceFormatError(f"source {name!r}", "files of one kind", got, "Read each kind on its own.")
        form = next(iter(forms_by_path.values()), forms[0])
        location = f"source {name!r}, {form.content}" if len(forms) > 1 else f"source {name!r}"
        dataset: Dataset = load_entry(form.entry)(paths, **select_known_options(location, options, form.options))
        return dataset

    return Source(
        name,
        description,
        read_paths,
        sniff=lambda lines: any(form.sniff(lines) for form in forms),
        options=frozenset().union(*(form.options for form in forms)),
        kind=lambda path: find_form(path).content if len(forms) > 1 else None,
        whole_files=lambda path: find_form(path).whole_files,
        by_metric=by_metric,
        read_long=forms[0].entry if in_blocks else None,
    )


def load_entry(entry: str) -> Any:  # noqa: ANN401 - whatever has a name
    """Import a reader by its name ``module:name`` below ``gpuplanner.ingest``."""
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(f"gpuplanner.ingest.{module}"), name)


def register_sniffer(sniff: Sniffer) -> Callable[[Reader], Reader]:
    """Decorate a reader with the test that recognises its files."""

    def attach_sniffer(reader: Reader) -> Reader:
        """Attach the test for its files to a reader."""
        reader.__dict__["sniff"] = sniff
        return reader

    return attach_sniffer


def select_known_options(location: str, options: Mapping[str, Any], known_options: frozenset[str]) -> dict[str, Any]:
    """Select the options that a source knows, and warn about the others, so that one script can read many sources.

    Raises
    ------
    TraceFormatError
        If an option is known to no source.

    Examples
    --------
    >>> select_known_options("source 'philly'", {"tz": "UTC"}, frozenset({"tz"}))
    {'tz': 'UTC'}
    """
    unknown = sorted(set(options) - known_options)
    unknown_anywhere = [name for name in unknown if name not in READER_OPTIONS]
    if unknown_anywhere:
        expected = f"no options but {', '.join(sorted(known_options))}" if known_options else "no options"
        todo = "Leave it out: it would change nothing."
        raise TraceFormatError(location, expected, ", ".join(unknown_anywhere), todo)
    if unknown:
        warnings.warn(f"{location}: {', '.join(unknown)}: changes nothing here", GpuPlannerWarning, stacklevel=3)
    return {name: value for name, value in options.items() if name in known_options}


def has_header_columns(names: Iterable[str], separator: str = ",") -> Sniffer:
    """Create a test for files whose header line has all these names.

    Examples
    --------
    >>> has_header_columns(["a", "b"])(['"B",c,A'])
    True
    """
    wanted = {name.casefold() for name in names}

    def sniff(lines: Sequence[str]) -> bool:
        """Whether the first line has all the columns."""
        return wanted <= {name.strip().strip('"').casefold() for name in lines[0].split(separator)}

    return sniff


def matches_pattern(pattern: str, flags: int = 0) -> Sniffer:
    r"""Create a test for files whose first lines match a pattern.

    Examples
    --------
    >>> matches_pattern(r"\A#.*\bgpu\s")(["# gpu   pwr", "# Idx     W"])
    True
    """
    compiled = re.compile(pattern, flags)
    return lambda lines: compiled.search("\n".join(lines)) is not None


def has_required_columns(columns: Mapping[str, Field]) -> Sniffer:
    """Create a test for files whose header line has every column that a reader needs."""
    return has_header_columns(name for name, field in columns.items() if not field.optional)
