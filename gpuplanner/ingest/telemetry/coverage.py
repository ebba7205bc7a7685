"""Observed time of nodes and GPUs, sampling interval and gaps."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import BinaryIO

import numpy as np
import polars as pl

from gpuplanner.ingest.telemetry.device_hours import board_energy
from gpuplanner.ingest.telemetry.metric_definitions import DEVICE_KEY, ORDER
from gpuplanner.ingest.telemetry.sample_buffer import (
    DAY_US,
    Codes,
    Columns,
    Device,
    Spill,
    device_order,
    hold_times,
    ranked_devices,
)

HOUR_US = 3.6e9
GROUP_ROWS = 500_000
"""Samples of a group of GPUs that are looked at together; more only where one GPU has more."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class SamplePlace:
    """A sample, for an example."""

    node: str
    gpu: int
    time: datetime

    def __str__(self) -> str:
        return f"{self.node} GPU {self.gpu} at {self.time:%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True)
class Gaps:
    """Steps between samples that are too long: how many, how long together, and the longest."""

    count: int = 0
    total_us: int = 0
    longest: tuple[str, int, datetime, float, float] | None = None
    """Node, GPU, begin, step [s], usual step [s]."""


@dataclass
class Seen:
    """Samples seen span by span, :meth:`see`; then :meth:`settle` looks at the GPUs.

    - ``devices``: Node, GPU and instance, in their order: what ``rank`` counts.
    - ``has_counter``: Energy counters were read, so that they are held against the power.
    - ``stream``: Where samples are put until all were seen.
    """

    devices: Sequence[Device]
    has_counter: bool = False
    stream: BinaryIO = field(default_factory=io.BytesIO)
    group_rows: int = GROUP_ROWS
    samples: int = 0
    rungs: dict[str, tuple[int, SamplePlace]] = field(default_factory=dict)
    gaps: Gaps = field(default_factory=Gaps)
    observed_us: int = 0
    errors: set[int] = field(default_factory=set)
    first_error: tuple[int, SamplePlace] | None = None
    energies: pl.DataFrame | None = None

    def __post_init__(self) -> None:
        gpus, nodes = Codes(("node", "gpu")), Codes(("node",))
        self._gpu_of = np.array([gpus.code(tuple(device[:2])) for device in self.devices], np.int64)
        self._node_of_gpu = np.array([nodes.code((gpu[0],)) for gpu in gpus.rows], np.int64)
        self._instance_of = np.array([device_order(device)[2] for device in self.devices], np.int64)
        self.gpus = [(str(node), int(str(gpu))) for node, gpu in gpus.rows]
        self.nodes = [str(node) for (node,) in nodes.rows]
        self._of_gpu = np.zeros(len(self.gpus), np.int64)
        self._whole = np.zeros(len(self.gpus), np.int64)
        self._first_whole = np.full(len(self.gpus), np.iinfo(np.int64).max)
        self._first = np.full(len(self.gpus), np.iinfo(np.int64).max)
        self._last = np.full(len(self.gpus), np.iinfo(np.int64).min)
        self._until = self._last.copy()
        self._counted: list[pl.DataFrame] = []
        self._observed: list[pl.DataFrame] = []
        self._spill = Spill(self.stream, "gpu")

    def place(self, rank: int, time_us: int) -> SamplePlace:
        """Place of a sample."""
        node, gpu = self.gpus[int(self._gpu_of[rank])]
        return SamplePlace(node, gpu, EPOCH + timedelta(microseconds=int(time_us)))

    def see(self, rows: Columns) -> None:
        """Take in the samples of a span, which is later than those before."""
        time, rank = rows["time"], rows["rank"]
        if not len(time):
            return
        self.samples += len(time)
        gpu = self._gpu_of[rank]
        few = len(self.gpus) < 2**16
        order = np.argsort(gpu.astype(np.uint16) if few else gpu, kind="stable")
        ordered, times = gpu[order], time[order]
        counts = np.bincount(ordered, minlength=len(self.gpus))
        there = np.flatnonzero(counts)
        ends = np.cumsum(counts)[there]
        self._of_gpu += counts
        self._first[there] = np.minimum(self._first[there], times[ends - counts[there]])
        self._last[there] = np.maximum(self._last[there], times[ends - 1])
        self._counted.append(_by_node_and_day(self._node_of_gpu[gpu], time // DAY_US, np.ones_like(time)))
        self._count_whole(time, rank, gpu)
        self._count_errors(rows)
        put = {"gpu": ordered.astype(np.int32), "time": times}
        if self.has_counter:
            nothing = np.full(len(time), np.nan)
            put |= {name: rows.get(name, nothing)[order] for name in ("power", "energy_counter")}
            if (self._instance_of >= 0).any():
                put["instance"] = self._instance_of[rank][order]
        self._spill.add(put)

    def _count_whole(self, time: np.ndarray, rank: np.ndarray, gpu: np.ndarray) -> None:
        if (self._instance_of < 0).all():
            return
        whole = self._instance_of[rank] < 0
        self._whole += np.bincount(gpu[whole], minlength=len(self.gpus))
        at, first = np.unique(gpu[whole], return_index=True)
        self._first_whole[at] = np.minimum(self._first_whole[at], time[whole][first])

    def _count_errors(self, rows: Columns) -> None:
        if "xid" not in rows:
            return
        found = np.flatnonzero(rows["xid"] > 0)
        if not len(found):
            return
        self.errors.update(np.unique(self._gpu_of[rows["rank"][found]]).tolist())
        if self.first_error is None:
            at = int(found[0])
            self.first_error = int(rows["xid"][at]), self.place(int(rows["rank"][at]), int(rows["time"][at]))

    def see_rungs(self, samples: pl.DataFrame) -> None:
        """Count what activity comes from, in samples that are as they will be kept."""
        source = samples["activity_source"]
        for rung, count in source.value_counts().iter_rows():
            if rung in self.rungs:
                before, place = self.rungs[rung]
            else:
                first = samples.row(int((source == rung).arg_max() or 0), named=True)
                before, place = 0, SamplePlace(first["node"], first["gpu"], first["time"])
            self.rungs[rung] = before + count, place

    def counted_twice(self) -> tuple[int, SamplePlace] | None:
        """Samples of whole GPUs whose instances were sampled too, and the first of them."""
        twice = np.flatnonzero((self._whole > 0) & (self._whole < self._of_gpu))
        if not len(twice) or (self._instance_of < 0).all():
            return None
        gpu = min(twice.tolist(), key=lambda each: (self._first_whole[each], each))
        place = SamplePlace(*self.gpus[gpu], EPOCH + timedelta(microseconds=int(self._first_whole[gpu])))
        return int(self._whole[twice].sum()), place

    def settle(self) -> Seen:
        """Look at the steps from sample to sample of every GPU, once all were seen."""
        for begin, end in self._groups():
            rows = self._of_group(begin, end)
            self._step(rows)
            if self.has_counter:
                self._add_energies(rows)
        return self

    def _groups(self) -> Iterator[tuple[int, int]]:
        begin = held = 0
        for gpu, count in enumerate(self._of_gpu.tolist()):
            if held and held + count > self.group_rows:
                yield begin, gpu
                begin, held = gpu, 0
            held += count
        if held:
            yield begin, len(self._of_gpu)

    def _of_group(self, begin: int, end: int) -> Columns:
        """Samples of some GPUs, by GPU and time."""
        parts = list(self._spill.between(begin, end))
        rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        if len(parts) > 1:
            gpu = rows["gpu"] - begin
            order = np.argsort(gpu.astype(np.uint16) if end - begin < 2**16 else gpu, kind="stable")
            rows = {name: values[order] for name, values in rows.items()}
        return rows

    def _step(self, rows: Columns) -> None:
        gpu, time = rows["gpu"], rows["time"]
        held = hold_times(gpu, time)
        gap = held.gap
        if gap.any():
            step_us = np.append(time[1:], 0)[gap] - time[gap]
            self._add_gaps(gpu[gap], time[gap], step_us, held.usual_us[gap])
        np.maximum.at(self._until, gpu, held.until_us)
        there = held.until_us > time
        of, begin, held_us = gpu[there], time[there], (held.until_us - time)[there]
        self.observed_us += int(held_us.sum())
        node, day = self._node_of_gpu[of], begin // DAY_US
        over = day != (begin + held_us) // DAY_US
        self._observed.append(_by_node_and_day(node[~over], day[~over], held_us[~over]))
        if over.any():
            self._observed.append(_cut_at_midnights(node[over], begin[over], held_us[over]))

    def _add_gaps(self, gpu: np.ndarray, begin: np.ndarray, step_us: np.ndarray, usual_us: np.ndarray) -> None:
        at = int(step_us.argmax())
        longest, step_s = self.gaps.longest, int(step_us[at]) / 1e6
        if longest is None or step_s > longest[3]:
            start = EPOCH + timedelta(microseconds=int(begin[at]))
            longest = (*self.gpus[int(gpu[at])], start, step_s, float(usual_us[at] / 1e6))
        total_us = self.gaps.total_us + int((step_us - usual_us).sum())
        self.gaps = Gaps(self.gaps.count + len(gpu), total_us, longest)

    def _add_energies(self, rows: Columns) -> None:
        samples = pl.DataFrame({"board": pl.Series(rows["gpu"]).set_sorted()}).with_columns(
            time=pl.Series(rows["time"]).cast(pl.Datetime("us", "UTC")),
            power_w=pl.Series(rows["power"], nan_to_null=True),
            energy_counter_j=pl.Series(rows["energy_counter"], nan_to_null=True),
        )
        if "instance" in rows:
            instance = pl.Series(rows["instance"]).cast(pl.Int32)
            samples = samples.with_columns(instance=pl.when(instance >= 0).then(instance))
        found = board_energy(samples, ["board"])
        names = [self.gpus[gpu_model] for gpu_model in found["board"]]
        boards = pl.DataFrame(names, schema={"node": pl.String, "gpu": pl.Int32}, orient="row")
        found = boards.hstack(found.drop("board"))
        self.energies = found if self.energies is None else pl.concat([self.energies, found])

    def observed_gpu_hours(self) -> float:
        """GPU-hours for which samples hold [GPU h]."""
        return self.observed_us / HOUR_US

    def span(self) -> tuple[datetime | None, datetime | None]:
        """First and last instant."""
        if not self.samples:
            return None, None
        first, last = int(self._first.min()), int(self._last.max())
        return EPOCH + timedelta(microseconds=first), EPOCH + timedelta(microseconds=last)

    def coverage(self) -> pl.DataFrame:
        """Table of :func:`gpuplanner.ingest.telemetry.coverage.coverage`."""
        there = self._of_gpu > 0
        instant = pl.Datetime("us", "UTC")
        nodes = (
            pl.DataFrame(
                {
                    "number": self._node_of_gpu[there],
                    "first": self._first[there],
                    "last": self._until[there],
                    "last_read": np.maximum(self._last[there], self._until[there] - 1),
                }
            )
            .group_by("number", maintain_order=True)
            .agg(
                gpus=pl.len(),
                first=pl.col("first").min().cast(instant),
                last=pl.col("last").max().cast(instant),
                last_day=pl.col("last_read").max().cast(instant).dt.date(),
            )
        )
        midnight = pl.col("day").cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
        begin = pl.max_horizontal("first", midnight)
        end = pl.min_horizontal("last", midnight + pl.duration(days=1))
        days = (
            nodes.with_columns(day=pl.date_ranges(pl.col("first").dt.date(), "last_day"))
            .explode("day")
            .with_columns(expected_gpu_h=pl.col("gpus") * ((end - begin).dt.total_microseconds() / HOUR_US))
        )
        names = pl.Series(self.nodes, dtype=pl.String)
        return (
            days.join(_of_all_spans(self._counted, "samples"), on=["number", "day"], how="left")
            .join(_of_all_spans(self._observed, "us"), on=["number", "day"], how="left")
            .with_columns(observed_gpu_h=pl.col("us").fill_null(0) / HOUR_US)
            .select(
                pl.lit(names).gather("number").alias("node"),
                "day",
                pl.col("gpus").cast(pl.Int32),
                pl.col("samples").fill_null(0).cast(pl.Int64),
                "observed_gpu_h",
                "expected_gpu_h",
                covered=pl.when(pl.col("expected_gpu_h") > 0).then(pl.col("observed_gpu_h") / pl.col("expected_gpu_h")),
            )
            .sort("node", "day")
        )


def seen_of(samples: pl.DataFrame) -> Seen:
    """What was seen in samples that are in memory."""
    absent = [name for name in DEVICE_KEY if name not in samples.columns]
    samples = samples.with_columns(pl.lit(None, pl.Int32).alias(name) for name in absent).sort(ORDER)
    codes = Codes(DEVICE_KEY)
    code = codes.of(samples)
    devices, rank = ranked_devices(codes.rows)
    values = {"xid": "xid", "power": "power_w", "energy_counter": "energy_counter_j"}
    given = {
        name: samples[column].cast(pl.Float64).to_numpy()
        for name, column in values.items()
        if column in samples.columns and samples[column].null_count() < samples.height
    }
    seen = Seen(devices, "energy_counter" in given)
    times = samples["time"].cast(pl.Datetime("us", "UTC")).to_physical().to_numpy()
    seen.see({"time": times, "rank": rank[code] if len(rank) else code, **given})
    if "activity_source" in samples.columns:
        seen.see_rungs(samples)
    return seen.settle()


def _by_node_and_day(node: np.ndarray, day: np.ndarray, amount: np.ndarray) -> pl.DataFrame:
    amounts = pl.DataFrame({"number": node, "day": day, "amount": amount})
    return amounts.group_by("number", "day").agg(pl.col("amount").sum())


def _of_all_spans(parts: Sequence[pl.DataFrame], name: str) -> pl.DataFrame:
    """Sums of the amounts of all spans by node and date."""
    empty = pl.DataFrame(schema=dict.fromkeys(("number", "day", "amount"), pl.Int64))
    summed = pl.concat([empty, *parts]).group_by("number", "day").agg(pl.col("amount").sum().alias(name))
    return summed.with_columns(pl.col("day").cast(pl.Int32).cast(pl.Date))


def _cut_at_midnights(node: np.ndarray, begin: np.ndarray, step_us: np.ndarray) -> pl.DataFrame:
    """Parts of steps on each of their days."""
    steps = pl.DataFrame({"number": node, "begin": begin, "end": begin + step_us})
    first, last = pl.col("begin") // DAY_US, pl.col("end") // DAY_US
    cut = steps.with_columns(day=pl.int_ranges(first, last + 1)).explode("day")
    low = pl.max_horizontal("begin", pl.col("day") * DAY_US)
    high = pl.min_horizontal("end", (pl.col("day") + 1) * DAY_US)
    return cut.group_by("number", "day").agg(amount=(high - low).sum())


def observed_gpu_hours(samples: pl.DataFrame) -> float:
    """GPU-hours for which samples hold: until the next one, before a gap and at the end for one usual step [GPU h].

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> times = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=m) for m in (0, 20, 40, 160, 180)]
    >>> round(observed_gpu_hours(pl.DataFrame({"time": times, "node": "n1", "gpu": 0})), 6)
    1.666667
    """
    return seen_of(samples).observed_gpu_hours()


def coverage(samples: pl.DataFrame) -> pl.DataFrame:
    """Observed share of each node and UTC day.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples``.

    Returns
    -------
    polars.DataFrame
        ``node``, ``day``, ``gpus`` (seen on the node on any day), ``samples``, ``observed_gpu_h``,
        ``expected_gpu_h`` (those GPUs over the part of the day from the node's first sample until its last
        one holds no more) and ``covered`` (0-1; null where nothing was to be expected), sorted by node and day.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> times = [datetime(2026, 1, 1, 23, tzinfo=UTC) + timedelta(minutes=m) for m in range(0, 101, 20)]
    >>> coverage(pl.DataFrame({"time": times, "node": "n1", "gpu": 0}))["observed_gpu_h"].to_list()
    [1.0, 1.0]
    """
    return seen_of(samples).coverage()
