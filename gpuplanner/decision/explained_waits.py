"""Explained queue waits: causes by job, limits of tenants, a replay of the queue, and sums by group."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.scenario import Scenario
from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR, percent_text, split_amount, waiting_hours_text
from gpuplanner.decision.decision_types import RECORD_DECIMALS
from gpuplanner.decision.free_gpus_over_time import (
    Handover,
    OccupancyChanges,
    close_handover_gaps,
    observe_handover,
    observe_occupancy,
)
from gpuplanner.decision.queue_model import (
    EASY_QUEUE,
    ObservedWaits,
    QueueModel,
    arrival_jitter_s,
    build_closing_requests,
    choose_queue_rule,
    concatenate_requests,
    find_head_starts,
    jobs_start_on_emptiest_nodes,
)
from gpuplanner.decision.requested_jobs import JobReplayInputs, classify_job_sizes, read_replay_inputs
from gpuplanner.decision.wait_causes import (
    CAUSES,
    LIMITS,
    QUEUED_BEHIND,
    TOLERANCE,
    UNEXPLAINED,
    TenantUse,
    attribute_waits,
    confirm_limits,
    find_fit_times,
    find_tenant_limits,
    observe_tenant_use,
)
from gpuplanner.simulator.simulation_inputs import NodeRequests
from gpuplanner.simulator.simulation_state import Floats, Ints
from gpuplanner.usage.grouped_usage import WAIT_GROUPS, UsageFilter, require_groups, select_waiting_jobs
from gpuplanner.usage.planning_history import history

MAX_REPLAY_ERROR = 0.3
"""Largest replay error at which queue waits by job size are shown: share of the waiting that is simulated for the wrong
jobs [0-1].
"""
NEGLIGIBLE_SHARE = 0.005
"""Largest share that is shown as 0 % [0-1]."""


@dataclass(frozen=True)
class RecordGap:
    """A gap in the record because of which a result is not shown.

    - ``withholds``: Result that is not shown: ``capacity`` (a recommendation), or waits by ``size``.
    - ``sentence``: Reason.
    """

    withholds: str
    sentence: str


@dataclass(frozen=True)
class ExplainedShare:
    """Share of the waiting that the model explains.

    - ``fraction``: Share of the observed waiting that a replay without unexplained delays reproduces, summed by tenant
      and size [0-1]; None if hardly any job waited, and ``error`` is then meaningless.
    - ``error``: Sum over tenants and sizes of |simulated - observed waiting| per second observed, in the replay from
      which waits are forecast.
    - ``gaps``: Gaps in the record, with the results that are not shown.
    """

    fraction: float | None
    error: float
    gaps: tuple[RecordGap, ...]

    @property
    def capacity_is_clear(self) -> bool:
        """Whether the record supports a recommendation on capacity."""
        return all(gap.withholds != "capacity" for gap in self.gaps)

    @property
    def size_is_clear(self) -> bool:
        """Whether the record supports queue waits by job size."""
        return all(gap.withholds != "size" for gap in self.gaps)


@dataclass(frozen=True, eq=False)
class ExplainedWaits:
    """Causes of the queue waits of the observed jobs.

    Attributes
    ----------
    seconds : array of float, shape (n_jobs, n_causes)
        Waiting by job and cause, of :data:`~gpuplanner.decision.wait_causes.CAUSES`. [s]
    arrival_s : array of float, shape (n_jobs,)
        Arrival of each job in a simulation: its eligibility plus its unexplained delay. [s]
    delay_s : array of float, shape (n_jobs,)
        Delay that neither capacity nor queue explains. [s]
    queue : QueueModel
        How jobs start: handover, placement, queue rule, and limits that are stated or observed.
    is_evaluated : array of bool, shape (n_jobs,)
        Jobs that arrived within the record; the others ran before it.
    simulated_s, waited_s : array of float, shape (n_jobs,)
        Queue wait simulated today, and observed. [s]
    share : ExplainedShare
        Share of the waiting that the model explains, and error of the replay.
    """

    seconds: Floats
    arrival_s: Floats
    delay_s: Floats
    queue: QueueModel
    is_evaluated: NDArray[np.bool_]
    simulated_s: Floats
    waited_s: Floats
    share: ExplainedShare

    @property
    def eligible_s(self) -> Floats:
        """Time from which each job could have started, but for capacity and queue [s].

        It is the start of a job that started before the record.
        """
        return self.arrival_s - self.delay_s

    def compute_arrivals_without_limits(self) -> Floats:
        """Compute the arrival of each job in a simulation without limits [s]: waiting at a limit counts as delay."""
        tenant, latency_s = self.queue.tenant, self.queue.handover.latency_s
        seconds, n_tenants = self.seconds.copy(), int(tenant.max(initial=0)) + 1
        seconds[:, UNEXPLAINED] += seconds[:, LIMITS]
        return self.eligible_s + compute_unexplained_delay(seconds, tenant, n_tenants, latency_s)

    def select_jobs(self, rows: Ints, delay_s: Floats) -> ExplainedWaits:
        """Select jobs by row, each later by some seconds; a row may appear more than once."""
        columns = ("seconds", "delay_s", "is_evaluated", "simulated_s", "waited_s")
        taken_waits = replace(self, **{name: getattr(self, name)[rows] for name in columns})
        rule, head_start_s = self.queue.rule, self.queue.rule.head_start_s
        rule = replace(rule, head_start_s=None if head_start_s is None else head_start_s[rows])
        queue = replace(self.queue, tenant=self.queue.tenant[rows], rule=rule)
        return replace(taken_waits, arrival_s=self.arrival_s[rows] + delay_s, queue=queue)


def explain_waits(inputs: JobReplayInputs) -> ExplainedWaits:
    """Explain the queue waits of jobs on today's nodes.

    Parameters
    ----------
    inputs : JobReplayInputs
        Observed jobs as requests on today's nodes.

    Returns
    -------
    ExplainedWaits
    """
    requests, fleet = inputs.requests, inputs.fleet
    occupancy, handover = observe_nodes(inputs)
    capacity = occupancy.capacity
    fits = find_fit_times(requests, close_handover_gaps(occupancy, handover.latency_s), fleet.weights)
    ran_before = inputs.start_s < 0
    evaluated = ~ran_before & ~inputs.is_service
    arrivals = requests.with_ready_times(np.where(ran_before, inputs.start_s, requests.ready_s))
    start_or_end_s = np.where(np.isnan(inputs.start_s), inputs.observed_s, inputs.start_s)
    waited_s = start_or_end_s - arrivals.ready_s
    tenants, tenant = number_values(inputs, "tenant")
    size, sizes = classify_job_sizes(inputs, evaluated)
    record = ObservedWaits(waited_s, tenant * len(sizes) + size, evaluated, handover.latency_s)

    def measure_use(queue: QueueModel) -> TenantUse:
        """Return the GPUs that tenants are allocated over time, under the limits of a queue."""
        return observe_tenant_use(tenant, inputs.gpus_by_job(), inputs.start_s, inputs.end_s, queue.limits)

    def attribute(queue: QueueModel) -> Floats:
        """Attribute the waiting of each job to causes, under the rules of a queue [s]."""
        simulated_s = queue.start(arrivals, fleet)
        eligible = np.maximum(arrivals.ready_s, 0.0)
        seconds = attribute_waits(fits, eligible, start_or_end_s, simulated_s, handover.latency_s, measure_use(queue))
        seconds[ran_before] = 0.0
        return seconds

    def replay(queue: QueueModel, late_s: Floats) -> Floats:
        """Simulate the queue wait of each job with later arrivals [s]."""
        arrival = arrivals.ready_s + late_s
        return np.minimum(queue.start(arrivals.with_ready_times(arrival), fleet), inputs.observed_s) - arrival

    closings = build_closing_requests(
        inputs.closed_spells, inputs.observed_nodes, inputs.start_s, inputs.end_s, capacity
    )
    queue = QueueModel(handover, jobs_start_on_emptiest_nodes(occupancy), tenant, closings=closings)
    stated_limits = {tenants.index(name): gpus for name, gpus in inputs.tenant_limits.items() if name in tenants}
    queue = replace(queue, limits=confirm_limits(stated_limits, measure_use(queue)))
    seconds = attribute(queue)
    limits_found = find_tenant_limits(
        tenant, inputs.gpus_by_job(), inputs.start_s, inputs.end_s, seconds[:, UNEXPLAINED],
        latency_s=handover.latency_s, seen_s=inputs.observed_s,
    )  # fmt: skip
    stated_tenants = {limit.tenant for limit in queue.limits}
    others_found = tuple(limit for limit in limits_found if limit.tenant not in stated_tenants)
    queue = replace(queue, limits=queue.limits + others_found)

    groups = (tenant, size, number_values(inputs, "partition")[1], number_values(inputs, "tier")[1])
    ahead = find_head_starts(arrivals, inputs.start_s, evaluated, groups, measure_use(queue), handover.latency_s)
    plain_queue = queue
    rule, simulated_s = choose_queue_rule(
        lambda rule, shift: replay(replace(plain_queue, rule=rule), shift), record, ahead
    )
    if limits_found or rule.name != EASY_QUEUE:
        queue = replace(queue, rule=rule)
        seconds = attribute(queue)
    no_delay_s = np.zeros(len(tenant))
    # Of a replay as recorded and the mean of shifted ones the nearer: where waits hang on seconds, either may be off.
    simulated_s = min(simulated_s, replay(queue, no_delay_s), key=record.error)
    delay_s, delayed_s = compute_unexplained_delay(seconds, tenant, len(tenants), handover.latency_s), simulated_s
    if delay_s.any():
        shift = [no_delay_s, *(arrival_jitter_s(len(delay_s), number) for number in range(2))]
        waits_by_shift = [replay(queue, delay_s + later_s) + delay_s for later_s in shift]
        delayed_s = min(waits_by_shift[0], np.mean(waits_by_shift[1:], axis=0), key=record.error)
    share = measure_explained_share(record, simulated_s, delayed_s, seconds[evaluated].sum(axis=0))
    return ExplainedWaits(seconds, arrivals.ready_s + delay_s, delay_s, queue, evaluated, delayed_s, waited_s, share)


def observe_nodes(inputs: JobReplayInputs) -> tuple[OccupancyChanges, Handover]:
    """Return the unallocated GPUs of today's nodes over time, and the handover of the scheduler."""
    capacity = np.ascontiguousarray(inputs.fleet.capacity[:, 0, :])
    occupancy = observe_occupancy(
        inputs.requests, inputs.start_s, inputs.end_s, inputs.observed_nodes, capacity, inputs.closed_spells
    )
    return occupancy, observe_handover(inputs.requests, inputs.start_s, occupancy)


