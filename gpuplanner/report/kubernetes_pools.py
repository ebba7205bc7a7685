"""Node pools and queue quotas on Kubernetes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.decision.policy_fleets import LAYOUT_CUT_BY_JOBS, PoolRule, TenantQuota
from gpuplanner.hardware.catalog import facts
from gpuplanner.hardware.mig_layouts import format_layout
from gpuplanner.report.bundle_files import POLICY_STEP, FleetPack, Step, add_release, filled, lines_of
from gpuplanner.report.mig_manager_files import allocatable, to_config_map

NODE_CLASSES = {"aws": ("karpenter.k8s.aws", "EC2NodeClass"), "azure": ("karpenter.azure.com", "AKSNodeClass"),
                "gcp": ("karpenter.k8s.gcp", "GCENodeClass")}  # fmt: skip
GROW_FROM_NOTHING = "nvidia.com/gpu"
PROVISION_TIMES = 2
"""How many times the slowest assumed lead a node may take until another one is asked for."""


KARPENTER = "kubectl get crd nodepools.karpenter.sh -o name"
CLUSTER_AUTOSCALER = "kubectl get deployment --namespace kube-system cluster-autoscaler -o name"
"""What finds the two that make nodes come."""


def pools(pack: FleetPack) -> None:
    """A pool for each way that nodes are cut, for Karpenter or Cluster Autoscaler, with the reserve that stays on."""
    rules, place = pack.rules, pack.place
    if pack.gpu_model.profiles:
        says = "MIG configurations, one per pool; a new node is labelled with that of its pool; `policy.sh` creates it"
        pack.add(to_config_map(rules.make_pool_plan(), pack.gpu_model), Step(place("configmap.yaml"), says))
        pack.add_script("policy.sh", POLICY_STEP)
    if rules.placement == "fullest":
        names = sorted({name for pool in rules.pools for name in allocatable(pool.state)})
        text = "\n".join(f'{" " * 14}- {{name: "{name}", weight: 1}}' for name in names)
        says = "scheduler profile that fills the most allocated nodes first; merge it into yours"
        pack.add(filled("scheduler.yaml", {"RESOURCES": text}), Step(place("scheduler.yaml"), says))
    _karpenter(pack)
    _cluster_autoscaler(pack)
    _reserve(pack)
    today = tuple(node for pool in rules.today for node in pool.nodes)
    what = "cordons and empties the nodes of today, which the pools replace; run it last"
    add_release(pack, today, what, _where_nodes_come)


def _where_nodes_come(words: str) -> str:
    """Words of a shell that are obeyed only where something makes nodes come in the place of those that go."""
    found = f"{{ {KARPENTER} || {CLUSTER_AUTOSCALER}; }} >/dev/null 2>&1"
    error = "Fix the cluster: it has neither Karpenter nor Cluster Autoscaler, so no node is emptied"
    return f"if {found}; then {words}; else echo '{error}' >&2; false; fi"


def _values(pack: FleetPack, pool: PoolRule) -> dict[str, str]:
    rules = pack.rules
    offers = {GROW_FROM_NOTHING: 0, **allocatable(pool.state)}
    limits = "".join(
        f"{' ' * 12}{json.dumps(name)}: {json.dumps(str(count))}\n" for name, count in offers.items() if count
    )
    cloud, types = _instance_types(pack, len(pool.layouts))
    group, kind = NODE_CLASSES[cloud]
    return {
        "POOL": pool.name, "CONFIG": pool.state.config_name if pack.gpu_model.profiles else "all-disabled",
        "LEAD_S": f"{rules.lead_s:.0f}", "SLOW_S": f"{rules.lead_slow_s:.0f}", "NODES": str(rules.nodes),
        "KEPT": str(pool.kept if rules.powers_nodes_down else pool.count), "MOST": str(_most(pack, pool)),
        "NODE_CLASS_GROUP": group, "NODE_CLASS_KIND": kind, "INSTANCE_TYPES": ", ".join(types),
        "IDLE": f"{rules.idle_s:.0f}s" if rules.idle_s is not None else "Never",
        "OFFERS": "\n".join(f"    {json.dumps(name)}: {json.dumps(str(count))}" for name, count in offers.items()),
        "LIMITS": limits.rstrip("\n"),
    }  # fmt: skip


def _most(pack: FleetPack, pool: PoolRule) -> int:
    """Nodes that a pool may have: as many as were on at once, no fewer than it keeps."""
    return max(pool.max_nodes_on, pool.kept, 1) if pack.rules.powers_nodes_down else pool.count


def _instance_types(pack: FleetPack, gpus: int) -> tuple[str, list[str]]:
    """Instances of one cloud with so many GPUs of the board, by the price lists; else a word that must be replaced."""
    rows = facts("gpu_prices").filter(gpu_model=pack.gpu_model.name, gpu_count=gpus).sort("cloud")
    for cloud in NODE_CLASSES:
        mine = rows.filter(cloud=cloud)["instance_type"].unique().sort().to_list()
        if mine:
            return cloud, mine
    return "aws", ["INSTANCE-TYPE"]


def _karpenter(pack: FleetPack) -> None:
    file = pack.place("karpenter.yaml")
    text = "".join(filled("node_pool.yaml", _values(pack, pool)) for pool in pack.rules.pools)
    says = (
        "Karpenter: node pools, with the resources of nodes that are not up yet (feature gate NodeOverlay); check node "
        "class `default` and instance type"
    )
    verbs = f"apply -f {file}", f"get -f {file} -o name", f"delete -f {file}"
    commands = [f"if {KARPENTER} >/dev/null 2>&1; then kubectl {verb}; fi" for verb in verbs]
    pack.add(text, Step(file, says, *commands))


def _cluster_autoscaler(pack: FleetPack) -> None:
    rules = pack.rules
    known = {
        "IDLE": f"{rules.idle_s or 0:.0f}s", "COOL": f"{rules.cool_s:.0f}s", "LEAD_S": f"{rules.lead_s:.0f}",
        "SLOW_S": f"{rules.lead_slow_s:.0f}", "PROVISION": f"{PROVISION_TIMES * rules.lead_slow_s:.0f}s",
    }  # fmt: skip
    values, groups = (pack.place(name) for name in ("cluster-autoscaler-values.yaml", "node-groups.json"))
    release = "cluster-autoscaler autoscaler/cluster-autoscaler --namespace kube-system --reuse-values"
    do = f"if {CLUSTER_AUTOSCALER} >/dev/null 2>&1; then helm upgrade {release} --values {values}; fi"
    undo = f"if {CLUSTER_AUTOSCALER} >/dev/null 2>&1; then helm rollback cluster-autoscaler --namespace kube-system; fi"
    says = "Cluster Autoscaler instead of Karpenter: its flags, for the Helm release `cluster-autoscaler`"
    pack.add(filled("autoscaler_values.yaml", known), Step(values, says, do, "", undo))
    says = (
        "for Cluster Autoscaler: size, labels, taints and tags of the node groups on AWS, Azure and GCE; create the "
        "groups with your own tool"
    )
    found = {f"gpuplanner-{pool.name}": _node_group(pack, pool) for pool in rules.pools}
    pack.add(json.dumps(found, indent=2) + "\n", Step(groups, says))


def _node_group(pack: FleetPack, pool: PoolRule) -> dict[str, object]:
    """A node group with what it has to tell before it has a node, in the words of three clouds."""
    values = _values(pack, pool)
    labels = {"gpuplanner.io/pool": pool.name, "nvidia.com/mig.config": values["CONFIG"]}
    offers = {name: str(count) for name, count in {GROW_FROM_NOTHING: 0, **allocatable(pool.state)}.items()}
    taints = {"gpuplanner.io/pool": f"{pool.name}:NoSchedule"}
    told = dict(facts("controllers").filter(controller="cluster-autoscaler").select("fact", "value").iter_rows())
    parts = {"resources": offers, "label": labels, "taint": taints}
    listed = {name: ",".join(f"{key}={value}" for key, value in one.items()) for name, one in parts.items()}
    gce = f"extended_resources={listed['resources']};node_labels={listed['label']};"
    return {
        "min": 0 if pack.rules.powers_nodes_down else pool.count,
        "max": _most(pack, pool),
        "nodes_of_all_groups": pack.rules.nodes,
        "idle_nodes_kept": int(values["KEPT"]),
        "labels": labels,
        "taints": taints,
        "aws_tags": {f"{told['tag']}/{part}/{k}": v for part, one in parts.items() for k, v in one.items()},
        "azure_tags": {
            f"{told['tag_azure']}_{part}_{k.replace('/', '_')}": v
            for part, one in parts.items()
            for k, v in one.items()
        },
        "gce_env": {told["env_gce"]: gce + f"node_taints=gpuplanner.io/pool={pool.name}:NoSchedule"},
    }


def _reserve(pack: FleetPack) -> None:
    """What keeps idle nodes on: a buffer, or pods that do nothing where no controller knows buffers."""
    kept = [pool for pool in pack.rules.pools if pool.kept and pack.rules.powers_nodes_down]
    if not kept:
        return
    head = filled("reserve_class.yaml", {})
    buffers, pods = pack.place("reserve.yaml"), pack.place("reserve-pause-pods.yaml")
    with_buffers = "kubectl get crd capacitybuffers.autoscaling.x-k8s.io -o name"
    text = head + "".join(filled("buffer.yaml", _values(pack, pool)) for pool in kept)
    says = "reserve of idle nodes, as CapacityBuffer"
    do, undo = (
        f"if {with_buffers} >/dev/null 2>&1; then kubectl {verb} -f {buffers}; else kubectl {verb} -f {pods}; fi"
        for verb in ("apply", "delete")
    )
    pack.add(text, Step(buffers, says, do, "", undo))
    text = head + "".join(filled("pause_pods.yaml", _values(pack, pool)) for pool in kept)
    pack.add(text, Step(pods, "the same as low-priority pods, for controllers without CapacityBuffer"))


def on_demand(pack: FleetPack) -> None:
    """Nodes on which the DRA driver makes an instance for each claim."""
    rules, place = pack.rules, pack.place
    nodes = sorted({node for pool in rules.pools if LAYOUT_CUT_BY_JOBS in pool.layouts for node in pool.nodes})
    gate, _, name = _fact("dra", "gate").partition(".")
    values = place("driver-values.yaml")
    chart = f"{_fact('dra', 'chart')} --version {_fact('dra', 'version')}"
    release = "dra-driver-nvidia-gpu"
    do = f"helm upgrade --install {release} {chart} --namespace {release} --create-namespace --values {values}"
    pack.add(filled("dra_values.yaml", {"GATE_KEY": gate, "GATE_NAME": name}),
             Step(values, "Helm values of the DRA driver, with dynamic MIG enabled", do, "",
                  f"helm uninstall {release} --namespace {release}"))  # fmt: skip
    pack.files[place("nodes.txt")] = lines_of(nodes)
    pack.add_script("label_nodes.sh", "labels the nodes of `nodes.txt` for the DRA driver", "nodes.sh")
    # Profiles that differ in media engines alone are left out; the largest stands first.
    names = [one.name for one in pack.gpu_model.profiles if "+" not in one.name and "-" not in one.name]
    names.sort(key=lambda name: format_layout({name: 1}), reverse=True)
    text = "".join(_device_class(name) for name in [FULL_GPU, *names])
    says = "a DeviceClass and a ResourceClaimTemplate for each profile"
    pack.add(text, Step.manifest(place("device-classes.yaml"), says))
    add_release(pack, rules.released, "cordons and empties the nodes of `released.txt`, which are not needed")


def _fact(controller: str, fact: str) -> str:
    found: str = facts("controllers").filter(controller=controller, fact=fact)["value"].item()
    return found


def _device_class(profile: str) -> str:
    whole = profile == FULL_GPU
    kind = "device.attributes['gpu.nvidia.com'].type == 'gpu'"
    slug = profile.replace(".", "-")
    selects = kind if whole else f"device.attributes['gpu.nvidia.com'].profile == '{profile}'"
    resource = GROW_FROM_NOTHING if whole else f"nvidia.com/mig-{profile}"
    return filled("device_class.yaml", {"SLUG": slug, "SELECTS": selects, "RESOURCE": resource})


_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_ALONE = "gpuplanner"
"""Parent of the queues of KAI whose tenants are in no cohort: it wants two levels."""


def add_queues(pack: FleetPack) -> None:
    """Add the quotas that there are, for each of the queue managers, and the script that puts them in place."""
    quotas, left_out = _nameable(pack.rules.quotas)
    if not quotas:
        return
    said = f"# Left out, because Kubernetes does not allow these names: {left_out}."
    head = {"LEFT_OUT": said if left_out else "#"}
    place, rules = pack.place, pack.rules
    managers = {
        "kueue": (_kueue, "quotas of teams for Kueue"),
        "kai": (_kai, "the same for KAI"),
        "volcano": (_volcano, "the same for Volcano"),
    }
    for name, (parts, says) in managers.items():
        text = filled(f"queues/{name}_head.yaml", head) + "".join(parts(pack, quotas))
        pack.add(text.removesuffix("---\n"), Step(place(f"{name}.yaml"), says))
    if not rules.powers_nodes_down:  # pools that come and go bring the label along
        nodes = [f"{node} {pool.name}" for pool in rules.pools for node in pool.nodes]
        pack.files[place("queue-nodes.txt")] = lines_of(nodes)
    pack.add_script("queues.sh", "applies the quotas to the queue managers of the cluster")


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


def shared_out(pack: FleetPack, quotas: Sequence[TenantQuota]) -> dict[tuple[str, str, str], Allotment]:
    """Instances by pool, resource and tenant: by its share of today's GPUs, the rest by largest remainder."""
    today = sum(pool.count * len(pool.layouts) for pool in pack.rules.today)
    found = {}
    for pool in pack.rules.pools:
        for resource, count in allocatable(pool.state).items():
            offered = count * _most(pack, pool)
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


