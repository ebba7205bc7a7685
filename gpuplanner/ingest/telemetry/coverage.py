"""Coverage of telemetry: observed time of nodes and GPUs, sampling interval and gaps."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import BinaryIO

import numpy as np
import polars as pl

from gpuplanner.core.schema_checks import add_absent_columns
from gpuplanner.ingest.telemetry.gpu_energy_and_hourly_sums import sum_gpu_energy
from gpuplanner.ingest.telemetry.metric_definitions import DEVICE_KEY, SAMPLE_KEY_COLUMNS
from gpuplanner.ingest.telemetry.sample_buffer_and_reading_spans import (
    DAY_US,
    ColumnArrays,
    DeviceId,
    SpillFile,
    TupleNumbering,
    compute_reading_spans,
    device_sort_key,
    rank_devices,
)

HOUR_US = 3.6e9
"""One hour [us]."""
MAX_GPU_GROUP_ROWS = 500_000
"""Most samples of a group of GPUs that are sorted in memory together, unless one GPU has more."""

UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""Instant from which sample times are counted: 1970-01-01 00:00 UTC."""


@dataclass(frozen=True)
class SamplePosition:
    """Node, GPU and time of a sample that a finding quotes as an example."""

    node: str
    gpu: int
    time: datetime

    def __str__(self) -> str:
        return f"{self.node} GPU {self.gpu} at {self.time:%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True)
class SampleGaps:
    """Gaps between samples of all GPUs: number, total time [us], and the longest one."""

    count: int = 0
    total_us: int = 0
    longest: tuple[str, int, datetime, float, float] | None = None
    """Node, GPU, last reading before the longest gap, its length [s] and the usual time between readings [s]."""


