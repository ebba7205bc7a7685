"""Reading of delimited and JSON files to named fields and typed rows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.core.errors import REPLACE_FILE_FIX, TraceFormatError, examples
from gpuplanner.ingest.delimited_rows import (
    POSITION_COLUMNS,
    RAW_PREFIX,
    REJECT_TABLE_SCHEMA,
    FileBody,
    FileHeader,
    Record,
    RecordCollector,
    Rows,
    blank_missing_words,
    concat_rows,
    parse_fields,
    raise_fault,
    read_heading,
)
from gpuplanner.ingest.source_fields import (
    CSV_DIALECT,
    Dialect,
    Field,
    find_column_positions,
    format_as_text,
    require_readable_types,
)
from gpuplanner.ingest.text_files import (
    CONTROL_CHARACTER_PATTERN,
    MAX_TEXT_BYTES,
    FileBlocks,
    TextFile,
    read_document,
    reject_duplicate_files,
)

PROMETHEUS_LABEL_PATTERN = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|$)')
"""One label, ``name="value"``, of a sample in the Prometheus text format."""
CHARACTER_BY_LABEL_ESCAPE = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
"""Escape sequence in a label value of the Prometheus text format → character."""
PROMETHEUS_SAMPLE_PATTERN = (
    r"^\s*([a-zA-Z_:][a-zA-Z0-9_:]*)"
    r'\s*(?:\{((?:\s*[a-zA-Z_]\w*\s*=\s*"(?:[^"\\]|\\.)*"\s*,?)*\s*)\})?'
    r"\s+([^\s#]+)(?:\s+([-+0-9.eE]+))?(?:\s+#.*)?\s*$"
)
"""Metric, labels, value, time: one sample of the Prometheus text format or of OpenMetrics [1]_.

