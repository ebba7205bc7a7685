"""The list of what we wrote into a folder: all else in it belongs to somebody else."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuplanner.files.text import sha256, to_json

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
        return sorted(
            {path.relative_to(folder).as_posix() for each in patterns for path in folder.glob(each)}
        )


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
    listed = {
        name: {"bytes": each.bytes, "sha256": each.sha256} for name, each in files.items() if name != MANIFEST
    }
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
