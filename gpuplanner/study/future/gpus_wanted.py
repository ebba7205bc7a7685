"""GPUs wanted by tenant and in all up to an origin, with what is known of their jobs: no board is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property

import numpy as np
import polars as pl

from gpuplanner.demand import POOL, RunOff, complete_until, remaining_run_time, run_off
from gpuplanner.demand.growth import fit_growth
from gpuplanner.errors import ScenarioError, message
from gpuplanner.forecast import cost_curve, representatives
from gpuplanner.intervals import untimed
from gpuplanner.scenario import Scenario
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.study.future.announced import gpus_announced, hours_of
from gpuplanner.study.past.history import end_of, grouped, history, load_trace
from gpuplanner.units import HOURS_PER_WEEK

SILENCE = timedelta(days=56)
"""Nothing that came before so long a silence says what comes next."""


@dataclass(frozen=True, eq=False)
class Wanted:
    """Series of GPUs, what is known of their jobs, and up to when.

    - ``start``: First slot.
    - ``slots``, ``slot_hours``: Number of slots up to the origin, and their length [h].
    - ``ids``: Series, the fleet as ``all/...``.
    - ``known``: None where the source has no jobs.
    - ``values``, shape (n_series, slots): Demand as it was known at the origin; NaN where there is no reading.
    - ``caps``: What a series can at most be.
    - ``remarks``: What was done to the data.
    - ``announced``: Jobs that are known to come, see :func:`gpuplanner.study.future.announced.read_announced`; they
      come on top of every forecast and every path.
    """

    start: datetime
    slots: int
    slot_hours: float
    ids: tuple[str, ...]
    known: RunOff | None
    values: np.ndarray
    caps: Mapping[str, float]
    remarks: tuple[str, ...] = ()
    announced: pl.DataFrame | None = None

    @cached_property
    def demand(self) -> pl.DataFrame:
        """Table ``schemas.Demand``."""
        ds = [self.start + number * timedelta(hours=self.slot_hours) for number in range(self.slots)]
        return pl.concat(
            pl.DataFrame({"unique_id": uid, "ds": ds, "y": row}).with_columns(
                tenant=pl.lit(uid.rpartition("/")[0]), profile=pl.lit(uid.rpartition("/")[2])
            )
            for uid, row in zip(self.ids, self.values, strict=True)
        ).filter(pl.col("y").is_not_nan())

    @property
    def whole(self) -> str:
        """Name of the series that stands for all; of the largest where there is none."""
        mean = dict(zip(self.ids, np.nanmean(self.values, axis=1), strict=True))
        sums = [uid for uid in self.ids if uid.startswith(f"{POOL}/")]
        return max(sums or self.ids, key=lambda uid: (mean[uid], uid))

    def on_top(self, horizon: int, gap: int) -> np.ndarray:
        """GPUs of announced jobs, shape (n_series, horizon)."""
        if self.announced is None:
            return np.zeros((len(self.ids), horizon))
        origin = self._ahead(1, 0)[0]
        slots = gap + horizon
        return gpus_announced(self.announced, self.ids, self.whole, origin, self.slot_hours, slots)[:, gap:]

    def fan(self, horizon: int, *, seed: int = 1) -> pl.DataFrame:
        """What is expected of the whole in two parts, slot by slot, from the sample paths as they are."""
        running, coming = (part[0] for part in self._jobs().parts([self.whole], self.slots, horizon, seed))
        coming = coming + self._of_whole(self.on_top(horizon, 0))
        low, middle, high = np.quantile(running + coming, (0.05, 0.5, 0.95), axis=0)
        return pl.DataFrame(
            {
                "ds": pl.Series(self._ahead(horizon, 0), dtype=pl.Datetime("us", "UTC")),
                "still_running": running.mean(axis=0),
                "to_come": coming.mean(axis=0),
                "q05": low,
                "q50": middle,
                "q95": high,
            }
        )

    def cost_curve(self, horizon: int, gap: int, price: float, *, seed: int = 1) -> pl.DataFrame:
        """What planning the whole at each quantile costs, see :func:`gpuplanner.forecast.cost_curve`."""
        drawn = self._jobs().draws([self.whole], self.slots, gap + horizon, seed)[0, :, gap:]
        return cost_curve(drawn + self._of_whole(self.on_top(horizon, gap)), price)

    def weekly_peaks(self) -> np.ndarray:
        """The 95 % slot of the whole in each past week, counted back from the origin, the last one last."""
        values, week = self._of_whole(self.values), round(HOURS_PER_WEEK / self.slot_hours)
        whole_weeks = values[len(values) % week :].reshape(-1, week)
        return np.asarray(np.quantile(whole_weeks, 0.95, axis=1))

    def run_out(
        self, capacity: float, *, weeks: int = 52, growth: float | None = None, seed: int = 1
    ) -> pl.DataFrame:
        """Weekly peaks ahead, and how likely they are to pass a capacity: in a week, and by then.

        Trend, noise and walk are fitted to past peaks, see :mod:`gpuplanner.demand.growth`; `growth` [share a year]
        stands for the trend from now on.
        """
        law = fit_growth(self.weekly_peaks())
        law = law if growth is None else law.growing(growth)
        paths = law.paths(weeks, seed=seed)
        low, middle, high = np.quantile(paths, (0.05, 0.5, 0.95), axis=0)
        over = law.passed(paths, capacity)
        return pl.DataFrame(
            {
                "week": np.arange(1, weeks + 1),
                "q05": low,
                "q50": middle,
                "q95": high,
                "over": over.mean(axis=0),
                "run_out_by": np.maximum.accumulate(over, axis=1).mean(axis=0),
            }
        )

    def _of_whole(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(values[self.ids.index(self.whole)])

    def _jobs(self) -> RunOff:
        if self.known is None:
            text = message("forecast: paths", "data with jobs", "occupancy alone", "Ingest the jobs as well.")
            raise ScenarioError(text)
        return self.known

    def _ahead(self, horizon: int, gap: int) -> list[datetime]:
        slot = timedelta(hours=self.slot_hours)
        return [self.start + (self.slots + gap + number) * slot for number in range(horizon)]

    def running(self) -> pl.DataFrame:
        """What runs at the origin and how much of it is left, by series."""
        if self.known is None:
            return pl.DataFrame(schema={"unique_id": pl.String, "jobs": pl.UInt32})
        at = self.slots * self.slot_hours
        jobs = self.known.known(self.slots)
        begun = np.isfinite(jobs.begin)
        table = pl.DataFrame(
            {
                "unique_id": np.array(self.known.names, dtype=object)[jobs.series[begun]],
                "ran_h": np.minimum(jobs.end, at)[begun] - jobs.begin[begun],
                "ended": np.isfinite(jobs.end)[begun],
                "gpus": jobs.size[begun],
            },
            schema_overrides={"unique_id": pl.String},
        )
        left = remaining_run_time(table, levels=(0.5, 0.9), by=("unique_id",)).filter(~pl.col("ended"))
        quantiles = pl.col("remaining_q50_h", "remaining_q90_h").median()
        hours = (pl.col("gpus") * pl.col("remaining_h")).sum().alias("gpu_hours_left")
        return (
            left.group_by("unique_id")
            .agg(pl.len().alias("jobs"), pl.col("gpus").sum(), hours, quantiles)
            .sort("unique_id")
        )

    def paths(self, horizon: int, gap: int, seed: int, most: int | None = None) -> pl.DataFrame:
        """Sample paths of every series from the origin on: ``unique_id, path, ds, y``.

        With `most`, so many that stand for all, and ``weight``, the share of all that each stands for.
        """
        drawn = self._jobs().draws(self.ids, self.slots, gap + horizon, seed)[..., gap:]
        drawn = drawn + self.on_top(horizon, gap)[:, None]
        ds = pl.Series(self._ahead(horizon, gap), dtype=pl.Datetime("us", "UTC"))
        kept, weights = np.arange(drawn.shape[1]), np.ones(drawn.shape[1])
        if most is not None:
            rows = [row for row, uid in enumerate(self.ids) if uid not in self._jobs().totals]
            kept, weights = representatives(drawn[rows].swapaxes(0, 1), most)
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
        return table.drop("weight") if most is None else table


def wanted(
    scenario: Scenario,
    *,
    at: datetime | None = None,
    by: str = "tenant",
    calendar: pl.DataFrame | None = None,
) -> Wanted:
    """Lay out the demand of a scenario's data up to an origin."""
    span = scenario.month_span()
    at = at if at is not None or span is None else span[1]
    if by == "profile":
        past = history(scenario)
        jobs = past.views["rightsized"].with_columns(profile=pl.format(POOL + "/{}", "profile"))
        return laid_out(
            jobs, trace_end=past.plan_start, at=at or past.plan_start, slot_hours=scenario.slot_hours,
            series="profile", size="instances", suffix="", total=None, calendar=calendar,
        )  # fmt: skip
    trace = grouped(load_trace(scenario.data), scenario.smallest_group)
    if "jobs" not in trace.tables:
        return occupied(trace.tables["occupancy"], scenario.slot_hours, at)
    return laid_out(
        trace.jobs, trace_end=end_of(trace), at=at, slot_hours=scenario.slot_hours, calendar=calendar
    )