References
----------
.. [1] Prometheus, Exposition formats; OpenMetrics 1.0: the former counts milliseconds, the latter seconds.
"""


def parse_labels(text: str) -> dict[str, str] | None:
    r"""Parse the labels of one sample in the Prometheus text format, ``a="1", b="2"``; None if malformed.

    Examples
    --------
    >>> parse_labels('gpu="0", pod="x,gpu=\\"7\\""')
    {'gpu': '0', 'pod': 'x,gpu="7"'}
    >>> parse_labels("gpu=0") is None
    True
    """
    labels: dict[str, str] = {}
    position = 0
    while position < len(text.rstrip()):
        match = PROMETHEUS_LABEL_PATTERN.match(text, position)
        if match is None or match[1] in labels:
            return None
        labels[match[1]] = re.sub(r"\\[\\\"n]", lambda escape: CHARACTER_BY_LABEL_ESCAPE[escape[0]], match[2])
        position = match.end()
    return labels


def extract_series(answer: Any, location: str) -> list[Any]:  # noqa: ANN401 - anything that JSON can hold
    """Extract the list of series from a response of the Prometheus HTTP API; `location` names it in errors.

    Examples
    --------
    >>> extract_series({"status": "error", "errorType": "bad_data", "error": "parse error"}, "a.json")
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.TraceFormatError: a.json: expected an answer with data; got bad_data: parse error. ...
    """
    expected, todo = "an answer with data", "Fix the query and ask again."
    if isinstance(answer, dict) and answer.get("status") == "error":
        got = f"{answer.get('errorType')}: {str(answer.get('error'))[:300]}"
        raise TraceFormatError(location, expected, got, todo)
    data = answer.get("data") if isinstance(answer, dict) else None
    kind = data.get("resultType") if isinstance(data, dict) else None
    if kind not in ("matrix", "vector"):
        got = f"resultType {repr(kind)[:80]}"
        raise TraceFormatError(location, "an answer with a matrix or a vector", got, todo)
    if not isinstance(data.get("result"), list):  # type: ignore[union-attr]
        raise TraceFormatError(location, "an answer with series", "no list 'result'", "Save the whole answer.")
    return list(data["result"])  # type: ignore[index]


MAX_RAW_ITEM_CHARACTERS = 400
"""Characters of a faulty JSON item that the reject table keeps."""

NOT_JSON_REASON = "not JSON"
"""Reject reason of a line that is not JSON."""

_JSON_WHITESPACE_PATTERN = re.compile(r"[ \t\r\n]*")
"""Whitespace that JSON allows between its values, possibly none."""
_ItemParts = tuple[str, Any, Mapping[str, Any]]
"""Text of a JSON item, its value, and the members of the document before the list that has it."""
_ItemGenerator = Generator[_ItemParts, None, int]
"""Generator of :data:`_ItemParts` that returns the position in the text where the last item ended."""


@dataclass(frozen=True)
class JsonItem:
    """One item of a JSON file.

    - ``position``: Line number (1-based) where each line is a document of its own, else number of the item in its
      file.
    - ``value``: Decoded value; None if it is malformed.
    - ``raw``: Its first characters, for the reject table.
    - ``around``: Members before the item in the document that lists it, such as ``kind``.
    - ``fault``: Why it could not be read; empty if it could.
    """

    position: int
    value: Any
    raw: str
    around: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""


def read_items(path: str | Path, lists: Collection[str]) -> tuple[TextFile, Iterator[JsonItem]]:
    r"""Read the items of a JSON file: the members of its lists with a key of `lists`, or its documents themselves.

    Items are decoded one at a time, so that memory for the text and one item is enough.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "jobs.json"
    ...     _ = path.write_text('{"meta": {}, "jobs": [{"id": 1}, {"id": 2}]}')
    ...     [item.value for item in read_items(path, {"jobs"})[1]]
    [{'id': 1}, {'id': 2}]
    """
    file, text = read_document(path)
    if _skip_whitespace(text, 0) == len(text):
        raise TraceFormatError(str(path), "JSON", "an empty file", REPLACE_FILE_FIX)
    decoder = _JsonItemDecoder(lists)
    return file, _iterate_json_lines(text, decoder) if _is_json_lines(text) else _iterate_documents(
        text, decoder, file.path
    )


def read_item_records(
    paths: Sequence[str | Path],
    columns: Mapping[str, Field],
    parse: Callable[[Any], Iterable[Record]],
    lists: Sequence[str] = (),
) -> Rows:
    """Read the items of JSON files as rows of text fields, see :func:`read_items`.

    Parameters
    ----------
    paths : sequence of str or Path
        JSON files.
    columns : mapping of str to Field
        Fields of a record and how to read them.
    parse : callable
        Returns the records of an item; raises a ValueError with the reason of an item that has none.
    lists : sequence of str
        Keys of the lists that have the items; the first names them in messages.

    Returns
    -------
    Rows
        One row for each record; items with a fault are among the rejects.

    Raises
    ------
    TraceFormatError
        If a file has none of the lists.
    """
    records, files = RecordCollector(columns), []
    for number, path in enumerate(paths):
        file, items = read_items(path, lists)
        files.append(file)
        last_position = 0
        for item in items:
            last_position = item.position
            try:
                if item.fault:
                    raise_fault(item.fault)
                for record in parse(item.value):
                    records.add_record(number, item.position, item.raw, record)
            except ValueError as error:
                records.reject(number, item.position, item.raw, str(error))
        if lists and not last_position:
            raise TraceFormatError(str(path), f"a list of {lists[0]}", "none", REPLACE_FILE_FIX)
    return records.rows(files)


def looks_like_json(lines: Collection[str]) -> bool:
    """Whether the first lines of a file look like JSON.

    Examples
    --------
    >>> looks_like_json(['{"jobs": [']), looks_like_json(["JobID|State"])
    (True, False)
    """
    first = next((line.lstrip() for line in lines if line.strip()), "")
    return first.startswith(("{", "["))


def _is_json_lines(text: str) -> bool:
    """Whether the first line is a document of its own and not the last line."""
    start = _skip_whitespace(text, 0)
    end = text.find("\n", start)
    if end < 0 or _skip_whitespace(text, end) == len(text):
        return False
    try:
        json.loads(text[start:end])
    except (ValueError, RecursionError):
        return False
    return True


def _iterate_json_lines(text: str, decoder: _JsonItemDecoder) -> Iterator[JsonItem]:
    """Yield the items of JSON lines; a malformed line is an item with a fault."""
    start, number = 0, 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        line = text[start:end]
        start = end + 1
        number += 1
        if not line.strip():
            continue
        try:
            for raw, value, around in decoder.documents(line):
                yield JsonItem(number, value, raw, around)
        except (ValueError, RecursionError):
            yield JsonItem(number, None, line[:MAX_RAW_ITEM_CHARACTERS], fault=NOT_JSON_REASON)


def _iterate_documents(text: str, decoder: _JsonItemDecoder, path: Path) -> Iterator[JsonItem]:
    """Yield the items of one or more JSON documents; malformed JSON raises a TraceFormatError."""
    try:
        for position, (raw, value, around) in enumerate(decoder.documents(text), 1):
            yield JsonItem(position, value, raw, around)
    except RecursionError as error:
        got = "brackets nested hundreds deep"
        raise TraceFormatError(str(path), "JSON of a source", got, REPLACE_FILE_FIX) from error
    except json.JSONDecodeError as error:
        location = f"{path}, line {error.lineno}, column {error.colno}"
        todo = "Fix the file, which may be incomplete: write it again."
        raise TraceFormatError(location, "JSON", error.msg, todo) from error
    except ValueError as error:  # a constant such as NaN, or a number of thousands of digits
        raise TraceFormatError(str(path), "JSON", str(error), "Write it again.") from error


class _JsonItemDecoder:
    """Decoder that yields the items of a JSON document one by one, so that it never holds the whole document.

    It parses the outer objects itself and passes each item to the decoder of the standard library. Private methods take
    the position in the text at which a value begins (`at`), and the members before it in the objects that contain it
    (`around`); they return the position after the value.
    """

    def __init__(self, lists: Collection[str]) -> None:
        self._lists = lists
        self._decode = json.JSONDecoder(parse_constant=_reject_constant).raw_decode

    def documents(self, text: str) -> Iterator[_ItemParts]:
        """Yield the items of all documents in a text."""
        at = _skip_whitespace(text, 0)
        while at < len(text):
            at = yield from self._outer(text, at, {})
            at = _skip_whitespace(text, at)

    def _outer(self, text: str, at: int, around: Mapping[str, Any]) -> _ItemGenerator:
        """Yield the items of the object, list or single value at a position."""
        if text[at] == "{":
            return (yield from self._object(text, at, around))
        if text[at] == "[":
            return (yield from self._list(text, at, around))
        return (yield from self._item(text, at, around))

    def _object(self, text: str, at: int, outer_context: Mapping[str, Any]) -> _ItemGenerator:
        """Yield the items in the named lists of the object at a position, or the object itself if it has none."""
        start = at
        context = dict(outer_context)
        has_items = False
        members: dict[str, Any] = {}
        at = _skip_whitespace(text, at + 1)
        while not text.startswith("}", at):
            key, at = self._decode(text, at)
            if not isinstance(key, str):
                reason = "a name in quotation marks must stand here"
                raise json.JSONDecodeError(reason, text, at)
            at = _skip_whitespace(text, _skip_mark(text, _skip_whitespace(text, at), ":"))
            if key in self._lists and text.startswith(("{", "["), at):
                has_items = True
                at = yield from self._outer(text, at, dict(context))
            else:
                members[key], at = self._decode(text, at)
                context[key] = members[key]
            at = _skip_whitespace(text, at)
            if not text.startswith("}", at):
                at = _skip_whitespace(text, _skip_mark(text, at, ","))
        if not has_items:
            yield text[start : start + MAX_RAW_ITEM_CHARACTERS], members, outer_context
        return at + 1

    def _list(self, text: str, at: int, around: Mapping[str, Any]) -> _ItemGenerator:
        """Yield the items of the list at a position."""
        at = _skip_whitespace(text, at + 1)
        while not text.startswith("]", at):
            at = _skip_whitespace(text, (yield from self._item(text, at, around)))
            if not text.startswith("]", at):
                at = _skip_whitespace(text, _skip_mark(text, at, ","))
        return at + 1

    def _item(self, text: str, at: int, around: Mapping[str, Any]) -> _ItemGenerator:
        """Decode and yield the item at a position."""
        value, end = self._decode(text, at)
        yield text[at : min(end, at + MAX_RAW_ITEM_CHARACTERS)], value, around
        return end


def _skip_whitespace(text: str, at: int) -> int:
    """Return the position in a text after JSON whitespace at position `at`."""
    match = _JSON_WHITESPACE_PATTERN.match(text, at)
    return match.end() if match else at


def _skip_mark(text: str, at: int, mark: str) -> int:
    """Return the position after the character `mark`, which must be at position `at`."""
    if not text.startswith(mark, at):
        reason = f"{mark!r} must stand here"
        raise json.JSONDecodeError(reason, text, at)
    return at + 1


def _reject_constant(constant: str) -> object:
    """Reject NaN and Infinity, which are not JSON."""
    raise ValueError(f"{constant}, which is no JSON")


EMPTY_REJECT_TABLE = pl.DataFrame(schema=REJECT_TABLE_SCHEMA)
"""A table of rejected rows without any row."""


def read_rows(
    paths: Sequence[str | Path], columns: Mapping[str, Field], *, source: str, dialect: Dialect = CSV_DIALECT
) -> Rows:
    r"""Read files of one source and parse their columns to names and types.

    Parameters
    ----------
    paths : sequence of str or Path
        Files of the source.
    columns : mapping of str to Field
        Column of the source → how it is parsed.
    source : str
        Name of the source, for messages.
    dialect : Dialect
        How lines are split.

    Returns
    -------
    Rows
        Accepted and rejected rows.

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
    blocks = FileBlocks(paths, limit=MAX_TEXT_BYTES, tables=dialect.tables)
    return concat_blocks(read_row_blocks(blocks, columns, source=source, dialect=dialect), blocks)


