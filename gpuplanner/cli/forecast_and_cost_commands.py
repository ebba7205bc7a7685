"""The commands ``forecast`` and ``cost``."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from gpuplanner.cli.application import (
    Json,
    Overwrite,
    Quiet,
    ScenarioOptions,
    ScenarioPath,
    WorkersOption,
    app,
    echo,
    notify,
    notify_written,
    parse_time,
    parse_workers,
    require_outputs,
    show,
    show_frame,
    with_fields,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from gpuplanner.core.scenario import Scenario
    from gpuplanner.cost.monthly_cost_review import CostReview
    from gpuplanner.decision.purchase_and_refresh_plans import HardwareRefresh
    from gpuplanner.forecast.gpu_demand import DemandHistory


LEDGER_TITLES = {
    "Savings": "forecast and realized capacity freed, by month",
    "Baseline": "GPU-hours of each month against the first month",
    "Forecasts": "GPU-hours planned too many and too few, and their cost above a perfect forecast",
}
"""Titles, by their meaning, of the tables that ``cost --ledger`` makes from a savings record."""
COST_BREAKDOWNS = (
    "team", "user", "partition", "project", "tier", "job_class", "ownership", "bucket", "gpu_model", "end", "job"
)  # fmt: skip
"""Groups by which ``cost`` can break down a cost."""
CARBON_LABELS = {
    "location": "location-based carbon, kg", "market": "market-based carbon, kg", "embodied": "embodied carbon, kg",
}  # fmt: skip
"""Printed labels of carbon emissions by kind: location-based, market-based and embodied."""


@app.command()
@with_fields("month", "gpu_model", "price_per_gpu_hour", "price_book", "currency", "carbon_region", "carbon_file")
def cost(
    scenario_path: ScenarioPath,
    options: ScenarioOptions,
    by: Annotated[str, Option(metavar="|".join(COST_BREAKDOWNS), help="What to break the cost down by.")] = "team",
    focus: Annotated[Path | None, Option(metavar="FILE.csv", help="Write charge lines with FOCUS 1.2 columns.")] = None,
    bill: Annotated[Path | None, Option(metavar="DIR", help="Allocate an imported bill of the same GPU-hours.")] = None,
    workbook: Annotated[Path | None, Option(metavar="FILE.xlsx", help="Write the tables as an Excel workbook.")] = None,
    months: Annotated[int, Option(min=0, max=120, help="Months over which to compare buying, reserving, renting.")] = 0,
    risk: Annotated[
        float, Option(min=0, max=1, help="With --months: 0 for the lowest mean cost, 1 for the lowest CVaR (10 %).")
    ] = 0.0,
    refresh: Annotated[
        str | None,
        Option(metavar="MODEL=SPEED", help="With --months: when a newer GPU model of this relative speed pays off."),
    ] = None,
    burst: Annotated[
        Path | None,
        Option(metavar="RULES.yaml", help="Also list jobs to send to rented GPUs, by rules on teams and data."),
    ] = None,
    ledger: Annotated[
        Path | None, Option(exists=True, help="Savings record of 'report --ledger': forecast and realized savings.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Report cost, energy and carbon by team (showback).

    All tables sum to the cost of all installed GPU-hours, except those by end
    state and by job, which sum to the allocated part.
    Without your rate per GPU-hour, all GPUs, owned ones too, are valued at the
    public on-demand list price: a list-price equivalent, not an invoice and not
    your cost. State your rates in a price book first (prices.yaml).

    Example: gpuplanner cost build/mine --month 2026-10 --price-book prices.yaml
    """
    import polars as pl

    from gpuplanner.core.errors import ScenarioError
    from gpuplanner.cost.monthly_cost_review import cost_review
    from gpuplanner.decision.burst_plan import plan_burst, read_burst_rules
    from gpuplanner.decision.purchase_and_refresh_plans import plan_purchase
    from gpuplanner.decision.savings_track_record import (
        forecasts_file,
        price_forecast_errors,
        read_ledger,
        read_savings,
        savings_file,
        savings_sheets,
    )
    from gpuplanner.ingest.dataset_folder import open_dataset
    from gpuplanner.report.focus_files_and_workbooks import write_cost_workbook, write_focus
    from gpuplanner.usage.planning_history import history

    if by not in COST_BREAKDOWNS:
        raise typer.BadParameter(f"expected one of {', '.join(COST_BREAKDOWNS)}; got {by!r}", param_hint="--by")
    if risk and not months:
        raise typer.BadParameter("needs --months, such as --months 12", param_hint="--risk")
    require_outputs(focus, workbook, inputs=[scenario_path])
    scenario = options.make_scenario(scenario_path)
    charges = None if bill is None or bill.is_file() else open_dataset(bill).tables.get("charges")
    if bill is not None and charges is None:
        file, got = (bill, "a file") if bill.is_file() else ("FILES", "a dataset without charges")
        todo = f"Import the bill first: gpuplanner ingest focus {file} -o BILL."
        raise ScenarioError(f"--bill {bill}", "the folder of an imported bill", got, todo)
    review = cost_review(scenario, charges)
    if (scenario.month is not None or focus is not None) and review.partial_month_text:
        notify(f"warning: {review.partial_month_text}")
    savings = {} if ledger is None else savings_sheets(read_savings(savings_file(ledger)))
    if ledger is not None and review.price is not None:
        past_forecasts = read_ledger(forecasts_file(ledger))
        if past_forecasts.height:
            gpu_model = history(scenario).fleet.gpu_model
            savings["Forecasts"] = price_forecast_errors(past_forecasts, scenario, gpu_model, review.price.value)
    burst_jobs = None if burst is None else plan_burst(scenario, read_burst_rules(burst))
    purchase_result = plan_purchase(scenario, months, risk=risk) if months else None
    refresh_result = None if refresh is None else _parse_refresh(scenario, months, refresh)
    if focus is not None:
        if review.total is None:
            todo = "Give a price: --set price_per_gpu_hour=2.50."
            raise ScenarioError("--focus", "a price of the GPUs", review.missing[0], todo)
        first = review.period[0]
        last = (datetime.fromisoformat(review.period[1]) - timedelta(seconds=1)).isoformat()
        if scenario.month is None and first[:7] != last[:7]:
            got, todo = f"{first[:10]} to {last[:10]}", f"Add --month {last[:7]}."
            raise ScenarioError("--focus", "one calendar month, as a billing period is", got, todo)
    scope, rented = (getattr(purchase_result, name, "") for name in ("scope", "rent_name"))
    one_gpu = f"One GPU in use for {months} months, {scenario.currency}; break even: share of hours, against {rented}"
    if as_json:
        portfolio = purchase_result and purchase_result.to_dict()
        further_parts: dict[str, object] = {"portfolio": portfolio, "refresh": refresh_result, "burst": burst_jobs}
        further_parts["by_job"] = review.by_job if by == "job" else None
        further_parts = {name: part for name, part in further_parts.items() if part is not None}
        further_parts |= {name.lower(): table for name, table in savings.items()}
        show(review.to_dict() | further_parts, as_json=True)
    else:
        _show_cost_review(review, "tenant" if by == "team" else by)
        for name, table in savings.items():
            hidden = ("demand_ratio", "^(low|high)_gpu_hours$", "^(promised|demand|service|not|price).*_usd$")
            show_frame(table.select(pl.exclude(*hidden)), title=f"{name}: {LEDGER_TITLES[name]}")
        notes = list(review.missing)
        for part, tables in (
            (purchase_result, {"begin": "GPUs to buy or reserve, by start month", "costs": scope, "payments": one_gpu}),
            (refresh_result, {}),
            (burst_jobs, {"jobs": "Jobs to send to rented GPUs", "stays": "Jobs of these hours that stay"}),
        ):  # fmt: skip
            if part is not None:
                echo(f"\n{part.advice_sentence}")
                notes += getattr(part, "notes", ())
                for name, title in tables.items():
                    if getattr(part, name).height:
                        show_frame(getattr(part, name), title=title)
        # Assumed and missing prices belong to the answer; --quiet stops progress messages only.
        notify(*notes)
    # Files come last, and the second is written even if the first fails: neither costs the answer.
    try:
        if focus is not None:
            notify_written(write_focus(focus, review.costs), quiet=quiet)
    finally:
        if workbook is not None:
            notify_written(write_cost_workbook(workbook, review, savings), quiet=quiet)


