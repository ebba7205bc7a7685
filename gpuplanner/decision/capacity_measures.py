"""Capacity measures: what ends queue waits or frees GPUs, and the number of GPUs that each measure needs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.units_and_number_formats import SECONDS_PER_DAY, SECONDS_PER_HOUR, SECONDS_PER_MINUTE, count_text
from gpuplanner.decision.decision_types import CurvePoint, Exhaustion, JobSizeWaits, Measure, WeeklyGrowth
from gpuplanner.decision.explained_waits import format_replay_error
from gpuplanner.decision.fewest_gpus_and_best_layout import (
    MAX_NODE_MULTIPLE,
    build_layout_pools,
    explain_kept_gpus,
    find_best_layout,
    find_smallest_units,
)
from gpuplanner.decision.headroom_and_growth import FittedGrowth, MeasuredHeadroom, date_exhaustion, measure_headroom
from gpuplanner.decision.requested_jobs import AS_TODAY, RIGHTSIZED
from gpuplanner.decision.wait_causes import CAUSES, FRAGMENTED, INSUFFICIENT, LIMITS, WRONG_LAYOUT
from gpuplanner.decision.wait_curve import (
    CURVE_FLEET_FACTORS,
    CURVE_RUNS,
    MIN_SHARE_WITHIN_LIMIT,
    Bools,
    SizedPool,
    WaitModel,
    WaitTarget,
    count_gpus_by_layout,
    find_late_sizes,
    join_pools,
    limit_to_record,
    simulate_curve_points,
    sum_cause_hours,
    wait_limits,
)
from gpuplanner.hardware.mig_layouts import parse_layout
from gpuplanner.simulator.simulation_inputs import NodeFleet
from gpuplanner.simulator.simulation_state import Floats

MIN_DAYS = 5.0
"""Shortest record for a recommendation [days]: a p95 wait of fewer days is not reliable."""
MIN_JOBS = 50
"""Fewest submitted jobs for a recommendation: a p95 wait of fewer jobs is not reliable."""
MIN_GAIN_BY_MIXING = 0.02
"""Smallest share of the GPUs that mixed layouts on one node must free to be recommended [0-1]."""
MAX_NAMED_RAISED_LIMITS = 2
"""Most raised GPU limits of tenants that the recommendation names; the next steps list all of them."""
MIN_DELAY_S = 60.0
"""Shortest increase of a job's queue wait that counts as a delay [s]."""
TODAYS_LAYOUT, RECOMMENDED_LAYOUT = "today", "recommended"
"""Values of ``layout`` in the wait curve: today's MIG layouts, and the recommended ones."""


@dataclass(frozen=True)
class RaisedGpuLimit:
    """A raised GPU limit of a tenant.

    - ``tenant``: Name of the tenant.
    - ``current_gpus``: GPUs that the tenant may be allocated at once today.
    - ``raised_gpus``: Peak allocation of the tenant in a simulation without limits [GPUs].
    """

    tenant: str
    current_gpus: float
    raised_gpus: int


@dataclass(frozen=True, eq=False)
class ModelWithMeasure:
    """A wait model with one measure applied.

    - ``action``, ``text``: Action of the measure, and its description.
    - ``model``, ``pools``: Wait model with the measure applied, and the node pools whose size may vary.
    - ``node_gpus``: GPUs of a node; the number of GPUs is a multiple of it.
    - ``view``: Requests that jobs make with the measure applied: as today, or rightsized.
    - ``limits``: Tenant limits that the measure raises.
    - ``today_units``: Units (nodes or GPUs) of each pool that have as many GPUs as today.
    """

    action: str
    text: str
    model: WaitModel
    pools: Sequence[SizedPool]
    today_units: Sequence[int]
    node_gpus: int = 1
    view: str = AS_TODAY
    limits: tuple[RaisedGpuLimit, ...] = ()

    def format_text(self, units: Sequence[int]) -> str:
        """Describe the measure with the number of GPUs of each MIG layout."""
        pools = zip(self.pools, units, strict=True)
        counts = [pair for pool, count in pools for pair in count_gpus_by_layout(pool.layouts, count).items()]
        parts = ", ".join(
            f"{count_text(count, 'GPU')} as {' + '.join(parse_layout(layout))}"
            for layout, count in counts
            if count and layout != FULL_GPU
        )
        return f"{self.text}: {parts}" if self.pools[0].movable else self.text

    def find_smallest_units(self, limit_s: Floats) -> tuple[list[int] | None, float]:
        """Find the fewest nodes (or GPUs) of each pool that meet wait limits, and their GPUs; infinity if none.

        The GPUs are whole nodes. Each profile gets nodes of its own, unless mixed layouts on one node free a share of
        :data:`MIN_GAIN_BY_MIXING` of those GPUs.

        Parameters
        ----------
        limit_s : array of float, shape (n_records, n_sizes)
            Wait limit of each job size, in the record and in each resampled record. [s]
        """
        if (units := find_smallest_units(self.model, self.pools, limit_s)) is None:
            return None, math.inf
        gpus = int(join_pools(self.pools, units).gpus.sum())
        gpus = self.node_gpus * math.ceil(gpus / self.node_gpus)
        uniform = [self.node_gpus * math.ceil(count / self.node_gpus) for count in units]
        if self.pools[0].movable and (1 - MIN_GAIN_BY_MIXING) * sum(uniform) <= gpus:
            units, gpus = uniform, sum(uniform)
        return units, float(gpus)

    def meets_with_todays_gpus(self, limit_s: Floats) -> bool:
        """Whether the observed jobs meet their wait limits [s] with the measure and as many GPUs as today."""
        fleet = join_pools(self.pools, self.today_units)
        return bool((self.model.percentiles(fleet, 0) <= limit_s).all())