def read_row_blocks(
    blocks: FileBlocks, columns: Mapping[str, Field], *, source: str, dialect: Dialect = CSV_DIALECT
) -> Iterator[Rows]:
    """Read files as :func:`read_rows` does, one block of lines at a time.

    Parameters
    ----------
    blocks : FileBlocks
        Files in blocks of lines.
    columns : mapping of str to Field
        Column of the source → how it is parsed.
    source : str
        Name of the source, for messages.
    dialect : Dialect
        How lines are split.
    """
    files = tuple(blocks.files)
    headings: dict[int, FileHeader] = {}

    for number, block, page in iterate_line_blocks(blocks, pl.col("raw") == "", source=source):
        if block.table is not None:
            yield parse_fields(_pick_table_columns(files, number, block.table, columns, source, dialect), columns)
            continue
        lines = page.good
        if not lines.width:
            yield page
            continue
        if number not in headings:
            headings[number] = read_heading(lines, columns, block.path, source, dialect)
            lines = lines if headings[number].header is None else lines.slice(1)
        body = FileBody(files, number, block, lines, headings[number], columns, dialect)
        rows = body.split_with_numbers() or body.split_all_quoted() or body.split_line_by_line(lines)
        yield replace(parse_fields(rows, columns), blank=page.blank)


