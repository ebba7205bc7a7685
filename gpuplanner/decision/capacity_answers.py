"""Measures that end the waits or free GPUs, and the number of GPUs that each needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.core.units import SECONDS_PER_DAY, SECONDS_PER_MINUTE, count_text
from gpuplanner.decision.decision_types import CurvePoint, Exhaustion, Measure, SizeService, WeeklyGrowth
from gpuplanner.decision.headroom_and_growth import FittedGrowth, MeasuredHeadroom, date_exhaustion, measure_headroom
from gpuplanner.decision.requests import AS_TODAY, RIGHTSIZED
from gpuplanner.decision.wait_causes import CAUSES, FRAGMENTED, INSUFFICIENT, LIMITS, WRONG_LAYOUT
from gpuplanner.decision.wait_curve import (
    CURVE_FLEET_FACTORS,
    CURVE_INTERVAL,
    CURVE_RUNS,
    MAX_NODE_MULTIPLE,
    MIN_SHARE_WITHIN_LIMIT,
    Bools,
    SizedPool,
    WaitModel,
    WaitTarget,
    capped_minutes,
    find_best_layout,
    find_late_sizes,
    find_smallest_units,
    join_pools,
    simulate_curve_points,
    sum_cause_hours,
    uniform_fleet,
    wait_limits,
    wait_p95,
)
from gpuplanner.simulator.simulated_fleet import NodeFleet
from gpuplanner.simulator.simulation_state import Floats

MIN_DAYS = 5.0
MIN_JOBS = 50
"""Of a shorter record, or of fewer jobs, a 95th percentile is a matter of luck."""
MIN_GAIN_BY_MIXING = 0.02
"""Share of the GPUs that several layouts on one node save, to be recommended."""
NAMED_LIMITS = 2
"""Raised limits that the sentence names; the next steps have all of them."""
ROUNDING_S = 60.0
"""A job that waits longer by less than this is not delayed [s]."""
TODAYS, RECOMMENDED = "today", "recommended"
"""Layouts of the wait curve."""


@dataclass(frozen=True)
class RaisedLimit:
    """GPUs that a tenant may hold today, and the most that it holds at once where no tenant is limited."""

    tenant: str
    today: float
    gpus: int


@dataclass(frozen=True, eq=False)
class Change:
    """The model with one measure in force.

    - ``action``, ``text``: The measure.
    - ``model``, ``pools``: Jobs and nodes with it in force, and the nodes whose number may be varied.
    - ``node_gpus``: GPUs count in multiples of so many.
    - ``view``: What jobs request with it in force.
    - ``limits``: Limits that it raises.
    - ``today_units``: Units of each pool that are as many GPUs as today.
    """

    action: str
    text: str
    model: WaitModel
    pools: Sequence[SizedPool]
    today_units: Sequence[int]
    node_gpus: int = 1
    view: str = AS_TODAY
    limits: tuple[RaisedLimit, ...] = ()

    def text_with(self, units: Sequence[int]) -> str:
        """What to do, with the GPUs that each profile gets; the others stay full."""
        profiles = [self.model.inputs.fleet.profiles[pool.profiles[0]] for pool in self.pools]
        gpus_by_profile = zip(profiles, units, strict=True)
        parts = ", ".join(f"{count} GPUs as {name}" for name, count in gpus_by_profile if name != WHOLE_GPU)
        return f"{self.text}: {parts} in all" if self.pools[0].movable else self.text

    def smallest_units(self, limit_s: Floats) -> tuple[list[int] | None, float]:
        """Find the fewest units that meet the limits, and their GPUs as multiples of a node; infinite: none do.

        Each profile has nodes of its own unless they are more GPUs by over :data:`MIN_GAIN_BY_MIXING`.
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
        """Whether the recorded jobs meet the limit of each size with it in force on as many GPUs as today."""
        fleet = join_pools(self.pools, self.today_units)
        return bool((self.model.percentiles(fleet, 0) <= limit_s).all())


TeamWaits = Mapping[str | None, tuple[float, float]]
"""Mean queue wait by team, of all jobs under None: simulated today and as recommended [min]."""


