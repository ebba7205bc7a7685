"""Files to named fields and typed rows, delimited or JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.core.errors import OTHER_FILE, TraceFormatError, examples
from gpuplanner.ingest.delimited_rows import (
    PLACE,
    RAW,
    REJECTS,
    Body,
    Heading,
    Rows,
    heading_of,
    together,
    typed,
    without_words,
)
from gpuplanner.ingest.source_fields import CSV, Dialect, Field, as_text, column_places, require_types
from gpuplanner.ingest.text_files import (
    CONTROL_PATTERN,
    MAX_BYTES,
    FileBlocks,
    TextFile,
    read_document,
    refuse_twins,
)

LABEL = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|$)')
ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
SAMPLE = (
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
    r"""Labels of one sample, ``a="1", b="2"``; None if they cannot be read.

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
        match = LABEL.match(text, position)
        if match is None or match[1] in labels:
            return None
        labels[match[1]] = re.sub(r"\\[\\\"n]", lambda found: ESCAPES[found[0]], match[2])
        position = match.end()
    return labels


def series_of_answer(answer: Any, where: str) -> list[Any]:  # noqa: ANN401 - anything that JSON can hold
    """Series of an answer of the HTTP API.

    Examples
    --------
    >>> series_of_answer({"status": "error", "errorType": "bad_data", "error": "parse error"}, "a.json")
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.TraceFormatError: a.json: expected an answer with data; got bad_data: parse error. ...
    """
    expected, todo = "an answer with data", "Fix the query and ask again."
    if isinstance(answer, dict) and answer.get("status") == "error":
        got = f"{answer.get('errorType')}: {str(answer.get('error'))[:300]}"
        raise TraceFormatError(where, expected, got, todo)
    data = answer.get("data") if isinstance(answer, dict) else None
    kind = data.get("resultType") if isinstance(data, dict) else None
    if kind not in ("matrix", "vector"):
        got = f"resultType {repr(kind)[:80]}"
        raise TraceFormatError(where, "an answer with a matrix or a vector", got, todo)
    if not isinstance(data.get("result"), list):  # type: ignore[union-attr]
        raise TraceFormatError(where, "an answer with series", "no list 'result'", "Save the whole answer.")
    return list(data["result"])  # type: ignore[index]


MAX_RAW = 400
"""Characters of a faulty item that the reject table keeps."""

BROKEN = "not JSON"

_SPACE = re.compile(r"[ \t\r\n]*")
_Found = tuple[str, Any, Mapping[str, Any]]
_Walk = Generator[_Found, None, int]
"""Yields items (text, value, what stood before) and returns where the walk ended."""


@dataclass(frozen=True)
class Item:
    """One item of a file.

    - ``place``: Number of the line (1-based) where each line is a document of its own, else of the item in its file.
    - ``value``: What stands there; None if it is broken.
    - ``raw``: Its first characters, for the reject table.
    - ``around``: What stood before the item in the document that lists it, such as ``kind``.
    - ``fault``: Why it could not be read; empty if it could.
    """

    place: int
    value: Any
    raw: str
    around: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""


