"""The objects of the files of a Kubernetes dump, sorted by kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from gpuplanner.ingest.gpu_lists_of_nodes import read_dump_time
from gpuplanner.ingest.kubernetes.api_objects import ApiObject, get_object, item_kind, read_objects, to_text
from gpuplanner.ingest.kubernetes.gpu_requests import is_reservation_pod
from gpuplanner.ingest.kubernetes.kueue_workloads import KueueWorkload, read_workload
from gpuplanner.ingest.kubernetes.node_labels import gpu_model_from_labels, profile_from_labels
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
from gpuplanner.ingest.kubernetes.pods_and_jobs import (
    ObjectLocation,
    Owner,
    PodOrJob,
    read_controller,
    read_job,
    read_pod,
)
from gpuplanner.ingest.kubernetes.queue_quotas import parent_queue, read_cluster_queue_quotas, read_queue_quotas
from gpuplanner.ingest.text_files import TextFile

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

    def find_claims(self, pod: PodOrJob) -> list[tuple[tuple[str, str], DeviceClaim]]:
        """Find the ResourceClaims of a pod in the dump, by namespace and name ("" if made from a template)."""
        claims = []
        for name, template in pod.claims:
            key = (pod.namespace, name or "")
            claim = self.claims.get(key) or self.templates.get((pod.namespace, template or ""))
            claims += [] if claim is None else [(key, claim)]
        return claims

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