def number_values(inputs: JobReplayInputs, column: str) -> tuple[list[str], Ints]:
    """Number the distinct values of a job column; returns their names, and the number of each job's value."""
    names, numbers = np.unique(inputs.jobs[column].fill_null("?").to_numpy(), return_inverse=True)
    return names.tolist(), numbers.astype(np.int64)


def compute_unexplained_delay(seconds: Floats, tenant: Ints, n_tenants: int, latency_s: float) -> Floats:
    """Compute the unexplained waiting of each job [s]; 0 if it is at most a tenth of the waiting of its tenant.

    So little is what a replay gets wrong in any case, and so is a job's unexplained waiting up to the handover.

    Parameters
    ----------
    seconds : array of float, shape (n_jobs, n_causes)
        Waiting by job and cause. [s]
    tenant : array of int, shape (n_jobs,)
        Number of each job's tenant.
    n_tenants : int
        Number of tenants.
    latency_s : float
        Longest handover of the scheduler from an end to a start. [s]

    Examples
    --------
    >>> seconds = np.array([[0.0, 0, 0, 0, 0, 500], [10_000, 0, 0, 0, 0, 500]])
    >>> compute_unexplained_delay(seconds, np.array([0, 1]), 2, 60.0).tolist()
    [500.0, 0.0]
    """
    unexplained_s = seconds[:, UNEXPLAINED]
    waited_s = np.bincount(tenant, seconds.sum(axis=1), n_tenants)
    unexplained_share = np.bincount(tenant, unexplained_s, n_tenants) / np.maximum(waited_s, 1e-9)
    # Less than a tenth of a tenant's waiting is what a replay gets wrong anyhow, and no delay.
    return np.where((unexplained_share > 0.1)[tenant] & (unexplained_s > latency_s), unexplained_s, 0.0)


