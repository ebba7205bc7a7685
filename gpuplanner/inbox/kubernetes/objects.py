"""Objects of the API of Kubernetes: how a dump looks, quantities, names of GPU resources, conditions and times."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Any

from gpuplanner.catalog.cluster_words import resource_words, sharing_systems
from gpuplanner.inbox.core.lines.json_items import is_json
from gpuplanner.inbox.core.lines.rows import refuse
from gpuplanner.inbox.core.times import FIRST_INSTANT, LAST_INSTANT
from gpuplanner.schemas.domain import MAX_GPUS_PER_JOB

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
