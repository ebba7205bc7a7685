"""Kubernetes: jobs, nodes and quotas of a dump of objects, with Kueue and Dynamic Resource Allocation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import polars as pl

from gpuplanner.errors import TraceFormatError, examples, message
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.findings import Check
from gpuplanner.inbox.core.job_rows import assemble
from gpuplanner.inbox.core.lines.rows import Records, Rows
from gpuplanner.inbox.core.lines.text_file import head
from gpuplanner.inbox.core.shares import resolve_nodes
from gpuplanner.inbox.core.source import looks
from gpuplanner.inbox.core.table_rows import assemble_nodes
from gpuplanner.inbox.kubernetes.doubts import dump_findings
from gpuplanner.inbox.kubernetes.dump import OTHER_KIND, RESERVES, SEEN_AGAIN, Dump, read_dump
from gpuplanner.inbox.kubernetes.job_rows import COUNTED, NO_GPU, UncertainRequests, job_rows
from gpuplanner.inbox.kubernetes.kueue import quota_table
from gpuplanner.inbox.kubernetes.nodes import closed_of, inventory_of
from gpuplanner.inbox.kubernetes.objects import looks_like_kubernetes
from gpuplanner.inbox.kubernetes.yaml_items import kind_of, read_objects

HARMLESS = (NO_GPU, COUNTED, OTHER_KIND, SEEN_AGAIN, RESERVES)

LEFT_OUT = (
    "kubectl shows what still exists: jobs that were deleted, or cleaned up after their time, are missing"
)

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
        raise TraceFormatError(message("kubernetes", "at least one file", "none", "Give the path of a file."))
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
        raise TraceFormatError(message(names, "pods, jobs, workloads or nodes", got, todo))


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
    found, names, asked = job_rows(dump)
    rows = _with_attempts(found)
    inventory, unknown = inventory_of(dump.nodes, dump.devices.values())
    beats: list[datetime | None] = [node.seen for node in dump.nodes.values() if node.seen] or [last_seen]
    trace = assemble(
        rows,
        source="kubernetes",
        last_seen=pl.lit(max((beat for beat in beats if beat), default=None), pl.Datetime("us", "UTC")),
        checks=CHECKS,
        notes=_notes(dump),
        harmless=HARMLESS,
        findings=dump_findings(dump, asked, unknown),
        inventory=inventory,
        boards=boards,
    )
    leaves = {name: rows for name, rows in dump.quotas.items() if name not in dump.above}
    models = {flavor: dump.board_of(flavor) for flavor in dump.flavors}
    quotas = quota_table(leaves, models, dump.queues)
    return trace.with_tables(
        queue_quotas=quotas,
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
        raise TraceFormatError(message(names, "nodes that tell how many GPUs they have", got, todo))
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
