"""Demand series, their forecasts from every origin, and the demand to plan for."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

from gpuplanner.core.execution import TasksDone, Workers
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.core.stage_cache import Stage, shelved, stage
from gpuplanner.forecast.backtest import backtest
from gpuplanner.forecast.forecast_result import ForecastResult, ahead_table, forecast_demand, weights_in_words
from gpuplanner.forecast.gpu_demand import Wanted, wanted
from gpuplanner.forecast.model_selection import CHOSEN, NAMES, Judged, fold_scores, judge
from gpuplanner.forecast.quantile_calibration import add_up, reconcile_mint, reconcile_to_pool
from gpuplanner.forecast.run_off import NEEDED, PATHS, RunOff, run_off
from gpuplanner.forecast.statistical_models import CANDIDATES, LEVELS, RULES, weighed
from gpuplanner.usage.job_history import VIEWS, FleetPools, History, history
from gpuplanner.usage.requested_demand import POOL, demand_series, excluded, pool

FORECAST_TABLES = ("forecast", "scores", "choice")


@dataclass(frozen=True, eq=False)
class Outlook:
    """Demand of the past and its forecast.

    - ``demand``: Table ``schemas.Demand``, tenants apart.
    - ``result``: Of the pool (``all/profile``) and, in the right-sized view, of the tenants as well, whose means add up
      to it.
    - ``by_tenant``: Forecast of the tenants, every quantile of which adds up to that of the pool: what a plan covers.
    """

    demand: pl.DataFrame
    result: ForecastResult
    by_tenant: pl.DataFrame | None = None

    @property
    def to_cover(self) -> pl.DataFrame:
        """The forecast that a plan covers: that of the tenants where there is one."""
        return self.result.forecast if self.by_tenant is None else self.by_tenant


@stage
def demands(scenario: Scenario) -> dict[str, pl.DataFrame]:
    """Demand of each view over the recent past, as if nobody had queued."""
    known = history(scenario)
    span = {"start": known.recent, "end": known.plan_start}
    return {
        view: demand_series(jobs, interval_hours=scenario.interval_hours, clock="wanted", **span)
        for view, jobs in known.views.items()
    }


def left_out(scenario: Scenario) -> dict[str, int]:
    """Jobs of the recent past that no demand series counts, by reason.

    Examples
    --------
    >>> left_out(Scenario())
    {'request unknown': 0, 'no GPU': 0}
    """
    return excluded(history(scenario).views["rightsized"])


def forecast_to_bytes(forecast: ForecastResult) -> bytes:
    """Write the tables of a forecast into one file: each as Parquet, in a container."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as container:
        for name in FORECAST_TABLES:
            table = io.BytesIO()
            getattr(forecast, name).write_parquet(table)
            container.writestr(name, table.getvalue())
    return content.getvalue()


