"""Kubernetes files of a change bundle: node pools, DRA device classes and queue quotas."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.decision.decision_types import LAYOUT_PER_JOB
from gpuplanner.decision.policy_layouts import PoolRule, TenantQuota
from gpuplanner.hardware.catalog import facts
from gpuplanner.hardware.mig_layouts import format_layout
from gpuplanner.report.change_bundle_parts import (
    CLUSTER_POLICY_PURPOSE,
    KUBERNETES_NAME_PATTERN,
    FileStep,
    FleetBundle,
    add_release_files,
    fill_template,
    join_lines,
    read_controller_facts,
)
from gpuplanner.report.mig_manager_files import ALL_DISABLED_CONFIG, allocatable_resources, resource_name, to_config_map

KARPENTER_NODE_CLASSES = {
    "aws": ("karpenter.k8s.aws", "EC2NodeClass"),
    "azure": ("karpenter.azure.com", "AKSNodeClass"),
    "gcp": ("karpenter.k8s.gcp", "GCENodeClass"),
}
"""API group and kind of Karpenter's node class, by cloud."""
MAX_PROVISION_TIME_FACTOR = 2
"""Multiple of the longest assumed node start-up time after which Cluster Autoscaler requests another node."""


FIND_KARPENTER_COMMAND = "kubectl get crd nodepools.karpenter.sh -o name"
"""Shell command that succeeds if the cluster has Karpenter."""
FIND_CLUSTER_AUTOSCALER_COMMAND = "kubectl get deployment --namespace kube-system cluster-autoscaler -o name"
"""Shell command that succeeds if the cluster has Cluster Autoscaler."""


def add_node_pools(bundle: FleetBundle) -> None:
    """Add a node pool for each layout, for Karpenter and Cluster Autoscaler, with a reserve of idle nodes."""
    rules, path_of = bundle.rules, bundle.path_of
    if _has_partitioned_pools(bundle):
        role = "MIG configurations, one per pool; a new node is labelled with that of its pool; `policy.sh` creates it"
        bundle.add(to_config_map(rules.make_pool_plan(), bundle.gpu_model), FileStep(path_of("configmap.yaml"), role))
        bundle.add_script("policy.sh", CLUSTER_POLICY_PURPOSE)
    if rules.placement == "fullest":
        names = sorted({name for pool in rules.pools for name in allocatable_resources(pool.state)})
        text = "\n".join(f'{" " * 14}- {{name: "{name}", weight: 1}}' for name in names)
        role = "scheduler profile that fills the most allocated nodes first; merge it into yours"
        bundle.add(fill_template("scheduler.yaml", {"RESOURCES": text}), FileStep(path_of("scheduler.yaml"), role))
    _add_karpenter_files(bundle)
    _add_cluster_autoscaler_files(bundle)
    _add_reserve_files(bundle)
    today = tuple(node for pool in rules.today for node in pool.nodes)
    release_purpose = "cordons and empties the nodes of today, which the pools replace; run it last"
    add_release_files(bundle, today, release_purpose, _run_if_autoscaled)


def _run_if_autoscaled(command: str) -> str:
    """Wrap a shell command so that it runs only if Karpenter or Cluster Autoscaler can replace the nodes."""
    condition = f"{{ {FIND_KARPENTER_COMMAND} || {FIND_CLUSTER_AUTOSCALER_COMMAND}; }} >/dev/null 2>&1"
    error = "Fix the cluster: it has neither Karpenter nor Cluster Autoscaler, so no node is emptied"
    return f"if {condition}; then {command}; else echo '{error}' >&2; false; fi"


def _has_partitioned_pools(bundle: FleetBundle) -> bool:
    """Whether a pool has MIG instances; without, its nodes need no MIG configuration of this bundle."""
    return any(layout != FULL_GPU for pool in bundle.rules.pools for layout in pool.layouts)


