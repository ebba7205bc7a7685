"""Columns of numbers in the order of time, out of memory, of which any span can be had; numbers in place of tuples."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np
import polars as pl


@dataclass
class Codes:
    """Numbers tuples of values in the order in which they are first seen.

    - ``names``: Columns of which the values come.
    - ``rows``: The tuples, by number.
    """

    names: tuple[str, ...]
    rows: list[tuple[Hashable, ...]] = field(default_factory=list)
    _known: dict[tuple[Hashable, ...], int] = field(default_factory=dict)

    def code(self, values: tuple[Hashable, ...]) -> int:
        """Number of one tuple."""
        known = self._known.get(values)
        if known is None:
            known = self._known[values] = len(self.rows)
            self.rows.append(values)
        return known

    def of(self, frame: pl.DataFrame) -> np.ndarray:
        """Number of each row of a table.

        Examples
        --------
        >>> codes = Codes(("node", "gpu"))
        >>> codes.of(pl.DataFrame({"node": ["n1", "n1", "n1"], "gpu": [0, 1, 0]})).tolist(), codes.rows
        ([0, 1, 0], [('n1', 0), ('n1', 1)])
        """
        varied = [name for name in self.names if not is_constant(frame[name])]
        if not varied:
            number = self.code(frame.select(self.names).row(0)) if frame.height else 0
            return np.full(frame.height, number, np.uint32)
        unique = frame.select(self.names).unique(varied, keep="first", maintain_order=True)
        numbers = [self.code(values) for values in unique.iter_rows()]
        table = unique.select(varied).with_columns(code=pl.Series(numbers, dtype=pl.UInt32))
        joined = frame.select(varied).join(
            table, on=varied, how="left", nulls_equal=True, maintain_order="left"
        )
        return joined["code"].to_numpy()


def device_order(device: Sequence[Hashable]) -> tuple[str, int, int]:
    """Place of a node, GPU and instance among others; a whole GPU comes before its instances."""
    node, gpu, instance = device
    return str(node), int(str(gpu)), -1 if instance is None else int(str(instance))


def is_constant(series: pl.Series) -> bool:
    """True if all values are the same, or all missing.

    Examples
    --------
    >>> is_constant(pl.Series([1, 1])), is_constant(pl.Series([None, 1]))
    (True, False)
    """
    if series.null_count():
        return series.null_count() == len(series)
    return not len(series) or bool((series == series[0]).all())


Columns = dict[str, np.ndarray]
"""Name → values of one type, all of the same length."""

EVERY = 1024
"""Rows from one sign-post to the next."""


@dataclass(frozen=True)
class _Part:
    """Where one batch lies in the file."""

    rows: int
    places: dict[str, tuple[int, np.dtype]]
    posts: np.ndarray
    last: int


@dataclass
class Spill:
    """A file of batches, each in the order of one of its columns.

    - ``stream``: Open for reading and writing: a temporary file, or ``io.BytesIO``.
    - ``order``: Name of the column by which each batch is ordered.
    """

    stream: BinaryIO
    order: str
    _parts: list[_Part] = field(default_factory=list)
    _end: int = 0

    def __post_init__(self) -> None:
        weakref.finalize(self, self.stream.close)

    def add(self, columns: Mapping[str, np.ndarray]) -> None:
        """Write a batch."""
        places = {}
        self.stream.seek(self._end)
        for name, values in columns.items():
            places[name] = (self._end, values.dtype)
            self.stream.write(np.ascontiguousarray(values).data)
            self._end += values.nbytes
        keys = columns[self.order]
        self._parts.append(_Part(len(keys), places, keys[::EVERY].copy(), keys[-1]))

    def between(self, low: int, high: int) -> Iterator[Columns]:
        """Of each batch that has any, the rows with `low` <= order < `high`.

        Examples
        --------
        >>> import io
        >>> spill = Spill(io.BytesIO(), "time")
        >>> spill.add({"time": np.array([1, 2, 2, 5]), "x": np.array([0.1, 0.2, 0.3, 0.4])})
        >>> [part["x"].tolist() for part in spill.between(2, 5)]
        [[0.2, 0.3]]
        """
        for part in self._parts:
            begin, end = self._find(part, low), self._find(part, high)
            if begin < end:
                yield {name: self._read(part, name, begin, end) for name in part.places}

    def __len__(self) -> int:
        return len(self._parts)

    def part(self, number: int) -> Columns:
        """All of one batch."""
        part = self._parts[number]
        return {name: self._read(part, name, 0, part.rows) for name in part.places}

    def has(self, name: str) -> bool:
        """Whether any batch has a column."""
        return any(name in part.places for part in self._parts)

    def _find(self, part: _Part, key: int) -> int:
        """Number of rows of a batch before a key."""
        if key > part.last:
            return part.rows
        post = int(np.searchsorted(part.posts, key, "left"))
        if post == 0:
            return 0
        begin, end = (post - 1) * EVERY, min(post * EVERY, part.rows)
        return begin + int(np.searchsorted(self._read(part, self.order, begin, end), key, "left"))

    def _read(self, part: _Part, name: str, begin: int, end: int) -> np.ndarray:
        place, dtype = part.places[name]
        self.stream.seek(place + begin * dtype.itemsize)
        return np.frombuffer(self.stream.read((end - begin) * dtype.itemsize), dtype)
