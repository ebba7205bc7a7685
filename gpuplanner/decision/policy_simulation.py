"""Simulation of policies on the same jobs, and GPU-hours that are left out."""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.stage_cache import data_folder
from gpuplanner.core.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, SECONDS_PER_MINUTE, percent_text
from gpuplanner.decision.decision_types import TODAY
from gpuplanner.decision.explained_waits import ExplainedWaits
from gpuplanner.decision.queue_model import MAX_ARRIVAL_JITTER_S
from gpuplanner.decision.requests import AS_TODAY, JobReplayInputs, classify_job_sizes, count_layout_instances
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_folder import open_dataset, read_metadata
from gpuplanner.ingest.gpu_shares import UNTRACKED_CHECK
from gpuplanner.ingest.quality_report import UNKNOWN_GPUS_CHECK, QualityWarning, list_warnings
from gpuplanner.simulator.simulated_fleet import NodeAutoscaling, NodeFleet, NodeRequests, Outcome
from gpuplanner.simulator.simulation_run import simulate_requests
from gpuplanner.simulator.simulation_state import Floats

DRAWS = 7
"""Replays: the first as it was, the others with each job ready a little later."""
FEW_DRAWS, MANY_JOBS = 3, 100_000
"""Replays where more than so many jobs are judged: what classes of them wait hardly differs between replays."""
CARRIED_S = 7200.0
"""For so long before the beginning what ran then is there, so that nodes have come up for it."""
FEWEST_WAITING = 200
MAX_MEMORY_BYTES = 256 << 20
"""Size of the simulation runs in memory beyond which those not used for longest are dropped. [B]"""

Mask = NDArray[np.bool_]
Knobs = Mapping[str, float | int | str]


@dataclass(frozen=True, eq=False)
class WaySetting:
    """A way to run the fleet, with every knob set.

    - ``policy``, ``view``: Its name, and what jobs ask for under it.
    - ``fleet``: The nodes that there are, by pool.
    - ``layouts``: For each node and pool the layouts of its GPUs; none where it cannot be in the pool.
    - ``numbers``: Which of today's nodes they are.
    - ``switching``: How they come and go.
    - ``placement``: Which nodes are taken first.
    - ``knobs``: What was set, for people.
    """

    policy: str
    view: str
    fleet: NodeFleet
    layouts: tuple[tuple[tuple[str, ...], ...], ...]
    numbers: tuple[int, ...]
    switching: NodeAutoscaling | None = None
    placement: str = "best"
    knobs: Knobs = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        """GPUs that it has at all."""
        return int(self.fleet.gpus.sum())


@dataclass(frozen=True, eq=False)
class Trial:
    """A setting that was played.

    - ``setting``: The setting.
    - ``late_s``, shape (n_draws, n_jobs): How long each job waited from its eligibility; infinite: it never started;
      NaN: not judged.
    - ``wait_s``, shape (n_jobs,): How long after its arrival each started in the first replay.
    - ``day_hours``, shape (n_days,): GPU-hours on, each day, in the first replay.
    - ``outcome``: The first replay.
    """

    setting: WaySetting
    late_s: Floats
    wait_s: Floats
    day_hours: Floats
    outcome: Outcome


