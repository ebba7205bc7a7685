"""Stable text and hashes: equal values give equal bytes, and JSON never holds what a terminal would obey."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from gpuplanner.errors import OTHER_FILE, GpuPlannerError, ScenarioError, message, printable
from gpuplanner.strict_yaml import load_strict


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

    What a terminal would obey stands as its escape, which reads as the same text.

    Examples
    --------
    >>> print(to_json({"b": 1, "a": 1.5}), end="")
    {
      "a": 1.5,
      "b": 1
    }
    """
    return printable(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)) + "\n"


def to_yaml(value: Any) -> str:  # noqa: ANN401 - anything that YAML can hold
    r"""Print as YAML in the given key order.

    Examples
    --------
    >>> print(to_yaml({"b": 1, "a": "x"}), end="")
    b: 1
    a: x
    """
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)


def read_text(
    path: str | Path, *, error: type[GpuPlannerError], what: str = "text", limit_bytes: int = 100_000_000
) -> str:
    """Read a text file of the user; a mark of the byte order at its begin is passed over.

    Parameters
    ----------
    path : str or Path
        The file.
    error : type
        What is raised where it cannot be read: if it is missing, too large, or not UTF-8.
    what : str
        Kind of file, for the message.
    limit_bytes : int
        Largest size.

    Examples
    --------
    >>> read_text("none.yaml", error=ScenarioError)
    Traceback (most recent call last):
        ...
    gpuplanner.errors.ScenarioError: none.yaml: expected a readable UTF-8 text file; got No such file or directory.
    Check the path and encoding.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        if size <= limit_bytes:
            return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as fault:
        got = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
        todo = "Check the path and encoding."
        raise error(message(str(path), f"a readable UTF-8 {what} file", got, todo)) from fault
    raise error(message(str(path), f"at most {limit_bytes} bytes", str(size), OTHER_FILE))


def read_yaml(path: str | Path, limit_bytes: int = 4_000_000) -> Any:  # noqa: ANN401
    """Load one YAML document safely.

    Raises
    ------
    ScenarioError
        If the file is missing, too large, not UTF-8 or not YAML; the message says where.
    """
    text = read_text(path, what="YAML", limit_bytes=limit_bytes, error=ScenarioError)
    return load_strict(text, where=str(path), error=ScenarioError)
