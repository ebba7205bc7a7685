"""Several pools as one program, where any of them may serve some demand: its bound, and demand sent slot by slot.

Each pool keeps its own columns and rows of GPUs and changes. Between them stands, for each profile of each pool, a
whole number of instances needed, no less than the demand that is sent there: by Hall's theorem over the profiles of
the pool, layouts that cover every set of needs can serve them. Which part of demand goes where is no whole number.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gpuplanner.planner.contract.movable import Movable, Place, Transfer, least_worth, shares_of, with_demand
from gpuplanner.planner.contract.problem import ROUNDING, Counts, Floats, PlanProblem
from gpuplanner.planner.program.families import (
    SlotModel,
    add_changes,
    add_fleet,
    add_on_columns,
    add_whole_kept,
)
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.solving.effort import TOLERANCE, Effort
from gpuplanner.solving.linear import LinearModel
from gpuplanner.solving.solver import solve

# Sets of places, beside those of one kind of demand, for which whole instances are counted together.
_MOST_SETS = 60

# Staying is preferred to moving, and an earlier place to a later one, where both cost the same: cost of an instance.
_STAY = 1e-5

# Slots of one part of the program over all slots; see :func:`gpuplanner.planner.program.bound.lower_bound`.
_PART = 24
_NODES = 200

# Demand is sent by a rough look at each slot: its pools are planned anew with what each is given.
_ROUGH_GAP = 0.01

# Up to this many columns all slots are one integer program.
_SMALL = 1500
_SNAP = 1e-5

# Mean instances over all slots that are worth sending at all.
_LEAST_SENT = 0.01


@dataclass(frozen=True, eq=False)
class Kind:
    """Demand that has the same places.

    - ``places``: Numbers of the needs that may serve it, its own first, with instances there that do one's work.
    - ``wanted``, shape (n_prices, n_slots): Mean concurrent instances, by what an hour of one is worth.
    - ``price``, shape (n_prices,): Least cost of one that is not served for a slot, wherever it goes.
    - ``origin``, ``goes``, shape (n_tenants, n_slots): Of demand that may move, where it comes from, tenants apart.
    """

    places: tuple[tuple[int, float], ...]
    wanted: Floats
    price: Floats
    origin: Place | None = None
    goes: Floats | None = None


@dataclass(frozen=True, eq=False)
class Joint:
    """Pools with the demand of each and the demand that may move, as arrays.

    - ``pools``: The problems, quotas applied, with a row for every profile that something may come for.
    - ``fluids``: Their arrays, with layouts for all that may come.
    - ``needs``: Pool and profile that instances are needed of, by number.
    - ``kinds``: Demand.
    """

    pools: Mapping[str, PlanProblem]
    fluids: Mapping[str, Fluid]
    needs: tuple[tuple[str, int], ...]
    kinds: tuple[Kind, ...]

    @classmethod
    def of(cls, pools: Mapping[str, PlanProblem], movable: Sequence[Movable]) -> Joint:
        """Build the arrays."""
        free = {name: replace(one.limits, quotas={}) for name, one in pools.items()}
        own = {name: replace(one, demand=one.admitted, limits=free[name]) for name, one in pools.items()}
        most = dict(own)
        goes = {(one.pool, one.profile): shares_of(pools[one.pool], one) for one in movable}
        for one in movable:
            home = own[one.pool]
            coming = dict(zip(home.tenants, goes[one.pool, one.profile], strict=False))
            for (pool, profile), each in one.places.items():
                more = {name: amount * each for name, amount in coming.items()}
                most[pool] = with_demand(most[pool], profile, more, home)
                own[pool] = with_demand(
                    own[pool], profile, {name: amount * 0.0 for name, amount in more.items()}, home
                )
        wanted = {name: np.flatnonzero(one.required.any(axis=1)).tolist() for name, one in most.items()}
        needs = tuple((name, row) for name, rows in wanted.items() for row in rows)
        number = {(name, most[name].profiles[row]): at for at, (name, row) in enumerate(needs)}
        places = {(one.pool, one.profile): one.places for one in movable}
        kinds = []
        for place, at in number.items():
            problem = own[place[0]]
            stays = problem.demand[:, problem.profiles.index(place[1])].copy()
            if place in goes:
                leaving = goes[place]
                stays[: len(leaving)] = (stays[: len(leaving)] - leaving).clip(0.0)
                reached = {place: 1.0, **{to: each for to, each in places[place].items() if to in number}}
                held = tuple((number[to], each) for to, each in reached.items())
                kind = _kind(held, leaving, least_worth(own, place, reached)[: len(leaving)])
                kinds.append(replace(kind, origin=place, goes=leaving))
            kinds.append(_kind(((at, 1.0),), stays, least_worth(own, place, {place: 1.0})))
        fluids = {name: Fluid.of(one) for name, one in most.items()}
        return cls(own, fluids, needs, tuple(one for one in kinds if one.wanted.any()))

    @property
    def n_slots(self) -> int:
        """Number of slots."""
        return next(iter(self.pools.values())).n_slots


def _kind(places: tuple[tuple[int, float], ...], demand: Floats, price: Floats) -> Kind:
    prices = np.unique(price)
    return Kind(places, np.array([demand[price == one].sum(axis=0) for one in prices]), prices)


@dataclass
class JointModel:
    """A model of consecutive slots of all pools.

    - ``parts``: Columns and rows of GPUs, by pool.
    - ``needed``, ``sent``: Columns by slot: of needs by number, and of demand by kind and place.
    - ``own``: By slot, all columns that cost something in it.
    """

    linear: LinearModel
    parts: dict[str, SlotModel]
    needed: list[dict[int, int]] = field(default_factory=list)
    sent: list[dict[tuple[int, int], int]] = field(default_factory=list)
    own: list[list[int]] = field(default_factory=list)


def build_joint(
    joint: Joint,
    slots: range,
    *,
    before: Mapping[str, Counts | None],
    floors: Mapping[int, float] | None = None,
    stay: float = 0.0,
    rounded: bool = True,
) -> JointModel:
    """Model of a range of slots of all pools, changes into the first of them paid where the state before is known.

    Of demand that several needs may serve, whole instances are counted together if `rounded`.
    """
    linear = LinearModel()
    model = JointModel(linear, {})
    for place, (name, fluid) in enumerate(joint.fluids.items()):
        columns, rows = len(linear.names), len(linear.rows)
        part = model.parts[name] = SlotModel(fluid, slots, linear)
        add_on_columns(part)
        add_fleet(part)
        add_whole_kept(part)
        add_changes(part, before[name], None)
        linear.names[columns:] = [f"{one}_pool{place}" for one in linear.names[columns:]]
        linear.rows[rows:] = [replace(row, name=f"{row.name}_pool{place}") for row in linear.rows[rows:]]
    for at, slot in enumerate(slots):
        own = [column for part in model.parts.values() for column in part.on[at].tolist()]
        own += [part.idle[slot] for part in model.parts.values() if slot in part.idle]
        own += _add_demand(joint, model, slot, stay, rounded=rounded)
        _add_cover(joint, model, at, slot)
        model.own.append(own)
        if floors and slot in floors:
            linear.add_row(f"floor_{slot}", own, [linear.cost[column] for column in own], ">=", floors[slot])
    return model


def _add_demand(joint: Joint, model: JointModel, slot: int, stay: float, *, rounded: bool) -> list[int]:
    """Instances needed, demand sent to each of its places, and demand that is not served; columns of the last."""
    linear = model.linear
    most = np.zeros(len(joint.needs))
    for kind in joint.kinds:
        for need, each in kind.places:
            most[need] += each * kind.wanted[:, slot].sum()
    there = np.flatnonzero(most > ROUNDING)
    columns = linear.add_columns(
        [f"need_{slot}_{need}" for need in there], cost=np.zeros(len(there)), high=np.ceil(most[there])
    )
    needed = dict(zip(there.tolist(), columns.tolist(), strict=True))
    sent: dict[tuple[int, int], int] = {}
    load: dict[int, dict[int, float]] = {need: {column: 1.0} for need, column in needed.items()}
    due = dict.fromkeys(needed, 0.0)
    lacking: list[tuple[frozenset[int], float, float, Sequence[int]]] = []
    unserved: list[int] = []
    for number, kind in enumerate(joint.kinds):
        wanted = kind.wanted[:, slot]
        total = float(wanted.sum())
        if total <= ROUNDING:
            continue
        short = linear.add_columns(
            [f"unmet_{slot}_{number}_{k}" for k in range(len(wanted))], cost=kind.price, high=wanted
        ).tolist()
        unserved += short
        if len(kind.places) == 1:
            need, each = kind.places[0]
            due[need] += each * total
            load[need] |= dict.fromkeys(short, each)
        else:
            cost = [stay * place for place in range(len(kind.places))]
            names = [f"sent_{slot}_{number}_{need}" for need, _ in kind.places]
            parts = linear.add_columns(names, cost=cost, high=[total] * len(names)).tolist()
            for (need, each), column in zip(kind.places, parts, strict=True):
                sent[number, need] = column
                load[need][column] = -each
            row = [*parts, *short]
            linear.add_row(f"served_{slot}_{number}", row, [1.0] * len(row), ">=", total)
            linear.fractions.update(parts)
        linear.fractions.update(short)
        reached = frozenset(need for need, _ in kind.places)
        lacking.append((reached, min(each for _, each in kind.places), total, short))
    for need, terms in load.items():
        linear.add_row(f"needed_{slot}_{need}", terms.keys(), terms.values(), ">=", due[need])
    for index, group in enumerate(_groups([one[0] for one in lacking]) if rounded else ()):
        inside = [one for one in lacking if one[0] <= group]
        due_here = sum(each * total for _, each, total, _ in inside)
        whole = float(np.ceil(due_here - ROUNDING))
        rest = due_here - (whole - 1.0)
        # Whole instances N and demand unserved u with N + u >= d keep N + u / (d - floor d) >= ceil d.
        terms = {needed[need]: 1.0 for need in group if need in needed}
        for _, each, _, short in inside:
            terms |= dict.fromkeys(short, each / rest)
        linear.add_row(f"whole_{slot}_{index}_needs", terms.keys(), terms.values(), ">=", whole)
    model.needed.append(needed)
    model.sent.append(sent)
    return unserved


def _groups(sets: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Each set of places, and their unions, as far as they are few."""
    found = dict.fromkeys(sorted(set(sets), key=sorted))
    for one, other in itertools.product(list(found), repeat=2):
        if len(found) < _MOST_SETS and one & other:
            found.setdefault(one | other)
    return list(found)


