"""Who is admitted: quotas with borrowing inside a cohort, applied before anything is planned.

Batch systems such as Kueue and Slurm decide by quota which work may ask for GPUs at all; only then does
placement begin. A plan that traded one tenant's quota for a cheaper layout would be one that they refuse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gpuplanner.planner.contract.limits import Quota

Floats = NDArray[np.float64]


def admitted_demand(
    demand: Floats,
    shares: Floats,
    tenants: Sequence[str],
    ranks: Sequence[int],
    quotas: Mapping[str, Quota],
) -> Floats:
    """Demand within quotas.

    In each slot a tenant has its own quota first. What members of its cohort leave of theirs is lent to those
    that ask for more, higher tiers first, and within a tier in proportion to what they lack. What is refused
    is taken from all profiles of the tenant in proportion.

    Examples
    --------
    Three tenants with two GPUs each, one without work; two ask for four GPUs more than they have:

    >>> quotas = {name: Quota(2.0, cohort="lab") for name in "abc"}
    >>> demand = np.array([[[5.0]], [[3.0]], [[0.0]]])
    >>> admitted_demand(demand, np.ones(1), "abc", [0, 0, 0], quotas).ravel().tolist()
    [3.5, 2.5, 0.0]
    >>> admitted_demand(demand, np.ones(1), "abc", [1, 0, 0], quotas).ravel().tolist()
    [3.0, 3.0, 0.0]
    """
    wanted = np.einsum("ips,p->is", demand, shares)
    granted = wanted.copy()
    cohorts: dict[str, list[int]] = {}
    for place, tenant in enumerate(tenants):
        quota = quotas.get(tenant)
        if quota is not None:
            granted[place] = np.minimum(wanted[place], quota.gpus)
            if quota.cohort is not None:
                cohorts.setdefault(quota.cohort, []).append(place)
    for members in cohorts.values():
        left = sum((quotas[tenants[i]].gpus - granted[i] for i in members), np.zeros(wanted.shape[1]))
        for rank in sorted({ranks[i] for i in members}):
            asking = [i for i in members if ranks[i] == rank]
            lacking = np.array([_may_borrow(wanted[i] - granted[i], quotas[tenants[i]]) for i in asking])
            total = lacking.sum(axis=0)
            lent = np.minimum(left, total)
            granted[asking] += lacking * np.divide(lent, total, out=np.zeros_like(total), where=total > 0)
            left = left - lent
    part = np.divide(granted, wanted, out=np.ones_like(wanted), where=wanted > 0)
    admitted: Floats = demand * np.minimum(part, 1.0)[:, None, :]
    return admitted


def _may_borrow(lacking: Floats, quota: Quota) -> Floats:
    return lacking if quota.borrow is None else np.minimum(lacking, quota.borrow)
