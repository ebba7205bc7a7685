"""Values with types as what JSON can hold, and back: the one encoder of everything that is printed or kept."""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
import types
import typing
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, TypeVar

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
        text = f"{str(value)[:40]!r} where {kind.__name__} is expected"
        raise TypeError(text)
    return value


def _plain_mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        text = f"{str(value)[:40]!r} where values by name are expected"
        raise TypeError(text)
    return value


def _fits(kind: Any, value: object) -> bool:  # noqa: ANN401 - a type
    """Whether a value is of a simple type; whole numbers may be beyond what a float holds."""
    if kind is float:
        if isinstance(value, Integral):
            return abs(int(value)) <= sys.float_info.max
        return value is None or (isinstance(value, Real) and not math.isinf(value))
    return kind in _SIMPLE and isinstance(value, _SIMPLE[kind])
