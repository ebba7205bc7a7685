"""``forecast``: what will be wanted, how sure that is, and how often it was wrong."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from zoneinfo import ZoneInfo

import typer

from gpuplanner.cli.app import app, say
from gpuplanner.cli.options import (
    Given,
    Json,
    Overwrite,
    Quiet,
    ScenarioPath,
    WorkersAsked,
    takes,
    workers_of,
)
from gpuplanner.cli.show import show, show_frame

if TYPE_CHECKING:
    import polars as pl

    from gpuplanner.scenario import Scenario

HORIZON, GAP, FOLDS, BUDGET_S = 24, 6, 20, 1.0
"""Of ``--backtest``: slots forecast, slots before them, origins, CPU seconds a series."""
SERIES = ("tenant", "board", "profile")
LONG_S = 60.0
"""CPU seconds from which on all processors take part, if nothing else is asked for."""


@app.command()
@takes("board", "seed")
def forecast(
    scenario: ScenarioPath,
    given: Given,
    back: Annotated[
        bool, typer.Option("--backtest", help="GPUs by tenant and in all from many origins; needs no board.")
    ] = False,
    horizon: Annotated[int | None, typer.Option(min=1, help="Slots to forecast.")] = None,
    gap: Annotated[
        int | None, typer.Option(min=0, help="Slots between an origin and the first one that is forecast.")
    ] = None,
    folds: Annotated[int, typer.Option(min=1, help="Origins; the first two fifths only calibrate.")] = FOLDS,
    budget: Annotated[
        float, typer.Option(min=0, help="CPU seconds a series; the dearest candidates go first.")
    ] = BUDGET_S,
    models: Annotated[str | None, typer.Option(help="Candidates, joined by commas.")] = None,
    workers: WorkersAsked = None,
    known: Annotated[
        bool, typer.Option("--known/--no-known", help="Use what is known of the jobs that run and wait.")
    ] = True,
    by: Annotated[
        str,
        typer.Option(
            help="Series of GPUs by tenant (and board, where every job says it) or board, or of instances by profile."
        ),
    ] = "tenant",
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Origin: nothing later is looked at; ISO 8601.")
    ] = None,
    paths: Annotated[
        Path | None, typer.Option(help="Write sample paths as Parquet: unique_id, path, ds, y.")
    ] = None,
    most: Annotated[
        int | None,
        typer.Option("--representatives", min=1, help="Write so many paths for all, with weights."),
    ] = None,
    announced: Annotated[
        Path | None,
        typer.Option(
            "--announced", help="Jobs known to come: tenant, start_time, end_time, gpus (CSV, Parquet)."
        ),
    ] = None,
    calendar: Annotated[
        Path | None,
        typer.Option(help="Releases, holidays, maintenance: kind, start_time, end_time (CSV, Parquet)."),
    ] = None,
    sums: Annotated[
        str | None,
        typer.Option(
            help="How series add up to the fleet: mint moves all by their errors (the default), top shares its "
            "forecast out, none leaves each as forecast."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write every judged fold as Parquet.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Forecast the demand for each profile, with the past error of every model; --backtest: from many origins."""
    from gpuplanner.files.place import require_file

    for file in (out, paths):
        if file is not None:
            require_file(file, inputs=[scenario])
    asked = given.scenario(scenario)
    instant = _instant(at, asked.tz)
    if back:
        _backtest(asked, instant, by, horizon or HORIZON, GAP if gap is None else gap, folds, budget,
                  models, workers, known, calendar, paths, most, out, as_json, quiet)  # fmt: skip
        return
    if out is not None or models is not None:
        text = "-o and --models belong to --backtest"
        raise typer.BadParameter(text)
    told = (instant, paths, horizon, gap, announced, calendar, sums)
    if all(one is None for one in told) and _has_jobs(asked):
        _by_profile(asked, as_json, quiet)
        return
    _ahead(asked, instant, by, horizon or asked.horizon_slots, gap or 0, known, (announced, calendar, sums),
           paths, most, as_json, quiet)  # fmt: skip


def _by_profile(asked: Scenario, as_json: bool, quiet: bool) -> None:
    """Instances of every profile of each board, as a plan takes them; of several boards as ``board/profile``."""
    from gpuplanner.study.future.outlook import fleet_forecast
    from gpuplanner.study.past.pools import pools_of

    pools = pools_of(asked)
    result, pooled_scores, left_out = fleet_forecast(pools)
    if as_json:
        rows = {name: getattr(result, name).to_dicts() for name in ("choice", "scores", "forecast")}
        show(rows | {"jobs_left_out": left_out}, as_json=True)
        return
    show_frame(result.choice, as_json=False, title="model used for each series")
    show_frame(pooled_scores, as_json=False, title="score of every model on past origins, pool")
    if not quiet:
        for reason, jobs in left_out.items():
            if jobs:
                say(f"left out of the demand: {jobs:,} job(s), {reason}")
        say("MASE below 1 beats the seasonal naive in sample; --json gives every slot and quantile")


