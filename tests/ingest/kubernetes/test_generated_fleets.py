"""Silent errors: GPU-hours of generated fleets are those of the generator's own table, or a warning says of what not.

The table knows clouds, device plugins and their documents, and nothing of the readers. Hours are fractions, added up
before anything is written as a dump.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gpuplanner.ingest.quality_report import list_warnings
from gpuplanner.ingest.source_registry import read

Json = dict[str, Any]
MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
TYPE = "node.kubernetes.io/instance-type"
GPU, AMD = "nvidia.com/gpu", "amd.com/gpu"
DRA = {"apiVersion": "resource.k8s.io/v1"}
GKE, KARPENTER = "cloud.google.com/gke-", "karpenter.k8s.aws/instance-gpu-"


@dataclass(frozen=True)
class Machine:
    """An instance type: what its cloud labels it with, its GPUs, and what gpu-feature-discovery calls them."""

    provider: str
    labels: Json
    product: str
    gpus: int
    memory_mib: int
    instances: dict[str, tuple[int, Fraction]] = field(default_factory=dict)
    """MIG profile → instances of one GPU, and its compute slices of it."""
    modes: dict[str, int] = field(default_factory=dict)
    """Partition mode of AMD → devices of one GPU."""


SEVENTH = Fraction(1, 7)
A100_40 = {
    "1g.5gb": (7, SEVENTH),
    "2g.10gb": (3, 2 * SEVENTH),
    "3g.20gb": (2, 3 * SEVENTH),
    "7g.40gb": (1, Fraction(1)),
}
A100_80 = {"1g.10gb": (7, SEVENTH), "2g.20gb": (3, 2 * SEVENTH), "3g.40gb": (2, 3 * SEVENTH)}
MI300X = {"cpx_nps4": 8, "qpx_nps1": 4, "dpx_nps2": 2, "spx_nps1": 1}
H100, A100S = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-40GB"
A10G, T4, L4 = "NVIDIA-A10G", "Tesla-T4", "NVIDIA-L4"

MACHINES = (
    Machine("aws", {TYPE: "p4d.24xlarge", f"{KARPENTER}name": "a100", f"{KARPENTER}count": "8",
                    f"{KARPENTER}memory": "40960"}, A100S, 8, 40960, A100_40),
    Machine("aws", {TYPE: "p5.48xlarge"}, H100, 8, 81559, A100_80),
    Machine("aws", {TYPE: "g5.12xlarge"}, A10G, 4, 23028),
    Machine("aws", {TYPE: "g4dn.xlarge"}, T4, 1, 15360),
    Machine("gcp", {TYPE: "a2-highgpu-4g", f"{GKE}accelerator": "nvidia-tesla-a100",
                    f"{GKE}accelerator-count": "4"}, A100S, 4, 40960, A100_40),
    Machine("gcp", {TYPE: "g2-standard-24", f"{GKE}accelerator": "nvidia-l4"}, L4, 2, 23034),
    Machine("azure", {TYPE: "Standard_ND96isr_H100_v5", "accelerator": "nvidia"}, H100, 8, 81559, A100_80),
    Machine("azure", {TYPE: "Standard_NC24ads_A100_v4", "accelerator": "nvidia"}, "NVIDIA-A100-80GB-PCIe", 1, 81920,
            A100_80),
    Machine("azure", {TYPE: "Standard_ND96isr_MI300X_v5"}, "AMD_Instinct_MI300X_OAM", 8, 196592, {}, MI300X),
    Machine("oci", {TYPE: "BM.GPU4.8"}, A100S, 8, 40960, A100_40),
    Machine("oci", {TYPE: "BM.GPU.H100.8"}, H100, 8, 81559, A100_80),
    Machine("oci", {TYPE: "BM.GPU.MI300X.8"}, "AMD_Instinct_MI300X_OAM", 8, 196592, {}, MI300X),
    Machine("coreweave", {"gpu.nvidia.com/class": "H100_NVLINK_80GB", "gpu.nvidia.com/count": "8",
                          "gpu.nvidia.com/vram": "81"}, H100, 8, 81559, A100_80),
    Machine("coreweave", {"gpu.nvidia.com/class": "A40", "gpu.nvidia.com/count": "8", "gpu.nvidia.com/vram": "48"},
            "NVIDIA-A40", 8, 46068),
    Machine("lambda", {TYPE: "gpu_8x_a100_80gb_sxm4"}, "NVIDIA-A100-SXM4-80GB", 8, 81920, A100_80),
    Machine("lambda", {TYPE: "gpu_1x_a10"}, "NVIDIA-A10", 1, 23028),
)  # fmt: skip


@dataclass
class Offer:
    """A node as it is dumped, and what one request on it is of a GPU."""

    machine: Machine
    labels: Json
    capacity: dict[str, int]
    resource: str
    share: Fraction
    """GPUs of one unit of the resource, or of one request."""
    annotations: Json = field(default_factory=dict)
    limits: dict[str, int] | None = None
    """Limits of each pod, where they are not a number of units."""
    notes: Json = field(default_factory=dict)
    """Annotations of each pod."""
    most: int = 1
    """Units that a pod may ask for."""
    devices: tuple[str, str, list[Json]] | None = None
    """Driver and device class of DRA, and the attributes of each device; pods claim the first."""


def gfd(machine: Machine, *, suffix: str = "", count: int | None = None, replicas: int = 1) -> Json:
    """Labels of gpu-feature-discovery; AMD's labeller for the others."""
    if machine.modes:
        return {"amd.com/gpu.product-name": machine.product}
    return {
        f"{GPU}.product": machine.product + suffix,
        f"{GPU}.count": str(machine.gpus if count is None else count),
        f"{GPU}.memory": str(machine.memory_mib),
        f"{GPU}.replicas": str(replicas),
    }


