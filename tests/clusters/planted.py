"""Eighteen clusters of at most 32 GPUs, three of each family; what is right for them is in ``truth``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from tests.clusters.cluster import Cluster
from tests.clusters.demand import DAY, WEEK, Lane, jobs_of, lanes
from tests.clusters.model import UNCUT, Node

FAMILIES = ("too_large", "short", "wrongly_cut", "tight", "quota_bound", "growing")

FRIDAY = int(2.4 * DAY)
"""A dump is written this long before the last Monday: on a Friday afternoon, with jobs that run and wait."""

WORK = (8.0, 18.0)


@dataclass(frozen=True)
class Planted:
    """One of the eighteen: its family, its number there, and the cluster."""

    family: str
    number: int
    cluster: Cluster

    @property
    def name(self) -> str:
        return self.cluster.name


def names(draw: str = "") -> list[str]:
    """Names of the eighteen; with a draw, of the same demand drawn anew.

    >>> names()[0], names("b")[0]
    ('too_large-1', 'too_large-1b')
    """
    return [f"{family}-{number}{draw}" for family in FAMILIES for number in (1, 2, 3)]


@lru_cache(None)
def planted(name: str) -> Planted:
    """One of the eighteen clusters, by a name of ``names``."""
    family, _, number = name.rpartition("-")
    return Planted(family, int(number[0]), _MADE[family](name, int(number[0])))


def nodes_of(source: str, layouts: Sequence[Sequence[str]]) -> tuple[Node, ...]:
    """Nodes with names as such clusters give them."""
    form = "gn{:02d}" if source == "slurm" else "gpu-worker-{:02d}"
    return tuple(Node(form.format(place + 1), tuple(each)) for place, each in enumerate(layouts))


def whole_nodes(source: str, number: int, gpus: int) -> tuple[Node, ...]:
    return nodes_of(source, [[UNCUT] * gpus] * number)


def by_turns(number: int, account: str, other: str, *, each: int = 1, run_h: float = 7.0) -> list[Lane]:
    """Places that are never free for long: sessions of one team by day, jobs of another by night and at weekends."""
    day = Lane(account, "notebook", each=each, hours=WORK, run_h=2.5)
    night = Lane(other, "sweep", each=each, hours=WORK, outside=True, run_h=run_h)
    return lanes(number, day) + lanes(number, night)


def by_day(number: int, account: str, name: str, **words: object) -> list[Lane]:
    """Places that are used in working hours alone."""
    return lanes(number, Lane(account, name, hours=WORK, **{"run_h": 2.0, "absent": 0.04, **words}))  # type: ignore[arg-type]


def always(number: int, account: str, name: str, **words: object) -> list[Lane]:
    """Places that are used day and night."""
    return lanes(number, Lane(account, name, **{"run_h": 8.0, **words}))  # type: ignore[arg-type]


def _cluster(
    name: str,
    source: str,
    gpu_model: str,
    nodes: tuple[Node, ...],
    listed: Sequence[Lane],
    weeks: int,
    quotas: Mapping[str, int] | None = None,
    later_weeks: int = 0,
) -> Cluster:
    dump = weeks * WEEK - FRIDAY
    jobs = jobs_of(listed, dump + later_weeks * WEEK, Random(name))
    now = tuple(job for job in jobs if job.submit <= dump)
    return Cluster(name, source, gpu_model, nodes, now, dump, quotas or {}, later=tuple(jobs[len(now) :]))


def _too_large(name: str, number: int) -> Cluster:
    if number == 1:
        listed = [
            *by_day(5, "vision", "finetune"),
            *by_day(1, "speech", "train", each=2, run_h=3.0),
            *by_day(1, "speech", "pretrain", each=4, run_h=4.0),
            *always(3, "chem", "md"),
        ]
        return _cluster(name, "slurm", "A100-80GB", whole_nodes("slurm", 8, 4), listed, 8)
    if number == 2:
        listed = [
            *by_day(6, "nlp", "eval"),
            *by_day(2, "ranking", "train", each=2, run_h=3.0),
            *always(2, "ranking", "sweep"),
            *always(1, "nlp", "pretrain", each=2, run_h=10.0),
        ]
        return _cluster(name, "kubernetes", "H100-80GB", whole_nodes("kubernetes", 4, 8), listed, 6)
    layouts = [[UNCUT] * 4] * 3 + [["1g.5gb:7"] * 4] + [["3g.20gb:2"] * 4] * 2
    listed = [
        *by_day(4, "vision", "finetune"),
        *by_day(1, "vision", "train", each=2, run_h=3.0),
        *always(1, "chem", "md"),
        *by_day(22, "course", "notebook", kind="1g.5gb", run_h=2.5),
        *always(4, "bio", "fold", kind="1g.5gb"),
        *by_day(6, "bio", "train", kind="3g.20gb", run_h=3.0),
        *always(2, "chem", "screen", kind="3g.20gb"),
    ]
    return _cluster(name, "slurm", "A100-40GB", nodes_of("slurm", layouts), listed, 6)


def _short(name: str, number: int) -> Cluster:
    if number == 1:
        listed = [
            *by_day(9, "vision", "finetune"),
            *by_day(4, "speech", "train", each=2, run_h=3.0),
            *always(5, "chem", "md", run_h=5.0),
        ]
        return _cluster(name, "slurm", "A100-80GB", whole_nodes("slurm", 4, 4), listed, 8)
    if number == 2:  # on the first two days of each week alone
        listed = [
            *by_day(6, "nlp", "eval"),
            *by_day(2, "ranking", "train", each=2, run_h=3.0),
            *always(4, "nlp", "sweep", run_h=5.0),
        ]
        for week in range(8):
            listed += by_day(7, "search", "index", weeks=(float(week), week + 2 / 7))
        return _cluster(name, "kubernetes", "H100-80GB", whole_nodes("kubernetes", 2, 8), listed, 8)
    listed = [
        *by_day(16, "vision", "finetune"),
        *by_day(3, "speech", "train", each=2, run_h=3.0),
        *always(5, "chem", "md"),
    ]
    return _cluster(name, "slurm", "A100-80GB", whole_nodes("slurm", 6, 4), listed, 7)


def _wrongly_cut(name: str, number: int) -> Cluster:
    source = "kubernetes" if number == 2 else "slurm"
    one, three = ("1g.10gb", "3g.40gb") if number == 2 else ("1g.5gb", "3g.20gb")
    slices, halves = [f"{one}:7"], [f"{three}:2"]
    night = Lane("bio", "fold", kind=one, hours=WORK, outside=True, run_h=4.0)
    if number == 1:  # two GPUs of 1g where three are needed, a GPU more of 3g than is needed
        layouts = [[UNCUT] * 4] * 2 + [halves[0:1] * 4, halves * 2 + slices * 2]
        listed = [
            *always(4, "chem", "md"),
            *by_turns(2, "vision", "speech", each=2),
            *by_day(18, "course", "notebook", kind=one, run_h=2.0),
            *lanes(3, night),
            *always(2, "bio", "embed", kind=one),
            *always(10, "chem", "screen", kind=three),
        ]
        return _cluster(name, source, "A100-40GB", nodes_of(source, layouts), listed, 6)
    if number == 2:
        layouts = [[UNCUT] * 8, halves * 6 + slices * 2]
        listed = [
            *always(4, "nlp", "pretrain"),
            *by_turns(4, "ranking", "nlp"),
            *by_day(17, "course", "notebook", kind=one, run_h=2.0),
            *lanes(3, night),
            *always(3, "nlp", "embed", kind=one),
            *always(10, "ranking", "serve-test", kind=three),
        ]
        return _cluster(name, source, "H100-80GB", nodes_of(source, layouts), listed, 6)
    layouts = [[UNCUT] * 4, [UNCUT] * 4, [UNCUT] * 4, slices * 4, halves * 4]
    listed = [  # too few of 3g, while whole GPUs idle
        *always(6, "chem", "md"),
        *by_turns(2, "vision", "speech"),
        *by_turns(1, "speech", "vision", each=2),
        *always(24, "course", "service", kind=one, run_h=9.0),
        *by_day(9, "bio", "train", kind=three, run_h=2.5),
        *always(2, "chem", "screen", kind=three),
    ]
    return _cluster(name, source, "A100-40GB", nodes_of(source, layouts), listed, 6)


def _tight(name: str, number: int) -> Cluster:
    if number == 1:
        listed = [
            *by_turns(3, "vision", "speech"),
            *always(4, "chem", "md"),
            *always(3, "speech", "train", each=2),
            *always(1, "vision", "sweep", each=2),
        ]
        return _cluster(name, "slurm", "A100-80GB", whole_nodes("slurm", 4, 4), listed, 8)
    if number == 2:
        listed = [*by_turns(5, "nlp", "ranking"), *always(8, "ranking", "sweep"), *always(5, "nlp", "pretrain", each=2)]
        return _cluster(name, "kubernetes", "H100-80GB", whole_nodes("kubernetes", 3, 8), listed, 6)
    layouts = [[UNCUT] * 4] * 2 + [["1g.5gb:7"] * 4, ["3g.20gb:2"] * 4]
    listed = [
        *always(2, "chem", "md"),
        *by_turns(2, "vision", "speech"),
        *always(2, "speech", "train", each=2),
        *always(26, "bio", "fold", kind="1g.5gb", run_h=10.0),
        *always(8, "chem", "screen", kind="3g.20gb"),
    ]
    return _cluster(name, "slurm", "A100-40GB", nodes_of("slurm", layouts), listed, 5)


def _quota_bound(name: str, number: int) -> Cluster:
    if number == 1:
        quotas = {"vision": 4, "speech": 3, "chem": 3, "bio": 3}
        listed = [lane for team in quotas for lane in by_day(4, team, "finetune")]
        listed += by_day(1, "vision", "train", each=2)
        listed += [lane for team in quotas for lane in always(1, team, "batch")]
        return _cluster(name, "slurm", "A100-80GB", whole_nodes("slurm", 8, 4), listed, 8, quotas)
    if number == 2:
        quotas = {"nlp": 5, "ranking": 5, "search": 4}
        listed = [lane for team in quotas for lane in by_day(5, team, "eval")]
        listed += [lane for team in ("nlp", "ranking") for lane in by_day(1, team, "train", each=2)]
        listed += [lane for team in quotas for lane in always(1, team, "batch")]
        return _cluster(name, "kubernetes", "H100-80GB", whole_nodes("kubernetes", 4, 8), listed, 6, quotas)
    quotas = {"vision": 4, "chem": 3, "bio": 3}
    listed = [lane for team in quotas for lane in by_day(4, team, "finetune")]
    listed += by_day(1, "vision", "train", each=2)
    listed += [lane for team in quotas for lane in always(1, team, "batch")]
    return _cluster(name, "slurm", "A100-80GB", whole_nodes("slurm", 6, 4), listed, 7, quotas)


def _growing(name: str, number: int) -> Cluster:
    nodes, base, per_week, source, weeks = {
        1: (4, 27, 0.6, "kubernetes", 8),
        2: (3, 19, 0.6, "slurm", 8),
        3: (4, 27, 0.25, "slurm", 8),
    }[number]
    listed: list[Lane] = []
    listed += always(3, "vision" if source == "slurm" else "nlp", "train", each=2)
    places = base + int(per_week * (weeks + 14))
    for place in range(6, places):
        since = max(0.0, (place - base + 1) / per_week)
        team, other = (("nlp", "ranking"), ("vision", "chem"))[place % 2]
        user = f"{team[:4]}{place + 1:02d}"
        if place % 4 == 3:
            day = Lane(team, "notebook", hours=WORK, run_h=2.5, weeks=(since, 1e9), user=user)
            listed += [day, replace(day, account=other, name="sweep", outside=True, run_h=7.0)]
        else:
            listed.append(Lane(team, "train", run_h=8.0, weeks=(since, 1e9), user=user))
    gpu_model = "H100-80GB" if source == "kubernetes" else "A100-80GB"
    return _cluster(name, source, gpu_model, whole_nodes(source, nodes, 8), listed, weeks, later_weeks=13)


_MADE: Mapping[str, Callable[[str, int], Cluster]] = {
    "too_large": _too_large,
    "short": _short,
    "wrongly_cut": _wrongly_cut,
    "tight": _tight,
    "quota_bound": _quota_bound,
    "growing": _growing,
}
