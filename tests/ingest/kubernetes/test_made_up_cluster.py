"""A made-up cluster of 3 × 8 H100, whole, cut and shared: what its dump is read as, against its own diary."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuplanner.cli.application import main
from gpuplanner.ingest.kubernetes.cluster_reader import read_kubernetes

File = Callable[..., Path]
Json = dict[str, Any]
Run = Callable[..., Json]

BEGIN = datetime(2025, 9, 1, tzinfo=UTC)
HORIZON = 2 * 24 * 60
"""Minutes until the dump."""

BOARD_MIB = 81559
SLICES = {"1g.10gb": 1, "2g.20gb": 2, "3g.40gb": 3, "4g.40gb": 4, "7g.80gb": 7}
LAYOUTS = [["1g.10gb"] * 7, ["3g.40gb", "3g.40gb"], ["4g.40gb", "2g.20gb", "1g.10gb"], ["7g.80gb"]]
EXACT = 1e-9


@dataclass
class Device:
    """A board, or an instance of one; several pods may hold parts of a board."""

    node: str
    kind: str
    held: list[tuple[int, int, float]] = field(default_factory=list)

    def has_room(self, start: int, end: int, part: float) -> bool:
        meets = [(since, until, more) for since, until, more in self.held if since < end and start < until]
        instants = [start, *(since for since, _, _ in meets if since > start)]
        return all(
            sum(more for since, until, more in meets if since <= at < until) + part <= 1 + EXACT for at in instants
        )


@dataclass
class Entry:
    """A line of the diary: what a pod held from when to when, in GPUs."""

    name: str
    node: str | None
    start: int | None
    end: int | None
    gpus: float
    by_memory: bool

    def gpu_hours(self) -> float:
        if self.start is None:
            return 0.0
        return (min(self.end if self.end is not None else HORIZON, HORIZON) - self.start) / 60 * self.gpus


class Cluster:
    """n1: whole boards and fractions of KAI; n2: some boards cut, the rest whole; n3: boards shared by HAMi."""

    def __init__(self, seed: int, pods: int = 150) -> None:
        self.luck = random.Random(seed)
        self.cut = [self.luck.choice(LAYOUTS) for _ in range(self.luck.randint(1, 7))]
        instances = [Device("n2", profile) for layout in self.cut for profile in layout]
        whole = [Device("n2", "whole") for _ in range(8 - len(self.cut))]
        self.devices = [Device("n1", "whole") for _ in range(8)] + instances + whole
        self.devices += [Device("n3", "hami") for _ in range(8)]
        self.diary: list[Entry] = []
        self.objects: list[Json] = []
        self.nodes = self._nodes()
        for number in range(pods):
            self._submit(f"pod-{number}", self.luck.choice(["whole", "whole", "mig", "mig", "hami", "hami", "kai"]))
        self._reserve()

    def _submit(self, name: str, kind: str) -> None:
        luck = self.luck
        submit, minutes = luck.randrange(HORIZON), luck.randint(5, 700)
        number, part, annotations, by_memory = 1, 1.0, {}, False
        if kind == "whole":
            number = luck.choice([1, 2, 4])
            wanted, boxes = "whole", self._boxes(number)
        elif kind == "mig":
            wanted = luck.choice(sorted({profile for layout in self.cut for profile in layout}))
            boxes = {"containers": [ask({f"nvidia.com/mig-{wanted}": "1"})]}
        elif kind == "hami":
            wanted, number, percent = "hami", luck.choice([1, 1, 2]), luck.randint(1, 10) * 5
            words = {"nvidia.com/gpu": str(number), "nvidia.com/gpumem": str(luck.randint(1, 8) * 1024)}
            part, by_memory = percent / 100, luck.random() < 0.3
            if by_memory:
                part = int(words["nvidia.com/gpumem"]) / BOARD_MIB
            else:
                words["nvidia.com/gpucores"] = str(percent)
            boxes = {"containers": [ask(words)]}
        else:
            wanted, part = "whole", luck.choice([0.25, 0.5])
            annotations, boxes = {"gpu-fraction": str(part)}, {"containers": [{}]}
        start, devices = self._place(wanted, number, part, submit, minutes, node="n1" if kind == "kai" else None)
        waits = start >= HORIZON
        end = start + minutes
        if not waits:
            for device in devices:
                device.held.append((start, end, part))
        share = number * part * (SLICES[wanted] / 7 if kind == "mig" else 1)
        over = not waits and end < HORIZON
        entry = Entry(
            name, None if waits else devices[0].node, None if waits else start, end if over else None, share, by_memory
        )
        self.diary.append(entry)
        self.objects.append(pod(entry, submit, boxes, annotations, failed=luck.random() < 0.2))

    def _boxes(self, number: int) -> Json:
        """Containers that hold a number of GPUs at the most: at once, while starting, or beside a sidecar."""
        gpu = lambda count: ask({"nvidia.com/gpu": str(count)})  # noqa: E731
        choices = [{"containers": [gpu(number)]}, {"initContainers": [gpu(number)], "containers": [gpu(1)]}]
        if number > 1:
            sidecar = {**gpu(1), "restartPolicy": "Always"}
            choices.append({"initContainers": [gpu(1), sidecar], "containers": [gpu(number - 1)]})
        return self.luck.choice(choices)

    def _place(
        self, kind: str, number: int, part: float, submit: int, minutes: int, node: str | None
    ) -> tuple[int, list[Device]]:
        """First minute, and the devices of one node, at which there is room for so long."""
        ends = {until for device in self.devices for _, until, _ in device.held if until > submit}
        for start in sorted({submit, *ends, HORIZON}):
            for each in [node] if node else ["n1", "n2", "n3"]:
                free = [
                    device
                    for device in self.devices
                    if device.node == each and device.kind == kind and device.has_room(start, start + minutes, part)
                ]
                if len(free) >= number:
                    return start, free[:number]
        return HORIZON, []

    def _reserve(self) -> None:
        """For every board that KAI shares a pod of its own that holds it whole, which counts nothing more."""
        for number, device in enumerate(self.devices[:8]):
            shared = [span for span in device.held if span[2] < 1]
            if shared:
                since = min(start for start, _, _ in shared)
                entry = Entry(f"gpu-reservation-{number}", "n1", since, None, 1.0, by_memory=False)
                boxes = {"containers": [ask({"nvidia.com/gpu": "1"})]}
                self.objects.append(pod(entry, since, boxes, {}, namespace="kai-resource-reservation"))

    def _nodes(self) -> list[Json]:
        label = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": str(BOARD_MIB)}
        mixed = {"nvidia.com/gpu": str(8 - len(self.cut))}
        for layout in self.cut:
            for profile in layout:
                name = f"nvidia.com/mig-{profile}"
                mixed[name] = str(int(mixed.get(name, "0")) + 1)
        boards = [f"GPU-{n},10,{BOARD_MIB},100,NVIDIA-NVIDIA H100 80GB HBM3,0,true,{n},hami-core:" for n in range(8)]
        return [
            node("n1", {**label, "nvidia.com/gpu.count": "8"}, {"nvidia.com/gpu": "8"}),
            node("n2", {**label, "nvidia.com/gpu.count": "8", "nvidia.com/mig.strategy": "mixed"}, mixed),
            node("n3", label, {"nvidia.com/gpu": "80"}, {"hami.io/node-nvidia-register": "".join(boards)}),
        ]

    def dump(self, *, nodes: bool = True) -> str:
        return json.dumps({"kind": "List", "items": [*self.objects, *(self.nodes if nodes else [])]})


def stamp(minute: int) -> str:
    return (BEGIN + timedelta(minutes=minute)).strftime("%Y-%m-%dT%H:%M:%SZ")


def ask(limits: Json) -> Json:
    return {"name": "main", "resources": {"limits": limits, "requests": limits}}


def pod(
    entry: Entry, submit: int, boxes: Json, annotations: Json, *, failed: bool = False, namespace: str = "ads"
) -> Json:
    about = {"name": entry.name, "namespace": namespace, "uid": entry.name, "annotations": annotations}
    status: Json = {"phase": "Pending"}
    if entry.start is not None:
        status = {"phase": "Running", "startTime": stamp(entry.start)}
    if entry.end is not None:
        over = {"terminated": {"finishedAt": stamp(entry.end)}}
        status |= {"phase": "Failed" if failed else "Succeeded", "containerStatuses": [{"state": over}]}
    place = {"nodeName": entry.node} if entry.node else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": about | {"creationTimestamp": stamp(submit)},
        "spec": boxes | place,
        "status": status,
    }


def node(name: str, labels: Json, capacity: Json, annotations: Json | None = None) -> Json:
    beat = {"type": "Ready", "status": "True", "lastHeartbeatTime": stamp(HORIZON)}
    about = {"name": name, "labels": labels, "annotations": annotations or {}}
    status = {"capacity": capacity, "conditions": [beat]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": about, "status": status}


SEEDS = range(4)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process and read what it prints as JSON."""

    def command(*words: str) -> Json:
        monkeypatch.setattr("sys.argv", ["gpuplanner", *words])
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        assert end.value.code == 0, printed.err
        return json.loads(printed.out)

    return command


