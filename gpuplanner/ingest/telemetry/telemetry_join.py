"""Join of telemetry to the jobs that were allocated each GPU or MIG instance.

Jobs on a device follow from the list of jobs and the devices of each node. They are computed when samples are read, so
that jobs imported later, or again, need no change of the stored samples.

Samples are sorted window by window because sorting all rows would need them all in memory: the sort of polars'
streaming engine takes about 100 bytes a row (839 MiB for eight million rows of seven columns), its ``unique`` half of
that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import polars as pl

from gpuplanner.ingest.gpu_model_resolution_and_node_lists import expand_unique_node_lists, spread_gpus_over_nodes
from gpuplanner.ingest.source_fields import UTC_TIME_DTYPE
from gpuplanner.ingest.telemetry.metric_definitions import DEVICE_KEY, DIMENSION_BY_QUANTITY, TELEMETRY_DEVICE_SCHEMA
from gpuplanner.ingest.telemetry.sample_buffer_and_reading_spans import (
    DEVICE_JOB_COLUMNS,
    MINUTE_US,
    ColumnArrays,
    SampleBuffer,
    TupleNumbering,
    mark_run_starts,
    rank_devices,
)

STATED_JOB, SHARED_JOB, WHOLE_NODE_JOB, TOGETHER_JOB, INSTANCE_JOBS, NO_JOB = (
    "stated", "shared", "whole_node", "together", "mig_instances", "none",
)  # fmt: skip
"""Values of ``job_evidence``: how the job of a sample is known.

stated
    The source names the job: by job id, or by pod and namespace.
shared
    The source names several jobs, joined by ``,``: they share the device by time-slicing or MPS.
whole_node
    One job was allocated all devices of that kind on the node, as many as telemetry shows.
together
    Several jobs, or a part of the node: the sample is evidence of all of them together.
mig_instances
    Jobs ran on MIG instances of the node, and telemetry shows its full GPUs only.
none
    No job was allocated the device.
