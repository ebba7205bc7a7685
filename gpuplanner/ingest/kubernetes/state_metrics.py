"""The reader of kube-state-metrics: pods and nodes become objects of the Kubernetes API, read as those of a dump."""

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
from gpuplanner.ingest.kubernetes.cluster_dump import ClusterDump
from gpuplanner.ingest.kubernetes.cluster_reader import KUBECTL_SCOPE_NOTE, make_dataset
from gpuplanner.ingest.kubernetes.pods_and_jobs import ObjectLocation
from gpuplanner.ingest.quality_report import Finding, build_quality_report
from gpuplanner.ingest.source_definition import matches_pattern, register_sniffer
from gpuplanner.ingest.source_fields import END_INSTANT, FIRST_INSTANT, parse_origin, source_values
from gpuplanner.ingest.text_files import read_document
from gpuplanner.ingest.typed_row_reader import PROMETHEUS_SAMPLE_PATTERN, extract_series, parse_labels

STATE_METRICS_SOURCE = "kube-state-metrics"
"""Name of this source in messages and provenance."""

STATE_METRIC_PATTERN = re.compile(r"kube_(?:pod|node)_\w+")
"""Name of a metric of kube-state-metrics on pods or nodes."""

STATE_METRICS_PAGE_PATTERN = r"^(?:# (?:HELP|TYPE) )?kube_(?:pod|node)_\w+[ {]"
"""Line by which a metrics page (text exposition) of kube-state-metrics is recognised."""

STATE_METRICS_ANSWER_PATTERN = r'"__name__"\s*:\s*"kube_(?:pod|node)_'
"""Text by which a JSON answer of Prometheus with metrics of kube-state-metrics is recognised."""

GPU_RESOURCE_VENDOR_DOMAINS = (
    "nvidia.com", "amd.com", "habana.ai", "gpu.intel.com", "intel.com", "aliyun.com", "volcano.sh", "koordinator.sh",
    "tencent.com", "tke.cloud.tencent.com", "4paradigm.com",
)  # fmt: skip
"""Vendor domains before the slash in names of extended resources of GPUs, to restore the names that kube-state-metrics
writes with ``_`` for all punctuation [1]_.

References
----------
.. [1] kubernetes/kube-state-metrics, internal/store/utils.go@c92fe0c: sanitizeLabelName.
"""
SANITIZED_MIG_PATTERN = re.compile(r"mig_(\d+g)_(\d+gb)(.*)")
"""MIG resource in which kube-state-metrics replaced all punctuation: ``mig_1g_10gb``."""

READ_LABEL_KEYS = (
    "nvidia.com/gpu.product", "nvidia.com/gpu.count", "nvidia.com/gpu.replicas", "nvidia.com/gpu.memory",
    "nvidia.com/gpu.sharing-strategy", "nvidia.com/mig.strategy", "nvidia.com/mig.config",
    "nvidia.com/mig.config.state", "amd.com/gpu.product-name", "amd.com/compute-memory-partition",
    "gpu.nvidia.com/model",
    "node.kubernetes.io/instance-type", "cloud.google.com/gke-accelerator", "cloud.google.com/gke-accelerator-count",
    "cloud.google.com/gke-gpu-sharing-strategy", "cloud.google.com/gke-max-shared-clients-per-gpu",
    "cloud.google.com/gke-gpu-partition-size", "karpenter.k8s.aws/instance-gpu-name",
    "karpenter.k8s.aws/instance-gpu-count", "karpenter.sh/capacity-type", "kueue.x-k8s.io/queue-name",
)  # fmt: skip
"""Labels of pods and nodes that are read from kube-state-metrics, under their names in Kubernetes."""

LABEL_KEY_BY_SANITIZED_NAME = {"label_" + re.sub(r"[^a-zA-Z0-9_]", "_", name): name for name in READ_LABEL_KEYS}
"""Name of a label in kube-state-metrics, with ``_`` for punctuation → its name in Kubernetes."""

OBJECT_SERIES_LABELS = (
    "uid", "node", "owner_kind", "owner_name", "created_by_kind", "created_by_name", "priority_class",
)  # fmt: skip
"""Labels of a Prometheus series that describe its pod or node: uid, node, owner, priority class."""

