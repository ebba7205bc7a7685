"""Explained waits: causes by job, limits, replayed queue, sums by job size, team and partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.units import SECONDS_PER_HOUR, count_text, percent_text, split_amount
from gpuplanner.decision.decision_types import DECIMALS
from gpuplanner.decision.occupancy_changes import close_gaps, observe_handover, observe_occupancy
from gpuplanner.decision.queue_model import (
    EASY_QUEUE,
    ObservedWaits,
    QueueModel,
    arrival_jitter_s,
    build_closing_requests,
    choose_queue_rule,
    find_head_starts,
    starts_are_spread,
)
from gpuplanner.decision.requests import JobReplayInputs, classify_job_sizes
from gpuplanner.decision.wait_causes import (
    CAUSES,
    LIMITS,
    QUEUED_BEHIND,
    UNEXPLAINED,
    TenantUse,
    attribute_waits,
    confirm_limits,
    find_fit_times,
    find_tenant_limits,
    observe_tenant_use,
)
from gpuplanner.simulator.simulation_state import Floats, Ints

MAX_ERROR = 0.3
"""Replay error above which no waits are stated by size: a third of the waiting is then at the wrong place."""
NOTHING = 0.005
"""A share that is shown as 0 %."""


@dataclass(frozen=True)
class RecordGap:
    """Why the record does not carry a statement.

    - ``withholds``: What cannot be stated: ``capacity`` (no recommendation on it), or waits by ``size``.
    - ``sentence``: The reason.
    - ``add``: What to add to the data.
    """

    withholds: str
    sentence: str
    add: str


@dataclass(frozen=True)
class ExplainedShare:
    """How much of the waiting the model explains.

    - ``fraction``: Of the observed waiting, what the replay reproduces without any delay that nothing explains, summed
      by tenant and size [0-1]; None where hardly any job waited, and ``error``
      says nothing.
    - ``by_size``: The same of each size.
    - ``error``: Sum over tenants and sizes of |simulated - observed waiting|, for each second observed, in the replay
      from which waits are forecast.
    - ``gaps``: What cannot be stated, and why.
    """

    fraction: float | None
    by_size: dict[str, float]
    error: float
    gaps: tuple[RecordGap, ...]

    @property
    def capacity_is_clear(self) -> bool:
        """Whether the record carries a recommendation on capacity."""
        return all(gap.withholds != "capacity" for gap in self.gaps)


@dataclass(frozen=True, eq=False)
class ExplainedWaits:
    """What kept the jobs of a record waiting.

    Attributes
    ----------
    seconds : array of float, shape (n_jobs, n_causes)
        By job and cause, of :data:`~gpuplanner.decision.wait_causes.CAUSES`.
    arrival_s : array of float, shape (n_jobs,)
        When each arrives in any simulation: its eligibility and the delay that neither capacity nor queue explains.
    delay_s : array of float, shape (n_jobs,)
        That delay [s].
    queue : QueueModel
        How jobs start: handover, placement, queue rule, and limits that are stated or that the record shows.
    judged : array of bool, shape (n_jobs,)
        Jobs that came within the record; the others were there already.
    simulated_s, waited_s : array of float, shape (n_jobs,)
        What each waits in the replay of today, and what it waited [s].
    share : ExplainedShare
        How much of the waiting the model explains, and how well the replay reproduces it.
    """

    seconds: Floats
    arrival_s: Floats
    delay_s: Floats
    queue: QueueModel
    judged: NDArray[np.bool_]
    simulated_s: Floats
    waited_s: Floats
    share: ExplainedShare

    @property
    def eligible_s(self) -> Floats:
        """Since when each could have started, but for capacity and queue; its start if before the record [s]."""
        return self.arrival_s - self.delay_s

    def arrivals_without_limits(self) -> Floats:
        """When each arrives where no simulation holds tenants to limits: what these held back is delayed [s]."""
        tenant, latency_s = self.queue.tenant, self.queue.handover.latency_s
        seconds, tenants = self.seconds.copy(), int(tenant.max(initial=0)) + 1
        seconds[:, UNEXPLAINED] += seconds[:, LIMITS]
        return self.eligible_s + unexplained_delay(seconds, tenant, tenants, latency_s)

    def take(self, rows: Ints, later_s: Floats) -> ExplainedWaits:
        """Some of the jobs, each so much later, some of them more than once."""
        columns = ("seconds", "delay_s", "judged", "simulated_s", "waited_s")
        moved = replace(self, **{name: getattr(self, name)[rows] for name in columns})
        rule, ahead = self.queue.rule, self.queue.rule.head_start_s
        rule = replace(rule, head_start_s=None if ahead is None else ahead[rows])
        queue = replace(self.queue, tenant=self.queue.tenant[rows], rule=rule)
        return replace(moved, arrival_s=self.arrival_s[rows] + later_s, queue=queue)


def explain_waits(asked: JobReplayInputs) -> ExplainedWaits:
    """Explain what kept jobs waiting on today's nodes."""
    requests, fleet = asked.requests, asked.fleet
    capacity = np.ascontiguousarray(fleet.capacity[:, 0, :])
    seen = observe_occupancy(requests, asked.start_s, asked.end_s, asked.observed_nodes, capacity, asked.closed_spells)
    handover = observe_handover(requests, asked.start_s, seen)
    fits = find_fit_times(requests, close_gaps(seen, handover.latency_s), fleet.weights)
    carried = asked.start_s < 0
    judged = ~carried & ~asked.is_service
    known = requests.with_ready_times(np.where(carried, asked.start_s, requests.ready_s))
    until = np.where(np.isnan(asked.start_s), asked.observed_s, asked.start_s)
    waited = until - known.ready_s
    tenants, tenant = numbers(asked, "tenant")
    size, sizes = classify_job_sizes(asked, judged)
    record = ObservedWaits(waited, tenant * len(sizes) + size, judged, handover.latency_s)

    def observed(queue: QueueModel) -> TenantUse:
        return observe_tenant_use(tenant, asked.gpus_by_job(), asked.start_s, asked.end_s, queue.limits)

    def attribute(queue: QueueModel) -> Floats:
        simulated = queue.start(known, fleet)
        eligible = np.maximum(known.ready_s, 0.0)
        seconds = attribute_waits(fits, eligible, until, simulated, handover.latency_s, observed(queue))
        seconds[carried] = 0.0
        return seconds

    def replay(queue: QueueModel, late_s: Floats) -> Floats:
        arrival = known.ready_s + late_s
        return np.minimum(queue.start(known.with_ready_times(arrival), fleet), asked.observed_s) - arrival

    closings = build_closing_requests(asked.closed_spells, asked.observed_nodes, asked.start_s, asked.end_s, capacity)
    queue = QueueModel(handover, starts_are_spread(seen), tenant, closings=closings)
    stated = {tenants.index(name): gpus for name, gpus in asked.tenant_limits.items() if name in tenants}
    queue = replace(queue, limits=confirm_limits(stated, observed(queue)))
    seconds = attribute(queue)
    limits = find_tenant_limits(
        tenant, asked.gpus_by_job(), asked.start_s, asked.end_s, seconds[:, UNEXPLAINED],
        latency_s=handover.latency_s, seen_s=asked.observed_s,
    )  # fmt: skip
    named = {limit.tenant for limit in queue.limits}
    others = tuple(limit for limit in limits if limit.tenant not in named)
    queue = replace(queue, limits=queue.limits + others)

    groups = (tenant, size, numbers(asked, "partition")[1], numbers(asked, "tier")[1])
    ahead = find_head_starts(known, asked.start_s, judged, groups, observed(queue), handover.latency_s)
    by_rule = queue
    rule, simulated = choose_queue_rule(lambda rule, late: replay(replace(by_rule, rule=rule), late), record, ahead)
    if limits or rule.name != EASY_QUEUE:
        queue = replace(queue, rule=rule)
        seconds = attribute(queue)
    none = np.zeros(len(tenant))
    # Of a replay as recorded and the mean of shifted ones the nearer: where waits hang on seconds, either may be off.
    simulated = min(simulated, replay(queue, none), key=record.error)
    delay, delayed = unexplained_delay(seconds, tenant, len(tenants), handover.latency_s), simulated
    if delay.any():
        late = [none, *(arrival_jitter_s(len(delay), number) for number in range(2))]
        waits = [replay(queue, delay + later_s) + delay for later_s in late]
        delayed = min(waits[0], np.mean(waits[1:], axis=0), key=record.error)
    share = explained_share(record, simulated, delayed, size, sizes, seconds[judged].sum(axis=0))
    return ExplainedWaits(seconds, known.ready_s + delay, delay, queue, judged, delayed, waited, share)


