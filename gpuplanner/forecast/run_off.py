"""Sample paths of running, queued and arriving jobs.

Remaining run times of running and waiting jobs are drawn from hazard rates
(:mod:`gpuplanner.usage.run_time_hazards`). Arrivals are resampled from blocks of past submissions that begin at the
same
hour (block bootstrap), with a higher probability where weekday, load and recent arrivals are alike.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import polars as pl
from numpy.random import Generator

from gpuplanner.core.schema_checks import cast_columns
from gpuplanner.core.schemas import Jobs
from gpuplanner.core.step_functions import has_unknown_end, require_time_zone
from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR
from gpuplanner.usage.requested_demand import DAY_H, covered_day_shares, mean_occupancy
from gpuplanner.usage.run_time_hazards import Hazards, decay_weight, fit_hazards, group_numbers, job_size_class

RUN_OFF_COLUMNS = (
    "job_id", "attempt", "tenant", "submit_time", "start_time", "end_time", "state", "gpus", "time_limit_s",
    "job_class",
)  # fmt: skip
"""Columns of table ``schemas.Jobs`` that :func:`lay_out_run_off` reads, besides those of series and size."""
RUN_OFF_SAMPLE_PATHS = 200
"""Number of sample paths that are drawn from the jobs of a series."""
MAX_BLOCK_AGE_H = 8 * 7 * DAY_H
"""Largest age of the begin of a block of past submissions that is resampled. [h]"""
BLOCK_SHIFTS_H = np.arange(-3.0, 4.0)
"""Shifts of the begin of a block from the hour of the cutoff: more blocks, at almost the same time of day. [h]"""
MIN_BLOCK_DAYS = 3
"""Number of days with blocks as long as the horizon below which single days are resampled instead."""
BLOCK_HALF_LIFE_H = 28 * DAY_H
"""Age after which the sampling weight of a block is halved. [h]"""
WEEKEND_MATCH_ODDS = 12.0
"""Factor of the sampling weight of a block whose weekends fall on the same days as those of the horizon."""
EVENT_MISMATCH_ODDS = 10.0
"""Divisor of the sampling weight of a block for each day on which only the block, or only the horizon, has an event of
the calendar."""
BLOCK_DIFFERENCE_SCALE = 2.0
"""Sum of the differences of load and recent arrivals, in natural logarithms, at which the sampling weight of a block is
divided by e."""
RECENT_ARRIVAL_WINDOWS_H = (6.0, 24.0)
"""Lengths of the windows before a block whose arrivals are compared with those before the cutoff. [h]"""
SEED_STEP_PER_CUTOFF = 7_368_787
"""Constant in the seed of the block draws, which separates them from other draws at the same cutoff."""
MAX_BLOCK_JOBS = 1 << 19
"""Approximate number of jobs of past blocks that are processed at a time, to limit memory."""


@dataclass(frozen=True, eq=False)
class RunOff:
    """Jobs as arrays, in hours since the start of the grid, from which demand paths are drawn.

    Parameters
    ----------
    names : tuple of str
        Names of the series that jobs belong to.
    totals : dict of str to tuple of int
        Names of the series that are sums, each with the indices in `names` of the series that it sums.
    start : datetime
        Start of the first interval of the grid.
    slot_h : float
        Length of an interval [h].
    submit, begin, end : numpy.ndarray, shape (n_jobs,)
        Times of submission, start and end [h], sorted by submission; ``begin`` and ``end`` are infinite for jobs that
        have not started or ended.
    size, limit : numpy.ndarray, shape (n_jobs,)
        GPUs or MIG instances of a job; its time limit [h], infinite without one.
    series : numpy.ndarray of int, shape (n_jobs,)
        Index in `names` of each job's series.
    groups : tuple of numpy.ndarray of int
        Group of each job whose run times are pooled, one array for each grouping from coarse to fine (see
        :func:`gpuplanner.usage.run_time_hazards.fit_hazards`).
    events : tuple of numpy.ndarray, each of shape (n, 2)
        Time spans [h] of each kind of calendar event: releases, holidays, maintenance.
    """

    names: tuple[str, ...]
    totals: dict[str, tuple[int, ...]]
    start: datetime
    slot_h: float
    submit: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    size: np.ndarray
    limit: np.ndarray
    series: np.ndarray
    groups: tuple[np.ndarray, ...]
    events: tuple[np.ndarray, ...] = ()

    def as_of(self, origin: int) -> RunOff:
        """Select the jobs as they were known at a cutoff: those submitted before it, without later starts and ends."""
        now = origin * self.slot_h
        jobs = self._select_jobs(slice(0, int(np.searchsorted(self.submit, now))))
        begin = np.where(jobs.begin < now, jobs.begin, np.inf)
        return replace(jobs, begin=begin, end=np.where(jobs.end <= now, jobs.end, np.inf))

    def demand_before(self, series: Sequence[str], origin: int) -> np.ndarray:
        """Compute the demand in each interval before a cutoff as it was known then, counted from submission.

        A job that is running at the cutoff counts from its submission to the cutoff. Counting it for its run time only
        would let every series end with a decline.

        Returns
        -------
        numpy.ndarray, shape (n_series, cutoff)
        """
        jobs, now = self.as_of(origin), origin * self.slot_h
        begin, end = jobs.submit / self.slot_h, (jobs.submit + jobs._requested_time(now)) / self.slot_h
        past = mean_occupancy(begin, end, jobs.size, jobs.series, len(self.names), origin)
        return np.stack([past[list(self._series_indices(name))].sum(axis=0) for name in series])

    def draws(self, series: Sequence[str], origin: int, steps: int, seed: int) -> np.ndarray:
        """Draw sample paths of the demand from a cutoff on.

        Path i uses the same block of past submissions in all series where possible, so that sums and joint peaks are
        realistic.

        Parameters
        ----------
        series : sequence of str
            Names of the series.
        origin : int
            Cutoff: number of the first interval after the known history.
        steps : int
            Number of intervals from the cutoff on.
        seed : int
            Seed of the sample paths.

        Returns
        -------
        numpy.ndarray, shape (n_series, n_paths, steps)
        """
        running, coming = self.split_paths(series, origin, steps, seed)
        return np.asarray(running + coming)

    def split_paths(self, series: Sequence[str], origin: int, steps: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw the sample paths in two parts: jobs in the system at the cutoff, and arrivals after it.

        Each part has the shape (n_series, n_paths, steps).

        Parameters
        ----------
        series : sequence of str
            Names of the series.
        origin : int
            Cutoff: number of the first interval after the known history.
        steps : int
            Number of intervals from the cutoff on.
        seed : int
            Seed of the sample paths.
        """
        jobs, now = self.as_of(origin), origin * self.slot_h
        weight = decay_weight(now - np.minimum(jobs.end, now))
        hazards = fit_hazards(jobs._hours_run(now), np.isfinite(jobs.end), jobs.groups, weight=weight)
        blocks = _block_starts(origin, steps, self.slot_h)
        noise_rng = np.random.default_rng((seed, origin, SEED_STEP_PER_CUTOFF))
        noise = noise_rng.gumbel(size=(RUN_OFF_SAMPLE_PATHS, *blocks.shape))
        order = np.argsort(jobs.series, kind="stable")
        edges = np.searchsorted(jobs.series[order], np.arange(len(self.names) + 1))

        def draw_series(number: int) -> tuple[np.ndarray, np.ndarray]:
            series_jobs = jobs._select_jobs(order[edges[number] : edges[number + 1]])
            rng = np.random.default_rng((seed, origin, zlib.crc32(self.names[number].encode())))
            running = series_jobs._open_job_demand(hazards, now, steps, rng)
            return running, series_jobs._future_job_demand(hazards, now, steps, blocks, noise, rng)

        shape = (len(series), RUN_OFF_SAMPLE_PATHS, steps)
        running, coming = np.zeros(shape), np.zeros(shape)
        for row, name in enumerate(series):
            for number in self._series_indices(name):
                for total, part in zip((running, coming), draw_series(number), strict=True):
                    total[row] += part
        return running, coming

    def _select_jobs(self, chosen: np.ndarray | slice) -> RunOff:
        """Return a copy with only the chosen jobs."""
        names = ("submit", "begin", "end", "size", "limit", "series")
        columns = {name: getattr(self, name)[chosen] for name in names}
        return replace(self, groups=tuple(group[chosen] for group in self.groups), **columns)

    def _series_indices(self, name: str) -> tuple[int, ...]:
        """Return the indices in `names` of the series that a name stands for: several for a sum, else one."""
        return self.totals[name] if name in self.totals else (self.names.index(name),)

    def _hours_run(self, now: float) -> np.ndarray:
        """Compute the time for which each job has run at time `now` [h]; 0 for jobs that have not started."""
        return np.asarray(np.maximum(np.minimum(self.end, now) - np.minimum(self.begin, now), 0.0))

    def _requested_time(self, now: float) -> np.ndarray:
        """Compute for how long each job has requested GPUs [h]: its run time if it has ended, else since submission."""
        over = np.isfinite(self.begin) & np.isfinite(self.end)
        return np.where(over, self._hours_run(now), np.minimum(self.end, now) - self.submit)

    def _draw_run_times(self, hazards: Hazards, now: float, rng: Generator) -> np.ndarray:
        """Draw total run times of jobs that have not ended [h], (n_paths, n_jobs): at least the time run so far."""
        ran = self._hours_run(now)
        runs = ran + hazards.remaining(self.groups[-1], ran, rng.exponential(size=(RUN_OFF_SAMPLE_PATHS, len(ran))))
        return np.asarray(np.where(self.limit > ran, np.minimum(runs, self.limit), runs))

    def _open_job_demand(self, hazards: Hazards, now: float, steps: int, rng: Generator) -> np.ndarray:
        """Draw the demand from the cutoff on of jobs that have not ended by then, shape (n_paths, steps).

        Parameters
        ----------
        hazards : Hazards
            Hazard rates of the run times.
        now : float
            Cutoff, from the start of the grid. [h]
        steps : int
            Number of intervals from the cutoff on.
        rng : numpy.random.Generator
            Random number generator.
        """
        jobs = self._select_jobs(np.isinf(self.end))
        until = (jobs.submit + jobs._draw_run_times(hazards, now, rng) - now) / self.slot_h
        path = np.broadcast_to(np.arange(RUN_OFF_SAMPLE_PATHS)[:, None], until.shape)
        size = np.broadcast_to(jobs.size, until.shape)
        return mean_occupancy(
            np.zeros(until.size), until.ravel(), size.ravel(), path.ravel(), RUN_OFF_SAMPLE_PATHS, steps
        )

    def _future_job_demand(
        self, hazards: Hazards, now: float, steps: int, blocks: np.ndarray, noise: np.ndarray, rng: Generator
    ) -> np.ndarray:
        """Draw the demand of jobs submitted after the cutoff, by resampling blocks of past submissions.

        The result has the shape (n_paths, steps). Resampled jobs keep their run times; those of jobs that have not
        ended are drawn.

        Parameters
        ----------
        hazards : Hazards
            Hazard rates of the run times.
        now : float
            Cutoff, from the start of the grid. [h]
        steps : int
            Number of intervals from the cutoff on.
        blocks : numpy.ndarray, shape (n_pieces, n_blocks)
            Start times of past blocks. [h]
        noise : numpy.ndarray, shape (n_paths, n_pieces, n_blocks)
            Gumbel noise, which is added to log weights to draw blocks (Gumbel-max trick).
        rng : numpy.random.Generator
            Random number generator.
        """
        demand = np.zeros((RUN_OFF_SAMPLE_PATHS, steps))
        if not blocks.size or not len(self.submit):
            return demand
        picks = (np.log(self._block_weights(now, steps, blocks))[None] + noise).argmax(axis=2)
        length = -(-steps // len(blocks))
        over = np.isfinite(self.end)
        wanted = self._requested_time(now)
        for piece, every in enumerate(blocks):
            left, span = steps - piece * length, length * self.slot_h
            drawn, pick = np.unique(picks[:, piece], return_inverse=True)
            starts = every[drawn]
            first = np.searchsorted(self.submit, starts)
            counts = np.searchsorted(self.submit, starts + span) - first
            sums, running = np.empty((len(starts), left)), []
            cuts = np.flatnonzero(np.diff(np.cumsum(counts) // MAX_BLOCK_JOBS)) + 1
            for chunk in np.split(np.arange(len(starts)), cuts):
                some = counts[chunk]
                block = np.repeat(chunk, some)
                job = np.arange(len(block)) + np.repeat(first[chunk] - np.cumsum(some) + some, some)
                has_ended = over[job]
                running.append((block[~has_ended], job[~has_ended]))
                block, job = block[has_ended], job[has_ended]
                came = self.submit[job] - starts[block]
                begin, end = came / self.slot_h, (came + wanted[job]) / self.slot_h
                sums[chunk] = mean_occupancy(begin, end, self.size[job], block - chunk[0], len(chunk), left)
            block, job = map(np.concatenate, zip(*running, strict=True))
            demand[:, piece * length :] += sums[pick]
            # Of all blocks, drawn or not: what is drawn for a job is to depend on the job and not on the blocks.
            open_jobs = np.flatnonzero(~over & self._submitted_in_blocks(every, span))
            if len(open_jobs):
                runs = self._select_jobs(open_jobs)._draw_run_times(hazards, now, rng)
                path, pair = np.nonzero(pick[:, None] == block[None])
                came = (self.submit[job] - starts[block])[pair]
                end = (came + runs[path, np.searchsorted(open_jobs, job[pair])]) / self.slot_h
                begin, size = came / self.slot_h, self.size[job[pair]]
                open_demand = mean_occupancy(begin, end, size, path, RUN_OFF_SAMPLE_PATHS, left)
                demand[:, piece * length :] += open_demand
        return demand

    def _submitted_in_blocks(self, starts: np.ndarray, span: float) -> np.ndarray:
        """Whether each job was submitted within `span` hours after one of the times `starts` [h]."""
        edges = [np.searchsorted(self.submit, instants) for instants in (starts, starts + span)]
        begun, over = (np.bincount(instants, minlength=len(self.submit) + 1).cumsum() for instants in edges)
        return np.asarray((begun > over)[:-1])

    def _block_weights(self, now: float, steps: int, blocks: np.ndarray) -> np.ndarray:
        """Compute the sampling weight of each past block of submissions, not normalized, in the shape of `blocks`."""
        ages = now - blocks
        like = np.concatenate([blocks.ravel(), [now]])
        until = self.submit + self._requested_time(now)
        summed = np.concatenate([[0.0], np.cumsum(self.size)])
        at = np.searchsorted(self.submit, like)
        features = [
            (summed[at] - summed[np.searchsorted(self.submit, like - hours)]) / hours
            for hours in RECENT_ARRIVAL_WINDOWS_H
        ]
        ended = np.argsort(until)
        ended_sizes = np.concatenate([[0.0], np.cumsum(self.size[ended])])
        load = summed[at] - ended_sizes[np.searchsorted(until[ended], like, side="left")]
        features.append(np.maximum(load, 0.0) / DAY_H)
        logs = np.log1p(np.maximum(np.array(features), 0.0))
        feature_distance = np.abs(logs[:, :-1] - logs[:, -1:]).sum(axis=0).reshape(blocks.shape)
        length_h = -(-steps // len(blocks)) * self.slot_h
        days = np.arange(max(int(-(-length_h // DAY_H)), 1)) * DAY_H
        piece = (now + np.arange(len(blocks)) * length_h)[:, None, None] + days
        block_days = blocks[..., None] + days
        weekend_match = (self._is_weekend(block_days) == self._is_weekend(piece)).mean(axis=-1)
        unlike = (covered_day_shares(spans, block_days) - covered_day_shares(spans, piece) for spans in self.events)
        event_mismatch = sum(np.abs(shares).sum(axis=-1) for shares in unlike)
        likely = (
            0.5 ** (ages / BLOCK_HALF_LIFE_H)
            * WEEKEND_MATCH_ODDS**weekend_match
            * np.exp(-feature_distance / BLOCK_DIFFERENCE_SCALE)
        )
        return np.asarray(likely * EVENT_MISMATCH_ODDS ** -np.asarray(event_mismatch, dtype=np.float64))

    def _is_weekend(self, hours: np.ndarray) -> np.ndarray:
        """Whether times [h since the start of the grid] fall on a weekend."""
        day = (self.start.weekday() * DAY_H + self.start.hour + hours) // DAY_H % 7
        return np.asarray(day >= 5)


def _block_starts(origin: int, steps: int, slot_h: float) -> np.ndarray:
    """List the start times of past blocks [h], at about the hour of the cutoff, shape (n_pieces, n_blocks).

    The horizon is one piece, or pieces of a day if the history is too short for blocks as long as the horizon.
    """
    now, stride = origin * slot_h, max(DAY_H, slot_h)
    days = now - stride * np.arange(1, int(MAX_BLOCK_AGE_H / stride) + 1)
    starts = (days[:, None] + (BLOCK_SHIFTS_H if slot_h <= 1 else np.zeros(1))).ravel()
    starts = starts[starts >= 0]
    whole = starts[starts <= now - steps * slot_h]
    if len(whole) >= MIN_BLOCK_DAYS * len(BLOCK_SHIFTS_H) or not len(starts):
        return whole[None]
    single = starts[starts <= now - stride]
    return np.tile(single, (int(-(-steps * slot_h // stride)), 1))


def lay_out_run_off(
    jobs: pl.DataFrame,
    *,
    start: datetime,
    interval_hours: float = 1.0,
    series: str = "tenant",
    size: str = "gpus",
    suffix: str = "",
    events: tuple[np.ndarray, ...] = (),
) -> RunOff:
    """Convert a table of jobs to the arrays from which sample paths are drawn.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    start : datetime
        Start of the grid, with a time zone.
    interval_hours : float
        Length of an interval [h].
    series, size : str
        Columns with the series of a job, and with its number of GPUs or MIG instances.
    suffix : str
        Text added to the names of the series.
    events : tuple of numpy.ndarray, each of shape (n, 2)
        Time spans of each kind of calendar event. [h since `start`]

    Returns
    -------
    RunOff

    Examples
    --------
    >>> from datetime import UTC, timedelta
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"job_id": ["1"], "attempt": [1], "tenant": ["a"], "state": ["RUNNING"], "gpus": [2.0],
    ...     "submit_time": [nine], "start_time": [nine], "end_time": [None]})
    >>> known = lay_out_run_off(jobs, start=nine)
    >>> known.demand_before(["a"], 2).tolist(), known.draws(["a"], 2, 3, seed=1).shape
    ([[2.0, 2.0]], (1, 200, 3))
    """
    require_time_zone(start, source="run-off")
    extra = [name for name in (series, size) if name not in Jobs.column_names()]
    columns = dict.fromkeys([*RUN_OFF_COLUMNS, *(name for name in (series, size) if name not in extra)])
    rows = cast_columns(jobs, Jobs, list(columns), source="run-off: jobs").with_columns(jobs[name] for name in extra)
    is_counted = rows.select((pl.col(size) > 0) & pl.col(series).is_not_null() & ~has_unknown_end()).to_series()
    order = rows.select(pl.arg_sort_by("submit_time", "job_id", "attempt", maintain_order=True)).to_series()
    order = order.filter(is_counted[order])
    texts = [name for name in ("tenant", "job_class", series) if rows[name].dtype != pl.Categorical]
    rows = rows.with_columns(pl.col(texts).cast(pl.String).cast(pl.Categorical))
    # Columns are put in order one by one: a filtered and sorted copy of the table would take the memory of the recent
    # past once more.
    classes = pl.DataFrame([
        rows["job_class"][order],
        rows["tenant"][order],  # one of whom little is known runs like jobs of the same class
        pl.Series("wide", job_size_class(rows["gpus"][order].fill_null(1.0).to_numpy()), pl.Int8),
    ])  # fmt: skip
    groups = tuple(group_numbers(classes))
    del classes
    submit, begin, end = (
        ((rows[name][order] - start).dt.total_microseconds() / (1e6 * SECONDS_PER_HOUR)).fill_null(np.inf).to_numpy()
        for name in ("submit_time", "start_time", "end_time")
    )
    kinds = rows[series][order].unique().cast(pl.String).sort()
    names = [kind + suffix for kind in kinds]
    return RunOff(
        names=tuple(names),
        totals={},
        start=start,
        slot_h=interval_hours,
        submit=submit,
        begin=begin,
        end=end,
        size=rows[size][order].cast(pl.Float64).to_numpy(),
        limit=(rows["time_limit_s"][order] / SECONDS_PER_HOUR).fill_null(np.inf).to_numpy(),
        series=rows[series][order].cast(pl.Enum(kinds)).to_physical().cast(pl.Int32).to_numpy(),
        groups=groups,
        events=events,
    )
