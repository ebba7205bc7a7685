"""Helios quotas: GPUs of each virtual cluster by day, 2020 (Hu et al., SC 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.findings import Check
from gpuplanner.inbox.core.lines.fields import CSV, Field, header_names
from gpuplanner.inbox.core.lines.reading import read_rows
from gpuplanner.inbox.core.lines.text_file import head
from gpuplanner.inbox.core.table_rows import assemble_reading
from gpuplanner.schemas.tables import MAX_GPUS_PER_JOB

DAY, TOTAL = "date", "total"
POOL = "pool:"
"""Stands in front of the names of pools, so that none is taken for another column."""

CHECKS = (
    Check(
        "total is not the sum of the pools",
        "warning",
        "quotas follow the pools; total is not used",
        pl.col("stated") != pl.col("sum"),
    ),
    Check(
        "pool of 0 GPUs",
        "info",
        "none: it did not exist that day and has no row in the table",
        pl.col("absent") > 0,
    ),
)


def looks_like_quotas(lines: Sequence[str]) -> bool:
    """True if the first lines of a file look like quotas by day: pools between a date and their total."""
    names = header_names(lines[0], CSV)
    return len(names) > 2 and names[0] == DAY and names[-1] == TOTAL


def read_helios_quotas(paths: Sequence[str | Path]) -> Dataset:
    r"""Read ``cluster_gpu_number.csv``: a row a day, a column a virtual cluster; 0 means that it did not exist.

    References
    ----------
    .. [1] S-Lab-System-Group/HeliosData, README: schema of ``cluster_gpu_number.csv``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "gpus.csv"
    ...     _ = path.write_text("date,vc1,vc2,total\n2020-04-01,112,0,112\n")
    ...     read_helios_quotas([path]).table["pool", "gpus"].rows()
    [('vc1', 112)]
    """
    headers = [header_names(line, CSV) for path in paths for line in head(path)[:1]]
    names = (name for header in headers for name in header if name not in ("", DAY, TOTAL))
    count = Field("", "number", high=MAX_GPUS_PER_JOB)
    columns = {
        DAY: Field("day", "time", format="%Y-%m-%d"),
        **{name: replace(count, name=POOL + name) for name in dict.fromkeys(names)},
        TOTAL: replace(count, name="stated", nullable=True),
    }
    rows = read_rows(paths, columns, source="helios")
    each = pl.col(f"^{POOL}.*$")
    rows = rows.reject(
        {
            "not a whole number of GPUs": pl.any_horizontal(each != each.floor()),
            "the same day as an earlier row": ~pl.col("day").is_first_distinct(),
        }
    )
    good = rows.good.with_columns(sum=pl.sum_horizontal(each), absent=pl.sum_horizontal(each == 0))
    return assemble_reading(
        replace(rows, good=good),
        "quotas",
        source="helios",
        order=["day", "pool"],
        what="day",
        shape=_long,
        checks=CHECKS,
        totals={"pools": pl.col("pool").n_unique(), "gpu_days": pl.col("gpus").cast(pl.Int64).sum()},
        span=(),
        notes=["days are local days; the source names no zone"],
    )


def _long(wide: pl.DataFrame) -> pl.DataFrame:
    """One row per day and pool that existed."""
    pools = [name for name in wide.columns if name.startswith(POOL)]
    long = wide.unpivot(pools, index="day", variable_name="pool", value_name="gpus")
    named = long.with_columns(pl.col("day").dt.date(), pl.col("pool").str.strip_prefix(POOL))
    return named.filter(pl.col("gpus") > 0)
