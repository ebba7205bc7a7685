"""Pods and nodes from kube-state-metrics.

Each pod and node becomes an object of the API of Kubernetes, so that requests, shares and labels are read as in a dump.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import inf, isfinite, isnan, nan
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.kubernetes.cluster_dump import Dump
from gpuplanner.ingest.kubernetes.cluster_reader import LEFT_OUT, dataset_of
from gpuplanner.ingest.kubernetes.pod_requests import PodPlace
from gpuplanner.ingest.quality_report import Finding, report
from gpuplanner.ingest.row_reader import SAMPLE, parse_labels, series_of_answer
from gpuplanner.ingest.source_definition import looks, matches
from gpuplanner.ingest.source_fields import FIRST_INSTANT, LAST_INSTANT, known_origin
from gpuplanner.ingest.text_files import read_document

SOURCE = "kube-state-metrics"
METRIC = re.compile(r"kube_(?:pod|node)_\w+")
PAGE = r"^(?:# (?:HELP|TYPE) )?kube_(?:pod|node)_\w+[ {]"
ANSWER = r'"__name__"\s*:\s*"kube_(?:pod|node)_'
VENDORS = (
    "nvidia.com", "amd.com", "habana.ai", "gpu.intel.com", "intel.com", "aliyun.com", "volcano.sh", "koordinator.sh",
    "tencent.com", "tke.cloud.tencent.com", "4paradigm.com",
)  # fmt: skip
"""Vendors of resources; kube-state-metrics writes ``_`` for all marks in their names [1]_.

