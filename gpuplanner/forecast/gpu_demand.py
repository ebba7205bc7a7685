"""Requested GPUs over time, from jobs, pool readings or telemetry.

Series are named ``tenant/profile``, or ``tenant/board/profile`` where every job says its GPU model. A tenant whose name
is a path (``a/b/c``) is part of the sums ``a/b`` and ``a``; everything is part of ``all``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from functools import cached_property

import numpy as np
import polars as pl

from gpuplanner.core.errors import ScenarioError, TraceFormatError, resolve_name
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import FULL_GPU, MIN_USED_SM_ACTIVITY
from gpuplanner.core.stage_cache_and_data_folders import data_folder
from gpuplanner.core.step_functions import has_unknown_end
from gpuplanner.core.units_and_number_formats import count_text
from gpuplanner.forecast.demand_forecast import choose_representatives, cost_curve
from gpuplanner.forecast.growth_and_announced_demand import (
    MIN_GROWTH_WEEKS,
    complete_until,
    event_hours,
    fit_growth,
    gpus_announced,
)
from gpuplanner.forecast.run_off import RUN_OFF_COLUMNS, RunOff, lay_out_run_off
from gpuplanner.ingest.dataset_folder import scan_samples
from gpuplanner.ingest.telemetry.gpu_energy_and_hourly_sums import aggregate_hourly
from gpuplanner.ingest.telemetry.metric_definitions import DEVICE_KEY
from gpuplanner.ingest.telemetry.telemetry_join import find_devices
from gpuplanner.usage.allocated_hours import MIN_PROCESS_MEMORY_GIB
from gpuplanner.usage.grouped_usage import parse_instant
from gpuplanner.usage.planning_history import history, load_study_dataset, observation_ends_at
from gpuplanner.usage.requested_demand import ALL_TENANTS_POOL_NAME
from gpuplanner.usage.run_time_hazards import remaining_run_time


@dataclass(frozen=True, eq=False)
class DemandHistory:
    """Demand series up to a cutoff [GPUs], with the jobs from which they were computed.

    - ``start``: Start of the first interval, UTC.
    - ``slots``, ``interval_hours``: Number of intervals up to the cutoff, and their length [h].
    - ``ids``: Names of the series, such as ``vision/gpu``; the fleet is ``all/...``.
    - ``sums``: Names of the series that are sums, each with the names of the series that it sums.
    - ``run_off``: Jobs from which sample paths are drawn; None if the source has no jobs.
    - ``values``, shape (n_series, intervals): Demand as it was known at the cutoff; NaN where there is no reading.
    - ``caps``: Upper limit of a series by name, such as its quota [GPUs].
    - ``remarks``: Sentences on how the data were prepared, such as rows that were left out.
    - ``announced``: Announced future jobs, see
      :func:`gpuplanner.forecast.growth_and_announced_demand.read_announced`; their GPUs are added to every forecast and
      every sample path.
    """

    start: datetime
    slots: int
    interval_hours: float
    ids: tuple[str, ...]
    run_off: RunOff | None
    values: np.ndarray
    caps: Mapping[str, float]
    remarks: tuple[str, ...] = ()
    announced: pl.DataFrame | None = None
    sums: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def demand_table(self) -> pl.DataFrame:
        """Demand series in long form: table ``schemas.Demand``, one row for each series and interval."""
        ds = [self.start + number * timedelta(hours=self.interval_hours) for number in range(self.slots)]
        parts = []
        for uid, row in zip(self.ids, self.values, strict=True):
            tenant, _, profile = uid.rpartition("/")
            parts.append(pl.DataFrame({"unique_id": uid, "ds": ds, "y": row, "tenant": tenant, "profile": profile}))
        return pl.concat(parts).filter(pl.col("y").is_not_nan())

    @property
    def end(self) -> datetime:
        """End of the last interval."""
        return self.start + self.slots * timedelta(hours=self.interval_hours)

    @property
    def whole(self) -> str:
        """Name of the series of the whole fleet; without such a series, name of the largest one."""
        mean = dict(zip(self.ids, np.nanmean(self.values, axis=1), strict=True))
        sums = [uid for uid in self.ids if uid.startswith(f"{ALL_TENANTS_POOL_NAME}/")]
        return max(sums or self.ids, key=lambda uid: (mean[uid], uid))

    def announced_job_gpus(self, horizon: int, gap: int) -> np.ndarray:
        """Compute the mean GPUs of announced jobs in the forecast intervals, shape (n_series, horizon)."""
        if self.announced is None:
            return np.zeros((len(self.ids), horizon))
        origin = self._forecast_times(1, 0)[0]
        how = (self.whole, origin, self.interval_hours, gap + horizon)
        announced_gpus = gpus_announced(self.announced, self.ids, *how)[:, gap:]
        for name, parts in self.sums.items():
            if name != self.whole:
                rows = [self.ids.index(part) for part in parts]
                announced_gpus[self.ids.index(name)] += announced_gpus[rows].sum(axis=0)
        return announced_gpus

    def fan(self, horizon: int, *, seed: int = 1) -> pl.DataFrame:
        """Tabulate the forecast of fleet demand from the cutoff on, split into jobs in the system and later arrivals.

        Columns: ``ds``, ``still_running`` and ``to_come`` (means of both parts), ``q05``, ``q50`` and ``q95`` of their
        sum [GPUs].
        """
        paths = self._require_run_off().split_paths([self.whole], self.slots, horizon, seed)
        running, coming = (part[0] for part in paths)
        coming = coming + self._fleet_row(self.announced_job_gpus(horizon, 0))
        low, middle, high = np.quantile(running + coming, (0.05, 0.5, 0.95), axis=0)
        ds = pl.Series(self._forecast_times(horizon, 0), dtype=pl.Datetime("us", "UTC"))
        means = {"still_running": running.mean(axis=0), "to_come": coming.mean(axis=0)}
        return pl.DataFrame({"ds": ds, **means, "q05": low, "q50": middle, "q95": high})

    def cost_curve(self, horizon: int, gap: int, price: float, *, seed: int = 1) -> pl.DataFrame:
        """Compute the cost of planning the fleet at each quantile, see :func:`~gpuplanner.forecast.cost_curve`.

        Parameters
        ----------
        horizon : int
            Intervals to forecast.
        gap : int
            Intervals from the cutoff to the first one that is forecast.
        price : float
            Cost of a GPU-hour of unmet demand relative to a planned one, above 1. [ratio]
        seed : int
            Seed of the sample paths.
        """
        return cost_curve(self._paths_of_whole(horizon, gap, seed), price)

    def plan_calendar(self, horizon: int, gap: int, price: float, *, seed: int = 1) -> pl.DataFrame:
        """Tabulate the GPUs to plan on each coming day: ``day, planned, expected, low, high``, each at its daily peak.

        ``planned`` is the quantile of demand with the lowest mean cost if an unmet GPU-hour costs `price` times a
        planned one.

        Parameters
        ----------
        horizon : int
            Intervals to forecast.
        gap : int
            Intervals from the cutoff to the first one that is forecast.
        price : float
            Cost of a GPU-hour of unmet demand relative to a planned one, above 1. [ratio]
        seed : int
            Seed of the sample paths.
        """
        drawn = self._paths_of_whole(horizon, gap, seed)
        best = cost_curve(drawn, price).filter("best")["quantile"][0]
        low, planned, high = np.quantile(drawn, (0.05, best, 0.95), axis=0)
        slots = pl.DataFrame({
            "day": pl.Series(self._forecast_times(horizon, gap), dtype=pl.Datetime("us", "UTC")).dt.date(),
            "planned": np.ceil(planned), "expected": drawn.mean(axis=0), "low": low, "high": high,
        })  # fmt: skip
        return slots.group_by("day", maintain_order=True).max()

    def _paths_of_whole(self, horizon: int, gap: int, seed: int) -> np.ndarray:
        """Draw sample paths of the whole fleet, shape (n_paths, horizon), announced jobs included."""
        drawn = self._require_run_off().draws([self.whole], self.slots, gap + horizon, seed)[0, :, gap:]
        return np.asarray(drawn + self._fleet_row(self.announced_job_gpus(horizon, gap)))

    def _fleet_row(self, values: np.ndarray) -> np.ndarray:
        """Return the row of the whole fleet from an array with one row for each series."""
        return np.asarray(values[self.ids.index(self.whole)])

    def _require_run_off(self) -> RunOff:
        """Return ``run_off``, or raise :class:`ScenarioError` if the source has no jobs."""
        if self.run_off is None:
            raise ScenarioError("forecast: paths", "data with jobs", "occupancy alone", "Ingest the jobs as well.")
        return self.run_off

    def _forecast_times(self, horizon: int, gap: int) -> list[datetime]:
        """List the starts of the `horizon` intervals that begin `gap` intervals after the cutoff."""
        slot = timedelta(hours=self.interval_hours)
        return [self.start + (self.slots + gap + number) * slot for number in range(horizon)]

    def running(self) -> pl.DataFrame:
        """Tabulate running jobs at the cutoff and their remaining run time, by series."""
        if self.run_off is None:
            return pl.DataFrame(schema={"unique_id": pl.String, "jobs": pl.UInt32})
        at = self.slots * self.interval_hours
        jobs = self.run_off.as_of(self.slots)
        begun = np.isfinite(jobs.begin)
        table = pl.DataFrame(
            {
                "unique_id": np.array(self.run_off.names, dtype=object)[jobs.series[begun]],
                "ran_h": np.minimum(jobs.end, at)[begun] - jobs.begin[begun],
                "ended": np.isfinite(jobs.end)[begun],
                "gpus": jobs.size[begun],
            },
            schema_overrides={"unique_id": pl.String},
        )
        left = remaining_run_time(table, levels=(0.5, 0.9), by=("unique_id",)).filter(~pl.col("ended"))
        quantiles = pl.col("remaining_q50_h", "remaining_q90_h").median()
        hours = (pl.col("gpus") * pl.col("remaining_h")).sum().alias("gpu_hours_left")
        sums = (pl.len().alias("jobs"), pl.col("gpus").sum(), hours, quantiles)
        return left.group_by("unique_id", maintain_order=True).agg(sums).sort("unique_id")

    def draw_weekly_demand(
        self,
        *,
        growth_per_week: Mapping[str, float],
        added_gpus: Mapping[str, tuple[float, date | str]],
        weeks: int,
        quantile: float,
        seed: int = 1,
    ) -> np.ndarray:
        """Draw the demand of the weeks ahead: past weeks, scaled by growth, and GPUs that teams add.

        Parameters
        ----------
        growth_per_week : mapping of str to float
            Stated growth of teams, 0.02 for 2 %; other demand grows as fitted to the record, from four weeks on.
        added_gpus : mapping of str to tuple of float and date
            GPUs that a team needs all the time from a day on.
        weeks : int
            Weeks ahead, counted from :attr:`end`.
        quantile : float
            Quantile of the intervals of a week that stands for its demand. [0-1]
        seed : int
            Seed of the sample paths.

        Returns
        -------
        numpy.ndarray, shape (WEEKLY_DEMAND_PATHS, weeks)
            GPUs by path and week.

        Raises
        ------
        ScenarioError
            If a team, a growth or a date is not valid, or no whole week was observed.
        """
        length = round(7 * 24 / self.interval_hours)
        n_weeks = self.slots // length
        if not n_weeks:
            got = f"{self.slots * self.interval_hours / 24:.1f} days"
            raise TraceFormatError("forecast of weeks", "a whole week of demand", got, "Give a longer history.")
        leaves = [row for row, name in enumerate(self.ids) if name not in self.sums]
        past = np.nan_to_num(self.values[leaves, -n_weeks * length :]).reshape(len(leaves), n_weeks, length)
        grown: dict[str, np.ndarray] = {}
        is_rest = np.ones(len(leaves), bool)
        teams = sorted({self.ids[row].rpartition("/")[0].removesuffix(f"/{OWN_JOBS_LABEL}") for row in leaves})
        for team, share in growth_per_week.items():
            name = resolve_name(team, teams, subject="team", error=ScenarioError)
            if not isinstance(share, int | float) or not -0.5 <= share <= 1:
                got, todo = f"{share!r} for {name}", "Write a share, such as 0.02 for 2 % a week."
                raise ScenarioError("growth_per_week", "a share from -0.5 to 1", got, todo)
            is_team = np.array([self.ids[row].startswith(f"{name}/") for row in leaves]) & is_rest
            grown[team], is_rest = past[is_team].sum(axis=0), is_rest & ~is_team
        additions = [_parse_added_gpus(*item) for item in added_gpus.items()]

        other_demand = past[is_rest].sum(axis=0)
        drawn = np.random.default_rng(seed).integers(n_weeks, size=(WEEKLY_DEMAND_PATHS, weeks))
        factor = np.ones(drawn.shape)
        if n_weeks >= MIN_GROWTH_WEEKS and other_demand.any():
            levels = fit_growth(other_demand.mean(axis=1)).paths(weeks, seed=seed, count=WEEKLY_DEMAND_PATHS)
            factor = levels / np.maximum(other_demand.mean(axis=1), 1e-9)[drawn]
        demand = np.empty(drawn.shape)
        for week in range(weeks):
            rows, end = drawn[:, week], self.end + timedelta(days=7 * (week + 1))
            gpus = other_demand[rows] * factor[:, week, None]
            for team, share in growth_per_week.items():
                gpus += grown[team][rows] * (1 + share) ** (week + 1)
            gpus += sum(added for added, since in additions if since < end)
            demand[:, week] = np.quantile(gpus, quantile, axis=1)
        return demand

    def date_exceedance(self, demand: np.ndarray, limit_gpus: float) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Date the week in which demand first exceeds a limit.

        Parameters
        ----------
        demand : numpy.ndarray, shape (n_paths, n_weeks)
            From :meth:`draw_weekly_demand`. [GPU]
        limit_gpus : float
            Limit. [GPU]

        Returns
        -------
        estimates : polars.DataFrame
            ``estimate`` (of :data:`EXCEEDANCE_LEVELS`), ``probability`` that demand has exceeded the limit by then
            [0-1], and ``week``, the first day of that week; null: not within these weeks.
        outlook : polars.DataFrame
            ``week, estimate, gpus``: quantiles of the demand, and the limit. [GPU]
        """
        weeks = pl.Series([(self.end + timedelta(days=7 * week)).date() for week in range(demand.shape[1])])
        exceeded_share = np.maximum.accumulate(demand > limit_gpus, axis=1).mean(axis=0)
        first = {name: weeks.filter(exceeded_share >= level) for name, level in EXCEEDANCE_LEVELS.items()}
        estimates = pl.DataFrame({
            "estimate": list(first), "probability": list(EXCEEDANCE_LEVELS.values()),
            "week": pl.Series([exceeding_weeks.min() for exceeding_weeks in first.values()], dtype=pl.Date),
        })  # fmt: skip
        series = {f"{100 * level:g} % quantile": np.quantile(demand, level, axis=0) for level in (0.1, 0.5, 0.9)}
        series["limit"] = np.full(len(weeks), limit_gpus)
        parts = [pl.DataFrame({"week": weeks, "estimate": name, "gpus": gpus}) for name, gpus in series.items()]
        return estimates, pl.concat(parts)

    def paths(self, horizon: int, gap: int, seed: int, max_paths: int | None = None) -> pl.DataFrame:
        """Draw sample paths of every series from the cutoff on: ``unique_id, path, ds, y``.

        With `max_paths`, only that many representative paths, with the column ``weight``: the share of all paths that
        each represents.

        Parameters
        ----------
        horizon : int
            Intervals to forecast.
        gap : int
            Intervals from the cutoff to the first one that is forecast.
        seed : int
            Seed of the sample paths.
        max_paths : int, optional
            Number of representative paths; None: all.
        """
        drawn = self._require_run_off().draws(self.ids, self.slots, gap + horizon, seed)[..., gap:]
        drawn = drawn + self.announced_job_gpus(horizon, gap)[:, None]
        ds = pl.Series(self._forecast_times(horizon, gap), dtype=pl.Datetime("us", "UTC"))
        kept, weights = np.arange(drawn.shape[1]), np.ones(drawn.shape[1])
        if max_paths is not None:
            rows = [row for row, uid in enumerate(self.ids) if uid not in self.sums]
            kept, weights = choose_representatives(drawn[rows].swapaxes(0, 1), max_paths)
            drawn = drawn[:, kept]
        count = drawn.shape[1]
        table = pl.DataFrame(
            {
                "unique_id": np.repeat(np.array(self.ids, dtype=object), count * horizon),
                "path": np.tile(np.repeat(kept, horizon), len(self.ids)),
                "ds": ds[np.tile(np.arange(horizon), count * len(self.ids))],
                "y": drawn.ravel(),
                "weight": np.tile(np.repeat(weights, horizon), len(self.ids)),
            },
            schema_overrides={"unique_id": pl.String, "path": pl.Int32},
        )
        return table.drop("weight") if max_paths is None else table


