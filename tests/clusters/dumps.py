"""What real software prints of a cluster: sacct and scontrol of Slurm, pods and nodes of Kubernetes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any
from uuid import UUID

from tests.clusters.model import UNCUT, WHOLE, Job, Node, Played

MONDAY = datetime(2025, 1, 6, tzinfo=UTC)
"""Begin of every span."""

SERVES = 10**8
"""Time limit [s] from which on a job of Kubernetes is a pod that serves without an end."""

FIELDS = (
    "JobID|User|Account|Partition|State|Submit|Eligible|Start|End|Elapsed|TimelimitRaw|NNodes|NodeList|ReqTRES"
    "|AllocTRES|JobName"
)


@dataclass(frozen=True)
class Board:
    """What a board is called: by Slurm's types, whole and cut, and by the label of a Kubernetes node."""

    whole: str
    cut: str
    product: str
    memory_mib: int = 81920


A100_40 = Board("a100", "a100", "NVIDIA-A100-SXM4-40GB", 40960)
"""Whole and cut GPUs have one type: the slices beside them tell the memory."""
A100_80 = Board("a100_80", "a100_80", "NVIDIA-A100-SXM4-80GB")
H100_80 = Board("h100_sxm5", "h100_sxm5", "NVIDIA-H100-80GB-HBM3", 81559)


