"""Demand series, their forecasts from every cutoff, and the demand to plan for."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

from gpuplanner.core.libraries_plugins_and_workers import TaskProgress, Workers
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.stage_cache_and_data_folders import CachedStage, disk_stage, stage
from gpuplanner.forecast.backtest import backtest
from gpuplanner.forecast.demand_forecast import ForecastResult, describe_weights, forecast_demand, tabulate_ahead
from gpuplanner.forecast.gpu_demand import DemandHistory, lay_out_demand
from gpuplanner.forecast.model_selection import (
    CHOSEN_MODEL_NAME,
    QUANTILE_COLUMNS,
    EvaluatedBacktest,
    evaluate_backtest,
    fold_scores,
)
from gpuplanner.forecast.quantile_calibration_and_reconciliation import reconcile_mint, reconcile_to_pool, sum_parts
from gpuplanner.forecast.run_off import RUN_OFF_COLUMNS, RUN_OFF_SAMPLE_PATHS, RunOff, lay_out_run_off
from gpuplanner.forecast.statistical_models import (
    CANDIDATE_MODELS,
    DESCRIPTION_BY_SERIES_RULE,
    QUANTILE_LEVELS,
    weighable_candidates,
)
from gpuplanner.usage.planning_history import REQUEST_VIEWS, FleetPools, History, history
from gpuplanner.usage.requested_demand import ALL_TENANTS_POOL_NAME, count_excluded_jobs, demand_series, pool_demand

FORECAST_TABLES = ("forecast", "scores", "choice")
"""Fields of :class:`ForecastResult`, each a table in the file of a cached forecast."""


@dataclass(frozen=True, eq=False)
class DemandOutlook:
    """Past demand and its forecast.

    - ``demand``: Table ``schemas.Demand``, one series for each tenant and profile.
    - ``result``: Forecast of the pool (``all/profile``) and, for rightsized requests, of the tenants, whose means add
      up to it.
    - ``by_tenant``: Forecast of the tenants whose quantiles add up to those of the pool, which a plan covers; None
      unless requests are rightsized.
    """

    demand: pl.DataFrame
    result: ForecastResult
    by_tenant: pl.DataFrame | None = None

    @property
    def to_cover(self) -> pl.DataFrame:
        """Forecast that a plan has to cover: that of the tenants if there is one, else that of the GPU pool."""
        return self.result.forecast if self.by_tenant is None else self.by_tenant


@stage
def demand_by_view(scenario: Scenario) -> dict[str, pl.DataFrame]:
    """Compute the recent demand by view of the requests, as if no job had queued: table ``schemas.Demand`` by view.

    The views are ``whole``, ``requested`` and ``rightsized``: full GPUs, the requested profiles, and the recommended
    ones.
    """
    job_history = history(scenario)
    span = {"start": job_history.recent, "end": job_history.plan_start}
    return {
        view: demand_series(jobs, interval_hours=scenario.interval_hours, clock="wanted", **span)
        for view, jobs in job_history.views.items()
    }


def forecast_to_bytes(forecast: ForecastResult) -> bytes:
    """Pack the tables of a forecast into the bytes of one zip file, each table as Parquet."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as container:
        for name in FORECAST_TABLES:
            table = io.BytesIO()
            getattr(forecast, name).write_parquet(table)
            container.writestr(name, table.getvalue())
    return content.getvalue()


