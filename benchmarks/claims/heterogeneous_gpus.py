"""Heterogeneity-aware scheduling: training jobs on three GPU models, with predicted memory.

Claim: scheduling that knows the GPU models and predicts the memory of a job with an accuracy above 92 % lowers the mean
time to completion by 12 to 18 % (Frenzy, arXiv 2412.14479, abstract; accuracy is 1 less the relative error).

Run ``python benchmarks/claims/heterogeneous_gpus.py [--seeds N] [--first-seed K]``; 10 seeds take about a minute. The
accuracy of predicted memory needs the folder of the public traces in ``GPUPLANNER_DATA``.

Frenzy published no code and does not say what it was compared with: its scheduler is rebuilt from the abstract and
from reviews, and stands here against users' own picks and against an integer program that assigns all jobs again in
rounds, as Sia does. The 150 jobs on 56 GPUs are drawn by seed: they say how the policies compare on such jobs.
"""

from __future__ import annotations

import heapq
import itertools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from claim_table import argument_parser, figure_row, figure_table, grouped_interval, mean_with_interval, report

from gpuplanner.planner.linear_programs_and_search_limits import LinearModel, SearchEffort
from gpuplanner.planner.milp_solvers import solve
from gpuplanner.sizing.learned_memory import fit_log_multipliers, predict_gib
from gpuplanner.sizing.training_run_tables import collect_measured_runs

MEASUREMENTS = "memory/memory_measurements.csv"
CLAIMED_ACCURACY = 92.0
CLAIMED_REDUCTION = 12.0
"""Smallest reduction of the mean time to completion that was published [%]."""
JOBS = 150
LOADS = (0.9, 1.5)
"""Work that arrives over the work that the fleet can do."""
GPU_COUNTS = (1, 2, 4, 8)
"""GPUs that a job can run on."""
AWARE, PICKED, ASSIGNED = "heterogeneity-aware", "users' choice", "integer program"
ANY_SIZE, PICKED_SIZE = "any size", "sizes as users choose"
ROUND_S, RESTART_S = 60.0, 30.0
"""Time between two assignments, and what a job loses when its GPUs change: Sia, SOSP 2023."""
SOLVER_GAP = 0.005


@dataclass(frozen=True)
class GpuModel:
    """Nodes of one GPU model.

    - ``nodes``, ``gpus_per_node``: How many.
    - ``memory_gib``: Memory of one GPU.
    - ``speed``: Work per second of one GPU, relative to the 40 GiB model.
    """

    nodes: int
    gpus_per_node: int
    memory_gib: float
    speed: float

    @property
    def gpus(self) -> int:
        """GPUs of the model."""
        return self.nodes * self.gpus_per_node


FLEET = (GpuModel(2, 8, 80.0, 2.0), GpuModel(3, 8, 40.0, 1.0), GpuModel(4, 4, 24.0, 0.5))
FLEET_SPEED = sum(model.gpus * model.speed for model in FLEET)


@dataclass(frozen=True)
class Option:
    """One way to run a job: the place of the GPU model in the fleet, GPUs, and the run time [s]."""

    model: int
    gpus: int
    run_s: float


@dataclass
class Job:
    """A job: when it is submitted, all its options, the one that its user picks; when it ends.

    Options are ordered by fewest GPUs, least tensor parallelism, the GPU model with the least memory, then the fastest.
    """

    submit_s: float
    options: list[Option]
    picked_option: Option
    end_s: float = math.nan