def full(rng: random.Random, machine: Machine) -> Offer:
    resource = AMD if machine.modes else GPU
    labels = gfd(machine) if rng.random() < 0.5 else {}
    return Offer(machine, labels, {resource: machine.gpus}, resource, Fraction(1), most=machine.gpus)


def time_sliced(rng: random.Random, machine: Machine) -> Offer:
    """NVIDIA's device plugin: timeSlicing.resources[].replicas, renamed or not; GKE: clients for each GPU."""
    clients = rng.choice([2, 3, 4, 8, 10])
    units = machine.gpus * clients
    if machine.provider == "gcp":
        labels = {f"{GKE}gpu-sharing-strategy": "time-sharing", f"{GKE}max-shared-clients-per-gpu": str(clients)}
        return Offer(machine, labels, {GPU: units}, GPU, Fraction(1, clients))
    if rng.random() < 0.3:  # renameByDefault
        labels = gfd(machine, replicas=clients)
        return Offer(machine, labels, {GPU: 0, f"{GPU}.shared": units}, f"{GPU}.shared", Fraction(1, clients))
    labels = gfd(machine, suffix="-SHARED", replicas=clients) | {
        f"{GPU}.sharing-strategy": rng.choice(["mps", "time-slicing"])
    }
    return Offer(machine, labels, {GPU: units}, GPU, Fraction(1, clients))


def mig(rng: random.Random, machine: Machine) -> Offer:
    """Strategy single or mixed of the device plugin; GKE: a partition size for the node pool."""
    profile, (number, share) = rng.choice(list(machine.instances.items()))
    units = machine.gpus * number
    if machine.provider == "gcp":
        return Offer(machine, {f"{GKE}gpu-partition-size": profile}, {GPU: units}, GPU, share)
    if rng.random() < 0.5:
        labels = gfd(machine, suffix=f"-MIG-{profile}", count=units) | {f"{GPU}.memory": "9984"}
        return Offer(machine, labels, {GPU: units}, GPU, share, most=2)
    resource = f"nvidia.com/mig-{profile}"
    labels = gfd(machine) | {f"{resource}.count": str(units), "nvidia.com/mig.strategy": "mixed"}
    return Offer(machine, labels, {GPU: 0, resource: units}, resource, share, most=2)


