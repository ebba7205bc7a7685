"""A board of four slices that nobody sells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def _toy_rows(**changes: Any) -> list[dict[str, Any]]:
    base = {"gpu_model": "TOY-32GB", "memory_gib_total": 32, "memory_slices_total": 4, "compute_slices_total": 4}
    rows = [
        base
        | {
            "profile": f"{size}g.{8 * size}gb",
            "compute_slices": size,
            "memory_slices": size,
            "memory_gib": 7.5 * size,
            "sms": 20 * size,
            "copy_engines": size,
            "max_instances": 4 // size,
            "placement_starts": ";".join(str(start) for start in range(0, 4, size)),
        }
        for size in (1, 2, 4)
    ]
    rows[0] |= changes
    return rows


@pytest.fixture
def toy_rows() -> Callable[..., list[dict[str, Any]]]:
    """Make the rows of the board, the first of them with changes."""
    return _toy_rows
