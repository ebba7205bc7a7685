"""Checks a packing again from the problem alone, item by item; shares no code with the methods."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator

from gpuplanner.hardware.layout import Layout, Placement, layout_faults
from gpuplanner.packing.problem import AnyProblem, MigPackingProblem, PackingProblem
from gpuplanner.packing.result import STOPS, CostedPacking, Packing
from gpuplanner.schemas.vocabulary import WHOLE_GPU


def verify_packing(packing: Packing, problem: AnyProblem) -> list[str]:
    """List everything that is wrong with a packing.

    Parameters
    ----------
    packing : Packing
        The packing.
    problem : PackingProblem or MigPackingProblem
        The problem that it answers.

    Returns
    -------
    list of str
        Faults in words; empty if the packing holds. Whether the lower bound is true cannot be seen from a
        packing, only that it contradicts neither the packing nor the load at any moment.

    Examples
    --------
    >>> import numpy as np
    >>> problem = PackingProblem([0, 1], [2, 3], [60, 50], 100)
    >>> verify_packing(Packing(1, 1, np.array([0, 0]), None, "proof", 0.0), problem)
    ['bin 0 holds 110 of 100 at moment 1: items 0, 1', ...]
    """
    bins = [int(number) for number in packing.assignment]
    count = len(problem.starts)
    if len(bins) != count:
        return [f"{len(bins)} assignments for {count} items"]
    faults = [f"item {item} has no bin" for item, number in enumerate(bins) if number < 0]
    if not faults and sorted(set(bins)) != list(range(packing.bins)):
        faults.append(f"bins in use are {len(set(bins))}, not 0 to {packing.bins - 1}")
    members: dict[int, list[int]] = defaultdict(list)
    for item, number in enumerate(bins):
        members[number].append(item)
    for number, items in sorted(members.items()):
        if isinstance(problem, MigPackingProblem):
            faults += _gpu_faults(packing, problem, number, items)
        else:
            faults += _load_faults(problem, number, items)
    return faults + _claim_faults(packing, problem)


def verify_cost(
    found: CostedPacking, problem: AnyProblem, *, bin_cost: float, fire_up_cost: float, busy_cost: float
) -> list[str]:
    """List everything that is wrong with a packing and its cost.

    Parameters
    ----------
    found : CostedPacking
        The packing with its cost.
    problem : PackingProblem or MigPackingProblem
        The problem that it answers.
    bin_cost, fire_up_cost, busy_cost : float
        The costs that were asked for.

    Returns
    -------
    list of str
        Faults in words; empty if packing and cost hold.
    """
    on: dict[int, set[int]] = defaultdict(set)
    instants = sorted({int(t) for t in problem.starts} | {int(t) for t in problem.ends})
    number_of = {instant: number for number, instant in enumerate(instants)}
    for item, number in enumerate(found.packing.assignment):
        first, last = number_of[int(problem.starts[item])], number_of[int(problem.ends[item])]
        on[int(number)].update(range(first, last))
    fire_ups = sum(step - 1 not in steps for steps in on.values() for step in steps)
    busy = sum(instants[step + 1] - instants[step] for steps in on.values() for step in steps)
    cost = bin_cost * len(on) + fire_up_cost * fire_ups + busy_cost * busy
    faults = verify_packing(found.packing, problem)
    for name, told, counted in (
        ("fire-ups", found.fire_ups, fire_ups), ("busy time", found.busy_time, busy), ("cost", found.cost, cost),
    ):  # fmt: skip
        if not math.isclose(told, counted, rel_tol=1e-9, abs_tol=1e-9):
            faults.append(f"{name} {told}, counted {counted}")
    if found.bound > found.cost:
        faults.append(f"bound {found.bound} above the cost {found.cost}")
    return faults


def _meetings(problem: AnyProblem, items: list[int]) -> Iterator[tuple[int, list[int]]]:
    """Each moment at which an item of a bin starts, with all that are active then."""
    starts, ends = problem.starts[items].tolist(), problem.ends[items].tolist()
    coming = sorted(zip(starts, items, ends, strict=True))
    active: list[tuple[int, int]] = []
    for moment, group in itertools.groupby(coming, key=lambda one: one[0]):
        active = [(item, end) for item, end in active if end > moment]
        active += [(item, end) for _, item, end in group]
        yield moment, sorted(item for item, _ in active)


def _load_faults(problem: PackingProblem, number: int, items: list[int]) -> list[str]:
    faults = []
    for moment, active in _meetings(problem, items):
        held = sum(int(problem.sizes[item]) for item in active)
        if held > problem.capacity:
            who = ", ".join(map(str, active))
            faults.append(f"bin {number} holds {held} of {problem.capacity} at moment {moment}: items {who}")
    return faults


def _gpu_faults(packing: Packing, problem: MigPackingProblem, number: int, items: list[int]) -> list[str]:
    if packing.places is None or len(packing.places) != len(problem.starts):
        return [f"GPU {number}: its instances have no start slices"]
    faults = []
    for moment, active in _meetings(problem, items):
        names = [problem.profiles[item] for item in active]
        if WHOLE_GPU in names:
            wrong = [f"{len(active) - 1} instances beside a GPU that is not cut"] if len(active) > 1 else []
        else:
            layout = Layout(
                tuple(
                    Placement.of(problem.board.profile(name), int(packing.places[item]))
                    for name, item in zip(names, active, strict=True)
                )
            )
            wrong = layout_faults(problem.board, layout)
        faults += [f"GPU {number} at moment {moment}: {fault}" for fault in wrong]
    return faults


def _claim_faults(packing: Packing, problem: AnyProblem) -> list[str]:
    faults = []
    if not 1 <= packing.lower_bound <= packing.bins:
        faults.append(f"lower bound {packing.lower_bound} is not from 1 to {packing.bins}, the bins in use")
    if packing.proven != (packing.bins == packing.lower_bound):
        faults.append(f"proven is {packing.proven} with {packing.bins} bins, bound {packing.lower_bound}")
    if packing.stopped_by not in STOPS:
        faults.append(f"stopped by {packing.stopped_by!r}, which is none of {', '.join(STOPS)}")
    if not math.isclose(packing.gap, 1 - packing.lower_bound / packing.bins, abs_tol=1e-12):
        faults.append(f"gap is {packing.gap}, bins and bound say otherwise")
    if isinstance(problem, PackingProblem):
        peak = _peak(problem)
        if packing.bins * problem.capacity < peak:
            faults.append(f"{packing.bins} bins of {problem.capacity} cannot hold the peak load of {peak}")
    return faults


def _peak(problem: PackingProblem) -> int:
    events = [(int(t), int(size)) for t, size in zip(problem.starts, problem.sizes, strict=True)]
    events += [(int(t), -int(size)) for t, size in zip(problem.ends, problem.sizes, strict=True)]
    load = peak = 0
    for _, change in sorted(events):  # ends come before starts of the same moment: they are negative
        load += change
        peak = max(peak, load)
    return peak
