"""Files and folders that are written whole or not at all, one writer at a time.

A new folder is made in a hidden room beside its place, ``.NAME.gpuplanner-xxxxxxxx``::

    unfinished     an empty file: what lies in ``new`` was written by us alone and is no use to anyone
    new            the new folder; once it has changed places with the old one, the old one
    previous       the old folder, where the two cannot change places in one step

Whenever the run ends, what lies there tells what is to be done, so that the run itself and the next one do the same.
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
from gpuplanner.core.output_places import (
    MANIFEST,
    Mark,
    Written,
    cannot_write,
    carry,
    drop,
    exchanged,
    explained,
    files_of_ours,
    foreign_entries,
    in_the_way,
    left_beside,
    lock_of,
    new_file,
    new_room,
    note_written,
    place_of,
    read_manifest,
    require_file,
    require_folder,
    state_manifest,
    write_manifest,
)

if TYPE_CHECKING:
    import polars as pl

UNFINISHED, NEW, PREVIOUS = "unfinished", "new", "previous"


def recover(place: Path) -> None:
    """Clear up after runs that were killed while they wrote a place; only its sole writer may.

    Examples
    --------
    >>> recover(Path("/tmp/out"))
    """
    for left in left_beside(place):
        if left.is_dir() and not left.is_symlink():
            if _is_room(left):
                settle(left, place, after_a_kill=True)
        else:
            left.unlink(missing_ok=True)


def settle(room: Path, place: Path, *, after_a_kill: bool = False) -> None:
    """Empty a room: what is ours goes, what is not ours goes to its place, and the room goes last."""
    if (room / UNFINISHED).exists():
        shutil.rmtree(room / NEW, ignore_errors=True)
        (room / UNFINISHED).unlink()
    previous = room / PREVIOUS
    if previous.exists() and not place.exists():
        previous.rename(place)
        _warn(f"{place}: an earlier run was stopped while replacing it; put back as it was before that run")
    for old in (previous, room / NEW):
        if old.is_dir():
            _cleared(old, place, after_a_kill)
    with contextlib.suppress(OSError):
        room.rmdir()


def kept_aside(path: str | Path) -> Path | None:
    """Where an old folder waits since a run was killed before the new one took its place; None if there is none."""
    try:
        place = place_of(path)
    except OutputError:  # where nothing can be written, nothing waits
        return None
    if place.exists() or not place.parent.is_dir():
        return None
    return next((left / PREVIOUS for left in left_beside(place) if (left / PREVIOUS).is_dir()), None)


def _cleared(old: Path, place: Path, after_a_kill: bool) -> None:
    _, ours = read_manifest(old) or ("", {})
    theirs = foreign_entries(old, ours, place)
    if theirs:
        place.mkdir(exist_ok=True)
        left = carry(old, place, theirs)
        if left:
            _warn(f"{place}: {examples(left)} stay in {old}, since other things have their names")
        elif after_a_kill:
            _warn(f"{place}: an earlier run was stopped while replacing it; {examples(theirs)} put back")
    changed = set(theirs)
    drop(old, {name: written for name, written in ours.items() if name not in changed})


def _is_room(left: Path) -> bool:
    return {entry.name for entry in left.iterdir()} <= {UNFINISHED, NEW, PREVIOUS}


def _warn(text: str) -> None:
    warnings.warn(text, GpuPlannerWarning, stacklevel=3)


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


# Text that begins so is run as a formula; some editions do the same with the full-width characters.
_STARTS = r"[=+\-@＝＋－＠\t\r\n]"
_TIME = "%Y-%m-%dT%H:%M:%S%.fZ"


def write_csv_safe(path: str | Path, frame: pl.DataFrame) -> Path:
    r"""Write a frame as CSV (RFC 4180, UTF-8, lines end in CR LF).

    Text that begins with ``=``, ``+``, ``-``, ``@``, a tab or a line end would be run as a formula. It gets a
    leading apostrophe; so does text that begins with apostrophes before such a character, so that every value
    can be restored. Numbers are written as they are. A missing value is an empty
    cell, an empty text is ``""``. Instants are written in UTC as ISO 8601 with ``Z``.

    Parameters
    ----------
    path : str or Path
        Where to write.
    frame : polars.DataFrame
        No nested columns.

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
    safe = guarded(frame)
    return write_atomically(path, lambda temporary: safe.write_csv(temporary, line_terminator="\r\n"))


