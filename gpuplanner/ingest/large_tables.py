"""Tables that may be larger than memory."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import dataframely as dy
import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from gpuplanner.core.errors import SchemaError, TraceFormatError, first_line
from gpuplanner.core.privacy import merged_groups
from gpuplanner.core.schema_checks import check, empty
from gpuplanner.core.schemas import LATER_COUNTERS, Jobs, Samples
from gpuplanner.ingest.delimited_rows import REJECTS, Rows
from gpuplanner.ingest.quality_report import COLUMNS as QUALITY
from gpuplanner.ingest.quality_report import reasons_of
from gpuplanner.ingest.text_files import TextFile

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
        raise TraceFormatError(str(path), "a list of findings", first_line(error), REMEDY) from error


def read_json(path: Path) -> Any:  # noqa: ANN401 - anything that JSON can hold
    """A JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TraceFormatError(str(path), "a JSON file", first_line(error), REMEDY) from error


@contextmanager
def explained(path: Path, what: str = "tables") -> Iterator[None]:
    """Say of what is wrong with tables within the block that they are not as this program wrote them."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError, SchemaError) as error:
        expected = f"{what} written by this program"
        raise TraceFormatError(str(path), expected, first_line(error), REMEDY) from error


PIECE = 1 << 19
"""Rows that are read at a time."""
NAMES = ("job_id",)
"""Text of which nearly every row has its own: as categories it would take more room, not less."""


def read_jobs(path: str | Path, columns: Sequence[str]) -> pl.DataFrame:
    """Read some columns of a table of jobs; every row and every column is checked.

    Ten million jobs take about as much memory as one piece and the columns asked for.

    Examples
    --------
    >>> from gpuplanner.core.stage_cache import sample_folder
    >>> jobs = read_jobs(sample_folder() / "jobs.parquet", ["tenant", "gpus"])
    >>> jobs.height, [str(dtype) for dtype in jobs.dtypes]
    (11521, ['Categorical', 'Float64'])
    """
    slim = slim_types(columns)
    parts: dict[str, list[pl.Series]] = {name: [] for name in columns}
    for piece in checked_jobs(path):
        for name in columns:
            parts[name].append(piece[name].cast(slim[name]))
    filled = [name for name in columns if any(part.null_count() < len(part) for part in parts[name])]
    known = {name: pl.concat(parts.pop(name)) for name in filled}
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
        name: pl.Categorical() if dtype == pl.String and name not in NAMES else dtype for name, dtype in types.items()
    }


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
        tenant = merged_groups(self.believed(), "tenant", "user", smallest)
        return replace(self, table=self.table.with_columns(tenant))

    def _believed(self, table: pl.LazyFrame, columns: Sequence[str] | None) -> pl.LazyFrame:
        names = table.collect_schema().names()
        if "quarantined" in names:
            table = table.filter(pl.col("quarantined").is_null())
        return table if columns is None else table.select(name for name in columns if name in names)


Step = Callable[[Rows], Rows]
PART_ROWS = 1 << 18
"""Rows of an ordered table that are in memory at a time."""

_NUMBERS = itertools.count()


@dataclass(eq=False)
class LongTable:
    """Tables of the same columns below each other: in memory, or in files where there is a folder for them."""

    room: Path | None = None
    kept: list[pl.DataFrame | Path] = field(default_factory=list)

    def add(self, table: pl.DataFrame) -> None:
        """Put a table below the others; one without rows only if it is the first, for its columns."""
        if self.kept and table.is_empty():
            return
        if self.room is None:
            self.kept.append(table)
            return
        path = self.room / f"piece-{next(_NUMBERS)}.parquet"
        table.write_parquet(path, compression="lz4")
        self.kept.append(path)

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[pl.DataFrame]:
        """Each table, or some of its columns; those that it lacks are left out.

        Examples
        --------
        >>> pieces = LongTable()
        >>> pieces.add(pl.DataFrame({"x": [1], "y": [2]}))
        >>> [table.columns for table in pieces.tables(["y", "z"])]
        [['y']]
        """
        for kept in self.kept:
            lazy = scan_table(kept)
            wanted = columns and [name for name in columns if name in lazy.collect_schema().names()]
            yield (lazy if wanted is None else lazy.select(wanted)).collect()

    def clear(self) -> None:
        """Forget all tables, and their files."""
        for kept in self.kept:
            if isinstance(kept, Path):
                kept.unlink()
        self.kept.clear()

    def in_order(self, key: str, bounds: Sequence[Any], then: Sequence[str] = ()) -> Iterator[pl.DataFrame]:
        """All rows in the order of a column, from bound to bound; of equal ones in the order of others.

        Examples
        --------
        >>> pieces = LongTable()
        >>> for values in ([3, 1], [2, 4]):
        ...     pieces.add(pl.DataFrame({"x": values}))
        >>> [part["x"].to_list() for part in pieces.in_order("x", [3])]
        [[1, 2], [3, 4]]
        """
        spans = [(table[key].min(), table[key].max()) for table in self.tables([key])]
        for low, high in itertools.pairwise([None, *bounds, None]):
            inside = pl.lit(value=True) if low is None else pl.col(key) >= low
            inside = inside if high is None else inside & (pl.col(key) < high)
            near = [
                kept
                for kept, (first, last) in zip(self.kept, spans, strict=True)
                if first is None or ((low is None or last >= low) and (high is None or first < high))
            ]
            tables = LongTable(kept=near or self.kept[:1]).tables()
            found = pl.concat(table.filter(inside) for table in tables)
            yield found.sort(key, *then, maintain_order=True)


@dataclass(eq=False)
class LongRows:
    """Rows of files, as :class:`~gpuplanner.ingest.delimited_rows.Rows` has them, in pieces.

    - ``files``, ``count``, ``unused``, ``blank``: As in ``Rows``.
    - ``good``, ``rejects``: The rows of ``Rows``.
    - ``height``: Number of good rows.
    - ``steps``: What every piece is still to be taken through.
    - ``last_reject``: Highest number of a line that was rejected.
    """

    room: Path | None = None
    files: tuple[TextFile, ...] = ()
    count: int = 0
    unused: dict[str, None] = field(default_factory=dict)
    blank: int = 0
    height: int = 0
    steps: list[Step] = field(default_factory=list)
    last_reject: int = 0
    good: LongTable = field(init=False)
    rejects: LongTable = field(init=False)
    reasons: pl.DataFrame = field(init=False)

    def __post_init__(self) -> None:
        self.good, self.rejects = LongTable(self.room), LongTable(self.room)
        self.rejects.add(pl.DataFrame(schema=REJECTS))
        self.reasons = reasons_of(pl.DataFrame(schema=REJECTS))

    def then(self, *steps: Step) -> LongRows:
        """Take every piece through more steps once :meth:`settle` is called."""
        self.steps += steps
        return self

    def settle(self) -> LongRows:
        """Take every piece through the steps; what they reject joins the other rejects, the rest takes its place."""
        before, self.good, self.height = self.good, LongTable(self.room), 0
        for table in before.tables():
            rows = Rows(self.files, 0, table, pl.DataFrame(schema=REJECTS))
            for step in self.steps:
                rows = step(rows)
            self.add(rows)
        before.clear()
        self.steps.clear()
        return self

    def add(self, rows: Rows) -> None:
        """Put rows aside as a piece."""
        self.files = rows.files
        self.count += rows.count
        self.blank += rows.blank
        self.unused |= dict.fromkeys(rows.unused)
        if rows.good.width:
            self.good.add(rows.good)
        self.height += rows.good.height
        self.rejects.add(rows.rejects)
        self.last_reject = max(self.last_reject, rows.rejects.select(pl.col("row").max().fill_null(0)).item())
        reasons = pl.concat([self.reasons, reasons_of(rows.rejects)]).group_by("reason", maintain_order=True)
        self.reasons = reasons.agg(pl.col("rows").sum(), pl.col("file", "row").first())

    def has_twins(self, key: str) -> bool:
        """Whether a key may come again; False is certain."""
        return not self._hashes(key).is_empty()

    def twins(self, key: str, columns: Sequence[str]) -> pl.DataFrame:
        """Some columns of the rows whose key comes again, in memory, with their places.

        Examples
        --------
        >>> table = pl.DataFrame({"file": 0, "line": [2, 3, 4], "raw": "", "id": ["a", "b", "a"]})
        >>> rows = LongRows()
        >>> rows.add(Rows((), 3, table, pl.DataFrame(schema=REJECTS)))
        >>> rows.twins("id", ["id"]).rows()
        [(0, 2, 'a'), (0, 4, 'a')]
        """
        names = list(dict.fromkeys(["file", "line", key, *columns]))
        hit = pl.col(key).hash().is_in(self._hashes(key).implode())
        return pl.concat(table.filter(hit) for table in self.good.tables(names))

    def _hashes(self, key: str) -> pl.Series:
        """Hashes that several rows have."""
        hashes = np.concatenate([table[key].hash().to_numpy() for table in self.good.tables([key])])
        hashes.sort()
        return pl.Series(np.unique(hashes[1:][hashes[1:] == hashes[:-1]]), dtype=pl.UInt64)


ROW_GROUP = 1 << 18
"""Rows of a part of a file that is read at once."""


def write_table(table: pl.DataFrame | pl.LazyFrame, path: Path) -> None:
    """Write a table, in parts of which a few are in memory if it is not."""
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


SAMPLES = "samples"
"""Folder of the months in a dataset."""
MONTH = "month="
"""Beginning of the name of a month's folder, as Hive names it, so that other programs find the column."""
DERIVED = ("until", "job_evidence")
"""Columns that follow from the other samples and the jobs, and are not kept."""


