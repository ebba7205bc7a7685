"""A board as plain values, so that a file holds all that is needed to check it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuplanner.errors import GeometryError
from gpuplanner.hardware import GpuModel, load_gpu_model
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