@pytest.mark.parametrize("seed", SEEDS)
def test_hours_and_boards_are_those_of_the_diary(file: File, seed: int):
    cluster = Cluster(seed)
    trace = read_kubernetes([file(cluster.dump(), "dump.json")])
    assert trace.provenance["gpu_hours"] == pytest.approx(sum(entry.gpu_hours() for entry in cluster.diary))
    held = dict(trace.jobs.select("job_id", "gpus").iter_rows())
    assert held == pytest.approx({f"ads/{entry.name}": entry.gpus for entry in cluster.diary})
    assert trace.inventory is not None
    assert trace.inventory.select("node", "gpus").rows() == [("n1", 8), ("n2", 8), ("n3", 8)]
    assert trace.inventory["mig_enabled"].to_list() == [False, True, False]


@pytest.mark.parametrize("seed", SEEDS)
def test_without_nodes_only_parts_of_memory_are_unknown(file: File, seed: int):
    """No label names a board then: 1g.10gb is one of seven on each that has it, but 10 GiB of any may be all."""
    cluster = Cluster(seed)
    trace = read_kubernetes([file(cluster.dump(nodes=False), "dump.json")])
    held = dict(trace.jobs.select("job_id", "gpus").iter_rows())
    expected = {f"ads/{entry.name}": None if entry.by_memory else entry.gpus for entry in cluster.diary}
    assert {name for name, gpus in held.items() if gpus is None} == {
        name for name, gpus in expected.items() if gpus is None
    }
    known = {name: gpus for name, gpus in expected.items() if gpus is not None}
    assert {name: held[name] for name in known} == pytest.approx(known)
    assert trace.inventory is None


