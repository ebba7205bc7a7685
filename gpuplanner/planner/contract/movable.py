"""Demand that more than one pool may serve, and what of it was sent where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuplanner.errors import GeometryError, ScenarioError, examples, message
from gpuplanner.planner.contract.plain_values import is_amount
from gpuplanner.planner.contract.problem import Floats, PlanProblem
from gpuplanner.schemas import WHOLE_GPU

Place = tuple[str, str]
"""A pool and a profile in it."""


@dataclass(frozen=True, eq=False)
class Movable:
    """Demand for one profile of a pool, some or all of which instances of other pools may serve as well.

    Slot by slot, any part of it may go to any of its places: a mean of 2.3 instances may be two here and 0.3 there.

    Parameters
    ----------
    pool, profile : str
        Whose demand it is: a pool of the fleet and a profile of its problem.
    part : array of float, shape (n_tenants, n_slots)
        Share of each tenant's demand that may go elsewhere [0-1]; a number stands for all of them.
    places : mapping of (str, str) to float
        Pool and profile of what may serve it, in order of preference, with the instances there that do the work of
        one here: 1 where both are as fast.

    Examples
    --------
    >>> Movable("A100-40GB", "3g.20gb", 1.0, {("H100-80GB-SXM5", "2g.20gb"): 1.0}).places
    {('H100-80GB-SXM5', '2g.20gb'): 1.0}
    """

    pool: str
    profile: str
    part: Floats | float
    places: Mapping[Place, float]


@dataclass(frozen=True, eq=False)
class Transfer:
    """Demand that was sent from its own pool to another one.

    - ``origin``, ``place``: Pool and profile it was asked of, and those that serve it.
    - ``each``: Instances there that do the work of one of the origin.
    - ``amount``, shape (n_tenants, n_slots): Mean concurrent instances of the origin, by tenant of the origin.
    """

    origin: Place
    place: Place
    each: float
    amount: Floats


def checked_movable(pools: Mapping[str, PlanProblem], movable: Sequence[Movable]) -> None:
    """Raise ``ScenarioError`` naming everything that makes no sense."""
    faults = [fault for one in movable for fault in _faults(pools, one)]
    origins = [(one.pool, one.profile) for one in movable]
    twice = sorted({"/".join(one) for one in origins if origins.count(one) > 1})
    if twice:
        faults.append(f"each pool and profile once, not again {examples(twice)}")
    if faults:
        text = message(
            "demand that may move", "pools, profiles and shares of the fleet", "; ".join(faults), "Mend it."
        )
        raise ScenarioError(text)


def _faults(pools: Mapping[str, PlanProblem], one: Movable) -> Iterator[str]:
    home = pools.get(one.pool)
    if home is None or one.profile not in home.profiles:
        yield f"{one.pool}/{one.profile} is demand of no pool ({examples(list(pools))})"
        return
    shape = (len(home.tenants), home.n_slots)
    part = np.asarray(one.part, dtype=np.float64)
    if part.shape not in ((), shape) or not ((part >= 0) & (part <= 1)).all():
        yield f"part of {one.pool}/{one.profile} must be shares from 0 to 1, of shape {shape} or one for all"
    for (pool, profile), each in one.places.items():
        if pool not in pools or pool == one.pool:
            yield f"{one.pool}/{one.profile} may go to other pools of the fleet, not to {pool!r}"
        elif not is_amount(each) or each <= 0:
            yield f"instances of {pool}/{profile} that do the work of one must be a number above 0, not {each!r}"
        elif profile != WHOLE_GPU:
            try:
                pools[pool].board.profile(profile)
            except GeometryError as error:
                yield str(error)


def shares_of(home: PlanProblem, one: Movable) -> Floats:
    """Demand that may go elsewhere, shape (n_tenants, n_slots): of what quotas admit."""
    held: Floats = home.admitted[:, home.profiles.index(one.profile)] * one.part
    return held


def least_worth(pools: Mapping[str, PlanProblem], home: Place, places: Mapping[Place, float]) -> Floats:
    """Least price of an instance that is not served for a slot, wherever it was sent, by tenant of its own pool."""
    found = []
    for tenant in pools[home[0]].tenants:
        prices = []
        for (pool, profile), each in places.items():
            payer = pools[pool] if tenant in pools[pool].tenants else pools[home[0]]
            share = pools[pool].board.share(profile) * pools[pool].slot_hours
            prices.append(payer.unmet_price[payer.tenants.index(tenant)] * share * each)
        found.append(min(prices))
    return np.array(found)


def after_moves(pools: Mapping[str, PlanProblem], moves: Sequence[Transfer]) -> dict[str, PlanProblem]:
    """The problems of the pools with the demand that each is given; pools that nothing touches stay as they are.

    A tenant that comes to a pool brings its tier and its price of unmet demand. Quotas are those of the pool that was
    asked: what they refuse goes nowhere.
    """
    found = dict(pools)
    for name in dict.fromkeys(pool for move in moves for pool, _ in (move.origin, move.place)):
        here = found[name]
        found[name] = replace(here, demand=here.admitted, limits=replace(here.limits, quotas={}))
    for move in moves:
        (pool, profile), home = move.origin, found[move.origin[0]]
        demand = home.demand.copy()
        row = home.profiles.index(profile)
        demand[: len(move.amount), row] = (demand[: len(move.amount), row] - move.amount).clip(0.0)
        found[pool] = replace(home, demand=demand)
        coming = dict(zip(home.tenants, move.amount * move.each, strict=False))
        found[move.place[0]] = with_demand(found[move.place[0]], move.place[1], coming, home)
    return found


def with_demand(
    here: PlanProblem, profile: str, coming: Mapping[str, Floats], home: PlanProblem
) -> PlanProblem:
    """A problem with more demand for a profile, by tenant of another pool."""
    profiles = (*here.profiles, *([] if profile in here.profiles else [profile]))
    strangers = [name for name in coming if name not in here.tenants and coming[name].any()]
    places = [home.tenants.index(name) for name in strangers]
    tenants = (*here.tenants, *strangers)
    demand = np.zeros((len(tenants), len(profiles), here.n_slots))
    demand[: len(here.tenants), : len(here.profiles)] = here.demand
    for name in coming.keys() & set(tenants):
        demand[tenants.index(name), profiles.index(profile)] += coming[name]
    return replace(
        here, tenants=tenants, profiles=profiles, demand=demand,
        tiers=(*here.tiers, *(home.tiers[at] for at in places)),
        unmet_price=(*here.unmet_price, *(home.unmet_price[at] for at in places)),
    )  # fmt: skip