def laid_out(
    jobs: pl.DataFrame,
    *,
    trace_end: datetime,
    at: datetime | None = None,
    slot_hours: float = 1.0,
    series: str = "tenant",
    size: str = "gpus",
    suffix: str = f"/{WHOLE_GPU}",
    total: str | None = f"{POOL}/{WHOLE_GPU}",
    calendar: pl.DataFrame | None = None,
) -> Wanted:
    """Lay jobs out up to an origin, or as far as their record is complete; see :func:`wanted`."""
    end = at or trace_end
    remarks: tuple[str, ...] = ()
    if at is None:
        end = complete_until(jobs.filter(~untimed()), trace_end)
        if end < trace_end:
            remarks = (
                f"the record holds only jobs that ended: after {end:%Y-%m-%d %H:%M} more than a tenth of the "
                "demand is missing from it, and is cut off",
            )
    jobs = jobs.filter(pl.col("submit_time") < end, pl.col(size) > 0)
    slot = timedelta(hours=slot_hours)
    start, before = _begin(jobs, end)
    start = _floor(start, slot)
    if before:
        remarks += (
            f"{before:,} submission(s) lie more than {SILENCE.days} days before the next: series begin behind them, "
            f"at {start:%Y-%m-%d %H:%M}; what still runs of them counts",
        )
    slots = (end - start) // slot
    if slots < 2:
        text = message(
            "forecast",
            f"two slots with jobs before {end:%Y-%m-%d %H:%M}",
            f"{slots}",
            "Choose a later origin.",
        )
        raise ScenarioError(text)
    events = () if calendar is None else hours_of(calendar, start)
    known = run_off(
        jobs, start=start, slot_hours=slot_hours, series=series, size=size, suffix=suffix, total=total,
        events=events,
    )  # fmt: skip
    ids = (*known.names, *known.totals)
    return Wanted(start, slots, slot_hours, ids, known, known.seen(ids, slots), {}, remarks)


