"""Dynamic Resource Allocation of Kubernetes: devices of ResourceSlices, and what ResourceClaims hold of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpuplanner.inbox.kubernetes.objects import Object, count, part, parts, text

DRIVERS = ("gpu.nvidia.com", "gpu.amd.com")
"""Drivers whose devices are GPUs."""

CLASSES = ("gpu.nvidia.com", "mig.nvidia.com", "gpu.amd.com")
"""Device classes of these drivers."""

PROFILE_SELECTOR = re.compile(r"\.profile\s*==\s*['\"]([^'\"]+)['\"]")


@dataclass(frozen=True)
class ClaimedDevice:
    """One device that a driver offers.

    - ``key``: Driver, pool and name.
    - ``node``: Node that it is on.
    - ``board``: Identity of the GPU that it is, or is part of; None for a part that does not say.
    - ``model``, ``profile``: Board; MIG profile, None for a whole GPU.
    """

    key: tuple[str, str, str]
    node: str | None
    board: str | None
    model: str | None
    profile: str | None


@dataclass(frozen=True)
class Held:
    """What a claim holds or asks for.

    - ``gpus``: Number of devices; None if it is not known before allocation.
    - ``profile``, ``model``: MIG profile and board, if all devices have the same.
    """

    gpus: int | None
    profile: str | None
    model: str | None


@dataclass(frozen=True)
class DeviceClaim:
    """A ResourceClaim, or the claim that a ResourceClaimTemplate makes for each pod.

    - ``allocated``: Keys of the devices allocated to it; empty while it waits.
    - ``asked``: What it asks for.
    """

    allocated: tuple[tuple[str, str, str], ...]
    asked: Held


def read_slice(resource_slice: Object) -> Iterator[ClaimedDevice]:
    """Read the GPUs of a ResourceSlice (``resource.k8s.io`` v1beta1, v1beta2 or v1).

    Examples
    --------
    >>> gpu = {"attributes": {"type": {"string": "gpu"}, "uuid": {"string": "GPU-1"}}}
    >>> spec = {"driver": "gpu.nvidia.com", "nodeName": "n1", "pool": {"name": "n1"}}
    >>> [device.board for device in read_slice({"spec": spec | {"devices": [{"name": "gpu-0"} | gpu]}})]
    ['GPU-1']
    """
    spec = part(resource_slice, "spec")
    driver = text(spec.get("driver")) or ""
    if driver not in DRIVERS:
        return
    pool, node = text(part(spec, "pool").get("name")) or "", text(spec.get("nodeName"))
    for device in parts(spec, "devices"):
        name = text(device.get("name")) or ""
        basic = part(device, "basic") or device  # v1beta1 wraps what later versions have at the top
        words = {
            key.rpartition("/")[2]: text(value.get("string"))
            for key, value in part(basic, "attributes").items()
            if isinstance(value, dict)
        }
        kind = words.get("type")
        if kind not in (None, "gpu", "mig"):
            continue
        yield ClaimedDevice(
            key=(driver, pool, name),
            node=node,
            board=words.get("parentUUID") if kind == "mig" else words.get("uuid") or f"{pool}/{name}",
            model=words.get("productName"),
            profile=words.get("profile") if kind == "mig" else None,
        )


def read_claim(spec: Object, status: Object) -> DeviceClaim:
    """Read the specification of a claim or template, and the status of a claim.

    Examples
    --------
    >>> exactly = {"deviceClassName": "gpu.nvidia.com", "count": 2}
    >>> read_claim({"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}, {}).asked.gpus
    2
    """
    listed = parts(part(part(status, "allocation"), "devices"), "results")
    results = [
        (str(each["driver"]), text(each.get("pool")) or "", text(each.get("device")) or "")
        for each in listed
        if each.get("driver") in DRIVERS and not each.get("adminAccess")
    ]
    asked: int | None = 0
    profiles: set[str | None] = set()
    for request in parts(part(spec, "devices"), "requests"):
        if "firstAvailable" in request:
            asked = None
            continue
        exactly = part(request, "exactly") or request  # v1beta1 has these fields at the top
        if exactly.get("deviceClassName") not in CLASSES or exactly.get("adminAccess"):
            continue
        profiles.add(_profile(exactly))
        if exactly.get("allocationMode") == "All":
            asked = None
        elif asked is not None:
            asked += count(exactly.get("count", 1), "count")
    return DeviceClaim(tuple(results), Held(asked, profiles.pop() if len(profiles) == 1 else None, None))


def _profile(request: Object) -> str | None:
    """MIG profile that a request selects."""
    for selector in parts(request, "selectors"):
        match = PROFILE_SELECTOR.search(text(part(selector, "cel").get("expression")) or "")
        if match:
            return match[1]
    return None


def held(claim: DeviceClaim, devices: Mapping[tuple[str, str, str], ClaimedDevice]) -> Held:
    """What a claim holds, or asks for while it holds nothing."""
    if not claim.allocated:
        return claim.asked
    known = [devices.get(key) for key in claim.allocated]
    profiles = {device.profile if device else claim.asked.profile for device in known}
    models = {device.model for device in known if device}
    return Held(
        gpus=len(claim.allocated),
        profile=profiles.pop() if len(profiles) == 1 else None,
        model=models.pop() if len(models) == 1 else None,
    )
