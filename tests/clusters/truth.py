"""What is right for each planted cluster, found by exhaustive search with the own simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from tests.clusters.cluster import Cluster
from tests.clusters.demand import WEEK
from tests.clusters.model import UNCUT, WHOLE, Job, Node, play
from tests.clusters.planted import nodes_of, planted
from tests.clusters.search import (
    LATE_S,
    Trial,
    class_of,
    classes,
    fewest_gpus,
    instances_needed,
    kept,
    more_of,
    quantile,
    tried,
)

HORIZON_D = 28
"""Days ahead within which a fleet that becomes full has to be enlarged."""

PURCHASE_D = 90
"""Days ahead for which a purchase has to last."""


@dataclass(frozen=True)
class Truth:
    """What is right for a cluster.

    Attributes
    ----------
    actions : tuple of str
        Right answers, best first.
    right_gpus : int
        GPUs at once; for buy the fleet with what is bought.
    more_gpus : int
        GPUs to buy.
    layouts : mapping of str to int
        Layout → GPUs, where GPUs are cut.
    holds, fails : PolicyRun
        The right fleet and the best of those with a node less, of the same search.
    waits : mapping of str to float
        Shares of jobs that waited over ten minutes, and why.
    figures : mapping of str to float
        What else was found.
    """

    actions: tuple[str, ...]
    right_gpus: int
    more_gpus: int = 0
    layouts: Mapping[str, int] = field(default_factory=dict)
    holds: Trial | None = None
    fails: Trial | None = None
    waits: Mapping[str, float] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)


def smaller(cluster: Cluster) -> list[Trial]:
    """Every fleet of some of today's nodes, tried against the starts on all of them."""
    than = cluster.to_the_end.start
    return [tried(cluster.jobs, fleet, than, cluster.judged, cluster.quotas) for fleet in kept(cluster.nodes)]


