"""Replicas of a language model by hour: how many a request trace needs, and a weekly schedule with start-up lead."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR
from gpuplanner.sizing.replica_queue import Floats, Ints, ReplicaStepTimes, RequestStream, RequestTimes, serve_requests

TTFT_LATE_SHARE, ITL_LATE_SHARE = 0.01, 0.05
"""Share of the requests that may miss the target of the time to the first token, and of the time per token [0-1]."""
MAX_REQUESTS_PER_INTERVAL = 50_000
"""Requests of an interval that are simulated; of more, the busiest part with so many."""
HOURS_OF_DAY, HOURS_OF_WEEK = 24, 168
"""Slots of a schedule by hour of the day, and by hour of the week."""

REPLICA_HOUR_REASONS = ("serving", "start-up", "no requests", "floor", "schedule", "rounding")
"""What replicas hold their GPUs for: computing, starting ahead of the hour, hours without requests, the fewest replicas
that are always kept, other hours of the same slot that need more, and complete replicas with room for the latency
targets.
"""


@dataclass(frozen=True)
class LatencyTargets:
    """Targets of a service: first token for 99 % of the requests, and time per token for 95 % of them [s]."""

    ttft_s: float
    itl_s: float

    def count_late(self, times: RequestTimes) -> tuple[int, int]:
        """Count the requests with a late first token, and with slow tokens."""
        return int((times.ttft_s > self.ttft_s).sum()), int((times.itl_s > self.itl_s).sum())


@dataclass(frozen=True)
class ScheduleBacktest:
    """Replicas planned on all but the last week of a trace, and what they reach in that week.

    - ``hours``, ``hours_met``: Hours of the last week with requests, and those of them that meet the targets.
    - ``ttft_p99_s``, ``itl_p95_s``: Simulated latencies of all requests of the last week; None where not known [s].
    - ``replica_hours``: Replica-hours of the last week as :meth:`ReplicaSchedule.compare_replica_hours` has them [h].
    - ``requests_per_h``, ``requests_per_h_before``: Mean requests of the last week, and of the weeks before [1/h].
    """

    hours: int
    hours_met: int
    ttft_p99_s: float | None
    itl_p95_s: float | None
    replica_hours: dict[str, float]
    requests_per_h: float
    requests_per_h_before: float


WeekReplay = Callable[[Ints], tuple[NDArray[np.bool_], float | None, float | None]]
"""Which of the last hours of a trace meet their targets with a number of replicas each, and p99 of the time to the
first token and p95 of the time per token of their requests [s].
"""


@dataclass(frozen=True, eq=False)
class ReplicaSchedule:
    """Replicas of a service by hour, with the requests that they were counted for.

    Attributes
    ----------
    hours : polars.DataFrame
        Hours of the trace: ``hour`` (begin, since the first hour) and ``observed_h``, ``slot``, ``requests``,
        ``prompt_tokens``, ``generated_tokens``, ``prompt_p95``, ``answer_p95``, ``needed`` (fewest replicas for the
        requests of this hour, in hindsight), ``planned``, ``busy_h`` (replica-hours of computing), and the simulated
        ``ttft_p99_ms`` and ``itl_p95_ms``.
    by_slot : array of int, shape (n_slots,)
        Planned replicas by hour of the week or of the day.
    is_observed : array of bool, shape (n_slots,)
        Slots of which the trace has an hour.
    startup_s : float
        Time from the start of a replica until it is ready. [s]
    floor : int
        Fewest replicas.
    ttft_p99_s, itl_p95_s : float
        Simulated latencies of all requests of the trace on the planned replicas. [s]
    backtest : ScheduleBacktest, optional
        What a schedule of all but the last week reaches in that week; None: the trace has less than two weeks.
    """

    hours: pl.DataFrame
    by_slot: Ints
    is_observed: np.ndarray
    startup_s: float
    floor: int
    ttft_p99_s: float
    itl_p95_s: float
    backtest: ScheduleBacktest | None = None

    @property
    def peak(self) -> int:
        """Most planned replicas."""
        return int(self.by_slot.max())

    def split_replica_hours(self) -> pl.DataFrame:
        """Split the replica-hours of each hour of the trace into serving and idle by reason.

        Returns
        -------
        polars.DataFrame
            ``hour`` and one column for each of :data:`REPLICA_HOUR_REASONS`, which sum to the hours of the planned
            replicas with their start-up. [h]
        """
        hours = self.hours
        observed_h, needed, planned = (hours[name].to_numpy() for name in ("observed_h", "needed", "planned"))
        serving = np.minimum(hours["busy_h"].to_numpy(), planned * observed_h)
        left = planned * observed_h - serving
        parts = {"serving": serving, "start-up": sum_startup_hours(planned, self.startup_s)}
        limits = {
            "no requests": np.where(hours["requests"].to_numpy() == 0, left, 0.0),
            "floor": np.maximum(np.minimum(planned, self.floor) - needed, 0) * observed_h,
            "schedule": np.maximum(planned - np.maximum(needed, self.floor), 0) * observed_h,
            "rounding": left,
        }
        for reason, limit in limits.items():
            parts[reason] = np.minimum(limit, left)
            left = left - parts[reason]
        return pl.DataFrame({"hour": hours["hour"], **parts})

    def compare_replica_hours(self) -> dict[str, float]:
        """Compare the replica-hours of the trace: planned with start-up, the peak all day, and needed in hindsight."""
        observed_h = self.hours["observed_h"].to_numpy()
        lead_h = sum_startup_hours(self.hours["planned"].to_numpy(), self.startup_s)
        return {
            "planned": float((self.hours["planned"].to_numpy() * observed_h).sum() + lead_h.sum()),
            "peak all day": float(self.hours["planned"].max() * observed_h.sum()),
            "hindsight": float((self.hours["needed"].to_numpy() * observed_h).sum()),
        }


def find_fewest_replicas(
    step_times: ReplicaStepTimes, requests: RequestStream, targets: LatencyTargets, start: int = 1
) -> int:
    """Find the fewest replicas with which requests meet the latency targets; 0 without requests.

    Requests that miss a target even where each runs alone count as met: no number of replicas helps them.

    Parameters
    ----------
    step_times : ReplicaStepTimes
        Speed of a replica.
    requests : RequestStream
        Requests of an interval.
    targets : LatencyTargets
        Latency targets.
    start : int
        Number to try first.

    Examples
    --------
    >>> step_times = ReplicaStepTimes(np.full(9, 0.02), 1e-4, 0.0, 8192)
    >>> requests = RequestStream(np.arange(0.0, 60.0, 0.1), np.full(600, 500), np.full(600, 100))
    >>> find_fewest_replicas(step_times, requests, LatencyTargets(1.0, 0.05))
    3
    """
    if not len(requests):
        return 0
    requests = take_busiest_part(requests)
    unavoidable = targets.count_late(run_each_alone(step_times, requests))
    max_late = [
        max(int(share * len(requests)), late)
        for share, late in zip((TTFT_LATE_SHARE, ITL_LATE_SHARE), unavoidable, strict=True)
    ]

    def meets_with(replicas: int) -> bool:
        late = targets.count_late(serve_requests(step_times, requests, replicas))
        return late[0] <= max_late[0] and late[1] <= max_late[1]

    low, high = 0, max(start, 1)
    while not meets_with(high) and high < len(requests):
        low, high = high, 2 * high
    while high - low > 1:
        # The number of the hour before is mostly right: the one below it is tried first.
        middle = high - 1 if high == start else (low + high) // 2
        low, high = (low, middle) if meets_with(middle) else (middle, high)
    return high


def run_each_alone(step_times: ReplicaStepTimes, requests: RequestStream) -> RequestTimes:
    """Simulate each request alone on a replica: the times that no number of replicas improves."""
    arrival_s = np.arange(len(requests), dtype=np.float64) * 1e6
    return serve_requests(step_times, RequestStream(arrival_s, requests.prompt, requests.answer), 1)


def take_busiest_part(requests: RequestStream) -> RequestStream:
    """Take the part with most tokens of a long stream, of at most :data:`MAX_REQUESTS_PER_INTERVAL` requests."""
    parts = math.ceil(len(requests) / MAX_REQUESTS_PER_INTERVAL)
    if parts == 1:
        return requests
    streams = [requests.take(rows) for rows in np.array_split(np.arange(len(requests)), parts)]
    return max(
        streams, key=lambda part: float((part.prompt + part.answer).sum() / (part.arrival_s[-1] - part.arrival_s[0]))
    )


def sum_startup_hours(replicas: Ints, startup_s: float) -> Floats:
    """Return the replica-hours of start-up before each hour, from the replicas by hour; the first hour has none.

    Examples
    --------
    >>> sum_startup_hours(np.array([1, 3, 3, 2, 4]), 360.0).tolist()
    [0.0, 0.2, 0.0, 0.0, 0.2]
    """
    return np.maximum(np.diff(replicas, prepend=replicas[:1]), 0) * startup_s / SECONDS_PER_HOUR


def plan_replicas(
    step_times: ReplicaStepTimes,
    requests: RequestStream,
    targets: LatencyTargets,
    slots: Ints,
    n_slots: int,
    *,
    quantile: float = 0.95,
    startup_s: float = 300.0,
    floor: int = 1,
) -> ReplicaSchedule:
    """Plan the replicas of a service for each hour of the week (or of the day) from a request trace.

    For each hour of the trace, the fewest replicas that meet the targets with its requests are found by simulation. A
    slot is planned with the quantile of these numbers over its hours. Slots that the trace has no hour of are planned
    with the most replicas at this hour of other days, or else with the most of any.

    Parameters
    ----------
    step_times : ReplicaStepTimes
        Speed of a replica.
    requests : RequestStream
        Requests, arriving from 0 s, the begin of the first hour. [s]
    targets : LatencyTargets
        Latency targets.
    slots : array of int, shape (n_hours,)
        Slot of each hour of the trace.
    n_slots : int
        Slots of the schedule.
    quantile : float
        Share of the hours of a slot whose need is covered. [0-1]
    startup_s : float
        Time from the start of a replica until it is ready. [s]
    floor : int
        Fewest replicas; 0: none are kept in slots without requests.

    Examples
    --------
    >>> step_times = ReplicaStepTimes(np.full(9, 0.02), 1e-4, 0.0, 8192)
    >>> requests = RequestStream(np.arange(0.0, 3600.0, 0.1), np.full(36000, 500), np.full(36000, 100))
    >>> schedule = plan_replicas(step_times, requests, LatencyTargets(1.0, 0.05), np.array([9, 10]), 24)
    >>> schedule.hours["needed"].to_list(), schedule.by_slot[[9, 10, 11]].tolist()
    ([3, 0], [3, 1, 3])
    """
    n_hours = len(slots)
    first = np.searchsorted(requests.arrival_s, np.arange(n_hours + 1) * SECONDS_PER_HOUR)
    parts = [requests.take(slice(first[hour], first[hour + 1])) for hour in range(n_hours)]
    needed = np.zeros(n_hours, np.int64)
    last = 1
    for hour, part in enumerate(parts):
        needed[hour] = find_fewest_replicas(step_times, part, targets, last)
        last = max(int(needed[hour]), 1)
    by_slot, is_observed = cover_slots(needed, slots, n_slots, quantile, floor)
    planned = by_slot[slots]
    times, delay_s = simulate_schedule(step_times, requests, planned, startup_s)
    ttft_s = times.ttft_s + delay_s
    rows = []
    for hour, part in enumerate(parts):
        inside = slice(first[hour], first[hour + 1])
        row: dict[str, float | int | None] = {
            "hour": hour, "slot": int(slots[hour]), "requests": len(part),
            "prompt_tokens": int(part.prompt.sum()), "generated_tokens": int(part.answer.sum()),
            "needed": int(needed[hour]), "planned": int(planned[hour]),
            "busy_h": float(times.busy_s[hour]) / SECONDS_PER_HOUR,
            "prompt_p95": None, "answer_p95": None, "ttft_p99_ms": None, "itl_p95_ms": None,
        }  # fmt: skip
        if len(part):
            row |= {"prompt_p95": float(np.quantile(part.prompt, 0.95))}
            row |= {"answer_p95": float(np.quantile(part.answer, 0.95))}
            row |= {"ttft_p99_ms": 1e3 * float(np.quantile(ttft_s[inside], 0.99))}
            row |= {"itl_p95_ms": 1e3 * float(np.quantile(times.itl_s[inside], 0.95))}
        rows.append(row)
    # The first and the last hour are observed in part: from the first request, and to the last one.
    observed_h = np.ones(n_hours)
    observed_h[0] -= requests.arrival_s[0] / SECONDS_PER_HOUR
    observed_h[-1] -= max(n_hours - requests.arrival_s[-1] / SECONDS_PER_HOUR, 0.0)
    hours = pl.DataFrame(rows, infer_schema_length=None).with_columns(observed_h=pl.Series(observed_h.clip(0.0, 1.0)))
    p99, p95 = float(np.quantile(ttft_s, 0.99)), float(np.quantile(times.itl_s, 0.95))
    schedule = ReplicaSchedule(hours, by_slot, is_observed, startup_s, floor, p99, p95)

    def replay_week(week: Ints) -> tuple[NDArray[np.bool_], float | None, float | None]:
        """Simulate the requests of the last hours on a number of replicas by hour."""
        begin = n_hours - len(week)
        part = requests.take(slice(first[begin], None))
        later = RequestStream(part.arrival_s - begin * SECONDS_PER_HOUR, part.prompt, part.answer)
        return replay_hours(step_times, later, targets, week, startup_s)

    return replace(schedule, backtest=backtest_schedule(schedule, quantile, replay_week))


def backtest_schedule(schedule: ReplicaSchedule, quantile: float, replay_week: WeekReplay) -> ScheduleBacktest | None:
    """Plan all but the last week of a trace, and measure the plan in that week; None for less than two weeks.

    Parameters
    ----------
    schedule : ReplicaSchedule
        Schedule of the whole trace.
    quantile : float
        Share of the hours of a slot whose need is covered. [0-1]
    replay_week : WeekReplay
        Simulation of the last week.
    """
    n_slots, before = len(schedule.by_slot), schedule.hours.height - HOURS_OF_WEEK
    # As for a schedule by hour of the week, six days count as a week.
    if n_slots != HOURS_OF_WEEK or before <= HOURS_OF_WEEK - HOURS_OF_DAY:
        return None
    past, week = schedule.hours.head(before), schedule.hours.tail(HOURS_OF_WEEK)
    observed = past.filter(pl.col("observed_h") > 0)
    needed, slots = observed["needed"].to_numpy(), observed["slot"].to_numpy()
    by_slot, _ = cover_slots(needed, slots, n_slots, quantile, schedule.floor)
    planned = by_slot[week["slot"].to_numpy()]
    is_met, ttft_s, itl_s = replay_week(planned)
    has_requests = (week["needed"].to_numpy() > 0) | (week["requests"].to_numpy() > 0)
    rates = [float(hours["requests"].sum()) / max(float(hours["observed_h"].sum()), 1.0) for hours in (week, past)]
    hours = replace(schedule, hours=week.with_columns(planned=planned)).compare_replica_hours()
    met = int((is_met & has_requests).sum())
    return ScheduleBacktest(int(has_requests.sum()), met, ttft_s, itl_s, hours, *rates)


def replay_hours(
    step_times: ReplicaStepTimes, requests: RequestStream, targets: LatencyTargets, replicas: Ints, startup_s: float
) -> tuple[NDArray[np.bool_], float, float]:
    """Simulate requests on a number of replicas by hour: whether each hour meets the targets, and the latencies [s].

    Parameters
    ----------
    step_times : ReplicaStepTimes
        Speed of a replica.
    requests : RequestStream
        Requests, arriving from 0 s, the begin of the first hour. [s]
    targets : LatencyTargets
        Latency targets.
    replicas : array of int, shape (n_hours,)
        Ready replicas by hour.
    startup_s : float
        Time from the start of a replica until it is ready. [s]
    """
    times, delay_s = simulate_schedule(step_times, requests, replicas, startup_s)
    times = replace(times, ttft_s=times.ttft_s + delay_s)
    hour = (requests.arrival_s // SECONDS_PER_HOUR).astype(np.int64)

    def count_by_hour(is_late: NDArray[np.bool_]) -> Ints:
        """Count late requests by hour."""
        return np.bincount(hour[is_late], minlength=len(replicas))

    counts, unavoidable = np.bincount(hour, minlength=len(replicas)), run_each_alone(step_times, requests)
    is_met = np.ones(len(replicas), np.bool_)
    for name, limit_s, share in (("ttft_s", targets.ttft_s, TTFT_LATE_SHARE), ("itl_s", targets.itl_s, ITL_LATE_SHARE)):
        # As for the fewest replicas, requests that are late even alone count as met.
        allowed = np.maximum((share * counts).astype(np.int64), count_by_hour(getattr(unavoidable, name) > limit_s))
        is_met &= count_by_hour(getattr(times, name) > limit_s) <= allowed
    return is_met, *times.percentiles()


def cover_slots(needed: Ints, slots: Ints, n_slots: int, quantile: float, floor: int) -> tuple[Ints, NDArray[np.bool_]]:
    """Return the replicas by slot that cover a quantile of what its hours needed, and which slots have hours.

    Parameters
    ----------
    needed, slots : array of int, shape (n_hours,)
        Replicas that each hour needed, and its slot.
    n_slots : int
        Slots of the schedule.
    quantile : float
        Share of the hours of a slot whose need is covered. [0-1]
    floor : int
        Fewest replicas.
    """
    by_slot, is_observed = np.zeros(n_slots, np.int64), np.zeros(n_slots, np.bool_)
    for slot in np.unique(slots):
        by_slot[slot] = math.ceil(float(np.quantile(needed[slots == slot], quantile, method="higher")))
        is_observed[slot] = True
    for slot in np.flatnonzero(~is_observed):
        same_hour = is_observed & (np.arange(n_slots) % HOURS_OF_DAY == slot % HOURS_OF_DAY)
        by_slot[slot] = by_slot[same_hour if same_hour.any() else is_observed].max()
    return np.maximum(by_slot, floor), is_observed


def plan_replicas_by_activity(
    readings: pl.DataFrame,
    slots: Ints,
    n_slots: int,
    *,
    busy_share: float,
    quantile: float = 0.95,
    startup_s: float = 300.0,
    floor: int = 1,
) -> ReplicaSchedule:
    """Plan replicas by the measured activity of GPUs, where requests have no tokens: latencies are not predicted.

    An hour needs as many replicas as keep the 95th percentile of the busy GPUs at a share of them.

    Parameters
    ----------
    readings : polars.DataFrame
        ``hour`` (from 0), ``busy`` (GPUs that compute, over all replicas) and ``requests``, one row a reading.
    slots : array of int, shape (n_hours,)
        Slot of each hour.
    n_slots : int
        Slots of the schedule.
    busy_share : float
        Share of the time in which a replica may compute. [0-1]
    quantile, startup_s, floor
        As for :func:`plan_replicas`.

    Examples
    --------
    >>> readings = pl.DataFrame({"hour": [0, 0, 1], "busy": [1.0, 2.0, 5.0], "requests": [1.0, 1.0, 9.0]})
    >>> schedule = plan_replicas_by_activity(readings, np.array([0, 1]), 24, busy_share=0.5)
    >>> schedule.hours["needed"].to_list(), schedule.by_slot[:3].tolist()
    ([4, 10], [4, 10, 10])
    """
    hours = pl.DataFrame({"hour": np.arange(len(slots)), "slot": slots})
    sums = readings.group_by("hour").agg(
        needed=(pl.col("busy").quantile(0.95, "higher") / busy_share).ceil().cast(pl.Int64),
        busy_h=pl.col("busy").mean(),
        requests=pl.col("requests").sum().round().cast(pl.Int64),
    )
    hours = hours.join(sums, on="hour", how="left", maintain_order="left")
    is_read = hours["needed"].is_not_null().to_numpy()
    by_slot, is_observed = cover_slots(
        hours["needed"].drop_nulls().to_numpy(), slots[is_read], n_slots, quantile, floor
    )
    nothing = dict.fromkeys(("prompt_p95", "answer_p95", "ttft_p99_ms", "itl_p95_ms"), pl.lit(None, pl.Float64))
    hours = hours.with_columns(
        pl.col("needed", "requests", "busy_h").fill_null(0),
        planned=pl.Series(by_slot[slots]),
        prompt_tokens=0,
        generated_tokens=0,
        observed_h=pl.Series(is_read.astype(float)),
        **nothing,
    )
    schedule = ReplicaSchedule(hours, by_slot, is_observed, startup_s, floor, math.nan, math.nan)
    last_needed = hours["needed"].tail(HOURS_OF_WEEK).to_numpy()
    backtest = backtest_schedule(schedule, quantile, lambda week: (week >= last_needed, None, None))
    return replace(schedule, backtest=backtest)


def simulate_schedule(
    step_times: ReplicaStepTimes, requests: RequestStream, replicas: Ints, startup_s: float
) -> tuple[RequestTimes, Floats]:
    """Simulate all requests of a trace on a number of replicas by hour.

    Without replicas, the first request starts one, and those that follow wait for it as well.

    Parameters
    ----------
    step_times : ReplicaStepTimes
        Speed of a replica.
    requests : RequestStream
        Requests, arriving from 0 s. [s]
    replicas : array of int, shape (n_hours,)
        Ready replicas by hour.
    startup_s : float
        Time from the start of a replica until it is ready. [s]

    Returns
    -------
    RequestTimes
        Times from the instant when a replica is there.
    array of float, shape (n_requests,)
        What each request waits for a replica to start. [s]
    """
    hour = np.minimum((requests.arrival_s // SECONDS_PER_HOUR).astype(np.int64), len(replicas) - 1)
    ready_s = requests.arrival_s.copy()
    for empty_hour in np.unique(hour[replicas[hour] == 0]):
        if empty_hour and replicas[empty_hour - 1] == 0 and (hour == empty_hour - 1).any():
            continue  # the replica of the hour before is still there
        inside = hour == empty_hour
        ready_s[inside] = np.maximum(ready_s[inside], ready_s[inside][0] + startup_s)
    ready_s = np.maximum.accumulate(ready_s)
    change_s = np.arange(len(replicas), dtype=np.float64) * SECONDS_PER_HOUR
    delayed = RequestStream(ready_s, requests.prompt, requests.answer)
    return serve_requests(step_times, delayed, np.maximum(replicas, 1), change_s), ready_s - requests.arrival_s


def list_replica_holds(replicas: Ints, interval_s: float, startup_s: float) -> list[tuple[float, float]]:
    """List the spells in which replicas hold their GPUs, start-up included: begin and end of each [s].

    A replica starts ``startup_s`` before the interval in which it is needed. One that would be stopped for no longer
    than its start-up is kept. A replica of the first interval holds its GPUs from 0.

    Parameters
    ----------
    replicas : array of int, shape (n_intervals,)
        Planned replicas.
    interval_s, startup_s : float
        Length of an interval, and time from start to ready. [s]

    Examples
    --------
    >>> list_replica_holds(np.array([1, 3, 1, 2]), 3600.0, 600.0)
    [(0.0, 14400.0), (3000.0, 7200.0), (10200.0, 14400.0), (3000.0, 7200.0)]
    """
    holds: list[tuple[float, float]] = []
    for level in range(1, int(replicas.max(initial=0)) + 1):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], replicas >= level, [0]])))
        spells: list[tuple[float, float]] = []
        for begin, end in edges.reshape(-1, 2).tolist():
            since_s = max(begin * interval_s - startup_s, 0.0)
            if spells and since_s <= spells[-1][1]:
                since_s = spells.pop()[0]
            spells.append((since_s, end * interval_s))
        holds += spells
    return holds