def _show_cost_review(cost_review: CostReview, by: str) -> None:
    """Print the cost by a column, the costs by unit of work, and energy and carbon."""
    from gpuplanner.cost.monthly_cost_review import COST_TABLE_TITLES
    from gpuplanner.hardware.catalog import find_parameter

    if cost_review.total is not None:
        echo(cost_review.total_text)
        table = cost_review.breakdown(by)
        show_frame(table, title=f"{COST_TABLE_TITLES[by]}, {cost_review.currency}{cost_review.price_basis}")
        echo(cost_review.unallocated_text)
        show_frame(cost_review.units, title=f"Unit costs, {cost_review.currency}{cost_review.price_basis}")
        texts = cost_review.unit_cost_texts
        echo(*(f"{label[:1].upper()}{label[1:]}: {texts[label]}." for label in cost_review.work_costs))
    if cost_review.energy is not None:
        states = cost_review.states.select("state", "gpu_hours", "^energy_.*$", "^counted_.*$")
        states = states.rename({"counted_gpu_hours": "GPU-hours with a power reading"}, strict=False)
        factors = f"GPU energy × {find_parameter('host_factor').value:g} for the server × PUE {cost_review.pue:g}"
        show_frame(states, title=f"Energy by state (busy: used or without telemetry; idle: all others; {factors})")
        carbon = {CARBON_LABELS[name]: amount for name, amount in cost_review.carbon_kg.items()}
        for name, amount in ({"energy, kWh": cost_review.energy} | carbon).items():
            if amount is not None:
                echo(f"{name:<25} {amount.value:>14,.1f}  ({amount.low:,.1f} to {amount.high:,.1f})")
        if cost_review.yearly_mean_carbon_text:
            echo(f"location-based carbon without the hourly factors: {cost_review.yearly_mean_carbon_text}")


