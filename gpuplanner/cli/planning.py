"""Commands that walk: ``plan``, ``report`` and ``demo``."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuplanner.cli.app import app, put, say
from gpuplanner.cli.options import Given, Json, Out, Overwrite, Quiet, takes
from gpuplanner.cli.problem import plan_exit, plan_figures, plan_file, plan_pools, show_choices
from gpuplanner.cli.services import (
    Latencies,
    LatencyShare,
    MaybeScenario,
    Rates,
    Row,
    Services,
    service_files,
    size_services,
)
from gpuplanner.cli.show import show, show_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuplanner.scenario import Scenario
    from gpuplanner.study.past.pools import FleetPools


DEMO = "static_whole,static_mig"
"""Policies of the demo: a small frontier, within two minutes."""


@app.command()
@takes("board", "seed", "work_limit", "time_limit_s")
def plan(
    scenario: MaybeScenario = None,
    *,
    given: Given,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write plan.json here.")] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="auto, milp, dp (small fleets), greedy, calendar or static; without, few sets of layouts where "
            "the path empties whole nodes, else milp.",
        ),
    ] = None,
    calendars: Annotated[
        int | None, typer.Option(min=1, help="Most different layouts, for the calendar.")
    ] = None,
    robust: Annotated[
        bool,
        typer.Option(
            "--robust",
            help="Plan for the mean and two quantiles of demand, weigh each plan over sample paths, and take the one "
            "of least mean cost.",
        ),
    ] = False,
    compared: Annotated[
        bool,
        typer.Option(
            "--compare/--no-compare",
            help="Also hold today's fleet against policies at equal service: half a minute the first time.",
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
    """Plan MIG layouts over time, with a lower bound; with --services, size services for the fewest GPUs."""
    from gpuplanner.cli.compare import show_comparison
    from gpuplanner.files.place import require_file
    from gpuplanner.files.single import write_atomically
    from gpuplanner.names import resolve
    from gpuplanner.planner.methods.search import METHODS
    from gpuplanner.planner.contract.plan import plan_to_json
    from gpuplanner.study.decision.record import compared as compared_ways
    from gpuplanner.study.future.calm import calm_and_free
    from gpuplanner.study.future.fixed_layout import over_fixed
    from gpuplanner.study.future.plans import plan_view
    from gpuplanner.study.future.robust_plans import weigh_plans_over_paths
    from gpuplanner.study.past.history import history
    from gpuplanner.study.past.pools import pools_of

    files = service_files(scenario, given.assignments, services, rates, latencies, row, latency_share)
    if files is not None:
        if method is not None or calendars is not None:
            text = "--method and --calendars mean nothing with --services"
            raise typer.BadParameter(text)
        raise typer.Exit(size_services(files, given, out=out, as_json=as_json, quiet=quiet))
    assert scenario is not None
    how: dict[str, Any] = {
        "method": None if method is None else resolve(method, METHODS, what="method"),
        "calendars": calendars,
    }
    if scenario.endswith(".json"):
        if given.assignments or "board" in given.fields:
            text = "a problem file takes no --set or --board"
            raise typer.BadParameter(text)
        how = {**how, "method": how["method"] or "auto", "calendars": calendars or 2}
        raise typer.Exit(plan_file(scenario, how, out, given, as_json=as_json, quiet=quiet))
    if out is not None:
        require_file(out, inputs=[scenario])
    asked = given.scenario(scenario)
    fleet = history(asked).fleet
    pools = pools_of(asked)
    if pools.several or fleet.untold:
        if robust:
            text = "--robust plans one pool: name its board with --board"
            raise typer.BadParameter(text)
        raise typer.Exit(plan_pools(pools, how, out, compare=compared, as_json=as_json, quiet=quiet))
    fleet.require_board("plan")
    weighed = weigh_plans_over_paths(asked, how["method"]) if robust else None
    if weighed is None:
        planned = plan_view(asked, "rightsized", **how)
    else:
        planned = weighed.plans[weighed.preferred]
        if not as_json:
            show_frame(
                weighed.table, as_json=False, title=f"plans over {weighed.n_paths} sample paths of demand"
            )
            put(weighed.sentence)
    found = planned.plan
    if out is not None:
        text = plan_to_json(found, planned.problem)
        write_atomically(out, lambda path: path.write_text(text, encoding="utf-8"))
    figures = plan_figures(found, planned.problem, as_json=as_json)
    choices = () if weighed is not None else calm_and_free(asked, planned)
    over = over_fixed(asked, planned)
    if as_json:
        figures |= {"plan_choices": choices, "over_fixed": over and vars(over)}
    else:
        show(figures, as_json=False)
        show_choices(choices)
        if over is not None:
            put(over.sentence)
    if not quiet:
        for remark in fleet.remarks():
            say(remark)
        say(f"{found.explanation} Found in {found.seconds:.1f} s.")
        if out is not None:
            say(f"written: {out}; check it with 'gpuplanner verify {out}'")
        if compared:
            say("comparing ways to run the fleet at the same service ...")
    kept = compared_ways(asked) if compared else None
    if as_json:
        beside = {} if weighed is None else {"robust": weighed.to_dict()}
        show(figures | beside | {"comparison": None if kept is None else kept.to_dict()}, as_json=True)
    elif kept is not None:
        show_comparison(kept, quiet=quiet)
    raise typer.Exit(plan_exit(found.status, timed_out=found.hit_time_limit))


@app.command()
@takes("board", "seed", "work_limit", "time_limit_s", "tz", "currency")
def report(
    month: Annotated[
        str,
        typer.Argument(
            metavar="MONTH[..MONTH]|DATA",
            help="YYYY-MM or 'all'; or what to report on, as a scenario: the month it names, else all. A range is a "
            "chain in one folder: what was done stands, what is missing is made up; '..' is all months of the data up "
            "to the last whole one.",
        ),
    ],
    scenario: Annotated[
        str, typer.Option("--scenario", "--data", help="Scenario YAML, trace folder, or 'sample'.")
    ] = "sample",
    *,
    given: Given,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Folder of the report.")] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="Parquet of past forecasts, with promised savings beside it: the page says how they did, and this "
            "month is added."
        ),
    ] = None,
    again: Annotated[
        list[str] | None,
        typer.Option("--again", metavar="MONTH", help="With a range: make this month anew; may be repeated."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the monthly report: one page, a workbook, study.json, the plan and its exports."""
    from gpuplanner.errors import ScenarioError, message

    several = re.fullmatch(r"[\d-]*\.\.[\d-]*", month) is not None
    if month != "all" and not several and (month == "sample" or Path(month).exists()):
        month, scenario = given.scenario(month).month or "all", month
    elif month != "all" and not several and not month[:1].isdigit():
        expected = "a month such as 2026-02, 'all', or the folder or scenario to report on"
        raise ScenarioError(message("report", expected, repr(month), "Check the path."))
    asked = given.scenario(scenario)
    if several:
        from gpuplanner.cli.recurring.months import report_chain

        if ledger is not None:
            text = "--ledger goes without a range: a chain keeps its own"
            raise typer.BadParameter(text)
        report_chain(
            asked,
            month,
            out or Path("reports") / asked.name.replace(" ", "-"),
            again or [],
            as_json=as_json,
            quiet=quiet,
        )
        return
    asked = replace(asked, month=None if month == "all" else month)
    place = out or Path("reports") / f"{asked.name.replace(' ', '-')}-{month}"
    _report(asked, place, as_json, quiet, inputs=[scenario, asked.data], ledger=ledger)


