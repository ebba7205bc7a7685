"""A planning problem: demand over time, fleet, prices, limits, and its checks.

Requests of several profiles and instances of several profiles are matched by a small flow. By Hall's theorem
the flow exists if and only if, for each set of requests, the instances that can serve any of them are at
least as many. Only sets of instances that contain, with a profile, every profile that can serve it (the
*up-sets*) can be tight, which leaves six sets for the six base profiles of a data-centre board instead of 36
flow variables.
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
from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.core.serialization import LARGEST
from gpuplanner.hardware.gpu_models import GpuModel, as_board
from gpuplanner.hardware.mig_layouts import format_layout, parse_layout, prove
from gpuplanner.hardware.repartitioning_cost import ChangeCost
from gpuplanner.planner.fleet_limits import (
    Limits,
    Quota,
    StatePrices,
    admitted_demand,
    board_from_plain,
    change_from_plain,
    from_plain,
    grid,
    is_amount,
    is_count,
    limit_faults,
    texts,
    to_plain,
)

TIERS = ("guaranteed", "standard", "best_effort")
"""Service tiers, highest first. What cannot be served is taken from the lowest tier first."""

MOST_GPUS = 1_000_000
"""More GPUs of one pool are refused: each is numbered."""

# A second and a year: shorter slots fall together, longer ones leave the calendar.
_SHORTEST_H, _LONGEST_H = 1 / 3600, 8784


def problem_faults(p: PlanProblem) -> Iterator[str]:
    """Yield, in words, each value of a problem that makes no sense."""
    for name, low in (("gpus", 1), ("gpus_per_node", 1), ("whole_gpus_kept", 0)):
        if not is_count(getattr(p, name), low, MOST_GPUS):
            yield f"{name} must be a whole number from {low} to {MOST_GPUS}, not {getattr(p, name)!r}"
    for name in ("on_price", "change_gpu_hours"):
        if not is_amount(getattr(p, name)):
            yield f"{name} must be a number of at least 0, not {getattr(p, name)!r}"
    yield from _time_faults(p)
    for name in ("tenants", "profiles"):
        names = getattr(p, name)
        if len(set(names)) < len(names):
            yield f"{name} must differ from each other: {examples(names)}"
    yield from _node_faults(p)
    yield from _tenant_faults(p)
    yield from _demand_faults(p)
    yield from _limit_faults(p)
    yield from limit_faults(p.limits, p.tenants)
    if is_count(p.gpus, 1) and is_count(p.limits.whole_nodes_kept, 0) and is_count(p.gpus_per_node, 1):
        most = p.gpus // p.gpus_per_node
        racks = p.limits.nodes_per_rack
        if p.limits.gpus_on_per_rack is not None and p.limits.whole_nodes_kept % max(racks, 1):
            yield f"whole_nodes_kept must be whole racks of {racks} nodes where racks have a power limit"
        if p.limits.whole_nodes_kept > most:
            yield f"whole_nodes_kept must be at most {most}, the full nodes there are, not {p.limits.whole_nodes_kept}"
        elif p.prices is not None and all(
            map(is_count, (p.limits.gpus_on_per_rack, racks, p.whole_gpus_kept), (0, 1, 0))
        ):
            yield from _power_faults(p)


def _time_faults(p: PlanProblem) -> Iterator[str]:
    sound = is_amount(p.interval_hours) and _SHORTEST_H <= p.interval_hours <= _LONGEST_H
    if not sound:
        yield f"interval_hours must be from a second to a year, not {p.interval_hours!r}"
    if not isinstance(p.slot_start, datetime) or p.slot_start.utcoffset() is None:
        yield f"slot_start must be a datetime with time zone, not {p.slot_start!r}"
    elif sound and p.demand.ndim == 3:
        try:
            p.slot_start.astimezone(UTC) + p.n_slots * timedelta(hours=p.interval_hours)
        except OverflowError:
            yield f"intervals must lie within the calendar, not {p.n_slots} from {p.slot_start} on"


def _node_faults(p: PlanProblem) -> Iterator[str]:
    if p.nodes is None or not (is_count(p.gpus, 1) and is_count(p.gpus_per_node, 1)):
        return
    needed = -(-p.gpus // p.gpus_per_node)
    if len(p.nodes) != needed or len(set(p.nodes)) != needed:
        yield f"nodes must be {needed} different names, not {examples(p.nodes)}"


def _tenant_faults(p: PlanProblem) -> Iterator[str]:
    for name in ("tiers", "unmet_price"):
        if len(getattr(p, name)) != len(p.tenants):
            got = len(getattr(p, name))
            yield f"{name} must have one entry for each of the {len(p.tenants)} teams, not {got}"
            return
    unknown = sorted(set(p.tiers) - set(TIERS))
    if unknown:
        yield f"tiers must be of {', '.join(TIERS)}; unknown: {examples(unknown)}"
    bad = [price for price in p.unmet_price if not is_amount(price)]
    if bad:
        yield f"unmet_price must be numbers of at least 0, not {examples(bad)}"
    if unknown or bad:
        return
    ranked = list(zip(map(TIERS.index, p.tiers), p.unmet_price, strict=True))
    for rank, tier in enumerate(TIERS):
        above = min((price for one, price in ranked if one < rank), default=math.inf)
        below = max((price for one, price in ranked if one == rank), default=0.0)
        if below > above:
            prices = f"{below} against {above}"
            yield f"unmet_price of tier {tier} must not be above that of a higher tier: {prices}"


def _demand_faults(p: PlanProblem) -> Iterator[str]:
    expected = (len(p.tenants), len(p.profiles))
    if p.demand.ndim != 3 or p.demand.shape[:2] != expected or p.demand.shape[2] == 0:
        yield (
            "demand must have the shape (teams, profiles, intervals), that is "
            f"({expected[0]}, {expected[1]}, at least 1), not {p.demand.shape}"
        )
        return
    for what, wrong in (("not finite", ~(np.abs(p.demand) <= LARGEST)), ("below 0", p.demand < 0)):
        places = np.argwhere(wrong)
        if len(places):
            i, j, t = places[0]
            yield f"demand is {what} {len(places)} times, first for {p.tenants[i]}, {p.profiles[j]}, interval {t}"


def _limit_faults(p: PlanProblem) -> Iterator[str]:
    if p.available is not None:
        if p.demand.ndim == 3 and len(p.available) != p.n_slots:
            yield f"available must have one entry for each of {p.n_slots} intervals, not {len(p.available)}"
        bad = [gpus for gpus in p.available if not (is_count(gpus) and gpus <= p.gpus)]
        if bad:
            yield f"available must be whole numbers from 0 to {p.gpus}, not {examples(bad)}"
    if p.initial is not None:
        bad = [gpus for gpus in p.initial.values() if not is_count(gpus)]
        if bad:
            yield f"initial must count GPUs, not {examples(bad)}"
        elif "off" in p.initial or sum(p.initial.values()) > p.gpus:
            yield f"initial must name at most {p.gpus} GPUs that are on, not {dict(p.initial)}"
    if p.parked is not None:
        held = sum((p.initial or {}).values()) + sum(p.parked.values())
        if p.prices is None or p.initial is None:
            yield "parked needs prices of states, and GPUs that are on before the first interval (initial)"
        elif "off" in p.parked or any(not is_count(n) for n in p.parked.values()) or held > p.gpus:
            yield f"parked and initial must name at most {p.gpus} GPUs together, not {dict(p.parked)}"
    if p.prices is not None:
        if p.prices.parked_price > p.on_price:
            yield f"an idle GPU must cost no more than one that is on, {p.on_price}, not {p.prices.parked_price}"
        strangers = sorted(set(p.prices.remaining_h) - {"gpu", *(one.name for one in p.gpu_model.profiles)})
        if strangers:
            yield f"remaining_h must be of profiles of {p.gpu_model.name}; unknown: {examples(strangers)}"


def _power_faults(p: PlanProblem) -> Iterator[str]:
    """Racks must have power for GPUs that keep a layout at first."""
    first = [(text, n) for kept in (p.initial, p.parked) for text, n in (kept or {}).items() if is_count(n)]
    held, cut = sum(n for _, n in first), sum(n for text, n in first if text != WHOLE_GPU)
    if held > p.gpus_held or cut > p.gpus_held_cut:
        yield (
            f"initial and parked must name at most {p.gpus_held} GPUs together, {p.gpus_held_cut} of them "
            "partitioned, as many as racks have power for (gpus_on_per_rack): leave out parked, these GPUs are then "
            "full"
        )


ROUNDING = 1e-9
"""Demand above a whole number of instances by no more than this needs no further instance."""

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

UNMET_PRICE = 10.0
"""Price of one GPU-hour of demand that is not covered. [GPU h]"""


@dataclass(frozen=True, eq=False, init=False, repr=False)
class PlanProblem:
    """How many GPUs to have on, cut how, in each slot of a horizon.

    The demand for a profile is the mean number of its instances wanted during a slot, summed over tenants. An
    instance serves one profile for a whole slot, so that a demand of 2.3 is met in full by three instances
    and left short by 0.3 with two. It may serve a smaller profile than its own: one with no more compute
    slices, memory slices, SMs and media engines. A GPU that is not cut (``"gpu"``) serves no slices, and no
    slice serves it.

    Parameters
    ----------
    gpu_model : GpuModel or str
        The board of every GPU.
    gpus, gpus_per_node : int
        Size of the fleet and of a node; the last node may be smaller.
    slot_start : datetime
        Start of the first slot, with time zone.
    interval_hours : float
        Length of a slot [h].
    tenants, profiles : sequence of str
        First and second axis of the demand. Profiles are those of the board, or ``"gpu"``.
    demand : array of float, shape (n_tenants, n_profiles, n_slots)
        Mean concurrent instances (GPUs for ``"gpu"``).
    tiers : sequence of str, optional
        Tier of each tenant, one of ``"guaranteed"``, ``"standard"``, ``"best_effort"``; ``"standard"`` if None.
    on_price : float
        Cost of one GPU-hour of a GPU that is on. Other costs are measured against it.
    unmet_price : float or sequence of float
        Cost of one GPU-hour of unmet demand, for all tenants or each; never more for a lower tier than for a
        higher one. At 10, an instance wanted for less than a tenth of a slot is not worth a GPU of its own.
    change_gpu_hours : float, optional
        Cost of cutting one GPU [GPU h]: what is lost while it drains and is cut anew. Paid whenever a GPU takes up
        a layout, also when it was off before; leaving a GPU whole costs nothing. None: as `change` works it out.
    change : ChangeCost, optional
        How GPUs are cut anew, how long that takes and what it costs; None: by the operator, as the catalogue has it
        for the board. It holds `change_gpu_hours` where that is stated.
    whole_gpus_kept : int
        GPUs in service that are never cut, on or off.
    available : sequence of int, optional, shape (n_slots,)
        GPUs in service in each slot; all if None.
    initial : mapping of str to int, optional
        GPUs on in the slot before the first, by layout text. If None, the first slot's cuts are free.
    nodes : sequence of str, optional
        Names of the nodes, for whoever applies the plan; ``"node0"`` and so on if None.
    limits : Limits, optional
        Further limits: what must stay, racks, switches a day, quotas.
    prices : StatePrices, optional
        A GPU that is not needed is parked: it keeps its layout, and these are the prices of its states and of the
        ways between them. None: it is released, that is handed back or powered down; it comes back without a layout,
        and taking one up costs `change_gpu_hours`. That is what plans from before 2026-11-22 cost.
    parked : mapping of str to int, optional
        GPUs parked in the slot before the first, by layout text; those neither on nor named here are not cut.

    Raises
    ------
    ScenarioError
        Naming every fault.
    GeometryError
        If the board, a profile or an initial layout does not exist.

    Examples
    --------
    >>> problem = PlanProblem(
    ...     "A100-40GB", gpus=4, gpus_per_node=4, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     interval_hours=1, tenants=["ads"], profiles=["3g.20gb", "gpu"], demand=np.full((1, 2, 24), 0.5),
    ... )
    >>> problem.n_slots, problem.required[:, 0].tolist(), problem.unmet_price
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
        unmet_price: float | Sequence[float] = UNMET_PRICE,
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
        given = {name: value for name, value in locals().items() if name != "self"}
        model = as_board(gpu_model)
        each = [unmet_price] * len(tenants) if np.ndim(unmet_price) == 0 else unmet_price
        cost = ChangeCost.of(model) if change is None else change.on(model)
        per_change = cost.plan_gpu_hours(gpus_per_node if isinstance(gpus_per_node, int) else 1)
        stated_limits = limits or Limits()
        stated = per_change if change_gpu_hours is None else _plain(change_gpu_hours)
        given |= {
            "gpu_model": model,
            "tenants": tuple(tenants),
            "profiles": tuple(p if p == WHOLE_GPU else model.profile(p).name for p in profiles),
            "demand": _demand(demand),
            "tiers": ("standard",) * len(tenants) if tiers is None else tuple(tiers),
            "unmet_price": tuple(map(_plain, cast("Sequence[float]", each))),
            "change_gpu_hours": stated,
            "change": replace(cost, gpu_hours=stated) if stated != per_change and is_amount(stated) else cost,
            "available": None if available is None else tuple(map(_plain, available)),
            "initial": None if initial is None else _canonical(model, initial),
            "nodes": None if nodes is None else tuple(nodes),
            "limits": replace(stated_limits, pinned=_canonical(model, stated_limits.pinned, what="pinned")),
            "parked": None if parked is None else _canonical(model, parked, what="parked"),
        }
        for name, value in given.items():
            object.__setattr__(self, name, _plain(value))
        faults = list(problem_faults(self))
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
        """Number of slots."""
        return int(self.demand.shape[2])

    @property
    def slot_times(self) -> list[datetime]:
        """Start of every slot and, last, the end of the horizon, in UTC."""
        start = self.slot_start.astimezone(UTC)
        return [start + t * timedelta(hours=self.interval_hours) for t in range(self.n_slots + 1)]

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of the nodes; numbered ones where the problem names none."""
        if self.nodes is not None:
            return self.nodes
        needed = -(-self.gpus // self.gpus_per_node)
        width = len(str(needed - 1))
        return tuple(f"node{number:0{width}d}" for number in range(needed))

    def day_of(self, slot: int) -> int:
        """Whole periods of 24 hours between the first slot and the beginning of one."""
        return int(slot * self.interval_hours / 24 + ROUNDING)

    @property
    def gpus_in_service(self) -> Counts:
        """GPUs in service, shape (n_slots,)."""
        return np.array([self.gpus] * self.n_slots if self.available is None else self.available)

    @property
    def gpus_allowed_on(self) -> Counts:
        """GPUs that may be on at once, shape (n_slots,): those in service, and within the power of racks."""
        return np.minimum(self.gpus_in_service, self._power_beyond(0))

    @property
    def gpus_cuttable(self) -> Counts:
        """GPUs that may be cut at once, shape (n_slots,); below 0 where more are kept whole than in service."""
        beyond = self._power_beyond(self.limits.whole_nodes_kept // self.limits.nodes_per_rack)
        return np.minimum(self.gpus_in_service - self.kept_whole, beyond)

    @property
    def gpus_held(self) -> int:
        """GPUs that may be on or keep a layout at once: one that is parked wakes where it is, and needs the power."""
        return self._power_beyond(0)

    @property
    def gpus_held_cut(self) -> int:
        """GPUs that may have a layout at once, on or parked."""
        beyond = self._power_beyond(self.limits.whole_nodes_kept // self.limits.nodes_per_rack)
        return min(self.gpus - self.kept_whole, beyond)

    def _power_beyond(self, racks: int) -> int:
        """GPUs for which there is power in all racks but the first ones."""
        most = self.gpus if self.limits.gpus_on_per_rack is None else self.limits.gpus_on_per_rack
        full, rest = divmod(self.gpus, self.gpus_per_rack)
        return (full - racks) * min(most, self.gpus_per_rack) + min(most, rest)

    @property
    def gpus_per_rack(self) -> int:
        """GPUs in a rack; the last rack may have fewer."""
        return self.limits.nodes_per_rack * self.gpus_per_node

    @property
    def kept_whole(self) -> int:
        """GPUs in service that are never cut."""
        return max(self.whole_gpus_kept, self.limits.whole_nodes_kept * self.gpus_per_node)

    @functools.cached_property
    def admitted(self) -> Floats:
        """Demand within quotas: what a plan is to serve, shape (n_tenants, n_profiles, n_slots)."""
        if not self.limits.quotas:
            return self.demand
        ranks = [TIERS.index(tier) for tier in self.tiers]
        return _read_only(admitted_demand(self.demand, self.shares, self.tenants, ranks, self.limits.quotas))

    @functools.cached_property
    def pooled(self) -> Floats:
        """Admitted demand summed over tenants, shape (n_profiles, n_slots)."""
        return _read_only(self.admitted.sum(axis=0))

    @functools.cached_property
    def required(self) -> Counts:
        """Instances that meet the pooled demand in full, shape (n_profiles, n_slots)."""
        required = np.ceil(self.pooled - ROUNDING).clip(0).astype(np.int64)
        required.setflags(write=False)
        return required

    @functools.cached_property
    def shares(self) -> Floats:
        """Share of a GPU that one instance of each profile counts for, shape (n_profiles,)."""
        return _read_only([self.gpu_model.share(profile) for profile in self.profiles])

    @property
    def idle_words(self) -> str:
        """What becomes of GPUs that are not needed, and at which prices."""
        if self.prices is None:
            return f"released; partitioning one again costs {self.change_gpu_hours:.4g} GPU-hours"
        known = ", ".join(self.prices.remaining_h) or "none"
        why = f" ({self.prices.basis})" if self.prices.basis else ""
        return (
            f"idle and powered on at {self.prices.parked_price:.3g} of a GPU-hour{why}; draining costs the run times "
            f"of {known}, else {self.prices.drain:.3g} GPU-hours; partitioning costs {self.prices.dress:.3g}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PlanProblem:
        """Read what :meth:`to_dict` wrote; what has a default may be missing, and a board may be a name.

        Raises
        ------
        ScenarioError
            If a value is missing, unknown, or not what it should be.
        """
        return from_plain(
            cls,
            values,
            "plan problem",
            tenants=texts,
            profiles=texts,
            tiers=texts,
            nodes=texts,
            demand=lambda demand: grid(demand, int, float),
            gpu_model=board_from_plain,
            change=lambda change: change_from_plain(board_from_plain(values["gpu_model"]), change),
            slot_start=datetime.fromisoformat,
            limits=lambda limits: from_plain(Limits, limits, "limits", quotas=_quotas),
            prices=_state_prices,
        )


def _state_prices(values: Mapping[str, Any]) -> StatePrices:
    """Prices as :func:`to_plain` wrote them, or wrote them before ``parked_price`` was called as in a scenario."""
    if isinstance(values, Mapping) and "parked" in values and "parked_price" not in values:
        values = {"parked_price" if name == "parked" else name: value for name, value in values.items()}
    return from_plain(StatePrices, values, "prices of states")


def _quotas(values: Mapping[str, Any]) -> dict[str, Quota]:
    return {tenant: from_plain(Quota, quota, f"quota of {tenant}") for tenant, quota in values.items()}


def _read_only(values: ArrayLike) -> Floats:
    array = np.array(values, dtype=np.float64)
    array.setflags(write=False)
    return array


def _demand(given: ArrayLike) -> Floats:
    try:
        return _read_only(given)
    except (TypeError, ValueError) as error:
        expected = "numbers in three dimensions"
        raise ScenarioError("plan problem: demand", expected, str(error), "Fix the demand.") from error


def _plain(value: Any) -> Any:  # noqa: ANN401 - anything goes in, checks come later
    """A numpy number as one of Python's, for JSON; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def _canonical(gpu_model: GpuModel, given: Mapping[str, int], what: str = "initial") -> dict[str, int]:
    """Layout texts in canonical form and fixed order; each is proven to exist on the board."""
    counts: dict[str, int] = {}
    for text, gpus in given.items():
        held = {p if p == WHOLE_GPU else gpu_model.profile(p).name: n for p, n in parse_layout(text).items()}
        proof = prove(gpu_model, held)
        if not proof:
            expected = f"a layout of {gpu_model.name}"
            raise GeometryError(f"{what} layout {text!r}", expected, proof.reason, "Fix the layout.")
        layout = format_layout(held)
        counts[layout] = counts.get(layout, 0) + _plain(gpus)
    return dict(sorted(counts.items()))


