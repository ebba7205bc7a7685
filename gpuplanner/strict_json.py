"""Read JSON that anybody may have written: no repeated keys, every number finite and of a size to calculate with."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, NoReturn

from gpuplanner.errors import GpuPlannerError, message

LARGEST = 1e15
"""Largest number that is taken: whole numbers up to it are exact, and sums of products of a few of them stay finite."""

# Python turns no longer text into a whole number; names and layouts are far shorter.
_LONGEST = 4000


def load_json(text: str, *, where: str, error: type[GpuPlannerError]) -> Any:  # noqa: ANN401 - what JSON holds
    """Load one JSON document of mappings, lists, texts and numbers; true and false are none of these.

    Examples
    --------
    >>> from gpuplanner.errors import ScenarioError
    >>> load_json('{"gpus": [1, 2.5]}', where="plan.json", error=ScenarioError)
    {'gpus': [1, 2.5]}
    >>> load_json('{"gpus": [1, 1e308]}', where="plan.json", error=ScenarioError)
    Traceback (most recent call last):
        ...
    gpuplanner.errors.ScenarioError: plan.json: expected finite numbers up to 1e+15; got 1e+308 at gpus.1. Mend the
    file there.
    """
    try:
        values = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except (RecursionError, ValueError) as cause:
        got = "brackets nested too deep" if isinstance(cause, RecursionError) else str(cause)[:200]
        fault = message(where, "one whole JSON document, each key once", got, "Check that the file is whole.")
        raise error(fault) from cause
    for place, expected, got in _odd(values):
        fault = message(where, expected, f"{got} at {place or 'the top'}", "Mend the file there.")
        raise error(fault)
    return values


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        text = f"key {next(key for key in keys if keys.count(key) > 1)[:40]!r} stands there twice"
        raise ValueError(text)
    return found


def _no_number(text: str) -> NoReturn:
    fault = f"{text} is no number"
    raise ValueError(fault)


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
