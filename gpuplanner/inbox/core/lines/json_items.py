"""JSON of a source, item by item: one document, several, or one a line; nothing of it is kept that is not used."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuplanner.errors import OTHER_FILE, TraceFormatError, message
from gpuplanner.inbox.core.lines.text_blocks import read_document
from gpuplanner.inbox.core.lines.text_file import TextFile

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
        raise TraceFormatError(message(str(path), "JSON", "an empty file", OTHER_FILE))
    walk = _lines if _is_lines(text) else _documents
    return file, walk(text, _Decoder(lists), file.path)


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


def _lines(text: str, decoder: _Decoder, path: Path) -> Iterator[Item]:
    del path  # a fault rejects its line
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
        raise TraceFormatError(message(str(path), "JSON of a source", got, OTHER_FILE)) from error
    except json.JSONDecodeError as error:
        where = f"{path}, line {error.lineno}, column {error.colno}"
        todo = "Was the file cut short? Write it again."
        raise TraceFormatError(message(where, "JSON", error.msg, todo)) from error
    except ValueError as error:  # a constant such as NaN, or a number of thousands of digits
        raise TraceFormatError(message(str(path), "JSON", str(error), "Write it again.")) from error


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
    reason = f"{constant}, which is no JSON"
    raise ValueError(reason)