def forecast_from_bytes(content: bytes) -> ForecastResult:
    """Unpack the tables of a forecast from bytes; raise ``ValueError`` if they are damaged."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as container:
            return ForecastResult(**{name: pl.read_parquet(container.read(name)) for name in FORECAST_TABLES})
    except (zipfile.BadZipFile, pl.exceptions.PolarsError) as error:
        raise ValueError("damaged tables of a forecast") from error


disk_cached_forecast = disk_stage("forecasts", forecast_to_bytes, forecast_from_bytes)
"""Decorator of forecasts that are cached on disk: their backtest takes most of the time of an evaluation, and every
command needs them."""


@disk_cached_forecast
def pooled_forecast(scenario: Scenario) -> ForecastResult:
    """Forecast the GPU pool in every view of the requests, with the same model weights and calibration for all views.

    The views count the same jobs, so separate model choices would show their noise as differences between the views.
    Series are named ``view/profile``.
    """
    series = [
        pool_demand(demand).with_columns(tenant=pl.lit(view), unique_id=pl.format("{}/{}", pl.lit(view), "profile"))
        for view, demand in demand_by_view(scenario).items()
    ]
    job_history = history(scenario)
    jobs = pl.concat(
        view.select(
            *RUN_OFF_COLUMNS, "instances", series=pl.format("{}/{}", pl.lit(name), "profile").cast(pl.Categorical)
        )
        for name, view in job_history.views.items()
    )
    jobs_known = _run_off_of_views(jobs, job_history, scenario.interval_hours)
    del jobs  # three times the recent past
    return forecast_demand(pl.concat(series), horizon=scenario.horizon_intervals, known_jobs=jobs_known)


def _run_off_of_views(jobs: pl.DataFrame, job_history: History, interval_hours: float) -> RunOff:
    """Build the :class:`RunOff` from which sample paths are drawn, with the series in the column ``series`` of jobs."""
    return lay_out_run_off(
        jobs, start=job_history.recent, interval_hours=interval_hours, series="series", size="instances"
    )


@disk_cached_forecast
def tenant_forecast(scenario: Scenario) -> ForecastResult:
    """Forecast the demand of every tenant and profile, from rightsized requests."""
    job_history = history(scenario)
    view = job_history.views["rightsized"]
    jobs = view.select(*RUN_OFF_COLUMNS, "instances", series=pl.format("{}/{}", "tenant", "profile"))
    jobs_known = _run_off_of_views(jobs, job_history, scenario.interval_hours)
    demand = demand_by_view(scenario)["rightsized"]
    return forecast_demand(demand, horizon=scenario.horizon_intervals, known_jobs=jobs_known)


def _make_outlook(scenario: Scenario, view: str) -> DemandOutlook:
    """Make the demand outlook of one view of the requests; with tenants if the view is ``rightsized``."""
    every_view = pooled_forecast(scenario)
    pool_tables = [_select_view(table, view) for table in (every_view.forecast, every_view.scores, every_view.choice)]
    demand = demand_by_view(scenario)[view]
    if view != "rightsized":
        return DemandOutlook(demand, ForecastResult(*pool_tables))
    tenant_result = tenant_forecast(scenario)
    reconciled = reconcile_to_pool(tenant_result.forecast, pool_tables[0], own_quantiles=True)
    both = [
        pl.concat(parts)
        for parts in zip(pool_tables, (reconciled, tenant_result.scores, tenant_result.choice), strict=True)
    ]
    return DemandOutlook(demand, ForecastResult(*both), reconcile_to_pool(tenant_result.forecast, pool_tables[0]))


def _select_view(table: pl.DataFrame, view: str) -> pl.DataFrame:
    """Select the rows of one view; its series ``view/profile`` become ``all/profile``."""
    view_rows = table.filter(pl.col("unique_id").str.starts_with(f"{view}/"))
    return view_rows.with_columns(pl.col("unique_id").str.replace(view, ALL_TENANTS_POOL_NAME, literal=True))


OUTLOOK_STAGE_BY_VIEW = {
    view: CachedStage(lambda scenario, view=view: _make_outlook(scenario, view)) for view in REQUEST_VIEWS
}
"""Cached function from a scenario to its :class:`DemandOutlook`, by view of the requests."""


def fleet_forecast(fleet: FleetPools) -> tuple[ForecastResult, pl.DataFrame, dict[str, int]]:
    """Forecast every GPU pool of a fleet separately, with series named by GPU model.

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
    for name, pool_scenario in fleet.pools.items():
        result = OUTLOOK_STAGE_BY_VIEW["rightsized"](pool_scenario).result
        pooled = result.scores.filter(pl.col("unique_id").str.starts_with(f"{ALL_TENANTS_POOL_NAME}/"))
        tables = (result.forecast, result.scores, result.choice, pooled)
        parts.append(tuple(_name_by_pool(table, name) for table in tables) if fleet.several else tables)
        for reason, jobs in count_excluded_jobs(history(pool_scenario).views["rightsized"]).items():
            left[reason] = left.get(reason, 0) + jobs
    forecast, scores, choice, pooled = (pl.concat(tables) for tables in zip(*parts, strict=True))
    return ForecastResult(forecast, scores, choice), pooled, left


