"""The reader of Kubernetes dumps, and warnings about what it did not understand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import polars as pl

from gpuplanner.core.errors import TraceFormatError, examples
from gpuplanner.core.units import SECONDS_PER_HOUR, counted
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import Records, Rows
from gpuplanner.ingest.gpu_shares import resolve_nodes
from gpuplanner.ingest.job_table import assemble, assemble_nodes
from gpuplanner.ingest.kubernetes.api_objects import (
    SHARED,
    gpu_resource,
    kind_of,
    looks_like_kubernetes,
    read_objects,
    unread_kind,
)
from gpuplanner.ingest.kubernetes.cluster_dump import (
    OTHER_KIND,
    RESERVES,
    SEEN_AGAIN,
    Dump,
    quota_table,
    read_dump,
)
from gpuplanner.ingest.kubernetes.job_rows import COUNTED, NO_GPU, PodsAsking, UncertainRequests, job_rows
from gpuplanner.ingest.kubernetes.node_gpus import (
    ASSUMED_SHARES,
    FEWER_UNITS,
    OTHER_COUNT,
    OTHER_MODEL,
    PARTS_OF_BOARDS,
    SHARED_UNITS,
    TOO_MANY,
    UNCONFIRMED,
    UNKNOWN_SHARES,
    Doubt,
)
from gpuplanner.ingest.kubernetes.node_inventory import closed_of, inventory_of
from gpuplanner.ingest.quality_report import Check, Finding
from gpuplanner.ingest.source_definition import looks
from gpuplanner.ingest.text_files import head

ENDED_BETWEEN = "pods whose end is not known: gone in a later dump"
COLLECTED = "Jobs of which some pods are gone"
NO_CLAIMS = "pods with a resourceclaim that is not in the dump"
SHORT_GAP_S = 900.0
"""Dumps so close together miss little of a pod that ends between them."""
CLOSED = "node that takes no new jobs"
NO_NODES = "pods with GPUs, and no node in the dump"
NODES_TOO = (
    "each unit counts as a full GPU, which is too much where GPUs are shared: dump the nodes too "
    "(kubectl get pods,jobs,nodes -A -o json)"
)
GONE_NODES = "pods on nodes that are not in the dump"
BY_CATALOGUE = "parts of the memory of GPUs that no node states"
UNRESOLVED_SHARES = "part of a GPU not known"
GONE_TOO = "dump the nodes together with the pods, before they are removed, where GPUs were shared on them"
LABEL_MEMORY = (
    "dump the nodes and resourceslices too, with nvidia.com/gpu.product, nvidia.com/gpu.memory and "
    "nvidia.com/gpu.replicas=N (units that share a GPU)"
)
NO_NUMBER = "number of GPUs of nodes not known"
LABEL_SHARES = (
    "label the nodes with nvidia.com/gpu.replicas=N (units that share a GPU) and nvidia.com/gpu.product, as "
    "gpu-feature-discovery does, and dump them again"
)

EFFECTS = {
    OTHER_MODEL: "the first label counts for money, energy and layouts: correct the other one",
    OTHER_COUNT: "the first number counts as installed GPUs: correct the label that is wrong",
    SHARED_UNITS: "each unit counts as its equal part of a GPU",
    ASSUMED_SHARES: "each unit counts as its equal part, as in time-slicing; HAMi and others give other parts: "
    + LABEL_SHARES,
    UNCONFIRMED: f"each unit counts as a full GPU, which is too much where GPUs are shared: {LABEL_SHARES}",
    UNKNOWN_SHARES: f"GPU-hours leave their pods out, as the number of GPUs is not known: {LABEL_SHARES}",
    FEWER_UNITS: "the rest counts as installed and, from the dump on, as out of service: check them",
    TOO_MANY: f"units may be shares of GPUs, and GPU-hours leave their pods out: {LABEL_SHARES}",
    PARTS_OF_BOARDS: "each counts as one GPU of its model: GPU-hours are of vGPUs, not of physical GPUs",
}
"""Doubt about a node → which figures it moves; all but :data:`SHARED_UNITS` are warnings."""


def dump_findings(dump: Dump, asked: UncertainRequests, unknown: Sequence[str]) -> list[Finding]:
    """What the objects of a dump leave open.

    Parameters
    ----------
    dump : Dump
        The objects.
    asked : UncertainRequests
        What pods ask for and is not read, or not certain.
    unknown : sequence of str
        Nodes whose number of GPUs does not follow.
    """
    found = [*_unread(dump, asked.unread), *_closed(dump), *_on_nodes(dump)]
    by_catalogue = f"the catalogue's counts, a few percent more or less: {LABEL_MEMORY}"
    for check, things, effect in (
        (GONE_NODES, asked.gone, f"each unit counts as on the nodes that are there: {GONE_TOO}"),
        (BY_CATALOGUE, asked.by_catalogue, by_catalogue),
        (UNRESOLVED_SHARES, asked.unresolved, f"GPU-hours leave them out: {LABEL_MEMORY}"),
    ):
        for name, noted in sorted(things.items()):
            example = f"{noted.example}: {name}"
            text = f"{counted(noted.pods, 'pod')} requested {name}; {effect}"
            found.append(Finding(check, "warning", noted.pods, text, example, noted.device_hours or None))
    found += _missing_objects(dump)
    units = [pod for pod in dump.pods.values() if any(map(gpu_resource, pod.asks))]
    if units and not dump.nodes:
        resources = sorted({name for pod in units for name in pod.asks if gpu_resource(name)})
        example = f"{units[0].namespace}/{units[0].name}: {', '.join(resources)}"
        found.append(Finding(NO_NODES, "warning", len(units), NODES_TOO, example))
    if unknown:
        effect = f"there is no inventory, and the fleet is inferred from its jobs: {LABEL_SHARES}"
        found.append(Finding(NO_NUMBER, "warning", len(unknown), effect, examples(unknown)))
    return found


def _missing_objects(dump: Dump) -> Iterator[Finding]:
    """Pods that ended between two dumps, pods of Jobs that are collected, and claims that no file has."""
    late = [uid for uid, seconds in dump.gone.items() if seconds > SHORT_GAP_S]
    if late:
        pod = dump.pods[late[0]]
        effect = (
            f"{counted(len(late), 'pod')} ran in one dump and are gone in a later one: each ends at the last dump that "
            f"had it, up to {max(dump.gone.values()) / SECONDS_PER_HOUR:,.1f} h too early; dump every ten minutes"
        )
        yield Finding(ENDED_BETWEEN, "warning", len(late), effect, f"{pod.namespace}/{pod.name}")
    left = Counter(uid for pod in dump.pods.values() for _, _, uid in dump.owners(pod))
    missing = {uid: number - left[uid] for uid, number in dump.finished.items() if 0 < left[uid] < number}
    if missing:
        job = dump.jobs[next(iter(missing))]
        effect = f"{counted(sum(missing.values()), 'pod')} that succeeded are gone: GPU-hours leave them out"
        yield Finding(COLLECTED, "warning", len(missing), effect, f"{job.namespace}/{job.name}")
    unknown = [
        pod
        for pod in dump.pods.values()
        if any(
            (pod.namespace, name or "") not in dump.claims and (pod.namespace, template or "") not in dump.templates
            for name, template in pod.claims
        )
    ]
    if unknown:
        effect = (
            f"{counted(len(unknown), 'pod')} use ResourceClaims that the dump lacks, and GPU-hours leave them out: "
            "kubectl get pods,jobs,nodes,resourceclaims,resourceclaimtemplates,resourceslices,deviceclasses "
            "-A -o json"
        )
        yield Finding(NO_CLAIMS, "warning", len(unknown), effect, f"{unknown[0].namespace}/{unknown[0].name}")


def _on_nodes(dump: Dump) -> Iterator[Finding]:
    """One line for each kind of doubt about nodes, with the pods that it concerns."""
    claimed = {device.node for device in dump.devices.values()}
    by_check: dict[str, list[tuple[str, Doubt]]] = {}
    for name, node in sorted(dump.nodes.items()):
        for doubt in node.doubts:
            if doubt.check != FEWER_UNITS or name not in claimed:
                by_check.setdefault(doubt.check, []).append((name, doubt))
    for check, rows in by_check.items():
        severity, effect = "info" if check == SHARED_UNITS else "warning", EFFECTS[check]
        named = examples([f"{name}: {doubt.words}" for name, doubt in rows])
        pods, hours, resources = _pods_on(dump, rows)
        if pods:
            effect = f"{counted(pods, 'pod')} on {counted(len(rows), 'node')} requested {resources}; {effect}"
        known = hours if severity == "warning" and pods else None
        number = pods if pods and check != FEWER_UNITS else len(rows)
        yield Finding(check, severity, number, effect, named, known)


def _unread(dump: Dump, unread: Mapping[str, PodsAsking]) -> Iterator[Finding]:
    """One line for each resource, or device class, that pods ask for or nodes have and that is not read."""
    nodes: dict[str, list[int]] = {}
    for node in dump.nodes.values():
        for name, number in node.unread.items():
            if number:
                nodes.setdefault(name, []).append(number)
    for name in sorted({*unread, *nodes}):
        noted, devices = unread.get(name, PodsAsking()), nodes.get(name, [])
        effect = f"{counted(noted.pods, 'pod')} requested it, and {counted(len(devices), 'node')} had "
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
        effect += f"; the start is not known of {examples(undated)}" if undated else ""
        yield Finding(CLOSED, "info", len(closed), effect, named)


def _pods_on(dump: Dump, rows: Sequence[tuple[str, Doubt]]) -> tuple[int, float, str]:
    """Pods on some nodes that ask for what is in doubt there, their GPU-hours, about, and the resources."""
    doubted: dict[str, set[str | None]] = {}
    for name, doubt in rows:
        doubted.setdefault(name, set()).add(doubt.resource)
    pods, hours, resources = 0, 0.0, set[str]()
    for pod in dump.pods.values():
        of_node = doubted.get(pod.node or "", set())
        units = {name: gpu_resource(name) for name in pod.asks}
        named = [name for name, unit in units.items() if None in of_node or (unit and unit.plain in of_node)]
        if not named or pod.node is None:
            continue
        pods += 1
        resources |= set(named)
        node = dump.nodes[pod.node]
        for name in named:
            there = node.units.get(name.removesuffix(SHARED), 0)
            gpus = pod.asks[name] * node.gpus / there if there and node.gpus else pod.asks[name]
            hours += float(gpus) * pod.hours if units[name] else 0.0
    return pods, hours, ", ".join(sorted(resources))


HARMLESS = (NO_GPU, COUNTED, OTHER_KIND, SEEN_AGAIN, RESERVES)

LEFT_OUT = "kubectl shows what still exists: jobs that were deleted, or cleaned up after their time, are missing"

CHANGING = "nodes whose MIG configuration is not done: "

CHECKS = (
    Check(
        "pods that ran together, joined to one job",
        "info",
        "they started and ended within a minute: the job has the means of their times, and their GPU-hours",
        pl.col("pods") > 1,
    ),
    Check(
        "a Job whose pods are gone",
        "warning",
        "its own times were taken: queueing delays are too short and GPU-hours may be too high",
        pl.col("told_by") == "Job",
    ),
    Check(
        "sent back to the queue before",
        "warning",
        "only the last admission is in the source: GPU-hours of the earlier ones are missing",
        pl.col("evictions") > 0,
    ),
    Check(
        "GPUs shared with other pods",
        "info",
        "each counts with its share of the GPU",
        (pl.col("gpus") % 1 != 0) & pl.col("instances").is_null(),
    ),
)


@looks(looks_like_kubernetes)
def read_kubernetes(paths: Sequence[str | Path], *, boards: Mapping[str, str] | None = None) -> Dataset:
    """Read dumps of Kubernetes objects.

    The more kinds a dump holds, the more is known: ``kubectl get pods,jobs,nodes -A -o json``, with Kueue
    also ``workloads,clusterqueues,localqueues,resourceflavors``, with DRA also
    ``resourceclaims,resourceclaimtemplates,resourceslices``. A job is, in this order, a Workload of Kueue
    (from its admission), the pods of one owner that ran together (from their binding to nodes), a pod by
    itself, or a Job of which no pod is left. The tenant is the ClusterQueue, the queue of KAI or Volcano, or else the
    namespace. The inventory comes with it where every node tells its GPUs, and the quotas where there are queues; of
    nodes alone, the inventory.
    Files are JSON (lists, lines, or objects in a row) or YAML; `boards`: product label → board.

    Examples
    --------
    >>> import json, tempfile
    >>> pod = {
    ...     "apiVersion": "v1",
    ...     "kind": "Pod",
    ...     "metadata": {"name": "train", "namespace": "ads", "creationTimestamp": "2025-09-01T08:00:00Z"},
    ...     "spec": {"nodeName": "n1", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]},
    ...     "status": {
    ...         "phase": "Succeeded",
    ...         "startTime": "2025-09-01T09:00:00Z",
    ...         "containerStatuses": [{"state": {"terminated": {"finishedAt": "2025-09-01T12:00:00Z"}}}],
    ...     },
    ... }
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "dump.json"
    ...     _ = path.write_text(json.dumps({"kind": "List", "items": [pod]}))
    ...     read_kubernetes([path]).summary()["gpu_hours"]
    6.0
    """
    if not paths:
        raise TraceFormatError("kubernetes", "at least one file", "none", "Give at least one file.")
    dump = read_dump(paths)
    _require_objects(dump, paths)
    return dataset_of(dump, paths, boards)


def _require_objects(dump: Dump, paths: Sequence[str | Path]) -> None:
    """Refuse files of configuration alone, such as a NodePool or a ResourceQuota."""
    kinds = {place.raw.partition(" ")[0] for place, reason in dump.rejects if reason == OTHER_KIND}
    if kinds and not (dump.pods or dump.jobs or dump.workloads or dump.nodes or dump.devices):
        names = ", ".join(str(path) for path in paths)
        todo = "Run kubectl get pods,jobs,nodes -A -o json > dump.json."
        got = f"objects of kind {examples(sorted(kinds))} alone"
        raise TraceFormatError(names, "pods, jobs, workloads or nodes", got, todo)


def dataset_of(
    dump: Dump,
    paths: Sequence[str | Path],
    boards: Mapping[str, str] | None = None,
    *,
    last_seen: datetime | None = None,
) -> Dataset:
    """Jobs, nodes and quotas of objects, or of nodes alone the inventory.

    Parameters
    ----------
    dump : Dump
        The objects.
    paths : sequence of str or Path
        Where they come from.
    boards : mapping, optional
        Product label → GPU model.
    last_seen : datetime, optional
        Until when running jobs are counted, where no node says so.
    """
    if not (dump.pods or dump.jobs or dump.workloads) and (dump.nodes or dump.devices):
        return _node_list(dump, paths, boards)
    rows, names, asked = job_rows(dump)
    inventory, unknown = inventory_of(dump.nodes, dump.devices.values())
    last_beat = max((node.seen for node in dump.nodes.values() if node.seen), default=last_seen)
    trace = assemble(
        _with_attempts(rows),
        source="kubernetes",
        last_seen=pl.lit(last_beat, pl.Datetime("us", "UTC")),
        checks=CHECKS,
        notes=_notes(dump),
        harmless=HARMLESS,
        findings=dump_findings(dump, asked, unknown),
        inventory=inventory,
        boards=boards,
    )
    leaves = {name: rows for name, rows in dump.quotas.items() if name not in dump.above}
    models = {flavor: dump.board_of(flavor) for flavor in dump.flavors}
    return trace.with_tables(
        queue_quotas=quota_table(leaves, models, dump.queues),
        job_names=names if names.height else None,
        out_of_service=closed_of(dump.nodes, dump.devices.values()),
    )


def read_kubernetes_nodes(paths: Sequence[str | Path], *, boards: Mapping[str, str] | None = None) -> Dataset:
    """Read the nodes of dumps of Kubernetes objects, and nothing else of them, as an inventory.

    Examples
    --------
    >>> import json, tempfile
    >>> labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}
    >>> node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": labels}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "nodes.json"
    ...     _ = path.write_text(json.dumps({"kind": "List", "items": [node]}))
    ...     read_kubernetes_nodes([path]).summary()["gpus"]
    8
    """
    return _node_list(read_dump(paths), paths, boards)


def is_nodes_alone(path: str | Path) -> bool:
    """True if a file of Kubernetes objects holds nodes and nothing else; read up to the first other object."""
    if not any("Node" in line for line in head(path)):
        return False
    kinds = map(kind_of, read_objects(path)[1])
    return next(kinds, None) == "Node" and all(kind == "Node" for kind in kinds)


def _node_list(dump: Dump, paths: Sequence[str | Path], boards: Mapping[str, str] | None) -> Dataset:
    """The inventory of a dump as a dataset of its own."""
    inventory, unknown = inventory_of(dump.nodes, dump.devices.values())
    if inventory is None:
        got = f"no number for {examples(unknown)}" if unknown else "no node with GPUs"
        names = ", ".join(str(path) for path in paths)
        todo = "Dump the nodes with their labels and capacity: kubectl get nodes -o json."
        raise TraceFormatError(names, "nodes with their number of GPUs", got, todo)
    table, findings = resolve_nodes(inventory, boards)
    records = Records({})
    for where, reason in dump.rejects:
        records.reject(where.file, where.item, where.raw, reason)
    rows = records.rows(dump.files)
    place = {"file": pl.lit(0, pl.UInt32), "line": pl.int_range(1, pl.len() + 1), "raw": pl.col("node")}
    findings += dump_findings(dump, UncertainRequests(), unknown)
    found = assemble_nodes(rows, table.with_columns(**place), findings, notes=_changing(dump))
    return found.with_tables(out_of_service=closed_of(dump.nodes, dump.devices.values()))


def _notes(dump: Dump) -> list[str]:
    notes = [LEFT_OUT, *_changing(dump)]
    if not any(node.seen for node in dump.nodes.values()):
        notes.append("no nodes with heartbeats: running jobs are counted up to the last event in the dump")
    return notes


def _changing(dump: Dump) -> list[str]:
    """The nodes whose GPUs may soon be cut otherwise."""
    nodes = sorted(f"{name} ({node.config_state})" for name, node in dump.nodes.items() if node.config_state)
    return [f"{CHANGING}{examples(nodes)}"] if nodes else []


def _with_attempts(rows: Rows) -> Rows:
    """Number the rows of each job by time; evictions that Kueue counted come before the row."""
    order = pl.coalesce("start_time", "submit_time")
    evictions = pl.col("evictions").fill_null(0)
    frame = rows.good.sort(order, "file", "line", maintain_order=True)
    tries = (1 + evictions).cum_sum().over("job_id")
    return replace(rows, good=frame.with_columns(attempt=tries).sort("file", "line", maintain_order=True))
