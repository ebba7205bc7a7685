"""Check a problem before anybody works on it: everything that is wrong, at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np

from gpuplanner.errors import examples
from gpuplanner.planner.contract.limits import limit_faults
from gpuplanner.planner.contract.plain_values import is_amount, is_count
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.strict_json import LARGEST

if TYPE_CHECKING:
    from gpuplanner.planner.contract.problem import PlanProblem

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
    sound = is_amount(p.slot_hours) and _SHORTEST_H <= p.slot_hours <= _LONGEST_H
    if not sound:
        yield f"slot_hours must be from a second to a year, not {p.slot_hours!r}"
    if not isinstance(p.slot_start, datetime) or p.slot_start.utcoffset() is None:
        yield f"slot_start must be a datetime with time zone, not {p.slot_start!r}"
    elif sound and p.demand.ndim == 3:
        try:
            p.slot_start.astimezone(UTC) + p.n_slots * timedelta(hours=p.slot_hours)
        except OverflowError:
            yield f"slots must lie within the calendar, not {p.n_slots} from {p.slot_start} on"


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
            yield f"{name} must have one entry for each of {len(p.tenants)} tenants, not {got}"
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
            "demand must have the shape (tenants, profiles, slots), that is "
            f"({expected[0]}, {expected[1]}, at least 1), not {p.demand.shape}"
        )
        return
    for what, wrong in (("not finite", ~(np.abs(p.demand) <= LARGEST)), ("below 0", p.demand < 0)):
        places = np.argwhere(wrong)
        if len(places):
            i, j, t = places[0]
            yield f"demand is {what} {len(places)} times, first for {p.tenants[i]}, {p.profiles[j]}, slot {t}"


def _limit_faults(p: PlanProblem) -> Iterator[str]:
    if p.available is not None:
        if p.demand.ndim == 3 and len(p.available) != p.n_slots:
            yield f"available must have one entry for each of {p.n_slots} slots, not {len(p.available)}"
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
            yield "parked needs prices of states, and GPUs that are on before the first slot (initial)"
        elif "off" in p.parked or any(not is_count(n) for n in p.parked.values()) or held > p.gpus:
            yield f"parked and initial must name at most {p.gpus} GPUs together, not {dict(p.parked)}"
    if p.prices is not None:
        if p.prices.parked_price > p.on_price:
            yield f"a parked GPU must cost no more than one that is on, {p.on_price}, not {p.prices.parked_price}"
        strangers = sorted(set(p.prices.remaining_h) - {"gpu", *(one.name for one in p.board.profiles)})
        if strangers:
            yield f"remaining_h must be of profiles of {p.board.name}; unknown: {examples(strangers)}"


def _power_faults(p: PlanProblem) -> Iterator[str]:
    """Racks must have power for GPUs that keep a layout at first."""
    first = [(text, n) for kept in (p.initial, p.parked) for text, n in (kept or {}).items() if is_count(n)]
    held, cut = sum(n for _, n in first), sum(n for text, n in first if text != WHOLE_GPU)
    if held > p.gpus_held or cut > p.gpus_held_cut:
        yield (
            f"initial and parked must name at most {p.gpus_held} GPUs together, {p.gpus_held_cut} of them cut, as many "
            "as racks have power for (gpus_on_per_rack): leave out what is parked, it is then not cut"
        )
