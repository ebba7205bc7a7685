"""Pools of nodes that come and go on Kubernetes, and nodes that the DRA driver cuts: what controllers are told."""

from __future__ import annotations

import json

from gpuplanner.catalog.loader import facts
from gpuplanner.export.fleet_rules import BY_JOBS, PoolRule
from gpuplanner.export.kubernetes import (allocatable, to_config_map)
from gpuplanner.export.bundle_files import Making, Pack, Step, add_release, filled, lines_of
from gpuplanner.hardware.layout import format_layout
from gpuplanner.schemas.vocabulary import WHOLE_GPU

NODE_CLASSES = {"aws": ("karpenter.k8s.aws", "EC2NodeClass"), "azure": ("karpenter.azure.com", "AKSNodeClass"),
                "gcp": ("karpenter.k8s.gcp", "GCENodeClass")}  # fmt: skip
GROW_FROM_NOTHING = "nvidia.com/gpu"
PROVISION_TIMES = 2
"""How many times the slowest assumed lead a node may take until another one is asked for."""


KARPENTER = "kubectl get crd nodepools.karpenter.sh -o name"
CLUSTER_AUTOSCALER = "kubectl get deployment --namespace kube-system cluster-autoscaler -o name"
"""What finds the two that make nodes come."""


def pools(making: Making, pack: Pack) -> None:
    """A pool for each way that nodes are cut, for Karpenter or Cluster Autoscaler, with the reserve that stays on."""
    rules, place = making.rules, making.place
    if making.board.profiles:
        file = place("configmap.yaml")
        says = "one configuration for each pool; a node is labelled with its own when it comes"
        pack.add(to_config_map(rules.pool_plan(), making.board),
                 Step(file, says, f"kubectl apply -f {file}", "", f"kubectl delete -f {file}"))  # fmt: skip
        says = "lets the MIG manager read it; keeps what was set before"
        pack.add(making.script("policy.sh"), Step.script(place("policy.sh"), says))
    if rules.placement == "fullest":
        names = sorted({name for pool in rules.pools for name in allocatable(pool.state)})
        text = "\n".join(f'{" " * 14}- {{name: "{name}", weight: 1}}' for name in names)
        says = "lets the scheduler fill the fullest nodes first, so that others become empty; merge it into yours"
        pack.add(filled("scheduler.yaml", {"RESOURCES": text}), Step(place("scheduler.yaml"), says))
    _karpenter(making, pack)
    _cluster_autoscaler(making, pack)
    _reserve(making, pack)
    today = tuple(node for pool in rules.today for node in pool.nodes)
    what = "empties the nodes of today, whose place the pools take; run it last"
    add_release(making, pack, today, what, _where_nodes_come)


def _where_nodes_come(words: str) -> str:
    """Words of a shell that are obeyed only where something makes nodes come in the place of those that go."""
    found = f"{{ {KARPENTER} || {CLUSTER_AUTOSCALER}; }} >/dev/null 2>&1"
    said = "neither Karpenter nor Cluster Autoscaler is found: no node would come, so none is emptied"
    return f"if {found}; then {words}; else echo '{said}' >&2; false; fi"


def _values(making: Making, pool: PoolRule) -> dict[str, str]:
    rules = making.rules
    offers = {GROW_FROM_NOTHING: 0, **allocatable(pool.state)}
    limits = "".join(
        f"{' ' * 12}{json.dumps(name)}: {json.dumps(str(count))}\n" for name, count in offers.items() if count
    )
    cloud, types = _instance_types(making, len(pool.layouts))
    group, kind = NODE_CLASSES[cloud]
    return {
        "POOL": pool.name, "CONFIG": pool.state.config_name if making.board.profiles else "all-disabled",
        "LEAD_S": f"{rules.lead_s:.0f}", "SLOW_S": f"{rules.lead_slow_s:.0f}", "NODES": str(rules.nodes),
        "KEPT": str(pool.kept if rules.comes_and_goes else pool.count), "MOST": str(_most(making, pool)),
        "NODE_CLASS_GROUP": group, "NODE_CLASS_KIND": kind, "INSTANCE_TYPES": ", ".join(types),
        "IDLE": f"{rules.idle_s:.0f}s" if rules.idle_s is not None else "Never",
        "OFFERS": "\n".join(f"    {json.dumps(name)}: {json.dumps(str(count))}" for name, count in offers.items()),
        "LIMITS": limits.rstrip("\n"),
    }  # fmt: skip


