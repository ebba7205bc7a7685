"""Quotas of the queues of a cluster, as Kueue's ClusterQueues state them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from gpuplanner.inbox.kubernetes.objects import Object, gpu_resource, part, parts, quantity, text
from gpuplanner.schemas import QueueQuotas, conform


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
    spec, name = part(queue, "spec"), text(part(queue, "metadata").get("name"))
    if name is None:
        reason = "metadata.name: missing"
        raise ValueError(reason)
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
                        }
                    )
    return rows


def _amount(resource: Object, name: str) -> float | None:
    value = resource.get(name)
    if value is None and name != "nominalQuota":
        return None
    amount = float(quantity(value))
    if not 0 <= amount < 1e9:
        reason = f"{name}: {str(value)[:40]!r} is no amount"
        raise ValueError(reason)
    return amount


def quota_table(
    rows: Iterable[Mapping[str, Any]], models: Mapping[str, str], namespaces: Mapping[str, Iterable[str]]
) -> pl.DataFrame | None:
    """Make the table of quotas."""
    full = [
        {
            **row,
            "gpu_model": models.get(row["flavor"] or ""),
            "namespaces": ",".join(sorted(set(namespaces.get(row["tenant"], ())))) or None,
        }
        for row in rows
    ]
    if not full:
        return None
    table = conform(pl.DataFrame(full, infer_schema_length=None), QueueQuotas, where="quotas")
    return table.sort("tenant", "flavor", "resource", maintain_order=True)
