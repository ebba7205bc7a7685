"""Strict reading and stable writing of JSON, YAML and CSV, and records as plain values."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import re
import sys
import types
import typing
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import yaml

from gpuplanner.core.errors import (
    OTHER_FILE,
    GpuPlannerError,
    ScenarioError,
    TraceFormatError,
    nearest,
    printable,
)

REMEDY = "Correct the file."


def list_of(top: Any, key: str, file: str) -> list[tuple[Any, int]]:  # noqa: ANN401 - of a file
    """The items of a list, each with the line that it begins in; none where the key is absent."""
    found = top.get(key) or []
    if not isinstance(found, list):
        raise fault(file, top.lines[key], f"a list of {key}", repr(found))
    return [(one, min(getattr(one, "lines", {"": 1}).values(), default=1)) for one in found]


def keys_of(given: Any, known: Sequence[str], where: str, line: int, needed: Sequence[str] = ()) -> Any:  # noqa: ANN401
    """A mapping of known keys that has all that are needed; values that are null count as absent."""
    if not isinstance(given, dict):
        raise fault(where, line, f"keys {', '.join(known)}", repr(given))
    for key, value in given.items():
        if key not in known:
            near = nearest(str(key), known)[:1]
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            at = given.lines[key]  # type: ignore[attr-defined]
            raise fault(where, at, f"keys {', '.join(known)}", f"unknown {key!r}: {value!r}{hint}")
    absent = [key for key in needed if given.get(key) is None]
    if absent:
        raise fault(where, line, f"key {absent[0]}", f"only {', '.join(map(str, given))}")
    return given


def number_of(values: Any, key: str, file: str, low: float, high: float, *, whole: bool = False) -> float:  # noqa: ANN401
    """A number between two bounds, which are allowed."""
    value = values[key]
    sound = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    if not sound or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise fault(file, values.lines[key], f"{key}, {kind} from {low:g} to {high:g}", repr(value))
    return float(value)


def word_of(values: Any, key: str, file: str, words: Sequence[str]) -> str:  # noqa: ANN401
    """One of a few words."""
    value = values[key]
    if value not in words:
        near = nearest(str(value), words)[:1] or list(words)
        got = f"{value!r} (did you mean {near[0]!r}?)"
        raise fault(file, values.lines[key], f"{key} {' or '.join(words)}", got)
    return str(value)


def days_of(values: Any, file: str) -> tuple[str, str | None]:  # noqa: ANN401
    """ISO days of ``from`` and ``to``, of a month its first and its last."""
    found: list[str | None] = []
    for key in ("from", "to"):
        value = values.get(key)
        if value is None:
            found.append(None)
            continue
        try:
            month = re.fullmatch(r"(\d{4})-(\d\d)", str(value))
            day = date(int(month[1]), int(month[2]), 1) if month else date.fromisoformat(str(value)[:10])
            if month and key == "to":
                day = (day + timedelta(days=31)).replace(day=1) - timedelta(days=1)
        except ValueError:
            raise fault(file, values.lines[key], f"{key} as YYYY-MM-DD or YYYY-MM", repr(value)) from None
        found.append(day.isoformat())
    begin, end = found
    assert begin is not None
    if end is not None and end < begin:
        raise fault(file, values.lines["to"], f"to at or after {begin}", end)
    return begin, end


def fault(where: str, line: int, expected: str, got: str) -> ScenarioError:
    """What is wrong in a line of a file."""
    return ScenarioError(f"{where}, line {line}", expected, got, REMEDY)


# Nested merges grow without bound: eight short lines can fill the memory.
_MERGE = "tag:yaml.org,2002:merge"


class LinedMapping(dict[Any, Any]):
    """A mapping that knows on which line (from 1) each of its keys stands."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[Any, int] = {}


class _Loader(yaml.SafeLoader):
    pass


class _Fault(yaml.constructor.ConstructorError):
    def __init__(self, node: yaml.Node, problem: str) -> None:
        super().__init__(None, None, problem, node.start_mark)


