"""Files of telemetry to rows, and the same last step for all: numbered, counted, none of them lost."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.errors import TraceFormatError, file_name, message
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.lines.reading import all_of, in_blocks
from gpuplanner.inbox.core.lines.rows import CONTROL, Rows
from gpuplanner.inbox.core.lines.text_blocks import WHOLE, FileBlocks
from gpuplanner.inbox.core.lines.text_file import CONTROL_PATTERN, MAX_BYTES, TextFile
from gpuplanner.inbox.core.source import Sniff, looks, matches
from gpuplanner.inbox.core.times import INSTANT, known_origin, seconds

Parse = Callable[[Rows], Rows]
"""Turns the lines of one file (``file``, ``line``, ``raw``) into rows with more columns."""

NO_TIME = "Give the instant of the first row as origin, for example 2026-01-31T12:00:00Z."


@dataclass(frozen=True)
class Hints:
    """What a file of telemetry may leave out, stated by who asks for it to be read.

    Attributes
    ----------
    tz : str, optional
        Zone of times without an offset.
    origin : datetime or str, optional
        Instant of the first row, for files without times.
    interval_s : float, optional
        Seconds between samples, for files without times.
    node : str, optional
        Node of files that do not name it; otherwise the file name up to its first dot.
    gpu : int, optional
        Number of the one GPU of files that do not say which.
    columns : tuple of str
        Fields of a file without a header, as they were asked for.
    query : str, optional
        Query that an answer of Prometheus is to.
    """

    tz: str | None = None
    origin: datetime | str | None = None
    interval_s: float | None = None
    node: str | None = None
    gpu: int | None = None
    columns: tuple[str, ...] = ()
    query: str | None = None

    def __post_init__(self) -> None:
        if self.interval_s is not None and not 0 < self.interval_s < 86400:
            text = message(
                "interval_s", "seconds between 0 and a day", f"{self.interval_s!r}", "Give a plain number."
            )
            raise TraceFormatError(text)
        if self.gpu is not None and self.gpu < 0:
            raise TraceFormatError(message("gpu", "a number from 0", f"{self.gpu}", "Count GPUs from 0."))

    def node_of(self, path: Path) -> str:
        """Node of a file that does not name it.

        Examples
        --------
        >>> Hints().node_of(Path("n07.dmon.txt"))
        'n07'
        """
        return self.node or file_name(path).split(".")[0]

    def nth_instant(self, number: pl.Expr, where: str, default_s: float | None = None) -> pl.Expr:
        """Instants of samples that carry no time, by their 0-based number.

        Raises
        ------
        TraceFormatError
            If the origin is not stated, or the interval is neither stated nor known.
        """
        if self.origin is None:
            raise TraceFormatError(message(where, "times in the file, or an origin", "neither", NO_TIME))
        step = default_s if self.interval_s is None else self.interval_s
        if step is None:
            todo = "Give interval_s, as it was set when the file was made."
            raise TraceFormatError(message(where, "times in the file, or an interval", "neither", todo))
        return pl.lit(known_origin(self.origin), INSTANT) + seconds(number * step)


def reads(sniff: Sniff) -> Callable[[Callable[..., Dataset]], Callable[..., Dataset]]:
    """Say of a reader of telemetry how its files look; it then takes :class:`Hints` as such or one by one."""

    def marked(reader: Callable[..., Dataset]) -> Callable[..., Dataset]:
        @looks(sniff)
        @functools.wraps(reader)
        def read(
            paths: Sequence[str | Path],
            hints: Hints | None = None,
            way: object = None,
            **given: Any,  # noqa: ANN401 - fields of Hints
        ) -> Dataset:
            return reader(paths, hints or Hints(**given), *([] if way is None else [way]))

        return read

    return marked


def header_begins(*columns: str) -> Sniff:
    """A test for files whose first line names the columns."""
    ahead = "".join(rf'(?=(?:.*[,"\s])?{re.escape(column)}[",\s])' for column in columns)
    return matches(rf"\A{ahead}")


def read_pages(paths: Sequence[str | Path], parse: Parse, *, source: str, twins: bool = False) -> Rows:
    """Read files and let each be parsed whole."""
    blocks = FileBlocks(paths, WHOLE, MAX_BYTES)
    pages = read_page_blocks(blocks, lambda page, _: parse(page), source=source, twins=twins)
    return all_of(pages, blocks)


def read_page_blocks(
    blocks: FileBlocks,
    parse: Callable[[Rows, str | None], Rows],
    *,
    source: str,
    twins: bool = False,
) -> Iterator[Rows]:
    """Read files block by block; each but the first of a file is parsed with the first line of its file."""
    firsts: dict[int, str] = {}

    def cut(number: int, block: TextFile, page: Rows) -> Rows:
        first = str(page.good["raw"][0])
        page = parse(page, firsts.get(number))
        firsts.setdefault(number, first)
        return (
            page.reject({CONTROL: pl.col("raw").str.contains(CONTROL_PATTERN)})
            if block.has_controls
            else page
        )

    return in_blocks(blocks, cut, pl.col("raw").str.strip_chars() == "", source=source, twins=twins)


def path_of(page: Rows) -> Path:
    """Path of the one file that a page comes from."""
    return page.files[int(page.good["file"][0])].path


def data_only(page: Rows, is_data: pl.Expr) -> Rows:
    """Leave out lines that are no rows: comments and headers. They are not counted."""
    data = page.good.filter(is_data)
    return replace(page, good=data, count=page.count - (page.good.height - data.height))
