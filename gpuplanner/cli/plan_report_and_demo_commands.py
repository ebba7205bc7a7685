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
    Json,
    Out,
    Overwrite,
    Quiet,
    ScenarioOptions,
    app,
    echo,
    find_data,
    notify,
    require_outputs,
    show,
    show_frame,
    with_fields,
)
from gpuplanner.cli.service_plan_options import (
    Latencies,
    LatencyShare,
    OptionalScenarioPath,
    Rates,
    Row,
    Services,
    check_service_options,
    size_services,
    write_plan,
    written_plan_lines,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuplanner.core.scenario import Scenario
    from gpuplanner.decision.layout_planning import PlanChoice
    from gpuplanner.planner.fleet_plans_and_comparisons import FleetPlan
    from gpuplanner.planner.layout_plan import Plan
    from gpuplanner.planner.plan_problem import PlanProblem
    from gpuplanner.usage.planning_history import FleetPools


_PLAN_JSON_KEYS = ("status", "objective", "bound", "gap", "unmet_gpu_hours", "changes")
"""Keys of a plan in ``plan --json``, on which scripts rely."""
UNRESTRICTED_METHOD = "auto"
"""Search method (``--method``) of the unrestricted plan that is compared with a plan of few layout mixes."""


def plan_problem_file(
    path: str, how: dict[str, Any], out: Path | None, options: ScenarioOptions, *, as_json: bool, quiet: bool
) -> Exit:
    """Plan the GPU pools of a problem file, verify, print and write the plans.

    Parameters
    ----------
    path : str
        Problem file (JSON).
    how : dict
        Search method and number of layout mixes.
    out : Path, optional
        File for the plans.
    options : ScenarioOptions
        Seed and limits of the search.
    as_json, quiet : bool
        Print JSON; print no messages.

    Returns
    -------
    Exit
        Exit code of the command.
    """
    from gpuplanner.decision.layout_planning import PlannedProblem, compare_plan_choices
    from gpuplanner.planner.fleet_plans_and_comparisons import fleet_to_json, read_problems
    from gpuplanner.planner.layout_plan import plan_to_json

    require_outputs(out, inputs=[path])
    pools = read_problems(path)
    search = {"seed": 0, **how, **options.fields}
    fleet = unrestricted = _plan_and_verify(path, pools, search)
    if how["method"] == "calendar":
        unrestricted = _plan_and_verify(path, pools, search | {"method": UNRESTRICTED_METHOD})
    if len(pools) == 1:
        [(pool_name, problem)] = pools.items()
        write_plan(out, lambda: plan_to_json(fleet.plans[pool_name], problem))
    else:
        write_plan(out, lambda: fleet_to_json(fleet, pools))
    parts = {name: printed_plan_values(plan, pools[name], as_json=as_json) for name, plan in fleet.plans.items()}
    choices_by_pool = {
        name: compare_plan_choices(
            PlannedProblem(pools[name], plan),
            PlannedProblem(pools[name], unrestricted.plans[name]),
            UNRESTRICTED_METHOD,
        )
        for name, plan in fleet.plans.items()
        if unrestricted is not fleet and plan.is_feasible and unrestricted.plans[name].is_feasible
    }
    if as_json:
        parts = {name: part | {"plan_choices": choices_by_pool.get(name, ())} for name, part in parts.items()}
    totals = printed_fleet_values(fleet)
    if len(pools) > 1:
        totals["pools"] = parts
    else:
        totals = next(iter(parts.values())) | totals
    show(totals, as_json=as_json)
    for name, plan in () if as_json else choices_by_pool.items():
        show_choices(plan, pool_suffix=f", {name}" if len(pools) > 1 else "")
    notify(f"{fleet.explanation} Found in {fleet.seconds:.1f} s.", *written_plan_lines(out), quiet=quiet)
    return exit_code_of_plan(fleet.status, timed_out=any(plan.hit_time_limit for plan in fleet.plans.values()))


def plan_pools(
    fleet: FleetPools, plan_options: Mapping[str, Any], out: Path | None, *, compare: bool, as_json: bool, quiet: bool
) -> Exit:
    """Plan each GPU pool of a fleet, print and write the plans and their sums.

    Parameters
    ----------
    fleet : FleetPools
        Scenario of each pool.
    plan_options : mapping
        Search method and number of layout mixes.
    out : Path, optional
        File for the plans.
    compare : bool
        Also compare operating policies.
    as_json, quiet : bool
        Print JSON; print no messages.

    Returns
    -------
    Exit
        Exit code of the command.
    """
    from gpuplanner.cli.compare_and_fairness_commands import compare_pools, show_pools
    from gpuplanner.decision.gpu_model_decisions import plan_fleet
    from gpuplanner.planner.fleet_plans_and_comparisons import fleet_to_json

    planned = plan_fleet(fleet, **plan_options, report_pool=lambda name: notify(f"planning {name} ...", quiet=quiet))
    fleet_plan = planned.combined_plan
    write_plan(out, lambda: fleet_to_json(planned.combined_plan, planned.problems))
    figures = printed_fleet_values(fleet_plan)
    if not as_json:
        show_frame(planned.summary_table, title="Plans by pool")
        if planned.transfers:
            show_frame(planned.transfer_table, title="Demand served by another GPU model (mean instances)")
        if planned.transfer_text is not None:
            echo(planned.transfer_text)
    summary = f"{fleet_plan.explanation}\nFound in {fleet_plan.seconds:.1f} s."
    notify(*planned.remarks, *idle_remarks(fleet), summary, *written_plan_lines(out), quiet=quiet)
    comparisons = compare_pools(fleet, quiet=quiet) if compare else {}
    if as_json:
        pools = planned.pools.items()
        parts = {
            name: printed_plan_values(pool_plan.plan, pool_plan.problem, as_json=True) for name, pool_plan in pools
        }
        comparison_values = {name: pool_plan.to_dict() for name, pool_plan in comparisons.items()} or None
        figures |= {"moves": planned.transfer_table.to_dicts()}
        show(figures | {"pools": parts, "comparison": comparison_values, "remarks": planned.remarks}, as_json=True)
    elif comparisons:
        show_pools(comparisons, quiet=quiet)
    timed_out = any(pool_plan.plan.hit_time_limit for pool_plan in planned.pools.values())
    return exit_code_of_plan(fleet_plan.status, timed_out=timed_out)


def printed_fleet_values(fleet: FleetPlan) -> dict[str, object]:
    """Return the values that are printed of the plans of several GPU pools, by label: their sums."""
    return {name: getattr(fleet, name) for name in ("status", "objective", "bound", "gap")} | {
        name: sum(getattr(plan, name) for plan in fleet.plans.values()) for name in ("unmet_gpu_hours", "changes")
    }


def idle_remarks(fleet: FleetPools) -> list[str]:
    """Return a sentence on the GPU models to which no job was allocated; empty if there is none."""
    if not fleet.idle:
        return []
    listed = ", ".join(f"{gpus:,} × {name}" for name, gpus in fleet.idle.items())
    return [f"No plan for {listed}: no job was allocated them, and the ledger lists them as unallocated."]


def _plan_and_verify(path: str, pools: Mapping[str, PlanProblem], search_options: Mapping[str, Any]) -> FleetPlan:
    """Plan the GPU pools of a fleet and verify each plan independently.

    Parameters
    ----------
    path : str
        Problem file, for errors.
    pools : mapping of str to PlanProblem
        Problem of each pool.
    search_options : mapping
        Method, seed and limits of the search.
    """
    from gpuplanner.core.errors import require_no_faults
    from gpuplanner.planner.fleet_plans_and_comparisons import plan_fleet, verify_fleet
    from gpuplanner.planner.numbered_gpus import assign
    from gpuplanner.planner.plan_verification import verify

    fleet = plan_fleet(pools, **search_options)
    faults = verify_fleet(fleet, pools)
    for name, plan in fleet.plans.items():
        if plan.is_feasible and not faults:
            faults = verify(plan, pools[name], assign(plan, pools[name]))
    require_no_faults(path, faults)
    return fleet


def printed_plan_values(plan: Plan, problem: PlanProblem, *, as_json: bool) -> dict[str, object]:
    """Return the values that are printed of a plan and of its layout changes, by label.

    Parameters
    ----------
    plan : Plan
        The plan.
    problem : PlanProblem
        Its fleet and demand.
    as_json : bool
        Add the list of layout changes.
    """
    from gpuplanner.planner.numbered_gpus import layout_changes

    figures: dict[str, object] = {key: getattr(plan, key) for key in _PLAN_JSON_KEYS}
    if problem.gpu_model.profiles:
        # An idle GPU loses no work when it is partitioned; gpus_not_needed has the cost of draining it.
        change_cost = problem.change_gpu_hours if problem.prices is None else problem.prices.dress
        figures |= {"change_gpu_hours": change_cost, "change_takes": problem.change.describe_time()}
        figures |= {"drained_gpus": plan.drained_gpus, "reboots": plan.reboots}
        figures |= {"gpus_not_needed": problem.idle_gpus_text}
    if as_json and plan.is_feasible:
        figures["layout_changes"] = layout_changes(plan, problem).to_dicts()
    return figures


def show_choices(choices: Sequence[PlanChoice], pool_suffix: str = "") -> None:
    """Print the few-changes plan beside the unrestricted plan, and a sentence on both.

    Parameters
    ----------
    choices : sequence of PlanChoice
        Both plans; empty: print nothing.
    pool_suffix : str
        End of the title that names a GPU pool.
    """
    import polars as pl

    from gpuplanner.decision.layout_planning import format_plan_choice, make_choice_table

    if choices:
        rows = make_choice_table(choices).drop("plan", "method")
        columns: dict[str, list[Any]] = {"figure": rows.columns}
        for choice, row in zip(choices, rows.rows(), strict=True):
            columns[choice.name] = [float(value) for value in row]
        echo("")
        show_frame(pl.DataFrame(columns), title=f"Few-changes plan and unrestricted plan{pool_suffix}")
        echo(format_plan_choice(choices))


def exit_code_of_plan(status: str, *, timed_out: bool) -> Exit:
    """Exit code of a plan from its status and whether its search reached the time limit.

    Examples
    --------
    >>> exit_code_of_plan("feasible", timed_out=True).name, exit_code_of_plan("infeasible", timed_out=False).name
    ('TIME_LIMIT', 'INFEASIBLE')
    """
    if status == "infeasible":
        return Exit.INFEASIBLE
    if status == "unknown":
        return Exit.NOTHING_IN_TIME
    return Exit.TIME_LIMIT if timed_out else Exit.DONE


@app.command("plan")
@with_fields("gpu_model", "seed", "work_limit", "time_limit_s")
def plan_layouts(
    scenario_path: OptionalScenarioPath = None,
    *,
    options: ScenarioOptions,
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
    compares: Annotated[
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
    from gpuplanner.cli.compare_and_fairness_commands import show_comparison
    from gpuplanner.core.errors import resolve_name
    from gpuplanner.decision.comparison_record import compare_policies as compare_policies
    from gpuplanner.decision.layout_planning import (
        compare_plan_with_fixed,
        compare_with_unrestricted,
        plan_view,
        simulate_plan,
        weigh_plans_over_paths,
    )
    from gpuplanner.planner.layout_plan import plan_to_json
    from gpuplanner.planner.plan_search import PLAN_METHODS
    from gpuplanner.usage.planning_history import history, split_into_pools

    files = check_service_options(scenario_path, options.assignments, services, rates, latencies, row, latency_share)
    if files is not None:
        if method is not None or calendars is not None:
            raise typer.BadParameter("use --services without --method and --calendars")
        raise typer.Exit(size_services(files, options, out=out, as_json=as_json, quiet=quiet))
    assert scenario_path is not None
    method = None if method is None else resolve_name(method, PLAN_METHODS, subject="method")
    if scenario_path.endswith(".json"):
        if options.assignments or "gpu_model" in options.fields:
            raise typer.BadParameter("use a problem file (.json) without --set and --gpu-model")
        plan_options: dict[str, Any] = {"method": method or "auto", "calendars": calendars or 2}
        raise typer.Exit(plan_problem_file(scenario_path, plan_options, out, options, as_json=as_json, quiet=quiet))
    require_outputs(out, inputs=[scenario_path])
    scenario = options.make_scenario(scenario_path)
    fleet = history(scenario).fleet
    pools = split_into_pools(scenario)
    if pools.several or fleet.has_jobs_without_gpu_model:
        if robust:
            raise typer.BadParameter("--robust plans one pool: name its GPU model with --gpu-model")
        plan_options = {"method": method, "calendars": calendars}
        raise typer.Exit(plan_pools(pools, plan_options, out, compare=compares, as_json=as_json, quiet=quiet))
    fleet.require_catalogue_model("plan")
    weighed_plans = weigh_plans_over_paths(scenario, method) if robust else None
    if weighed_plans is None:
        planned = plan_view(scenario, "rightsized", method, calendars=calendars)
    else:
        planned = weighed_plans.plans[weighed_plans.preferred_plan]
        if not as_json:
            show_frame(weighed_plans.table, title=f"Cost over {weighed_plans.n_paths} sample paths of demand")
            echo(weighed_plans.preference_text)
    layout_plan = planned.plan
    write_plan(out, lambda: plan_to_json(layout_plan, planned.problem))
    figures = printed_plan_values(layout_plan, planned.problem, as_json=as_json)
    weeks = simulate_plan(scenario, planned)
    choices = () if weighed_plans is not None else compare_with_unrestricted(scenario, planned, weeks)
    gain_over_fixed = compare_plan_with_fixed(scenario, planned, weeks)
    if as_json:
        figures |= {"plan_choices": choices, "over_fixed": gain_over_fixed and vars(gain_over_fixed)}
    else:
        show(figures)
        show_choices(choices)
        if gain_over_fixed is not None:
            echo(gain_over_fixed.comparison_text)
    summary = f"{layout_plan.explanation} Found in {layout_plan.seconds:.1f} s."
    notify(*fleet.remarks(), summary, *written_plan_lines(out), quiet=quiet)
    if compares:
        notify("comparing policies ...", quiet=quiet)
    comparison = compare_policies(scenario) if compares else None
    if as_json:
        robust_part = {} if weighed_plans is None else {"robust": weighed_plans.to_dict()}
        show(figures | robust_part | {"comparison": None if comparison is None else comparison.to_dict()}, as_json=True)
    elif comparison is not None:
        show_comparison(comparison, quiet=quiet)
    raise typer.Exit(exit_code_of_plan(layout_plan.status, timed_out=layout_plan.hit_time_limit))


@app.command()
@with_fields("gpu_model", "seed", "work_limit", "time_limit_s", "tz", "price_per_gpu_hour", "price_book", "currency")
def report(
    month: Annotated[
        str,
        Argument(
            metavar="MONTH[..MONTH]|DATA",
            help="Month YYYY-MM, 'all', or a scenario or dataset folder. A range such as 2026-01..2026-03 writes the "
            "missing months into one folder; '..' means every complete month of the data.",
        ),
    ],
    scenario_path: Annotated[
        str, Option("--scenario", "--data", callback=find_data, help="Scenario YAML file, dataset folder, or 'sample'.")
    ] = "sample",
    *,
    options: ScenarioOptions,
    out: Annotated[Path | None, Option("-o", "--out", help="Output folder of the report.")] = None,
    ledger: Annotated[
        Path | None,
        Option(
            help="Parquet file that records forecasts and savings: the report shows the errors of past months and adds "
            "this one."
        ),
    ] = None,
    months_again: Annotated[
        list[str] | None, Option("--again", metavar="MONTH", help="With a range: write this month again; repeatable.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the monthly report (HTML, Excel, PDF, JSON, manifests).

    Example: gpuplanner report 2026-10 --data build/mine/data -o reports/october
    """
    from gpuplanner.core.errors import ScenarioError

    is_range = re.fullmatch(r"[\d-]*\.\.[\d-]*", month) is not None
    if month != "all" and not is_range and (month == "sample" or Path(month).exists()):
        month, scenario_path = options.make_scenario(month).month or "all", month
    elif month != "all" and not is_range and not month[:1].isdigit():
        expected = "a month such as 2026-02, 'all', or the folder or scenario to report on"
        raise ScenarioError("report", expected, repr(month), "Give for example: gpuplanner report 2026-02.")
    scenario = options.make_scenario(scenario_path)
    if scenario.data == "sample":
        notify("report on the bundled sample; name your dataset with --data", quiet=quiet)
    if is_range:
        from gpuplanner.cli.check_watch_and_schedule_commands import report_month_range

        if ledger is not None:
            raise typer.BadParameter("use --ledger with one month: a range keeps its own ledger")
        folder = out or Path("reports") / scenario.name.replace(" ", "-")
        report_month_range(scenario, month, folder, months_again or [], as_json=as_json, quiet=quiet)
        return
    scenario = replace(scenario, month=None if month == "all" else month)
    folder = out or Path("reports") / f"{scenario.name.replace(' ', '-')}-{month}"
    _write_report(scenario, folder, as_json, quiet, inputs=[scenario_path, scenario.data], ledger=ledger)


@app.command()
def demo(out: Out = Path("reports/demo"), as_json: Json = False, quiet: Quiet = False) -> None:
    """Run the full analysis on bundled sample data.

    Writes the report of one month in about two minutes. It compares two of the
    policies; 'gpuplanner compare sample' compares all.
    """
    from gpuplanner.core.scenario import Scenario

    # Two policies, so that the demo ends within two minutes.
    _write_report(Scenario(month="2026-02", replications=10, policies="fewer_nodes,mig_static"), out, as_json, quiet)


def _write_report(
    scenario: Scenario, out: Path, as_json: bool, quiet: bool, inputs: Sequence[str] = (), ledger: Path | None = None
) -> None:
    """Write the report of a fleet with one or several GPU models, and print its findings.

    Parameters
    ----------
    scenario : Scenario
        Month, data and prices.
    out : Path
        Folder of the report.
    as_json, quiet : bool
        Print JSON; print no messages.
    inputs : sequence of str
        Input files, which no output may overwrite.
    ledger : Path, optional
        Parquet file of forecasts and savings.
    """
    from gpuplanner.report.report_rendering import write_fleet_report, write_report
    from gpuplanner.usage.planning_history import split_into_pools

    pools = split_into_pools(scenario)
    if pools.several:
        if ledger is not None:
            raise typer.BadParameter("--ledger keeps the forecasts of one pool: name its GPU model with --gpu-model")
        fleet_report = write_fleet_report(
            pools,
            scenario.name,
            out,
            inputs=inputs,
            report_progress=lambda name: notify(f"evaluating {name} ...", quiet=quiet),
        )
        if as_json:
            show(fleet_report.to_dict(), as_json=True)
        else:
            echo(fleet_report.decision_text, str(out / "index.html"))
        return
    stages = "ledger, demand, forecast, plans, policies"
    notify(f"evaluating {scenario.name}: {stages} ...", quiet=quiet)
    study = write_report(scenario, out, inputs=inputs, ledger=ledger)
    if as_json:
        echo(study.to_json())
    else:
        findings = (f"{number}. {finding}" for number, finding in enumerate(study.findings, start=1))
        echo(*findings, str(out / "index.html"))
    if study.plan is not None and study.plan.hit_time_limit and not quiet:
        notify(f"the planner stopped at the time limit: {study.plan.explanation}")