def iterate_line_blocks(
    blocks: FileBlocks, blank: pl.Expr, *, source: str, allow_duplicates: bool = False
) -> Iterator[tuple[int, TextFile, Rows]]:
    """Yield blocks of lines of all files: number of the file, the block, and its lines without blank ones.

    A block without any line has no columns. Empty files are refused, and so are files given twice.

    Parameters
    ----------
    blocks : FileBlocks
        Files in blocks of lines.
    blank : polars.Expr
        True for blank lines, of column ``raw``.
    source : str
        Name of the source, for messages.
    allow_duplicates : bool
        Accept files with equal bytes.
    """
    if not blocks.paths:
        raise TraceFormatError(source, "at least one file", "none", "Give at least one file.")
    files = tuple(blocks.files)
    files_with_rows: set[int] = set()
    for number, block in blocks:
        if number and number - 1 not in files_with_rows:
            break
        lines = block.lines.rename({"text": "raw"}).filter(~blank)
        good = lines.with_columns(file=pl.lit(number, pl.UInt32))
        page = Rows(files, good.height, good, EMPTY_REJECT_TABLE, blank=block.lines.height - good.height)
        if good.height or block.table is not None:
            files_with_rows.add(number)
        else:
            page = replace(page, good=pl.DataFrame())
        yield number, block, page
    for number, file in enumerate(files):
        if number not in files_with_rows:
            raise TraceFormatError(str(file.path), f"rows of {source}", "an empty file", REPLACE_FILE_FIX)
    if not allow_duplicates:
        reject_duplicate_files(blocks.files, source)


