"""One writer of a folder at a time: a lock beside it, which ends with the process that holds it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuplanner.errors import OutputError, message


@contextmanager
def sole_writer(directory: str | Path) -> Iterator[None]:
    """Keep every other run from writing a folder while the block runs.

    The lock is held by the system for this process (``flock``), so a run that was killed leaves none behind.
    Nobody waits: the second run is told to come back, since what it read may be old by then.

    Parameters
    ----------
    directory : str or Path
        The folder, which need not exist yet.

    Raises
    ------
    OutputError
        If another run holds the lock, or there is no place for it.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with sole_writer(Path(place) / "trace"), sole_writer(Path(place) / "trace"):
    ...         pass
    Traceback (most recent call last):
        ...
    gpuplanner.errors.OutputError: cannot write ...trace: expected to be the only run that writes it; ...
    """
    directory = Path(directory).absolute()
    path = directory.with_name(f".{directory.name}.lock")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        handle = _locked(path)
    except BlockingIOError as error:
        expected, todo = "to be the only run that writes it", "Wait for the other run, then start again."
        raise OutputError(
            message(f"cannot write {directory}", expected, "another run at it", todo)
        ) from error
    except OSError as error:
        expected, todo = "a writable folder with free space", "Choose another folder with -o."
        got = error.strerror or str(error)
        raise OutputError(message(f"cannot write {directory}", expected, got, todo)) from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def _locked(path: Path) -> int:
    """Open and lock the file; one that its last holder removed in between is opened anew."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_nlink:
                return handle
        except OSError:
            os.close(handle)
            raise
        os.close(handle)
