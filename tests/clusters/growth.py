"""Weekly need of GPUs that grows, jumps, wanders or stays; and small fleets whose load changes from week to week."""

from __future__ import annotations

from math import exp
from random import Random

from tests.clusters.cluster import Cluster
from tests.clusters.demand import WEEK, Lane, jobs_of
from tests.clusters.planted import WORK, whole_nodes

KINDS = ("flat", "grows50", "step", "walk")
"""Stays; grows by half a year; jumps up once; wanders as a random walk of logarithms."""

NOISE = 0.06
"""Standard deviation of the independent part of each week, as a share of the level."""


def series(kind: str, seed: int, weeks: int, level: float = 40.0) -> list[float]:
    """GPUs needed in each week, with independent noise beside what `kind` does.

    >>> len(series("flat", 1, 26)), series("flat", 1, 26) == series("flat", 1, 52)[:26]
    (26, True)
    """
    random = Random(f"{kind} {seed}")
    jump, height = random.randrange(13, 91), 1 + random.uniform(0.2, 0.6)
    wander = 0.0
    found = []
    for week in range(weeks):
        wander += random.gauss(0.0, 0.03) if kind == "walk" else 0.0
        factor = {
            "flat": 1.0,
            "grows50": 1.5 ** (week / 52),
            "step": height if week >= jump else 1.0,
            "walk": exp(wander),
        }[kind]
        found.append(level * factor * max(0.5, 1 + random.gauss(0.0, NOISE)))
    return found


def months(seed: int, weeks: int) -> Cluster:
    """A small fleet of whole GPUs whose load changes from week to week: its logarithm forgets half of each change.

    The fleet holds all but the heaviest weeks. Nodes have four GPUs or eight, and there are 8 to 24 GPUs.
    """
    random = Random(f"months {seed}")
    each = random.choice((4, 4, 8))
    nodes = random.randrange(3, 6) if each == 4 else random.randrange(1, 4)
    base = each * nodes * random.uniform(0.5, 0.75)
    share = random.uniform(0.5, 0.9)
    listed: list[Lane] = []
    state = 0.0
    for week in range(weeks):
        state = 0.5 * state + random.gauss(0.0, 0.15)
        held = max(1, round(base * exp(state)))
        by_day = round(held * share)
        span = (float(week), float(week + 1))
        for place in range(held):
            size = 2 if place % 6 == 5 else 1
            user = f"user{place + 1:02d}"
            if place < by_day:
                run_h = 2.0 if size == 1 else 3.5
                listed.append(Lane("vision", "session", each=size, hours=WORK, run_h=run_h, weeks=span, user=user))
            else:
                listed.append(Lane("chem", "batch", each=size, run_h=6.0, weeks=span, user=user))
    dump = weeks * WEEK
    jobs = tuple(jobs_of(listed, dump, random))
    return Cluster(f"months-{seed}", "slurm", "A100-80GB", whole_nodes("slurm", nodes, each), jobs, dump)