def _begin(jobs: pl.DataFrame, end: datetime) -> tuple[datetime, int]:
    """First submission behind the last long silence, and how many lie before it, by a wrong clock or in another age."""
    times = jobs["submit_time"].sort()
    if times.is_empty():
        return end, 0
    silent = (times.diff() > SILENCE).arg_true()
    before = int(silent[-1]) if len(silent) else 0
    return times[before], before


def occupied(table: pl.DataFrame, slot_hours: float, at: datetime | None) -> Wanted:
    """GPUs held by pool: the mean of the readings of each slot, and the quota as cap."""
    slot = timedelta(hours=slot_hours)
    readings = table if at is None else table.filter(pl.col("time") < at)
    if readings.is_empty():
        text = message("forecast: occupancy", f"readings before {at}", "none", "Choose a later origin.")
        raise ScenarioError(text)
    times = readings.select(
        first=pl.col("time").min(),
        last=pl.col("time").max(),
        every=pl.col("time").unique().sort().diff().median(),
    ).row(0, named=True)
    start = _floor(times["first"], slot)
    # The last slot counts if it was read to its end.
    slots = (times["last"] + (times["every"] or slot) - start) // slot
    place = (pl.col("time") - start).dt.total_microseconds() // (slot // timedelta(microseconds=1))
    named = pl.format("{}/{}", "pool", pl.col("resource").cast(pl.String))
    hours = (
        readings.with_columns(place=place, unique_id=named)
        .filter(pl.col("place") < slots)
        .group_by("unique_id", "place")
        .agg(y=pl.col("allocated").mean(), total=pl.col("total").max())
    )
    ids = tuple(hours["unique_id"].unique().sort())
    values = np.full((len(ids), slots), np.nan)
    rows = hours["unique_id"].cast(pl.Enum(ids)).to_physical().to_numpy()
    values[rows, hours["place"].to_numpy()] = hours["y"].to_numpy()
    caps = dict(hours.group_by("unique_id").agg(pl.col("total").max()).sort("unique_id").iter_rows())
    if len(ids) > 1 and readings["resource"].n_unique() == 1:
        whole = f"{POOL}/{readings['resource'].cast(pl.String)[0]}"
        values = np.concatenate([values, values.sum(axis=0, keepdims=True)])
        caps[whole] = sum(caps.values())
        ids = (*ids, whole)
    gaps = int(np.isnan(values).sum())
    gap_remarks = (f"{gaps:,} slots without a reading carry the last value on",) if gaps else ()
    remark = "readings of what was held: no jobs are known, and the quota is the most that can be held"
    return Wanted(start, slots, slot_hours, ids, None, values, caps, (remark, *gap_remarks))


def _floor(instant: datetime, slot: timedelta) -> datetime:
    day = instant.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return day + (instant - day) // slot * slot
