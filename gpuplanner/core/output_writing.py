"""Atomic writing of files and folders, by one run at a time.

A new folder is prepared in a hidden staging folder next to its target, ``.NAME.gpuplanner-xxxxxxxx``::

    unfinished     an empty file: the content of ``new`` is incomplete and may be deleted
    new            the new folder; after the swap with the target, the old one
    previous       the old folder, where the file system cannot swap two folders in one step

The content of the staging folder determines how to clean up, so an interrupted run and the next run do the same.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from gpuplanner.core.errors import GpuPlannerWarning, OutputError, examples
from gpuplanner.core.output_manifests_and_overwrite_checks import (
    MANIFEST,
    FolderMark,
    WrittenFile,
    delete_written_files,
    exchange_paths,
    is_name_taken,
    list_foreign_entries,
    list_stale_staging,
    list_written_files,
    lock_path,
    make_staging_file,
    make_staging_folder,
    make_write_error,
    move_entries,
    read_manifest,
    record_written_file,
    require_file,
    require_folder,
    resolve_path,
    resolve_target,
    translate_write_errors,
    write_manifest,
    write_manifest_file,
)

if TYPE_CHECKING:
    import polars as pl

UNFINISHED_FILE_NAME = "unfinished"
"""Name of the empty file in a staging folder that marks its new content as incomplete."""
NEW_FOLDER = "new"
"""Name of the folder in a staging folder in which the new content is written."""
PREVIOUS_FOLDER = "previous"
"""Name of the folder in a staging folder to which the old folder is moved."""


def recover_after_kill(target: Path) -> None:
    """Clean up staging files and folders of killed runs next to a target; the caller must hold its lock.

    Examples
    --------
    >>> recover_after_kill(Path("/tmp/out"))
    """
    for stale in list_stale_staging(target):
        if stale.is_dir() and not stale.is_symlink():
            if {entry.name for entry in stale.iterdir()} <= {UNFINISHED_FILE_NAME, NEW_FOLDER, PREVIOUS_FOLDER}:
                clean_up_staging(stale, target, after_a_kill=True)
        else:
            stale.unlink(missing_ok=True)


def clean_up_staging(staging: Path, target: Path, *, after_a_kill: bool = False) -> None:
    """Delete a staging folder: written files are deleted, foreign files are moved to the target."""
    if (staging / UNFINISHED_FILE_NAME).exists():
        shutil.rmtree(staging / NEW_FOLDER, ignore_errors=True)
        (staging / UNFINISHED_FILE_NAME).unlink()
    previous = staging / PREVIOUS_FOLDER
    if previous.exists() and not target.exists():
        previous.rename(target)
        _warn_of_recovery(
            f"{target}: an earlier run was stopped while replacing it; put back as it was before that run"
        )
    for old in (previous, staging / NEW_FOLDER):
        if old.is_dir():
            _clear_old_folder(old, target, after_a_kill)
    with contextlib.suppress(OSError):
        staging.rmdir()


def find_stranded_folder(path: str | Path) -> Path | None:
    """Find the old folder that a killed run moved aside before the new one was in place; None if there is none."""
    try:
        target = resolve_target(path)
    except OutputError:  # where nothing can be written, nothing waits
        return None
    if target.exists() or not target.parent.is_dir():
        return None
    previous_folders = (stale / PREVIOUS_FOLDER for stale in list_stale_staging(target))
    return next((folder for folder in previous_folders if folder.is_dir()), None)


def _clear_old_folder(old: Path, target: Path, after_a_kill: bool) -> None:
    """Move foreign files of the old folder to the target and delete the files that gpuplanner wrote."""
    _, ours = read_manifest(old) or ("", {})
    theirs = list_foreign_entries(old, ours, target)
    if theirs:
        target.mkdir(exist_ok=True)
        not_moved = move_entries(old, target, theirs)
        if not_moved:
            _warn_of_recovery(f"{target}: {examples(not_moved)} stay in {old}, since other things have their names")
        elif after_a_kill:
            _warn_of_recovery(f"{target}: an earlier run was stopped while replacing it; {examples(theirs)} put back")
    changed = set(theirs)
    delete_written_files(old, {name: written for name, written in ours.items() if name not in changed})


def _warn_of_recovery(text: str) -> None:
    """Warn that files of an interrupted earlier run were restored or left in place."""
    warnings.warn(text, GpuPlannerWarning, stacklevel=3)


_LOCKED_TARGETS: ContextVar[frozenset[Path]] = ContextVar("locked_targets", default=frozenset())
"""Targets that the current context has locked, so that a nested block on the same target does not lock it again."""

_LOCKS_UNSUPPORTED_ERRNOS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK})
"""System error numbers by which a file system reports that it does not support locks."""


@contextmanager
def lock_for_writing(path: str | Path) -> Iterator[Path]:
    """Lock a folder or file against other runs while the block runs, and clean up after killed runs.

    The lock belongs to the process (``flock``), so a killed run leaves none. A second run fails at once instead of
    waiting, since its input may be outdated by then. Start the block before reading input, so that no run reads for an
    hour in vain. Nested writers of the same target share the lock.

    Parameters
    ----------
    path : str or Path
        The folder or file, which need not exist yet. Missing parent folders are created, and removed again if they
        stay empty.

    Yields
    ------
    Path
        The target: absolute, without links.

    Raises
    ------
    OutputError
        If another run holds the lock, or the target cannot be created.

    Warns
    -----
    GpuPlannerWarning
        If the file system has no locks, or files of a killed run were restored.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, lock_for_writing(Path(folder) / "trace") as place:
    ...     place.name
    'trace'
    """
    target = resolve_target(path)
    if target in _LOCKED_TARGETS.get():
        yield target
        return
    with translate_write_errors(Path(path)):
        made_parents = [parent for parent in target.parents if not parent.exists()]
        target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _acquire_lock(path, target) as locked:
            if locked:
                with translate_write_errors(Path(path)):
                    recover_after_kill(target)
            token = _LOCKED_TARGETS.set(_LOCKED_TARGETS.get() | {target})
            try:
                yield target
            finally:
                _LOCKED_TARGETS.reset(token)
    finally:
        with contextlib.suppress(OSError):
            for folder in made_parents:
                folder.rmdir()


@contextmanager
def _acquire_lock(path: str | Path, target: Path) -> Iterator[bool]:
    """Hold the lock of a target while the block runs; yield False on a file system without locks."""
    from filelock import FileLock, Timeout  # takes 30 ms, and most of the package never writes

    lock = FileLock(lock_path(target), mode=0o600, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        expected, todo = "to be the only run that writes it", "Wait for the other run, then start again."
        raise make_write_error(path, "another run at it", expected=expected, todo=todo) from error
    except OSError as error:
        if error.errno not in _LOCKS_UNSUPPORTED_ERRNOS:
            raise make_write_error(path, error.strerror or str(error)) from error
        lock_path(target).unlink(missing_ok=True)
        text = f"{path}: this file system knows no locks; see to it that no other run writes it meanwhile"
        warnings.warn(text, GpuPlannerWarning, stacklevel=4)
        yield False
        return
    try:
        yield True
    finally:
        lock_path(target).unlink(missing_ok=True)
        lock.release()


def write_atomically(
    path: str | Path,
    write: Callable[[Path], object],
    *,
    inputs: Iterable[str | Path] = (),
    protect_foreign: bool = True,
) -> Path:
    """Write a file through a temporary file next to it, which replaces the target in one step.

    Parameters
    ----------
    path : str or Path
        Target file. Missing folders are created; if it is a link, the file that it points to is written.
    write : callable
        Gets the temporary path and writes the whole file.
    inputs : iterable of str or Path
        Files that the run reads; the target may be none of them.
    protect_foreign : bool
        Reject a target that gpuplanner did not write; see :func:`require_file`.

    Returns
    -------
    Path
        ``path``.

    Raises
    ------
    OutputError
        If the folder cannot be written, the disk is full, another run writes the file, or the target is rejected by
        :func:`require_file`. The previous file is untouched.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "a.txt", lambda p: p.write_text("x")).read_text()
    'x'
    """
    path = Path(path)
    target = require_file(path, inputs=inputs, protect_foreign=protect_foreign)
    with lock_for_writing(path):
        temporary = make_staging_file(target)
        try:
            with translate_write_errors(path, own_paths=(temporary, target)):
                write(temporary)
                temporary.chmod(target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~read_umask())
                if protect_foreign:
                    record_written_file(target, temporary)
                temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    return path


def read_umask() -> int:
    """Return the permission bits that this process removes from new files."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