def _pool_values(bundle: FleetBundle, pool: PoolRule) -> dict[str, str]:
    """Return the values of the template placeholders of one node pool, by placeholder name."""
    rules = bundle.rules
    offers = {resource_name(FULL_GPU): 0, **allocatable_resources(pool.state)}
    limits = "".join(f"{' ' * 12}{json.dumps(name)}: {json.dumps(str(n))}\n" for name, n in offers.items() if n)
    cloud, types = _find_instance_types(bundle, len(pool.layouts))
    group, kind = KARPENTER_NODE_CLASSES[cloud]
    return {
        "POOL": pool.name, "CONFIG": pool.state.config_name if _has_partitioned_pools(bundle) else ALL_DISABLED_CONFIG,
        "LEAD_S": f"{rules.lead_s:.0f}", "SLOW_S": f"{rules.lead_slow_s:.0f}", "NODES": str(rules.nodes),
        "KEPT": str(pool.kept if rules.powers_nodes_down else pool.count), "MOST": str(_max_nodes(bundle, pool)),
        "NODE_CLASS_GROUP": group, "NODE_CLASS_KIND": kind, "INSTANCE_TYPES": ", ".join(types),
        "IDLE": f"{rules.idle_s:.0f}s" if rules.idle_s is not None else "Never",
        "OFFERS": "\n".join(f"    {json.dumps(name)}: {json.dumps(str(count))}" for name, count in offers.items()),
        "LIMITS": limits.rstrip("\n"),
    }  # fmt: skip


def _max_nodes(bundle: FleetBundle, pool: PoolRule) -> int:
    """Return the most nodes that a node pool may have: its simulated peak, and at least its reserve."""
    return max(pool.max_nodes_on, pool.kept, 1) if bundle.rules.powers_nodes_down else pool.count


def _find_instance_types(bundle: FleetBundle, gpus: int) -> tuple[str, list[str]]:
    """Find a cloud and its instance types with `gpus` GPUs of the model; ``INSTANCE-TYPE`` if none is known."""
    rows = facts("gpu_prices").filter(gpu_model=bundle.gpu_model.name, gpu_count=gpus).sort("cloud")
    for cloud in KARPENTER_NODE_CLASSES:
        instance_types = rows.filter(cloud=cloud)["instance_type"].unique().sort().to_list()
        if instance_types:
            return cloud, instance_types
    return "aws", ["INSTANCE-TYPE"]


def _add_karpenter_files(bundle: FleetBundle) -> None:
    """Add the node pools of Karpenter with the resources that their nodes will offer."""
    file = bundle.path_of("karpenter.yaml")
    text = "".join(fill_template("node_pool.yaml", _pool_values(bundle, pool)) for pool in bundle.rules.pools)
    purpose = (
        "Karpenter: node pools, with the resources of nodes that are not up yet (feature gate NodeOverlay); check node "
        "class `default` and instance type"
    )
    verbs = f"apply -f {file}", f"get -f {file} -o name", f"delete -f {file}"
    commands = [f"if {FIND_KARPENTER_COMMAND} >/dev/null 2>&1; then kubectl {verb}; fi" for verb in verbs]
    bundle.add(text, FileStep(file, purpose, *commands))


def _add_cluster_autoscaler_files(bundle: FleetBundle) -> None:
    """Add the Helm values of Cluster Autoscaler and the node groups to create."""
    rules = bundle.rules
    flags = {
        "IDLE": f"{rules.idle_s or 0:.0f}s", "COOL": f"{rules.cool_s:.0f}s", "LEAD_S": f"{rules.lead_s:.0f}",
        "SLOW_S": f"{rules.lead_slow_s:.0f}", "PROVISION": f"{MAX_PROVISION_TIME_FACTOR * rules.lead_slow_s:.0f}s",
    }  # fmt: skip
    values, groups = (bundle.path_of(name) for name in ("cluster-autoscaler-values.yaml", "node-groups.json"))
    release, namespace = "cluster-autoscaler", "--namespace kube-system"
    upgrade = f"upgrade {release} autoscaler/cluster-autoscaler {namespace} --reuse-values --values {values}"
    verbs = upgrade, f"get values {release} {namespace}", f"rollback {release} {namespace}"
    commands = [f"if {FIND_CLUSTER_AUTOSCALER_COMMAND} >/dev/null 2>&1; then helm {verb}; fi" for verb in verbs]
    purpose = "Cluster Autoscaler instead of Karpenter: its flags, for the Helm release `cluster-autoscaler`"
    bundle.add(fill_template("autoscaler_values.yaml", flags), FileStep(values, purpose, *commands))
    purpose = (
        "for Cluster Autoscaler: size, labels, taints and tags of the node groups on AWS, Azure and GCE; create the "
        "groups with your own tool"
    )
    node_groups = {f"gpuplanner-{pool.name}": _make_node_group(bundle, pool) for pool in rules.pools}
    bundle.add(json.dumps(node_groups, indent=2) + "\n", FileStep(groups, purpose))


