"""Exhaustive search with the own simulator: how many GPUs, and instances of each profile, serve the jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from tests.clusters.model import UNCUT, WHOLE, Job, Node, play

LATE_S = 600
"""Seconds by which a start may come later."""

FEW = 20
"""Jobs below which a size class joins its neighbour."""

MOST_WAITING = 400
"""Jobs that wait at once above which a fleet is out: with these clusters that is days of demand."""

WHOLE_CLASSES = ("1", "2-4", "5-8", "more")

MAXIMAL = {
    "A100-40GB": ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb"),
    "A100-80GB": ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb"),
    "H100-80GB": ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb"),
}
"""Board → its profiles of one to four slices. On all of them the same combinations are legal."""

COMBINATIONS = (
    (7, 0, 0, 0),
    (5, 1, 0, 0),
    (3, 2, 0, 0),
    (1, 3, 0, 0),
    (4, 0, 1, 0),
    (2, 1, 1, 0),
    (0, 2, 1, 0),
    (0, 0, 2, 0),
    (3, 0, 0, 1),
    (1, 1, 0, 1),
    (0, 0, 1, 1),
)
"""Instances of one to four slices that fill a GPU: NVIDIA MIG User Guide, Supported MIG Profiles, configurations of
A100 and H100 (seven slices of compute, eight of memory; 3g takes four of memory)."""


def class_of(job: Job) -> str:
    if job.kind != WHOLE:
        return job.kind
    return WHOLE_CLASSES[sum(job.devices > most for most in (1, 4, 8))]


def classes(jobs: Iterable[Job]) -> dict[str, str]:
    """Class → class that it is judged in: those of few jobs join the larger neighbour, the largest its smaller."""
    counts: dict[str, int] = {}
    for job in jobs:
        counts[class_of(job)] = counts.get(class_of(job), 0) + 1
    joined: dict[str, str] = {}
    profiles = sorted((each for each in counts if each not in WHOLE_CLASSES), key=_memory)
    for order in (profiles, [each for each in WHOLE_CLASSES if each in counts]):
        groups = [[each] for each in order]
        at = 0
        while at < len(groups) and len(groups) > 1:
            if sum(counts[each] for each in groups[at]) >= FEW:
                at += 1
                continue
            other = at + 1 if at + 1 < len(groups) else at - 1
            small = groups.pop(at)
            groups[other - (other > at)] += small
            at = 0
        for group in groups:
            joined |= dict.fromkeys(group, max(group, key=order.index))
    return joined


def _memory(profile: str) -> tuple[int, int]:
    slices, memory = profile.split("g.")
    return int(memory.removesuffix("gb")), int(slices)


def quantile(values: Iterable[float], share: float = 0.95) -> float:
    """The order statistic of which at least that share is no larger.

    >>> quantile(range(1, 21)), quantile([7.0])
    (19, 7.0)
    """
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


@dataclass(frozen=True)
class Trial:
    """A fleet that was tried: nodes, GPUs, the worst class with its lateness at 95 % and 98 % [s], and if it holds."""

    nodes: int
    gpus: int
    worst: str
    late_s: float
    late98_s: float
    holds: bool


def late_by_class(
    jobs: Sequence[Job], start: Sequence[int | None], than: Sequence[int | None], judged: tuple[int, int]
) -> dict[str, list[float]]:
    """Class → seconds by which its judged jobs start later than `than`; those that never start are infinitely late."""
    begin, end = judged
    rows = [
        (job, float("inf") if (at := start[place]) is None else max(0, at - before))
        for place, job in enumerate(jobs)
        if (before := than[place]) is not None and begin <= job.submit <= end
    ]
    joined = classes(job for job, _ in rows)
    found: dict[str, list[float]] = {}
    for job, late in rows:
        found.setdefault(joined[class_of(job)], []).append(late)
    return found


def tried(
    jobs: Sequence[Job],
    nodes: Sequence[Node],
    than: Sequence[int | None],
    judged: tuple[int, int],
    quotas: Mapping[str, int] | None = None,
) -> Trial:
    """Play jobs on a fleet and judge it against the starts `than`."""
    played = play(jobs, nodes, quotas=quotas, most_waiting=MOST_WAITING)
    gpus = sum(node.gpus for node in nodes)
    late = late_by_class(jobs, played.start, than, judged)
    worst = max(late, key=lambda each: quantile(late[each]))
    at95 = quantile(late[worst])
    at98 = max(quantile(each, 0.98) for each in late.values())
    return Trial(len(nodes), gpus, worst, at95, at98, played.whole and at95 <= LATE_S)


def kept(nodes: Sequence[Node]) -> list[tuple[Node, ...]]:
    """All fleets that are left when some nodes go: one for each number of nodes of each kind, by GPUs."""
    kinds: dict[tuple[str, ...], list[Node]] = {}
    for node in nodes:
        kinds.setdefault(node.layouts, []).append(node)
    fleets = [
        tuple(node for alike, number in zip(kinds.values(), numbers, strict=True) for node in alike[:number])
        for numbers in product(*(range(len(alike) + 1) for alike in kinds.values()))
    ]
    return sorted((fleet for fleet in fleets if fleet), key=lambda fleet: (sum(n.gpus for n in fleet), len(fleet)))


def more_of(nodes: Sequence[Node], number: int) -> list[Node]:
    """The fleet and some nodes more like its last."""
    like = nodes[-1]
    return [*nodes, *(Node(f"new{place + 1:02d}", like.layouts) for place in range(number))]


def instances_needed(
    jobs: Sequence[Job], kind: str, judged: tuple[int, int], than: Sequence[int | None]
) -> list[Trial]:
    """Trials of 1, 2, … instances of a profile for the jobs that ask for it, up to the fifth that holds in a row."""
    places = [place for place, job in enumerate(jobs) if job.kind == kind]
    own, before = [jobs[place] for place in places], [than[place] for place in places]
    found: list[Trial] = []
    while not (len(found) >= 5 and all(trial.holds for trial in found[-5:])):
        number = len(found) + 1
        found.append(tried(own, [Node("all", (f"{kind}:{number}",))], before, judged))
    return found


def fewest_gpus(gpu_model: str, needs: Mapping[str, int]) -> tuple[int, dict[str, int]]:
    """The fewest GPUs on which some instances and whole GPUs can be, and how many of each layout.

    >>> fewest_gpus("A100-40GB", {"gpu": 3, "1g.5gb": 4, "3g.20gb": 3})
    (5, {'whole': 3, '1g.5gb:4,3g.20gb:1': 1, '3g.20gb:2': 1})
    """
    names = MAXIMAL[gpu_model]
    wanted = tuple(needs.get(name, 0) for name in names)

    @lru_cache(None)
    def cover(left: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        if not any(left):
            return 0, ()
        best: tuple[int, tuple[int, ...]] | None = None
        for place, each in enumerate(COMBINATIONS):
            if not any(have and need for have, need in zip(each, left, strict=True)):
                continue
            rest = cover(tuple(max(0, need - have) for have, need in zip(each, left, strict=True)))
            if best is None or rest[0] + 1 < best[0]:
                best = rest[0] + 1, (place, *rest[1])
        assert best is not None
        return best

    number, used = cover(wanted)
    layouts = {UNCUT: needs[WHOLE]} if needs.get(WHOLE) else {}
    for place in sorted(used):
        parts = zip(names, COMBINATIONS[place], strict=True)
        text = ",".join(f"{name}:{count}" for name, count in parts if count)
        layouts[text] = layouts.get(text, 0) + 1
    return number + needs.get(WHOLE, 0), layouts