def draw_jobs(seed: int, load: float, *, jobs: int = JOBS) -> list[Job]:
    """Draw jobs with lognormal work, and users who pick GPU model and number of GPUs by habit.

    Parameters
    ----------
    seed : int
        The same seed draws the same jobs at every load.
    load : float
        Work that arrives over the work that the fleet can do.
    jobs : int
        How many.
    """
    rng = np.random.default_rng(seed)
    memory_gib = rng.choice([10.0, 30.0, 60.0], jobs, p=[0.5, 0.3, 0.2])
    work = rng.lognormal(6.5, 1.2, jobs)
    rate = load * FLEET_SPEED / work.mean()
    submit_s = np.cumsum(rng.exponential(1 / rate, jobs))
    model_picked = [
        rng.choice([place for place, model in enumerate(FLEET) if model.memory_gib >= memory]) for memory in memory_gib
    ]
    gpus_picked = rng.choice([1, 2, 4], jobs, p=[0.5, 0.25, 0.25])

    drawn = []
    for number in range(jobs):
        options = options_of(memory_gib[number], work[number])
        habit = (model_picked[number], gpus_picked[number])
        picked_option = next(option for option in options if (option.model, option.gpus) == habit)
        drawn.append(Job(float(submit_s[number]), options, picked_option))
    return drawn


def options_of(memory_gib: float, work: float) -> list[Option]:
    """All options of a job, in the order of :class:`Job`.

    Parameters
    ----------
    memory_gib : float
        Memory of each GPU without tensor parallelism; two-way tensor parallelism halves it.
    work : float
        Seconds on one GPU of speed 1; n GPUs are n ** 0.9 times as fast, less 5 % with tensor parallelism.
    """
    by_memory = sorted(range(len(FLEET)), key=lambda place: (FLEET[place].memory_gib, -FLEET[place].speed))
    options = []
    for gpus in GPU_COUNTS:
        for parallel in (1, 2):
            if parallel > gpus:
                continue
            seconds = work / gpus**0.9 * 1.05 ** (parallel > 1)
            options += [
                Option(place, gpus, seconds / FLEET[place].speed)
                for place in by_memory
                if memory_gib / parallel <= FLEET[place].memory_gib
            ]
    return options


def smallest_fitting_node(idle: Sequence[int], gpus: int) -> dict[int, int]:
    """The node with the fewest idle GPUs that holds a job, or else nodes with the most; empty if all do not.

    Parameters
    ----------
    idle : sequence of int
        Idle GPUs of the nodes of one GPU model.
    gpus : int
        GPUs of the job.

    Returns
    -------
    dict of int to int
        GPUs by node.
    """
    holding = [node for node, count in enumerate(idle) if count >= gpus]
    if holding:
        return {min(holding, key=lambda node: idle[node]): gpus}
    return spread_over(idle, sorted(range(len(idle)), key=lambda node: -idle[node]), gpus)


def first_fitting_node(idle: Sequence[int], gpus: int) -> dict[int, int]:
    """The first node that holds a job, or else idle GPUs node by node; empty if all do not.

    Parameters and result as of :func:`smallest_fitting_node`.
    """
    holding = [node for node, count in enumerate(idle) if count >= gpus]
    return {holding[0]: gpus} if holding else spread_over(idle, range(len(idle)), gpus)


def spread_over(idle: Sequence[int], order: Sequence[int], gpus: int) -> dict[int, int]:
    """GPUs by node for a job that takes idle ones in the order of the nodes; empty if there are too few.

    Parameters
    ----------
    idle, order : sequence of int
        Idle GPUs by node, and the order of the nodes.
    gpus : int
        GPUs of the job.
    """
    if sum(idle) < gpus:
        return {}
    taken = {}
    for node in order:
        part = min(idle[node], gpus)
        if part:
            taken[node] = part
            gpus -= part
    return taken


Choice = tuple[Option, dict[int, int]]


def choose_aware(job: Job, idle: Sequence[list[int]]) -> Choice | None:
    """Option and nodes of a job by heterogeneity-aware scheduling: the first option that fits now."""
    for option in job.options:
        nodes = smallest_fitting_node(idle[option.model], option.gpus)
        if nodes:
            return option, nodes
    return None


def choose_picked(job: Job, idle: Sequence[list[int]]) -> Choice | None:
    """Option that the user picked, if it fits now, on the first nodes."""
    nodes = first_fitting_node(idle[job.picked_option.model], job.picked_option.gpus)
    return (job.picked_option, nodes) if nodes else None


