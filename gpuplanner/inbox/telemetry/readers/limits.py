"""Values that no board can have: rejected, row by row, so that they reach no figure."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

import polars as pl

from gpuplanner.catalog import facts
from gpuplanner.inbox.core.lines.rows import Rows
from gpuplanner.inbox.telemetry.readers.metrics import QUANTITIES
from gpuplanner.inbox.telemetry.readers.unit_signs import ROUNDING

POWER_MARGIN = 1.2
"""A mean over a sampling period does not exceed the board's power limit by more than this."""

MAX_XID = 999
"""Errors of the driver are numbered from 1; beyond this there is none [1]_.

References
----------
.. [1] NVIDIA, XID Errors: the catalogue ends below 200.
"""

SIZE = re.compile("[0-9]{1,4}GB$")


@functools.cache
def board_limits(model: str | None) -> tuple[float, float]:
    """Largest power and memory of the boards that a model name may mean.

    Examples
    --------
    >>> board_limits("NVIDIA H100 80GB HBM3")
    (700.0, 80.0)
    """
    specs = facts("gpu_specs")
    words = set(re.split(r"[\s-]+", (model or "").upper()))
    named = [_family(name) <= words for name in specs["gpu_model"]]
    rows = specs.filter(named) if any(named) else specs
    sized = rows.filter(pl.col("memory_gb").is_in([float(word[:-2]) for word in words if SIZE.match(word)]))
    rows = rows if sized.is_empty() else sized
    power = rows["tdp_w"].max() or specs["tdp_w"].max()
    return float(power), float(rows["memory_gb"].max())  # type: ignore[arg-type]


def _family(name: str) -> set[str]:
    """Words of a catalogue name up to the first with a figure: RTX, PRO, 6000; H100."""
    words = name.upper().split("-")
    last = next(place for place, word in enumerate(words) if re.search(r"[0-9]", word))
    return set(words[: last + 1])


def reject_impossible(
    rows: Rows, values: Mapping[str, pl.Expr], extremes: Mapping[str, tuple[float, float]]
) -> Rows:
    """Reject rows with a value below 0, a share above 1, or more power or memory than the board has."""
    if rows.good.is_empty():
        return rows
    models = rows.good["board"].unique().to_list()
    power = {model: POWER_MARGIN * board_limits(model)[0] for model in models}
    memory = {model: board_limits(model)[1] for model in models}
    watts = pl.col("board").replace_strict(power, return_dtype=pl.Float64)
    gib = pl.col("board").replace_strict(memory, return_dtype=pl.Float64)
    faults: dict[str, pl.Expr] = {}
    for quantity, value in values.items():
        least, most = extremes.get(quantity, (0.0, 0.0))
        if least < 0:
            faults[f"{quantity}: below 0"] = value < 0
        if QUANTITIES[quantity] == "share":
            if most > 1 + ROUNDING:
                faults[f"{quantity}: above 1"] = value > 1 + ROUNDING
        elif quantity == "xid":
            if most > 0:
                faults["xid: not the number of an error"] = (value % 1 != 0) | (value > MAX_XID)
        elif quantity == "power":
            if most > min(power.values()):
                faults[f"power: above {POWER_MARGIN} x the power limit of the board"] = value > watts
        elif quantity.startswith("memory") and most > min(memory.values()):
            faults[f"{quantity}: more than the board has"] = value > gib
    if "memory_used" in values and "memory_total" in rows.good.columns:
        faults["memory_used: more than memory_total"] = values["memory_used"] > values["memory_total"]
    return rows.reject(faults) if faults else rows
