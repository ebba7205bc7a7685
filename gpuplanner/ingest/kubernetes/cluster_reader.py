"""The reader of Kubernetes dumps, and the findings of the quality report on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from pathlib import Path

import polars as pl

from gpuplanner.core.errors import TraceFormatError, examples, printable_file_name
from gpuplanner.core.schema_checks import make_empty_table
from gpuplanner.core.schemas import NodeDumps
from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR, count_text
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import RecordCollector, Rows
from gpuplanner.ingest.job_gpu_counting import resolve_node_models
from gpuplanner.ingest.kubernetes.api_objects import (
    SHARED_RESOURCE_SUFFIX,
    classify_unread_resource,
    item_kind,
    looks_like_kubernetes,
    parse_gpu_resource,
    read_objects,
)
from gpuplanner.ingest.kubernetes.cluster_dump import (
    DUPLICATE_OBJECT_REASON,
    RESERVATION_POD_REASON,
    UNREAD_KIND_REASON,
    ClusterDump,
    read_dump,
)
from gpuplanner.ingest.kubernetes.job_rows import (
    COUNTED_WITH_JOB_REASON,
    NO_GPU_REQUEST_REASON,
    ResourceRequests,
    UncertainRequests,
    count_request_kinds,
    make_job_rows,
)
from gpuplanner.ingest.kubernetes.node_labels import NodeDoubt
from gpuplanner.ingest.kubernetes.nodes_and_dra_devices import (
    NVIDIA_DRA_DRIVER,
    make_inventory,
    make_out_of_service_table,
)
from gpuplanner.ingest.kubernetes.queue_quotas import make_quota_table
from gpuplanner.ingest.node_dump_history import make_node_dumps, merge_node_histories
from gpuplanner.ingest.quality_report import Finding, check_text, source_check, source_finding
from gpuplanner.ingest.source_definition import register_sniffer
from gpuplanner.ingest.table_assembly import assemble_jobs, assemble_nodes
from gpuplanner.ingest.text_files import read_head

MAX_HARMLESS_DUMP_GAP_S = 900.0
"""Longest time between two dumps [s] for which a pod that ended between them gets no warning."""


def dump_findings(dump: ClusterDump, requests: UncertainRequests, nodes_without_count: Sequence[str]) -> list[Finding]:
    """Make the findings of the quality report on a dump: resources, nodes and objects that are unknown or uncertain.

    Parameters
    ----------
    dump : ClusterDump
        The objects of the dump.
    requests : UncertainRequests
        Requests of pods that are not read, or whose number of GPUs is uncertain.
    nodes_without_count : sequence of str
        Nodes whose number of GPUs is unknown.

    Returns
    -------
    list of Finding
    """
    findings = [*_unread_resource_findings(dump, requests.unread), *_closed_node_findings(dump)]
    findings += _node_doubt_findings(dump)
    for check, requests_by_name in (
        ("kubernetes: node not in the dump", requests.on_missing_nodes),
        ("kubernetes: unstated GPU memory", requests.by_catalogue),
        ("kubernetes: unresolved shares", requests.unresolved),
    ):
        for name, requested in sorted(requests_by_name.items()):
            parts = {"pods": count_text(requested.pods, "pod"), "resource": name}
            hours = requested.device_hours or None
            findings.append(source_finding(check, requested.pods, f"{requested.example}: {name}", hours, **parts))

    findings += _missing_object_findings(dump)
    if dra_nodes := _find_dra_nodes(dump):
        findings.append(source_finding("kubernetes: DRA driver", len(dra_nodes), examples(dra_nodes)))
    gpu_pods = [pod for pod in dump.pods.values() if any(map(parse_gpu_resource, pod.gpu_requests))]
    if gpu_pods and not dump.nodes:
        resources = sorted({name for pod in gpu_pods for name in pod.gpu_requests if parse_gpu_resource(name)})
        example = f"{gpu_pods[0].namespace}/{gpu_pods[0].name}: {', '.join(resources)}"
        findings.append(source_finding("kubernetes: no node in the dump", len(gpu_pods), example))
    if nodes_without_count:
        n_nodes, example = len(nodes_without_count), examples(nodes_without_count)
        findings.append(source_finding("kubernetes: unknown GPU count", n_nodes, example))
    return findings


def _find_dra_nodes(dump: ClusterDump) -> list[str]:
    """Find the nodes whose GPUs the DRA driver of NVIDIA offers."""
    return sorted({str(device.node) for device in dump.devices.values() if device.key[0] == NVIDIA_DRA_DRIVER})


def _missing_object_findings(dump: ClusterDump) -> Iterator[Finding]:
    """Yield findings on pods that ended between dumps, deleted pods of Jobs, and ResourceClaims that no file has."""
    vanished = [uid for uid, seconds in dump.vanished_gap_s.items() if seconds > MAX_HARMLESS_DUMP_GAP_S]
    if vanished:
        pod = dump.pods[vanished[0]]
        max_gap_h = max(dump.vanished_gap_s.values()) / SECONDS_PER_HOUR
        n_pods, example = count_text(len(vanished), "pod"), f"{pod.namespace}/{pod.name}"
        yield source_finding("kubernetes: vanished pods", len(vanished), example, pods=n_pods, hours=max_gap_h)

    pods_left = Counter(uid for pod in dump.pods.values() for _, _, uid in dump.find_controllers(pod))
    succeeded = dump.succeeded_pods
    missing = {uid: number - pods_left[uid] for uid, number in succeeded.items() if 0 < pods_left[uid] < number}
    if missing:
        job = dump.jobs[next(iter(missing))]
        n_pods = count_text(sum(missing.values()), "pod")
        yield source_finding("kubernetes: collected pods", len(missing), f"{job.namespace}/{job.name}", pods=n_pods)

    pods = [pod for pod in dump.pods.values() if len(dump.find_claims(pod)) < len(pod.claims)]
    if pods:
        n_pods, example = count_text(len(pods), "pod"), f"{pods[0].namespace}/{pods[0].name}"
        yield source_finding("kubernetes: missing claims", len(pods), example, pods=n_pods)


def _node_doubt_findings(dump: ClusterDump) -> Iterator[Finding]:
    """Yield a finding for each check on labels and capacity that nodes fail, with the number of affected pods."""
    nodes_with_devices = {device.node for device in dump.devices.values()}
    by_check: dict[str, list[tuple[str, NodeDoubt]]] = {}
    for name, node in sorted(dump.nodes.items()):
        for doubt in node.doubts:
            if doubt.check != "kubernetes: withheld GPUs" or name not in nodes_with_devices:
                by_check.setdefault(doubt.check, []).append((name, doubt))
    for check, rows in by_check.items():
        pods, hours, resources = _affected_pods(dump, rows)
        number = pods if pods and check != "kubernetes: withheld GPUs" else len(rows)
        finding = source_finding(check, number, examples([f"{name}: {doubt.evidence}" for name, doubt in rows]))
        if pods:
            requested = f"{count_text(pods, 'pod')} on {count_text(len(rows), 'node')} requested {resources}"
            finding = replace(finding, effect=f"{requested}; {finding.effect}")
        # Where the number of GPUs is not known, these are hours of units.
        has_gpus = check not in ("kubernetes: unknown replicas", "kubernetes: too many GPUs")
        has_hours = finding.severity == "warning" and pods > 0 and has_gpus
        yield replace(finding, gpu_hours=hours) if has_hours else finding


def _unread_resource_findings(dump: ClusterDump, unread: Mapping[str, ResourceRequests]) -> Iterator[Finding]:
    """Yield a finding for each resource or device class of nodes or pod requests that is not read, GPU or not."""
    devices_by_resource: dict[str, list[int]] = {}
    for node in dump.nodes.values():
        for name, number in node.unread.items():
            if number:
                devices_by_resource.setdefault(name, []).append(number)
    for name in sorted({*unread, *devices_by_resource}):
        requests = unread.get(name, ResourceRequests())
        devices = devices_by_resource.get(name, [])
        effect = f"{count_text(requests.pods, 'pod')} requested it, and {count_text(len(devices), 'node')} had "
        effect += f"{count_text(sum(devices), 'device')} of it; "
        if classify_unread_resource(name) == "accelerator":
            effect += "it is no GPU of the catalog, and no figure counts it"
        elif "/" in name:
            effect += "it may be a GPU or a part of one, and GPU-hours leave its pods out"
        else:
            effect += "it may be of GPUs, and GPU-hours leave its pods out: dump deviceclasses and resourceclaims too"
        hours = None if classify_unread_resource(name) == "accelerator" else requests.device_hours
        severity = "warning" if requests.pods or hours is not None else "info"
        yield Finding(f"{name} is not read", severity, requests.pods, effect, requests.example, hours)


def _closed_node_findings(dump: ClusterDump) -> Iterator[Finding]:
    """Yield a finding on the nodes with GPUs that accept no new pods."""
    closed_nodes = {name: node for name, node in sorted(dump.nodes.items()) if node.closed_reason and node.gpus}
    undated_nodes = [name for name, node in closed_nodes.items() if node.closed_since is None]
    if closed_nodes:
        node_examples = examples([f"{name} ({node.closed_reason})" for name, node in closed_nodes.items()])
        effect = "its GPUs count as installed, and as down since it was closed, or from the dump on"
        effect += f"; the start is not known of {examples(undated_nodes)}" if undated_nodes else ""
        yield Finding(check_text("nodes: closed"), "info", len(closed_nodes), effect, node_examples)


def _affected_pods(dump: ClusterDump, node_doubts: Sequence[tuple[str, NodeDoubt]]) -> tuple[int, float, str]:
    """Count the pods that request doubtful resources of their nodes, estimate their GPU-hours, and list the resources.

    Parameters
    ----------
    dump : ClusterDump
        The objects of the dump.
    node_doubts : sequence of (str, NodeDoubt)
        Name of a node, and a contradiction or assumption in its labels and resources.

    Returns
    -------
    pods : int
        Number of these pods.
    hours : float
        Their estimated GPU-hours. [GPU h]
    resources : str
        Names of the requested resources, joined by commas.
    """
    doubted_resources: dict[str, set[str | None]] = {}
    for name, doubt in node_doubts:
        doubted_resources.setdefault(name, set()).add(doubt.resource)
    pods = 0
    hours = 0.0
    names: set[str] = set()
    for pod in dump.pods.values():
        doubted = doubted_resources.get(pod.node or "", set())
        units = {name: parse_gpu_resource(name) for name in pod.gpu_requests}
        affected = [name for name, unit in units.items() if None in doubted or (unit and unit.base_name in doubted)]
        if not affected or pod.node is None:
            continue
        pods += 1
        names |= set(affected)
        node = dump.nodes[pod.node]
        for name in affected:
            node_units = node.units.get(name.removesuffix(SHARED_RESOURCE_SUFFIX), 0)
            gpus_per_unit = Fraction(node.gpus, node_units) if node_units and node.gpus else 1
            hours += float(pod.gpu_requests[name] * gpus_per_unit) * pod.hours if units[name] else 0.0
    return pods, hours, ", ".join(sorted(names))


HARMLESS_REJECT_REASONS = (
    NO_GPU_REQUEST_REASON,
    COUNTED_WITH_JOB_REASON,
    UNREAD_KIND_REASON,
    DUPLICATE_OBJECT_REASON,
    RESERVATION_POD_REASON,
)
"""Reasons of the reject table that need no warning, as the rejected objects are counted elsewhere or use no GPU."""

KUBECTL_SCOPE_NOTE = (
    "kubectl shows what still exists: jobs that were deleted, or cleaned up after their time, are missing"
)
"""Provenance note of a dataset: ``kubectl get`` shows only objects that still exist."""

RECONFIGURING_NODES_NOTE = "nodes whose MIG configuration is not done: "
"""Provenance note of a dataset on nodes that are being MIG-partitioned; names of nodes follow it."""

KUBERNETES_CHECKS = (
    source_check("kubernetes: pods joined", pl.col("pods") > 1),
    source_check("kubernetes: Job without pods", pl.col("told_by") == "Job"),
    source_check("kubernetes: evicted", pl.col("evictions") > 0),
    source_check("kubernetes: shared GPUs", (pl.col("gpus") % 1 != 0) & pl.col("instances").is_null()),
)
"""Checks of the quality report on the job rows of a Kubernetes dump."""


@register_sniffer(looks_like_kubernetes)
def read_kubernetes(paths: Sequence[str | Path], *, boards: Mapping[str, str] | None = None) -> Dataset:
    """Read the jobs, nodes and quotas of dumps of Kubernetes objects.

    The more kinds a dump has, the more is known: ``kubectl get pods,jobs,nodes -A -o json``, with Kueue
    also ``workloads,clusterqueues,localqueues,resourceflavors``, with DRA also
    ``resourceclaims,resourceclaimtemplates,resourceslices``. A job is, in this order, a Workload of Kueue
    (from its admission), the pods of one controller that ran together (from their binding to nodes), a pod by
    itself, or a Job without pods. The tenant is the ClusterQueue, the queue of KAI or Volcano, or else the namespace.

    Parameters
    ----------
    paths : sequence of str or Path
        JSON (lists, lines, or concatenated objects) or YAML.
    boards : mapping of str to str, optional
        Product label → GPU model.

    Returns
    -------
    Dataset
        Jobs, the inventory if the GPUs of every node are known, and quotas if there are queues. Of nodes alone, the
        inventory.

    Raises
    ------
    TraceFormatError
        If there is no file, or none of its objects are read.

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
    return make_dataset(dump, paths, boards)