@dataclass(frozen=True, eq=False)
class Recommendation:
    """What to do, in order, and what it does to the waits.

    - ``action``: That of the first measure, ``keep``, or ``none`` where there is no recommendation.
    - ``model``, ``pools``, ``units``, ``view``: Jobs and nodes under all measures, and what jobs request then.
    - ``reason``: Why nothing is recommended, or nothing is to be done.
    - ``fleet_gpus``, ``gpus``: GPUs today, and when all measures are in force.
    - ``service``: Waits by job size; empty where the replay is too far from the record to state them by size.
    - ``late``: Names of the sizes that miss the target today.
    - ``limits``: Limits that are raised.
    - ``waiting_hours_per_gpu_hour``: GPU-hours of waiting ended for each GPU-hour bought; None where none is bought.
    - ``enough_gpus``: GPUs that would bring late sizes to the target, where they are not worth it; 0: no such.
    - ``headroom``, ``exhaustion``: Of the GPUs as recommended: today's, fewer that are kept, or more that are bought.
    - ``team_waits``: Mean queue wait of each team, and of all jobs under None: today and as recommended [min].
    - ``order_gpus``: GPUs to order now at least, as growth exhausts these before others can be there; 0: none.
    """

    action: str
    model: WaitModel
    pools: Sequence[SizedPool]
    units: Sequence[int]
    fleet_gpus: int
    gpus: int
    measures: tuple[Measure, ...] = ()
    reason: str | None = None
    view: str = AS_TODAY
    service: tuple[SizeService, ...] = ()
    late: tuple[str, ...] = ()
    limits: tuple[RaisedLimit, ...] = ()
    waiting_hours_per_gpu_hour: float | None = None
    enough_gpus: int = 0
    growth: FittedGrowth = field(default_factory=lambda: FittedGrowth(WeeklyGrowth()))
    headroom: MeasuredHeadroom | None = None
    exhaustion: Exhaustion = field(default_factory=Exhaustion)
    order_gpus: int = 0
    team_waits: TeamWaits = field(default_factory=dict)

    @property
    def fleet(self) -> NodeFleet:
        """The nodes under all measures."""
        return join_pools(self.pools, self.units)


def recommend(
    model: WaitModel, target: WaitTarget, growth: FittedGrowth, *, lead_days: int = 90, more_units: int = 0
) -> Recommendation:
    """Recommend the measures that end the waits of late sizes; where none is late, what can be released.

    Parameters
    ----------
    model : WaitModel
        The record, and how its jobs start.
    target : WaitTarget
        What waits are held to.
    growth : FittedGrowth
        Growth of the submitted work.
    lead_days : int
        Days from the order of GPUs to their first job.
    more_units : int
        Nodes to keep beyond those that the limits need.
    """
    asked = model.inputs
    if (reason := why_none(model)) is not None:
        return decline(model, reason, growth)
    late = find_late_sizes(model, target)
    today_s, limit_s = wait_limits(model, target)
    ahead = asked.observed_s / SECONDS_PER_DAY / 2 + lead_days
    if late:
        found = end_waits(model, target, late, limit_s, today_s)
    else:
        limits = np.where(today_s <= target.target_s, limit_s, today_s)
        found = release_gpus(model, limits, growth.load_after(ahead), more_units)
    if found is None:
        hours = sum_cause_hours(model, late)
        most = max(hours, key=lambda name: hours[name])
        reason = f"no measure ends the waits of {size_names(model, late)}; the main cause is {most}"
        found = decline(model, reason, growth)

    days, end = asked.observed_s / SECONDS_PER_DAY, asked.end.date()
    measured = measure_headroom(found.model, found.fleet, target, growth)
    exhaustion = date_exhaustion(growth, measured, end, days, lead_days)
    order_now = exhaustion.order_by is not None and exhaustion.order_by <= end.isoformat()
    more = order_now and found.gpus <= found.fleet_gpus
    stated = all(gap.withholds != "size" for gap in model.waits.share.gaps)
    service, team_waits = compare_service(model, found, limit_s) if stated else ((), {})
    return replace(
        found, growth=growth, headroom=measured, exhaustion=exhaustion, service=service, team_waits=team_waits,
        late=tuple(model.size_names[number] for number in late),
        order_gpus=gpus_for_growth(found, limit_s, growth.load_after(ahead, at_least=True)) if more else 0,
    )  # fmt: skip


