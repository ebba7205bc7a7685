"""Output files and folders: target paths, manifests of written files, and checks before anything is replaced."""

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

from gpuplanner._version import __version__
from gpuplanner.core.errors import OutputError
from gpuplanner.core.libraries_plugins_and_workers import list_library_versions
from gpuplanner.core.serialization import sha256, to_json

WRITE_TARGET_ERRNOS = frozenset({
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST,
    errno.ENOTEMPTY, errno.EFBIG, errno.EBUSY, errno.EXDEV, errno.EIO, errno.ELOOP, errno.ENAMETOOLONG,
})  # fmt: skip
"""System error numbers whose cause is the target of a write, such as a full disk; others are bugs and are raised
unchanged."""

_OS_ERROR_NUMBER_PATTERN = re.compile(r"\(os error (\d+)\)")
"""Error number in the text of a polars error."""


@contextmanager
def translate_write_errors(path: Path, *, own_paths: tuple[Path, ...] = ()) -> Iterator[None]:
    """Turn system errors within the block into an :class:`OutputError`.

    Parameters
    ----------
    path : Path
        Target as the user named it, for the message.
    own_paths : tuple of Path
        Paths that the block writes. If given, only errors about these paths are translated.

    Raises
    ------
    OutputError
        In place of a system error about the target.

    Examples
    --------
    >>> with translate_write_errors(Path("a.txt")):
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
        error_number = errno_of(error)
        if error_number is None and (own_paths or not isinstance(error, OSError)):
            raise
        if own_paths and (error_number not in WRITE_TARGET_ERRNOS or _names_only_other_files(error, own_paths)):
            raise
        raise make_write_error(path, os.strerror(error_number) if error_number else str(error)) from error


def errno_of(error: BaseException) -> int | None:
    """Return the system error number behind an error, or None; polars states it only in its text.

    Examples
    --------
    >>> errno_of(OSError("No space left on device (os error 28)")) == errno.ENOSPC
    True
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if isinstance(error, OSError) or type(error).__module__.startswith("polars"):
        match = _OS_ERROR_NUMBER_PATTERN.search(str(error))
        return int(match.group(1)) if match else None
    return None


def make_write_error(
    path: str | Path,
    got: str,
    *,
    expected: str = "a writable place with free space",
    todo: str = "Choose another place with -o; nothing that stood there was changed.",
) -> OutputError:
    """Make the error of a result that cannot be written.

    Parameters
    ----------
    path : str or Path
        Target as the user named it.
    got : str
        The obstacle.
    expected, todo : str
        The expected state of the target, and the fix.

    Returns
    -------
    OutputError

    Examples
    --------
    >>> str(make_write_error("a", "a file", expected="a folder", todo="Choose another."))
    'cannot write a: expected a folder; got a file. Choose another.'
    """
    return OutputError(f"cannot write {path}", expected, got, todo)


def _names_only_other_files(error: Exception, own_paths: tuple[Path, ...]) -> bool:
    """Whether the error names files and none of them lies in the paths being written."""
    names = [getattr(error, "filename", None), getattr(error, "filename2", None)]
    named_paths = [Path(os.fsdecode(name)) for name in names if isinstance(name, str | bytes)]
    return bool(named_paths) and not any(
        own_path in (name, *name.parents) for name in named_paths for own_path in own_paths
    )


MANIFEST = "manifest.json"
"""Name of the file in an output folder that lists its other files, with size [B] and SHA-256 of each."""

MAX_HASHED_BYTES = 1 << 24
"""Size up to which a file is compared by its hash; above it, an equal size counts as unchanged. [B]"""