References
----------
.. [1] kubernetes/kube-state-metrics, internal/store/utils.go@c92fe0c: sanitizeLabelName.
"""
MIG = re.compile(r"mig_(\d+g)_(\d+gb)(.*)")
LABELS = (
    "nvidia.com/gpu.product", "nvidia.com/gpu.count", "nvidia.com/gpu.replicas", "nvidia.com/gpu.memory",
    "nvidia.com/gpu.sharing-strategy", "nvidia.com/mig.strategy", "nvidia.com/mig.config",
    "nvidia.com/mig.config.state", "amd.com/gpu.product-name", "amd.com/compute-memory-partition",
    "gpu.nvidia.com/model",
    "node.kubernetes.io/instance-type", "cloud.google.com/gke-accelerator", "cloud.google.com/gke-accelerator-count",
    "cloud.google.com/gke-gpu-sharing-strategy", "cloud.google.com/gke-max-shared-clients-per-gpu",
    "cloud.google.com/gke-gpu-partition-size", "karpenter.k8s.aws/instance-gpu-name",
    "karpenter.k8s.aws/instance-gpu-count", "karpenter.sh/capacity-type", "kueue.x-k8s.io/queue-name",
)  # fmt: skip
"""Labels that readers know, of which kube-state-metrics writes the marks as ``_`` too."""
SANITISED = {"label_" + re.sub(r"[^a-zA-Z0-9_]", "_", name): name for name in LABELS}
OWN_LABELS = (
    "uid", "node", "owner_kind", "owner_name", "created_by_kind", "created_by_name", "priority_class",
)  # fmt: skip
"""Labels of a series that tell of its object."""
TIMES = {
    "kube_pod_created": "created",
    "kube_pod_start_time": "started",
    "kube_pod_status_scheduled_time": "scheduled",
    "kube_pod_completion_time": "completed",
    "kube_node_created": "created",
}
REQUESTS = (
    "kube_pod_container_resource_requests",
    "kube_pod_resource_request",
    "kube_pod_container_resource_limits",
)
"""Of GPUs, requests equal limits."""
GAP_FACTOR = 2.5
NO_TIMES = "metrics without times, and no --origin was given"
NO_PHASE = "pods without their phase"
NO_VALUES = "no finite value at a time that a cluster can have"
VANISHED = "pods that were deleted while they ran"
NO_MODEL = "nodes without labels"
EPOCH = "1970-01-01T00:00:00Z"
DAY_S = 86400


@dataclass
class Gathered:
    """What metrics report of one pod or node.

    - ``labels``: The last labels of all its series, and those of the object itself.
    - ``facts``: Instants by name, as unix seconds.
    - ``amounts``: Kind of amount (``requests``, ``init``, ``capacity``, ``allocatable``), container, resource → number.
    - ``phases``: Phase → first and last instant at which it held.
    - ``conditions``: Condition of a node → its status.
    - ``cordoned``: It takes no new pods.
    - ``first``, ``last``: Instants of its first and last value.
    """

    labels: dict[str, str] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    amounts: dict[tuple[str, str, str], float] = field(default_factory=dict)
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)
    conditions: dict[str, str] = field(default_factory=dict)
    cordoned: bool = False
    first: float = inf
    last: float = -inf


Series = tuple[str, Mapping[str, str], list[tuple[float, float]]]
"""Metric, labels, and values by time; the time of a page without times is NaN."""


@looks(lambda lines: matches(PAGE, re.M)(lines) or matches(ANSWER)(lines))
def read_state_metrics(
    paths: Sequence[str | Path],
    *,
    boards: Mapping[str, str] | None = None,
    origin: str | datetime | None = None,
) -> Dataset:
    r"""Read pages of kube-state-metrics, or answers of Prometheus to queries for its metrics.

    A pod holds its GPUs from when it was scheduled, or first ran, until it completed, or its series ended. Pages carry
    no times: they show what there is at the origin.

    Parameters
    ----------
    paths : sequence of str or Path
        Files that belong together: requests, phases, capacities, labels.
    boards : mapping, optional
        Product label → GPU model.
    origin : datetime or str, optional
        When a page without times was fetched.

    Examples
    --------
    >>> import tempfile
    >>> metric = {"__name__": "kube_pod_container_resource_requests", "namespace": "ads", "pod": "a", "node": "n1"}
    >>> metric |= {"container": "main", "resource": "nvidia_com_gpu"}
    >>> found = [{"metric": metric, "values": [[1772431200 + 60 * n, "2"] for n in range(60)]}]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "requests.json"
    ...     _ = path.write_text(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": found}}))
    ...     read_state_metrics([path]).summary()["gpu_hours"]
    2.0
    """
    dump, objects = Dump(), defaultdict[tuple[str, str, str], Gathered](Gathered)
    steps: list[float] = []
    places: dict[tuple[str, str, str], PodPlace] = {}
    known = None if origin is None else known_origin(origin).timestamp()
    undated = []
    for number, path in enumerate(paths):
        file, text = read_document(path)
        dump.files.append(file)
        for place, (metric, labels, values) in enumerate(_series(text, str(path), known), 1):
            key = _key(metric, labels)
            if key is None:
                continue
            at_place = PodPlace(number, place, f"{key[0]} {key[1]}/{key[2]}"[:400])
            if not values:
                dump.rejects.append((at_place, NO_VALUES))
                continue
            places.setdefault(key, at_place)
            if isnan(values[0][0]):
                undated.append((key, metric, labels, values[0][1]))
                continue
            _take(objects[key], metric, labels, values)
            steps += [later[0] - earlier[0] for earlier, later in itertools.pairwise(values[:3])]
    at = max((gathered.last for gathered in objects.values()), default=known_origin(EPOCH).timestamp())
    for key, metric, labels, value in undated:
        _take(objects[key], metric, labels, [(at, value)], timed=objects[key].last > -inf)
    if not objects:
        needed = "kube_pod_container_resource_requests, kube_pod_status_phase, kube_node_status_capacity"
        raise TraceFormatError(SOURCE, "metrics of pods and nodes", "none", f"Query {needed}.")
    step = median(steps) if steps else 0.0
    end = max(gathered.last for gathered in objects.values()) + step
    for key, gathered in objects.items():
        kind, namespace, name = key
        thing = _node(name, gathered, end) if kind == "Node" else _pod(namespace, name, gathered, end, step)
        dump.take(thing, kind, places[key])
    found = dataset_of(dump, paths, boards, last_seen=_instant(end))
    return _with_findings(found, objects, end - GAP_FACTOR * step, timeless=bool(undated) and at < DAY_S)


def _series(text: str, where: str, at: float | None) -> Iterator[Series]:
    """Series of a page or of an answer that are of pods or nodes; values that cannot be read are left out."""
    if text.lstrip().startswith("{"):
        try:
            for each in series_of_answer(json.loads(text), where):
                labels = {name: str(value) for name, value in each.get("metric", {}).items()}
                points = each.get("values") or [each.get("value")]
                values = [(float(time), float(value)) for time, value in filter(None, points)]
                if METRIC.fullmatch(labels.get("__name__", "")) and values:
                    yield labels["__name__"], labels, _lawful(values)
        except TraceFormatError:
            raise
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            expected, todo = "an answer of Prometheus with series", "Save the whole answer."
            no_json = isinstance(error, json.JSONDecodeError)
            got = str(error)[:200] if no_json else "a series without labels or pairs"
            raise TraceFormatError(where, expected, got, todo) from error
        return
    for line in text.splitlines():
        found = re.match(SAMPLE, line)
        labels_of = parse_labels(found[2] or "") if found and METRIC.fullmatch(found[1]) else None
        try:
            if found and labels_of is not None:
                fetched = nan if at is None else at
                time = float(found[4]) / 1e3 if found[4] else fetched
                yield found[1], labels_of, _lawful([(time, float(found[3]))], timed=False)
        except ValueError:
            continue


def _lawful(values: list[tuple[float, float]], *, timed: bool = True) -> list[tuple[float, float]]:
    """Finite values at times that a cluster can have, or at none where those of a page have none."""
    lawful = [(time, value) for time, value in values if isfinite(value)]
    return [(time, value) for time, value in lawful if _is_time(time) or (isnan(time) and not timed)]


def _is_time(seconds: float) -> bool:
    return FIRST_INSTANT.timestamp() <= seconds <= LAST_INSTANT.timestamp()


def _key(metric: str, labels: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Kind, namespace and name of the object that a series is of; ``exported_`` labels are the object's own."""
    if metric.startswith("kube_node_"):
        node = _own(labels, "node")
        return ("Node", "", node) if node else None
    pod = _own(labels, "pod")
    return ("Pod", _own(labels, "namespace") or "default", pod) if pod else None


def _own(labels: Mapping[str, str], name: str) -> str:
    return labels.get(f"exported_{name}") or labels.get(name) or ""


def _take(
    gathered: Gathered,
    metric: str,
    labels: Mapping[str, str],
    values: list[tuple[float, float]],
    *,
    timed: bool = False,
) -> None:
    """Add what a series tells of its object; an object of `timed` series takes no time from a page without."""
    if not timed:
        gathered.first, gathered.last = min(gathered.first, values[0][0]), max(gathered.last, values[-1][0])
    latest = values[-1][1]
    for name in OWN_LABELS:
        if text := _own(labels, name):
            gathered.labels[name] = text
    gathered.labels |= {name: value for name, value in labels.items() if name in SANITISED}
    resource = (_own(labels, "container"), labels.get("resource", ""))
    kind = metric.removeprefix("kube_node_status_")
    if metric in REQUESTS:
        gathered.amounts["requests", *resource] = latest
    elif metric == "kube_pod_init_container_resource_requests":
        gathered.amounts["init", *resource] = latest
    elif kind in ("capacity", "allocatable"):
        gathered.amounts[kind, "", resource[1]] = latest
    elif metric == "kube_pod_status_phase":
        held = [time for time, value in values if value == 1]
        if held and not (timed and gathered.phases):
            gathered.phases[labels.get("phase", "")] = (held[0], held[-1])
    elif metric == "kube_node_status_condition" and latest == 1:
        gathered.conditions[labels.get("condition", "")] = labels.get("status", "").capitalize()
    elif metric == "kube_node_spec_unschedulable":
        gathered.cordoned = latest == 1
    elif metric in TIMES and latest > 0 and _is_time(latest):
        gathered.facts[TIMES[metric]] = latest


def _pod(namespace: str, name: str, gathered: Gathered, end: float, step: float) -> dict[str, Any]:
    """A pod as an object of the API."""
    node = gathered.labels.get("node")
    running = gathered.phases.get("Running")
    start = gathered.facts.get("scheduled") or gathered.facts.get("started")
    if start is None and (running or (not gathered.phases and node and gathered.first < gathered.last)):
        start = running[0] if running else gathered.first
    over = next((phase for phase in ("Failed", "Succeeded") if phase in gathered.phases), None)
    finish = gathered.facts.get("completed") or (gathered.phases[over][0] if over else None)
    gone = (running[1] if running else gathered.last) + step
    if finish is None and start is not None and end - gone > (GAP_FACTOR - 1) * step:
        finish, over = gone, over or "Succeeded"
    owner = [
        {"kind": gathered.labels[f"{word}_kind"], "name": gathered.labels[f"{word}_name"], "controller": True}
        for word in ("owner", "created_by")
        if gathered.labels.get(f"{word}_kind", "<none>") != "<none>" and f"{word}_name" in gathered.labels
    ]
    for each in owner:
        each["uid"] = f"{each['kind']} {namespace}/{each['name']}"
    began = gathered.first if start is None else start
    submit = min(gathered.facts.get("created", gathered.first), began)
    if not {"scheduled", "started"} & gathered.facts.keys() and start == gathered.first:
        submit = gathered.first  # it ran before anybody looked: how long it waited is not known
    waits = "Pending" if gathered.phases or not node else "Unknown"
    status: dict[str, Any] = {"phase": over or ("Running" if start is not None else waits)}
    if start is not None:
        bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": _text(start)}
        status |= {"startTime": _text(start), "conditions": [bound]}
    if finish is not None:
        ended = {"finishedAt": _text(max(finish, start or finish))}
        status["containerStatuses"] = [{"state": {"terminated": ended}}]
    containers = {
        kind: [
            {"name": container, "resources": {"requests": requests, "limits": requests}}
            for container, requests in _by_container(gathered, kind).items()
        ]
        for kind in ("requests", "init")
    }
    return {
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": namespace, "uid": gathered.labels.get("uid"), "creationTimestamp": _text(submit),
            "ownerReferences": owner[:1], "labels": _labels(gathered),
        },
        "spec": {
            "nodeName": node, "containers": containers["requests"], "initContainers": containers["init"],
            "priorityClassName": gathered.labels.get("priority_class"),
        },
        "status": status,
    }  # fmt: skip


