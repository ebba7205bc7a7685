"""Rows of lists of jobs that may be longer than the memory: one piece of them at a time, the others put aside."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.inbox.core.lines.reject_columns import REJECTS
from gpuplanner.inbox.core.findings import reasons_of
from gpuplanner.inbox.core.kept_files import scan_table
from gpuplanner.inbox.core.lines.rows import Rows, names_of
from gpuplanner.inbox.core.lines.text_file import TextFile

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
            near = LongTable(
                kept=[
                    kept
                    for kept, (first, last) in zip(self.kept, spans, strict=True)
                    if first is None or ((low is None or last >= low) and (high is None or first < high))
                ]
                or self.kept[:1]
            )
            found = pl.concat(table.filter(inside) for table in near.tables())
            yield found.sort(key, *then, maintain_order=True)


@dataclass(eq=False)
class LongRows:
    """Rows of files, as :class:`~.lines.rows.Rows` has them, in pieces.

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

    @classmethod
    def of(cls, rows: Iterable[Rows], room: Path | None = None) -> LongRows:
        """Put rows aside, each as a piece."""
        found = cls(room)
        for part in rows:
            found.count += part.count
            found.blank += part.blank
            found.unused |= dict.fromkeys(part.unused)
            found._add(part)
        return found

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
            self._add(rows)
        before.clear()
        self.steps.clear()
        return self

    def file_names(self) -> list[str]:
        """As ``Rows`` tells them."""
        return names_of(self.files)

    def _add(self, rows: Rows) -> None:
        self.files = rows.files
        if rows.good.width:
            self.good.add(rows.good)
        self.height += rows.good.height
        self.rejects.add(rows.rejects)
        self.last_reject = max(self.last_reject, rows.rejects.select(pl.col("row").max().fill_null(0)).item())
        self.reasons = (
            pl.concat([self.reasons, reasons_of(rows.rejects)])
            .group_by("reason", maintain_order=True)
            .agg(pl.col("rows").sum(), pl.col("file", "row").first())
        )

    def has_twins(self, key: str) -> bool:
        """Whether a key may come again; False is certain."""
        return not self._hashes(key).is_empty()

    def twins(self, key: str, columns: Sequence[str]) -> pl.DataFrame:
        """Some columns of the rows whose key comes again, in memory, with their places.

        Examples
        --------
        >>> table = pl.DataFrame({"file": 0, "line": [2, 3, 4], "raw": "", "id": ["a", "b", "a"]})
        >>> rows = LongRows.of([Rows((), 3, table, pl.DataFrame(schema=REJECTS))])
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
