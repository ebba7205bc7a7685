"""Shared way in: files → numbered lines → named fields → typed values, and a reject for every other row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.errors import OTHER_FILE, TraceFormatError, examples, message
from gpuplanner.inbox.core.lines.reject_columns import REJECTS
from gpuplanner.inbox.core.lines.cutting import Body, Heading, heading_of, without_words
from gpuplanner.inbox.core.lines.fields import CSV, Dialect, Field, column_places
from gpuplanner.inbox.core.lines.parquet_text import as_text, require_types
from gpuplanner.inbox.core.lines.rows import PLACE, RAW, Rows, together, typed
from gpuplanner.inbox.core.lines.text_blocks import FileBlocks, refuse_twins
from gpuplanner.inbox.core.lines.text_file import CONTROL_PATTERN, MAX_BYTES, TextFile

NONE = pl.DataFrame(schema=REJECTS)


def read_rows(
    paths: Sequence[str | Path], columns: Mapping[str, Field], *, source: str, dialect: Dialect = CSV
) -> Rows:
    r"""Read files of one source and give their columns names and types.

    Examples
    --------
    >>> import tempfile
    >>> columns = {"num_gpu": Field("gpus", "number")}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.csv"
    ...     _ = path.write_text("num_gpu\n8\neight\n")
    ...     rows = read_rows([path], columns, source="example")
    >>> rows.good["gpus"].to_list(), rows.rejects["row", "reason"].rows()
    ([8.0], [(3, 'num_gpu: not a number')])
    """
    blocks = FileBlocks(paths, limit=MAX_BYTES, tables=dialect.tables)
    return all_of(read_row_blocks(blocks, columns, source=source, dialect=dialect), blocks)


def read_row_blocks(
    blocks: FileBlocks, columns: Mapping[str, Field], *, source: str, dialect: Dialect = CSV
) -> Iterator[Rows]:
    """Do what :func:`read_rows` does, of a block of lines at a time."""
    files = tuple(blocks.files)
    headings: dict[int, Heading] = {}

    def cut(number: int, block: TextFile, page: Rows) -> Rows:
        if block.table is not None:
            return typed(_picked(files, number, block.table, columns, source, dialect), columns)
        lines = page.good
        if number not in headings:
            headings[number] = heading_of(lines, columns, block.path, source, dialect)
            lines = lines if headings[number].header is None else lines.slice(1)
        body = Body(files, number, block, lines, headings[number], columns, dialect)
        return replace(typed(body.cut(), columns), blank=page.blank)

    return in_blocks(blocks, cut, pl.col("raw") == "", source=source)


def in_blocks(
    blocks: FileBlocks,
    cut: Callable[[int, TextFile, Rows], Rows],
    blank: pl.Expr,
    *,
    source: str,
    twins: bool = False,
) -> Iterator[Rows]:
    """Rows of files, block by block: `cut` makes them of the number of a file, a block of it and its lines.

    No file may be empty, and none may come twice unless `twins` are fine.
    """
    if not blocks.paths:
        raise TraceFormatError(message(source, "at least one file", "none", "Give the path of a file."))
    files = tuple(blocks.files)
    begun: set[int] = set()
    for number, block in blocks:
        if number and number - 1 not in begun:
            break
        lines = block.lines.rename({"text": "raw"}).filter(~blank)
        good = lines.with_columns(file=pl.lit(number, pl.UInt32))
        page = Rows(files, good.height, good, NONE, blank=block.lines.height - good.height)
        if good.height or block.table is not None:
            begun.add(number)
            yield cut(number, block, page)
        else:
            yield replace(page, good=pl.DataFrame())
    for number, file in enumerate(files):
        if number not in begun:
            what = message(str(file.path), f"rows of {source}", "an empty file", OTHER_FILE)
            raise TraceFormatError(what)
    if not twins:
        refuse_twins(blocks.files, source)


def all_of(parts: Iterator[Rows], blocks: FileBlocks) -> Rows:
    """Rows of all blocks as one."""
    found = list(parts)
    filled = [part for part in found if part.good.width]
    return replace(together(tuple(blocks.files), filled), blank=sum(part.blank for part in found))


def _picked(
    files: tuple[TextFile, ...],
    number: int,
    table: pl.DataFrame,
    columns: Mapping[str, Field],
    source: str,
    dialect: Dialect,
) -> Rows:
    """Pick the columns of a Parquet file, as text; its rows are numbered as lines below a header are."""
    path, names = files[number].path, table.columns
    places = {
        name: names[place] for name, place in column_places(names, columns, path, source, dialect).items()
    }
    require_types(table.schema, {places[name]: columns[name] for name in places}, path)
    texts = table.select(as_text(name, dtype) for name, dtype in table.schema.items())
    found = [
        (pl.col(places[name]) if name in places else pl.lit(None, pl.String)).alias(RAW + name)
        for name in columns
    ]
    good = texts.select(
        file=pl.lit(number, pl.UInt32),
        line=pl.int_range(2, pl.len() + 2, dtype=pl.UInt32),
        raw=pl.concat_str(pl.all().fill_null(""), separator=dialect.separator),
    ).hstack(texts.select(found))
    rows = Rows(
        files=files,
        count=table.height,
        good=without_words(good, dialect),
        rejects=NONE,
        unused=tuple(name for name in names if name not in places.values()),
    )
    return rows.reject({"a control character": pl.col("raw").str.contains(CONTROL_PATTERN)})


def read_faultless(path: str | Path, columns: Mapping[str, Field], what: str) -> pl.DataFrame:
    r"""Read a CSV list whose numbers are whole, or refuse it.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.csv"
    ...     _ = path.write_text("gpus\n8\n")
    ...     read_faultless(path, {"gpus": Field("gpus", "number")}, "list")["gpus"].to_list()
    [8]
    """
    numbers = {name: pl.col(field.name) for name, field in columns.items() if field.kind == "number"}
    rows = read_rows([path], columns, source=what).reject(
        {f"{name} is not a whole number": value != value.floor() for name, value in numbers.items()}
    )
    good = faultless(rows, str(path), f"a {what} without faults").good
    return good.drop(PLACE).with_columns(value.cast(pl.Int64) for value in numbers.values())


def faultless(rows: Rows, where: str, expected: str) -> Rows:
    """Rows of a list of which none may be rejected; an error names those that were."""
    faults = [f"line {line}: {reason}" for line, reason in rows.rejects["row", "reason"].iter_rows()]
    if faults or rows.good.is_empty():
        some = f"{len(faults)} faulty row{'s' * (len(faults) > 1)}: {examples(faults)}"
        got = some if faults else "no rows below the header"
        raise TraceFormatError(message(where, expected, got, "Mend the list."))
    return rows