# Text that begins so is run as a formula; some editions do the same with the full-width characters.
_FORMULA_START_PATTERN = r"[=+\-@＝＋－＠\t\r\n]"
"""Characters with which a cell begins that a spreadsheet would run as a formula (regular expression)."""
_CSV_UTC_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S%.fZ"
"""Time format of CSV files: ISO 8601 in UTC."""


def write_csv_safe(path: str | Path, frame: pl.DataFrame) -> Path:
    r"""Write a frame as CSV (RFC 4180, UTF-8, CR LF) in which no text runs as a spreadsheet formula.

    Text that begins with ``=``, ``+``, ``-``, ``@``, a tab or a line end would run as a formula. It gets a leading
    apostrophe; so does text that begins with apostrophes before such a character, so that every value can be restored.
    Numbers are written as they are. A missing value is an empty cell, an empty text is ``""``. Times are UTC in ISO
    8601 with ``Z``.

    Parameters
    ----------
    path : str or Path
        Target file.
    frame : polars.DataFrame
        Table without nested columns.

    Returns
    -------
    Path
        ``path``.

    Raises
    ------
    OutputError
        If the folder cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> import polars as pl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = write_csv_safe(Path(folder) / "a.csv", pl.DataFrame({"tenant": ["=1+1"], "x": [-2]}))
    ...     path.read_bytes()
    b"tenant,x\r\n'=1+1,-2\r\n"
    """
    safe = escape_formulas(frame)
    return write_atomically(path, lambda temporary: safe.write_csv(temporary, line_terminator="\r\n"))