WEEKLY_DEMAND_PATHS = 1000
"""Sample paths of the demand of weeks ahead."""
EXCEEDANCE_LEVELS = {"early": 0.1, "median": 0.5, "late": 0.9}
"""Estimates of the week in which demand first exceeds a limit, and the share of sample paths that have done so [0-1].
"""
DEMAND_JOB_COLUMNS = (*RUN_OFF_COLUMNS, "gpu_model")
"""Columns of table ``schemas.Jobs`` that a forecast of GPU demand reads."""
MAX_GAP_BETWEEN_ARRIVALS = timedelta(days=56)
"""Longest time without a submission; demand before a longer one is not used for the forecast."""
UNKNOWN_GPU_MODEL_LABEL = "(GPU model unknown)"
"""Part of a series name in place of the GPU model of jobs that name none."""
OWN_JOBS_LABEL = "(own)"
"""Last part of the series name of a tenant's own jobs if its name is a prefix of others: ``a/b/(own)``."""
HOUR = timedelta(hours=1)
"""Time span of one hour."""
MIN_HISTORY_FOR_OWN_ERRORS = timedelta(days=28)
"""Length of the history from which no remark says that intervals rest on errors pooled over all series."""


def _parse_added_gpus(team: str, addition: object) -> tuple[float, datetime]:
    """Return the GPUs that a team adds, and since when; raise ScenarioError for anything else."""
    match addition:
        case (int() | float() as gpus, str() | date() as day) if gpus >= 0:
            return gpus, parse_instant(day, option="added_gpus")
    got, todo = f"{addition!r} for {team}", f"Write {{{team!r}: (16, '2026-05-01')}}."
    raise ScenarioError("added_gpus", "a number of GPUs and a day", got, todo)


