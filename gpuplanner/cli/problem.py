"""The part of ``plan`` that takes a problem file instead of a scenario: one pool, or a fleet of several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuplanner.cli.app import Exit, say
from gpuplanner.cli.show import show

if TYPE_CHECKING:
    from gpuplanner.cli.options import Given
    from gpuplanner.planner import Plan, PlanProblem

_PLAN_KEYS = ("status", "objective", "bound", "gap", "unmet_gpu_hours", "changes")
"""What ``plan --json`` prints of any plan: scripts rely on it."""


def plan_file(
    path: str,
    how: dict[str, Any],
    out: Path | None,
    given: Given,
    *,
    as_json: bool,
    quiet: bool,
) -> Exit:
    """Plan the pools of a problem file, check the plans, print and write them."""
    from gpuplanner.errors import require_sound
    from gpuplanner.files import require_file, write_atomically
    from gpuplanner.planner import (
        assign,
        certified,
        fleet_to_json,
        plan_fleet,
        plan_to_json,
        read_problems,
        verify,
        verify_fleet,
    )

    if out is not None:
        require_file(out, inputs=[path])
    pools = read_problems(path)
    fleet = plan_fleet(pools, **{"seed": 0, **how, **given.fields})
    faults = verify_fleet(fleet, pools)
    for name, found in fleet.plans.items():
        if found.found and not faults:
            faults = verify(found, pools[name], assign(found, pools[name]))
    require_sound(path, faults)
    if out is not None:
        plans = {name: certified(found, pools[name]) for name, found in fleet.plans.items()}
        fleet = replace(fleet, plans=plans)
        alone = next(iter(pools)) if len(pools) == 1 else None
        text = (
            fleet_to_json(fleet, pools) if alone is None else plan_to_json(fleet.plans[alone], pools[alone])
        )
        write_atomically(out, lambda to: to.write_text(text, encoding="utf-8"))
    parts = {name: plan_figures(found, pools[name], as_json=as_json) for name, found in fleet.plans.items()}
    totals: dict[str, object] = {
        "status": fleet.status,
        "objective": fleet.objective,
        "bound": fleet.bound,
        "gap": fleet.gap,
        "unmet_gpu_hours": sum(found.unmet_gpu_hours for found in fleet.plans.values()),
        "changes": sum(found.changes for found in fleet.plans.values()),
    }
    if len(pools) > 1:
        totals["pools"] = parts
    else:
        totals = next(iter(parts.values())) | totals
    show(totals, as_json=as_json)
    if not quiet:
        say(f"{fleet.explanation} Found in {fleet.seconds:.1f} s.")
        if out is not None:
            say(f"written: {out}; check it with 'gpuplanner verify {out}'")
    return plan_exit(fleet.status, timed_out=any(found.hit_time_limit for found in fleet.plans.values()))


def plan_figures(found: Plan, problem: PlanProblem, *, as_json: bool) -> dict[str, object]:
    """What ``plan`` prints of a plan: its figures, and what changes of layout cost; in JSON, each of them."""
    from gpuplanner.planner import layout_changes

    figures: dict[str, object] = {key: getattr(found, key) for key in _PLAN_KEYS}
    if problem.board.profiles:
        # A parked GPU has no work to lose when it is cut; what emptying it costs stands in gpus_not_needed.
        cut = problem.change_gpu_hours if problem.prices is None else problem.prices.dress
        figures |= {"change_gpu_hours": cut, "change_takes": problem.change.words()}
        figures |= {"departures": found.departures, "reboots": found.reboots}
        figures |= {"gpus_not_needed": problem.idle_words}
    if as_json and found.found:
        figures["layout_changes"] = layout_changes(found, problem).to_dicts()
    return figures


def plan_exit(status: str, *, timed_out: bool) -> Exit:
    """Exit code of a plan.

    Examples
    --------
    >>> plan_exit("feasible", timed_out=True).name, plan_exit("infeasible", timed_out=False).name
    ('TIME_LIMIT', 'INFEASIBLE')
    """
    if status == "infeasible":
        return Exit.INFEASIBLE
    if status == "unknown":
        return Exit.NOTHING_IN_TIME
    return Exit.TIME_LIMIT if timed_out else Exit.DONE