def read_items(path: str | Path, lists: Collection[str]) -> tuple[TextFile, Iterator[Item]]:
    r"""Read the items of a JSON file: those of its lists, or its documents themselves.

    Items are decoded one at a time, so that the memory needed is that of the text and of one item.

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
    if _after_space(text, 0) == len(text):
        raise TraceFormatError(str(path), "JSON", "an empty file", OTHER_FILE)
    decoder = _Decoder(lists)
    return file, _lines(text, decoder) if _is_lines(text) else _documents(text, decoder, file.path)


def is_json(lines: Collection[str]) -> bool:
    """True if the first lines of a file look like JSON.

    Examples
    --------
    >>> is_json(['{"jobs": [']), is_json(["JobID|State"])
    (True, False)
    """
    first = next((line.lstrip() for line in lines if line.strip()), "")
    return first.startswith(("{", "["))


def _is_lines(text: str) -> bool:
    """True if the first line is a document by itself and is not the last."""
    start = _after_space(text, 0)
    end = text.find("\n", start)
    if end < 0 or _after_space(text, end) == len(text):
        return False
    try:
        json.loads(text[start:end])
    except (ValueError, RecursionError):
        return False
    return True


def _lines(text: str, decoder: _Decoder) -> Iterator[Item]:
    start, number = 0, 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        line, start, number = text[start:end], end + 1, number + 1
        if not line.strip():
            continue
        try:
            for raw, value, around in decoder.documents(line):
                yield Item(number, value, raw, around)
        except (ValueError, RecursionError):
            yield Item(number, None, line[:MAX_RAW], fault=BROKEN)


def _documents(text: str, decoder: _Decoder, path: Path) -> Iterator[Item]:
    try:
        for place, (raw, value, around) in enumerate(decoder.documents(text), 1):
            yield Item(place, value, raw, around)
    except RecursionError as error:
        got = "brackets nested hundreds deep"
        raise TraceFormatError(str(path), "JSON of a source", got, OTHER_FILE) from error
    except json.JSONDecodeError as error:
        where = f"{path}, line {error.lineno}, column {error.colno}"
        todo = "Fix the file, which may be incomplete: write it again."
        raise TraceFormatError(where, "JSON", error.msg, todo) from error
    except ValueError as error:  # a constant such as NaN, or a number of thousands of digits
        raise TraceFormatError(str(path), "JSON", str(error), "Write it again.") from error


class _Decoder:
    """Walks the outer objects by hand, and hands each item to the decoder of the standard library."""

    def __init__(self, lists: Collection[str]) -> None:
        self._lists = lists
        self._decode = json.JSONDecoder(parse_constant=_refuse).raw_decode

    def documents(self, text: str) -> Iterator[_Found]:
        at = _after_space(text, 0)
        while at < len(text):
            at = yield from self._outer(text, at, {})
            at = _after_space(text, at)

    def _outer(self, text: str, at: int, around: Mapping[str, Any]) -> _Walk:
        if text[at] == "{":
            return (yield from self._object(text, at, around))
        if text[at] == "[":
            return (yield from self._list(text, at, around))
        return (yield from self._item(text, at, around))

    def _object(self, text: str, at: int, around: Mapping[str, Any]) -> _Walk:
        """An object: its items if it lists some, else itself."""
        start, own, listed = at, dict(around), False
        members: dict[str, Any] = {}
        at = _after_space(text, at + 1)
        while not text.startswith("}", at):
            key, at = self._decode(text, at)
            if not isinstance(key, str):
                reason = "a name in quotation marks must stand here"
                raise json.JSONDecodeError(reason, text, at)
            at = _after_space(text, _expect(text, _after_space(text, at), ":"))
            if key in self._lists and text.startswith(("{", "["), at):
                listed = True
                at = yield from self._outer(text, at, dict(own))
            else:
                members[key], at = self._decode(text, at)
                own[key] = members[key]
            at = _after_space(text, at)
            if not text.startswith("}", at):
                at = _after_space(text, _expect(text, at, ","))
        if not listed:
            yield text[start : start + MAX_RAW], members, around
        return at + 1

    def _list(self, text: str, at: int, around: Mapping[str, Any]) -> _Walk:
        at = _after_space(text, at + 1)
        while not text.startswith("]", at):
            at = _after_space(text, (yield from self._item(text, at, around)))
            if not text.startswith("]", at):
                at = _after_space(text, _expect(text, at, ","))
        return at + 1

    def _item(self, text: str, at: int, around: Mapping[str, Any]) -> _Walk:
        value, end = self._decode(text, at)
        yield text[at : min(end, at + MAX_RAW)], value, around
        return end


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _expect(text: str, at: int, mark: str) -> int:
    if not text.startswith(mark, at):
        reason = f"{mark!r} must stand here"
        raise json.JSONDecodeError(reason, text, at)
    return at + 1


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant}, which is no JSON")


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

    for number, block, page in in_blocks(blocks, pl.col("raw") == "", source=source):
        if block.table is not None:
            yield typed(_picked(files, number, block.table, columns, source, dialect), columns)
            continue
        lines = page.good
        if not lines.width:
            yield page
            continue
        if number not in headings:
            headings[number] = heading_of(lines, columns, block.path, source, dialect)
            lines = lines if headings[number].header is None else lines.slice(1)
        body = Body(files, number, block, lines, headings[number], columns, dialect)
        rows = body.at_once() or body.quoted() or body.one_by_one(lines)
        yield replace(typed(rows, columns), blank=page.blank)


def in_blocks(
    blocks: FileBlocks, blank: pl.Expr, *, source: str, twins: bool = False
) -> Iterator[tuple[int, TextFile, Rows]]:
    """Number of a file, a block of it, and its lines but for blank ones; a block without any has no columns.

    No file may be empty, and none may come twice unless `twins` are fine.
    """
    if not blocks.paths:
        raise TraceFormatError(source, "at least one file", "none", "Give at least one file.")
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
        else:
            page = replace(page, good=pl.DataFrame())
        yield number, block, page
    for number, file in enumerate(files):
        if number not in begun:
            raise TraceFormatError(str(file.path), f"rows of {source}", "an empty file", OTHER_FILE)
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
    found_at = column_places(names, columns, path, source, dialect)
    places = {name: names[place] for name, place in found_at.items()}
    require_types(table.schema, {places[name]: columns[name] for name in places}, path)
    texts = table.select(as_text(name, dtype) for name, dtype in table.schema.items())
    found = [
        (pl.col(places[name]) if name in places else pl.lit(None, pl.String)).alias(RAW + name) for name in columns
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
    faults = {f"{name} is not a whole number": value != value.floor() for name, value in numbers.items()}
    rows = read_rows([path], columns, source=what).reject(faults)
    good = faultless(rows, str(path), f"a {what} without faults").good
    return good.drop(PLACE).with_columns(value.cast(pl.Int64) for value in numbers.values())


def faultless(rows: Rows, where: str, expected: str) -> Rows:
    """Rows of a list of which none may be rejected; an error names those that were."""
    faults = [f"line {line}: {reason}" for line, reason in rows.rejects["row", "reason"].iter_rows()]
    if faults or rows.good.is_empty():
        some = f"{len(faults)} faulty row{'s' * (len(faults) > 1)}: {examples(faults)}"
        got = some if faults else "no rows below the header"
        raise TraceFormatError(where, expected, got, f"Fix these rows of {where}.")
    return rows