def measure_explained_share(
    observed: ObservedWaits, simulated_s: Floats, delayed_s: Floats, seconds: Floats
) -> ExplainedShare:
    """Measure how much of the waiting a replay reproduces, and list the gaps of the record that withhold results.

    Parameters
    ----------
    observed : ObservedWaits
        Observed queue waits.
    simulated_s, delayed_s : array of float, shape (n_jobs,)
        Waits in the replay without unexplained delays, and with them. [s]
    seconds : array of float, shape (n_causes,)
        Waiting by cause, of jobs within the record. [s]

    Examples
    --------
    >>> zero = np.zeros(12)
    >>> record = ObservedWaits(zero + 3600, np.zeros(12, int), np.ones(12, bool))
    >>> seconds = np.array([0, 0, 0, 0, 0, 11 * 3600.0])
    >>> share = measure_explained_share(record, zero, record.waited_s, seconds)
    >>> share.fraction, share.error, share.capacity_is_clear
    (0.0, 0.0, False)
    >>> share.gaps[0].sentence
    'Jobs waited 11 h while the nodes had what they requested: the record lacks jobs or limits.'
    """
    evaluated, n_groups = observed.is_evaluated, int(observed.group.max(initial=0)) + 1
    group, waits_pair = observed.group[evaluated], (observed.waited_s, simulated_s)
    waited_s, reproduced_s = (np.bincount(group, waits_s[evaluated], n_groups) for waits_s in waits_pair)
    reproduced_s = np.minimum(np.maximum(reproduced_s, 0.0), waited_s)
    error = observed.error(delayed_s)
    if not observed.has_queued_jobs:
        return ExplainedShare(None, error, ())

    fraction = float(reproduced_s.sum() / waited_s.sum())
    gaps = []
    waited_text, reason = f"Jobs waited {seconds.sum() / SECONDS_PER_HOUR:,.0f} h", ""
    if seconds[:QUEUED_BEHIND].sum() + seconds[LIMITS] < NEGLIGIBLE_SHARE * seconds.sum():
        reason = " while the nodes had what they requested: the record lacks jobs or limits."
    elif fraction < NEGLIGIBLE_SHARE:
        reason = "; the simulation of today reproduces none of it: the record lacks jobs or limits are unknown."
    if reason:
        gaps.append(RecordGap("capacity", f"{waited_text}{reason}"))
    if error > MAX_REPLAY_ERROR:
        gaps.append(RecordGap("size", f"Waits by job size are not shown: {format_replay_error(error)}."))
    return ExplainedShare(fraction, error, tuple(gaps))