def _add_cover(joint: Joint, model: JointModel, at: int, slot: int) -> None:
    """Instances of each pool that can serve a set of needs are at least as many as these."""
    needed = model.needed[at]
    for place, (name, part) in enumerate(model.parts.items()):
        row_of = {
            row: needed[need]
            for need, (pool, row) in enumerate(joint.needs)
            if pool == name and need in needed
        }
        fluid = part.fluid
        for index, (cover, asked) in enumerate(zip(fluid.cover, fluid.demanded, strict=True)):
            due = [row_of[row] for row in np.flatnonzero(asked).tolist() if row in row_of]
            if due:
                on = part.on[at].tolist()
                model.linear.add_row(
                    f"coverage_{slot}_{index}_pool{place}",
                    [*on, *due],
                    [*cover, *[-1.0] * len(due)],
                    ">=",
                    0.0,
                )


def joint_bound(joint: Joint, floors: Mapping[int, float], effort: Effort) -> tuple[float, dict[str, Floats]]:
    """Cost that no plan of all pools undercuts, and the GPUs that reach it, in fractions, by pool; 0 if out of time."""
    total = 0.0
    guides: dict[str, list[Floats]] = {name: [] for name in joint.fluids}
    for part, before in _parts(joint):
        model = build_joint(joint, part, before=before, floors=floors)
        answer = solve(model.linear, effort, relaxed=True)
        if answer.bound is None or answer.values is None:
            return 0.0, {}
        total += answer.bound
        for name, own in model.parts.items():
            guides[name] += [answer.values[columns] for columns in own.on]
    return max(0.0, total), {name: np.array(rows) for name, rows in guides.items()}