def _name_by_pool(table: pl.DataFrame, name: str) -> pl.DataFrame:
    """Rename the series of a GPU pool: ``all/profile`` to ``pool/profile``, and others to ``pool/tenant/profile``."""
    series = pl.col("unique_id").cast(pl.String)
    whole = series.str.starts_with(f"{ALL_TENANTS_POOL_NAME}/")
    bare = series.str.replace(f"{ALL_TENANTS_POOL_NAME}/", "", literal=True)
    pool_series = pl.concat_str(pl.lit(f"{name}/"), pl.when(whole).then(bare).otherwise(series))
    return table.with_columns(unique_id=pool_series)


@dataclass(frozen=True)
class NextDayDemand:
    """Forecast of the GPUs in use at noon of the next local day, from rightsized requests.

    ``at`` is that noon; ``gpus`` is None if the forecast ends before it; ``low`` and ``high`` are the 90 % interval,
    None with several profiles.
    """

    at: datetime
    gpus: float | None
    low: float | None = None
    high: float | None = None


@stage
def tomorrow(scenario: Scenario) -> NextDayDemand:
    """Forecast the GPUs in use at noon of the next local day: the rightsized forecast, summed over all profiles.

    Examples
    --------
    >>> found = tomorrow(Scenario(history_days=14))
    >>> f"{found.at:%H:%M}", 0 < found.gpus < 64
    ('12:00', True)
    """
    job_history = history(scenario)
    day = job_history.plan_start.astimezone(ZoneInfo(scenario.tz)) + timedelta(days=1)
    noon = day.replace(hour=12, minute=0)
    noon_utc = noon.astimezone(UTC)  # polars compares only times of one zone
    begin_utc = noon_utc - timedelta(hours=scenario.interval_hours)
    in_interval = pl.col("ds").is_between(begin_utc, noon_utc, closed="right")
    pooled = pl.col("unique_id").str.starts_with(f"{ALL_TENANTS_POOL_NAME}/")
    forecast = OUTLOOK_STAGE_BY_VIEW["rightsized"](scenario).result.forecast.filter(pooled, in_interval)
    if forecast.is_empty():
        return NextDayDemand(noon, None)
    share = gpu_fraction_of_series(forecast, job_history)
    gpus, *interval = forecast.select((pl.col("mean", QUANTILE_COLUMNS[0], QUANTILE_COLUMNS[-1]) * share).sum()).row(0)
    return NextDayDemand(noon, gpus, *(interval if forecast.height == 1 else ()))


def gpu_fraction_of_series(series: pl.DataFrame, job_history: History) -> pl.Expr:
    """Make the expression of the fraction of a GPU [0-1] that an instance takes, by the profile in ``unique_id``."""
    profile = pl.col("unique_id").str.split("/").list.last()
    names, gpu_model = series.select(profile).to_series().unique(), job_history.fleet.gpu_model
    return profile.replace_strict({name: gpu_model.gpu_fraction(name) for name in names}, return_dtype=pl.Float64)


def demand_paths(scenario: Scenario, tenants: Sequence[str], profiles: Sequence[str]) -> np.ndarray:
    """Draw sample paths of rightsized demand over the horizon, from jobs in the system and future arrivals.

    The result has the shape (n_paths, n_tenants, n_profiles, n_intervals) [instances].
    """
    job_history = history(scenario)
    jobs = job_history.views["rightsized"].with_columns(series=pl.format("{}/{}", "tenant", "profile"))
    jobs_known = _run_off_of_views(jobs, job_history, scenario.interval_hours)
    origin = (job_history.plan_start - job_history.recent) // timedelta(hours=scenario.interval_hours)
    ids = [f"{tenant}/{profile}" for tenant in tenants for profile in profiles]
    known_ids = [uid for uid in ids if uid in jobs_known.names]
    steps = scenario.horizon_intervals
    drawn = dict(zip(known_ids, jobs_known.draws(known_ids, origin, steps, scenario.seed), strict=True))
    none = np.zeros((RUN_OFF_SAMPLE_PATHS, steps))
    every = np.stack([drawn.get(uid, none) for uid in ids])
    return np.moveaxis(every.reshape(len(tenants), len(profiles), RUN_OFF_SAMPLE_PATHS, steps), 2, 0)


