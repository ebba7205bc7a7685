"""Kueue (``kueue.x-k8s.io`` v1beta1 and v1beta2): jobs with their waits and their queues, and the quotas of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import Any

import polars as pl

from gpuplanner.inbox.core.lines.rows import refuse
from gpuplanner.inbox.kubernetes.gpu_requests import asks_for_parts, pod_gpus, share_words
from gpuplanner.inbox.kubernetes.objects import (
    Object,
    asked_of,
    condition,
    count,
    gpu_resource,
    name_of,
    part,
    parts,
    quantity,
    text,
    unread_kind,
)
from gpuplanner.inbox.kubernetes.pods import PodPlace, Thing, identity
from gpuplanner.schemas.readings import QueueQuotas
from gpuplanner.schemas.check import conform

FINISHED = {"Succeeded": "COMPLETED", "Failed": "FAILED"}
"""Reason of the condition Finished → state; older versions give another reason for both."""

EVICTED_NOW = "PREEMPTED"
"""State of a workload whose admission ended by an eviction after which it may come back."""

EVICTED = {"Deactivated": "CANCELLED", "MaximumExecutionTimeExceeded": "TIMEOUT"}
"""End of a reason of the condition Evicted → state, where the workload does not come back."""


@dataclass(frozen=True)
class KueueWorkload(Thing):
    """What a Workload tells.

    - ``owners``: Uids of the objects that it stands for: one job, or the pods of a group.
    - ``queue``: ClusterQueue that admitted it; ``local_queue`` is the LocalQueue that it was submitted to.
    - ``state``: Ours; None if it finished and its job must tell how.
    - ``flavors``: ResourceFlavors of its GPUs.
    - ``evictions``: How often it was sent back to the queue.
    """

    owners: tuple[str, ...]
    queue: str | None
    state: str | None
    flavors: frozenset[str]
    evictions: int


def read_workload(workload: Object, place: PodPlace) -> KueueWorkload:
    """Read an object of kind Workload.

    References
    ----------
    kubernetes-sigs/kueue, apis/kueue/v1beta1/workload_types.go.
    """
    about, spec, status = (part(workload, name) for name in ("metadata", "spec", "status"))
    known = identity(workload, place) | {"local_queue": text(spec.get("queueName"))}
    owners = tuple(uid for each in parts(about, "ownerReferences") if (uid := text(each.get("uid"))))
    asks, flavors = _asks(spec, status)
    start, end, state = _history(spec, status)
    again = [
        count(each.get("count"), "evictions.count")
        for each in parts(part(status, "schedulingStats"), "evictions")
    ]
    return KueueWorkload(
        **known,
        owners=(known["owner"][2],) if known["owner"] else owners,
        queue=text(part(status, "admission").get("clusterQueue")),
        start=start,
        end=end,
        state=state,
        asks=asks,
        flavors=flavors,
        evictions=max(sum(again) - (state == EVICTED_NOW), 0),
        tier=text(spec.get("priorityClassName")) or text(part(spec, "priorityClassRef").get("name")),
        limit_s=spec.get("maximumExecutionTimeSeconds"),
    )


def _history(spec: Object, status: Object) -> tuple[datetime | None, datetime | None, str | None]:
    """Admission, end and state. An evicted workload that comes back waits again: its admission is gone.

    One that is both admitted and evicted later was taken off its GPUs at that time, and its admission is still there:
    its pods are on their way out, or nothing takes it back to the queue.
    """
    admitted, _, since = condition(status, "Admitted")
    finished, reason, ended = condition(status, "Finished")
    evicted, why, left = condition(status, "Evicted")
    if finished:
        return since if admitted else None, ended, FINISHED.get(reason)
    over = next((state for word, state in EVICTED.items() if why.endswith(word)), None)
    if admitted and evicted and since and left and left >= since:
        return since, left, over or EVICTED_NOW
    if admitted:
        return since, None, "RUNNING"
    inactive = not spec.get("active", True)
    if inactive or (evicted and over):
        return None, left, over or "CANCELLED"
    return None, None, "PENDING"


def _asks(spec: Object, status: Object) -> tuple[dict[str, Fraction], frozenset[str]]:
    """GPUs of all pods: as admitted, else as asked for; and the flavors that they were given.

    Shares of boards are those that were asked for: what Kueue adds up is the part of each board, over the pods.
    """
    total: dict[str, Fraction] = {}
    flavors: set[str] = set()
    given = {text(each.get("name")): each for each in parts(part(status, "admission"), "podSetAssignments")}
    for pod_set in parts(spec, "podSets"):
        assignment = given.get(text(pod_set.get("name")) or "main", {})
        usage, gpus = part(assignment, "resourceUsage"), pod_gpus(*asked_of(part(pod_set, "template")))
        if usage and not asks_for_parts(gpus):
            gpus = {
                name: Fraction(quantity(value, name))
                for name, value in usage.items()
                if gpu_resource(name) or unread_kind(name)
            }
        else:
            pods = count(assignment.get("count", pod_set.get("count", 1)), "podSets.count")
            gpus = {name: pods * each for name, each in gpus.items()}
        for name, number in gpus.items():
            if number:
                total[name] = total.get(name, Fraction(0)) + number
        chosen = part(assignment, "flavors")
        words = [(system.number, *system.parts()) for system in share_words()]
        shared = [name for system in words for name in system if name]
        named = [*gpus, *(shared if asks_for_parts(gpus) else [])]
        flavors |= {flavor for name in named if (flavor := text(chosen.get(name)))}
    return total, frozenset(flavors)


def quota_rows(queue: Object) -> list[dict[str, Any]]:
    """Quotas for GPUs of an object of kind ClusterQueue.

    References
    ----------
    kubernetes-sigs/kueue, apis/kueue/v1beta1/clusterqueue_types.go; v1beta2 calls `cohort` `cohortName`.

    Examples
    --------
    >>> resource = {"name": "nvidia.com/gpu", "nominalQuota": 8, "borrowingLimit": "4"}
    >>> group = {"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "h100", "resources": [resource]}]}
    >>> row = quota_rows({"metadata": {"name": "ads"}, "spec": {"cohort": "web", "resourceGroups": [group]}})[0]
    >>> row["tenant"], row["cohort"], row["nominal"], row["borrow"], row["lend"]
    ('ads', 'web', 8.0, 4.0, None)
    """
    spec, name = part(queue, "spec"), name_of(queue)
    weight = part(spec, "fairSharing").get("weight")
    rows = []
    for group in parts(spec, "resourceGroups"):
        for flavor in parts(group, "flavors"):
            for resource in parts(flavor, "resources"):
                kind = gpu_resource(text(resource.get("name")) or "")
                if kind is not None:
                    rows.append(
                        {
                            "tenant": name,
                            "cohort": text(spec.get("cohortName")) or text(spec.get("cohort")),
                            "flavor": text(flavor.get("name")),
                            "resource": resource["name"],
                            "profile": kind.profile,
                            "nominal": _amount(resource, "nominalQuota"),
                            "borrow": _amount(resource, "borrowingLimit"),
                            "lend": _amount(resource, "lendingLimit"),
                            "weight": None if weight is None else float(quantity(weight)),
                        }
                    )
    return rows


def _amount(resource: Object, name: str) -> float | None:
    value = resource.get(name)
    if value is None and name != "nominalQuota":
        return None
    amount = float(quantity(value))
    if not 0 <= amount < 1e9:
        refuse(f"{name}: {str(value)[:40]!r} is no amount")
    return amount


def quota_table(
    quotas: Mapping[str, list[dict[str, Any]]],
    boards: Mapping[str, tuple[str | None, str | None]],
    queues: Mapping[tuple[str, str], str],
) -> pl.DataFrame | None:
    """Make the table of quotas, with the boards of the flavors and the namespaces whose local queues lead there."""
    full = [
        {
            **row,
            "gpu_model": boards.get(row["flavor"] or "", (None, None))[0],
            "namespaces": ",".join(sorted({space for (space, _), to in queues.items() if to == tenant}))
            or None,
        }
        for tenant, rows in quotas.items()
        for row in rows
    ]
    if not full:
        return None
    table = conform(pl.DataFrame(full, infer_schema_length=None), QueueQuotas, where="quotas")
    return table.sort("tenant", "flavor", "resource", maintain_order=True)
