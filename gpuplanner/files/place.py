"""Where a result may stand, and the hidden names beside it that a run uses while it writes."""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuplanner.files.faults import cannot_write, explained
from gpuplanner.files.ours import require_ours, require_outside_datasets

OWN_FOLDER = "a folder of its own"


def place_of(path: str | Path) -> Path:
    """The absolute place that a path means; a link stays, and what it points to is written.

    Examples
    --------
    >>> place_of("/tmp/../out")
    PosixPath('/out')
    """
    try:
        place = Path(path).resolve()
    except (OSError, RuntimeError) as error:
        raise cannot_write(path, str(error)) from error
    if any("\udc80" <= letter <= "\udcff" for letter in str(place)):
        todo = "Choose another place with -o; nothing was changed."
        raise cannot_write(path, "bytes that are no UTF-8", expected="a place whose name is text", todo=todo)
    if not place.name:
        raise cannot_write(place, "the root of the file system", expected=OWN_FOLDER)
    return place


def require_folder(path: str | Path) -> Path:
    """The place of a folder that a run may put in place of what stands there.

    Such a folder changes places with a new one, so it can be neither where someone stands nor a mount.

    Examples
    --------
    >>> require_folder(".")
    Traceback (most recent call last):
        ...
    gpuplanner.errors.OutputError: cannot write .: expected a folder of its own; got the current folder. ...
    """
    place = place_of(path)
    require_outside_datasets(path, place)
    todo = "Name a new folder inside it with -o; nothing was changed."
    for stands, what in ((Path.cwd(), "the current folder"), (Path.home(), "the home folder")):
        stands = stands.resolve()
        if place == stands or place in stands.parents:
            got = what if place == stands else f"a folder that holds {what}"
            raise cannot_write(path, got, expected=OWN_FOLDER, todo=todo)
    if place.exists() and not place.is_dir():
        todo = "Choose another name with -o; nothing was changed."
        raise cannot_write(path, "a file", expected="a new folder or one that is there", todo=todo)
    if os.path.ismount(place):
        raise cannot_write(path, "a place where a disk is mounted", expected=OWN_FOLDER, todo=todo)
    return place


def require_file(path: str | Path, *, inputs: Iterable[str | Path] = (), guarded: bool = True) -> Path:
    """The place of a file that a run may put in place of an older one; to be asked before long work.

    Parameters
    ----------
    path : str or Path
        Where the file shall stand.
    inputs : iterable of str or Path
        Files that the run reads: none of them may be the one that is replaced.
    guarded : bool
        Refuse a file that gpuplanner did not write, unless :func:`overwriting` says otherwise. False is for records
        that are read, and so checked, before they are replaced.

    Returns
    -------
    Path
        The place: absolute, and without links.

    Raises
    ------
    OutputError
        If a folder, a device, a pipe, an input, or a file of somebody else stands there, the place is inside a
        dataset, or no folder can be above it.

    Examples
    --------
    >>> require_file("/dev/null")
    Traceback (most recent call last):
        ...
    gpuplanner.errors.OutputError: cannot write /dev/null: expected the name of a file; got a device. Choose ...
    """
    todo = "Choose another name; nothing was changed."
    place = place_of(path) if Path(path) != Path("/") else Path(path)
    with explained(Path(path)):
        mode = place.stat().st_mode if place.exists() else stat.S_IFREG
        above = next(folder for folder in place.parents if folder.exists()) if place.name else place
        if not above.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(above, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    if not stat.S_ISREG(mode):
        got = "a folder" if stat.S_ISDIR(mode) else "a pipe or socket"
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            got = "a device"
        raise cannot_write(path, got, expected="the name of a file", todo=todo)
    if any(Path(each).resolve() == place for each in inputs):
        raise cannot_write(path, "an input of this run", expected="a file of its own", todo=todo)
    require_outside_datasets(path, place)
    if guarded:
        require_ours(path, place)
    return place


def lock_of(place: Path) -> Path:
    """File by which runs that write one place keep apart."""
    return place.with_name(f".{place.name}.gpuplanner-lock")


def new_room(place: Path) -> Path:
    """Make the hidden folder beside a place in which its next content is made."""
    with explained(place):
        return Path(tempfile.mkdtemp(dir=place.parent, prefix=_prefix(place)))


def new_file(place: Path) -> Path:
    """Make the hidden file beside a place that shall become it."""
    with explained(place):
        handle, name = tempfile.mkstemp(dir=place.parent, prefix=_prefix(place), suffix=place.suffix)
        os.close(handle)
        return Path(name)


def left_beside(place: Path) -> Iterator[Path]:
    """Hidden files and folders beside a place that an earlier run made and did not take away."""
    pattern = re.compile(re.escape(_prefix(place)) + r"[a-z0-9_]{8}" + f"({re.escape(place.suffix)})?")
    with os.scandir(place.parent) as entries:
        names = sorted(entry.name for entry in entries if pattern.fullmatch(entry.name))
    return (place.with_name(name) for name in names)


def _prefix(place: Path) -> str:
    return f".{place.name}.gpuplanner-"