def escape_formulas(frame: pl.DataFrame, time_format: str = _CSV_UTC_TIME_FORMAT) -> pl.DataFrame:
    """Return a frame in which no text runs as a formula and times are UTC text; see :func:`write_csv_safe`."""
    import polars as pl

    text = pl.selectors.string() | pl.selectors.categorical() | pl.selectors.enum()
    zoned = pl.selectors.datetime(time_zone="*")
    in_utc = zoned.dt.convert_time_zone("UTC").dt.to_string(time_format)
    safe = frame.with_columns(_escape_formula(text.cast(pl.String)), in_utc)
    safe.columns = pl.DataFrame({"name": safe.columns}).select(_escape_formula(pl.col("name")))["name"].to_list()
    return safe


def _escape_formula(text: pl.Expr) -> pl.Expr:
    """Put an apostrophe before text that a spreadsheet would run as a formula."""
    return text.str.replace(rf"^('*{_FORMULA_START_PATTERN})", "'${1}")


MOVE_AWAY_FIX = "Move them away, or choose another folder with -o; nothing was changed."
"""Fourth part of an error message (the fix) about files in a target folder that gpuplanner did not write."""


@contextmanager
def reserve_directory(path: str | Path, *, mark: FolderMark, inputs: Iterable[str | Path] = ()) -> Iterator[Path]:
    """Lock a target folder for this run, and check before any work that it may be replaced.

    Parameters
    ----------
    path, mark, inputs
        As for :func:`replace_directory`; within the block that function needs no inputs.

    Yields
    ------
    Path
        The target: absolute, without links.

    Raises
    ------
    OutputError
        As :func:`replace_directory`.

    Examples
    --------
    >>> with reserve_directory("/", mark=FolderMark("about.txt", "made here")):
    ...     pass
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.OutputError: cannot write /: expected a folder of its own; got the root of the file ...
    """
    path = Path(path)
    require_folder(path)
    with lock_for_writing(path) as target:
        ours = list_written_files(target, mark) if target.is_dir() else {}
        _require_free_names(path, target, mark, ours)
        _require_inputs_outside(path, target, ours, inputs)
        yield target