@stage
def largest_gang(scenario: Scenario) -> int:
    """Return the largest number of full GPUs that a recent job requests at once, with rightsized requests."""
    job_history = history(scenario)
    is_recent_and_whole = (pl.col("submit_time") >= job_history.recent) & (pl.col("profile") == FULL_GPU)
    return job_history.views["rightsized"].select(pl.col("instances").filter(is_recent_and_whole).max()).item() or 0


def expected_gpu_hours(scenario: Scenario) -> float:
    """Sum the mean forecast over the horizon [GPU-hours], without rightsizing.

    Jobs have the profiles that they request if today's fleet is MIG-partitioned, else full GPUs.
    """
    job_history = history(scenario)
    forecast = OUTLOOK_STAGE_BY_VIEW["requested" if job_history.fleet.cut_gpus else "whole"](scenario).result.forecast
    gpus = forecast.select((pl.col("mean") * gpu_fraction_of_series(forecast, job_history)).sum()).item()
    return float(gpus) * scenario.interval_hours * scenario.arrival_scale


def at_quantile(forecast: pl.DataFrame, quantile: float) -> pl.DataFrame:
    """Interpolate the demand of a forecast at a quantile, linearly between the stored quantiles.

    Examples
    --------
    >>> from gpuplanner.core.schemas import Forecast
    >>> from gpuplanner.core.schema_checks import make_empty_table
    >>> at_quantile(make_empty_table(Forecast), 0.9).columns
    ['unique_id', 'ds', 'y']
    """
    above = int(np.clip(np.searchsorted(QUANTILE_LEVELS, quantile), 1, len(QUANTILE_LEVELS) - 1))
    weight = (quantile - QUANTILE_LEVELS[above - 1]) / (QUANTILE_LEVELS[above] - QUANTILE_LEVELS[above - 1])
    low, high = pl.col(QUANTILE_COLUMNS[above - 1]), pl.col(QUANTILE_COLUMNS[above])
    return forecast.select("unique_id", "ds", y=low + weight * (high - low))


__all__ = ["DemandHistory", "forecast_ahead", "lay_out_demand", "rolling_backtest"]

CALIBRATION_CUTOFFS_FRACTION = 0.4
"""Share of the cutoffs of a backtest, the first ones, that only calibrate: 8 of 20."""


def rolling_backtest(
    demand: DemandHistory,
    *,
    horizon: int,
    gap: int,
    cutoffs: int,
    models: tuple[str, ...],
    price: float | None,
    with_known: bool = True,
    seed: int = 1,
    workers: Workers = 1,
    progress: TaskProgress | None = None,
) -> EvaluatedBacktest:
    """Backtest from cutoffs in the last half of the data; the first two fifths of them only calibrate.

    Parameters
    ----------
    demand : DemandHistory
        Demand series.
    horizon : int
        Intervals to forecast.
    gap : int
        Intervals from the cutoff to the first one that is forecast.
    cutoffs : int
        Number of cutoffs.
    models : sequence of str
        Names of the models.
    price : float or None
        Cost of a GPU-hour of unmet demand relative to a planned one. [ratio]
    with_known : bool
        Whether models may use the jobs behind the series.
    seed : int
        Seed of the sample paths.
    workers : int or str
        Processes, or the address of a Dask scheduler.
    progress : callable, optional
        Called with the number of tasks done and of all.
    """
    test = backtest(
        demand.demand_table,
        horizon=horizon,
        gap=gap,
        windows=cutoffs,
        known_jobs=demand.run_off if with_known else None,
        models=models,
        caps=demand.caps,
        walk=True,
        seed=seed,
        workers=workers,
        progress=progress,
    )
    return evaluate_backtest(test, price=price, first=int(CALIBRATION_CUTOFFS_FRACTION * len(test.origins)))


