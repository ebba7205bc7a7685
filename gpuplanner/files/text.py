"""Stable text and hashes: equal values give equal bytes, and JSON never holds what a terminal would obey."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from gpuplanner.errors import ScenarioError, message, printable
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
