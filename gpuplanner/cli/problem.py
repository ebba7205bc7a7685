"""The part of ``plan`` that takes a problem file instead of a scenario: one pool, or a fleet of several."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuplanner.cli.app import Exit, put, say
from gpuplanner.cli.show import show, show_frame

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuplanner.cli.options import Given
    from gpuplanner.planner.several_pools import FleetPlan
    from gpuplanner.planner.contract.plan import Plan
    from gpuplanner.planner.contract.problem import PlanProblem
    from gpuplanner.study.future.calm import PlanChoice
    from gpuplanner.study.past.pools import FleetPools

_PLAN_KEYS = ("status", "objective", "bound", "gap", "unmet_gpu_hours", "changes")
"""What ``plan --json`` prints of any plan: scripts rely on it."""
FREE = "auto"
"""Method of the plan that stands beside one with few sets of layouts."""


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
    from gpuplanner.files.place import require_file
    from gpuplanner.files.single import write_atomically
    from gpuplanner.planner.several_pools import fleet_to_json, read_problems
    from gpuplanner.planner.contract.plan import plan_to_json
    from gpuplanner.study.future.calm import choices
    from gpuplanner.study.future.plans import Planned

    if out is not None:
        require_file(out, inputs=[path])
    pools = read_problems(path)
    asked = {"seed": 0, **how, **given.fields}
    fleet = _checked(path, pools, asked)
    free = _checked(path, pools, asked | {"method": FREE}) if how["method"] == "calendar" else fleet
    if out is not None:
        alone = next(iter(pools)) if len(pools) == 1 else None
        text = (
            fleet_to_json(fleet, pools) if alone is None else plan_to_json(fleet.plans[alone], pools[alone])
        )
        write_atomically(out, lambda to: to.write_text(text, encoding="utf-8"))
    parts = {name: plan_figures(found, pools[name], as_json=as_json) for name, found in fleet.plans.items()}
    beside = {
        name: choices(Planned(pools[name], found), Planned(pools[name], free.plans[name]), FREE)
        for name, found in fleet.plans.items()
        if free is not fleet and found.found and free.plans[name].found
    }
    if as_json:
        parts = {name: part | {"plan_choices": beside.get(name, ())} for name, part in parts.items()}
    totals = fleet_figures(fleet)
    if len(pools) > 1:
        totals["pools"] = parts
    else:
        totals = next(iter(parts.values())) | totals
    show(totals, as_json=as_json)
    for name, found in () if as_json else beside.items():
        show_choices(found, of=f", {name}" if len(pools) > 1 else "")
    if not quiet:
        say(f"{fleet.explanation} Found in {fleet.seconds:.1f} s.")
        if out is not None:
            say(f"written: {out}; check it with 'gpuplanner verify {out}'")
    return plan_exit(fleet.status, timed_out=any(found.hit_time_limit for found in fleet.plans.values()))


def plan_pools(
    fleet: FleetPools, how: Mapping[str, Any], out: Path | None, *, compare: bool, as_json: bool, quiet: bool
) -> Exit:
    """Plan a fleet of several boards: each pool by itself, and what all of them cost; print and write them."""
    from gpuplanner.cli.compare import compare_pools, show_pools
    from gpuplanner.files.single import write_atomically
    from gpuplanner.planner.several_pools import fleet_to_json
    from gpuplanner.study.future.fleet_plans import fleet_planned

    planned = fleet_planned(fleet, **how, tell=None if quiet else lambda name: say(f"planning {name} ..."))
    found = planned.plan
    if out is not None:
        text = fleet_to_json(planned.plan, planned.problems)
        write_atomically(out, lambda to: to.write_text(text, encoding="utf-8"))
    figures = fleet_figures(found)
    if not as_json:
        show_frame(planned.table, as_json=False, title="plans by pool, and their sum")
        if planned.transfers:
            show_frame(
                planned.moved, as_json=False, title="demand served by another GPU model, mean instances"
            )
        if planned.sentence is not None:
            put(planned.sentence)
    if not quiet:
        for remark in (*planned.remarks, *idle_remarks(fleet)):
            say(remark)
        say(f"{found.explanation}\nFound in {found.seconds:.1f} s.")
        if out is not None:
            say(f"written: {out}; check it with 'gpuplanner verify {out}'")
    kept = compare_pools(fleet, quiet=quiet) if compare else {}
    if as_json:
        parts = {
            name: plan_figures(one.plan, one.problem, as_json=True) for name, one in planned.pools.items()
        }
        compared = {name: one.to_dict() for name, one in kept.items()} or None
        figures |= {"moves": planned.moved.to_dicts()}
        show(figures | {"pools": parts, "comparison": compared, "remarks": planned.remarks}, as_json=True)
    elif kept:
        show_pools(kept, quiet=quiet)
    return plan_exit(found.status, timed_out=any(one.plan.hit_time_limit for one in planned.pools.values()))


def fleet_figures(fleet: FleetPlan) -> dict[str, object]:
    """What ``plan`` prints of the plans of several pools: their sums."""
    return {
        "status": fleet.status,
        "objective": fleet.objective,
        "bound": fleet.bound,
        "gap": fleet.gap,
        "unmet_gpu_hours": sum(found.unmet_gpu_hours for found in fleet.plans.values()),
        "changes": sum(found.changes for found in fleet.plans.values()),
    }


def idle_remarks(fleet: FleetPools) -> list[str]:
    """A sentence on boards that no job held."""
    listed = ", ".join(f"{gpus:,} × {name}" for name, gpus in fleet.idle.items())
    return (
        [f"No job held them, so nothing is planned for {listed}: they are in the ledger as free."]
        if listed
        else []
    )


def _checked(path: str, pools: Mapping[str, PlanProblem], asked: Mapping[str, Any]) -> FleetPlan:
    """The plans of a fleet, each checked again."""
    from gpuplanner.errors import require_sound
    from gpuplanner.planner.numbered.assign import assign
    from gpuplanner.planner.several_pools import plan_fleet, verify_fleet
    from gpuplanner.planner.verification.plans import verify

    fleet = plan_fleet(pools, **asked)
    faults = verify_fleet(fleet, pools)
    for name, found in fleet.plans.items():
        if found.found and not faults:
            faults = verify(found, pools[name], assign(found, pools[name]))
    require_sound(path, faults)
    return fleet


def plan_figures(found: Plan, problem: PlanProblem, *, as_json: bool) -> dict[str, object]:
    """What ``plan`` prints of a plan: its figures, and what changes of layout cost; in JSON, each of them."""
    from gpuplanner.planner.numbered.assign import layout_changes

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


def show_choices(choices: Sequence[PlanChoice], of: str = "") -> None:
    """Print the calm plan and the free one beside it, and what both are in a sentence."""
    import polars as pl

    from gpuplanner.study.future.calm import choice_sentence, choice_table

    if choices:
        rows = choice_table(choices).drop("plan", "method")
        sides = {
            one.name: [float(value) for value in row] for one, row in zip(choices, rows.rows(), strict=True)
        }
        put("")
        show_frame(
            pl.DataFrame({"plans": rows.columns} | sides),
            as_json=False,
            title=f"few sets of layouts, or any number{of}",
        )
        put(choice_sentence(choices))


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