def _yaml_mapping(loader: _Loader, node: yaml.MappingNode) -> LinedMapping:
    found = LinedMapping()
    for key_node, value_node in node.value:
        if key_node.tag == _MERGE:
            raise _Fault(key_node, "merge keys (<<) are not accepted")
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable):
            raise _Fault(key_node, "a key must be a word")
        if key in found:
            raise _Fault(key_node, f"key {key!a} stands there twice (first in line {found.lines[key]})")
        found[key] = loader.construct_object(value_node, deep=True)
        found.lines[key] = key_node.start_mark.line + 1
    return found


_Loader.add_constructor("tag:yaml.org,2002:map", _yaml_mapping)


def load_strict(text: str, *, where: str, error: type[GpuPlannerError] = TraceFormatError) -> Any:  # noqa: ANN401 - anything that YAML can hold
    r"""Load one YAML document; mappings come as :class:`LinedMapping`.

    Examples
    --------
    >>> load_strict("a: {b: 1}\nc: 2\n", where="x.yaml").lines
    {'a': 1, 'c': 2}
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as cause:
        raise _refused(cause, where, error) from cause


def _refused(cause: Exception, where: str, error: type[GpuPlannerError]) -> GpuPlannerError:
    """What is said of a text that is none: with its line, where the reader knows one."""
    mark = getattr(cause, "problem_mark", None)
    fault = getattr(cause, "problem", None) or " ".join(str(cause).split())
    at = f" line {mark.line + 1}" if mark else ""
    return error(f"{where}{at}", "one YAML document of plain data", str(fault)[:200], "Fix the file there.")


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
    gpuplanner.core.errors.ScenarioError: none.yaml: expected a readable UTF-8 text file; got No such file or directory.
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
        raise error(str(path), f"a readable UTF-8 {what} file", got, todo) from fault
    raise error(str(path), f"at most {limit_bytes} bytes", str(size), OTHER_FILE)


def read_yaml(path: str | Path, limit_bytes: int = 4_000_000) -> Any:  # noqa: ANN401
    """Load one YAML document safely.

    Raises
    ------
    ScenarioError
        If the file is missing, too large, not UTF-8 or not YAML; the message says where.
    """
    text = read_text(path, what="YAML", limit_bytes=limit_bytes, error=ScenarioError)
    return load_strict(text, where=str(path), error=ScenarioError)


Record = TypeVar("Record")
_SIMPLE: Mapping[Any, type] = {str: str, bool: bool, int: Integral, float: Real}
"""What a field of each of these types may hold; a float may be null, which is how NaN is written."""


def to_plain(value: object, decimals: int | None = None) -> Any:  # noqa: ANN401 - anything JSON holds
    """A value as JSON can hold it: records as objects, frames as lists of rows, instants and money as text.

    What is no number becomes null.

    Examples
    --------
    >>> to_plain({"a": float("nan"), "b": Decimal("1.50"), "c": 1 / 3}, decimals=2)
    {'a': None, 'b': '1.50', 'c': 0.33}
    """
    match value:
        case Mapping():
            return {str(key): to_plain(one, decimals) for key, one in value.items()}
        case list() | tuple():
            return [to_plain(one, decimals) for one in value]
        case date():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case float():
            return None if not math.isfinite(value) else value if decimals is None else round(value, decimals)
    if callable(rows := getattr(value, "to_dicts", None)):
        return to_plain(rows(), decimals)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: to_plain(getattr(value, one.name), decimals) for one in dataclasses.fields(value)}
    return value


def of_plain(kind: type[Record], value: object) -> Record:
    """The record that :func:`to_plain` wrote, by the types of its fields; keys that it does not have are passed over.

    A null is NaN where a number has to stand. Raises ``KeyError`` or ``TypeError`` where something is missing, or is a
    text for a number or the like.
    """
    return _typed(kind, value)  # type: ignore[no-any-return]


def rounded(record: Record, decimals: int) -> Record:
    """The same record with its numbers rounded, as it is when it was written and read again."""
    return of_plain(type(record), to_plain(record, decimals))


@functools.cache
def _fields(kind: type) -> Mapping[str, Any]:
    """Fields of a record with their types, which stand there as text."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _typed(kind: Any, value: Any) -> Any:  # noqa: ANN401 - a type, and what stands for a value of it
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints, value = _fields(kind), _plain_mapping(value)
        return kind(**{name: _typed(hints[name], one) for name, one in value.items() if name in hints})
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        parts = [one for one in inside if one is not type(None)]
        return _typed(next((one for one in parts if _fits(one, value)), parts[0]), value)
    if origin is tuple:
        if len(inside) == 2 and inside[1] is Ellipsis:
            return tuple(_typed(inside[0], one) for one in value)
        return tuple(_typed(part, one) for part, one in zip(inside, value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: _typed(inside[1], one) for key, one in _plain_mapping(value).items()}
    if kind is float and value is None:
        return math.nan
    if kind in _SIMPLE and not _fits(kind, value):
        raise TypeError(f"{str(value)[:40]!r} where {kind.__name__} is expected")
    return value


def _plain_mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{str(value)[:40]!r} where values by name are expected")
    return value


def _fits(kind: Any, value: object) -> bool:  # noqa: ANN401 - a type
    """Whether a value is of a simple type; whole numbers may be beyond what a float holds."""
    if kind is float:
        if isinstance(value, Integral):
            return abs(int(value)) <= sys.float_info.max
        return value is None or (isinstance(value, Real) and not math.isinf(value))
    return kind in _SIMPLE and isinstance(value, _SIMPLE[kind])


LARGEST = 1e15
"""Largest number that is taken: whole numbers up to it are exact, and sums of products of a few of them stay finite."""

# Python turns no longer text into a whole number; names and layouts are far shorter.
_LONGEST = 4000


def load_json(text: str, *, where: str, error: type[GpuPlannerError]) -> Any:  # noqa: ANN401 - what JSON holds
    """Load one JSON document of mappings, lists, texts and numbers; true and false are none of these.

    Examples
    --------
    >>> from gpuplanner.core.errors import ScenarioError
    >>> load_json('{"gpus": [1, 2.5]}', where="plan.json", error=ScenarioError)
    {'gpus': [1, 2.5]}
    >>> load_json('{"gpus": [1, 1e308]}', where="plan.json", error=ScenarioError)
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.ScenarioError: plan.json: expected finite numbers up to 1e+15; got 1e+308 at gpus.1. Fix the
    file there.
    """
    try:
        values = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except (RecursionError, ValueError) as cause:
        got = "brackets nested too deep" if isinstance(cause, RecursionError) else str(cause)[:200]
        expected, todo = "one whole JSON document, each key once", "Check that the file is whole."
        raise error(where, expected, got, todo) from cause
    for place, expected, got in _odd(values):
        raise error(where, expected, f"{got} at {place or 'the top'}", "Fix the file there.")
    return values


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)[:40]!r} stands there twice")
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _odd(values: Any) -> Iterator[tuple[str, str, str]]:  # noqa: ANN401 - as above
    """Place, expectation and what came of each value that is refused."""
    left: list[tuple[str, Any]] = [("", {"": values})]
    while left:
        place, held = left.pop()
        for key, one in held.items() if isinstance(held, dict) else enumerate(held):
            if isinstance(one, dict | list):
                left.append((f"{place}.{key}"[-200:].lstrip("."), one))
            elif fault := _fault(one) or _fault(key):
                yield f"{place}.{key}"[-200:].strip("."), *fault


def _fault(value: object) -> tuple[str, str] | None:
    """What was expected instead of a single value, and what came."""
    match value:
        case bool():
            return "texts and numbers", str(value).lower()
        case int() | float() if not -LARGEST <= value <= LARGEST:
            got = f"{value:g}" if isinstance(value, float) else "a whole number beyond it"
            return f"finite numbers up to {LARGEST:g}", got
        case float() if value == 0 and math.copysign(1.0, value) < 0:
            return "0 without a sign", "-0.0"
        case str() if len(value) > _LONGEST:
            return f"texts of at most {_LONGEST} characters", f"one of {len(value)}"
    return None
