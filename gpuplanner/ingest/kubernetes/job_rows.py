"""Job rows from pods, Jobs and workloads."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fractions import Fraction

import polars as pl

from gpuplanner.core.schemas import MAX_GPUS_PER_JOB, SERVICE, WHOLE_GPU
from gpuplanner.ingest.delimited_rows import Records, Rows
from gpuplanner.ingest.gpu_shares import DEVICES, device_words
from gpuplanner.ingest.job_table import UNRESOLVED
from gpuplanner.ingest.kubernetes.api_objects import gpu_resource, unread_kind
from gpuplanner.ingest.kubernetes.cluster_dump import Dump, KueueWorkload
from gpuplanner.ingest.kubernetes.node_gpus import TOO_MANY, UNKNOWN_SHARES, partitions_in_mode
from gpuplanner.ingest.kubernetes.node_inventory import FULL, INSTANCES, Held, Node, class_of, held
from gpuplanner.ingest.kubernetes.pod_requests import (
    BOARDS,
    BOARDS_BY_MEMORY,
    BOARDS_MIB,
    MEMORY_MIB,
    PARTS,
    SERVERS,
    WORST,
    Holding,
    Owner,
    gangs,
    memory_words,
    node_memory_words,
)
from gpuplanner.ingest.source_fields import MAX_SECONDS, Field

COLUMN_MAP = {
    "job": Field("job_id"),
    "tenant": Field("tenant"),
    "priority class": Field("tier", nullable=True),
    "class": Field("job_class", nullable=True),
    "creation": Field("submit_time", "instant"),
    "start": Field("start_time", "instant", nullable=True),
    "end": Field("end_time", "instant", nullable=True),
    "state": Field("state"),
    "gpus": Field("gpus", "number", nullable=True, high=MAX_GPUS_PER_JOB),
    "unresolved gpus": Field(UNRESOLVED, "number", nullable=True, high=MAX_GPUS_PER_JOB),
    "gpus by memory": Field("gpus_by_memory", "number", nullable=True, high=MAX_GPUS_PER_JOB),
    "board": Field("gpu_model", nullable=True),
    "profile": Field("profile_requested", nullable=True),
    "nodes": Field("nodes", "number", nullable=True),
    "node names": Field("node_list", nullable=True),
    "deadline": Field("time_limit_s", "number", nullable=True, high=MAX_SECONDS),
    "evictions": Field("evictions", "number", nullable=True),
    "pods": Field("pods", "number", nullable=True),
    "reported by": Field("told_by"),
    "devices": Field(DEVICES, nullable=True),
}
"""What is made of pods, Jobs and Workloads."""

DEVICE_CLASS = "deviceclass.resource.kubernetes.io/"
"""Beginning of the extended resources that stand for a device class by its name (Kubernetes, DRA)."""
NAMES = {MEMORY_MIB: "memory of a GPU (nvidia.com/gpu-Ngb or the annotation gpu-memory)"}
"""Key of what a pod asks for → what it is called, where that is not the name of a resource."""
NO_GPU = "requests no GPU"
COUNTED = "counted on the row of its job"


Asking = Holding | KueueWorkload
"""Who asks for GPUs."""


@dataclass
class _Grip:
    """GPUs that pods hold: a sum that is unknown as soon as a part of it is."""

    held: list[tuple[Fraction | int | None, str | None, str | None]] = field(default_factory=list)
    """Number, profile and board of devices of one kind."""
    by_memory: list[Fraction | int | None] = field(default_factory=list)
    """The same numbers by memory, of devices that are no instances."""
    unresolved: Fraction = Fraction(0)
    """GPUs, about, of devices whose number of GPUs is not known."""
    of_pods: list[float] = field(default_factory=list)
    """Devices that each pod holds, in the order of the pods."""

    def columns(self) -> dict[str, str | None]:
        """The columns that say it; a profile only where there is one, words for devices where any are instances."""
        gpus, by_memory = _sum(gpus for gpus, _, _ in self.held), _sum(self.by_memory)
        profiles = {profile for gpus, profile, _ in self.held if gpus != 0}
        models = {model for gpus, _, model in self.held if gpus != 0 and model}
        cut = gpus is not None and bool(profiles - {None})
        devices: dict[str, Fraction] = defaultdict(Fraction)
        for number, profile, model in self.held:
            devices["-MIG-".join(filter(None, (model, profile))) or WHOLE_GPU] += number or 0
        words = device_words({word: float(number) for word, number in devices.items()})
        return {
            "gpus": gpus,
            "unresolved gpus": str(float(self.unresolved)) if gpus is None and self.unresolved else None,
            "gpus by memory": None if cut else by_memory,
            "profile": next(iter(profiles)) if len(profiles) == 1 else None,
            "board": "|".join(sorted(models)) or None,
            "devices": words if cut else None,
        }


def _sum(parts: Iterable[Fraction | int | None]) -> str | None:
    """Text of the sum of some numbers, if all of them are known."""
    known = list(parts)
    return None if None in known else str(float(sum(part for part in known if part)))


@dataclass
class PodsAsking:
    """Who asks for a resource or a device class.

    - ``pods``: How many ask for it.
    - ``example``: One of them.
    - ``device_hours``: Devices times hours, for all that ended.
    """

    pods: int = 0
    example: str = ""
    device_hours: float = 0.0


@dataclass(frozen=True)
class UncertainRequests:
    """What pods ask for and is not certain, by resource or device class.

    - ``unread``: It is not read.
    - ``gone``: It was on nodes that are not in the dump, which may share GPUs.
    - ``unresolved``: The part of a GPU that it is does not follow.
    - ``by_catalogue``: It is a part of the memory of a GPU, and only the catalogue says how much one has.
    """

    unread: dict[str, PodsAsking] = field(default_factory=dict)
    gone: dict[str, PodsAsking] = field(default_factory=dict)
    unresolved: dict[str, PodsAsking] = field(default_factory=dict)
    by_catalogue: dict[str, PodsAsking] = field(default_factory=dict)


def job_rows(dump: Dump) -> tuple[Rows, pl.DataFrame, UncertainRequests]:
    """Make the rows of a dump, the names of its pods by job, and what its pods ask for and is not certain."""
    jobs = _Jobs(dump)
    rows = jobs.rows()
    schema = {"name": pl.String, "job_id": pl.String}
    return rows, pl.DataFrame(sorted(jobs.names.items()), schema=schema, orient="row"), jobs.asked


@dataclass
class _Jobs:
    dump: Dump
    records: Records = field(default_factory=lambda: Records(COLUMN_MAP))
    used: set[tuple[str, str]] = field(default_factory=set)
    """Claims whose devices are counted already: several pods may share one claim."""
    names: dict[str, str] = field(default_factory=dict)
    """Pod → its job, where that has another name."""
    asked: UncertainRequests = field(default_factory=UncertainRequests)
    """What is not certain of what they ask for."""

    def rows(self) -> Rows:
        dump = self.dump
        managed = {uid: workload for workload in dump.workloads.values() for uid in workload.owners}
        groups: dict[str, list[Holding]] = defaultdict(list)
        under: dict[str, list[Holding]] = defaultdict(list)
        told: set[str] = set()
        pods = sorted(dump.pods.values(), key=lambda pod: (pod.start or pod.submit, pod.namespace, pod.name))
        for thing in (*pods, *dump.jobs.values()):
            uids = [thing.uid, *(uid for _, _, uid in dump.owners(thing))]
            workload = next((managed[uid] for uid in uids if uid in managed), None)
            is_pod = thing.uid in dump.pods
            if workload is not None and is_pod:
                under[workload.uid].append(thing)
            if workload is not None or (thing.uid in told and not is_pod):
                self._reject(thing, COUNTED)
            elif not self._wants_gpus(thing):
                self._reject(thing, NO_GPU)
            else:
                owner = self._job_of(thing) if is_pod else None
                groups[owner[2] if owner else thing.uid].append(thing)
            told |= set(uids[1:]) if is_pod else set()
        for group in groups.values():
            for gang in gangs(group):
                self._add_gang(gang)
        for workload in dump.workloads.values():
            self._add_workload(workload, under[workload.uid])
        for place, reason in dump.rejects:
            self.records.reject(place.file, place.item, place.raw, reason)
        return self.records.rows(dump.files)

    def _add_gang(self, gang: Sequence[Holding]) -> None:
        """A row for pods that ran together, or for a Job whose pods are gone."""
        first, owner = gang[0], self._job_of(gang[0])
        grip = self._held(gang)
        starts = [pod.start for pod in gang if pod.start]
        ends = [pod.end for pod in gang if pod.end]
        told = {
            "tenant": self._tenant(first),
            "class": SERVICE if self._serves(first) else None,
            "creation": _iso(min(pod.submit for pod in gang)),
            "start": _iso(_mean(starts, grip.of_pods) or min(starts, default=None)),
            "end": _iso(_mean(ends, grip.of_pods) or max(ends, default=None)),
            "state": min((pod.state for pod in gang), key=WORST.index),
            "pods": str(len(gang)),
        }
        self._add(first, owner[1] if owner else first.name, gang, grip, told)
        for pod in gang[1:]:
            self._reject(pod, COUNTED)

    def _add_workload(self, workload: KueueWorkload, pods: Sequence[Holding]) -> None:
        """A row for a Workload of Kueue, with the pods that ran under it."""
        if not workload.asks and not any(self._wants_gpus(pod) for pod in pods):
            self._reject(workload, NO_GPU)
            return
        known = [flavor for flavor in workload.flavors if flavor in self._flavors]
        flavors = [self._flavors[flavor][0] for flavor in known]
        nodes = [self.dump.nodes[pod.node] for pod in pods if pod.node in self.dump.nodes]
        nodes = nodes or [node for flavor in known for node in self._flavors[flavor][1]]
        grip = _Grip() if workload.asks else self._held(pods)
        for name, number in workload.asks.items():
            kinds = flavors or [(node.model, node.profile) for node in nodes]
            self._grasp_resource(grip, workload, name, number, kinds, nodes)
        jobs = [self.dump.jobs[uid].state for uid in workload.owners if uid in self.dump.jobs]
        states = jobs or [pod.state for pod in pods]
        queue = workload.queue or self.dump.queues.get((workload.namespace, workload.local_queue or ""))
        start, end = _times_of_pods(workload, pods) or (workload.start, workload.end)
        told = {
            "tenant": queue or workload.namespace,
            "creation": _iso(workload.submit),
            "start": _iso(start),
            "end": _iso(end),
            "state": workload.state or min(states, key=WORST.index, default="UNKNOWN"),
            "evictions": str(workload.evictions),
        }
        self._add(workload, workload.owner[1] if workload.owner else workload.name, pods, grip, told)

    def _add(
        self,
        thing: Asking,
        name: str,
        pods: Sequence[Holding],
        grip: _Grip,
        told: Mapping[str, str | None],
    ) -> None:
        """A row for the job of an object, and the other names by which telemetry knows it."""
        job = f"{thing.namespace}/{name}"
        names = (f"{pod.namespace}/{pod.name}" for pod in pods if pod.kind == "Pod")
        self.names |= {name: job for name in names if name != job}
        nodes = sorted({pod.node for pod in pods if pod.node})
        about = {
            "job": job,
            "priority class": thing.tier,
            "deadline": None if thing.limit_s is None else str(thing.limit_s),
            "reported by": thing.kind,
            "nodes": str(len(nodes)) if nodes else None,
            "node names": ",".join(nodes) or None,
        }
        place = thing.place
        self.records.add(place.file, place.item, place.raw, {**about, **told, **grip.columns()})

    def _held(self, pods: Sequence[Holding]) -> _Grip:
        """What pods, or all pods of a Job, hold."""
        grip = _Grip()
        for pod in pods:
            before = len(grip.held)
            self._grasp(grip, pod)
            grip.of_pods.append(float(sum(number or 0 for number, _, _ in grip.held[before:])))
        return grip

    def _grasp(self, grip: _Grip, pod: Holding) -> None:
        """Add what a pod, or all pods of a Job, hold."""
        node = self.dump.node_of(pod)
        kinds, nodes = ([(node.model, node.profile)], [node]) if node else ([], self._nodes_alike(pod))
        for name, number in self._asks(pod).items():
            self._grasp_resource(grip, pod, name, number * pod.copies, kinds, nodes)
        for key, claim in self._claims(pod):
            part = self._claim_parts.get(key)
            if key not in self.used or part is not None:
                for name in claim.unread:
                    _note(self.asked.unread, pod, name, 1)
                if claim.gpus is None and not claim.unread:
                    _note(self.asked.unresolved, pod, f"devices of {', '.join(claim.classes)}", 1)
                gpus = None if claim.gpus is None else claim.gpus * pod.copies * (1 if part is None else part)
                grip.by_memory.append(gpus)
                grip.held.append((gpus, claim.profile, claim.model or (node.model if node else None)))
            if key[1]:
                self.used.add(key)

    def _grasp_resource(
        self,
        grip: _Grip,
        thing: Asking,
        name: str,
        number: Fraction,
        kinds: Sequence[tuple[str | None, str | None]],
        nodes: Sequence[Node],
    ) -> None:
        """Add units of an extended resource: instances under the strategy single, shares of shared GPUs.

        Parameters
        ----------
        grip : _Grip
            What they are added to.
        thing : Holding or KueueWorkload
            Who asks for them.
        name : str
            The resource, or one of the keys for parts of boards.
        number : Fraction
            Its units.
        kinds : sequence
            GPU models that the units may be on, each with its profile under the strategy ``single``.
        nodes : sequence of Node
            Nodes that they may be on.
        """
        model, single = kinds[0] if len(set(kinds)) == 1 else (None, None)
        own_node = bool(nodes) and (isinstance(thing, KueueWorkload) or thing.node in self.dump.nodes)
        if name in PARTS or name in memory_words():
            by_memory = name in (MEMORY_MIB, BOARDS_MIB) or name in memory_words()
            whole = self._memory_of(name, nodes) if by_memory else Fraction(1)
            share = None if whole is None else number / whole
            if name not in (BOARDS_BY_MEMORY, BOARDS_MIB):
                grip.held.append((share, None, model))
            if name != BOARDS:
                grip.by_memory.append(share)
            if share is not None and name in memory_words() and thing.start:
                if not own_node:
                    _note(self.asked.gone, thing, name, share)
                elif not self._is_memory_stated(name, nodes):
                    _note(self.asked.by_catalogue, thing, name, share)
            if share is None and name != BOARDS_MIB:
                on = model or "a GPU model that no node names"
                _note(self.asked.unresolved, thing, f"{NAMES.get(name, name)} on {on}", 1)
            return
        resource = gpu_resource(name)
        if resource is None:
            _note(self.asked.unread, thing, name, number)
            if unread_kind(name) != "accelerator":
                grip.held.append((None, None, model))
                grip.unresolved += number
            return
        shares = {node.replicas.get(resource.plain, 1) for node in nodes} or {0 if resource.shared else 1}
        if resource.mode is not None and not nodes:
            shares = {partitions_in_mode([], resource.mode)}
        pods = shares.pop() if len(shares) == 1 else 0
        gpus = number / pods if pods > 1 or (pods == 1 and not resource.shared) else None
        if gpus is None:
            units = sum(node.units.get(resource.plain, 0) for node in nodes)
            there = sum(node.gpus or 0 for node in nodes)
            about = number * there / units if units and there else number
            grip.unresolved += about
            checks = {doubt.check for node in nodes for doubt in node.doubts}
            if not own_node or checks.isdisjoint((TOO_MANY, UNKNOWN_SHARES)):
                _note(self.asked.unresolved, thing, name, about)
        elif not (own_node or resource.profile or resource.mode) and self.dump.nodes and thing.start:
            _note(self.asked.gone, thing, name, gpus)
        grip.by_memory.append(gpus)
        grip.held.append((gpus, resource.profile or single, model))

    def _nodes_alike(self, pod: Holding) -> Sequence[Node]:
        """Nodes whose shares a pod has whose own node is not in the dump: all, where it was on one, or they agree."""
        names = {resource.plain for name in pod.asks if (resource := gpu_resource(name))}
        nodes = [node for node in self.dump.nodes.values() if not names.isdisjoint(node.units)]
        agree = all(len({node.replicas.get(name, 1) for node in nodes}) == 1 for name in names)
        return nodes if agree or pod.node else []

    def _memory_of(self, name: str, nodes: Sequence[Node]) -> Fraction | None:
        """Memory of one board of the nodes, or of all in the dump, as a resource counts it.

        None if they differ or do not tell.
        """
        there = [node for node in nodes or self.dump.nodes.values() if node.gpus != 0]
        of_node_alone = not node_memory_words().get(name, "MiB").endswith("MiB")
        stated = [node.memory_units.get(name, None if of_node_alone else node.memory_mib) for node in there]
        size = stated[0] if len(set(stated)) == 1 else None
        return None if size is None else Fraction(size)

    def _is_memory_stated(self, name: str, nodes: Sequence[Node]) -> bool:
        """Whether the nodes say how much memory one board of them has, as a resource counts it."""
        there = [node for node in nodes or self.dump.nodes.values() if node.gpus != 0]
        return all(node.is_memory_stated or name in node.memory_units for node in there)

    def _wants_gpus(self, thing: Holding) -> bool:
        return bool(self._asks(thing)) or any(claim.gpus != 0 for _, claim in self._claims(thing))

    def _asks(self, thing: Holding) -> dict[str, Fraction]:
        """Resources that a pod asks for, those that stand for a device class of GPUs with the others."""
        asks = dict(thing.asks)
        for resource, number in {**thing.others, **thing.asks}.items():
            implicit = resource.removeprefix(DEVICE_CLASS) if resource.startswith(DEVICE_CLASS) else ""
            name = self.dump.extended.get(resource, implicit)
            device = class_of(name, self.dump.classes)
            if name and device.kind in (FULL, INSTANCES):
                key = f"nvidia.com/mig-{device.profile}" if device.profile else "nvidia.com/gpu"
                asks[key] = asks.get(key, Fraction(0)) + number
                asks.pop(resource, None)
        return asks

    def _tenant(self, thing: Holding) -> str:
        """Queue of a pod or its Job: of Kueue the ClusterQueue, or its LocalQueue; else its namespace."""
        above = [self.dump.jobs[uid] for _, _, uid in self.dump.owners(thing) if uid in self.dump.jobs]
        named = ((each.namespace, each.local_queue) for each in (thing, *above) if each.local_queue)
        space, local = next(named, ("", ""))
        if not local or thing.tenant != thing.namespace:
            return thing.tenant
        return self.dump.queues.get((space, local)) or self._local_queues.get(local, f"{space}/{local}")

    @functools.cached_property
    def _flavors(self) -> dict[str, tuple[tuple[str | None, str | None], list[Node]]]:
        """ResourceFlavor → its GPU model and profile, and its nodes."""
        dump = self.dump
        return {flavor: (dump.board_of(flavor), dump.nodes_of(flavor)) for flavor in dump.flavors}

    @functools.cached_property
    def _local_queues(self) -> dict[str, str]:
        """Names of LocalQueues that stand for themselves: those of one namespace alone."""
        things = (*self.dump.pods.values(), *self.dump.jobs.values())
        named = {(thing.namespace, thing.local_queue) for thing in things if thing.local_queue}
        counts = Counter(queue for _, queue in named)
        return {str(queue): str(queue) for queue, number in counts.items() if number == 1}

    def _claims(self, thing: Holding) -> list[tuple[tuple[str, str], Held]]:
        """What the claims of a pod hold, by namespace and name; templates have no name of their own."""
        dump, found = self.dump, []
        for name, template in thing.claims:
            key = (thing.namespace, name or "")
            claim = dump.claims.get(key) or dump.templates.get((thing.namespace, template or ""))
            if claim is not None:
                found.append((key, held(claim, dump.devices, dump.classes)))
        return found

    @functools.cached_property
    def _claim_parts(self) -> dict[tuple[str, str], Fraction]:
        """Claims that several pods hold → part of it that each counts with: their hours sum to those of the claim."""
        users: dict[tuple[str, str], list[tuple[datetime, datetime]]] = defaultdict(list)
        last = max((node.seen for node in self.dump.nodes.values() if node.seen), default=None)
        for pod in self.dump.pods.values():
            end = pod.end or last
            if pod.start is not None and end is not None:
                for name, _ in pod.claims:
                    if name is not None:
                        users[pod.namespace, name].append((pod.start, max(end, pod.start)))
        return {claim: _part_of_union(spans) for claim, spans in users.items() if len(spans) > 1}

    def _serves(self, pod: Holding) -> bool:
        """Whether a pod runs until somebody ends it: its controller starts it again wherever it ends."""
        owners = self.dump.owners(pod)
        return pod.kind == "Pod" and bool(owners) and owners[0][0] in SERVERS

    def _job_of(self, pod: Holding) -> Owner | None:
        """The controller of a pod, or the topmost above it below the schedule that made it.

        None for pods that serve, for those without an owner, and for Jobs.
        """
        owners = self.dump.owners(pod)
        if pod.kind != "Pod" or not owners or self._serves(pod):
            return None
        return next((owner for owner in reversed(owners) if owner[0] != "CronJob"), None)

    def _reject(self, thing: Asking, reason: str) -> None:
        self.records.reject(thing.place.file, thing.place.item, thing.place.raw, reason)


def _note(noted: dict[str, PodsAsking], thing: Asking, name: str, devices: Fraction | int) -> None:
    """Count a pod, Job or Workload among those that ask for something.

    Parameters
    ----------
    noted : dict
        Resource or device class → who asks for it.
    thing : Holding or KueueWorkload
        Who asks.
    name : str
        What it asks for.
    devices : number
        How many devices of it.
    """
    of_name = noted.setdefault(name, PodsAsking(example=f"{thing.namespace}/{thing.name}"))
    of_name.pods += thing.copies if isinstance(thing, Holding) else 1
    of_name.device_hours += float(devices) * thing.hours


def _times_of_pods(workload: KueueWorkload, pods: Sequence[Holding]) -> tuple[datetime | None, datetime | None] | None:
    """When the pods of a Workload held their GPUs, where all are in the dump: it was admitted before they had any."""
    asked: dict[str, Fraction] = defaultdict(Fraction)
    for pod in pods:
        for name, number in pod.asks.items():
            asked[name] += number
    starts, ends = [pod.start for pod in pods if pod.start], [pod.end for pod in pods if pod.end]
    if not workload.asks or asked != workload.asks:
        return None
    if len(starts) < len(pods) or len(ends) not in (0, len(pods)):
        return None
    gpus = [float(sum(pod.asks.values())) for pod in pods]
    return _mean(starts, gpus), _mean(ends, gpus)


def _part_of_union(spans: Sequence[tuple[datetime, datetime]]) -> Fraction:
    """Time in which at least one of some spans holds, as part of the sum of all."""
    union, until = timedelta(0), min(start for start, _ in spans)
    for start, end in sorted(spans):
        union += max(end - max(start, until), timedelta(0))
        until = max(until, end)
    whole = sum((end - start for start, end in spans), timedelta(0))
    microsecond = timedelta(microseconds=1)
    return Fraction(union // microsecond, whole // microsecond) if whole else Fraction(1, len(spans))


def _mean(instants: Sequence[datetime], devices: Sequence[float]) -> datetime | None:
    """Mean of the times at which the pods of a gang began, or ended, by their devices; None where a pod has no time.

    The GPU-hours of the gang are those of its pods then.
    """
    if not instants or len(instants) != len(devices) or not sum(devices):
        return None
    first = min(instants)
    late_s = [(instant - first).total_seconds() for instant in instants]
    mean_s = sum(late * number for late, number in zip(late_s, devices, strict=True)) / sum(devices)
    return first + timedelta(seconds=mean_s)


def _iso(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()