def numbers(asked: JobReplayInputs, column: str) -> tuple[list[str], Ints]:
    """Names in a column of the jobs, and the number of each job's; a job that names none has one of its own."""
    names, number = np.unique(asked.jobs[column].fill_null("?").to_numpy(), return_inverse=True)
    return names.tolist(), number.astype(np.int64)


def unexplained_delay(seconds: Floats, tenant: Ints, tenants: int, latency_s: float) -> Floats:
    """What of the waiting nothing explains, where it is more of the tenant's waiting than a replay gets wrong [s].

    Examples
    --------
    >>> seconds = np.array([[0.0, 0, 0, 0, 0, 500], [10_000, 0, 0, 0, 0, 500]])
    >>> unexplained_delay(seconds, np.array([0, 1]), 2, 60.0).tolist()
    [500.0, 0.0]
    """
    unexplained = seconds[:, UNEXPLAINED]
    waited = np.bincount(tenant, seconds.sum(axis=1), tenants)
    share = np.bincount(tenant, unexplained, tenants) / np.maximum(waited, 1e-9)
    # Less than a tenth of a tenant's waiting is what a replay gets wrong anyhow, and no delay.
    return np.where((share > 0.1)[tenant] & (unexplained > latency_s), unexplained, 0.0)


def explained_share(
    record: ObservedWaits, simulated_s: Floats, delayed_s: Floats, size: Ints, sizes: tuple[str, ...], seconds: Floats
) -> ExplainedShare:
    """Measure how much of the waiting a replay reproduces, and say what the record does not carry.

    Parameters
    ----------
    record : ObservedWaits
        What jobs waited.
    simulated_s, delayed_s : array of float, shape (n_jobs,)
        Waits in the replay without delays, and in the one with them [s].
    size : array of int, shape (n_jobs,)
        Number of the size of each, in ``sizes``.
    sizes : tuple of str
        Their names.
    seconds : array of float, shape (n_causes,)
        Waiting of judged jobs by cause [s].

    Examples
    --------
    >>> zero, size = np.zeros(12), np.zeros(12, int)
    >>> record = ObservedWaits(zero + 3600, size, np.ones(12, bool))
    >>> seconds = np.array([0, 0, 0, 0, 0, 12 * 3600.0])
    >>> share = explained_share(record, zero, record.waited_s, size, ("1 GPU",), seconds)
    >>> share.fraction, share.error, share.capacity_is_clear
    (0.0, 0.0, False)
    >>> share.gaps[0].sentence
    'Jobs waited 12 h while the nodes had what they requested: the record lacks jobs or limits.'
    """
    judged, parts = record.judged, int(record.group.max(initial=0)) + 1
    owner = np.zeros(parts, np.int64)
    owner[record.group] = size
    group, both = record.group[judged], (record.waited_s, simulated_s)
    waited, reproduced = (np.bincount(group, waits_s[judged], parts) for waits_s in both)
    reproduced = np.minimum(np.maximum(reproduced, 0.0), waited)
    by_size = {
        name: float(reproduced[owner == number].sum() / waited[owner == number].sum())
        for number, name in enumerate(sizes)
        if waited[owner == number].sum() > 0
    }
    error = record.error(delayed_s)
    if not record.has_queued_jobs:
        return ExplainedShare(None, {}, error, ())

    fraction = float(reproduced.sum() / waited.sum())
    gaps = []
    add_jobs = (
        "all jobs of these nodes, of every user and partition (sacct --allusers), and the limits of accounts, "
        "partitions and QOS (sacctmgr show assoc, show qos)"
    )
    hours, why = f"Jobs waited {waited.sum() / 3600:,.0f} h", ""
    if seconds[:QUEUED_BEHIND].sum() + seconds[LIMITS] < NOTHING * seconds.sum():
        why = " while the nodes had what they requested: the record lacks jobs or limits."
    elif fraction < NOTHING:
        why = "; a replay of the record reproduces none of it: the record lacks jobs or limits are unknown."
    if why:
        gaps.append(RecordGap("capacity", f"{hours}{why}", add_jobs))
    if error > MAX_ERROR:
        text = f"A replay of the record is off by {percent_text(error)} of the waiting: waits are not shown by size."
        add = "time limits, priorities (partition, QOS) and node events (sacctmgr show event), where missing"
        gaps.append(RecordGap("size", text, add))
    return ExplainedShare(fraction, by_size, error, tuple(gaps))