TeamWaits = Mapping[str | None, tuple[float, float]]
"""Mean queue wait by team, of all jobs under None: simulated today and as recommended [min]."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RecommendedMeasures:
    """Recommended measures in order, and the queue waits with them, as they are kept on disk.

    - ``action``: Action of the first measure; ``keep`` without measures, ``none`` without a recommendation.
    - ``view``: Requests of jobs with all measures applied.
    - ``reason``: Why there is no recommendation or nothing to do.
    - ``fleet_gpus``, ``gpus``: GPUs today, and with all measures applied.
    - ``service``: Queue waits by job size; empty if the replay is too inaccurate by size.
    - ``late_sizes``: Names of the job sizes that miss the wait target today.
    - ``limits``: Tenant limits to raise.
    - ``waiting_hours_per_gpu_hour``: GPU-hours of waiting that a purchased GPU-hour ends; None without a purchase.
    - ``target_gpus``: GPUs that would meet the wait target but do not pay off; 0: none.
    - ``exhaustion``: Exhaustion date of the GPUs as recommended: today's, the fewer that are kept, or more that are
      bought.
    - ``order_gpus``: Fewest GPUs to order now because growth exhausts capacity before delivery; 0: none.
    """

    action: str
    fleet_gpus: int
    gpus: int
    measures: tuple[Measure, ...] = ()
    reason: str | None = None
    view: str = AS_TODAY
    service: tuple[JobSizeWaits, ...] = ()
    late_sizes: tuple[str, ...] = ()
    limits: tuple[RaisedGpuLimit, ...] = ()
    waiting_hours_per_gpu_hour: float | None = None
    target_gpus: int = 0
    exhaustion: Exhaustion = field(default_factory=Exhaustion)
    order_gpus: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Recommendation(RecommendedMeasures):
    """Recommended measures with the wait model and the nodes that result.

    - ``model``, ``pools``, ``units``: Wait model, node pools and units of each pool with all measures applied.
    - ``headroom``: Headroom of the GPUs as recommended.
    - ``team_waits``: Mean queue wait of each team, and of all jobs under None: today and as recommended [min].
    """

    model: WaitModel
    pools: Sequence[SizedPool]
    units: Sequence[int]
    growth: FittedGrowth = field(default_factory=lambda: FittedGrowth(WeeklyGrowth()))
    headroom: MeasuredHeadroom | None = None
    team_waits: TeamWaits = field(default_factory=dict)

    @property
    def fleet(self) -> NodeFleet:
        """Nodes with all measures applied."""
        return join_pools(self.pools, self.units)


@dataclass(frozen=True, eq=False)
class MeasureSearch:
    """Measures that end the waits over the target, before their waits and headroom are simulated.

    - ``recommendation``: The measures, with node pools and units.
    - ``late_sizes``: Numbers of the job sizes over the target.
    - ``limit_s``, shape (1 + n_draws, n_sizes): Wait limits, in the record and in resampled weeks [s]; None where the
      data support no recommendation.
    """

    recommendation: Recommendation
    late_sizes: Sequence[int] = ()
    limit_s: Floats | None = None


def recommend(
    model: WaitModel, target: WaitTarget, growth: FittedGrowth, *, lead_days: int = 90, extra_units: int = 0,
    search: MeasureSearch | None = None,
) -> Recommendation:  # fmt: skip
    """Recommend measures that end the waits of job sizes over the target, or the GPUs to release if no size is over it.

    Parameters
    ----------
    model : WaitModel
        Observed jobs and nodes, and how jobs start.
    target : WaitTarget
        Target of the p95 queue wait.
    growth : FittedGrowth
        Weekly growth of the submitted work.
    lead_days : int
        Days from the order of GPUs to their first job.
    extra_units : int
        Nodes to keep beyond those that the wait limits need.
    search : MeasureSearch, optional
        Result of :func:`find_measures` for the other arguments.

    Returns
    -------
    Recommendation
    """
    search = search or find_measures(model, target, growth, lead_days=lead_days, extra_units=extra_units)
    inputs, advice, late, limit_s = model.inputs, search.recommendation, search.late_sizes, search.limit_s
    if limit_s is None:
        return advice
    days, last_day = inputs.observed_s / SECONDS_PER_DAY, inputs.end.date()
    # Where sizes miss the target and nothing changes, no load can be added.
    has_headroom = not late or bool(advice.measures)
    headroom = measure_headroom(advice.model, advice.fleet, target, growth) if has_headroom else None
    exhaustion = date_exhaustion(growth, headroom, last_day, days, lead_days)
    is_order_due = exhaustion.order_by is not None and exhaustion.order_by <= last_day.isoformat()
    must_order = is_order_due and advice.gpus <= advice.fleet_gpus
    service, team_waits = compare_service(model, advice, limit_s) if model.waits.share.size_is_clear else ((), {})
    load = growth.load_factor_after(days / 2 + lead_days, at_least=True)
    return replace(
        advice, growth=growth, headroom=headroom, exhaustion=exhaustion, service=service, team_waits=team_waits,
        late_sizes=tuple(model.size_names[number] for number in late),
        order_gpus=count_gpus_for_growth(advice, limit_s, load) if must_order else 0,
    )  # fmt: skip


def find_measures(
    model: WaitModel, target: WaitTarget, growth: FittedGrowth, *, lead_days: int = 90, extra_units: int = 0
) -> MeasureSearch:
    """Find the measures of :func:`recommend`, whose parameters it has."""
    if (reason := find_reason_against_recommendation(model)) is not None:
        return MeasureSearch(recommend_nothing(model, reason, growth))
    late = find_late_sizes(model, target)
    today_s, limit_s = wait_limits(model, target)
    if late and model.waits.share.error >= 1.0:  # it is no closer to the record than a simulation without any wait
        return MeasureSearch(recommend_nothing(model, format_replay_error(model.waits.share.error), growth))
    # Sizes that miss the target in simulation but are not shown to be late by the record wait no longer than today.
    applied_limit_s = np.where(np.isin(model.sizes, late), limit_s, np.maximum(limit_s, today_s))
    if late:
        advice = find_measure_against_waits(model, target, late, applied_limit_s, today_s)
    else:
        advice = release_gpus(model, applied_limit_s, growth, lead_days, extra_units)
    if advice is None:
        hours = sum_cause_hours(model, late)
        main_cause = max(hours, key=lambda name: hours[name])
        sizes_text, cause_text = format_size_names(model, late), main_cause.replace("_", " ")
        reason = f"no measure ends the waits of jobs on {sizes_text}; the main cause is {cause_text}"
        advice = recommend_nothing(model, reason, growth)
    return MeasureSearch(advice, late, limit_s)


def recommend_nothing(model: WaitModel, reason: str, growth: FittedGrowth) -> Recommendation:
    """Return a recommendation of action ``none`` with its reason."""
    exhaustion = Exhaustion(reason=growth.weekly.reason or reason)
    return replace(keep_fleet(model, reason), action="none", growth=growth, exhaustion=exhaustion)


def find_reason_against_recommendation(model: WaitModel) -> str | None:
    """Find why the data do not support any recommendation; None if they do."""
    inputs = model.inputs
    days, jobs = inputs.observed_s / SECONDS_PER_DAY, int(model.waits.is_evaluated.sum())
    if inputs.starts_assumed:
        return "the record does not state when jobs started"
    if inputs.nodes.snapshot:
        return "the job list is a snapshot of one moment"
    if days < MIN_DAYS or jobs < MIN_JOBS:
        needed = f"at least {MIN_JOBS} jobs over at least {MIN_DAYS:.0f} days are needed"
        period = f"{days:.1f}" if days < MIN_DAYS else f"{days:.0f}"
        return f"{count_text(jobs, 'job')} {'was' if jobs == 1 else 'were'} submitted in {period} days; {needed}"
    if not model.waits.share.capacity_is_clear:
        sentence = next(gap.sentence for gap in model.waits.share.gaps if gap.withholds == "capacity")
        return f"{sentence[:1].lower()}{sentence[1:].rstrip('.')}"
    return None


def keep_fleet(model: WaitModel, reason: str | None) -> Recommendation:
    """Recommend to keep the fleet as it is."""
    pools = model.pools
    todays_gpus = int(model.inputs.fleet.gpus.sum())
    units = [pool.today for pool in pools]
    return Recommendation(
        action="keep", model=model, pools=pools, units=units, fleet_gpus=todays_gpus, gpus=todays_gpus, reason=reason
    )


def resize_fleet(model: WaitModel, pools: Sequence[SizedPool], units: Sequence[int]) -> Recommendation:
    """Recommend the release or purchase of nodes with today's layouts, for a number of nodes of each pool."""
    todays_gpus, gpus = int(model.inputs.fleet.gpus.sum()), int(join_pools(pools, units).gpus.sum())
    measure = describe_count_change(todays_gpus, gpus)
    today = keep_fleet(model, None)
    return replace(today, action=measure.action, pools=pools, units=units, gpus=gpus, measures=(measure,))


