"""Nodes of a Kubernetes cluster: boards, number of GPUs, MIG, from labels, capacity and DRA devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import polars as pl

from gpuplanner.inbox.kubernetes.node_gpus import CONFIG, NodeGpus, gpus_of_node
from gpuplanner.inbox.kubernetes.objects import Object, instant, name_of, part, parts, text
from gpuplanner.inbox.kubernetes.resource_claims import ClaimedDevice
from gpuplanner.schemas.domain import TABLES, Inventory
from gpuplanner.schemas.check import conform

STATE = "nvidia.com/mig.config.state"
CLIQUE = "nvidia.com/gpu.clique"

CLOSING = frozenset(
    f"node.kubernetes.io/{word}" for word in ("unschedulable", "not-ready", "unreachable", "out-of-service")
)
"""Taints of a node that takes nothing new: Kubernetes, Well-Known Labels, Annotations and Taints."""

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
class Node(NodeGpus):
    """What one node tells, beside its GPUs.

    - ``name``: Name of the node.
    - ``config_state``: State of the MIG configuration, where it is not done.
    - ``closed``, ``since``: Why it takes no new jobs: ``"cordoned"``, ``"not ready"``; None if it does. And since when,
      where a taint or a condition says it.
    - ``domain``, ``ownership``: Fabric clique; how the node is paid for.
    - ``installed``, ``seen``: When the node joined, and when it was last heard of.
    - ``labels``: Its labels, by which flavors of Kueue select it.
    """

    name: str
    config_state: str | None = None
    closed: str | None = None
    since: datetime | None = None
    domain: str | None = None
    ownership: str | None = None
    installed: datetime | None = None
    seen: datetime | None = None
    labels: Object = field(default_factory=dict)


def read_node(node: Object) -> Node:
    """Read an object of kind Node.

    Examples
    --------
    >>> labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}
    >>> node = read_node({"metadata": {"name": "n1", "labels": labels}})
    >>> node.gpus, node.model
    (8, 'NVIDIA-H100-80GB-HBM3')
    """
    about, status = part(node, "metadata"), part(node, "status")
    labels = part(about, "labels")
    state = text(labels.get(STATE))
    beats = [instant(each, "lastHeartbeatTime") for each in parts(status, "conditions")]
    gpus = gpus_of_node(
        labels, part(about, "annotations"), part(status, "capacity"), part(status, "allocatable")
    )
    closed, since = _closed(node)
    return Node(
        **vars(gpus),
        name=name_of(node),
        config_state=state if text(labels.get(CONFIG)) and state != "success" else None,
        closed=closed,
        since=since,
        domain=text(labels.get(CLIQUE)),
        ownership=next((kind for (key, value), kind in OWNERSHIP.items() if labels.get(key) == value), None),
        installed=instant(about, "creationTimestamp"),
        seen=max((beat for beat in beats if beat), default=None),
        labels=labels,
    )


def _closed(node: Object) -> tuple[str | None, datetime | None]:
    """Why a node takes no new jobs, and since when; it still has its GPUs."""
    spec = part(node, "spec")
    words = ["cordoned"] if spec.get("unschedulable") is True else []
    told = [each for each in parts(part(node, "status"), "conditions") if each.get("type") == "Ready"]
    since = [instant(each, "timeAdded") for each in parts(spec, "taints") if each.get("key") in CLOSING]
    if told and told[-1].get("status") != "True":
        words.append("not ready")
        since.append(instant(told[-1], "lastTransitionTime"))
    known = min((each for each in since if each), default=None)
    return ", ".join(words) or None, known if words else None


def inventory_of(
    nodes: Mapping[str, Node], devices: Iterable[ClaimedDevice]
) -> tuple[pl.DataFrame | None, list[str]]:
    """Inventory of the nodes that have GPUs."""
    boards: dict[str, dict[str, str | None]] = {}
    partitioned: set[str] = set()  # nodes of which a driver offers instances, cut already or on demand
    for device in devices:
        if device.node is not None and device.board is not None:
            boards.setdefault(device.node, {})[device.board] = device.model
            if device.profile is not None:
                partitioned.add(device.node)
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
                    "mig_enabled": node.mig or name in partitioned,
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


def closed_of(nodes: Mapping[str, Node], devices: Iterable[ClaimedDevice]) -> pl.DataFrame | None:
    """GPUs that take nothing new, since when; None where no dump says so.

    Whole nodes that are closed, and GPUs that a node has and does not offer. Where nothing says since when, it is
    since the node was last heard of: before, it may have taken jobs.
    """
    claimed = {device.node for device in devices}
    rows = []
    for name, node in sorted(nodes.items()):
        row = {"node": name, "start_time": node.since or node.seen, "gpus": None, "bucket": "down"}
        part_of_it = node.withheld and name not in claimed
        if not node.gpus and node.gpus != 0 and not node.since:
            continue
        if node.gpus == 0 or row["start_time"] is None or not (node.closed or part_of_it):
            continue
        rows.append(row if node.closed else row | {"gpus": float(node.withheld)})
    table = pl.DataFrame(rows, schema_overrides={"gpus": pl.Float64}, infer_schema_length=None)
    return conform(table, TABLES["out_of_service"], where="nodes") if rows else None