def guarded(frame: pl.DataFrame, time: str = _TIME) -> pl.DataFrame:
    """A frame in which no text is run as a formula, and instants are text in UTC; see :func:`write_csv_safe`."""
    import polars as pl

    text = pl.selectors.string() | pl.selectors.categorical() | pl.selectors.enum()
    zoned = pl.selectors.datetime(time_zone="*")
    in_utc = zoned.dt.convert_time_zone("UTC").dt.to_string(time)
    safe = frame.with_columns(_guarded(text.cast(pl.String)), in_utc)
    safe.columns = pl.DataFrame({"name": safe.columns}).select(_guarded(pl.col("name")))["name"].to_list()
    return safe


def _guarded(text: pl.Expr) -> pl.Expr:
    return text.str.replace(rf"^('*{_STARTS})", "'${1}")


REMEDY = "Move them away, or choose another folder with -o; nothing was changed."


@contextmanager
def held_directory(path: str | Path, *, mark: Mark, inputs: Iterable[str | Path] = ()) -> Iterator[Path]:
    """Keep a folder for this run from before it reads until it has written.

    What :func:`replaced_directory` would refuse in the end is refused at once, and no other run writes the folder
    meanwhile.

    Parameters
    ----------
    path, mark, inputs
        As for :func:`replaced_directory`, which within the block needs no inputs any more.

    Yields
    ------
    Path
        The place: absolute, and without links.

    Raises
    ------
    OutputError
        As :func:`replaced_directory`.

    Examples
    --------
    >>> with held_directory("/", mark=Mark("about.txt", "made here")):
    ...     pass
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.OutputError: cannot write /: expected a folder of its own; got the root of the file ...
    """
    path = Path(path)
    require_folder(path)
    with sole_writer(path) as place:
        ours = files_of_ours(place, mark) if place.is_dir() else {}
        _require_free(path, place, mark, ours)
        _require_apart(path, place, ours, inputs)
        yield place


@contextmanager
def replaced_directory(path: str | Path, *, mark: Mark, inputs: Iterable[str | Path] = ()) -> Iterator[Path]:
    """Fill a new folder beside ``path`` and put it in place only if the block ends well.

    The new folder gets a manifest of what the block wrote. It and the old one change places in one step, so that a
    run which is killed at any moment leaves the one or the other under the name; then all that the manifest of the
    old one does not list, and files of ours that somebody changed, move over to the new one, and what is left of
    the old one goes. What a run that is killed in between leaves, the next one puts in order.

    Parameters
    ----------
    path : str or Path
        Where the folder shall stand.
    mark : Mark
        Its kind. A folder of the kind, or of one of its older kinds, is replaced.
    inputs : iterable of str or Path
        Files and folders that the run reads: none of them may be among what is replaced.

    Yields
    ------
    Path
        The empty folder to fill.

    Raises
    ------
    OutputError
        If the folder cannot be written, another run writes it, it is where one stands (the current folder, home,
        one above them, a mount), a name that the kind or the block writes is taken by something that is not ours,
        or an input would be replaced. What stood at ``path`` is untouched.

    Examples
    --------
    >>> import tempfile
    >>> mark = Mark("about.txt", "made here")
    >>> with tempfile.TemporaryDirectory() as above:
    ...     out = Path(above) / "out"
    ...     out.mkdir()
    ...     _ = (out / "notes.txt").write_text("mine")
    ...     with replaced_directory(out, mark=mark) as new:
    ...         _ = (new / "about.txt").write_text("made here")
    ...     sorted(p.name for p in out.iterdir())
    ['about.txt', 'manifest.json', 'notes.txt']
    """
    path = Path(path)
    with held_directory(path, mark=mark, inputs=inputs) as place:
        ours = files_of_ours(place, mark) if place.is_dir() else {}
        room = new_room(place)
        try:
            with explained(path, within=(room, place)):
                (room / UNFINISHED).touch()
                (room / NEW).mkdir()
                yield room / NEW
                write_manifest(room / NEW, mark, {place / name: each for name, each in ours.items()})
                _put_in_place(path, place, room, mark, ours)
                settle(room, place)
        except BaseException:
            with contextlib.suppress(OSError):
                settle(room, place)
            raise


