"""Words of Kubernetes: quantities, names of GPU resources, what a pod asks for, conditions and times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from gpuplanner.inbox.core.times import FIRST_INSTANT, LAST_INSTANT
from gpuplanner.schemas.tables import MAX_GPUS_PER_JOB

Object = Mapping[str, Any]
"""One object of the API, or a part of it."""

SUFFIXES = {
    **{unit: Decimal(10) ** power for unit, power in zip("num", (-9, -6, -3), strict=True)},
    **{unit: Decimal(1000) ** power for power, unit in enumerate(["", "k", "M", "G", "T", "P", "E"])},
    **{unit: Decimal(1024) ** power for power, unit in enumerate(["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"], 1)},
}
QUANTITY = re.compile(r"([+-]?\d{1,30}(?:\.\d{0,30})?(?:[eE][+-]?\d{1,2})?)([a-zA-Z]{0,2})")
MIG_RESOURCE = re.compile(r"mig-(\d+g\.\d+gb)(?:[.+](me(?:\.all)?)|(-me))?")
SHARED = ".shared"


@dataclass(frozen=True)
class GpuResource:
    """An extended resource that stands for GPUs.

    Attributes
    ----------
    plain : str
        Its name without the suffix of shared replicas.
    profile : str, optional
        MIG profile, with the plus sign that resource names cannot have; None for whole GPUs.
    shared : bool
        Its units are replicas of a GPU or instance that others use too.
    """

    plain: str
    profile: str | None
    shared: bool


def gpu_resource(name: str) -> GpuResource | None:
    """Say what an extended resource is; None if it is no GPU.

    Examples
    --------
    >>> gpu_resource("nvidia.com/mig-1g.10gb.me").profile, gpu_resource("nvidia.com/gpu.shared").shared
    ('1g.10gb+me', True)
    >>> gpu_resource("cpu") is None
    True
    """
    plain = name.removesuffix(SHARED)
    vendor, _, kind = plain.partition("/")
    if plain in ("nvidia.com/gpu", "amd.com/gpu"):
        return GpuResource(plain, None, plain != name)
    match = MIG_RESOURCE.fullmatch(kind) if vendor == "nvidia.com" else None
    if match is None:
        return None
    extra = f"+{match[2]}" if match[2] else match[3] or ""
    return GpuResource(plain, match[1] + extra, plain != name)


def quantity(value: object) -> Decimal:
    """Read a quantity of the API: ``"2"``, ``8``, ``"1k"``, ``"80Gi"``, ``"1e3"``.

    Raises
    ------
    ValueError
        If it is none.

    Examples
    --------
    >>> quantity("80Gi"), quantity("500m")
    (Decimal('85899345920'), Decimal('0.500'))
    """
    text = value if isinstance(value, str) else str(value) if type(value) in (int, float) else ""
    match = QUANTITY.fullmatch(text)
    if match is None or match[2] not in SUFFIXES:
        reason = f"{str(value)[:40]!r} is no quantity"
        raise ValueError(reason)
    return Decimal(match[1]) * SUFFIXES[match[2]]


def count(value: object, where: str) -> int:
    """Read a whole number of devices.

    Raises
    ------
    ValueError
        If it is none, or more than any machine has.
    """
    number = quantity(value)
    if number != number.to_integral_value() or not 0 <= number <= MAX_GPUS_PER_JOB:
        reason = f"{where}: {str(value)[:40]!r} is no number of GPUs"
        raise ValueError(reason)
    return int(number)


def pod_gpus(spec: Object) -> dict[str, int]:
    """GPU resources that a pod holds: the larger of what its containers and its start-up need.

    Init containers run one after another, each beside the sidecars (init containers with
    ``restartPolicy: Always``) that stand before it; sidecars run on beside the containers.

    Raises
    ------
    ValueError
        If a request is no number of GPUs.

    References
    ----------
    Kubernetes, *Sidecar Containers*, "Resource sharing within containers".

    Examples
    --------
    >>> ask = lambda gpus: {"resources": {"limits": {"nvidia.com/gpu": gpus}}}
    >>> pod_gpus({"initContainers": [ask(4)], "containers": [ask(1), ask("1")]})
    {'nvidia.com/gpu': 4}
    """
    running: dict[str, int] = {}
    starting: dict[str, int] = {}
    for container in parts(spec, "initContainers"):
        own = _requests(container)
        if container.get("restartPolicy") == "Always":
            running = _summed(running, own)
            own = {}
        starting = _largest(starting, _summed(running, own))
    for container in parts(spec, "containers"):
        running = _summed(running, _requests(container))
    return {name: number for name, number in _largest(starting, running).items() if number}


def _requests(container: Object) -> dict[str, int]:
    """GPU resources of one container; for extended resources a limit is a request."""
    resources = part(container, "resources")
    both = {**part(resources, "limits"), **part(resources, "requests")}
    return {name: count(value, name) for name, value in both.items() if gpu_resource(name)}


def _summed(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def _largest(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}


def condition(status: Object, kind: str) -> tuple[bool, str, datetime | None]:
    """Whether a condition holds, its reason, and when it last changed; false, "" and None if it is absent."""
    for each in parts(status, "conditions"):
        if each.get("type") == kind:
            return (
                each.get("status") == "True",
                text(each.get("reason")) or "",
                instant(each, "lastTransitionTime"),
            )
    return False, "", None


def instant(owner: Object, name: str) -> datetime | None:
    """Time of an object; None if it has none.

    Raises
    ------
    ValueError
        If it is no date and time with an offset from UTC, or none between 1970 and 2100.
    """
    value = owner.get(name)
    if value is None:
        return None
    try:
        read = datetime.fromisoformat(value) if isinstance(value, str) else None
        if read is not None and read.tzinfo is not None and FIRST_INSTANT <= read < LAST_INSTANT:
            return read.astimezone(UTC)
    except ValueError:
        pass
    reason = f"{name}: {str(value)[:40]!r} is no time of these days with its offset from UTC"
    raise ValueError(reason)


def part(owner: Object, name: str) -> Object:
    """A part of an object; an empty one if it is absent.

    Raises
    ------
    ValueError
        If something else stands there.
    """
    value = owner.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        reason = f"{name}: not an object"
        raise ValueError(reason)
    return value


def parts(owner: Object, name: str) -> Iterator[Object]:
    """The objects of a list; none if it is absent.

    Raises
    ------
    ValueError
        If something else stands there.
    """
    value = owner.get(name)
    if value is None:
        return
    if not (isinstance(value, list) and all(isinstance(each, dict) for each in value)):
        reason = f"{name}: not a list of objects"
        raise ValueError(reason)
    yield from value


def text(value: object) -> str | None:
    """The value if it is text, and not empty.

    Raises
    ------
    ValueError
        If it has characters that cannot be shown, such as control characters.
    """
    if not isinstance(value, str) or not value:
        return None
    if not value.isprintable():
        reason = f"{value[:40]!a}: a control character"
        raise ValueError(reason)
    return value
