"""Check what was sent from pool to pool: demand is neither made nor lost, and goes only where it may."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from gpuplanner.planner.contract.movable import Movable, Transfer
from gpuplanner.planner.contract.problem import Floats, PlanProblem
from gpuplanner.planner.verification.limits import within_quotas

_TOLERANCE = 1e-6


def move_faults(
    moves: Sequence[Transfer],
    pools: Mapping[str, PlanProblem],
    movable: Sequence[Movable],
    given: Mapping[str, PlanProblem],
) -> list[str]:
    """Say everything that is wrong with moves and with the problems that the pools were given after them."""
    faults = []
    may = {(one.pool, one.profile): one for one in movable}
    due: dict[tuple[str, str, str], Floats] = defaultdict(lambda: np.zeros(1))
    for name, problem in pools.items():
        demand = within_quotas(problem)
        for tenant, rows in zip(problem.tenants, demand, strict=True):
            for profile, row in zip(problem.profiles, rows, strict=True):
                due[name, profile, tenant] = row.copy()
    left: dict[tuple[str, str], Floats] = {}
    for move in moves:
        one, (pool, profile) = may.get(move.origin), move.origin
        where = f"{pool}/{profile} to {'/'.join(move.place)}"
        if one is None or one.places.get(move.place) != move.each or not (move.amount >= 0).all():
            faults.append(
                f"moves: {where} is none that may be made, or not at {move.each:g} instances for one"
            )
            continue
        problem = pools[pool]
        free = within_quotas(problem)[:, problem.profiles.index(profile)] * one.part
        rest = left.setdefault(move.origin, free.copy())
        rest -= move.amount
        if (rest < -_TOLERANCE).any():
            tenant, slot = np.argwhere(rest < -_TOLERANCE)[0]
            faults.append(f"moves: {where}: more of {problem.tenants[tenant]} in slot {slot} than may go")
        for tenant, amount in zip(problem.tenants, move.amount, strict=True):
            due[pool, profile, tenant] = due[pool, profile, tenant] - amount
            due[*move.place, tenant] = due[*move.place, tenant] + amount * move.each
    for name, problem in given.items():
        held = within_quotas(problem)
        for tenant, rows in zip(problem.tenants, held, strict=True):
            for profile, row in zip(problem.profiles, rows, strict=True):
                if not np.allclose(row, due.pop((name, profile, tenant), np.zeros(1)), atol=_TOLERANCE):
                    faults.append(
                        f"moves: {name} is given another demand of {tenant} for {profile} than was sent"
                    )
    faults += [
        f"moves: nothing of {'/'.join(key)} is planned"
        for key, row in due.items()
        if (row > _TOLERANCE).any()
    ]
    return faults