@app.command()
def demo(out: Out = Path("reports/demo"), as_json: Json = False, quiet: Quiet = False) -> None:
    """Walk the whole way on the bundled sample and write its report, with a few of the policies."""
    from gpuplanner.scenario import Scenario

    _report(Scenario(month="2026-02", replications=10, policies=DEMO), out, as_json, quiet)


def report_pools(
    pools: FleetPools,
    title: str,
    out: Path,
    *,
    as_json: bool,
    quiet: bool,
    inputs: Sequence[str | Path] = (),
) -> None:
    """Write the page of a fleet of several boards, and what it says in a few lines."""
    from gpuplanner.report.pools import write_fleet_report

    def tell(name: str) -> None:
        if not quiet:
            say(f"evaluating {name} ...")

    found = write_fleet_report(pools, title, out, inputs=inputs, tell=tell)
    if as_json:
        show(found.to_dict(), as_json=True)
    else:
        put(found.sentence)
        put(str(out / "index.html"))


def _report(
    asked: Scenario,
    out: Path,
    as_json: bool,
    quiet: bool,
    inputs: Sequence[str] = (),
    ledger: Path | None = None,
) -> None:
    from gpuplanner.report.render import write_report
    from gpuplanner.study.past.pools import pools_of

    pools = pools_of(asked)
    if pools.several:
        if ledger is not None:
            text = "--ledger remembers the forecasts of one pool: name its board with --board"
            raise typer.BadParameter(text)
        report_pools(pools, asked.name, out, as_json=as_json, quiet=quiet, inputs=inputs)
        return
    if not quiet:
        say(
            f"evaluating {asked.name}: ledger, demand, forecast, plans, {asked.replications} replications ..."
        )
    study = write_report(asked, out, inputs=inputs, ledger=ledger)
    if as_json:
        put(study.to_json())
    else:
        for number, finding in enumerate(study.findings, start=1):
            put(f"{number}. {finding}")
        put(str(out / "index.html"))
    if study.plan is not None and study.plan.hit_time_limit and not quiet:
        say(f"the plan is as far as it came within the time limit: {study.plan.explanation}")