@contextmanager
def replace_directory(path: str | Path, *, mark: FolderMark, inputs: Iterable[str | Path] = ()) -> Iterator[Path]:
    """Fill a new folder next to a target and put it in place if the block ends without error.

    The new folder gets a manifest of what the block wrote. New and old folder are swapped in one step, so a run that is
    killed at any moment leaves one of them complete. Foreign files and changed files of the old folder then move to the
    new one, and the rest of the old folder is deleted. The next run cleans up after a killed one.

    Parameters
    ----------
    path : str or Path
        Target folder.
    mark : FolderMark
        Its kind. A folder of this kind, or of one of its older kinds, is replaced.
    inputs : iterable of str or Path
        Files and folders that the run reads; none of them may be replaced.

    Yields
    ------
    Path
        The empty folder to fill.

    Raises
    ------
    OutputError
        If the folder cannot be written, another run writes it, it is the current or home folder, a parent of them or a
        mount point, a foreign file has a name that would be written, or an input would be replaced. The previous folder
        is untouched.

    Examples
    --------
    >>> import tempfile
    >>> mark = FolderMark("about.txt", "made here")
    >>> with tempfile.TemporaryDirectory() as above:
    ...     out = Path(above) / "out"
    ...     out.mkdir()
    ...     _ = (out / "notes.txt").write_text("mine")
    ...     with replace_directory(out, mark=mark) as new:
    ...         _ = (new / "about.txt").write_text("made here")
    ...     sorted(p.name for p in out.iterdir())
    ['about.txt', 'manifest.json', 'notes.txt']
    """
    path = Path(path)
    with reserve_directory(path, mark=mark, inputs=inputs) as target:
        ours = list_written_files(target, mark) if target.is_dir() else {}
        staging = make_staging_folder(target)
        try:
            with translate_write_errors(path, own_paths=(staging, target)):
                (staging / UNFINISHED_FILE_NAME).touch()
                (staging / NEW_FOLDER).mkdir()
                yield staging / NEW_FOLDER
                write_manifest(staging / NEW_FOLDER, mark, {target / name: written for name, written in ours.items()})
                _install_folder(path, target, staging, mark, ours)
                clean_up_staging(staging, target)
        except BaseException:
            with contextlib.suppress(OSError):
                clean_up_staging(staging, target)
            raise


@contextmanager
def make_temporary_sibling(path: str | Path) -> Iterator[Path]:
    """Create an empty folder next to another one, on its disk, and delete it when the block ends.

    If the run is killed, the next run that writes the folder deletes it.
    """
    target = resolve_path(path)
    staging = make_staging_folder(target)
    try:
        with translate_write_errors(target, own_paths=(staging,)):
            (staging / UNFINISHED_FILE_NAME).touch()
            (staging / NEW_FOLDER).mkdir()
            yield staging / NEW_FOLDER
    finally:
        clean_up_staging(staging, target)


