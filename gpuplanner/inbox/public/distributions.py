"""Acme: cumulative distributions of utilisation and power, 2023 (Hu et al., USENIX NSDI 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.errors import file_name
from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.findings import Finding
from gpuplanner.inbox.core.lines.fields import CSV, Field, header_names
from gpuplanner.inbox.core.lines.reading import read_rows
from gpuplanner.inbox.core.lines.text_file import head
from gpuplanner.inbox.core.table_rows import assemble_reading

PERCENT = "__cdf_pct"
"""End of the name of the column that holds the share, beside the column of the value."""

NO_SERIES = "a distribution, not a time series: no demand, phase or ledger can be made of it"


def read_distributions(paths: Sequence[str | Path]) -> Dataset:
    r"""Read cumulative distributions: pairs of columns ``x`` and ``x__cdf_pct``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "gpu_power_kalos.csv"
    ...     _ = path.write_text("gpu_power_w,gpu_power_w__cdf_pct\n55.7,0.0\n400,100.0\n")
    ...     read_distributions([path]).table["series"].unique().to_list()
    ['gpu_power_kalos: gpu_power_w']
    """
    names = _series(paths)
    value = Field("", "number", nullable=True, optional=True, low=-1e12)
    share = replace(value, low=0.0, high=100.0)
    columns = {name: replace(value, name=f"value:{name}") for name in names}
    columns |= {name + PERCENT: replace(share, name=f"percent:{name}") for name in names}
    rows = read_rows(paths, columns, source="acme")
    half = [pl.col(f"value:{name}").is_null() != pl.col(f"percent:{name}").is_null() for name in names]
    falls = [
        (pl.col(f"{part}:{name}") < pl.col(f"{part}:{name}").cum_max().over("file"))
        for name in names
        for part in ("value", "percent")
    ]
    rows = rows.reject(
        {
            "a value without its share, or a share without its value": pl.any_horizontal(half),
            "below an earlier row: a cumulative distribution rises": pl.any_horizontal(falls),
        }
    )
    stems = {number: file_name(file.path).split(".")[0] for number, file in enumerate(rows.files)}
    return assemble_reading(
        rows,
        "distributions",
        source="acme",
        order=["series", "percent"],
        what="point",
        shape=lambda good: _long(good, names, stems),
        findings=[Finding("a distribution", "info", rows.good.height, NO_SERIES, "")],
        totals={"series": pl.col("series").n_unique()},
        span=(),
        notes=[NO_SERIES],
    )


def _series(paths: Sequence[str | Path]) -> list[str]:
    headers = [header_names(line, CSV) for path in paths for line in head(path)[:1]]
    ends = [name.removesuffix(PERCENT) for header in headers for name in header if name.endswith(PERCENT)]
    return list(dict.fromkeys(ends)) or ["x"]


def _long(wide: pl.DataFrame, names: Sequence[str], stems: dict[int, str]) -> pl.DataFrame:
    stem = pl.col("file").replace_strict(stems, return_dtype=pl.String)
    parts = [
        wide.select(
            series=stem + pl.lit(f": {name}"),
            value=pl.col(f"value:{name}"),
            percent=pl.col(f"percent:{name}"),
        )
        for name in names
    ]
    return pl.concat(parts).drop_nulls("value")