def change_fleet(model: WaitModel, measure_model: ModelWithMeasure, units: Sequence[int], gpus: int) -> Recommendation:
    """Recommend a measure, then the release or purchase of GPUs that follows from it.

    Parameters
    ----------
    model : WaitModel
        Observed jobs and nodes, and how jobs start.
    measure_model : ModelWithMeasure
        The measure, and the wait model with it.
    units : sequence of int
        Nodes (or GPUs) of each pool with the measure applied.
    gpus : int
        GPUs with the measure applied.
    """
    todays_gpus = int(model.inputs.fleet.gpus.sum())
    if measure_model.pools[0].movable:  # what no profile needs of the last node stays full
        units = list(units)
        units[0] += gpus - int(join_pools(measure_model.pools, units).gpus.sum())
    measures: tuple[Measure, ...] = (Measure(measure_model.action, measure_model.format_text(units), todays_gpus),)
    if gpus != todays_gpus:
        measures += (describe_count_change(todays_gpus, gpus, f"after {measure_model.action}"),)
    return Recommendation(
        action=measure_model.action, model=measure_model.model, pools=measure_model.pools, units=units,
        fleet_gpus=todays_gpus, gpus=gpus, measures=measures, view=measure_model.view, limits=measure_model.limits,
    )  # fmt: skip


