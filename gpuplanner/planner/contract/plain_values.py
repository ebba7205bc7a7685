"""Problems and plans as plain values for JSON, written and read by the fields that their dataclasses declare."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import NoneType, UnionType
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuplanner.errors import GeometryError, ScenarioError, examples, message
from gpuplanner.hardware.change_cost import ChangeCost
from gpuplanner.hardware.gpu import GpuModel, load_gpu_model
from gpuplanner.hardware.seconds import Seconds
from gpuplanner.hardware.profile import RESOURCES
from gpuplanner.strict_json import LARGEST

T = TypeVar("T")

_TIMES = ("change_s", "instance_s", "reboot_s", "restart_s", "drain_s")
_KINDS = {str, int, float, NoneType}


def refuse(what: str, expected: str, got: str, todo: str = "Mend it.") -> NoReturn:
    """Raise ``ScenarioError`` with the four parts of its message."""
    raise ScenarioError(message(what, expected, got, todo))


def to_plain(value: object) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """Whatever a problem or a plan holds; a field that a file need not have stands there with its value.

    Examples
    --------
    >>> to_plain(load_gpu_model("A30"))
    {'name': 'A30-24GB'}
    >>> from gpuplanner.hardware.whole_boards import whole_board
    >>> to_plain(whole_board("T4"))
    {'name': 'T4', 'whole': {'memory_gib': 16.0, 'sms': 40, 'architecture': 'Turing'}}
    >>> to_plain(ChangeCost.of("H100-80GB-SXM5", change_s=90))["change_s"]
    [90.0, 90.0, 90.0, 'as stated']
    """
    match value:
        case GpuModel():
            return _board_to_plain(value)
        case ChangeCost():
            return {"path": value.path} | {name: to_plain(getattr(value, name)) for name in _TIMES}
        case Seconds():
            return [value.value, value.low, value.high, value.basis]
        case datetime():
            return value.astimezone(UTC).isoformat()
        case float():
            return value + 0.0  # no sign before a zero
        case np.ndarray():
            return (value + 0).tolist()
        case Mapping():
            return {key: to_plain(one) for key, one in value.items()}
        case tuple() | list():
            return [to_plain(one) for one in value]
    if not dataclasses.is_dataclass(value):
        return value
    return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}


def from_plain(kind: type[T], values: Mapping[str, Any], what: str, **read: Callable[[Any], object]) -> T:
    """A dataclass from plain values: what has a default may be left out, and what it does not have is refused.

    Fields of text and numbers must be of their kind; `read` says how those are read that JSON has no word for.

    Examples
    --------
    >>> from_plain(Seconds, {"value": 1, "low": 0, "high": "2", "basis": ""}, "times")
    Traceback (most recent call last):
        ...
    gpuplanner.errors.ScenarioError: times: expected values of the right kind; got another for 'high'. Mend it.
    """
    if not isinstance(values, Mapping):
        refuse(what, "values by name", type(values).__name__)
    known = inspect.signature(kind).parameters
    needed = {name for name, one in known.items() if one.default is inspect.Parameter.empty}
    if odd := sorted((set(values) - set(known)) | (needed - set(values))):
        expected = (
            f"the keys {', '.join(sorted(needed)) or 'none'}, and of {', '.join(sorted(set(known) - needed))}"
        )
        refuse(what, expected, f"missing or unknown {examples(odd)}")
    hints = typing.get_type_hints(kind.__init__)
    try:
        if wrong := [name for name, value in values.items() if not _fits(value, hints[name])]:
            text = f"another for {examples(wrong)}"
            raise TypeError(text)
        read_in = {name: of(values[name]) for name, of in read.items() if values.get(name) is not None}
        return kind(**{**values, **read_in})
    except (ScenarioError, GeometryError):
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ScenarioError(message(what, "values of the right kind", str(error), "Mend it.")) from error


def _fits(value: object, hint: Any) -> bool:  # noqa: ANN401 - an annotation
    """Whether a value is nothing where that may be, or of a field of text and numbers; other fields look themselves."""
    kinds = typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if value is None or not {*kinds} <= _KINDS:
        return value is not None or NoneType in kinds or Any in kinds
    if isinstance(value, int | float):
        return is_number(value) and (float in kinds or (int in kinds and isinstance(value, int)))
    return isinstance(value, str) and str in kinds


def is_number(value: object) -> bool:
    """Whether a value is a finite number of a size to calculate with; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def is_count(value: object, low: int = 0, most: float = LARGEST) -> bool:
    """Whether a value is a whole number of at least, and at most, so many."""
    return isinstance(value, int) and is_number(value) and low <= value <= most


