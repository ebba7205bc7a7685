"""What others put into a folder of ours: found, kept out of the way of ours, and carried over when it is replaced."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from gpuplanner.files.manifest import MANIFEST, Written

_AT_FDCWD, _NOREPLACE, _EXCHANGE = -100, 1, 2
_UNKNOWN_CALL = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP})


def foreign_entries(folder: Path, ours: Mapping[str, Written], beside: Path | None = None) -> list[str]:
    """Names, relative with ``/``, of files and whole folders that are not ours.

    A file of ours that somebody changed since is theirs.
    """
    return list(_foreign(folder, ours, _folders_of(ours), beside, ""))


def in_the_way(new: Path, name: str) -> bool:
    """True if the new folder has another thing where an entry of that name should go."""
    *above, last = PurePosixPath(name).parts
    place = new
    for part in above:
        place /= part
        if os.path.lexists(place) and (place.is_symlink() or not place.is_dir()):
            return True
    return os.path.lexists(place / last)


def carry(source: Path, target: Path, names: list[str]) -> list[str]:
    """Move entries from the old folder to the new one; names that are taken there stay where they are."""
    left = []
    for name in names:
        if in_the_way(target, name):
            left.append(name)
            continue
        for above in reversed(PurePosixPath(name).parents[:-1]):
            if not (target / above).exists():
                (target / above).mkdir()
                shutil.copymode(source / above, target / above)
        move(source / name, target / name)
    return left


def drop(folder: Path, ours: Mapping[str, Written]) -> bool:
    """Take away what we wrote, and folders that are empty then; nothing else."""
    folders = {above for above in _folders_of(ours) if not _leads_out(folder, above)}
    for name in ours.keys() - {MANIFEST}:
        above = str(PurePosixPath(name).parent)
        if above == "." or above in folders:
            with contextlib.suppress(OSError):
                (folder / name).unlink()
    for above in sorted(folders, key=lambda name: -name.count("/")):
        with contextlib.suppress(OSError):
            (folder / above).rmdir()
    # The list goes last: a run that is killed before leaves it to the next one.
    with contextlib.suppress(OSError):
        if MANIFEST in ours:
            (folder / MANIFEST).unlink()
        folder.rmdir()
    return not folder.exists()


def move(source: Path, target: Path) -> None:
    """Rename, but never over anything."""
    if not _renamed(source, target, _NOREPLACE):
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        source.rename(target)


def exchanged(one: Path, other: Path) -> bool:
    """Let two paths change places in one step; False where the system or the file system cannot.

    References
    ----------
    Linux man-pages, rename(2): ``renameat2`` with ``RENAME_EXCHANGE``.
    """
    return _renamed(one, other, _EXCHANGE)


def _renamed(one: Path, other: Path, how: int) -> bool:
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), how) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNKNOWN_CALL:
        return False
    raise OSError(number, os.strerror(number), str(other))


def _foreign(
    folder: Path, ours: Mapping[str, Written], above_ours: frozenset[str], beside: Path | None, prefix: str
) -> Iterator[str]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        name = prefix + entry.name
        if entry.is_dir(follow_symlinks=False):
            other = None if beside is None else beside / entry.name
            if other is not None and (other.is_symlink() or not other.is_dir()):
                other = None
            if name in above_ours or other is not None:
                yield from _foreign(folder / entry.name, ours, above_ours, other, f"{name}/")
            else:
                yield name
        elif name not in ours or not ours[name].still_in(folder / entry.name):
            yield name


def _folders_of(names: Mapping[str, Written]) -> frozenset[str]:
    """Folders that the files lie in: ``a/b/c.txt`` → ``a``, ``a/b``."""
    return frozenset(
        str(above) for name in names for above in PurePosixPath(name).parents if str(above) != "."
    )


def _leads_out(folder: Path, name: str) -> bool:
    """True if a part of the name is a link that somebody put in place of a folder of ours."""
    parts = PurePosixPath(name).parts
    return any((folder / PurePosixPath(*parts[: count + 1])).is_symlink() for count in range(len(parts)))