def _resources(pack: FleetPack) -> list[str]:
    return sorted({name for pool in pack.rules.pools for name in allocatable(pool.state)})


def _kueue(pack: FleetPack, quotas: Sequence[TenantQuota]) -> Iterator[str]:
    """Flavors by pool, and the queues of tenants."""
    rules, covered = pack.rules, _resources(pack)
    if not rules.powers_nodes_down:  # of nodes that are not there Kueue knows no place
        yield filled("queues/topology.yaml", {})
    for pool in rules.pools:
        taint = "  tolerations:\n    - {key: gpuplanner.io/pool, value: " + pool.name + ", effect: NoSchedule}\n"
        yield filled("queues/flavor.yaml", {
            "POOL": pool.name, "TOPOLOGY": "" if rules.powers_nodes_down else "  topologyName: gpuplanner\n",
            "TOLERATIONS": taint if rules.powers_nodes_down else "",
        })  # fmt: skip
    shares = shared_out(pack, quotas)
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


def _kai(pack: FleetPack, quotas: Sequence[TenantQuota]) -> Iterator[str]:
    rules = pack.rules
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


def _volcano(pack: FleetPack, quotas: Sequence[TenantQuota]) -> Iterator[str]:
    shares, covered = shared_out(pack, quotas), _resources(pack)

    def lines(amounts: dict[str, int]) -> str:
        return "\n".join(f"    {json.dumps(name)}: {json.dumps(str(count))}" for name, count in amounts.items())

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