def hami(rng: random.Random, machine: Machine) -> Offer:
    """HAMi: boards in an annotation, requests in percent of cores, or of memory alone."""
    key = rng.choice(["hami.io/node-nvidia-register", "4pd.io/node-nvidia-register"])
    boards = "".join(f"GPU-{n},10,{machine.memory_mib},100,NVIDIA-X,0,true:" for n in range(machine.gpus))
    limits, share, resource = rng.choice([
        ({GPU: 1, "nvidia.com/gpucores": 30, "nvidia.com/gpumem": 2000}, Fraction(3, 10), "nvidia.com/gpucores"),
        ({GPU: 1, "nvidia.com/gpumem": 4096}, Fraction(4096, machine.memory_mib), "nvidia.com/gpumem"),
        ({GPU: 1, "nvidia.com/gpumem-percentage": 25}, Fraction(1, 4), "nvidia.com/gpumem-percentage"),
    ])  # fmt: skip
    return Offer(machine, {}, {GPU: machine.gpus * 10}, resource, share, {key: boards}, limits)


def memory_units(rng: random.Random, machine: Machine) -> Offer:
    """Alibaba's gpushare: units of memory, of which the node has so many on so many GPUs."""
    each = rng.choice([15, 31, 40])
    capacity = {"aliyun.com/gpu-mem": each * machine.gpus, "aliyun.com/gpu-count": machine.gpus}
    return Offer(machine, {}, capacity, "aliyun.com/gpu-mem", Fraction(1, each), most=each)


def fraction(rng: random.Random, machine: Machine) -> Offer:
    """KAI: an annotation of the pod, and no resource."""
    tenths = rng.randint(1, 9)
    notes = {"gpu-fraction": f"0.{tenths}"}
    return Offer(machine, gfd(machine), {GPU: machine.gpus}, "gpu-fraction", Fraction(tenths, 10), {}, {}, notes)


def partitioned(rng: random.Random, machine: Machine) -> Offer:
    """AMD: a partition mode for the node, named by a label (naming single) or by the resource (mixed)."""
    mode, parts = rng.choice(list(machine.modes.items()))
    units = machine.gpus * parts
    if rng.random() < 0.5 and parts > 1:
        return Offer(machine, gfd(machine), {f"amd.com/{mode}": units}, f"amd.com/{mode}", Fraction(1, parts), most=3)
    labels = gfd(machine) | {"amd.com/gpu.compute-memory-partition": mode}
    return Offer(machine, labels, {AMD: units}, AMD, Fraction(1, parts), most=3)


def percent_of_cards(rng: random.Random, machine: Machine) -> Offer:
    """Tencent qGPU: percent of a card, of which the node has a hundred for each."""
    capacity = {"tke.cloud.tencent.com/qgpu-core": 100 * machine.gpus}
    return Offer(machine, {}, capacity, "tke.cloud.tencent.com/qgpu-core", Fraction(1, 100), most=90)


def claimed(rng: random.Random, machine: Machine) -> Offer:
    """Dynamic Resource Allocation: full GPUs, MIG instances, or partitions of AMD, which a claim names."""
    if machine.modes:
        mode, parts = rng.choice(list(machine.modes.items()))
        kind = {"type": "amdgpu", "productName": machine.product}
        if parts > 1:
            kind |= {"type": "amdgpu-partition", "partitionProfile": mode}
        cards = [kind | {"parentPciAddr": f"0000:{n:02x}:00.0"} for n in range(machine.gpus) for _ in range(parts)]
        return Offer(machine, {}, {}, "gpu.amd.com", Fraction(1, parts), devices=("gpu.amd.com", "gpu.amd.com", cards))
    full_gpu = {"type": "gpu", "productName": machine.product.replace("-", " ")}
    if not machine.instances or rng.random() < 0.5:
        boards = [full_gpu | {"uuid": f"GPU-{n}"} for n in range(machine.gpus)]
        return Offer(
            machine, {}, {}, "gpu.nvidia.com", Fraction(1), devices=("gpu.nvidia.com", "gpu.nvidia.com", boards)
        )
    profile, (number, share) = rng.choice(list(machine.instances.items()))
    cut = full_gpu | {"type": "mig", "profile": profile}
    boards = [
        cut | {"parentUUID": f"GPU-{n}", "uuid": f"MIG-{n}-{k}"} for n in range(machine.gpus) for k in range(number)
    ]
    return Offer(machine, {}, {}, "mig.nvidia.com", share, devices=("gpu.nvidia.com", "mig.nvidia.com", boards))


