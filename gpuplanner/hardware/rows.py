"""Check the profile rows of one board before anything is built on them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from gpuplanner.errors import GeometryError, message
from gpuplanner.hardware.profile import RESOURCES, ProfileName

MAX_MEMORY_SLICES = 16
"""Boards with more slices are refused: no such board is known, and layouts grow exponentially with it."""

_BOARD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TOTALS = ("memory_slices_total", "compute_slices_total")
_COUNTS = ("compute_slices", "memory_slices", "max_instances")


def board_rows(name: str, table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of one board with the types that :class:`~gpuplanner.hardware.GpuModel` needs."""
    faults = [] if _BOARD.fullmatch(name) else ["gpu_model must be letters, digits, '.', '_' and '-'"]
    rows: list[dict[str, Any]] = []
    for row in table:
        typed = _typed(row)
        label = row.get("profile") or f"row {len(rows) + 1}"
        faults += [f"{label}: {fault}" for fault in _row_faults(typed)]
        rows.append(typed)
    if not faults:
        faults = list(_table_faults(rows))
    if faults:
        text = message(
            f"profile rows of board {name!r}",
            "rows like those of mig_profiles.csv, as 'nvidia-smi mig -lgip' and '-lgipp' print them",
            f"{len(faults)} fault(s): {'; '.join(faults)}",
            "Mend the rows.",
        )
        raise GeometryError(text)
    return rows


def _typed(row: dict[str, Any]) -> dict[str, Any]:
    whole = {key: _whole(row.get(key)) for key in (*_TOTALS, *_COUNTS, *RESOURCES, "board_sms")}
    size = row.get("placement_size")
    return whole | {
        "profile": row.get("profile"),
        "architecture": row.get("architecture"),
        "memory_gib_total": _number(row.get("memory_gib_total")),
        "memory_gib": _number(row.get("memory_gib")),
        "drain_s": _number(row.get("drain_s")),
        "placement_starts": _starts(row.get("placement_starts")),
        "placement_size": whole["memory_slices"] if size is None else _whole(size),
    }


def _number(value: object) -> float | None:
    """A number above zero, or None for anything else."""
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if 0 < number < float("inf") else None


def _whole(value: object) -> int | None:
    """A whole number that is not negative, or None for anything else."""
    try:
        number = float(str(value))
    except ValueError:
        return None
    return int(number) if number >= 0 and number.is_integer() else None


def _starts(value: object) -> tuple[int, ...] | None:
    """Start slices from ``"0;2;4"`` (a lone start may have been read as a number), or None."""
    starts = [_whole(part) for part in str(value).split(";")]
    known = [start for start in starts if start is not None]
    return tuple(sorted(set(known))) if len(known) == len(starts) else None


def _row_faults(row: dict[str, Any]) -> Iterator[str]:
    needed = ("memory_gib_total", *_TOTALS, *_COUNTS)
    missing = [key for key in needed if not row[key]]
    if missing:
        yield f"{', '.join(missing)} must be above 0"
    try:
        stated = ProfileName.parse(str(row["profile"]))
    except GeometryError:
        yield "profile is not a name such as '1g.10gb'"
    else:
        if stated.compute_instance is not None:
            yield "profile names a compute instance"
        if str(stated) != row["profile"]:
            yield f"profile must be written {str(stated)!r}"
        if row["compute_slices"] and stated.compute_slices != row["compute_slices"]:
            yield f"compute_slices is {row['compute_slices']}, the name says {stated.compute_slices}"
    if row["placement_starts"] is None:
        yield "placement_starts must be slices such as '0;2;4'"
    if missing or row["placement_starts"] is None:
        return
    total, size = row["memory_slices_total"], row["memory_slices"]
    if total > MAX_MEMORY_SLICES:
        yield f"memory_slices_total is {total}, at most {MAX_MEMORY_SLICES} are understood"
    if row["compute_slices"] > row["compute_slices_total"]:
        yield f"compute_slices is above compute_slices_total, {row['compute_slices_total']}"
    if row["placement_size"] != size:
        yield f"placement_size is {row['placement_size']}, memory_slices {size}"
    if row["placement_starts"][-1] + size > total:
        yield f"an instance at slice {row['placement_starts'][-1]} would end beyond slice {total - 1}"
    if row["max_instances"] > len(row["placement_starts"]):
        yield f"max_instances is {row['max_instances']} with {len(row['placement_starts'])} start(s)"


def _table_faults(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Faults that show only when rows that are sound by themselves are compared."""
    for key in ("memory_gib_total", *_TOTALS):
        values = sorted({row[key] for row in rows})
        if len(values) > 1:
            yield f"{key} differs between rows: {', '.join(map(str, values))}"
    seen: dict[tuple[int, int, str], str] = {}
    for row in rows:
        geometry = (row["compute_slices"], row["memory_slices"], ProfileName.parse(row["profile"]).attribute)
        if geometry in seen:
            yield f"{row['profile']} and {seen[geometry]} have the same slices and attribute"
        seen[geometry] = row["profile"]
