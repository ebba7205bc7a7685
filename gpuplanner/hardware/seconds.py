"""Times with their range and what they rest on."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Self

from gpuplanner.catalog import parameter
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
            raise ScenarioError(message("cost of change", "seconds not below 0", text, "Change it."))

    @classmethod
    def given(cls, value: float) -> Self:
        """Take what somebody stated."""
        return cls(value, value, value, "as stated")

    def stated(self, value: float | None, high: float | None = None) -> Self:
        """What somebody stated of it; the range goes along, and a high end that is stated caps all of it.

        Examples
        --------
        >>> known = Seconds(840.0, 0.0, 3600.0, "assumed")
        >>> known.stated(420.0), known.stated(None, 600.0).value
        (Seconds(value=420.0, low=0.0, high=1800.0, basis='as stated'), 600.0)
        """
        if value is None and high is None:
            return self
        middle = self.value if value is None else float(value)
        times = middle / self.value if self.value else 1.0
        most = max(middle, self.high * times) if high is None else float(high)
        return replace(
            self, value=min(middle, most), low=min(self.low * times, most), high=most, basis="as stated"
        )


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