def _parts(joint: Joint) -> Iterator[tuple[range, dict[str, Counts | None]]]:
    """Slots of the parts of the program over all slots, with the states before where they are known."""
    width = joint.n_slots if joint.n_slots < 2 * _PART else _PART
    for start in range(0, joint.n_slots, width):
        before = {name: None if start else fluid.initial for name, fluid in joint.fluids.items()}
        yield range(start, min(start + width, joint.n_slots)), before


def worth_of_moving(joint: Joint, effort: Effort) -> dict[Place, Floats]:
    """What an instance of demand that may move is worth in each slot, by where it comes from: prices of its rows."""
    found = {kind.origin: np.zeros(joint.n_slots) for kind in joint.kinds if kind.origin is not None}
    for part, before in _parts(joint):
        model = build_joint(joint, part, before=before, rounded=False).linear
        answer = solve(model, effort, relaxed=True)
        prices = np.zeros(len(model.rows)) if answer.prices is None else answer.prices
        for row, price in zip(model.rows, prices.tolist(), strict=True):
            name, _, rest = row.name.partition("_")
            if name == "served":
                slot, kind = map(int, rest.split("_"))
                origin = joint.kinds[kind].origin
                if origin is not None:
                    found[origin][slot] = price
    return found


def joint_floors(joint: Joint, effort: Effort) -> dict[int, float]:
    """Least cost of each slot by itself, in whole GPUs of all pools, as far as the time suffices."""
    floors: dict[int, float] = {}
    alone = dict.fromkeys(joint.fluids)
    for slot in range(joint.n_slots):
        model = build_joint(joint, range(slot, slot + 1), before=alone)
        answer = solve(model.linear, effort, gap=0.05 * effort.gap_target, nodes=_NODES)
        if answer.bound is None:
            break
        floors[slot] = max(0.0, answer.bound)
    return floors


