"""What the values of a quantity betray about their unit, counted block by block."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gpuplanner.errors import TraceFormatError, examples, message
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
