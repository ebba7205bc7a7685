"""What a folder that grows remembers: the files that it was made from, and the terms on which they were read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.files import Mark
from gpuplanner.inbox.core.folder import open_folder

TERMS = "appended_with"
"""Name in provenance.json of the source and options that all files were read with."""


def files_before(
    directory: str | Path, mark: Mark, what: str
) -> tuple[tuple[tuple[str, str], ...], dict[str, Any] | None]:
    """Name and hash of the files that a folder was made from, and the terms they were read on.

    Parameters
    ----------
    directory : str or Path
        A folder made with ``--append``, or a new or empty one.
    mark : Mark
        Its kind.
    what : str
        What it holds, for messages: ``"a trace"``.

    Returns
    -------
    files : tuple of (str, str)
        Name and SHA-256, in the order in which they were read.
    terms : dict or None
        Source and options; None for a new folder.

    Raises
    ------
    TraceFormatError
        If the folder is of another kind, was read at once, or its list of files was changed by hand.

    Examples
    --------
    >>> files_before("no/such/folder", Mark("provenance.json", "x"), "a trace")
    ((), None)
    """
    directory = Path(directory)
    if not directory.is_dir() or not any(directory.iterdir()):
        return (), None
    provenance = open_folder(directory, mark, what).provenance
    terms, files = provenance.get(TERMS), provenance.get("files")
    if not isinstance(terms, dict) or not isinstance(files, list):
        expected = "a folder made with --append"
        todo = "Choose a new folder with -o and read all files into it."
        raise TraceFormatError(message(str(directory), expected, "one that was read at once", todo))
    try:
        return tuple((str(file["name"]), str(file["sha256"])) for file in files), terms
    except (KeyError, TypeError) as error:
        expected, todo = "name and hash of each file", "Read all files into a new folder."
        where = str(directory / mark.file)
        raise TraceFormatError(message(where, expected, "a list that was changed by hand", todo)) from error


def terms_of(source: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Source and options as they are kept, ready for JSON.

    Examples
    --------
    >>> terms_of("slurm", {"tz": "UTC", "origin": None, "columns": ("a", "b")})
    {'source': 'slurm', 'columns': ['a', 'b'], 'tz': 'UTC'}
    """
    stated = {name: value for name, value in sorted(options.items()) if value is not None}
    plain = {name: list(value) if isinstance(value, tuple) else str(value) for name, value in stated.items()}
    return {"source": source, **plain}


def require_terms(directory: str | Path, told: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> None:
    """Refuse to add to a folder on other terms than it was made on.

    Raises
    ------
    TraceFormatError
        Naming both.
    """
    if told is not None and told != wanted:
        expected = f"the terms it was made with, {told}"
        todo = "Use them again, or read all files into a new folder."
        raise TraceFormatError(message(str(directory), expected, str(wanted), todo))


def linked(source: str | Path, target: str | Path) -> None:
    """Give the new folder a file of the old one as it is: files are replaced and never changed, so they may share."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
