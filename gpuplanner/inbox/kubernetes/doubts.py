"""What a dump of Kubernetes leaves open: resources that are not read, and nodes whose words do not fit together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpuplanner.errors import examples
from gpuplanner.inbox.core.findings import Finding
from gpuplanner.inbox.kubernetes.dump import Dump
from gpuplanner.inbox.kubernetes.job_rows import Unread
from gpuplanner.inbox.kubernetes.node_gpus import (
    FEWER_UNITS,
    OTHER_COUNT,
    OTHER_MODEL,
    PARTS_OF_BOARDS,
    SHARED_UNITS,
    TOO_MANY,
    UNKNOWN_SHARES,
    Doubt,
)
from gpuplanner.inbox.kubernetes.objects import gpu_resource, unread_kind
from gpuplanner.inbox.kubernetes.pods import Holding
from gpuplanner.units import SECONDS_PER_HOUR, counted

CLOSED = "node that takes no new jobs"
NO_NODES = "pods with GPUs, and no node in the dump"
NODES_TOO = (
    "each unit counts as a full GPU, which is too much where GPUs are shared: dump the nodes too "
    "(kubectl get pods,jobs,nodes -A -o json)"
)
NO_NUMBER = "number of GPUs of nodes not known"
LABEL_SHARES = (
    "label the nodes with nvidia.com/gpu.replicas=N (units that share a GPU) and nvidia.com/gpu.product, as "
    "gpu-feature-discovery does, and dump them again"
)

EFFECTS = {
    OTHER_MODEL: ("warning", "the first label counts for money, energy and layouts: correct the other one"),
    OTHER_COUNT: ("warning", "the first number counts as installed GPUs: correct the label that is wrong"),
    SHARED_UNITS: ("info", "each unit counts as its equal part of a GPU"),
    UNKNOWN_SHARES: (
        "warning",
        f"GPU-hours leave their pods out, as the number of GPUs is not known: {LABEL_SHARES}",
    ),
    FEWER_UNITS: (
        "warning",
        "the rest counts as installed and, from the dump on, as out of service: check them",
    ),
    TOO_MANY: (
        "warning",
        f"units may be shares of GPUs, and GPU-hours too high by their number: {LABEL_SHARES}",
    ),
    PARTS_OF_BOARDS: (
        "warning",
        "each counts as one GPU of its model: GPU-hours are of vGPUs, not of boards",
    ),
}
"""Doubt about a node → severity, and which figures it moves."""


def dump_findings(dump: Dump, unread: Mapping[str, Unread], unknown: Sequence[str]) -> list[Finding]:
    """What the objects of a dump leave open.

    Parameters
    ----------
    dump : Dump
        The objects.
    unread : mapping
        Resource or device class that is not read → who asks for it.
    unknown : sequence of str
        Nodes whose number of GPUs does not follow.
    """
    claimed = {device.node for device in dump.devices.values()}
    found = [*_unread(dump, unread), *_closed(dump)]
    by_check: dict[str, list[tuple[str, Doubt]]] = {}
    for name, node in sorted(dump.nodes.items()):
        for doubt in node.doubts:
            if doubt.check != FEWER_UNITS or name not in claimed:
                by_check.setdefault(doubt.check, []).append((name, doubt))
    for check, rows in by_check.items():
        severity, effect = EFFECTS[check]
        named = examples([f"{name}: {doubt.words}" for name, doubt in rows])
        pods, hours = _pods_on(dump, rows)
        of_pods = check in (SHARED_UNITS, UNKNOWN_SHARES, TOO_MANY) and pods
        known = hours if check == UNKNOWN_SHARES and pods else None
        found.append(Finding(check, severity, pods if of_pods else len(rows), effect, named, known))
    units = [pod for pod in dump.pods.values() if any(map(gpu_resource, pod.asks))]
    if units and not dump.nodes:
        example = f"{units[0].namespace}/{units[0].name}"
        found.append(Finding(NO_NODES, "warning", len(units), NODES_TOO, example))
    if unknown:
        effect = f"there is no inventory, and the fleet is inferred from its jobs: {LABEL_SHARES}"
        found.append(Finding(NO_NUMBER, "warning", len(unknown), effect, examples(unknown)))
    return found


def _unread(dump: Dump, unread: Mapping[str, Unread]) -> Iterator[Finding]:
    """One line for each resource, or device class, that pods ask for or nodes have and that is not read."""
    nodes: dict[str, list[int]] = {}
    for node in dump.nodes.values():
        for name, number in node.unread.items():
            if number:
                nodes.setdefault(name, []).append(number)
    for name in sorted({*unread, *nodes}):
        noted, devices = unread.get(name, Unread()), nodes.get(name, [])
        effect = f"{counted(noted.pods, 'pod')} asked for it, and {counted(len(devices), 'node')} had "
        effect += f"{counted(sum(devices), 'device')} of it; "
        if unread_kind(name) == "accelerator":
            effect += "it is no GPU of the catalogue, and no figure counts it"
        elif "/" in name:
            effect += "it may be a GPU or a part of one, and GPU-hours leave its pods out"
        else:
            effect += "it may be of GPUs, and GPU-hours leave its pods out: dump deviceclasses and resourceclaims too"
        hours = None if unread_kind(name) == "accelerator" else noted.device_hours
        severity = "warning" if noted.pods or hours is not None else "info"
        yield Finding(f"{name} is not read", severity, noted.pods, effect, noted.example, hours)


def _closed(dump: Dump) -> Iterator[Finding]:
    closed = {name: node for name, node in sorted(dump.nodes.items()) if node.closed and node.gpus}
    undated = [name for name, node in closed.items() if node.since is None]
    if closed:
        named = examples([f"{name} ({node.closed})" for name, node in closed.items()])
        effect = "its GPUs count as installed, and as down since it was closed, or from the dump on"
        effect += f"; since when is not said of {examples(undated)}" if undated else ""
        yield Finding(CLOSED, "info", len(closed), effect, named)


def _pods_on(dump: Dump, rows: Sequence[tuple[str, Doubt]]) -> tuple[int, float]:
    """Pods on some nodes that ask for the resource that is in doubt there, and their GPU-hours, about."""
    doubted = {(name, doubt.resource) for name, doubt in rows}
    pods, hours = 0, 0.0
    for pod in dump.pods.values():
        for name, number in pod.asks.items():
            resource = gpu_resource(name)
            if resource is None or pod.node is None or (pod.node, resource.plain) not in doubted:
                continue
            node = dump.nodes[pod.node]
            units = node.units.get(resource.plain, 0)
            pods += 1
            if pod.start and pod.end and units:
                hours += float(number * (node.gpus or units) / units) * _hours(pod)
    return pods, hours


def _hours(pod: Holding) -> float:
    return (pod.end - pod.start).total_seconds() / SECONDS_PER_HOUR if pod.start and pod.end else 0.0