def _make_node_group(bundle: FleetBundle, pool: PoolRule) -> dict[str, object]:
    """Describe a node group: size, labels, taints and the tags of AWS, Azure and GCE for scale-up from zero."""
    values = _pool_values(bundle, pool)
    labels = {"gpuplanner.io/pool": pool.name, "nvidia.com/mig.config": values["CONFIG"]}
    resources = {resource_name(FULL_GPU): 0, **allocatable_resources(pool.state)}
    offers = {name: str(count) for name, count in resources.items()}
    taints = {"gpuplanner.io/pool": f"{pool.name}:NoSchedule"}
    tag_facts = dict(facts("controllers").filter(controller="cluster-autoscaler").select("fact", "value").iter_rows())
    parts = {"resources": offers, "label": labels, "taint": taints}
    tags = [(part, key, value) for part, entries in parts.items() for key, value in entries.items()]
    joined = {name: ",".join(f"{key}={value}" for key, value in entries.items()) for name, entries in parts.items()}
    gce = f"extended_resources={joined['resources']};node_labels={joined['label']};"
    return {
        "min": 0 if bundle.rules.powers_nodes_down else pool.count,
        "max": _max_nodes(bundle, pool),
        "nodes_of_all_groups": bundle.rules.nodes,
        "idle_nodes_kept": int(values["KEPT"]),
        "labels": labels,
        "taints": taints,
        "aws_tags": {f"{tag_facts['tag']}/{part}/{key}": value for part, key, value in tags},
        "azure_tags": {f"{tag_facts['tag_azure']}_{part}_{key.replace('/', '_')}": value for part, key, value in tags},
        "gce_env": {tag_facts["env_gce"]: gce + f"node_taints=gpuplanner.io/pool={pool.name}:NoSchedule"},
    }


def _add_reserve_files(bundle: FleetBundle) -> None:
    """Add the Kubernetes objects that keep idle nodes powered on: a CapacityBuffer, or pause pods without that API."""
    pools_with_reserve = [pool for pool in bundle.rules.pools if pool.kept and bundle.rules.powers_nodes_down]
    if not pools_with_reserve:
        return
    head = fill_template("reserve_class.yaml", {})
    buffers, pods = bundle.path_of("reserve.yaml"), bundle.path_of("reserve-pause-pods.yaml")
    with_buffers = "kubectl get crd capacitybuffers.autoscaling.x-k8s.io -o name"
    text = head + "".join(fill_template("buffer.yaml", _pool_values(bundle, pool)) for pool in pools_with_reserve)
    purpose = "reserve of idle nodes, as CapacityBuffer"
    commands = (
        f"if {with_buffers} >/dev/null 2>&1; then kubectl {verb} -f {buffers}; else kubectl {verb} -f {pods}; fi"
        for verb in ("apply", "get", "delete")
    )
    bundle.add(text, FileStep(buffers, purpose, *commands))
    text = head + "".join(fill_template("pause_pods.yaml", _pool_values(bundle, pool)) for pool in pools_with_reserve)
    bundle.add(text, FileStep(pods, "the same as low-priority pods, for controllers without CapacityBuffer"))