@dataclass
class SampleStatistics:
    """Statistics of telemetry samples, for coverage and findings: gaps, observed time, XID errors and energy.

    Samples are added window by window; then :meth:`measure_gaps` measures the steps between them.

    - ``devices``: Node, GPU and MIG instance by ``rank``, the number of a device in sorted order.
    - ``has_counter``: Energy counters were read, to be compared with the power.
    - ``stream``: File for the added samples until :meth:`measure_gaps` reads them again.
    - ``group_rows``: Most samples of a group of GPUs that are in memory together.
    - ``samples``: Number of samples.
    - ``activity_sources``: Activity source → number of samples, and the first of them.
    - ``gaps``: Gaps between samples.
    - ``observed_us``: Time for which samples are valid, over all GPUs [us].
    - ``errors``: Numbers of the GPUs with an XID error (positions in ``gpus``, the node and number of each GPU).
    - ``first_error``: The first XID error, with the sample that has it.
    - ``energies``: Energy of each GPU by counter and by power [kWh].
    """

    devices: Sequence[DeviceId]
    has_counter: bool = False
    stream: BinaryIO = field(default_factory=io.BytesIO)
    group_rows: int = MAX_GPU_GROUP_ROWS
    samples: int = 0
    activity_sources: dict[str, tuple[int, SamplePosition]] = field(default_factory=dict)
    gaps: SampleGaps = field(default_factory=SampleGaps)
    observed_us: int = 0
    errors: set[int] = field(default_factory=set)
    first_error: tuple[int, SamplePosition] | None = None
    energies: pl.DataFrame | None = None

    def __post_init__(self) -> None:
        gpus, nodes = TupleNumbering(("node", "gpu")), TupleNumbering(("node",))
        self._gpu_of = np.array([gpus.number_tuple(tuple(device[:2])) for device in self.devices], np.int64)
        self._node_of_gpu = np.array([nodes.number_tuple((gpu[0],)) for gpu in gpus.rows], np.int64)
        self._instance_of = np.array([device_sort_key(device)[2] for device in self.devices], np.int64)
        self.gpus = [(str(node), int(str(gpu))) for node, gpu in gpus.rows]
        self.nodes = [str(node) for (node,) in nodes.rows]
        self._samples_by_gpu = np.zeros(len(self.gpus), np.int64)
        self._full_gpu_samples = np.zeros(len(self.gpus), np.int64)
        self._first_full_gpu_us = np.full(len(self.gpus), np.iinfo(np.int64).max)
        self._first = np.full(len(self.gpus), np.iinfo(np.int64).max)
        self._last = np.full(len(self.gpus), np.iinfo(np.int64).min)
        self._until = self._last.copy()
        self._sample_counts: list[pl.DataFrame] = []
        self._observed_amounts: list[pl.DataFrame] = []
        self._spill = SpillFile(self.stream, "gpu")

    def sample_position(self, rank: int, time_us: int) -> SamplePosition:
        """Return node, GPU and time of a sample from its device rank and time [us]."""
        node, gpu = self.gpus[int(self._gpu_of[rank])]
        return SamplePosition(node, gpu, UNIX_EPOCH + timedelta(microseconds=int(time_us)))

    def add_rows(self, rows: ColumnArrays) -> None:
        """Add the samples of a time window, which is later than the windows before."""
        time, rank = rows["time"], rows["rank"]
        if not len(time):
            return
        self.samples += len(time)
        gpu = self._gpu_of[rank]
        fits_16_bits = len(self.gpus) < 2**16
        order = np.argsort(gpu.astype(np.uint16) if fits_16_bits else gpu, kind="stable")
        ordered, times = gpu[order], time[order]
        counts = np.bincount(ordered, minlength=len(self.gpus))
        sampled_gpus = np.flatnonzero(counts)
        run_ends = np.cumsum(counts)[sampled_gpus]
        self._samples_by_gpu += counts
        self._first[sampled_gpus] = np.minimum(self._first[sampled_gpus], times[run_ends - counts[sampled_gpus]])
        self._last[sampled_gpus] = np.maximum(self._last[sampled_gpus], times[run_ends - 1])
        self._sample_counts.append(_sum_by_node_and_day(self._node_of_gpu[gpu], time // DAY_US, np.ones_like(time)))
        self._count_full_gpu_samples(time, rank, gpu)
        self._count_errors(rows)
        stored_columns = {"gpu": ordered.astype(np.int32), "time": times}
        if self.has_counter:
            no_values = np.full(len(time), np.nan)
            stored_columns |= {name: rows.get(name, no_values)[order] for name in ("power", "energy_counter")}
            if (self._instance_of >= 0).any():
                stored_columns["instance"] = self._instance_of[rank][order]
        self._spill.append_batch(stored_columns)

    def _count_full_gpu_samples(self, time: np.ndarray, rank: np.ndarray, gpu: np.ndarray) -> None:
        """Count the samples of each full GPU and note the first one, if any MIG instance is sampled too."""
        if (self._instance_of < 0).all():
            return
        is_full_gpu = self._instance_of[rank] < 0
        self._full_gpu_samples += np.bincount(gpu[is_full_gpu], minlength=len(self.gpus))
        gpu_numbers, first = np.unique(gpu[is_full_gpu], return_index=True)
        first_us = time[is_full_gpu][first]
        self._first_full_gpu_us[gpu_numbers] = np.minimum(self._first_full_gpu_us[gpu_numbers], first_us)

    def _count_errors(self, rows: ColumnArrays) -> None:
        """Record the GPUs with an XID error, and the first such error."""
        if "xid" not in rows:
            return
        error_rows = np.flatnonzero(rows["xid"] > 0)
        if not len(error_rows):
            return
        self.errors.update(np.unique(self._gpu_of[rows["rank"][error_rows]]).tolist())
        if self.first_error is None:
            first_row = int(error_rows[0])
            position = self.sample_position(int(rows["rank"][first_row]), int(rows["time"][first_row]))
            self.first_error = (int(rows["xid"][first_row]), position)

    def count_activity_sources(self, samples: pl.DataFrame) -> None:
        """Count the activity sources of samples as they are stored."""
        source = samples["activity_source"]
        for activity_source, count in source.value_counts().iter_rows():
            if activity_source in self.activity_sources:
                earlier_count, position = self.activity_sources[activity_source]
            else:
                first = samples.row(int((source == activity_source).arg_max() or 0), named=True)
                earlier_count, position = 0, SamplePosition(first["node"], first["gpu"], first["time"])
            self.activity_sources[activity_source] = earlier_count + count, position

    def count_duplicated_samples(self) -> tuple[int, SamplePosition] | None:
        """Count samples of full GPUs whose MIG instances were sampled too, with the first of them; None without any."""
        duplicated = np.flatnonzero((self._full_gpu_samples > 0) & (self._full_gpu_samples < self._samples_by_gpu))
        if not len(duplicated) or (self._instance_of < 0).all():
            return None
        gpu = min(duplicated.tolist(), key=lambda gpu_number: (self._first_full_gpu_us[gpu_number], gpu_number))
        first_time = UNIX_EPOCH + timedelta(microseconds=int(self._first_full_gpu_us[gpu]))
        position = SamplePosition(*self.gpus[gpu], first_time)
        return int(self._full_gpu_samples[duplicated].sum()), position

    def measure_gaps(self) -> SampleStatistics:
        """Measure observed time, gaps and energy by the steps between samples of each GPU, once all were added."""
        for begin, end in self._plan_gpu_groups():
            rows = self._read_group(begin, end)
            self._measure_group_steps(rows)
            if self.has_counter:
                self._add_energies(rows)
        return self

    def _plan_gpu_groups(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of GPU numbers (first one, end) with at most `group_rows` samples together, or of one GPU."""
        begin = group_samples = 0
        for gpu, count in enumerate(self._samples_by_gpu.tolist()):
            if group_samples and group_samples + count > self.group_rows:
                yield begin, gpu
                begin, group_samples = gpu, 0
            group_samples += count
        if group_samples:
            yield begin, len(self._samples_by_gpu)

    def _read_group(self, begin: int, end: int) -> ColumnArrays:
        """Read the samples of the GPUs with numbers from `begin` until before `end`, sorted by GPU and time."""
        batches = list(self._spill.iterate_between(begin, end))
        rows = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
        if len(batches) > 1:
            gpu = rows["gpu"] - begin
            order = np.argsort(gpu.astype(np.uint16) if end - begin < 2**16 else gpu, kind="stable")
            rows = {name: values[order] for name, values in rows.items()}
        return rows

    def _measure_group_steps(self, rows: ColumnArrays) -> None:
        """Measure observed time and gaps from the samples of a group of GPUs."""
        gpu, time = rows["gpu"], rows["time"]
        spans = compute_reading_spans(gpu, time)
        is_gap = spans.gap
        if is_gap.any():
            step_us = np.append(time[1:], 0)[is_gap] - time[is_gap]
            self._add_gaps(gpu[is_gap], time[is_gap], step_us, spans.usual_us[is_gap])
        np.maximum.at(self._until, gpu, spans.until_us)
        has_span = spans.until_us > time
        span_gpu = gpu[has_span]
        begin = time[has_span]
        span_us = (spans.until_us - time)[has_span]
        self.observed_us += int(span_us.sum())
        node, day = self._node_of_gpu[span_gpu], begin // DAY_US
        crosses_midnight = day != (begin + span_us) // DAY_US
        self._observed_amounts.append(
            _sum_by_node_and_day(node[~crosses_midnight], day[~crosses_midnight], span_us[~crosses_midnight])
        )
        if crosses_midnight.any():
            self._observed_amounts.append(
                _split_at_midnights(node[crosses_midnight], begin[crosses_midnight], span_us[crosses_midnight])
            )

    def _add_gaps(self, gpu: np.ndarray, begin: np.ndarray, step_us: np.ndarray, usual_us: np.ndarray) -> None:
        """Add gaps between samples to the statistics.

        Parameters
        ----------
        gpu : numpy.ndarray, shape (n_gaps,)
            Number of the GPU.
        begin : numpy.ndarray, shape (n_gaps,)
            Last reading before the gap [us].
        step_us, usual_us : numpy.ndarray, shape (n_gaps,)
            Time to the next reading, and usual time between readings [us].
        """
        longest_step = int(step_us.argmax())
        longest, step_s = self.gaps.longest, int(step_us[longest_step]) / 1e6
        if longest is None or step_s > longest[3]:
            start = UNIX_EPOCH + timedelta(microseconds=int(begin[longest_step]))
            longest = (*self.gpus[int(gpu[longest_step])], start, step_s, float(usual_us[longest_step] / 1e6))
        total_us = self.gaps.total_us + int((step_us - usual_us).sum())
        self.gaps = SampleGaps(self.gaps.count + len(gpu), total_us, longest)

    def _add_energies(self, rows: ColumnArrays) -> None:
        """Add the energy of a group of GPUs, by the energy counter and by the integral of the power."""
        samples = pl.DataFrame({"board": pl.Series(rows["gpu"]).set_sorted()}).with_columns(
            time=pl.Series(rows["time"]).cast(pl.Datetime("us", "UTC")),
            power_w=pl.Series(rows["power"], nan_to_null=True),
            energy_counter_j=pl.Series(rows["energy_counter"], nan_to_null=True),
        )
        if "instance" in rows:
            instance = pl.Series(rows["instance"]).cast(pl.Int32)
            samples = samples.with_columns(instance=pl.when(instance >= 0).then(instance))
        energies = sum_gpu_energy(samples, ["board"])
        names = [self.gpus[gpu_model] for gpu_model in energies["board"]]
        gpu_names = pl.DataFrame(names, schema={"node": pl.String, "gpu": pl.Int32}, orient="row")
        energies = gpu_names.hstack(energies.drop("board"))
        self.energies = energies if self.energies is None else pl.concat([self.energies, energies])

    def observed_gpu_hours(self) -> float:
        """GPU-hours for which samples are valid [GPU h]."""
        return self.observed_us / HOUR_US

    def span(self) -> tuple[datetime | None, datetime | None]:
        """First and last instant of the samples [UTC]; None without samples."""
        if not self.samples:
            return None, None
        first, last = int(self._first.min()), int(self._last.max())
        return UNIX_EPOCH + timedelta(microseconds=first), UNIX_EPOCH + timedelta(microseconds=last)

    def coverage(self) -> pl.DataFrame:
        """Observed share of each node and UTC day, with the columns of the module's function ``coverage``."""
        has_samples = self._samples_by_gpu > 0
        time_type = pl.Datetime("us", "UTC")
        nodes = (
            pl.DataFrame(
                {
                    "number": self._node_of_gpu[has_samples],
                    "first": self._first[has_samples],
                    "last": self._until[has_samples],
                    "last_read": np.maximum(self._last[has_samples], self._until[has_samples] - 1),
                }
            )
            .group_by("number", maintain_order=True)
            .agg(
                gpus=pl.len(),
                first=pl.col("first").min().cast(time_type),
                last=pl.col("last").max().cast(time_type),
                last_day=pl.col("last_read").max().cast(time_type).dt.date(),
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
            days.join(_add_up_amounts(self._sample_counts, "samples"), on=["number", "day"], how="left")
            .join(_add_up_amounts(self._observed_amounts, "us"), on=["number", "day"], how="left")
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


def summarise_samples(samples: pl.DataFrame) -> SampleStatistics:
    """Compute the statistics of a samples table in memory."""
    samples = add_absent_columns(samples, dict.fromkeys(DEVICE_KEY, pl.Int32())).sort(SAMPLE_KEY_COLUMNS)
    numbering = TupleNumbering(DEVICE_KEY)
    numbers = numbering.number_rows(samples)
    devices, ranks = rank_devices(numbering.rows)
    values = {"xid": "xid", "power": "power_w", "energy_counter": "energy_counter_j"}
    measured = {
        name: samples[column].cast(pl.Float64).to_numpy()
        for name, column in values.items()
        if column in samples.columns and samples[column].null_count() < samples.height
    }
    statistics = SampleStatistics(devices, "energy_counter" in measured)
    times = samples["time"].cast(pl.Datetime("us", "UTC")).to_physical().to_numpy()
    statistics.add_rows({"time": times, "rank": ranks[numbers] if len(ranks) else numbers, **measured})
    if "activity_source" in samples.columns:
        statistics.count_activity_sources(samples)
    return statistics.measure_gaps()


def _sum_by_node_and_day(node: np.ndarray, day: np.ndarray, amount: np.ndarray) -> pl.DataFrame:
    """Sum amounts (samples, or time [us]) by node number and day number."""
    amounts = pl.DataFrame({"number": node, "day": day, "amount": amount})
    return amounts.group_by("number", "day").agg(pl.col("amount").sum())


def _add_up_amounts(amounts: Sequence[pl.DataFrame], name: str) -> pl.DataFrame:
    """Add up partial sums by node and day to one table with the sum as column `name`."""
    empty = pl.DataFrame(schema=dict.fromkeys(("number", "day", "amount"), pl.Int64))
    summed = pl.concat([empty, *amounts]).group_by("number", "day").agg(pl.col("amount").sum().alias(name))
    return summed.with_columns(pl.col("day").cast(pl.Int32).cast(pl.Date))


def _split_at_midnights(node: np.ndarray, begin: np.ndarray, step_us: np.ndarray) -> pl.DataFrame:
    """Split the times for which samples are valid at midnights UTC, and sum them by node number and day number [us]."""
    steps = pl.DataFrame({"number": node, "begin": begin, "end": begin + step_us})
    first, last = pl.col("begin") // DAY_US, pl.col("end") // DAY_US
    steps_by_day = steps.with_columns(day=pl.int_ranges(first, last + 1)).explode("day")
    part_begin = pl.max_horizontal("begin", pl.col("day") * DAY_US)
    part_end = pl.min_horizontal("end", (pl.col("day") + 1) * DAY_US)
    return steps_by_day.group_by("number", "day").agg(amount=(part_end - part_begin).sum())


def coverage(samples: pl.DataFrame) -> pl.DataFrame:
    """Compute the observed share of each node and UTC day.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples``.

    Returns
    -------
    polars.DataFrame
        ``node``, ``day``, ``gpus`` (observed on the node on any day), ``samples``, ``observed_gpu_h`` [GPU h],
        ``expected_gpu_h`` (those GPUs over the part of the day from the node's first sample until its last one ends)
        [GPU h] and ``covered`` [0-1] (null where nothing was expected), sorted by node and day.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> times = [datetime(2026, 1, 1, 23, tzinfo=UTC) + timedelta(minutes=m) for m in range(0, 101, 20)]
    >>> coverage(pl.DataFrame({"time": times, "node": "n1", "gpu": 0}))["observed_gpu_h"].to_list()
    [1.0, 1.0]
    """
    return summarise_samples(samples).coverage()