def _with_findings(
    found: Dataset, objects: Mapping[tuple[str, str, str], Gathered], since: float, *, timeless: bool
) -> Dataset:
    """The dataset under its own name, with what the metrics leave open; nodes that went are retired."""
    findings = [Finding(*row) for row in found.quality.iter_rows()]
    pods = [each for (kind, _, _), each in objects.items() if kind == "Pod" and _has_devices(each)]
    nodes = {name: gathered for (kind, _, name), gathered in objects.items() if kind == "Node"}
    blind = sum(not pod.phases and "completed" not in pod.facts for pod in pods)
    seen_running = [pod for pod in pods if pod.phases and not {"Succeeded", "Failed"} & pod.phases.keys()]
    gone = sum(pod.last < since for pod in seen_running)
    plain = [name for name, gathered in nodes.items() if _has_devices(gathered) and not _labels(gathered)]
    if timeless:
        effect = (
            "they show one instant: state when the page was fetched (--origin 2026-01-31T12:00:00Z), or "
            "query a month from Prometheus; GPU-hours are not known"
        )
        findings.append(Finding(NO_TIMES, "warning", len(pods), effect, ""))
    if blind:
        effect = "GPU-hours are too high where finished pods were kept: query kube_pod_status_phase as well"
        findings.append(Finding(NO_PHASE, "warning", blind, effect, ""))
    if gone:
        effect = "they are taken to have completed then: whether they failed is not known"
        findings.append(Finding(VANISHED, "info", gone, effect, ""))
    if plain:
        allow = "--metric-labels-allowlist=nodes=[*]"
        effect = f"the GPU model is not known: start kube-state-metrics with {allow}, or give --map-gpu"
        findings.append(Finding(NO_MODEL, "warning", len(plain), effect, plain[0]))
    inventory = found.inventory
    if inventory is not None:
        left = {name: _instant(gathered.last) for name, gathered in nodes.items() if gathered.last < since}
        retired = pl.col("node").replace_strict(left, default=None, return_dtype=pl.Datetime("us", "UTC"))
        inventory = inventory.with_columns(retired=pl.coalesce("retired", retired))
    notes = [note for note in found.provenance["notes"] if note != LEFT_OUT]
    facts = {**found.provenance, "source": SOURCE, "notes": notes}
    return replace(found, quality=report(findings), provenance=facts).with_tables(inventory=inventory)


