"""Limits that a fleet sets beside its size: what stays, what may change how often, who gets how much.

Batch systems such as Kueue and Slurm decide by quota which work may ask for GPUs at all; only then does placement
begin. A plan that traded one tenant's quota for a cheaper layout would be one that they refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpuplanner.errors import examples
from gpuplanner.planner.contract.plain_values import is_amount, is_count

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Quota:
    """GPUs that a tenant may hold at once, and with whom it shares what it leaves.

    Parameters
    ----------
    gpus : float
        Nominal quota [GPUs]; an instance counts with its share of a GPU.
    cohort : str, optional
        Tenants of one cohort lend each other what they do not use.
    borrow : float, optional
        Most that may be borrowed on top [GPUs]; all that the cohort leaves if None.
    lend : float, optional
        Most that others may borrow of what it leaves [GPUs]; all of it if None.
    """

    gpus: float
    cohort: str | None = None
    borrow: float | None = None
    lend: float | None = None


@dataclass(frozen=True)
class Limits:
    """Limits of a pool; the defaults limit nothing.

    Parameters
    ----------
    pinned : mapping of str to int
        GPUs that must have a layout in every slot, by layout text: placements that must stay.
    whole_nodes_kept : int
        Nodes, the first ones, on which no GPU is ever cut: NVLink islands for large jobs. Whole racks are
        kept by a multiple of `nodes_per_rack`.
    nodes_per_rack : int
        Nodes in a rack; racks are filled in the order of nodes.
    gpus_on_per_rack : int, optional
        Most GPUs that may be on in a rack at once, from its power limit and the power of a GPU. Where GPUs are
        parked, those that keep a layout count as well, so that each can be woken where it is.
    switches_per_day : int, optional
        Most cuts of one GPU within 24 hours, counted from the first slot.
    change_slots : tuple of int, optional
        Slots at whose beginning counts may change; in all others they are those of the slot before. Windows for
        maintenance, for example.
    node_changes_per_day : int, optional
        Most times that GPUs of one node are cut anew within 24 hours, counted from the first slot.
    most_changes : int, optional
        Most of these times in the whole plan, over all nodes. What is cut before the first slot does not count.
    quotas : mapping of str to Quota
        By tenant. What a tenant asks beyond its quota and what it can borrow is refused before planning, and
        has no price. Tenants without one are not limited.

    Examples
    --------
    >>> limits = Limits(switches_per_day=2, quotas={"ads": Quota(8, cohort="web")})
    >>> limits.of_changes
    True
    """

    pinned: Mapping[str, int] = field(default_factory=dict)
    whole_nodes_kept: int = 0
    nodes_per_rack: int = 1
    gpus_on_per_rack: int | None = None
    switches_per_day: int | None = None
    change_slots: tuple[int, ...] | None = None
    node_changes_per_day: int | None = None
    most_changes: int | None = None
    quotas: Mapping[str, Quota] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Take slots as a tuple."""
        if isinstance(self.change_slots, list):
            object.__setattr__(self, "change_slots", tuple(self.change_slots))

    @property
    def of_changes(self) -> bool:
        """Whether changes are limited in a way that counts of GPUs alone do not show."""
        return (self.switches_per_day, self.change_slots, self.node_changes_per_day, self.most_changes) != (
            None,
        ) * 4


def limit_faults(limits: Limits, tenants: tuple[str, ...]) -> Iterator[str]:
    """Yield, in words, each limit that makes no sense by itself."""
    optional = ("gpus_on_per_rack", "switches_per_day", "node_changes_per_day", "most_changes")
    counts = {"whole_nodes_kept": 0, "nodes_per_rack": 1} | dict.fromkeys(optional, 0)
    for name, low in counts.items():
        value = getattr(limits, name)
        if not (is_count(value, low) or (value is None and name in optional)):
            yield f"{name} must be a whole number of at least {low}, not {value!r}"
    slots = limits.change_slots
    sound = slots is None or (isinstance(slots, tuple) and all(map(is_count, slots)))
    if not sound or len(set(slots or ())) < len(slots or ()):
        yield f"change_slots must be numbers of slots, each once, not {slots!r}"
    bad = [gpus for gpus in limits.pinned.values() if not is_count(gpus)]
    if bad or "off" in limits.pinned:
        yield f"pinned must count GPUs that are on, not {dict(limits.pinned)}"
    strangers = sorted(set(limits.quotas) - set(tenants))
    if strangers:
        yield f"quotas must be of tenants; unknown: {examples(strangers)}"
    for tenant, quota in limits.quotas.items():
        amounts = [quota.gpus, *(one for one in (quota.borrow, quota.lend) if one is not None)]
        if not all(is_amount(amount) for amount in amounts):
            yield f"the quota of {tenant} must be numbers of at least 0, not {quota}"
        elif (quota.borrow, quota.lend) != (None, None) and quota.cohort is None:
            yield f"the quota of {tenant} borrows or lends, but names no cohort to do so in"


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
        own = {i: quotas[tenants[i]] for i in members}
        left = np.zeros(wanted.shape[1])
        for i in members:
            left = left + _capped(own[i].gpus - granted[i], own[i].lend)
        for rank in sorted({ranks[i] for i in members}):
            asking = [i for i in members if ranks[i] == rank]
            lacking = np.array([_capped(wanted[i] - granted[i], own[i].borrow) for i in asking])
            total = lacking.sum(axis=0)
            lent = np.minimum(left, total)
            granted[asking] += lacking * np.divide(lent, total, out=np.zeros_like(total), where=total > 0)
            left = left - lent
    part = np.divide(granted, wanted, out=np.ones_like(wanted), where=wanted > 0)
    admitted: Floats = demand * np.minimum(part, 1.0)[:, None, :]
    return admitted


def _capped(gpus: Floats, most: float | None) -> Floats:
    return gpus if most is None else np.minimum(gpus, most)
