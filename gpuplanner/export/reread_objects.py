"""Check objects for Kubernetes, node groups and values of charts: what they offer or ask for can be on the board."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from gpuplanner.errors import GeometryError
from gpuplanner.export.reread_slurm import fit_on
from gpuplanner.hardware import GpuModel
from gpuplanner.schemas import WHOLE_GPU

_MIG = re.compile(r"nvidia\.com/mig-([A-Za-z0-9.+-]+)")
_PROFILE = re.compile(r"\.profile == '([^']*)'")
_OFFERS = "/resources/"
KINDS = (
    "CapacityBuffer", "ClusterQueue", "Deployment", "DeviceClass", "LocalQueue", "Namespace", "NodeOverlay", "NodePool",
    "PodTemplate", "PriorityClass", "Queue", "ResourceClaimTemplate", "ResourceFlavor", "Topology",
)  # fmt: skip
"""Kinds that are written beside ConfigMaps."""
VALUES = ("extraArgs", "featureGates")
"""Keys by which values of the charts of Cluster Autoscaler and of the DRA driver are known."""
Found = tuple[list[str], list[str]]


def check_objects(objects: Sequence[object], board: GpuModel, gpus_per_node: int) -> Found:
    """Problems and findings of the objects of one file, which may name each other."""
    problems: list[str] = []
    findings: list[str] = []
    by_kind: dict[str, dict[str, Mapping[str, object]]] = defaultdict(dict)
    for number, one in enumerate(objects, start=1):
        kind, name = _kind_and_name(one)
        if kind not in KINDS or not name or not isinstance(one, dict):
            problems.append(f"object {number}: {kind!a} is none of {', '.join(KINDS)}, or has no name")
            continue
        if name in by_kind[kind] and kind != "LocalQueue":
            problems.append(f"{kind} {name}: stands there twice")
        by_kind[kind][name] = one
        problems += [f"{kind} {name}: {fault}" for fault in _strangers(one, board)]
        if kind == "NodeOverlay":
            faults, found = fit_on(board, _counts(_at(one, "spec", "capacity"), board), gpus_per_node)
            problems += [f"{kind} {name}: {fault}" for fault in faults]
            findings += [f"{kind} {name}: {what}" for what in found]
    problems += [*_pools(by_kind), *_kueue(by_kind), *_queues(by_kind["Queue"])]
    told = Counter({kind: len(found) for kind, found in by_kind.items() if found})
    return problems, [*findings, ", ".join(f"{count} {kind}" for kind, count in sorted(told.items()))]


def check_groups(text: str, board: GpuModel, gpus_per_node: int) -> Found:
    """Problems and findings of node groups: what each tells of its nodes in the words of AWS fits on one."""
    try:
        groups = json.loads(text)
        offers = {
            name: {
                key.partition(_OFFERS)[2]: count for key, count in group["aws_tags"].items() if _OFFERS in key
            }
            for name, group in groups.items()
        }
        bounds = {name: (int(group["min"]), int(group["max"])) for name, group in groups.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"no node groups: {type(error).__name__} {error}"], []
    problems = [
        f"{name}: min {low}, max {high}" for name, (low, high) in bounds.items() if not 0 <= low <= high
    ]
    findings = []
    for name, one in offers.items():
        problems += [f"{name}: {fault}" for fault in _strangers(one, board)]
        faults, found = fit_on(board, _counts(one, board), gpus_per_node)
        problems += [f"{name}: {fault}" for fault in faults]
        findings += [f"{name}: {what}" for what in found]
    return problems, findings


def _kind_and_name(one: object) -> tuple[str, str]:
    if not isinstance(one, dict):
        return "", ""
    return str(one.get("kind", "")), str(_at(one, "metadata", "name") or "")


def _at(one: object, *keys: str) -> object:
    for key in keys:
        one = one.get(key) if isinstance(one, dict) else None
    return one


def _strangers(one: object, board: GpuModel) -> Iterator[str]:
    """Profiles that something names, and that the board does not have."""
    text = json.dumps(one)
    for name in sorted({*_MIG.findall(text), *_PROFILE.findall(text)}):
        try:
            board.profile(re.sub(r"\.(me(?:\.all)?|gfx)$", r"+\1", name))
        except GeometryError:
            yield f"{board.name} has no {name[:40]!a}"


def _counts(offers: object, board: GpuModel) -> dict[str, int]:
    """Instances and whole GPUs by profile, of those that the board has."""
    found: dict[str, int] = {}
    for name, count in offers.items() if isinstance(offers, dict) else ():
        profile = WHOLE_GPU if name == "nvidia.com/gpu" else name.partition("mig-")[2]
        if str(count).isdecimal() and int(count) and not list(_strangers({name: count}, board)):
            found[profile if profile == WHOLE_GPU else board.profile(profile.replace(".me", "+me")).name] = (
                int(count)
            )
    return found


def _pools(by_kind: Mapping[str, Mapping[str, object]]) -> Iterator[str]:
    """Each pool must say what its nodes offer before there is one."""
    for name in sorted(set(by_kind.get("NodePool", ())) ^ set(by_kind.get("NodeOverlay", ()))):
        yield f"NodePool and NodeOverlay {name}: one of them is missing"


def _kueue(by_kind: Mapping[str, Mapping[str, object]]) -> Iterator[str]:
    """Flavors must be there, and offer what is covered."""
    for name, queue in by_kind.get("ClusterQueue", {}).items():
        for group in _list(_at(queue, "spec", "resourceGroups")):
            covered = _list(_at(group, "coveredResources"))
            for flavor in _list(_at(group, "flavors")):
                if _at(flavor, "name") not in by_kind.get("ResourceFlavor", {}):
                    yield f"ClusterQueue {name}: there is no flavor {_at(flavor, 'name')!a}"
                if [_at(one, "name") for one in _list(_at(flavor, "resources"))] != covered:
                    yield f"ClusterQueue {name}: {_at(flavor, 'name')!a} has other resources than are covered"


def _queues(queues: Mapping[str, object]) -> Iterator[str]:
    """Queues of KAI and Volcano: parents are there, and no child deserves more than it."""
    below: dict[str, Counter[str]] = defaultdict(Counter)
    for name, queue in queues.items():
        parent = _at(queue, "spec", "parent") or _at(queue, "spec", "parentQueue")
        if parent is not None and parent not in queues:
            yield f"Queue {name}: there is no queue {parent!a} above it"
        deserved = _amounts(_at(queue, "spec", "deserved"))
        below[str(parent)].update(deserved)
        most = _amounts(_at(queue, "spec", "capability"))
        yield from (
            f"Queue {name}: deserves {count} {what}, more than it may have"
            for what, count in deserved.items() if most and count > most.get(what, 0)
        )  # fmt: skip
        quota, limit = (_at(queue, "spec", "resources", "gpu", key) for key in ("quota", "limit"))
        if isinstance(quota, int | float) and isinstance(limit, int | float) and -1 != limit < quota:
            yield f"Queue {name}: its limit {limit} is below its quota {quota}"
    for parent, sums in below.items():
        if parent in queues:
            own = _amounts(_at(queues[parent], "spec", "deserved"))
            yield from (f"Queue {parent}: deserves less {what} than those below it" for what, count in sums.items()
                        if count > own.get(what, 0))  # fmt: skip


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _amounts(value: object) -> Counter[str]:
    known = value.items() if isinstance(value, dict) else ()
    return Counter({name: int(count) for name, count in known if str(count).isdecimal()})
