"""One writer of a place at a time: a lock beside it, which ends with the process that holds it."""

from __future__ import annotations

import contextlib
import errno
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from gpuplanner.errors import GpuPlannerWarning
from gpuplanner.files.faults import cannot_write, explained
from gpuplanner.files.leftovers import recover
from gpuplanner.files.place import lock_of, place_of

_HELD: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())
"""Places that this thread writes: a block within another one on the same place is part of it."""

_NO_LOCKS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK})


@contextmanager
def sole_writer(path: str | Path) -> Iterator[Path]:
    """Keep every other run from writing a folder or file while the block runs, and clear up after killed ones.

    The lock is held by the system for this process (``flock``), so a run that was killed leaves none behind.
    Nobody waits: the second run is told to come back, since what it read may be old by then. Put it around the
    reading as well, so that nobody reads for an hour in vain. Within the block, writers of the same place, which
    take the lock themselves, find it taken for them.

    Parameters
    ----------
    path : str or Path
        The folder or file, which need not exist yet. Missing folders above it are made, and taken away again if
        nothing came to stand there.

    Yields
    ------
    Path
        The place itself: absolute, and without links.

    Raises
    ------
    OutputError
        If another run holds the lock, or there is no place for it.

    Warns
    -----
    GpuPlannerWarning
        If the file system knows no locks, or something had to be put back after a run that was killed.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, sole_writer(Path(folder) / "trace") as place:
    ...     place.name
    'trace'
    """
    place = place_of(path)
    if place in _HELD.get():
        yield place
        return
    with explained(Path(path)):
        made = _made_above(place)
    try:
        with _locked(path, place) as locked:
            if locked:
                with explained(Path(path)):
                    recover(place)
            token = _HELD.set(_HELD.get() | {place})
            try:
                yield place
            finally:
                _HELD.reset(token)
    finally:
        with contextlib.suppress(OSError):
            for folder in made:
                folder.rmdir()


@contextmanager
def _locked(path: str | Path, place: Path) -> Iterator[bool]:
    from filelock import FileLock, Timeout  # takes 30 ms, and most of the package never writes

    lock = FileLock(lock_of(place), mode=0o600, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        expected, todo = "to be the only run that writes it", "Wait for the other run, then start again."
        raise cannot_write(path, "another run at it", expected=expected, todo=todo) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise cannot_write(path, error.strerror or str(error)) from error
        lock_of(place).unlink(missing_ok=True)
        text = f"{path}: this file system knows no locks; see to it that no other run writes it meanwhile"
        warnings.warn(text, GpuPlannerWarning, stacklevel=4)
        yield False
        return
    try:
        yield True
    finally:
        lock_of(place).unlink(missing_ok=True)
        lock.release()


def _made_above(place: Path) -> list[Path]:
    """Make the folders above a place; gives those that were missing, the lowest first."""
    missing = [above for above in place.parents if not above.exists()]
    place.parent.mkdir(parents=True, exist_ok=True)
    return missing