def describe_count_change(todays_gpus: int, gpus: int, condition: str | None = None) -> Measure:
    """Describe the release or purchase between two numbers of GPUs; ``condition`` is the action to apply before.

    Examples
    --------
    >>> describe_count_change(64, 48).text, describe_count_change(64, 72).text
    ('Release 16 GPUs', 'Buy 8 GPUs')
    """
    action = "buy" if gpus > todays_gpus else "release"
    return Measure(action, f"{action.capitalize()} {count_text(abs(gpus - todays_gpus), 'GPU')}", gpus, condition)


def add_kept_units(pools: Sequence[SizedPool], units: Sequence[int], extra_units: int) -> list[int]:
    """Raise the nodes of each pool by a total number of extra nodes, one by one, to no more than there are today.

    Examples
    --------
    >>> from gpuplanner.decision.wait_curve import SizedPool
    >>> pools = [SizedPool((number,), 4, NodeFleet.of_full_gpus) for number in range(2)]
    >>> add_kept_units(pools, [1, 2], 4)
    [4, 3]
    """
    raised_units = []
    for pool, pool_units in zip(pools, units, strict=True):
        raised_units.append(pool_units + max(min(extra_units, pool.today - pool_units), 0))
        extra_units -= raised_units[-1] - pool_units
    return raised_units


def release_gpus(
    model: WaitModel, limit_s: Floats, growth: FittedGrowth, lead_days: int, extra_units: int = 0
) -> Recommendation:
    """Recommend to release the GPUs that no job size needs to meet its wait limit.

    MIG profiles are recommended if they free more GPUs.

    Parameters
    ----------
    model : WaitModel
        Observed jobs and nodes, and how jobs start.
    limit_s : array of float, shape (n_records, n_sizes)
        Wait limit of each job size, in the record and in each resampled record. [s]
    growth : FittedGrowth
        Weekly growth of the submitted work, whose load on the day of delivery the kept GPUs have to carry.
    lead_days : int
        Days from the order of GPUs to their first job.
    extra_units : int
        Nodes to keep beyond those that the wait limits need.
    """
    todays_gpus, pools = int(model.inputs.fleet.gpus.sum()), model.pools
    load = growth.load_factor_after(model.inputs.observed_s / SECONDS_PER_DAY / 2 + lead_days)
    units = find_smallest_units(model, pools, limit_s, load=load) or [pool.today for pool in pools]
    units = add_kept_units(pools, units, extra_units)
    fewest_gpus = int(join_pools(pools, units).gpus.sum())
    for change in list_changes_against_cause(model, CAUSES[INSUFFICIENT]) if load <= 1.0 and not extra_units else ():
        fewest_units, gpus = change.find_smallest_units(limit_s)
        if fewest_units is not None and gpus < min(fewest_gpus, todays_gpus):
            return change_fleet(model, change, fewest_units, int(gpus))
    if fewest_gpus >= todays_gpus:
        return keep_fleet(model, explain_kept_gpus(model, limit_s, growth, lead_days, load))
    return resize_fleet(model, pools, units)