def take_jobs(
    asked: JobReplayInputs, waits: ExplainedWaits, rows: Ints, later_s: Floats
) -> tuple[JobReplayInputs, ExplainedWaits]:
    """Jobs of a record by their rows, some of them more than once, each so much later than it came [s]."""
    views = {}
    for name, requests in asked.views.items():
        taken = requests.select(rows)
        views[name] = replace(taken, submit_s=taken.submit_s + later_s, ready_s=taken.ready_s + later_s)
    others = replace(
        asked, jobs=asked.jobs[rows], views=views, start_s=asked.start_s[rows] + later_s,
        end_s=asked.end_s[rows] + later_s, observed_nodes=[asked.observed_nodes[row] for row in rows],
        is_service=asked.is_service[rows],
    )  # fmt: skip
    return others, waits.take(rows, later_s)


WORDS = {
    "insufficient": "insufficient capacity", "fragmented": "fragmentation (enough idle GPUs, spread over nodes)",
    "wrong_layout": "a wrong MIG layout (idle GPUs, but not as the MIG instances that jobs request)",
    "queued_behind": "queued behind other jobs", "limits": "limits of teams",
    "unexplained": "unexplained (the jobs fitted on idle GPUs)",
}  # fmt: skip
NO_NAME = "-"


@dataclass(frozen=True)
class CauseHours:
    """Hours that some jobs waited, by cause [h]."""

    name: str
    jobs: int
    waited: float
    insufficient: float
    fragmented: float
    wrong_layout: float
    queued_behind: float
    limits: float
    unexplained: float


