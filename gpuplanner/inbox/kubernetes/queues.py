"""Queues of KAI, Volcano and Kueue: whose a pod is, and the quotas of KAI and Volcano."""

from __future__ import annotations

from typing import Any

from gpuplanner.inbox.kubernetes.objects import Object, gpu_resource, name_of, part, quantity, text

LABELS = ("kai.scheduler/queue", "runai/queue", "volcano.sh/queue-name")
ANNOTATION = "scheduling.volcano.sh/queue-name"
KUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Label of a job or pod of Kueue: its LocalQueue (Kueue, Labels and Annotations)."""
UNLIMITED = -1.0


def queue_of(about: Object) -> str | None:
    """Queue that the metadata of a pod name; None if none.

    Examples
    --------
    >>> queue_of({"labels": {"kai.scheduler/queue": "vision"}})
    'vision'
    """
    labels = part(about, "labels")
    named = [*(labels.get(key) for key in LABELS), part(about, "annotations").get(ANNOTATION)]
    return next((word for value in named if (word := text(value))), None)


def local_queue_of(about: Object) -> str | None:
    """LocalQueue of Kueue that the metadata of a job or pod name; None if none."""
    return text(part(about, "labels").get(KUEUE_LABEL))


def parent_of(queue: Object) -> str | None:
    """Queue above one; what it has is shared by those below."""
    spec = part(queue, "spec")
    return text(spec.get("parentQueue")) or text(spec.get("parent"))


def queue_rows(queue: Object) -> list[dict[str, Any]]:
    """Quotas for GPUs of an object of kind Queue, for the table of quotas.

    References
    ----------
    NVIDIA/KAI-Scheduler, docs/queues (quota, limit and overQuotaWeight; -1 is without limit); volcano-sh/apis,
    pkg/apis/scheduling/v1beta1/types.go (deserved, guarantee, capability, weight).

    Examples
    --------
    >>> spec = {"parentQueue": "research", "resources": {"gpu": {"quota": 8, "limit": -1, "overQuotaWeight": 2}}}
    >>> row = queue_rows({"metadata": {"name": "vision"}, "spec": spec})[0]
    >>> row["cohort"], row["nominal"], row["borrow"], row["weight"]
    ('research', 8.0, None, 2.0)
    """
    spec = part(queue, "spec")
    gpu = part(part(spec, "resources"), "gpu")
    known: dict[str, Any] = {"tenant": name_of(queue), "cohort": parent_of(queue), "flavor": None}
    if gpu:
        known |= {"resource": "gpu", "profile": None, "weight": _limit(gpu, "overQuotaWeight")}
        return [known | _amounts(_limit(gpu, "quota"), _limit(gpu, "limit"))]
    deserved, most_of, least = (part(spec, name) for name in ("deserved", "capability", "guarantee"))
    kept, known = part(least, "resource"), known | {"weight": _limit(spec, "weight")}
    rows = []
    for name in dict.fromkeys([*deserved, *kept, *most_of]):
        kind = gpu_resource(name)
        if kind is not None:
            own = _limit(deserved, name) or _limit(kept, name)
            lend = None if own is None or name not in kept else own - (_limit(kept, name) or 0.0)
            amounts = _amounts(own, _limit(most_of, name), lend)
            rows.append(known | {"resource": name, "profile": kind.profile} | amounts)
    return rows


def _amounts(nominal: float | None, most: float | None, lend: float | None = None) -> dict[str, float | None]:
    borrow = None if most is None else max(0.0, most - (nominal or 0.0))
    return {"nominal": nominal, "borrow": borrow, "lend": lend}


def _limit(owner: Object, name: str) -> float | None:
    """An amount; None where there is none, or no limit."""
    value = owner.get(name)
    amount = UNLIMITED if value is None or value == UNLIMITED else float(quantity(value, name))
    return None if amount < 0 else amount
