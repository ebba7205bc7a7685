"""The compiled loop against a slow program that says the rules again in plain Python."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from gpuplanner.lab.placement import (
    POLICIES,
    REASONS,
    Arrivals,
    PlacementPolicy,
    allocate,
    fragmentation,
    target_workload,
    verify_allocation,
)

CROSSED = [
    PlacementPolicy("best-fit", "steepest"),
    PlacementPolicy("fgd", "tightest"),
    PlacementPolicy("random", "loosest"),
]


class SlowCluster:
    """Nodes as dictionaries; every score is computed anew for every arrival."""

    def __init__(self, pods, nodes, policy, arrivals, target, seed):
        self.pods, self.policy, self.target = pods, policy, target
        self.nodes = [
            {
                "id": index,
                "cpu": int(nodes.cpu_milli[index]),
                "memory": int(nodes.memory_mib[index]),
                "left": [1000] * int(nodes.gpus[index]),
                "model": nodes.models[index],
            }
            for index in arrivals.nodes
        ]
        self.empty = [dict(node, left=list(node["left"])) for node in self.nodes]
        self.cpu_scale = max(int(nodes.cpu_milli.max()), 1)
        self.gpu_scale = max(int(nodes.gpus.max()) * 1000, 1)
        self.draws = np.random.default_rng(seed).random((len(arrivals.pods), 2))
        self.trail = [self.arrive(number, int(pod)) for number, pod in enumerate(arrivals.pods)]

    def request(self, pod):
        fields = (self.pods.cpu_milli, self.pods.memory_mib, self.pods.gpus, self.pods.gpu_milli)
        return (*(int(field[pod]) for field in fields), set(self.pods.models[pod].split("|")) - {""})

    def wasted(self, node):
        total = Fraction(0)
        for kind, share in enumerate(self.target.counts.tolist()):
            milli, gpus = int(self.target.gpu_milli[kind]), int(self.target.gpus[kind])
            wanted = set(self.target.models[kind].split("|")) - {""}
            enough = sum(left >= milli for left in node["left"]) >= gpus
            fits = node["cpu"] >= self.target.cpu_milli[kind] and (not wanted or node["model"] in wanted)
            if gpus and enough and fits:
                total += share * sum(left for left in node["left"] if left < milli)
            else:
                total += share * sum(node["left"])
        return total / int(self.target.counts.sum()) / 1000

    def gain(self, node, pod, devices):
        cpu, _, _, milli, _ = self.request(pod)
        left = [have - milli * (gpu in devices) for gpu, have in enumerate(node["left"])]
        drop = self.wasted(node) - self.wasted(dict(node, cpu=node["cpu"] - cpu, left=left))
        return self.cut(1 / (1 + math.exp(-float(drop))))

    def cut(self, value):
        return math.floor(value * self.policy.steps) if self.policy.steps else value

    def devices(self, node, pod, draw):
        _, _, gpus, milli, _ = self.request(pod)
        fitting = [gpu for gpu, left in enumerate(node["left"]) if left >= milli]
        if gpus != 1 or milli == 1000:
            return fitting[:gpus]
        left = node["left"]
        chosen = {
            "first": lambda: fitting[0],
            "tightest": lambda: min(fitting, key=lambda gpu: left[gpu]),
            "loosest": lambda: max(fitting, key=lambda gpu: left[gpu]),
            "random": lambda: fitting[int(draw * len(fitting))],
            "steepest": lambda: max(fitting, key=lambda gpu: self.gain(node, pod, [gpu])),
        }
        return [chosen[self.policy.gpu]()]

    def score(self, node, pod):
        cpu, _, gpus, milli, _ = self.request(pod)
        idle, left = sum(node["left"]), node["left"]
        rest = (node["cpu"] - cpu) / self.cpu_scale * 0.5 + (idle - gpus * milli) / self.gpu_scale * 0.5
        rule = self.policy.node
        if rule == "best-fit":
            return self.cut(1.0 - rest)
        if rule == "worst-fit":
            return self.cut(rest)
        if rule == "dot-product":
            product = node["cpu"] / self.cpu_scale * (cpu / self.cpu_scale)
            return self.cut(1.0 - (product + idle / self.gpu_scale * (gpus * milli / self.gpu_scale)) / 2)
        if rule == "gpu-packing" and gpus:
            used = [have for have in left if milli <= have < 1000]
            if all(have == 1000 for have in left):
                return max(33 - len(left), len(left))
            return max(100 - min(used) // 10 // 10, 50) if used else max(50 - gpus, 33)
        if rule == "fgd":
            return self.gain(node, pod, self.devices(node, pod, 0.0))
        return 0

    def sieve(self, nodes, pod):
        """Nodes left after each demand, in the order of the reasons."""
        cpu, memory, gpus, milli, wanted = self.request(pod)
        yield (nodes := [node for node in nodes if not wanted or node["model"] in wanted])
        yield (nodes := [node for node in nodes if sum(left >= milli for left in node["left"]) >= gpus])
        yield (nodes := [node for node in nodes if node["cpu"] >= cpu])
        yield [node for node in nodes if node["memory"] >= memory]

    def reason(self, pod):
        accepting, holding, roomy, _ = self.sieve(self.nodes, pod)
        _, _, gpus, milli, _ = self.request(pod)
        if not accepting:
            return "no node has the model"
        if not list(self.sieve(self.empty, pod))[-1]:
            return "larger than any node"
        if sum(sum(node["left"]) for node in accepting) < gpus * milli:
            return "too little GPU left in all"
        if not holding:
            return "GPU left, but fragmented"
        return "no memory beside GPU and CPU" if roomy else "no CPU beside the GPU"

    def arrive(self, number, pod):
        cpu, memory, _, milli, _ = self.request(pod)
        fitting = list(self.sieve(self.nodes, pod))[-1]
        node, devices, reason = None, [], "placed"
        if not fitting:
            reason = self.reason(pod)
        elif self.policy.node == "random":
            node = fitting[int(self.draws[number, 0] * len(fitting))]
        else:
            node = max(fitting, key=lambda one: self.score(one, pod))
        if node is not None:
            devices = self.devices(node, pod, self.draws[number, 1])
            node["cpu"] -= cpu
            node["memory"] -= memory
            for gpu in devices:
                node["left"][gpu] -= milli
        wasted = float(sum(map(self.wasted, self.nodes)))
        return (-1 if node is None else node["id"], sum(1 << gpu for gpu in devices), reason, wasted)


@pytest.mark.parametrize(
    "policy", [*POLICIES.values(), *CROSSED], ids=lambda policy: f"{policy.node}, {policy.gpu}"
)
@pytest.mark.parametrize("steps", [100, None])
def test_same_placements_reasons_and_fragments(cluster, policy, steps):
    policy = PlacementPolicy(policy.node, policy.gpu, steps)
    for seed in range(16):
        pods, nodes = cluster(seed)
        rng = np.random.default_rng(seed)
        arrivals = Arrivals(rng.integers(0, len(pods.names), 60), rng.permutation(len(nodes.names)))
        target = target_workload(pods, 0.8)
        found = allocate(pods, nodes, policy, arrivals=arrivals, target=target, seed=seed)
        slow = SlowCluster(pods, nodes, policy, arrivals, target, seed)
        node, devices, reason, wasted = zip(*slow.trail, strict=True)
        assert found.node.tolist() == list(node)
        assert found.devices.tolist() == list(devices)
        assert [REASONS[code] for code in found.reason] == list(reason)
        assert found.fragmented_gpus == pytest.approx(list(wasted), abs=1e-12)
        assert verify_allocation(found) == []


def test_every_reason_occurs_in_what_the_oracle_was_asked(cluster):
    reasons = set()
    for seed in range(30):
        pods, nodes = cluster(seed)
        reasons |= set(allocate(pods, nodes, "first-fit").reason.tolist())
    assert reasons == set(range(len(REASONS)))


def test_fragmentation_of_what_is_left_is_that_of_the_run(cluster):
    for seed in range(30):
        pods, nodes = cluster(seed)
        found = allocate(pods, nodes, "best-fit")
        cpu, left = nodes.cpu_milli.copy(), np.where(np.arange(4) < nodes.gpus[:, None], 1000, 0)
        for pod, (node, devices) in enumerate(zip(found.node, found.devices, strict=True)):
            if node >= 0:
                cpu[node] -= pods.cpu_milli[pod]
                left[node] -= pods.gpu_milli[pod] * (devices >> np.arange(4) & 1)
        lost = fragmentation(nodes, target_workload(pods), free_cpu_milli=cpu, free_gpu_milli=left)
        assert lost.sum() == pytest.approx(found.fragmented_gpus[-1])
        assert (lost <= left.sum(axis=1) / 1000 + 1e-12).all()
        assert (lost >= 0).all()
