"""Fewest GPUs with which the jobs of each node pool meet their wait limits, and the MIG layout with shortest waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from gpuplanner.core.libraries_plugins_and_workers import report_step
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.units_and_number_formats import count_text, percent_text
from gpuplanner.decision.headroom_and_growth import FittedGrowth
from gpuplanner.decision.policy_simulation import find_smallest
from gpuplanner.decision.requested_jobs import count_layout_instances
from gpuplanner.decision.wait_curve import (
    CURVE_RUNS,
    DAYS_PER_WEEK,
    MIN_SHARE_WITHIN_LIMIT,
    Bools,
    SizedPool,
    WaitModel,
    count_gpus_by_layout,
    join_pools,
    simulate_waits,
)
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.hardware.layout_enumeration import list_pareto_counts
from gpuplanner.hardware.mig_layouts import format_layout, parse_layout
from gpuplanner.simulator.simulation_inputs import NodeFleet
from gpuplanner.simulator.simulation_state import Floats, Ints

MAX_NODE_MULTIPLE = 4
"""Largest fleet that is simulated, as a multiple of today's nodes."""
WAIT_TOLERANCE_S = 1.0
"""Waits that differ by less are equal [s]."""


@dataclass(eq=False)
class PoolCheck:
    """Check whether the jobs of a pool meet their wait limits on a number of its units, with few simulations.

    - ``model``, ``pool``, ``load``: The model to simulate, the pool, and how many times each job arrives.
    - ``limit_s``, shape (1 + n_draws, n_sizes): Maximum wait of each size in the record and in each drawn one [s].
    - ``n_missed``, shape (1 + n_draws,): Fleets on which a size missed its limit in each record.
    - ``missed_by_run``: Whether each size misses its limit, by units, record and replay.
    """

    model: WaitModel
    pool: SizedPool
    limit_s: Floats
    load: float | Floats
    n_missed: Floats
    missed_by_run: dict[tuple[int, int, int], Bools] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Select the jobs of the pool, and count the GPUs of its services."""
        inputs = self.model.inputs
        of_pool = np.isin(inputs.requests.profile, self.pool.profiles)
        self.service_gpus = replace(inputs, is_service=inputs.is_service & of_pool).service_gpus
        self.jobs = None if of_pool.all() else of_pool

    def find_fewest_units(self) -> int | None:
        """Find the fewest units that meet the limits; None where four times today's units do not."""
        start, max_units = self.pool.expected or self.pool.today, MAX_NODE_MULTIPLE * self.pool.today

        def misses_without(fewer: int) -> bool:
            return start - fewer < self.pool.min_units or not self.meets_in_record(start - fewer)

        # The record takes few simulations, and nearly decides: drawn ones are simulated from there on.
        if self.meets_in_record(start):
            start -= (find_smallest(misses_without, 1, start) or start) - 1
        elif (start := find_smallest(self.meets_in_record, start + 1, max_units) or 0) == 0:
            return None
        return find_smallest(self.meets, start, max_units)

    def meets_in_record(self, count: int) -> bool:
        """Whether each size meets its limit in the record, in the median of its replays."""
        pool_gpus = int(self.pool.resize(count).gpus.sum())
        report_step(f"fewest GPUs within the limits: a pool of {count_text(pool_gpus, 'GPU')}")
        if pool_gpus < self.service_gpus:
            return False
        replays = (self.find_missed(count, 0, replay) for replay in range(CURVE_RUNS))
        return is_rarely_missed(replays, CURVE_RUNS, CURVE_RUNS // 2)

    def meets(self, count: int) -> bool:
        """Whether each size meets its limit in the record and in enough drawn ones."""
        n_draws = len(self.limit_s) - 1
        # Records that missed on other fleets come first, so that few of them decide.
        rows = (1 + np.argsort(-self.n_missed[1:], kind="stable")).tolist()
        draws = (self.find_missed(count, row, 0) for row in rows)
        max_missed = (1 - MIN_SHARE_WITHIN_LIMIT) * n_draws + 1e-9
        return self.meets_in_record(count) and is_rarely_missed(draws, n_draws, max_missed)

    def find_missed(self, count: int, row: int, replay: int) -> Bools:
        """Find which sizes miss their limits in a replay of a record."""
        run = count, row, replay
        if run not in self.missed_by_run:
            p95_s = self.model.measure_replay(self.pool.resize(count), row, replay, self.load, self.jobs)[0]
            is_missed: Bools = p95_s > self.limit_s[row] + WAIT_TOLERANCE_S
            self.n_missed[row] += is_missed.any()
            self.missed_by_run[run] = is_missed
        return self.missed_by_run[run]


def find_smallest_units(
    model: WaitModel, pools: Sequence[SizedPool], limit_s: Floats, *, load: float | Floats = 1.0
) -> list[int] | None:
    """Find the fewest units of each pool with which each job size meets its wait limit.

    Limits have to be met in the record and in 80 % of resampled weeks.

    Each pool has capacity for all services. Where one pool needs more nodes no other gets fewer: to move GPUs between
    pools is to repartition them.

    Parameters
    ----------
    model : WaitModel
        The model to simulate.
    pools : list of SizedPool
        Pools whose number of units is varied, each by itself.
    limit_s : array of float, shape (1 + n_draws, n_sizes)
        Maximum wait of each size in the record and in each drawn one [s].
    load : float or array of float, shape (n_jobs,)
        How many times each job arrives; 1: as observed.

    Returns
    -------
    list of int, or None
        Units by pool; None where four times today's units are not enough.
    """
    units, n_missed = [], np.zeros(len(limit_s))
    for pool in pools:
        if (count := PoolCheck(model, pool, limit_s, load, n_missed).find_fewest_units()) is None:
            return None
        units.append(count)
    if any(count > pool.today for count, pool in zip(units, pools, strict=True)):
        fixed = [0 if pool.movable else pool.today for pool in pools]
        units = [max(pair) for pair in zip(units, fixed, strict=True)]
    return units


def explain_kept_gpus(model: WaitModel, limit_s: Floats, growth: FittedGrowth, lead_days: int, load: float) -> str:
    """Explain why no GPU is released: by growth until GPUs could be replaced, else by what binds today.

    Parameters
    ----------
    model, limit_s
        As of :func:`find_smallest_units`.
    growth : FittedGrowth
        Weekly growth of the submitted work.
    lead_days : int
        Days from the order of GPUs to their first job.
    load : float
        Load at the end of the lead time, as a factor of that of the record.
    """
    todays_gpus = int(model.inputs.fleet.gpus.sum())
    units = find_smallest_units(model, model.pools, limit_s) if load > 1.0 else None
    if units is not None and (gpus := int(join_pools(model.pools, units).gpus.sum())) < todays_gpus:
        growth_text = percent_text(growth.load_factor_after(DAYS_PER_WEEK) - 1, ".1f")
        return (
            f"{count_text(gpus, 'GPU')} would meet the wait limits today, but fewer than {todays_gpus:,} no longer do "
            f"after {count_text(lead_days, 'day')} (purchase lead time) of growth by {growth_text} per week"
        )
    shrinkable = [pool for pool in model.pools if pool.today > pool.min_units]
    checks = [PoolCheck(model, pool, limit_s, 1.0, np.zeros(len(limit_s))) for pool in shrinkable]
    waiting = [check for check in checks if check.pool.resize(check.pool.today - 1).gpus.sum() >= check.service_gpus]
    if not waiting:
        return "only whole nodes can be released; each layout keeps one, and services keep those that they use"
    reason = "with fewer GPUs a job size would wait longer than its limit"
    if all(check.meets_in_record(check.pool.today - 1) for check in waiting):
        reason += f" in more than {percent_text(1 - MIN_SHARE_WITHIN_LIMIT)} of resampled weeks"
    return reason


def is_rarely_missed(missed_by_record: Iterable[Bools], n_records: int, max_missed: float) -> bool:
    """Whether each size misses its limit in few enough of a number of records; looks at no more than decide it.

    Examples
    --------
    >>> records = iter([np.array([True, False]), np.array([False, False]), np.array([True, True])])
    >>> is_rarely_missed(records, 3, 1), next(records, None)
    (False, None)
    """
    missed, left = np.zeros(1, dtype=np.int64), n_records
    for is_missed in missed_by_record:
        missed, left = missed + is_missed, left - 1
        if (missed > max_missed).any():
            return False
        if (missed + left <= max_missed).all():
            break
    return True


def build_layout_fleet(fleet: NodeFleet, layouts: Sequence[str], per_node: int) -> NodeFleet:
    """Build a fleet of nodes of the usual size from the layout of each GPU.

    Parameters
    ----------
    fleet : NodeFleet
        Fleet with the names of the profiles.
    layouts : sequence of str
        Layout of each GPU.
    per_node : int
        GPUs of a node.

    Returns
    -------
    NodeFleet

    Examples
    --------
    >>> build_layout_fleet(NodeFleet.of_full_gpus([8]), ["gpu"] * 12, 8).capacity[:, 0, 0].tolist()
    [8, 4]
    """
    nodes = [layouts[first : first + per_node] for first in range(0, len(layouts), per_node)]
    counts = [count_layout_instances(node, fleet.profiles) for node in nodes]
    capacity = np.array(counts, np.int64).reshape(len(nodes), 1, len(fleet.profiles))
    sizes = np.array([len(node) for node in nodes], np.int64)
    return replace(fleet, gpus=sizes, capacity=capacity, first=np.zeros_like(sizes))


def build_layout_pools(model: WaitModel, gpus_by_layout: Mapping[str, int]) -> list[SizedPool]:
    """Build a pool for the GPUs of each layout; layouts that follow each other and share a profile are one pool."""
    fleet, per_node = model.inputs.fleet, model.inputs.node_gpus
    groups: list[list[str]] = []
    for layout in gpus_by_layout:
        is_shared = groups and parse_layout(layout).keys() & parse_layout(groups[-1][0]).keys()
        groups[-1:] = [[*groups[-1], layout]] if is_shared else [*groups[-1:], [layout]]
    pools = []
    for group in groups:
        profiles = tuple(fleet.profiles.index(name) for name in parse_layout(group[0]))
        layouts = tuple((layout, gpus_by_layout[layout]) for layout in group)
        resize = partial(_build_pool_fleet, fleet, layouts, per_node)
        total, expected = int(fleet.gpus.sum()), sum(gpus for _, gpus in layouts)
        pools.append(SizedPool(profiles, total, resize, movable=True, expected=expected, layouts=layouts))
    return pools


def _build_pool_fleet(fleet: NodeFleet, layouts: Sequence[tuple[str, int]], per_node: int, gpus: int) -> NodeFleet:
    """Build the nodes of a number of GPUs of a pool."""
    counts = count_gpus_by_layout(layouts, gpus)
    return build_layout_fleet(fleet, [layout for layout, count in counts.items() for _ in range(count)], per_node)


def find_best_layout(model: WaitModel) -> dict[str, int] | None:
    """Find how to divide today's GPUs among layouts so that jobs wait least.

    Requests for different profiles do not wait for each other, so each profile is simulated by itself on every number
    of GPUs, and the numbers are found by dynamic programming. A profile of which a GPU holds only one shares its GPUs
    with the largest other profile that fits beside it.

    Returns
    -------
    dict of str to int, or None
        Layout → GPUs partitioned into it; None for one profile, or if a job never fits.
    """
    inputs, waits = model.inputs, model.waits
    gpu_model, fleet, total = inputs.gpu_model, inputs.fleet, int(inputs.nodes.total)
    used = np.unique(inputs.requests.profile[waits.is_evaluated]).tolist()
    if len(set(used) | set(np.flatnonzero(fleet.capacity.any(axis=(0, 1))).tolist())) < 2:
        return None
    names = [fleet.profiles[profile] for profile in used]
    counts = {name: 1 if name == FULL_GPU else gpu_model.profile(name).max_instances for name in names}
    hours = {name: wait_hours_by_gpus(model, name, counts[name], total) for name in names}
    mixed = find_mixed_layout(gpu_model, counts)
    gpus_of_both = np.zeros(total + 1, np.int64)
    if mixed:
        companion, single = sorted(mixed, key=names.index)
        hours[companion], gpus_of_both = mix_layouts(
            hours.pop(single), hours[companion], mixed[companion] / counts[companion]
        )
    shares, _ = share_gpus(list(hours.values()), total)
    gpus_by_layout: dict[str, int] = {}
    for name, gpus in zip(hours, shares, strict=bool(shares)):
        n_both = int(gpus_of_both[gpus]) if mixed and name == companion else 0
        gpus_by_layout |= {format_layout(mixed): n_both} if n_both else {}
        gpus_by_layout[format_layout({name: counts[name]})] = gpus - n_both
    return gpus_by_layout or None


def find_mixed_layout(gpu_model: GpuModel, counts: Mapping[str, int]) -> dict[str, int]:
    """Find a layout that holds the profile of which a GPU holds one, beside the largest other profile that fits.

    Parameters
    ----------
    gpu_model : GpuModel
        The GPU model.
    counts : mapping of str to int
        Instances on a GPU by profile, ascending by size.

    Returns
    -------
    dict of str to int
        Instances by profile; empty where no profile fits beside it.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> find_mixed_layout(load_gpu_model("H100-80GB-SXM5"), {"gpu": 1, "1g.10gb": 7, "2g.20gb": 3, "4g.40gb": 1})
    {'4g.40gb': 1, '2g.20gb': 1}
    """
    names = [name for name in counts if name != FULL_GPU]
    pairs = ([single, name] for single in names if counts[single] == 1 for name in reversed(names))
    layouts = (layout for pair in pairs for layout in list_pareto_counts(gpu_model, pair))
    return next((layout for layout in layouts if len(layout) > 1), {})


def mix_layouts(single_h: Floats, companion_h: Floats, share: float) -> tuple[Floats, Ints]:
    """Find the hours of waiting of two profiles that share GPUs, and how many GPUs hold both.

    Parameters
    ----------
    single_h : array of float, shape (total + 1,)
        Hours that jobs of the profile wait of which a GPU holds one, by GPUs. [h]
    companion_h : array of float, shape (total + 1,)
        The same for the other profile, of GPUs that hold nothing else. [h]
    share : float
        Instances of the other profile on a GPU that holds both, over those on a GPU of its own. [0-1]

    Returns
    -------
    hours : array of float, shape (total + 1,)
        Hours of both, by GPUs. [h]
    gpus_of_both : array of int, shape (total + 1,)
        GPUs of these that hold both.

    Examples
    --------
    >>> hours, gpus_of_both = mix_layouts(np.array([np.inf, 4, 0, 0]), np.array([np.inf, 6, 0, 0]), 0.5)
    >>> hours.tolist(), gpus_of_both.tolist()
    ([inf, inf, 6.0, 0.0], [0, 0, 2, 2])
    """
    gpus, both = np.indices((len(single_h), len(single_h)))
    equivalent = np.floor(gpus - both * (1 - share)).astype(np.int64).clip(0)
    hours = np.where(both <= gpus, single_h[both] + companion_h[equivalent], np.inf)
    gpus_of_both = hours.argmin(axis=1)
    return hours.min(axis=1), gpus_of_both


def wait_hours_by_gpus(model: WaitModel, name: str, instances: int, max_gpus: int) -> Floats:
    """Hours that jobs of one profile wait on each number of GPUs, shape (max_gpus + 1,) [h].

    Parameters
    ----------
    model : WaitModel
        The model to simulate.
    name : str
        Name of the profile.
    instances : int
        Instances of the profile on a GPU.
    max_gpus : int
        Largest number of GPUs.
    """
    inputs, waits = model.inputs, model.waits
    rows: Ints = np.flatnonzero(inputs.requests.profile == inputs.fleet.profiles.index(name))
    is_evaluated, layout = waits.is_evaluated[rows], format_layout({name: instances})
    hours = np.full(max_gpus + 1, np.inf)
    for gpus in range(1, max_gpus + 1):
        fleet = build_layout_fleet(inputs.fleet, [layout] * gpus, inputs.node_gpus)
        waited = simulate_waits(inputs, waits, fleet, rows, waits.arrival_s[rows])
        if np.isinf(waited[is_evaluated]).any():
            continue  # a job never starts
        hours[gpus] = waited[is_evaluated].sum() / 3600
        # Once jobs hardly wait, more GPUs of that profile are not simulated.
        if hours[gpus] < 0.01:
            hours[gpus:] = hours[gpus]
            break
    return hours


def share_gpus(costs: list[Floats], total: int) -> tuple[list[int], float]:
    """Divide GPUs among alternatives, such as MIG profiles, at least cost; among equal costs, with the fewest GPUs.

    Parameters
    ----------
    costs : list of array of float, shape (total + 1,)
        Cost of each alternative by its number of GPUs.
    total : int
        GPUs to divide.

    Returns
    -------
    gpus : list of int
        GPUs of each alternative; empty where no division is feasible.
    cost : float
        Its cost.

    Examples
    --------
    >>> share_gpus([np.array([9.0, 3, 0, 0]), np.array([9.0, 1, 1, 1])], 3)
    ([2, 1], 1.0)
    """
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for cost in costs:
        longer: dict[int, tuple[float, list[int]]] = {}
        for used, (value, shares) in best.items():
            for gpus in range(total - used + 1):
                if np.isfinite(cost[gpus]) and value + cost[gpus] < longer.get(used + gpus, (np.inf, []))[0]:
                    longer[used + gpus] = (value + float(cost[gpus]), [*shares, gpus])
        best = longer
    value, shares = min(best.values(), key=lambda choice: (round(choice[0], 2), sum(choice[1])), default=(np.inf, []))
    return shares, value