def _require_objects(dump: ClusterDump, paths: Sequence[str | Path]) -> None:
    """Raise a TraceFormatError if a dump has no pods, jobs or nodes, but only kinds such as ResourceQuota."""
    kinds = {location.raw.partition(" ")[0] for location, reason in dump.rejects if reason == UNREAD_KIND_REASON}
    if kinds and not (dump.pods or dump.jobs or dump.workloads or dump.nodes or dump.devices):
        names = ", ".join(str(path) for path in paths)
        remedy = "Run kubectl get pods,jobs,nodes -A -o json > dump.json."
        got = f"objects of kind {examples(sorted(kinds))} alone"
        raise TraceFormatError(names, "pods, jobs, workloads or nodes", got, remedy)


def make_dataset(
    dump: ClusterDump,
    paths: Sequence[str | Path],
    boards: Mapping[str, str] | None = None,
    *,
    last_seen: datetime | None = None,
) -> Dataset:
    """Make a dataset from the objects of a dump: jobs, inventory and quotas; from nodes alone only the inventory.

    Parameters
    ----------
    dump : ClusterDump
        The objects.
    paths : sequence of str or Path
        Their files, for error messages.
    boards : mapping of str to str, optional
        Product label → GPU model.
    last_seen : datetime, optional
        Time until which running jobs are counted, where no node has a heartbeat.

    Returns
    -------
    Dataset
    """
    if not (dump.pods or dump.jobs or dump.workloads) and (dump.nodes or dump.devices):
        return _make_node_list(dump, paths, boards)
    rows, names, uncertain_requests = make_job_rows(dump)
    inventory, nodes_without_count = make_inventory(dump.nodes, dump.devices.values())
    heartbeats = (node.last_heartbeat for node in dump.nodes.values())
    last_heartbeat = max(filter(None, heartbeats), default=last_seen)
    dataset = assemble_jobs(
        _with_attempt_numbers(rows),
        source="kubernetes",
        last_seen=pl.lit(last_heartbeat, pl.Datetime("us", "UTC")),
        checks=KUBERNETES_CHECKS,
        notes=_provenance_notes(dump),
        harmless_reasons=HARMLESS_REJECT_REASONS,
        findings_of_reader=dump_findings(dump, uncertain_requests, nodes_without_count),
        inventory=inventory,
        boards=boards,
    )
    leaf_quotas = {name: rows for name, rows in dump.quotas.items() if name not in dump.parent_queues}
    flavor_models = {flavor: dump.flavor_gpu_model(flavor) for flavor in dump.flavors}
    facts = {**dataset.provenance, **count_request_kinds(dump), "dra_nodes": len(_find_dra_nodes(dump))}
    return replace(dataset, provenance=facts).with_tables(
        queue_quotas=make_quota_table(leaf_quotas, flavor_models, dump.queues),
        job_names=names if names.height else None,
        **_node_history(dump),
    )