def _parse_refresh(scenario: Scenario, months: int, text: str) -> HardwareRefresh:
    """Parse ``--refresh MODEL=SPEED`` and find the month in which the newer GPU model pays off.

    Parameters
    ----------
    scenario : Scenario
        Fleet and prices.
    months : int
        Planning period. [months]
    text : str
        Value of the option.
    """
    from gpuplanner.decision.purchase_and_refresh_plans import plan_refresh

    gpu_model, _, number = text.partition("=")
    try:
        speed = float(number)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        expected = f"expected MODEL=SPEED, such as H200=1.4; got {text!r}"
        raise typer.BadParameter(expected, param_hint="--refresh")
    if not months:
        raise typer.BadParameter("needs --months, such as --months 36", param_hint="--refresh")
    return plan_refresh(scenario, months, gpu_model, speed)


BACKTEST_HORIZON, BACKTEST_GAP, N_CUTOFFS, CPU_BUDGET_S = 24, 6, 20, 1.0
"""Defaults of ``--backtest``: horizon and gap [intervals], number of cutoffs, CPU time for each series [s]."""
SERIES_KINDS = ("tenant", "gpu_model", "profile")
"""Values of ``forecast --by``: the column of which each value is a demand series."""


def _parse_intervals(text: str) -> int:
    """Parse a number of intervals, at least 1."""
    if not (text.isdecimal() and int(text) > 0):
        raise typer.BadParameter(f"expected intervals (1 h if not set otherwise), such as 168 for 7 days; got {text!r}")
    return int(text)


MIN_PARALLEL_CPU_S = 60.0
"""Expected CPU time of a backtest above which all processors are used by default. [s]"""


