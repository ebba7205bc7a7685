"""Samples in time order that may be larger than memory, and how long each holds.

Ledger, coverage, energy and join report take these spans, so that they agree whatever the interval between readings.
"""

from __future__ import annotations

import io
import weakref
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO

import numpy as np
import polars as pl

from gpuplanner.ingest.delimited_rows import Rows, out_of_time
from gpuplanner.ingest.telemetry.metric_definitions import (
    DEVICE,
    DEVICE_KEY,
    GAP_FACTOR,
    MAX_INDEX,
    QUANTITIES,
    Metric,
    UnitSigns,
    reject_impossible,
)
from gpuplanner.ingest.telemetry.telemetry_files import read_long


@dataclass
class Codes:
    """Numbers tuples of values in the order in which they are first seen.

    - ``names``: Columns of which the values come.
    - ``rows``: The tuples, by number.
    """

    names: tuple[str, ...]
    rows: list[tuple[Hashable, ...]] = field(default_factory=list)
    _known: dict[tuple[Hashable, ...], int] = field(default_factory=dict)

    def code(self, values: tuple[Hashable, ...]) -> int:
        """Number of one tuple."""
        known = self._known.get(values)
        if known is None:
            known = self._known[values] = len(self.rows)
            self.rows.append(values)
        return known

    def of(self, frame: pl.DataFrame) -> np.ndarray:
        """Number of each row of a table.

        Examples
        --------
        >>> codes = Codes(("node", "gpu"))
        >>> codes.of(pl.DataFrame({"node": ["n1", "n1", "n1"], "gpu": [0, 1, 0]})).tolist(), codes.rows
        ([0, 1, 0], [('n1', 0), ('n1', 1)])
        """
        varied = [name for name in self.names if not is_constant(frame[name])]
        if not varied:
            number = self.code(frame.select(self.names).row(0)) if frame.height else 0
            return np.full(frame.height, number, np.uint32)
        unique = frame.select(self.names).unique(varied, keep="first", maintain_order=True)
        numbers = [self.code(values) for values in unique.iter_rows()]
        table = unique.select(varied).with_columns(code=pl.Series(numbers, dtype=pl.UInt32))
        rows = frame.select(varied)
        joined = rows.join(table, on=varied, how="left", nulls_equal=True, maintain_order="left")
        return joined["code"].to_numpy()


Device = Sequence[Hashable]
"""Node, GPU and instance."""


def device_order(device: Device) -> tuple[str, int, int]:
    """Place of a node, GPU and instance among others; a whole GPU comes before its instances."""
    node, gpu, instance = device
    return str(node), int(str(gpu)), -1 if instance is None else int(str(instance))


def ranked_devices(devices: Sequence[Device]) -> tuple[list[Device], np.ndarray]:
    """Devices in the order of node, GPU and instance, and the place of each in this order."""
    ordered = sorted(range(len(devices)), key=lambda at: device_order(devices[at]))
    rank = np.empty(len(devices), np.int64)
    rank[ordered] = np.arange(len(devices))
    return [devices[at] for at in ordered], rank


