"""A slow replay of a queue and slow causes of waits, in plain Python, by the rules of docs/method.md alone.

Nothing is kept from event to event but who waits and who runs: free GPUs are counted anew from the jobs that run. It
is to be read beside the documentation, and shares no code with the package.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

CAUSES = ("insufficient", "fragmented", "wrong_layout", "queued_behind", "limits", "unexplained")
NEVER = math.inf


@dataclass(frozen=True)
class Job:
    """A request for GPUs, or for instances of a profile.

    - ``row``: Row in the record.
    - ``ready_s``, ``submit_s``: When it may start, and when it was submitted [s].
    - ``run_s``, ``limit_s``: How long it runs, and its time limit [s].
    - ``profile``: Number of the instance type.
    - ``total``, ``nodes``: GPUs or instances, and the nodes that they are spread over.
    - ``tenant``: Number of the tenant; None: nobody's, as a closed node.
    - ``rank``: Its place in the queue, the lowest first.
    """

    row: int
    ready_s: float
    submit_s: float
    run_s: float
    limit_s: float
    profile: int
    total: int
    nodes: int
    tenant: int | None
    rank: float

    @property
    def queue_key(self) -> tuple[float, float, float, int]:
        """The order of the queue: by rank, eligibility, submission, row."""
        return (self.rank, self.ready_s, self.submit_s, self.row)

    @property
    def shares(self) -> list[int]:
        """GPUs on each of its nodes: as many on each, and the rest on the last."""
        share = math.ceil(self.total / self.nodes)
        return [share] * (self.nodes - 1) + [self.total - share * (self.nodes - 1)]


@dataclass(frozen=True)
class Cluster:
    """Nodes and instance types.

    - ``capacity``: What each node has of each profile.
    - ``weights``: Share of a GPU that an instance of each profile is.
    - ``sliced``: Which profiles are slices.
    """

    capacity: list[list[int]]
    weights: list[float]
    sliced: list[bool]


@dataclass(frozen=True)
class Rules:
    """How the queue is served: ``queue`` is "easy" or "pass", ``peak_gpus`` the limits by tenant."""

    queue: str
    spread: bool
    peak_gpus: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """A job on its nodes: ``amounts`` are pairs of node and GPUs, ``due_s`` is its end by the time limit."""

    job: Job
    start_s: float
    amounts: list[tuple[int, int]]

    @property
    def end_s(self) -> float:
        """When it ends."""
        return self.start_s + self.job.run_s

    @property
    def due_s(self) -> float:
        """When it ends at the latest."""
        return self.start_s + max(self.job.limit_s, self.job.run_s)


@dataclass
class Reservation:
    """The nodes of the first job that waits: from when on [s], and what each has to spare then."""

    start_s: float
    spare: dict[int, int]


def replay_queue(jobs: Sequence[Job], cluster: Cluster, rules: Rules) -> dict[int, Run]:
    """Run all jobs; those that never start are left out.

    Within one instant jobs end, jobs become eligible, and then jobs start in the order of the queue.

    Parameters
    ----------
    jobs : sequence of Job
        In any order.
    cluster : Cluster
        The nodes.
    rules : Rules
        The queue, the placement and the limits.

    Returns
    -------
    dict of int to Run
        By row of the job.
    """
    empty = [row.copy() for row in cluster.capacity]
    coming = [job for job in jobs if choose_nodes(job, empty, rules, None) is not None]
    waiting: list[Job] = []
    running: list[Run] = []
    runs: dict[int, Run] = {}
    while True:
        now = min([job.ready_s for job in coming] + [run.end_s for run in running], default=NEVER)
        if now == NEVER:
            return runs

        running = [run for run in running if run.end_s > now]
        waiting = sorted(waiting + [job for job in coming if job.ready_s <= now], key=lambda job: job.queue_key)
        coming = [job for job in coming if job.ready_s > now]

        for run in start_jobs(now, waiting, running, cluster, rules):
            runs[run.job.row] = run
        waiting = [job for job in waiting if job.row not in runs]


def start_jobs(now: float, waiting: list[Job], running: list[Run], cluster: Cluster, rules: Rules) -> list[Run]:
    """Start all that can start at an instant, and add it to what runs.

    Parameters
    ----------
    now : float
        The instant [s].
    waiting : list of Job
        In the order of the queue.
    running : list of Run
        What runs; grows.
    cluster, rules
        As of :func:`replay_queue`.
    """
    started: list[Run] = []
    reservation: Reservation | None = None
    profiles_waited_for: set[int] = set()
    for job in waiting:
        if passes_limit(job, running, cluster, rules):
            continue  # skipped, and blocks nobody
        free = free_instances(running, cluster)
        amounts = None
        is_late = False
        if rules.queue == "pass":
            amounts = choose_nodes(job, free, rules, None)
        elif cluster.sliced[job.profile]:
            if job.profile in profiles_waited_for:
                continue
            amounts = choose_nodes(job, free, rules, None)
        elif reservation is None:
            amounts = choose_nodes(job, free, rules, None)
        else:
            is_late = now + max(job.limit_s, job.run_s) > reservation.start_s
            amounts = choose_nodes(job, free, rules, reservation.spare if is_late else None)

        if amounts is not None:
            run = Run(job, now, amounts)
            started.append(run)
            running.append(run)
            if is_late and reservation is not None:
                for node, gpus in amounts:
                    if node in reservation.spare:
                        reservation.spare[node] -= gpus
        elif rules.queue == "easy" and cluster.sliced[job.profile]:
            profiles_waited_for.add(job.profile)
        elif rules.queue == "easy" and reservation is None:
            reservation = reserve_nodes(now, job, running, cluster)
    return started


def passes_limit(job: Job, running: list[Run], cluster: Cluster, rules: Rules) -> bool:
    """Whether the tenant of a job would hold more than its limit with it."""
    if job.tenant is None or job.tenant not in rules.peak_gpus:
        return False
    gpus = sum(run.job.total * cluster.weights[run.job.profile] for run in running if run.job.tenant == job.tenant)
    return gpus + job.total * cluster.weights[job.profile] > rules.peak_gpus[job.tenant] + 1e-9


def free_instances(running: list[Run], cluster: Cluster) -> list[list[int]]:
    """What is free by node and profile."""
    free = [row.copy() for row in cluster.capacity]
    for run in running:
        for node, gpus in run.amounts:
            free[node][run.job.profile] -= gpus
    return free


def choose_nodes(
    job: Job, free: list[list[int]], rules: Rules, spare: dict[int, int] | None
) -> list[tuple[int, int]] | None:
    """Choose the nodes of a job one after the other: the fullest with room, or the emptiest; None where some lack.

    Of equal nodes the one of the lowest number is taken. ``spare`` is what may be taken of reserved nodes at most.
    """
    amounts: list[tuple[int, int]] = []
    for share in job.shares:
        able = [
            node
            for node in range(len(free))
            if free[node][job.profile] >= share
            and node not in dict(amounts)
            and (spare is None or node not in spare or spare[node] >= share)
        ]
        if not able:
            return None
        if rules.spread:
            best = min(able, key=lambda node: (-free[node][job.profile], node))
        else:
            best = min(able, key=lambda node: (free[node][job.profile], node))
        amounts.append((best, share))
    return amounts


def reserve_nodes(now: float, head: Job, running: list[Run], cluster: Cluster) -> Reservation:
    """Reserve the nodes on which the head can start first if all jobs run to their time limits.

    Nodes are taken by when they have room, then by number. Where they never have, nothing is reserved.
    """

    def free_at(node: int, instant: float) -> int:
        """What the node has free of the profile of the head when all that is due by then has ended."""
        used = [
            gpus
            for run in running
            for place, gpus in run.amounts
            if place == node and run.job.profile == head.profile and run.due_s > instant
        ]
        return cluster.capacity[node][head.profile] - sum(used)

    instants = sorted({now} | {run.due_s for run in running})
    start_s = now
    needs: dict[int, int] = {}
    for share in head.shares:
        room_from = {}
        for node in range(len(cluster.capacity)):
            times = [instant for instant in instants if instant < NEVER and free_at(node, instant) >= share]
            if times and node not in needs:
                room_from[node] = times[0]
        if not room_from:
            return Reservation(NEVER, {})
        best = min(room_from, key=lambda node: (room_from[node], node))
        start_s = max(start_s, room_from[best])
        needs[best] = share
    return Reservation(start_s, {node: free_at(node, start_s) - share for node, share in needs.items()})


@dataclass(frozen=True)
class Closure:
    """A spell in which a node, or some of its GPUs, were out of service; ``gpus`` infinite: all of the node."""

    begin_s: float
    end_s: float
    node: int
    gpus: float


def closure_jobs(
    closures: Sequence[Closure], starts: Sequence[tuple[float, float, list[int]]], cluster: Cluster, row: int
) -> list[Job]:
    """Closures as jobs that come before all others.

    A drained node is closed when the last of its jobs is over: the job comes when the drain begins, and holds a node
    as long as that one was closed and empty. Spells of a node that overlap count once. A node that is cut has a job
    for the instances of each profile.

    Parameters
    ----------
    closures : sequence of Closure
        What was out of service.
    starts : sequence of (float, float, list of int)
        Observed starts, ends and nodes.
    cluster : Cluster
        The nodes.
    row : int
        Row of the first.
    """
    jobs: list[Job] = []
    for node, capacity in enumerate(cluster.capacity):
        here = [closure for closure in closures if closure.node == node]
        marks = sorted({time for closure in here for time in (closure.begin_s, closure.end_s)})

        drained: list[list[float]] = []
        for begin_s, end_s in itertools.pairwise(marks):
            if not is_drained(here, begin_s):
                continue
            if drained and drained[-1][1] == begin_s:
                drained[-1][1] = end_s
            else:
                drained.append([begin_s, end_s])
        for begin_s, end_s in drained:
            ends = [end for start, end, nodes in starts if node in nodes and start < begin_s < end]
            lasts_s = end_s - max([begin_s, *ends])
            for profile, total in enumerate(capacity):
                if total > 0 and lasts_s > 0:
                    jobs.append(closure_job(row + len(jobs), begin_s, lasts_s, profile, total))

        for closure in here:
            total = 0 if math.isinf(closure.gpus) else int(min(closure.gpus, capacity[0]))
            pieces: list[list[float]] = []
            for begin_s, end_s in itertools.pairwise(marks):
                is_closed = closure.begin_s <= begin_s < closure.end_s and not is_drained(here, begin_s)
                if is_closed and pieces and pieces[-1][1] == begin_s:
                    pieces[-1][1] = end_s
                elif is_closed:
                    pieces.append([begin_s, end_s])
            for begin_s, end_s in pieces:
                if total > 0:
                    jobs.append(closure_job(row + len(jobs), begin_s, end_s - begin_s, 0, total))
    return jobs


def is_drained(closures: Sequence[Closure], instant: float) -> bool:
    """Whether all of a node is closed at an instant."""
    return any(math.isinf(closure.gpus) and closure.begin_s <= instant < closure.end_s for closure in closures)


def closure_job(row: int, begin_s: float, lasts_s: float, profile: int, total: int) -> Job:
    """A closure as a job on one node."""
    return Job(row, begin_s, begin_s, lasts_s, lasts_s, profile, total, 1, None, -NEVER)


@dataclass(frozen=True)
class Record:
    """What was observed of jobs.

    - ``jobs``: What they requested.
    - ``runs``: Start, end and nodes with their GPUs, by row; an end that was not observed is infinite, and nodes that
      the record does not name are None.
    - ``closures``: What was out of service.
    - ``end_s``: End of the record [s].
    """

    jobs: list[Job]
    runs: dict[int, tuple[float, float, list[tuple[int, int]] | None]]
    closures: list[Closure]
    end_s: float


def find_causes(
    record: Record, cluster: Cluster, latency_s: float, simulated_s: Sequence[float], peak_gpus: dict[int, float]
) -> list[dict[str, float]]:
    """Seconds that each job waited, by cause.

    Parameters
    ----------
    record : Record
        What was observed.
    cluster : Cluster
        The nodes.
    latency_s : float
        What the scheduler takes from an end to the next start [s].
    simulated_s : sequence of float
        When each job starts in the simulation of today [s].
    peak_gpus : dict of int to float
        Limits by tenant.
    """
    holds = list_holds(record, cluster)
    marks = {0.0, record.end_s, *(job.ready_s for job in record.jobs)}
    marks |= {time for begin, end, *_ in holds for time in (begin, end)}
    marks |= {begin for begin, *_ in record.runs.values()}
    marks |= {time for time in simulated_s if time < NEVER}
    times = sorted(time for time in marks if time < NEVER)
    free = free_by_interval(times, holds, cluster, latency_s)
    memory: dict[tuple[int, int, int, int], str | None] = {}
    seconds = []
    for job in record.jobs:
        until = record.runs[job.row][0] if job.row in record.runs else record.end_s
        steps = []
        for number, time in enumerate(times[:-1]):
            if job.ready_s <= time < until:
                key = (number, job.profile, job.total, job.nodes)
                if key not in memory:
                    memory[key] = shortage(job, free[number], cluster)
                steps.append((time, times[number + 1], memory[key]))
        seconds.append(causes_of_job(job, steps, record, cluster, latency_s, simulated_s[job.row], peak_gpus))
    return seconds


def list_holds(record: Record, cluster: Cluster) -> list[tuple[float, float, int, int, int]]:
    """Begin, end, node, profile and amount of all that jobs held and of all that was closed."""
    holds = []
    placed = place_unnamed(record, cluster)
    for job in record.jobs:
        if job.row in placed:
            start_s, end_s, amounts = placed[job.row]
            holds += [(start_s, end_s, node, job.profile, gpus) for node, gpus in amounts]
    for closure in record.closures:
        capacity = cluster.capacity[closure.node]
        if math.isinf(closure.gpus):
            closed = capacity
        else:
            closed = [int(min(closure.gpus, capacity[0]))] + [0] * (len(capacity) - 1)
        holds += [
            (closure.begin_s, closure.end_s, closure.node, profile, gpus)
            for profile, gpus in enumerate(closed)
            if gpus > 0
        ]
    return holds


def place_unnamed(record: Record, cluster: Cluster) -> dict[int, tuple[float, float, list[tuple[int, int]]]]:
    """Put jobs of unknown nodes on the fullest nodes with room, job after job as they started."""
    placed: dict[int, tuple[float, float, list[tuple[int, int]]]] = {}
    for job in sorted(record.jobs, key=lambda job: (record.runs.get(job.row, (NEVER,))[0], job.row)):
        if job.row not in record.runs:
            continue
        start_s, end_s, amounts = record.runs[job.row]
        if amounts is None:
            amounts = []
            for share in job.shares:
                free = [row[job.profile] for row in cluster.capacity]
                for other, (_, other_end_s, other_amounts) in placed.items():
                    if record.jobs[other].profile == job.profile and other_end_s > start_s:
                        for node, gpus in other_amounts:
                            free[node] -= gpus
                able = [node for node in range(len(free)) if free[node] >= share and node not in dict(amounts)]
                if able:
                    amounts.append((min(able, key=lambda node: (free[node], node)), share))
        placed[job.row] = (start_s, end_s, amounts)
    return placed


def free_by_interval(
    times: list[float], holds: list[tuple[float, float, int, int, int]], cluster: Cluster, latency_s: float
) -> list[list[list[int]]]:
    """What is free from each time to the next, by node and profile; what is taken again in time never was."""
    taken = list(holds)
    for node in range(len(cluster.capacity)):
        for profile in range(len(cluster.weights)):
            here = [hold for hold in holds if (hold[2], hold[3]) == (node, profile)]
            taken += [(begin, end, node, profile, gpus) for begin, end, gpus in retaken(here, latency_s)]
    free = []
    for time in times[:-1]:
        table = [row.copy() for row in cluster.capacity]
        for begin, end, node, profile, gpus in taken:
            if begin <= time < end:
                table[node][profile] -= gpus
        free.append([[max(count, 0) for count in row] for row in table])
    return free


def retaken(holds: list[tuple[float, float, int, int, int]], latency_s: float) -> list[tuple[float, float, int]]:
    """When GPUs of a node were released and taken again within the latency, the last that were released first."""
    events = [(end, 0, -gpus) for _, end, _, _, gpus in holds if end < NEVER]
    events += [(begin, 1, gpus) for begin, _, _, _, gpus in holds]
    released: list[float] = []  # a time for each GPU
    spells = []
    for time, is_start, gpus in sorted(events):
        if not is_start:
            released += [time] * -gpus
            continue
        while gpus > 0 and released and time - released[-1] < latency_s:
            spells.append((released.pop(), time, 1))
            gpus -= 1
    return spells


def shortage(job: Job, free: list[list[int]], cluster: Cluster) -> str | None:
    """What keeps a job from fitting on what is free; None where it fits."""
    rows = [row[job.profile] for row in free]
    shares = job.shares
    left = sorted(rows)
    fits = True
    for share in shares:  # the largest share first, each on the node with most
        fits = fits and bool(left) and left[-1] >= share
        left = left[:-1]
    if fits:
        return None
    if sum(rows) >= job.total:
        return "fragmented"
    others = sum(
        row[profile] * cluster.weights[profile] for row in free for profile in range(len(row)) if profile != job.profile
    )
    if others >= job.total * cluster.weights[job.profile] - 1e-9:
        return "wrong_layout"
    return "insufficient"


def causes_of_job(
    job: Job,
    steps: list[tuple[float, float, str | None]],
    record: Record,
    cluster: Cluster,
    latency_s: float,
    simulated_s: float,
    peak_gpus: dict[int, float],
) -> dict[str, float]:
    """Seconds of one job by cause.

    Parameters
    ----------
    job : Job
        The job.
    steps : list of (float, float, str or None)
        Begin, end and shortage of each step of its wait.
    record, cluster, latency_s, simulated_s, peak_gpus
        As of :func:`find_causes`.
    """
    seconds = dict.fromkeys(CAUSES, 0.0)
    first_cause = next((cause for _, _, cause in steps if cause is not None), "unexplained")
    cause_before = first_cause
    number = 0
    while number < len(steps):
        begin, end, cause = steps[number]
        number += 1
        if cause is not None:
            seconds[cause] += end - begin
            cause_before = cause
            continue
        while number < len(steps) and steps[number][2] is None:
            end = steps[number][1]
            number += 1
        if end - begin <= latency_s:
            seconds[cause_before] += end - begin
        else:
            for cause_of_part, length in parts_of_spell(job, begin, end, record, cluster, simulated_s, peak_gpus):
                seconds[cause_of_part] += length
    return seconds


def parts_of_spell(
    job: Job,
    begin: float,
    end: float,
    record: Record,
    cluster: Cluster,
    simulated_s: float,
    peak_gpus: dict[int, float],
) -> list[tuple[str, float]]:
    """Causes and lengths [s] of the parts of a spell in which a job fits, by its limit and by the simulation."""
    runs = [
        (*record.runs[other.row][:2], other.total * cluster.weights[other.profile])
        for other in record.jobs
        if other.row in record.runs and other.tenant == job.tenant
    ]
    marks = {begin, end, simulated_s} | {time for start, stop, _ in runs for time in (start, stop)}
    times = sorted(time for time in marks if begin <= time <= end)
    parts = []
    for time, until in itertools.pairwise(times):
        gpus = sum(amount for start, stop, amount in runs if start <= time < stop)
        limit = peak_gpus.get(job.tenant, NEVER) if job.tenant is not None else NEVER
        if gpus + job.total * cluster.weights[job.profile] > limit + 1e-9:
            cause = "limits"
        elif time < simulated_s:
            cause = "queued_behind"
        else:
            cause = "unexplained"
        parts.append((cause, until - time))
    return parts