def decline(model: WaitModel, reason: str, growth: FittedGrowth) -> Recommendation:
    """Recommend nothing."""
    none = Exhaustion(reason=growth.weekly.reason or reason)
    return replace(keep(model, reason), action="none", growth=growth, exhaustion=none)


def why_none(model: WaitModel) -> str | None:
    """Why nothing is recommended whatever the model says; None where something can be."""
    asked = model.inputs
    days, jobs = asked.observed_s / SECONDS_PER_DAY, int(model.waits.judged.sum())
    if asked.starts_assumed:
        return "the record does not state when jobs started"
    if asked.nodes.snapshot:
        return "the job list is a snapshot of one moment"
    if days < MIN_DAYS or jobs < MIN_JOBS:
        needed = f"{MIN_JOBS} jobs in {MIN_DAYS:.0f} days are needed"
        return f"{count_text(jobs, 'job')} were submitted in {days:.1f} days of record, {needed}"
    if not model.waits.share.capacity_is_clear:
        sentence = next(gap.sentence for gap in model.waits.share.gaps if gap.withholds == "capacity")
        return f"{sentence[:1].lower()}{sentence[1:].rstrip('.')}"
    return None


def keep(model: WaitModel, reason: str | None) -> Recommendation:
    """Leave the fleet as it is."""
    pools = model.pools
    today = int(model.inputs.fleet.gpus.sum())
    units = [pool.today for pool in pools]
    return Recommendation("keep", model, pools, units, today, today, reason=reason)


def resize(model: WaitModel, pools: Sequence[SizedPool], units: Sequence[int]) -> Recommendation:
    """Release or buy nodes of today's layout."""
    today, gpus = int(model.inputs.fleet.gpus.sum()), int(join_pools(pools, units).gpus.sum())
    measure = count_measure(today, gpus)
    return Recommendation(measure.action, model, pools, units, today, gpus, (measure,))


def change_fleet(model: WaitModel, change: Change, units: Sequence[int], gpus: int) -> Recommendation:
    """Make a change, then the release or purchase that holds with it in force."""
    today = int(model.inputs.fleet.gpus.sum())
    if change.pools[0].movable:  # what no profile needs of the last node stays full
        units = list(units)
        units[0] += gpus - int(join_pools(change.pools, units).gpus.sum())
    measures: tuple[Measure, ...] = (Measure(change.action, change.text_with(units), today),)
    if gpus != today:
        measures += (count_measure(today, gpus, f"after {change.action}"),)
    return Recommendation(
        change.action, change.model, change.pools, units, today, gpus, measures, view=change.view,
        limits=change.limits,
    )  # fmt: skip


def count_measure(today: int, gpus: int, condition: str | None = None) -> Measure:
    """A release or a purchase.

    Examples
    --------
    >>> count_measure(64, 48).text, count_measure(64, 72).text
    ('Release 16 GPUs', 'Buy 8 GPUs')
    """
    action = "buy" if gpus > today else "release"
    return Measure(action, f"{action.capitalize()} {count_text(abs(gpus - today), 'GPU')}", gpus, condition)


def add_units(pools: Sequence[SizedPool], units: Sequence[int], more: int) -> list[int]:
    """Raise the units of pools by so many in sum, one pool after the other, to no more than there are today.

    Examples
    --------
    >>> from gpuplanner.decision.wait_curve import SizedPool
    >>> pools = [SizedPool((number,), 4, NodeFleet.of_full_gpus) for number in range(2)]
    >>> add_units(pools, [1, 2], 4)
    [4, 3]
    """
    raised = []
    for pool, count in zip(pools, units, strict=True):
        raised.append(count + max(min(more, pool.today - count), 0))
        more -= raised[-1] - count
    return raised