def run_starts(*columns: np.ndarray) -> np.ndarray:
    """True for the first of each run of rows that agree in all columns.

    Examples
    --------
    >>> run_starts(np.array([1, 1, 2]), np.array([5, 5, 5])).tolist()
    [True, False, True]
    """
    starts = np.ones(len(columns[0]), bool)
    starts[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return starts


def is_constant(series: pl.Series) -> bool:
    """True if all values are the same, or all missing.

    Examples
    --------
    >>> is_constant(pl.Series([1, 1])), is_constant(pl.Series([None, 1]))
    (True, False)
    """
    if series.null_count():
        return series.null_count() == len(series)
    return not len(series) or bool((series == series[0]).all())


Columns = dict[str, np.ndarray]
"""Name → values of one type, all of the same length."""

EVERY = 1024
"""Rows from one sign-post to the next."""


@dataclass(frozen=True)
class _Part:
    """Where one batch lies in the file."""

    rows: int
    places: dict[str, tuple[int, np.dtype]]
    posts: np.ndarray
    last: int


@dataclass
class Spill:
    """A file of batches, each in the order of one of its columns.

    - ``stream``: Open for reading and writing: a temporary file, or ``io.BytesIO``.
    - ``order``: Name of the column by which each batch is ordered.
    """

    stream: BinaryIO
    order: str
    _parts: list[_Part] = field(default_factory=list)
    _end: int = 0

    def __post_init__(self) -> None:
        weakref.finalize(self, self.stream.close)

    def add(self, columns: Mapping[str, np.ndarray]) -> None:
        """Write a batch."""
        places = {}
        self.stream.seek(self._end)
        for name, values in columns.items():
            places[name] = (self._end, values.dtype)
            self.stream.write(np.ascontiguousarray(values).data)
            self._end += values.nbytes
        keys = columns[self.order]
        self._parts.append(_Part(len(keys), places, keys[::EVERY].copy(), keys[-1]))

    def between(self, low: int, high: int) -> Iterator[Columns]:
        """Of each batch that has any, the rows with `low` <= order < `high`.

        Examples
        --------
        >>> import io
        >>> spill = Spill(io.BytesIO(), "time")
        >>> spill.add({"time": np.array([1, 2, 2, 5]), "x": np.array([0.1, 0.2, 0.3, 0.4])})
        >>> [part["x"].tolist() for part in spill.between(2, 5)]
        [[0.2, 0.3]]
        """
        for part in self._parts:
            begin, end = self._find(part, low), self._find(part, high)
            if begin < end:
                yield {name: self._read(part, name, begin, end) for name in part.places}

    def __len__(self) -> int:
        return len(self._parts)

    def part(self, number: int) -> Columns:
        """All of one batch."""
        part = self._parts[number]
        return {name: self._read(part, name, 0, part.rows) for name in part.places}

    def has(self, name: str) -> bool:
        """Whether any batch has a column."""
        return any(name in part.places for part in self._parts)

    def _find(self, part: _Part, key: int) -> int:
        """Number of rows of a batch before a key."""
        if key > part.last:
            return part.rows
        post = int(np.searchsorted(part.posts, key, "left"))
        if post == 0:
            return 0
        begin, end = (post - 1) * EVERY, min(post * EVERY, part.rows)
        return begin + int(np.searchsorted(self._read(part, self.order, begin, end), key, "left"))

    def _read(self, part: _Part, name: str, begin: int, end: int) -> np.ndarray:
        place, dtype = part.places[name]
        self.stream.seek(place + begin * dtype.itemsize)
        return np.frombuffer(self.stream.read((end - begin) * dtype.itemsize), dtype)


NO_TIME = "the time cannot be read, or has no zone"
HOLDER = ("node", "gpu", "instance", "profile", "board", "job_id", "mig_enabled")
"""What a row says of the device beside its values."""

MINUTE_US = 60_000_000


@dataclass
class Gathering:
    """All that is known of the rows of some files, once each block of them was added.

    - ``metrics``: Of a source with one row per device, time and metric: name → what it is. Others have a row per
      sample.
    - ``stream``: Where the numbers are put.
    - ``keeps_text``: The lines of good rows are kept in memory, so that rows can be shown that turn out to be
      repetitions.
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
    holders: Codes = field(default_factory=lambda: Codes(HOLDER))
    devices: Codes = field(default_factory=lambda: Codes(HOLDER[:3]))
    names: Codes = field(default_factory=lambda: Codes(("metric",)))
    minutes: dict[int, int] = field(default_factory=dict)
    signs: UnitSigns = field(default_factory=UnitSigns)
    texts: list[pl.Series] = field(default_factory=list)
    begins: list[tuple[int, int]] = field(default_factory=list)
    spans: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    backwards: list[pl.DataFrame] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.spill = Spill(self.stream, "time")
        self._last: dict[int, pl.DataFrame] = {}
        self._latest: dict[int, int] = {}
        self._device_of: list[int] = []

    def add(self, rows: Rows) -> None:
        """Check the rows of a block, and put the good ones aside."""
        self.count += rows.count
        self.blank += rows.blank
        if rows.good.width:
            rows = self._checked(rows)
        self.unused.update(dict.fromkeys(rows.unused))
        if rows.rejects.height:
            # Made anew: texts that are cut out of a block would keep all of it in memory.
            rejects = rows.rejects.to_dict(as_series=False)
            self.rejects.append(pl.DataFrame(rejects, schema=rows.rejects.schema))
        if rows.good.height:
            self._put(rows.good)

    def _checked(self, rows: Rows) -> Rows:
        types = DEVICE | {"mig_enabled": pl.Boolean()}
        absent = [name for name in types if name not in rows.good.columns]
        rows = rows.with_columns(pl.lit(None, types[name]).alias(name) for name in absent)
        if self.metrics is None:
            rows = _placed(rows)
            by_quantity = {quantity: pl.col(quantity) for quantity in QUANTITIES}
            given = {name: rows.good[name].to_numpy() for name in _filled(rows.good)}
        else:
            unreadable = rows.good["fault"].drop_nulls().unique().sort().to_list()
            rows = _placed(rows.reject({reason: pl.col("fault") == reason for reason in unreadable}))
            before = rows.unused
            rows = read_long(rows, self.metrics)
            self.other_metrics.update(rows.unused[len(before) :])
            rows = replace(rows, unused=before)
            quantity, value = pl.col("quantity"), pl.col("value")
            by_quantity = {name: pl.when(quantity == name).then(value) for name in QUANTITIES}
            given = self._quantities_of_metrics(rows)
        extremes = {}
        for name, values in given.items():
            self.signs.see(name, values)
            extremes[name] = (float(np.nanmin(values)), float(np.nanmax(values)))
        return reject_impossible(rows, by_quantity, extremes)

    def _quantities_of_metrics(self, rows: Rows) -> dict[str, np.ndarray]:
        """Values of each quantity that readings of single metrics have."""
        lists = (
            rows.good.filter(pl.col("value").is_not_null())
            .group_by("quantity", maintain_order=True)
            .agg("value")
            .filter(pl.col("quantity").is_not_null())
        )
        return {name: lists["value"][place].to_numpy() for place, name in enumerate(lists["quantity"])}

    def _put(self, good: pl.DataFrame) -> None:
        """Put good rows aside in the order of time; rows of one instant stay as they follow each other."""
        rows = good.height
        time = good["time"].to_physical().to_numpy()
        who = self.holders.of(good)
        self._device_of += [self.devices.code(held[:3]) for held in self.holders.rows[len(self._device_of) :]]
        columns: dict[str, np.ndarray] = {
            "time": time,
            "who": who,
            "id": np.arange(self.good, self.good + rows, dtype=np.int64),
            "line": good["line"].to_numpy(),
        }
        if self.metrics is not None:
            columns["metric"] = self.names.of(good).astype(np.uint16)
            columns["value"] = good["value"].to_numpy()
        else:
            columns |= {name: good[name].to_numpy() for name in _filled(good)}
        self._watch(good["file"].to_numpy(), columns)
        if (time[1:] < time[:-1]).any():
            order = np.argsort(time, kind="stable")
            columns = {name: values[order] for name, values in columns.items()}
        self.spill.add(columns)
        minutes, counts = np.unique(columns["time"] // MINUTE_US, return_counts=True)
        for minute, many in zip(minutes.tolist(), counts.tolist(), strict=True):
            self.minutes[minute] = self.minutes.get(minute, 0) + many
        if self.keeps_text:
            self.texts.append(good["raw"])
        self.good += rows

    def _watch(self, file: np.ndarray, columns: dict[str, np.ndarray]) -> None:
        """Note from when to when each file speaks of each device, and where its times fall."""
        time, device = columns["time"], np.array(self._device_of, np.int64)[columns["who"]]
        at = np.flatnonzero(run_starts(file))
        for begin, end in zip(at.tolist(), np.append(at[1:], len(file)).tolist(), strict=True):
            number = int(file[begin])
            if not self.begins or self.begins[-1][1] != number:
                self.begins.append((self.good + begin, number))
            part = slice(begin, end)
            spans = (
                pl.DataFrame({"device": device[part], "time": time[part]})
                .group_by("device")
                .agg(first=pl.col("time").min(), last=pl.col("time").max())
            )
            for each, first, last in spans.iter_rows():
                known = self.spans.get((number, each), (first, last))
                self.spans[number, each] = (min(first, known[0]), max(last, known[1]))
            self._watch_clock(number, {name: values[part] for name, values in columns.items()}, device[part])

    def _watch_clock(self, number: int, columns: dict[str, np.ndarray], device: np.ndarray) -> None:
        """Times that fall from one row of a stream to the next."""
        time = columns["time"]
        sorted_on = number not in self._latest or time[0] >= self._latest[number]
        falls = (time[1:] < time[:-1]).any() or not sorted_on
        self._latest[number] = max(self._latest.get(number, int(time[0])), int(time.max()))
        metric = columns["metric"].astype(np.int64) if "metric" in columns else np.zeros(len(time), np.int64)
        stream = (device << 16) | metric
        order = np.argsort(stream, kind="stable") if falls else np.arange(len(time))
        if falls:
            keys, times = stream[order], time[order]
            before = np.concatenate(([0], times[:-1]))
            heads = np.flatnonzero(run_starts(keys))
            last = dict(self._last[number].iter_rows()) if number in self._last else {}
            own_times = zip(keys[heads].tolist(), times[heads].tolist(), strict=True)
            before[heads] = [last.get(key, own) for key, own in own_times]
            back = order[times < before]
            if len(back):
                back.sort()
                fallen = {
                    "file": np.full(len(back), number),
                    "device": device[back],
                    "metric": metric[back],
                    "id": columns["id"][back],
                    "line": columns["line"][back].astype(np.int64),
                }
                self.backwards.append(pl.DataFrame(fallen))
        ends = pl.DataFrame({"stream": stream, "time": time}).group_by("stream").agg(pl.col("time").last())
        known = self._last.get(number, ends.clear())
        self._last[number] = pl.concat([known, ends]).unique("stream", keep="last")

    def falls(self, gone: np.ndarray) -> tuple[int, int, int]:
        """Times that fall from one row of a stream to the next: how many, and file and line of the first."""
        if not self.backwards:
            return 0, 0, 0
        back = pl.concat(self.backwards)
        if len(gone):
            back = self._falls_without(gone, back.select("file", "device", "metric").unique())
        first = back.sort("id").head(1)
        return (back.height, *first.select("file", "line").row(0)) if back.height else (0, 0, 0)

    def _falls_without(self, gone: np.ndarray, streams: pl.DataFrame) -> pl.DataFrame:
        key = ["file", "device", "metric"]
        parts = self._rows_without(gone)
        rows = pl.concat([part.join(streams, on=key, how="semi") for part in parts]).sort("id")
        return rows.filter((pl.col("time").diff().over(key) < 0).fill_null(False))

    def spans_without(self, gone: np.ndarray) -> dict[tuple[int, int], tuple[int, int]]:
        """From when to when each file speaks of each device, by their numbers, without repetitions."""
        if not len(gone) or len({file for file, _ in self.spans}) < 2:
            return self.spans
        spans = pl.concat(
            rows.group_by("file", "device").agg(first=pl.col("time").min(), last=pl.col("time").max())
            for rows in self._rows_without(gone)
        )
        table = spans.group_by("file", "device").agg(pl.col("first").min(), pl.col("last").max())
        return {(file, device): (first, last) for file, device, first, last in table.iter_rows()}

    def _rows_without(self, gone: np.ndarray) -> Iterator[pl.DataFrame]:
        device_of = np.array(self._device_of, np.int64)
        for number in range(len(self.spill)):
            rows = self.spill.part(number)
            at = np.minimum(np.searchsorted(gone, rows["id"]), len(gone) - 1)
            stays = gone[at] != rows["id"]
            metric = rows.get("metric", np.zeros(len(at), np.int64)).astype(np.int64)
            yield pl.DataFrame(
                {
                    "file": self.file_of(rows["id"])[stays],
                    "device": device_of[rows["who"]][stays],
                    "metric": metric[stays],
                    "id": rows["id"][stays],
                    "line": rows["line"][stays].astype(np.int64),
                    "time": rows["time"][stays],
                }
            )

    def file_of(self, ids: np.ndarray) -> np.ndarray:
        """Number of the file of rows, by their numbers."""
        first = np.array([begin for begin, _ in self.begins], np.int64)
        numbers = np.array([number for _, number in self.begins], np.int64)
        return numbers[np.searchsorted(first, ids, "right") - 1]


def _filled(good: pl.DataFrame) -> list[str]:
    """Quantities of which a table has values."""
    return [name for name in QUANTITIES if good[name].null_count() < good.height]


def _placed(rows: Rows) -> Rows:
    """Reject rows without a time or a GPU."""
    return rows.reject(
        {
            NO_TIME: pl.col("time").is_null(),
            "the time is not between 1970 and 2100": out_of_time(pl.col("time")),
            "no GPU number": ~pl.col("gpu").is_between(0, MAX_INDEX).fill_null(False),
            "no node": pl.col("node").is_null(),
        }
    )


MAX_STEP_S = 3600.0
"""Longest step between two readings that is no gap."""
DAY_US = 86_400_000_000


@dataclass(frozen=True)
class HoldTimes:
    """Spans of readings, in the order of the readings.

    - ``until_us``: End of the span; the reading's own time where the series has no usual step.
    - ``usual_us``: Usual step, 0 where none is known.
    - ``gap``: True where the next reading of the series comes too late.
    """

    until_us: np.ndarray
    usual_us: np.ndarray
    gap: np.ndarray


def hold_times(
    series: np.ndarray,
    time_us: np.ndarray,
    *,
    max_step_s: float | None = None,
    known_us: np.ndarray | None = None,
) -> HoldTimes:
    """Find until when each reading holds.

    The usual step of a series is the median of its steps of at most :data:`MAX_STEP_S` that end on the UTC day, else
    that of the last day before. A series of one reading has no usual step: the reading holds for no time.

    Parameters
    ----------
    series : numpy.ndarray, shape (n,)
        Number of the series of each reading, ascending.
    time_us : numpy.ndarray, shape (n,)
        Time of each reading, ascending within its series [us].
    max_step_s : float, optional
        Longest step that is no gap; by default 2.5 times the usual step, at most :data:`MAX_STEP_S` [s].
    known_us : numpy.ndarray, shape (n_series,), optional
        Usual step of each series before the first reading, 0 where none is known [us].

    Examples
    --------
    Every 10 minutes, then nothing for 2 hours:

    >>> minutes = np.array([0, 10, 20, 140, 150])
    >>> held = hold_times(np.zeros(5, int), minutes * 60_000_000)
    >>> (held.until_us // 60_000_000).tolist(), held.gap.tolist()
    ([10, 20, 30, 150, 160], [False, False, True, False, False])
    """
    if not len(time_us):
        return HoldTimes(time_us, time_us, np.zeros(0, bool))
    goes_on = np.append(series[1:] == series[:-1], False)
    step_us = np.where(goes_on, np.append(time_us[1:], 0) - time_us, 0)
    ends_on = np.where(goes_on, np.append(time_us[1:], 0), time_us) // DAY_US
    head = run_starts(series, ends_on)
    day = np.cumsum(head) - 1
    usual_us = _usual_steps(series[head], day, step_us, known_us)[day]
    limit_us = np.minimum(GAP_FACTOR * usual_us, MAX_STEP_S * 1e6) if max_step_s is None else max_step_s * 1e6
    gap = goes_on & (step_us > limit_us)
    ends = ~goes_on | gap
    last_us = usual_us if max_step_s is None else np.minimum(usual_us, limit_us)
    until_us = time_us + np.where(ends, last_us, step_us)
    return HoldTimes(until_us.astype(np.int64), usual_us, gap)


def _usual_steps(series: np.ndarray, day: np.ndarray, step_us: np.ndarray, known_us: np.ndarray | None) -> np.ndarray:
    """Usual step of each series on each of its days, which follow each other."""
    valid = (step_us > 0) & (step_us <= MAX_STEP_S * 1e6)
    steps = pl.DataFrame({"day": day[valid], "step": step_us[valid]})
    medians = steps.group_by("day").agg(pl.col("step").median())
    usual = np.full(len(series), np.nan)
    usual[medians["day"].to_numpy()] = medians["step"].to_numpy()
    if known_us is not None:
        first = np.flatnonzero(run_starts(series))
        before = known_us[series[first]]
        usual[first] = np.where(np.isnan(usual[first]) & (before > 0), before, usual[first])
    table = pl.DataFrame({"series": series, "usual": pl.Series(usual, nan_to_null=True)})
    filled = table.select(pl.col("usual").forward_fill().over("series").fill_null(0.0))
    usual_us: np.ndarray = np.rint(filled["usual"].to_numpy()).astype(np.int64)
    return usual_us


def held_readings(readings: pl.DataFrame, by: Sequence[str], *, max_step_s: float | None = None) -> pl.DataFrame:
    """Add until when each reading holds, sorted by series and time.

    Parameters
    ----------
    readings : polars.DataFrame
        ``time`` and the columns `by`; with ``usual_us``, the usual step of the series as known before, or 0 [us].
    by : sequence of str
        Columns that tell series apart.
    max_step_s : float, optional
        As for :func:`hold_times`.

    Returns
    -------
    polars.DataFrame
        The readings with ``series`` (its number), ``until``, ``usual_us``, ``gap`` (the next one comes too late) and
        ``last`` (there is no next one).

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> read = pl.DataFrame({"time": [noon, noon + timedelta(minutes=5)], "node": "n1"})
    >>> held_readings(read, ["node"]).select(pl.col("until").dt.minute(), "last").rows()
    [(5, False), (10, True)]
    """
    instant = pl.Datetime("us", "UTC")
    readings = readings.with_columns(
        pl.col("time").cast(instant), series=pl.Series(Codes(tuple(by)).of(readings).astype(np.int64))
    ).sort("series", "time", maintain_order=True)
    series, time_us = readings["series"].to_numpy(), readings["time"].to_physical().to_numpy()
    known_us = None
    if "usual_us" in readings.columns:
        usual = readings.group_by("series").agg(pl.col("usual_us").max()).sort("series")
        known_us = usual["usual_us"].to_numpy()
    held = hold_times(series, time_us, max_step_s=max_step_s, known_us=known_us)
    return readings.with_columns(
        until=pl.Series(held.until_us).cast(instant),
        usual_us=pl.Series(held.usual_us),
        gap=pl.Series(held.gap),
        last=(pl.col("series") != pl.col("series").shift(-1)).fill_null(True),
    )


def with_until(samples: pl.DataFrame) -> pl.DataFrame:
    """Fill ``until``, the end of the time for which each sample holds, of samples in any order.

    It is left as it is where all samples have it. Samples with activity hold until the next one with activity,
    whatever else is read of the device meanwhile.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> read = {"time": [noon, noon + timedelta(minutes=1), noon + timedelta(minutes=5)], "node": "n1", "gpu": 0}
    >>> samples = pl.DataFrame(read | {"instance": None, "sm_activity": [0.5, None, 0.4]})
    >>> with_until(samples).select(pl.col("until").dt.minute()).to_series().to_list()
    [5, 1, 10]
    """
    if "until" in samples.columns and not samples["until"].null_count():
        return samples
    absent = [pl.lit(None).alias(name) for name in ("instance", "sm_activity") if name not in samples.columns]
    facts = {"has_activity": pl.col("sm_activity").is_not_null(), "row": pl.int_range(pl.len())}
    keyed = samples.with_columns(absent).select(*DEVICE_KEY, "time", **facts)
    until = held_readings(keyed, [*DEVICE_KEY, "has_activity"]).sort("row")["until"]
    return samples.with_columns(until)
