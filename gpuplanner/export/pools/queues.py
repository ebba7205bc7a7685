"""Quotas of tenants in the words of queue managers on Kubernetes, for the instances that are decided."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuplanner.export.fleet_rules import PoolRule, TenantQuota
from gpuplanner.export.kubernetes import (allocatable)
from gpuplanner.export.bundle_files import Making, Pack, Step, filled, lines_of

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_ALONE = "gpuplanner"
"""Parent of the queues of KAI whose tenants are in no cohort: it wants two levels."""


def add_queues(making: Making, pack: Pack) -> None:
    """Add the quotas that there are, for each of the queue managers, and the script that puts them in place."""
    quotas, left_out = _nameable(making.rules.quotas)
    if not quotas:
        return
    head = {
        "LEFT_OUT": f"# Left out, by names that Kubernetes does not take: {left_out}." if left_out else "#"
    }
    place, rules = making.place, making.rules
    says = {
        "kueue": "quotas of tenants, for Kueue",
        "kai": "the same for KAI",
        "volcano": "the same for Volcano",
    }
    for name, parts in (("kueue", _kueue), ("kai", _kai), ("volcano", _volcano)):
        text = filled(f"queues/{name}_head.yaml", head) + "".join(parts(making, quotas))
        pack.add(text.removesuffix("---\n"), Step(place(f"{name}.yaml"), says[name]))
    if not rules.comes_and_goes:  # pools that come and go bring the label along
        nodes = [f"{node} {pool.name}" for pool in rules.pools for node in pool.nodes]
        pack.files[place("queue-nodes.txt")] = lines_of(nodes)
    what = "puts the quotas in place for the queue managers that are there"
    pack.add(making.script("queues.sh"), Step.script(place("queues.sh"), what))


def _nameable(quotas: Sequence[TenantQuota]) -> tuple[list[TenantQuota], str]:
    """Quotas whose names can be those of objects, and the names of the others."""
    names = {one: (one.tenant, *one.namespaces, *([one.cohort] if one.cohort else [])) for one in quotas}
    fine = [one for one in quotas if all(map(_LABEL.fullmatch, names[one]))]
    return fine, ", ".join(ascii(one.tenant)[1:-1][:60] for one in quotas if one not in fine)


@dataclass(frozen=True)
class Allotment:
    """Instances of one resource of one pool: a tenant's own, and how many it may borrow and lend; None: no limit."""

    own: int = 0
    borrow: int | None = None
    lend: int | None = None


def shared_out(making: Making, quotas: Sequence[TenantQuota]) -> dict[tuple[str, str, str], Allotment]:
    """Instances by pool, resource and tenant: by its share of today's GPUs, the rest by largest remainder."""
    today = sum(pool.count * len(pool.layouts) for pool in making.rules.today)
    found = {}
    for pool in making.rules.pools:
        for resource, count in allocatable(pool.state).items():
            offered = count * _nodes(making, pool)
            exact = {one.tenant: min(one.gpus / today, 1.0) * offered for one in quotas}
            own = {tenant: math.floor(amount + 1e-9) for tenant, amount in exact.items()}
            left = math.floor(sum(exact.values()) + 0.5) - sum(own.values())
            for tenant in sorted(exact, key=lambda one: (own[one] - exact[one], one))[: max(left, 0)]:
                own[tenant] += 1
            for one in quotas:
                mine = own[one.tenant]
                borrow, lend = (
                    None if amount is None else amount / today * offered for amount in (one.borrow, one.lend)
                )
                found[pool.name, resource, one.tenant] = Allotment(
                    mine,
                    None if borrow is None else math.ceil(borrow - 1e-9),
                    None if lend is None else min(mine, math.floor(lend + 1e-9)),
                )
    return found


def _nodes(making: Making, pool: PoolRule) -> int:
    """Nodes of a pool at once."""
    return max(pool.most, pool.kept, 1) if making.rules.comes_and_goes else pool.count


def _resources(making: Making) -> list[str]:
    return sorted({name for pool in making.rules.pools for name in allocatable(pool.state)})


