"""Millions of jobs from a folder: read and checked piece by piece, and of each only the columns that are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from gpuplanner.schemas import Jobs, check

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
    scan = pl.scan_parquet(path, glob=False)
    rows = scan.select(pl.len()).collect().item()
    types = {name: Jobs.columns()[name].dtype for name in columns}
    slim = {
        name: pl.Categorical() if dtype == pl.String and name not in NAMES else dtype
        for name, dtype in types.items()
    }
    parts: dict[str, list[pl.Series]] = {name: [] for name in columns}
    for first in range(0, max(rows, 1), PIECE):
        piece = check(scan.slice(first, PIECE).collect(), Jobs, where=f"{path}, from row {first}")
        for name in columns:
            parts[name].append(piece[name].cast(slim[name]))
    known = {name: pl.concat(parts.pop(name)) for name in columns if any(map(_any, parts[name]))}
    if not known:
        return pl.DataFrame({name: pl.concat(series) for name, series in parts.items()})
    absent = [pl.lit(None, slim[name]).alias(name) for name in parts]
    return pl.DataFrame(known).with_columns(absent).select(columns)


def _any(series: pl.Series) -> bool:
    """Whether a column has any value."""
    return series.null_count() < len(series)
