"""Jobs that are given other GPUs, more or fewer, in rounds: the loop in Python.

Within one instant: ends and changes of phase, then arrivals, then the round. A round is held at the first
multiple of its length after an arrival, an end or a change of phase; at others nothing would change.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.errors import ScenarioError, message
from gpuplanner.lab.orders.mixed.machines import PLACES, Held, Machines
from gpuplanner.lab.orders.mixed.mixed import GpuType


@dataclass(frozen=True)
class JobPhase:
    """One phase of a job.

    - ``work``: To be done, in any unit.
    - ``rates``, ``rates_apart``, shape (n_options,): Work per second with each option, on one node and over several.
    """

    work: float
    rates: NDArray[np.float64]
    rates_apart: NDArray[np.float64]


@dataclass(eq=False)
class RoundJob:
    """One job, as an allocation sees it.

    - ``job_id``: Its identity.
    - ``submit_s``: Not below 0 [s].
    - ``kinds``, ``gpus``, shape (n_options,): Type and number of GPUs of each way to run it.
    - ``stages``: In order.
    - ``option``: The present one; -1 if it has no GPUs.
    - ``restarts``: How often it was given other GPUs.
    """

    job_id: str
    submit_s: float
    kinds: NDArray[np.int64]
    gpus: NDArray[np.int64]
    stages: tuple[JobPhase, ...]
    option: int = -1
    restarts: int = 0
    stage: int = 0
    left: float = 0.0
    rate: float = 0.0
    begun: float = 0.0  # it holds its GPUs from then on
    ready: float = 0.0  # and makes use of them from then on
    since: float = 0.0  # ``left`` was true then
    until: float = math.inf
    start: float = math.nan
    end: float = math.nan
    queued: float = 0.0
    waits_since: float = 0.0
    lost_gpu_s: float = 0.0
    nodes: dict[int, int] = field(default_factory=dict)

    @property
    def rates(self) -> NDArray[np.float64]:
        """Work per second in the present phase with each option, on one node if they fit on one."""
        return self.stages[self.stage].rates

    def discount(self, now: float, restart_s: float) -> float:
        """What an option other than the present one is worth after the restart, by Pollux's rule.

        ``(T - R * d) / (T + d)`` at age T after R restarts of d seconds, so that who was moved often is moved less.
        """
        if math.isnan(self.start) or restart_s == 0:
            return 1.0
        age = now - self.submit_s
        return max((age - self.restarts * restart_s) / (age + restart_s), 1e-3)


@dataclass(frozen=True)
class Round:
    """What an allocation decides on.

    - ``now``: The instant [s].
    - ``jobs``: All that are there, in order of arrival.
    - ``capacity``: GPUs of each type.
    - ``restart_s``: Time that a job loses when it is given other GPUs [s].
    """

    now: float
    jobs: list[RoundJob]
    capacity: tuple[int, ...]
    restart_s: float


Allocate = Callable[[Round], list[int]]
"""An option for every job of a round; -1 for none."""


def run_rounds(
    jobs: list[RoundJob], fleet: tuple[GpuType, ...], allocate: Allocate, *, round_s: float, restart_s: float
) -> pl.DataFrame:
    """Run to the end of all jobs, which carry what became of them; return who held what.

    A job that keeps its option keeps its nodes. The others are placed anew, the largest first, each on the node
    with the fewest idle GPUs that holds it, else over the fewest nodes, where it gets on at the rate of several.
    """
    if not (0 < round_s < math.inf and 0 <= restart_s < math.inf):
        got = f"round_s={round_s}, restart_s={restart_s}"
        raise ScenarioError(message("rounds", "round_s above 0, restart_s not below 0", got, "Change them."))
    ground = _Ground(fleet)
    active: list[RoundJob] = []
    arrived, due = 0, math.inf
    while active or arrived < len(jobs):
        now = min(
            [due, *(job.until for job in active), *(job.submit_s for job in jobs[arrived : arrived + 1])]
        )
        ended = [job for job in active if job.until <= now]
        for job in ended:
            ground.end_stage(job, now)
        active = [job for job in active if math.isnan(job.end)]
        first_new = arrived
        while arrived < len(jobs) and jobs[arrived].submit_s <= now:
            jobs[arrived].left = jobs[arrived].stages[0].work
            jobs[arrived].waits_since = jobs[arrived].submit_s
            active.append(jobs[arrived])
            arrived += 1
        if ended or arrived > first_new:
            due = min(due, math.ceil(now / round_s) * round_s)
        if due <= now:
            due = math.inf
            if active:
                question = Round(now, active, tuple(kind.gpus for kind in fleet), restart_s)
                ground.act(question, allocate(question))
    return pl.DataFrame(ground.held, schema=PLACES, orient="row")


class _Ground:
    """The fleet, who holds what of it, and who held what."""

    def __init__(self, fleet: tuple[GpuType, ...]) -> None:
        self.fleet = fleet
        self.machines = [Machines(kind) for kind in fleet]
        self.held: list[Held] = []

    def end_stage(self, job: RoundJob, now: float) -> None:
        """Let a job go on with its next phase on the same GPUs, or end."""
        job.stage += 1
        if job.stage == len(job.stages):
            job.end = now
            self.release(job, now)
        else:
            job.left, job.since = job.stages[job.stage].work, now
            _get_on(job)

    def act(self, question: Round, chosen: list[int]) -> None:
        """Give and take GPUs as an allocation says."""
        now = question.now
        moved = [
            (job, option) for job, option in zip(question.jobs, chosen, strict=True) if option != job.option
        ]
        for job, _ in moved:
            if job.option >= 0:
                self.release(job, now)
        for job, option in sorted(moved, key=lambda move: -int(move[0].gpus[move[1]])):
            if option >= 0:
                self.place(job, option, now, question.restart_s)
        if all(job.until == math.inf for job in question.jobs):
            text = message(
                "allocation",
                "somebody to get on",
                f"{len(question.jobs)} jobs without GPUs that would serve them, {question.jobs[0].job_id!r} first",
                "Give some of them GPUs.",
            )
            raise ScenarioError(text)

    def place(self, job: RoundJob, option: int, now: float, restart_s: float) -> None:
        """Give a job GPUs of some nodes."""
        number, gpus = int(job.kinds[option]), int(job.gpus[option])
        machines = self.machines[number]
        nodes = machines.best_fit(gpus) or machines.fewest_nodes(gpus)
        if not nodes:
            kind = self.fleet[number]
            raise ScenarioError(
                message("allocation", f"at most the {kind.gpus} GPUs of {kind.name}", "more", "Mend it.")
            )
        machines.take(nodes)
        job.queued += now - job.waits_since
        job.nodes, job.option, job.begun, job.ready = nodes, option, now, now
        if math.isnan(job.start):
            job.start = now
        else:
            job.restarts += 1
            job.ready += restart_s
        job.since = job.ready
        _get_on(job)

    def release(self, job: RoundJob, now: float) -> None:
        """Take a job off its GPUs."""
        number, gpus = int(job.kinds[job.option]), int(job.gpus[job.option])
        self.machines[number].take(job.nodes, -1)
        name = self.fleet[number].name
        self.held += [(job.job_id, name, node, part, job.begun, now) for node, part in job.nodes.items()]
        job.left = max(job.left - job.rate * max(now - job.since, 0.0), 0.0)
        job.lost_gpu_s += gpus * (min(job.ready, now) - job.begun)
        job.nodes, job.option, job.until, job.waits_since = {}, -1, math.inf, now


def _get_on(job: RoundJob) -> None:
    """Set the rate of a job on its nodes, and when its phase ends."""
    stage = job.stages[job.stage]
    job.rate = float((stage.rates if len(job.nodes) == 1 else stage.rates_apart)[job.option])
    job.until = job.since + job.left / job.rate if job.rate > 0 else math.inf