def count_gpus_for_growth(recommendation: Recommendation, limit_s: Floats, load: float) -> int:
    """Count the GPUs to add to a recommendation for the load on the day of delivery; 0 if none meet the limits."""
    units = find_smallest_units(recommendation.model, recommendation.pools, limit_s, load=load)
    missing = 0 if units is None else int(join_pools(recommendation.pools, units).gpus.sum()) - recommendation.gpus
    node_gpus = recommendation.model.inputs.node_gpus
    return max(node_gpus * math.ceil(missing / node_gpus), 0)


def find_measure_against_waits(
    model: WaitModel, target: WaitTarget, late_sizes: list[int], limit_s: Floats, today_s: Floats
) -> Recommendation | None:
    """Find the measure against the largest cause of waiting that simulation confirms; None if no measure helps.

    A measure other than a purchase is confirmed if fewer GPUs meet the wait limits with it than without it. If no
    measure brings all job sizes to the target, sizes that no number of GPUs brings there must wait no longer than
    today.

    Parameters
    ----------
    model : WaitModel
        Observed jobs and nodes, and how jobs start.
    target : WaitTarget
        Target of the p95 queue wait.
    late_sizes : list of int
        Numbers of the job sizes over the target.
    limit_s : array of float, shape (n_records, n_sizes)
        Wait limit of each job size, in the record and in each resampled record. [s]
    today_s : array of float, shape (n_records, n_sizes)
        p95 queue wait simulated on today's fleet. [s]
    """
    pools, todays_gpus = model.pools, int(model.inputs.fleet.gpus.sum())
    hours = sum_cause_hours(model, late_sizes)
    causes = sorted((name for name in hours if hours[name] > 0), key=lambda name: -hours[name])
    applied_limit_s = limit_s
    for is_second_try in (False, True):
        if is_second_try:
            largest_fleet = join_pools(pools, [MAX_NODE_MULTIPLE * pool.today for pool in pools])
            meets_limit = [model.percentiles(largest_fleet, row) <= limit for row, limit in enumerate(limit_s)]
            is_reachable = meets_limit[0] & (np.mean(meets_limit[1:], axis=0) >= MIN_SHARE_WITHIN_LIMIT)
            applied_limit_s = np.where(is_reachable | (today_s <= target.target_s), limit_s, today_s)
        purchase = find_smallest_units(model, pools, applied_limit_s)
        purchase_gpus = math.inf if purchase is None else float(join_pools(pools, purchase).gpus.sum())
        for cause in [*causes, ""]:
            for change in list_changes_against_cause(model, cause):
                units, gpus = change.find_smallest_units(applied_limit_s)
                if gpus > todays_gpus and change.meets_with_todays_gpus(applied_limit_s[0]):
                    # What the record does not need is not bought beside another measure.
                    units, gpus = list(change.today_units), todays_gpus
                if units is not None and gpus < purchase_gpus:
                    todays = change_fleet(model, change, change.today_units, todays_gpus)
                    enlarged = change_fleet(model, change, units, int(gpus))
                    p95_s, highest_s = change.model.percentiles(todays.fleet, 0), np.maximum(applied_limit_s, today_s)
                    if gpus > todays_gpus and (p95_s <= highest_s[0]).all():  # no job size needs the purchase
                        return weigh_purchase(todays, enlarged, target)
                    return enlarged
            # Further GPUs of today's layout end these; the last one stands for any that nothing else ends.
            ends_by_purchase = cause in (CAUSES[INSUFFICIENT], CAUSES[FRAGMENTED], "")
            if purchase is not None and ends_by_purchase and purchase_gpus > todays_gpus:
                advice = weigh_purchase(keep_fleet(model, None), resize_fleet(model, pools, purchase), target)
                return advice if advice.measures else replace(advice, reason=_explain_no_purchase(advice, late_sizes))
    return None


