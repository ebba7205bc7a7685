"""Custom resources of a pack against the published schemas of their controllers, and against the CEL rules in these."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import yaml

from gpuplanner.decision.policy_layouts import TenantQuota
from tests.report.bundle.test_pack import fixed, packed, pools, resources

pytestmark = pytest.mark.crds

QUOTAS = (
    TenantQuota("ads", 3.0, "web", 1.0, 0.5, ("ads", "ads-dev")),
    TenantQuota("bio", 2.0, "web"),
    TenantQuota("solo", 2.5),
)
Rule = Callable[[Any], bool]


def group_of(key: str) -> str:
    return key.partition("/")[0] if "/" in key else ""


# Each rule in the words of the schema, blanks made one, and what it says of an object as it is made for the first time.
RULES: dict[str, Rule] = {
    "!has(self.cohortName) && has(self.resourceGroups) ? self.resourceGroups.all(rg, rg.flavors.all(f, "
    "f.resources.all(r, !has(r.borrowingLimit)))) : true": lambda one: bool(one.get("cohortName")) or not any(
        "borrowingLimit" in resource
        for group in one.get("resourceGroups", ()) for flavor in group["flavors"] for resource in flavor["resources"]
    ),
    "self.flavors.all(x, size(x.resources) == size(self.coveredResources))": lambda one: all(
        len(flavor["resources"]) == len(one["coveredResources"]) for flavor in one["flavors"]
    ),
    "!has(self.topologyName) || self.nodeLabels.size() >= 1": lambda one: (
        "topologyName" not in one or len(one.get("nodeLabels", {})) >= 1
    ),
    "self.all(x, !has(x.key) ? x.operator == 'Exists' : true)": lambda one: all(
        "key" in each or each.get("mig-manager") == "Exists" for each in one
    ),
    "size(self.filter(i, size(self.filter(j, j == i)) > 1)) == 0": lambda one: all(
        one.count(each) == 1 for each in one
    ),
    "size(self.filter(i, i.nodeLabel == 'kubernetes.io/hostname')) == 0 || self[size(self) - 1].nodeLabel == "
    "'kubernetes.io/hostname'": lambda one: all(
        each["nodeLabel"] != "kubernetes.io/hostname" for each in one[:-1]
    ),
    "self.all(x, has(x.schedule) == has(x.duration))": lambda one: all(
        ("schedule" in each) == ("duration" in each) for each in one
    ),
    "self.all(x, !(x in ['cpu', 'memory', 'ephemeral-storage', 'pods']))": lambda one: not (
        {"cpu", "memory", "ephemeral-storage", "pods"} & one.keys()
    ),
    "self.all(x, x.operator == 'In' ? x.values.size() != 0 : true)": lambda one: all(
        each["operator"] != "In" or each["values"] for each in one
    ),
    "self.all(x, x.operator == 'NotIn' ? x.values.size() != 0 : true)": lambda one: all(
        each["operator"] != "NotIn" or each["values"] for each in one
    ),
    "self.all(x, (x.operator == 'Gt' || x.operator == 'Lt' || x.operator == 'Gte' || x.operator == 'Lte') ? "
    "(x.values.size() == 1 && int(x.values[0]) >= 0) : true)": lambda one: all(
        each["operator"] not in ("Gt", "Lt", "Gte", "Lte") for each in one
    ),
    "self.all(x, (x.operator == 'In' && has(x.minValues)) ? x.values.size() >= x.minValues : true)": lambda one: all(
        each["operator"] != "In" or len(each["values"]) >= each.get("minValues", 0) for each in one
    ),
    "self.all(x, x != \"karpenter.sh/nodepool\")": lambda one: "karpenter.sh/nodepool" not in one,
    "self.all(x, x != \"kubernetes.io/hostname\")": lambda one: "kubernetes.io/hostname" not in one,
    "self.all(x, x in [\"karpenter.sh/capacity-type\", \"karpenter.sh/nodepool\"] || !x.find(\"^([^/]+)\").endsWith("
    "\"karpenter.sh\"))": lambda one: all(map(may_be_required, one)),
    "self in [\"karpenter.sh/capacity-type\", \"karpenter.sh/nodepool\"] || !self.find(\"^([^/]+)\").endsWith("
    "\"karpenter.sh\")": lambda one: may_be_required(one),
    "self != \"karpenter.sh/nodepool\"": lambda one: one != "karpenter.sh/nodepool",
    "self != \"kubernetes.io/hostname\"": lambda one: one != "kubernetes.io/hostname",
    "self != ''": bool,
    "!has(self.replicas) || (!has(self.limits) || size(self.limits) == 0 || (size(self.limits) == 1 && 'nodes' in "
    "self.limits))": lambda one: "replicas" not in one or set(one.get("limits", ())) <= {"nodes"},
    "!has(self.replicas) || !has(self.weight)": lambda one: not {"replicas", "weight"} <= one.keys(),
    "!has(self.price) || !has(self.priceAdjustment)": lambda one: not {"price", "priceAdjustment"} <= one.keys(),
    "!has(self.podTemplateRef) || has(self.replicas) || has(self.limits)": lambda one: (
        "podTemplateRef" not in one or bool({"replicas", "limits"} & one.keys())
    ),
    "!(has(self.podTemplateRef) && has(self.scalableRef))": lambda one: (
        not {"podTemplateRef", "scalableRef"} <= one.keys()
    ),
    "self.all(x, has(x.tolerationSeconds) ? x.effect == 'NoExecute' : true)": lambda one: all(
        "tolerationSeconds" not in each or each["effect"] == "NoExecute" for each in one
    ),
    "self.all(x, !has(x.operator) || x.operator in ['Equal', 'Exists'])": lambda one: all(
        each.get("operator", "Equal") in ("Equal", "Exists") for each in one
    ),
    "self.all(x, has(x.operator) && x.operator == 'Exists' ? !has(x.value) : true)": lambda one: all(
        each.get("mig-manager") != "Exists" or "value" not in each for each in one
    ),
    "self.all(x, !has(x.effect) || x.effect in ['NoSchedule', 'PreferNoSchedule', 'NoExecute'])": lambda one: all(
        each.get("effect", "NoSchedule") in ("NoSchedule", "PreferNoSchedule", "NoExecute") for each in one
    ),
}  # fmt: skip


def may_be_required(key: str) -> bool:
    """Whether Karpenter lets others name a label: of its own only two."""
    own = group_of(key).endswith("karpenter.sh")
    return not own or key in ("karpenter.sh/capacity-type", "karpenter.sh/nodepool")


def faults(schema: dict[str, Any], one: Any, path: str) -> Iterator[str]:
    """Rules that an object breaks, or that nobody here knows, wherever the schema has some for what stands there."""
    for each in schema.get("x-kubernetes-validations", ()):
        rule = re.sub(r"\s+", " ", each["rule"]).strip()
        if "oldSelf" in rule:
            continue  # of changes alone
        if rule not in RULES:
            yield f"{path}: unknown rule {rule}"
        elif not RULES[rule](one):
            yield f"{path}: {each.get('message', rule)}"
    if isinstance(one, dict):
        for key, value in one.items():
            inner = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            if isinstance(inner, dict):
                yield from faults(inner, value, f"{path}.{key}")
    if isinstance(one, list):
        for number, value in enumerate(one):
            yield from faults(schema.get("items", {}), value, f"{path}[{number}]")


def strangers(schema: dict[str, Any], one: Any, path: str) -> Iterator[str]:
    """Keys that the schema does not have: a server would drop them without a word."""
    if isinstance(one, dict) and "properties" in schema:
        for key, value in one.items():
            if key not in schema["properties"]:
                yield f"{path}.{key}"
            else:
                yield from strangers(schema["properties"][key], value, f"{path}.{key}")
    if isinstance(one, list):
        for number, value in enumerate(one):
            yield from strangers(schema.get("items", {}), value, f"{path}[{number}]")


@pytest.fixture(scope="module")
def schemas(public_data):
    found = {}
    for file in sorted((public_data / "crds").glob("*.yaml")):
        for one in filter(None, yaml.safe_load_all(file.read_text())):
            for version in one["spec"]["versions"]:
                kind = (f"{one['spec']['group']}/{version['name']}", one["spec"]["names"]["kind"])
                found[kind] = version["schema"]["openAPIV3Schema"]
    return found


def held(schemas, one: dict[str, Any]) -> list[str]:
    """Everything that is wrong with an object."""
    schema = schemas[one["apiVersion"], one["kind"]]
    known = dict(schema["properties"]) | {"metadata": {}}
    whole = schema | {"properties": known}
    jsonschema.validate(one, whole)
    return [*faults(whole, one, one["kind"]), *strangers(whole, one, one["kind"])]


@pytest.mark.parametrize("rules", [fixed("mig-manager"), pools("autoscaler"), pools("mig-manager")])
def test_custom_resources_are_what_their_controllers_take(rules, schemas):
    checked = set()
    for one in resources(packed(replace(rules, quotas=QUOTAS))):
        assert len(one["metadata"]["name"]) <= 63
        if (one["apiVersion"], one["kind"]) in schemas:
            assert held(schemas, one) == []
            checked.add((group_of(one["apiVersion"]), one["kind"]))
    queues = {("kueue.x-k8s.io", kind) for kind in ("ResourceFlavor", "ClusterQueue", "LocalQueue")}
    queues |= {("scheduling.run.ai", "Queue"), ("scheduling.volcano.sh", "Queue")}
    own = {("kueue.x-k8s.io", "Topology")}
    if rules.powers_nodes_down:
        own = {
            ("karpenter.sh", "NodePool"),
            ("karpenter.sh", "NodeOverlay"),
            ("autoscaling.x-k8s.io", "CapacityBuffer"),
        }
    assert checked == queues | own


def test_an_object_that_breaks_a_rule_is_found(schemas):
    """The negative control: a limit on borrowing without a cohort, a flavor that lacks a resource, a key of our own."""
    pack = packed(replace(fixed("mig-manager"), quotas=QUOTAS))
    [queue] = [one for one in resources(pack) if one["kind"] == "ClusterQueue" and one["metadata"]["name"] == "ads"]
    without = {**queue, "spec": {key: value for key, value in queue["spec"].items() if key != "cohortName"}}
    assert any("borrowingLimit" in fault for fault in held(schemas, without))
    [group] = queue["spec"]["resourceGroups"]
    group["flavors"][0]["resources"].pop()
    queue["spec"]["quota"] = 1
    assert len(held(schemas, queue)) == 2
