"""The commands ``plan``, ``report`` and ``demo``, and plans of a problem file."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from gpuplanner.cli.application import (
    Exit,
    Given,
    Json,
    Out,
    Overwrite,
    Quiet,
    app,
    put,
    require_outputs,
    say,
    show,
    show_frame,
    takes,
)
from gpuplanner.cli.compare_commands import (
    Latencies,
    LatencyShare,
    MaybeScenario,
    Rates,
    Row,
    Services,
    checkable,
    service_files,
    size_services,
    write_plan,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuplanner.core.scenario import Scenario
    from gpuplanner.decision.layout_planning import PlanChoice
    from gpuplanner.planner.layout_plan import Plan
    from gpuplanner.planner.plan_problem import PlanProblem
    from gpuplanner.planner.plan_variants import FleetPlan
    from gpuplanner.usage.job_history import FleetPools


_PLAN_KEYS = ("status", "objective", "bound", "gap", "unmet_gpu_hours", "changes")
"""What ``plan --json`` prints of any plan: scripts rely on it."""
FREE = "auto"
"""Method of the plan that stands beside one with few sets of layouts."""


def plan_file(path: str, how: dict[str, Any], out: Path | None, given: Given, *, as_json: bool, quiet: bool) -> Exit:
    """Plan the pools of a problem file, check the plans, print and write them."""
    from gpuplanner.decision.layout_planning import PlannedProblem, compare_plan_choices
    from gpuplanner.planner.layout_plan import plan_to_json
    from gpuplanner.planner.plan_variants import fleet_to_json, read_problems

    require_outputs(out, inputs=[path])
    pools = read_problems(path)
    asked = {"seed": 0, **how, **given.fields}
    fleet = _checked(path, pools, asked)
    free = _checked(path, pools, asked | {"method": FREE}) if how["method"] == "calendar" else fleet
    if len(pools) == 1:
        [(alone, problem)] = pools.items()
        write_plan(out, lambda: plan_to_json(fleet.plans[alone], problem))
    else:
        write_plan(out, lambda: fleet_to_json(fleet, pools))
    parts = {name: plan_figures(found, pools[name], as_json=as_json) for name, found in fleet.plans.items()}
    beside = {
        name: compare_plan_choices(
            PlannedProblem(pools[name], found), PlannedProblem(pools[name], free.plans[name]), FREE
        )
        for name, found in fleet.plans.items()
        if free is not fleet and found.is_feasible and free.plans[name].is_feasible
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
    say(f"{fleet.explanation} Found in {fleet.seconds:.1f} s.", *checkable(out), quiet=quiet)
    return plan_exit(fleet.status, timed_out=any(found.hit_time_limit for found in fleet.plans.values()))


def plan_pools(
    fleet: FleetPools, how: Mapping[str, Any], out: Path | None, *, compare: bool, as_json: bool, quiet: bool
) -> Exit:
    """Plan a fleet of several boards: each pool by itself, and what all of them cost; print and write them."""
    from gpuplanner.cli.compare_commands import compare_pools, show_pools
    from gpuplanner.decision.pool_decisions import plan_fleet
    from gpuplanner.planner.plan_variants import fleet_to_json

    planned = plan_fleet(fleet, **how, report_pool=lambda name: say(f"planning {name} ...", quiet=quiet))
    found = planned.combined_plan
    write_plan(out, lambda: fleet_to_json(planned.combined_plan, planned.problems))
    figures = fleet_figures(found)
    if not as_json:
        show_frame(planned.summary_table, title="Plans by pool")
        if planned.transfers:
            show_frame(planned.transfer_table, title="Demand served by another GPU model (mean instances)")
        if planned.transfer_text is not None:
            put(planned.transfer_text)
    took = f"{found.explanation}\nFound in {found.seconds:.1f} s."
    say(*planned.remarks, *idle_remarks(fleet), took, *checkable(out), quiet=quiet)
    kept = compare_pools(fleet, quiet=quiet) if compare else {}
    if as_json:
        pools = planned.pools.items()
        parts = {name: plan_figures(one.plan, one.problem, as_json=True) for name, one in pools}
        compared = {name: one.to_dict() for name, one in kept.items()} or None
        figures |= {"moves": planned.transfer_table.to_dicts()}
        show(figures | {"pools": parts, "comparison": compared, "remarks": planned.remarks}, as_json=True)
    elif kept:
        show_pools(kept, quiet=quiet)
    return plan_exit(found.status, timed_out=any(one.plan.hit_time_limit for one in planned.pools.values()))


def fleet_figures(fleet: FleetPlan) -> dict[str, object]:
    """What ``plan`` prints of the plans of several pools: their sums."""
    return {name: getattr(fleet, name) for name in ("status", "objective", "bound", "gap")} | {
        name: sum(getattr(found, name) for found in fleet.plans.values()) for name in ("unmet_gpu_hours", "changes")
    }


def idle_remarks(fleet: FleetPools) -> list[str]:
    """A sentence on GPU models that no job was allocated."""
    if not fleet.idle:
        return []
    listed = ", ".join(f"{gpus:,} × {name}" for name, gpus in fleet.idle.items())
    return [f"No plan for {listed}: no job was allocated them, and the ledger lists them as unallocated."]


def _checked(path: str, pools: Mapping[str, PlanProblem], asked: Mapping[str, Any]) -> FleetPlan:
    """The plans of a fleet, each checked again."""
    from gpuplanner.core.errors import require_no_faults
    from gpuplanner.planner.numbered_gpus import assign
    from gpuplanner.planner.plan_variants import plan_fleet, verify_fleet
    from gpuplanner.planner.plan_verification import verify

    fleet = plan_fleet(pools, **asked)
    faults = verify_fleet(fleet, pools)
    for name, found in fleet.plans.items():
        if found.is_feasible and not faults:
            faults = verify(found, pools[name], assign(found, pools[name]))
    require_no_faults(path, faults)
    return fleet


def plan_figures(found: Plan, problem: PlanProblem, *, as_json: bool) -> dict[str, object]:
    """What ``plan`` prints of a plan: its figures, and what changes of layout cost; in JSON, each of them."""
    from gpuplanner.planner.numbered_gpus import layout_changes

    figures: dict[str, object] = {key: getattr(found, key) for key in _PLAN_KEYS}
    if problem.gpu_model.profiles:
        # An idle GPU loses no work when it is partitioned; gpus_not_needed has the cost of draining it.
        cut = problem.change_gpu_hours if problem.prices is None else problem.prices.dress
        figures |= {"change_gpu_hours": cut, "change_takes": problem.change.describe_time()}
        figures |= {"departures": found.departures, "reboots": found.reboots}
        figures |= {"gpus_not_needed": problem.idle_gpus_text}
    if as_json and found.is_feasible:
        figures["layout_changes"] = layout_changes(found, problem).to_dicts()
    return figures


def show_choices(choices: Sequence[PlanChoice], of: str = "") -> None:
    """Print the few-changes plan beside the unrestricted plan, and a sentence on both."""
    import polars as pl

    from gpuplanner.decision.layout_planning import format_plan_choice, make_choice_table

    if choices:
        rows = make_choice_table(choices).drop("plan", "method")
        columns: dict[str, list[Any]] = {"figure": rows.columns}
        for one, row in zip(choices, rows.rows(), strict=True):
            columns[one.name] = [float(value) for value in row]
        put("")
        show_frame(pl.DataFrame(columns), title=f"Few-changes plan and unrestricted plan{of}")
        put(format_plan_choice(choices))


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


@app.command()
@takes("gpu_model", "seed", "work_limit", "time_limit_s")
def plan(
    scenario: MaybeScenario = None,
    *,
    given: Given,
    out: Annotated[Path | None, Option("-o", "--out", help="File to write, such as plan.json.")] = None,
    method: Annotated[
        str | None,
        Option(
            help="Solver: auto, milp, dp (small fleets), greedy, calendar (few layout mixes) or static. [default: "
            "calendar if the actuator drains whole nodes, else milp]"
        ),
    ] = None,
    calendars: Annotated[int | None, Option(min=1, help="Maximum number of layout mixes.")] = None,
    robust: Annotated[
        bool,
        Option(
            "--robust",
            help="Plan for the mean and two quantiles of demand, and choose the plan with the lowest mean "
            "cost over sample paths.",
        ),
    ] = False,
    compared: Annotated[
        bool,
        Option(
            "--compare/--no-compare", help="Also compare operating policies, which takes half a minute the first time."
        ),
    ] = True,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
    services: Services = None,
    rates: Rates = None,
    latencies: Latencies = None,
    row: Row = None,
    latency_share: LatencyShare = None,
) -> None:
    """Compute a MIG layout schedule with a proven optimality gap.

    The schedule changes layouts hour by hour. It is not the recommendation of
    'start', which is one layout: that is in its change bundle (export/README.md).
    With --services, size inference services for the fewest GPUs instead.

    Example: gpuplanner plan build/mine/data -o plan.json
    """
    from gpuplanner.cli.compare_commands import show_comparison
    from gpuplanner.core.errors import resolve_name
    from gpuplanner.decision.comparison_record import compare_policies as compared_ways
    from gpuplanner.decision.layout_planning import (
        compare_plan_with_fixed,
        compare_with_unrestricted,
        plan_view,
        weigh_plans_over_paths,
    )
    from gpuplanner.planner.layout_plan import plan_to_json
    from gpuplanner.planner.plan_search import PLAN_METHODS
    from gpuplanner.usage.job_history import history, split_into_pools

    files = service_files(scenario, given.assignments, services, rates, latencies, row, latency_share)
    if files is not None:
        if method is not None or calendars is not None:
            raise typer.BadParameter("use --services without --method and --calendars")
        raise typer.Exit(size_services(files, given, out=out, as_json=as_json, quiet=quiet))
    assert scenario is not None
    method = None if method is None else resolve_name(method, PLAN_METHODS, subject="method")
    if scenario.endswith(".json"):
        if given.assignments or "gpu_model" in given.fields:
            raise typer.BadParameter("use a problem file (.json) without --set and --gpu-model")
        how: dict[str, Any] = {"method": method or "auto", "calendars": calendars or 2}
        raise typer.Exit(plan_file(scenario, how, out, given, as_json=as_json, quiet=quiet))
    require_outputs(out, inputs=[scenario])
    asked = given.scenario(scenario)
    fleet = history(asked).fleet
    pools = split_into_pools(asked)
    if pools.several or fleet.untold:
        if robust:
            raise typer.BadParameter("--robust plans one pool: name its GPU model with --gpu-model")
        how = {"method": method, "calendars": calendars}
        raise typer.Exit(plan_pools(pools, how, out, compare=compared, as_json=as_json, quiet=quiet))
    fleet.require_board("plan")
    weighed = weigh_plans_over_paths(asked, method) if robust else None
    if weighed is None:
        planned = plan_view(asked, "rightsized", method, calendars=calendars)
    else:
        planned = weighed.plans[weighed.preferred_plan]
        if not as_json:
            show_frame(weighed.table, title=f"Cost over {weighed.n_paths} sample paths of demand")
            put(weighed.preference_text)
    found = planned.plan
    write_plan(out, lambda: plan_to_json(found, planned.problem))
    figures = plan_figures(found, planned.problem, as_json=as_json)
    choices = () if weighed is not None else compare_with_unrestricted(asked, planned)
    over = compare_plan_with_fixed(asked, planned)
    if as_json:
        figures |= {"plan_choices": choices, "over_fixed": over and vars(over)}
    else:
        show(figures)
        show_choices(choices)
        if over is not None:
            put(over.comparison_text)
    took = f"{found.explanation} Found in {found.seconds:.1f} s."
    say(*fleet.remarks(), took, *checkable(out), quiet=quiet)
    if compared:
        say("comparing policies ...", quiet=quiet)
    kept = compared_ways(asked) if compared else None
    if as_json:
        beside = {} if weighed is None else {"robust": weighed.to_dict()}
        show(figures | beside | {"comparison": None if kept is None else kept.to_dict()}, as_json=True)
    elif kept is not None:
        show_comparison(kept, quiet=quiet)
    raise typer.Exit(plan_exit(found.status, timed_out=found.hit_time_limit))


@app.command()
@takes("gpu_model", "seed", "work_limit", "time_limit_s", "tz", "price_usd_per_gpu_hour", "price_book", "currency")
def report(
    month: Annotated[
        str,
        Argument(
            metavar="MONTH[..MONTH]|DATA",
            help="Month YYYY-MM, 'all', or a scenario or dataset folder. A range such as 2026-01..2026-03 writes the "
            "missing months into one folder; '..' means every complete month of the data.",
        ),
    ],
    scenario: Annotated[
        str, Option("--scenario", "--data", help="Scenario YAML file, dataset folder, or 'sample'.")
    ] = "sample",
    *,
    given: Given,
    out: Annotated[Path | None, Option("-o", "--out", help="Output folder of the report.")] = None,
    ledger: Annotated[
        Path | None,
        Option(
            help="Parquet file that records forecasts and savings: the report shows the errors of past months and adds "
            "this one."
        ),
    ] = None,
    again: Annotated[
        list[str] | None, Option(metavar="MONTH", help="With a range: write this month again; repeatable.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the monthly report (HTML, Excel, PDF, JSON, manifests).

    Example: gpuplanner report 2026-10 --data build/mine/data -o reports/october
    """
    from gpuplanner.core.errors import ScenarioError

    several = re.fullmatch(r"[\d-]*\.\.[\d-]*", month) is not None
    if month != "all" and not several and (month == "sample" or Path(month).exists()):
        month, scenario = given.scenario(month).month or "all", month
    elif month != "all" and not several and not month[:1].isdigit():
        expected = "a month such as 2026-02, 'all', or the folder or scenario to report on"
        raise ScenarioError("report", expected, repr(month), "Give for example: gpuplanner report 2026-02.")
    asked = given.scenario(scenario)
    if asked.data == "sample":
        say("report on the bundled sample; name your dataset with --data", quiet=quiet)
    if several:
        from gpuplanner.cli.recurring_commands import report_chain

        if ledger is not None:
            raise typer.BadParameter("use --ledger with one month: a range keeps its own ledger")
        place = out or Path("reports") / asked.name.replace(" ", "-")
        report_chain(asked, month, place, again or [], as_json=as_json, quiet=quiet)
        return
    asked = replace(asked, month=None if month == "all" else month)
    place = out or Path("reports") / f"{asked.name.replace(' ', '-')}-{month}"
    _report(asked, place, as_json, quiet, inputs=[scenario, asked.data], ledger=ledger)


