"""The commands ``forecast`` and ``cost``."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from zoneinfo import ZoneInfo

import typer
from typer import Option

from gpuplanner.cli.application import (
    Given,
    Json,
    Overwrite,
    Quiet,
    ScenarioPath,
    WorkersAsked,
    app,
    put,
    require_outputs,
    say,
    say_written,
    show,
    show_frame,
    takes,
    workers_of,
)
from gpuplanner.core.column_headings import column_heading

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from gpuplanner.core.scenario import Scenario
    from gpuplanner.cost.cost_review import CostReview
    from gpuplanner.decision.purchase_plan import HardwareRefresh


LEDGER = {
    "Savings": "forecast and realized capacity freed, by month",
    "Baseline": "GPU-hours of each month against the first month",
    "Forecasts": "GPU-hours planned too many and too few, and their cost above a perfect forecast",
}
"""Titles of the tables of a savings ledger."""
TABLES = ("tenant", "ownership", "bucket", "gpu_model", "end", "job")


@app.command()
@takes("month", "gpu_model", "price_usd_per_gpu_hour", "price_book", "currency", "carbon_region", "carbon_file")
def cost(
    scenario: ScenarioPath,
    given: Given,
    by: Annotated[
        str, Option(metavar="|".join(TABLES), help="Column to break the cost down by; tenant is the team.")
    ] = "tenant",
    focus: Annotated[
        Path | None,
        Option(metavar="FILE.csv", help="Write the charge lines of a month with FOCUS 1.2 column names (CSV)."),
    ] = None,
    bill: Annotated[
        Path | None,
        Option(metavar="DIR", help="Allocate an imported bill, if its GPU-hours are within 1 % of those installed."),
    ] = None,
    workbook: Annotated[Path | None, Option(metavar="FILE.xlsx", help="Write the tables as an Excel workbook.")] = None,
    months: Annotated[
        int,
        Option(
            min=0, max=120, help="Also compare buying, reserving and renting the recommended GPUs over so many months."
        ),
    ] = 0,
    risk: Annotated[
        float, Option(min=0, max=1, help="With --months: 0 for the lowest mean cost, 1 for the lowest CVaR (10 %).")
    ] = 0.0,
    refresh: Annotated[
        str | None,
        Option(
            metavar="MODEL=SPEED",
            help="With --months: month in which a newer GPU model pays off; SPEED is its speed relative to today's.",
        ),
    ] = None,
    burst: Annotated[
        Path | None,
        Option(
            metavar="RULES.yaml",
            help="Also list the jobs to send to rented GPUs above the installed capacity; the file states which teams "
            "and data may leave.",
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        Option(
            exists=True, help="Savings record written by 'report --ledger': also compare forecast and realized savings."
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Report cost, energy and carbon by team (showback).

    The tables by team, ownership, bucket and GPU model sum to the cost of all
    installed GPU-hours, those by end state and by job to the allocated part.
    Without your rate per GPU-hour, all GPUs, owned ones too, are valued at the
    public on-demand list price: a list-price equivalent, not an invoice and not
    your cost. State your rates in a price book first (prices.yaml).

    Example: gpuplanner cost build/mine --month 2026-10 --price-book prices.yaml
    """
    import polars as pl

    from gpuplanner.core.errors import ScenarioError
    from gpuplanner.cost.cost_review import cost_review
    from gpuplanner.decision.purchase_plan import plan_burst, plan_purchase, read_burst_rules
    from gpuplanner.decision.track_record import (
        forecasts_file,
        price_forecast_errors,
        read_ledger,
        read_savings,
        savings_file,
        savings_sheets,
    )
    from gpuplanner.ingest.dataset_folder import open_dataset
    from gpuplanner.report.finance_exports import write_cost_workbook, write_focus
    from gpuplanner.usage.job_history import history

    if by not in TABLES:
        raise typer.BadParameter(f"expected one of {', '.join(TABLES)}; got {by!r}", param_hint="--by")
    require_outputs(focus, workbook, inputs=[scenario])
    asked = given.scenario(scenario)
    found = cost_review(asked, None if bill is None else open_dataset(bill).tables["charges"])
    saved = {} if ledger is None else savings_sheets(read_savings(savings_file(ledger)))
    if ledger is not None and found.price is not None:
        kept = read_ledger(forecasts_file(ledger))
        if kept.height:
            saved["Forecasts"] = price_forecast_errors(kept, asked, history(asked).fleet.gpu_model, found.price.value)
    sent = None if burst is None else plan_burst(asked, read_burst_rules(burst))
    bought = plan_purchase(asked, months, risk=risk) if months else None
    renewed = None if refresh is None else _renewed(asked, months, refresh)
    if focus is not None:
        if found.total is None:
            todo = "Give a price: --set price_usd_per_gpu_hour=2.50."
            raise ScenarioError("--focus", "a price of the GPUs", found.missing[0], todo)
        first, last = found.period[0], (datetime.fromisoformat(found.period[1]) - timedelta(seconds=1)).isoformat()
        if asked.month is None and first[:7] != last[:7]:
            got, todo = f"{first[:10]} to {last[:10]}", f"Add --month {last[:7]}."
            raise ScenarioError("--focus", "one calendar month, as a billing period is", got, todo)
        write_focus(focus, found.costs)
        say(f"written: {focus}")
    if workbook is not None:
        say(f"written: {write_cost_workbook(workbook, found, saved, locale=asked.number_locale)}")
    if as_json:
        portfolio = bought and bought.to_dict()
        more: dict[str, object] = {"portfolio": portfolio, "refresh": renewed, "burst": sent}
        more = {name: part for name, part in more.items() if part is not None}
        more |= {name.lower(): table for name, table in saved.items()}
        show(found.to_dict() | more, as_json=True)
        return
    _told(found, by)
    for name, table in saved.items():
        hidden = ("demand_ratio", "^(low|high)_gpu_hours$", "^(promised|demand|service|not|price).*_usd$")
        show_frame(table.select(pl.exclude(*hidden)), title=f"{name}: {LEDGER[name]}")
    notes = list(found.missing)
    scope = bought.scope if bought is not None else ""
    for part, tables in (
        (bought, {"begin": "GPUs to buy or reserve, by start month", "costs": scope}), (renewed, {}),
        (sent, {"jobs": "Jobs to send to rented GPUs", "stays": "Jobs of these hours that stay"}),
    ):  # fmt: skip
        if part is not None:
            put(f"\n{part.advice_sentence}")
            notes += getattr(part, "notes", ())
            for name, title in tables.items():
                if getattr(part, name).height:
                    show_frame(getattr(part, name), title=title)
    say(*notes, quiet=quiet)


