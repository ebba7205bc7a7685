"""Atomic writes and stable text: a file is either the old one or the whole new one."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpuplanner.errors import GpuPlannerWarning, OutputError, ScenarioError, message
from gpuplanner.strict_yaml import load_strict


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> Path:
    """Let ``write`` fill a temporary file beside ``path``, then move it into place in one step.

    Parameters
    ----------
    path : str or Path
        Where the file shall stand. Missing folders are made.
    write : callable
        Gets the temporary path and writes the whole file.

    Returns
    -------
    Path
        ``path``.

    Raises
    ------
    OutputError
        If the folder cannot be written or the disk is full. What stood at ``path`` is untouched.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "a.txt", lambda p: p.write_text("x")).read_text()
    'x'
    """
    path = Path(path)
    with _explained(path, preparing=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
        os.close(handle)
        temporary = Path(name)
    with _explained(path):
        try:
            write(temporary)
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    return path


@contextmanager
def replaced_directory(path: str | Path, *, mark: Mark) -> Iterator[Path]:
    """Fill a new folder beside ``path`` and put it in place only if the block ends well.

    An old folder and the new one change places in one step, so that a run which is killed at any moment leaves
    the one or the other under the name. Where the file system knows no such step, the old one is moved aside
    first; if the run is killed just then, the next one moves it back, see :func:`put_back`.

    Parameters
    ----------
    path : str or Path
        Where the folder shall stand. What stands there already is replaced only if it is an empty folder or
        bears the mark: nothing else is ever deleted.
    mark : Mark
        By which folders of this kind are known; the block must leave it in the new one.

    Yields
    ------
    Path
        The empty temporary folder to fill.

    Raises
    ------
    OutputError
        If the folder cannot be written, or holds other things. What stood at ``path`` is untouched.

    Examples
    --------
    >>> mark = Mark("about.txt", "made here")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replaced_directory(Path(folder) / "out", mark=mark) as new:
    ...         _ = (new / "about.txt").write_text("made here")
    ...     sorted(p.name for p in (Path(folder) / "out").iterdir())
    ['about.txt']
    """
    path = Path(path)
    path = path.resolve() if path.is_symlink() else path
    put_back(path, mark=mark)
    if path.exists() and not mark.may_be_replaced(path):
        text = message(
            f"cannot write {path}",
            f"a new or empty folder, or one with {mark.file} of an earlier run",
            "a file" if path.is_file() else "a folder with other things in it",
            "Choose another folder with -o; nothing was changed.",
        )
        raise OutputError(text)
    with _explained(path, preparing=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        with _explained(path):
            yield temporary
            assert (temporary / mark.file).exists()
            temporary.chmod(0o777 & ~_umask())
            if not path.exists():
                temporary.rename(path)
            elif not _exchanged(temporary, path):
                _moved_through(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _exchanged(one: Path, other: Path) -> bool:
    """Let two paths change places in one step; False where the system or the file system cannot.

    References
    ----------
    Linux man-pages, rename(2): ``renameat2`` with ``RENAME_EXCHANGE``.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNKNOWN_CALL:
        return False
    raise OSError(number, os.strerror(number), str(other))


def put_back(path: str | Path, *, mark: Mark) -> None:
    """Give a folder its name back if a run was killed while it had moved the folder aside.

    Parameters
    ----------
    path : str or Path
        Where the folder should stand; if anything stands there, nothing is done.
    mark : Mark
        As in :func:`replaced_directory`.

    Warns
    -----
    GpuPlannerWarning
        If a folder was put back.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     put_back(Path(folder) / "out", mark=Mark("about.txt", "made here"))
    """
    path = Path(path)
    aside = aside_of(path)
    if path.exists() or not mark.may_be_replaced(aside):
        return
    with _explained(path, preparing=True):
        aside.rename(path)
    text = f"{path}: an earlier run was stopped while replacing it; put back as it was before that run"
    warnings.warn(text, GpuPlannerWarning, stacklevel=2)


def aside_of(path: Path) -> Path:
    """Where an old folder waits while a new one takes its place."""
    return path.with_name(f".{path.name}.previous")


def _moved_through(new: Path, path: Path) -> None:
    """Put `new` in place of `path` in two steps; between them the old folder stands aside."""
    aside = aside_of(path)
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    try:
        new.rename(path)
    except OSError:
        aside.rename(path)
        raise
    shutil.rmtree(aside)


@dataclass(frozen=True)
class Mark:
    """A file, and a text in it, by which a folder is known to be ours to replace."""

    file: str
    text: str

    def may_be_replaced(self, directory: Path) -> bool:
        """True for an empty folder and for one that bears the mark."""
        if not directory.is_dir():
            return False
        if not any(directory.iterdir()):
            return True
        try:
            return self.text in (directory / self.file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return False


def sha256(path: str | Path) -> str:
    """Hash of a file's bytes, in hexadecimal."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_of_all(paths: Iterable[str | Path]) -> str:
    """Hash of the bytes of files one after another, in hexadecimal."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()


def to_json(value: Any) -> str:  # noqa: ANN401 - anything that JSON can hold
    r"""Print as JSON with sorted keys and a line end; NaN and infinity are refused.

    Examples
    --------
    >>> print(to_json({"b": 1, "a": 1.5}), end="")
    {
      "a": 1.5,
      "b": 1
    }
    """
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def to_yaml(value: Any) -> str:  # noqa: ANN401 - anything that YAML can hold
    r"""Print as YAML in the given key order.

    Examples
    --------
    >>> print(to_yaml({"b": 1, "a": "x"}), end="")
    b: 1
    a: x
    """
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)


def read_yaml(path: str | Path, limit_bytes: int = 4_000_000) -> Any:  # noqa: ANN401
    """Load one YAML document safely.

    Raises
    ------
    ScenarioError
        If the file is missing, too large, not UTF-8 or not YAML; the message says where.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        text = path.read_text(encoding="utf-8") if size <= limit_bytes else None
    except (OSError, UnicodeDecodeError) as error:
        text_out = message(
            str(path), "a readable UTF-8 YAML file", str(error), "Check the path and encoding."
        )
        raise ScenarioError(text_out) from error
    if text is None:
        text_out = message(
            str(path), f"at most {limit_bytes} bytes", f"{size} bytes", "Is this the right file?"
        )
        raise ScenarioError(text_out)
    return load_strict(text, where=str(path), error=ScenarioError)


_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_UNKNOWN_CALL = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP})

# What a folder or disk can do to a writer; any other OSError is a fault of its own and passes unchanged.
_WRITE_FAULTS = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.ENOTDIR,
        errno.EEXIST,
        errno.EFBIG,
        errno.EBUSY,
        errno.EXDEV,
    }
)


@contextmanager
def _explained(path: Path, *, preparing: bool = False) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, OutputError) or not (preparing or error.errno in _WRITE_FAULTS):
            raise
        text = message(
            f"cannot write {path}",
            "a writable folder with free space",
            error.strerror or str(error),
            "Choose another folder with -o; nothing that stood there was changed.",
        )
        raise OutputError(text) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