def serve_in_order(jobs: Sequence[Job], choose: Callable[[Job, Sequence[list[int]]], Choice | None]) -> None:
    """Serve jobs in the order of submission; those that fit pass one that does not, and none moves once it runs.

    Parameters
    ----------
    jobs : sequence of Job
        In the order of submission; their ends are written.
    choose : callable
        Chooses option and nodes of a job among idle GPUs by GPU model and node; None: it waits.
    """
    idle = [[model.gpus_per_node] * model.nodes for model in FLEET]
    running: list[tuple[float, int, Choice]] = []
    waiting: list[Job] = []
    arrived = 0
    starts = itertools.count()
    while running or arrived < len(jobs):
        instants = [jobs[arrived].submit_s] if arrived < len(jobs) else []
        instants += [running[0][0]] if running else []
        now = min(instants)
        while running and running[0][0] <= now:
            _, _, (option, nodes) = heapq.heappop(running)
            for node, gpus in nodes.items():
                idle[option.model][node] += gpus
        while arrived < len(jobs) and jobs[arrived].submit_s <= now:
            waiting.append(jobs[arrived])
            arrived += 1
        still_waiting = []
        for job in waiting:
            choice = choose(job, idle)
            if choice is None:
                still_waiting.append(job)
                continue
            option, nodes = choice
            for node, gpus in nodes.items():
                idle[option.model][node] -= gpus
            job.end_s = now + option.run_s
            heapq.heappush(running, (job.end_s, next(starts), choice))
        waiting = still_waiting


@dataclass(eq=False)
class MovingJob:
    """A job that may be given other GPUs in every round.

    - ``option``: Place of its option now; -1: it has no GPUs.
    - ``remaining_work``: Share of its work that remained at ``working_from_s``, from when it works.
    - ``has_started``, ``moves``: Whether it ever had GPUs, and how often it got others.
    - ``speeds``: Share of the work per second with each option.
    """

    job: Job
    option: int = -1
    remaining_work: float = 1.0
    working_from_s: float = 0.0
    has_started: bool = False
    moves: int = 0
    speeds: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        """Take the speeds from the run times."""
        self.speeds = np.array([1.0 / option.run_s for option in self.job.options])

    @property
    def end_s(self) -> float:
        """When it ends if it keeps its GPUs [s]."""
        return math.inf if self.option < 0 else self.working_from_s + self.remaining_work / self.speeds[self.option]

    def values(self, now: float) -> np.ndarray:
        """What each option is worth: its speed over the best, less a restart where the GPUs change.

        The discount is Pollux's, (T - R d) / (T + d) at age T after R moves of d seconds, so that who was moved often
        is moved less.
        """
        value = self.speeds / self.speeds.max()
        if not self.has_started:
            return value
        age = now - self.job.submit_s
        discount = max((age - self.moves * RESTART_S) / (age + RESTART_S), 1e-3)
        discounted = value * discount
        if self.option >= 0:
            discounted[self.option] = value[self.option]
        return discounted

    def stop(self, now: float) -> None:
        """Take its GPUs away; the work done so far is kept."""
        self.remaining_work -= self.speeds[self.option] * max(now - self.working_from_s, 0.0)
        self.option = -1

    def start(self, option: int, now: float) -> None:
        """Give it GPUs; after the first time it restarts before it works."""
        self.option = option
        self.working_from_s = now + RESTART_S * self.has_started
        self.moves += self.has_started
        self.has_started = True


