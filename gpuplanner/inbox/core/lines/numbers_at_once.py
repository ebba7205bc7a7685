"""Lines without quotation marks, cut and read as numbers in one go where their columns hold nothing else."""

from __future__ import annotations

import re
from collections.abc import Collection

import polars as pl

BARE = re.compile(r"[-+]?[0-9]*\.?[0-9]*")
"""A number without a unit, or nothing."""


def with_numbers(
    lines: pl.Series,
    separator: str,
    names: list[str],
    numbers: Collection[int],
    text: bytes = b"",
    above: int = 0,
) -> tuple[pl.DataFrame, pl.Series] | None:
    """Fields of lines, some of them as numbers.

    Examples
    --------
    >>> cells, short = with_numbers(pl.Series(["a,1", "b,", "c"]), ",", ["x", "y"], [1])
    >>> cells.rows(), short.to_list()
    ([('a', 1.0), ('b', None), ('c', None)], [False, False, True])
    >>> with_numbers(pl.Series(["a,1", "b,2 W"]), ",", ["x", "y"], [1]) is None
    True
    """
    first = str(lines[0]).split(separator)
    bare = {place for place in numbers if place < len(first) and BARE.fullmatch(first[place])}
    if not bare:
        return None
    schema = {str(place): pl.Float64 if place in bare else pl.String for place in range(len(names))}
    if not text:
        text, above = lines.str.join("\n").cast(pl.Binary)[0] + b"\n", 0
    try:
        cells = pl.read_csv(
            text,
            has_header=False,
            skip_lines=above,
            schema=schema,
            separator=separator,
            quote_char=None,
            empty_string_is_null=False,
        )
    except pl.exceptions.PolarsError:
        return None
    finite = cells.select(pl.col(pl.Float64).is_finite().all())
    if cells.height != len(lines) or not all(finite.row(0)):
        return None
    # What is missing at the end of a line reads as if nothing stood there.
    last = cells.to_series(-1)
    open_end = last.is_null() if last.dtype == pl.Float64 else last == ""
    places = open_end.arg_true()
    short = open_end
    if len(places):
        marks = lines.gather(places).str.count_matches(separator, literal=True)
        short = open_end.scatter(places, marks < len(names) - 1)
    return cells, short
