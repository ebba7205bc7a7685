"""Column headings for people: plain words with the unit, made from column names."""

from __future__ import annotations

import csv
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl


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
        """Whether the unit is an amount of money, which is shown to the cent."""
        return self.symbol in _CURRENCY_CODES or "USD" in self.symbol

    @property
    def python(self) -> str:
        """Format specification for :func:`format`."""
        return f".{self.decimals}%" if self.symbol == "%" else f",.{self.decimals}f"


_CURRENCY_CODES = ("USD", "EUR", "GBP", "CHF", "JPY")
"""Unit symbols that are amounts of money."""
_UNIT_BY_ENDING = {
    "gpu_hours": Unit("GPU h", 1), "gpu_h": Unit("GPU h", 1), "gpu_s": Unit("GPU s", 0), "gb_s": Unit("GB/s", 1),
    "usd_per_gpu_hour": Unit("USD/GPU h", 4), "g_per_kwh": Unit("g/kWh", 0), "fraction": Unit("%", 1),
    "share": Unit("%", 1), "usd": Unit("USD", 2), "eur": Unit("EUR", 2), "gbp": Unit("GBP", 2), "chf": Unit("CHF", 2),
    "jpy": Unit("JPY", 0), "cost": Unit("", 2), "kwh": Unit("kWh", 1), "gib": Unit("GiB", 2), "kg": Unit("kg", 1),
    "kw": Unit("kW", 2), "w": Unit("W", 0), "s": Unit("s", 1), "h": Unit("h", 2), "hours": Unit("h", 2),
    "minutes": Unit("min", 1), "per_s": Unit("1/s", 1), "days": Unit("d", 1), "ms": Unit("ms", 1),
}  # fmt: skip
"""Unit by the last words of a column name, such as ``gpu_hours``."""
_SPELLING_BY_COLUMN_WORD = {
    "gpu": "GPU", "gpus": "GPUs", "sm": "SM", "sms": "SMs", "mig": "MIG", "id": "ID", "tp": "TP", "pp": "PP",
    "dp": "DP", "ep": "EP", "mase": "MASE", "rmse": "RMSE", "ttft": "TTFT", "itl": "ITL", "oom": "OOM",
    "p": "probability of", "ds": "time", "tenant": "team", "tenants": "teams",
    "board": "GPU model", "boards": "GPU models", "cut": "partitioned", "counted": "measured",
    "together": "matched to several jobs:",
}  # fmt: skip
"""Spelling in a heading by word of a column name, such as ``GPUs`` for ``gpus``."""
_STATISTIC_SUFFIX_PATTERN = re.compile(r"_(low|high|mean|median|min|max|[pq]\d\d)$")
"""Suffix of a column name that marks a bound, a mean or a quantile, such as ``_low`` or ``_p95``."""
_UNIT_BY_FOCUS_COLUMN = {
    "x_EnergyKwh": _UNIT_BY_ENDING["kwh"],
    "x_CarbonKg": _UNIT_BY_ENDING["kg"],
    "PricingQuantity": _UNIT_BY_ENDING["gpu_hours"],
}
"""Unit by FOCUS column, whose names do not end in a unit."""


TEXT_BY_CODE = {
    "__unallocated__": "Unallocated", "allocated_idle": "allocated but idle",
    "unallocated": "unallocated, no waiting job", "idle_pending": "idle with eligible jobs pending",
    "full_gpu": "full GPU (MIG disabled)",
    "mig_static": "static MIG layout", "mig_dynamic": "dynamic MIG", "power_down_idle": "power down idle nodes",
}  # fmt: skip
"""Text for readers by code in a table cell, for codes whose text is not the code with spaces."""
CODED_COLUMNS = {"bucket", "cause", "state", "policy", "ownership", "part"}
"""Columns whose cells are codes, such as ``idle_pending``, which :func:`replace_codes_by_text` translates."""


def text_of_code(code: str) -> str:
    """Return the text for readers of a code: of a ledger bucket, a job end state or a policy.

    Examples
    --------
    >>> text_of_code("idle_pending"), text_of_code("OUT_OF_MEMORY")
    ('idle with eligible jobs pending', 'out of memory')
    """
    return TEXT_BY_CODE.get(code, code.lower().replace("_", " "))


def replace_codes_by_text(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the table with the codes in its cells replaced by text for readers."""
    import polars as pl

    words = (
        pl.col(name).cast(pl.String).map_elements(text_of_code, pl.String) for name in CODED_COLUMNS & {*frame.columns}
    )
    return frame.with_columns(pl.col("^tenant$").replace("__unallocated__", TEXT_BY_CODE["__unallocated__"]), *words)


def unit_of(name: str) -> Unit | None:
    """Look up the unit at the end of a column name, also before ``_low``, ``_high`` and similar suffixes.

    Examples
    --------
    >>> unit_of("saved_gpu_hours_low")
    Unit(symbol='GPU h', decimals=1)
    >>> unit_of("tenant") is None
    True
    """
    return _UNIT_BY_FOCUS_COLUMN.get(name) or split_column_name(name)[1]


def column_heading(name: str) -> str:
    """Turn a column name into words for people, with the unit in brackets; FOCUS names stay as they are.

    Examples
    --------
    >>> [column_heading(name) for name in ("queueing_delay_s", "saved_gpu_hours_low", "minutes_low", "tenant")]
    ['queueing delay [s]', 'saved GPU-hours low', 'minutes low [min]', 'team']
    """
    if name in _UNIT_BY_FOCUS_COLUMN:
        return name
    if name == "unique_id":
        return "series"
    stem, unit, bound = split_column_name(name)
    if unit and unit.symbol == "GPU h":
        words = [*stem, "GPU-hours", bound]
    elif unit and unit.symbol:
        words = [*(stem or [_STATISTIC_SUFFIX_PATTERN.sub("", name)]), bound, f"[{unit.symbol}]"]
    else:
        words = [*stem, bound] if unit is None else [*stem, "cost", bound]
    return " ".join(_SPELLING_BY_COLUMN_WORD.get(word, word) for word in words if word)


@functools.cache
def _table_heading_rows() -> tuple[tuple[str, str, str], ...]:
    """Read table, column and heading of each row of ``table_headings.csv``, in the order of the file."""
    with (Path(__file__).parent / "table_headings.csv").open(encoding="utf-8", newline="") as stream:
        return tuple((row["table"], row["column"], row["heading"]) for row in csv.DictReader(stream))


def read_table_headings(table: str) -> dict[str, str]:
    """Read the headings of a table by column, in the order of its columns, for headings that no column name gives.

    Examples
    --------
    >>> read_table_headings("promised savings")["seen"]
    'measured in'
    """
    return {column: heading for name, column, heading in _table_heading_rows() if name == table}


def split_column_name(name: str) -> tuple[list[str], Unit | None, str]:
    """Split a column name into the words before the unit, the unit, and the statistic after it (``low``, ``p95``)."""
    bound_match = _STATISTIC_SUFFIX_PATTERN.search(name)
    bound = bound_match[1] if bound_match else ""
    words = name[: bound_match.start() if bound_match else None].split("_")
    for length in range(min(4, len(words)), 0, -1):
        unit = _UNIT_BY_ENDING.get("_".join(words[-length:]))
        # One letter alone is a variable, not a unit: "s" is no seconds, "wait_s" is.
        if unit and (len(words) > 1 or len(words[0]) > 1):
            return words[:-length], unit, bound
    return words, None, bound
