"""Texts to numbers in our units: blanks are missing, units are those stated, anything else is rejected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.inbox.core.lines.rows import Rows
from gpuplanner.inbox.telemetry.readers.metrics import (
    LEAST_BLANK,
    QUANTITIES,
    WIDE,
    Metric,
    is_blank,
    without_blanks,
)

CELL = r"^([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)[ \t]*(%|[A-Za-z][A-Za-z/]*)?$"
"""A number, and its unit where the cell states one."""

NOT_A_NUMBER = "not a number with a known unit"


def known_unit(metric: Metric, unit: str, where: str) -> Metric:
    """The metric in a unit that a header states.

    Examples
    --------
    >>> known_unit(Metric("power", "W"), "mW", "a.csv").divisor
    1000.0
    """
    if unit not in metric.units:
        expected = f"{metric.quantity} in one of {', '.join(metric.units)}"
        raise TraceFormatError(message(where, expected, repr(unit), "State the unit in the header."))
    return replace(metric, unit=unit)


def read_wide(rows: Rows, columns: Mapping[str, Metric]) -> Rows:
    """Read the columns of a table with one row per device and time."""
    values: dict[str, list[pl.Series]] = {quantity: [] for quantity in QUANTITIES}
    faults: dict[str, pl.Expr] = {}
    for column, metric in columns.items():
        value, fault = read_cells(rows.good[column], metric)
        values[metric.quantity].append(value)
        if fault.any():
            faults[f"{column}: {NOT_A_NUMBER}"] = pl.lit(fault)
    filled = rows.good.with_columns(
        _first_given(found, len(rows.good)).alias(quantity) for quantity, found in values.items()
    )
    rows = replace(rows, good=filled)
    return rows.reject(faults) if faults else rows


def _first_given(found: list[pl.Series], rows: int) -> pl.Series:
    """Values of the first of several columns that has one."""
    if not found:
        return pl.Series([None], dtype=pl.Float64).new_from_index(0, rows)
    return found[0] if len(found) == 1 else pl.select(pl.coalesce(found)).to_series()


def read_cells(cells: pl.Series, metric: Metric) -> tuple[pl.Series, pl.Series]:
    """Values of cells in our unit, and which cells are neither a value nor a blank; cells may be finite numbers.

    Most cells of a column look alike: those that are a number and the unit of the first are cast as they stand,
    and only the others are taken apart.

    Examples
    --------
    >>> value, fault = read_cells(pl.Series(["400 W", "[N/A]", "0.5 kW", "2000 mW"]), Metric("power", "W"))
    >>> value.to_list(), fault.to_list()
    ([400.0, None, None, 2.0], [False, False, True, False])
    """
    wide = QUANTITIES[metric.quantity] in WIDE
    if cells.dtype == pl.Float64:
        return _in_our_unit(cells, metric.divisor, wide=wide), pl.Series([False]).new_from_index(
            0, len(cells)
        )
    text = cells.str.strip_chars()
    number, divisor = _parse_numbers(text, metric)
    read = number.is_finite().fill_null(False)
    value = _in_our_unit(number, divisor, wide=wide)
    if read.all():
        return value, ~read
    rest = (~read & text.is_not_null()).arg_true()
    others = text.gather(rest)
    slow = others.unique().to_frame("text").with_columns(_taken_apart(pl.col("text"), metric))
    found = others.to_frame("text").join(slow, on="text", how="left", maintain_order="left")
    value = pl.select(pl.when(pl.lit(read)).then(pl.lit(value))).to_series()
    fault = pl.Series([False]).new_from_index(0, len(text))
    return value.scatter(rest, found["value"]), fault.scatter(rest, found["fault"])


def _in_our_unit(number: pl.Series, divisor: float, *, wide: bool) -> pl.Series:
    """Numbers without blanks, divided."""
    most = number.max()
    value = number
    if number.is_nan().any() or (isinstance(most, float) and most >= LEAST_BLANK[wide]):
        value = pl.select(without_blanks(pl.lit(number), wide=wide)).to_series()
    if divisor != 1:  # polars would multiply by its inverse, and be off in the last digit
        value = pl.Series(value.to_numpy() / divisor, nan_to_null=True)
    return value


def _parse_numbers(text: pl.Series, metric: Metric) -> tuple[pl.Series, float]:
    """Numbers of cells that state the unit of the first such cell, and what they are divided by."""
    first = re.fullmatch(CELL[1:-1], text[text.is_not_null().arg_max() or 0] or "") if len(text) else None
    if first is None or first[2] is None or first[2] not in metric.units:
        return text.cast(pl.Float64, strict=False), metric.divisor
    unit = first[0][first.end(1) :]
    bare = text.str.strip_suffix(unit)
    divisor = metric.units[first[2]]
    if divisor != metric.divisor:  # where no unit is stated, another counts
        bare = pl.select(pl.when(pl.lit(text).str.ends_with(unit)).then(pl.lit(bare))).to_series()
    return bare.cast(pl.Float64, strict=False), divisor


def _taken_apart(text: pl.Expr, metric: Metric) -> tuple[pl.Expr, pl.Expr]:
    """Value of a cell in our unit, and whether it is neither a value nor a blank."""
    parts = text.str.extract_groups(CELL)
    unit = parts.struct[1].fill_null(metric.unit)
    divisor = unit.replace_strict(metric.units, default=None, return_dtype=pl.Float64)
    number = parts.struct[0].cast(pl.Float64, strict=False)
    wide = QUANTITIES[metric.quantity] in WIDE
    fault = ~is_blank(text) & ~(number / divisor).is_finite().fill_null(False)
    return (without_blanks(number, wide=wide) / divisor).alias("value"), fault.fill_null(False).alias("fault")


def read_long(rows: Rows, metrics: Mapping[str, Metric]) -> Rows:
    """Read the values of a table with one row per device, time and metric."""
    texts = rows.good["value"].str.strip_chars()
    number = texts.cast(pl.Float64, strict=False)
    read = number.is_finite().fill_null(False)
    if not read.all():
        others = texts.filter(~read).unique().to_frame("text")
        rest = others.filter(~(is_blank(pl.col("text")) | _is_nan(pl.col("text"))))["text"].drop_nulls()
        fault = texts.is_in(rest.implode()) & ~read
        rows = rows.reject({"the value is not a number": pl.lit(fault)})
        number = (
            pl.select(pl.when(pl.lit(read)).then(pl.lit(number))).to_series().filter(~fault.fill_null(False))
        )
    names = rows.good["metric"].unique(maintain_order=True).drop_nulls().to_list()
    known = {name: metrics[name] for name in names if name in metrics}
    name = pl.col("metric").cast(pl.Enum(names)).to_physical()
    wide = pl.Series([n in known and QUANTITIES[known[n].quantity] in WIDE for n in names], dtype=pl.Boolean)
    divisor = pl.Series([known[n].divisor if n in known else None for n in names], dtype=pl.Float64)
    quantity = pl.Series([known[n].quantity if n in known else None for n in names], dtype=pl.String)
    frame = rows.good.with_columns(number.alias("value")).with_columns(
        place=name, quantity=pl.lit(quantity).gather(name) if names else pl.lit(None, pl.String)
    )
    value = pl.col("value")
    cleared = (
        pl.when(pl.lit(wide).gather("place"))
        .then(without_blanks(value, wide=True))
        .otherwise(without_blanks(value, wide=False))
    )
    if names:
        frame = frame.with_columns(value=cleared / pl.lit(divisor).gather("place"))
    return replace(
        rows,
        good=frame.drop("place"),
        unused=(*rows.unused, *sorted(set(names) - metrics.keys())),
    )


def _is_nan(text: pl.Expr) -> pl.Expr:
    return text.cast(pl.Float64, strict=False).is_nan().fill_null(False)
