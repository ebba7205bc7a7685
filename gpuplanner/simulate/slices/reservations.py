"""Jobs on whole GPUs that GPUs are reserved for: who comes next, and who starts."""

from __future__ import annotations

from gpuplanner.simulate.jit import called, compiled
from gpuplanner.simulate.slices.engine import start_whole
from gpuplanner.simulate.slices.instances import give_up
from gpuplanner.simulate.slices.world import NONE, WHOLE, Row, Table, World


@called
def first_unreserved(s: Row, profiles: Table, jobs: Table, easy: bool, drain_after_s: float) -> int:
    """First waiting job on whole GPUs that no GPU is reserved for; NONE if there is none.

    In a strict queue nobody looks for GPUs behind a job that waits for others to end, unless it has waited long.
    """
    whole = profiles[WHOLE]
    if whole.head == NONE:
        s.unreserved = NONE
        return NONE
    job: int = s.unreserved
    while job != NONE and jobs[job].start >= 0.0:
        job = jobs[job].behind
    if job == NONE:
        job = whole.head
    while jobs[job].reserved:
        s.unreserved = job
        if job == whole.tail:
            return NONE
        job = jobs[job].behind
    s.unreserved = job
    if not easy and s.drains and jobs[job].submit + drain_after_s > s.now:
        return NONE
    return job


@called
def start_ready(w: World) -> None:
    """Start the jobs whose reserved GPUs are all whole and idle; of jobs of one size the oldest goes first."""
    while w.status[0].ready:
        job = oldest = w.profiles[WHOLE].head
        while not w.jobs[job].reserved or w.jobs[job].pending:
            job = w.jobs[job].behind
        while w.jobs[oldest].gpus != w.jobs[job].gpus:
            oldest = w.jobs[oldest].behind
        if oldest != job:
            exchange(w, job, oldest)
        take_out(w, oldest)
        start_reserved(w, oldest)


@compiled
def exchange(w: World, job: int, other: int) -> None:
    """Let two jobs of one size exchange what is reserved for them."""
    for gpu in range(len(w.gpus)):
        placed = w.slicing.gpus[gpu]
        if placed.owner == job:
            placed.owner = other
        elif placed.owner == other:
            placed.owner = job
    one, two = w.jobs[job], w.jobs[other]
    one.reserved, two.reserved = two.reserved, one.reserved
    one.pending, two.pending = two.pending, one.pending
    one.drains, two.drains = two.drains, one.drains


@compiled
def take_out(w: World, job: int) -> None:
    """Take a job out of the queue of those on whole GPUs."""
    whole, before = w.profiles[WHOLE], w.profiles[WHOLE].head
    if before == job:
        whole.head = w.jobs[job].behind
        return
    while w.jobs[before].behind != job:
        before = w.jobs[before].behind
    w.jobs[before].behind = w.jobs[job].behind
    if job == whole.tail:
        whole.tail = before


@compiled
def start_reserved(w: World, job: int) -> None:
    """Start a job on the nodes where all that is reserved for it stands ready."""
    nodes, last = 0, NONE
    for gpu in range(w.jobs[job].reserved - 1, len(w.gpus)):
        if w.slicing.gpus[gpu].owner == job and gpu // w.per_node != last:
            last = gpu // w.per_node
            w.chosen[nodes] = last
            nodes += 1
    give_up(w, job)
    start_whole(w, job, nodes)