@app.command()
@with_fields("gpu_model", "seed")
def forecast(
    scenario_path: ScenarioPath,
    options: ScenarioOptions,
    is_backtest: Annotated[
        bool, Option("--backtest", help="Show the errors of each model over many cutoffs; needs no GPU model.")
    ] = False,
    horizon: Annotated[
        int | None,
        Option(parser=_parse_intervals, metavar="INTERVALS", help="Forecast horizon, in intervals (interval_hours)."),
    ] = None,
    gap: Annotated[int | None, Option(min=0, help="Intervals between the cutoff and the first forecast.")] = None,
    cutoffs: Annotated[
        int, Option(min=1, help="Number of backtest cutoffs; the first 40 % only calibrate the intervals: not scored.")
    ] = N_CUTOFFS,
    budget: Annotated[
        float, Option(min=0, help="Backtest CPU seconds for each series; the slowest models drop out first.")
    ] = CPU_BUDGET_S,
    models: Annotated[str | None, Option(help="Models to backtest, separated by commas.")] = None,
    workers: WorkersOption = None,
    with_known: Annotated[
        bool, Option("--known/--no-known", help="Use the jobs that run or wait at the cutoff.")
    ] = True,
    by: Annotated[
        str | None,
        Option(help="Series to forecast: tenant (GPUs of each team), gpu_model (of each) or profile (MIG instances)."),
    ] = None,
    at: Annotated[
        str | None, Option(metavar="TIME", help="Cutoff: later data are ignored; ISO 8601. [default: end of the data]")
    ] = None,
    paths: Annotated[Path | None, Option(help="Write sample demand paths (Parquet): unique_id, path, ds, y.")] = None,
    n_paths: Annotated[
        int | None, Option("--representatives", min=1, help="With --paths: reduce them to this many weighted ones.")
    ] = None,
    announced: Annotated[
        Path | None, Option(help="Announced jobs: tenant, start_time, end_time, gpus (CSV or Parquet).")
    ] = None,
    calendar: Annotated[
        Path | None, Option(help="Releases, holidays, maintenance: kind, start_time, end_time (CSV or Parquet).")
    ] = None,
    sums: Annotated[
        str | None, Option(help="Make series and their sum agree: mint (by past errors, the default), top or none.")
    ] = None,
    out: Annotated[Path | None, Option("-o", "--out", help="Write the backtest forecasts as Parquet.")] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Forecast GPU demand, with backtest errors of every model.

    MIG instances by profile, as 'plan' uses them (default): --gpu-model.

    GPUs by team, or by the series of --by, as soon as one of these is given:
    --by, --horizon, --gap, --at, --paths, --announced, --calendar, --sums.

    Errors of each model over many cutoffs, and no forecast: --backtest.

    --seed draws the sample paths behind the quantiles.

    Example: gpuplanner forecast build/mine/data --by gpu_model --horizon 168
    """
    from gpuplanner.core.errors import resolve_name
    from gpuplanner.core.stage_cache_and_data_folders import data_folder
    from gpuplanner.forecast.gpu_demand import lay_out_demand
    from gpuplanner.forecast.growth_and_announced_demand import read_calendar

    require_outputs(out, paths, inputs=[scenario_path])
    scenario = options.make_scenario(scenario_path)
    cutoff = parse_time(at, scenario.tz)
    if is_backtest and (announced is not None or sums is not None):
        raise typer.BadParameter("--announced and --sums are of a forecast: leave --backtest out")
    if not is_backtest and (out is not None or models is not None):
        raise typer.BadParameter("-o and --models need --backtest")
    forecast_options = (is_backtest or None, by, cutoff, paths, horizon, gap, announced, calendar, sums)
    if all(option is None for option in forecast_options) and (data_folder(scenario.data) / "jobs.parquet").is_file():
        _show_profile_forecast(scenario, as_json, quiet)
        return
    by = resolve_name(by or SERIES_KINDS[0], SERIES_KINDS, subject="--by")
    calendar_days = None if calendar is None else read_calendar(calendar)
    source = lay_out_demand(scenario, at=cutoff, by=by, calendar=calendar_days)
    if is_backtest:
        gap = BACKTEST_GAP if gap is None else gap
        _show_backtest(scenario, source, horizon or BACKTEST_HORIZON, gap, cutoffs, budget, models, workers, with_known,
                       paths, n_paths, out, as_json, quiet)  # fmt: skip
        return
    _show_forecast(scenario, source, by, horizon or scenario.horizon_intervals, gap or 0, with_known, announced, sums,
                   paths, n_paths, as_json, quiet)  # fmt: skip


def _show_profile_forecast(scenario: Scenario, as_json: bool, quiet: bool) -> None:
    """Print the forecast of MIG instances by profile, as ``plan`` uses it; several GPU models as ``model/profile``."""
    from gpuplanner.forecast.rolling_demand_forecast import fleet_forecast
    from gpuplanner.usage.planning_history import split_into_pools

    pools = split_into_pools(scenario)
    if scenario.projects is not None:
        from gpuplanner.decision.announced_projects import read_projects

        n_projects = len(read_projects(scenario.projects).projects)
        notify(f"{n_projects} announced projects are only part of a forecast with --by")
    outlook, pooled_scores, left_out = fleet_forecast(pools)
    if as_json:
        rows = {name: getattr(outlook, name) for name in ("choice", "scores", "forecast")}
        show(rows | {"jobs_left_out": left_out}, as_json=True)
        return
    show_frame(outlook.choice, title="Model of each series")
    show_frame(pooled_scores, title="Backtest errors of every model, all series")
    reasons = ((reason, jobs) for reason, jobs in left_out.items() if jobs)
    lines = (f"left out of the demand: {jobs:,} job{'s' * (jobs != 1)}, {reason}" for reason, jobs in reasons)
    note = "MASE: error over that of the seasonal naive before the cutoff; --json prints every interval and quantile"
    notify(*lines, note, quiet=quiet)


def _show_backtest(
    scenario: Scenario, history: DemandHistory, horizon: int, gap: int, cutoffs: int, budget: float,
    models: str | None, workers: str | None, with_known: bool, paths: Path | None, n_paths: int | None,
    out: Path | None, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Backtest every candidate model and the weighted forecast at many cutoffs, and print their errors.

    Parameters
    ----------
    scenario : Scenario
        Seed.
    history : DemandHistory
        Demand series.
    horizon, gap : int
        Forecast horizon, and time from the cutoff to the first forecast. [intervals]
    cutoffs : int
        Number of cutoffs.
    budget : float
        CPU time for each series. [s]
    models : str, optional
        Names of the models, separated by commas.
    workers : str, optional
        Number of processes, or address of a Dask scheduler.
    with_known : bool
        Use the jobs that run or wait at the cutoff.
    paths, out : Path, optional
        Files for sample paths and forecasts.
    n_paths : int, optional
        Number of weighted sample paths.
    as_json, quiet : bool
        Print JSON; print no messages.
    """
    import polars as pl

    from gpuplanner.core.errors import resolve_name
    from gpuplanner.forecast.demand_forecast import describe_weights
    from gpuplanner.forecast.model_selection import compare_best_fixed, fold_scores, fold_table, mean_scores
    from gpuplanner.forecast.rolling_demand_forecast import rolling_backtest
    from gpuplanner.forecast.statistical_models import CANDIDATE_MODELS, affordable_candidates, expected_cpu_s
    from gpuplanner.planner.plan_problem import DEFAULT_UNMET_DEMAND_PRICE

    model_names, too_slow = affordable_candidates(budget, cutoffs)
    if models is not None:
        model_names = tuple(resolve_name(name, CANDIDATE_MODELS, subject="model") for name in models.split(","))
        too_slow = ()
    notify(*history.remarks, quiet=quiet)
    if too_slow:
        notify(f"left out, over {budget:g} CPU seconds a series (--budget): {', '.join(too_slow)}", quiet=quiet)
    notify(f"forecasting {len(history.ids)} series at {cutoffs} cutoffs ...", quiet=quiet)
    is_long = expected_cpu_s(model_names, cutoffs * len(history.ids)) > MIN_PARALLEL_CPU_S
    default_workers = os.cpu_count() or 1 if is_long else 1
    backtest = rolling_backtest(
        history, horizon=horizon, gap=gap, cutoffs=cutoffs, models=model_names, price=DEFAULT_UNMET_DEMAND_PRICE,
        with_known=with_known, seed=scenario.seed, workers=parse_workers(workers, default_workers),
        progress=_show_progress if is_long and not quiet else None,
    )  # fmt: skip
    scores = fold_scores(backtest)
    mean = mean_scores(scores)
    fixed = compare_best_fixed(mean)
    _write_parquet(out, lambda: fold_table(backtest), quiet)
    _write_parquet(paths, lambda: history.paths(horizon, gap, scenario.seed, n_paths), quiet)
    if as_json:
        price = DEFAULT_UNMET_DEMAND_PRICE
        origins = [backtest.test.grid.time(origin) for origin in backtest.test.origins]
        rows = {
            "series": scores, "mean": mean, "best_fixed": fixed,
            "costs": {"planned_gpu_hour": 1.0, "unmet_gpu_hour": price, "quantile": 1 - 1 / price},
            "origins": origins, "evaluated_from": backtest.first, "horizon": horizon, "gap": gap,
            "beyond_budget": too_slow, "remarks": history.remarks,
        }  # fmt: skip
        show(rows, as_json=True)
        return
    show_frame(mean, title="Mean errors over the series (chosen: the weighted forecast)")
    show_frame(fixed, title="Weighted forecast and best single model")
    weighted = scores.filter(scores["model"] == "chosen").drop("chosen", "weight")
    show_frame(weighted, title="Weighted forecast by series")
    ids, weight_texts = backtest.test.grid.ids, describe_weights(backtest)
    future = pl.DataFrame({"unique_id": ids, "weights": weight_texts, "rule": backtest.test.rules})
    show_frame(future, title="Weights of the models")


def _show_progress(done: int, total: int) -> None:
    """Print a message at each tenth of the cutoffs."""
    if 10 * done // total > 10 * (done - 1) // total:
        notify(f"{done:,} of {total:,}")


def _show_forecast(
    scenario: Scenario, history: DemandHistory, by: str, horizon: int, gap: int, with_known: bool,
    announced: Path | None, sums: str | None, paths: Path | None, n_paths: int | None, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Forecast GPU demand from the end of the data or from a cutoff, and print it.

    Parameters
    ----------
    scenario : Scenario
        Announced projects and seed.
    history : DemandHistory
        Demand series.
    by : str
        Series: tenant, gpu_model or profile.
    horizon, gap : int
        Forecast horizon, and time from the cutoff to the first forecast. [intervals]
    with_known : bool
        Use the jobs that run or wait at the cutoff.
    announced : Path, optional
        File of announced jobs.
    sums : str, optional
        How series and sums are reconciled.
    paths : Path, optional
        File for sample paths.
    n_paths : int, optional
        Number of weighted sample paths.
    as_json, quiet : bool
        Print JSON; print no messages.
    """
    import polars as pl

    from gpuplanner.core.errors import resolve_name
    from gpuplanner.decision.announced_projects import project_span, read_projects, tabulate_project_jobs
    from gpuplanner.forecast.growth_and_announced_demand import read_announced
    from gpuplanner.forecast.rolling_demand_forecast import forecast_ahead
    from gpuplanner.planner.plan_problem import DEFAULT_UNMET_DEMAND_PRICE

    tables = [] if announced is None else [read_announced(announced)]
    if scenario.projects is not None:
        projects = read_projects(scenario.projects).projects
        coming = [project for project in projects if project_span(project, scenario.tz)[0] >= history.end]
        tables.append(tabulate_project_jobs(coming, scenario.tz))
        notify(f"{len(coming)} of {len(projects)} announced projects begin after the record and are added", quiet=quiet)
    if tables:
        history = replace(history, announced=pl.concat(tables, how="vertical_relaxed"))
        if by != SERIES_KINDS[0]:
            notify(f"announced jobs are added to the sum of all series alone: series are by {by}", quiet=quiet)
    choice, table = forecast_ahead(
        history, horizon=horizon, gap=gap, price=DEFAULT_UNMET_DEMAND_PRICE, with_known=with_known, seed=scenario.seed,
        sums="mint" if sums is None else resolve_name(sums, ("mint", "top", "none"), subject="--sums"),
    )  # fmt: skip
    _write_parquet(paths, lambda: history.paths(horizon, gap, scenario.seed, n_paths), quiet)
    if as_json:
        rows = {"running": history.running(), "choice": choice, "forecast": table, "remarks": history.remarks}
        if history.run_off is not None:
            rows["cost_curve"] = history.cost_curve(horizon, gap, DEFAULT_UNMET_DEMAND_PRICE, seed=scenario.seed)
        show(rows, as_json=True)
        return
    notify(*history.remarks, quiet=quiet)
    if history.run_off is not None:
        show_frame(history.running(), title="Running jobs and their remaining GPU-hours")
    show_frame(choice, title="Model of each series")
    show_frame(table, title="Forecast")


def _write_parquet(path: Path | None, table: Callable[[], pl.DataFrame], quiet: bool) -> None:
    """Make a table and write it as Parquet; nothing without a path."""
    from gpuplanner.core.output_writing import write_atomically

    if path is not None:
        write_atomically(path, table().write_parquet)
    notify_written(path, quiet=quiet)
