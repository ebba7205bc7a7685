"""Join of telemetry to the jobs that were allocated each GPU or MIG instance.

Jobs on a device follow from the list of jobs and the devices of each node. They are computed when samples are read, so
that jobs imported later, or again, need no change of the stored samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import polars as pl

from gpuplanner.ingest.gpu_model_resolution_and_node_lists import expand_unique_node_lists, spread_gpus_over_nodes
from gpuplanner.ingest.source_fields import UTC_TIME_DTYPE
from gpuplanner.ingest.telemetry.metric_definitions import DEVICE_KEY, TELEMETRY_DEVICE_SCHEMA

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


def count_named_devices(samples: pl.LazyFrame, names: pl.DataFrame | None = None) -> pl.DataFrame:
    """Count the devices on which telemetry names each job: columns ``node``, ``kind``, ``job_id``, ``named``.

    Parameters
    ----------
    samples : polars.LazyFrame
        ``node``, ``gpu``, ``instance``, ``kind`` and ``job_id``, where telemetry names it; several joined by ``,``.
    names : polars.DataFrame, optional
        ``name``, ``job_id``: other names of jobs.

    Examples
    --------
    >>> seen = pl.LazyFrame({"node": "n1", "gpu": [0, 1], "instance": None, "kind": "", "job_id": ["a,b", "a"]})
    >>> count_named_devices(seen).sort("job_id").rows()
    [('n1', '', 'a', 2), ('n1', '', 'b', 1)]
    """
    job = pl.col("job_id").cast(pl.String)
    named = samples.select(*DEVICE_KEY, "kind", job).drop_nulls("job_id").unique().collect(engine="streaming")
    if names is not None:
        listed = names.unique("name").select("name", listed="job_id")
        named = named.join(listed, left_on="job_id", right_on="name", how="left")
        named = named.with_columns(job_id=pl.coalesce("listed", "job_id")).drop("listed")
    of_jobs = named.with_columns(pl.col("job_id").str.split(JOB_SEPARATOR)).explode("job_id").unique()
    return of_jobs.group_by("node", "kind", "job_id", maintain_order=True).agg(named=pl.len())


def find_allocations(
    devices: pl.DataFrame,
    jobs: pl.DataFrame,
    names: pl.DataFrame | None = None,
    until: datetime | None = None,
    named: pl.DataFrame | None = None,
) -> DeviceAllocations:
    """Find which jobs were allocated the devices of telemetry that name no job.

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
    named : polars.DataFrame, optional
        Result of :func:`count_named_devices`.

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
        count_devices_on_nodes(jobs, devices, named, until)
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


def count_devices_on_nodes(
    jobs: pl.DataFrame, devices: pl.DataFrame, named: pl.DataFrame | None = None, until: datetime | None = None
) -> pl.DataFrame:
    """Count the devices that name no job and are allocated to each job from an instant on.

    Only nodes and kinds of device that telemetry shows count; MIG instances of another kind count as their share of
    full GPUs. A job that telemetry names on as many devices of a node as it was allocated there has none of the
    others: an unlabelled GPU beside it is free, or of another job.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    devices : polars.DataFrame
        ``node`` (named as in telemetry) and ``kind`` of the devices of telemetry.
    named : polars.DataFrame, optional
        Result of :func:`count_named_devices`.
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
    instances = pl.col("instances").cast(pl.Float64)
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
        gpus=pl.coalesce(pl.when(pl.col("profile_requested").is_not_null()).then(instances), "gpus"),
        gpus_per_device=(pl.col("gpus") / instances).fill_null(1.0),
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
    change_times = pl.concat([allocations.select("node", "kind", at=name) for name in ("begin", "end")])
    change_points = change_times.unique().sort(key).with_row_index("place")
    members = (
        allocations.join(change_points.rename({"at": "begin", "place": "first"}), on=["node", "kind", "begin"])
        .join(change_points.rename({"at": "end", "place": "last"}), on=["node", "kind", "end"])
        .filter(pl.col("first") < pl.col("last"))
        .select("job_id", "count", "on_instances", place=pl.int_ranges("first", "last", dtype=pl.UInt32))
        .explode("place")
        .group_by("place", "job_id", "on_instances")
        .agg(pl.col("count").sum())
    )
    counts = change_points.join(members, on="place", how="left").sort("place", "job_id")
    if named is not None:
        left = pl.col("count") - pl.col("named").fill_null(0)
        is_left = pl.col("job_id").is_not_null() & (left > DEVICE_COUNT_TOLERANCE)
        counts = counts.join(named, on=["node", "kind", "job_id"], how="left").with_columns(
            pl.when(is_left).then(pl.col("job_id", "on_instances")), count=pl.when(is_left).then(left)
        )
    return counts.select(ALLOCATED_COUNT_SCHEMA.names())


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