def recut(cluster: Cluster, *, ready: bool) -> tuple[int, dict[str, int], dict[str, int]]:
    """The fewest GPUs in any layouts: GPUs, layouts, and what is needed of each kind.

    `ready` judges against the instants at which jobs became ready, else against today's starts. Kinds do not share
    devices, so that each is searched by itself, and the layouts that hold them all together.
    """
    than = cluster.to_the_end.eligible if ready else cluster.to_the_end.start
    needs = {}
    for kind in sorted({job.kind for job in cluster.jobs}):
        if kind == WHOLE:
            each = cluster.nodes[0].gpus
            places = [place for place, job in enumerate(cluster.jobs) if job.kind == WHOLE]
            own, before = [cluster.jobs[place] for place in places], [than[place] for place in places]
            number = 0
            while True:
                number += 1
                sizes = [each] * (number // each) + ([number % each] if number % each else [])
                nodes = [Node(f"w{place}", (UNCUT,) * size) for place, size in enumerate(sizes)]
                if tried(own, nodes, before, cluster.judged).holds:
                    break
            needs[kind] = number
        else:
            trials = instances_needed(cluster.jobs, kind, cluster.judged, than)
            needs[kind] = next(place + 1 for place, trial in enumerate(trials) if trial.holds)
    gpus, layouts = fewest_gpus(cluster.gpu_model, needs)
    return gpus, layouts, needs


def _give_back(cluster: Cluster) -> Truth:
    trials = smaller(cluster)
    right = min((trial for trial in trials if trial.holds), key=lambda trial: trial.gpus)
    fails = min((t for t in trials if t.gpus < right.gpus), key=lambda t: (-t.gpus, t.late_s), default=None)
    found = Truth(("give_back",), right.gpus, holds=right, fails=fails)
    if {job.kind for job in cluster.jobs} == {WHOLE}:
        return found
    gpus, layouts, needs = recut(cluster, ready=False)
    return replace(found, layouts=layouts, figures={"gpus_recut": gpus, **needs})


def _enough(cluster: Cluster, jobs: Sequence[Job], than: Sequence[int | None]) -> tuple[Trial, Trial]:
    """The fewest nodes more with which jobs start within ten minutes of `than`, and the trial of a node less."""
    trials = [tried(jobs, more_of(cluster.nodes, number), than, cluster.judged) for number in range(9)]
    right = next(place for place, trial in enumerate(trials) if trial.holds)
    return trials[right], trials[max(0, right - 1)]


def _buy(cluster: Cluster) -> Truth:
    """From submission; and from the instants at which a reader of the dump can see that a request fitted nowhere."""
    holds, fails = _enough(cluster, cluster.jobs, cluster.to_the_end.eligible)
    seen = [(job, at) for job, at in zip(cluster.jobs, cluster.ready_as_seen(), strict=True) if at is not None]
    as_seen, _ = _enough(cluster, [replace(job, submit=at) for job, at in seen], [at for _, at in seen])
    figures = {"more_as_seen": as_seen.gpus - cluster.gpus}
    return Truth(("buy",), holds.gpus, holds.gpus - cluster.gpus, holds=holds, fails=fails, figures=figures)


def _cut(cluster: Cluster) -> Truth:
    gpus, layouts, needs = recut(cluster, ready=True)
    relative = recut(cluster, ready=False)[0]
    than = cluster.to_the_end.eligible
    today = tried(cluster.jobs, cluster.nodes, than, cluster.judged)
    each = cluster.nodes[0].gpus
    cut = [layout for layout, number in layouts.items() for _ in range(number)]
    cut += [UNCUT] * (-len(cut) % each)
    fleet = nodes_of(cluster.source, [cut[at : at + each] for at in range(0, len(cut), each)])
    holds = tried(cluster.jobs, fleet, than, cluster.judged)
    figures = {"gpus_recut": gpus, "gpus_as_late_as_today": relative, **needs}
    return Truth(("cut",), -(-gpus // each) * each, layouts=layouts, holds=holds, fails=today, figures=figures)


def _keep(cluster: Cluster) -> Truth:
    found = _give_back(cluster)
    return replace(found, actions=("keep",))


def weekly_late(cluster: Cluster, more: int = 0) -> list[float]:
    """For each week of span and future: the lateness at 95 % after submission of the worst class on the fleet [s]."""
    jobs = [*cluster.jobs, *cluster.later]
    played = play(jobs, more_of(cluster.nodes, more))
    joined = classes(jobs)
    found = []
    for week in range((jobs[-1].submit - cluster.dump) // WEEK):
        begin = cluster.dump + week * WEEK
        late: dict[str, list[int]] = {}
        for job, at in zip(jobs, played.start, strict=True):
            if begin <= job.submit < begin + WEEK:
                late.setdefault(joined[class_of(job)], []).append((at or 10**9) - job.submit)
        found.append(max(quantile(each) for each in late.values()))
    return found


def full_in_days(cluster: Cluster, more: int = 0) -> float:
    """Days from the dump to the first week in which the fleet no longer starts 95 % of a class within ten minutes."""
    late = weekly_late(cluster, more)
    return next((7.0 * week for week, seconds in enumerate(late) if seconds > LATE_S), 7.0 * len(late))


def _growth(cluster: Cluster) -> Truth:
    days = full_in_days(cluster)
    back = _give_back(cluster)
    figures = {"full_in_days": days, "fewest_today": back.right_gpus}
    if days >= HORIZON_D:
        return replace(back, actions=("keep",), right_gpus=cluster.gpus, figures=figures)
    each = cluster.nodes[-1].gpus
    lasts = {}
    for ahead in (HORIZON_D, PURCHASE_D):
        lasts[ahead] = next(n for n in range(1, 9) if full_in_days(cluster, n) >= ahead - ahead % 7)
    more = lasts[HORIZON_D] * each
    figures["more_for_purchase"] = lasts[PURCHASE_D] * each
    return Truth(("buy",), cluster.gpus + more, more, figures=figures, fails=back.fails, holds=back.holds)


_SOLVED: Mapping[str, Callable[[Cluster], Truth]] = {
    "too_large": _give_back,
    "short": _buy,
    "wrongly_cut": _cut,
    "tight": _keep,
    "quota_bound": _give_back,
    "growing": _growth,
}


@lru_cache(None)
def truth(name: str) -> Truth:
    """What is right for it: the search of its family."""
    one = planted(name)
    return replace(_SOLVED[one.family](one.cluster), waits=one.cluster.waits())