def list_changes_against_cause(
    model: WaitModel, cause: str, layout: Mapping[str, int] | None = None
) -> Iterator[ModelWithMeasure]:
    """Yield the measures against a cause of waiting that need no further GPUs, each with its wait model.

    Jobs take smaller profiles only if their use was measured; small jobs then leave whole nodes to large jobs.

    Parameters
    ----------
    model : WaitModel
        Observed jobs and nodes, and how jobs start.
    cause : str
        Cause of waiting.
    layout : mapping of str to int, optional
        GPUs by MIG layout of a repartition; None: those with the shortest waits.
    """
    inputs, queue = model.inputs, model.waits.queue
    pools = model.pools
    today_units = [pool.today for pool in pools]
    if cause == CAUSES[FRAGMENTED] and queue.spread:
        binpacked_model = replace(model, waits=replace(model.waits, queue=replace(queue, spread=False)))
        yield ModelWithMeasure("pack", "Let jobs fill nodes one by one", binpacked_model, pools, today_units)
    if cause == CAUSES[WRONG_LAYOUT]:
        yield from repartition(
            model, "repartition", "Repartition GPUs; all partitioned GPUs after it", AS_TODAY, layout
        )
    has_measured_use = RIGHTSIZED in inputs.views and inputs.jobs["sm_activity"].count()
    if cause in (CAUSES[INSUFFICIENT], CAUSES[FRAGMENTED]) and has_measured_use:
        views = inputs.views | {AS_TODAY: inputs.views[RIGHTSIZED]}
        rightsized_model = replace(model, inputs=replace(inputs, views=views))
        text = "Run jobs of low measured use on smaller profiles"
        yield from repartition(rightsized_model, "rightsize", text, RIGHTSIZED, layout)
    if cause == CAUSES[LIMITS]:
        unlimited_model = model.without_limits()
        limits = tuple(find_raised_limits(model, unlimited_model))
        texts = [f"{limit.tenant} from {limit.current_gpus:.3g} to {limit.raised_gpus} GPUs" for limit in limits]
        n_more = len(texts) - MAX_NAMED_RAISED_LIMITS
        more_text = f" and {count_text(n_more, 'more team')}" if n_more > 0 else ""
        text = f"Raise the limit of {', '.join(texts[:MAX_NAMED_RAISED_LIMITS])}{more_text}"
        yield ModelWithMeasure("raise_limit", text, unlimited_model, pools, today_units, limits=limits)


def find_raised_limits(model: WaitModel, unlimited_model: WaitModel) -> Iterator[RaisedGpuLimit]:
    """Yield for each tenant with a limit its peak allocation, simulated by the model without limits."""
    inputs = unlimited_model.inputs
    tenant_names = inputs.jobs["tenant"].fill_null("?").to_numpy()
    tenants = np.unique(tenant_names)
    wait_s = unlimited_model.replay_waits(inputs.fleet)
    start_s = unlimited_model.waits.arrival_s + unlimited_model.arrival_shift_s(0) + wait_s
    for limit in model.waits.queue.limits:
        of_tenant = (tenant_names == tenants[limit.tenant]) & np.isfinite(start_s)
        gpus, begin_s = inputs.gpus_by_job()[of_tenant], start_s[of_tenant]
        change_s = np.concatenate([begin_s, begin_s + inputs.requests.run_s[of_tenant]])
        change = np.concatenate([gpus, -gpus])
        peak = float(np.cumsum(change[np.lexsort((change, change_s))]).max(initial=limit.gpus))
        yield RaisedGpuLimit(str(tenants[limit.tenant]), limit.gpus, math.ceil(peak - 1e-6))


def repartition(
    model: WaitModel, action: str, text: str, view: str, best_layout: Mapping[str, int] | None = None
) -> Iterator[ModelWithMeasure]:
    """Yield the measure that partitions today's GPUs into the MIG layout with the shortest waits, if there is one.

    GPUs that no profile needs go to the layout that has most GPUs.

    Parameters
    ----------
    model : WaitModel
        Observed jobs and nodes, and how jobs start.
    action, text : str
        Action of the measure, and its description.
    view : str
        Requests that jobs make with the measure applied: as today, or rightsized.
    best_layout : mapping of str to int, optional
        GPUs by layout; None: those with the shortest waits.
    """
    inputs = model.inputs
    if best_layout is None and model.may_partition:
        best_layout = find_best_layout(model)
    if best_layout is None:
        return
    layout = dict(best_layout)
    layout[max(layout, key=lambda name: layout[name])] += int(inputs.fleet.gpus.sum()) - sum(layout.values())
    pools = build_layout_pools(model, layout)
    units = [pool.expected for pool in pools]
    repartitioned = replace(model, inputs=replace(inputs, fleet=join_pools(pools, units)))
    yield ModelWithMeasure(action, text, repartitioned, pools, units, inputs.node_gpus, view)