def _kueue(making: Making, quotas: Sequence[TenantQuota]) -> Iterator[str]:
    """Flavors by pool, and the queues of tenants."""
    rules, covered = making.rules, _resources(making)
    if not rules.comes_and_goes:  # of nodes that are not there Kueue knows no place
        yield filled("queues/topology.yaml", {})
    for pool in rules.pools:
        taint = (
            "  tolerations:\n    - {key: gpuplanner.io/pool, value: " + pool.name + ", effect: NoSchedule}\n"
        )
        yield filled("queues/flavor.yaml", {
            "POOL": pool.name, "TOPOLOGY": "" if rules.comes_and_goes else "  topologyName: gpuplanner\n",
            "TOLERATIONS": taint if rules.comes_and_goes else "",
        })  # fmt: skip
    shares = shared_out(making, quotas)
    for one in quotas:
        flavors = []
        for pool in rules.pools:
            flavors.append(f"        - name: gpuplanner-{pool.name}\n          resources:")
            for resource in covered:
                mine = shares.get((pool.name, resource, one.tenant), Allotment(0, 0, 0))
                flavors.append(f"            - {json.dumps(_limits(one, resource, mine))}")
        yield filled("queues/cluster_queue.yaml", {
            "TENANT": one.tenant, "COHORT": f"  cohortName: {one.cohort}\n" if one.cohort else "",
            "COVERED": ", ".join(map(json.dumps, covered)), "FLAVORS": "\n".join(flavors),
        })  # fmt: skip
        for namespace in one.namespaces:
            yield filled("queues/local_queue.yaml", {"TENANT": one.tenant, "NAMESPACE": namespace})


def _limits(one: TenantQuota, resource: str, mine: Allotment) -> dict[str, str | int]:
    """A quota of Kueue, which knows limits in cohorts alone."""
    found: dict[str, str | int] = {"name": resource, "nominalQuota": mine.own}
    if one.cohort and one.borrow is not None and mine.borrow is not None:
        found["borrowingLimit"] = mine.borrow
    if one.cohort and one.lend is not None and mine.lend is not None:
        found["lendingLimit"] = mine.lend
    return found


def _kai(making: Making, quotas: Sequence[TenantQuota]) -> Iterator[str]:
    rules = making.rules
    today = sum(pool.count * len(pool.layouts) for pool in rules.today)
    ratio = sum(len(pool.layouts) for pool in rules.pools[:1]) * rules.nodes / today if today else 1.0

    def gpus(amount: float) -> str:
        return f"{round(amount * ratio, 2):g}"

    for cohort, members in _cohorts(quotas):
        limit = "-1" if cohort else gpus(sum(one.gpus for one in members))
        yield filled("queues/kai.yaml", {
            "NAME": cohort or _ALONE, "PARENT": "", "QUOTA": gpus(sum(one.gpus for one in members)), "LIMIT": limit,
        })  # fmt: skip
        for one in members:
            own = gpus(one.gpus + (one.borrow or 0.0))
            yield filled("queues/kai.yaml", {
                "NAME": one.tenant, "PARENT": f"  parentQueue: {cohort or _ALONE}\n", "QUOTA": gpus(one.gpus),
                "LIMIT": "-1" if cohort and one.borrow is None else own,
            })  # fmt: skip


def _volcano(making: Making, quotas: Sequence[TenantQuota]) -> Iterator[str]:
    shares, covered = shared_out(making, quotas), _resources(making)

    def lines(amounts: dict[str, int]) -> str:
        return "\n".join(
            f"    {json.dumps(name)}: {json.dumps(str(count))}" for name, count in amounts.items()
        )

    def deserved(one: TenantQuota, *, most: bool = False) -> dict[str, int]:
        found = dict.fromkeys(covered, 0)
        for (_, name, tenant), mine in shares.items():
            if tenant == one.tenant:
                found[name] += mine.own + (mine.borrow or 0) * most
        return found

    for cohort, members in _cohorts(quotas):
        if cohort:
            total = {name: sum(deserved(one)[name] for one in members) for name in covered}
            yield filled("queues/volcano.yaml", {
                "NAME": cohort, "PARENT": "", "DESERVED": lines(total), "CAPABILITY": "",
            })  # fmt: skip
        for one in members:
            most = lines(deserved(one, most=True))
            bounded = not cohort or one.borrow is not None
            yield filled("queues/volcano.yaml", {
                "NAME": one.tenant, "PARENT": f"  parent: {cohort}\n" if cohort else "",
                "DESERVED": lines(deserved(one)), "CAPABILITY": f"  capability:\n{most}\n" if bounded else "",
            })  # fmt: skip


def _cohorts(quotas: Sequence[TenantQuota]) -> Iterator[tuple[str | None, list[TenantQuota]]]:
    """Tenants by cohort; those in none last."""
    names = sorted({one.cohort for one in quotas if one.cohort})
    for cohort in [*names, None]:
        members = [one for one in quotas if one.cohort == cohort]
        if members:
            yield cohort, members