SHARINGS = {
    "full": full, "time_sliced": time_sliced, "mig": mig, "hami": hami, "memory_units": memory_units,
    "fraction": fraction, "partitioned": partitioned, "percent": percent_of_cards, "claimed": claimed,
}  # fmt: skip


def can(sharing: str, machine: Machine) -> bool:
    if sharing == "mig":
        return bool(machine.instances)
    return sharing == "claimed" or (not machine.modes) == (sharing != "partitioned") or sharing == "full"


DAMAGES = ("no node", "no labels", "no cloud labels", "no plugin labels", "no annotations", "other type", "stale count")


def damage(offer: Offer, how: str) -> bool:
    """Take away, or falsify, what a node says of itself; False where it is not in the dump at all."""
    cloud = dict(offer.machine.labels)
    if how == "no labels":
        cloud, offer.labels = {}, {}
    elif how == "no cloud labels":
        cloud = {}
    elif how == "no plugin labels":
        offer.labels = {}
    elif how == "no annotations":
        offer.annotations = {}
    elif how == "other type" and TYPE in cloud:
        cloud[TYPE] = "bare.metal-7"
    elif how == "stale count" and f"{GPU}.replicas" in offer.labels:
        offer.labels[f"{GPU}.replicas"] = str(int(offer.labels[f"{GPU}.replicas"]) * 2)
    offer.labels = cloud | offer.labels
    return how != "no node"


@dataclass(frozen=True)
class Group:
    """Pods of one namespace on one node: the resource, their number and GPU-hours, and what was damaged."""

    name: str
    resource: str
    pods: int
    gpu_hours: Fraction
    about: str


def fleet(seed: int, *, damaged: bool) -> tuple[Json, list[Group]]:
    """A dump of two to five nodes of any provider, and the table of what their pods held."""
    rng = random.Random(seed)
    items, groups = [], []
    for number in range(rng.randint(2, 5)):
        sharing = rng.choice(list(SHARINGS))
        machine = rng.choice([each for each in MACHINES if can(sharing, each)])
        offer = SHARINGS[sharing](rng, machine)
        how = rng.choice(DAMAGES) if damaged and rng.random() < 0.7 else ""
        name, namespace = f"node-{number}", f"team-{number}"
        if damage(offer, how):
            items += [node_object(name, offer), *slices(name, offer)]
        pods = list(pods_on(rng, name, namespace, offer))
        items += [each for objects, _ in pods for each in objects]
        held = sum((gpu_hours for _, gpu_hours in pods), Fraction(0))
        about = f"{machine.provider} {machine.product} {sharing} {how or 'as it is'}"
        number_of_pods = sum(each["kind"] == "Pod" for objects, _ in pods for each in objects)
        groups.append(Group(namespace, offer.resource, number_of_pods, held, about))
    rng.shuffle(items)
    return {"apiVersion": "v1", "kind": "List", "items": items}, groups


def node_object(name: str, offer: Offer) -> Json:
    quantities = {"cpu": "96"} | {resource: str(number) for resource, number in offer.capacity.items()}
    beat = {"type": "Ready", "status": "True", "lastHeartbeatTime": time_text(MONDAY + timedelta(days=30))}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": offer.labels, "annotations": offer.annotations},
        "status": {"capacity": quantities, "allocatable": quantities, "conditions": [beat]},
    }


def slices(node: str, offer: Offer) -> Iterator[Json]:
    """The ResourceSlice of a node whose devices are claimed."""
    if offer.devices:
        driver, _, listed = offer.devices
        devices = [
            {"name": f"d{number}", "attributes": {key: {"string": value} for key, value in one.items()}}
            for number, one in enumerate(listed)
        ]
        spec = {"driver": driver, "nodeName": node, "pool": {"name": node}, "devices": devices}
        yield DRA | {"kind": "ResourceSlice", "metadata": {"name": node}, "spec": spec}