@dataclass(eq=False)
class Arena:
    """Jobs, when they arrive, and the fleet of today that everything is held against.

    - ``asked``: Jobs and nodes.
    - ``waits``: What kept each job waiting, and when it arrives.
    - ``queue``: Who may pass.
    - ``quantile``, ``minutes``: Such a share of each class may start so many minutes later than today.
    - ``larger``: Larger profiles that may serve, where the path has it.
    - ``seed``: Of the draws.

    Jobs that no GPU of today can hold are not judged: ``unservable`` is their number.
    """

    asked: JobReplayInputs
    waits: ExplainedWaits
    queue: str
    quantile: float
    minutes: float
    larger: Sequence[Sequence[int]] | None
    seed: int

    def __post_init__(self) -> None:
        """Draw what moves, and see who is judged."""
        asked = self.asked
        begun = ~np.isnan(asked.start_s)
        submit = asked.requests.submit_s
        self.ready_s, self.reference_s = self.waits.arrivals_without_limits(), self.waits.eligible_s
        carried = begun & (asked.start_s < 0)
        came = ~carried & (submit >= 0) & (self.ready_s < asked.observed_s)
        servable = servable_requests(asked.requests, asked.fleet, larger=self.larger)
        self.unservable = int((came & ~asked.is_service & ~servable).sum())
        self.judged: Mask = came & ~asked.is_service & servable
        self.standing: Mask = begun & asked.is_service
        self.carried = carried
        rng = np.random.default_rng([self.seed, 41])
        self.moves = np.vstack([np.zeros(len(submit)), rng.uniform(0, MAX_ARRIVAL_JITTER_S, (DRAWS - 1, len(submit)))])
        self.moves[:, ~self.judged] = 0.0
        self.draws = FEW_DRAWS if self.judged.sum() > MANY_JOBS else DRAWS
        self.size, self.classes = classify_job_sizes(asked, self.judged)
        self.trials: list[Trial] = []

    @cached_property
    def today(self) -> Trial:
        """Today's own fleet, placed freely."""
        asked = self.asked
        layouts = tuple((layouts,) for layouts in asked.nodes.layouts)
        numbers = tuple(range(len(asked.nodes.gpus)))
        knobs: Knobs = {"gpus": asked.nodes.total}
        return self.play(WaySetting(TODAY, AS_TODAY, asked.fleet, layouts, numbers, knobs=knobs))

    def play(self, setting: WaySetting, draws: int = DRAWS, *, hopeless: float | None = None) -> Trial:
        """Play a setting over the whole time; given up where more than a share of all jobs waits at once."""
        asked, draws = self.asked, min(draws, self.draws)
        late = np.full((draws, len(self.ready_s)), np.nan)
        first: Outcome | None = None
        wait = np.full(len(self.ready_s), np.nan)
        for draw in range(draws):
            requests = self.requests(setting.view, draw)
            found = simulate_once(
                requests, setting.fleet, queue=self.queue,
                placement=self.placement(setting.placement),
                larger=self.larger, switching=setting.switching,
                most_waiting=None if hopeless is None else max(int(hopeless * len(late[0])), FEWEST_WAITING),
            )  # fmt: skip
            started = np.where(np.isnan(found.start_s), np.inf, found.start_s)
            late_s = np.maximum(started - self.reference_s, 0.0)
            late[draw] = np.where(self.judged | self.standing, late_s, np.nan)
            if draw == 0:
                first, wait = found, started - self.ready_s
        assert first is not None
        # Begin of each day that was observed, and the end of the last one, as far as it went.
        days = int(np.ceil(asked.observed_s / SECONDS_PER_DAY - 1e-9))
        edges_s = [min(day * SECONDS_PER_DAY, asked.observed_s) for day in range(days + 1)]
        node, since, until = (first.power_intervals[name].to_numpy() for name in ("node", "from_s", "until_s"))
        hours = gpu_hours(since, until, setting.fleet.gpus[node], edges_s)
        trial = Trial(setting, late, wait, hours, first)
        self.trials.append(trial)
        return trial

    def placement(self, stated: str = "best") -> str:
        """Which nodes are taken first: as today, where the way does not state another."""
        if self.queue == "slurm":  # it takes the first of its table, whoever runs the fleet how
            return "lowest"
        return "spread" if stated == "best" and self.waits.queue.spread else stated

    def requests(self, view: str, draw: int = 0) -> NodeRequests:
        """What jobs ask for in a replay. The scheduler needs its time after each."""
        asked, handover = self.asked.views[view], self.waits.queue.handover.median_s
        ready = self.ready_s + self.moves[draw]
        run = asked.run_s + handover
        ready = np.where(self.carried, -CARRIED_S, np.maximum(ready, -CARRIED_S + 1.0))
        left = np.where(np.isnan(self.asked.end_s), self.asked.observed_s, self.asked.end_s)
        run = np.where(self.carried, np.maximum(left + CARRIED_S, 1.0), run)
        limit = asked.limit_s + handover
        limit = np.where(self.carried, np.maximum(limit, run), limit)
        return replace(asked, ready_s=ready, run_s=run, limit_s=limit)

    def late_minutes(self, trial: Trial, which: Mask) -> Floats:
        """For each class, and last the mean of all jobs, the median over replays of how late they start [min]."""
        found = np.zeros((len(trial.late_s), len(self.classes) + 1))
        which = which & self.judged
        for draw, late in enumerate(trial.late_s):
            for number in range(len(self.classes)):
                found[draw, number] = order_statistic(late[which & (self.size == number)], self.quantile)
            found[draw, -1] = late[which].mean() if which.any() else 0.0
        return np.median(found, axis=0) / SECONDS_PER_MINUTE

    def todays_minutes(self, which: Mask, draws: int = DRAWS) -> Floats:
        """How late today's fleet makes each class, and last the mean, over all weeks if more [min]."""
        today = replace(self.today, late_s=self.today.late_s[:draws])
        return np.maximum(self.late_minutes(today, which), self.late_minutes(today, self.judged))

    def excess(self, trial: Trial, which: Mask) -> float:
        """By how many minutes the class that is worst off is beyond what it may be; at most 0: it holds."""
        today = self.todays_minutes(which, len(trial.late_s))
        return float((self.late_minutes(trial, which) - today - self.minutes).max())

    def holds(self, trial: Trial, which: Mask, *, later_minutes: float = 0.0) -> bool:
        """Whether every class keeps what it may be late by, and every job starts; standing demand by itself.

        With ``later_minutes`` classes may be so much later.
        """
        which = which & self.judged
        todays_standing_s = self.today.late_s[:, self.standing].max(axis=0)
        # What has no end gets its GPUs within an hour of when today's fleet gives them: it keeps them for days.
        kept = trial.late_s[:, self.standing] <= todays_standing_s + SECONDS_PER_HOUR
        if not kept.all() or np.isinf(trial.late_s[:, which]).any():
            return False
        return self.excess(trial, which) <= later_minutes + 1e-9

    def share_of_days(self, trial: Trial, which: Mask) -> float:
        """Share of the days on which each class of enough jobs, and all jobs, keep what they may be late by."""
        which = which & self.judged
        day, kept = np.floor(self.ready_s / SECONDS_PER_DAY), []
        for number in np.unique(day[which]):
            jobs = which & (day == number)
            groups = [jobs & (self.size == place) for place in range(len(self.classes))]
            # A class of fewer than 40 jobs on one day is not judged by itself.
            groups = [jobs, *(group for group in groups if group.sum() >= 40)]
            added = [
                order_statistic(trial.late_s[0, group], self.quantile)
                - order_statistic(self.today.late_s[0, group], self.quantile)
                for group in groups
            ]
            kept.append(max(added) <= self.minutes * SECONDS_PER_MINUTE + 1e-6)
        return float(np.mean(kept)) if kept else 1.0

    def peak_gpus(self, trial: Trial) -> int:
        """GPUs that a way has on at once, at most, while it is observed."""
        return trial.outcome.peak_gpus(trial.setting.fleet.gpus, 0.0, self.asked.observed_s)