@dataclass(frozen=True)
class Causes:
    """The same hours by job size, team and partition."""

    job_size: tuple[CauseHours, ...]
    team: tuple[CauseHours, ...]
    partition: tuple[CauseHours, ...]


@dataclass(frozen=True)
class TenantLimit:
    """A tenant that the record shows at a limit, and the most GPUs that it held."""

    tenant: str
    gpus: float


@dataclass(frozen=True)
class WaitSummary:
    """What kept the jobs of a record waiting.

    - ``causes``: Hours by cause, for the jobs that came within the record.
    - ``explained_fraction``: Share of the waiting that the simulation of today reproduces; None where no job waited.
    - ``replay_error``: Difference of the waiting simulated and observed, by tenant and job size, as a share of what was
      observed.
    - ``limits``: Tenants that waited at a limit.
    """

    causes: Causes
    explained_fraction: float | None
    replay_error: float
    limits: tuple[TenantLimit, ...]

    @property
    def sentence(self) -> str:
        """The largest cause, in words."""
        rows = self.causes.job_size
        total = sum(row.waited for row in rows)
        if total < 1.0:
            return "Jobs waited less than an hour in total."
        hours = {cause: sum(getattr(row, cause) for row in rows) for cause in CAUSES}
        cause = max(hours, key=lambda name: hours[name])
        return (
            f"Jobs waited {count_text(round(total), 'hour')} in total; main cause {WORDS[cause]}, "
            f"{percent_text(hours[cause] / total)}."
        )

    @property
    def cause_percent(self) -> dict[str, int]:
        """Percentage of the hours of waiting by cause, which sum to 100; empty where jobs waited less than an hour."""
        rows = self.causes.job_size
        hours = [sum(getattr(row, cause) for row in rows) for cause in CAUSES]
        parts = split_amount(Decimal(100), hours) if sum(hours) >= 1.0 else []
        return {cause: int(part) for cause, part in zip(CAUSES, parts, strict=False)}