def lay_out_demand(
    scenario: Scenario, *, at: datetime | None = None, by: str = "tenant", calendar: pl.DataFrame | None = None
) -> DemandHistory:
    """Build the demand series of a scenario's data up to a cutoff.

    Parameters
    ----------
    scenario : Scenario
        Scenario of the study.
    at : datetime, optional
        Cutoff; None: the end of the scenario's month or of the data.
    by : {"tenant", "gpu_model", "profile"}
        Attribute of the jobs by which series are formed.
    calendar : polars.DataFrame, optional
        Known events, see :func:`gpuplanner.forecast.growth_and_announced_demand.read_calendar`.
    """
    span = scenario.month_span()
    at = at if at is not None or span is None else span[1]
    if by == "profile":
        past = history(scenario)
        jobs = past.views["rightsized"].with_columns(profile=pl.format(ALL_TENANTS_POOL_NAME + "/{}", "profile"))
        return lay_out_jobs(
            jobs, trace_end=past.plan_start, at=at or past.plan_start, interval_hours=scenario.interval_hours,
            series="profile", size="instances", suffix="", total=False, calendar=calendar,
        )  # fmt: skip
    trace = load_study_dataset(scenario, columns=DEMAND_JOB_COLUMNS, at=at, days=MAX_GAP_BETWEEN_ARRIVALS.days)
    if "jobs" in trace.tables:
        jobs, remarks = name_series(trace.jobs, by=by)
        return lay_out_jobs(
            jobs, trace_end=observation_ends_at(trace), at=at, interval_hours=scenario.interval_hours, series="series",
            calendar=calendar, remarks=remarks,
        )  # fmt: skip
    if by == "gpu_model":
        kept = ", ".join(sorted(trace.tables)) or "samples"
        raise ScenarioError("forecast by gpu_model", "jobs, which name their GPU model", kept, "Leave out --by.")
    if "occupancy" in trace.tables:
        return lay_out_occupancy(trace.tables["occupancy"], scenario.interval_hours, at)
    if trace.samples is None:
        tables = ", ".join(sorted(trace.tables)) or "nothing"
        expected = "jobs, readings of pools, or telemetry of devices"
        todo = "Ingest a list of jobs or samples into the folder."
        raise ScenarioError(f"forecast of {scenario.data!r}", expected, tables, todo)
    return lay_out_telemetry(scan_samples(data_folder(scenario.data)), scenario.interval_hours, at)