def _node(name: str, gathered: Gathered, end: float) -> dict[str, Any]:
    """A node as an object of the API."""
    ready = gathered.conditions.get("Ready", "True")
    amounts: dict[str, dict[str, str]] = {"capacity": {}, "allocatable": {}}
    for (kind, _, resource), value in gathered.amounts.items():
        amounts[kind][resource_name(resource)] = _number(value)
    heartbeat = {"type": "Ready", "status": ready, "lastHeartbeatTime": _text(end)}
    created = {"creationTimestamp": _text(gathered.facts["created"])} if "created" in gathered.facts else {}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": _labels(gathered), **created},
        "spec": {"unschedulable": True} if gathered.cordoned else {},
        "status": {**amounts, "conditions": [heartbeat]},
    }


def _by_container(gathered: Gathered, kind: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for (what, container, resource), value in gathered.amounts.items():
        if what == kind and value > 0:
            found[container][resource_name(resource)] = _number(value)
    if len(found) > 1:
        found.pop("", None)  # the scheduler's sum over the containers
    return found


def resource_name(word: str) -> str:
    """Name of a resource of which kube-state-metrics wrote all marks as ``_``.

    Examples
    --------
    >>> resource_name("nvidia_com_gpu"), resource_name("nvidia_com_mig_1g_10gb"), resource_name("amd_com_cpx_nps4")
    ('nvidia.com/gpu', 'nvidia.com/mig-1g.10gb', 'amd.com/cpx_nps4')
    """
    for vendor in VENDORS:
        begin = re.sub(r"[.-]", "_", vendor) + "_"
        if word.startswith(begin):
            kind = word.removeprefix(begin)
            if match := MIG.fullmatch(kind):
                kind = f"mig-{match[1]}.{match[2]}{match[3].replace('_', '.')}"
            elif vendor != "amd.com":
                kind = "gpu.shared" if kind == "gpu_shared" else kind.replace("_", "-")
            return f"{vendor}/{kind}"
    return word


def _has_devices(gathered: Gathered) -> bool:
    """True if a pod requests, or a node has, resources of a vendor, not CPU and memory alone."""
    return any("/" in resource_name(resource) for _, _, resource in gathered.amounts)


def _labels(gathered: Gathered) -> dict[str, str]:
    return {SANITISED[name]: value for name, value in gathered.labels.items() if name in SANITISED}


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _text(seconds: float) -> str:
    return _instant(seconds).isoformat()