def serve_in_rounds(jobs: Sequence[Job]) -> None:
    """Assign GPUs to all jobs again by an integer program, in rounds of a minute in which jobs came or ended.

    Parameters
    ----------
    jobs : sequence of Job
        In the order of submission; their ends are written.

    References
    ----------
    S. Jayaram Subramanya et al., Sia: heterogeneity-aware, goodput-optimized ML-cluster scheduling, SOSP 2023.
    """
    active: list[MovingJob] = []
    arrived, next_round_s = 0, math.inf
    while active or arrived < len(jobs):
        instants = [next_round_s, *(one.end_s for one in active)]
        instants += [jobs[arrived].submit_s] if arrived < len(jobs) else []
        now = min(instants)
        ended = [one for one in active if one.end_s <= now]
        for one in ended:
            one.job.end_s = now
        active = [one for one in active if one not in ended]
        changed = bool(ended)
        while arrived < len(jobs) and jobs[arrived].submit_s <= now:
            active.append(MovingJob(jobs[arrived]))
            arrived += 1
            changed = True
        if changed:
            next_round_s = min(next_round_s, math.ceil(now / ROUND_S) * ROUND_S)
        if next_round_s <= now:
            next_round_s = math.inf
            chosen = assigned_options(active, now) if active else []
            moved = [pair for pair in zip(active, chosen, strict=True) if pair[0].option != pair[1]]
            for one, _ in moved:
                if one.option >= 0:
                    one.stop(now)
            for one, option in moved:
                if option >= 0:
                    one.start(option, now)


def assigned_options(jobs: Sequence[MovingJob], now: float) -> list[int]:
    """Option of each job: at most one, within the GPUs of every model, with the largest sum of values; -1: none."""
    values = np.concatenate([job.values(now) for job in jobs])
    owner = np.repeat(np.arange(len(jobs)), [len(job.speeds) for job in jobs])
    options = [option for job in jobs for option in job.job.options]
    models = np.array([option.model for option in options])
    gpus = np.array([option.gpus for option in options], np.float64)

    program = LinearModel()
    ones = np.ones(len(options))
    columns = program.add_columns([f"x{place}" for place in range(len(options))], cost=-values, high=ones)
    for job in range(len(jobs)):
        mine = columns[owner == job]
        program.add_row(f"job{job}", mine, ones[: len(mine)], "<=", 1.0)
    for place, model in enumerate(FLEET):
        mine = models == place
        if mine.any():
            program.add_row(f"model{place}", columns[mine], gpus[mine], "<=", model.gpus)
    solution = solve(program, SearchEffort.begin(), gap=SOLVER_GAP).values
    assert solution is not None  # no GPUs for any job is always feasible

    chosen = [-1] * len(jobs)
    first = np.searchsorted(owner, np.arange(len(jobs)))
    for place in np.flatnonzero(solution > 0.5).tolist():
        chosen[owner[place]] = place - int(first[owner[place]])
    return chosen


def mean_completion_s(jobs: Sequence[Job]) -> float:
    """Mean time from submission to the end [s]."""
    return float(np.mean([job.end_s - job.submit_s for job in jobs]))


def serve_seed(seed: int, load: float, sizes: str, *, jobs: int = JOBS) -> dict[str, float]:
    """Mean time to completion of the same jobs under every policy [s].

    Parameters
    ----------
    seed : int
        Seed of the jobs.
    load : float
        As of :func:`draw_jobs`.
    sizes : str
        ``ANY_SIZE``, or ``PICKED_SIZE`` where every policy keeps the numbers of GPUs that users pick.
    jobs : int
        How many.
    """
    drawn = draw_jobs(seed, load, jobs=jobs)
    if sizes == PICKED_SIZE:
        for job in drawn:
            job.options = [option for option in job.options if option.gpus == job.picked_option.gpus]
    found = {}
    for policy, choose in ((PICKED, choose_picked), (AWARE, choose_aware)):
        serve_in_order(drawn, choose)
        found[policy] = mean_completion_s(drawn)
    serve_in_rounds(drawn)
    found[ASSIGNED] = mean_completion_s(drawn)
    return found