_memory: dict[bytes, tuple[Outcome, int]] = {}
"""Simulation runs and their size [B] by the digest of their arguments; the one used last is at the end."""
_memory_lock = threading.Lock()


def simulate_once(requests: NodeRequests, fleet: NodeFleet, **rules: Any) -> Outcome:  # noqa: ANN401 - as play takes them
    """Simulate as :func:`gpuplanner.simulator.simulation_run` does, once for the same jobs, nodes and rules.

    Examples
    --------
    >>> requests = NodeRequests([0, 1], [0, 1], [9, 9], [9, 9], [0, 0], [8, 8], [1, 1])
    >>> simulate_once(requests, NodeFleet.of_full_gpus([8])) is simulate_once(requests, NodeFleet.of_full_gpus([8]))
    True
    """
    key = hashlib.blake2b(pickle.dumps((requests, fleet, rules)), digest_size=20).digest()
    with _memory_lock:
        outcome, size = _memory.pop(key, (None, 0))
    if outcome is None:
        outcome = simulate_requests(requests, fleet, **rules)
        outcome.start_s.flags.writeable = False
        size = outcome.start_s.nbytes + int(
            outcome.power_intervals.estimated_size() + outcome.allocations.estimated_size()
        )
    with _memory_lock:
        _memory[key] = outcome, size
        excess = sum(size for _, size in _memory.values()) - MAX_MEMORY_BYTES
        while excess > 0 and len(_memory) > 1:
            excess -= _memory.pop(next(iter(_memory)))[1]
    return outcome


