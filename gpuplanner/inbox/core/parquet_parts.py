"""Tables as Parquet files, written in one go or part by part: equal rows give equal bytes either way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
from polars.io.plugins import register_io_source

ROW_GROUP = 1 << 18
"""Rows of a part of a file that is read at once."""


def write_table(table: pl.DataFrame, path: Path) -> None:
    """Write a table that is in memory."""
    table.lazy().sink_parquet(path, row_group_size=ROW_GROUP, engine="streaming")


def write_parts(parts: Callable[[], Iterator[pl.DataFrame]], schema: pl.Schema, path: Path) -> None:
    """Write what :func:`write_table` writes of all parts below each other, with a few of them in memory.

    Examples
    --------
    >>> import tempfile
    >>> table = pl.DataFrame({"x": [1, 2, 3]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     one, other = Path(folder) / "one.parquet", Path(folder) / "other.parquet"
    ...     write_table(table, one)
    ...     write_parts(lambda: iter([table[:1], table[1:]]), table.schema, other)
    ...     one.read_bytes() == other.read_bytes()
    True
    """

    def batches(
        columns: list[str] | None, _predicate: pl.Expr | None, _rows: int | None, _size: int | None
    ) -> Iterator[pl.DataFrame]:
        for part in parts():
            yield part if columns is None else part.select(columns)

    source = register_io_source(batches, schema=schema)
    source.sink_parquet(path, row_group_size=ROW_GROUP, engine="streaming")
