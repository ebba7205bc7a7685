"""Rows of jobs from the objects of a Kubernetes dump: which objects are one job, and what GPUs it holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction

import polars as pl

from gpuplanner.inbox.core.lines.fields import Field
from gpuplanner.inbox.core.lines.rows import Records, Rows
from gpuplanner.inbox.core.shares import DEVICES, device_words
from gpuplanner.inbox.core.times import MAX_SECONDS
from gpuplanner.inbox.kubernetes.dump import Dump
from gpuplanner.inbox.kubernetes.gpu_requests import BOARDS, BOARDS_MIB, MEMORY_MIB, PARTS
from gpuplanner.inbox.kubernetes.kueue import KueueWorkload
from gpuplanner.inbox.kubernetes.nodes import Node
from gpuplanner.inbox.kubernetes.objects import gpu_resource
from gpuplanner.inbox.kubernetes.pods import SERVERS, WORST, Holding, Owner, gangs
from gpuplanner.inbox.kubernetes.resource_claims import Held, held
from gpuplanner.schemas import SERVICE, WHOLE_GPU
from gpuplanner.schemas.domain import MAX_GPUS_PER_JOB

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
    "gpus by memory": Field("gpus_by_memory", "number", nullable=True, high=MAX_GPUS_PER_JOB),
    "board": Field("gpu_model", nullable=True),
    "profile": Field("profile_requested", nullable=True),
    "nodes": Field("nodes", "number", nullable=True),
    "node names": Field("node_list", nullable=True),
    "deadline": Field("time_limit_s", "number", nullable=True, high=MAX_SECONDS),
    "evictions": Field("evictions", "number", nullable=True),
    "pods": Field("pods", "number", nullable=True),
    "told by": Field("told_by"),
    "devices": Field(DEVICES, nullable=True),
    "memory of": Field("memory_of", nullable=True),
}
"""What is made of pods, Jobs and Workloads."""

NO_GPU = "asks for no GPU"
COUNTED = "counted on the row of its job"


@dataclass
class _Grip:
    """GPUs that pods hold: a sum that is unknown as soon as a part of it is."""

    held: list[tuple[Fraction | int | None, str | None, str | None]] = field(default_factory=list)
    """Number, profile and board of devices of one kind."""
    by_memory: list[Fraction | int | None] = field(default_factory=list)
    """The same numbers by memory, of devices that are no instances."""
    memory_of: str | None = None
    """Boards whose memory would have to be known to say the share."""

    def columns(self) -> dict[str, str | None]:
        """The columns that say it; a profile only where there is one, words for devices where any are instances."""
        gpus, by_memory = _sum(gpus for gpus, _, _ in self.held), _sum(self.by_memory)
        profiles = {profile for gpus, profile, _ in self.held if gpus != 0}
        models = {model for gpus, _, model in self.held if gpus != 0 and model}
        cut = gpus is not None and bool(profiles - {None})
        devices: dict[str, Fraction] = defaultdict(Fraction)
        for number, profile, model in self.held:
            devices["-MIG-".join(filter(None, (model, profile))) or WHOLE_GPU] += number or 0
        return {
            "gpus": gpus,
            "gpus by memory": None if cut else by_memory,
            "profile": next(iter(profiles)) if len(profiles) == 1 else None,
            "board": "|".join(sorted(models)) or None,
            "devices": device_words({word: float(number) for word, number in devices.items()})
            if cut
            else None,
            "memory of": self.memory_of,
        }


def _sum(parts: Iterable[Fraction | int | None]) -> str | None:
    """Text of the sum of some numbers, if all of them are known."""
    known = list(parts)
    return None if None in known else str(float(sum(part for part in known if part)))


def job_rows(dump: Dump) -> tuple[Rows, pl.DataFrame]:
    """Make the rows of a dump."""
    jobs = _Jobs(dump)
    rows = jobs.rows()
    schema = {"name": pl.String, "job_id": pl.String}
    return rows, pl.DataFrame(sorted(jobs.names.items()), schema=schema, orient="row")


@dataclass
class _Jobs:
    dump: Dump
    records: Records = field(default_factory=lambda: Records(COLUMN_MAP))
    used: set[tuple[str, str]] = field(default_factory=set)
    """Claims whose devices are counted already: several pods may share one claim."""
    names: dict[str, str] = field(default_factory=dict)
    """Pod → its job, where that has another name."""

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
        starts = [pod.start for pod in gang if pod.start]
        ends = [pod.end for pod in gang if pod.end]
        told = {
            "tenant": first.tenant,
            "class": SERVICE if self._serves(first) else None,
            "creation": _iso(min(pod.submit for pod in gang)),
            "start": _iso(min(starts, default=None)),
            "end": _iso(max(ends, default=None)),
            "state": min((pod.state for pod in gang), key=WORST.index),
            "pods": str(len(gang)),
        }
        self._add(first, owner[1] if owner else first.name, gang, self._held(gang), told)
        for pod in gang[1:]:
            self._reject(pod, COUNTED)

    def _add_workload(self, workload: KueueWorkload, pods: Sequence[Holding]) -> None:
        """A row for a Workload of Kueue, with the pods that ran under it."""
        if not workload.asks and not any(self._wants_gpus(pod) for pod in pods):
            self._reject(workload, NO_GPU)
            return
        flavors = [self.dump.boards[flavor] for flavor in workload.flavors if flavor in self.dump.boards]
        nodes = [self.dump.nodes[pod.node] for pod in pods if pod.node in self.dump.nodes]
        grip = _Grip() if workload.asks else self._held(pods)
        for name, number in workload.asks.items():
            kinds = flavors or [(node.model, node.profile) for node in nodes]
            self._grasp_resource(grip, name, number, kinds, nodes)
        jobs = [self.dump.jobs[uid].state for uid in workload.owners if uid in self.dump.jobs]
        states = jobs or [pod.state for pod in pods]
        queue = workload.queue or self.dump.queues.get((workload.namespace, workload.local_queue or ""))
        told = {
            "tenant": queue or workload.namespace,
            "creation": _iso(workload.submit),
            "start": _iso(workload.start),
            "end": _iso(workload.end),
            "state": workload.state or min(states, key=WORST.index, default="UNKNOWN"),
            "evictions": str(workload.evictions),
        }
        self._add(workload, workload.owner[1] if workload.owner else workload.name, pods, grip, told)

    def _add(
        self,
        thing: Holding | KueueWorkload,
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
            "told by": thing.kind,
            "nodes": str(len(nodes)) if nodes else None,
            "node names": ",".join(nodes) or None,
        }
        place = thing.place
        self.records.add(place.file, place.item, place.raw, {**about, **told, **grip.columns()})

    def _held(self, pods: Sequence[Holding]) -> _Grip:
        """What pods, or all pods of a Job, hold."""
        grip = _Grip()
        for pod in pods:
            self._grasp(grip, pod)
        return grip

    def _grasp(self, grip: _Grip, pod: Holding) -> None:
        """Add what a pod, or all pods of a Job, hold."""
        node = self.dump.nodes.get(pod.node or "")
        for name, number in pod.asks.items():
            kinds = [(node.model, node.profile)] if node else []
            self._grasp_resource(grip, name, number * pod.copies, kinds, [node] if node else [])
        for key, claim in self._claims(pod):
            if key not in self.used:
                gpus = None if claim.gpus is None else claim.gpus * pod.copies
                grip.by_memory.append(gpus)
                grip.held.append((gpus, claim.profile, claim.model or (node.model if node else None)))
            if key[1]:
                self.used.add(key)

    def _grasp_resource(
        self,
        grip: _Grip,
        name: str,
        number: Fraction,
        kinds: Sequence[tuple[str | None, str | None]],
        nodes: Sequence[Node],
    ) -> None:
        """Add units of an extended resource: instances under the strategy single, shares of shared GPUs.

        `kinds` are the boards that the units may be on, each with its profile under that strategy.
        """
        model, single = kinds[0] if len(set(kinds)) == 1 else (None, None)
        if name in PARTS:
            whole = self._memory_mib(nodes) if name in (MEMORY_MIB, BOARDS_MIB) else Fraction(1)
            share = None if whole is None else number / whole
            if name in (BOARDS, MEMORY_MIB):
                grip.held.append((share, None, model))
            if name != BOARDS:
                grip.by_memory.append(share)
            if name == MEMORY_MIB and share is None:
                grip.memory_of = model or "a board that is not named"
            return
        resource = gpu_resource(name)
        if resource is None:
            return
        shares = {node.replicas.get(resource.plain, 1) for node in nodes} or {0 if resource.shared else 1}
        pods = shares.pop() if len(shares) == 1 else 0
        gpus = number / pods if pods > 1 or (pods == 1 and not resource.shared) else None
        grip.by_memory.append(gpus)
        grip.held.append((gpus, resource.profile or single, model))

    def _memory_mib(self, nodes: Sequence[Node]) -> Fraction | None:
        """Memory of one board [MiB] of the nodes, or of all in the dump; None if they differ or do not tell."""
        sizes = {node.memory_mib for node in nodes or self.dump.nodes.values() if node.gpus != 0}
        size = sizes.pop() if len(sizes) == 1 else None
        return None if size is None else Fraction(size)

    def _wants_gpus(self, thing: Holding) -> bool:
        return bool(thing.asks) or any(claim.gpus != 0 for _, claim in self._claims(thing))

    def _claims(self, thing: Holding) -> list[tuple[tuple[str, str], Held]]:
        """What the claims of a pod hold, by namespace and name; templates have no name of their own."""
        dump, found = self.dump, []
        for name, made in thing.claims:
            claim = (dump.claims if made else dump.templates).get((thing.namespace, name))
            if claim is not None:
                found.append(((thing.namespace, name if made else ""), held(claim, dump.devices)))
        return found

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

    def _reject(self, thing: Holding | KueueWorkload, reason: str) -> None:
        self.records.reject(thing.place.file, thing.place.item, thing.place.raw, reason)


def _iso(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()
