"""A plan in words: what drives it, who goes short, and the cheapest way out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from gpuplanner.planner.effort import Effort
from gpuplanner.planner.fluid import Fluid
from gpuplanner.planner.plan import Plan
from gpuplanner.planner.problem import Counts, Floats, PlanProblem
from gpuplanner.planner.slots import window_floors
from gpuplanner.schemas import WHOLE_GPU

_NAMED = 3
_SECONDS_FOR_WAY_OUT = 5.0


def explain_limits(problem: PlanProblem) -> str | None:
    """Why no plan keeps the limits, and the cheapest way out; None if some plan does.

    Only ``whole_gpus_kept`` can contradict the GPUs in service: unmet demand is always allowed, at its price.
    """
    short = problem.whole_gpus_kept - problem.gpus_in_service
    slots = np.flatnonzero(short > 0)
    if not len(slots):
        return None
    worst = int(short.argmax())
    in_service = int(problem.gpus_in_service[worst])
    return (
        f"In {len(slots)} of {problem.n_slots} slots, first at {_at(problem, int(slots[0]))}, fewer GPUs "
        f"are in service than are to be kept whole (at worst {in_service} against {problem.whole_gpus_kept}, "
        f"at {_at(problem, worst)}). Cheapest way out: keep at most {in_service} whole, or keep "
        f"{int(short.max())} more in service."
    )


def explain(plan: Plan, problem: PlanProblem, effort: Effort) -> str:
    """Describe a plan that was found.

    Parameters
    ----------
    plan : Plan
        The plan; its explanation is not read.
    problem : PlanProblem
        Its problem.
    effort : Effort
        Names the solver that computes the way out.

    Returns
    -------
    str
        Sentences.
    """
    return " ".join([_proof(plan), *_use(plan, problem), *_shortage(plan, problem, effort)])


def _proof(plan: Plan) -> str:
    if plan.status == "optimal":
        return "No plan costs less (proven)."
    stops = {
        "proof": "as asked",
        "passes": "all passes made",
        "time_limit": "the time was up",
        "user": "stopped by the user",
    }
    gap = f"{100 * (plan.gap or 0.0):.2f} %"
    return f"No plan can be cheaper by more than {gap} (proven); {stops[plan.stopped_by]}."


def _use(plan: Plan, problem: PlanProblem) -> Iterator[str]:
    on = plan.counts.sum(axis=1)
    if not on.any():
        yield "No GPU is needed." if not problem.required.any() else "No GPU is worth being on."
        return
    peak = int(on.argmax())
    load = problem.required[:, peak] * problem.shares
    driver = int(load.argmax())
    yield (
        f"On average {on.mean():.1f} of {problem.gpus} GPUs are on, most at {_at(problem, peak)}: "
        f"{on[peak]}, driven by {problem.profiles[driver]} ({problem.required[driver, peak]} instances, "
        f"{load[driver]:.1f} GPUs' worth). GPUs are cut {plan.changes} times."
    )


def _shortage(plan: Plan, problem: PlanProblem, effort: Effort) -> Iterator[str]:
    hours = _unmet_gpu_hours(plan, problem)
    total = float(hours.sum())
    if total == 0:
        yield "All demand is met."
        return
    yield f"{total:.1f} GPU-hours of demand are not met: {_who(hours, problem)}."
    full = _at_limit(plan, problem)
    by_slot = hours.sum(axis=(0, 1))
    dropped = float(by_slot[~full].sum())
    if dropped > 0:
        yield (
            f"{dropped:.1f} of them fall in slots with GPUs to spare: instances wanted for so short a part "
            "of a slot that their price does not cover a GPU."
        )
    if full.any() and by_slot[full].any():
        worst = int(np.where(full, by_slot, -1.0).argmax())
        yield from _way_out(problem, worst, effort)


def _unmet_gpu_hours(plan: Plan, problem: PlanProblem) -> Floats:
    """GPU-hours by tenant, profile and slot."""
    hours: Floats = plan.unmet * problem.shares[None, :, None] * problem.slot_hours
    return hours


def _who(hours: Floats, problem: PlanProblem) -> str:
    pairs = hours.sum(axis=2)
    order = [divmod(int(i), pairs.shape[1]) for i in np.argsort(-pairs, axis=None, kind="stable")]
    named = [(i, j) for i, j in order if pairs[i, j] > 0]
    parts = []
    for i, j in named[:_NAMED]:
        slot = int(hours[i, j].argmax())
        what = f"{pairs[i, j]:.1f} of {problem.profiles[j]}"
        parts.append(f"{problem.tenants[i]} lacks {what}, most at {_at(problem, slot)}")
    rest = len(named) - _NAMED
    return "; ".join(parts) + (f"; and {rest} more" if rest > 0 else "")


def _at_limit(plan: Plan, problem: PlanProblem) -> Counts:
    """Slots in which no further GPU may be on, or none may be cut."""
    service = problem.gpus_in_service
    cut = plan.counts[:, [layout != WHOLE_GPU for layout in plan.layouts]].sum(axis=1)
    full: Counts = (plan.counts.sum(axis=1) >= service) | (cut >= service - problem.whole_gpus_kept)
    return full


def _way_out(problem: PlanProblem, slot: int, effort: Effort) -> Iterator[str]:
    """GPUs that would serve all that is worth serving in the worst slot, cheapest source first."""
    alone = replace(
        problem,
        demand=problem.demand[:, :, slot : slot + 1],
        gpus=problem.gpus + int(problem.required[:, slot].sum()),
        whole_gpus_kept=0,
        available=None,
        initial=None,
        nodes=None,
    )
    limits = Effort.begin(
        gap_target=0.0, time_limit_s=_SECONDS_FOR_WAY_OUT, seed=effort.seed, solver=effort.solver
    )
    found = window_floors(Fluid.of(alone), 1, (), limits)
    if found is None:
        return
    service = int(problem.gpus_in_service[slot])
    wanted = int(found.states.sum())
    lacking = wanted - service + problem.whole_gpus_kept
    parts = []
    if problem.whole_gpus_kept and lacking > 0:
        freed = min(lacking, problem.whole_gpus_kept)
        parts.append(f"let {freed} of the GPUs kept whole be cut")
        lacking -= freed
    if problem.gpus > service and lacking > 0:
        back = min(lacking, problem.gpus - service)
        parts.append(f"put off the maintenance of {back} GPUs")
        lacking -= back
    if lacking > 0:
        parts.append(f"add {lacking} GPUs, or move the demand to slots with GPUs to spare")
    yield (
        f"The worst slot is {_at(problem, slot)}: {wanted} GPUs would serve all that is worth its price. "
        f"Cheapest way out: {'; '.join(parts) or 'wait for the neighbouring slots, where changes cost less'}."
    )


def _at(problem: PlanProblem, slot: int) -> str:
    return f"{problem.slot_times[slot]:%Y-%m-%d %H:%M} UTC"
