"""Buffer of telemetry samples that may be larger than memory, and the time span for which each reading is valid.

Ledger, coverage, energy and join report use the same spans, so that they agree whatever the interval between
readings.
"""

from __future__ import annotations

import io
import weakref
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO

import numpy as np
import polars as pl

from gpuplanner.core.schema_checks import add_absent_columns
from gpuplanner.ingest.delimited_rows import Rows, is_out_of_range
from gpuplanner.ingest.telemetry.metric_definitions import (
    DEVICE_KEY,
    DIMENSION_BY_QUANTITY,
    GAP_FACTOR,
    MAX_DEVICE_INDEX,
    TELEMETRY_DEVICE_SCHEMA,
    Metric,
    UnitCheck,
    reject_impossible_values,
)
from gpuplanner.ingest.telemetry.telemetry_row_parsing import read_long_values


@dataclass
class TupleNumbering:
    """Numbers, from 0, of distinct tuples of values in the order in which they first occur.

    - ``names``: Columns of the values.
    - ``rows``: The tuples, by number.
    """

    names: tuple[str, ...]
    rows: list[tuple[Hashable, ...]] = field(default_factory=list)
    _numbers: dict[tuple[Hashable, ...], int] = field(default_factory=dict)

    def number_tuple(self, values: tuple[Hashable, ...]) -> int:
        """Return the number of a tuple; a new tuple gets the next number."""
        number = self._numbers.get(values)
        if number is None:
            number = self._numbers[values] = len(self.rows)
            self.rows.append(values)
        return number

    def number_rows(self, frame: pl.DataFrame) -> np.ndarray:
        """Number the rows of a table by their values.

        Examples
        --------
        >>> codes = TupleNumbering(("node", "gpu"))
        >>> codes.number_rows(pl.DataFrame({"node": ["n1", "n1", "n1"], "gpu": [0, 1, 0]})).tolist(), codes.rows
        ([0, 1, 0], [('n1', 0), ('n1', 1)])
        """
        varying_columns = [name for name in self.names if not is_constant(frame[name])]
        if not varying_columns:
            number = self.number_tuple(frame.select(self.names).row(0)) if frame.height else 0
            return np.full(frame.height, number, np.uint32)
        unique = frame.select(self.names).unique(varying_columns, keep="first", maintain_order=True)
        numbers = [self.number_tuple(values) for values in unique.iter_rows()]
        table = unique.select(varying_columns).with_columns(code=pl.Series(numbers, dtype=pl.UInt32))
        rows = frame.select(varying_columns)
        joined = rows.join(table, on=varying_columns, how="left", nulls_equal=True, maintain_order="left")
        return joined["code"].to_numpy()


DeviceId = Sequence[Hashable]
"""A device: its node, GPU number and MIG instance (None for a full GPU)."""


def device_sort_key(device: DeviceId) -> tuple[str, int, int]:
    """Return the sort key of a device: node, GPU and instance; a full GPU comes before its instances."""
    node, gpu, instance = device
    return str(node), int(str(gpu)), -1 if instance is None else int(str(instance))


def rank_devices(devices: Sequence[DeviceId]) -> tuple[list[DeviceId], np.ndarray]:
    """Sort devices by node, GPU and instance; return them, and the position of each input device among them."""
    ordered = sorted(range(len(devices)), key=lambda position: device_sort_key(devices[position]))
    rank = np.empty(len(devices), np.int64)
    rank[ordered] = np.arange(len(devices))
    return [devices[position] for position in ordered], rank