def _told(found: CostReview, by: str) -> None:
    import polars as pl

    if found.total is not None:
        put(found.total_text)
        table = found.breakdown(by).with_columns(pl.col("^share$") * 100)
        show_frame(table, title=f"Cost by {column_heading(by)}, {found.currency}{found.price_basis}")
        put(found.bridge)
        show_frame(found.units, title=f"Unit costs, {found.currency}{found.price_basis}")
    if found.energy is not None:
        states = found.states.select("state", "gpu_hours", "^energy_.*$", "^counted_.*$")
        show_frame(states, title="Energy by state")
        carbon = {f"{name} carbon, kg": one for name, one in found.carbon_kg.items()}
        for name, one in ({"energy, kWh": found.energy} | carbon).items():
            if one is not None:
                put(f"{name:<20} {one.value:>14,.1f}  ({one.low:,.1f} to {one.high:,.1f})")
        put(f"location carbon at the yearly mean factor, kg {found.carbon_at_yearly_mean_kg or 0.0:,.1f}")


def _renewed(asked: Scenario, months: int, given: str) -> HardwareRefresh:
    """When a newer GPU model pays off, from the text of ``--refresh``."""
    from gpuplanner.decision.purchase_plan import plan_refresh

    gpu_model, _, number = given.partition("=")
    try:
        speed = float(number)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        text = f"expected MODEL=SPEED, such as H200=1.4; got {given!r}"
        raise typer.BadParameter(text, param_hint="--refresh")
    if not months:
        raise typer.BadParameter("needs --months, such as --months 36", param_hint="--refresh")
    return plan_refresh(asked, months, gpu_model, speed)


