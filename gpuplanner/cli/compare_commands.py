"""Commands that compare: ``compare``, ``fairness``, ``simulate``, ``binpack`` and inference services of ``plan``."""

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
    from gpuplanner.decision.quota_comparison import RulesComparison
    from gpuplanner.decision.quota_recommendation import QuotaAdvice
    from gpuplanner.decision.team_fairness import Fairness
    from gpuplanner.planner.packing_problem import AnyProblem, CostedPacking, Packing
    from gpuplanner.usage.job_history import FleetPools


@app.command()
@takes(
    "target_wait_minutes", "max_added_wait_minutes", "wait_percentile", "policies", "actuator", "projects", "quotas",
    "quotas_to_try", "gpu_mtbf_hours", "gang_slowdowns", "gpu_model", "seed"
)  # fmt: skip
def compare(
    scenario: ScenarioPath,
    given: Given,
    chart: Annotated[
        Path | None,
        chart_option("Write a chart of GPU-hours and added queue wait: .html (with all tables) or .svg (chart alone)."),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare operating policies by GPU-hours and queue wait.

    Each policy is fitted on earlier days and evaluated on later ones. --quotas,
    --quotas-to-try and --gpu-mtbf-hours add the queue wait of each team under
    them; --gang-slowdowns adds the GPU-hours lost by placement. GPU models are
    compared separately. The report prices a purchase.

    Example: gpuplanner compare build/mine --max-added-wait-minutes 10
    """
    from gpuplanner.decision.pool_decisions import ComparedFleet
    from gpuplanner.usage.job_history import split_into_pools

    require_outputs(chart, inputs=[scenario])
    asked = given.scenario(scenario)
    pools = split_into_pools(asked)
    each = compare_pools(pools, quiet=quiet)
    if chart is not None:
        from gpuplanner.report.policy_and_team_sections import write_ways

        write_ways(each, chart, title=f"Equal service: {asked.name}", locale=asked.number_locale)
        say(f"written: {chart}")
    more = {name: _also_asked(own) for name, own in pools.pools.items()}
    if as_json:
        told = {name: one.to_dict() | _plain_effects(more[name]) for name, one in each.items()}
        fleet = ComparedFleet(each).to_dict() | {"pools": told}
        show(fleet if pools.several else next(iter(told.values())), as_json=True)
        return
    show_pools(each, quiet=quiet, more=more)


def _also_asked(asked: Scenario) -> dict[str, Any]:
    """Effects of sharing rules, failures and distance on the same weeks, where a scenario states them."""
    from gpuplanner.decision.quota_comparison import compare_placements, compare_stated_rules, states_sharing_rules

    found: dict[str, Any] = {"sharing": compare_stated_rules(asked)} if states_sharing_rules(asked) else {}
    if asked.gang_slowdowns is not None:
        found["placements"] = compare_placements(asked)
    return found


def _plain_effects(found: Mapping[str, Any]) -> dict[str, object]:
    """Effects as JSON has them: a frame of placements as its rows, which :func:`show` makes of it."""
    return {name: part if name == "placements" else part.to_dict() for name, part in found.items()}


def _show_also_asked(found: Mapping[str, Any]) -> None:
    if "sharing" in found:
        _show_tried(found["sharing"])
    if "placements" in found:
        put("")
        show_frame(found["placements"], title="Jobs on several nodes by placement, losses a week")


def compare_pools(fleet: FleetPools, *, quiet: bool) -> dict[str, Comparison]:
    """Compare the policies of each pool, with a progress message for each."""
    from gpuplanner.decision.comparison_record import compare_policies

    found = {}
    for name, own in fleet.pools.items():
        say(f"comparing policies for {name} ...", quiet=quiet)
        found[name] = compare_policies(own)
    return found


def show_pools(
    each: Mapping[str, Comparison], *, quiet: bool, more: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Print what was found of each pool, with projects and `more` where that was asked, and what it is in all."""
    from gpuplanner.decision.pool_decisions import ComparedFleet

    several = len(each) > 1
    for name, one in each.items():
        if several or more is None:
            _put_heading(name)
        show_comparison(one, quiet=quiet)
        if more is not None:
            put(*(project.sentence for project in one.projects))
            _show_also_asked(more[name])
    if several:
        put("", ComparedFleet(each).decision_text)


def _put_heading(pool: str) -> None:
    put(f"\n{pool}\n{'=' * len(pool)}")


def show_comparison(found: Comparison, *, quiet: bool) -> None:
    """Print a comparison: the table of policies, the recommendation, next steps and confidence."""
    import polars as pl

    from gpuplanner.decision.comparison_record import format_limit, format_wait_target

    if found.rows:
        rows = [_row(one, found) for one in found.rows]
        show_frame(pl.DataFrame(rows, infer_schema_length=None), title=format_wait_target(found))
        put(format_limit(found))
    one = found.decision
    put(one.sentence)
    for number, step in enumerate(one.next_steps, start=1):
        put(f"  {number}  {step.text}")
    put(*one.confidence)
    if quiet:
        return
    say(*(f"missing: {missing.what}: {missing.command}" for missing in one.missing))
    if found.tuned_from is not None and found.judged_from is not None and found.judged_to is not None:
        judged = f"from {found.judged_from[:10]} to {found.judged_to[:10]}"
        say(f"fitted from {found.tuned_from[:10]}, evaluated {judged}")


def _show_tried(found: RulesComparison) -> None:
    put("")
    title = f"{found.after} instead of {found.before}: GPU-hours a week waited and lost ({found.blocks})"
    show_frame(found.teams.select(SHOWN_TRIED), title=title)
    put(found.verdict_sentence, *found.notes)


SHOWN_TRIED = (
    "team", "jobs", "wait_before_min", "wait_after_min", "waited_before", "waited_after", "change", "change_low",
    "change_high", "never_before", "never_after", "verdict", "lost_before", "lost_after", "stops_after",
    "failures_after",
)  # fmt: skip


def _row(one: PolicyRow, found: Comparison) -> dict[str, object]:
    from gpuplanner.decision.decision_types import TODAY

    why = one.reason or ""
    if one.gpu_hours is not None and not one.meets_target and not why:
        why = "above the maximum added wait"
    return {
        "policy": ("* " if one.policy == found.winner else "  ") + one.policy,
        "GPU-hours a week": one.gpu_hours_promised,
        "peak GPUs": one.peak_gpus,
        "added wait p95 (min)": one.added_wait_p95_minutes,
        "jobs delayed (share)": one.delayed_share,
        "power-ups a week": one.power_ups_per_week,
        "within added-wait limit": "baseline" if one.policy == TODAY else "yes" if one.meets_target else f"no: {why}",
    }


@app.command()
@takes("quotas", "gpu_model", "seed")
def fairness(
    scenario: ScenarioPath,
    given: Given,
    chart: Annotated[
        Path | None,
        chart_option(
            "Write a chart of allocated, lent and missing GPU-hours by team: .html (with all tables) or .svg."
        ),
    ] = None,
    ahead: Annotated[
        bool,
        Option(
            "--ahead",
            help="Also recommend quotas for the risk that each team accepts and checkpoint intervals, and show when "
            "budgets are used up.",
        ),
    ] = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Report each team's quota, fair share, usage and queue waits.

    Shows what each team lent and borrowed, its shortfall, the causes of its waits
    and its next step. GPU models are reported separately.

    Example: gpuplanner fairness build/mine/data --quotas quotas.yaml
    """
    from gpuplanner.decision.team_fairness import assess_fairness as account
    from gpuplanner.usage.job_history import split_into_pools

    require_outputs(chart, inputs=[scenario])
    asked = given.scenario(scenario)
    pools = split_into_pools(asked)
    each = {name: account(own) for name, own in pools.pools.items()}
    advice: dict[str, QuotaAdvice] = {}
    if ahead:
        from gpuplanner.decision.quota_recommendation import advise_quotas

        advice = {name: advise_quotas(own) for name, own in pools.pools.items()}
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
        say(f"quotas: {one.rules.source}; {one.basis}", *one.notes, quiet=quiet)
        for title, table in advice[name].titled_tables if ahead else ():
            show_frame(table, title=title)


def _show_teams(found: Fairness) -> None:
    import polars as pl

    from gpuplanner.usage.fair_share import NO_TENANT_LABEL

    put(found.shortfall_sentence)
    table = found.teams.select(
        "tenant", "entitled_gpus", "allocated_gpu_hours", "lent_gpu_hours", "borrowed_gpu_hours", "shortfall_gpu_hours",
        (100 * pl.col("fair_share_received")).alias("fair share received (%)"), "starved_hours",
        pl.col("mean_slowdown").alias("mean slowdown against a dedicated share"),
        (100 * pl.col("slower_share")).alias("jobs slower than on a dedicated share (%)"),
    )  # fmt: skip
    show_frame(table, title="Quota and usage by team")
    pairs = found.borrowed.filter(borrower=NO_TENANT_LABEL, lender=NO_TENANT_LABEL)
    between = found.borrowed.join(pairs, on=["borrower", "lender"], how="anti", maintain_order="left")
    title = f"GPU-hours borrowed between teams ('{NO_TENANT_LABEL}': unallocated quota)"
    show_frame(between.sort("gpu_hours", descending=True, maintain_order=True), title=title)
    put(*(f"{row['tenant']}: {row['why']} {row['next_step']}" for row in found.teams.iter_rows(named=True)))


_EXITS = {"time_limit": Exit.TIME_LIMIT, "user": Exit.INTERRUPTED}
_COSTS = {"bin_cost": 1.0, "fire_up_cost": 0.0, "busy_cost": 0.0}


@app.command()
def binpack(
    file: Annotated[
        Path,
        Argument(
            metavar="FILE",
            help="Text file: first line 'n capacity 0 0', then 'index start end size' of each item. With --gpu-model "
            "a CSV file with start, end, profile.",
        ),
    ],
    gpu_model: Annotated[
        str | None, Option(help="Pack MIG instances onto GPUs of this model; a unique prefix is enough.")
    ] = None,
    bin_cost: Annotated[
        float | None, Option(help="Minimize cost: cost of each GPU that is used. [default: 1 with another cost]")
    ] = None,
    fire_up_cost: Annotated[
        float | None, Option(help="Minimize cost: cost of each change of a GPU from empty to used.")
    ] = None,
    busy_cost: Annotated[
        float | None, Option(help="Minimize cost: cost of a unit of time in which a GPU is used.")
    ] = None,
    time_limit: Annotated[float, Option(min=0.1, help="Time limit in seconds.")] = 5.0,
    work_limit: Annotated[
        int | None, Option(min=1, help="Limit in million steps, for the same result on every machine.")
    ] = None,
    seed: Annotated[int, Option(min=0, help="Seed of the random numbers.")] = 0,
    out: Annotated[Path | None, Option("-o", "--out", help="CSV file that receives the bin of each item.")] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Pack jobs with known times onto the fewest GPUs.

    Also prints a proven lower bound on the number of GPUs.

    Example: gpuplanner binpack jobs.csv --gpu-model A100-80GB
    """
    from gpuplanner.core.output_writing import write_csv_safe
    from gpuplanner.planner.packing_verification import read_instances, read_packing

    require_outputs(out, inputs=[file])
    problem = read_packing(file) if gpu_model is None else read_instances(file, gpu_model)
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
    from gpuplanner.core.errors import require_no_faults
    from gpuplanner.planner.packing_costs import pack_for_cost
    from gpuplanner.planner.packing_search import pack
    from gpuplanner.planner.packing_verification import verify_cost, verify_packing

    if not costs:
        found = pack(problem, **limits)
        require_no_faults(f"packing of {file}", verify_packing(found, problem))
        return found, found
    cheap = pack_for_cost(problem, **(limits | costs))
    require_no_faults(f"packing of {file}", verify_cost(cheap, problem, **costs))
    return cheap, cheap.packing


Services = Annotated[
    Path | None, Option(metavar="DIR", help="Size inference services: folder of measured profiles, one CSV file each.")
]
Rates = Annotated[
    Path | None, Option(metavar="CSV", help="With --services: requests per second, one column for each service.")
]
Latencies = Annotated[Path | None, Option(metavar="CSV", help="With --services: latency limits in ms, as --rates.")]
Row = Annotated[int | None, Option(min=1, help="With --services: row of --rates and --latencies.")]
LatencyShare = Annotated[
    float | None, Option(help="With --services: share of the latency limit that a batch may take. [default: 0.45]")
]


MaybeScenario = Annotated[
    str | None,
    Argument(
        metavar="SCENARIO",
        help="Scenario YAML file, dataset folder written by 'gpuplanner ingest', or 'sample'; none with --services.",
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
            text = "--rates, --latencies, --row and --latency-share need --services"
    elif scenario is not None or assignments:
        text = "use --services without SCENARIO and without --set"
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
    return [] if out is None else [f"written: {out} (check it: gpuplanner verify {out})"]


def size_services(files: ServiceFiles, given: Given, *, out: Path | None, as_json: bool, quiet: bool) -> Exit:
    """Size the services of one scenario for the fewest GPUs, and print the plan."""
    import polars as pl

    from gpuplanner.planner.service_plan import BATCH_LATENCY_FRACTION, plan_services, services_to_json, verify_services
    from gpuplanner.planner.service_profiles import PROFILED_GPU_MODEL, read_service_demands, read_service_profiles

    require_outputs(out, inputs=[files.services, files.rates, files.latencies])
    gpu_model = given.fields.get("gpu_model", PROFILED_GPU_MODEL)
    profiles = read_service_profiles(files.services, gpu_model)
    names = profiles["service"].unique(maintain_order=True).to_list()
    rates, latencies = read_service_demands(files.rates, files.latencies, names, row=files.row)
    limits = {name: value for name, value in given.fields.items() if name != "gpu_model"}
    share = BATCH_LATENCY_FRACTION if files.latency_share is None else files.latency_share
    plan = plan_services(profiles, rates, latencies, gpu_model, latency_share=share, **limits)
    faults = verify_services(plan, profiles, rates, latencies)
    values = plan.to_dict()
    write_plan(out, lambda: services_to_json(plan, profiles, rates, latencies))
    if as_json:
        show(values, as_json=True)
    else:
        show({name: values[name] for name in values if name not in ("segments", "layouts")})
        segments = pl.DataFrame([{k: v for k, v in row.items() if k != "gpus"} for row in values["segments"]])
        show_frame(segments, title="Segments")
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
            help="CSV file of jobs, plain or gzip: job_id, submit_time and duration in seconds, num_gpus; optional "
            "tenant (the team) and limit_s.",
        ),
    ],
    *,
    gpus: Annotated[int, Option(min=1, help="GPUs of the fleet.")],
    gpus_per_node: Annotated[
        int | None, Option(min=1, help="GPUs of each node. [default: one pool without nodes]")
    ] = None,
    queue: Annotated[
        str,
        Option(
            help="Queue order: fifo (in order of arrival), pass (first fit: any job that fits), backfill (EASY), "
            "sjf (shortest job first) or fair (backfill, teams with the least recent use first)."
        ),
    ] = "fifo",
    curve: Annotated[
        bool, Option("--curve", help="Also show the wait curve: queue wait at 50 to 200 % of the GPUs.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show queue wait against number of GPUs for a list of jobs.

    Counts full GPUs, without MIG; 'gpuplanner compare' simulates MIG layouts.

    Example: gpuplanner simulate JOBS.csv --gpus 64 --queue backfill --curve
    """
    from gpuplanner.simulator.simple_queue import (
        read_job_list,
        simulate_job_list,
        summarize_run,
        tabulate_wait_curve,
        tabulate_waits,
    )

    table, remarks = read_job_list(jobs)
    say(*(f"{jobs.name}: {remark}" for remark in remarks), quiet=quiet)
    size = gpus_per_node or gpus
    outcomes = simulate_job_list(table, gpus=gpus, gpus_per_node=size, queue=queue)
    summary, waits = summarize_run(outcomes, gpus=gpus), tabulate_waits(outcomes)
    points = tabulate_wait_curve(table, gpus=gpus, gpus_per_node=size, queue=queue) if curve else None
    if as_json:
        curves = {} if points is None else {"curve": points}
        show({**summary, "waits": waits, **curves}, as_json=True)
        return
    show({LABELS[name]: value for name, value in summary.items()})
    put("")
    labelled = waits.with_columns(waits["measure"].replace_strict(LABELS))
    show_frame(labelled, title="Queue wait and completion time of the jobs (s)")
    if points is not None:
        show_frame(points, title="Queue wait by number of GPUs (s)")
