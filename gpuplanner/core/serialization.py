"""Strict reading and stable writing of JSON and YAML, and conversion of records to plain values."""

from __future__ import annotations

import csv
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
from importlib import resources
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import yaml

from gpuplanner.core.errors import (
    REPLACE_FILE_FIX,
    GpuPlannerError,
    ScenarioError,
    TraceFormatError,
    escape_controls,
    suggest_name,
)

CORRECT_FILE_FIX = "Correct the file; gpuplanner catalog example lists and prints whole ones."
"""Fourth part of an error message (the fix) about a fault in a configuration file."""


@functools.cache
def read_packaged_rows(package: str, file: str) -> list[dict[str, str]]:
    """Read the rows of a CSV file that is shipped with a package, each as column → text."""
    text = (resources.files(package) / file).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def read_list(top: Any, key: str, file: str) -> list[tuple[Any, int]]:  # noqa: ANN401 - of a file
    """Read the list under a key of a configuration file: items with the line of each, from 1; empty without the key."""
    items = top.get(key) or []
    if not isinstance(items, list):
        raise make_file_error(file, top.lines[key], f"a list of {key}", repr(items))
    return [(item, min(getattr(item, "lines", {"": 1}).values(), default=1)) for item in items]


def read_rows(
    mapping: LinedMapping, keys_by_section: Mapping[str, tuple[Sequence[str], Sequence[str]]], file: str
) -> list[list[tuple[Any, int]]]:
    """Read lists of mappings of a configuration file; wrong and absent keys of all rows are one error.

    Parameters
    ----------
    mapping : LinedMapping
        The file, or the part of it that has the lists.
    keys_by_section : mapping
        Keys that the rows of each list may have and must have, by the key of the list.
    file : str
        File name, for the message.

    Returns
    -------
    list of list of tuple
        For each list its rows, each with its line.

    Raises
    ------
    ScenarioError
        If a row is not a mapping, has an unknown key or lacks a required one.
    """
    sections = [read_list(mapping, key, file) for key in keys_by_section]
    faults = [
        (f"{section}, line {fault[0]}", *fault[1:])
        for (section, keys), rows in zip(keys_by_section.items(), sections, strict=True)
        for row, line in rows
        if (fault := _find_key_fault(row, line, *keys)) is not None
    ]
    if faults:
        places, expected, got = ("; ".join(texts) for texts in zip(*faults, strict=True))
        raise ScenarioError(f"{file}, {places}", expected, got, CORRECT_FILE_FIX)
    return sections


def require_keys(
    mapping: object, allowed_keys: Sequence[str], source: str, line: int, required_keys: Sequence[str] = ()
) -> Any:  # noqa: ANN401 - of a file
    """Return a mapping after checking that it has only allowed keys and all required ones.

    Parameters
    ----------
    mapping : LinedMapping
        Part of a configuration file.
    allowed_keys, required_keys : sequence of str
        Keys that it may and must have; null values count as absent.
    source : str
        File name, for the message.
    line : int
        Line on which the mapping begins.

    Raises
    ------
    ScenarioError
        If it is not a mapping, a key is unknown or a required one is absent.
    """
    fault = _find_key_fault(mapping, line, allowed_keys, required_keys)
    if fault is not None:
        raise make_file_error(source, *fault)
    return mapping


def _find_key_fault(
    mapping: object, line: int, allowed_keys: Sequence[str], required_keys: Sequence[str]
) -> tuple[int, str, str] | None:
    """Find the first fault of the keys of a mapping: its line, the expected keys, and those found; None without one.

    Parameters
    ----------
    mapping : LinedMapping
        Part of a configuration file.
    line : int
        Line on which the mapping begins.
    allowed_keys, required_keys : sequence of str
        Keys that it may and must have; null values count as absent.
    """
    if not isinstance(mapping, dict):
        return line, f"keys {', '.join(allowed_keys)}", repr(mapping)
    for key, value in mapping.items():
        if key not in allowed_keys:
            got = f"unknown {key!r}: {value!r}{suggest_name(str(key), allowed_keys)}"
            return mapping.lines[key], f"keys {', '.join(allowed_keys)}", got  # type: ignore[attr-defined]
    absent = [key for key in required_keys if mapping.get(key) is None]
    if absent:
        expected = f"key{'s' * (len(absent) > 1)} {', '.join(absent)}"
        return line, expected, f"only {', '.join(map(str, mapping))}"
    return None