def format_replay_error(error: float) -> str:
    """Format the error of the closest replay of today: the one figure by which a simulation is compared with a record.

    Examples
    --------
    >>> format_replay_error(0.3)
    'the best replay of today is off by 30 % of the recorded hours of waiting'
    """
    return f"the best replay of today is off by {percent_text(error)} of the recorded hours of waiting"


def take_jobs(
    inputs: JobReplayInputs, waits: ExplainedWaits, rows: Ints, delay_s: Floats
) -> tuple[JobReplayInputs, ExplainedWaits]:
    """Select jobs of a record by row, each later by some seconds; a row may appear more than once.

    Parameters
    ----------
    inputs : JobReplayInputs
        Observed jobs as requests on today's nodes.
    waits : ExplainedWaits
        Causes of their waits.
    rows : array of int, shape (n_selected,)
        Rows of the jobs to select.
    delay_s : array of float, shape (n_selected,)
        Seconds by which each is later.
    """
    views = {}
    for name, requests in inputs.views.items():
        taken = requests.select(rows)
        views[name] = replace(taken, submit_s=taken.submit_s + delay_s, ready_s=taken.ready_s + delay_s)
    taken_jobs = replace(
        inputs, jobs=inputs.jobs[rows], views=views, start_s=inputs.start_s[rows] + delay_s,
        end_s=inputs.end_s[rows] + delay_s, observed_nodes=[inputs.observed_nodes[row] for row in rows],
        is_service=inputs.is_service[rows],
    )  # fmt: skip
    return taken_jobs, waits.select_jobs(rows, delay_s)


