"""Blocks of rows on their way to samples: checked one by one, and put aside as numbers in the order of time."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO

import numpy as np
import polars as pl

from gpuplanner.inbox.core.lines.rows import Rows, out_of_time
from gpuplanner.inbox.telemetry.readers.labels import DEVICE, MAX_INDEX
from gpuplanner.inbox.telemetry.readers.limits import UnitSigns, reject_impossible
from gpuplanner.inbox.telemetry.readers.metrics import QUANTITIES, Metric
from gpuplanner.inbox.telemetry.readers.numbers import read_long
from gpuplanner.inbox.telemetry.spill import Codes, Spill

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
            self.rejects.append(
                pl.DataFrame(rows.rejects.to_dict(as_series=False), schema=rows.rejects.schema)
            )
        if rows.good.height:
            self._put(rows.good)

    def _checked(self, rows: Rows) -> Rows:
        absent = [pl.lit(None, DEVICE[name]).alias(name) for name in DEVICE if name not in rows.good.columns]
        if "mig_enabled" not in rows.good.columns:
            absent.append(pl.lit(None, pl.Boolean).alias("mig_enabled"))
        rows = rows.with_columns(absent)
        if self.metrics is not None:
            unreadable = rows.good["fault"].drop_nulls().unique().sort().to_list()
            rows = rows.reject({reason: pl.col("fault") == reason for reason in unreadable})
        rows = _placed(rows)
        given = self._quantities(rows) if self.metrics is None else None
        if self.metrics is not None:
            before = rows.unused
            rows = read_long(rows, self.metrics)
            self.other_metrics.update(rows.unused[len(before) :])
            rows = replace(rows, unused=before)
            given = self._quantities_of_metrics(rows)
        extremes = {}
        for quantity, values in (given or {}).items():
            self.signs.see(quantity, values)
            extremes[quantity] = (float(np.nanmin(values)), float(np.nanmax(values)))
        by_quantity = {quantity: pl.col(quantity) for quantity in QUANTITIES}
        if self.metrics is not None:
            by_quantity = {
                quantity: pl.when(pl.col("quantity") == quantity).then(pl.col("value"))
                for quantity in QUANTITIES
            }
        return reject_impossible(rows, by_quantity, extremes)

    def _quantities(self, rows: Rows) -> dict[str, np.ndarray]:
        """Values of each quantity that a table has."""
        filled = (name for name in QUANTITIES if rows.good[name].null_count() < rows.good.height)
        return {name: rows.good[name].to_numpy() for name in filled}

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
            given = [name for name in QUANTITIES if good[name].null_count() < rows]
            columns |= {name: good[name].to_numpy() for name in given}
        self._watch(good["file"].to_numpy(), columns)
        if (time[1:] < time[:-1]).any():
            order = np.argsort(time, kind="stable")
            columns = {name: values[order] for name, values in columns.items()}
        self.spill.add(columns)
        minute = columns["time"] // MINUTE_US
        at = np.flatnonzero(np.concatenate(([True], minute[1:] != minute[:-1])))
        for each, many in zip(minute[at].tolist(), np.diff(at, append=rows).tolist(), strict=True):
            self.minutes[each] = self.minutes.get(each, 0) + many
        if self.keeps_text:
            self.texts.append(good["raw"])
        self.good += rows

    def _watch(self, file: np.ndarray, columns: dict[str, np.ndarray]) -> None:
        """Note from when to when each file speaks of each device, and where its times fall."""
        time, device = columns["time"], np.array(self._device_of, np.int64)[columns["who"]]
        at = np.flatnonzero(np.concatenate(([True], file[1:] != file[:-1])))
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
            head = np.concatenate(([True], keys[1:] != keys[:-1]))
            before = np.concatenate(([0], times[:-1]))
            heads = np.flatnonzero(head)
            last = dict(self._last[number].iter_rows()) if number in self._last else {}
            before[heads] = [
                last.get(key, own)
                for own, key in zip(times[heads].tolist(), keys[heads].tolist(), strict=True)
            ]
            back = order[times < before]
            if len(back):
                back.sort()
                self.backwards.append(
                    pl.DataFrame(
                        {
                            "file": np.full(len(back), number),
                            "device": device[back],
                            "metric": metric[back],
                            "id": columns["id"][back],
                            "line": columns["line"][back].astype(np.int64),
                        }
                    )
                )
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
        parts = [
            rows.join(streams, on=key, how="semi").select(*key, "id", "line", "time")
            for rows in self._rows_without(gone)
        ]
        rows = pl.concat(parts).sort("id")
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
