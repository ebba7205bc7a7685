"""One file, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from gpuplanner.files.faults import explained
from gpuplanner.files.lock import sole_writer
from gpuplanner.files.ours import note_written
from gpuplanner.files.place import new_file, require_file


def write_atomically(
    path: str | Path,
    write: Callable[[Path], object],
    *,
    inputs: Iterable[str | Path] = (),
    guarded: bool = True,
) -> Path:
    """Let ``write`` fill a temporary file beside ``path``, then move it into place in one step.

    Parameters
    ----------
    path : str or Path
        Where the file shall stand. Missing folders are made; through a link, what it points to is written.
    write : callable
        Gets the temporary path and writes the whole file.
    inputs : iterable of str or Path
        Files that the run reads: none of them may be the one that is replaced.
    guarded : bool
        As for :func:`require_file`: what gpuplanner did not write stays.

    Returns
    -------
    Path
        ``path``.

    Raises
    ------
    OutputError
        If the folder cannot be written or the disk is full, another run writes the file, a folder or a device
        stands there, an input, or a file of somebody else. What stood at ``path`` is untouched.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "a.txt", lambda p: p.write_text("x")).read_text()
    'x'
    """
    path = Path(path)
    place = require_file(path, inputs=inputs, guarded=guarded)
    with sole_writer(path):
        temporary = new_file(place)
        try:
            with explained(path, within=(temporary, place)):
                write(temporary)
                temporary.chmod(place.stat().st_mode & 0o777 if place.exists() else 0o666 & ~umask())
                if guarded:
                    note_written(place, temporary)
                temporary.replace(place)
        finally:
            temporary.unlink(missing_ok=True)
    return path


def umask() -> int:
    """Rights that this process takes from every new file."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
