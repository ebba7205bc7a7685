"""Jobs of a dataset that may be longer than the memory: some of them at a time, by rows or by time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import polars as pl

from gpuplanner.inbox.core.kept_files import slim_types
from gpuplanner.privacy import merged_groups
from gpuplanner.schemas.domain import Jobs

ROWS = 1 << 21
"""Jobs that are in memory at a time, about: figures of more are added up, and may differ in their last digit."""


@dataclass(frozen=True, eq=False)
class LongJobs:
    """Table ``schemas.Jobs``, sorted by submission, read when it is asked for; jobs in quarantine are left out.

    - ``table``: All rows; text as categories where it is read from a file.
    - ``height``: How many rows there are, those in quarantine among them.
    """

    table: pl.LazyFrame
    height: int

    @classmethod
    def of(cls, jobs: pl.DataFrame | LongJobs) -> LongJobs:
        """The same of a table in memory.

        Examples
        --------
        >>> LongJobs.of(pl.DataFrame({"gpus": [1.0, 2.0]})).rows()["gpus"].to_list()
        [1.0, 2.0]
        """
        return jobs if isinstance(jobs, LongJobs) else cls(jobs.lazy(), jobs.height)

    @classmethod
    def kept(cls, path: Path, height: int) -> LongJobs:
        """Those of a file; a column that files lacked when it was written is null."""
        table, types = pl.scan_parquet(path, glob=False), slim_types(Jobs.column_names())
        there = set(table.collect_schema())
        casts = (pl.col(n).cast(t) if n in there else pl.lit(None, t).alias(n) for n, t in types.items())
        return cls(table.with_columns(casts), height)

    def believed(self, columns: Sequence[str] | None = None) -> pl.LazyFrame:
        """All jobs but those in quarantine; columns that the table lacks are left out."""
        return self._believed(self.table, columns)

    def rows(self, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """The same in memory."""
        return self.believed(columns).collect(engine="streaming")

    def parts(self, columns: Sequence[str] | None = None) -> Iterator[pl.DataFrame]:
        """All jobs once, so many at a time."""
        for first in range(0, max(self.height, 1), ROWS):
            yield self._believed(self.table.slice(first, ROWS), columns).collect(engine="streaming")

    def there(self, begin: datetime, end: datetime, columns: Sequence[str]) -> pl.DataFrame:
        """Jobs that came before `end` and did not end before `begin`."""
        found = self.table.filter(pl.col("submit_time") < end)
        if "end_time" in found.collect_schema():
            found = found.filter(pl.col("end_time").is_null() | (pl.col("end_time") > begin))
        return self._believed(found, columns).collect(engine="streaming")

    def spans(self, begin: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
        """The time between two instants, cut at whole hours where so many more jobs have come.

        Examples
        --------
        >>> from datetime import UTC
        >>> year = [datetime(2025, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)]
        >>> LongJobs.of(pl.DataFrame({"submit_time": year})).spans(*year) == [tuple(year)]
        True
        """
        came = pl.col("submit_time").gather_every(ROWS, ROWS).dt.truncate("1h")
        cuts = self.table.select(came).collect(engine="streaming")["submit_time"].drop_nulls()
        return list(pairwise(sorted({begin, end, *(at for at in cuts if begin < at < end)})))

    def merged(self, smallest: int) -> LongJobs:
        """The same with tenants of fewer people under one name; 0: as they are."""
        if not smallest:
            return self
        return replace(
            self, table=self.table.with_columns(merged_groups(self.believed(), "tenant", "user", smallest))
        )

    def _believed(self, table: pl.LazyFrame, columns: Sequence[str] | None) -> pl.LazyFrame:
        names = table.collect_schema().names()
        if "quarantined" in names:
            table = table.filter(pl.col("quarantined").is_null())
        return table if columns is None else table.select(name for name in columns if name in names)