def release_gpus(model: WaitModel, limit_s: Floats, load: float, more_units: int = 0) -> Recommendation:
    """Release what no size needs to stay within its limit, on smaller profiles if that frees more.

    ``load`` is how many times today's load the kept GPUs have to carry: what grows until others could be there.
    ``more_units`` are kept beyond that.
    """
    today, pools = int(model.inputs.fleet.gpus.sum()), model.pools
    units = find_smallest_units(model, pools, limit_s, load=load) or [pool.today for pool in pools]
    units = add_units(pools, units, more_units)
    fewest = int(join_pools(pools, units).gpus.sum())
    for change in changes_against(model, CAUSES[INSUFFICIENT]) if load <= 1.0 and not more_units else ():
        smaller, gpus = change.smallest_units(limit_s)
        if smaller is not None and gpus < min(fewest, today):
            return change_fleet(model, change, smaller, int(gpus))
    if fewest >= today:
        return keep(model, "with fewer GPUs a job size would wait longer than its limit")
    return resize(model, pools, units)


def gpus_for_growth(found: Recommendation, limit_s: Floats, load: float) -> int:
    """GPUs more, beside a recommendation, with which the load on the day of delivery meets the limits; 0: none do."""
    units = find_smallest_units(found.model, found.pools, limit_s, load=load)
    more = 0 if units is None else int(join_pools(found.pools, units).gpus.sum()) - found.gpus
    node = found.model.inputs.node_gpus
    return max(node * math.ceil(more / node), 0)


def end_waits(
    model: WaitModel, target: WaitTarget, late: list[int], limit_s: Floats, today_s: Floats
) -> Recommendation | None:
    """Find the measure against the largest cause that its counterfactual confirms, and what holds after it.

    A measure other than a purchase is confirmed if with it fewer GPUs meet the limits than without. Where nothing
    brings all sizes to the target, those that no number of GPUs brings there wait no longer than today.
    """
    pools, today = model.pools, int(model.inputs.fleet.gpus.sum())
    hours = sum_cause_hours(model, late)
    causes = sorted((name for name in hours if hours[name] > 0), key=lambda name: -hours[name])
    largest = join_pools(pools, [MAX_NODE_MULTIPLE * pool.today for pool in pools])
    met = np.array([model.percentiles(largest, row) <= limit for row, limit in enumerate(limit_s)])
    reached = met[0] & (met[1:].mean(axis=0) >= MIN_SHARE_WITHIN_LIMIT)
    within_reach = np.where(reached | (today_s <= target.target_s), limit_s, today_s)
    for limits in (limit_s, within_reach):
        bought = find_smallest_units(model, pools, limits)
        enough = math.inf if bought is None else float(join_pools(pools, bought).gpus.sum())
        for cause in [*causes, ""]:
            for change in changes_against(model, cause):
                units, gpus = change.smallest_units(limits)
                if gpus > today and change.meets_with_todays_gpus(limits[0]):
                    # What the record does not need is not bought beside another measure.
                    units, gpus = list(change.today_units), today
                if units is not None and gpus < enough:
                    return change_fleet(model, change, units, int(gpus))
            # Further GPUs of today's layout end these; the last one stands for any that nothing else ends.
            buyable = cause in (CAUSES[INSUFFICIENT], CAUSES[FRAGMENTED], "")
            if bought is not None and buyable and enough > today:
                return weigh_purchase(model, target, late, bought)
    return None


def changes_against(model: WaitModel, cause: str) -> Iterator[Change]:
    """Changes that end waits of a cause without further GPUs. Each is the model with one thing changed.

    Jobs take smaller profiles only where what they use was measured: then small jobs leave whole nodes to large ones.
    """
    asked, queue = model.inputs, model.waits.queue
    pools = model.pools
    today_units = [pool.today for pool in pools]
    if cause == CAUSES[FRAGMENTED] and queue.spread:
        packed = replace(model, waits=replace(model.waits, queue=replace(queue, spread=False)))
        yield Change("pack", "Let jobs fill nodes one by one", packed, pools, today_units)
    if cause == CAUSES[WRONG_LAYOUT]:
        yield from repartition(model, "repartition", "Repartition GPUs into the instances that jobs wait for", AS_TODAY)
    measured = RIGHTSIZED in asked.views and asked.jobs["sm_activity"].count()
    if cause in (CAUSES[INSUFFICIENT], CAUSES[FRAGMENTED]) and measured:
        views = asked.views | {AS_TODAY: asked.views[RIGHTSIZED]}
        smaller = replace(model, inputs=replace(asked, views=views))
        text = "Run jobs of low measured use on smaller profiles"
        yield from repartition(smaller, "rightsize", text, RIGHTSIZED)
    if cause == CAUSES[LIMITS]:
        free = model.without_limits()
        limits = tuple(raised_limits(model, free))
        named = [f"{one.tenant} from {one.today:g} to {one.gpus} GPUs" for one in limits]
        more = f" and {count_text(len(named) - NAMED_LIMITS, 'more team')}" if len(named) > NAMED_LIMITS else ""
        text = f"Raise the limit of {', '.join(named[:NAMED_LIMITS])}{more}"
        yield Change("raise_limit", text, free, pools, today_units, limits=limits)


