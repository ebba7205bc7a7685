"""The question: demand over time, a fleet, prices and limits."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuplanner.errors import GeometryError, ScenarioError, examples, message
from gpuplanner.hardware import GpuModel, as_board, format_layout, parse_layout, prove
from gpuplanner.planner.board_text import board_from_dict, board_to_dict
from gpuplanner.planner.problem_check import problem_faults
from gpuplanner.schemas import WHOLE_GPU

ROUNDING = 1e-9
"""Demand above a whole number of instances by no more than this needs no further instance."""

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


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
    change_gpu_hours : float
        Cost of cutting one GPU: what is lost while it drains and is cut anew. Paid whenever a GPU takes up a
        layout, also when it was off before; leaving a GPU whole costs nothing.
    whole_gpus_kept : int
        GPUs in service that are never cut, on or off.
    available : sequence of int, optional, shape (n_slots,)
        GPUs in service in each slot; all if None.
    initial : mapping of str to int, optional
        GPUs on in the slot before the first, by layout text. If None, the first slot's cuts are free.
    nodes : sequence of str, optional
        Names of the nodes, for whoever applies the plan; ``"node0"`` and so on if None.

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
    whole_gpus_kept: int
    available: tuple[int, ...] | None
    initial: Mapping[str, int] | None
    nodes: tuple[str, ...] | None

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
        unmet_price: float | Sequence[float] = 10.0,
        change_gpu_hours: float = 0.05,
        whole_gpus_kept: int = 0,
        available: Sequence[int] | None = None,
        initial: Mapping[str, int] | None = None,
        nodes: Sequence[str] | None = None,
    ) -> None:
        model = as_board(board)
        each = [unmet_price] * len(tenants) if np.ndim(unmet_price) == 0 else unmet_price
        prices = tuple(map(_plain, cast("Sequence[float]", each)))
        values = {
            "board": model,
            "gpus": gpus,
            "gpus_per_node": gpus_per_node,
            "slot_start": slot_start,
            "slot_hours": slot_hours,
            "tenants": tuple(tenants),
            "profiles": tuple(p if p == WHOLE_GPU else model.profile(p).name for p in profiles),
            "demand": _demand(demand),
            "tiers": ("standard",) * len(tenants) if tiers is None else tuple(tiers),
            "on_price": on_price,
            "unmet_price": prices,
            "change_gpu_hours": change_gpu_hours,
            "whole_gpus_kept": whole_gpus_kept,
            "available": None if available is None else tuple(map(_plain, available)),
            "initial": None if initial is None else _canonical(model, initial),
            "nodes": None if nodes is None else tuple(nodes),
        }
        for name, value in values.items():
            object.__setattr__(self, name, _plain(value))
        faults = list(problem_faults(self))
        if faults:
            text = message(
                "plan problem",
                "demand, fleet, prices and limits that make sense",
                "; ".join(faults),
                "Mend it.",
            )
            raise ScenarioError(text)

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

    @property
    def gpus_in_service(self) -> Counts:
        """GPUs in service, shape (n_slots,)."""
        return np.array([self.gpus] * self.n_slots if self.available is None else self.available)

    @functools.cached_property
    def pooled(self) -> Floats:
        """Demand summed over tenants, shape (n_profiles, n_slots)."""
        return _read_only(self.demand.sum(axis=0))

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

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        return plain | {
            "board": board_to_dict(self.board),
            "slot_start": self.slot_start.astimezone(UTC).isoformat(),
            "demand": self.demand.tolist(),
            "initial": None if self.initial is None else dict(self.initial),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PlanProblem:
        """Read what :meth:`to_dict` wrote.

        Raises
        ------
        ScenarioError
            If a value is missing, unknown, or not what it should be.
        """
        known = {*_PLAIN, "board", "slot_start", "demand", "initial"}
        odd = sorted(known ^ set(values))
        if odd:
            text = message(
                "plan problem",
                f"the keys {', '.join(sorted(known))}",
                f"missing or unknown {examples(odd)}",
                "Mend it.",
            )
            raise ScenarioError(text)
        try:
            given = dict(values) | {
                "board": board_from_dict(values["board"]),
                "slot_start": datetime.fromisoformat(values["slot_start"]),
            }
            return cls(**given)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, ScenarioError | GeometryError):
                raise
            text = message("plan problem", "values of the right kind", str(error), "Mend it.")
            raise ScenarioError(text) from error


_PLAIN = (
    "gpus",
    "gpus_per_node",
    "slot_hours",
    "tenants",
    "profiles",
    "tiers",
    "on_price",
    "unmet_price",
    "change_gpu_hours",
    "whole_gpus_kept",
    "available",
    "nodes",
)


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


def _canonical(board: GpuModel, initial: Mapping[str, int]) -> dict[str, int]:
    """Layout texts in canonical form and fixed order; each is proven to exist on the board."""
    counts: dict[str, int] = {}
    for text, gpus in initial.items():
        held = {p if p == WHOLE_GPU else board.profile(p).name: n for p, n in parse_layout(text).items()}
        proof = prove(board, held)
        if not proof:
            fault = message(f"initial layout {text!r}", f"a layout of {board.name}", proof.reason, "Mend it.")
            raise GeometryError(fault)
        layout = format_layout(held)
        counts[layout] = counts.get(layout, 0) + _plain(gpus)
    return dict(sorted(counts.items()))
