"""Times with their range and what they rest on."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Self

from gpuplanner.catalog.loader import parameter
from gpuplanner.errors import ScenarioError, message
from gpuplanner.units import SECONDS_PER_MINUTE


@dataclass(frozen=True, slots=True)
class Seconds:
    """A typical time with its range [s], and what it rests on."""

    value: float
    low: float
    high: float
    basis: str

    def __post_init__(self) -> None:
        """Check that the times are in order."""
        if not 0 <= self.low <= self.value <= self.high < math.inf:
            text = f"{self.low} to {self.value} to {self.high} ({self.basis})"
            expected = "seconds not below 0, the low, usual and high end in order"
            raise ScenarioError(message("cost of change or lead time", expected, text, "Change it."))

    @classmethod
    def given(cls, value: float) -> Self:
        """Take what somebody stated."""
        return cls(value, value, value, "as stated")

    def stated(self, value: float | None) -> Self:
        """What somebody stated of it; the range goes along.

        Examples
        --------
        >>> Seconds(840.0, 0.0, 3600.0, "assumed").stated(420.0)
        Seconds(value=420.0, low=0.0, high=1800.0, basis='as stated; the range by that of the catalogue')
        """
        if value is None:
            return self
        times = value / self.value
        basis = "as stated; the range by that of the catalogue"
        return replace(self, value=float(value), low=self.low * times, high=self.high * times, basis=basis)

    def plus(self, further: Seconds) -> Self:
        """The same with a further step after it; ends add up, as if both were slow together."""
        if not further.high:
            return self
        value, low, high = self.value + further.value, self.low + further.low, self.high + further.high
        return replace(self, value=value, low=low, high=high, basis=f"{self.basis}; {further.basis}")

    def words(self) -> str:
        """Say it in minutes.

        Examples
        --------
        >>> Seconds(300.0, 60.0, 900.0, "assumed").words()
        '5 min, at the slow end 15 min'
        """
        return f"{minutes(self.value)}, at the slow end {minutes(self.high)}"


@functools.cache
def known_seconds(name: str) -> Seconds:
    """Take a parameter of the catalogue, with its source.

    Examples
    --------
    >>> known_seconds("reconfigure_reboot_s").high
    1200.0
    """
    known = parameter(name)
    return Seconds(known.value, known.low, known.high, f"{known.meaning} ({known.source})")


def minutes(seconds: float) -> str:
    """Print a time in minutes, as every door states it.

    Examples
    --------
    >>> minutes(600.0), minutes(1.5)
    ('10 min', '0.025 min')
    """
    return f"{seconds / SECONDS_PER_MINUTE:.4g} min"