def weigh_purchase(
    kept_recommendation: Recommendation, bought_recommendation: Recommendation, target: WaitTarget
) -> Recommendation:
    """Recommend a purchase; without a stated wait target, only if it ends enough waiting for its cost.

    Parameters
    ----------
    kept_recommendation, bought_recommendation : Recommendation
        The same measures with as many GPUs as today, and with the purchase.
    target : WaitTarget
        Target of the p95 queue wait.
    """
    model, added_gpus = bought_recommendation.model, bought_recommendation.gpus - kept_recommendation.gpus
    fleets = kept_recommendation.fleet, bought_recommendation.fleet
    kept_s, bought_s = (np.minimum(model.replay_waits(fleet), model.inputs.observed_s) for fleet in fleets)
    ended_s = float(((kept_s - bought_s) * model.inputs.gpus_by_job())[model.waits.is_evaluated].sum())
    hours_ended = ended_s / (added_gpus * model.inputs.observed_s)
    # Where the planner stated no target, a bought GPU-hour ends a tenth of one of waiting at least.
    if hours_ended < 0.1 and not target.stated:
        target_gpus = bought_recommendation.gpus
        return replace(kept_recommendation, waiting_hours_per_gpu_hour=hours_ended, target_gpus=target_gpus)
    return replace(bought_recommendation, waiting_hours_per_gpu_hour=hours_ended)


def format_unbought_gpus(recommendation: Recommendation) -> str:
    """Describe the little waiting that the GPUs would remove which are not bought."""
    minutes = (recommendation.waiting_hours_per_gpu_hour or 0.0) * SECONDS_PER_HOUR / SECONDS_PER_MINUTE
    removed_min = math.floor(10 * minutes) / 10  # rounded down, as it is below the required 6
    added = count_text(recommendation.target_gpus - recommendation.gpus, "GPU")
    return f"each GPU-hour bought ({added}) would remove only {removed_min:g} min of waiting"


def _explain_no_purchase(recommendation: Recommendation, late_sizes: list[int]) -> str:
    """Explain why GPUs that would meet the wait target are not bought."""
    sizes, target_min = format_size_names(recommendation.model, late_sizes), WaitTarget().target_s / SECONDS_PER_MINUTE
    over = f"the p95 queue wait of jobs on {sizes} is clearly over {target_min:g} min"
    return f"{over}, but {format_unbought_gpus(recommendation)}"


def compare_service(
    model: WaitModel, recommendation: Recommendation, limit_s: Floats
) -> tuple[tuple[JobSizeWaits, ...], TeamWaits]:
    """Compare the queue waits of each job size and team: observed, simulated today, and simulated as recommended.

    Parameters
    ----------
    model : WaitModel
        Observed jobs and nodes, and how jobs start.
    recommendation : Recommendation
        Recommendation of the model.
    limit_s : array of float, shape (n_records, n_sizes)
        Wait limit of each job size, in the record and in each resampled record. [s]
    """
    waits, inputs = model.waits, model.inputs
    every = np.arange(len(waits.arrival_s))
    before = [model.replay_waits(inputs.fleet, number) for number in range(CURVE_RUNS)]
    fleet = recommendation.fleet
    after = [recommendation.model.replay_waits(fleet, number, keep=True) for number in range(CURVE_RUNS)]

    ends, completion_ends = recommendation.model.draw_intervals(fleet, len(limit_s) - 1)
    today_ends, _ = model.draw_intervals(inputs.fleet, len(limit_s) - 1)
    (low, high), (today_low, today_high) = np.minimum([ends, today_ends], inputs.observed_s / SECONDS_PER_MINUTE)

    def summarize(wait_model: WaitModel, replays_s: Sequence[Floats]) -> list[list[float]]:
        """Return p95 wait, completion time and mean wait of each size [min]: median of p95s, means that add up."""
        clipped_s = [np.minimum(waits_s, inputs.observed_s) for waits_s in replays_s]
        by_replay_s = np.array([wait_model.summarize_waits(every, waits.arrival_s, waits_s) for waits_s in clipped_s])
        means_s = [by_replay_s[:, statistic].T.copy().mean(axis=1) for statistic in (1, 3)]
        summary_s = np.array([np.median(by_replay_s[:, 0], axis=0), *means_s])
        minutes: list[list[float]] = (summary_s.T / SECONDS_PER_MINUTE).tolist()
        return minutes

    def mean_minutes(jobs: Bools, replays_s: Sequence[Floats]) -> float:
        """Return the mean wait of jobs, the mean of its means by replay [min]."""
        means_s = [np.minimum(waits_s[jobs], inputs.observed_s).mean() for waits_s in replays_s]
        return float(np.mean(means_s)) / SECONDS_PER_MINUTE

    team_names = inputs.jobs["tenant"].cast(pl.String).fill_null("").to_numpy()
    masks: dict[str | None, Bools] = {None: waits.is_evaluated}
    masks |= {name: waits.is_evaluated & (team_names == name) for name in sorted(set(team_names[waits.is_evaluated]))}
    team_waits = {
        name: (mean_minutes(jobs, before), mean_minutes(jobs, after)) for name, jobs in masks.items() if jobs.any()
    }
    is_delayed, rows = after[0] > before[0] + MIN_DELAY_S, []
    summaries = summarize(model, [waits.waited_s]), summarize(model, before), summarize(recommendation.model, after)
    for column, (number, *minutes) in enumerate(zip(model.sizes, *summaries, strict=True)):
        jobs = waits.is_evaluated & (model.size_of_job == number)
        (observed_p95, *_), (today_p95, today_completion, today_mean), (p95, completion, mean) = minutes
        rows.append(
            JobSizeWaits(
                model.size_names[number], int(jobs.sum()), observed_p95, today_p95, p95,
                float(low[column]), float(high[column]), today_mean, mean, int(is_delayed[jobs].sum()),
                limit_to_record(float(limit_s[0, column]) / SECONDS_PER_MINUTE, inputs.observed_s),
                float(today_low[column]), float(today_high[column]), today_completion, completion,
                *completion_ends[:, column].tolist(),
            )
        )  # fmt: skip
    return tuple(rows), team_waits