def claim(name: str, namespace: str, node: str, devices: tuple[str, str, list[Json]]) -> Json:
    """A claim of one pod that has the first device of a node."""
    driver, device_class, _ = devices
    given = {"driver": driver, "pool": node, "device": "d0"}
    request = {"name": "gpu", "exactly": {"deviceClassName": device_class}}
    return DRA | {
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": [request]}},
        "status": {"allocation": {"devices": {"results": [given]}}},
    }


def pods_on(rng: random.Random, node: str, namespace: str, offer: Offer) -> Iterator[tuple[list[Json], Fraction]]:
    """Pods and gangs that ran on a node one after another, each with its GPU-hours."""
    for number in range(rng.randint(1, 6)):
        units = 1 if offer.limits is not None or offer.devices else rng.randint(1, offer.most)
        limits = offer.limits if offer.limits is not None else {offer.resource: units}
        fits = offer.limits is None and not offer.devices and 2 * units <= offer.capacity.get(offer.resource, 0)
        together = 2 if fits and rng.random() < 0.3 else 1
        seconds = rng.randint(60, 80_000)
        start = MONDAY + timedelta(days=number, seconds=rng.randint(0, 3600))
        objects, gpu_hours = [], Fraction(0)
        for worker in range(together):
            name, lasted = f"pod-{number}-{worker}", seconds + 7 * worker
            one = pod(name, namespace, node, start, lasted, {} if offer.devices else limits, offer.notes)
            if together > 1:
                owner = {"kind": "Job", "name": f"job-{number}", "uid": f"{namespace}-job-{number}", "controller": True}
                one["metadata"]["ownerReferences"] = [{"apiVersion": "batch/v1", **owner}]
            if offer.devices:
                one["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
                objects.append(claim(name, namespace, node, offer.devices))
            objects.append(one)
            gpu_hours += units * offer.share * Fraction(lasted, 3600)
        yield objects, gpu_hours


def pod(
    name: str, namespace: str, node: str, start: datetime, seconds: int, limits: dict[str, int], notes: Json
) -> Json:
    """A pod that ended after so many seconds."""
    ended = {"terminated": {"finishedAt": time_text(start + timedelta(seconds=seconds))}}
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": time_text(start)}
    quantities = {resource: str(value) for resource, value in limits.items()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"{namespace}-{name}",
            "creationTimestamp": time_text(start),
            "annotations": notes,
        },
        "spec": {"nodeName": node, "containers": [{"resources": {"limits": quantities}}]},
        "status": {"phase": "Succeeded", "conditions": [bound], "containerStatuses": [{"state": ended}]},
    }


def time_text(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")


def read_fleet(folder: Path, dump: Json) -> tuple[dict[str, float], list[Any]]:
    """GPU-hours by namespace, and the warnings of the first screen, where jobs in quarantine stand with theirs."""
    path = folder / "dump.json"
    path.write_text(json.dumps(dump))
    found = read("kubernetes", path)
    hours = pl.col("gpus") * (pl.col("end_time") - pl.col("start_time")).dt.total_microseconds() / 3.6e9
    by_team = dict(found.jobs.group_by("tenant").agg(hours.sum()).rows())
    return by_team, list_warnings(found.quality)


def is_right(group: Group, by_team: dict[str, float]) -> bool:
    return by_team.get(group.name, 0.0) == pytest.approx(float(group.gpu_hours), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("seed", range(60))
def test_gpu_hours_of_whole_fleets_are_those_of_the_table_without_a_warning(seed: int, tmp_path: Path):
    dump, groups = fleet(seed, damaged=False)
    by_team, warnings = read_fleet(tmp_path, dump)
    assert [group for group in groups if not is_right(group, by_team)] == []
    assert [each for each in warnings if "no submission" not in each["what"]] == []


@pytest.mark.parametrize("seed", range(100, 220))
def test_what_damaged_fleets_make_wrong_is_a_warning_that_names_resource_and_pods(seed: int, tmp_path: Path):
    dump, groups = fleet(seed, damaged=True)
    by_team, warnings = read_fleet(tmp_path, dump)
    for group in groups:
        named = [each for each in warnings if group.resource in each["what"] and each["count"] >= group.pods]
        assert is_right(group, by_team) or named, (group, by_team.get(group.name), warnings)