def add_dra_files(bundle: FleetBundle) -> None:
    """Add the files with which the DRA driver creates a MIG instance for each resource claim."""
    rules, path_of = bundle.rules, bundle.path_of
    nodes = sorted({node for pool in rules.pools if LAYOUT_PER_JOB in pool.layouts for node in pool.nodes})
    controller_facts = read_controller_facts()
    gate, _, name = controller_facts["dra.dynamic_mig"].partition(".")
    bundle.files[path_of("nodes.txt")] = join_lines(nodes)
    label = FileStep.script(path_of("nodes.sh"), "empties and labels the nodes of `nodes.txt` for the DRA driver")
    bundle.add(bundle.script("label_nodes.sh"), replace(label, undo=""))
    values = path_of("driver-values.yaml")
    chart = f"{controller_facts['dra.chart']} --version {controller_facts['dra.version']}"
    release = "dra-driver-nvidia-gpu"
    space = f"{release} --namespace {release}"
    # A second upgrade would make our own revision the one that a rollback returns to.
    do = (
        f"helm get values {space} 2>/dev/null | grep -q gpuplanner.io/pool || helm upgrade --install {release} {chart} "
        f"--namespace {release} --create-namespace --reset-then-reuse-values --wait --values {values}\n"
        f"bash {label.file} uncordon"
    )
    undo = f"if helm history {space} | grep -q superseded; then helm rollback {space}; else helm uninstall {space}; fi"
    purpose = (
        "Helm values of the DRA driver, with dynamic MIG enabled, beside those that the release has; if the driver has "
        "another release or namespace (`helm list -A`), write that in the commands"
    )
    step = FileStep(values, purpose, do, f"helm status {space}", f"{label.undo}\n{undo}")
    bundle.add(fill_template("dra_values.yaml", {"GATE_KEY": gate, "GATE_NAME": name}), step)
    add_device_classes(bundle)
    add_release_files(bundle, rules.released, "cordons and empties the nodes of `released.txt`, which are not needed")


def add_device_classes(bundle: FleetBundle) -> None:
    """Add a DeviceClass for each profile, with the extended resource that pods may request, and a claim template."""
    # Profiles that differ in media engines alone are left out; the largest stands first.
    names = [
        profile.name for profile in bundle.gpu_model.profiles if "+" not in profile.name and "-" not in profile.name
    ]
    names.sort(key=lambda name: format_layout({name: 1}), reverse=True)
    text = "".join(_render_device_class(name) for name in [FULL_GPU, *names])
    purpose = "a DeviceClass with its extended resource, and a ResourceClaimTemplate, for each profile"
    bundle.add(text, FileStep.manifest(bundle.path_of("device-classes.yaml"), purpose))


def _render_device_class(profile: str) -> str:
    """Render the DeviceClass and ResourceClaimTemplate of a profile."""
    is_full_gpu = profile == FULL_GPU
    kind = "device.attributes['gpu.nvidia.com'].type == 'gpu'"
    slug = profile.replace(".", "-")
    selects = kind if is_full_gpu else f"device.attributes['gpu.nvidia.com'].profile == '{profile}'"
    # Two classes with one extended resource compete for its pods, and the driver's chart has a class of full GPUs.
    extended = f"  # The driver's own class gpu.nvidia.com answers to {resource_name(FULL_GPU)}."
    if not is_full_gpu:
        since = read_controller_facts()["dra.extended"]
        extended = f"  # From Kubernetes {since}, or with DRAExtendedResource enabled, pods may request this by name.\n"
        extended += f"  extendedResourceName: nvidia.com/mig-{profile}"
    return fill_template("device_class.yaml", {"SLUG": slug, "SELECTS": selects, "EXTENDED": extended})


_DEFAULT_KAI_PARENT_QUEUE = "gpuplanner"
"""Parent queue in KAI of teams without a cohort, since KAI needs two levels of queues."""


def add_queues(bundle: FleetBundle) -> None:
    """Add the quotas of teams for Kueue, KAI and Volcano, and the script that applies them."""
    quotas, left_out = _split_by_valid_name(bundle.rules.quotas)
    if not quotas:
        return
    left_out_text = f"# Left out, because Kubernetes does not allow these names: {left_out}."
    head = {"LEFT_OUT": left_out_text if left_out else "#"}
    path_of, rules = bundle.path_of, bundle.rules
    managers = {
        "kueue": (_kueue_documents, "quotas of teams for Kueue"),
        "kai": (_kai_documents, "the same for KAI"),
        "volcano": (_volcano_documents, "the same for Volcano"),
    }
    for name, (parts, purpose) in managers.items():
        text = fill_template(f"queues/{name}_head.yaml", head) + "".join(parts(bundle, quotas))
        bundle.add(text.removesuffix("---\n"), FileStep(path_of(f"{name}.yaml"), purpose))
    if not rules.powers_nodes_down:  # pools that come and go bring the label along
        nodes = [f"{node} {pool.name}" for pool in rules.pools for node in pool.nodes]
        bundle.files[path_of("queue-nodes.txt")] = join_lines(nodes)
    bundle.add_script("queues.sh", "applies the quotas to the queue managers of the cluster")


