"""GPUs of a Kubernetes node, from its labels and its capacity: whole ones, and those that instances are on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from gpuplanner.hardware import boards_meant, fewest_gpus, format_layout, load_gpu_model, prove
from gpuplanner.inbox.kubernetes.objects import Object, count, gpu_resource
from gpuplanner.schemas import WHOLE_GPU

COUNT = "nvidia.com/gpu.count"
CONFIG = "nvidia.com/mig.config"
EVERY = "all-"
"""Beginning of the names of configurations that cut every GPU of a node into instances of one profile."""
SLICED = ".count"
PROFILE = re.compile(r"\d+g\.\d+gb(?:[+-]\w+(?:\.all)?)?")


def installed_gpus(
    labels: Object,
    resources: Mapping[str, int],
    replicas: Mapping[str, int],
    model: str | None,
    profile: str | None,
) -> tuple[int | None, str | None]:
    """GPUs of a node, and how they are cut.

    The label counts GPUs, except under the MIG strategy ``single``, where it counts instances. Without it the
    capacity counts: GPUs that are not cut, and instances, which are on the fewest boards that can hold them. Where
    more GPUs are counted than must be, it follows only if the operator cut them, which cuts all alike. A node that
    offers nothing at the moment is cut as its labels say.

    Examples
    --------
    >>> capacity = {"nvidia.com/gpu": 6, "nvidia.com/mig-1g.10gb": 14}
    >>> installed_gpus({}, capacity, {}, "NVIDIA-H100-80GB-HBM3", None)
    (8, 'gpu;gpu;gpu;gpu;gpu;gpu;1g.10gb:7;1g.10gb:7')
    >>> installed_gpus({COUNT: "14"}, {"nvidia.com/gpu": 14}, {}, "NVIDIA-H100-80GB-HBM3", "1g.10gb")
    (2, '1g.10gb:7;1g.10gb:7')
    >>> labels = {COUNT: "2", CONFIG: "all-3g.40gb"}
    >>> installed_gpus(labels, {"nvidia.com/gpu": 0}, {}, "NVIDIA-H100-80GB-HBM3", None)
    (2, '3g.40gb:2;3g.40gb:2')
    """
    stated = count(labels[COUNT], COUNT) if COUNT in labels else None
    whole = 0
    instances: dict[str, int] = {}
    for name, number in resources.items():
        resource = gpu_resource(name)
        share = replicas.get(name.removesuffix(".shared"), 1)
        if resource is None or share == 0 or number % share or (resource.shared and share == 1):
            whole = -1  # units that stand for a part of a GPU that is not known
            break
        kind = resource.profile or profile
        if kind is None:
            whole += number // share
        elif number:
            instances[kind] = instances.get(kind, 0) + number // share
    if profile is not None and stated is not None:
        whole, instances = 0, {profile: stated}
    if not instances and whole == 0 and profile is None and stated:
        instances = instances_of_labels(labels, stated, model)
    if not instances:
        unknown = profile is not None or whole < 0
        return (
            (stated, None) if stated is not None and profile is None else (None if unknown else whole, None)
        )
    cut = None if whole < 0 else _fewest(model, instances)
    if cut is None:
        return (stated if profile is None else None), None
    if stated is None or profile is not None:
        return whole + len(cut), ";".join([WHOLE_GPU] * whole + cut)
    if CONFIG in labels and whole + len(cut) < stated:
        cut = _alike(model, instances, stated - whole)
    return stated, ";".join([WHOLE_GPU] * whole + cut) if whole + len(cut) == stated else None


def instances_of_labels(labels: Object, gpus: int, model: str | None) -> dict[str, int]:
    """Instances of a node by its labels: as counted for each profile, else as its configuration is called.

    Examples
    --------
    >>> instances_of_labels({"nvidia.com/mig-1g.10gb.count": "14"}, 2, None)
    {'1g.10gb': 14}
    >>> instances_of_labels({CONFIG: "all-2g.20gb"}, 2, "NVIDIA-H100-80GB-HBM3")
    {'2g.20gb': 6}
    """
    found = {}
    for key, value in labels.items():
        resource = gpu_resource(key.removesuffix(SLICED)) if key.endswith(SLICED) else None
        if resource is not None and resource.profile is not None and (number := count(value, key)):
            found[resource.profile] = number
    name = str(labels.get(CONFIG) or "")
    if found or not name.startswith(EVERY):
        return found
    profile = name.removeprefix(EVERY).replace(".me", "+me")
    most = {load_gpu_model(board).profile(profile).max_instances for board in _boards(model, [profile])}
    return {profile: gpus * most.pop()} if len(most) == 1 else {}


def _boards(model: str | None, profiles: Iterable[str]) -> list[str]:
    """Boards that may be meant by a product and all these profiles."""
    meant = [
        set(boards_meant(model, profile)) if PROFILE.fullmatch(profile) else set() for profile in profiles
    ]
    return sorted(set.intersection(*meant))


def _fewest(model: str | None, instances: Mapping[str, int]) -> list[str] | None:
    """Layouts of the fewest GPUs that hold the instances; None where the boards that may be meant differ."""
    found = [fewest_gpus(board, instances) for board in _boards(model, instances)]
    if not found or any(cut is None or len(cut) != len(found[0] or ()) for cut in found):
        return None
    return [format_layout(cut) for cut in found[0] or ()]


def _alike(model: str | None, instances: Mapping[str, int], gpus: int) -> list[str]:
    """Layouts of so many GPUs that are all cut alike; none if they cannot be."""
    each = {profile: number // gpus for profile, number in instances.items()}
    if any(number % gpus for number in instances.values()):
        return []
    return [format_layout(each)] * gpus if all(prove(b, each) for b in _boards(model, instances)) else []
