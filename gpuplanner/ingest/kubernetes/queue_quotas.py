"""Queues of pods, and the quotas of the queues of Kueue, Volcano and KAI."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import polars as pl

from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import QueueQuotas
from gpuplanner.ingest.delimited_rows import raise_fault
from gpuplanner.ingest.kubernetes.api_objects import (
    ApiObject,
    get_object,
    get_objects,
    object_name,
    parse_gpu_resource,
    parse_quantity,
    to_text,
)

QUEUE_LABEL_KEYS = ("kai.scheduler/queue", "runai/queue", "volcano.sh/queue-name")
"""Pod labels that name the queue of KAI, Run:ai or Volcano."""

QUEUE_ANNOTATION_KEY = "scheduling.volcano.sh/queue-name"
"""Pod annotation that names the queue of Volcano."""

KUEUE_QUEUE_LABEL_KEY = "kueue.x-k8s.io/queue-name"
"""Label of a Job or pod that names its LocalQueue (Kueue, Labels and Annotations)."""

UNLIMITED_QUOTA = -1.0
"""Number by which KAI marks a queue quota without limit."""


def queue_name(metadata: ApiObject) -> str | None:
    """Return the queue of KAI, Run:ai or Volcano that the metadata of a pod name; None if none.

    Examples
    --------
    >>> queue_name({"labels": {"kai.scheduler/queue": "vision"}})
    'vision'
    """
    labels = get_object(metadata, "labels")
    values = [
        *(labels.get(key) for key in QUEUE_LABEL_KEYS),
        get_object(metadata, "annotations").get(QUEUE_ANNOTATION_KEY),
    ]
    return next((queue for value in values if (queue := to_text(value))), None)


def parent_queue(queue: ApiObject) -> str | None:
    """Return the name of the parent of a Queue (KAI, Volcano), whose quota its children share; None if it has none."""
    spec = get_object(queue, "spec")
    return to_text(spec.get("parentQueue")) or to_text(spec.get("parent"))


def read_queue_quotas(queue: ApiObject) -> list[dict[str, Any]]:
    """Read the GPU quotas of a Queue of KAI or Volcano.

    Parameters
    ----------
    queue : mapping
        Object of kind Queue.

    Returns
    -------
    list of dict
        Rows of the table of quotas. [GPUs]

    References
    ----------
    NVIDIA/KAI-Scheduler, docs/queues (quota, limit and overQuotaWeight; -1 is without limit); volcano-sh/apis,
    pkg/apis/scheduling/v1beta1/types.go (deserved, guarantee, capability, weight).

    Examples
    --------
    >>> spec = {"parentQueue": "research", "resources": {"gpu": {"quota": 8, "limit": -1, "overQuotaWeight": 2}}}
    >>> row = read_queue_quotas({"metadata": {"name": "vision"}, "spec": spec})[0]
    >>> row["cohort"], row["nominal"], row["borrow"], row["weight"]
    ('research', 8.0, None, 2.0)
    """
    spec = get_object(queue, "spec")
    gpu = get_object(get_object(spec, "resources"), "gpu")
    queue_fields: dict[str, Any] = {"tenant": object_name(queue), "cohort": parent_queue(queue), "flavor": None}
    if gpu:
        queue_fields |= {"resource": "gpu", "profile": None, "weight": _read_queue_amount(gpu, "overQuotaWeight")}
        return [queue_fields | _quota_amounts(_read_queue_amount(gpu, "quota"), _read_queue_amount(gpu, "limit"))]
    deserved, capability, guarantee = (get_object(spec, name) for name in ("deserved", "capability", "guarantee"))
    guaranteed = get_object(guarantee, "resource")
    queue_fields |= {"weight": _read_queue_amount(spec, "weight")}
    rows = []
    for name in dict.fromkeys([*deserved, *guaranteed, *capability]):
        kind = parse_gpu_resource(name)
        if kind is not None:
            nominal = _read_queue_amount(deserved, name) or _read_queue_amount(guaranteed, name)
            lend = None
            if nominal is not None and name in guaranteed:
                lend = nominal - (_read_queue_amount(guaranteed, name) or 0.0)
            amounts = _quota_amounts(nominal, _read_queue_amount(capability, name), lend)
            rows.append(queue_fields | {"resource": name, "profile": kind.profile} | amounts)
    return rows


def _quota_amounts(nominal: float | None, limit: float | None, lend: float | None = None) -> dict[str, float | None]:
    """Return ``nominal``, ``borrow`` and ``lend`` of a queue from its quota and hard limit, all in GPUs."""
    borrow = None if limit is None else max(0.0, limit - (nominal or 0.0))
    return {"nominal": nominal, "borrow": borrow, "lend": lend}


def _read_queue_amount(api_object: ApiObject, name: str) -> float | None:
    """Read a quota, limit [GPUs] or weight from a field of a Queue; None if it is missing or unlimited."""
    value = api_object.get(name)
    amount = UNLIMITED_QUOTA if value is None or value == UNLIMITED_QUOTA else float(parse_quantity(value, name))
    return None if amount < 0 else amount


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
