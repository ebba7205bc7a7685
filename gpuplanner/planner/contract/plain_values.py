"""Boards and costs of changes as plain values, so that a file holds all that is needed to check it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpuplanner.errors import GeometryError, ScenarioError, message
from gpuplanner.hardware import ChangeCost, GpuModel, Seconds, load_gpu_model
from gpuplanner.hardware.profile import RESOURCES


def board_to_dict(board: GpuModel) -> dict[str, Any]:
    """Name of a board of the catalogue; name and profile rows of any other; name and data of one without profiles.

    Examples
    --------
    >>> board_to_dict(load_gpu_model("A30"))
    {'name': 'A30-24GB'}
    >>> from gpuplanner.hardware import whole_board
    >>> board_to_dict(whole_board("T4"))
    {'name': 'T4', 'whole': {'memory_gib': 16.0, 'sms': 40, 'architecture': 'Turing'}}
    """
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
    rows = [
        totals
        | {
            "profile": profile.name,
            "compute_slices": profile.compute_slices,
            "memory_slices": profile.memory_slices,
            "memory_gib": profile.memory_gib,
            "max_instances": profile.max_instances,
            "placement_starts": ";".join(map(str, profile.starts)),
        }
        | {resource: profile.amount(resource) for resource in RESOURCES}
        for profile in board.profiles
    ]
    return {"name": board.name, "rows": rows}


def board_from_dict(values: Mapping[str, Any]) -> GpuModel:
    """Read what :func:`board_to_dict` wrote."""
    if (whole := values.get("whole")) is not None:
        return GpuModel(values["name"], memory_slices=1, compute_slices=1, profiles=(), **whole)
    return load_gpu_model(values["name"], rows=values.get("rows"))


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