def read_number(values: Any, key: str, file: str, low: float, high: float, *, whole: bool = False) -> float:  # noqa: ANN401
    """Read a number between two bounds, both allowed.

    Parameters
    ----------
    values : LinedMapping
        Part of a configuration file.
    key, file : str
        Key of the number, and file name for the message.
    low, high : float
        Bounds.
    whole : bool
        Whether it must be a whole number.
    """
    value = values[key]
    sound = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    if not sound or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise make_file_error(file, values.lines[key], f"{key}, {kind} from {low:g} to {high:g}", repr(value))
    return float(value)


def read_choice(values: Any, key: str, file: str, choices: Sequence[str]) -> str:  # noqa: ANN401
    """Read one of several words.

    Parameters
    ----------
    values : LinedMapping
        Part of a configuration file.
    key, file : str
        Key of the word, and file name for the message.
    choices : sequence of str
        Allowed words.
    """
    value = values[key]
    if value not in choices:
        got = f"{value!r}{suggest_name(str(value), choices)}"
        raise make_file_error(file, values.lines[key], f"{key} {' or '.join(choices)}", got)
    return str(value)


YEAR_BOUNDS = (1970, 2199)
"""First and last year of the days in a configuration file; a later end, such as 9999-12-31, is no end."""


def read_day(values: Any, key: str, file: str) -> str | None:  # noqa: ANN401
    """Read a day as ISO date; a month (YYYY-MM) is its first day, of ``to`` its last one.

    Parameters
    ----------
    values : LinedMapping
        Part of a configuration file.
    key, file : str
        Key of the day, and file name for the message.

    Returns
    -------
    str or None
        The day; None without a value, and for a ``to`` after :data:`YEAR_BOUNDS`: no end.
    """
    value, (first_year, last_year) = values.get(key), YEAR_BOUNDS
    if value is None:
        return None
    try:
        month = re.fullmatch(r"(\d{4})-(\d\d)", str(value))
        day = date(int(month[1]), int(month[2]), 1) if month else date.fromisoformat(str(value)[:10])
    except ValueError:
        raise make_file_error(file, values.lines[key], f"{key} as YYYY-MM-DD or YYYY-MM", repr(value)) from None
    if key == "to" and day.year > last_year:
        return None
    if not first_year <= day.year <= last_year:
        raise make_file_error(
            file, values.lines[key], f"{key} in the years {first_year} to {last_year}", day.isoformat()
        )
    if month and key == "to":
        day = (day + timedelta(days=31)).replace(day=1) - timedelta(days=1)
    return day.isoformat()


def read_day_range(values: Any, file: str) -> tuple[str, str | None]:  # noqa: ANN401
    """Read the days ``from`` and ``to`` as ISO dates with :func:`read_day`; ``to`` is None without an end."""
    begin, end = (read_day(values, key, file) for key in ("from", "to"))
    assert begin is not None
    if end is not None and end < begin:
        raise make_file_error(file, values.lines["to"], f"to at or after {begin}", end)
    return begin, end


def make_file_error(source: str, line: int, expected: str, got: str) -> ScenarioError:
    """Make the error of one line of a configuration file.

    Parameters
    ----------
    source : str
        File name.
    line : int
        Line number, from 1.
    expected, got : str
        The expected value, and the value found.
    """
    return ScenarioError(f"{source}, line {line}", expected, got, CORRECT_FILE_FIX)


# Nested merges grow without bound: eight short lines can fill the memory.
_YAML_MERGE_TAG = "tag:yaml.org,2002:merge"
"""YAML tag of the merge key ``<<``, which is rejected."""