def _most(making: Making, pool: PoolRule) -> int:
    """Nodes that a pool may have: as many as were on at once, no fewer than it keeps."""
    return max(pool.most, pool.kept, 1) if making.rules.comes_and_goes else pool.count


def _instance_types(making: Making, gpus: int) -> tuple[str, list[str]]:
    """Instances of one cloud with so many GPUs of the board, by the price lists; else a word that must be replaced."""
    rows = facts("gpu_prices").filter(gpu_model=making.board.name, gpu_count=gpus).sort("cloud")
    for cloud in NODE_CLASSES:
        mine = rows.filter(cloud=cloud)["instance_type"].unique().sort().to_list()
        if mine:
            return cloud, mine
    return "aws", ["INSTANCE-TYPE"]


def _karpenter(making: Making, pack: Pack) -> None:
    file = making.place("karpenter.yaml")
    text = "".join(filled("node_pool.yaml", _values(making, pool)) for pool in making.rules.pools)
    says = (
        "Karpenter: a pool and what its nodes offer before there is one (gate NodeOverlay); node class `default` and "
        "instance type are yours to look at"
    )
    do, undo = (
        f"if {KARPENTER} >/dev/null 2>&1; then kubectl {verb} -f {file}; fi" for verb in ("apply", "delete")
    )
    check = f"if {KARPENTER} >/dev/null 2>&1; then kubectl get -f {file} -o name; fi"
    pack.add(text, Step(file, says, do, check, undo))


def _cluster_autoscaler(making: Making, pack: Pack) -> None:
    rules = making.rules
    known = {
        "IDLE": f"{rules.idle_s or 0:.0f}s", "COOL": f"{rules.cool_s:.0f}s", "LEAD_S": f"{rules.lead_s:.0f}",
        "SLOW_S": f"{rules.lead_slow_s:.0f}", "PROVISION": f"{PROVISION_TIMES * rules.lead_slow_s:.0f}s",
    }  # fmt: skip
    values, groups = (making.place(name) for name in ("cluster-autoscaler-values.yaml", "node-groups.json"))
    release = "cluster-autoscaler autoscaler/cluster-autoscaler --namespace kube-system --reuse-values"
    do = f"if {CLUSTER_AUTOSCALER} >/dev/null 2>&1; then helm upgrade {release} --values {values}; fi"
    undo = f"if {CLUSTER_AUTOSCALER} >/dev/null 2>&1; then helm rollback cluster-autoscaler --namespace kube-system; fi"
    says = "Cluster Autoscaler instead of Karpenter: its flags, if it was installed by its chart under its usual name"
    pack.add(filled("autoscaler_values.yaml", known), Step(values, says, do, "", undo))
    says = (
        "for Cluster Autoscaler: size, labels, taints and tags of the node groups, as AWS, Azure and GCE spell them; "
        "make them with what you make node groups with"
    )
    found = {f"gpuplanner-{pool.name}": _node_group(making, pool) for pool in rules.pools}
    pack.add(json.dumps(found, indent=2) + "\n", Step(groups, says))