TIME_FIELD_BY_METRIC = source_values("kubernetes time metric")
"""Metric whose value is a time [epoch s] → key of that time in :attr:`ObjectMetrics.facts`."""

CONTAINER_RESOURCE_METRICS = (
    "kube_pod_container_resource_requests",
    "kube_pod_resource_request",
    "kube_pod_container_resource_limits",
)
"""Metrics of the resources that a container requests; limits count too, as GPU requests equal limits."""

MAX_GAP_SCRAPES = 2.5
"""Longest time without values before the end of all series for which an object still exists. [scrape intervals]"""

NO_TIMES_CHECK = "metrics without times, and no --origin was given"
"""Quality check on metrics pages without times that were read without an origin."""

NO_PHASE_CHECK = "pods without their phase"
"""Quality check on pods without the metric of their phase."""

NO_VALUES_REASON = "no finite value at a time that a cluster can have"
"""Reject reason of series without a finite value at a plausible time."""

DELETED_PODS_CHECK = "pods that were deleted while they ran"
"""Quality check on pods that were deleted while they ran."""

NO_MODEL_CHECK = "nodes without labels"
"""Quality check on nodes without labels that name their GPU model."""

DEFAULT_ORIGIN = "1970-01-01T00:00:00Z"
"""Time of a metrics page without times if no origin is given."""

DAY_S = 86400
"""Seconds of a day."""


@dataclass
class ObjectMetrics:
    """Metrics of one pod or node, gathered from its series.

    - ``labels``: The latest labels of its series, and labels of the object itself.
    - ``facts``: ``created``, ``started``, ``scheduled``, ``completed`` → time. [epoch s]
    - ``amounts``: Kind of amount (``requests``, ``init``, ``capacity``, ``allocatable``), container, resource → number.
    - ``phases``: Phase of a pod → first and last time at which it was in it. [epoch s]
    - ``conditions``: Condition of a node → its status.
    - ``cordoned``: The node accepts no new pods.
    - ``first``, ``last``: Times of its first and last value. [epoch s]
    """

    labels: dict[str, str] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    amounts: dict[tuple[str, str, str], float] = field(default_factory=dict)
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)
    conditions: dict[str, str] = field(default_factory=dict)
    cordoned: bool = False
    first: float = inf
    last: float = -inf


MetricSeries = tuple[str, Mapping[str, str], list[tuple[float, float]]]
"""Metric, labels, and pairs of time [epoch s] and value; NaN is the time on a page without times."""