def forecast_from_bytes(content: bytes) -> ForecastResult:
    """Read the tables of a forecast back; ValueError if they are damaged."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as container:
            return ForecastResult(**{name: pl.read_parquet(container.read(name)) for name in FORECAST_TABLES})
    except (zipfile.BadZipFile, pl.exceptions.PolarsError) as error:
        raise ValueError("damaged tables of a forecast") from error


shelved_forecast = shelved("forecasts", forecast_to_bytes, forecast_from_bytes)
"""Most of the time of an evaluation is the backtest of its forecasts, which every command asks for again."""


@shelved_forecast
def pooled(scenario: Scenario) -> ForecastResult:
    """Forecast of the pool in every view, with one choice of models and one calibration for all.

    The views tell of the same jobs. Were they judged apart, the noise of that judgement would show up as a
    difference between them. Series are named ``view/profile``.
    """
    series = [
        pool(demand).with_columns(tenant=pl.lit(view), unique_id=pl.format("{}/{}", pl.lit(view), "profile"))
        for view, demand in demands(scenario).items()
    ]
    past = history(scenario)
    jobs = pl.concat(
        view.select(*NEEDED, "profile", "instances", series=pl.format("{}/{}", pl.lit(name), "profile"))
        for name, view in past.views.items()
    )
    known = _known(jobs, past, scenario.interval_hours)
    return forecast_demand(pl.concat(series), horizon=scenario.horizon_intervals, known=known)


def _known(jobs: pl.DataFrame, past: History, interval_hours: float) -> RunOff:
    """What runs, waits and has come, for series of instances that column ``series`` names."""
    counted = jobs.filter(pl.col("profile").is_not_null())
    return run_off(counted, start=past.recent, interval_hours=interval_hours, series="series", size="instances")


@shelved_forecast
def tenants(scenario: Scenario) -> ForecastResult:
    """Forecast of every tenant and profile in the right-sized view."""
    past = history(scenario)
    jobs = past.views["rightsized"].with_columns(series=pl.format("{}/{}", "tenant", "profile"))
    known = _known(jobs, past, scenario.interval_hours)
    return forecast_demand(demands(scenario)["rightsized"], horizon=scenario.horizon_intervals, known=known)


def _outlook(scenario: Scenario, view: str) -> Outlook:
    every_view = pooled(scenario)
    mine = [_of_view(table, view) for table in (every_view.forecast, every_view.scores, every_view.choice)]
    demand = demands(scenario)[view]
    if view != "rightsized":
        return Outlook(demand, ForecastResult(*mine))
    each = tenants(scenario)
    told = reconcile_to_pool(each.forecast, mine[0], own_quantiles=True)
    both = [pl.concat(parts) for parts in zip(mine, (told, each.scores, each.choice), strict=True)]
    return Outlook(demand, ForecastResult(*both), reconcile_to_pool(each.forecast, mine[0]))


def _of_view(table: pl.DataFrame, view: str) -> pl.DataFrame:
    """Rows of one view, under the names that the pool has elsewhere."""
    mine = table.filter(pl.col("unique_id").str.starts_with(f"{view}/"))
    return mine.with_columns(pl.col("unique_id").str.replace(view, POOL, literal=True))


OUTLOOKS = {view: Stage(lambda scenario, view=view: _outlook(scenario, view)) for view in VIEWS}


def fleet_forecast(fleet: FleetPools) -> tuple[ForecastResult, pl.DataFrame, dict[str, int]]:
    """Forecast every pool of a fleet by itself, and name its series by its board.

    Returns
    -------
    result : ForecastResult
        Forecast, scores and choice of all pools and their tenants.
    pooled_scores : polars.DataFrame
        Scores of the pools without those of the tenants.
    left_out : dict
        Jobs that are left out of the demand, by reason.
    """
    parts: list[tuple[pl.DataFrame, ...]] = []
    left: dict[str, int] = {}
    for name, own in fleet.pools.items():
        found = OUTLOOKS["rightsized"](own).result
        pooled = found.scores.filter(pl.col("unique_id").str.starts_with(f"{POOL}/"))
        tables = (found.forecast, found.scores, found.choice, pooled)
        parts.append(tuple(_of_pool(table, name) for table in tables) if fleet.several else tables)
        for reason, jobs in left_out(own).items():
            left[reason] = left.get(reason, 0) + jobs
    forecast, scores, choice, pooled = (pl.concat(tables) for tables in zip(*parts, strict=True))
    return ForecastResult(forecast, scores, choice), pooled, left


def _of_pool(table: pl.DataFrame, name: str) -> pl.DataFrame:
    """Series of a pool under its name, which stands for all of its tenants."""
    series = pl.col("unique_id").cast(pl.String)
    whole = series.str.starts_with(f"{POOL}/")
    bare = series.str.replace(f"{POOL}/", "", literal=True)
    own = pl.concat_str(pl.lit(f"{name}/"), pl.when(whole).then(bare).otherwise(series))
    return table.with_columns(unique_id=own)


@dataclass(frozen=True)
class Tomorrow:
    """GPUs expected at noon of the next local day, and how many of them are held by what runs already."""

    at: datetime
    gpus: float
    running: float


@stage
def tomorrow(scenario: Scenario) -> Tomorrow:
    """What of tomorrow's demand is there already.

    Examples
    --------
    >>> found = tomorrow(Scenario(history_days=14))
    >>> f"{found.at:%H:%M}", 0 < found.running < found.gpus
    ('12:00', True)
    """
    past = history(scenario)
    known = run_off(past.views["whole"], start=past.recent, interval_hours=scenario.interval_hours, total=POOL)
    day = past.plan_start.astimezone(ZoneInfo(scenario.tz)) + timedelta(days=1)
    noon = day.replace(hour=12, minute=0)
    slot = timedelta(hours=scenario.interval_hours)
    origin = (past.plan_start - past.recent) // slot
    steps = (noon - past.recent) // slot - origin + 1
    running, coming = known.parts([POOL], origin, steps, scenario.seed)
    still = float(running[0, :, -1].mean())
    return Tomorrow(noon, still + float(coming[0, :, -1].mean()), still)


def paths_of(scenario: Scenario, tenants: Sequence[str], profiles: Sequence[str]) -> np.ndarray:
    """Sample paths of right-sized demand over the horizon, from what runs and what will come."""
    past = history(scenario)
    jobs = past.views["rightsized"].with_columns(series=pl.format("{}/{}", "tenant", "profile"))
    known = _known(jobs, past, scenario.interval_hours)
    origin = (past.plan_start - past.recent) // timedelta(hours=scenario.interval_hours)
    ids = [f"{tenant}/{profile}" for tenant in tenants for profile in profiles]
    asked = [uid for uid in ids if uid in known.names]
    steps = scenario.horizon_intervals
    drawn = dict(zip(asked, known.draws(asked, origin, steps, scenario.seed), strict=True))
    none = np.zeros((PATHS, steps))
    every = np.stack([drawn.get(uid, none) for uid in ids])
    return np.moveaxis(every.reshape(len(tenants), len(profiles), PATHS, steps), 2, 0)


@stage
def largest_gang(scenario: Scenario) -> int:
    """Whole GPUs that the largest recent job asked for at once: fewer must never be on when it may come."""
    known = history(scenario)
    whole = known.views["rightsized"].filter(profile=WHOLE_GPU)
    return max(whole.filter(pl.col("submit_time") >= known.recent)["instances"].to_list(), default=0)


def expected_gpu_hours(scenario: Scenario) -> float:
    """GPU-hours that the mean forecast expects over the horizon, of whole GPUs, or as today's fleet is cut."""
    fleet = history(scenario).fleet
    forecast = OUTLOOKS["requested" if fleet.cut_gpus else "whole"](scenario).result.forecast
    profile = pl.col("unique_id").str.split("/").list.last()
    names = forecast.select(profile).to_series().unique()
    share = profile.replace_strict({name: fleet.gpu_model.share(name) for name in names}, return_dtype=pl.Float64)
    gpus = forecast.select((pl.col("mean") * share).sum()).item()
    return float(gpus) * scenario.interval_hours * scenario.arrival_scale