@app.command()
def demo(out: Out = Path("reports/demo"), as_json: Json = False, quiet: Quiet = False) -> None:
    """Run the full analysis on bundled sample data.

    Writes the report of one month in about two minutes. It compares two of the
    policies; 'gpuplanner compare sample' compares all.
    """
    from gpuplanner.core.scenario import Scenario

    # With these policies: a small frontier, within two minutes.
    _report(Scenario(month="2026-02", replications=10, policies="fewer_nodes,mig_static"), out, as_json, quiet)


def _report(
    asked: Scenario, out: Path, as_json: bool, quiet: bool, inputs: Sequence[str] = (), ledger: Path | None = None
) -> None:
    """Write the page of a fleet, of one board or of several, and print its findings in a few lines."""
    from gpuplanner.report.report_rendering import write_fleet_report, write_report
    from gpuplanner.usage.job_history import split_into_pools

    pools = split_into_pools(asked)
    if pools.several:
        if ledger is not None:
            raise typer.BadParameter("--ledger keeps the forecasts of one pool: name its GPU model with --gpu-model")
        found = write_fleet_report(
            pools, asked.name, out, inputs=inputs, tell=lambda name: say(f"evaluating {name} ...", quiet=quiet)
        )
        if as_json:
            show(found.to_dict(), as_json=True)
        else:
            put(found.decision_text, str(out / "index.html"))
        return
    stages = f"ledger, demand, forecast, plans, {asked.replications} replications"
    say(f"evaluating {asked.name}: {stages} ...", quiet=quiet)
    study = write_report(asked, out, inputs=inputs, ledger=ledger)
    if as_json:
        put(study.to_json())
    else:
        findings = (f"{number}. {finding}" for number, finding in enumerate(study.findings, start=1))
        put(*findings, str(out / "index.html"))
    if study.plan is not None and study.plan.hit_time_limit and not quiet:
        say(f"the planner stopped at the time limit: {study.plan.explanation}")
