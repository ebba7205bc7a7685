"""Nodes of a Kubernetes cluster: boards, number of GPUs, MIG, from labels, capacity and DRA devices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

import polars as pl

from gpuplanner.catalog import facts
from gpuplanner.inbox.kubernetes.resource_claims import Device
from gpuplanner.inbox.kubernetes.words import Object, count, gpu_resource, instant, part, parts, text
from gpuplanner.schemas import Inventory, conform

PRODUCT = "nvidia.com/gpu.product"
PRODUCTS = (PRODUCT, "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator")
"""Labels that name the board, best first."""

COUNT = "nvidia.com/gpu.count"
CONFIG = "nvidia.com/mig.config"
STATE = "nvidia.com/mig.config.state"
CLIQUE = "nvidia.com/gpu.clique"
REPLICAS = ".replicas"
MIG_SUFFIX = re.compile(r"-MIG-([^-]+(?:-me)?)$")

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

    Attributes
    ----------
    name : str
        Name of the node.
    model : str, optional
        Board, in the words of the source.
    gpus : int, optional
        GPUs installed; None if it does not follow from what the node tells.
    profile : str, optional
        Profile of the instances that ``nvidia.com/gpu`` stands for (MIG strategy single).
    replicas : mapping of str to int
        Resource → pods that share one unit of it, where more than one does.
    mig : bool
        MIG mode is on.
    config_state : str, optional
        State of the MIG configuration, where it is not done.
    domain, ownership : str, optional
        Fabric clique; how the node is paid for.
    installed, seen : datetime, optional
        When the node joined, and when it was last heard of.
    """

    name: str
    model: str | None
    gpus: int | None
    profile: str | None
    replicas: Mapping[str, int]
    mig: bool
    config_state: str | None
    domain: str | None
    ownership: str | None
    installed: datetime | None
    seen: datetime | None


def read_node(node: Object) -> Node:
    """Read an object of kind Node.

    Raises
    ------
    ValueError
        If it has no name, or a figure that is none.

    References
    ----------
    NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery: under the MIG strategy ``single`` the labels count
    instances, and the product carries the profile; else they count GPUs, those in MIG mode too.

    Examples
    --------
    >>> labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}
    >>> node = read_node({"metadata": {"name": "n1", "labels": labels}})
    >>> node.gpus, node.model
    (8, 'NVIDIA-H100-80GB-HBM3')
    """
    about, status = part(node, "metadata"), part(node, "status")
    labels, capacity = part(about, "labels"), part(status, "capacity")
    name = text(about.get("name"))
    if name is None:
        reason = "metadata.name: missing"
        raise ValueError(reason)
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
    beats = [instant(each, "lastHeartbeatTime") for each in parts(status, "conditions")]
    return Node(
        name=name,
        model=model,
        gpus=_installed(labels, resources, replicas, sliced, model, profile, config),
        profile=None if profile == "INVALID" else profile,
        replicas=replicas,
        mig=sliced or profile is not None,
        config_state=state if config and state != "success" else None,
        domain=text(labels.get(CLIQUE)),
        ownership=next((kind for (key, value), kind in OWNERSHIP.items() if labels.get(key) == value), None),
        installed=instant(about, "creationTimestamp"),
        seen=max((beat for beat in beats if beat), default=None),
    )


def board_and_profile(product: str | None) -> tuple[str | None, str | None]:
    """Part the label of a product into board and, under the MIG strategy single, profile.

    Examples
    --------
    >>> board_and_profile("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb.me-SHARED")
    ('NVIDIA-H100-80GB-HBM3', '1g.10gb+me')
    """
    if product is None:
        return None, None
    plain = product.removesuffix("-SHARED")
    match = MIG_SUFFIX.search(plain)
    return (plain[: match.start()], match[1].replace(".me", "+me")) if match else (plain, None)


def _installed(
    labels: Object,
    resources: Mapping[str, int],
    replicas: Mapping[str, int],
    sliced: bool,
    model: str | None,
    profile: str | None,
    config: str | None,
) -> int | None:
    """GPUs of a node: the label, instances turned into boards, or the capacity of unshared whole GPUs."""
    if COUNT in labels:
        stated = count(labels[COUNT], COUNT)
        if profile is None:
            return stated
        if config != f"all-{profile.replace('+', '.')}" or model is None:
            return None
        each = _instances_per_board(model, profile)
        return stated // each if each and stated % each == 0 else None
    if sliced or profile:
        return None
    total = 0
    for name, number in resources.items():
        share = replicas.get(name.removesuffix(".shared"), 1)
        if number % share or (name.endswith(".shared") and share == 1):
            return None
        total += number // share
    return total


def _instances_per_board(model: str, profile: str) -> int | None:
    """Instances of a profile on a full board; None where the boards that the name fits differ."""
    words = set(model.upper().split("-"))
    rows = facts("mig_profiles").filter(pl.col("profile") == profile)
    fits = [
        most
        for board, most in rows.select("gpu_model", "max_instances").iter_rows()
        if set(board.upper().split("-")[:2]) <= words
    ]
    return fits[0] if len(set(fits)) == 1 else None


def inventory_of(
    nodes: Mapping[str, Node], devices: Iterable[Device]
) -> tuple[pl.DataFrame | None, list[str]]:
    """Inventory of the nodes that have GPUs.

    Parameters
    ----------
    nodes : mapping of str to Node
        By name.
    devices : iterable of Device
        DRA devices of the cluster. A node whose driver lists them counts these.

    Returns
    -------
    inventory : polars.DataFrame or None
        Table ``schemas.Inventory``; None if there are no nodes with GPUs, or if any has an unknown number
        of them: a denominator that is not whole is none.
    unknown : list of str
        Names of the nodes whose number of GPUs does not follow from what they tell.
    """
    boards: dict[str, dict[str, str | None]] = {}
    whole: set[str] = set()
    for device in devices:
        if device.node is not None and device.board is not None:
            boards.setdefault(device.node, {})[device.board] = device.model
            if device.profile is None:  # offered whole, so not cut, though instances may be offered too
                whole.add(device.board)
    rows, unknown = [], []
    for name in sorted({*nodes, *boards}):
        node, listed = nodes.get(name), boards.get(name)
        gpus = len(listed) if listed else node.gpus if node else None
        if gpus is None:
            unknown.append(name)
        elif gpus:
            models = dict.fromkeys(model for model in (listed or {}).values() if model)
            rows.append(
                {
                    "node": name,
                    "gpu_model": (node and node.model) or "|".join(models) or None,
                    "gpus": gpus,
                    "nvlink_domain": node.domain if node else None,
                    "ownership": node.ownership if node else None,
                    "installed": node.installed if node else None,
                    "mig_enabled": (node.mig if node else False) or not whole.issuperset(listed or ()),
                }
            )
    if unknown or not rows:
        return None, unknown
    table = pl.DataFrame(
        rows, schema_overrides={"installed": pl.Datetime("us", "UTC")}, infer_schema_length=None
    )
    return conform(table, Inventory, where="nodes"), unknown