@pytest.mark.parametrize("nodes", [True, False], ids=["with nodes", "without"])
def test_by_commands_alone(file: File, tmp_path: Path, run: Run, nodes: bool):
    """24 boards where nodes tell them; else as many as were ever needed at once, and never more than there are."""
    cluster = Cluster(2)
    path, out = file(cluster.dump(nodes=nodes), "dump.json"), tmp_path / "out"
    read = run("ingest", "auto", str(path), "-o", str(out), "--json")
    facts = run("describe", str(out), "--json")["facts"]
    known = [entry for entry in cluster.diary if nodes or not entry.by_memory]
    until = (datetime.fromisoformat(read["span_end"]) - BEGIN) // timedelta(minutes=1)
    held = sum((min(e.end or until, until) - e.start) / 60 * e.gpus for e in known if e.start is not None)
    assert read["gpu_hours"] == pytest.approx(held)
    assert facts["gpu_hours"] == pytest.approx(held)
    begin, end = (datetime.fromisoformat(facts[name]) for name in ("span_start", "span_end"))
    boards = facts["installed_gpu_hours"] / ((end - begin).total_seconds() / 3600)
    minutes = [e.start for e in known if e.start is not None]
    most = max(sum(e.gpus for e in known if e.start is not None and e.start <= at < (e.end or until)) for at in minutes)
    if nodes:
        assert boards == pytest.approx(24)
    else:
        assert most - EXACT <= boards <= 24 + EXACT