def serves(gpu_model: GpuModel, instance: str, request: str) -> bool:
    """Whether an instance of one profile can do the work asked of another.

    What it needs for that is in :meth:`gpuplanner.hardware.gpu_models.MigProfile.serves`. A GPU that is not cut and an
    instance never stand in for each other: they are different resources to every scheduler.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> gpu_model = load_gpu_model("H100-80GB-SXM5")
    >>> serves(gpu_model, "2g.20gb", "1g.20gb"), serves(gpu_model, "1g.20gb", "2g.20gb")
    (True, False)
    >>> serves(gpu_model, "2g.20gb", "1g.10gb+me"), serves(gpu_model, "gpu", "1g.10gb")
    (False, False)
    """
    if instance == request or WHOLE_GPU in (instance, request):
        return instance == request
    return gpu_model.profile(instance).serves(gpu_model.profile(request))


@functools.lru_cache(maxsize=256)
def up_sets(
    gpu_model: GpuModel, requests: Sequence[str], instances: Sequence[str]
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Sets of requests with the instances that can serve them, enough to decide every matching.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> names = ("2g.10gb", "1g.5gb", "gpu")
    >>> up_sets(load_gpu_model("A100-40GB"), names, names)
    (((0,), (0,)), ((0, 1), (0, 1)), ((2,), (2,)))
    """
    able = [
        frozenset(i for i, instance in enumerate(instances) if serves(gpu_model, instance, request))
        for request in requests
    ]
    unions: set[frozenset[int]] = set()
    for one in able:
        unions |= {one} | {one | other for other in unions}
    asking = {union: {r for r, one in enumerate(able) if one <= union} for union in unions}

    def follows(union: frozenset[int]) -> bool:
        parts = ((part, union - part) for part in unions if part and part < union)
        return any(rest in asking and asking[part] | asking[rest] == asking[union] for part, rest in parts)

    kept = [union for union in unions if not follows(union)]
    return tuple(sorted((tuple(sorted(asking[union])), tuple(sorted(union))) for union in kept))


def membership(positions: Sequence[Sequence[int]], size: int) -> NDArray[np.int64]:
    """Sets of positions as rows of zeros and ones, shape (n_sets, size).

    Examples
    --------
    >>> membership([(0,), (0, 2)], 3).tolist()
    [[1, 0, 0], [1, 0, 1]]
    """
    rows = np.zeros((len(positions), size), dtype=np.int64)
    for row, held in zip(rows, positions, strict=True):
        row[list(held)] = 1
    return rows