def _split_by_valid_name(quotas: Sequence[TenantQuota]) -> tuple[list[TenantQuota], str]:
    """Split quotas into those whose names Kubernetes allows, and a text with the names of the others."""
    names = {quota: (quota.tenant, *quota.namespaces, *([quota.cohort] if quota.cohort else [])) for quota in quotas}
    valid = [quota for quota in quotas if all(map(KUBERNETES_NAME_PATTERN.fullmatch, names[quota]))]
    return valid, ", ".join(ascii(quota.tenant)[1:-1][:60] for quota in quotas if quota not in valid)


@dataclass(frozen=True)
class InstanceQuota:
    """Quota of a team for one resource of one node pool, in MIG instances or full GPUs.

    - ``nominal``: Instances of its own quota.
    - ``borrow``, ``lend``: Most instances that it may borrow and lend; None: no limit.
    """

    nominal: int = 0
    borrow: int | None = None
    lend: int | None = None


def divide_instances(bundle: FleetBundle, quotas: Sequence[TenantQuota]) -> dict[tuple[str, str, str], InstanceQuota]:
    """Divide the instances of each node pool among teams in proportion to their quota, by largest remainder.

    Returns
    -------
    dict of (str, str, str) to InstanceQuota
        By pool, resource and team.
    """
    today = sum(pool.count * len(pool.layouts) for pool in bundle.rules.today)
    allotments = {}
    for pool in bundle.rules.pools:
        for resource, count in allocatable_resources(pool.state).items():
            offered = count * _max_nodes(bundle, pool)
            exact = {quota.tenant: min(quota.gpus / today, 1.0) * offered for quota in quotas}
            nominal = {tenant: math.floor(gpus + 1e-9) for tenant, gpus in exact.items()}
            remaining = math.floor(sum(exact.values()) + 0.5) - sum(nominal.values())
            for tenant in sorted(exact, key=lambda name: (nominal[name] - exact[name], name))[: max(remaining, 0)]:
                nominal[tenant] += 1
            for quota in quotas:
                tenant_nominal = nominal[quota.tenant]
                borrow, lend = (None if gpus is None else gpus / today * offered for gpus in (quota.borrow, quota.lend))
                allotments[pool.name, resource, quota.tenant] = InstanceQuota(
                    tenant_nominal,
                    None if borrow is None else math.ceil(borrow - 1e-9),
                    None if lend is None else min(tenant_nominal, math.floor(lend + 1e-9)),
                )
    return allotments


def _list_resources(bundle: FleetBundle) -> list[str]:
    """List the Kubernetes resource names that the nodes of all node pools offer, such as ``nvidia.com/mig-1g.10gb``."""
    return sorted({name for pool in bundle.rules.pools for name in allocatable_resources(pool.state)})


def _kueue_documents(bundle: FleetBundle, quotas: Sequence[TenantQuota]) -> Iterator[str]:
    """Yield the Kueue documents: flavors by node pool, cluster queues and local queues of teams."""
    rules, resource_names = bundle.rules, _list_resources(bundle)
    if not rules.powers_nodes_down:  # of nodes that are not there Kueue knows no place
        yield fill_template("queues/topology.yaml", {})
    for pool in rules.pools:
        taint = "  tolerations:\n    - {key: gpuplanner.io/pool, value: " + pool.name + ", effect: NoSchedule}\n"
        yield fill_template("queues/flavor.yaml", {
            "POOL": pool.name, "TOPOLOGY": "" if rules.powers_nodes_down else "  topologyName: gpuplanner\n",
            "TOLERATIONS": taint if rules.powers_nodes_down else "",
        })  # fmt: skip
    shares = divide_instances(bundle, quotas)
    for quota in quotas:
        flavors = []
        for pool in rules.pools:
            flavors.append(f"        - name: gpuplanner-{pool.name}\n          resources:")
            for resource in resource_names:
                allotment = shares.get((pool.name, resource, quota.tenant), InstanceQuota(0, 0, 0))
                flavors.append(f"            - {json.dumps(_kueue_quota(quota, resource, allotment))}")
        yield fill_template("queues/cluster_queue.yaml", {
            "TENANT": quota.tenant, "COHORT": f"  cohortName: {quota.cohort}\n" if quota.cohort else "",
            "COVERED": ", ".join(map(json.dumps, resource_names)), "FLAVORS": "\n".join(flavors),
        })  # fmt: skip
        for namespace in quota.namespaces:
            yield fill_template("queues/local_queue.yaml", {"TENANT": quota.tenant, "NAMESPACE": namespace})


