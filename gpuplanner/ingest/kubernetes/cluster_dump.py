"""A dump of Kubernetes objects sorted by kind, with Kueue workloads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import QueueQuotas
from gpuplanner.ingest.delimited_rows import refuse
from gpuplanner.ingest.kubernetes.api_objects import (
    Object,
    asked_of,
    condition,
    count,
    gpu_resource,
    kind_of,
    name_of,
    part,
    parts,
    quantity,
    read_objects,
    text,
    unread_kind,
)
from gpuplanner.ingest.kubernetes.node_gpus import model_of_labels, profile_of_labels
from gpuplanner.ingest.kubernetes.node_inventory import (
    ClaimedDevice,
    DeviceClaim,
    DeviceClass,
    Node,
    read_claim,
    read_class,
    read_node,
    read_slice,
)
from gpuplanner.ingest.kubernetes.pod_requests import (
    Holding,
    Owner,
    PodPlace,
    Thing,
    asks_for_parts,
    holds_for_others,
    identity,
    owner_of,
    parent_of,
    pod_gpus,
    queue_rows,
    read_job,
    read_pod,
    share_words,
)
from gpuplanner.ingest.text_files import TextFile

FINISHED = {"Succeeded": "COMPLETED", "Failed": "FAILED"}
"""Reason of the condition Finished → state; older versions give another reason for both."""

EVICTED_NOW = "PREEMPTED"
"""State of a workload whose admission ended by an eviction after which it may come back."""

EVICTED = {"Deactivated": "CANCELLED", "MaximumExecutionTimeExceeded": "TIMEOUT"}
"""End of a reason of the condition Evicted → state, where the workload does not come back."""


@dataclass(frozen=True)
class KueueWorkload(Thing):
    """What a Workload tells.

    - ``owners``: Uids of the objects that it stands for: one job, or the pods of a group.
    - ``queue``: ClusterQueue that admitted it; ``local_queue`` is the LocalQueue that it was submitted to.
    - ``state``: Ours; None if it finished and its job must tell how.
    - ``flavors``: ResourceFlavors of its GPUs.
    - ``evictions``: How often it was sent back to the queue.
    """

    owners: tuple[str, ...]
    queue: str | None
    state: str | None
    flavors: frozenset[str]
    evictions: int


def read_workload(workload: Object, place: PodPlace) -> KueueWorkload:
    """Read an object of kind Workload.

    References
    ----------
    kubernetes-sigs/kueue, apis/kueue/v1beta1/workload_types.go.
    """
    about, spec, status = (part(workload, name) for name in ("metadata", "spec", "status"))
    known = identity(workload, place) | {"local_queue": text(spec.get("queueName"))}
    owners = tuple(uid for each in parts(about, "ownerReferences") if (uid := text(each.get("uid"))))
    asks, flavors = _asks(spec, status)
    start, end, state = _history(spec, status)
    evictions = parts(part(status, "schedulingStats"), "evictions")
    again = [count(each.get("count"), "evictions.count") for each in evictions]
    return KueueWorkload(
        **known,
        owners=(known["owner"][2],) if known["owner"] else owners,
        queue=text(part(status, "admission").get("clusterQueue")),
        start=start,
        end=end,
        state=state,
        asks=asks,
        flavors=flavors,
        evictions=max(sum(again) - (state == EVICTED_NOW), 0),
        tier=text(spec.get("priorityClassName")) or text(part(spec, "priorityClassRef").get("name")),
        limit_s=spec.get("maximumExecutionTimeSeconds"),
    )


def _history(spec: Object, status: Object) -> tuple[datetime | None, datetime | None, str | None]:
    """Admission, end and state. An evicted workload that comes back waits again: its admission is gone.

    One that is both admitted and evicted later was taken off its GPUs at that time, and its admission is still there:
    its pods are on their way out, or nothing takes it back to the queue.
    """
    admitted, _, since = condition(status, "Admitted")
    finished, reason, ended = condition(status, "Finished")
    evicted, why, left = condition(status, "Evicted")
    if finished:
        return since if admitted else None, ended, FINISHED.get(reason)
    over = next((state for word, state in EVICTED.items() if why.endswith(word)), None)
    if admitted and evicted and since and left and left >= since:
        return since, left, over or EVICTED_NOW
    if admitted:
        return since, None, "RUNNING"
    inactive = not spec.get("active", True)
    if inactive or (evicted and over):
        return None, left, over or "CANCELLED"
    return None, None, "PENDING"


def _asks(spec: Object, status: Object) -> tuple[dict[str, Fraction], frozenset[str]]:
    """GPUs of all pods: as admitted, else as asked for; and the flavors that they were given.

    Shares of boards are those that were asked for: what Kueue adds up is the part of each board, over the pods.
    """
    total: dict[str, Fraction] = {}
    flavors: set[str] = set()
    given = {text(each.get("name")): each for each in parts(part(status, "admission"), "podSetAssignments")}
    for pod_set in parts(spec, "podSets"):
        assignment = given.get(text(pod_set.get("name")) or "main", {})
        usage, gpus = part(assignment, "resourceUsage"), pod_gpus(*asked_of(part(pod_set, "template")))
        if usage and not asks_for_parts(gpus):
            known = {name: value for name, value in usage.items() if gpu_resource(name) or unread_kind(name)}
            gpus = {name: Fraction(quantity(value, name)) for name, value in known.items()}
        else:
            pods = count(assignment.get("count", pod_set.get("count", 1)), "podSets.count")
            gpus = {name: pods * each for name, each in gpus.items()}
        for name, number in gpus.items():
            if number:
                total[name] = total.get(name, Fraction(0)) + number
        chosen = part(assignment, "flavors")
        words = [(system.number, *system.parts()) for system in share_words()]
        shared = [name for system in words for name in system if name]
        named = [*gpus, *(shared if asks_for_parts(gpus) else [])]
        flavors |= {flavor for name in named if (flavor := text(chosen.get(name)))}
    return total, frozenset(flavors)


QUOTA_AMOUNTS = {"nominal": "nominalQuota", "borrow": "borrowingLimit", "lend": "lendingLimit"}
"""Column of the table of quotas → field of a resource."""


def quota_rows(queue: Object) -> list[dict[str, Any]]:
    """Quotas for GPUs of an object of kind ClusterQueue.

    References
    ----------
    kubernetes-sigs/kueue, apis/kueue/v1beta1/clusterqueue_types.go; v1beta2 calls `cohort` `cohortName`.

    Examples
    --------
    >>> resource = {"name": "nvidia.com/gpu", "nominalQuota": 8, "borrowingLimit": "4"}
    >>> group = {"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "h100", "resources": [resource]}]}
    >>> row = quota_rows({"metadata": {"name": "ads"}, "spec": {"cohort": "web", "resourceGroups": [group]}})[0]
    >>> row["tenant"], row["cohort"], row["nominal"], row["borrow"], row["lend"]
    ('ads', 'web', 8.0, 4.0, None)
    """
    spec, name = part(queue, "spec"), name_of(queue)
    weight = part(spec, "fairSharing").get("weight")
    rows = []
    for group in parts(spec, "resourceGroups"):
        for flavor in parts(group, "flavors"):
            for resource in parts(flavor, "resources"):
                kind = gpu_resource(text(resource.get("name")) or "")
                if kind is None:
                    continue
                about = {
                    "tenant": name,
                    "cohort": text(spec.get("cohortName")) or text(spec.get("cohort")),
                    "flavor": text(flavor.get("name")),
                    "resource": resource["name"],
                    "profile": kind.profile,
                }
                amounts = {column: _amount(resource, key) for column, key in QUOTA_AMOUNTS.items()}
                rows.append(about | amounts | {"weight": None if weight is None else float(quantity(weight))})
    return rows


def _amount(resource: Object, name: str) -> float | None:
    value = resource.get(name)
    if value is None and name != "nominalQuota":
        return None
    amount = float(quantity(value))
    if not 0 <= amount < 1e9:
        refuse(f"{name}: {str(value)[:40]!r} is no amount")
    return amount


def quota_table(
    quotas: Mapping[str, list[dict[str, Any]]],
    boards: Mapping[str, tuple[str | None, str | None]],
    queues: Mapping[tuple[str, str], str],
) -> pl.DataFrame | None:
    """Make the table of quotas, with the boards of the flavors and the namespaces whose local queues lead there."""
    spaces: dict[str, set[str]] = defaultdict(set)
    for (space, _), queue in queues.items():
        spaces[queue].add(space)
    full = [
        {
            **row,
            "gpu_model": boards.get(row["flavor"] or "", (None, None))[0],
            "namespaces": ",".join(sorted(spaces[tenant])) or None,
        }
        for tenant, rows in quotas.items()
        for row in rows
    ]
    if not full:
        return None
    table = conform(pl.DataFrame(full, infer_schema_length=None), QueueQuotas, where="quotas")
    return table.sort("tenant", "flavor", "resource", maintain_order=True)


SEEN_AGAIN = "the same object again: the one that knows more was kept"
OTHER_KIND = "of a kind that is not read"
RESERVES = "holds a GPU for the pods that share it, which count"
NO_OBJECT = "not an object of Kubernetes: no kind or no metadata"

MAX_OWNERS = 10
"""Controllers above each other that are followed."""

DumpedObject = TypeVar("DumpedObject", Holding, KueueWorkload)


@dataclass
class Dump:
    """Objects of all files of a dump.

    - ``files``: What was read.
    - ``pods``, ``jobs``: Uid → pod, Job.
    - ``workloads``: Uid → Workload of Kueue.
    - ``nodes``: Name → node.
    - ``nodes_of_file``: Number of a file → the same as it has them.
    - ``gone``: Pods that ran in one file and are missing from a later one: uid → seconds between the two.
    - ``finished``: Uid of a Job → pods of it that succeeded.
    - ``devices``: Key → DRA device.
    - ``classes``, ``extended``: Name → DRA device class; extended resource → device class that stands for it.
    - ``claims``, ``templates``: Namespace and name → claim, and the claim that a template makes.
    - ``queues``: Namespace and name of a LocalQueue → its ClusterQueue.
    - ``flavors``: ResourceFlavor → labels of its nodes.
    - ``quotas``: ClusterQueue → its rows for the table of quotas.
    - ``above``: Queues of KAI or Volcano that others are below: no job is theirs.
    - ``parents``: Uid → owner of that object.
    - ``rejects``: Place and reason.
    """

    files: list[TextFile] = field(default_factory=list)
    pods: dict[str, Holding] = field(default_factory=dict)
    jobs: dict[str, Holding] = field(default_factory=dict)
    workloads: dict[str, KueueWorkload] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    nodes_of_file: dict[int, dict[str, Node]] = field(default_factory=dict)
    gone: dict[str, float] = field(default_factory=dict)
    finished: dict[str, int] = field(default_factory=dict)
    devices: dict[tuple[str, str, str], ClaimedDevice] = field(default_factory=dict)
    classes: dict[str, DeviceClass] = field(default_factory=dict)
    extended: dict[str, str] = field(default_factory=dict)
    claims: dict[tuple[str, str], DeviceClaim] = field(default_factory=dict)
    templates: dict[tuple[str, str], DeviceClaim] = field(default_factory=dict)
    queues: dict[tuple[str, str], str] = field(default_factory=dict)
    flavors: dict[str, Object] = field(default_factory=dict)
    quotas: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    above: set[str] = field(default_factory=set)
    parents: dict[str, Owner] = field(default_factory=dict)
    rejects: list[tuple[PodPlace, str]] = field(default_factory=list)

    def take(self, thing: Object, kind: str, place: PodPlace) -> None:
        """Sort in one object, or reject it with what is wrong with it."""
        try:
            self._add(thing, kind, place)
        except ValueError as error:
            self.rejects.append((place, str(error)))

    def _add(self, thing: Object, kind: str, place: PodPlace) -> None:
        about = part(thing, "metadata")
        uid, owner = text(about.get("uid")), owner_of(thing)
        if uid and owner:
            self.parents[uid] = owner
        name = (text(about.get("namespace")) or "default", text(about.get("name")) or "")
        spec, status = part(thing, "spec"), part(thing, "status")
        if kind == "Pod" and holds_for_others(about):
            self.rejects.append((place, RESERVES))
        elif kind == "Pod":
            self._keep(self.pods, read_pod(thing, place))
        elif kind == "Job":
            job = read_job(thing, place)
            self._keep(self.jobs, job)
            succeeded = status.get("succeeded")
            self.finished[job.uid] = succeeded if type(succeeded) is int else 0
        elif kind == "Workload":
            self._keep(self.workloads, read_workload(thing, place))
        elif kind == "Node":
            node = read_node(thing)
            self.nodes[name[1]] = node
            self.nodes_of_file.setdefault(place.file, {})[name[1]] = node
        elif kind == "ResourceSlice":
            self.devices |= {device.key: device for device in read_slice(thing)}
        elif kind == "DeviceClass":
            self.classes[name[1]] = read_class(spec)
            if resource := text(spec.get("extendedResourceName")):
                self.extended[resource] = name[1]
        elif kind == "ResourceClaim":
            self.claims[name] = read_claim(spec, status)
        elif kind == "ResourceClaimTemplate":
            self.templates[name] = read_claim(part(spec, "spec"), {})
        elif kind == "ClusterQueue":
            self.quotas[name[1]] = quota_rows(thing)
        elif kind == "Queue":
            self.quotas[name[1]] = queue_rows(thing)
            self.above |= {parent_of(thing) or ""} - {""}
        elif kind == "LocalQueue":
            self.queues[name] = text(spec.get("clusterQueue")) or ""
        elif kind == "ResourceFlavor":
            self.flavors[name[1]] = part(spec, "nodeLabels")
        else:
            self.rejects.append((place, OTHER_KIND))

    def _keep(self, known: dict[str, DumpedObject], thing: DumpedObject) -> None:
        """Of two dumps of an object keep the one that knows its end, else the later one."""
        other = known.get(thing.uid)
        if other is not None and other.end is not None and thing.end is None:
            thing, other = other, thing
        known[thing.uid] = thing
        if other is not None:
            self.rejects.append((other.place, SEEN_AGAIN))

    def nodes_of(self, flavor: str) -> list[Node]:
        """The nodes with GPUs that have all labels of a ResourceFlavor."""
        wanted = self.flavors.get(flavor, {})
        return [
            node
            for node in self.nodes.values()
            if node.gpus and all(node.labels.get(label) == value for label, value in wanted.items())
        ]

    def board_of(self, flavor: str) -> tuple[str | None, str | None]:
        """GPU model of a ResourceFlavor, and profile of its instances under the strategy single.

        By its labels, else by the nodes that have them, where these are alike.
        """
        labels = self.flavors.get(flavor, {})
        model, profile = model_of_labels(labels)[0], profile_of_labels(labels)
        kinds = {(node.model, node.profile) for node in self.nodes_of(flavor)}
        return (model, profile) if model or len(kinds) != 1 else kinds.pop()

    def node_of(self, pod: Holding) -> Node | None:
        """The node of a pod, as the file has it that the pod is from."""
        name = pod.node or ""
        return self.nodes_of_file.get(pod.place.file, {}).get(name) or self.nodes.get(name)

    def owners(self, thing: Holding) -> list[Owner]:
        """The controllers of an object, from its own upward, as far as the dump shows them."""
        found: list[Owner] = []
        owner = thing.owner
        while owner is not None and owner not in found and len(found) < MAX_OWNERS:
            found.append(owner)
            owner = self.parents.get(owner[2])
        return found


def read_dump(paths: Sequence[str | Path]) -> Dump:
    """Read all objects of some files of ``kubectl get``: lists, one a line (JSON), documents or objects in a row."""
    dump, listed = Dump(), list[dict[str, set[str]]]()
    for number, path in enumerate(paths):
        listed.append(defaultdict(set))
        file, items = read_objects(path)
        dump.files.append(file)
        for item in items:
            thing = item.value if isinstance(item.value, dict) else {}
            about = thing.get("metadata")
            kind = kind_of(item)
            if item.fault or not kind or not isinstance(about, dict):
                dump.rejects.append((PodPlace(number, item.place, item.raw[:40]), item.fault or NO_OBJECT))
                continue
            raw = f"{kind[:60]} {str(about.get('namespace') or '')[:80]}/{str(about.get('name'))[:260]}"
            place = PodPlace(number, item.place, raw)
            if kind == "Pod":
                listed[number][str(about.get("namespace") or "default")].add(str(about.get("uid") or ""))
            dump.take(thing, kind, place)
    end_gone_pods(dump, listed)
    return dump


def end_gone_pods(dump: Dump, listed: Sequence[Mapping[str, set[str]]]) -> None:
    """End pods that run in one file, and are missing from a later one, when they were last there.

    Parameters
    ----------
    dump : Dump
        The objects of all files.
    listed : sequence of mapping
        Of each file, namespace → uids of its pods; a file tells of namespaces of which it has pods, and of all where
        it has pods of several.
    """
    times = {
        number: max((node.seen for node in nodes.values() if node.seen), default=None)
        for number, nodes in dump.nodes_of_file.items()
    }
    dated = sorted((seen, number) for number, seen in times.items() if seen)
    last_place: dict[tuple[str, str], int] = {}
    for place, (_, number) in enumerate(dated):
        last_place |= {(name, uid): place for name, uids in listed[number].items() for uid in uids}
    for uid, pod in dump.pods.items():
        if pod.end is not None or pod.start is None or (pod.namespace, uid) not in last_place:
            continue
        place = last_place[pod.namespace, uid]
        last = dated[place][0]
        for seen, number in islice(dated, place + 1, None):
            if seen > last and (len(listed[number]) > 1 or pod.namespace in listed[number]):
                dump.pods[uid] = replace(pod, end=max(last, pod.start), state="UNKNOWN")
                dump.gone[uid] = (seen - last).total_seconds()
                break
