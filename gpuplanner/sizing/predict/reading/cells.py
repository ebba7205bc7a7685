"""Cells of a row of runs: numbers with their limits, and the board that is meant."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping

from gpuplanner.catalog.aliases import all_boards, boards_called
from gpuplanner.errors import GeometryError, ScenarioError, message
from gpuplanner.names import nearest
from gpuplanner.sizing.predict.describe import size_in
from gpuplanner.sizing.predict.throughput import Board, board_facts

_LARGEST = 1e7
_UNIT = re.compile(r"\s*(gib|gb|g)$", re.IGNORECASE)
_BROKEN = ("params", "gpu_mem_gib")
"""Columns that are no counts."""
_OTHER_SIZE = 0.12
"""Share by which a stated memory may differ from the board's before one of them is wrong: GB and GiB are 7 % apart."""


def number(row: Mapping[str, str], name: str) -> float | None:
    """A number, with its unit if it has one that goes with the column; None where there is none."""
    text = row.get(name)
    return None if text is None else _number(text, name)


@functools.lru_cache(4096)
def _number(text: str, name: str) -> float:
    bare = _UNIT.sub("", text) if name == "gpu_mem_gib" else text
    try:
        value = float(bare) if bare.isascii() and "_" not in bare else math.nan
    except ValueError:
        value = (size_in(text) if name == "params" else None) or math.nan
    most = 1e15 if name == "params" else _LARGEST
    within = 0 <= value <= most  # which is false of NaN
    if not within or (not value and name != "zero_stage") or (value % 1 and name not in _BROKEN):
        want = f"a number{'' if name in _BROKEN else ', whole,'} from 0 (above 0 for a size) up to {most:g}"
        raise ScenarioError(message(f"row, {name}", want, repr(text), "Mend it."))
    return value


def count(row: Mapping[str, str], name: str) -> int:
    """A count, 1 where it is not stated; what is no whole number above 0 is refused."""
    if name not in row:
        return 1
    return int(_number(row[name], name))


def replicas(row: Mapping[str, str]) -> int:
    """Ranks of data and context parallelism, from what is stated of them or of all GPUs."""
    told = int((number(row, "dp") or 0) * (number(row, "cp") or 1))
    inner = count(row, "tp") * count(row, "pp")
    return told or max(1, int((number(row, "n_gpus") or 1) // inner))


def board_gib(row: Mapping[str, str]) -> tuple[float | None, float | None, tuple[str, ...], tuple[str, ...]]:
    """Memory of the board as stated or named; the most that the name allows; what contradicts; what is not known."""
    stated = number(row, "gpu_mem_gib")
    if "gpu" not in row:
        return stated, stated, (), ()
    sizes = [board.memory_gib for board in _called(row["gpu"])]
    if not sizes:
        if stated is not None:
            return stated, stated, (), ()
        return None, None, (), (_unknown(row["gpu"]),)
    if stated is None:
        return (sizes[0] if len(set(sizes)) == 1 else None), max(sizes), (), ()
    if min(abs(stated / size - 1) for size in sizes) > _OTHER_SIZE:
        clash = (
            f"gpu_mem_gib {stated:g} and gpu {row['gpu']}, which has {max(sizes):.0f} GiB: read as {stated:g}"
        )
        return stated, stated, (clash,), ()
    return stated, stated, (), ()


@functools.lru_cache(1024)
def _unknown(word: str) -> str:
    """What is said of a board that nobody knows; in a table one name stands in many rows."""
    near = nearest(word, all_boards())
    return (
        f"gpu: {word} is not known; add gpu_mem_gib, or name a board{f', such as {near[0]}' if near else ''}"
    )


def no_bf16(word: str) -> bool:
    """Whether a board that is named, and every other that the name may mean, does not compute in bf16."""
    return bool(_called(word)) and not any(board.bf16 for board in _called(word))


@functools.lru_cache(1024)
def _called(word: str) -> tuple[Board, ...]:
    return tuple(sheet for name in boards_called(word) if (sheet := _sheet(name)))


@functools.cache
def _sheet(name: str) -> Board | None:
    try:
        return board_facts(name)
    except GeometryError:  # no data sheet
        return None