HORIZON, GAP, FOLDS, BUDGET_S = 24, 6, 20, 1.0
"""Of ``--backtest``: forecast horizon, gap, cutoffs, CPU seconds a series."""
SERIES = ("tenant", "gpu_model", "profile")
LONG_S = 60.0
"""CPU seconds from which on all processors take part, if nothing else is asked for."""


@app.command()
@takes("gpu_model", "seed")
def forecast(
    scenario: ScenarioPath,
    given: Given,
    back: Annotated[
        bool, Option("--backtest", help="Show the errors of each model over many cutoffs; needs no GPU model.")
    ] = False,
    horizon: Annotated[
        int | None, Option(min=1, help="Forecast horizon, in intervals of interval_hours (1 h).")
    ] = None,
    gap: Annotated[int | None, Option(min=0, help="Intervals between the cutoff and the first forecast.")] = None,
    cutoffs: Annotated[int, Option(min=1, help="Number of backtest cutoffs; the first 40 % only calibrate.")] = FOLDS,
    budget: Annotated[
        float, Option(min=0, help="Backtest CPU seconds for each series; the slowest models drop out first.")
    ] = BUDGET_S,
    models: Annotated[str | None, Option(help="Models to backtest, separated by commas.")] = None,
    workers: WorkersAsked = None,
    known: Annotated[bool, Option("--known/--no-known", help="Use the jobs that run or wait at the cutoff.")] = True,
    by: Annotated[
        str | None,
        Option(help="Series to forecast: tenant (GPUs of each team), gpu_model, or profile (MIG instances)."),
    ] = None,
    at: Annotated[
        str | None, Option(metavar="TIME", help="Cutoff: later data are ignored; ISO 8601. [default: end of the data]")
    ] = None,
    paths: Annotated[
        Path | None, Option(help="Write sample paths of demand as Parquet: unique_id, path, ds, y.")
    ] = None,
    most: Annotated[
        int | None,
        Option("--representatives", min=1, help="With --paths: reduce the paths to this many weighted ones."),
    ] = None,
    announced: Annotated[
        Path | None, Option(help="Announced jobs: tenant, start_time, end_time, gpus (CSV or Parquet).")
    ] = None,
    calendar: Annotated[
        Path | None, Option(help="Releases, holidays, maintenance: kind, start_time, end_time (CSV or Parquet).")
    ] = None,
    sums: Annotated[
        str | None,
        Option(
            help="Make series and their sum agree: mint (by past errors, the default), top (split the sum) or none."
        ),
    ] = None,
    out: Annotated[Path | None, Option("-o", "--out", help="Write the backtest forecasts as Parquet.")] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Forecast GPU demand, with backtest errors of every model.

    Without options: demand by MIG profile, as 'plan' uses it. With options (--json
    and --quiet aside): GPUs by team, or by GPU model or profile with --by.
    --backtest: no forecast, but the errors of each model over many cutoffs.

    Example: gpuplanner forecast build/mine/data --by gpu_model --horizon 168
    """
    from gpuplanner.core.stage_cache import data_folder

    require_outputs(out, paths, inputs=[scenario])
    asked = given.scenario(scenario)
    instant = _instant(at, asked.tz)
    if back:
        _backtest(asked, instant, by or SERIES[0], horizon or HORIZON, GAP if gap is None else gap, cutoffs, budget,
                  models, workers, known, calendar, paths, most, out, as_json, quiet)  # fmt: skip
        return
    if out is not None or models is not None:
        raise typer.BadParameter("-o and --models need --backtest")
    told = (by, instant, paths, horizon, gap, announced, calendar, sums)
    if all(one is None for one in told) and (data_folder(asked.data) / "jobs.parquet").is_file():
        _by_profile(asked, as_json, quiet)
        return
    _ahead(asked, instant, by or SERIES[0], horizon or asked.horizon_intervals, gap or 0, known,
           (announced, calendar, sums), paths, most, as_json, quiet)  # fmt: skip


def _by_profile(asked: Scenario, as_json: bool, quiet: bool) -> None:
    """Instances of every profile of each board, as a plan takes them; of several boards as ``board/profile``."""
    from gpuplanner.forecast.demand_outlook import fleet_forecast
    from gpuplanner.usage.job_history import split_into_pools

    pools = split_into_pools(asked)
    result, pooled_scores, left_out = fleet_forecast(pools)
    if as_json:
        rows = {name: getattr(result, name) for name in ("choice", "scores", "forecast")}
        show(rows | {"jobs_left_out": left_out}, as_json=True)
        return
    show_frame(result.choice, title="Model of each series")
    show_frame(pooled_scores, title="Backtest errors of every model, all series")
    reasons = ((reason, jobs) for reason, jobs in left_out.items() if jobs)
    lines = (f"left out of the demand: {jobs:,} job{'s' * (jobs != 1)}, {reason}" for reason, jobs in reasons)
    said = "MASE below 1 beats the seasonal naive model; --json prints every interval and quantile"
    say(*lines, said, quiet=quiet)


def _backtest(
    asked: Scenario, at: datetime | None, by: str, horizon: int, gap: int, cutoffs: int, budget: float,
    models: str | None, workers: str | None, known: bool, calendar: Path | None, paths: Path | None,
    most: int | None, out: Path | None, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Scores of every candidate and of what was chosen, from many origins."""
    import polars as pl

    from gpuplanner.core.errors import resolve_name
    from gpuplanner.forecast.demand_changes import read_calendar
    from gpuplanner.forecast.demand_outlook import rolling_backtest
    from gpuplanner.forecast.forecast_result import describe_weights
    from gpuplanner.forecast.gpu_demand import lay_out_demand
    from gpuplanner.forecast.model_selection import compare_best_fixed, fold_scores, fold_table, mean_scores
    from gpuplanner.forecast.statistical_models import CANDIDATE_MODELS, affordable_candidates, expected_cpu_s
    from gpuplanner.planner.plan_problem import DEFAULT_UNMET_DEMAND_PRICE

    days = None if calendar is None else read_calendar(calendar)
    source = lay_out_demand(asked, at=at, by=resolve_name(by, SERIES, subject="--by"), calendar=days)
    kept, left = affordable_candidates(budget, cutoffs)
    if models is not None:
        kept = tuple(resolve_name(name, CANDIDATE_MODELS, subject="model") for name in models.split(","))
        left = ()
    say(*source.remarks, quiet=quiet)
    if left:
        say(f"left out, over {budget:g} CPU seconds a series (--budget): {', '.join(left)}", quiet=quiet)
    say(f"forecasting {len(source.ids)} series at {cutoffs} cutoffs ...", quiet=quiet)
    long = expected_cpu_s(kept, cutoffs * len(source.ids)) > LONG_S
    judged = rolling_backtest(
        source, horizon=horizon, gap=gap, cutoffs=cutoffs, models=kept, price=DEFAULT_UNMET_DEMAND_PRICE,
        with_known=known, seed=asked.seed, workers=workers_of(workers, os.cpu_count() or 1 if long else 1),
        progress=_tenths if long and not quiet else None,
    )  # fmt: skip
    scores = fold_scores(judged)
    mean = mean_scores(scores)
    fixed = compare_best_fixed(mean)
    _write(out, lambda: fold_table(judged), quiet)
    _write(paths, lambda: source.paths(horizon, gap, asked.seed, most), quiet)
    if as_json:
        costs = {
            "planned_gpu_hour": 1.0,
            "unmet_gpu_hour": DEFAULT_UNMET_DEMAND_PRICE,
            "quantile": 1 - 1 / DEFAULT_UNMET_DEMAND_PRICE,
        }
        origins = [judged.test.grid.time(origin) for origin in judged.test.origins]
        show(
            {
                "series": scores,
                "mean": mean,
                "best_fixed": fixed,
                "costs": costs,
                "origins": origins,
                "judged_from": judged.first,
                "horizon": horizon,
                "gap": gap,
                "beyond_budget": left,
                "remarks": source.remarks,
            },
            as_json=True,
        )
        return
    show_frame(mean, title="Mean errors over the series (chosen: the weighted forecast)")
    show_frame(fixed, title="Weighted forecast and best single model")
    mine = scores.filter(scores["model"] == "chosen").drop("chosen", "weight")
    show_frame(mine, title="Weighted forecast by series")
    ids, words = judged.test.grid.ids, describe_weights(judged)
    future = pl.DataFrame({"unique_id": ids, "weights": words, "rule": judged.test.rules})
    show_frame(future, title="Weights of the models")


def _tenths(done: int, total: int) -> None:
    if 10 * done // total > 10 * (done - 1) // total:
        say(f"{done:,} of {total:,}")


def _ahead(
    asked: Scenario, at: datetime | None, by: str, horizon: int, gap: int, known: bool,
    told: tuple[Path | None, Path | None, str | None], paths: Path | None, most: int | None,
    as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Forecast GPUs from the end of the data, or from a given origin."""
    from gpuplanner.core.errors import resolve_name
    from gpuplanner.forecast.demand_changes import read_announced, read_calendar
    from gpuplanner.forecast.demand_outlook import forecast_ahead
    from gpuplanner.forecast.gpu_demand import lay_out_demand
    from gpuplanner.planner.plan_problem import DEFAULT_UNMET_DEMAND_PRICE

    announced, calendar, sums = told
    days = None if calendar is None else read_calendar(calendar)
    source = lay_out_demand(asked, at=at, by=resolve_name(by, SERIES, subject="--by"), calendar=days)
    if announced is not None:
        source = replace(source, announced=read_announced(announced))
    choice, table = forecast_ahead(
        source, horizon=horizon, gap=gap, price=DEFAULT_UNMET_DEMAND_PRICE, with_known=known, seed=asked.seed,
        sums="mint" if sums is None else resolve_name(sums, ("mint", "top", "none"), subject="--sums"),
    )  # fmt: skip
    _write(paths, lambda: source.paths(horizon, gap, asked.seed, most), quiet)
    if as_json:
        rows = {"running": source.running(), "choice": choice, "forecast": table, "remarks": source.remarks}
        if source.run_off is not None:
            rows["cost_curve"] = source.cost_curve(horizon, gap, DEFAULT_UNMET_DEMAND_PRICE, seed=asked.seed)
        show(rows, as_json=True)
        return
    say(*source.remarks, quiet=quiet)
    if source.run_off is not None:
        show_frame(source.running(), title="Running jobs and their remaining GPU-hours")
    show_frame(choice, title="Model of each series")
    show_frame(table, title="Forecast")


def _instant(text: str | None, zone: str) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"--at: expected a time such as 2026-02-14T09:00; got {text!r}") from None
    return found if found.tzinfo else found.replace(tzinfo=ZoneInfo(zone))


def _write(path: Path | None, table: Callable[[], pl.DataFrame], quiet: bool) -> None:
    from gpuplanner.core.output_writing import write_atomically

    if path is not None:
        write_atomically(path, table().write_parquet)
    say_written(path, quiet=quiet)