@dataclass(frozen=True)
class FolderMark:
    """Features by which an output folder of one kind is recognized.

    Attributes
    ----------
    file, text : str
        A file of the folder and a text in it, which identify a folder without a manifest. The text is also the
        ``format`` in the manifest.
    names : tuple of str
        Glob patterns of the files that folders of this kind contain: in a folder without a manifest these files count
        as written by gpuplanner; no other file may have such a name.
    older : tuple of FolderMark
        Older kinds of folder that one of this kind replaces.
    """

    file: str
    text: str
    names: tuple[str, ...] = ()
    older: tuple[FolderMark, ...] = ()

    def is_in_folder(self, folder: Path) -> bool:
        """Whether the identifying file of the folder contains the text."""
        try:
            return self.text in (folder / self.file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return False

    def list_names_in(self, folder: Path) -> list[str]:
        """List the files in a folder, whoever wrote them, whose names belong to this kind."""
        patterns = (MANIFEST, self.file, *self.names)
        paths = (path for pattern in patterns for path in folder.glob(pattern))
        return sorted({path.relative_to(folder).as_posix() for path in paths})


@dataclass(frozen=True)
class WrittenFile:
    """Size [B] and SHA-256 of a file as gpuplanner wrote it; None where an old manifest lacks them."""

    bytes: int | None
    sha256: str | None

    def is_unchanged_at(self, path: Path) -> bool:
        """Whether the file at the path is still as it was written."""
        try:
            status = path.lstat()
        except OSError:
            return False
        if self.bytes is not None and status.st_size != self.bytes:
            return False
        if self.sha256 is None or status.st_size > MAX_HASHED_BYTES:
            return True
        return _hash_unchanged_file(path, status.st_ino, status.st_mtime_ns, status.st_size) == self.sha256


@functools.lru_cache(maxsize=4096)
def _hash_unchanged_file(path: Path, *_: int) -> str:
    """Return the SHA-256 of a file, computed once as long as inode, time and size stay the same."""
    return sha256(path)


def read_manifest(folder: Path) -> tuple[str, dict[str, WrittenFile]] | None:
    """Read format and files of a folder's manifest, the manifest included; None without a valid manifest.

    Names that lead out of the folder are left out.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = {
            str(name): _parse_manifest_entry(value)
            for name, value in manifest["files"].items()
            if _is_inside_folder(str(name))
        }
        folder_format = manifest["format"]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return (folder_format, {**files, MANIFEST: WrittenFile(None, None)}) if isinstance(folder_format, str) else None


def is_intact(folder: Path) -> bool:
    """Whether all files in the manifest of a folder are present and unchanged."""
    manifest = read_manifest(folder)
    return manifest is not None and all(written.is_unchanged_at(folder / name) for name, written in manifest[1].items())


def list_written_files(folder: Path, mark: FolderMark) -> dict[str, WrittenFile]:
    """List the files that gpuplanner wrote in a folder of this kind or an older one, by name with ``/``."""
    marks = (mark, *mark.older)
    manifest = read_manifest(folder)
    if manifest is not None:
        return manifest[1] if manifest[0] in {folder_mark.text for folder_mark in marks} else {}
    for folder_mark in marks:
        if folder_mark.is_in_folder(folder):
            names = (name for name in folder_mark.list_names_in(folder) if not (folder / name).is_symlink())
            return {name: WrittenFile(None, None) for name in names if (folder / name).is_file()}
    return {}


def write_manifest(
    folder: Path, mark: FolderMark, written_before: Mapping[Path, WrittenFile]
) -> dict[str, WrittenFile]:
    """Write the manifest of all files in a new folder.

    Parameters
    ----------
    folder : Path
        The new folder.
    mark : FolderMark
        Its kind.
    written_before : mapping of Path to WrittenFile
        Known files, whose hash is reused for hard links to them.

    Returns
    -------
    dict
        Size and SHA-256 of each file, by name.
    """
    written_by_inode = {}
    for path, written in written_before.items():
        if written.sha256 is not None and path.exists():
            written_by_inode[_device_and_inode(path)] = written
    files = {}
    for name in sorted(_walk_files(folder)):
        path = folder / name
        files[name] = written_by_inode.get(_device_and_inode(path)) or WrittenFile(path.stat().st_size, sha256(path))
    write_manifest_file(folder, mark, files)
    return files


def write_manifest_file(folder: Path, mark: FolderMark, files: Mapping[str, WrittenFile]) -> None:
    """Write ``manifest.json`` with the given files, and the versions of gpuplanner and of libraries that made them."""
    listed = {name: asdict(written) for name, written in files.items() if name != MANIFEST}
    made_by = {"gpuplanner": __version__, **list_library_versions()}
    text = to_json({"format": mark.text, "files": listed, "made_by": made_by})
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def _walk_files(folder: Path, prefix: str = "") -> Iterator[str]:
    """Yield the names of all files below a folder, links included, except its manifest."""
    with os.scandir(folder) as entries:
        sorted_entries = list(entries)
    for entry in sorted_entries:
        name = prefix + entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _walk_files(folder / entry.name, f"{name}/")
        elif name != MANIFEST:
            yield name


def _device_and_inode(path: Path) -> tuple[int, int]:
    """Return device and inode number of a file, which hard links to it share."""
    status = path.stat()
    return status.st_dev, status.st_ino


def _parse_manifest_entry(value: Any) -> WrittenFile:  # noqa: ANN401 - what JSON holds
    """Parse one manifest entry: size and hash, or only the hash in older reports and exports."""
    if isinstance(value, str):
        return WrittenFile(None, value)
    size, digest = value["bytes"], value["sha256"]
    return WrittenFile(None if size is None else int(size), None if digest is None else str(digest))


def _is_inside_folder(name: str) -> bool:
    """Whether a name with ``/`` stays inside the folder that it is relative to."""
    return bool(name) and not name.startswith("/") and not {"", ".", ".."} & set(name.split("/"))


_AT_FDCWD, _RENAME_NOREPLACE_FLAG, _RENAME_EXCHANGE_FLAG = -100, 1, 2
"""Constants of the Linux system call ``renameat2``: current folder, and its flags for no replacement and for a swap."""
_RENAMEAT2_UNSUPPORTED_ERRNOS = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP})
"""Errors by which a system or file system says that it does not know a flag of ``renameat2``."""


def list_foreign_entries(folder: Path, ours: Mapping[str, WrittenFile], counterpart: Path | None = None) -> list[str]:
    """List files and whole folders that gpuplanner did not write, relative with ``/``.

    A written file that was changed since counts as foreign.

    Parameters
    ----------
    folder : Path
        Folder to search.
    ours : mapping of str to WrittenFile
        Files that gpuplanner wrote, by name.
    counterpart : Path, optional
        Second folder; folders that exist in both are searched, not listed as a whole.
    """
    return list(_walk_foreign_entries(folder, ours, _parent_folders(ours), counterpart, ""))


def is_name_taken(new: Path, name: str) -> bool:
    """Whether `new` already has an entry where the entry `name` of the old folder would be moved to."""
    *above, last = PurePosixPath(name).parts
    entry = new
    for part in above:
        entry /= part
        if os.path.lexists(entry) and (entry.is_symlink() or not entry.is_dir()):
            return True
    return os.path.lexists(entry / last)


def move_entries(source: Path, target: Path, names: list[str]) -> list[str]:
    """Move entries from the old folder to the new one; return those whose names are taken there."""
    not_moved = []
    for name in names:
        if is_name_taken(target, name):
            not_moved.append(name)
            continue
        for parent in reversed(PurePosixPath(name).parents[:-1]):
            if not (target / parent).exists():
                (target / parent).mkdir()
                shutil.copymode(source / parent, target / parent)
        move_without_overwriting(source / name, target / name)
    return not_moved


def delete_written_files(folder: Path, ours: Mapping[str, WrittenFile]) -> bool:
    """Delete the files that gpuplanner wrote and folders that are empty then; return whether the folder is gone."""
    folders = {parent for parent in _parent_folders(ours) if not _passes_through_symlink(folder, parent)}
    for name in ours.keys() - {MANIFEST}:
        parent = str(PurePosixPath(name).parent)
        if parent == "." or parent in folders:
            with contextlib.suppress(OSError):
                (folder / name).unlink()
    for parent in sorted(folders, key=lambda name: -name.count("/")):
        with contextlib.suppress(OSError):
            (folder / parent).rmdir()
    # The list goes last: a run that is killed before leaves it to the next one.
    with contextlib.suppress(OSError):
        if MANIFEST in ours:
            (folder / MANIFEST).unlink()
        folder.rmdir()
    return not folder.exists()


def move_without_overwriting(source: Path, target: Path) -> None:
    """Rename a file or folder; raise ``FileExistsError`` if the target exists."""
    if not _rename_with_flag(source, target, _RENAME_NOREPLACE_FLAG):
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        source.rename(target)


def exchange_paths(first: Path, second: Path) -> bool:
    """Swap two paths in one step; return False where the system or the file system cannot.

    References
    ----------
    Linux man-pages, rename(2): ``renameat2`` with ``RENAME_EXCHANGE``.
    """
    return _rename_with_flag(first, second, _RENAME_EXCHANGE_FLAG)


def _rename_with_flag(source: Path, target: Path, flag: int) -> bool:
    """Call ``renameat2`` with a flag; return False if it is not supported."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flag) == 0:
        return True
    error_number = ctypes.get_errno()
    if error_number in _RENAMEAT2_UNSUPPORTED_ERRNOS:
        return False
    raise OSError(error_number, os.strerror(error_number), str(target))


def _walk_foreign_entries(
    folder: Path, ours: Mapping[str, WrittenFile], own_folders: frozenset[str], counterpart: Path | None, prefix: str
) -> Iterator[str]:
    """Yield the entries of :func:`list_foreign_entries` below one folder, with a prefix."""
    with os.scandir(folder) as entries:
        sorted_entries = sorted(entries, key=lambda entry: entry.name)
    for entry in sorted_entries:
        name = prefix + entry.name
        if entry.is_dir(follow_symlinks=False):
            entry_counterpart = None if counterpart is None else counterpart / entry.name
            if entry_counterpart is not None and (entry_counterpart.is_symlink() or not entry_counterpart.is_dir()):
                entry_counterpart = None
            if name in own_folders or entry_counterpart is not None:
                yield from _walk_foreign_entries(folder / entry.name, ours, own_folders, entry_counterpart, f"{name}/")
            else:
                yield name
        elif name not in ours or not ours[name].is_unchanged_at(folder / entry.name):
            yield name


def _parent_folders(names: Mapping[str, WrittenFile]) -> frozenset[str]:
    """List the folders that contain the files: ``a/b/c.txt`` → ``a``, ``a/b``."""
    folders = (str(folder) for name in names for folder in PurePosixPath(name).parents)
    return frozenset(folders) - {"."}


def _passes_through_symlink(folder: Path, name: str) -> bool:
    """Whether a part of the name is a symbolic link in place of a folder that gpuplanner made."""
    parts = PurePosixPath(name).parts
    return any((folder / PurePosixPath(*parts[: count + 1])).is_symlink() for count in range(len(parts)))


DATASET_FORMAT = "gpuplanner dataset 2"
"""Format name in the manifest of a dataset folder, with its version."""
_DATASET_MARK = FolderMark("provenance.json", DATASET_FORMAT)
"""Features by which a dataset folder is recognized."""
_MAY_OVERWRITE_FOREIGN_FILES: ContextVar[bool] = ContextVar("overwrites", default=False)
"""Whether, in the current context, files that gpuplanner did not write may be replaced."""


@contextmanager
def allow_overwriting_within(allowed: bool = True) -> Iterator[None]:
    """Allow writers to replace files that gpuplanner did not write, while the block runs.

    Examples
    --------
    >>> with allow_overwriting_within():
    ...     may_overwrite()
    True
    """
    token = _MAY_OVERWRITE_FOREIGN_FILES.set(allowed or may_overwrite())
    try:
        yield
    finally:
        _MAY_OVERWRITE_FOREIGN_FILES.reset(token)


def may_overwrite() -> bool:
    """Whether files that gpuplanner did not write may be replaced."""
    return _MAY_OVERWRITE_FOREIGN_FILES.get()


def allow_overwriting(allowed: bool) -> None:
    """Allow writers, for the rest of the run, to replace files that gpuplanner did not write, if `allowed` is true."""
    if allowed:
        _MAY_OVERWRITE_FOREIGN_FILES.set(True)


def require_overwritable(path: str | Path, target: Path) -> None:
    """Raise :class:`OutputError` for a file that gpuplanner did not write or that was changed; empty files pass."""
    if may_overwrite() or not target.exists() or not target.stat().st_size or is_own_file(target):
        return
    got = "a file that gpuplanner did not write, or that was changed since"
    todo = "Choose another name, or replace it with --overwrite (in Python: overwrite=True); nothing was changed."
    raise make_write_error(path, got, expected="a new file, or one that gpuplanner wrote", todo=todo)


def require_outside_datasets(path: str | Path, target: Path) -> None:
    """Raise :class:`OutputError` for a target inside a dataset folder, which holds nothing but the dataset."""
    for folder in target.parents:
        if _DATASET_MARK.is_in_folder(folder):
            expected, todo = "a place outside datasets", "Choose another place; nothing was changed."
            raise make_write_error(path, f"one inside the dataset {folder}", expected=expected, todo=todo)


def is_own_file(target: Path) -> bool:
    """Whether a file is unchanged since gpuplanner wrote it.

    Examples
    --------
    >>> is_own_file(Path("/etc/hostname"))
    False
    """
    return any(written.is_unchanged_at(target) for written in _read_note(target))


def record_written_file(target: Path, content: Path) -> None:
    """Record size and hash of the next content of a file in the note next to it, before it is moved into place.

    The record of the present content stays until then.
    """
    size = content.stat().st_size
    new_file = WrittenFile(size, sha256(content) if size <= MAX_HASHED_BYTES else None)
    note = dict.fromkeys([new_file, *(written for written in _read_note(target) if written.is_unchanged_at(target))])
    lines = "".join(f"{written.bytes} {written.sha256 or '-'}\n" for written in note)
    note_path(target).write_text(lines, encoding="ascii")


def remove_own_file(target: Path) -> None:
    """Delete a file and its note if it is unchanged since gpuplanner wrote it."""
    if is_own_file(target):
        target.unlink()
        note_path(target).unlink(missing_ok=True)


def note_path(target: Path) -> Path:
    """Return the path of the hidden note next to a file, which records its size and hash."""
    return target.with_name(f".{target.name}.gpuplanner")


def _read_note(target: Path) -> list[WrittenFile]:
    """Read the sizes and hashes in the note of a file; empty without a readable note."""
    with contextlib.suppress(OSError, ValueError):
        rows = (line.split(" ") for line in note_path(target).read_text(encoding="ascii").splitlines())
        return [WrittenFile(int(size), None if digest == "-" else digest) for size, digest in rows]
    return []


EXPECTED_OWN_FOLDER_TEXT = "a folder of its own"
"""Second part of an error message (the expected value) about an output folder that may not be replaced."""


def resolve_path(path: str | Path) -> Path:
    """Return an absolute path with links followed; of a loop of links, the path as it is, which no file is opened by.

    Examples
    --------
    >>> resolve_path("/tmp/../out")
    PosixPath('/out')
    """
    return Path(os.path.realpath(path))


def resolve_target(path: str | Path) -> Path:
    """Return the absolute path of a target, with links followed.

    Raises
    ------
    OutputError
        If the path cannot be resolved, is not UTF-8 text or is the root folder.

    Examples
    --------
    >>> resolve_target("/tmp/../out")
    PosixPath('/out')
    """
    try:
        target = Path(path).resolve()
    except (OSError, RuntimeError) as error:
        raise make_write_error(path, str(error)) from error
    if any("\udc80" <= letter <= "\udcff" for letter in str(target)):
        todo = "Choose another place with -o; nothing was changed."
        raise make_write_error(path, "bytes that are no UTF-8", expected="a place whose name is text", todo=todo)
    if not target.name:
        raise make_write_error(target, "the root of the file system", expected=EXPECTED_OWN_FOLDER_TEXT)
    return target


def require_folder(path: str | Path) -> Path:
    """Return the absolute path of a folder that a run may replace.

    A run swaps such a folder with a new one, so it can be neither the current folder, the home folder or a parent of
    them, nor a mount point.

    Examples
    --------
    >>> require_folder(".")
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.OutputError: cannot write .: expected a folder of its own; got the current folder. ...
    """
    target = resolve_target(path)
    require_outside_datasets(path, target)
    todo = "Name a new folder inside it with -o; nothing was changed."
    for protected, folder_text in ((Path.cwd(), "the current folder"), (Path.home(), "the home folder")):
        protected = protected.resolve()
        if target == protected or target in protected.parents:
            got = folder_text if target == protected else f"a folder that holds {folder_text}"
            raise make_write_error(path, got, expected=EXPECTED_OWN_FOLDER_TEXT, todo=todo)
    if target.exists() and not target.is_dir():
        todo = "Choose another name with -o; nothing was changed."
        raise make_write_error(path, "a file", expected="a new folder or one that is there", todo=todo)
    if os.path.ismount(target):
        raise make_write_error(path, "a place where a disk is mounted", expected=EXPECTED_OWN_FOLDER_TEXT, todo=todo)
    return target


def require_file(path: str | Path, *, inputs: Iterable[str | Path] = (), protect_foreign: bool = True) -> Path:
    """Return the absolute path of a file that a run may replace; call it before long work.

    Parameters
    ----------
    path : str or Path
        Target file.
    inputs : iterable of str or Path
        Files that the run reads; the target may be none of them.
    protect_foreign : bool
        Reject a file that gpuplanner did not write, unless :func:`allow_overwriting_within` permits it. False is for
        records that are read, and so checked, before they are replaced.

    Returns
    -------
    Path
        Absolute, without links.

    Raises
    ------
    OutputError
        If the target is a folder, a device, a pipe, an input, a foreign file or inside a dataset, or cannot be created.

    Examples
    --------
    >>> require_file("/dev/null")
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.OutputError: cannot write /dev/null: expected the name of a file; got a device. Choose ...
    """
    todo = "Choose another name; nothing was changed."
    target = resolve_target(path) if Path(path) != Path("/") else Path(path)
    with translate_write_errors(Path(path)):
        mode = target.stat().st_mode if target.exists() else stat.S_IFREG
        parent = next(folder for folder in target.parents if folder.exists()) if target.name else target
        if not parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    if not stat.S_ISREG(mode):
        got = "a folder" if stat.S_ISDIR(mode) else "a pipe or socket"
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            got = "a device"
        raise make_write_error(path, got, expected="the name of a file", todo=todo)
    if any(resolve_path(input_path) == target for input_path in inputs):
        raise make_write_error(path, "an input of this run", expected="a file of its own", todo=todo)
    require_outside_datasets(path, target)
    if protect_foreign:
        require_overwritable(path, target)
    return target


def lock_path(target: Path) -> Path:
    """Return the path of the lock file that keeps two runs from writing one target."""
    return target.with_name(f".{target.name}.gpuplanner-lock")


def make_staging_folder(target: Path) -> Path:
    """Create the hidden folder next to a target folder in which its new content is prepared."""
    with translate_write_errors(target):
        return Path(tempfile.mkdtemp(dir=target.parent, prefix=_staging_prefix(target)))


def make_staging_file(target: Path) -> Path:
    """Create the hidden file next to a target file that will replace it."""
    with translate_write_errors(target):
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=_staging_prefix(target), suffix=target.suffix)
        os.close(handle)
        return Path(name)


def list_stale_staging(target: Path) -> Iterator[Path]:
    """List the hidden staging files and folders that an earlier run left next to a target."""
    pattern = re.compile(re.escape(_staging_prefix(target)) + r"[a-z0-9_]{8}" + f"({re.escape(target.suffix)})?")
    with os.scandir(target.parent) as entries:
        names = sorted(entry.name for entry in entries if pattern.fullmatch(entry.name))
    return (target.with_name(name) for name in names)


def _staging_prefix(target: Path) -> str:
    """Return the beginning of the names of staging files and folders of a target."""
    return f".{target.name}.gpuplanner-"
