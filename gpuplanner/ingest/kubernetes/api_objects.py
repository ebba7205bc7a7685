"""Kubernetes API objects from JSON and YAML."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from fnmatch import fnmatchcase
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.core.schemas import MAX_GPUS_PER_JOB
from gpuplanner.hardware.catalog import resource_words, sharing_systems
from gpuplanner.ingest.delimited_rows import refuse
from gpuplanner.ingest.row_reader import Item, is_json, read_items
from gpuplanner.ingest.source_fields import FIRST_INSTANT, LAST_INSTANT
from gpuplanner.ingest.text_files import TextFile, head, read_document

Object = Mapping[str, Any]
"""One object of the API, or a part of it."""

SUFFIXES = {
    **{unit: Decimal(10) ** power for unit, power in zip("num", (-9, -6, -3), strict=True)},
    **{unit: Decimal(1000) ** power for power, unit in enumerate(["", "k", "M", "G", "T", "P", "E"])},
    **{unit: Decimal(1024) ** power for power, unit in enumerate(["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"], 1)},
}
QUANTITY = re.compile(r"([+-]?\d{1,30}(?:\.\d{0,30})?(?:[eE][+-]?\d{1,2})?)([a-zA-Z]{0,2})")
MIG_RESOURCE = re.compile(r"mig-(\d+g\.\d+gb)(?:[.+](me(?:\.all)?)|(-me))?")
PARTITION_RESOURCE = re.compile(r"amd\.com/([a-z]px)_nps\d+")
"""Resources of the AMD device plugin under the naming strategy ``mixed``: compute and memory partition mode."""
SHARED = ".shared"
GPU_LIKE = re.compile(r"gpu|gaudi|npu|mlu|tpu|accelerator|/mig-|^nvidia\.com/|^amd\.com/", re.IGNORECASE)
"""Names of extended resources that may stand for GPUs."""
MAX_MEMORY_MIB = 10_000_000
"""More than any board has, and less than bytes that were taken for MiB."""


_JSON_KEY = re.compile(r'"(?:apiVersion|kind)"\s*:\s*"')
_YAML_KEY = re.compile(r"^(?:- )?(?:apiVersion|kind):[ \t]+\S", re.MULTILINE)


def looks_like_kubernetes(lines: Sequence[str]) -> bool:
    """True if the first lines of a file look like objects of Kubernetes.

    Examples
    --------
    >>> looks_like_kubernetes(['{"apiVersion": "v1", "items": [']), looks_like_kubernetes(["kind: List"])
    (True, True)
    """
    return _JSON_KEY.search("\n".join(lines)) is not None if is_json(lines) else is_kubernetes_yaml(lines)


def is_kubernetes_yaml(lines: Sequence[str]) -> bool:
    """True if the first lines of a file look like objects of Kubernetes in YAML.

    Examples
    --------
    >>> is_kubernetes_yaml(["apiVersion: v1", "items:"]), is_kubernetes_yaml(["a,kind: x"])
    (True, False)
    """
    return _YAML_KEY.search("\n".join(lines)) is not None


@dataclass(frozen=True)
class GpuResource:
    """An extended resource that stands for GPUs.

    - ``plain``: Its name without the suffix of shared replicas.
    - ``profile``: MIG profile, with the plus sign that resource names cannot have; None for whole GPUs.
    - ``shared``: Its units are replicas of a GPU or instance that others use too.
    - ``mode``: Compute partition mode of the AMD GPUs that its units are devices of.
    """

    plain: str
    profile: str | None
    shared: bool
    mode: str | None = None


@functools.lru_cache(maxsize=4096)
def gpu_resource(name: str) -> GpuResource | None:
    """Say what an extended resource is; None if it is no GPU.

    Examples
    --------
    >>> gpu_resource("nvidia.com/mig-1g.10gb.me").profile, gpu_resource("nvidia.com/gpu.shared").shared
    ('1g.10gb+me', True)
    >>> gpu_resource("amd.com/cpx_nps4").mode, gpu_resource("cpu")
    ('CPX', None)
    """
    plain = name.removesuffix(SHARED)
    vendor, _, kind = plain.partition("/")
    if plain in resource_words("resource", "full_gpu"):
        return GpuResource(plain, None, plain != name)
    if partition := PARTITION_RESOURCE.fullmatch(name):
        return GpuResource(name, None, False, partition[1].upper())
    match = MIG_RESOURCE.fullmatch(kind) if vendor == "nvidia.com" else None
    if match is None:
        return None
    extra = f"+{match[2]}" if match[2] else match[3] or ""
    return GpuResource(plain, match[1] + extra, plain != name)


@functools.lru_cache(maxsize=4096)
def unread_kind(name: str) -> str | None:
    """Say what an extended resource is that is not read: ``accelerator``, ``gpu`` where it may be one, or None.

    Examples
    --------
    >>> unread_kind("habana.ai/gaudi"), unread_kind("nvidia.com/NVIDIA_A10-12Q"), unread_kind("vpc.amazonaws.com/efa")
    ('accelerator', 'gpu', None)
    """
    words = {word for system in sharing_systems() for word, _ in system.values()}
    known = "/" not in name or name in words or gpu_resource(name) or name.startswith("requests.")
    if known or _matches(name, "no_device") or name in resource_words("resource", "gpus_of_node"):
        return None
    if _matches(name, "accelerator"):
        return "accelerator"
    return "gpu" if GPU_LIKE.search(name) else None


def _matches(name: str, role: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in resource_words("resource", role))


def quantity(value: object, where: str = "") -> Decimal:
    """Read a quantity of the API: ``"2"``, ``8``, ``"1k"``, ``"80Gi"``, ``"1e3"``; `where` names it in the fault.

    Examples
    --------
    >>> quantity("80Gi"), quantity("500m")
    (Decimal('85899345920'), Decimal('0.500'))
    """
    text = value if isinstance(value, str) else str(value) if type(value) in (int, float) else ""
    match = QUANTITY.fullmatch(text)
    if match is None or match[2] not in SUFFIXES:
        refuse(f"{where}{where and ': '}{str(value)[:40]!r} is no quantity")
    return Decimal(match[1]) * SUFFIXES[match[2]]


def count(value: object, where: str) -> int:
    """Read a whole number of devices."""
    number = quantity(value, where)
    if number != number.to_integral_value() or not 0 <= number <= MAX_GPUS_PER_JOB:
        refuse(f"{where}: {str(value)[:40]!r} is no number of GPUs")
    return int(number)


def within(owner: Object, name: str, most: int) -> Fraction:
    """Read a figure between 0 and `most`; 0 where it is absent.

    Examples
    --------
    >>> within({"nvidia.com/gpucores": "30"}, "nvidia.com/gpucores", 100)
    Fraction(30, 1)
    """
    if name not in owner:
        return Fraction(0)
    number = quantity(owner[name], name)
    if not 0 <= number <= most:
        refuse(f"{name}: {str(owner[name])[:40]!r} is not between 0 and {most}")
    return Fraction(number)


def condition(status: Object, kind: str) -> tuple[bool, str, datetime | None]:
    """Whether a condition holds, its reason, and when it last changed; false, "" and None if it is absent."""
    each = next((each for each in parts(status, "conditions") if each.get("type") == kind), {})
    reason = text(each.get("reason")) or ""
    return each.get("status") == "True", reason, instant(each, "lastTransitionTime")


def instant(owner: Object, name: str) -> datetime | None:
    """Time of an object; None if it has none."""
    value = owner.get(name)
    if value is None:
        return None
    try:
        read = datetime.fromisoformat(value) if isinstance(value, str) else None
        if read is not None and read.tzinfo is not None and FIRST_INSTANT <= read < LAST_INSTANT:
            return read.astimezone(UTC)
    except ValueError:
        pass
    refuse(f"{name}: {str(value)[:40]!r} is no time of these days with its offset from UTC")


def part(owner: Object, name: str) -> Object:
    """A part of an object; an empty one if it is absent."""
    value = owner.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        refuse(f"{name}: not an object")
    return value


def parts(owner: Object, name: str) -> list[Object]:
    """The objects of a list; none if it is absent."""
    value = owner.get(name)
    if value is None:
        return []
    if not (isinstance(value, list) and all(isinstance(each, dict) for each in value)):
        refuse(f"{name}: not a list of objects")
    return value


def name_of(thing: Object) -> str:
    """Name of an object, without which it is none."""
    return text(part(thing, "metadata").get("name")) or refuse("metadata.name: missing")


def asked_of(thing: Object) -> tuple[Object, Object]:
    """Specification and annotations of a pod, or of the template of one."""
    return part(thing, "spec"), part(part(thing, "metadata"), "annotations")


def text(value: object) -> str | None:
    """The value if it is text, and not empty."""
    if not isinstance(value, str) or not value:
        return None
    if not value.isprintable():
        refuse(f"{value[:40]!a}: a control character")
    return value


MAX_DEPTH = 64
"""Objects inside one another; those of Kubernetes stay below 30."""

MAX_RAW = 80
"""Characters of a faulty object that the reject table keeps."""

LISTS = ("items",)

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
        todo = "Fix the file, which may be incomplete: write it again with kubectl get -o yaml."
        raise TraceFormatError(where, "YAML of plain data", fault, todo) from error
    finally:
        walk.parser.dispose()


_Event = Any
"""An event of PyYAML, of either parser."""

_Found = tuple[int, Any, dict[str, Any], str]
"""Where an item begins in the text, its value, what stood before it in its document, and its fault."""


class _Walk:
    """Follows the events of a YAML parser, and puts together one item after the other."""

    def __init__(self, text: str) -> None:
        self.parser = _PARSER(text)
        self._fault = ""

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
                self._fault = f"line {_mark(event).line + 1}: the same key twice"
            yield str(event.value), self._next()

    def _next(self) -> _Event | None:
        """The next event; None at the end of a list or object."""
        event = self.parser.get_event()
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