def sacct(
    jobs: Sequence[Job],
    played: Played,
    nodes: Sequence[Node],
    gpu_model: Board,
    dump: int,
    *,
    begin: datetime = MONDAY,
    array_of: Mapping[int, str] | None = None,
) -> str:
    """Text of ``sacct --allusers --allocations --array --parsable2 --format=…`` at an instant of the span."""
    lines = [FIELDS]
    for place, job in enumerate(jobs):
        if job.submit > dump:
            continue
        start, cancelled, eligible = played.start[place], played.cancelled[place], played.eligible[place]
        start = start if start is not None and start <= dump else None
        over = cancelled if start is None else start + job.run
        over = over if over is not None and over <= dump else None
        state = ("PENDING" if start is None else "RUNNING") if over is None else job.end
        if (start is None and over is not None) or state == "CANCELLED":
            state = f"CANCELLED by {1000 + int(job.user[-2:])}"
        begun = over if start is None else start  # what Slurm prints as the start of a job that never ran
        tres = _tres(job, gpu_model)
        lines.append(
            "|".join(
                (
                    (array_of or {}).get(job.number) or str(480000 + job.number),
                    job.user,
                    job.account,
                    "gpu" if job.kind == WHOLE else "mig",
                    state,
                    _local(job.submit, begin),
                    _local(None if eligible is None or eligible > dump else eligible, begin),
                    "None" if start is None and over is not None else _local(begun, begin),
                    _local(over, begin),
                    _elapsed(0 if start is None else (dump if over is None else over) - start),
                    str(job.limit // 60),
                    str(job.nodes),
                    "None assigned" if start is None else hostlist([nodes[n].name for n in played.nodes[place]]),
                    tres,
                    "" if start is None else tres,
                    job.name,
                )
            )
        )
    return "\n".join(lines) + "\n"


def scontrol(nodes: Sequence[Node], gpu_model: Board, dump: int, *, begin: datetime = MONDAY) -> str:
    """Text of ``scontrol show node``."""
    booted = (begin - timedelta(days=40, hours=3)).strftime("%Y-%m-%dT%H:%M:%S")
    last = _local(dump - 60, begin)
    texts = []
    for node in nodes:
        cores, memory = 16 * node.gpus, 128000 * node.gpus
        gres = [(_type(kind, gpu_model), count) for kind, count in node.devices().items()]
        total = sum(count for _, count in gres)
        typed = ",".join(f"gres/gpu:{word}={count}" for word, count in gres)
        words = ",".join(f"gpu:{word}:{count}(S:0-1)" for word, count in gres)
        texts.append(
            f"NodeName={node.name} Arch=x86_64 CoresPerSocket={cores // 2}\n"
            f"   CPUAlloc=0 CPUEfctv={cores} CPUTot={cores} CPULoad=0.42\n"
            "   AvailableFeatures=(null)\n   ActiveFeatures=(null)\n"
            f"   Gres={words}\n"
            f"   NodeAddr={node.name} NodeHostName={node.name} Version=23.11.10\n"
            "   OS=Linux 5.14.0-427.el9.x86_64 #1 SMP PREEMPT_DYNAMIC\n"
            f"   RealMemory={memory} AllocMem=0 FreeMem={memory - 9100} Sockets=2 Boards=1\n"
            "   State=MIXED ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A\n"
            "   Partitions=gpu,mig\n"
            f"   BootTime={booted} SlurmdStartTime={booted}\n"
            f"   LastBusyTime={last} ResumeAfterTime=None\n"
            f"   CfgTRES=cpu={cores},mem={memory}M,billing={cores},gres/gpu={total},{typed}\n"
            "   AllocTRES=\n   CurrentWatts=0 AveWatts=0\n"
        )
    return "\n".join(texts)


def pods(jobs: Sequence[Job], played: Played, nodes: Sequence[Node], dump: int, *, begin: datetime = MONDAY) -> str:
    """Text of ``kubectl get pods -A -o json``: a Job of as many pods as it has nodes for each job."""
    items: list[Mapping[str, Any]] = []
    for place, job in enumerate(jobs):
        if job.submit > dump or (played.cancelled[place] or 10**12) <= dump:
            continue  # who gives up deletes the Job, and its pods with it
        start = played.start[place]
        start = start if start is not None and start <= dump else None
        for number in range(job.nodes):
            node = None if start is None else nodes[played.nodes[place][number]].name
            items.append(_pod(job, number, start, node, dump, begin, place in played.by_quota))
    return _list(items)


def nodes_json(nodes: Sequence[Node], gpu_model: Board, dump: int, *, begin: datetime = MONDAY) -> str:
    """Text of ``kubectl get nodes -o json``, with the labels of GPU feature discovery under the strategy mixed."""
    items = []
    for node in nodes:
        devices = node.devices()
        cut = [kind for kind in devices if kind != WHOLE]
        capacity = {"nvidia.com/gpu": str(devices.get(WHOLE, 0))}
        capacity |= {f"nvidia.com/mig-{kind}": str(devices[kind]) for kind in cut}
        layouts = sorted(set(node.layouts))
        config = "all-disabled" if layouts == [UNCUT] else f"plan-{node.name}"
        labels = {
            "beta.kubernetes.io/arch": "amd64",
            "kubernetes.io/hostname": node.name,
            "nvidia.com/gpu.count": str(node.gpus),
            "nvidia.com/gpu.memory": str(gpu_model.memory_mib),
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.product": gpu_model.product,
            "nvidia.com/mig.capable": "true",
            "nvidia.com/mig.config": config,
            "nvidia.com/mig.config.state": "success",
            "nvidia.com/mig.strategy": "mixed",
            **{f"nvidia.com/mig-{kind}.count": str(devices[kind]) for kind in cut},
        }
        about = {
            "name": node.name,
            "uid": _uid("node", node.name),
            "creationTimestamp": _z(begin - timedelta(days=40)),
            "labels": labels,
        }
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "lastHeartbeatTime": _z(begin + timedelta(seconds=dump)),
            "lastTransitionTime": _z(begin - timedelta(days=40)),
        }
        status = {
            "capacity": {"cpu": str(16 * node.gpus), "memory": f"{128 * node.gpus}Gi", "pods": "110", **capacity},
            "allocatable": {"cpu": str(16 * node.gpus - 1), "pods": "110", **capacity},
            "conditions": [ready],
        }
        items.append({"apiVersion": "v1", "kind": "Node", "metadata": about, "spec": {}, "status": status})
    return _list(items)


def hostlist(names: Sequence[str]) -> str:
    """Names of nodes as Slurm folds them: ``gn[01-02,04]``.

    >>> hostlist(["gn01", "gn02", "gn04"]), hostlist(["gn01"])
    ('gn[01-02,04]', 'gn01')
    """
    if len(names) == 1:
        return names[0]
    prefix = names[0].rstrip("0123456789")
    numbers = sorted((int(name[len(prefix) :]), name[len(prefix) :]) for name in names)
    parts = []
    for _, run in groupby(enumerate(numbers), key=lambda item: item[1][0] - item[0]):
        words = [text for _, (_, text) in run]
        parts.append(words[0] if len(words) == 1 else f"{words[0]}-{words[-1]}")
    return f"{prefix}[{','.join(parts)}]"


