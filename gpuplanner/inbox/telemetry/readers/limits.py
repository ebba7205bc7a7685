"""Values that no board can have, rejected row by row; and what values betray about their unit."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from gpuplanner.catalog.loader import facts
from gpuplanner.errors import TraceFormatError, examples, message
from gpuplanner.inbox.core.lines.rows import Rows
from gpuplanner.inbox.telemetry.readers.metrics import DIVISORS, QUANTITIES

MIXED_SHARE = 0.01
"""Share of values above 1 from which ratios are taken to be percent; fewer are single faults."""

ROUNDING = 1e-6
"""By how much a mean of ratios may exceed 1 through rounding of the source."""

SHOWN = 5
PERCENT = DIVISORS["share"]["%"]


@dataclass
class _Signs:
    positive: int = 0
    most: float = 0.0
    least: float = float("inf")
    fractional: bool = False
    odd: int = 0
    first: list[float] = field(default_factory=list)
    first_odd: list[float] = field(default_factory=list)


@dataclass
class UnitSigns:
    """Counts of values by quantity, of all blocks seen so far."""

    _signs: dict[str, _Signs] = field(default_factory=lambda: {name: _Signs() for name in QUANTITIES})

    def see(self, quantity: str, values: np.ndarray) -> None:
        """Count the values of a block; NaN is no value."""
        signs = self._signs[quantity]
        positive = values[values > 0]
        if not len(positive):
            return
        signs.positive += len(positive)
        signs.most = max(signs.most, float(positive.max()))
        signs.least = min(signs.least, float(positive.min()))
        if quantity == "gpu_util" and not signs.fractional and signs.most <= 1 / PERCENT * 2:
            percent = positive * PERCENT
            signs.fractional = bool((np.rint(percent) != percent).any())
        if len(signs.first) < SHOWN:
            signs.first += positive[: SHOWN - len(signs.first)].tolist()
        if quantity == "memory_total":
            odd = positive[positive < 1] if signs.least < 1 else positive[:0]
        else:
            odd = (
                positive[positive > 1 + ROUNDING]
                if signs.most > 1 + ROUNDING and _is_share(quantity)
                else positive[:0]
            )
        signs.odd += len(odd)
        if len(signs.first_odd) < SHOWN:
            signs.first_odd += odd[: SHOWN - len(signs.first_odd)].tolist()

    def refuse_mixed(self, where: str) -> None:
        """Refuse files whose values betray another unit than the one that was assumed.

        A share above 1 shows that percent were given for ratios; the smaller ones among them would pass for
        ratios, so not one of them can be believed. A percentage that is never above 1, yet no whole number, is
        a ratio. A GPU with less than 1 GiB of memory was given in another unit.

        Examples
        --------
        >>> signs = UnitSigns()
        >>> signs.see("sm_active", np.array([0.5, 45.0]))
        >>> signs.refuse_mixed("a.csv")
        Traceback (most recent call last):
            ...
        gpuplanner.errors.TraceFormatError: a.csv: expected sm_active in the unit of the source; got percent where...
        """
        for quantity, signs in self._signs.items():
            if not signs.positive:
                continue
            suspicion, count, shown = None, signs.odd, signs.first_odd
            if quantity == "gpu_util":
                if signs.most * PERCENT <= 1 and signs.fractional:
                    suspicion, count = "ratios where percent were expected", signs.positive
                    shown = [value * PERCENT for value in signs.first]
            elif _is_share(quantity) and signs.odd > MIXED_SHARE * signs.positive:
                suspicion = "percent where ratios were expected"
            elif quantity == "memory_total" and signs.least < 1:
                suspicion = "a unit larger than the one expected"
            if suspicion is not None:
                got = f"{suspicion}: {count} of {signs.positive} values, such as {examples(shown)}"
                expected = f"{quantity} in the unit of the source"
                raise TraceFormatError(
                    message(where, expected, got, "Convert the column, or state its unit.")
                )


def _is_share(quantity: str) -> bool:
    return QUANTITIES[quantity] == "share"


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
