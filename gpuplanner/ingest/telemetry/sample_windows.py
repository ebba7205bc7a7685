"""Samples of telemetry from buffered rows, sorted window by window.

Sorting all rows would need them all in memory: the sort of polars' streaming engine takes about 100 bytes a row
(839 MiB for eight million rows of seven columns), its ``unique`` half of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import polars as pl

from gpuplanner.ingest.telemetry.metric_definitions import DIMENSION_BY_QUANTITY, TELEMETRY_DEVICE_SCHEMA
from gpuplanner.ingest.telemetry.sample_buffer_and_reading_spans import (
    DEVICE_JOB_COLUMNS,
    MINUTE_US,
    ColumnArrays,
    SampleBuffer,
    TupleNumbering,
    mark_run_starts,
    rank_devices,
)
from gpuplanner.ingest.telemetry.telemetry_join import JOB_SEPARATOR

MAX_SORTED_WINDOW_ROWS = 1 << 18
"""Rows that are sorted at a time, unless one minute has more. Larger columns cost more memory because their pages are
allocated again.
"""

REPEATED_READING_REASON = "the same reading again"
"""Reject reason of a reading that repeats an earlier one with the same value."""
CONTRADICTING_READING_REASON = "another value for the same device and time as an earlier row"
"""Reject reason of a reading that contradicts an earlier one of the same device and time."""


@dataclass
class SampleJoiner:
    """Joiner of buffered rows to samples, window by window in the order of time.

    - ``sample_buffer``: All rows.
    - ``within_s``: Longest time between readings of one sample [s]. A collector may read the metrics of a round one
      after the other. Successive readings of a device form one sample while no metric repeats; where one does, the
      source samples faster than that, and only readings of one instant belong together.
    - ``allow_several``: A device and time may have several rows, of which the first counts, without being
      repetitions.
    - ``window_rows``: Rows to sort at a time.
    - ``repeated``, ``contradicting``: Row and line numbers of rows that repeat an earlier one with an equal, with
      another value.
    """

    sample_buffer: SampleBuffer
    within_s: float = 0.0
    allow_several: bool = False
    window_rows: int = MAX_SORTED_WINDOW_ROWS
    repeated: list[np.ndarray] = field(default_factory=list)
    contradicting: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.devices, self.rank_of_device = rank_devices(self.sample_buffer.devices.rows)
        self._ranks = np.empty(0, np.int64)
        self._open_round: ColumnArrays | None = None
        self._split_rounds: dict[int, int] = {}

    def device_ranks(self, numbers: np.ndarray) -> np.ndarray:
        """Return the rank of the device of each row, in the order of node, GPU and instance.

        `numbers` are those of the device and job of each row in ``sample_buffer.device_jobs``.
        """
        device_jobs = self.sample_buffer.device_jobs.rows
        codes = [
            self.sample_buffer.devices.number_tuple(device_job[:3]) for device_job in device_jobs[len(self._ranks) :]
        ]
        if codes:
            self._ranks = np.concatenate((self._ranks, self.rank_of_device[codes]))
        ranks: np.ndarray = self._ranks[numbers]
        return ranks

    def samples(self) -> Iterator[tuple[int, ColumnArrays]]:
        """Yield the month, counted from year 0, and the samples of successive time windows, sorted by time and device.

        Columns ``time``, ``who`` (number of device and job), ``rank``, ``id``, ``line`` and the measured quantities.
        """
        waiting: list[tuple[int, int, int, ColumnArrays]] = []
        for month, low, high in self._plan_windows():
            merge_rows = self._merge_metric_rows if self.sample_buffer.metrics is not None else self._merge_sample_rows
            rows = merge_rows(list(self.sample_buffer.spill.iterate_between(low, high)), high)
            is_early = rows["time"] < low
            if is_early.any():  # rounds that had begun before this span
                for position, (earlier_month, begin, end, window_rows) in enumerate(waiting):
                    is_in_window = is_early & (rows["time"] >= begin) & (rows["time"] < end)
                    if is_in_window.any():
                        late_rows = {name: values[is_in_window] for name, values in rows.items()}
                        merged_rows = _sort_columns(_stack_columns([window_rows, late_rows]))
                        waiting[position] = (earlier_month, begin, end, merged_rows)
                rows = {name: values[~is_early] for name, values in rows.items()}
            waiting.append((month, low, high, rows))
            open_from = high if self._open_round is None else int(self._open_round["time"].min())
            while waiting and waiting[0][2] <= open_from:
                earlier_month, _, _, window_rows = waiting.pop(0)
                yield earlier_month, window_rows
        for month, _, _, rows in waiting:
            yield month, rows

    def _plan_windows(self) -> Iterator[tuple[int, int, int]]:
        """Yield month, begin and end [us] of windows of whole minutes with at most `window_rows` rows, if possible."""
        minutes = sorted(self.sample_buffer.minutes)
        rows = 0
        begin: int | None = None
        month: int | None = None
        for minute in minutes:
            minute_month = _month_number(minute)
            is_full = rows + self.sample_buffer.minutes[minute] > self.window_rows
            if begin is not None and (minute_month != month or is_full):
                yield month or 0, begin * MINUTE_US, minute * MINUTE_US
                begin, rows = None, 0
            if begin is None:
                begin, month = minute, minute_month
            rows += self.sample_buffer.minutes[minute]
        if begin is not None:
            yield month or 0, begin * MINUTE_US, (minutes[-1] + 1) * MINUTE_US

    def _merge_sample_rows(self, batches: Sequence[ColumnArrays], window_end_us: int) -> ColumnArrays:
        """Merge batches of rows of a time window to samples, for a source with one row per sample.

        The first row of a device and time counts. `window_end_us` is not needed here.
        """
        rows = _stack_columns(batches)
        rows["rank"] = self.device_ranks(rows["who"])
        rows = _sort_columns(rows)
        is_repeat = ~mark_run_starts(rows["time"], rows["rank"])
        if is_repeat.any():
            first_row = np.maximum.accumulate(np.where(is_repeat, 0, np.arange(len(is_repeat))))
            value_names = [name for name in DIMENSION_BY_QUANTITY if name in rows]
            rows = self._drop_repeats(rows, is_repeat, first_row, value_names)
        return rows

    def _drop_repeats(
        self, rows: ColumnArrays, is_repeat: np.ndarray, first_row: np.ndarray, value_names: Sequence[str]
    ) -> ColumnArrays:
        """Drop repeated rows, and record whether their values equal those of the first row.

        Parameters
        ----------
        rows : dict of str to numpy.ndarray
            Sorted rows.
        is_repeat : numpy.ndarray of bool
            Rows to drop.
        first_row : numpy.ndarray of int
            For each row the first row that it repeats.
        value_names : sequence of str
            Columns to compare.
        """
        if not self.allow_several:
            repeats = np.flatnonzero(is_repeat)
            is_equal = np.ones(len(repeats), bool)
            for name in value_names:
                repeat_value, first_value = rows[name][repeats], rows[name][first_row[repeats]]
                is_equal &= (repeat_value == first_value) | (np.isnan(repeat_value) & np.isnan(first_value))
            ids_and_lines = np.stack((rows["id"], rows["line"].astype(np.int64)))[:, repeats]
            self.repeated.append(ids_and_lines[:, is_equal])
            self.contradicting.append(ids_and_lines[:, ~is_equal])
        return {name: column[~is_repeat] for name, column in rows.items()}

    def _merge_metric_rows(self, batches: Sequence[ColumnArrays], window_end_us: int) -> ColumnArrays:
        """Merge batches of rows of a time window to samples, for a source with one row per device, time and metric.

        Scrape rounds that may go on after `window_end_us`, the end of the window, wait for the next window.
        """
        rows = _stack_columns(batches)
        rows["rank"] = self.device_ranks(rows["who"])
        rows = _sort_columns(rows, "rank", "time")
        is_repeat, first_row = _find_repeats(rows)
        if is_repeat.any():
            jobs = self._job_numbers(rows["who"])
            is_shared = (jobs != jobs[first_row]) & (jobs > 0) & (jobs[first_row] > 0)
            rows = self._drop_repeats(rows, is_repeat & ~is_shared, first_row, ["value"])
        if self._open_round is not None:
            rows = _sort_columns(_stack_columns([self._open_round, rows]), "rank", "time")
            self._open_round = None
        sample_time = rows["time"]
        if self.within_s:
            rows, sample_time = self._assign_sample_times(rows, window_end_us)
        return self._pivot_metrics(rows, sample_time)

    def _job_numbers(self, numbers: np.ndarray) -> np.ndarray:
        """Return the number of the job of each row, from the number of its device and job; 0 for no job."""
        job_numbers: dict[object, int] = {None: 0}
        job_column = DEVICE_JOB_COLUMNS.index("job_id")
        by_device_job = [
            job_numbers.setdefault(device_job[job_column], len(job_numbers))
            for device_job in self.sample_buffer.device_jobs.rows
        ]
        jobs: np.ndarray = np.array(by_device_job, np.int64)[numbers]
        return jobs

    def _assign_sample_times(self, rows: ColumnArrays, window_end_us: int) -> tuple[ColumnArrays, np.ndarray]:
        """Return readings, and for each the time of its sample: the first reading of its scrape round [us].

        Rounds that may go on after `window_end_us`, the end of the window, are left out.
        """
        time, rank, count = rows["time"], rows["rank"], len(rows["time"])
        if not count:
            return rows, time
        within_us = round(self.within_s * 1e6)
        is_begin = np.ones(count, bool)
        is_begin[1:] = (rank[1:] != rank[:-1]) | (time[1:] - time[:-1] > within_us)
        begins = np.flatnonzero(is_begin)
        run = np.cumsum(is_begin) - 1
        is_one_sample = _are_metrics_unique(run, rows["metric"], len(begins))
        first_rank = rank[begins]
        for run_number in np.flatnonzero(np.isin(first_rank, list(self._split_rounds))).tolist():
            first_row = int(begins[run_number])
            last_time = self._split_rounds[int(rank[first_row])]
            is_first_run = run_number == 0 or first_rank[run_number - 1] != first_rank[run_number]
            if is_first_run and time[first_row] - last_time <= within_us:
                is_one_sample[run_number] = False
        ends = np.append(begins[1:], count) - 1
        may_continue = time[ends] >= window_end_us - within_us
        self._split_rounds = {int(rank[end]): int(time[end]) for end in ends[may_continue & ~is_one_sample].tolist()}
        sample_time = np.where(is_one_sample[run], time[begins][run], time)
        is_open = (may_continue & is_one_sample)[run]
        if is_open.any() and window_end_us <= max(self.sample_buffer.minutes) * MINUTE_US:
            self._open_round = {name: values[is_open] for name, values in rows.items()}
            return {name: values[~is_open] for name, values in rows.items()}, sample_time[~is_open]
        return rows, sample_time

    def _pivot_metrics(self, rows: ColumnArrays, sample_time: np.ndarray) -> ColumnArrays:
        """Pivot readings to one row per device and sample time, with the first value of each quantity."""
        rank = rows["rank"]
        is_begin = mark_run_starts(rank, sample_time)
        group = np.cumsum(is_begin) - 1
        n_groups = int(is_begin.sum())
        wide = {name: rows[name][is_begin] for name in ("id", "line", "rank")} | {"time": sample_time[is_begin]}
        wide["who"] = self._merge_device_jobs(rows["who"], is_begin, group)
        metrics = self.sample_buffer.metrics or {}
        names = [str(name) for (name,) in self.sample_buffer.names.rows]
        by_quantity: dict[str, list[int]] = {}
        for code, name in enumerate(names):
            if name in metrics:
                by_quantity.setdefault(metrics[name].quantity, []).append(code)
        has_value = ~np.isnan(rows["value"])
        for quantity in DIMENSION_BY_QUANTITY:
            codes = by_quantity.get(quantity)
            if not codes:
                continue
            has_quantity = has_value & (
                rows["metric"] == codes[0] if len(codes) == 1 else np.isin(rows["metric"], codes)
            )
            positions = np.flatnonzero(has_quantity)[::-1]  # so that the first is written last
            values = np.full(n_groups, np.nan)
            values[group[positions]] = rows["value"][positions]
            if len(positions):
                wide[quantity] = values
        return _sort_columns(wide)

    def _merge_device_jobs(self, numbers: np.ndarray, is_begin: np.ndarray, group: np.ndarray) -> np.ndarray:
        """Merge the devices and jobs of the rows of each sample: the first stated profile and model, and all jobs.

        Parameters
        ----------
        numbers : numpy.ndarray, shape (n,)
            Number of the device and job of each row.
        is_begin : numpy.ndarray of bool, shape (n,)
            First row of each sample.
        group : numpy.ndarray, shape (n,)
            Number of the sample of each row, from 0.

        Returns
        -------
        numpy.ndarray, shape (n_samples,)
            Number of the device and jobs of each sample.
        """
        first: np.ndarray = numbers[is_begin]
        mixed_groups = np.unique(group[numbers != first[group]])
        if not len(mixed_groups):
            return first
        numbering = self.sample_buffer.device_jobs
        rows = np.flatnonzero(np.isin(group, mixed_groups))
        device_jobs = device_jobs_table(numbering)[numbers[rows]]
        table = (
            device_jobs.with_columns(group=group[rows])
            .group_by("group", maintain_order=True)
            .agg(
                pl.col(*DEVICE_JOB_COLUMNS[:3]).first(),
                pl.col("profile", "board", "mig_enabled").drop_nulls().first(),
                pl.col("job_id").drop_nulls().unique().sort().str.join(JOB_SEPARATOR),
            )
            .with_columns(pl.col("job_id").replace("", None))
        )
        first = first.copy()
        first[table["group"].to_numpy()] = numbering.number_rows(table)
        return first


def device_jobs_table(numbering: TupleNumbering) -> pl.DataFrame:
    """Return numbered tuples of :data:`DEVICE_JOB_COLUMNS` as a table, one row per number."""
    types = TELEMETRY_DEVICE_SCHEMA | {"mig_enabled": pl.Boolean()}
    return pl.DataFrame(numbering.rows, schema={name: types[name] for name in DEVICE_JOB_COLUMNS}, orient="row")


def _month_number(minute: int) -> int:
    """Return the month, counted from year 0, of a minute, counted from 1970."""
    instant = datetime.fromtimestamp(minute * 60, UTC)
    return instant.year * 12 + instant.month - 1


def _stack_columns(batches: Sequence[ColumnArrays]) -> ColumnArrays:
    """Concatenate batches of rows, held as column arrays; a quantity that a batch lacks is NaN."""
    if len(batches) == 1:
        return dict(batches[0])
    rows: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(name for batch in batches for name in batch):
        values = [batch[name] if name in batch else np.full(len(batch["time"]), np.nan) for batch in batches]
        rows[name] = np.concatenate(values)
    return rows


def _sort_columns(rows: ColumnArrays, major: str = "time", minor: str = "rank") -> ColumnArrays:
    """Sort rows by two columns, stable for rows of one device and time.

    Parameters
    ----------
    rows : dict of str to numpy.ndarray
        Columns.
    major, minor : str
        Columns to sort by.
    """
    if len(rows[major]) < 2:
        return rows
    first_key, second_key = (rows[major] - rows[major].min(), rows[minor] - rows[minor].min())
    width = int(second_key.max()) + 1
    if int(first_key.max()) + 1 < 2**62 // width:
        key = first_key * width + second_key
        if (key[1:] >= key[:-1]).all():
            return rows
        order = np.argsort(key, kind="stable")
    else:
        order = np.lexsort((second_key, first_key))
    return {name: values[order] for name, values in rows.items()}


def _find_repeats(rows: ColumnArrays) -> tuple[np.ndarray, np.ndarray]:
    """Mark readings whose device, time and metric occurred before, and return for each row the first such reading."""
    time, rank, count = rows["time"], rows["rank"], len(rows["time"])
    pairs = (np.cumsum(mark_run_starts(rank, time)) << 16) | rows["metric"]
    order = np.argsort(pairs, kind="stable")
    is_sorted_repeat = ~mark_run_starts(pairs[order])
    first_row, is_repeat = np.arange(count), np.zeros(count, bool)
    if is_sorted_repeat.any():
        is_repeat[order] = is_sorted_repeat
        first_row[order] = order[np.maximum.accumulate(np.where(is_sorted_repeat, 0, np.arange(count)))]
    return is_repeat, first_row


def _are_metrics_unique(run_numbers: np.ndarray, metric: np.ndarray, n_runs: int) -> np.ndarray:
    """Return for each run of readings, numbered from 0, whether no metric occurs twice in it."""
    pairs = (run_numbers.astype(np.int64) << 16) | metric
    pairs.sort(kind="stable")
    repeated_runs = pairs[1:][pairs[1:] == pairs[:-1]] >> 16
    is_unique = np.ones(n_runs, bool)
    is_unique[repeated_runs] = False
    return is_unique
