"""A dump of Kubernetes objects, sorted by kind: what is left of each object is the little that is needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from gpuplanner.inbox.core.lines.text_file import TextFile
from gpuplanner.inbox.kubernetes.gpu_requests import holds_for_others
from gpuplanner.inbox.kubernetes.kueue import KueueWorkload, quota_rows, read_workload
from gpuplanner.inbox.kubernetes.node_gpus import model_of_labels, profile_of_labels
from gpuplanner.inbox.kubernetes.nodes import Node, read_node
from gpuplanner.inbox.kubernetes.objects import Object, part, text
from gpuplanner.inbox.kubernetes.pods import Holding, Owner, PodPlace, owner_of, read_job, read_pod
from gpuplanner.inbox.kubernetes.queues import parent_of, queue_rows
from gpuplanner.inbox.kubernetes.resource_claims import (
    ClaimedDevice,
    DeviceClaim,
    DeviceClass,
    read_claim,
    read_class,
    read_slice,
)
from gpuplanner.inbox.kubernetes.yaml_items import kind_of, read_objects

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
            self.above |= {above for above in [parent_of(thing)] if above}
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
        later = (
            seen
            for seen, number in islice(dated, place + 1, None)
            if seen > last and (len(listed[number]) > 1 or pod.namespace in listed[number])
        )
        missing = next(later, None)
        if missing is not None:
            dump.pods[uid] = replace(pod, end=max(last, pod.start), state="UNKNOWN")
            dump.gone[uid] = (missing - last).total_seconds()
