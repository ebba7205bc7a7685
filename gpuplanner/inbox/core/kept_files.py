"""Tables and JSON of a folder, with an error that says which is not as it was written; jobs also piece by piece."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dataframely as dy
import polars as pl

from gpuplanner.errors import SchemaError, TraceFormatError, first_line, message
from gpuplanner.inbox.core.findings import COLUMNS as QUALITY
from gpuplanner.schemas.domain import Jobs
from gpuplanner.schemas.check import check

REMEDY = "Make it with: gpuplanner ingest SOURCE PATH... -o DIR."


def read_table(path: Path, schema: type[dy.Schema] | pl.Schema) -> pl.DataFrame:
    """A table of a folder: its columns alone are checked, or, for a declared table, its values too."""
    with explained(path, "a table"):
        frame = pl.read_parquet(path, glob=False)
        if isinstance(schema, pl.Schema):
            return frame.match_to_schema(schema)
        return check(frame, schema, where=str(path))


def scan_table(table: pl.DataFrame | Path) -> pl.LazyFrame:
    """Rows of a table, or of the file that holds it as it is, read only when they are collected."""
    return pl.scan_parquet(table, glob=False) if isinstance(table, Path) else table.lazy()


def read_findings(path: Path) -> pl.DataFrame:
    """A quality report."""
    quality = read_json(path)
    try:
        return pl.DataFrame(quality, schema=QUALITY, orient="row")
    except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
        text = message(str(path), "a list of findings", first_line(error), REMEDY)
        raise TraceFormatError(text) from error


def read_json(path: Path) -> Any:  # noqa: ANN401 - anything that JSON can hold
    """A JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TraceFormatError(message(str(path), "a JSON file", first_line(error), REMEDY)) from error


@contextmanager
def explained(path: Path, what: str = "tables") -> Iterator[None]:
    """Say of what is wrong with tables within the block that they are not as this program wrote them."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError, SchemaError) as error:
        text = message(str(path), f"{what} written by this program", first_line(error), REMEDY)
        raise TraceFormatError(text) from error


PIECE = 1 << 19
"""Rows that are read at a time."""
NAMES = ("job_id",)
"""Text of which nearly every row has its own: as categories it would take more room, not less."""


def read_jobs(path: str | Path, columns: Sequence[str]) -> pl.DataFrame:
    """Read some columns of a table of jobs; every row and every column is checked.

    Ten million jobs take about as much memory as one piece and the columns asked for.

    Examples
    --------
    >>> from gpuplanner.study.bundled import sample_folder
    >>> jobs = read_jobs(sample_folder() / "jobs.parquet", ["tenant", "gpus"])
    >>> jobs.height, [str(dtype) for dtype in jobs.dtypes]
    (11521, ['Categorical', 'Float64'])
    """
    slim = slim_types(columns)
    parts: dict[str, list[pl.Series]] = {name: [] for name in columns}
    for piece in checked_jobs(path):
        for name in columns:
            parts[name].append(piece[name].cast(slim[name]))
    known = {name: pl.concat(parts.pop(name)) for name in columns if any(map(_any, parts[name]))}
    if not known:
        return pl.DataFrame({name: pl.concat(series) for name, series in parts.items()})
    absent = [pl.lit(None, slim[name]).alias(name) for name in parts]
    return pl.DataFrame(known).with_columns(absent).select(columns)


def checked_jobs(path: str | Path) -> Iterator[pl.DataFrame]:
    """A table of jobs, a piece of it after the other, each checked; one at least."""
    scan = pl.scan_parquet(path, glob=False)
    for first in range(0, max(scan.select(pl.len()).collect().item(), 1), PIECE):
        yield check(scan.slice(first, PIECE).collect(), Jobs, where=f"{path}, from row {first}")


def slim_types(columns: Sequence[str]) -> dict[str, pl.DataType]:
    """Types of columns of jobs in little memory: text as categories."""
    types = {name: Jobs.columns()[name].dtype for name in columns}
    return {
        name: pl.Categorical() if dtype == pl.String and name not in NAMES else dtype
        for name, dtype in types.items()
    }


def _any(series: pl.Series) -> bool:
    """Whether a column has any value."""
    return series.null_count() < len(series)
