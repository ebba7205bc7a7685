"""Telemetry joined to the jobs that were allocated each GPU or instance.

What a device was used for follows from the list of jobs and from which devices a node has; so it is worked out when
samples are read, and jobs that come later, or are told again, need no sample to be written anew.

Spans are sorted one after the other, since a sort of all rows would hold them all: that of polars' streaming engine
takes about 100 bytes a row (839 MiB for eight million rows of seven columns), its ``unique`` half of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import polars as pl

from gpuplanner.ingest.gpu_model_resolution import on_nodes
from gpuplanner.ingest.source_fields import INSTANT
from gpuplanner.ingest.telemetry.metric_definitions import DEVICE, DEVICE_KEY, QUANTITIES
from gpuplanner.ingest.telemetry.sample_buffer import (
    HOLDER,
    MINUTE_US,
    Codes,
    Columns,
    Gathering,
    ranked_devices,
    run_starts,
)

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
DEVICES = pl.Schema({name: DEVICE[name] for name in (*DEVICE_KEY, "profile")} | {"kind": pl.String()})
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
    last = (ALWAYS if until is None else pl.lit(until)).cast(INSTANT)
    counted = jobs.filter(pl.col("start_time").is_not_null(), pl.col("node_list").is_not_null()).select(
        "job_id",
        "node_list",
        kind=pl.col("profile_requested").fill_null(""),
        begin="start_time",
        end=pl.coalesce("end_time", pl.max_horizontal("start_time", last)),
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
    jobs = [BETWEEN_JOBS.join(sorted({known.get(one, one) for one in text.split(BETWEEN_JOBS)})) for text in together]
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
    alone = left.filter(once).join(right.filter(once), on="part")
    return pl.concat([each.select("seen", "node") for each in (alike, alone)])


WINDOW_ROWS = 1 << 18
"""Rows that are sorted at a time; more only where one minute has more. Longer columns cost more memory, each of its
pages asked for anew."""

AGAIN = "the same reading again"
CONTRADICTION = "another value for the same device and time as an earlier row"


@dataclass
class Joiner:
    """Brings the rows of devices and times together, one span after the other.

    - ``gathered``: All rows.
    - ``within_s``: A collector may read the metrics of one round one after the other. Readings of a device follow
      each other into one sample while they are not further apart than this and no metric comes twice; where one does,
      the source samples faster than that, and only readings of one instant belong together.
    - ``many``: A device and time may have several rows, of which the first counts, and the others are no repetitions.
    - ``window_rows``: Rows to sort at a time.
    - ``again``, ``contradicting``: Numbers and lines of the rows that came twice, with the same value and with
      another one.
    """

    gathered: Gathering
    within_s: float = 0.0
    many: bool = False
    window_rows: int = WINDOW_ROWS
    again: list[np.ndarray] = field(default_factory=list)
    contradicting: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.devices, self.rank_of_device = ranked_devices(self.gathered.devices.rows)
        self._ranks = np.empty(0, np.int64)
        self._held: Columns | None = None
        self._broken: dict[int, int] = {}

    def ranks(self, who: np.ndarray) -> np.ndarray:
        """Place of the device of each row in the order of node, GPU and instance."""
        holders = self.gathered.holders.rows
        codes = [self.gathered.devices.code(held[:3]) for held in holders[len(self._ranks) :]]
        if codes:
            self._ranks = np.concatenate((self._ranks, self.rank_of_device[codes]))
        ranks: np.ndarray = self._ranks[who]
        return ranks

    def samples(self) -> Iterator[tuple[int, Columns]]:
        """Month (months since year 0) and rows of successive spans, sorted by time and device.

        Columns ``time``, ``who``, ``rank``, ``id``, ``line`` and what there is of the quantities.
        """
        waiting: list[tuple[int, int, int, Columns]] = []
        for month, low, high in self._plan():
            cut = self._joined if self.gathered.metrics is not None else self._counted_once
            rows = cut(list(self.gathered.spill.between(low, high)), high)
            early = rows["time"] < low
            if early.any():  # rounds that had begun before this span
                for place, (before, first, last, known) in enumerate(waiting):
                    mine = early & (rows["time"] >= first) & (rows["time"] < last)
                    if mine.any():
                        late = {name: values[mine] for name, values in rows.items()}
                        waiting[place] = (before, first, last, _sorted(_below([known, late])))
                rows = {name: values[~early] for name, values in rows.items()}
            waiting.append((month, low, high, rows))
            open_from = high if self._held is None else int(self._held["time"].min())
            while waiting and waiting[0][2] <= open_from:
                before, _, _, known = waiting.pop(0)
                yield before, known
        for month, _, _, rows in waiting:
            yield month, rows

    def _plan(self) -> Iterator[tuple[int, int, int]]:
        """Month, begin and end of spans with not too many rows each."""
        minutes = sorted(self.gathered.minutes)
        rows, begin, month = 0, None, None
        for minute in minutes:
            here = _month(minute)
            is_full = rows + self.gathered.minutes[minute] > self.window_rows
            if begin is not None and (here != month or is_full):
                yield month or 0, begin * MINUTE_US, minute * MINUTE_US
                begin, rows = None, 0
            if begin is None:
                begin, month = minute, here
            rows += self.gathered.minutes[minute]
        if begin is not None:
            yield month or 0, begin * MINUTE_US, (minutes[-1] + 1) * MINUTE_US

    def _counted_once(self, parts: Sequence[Columns], high: int) -> Columns:
        """Rows of a source with a row per sample."""
        rows = _below(parts)
        rows["rank"] = self.ranks(rows["who"])
        rows = _sorted(rows)
        later = ~run_starts(rows["time"], rows["rank"])
        if later.any():
            first = np.maximum.accumulate(np.where(later, 0, np.arange(len(later))))
            rows = self._without(rows, later, first, [name for name in QUANTITIES if name in rows])
        return rows

    def _without(self, rows: Columns, later: np.ndarray, first: np.ndarray, values: Sequence[str]) -> Columns:
        """Leave out rows that came before; tell those with the values of the first from those with others."""
        if not self.many:
            doubled = np.flatnonzero(later)
            same = np.ones(len(doubled), bool)
            for name in values:
                one, other = rows[name][doubled], rows[name][first[doubled]]
                same &= (one == other) | (np.isnan(one) & np.isnan(other))
            places = np.stack((rows["id"], rows["line"].astype(np.int64)))[:, doubled]
            self.again.append(places[:, same])
            self.contradicting.append(places[:, ~same])
        return {name: column[~later] for name, column in rows.items()}

    def _joined(self, parts: Sequence[Columns], high: int) -> Columns:
        """Rows of a source with a row per metric; rounds that may go on are held for the next span."""
        rows = _below(parts)
        rows["rank"] = self.ranks(rows["who"])
        rows = _sorted(rows, "rank", "time")
        later, first = _come_twice(rows)
        if later.any():
            jobs = self._jobs(rows["who"])
            shared = (jobs != jobs[first]) & (jobs > 0) & (jobs[first] > 0)
            rows = self._without(rows, later & ~shared, first, ["value"])
        if self._held is not None:
            rows = _sorted(_below([self._held, rows]), "rank", "time")
            self._held = None
        at = rows["time"]
        if self.within_s:
            rows, at = self._rounds(rows, high)
        return self._wide(rows, at)

    def _jobs(self, who: np.ndarray) -> np.ndarray:
        """Number of the job that each row names, 0: none. Series of one GPU with several jobs are no repetitions."""
        numbers: dict[object, int] = {None: 0}
        job = HOLDER.index("job_id")
        of_holder = [numbers.setdefault(held[job], len(numbers)) for held in self.gathered.holders.rows]
        jobs: np.ndarray = np.array(of_holder, np.int64)[who]
        return jobs

    def _rounds(self, rows: Columns, high: int) -> tuple[Columns, np.ndarray]:
        """Time of the sample that each reading belongs to; readings that are held are left out."""
        time, rank, count = rows["time"], rows["rank"], len(rows["time"])
        if not count:
            return rows, time
        within_us = round(self.within_s * 1e6)
        head = np.ones(count, bool)
        head[1:] = (rank[1:] != rank[:-1]) | (time[1:] - time[:-1] > within_us)
        begins = np.flatnonzero(head)
        run = np.cumsum(head) - 1
        once = _all_different(run, rows["metric"], len(begins))
        first_rank = rank[begins]
        for place in np.flatnonzero(np.isin(first_rank, list(self._broken))).tolist() if self._broken else ():
            row = int(begins[place])
            last = self._broken[int(rank[row])]
            opens = place == 0 or first_rank[place - 1] != first_rank[place]
            if opens and time[row] - last <= within_us:
                once[place] = False
        ends = np.append(begins[1:], count) - 1
        goes_on = time[ends] >= high - within_us
        self._broken = {int(rank[end]): int(time[end]) for end in ends[goes_on & ~once].tolist()}
        at = np.where(once[run], time[begins][run], time)
        held = (goes_on & once)[run]
        if held.any() and high <= max(self.gathered.minutes) * MINUTE_US:
            self._held = {name: values[held] for name, values in rows.items()}
            return {name: values[~held] for name, values in rows.items()}, at[~held]
        return rows, at

    def _wide(self, rows: Columns, at: np.ndarray) -> Columns:
        """One row per device and sample time, with the first value of each quantity."""
        rank = rows["rank"]
        head = run_starts(rank, at)
        group = np.cumsum(head) - 1
        groups = int(head.sum())
        wide = {name: rows[name][head] for name in ("id", "line", "rank")} | {"time": at[head]}
        wide["who"] = self._holders(rows["who"], head, group)
        metrics = self.gathered.metrics or {}
        names = [str(name) for (name,) in self.gathered.names.rows]
        by_quantity: dict[str, list[int]] = {}
        for code, name in enumerate(names):
            if name in metrics:
                by_quantity.setdefault(metrics[name].quantity, []).append(code)
        given = ~np.isnan(rows["value"])
        for quantity in QUANTITIES:
            codes = by_quantity.get(quantity)
            if not codes:
                continue
            mine = given & (rows["metric"] == codes[0] if len(codes) == 1 else np.isin(rows["metric"], codes))
            places = np.flatnonzero(mine)[::-1]  # so that the first is written last
            values = np.full(groups, np.nan)
            values[group[places]] = rows["value"][places]
            if len(places):
                wide[quantity] = values
        return _sorted(wide)

    def _holders(self, who: np.ndarray, head: np.ndarray, group: np.ndarray) -> np.ndarray:
        """Holder of each group: of each fact, the first that a reading of the group states, and all of the jobs."""
        first: np.ndarray = who[head]
        mixed = np.unique(group[who != first[group]])
        if not len(mixed):
            return first
        held = self.gathered.holders
        rows = np.flatnonzero(np.isin(group, mixed))
        facts = holders_table(held)[who[rows]]
        table = (
            facts.with_columns(group=group[rows])
            .group_by("group", maintain_order=True)
            .agg(
                pl.col(*HOLDER[:3]).first(),
                pl.col("profile", "board", "mig_enabled").drop_nulls().first(),
                pl.col("job_id").drop_nulls().unique().sort().str.join(BETWEEN_JOBS),
            )
            .with_columns(pl.col("job_id").replace("", None))
        )
        first = first.copy()
        first[table["group"].to_numpy()] = held.of(table)
        return first


def holders_table(codes: Codes) -> pl.DataFrame:
    """Holders by number."""
    types = DEVICE | {"mig_enabled": pl.Boolean()}
    return pl.DataFrame(codes.rows, schema={name: types[name] for name in HOLDER}, orient="row")


def _month(minute: int) -> int:
    at = datetime.fromtimestamp(minute * 60, UTC)
    return at.year * 12 + at.month - 1


def _below(parts: Sequence[Columns]) -> Columns:
    """Rows below each other; a quantity that a part does not have is NaN in it."""
    if len(parts) == 1:
        return dict(parts[0])
    rows: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        values = [part[name] if name in part else np.full(len(part["time"]), np.nan) for part in parts]
        rows[name] = np.concatenate(values)
    return rows


def _sorted(rows: Columns, first: str = "time", then: str = "rank") -> Columns:
    """Rows by two of their columns; rows of one device and time stay as they follow each other."""
    if len(rows[first]) < 2:
        return rows
    major, minor = rows[first] - rows[first].min(), rows[then] - rows[then].min()
    width = int(minor.max()) + 1
    if int(major.max()) + 1 < 2**62 // width:
        key = major * width + minor
        if (key[1:] >= key[:-1]).all():
            return rows
        order = np.argsort(key, kind="stable")
    else:
        order = np.lexsort((minor, major))
    return {name: values[order] for name, values in rows.items()}


def _come_twice(rows: Columns) -> tuple[np.ndarray, np.ndarray]:
    """Readings, by device and time, whose metric was read before at that time; and the first such reading."""
    time, rank, count = rows["time"], rows["rank"], len(rows["time"])
    pairs = (np.cumsum(run_starts(rank, time)) << 16) | rows["metric"]
    order = np.argsort(pairs, kind="stable")
    again = ~run_starts(pairs[order])
    first, later = np.arange(count), np.zeros(count, bool)
    if again.any():
        later[order] = again
        first[order] = order[np.maximum.accumulate(np.where(again, 0, np.arange(count)))]
    return later, first


def _all_different(run: np.ndarray, metric: np.ndarray, runs: int) -> np.ndarray:
    """Whether no metric comes twice, of each run."""
    pairs = (run.astype(np.int64) << 16) | metric
    pairs.sort(kind="stable")
    twice = pairs[1:][pairs[1:] == pairs[:-1]] >> 16
    different = np.ones(runs, bool)
    different[twice] = False
    return different