@contextmanager
def spare_room(path: str | Path) -> Iterator[Path]:
    """An empty folder beside another one, on its disk, for what must wait there; it goes with the block.

    What a killed run leaves in it is swept by the next run that writes the folder.
    """
    place = Path(path).resolve()
    room = new_room(place)
    try:
        with explained(place, within=(room,)):
            (room / UNFINISHED).touch()
            (room / NEW).mkdir()
            yield room / NEW
    finally:
        settle(room, place)


def _put_in_place(path: Path, place: Path, room: Path, mark: Mark, ours: Mapping[str, Written]) -> None:
    new = room / NEW
    if not place.exists():
        new.chmod(0o777 & ~umask())
        (room / UNFINISHED).unlink()
        new.rename(place)
        return
    taken = [name for name in foreign_entries(place, ours, new) if in_the_way(new, name)]
    if taken:
        raise _taken(path, taken)
    if ours and read_manifest(place) is None:  # from now on it must be known without its mark
        state_manifest(place, mark, ours)
    old = place.stat()
    with contextlib.suppress(PermissionError):
        os.chown(new, -1, old.st_gid)
    new.chmod(old.st_mode & 0o7777)
    (room / UNFINISHED).unlink()
    if not exchanged(new, place):
        place.rename(room / PREVIOUS)
        try:
            new.rename(place)
        except OSError:
            (room / PREVIOUS).rename(place)
            raise


def _require_free(path: Path, place: Path, mark: Mark, ours: Mapping[str, Written]) -> None:
    """Refuse, before any work is done, names that are taken and things that cannot move over."""
    if not place.is_dir():
        return
    with explained(path):
        theirs = foreign_entries(place, ours)
    kind, _ = read_manifest(place) or (None, None)
    if MANIFEST in theirs and kind is not None:
        todo = "Choose another folder with -o; nothing was changed."
        raise cannot_write(path, f"a {kind!r}", expected=f"a {mark.text!r} or another folder", todo=todo)
    changed = [name for name in theirs if name in ours]
    if changed:
        expected = "its files as they were written"
        raise cannot_write(path, f"{examples(changed)}, changed since", expected=expected, todo=REMEDY)
    taken = [name for name in mark.found_in(place) if name not in ours]
    if taken:
        raise _taken(path, taken)
    fixed = [name for name in theirs if not _movable(place / name)]
    if fixed:
        expected = "things that can move to the new folder"
        got = f"{examples(fixed)}, mounted or of somebody else"
        raise cannot_write(path, got, expected=expected, todo=REMEDY)


def _require_apart(path: Path, place: Path, ours: Mapping[str, Written], inputs: Iterable[str | Path]) -> None:
    """Refuse an input that is, or holds, a file that would be replaced."""
    for each in inputs:
        given = Path(each).resolve()
        if place not in given.parents:
            continue
        name = given.relative_to(place).as_posix()
        if name in ours or any(one.startswith(f"{name}/") for one in ours):
            got = f"{each}, which it would replace"
            todo = "Choose another folder with -o; nothing was changed."
            raise cannot_write(path, got, expected="inputs that stay", todo=todo)


def _movable(entry: Path) -> bool:
    """False for a mount, and for a folder that this user may not write, which no rename takes along."""
    if entry.is_symlink() or not entry.is_dir():
        return True
    return not os.path.ismount(entry) and os.access(entry, os.W_OK)


def _taken(path: Path, names: list[str]) -> OutputError:
    got = f"{examples(names)}, not written by gpuplanner"
    return cannot_write(path, got, expected="the names that it writes to be free", todo=REMEDY)
