"""A folder that is replaced whole, while all that others put into it stays."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpuplanner.errors import OutputError, examples
from gpuplanner.files.faults import cannot_write, explained
from gpuplanner.files.foreign import exchanged, foreign_entries, in_the_way
from gpuplanner.files.leftovers import NEW, PREVIOUS, UNFINISHED, settle
from gpuplanner.files.lock import sole_writer
from gpuplanner.files.manifest import (
    MANIFEST,
    Mark,
    Written,
    files_of_ours,
    read_manifest,
    state_manifest,
    write_manifest,
)
from gpuplanner.files.place import new_room, require_folder
from gpuplanner.files.single import umask

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
    gpuplanner.errors.OutputError: cannot write /: expected a folder of its own; got the root of the file system. ...
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
        expected, todo = (
            f"a {mark.text!r} or another folder",
            "Choose another folder with -o; nothing was changed.",
        )
        raise cannot_write(path, f"a {kind!r}", expected=expected, todo=todo)
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


def _require_apart(
    path: Path, place: Path, ours: Mapping[str, Written], inputs: Iterable[str | Path]
) -> None:
    """Refuse an input that is, or holds, a file that would be replaced."""
    for each in inputs:
        given = Path(each).resolve()
        if place not in given.parents:
            continue
        name = given.relative_to(place).as_posix()
        if name in ours or any(one.startswith(f"{name}/") for one in ours):
            todo = "Choose another folder with -o; nothing was changed."
            raise cannot_write(
                path, f"{each}, which it would replace", expected="inputs that stay", todo=todo
            )


def _movable(entry: Path) -> bool:
    """False for a mount, and for a folder that this user may not write, which no rename takes along."""
    if entry.is_symlink() or not entry.is_dir():
        return True
    return not os.path.ismount(entry) and os.access(entry, os.W_OK)


def _taken(path: Path, names: list[str]) -> OutputError:
    got = f"{examples(names)}, not written by gpuplanner"
    return cannot_write(path, got, expected="the names that it writes to be free", todo=REMEDY)