def servable_requests(requests: NodeRequests, fleet: NodeFleet, *, larger: Sequence[Sequence[int]] | None) -> Mask:
    """Whether each request can start on an empty fleet, as its GPUs are partitioned: an array of shape (n_requests,).

    `larger` lists for each profile the larger ones that may serve in its place.
    """
    kinds = np.column_stack([requests.profile, requests.total, requests.nodes])
    _, first, kind = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
    begin_s = 2.0 * np.arange(len(first), dtype=np.float64)
    second = np.ones(len(first), np.float64)
    # One after another: each finds the fleet empty.
    alone = replace(requests.select(first), ready_s=begin_s, submit_s=begin_s, run_s=second, limit_s=second)
    started = simulate_once(alone, fleet, larger=larger).start_s
    return np.asarray(~np.isnan(started)[kind.reshape(-1)])


def order_statistic(values: Floats, quantile: float) -> float:
    """The value that such a share of all does not exceed: no interpolation; 0 without any.

    Examples
    --------
    >>> order_statistic(np.arange(1.0, 21.0), 0.95)
    19.0
    """
    if not len(values):
        return 0.0
    place = max(int(np.ceil(quantile * len(values) - 1e-9)) - 1, 0)
    return float(np.partition(values, place)[place])


def gpu_hours(begin_s: Floats, end_s: Floats, gpus: NDArray[Any], edges_s: Sequence[float]) -> Floats:
    """GPU-hours of what holds GPUs for a time, from each instant to the next.

    Examples
    --------
    >>> gpu_hours(np.array([-3600.0, 1800.0]), np.array([7200.0, np.inf]), np.array([8, 2]), [0.0, 3600.0, 7200.0])
    array([ 9., 10.])
    """
    shared = (np.minimum(end_s, high) - np.maximum(begin_s, low) for low, high in pairwise(edges_s))
    return np.array([gpus @ np.clip(seconds, 0.0, None) for seconds in shared]) / SECONDS_PER_HOUR


def allocated_gpu_hours(asked: JobReplayInputs, which: Mask) -> float:
    """GPU-hours that some jobs held while they were observed."""
    begun = which & ~np.isnan(asked.start_s)
    end_s = np.where(np.isnan(asked.end_s), asked.observed_s, asked.end_s)[begun]
    return float(gpu_hours(asked.start_s[begun], end_s, asked.gpus_by_job()[begun], [0.0, asked.observed_s])[0])


def least(enough: Callable[[int], bool], fewest: int, most: int) -> int | None:
    """The smallest number that is enough, by doubling and halving; more is taken to be better.

    Examples
    --------
    >>> least(lambda count: count >= 11, 0, 64), least(lambda count: False, 0, 8)
    (11, None)
    """
    low, high, step = fewest - 1, fewest, 1
    while not enough(high):
        if high >= most:
            return None
        low, high, step = high, min(high + step, most), 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def cut_fleet(
    asked: JobReplayInputs, numbers: Sequence[int], layouts: Sequence[Sequence[Sequence[str]]]
) -> tuple[NodeFleet, tuple[tuple[tuple[str, ...], ...], ...]]:
    """Some of today's nodes with the layouts of their GPUs by pool, in the first of which they begin."""
    fleet = asked.fleet
    capacity = np.array([[count_layout_instances(pool, fleet.profiles) for pool in node] for node in layouts], np.int64)
    begin = np.zeros(len(numbers), np.int64)
    found = NodeFleet(fleet.profiles, fleet.gpus[list(numbers)], capacity, begin, fleet.weights)
    return found, tuple(tuple(tuple(pool) for pool in node) for node in layouts)