def raised_limits(model: WaitModel, free: WaitModel) -> Iterator[RaisedLimit]:
    """Limits that never bind: what each limited tenant holds at most where no tenant is limited."""
    asked = free.inputs
    names = asked.jobs["tenant"].fill_null("?").to_numpy()
    tenants = np.unique(names)
    start_s = free.waits.arrival_s + free.arrival_shift_s(0) + free.replay_waits(asked.fleet)
    for limit in model.waits.queue.limits:
        mine = (names == tenants[limit.tenant]) & np.isfinite(start_s)
        gpus, begin_s = asked.gpus_by_job()[mine], start_s[mine]
        at_s = np.concatenate([begin_s, begin_s + asked.requests.run_s[mine]])
        change = np.concatenate([gpus, -gpus])
        peak = float(np.cumsum(change[np.lexsort((change, at_s))]).max(initial=limit.gpus))
        yield RaisedLimit(str(tenants[limit.tenant]), limit.gpus, math.ceil(peak - 1e-6))


def repartition(model: WaitModel, action: str, text: str, view: str) -> Iterator[Change]:
    """Today's GPUs on the layout on which jobs wait least; how many of each profile there are then varies by one GPU.

    GPUs that no profile needs stay with the one that has most.
    """
    asked, best = model.inputs, find_best_layout(model)
    if best is None:
        return
    total, layout, pools = int(asked.fleet.gpus.sum()), dict(best), []
    layout[max(layout, key=lambda name: layout[name])] += total - sum(layout.values())
    for name in layout:
        profile = asked.fleet.profiles.index(name)
        instances = asked.gpu_model.profile(name).max_instances if profile else 1
        resized = partial(uniform_fleet, asked.fleet, profile, instances=instances, per_node=asked.node_gpus)
        pools.append(SizedPool((profile,), total, resized, movable=True))
    units = list(layout.values())
    repartitioned = replace(model, inputs=replace(asked, fleet=join_pools(pools, units)))
    yield Change(action, text, repartitioned, pools, units, asked.node_gpus, view)


def weigh_purchase(model: WaitModel, target: WaitTarget, late: list[int], units: Sequence[int]) -> Recommendation:
    """Buy, unless nobody stated the target and the purchase ends little waiting for what it costs."""
    asked, found = model.inputs, resize(model, model.pools, units)
    today_s = np.minimum(model.replay_waits(asked.fleet), asked.observed_s)
    bought_s = np.minimum(model.replay_waits(found.fleet), asked.observed_s)
    more = found.gpus - found.fleet_gpus
    ended = float(((today_s - bought_s) * asked.gpus_by_job())[model.waits.judged].sum() / (more * asked.observed_s))
    # Where the planner stated no target, a bought GPU-hour ends a tenth of one of waiting at least.
    if ended < 0.1 and not target.stated:
        target_min = target.target_s / SECONDS_PER_MINUTE
        reason = (
            f"the p95 queue wait of jobs on {size_names(model, late)} is over {target_min:g} min, and "
            f"{count_text(more, 'GPU')} more would end only {ended:.2f} GPU-hours of waiting per GPU-hour bought"
        )
        return replace(keep(model, reason), waiting_hours_per_gpu_hour=ended, enough_gpus=found.gpus)
    return replace(found, waiting_hours_per_gpu_hour=ended)