@register_sniffer(
    lambda lines: (
        matches_pattern(STATE_METRICS_PAGE_PATTERN, re.M)(lines) or matches_pattern(STATE_METRICS_ANSWER_PATTERN)(lines)
    )
)
def read_state_metrics(
    paths: Sequence[str | Path], *, boards: Mapping[str, str] | None = None, origin: str | datetime | None = None
) -> Dataset:
    r"""Read pages of kube-state-metrics, or answers of Prometheus to queries for its metrics.

    GPUs are allocated to a pod from when it was scheduled, or first ran, until it completed, or its series ended. Pages
    have no times: they show one moment, the origin.

    Parameters
    ----------
    paths : sequence of str or Path
        Files of one cluster that belong together: requests, phases, capacities, labels.
    boards : mapping of str to str, optional
        Product label → GPU model.
    origin : datetime or str, optional
        Time at which a page without times was fetched.

    Returns
    -------
    Dataset

    Raises
    ------
    TraceFormatError
        If there are no metrics of pods or nodes.

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
    dump = ClusterDump()
    objects = defaultdict[tuple[str, str, str], ObjectMetrics](ObjectMetrics)
    steps: list[float] = []
    locations: dict[tuple[str, str, str], ObjectLocation] = {}
    origin_s = None if origin is None else parse_origin(origin).timestamp()
    undated = []
    for file_number, path in enumerate(paths):
        file, text = read_document(path)
        dump.files.append(file)
        for series_number, (metric, labels, values) in enumerate(_parse_series(text, str(path), origin_s), 1):
            key = _object_key(metric, labels)
            if key is None:
                continue
            location = ObjectLocation(file_number, series_number, f"{key[0]} {key[1]}/{key[2]}"[:400])
            if not values:
                dump.rejects.append((location, NO_VALUES_REASON))
                continue
            locations.setdefault(key, location)
            if isnan(values[0][0]):
                undated.append((key, metric, labels, values[0][1]))
                continue
            _record_series(objects[key], metric, labels, values)
            steps += [later[0] - earlier[0] for earlier, later in itertools.pairwise(values[:3])]
    # Series without times show the same moment as the latest values with times.
    page_time = max((metrics.last for metrics in objects.values()), default=parse_origin(DEFAULT_ORIGIN).timestamp())
    for key, metric, labels, value in undated:
        _record_series(objects[key], metric, labels, [(page_time, value)], timed=objects[key].last > -inf)
    if not objects:
        needed_metrics = "kube_pod_container_resource_requests, kube_pod_status_phase, kube_node_status_capacity"
        raise TraceFormatError(STATE_METRICS_SOURCE, "metrics of pods and nodes", "none", f"Query {needed_metrics}.")

    step = median(steps) if steps else 0.0
    end = max(metrics.last for metrics in objects.values()) + step
    for key, metrics in objects.items():
        kind, namespace, name = key
        if kind == "Node":
            api_object = _make_node(name, metrics, end)
        else:
            api_object = _make_pod(namespace, name, metrics, end, step)
        dump.add_object(api_object, kind, locations[key])
    dataset = make_dataset(dump, paths, boards, last_seen=_to_utc(end))
    return _add_findings(dataset, objects, end - MAX_GAP_SCRAPES * step, timeless=bool(undated) and page_time < DAY_S)


def _parse_series(text: str, source_name: str, page_time: float | None) -> Iterator[MetricSeries]:
    """Parse the series of pods and nodes in a page of kube-state-metrics, or in a JSON answer of Prometheus.

    Parameters
    ----------
    text : str
        Content of a file.
    source_name : str
        Name of the file in error messages.
    page_time : float, optional
        Time of values without time. [epoch s]

    Yields
    ------
    MetricSeries
        Values that cannot be read are left out.
    """
    if text.lstrip().startswith("{"):
        try:
            for series in extract_series(json.loads(text), source_name):
                labels = {name: str(value) for name, value in series.get("metric", {}).items()}
                points = series.get("values") or [series.get("value")]
                values = [(float(time), float(value)) for time, value in filter(None, points)]
                if STATE_METRIC_PATTERN.fullmatch(labels.get("__name__", "")) and values:
                    yield labels["__name__"], labels, _valid_points(values)
        except TraceFormatError:
            raise
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            expected, remedy = "an answer of Prometheus with series", "Save the whole answer."
            is_bad_json = isinstance(error, json.JSONDecodeError)
            got = str(error)[:200] if is_bad_json else "a series without labels or pairs"
            raise TraceFormatError(source_name, expected, got, remedy) from error
        return
    for line in text.splitlines():
        sample = re.match(PROMETHEUS_SAMPLE_PATTERN, line)
        sample_labels = parse_labels(sample[2] or "") if sample and STATE_METRIC_PATTERN.fullmatch(sample[1]) else None
        try:
            if sample and sample_labels is not None:
                fetch_time = nan if page_time is None else page_time
                time = float(sample[4]) / 1e3 if sample[4] else fetch_time
                yield sample[1], sample_labels, _valid_points([(time, float(sample[3]))], timed=False)
        except ValueError:
            continue


def _valid_points(values: list[tuple[float, float]], *, timed: bool = True) -> list[tuple[float, float]]:
    """Return the pairs of plausible time [epoch s] and finite value; without `timed` also those of time NaN."""
    finite = [(time, value) for time, value in values if isfinite(value)]
    return [(time, value) for time, value in finite if _is_plausible_time(time) or (isnan(time) and not timed)]


def _is_plausible_time(seconds: float) -> bool:
    """Whether epoch seconds are within the years that a dataset may cover."""
    return FIRST_INSTANT.timestamp() <= seconds <= END_INSTANT.timestamp()


def _object_key(metric: str, labels: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Return kind, namespace and name of the object that a series describes; None if its labels lack the name."""
    if metric.startswith("kube_node_"):
        node = _object_label(labels, "node")
        return ("Node", "", node) if node else None
    pod = _object_label(labels, "pod")
    return ("Pod", _object_label(labels, "namespace") or "default", pod) if pod else None


