"""The least cost of small problems: dynamic programming over numbered GPUs, each with any layout that the board allows.

Nothing of the planner's is used but the problem itself: layouts are placed on the memory slices anew, prices of ways
between the states of one GPU are added up anew, and what is served is tried for every number of instances.
"""

from __future__ import annotations

import itertools
from collections import Counter
from functools import cache

import numpy as np

from gpuplanner.hardware.gpu_models import GpuModel, as_gpu_model
from gpuplanner.hardware.mig_layouts import format_layout, parse_layout
from gpuplanner.planner.plan_problem import PlanProblem
from tests.planner.conftest import shortage_cost

MOST_STATES = 10_000


@cache
def every_layout(gpu_model: str) -> list[dict[str, int]]:
    """Every multiset of instances that some placement holds, by trying every start of every profile."""
    model = as_gpu_model(gpu_model)
    found: set[tuple[tuple[str, int], ...]] = set()

    def place(first: int, free: frozenset[int], held: Counter[str]) -> None:
        if held and within(model, held):
            found.add(tuple(sorted(held.items())))
        for at in range(first, model.memory_slices):
            for profile in model.profiles:
                slices = frozenset(range(at, at + profile.memory_slices))
                if at in profile.starts and slices <= free and held[profile.name] < profile.max_instances:
                    place(at + profile.memory_slices, free - slices, held + Counter([profile.name]))

    place(0, frozenset(range(model.memory_slices)), Counter())
    return [dict(one) for one in sorted(found)]


def within(model: GpuModel, held: Counter[str]) -> bool:
    """Whether engines and SMs suffice."""
    return all(
        sum(count * (model.profile(name).amount(what) or 0) for name, count in held.items()) <= most
        for what, most in model.budget.items()
    )


def does(model: GpuModel, instance: str, request: str) -> bool:
    """Whether an instance can do the work of a request."""
    if "gpu" in (instance, request):
        return instance == request
    return model.profile(instance).serves(model.profile(request))


def able(problem: PlanProblem, layout: str) -> tuple[tuple[tuple[str, ...], int], ...]:
    """Instances of a layout by what they can serve of what is wanted."""
    wanted = [p for p, row in zip(problem.profiles, problem.demand.sum(axis=0), strict=True) if row.any()]
    kinds: Counter[tuple[str, ...]] = Counter()
    for name, count in parse_layout(layout).items():
        kinds[tuple(p for p in wanted if does(problem.gpu_model, name, p))] += count
    return tuple(sorted((kind, count) for kind, count in kinds.items() if kind))


def layouts_of(problem: PlanProblem) -> list[str]:
    """All layouts; of those that no price and no request tells apart, one."""
    every = [*(problem.initial or {}), *(problem.parked or {}), "gpu"]
    every += [format_layout(one) for one in every_layout(problem.gpu_model.name)]
    kept: dict[object, str] = {}
    for text in dict.fromkeys(every):
        prices = problem.prices
        price = (0, 0) if prices is None else (prices.drain_cost(problem.gpu_model, text), prices.removal_cost(text))
        named = text if text in (*(problem.initial or {}), *(problem.parked or {}), "gpu") else ""
        kept.setdefault((able(problem, text), price, named), text)
    return list(kept.values())


def ways(problem: PlanProblem, layouts: list[str]) -> np.ndarray:
    """Cost for one GPU to come from each state to each other, reboots left out: on, then parked."""
    n, prices = len(layouts), problem.prices
    on, whole = np.arange(2 * n) < n, np.array([text == "gpu" for text in layouts] * 2)
    same = np.arange(2 * n)[:, None] % n == np.arange(2 * n)[None] % n
    itself = np.eye(2 * n, dtype=bool)
    if prices is None:  # parked stands for released: nothing is kept
        taken_up = (on & ~whole)[None] & ~itself
        return problem.change_gpu_hours * np.where(taken_up, 1.0, 0.0)
    drain = np.array([prices.drain_cost(problem.gpu_model, text) for text in layouts] * 2)
    made = np.array([0 if text == "gpu" else sum(parse_layout(text).values()) for text in layouts] * 2)
    leave, come = drain * on, prices.wake * on
    anew = prices.dress + prices.instance * (made[:, None] + made[None])
    anew = anew + prices.mode * (whole[:, None] != whole[None])
    return np.where(itself, 0.0, leave[:, None] + come[None] + np.where(same, 0.0, anew))


