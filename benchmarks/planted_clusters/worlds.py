"""The planted clusters: what stands in them, what is submitted, and the queue rules that hold there."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl
from queue_simulator import DOWN, DRAINED, IN_SERVICE, Outages
from workloads import DAY_S, HOUR_S, RECORD_S, RUN_ON_S, TENANTS, WARM_UP_S, Demand, generate_jobs, generate_services

GANGS = {1: 0.78, 2: 0.1, 4: 0.05, 8: 0.06, 16: 0.01}
SMALL = {1: 0.78, 2: 0.13, 4: 0.09}
MODEST = {1: 0.71, 2: 0.13, 4: 0.1, 8: 0.06}
MAX_SCALE = 4
"""Counterfactuals try at most so many times today's GPUs."""


@dataclass(frozen=True)
class Layout:
    """How GPUs of a model are partitioned."""

    gres: str  # the name that Slurm gives them
    profile: str | None = None
    instances_per_gpu: int = 1

    @property
    def gpu_fraction(self) -> float:
        """Share of a GPU's compute slices that an instance has."""
        return int(self.profile[0]) / 7 if self.profile else 1.0


@dataclass(frozen=True)
class World:
    """A planted cluster."""

    about: str
    gpus_by_layout: tuple[int, ...]
    demands: tuple[Demand, ...]  # one for each layout
    layouts: tuple[Layout, ...] = (Layout("h100"),)  # those of the cluster, and those that a measure may make
    node_gpus: int = 8
    spread: bool = False  # jobs go to the emptiest node
    passing: bool = False  # whoever fits starts: no job has a reservation
    fair_share_weight_s: float = 0.0  # waiting that full fair share is worth in the order of the queue
    urgent_is_first: bool = False  # the partition "urgent" is a day ahead, and a large job an hour for each GPU
    tenant_limits: dict[str, int] = field(default_factory=dict)  # GPUs at once
    services: tuple[tuple[int, int], ...] = ()  # replicas by day and by night
    outages: bool = False
    weeks_ahead: int = 0  # weeks after the record that are simulated too


MIG_LAYOUTS = (Layout("a100"), Layout("a100_3g.20gb", "3g.20gb", 2), Layout("a100_1g.5gb", "1g.5gb", 7))
WORLDS = {
    "a": World("14 % of 64 GPUs are allocated.", (64,), (Demand(4000, 9.0, MODEST),)),
    "b": World("32 GPUs are saturated.", (32,), (Demand(7000, 28.0),), (Layout("a100"),)),
    "c": World(
        "Jobs are spread over the nodes of 64 GPUs, so that large jobs find no node together.",
        (64,), (Demand(7000, 11.0, GANGS),), spread=True,
    ),
    "d": World(
        "Limits of the tenants bind on 64 GPUs.", (64,), (Demand(7000, 26.0, SMALL),),
        tenant_limits=dict(zip(TENANTS, (13, 9, 7, 7, 6, 6), strict=True)),
    ),
    "e": World(
        "Submitted work grows by 5 % a week on 96 GPUs.",
        (96,), (Demand(9000, 29.0, weekly_growth=0.05, weekly_noise=0.04),), weeks_ahead=16,
    ),
    "f": World(
        "Of 24 GPUs too few are partitioned into 1g.5gb, and too many into 3g.20gb.", (8, 12, 4),
        (Demand(1200, 0.7, {1: 0.92, 2: 0.08}), Demand(1500, 2.0, {1: 1.0}, 1), Demand(5500, 22.5, {1: 1.0}, 2)),
        MIG_LAYOUTS, node_gpus=4,
    ),
    "g": World(
        "Eight of ten jobs use a tenth of their GPUs.", (32,), (Demand(6000, 19.5, SMALL, low_use_fraction=0.8),),
        (Layout("a100_80gb"), Layout("a100_1g.10gb", "1g.10gb", 7)),
    ),
    "h": World(
        "Services have 26 replicas by day and 6 by night on 64 GPUs, beside training.",
        (64,), (Demand(4500, 14.0),), services=((14, 3), (7, 2), (5, 1)),
    ),
    "i": World("Urgent and large jobs go first on 48 GPUs.", (48,), (Demand(7000, 29.0, urgent_fraction=0.15),),
               urgent_is_first=True),
    "j": World("Fair share orders the queue of 48 GPUs.", (48,), (Demand(7000, 32.0),), fair_share_weight_s=2 * DAY_S),
    "k": World("Whoever fits starts first on 32 GPUs: large jobs have no reservation.", (32,), (Demand(6000, 20.0),),
               passing=True),
    "l": World(
        "Limits of the tenants bind on 48 GPUs, and without them the queue would be full.",
        (48,), (Demand(7000, 28.0),), tenant_limits=dict(zip(TENANTS, (18, 16, 16, 16, 16, 16), strict=True)),
    ),
    "m": World("Nodes of 64 GPUs are drained and go down.", (64,), (Demand(7000, 34.0),), outages=True),
}  # fmt: skip


def jobs_of_world(world: World, seed: int) -> pl.DataFrame:
    """Return all jobs of a world in order of eligibility, with their job size."""
    until_s = RECORD_S + RUN_ON_S + world.weeks_ahead * 7 * DAY_S
    frames = [generate_jobs(demand, seed, node_gpus=world.node_gpus, until_s=until_s) for demand in world.demands]
    if world.services:
        frames.append(generate_services(world.services, seed, until_s))
    jobs = pl.concat(frames, how="diagonal_relaxed")
    gpus = pl.col("gpus_per_node") * pl.col("nodes")
    if world.urgent_is_first:
        jobs = jobs.with_columns(boost_s=pl.col("boost_s") + gpus * HOUR_S)
    by_gpus = pl.when(gpus == 1).then(pl.lit("1")).when(gpus <= 4).then(pl.lit("2-4"))
    size = by_gpus.when(gpus <= 8).then(pl.lit("5-8")).otherwise(pl.lit(">8"))
    for layout in range(1, len(world.demands)):
        size = pl.when(pl.col("layout") == layout).then(pl.lit(world.layouts[layout].profile)).otherwise(size)
    return jobs.with_columns(size=size, gpus=gpus).sort("eligible_s", maintain_order=True)


def outage_rows(world: World, seed: int) -> list[tuple[int, int, int, int]]:
    """Return (node, start, end, state) of each outage, for as many nodes as a counterfactual may have."""
    rows = []
    nodes = MAX_SCALE * sum(world.gpus_by_layout) // world.node_gpus if world.outages else 0
    for node in range(nodes):
        rng = np.random.default_rng([seed, 1000 + node])
        start_s = -WARM_UP_S
        while True:
            start_s += int(rng.exponential(11 * DAY_S))
            if start_s >= RECORD_S:
                break
            down = rng.random() < 0.4
            end_s = start_s + int(rng.lognormal(np.log(8 if down else 22), 0.7) * HOUR_S)
            rows.append((node, start_s, end_s, DOWN if down else DRAINED))
            start_s = end_s
    return rows


def make_outages(rows, units: int) -> Outages:
    """Return the outages of the first so many nodes as the simulator takes them."""
    changes = []
    for node, start_s, end_s, state in rows:
        if node < units:
            changes += [(start_s, node, state), (end_s, node, IN_SERVICE)]
    return Outages(*np.array(sorted(changes), dtype=np.int64).reshape(-1, 3).T.copy())