def append_requests(
    inputs: JobReplayInputs, waits: ExplainedWaits, requests: NodeRequests, is_service: NDArray[np.bool_]
) -> tuple[JobReplayInputs, ExplainedWaits]:
    """Append requests to a record, as a tenant of their own, starting when they are ready.

    Parameters
    ----------
    inputs : JobReplayInputs
        Observed jobs as requests on today's nodes.
    waits : ExplainedWaits
        Causes of their waits.
    requests : NodeRequests
        Requests to append, the same in all views.
    is_service : array of bool, shape (n_requests,)
        Those that run without an end or by schedule: no job size is evaluated by them.
    """
    n_jobs, ready_s = len(inputs.start_s), requests.ready_s
    rows = np.concatenate([np.arange(n_jobs), np.zeros(len(ready_s), np.int64)])
    extended_inputs, extended_waits = take_jobs(inputs, waits, rows, np.zeros(len(rows)))
    views = {name: concatenate_requests(view, requests) for name, view in inputs.views.items()}
    extended_inputs = replace(extended_inputs, views=views)
    extended_inputs.start_s[n_jobs:] = ready_s
    extended_inputs.end_s[n_jobs:] = ready_s + requests.run_s
    extended_inputs.is_service[n_jobs:] = is_service
    extended_inputs.observed_nodes[n_jobs:] = [None] * len(ready_s)
    extended_waits.arrival_s[n_jobs:], extended_waits.is_evaluated[n_jobs:] = ready_s, ~is_service
    extended_waits.delay_s[n_jobs:] = extended_waits.seconds[n_jobs:] = 0.0
    extended_waits.queue.tenant[n_jobs:] = waits.queue.tenant.max() + 1
    if extended_waits.queue.rule.head_start_s is not None:
        extended_waits.queue.rule.head_start_s[n_jobs:] = 0.0
    return extended_inputs, extended_waits


CAUSE_TEXTS = {
    "insufficient": "insufficient capacity", "fragmented": "fragmentation (enough idle GPUs, spread over nodes)",
    "wrong_layout": "a wrong MIG layout (idle GPUs, but not as the MIG instances that jobs request)",
    "queued_behind": "queued behind other jobs", "limits": "limits of teams",
    "unexplained": "unexplained (the jobs fitted on idle GPUs, or were starting up)",
}  # fmt: skip
"""Descriptions of the causes of waiting."""
UNNAMED_TEAM_OR_PARTITION = "-"
"""Name that stands for the team or partition of jobs that state none."""


@dataclass(frozen=True)
class CauseHours:
    """Hours of waiting of a group of jobs by cause [h]."""

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
class WaitCauses:
    """Hours of waiting by cause, by job size, team and partition."""

    job_size: tuple[CauseHours, ...]
    team: tuple[CauseHours, ...]
    partition: tuple[CauseHours, ...]


@dataclass(frozen=True)
class TenantLimit:
    """A tenant whose jobs waited at a limit, and the most GPUs that it was allocated, as number and as text."""

    tenant: str
    gpus: float
    amount_text: str