def _object_label(labels: Mapping[str, str], name: str) -> str:
    """Return a series label about its pod or node, which Prometheus may prefix with ``exported_``; "" if missing."""
    return labels.get(f"exported_{name}") or labels.get(name) or ""


def _record_series(
    metrics: ObjectMetrics,
    metric: str,
    labels: Mapping[str, str],
    values: list[tuple[float, float]],
    *,
    timed: bool = False,
) -> None:
    """Add a series of kube-state-metrics to the metrics of its pod or node.

    Parameters
    ----------
    metrics : ObjectMetrics
        Metrics of the object; updated in place.
    metric : str
        Name of the metric.
    labels : mapping of str to str
        Labels of the series.
    values : list of (float, float)
        Times [epoch s] and values.
    timed : bool
        Whether the object has other series with times, so that this one, of a page without times, adds no times.
    """
    if not timed:
        metrics.first = min(metrics.first, values[0][0])
        metrics.last = max(metrics.last, values[-1][0])
    latest = values[-1][1]
    for name in OBJECT_SERIES_LABELS:
        if text := _object_label(labels, name):
            metrics.labels[name] = text
    metrics.labels |= {name: value for name, value in labels.items() if name in LABEL_KEY_BY_SANITIZED_NAME}
    resource = (_object_label(labels, "container"), labels.get("resource", ""))
    kind = metric.removeprefix("kube_node_status_")
    if metric in CONTAINER_RESOURCE_METRICS:
        metrics.amounts["requests", *resource] = latest
    elif metric == "kube_pod_init_container_resource_requests":
        metrics.amounts["init", *resource] = latest
    elif kind in ("capacity", "allocatable"):
        metrics.amounts[kind, "", resource[1]] = latest
    elif metric == "kube_pod_status_phase":
        phase_times = [time for time, value in values if value == 1]
        if phase_times and not (timed and metrics.phases):
            metrics.phases[labels.get("phase", "")] = (phase_times[0], phase_times[-1])
    elif metric == "kube_node_status_condition" and latest == 1:
        metrics.conditions[labels.get("condition", "")] = labels.get("status", "").capitalize()
    elif metric == "kube_node_spec_unschedulable":
        metrics.cordoned = latest == 1
    elif metric in TIME_FIELD_BY_METRIC and latest > 0 and _is_plausible_time(latest):
        metrics.facts[TIME_FIELD_BY_METRIC[metric]] = latest