def _node_group(making: Making, pool: PoolRule) -> dict[str, object]:
    """A node group with what it has to tell before it has a node, in the words of three clouds."""
    values = _values(making, pool)
    labels = {"gpuplanner.io/pool": pool.name, "nvidia.com/mig.config": values["CONFIG"]}
    offers = {name: str(count) for name, count in {GROW_FROM_NOTHING: 0, **allocatable(pool.state)}.items()}
    taints = {"gpuplanner.io/pool": f"{pool.name}:NoSchedule"}
    told = dict(
        facts("controllers").filter(controller="cluster-autoscaler").select("fact", "value").iter_rows()
    )
    parts = {"resources": offers, "label": labels, "taint": taints}
    listed = {name: ",".join(f"{key}={value}" for key, value in one.items()) for name, one in parts.items()}
    gce = f"extended_resources={listed['resources']};node_labels={listed['label']};"
    return {
        "min": 0 if making.rules.comes_and_goes else pool.count,
        "max": _most(making, pool),
        "nodes_of_all_groups": making.rules.nodes,
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


def _reserve(making: Making, pack: Pack) -> None:
    """What keeps idle nodes on: a buffer, or pods that do nothing where no controller knows buffers."""
    kept = [pool for pool in making.rules.pools if pool.kept and making.rules.comes_and_goes]
    if not kept:
        return
    head = filled("reserve_class.yaml", {})
    buffers, pods = making.place("reserve.yaml"), making.place("reserve-pause-pods.yaml")
    with_buffers = "kubectl get crd capacitybuffers.autoscaling.x-k8s.io -o name"
    text = head + "".join(filled("buffer.yaml", _values(making, pool)) for pool in kept)
    says = "the idle nodes that stay on, as CapacityBuffer"
    do, undo = (
        f"if {with_buffers} >/dev/null 2>&1; then kubectl {verb} -f {buffers}; else kubectl {verb} -f {pods}; fi"
        for verb in ("apply", "delete")
    )
    pack.add(text, Step(buffers, says, do, "", undo))
    text = head + "".join(filled("pause_pods.yaml", _values(making, pool)) for pool in kept)
    pack.add(text, Step(pods, "the same as pods of low priority, where no controller knows buffers"))


def on_demand(making: Making, pack: Pack) -> None:
    """Nodes on which the DRA driver makes an instance for each claim."""
    rules, place = making.rules, making.place
    nodes = sorted({node for pool in rules.pools if BY_JOBS in pool.layouts for node in pool.nodes})
    gate, _, name = _fact("dra", "gate").partition(".")
    values = place("driver-values.yaml")
    chart = f"{_fact('dra', 'chart')} --version {_fact('dra', 'version')}"
    release = "dra-driver-nvidia-gpu"
    do = (
        f"helm upgrade --install {release} {chart} --namespace {release} --create-namespace --values {values}"
    )
    pack.add(filled("dra_values.yaml", {"GATE_KEY": gate, "GATE_NAME": name}),
             Step(values, "values of the driver's chart, with the gate that cuts on demand", do, "",
                  f"helm uninstall {release} --namespace {release}"))  # fmt: skip
    pack.files[place("nodes.txt")] = lines_of(nodes)
    says = "gives the nodes of `nodes.txt` to the driver"
    pack.add(making.script("label_nodes.sh"), Step.script(place("nodes.sh"), says))
    file = place("device-classes.yaml")
    text = "".join(_device_class(name) for name in [WHOLE_GPU, *_profiles(making)])
    says = "a class for each profile, and claims for pods"
    pack.add(text, Step(file, says, f"kubectl apply -f {file}", "", f"kubectl delete -f {file}"))
    add_release(making, pack, rules.released, "empties the nodes of `released.txt`, which are not needed")


def _fact(controller: str, fact: str) -> str:
    found: str = facts("controllers").filter(controller=controller, fact=fact)["value"].item()
    return found


def _profiles(making: Making) -> list[str]:
    """Profiles of the board without those that differ in media engines alone, largest first."""
    names = [one.name for one in making.board.profiles if "+" not in one.name and "-" not in one.name]
    return sorted(names, key=lambda name: format_layout({name: 1}), reverse=True)


def _device_class(profile: str) -> str:
    whole = profile == WHOLE_GPU
    kind = "device.attributes['gpu.nvidia.com'].type == 'gpu'"
    slug = profile.replace(".", "-")
    selects = kind if whole else f"device.attributes['gpu.nvidia.com'].profile == '{profile}'"
    resource = GROW_FROM_NOTHING if whole else f"nvidia.com/mig-{profile}"
    return filled("device_class.yaml", {"SLUG": slug, "SELECTS": selects, "RESOURCE": resource})
