"""Readers for objects of the Kubernetes API in JSON and YAML, and for their fields: quantities, times, resources."""

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
from gpuplanner.hardware.catalog import list_resource_names, list_sharing_systems
from gpuplanner.ingest.delimited_rows import raise_fault
from gpuplanner.ingest.source_fields import END_INSTANT, FIRST_INSTANT
from gpuplanner.ingest.text_files import TextFile, read_document, read_head
from gpuplanner.ingest.typed_row_reader import JsonItem, looks_like_json, read_items

ApiObject = Mapping[str, Any]
"""A Kubernetes API object as parsed from JSON or YAML, or an object nested in one: field name → value."""

MULTIPLIER_BY_QUANTITY_SUFFIX = {
    **{unit: Decimal(10) ** power for unit, power in zip("num", (-9, -6, -3), strict=True)},
    **{unit: Decimal(1000) ** power for power, unit in enumerate(["", "k", "M", "G", "T", "P", "E"])},
    **{unit: Decimal(1024) ** power for power, unit in enumerate(["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"], 1)},
}
"""Suffix of a Kubernetes quantity → factor: ``m`` 0.001, ``k`` 1000, ``Ki`` 1024 (Kubernetes, resource.Quantity)."""

QUANTITY_PATTERN = re.compile(r"([+-]?\d{1,30}(?:\.\d{0,30})?(?:[eE][+-]?\d{1,2})?)([a-zA-Z]{0,2})")
"""A Kubernetes quantity such as ``80Gi``: its number and its suffix."""

MIG_RESOURCE_PATTERN = re.compile(r"mig-(\d+g\.\d+gb)(?:[.+](me(?:\.all)?)|(-me))?")
"""NVIDIA extended resource of MIG instances, without ``nvidia.com/``: ``mig-1g.10gb``, ``mig-1g.10gb.me``."""

AMD_PARTITION_PATTERN = re.compile(r"amd\.com/([a-z]px)_nps\d+")
"""AMD extended resource of GPU partitions, such as ``amd.com/cpx_nps4`` (device plugin, naming strategy ``mixed``)."""

SHARED_RESOURCE_SUFFIX = ".shared"
"""End of the names of extended resources whose units are time-sliced replicas of GPUs (NVIDIA device plugin)."""

GPU_LIKE_PATTERN = re.compile(r"gpu|gaudi|npu|mlu|tpu|accelerator|/mig-|^nvidia\.com/|^amd\.com/", re.IGNORECASE)
"""Part of the name of an extended resource, or of a DRA driver, by which it may represent GPUs."""

MAX_MEMORY_REQUEST_MIB = 10_000_000
"""Largest GPU memory request that is accepted [MiB]: more than any GPU has, less than bytes mistaken for MiB."""


_JSON_KEY_PATTERN = re.compile(r'"(?:apiVersion|kind)"\s*:\s*"')
"""Field ``apiVersion`` or ``kind``, by which JSON text is recognised as Kubernetes objects."""

_YAML_KEY_PATTERN = re.compile(r"^(?:- )?(?:apiVersion|kind):[ \t]+\S", re.MULTILINE)
"""Field ``apiVersion`` or ``kind``, by which YAML text is recognised as Kubernetes objects."""


def looks_like_kubernetes(lines: Sequence[str]) -> bool:
    """Whether the first lines of a file look like objects of Kubernetes.

    Examples
    --------
    >>> looks_like_kubernetes(['{"apiVersion": "v1", "items": [']), looks_like_kubernetes(["kind: List"])
    (True, True)
    """
    return (
        _JSON_KEY_PATTERN.search("\n".join(lines)) is not None if looks_like_json(lines) else is_kubernetes_yaml(lines)
    )


def is_kubernetes_yaml(lines: Sequence[str]) -> bool:
    """Whether the first lines of a file look like objects of Kubernetes in YAML.

    Examples
    --------
    >>> is_kubernetes_yaml(["apiVersion: v1", "items:"]), is_kubernetes_yaml(["a,kind: x"])
    (True, False)
    """
    return _YAML_KEY_PATTERN.search("\n".join(lines)) is not None


