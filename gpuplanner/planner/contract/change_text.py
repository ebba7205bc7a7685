"""The cost of a change as plain values, so that a plan file says what its changes were taken to cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpuplanner.errors import ScenarioError, message
from gpuplanner.hardware import ChangeCost, GpuModel, Seconds

_TIMES = ("change_s", "instance_s", "reboot_s", "restart_s", "drain_s")


def change_to_dict(change: ChangeCost) -> dict[str, Any]:
    """The path, and each time as value, low, high and basis; a stated price stands with the problem.

    Examples
    --------
    >>> change_to_dict(ChangeCost.of("H100-80GB-SXM5", change_s=90))["change_s"]
    [90.0, 90.0, 90.0, 'as stated']
    """
    times = {name: getattr(change, name) for name in _TIMES}
    return {"path": change.path} | {
        name: None if one is None else [one.value, one.low, one.high, one.basis]
        for name, one in times.items()
    }


def change_from_dict(board: GpuModel, values: str | Mapping[str, Any]) -> ChangeCost:
    """Read what :func:`change_to_dict` wrote; what is missing is taken from the catalogue.

    Examples
    --------
    >>> from gpuplanner.hardware import as_board
    >>> cost = ChangeCost.of("A100-80GB", "nvml")
    >>> change_from_dict(as_board("A100-80GB"), change_to_dict(cost)) == cost
    True
    """
    given = {"path": values} if isinstance(values, str) else values
    odd = sorted(set(given) - {"path", *_TIMES}) if isinstance(given, Mapping) else [repr(given)]
    path = "" if odd else given.get("path", "operator")
    if odd or not isinstance(path, str):
        text = message(
            "cost of change", f"path, {', '.join(_TIMES)}", ", ".join(odd) or repr(path), "Mend it."
        )
        raise ScenarioError(text)
    try:
        times = {
            name: None if given[name] is None else Seconds(*given[name]) for name in _TIMES if name in given
        }
    except TypeError as error:
        text = message("cost of change", "times as [value, low, high, basis]", str(error), "Mend it.")
        raise ScenarioError(text) from error
    if any(one is None for name, one in times.items() if name != "reboot_s"):
        text = message("cost of change", "times, and null for reboot_s alone", str(dict(given)), "Mend it.")
        raise ScenarioError(text)
    return replace(ChangeCost.of(board, path), **times)  # type: ignore[arg-type]