def _backtest(
    asked: Scenario, at: datetime | None, by: str, horizon: int, gap: int, folds: int, budget: float,
    models: str | None, workers: str | None, known: bool, calendar: Path | None, paths: Path | None,
    most: int | None, out: Path | None, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Scores of every candidate and of what was chosen, from many origins."""
    import polars as pl

    from gpuplanner.forecast.candidates import CANDIDATES, affordable, expected_cpu_s
    from gpuplanner.forecast.record import best_fixed, fold_scores, fold_table, mean_scores
    from gpuplanner.forecast.result import weights_in_words
    from gpuplanner.names import resolve
    from gpuplanner.planner.contract.problem import UNMET_PRICE
    from gpuplanner.study.future.announced import read_calendar
    from gpuplanner.study.future.demand_at_hand import wanted
    from gpuplanner.study.future.rolling import rolling

    days = None if calendar is None else read_calendar(calendar)
    source = wanted(asked, at=at, by=resolve(by, SERIES, what="--by"), calendar=days)
    kept, left = affordable(budget, folds)
    if models is not None:
        kept = tuple(resolve(name, CANDIDATES, what="model") for name in models.split(","))
        left = ()
    if not quiet:
        for remark in source.remarks:
            say(remark)
        if left:
            say(f"beyond the budget of {budget:g} CPU s a series: {', '.join(left)}")
        say(f"forecasting {len(source.ids)} series from {folds} origins ...")
    long = expected_cpu_s(kept, folds * len(source.ids)) > LONG_S
    judged = rolling(
        source, horizon=horizon, gap=gap, folds=folds, models=kept, price=UNMET_PRICE,
        with_known=known, seed=asked.seed, workers=workers_of(workers, os.cpu_count() or 1 if long else 1),
        progress=_tenths if long and not quiet else None,
    )  # fmt: skip
    scores = fold_scores(judged)
    mean = mean_scores(scores)
    fixed = best_fixed(mean)
    _write(out, lambda: fold_table(judged), quiet)
    _write(paths, lambda: source.paths(horizon, gap, asked.seed, most), quiet)
    if as_json:
        costs = {
            "planned_gpu_hour": 1.0,
            "unmet_gpu_hour": UNMET_PRICE,
            "quantile": 1 - 1 / UNMET_PRICE,
        }
        origins = [judged.test.grid.time(origin) for origin in judged.test.origins]
        show(
            {
                "series": scores.to_dicts(),
                "mean": mean.to_dicts(),
                "best_fixed": fixed.to_dicts(),
                "costs": costs,
                "origins": origins,
                "judged_from": judged.first,
                "horizon": horizon,
                "gap": gap,
                "beyond_budget": list(left),
                "remarks": list(source.remarks),
            },
            as_json=True,
        )
        return
    show_frame(
        mean,
        as_json=False,
        title="mean over the series; chosen: the weighted forecast that somebody would have got",
    )
    show_frame(
        fixed, as_json=False, title="chosen, beside the candidate that would have been best throughout"
    )
    mine = scores.filter(scores["model"] == "chosen").drop("chosen", "weight")
    show_frame(mine, as_json=False, title="chosen, by series")
    ids, words = judged.test.grid.ids, weights_in_words(judged)
    future = pl.DataFrame({"unique_id": ids, "weights": words, "rule": judged.test.rules})
    show_frame(future, as_json=False, title="weights for the future")


def _tenths(done: int, total: int) -> None:
    if 10 * done // total > 10 * (done - 1) // total:
        say(f"{done:,} of {total:,}")


def _ahead(
    asked: Scenario, at: datetime | None, by: str, horizon: int, gap: int, known: bool,
    told: tuple[Path | None, Path | None, str | None], paths: Path | None, most: int | None,
    as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Forecast GPUs from the end of the data, or from a given origin."""
    from gpuplanner.names import resolve
    from gpuplanner.planner.contract.problem import UNMET_PRICE
    from gpuplanner.study.future.announced import read_announced, read_calendar
    from gpuplanner.study.future.demand_at_hand import wanted
    from gpuplanner.study.future.rolling import ahead_of

    announced, calendar, sums = told
    days = None if calendar is None else read_calendar(calendar)
    source = wanted(asked, at=at, by=resolve(by, SERIES, what="--by"), calendar=days)
    if announced is not None:
        source = replace(source, announced=read_announced(announced))
    choice, table = ahead_of(
        source, horizon=horizon, gap=gap, price=UNMET_PRICE, with_known=known, seed=asked.seed,
        sums="mint" if sums is None else resolve(sums, ("mint", "top", "none"), what="--sums"),
    )  # fmt: skip
    _write(paths, lambda: source.paths(horizon, gap, asked.seed, most), quiet)
    if as_json:
        rows = {
            "running": source.running().to_dicts(),
            "choice": choice.to_dicts(),
            "forecast": table.to_dicts(),
            "remarks": list(source.remarks),
        }
        if source.known is not None:
            rows["cost_curve"] = source.cost_curve(horizon, gap, UNMET_PRICE, seed=asked.seed).to_dicts()
        show(rows, as_json=True)
        return
    if not quiet:
        for remark in source.remarks:
            say(remark)
    if source.known is not None:
        show_frame(source.running(), as_json=False, title="what runs, and how much of it is left")
    show_frame(choice, as_json=False, title="model used for each series")
    show_frame(table, as_json=False, title="forecast")


def _has_jobs(asked: Scenario) -> bool:
    from gpuplanner.study.bundled import data_folder

    return (data_folder(asked.data) / "jobs.parquet").is_file()


def _instant(text: str | None, zone: str) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        reason = f"--at: expected a time such as 2026-02-14T09:00; got {text!r}"
        raise typer.BadParameter(reason) from None
    return found if found.tzinfo else found.replace(tzinfo=ZoneInfo(zone))


def _write(path: Path | None, table: object, quiet: bool) -> None:
    if path is None:
        return
    from gpuplanner.files.single import write_atomically

    frame: pl.DataFrame = table()  # type: ignore[operator]
    write_atomically(path, frame.write_parquet)
    if not quiet:
        say(f"written: {path}")
