"""Nodes of a Kubernetes cluster: boards, number of GPUs, MIG, from labels, capacity and DRA devices."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypedDict

import polars as pl

from gpuplanner.catalog import boards_called, facts
from gpuplanner.hardware import boards_meant, format_layout, load_gpu_model, prove
from gpuplanner.inbox.core.boards import layouts_on
from gpuplanner.inbox.kubernetes.objects import (
    MAX_MEMORY_MIB,
    Object,
    count,
    gpu_resource,
    instant,
    name_of,
    part,
    parts,
    text,
    within,
)
from gpuplanner.inbox.kubernetes.resource_claims import ClaimedDevice
from gpuplanner.schemas import TABLES, WHOLE_GPU, Inventory, conform
from gpuplanner.units import MIB_PER_GIB

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
    if not instances and profile is not None:
        return None, None
    if not instances:
        return (whole if stated is None and whole >= 0 else stated), None
    cut = None if whole < 0 else layouts_on(_boards(model, instances), instances)
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


def _alike(model: str | None, instances: Mapping[str, int], gpus: int) -> list[str]:
    """Layouts of so many GPUs that are all cut alike; none if they cannot be."""
    each = {profile: number // gpus for profile, number in instances.items()}
    if any(number % gpus for number in instances.values()):
        return []
    return [format_layout(each)] * gpus if all(prove(b, each) for b in _boards(model, instances)) else []


PRODUCT = "nvidia.com/gpu.product"
PRODUCTS = (PRODUCT, "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator")
"""Labels that name the board, best first."""

STATE = "nvidia.com/mig.config.state"
CLIQUE = "nvidia.com/gpu.clique"
MEMORY = "nvidia.com/gpu.memory"
REPLICAS = ".replicas"
SHARED_SUFFIX = "-SHARED"
MIG_SUFFIX = re.compile(r"-MIG-([^-]+(?:-me)?)$")

REGISTERS = ("hami.io/node-nvidia-register", "volcano.sh/node-vgpu-register")
"""Annotations in which the device plugins of HAMi and Volcano list the boards of a node."""

HANDSHAKES = ("hami.io/node-handshake", "volcano.sh/node-vgpu-handshake")
"""Beginnings of the names of the annotations with which these plugins show that they live."""

CLOSING = frozenset(
    f"node.kubernetes.io/{word}" for word in ("unschedulable", "not-ready", "unreachable", "out-of-service")
)
"""Taints of a node that takes nothing new: Kubernetes, Well-Known Labels, Annotations and Taints."""

MAX_BOARDS = 1024

OWNERSHIP = {
    ("karpenter.sh/capacity-type", "spot"): "spot",
    ("karpenter.sh/capacity-type", "on-demand"): "on_demand",
    ("karpenter.sh/capacity-type", "reserved"): "reserved",
    ("eks.amazonaws.com/capacityType", "SPOT"): "spot",
    ("eks.amazonaws.com/capacityType", "ON_DEMAND"): "on_demand",
    ("cloud.google.com/gke-spot", "true"): "spot",
    ("kubernetes.azure.com/scalesetpriority", "spot"): "spot",
}
"""Label and value of cloud nodes → how they are paid for."""


@dataclass(frozen=True)
class Node:
    """What one node tells.

    - ``name``: Name of the node.
    - ``model``: Board, in the words of the source.
    - ``gpus``: GPUs installed; None if it does not follow from what the node tells.
    - ``profile``: Profile of the instances that ``nvidia.com/gpu`` stands for (MIG strategy single).
    - ``memory_mib``: Memory of one board [MiB], as shares of it are counted; None if the node does not tell.
    - ``replicas``: Resource → pods that share one unit of it, where more than one does; 0 if it is shared by a number
      that is not told.
    - ``mig``: MIG mode is on.
    - ``layouts``: How its GPUs are cut, where that follows.
    - ``config_state``: State of the MIG configuration, where it is not done.
    - ``closed``, ``since``: Why it takes no new jobs: ``"cordoned"``, ``"not ready"``; None if it does. And since when,
      where a taint or a condition says it.
    - ``domain``, ``ownership``: Fabric clique; how the node is paid for.
    - ``installed``, ``seen``: When the node joined, and when it was last heard of.
    """

    name: str
    model: str | None = None
    gpus: int | None = None
    profile: str | None = None
    memory_mib: int | None = None
    replicas: Mapping[str, int] = field(default_factory=dict)
    mig: bool = False
    layouts: str | None = None
    config_state: str | None = None
    closed: str | None = None
    since: datetime | None = None
    domain: str | None = None
    ownership: str | None = None
    installed: datetime | None = None
    seen: datetime | None = None


def read_node(node: Object) -> Node:
    """Read an object of kind Node.

    References
    ----------
    NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery: under the MIG strategy ``single`` the labels count
    instances, and the product carries the profile; else they count GPUs, those in MIG mode too.
    Project-HAMi/HAMi, docs/develop/protocol.md@12b5870b: the annotation lists the boards, while the capacity is
    that number times ``deviceSplitCount``.

    Examples
    --------
    >>> labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}
    >>> node = read_node({"metadata": {"name": "n1", "labels": labels}})
    >>> node.gpus, node.model
    (8, 'NVIDIA-H100-80GB-HBM3')
    """
    about, status = part(node, "metadata"), part(node, "status")
    labels, notes, capacity = part(about, "labels"), part(about, "annotations"), part(status, "capacity")
    product = next((words for label in PRODUCTS if (words := text(labels.get(label)))), None)
    model, profile = board_and_profile(product)
    resources = {key: count(value, key) for key, value in capacity.items() if gpu_resource(key)}
    sliced = any(number and gpu_resource(key).profile for key, number in resources.items())  # type: ignore[union-attr]
    config = text(labels.get(CONFIG))
    state = text(labels.get(STATE))
    replicas = {
        key.removesuffix(REPLICAS): number
        for key, value in labels.items()
        if key.endswith(REPLICAS) and (number := count(value, key)) > 1
    }
    if (product or "").endswith(SHARED_SUFFIX) and not replicas:
        replicas = dict.fromkeys(resources, 0)
    registered = registered_boards(notes)
    parted = any(key.startswith((*REGISTERS, *HANDSHAKES)) for key in notes)
    told = not any(resources.values()) and bool(instances_of_labels(labels, 1, model))
    installed, layouts = installed_gpus(labels, resources, replicas, model, profile)
    beats = [instant(each, "lastHeartbeatTime") for each in parts(status, "conditions")]
    return Node(
        name=name_of(node),
        model=model,
        gpus=registered[0] if registered else None if parted and COUNT not in labels else installed,
        profile=None if profile == "INVALID" else profile,
        memory_mib=(registered and registered[1]) or _memory_mib(labels, model, profile),
        replicas=replicas,
        mig=sliced or profile is not None or told,
        layouts=None if registered or parted else layouts,
        config_state=state if config and state != "success" else None,
        **_closed(node),
        domain=text(labels.get(CLIQUE)),
        ownership=next((kind for (key, value), kind in OWNERSHIP.items() if labels.get(key) == value), None),
        installed=instant(about, "creationTimestamp"),
        seen=max((beat for beat in beats if beat), default=None),
    )


def _closed(node: Object) -> Closed:
    """Why a node takes no new jobs, and since when; it still has its GPUs."""
    spec = part(node, "spec")
    words = ["cordoned"] if spec.get("unschedulable") is True else []
    told = [each for each in parts(part(node, "status"), "conditions") if each.get("type") == "Ready"]
    since = [instant(each, "timeAdded") for each in parts(spec, "taints") if each.get("key") in CLOSING]
    if told and told[-1].get("status") != "True":
        words.append("not ready")
        since.append(instant(told[-1], "lastTransitionTime"))
    known = min((each for each in since if each), default=None)
    return {"closed": ", ".join(words) or None, "since": known if words else None}


class Closed(TypedDict):
    """``closed`` and ``since`` of :class:`Node`."""

    closed: str | None
    since: datetime | None


def board_and_profile(product: str | None) -> tuple[str | None, str | None]:
    """Part the label of a product into board and, under the MIG strategy single, profile.

    Examples
    --------
    >>> board_and_profile("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb.me-SHARED")
    ('NVIDIA-H100-80GB-HBM3', '1g.10gb+me')
    """
    if product is None:
        return None, None
    plain = product.removesuffix(SHARED_SUFFIX)
    match = MIG_SUFFIX.search(plain)
    return (plain[: match.start()], match[1].replace(".me", "+me")) if match else (plain, None)


def registered_boards(annotations: Object) -> tuple[int, int | None] | None:
    """Boards that the device plugin of HAMi or Volcano lists, and the memory of one [MiB] if all have the same.

    References
    ----------
    Project-HAMi/HAMi, docs/develop/protocol.md@12b5870b (fields joined by commas, boards by colons); Project-HAMi
    website pull request 835 (JSON since). The memory is that of the board times ``deviceMemoryScaling``, of which
    requests are parts.

    Examples
    --------
    >>> registered_boards({REGISTERS[0]: "GPU-1,10,32768,100,NVIDIA-V100,0,true,0,hami-core:GPU-2,10,32768,100:"})
    (2, 32768)
    >>> registered_boards({REGISTERS[0]: '[{"id": "GPU-1", "count": 10, "devmem": 81559}]'})
    (1, 81559)
    """
    found = next((words for name in REGISTERS if (words := text(annotations.get(name)))), None)
    if found is None:
        return None
    try:
        if found.startswith("["):
            boards = {str(each["id"]): int(each["devmem"]) for each in json.loads(found)}
        else:
            fields = [each.split(",") for each in found.strip(":").split(":")]
            boards = {each[0]: int(each[2]) for each in fields}
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    memory = set(boards.values())
    if not 0 < len(boards) <= MAX_BOARDS or not all(0 < each <= MAX_MEMORY_MIB for each in memory):
        return None
    return len(boards), memory.pop() if len(memory) == 1 else None


def _memory_mib(labels: Object, model: str | None, profile: str | None) -> int | None:
    """Memory of a board [MiB] by its label, else by the catalogue; under the strategy single of an instance: None."""
    if profile is not None:
        return None
    stated = int(within(labels, MEMORY, MAX_MEMORY_MIB))
    boards = [] if stated or model is None else boards_called(model)
    known = facts("mig_profiles").select(board="gpu_model", gib="memory_gib_total")
    known = known.vstack(facts("gpu_specs").select(board="gpu_model", gib="memory_gb"))
    sizes = known.filter(pl.col("board").is_in(boards))["gib"].unique().to_list()
    return stated or (int(sizes[0] * MIB_PER_GIB) if len(sizes) == 1 else None)


def inventory_of(
    nodes: Mapping[str, Node], devices: Iterable[ClaimedDevice]
) -> tuple[pl.DataFrame | None, list[str]]:
    """Inventory of the nodes that have GPUs."""
    boards: dict[str, dict[str, str | None]] = {}
    whole: set[str] = set()
    for device in devices:
        if device.node is not None and device.board is not None:
            boards.setdefault(device.node, {})[device.board] = device.model
            if device.profile is None:  # offered whole, so not cut, though instances may be offered too
                whole.add(device.board)
    rows, unknown = [], []
    for name in sorted({*nodes, *boards}):
        node, listed = nodes.get(name, Node(name)), boards.get(name, {})
        gpus = len(listed) or node.gpus
        if gpus is None:
            unknown.append(name)
        elif gpus:
            models = dict.fromkeys(model for model in listed.values() if model)
            rows.append(
                {
                    "node": name,
                    "gpu_model": node.model or "|".join(models) or None,
                    "gpus": gpus,
                    "nvlink_domain": node.domain,
                    "ownership": node.ownership,
                    "installed": node.installed,
                    "layouts": node.layouts if gpus == node.gpus else None,
                    "mig_enabled": node.mig or not whole.issuperset(listed),
                }
            )
    if unknown or not rows:
        return None, unknown
    table = pl.DataFrame(
        rows,
        schema_overrides={"installed": pl.Datetime("us", "UTC"), "layouts": pl.String},
        infer_schema_length=None,
    )
    return conform(table, Inventory, where="nodes"), unknown


def closed_of(nodes: Mapping[str, Node]) -> pl.DataFrame | None:
    """Nodes that take nothing new, since when; None where no dump says so."""
    rows = [
        {"node": name, "start_time": node.since, "bucket": "down"}
        for name, node in sorted(nodes.items())
        if node.since is not None and node.gpus != 0
    ]
    return conform(pl.DataFrame(rows), TABLES["out_of_service"], where="nodes") if rows else None