@dataclass(frozen=True)
class GpuResource:
    """An extended resource that represents GPUs.

    - ``base_name``: Its name without the suffix of shared replicas.
    - ``profile``: MIG profile such as ``1g.10gb+me`` (its plus sign is a dot in the name); None for full GPUs.
    - ``is_shared``: Its units are replicas of a GPU or MIG instance that other pods use too.
    - ``partition_mode``: Compute partition mode of the AMD GPUs that its units are partitions of.
    """

    base_name: str
    profile: str | None
    is_shared: bool
    partition_mode: str | None = None


@functools.lru_cache(maxsize=4096)
def parse_gpu_resource(name: str) -> GpuResource | None:
    """Parse the name of an extended resource that represents GPUs; None for other resources.

    Examples
    --------
    >>> parse_gpu_resource("nvidia.com/mig-1g.10gb.me").profile, parse_gpu_resource("nvidia.com/gpu.shared").is_shared
    ('1g.10gb+me', True)
    >>> parse_gpu_resource("amd.com/cpx_nps4").partition_mode, parse_gpu_resource("cpu")
    ('CPX', None)
    """
    base_name = name.removesuffix(SHARED_RESOURCE_SUFFIX)
    vendor, _, kind = base_name.partition("/")
    if base_name in list_resource_names("resource", "full_gpu"):
        return GpuResource(base_name, None, base_name != name)
    if partition := AMD_PARTITION_PATTERN.fullmatch(name):
        return GpuResource(name, None, False, partition[1].upper())
    match = MIG_RESOURCE_PATTERN.fullmatch(kind) if vendor == "nvidia.com" else None
    if match is None:
        return None
    extra = f"+{match[2]}" if match[2] else match[3] or ""
    return GpuResource(base_name, match[1] + extra, base_name != name)


@functools.lru_cache(maxsize=4096)
def classify_unread_resource(name: str) -> str | None:
    """Classify an extended resource that is not read: ``accelerator`` (no GPU), ``gpu`` (may be one), or None.

    None is for resources that are read, and for those that are no such devices.

    Examples
    --------
    >>> names = ["habana.ai/gaudi", "nvidia.com/NVIDIA_A10-12Q", "vpc.amazonaws.com/efa"]
    >>> [classify_unread_resource(name) for name in names]
    ['accelerator', 'gpu', None]
    """
    share_resources = {word for system in list_sharing_systems() for word, _ in system.values()}
    is_known = "/" not in name or name in share_resources or parse_gpu_resource(name) or name.startswith("requests.")
    if is_known or _matches_role(name, "no_device") or name in list_resource_names("resource", "gpus_of_node"):
        return None
    if _matches_role(name, "accelerator"):
        return "accelerator"
    return "gpu" if GPU_LIKE_PATTERN.search(name) else None


def _matches_role(name: str, role: str) -> bool:
    """Whether a resource name matches a pattern of the catalogue for a role, such as ``accelerator``, ``no_device``."""
    return any(fnmatchcase(name, pattern) for pattern in list_resource_names("resource", role))


def parse_quantity(value: object, field: str = "") -> Decimal:
    """Parse a quantity of the Kubernetes API: ``"2"``, ``8``, ``"1k"``, ``"80Gi"``, ``"1e3"``.

    Parameters
    ----------
    value : object
        Text or number.
    field : str
        Name of the field in the error message.

    Raises
    ------
    ValueError
        If the value is no quantity.

    Examples
    --------
    >>> parse_quantity("80Gi"), parse_quantity("500m")
    (Decimal('85899345920'), Decimal('0.500'))
    """
    text = value if isinstance(value, str) else str(value) if type(value) in (int, float) else ""
    match = QUANTITY_PATTERN.fullmatch(text)
    if match is None or match[2] not in MULTIPLIER_BY_QUANTITY_SUFFIX:
        raise_fault(f"{field}{field and ': '}{str(value)[:40]!r} is no quantity")
    return Decimal(match[1]) * MULTIPLIER_BY_QUANTITY_SUFFIX[match[2]]