@dataclass(frozen=True)
class WaitSummary:
    """Causes of the queue waits of a record.

    - ``causes``: Hours by cause, for jobs within the record.
    - ``explained_fraction``: Share of the waiting that the simulation of today reproduces; None if no job waited.
    - ``replay_error``: Difference between simulated and observed waiting, by tenant and job size, as a share of the
      observed.
    - ``limits``: Tenants that waited at a limit.
    """

    causes: WaitCauses
    explained_fraction: float | None
    replay_error: float
    limits: tuple[TenantLimit, ...]

    @property
    def main_cause_text(self) -> str:
        """The largest cause of waiting, in one sentence."""
        cause_rows = self.causes.job_size
        total_hours = sum(row.waited for row in cause_rows)
        if total_hours < 1.0:
            return "Jobs waited less than an hour in total."
        hours_by_cause = {cause: sum(getattr(row, cause) for row in cause_rows) for cause in CAUSES}
        cause = max(hours_by_cause, key=lambda name: hours_by_cause[name])
        return (
            f"Jobs waited {waiting_hours_text(total_hours)} in total; main cause {CAUSE_TEXTS[cause]}, "
            f"{percent_text(hours_by_cause[cause] / total_hours)}."
        )

    @property
    def cause_percent(self) -> dict[str, int]:
        """Percentage of the hours of waiting by cause, summing to 100; empty if jobs waited less than an hour."""
        rows = self.causes.job_size
        hours = [sum(getattr(row, cause) for row in rows) for cause in CAUSES]
        parts = split_amount(Decimal(100), hours) if sum(hours) >= 1.0 else []
        return {cause: int(part) for cause, part in zip(CAUSES, parts, strict=False)}


def make_cause_table(rows: Sequence[CauseHours]) -> pl.DataFrame:
    """Make a table of hours of waiting by cause.

    Examples
    --------
    >>> make_cause_table([CauseHours("1 GPU", 2, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0)]).row(0)[:5]
    ('1 GPU', 2, 3.0, 2.0, 1.0)
    """
    return pl.DataFrame(rows, schema=["name", "jobs", "waited", *CAUSES], orient="row")


def sum_waits(inputs: JobReplayInputs, waits: ExplainedWaits, team: str | None = None) -> WaitSummary:
    """Sum the hours of waiting by cause, job size, team and partition.

    Parameters
    ----------
    inputs : JobReplayInputs
        Observed jobs as requests on today's nodes.
    waits : ExplainedWaits
        Causes of their waits.
    team : str, optional
        Team whose hours and limit count; explained share and replay error stay those of all teams.

    Examples
    --------
    >>> from gpuplanner.decision.requested_jobs import read_replay_inputs
    >>> from gpuplanner.usage.planning_history import history

    >>> asked = read_replay_inputs(history(Scenario()))
    >>> [row.name for row in sum_waits(asked, explain_waits(asked)).causes.team][:2]
    ['assistants', 'llm-core']
    """
    size_numbers, names = classify_job_sizes(inputs, waits.is_evaluated)
    hours_by_cause = dict(zip(CAUSES, waits.seconds.T / SECONDS_PER_HOUR, strict=True))
    tenant = inputs.jobs["tenant"].cast(pl.String).fill_null(UNNAMED_TEAM_OR_PARTITION)
    sizes = pl.Series([names[number] for number in size_numbers], dtype=pl.Enum(names))
    partition = inputs.jobs["partition"].cast(pl.String).fill_null(UNNAMED_TEAM_OR_PARTITION)
    table = pl.DataFrame({"job_size": sizes, "team": tenant, "partition": partition, **hours_by_cause})
    table = table.filter(waits.is_evaluated).filter(team is None or pl.col("team") == team)
    waited_at_limit = np.bincount(waits.queue.tenant, waits.seconds[:, LIMITS] * waits.is_evaluated) > 0
    tenant_names = dict(zip(waits.queue.tenant.tolist(), tenant, strict=True))
    limits_waited_at = ((limit.tenant, limit.gpus) for limit in waits.queue.limits if waited_at_limit[limit.tenant])
    limits = tuple(
        TenantLimit(tenant_names[number], gpus, _format_limit(inputs, sizes, waits.queue.tenant == number, gpus))
        for number, gpus in limits_waited_at
        if team in (None, tenant_names[number])
    )
    causes = WaitCauses(*(_sum_causes_by(table, name) for name in ("job_size", "team", "partition")))
    fraction = None if waits.share.fraction is None else round(waits.share.fraction, RECORD_DECIMALS)
    return WaitSummary(causes, fraction, round(waits.share.error, RECORD_DECIMALS), limits)


