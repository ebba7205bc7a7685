"""Places that results are written to: which files are ours, which belong to others, and what can go wrong there."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from gpuplanner.core.errors import OutputError
from gpuplanner.core.serialization import sha256, to_json

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
    gpuplanner.core.errors.OutputError: cannot write a.txt: ...; got No space left on device. Choose another place ...
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
    return OutputError(f"cannot write {path}", expected, got, todo)


def _elsewhere(error: Exception, within: tuple[Path, ...]) -> bool:
    """True if the error names files, and none of them is being written."""
    names = [getattr(error, "filename", None), getattr(error, "filename2", None)]
    told = [Path(os.fsdecode(name)) for name in names if isinstance(name, str | bytes)]
    return bool(told) and not any(each in (name, *name.parents) for name in told for each in within)


MANIFEST = "manifest.json"
"""File that lists the others, with bytes and SHA-256 of each."""

HASHED_BYTES = 1 << 24
"""A larger file is taken for the one that was written if it has its size: nobody edits such tables by hand."""


@dataclass(frozen=True)
class Mark:
    """How a folder of one kind is known.

    Attributes
    ----------
    file, text : str
        A file of the folder, and a text in it, which a folder without a manifest is known by. The text is the
        ``format`` of the manifest as well.
    names : tuple of str
        Names that folders of this kind hold, as ``glob`` knows them: what is ours in a folder without
        a manifest, and what nothing else may be called in any.
    older : tuple of Mark
        Kinds which one of this kind takes the place of.
    """

    file: str
    text: str
    names: tuple[str, ...] = ()
    older: tuple[Mark, ...] = ()

    def stands_in(self, folder: Path) -> bool:
        """True if the file of the folder holds the text."""
        try:
            return self.text in (folder / self.file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return False

    def found_in(self, folder: Path) -> list[str]:
        """Names in a folder, whoever wrote them, that folders of this kind hold."""
        patterns = (MANIFEST, self.file, *self.names)
        found = (path for pattern in patterns for path in folder.glob(pattern))
        return sorted({path.relative_to(folder).as_posix() for path in found})


@dataclass(frozen=True)
class Written:
    """A file as we wrote it; None where an old folder does not say."""

    bytes: int | None
    sha256: str | None

    def still_in(self, path: Path) -> bool:
        """True unless somebody changed the file since."""
        try:
            found = path.lstat()
        except OSError:
            return False
        if self.bytes is not None and found.st_size != self.bytes:
            return False
        if self.sha256 is None or found.st_size > HASHED_BYTES:
            return True
        return _hash_of(path, found.st_ino, found.st_mtime_ns, found.st_size) == self.sha256


@functools.lru_cache(maxsize=4096)
def _hash_of(path: Path, *_: int) -> str:
    """Hash of a file, found once while its inode, time and size stay."""
    return sha256(path)


def read_manifest(folder: Path) -> tuple[str, dict[str, Written]] | None:
    """Format and files of a folder's manifest, itself among them; None if there is none that we could have written.

    A name that leads out of the folder is left out, whoever wrote it there.
    """
    try:
        told = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = {str(name): _written(value) for name, value in told["files"].items() if _inside(str(name))}
        kind = told["format"]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return (kind, {**files, MANIFEST: Written(None, None)}) if isinstance(kind, str) else None


def is_intact(folder: Path) -> bool:
    """Whether all files that the manifest of a folder lists are there as they were written."""
    told = read_manifest(folder)
    return told is not None and all(each.still_in(folder / name) for name, each in told[1].items())


def files_of_ours(folder: Path, mark: Mark) -> dict[str, Written]:
    """Name, with ``/``, → what we wrote under it, in a folder of this kind or an older one; else nothing."""
    marks = (mark, *mark.older)
    told = read_manifest(folder)
    if told is not None:
        return told[1] if told[0] in {each.text for each in marks} else {}
    for each in marks:
        if each.stands_in(folder):
            names = (name for name in each.found_in(folder) if not (folder / name).is_symlink())
            return {name: Written(None, None) for name in names if (folder / name).is_file()}
    return {}


def write_manifest(folder: Path, mark: Mark, before: Mapping[Path, Written]) -> dict[str, Written]:
    """List all files of a new folder in it."""
    known = {}
    for path, written in before.items():
        if written.sha256 is not None and path.exists():
            known[_identity(path)] = written
    files = {}
    for name in sorted(_all_files(folder)):
        path = folder / name
        files[name] = known.get(_identity(path)) or Written(path.stat().st_size, sha256(path))
    state_manifest(folder, mark, files)
    return files


def state_manifest(folder: Path, mark: Mark, files: Mapping[str, Written]) -> None:
    """Write the manifest of the files."""
    listed = {name: asdict(written) for name, written in files.items() if name != MANIFEST}
    (folder / MANIFEST).write_text(to_json({"format": mark.text, "files": listed}), encoding="utf-8")


def _all_files(folder: Path, prefix: str = "") -> Iterator[str]:
    """Names of all files below a folder, links to folders among them, but not its manifest."""
    with os.scandir(folder) as entries:
        found = list(entries)
    for entry in found:
        name = prefix + entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _all_files(folder / entry.name, f"{name}/")
        elif name != MANIFEST:
            yield name


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _written(value: Any) -> Written:  # noqa: ANN401 - what JSON holds
    """One entry: size and hash, or, of a report or an export before, the hash alone."""
    if isinstance(value, str):
        return Written(None, value)
    size, digest = value["bytes"], value["sha256"]
    return Written(None if size is None else int(size), None if digest is None else str(digest))


def _inside(name: str) -> bool:
    return bool(name) and not name.startswith("/") and not {"", ".", ".."} & set(name.split("/"))


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
    above = (str(folder) for name in names for folder in PurePosixPath(name).parents)
    return frozenset(above) - {"."}


def _leads_out(folder: Path, name: str) -> bool:
    """True if a part of the name is a link that somebody put in place of a folder of ours."""
    parts = PurePosixPath(name).parts
    return any((folder / PurePosixPath(*parts[: count + 1])).is_symlink() for count in range(len(parts)))


DATASET_FORMAT = "gpuplanner dataset 2"
_DATASET = Mark("provenance.json", DATASET_FORMAT)
_OVERWRITES: ContextVar[bool] = ContextVar("overwrites", default=False)


@contextmanager
def overwriting(allowed: bool = True) -> Iterator[None]:
    """Let writers replace files that gpuplanner did not write, while the block runs.

    Examples
    --------
    >>> with overwriting():
    ...     may_overwrite()
    True
    """
    token = _OVERWRITES.set(allowed or may_overwrite())
    try:
        yield
    finally:
        _OVERWRITES.reset(token)


def may_overwrite() -> bool:
    """Whether a file that gpuplanner did not write may be replaced."""
    return _OVERWRITES.get()


def allow_overwriting(allowed: bool) -> None:
    """Let writers replace such files for the rest of a run, if that is allowed."""
    if allowed:
        _OVERWRITES.set(True)


def require_ours(path: str | Path, place: Path) -> None:
    """Refuse a file that gpuplanner did not write, or that somebody changed since; an empty one holds nothing."""
    if may_overwrite() or not place.exists() or not place.stat().st_size or is_ours(place):
        return
    got = "a file that gpuplanner did not write, or that was changed since"
    todo = "Choose another name, or replace it with --overwrite (in Python: overwrite=True); nothing was changed."
    raise cannot_write(path, got, expected="a new file, or one that gpuplanner wrote", todo=todo)


def require_outside_datasets(path: str | Path, place: Path) -> None:
    """Refuse a place inside the folder of a dataset, which holds what was read and nothing else."""
    for folder in place.parents:
        if _DATASET.stands_in(folder):
            expected, todo = "a place outside datasets", "Choose another place; nothing was changed."
            raise cannot_write(path, f"one inside the dataset {folder}", expected=expected, todo=todo)


def is_ours(place: Path) -> bool:
    """Whether a file is as gpuplanner wrote it.

    Examples
    --------
    >>> is_ours(Path("/etc/hostname"))
    False
    """
    return any(written.still_in(place) for written in _noted(place))


def note_written(place: Path, content: Path) -> None:
    """Note beside a place what is about to stand there; what stands there now stays noted until then."""
    size = content.stat().st_size
    new = Written(size, sha256(content) if size <= HASHED_BYTES else None)
    noted = dict.fromkeys([new, *(written for written in _noted(place) if written.still_in(place))])
    lines = "".join(f"{written.bytes} {written.sha256 or '-'}\n" for written in noted)
    note_of(place).write_text(lines, encoding="ascii")


def remove_ours(place: Path) -> None:
    """Remove a file with its note, if it is as gpuplanner wrote it."""
    if is_ours(place):
        place.unlink()
        note_of(place).unlink(missing_ok=True)


def note_of(place: Path) -> Path:
    """The hidden note beside a file."""
    return place.with_name(f".{place.name}.gpuplanner")


def _noted(place: Path) -> list[Written]:
    with contextlib.suppress(OSError, ValueError):
        rows = (line.split(" ") for line in note_of(place).read_text(encoding="ascii").splitlines())
        return [Written(int(size), None if digest == "-" else digest) for size, digest in rows]
    return []


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
    gpuplanner.core.errors.OutputError: cannot write .: expected a folder of its own; got the current folder. ...
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
    gpuplanner.core.errors.OutputError: cannot write /dev/null: expected the name of a file; got a device. Choose ...
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
