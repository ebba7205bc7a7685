r"""Why no plans of all pools cost less, however demand is parted: a proof that anybody can add up again.

Let an instance of demand that may move be worth a price :math:`\mu`, slot by slot. Give every place of it all of that
demand, which pays :math:`\mu` where it is not served, and plan each pool by itself. What the pools cost at least then,
less :math:`\mu` for all demand that was counted more than once, no plans of all of them undercut: demand that one pool
serves is not served by the others. Where :math:`\mu` is above what demand pays that nobody serves, the difference goes
off. So bounds of single pools, each with its certificate, prove one for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuplanner.errors import ScenarioError, message
from gpuplanner.planner.contract.certificate import Certificate
from gpuplanner.planner.contract.movable import (
    Movable,
    Place,
    Transfer,
    after_moves,
    checked_movable,
    least_worth,
)
from gpuplanner.planner.contract.plain_values import from_plain, grid, to_plain
from gpuplanner.planner.contract.problem import Floats, PlanProblem
from gpuplanner.planner.program.bound import lower_bound
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.planner.program.joint import Joint, worth_of_moving
from gpuplanner.planner.verification.bounds import BoundCheck, proven_bound
from gpuplanner.planner.verification.limits import within_quotas
from gpuplanner.planner.verification.moves import move_faults
from gpuplanner.planner.verification.weak_duality import NoProof
from gpuplanner.solving.effort import Effort

_WORK = 3000
_DIGITS = 6
_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class TogetherProof:
    """Pools before anything was sent, what was sent, and why no plans of all of them cost less.

    - ``pools``, ``movable``, ``moves``: The problems, demand that other pools may serve, and what was sent.
    - ``bound``: What no plans are said to undercut.
    - ``prices``: What an instance of each movable demand is worth, by slot.
    - ``certificates``: Of the pools with all demand that may come, by name.
    """

    pools: Mapping[str, PlanProblem]
    movable: tuple[Movable, ...]
    moves: tuple[Transfer, ...]
    bound: float
    prices: tuple[Floats, ...]
    certificates: Mapping[str, Certificate]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        movable = [
            to_plain(one) | {"places": [[*place, each] for place, each in one.places.items()]}
            for one in self.movable
        ]
        return {
            "pools": {name: one.to_dict() for name, one in self.pools.items()},
            "movable": movable,
            "moves": to_plain(self.moves),
            "bound": self.bound,
            "prices": to_plain(self.prices),
            "certificates": {name: one.to_dict() for name, one in self.certificates.items()},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TogetherProof:
        """Read what :meth:`to_dict` wrote; what it proves is a question for :func:`verify_together`."""
        where = "fleet plan file: together"

        def movable(one: Mapping[str, Any]) -> Movable:
            places = {(str(pool), str(profile)): each for pool, profile, each in one["places"]}
            part = one["part"] if isinstance(one["part"], int | float) else grid(one["part"], int, float)
            return Movable(str(one["pool"]), str(one["profile"]), part, places)

        def move(one: Mapping[str, Any]) -> Transfer:
            return from_plain(
                Transfer, one, where, origin=_place, place=_place, amount=lambda rows: grid(rows, int, float)
            )

        found = from_plain(
            cls, values, where,
            pools=lambda pools: {str(name): PlanProblem.from_dict(one) for name, one in pools.items()},
            movable=lambda rows: tuple(map(movable, rows)), moves=lambda rows: tuple(map(move, rows)),
            prices=lambda rows: tuple(grid(row, int, float) for row in rows),
            certificates=lambda all_: {str(name): Certificate.from_dict(one) for name, one in all_.items()},
        )  # fmt: skip
        checked_movable(found.pools, found.movable)
        slots = {(one.n_slots,) for one in found.pools.values()} | {row.shape for row in found.prices}
        odd = set(found.certificates) != set(found.pools) or len(found.prices) != len(found.movable)
        if odd or len(slots) != 1:
            text = "a certificate for each pool and prices by slot for all demand that may move"
            raise ScenarioError(message(where, text, "others", "Plan again."))
        return found


def _place(names: Sequence[str]) -> Place:
    pool, profile = map(str, names)
    return pool, profile


def priced_apart(
    pools: Mapping[str, PlanProblem], movable: Sequence[Movable], prices: Sequence[Floats]
) -> tuple[dict[str, PlanProblem], float]:
    """Pools with all demand that may come at its price, and what goes off the sum of their costs."""
    apart, less = {}, 0.0
    for name, problem in pools.items():
        plain = replace(problem.limits, quotas={})
        tiers = ("standard",) * len(problem.tenants)  # what is served follows from prices alone
        apart[name] = replace(problem, demand=within_quotas(problem), limits=plain, tiers=tiers)
    leaving = []
    for one in movable:
        home = apart[one.pool]
        demand, row = home.demand.copy(), home.profiles.index(one.profile)
        leaving.append(demand[:, row] * one.part)
        demand[:, row] = (demand[:, row] - leaving[-1]).clip(0.0)
        apart[one.pool] = replace(home, demand=demand)
    for number, (one, goes, price) in enumerate(zip(movable, leaving, prices, strict=True)):
        places = {(one.pool, one.profile): 1.0, **one.places}
        total = goes.sum(axis=0)
        less += float((len(places) - 1) * (price @ total))
        worth = least_worth(pools, (one.pool, one.profile), places)
        less += float((np.maximum(price - worth[:, None], 0.0) * goes).sum())
        for (pool, profile), each in places.items():
            apart[pool] = _with_priced(apart[pool], profile, total * each, price / each, str(number))
    return apart, less


def _with_priced(here: PlanProblem, profile: str, coming: Floats, price: Floats, name: str) -> PlanProblem:
    """A problem with demand of which an instance that is missing for a slot costs a price: a tenant for each price."""
    levels = np.unique(price[(price > 0) & (coming > 0)])
    profiles = (*here.profiles, *([] if profile in here.profiles else [profile]))
    demand = np.zeros((len(here.tenants) + len(levels), len(profiles), here.n_slots))
    demand[: len(here.tenants), : len(here.profiles)] = here.demand
    demand[len(here.tenants) :, profiles.index(profile)] = np.where(price == levels[:, None], coming, 0.0)
    worth = levels / (here.board.share(profile) * here.slot_hours)
    return replace(
        here, profiles=profiles, demand=demand,
        tenants=(*here.tenants, *(f"{name} of {len(here.tenants)} at {level}" for level in levels)),
        tiers=(*here.tiers, *["standard"] * len(levels)), unmet_price=(*here.unmet_price, *worth.tolist()),
    )  # fmt: skip


def certified_together(
    pools: Mapping[str, PlanProblem],
    movable: Sequence[Movable],
    moves: Sequence[Transfer],
    least: float,
) -> TogetherProof | None:
    """A proof of a bound of all pools, as far as prices show it; None where no solver says what demand is worth."""
    effort = Effort.begin(work_limit=_WORK)
    worth = worth_of_moving(Joint.of(pools, movable), effort)
    none = np.zeros(next(iter(pools.values())).n_slots)
    prices = [
        np.array(
            [float(f"{one:.{_DIGITS}g}") for one in worth.get((each.pool, each.profile), none).clip(0.0)]
        )
        for each in movable
    ]
    certificates = {}
    for name, problem in priced_apart(pools, movable, prices)[0].items():
        fluid = Fluid.of(problem)
        proof = lower_bound(fluid, (), effort).certificate(fluid)
        if proof is None:
            return None
        certificates[name] = proof
    return TogetherProof(pools, tuple(movable), tuple(moves), least, tuple(prices), certificates)


def verify_together(proof: TogetherProof, planned: Mapping[str, PlanProblem], objective: float) -> BoundCheck:
    """Prove the bound of all pools again, without a solver; `planned` are the problems with what was sent.

    Returns
    -------
    BoundCheck
        As of :func:`~gpuplanner.planner.verify_bound`.
    """
    faults = move_faults(proof.moves, proof.pools, proof.movable, planned)
    given = after_moves(proof.pools, proof.moves)
    faults += [
        f"{name} is planned for another problem than it has with what was sent"
        for name in sorted({*given, *planned})
        if name not in given or name not in planned or given[name].to_dict() != planned[name].to_dict()
    ]
    if faults:
        return BoundCheck(faults, "", proven=False)
    apart, less = priced_apart(proof.pools, proof.movable, proof.prices)
    try:
        proven = sum(proven_bound(proof.certificates[name], one) for name, one in apart.items()) - less
    except (NoProof, ScenarioError, RecursionError) as error:
        return BoundCheck(
            [f"certificate: it proves nothing for these pools: {error}; plan again"], "", proven=False
        )
    if proven >= proof.bound - _TOLERANCE * max(1.0, abs(proof.bound)):
        words = f"proven again, without a solver: no plans cost less than {proof.bound:.9g}, however demand is parted"
        return BoundCheck([], words, proven=True)
    part = 1 - proven / objective if objective else 0.0
    words = (
        f"bound not proven above {proven:.9g} (proven again: no plans are cheaper by more than {part:.2%}, however "
        f"demand is parted); the {proof.bound:.9g} of the plans rests on whole GPUs of all pools at once"
    )
    return BoundCheck([], words, proven=False)