def _make_pod(namespace: str, name: str, metrics: ObjectMetrics, end: float, step: float) -> dict[str, Any]:
    """Make a Pod object of the Kubernetes API from its metrics.

    Parameters
    ----------
    namespace, name : str
        Its namespace and name.
    metrics : ObjectMetrics
        Its metrics.
    end : float
        End of all series. [epoch s]
    step : float
        Scrape interval. [s]

    Returns
    -------
    dict
    """
    node = metrics.labels.get("node")
    running = metrics.phases.get("Running")
    start = metrics.facts.get("scheduled") or metrics.facts.get("started")
    if start is None and (running or (not metrics.phases and node and metrics.first < metrics.last)):
        start = running[0] if running else metrics.first
    final_phase = next((phase for phase in ("Failed", "Succeeded") if phase in metrics.phases), None)
    finish = metrics.facts.get("completed") or (metrics.phases[final_phase][0] if final_phase else None)
    last_observed = (running[1] if running else metrics.last) + step
    if finish is None and start is not None and end - last_observed > (MAX_GAP_SCRAPES - 1) * step:
        finish = last_observed
        final_phase = final_phase or "Succeeded"

    owners = []
    for prefix in ("owner", "created_by"):
        owner_kind, owner = metrics.labels.get(f"{prefix}_kind", "<none>"), metrics.labels.get(f"{prefix}_name")
        if owner_kind != "<none>" and owner is not None:
            uid = f"{owner_kind} {namespace}/{owner}"
            owners.append({"kind": owner_kind, "name": owner, "controller": True, "uid": uid})

    first_active = metrics.first if start is None else start
    submit = min(metrics.facts.get("created", metrics.first), first_active)
    if not {"scheduled", "started"} & metrics.facts.keys() and start == metrics.first:
        submit = metrics.first  # it ran before the first scrape, so its queue wait is unknown

    idle_phase = "Pending" if metrics.phases or not node else "Unknown"
    status: dict[str, Any] = {"phase": final_phase or ("Running" if start is not None else idle_phase)}
    if start is not None:
        scheduled_condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": _format_time(start)}
        status |= {"startTime": _format_time(start), "conditions": [scheduled_condition]}
    if finish is not None:
        terminated = {"finishedAt": _format_time(max(finish, start or finish))}
        status["containerStatuses"] = [{"state": {"terminated": terminated}}]
    return {
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": namespace, "uid": metrics.labels.get("uid"),
            "creationTimestamp": _format_time(submit), "ownerReferences": owners[:1], "labels": _known_labels(metrics),
        },
        "spec": {
            "nodeName": node, "priorityClassName": metrics.labels.get("priority_class"),
            "containers": _make_containers(metrics, "requests"), "initContainers": _make_containers(metrics, "init"),
        },
        "status": status,
    }  # fmt: skip


def _make_containers(metrics: ObjectMetrics, kind: str) -> list[dict[str, Any]]:
    """Make container objects of a Pod: for `kind` ``requests`` its containers, for ``init`` its init containers."""
    amounts: dict[str, dict[str, str]] = defaultdict(dict)
    for (amount_kind, container, resource), value in metrics.amounts.items():
        if amount_kind == kind and value > 0:
            amounts[container][restore_resource_name(resource)] = _format_amount(value)
    if len(amounts) > 1:
        amounts.pop("", None)  # the scheduler's sum over the containers
    return [
        {"name": container, "resources": {"requests": requests, "limits": requests}}
        for container, requests in amounts.items()
    ]


def _add_findings(
    dataset: Dataset, objects: Mapping[tuple[str, str, str], ObjectMetrics], vanished_before: float, *, timeless: bool
) -> Dataset:
    """Return a dataset with the source and findings of kube-state-metrics, and with nodes retired where series ended.

    Parameters
    ----------
    dataset : Dataset
        Dataset made from the objects.
    objects : mapping of (str, str, str) to ObjectMetrics
        Metrics by kind, namespace and name of the object.
    vanished_before : float
        Time before which the last value of an object means that it was deleted. [epoch s]
    timeless : bool
        Whether the metrics have no times.
    """
    findings = [Finding(*row) for row in dataset.quality.iter_rows()]
    pods = [metrics for (kind, _, _), metrics in objects.items() if kind == "Pod" and _has_vendor_resources(metrics)]
    nodes = {name: metrics for (kind, _, name), metrics in objects.items() if kind == "Node"}
    pods_without_phase = sum(not pod.phases and "completed" not in pod.facts for pod in pods)
    running_pods = [pod for pod in pods if pod.phases and not {"Succeeded", "Failed"} & pod.phases.keys()]
    deleted_pods = sum(pod.last < vanished_before for pod in running_pods)
    unlabelled = [
        name for name, metrics in nodes.items() if _has_vendor_resources(metrics) and not _known_labels(metrics)
    ]

    if timeless:
        effect = (
            "they show one instant: state when the page was fetched (--origin 2026-01-31T12:00:00Z), or "
            "query a month from Prometheus; GPU-hours are not known"
        )
        findings.append(Finding(NO_TIMES_CHECK, "warning", len(pods), effect, ""))
    if pods_without_phase:
        effect = "GPU-hours are too high where finished pods were kept: query kube_pod_status_phase as well"
        findings.append(Finding(NO_PHASE_CHECK, "warning", pods_without_phase, effect, ""))
    if deleted_pods:
        effect = "they are taken to have completed then: whether they failed is not known"
        findings.append(Finding(DELETED_PODS_CHECK, "info", deleted_pods, effect, ""))
    if unlabelled:
        allow = "--metric-labels-allowlist=nodes=[*]"
        effect = f"the GPU model is not known: start kube-state-metrics with {allow}, or give --map-gpu"
        findings.append(Finding(NO_MODEL_CHECK, "warning", len(unlabelled), effect, unlabelled[0]))

    inventory = dataset.inventory
    if inventory is not None:
        retired_at = {name: _to_utc(metrics.last) for name, metrics in nodes.items() if metrics.last < vanished_before}
        retired = pl.col("node").replace_strict(retired_at, default=None, return_dtype=pl.Datetime("us", "UTC"))
        inventory = inventory.with_columns(retired=pl.coalesce("retired", retired))
    notes = [note for note in dataset.provenance["notes"] if note != KUBECTL_SCOPE_NOTE]
    facts = {**dataset.provenance, "source": STATE_METRICS_SOURCE, "notes": notes}
    return replace(dataset, quality=build_quality_report(findings), provenance=facts).with_tables(inventory=inventory)