def lay_out_jobs(
    jobs: pl.DataFrame,
    *,
    trace_end: datetime,
    at: datetime | None = None,
    interval_hours: float = 1.0,
    series: str = "tenant",
    size: str = "gpus",
    suffix: str = f"/{FULL_GPU}",
    total: bool = True,
    calendar: pl.DataFrame | None = None,
    remarks: tuple[str, ...] = (),
) -> DemandHistory:
    """Build demand series from jobs up to a cutoff, by default the time up to which the record is complete.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    trace_end : datetime
        End of the record.
    at : datetime, optional
        Cutoff; None: the time up to which the record is complete.
    interval_hours : float
        Length of an interval. [h]
    series, size : str
        Columns that name the series of a job, and its GPUs or instances.
    suffix : str
        Text added to the names of the series.
    total : bool
        Whether to add series that are sums of others, such as ``all/gpu``.
    calendar : polars.DataFrame, optional
        Known events, see :func:`gpuplanner.forecast.growth_and_announced_demand.read_calendar`.
    remarks : tuple of str
        Remarks on the data from earlier steps, to which others are added.
    """
    end = at or trace_end
    if at is None:
        end = complete_until(jobs.filter(~has_unknown_end()), trace_end)
        if end < trace_end:
            remarks += (
                f"the record holds only jobs that ended: after {end:%Y-%m-%d %H:%M} more than a tenth of the "
                "demand is missing from it, and is left out",
            )
    jobs = jobs.filter(pl.col("submit_time") < end, pl.col(size) > 0)
    slot = timedelta(hours=interval_hours)
    start, before = _first_submission_after_silence(jobs, end)
    start = _floor_to_interval(start, slot)
    if before:
        remarks += (
            f"{before:,} submission(s) lie more than {MAX_GAP_BETWEEN_ARRIVALS.days} days before the next: series "
            f"begin behind them, at {start:%Y-%m-%d %H:%M}; what still runs of them counts",
        )
    slots = (end - start) // slot
    if slots < 2:
        expected = f"two intervals with jobs before {end:%Y-%m-%d %H:%M}"
        raise ScenarioError("forecast", expected, f"{slots}", "Choose a later cutoff (--at).")
    events = () if calendar is None else event_hours(calendar, start)
    sums: dict[str, tuple[str, ...]] = {}
    if total:
        jobs, parts = _sum_hierarchy(jobs, series)
        sums = {name + suffix: tuple(leaf + suffix for leaf in leaves) for name, leaves in parts.items()}
    jobs_known = lay_out_run_off(
        jobs, start=start, interval_hours=interval_hours, series=series, size=size, suffix=suffix, events=events
    )
    number = {name: at for at, name in enumerate(jobs_known.names)}
    totals = {name: tuple(number[leaf] for leaf in leaves) for name, leaves in sums.items()}
    jobs_known = replace(jobs_known, totals=totals)
    ids = (*jobs_known.names, *totals)
    remarks += _short_history_remark(slots * slot)
    return DemandHistory(
        start, slots, interval_hours, ids, jobs_known, jobs_known.demand_before(ids, slots), {}, remarks, sums=sums
    )


