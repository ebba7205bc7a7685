"""Print frames and mappings as text or JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from gpuplanner.cli.app import put
from gpuplanner.errors import printable
from gpuplanner.units import money_text

if TYPE_CHECKING:
    import polars as pl

MAX_ROWS = 60
CURRENCY = "BillingCurrency"
"""Column of a table of money that says of which currency a row is."""

PRICE = "price_per_"
_OF_CURRENCY = re.compile(r"_([A-Z]{3})$")
_EXACT = re.compile(r"-?\d{1,60}(\.\d{1,30})?")


def show(values: Mapping[str, object], *, as_json: bool) -> None:
    """Print a mapping: JSON, or one ``key  value`` line each; what is within another stands below it."""
    if as_json:
        from gpuplanner.files.text import to_json
        from gpuplanner.plain import to_plain

        put(to_json(to_plain(values)))
        return
    _show_lines(values, "")


def _show_lines(values: Mapping[str, object], indent: str) -> None:
    within = {key: nested for key, value in values.items() if (nested := _mappings(value))}
    width = max((len(key) for key in values if key not in within), default=0)
    for key, value in values.items():
        if key not in within:
            put(f"{indent}{key:<{width}}  {_amount(key, value) or _text(value)}")
    for key, nested in within.items():
        for each in nested:
            put(f"{indent}{key}:")
            _show_lines(each, indent + "  ")


def _mappings(value: object) -> list[Mapping[str, object]]:
    """A mapping, or the mappings of a list of nothing else; none of any other value."""
    each = value if isinstance(value, list) else [value]
    mappings = [one for one in each if isinstance(one, Mapping)]
    return mappings if len(mappings) == len(each) else []


def show_frame(frame: pl.DataFrame, *, as_json: bool, title: str = "") -> None:
    """Print a table: JSON rows, or aligned text, the first rows of a long one."""
    if as_json:
        from gpuplanner.files.text import to_json
        from gpuplanner.plain import to_plain

        put(to_json(to_plain(frame.to_dicts())))
        return
    if title:
        put(f"{title}\n{'-' * len(title)}")
    rows = [
        [_amount(name, cell, row.get(CURRENCY)) or _text(cell) for name, cell in row.items()]
        for row in frame.head(MAX_ROWS).iter_rows(named=True)
    ]
    columns = list(zip(frame.columns, *rows, strict=True)) if rows else [(name,) for name in frame.columns]
    widths = [max(map(len, column)) for column in columns]
    right = [dtype.is_numeric() for dtype in frame.dtypes]
    for line in [frame.columns, *rows]:
        cells = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ]
        put("  ".join(cells).rstrip())
    if frame.height > MAX_ROWS:
        put(f"... {frame.height - MAX_ROWS} more rows; --json gives all")
    put("")


def _amount(name: str, value: object, currency: str | None = None) -> str | None:
    """An amount of money as text with its decimals; None if it is none.

    Money is a Decimal, a price, or a total whose name ends in its currency.
    """
    ending = _OF_CURRENCY.search(name)
    if isinstance(value, Decimal) or (ending and isinstance(value, str) and _EXACT.fullmatch(value)):
        return money_text(Decimal(value), ending[1] if ending else currency or "")
    if isinstance(value, float) and name.startswith(PRICE) and math.isfinite(value):
        return f"{value:,.2f}" if round(value, 2) == value else f"{value:,.4f}"
    return None


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M")
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return printable(str(value)).replace("\n", "\\n").replace("\t", "\\t")  # a cell is one line