def cause_table(rows: Sequence[CauseHours]) -> pl.DataFrame:
    """Hours by cause as a table.

    Examples
    --------
    >>> cause_table([CauseHours("1 GPU", 2, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0)]).row(0)[:5]
    ('1 GPU', 2, 3.0, 2.0, 1.0)
    """
    return pl.DataFrame(rows, schema=["name", "jobs", "waited", *CAUSES], orient="row")


def sum_waits(asked: JobReplayInputs, waits: ExplainedWaits) -> WaitSummary:
    """Sum what kept jobs waiting.

    Examples
    --------
    >>> from gpuplanner.core.scenario import Scenario
    >>> from gpuplanner.decision.requests import read_replay_inputs
    >>> from gpuplanner.usage.job_history import history

    >>> asked = read_replay_inputs(history(Scenario()))
    >>> [row.name for row in sum_waits(asked, explain_waits(asked)).causes.team][:2]
    ['assistants', 'llm-core']
    """
    size, names = classify_job_sizes(asked, waits.judged)
    hours = dict(zip(CAUSES, waits.seconds.T / SECONDS_PER_HOUR, strict=True))
    tenant = asked.jobs["tenant"].cast(pl.String).fill_null(NO_NAME)
    sizes = pl.Series([names[number] for number in size], dtype=pl.Enum(names))
    partition = asked.jobs["partition"].cast(pl.String).fill_null(NO_NAME)
    table = pl.DataFrame({"job_size": sizes, "team": tenant, "partition": partition, **hours})
    table = table.filter(waits.judged)
    held = np.bincount(waits.queue.tenant, waits.seconds[:, LIMITS] * waits.judged) > 0
    first = dict(zip(waits.queue.tenant.tolist(), tenant, strict=True))
    at_limit = (limit for limit in waits.queue.limits if held[limit.tenant])
    limits = tuple(TenantLimit(first[limit.tenant], limit.gpus) for limit in at_limit)
    causes = Causes(*(_by(table, name) for name in ("job_size", "team", "partition")))
    fraction = None if waits.share.fraction is None else round(waits.share.fraction, DECIMALS)
    return WaitSummary(causes, fraction, round(waits.share.error, DECIMALS), limits)


def _by(table: pl.DataFrame, name: str) -> tuple[CauseHours, ...]:
    """Hours by cause of each value of a column."""
    waited = pl.sum_horizontal(CAUSES).sum()
    rows = table.group_by(name).agg(pl.len().alias("jobs"), waited.alias("waited"), pl.col(CAUSES).sum())
    rows = rows.sort(name).with_columns(pl.selectors.float().round(DECIMALS))
    return tuple(CauseHours(*row) for row in rows.iter_rows())