def _install_folder(path: Path, target: Path, staging: Path, mark: FolderMark, ours: Mapping[str, WrittenFile]) -> None:
    """Move a finished new folder to its target, swapping it with the old one.

    Parameters
    ----------
    path, target : Path
        Target as the user named it, and its absolute path.
    staging : Path
        Staging folder with the new folder.
    mark : FolderMark
        Kind of the folder.
    ours : mapping of str to WrittenFile
        Files of the old folder that gpuplanner wrote.
    """
    new = staging / NEW_FOLDER
    if not target.exists():
        new.chmod(0o777 & ~read_umask())
        (staging / UNFINISHED_FILE_NAME).unlink()
        new.rename(target)
        return
    taken_names = [name for name in list_foreign_entries(target, ours, new) if is_name_taken(new, name)]
    if taken_names:
        raise _make_names_taken_error(path, taken_names)
    if ours and read_manifest(target) is None:  # from now on it must be known without its mark
        write_manifest_file(target, mark, ours)
    old_status = target.stat()
    with contextlib.suppress(PermissionError):
        os.chown(new, -1, old_status.st_gid)
    new.chmod(old_status.st_mode & 0o7777)
    (staging / UNFINISHED_FILE_NAME).unlink()
    if not exchange_paths(new, target):
        target.rename(staging / PREVIOUS_FOLDER)
        try:
            new.rename(target)
        except OSError:
            (staging / PREVIOUS_FOLDER).rename(target)
            raise


def _require_free_names(path: Path, target: Path, mark: FolderMark, ours: Mapping[str, WrittenFile]) -> None:
    """Raise :class:`OutputError` before any work if names are taken or files of others cannot be moved.

    Parameters
    ----------
    path, target : Path
        Target as the user named it, and its absolute path.
    mark : FolderMark
        Kind of the folder.
    ours : mapping of str to WrittenFile
        Files of the present folder that gpuplanner wrote.
    """
    if not target.is_dir():
        return
    with translate_write_errors(path):
        theirs = list_foreign_entries(target, ours)
    folder_format, _ = read_manifest(target) or (None, None)
    if MANIFEST in theirs and folder_format is not None:
        todo = "Choose another folder with -o; nothing was changed."
        raise make_write_error(path, f"a {folder_format!r}", expected=f"a {mark.text!r} or another folder", todo=todo)
    changed = [name for name in theirs if name in ours]
    if changed:
        expected = "its files as they were written"
        raise make_write_error(path, f"{examples(changed)}, changed since", expected=expected, todo=MOVE_AWAY_FIX)
    taken_names = [name for name in mark.list_names_in(target) if name not in ours]
    if taken_names:
        raise _make_names_taken_error(path, taken_names)
    immovable = [name for name in theirs if not _is_movable(target / name)]
    if immovable:
        expected = "things that can move to the new folder"
        got = f"{examples(immovable)}, mounted or of somebody else"
        raise make_write_error(path, got, expected=expected, todo=MOVE_AWAY_FIX)


def _require_inputs_outside(
    path: Path, target: Path, ours: Mapping[str, WrittenFile], inputs: Iterable[str | Path]
) -> None:
    """Raise :class:`OutputError` if an input is, or contains, a file that would be replaced.

    Parameters
    ----------
    path, target : Path
        Target as the user named it, and its absolute path.
    ours : mapping of str to WrittenFile
        Files of the present folder that gpuplanner wrote.
    inputs : iterable of str or Path
        Files and folders that the run reads.
    """
    for input_path in inputs:
        resolved = resolve_path(input_path)
        if target not in resolved.parents:
            continue
        name = resolved.relative_to(target).as_posix()
        if name in ours or any(own_name.startswith(f"{name}/") for own_name in ours):
            got = f"{input_path}, which it would replace"
            todo = "Choose another folder with -o; nothing was changed."
            raise make_write_error(path, got, expected="inputs that stay", todo=todo)


def _is_movable(entry: Path) -> bool:
    """Whether an entry can be renamed: not a mount point, and not a folder that this user may not write."""
    if entry.is_symlink() or not entry.is_dir():
        return True
    return not os.path.ismount(entry) and os.access(entry, os.W_OK)


def _make_names_taken_error(path: Path, names: list[str]) -> OutputError:
    """Make the error of names that foreign files have taken."""
    got = f"{examples(names)}, not written by gpuplanner"
    return make_write_error(path, got, expected="the names that it writes to be free", todo=MOVE_AWAY_FIX)
