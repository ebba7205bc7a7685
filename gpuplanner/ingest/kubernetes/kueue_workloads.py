"""Workloads of Kueue: the jobs, queue waits and requests that they state."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from gpuplanner.ingest.kubernetes.api_objects import (
    ApiObject,
    classify_unread_resource,
    get_object,
    get_objects,
    parse_count,
    parse_gpu_resource,
    parse_quantity,
    read_condition,
    spec_and_annotations,
    to_text,
)
from gpuplanner.ingest.kubernetes.gpu_requests import pod_gpu_requests, requests_gpu_fractions, sharing_resources
from gpuplanner.ingest.kubernetes.pods_and_jobs import ObjectLocation, WorkloadObject, read_metadata_fields

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
