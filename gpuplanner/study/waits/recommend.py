"""The recommendation: which measures, in which order, end the waits or free GPUs, by the one wait model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from gpuplanner.simulate.nodes import NodeFleet
from gpuplanner.simulate.slices.world import Floats
from gpuplanner.study.decision.asked import AS_TODAY, RIGHTSIZED
from gpuplanner.study.waits.causes import CAUSES, FRAGMENTED, INSUFFICIENT, LIMITS, WRONG_LAYOUT
from gpuplanner.study.waits.curve import INTERVAL, REPLAYS, percentile
from gpuplanner.study.waits.growth import (
    Exhaustion,
    Headroom,
    WeeklyGrowth,
    date_exhaustion,
    fit_growth_per_week,
    measure_headroom,
    weekly_work,
)
from gpuplanner.study.waits.layouts import best_layout, uniform_fleet
from gpuplanner.study.waits.readings import (
    MOST_TIMES,
    SURE,
    Bools,
    Pool,
    WaitModel,
    WaitTarget,
    cause_hours,
    join_fleets,
    late_sizes,
    pools_of,
    smallest_fleet,
    wait_limits,
)
from gpuplanner.units import SECONDS_PER_DAY, SECONDS_PER_MINUTE

MIN_WORTH = 0.1
"""GPU-hours of waiting that a bought GPU-hour ends, at least, where the planner stated no target."""
BUYABLE = (CAUSES[INSUFFICIENT], CAUSES[FRAGMENTED], "")
"""Causes that further GPUs of today's layout end; the last one stands for any that nothing else ends."""
ROUNDING_S = 60.0
"""A job that waits longer by less than this is not delayed [s]."""


@dataclass(frozen=True)
class Measure:
    """One step of a recommendation.

    - ``action``: ``release``, ``repartition``, ``rightsize``, ``pack``, ``raise_limit`` or ``buy``.
    - ``text``: What to do.
    - ``gpus``: GPUs that are provisioned from then on.
    - ``condition``: What has to be in force before; None: nothing.
    """

    action: str
    text: str
    gpus: int
    condition: str | None = None


@dataclass(frozen=True)
class Service:
    """Queue waits of the jobs of one size, as observed, simulated today, and under the recommendation. In minutes.

    - ``low``, ``high``: 80 % interval of the p95 wait under the recommendation.
    - ``jobs_delayed``: Jobs of the record that wait longer under the recommendation.
    - ``limit_minutes``: What the p95 wait is held to.
    """

    size: str
    jobs: int
    observed_p95_minutes: float
    today_p95_minutes: float
    recommended_p95_minutes: float
    low: float
    high: float
    today_mean_minutes: float
    recommended_mean_minutes: float
    jobs_delayed: int
    limit_minutes: float


@dataclass(frozen=True)
class Recommendation:
    """What to do, in order, and what it does to the waits.

    - ``action``: That of the first measure, ``keep``, or ``none`` where there is no recommendation.
    - ``reason``: Why nothing is recommended, or nothing is to be done.
    - ``fleet_gpus``, ``gpus``: GPUs today, and when all measures are in force.
    - ``worth``: GPU-hours of waiting ended for each GPU-hour bought; None where none is bought.
    - ``headroom``, ``exhaustion``: Of today's GPUs, with the measures in force that change none.
    """

    action: str
    measures: tuple[Measure, ...]
    reason: str | None
    fleet_gpus: int
    gpus: int
    service: tuple[Service, ...] = ()
    cause_hours: dict[str, float] = field(default_factory=dict)
    worth: float | None = None
    headroom: Headroom | None = None
    growth: WeeklyGrowth | None = None
    exhaustion: Exhaustion | None = None


@dataclass(frozen=True, eq=False)
class Change:
    """The model with one measure in force.

    - ``action``, ``text``: The measure.
    - ``pools``: Nodes whose number may be varied with it in force.
    - ``node_gpus``: GPUs count in multiples of so many.
    """

    action: str
    text: str
    model: WaitModel
    pools: list[Pool]
    node_gpus: int = 1

    def smallest_fleet(self, limit_s: Floats) -> tuple[NodeFleet | None, int]:
        """Find the smallest fleet that meets the limits, and its GPUs as multiples of a node."""
        fleet = smallest_fleet(self.model, self.pools, limit_s)
        return fleet, 0 if fleet is None else self.node_gpus * math.ceil(
            int(fleet.gpus.sum()) / self.node_gpus
        )


@dataclass(frozen=True, eq=False)
class Plan:
    """Measures in order, the model with those in force that change no GPUs, and the fleet under all of them."""

    measures: tuple[Measure, ...]
    model: WaitModel
    fleet: NodeFleet
    reason: str | None = None
    worth: float | None = None