def forecast_ahead(
    demand: DemandHistory,
    *,
    horizon: int,
    gap: int,
    price: float | None,
    models: tuple[str, ...] = CANDIDATE_MODELS,
    with_known: bool = True,
    sums: str = "mint",
    seed: int = 1,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Forecast the future of demand series: the choice of models, and table ``schemas.Forecast``.

    Forecasts of sums are made to agree with those of their parts: `sums` ``"mint"`` adjusts all by their past errors
    (:func:`gpuplanner.forecast.quantile_calibration_and_reconciliation.reconcile_mint`), ``"top"`` splits the forecast
    of the whole fleet (:func:`gpuplanner.forecast.quantile_calibration_and_reconciliation.reconcile_to_pool`),
    ``"none"`` leaves every forecast unchanged.

    Parameters
    ----------
    demand : DemandHistory
        Demand series.
    horizon : int
        Intervals to forecast.
    gap : int
        Intervals from the cutoff to the first one that is forecast.
    price : float or None
        Cost of a GPU-hour of unmet demand relative to a planned one. [ratio]
    models : sequence of str
        Names of the models.
    with_known : bool
        Whether models may use the jobs behind the series.
    sums : {"mint", "top", "none"}
        How series that are sums are reconciled, see above.
    seed : int
        Seed of the sample paths.
    """
    judged = rolling_backtest(
        demand,
        horizon=horizon,
        gap=gap,
        cutoffs=8,
        models=weighable_candidates(models, with_jobs=with_known and demand.run_off is not None),
        price=price,
        with_known=with_known,
        seed=seed,
    )
    scores = fold_scores(judged)
    table = tabulate_ahead(judged, known_jobs=demand.run_off if with_known else None, seed=seed)
    if sums != "none" and demand.sums:
        table = _reconcile_sums(table, judged, demand, sums)
    ids = table["unique_id"].unique(maintain_order=True).to_list()
    announced = demand.announced_job_gpus(horizon, gap)[[demand.ids.index(uid) for uid in ids]].ravel()
    values = ("mean", *(name for name in table.columns if name.startswith("q")))
    table = table.with_columns(pl.col(values) + pl.Series("more", announced))
    record = scores.filter(pl.col("model") == CHOSEN_MODEL_NAME).select("unique_id", "cutoffs", "mase", "coverage_90")
    naive = scores.filter(pl.col("model") == "Naive").select("unique_id", naive_mase="mase")
    words = pl.DataFrame({"unique_id": judged.test.grid.ids, "weights": describe_weights(judged)})
    choice = (
        scores.filter("chosen")
        .join(words, on="unique_id", maintain_order="left")
        .select(
            "unique_id", "model", "weights", "rule", reason=pl.col("rule").replace_strict(DESCRIPTION_BY_SERIES_RULE)
        )
        .join(record, on="unique_id", maintain_order="left")
        .join(naive, on="unique_id", maintain_order="left")
    )
    return choice, table


def _reconcile_sums(table: pl.DataFrame, backtest: EvaluatedBacktest, demand: DemandHistory, sums: str) -> pl.DataFrame:
    """Make the forecasts of series and their sums agree, by the method `sums` of :func:`forecast_ahead`."""
    if sums == "mint":
        test = backtest.test
        errors = (test.actual - backtest.mixture_mean).reshape(len(test.grid.ids), -1)
        return reconcile_mint(table, demand.sums, dict(zip(test.grid.ids, errors, strict=True)))
    pool = table.filter(unique_id=demand.whole)
    leaves = table.filter(pl.col("unique_id").is_in(demand.sums[demand.whole]))
    shared = reconcile_to_pool(leaves, pool)
    return pl.concat([shared, sum_parts(shared, table, demand.sums)]).sort("unique_id", "ds")
