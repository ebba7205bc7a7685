"""Job rows made from the pods, Jobs and Workloads of a Kubernetes dump."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fractions import Fraction

import polars as pl

from gpuplanner.core.schemas import FULL_GPU, SERVICE_JOB_CLASS
from gpuplanner.ingest.delimited_rows import RecordCollector, Rows
from gpuplanner.ingest.job_gpu_counting import format_device_counts
from gpuplanner.ingest.kubernetes.api_objects import classify_unread_resource, parse_gpu_resource
from gpuplanner.ingest.kubernetes.cluster_dump import ClusterDump
from gpuplanner.ingest.kubernetes.gpu_requests import (
    GPU_FRACTION_KEY,
    GPU_MEMORY_KEY,
    MEMORY_BESIDE_CORES_KEY,
    MEMORY_FRACTION_KEY,
    NON_RESOURCE_REQUEST_KEYS,
    gpu_memory_resources,
    node_defined_memory_units,
)
from gpuplanner.ingest.kubernetes.kueue_workloads import KueueWorkload
from gpuplanner.ingest.kubernetes.node_labels import partitions_in_mode
from gpuplanner.ingest.kubernetes.nodes_and_dra_devices import (
    FULL_GPU_DEVICE_CLASS_KIND,
    NO_GPU_DEVICE_CLASS_KIND,
    NVIDIA_DRA_DRIVER,
    ClaimedGpus,
    Node,
    count_claimed_gpus,
    find_device_class,
)
from gpuplanner.ingest.kubernetes.pods_and_jobs import (
    GANG_STATE_PRECEDENCE,
    SERVICE_OWNER_KINDS,
    Owner,
    PodOrJob,
    group_gangs,
)
from gpuplanner.ingest.source_fields import source_columns

FIELD_BY_JOB_ROW_KEY = source_columns("kubernetes_jobs")
"""Key of a row made from a pod, Job or Workload → its column in the job table, and how to parse its text."""

DEVICE_CLASS_RESOURCE_PREFIX = "deviceclass.resource.kubernetes.io/"
"""Prefix of the extended resources that name a DRA device class (Kubernetes, DRA)."""

NAME_BY_REQUEST_KEY = {GPU_MEMORY_KEY: "memory of a GPU (nvidia.com/gpu-Ngb or the annotation gpu-memory)"}
"""Key of a GPU request that is not the name of a resource → its name in messages."""

NO_GPU_REQUEST_REASON = "requests no GPU"
"""Reject reason of pods, Jobs and Workloads that request no GPU."""

COUNTED_WITH_JOB_REASON = "counted on the row of its job"
"""Reject reason of pods and Jobs whose GPUs are counted on the row of another object."""

GpuRequester = PodOrJob | KueueWorkload
"""An object that requests GPUs: pod, Job, or Workload of Kueue."""


@dataclass
class _GpuAllocation:
    """GPUs allocated to the pods of a job; their sum is unknown if any number is.

    - ``device_counts``: Number, MIG profile and GPU model of the devices of each request. [GPUs or MIG instances]
    - ``gpus_by_memory``: The same numbers counted by memory, for devices that are not MIG instances. [GPUs]
    - ``unresolved``: Estimated GPUs of devices whose number of GPUs is unknown. [GPUs]
    - ``devices_per_pod``: Number of devices of each pod, in the order of the pods.
    """

    device_counts: list[tuple[Fraction | int | None, str | None, str | None]] = field(default_factory=list)
    gpus_by_memory: list[Fraction | int | None] = field(default_factory=list)
    unresolved: Fraction = Fraction(0)
    devices_per_pod: list[float] = field(default_factory=list)

    def to_columns(self) -> dict[str, str | None]:
        """Return the allocation as texts by key of a job row; the MIG profile only if all devices have the same."""
        gpus = _sum_as_text(gpus for gpus, _, _ in self.device_counts)
        by_memory = _sum_as_text(self.gpus_by_memory)
        profiles = {profile for gpus, profile, _ in self.device_counts if gpus != 0}
        models = {model for gpus, _, model in self.device_counts if gpus != 0 and model}
        has_instances = gpus is not None and bool(profiles - {None})
        devices: dict[str, Fraction] = defaultdict(Fraction)
        for number, profile, model in self.device_counts:
            devices["-MIG-".join(filter(None, (model, profile))) or FULL_GPU] += number or 0
        words = format_device_counts({word: float(number) for word, number in devices.items()})
        return {
            "gpus": gpus,
            "unresolved gpus": str(float(self.unresolved)) if gpus is None and self.unresolved else None,
            "gpus by memory": None if has_instances else by_memory,
            "profile": next(iter(profiles)) if len(profiles) == 1 else None,
            "board": "|".join(sorted(models)) or None,
            "devices": words if has_instances else None,
        }


def _sum_as_text(numbers: Iterable[Fraction | int | None]) -> str | None:
    """Return the sum of numbers as text; None if one of them is unknown."""
    known_numbers = list(numbers)
    return None if None in known_numbers else str(float(sum(number for number in known_numbers if number)))


@dataclass
class ResourceRequests:
    """Pods that request one resource or device class.

    - ``pods``: Number of pods that request it.
    - ``example``: Namespace and name of one of them.
    - ``device_hours``: Requested devices times run time of those that ended. [device-hours]
    """

    pods: int = 0
    example: str = ""
    device_hours: float = 0.0


@dataclass(frozen=True)
class UncertainRequests:
    """GPU requests that are not read, or whose number of GPUs is uncertain, by resource or device class.

    - ``unread``: The resource or device class is not read; it may be a GPU or another accelerator.
    - ``on_missing_nodes``: The pods ran on nodes that are not in the dump, whose GPUs may be shared.
    - ``unresolved``: The number of GPUs that the request represents is unknown.
    - ``by_catalogue``: The request is for GPU memory, and only the catalogue states the memory of the GPU.
    """

    unread: dict[str, ResourceRequests] = field(default_factory=dict)
    on_missing_nodes: dict[str, ResourceRequests] = field(default_factory=dict)
    unresolved: dict[str, ResourceRequests] = field(default_factory=dict)
    by_catalogue: dict[str, ResourceRequests] = field(default_factory=dict)


def make_job_rows(dump: ClusterDump) -> tuple[Rows, pl.DataFrame, UncertainRequests]:
    """Make one row for the job table from each job in a Kubernetes dump.

    Parameters
    ----------
    dump : ClusterDump
        The objects of the dump.

    Returns
    -------
    rows : Rows
        One row for each job; objects that are counted on the row of another, or request no GPU, are rejects.
    names : polars.DataFrame
        Columns ``name`` and ``job_id``: each pod whose job has another name, as namespace/name.
    uncertain : UncertainRequests
        GPU requests that are not read or whose number of GPUs is uncertain.
    """
    jobs = _JobRowBuilder(dump)
    rows = jobs.build_rows()
    schema = {"name": pl.String, "job_id": pl.String}
    return rows, pl.DataFrame(sorted(jobs.job_names.items()), schema=schema, orient="row"), jobs.uncertain


def count_request_kinds(dump: ClusterDump) -> dict[str, int]:
    """Count the pods that request NVIDIA GPUs by DRA, and those that request GPUs by a device plugin.

    Without pods, Jobs are counted. A resource that stands for a DeviceClass counts as DRA if the scheduler made a claim
    for it, or if its name is of no device plugin.

    Returns
    -------
    dict of str to int
        ``dra_pods`` and ``plugin_pods``.
    """
    counts = Counter(dra_pods=0, plugin_pods=0)
    for pod in (dump.pods or dump.jobs).values():
        class_names = {request.device_class for _, claim in dump.find_claims(pod) for request in claim.requests}
        of_classes = {*pod.claim_by_resource}
        for resource in {*pod.gpu_requests, *pod.other_requests}:
            if resource in of_classes or (parse_gpu_resource(resource) is None and _class_of_resource(dump, resource)):
                class_names.add(_class_of_resource(dump, resource))
                of_classes.add(resource)
        drivers = {find_device_class(name, dump.classes).driver for name in class_names}
        counts["dra_pods"] += NVIDIA_DRA_DRIVER in drivers
        counts["plugin_pods"] += bool(set(pod.gpu_requests) - of_classes)
    return dict(counts)


def _class_of_resource(dump: ClusterDump, resource: str) -> str:
    """Return the name of the DRA device class that an extended resource stands for; empty if it stands for none."""
    has_prefix = resource.startswith(DEVICE_CLASS_RESOURCE_PREFIX)
    return dump.class_by_resource.get(resource, resource.removeprefix(DEVICE_CLASS_RESOURCE_PREFIX) * has_prefix)


@dataclass
class _JobRowBuilder:
    """Builder of the job rows of a Kubernetes dump.

    - ``records``: Rows and rejects so far.
    - ``counted_claims``: ResourceClaims whose devices are counted already: several pods may share one claim.
    - ``job_names``: Pod → its job, if that has another name, both as namespace/name.
    - ``uncertain``: GPU requests that are not read or whose number of GPUs is uncertain.
    """

    dump: ClusterDump
    records: RecordCollector = field(default_factory=lambda: RecordCollector(FIELD_BY_JOB_ROW_KEY))
    counted_claims: set[tuple[str, str]] = field(default_factory=set)
    job_names: dict[str, str] = field(default_factory=dict)
    uncertain: UncertainRequests = field(default_factory=UncertainRequests)

    def build_rows(self) -> Rows:
        """Assign each pod and Job to a Workload, a gang of pods or the rejects, and make a row for each job."""
        dump = self.dump
        workload_by_uid = {uid: workload for workload in dump.workloads.values() for uid in workload.owner_uids}
        groups: dict[str, list[PodOrJob]] = defaultdict(list)
        pods_by_workload: dict[str, list[PodOrJob]] = defaultdict(list)
        uids_with_pods: set[str] = set()
        pods = sorted(dump.pods.values(), key=lambda pod: (pod.start or pod.submit, pod.namespace, pod.name))
        for pod_or_job in (*pods, *dump.jobs.values()):
            uids = [pod_or_job.uid, *(uid for _, _, uid in dump.find_controllers(pod_or_job))]
            workload = next((workload_by_uid[uid] for uid in uids if uid in workload_by_uid), None)
            is_pod = pod_or_job.uid in dump.pods
            if workload is not None and is_pod:
                pods_by_workload[workload.uid].append(pod_or_job)
            if workload is not None or (pod_or_job.uid in uids_with_pods and not is_pod):
                self._reject_requester(pod_or_job, COUNTED_WITH_JOB_REASON)
            elif not self._requests_gpus(pod_or_job):
                self._reject_requester(pod_or_job, NO_GPU_REQUEST_REASON)
            else:
                owner = self._find_job_controller(pod_or_job) if is_pod else None
                groups[owner[2] if owner else pod_or_job.uid].append(pod_or_job)
            uids_with_pods |= set(uids[1:]) if is_pod else set()

        for owner_pods in groups.values():
            for gang in group_gangs(owner_pods):
                self._add_gang(gang)
        for workload in dump.workloads.values():
            self._add_workload(workload, pods_by_workload[workload.uid])
        for location, reason in dump.rejects:
            self.records.reject(location.file, location.item, location.raw, reason)
        return self.records.rows(dump.files)

    def _add_gang(self, gang: Sequence[PodOrJob]) -> None:
        """Add the job row of a gang (pods that ran together), or of a Job without pods."""
        first_pod = gang[0]
        owner = self._find_job_controller(first_pod)
        allocation = self._allocate_pods(gang)
        starts = [pod.start for pod in gang if pod.start]
        ends = [pod.end for pod in gang if pod.end]
        job_fields = {
            "tenant": self._find_tenant(first_pod),
            "class": SERVICE_JOB_CLASS if self._is_service(first_pod) else None,
            "creation": _format_time(min(pod.submit for pod in gang)),
            "start": _format_time(_mean_time(starts, allocation.devices_per_pod) or min(starts, default=None)),
            "end": _format_time(_mean_time(ends, allocation.devices_per_pod) or max(ends, default=None)),
            "state": min((pod.state for pod in gang), key=GANG_STATE_PRECEDENCE.index),
            "pods": str(len(gang)),
        }
        self._add_row(first_pod, owner[1] if owner else first_pod.name, gang, allocation, job_fields)
        for pod in gang[1:]:
            self._reject_requester(pod, COUNTED_WITH_JOB_REASON)

    def _add_workload(self, workload: KueueWorkload, pods: Sequence[PodOrJob]) -> None:
        """Add the job row of a Workload of Kueue, with its pods."""
        if not workload.gpu_requests and not any(self._requests_gpus(pod) for pod in pods):
            self._reject_requester(workload, NO_GPU_REQUEST_REASON)
            return
        known_flavors = [flavor for flavor in workload.flavors if flavor in self._flavor_hardware]
        flavors = [self._flavor_hardware[flavor][0] for flavor in known_flavors]
        nodes = [self.dump.nodes[pod.node] for pod in pods if pod.node in self.dump.nodes]
        nodes = nodes or [node for flavor in known_flavors for node in self._flavor_hardware[flavor][1]]
        allocation = _GpuAllocation() if workload.gpu_requests else self._allocate_pods(pods)
        for name, number in workload.gpu_requests.items():
            kinds = flavors or [(node.model, node.profile) for node in nodes]
            self._add_resource_units(allocation, workload, name, number, kinds, nodes)
        job_states = [self.dump.jobs[uid].state for uid in workload.owner_uids if uid in self.dump.jobs]
        states = job_states or [pod.state for pod in pods]
        queue = workload.queue or self.dump.queues.get((workload.namespace, workload.local_queue or ""))
        start, end = _mean_pod_times(workload, pods) or (workload.start, workload.end)
        job_fields = {
            "tenant": queue or workload.namespace,
            "creation": _format_time(workload.submit),
            "start": _format_time(start),
            "end": _format_time(end),
            "state": workload.state or min(states, key=GANG_STATE_PRECEDENCE.index, default="UNKNOWN"),
            "evictions": str(workload.evictions),
        }
        self._add_row(workload, workload.owner[1] if workload.owner else workload.name, pods, allocation, job_fields)

    def _add_row(
        self,
        requester: GpuRequester,
        name: str,
        pods: Sequence[PodOrJob],
        allocation: _GpuAllocation,
        job_fields: Mapping[str, str | None],
    ) -> None:
        """Add the row of a job, and the names of its pods, by which telemetry may identify it.

        Parameters
        ----------
        requester : PodOrJob or KueueWorkload
            Object that has the priority class, deadline and location of the row.
        name : str
            Name of the job in its namespace.
        pods : sequence of PodOrJob
            Its pods, if any.
        allocation : _GpuAllocation
            Its GPUs.
        job_fields : mapping of str to str
            The other fields of the row.
        """
        job = f"{requester.namespace}/{name}"
        names = (f"{pod.namespace}/{pod.name}" for pod in pods if pod.kind == "Pod")
        self.job_names |= {name: job for name in names if name != job}
        nodes = sorted({pod.node for pod in pods if pod.node})
        common_fields = {
            "job": job,
            "priority class": requester.tier,
            "project": requester.project,
            "deadline": None if requester.limit_s is None else str(requester.limit_s),
            "reported by": requester.kind,
            "nodes": str(len(nodes)) if nodes else None,
            "node names": ",".join(nodes) or None,
        }
        record = {**common_fields, **job_fields, **allocation.to_columns()}
        location = requester.location
        self.records.add_record(location.file, location.item, location.raw, record)

    def _allocate_pods(self, pods: Sequence[PodOrJob]) -> _GpuAllocation:
        """Return the GPUs allocated to the pods of a gang, or to all pods of a Job that stands for them."""
        allocation = _GpuAllocation()
        for pod in pods:
            count_before = len(allocation.device_counts)
            self._add_pod_devices(allocation, pod)
            added = allocation.device_counts[count_before:]
            allocation.devices_per_pod.append(float(sum(number or 0 for number, _, _ in added)))
        return allocation

    def _add_pod_devices(self, allocation: _GpuAllocation, pod: PodOrJob) -> None:
        """Add the GPUs of a pod, or of all pods of a Job: by extended resources, then by DRA ResourceClaims."""
        node = self.dump.find_pod_node(pod)
        model = (node.model or self._model_by_dra_node.get(node.name)) if node else None
        kinds = [(model, node.profile)] if node else []
        nodes = [node] if node else self._candidate_nodes(pod)
        for name, number in self._gpu_requests(pod).items():
            self._add_resource_units(allocation, pod, name, number * pod.copies, kinds, nodes)

        for key, claim in self._count_claims(pod):
            fraction = self._claim_fractions.get(key)
            if key not in self.counted_claims or fraction is not None:
                for name in claim.unread:
                    _add_to_requests(self.uncertain.unread, pod, name, 1)
                if claim.gpus is None and not claim.unread:
                    _add_to_requests(self.uncertain.unresolved, pod, f"devices of {', '.join(claim.classes)}", 1)
                gpus = None if claim.gpus is None else claim.gpus * pod.copies * (1 if fraction is None else fraction)
                allocation.gpus_by_memory.append(gpus)
                allocation.device_counts.append((gpus, claim.profile, claim.model or model))
            if key[1]:
                self.counted_claims.add(key)

    def _add_resource_units(
        self,
        allocation: _GpuAllocation,
        requester: GpuRequester,
        name: str,
        units: Fraction,
        model_profiles: Sequence[tuple[str | None, str | None]],
        nodes: Sequence[Node],
    ) -> None:
        """Add the GPUs that units of an extended resource represent: full GPUs, MIG instances, or shares of GPUs.

        Parameters
        ----------
        allocation : _GpuAllocation
            Allocation that they are added to.
        requester : PodOrJob or KueueWorkload
            Object that requests them.
        name : str
            The resource, or one of the keys for fractions of GPUs.
        units : Fraction
            Requested units.
        model_profiles : sequence of (str or None, str or None)
            GPU models on which the units may be, each with its MIG profile under the strategy ``single``.
        nodes : sequence of Node
            Nodes on which they may be.
        """
        model, instance_profile = model_profiles[0] if len(set(model_profiles)) == 1 else (None, None)
        has_own_node = bool(nodes) and (isinstance(requester, KueueWorkload) or requester.node in self.dump.nodes)
        if name in NON_RESOURCE_REQUEST_KEYS or name in gpu_memory_resources():
            by_memory = name in (GPU_MEMORY_KEY, MEMORY_BESIDE_CORES_KEY) or name in gpu_memory_resources()
            gpu_size = self._gpu_memory_units(name, nodes) if by_memory else Fraction(1)
            share = None if gpu_size is None else units / gpu_size
            if name not in (MEMORY_FRACTION_KEY, MEMORY_BESIDE_CORES_KEY):
                allocation.device_counts.append((share, None, model))
            if name != GPU_FRACTION_KEY:
                allocation.gpus_by_memory.append(share)
            if share is not None and name in gpu_memory_resources() and requester.start:
                if not has_own_node:
                    _add_to_requests(self.uncertain.on_missing_nodes, requester, name, share)
                elif not self._do_nodes_state_memory(name, nodes):
                    _add_to_requests(self.uncertain.by_catalogue, requester, name, share)
            if share is None and name != MEMORY_BESIDE_CORES_KEY:
                request = f"{NAME_BY_REQUEST_KEY.get(name, name)} on {model or 'a GPU model that no node names'}"
                _add_to_requests(self.uncertain.unresolved, requester, request, 1)
            return

        resource = parse_gpu_resource(name)
        if resource is None:
            _add_to_requests(self.uncertain.unread, requester, name, units)
            if classify_unread_resource(name) != "accelerator":
                allocation.device_counts.append((None, None, model))
                allocation.unresolved += units
            return

        # Units that share one GPU: known only if all nodes on which the units may be agree; 0 if it is unknown.
        units_per_gpu = {node.replicas.get(resource.base_name, 1) for node in nodes} or {0 if resource.is_shared else 1}
        if resource.partition_mode is not None and not nodes:
            units_per_gpu = {partitions_in_mode([], resource.partition_mode)}
        replicas = units_per_gpu.pop() if len(units_per_gpu) == 1 else 0
        gpus = units / replicas if replicas > 1 or (replicas == 1 and not resource.is_shared) else None
        if gpus is None:
            node_units = sum(node.units.get(resource.base_name, 0) for node in nodes)
            node_gpus = sum(node.gpus or 0 for node in nodes)
            estimated_gpus = units * node_gpus / node_units if node_units and node_gpus else units
            allocation.unresolved += estimated_gpus
            checks = {doubt.check for node in nodes for doubt in node.doubts}
            if not has_own_node or checks.isdisjoint(("kubernetes: too many GPUs", "kubernetes: unknown replicas")):
                _add_to_requests(self.uncertain.unresolved, requester, name, estimated_gpus)
        elif not (has_own_node or resource.profile or resource.partition_mode) and self.dump.nodes and requester.start:
            _add_to_requests(self.uncertain.on_missing_nodes, requester, name, gpus)
        allocation.gpus_by_memory.append(gpus)
        allocation.device_counts.append((gpus, resource.profile or instance_profile, model))

    def _candidate_nodes(self, pod: PodOrJob) -> Sequence[Node]:
        """Return the nodes on which a pod whose node is not in the dump may have run.

        These are all nodes with its GPU resources if it had a node, or if all have as many units per GPU; else none.
        """
        names = {resource.base_name for name in pod.gpu_requests if (resource := parse_gpu_resource(name))}
        nodes = [node for node in self.dump.nodes.values() if not names.isdisjoint(node.units)]
        nodes_agree = all(len({node.replicas.get(name, 1) for node in nodes}) == 1 for name in names)
        return nodes if nodes_agree or pod.node else []

    def _gpu_memory_units(self, name: str, nodes: Sequence[Node]) -> Fraction | None:
        """Return the memory of one GPU of the nodes, or without nodes of all nodes, in units of a memory resource.

        None if the nodes differ, or their GPU memory is unknown.
        """
        gpu_nodes = [node for node in nodes or self.dump.nodes.values() if node.gpus != 0]
        is_in_mib = node_defined_memory_units().get(name, "MiB").endswith("MiB")
        sizes = [node.memory_units.get(name, node.memory_mib if is_in_mib else None) for node in gpu_nodes]
        size = sizes[0] if len(set(sizes)) == 1 else None
        return None if size is None else Fraction(size)

    def _do_nodes_state_memory(self, name: str, nodes: Sequence[Node]) -> bool:
        """Whether all nodes themselves, not just the catalogue, state their GPU memory, for a memory resource."""
        gpu_nodes = [node for node in nodes or self.dump.nodes.values() if node.gpus != 0]
        return all(node.is_memory_stated or name in node.memory_units for node in gpu_nodes)

    def _requests_gpus(self, pod: PodOrJob) -> bool:
        """Whether a pod or Job requests GPUs, by extended resources or by DRA ResourceClaims."""
        return bool(self._gpu_requests(pod)) or any(claim.gpus != 0 for _, claim in self._count_claims(pod))

    def _gpu_requests(self, pod_or_job: PodOrJob) -> dict[str, Fraction]:
        """Return the GPU requests of a pod or Job that no claim of its scheduler covers.

        Resources that name a DRA device class become GPU resources; those whose devices may be GPUs of unknown size
        stay under their own names.
        """
        requests = dict(pod_or_job.gpu_requests)
        covered = self._count_scheduler_claims(pod_or_job)
        for resource, number in {**pod_or_job.other_requests, **pod_or_job.gpu_requests}.items():
            name = _class_of_resource(self.dump, resource)
            device = find_device_class(name, self.dump.classes)
            key = f"nvidia.com/mig-{device.profile}" if device.profile else resource
            if device.kind == FULL_GPU_DEVICE_CLASS_KIND:
                key = "nvidia.com/gpu"
            if resource in covered:
                requests.pop(resource, None)
            elif name and device.kind != NO_GPU_DEVICE_CLASS_KIND and not (key == resource and key in requests):
                requests.pop(resource, None)
                requests[key] = requests.get(key, Fraction(0)) + number
        return requests

    def _count_scheduler_claims(self, pod_or_job: PodOrJob) -> dict[str, tuple[tuple[str, str], ClaimedGpus]]:
        """Return extended resource → the claim that the scheduler made for it, where its number of GPUs is known.

        The claim is gone once its pod has ended; the resource itself counts then.
        """
        dump, counted = self.dump, {}
        for resource, name in pod_or_job.claim_by_resource.items():
            claim = dump.claims.get(key := (pod_or_job.namespace, name))
            claimed = claim and count_claimed_gpus(claim, dump.devices, dump.classes)
            if claimed and claimed.gpus is not None:
                counted[resource] = (key, claimed)
        return counted

    def _find_tenant(self, pod_or_job: PodOrJob) -> str:
        """Return the tenant of a pod or Job: its queue of KAI or Volcano, else of Kueue, else its namespace."""
        jobs = self.dump.jobs
        owner_jobs = [jobs[uid] for _, _, uid in self.dump.find_controllers(pod_or_job) if uid in jobs]
        queued = next((owner for owner in (pod_or_job, *owner_jobs) if owner.local_queue), None)
        if queued is None or pod_or_job.tenant != pod_or_job.namespace:
            return pod_or_job.tenant
        namespace, local_queue = queued.namespace, queued.local_queue or ""
        cluster_queue = self.dump.queues.get((namespace, local_queue))
        return cluster_queue or self._unique_local_queues.get(local_queue, f"{namespace}/{local_queue}")

    @functools.cached_property
    def _flavor_hardware(self) -> dict[str, tuple[tuple[str | None, str | None], list[Node]]]:
        """ResourceFlavor → its GPU model and MIG profile, and its nodes."""
        dump = self.dump
        return {flavor: (dump.flavor_gpu_model(flavor), dump.flavor_nodes(flavor)) for flavor in dump.flavors}

    @functools.cached_property
    def _unique_local_queues(self) -> dict[str, str]:
        """Name → name of each LocalQueue that only one namespace has: as a tenant it needs no namespace in its name."""
        pods_and_jobs = (*self.dump.pods.values(), *self.dump.jobs.values())
        names = {(pod.namespace, pod.local_queue) for pod in pods_and_jobs if pod.local_queue}
        counts = Counter(queue for _, queue in names)
        return {str(queue): str(queue) for queue, number in counts.items() if number == 1}

    def _count_claims(self, pod_or_job: PodOrJob) -> list[tuple[tuple[str, str], ClaimedGpus]]:
        """Return each ResourceClaim of a pod, as namespace and name ("" if made from a template), with its GPUs."""
        dump = self.dump
        counted = list(dict(self._count_scheduler_claims(pod_or_job).values()).items())
        claims = dump.find_claims(pod_or_job)
        return counted + [(key, count_claimed_gpus(claim, dump.devices, dump.classes)) for key, claim in claims]

    @functools.cached_property
    def _model_by_dra_node(self) -> dict[str, str | None]:
        """Node → GPU model of its DRA devices, for nodes whose devices are all of one model."""
        devices = self.dump.devices.values()
        kinds = {(device.node, device.model) for device in devices if device.node}
        counts = Counter(node for node, _ in kinds)
        return {str(node): model for node, model in kinds if counts[node] == 1}

    @functools.cached_property
    def _claim_fractions(self) -> dict[tuple[str, str], Fraction]:
        """ResourceClaim that several pods use → fraction [0-1] of its GPUs that counts for each of these pods.

        The GPU-hours of the pods then sum to those of the claim.
        """
        spans_by_claim: dict[tuple[str, str], list[tuple[datetime, datetime]]] = defaultdict(list)
        heartbeats = (node.last_heartbeat for node in self.dump.nodes.values())
        last_heartbeat = max(filter(None, heartbeats), default=None)
        for pod in self.dump.pods.values():
            end = pod.end or last_heartbeat
            if pod.start is not None and end is not None:
                for name, _ in pod.claims:
                    if name is not None:
                        spans_by_claim[pod.namespace, name].append((pod.start, max(end, pod.start)))
        return {claim: _union_fraction(spans) for claim, spans in spans_by_claim.items() if len(spans) > 1}

    def _is_service(self, pod: PodOrJob) -> bool:
        """Whether a pod is of a service: its direct controller, such as a ReplicaSet, replaces it whenever it ends."""
        owners = self.dump.find_controllers(pod)
        return pod.kind == "Pod" and bool(owners) and owners[0][0] in SERVICE_OWNER_KINDS

    def _find_job_controller(self, pod: PodOrJob) -> Owner | None:
        """Return the controller that makes a pod part of a job: the topmost one, except a CronJob.

        None for pods of services, for pods without a controller, and for Jobs.
        """
        owners = self.dump.find_controllers(pod)
        if pod.kind != "Pod" or not owners or self._is_service(pod):
            return None
        return next((owner for owner in reversed(owners) if owner[0] != "CronJob"), None)

    def _reject_requester(self, requester: GpuRequester, reason: str) -> None:
        """Add a pod, Job or Workload to the rejects, with a reason."""
        self.records.reject(requester.location.file, requester.location.item, requester.location.raw, reason)


def _add_to_requests(
    counts: dict[str, ResourceRequests], requester: GpuRequester, name: str, devices: Fraction | int
) -> None:
    """Add the pods and device-hours of a pod, Job or Workload to the counts of a resource that it requests.

    Parameters
    ----------
    counts : dict of str to ResourceRequests
        Counts by resource or device class; updated in place.
    requester : PodOrJob or KueueWorkload
        Object that requests it.
    name : str
        Resource or device class.
    devices : Fraction or int
        Number of devices that it requests.
    """
    requests = counts.setdefault(name, ResourceRequests(example=f"{requester.namespace}/{requester.name}"))
    requests.pods += requester.copies if isinstance(requester, PodOrJob) else 1
    requests.device_hours += float(devices) * requester.hours


def _mean_pod_times(
    workload: KueueWorkload, pods: Sequence[PodOrJob]
) -> tuple[datetime | None, datetime | None] | None:
    """Return mean start and end of the pods of a Workload, weighted by their GPUs; pods start after its admission.

    None if not all of its pods are in the dump, or some have no time.
    """
    requested: dict[str, Fraction] = defaultdict(Fraction)
    for pod in pods:
        for name, number in pod.gpu_requests.items():
            requested[name] += number
    starts = [pod.start for pod in pods if pod.start]
    ends = [pod.end for pod in pods if pod.end]
    if not workload.gpu_requests or requested != workload.gpu_requests:
        return None
    if len(starts) < len(pods) or len(ends) not in (0, len(pods)):
        return None
    gpus = [float(sum(pod.gpu_requests.values())) for pod in pods]
    return _mean_time(starts, gpus), _mean_time(ends, gpus)


def _union_fraction(spans: Sequence[tuple[datetime, datetime]]) -> Fraction:
    """Return the length of the union of time spans divided by the sum of their lengths, a fraction [0-1]."""
    union = timedelta(0)
    union_end = min(start for start, _ in spans)
    for start, end in sorted(spans):
        union += max(end - max(start, union_end), timedelta(0))
        union_end = max(union_end, end)
    total = sum((end - start for start, end in spans), timedelta(0))
    microsecond = timedelta(microseconds=1)
    return Fraction(union // microsecond, total // microsecond) if total else Fraction(1, len(spans))


def _mean_time(instants: Sequence[datetime], devices: Sequence[float]) -> datetime | None:
    """Return the mean start, or mean end, of the pods of a gang, weighted by their numbers of devices.

    A gang with these mean times has the GPU-hours of its pods. None if a pod has no time, or none has devices.
    """
    if not instants or len(instants) != len(devices) or not sum(devices):
        return None
    first = min(instants)
    offsets_s = [(instant - first).total_seconds() for instant in instants]
    mean_s = sum(offset_s * number for offset_s, number in zip(offsets_s, devices, strict=True)) / sum(devices)
    return first + timedelta(seconds=mean_s)


def _format_time(instant: datetime | None) -> str | None:
    """Format a time as ISO text; None stays None."""
    return None if instant is None else instant.isoformat()
