"""Commands that compare: ``compare``, ``fairness``, ``simulate``, ``pack`` and inference services of ``plan``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from gpuplanner.cli.application import (
    Exit,
    Given,
    Json,
    Overwrite,
    Quiet,
    ScenarioPath,
    app,
    chart_option,
    put,
    require_outputs,
    say,
    say_written,
    show,
    show_frame,
    takes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuplanner.core.scenario import Scenario
    from gpuplanner.decision.comparison_record import Comparison, PolicyRow
    from gpuplanner.decision.quota_comparison import SharingTried
    from gpuplanner.decision.quota_recommendation import QuotaAdvice
    from gpuplanner.decision.team_fairness import Fairness
    from gpuplanner.planner.packing_problem import AnyProblem, CostedPacking, Packing
    from gpuplanner.usage.job_history import FleetPools


@app.command()
@takes(
    "wait_minutes", "wait_quantile", "policies", "path", "projects", "quotas", "quotas_to_try", "gpu_mtbf_hours",
    "gang_slowdowns",
    "board", "seed",
)  # fmt: skip
def compare(
    scenario: ScenarioPath,
    given: Given,
    chart: Annotated[
        Path | None,
        chart_option(
            "Draw GPU-hours against minutes: .html, a page of its own with all tables, or .svg, a picture."
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare ways to run the fleet: each is tuned to today's service on earlier days, and judged on later ones.

    With quotas, quotas to try or failures, also say which team waits more or less under them on the same weeks; with
    slow-downs of jobs on several nodes, the GPU-hours that these lose by placement.
    Of several GPU models, each by itself, quotas as well.
    """
    from gpuplanner.decision.pool_decisions import FleetCompared
    from gpuplanner.usage.job_history import pools_of

    require_outputs(chart, inputs=[scenario])
    asked = given.scenario(scenario)
    pools = pools_of(asked)
    each = compare_pools(pools, quiet=quiet)
    if chart is not None:
        from gpuplanner.report.policy_and_team_sections import write_ways

        write_ways(each, chart, title=f"Equal service: {asked.name}", locale=asked.number_locale)
        say(f"written: {chart}")
    more = {name: _also_asked(own) for name, own in pools.pools.items()}
    if as_json:
        told = {name: one.to_dict() | _plain_effects(more[name]) for name, one in each.items()}
        fleet = FleetCompared(each).to_dict() | {"pools": told}
        show(fleet if pools.several else next(iter(told.values())), as_json=True)
        return
    show_pools(each, quiet=quiet, more=more)


def _also_asked(asked: Scenario) -> dict[str, Any]:
    """Effects of sharing rules, failures and distance on the same weeks, where a scenario states them."""
    from gpuplanner.decision.quota_comparison import is_asked, placement_table, rules_tried

    found: dict[str, Any] = {"sharing": rules_tried(asked)} if is_asked(asked) else {}
    if asked.gang_slowdowns is not None:
        found["placements"] = placement_table(asked)
    return found


def _plain_effects(found: Mapping[str, Any]) -> dict[str, object]:
    """Effects as JSON has them: a frame of placements as its rows, which :func:`show` makes of it."""
    return {name: part if name == "placements" else part.to_dict() for name, part in found.items()}


def _show_also_asked(found: Mapping[str, Any]) -> None:
    if "sharing" in found:
        _show_tried(found["sharing"])
    if "placements" in found:
        put("")
        show_frame(found["placements"], title="Jobs on several nodes by placement; losses a week")


def compare_pools(fleet: FleetPools, *, quiet: bool) -> dict[str, Comparison]:
    """Compare the ways to run each pool, and say which is at hand."""
    from gpuplanner.decision.comparison_record import compared

    found = {}
    for name, own in fleet.pools.items():
        say(f"comparing ways to run {name} at the same service ...", quiet=quiet)
        found[name] = compared(own)
    return found


