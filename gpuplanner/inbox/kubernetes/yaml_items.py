"""YAML of ``kubectl get -o yaml``, object by object: one list, several documents, or both; plain data only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.inbox.core.lines.json_items import Item, read_items
from gpuplanner.inbox.core.lines.text_blocks import read_document
from gpuplanner.inbox.core.lines.text_file import TextFile, head
from gpuplanner.inbox.kubernetes.objects import is_kubernetes_yaml

MAX_DEPTH = 64
"""Objects inside one another; those of Kubernetes stay below 30."""

MAX_RAW = 80
"""Characters of a faulty object that the reject table keeps."""

LISTS = ("items",)
TWICE = "the same key twice"

_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where libyaml is there
_INTEGER = re.compile(r"[-+]?\d{1,30}")
_NUMBER = re.compile(r"[-+]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][-+]?\d{1,3})?")
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}


def kind_of(item: Item) -> str:
    """Kind of an object: its own, or that of the list it stands in."""
    own = item.value.get("kind") if isinstance(item.value, dict) else None
    return str(own or str(item.around.get("kind") or "").removesuffix("List"))


def read_objects(path: str | Path) -> tuple[TextFile, Iterator[Item]]:
    r"""Objects of a dump of Kubernetes, JSON or YAML: those of its lists, or its documents themselves.

    YAML gives the same values as JSON: a plain word is a number, true, false or null, or else text, also where it
    looks like a time. Items are put together one at a time.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "pods.yaml"
    ...     _ = path.write_text("items:\n- kind: Pod\n  at: 2025-09-01T08:00:00Z\n- {kind: Node, gpus: 8}\n")
    ...     [item.value for item in read_objects(path)[1]]
    [{'kind': 'Pod', 'at': '2025-09-01T08:00:00Z'}, {'kind': 'Node', 'gpus': 8}]
    """
    if not is_kubernetes_yaml(head(path)):
        return read_items(path, LISTS)
    file, text = read_document(path)
    return file, _items(text, file.path)


def _items(text: str, path: Path) -> Iterator[Item]:
    walk = _Walk(text)
    try:
        for place, (start, value, around, fault) in enumerate(walk.documents(), 1):
            raw = text[start : start + MAX_RAW].partition("\n")[0]
            yield Item(place, None if fault else value, raw, around, fault)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}, column {mark.column + 1}" if mark else str(path)
        fault = str(getattr(error, "problem", None) or "a character that YAML does not allow")
        todo = "Was the file cut short? Write it again with kubectl get -o yaml."
        raise TraceFormatError(message(where, "YAML of plain data", fault, todo)) from error
    finally:
        walk.close()


_Event = Any
"""An event of PyYAML, of either parser."""

_Found = tuple[int, Any, dict[str, Any], str]
"""Where an item begins in the text, its value, what stood before it in its document, and its fault."""


class _Walk:
    """Follows the events of a YAML parser, and puts together one item after the other."""

    def __init__(self, text: str) -> None:
        self._parser = _PARSER(text)
        self._fault = ""

    def close(self) -> None:
        self._parser.dispose()

    def documents(self) -> Iterator[_Found]:
        while not isinstance(event := self._next(), yaml.StreamEndEvent):
            if isinstance(event, yaml.SequenceStartEvent):
                yield from self._list({})
            elif isinstance(event, yaml.MappingStartEvent):
                yield from self._object(event)
            elif isinstance(event, yaml.ScalarEvent) and (value := _plain(event)) is not None:
                yield _mark(event).index, value, {}, ""

    def _object(self, start: _Event) -> Iterator[_Found]:
        """An object at the top: its items if it lists some, else itself."""
        own: dict[str, Any] = {}
        self._fault, listed = "", False
        for key, event in self._members(own):
            if key in LISTS and isinstance(event, yaml.SequenceStartEvent):
                listed = True
                yield from self._list(dict(own))
            else:
                own[key] = self._value(event, 1)
        if not listed:
            yield _mark(start).index, own, {}, self._fault

    def _list(self, around: dict[str, Any]) -> Iterator[_Found]:
        for event in iter(self._next, None):
            self._fault = ""
            value = self._value(event, 1)
            yield _mark(event).index, value, around, self._fault

    def _value(self, event: _Event, depth: int) -> Any:  # noqa: ANN401 - anything that JSON can hold
        if isinstance(event, yaml.ScalarEvent):
            return _plain(event)
        if depth > MAX_DEPTH:
            raise _fault(event, f"objects nested more than {MAX_DEPTH} deep")
        if isinstance(event, yaml.SequenceStartEvent):
            return [self._value(event, depth + 1) for event in iter(self._next, None)]
        found: dict[str, Any] = {}
        for key, event in self._members(found):
            found[key] = self._value(event, depth + 1)
        return found

    def _members(self, found: Mapping[str, Any]) -> Iterator[tuple[str, _Event]]:
        """Keys of an object, each with the event at which its value begins; `found` are those before."""
        for event in iter(self._next, None):
            if not isinstance(event, yaml.ScalarEvent):
                raise _fault(event, "a key that is no word")
            if event.value in found:
                self._fault = f"line {_mark(event).line + 1}: {TWICE}"
            yield str(event.value), self._next()

    def _next(self) -> _Event | None:
        """The next event; None at the end of a list or object."""
        event = self._parser.get_event()
        if isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
            return None
        if isinstance(event, yaml.AliasEvent):
            raise _fault(event, "an alias (*)")
        if getattr(event, "tag", None) is not None:
            raise _fault(event, "a tag (!)")
        return event


def _mark(event: _Event) -> Any:  # noqa: ANN401 - of either parser
    """Where an event begins: index in the text, line and column from 0."""
    return event.start_mark


def _fault(event: _Event, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=_mark(event))


def _plain(event: _Event) -> str | float | bool | None:
    """Value of a scalar; what stands in quotation marks, or in a block, is text."""
    text = str(event.value)
    if event.style not in (None, ""):
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text