def at_quantile(forecast: pl.DataFrame, quantile: float) -> pl.DataFrame:
    """Read a forecast at a quantile, on straight lines between those that are stored.

    Examples
    --------
    >>> from gpuplanner.core.schemas import Forecast
    >>> from gpuplanner.core.schema_checks import empty
    >>> at_quantile(empty(Forecast), 0.9).columns
    ['unique_id', 'ds', 'y']
    """
    above = int(np.clip(np.searchsorted(LEVELS, quantile), 1, len(LEVELS) - 1))
    weight = (quantile - LEVELS[above - 1]) / (LEVELS[above] - LEVELS[above - 1])
    low, high = pl.col(NAMES[above - 1]), pl.col(NAMES[above])
    return forecast.select("unique_id", "ds", y=low + weight * (high - low))


__all__ = ["Wanted", "ahead_of", "rolling", "wanted"]

MOSTLY = 0.4
"""Share of the cutoffs that only calibrate: 8 of 20."""


def rolling(
    source: Wanted,
    *,
    horizon: int,
    gap: int,
    cutoffs: int,
    models: tuple[str, ...],
    price: float | None,
    with_known: bool = True,
    seed: int = 1,
    workers: Workers = 1,
    progress: TasksDone | None = None,
) -> Judged:
    """Forecast from origins in the last half of the data; the first two fifths of them only calibrate."""
    test = backtest(
        source.demand,
        horizon=horizon,
        gap=gap,
        windows=cutoffs,
        known=source.known if with_known else None,
        models=models,
        caps=source.caps,
        walk=True,
        seed=seed,
        workers=workers,
        progress=progress,
    )
    return judge(test, price=price, first=int(MOSTLY * len(test.origins)))