def is_amount(value: object) -> bool:
    """Whether a value is a number that something can cost, or last."""
    return isinstance(value, int | float) and is_number(value) and value >= 0


def grid(values: Any, *kinds: type) -> NDArray[Any]:  # noqa: ANN401 - what a file holds
    """Nested lists of numbers of the given kinds as an array: no text, no true or false, nothing beyond measure.

    Examples
    --------
    >>> grid([[1, 2.5]], int, float)
    array([[1. , 2.5]])
    >>> grid([[1, True]], int)
    Traceback (most recent call last):
        ...
    ValueError: True is no number of the kind that is expected
    """
    given = np.array(values, dtype=object)
    if odd := [one for one in given.flat if type(one) not in kinds or not is_number(one)]:
        text = f"{odd[0]!r:.60} is no number of the kind that is expected"
        raise ValueError(text)
    return given.astype(np.float64 if float in kinds else np.int64)


def texts(names: object) -> tuple[str, ...]:
    """A list of texts as a tuple."""
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        got = f"{names!r:.60} instead of a list of texts"
        raise ValueError(got)
    return tuple(names)


def _board_to_plain(board: GpuModel) -> dict[str, Any]:
    """Name of a board of the catalogue; name and profile rows of any other; name and data of one without profiles."""
    if not board.profiles:
        of_data_sheet = {name: getattr(board, name) for name in ("memory_gib", "sms", "architecture")}
        return {"name": board.name, "whole": of_data_sheet}
    try:
        if load_gpu_model(board.name) == board:
            return {"name": board.name}
    except GeometryError:
        pass
    totals = {
        "gpu_model": board.name,
        "memory_gib_total": board.memory_gib,
        "memory_slices_total": board.memory_slices,
        "compute_slices_total": board.compute_slices,
        "architecture": board.architecture,
        "board_sms": board.sms,
    } | ({} if board.drain_s is None else {"drain_s": board.drain_s})
    same = ("compute_slices", "memory_slices", "memory_gib", "max_instances", *RESOURCES)
    rows = [
        totals
        | {name: getattr(profile, name) for name in same}
        | {"profile": profile.name, "placement_starts": ";".join(map(str, profile.starts))}
        for profile in board.profiles
    ]
    return {"name": board.name, "rows": rows}


def board_from_plain(values: str | Mapping[str, Any]) -> GpuModel:
    """Read a board that :func:`to_plain` wrote, or that is named."""
    if isinstance(values, str):
        return load_gpu_model(values)
    if (whole := values.get("whole")) is not None:
        return GpuModel(values["name"], memory_slices=1, compute_slices=1, profiles=(), **whole)
    return load_gpu_model(values["name"], rows=values.get("rows"))


def change_from_plain(board: GpuModel, values: str | Mapping[str, Any]) -> ChangeCost:
    """Read what :func:`to_plain` wrote of a change, or its path; what is missing is taken from the catalogue.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu import as_board
    >>> cost = ChangeCost.of("A100-80GB", "nvml")
    >>> change_from_plain(as_board("A100-80GB"), to_plain(cost)) == cost
    True
    """
    given = {"path": values} if isinstance(values, str) else values
    odd = sorted(set(given) - {"path", *_TIMES}) if isinstance(given, Mapping) else [repr(given)]
    path = "" if odd else given.get("path", "operator")
    if odd or not isinstance(path, str):
        got = ", ".join(odd) or repr(path)
        refuse("cost of change", f"path, {', '.join(_TIMES)}", got)
    try:
        times = {name: Seconds(*given[name]) for name in _TIMES if given.get(name) is not None}
    except TypeError as error:
        text = message("cost of change", "times as [value, low, high, basis]", str(error), "Mend it.")
        raise ScenarioError(text) from error
    never = {name for name in _TIMES if name in given and given[name] is None}
    if never - {"reboot_s"}:
        refuse("cost of change", "times, and null for reboot_s alone", str(dict(given)))
    return replace(ChangeCost.of(board, path), **times, **dict.fromkeys(never))  # type: ignore[arg-type]
