"""Texts to numbers in our units: blanks are missing, units are those stated, anything else is rejected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from gpuplanner.errors import TraceFormatError, examples, message
from gpuplanner.inbox.core.rows import Rows
from gpuplanner.inbox.telemetry.metrics import DIVISORS, QUANTITIES, WIDE, Metric, is_blank, without_blanks

CELL = r"^([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)[ \t]*(%|[A-Za-z][A-Za-z/]*)?$"
"""A number, and its unit where the cell states one."""

NOT_A_NUMBER = "not a number with a known unit"


def known_unit(metric: Metric, unit: str, where: str) -> Metric:
    """The metric in a unit that a header states.

    Raises
    ------
    TraceFormatError
        If this quantity is not given in such a unit.

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
    """Read the columns of a table with one row per device and time.

    Parameters
    ----------
    rows : Rows
        Columns of text.
    columns : mapping of str to Metric
        Column → what it holds. Several columns of one quantity fill each other's blanks, first named first.

    Returns
    -------
    Rows
        With a column of numbers per quantity, in our units, null where nothing was given; all quantities
        are there. Rows with a text that is no number, or with a foreign unit, are rejected.
    """
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
    """Values of cells in our unit, and which cells are neither a value nor a blank.

    Most cells of a column look alike: those that are a number and the unit of the first are cast as they stand,
    and only the others are taken apart.

    Examples
    --------
    >>> value, fault = read_cells(pl.Series(["400 W", "[N/A]", "0.5 kW", "2000 mW"]), Metric("power", "W"))
    >>> value.to_list(), fault.to_list()
    ([400.0, None, None, 2.0], [False, False, True, False])
    """
    text = cells.str.strip_chars()
    wide = QUANTITIES[metric.quantity] in WIDE
    number, divisor = _quickly(text, metric)
    read = number.is_finite().fill_null(False)
    value = pl.select(without_blanks(pl.lit(number), wide=wide) / divisor).to_series()
    if read.all():
        return value, ~read
    rest = (~read & text.is_not_null()).arg_true()
    others = text.gather(rest)
    slow = others.unique().to_frame("text").with_columns(_taken_apart(pl.col("text"), metric))
    found = others.to_frame("text").join(slow, on="text", how="left", maintain_order="left")
    value = pl.select(pl.when(pl.lit(read)).then(pl.lit(value))).to_series()
    fault = pl.Series([False]).new_from_index(0, len(text))
    return value.scatter(rest, found["value"]), fault.scatter(rest, found["fault"])


def _quickly(text: pl.Series, metric: Metric) -> tuple[pl.Series, float]:
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
    """Read the values of a table with one row per device, time and metric.

    Parameters
    ----------
    rows : Rows
        With ``metric`` and ``value``, both text.
    metrics : mapping of str to Metric
        Name in the source → what it is. Other metrics are kept as "seen", without a quantity.

    Returns
    -------
    Rows
        With ``quantity`` (null if it is none of ours) and ``value`` as a number in our unit, null where
        missing; rows whose value is no number are rejected.
    """
    by_name = pl.col("metric")
    wide = by_name.is_in([name for name, m in metrics.items() if QUANTITIES[m.quantity] in WIDE])
    text = pl.col("value").str.strip_chars()
    number = text.cast(pl.Float64, strict=False)
    blank = is_blank(text) | number.is_nan().fill_null(False)
    rows = rows.reject({"the value is not a number": ~blank & ~number.is_finite().fill_null(False)})
    value = (
        pl.when(wide).then(without_blanks(number, wide=True)).otherwise(without_blanks(number, wide=False))
    )
    divisors = {name: metric.divisor for name, metric in metrics.items()}
    quantities = {name: metric.quantity for name, metric in metrics.items()}
    return replace(
        rows,
        good=rows.good.with_columns(
            value=value / by_name.replace_strict(divisors, default=None, return_dtype=pl.Float64),
            quantity=by_name.replace_strict(quantities, default=None, return_dtype=pl.String),
        ),
        unused=(*rows.unused, *sorted(set(rows.good["metric"].drop_nulls()) - metrics.keys())),
    )


def refuse_mixed_units(rows: Rows, values: Mapping[str, pl.Expr], where: str) -> None:
    """Refuse files whose values betray another unit than the one that was assumed.

    A share above 1 shows that percent were given for ratios; the smaller ones among them would pass for
    ratios, so not one of them can be believed. A percentage that is never above 1, yet no whole number, is
    a ratio. A GPU with less than 1 GiB of memory was given in another unit.

    Parameters
    ----------
    rows : Rows
        Read rows.
    values : mapping of str to polars.Expr
        Quantity → its values.
    where : str
        Name of the files, for the message.

    Raises
    ------
    TraceFormatError
        Naming the quantity, the suspected unit and examples.
    """
    table = rows.good.select(value.alias(name) for name, value in values.items())
    for quantity in table.columns:
        series = table[quantity].drop_nulls()
        positive = series.filter(series > 0)
        if positive.is_empty():
            continue
        odd = positive.filter(positive > 1 + ROUNDING)
        suspicion = None
        if quantity == "gpu_util":
            percent = positive * DIVISORS["share"]["%"]
            if float(percent.max()) <= 1 and bool((percent.round(0) - percent).abs().max()):  # type: ignore[arg-type]
                suspicion, odd = "ratios where percent were expected", percent
        elif QUANTITIES[quantity] == "share" and len(odd) > MIXED_SHARE * len(positive):
            suspicion = "percent where ratios were expected"
        elif quantity == "memory_total" and float(positive.min()) < 1:  # type: ignore[arg-type]
            suspicion, odd = "a unit larger than the one expected", positive.filter(positive < 1)
        if suspicion is not None:
            got = f"{suspicion}: {len(odd)} of {len(positive)} values, such as {examples(odd.head(5).to_list())}"
            expected = f"{quantity} in the unit of the source"
            raise TraceFormatError(message(where, expected, got, "Convert the column, or state its unit."))


MIXED_SHARE = 0.01
"""Share of values above 1 from which ratios are taken to be percent; fewer are single faults."""

ROUNDING = 1e-6
"""By how much a mean of ratios may exceed 1 through rounding of the source."""
