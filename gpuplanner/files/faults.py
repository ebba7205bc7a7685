"""What a folder or a disk can do to a writer, said in the words of the house whichever library met it."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuplanner.errors import OutputError, message

WRITE_FAULTS = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EEXIST,
        errno.ENOTEMPTY,
        errno.EFBIG,
        errno.EBUSY,
        errno.EXDEV,
        errno.EIO,
        errno.ELOOP,
        errno.ENAMETOOLONG,
    }
)
"""Any other fault of the system is one of the program and passes unchanged."""

_NUMBER = re.compile(r"\(os error (\d+)\)")


@contextmanager
def explained(path: Path, *, within: tuple[Path, ...] = ()) -> Iterator[None]:
    """Turn what the system says against a writer into an :class:`OutputError`.

    Examples
    --------
    >>> with explained(Path("a.txt")):
    ...     raise OSError(errno.ENOSPC, "No space left on device")
    Traceback (most recent call last):
        ...
    gpuplanner.errors.OutputError: cannot write a.txt: ...; got No space left on device. Choose another place ...
    """
    try:
        yield
    except OutputError:
        raise
    except Exception as error:
        number = number_of(error)
        if number is None and (within or not isinstance(error, OSError)):
            raise
        if within and (number not in WRITE_FAULTS or _elsewhere(error, within)):
            raise
        raise cannot_write(path, os.strerror(number) if number else str(error)) from error


def number_of(error: BaseException) -> int | None:
    """Number of the fault of the system behind an error; polars keeps it in its text alone.

    Examples
    --------
    >>> number_of(OSError("No space left on device (os error 28)")) == errno.ENOSPC
    True
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if isinstance(error, OSError) or type(error).__module__.startswith("polars"):
        found = _NUMBER.search(str(error))
        return int(found.group(1)) if found else None
    return None


def cannot_write(
    path: str | Path,
    got: str,
    *,
    expected: str = "a writable place with free space",
    todo: str = "Choose another place with -o; nothing that stood there was changed.",
) -> OutputError:
    """The error of a result that cannot be written.

    Examples
    --------
    >>> str(cannot_write("a", "a file", expected="a folder", todo="Choose another."))
    'cannot write a: expected a folder; got a file. Choose another.'
    """
    return OutputError(message(f"cannot write {path}", expected, got, todo))


def _elsewhere(error: Exception, within: tuple[Path, ...]) -> bool:
    """True if the error names files, and none of them is being written."""
    names = [getattr(error, "filename", None), getattr(error, "filename2", None)]
    told = [Path(os.fsdecode(name)) for name in names if isinstance(name, str | bytes)]
    return bool(told) and not any(each in (name, *name.parents) for name in told for each in within)