class LinedMapping(dict[Any, Any]):
    """A mapping that records the line (from 1) of each key."""

    def __init__(self) -> None:
        """Start an empty mapping."""
        super().__init__()
        self.lines: dict[Any, int] = {}


class _StrictYamlLoader(yaml.SafeLoader):
    """Safe YAML loader that records the lines of keys and rejects duplicate keys."""


class _YamlFault(yaml.constructor.ConstructorError):
    """A fault in a YAML file, with the position of the node that has it."""

    def __init__(self, node: yaml.Node, problem: str) -> None:
        super().__init__(None, None, problem, node.start_mark)


def _yaml_mapping(loader: _StrictYamlLoader, node: yaml.MappingNode) -> LinedMapping:
    """Construct a YAML mapping with the lines of its keys; merge keys and duplicate keys are rejected."""
    mapping = LinedMapping()
    for key_node, value_node in node.value:
        if key_node.tag == _YAML_MERGE_TAG:
            raise _YamlFault(key_node, "merge keys (<<) are not accepted")
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable):
            raise _YamlFault(key_node, "a key must be a word")
        if key in mapping:
            raise _YamlFault(key_node, f"key {key!a} stands there twice (first in line {mapping.lines[key]})")
        mapping[key] = loader.construct_object(value_node, deep=True)
        mapping.lines[key] = key_node.start_mark.line + 1
    return mapping


_StrictYamlLoader.add_constructor("tag:yaml.org,2002:map", _yaml_mapping)


def load_yaml(text: str, *, source: str, error: type[GpuPlannerError] = TraceFormatError) -> Any:  # noqa: ANN401 - anything that YAML can hold
    r"""Load one YAML document; mappings become :class:`LinedMapping`.

    Parameters
    ----------
    text : str
        The document.
    source : str
        Origin of the text, for the message.
    error : type
        Class of the error.

    Examples
    --------
    >>> load_yaml("a: {b: 1}\nc: 2\n", source="x.yaml").lines
    {'a': 1, 'c': 2}
    """
    try:
        return yaml.load(text, Loader=_StrictYamlLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as cause:
        mark = getattr(cause, "problem_mark", None)
        fault = str(getattr(cause, "problem", None) or " ".join(str(cause).split()))[:200]
        at = f" line {mark.line + 1}" if mark else ""
        raise error(f"{source}{at}", "one YAML document of plain data", fault, "Fix the file there.") from cause


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_of_all(paths: Iterable[str | Path]) -> str:
    """Return the SHA-256 of several files one after another, in hexadecimal."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()


def to_json(value: Any) -> str:  # noqa: ANN401 - anything that JSON can hold
    r"""Format a value as JSON with sorted keys and a line end; NaN and infinity are rejected.

    Control characters become escapes, which read back as the same text.

    Examples
    --------
    >>> print(to_json({"b": 1, "a": 1.5}), end="")
    {
      "a": 1.5,
      "b": 1
    }
    """
    return escape_controls(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)) + "\n"


def to_yaml(value: Any) -> str:  # noqa: ANN401 - anything that YAML can hold
    r"""Format a value as YAML in the given key order.

    Examples
    --------
    >>> print(to_yaml({"b": 1, "a": "x"}), end="")
    b: 1
    a: x
    """
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)


def read_text(
    path: str | Path, *, error: type[GpuPlannerError], kind: str = "text", limit_bytes: int = 100_000_000
) -> str:
    """Read a UTF-8 text file of the user; a byte order mark is skipped.

    Parameters
    ----------
    path : str or Path
        The file.
    error : type
        Class of the error if it is missing, too large, or not UTF-8.
    kind : str
        Kind of file, for the message.
    limit_bytes : int
        Largest size. [B]

    Examples
    --------
    >>> read_text("none.yaml", error=ScenarioError)
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.ScenarioError: none.yaml: expected a readable text file; got No such file or directory.
    Check the path.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        if size <= limit_bytes:
            return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as fault:
        got, todo = str(getattr(fault, "strerror", "") or fault), "Check the path."
        if isinstance(fault, UnicodeDecodeError):
            got, todo = "bytes that are not UTF-8 text, as in Excel files", "Give the right file, in UTF-8."
        raise error(str(path), f"a readable {kind} file", got, todo) from fault
    raise error(str(path), f"at most {limit_bytes} bytes", str(size), REPLACE_FILE_FIX)


def read_yaml(path: str | Path, limit_bytes: int = 4_000_000) -> Any:  # noqa: ANN401
    """Load one YAML document from a file.

    Raises
    ------
    ScenarioError
        If the file is missing, too large, not UTF-8 or not YAML, with the line.
    """
    text = read_text(path, kind="YAML", limit_bytes=limit_bytes, error=ScenarioError)
    return load_yaml(text, source=str(path), error=ScenarioError)


Record = TypeVar("Record")
"""Type of a dataclass that is restored from plain values."""
_ACCEPTED_TYPE_BY_FIELD_TYPE: Mapping[Any, type] = {str: str, bool: bool, int: Integral, float: Real}
"""Simple field types and the values that they accept; a float may be null, which is how NaN is written."""


def to_plain(value: object, decimals: int | None = None) -> Any:  # noqa: ANN401 - anything JSON holds
    """Convert a value to plain JSON types: records to objects, frames to lists of rows, times and money to text.

    NaN and infinity become null; other floats are rounded to `decimals` if it is given.

    Examples
    --------
    >>> to_plain({"a": float("nan"), "b": Decimal("1.50"), "c": 1 / 3}, decimals=2)
    {'a': None, 'b': '1.50', 'c': 0.33}
    """
    match value:
        case Mapping():
            return {str(key): to_plain(item, decimals) for key, item in value.items()}
        case list() | tuple():
            return [to_plain(item, decimals) for item in value]
        case date():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case float():
            if not math.isfinite(value):
                return None
            return value if decimals is None else round(value, decimals)
    if callable(rows := getattr(value, "to_dicts", None)):
        return to_plain(rows(), decimals)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: to_plain(getattr(value, item.name), decimals) for item in dataclasses.fields(value)}
    return value