def recommend(model: WaitModel, target: WaitTarget, *, lead_days: int = 90) -> Recommendation:
    """Recommend the measures that end the waits of late sizes; where none is late, what can be released.

    Parameters
    ----------
    model : WaitModel
        The record, and how its jobs start.
    target : WaitTarget
        What waits are held to.
    lead_days : int
        Days from the order of GPUs to their first job.
    """
    asked, today = model.asked, int(model.asked.fleet.gpus.sum())
    if not model.sizes or asked.starts_assumed:
        reason = "the record has no queue waits" if model.sizes else "no job was submitted within the record"
        return Recommendation("none", (), reason, today, today)
    late = late_sizes(model, target)
    today_s, limit_s = wait_limits(model, target)
    hours = cause_hours(model, late or model.sizes)
    if late:
        plan = end_waits(model, target, late, limit_s, today_s)
    else:
        plan = release_gpus(model, np.where(today_s <= target.target_s, limit_s, today_s))
    if plan is None:
        most = max(hours, key=lambda name: hours[name])
        reason = f"no measure ends the waits of {size_names(model, late)}; most of them are {most}"
        return Recommendation("none", (), reason, today, today, cause_hours=hours)
    growth = fit_growth_per_week(weekly_work(model))
    headroom = measure_headroom(plan.model, target, growth)
    days = asked.seen_s / SECONDS_PER_DAY
    return Recommendation(
        plan.measures[0].action if plan.measures else "keep", plan.measures, plan.reason, today,
        plan.measures[-1].gpus if plan.measures else today, compare_service(model, plan, limit_s), hours, plan.worth,
        headroom, growth, date_exhaustion(growth, headroom, asked.end.date(), days, lead_days),
    )  # fmt: skip


def release_gpus(model: WaitModel, limit_s: Floats) -> Plan:
    """Plan to release what no size needs to stay within its limit, on smaller profiles if that frees more."""
    today = model.asked.fleet
    fleet = smallest_fleet(model, pools_of(today), limit_s) or today
    for change in changes_against(model, CAUSES[INSUFFICIENT]):
        smaller, gpus = change.smallest_fleet(limit_s)
        if smaller is not None and gpus < min(fleet.gpus.sum(), today.gpus.sum()):
            return Plan(follow_up(model, change, gpus), change.model, smaller)
    if fleet.gpus.sum() >= today.gpus.sum():
        return Plan((), model, today, "with fewer GPUs a size would wait longer than its limit")
    return Plan((count_measure(int(today.gpus.sum()), int(fleet.gpus.sum())),), model, fleet)


def end_waits(
    model: WaitModel, target: WaitTarget, late: list[int], limit_s: Floats, today_s: Floats
) -> Plan | None:
    """Plan the measure against the largest cause that its counterfactual confirms, and what holds after it.

    A measure other than a purchase is confirmed if with it fewer GPUs meet the limits than without. Where nothing
    brings all sizes to the target, those that no number of GPUs brings there wait no longer than today.
    """
    pools = pools_of(model.asked.fleet)
    hours = cause_hours(model, late)
    causes = sorted((name for name in hours if hours[name] > 0), key=lambda name: -hours[name])
    largest = join_fleets([pool.resize(MOST_TIMES * pool.today) for pool in pools])
    reached = np.mean([model.draw(largest, n) <= limit for n, limit in enumerate(limit_s)], axis=0) >= SURE
    within_reach = np.where(reached | (today_s <= target.target_s), limit_s, today_s)
    for limits in (limit_s, within_reach):
        bought = smallest_fleet(model, pools, limits)
        enough = math.inf if bought is None else float(bought.gpus.sum())
        for cause in [*causes, ""]:
            for change in changes_against(model, cause):
                fleet, gpus = change.smallest_fleet(limits)
                if fleet is not None and gpus < enough:
                    return Plan(follow_up(model, change, gpus), change.model, fleet)
            if bought is not None and cause in BUYABLE and enough > model.asked.fleet.gpus.sum():
                return weigh_purchase(model, target, late, bought)
    return None


def follow_up(model: WaitModel, change: Change, gpus: int) -> tuple[Measure, ...]:
    """A measure, and the release or purchase that holds with it in force."""
    today = int(model.asked.fleet.gpus.sum())
    measure = Measure(change.action, change.text, today)
    return (measure,) if gpus == today else (measure, count_measure(today, gpus, f"after {change.action}"))


def count_measure(today: int, gpus: int, condition: str | None = None) -> Measure:
    """A release or a purchase.

    Examples
    --------
    >>> count_measure(64, 48).text, count_measure(64, 72).text
    ('Release 16 GPUs', 'Buy 8 GPUs')
    """
    action = "buy" if gpus > today else "release"
    return Measure(action, f"{action.capitalize()} {abs(gpus - today)} GPUs", gpus, condition)


