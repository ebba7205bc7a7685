"""The objects of Kubernetes dumps sorted by kind, and readers for the Workloads and ClusterQueues of Kueue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import QueueQuotas
from gpuplanner.ingest.delimited_rows import raise_fault
from gpuplanner.ingest.gpu_lists_of_nodes import read_dump_time
from gpuplanner.ingest.kubernetes.api_objects import (
    ApiObject,
    classify_unread_resource,
    get_object,
    get_objects,
    item_kind,
    object_name,
    parse_count,
    parse_gpu_resource,
    parse_quantity,
    read_condition,
    read_objects,
    spec_and_annotations,
    to_text,
)
from gpuplanner.ingest.kubernetes.node_gpus import gpu_model_from_labels, profile_from_labels
from gpuplanner.ingest.kubernetes.nodes_and_dra_devices import (
    DeviceClaim,
    DeviceClass,
    DraDevice,
    Node,
    read_claim,
    read_device_class,
    read_node,
    read_resource_slice,
)
from gpuplanner.ingest.kubernetes.pod_and_job_requests_and_queue_quotas import (
    ObjectLocation,
    Owner,
    PodOrJob,
    WorkloadObject,
    is_reservation_pod,
    parent_queue,
    pod_gpu_requests,
    read_controller,
    read_job,
    read_metadata_fields,
    read_pod,
    read_queue_quotas,
    requests_gpu_fractions,
    sharing_resources,
)
from gpuplanner.ingest.text_files import TextFile

STATE_BY_FINISHED_REASON = {"Succeeded": "COMPLETED", "Failed": "FAILED"}
"""Reason of the condition Finished of a Kueue Workload → job state; older versions of Kueue give other reasons."""

REQUEUED_WORKLOAD_STATE = "PREEMPTED"
"""Job state of a Kueue Workload that was evicted and may be queued again."""

STATE_BY_EVICTED_REASON = {"Deactivated": "CANCELLED", "MaximumExecutionTimeExceeded": "TIMEOUT"}
"""End of the reason of the condition Evicted of a Kueue Workload that is not queued again → job state."""


@dataclass(frozen=True)
class KueueWorkload(WorkloadObject):
    """A Workload of Kueue: the admission request of a Job or of a group of pods.

    - ``owner_uids``: Uids of the objects that it represents: one Job, or the pods of a group.
    - ``queue``: ClusterQueue that admitted it; ``local_queue`` is the LocalQueue that it was submitted to.
    - ``state``: State in the job table; None if it finished and only its Job has the result.
    - ``flavors``: ResourceFlavors of its GPUs.
    - ``evictions``: Number of times that it was evicted and queued again before its latest admission.
    """

    owner_uids: tuple[str, ...]
    queue: str | None
    state: str | None
    flavors: frozenset[str]
    evictions: int


def read_workload(workload: ApiObject, location: ObjectLocation) -> KueueWorkload:
    """Read an object of kind Workload (Kueue): its owners, queue, GPU requests, admission, end and evictions.

    References
    ----------
    kubernetes-sigs/kueue, apis/kueue/v1beta1/workload_types.go.
    """
    metadata, spec, status = (get_object(workload, name) for name in ("metadata", "spec", "status"))
    identity_fields = read_metadata_fields(workload, location) | {"local_queue": to_text(spec.get("queueName"))}
    owners = tuple(uid for entry in get_objects(metadata, "ownerReferences") if (uid := to_text(entry.get("uid"))))
    gpu_requests, flavors = _workload_requests(spec, status)
    start, end, state = _read_admission(spec, status)
    evictions = get_objects(get_object(status, "schedulingStats"), "evictions")
    eviction_counts = [parse_count(entry.get("count"), "evictions.count") for entry in evictions]
    return KueueWorkload(
        **identity_fields,
        owner_uids=(identity_fields["owner"][2],) if identity_fields["owner"] else owners,
        queue=to_text(get_object(status, "admission").get("clusterQueue")),
        start=start,
        end=end,
        state=state,
        gpu_requests=gpu_requests,
        flavors=flavors,
        evictions=max(sum(eviction_counts) - (state == REQUEUED_WORKLOAD_STATE), 0),
        tier=to_text(spec.get("priorityClassName")) or to_text(get_object(spec, "priorityClassRef").get("name")),
        limit_s=spec.get("maximumExecutionTimeSeconds"),
    )


def _read_admission(spec: ApiObject, status: ApiObject) -> tuple[datetime | None, datetime | None, str | None]:
    """Read the time of admission, the end, and the job state of a Workload from its conditions.

    An evicted Workload that is queued again is pending and has no admission any more. One that is admitted, and evicted
    later, lost its GPUs at that time: its pods are terminating, or it is not queued again.
    """
    admitted, _, admitted_at = read_condition(status, "Admitted")
    finished, reason, finished_at = read_condition(status, "Finished")
    evicted, eviction_reason, evicted_at = read_condition(status, "Evicted")
    if finished:
        return admitted_at if admitted else None, finished_at, STATE_BY_FINISHED_REASON.get(reason)
    states = (state for word, state in STATE_BY_EVICTED_REASON.items() if eviction_reason.endswith(word))
    final_state = next(states, None)
    if admitted and evicted and admitted_at and evicted_at and evicted_at >= admitted_at:
        return admitted_at, evicted_at, final_state or REQUEUED_WORKLOAD_STATE
    if admitted:
        return admitted_at, None, "RUNNING"
    inactive = not spec.get("active", True)
    if inactive or (evicted and final_state):
        return None, evicted_at, final_state or "CANCELLED"
    return None, None, "PENDING"


def _workload_requests(spec: ApiObject, status: ApiObject) -> tuple[dict[str, Fraction], frozenset[str]]:
    """Return the GPU requests of a Workload, summed over its pods, and the ResourceFlavors of its GPUs.

    Requests are those admitted, else those of the pod templates. Fractions of GPUs are always of the templates, as
    Kueue adds up the percentages of the pods.
    """
    total: dict[str, Fraction] = {}
    flavors: set[str] = set()
    admitted = get_objects(get_object(status, "admission"), "podSetAssignments")
    assignments = {to_text(entry.get("name")): entry for entry in admitted}
    for pod_set in get_objects(spec, "podSets"):
        assignment = assignments.get(to_text(pod_set.get("name")) or "main", {})
        usage = get_object(assignment, "resourceUsage")
        gpus = pod_gpu_requests(*spec_and_annotations(get_object(pod_set, "template")))
        if usage and not requests_gpu_fractions(gpus):
            names = [name for name in usage if parse_gpu_resource(name) or classify_unread_resource(name)]
            gpus = {name: Fraction(parse_quantity(usage[name], name)) for name in names}
        else:
            pods = parse_count(assignment.get("count", pod_set.get("count", 1)), "podSets.count")
            gpus = {name: pods * number for name, number in gpus.items()}
        for name, number in gpus.items():
            if number:
                total[name] = total.get(name, Fraction(0)) + number

        chosen_flavors = get_object(assignment, "flavors")
        sharing_names = [(system.number, *system.size_resources()) for system in sharing_resources()]
        fraction_resources = [name for system in sharing_names for name in system if name]
        resource_names = [*gpus, *(fraction_resources if requests_gpu_fractions(gpus) else [])]
        flavors |= {flavor for name in resource_names if (flavor := to_text(chosen_flavors.get(name)))}
    return total, frozenset(flavors)


FIELD_BY_QUOTA_COLUMN = {"nominal": "nominalQuota", "borrow": "borrowingLimit", "lend": "lendingLimit"}
"""Column of the table of quotas [GPUs] → field of a resource in a ClusterQueue of Kueue."""


def read_cluster_queue_quotas(queue: ApiObject) -> list[dict[str, Any]]:
    """Read the GPU quotas of an object of kind ClusterQueue (Kueue) as rows of the table of quotas [GPUs].

    References
    ----------
    kubernetes-sigs/kueue, apis/kueue/v1beta1/clusterqueue_types.go; v1beta2 calls `cohort` `cohortName`.

    Examples
    --------
    >>> resource = {"name": "nvidia.com/gpu", "nominalQuota": 8, "borrowingLimit": "4"}
    >>> group = {"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "h100", "resources": [resource]}]}
    >>> queue = {"metadata": {"name": "ads"}, "spec": {"cohort": "web", "resourceGroups": [group]}}
    >>> row = read_cluster_queue_quotas(queue)[0]
    >>> row["tenant"], row["cohort"], row["nominal"], row["borrow"], row["lend"]
    ('ads', 'web', 8.0, 4.0, None)
    """
    spec, name = get_object(queue, "spec"), object_name(queue)
    weight = get_object(spec, "fairSharing").get("weight")
    rows = []
    for group in get_objects(spec, "resourceGroups"):
        for flavor in get_objects(group, "flavors"):
            for resource in get_objects(flavor, "resources"):
                kind = parse_gpu_resource(to_text(resource.get("name")) or "")
                if kind is None:
                    continue
                quota_fields = {
                    "tenant": name,
                    "cohort": to_text(spec.get("cohortName")) or to_text(spec.get("cohort")),
                    "flavor": to_text(flavor.get("name")),
                    "resource": resource["name"],
                    "profile": kind.profile,
                }
                amounts = {column: _read_quota_amount(resource, key) for column, key in FIELD_BY_QUOTA_COLUMN.items()}
                share = {"weight": None if weight is None else float(parse_quantity(weight))}
                rows.append(quota_fields | amounts | share)
    return rows


def _read_quota_amount(resource: ApiObject, name: str) -> float | None:
    """Read a quota or limit of a resource in a ClusterQueue [GPUs]; None if a limit is missing."""
    value = resource.get(name)
    if value is None and name != "nominalQuota":
        return None
    amount = float(parse_quantity(value))
    if not 0 <= amount < 1e9:
        raise_fault(f"{name}: {str(value)[:40]!r} is no amount")
    return amount


def make_quota_table(
    quotas: Mapping[str, list[dict[str, Any]]],
    gpu_models: Mapping[str, tuple[str | None, str | None]],
    queues: Mapping[tuple[str, str], str],
) -> pl.DataFrame | None:
    """Make the table of quotas, with the GPU models of the flavors and the namespaces of the LocalQueues.

    Parameters
    ----------
    quotas : mapping of str to list of dict
        ClusterQueue → its rows.
    gpu_models : mapping of str to (str or None, str or None)
        ResourceFlavor → GPU model and MIG profile.
    queues : mapping of (str, str) to str
        Namespace and name of a LocalQueue → its ClusterQueue.

    Returns
    -------
    polars.DataFrame or None
        Table ``schemas.QueueQuotas`` [GPUs]; None without quotas.
    """
    namespaces: dict[str, set[str]] = defaultdict(set)
    for (namespace, _), queue in queues.items():
        namespaces[queue].add(namespace)
    rows_with_models = [
        {
            **row,
            "gpu_model": gpu_models.get(row["flavor"] or "", (None, None))[0],
            "namespaces": ",".join(sorted(namespaces[tenant])) or None,
        }
        for tenant, rows in quotas.items()
        for row in rows
    ]
    if not rows_with_models:
        return None
    table = conform(pl.DataFrame(rows_with_models, infer_schema_length=None), QueueQuotas, source="quotas")
    return table.sort("tenant", "flavor", "resource", maintain_order=True)


DUPLICATE_OBJECT_REASON = "the same object again: the one that knows more was kept"
"""Reject reason of an object that the dump has in a later or more complete version too."""

UNREAD_KIND_REASON = "of a kind that is not read"
"""Reject reason of an object of a kind that is not read, such as a ConfigMap."""

RESERVATION_POD_REASON = "holds a GPU for the pods that share it, which count"
"""Reject reason of a pod of KAI or Run:ai that reserves a GPU for the pods that share it."""

NOT_A_KUBERNETES_OBJECT_REASON = "not an object of Kubernetes: no kind or no metadata"
"""Reject reason of an item of a dump without kind or metadata."""

MAX_CONTROLLER_CHAIN_LENGTH = 10
"""Most controllers that are followed upward from a pod, each the controller of the one before it."""

DumpedObject = TypeVar("DumpedObject", PodOrJob, KueueWorkload)
"""Type of objects of which a dump may have several versions: pods and Jobs, or Workloads."""


@dataclass
class ClusterDump:
    """Kubernetes objects of all files of a dump, by kind.

    - ``files``: Files that were read.
    - ``pods``, ``jobs``: Uid → pod, Job.
    - ``workloads``: Uid → Workload of Kueue.
    - ``nodes``: Name → node.
    - ``nodes_of_file``: Number of a file → its nodes by name.
    - ``time_of_file``: Number of a file with nodes → when it was written: their latest heartbeat; earliest file first.
    - ``vanished_gap_s``: Uid of a pod that runs in one file and is missing from a later one → time between the two [s].
    - ``succeeded_pods``: Uid of a Job → number of its pods that succeeded.
    - ``devices``: Driver, pool and name → DRA device.
    - ``classes``, ``class_by_resource``: Name → DRA device class; extended resource → name of its device class.
    - ``claims``, ``templates``: Namespace and name → ResourceClaim, and the claim that a template makes.
    - ``queues``: Namespace and name of a LocalQueue → its ClusterQueue.
    - ``flavors``: ResourceFlavor → labels of its nodes.
    - ``quotas``: ClusterQueue → its rows for the table of quotas.
    - ``parent_queues``: Queues of KAI or Volcano that have child queues: jobs are in the children.
    - ``controllers``: Uid → controller of that object.
    - ``rejects``: Location and reason of objects that are not read.
    """

    files: list[TextFile] = field(default_factory=list)
    pods: dict[str, PodOrJob] = field(default_factory=dict)
    jobs: dict[str, PodOrJob] = field(default_factory=dict)
    workloads: dict[str, KueueWorkload] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    nodes_of_file: dict[int, dict[str, Node]] = field(default_factory=dict)
    time_of_file: dict[int, datetime] = field(default_factory=dict)
    vanished_gap_s: dict[str, float] = field(default_factory=dict)
    succeeded_pods: dict[str, int] = field(default_factory=dict)
    devices: dict[tuple[str, str, str], DraDevice] = field(default_factory=dict)
    classes: dict[str, DeviceClass] = field(default_factory=dict)
    class_by_resource: dict[str, str] = field(default_factory=dict)
    claims: dict[tuple[str, str], DeviceClaim] = field(default_factory=dict)
    templates: dict[tuple[str, str], DeviceClaim] = field(default_factory=dict)
    queues: dict[tuple[str, str], str] = field(default_factory=dict)
    flavors: dict[str, ApiObject] = field(default_factory=dict)
    quotas: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    parent_queues: set[str] = field(default_factory=set)
    controllers: dict[str, Owner] = field(default_factory=dict)
    rejects: list[tuple[ObjectLocation, str]] = field(default_factory=list)

    def add_object(self, api_object: ApiObject, kind: str, location: ObjectLocation) -> None:
        """Read a Kubernetes object and store it by kind, or add it to the rejects with its fault."""
        try:
            self._store_object(api_object, kind, location)
        except ValueError as error:
            self.rejects.append((location, str(error)))

    def _store_object(self, api_object: ApiObject, kind: str, location: ObjectLocation) -> None:
        """Read a Kubernetes object by its kind and store it; raise a ValueError if a field is faulty."""
        metadata = get_object(api_object, "metadata")
        uid, owner = to_text(metadata.get("uid")), read_controller(api_object)
        if uid and owner:
            self.controllers[uid] = owner
        key = (to_text(metadata.get("namespace")) or "default", to_text(metadata.get("name")) or "")
        spec, status = get_object(api_object, "spec"), get_object(api_object, "status")
        if kind == "Pod" and is_reservation_pod(metadata):
            self.rejects.append((location, RESERVATION_POD_REASON))
        elif kind == "Pod":
            self._store_fullest_version(self.pods, read_pod(api_object, location))
        elif kind == "Job":
            job = read_job(api_object, location)
            self._store_fullest_version(self.jobs, job)
            succeeded = status.get("succeeded")
            self.succeeded_pods[job.uid] = succeeded if type(succeeded) is int else 0
        elif kind == "Workload":
            self._store_fullest_version(self.workloads, read_workload(api_object, location))
        elif kind == "Node":
            node = read_node(api_object)
            self.nodes[key[1]] = node
            self.nodes_of_file.setdefault(location.file, {})[key[1]] = node
        elif kind == "ResourceSlice":
            self.devices |= {device.key: device for device in read_resource_slice(api_object)}
        elif kind == "DeviceClass":
            self.classes[key[1]] = read_device_class(spec)
            if resource := to_text(spec.get("extendedResourceName")):
                self.class_by_resource[resource] = key[1]
        elif kind == "ResourceClaim":
            self.claims[key] = read_claim(spec, status)
        elif kind == "ResourceClaimTemplate":
            self.templates[key] = read_claim(get_object(spec, "spec"), {})
        elif kind == "ClusterQueue":
            self.quotas[key[1]] = read_cluster_queue_quotas(api_object)
        elif kind == "Queue":
            self.quotas[key[1]] = read_queue_quotas(api_object)
            self.parent_queues |= {parent_queue(api_object) or ""} - {""}
        elif kind == "LocalQueue":
            self.queues[key] = to_text(spec.get("clusterQueue")) or ""
        elif kind == "ResourceFlavor":
            self.flavors[key[1]] = get_object(spec, "nodeLabels")
        else:
            self.rejects.append((location, UNREAD_KIND_REASON))

    def _store_fullest_version(self, stored: dict[str, DumpedObject], dumped_object: DumpedObject) -> None:
        """Store a pod, Job or Workload by uid; keep its ended version, else the later one, and reject the other."""
        earlier = stored.get(dumped_object.uid)
        if earlier is not None and earlier.end is not None and dumped_object.end is None:
            dumped_object, earlier = earlier, dumped_object
        stored[dumped_object.uid] = dumped_object
        if earlier is not None:
            self.rejects.append((earlier.location, DUPLICATE_OBJECT_REASON))

    def flavor_nodes(self, flavor: str) -> list[Node]:
        """Return the nodes with GPUs that have all node labels of a ResourceFlavor."""
        flavor_labels = self.flavors.get(flavor, {})
        return [
            node
            for node in self.nodes.values()
            if node.gpus and all(node.labels.get(label) == value for label, value in flavor_labels.items())
        ]

    def flavor_gpu_model(self, flavor: str) -> tuple[str | None, str | None]:
        """Return the GPU model of a ResourceFlavor, and the MIG profile of its GPUs under the strategy ``single``.

        Both follow from its node labels, or else from the nodes with these labels if they are all alike.
        """
        labels = self.flavors.get(flavor, {})
        model, profile = gpu_model_from_labels(labels)[0], profile_from_labels(labels)
        kinds = {(node.model, node.profile) for node in self.flavor_nodes(flavor)}
        return (model, profile) if model or len(kinds) != 1 else kinds.pop()

    def find_pod_node(self, pod: PodOrJob) -> Node | None:
        """Return the node of a pod, from the same file if that has it; None if no file has it."""
        name = pod.node or ""
        return self.nodes_of_file.get(pod.location.file, {}).get(name) or self.nodes.get(name)

    def find_controllers(self, pod_or_job: PodOrJob) -> list[Owner]:
        """Return the controllers of a pod or Job, the direct one first, as far upward as the dump has them."""
        controllers: list[Owner] = []
        owner = pod_or_job.owner
        while owner is not None and owner not in controllers and len(controllers) < MAX_CONTROLLER_CHAIN_LENGTH:
            controllers.append(owner)
            owner = self.controllers.get(owner[2])
        return controllers


def read_dump(paths: Sequence[str | Path]) -> ClusterDump:
    """Read the Kubernetes objects of output files of ``kubectl get -o json`` or ``-o yaml`` and sort them by kind.

    A file has lists, JSON lines, documents, or concatenated objects. Pods that run in one file and are missing from a
    later one end at the time of the last file that has them.
    """
    dump = ClusterDump()
    uids_by_file: list[dict[str, set[str]]] = []
    for file_number, path in enumerate(paths):
        uids_by_file.append(defaultdict(set))
        file, items = read_objects(path)
        dump.files.append(file)
        for item in items:
            api_object = item.value if isinstance(item.value, dict) else {}
            metadata = api_object.get("metadata")
            kind = item_kind(item)
            if item.fault or not kind or not isinstance(metadata, dict):
                location = ObjectLocation(file_number, item.position, item.raw[:40])
                dump.rejects.append((location, item.fault or NOT_A_KUBERNETES_OBJECT_REASON))
                continue
            raw = f"{kind[:60]} {str(metadata.get('namespace') or '')[:80]}/{str(metadata.get('name'))[:260]}"
            location = ObjectLocation(file_number, item.position, raw)
            if kind == "Pod":
                namespace = str(metadata.get("namespace") or "default")
                uids_by_file[file_number][namespace].add(str(metadata.get("uid") or ""))
            dump.add_object(api_object, kind, location)
    _date_files(dump)
    end_vanished_pods(dump, uids_by_file)
    return dump


def _date_files(dump: ClusterDump) -> None:
    """Date the files by the latest heartbeat of their nodes, else by name; each node is as the latest lists it."""
    heartbeats = {
        file_number: max(filter(None, (node.last_heartbeat for node in nodes.values())), default=None)
        or read_dump_time(dump.files[file_number].path)
        for file_number, nodes in dump.nodes_of_file.items()
    }
    dated_files = sorted((time, file_number) for file_number, time in heartbeats.items() if time)
    dump.time_of_file |= {file_number: time for time, file_number in dated_files}
    for file_number in dump.time_of_file:
        for name, node in dump.nodes_of_file[file_number].items():
            joined = [time for time in (dump.nodes[name].installed, node.installed) if time]
            dump.nodes[name] = replace(node, installed=min(joined, default=None))


def end_vanished_pods(dump: ClusterDump, uids_by_file: Sequence[Mapping[str, set[str]]]) -> None:
    """End each pod that runs in one file and is missing from a later one at the time of the last file that has it.

    Parameters
    ----------
    dump : ClusterDump
        The objects of all files.
    uids_by_file : sequence of mapping
        Of each file, namespace → uids of its pods. A file covers the namespaces of which it has pods, and all
        namespaces if it has pods of several.
    """
    dated_files = [(file_time, file_number) for file_number, file_time in dump.time_of_file.items()]
    last_rank: dict[tuple[str, str], int] = {}
    for rank, (_, file_number) in enumerate(dated_files):
        last_rank |= {(name, uid): rank for name, uids in uids_by_file[file_number].items() for uid in uids}
    for uid, pod in dump.pods.items():
        if pod.end is not None or pod.start is None or (pod.namespace, uid) not in last_rank:
            continue
        rank = last_rank[pod.namespace, uid]
        last_time = dated_files[rank][0]
        for file_time, file_number in islice(dated_files, rank + 1, None):
            namespaces = uids_by_file[file_number]
            if file_time > last_time and (len(namespaces) > 1 or pod.namespace in namespaces):
                dump.pods[uid] = replace(pod, end=max(last_time, pod.start), state="UNKNOWN")
                dump.vanished_gap_s[uid] = (file_time - last_time).total_seconds()
                break