def show_pools(
    each: Mapping[str, Comparison], *, quiet: bool, more: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Print what was found of each pool, with projects and `more` where that was asked, and what it is in all."""
    from gpuplanner.decision.pool_decisions import FleetCompared

    several = len(each) > 1
    for name, one in each.items():
        if several or more is None:
            _put_heading(name)
        show_comparison(one, quiet=quiet)
        if more is not None:
            put(*(project.sentence for project in one.projects))
            _show_also_asked(more[name])
    if several:
        put("", FleetCompared(each).sentence)


def _put_heading(pool: str) -> None:
    put(f"\n{pool}\n{'=' * len(pool)}")


def show_comparison(found: Comparison, *, quiet: bool) -> None:
    """Print a comparison: the ways as a table, the decision in its sentence, what to do and how sure it is."""
    import polars as pl

    from gpuplanner.decision.comparison_record import limit_in_words, target_in_words

    if found.rows:
        rows = [_row(one, found) for one in found.rows]
        show_frame(pl.DataFrame(rows, infer_schema_length=None), title=target_in_words(found))
        put(limit_in_words(found))
    one = found.decision
    put(one.sentence)
    for number, step in enumerate(one.next_steps, start=1):
        put(f"  {number}  {step.text}")
    put(*one.how_sure)
    if quiet:
        return
    say(*(f"missing: {missing.what}: {missing.command}" for missing in one.missing))
    if found.tuned_from is not None and found.judged_from is not None and found.judged_to is not None:
        judged = f"from {found.judged_from[:10]} to {found.judged_to[:10]}"
        say(f"fitted from {found.tuned_from[:10]}, evaluated {judged}")


def _show_tried(found: SharingTried) -> None:
    put("")
    title = (
        f"{found.after} instead of {found.before}: GPU-hours a week waited and lost; intervals {found.blocks}"
    )
    show_frame(found.teams.select(SHOWN_TRIED), title=title)
    put(found.sentence, *found.notes)


SHOWN_TRIED = (
    "team", "jobs", "wait_before_min", "wait_after_min", "waited_before", "waited_after", "change", "change_low",
    "change_high", "never_before", "never_after", "verdict", "lost_before", "lost_after", "stops_after",
    "failures_after",
)  # fmt: skip


def _row(one: PolicyRow, found: Comparison) -> dict[str, object]:
    from gpuplanner.decision.decision_types import TODAY

    why = one.reason or ""
    if one.gpu_hours is not None and not one.meets_target and not why:
        why = "later than the limit"
    return {
        "policy": ("* " if one.policy == found.winner else "  ") + one.policy,
        "gpu_hours": one.gpu_hours_promised,
        "most_gpus": one.most_gpus,
        "added_minutes": one.added_minutes,
        "jobs_later": one.later_share,
        "power_ups": one.power_ups_per_week,
        "meets_limit": "baseline" if one.policy == TODAY else "yes" if one.meets_target else f"no: {why}",
    }


@app.command()
@takes("quotas", "board", "seed")
def fairness(
    scenario: ScenarioPath,
    given: Given,
    chart: Annotated[
        Path | None,
        chart_option(
            "Draw what teams held, lent and are owed: .html, a page with all tables, or .svg, a picture."
        ),
    ] = None,
    ahead: Annotated[
        bool,
        Option(
            "--ahead",
            help="Also look ahead: quotas for each team's stated risk and what each step costs the others, budgets and "
            "when they are used up, intervals between checkpoints.",
        ),
    ] = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what each team was due and got: lent, borrowed, owed, starved; why its jobs waited, and its next step.

    Of a fleet of several boards, board by board: quotas count on each.
    """
    from gpuplanner.decision.team_fairness import fairness as account
    from gpuplanner.usage.job_history import pools_of

    require_outputs(chart, inputs=[scenario])
    asked = given.scenario(scenario)
    pools = pools_of(asked)
    each = {name: account(own) for name, own in pools.pools.items()}
    advice: dict[str, QuotaAdvice] = {}
    if ahead:
        from gpuplanner.decision.quota_recommendation import quota_advice

        advice = {name: quota_advice(own) for name, own in pools.pools.items()}
    if chart is not None:
        from gpuplanner.report.policy_and_team_sections import write_teams

        write_teams(each, chart, ahead=advice, title=f"Teams: {asked.name}", locale=asked.number_locale)
        say(f"written: {chart}")
    if as_json:
        told = {name: one.to_dict() for name, one in each.items()}
        for name, advised in advice.items():
            told[name]["ahead"] = advised.to_dict()
        show({"pools": told} if pools.several else next(iter(told.values())), as_json=True)
        return
    for name, one in each.items():
        if pools.several:
            _put_heading(name)
        _show_teams(one)
        say(f"entitlements: {one.rules.source}; {one.basis}", *one.notes, quiet=quiet)
        for title, table in advice[name].told if ahead else ():
            show_frame(table, title=title)


def _show_teams(found: Fairness) -> None:
    from gpuplanner.usage.fair_share import NOBODY

    put(found.sentence)
    table = found.teams.select(
        "tenant", "entitled_gpus", got="held_gpu_hours", lent="lent_gpu_hours", borrowed="borrowed_gpu_hours",
        owed="owed_gpu_hours", got_of_due="satisfaction", starved_h="starvation_h", rho="mean_rho",
        later_than_alone="late_share",
    )  # fmt: skip
    show_frame(table, title="Teams, in GPU-hours")
    pairs = found.borrowed.filter(borrower=NOBODY, lender=NOBODY)
    between = found.borrowed.join(pairs, on=["borrower", "lender"], how="anti", maintain_order="left")
    title = "Who borrowed from whom; '-' lends what nobody asked for, and borrows what stood idle"
    show_frame(between.sort("gpu_hours", descending=True, maintain_order=True), title=title)
    put(*(f"{row['tenant']}: {row['why']} {row['next_step']}" for row in found.teams.iter_rows(named=True)))


_EXITS = {"time_limit": Exit.TIME_LIMIT, "user": Exit.INTERRUPTED}
_COSTS = {"bin_cost": 1.0, "fire_up_cost": 0.0, "busy_cost": 0.0}


@app.command()
def pack(
    file: Annotated[
        Path,
        Argument(
            metavar="FILE",
            help="First line 'n capacity 0 0', then 'index start end size' of each item; "
            "with --board, CSV with start, end, profile.",
        ),
    ],
    board: Annotated[
        str | None, Option(help="Pack MIG instances onto GPUs of this board; a unique prefix will do.")
    ] = None,
    bin_cost: Annotated[
        float | None, Option(help="Pack for cost: that of a GPU in use at all; 1 if only others are given.")
    ] = None,
    fire_up_cost: Annotated[
        float | None, Option(help="Pack for cost: that of each change of a GPU from empty to used.")
    ] = None,
    busy_cost: Annotated[
        float | None, Option(help="Pack for cost: that of a unit of time that a GPU is used.")
    ] = None,
    time_limit: Annotated[float, Option(min=0.1, help="Most seconds.")] = 5.0,
    work_limit: Annotated[
        int | None,
        Option(
            min=1,
            help="Most million steps; if it ends the search, the answer does not depend on the machine's speed.",
        ),
    ] = None,
    seed: Annotated[int, Option(min=0, help="Seed of everything random.")] = 0,
    out: Annotated[
        Path | None, Option("-o", "--out", help="Write the bin of each item here, as CSV.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Pack jobs that start, end and take a part of a GPU into few GPUs, or cheap ones, with a proven bound."""
    from gpuplanner.core.output_writing import write_csv_safe
    from gpuplanner.planner.packing_verification import read_instances, read_packing

    require_outputs(out, inputs=[file])
    problem = read_packing(file) if board is None else read_instances(file, board)
    asked = {"bin_cost": bin_cost, "fire_up_cost": fire_up_cost, "busy_cost": busy_cost}
    costs = {name: cost for name, cost in asked.items() if cost is not None}
    limits: dict[str, Any] = {"time_limit_s": time_limit, "work_limit": work_limit, "seed": seed}
    told, packing = _packed(file, problem, _COSTS | costs if costs else {}, limits)
    if out is not None:
        write_csv_safe(out, packing.to_frame())
    show(told.to_dict(), as_json=as_json)
    say_written(out, quiet=quiet)
    raise typer.Exit(_EXITS.get(packing.stopped_by, Exit.DONE))


def _packed(
    file: Path, problem: AnyProblem, costs: dict[str, float], limits: dict[str, Any]
) -> tuple[Packing | CostedPacking, Packing]:
    """What there is to say, and the packing: for few bins, or for the costs; checked again."""
    from gpuplanner.core.errors import require_sound
    from gpuplanner.planner.packing_costs import pack_for_cost
    from gpuplanner.planner.packing_search import pack
    from gpuplanner.planner.packing_verification import verify_cost, verify_packing

    if not costs:
        found = pack(problem, **limits)
        require_sound(f"packing of {file}", verify_packing(found, problem))
        return found, found
    cheap = pack_for_cost(problem, **(limits | costs))
    require_sound(f"packing of {file}", verify_cost(cheap, problem, **costs))
    return cheap, cheap.packing


Services = Annotated[
    Path | None, Option(metavar="DIR", help="Size services: folder of measured profiles, a CSV each.")
]
Rates = Annotated[
    Path | None, Option(metavar="CSV", help="Requests per second: a row a scenario, a column a service.")
]
Latencies = Annotated[Path | None, Option(metavar="CSV", help="Latency limits in ms, laid out as --rates.")]
Row = Annotated[int | None, Option(min=1, help="Row of --rates and --latencies, counted from 1.")]
LatencyShare = Annotated[
    float | None, Option(help="Share of a latency limit that a batch may take; 0.45 if not given.")
]


MaybeScenario = Annotated[
    str | None,
    Argument(
        metavar="SCENARIO",
        help="A scenario YAML file, a folder written by 'gpuplanner ingest', or 'sample'; none with --services.",
    ),
]


@dataclass(frozen=True)
class ServiceFiles:
    """Services to size: their profiles, and the row of rates and latency limits."""

    services: Path
    rates: Path
    latencies: Path
    row: int
    latency_share: float | None


def service_files(
    scenario: str | None,
    assignments: Sequence[str],
    services: Path | None,
    rates: Path | None,
    latencies: Path | None,
    row: int | None,
    latency_share: float | None,
) -> ServiceFiles | None:
    """Services to size, or None if the scenario is to be planned.

    Examples
    --------
    >>> service_files("sample", (), None, None, None, None, None) is None
    True
    """
    alone = all(value is None for value in (rates, latencies, row, latency_share))
    if services is None and scenario is not None and alone:
        return None
    if services is None:
        text = "give a SCENARIO, or --services with --rates and --latencies"
        if scenario is not None:
            text = "--rates, --latencies, --row and --latency-share belong to --services"
    elif scenario is not None or assignments:
        text = "--services stands alone: no SCENARIO and no --set beside it"
    elif rates is None or latencies is None:
        text = "--services needs --rates and --latencies"
    else:
        return ServiceFiles(services, rates, latencies, row or 1, latency_share)
    raise typer.BadParameter(text)


def write_plan(out: Path | None, text: Callable[[], str]) -> None:
    """Write a plan to a file, if one was asked for."""
    from gpuplanner.core.output_writing import write_atomically

    if out is not None:
        content = text()
        write_atomically(out, lambda path: path.write_text(content, encoding="utf-8"))


def checkable(out: Path | None) -> list[str]:
    """Name the file of a plan, if one was asked for, and the command that checks it."""
    return [] if out is None else [f"written: {out}; check it with 'gpuplanner verify {out}'"]


def size_services(files: ServiceFiles, given: Given, *, out: Path | None, as_json: bool, quiet: bool) -> Exit:
    """Size the services of one scenario for the fewest GPUs, and print the plan."""
    import polars as pl

    from gpuplanner.planner.service_plan import (
        LATENCY_SHARE,
        plan_services,
        services_to_json,
        verify_services,
    )
    from gpuplanner.planner.service_profiles import BOARD, read_service_demands, read_service_profiles

    require_outputs(out, inputs=[files.services, files.rates, files.latencies])
    board = given.fields.get("board", BOARD)
    profiles = read_service_profiles(files.services, board)
    names = profiles["service"].unique(maintain_order=True).to_list()
    rates, latencies = read_service_demands(files.rates, files.latencies, names, row=files.row)
    limits = {name: value for name, value in given.fields.items() if name != "board"}
    share = LATENCY_SHARE if files.latency_share is None else files.latency_share
    plan = plan_services(profiles, rates, latencies, board, latency_share=share, **limits)
    faults = verify_services(plan, profiles, rates, latencies)
    values = plan.to_dict()
    write_plan(out, lambda: services_to_json(plan, profiles, rates, latencies))
    if as_json:
        show(values, as_json=True)
    else:
        show({name: values[name] for name in values if name not in ("segments", "layouts")})
        segments = pl.DataFrame([{k: v for k, v in row.items() if k != "gpus"} for row in values["segments"]])
        show_frame(segments, title="segments")
        layouts = pl.DataFrame({"layout": values["layouts"]}, schema={"layout": pl.String})
        show_frame(layouts.group_by("layout", maintain_order=True).len("gpus"), title="GPUs by layout")
    say(*(f"problem: {fault}" for fault in faults))
    say(*checkable(out), quiet=quiet)
    if faults:
        return Exit.CHECK_FAILED
    return Exit.DONE if plan.proven else Exit.TIME_LIMIT


LABELS = {
    "mean_completion_s": "mean completion time (s)",
    "mean_wait_s": "mean queue wait (s)",
    "last_end_s": "last end (s)",
    "makespan_s": "first submission to last end (s)",
    "utilization": "GPUs allocated (share of GPU-time)",
    "wait_s": "queue wait (s)",
    "completion_s": "completion time (s)",
}
"""What each figure of the JSON output is called in the text output."""


@app.command()
def simulate(
    jobs: Annotated[
        Path,
        Argument(
            metavar="JOBS.csv",
            help="List of jobs, CSV, plain or gzip: job_id, submit_time and duration in seconds, num_gpus; "
            "optional tenant and limit_s.",
        ),
    ],
    *,
    gpus: Annotated[int, Option(min=1, help="GPUs of the fleet.")],
    gpus_per_node: Annotated[
        int | None, Option(min=1, help="GPUs of each node; one pool without nodes if not given.")
    ] = None,
    queue: Annotated[
        str,
        Option(
            help="Which job starts next: fifo (nobody passes), pass (whoever fits), backfill (EASY, by time limits), "
            "sjf (shortest first) or fair (recent use of the team first, with backfill)."
        ),
    ] = "fifo",
    curve: Annotated[
        bool, Option("--curve", help="Also show the waits on 50 to 200 % of the GPUs, in whole nodes.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Simulate queue waits of a list of jobs on a number of GPUs."""
    from gpuplanner.simulator.simple_queue import (
        draw_curve,
        read_job_list,
        simulate_job_list,
        summarize_run,
        tabulate_waits,
    )

    table, remarks = read_job_list(jobs)
    say(*(f"{jobs.name}: {remark}" for remark in remarks), quiet=quiet)
    size = gpus_per_node or gpus
    outcomes = simulate_job_list(table, gpus=gpus, gpus_per_node=size, queue=queue)
    summary, waits = summarize_run(outcomes, gpus=gpus), tabulate_waits(outcomes)
    points = draw_curve(table, gpus=gpus, gpus_per_node=size, queue=queue) if curve else None
    if as_json:
        curves = {} if points is None else {"curve": points}
        show({**summary, "waits": waits, **curves}, as_json=True)
        return
    show({LABELS[name]: value for name, value in summary.items()})
    put("")
    labelled = waits.with_columns(waits["measure"].replace_strict(LABELS))
    show_frame(labelled, title="Seconds over the jobs")
    if points is not None:
        show_frame(points, title="Queue wait against number of GPUs, seconds")