def ahead_of(
    source: Wanted,
    *,
    horizon: int,
    gap: int,
    price: float | None,
    models: tuple[str, ...] = CANDIDATES,
    with_known: bool = True,
    sums: str = "mint",
    seed: int = 1,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Forecast the future of a source: the choice for each series, and table ``schemas.Forecast``.

    Series that are sums of others are their sums: `sums` ``"mint"`` moves all by their past errors
    (:func:`gpuplanner.forecast.quantile_calibration.reconcile_mint`), ``"top"`` shares the forecast of the whole out
    (:func:`gpuplanner.forecast.quantile_calibration.reconcile_to_pool`), ``"none"`` leaves every series as it was
    forecast by itself.
    """
    judged = rolling(
        source,
        horizon=horizon,
        gap=gap,
        cutoffs=8,
        models=weighed(models, with_jobs=with_known and source.known is not None),
        price=price,
        with_known=with_known,
        seed=seed,
    )
    scores = fold_scores(judged)
    table = ahead_table(judged, known=source.known if with_known else None, seed=seed)
    if sums != "none" and source.sums:
        table = _added_up(table, judged, source, sums)
    ids = table["unique_id"].unique(maintain_order=True).to_list()
    more = source.on_top(horizon, gap)[[source.ids.index(uid) for uid in ids]].ravel()
    values = ("mean", *(name for name in table.columns if name.startswith("q")))
    table = table.with_columns(pl.col(values) + pl.Series("more", more))
    record = scores.filter(pl.col("model") == CHOSEN).select("unique_id", "cutoffs", "mase", "coverage_90")
    naive = scores.filter(pl.col("model") == "Naive").select("unique_id", naive_mase="mase")
    words = pl.DataFrame({"unique_id": judged.test.grid.ids, "weights": weights_in_words(judged)})
    choice = (
        scores.filter("chosen")
        .join(words, on="unique_id", maintain_order="left")
        .select("unique_id", "model", "weights", "rule", reason=pl.col("rule").replace_strict(RULES))
        .join(record, on="unique_id", maintain_order="left")
        .join(naive, on="unique_id", maintain_order="left")
    )
    return choice, table


def _added_up(table: pl.DataFrame, judged: Judged, source: Wanted, sums: str) -> pl.DataFrame:
    if sums == "mint":
        test = judged.test
        errors = (test.actual - judged.said_mean).reshape(len(test.grid.ids), -1)
        return reconcile_mint(table, source.sums, dict(zip(test.grid.ids, errors, strict=True)))
    pool = table.filter(unique_id=source.whole)
    leaves = table.filter(pl.col("unique_id").is_in(source.sums[source.whole]))
    shared = reconcile_to_pool(leaves, pool)
    return pl.concat([shared, add_up(shared, table, source.sums)]).sort("unique_id", "ds")
