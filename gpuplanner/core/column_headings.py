"""Headings of columns for people, with their units."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """Unit of a column.

    - ``symbol``: As printed; ``"%"`` for a ratio from 0 to 1. Empty if the name does not say.
    - ``decimals``: Decimals to show.
    """

    symbol: str
    decimals: int

    @property
    def excel(self) -> str:
        """Number format for spreadsheets."""
        digits = "#,##0" + ("." + "0" * self.decimals if self.decimals else "")
        return "0." + "0" * self.decimals + " %" if self.symbol == "%" else digits

    @property
    def is_money(self) -> bool:
        """Whether it counts money, which is shown to the cent."""
        return self.symbol in _CURRENCIES or "USD" in self.symbol

    @property
    def python(self) -> str:
        """Format specification for :func:`format`."""
        return f".{self.decimals}%" if self.symbol == "%" else f",.{self.decimals}f"


_CURRENCIES = ("USD", "EUR", "GBP", "CHF", "JPY")
_UNITS = {
    "gpu_hours": Unit("GPU h", 1), "gpu_h": Unit("GPU h", 1), "gpu_s": Unit("GPU s", 0), "gb_s": Unit("GB/s", 1),
    "usd_per_gpu_hour": Unit("USD/GPU h", 4), "g_per_kwh": Unit("g/kWh", 0), "fraction": Unit("%", 1),
    "share": Unit("%", 1), "usd": Unit("USD", 2), "eur": Unit("EUR", 2), "gbp": Unit("GBP", 2), "chf": Unit("CHF", 2),
    "jpy": Unit("JPY", 0), "cost": Unit("", 2), "kwh": Unit("kWh", 1), "gib": Unit("GiB", 2), "kg": Unit("kg", 1),
    "kw": Unit("kW", 2), "w": Unit("W", 0), "s": Unit("s", 1), "h": Unit("h", 2), "hours": Unit("h", 2),
    "minutes": Unit("min", 1), "days": Unit("d", 1), "ms": Unit("ms", 1),
}  # fmt: skip
_TERMS = {
    "gpu": "GPU", "gpus": "GPUs", "sm": "SM", "sms": "SMs", "mig": "MIG", "id": "ID", "tp": "TP", "pp": "PP",
    "dp": "DP", "ep": "EP", "mase": "MASE", "rmse": "RMSE", "ttft": "TTFT", "itl": "ITL", "oom": "OOM",
    "p": "probability of", "ds": "time", "q25": "25 %", "q75": "75 %", "tenant": "team", "tenants": "teams",
    "board": "GPU model", "boards": "GPU models", "cut": "partitioned",
}  # fmt: skip
"""Words of a column name that headings write otherwise."""
_BOUND = re.compile(r"_(low|high|mean|median|min|max|[pq]\d\d)$")
_FOCUS = {"x_EnergyKwh": _UNITS["kwh"], "x_CarbonKg": _UNITS["kg"], "PricingQuantity": _UNITS["gpu_hours"]}


def unit_of(name: str) -> Unit | None:
    """Unit that a column name ends in, also before ``_low``, ``_high`` and the like.

    Examples
    --------
    >>> unit_of("saved_gpu_hours_low")
    Unit(symbol='GPU h', decimals=1)
    >>> unit_of("tenant") is None
    True
    """
    return _FOCUS.get(name) or _parts(name)[1]


def heading(name: str) -> str:
    """Column name for people, with its unit in brackets; names of FOCUS stay as they are.

    Examples
    --------
    >>> [heading(name) for name in ("queueing_delay_s", "saved_gpu_hours_low", "minutes_low", "tenant")]
    ['queueing delay [s]', 'saved GPU-hours low', 'minutes low [min]', 'team']
    """
    if name in _FOCUS:
        return name
    if name == "unique_id":
        return "series"
    stem, unit, bound = _parts(name)
    if unit and unit.symbol == "GPU h":
        words = [*stem, "GPU-hours", bound]
    elif unit and unit.symbol:
        words = [*(stem or [_BOUND.sub("", name)]), bound, f"[{unit.symbol}]"]
    else:
        words = [*stem, bound] if unit is None else [*stem, "cost", bound]
    return " ".join(_TERMS.get(word, word) for word in words if word)


def _parts(name: str) -> tuple[list[str], Unit | None, str]:
    """Words before the unit, the unit, and the bound behind it."""
    found = _BOUND.search(name)
    bound = found[1] if found else ""
    words = name[: found.start() if found else None].split("_")
    for length in range(min(4, len(words)), 0, -1):
        unit = _UNITS.get("_".join(words[-length:]))
        # One letter alone is a variable, not a unit: "s" is no seconds, "wait_s" is.
        if unit and (len(words) > 1 or len(words[0]) > 1):
            return words[:-length], unit, bound
    return words, None, bound