def _make_node(name: str, metrics: ObjectMetrics, end: float) -> dict[str, Any]:
    """Make a Node object of the Kubernetes API from its metrics; `end` is the end of all series [epoch s]."""
    ready = metrics.conditions.get("Ready", "True")
    amounts: dict[str, dict[str, str]] = {"capacity": {}, "allocatable": {}}
    for (kind, _, resource), value in metrics.amounts.items():
        amounts[kind][restore_resource_name(resource)] = _format_amount(value)
    heartbeat = {"type": "Ready", "status": ready, "lastHeartbeatTime": _format_time(end)}
    created = {"creationTimestamp": _format_time(metrics.facts["created"])} if "created" in metrics.facts else {}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": _known_labels(metrics), **created},
        "spec": {"unschedulable": True} if metrics.cordoned else {},
        "status": {**amounts, "conditions": [heartbeat]},
    }


def restore_resource_name(sanitized_name: str) -> str:
    """Restore the name of a resource in which kube-state-metrics replaced all punctuation by ``_``.

    Examples
    --------
    >>> words = ["nvidia_com_gpu", "nvidia_com_mig_1g_10gb", "amd_com_cpx_nps4"]
    >>> tuple(map(restore_resource_name, words))
    ('nvidia.com/gpu', 'nvidia.com/mig-1g.10gb', 'amd.com/cpx_nps4')
    """
    for vendor in GPU_RESOURCE_VENDOR_DOMAINS:
        prefix = re.sub(r"[.-]", "_", vendor) + "_"
        if sanitized_name.startswith(prefix):
            kind = sanitized_name.removeprefix(prefix)
            if match := SANITIZED_MIG_PATTERN.fullmatch(kind):
                kind = f"mig-{match[1]}.{match[2]}{match[3].replace('_', '.')}"
            elif vendor != "amd.com":
                kind = "gpu.shared" if kind == "gpu_shared" else kind.replace("_", "-")
            return f"{vendor}/{kind}"
    return sanitized_name


def _has_vendor_resources(metrics: ObjectMetrics) -> bool:
    """Whether a pod requests, or a node has, a resource of a vendor, such as ``nvidia.com/gpu``."""
    return any("/" in restore_resource_name(resource) for _, _, resource in metrics.amounts)


def _known_labels(metrics: ObjectMetrics) -> dict[str, str]:
    """Return the labels of a pod or node that are read, under their names in Kubernetes."""
    return {
        LABEL_KEY_BY_SANITIZED_NAME[name]: value
        for name, value in metrics.labels.items()
        if name in LABEL_KEY_BY_SANITIZED_NAME
    }


def _format_amount(value: float) -> str:
    """Format an amount of a resource as a quantity of the Kubernetes API: whole numbers without a decimal point."""
    return str(int(value)) if value == int(value) else str(value)


def _to_utc(seconds: float) -> datetime:
    """Convert epoch seconds to a time in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


def _format_time(seconds: float) -> str:
    """Format epoch seconds as an ISO time in UTC."""
    return _to_utc(seconds).isoformat()
