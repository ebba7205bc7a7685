"""The planning problem: demand over time, fleet, prices and limits, with its checks.

Requests for several MIG profiles are matched to instances of several profiles. The matching is a small bipartite
flow. By Hall's theorem it exists if and only if, for each set S of requests, the instances that can serve any
request in S are at least as many as the requests in S:

    sum of instances over N(S)  >=  sum of requests over S,   for every set S, N(S) = profiles that can serve S.

Only sets that contain, with a profile, every profile that can serve it (*up-sets*) can be tight. That leaves six rows
for the six base profiles of a data-centre GPU instead of 36 flow variables.

References
----------
Hall, On representatives of subsets, Journal of the London Mathematical Society 10 (1935).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuplanner.core.errors import GeometryError, ScenarioError, examples
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.serialization import MAX_JSON_NUMBER
from gpuplanner.hardware.gpu_models import GpuModel, as_gpu_model
from gpuplanner.hardware.mig_layouts import format_layout, parse_layout, prove
from gpuplanner.hardware.repartitioning_cost import ChangeCost
from gpuplanner.planner.fleet_limits_and_prices import (
    MAX_PRICE,
    Limits,
    Quota,
    StatePrices,
    apply_quotas,
    change_cost_from_plain,
    find_limit_faults,
    from_plain,
    gpu_model_from_plain,
    is_amount,
    is_count,
    is_price,
    number_array,
    text_tuple,
    to_plain,
)

SERVICE_TIERS = ("guaranteed", "standard", "best_effort")
"""Service tiers, highest first. Unmet demand is assigned to the lowest tier first."""

MAX_GPUS_PER_POOL = 1_000_000
"""Largest GPU pool that is accepted [GPUs]: every GPU gets a number."""

_MIN_INTERVAL_H, _MAX_INTERVAL_H = 1 / 3600, 8784
"""Shortest and longest interval of a plan, a second and a leap year [h]: shorter ones have equal times, longer ones
overflow dates.
"""


def find_problem_faults(problem: PlanProblem) -> Iterator[str]:
    """Yield a message for each invalid value of a planning problem."""
    for field_name, minimum in (("gpus", 1), ("gpus_per_node", 1), ("whole_gpus_kept", 0)):
        if not is_count(getattr(problem, field_name), minimum, MAX_GPUS_PER_POOL):
            got = getattr(problem, field_name)
            yield f"{field_name} must be a whole number from {minimum} to {MAX_GPUS_PER_POOL}, not {got!r}"
    for field_name in ("on_price", "change_gpu_hours"):
        if not is_price(getattr(problem, field_name)):
            yield f"{field_name} must be a number from 0 to {MAX_PRICE:,.0f}, not {getattr(problem, field_name)!r}"
    yield from _find_time_faults(problem)
    for field_name in ("tenants", "profiles"):
        names = getattr(problem, field_name)
        if len(set(names)) < len(names):
            yield f"{field_name} must differ from each other: {examples(names)}"
    yield from _find_node_faults(problem)
    yield from _find_tenant_faults(problem)
    yield from _find_demand_faults(problem)
    yield from _find_limit_faults(problem)
    yield from find_limit_faults(problem.limits, problem.tenants)
    sizes = (problem.gpus, problem.limits.whole_nodes_kept, problem.gpus_per_node)
    if all(map(is_count, sizes, (1, 0, 1))):
        n_full_nodes = problem.gpus // problem.gpus_per_node
        racks = problem.limits.nodes_per_rack
        if problem.limits.gpus_on_per_rack is not None and problem.limits.whole_nodes_kept % max(racks, 1):
            yield f"whole_nodes_kept must be whole racks of {racks} nodes where racks have a power limit"
        if problem.limits.whole_nodes_kept > n_full_nodes:
            got = problem.limits.whole_nodes_kept
            yield f"whole_nodes_kept must be at most {n_full_nodes}, the full nodes there are, not {got}"
        elif problem.prices is not None and all(
            map(is_count, (problem.limits.gpus_on_per_rack, racks, problem.whole_gpus_kept), (0, 1, 0))
        ):
            yield from _find_power_faults(problem)


def _find_time_faults(problem: PlanProblem) -> Iterator[str]:
    """Yield faults of interval length and start time."""
    is_valid_length = is_amount(problem.interval_hours) and _MIN_INTERVAL_H <= problem.interval_hours <= _MAX_INTERVAL_H
    if not is_valid_length:
        yield f"interval_hours must be from a second to a year, not {problem.interval_hours!r}"
    if not isinstance(problem.slot_start, datetime) or problem.slot_start.utcoffset() is None:
        yield f"slot_start must be a datetime with time zone, not {problem.slot_start!r}"
    elif is_valid_length and problem.demand.ndim == 3:
        try:
            problem.slot_start.astimezone(UTC) + problem.n_slots * timedelta(hours=problem.interval_hours)
        except OverflowError:
            yield f"intervals must lie within the calendar, not {problem.n_slots} from {problem.slot_start} on"


def _find_node_faults(problem: PlanProblem) -> Iterator[str]:
    """Yield faults of the list of node names."""
    if problem.nodes is None or not (is_count(problem.gpus, 1) and is_count(problem.gpus_per_node, 1)):
        return
    n_nodes = -(-problem.gpus // problem.gpus_per_node)
    if len(problem.nodes) != n_nodes or len(set(problem.nodes)) != n_nodes:
        yield f"nodes must be {n_nodes} different names, not {examples(problem.nodes)}"


def _find_tenant_faults(problem: PlanProblem) -> Iterator[str]:
    """Yield faults of tiers and prices of unmet demand: a lower tier must not cost more than a higher one."""
    for name in ("tiers", "unmet_price"):
        if len(getattr(problem, name)) != len(problem.tenants):
            length = len(getattr(problem, name))
            yield f"{name} must have one entry for each of the {len(problem.tenants)} teams, not {length}"
            return
    unknown = sorted(set(problem.tiers) - set(SERVICE_TIERS))
    if unknown:
        yield f"tiers must be of {', '.join(SERVICE_TIERS)}; unknown: {examples(unknown)}"
    bad_prices = [price for price in problem.unmet_price if not is_price(price)]
    if bad_prices:
        yield f"unmet_price must be numbers from 0 to {MAX_PRICE:,.0f}, not {examples(bad_prices)}"
    if unknown or bad_prices:
        return
    rank_prices = list(zip(map(SERVICE_TIERS.index, problem.tiers), problem.unmet_price, strict=True))
    for rank, tier in enumerate(SERVICE_TIERS):
        lowest_price_above = min((price for tenant_rank, price in rank_prices if tenant_rank < rank), default=math.inf)
        highest_price = max((price for tenant_rank, price in rank_prices if tenant_rank == rank), default=0.0)
        if highest_price > lowest_price_above:
            prices = f"{highest_price} against {lowest_price_above}"
            yield f"unmet_price of tier {tier} must not be above that of a higher tier: {prices}"


def _find_demand_faults(problem: PlanProblem) -> Iterator[str]:
    """Yield faults of the demand array: shape, negative and infinite values."""
    expected = (len(problem.tenants), len(problem.profiles))
    if problem.demand.ndim != 3 or problem.demand.shape[:2] != expected or problem.demand.shape[2] == 0:
        yield (
            "demand must have the shape (teams, profiles, intervals), that is "
            f"({expected[0]}, {expected[1]}, at least 1), not {problem.demand.shape}"
        )
        return
    for fault, is_wrong in (
        ("not finite", ~(np.abs(problem.demand) <= MAX_JSON_NUMBER)),
        ("below 0", problem.demand < 0),
    ):
        positions = np.argwhere(is_wrong)
        if len(positions):
            i, j, t = positions[0]
            first = f"{problem.tenants[i]}, {problem.profiles[j]}, interval {t}"
            yield f"demand is {fault} {len(positions)} times, first for {first}"


def _find_limit_faults(problem: PlanProblem) -> Iterator[str]:
    """Yield faults of available GPUs, initial layouts, idle GPUs and state prices."""
    if problem.available is not None:
        if problem.demand.ndim == 3 and len(problem.available) != problem.n_slots:
            yield f"available must have one entry for each of {problem.n_slots} intervals, not {len(problem.available)}"
        bad_counts = [gpus for gpus in problem.available if not (is_count(gpus) and gpus <= problem.gpus)]
        if bad_counts:
            yield f"available must be whole numbers from 0 to {problem.gpus}, not {examples(bad_counts)}"
    if problem.initial is not None:
        bad_counts = [gpus for gpus in problem.initial.values() if not is_count(gpus)]
        if bad_counts:
            yield f"initial must count GPUs, not {examples(bad_counts)}"
        elif "off" in problem.initial or sum(problem.initial.values()) > problem.gpus:
            yield f"initial must name at most {problem.gpus} GPUs that are on, not {dict(problem.initial)}"
    if problem.parked is not None:
        n_on_or_idle = sum((problem.initial or {}).values()) + sum(problem.parked.values())
        if problem.prices is None or problem.initial is None:
            yield "parked needs prices of states, and GPUs that are on before the first interval (initial)"
        elif (
            "off" in problem.parked
            or any(not is_count(n) for n in problem.parked.values())
            or n_on_or_idle > problem.gpus
        ):
            yield f"parked and initial must name at most {problem.gpus} GPUs together, not {dict(problem.parked)}"
    if problem.prices is not None:
        if problem.prices.parked_price > problem.on_price:
            got = problem.prices.parked_price
            yield f"an idle GPU must cost no more than one that is on, {problem.on_price}, not {got}"
        unknown_profiles = sorted(
            set(problem.prices.remaining_h) - {"gpu", *(profile.name for profile in problem.gpu_model.profiles)}
        )
        if unknown_profiles:
            yield f"remaining_h must be of profiles of {problem.gpu_model.name}; unknown: {examples(unknown_profiles)}"


def _find_power_faults(problem: PlanProblem) -> Iterator[str]:
    """Yield a fault if the racks lack power for the GPUs that have a layout before the first interval."""
    initial_counts = [
        (text, n) for counts in (problem.initial, problem.parked) for text, n in (counts or {}).items() if is_count(n)
    ]
    n_gpus, n_partitioned = sum(n for _, n in initial_counts), sum(n for text, n in initial_counts if text != FULL_GPU)
    if n_gpus > problem.max_gpus_with_layout or n_partitioned > problem.max_partitioned_with_layout:
        yield (
            f"initial and parked must name at most {problem.max_gpus_with_layout} GPUs together, "
            f"{problem.max_partitioned_with_layout} of them partitioned, as many as racks have power for "
            "(gpus_on_per_rack): leave out parked, these GPUs are then full"
        )


DEMAND_ROUNDING_INSTANCES = 1e-9
"""Demand that exceeds a whole number of instances by at most this needs no further instance [instances]."""

Floats = NDArray[np.float64]
"""Array of floats."""
Counts = NDArray[np.int64]
"""Array of whole numbers, mostly GPUs by interval and column (layout)."""

DEFAULT_UNMET_DEMAND_PRICE = 10.0
"""Default price of one GPU-hour of unmet demand [GPU h]."""


@dataclass(frozen=True, eq=False, init=False, repr=False)
class PlanProblem:
    """A layout planning problem: how many GPUs to power on, with which MIG layout, in each interval of a horizon.

    The demand for a profile is the mean number of its instances in use during an interval, summed over teams. An
    instance serves one profile for a whole interval: three instances meet a demand of 2.3 in full, two leave 0.3 unmet.
    An instance may serve a smaller profile than its own: one with no more compute slices, memory slices, SMs and media
    engines. A full GPU (``"gpu"``, MIG disabled) serves no instance requests, and no instance serves it.

    Parameters
    ----------
    gpu_model : GpuModel or str
        GPU model of every GPU.
    gpus, gpus_per_node : int
        Size of the fleet and of a node; the last node may be smaller. [GPUs]
    slot_start : datetime
        Start of the first interval, with time zone.
    interval_hours : float
        Length of an interval. [h]
    tenants, profiles : sequence of str
        First and second axis of the demand. Profiles are those of the GPU model, or ``"gpu"``.
    demand : array of float, shape (n_tenants, n_profiles, n_slots)
        Mean concurrent instances (full GPUs for ``"gpu"``).
    tiers : sequence of str, optional
        Tier of each tenant, one of :data:`SERVICE_TIERS`; ``"standard"`` if None.
    on_price : float
        Price of one GPU-hour of a powered-on GPU. Other prices are relative to it.
    unmet_price : float or sequence of float
        Price of one GPU-hour of unmet demand, for all tenants or each; a lower tier must not have a higher price. At
        10, an instance that is needed for less than a tenth of an interval does not pay for a GPU of its own. [GPU h]
    change_gpu_hours : float, optional
        Price of repartitioning one GPU: GPU time lost while it drains and changes its layout. Paid whenever a GPU takes
        a MIG layout, also after it was off; keeping a full GPU costs nothing. None: computed from `change`. [GPU h]
    change : ChangeCost, optional
        How a GPU is repartitioned, how long it takes and what it costs; None: by ``mig-manager``, with the times of the
        catalogue. Holds `change_gpu_hours` where that is given.
    whole_gpus_kept : int
        GPUs in service that always stay full (never MIG-partitioned), on or off.
    available : sequence of int, optional, shape (n_slots,)
        GPUs in service in each interval; all if None.
    initial : mapping of str to int, optional
        Powered-on GPUs by layout text before the first interval. None: changes into the first interval are free.
    nodes : sequence of str, optional
        Node names for the actuator; ``"node0"`` and so on if None.
    limits : Limits, optional
        Further limits: pinned layouts, racks, changes a day, quotas.
    prices : StatePrices, optional
        Prices of the states of a GPU and of the transitions between them; a GPU that is not needed stays powered on and
        idle, with its layout. None: such a GPU is released or powered down, returns without a layout, and takes one for
        `change_gpu_hours`.
    parked : mapping of str to int, optional
        GPUs that are idle and powered on before the first interval, by layout text; GPUs neither in `initial` nor here
        are full.

    Raises
    ------
    ScenarioError
        If a value is invalid; the message names every fault.
    GeometryError
        If the GPU model, a profile or an initial layout does not exist.

    Examples
    --------
    >>> problem = PlanProblem(
    ...     "A100-40GB", gpus=4, gpus_per_node=4, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     interval_hours=1, tenants=["ads"], profiles=["3g.20gb", "gpu"], demand=np.full((1, 2, 24), 0.5),
    ... )
    >>> problem.n_slots, problem.required_instances[:, 0].tolist(), problem.unmet_price
    (24, [1, 1], (10.0,))
    """

    gpu_model: GpuModel
    gpus: int
    gpus_per_node: int
    slot_start: datetime
    interval_hours: float
    tenants: tuple[str, ...]
    profiles: tuple[str, ...]
    demand: Floats
    tiers: tuple[str, ...]
    on_price: float
    unmet_price: tuple[float, ...]
    change_gpu_hours: float
    change: ChangeCost
    whole_gpus_kept: int
    available: tuple[int, ...] | None
    initial: Mapping[str, int] | None
    nodes: tuple[str, ...] | None
    limits: Limits
    prices: StatePrices | None
    parked: Mapping[str, int] | None

    def __init__(
        self,
        gpu_model: GpuModel | str,
        gpus: int,
        gpus_per_node: int,
        slot_start: datetime,
        interval_hours: float,
        tenants: Sequence[str],
        profiles: Sequence[str],
        demand: ArrayLike,
        *,
        tiers: Sequence[str] | None = None,
        on_price: float = 1.0,
        unmet_price: float | Sequence[float] = DEFAULT_UNMET_DEMAND_PRICE,
        change_gpu_hours: float | None = None,
        change: ChangeCost | None = None,
        whole_gpus_kept: int = 0,
        available: Sequence[int] | None = None,
        initial: Mapping[str, int] | None = None,
        nodes: Sequence[str] | None = None,
        limits: Limits | None = None,
        prices: StatePrices | None = None,
        parked: Mapping[str, int] | None = None,
    ) -> None:
        field_values = {name: value for name, value in locals().items() if name != "self"}
        model = as_gpu_model(gpu_model)
        unmet_prices = [unmet_price] * len(tenants) if np.ndim(unmet_price) == 0 else unmet_price
        change_cost = ChangeCost.from_catalogue(model) if change is None else change.require_model(model)
        default_gpu_hours = change_cost.plan_gpu_hours(gpus_per_node if isinstance(gpus_per_node, int) else 1)
        given_limits = limits or Limits()
        stated_gpu_hours = default_gpu_hours if change_gpu_hours is None else _to_price(change_gpu_hours)
        field_values |= {
            "gpu_model": model,
            "tenants": tuple(tenants),
            "profiles": tuple(profile if profile == FULL_GPU else model.profile(profile).name for profile in profiles),
            "demand": _as_demand_array(demand),
            "tiers": ("standard",) * len(tenants) if tiers is None else tuple(tiers),
            "on_price": _to_price(on_price),
            "unmet_price": tuple(map(_to_price, cast("Sequence[float]", unmet_prices))),
            "change_gpu_hours": stated_gpu_hours,
            "change": replace(change_cost, gpu_hours=stated_gpu_hours)
            if stated_gpu_hours != default_gpu_hours and is_amount(stated_gpu_hours)
            else change_cost,
            "available": None if available is None else tuple(map(_unwrap_numpy_number, available)),
            "initial": None if initial is None else _canonical_layout_counts(model, initial),
            "nodes": None if nodes is None else tuple(nodes),
            "limits": replace(
                given_limits, pinned=_canonical_layout_counts(model, given_limits.pinned, label="pinned")
            ),
            "parked": None if parked is None else _canonical_layout_counts(model, parked, label="parked"),
        }
        for name, value in field_values.items():
            object.__setattr__(self, name, _unwrap_numpy_number(value))
        faults = list(find_problem_faults(self))
        if faults:
            expected = "valid demand, fleet, prices and limits"
            raise ScenarioError("plan problem", expected, "; ".join(faults), "Fix these values.")

    def __repr__(self) -> str:
        return (
            f"<PlanProblem: {self.gpus} x {self.gpu_model.name}, {self.n_slots} intervals of {self.interval_hours:g} h "
            f"from {self.slot_start:%Y-%m-%d %H:%M}, {len(self.tenants)} teams, {len(self.profiles)} profiles>"
        )

    @property
    def n_slots(self) -> int:
        """Number of intervals of the horizon."""
        return int(self.demand.shape[2])

    @property
    def slot_times(self) -> list[datetime]:
        """Start of every interval and, last, the end of the horizon, in UTC."""
        start = self.slot_start.astimezone(UTC)
        return [start + t * timedelta(hours=self.interval_hours) for t in range(self.n_slots + 1)]

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of the nodes: those given, or numbered ones."""
        if self.nodes is not None:
            return self.nodes
        n_nodes = -(-self.gpus // self.gpus_per_node)
        width = len(str(n_nodes - 1))
        return tuple(f"node{number:0{width}d}" for number in range(n_nodes))

    def day_of_slot(self, slot: int) -> int:
        """Return the day of an interval: whole 24-hour periods from the start of the first interval to its own."""
        return int(slot * self.interval_hours / 24 + DEMAND_ROUNDING_INSTANCES)

    @property
    def gpus_in_service(self) -> Counts:
        """GPUs in service in each interval, shape (n_slots,)."""
        return np.array([self.gpus] * self.n_slots if self.available is None else self.available)

    @property
    def max_gpus_on(self) -> Counts:
        """Most GPUs that may be powered on in each interval, shape (n_slots,): in service, and within rack power."""
        return np.minimum(self.gpus_in_service, self._powered_gpus_beyond(0))

    @property
    def max_partitioned_gpus(self) -> Counts:
        """Most GPUs that may be MIG-partitioned in each interval, shape (n_slots,); below 0 if limits contradict."""
        n_powered = self._powered_gpus_beyond(self.limits.whole_nodes_kept // self.limits.nodes_per_rack)
        return np.minimum(self.gpus_in_service - self.full_gpus_kept, n_powered)

    @property
    def max_gpus_with_layout(self) -> int:
        """Most GPUs that may be powered on, busy or idle, at once: an idle GPU needs rack power to take work again."""
        return self._powered_gpus_beyond(0)

    @property
    def max_partitioned_with_layout(self) -> int:
        """Most GPUs that may have a MIG layout at once, busy or idle."""
        n_powered = self._powered_gpus_beyond(self.limits.whole_nodes_kept // self.limits.nodes_per_rack)
        return min(self.gpus - self.full_gpus_kept, n_powered)

    def _powered_gpus_beyond(self, n_racks: int) -> int:
        """Count the GPUs that may be powered on at once in all racks but the first `n_racks`, by rack power."""
        max_per_rack = self.gpus if self.limits.gpus_on_per_rack is None else self.limits.gpus_on_per_rack
        n_full_racks, n_in_last_rack = divmod(self.gpus, self.gpus_per_rack)
        return (n_full_racks - n_racks) * min(max_per_rack, self.gpus_per_rack) + min(max_per_rack, n_in_last_rack)

    @property
    def gpus_per_rack(self) -> int:
        """GPUs in a rack; the last rack may have fewer."""
        return self.limits.nodes_per_rack * self.gpus_per_node

    @property
    def full_gpus_kept(self) -> int:
        """GPUs in service that always stay full, from the limits on GPUs and on nodes."""
        return max(self.whole_gpus_kept, self.limits.whole_nodes_kept * self.gpus_per_node)

    @functools.cached_property
    def admitted_demand(self) -> Floats:
        """Demand within quotas, which a plan is to serve, shape (n_tenants, n_profiles, n_slots) [instances]."""
        if not self.limits.quotas:
            return self.demand
        ranks = [SERVICE_TIERS.index(tier) for tier in self.tiers]
        return _as_read_only_floats(apply_quotas(self.demand, self.shares, self.tenants, ranks, self.limits.quotas))

    @functools.cached_property
    def pooled_demand(self) -> Floats:
        """Demand within quotas summed over tenants, shape (n_profiles, n_slots) [instances]."""
        return _as_read_only_floats(self.admitted_demand.sum(axis=0))

    @functools.cached_property
    def required_instances(self) -> Counts:
        """Whole instances that meet the pooled demand in full, shape (n_profiles, n_slots)."""
        required = np.ceil(self.pooled_demand - DEMAND_ROUNDING_INSTANCES).clip(0).astype(np.int64)
        required.setflags(write=False)
        return required

    @functools.cached_property
    def shares(self) -> Floats:
        """Fraction of a GPU that one instance of each profile counts for, shape (n_profiles,)."""
        return _as_read_only_floats([self.gpu_model.gpu_fraction(profile) for profile in self.profiles])

    @property
    def idle_gpus_text(self) -> str:
        """Sentence part: state and price of GPUs that are not needed."""
        if self.prices is None:
            return f"released; partitioning one again costs {self.change_gpu_hours:.4g} GPU-hours"
        profile_names = " or ".join("full GPU" if name == FULL_GPU else name for name in self.prices.remaining_h)
        drain_text = f"the remaining run time of a job on {profile_names}, else " if profile_names else ""
        basis = f" ({self.prices.basis})" if self.prices.basis else ""
        return (
            f"idle and powered on, each hour as {self.prices.parked_price:.3g} GPU-hours in use{basis}; draining a GPU "
            f"costs {drain_text}{self.prices.drain:.3g} GPU-hours; partitioning costs {self.prices.dress:.3g} GPU-hours"
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values for JSON."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PlanProblem:
        """Read the values that :meth:`to_dict` wrote; keys with a default may be missing, a GPU model may be a name.

        Raises
        ------
        ScenarioError
            If a value is missing, unknown, or of the wrong type.
        """
        return from_plain(
            cls,
            values,
            "plan problem",
            tenants=text_tuple,
            profiles=text_tuple,
            tiers=text_tuple,
            nodes=text_tuple,
            demand=lambda demand: number_array(demand, int, float),
            gpu_model=gpu_model_from_plain,
            change=lambda change: change_cost_from_plain(gpu_model_from_plain(values["gpu_model"]), change),
            slot_start=datetime.fromisoformat,
            limits=lambda limits: from_plain(Limits, limits, "limits", quotas=_read_quotas),
            prices=_read_state_prices,
        )


def _read_state_prices(values: Mapping[str, Any]) -> StatePrices:
    """Read state prices, also from files in which ``parked_price`` was called ``parked``."""
    if isinstance(values, Mapping) and "parked" in values and "parked_price" not in values:
        values = {"parked_price" if name == "parked" else name: value for name, value in values.items()}
    return from_plain(StatePrices, values, "prices of states")


def _read_quotas(values: Mapping[str, Any]) -> dict[str, Quota]:
    """Read the quota of each tenant from plain values."""
    return {tenant: from_plain(Quota, quota, f"quota of {tenant}") for tenant, quota in values.items()}


def _as_read_only_floats(values: ArrayLike) -> Floats:
    """Copy values to an array of floats that cannot be written."""
    array = np.array(values, dtype=np.float64)
    array.setflags(write=False)
    return array


def _as_demand_array(demand: ArrayLike) -> Floats:
    """Convert the demand to a read-only array of floats, or raise a ScenarioError."""
    try:
        return _as_read_only_floats(demand)
    except (TypeError, ValueError) as error:
        expected = "numbers in three dimensions"
        raise ScenarioError("plan problem: demand", expected, str(error), "Fix the demand.") from error


def _unwrap_numpy_number(value: Any) -> Any:  # noqa: ANN401 - anything goes in, checks come later
    """Convert a numpy number to a Python number, for JSON; return anything else unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def _to_price(value: Any) -> Any:  # noqa: ANN401 - anything goes in, checks come later
    """Convert a price to a float, so that whole numbers give the same plan, to the byte; leave what is no price."""
    number = _unwrap_numpy_number(value)
    return float(number) if is_price(number) else number


def _canonical_layout_counts(
    gpu_model: GpuModel, layout_counts: Mapping[str, int], label: str = "initial"
) -> dict[str, int]:
    """Count GPUs by canonical layout text, sorted; prove that each layout exists on the GPU model."""
    counts: dict[str, int] = {}
    for text, gpus in layout_counts.items():
        instances = {
            profile if profile == FULL_GPU else gpu_model.profile(profile).name: count
            for profile, count in parse_layout(text).items()
        }
        proof = prove(gpu_model, instances)
        if not proof:
            expected = f"a layout of {gpu_model.name}"
            raise GeometryError(f"{label} layout {text!r}", expected, proof.reason, "Fix the layout.")
        layout = format_layout(instances)
        counts[layout] = counts.get(layout, 0) + _unwrap_numpy_number(gpus)
    return dict(sorted(counts.items()))


def can_serve(gpu_model: GpuModel, instance: str, request: str) -> bool:
    """Whether an instance of one profile can serve a request for another.

    The rule is :meth:`gpuplanner.hardware.gpu_models.MigProfile.serves`. A full GPU and a MIG instance never replace
    each other: they are different resources to every scheduler.

    Parameters
    ----------
    gpu_model : GpuModel
        GPU model that both profiles belong to.
    instance, request : str
        Profile of the instance, and profile that is requested; or ``"gpu"``.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> gpu_model = load_gpu_model("H100-80GB-SXM5")
    >>> can_serve(gpu_model, "2g.20gb", "1g.20gb"), can_serve(gpu_model, "1g.20gb", "2g.20gb")
    (True, False)
    >>> can_serve(gpu_model, "2g.20gb", "1g.10gb+me"), can_serve(gpu_model, "gpu", "1g.10gb")
    (False, False)
    """
    if instance == request or FULL_GPU in (instance, request):
        return instance == request
    return gpu_model.profile(instance).serves(gpu_model.profile(request))


@functools.lru_cache(maxsize=256)
def find_up_sets(
    gpu_model: GpuModel, requests: Sequence[str], instances: Sequence[str]
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """List the sets of requests, with the instances that can serve them, that decide every matching (Hall's condition).

    A union of instance sets is left out if its condition follows from those of two of its parts.

    Parameters
    ----------
    gpu_model : GpuModel
        GPU model of all profiles.
    requests, instances : sequence of str
        Requested profiles, and profiles of instances.

    Returns
    -------
    tuple of (tuple of int, tuple of int)
        Positions of the requests of each set, and of the instances that can serve one of them.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> names = ("2g.10gb", "1g.5gb", "gpu")
    >>> find_up_sets(load_gpu_model("A100-40GB"), names, names)
    (((0,), (0,)), ((0, 1), (0, 1)), ((2,), (2,)))
    """
    server_sets = [
        frozenset(i for i, instance in enumerate(instances) if can_serve(gpu_model, instance, request))
        for request in requests
    ]
    unions: set[frozenset[int]] = set()
    for servers in server_sets:
        unions |= {servers} | {servers | union for union in unions}
    requests_by_union = {union: {r for r, servers in enumerate(server_sets) if servers <= union} for union in unions}

    def is_implied(union: frozenset[int]) -> bool:
        parts = ((part, union - part) for part in unions if part and part < union)
        return any(
            remainder in requests_by_union
            and requests_by_union[part] | requests_by_union[remainder] == requests_by_union[union]
            for part, remainder in parts
        )

    irreducible = [union for union in unions if not is_implied(union)]
    return tuple(sorted((tuple(sorted(requests_by_union[union])), tuple(sorted(union))) for union in irreducible))


def incidence_rows(positions: Sequence[Sequence[int]], n_columns: int) -> NDArray[np.int64]:
    """Convert sets of positions to rows of zeros and ones, shape (n_sets, n_columns).

    Examples
    --------
    >>> incidence_rows([(0,), (0, 2)], 3).tolist()
    [[1, 0, 0], [1, 0, 1]]
    """
    rows = np.zeros((len(positions), n_columns), dtype=np.int64)
    for row, members in zip(rows, positions, strict=True):
        row[list(members)] = 1
    return rows