def concat_blocks(row_blocks: Iterator[Rows], blocks: FileBlocks) -> Rows:
    """Concatenate the accepted and rejected rows of all blocks of some files."""
    all_blocks = list(row_blocks)
    filled_blocks = [block for block in all_blocks if block.good.width]
    return replace(concat_rows(tuple(blocks.files), filled_blocks), blank=sum(block.blank for block in all_blocks))


def _pick_table_columns(
    files: tuple[TextFile, ...],
    number: int,
    table: pl.DataFrame,
    columns: Mapping[str, Field],
    source: str,
    dialect: Dialect,
) -> Rows:
    """Pick the declared columns of a Parquet file as text; its rows are numbered like lines below a header.

    Parameters
    ----------
    files : tuple of TextFile
        All files.
    number : int
        Number of the Parquet file.
    table : polars.DataFrame
        Its content.
    columns : mapping of str to Field
        Columns that the reader declares.
    source : str
        Name of the source, for messages.
    dialect : Dialect
        Words for missing values and required columns.
    """
    path, names = files[number].path, table.columns
    positions = find_column_positions(names, columns, path, source, dialect)
    source_names = {name: names[position] for name, position in positions.items()}
    require_readable_types(table.schema, {source_names[name]: columns[name] for name in source_names}, path)
    texts = table.select(format_as_text(name, dtype) for name, dtype in table.schema.items())
    selected = [
        (pl.col(source_names[name]) if name in source_names else pl.lit(None, pl.String)).alias(RAW_PREFIX + name)
        for name in columns
    ]
    good = texts.select(
        file=pl.lit(number, pl.UInt32),
        line=pl.int_range(2, pl.len() + 2, dtype=pl.UInt32),
        raw=pl.concat_str(pl.all().fill_null(""), separator=dialect.separator),
    ).hstack(texts.select(selected))
    rows = Rows(
        files=files,
        count=table.height,
        good=blank_missing_words(good, dialect),
        rejects=EMPTY_REJECT_TABLE,
        unused=tuple(name for name in names if name not in source_names.values()),
    )
    return rows.reject({"a control character": pl.col("raw").str.contains(CONTROL_CHARACTER_PATTERN)})


def read_integer_list(path: str | Path, columns: Mapping[str, Field], list_name: str) -> pl.DataFrame:
    r"""Read a CSV file whose numbers are integers; refuse it if any row is faulty. `list_name` names it in errors.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.csv"
    ...     _ = path.write_text("gpus\n8\n")
    ...     read_integer_list(path, {"gpus": Field("gpus", "number")}, "list")["gpus"].to_list()
    [8]
    """
    numbers = {name: pl.col(field.name) for name, field in columns.items() if field.kind == "number"}
    faults = {f"{name} is not a whole number": value != value.floor() for name, value in numbers.items()}
    rows = read_rows([path], columns, source=list_name).reject(faults)
    good = require_faultless(rows, str(path), f"a {list_name} without faults").good
    return good.drop(POSITION_COLUMNS).with_columns(value.cast(pl.Int64) for value in numbers.values())


def require_faultless(rows: Rows, location: str, expected: str) -> Rows:
    """Return the rows of a list, or raise an error that names its rejected rows."""
    faults = [f"line {line}: {reason}" for line, reason in rows.rejects["row", "reason"].iter_rows()]
    if faults or rows.good.is_empty():
        faults_text = f"{len(faults)} faulty row{'s' * (len(faults) > 1)}: {examples(faults)}"
        got = faults_text if faults else "no rows below the header"
        raise TraceFormatError(location, expected, got, f"Fix these rows of {location}.")
    return rows