def memory_accuracy(path: Path) -> pl.DataFrame:
    """Accuracy of predicted peak memory on published measurements, each source predicted without its own runs.

    Parameters
    ----------
    path : Path
        CSV of the measurements.

    Returns
    -------
    polars.DataFrame
        ``source, model, accuracy`` [%], one row a measured run.
    """
    runs, _ = collect_measured_runs(pl.read_csv(path, infer_schema=False))
    predicted = np.zeros(len(runs))
    for source in sorted(set(runs.sources)):
        mine = runs.is_from(source)
        predicted[mine] = predict_gib(runs.parts[mine], fit_log_multipliers(runs.select(~mine)))
    error = np.abs(predicted - runs.measured) / runs.measured
    accuracy = 100 * np.maximum(0.0, 1 - error)
    return pl.DataFrame({"source": runs.sources, "model": runs.models, "accuracy": accuracy})


def figures(rows: pl.DataFrame, memory: pl.DataFrame | None) -> pl.DataFrame:
    """Accuracy of predicted memory, and the change of the mean time against each policy, beside the claim.

    Parameters
    ----------
    rows : polars.DataFrame
        ``sizes, load, seed`` and the mean time under each policy.
    memory : polars.DataFrame or None
        From :func:`memory_accuracy`; None: the measurements are absent.
    """
    found = []
    if memory is not None:
        accuracy = memory["accuracy"].to_numpy()
        interval = grouped_interval(accuracy, memory["model"].to_numpy())
        claimed = (CLAIMED_ACCURACY, None)
        label = f"accuracy of predicted memory, {memory.height} runs"
        found.append(figure_row(label, "%", float(accuracy.mean()), claimed=claimed, interval=interval))
    for against in (PICKED, ASSIGNED):
        for (sizes, load), mine in rows.group_by("sizes", "load", maintain_order=True):
            change = 100 * (mine[AWARE] / mine[against] - 1).to_numpy()
            mean, interval = mean_with_interval(change)
            label = f"mean completion time compared with {against}: {sizes}, load {load:g}"
            claimed_change = (None, -CLAIMED_REDUCTION)
            found.append(figure_row(label, "% change", mean, claimed=claimed_change, interval=interval))
    return figure_table(found)


def tables(
    seeds: int, first_seed: int, *, public_data: Path | None = None, jobs: int = JOBS
) -> dict[str, pl.DataFrame]:
    """All tables by file name, the figures first.

    Parameters
    ----------
    seeds, first_seed : int
        Number of seeds, and the first.
    public_data : Path, optional
        Folder of the public traces; None: memory is not measured.
    jobs : int
        Jobs of each seed.
    """
    rows = pl.DataFrame(
        [
            {"sizes": sizes, "load": load, "seed": seed} | serve_seed(seed, load, sizes, jobs=jobs)
            for sizes in (ANY_SIZE, PICKED_SIZE)
            for load in LOADS
            for seed in range(first_seed, first_seed + seeds)
        ]
    )
    memory = None if public_data is None else memory_accuracy(public_data / MEASUREMENTS)
    policies = [pl.col(policy).mean() for policy in (PICKED, AWARE, ASSIGNED)]
    found = {
        "heterogeneous_gpus": figures(rows, memory),
        "heterogeneous_gpus_mean_s": rows.group_by("sizes", "load", maintain_order=True).agg(policies),
    }
    if memory is not None:
        by_source = memory.group_by("source").agg(runs=pl.len(), accuracy=pl.col("accuracy").mean())
        found["heterogeneous_gpus_memory"] = by_source.sort("source")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, and write them."""
    assert __doc__ is not None
    parser = argument_parser(__doc__, seeds=10)
    folder = os.environ.get("GPUPLANNER_DATA")
    parser.add_argument("--data", type=Path, default=folder, help="folder of the public traces")
    options = parser.parse_args(arguments)
    remarks = (
        "The scheduler is a reconstruction, and what it was compared with is unknown.",
        "Memory is predicted by models of the other sources; its interval draws architectures again.",
        f"{options.seeds} seeds from {options.first_seed}; differences seed by seed, intervals at 95 %.",
    )
    found = tables(options.seeds, options.first_seed, public_data=options.data)
    report(__doc__.split("\n\n")[1], found, remarks, options.out)


if __name__ == "__main__":
    main()