def mark_run_starts(*columns: np.ndarray) -> np.ndarray:
    """Mark the first row of each run of rows that are equal in all columns.

    Examples
    --------
    >>> mark_run_starts(np.array([1, 1, 2]), np.array([5, 5, 5])).tolist()
    [True, False, True]
    """
    starts = np.ones(len(columns[0]), bool)
    starts[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return starts


def is_constant(series: pl.Series) -> bool:
    """Whether all values are equal, or all are missing.

    Examples
    --------
    >>> is_constant(pl.Series([1, 1])), is_constant(pl.Series([None, 1]))
    (True, False)
    """
    if series.null_count():
        return series.null_count() == len(series)
    return not len(series) or bool((series == series[0]).all())


ColumnArrays = dict[str, np.ndarray]
"""Table in memory: column name → values of one type, all of the same length."""

ROWS_PER_SEARCH_KEY = 1024
"""Rows of a spilled batch between two sort keys that are kept in memory for searching."""


@dataclass(frozen=True)
class _SpillBatch:
    """Location of one batch in a spill file.

    - ``rows``: Number of rows.
    - ``places``: Column → offset in the file [bytes], and type.
    - ``key_marks``: Sort key of every :data:`ROWS_PER_SEARCH_KEY`-th row, from the first row on.
    - ``last_key``: Sort key of the last row.
    """

    rows: int
    places: dict[str, tuple[int, np.dtype]]
    key_marks: np.ndarray
    last_key: int


@dataclass
class SpillFile:
    """A temporary file of row batches that do not fit into memory, each sorted by one of its columns, the key.

    - ``stream``: Open for reading and writing: a temporary file, or ``io.BytesIO``.
    - ``order``: Column by which each batch is sorted.
    """

    stream: BinaryIO
    order: str
    _parts: list[_SpillBatch] = field(default_factory=list)
    _end: int = 0

    def __post_init__(self) -> None:
        weakref.finalize(self, self.stream.close)

    def append_batch(self, columns: Mapping[str, np.ndarray]) -> None:
        """Write a batch of rows to the file: column name → values, sorted by the key."""
        locations = {}
        self.stream.seek(self._end)
        for name, values in columns.items():
            locations[name] = (self._end, values.dtype)
            self.stream.write(np.ascontiguousarray(values).data)
            self._end += values.nbytes
        keys = columns[self.order]
        self._parts.append(_SpillBatch(len(keys), locations, keys[::ROWS_PER_SEARCH_KEY].copy(), keys[-1]))

    def iterate_between(self, low_key: int, high_key: int) -> Iterator[ColumnArrays]:
        """Yield from each batch the rows with `low_key` <= key < `high_key`, if there are any.

        Examples
        --------
        >>> import io
        >>> spill = SpillFile(io.BytesIO(), "time")
        >>> spill.append_batch({"time": np.array([1, 2, 2, 5]), "x": np.array([0.1, 0.2, 0.3, 0.4])})
        >>> [batch["x"].tolist() for batch in spill.iterate_between(2, 5)]
        [[0.2, 0.3]]
        """
        for batch in self._parts:
            begin, end = self._count_rows_before(batch, low_key), self._count_rows_before(batch, high_key)
            if begin < end:
                yield {name: self._read_column(batch, name, begin, end) for name in batch.places}

    def __len__(self) -> int:
        return len(self._parts)

    def read_batch(self, number: int) -> ColumnArrays:
        """Read all columns of a batch by its number."""
        batch = self._parts[number]
        return {name: self._read_column(batch, name, 0, batch.rows) for name in batch.places}

    def has_column(self, name: str) -> bool:
        """Whether any batch has a column of this name."""
        return any(name in batch.places for batch in self._parts)

    def _count_rows_before(self, batch: _SpillBatch, key: int) -> int:
        """Count the rows of a batch whose key is below a value."""
        if key > batch.last_key:
            return batch.rows
        mark = int(np.searchsorted(batch.key_marks, key, "left"))
        if mark == 0:
            return 0
        begin, end = (mark - 1) * ROWS_PER_SEARCH_KEY, min(mark * ROWS_PER_SEARCH_KEY, batch.rows)
        return begin + int(np.searchsorted(self._read_column(batch, self.order, begin, end), key, "left"))

    def _read_column(self, batch: _SpillBatch, name: str, begin: int, end: int) -> np.ndarray:
        """Read rows `begin` until before `end` of a column of a batch."""
        offset, dtype = batch.places[name]
        self.stream.seek(offset + begin * dtype.itemsize)
        return np.frombuffer(self.stream.read((end - begin) * dtype.itemsize), dtype)


UNREADABLE_TIME_REASON = "the time cannot be read, or has no zone"
"""Reject reason of a row whose time is malformed or has no zone."""
DEVICE_JOB_COLUMNS = ("node", "gpu", "instance", "profile", "board", "job_id", "mig_enabled")
"""Columns of a telemetry row that describe its device and job, beside its values."""

MINUTE_US = 60_000_000
"""One minute [us]."""


@dataclass
class SampleBuffer:
    """Buffer of the rows of telemetry files, checked and written to a file block by block.

    - ``metrics``: Metric name → definition, of a source with one row per device, time and metric; None for a source
      with one row per sample.
    - ``stream``: File to which the values of accepted rows are written.
    - ``keeps_text``, ``texts``: Whether the raw lines of accepted rows stay in memory, to quote those that turn out to
      be repetitions; these lines by block.
    - ``count``, ``blank``, ``good``: Number of rows, of blank lines, of accepted rows.
    - ``unused``, ``other_metrics``: Columns and metrics that are not read.
    - ``rejects``: Rejected rows by block.
    - ``device_jobs``, ``devices``, ``names``: Numbers of devices with their jobs, of devices, of metrics.
    - ``minutes``: Minute since 1970 → number of rows.
    - ``unit_check``: Statistics of values that reveal a wrong unit.
    - ``file_starts``: For each file, the number of its first accepted row, and its own number.
    - ``spans``: File and device → first and last time [us].
    - ``clock_falls``: Rows whose time is before that of the row above.
    """

    metrics: dict[str, Metric] | None = None
    stream: BinaryIO = field(default_factory=io.BytesIO)
    keeps_text: bool = True
    count: int = 0
    blank: int = 0
    good: int = 0
    unused: dict[str, None] = field(default_factory=dict)
    other_metrics: set[str] = field(default_factory=set)
    rejects: list[pl.DataFrame] = field(default_factory=list)
    device_jobs: TupleNumbering = field(default_factory=lambda: TupleNumbering(DEVICE_JOB_COLUMNS))
    devices: TupleNumbering = field(default_factory=lambda: TupleNumbering(DEVICE_JOB_COLUMNS[:3]))
    names: TupleNumbering = field(default_factory=lambda: TupleNumbering(("metric",)))
    minutes: dict[int, int] = field(default_factory=dict)
    unit_check: UnitCheck = field(default_factory=UnitCheck)
    texts: list[pl.Series] = field(default_factory=list)
    file_starts: list[tuple[int, int]] = field(default_factory=list)
    spans: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    clock_falls: list[pl.DataFrame] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.spill = SpillFile(self.stream, "time")
        self._last: dict[int, pl.DataFrame] = {}
        self._latest: dict[int, int] = {}
        self._device_of: list[int] = []

    def add_rows(self, rows: Rows) -> None:
        """Check the telemetry rows of a block of a file, store the accepted ones, and keep the rejected ones apart."""
        self.count += rows.count
        self.blank += rows.blank
        if rows.good.width:
            rows = self._check_rows(rows)
        self.unused.update(dict.fromkeys(rows.unused))
        if rows.rejects.height:
            # Made anew: texts that are cut out of a block would keep all of it in memory.
            rejects = rows.rejects.to_dict(as_series=False)
            self.rejects.append(pl.DataFrame(rejects, schema=rows.rejects.schema))
        if rows.good.height:
            self._store_rows(rows.good)

    def _check_rows(self, rows: Rows) -> Rows:
        """Reject rows of a block without time or device, or with impossible values, and parse metric values."""
        types = TELEMETRY_DEVICE_SCHEMA | {"mig_enabled": pl.Boolean()}
        rows = replace(rows, good=add_absent_columns(rows.good, types))
        if self.metrics is None:
            rows = _reject_unlocated_rows(rows)
            value_by_quantity = {quantity: pl.col(quantity) for quantity in DIMENSION_BY_QUANTITY}
            measured = {name: rows.good[name].to_numpy() for name in _measured_quantities(rows.good)}
        else:
            unreadable = rows.good["fault"].drop_nulls().unique().sort().to_list()
            rows = _reject_unlocated_rows(rows.reject({reason: pl.col("fault") == reason for reason in unreadable}))
            unused_before = rows.unused
            rows = read_long_values(rows, self.metrics)
            self.other_metrics.update(rows.unused[len(unused_before) :])
            rows = replace(rows, unused=unused_before)
            quantity, value = pl.col("quantity"), pl.col("value")
            value_by_quantity = {name: pl.when(quantity == name).then(value) for name in DIMENSION_BY_QUANTITY}
            measured = self._quantities_of_metrics(rows)
        extremes = {}
        for name, values in measured.items():
            self.unit_check.add_values(name, values)
            extremes[name] = (float(np.nanmin(values)), float(np.nanmax(values)))
        return reject_impossible_values(rows, value_by_quantity, extremes)

    def _quantities_of_metrics(self, rows: Rows) -> dict[str, np.ndarray]:
        """Return quantity → its values in the stored unit, for rows with one metric each."""
        measured = rows.good.drop_nulls(["value", "quantity"])
        lists = measured.group_by("quantity", maintain_order=True).agg("value")
        return {name: lists["value"][position].to_numpy() for position, name in enumerate(lists["quantity"])}

    def _store_rows(self, good: pl.DataFrame) -> None:
        """Write accepted rows to the file in the order of time; rows of one instant keep their order."""
        rows = good.height
        time = good["time"].to_physical().to_numpy()
        numbers = self.device_jobs.number_rows(good)
        self._device_of += [
            self.devices.number_tuple(device_job[:3]) for device_job in self.device_jobs.rows[len(self._device_of) :]
        ]
        columns: dict[str, np.ndarray] = {
            "time": time,
            "who": numbers,
            "id": np.arange(self.good, self.good + rows, dtype=np.int64),
            "line": good["line"].to_numpy(),
        }
        if self.metrics is not None:
            columns["metric"] = self.names.number_rows(good).astype(np.uint16)
            columns["value"] = good["value"].to_numpy()
        else:
            columns |= {name: good[name].to_numpy() for name in _measured_quantities(good)}
        self._record_device_spans(good["file"].to_numpy(), columns)
        if (time[1:] < time[:-1]).any():
            order = np.argsort(time, kind="stable")
            columns = {name: values[order] for name, values in columns.items()}
        self.spill.append_batch(columns)
        minutes, counts = np.unique(columns["time"] // MINUTE_US, return_counts=True)
        for minute, count in zip(minutes.tolist(), counts.tolist(), strict=True):
            self.minutes[minute] = self.minutes.get(minute, 0) + count
        if self.keeps_text:
            self.texts.append(good["raw"])
        self.good += rows

    def _record_device_spans(self, file: np.ndarray, columns: dict[str, np.ndarray]) -> None:
        """Record first and last time of each device in each file, and rows with an earlier time than the row before."""
        time, device = columns["time"], np.array(self._device_of, np.int64)[columns["who"]]
        file_begins = np.flatnonzero(mark_run_starts(file))
        for begin, end in zip(file_begins.tolist(), np.append(file_begins[1:], len(file)).tolist(), strict=True):
            number = int(file[begin])
            if not self.file_starts or self.file_starts[-1][1] != number:
                self.file_starts.append((self.good + begin, number))
            file_rows = slice(begin, end)
            spans = (
                pl.DataFrame({"device": device[file_rows], "time": time[file_rows]})
                .group_by("device")
                .agg(first=pl.col("time").min(), last=pl.col("time").max())
            )
            for device_number, first, last in spans.iter_rows():
                earlier_span = self.spans.get((number, device_number), (first, last))
                self.spans[number, device_number] = (min(first, earlier_span[0]), max(last, earlier_span[1]))
            file_columns = {name: values[file_rows] for name, values in columns.items()}
            self._record_clock_falls(number, file_columns, device[file_rows])

    def _record_clock_falls(self, number: int, columns: dict[str, np.ndarray], device: np.ndarray) -> None:
        """Record rows whose time is before that of the previous row of the same device and metric.

        Parameters
        ----------
        number : int
            Number of the file.
        columns : dict of str to numpy.ndarray
            Columns of its rows.
        device : numpy.ndarray, shape (n,)
            Device number of each row.
        """
        time = columns["time"]
        continues_sorted = number not in self._latest or time[0] >= self._latest[number]
        has_falls = (time[1:] < time[:-1]).any() or not continues_sorted
        self._latest[number] = max(self._latest.get(number, int(time[0])), int(time.max()))
        metric = columns["metric"].astype(np.int64) if "metric" in columns else np.zeros(len(time), np.int64)
        stream = (device << 16) | metric
        order = np.argsort(stream, kind="stable") if has_falls else np.arange(len(time))
        if has_falls:
            stream_keys, times = stream[order], time[order]
            previous_times = np.concatenate(([0], times[:-1]))
            stream_heads = np.flatnonzero(mark_run_starts(stream_keys))
            last_times = dict(self._last[number].iter_rows()) if number in self._last else {}
            head_times = zip(stream_keys[stream_heads].tolist(), times[stream_heads].tolist(), strict=True)
            previous_times[stream_heads] = [
                last_times.get(stream_key, head_time) for stream_key, head_time in head_times
            ]
            fallen_rows = order[times < previous_times]
            if len(fallen_rows):
                fallen_rows.sort()
                fallen_columns = {
                    "file": np.full(len(fallen_rows), number),
                    "device": device[fallen_rows],
                    "metric": metric[fallen_rows],
                    "id": columns["id"][fallen_rows],
                    "line": columns["line"][fallen_rows].astype(np.int64),
                }
                self.clock_falls.append(pl.DataFrame(fallen_columns))
        stream_ends = pl.DataFrame({"stream": stream, "time": time}).group_by("stream").agg(pl.col("time").last())
        earlier_ends = self._last.get(number, stream_ends.clear())
        self._last[number] = pl.concat([earlier_ends, stream_ends]).unique("stream", keep="last")

    def count_clock_falls(self, removed_ids: np.ndarray) -> tuple[int, int, int]:
        """Count rows whose time is before that of the previous row, with file and line of the first.

        Parameters
        ----------
        removed_ids : numpy.ndarray
            Sorted numbers of rows to ignore, since they are repetitions.
        """
        if not self.clock_falls:
            return 0, 0, 0
        fallen_rows = pl.concat(self.clock_falls)
        if len(removed_ids):
            streams = fallen_rows.select("file", "device", "metric").unique()
            fallen_rows = self._find_clock_falls_without(removed_ids, streams)
        first_fall = fallen_rows.sort("id").head(1)
        return (fallen_rows.height, *first_fall.select("file", "line").row(0)) if fallen_rows.height else (0, 0, 0)

    def _find_clock_falls_without(self, removed_ids: np.ndarray, streams: pl.DataFrame) -> pl.DataFrame:
        """Find rows of some streams (file, device, metric) earlier than the row before, without removed rows."""
        stream_columns = ["file", "device", "metric"]
        batches = self._iterate_rows_without(removed_ids)
        rows = pl.concat([batch.join(streams, on=stream_columns, how="semi") for batch in batches]).sort("id")
        return rows.filter((pl.col("time").diff().over(stream_columns) < 0).fill_null(False))

    def device_spans_without(self, removed_ids: np.ndarray) -> dict[tuple[int, int], tuple[int, int]]:
        """Return (file, device) → first and last time [us], without the removed rows."""
        if not len(removed_ids) or len({file for file, _ in self.spans}) < 2:
            return self.spans
        spans = pl.concat(
            rows.group_by("file", "device").agg(first=pl.col("time").min(), last=pl.col("time").max())
            for rows in self._iterate_rows_without(removed_ids)
        )
        table = spans.group_by("file", "device").agg(pl.col("first").min(), pl.col("last").max())
        return {(file, device): (first, last) for file, device, first, last in table.iter_rows()}

    def _iterate_rows_without(self, removed_ids: np.ndarray) -> Iterator[pl.DataFrame]:
        """Yield the stored rows batch by batch, without those whose row numbers are in `removed_ids`."""
        device_of = np.array(self._device_of, np.int64)
        for number in range(len(self.spill)):
            rows = self.spill.read_batch(number)
            positions = np.minimum(np.searchsorted(removed_ids, rows["id"]), len(removed_ids) - 1)
            is_kept = removed_ids[positions] != rows["id"]
            metric = rows.get("metric", np.zeros(len(positions), np.int64)).astype(np.int64)
            yield pl.DataFrame(
                {
                    "file": self.file_numbers_of(rows["id"])[is_kept],
                    "device": device_of[rows["who"]][is_kept],
                    "metric": metric[is_kept],
                    "id": rows["id"][is_kept],
                    "line": rows["line"][is_kept].astype(np.int64),
                    "time": rows["time"][is_kept],
                }
            )

    def file_numbers_of(self, ids: np.ndarray) -> np.ndarray:
        """Return the file numbers of rows by their row numbers."""
        first_ids = np.array([begin for begin, _ in self.file_starts], np.int64)
        numbers = np.array([number for _, number in self.file_starts], np.int64)
        return numbers[np.searchsorted(first_ids, ids, "right") - 1]


def _measured_quantities(good: pl.DataFrame) -> list[str]:
    """List the quantities, such as ``power``, of which a table of rows has values."""
    return [name for name in DIMENSION_BY_QUANTITY if good[name].null_count() < good.height]


def _reject_unlocated_rows(rows: Rows) -> Rows:
    """Reject rows without a time, node or GPU."""
    return rows.reject(
        {
            UNREADABLE_TIME_REASON: pl.col("time").is_null(),
            "the time is not between 1970 and 2100": is_out_of_range(pl.col("time")),
            "no GPU number": ~pl.col("gpu").is_between(0, MAX_DEVICE_INDEX).fill_null(False),
            "no node": pl.col("node").is_null(),
        }
    )


MAX_SAMPLE_STEP_S = 3600.0
"""Longest step between two readings that is never a gap by default [s]."""
DAY_US = 86_400_000_000
"""One day [us]."""


@dataclass(frozen=True)
class ReadingSpans:
    """Time spans for which readings are valid, in the order of the readings.

    - ``until_us``: End of the span; the reading's own time where the series has no usual step [us].
    - ``usual_us``: Usual step of the series, 0 where unknown [us].
    - ``gap``: The next reading of the series is late.
    """

    until_us: np.ndarray
    usual_us: np.ndarray
    gap: np.ndarray


def compute_reading_spans(
    series: np.ndarray,
    time_us: np.ndarray,
    *,
    max_step_s: float | None = None,
    usual_before_us: np.ndarray | None = None,
) -> ReadingSpans:
    """Compute the time until which each reading of a device is valid.

    The usual step of a series is the median of its steps of at most :data:`MAX_SAMPLE_STEP_S` that end on the UTC day,
    else that of the last day before. A series of one reading has no usual step: the reading is valid for no time.

    Parameters
    ----------
    series : numpy.ndarray, shape (n,)
        Number of the series of each reading, ascending.
    time_us : numpy.ndarray, shape (n,)
        Time of each reading, ascending within its series [us].
    max_step_s : float, optional
        Longest step that is no gap; by default 2.5 times the usual step, at most :data:`MAX_SAMPLE_STEP_S` [s].
    usual_before_us : numpy.ndarray, shape (n_series,), optional
        Usual step of each series before the first reading, 0 where unknown [us].

    Returns
    -------
    ReadingSpans
        Ends, usual steps and gaps of the readings.

    Examples
    --------
    Every 10 minutes, then nothing for 2 hours:

    >>> minutes = np.array([0, 10, 20, 140, 150])
    >>> held = compute_reading_spans(np.zeros(5, int), minutes * 60_000_000)
    >>> (held.until_us // 60_000_000).tolist(), held.gap.tolist()
    ([10, 20, 30, 150, 160], [False, False, True, False, False])
    """
    if not len(time_us):
        return ReadingSpans(time_us, time_us, np.zeros(0, bool))
    continues = np.append(series[1:] == series[:-1], False)
    step_us = np.where(continues, np.append(time_us[1:], 0) - time_us, 0)
    end_day = np.where(continues, np.append(time_us[1:], 0), time_us) // DAY_US
    is_first = mark_run_starts(series, end_day)
    day_number = np.cumsum(is_first) - 1
    usual_us = _usual_steps(series[is_first], day_number, step_us, usual_before_us)[day_number]
    max_step_us = np.minimum(GAP_FACTOR * usual_us, MAX_SAMPLE_STEP_S * 1e6) if max_step_s is None else max_step_s * 1e6
    gap = continues & (step_us > max_step_us)
    is_last = ~continues | gap
    last_us = usual_us if max_step_s is None else np.minimum(usual_us, max_step_us)
    until_us = time_us + np.where(is_last, last_us, step_us)
    return ReadingSpans(until_us.astype(np.int64), usual_us, gap)


def _usual_steps(
    series: np.ndarray, day_number: np.ndarray, step_us: np.ndarray, usual_before_us: np.ndarray | None
) -> np.ndarray:
    """Compute the usual (median) step of each series on each of its days [us].

    Days are counted over all series: each pair of a series and a UTC day has a number of its own.

    Parameters
    ----------
    series : numpy.ndarray, shape (n_days,)
        Number of the series that each day is of.
    day_number : numpy.ndarray, shape (n,)
        Number of the day on which the step after each reading ends.
    step_us : numpy.ndarray, shape (n,)
        Step after each reading [us].
    usual_before_us : numpy.ndarray, optional
        Usual step of each series before the first reading [us].
    """
    valid = (step_us > 0) & (step_us <= MAX_SAMPLE_STEP_S * 1e6)
    steps = pl.DataFrame({"day": day_number[valid], "step": step_us[valid]})
    medians = steps.group_by("day").agg(pl.col("step").median())
    usual_steps = np.full(len(series), np.nan)
    usual_steps[medians["day"].to_numpy()] = medians["step"].to_numpy()
    if usual_before_us is not None:
        first = np.flatnonzero(mark_run_starts(series))
        earlier_us = usual_before_us[series[first]]
        usual_steps[first] = np.where(np.isnan(usual_steps[first]) & (earlier_us > 0), earlier_us, usual_steps[first])
    table = pl.DataFrame({"series": series, "usual": pl.Series(usual_steps, nan_to_null=True)})
    filled = table.select(pl.col("usual").forward_fill().over("series").fill_null(0.0))
    usual_us: np.ndarray = np.rint(filled["usual"].to_numpy()).astype(np.int64)
    return usual_us


def add_reading_spans(
    readings: pl.DataFrame, series_columns: Sequence[str], *, max_step_s: float | None = None
) -> pl.DataFrame:
    """Add to each reading until when it is valid, sorted by series and time.

    Parameters
    ----------
    readings : polars.DataFrame
        ``time`` and the columns `series_columns`; optionally ``usual_us``, the usual step of the series before its
        first reading, or 0 [us].
    series_columns : sequence of str
        Columns that identify a series.
    max_step_s : float, optional
        As for :func:`compute_reading_spans` [s].

    Returns
    -------
    polars.DataFrame
        The readings with ``series`` (its number), ``until``, ``usual_us``, ``gap`` (the next one is late) and ``last``
        (there is no next one).

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> read = pl.DataFrame({"time": [noon, noon + timedelta(minutes=5)], "node": "n1"})
    >>> add_reading_spans(read, ["node"]).select(pl.col("until").dt.minute(), "last").rows()
    [(5, False), (10, True)]
    """
    time_type = pl.Datetime("us", "UTC")
    readings = readings.with_columns(
        pl.col("time").cast(time_type),
        series=pl.Series(TupleNumbering(tuple(series_columns)).number_rows(readings).astype(np.int64)),
    ).sort("series", "time", maintain_order=True)
    series, time_us = readings["series"].to_numpy(), readings["time"].to_physical().to_numpy()
    usual_before_us = None
    if "usual_us" in readings.columns:
        usual_by_series = readings.group_by("series").agg(pl.col("usual_us").max()).sort("series")
        usual_before_us = usual_by_series["usual_us"].to_numpy()
    spans = compute_reading_spans(series, time_us, max_step_s=max_step_s, usual_before_us=usual_before_us)
    return readings.with_columns(
        until=pl.Series(spans.until_us).cast(time_type),
        usual_us=pl.Series(spans.usual_us),
        gap=pl.Series(spans.gap),
        last=(pl.col("series") != pl.col("series").shift(-1)).fill_null(True),
    )


def add_sample_ends(samples: pl.DataFrame) -> pl.DataFrame:
    """Fill ``until``, the end of the time for which each sample is valid, for samples in any order.

    It is unchanged where all samples have it. Samples with activity are valid until the next one with activity,
    whatever else is read of the device in between.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> read = {"time": [noon, noon + timedelta(minutes=1), noon + timedelta(minutes=5)], "node": "n1", "gpu": 0}
    >>> samples = pl.DataFrame(read | {"instance": None, "sm_activity": [0.5, None, 0.4]})
    >>> add_sample_ends(samples).select(pl.col("until").dt.minute()).to_series().to_list()
    [5, 1, 10]
    """
    if "until" in samples.columns and not samples["until"].null_count():
        return samples
    complete = add_absent_columns(samples, {"instance": pl.Int32(), "sm_activity": pl.Float64()})
    helper_columns = {"has_activity": pl.col("sm_activity").is_not_null(), "row": pl.int_range(pl.len())}
    readings = complete.select(*DEVICE_KEY, "time", **helper_columns)
    until = add_reading_spans(readings, [*DEVICE_KEY, "has_activity"]).sort("row")["until"]
    return samples.with_columns(until)