def parse_count(value: object, field: str) -> int:
    """Parse a whole number of GPUs, from 0 to the most that a job may have; `field` names it in the error message."""
    number = parse_quantity(value, field)
    if number != number.to_integral_value() or not 0 <= number <= MAX_GPUS_PER_JOB:
        raise_fault(f"{field}: {str(value)[:40]!r} is no number of GPUs")
    return int(number)


def parse_bounded_quantity(api_object: ApiObject, name: str, maximum: int) -> Fraction:
    """Parse the quantity in a field of an object, which must be from 0 to `maximum`; 0 if the object lacks the field.

    Examples
    --------
    >>> parse_bounded_quantity({"nvidia.com/gpucores": "30"}, "nvidia.com/gpucores", 100)
    Fraction(30, 1)
    """
    if name not in api_object:
        return Fraction(0)
    number = parse_quantity(api_object[name], name)
    if not 0 <= number <= maximum:
        raise_fault(f"{name}: {str(api_object[name])[:40]!r} is not between 0 and {maximum}")
    return Fraction(number)


def read_condition(status: ApiObject, condition_type: str) -> tuple[bool, str, datetime | None]:
    """Read one condition, such as ``Finished``, from the status of an object: is it true, its reason, its last change.

    False, "" and None if the status lacks the condition.
    """
    conditions = get_objects(status, "conditions")
    condition = next((entry for entry in conditions if entry.get("type") == condition_type), {})
    reason = to_text(condition.get("reason")) or ""
    return condition.get("status") == "True", reason, read_time(condition, "lastTransitionTime")


def read_time(api_object: ApiObject, name: str) -> datetime | None:
    """Read the ISO time in a field of an object, in UTC; None if the object lacks the field."""
    value = api_object.get(name)
    if value is None:
        return None
    try:
        parsed_time = datetime.fromisoformat(value) if isinstance(value, str) else None
        if parsed_time is not None and parsed_time.tzinfo is not None and FIRST_INSTANT <= parsed_time < END_INSTANT:
            return parsed_time.astimezone(UTC)
    except ValueError:
        pass
    raise_fault(f"{name}: {str(value)[:40]!r} is no time of these days with its offset from UTC")


def get_object(api_object: ApiObject, name: str) -> ApiObject:
    """Return the object in a field of an object; an empty object if the field is missing."""
    value = api_object.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise_fault(f"{name}: not an object")
    return value


def get_objects(api_object: ApiObject, name: str) -> list[ApiObject]:
    """Return the list of objects in a field of an object; an empty list if the field is missing."""
    value = api_object.get(name)
    if value is None:
        return []
    if not (isinstance(value, list) and all(isinstance(item, dict) for item in value)):
        raise_fault(f"{name}: not a list of objects")
    return value


def object_name(api_object: ApiObject) -> str:
    """Return ``metadata.name`` of an object; raise a ValueError if it has none."""
    return to_text(get_object(api_object, "metadata").get("name")) or raise_fault("metadata.name: missing")


def spec_and_annotations(api_object: ApiObject) -> tuple[ApiObject, ApiObject]:
    """Return ``spec`` and ``metadata.annotations`` of a pod or pod template; empty objects if missing."""
    return get_object(api_object, "spec"), get_object(get_object(api_object, "metadata"), "annotations")


def to_text(value: object) -> str | None:
    """Return the value if it is text and not empty, else None; raise a ValueError for control characters."""
    if not isinstance(value, str) or not value:
        return None
    if not value.isprintable():
        raise_fault(f"{value[:40]!a}: a control character")
    return value


MAX_YAML_NESTING_LEVELS = 64
"""Deepest nesting of objects and lists that is read from YAML; Kubernetes objects stay below 30 levels."""

MAX_REJECTED_OBJECT_CHARACTERS = 80
"""Characters of a faulty YAML object that the reject table keeps."""