MAX_LEFT_OUT_SHARE = 0.20
"""Share of the GPU-hours left out or unresolved above which nothing is recommended but to correct the data."""


@dataclass(frozen=True)
class Correction:
    """What to correct before anything is recommended.

    - ``share``: Share of the GPU-hours left out or unresolved.
    - ``what``: The finding that concerns most of them, naming its node, column or label.
    - ``how``: How to correct it.
    """

    share: float
    what: str
    how: str

    @property
    def reason(self) -> str:
        """Why nothing is recommended, in words."""
        excluded = percent_text(self.share)
        return f"{excluded} of the GPU-hours are excluded or unresolved; correct the data first: {self.what}"


def any_ran(jobs: pl.DataFrame) -> bool:
    """Whether a job states when it ran: from its start to its end, or to now.

    Examples
    --------
    >>> any_ran(pl.DataFrame({"start_time": [0], "end_time": [None], "state": ["COMPLETED"]}))
    False
    """
    until_now = pl.col("state").cast(pl.String) == "RUNNING"
    ran = pl.col("start_time").is_not_null() & (pl.col("end_time").is_not_null() | until_now)
    return bool(jobs.select(ran.any()).item())


def left_out_rows(trace: Dataset) -> int:
    """Rejected rows of the first source of a dataset, its jobs, but for those that are no loss."""
    # Rejected rows that are no loss, such as steps, are ``info`` in the quality report.
    harmless = trace.quality.filter(severity="info")["check"].str.strip_prefix("rejected: ")
    files = [file.name for file in trace.source_facts.files]
    lost = ~pl.col("reason").is_in(harmless.to_list()) & pl.col("file").is_in(files)
    return trace.rejects.filter(lost).height


def left_out_share(trace: Dataset) -> float:
    """Share of the GPU-hours that no figure counts: in quarantine, unknown, untracked shares, rejected.

    A rejected row is taken to be a job as long as the others.
    """
    stated = trace.source_facts
    untracked = float(trace.quality.filter(check=UNTRACKED_CHECK)["gpu_hours"].sum())
    lost = stated.quarantined_gpu_hours + stated.unresolved_gpu_hours + untracked
    counted = stated.gpu_hours / (stated.gpu_hours + lost) if lost else 1.0
    return 1.0 - counted * (1.0 - min(left_out_rows(trace) / max(stated.rows_in, 1), 1.0))


def correction_of(data: str | Dataset) -> Correction | None:
    """What to correct first; None where few enough of the GPU-hours are left out.

    Examples
    --------
    >>> correction_of("sample") is None
    True
    """
    trace = open_dataset(data_folder(data), columns=["gpus"]) if isinstance(data, str) else data
    share = left_out_share(trace)
    if share <= MAX_LEFT_OUT_SHARE:
        return None
    leaves_out = pl.col("effect").str.contains(r"leave|left out|not counted")
    grave = trace.quality.filter(pl.col("severity") != "info", leaves_out)
    named_cause = pl.col("check") != UNKNOWN_GPUS_CHECK.check
    first = grave.sort(named_cause, "gpu_hours", "rows", descending=True, nulls_last=True).head(1)
    if first.is_empty():
        how = "look at rejects.parquet in the folder of the data"
        return Correction(share, "rows that cannot be read", how)
    row = first.row(0, named=True)
    named = f" ({row['example']})" if row["example"] else ""
    return Correction(share, f"{row['check']}{named}", row["effect"])


def warnings_about(data: str) -> list[QualityWarning]:
    """Warnings and errors of the quality report of a dataset, gravest first.

    Examples
    --------
    >>> warnings_about("sample")
    []
    """
    return list_warnings(read_metadata(data_folder(data)).quality)