def simulate_wait_curve(model: WaitModel, recommendation: Recommendation, gpus: Sequence[int] = ()) -> list[CurvePoint]:
    """Simulate the wait curve of today's layout, and of the recommended layout if the recommendation changes it.

    Parameters
    ----------
    model : WaitModel
        Observed jobs and nodes, and how jobs start.
    recommendation : Recommendation
        Recommendation of the model.
    gpus : sequence of int
        Fleet sizes, rounded to whole nodes; empty: half to twice the GPUs of today, and the recommended GPUs. [GPU]
    """
    curves = [(TODAYS_LAYOUT, keep_fleet(model, None))]
    if recommendation.model is not model:
        curves.append((RECOMMENDED_LAYOUT, recommendation))
    points = []
    target_sizes = (recommendation.gpus, recommendation.target_gpus)
    factors = {size / recommendation.fleet_gpus for size in gpus or target_sizes if size}
    if not gpus:
        factors |= {1.0, *CURVE_FLEET_FACTORS}
    for name, entry in curves:
        ratio = entry.fleet_gpus / entry.fleet.gpus.sum()
        fleets = [join_pools(entry.pools, scale_units(entry, factor * ratio)) for factor in sorted(factors)]
        points += simulate_curve_points(entry.model, name, fleets)
    # The table of waits and the curve state the same waits where both are of one fleet.
    stated_waits: dict[tuple[str, int, str], dict[str, Any]] = {}
    for row in recommendation.service:
        stated_waits[TODAYS_LAYOUT, recommendation.fleet_gpus, row.size] = {
            "p95_minutes": row.today_p95_minutes, "mean_minutes": row.today_mean_minutes,
            "low": row.today_low, "high": row.today_high, "completion_minutes": row.today_completion_minutes,
        }  # fmt: skip
        stated_waits[curves[-1][0], recommendation.gpus, row.size] = {
            "p95_minutes": row.recommended_p95_minutes, "mean_minutes": row.recommended_mean_minutes, "low": row.low,
            "high": row.high, "completion_minutes": row.completion_minutes, "completion_low": row.completion_low,
            "completion_high": row.completion_high,
        }  # fmt: skip
    return [replace(point, **stated_waits.get((point.layout, point.gpus, point.job_size), {})) for point in points]


def scale_units(recommendation: Recommendation, factor: float) -> list[int]:
    """Scale the nodes of all pools by a factor; where pools count GPUs, by whole nodes.

    A larger fleet has the GPUs of the recommendation and nodes of one profile: single GPUs added to a node let small
    jobs in, for which large ones wait.
    """
    if not recommendation.pools[0].movable:
        return [max(round(factor * count), 1) for count in recommendation.units]
    node, gpus = recommendation.model.inputs.node_gpus, sum(recommendation.units)
    added_nodes = round((factor - 1) * gpus / node)
    factor = 1 + added_nodes * node / gpus  # factors of one number of GPUs make one fleet
    if added_nodes <= 0:
        units = [max(round(factor * count), 1) for count in recommendation.units]
        units[units.index(max(units))] += gpus + node * added_nodes - sum(units)
        return units
    units = list(recommendation.units)
    for _ in range(added_nodes):
        missing = [factor * count - now for count, now in zip(recommendation.units, units, strict=True)]
        units[missing.index(max(missing))] += node
    return units


def format_size_names(model: WaitModel, sizes: Sequence[int]) -> str:
    """Join the names of job sizes with commas; of more than two, the first two and how many more."""
    names = [model.size_names[number] for number in sizes]
    if len(names) > 2:
        names[2:] = [f"and {count_text(len(names) - 2, 'more size')}"]
    return ", ".join(names)