def changes_against(model: WaitModel, cause: str) -> Iterator[Change]:
    """Changes that end waits of a cause without further GPUs. Each is the model with one thing changed.

    Jobs take smaller profiles only where what they use was measured.
    """
    asked, queue = model.asked, model.waits.queue
    pools = pools_of(asked.fleet)
    if cause == CAUSES[FRAGMENTED] and queue.spread:
        text = "Fill nodes first (Slurm: CR_Pack_Nodes, no LLN; Kubernetes: MostAllocated)"
        yield Change("pack", text, model.packed(), pools)
    if cause == CAUSES[WRONG_LAYOUT]:
        yield from repartition(model, "repartition", "Repartition GPUs")
    if cause in (CAUSES[INSUFFICIENT], CAUSES[FRAGMENTED]) and RIGHTSIZED in asked.views and asked.jobs["sm_activity"].count():
        views = asked.views | {AS_TODAY: asked.views[RIGHTSIZED]}
        smaller = replace(model, asked=replace(asked, views=views))
        yield from repartition(smaller, "rightsize", "Run jobs of low measured use on smaller profiles")
    if cause == CAUSES[LIMITS]:
        tenants = np.unique(asked.jobs["tenant"].fill_null("?").to_numpy())
        named = ", ".join(f"{tenants[limit.tenant]} ({limit.gpus:g} GPUs)" for limit in queue.limits)
        yield Change("raise_limit", f"Raise the limit of {named}", model.without_limits(), pools)


def repartition(model: WaitModel, action: str, text: str) -> Iterator[Change]:
    """Today's GPUs on the layout on which jobs wait least; how many of each profile there are then varies by one GPU.

    GPUs that no profile needs stay with the one that has most.
    """
    asked, best = model.asked, best_layout(model)
    if best is None:
        return
    total, layout, pools = int(asked.fleet.gpus.sum()), dict(best.gpus), []
    layout[max(layout, key=lambda name: layout[name])] += total - sum(layout.values())
    for name in layout:
        profile = asked.fleet.profiles.index(name)
        instances = asked.board.profile(name).max_instances if profile else 1
        resize = partial(uniform_fleet, asked.fleet, profile, instances=instances, per_node=asked.usual_node)
        pools.append(Pool((profile,), total, resize, movable=True))
    fleet = join_fleets([pool.resize(gpus) for pool, gpus in zip(pools, layout.values(), strict=True)])
    text += ": " + ", ".join(f"{gpus} GPUs {name}" for name, gpus in layout.items())
    yield Change(action, text, replace(model, asked=replace(asked, fleet=fleet)), pools, asked.usual_node)


def weigh_purchase(model: WaitModel, target: WaitTarget, late: list[int], bought: NodeFleet) -> Plan:
    """Plan a purchase, unless nobody stated the target and it ends little waiting for what it costs."""
    asked, today = model.asked, model.asked.fleet
    ended_s = np.minimum(model.replay_waits(today), asked.seen_s) - np.minimum(
        model.replay_waits(bought), asked.seen_s
    )
    more = int(bought.gpus.sum() - today.gpus.sum())
    worth = float((ended_s * asked.gpus())[model.waits.judged].sum() / (more * asked.seen_s))
    if worth < MIN_WORTH and not target.stated:
        reason = (
            f"{size_names(model, late)} wait; {more} GPUs would end {worth:.2f} GPU-hours of it a GPU-hour"
        )
        return Plan((), model, today, reason, worth)
    return Plan((count_measure(int(today.gpus.sum()), int(bought.gpus.sum())),), model, bought, worth=worth)


def compare_service(model: WaitModel, plan: Plan, limit_s: Floats) -> tuple[Service, ...]:
    """Compare the waits of each size: observed, simulated today, and under the plan."""
    waits, fleet = model.waits, model.asked.fleet
    today = [model.replay_waits(fleet, number) for number in range(REPLAYS)]
    after = [plan.model.replay_waits(plan.fleet, number) for number in range(REPLAYS)]
    drawn = np.array([plan.model.draw(plan.fleet, number) for number in range(len(limit_s))])
    low, high = np.quantile(np.minimum(drawn, model.asked.seen_s), INTERVAL, axis=0) / SECONDS_PER_MINUTE
    rows = []
    for place, number in enumerate(model.sizes):
        jobs = waits.judged & (model.size == number)

        def minutes(waited: Sequence[Floats], read: Callable[[Floats], float], jobs: Bools = jobs) -> float:
            values = [read(np.minimum(one[jobs], model.asked.seen_s)) for one in waited]
            return float(np.median(values)) / SECONDS_PER_MINUTE

        rows.append(
            Service(
                model.names[number], int(jobs.sum()), minutes([waits.waited_s], percentile), minutes(today, percentile),
                minutes(after, percentile), float(low[place]), float(high[place]), minutes(today, np.mean),
                minutes(after, np.mean), int((after[0] > today[0] + ROUNDING_S)[jobs].sum()),
                float(np.median(limit_s[:, place])) / SECONDS_PER_MINUTE,
            )
        )  # fmt: skip
    return tuple(rows)


def size_names(model: WaitModel, sizes: list[int]) -> str:
    """Names of job sizes, in words."""
    return ", ".join(model.names[number] for number in sizes)