def as_read(samples: pl.DataFrame) -> pl.DataFrame:
    """Samples without the counters that came later into the table and that their source does not have.

    Examples
    --------
    >>> as_read(pl.DataFrame({"power_w": [None], "sm_occupancy": [None]})).columns
    ['power_w']
    """
    absent = [name for name in LATER_COUNTERS if name in samples and samples[name].null_count() == samples.height]
    return samples.drop(*absent, *DERIVED, strict=False)


def by_month(samples: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Name of the folder of each month in UTC → its samples, in the order of the samples.

    Examples
    --------
    >>> list(by_month(pl.DataFrame({"time": [datetime(2026, 1, 31, 23, tzinfo=UTC)]})))
    ['month=2026-01']
    """
    month = (pl.lit(MONTH) + pl.col("time").dt.strftime("%Y-%m")).alias("month")
    parts = samples.with_columns(month).partition_by("month", include_key=False, as_dict=True)
    return {str(name): part for (name,), part in parts.items()}


def write_month(samples: pl.DataFrame, path: Path) -> None:
    """Write the samples of one month; equal rows give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(as_read(samples), path)


def months(folder: Path, source: str) -> dict[str, Path]:
    """Name of the folder of each month → its file of one source, in the order of time."""
    return {path.parent.name: path for path in sorted((folder / SAMPLES).glob(f"{MONTH}*/{source}.parquet"))}


def scan_months(files: Sequence[Path]) -> pl.LazyFrame:
    """Samples of the files of some months, read only when they are collected.

    Counters that a file does not have, since nobody read them then, are null.
    """
    if not files:
        return empty(Samples).lazy()
    types = {name: column.dtype for name, column in Samples.columns().items()}
    return pl.scan_parquet(
        list(files),
        glob=False,
        hive_partitioning=False,
        schema=types,
        missing_columns="insert",
        extra_columns="ignore",
    )


def of_span(folder: Path, sources: Sequence[str], start: datetime | None, end: datetime | None) -> list[Path]:
    """Files of all months that may hold times of a span, in the order of time."""
    first = "" if start is None else f"{MONTH}{start.astimezone(UTC):%Y-%m}"
    last = "~" if end is None else f"{MONTH}{end.astimezone(UTC):%Y-%m}"
    found = [(name, path) for source in sources for name, path in months(folder, source).items()]
    return [path for name, path in sorted(found) if first <= name <= last]