def _type(kind: str, gpu_model: Board) -> str:
    return gpu_model.whole if kind == WHOLE else f"{gpu_model.cut}_{kind}"


def _tres(job: Job, gpu_model: Board) -> str:
    """Typed and untyped counts both appear, in the order of Slurm; some jobs named no type."""
    cores = (8 if job.kind == WHOLE else 2) * job.devices
    typed = f"gres/gpu:{_type(job.kind, gpu_model)}={job.devices}," if job.kind != WHOLE or job.number % 7 else ""
    return f"billing={cores},cpu={cores},{typed}gres/gpu={job.devices},mem={cores * 7}G,node={job.nodes}"


def _local(second: int | None, begin: datetime) -> str:
    return "Unknown" if second is None else (begin + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%S")


def _elapsed(seconds: int) -> str:
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def _z(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")


def _uid(*words: object) -> str:
    """A uid that hangs on the words alone."""
    number = 0
    for letter in " ".join(str(word) for word in words).encode():
        number = (number * 1099511628211 + letter + 1) % 2**128
    return str(UUID(int=number))


def _list(items: Sequence[Mapping[str, Any]]) -> str:
    inner = ",\n".join(json.dumps(item, separators=(",", ":")) for item in items)
    return f'{{"apiVersion":"v1","kind":"List","metadata":{{"resourceVersion":""}},"items":[\n{inner}\n]}}\n'


def _pod(
    job: Job, number: int, start: int | None, node: str | None, dump: int, begin: datetime, gated: bool
) -> Mapping[str, Any]:
    name = f"{job.name}-{job.number}"
    resource = "nvidia.com/gpu" if job.kind == WHOLE else f"nvidia.com/mig-{job.kind}"
    amount = {resource: str(job.each)}
    over = None if start is None or start + job.run > dump else start + job.run

    def at(second: int) -> str:
        return _z(begin + timedelta(seconds=second))

    bound: dict[str, Any] = {"type": "PodScheduled", "status": "True" if start is not None else "False"}
    bound["lastTransitionTime"] = at(job.submit if start is None else start)
    if start is None:
        bound["reason"] = "SchedulingGated" if gated else "Unschedulable"
        if not gated:
            bound["message"] = f"no node is available: Insufficient {resource}."
    status: dict[str, Any] = {"phase": "Pending" if start is None else "Running", "conditions": [bound]}
    if start is not None:
        status["startTime"] = at(start)
        state: dict[str, Any] = {"running": {"startedAt": at(start)}}
        if over is not None:
            done = job.end == "COMPLETED"
            reason = "Completed" if done else "OOMKilled" if job.end == "OUT_OF_MEMORY" else "Error"
            code = 0 if done else 137 if reason == "OOMKilled" else 1
            ended = {"exitCode": code, "reason": reason, "startedAt": at(start), "finishedAt": at(over)}
            state = {"terminated": ended}
            status["phase"] = "Succeeded" if done else "Failed"
            if job.end == "TIMEOUT":
                status["reason"] = "DeadlineExceeded"
        status["containerStatuses"] = [{"name": "main", "restartCount": 0, "state": state}]
    serves = job.limit >= SERVES
    owner = {
        "apiVersion": "apps/v1" if serves else "batch/v1",
        "kind": "ReplicaSet" if serves else "Job",
        "name": name,
        "uid": _uid("job", job.account, name),
        "controller": True,
    }
    about = {
        "name": f"{name}-{number}",
        "namespace": job.account,
        "uid": _uid("pod", job.account, name, number),
        "creationTimestamp": at(job.submit),
        "labels": {"app" if serves else "batch.kubernetes.io/job-name": name, "owner": job.user},
        "ownerReferences": [owner],
    }
    container = {"name": "main", "image": "registry.lab/train:1", "resources": {"limits": amount, "requests": amount}}
    spec: dict[str, Any] = {"containers": [container], "restartPolicy": "Always" if serves else "Never"}
    if not serves:
        spec["activeDeadlineSeconds"] = job.limit
    if node is not None:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec, "status": status}
