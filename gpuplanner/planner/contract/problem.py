"""The question: demand over time, a fleet, prices and limits."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuplanner.errors import GeometryError, ScenarioError, message
from gpuplanner.hardware.change_cost import ChangeCost
from gpuplanner.hardware.gpu import GpuModel, as_board
from gpuplanner.hardware.layout import format_layout, parse_layout
from gpuplanner.hardware.feasibility import prove
from gpuplanner.planner.contract.limits import Limits, Quota, admitted_demand
from gpuplanner.planner.contract.plain_values import (
    board_from_plain,
    change_from_plain,
    from_plain,
    grid,
    is_amount,
    refuse,
    texts,
    to_plain,
)
from gpuplanner.planner.contract.problem_check import TIERS, problem_faults
from gpuplanner.planner.contract.state_prices import StatePrices
from gpuplanner.schemas.vocabulary import WHOLE_GPU

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
    board : GpuModel or str
        The board of every GPU.
    gpus, gpus_per_node : int
        Size of the fleet and of a node; the last node may be smaller.
    slot_start : datetime
        Start of the first slot, with time zone.
    slot_hours : float
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
    ...     slot_hours=1, tenants=["ads"], profiles=["3g.20gb", "gpu"], demand=np.full((1, 2, 24), 0.5),
    ... )
    >>> problem.n_slots, problem.required[:, 0].tolist(), problem.unmet_price
    (24, [1, 1], (10.0,))
    """

    board: GpuModel
    gpus: int
    gpus_per_node: int
    slot_start: datetime
    slot_hours: float
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
        board: GpuModel | str,
        gpus: int,
        gpus_per_node: int,
        slot_start: datetime,
        slot_hours: float,
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
        model = as_board(board)
        each = [unmet_price] * len(tenants) if np.ndim(unmet_price) == 0 else unmet_price
        cost = ChangeCost.of(model) if change is None else change.on(model)
        per_change = cost.plan_gpu_hours(gpus_per_node if isinstance(gpus_per_node, int) else 1)
        stated_limits = limits or Limits()
        stated = per_change if change_gpu_hours is None else _plain(change_gpu_hours)
        given |= {
            "board": model,
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
            refuse("plan problem", "demand, fleet, prices and limits that make sense", "; ".join(faults))

    def __repr__(self) -> str:
        return (
            f"<PlanProblem: {self.gpus} x {self.board.name}, {self.n_slots} slots of {self.slot_hours:g} h from "
            f"{self.slot_start:%Y-%m-%d %H:%M}, {len(self.tenants)} tenants, {len(self.profiles)} profiles>"
        )

    @property
    def n_slots(self) -> int:
        """Number of slots."""
        return int(self.demand.shape[2])

    @property
    def slot_times(self) -> list[datetime]:
        """Start of every slot and, last, the end of the horizon, in UTC."""
        start = self.slot_start.astimezone(UTC)
        return [start + t * timedelta(hours=self.slot_hours) for t in range(self.n_slots + 1)]

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
        return int(slot * self.slot_hours / 24 + ROUNDING)

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
        return _read_only([self.board.share(profile) for profile in self.profiles])

    @property
    def idle_words(self) -> str:
        """What becomes of GPUs that are not needed, and at which prices."""
        if self.prices is None:
            return f"released; one that comes back is cut anew for {self.change_gpu_hours:.4g} GPU-hours"
        known = ", ".join(self.prices.remaining_h) or "none"
        why = f" ({self.prices.basis})" if self.prices.basis else ""
        return (
            f"parked at {self.prices.parked_price:.3g} of an hour{why}; emptied by run times of {known}, else for "
            f"{self.prices.drain:.3g} GPU-hours; a layout is taken up for {self.prices.dress:.3g}"
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
            board=board_from_plain,
            change=lambda change: change_from_plain(board_from_plain(values["board"]), change),
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
        text = message("plan problem: demand", "numbers in three dimensions", str(error), "Mend the demand.")
        raise ScenarioError(text) from error


def _plain(value: Any) -> Any:  # noqa: ANN401 - anything goes in, checks come later
    """A numpy number as one of Python's, for JSON; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def _canonical(board: GpuModel, given: Mapping[str, int], what: str = "initial") -> dict[str, int]:
    """Layout texts in canonical form and fixed order; each is proven to exist on the board."""
    counts: dict[str, int] = {}
    for text, gpus in given.items():
        held = {p if p == WHOLE_GPU else board.profile(p).name: n for p, n in parse_layout(text).items()}
        proof = prove(board, held)
        if not proof:
            fault = message(f"{what} layout {text!r}", f"a layout of {board.name}", proof.reason, "Mend it.")
            raise GeometryError(fault)
        layout = format_layout(held)
        counts[layout] = counts.get(layout, 0) + _plain(gpus)
    return dict(sorted(counts.items()))