ITEM_LIST_KEYS = ("items",)
"""Keys of a JSON or YAML document that hold its list of Kubernetes objects."""

_YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where libyaml is there
"""YAML parser of PyYAML: that of libyaml, which is ten times as fast, where it is installed."""

_YAML_INTEGER_PATTERN = re.compile(r"[-+]?\d{1,30}")
"""A plain YAML word that is read as an integer."""

_YAML_NUMBER_PATTERN = re.compile(r"[-+]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][-+]?\d{1,3})?")
"""A plain YAML word that is read as a number."""

_VALUE_BY_YAML_WORD = {"": None, "~": None, "null": None, "true": True, "false": False}
"""Plain YAML word → the None, True or False that it stands for."""


def item_kind(item: JsonItem) -> str:
    """Return the kind of an object, such as ``Pod``: its own, or that of the list around it (``PodList``)."""
    stated_kind = item.value.get("kind") if isinstance(item.value, dict) else None
    return str(stated_kind or str(item.around.get("kind") or "").removesuffix("List"))


def read_objects(path: str | Path) -> tuple[TextFile, Iterator[JsonItem]]:
    r"""Read the objects of a Kubernetes dump in JSON or YAML: those of its lists, or its documents themselves.

    YAML gives the same values as JSON: a plain word is a number, true, false or null, or else text, also where it
    looks like a time. Items are parsed one at a time, so that a large dump fits into memory.

    Parameters
    ----------
    path : str or Path
        Output of ``kubectl get -o json`` or ``-o yaml``.

    Returns
    -------
    file : TextFile
        The file, for the provenance.
    items : iterator of JsonItem
        Its objects, each with the fault that it has, if any.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "pods.yaml"
    ...     _ = path.write_text("items:\n- kind: Pod\n  at: 2025-09-01T08:00:00Z\n- {kind: Node, gpus: 8}\n")
    ...     [item.value for item in read_objects(path)[1]]
    [{'kind': 'Pod', 'at': '2025-09-01T08:00:00Z'}, {'kind': 'Node', 'gpus': 8}]
    """
    if not is_kubernetes_yaml(read_head(path)):
        return read_items(path, ITEM_LIST_KEYS)
    file, text = read_document(path)
    return file, _parse_yaml_items(text, file.path)


def _parse_yaml_items(text: str, path: Path) -> Iterator[JsonItem]:
    """Parse the Kubernetes objects of a YAML text one at a time; raise a TraceFormatError for faults of its syntax."""
    parser = _YamlItemParser(text)
    try:
        for item_number, (start, value, around, fault) in enumerate(parser.parse_items(), 1):
            raw = text[start : start + MAX_REJECTED_OBJECT_CHARACTERS].partition("\n")[0]
            yield JsonItem(item_number, None if fault else value, raw, around, fault)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        error_place = f"{path}, line {mark.line + 1}, column {mark.column + 1}" if mark else str(path)
        fault = str(getattr(error, "problem", None) or "a character that YAML does not allow")
        remedy = "Fix the file, which may be incomplete: write it again with kubectl get -o yaml."
        raise TraceFormatError(error_place, "YAML of plain data", fault, remedy) from error
    finally:
        parser.parser.dispose()


_YamlEvent = Any
"""A parser event of PyYAML, of its C or its Python parser, whose classes have no common type."""

_YamlItem = tuple[int, Any, dict[str, Any], str]
"""One object of a YAML text: its position [characters], value, fields before it in its document, and fault or ""."""


