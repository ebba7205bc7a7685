"""Shared way in: files → numbered lines → named fields → typed values, and a reject for every other row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.errors import TraceFormatError, examples, message
from gpuplanner.inbox.core.dataset import REJECTS
from gpuplanner.inbox.core.lines.cutting import Body, Heading, heading_of, without_words
from gpuplanner.inbox.core.lines.fields import CSV, Dialect, Field, column_places
from gpuplanner.inbox.core.lines.parquet_text import as_text, require_types
from gpuplanner.inbox.core.lines.rows import PLACE, RAW, Rows, together, typed
from gpuplanner.inbox.core.lines.text_blocks import FileBlocks, refuse_twins, require_begun
from gpuplanner.inbox.core.lines.text_file import CONTROL_PATTERN, TextFile, read_text_file


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
    if not paths:
        raise TraceFormatError(message(source, "at least one file", "none", "Give the path of a file."))
    files = tuple(read_text_file(path, tables=dialect.tables) for path in paths)
    refuse_twins(files, source)
    parts = [
        _cut(files, number, columns, source, dialect)
        if file.table is None
        else _picked(files, number, file.table, columns, source, dialect)
        for number, file in enumerate(files)
    ]
    return typed(together(files, parts), columns)


def read_row_blocks(
    blocks: FileBlocks, columns: Mapping[str, Field], *, source: str, dialect: Dialect = CSV
) -> Iterator[Rows]:
    """Do what :func:`read_rows` does, of a block of lines at a time; Parquet is not read."""
    if not blocks.paths:
        raise TraceFormatError(message(source, "at least one file", "none", "Give the path of a file."))
    files = tuple(blocks.files)
    heading: Heading | None = None
    current = 0
    for number, block in blocks:
        if number != current:
            require_begun(heading is not None, files[current].path, source)
            heading, current = None, number
        body = block.lines.rename({"text": "raw"}).filter(pl.col("raw") != "")
        blank = block.lines.height - body.height
        if heading is None and body.height:
            heading = heading_of(body, columns, block.path, source, dialect)
            body = body if heading.header is None else body.slice(1)
        if heading is None:
            yield Rows(files, 0, pl.DataFrame(), pl.DataFrame(schema=REJECTS), blank=blank)
        else:
            rows = Body(files, number, block, body, heading, columns, dialect).cut()
            yield typed(replace(rows, blank=blank), columns)
    require_begun(heading is not None, files[current].path, source)
    refuse_twins(blocks.files, source)


def _cut(
    files: tuple[TextFile, ...], number: int, columns: Mapping[str, Field], source: str, dialect: Dialect
) -> Rows:
    """Cut the lines of one file into raw fields; ragged and unreadable lines are rejected."""
    file = files[number]
    body = file.lines.rename({"text": "raw"}).filter(pl.col("raw") != "")
    blank = file.lines.height - body.height
    require_begun(body.height, file.path, source)
    heading = heading_of(body, columns, file.path, source, dialect)
    body = body if heading.header is None else body.slice(1)
    return replace(Body(files, number, file, body, heading, columns, dialect).cut(), blank=blank)


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
        rejects=pl.DataFrame(schema=REJECTS),
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
    faults = [f"line {line}: {reason}" for line, reason in rows.rejects["row", "reason"].iter_rows()]
    if faults or rows.good.is_empty():
        got = (
            f"{len(faults)} faulty row{'s' * (len(faults) > 1)}: {examples(faults)}"
            if faults
            else "no rows below the header"
        )
        raise TraceFormatError(message(str(path), f"a {what} without faults", got, "Mend the list."))
    return rows.good.drop(PLACE).with_columns(value.cast(pl.Int64) for value in numbers.values())