def _kueue_quota(quota: TenantQuota, resource: str, instance_quota: InstanceQuota) -> dict[str, str | int]:
    """Make the quota of one resource for Kueue; it accepts borrowing and lending limits only in cohorts."""
    limits: dict[str, str | int] = {"name": resource, "nominalQuota": instance_quota.nominal}
    if quota.cohort and quota.borrow is not None and instance_quota.borrow is not None:
        limits["borrowingLimit"] = instance_quota.borrow
    if quota.cohort and quota.lend is not None and instance_quota.lend is not None:
        limits["lendingLimit"] = instance_quota.lend
    return limits


def _kai_documents(bundle: FleetBundle, quotas: Sequence[TenantQuota]) -> Iterator[str]:
    """Yield the KAI queues: one for each cohort, with the queues of its teams below."""
    rules = bundle.rules
    today = sum(pool.count * len(pool.layouts) for pool in rules.today)
    ratio = sum(len(pool.layouts) for pool in rules.pools[:1]) * rules.nodes / today if today else 1.0

    def format_gpus(gpus: float) -> str:
        return f"{round(gpus * ratio, 2):g}"

    for cohort, members in _group_by_cohort(quotas):
        total, parent = format_gpus(sum(quota.gpus for quota in members)), cohort or _DEFAULT_KAI_PARENT_QUEUE
        yield fill_template("queues/kai.yaml", {
            "NAME": parent, "PARENT": "", "QUOTA": total, "LIMIT": "-1" if cohort else total,
        })  # fmt: skip
        for quota in members:
            with_borrowed = format_gpus(quota.gpus + (quota.borrow or 0.0))
            yield fill_template("queues/kai.yaml", {
                "NAME": quota.tenant, "PARENT": f"  parentQueue: {parent}\n", "QUOTA": format_gpus(quota.gpus),
                "LIMIT": "-1" if cohort and quota.borrow is None else with_borrowed,
            })  # fmt: skip


def _volcano_documents(bundle: FleetBundle, quotas: Sequence[TenantQuota]) -> Iterator[str]:
    """Yield the Volcano queues: one for each cohort, with the queues of its teams below."""
    shares, resource_names = divide_instances(bundle, quotas), _list_resources(bundle)

    def to_yaml_lines(amounts: dict[str, int]) -> str:
        return "\n".join(f"    {json.dumps(name)}: {json.dumps(str(count))}" for name, count in amounts.items())

    def deserved_instances(quota: TenantQuota, *, with_borrowed: bool = False) -> dict[str, int]:
        instances = dict.fromkeys(resource_names, 0)
        for (_, name, tenant), allotment in shares.items():
            if tenant == quota.tenant:
                instances[name] += allotment.nominal + (allotment.borrow or 0) * with_borrowed
        return instances

    for cohort, members in _group_by_cohort(quotas):
        if cohort:
            total = {name: sum(deserved_instances(quota)[name] for quota in members) for name in resource_names}
            yield fill_template("queues/volcano.yaml", {
                "NAME": cohort, "PARENT": "", "DESERVED": to_yaml_lines(total), "CAPABILITY": "",
            })  # fmt: skip
        for quota in members:
            deserved = to_yaml_lines(deserved_instances(quota))
            capability = to_yaml_lines(deserved_instances(quota, with_borrowed=True))
            is_bounded = not cohort or quota.borrow is not None
            yield fill_template("queues/volcano.yaml", {
                "NAME": quota.tenant, "PARENT": f"  parent: {cohort}\n" if cohort else "", "DESERVED": deserved,
                "CAPABILITY": f"  capability:\n{capability}\n" if is_bounded else "",
            })  # fmt: skip


def _group_by_cohort(quotas: Sequence[TenantQuota]) -> Iterator[tuple[str | None, list[TenantQuota]]]:
    """Group quotas by cohort; teams without a cohort come last."""
    names = sorted({quota.cohort for quota in quotas if quota.cohort})
    for cohort in [*names, None]:
        members = [quota for quota in quotas if quota.cohort == cohort]
        if members:
            yield cohort, members