def service(problem: PlanProblem, layouts: list[str], slot: int) -> np.ndarray:
    """Price of unmet demand for every combination of layouts in use, the last place standing for none."""
    gpus, profiles = problem.gpus, problem.profiles
    kinds = sorted({kind for text in layouts for kind, _ in able(problem, text)})
    held = np.zeros((len(layouts) + 1, len(kinds)), dtype=int)
    for row, text in enumerate(layouts):
        for kind, count in able(problem, text):
            held[row, kinds.index(kind)] = count
    shapes = [[len(held) if i == j else 1 for j in range(gpus)] for i in range(gpus)]
    total = sum(held.reshape(*shape, len(kinds)) for shape in shapes)
    most = [int(np.ceil(problem.demand[:, p, slot].sum() - 1e-9)) for p in range(len(profiles))]
    subsets = [s for size in range(1, len(profiles) + 1) for s in itertools.combinations(profiles, size)]
    room = {s: total[..., [bool({*k} & {*s}) for k in kinds]].sum(axis=-1) for s in subsets}
    best = np.full(total.shape[:-1], np.inf)
    for served in itertools.product(*(range(m + 1) for m in most)):
        asked = dict(zip(profiles, served, strict=True))
        there = np.logical_and.reduce([room[s] >= sum(asked[p] for p in s) for s in subsets])
        np.minimum(best, np.where(there, shortage_cost(problem, slot, served), np.inf), out=best)
    return best


def exact_cost(problem: PlanProblem, most: int = MOST_STATES) -> float | None:
    """Cost of the best plan; None where there are too many states. One node, or nodes of one GPU."""
    layouts = layouts_of(problem)
    n, gpus = len(layouts), problem.gpus
    if (2 * n) ** gpus > most:
        return None
    one, prices = ways(problem, layouts), problem.prices
    cut = np.array([text != "gpu" for text in layouts] * 2)
    reboot = 0.0 if prices is None else prices.reboot
    switched = cut[:, None] != cut[None, :]
    if problem.gpus_per_node == 1:
        one, reboot = one + reboot * switched, 0.0
    assert gpus <= problem.gpus_per_node or reboot == 0

    def reached(value: np.ndarray, cost: np.ndarray) -> np.ndarray:
        for axis in range(gpus):
            flat = np.ascontiguousarray(np.moveaxis(value, axis, -1))
            rows = [(flat + column).min(axis=-1) for column in cost.T]
            value = np.moveaxis(np.array(rows), 0, axis)
        return value

    places = np.indices((2 * n,) * gpus)
    used = (places < n).sum(axis=0)
    cut_on = ((places < n) & cut[places]).sum(axis=0)
    held_cut = cut[places].sum(axis=0) if prices is not None else cut_on
    racks = np.arange(gpus) // problem.gpus_per_rack
    held = (places < n) | (cut[places] & (prices is not None))
    most_on = problem.limits.gpus_on_per_rack
    powered = np.logical_and.reduce(
        [held[racks == rack].sum(axis=0) <= (gpus if most_on is None else most_on) for rack in set(racks)]
    )
    value = np.zeros((2 * n,) * gpus)
    if problem.initial is not None:
        names = [(text, 0) for text, k in problem.initial.items() for _ in range(k)]
        names += [(text, n) for text, k in (problem.parked or {}).items() for _ in range(k)]
        names += [("gpu", n)] * (gpus - len(names))
        value[:] = np.inf
        value[tuple(layouts.index(text) + more for text, more in names)] = 0.0
    for slot in range(problem.n_slots):
        if slot or problem.initial is not None:
            free = reached(value, one) + reboot
            value = np.minimum(free, reached(value, np.where(switched, np.inf, one))) if reboot else free
        there = used <= problem.gpus_in_service[slot]
        there &= cut_on <= problem.gpus_in_service[slot] - problem.whole_gpus_kept
        there &= (held_cut <= gpus - problem.whole_gpus_kept) & powered
        idle = 0.0 if prices is None else prices.parked_price
        on = (problem.on_price * used + idle * (gpus - used)) * problem.interval_hours
        short = service(problem, layouts, slot)[tuple(np.minimum(places, n))]
        value = np.where(there, value + on + short, np.inf)
    return float(value.min())