def _format_limit(inputs: JobReplayInputs, sizes: pl.Series, of_tenant: NDArray[np.bool_], gpus: float) -> str:
    """Format the GPUs at a limit, after the number of MIG instances if all jobs of the tenant are of one profile.

    Parameters
    ----------
    inputs : JobReplayInputs
        Requests of the jobs.
    sizes : polars.Series, shape (n_jobs,)
        Job size of each job.
    of_tenant : array of bool, shape (n_jobs,)
        Jobs of the tenant.
    gpus : float
        Limit. [GPUs]
    """
    weights, names = inputs.fleet.weights[inputs.requests.profile[of_tenant]], sizes.filter(of_tenant).unique()
    instances = f"{gpus / weights[0]:.0f} × {names[0]} " if len(names) == 1 and weights[0] < 1 else ""
    return f"{instances}({gpus:.3g} GPUs)" if instances else f"{gpus:.3g} GPUs"


def _sum_causes_by(table: pl.DataFrame, column: str) -> tuple[CauseHours, ...]:
    """Sum hours of waiting by cause for each value of a column."""
    waited_hours = pl.sum_horizontal(CAUSES).sum()
    rows = table.group_by(column, maintain_order=True).agg(
        pl.len().alias("jobs"), waited_hours.alias("waited"), pl.col(CAUSES).sum()
    )
    rows = rows.sort(column).with_columns(pl.selectors.float().round(RECORD_DECIMALS))
    return tuple(CauseHours(*row) for row in rows.iter_rows())


def group_wait_causes(
    scenario: Scenario, by: str | Sequence[str] = "cause", *, usage_filter: UsageFilter | None = None
) -> pl.DataFrame:
    """Sum the hours of waiting by cause, and those of them in which enough GPUs were idle elsewhere.

    Jobs of the recent past of the planned GPU pool count, as in the replay that finds the causes.

    Parameters
    ----------
    scenario : Scenario
        Data, history and time zone.
    by : str or sequence of str
        ``"cause"``, and groups of :data:`~gpuplanner.usage.grouped_usage.WAIT_GROUPS`.
    usage_filter : UsageFilter, optional
        Jobs that count.

    Returns
    -------
    polars.DataFrame
        The groups; ``jobs`` that waited for the cause; ``wait_hours`` from the time at which jobs could start, and
        ``idle_elsewhere_hours``, in which as many GPUs as the job requests were idle on nodes where no job of the
        stated partition ran, or, without a partition, on all nodes; null where no job names its nodes. [h]

    Raises
    ------
    ScenarioError
        If a group, team or partition is unknown, or the period is empty.

    Examples
    --------
    >>> group_wait_causes(Scenario()).columns
    ['cause', 'jobs', 'wait_hours', 'idle_elsewhere_hours']
    """
    names = require_groups(by, ("cause", *WAIT_GROUPS))
    groups = [name for name in names if name != "cause"]
    usage_filter = usage_filter or UsageFilter()
    job_history = history(scenario)
    selected = select_waiting_jobs(job_history.trace, groups, usage_filter=usage_filter, tz=scenario.tz)
    inputs = read_replay_inputs(job_history)
    waits = explain_waits(inputs)
    numbered = inputs.jobs.select("job_id", "attempt").with_row_index("row").filter(waits.is_evaluated)
    jobs = numbered.join(selected.select("job_id", "attempt", *groups), on=["job_id", "attempt"]).sort("row")

    row = jobs["row"].to_numpy()
    hours = pl.DataFrame(waits.seconds[row] / SECONDS_PER_HOUR, schema=list(CAUSES))
    idle = _wait_seconds_with_idle_gpus(inputs, waits, row, usage_filter.partition)
    idle_hours = pl.DataFrame(idle / SECONDS_PER_HOUR, schema=list(CAUSES)).fill_nan(None)
    values = {"variable_name": "cause", "value_name": "wait_hours"}
    table = jobs.hstack(hours).unpivot(CAUSES, index=["row", *groups], **values)
    table = table.with_columns(idle_hours.unpivot(CAUSES, value_name="idle_elsewhere_hours")["idle_elsewhere_hours"])
    idle_sum = pl.col("idle_elsewhere_hours").sum()
    return (
        table.filter(pl.col("wait_hours") > 0)
        .with_columns(pl.col("cause").cast(pl.Enum(CAUSES)))
        .group_by(names, maintain_order=True)
        .agg(
            jobs=pl.len(),
            wait_hours=pl.col("wait_hours").sum(),
            idle_elsewhere_hours=pl.when(pl.col("idle_elsewhere_hours").count() > 0).then(idle_sum),
        )
        .sort(names)
    )