def compare_service(
    model: WaitModel, found: Recommendation, limit_s: Floats
) -> tuple[tuple[SizeService, ...], TeamWaits]:
    """Compare the waits of each size and team: observed, simulated today, and under a recommendation."""
    waits, asked = model.waits, model.inputs
    today = [model.replay_waits(asked.fleet, number) for number in range(CURVE_RUNS)]
    fleet = found.fleet
    after = [found.model.replay_waits(fleet, number) for number in range(CURVE_RUNS)]

    def resample(wait_model: WaitModel, nodes: NodeFleet) -> Floats:
        drawn_s = np.array([wait_model.draw_percentiles(nodes, number) for number in range(len(limit_s) - 1)])
        return (
            np.asarray(np.quantile(np.minimum(drawn_s, asked.observed_s), CURVE_INTERVAL, axis=0)) / SECONDS_PER_MINUTE
        )

    low, high = resample(found.model, fleet)
    today_low, today_high = resample(model, asked.fleet)

    def minutes(jobs: Bools, waited: Sequence[Floats], read: Callable[[Floats], float] = wait_p95) -> float:
        values = [read(np.minimum(one[jobs], asked.observed_s)) for one in waited]
        return float(np.median(values)) / SECONDS_PER_MINUTE

    team = asked.jobs["tenant"].cast(pl.String).fill_null("").to_numpy()
    masks: dict[str | None, Bools] = {None: waits.judged}
    masks |= {name: waits.judged & (team == name) for name in set(team[waits.judged])}
    team_waits = {
        name: (minutes(jobs, today, np.mean), minutes(jobs, after, np.mean))
        for name, jobs in masks.items()
        if jobs.any()
    }
    rows = []
    for place, number in enumerate(model.sizes):
        jobs = waits.judged & (model.size_of_job == number)
        rows.append(
            SizeService(
                model.size_names[number], int(jobs.sum()), minutes(jobs, [waits.waited_s]), minutes(jobs, today),
                minutes(jobs, after), float(low[place]), float(high[place]), minutes(jobs, today, np.mean),
                minutes(jobs, after, np.mean), int((after[0] > today[0] + ROUNDING_S)[jobs].sum()),
                capped_minutes(float(limit_s[0, place]), asked.observed_s),
                float(today_low[place]), float(today_high[place]),
            )
        )  # fmt: skip
    return tuple(rows), team_waits


def wait_curve(model: WaitModel, found: Recommendation) -> list[CurvePoint]:
    """The wait curve of today's layout, and of the recommendation where it changes more than the number of GPUs."""
    curves = [(TODAYS, keep(model, None))]
    if found.model is not model:
        curves.append((RECOMMENDED, found))
    points = []
    known = {1.0, *CURVE_FLEET_FACTORS, *(gpus / found.fleet_gpus for gpus in (found.gpus, found.enough_gpus) if gpus)}
    for name, one in curves:
        same = one.fleet_gpus / one.fleet.gpus.sum()
        fleets = [join_pools(one.pools, scale_units(one, factor * same)) for factor in sorted(known)]
        points += simulate_curve_points(one.model, name, fleets)
    # The table of waits and the curve state the same waits where both are of one fleet.
    stated: dict[tuple[str, int, str], dict[str, Any]] = {}
    for row in found.service:
        minutes = {"p95_minutes": row.today_p95_minutes, "mean_minutes": row.today_mean_minutes}
        stated[TODAYS, found.fleet_gpus, row.size] = minutes
        minutes = {"p95_minutes": row.recommended_p95_minutes, "mean_minutes": row.recommended_mean_minutes}
        stated[curves[-1][0], found.gpus, row.size] = minutes | {"low": row.low, "high": row.high}
    for place, point in enumerate(points):
        if waits := stated.get((point.layout, point.gpus, point.job_size)):
            points[place] = replace(point, **waits)
    return points


def scale_units(recommendation: Recommendation, factor: float) -> list[int]:
    """Scale the units of all pools; where a unit is a GPU, to a sum of whole nodes."""
    units = [max(round(factor * count), 1) for count in recommendation.units]
    if recommendation.pools[0].movable:
        node, gpus = recommendation.model.inputs.node_gpus, sum(recommendation.units)
        most = units.index(max(units))
        units[most] += gpus + node * round((factor - 1) * gpus / node) - sum(units)
    return units


def size_names(model: WaitModel, sizes: Sequence[int]) -> str:
    """Names of job sizes, in words."""
    return ", ".join(model.size_names[number] for number in sizes)