class _YamlItemParser:
    """Parser of the Kubernetes objects (items) in a YAML text, one at a time, without the whole text as objects."""

    def __init__(self, text: str) -> None:
        self.parser = _YAML_LOADER(text)
        self._item_fault = ""

    def parse_items(self) -> Iterator[_YamlItem]:
        """Yield the items of all documents of the text."""
        while not isinstance(event := self._next_event(), yaml.StreamEndEvent):
            if isinstance(event, yaml.SequenceStartEvent):
                yield from self._parse_list({})
            elif isinstance(event, yaml.MappingStartEvent):
                yield from self._parse_top_object(event)
            elif isinstance(event, yaml.ScalarEvent) and (value := _parse_scalar(event)) is not None:
                yield _event_start(event).index, value, {}, ""

    def _parse_top_object(self, start_event: _YamlEvent) -> Iterator[_YamlItem]:
        """Yield the entries of ``items`` if the top object of a document has that list, else the object itself."""
        members: dict[str, Any] = {}
        self._item_fault = ""
        has_items = False
        for key, event in self._iter_keys(members):
            if key in ITEM_LIST_KEYS and isinstance(event, yaml.SequenceStartEvent):
                has_items = True
                yield from self._parse_list(dict(members))
            else:
                members[key] = self._parse_value(event, 1)
        if not has_items:
            yield _event_start(start_event).index, members, {}, self._item_fault

    def _parse_list(self, fields_before: dict[str, Any]) -> Iterator[_YamlItem]:
        """Yield the items of a list, each with `fields_before`, the fields of its document before the list."""
        for event in iter(self._next_event, None):
            self._item_fault = ""
            value = self._parse_value(event, 1)
            yield _event_start(event).index, value, fields_before, self._item_fault

    def _parse_value(self, event: _YamlEvent, depth: int) -> Any:  # noqa: ANN401 - anything that JSON can hold
        """Parse the value that starts at an event, `depth` levels below the item: an object, a list or a scalar."""
        if isinstance(event, yaml.ScalarEvent):
            return _parse_scalar(event)
        if depth > MAX_YAML_NESTING_LEVELS:
            raise _yaml_error(event, f"objects nested more than {MAX_YAML_NESTING_LEVELS} deep")
        if isinstance(event, yaml.SequenceStartEvent):
            return [self._parse_value(event, depth + 1) for event in iter(self._next_event, None)]
        members: dict[str, Any] = {}
        for key, event in self._iter_keys(members):
            members[key] = self._parse_value(event, depth + 1)
        return members

    def _iter_keys(self, known_keys: Mapping[str, Any]) -> Iterator[tuple[str, _YamlEvent]]:
        """Yield each key of an object with the first event of its value; a key in `known_keys` is a fault."""
        for event in iter(self._next_event, None):
            if not isinstance(event, yaml.ScalarEvent):
                raise _yaml_error(event, "a key that is no word")
            if event.value in known_keys:
                self._item_fault = f"line {_event_start(event).line + 1}: the same key twice"
            yield str(event.value), self._next_event()

    def _next_event(self) -> _YamlEvent | None:
        """Return the next parser event; None at the end of a list or object. YAML tags and aliases are errors."""
        event = self.parser.get_event()
        if isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
            return None
        if isinstance(event, yaml.AliasEvent):
            raise _yaml_error(event, "an alias (*)")
        if getattr(event, "tag", None) is not None:
            raise _yaml_error(event, "a tag (!)")
        return event


def _event_start(event: _YamlEvent) -> Any:  # noqa: ANN401 - of either parser
    """Return the position where an event starts: index in the text, line and column, all from 0."""
    return event.start_mark


def _yaml_error(event: _YamlEvent, problem: str) -> yaml.MarkedYAMLError:
    """Make a YAML error that states a problem and the position of an event."""
    return yaml.MarkedYAMLError(problem=problem, problem_mark=_event_start(event))


def _parse_scalar(event: _YamlEvent) -> str | float | bool | None:
    """Parse a YAML scalar to a number, boolean, None or text; in quotation marks or in a block it is text."""
    text = str(event.value)
    if event.style not in (None, ""):
        return text
    if text in _VALUE_BY_YAML_WORD:
        return _VALUE_BY_YAML_WORD[text]
    if _YAML_INTEGER_PATTERN.fullmatch(text):
        return int(text)
    return float(text) if _YAML_NUMBER_PATTERN.fullmatch(text) else text
