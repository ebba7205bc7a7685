"""Everything that the loops over gangs read and write: jobs that hold whole GPUs, all at once or not at all.

Jobs are numbered in the order in which they would start if all came at once, so the lowest number is first in
every queue and in every tie. Instants and durations are in seconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from gpuplanner.lab.gangs.rules import QUEUES, GangRules
from gpuplanner.simulate.fleet import Fleet
from gpuplanner.simulate.slices.world import EVENT, IDLE, NODE, NONE, Floats, Ints, Table, table

STRICT, PASS, EASY = range(len(QUEUES))
NOBODY = 1 << 60
"""Above the number of every job."""
MOST_STARTS = 10_000
"""A job that was started so often will never end."""

GANG = {
    "submit": float,
    "limit": float,  # 0 where the queue does not plan by limits
    "left": float,  # work still to do
    "charge": float,  # time that the next start takes on top
    "since": float,  # when it last joined the queue
    "begun": float,  # when it last started
    "until": float,  # when its present run ends, in its end or in a failure
    "start": float,  # first start, NaN before
    "end": float,
    "queued": float,  # time in the queue so far
    "lost": float,  # time it held its GPUs for nothing that lasts
    "gpus": np.int32,
    "held": np.int32,  # nodes that it holds; 0 unless running
    "spot": np.int32,  # where its nodes stand in ``spots``
    "line": np.int32,
    "place": np.int32,  # in its line
    "tier": np.int32,
    "row": np.int32,  # in order of arrival
    "starts": np.int32,
    "fails": np.int32,  # 1 if its present run ends in a failure
}
LINE = {
    "tree": int,  # where its tree stands in ``shortest``
    "leaves": int,  # leaves of the tree, a power of two
    "first": int,  # where its jobs stand in ``members``
    "head": int,  # first job waiting, or NOBODY
    "open": int,  # what may still start from it at this instant: CLOSED, SHORT or OPEN
    "gpus": int,  # GPUs of each of its jobs, where it holds one size only
    "tier": int,
    "tenant": int,
}
TENANT = {
    "used": float,  # decayed GPU-seconds per share
    "share": float,
    "gpus": int,  # GPUs that it holds
}
STOP = {
    "begun": float,  # when the run began that was stopped
    "at": float,
    "lost": float,  # time of that run which was for nothing that lasts
    "job": int,
    "node": int,  # first node that it held
    "failed": int,  # 1 if the job failed, 0 if it was stopped for others
}
GANG_STATUS = {
    "now": float,
    "wake": float,  # when something may start though nobody ends or arrives
    "arrived": int,
    "running": int,
    "holding": int,
    "stuck": int,  # job that was started too often, or NONE
    "stopped": int,  # rows of ``stops`` that are in use
}


class Gangs(NamedTuple):
    """GangRules, jobs, nodes, and what comes next."""

    per_node: int
    queue: int
    fair: bool
    tiers_preempt: bool
    decay: float  # rate at which use is forgotten [1/s]
    min_run: float
    write: float
    interval: float  # work between checkpoints; NaN: by Young's formula
    mtbf: float  # of one GPU; infinite without failures
    restart: float
    seed: int
    overhead: Floats  # [rank, (most GPUs, seconds)]
    jobs: Table  # [job]
    arrivals: Ints  # [rank] jobs in order of arrival
    lines: Table  # [line]
    members: Ints  # [first + place] jobs of a line, lowest number first
    shortest: Floats  # [tree + knot] least limit of the waiting jobs below a knot of a line's tree
    tenants: Table  # [tenant]
    nodes: Table  # [node]
    idle: Table  # [number of idle GPUs]
    chosen: Ints  # [rank] nodes chosen for a start
    spots: Ints  # [spot + rank] nodes that a job holds, or has reserved
    ends: Table  # [heap] running jobs by end
    due: Table  # [rank] running jobs by start + limit, ascending; room for victims
    waiting: Ints  # [rank] victims of a more urgent job, or the queue where a loop keeps one list
    stops: Table  # [row] runs that were stopped; the loop pauses for it to be emptied
    status: Table  # one row


def to_gangs(jobs: pl.DataFrame, fleet: Fleet, rules: GangRules) -> Gangs:
    """Fill the arrays for checked jobs in order of arrival."""
    gpus = jobs["gpus"].to_numpy().astype(np.int64)
    tier = jobs["tier"].fill_null(0).to_numpy()
    order = _order(jobs, gpus, tier, rules)
    work = table(GANG, jobs.height)
    work.submit = jobs["submit_s"].clip(lower_bound=0.0).to_numpy()[order]
    work.left = jobs["run_s"].to_numpy()[order]
    if rules.by_limits:
        work.limit = jobs["limit_s"].to_numpy()[order]
    work.gpus, work.tier, work.row = gpus[order], tier[order], order
    work.start = work.end = np.nan
    needed = -(-work.gpus // fleet.gpus_per_node)
    work.spot = np.cumsum(needed) - needed
    arrivals = np.empty(len(order), np.int64)
    arrivals[order] = np.arange(len(order))
    tenants, tenant = _tenants(jobs["tenant"], order, rules)
    lines, members, shortest = _lines(work, tenant, rules)
    nodes, idle = table(NODE, fleet.nodes), table(IDLE, fleet.gpus_per_node + 1)
    nodes.idle = fleet.gpus_per_node
    idle[fleet.gpus_per_node].nodes = fleet.nodes
    status = table(GANG_STATUS, 1)
    status.wake = np.inf
    status.stuck = NONE
    failures = rules.failures
    running = min(jobs.height, fleet.gpus)
    return Gangs(
        per_node=fleet.gpus_per_node,
        queue={"pass": PASS, "easy": EASY}.get(rules.queue, STRICT),
        fair=rules.order == "fair",
        tiers_preempt=rules.tiers_preempt,
        decay=float(np.log(2) / rules.fair_share.half_life_s),
        min_run=float(rules.preemption.min_run_s),
        write=float(rules.checkpoints.write_s),
        interval=rules.saved_every_s,
        mtbf=np.inf if failures is None else failures.mtbf_s(1),
        restart=0.0 if failures is None else float(failures.restart_s),
        seed=0 if failures is None else failures.seed,
        overhead=np.array(rules.preemption.overhead_s, dtype=np.float64),
        jobs=work,
        arrivals=arrivals,
        lines=lines,
        members=members,
        shortest=shortest,
        tenants=tenants,
        nodes=nodes,
        idle=idle,
        chosen=np.zeros(fleet.nodes, np.int64),
        spots=np.zeros(int(needed.sum()), np.int64),
        ends=table(EVENT, running),
        due=table(EVENT, running),
        waiting=np.zeros(jobs.height, np.int64),
        # In one instant no more runs are stopped than were under way when it began.
        stops=table(STOP, 4 * running + 64 if rules.stop_jobs else 0),
        status=status,
    )


def _order(jobs: pl.DataFrame, gpus: Ints, tier: Ints, rules: GangRules) -> Ints:
    """Rows in the order of the queue, as far as it is known beforehand."""
    arrival = np.arange(jobs.height)
    if rules.order == "sjf":
        return np.lexsort((arrival, jobs["run_s"].to_numpy(), tier))
    if rules.order == "qssf":
        return np.lexsort((arrival, jobs["predicted_gpu_s"].to_numpy(), tier))
    return np.lexsort((arrival, tier)) if tier.any() and rules.order == "fifo" else arrival


def _tenants(names: pl.Series, order: Ints, rules: GangRules) -> tuple[Table, Ints]:
    """Tenants, and the number of the tenant of every job; one for all unless they take turns."""
    if rules.order != "fair":
        return table(TENANT, 1), np.zeros(len(order), np.int64)
    known = names.unique(maintain_order=True)
    tenants = table(TENANT, max(len(known), 1))
    tenants.share[: len(known)] = [rules.fair_share.shares.get(name, 1.0) for name in known]
    number = names.replace_strict(known, np.arange(len(known)), return_dtype=pl.Int64)
    return tenants, number.to_numpy()[order]


def _lines(work: Table, tenant: Ints, rules: GangRules) -> tuple[Table, Ints, Floats]:
    """Put jobs into lines of which the first waiting job alone needs to be looked at.

    Where smaller jobs may pass, that is one line for each number of GPUs: if its first job does not fit, none
    of it does.
    """
    one = np.zeros(len(work), np.int64)
    size = work.gpus if rules.queue in ("pass", "easy") else one
    tiers, tier = np.unique(work.tier, return_inverse=True) if rules.order == "fair" else (one[:1], one)
    sizes, rank = _ranked(size)
    kinds = (len(tiers), int(tenant.max(initial=0)) + 1, len(sizes))
    keys, line = _ranked(np.ravel_multi_index((tier, tenant, rank), kinds))
    lines = table(LINE, max(len(keys), 1))
    lines.head = NOBODY
    of_tier, of_tenant, of_size = np.unravel_index(keys, kinds)
    lines.tier[: len(keys)], lines.tenant[: len(keys)] = tiers[of_tier], of_tenant
    lines.gpus[: len(keys)] = sizes[of_size]
    count = np.bincount(line, minlength=len(lines))
    lines.first = np.cumsum(count) - count
    lines.leaves = 1 << np.ceil(np.log2(np.maximum(count, 1))).astype(np.int64)
    lines.tree = 2 * (np.cumsum(lines.leaves) - lines.leaves)
    # Short integers are sorted by counting.
    members = np.argsort(line.astype(np.uint16) if len(lines) < 2**16 else line, kind="stable")
    work.line = line
    work.place[members] = np.arange(len(work)) - lines.first[line[members]]
    return lines, members, np.full(2 * int(lines.leaves.sum()), np.inf)


def _ranked(values: Ints) -> tuple[Ints, Ints]:
    """Distinct values, none below 0, and the rank of each among them: by counting, which is quicker than sorting."""
    known = np.flatnonzero(np.bincount(values))
    rank = np.zeros(int(values.max(initial=0)) + 1, np.int64)
    rank[known] = np.arange(len(known))
    return known, rank[values]