"""

JOB_SEPARATOR = ","
"""Separator between the ids of jobs that share a device."""
TELEMETRY_DEVICES_WITH_KIND_SCHEMA = pl.Schema(
    {name: TELEMETRY_DEVICE_SCHEMA[name] for name in (*DEVICE_KEY, "profile")} | {"kind": pl.String()}
)
"""Devices that telemetry shows; ``kind`` is the profile of an instance, "" for a full GPU, null for a MIG-partitioned
GPU, whose instances several jobs may have.
"""
ALLOCATION_SPAN_SCHEMA = pl.Schema(
    {"node": pl.String(), "kind": pl.String(), "at": UTC_TIME_DTYPE, "holder": pl.String(), "evidence": pl.String()}
)
"""Allocation of the devices of a node and kind: from ``at`` until the next row, ``holder`` is the job, by
``evidence``."""
ALLOCATED_COUNT_SCHEMA = pl.Schema(
    {"node": pl.String(), "kind": pl.String(), "at": UTC_TIME_DTYPE, "job_id": pl.String(), "count": pl.Float64()}
    | {"on_instances": pl.Boolean()}
)
"""Number (``count``) of devices of a kind on a node that are allocated to a job from the instant ``at`` on;
``on_instances`` if it is the share of full GPUs that its MIG instances are, as telemetry shows full GPUs only."""

FAR_FUTURE_EXPR = pl.datetime(2200, 1, 1, time_unit="us", time_zone="UTC")
"""Instant that stands for the end of jobs that still run."""
DEVICE_COUNT_TOLERANCE = 1e-9
"""Largest rounding error when numbers of devices are compared."""


@dataclass(frozen=True, eq=False)
class DeviceAllocations:
    """Jobs that were allocated the devices (full GPUs, MIG instances) of telemetry, over time.

    - ``devices``: Devices of telemetry, with columns :data:`TELEMETRY_DEVICES_WITH_KIND_SCHEMA`.
    - ``spans``: Allocations, with columns :data:`ALLOCATION_SPAN_SCHEMA` and node names of the telemetry.
    - ``names``: Other names of jobs, with columns ``name`` and ``job_id``.
    """

    devices: pl.DataFrame
    spans: pl.DataFrame
    names: pl.DataFrame

    def assign_jobs(self, samples: pl.LazyFrame) -> pl.LazyFrame:
        """Add to samples the job that was allocated their device, where it is known, and the evidence for it.

        A job that the source names is kept, under its name in the list of jobs.
        """
        columns = samples.collect_schema().names()
        stated = pl.col("job_id").is_not_null()
        joined = (
            samples.join(
                self.devices.lazy().select(*DEVICE_KEY, "kind"), on=DEVICE_KEY, how="left", nulls_equal=True,
                maintain_order="left",
            )
            .join_asof(
                self.spans.lazy().sort("at"), left_on="time", right_on="at", by=["node", "kind"],
                strategy="backward", check_sortedness=False,
            )
            .join(
                self.names.lazy().unique("name").rename({"job_id": "job_named"}), left_on="job_id",
                right_on="name", how="left", maintain_order="left",
            )
        )  # fmt: skip
        # A GPU beside its instances is allocated to no single job.
        without_span = pl.when(pl.col("kind").is_null()).then(pl.lit(TOGETHER_JOB)).otherwise(pl.lit(NO_JOB))
        return joined.with_columns(
            job_id=pl.when(stated).then(pl.coalesce("job_named", "job_id")).otherwise("holder"),
            job_evidence=pl.when(stated & pl.col("job_id").str.contains(JOB_SEPARATOR, literal=True))
            .then(pl.lit(SHARED_JOB))
            .when(stated)
            .then(pl.lit(STATED_JOB))
            .otherwise(pl.coalesce("evidence", without_span)),
        ).select(*columns)


def split_shared_samples(samples: pl.DataFrame) -> pl.DataFrame:
    """Split samples of shared devices: one row for each job, with its share of the sample as ``part``.

    Examples
    --------
    >>> samples = pl.DataFrame({"job_id": ["1", "2,3"], "job_evidence": ["stated", "shared"]})
    >>> split_shared_samples(samples).select("job_id", "part").rows()
    [('1', 1.0), ('2', 0.5), ('3', 0.5)]
    """
    is_shared = pl.lit(value=False)
    if "job_evidence" in samples.columns:
        is_shared = (pl.col("job_evidence") == SHARED_JOB).fill_null(value=False)
    unshared = samples.filter(~is_shared).with_columns(part=pl.lit(1.0))
    if unshared.height == samples.height:
        return unshared
    jobs = pl.col("job_id").str.split(JOB_SEPARATOR)
    shared = samples.filter(is_shared).with_columns(job_id=jobs, part=1 / jobs.list.len())
    return pl.concat([unshared, shared.explode("job_id")])


def device_kind_expr() -> pl.Expr:
    """Return an expression for the kind of each device: MIG profile, "" for a full GPU, null for a partitioned GPU.

    It is for tables with a row for every device of a node.
    """
    is_partitioned = pl.col("instance").is_null() & pl.col("instance").is_not_null().any().over("node", "gpu")
    own_kind = pl.when(pl.col("instance").is_null()).then(pl.lit("")).otherwise("profile")
    return pl.when(~is_partitioned).then(own_kind)


def find_devices(samples: pl.LazyFrame) -> pl.DataFrame:
    """Find the devices that occur in samples: columns :data:`TELEMETRY_DEVICES_WITH_KIND_SCHEMA`.

    Examples
    --------
    >>> seen = {"node": "n1", "gpu": [0, 1, 1], "instance": [None, None, 7], "profile": [None, None, "1g.10gb"]}
    >>> find_devices(pl.LazyFrame(seen))["kind"].to_list()
    ['', None, '1g.10gb']
    """
    return (
        samples.group_by(DEVICE_KEY)
        .agg(pl.col("profile").drop_nulls().last())
        .collect(engine="streaming")
        .with_columns(kind=device_kind_expr())
        .sort(DEVICE_KEY)
        .select(TELEMETRY_DEVICES_WITH_KIND_SCHEMA.names())
        .cast(TELEMETRY_DEVICES_WITH_KIND_SCHEMA)
    )


def find_shared_names(samples: pl.LazyFrame, names: pl.DataFrame | None) -> pl.DataFrame:
    """Map job names of samples that join several jobs to the joined ids of these jobs: columns ``name``, ``job_id``.

    Examples
    --------
    >>> names = pl.DataFrame({"name": ["ns/a-0"], "job_id": ["ns/a"]})
    >>> find_shared_names(pl.LazyFrame({"job_id": ["ns/a-0,ns/b", "ns/c"]}), names).rows()
    [('ns/a-0,ns/b', 'ns/a,ns/b')]
    """
    has_several = pl.col("job_id").str.contains(JOB_SEPARATOR, literal=True)
    shared_ids = samples.select("job_id").filter(has_several).unique().collect(engine="streaming")["job_id"].sort()
    job_by_name = {} if names is None else dict(names.unique("name").select("name", "job_id").iter_rows())
    jobs = [
        JOB_SEPARATOR.join(sorted({job_by_name.get(name, name) for name in text.split(JOB_SEPARATOR)}))
        for text in shared_ids
    ]
    return pl.DataFrame({"name": shared_ids, "job_id": pl.Series(jobs, dtype=pl.String)})


def find_allocations(
    devices: pl.DataFrame, jobs: pl.DataFrame, names: pl.DataFrame | None = None, until: datetime | None = None
) -> DeviceAllocations:
    """Find which jobs were allocated the devices of telemetry.

    A job alone on a node that requested devices of a kind (instances of a profile, or full GPUs), and as many as there
    are, has each of them. A partitioned GPU belongs to the jobs of its instances. Otherwise the list of jobs, which
    names no device, cannot tell which of them a job has.

    Parameters
    ----------
    devices : polars.DataFrame
        Result of :func:`find_devices`.
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    names : polars.DataFrame, optional
        ``name``, ``job_id``: other names of jobs.
    until : datetime, optional
        End of the observation, up to which running jobs count [UTC].

    Returns
    -------
    DeviceAllocations
        Allocations over time.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> noon, one = (datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (12, 13))
    >>> seen = pl.LazyFrame({"node": "n1.site", "gpu": [0], "instance": None, "profile": None},
    ...                     schema_overrides={"instance": pl.Int32, "profile": pl.String})
    >>> jobs = pl.DataFrame({"job_id": "77", "start_time": [noon], "end_time": one, "gpus": 1.0,
    ...     "instances": None, "node_list": "n1", "profile_requested": None},
    ...     schema_overrides={"profile_requested": pl.String, "instances": pl.Int32})
    >>> find_allocations(find_devices(seen), jobs).spans.select("node", "holder", "evidence").rows()
    [('n1.site', '77', 'whole_node'), ('n1.site', None, 'none')]
    """
    counts = devices.drop_nulls("kind").group_by("node", "kind").agg(devices=pl.len())
    on_gpus = ~pl.col("on_instances")
    groups = (
        count_devices_on_nodes(jobs, devices, until)
        .group_by("node", "kind", "at")
        .agg(
            jobs=on_gpus.sum(),
            count=pl.col("count").filter(on_gpus).sum(),
            one=pl.col("job_id").filter(on_gpus).first(),
            on_instances=pl.col("on_instances").any(),
        )
    )
    is_certain = (pl.col("jobs") == 1) & (pl.col("count") + DEVICE_COUNT_TOLERANCE >= pl.col("devices"))
    spans = (
        groups.join(counts, on=["node", "kind"])
        .with_columns(
            holder=pl.when(is_certain).then("one"),
            evidence=pl.when(pl.col("jobs") == 0)
            .then(pl.when("on_instances").then(pl.lit(INSTANCE_JOBS)).otherwise(pl.lit(NO_JOB)))
            .when(is_certain)
            .then(pl.lit(WHOLE_NODE_JOB))
            .otherwise(pl.lit(TOGETHER_JOB)),
        )
        .select(ALLOCATION_SPAN_SCHEMA.names())
        .cast(ALLOCATION_SPAN_SCHEMA)
        .sort("node", "kind", "at")
    )
    aliases = pl.DataFrame(schema={"name": pl.String, "job_id": pl.String}) if names is None else names
    return DeviceAllocations(devices, spans, aliases)


def count_devices_on_nodes(jobs: pl.DataFrame, devices: pl.DataFrame, until: datetime | None = None) -> pl.DataFrame:
    """Count the devices allocated to each job, on nodes and of kinds that telemetry shows, at each change of them.

    MIG instances of a kind that telemetry does not show count as their share of full GPUs.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    devices : polars.DataFrame
        ``node`` (named as in telemetry) and ``kind`` of the devices that telemetry shows.
    until : datetime, optional
        End of the observation, up to which running jobs count [UTC].

    Returns
    -------
    polars.DataFrame
        Columns :data:`ALLOCATED_COUNT_SCHEMA`, with nodes named as in telemetry.
    """
    plain_jobs = jobs.with_columns(pl.col("job_id", "node_list", "profile_requested").cast(pl.String))
    job_nodes = expand_unique_node_lists(plain_jobs).explode("node").drop_nulls("node")
    node_pairs = _match_node_names(devices["node"].unique(), job_nodes["node"].unique())
    # Jobs without telemetry on any of their nodes need no join.
    observed_lists = job_nodes.join(node_pairs, on="node", how="semi")["node_list"].unique()
    end_if_open = (FAR_FUTURE_EXPR if until is None else pl.lit(until)).cast(UTC_TIME_DTYPE)
    counted = plain_jobs.filter(
        pl.col("start_time").is_not_null(), pl.col("node_list").is_in(observed_lists.implode())
    ).select(
        "job_id",
        "node_list",
        kind=pl.col("profile_requested").fill_null(""),
        begin="start_time",
        end=pl.coalesce("end_time", pl.max_horizontal("start_time", end_if_open)),
        # A job without a profile may still count MIG instances of several kinds: its devices are not known.
        gpus=pl.when(pl.col("profile_requested").is_null())
        .then("gpus")
        .otherwise(pl.coalesce(pl.col("instances").cast(pl.Float64), "gpus")),
        gpus_per_device=(pl.col("gpus") / pl.col("instances")).fill_null(1.0),
    )
    kinds = devices.select("node", "kind").unique()
    on_instances = (pl.col("kind") != "") & pl.col("is_observed").is_null()
    allocations = (
        spread_gpus_over_nodes(counted)
        .join(node_pairs, on="node")
        .drop("node")
        .rename({"seen": "node"})
        .join(kinds.with_columns(is_observed=True), on=["node", "kind"], how="left")
        .with_columns(
            on_instances=on_instances,
            kind=pl.when(on_instances).then(pl.lit("")).otherwise("kind"),
            count=pl.col("gpus") * pl.when(on_instances).then("gpus_per_device").otherwise(1.0),
        )
        .join(kinds, on=["node", "kind"], how="semi")
    )
    key = ["node", "kind", "at"]
    change_times = (
        pl.concat([allocations.select("node", "kind", at=name) for name in ("begin", "end")]).unique().sort(key)
    )
    change_points = change_times.with_row_index("place")
    members = (
        allocations.join(change_points.rename({"at": "begin", "place": "first"}), on=["node", "kind", "begin"])
        .join(change_points.rename({"at": "end", "place": "last"}), on=["node", "kind", "end"])
        .filter(pl.col("first") < pl.col("last"))
        .select("job_id", "count", "on_instances", place=pl.int_ranges("first", "last", dtype=pl.UInt32))
        .explode("place")
        .group_by("place", "job_id", "on_instances")
        .agg(pl.col("count").sum())
    )
    return (
        change_points.join(members, on="place", how="left")
        .sort("place", "job_id")
        .select(ALLOCATED_COUNT_SCHEMA.names())
    )


def short_node_name(node: pl.Expr) -> pl.Expr:
    """Return an expression for the name of a node without its domain: ``n1`` for ``n1.site.org``."""
    return node.str.extract(r"^([^.]+)", 1)


def _match_node_names(telemetry_nodes: pl.Series, job_nodes: pl.Series) -> pl.DataFrame:
    """Match node names of telemetry, ``seen``, with those of the list of jobs, ``node``, with or without domain."""
    telemetry_frame, job_frame = telemetry_nodes.to_frame("seen"), job_nodes.to_frame("node")
    equal_names = telemetry_frame.join(job_frame, left_on="seen", right_on="node").with_columns(node="seen")
    short_columns = short_node_name(pl.col("seen")).alias("part"), short_node_name(pl.col("node")).alias("part")
    unmatched_telemetry = telemetry_frame.join(equal_names, on="seen", how="anti").with_columns(short_columns[0])
    unmatched_jobs = job_frame.join(equal_names, on="node", how="anti").with_columns(short_columns[1])
    is_unique = pl.len().over("part") == 1
    short_matches = unmatched_telemetry.filter(is_unique).join(unmatched_jobs.filter(is_unique), on="part")
    return pl.concat([pairs.select("seen", "node") for pairs in (equal_names, short_matches)])


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