def _node_history(dump: ClusterDump) -> dict[str, pl.DataFrame | None]:
    """Make the tables on nodes over time: of each file with a date, or of all nodes together where none has one."""
    types = make_empty_table(NodeDumps).schema
    histories = []
    for file_number, time in dump.time_of_file.items() or ((None, None),):
        nodes = dump.nodes if file_number is None else dump.nodes_of_file[file_number]
        file = None if file_number is None else printable_file_name(dump.files[file_number].path)
        rows = [
            (name, time, file, True, node.gpus, node.mig, node.layouts) for name, node in nodes.items() if node.gpus
        ]
        node_dumps = make_node_dumps(pl.DataFrame(rows, schema=types, orient="row"))
        outages = make_out_of_service_table(nodes, dump.devices.values())
        histories.append({"node_dumps": node_dumps, "out_of_service": outages})
    return merge_node_histories(histories)


def read_kubernetes_nodes(paths: Sequence[str | Path], *, boards: Mapping[str, str] | None = None) -> Dataset:
    """Read the nodes of dumps of Kubernetes objects as an inventory; other objects are ignored.

    Parameters
    ----------
    paths : sequence of str or Path
        JSON or YAML.
    boards : mapping of str to str, optional
        Product label → GPU model.

    Returns
    -------
    Dataset

    Raises
    ------
    TraceFormatError
        If the number of GPUs of a node is unknown, or no node has GPUs.

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
    return _make_node_list(read_dump(paths), paths, boards)


def has_only_nodes(path: str | Path) -> bool:
    """Whether a file of Kubernetes objects has nodes and nothing else; it is read up to the first other object."""
    if not any("Node" in line for line in read_head(path)):
        return False
    kinds = map(item_kind, read_objects(path)[1])
    return next(kinds, None) == "Node" and all(kind == "Node" for kind in kinds)


def _make_node_list(dump: ClusterDump, paths: Sequence[str | Path], boards: Mapping[str, str] | None) -> Dataset:
    """Make a dataset of the node inventory of a dump; raise a TraceFormatError if no inventory follows from it."""
    inventory, nodes_without_count = make_inventory(dump.nodes, dump.devices.values())
    if inventory is None:
        got = f"no number for {examples(nodes_without_count)}" if nodes_without_count else "no node with GPUs"
        names = ", ".join(str(path) for path in paths)
        remedy = "Dump the nodes with their labels and capacity: kubectl get nodes -o json."
        raise TraceFormatError(names, "nodes with their number of GPUs", got, remedy)
    table, findings = resolve_node_models(inventory, boards)
    records = RecordCollector({})
    for location, reason in dump.rejects:
        records.reject(location.file, location.item, location.raw, reason)
    rows = records.rows(dump.files)
    row_place = {"file": pl.lit(0, pl.UInt32), "line": pl.int_range(1, pl.len() + 1), "raw": pl.col("node")}
    findings += dump_findings(dump, UncertainRequests(), nodes_without_count)
    dataset = assemble_nodes(rows, table.with_columns(**row_place), findings, notes=_reconfiguring_notes(dump))
    return dataset.with_tables(**_node_history(dump))


def _provenance_notes(dump: ClusterDump) -> list[str]:
    """Return notes for the provenance: scope of kubectl, nodes being MIG-partitioned, and missing node heartbeats."""
    notes = [KUBECTL_SCOPE_NOTE, *_reconfiguring_notes(dump)]
    if not any(node.last_heartbeat for node in dump.nodes.values()):
        notes.append("no nodes with heartbeats: running jobs are counted up to the last event in the dump")
    return notes


def _reconfiguring_notes(dump: ClusterDump) -> list[str]:
    """Return a note on the nodes whose GPUs are about to be repartitioned, if there are any."""
    nodes = sorted(f"{name} ({node.config_state})" for name, node in dump.nodes.items() if node.config_state)
    return [f"{RECONFIGURING_NODES_NOTE}{examples(nodes)}"] if nodes else []


def _with_attempt_numbers(rows: Rows) -> Rows:
    """Add ``attempt``: number of each run of a job, by time; each eviction that Kueue counted is an earlier attempt."""
    order = pl.coalesce("start_time", "submit_time")
    evictions = pl.col("evictions").fill_null(0)
    frame = rows.good.sort(order, "file", "line", maintain_order=True)
    attempts = (1 + evictions).cum_sum().over("job_id")
    return replace(rows, good=frame.with_columns(attempt=attempts).sort("file", "line", maintain_order=True))
