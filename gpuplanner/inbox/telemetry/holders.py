"""Which job held a GPU or MIG instance when it was sampled.

What a device was used for follows from the list of jobs and from which devices a node has; so it is worked out when
samples are read, and jobs that come later, or are told again, need no sample to be written anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import polars as pl

from gpuplanner.inbox.core.node_names import on_nodes
from gpuplanner.inbox.core.times import INSTANT
from gpuplanner.inbox.telemetry.readers.device_key import DEVICE_KEY

STATED, SHARED, WHOLE_NODE, TOGETHER, NO_JOB = "stated", "shared", "whole_node", "together", "none"
EVIDENCE = (STATED, SHARED, WHOLE_NODE, TOGETHER, NO_JOB)
"""How the job of a sample is known.

stated
    The source names it: by job id, or by pod and namespace.
shared
    The source names several, joined by ``,``: they share the device by time-slicing or MPS.
whole_node
    The one job on the node then held all its devices of that kind, as many as telemetry shows.
together
    Jobs of the node held some of these devices, and nobody can tell which: what was seen is evidence of all of them.
none
    Nobody held it.
"""

BETWEEN_JOBS = ","
"""What stands between the jobs of a device that several share."""
DEVICES = pl.Schema(
    {
        "node": pl.String(),
        "gpu": pl.Int32(),
        "instance": pl.Int32(),
        "profile": pl.String(),
        "kind": pl.String(),
    }
)
"""Devices that telemetry shows; ``kind`` is the profile of an instance, "" for a whole GPU, null for a GPU beside
its instances, which several may hold."""
SPANS = pl.Schema(
    {"node": pl.String(), "kind": pl.String(), "at": INSTANT, "holder": pl.String(), "evidence": pl.String()}
)
"""From ``at`` until the next row of the same node and kind, its devices are held by ``holder``, or as told."""
MEMBERS = pl.Schema(
    {"node": pl.String(), "kind": pl.String(), "at": INSTANT, "job_id": pl.String(), "count": pl.Float64()}
)
"""Jobs that hold ``count`` devices of that kind on the node from ``at`` on."""

ALWAYS = pl.datetime(2200, 1, 1, time_unit="us", time_zone="UTC")
ENOUGH = 1e-9


@dataclass(frozen=True, eq=False)
class Holders:
    """What is known of who held the devices of telemetry.

    - ``devices``: Columns :data:`DEVICES`.
    - ``spans``: Columns :data:`SPANS`, in the node names of the telemetry.
    - ``names``: ``name``, ``job_id``: other names of jobs.
    """

    devices: pl.DataFrame
    spans: pl.DataFrame
    names: pl.DataFrame

    def give_jobs(self, samples: pl.LazyFrame) -> pl.LazyFrame:
        """Samples with the job that held each device, where it is known, and how.

        A job that the source named is kept, under the name that the list of jobs has for it.
        """
        columns = samples.collect_schema().names()
        stated = pl.col("job_id").is_not_null()
        placed = (
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
        # Of a GPU beside its instances nobody is the one holder.
        unheld = pl.when(pl.col("kind").is_null()).then(pl.lit(TOGETHER)).otherwise(pl.lit(NO_JOB))
        return placed.with_columns(
            job_id=pl.when(stated).then(pl.coalesce("job_named", "job_id")).otherwise("holder"),
            job_evidence=pl.when(stated & pl.col("job_id").str.contains(BETWEEN_JOBS, literal=True))
            .then(pl.lit(SHARED))
            .when(stated)
            .then(pl.lit(STATED))
            .otherwise(pl.coalesce("evidence", unheld)),
        ).select(*columns)


def each_holder(samples: pl.DataFrame) -> pl.DataFrame:
    """Samples with one job each: a sample of a device that several jobs share stands once for each, as its ``part``.

    Examples
    --------
    >>> samples = pl.DataFrame({"job_id": ["1", "2,3"], "job_evidence": ["stated", "shared"]})
    >>> each_holder(samples).select("job_id", "part").rows()
    [('1', 1.0), ('2', 0.5), ('3', 0.5)]
    """
    shared = pl.lit(value=False)
    if "job_evidence" in samples.columns:
        shared = (pl.col("job_evidence") == SHARED).fill_null(value=False)
    alone = samples.filter(~shared).with_columns(part=pl.lit(1.0))
    if alone.height == samples.height:
        return alone
    jobs = pl.col("job_id").str.split(BETWEEN_JOBS)
    split = samples.filter(shared).with_columns(job_id=jobs, part=1 / jobs.list.len())
    return pl.concat([alone, split.explode("job_id")])


def kind_of_device() -> pl.Expr:
    """Kind of each device, as in :data:`DEVICES`, of rows that show all devices of their nodes."""
    cut = pl.col("instance").is_null() & pl.col("instance").is_not_null().any().over("node", "gpu")
    whole = pl.when(pl.col("instance").is_null()).then(pl.lit("")).otherwise("profile")
    return pl.when(~cut).then(whole)


def devices_of(samples: pl.LazyFrame) -> pl.DataFrame:
    """Devices that samples show, and of which kind each is: columns :data:`DEVICES`.

    Examples
    --------
    >>> seen = {"node": "n1", "gpu": [0, 1, 1], "instance": [None, None, 7], "profile": [None, None, "1g.10gb"]}
    >>> devices_of(pl.LazyFrame(seen))["kind"].to_list()
    ['', None, '1g.10gb']
    """
    return (
        samples.group_by(DEVICE_KEY)
        .agg(pl.col("profile").drop_nulls().last())
        .collect(engine="streaming")
        .with_columns(kind=kind_of_device())
        .sort(DEVICE_KEY)
        .select(DEVICES.names())
        .cast(DEVICES)
    )


def held_devices(jobs: pl.DataFrame, until: datetime | None = None) -> pl.DataFrame:
    """Which jobs held how many devices of which kind on each node, from each instant at which that changed."""
    counted = jobs.filter(pl.col("start_time").is_not_null(), pl.col("node_list").is_not_null()).select(
        "job_id",
        "node_list",
        kind=pl.col("profile_requested").fill_null(""),
        begin="start_time",
        end=pl.coalesce("end_time", pl.max_horizontal("start_time", _last(until))),
        # A job without a profile may still count MIG instances of several kinds: its devices are not known.
        gpus=pl.when(pl.col("profile_requested").is_null())
        .then("gpus")
        .otherwise(pl.coalesce(pl.col("instances").cast(pl.Float64), "gpus")),
    )
    held = on_nodes(counted).drop_nulls("node").rename({"gpus": "count"})
    key = ["node", "kind", "at"]
    ends = pl.concat([held.select("node", "kind", at=name) for name in ("begin", "end")]).unique().sort(key)
    numbered = ends.with_row_index("place")
    members = (
        held.join(numbered.rename({"at": "begin", "place": "first"}), on=["node", "kind", "begin"])
        .join(numbered.rename({"at": "end", "place": "last"}), on=["node", "kind", "end"])
        .filter(pl.col("first") < pl.col("last"))
        .select("job_id", "count", place=pl.int_ranges("first", "last", dtype=pl.UInt32))
        .explode("place")
        .group_by("place", "job_id")
        .agg(pl.col("count").sum())
    )
    return numbered.join(members, on="place", how="left").sort("place", "job_id").select(MEMBERS.names())


def shared_names(samples: pl.LazyFrame, names: pl.DataFrame | None) -> pl.DataFrame:
    """Names under which jobs that share devices stand in samples, as other names of jobs are: ``name, job_id``.

    Examples
    --------
    >>> names = pl.DataFrame({"name": ["ns/a-0"], "job_id": ["ns/a"]})
    >>> shared_names(pl.LazyFrame({"job_id": ["ns/a-0,ns/b", "ns/c"]}), names).rows()
    [('ns/a-0,ns/b', 'ns/a,ns/b')]
    """
    several = pl.col("job_id").str.contains(BETWEEN_JOBS, literal=True)
    together = samples.select("job_id").filter(several).unique().collect(engine="streaming")["job_id"].sort()
    known = {} if names is None else dict(names.unique("name").select("name", "job_id").iter_rows())
    jobs = [
        BETWEEN_JOBS.join(sorted({known.get(one, one) for one in text.split(BETWEEN_JOBS)}))
        for text in together
    ]
    return pl.DataFrame({"name": together, "job_id": pl.Series(jobs, dtype=pl.String)})


def find_holders(
    devices: pl.DataFrame,
    jobs: pl.DataFrame,
    names: pl.DataFrame | None = None,
    until: datetime | None = None,
) -> Holders:
    """Work out who held the devices of telemetry.

    Where one job alone ran on a node and asked for such devices (instances of that profile, or whole GPUs), and held
    as many as there are, it held each of them. A GPU that is cut is held by its instances' jobs. Otherwise the list
    of jobs, which names no device, cannot tell which of them a job held.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> noon, one = (datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (12, 13))
    >>> seen = pl.LazyFrame({"node": "n1.site", "gpu": [0], "instance": None, "profile": None},
    ...                     schema_overrides={"instance": pl.Int32, "profile": pl.String})
    >>> jobs = pl.DataFrame({"job_id": "77", "start_time": [noon], "end_time": one, "gpus": 1.0,
    ...     "instances": None, "node_list": "n1", "profile_requested": None},
    ...     schema_overrides={"profile_requested": pl.String, "instances": pl.Int32})
    >>> find_holders(devices_of(seen), jobs).spans.select("node", "holder", "evidence").rows()
    [('n1.site', '77', 'whole_node'), ('n1.site', None, 'none')]
    """
    counts = devices.drop_nulls("kind").group_by("node", "kind").agg(devices=pl.len())
    near = jobs.filter(_nodes_seen(jobs, devices["node"]))
    members = held_devices(near, until)
    known = _same_nodes(devices["node"].unique(), members["node"].unique())
    groups = members.group_by("node", "kind", "at").agg(
        jobs=pl.col("job_id").drop_nulls().len(), count=pl.col("count").sum(), one=pl.col("job_id").first()
    )
    sure = (pl.col("jobs") == 1) & (pl.col("count") + ENOUGH >= pl.col("devices"))
    spans = (
        groups.join(known, on="node")
        .drop("node")
        .rename({"seen": "node"})
        .join(counts, on=["node", "kind"])
        .with_columns(
            holder=pl.when(sure).then("one"),
            evidence=pl.when(pl.col("jobs") == 0)
            .then(pl.lit(NO_JOB))
            .when(sure)
            .then(pl.lit(WHOLE_NODE))
            .otherwise(pl.lit(TOGETHER)),
        )
        .select(SPANS.names())
        .cast(SPANS)
        .sort("node", "kind", "at")
    )
    aliases = pl.DataFrame(schema={"name": pl.String, "job_id": pl.String}) if names is None else names
    return Holders(devices, spans, aliases)


def members_on(jobs: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """Do what :func:`held_devices` does for some nodes and kinds of devices, in the node names of the telemetry."""
    plain = jobs.with_columns(pl.col("job_id", "node_list", "profile_requested").cast(pl.String))
    members = held_devices(plain.filter(_nodes_seen(plain, devices["node"])))
    known = _same_nodes(devices["node"].unique(), members["node"].unique())
    renamed = members.join(known, on="node").drop("node").rename({"seen": "node"})
    return renamed.join(devices, on=["node", "kind"], how="semi").select(MEMBERS.names())


def _last(until: datetime | None) -> pl.Expr:
    return (ALWAYS if until is None else pl.lit(until)).cast(INSTANT)


def first_part(node: pl.Expr) -> pl.Expr:
    """Name of a node without its domain."""
    return node.str.extract(r"^([^.]+)", 1)


def _nodes_seen(jobs: pl.DataFrame, nodes: pl.Series) -> pl.Series:
    """Jobs on nodes of which there is telemetry: others need not be looked at."""
    lists = on_nodes(jobs.select("node_list", "gpus").unique("node_list")).drop_nulls("node")
    parts = nodes.unique().to_frame("node").select(first_part(pl.col("node"))).to_series()
    here = lists.filter(first_part(pl.col("node")).is_in(parts.implode()))["node_list"].unique()
    return jobs["node_list"].is_in(here.implode()).fill_null(value=False)


def _same_nodes(seen: pl.Series, told: pl.Series) -> pl.DataFrame:
    """Names of nodes in telemetry, ``seen``, beside those of the same nodes in the list of jobs, ``node``."""
    one, other = seen.to_frame("seen"), told.to_frame("node")
    alike = one.join(other, left_on="seen", right_on="node").with_columns(node="seen")
    short = first_part(pl.col("seen")).alias("part"), first_part(pl.col("node")).alias("part")
    left = one.join(alike, on="seen", how="anti").with_columns(short[0])
    right = other.join(alike, on="node", how="anti").with_columns(short[1])
    once = pl.len().over("part") == 1
    return pl.concat(
        [
            alike.select("seen", "node"),
            left.filter(once).join(right.filter(once), on="part").select("seen", "node"),
        ]
    )
