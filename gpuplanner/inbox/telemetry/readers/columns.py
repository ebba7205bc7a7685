"""Columns of samples as a computation needs them: what a source did not measure is null."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from gpuplanner.errors import SchemaError, examples, message
from gpuplanner.schemas import Samples


def columns_of(samples: pl.LazyFrame, names: Iterable[str]) -> pl.LazyFrame:
    """Select columns of samples, in the types of the table; those that may be null may be absent.

    Examples
    --------
    >>> columns_of(pl.LazyFrame({"gpu": [3], "own": ["x"]}), ["gpu", "xid"]).collect().row(0)
    (3, None)
    """
    present = samples.collect_schema()
    declared = {name: Samples.columns()[name] for name in names}
    missing = [name for name, column in declared.items() if name not in present and not column.nullable]
    if missing:
        expected, got = f"columns {examples(missing)}", f"columns {examples(present.names())}"
        raise SchemaError(message("samples", expected, got, "Add the columns."))
    return samples.select(
        pl.lit(None, column.dtype).alias(name)
        if name not in present
        # A cast, even to the same type, keeps filters from the file.
        else pl.col(name)
        if present[name] == column.dtype
        else pl.col(name).cast(column.dtype)
        for name, column in declared.items()
    )
