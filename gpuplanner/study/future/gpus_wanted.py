"""GPUs wanted, series by series and in all, up to an origin, with what is known of their jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

import numpy as np
import polars as pl

from gpuplanner.demand.series import POOL
from gpuplanner.demand.runoff import RunOff
from gpuplanner.demand.hazards import remaining_run_time
from gpuplanner.errors import ScenarioError, message
from gpuplanner.forecast.decide import cost_curve, representatives
from gpuplanner.study.future.announced import gpus_announced


@dataclass(frozen=True, eq=False)
class Wanted:
    """Series of GPUs, what is known of their jobs, and up to when.

    - ``start``: First slot.
    - ``slots``, ``slot_hours``: Number of slots up to the origin, and their length [h].
    - ``ids``: Series, the fleet as ``all/...``.
    - ``sums``: Series that are sums of others, with those.
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
    sums: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

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
        more = gpus_announced(self.announced, self.ids, self.whole, origin, self.slot_hours, slots)[:, gap:]
        for name, parts in self.sums.items():
            if name != self.whole:
                more[self.ids.index(name)] += more[[self.ids.index(part) for part in parts]].sum(axis=0)
        return more

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
        return cost_curve(self._paths_of_whole(horizon, gap, seed), price)

    def calendar(self, horizon: int, gap: int, price: float, *, seed: int = 1) -> pl.DataFrame:
        """GPUs to plan on each day ahead: ``day, planned, expected, low, high``, the busiest slot of the day each.

        What is planned is the quantile that costs least where a GPU-hour short costs `price` planned ones.
        """
        drawn = self._paths_of_whole(horizon, gap, seed)
        best = cost_curve(drawn, price).filter("best")["quantile"][0]
        low, planned, high = np.quantile(drawn, (0.05, best, 0.95), axis=0)
        slots = pl.DataFrame({
            "day": pl.Series(self._ahead(horizon, gap), dtype=pl.Datetime("us", "UTC")).dt.date(),
            "planned": np.ceil(planned), "expected": drawn.mean(axis=0), "low": low, "high": high,
        })  # fmt: skip
        return slots.group_by("day", maintain_order=True).max()

    def _paths_of_whole(self, horizon: int, gap: int, seed: int) -> np.ndarray:
        """Sample paths of the whole, shape (n_paths, horizon), with what is announced on top."""
        drawn = self._jobs().draws([self.whole], self.slots, gap + horizon, seed)[0, :, gap:]
        return np.asarray(drawn + self._of_whole(self.on_top(horizon, gap)))

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
            rows = [row for row, uid in enumerate(self.ids) if uid not in self.sums]
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
