"""Count and price again what a plan does to its GPUs between slots, from its counts alone."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpuplanner.planner.contract.plan import Plan
from gpuplanner.planner.contract.problem import PlanProblem
from gpuplanner.planner.verification.limits import power_for
from gpuplanner.schemas.vocabulary import WHOLE_GPU


@dataclass
class StateChanges:
    """Totals over the horizon, those into the first slot included where it is known what was before.

    - ``departures``: GPUs emptied.
    - ``changes``: GPUs that take up a layout; where others are released, those too that give theirs up and stay on.
    - ``cost``: What all of it costs, emptying and reboots included.
    """

    departures: int = 0
    changes: int = 0
    cost: float = 0.0


def state_changes(plan: Plan, problem: PlanProblem) -> StateChanges:
    """Add up what happens from slot to slot, layout by layout."""
    rows = zip(plan.counts.tolist(), plan.parked.tolist(), strict=True)
    states = [(_by_layout(plan, on), _by_layout(plan, kept)) for on, kept in rows]
    if problem.initial is not None:
        states.insert(0, (Counter(problem.initial), Counter(problem.parked or {})))
    found = StateChanges()
    for (on, kept), (on_later, kept_later) in itertools.pairwise(states):
        emptied, woken = on - on_later, on_later - on
        found.departures += emptied.total()
        if problem.prices is None:
            cuts = sum(gpus for layout, gpus in woken.items() if layout != WHOLE_GPU)
            found.cost += cuts * problem.change_gpu_hours
            found.changes += cuts
            # Whoever takes up no layout had none, or has given it up.
            never_cut = problem.gpus - sum(gpus for layout, gpus in on.items() if layout != WHOLE_GPU)
            found.changes += max(0, on_later[WHOLE_GPU] - never_cut)
            continue
        prices, board = problem.prices, problem.board
        held, held_later = (
            _with_uncut(problem, one + other) for one, other in ((on, kept), (on_later, kept_later))
        )
        taken, given = held_later - held, held - held_later
        found.changes += taken.total()
        found.cost += sum(gpus * prices.drain_of(board, layout) for layout, gpus in emptied.items())
        found.cost += woken.total() * prices.wake
        found.cost += sum(gpus * prices.dress_of(layout) for layout, gpus in taken.items())
        found.cost += sum(gpus * prices.strip_of(layout) for layout, gpus in given.items())
        modes = abs(held[WHOLE_GPU] - held_later[WHOLE_GPU])
        found.cost += modes * prices.mode + math.ceil(modes / problem.gpus_per_node) * prices.reboot
    return found


def parked_faults(plan: Plan, problem: PlanProblem) -> Iterator[str]:
    """Faults of the GPUs that are said to be parked; the counts of those on have none."""
    if plan.parked.shape != plan.counts.shape or (plan.parked < 0).any():
        yield f"parked: the shape is {plan.parked.shape}, expected {plan.counts.shape} of at least 0"
        return
    if problem.prices is None:
        if plan.parked.any():
            yield "parked: GPUs that are not needed are released, yet some are said to keep a layout"
        return
    if WHOLE_GPU in plan.layouts and plan.parked[:, plan.layouts.index(WHOLE_GPU)].any():
        yield "parked: GPUs that are not cut are not counted, they are what is left"
    held = plan.counts + plan.parked
    cut = held[:, [text != WHOLE_GPU for text in plan.layouts]].sum(axis=1)
    kept = max(problem.whole_gpus_kept, problem.limits.whole_nodes_kept * problem.gpus_per_node)
    for what, gpus, most in (
        ("on or parked", held.sum(axis=1), power_for(problem)),
        ("cut", cut, min(problem.gpus - kept, power_for(problem, cut=True))),
    ):
        for slot in np.flatnonzero(gpus > most)[:1].tolist():
            yield f"slot {slot}: {gpus[slot]} GPUs are {what}, there may be {most}"


def _by_layout(plan: Plan, counts: list[int]) -> Counter[str]:
    return Counter(dict(zip(plan.layouts, counts, strict=True)))


def _with_uncut(problem: PlanProblem, held: Counter[str]) -> Counter[str]:
    """All GPUs by layout: those that nothing is said of are not cut."""
    return held + Counter({WHOLE_GPU: problem.gpus - held.total()})