def swept(joint: Joint, guides: Mapping[str, Floats], effort: Effort) -> list[Transfer]:
    """Decide slot after slot which demand goes where, in whole GPUs beside the slot before, near the guides."""
    before = {name: fluid.initial for name, fluid in joint.fluids.items()}
    amounts: dict[tuple[int, int], Floats] = {}
    for slot in range(joint.n_slots):
        model = build_joint(joint, range(slot, slot + 1), before=before, stay=_STAY)
        for name, part in model.parts.items():
            row = guides[name][slot]
            model.linear.narrow(part.on[0], np.floor(row + TOLERANCE) - 1, np.ceil(row - TOLERANCE) + 1)
        answer = solve(model.linear, effort, gap=_ROUGH_GAP, nodes=1)
        if answer.values is None:
            continue
        before = {name: part.counts(answer.values)[0] for name, part in model.parts.items()}
        _send(joint, model, 0, answer.values, amounts)
    return _moves(joint, amounts)


def solved_jointly(joint: Joint, effort: Effort) -> tuple[float, list[Transfer]] | None:
    """Bound and moves of all slots as one integer program; None where that is too large, or found nothing in time."""
    before = {name: fluid.initial for name, fluid in joint.fluids.items()}
    model = build_joint(joint, range(joint.n_slots), before=before)
    if len(model.linear.names) > _SMALL:
        return None
    answer = solve(model.linear, effort, gap=effort.gap_target)
    if answer.values is None:
        return None
    amounts: dict[tuple[int, int], Floats] = {}
    for slot in range(joint.n_slots):
        _send(joint, model, slot, answer.values, amounts)
    return max(0.0, answer.bound or 0.0), _moves(joint, amounts)


def _send(
    joint: Joint, model: JointModel, at: int, values: Floats, amounts: dict[tuple[int, int], Floats]
) -> None:
    """Note what leaves its pool in a slot, by kind and place: as the solver has it, but no more than instances hold."""
    slot = next(iter(model.parts.values())).slots[at]
    room = {need: float(np.rint(values[column])) for need, column in model.needed[at].items()}
    for kind in joint.kinds:
        need = kind.places[0][0]
        if kind.origin is None and need in room:
            room[need] -= float(kind.wanted[:, slot].sum())
    for (number, need), column in model.sent[at].items():
        places = joint.kinds[number].places
        if need == places[0][0]:
            continue
        each = dict(places)[need]
        left, amount = max(0.0, room[need]) / each, float(values[column])
        amount = left if abs(amount - left) < _SNAP else min(amount, left)
        if amount > _SNAP:
            amounts.setdefault((number, need), np.zeros(joint.n_slots))[slot] = amount
            room[need] -= amount * each


def _moves(joint: Joint, amounts: Mapping[tuple[int, int], Floats]) -> list[Transfer]:
    """Amounts by tenant, in proportion to what each of them may send."""
    moves = []
    for (number, need), sent in sorted(amounts.items()):
        if sent.mean() < _LEAST_SENT:
            continue
        kind = joint.kinds[number]
        origin, goes = kind.origin, kind.goes
        assert origin is not None
        assert goes is not None
        total = goes.sum(axis=0)
        share = np.divide(sent, total, out=np.zeros_like(total), where=total > 0).clip(0.0, 1.0)
        pool, row = joint.needs[need]
        profile = joint.fluids[pool].problem.profiles[row]
        moves.append(Transfer(origin, (pool, profile), dict(kind.places)[need], goes * share))
    return moves
