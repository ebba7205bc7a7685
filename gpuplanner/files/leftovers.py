"""What a run leaves beside a place while it writes there, and how the next one clears up after a run that was killed.

A new folder is made in a hidden room beside its place, ``.NAME.gpuplanner-xxxxxxxx``::

    unfinished     an empty file: what lies in ``new`` was written by us alone and is no use to anyone
    new            the new folder; once it has changed places with the old one, the old one
    previous       the old folder, where the two cannot change places in one step

Whenever the run ends, what lies there tells what is to be done, so that the run itself and the next one do the same.
"""

from __future__ import annotations

import contextlib
import shutil
import warnings
from pathlib import Path

from gpuplanner.errors import GpuPlannerWarning, OutputError, examples
from gpuplanner.files.foreign import carry, drop, foreign_entries
from gpuplanner.files.manifest import read_manifest
from gpuplanner.files.place import left_beside, place_of

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