def name_series(jobs: pl.DataFrame, *, by: str = "tenant") -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Add the column ``series`` to jobs: the GPU model, the tenant, or ``tenant/GPU model``.

    By tenant, the GPU model is part of the name if there are several and every job names one. Also returns remarks on
    the naming.
    """
    gpu_model = pl.col("gpu_model").cast(pl.String).fill_null(UNKNOWN_GPU_MODEL_LABEL)
    if by == "gpu_model":
        return jobs.with_columns(series=gpu_model), ()
    models = jobs.select(pl.col("gpu_model").filter(pl.col("gpus") > 0).unique()).to_series()
    boards = models.drop_nulls().len()
    if boards > 1 and not models.null_count():
        return jobs.with_columns(series=pl.format("{}/{}", "tenant", gpu_model)), ()
    remark = f"GPUs of {boards} models are one series, as not every job names its model: --by gpu_model separates them"
    return jobs.with_columns(series=pl.col("tenant")), (remark,) * (boards > 1)


def _sum_hierarchy(jobs: pl.DataFrame, series: str) -> tuple[pl.DataFrame, dict[str, tuple[str, ...]]]:
    """List the series that are sums, each with the series it sums, from names such as ``a/b/c``.

    A tenant that has jobs of its own and is a prefix of others gets a series for its own jobs. Where names end in a GPU
    model, there is a sum for each GPU model, and one over the GPU models of a tenant that has several.

    Returns
    -------
    jobs : polars.DataFrame
        The jobs, those of such a tenant's own with the name of their series.
    sums : dict of str to tuple of str
        Series that each sum consists of.
    """
    names = jobs[series].unique().cast(pl.String).sort().to_list()
    boards: set[str] = set()
    if series == "series":
        boards.update(jobs["gpu_model"].unique().cast(pl.String).fill_null(UNKNOWN_GPU_MODEL_LABEL))
    ends = {name.rpartition("/")[2] for name in names}
    with_board = bool(boards) and ends <= boards and all("/" in name for name in names)

    def ancestors(path: str) -> list[str]:
        steps = path.split("/")
        return ["/".join(steps[:depth]) for depth in range(1, len(steps))]

    models_below: dict[str, set[str]] = {}
    for name in names if with_board else ():
        path, _, gpu_model = name.rpartition("/")
        for level in (*ancestors(path), path):
            models_below.setdefault(level, set()).add(gpu_model)

    def above(name: str) -> list[str]:
        if not with_board:
            return [*ancestors(name), ALL_TENANTS_POOL_NAME]
        path, _, gpu_model = name.rpartition("/")
        ups = [f"{up}/{gpu_model}" for up in (*ancestors(path), ALL_TENANTS_POOL_NAME)]
        levels = (level for level in (*ancestors(path), path) if level not in names)
        return [*ups, *(level for level in levels if len(models_below[level]) > 1), ALL_TENANTS_POOL_NAME]

    every = {up for name in names for up in above(name)}
    own_leaf = {name: f"{name}/{OWN_JOBS_LABEL}" for name in names if name in every}
    parts: dict[str, list[str]] = {}
    for name in names:
        for up in above(name) + ([name] if name in own_leaf else []):
            parts.setdefault(up, []).append(own_leaf.get(name, name))
    renamed = jobs.with_columns(pl.col(series).cast(pl.String).replace(own_leaf)) if own_leaf else jobs
    last = parts.pop(ALL_TENANTS_POOL_NAME, [])  # the whole stands last
    return renamed, {name: tuple(members) for name, members in sorted(parts.items())} | {
        ALL_TENANTS_POOL_NAME: tuple(last)
    }


def _short_history_remark(history: timedelta) -> tuple[str, ...]:
    """Return a remark if the history is shorter than :data:`MIN_HISTORY_FOR_OWN_ERRORS`; else an empty tuple."""
    if history >= MIN_HISTORY_FOR_OWN_ERRORS:
        return ()
    days = count_text(round(history / timedelta(days=1)), "day")
    return (f"{days} of history: intervals rest on the errors of all series and days together, their ends drawn out",)


def _first_submission_after_silence(jobs: pl.DataFrame, end: datetime) -> tuple[datetime, int]:
    """Find the first submission after the last gap over :data:`MAX_GAP_BETWEEN_ARRIVALS`; count the jobs before."""
    times = jobs["submit_time"].sort()
    if times.is_empty():
        return end, 0
    silent = (times.diff() > MAX_GAP_BETWEEN_ARRIVALS).arg_true()
    before = int(silent[-1]) if len(silent) else 0
    return times[before], before


def lay_out_occupancy(table: pl.DataFrame, interval_hours: float, at: datetime | None) -> DemandHistory:
    """Build series of allocated GPUs by pool (virtual cluster): interval means of readings, limited by the quota."""
    slot = timedelta(hours=interval_hours)
    readings = table if at is None else table.filter(pl.col("time") < at)
    if readings.is_empty():
        raise _make_no_readings_error(at)
    times = readings["time"].unique().sort()
    start = _floor_to_interval(times[0], slot)
    # The last slot counts if it was read to its end.
    slots = (times[-1] + (times.diff().median() or slot) - start) // slot
    named = pl.format("{}/{}", "pool", pl.col("resource").cast(pl.String))
    rows = readings.with_columns(unique_id=named, y=pl.col("allocated"))
    remark = "readings of allocated GPUs: no jobs are known, and the quota is the upper limit"
    return _lay_out_readings(rows, start, slots, interval_hours, remark)


def lay_out_telemetry(samples: pl.LazyFrame, interval_hours: float, at: datetime | None) -> DemandHistory:
    """Build series of GPUs in use by profile from telemetry alone: those with a job, activity or a process."""
    before = samples if at is None else samples.filter(pl.col("time") < at)
    device_hours = aggregate_hourly(before).filter(pl.col("samples") > 0)
    if device_hours.is_empty():
        raise _make_no_readings_error(at)
    is_in_use = (
        pl.col("job_id").is_not_null()
        | (pl.col("sm_activity") >= MIN_USED_SM_ACTIVITY).fill_null(False)
        | (pl.col("memory_peak_gib") >= MIN_PROCESS_MEMORY_GIB).fill_null(False)
    )
    kinds = find_devices(samples).drop_nulls("kind")  # of a cut GPU its instances alone
    profile = pl.when(pl.col("kind") == "").then(pl.lit(FULL_GPU)).otherwise(pl.col("kind"))
    series = pl.format(ALL_TENANTS_POOL_NAME + "/{}", profile)
    rows = (
        device_hours.group_by("hour", *DEVICE_KEY, maintain_order=True)
        .agg(share=(pl.col("samples") * is_in_use).sum() / pl.col("samples").sum())
        .join(kinds.select(*DEVICE_KEY, unique_id=series), on=DEVICE_KEY, nulls_equal=True)
        .group_by("unique_id", time="hour", maintain_order=True)
        .agg(y=pl.col("share").sum(), total=pl.len())
    )
    first, last = (rows.select(bound).item() for bound in (pl.col("time").min(), pl.col("time").max()))
    slot = timedelta(hours=interval_hours)
    start = _floor_to_interval(first, slot)
    remark = (
        "telemetry alone: the forecast is of GPUs in use (with a job, busy, or with a process), without pending jobs, "
        "and at most the GPUs observed"
    )
    return _lay_out_readings(rows, start, (last + HOUR - start) // slot, interval_hours, remark)


def _lay_out_readings(
    rows: pl.DataFrame, start: datetime, slots: int, interval_hours: float, remark: str
) -> DemandHistory:
    """Build demand series from readings: interval means, with the largest total as upper limit.

    Parameters
    ----------
    rows : polars.DataFrame
        ``time, unique_id, y, total``: demand and upper limit of a series at the time of a reading. [GPUs]
    start : datetime
        Start of the first interval.
    slots : int
        Number of intervals.
    interval_hours : float
        Length of an interval. [h]
    remark : str
        Remark on the source, which the result carries.
    """
    if slots < 2:
        raise ScenarioError("forecast: readings", "two intervals", f"{max(slots, 0)}", "Read for longer.")
    slot_number = (pl.col("time") - start).dt.total_microseconds() // round(interval_hours * 3.6e9)
    placed = rows.with_columns(place=slot_number).filter(pl.col("place") < slots)
    by_slot = placed.group_by("unique_id", "place", maintain_order=True).agg(pl.col("y").mean(), pl.col("total").max())
    ids = tuple(by_slot["unique_id"].unique().sort())
    values = np.full((len(ids), slots), np.nan)
    at = by_slot["unique_id"].cast(pl.Enum(ids)).to_physical().to_numpy()
    values[at, by_slot["place"].to_numpy()] = by_slot["y"].to_numpy()
    caps = dict(by_slot.group_by("unique_id").agg(pl.col("total").max()).sort("unique_id").iter_rows())
    sums = {}
    kinds = {uid.rpartition("/")[2] for uid in ids}
    if len(ids) > 1 and len(kinds) == 1:
        whole = f"{ALL_TENANTS_POOL_NAME}/{kinds.pop()}"
        values = np.concatenate([values, values.sum(axis=0, keepdims=True)])
        caps[whole] = sum(caps.values())
        sums[whole] = ids
        ids = (*ids, whole)
    gaps = int(np.isnan(values).sum())
    gap_remarks = (f"{gaps:,} intervals without a reading repeat the last value",) if gaps else ()
    remarks = (remark, *gap_remarks, *_short_history_remark(timedelta(hours=slots * interval_hours)))
    return DemandHistory(start, slots, interval_hours, ids, None, values, caps, remarks, sums=sums)


def _make_no_readings_error(at: datetime | None) -> ScenarioError:
    """Make the error of a cutoff before which there are no readings."""
    return ScenarioError("forecast: readings", f"some before {at}", "none", "Choose a later cutoff (--at).")


def _floor_to_interval(instant: datetime, slot: timedelta) -> datetime:
    """Round a time down to the start of its interval; intervals count from midnight UTC."""
    day = instant.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return day + (instant - day) // slot * slot
