"""Compiled: whether a node can hold a pod, which GPUs it gives, and how much a policy likes it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gpuplanner.jit import part
from gpuplanner.lab.placement.fragments import Free, TargetKinds, node_fragment
from gpuplanner.lab.placement.pods import MILLI
from gpuplanner.lab.placement.policies import GPU_RULES, NODE_RULES, PlacementPolicy

_BEST_FIT = NODE_RULES.index("best-fit")
_WORST_FIT = NODE_RULES.index("worst-fit")
_DOT_PRODUCT = NODE_RULES.index("dot-product")
_GPU_PACKING = NODE_RULES.index("gpu-packing")
_FGD = NODE_RULES.index("fgd")
_TIGHTEST = GPU_RULES.index("tightest")
_LOOSEST = GPU_RULES.index("loosest")
_RANDOM_GPU = GPU_RULES.index("random")
_STEEPEST = GPU_RULES.index("steepest")


class ScoreRules(NamedTuple):
    """A policy, as compiled functions take it."""

    node: int
    gpu: int
    steps: int
    """0: scores are compared exactly."""
    cpu_scale: int
    gpu_scale: int
    """CPU and GPU thousandths of the largest node."""
    weight: int
    """Pods of the target workload, times thousandths of a GPU."""


class PodRequest(NamedTuple):
    """One pod, as compiled functions take it."""

    cpu: Any
    memory: Any
    gpus: Any
    milli: Any


def as_rules(policy: PlacementPolicy, *, cpu_scale: int, gpu_scale: int, weight: int) -> ScoreRules:
    """A policy for nodes of these sizes."""
    rules = NODE_RULES.index(policy.node), GPU_RULES.index(policy.gpu), policy.steps or 0
    return ScoreRules(*rules, max(cpu_scale, 1), max(gpu_scale, 1), weight)


@part
def holds(free: Free, request: PodRequest) -> bool:
    """Whether enough GPUs of a node have the share free."""
    holding = 0
    for gpu in range(free.gpus):
        if free.left[gpu] >= request.milli:
            holding += 1
    return bool(holding >= request.gpus)


@part
def take(free: Free, devices: int, milli: int) -> None:
    """Take a share of each of some GPUs, given as bits; give it back with a negative share."""
    for gpu in range(free.gpus):
        if devices >> gpu & 1:
            free.left[gpu] -= milli


@part
def choose(rules: ScoreRules, request: PodRequest, draw: float, free: Free, target: TargetKinds) -> int:
    """GPUs that a pod gets on a node that holds it, as bits; of equals the first."""
    if request.gpus != 1 or request.milli == MILLI:
        return _first_idle(free, request.gpus)
    if rules.gpu == _RANDOM_GPU:
        return _random(free, request.milli, draw)
    chosen = -1
    best = 0.0
    for gpu in range(free.gpus):
        if free.left[gpu] < request.milli:
            continue
        value = 0.0
        if rules.gpu == _TIGHTEST:
            value = float(-free.left[gpu])
        elif rules.gpu == _LOOSEST:
            value = float(free.left[gpu])
        elif rules.gpu == _STEEPEST:
            value = _descent(rules, request, 1 << gpu, free, target)
        if chosen < 0 or value > best:
            chosen = gpu
            best = value
    return 1 << chosen


@part
def _first_idle(free: Free, wanted: int) -> int:
    devices = 0
    for gpu in range(free.gpus):
        if wanted > 0 and free.left[gpu] == MILLI:
            devices |= 1 << gpu
            wanted -= 1
    return devices


@part
def _random(free: Free, milli: int, draw: float) -> int:
    fitting = 0
    for gpu in range(free.gpus):
        if free.left[gpu] >= milli:
            fitting += 1
    skip = int(draw * fitting)
    for gpu in range(free.gpus):
        if free.left[gpu] >= milli:
            if skip == 0:
                return 1 << gpu
            skip -= 1
    return 0


@part
def score(rules: ScoreRules, request: PodRequest, free: Free, target: TargetKinds) -> float:
    """How much a policy likes a node that holds the pod, at least 0; the rules are in ``PlacementPolicy``."""
    idle = 0
    for gpu in range(free.gpus):
        idle += free.left[gpu]
    wanted = request.gpus * request.milli
    if rules.node == _BEST_FIT or rules.node == _WORST_FIT:
        rest = (free.cpu - request.cpu) / rules.cpu_scale * 0.5
        rest += (idle - wanted) / rules.gpu_scale * 0.5
        return _cut(rules, rest if rules.node == _WORST_FIT else 1.0 - rest)
    if rules.node == _DOT_PRODUCT:
        product = free.cpu / rules.cpu_scale * (request.cpu / rules.cpu_scale)
        product += idle / rules.gpu_scale * (wanted / rules.gpu_scale)
        return _cut(rules, 1.0 - product / 2)
    if rules.node == _GPU_PACKING:
        return float(_packing_points(request, free))
    if rules.node == _FGD:
        return _descent(rules, request, choose(rules, request, 0.0, free, target), free, target)
    return 0.0


@part
def _descent(rules: ScoreRules, request: PodRequest, devices: int, free: Free, target: TargetKinds) -> float:
    """Decrease of fragmentation [GPUs], on a logistic scale from 0 to 1."""
    before = node_fragment(free, target)
    take(free, devices, request.milli)
    rest = Free(free.cpu - request.cpu, free.memory, free.left, free.gpus, free.model)
    after = node_fragment(rest, target)
    take(free, devices, -request.milli)
    return _cut(rules, 1.0 / (1.0 + math.exp((after - before) / rules.weight)))


@part
def _cut(rules: ScoreRules, value: float) -> float:
    return math.floor(value * rules.steps) if rules.steps else value


@part
def _packing_points(request: PodRequest, free: Free) -> int:
    """GPU packing: up to 100 on a GPU in use, 50 on idle GPUs of a node in use, 33 on an idle node."""
    if request.gpus == 0:
        return 0
    idle = 0
    tightest = MILLI
    for gpu in range(free.gpus):
        if free.left[gpu] == MILLI:
            idle += 1
        elif free.left[gpu] >= request.milli:
            tightest = min(tightest, free.left[gpu])
    if idle == free.gpus:
        return max(33 - idle, idle)
    if tightest == MILLI:
        return int(max(50 - request.gpus, 33))
    return int(max(100 - tightest * 100 // MILLI // 10, 50))