def _wait_seconds_with_idle_gpus(
    inputs: JobReplayInputs, waits: ExplainedWaits, rows: NDArray[np.uint32], partition: str | None
) -> Floats:
    """Attribute the waiting of jobs while enough GPUs were idle outside of a partition to its causes.

    Parameters
    ----------
    inputs : JobReplayInputs
        Observed jobs as requests on today's nodes.
    waits : ExplainedWaits
        Causes of their waits.
    rows : array of int, shape (n_selected,)
        Numbers of the jobs.
    partition : str, optional
        Partition whose nodes do not count; None: all nodes count.

    Returns
    -------
    array of float, shape (n_selected, n_causes)
        Seconds by cause; NaN where the nodes are not known. [s]
    """
    is_member = np.zeros(len(inputs.start_s), bool) if partition is None else (inputs.jobs["partition"] == partition)
    node_lists = list(itertools.compress(inputs.observed_nodes, is_member))
    own_nodes = {node for nodes in node_lists for node in nodes or ()}
    seconds = np.zeros((len(rows), len(CAUSES)))
    if partition is not None and not own_nodes:
        return np.full_like(seconds, np.nan)
    occupancy, handover = observe_nodes(inputs)
    occupancy, weights = close_handover_gaps(occupancy, handover.latency_s), inputs.fleet.weights
    outside = ~np.isin(np.arange(len(occupancy.capacity)), list(own_nodes))
    change = occupancy.change * weights[occupancy.profile] * outside[occupancy.node]
    idle_gpus = float((occupancy.capacity[outside] @ weights).sum()) + np.concatenate([[0.0], np.cumsum(change)])
    edges = np.concatenate([[-np.inf], occupancy.time_s, [np.inf]])

    # Each spell of idle GPUs within the wait of a job is attributed as if it were a wait of its own.
    needed_gpus = inputs.requests.total * weights[inputs.requests.profile]
    until_s = np.where(np.isnan(inputs.start_s), inputs.observed_s, inputs.start_s)
    ready_s = waits.eligible_s
    simulated_s = waits.queue.start(inputs.requests.with_ready_times(ready_s), inputs.fleet)
    spells: list[tuple[int, float, float]] = []
    for number, job in enumerate(rows.tolist()):
        first, last = np.searchsorted(edges, [ready_s[job], until_s[job]], side="right") - 1
        is_idle = idle_gpus[first : last + 1] >= needed_gpus[job] - TOLERANCE
        borders = np.flatnonzero(np.diff(np.concatenate([[False], is_idle, [False]])))
        for begin, end in zip(borders[::2] + first, borders[1::2] + first, strict=True):
            spells.append((number, max(edges[begin], ready_s[job], 0.0), min(edges[end], until_s[job])))
    spell = pl.DataFrame(spells, schema={"number": pl.Int64, "begin": pl.Float64, "end": pl.Float64}, orient="row")
    numbers, begin_s, end_s = (spell[name].to_numpy() for name in spell.columns)
    row = rows[numbers]
    use = observe_tenant_use(waits.queue.tenant, inputs.gpus_by_job(), inputs.start_s, inputs.end_s, waits.queue.limits)
    use = use._replace(tenant=use.tenant[row], room_gpus=use.room_gpus[row])
    fits = find_fit_times(inputs.requests, occupancy, weights)
    fits = fits._replace(kind=fits.kind[row])
    np.add.at(seconds, numbers, attribute_waits(fits, begin_s, end_s, simulated_s[row], handover.latency_s, use))
    return seconds