def from_plain(kind: type[Record], value: object) -> Record:
    """Restore a record from the output of :func:`to_plain`, by the types of its fields; unknown keys are ignored.

    A null becomes NaN where a float is expected.

    Raises
    ------
    KeyError, TypeError
        If a value is missing or has the wrong type.
    """
    return _parse_value(kind, value)  # type: ignore[no-any-return]


def round_record(record: Record, decimals: int) -> Record:
    """Return a record with its numbers rounded to `decimals`, as if it had been written to JSON and read back."""
    return from_plain(type(record), to_plain(record, decimals))


@functools.cache
def _field_types(kind: type) -> Mapping[str, Any]:
    """Return the resolved types of the fields of a dataclass, by name."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _parse_value(kind: Any, value: Any) -> Any:  # noqa: ANN401 - a type, and what stands for a value of it
    """Convert a plain value to a type: a dataclass, union, tuple, mapping or simple type."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints, value = _field_types(kind), _plain_mapping(value)
        return kind(**{name: _parse_value(hints[name], item) for name, item in value.items() if name in hints})
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        parts = [item for item in inside if item is not type(None)]
        return _parse_value(next((item for item in parts if _is_simple_value(item, value)), parts[0]), value)
    if origin is tuple:
        if len(inside) == 2 and inside[1] is Ellipsis:
            return tuple(_parse_value(inside[0], item) for item in value)
        return tuple(_parse_value(part, item) for part, item in zip(inside, value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: _parse_value(inside[1], item) for key, item in _plain_mapping(value).items()}
    if kind is float and value is None:
        return math.nan
    if kind in _ACCEPTED_TYPE_BY_FIELD_TYPE and not _is_simple_value(kind, value):
        raise TypeError(f"{str(value)[:40]!r} where {kind.__name__} is expected")
    return value


def _plain_mapping(value: object) -> Mapping[str, Any]:
    """Return the value, or raise ``TypeError`` if it is not a mapping."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{str(value)[:40]!r} where values by name are expected")
    return value


def _is_simple_value(kind: Any, value: object) -> bool:  # noqa: ANN401 - a type
    """Whether a value fits a simple field type (`kind`); only for ``int`` it may exceed the range of a float."""
    if kind is float:
        if isinstance(value, Integral):
            return abs(int(value)) <= sys.float_info.max
        return value is None or (isinstance(value, Real) and not math.isinf(value))
    return kind in _ACCEPTED_TYPE_BY_FIELD_TYPE and isinstance(value, _ACCEPTED_TYPE_BY_FIELD_TYPE[kind])


MAX_JSON_NUMBER = 1e15
"""Largest absolute number accepted: whole numbers up to it are exact in a float, and products of a few stay finite."""

# Python turns no longer text into a whole number; names and layouts are far shorter.
_MAX_JSON_TEXT_CHARACTERS = 4000
"""Longest text accepted in a JSON document. [characters]"""


def load_json(text: str, *, source: str, error: type[GpuPlannerError]) -> Any:  # noqa: ANN401 - what JSON holds
    """Load one JSON document of mappings, lists, texts and numbers, without booleans or huge numbers.

    Parameters
    ----------
    text : str
        The document.
    source : str
        Origin of the text, for the message.
    error : type
        Class of the error.

    Examples
    --------
    >>> from gpuplanner.core.errors import ScenarioError
    >>> load_json('{"gpus": [1, 2.5]}', source="plan.json", error=ScenarioError)
    {'gpus': [1, 2.5]}
    >>> load_json('{"gpus": [1, 1e308]}', source="plan.json", error=ScenarioError)
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.ScenarioError: plan.json: expected finite numbers up to 1e+15; got 1e+308 at gpus.1. Fix the
    file there.
    """
    try:
        values = json.loads(text, object_pairs_hook=_require_unique_keys, parse_constant=_reject_constant)
    except (RecursionError, ValueError) as cause:
        got = "brackets nested too deep" if isinstance(cause, RecursionError) else str(cause)[:200]
        expected, todo = "one whole JSON document, each key once", "Check that the file is whole."
        raise error(source, expected, got, todo) from cause
    for key_path, expected, got in _find_rejected_values(values):
        raise error(source, expected, f"{got} at {key_path or 'the top'}", "Fix the file there.")
    return values


def _require_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict from the pairs of a JSON object; duplicate keys are rejected."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)[:40]!r} stands there twice")
    return mapping


def _reject_constant(text: str) -> NoReturn:
    """Reject the constants NaN and Infinity."""
    raise ValueError(f"{text} is no number")


def _find_rejected_values(values: Any) -> Iterator[tuple[str, str, str]]:  # noqa: ANN401 - as above
    """Yield the path, the expected value and the value found of each part of a JSON document that is not accepted."""
    remaining: list[tuple[str, Any]] = [("", {"": values})]
    while remaining:
        key_path, container = remaining.pop()
        for key, item in container.items() if isinstance(container, dict) else enumerate(container):
            if isinstance(item, dict | list):
                remaining.append((f"{key_path}.{key}"[-200:].lstrip("."), item))
            elif fault := _describe_rejected_value(item) or _describe_rejected_value(key):
                yield f"{key_path}.{key}"[-200:].strip("."), *fault


def _describe_rejected_value(value: object) -> tuple[str, str] | None:
    """Return the expected value and the value found if a single JSON value is not accepted, else None."""
    match value:
        case bool():
            return "texts and numbers", str(value).lower()
        case int() | float() if not -MAX_JSON_NUMBER <= value <= MAX_JSON_NUMBER:
            got = f"{value:g}" if isinstance(value, float) else "a whole number beyond it"
            return f"finite numbers up to {MAX_JSON_NUMBER:g}", got
        case float() if value == 0 and math.copysign(1.0, value) < 0:
            return "0 without a sign", "-0.0"
        case str() if len(value) > _MAX_JSON_TEXT_CHARACTERS:
            return f"texts of at most {_MAX_JSON_TEXT_CHARACTERS} characters", f"one of {len(value)}"
    return None
