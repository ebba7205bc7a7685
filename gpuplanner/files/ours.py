"""Which single files gpuplanner wrote: a hidden note beside each holds its size and hash."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from gpuplanner.files.faults import cannot_write
from gpuplanner.files.manifest import HASHED_BYTES, Mark, Written
from gpuplanner.files.text import sha256

DATASET_FORMAT = "gpuplanner dataset 1"
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
