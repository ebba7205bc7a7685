"""Jobs that contradict the others, set apart with a reason.

A row that is a job by its form can still spoil every sum: a submission in another century stretches the
observation, 100,000 GPUs raise the inferred fleet, two jobs on the same GPUs are more than was installed. Each is
marked in column ``quarantined`` with the rule that it broke, and reported with its GPU-hours.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

import numpy as np
import polars as pl

from gpuplanner.core.errors import TraceFormatError, examples
from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.core.step_functions import untimed
from gpuplanner.core.units import SECONDS_PER_HOUR, counted
from gpuplanner.hardware.catalog import MAX_GPUS_PER_NODE
from gpuplanner.ingest.gpu_model_resolution import nodes_of_lists, possible_boards
from gpuplanner.ingest.large_tables import LongTable
from gpuplanner.ingest.quality_report import Finding

ALONE = timedelta(days=365)
"""Time to all other jobs from which a few stand alone."""
FEW, FEW_SHARE = 3, 0.01
"""At most so many jobs, or that share of all, are a few; beyond, a gap is a gap of the record."""
OTHERS = 10
"""Fewer other jobs are no measure of what can be true."""
HUGE_GPUS, HUGE_FACTOR = 1000.0, 10.0
"""GPUs from which a job is looked at, and how many times what all others ever held at once it may ask for."""
ROUNDING_GPUS = 1e-6
CLOCKS_US = 60_000_000
"""Jobs on one node that overlap by up to a minute were timed by clocks that differ."""

FAR_AWAY = "more than a year away from all other jobs"
UNBELIEVABLE = f"more than {HUGE_FACTOR:g} times the peak of GPUs allocated to all other jobs"
BEYOND_INVENTORY = "requests more GPUs than the inventory has"
FULL_NODE = "started on a node whose GPUs were allocated to other jobs"
FULL_POOL = "started when other jobs were allocated all GPUs of the inventory"
RULES = (FAR_AWAY, UNBELIEVABLE, BEYOND_INVENTORY, FULL_NODE, FULL_POOL)
"""Why a job is in quarantine; the first rule that it breaks is named. Of several jobs that hold the same GPUs,
those that started last break the rule."""

QUARANTINED = "quarantined: "
"""How the lines of the quality report on them begin."""

_NEVER = np.iinfo(np.int64).max


def with_quarantine(jobs: pl.DataFrame, inventory: pl.DataFrame | None = None) -> pl.DataFrame:
    """Mark the jobs that cannot be true beside the others.

    Examples
    --------
    >>> from datetime import UTC
    >>> day = datetime(2026, 2, 2, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"gpus": [8.0, 8.0], "submit_time": day, "start_time": [day, day + timedelta(hours=1)],
    ...     "end_time": day + timedelta(hours=2), "state": "COMPLETED", "gpu_model": None, "node_list": "n1"})
    >>> nodes = {"node": ["n1"], "gpus": [8], "gpu_model": None, "installed": None, "retired": None}
    >>> with_quarantine(jobs, pl.DataFrame(nodes))["quarantined"].to_list()
    [None, 'started on a node whose GPUs were allocated to other jobs']
    """
    rule = pl.Series("quarantined", [None], pl.String).new_from_index(0, jobs.height)
    for name, broken in _broken(jobs.drop("row", strict=False).with_row_index("row"), inventory):
        rule = rule.scatter(broken, name) if len(broken) else rule
    return jobs.with_columns(rule)


LOOKED_AT = ("gpus", "submit_time", "start_time", "end_time", "state", "gpu_model", "node_list")
"""Columns of jobs that the rules look at."""


def quarantine_of(jobs: LongTable, inventory: pl.DataFrame | None) -> pl.DataFrame:
    """The jobs in pieces that :func:`with_quarantine` marks: ``place``, by which they are numbered, ``quarantined``."""
    days, huge = set[int](), False
    for part in jobs.tables(LOOKED_AT[:4]):
        instants = pl.max_horizontal("submit_time", "start_time", "end_time")
        for instant in (pl.col("submit_time"), instants):
            days.update(part.select(instant.dt.epoch("d").unique()).to_series().drop_nulls())
        huge |= bool((part["gpus"] > HUGE_GPUS).any())
    gap = max((late - early for early, late in itertools.pairwise(sorted(days))), default=0)
    if inventory is None and not huge and gap < ALONE.days:
        return pl.DataFrame(schema={"place": pl.UInt32, "quarantined": pl.String})
    whole = pl.concat(jobs.tables(["place", *LOOKED_AT]))
    return with_quarantine(whole, inventory).select("place", "quarantined").drop_nulls()


HELD_ON_NODES = (
    "gpus", "node_list", "gpu_model", "profile_requested", "instances", "start_time", "end_time", "state",
    "quarantined",
)  # fmt: skip
OTHER_LAYOUT = "; no GPU (?:has MIG disabled|has such an instance) today$"
OUTGROWN = "node that lists fewer GPUs than jobs were allocated on it"
UNLISTED = "nodes of jobs that today's list does not have"
OTHER_CLUSTER = "nodes of jobs of which the node list has none"


def proven_sizes(jobs: pl.DataFrame, inventory: pl.DataFrame) -> dict[str, int]:
    """GPUs of nodes on which jobs held more than the list has, up to the size of a server.

    A GPU that fell off the bus, or a node that was replaced, is missing in a list of today and not in its past. A
    server has as many GPUs as a node called alike, or the next power of two.

    Examples
    --------
    >>> from datetime import UTC
    >>> day = datetime(2026, 2, 2, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"gpus": [8.0, 9.0], "node_list": ["n1", "n2"], "state": "COMPLETED",
    ...     "start_time": day, "end_time": day + timedelta(hours=1)})
    >>> proven_sizes(jobs, pl.DataFrame({"node": ["n1", "n2"], "gpus": [7, 8]}))
    {'n1': 8}
    """
    name = pl.col("node").str.replace_all(r"\d+", "#")
    powers = {i: 1 << (i - 1).bit_length() for i in range(1, MAX_GPUS_PER_NODE)}
    next_power = pl.col("gpus").cast(pl.Int64).replace_strict(powers, default=0)
    most = pl.max_horizontal(pl.col("gpus").max().over(name), next_power)
    small = inventory.select("node", room="gpus", most=most).filter(pl.col("most") > pl.col("room"))
    held = _ran(jobs).join(small, left_on="node_list", right_on="node").rename({"node_list": "node"})
    held = held.filter(pl.col("gpus") <= pl.col("most") + ROUNDING_GPUS)
    peaks = _node_peaks(held.with_columns(least="gpus")).filter(pl.col("peak") > pl.col("room")).sort("node")
    return dict(peaks.join(small, on="node").select("node", pl.min_horizontal("peak", "most")).iter_rows())


def _node_peaks(held: pl.DataFrame) -> pl.DataFrame:
    """Most GPUs that jobs held of each node at once: ``node, room, peak``."""
    begin = _ticks("start_time")
    until = pl.max_horizontal(_ticks("end_time") - CLOCKS_US, begin + 1)
    level = _levels(held.with_columns(begin=begin, until=until))
    whole = (pl.col("level").max() - ROUNDING_GPUS).ceil().cast(pl.Int64)
    return level.group_by("node", "room").agg(peak=whole).sort("node")


def _ran(jobs: pl.DataFrame, gpus: pl.Expr | None = None) -> pl.DataFrame:
    """Jobs that held GPUs from a time that is known, numbered by ``row``."""
    rows = jobs if "row" in jobs.columns else jobs.with_row_index("row")
    gpus = pl.col("gpus") if gpus is None else gpus
    return rows.filter(gpus > 0, pl.col("start_time").is_not_null(), ~untimed())


def _on_each_node(jobs: pl.DataFrame, inventory: pl.DataFrame) -> pl.DataFrame:
    """One row for each job that ran and node it names: ``room`` and ``all`` listed GPUs, ``absent`` nodes not listed.

    ``own`` are the GPUs of the job on its nodes that are not listed: an even share, or all that the listed have no
    room for; 0 where no server has as many.
    """
    nodes = inventory.group_by("node").agg(room=pl.col("gpus").sum().cast(pl.Float64))
    # Lists that cannot be read say no place.
    each = nodes_of_lists(jobs).explode("node", empty_as_null=False).drop_nulls("node")
    rooms = each.join(nodes, on="node", how="left", maintain_order="left").with_columns(
        all=pl.col("room").sum().over("node_list"),
        absent=pl.col("room").is_null().sum().over("node_list").cast(pl.Int64),
        many=pl.len().over("node_list"),
    )
    even, absent = pl.col("gpus") * pl.col("absent") / pl.col("many"), pl.col("absent")
    own = pl.max_horizontal(even, pl.col("gpus") - pl.col("all"))
    is_server = (absent > 0) & (own <= absent * MAX_GPUS_PER_NODE)
    # A job of which the number of GPUs is not known was on its nodes, too.
    spread = _ran(jobs, pl.col("gpus").fill_null(1)).join(rooms, on="node_list", maintain_order="left")
    return spread.with_columns(own=pl.when(is_server).then(own).otherwise(0.0))


def unlisted_nodes(jobs: pl.DataFrame, inventory: pl.DataFrame) -> pl.DataFrame:
    """Nodes that jobs name and the inventory lacks, with the most GPUs that jobs held on them, and from when to when.

    None where jobs name no node of the inventory: then it calls the nodes otherwise, or is of another cluster.
    """
    spread = _on_each_node(jobs, inventory)
    if spread["room"].null_count() == spread.height:
        spread = spread.clear()
    gone = spread.filter(pl.col("room").is_null(), pl.col("own") > 0)
    gone = gone.with_columns(room=0.0, least=pl.col("own") / pl.col("absent"))
    model = pl.col("gpu_model").drop_nulls().unique()
    seen = gone.group_by("node").agg(
        gpu_model=pl.when(model.len() == 1).then(model.first()),
        installed=pl.col("start_time").min(),
        # A node of a job that runs is there.
        retired=pl.when(pl.col("end_time").is_not_null().all()).then(pl.col("end_time").max()),
    )
    return _node_peaks(gone).join(seen, on="node").sort("node")


def with_past_nodes(jobs: pl.DataFrame, inventory: pl.DataFrame) -> pl.DataFrame:
    """The inventory as jobs prove it: GPUs of :func:`proven_sizes`, nodes of :func:`unlisted_nodes`, spans."""
    sizes, gone = proven_sizes(jobs, inventory), unlisted_nodes(jobs, inventory)
    dated = inventory["installed"].null_count() + inventory["retired"].null_count() < 2 * inventory.height
    if dated:
        inventory = _with_proven_spans(jobs, inventory)
    if sizes:
        gpus = pl.col("node").replace_strict(sizes, default=None, return_dtype=inventory["gpus"].dtype)
        inventory = inventory.with_columns(gpus=pl.coalesce(gpus, "gpus"))
    if gone.is_empty():
        return inventory
    rows = gone.select("node", "gpu_model", "installed", "retired", gpus=pl.col("peak"))
    rows = rows.cast({name: inventory.schema[name] for name in rows.columns})
    return pl.concat([inventory, rows], how="diagonal").sort("node", maintain_order=True)


def _with_proven_spans(jobs: pl.DataFrame, inventory: pl.DataFrame) -> pl.DataFrame:
    """Nodes from their first job and to their last, where the list has them for a shorter time."""
    spread = _on_each_node(jobs, inventory).group_by("node")
    end = pl.col("end_time")
    seen = spread.agg(first=pl.col("start_time").min(), last=end.max(), still=end.is_null().any())
    spans = inventory.join(seen, on="node", how="left", maintain_order="left")
    first = pl.min_horizontal("installed", "first")
    last = pl.max_horizontal("retired", "last")
    return spans.with_columns(
        installed=pl.when(pl.col("installed").is_not_null()).then(first),
        retired=pl.when(pl.col("retired").is_not_null() & ~pl.col("still").fill_null(value=False)).then(last),
    ).drop("first", "last", "still")


def outgrown_nodes(jobs: pl.DataFrame, inventory: pl.DataFrame) -> list[Finding]:
    """Lines of the quality report on a past that the node list of today does not show: nodes, sizes, MIG layouts.

    Jobs in quarantine show nothing, but for where they ran.
    """
    sound = believed(jobs)
    found = _other_layouts(sound, inventory)
    sizes = proven_sizes(sound, inventory)
    if sizes:
        listed = dict(inventory.select("node", "gpus").iter_rows())
        named = examples([f"{node}: {listed[node]} of {size}" for node, size in sizes.items()])
        effect = "the node counts with the GPUs allocated to its jobs in accounting: check it"
        found.append(Finding(OUTGROWN, "warning", len(sizes), effect, named))
    spread = _on_each_node(jobs, inventory)
    check, effect = OTHER_CLUSTER, "jobs are compared with all its GPUs: give the list of the same cluster"
    if spread["room"].null_count() < spread.height:
        check, spread = UNLISTED, believed(spread)
        effect = "counted as they ran, on nodes that are part of the past and not of today's fleet"
    elsewhere = spread.filter(pl.col("room").is_null())
    if elsewhere.is_empty():
        return found
    names, elsewhere = sorted(elsewhere["node"].unique()), elsewhere.unique("row")
    hours = elsewhere.select((pl.col("gpus") * _run_h()).sum()).item()
    return [*found, Finding(check, "warning", elsewhere.height, effect, examples(names), hours)]


def _run_h() -> pl.Expr:
    return (pl.col("end_time") - pl.col("start_time")).dt.total_seconds() / SECONDS_PER_HOUR


def _other_layouts(jobs: pl.DataFrame, inventory: pl.DataFrame) -> list[Finding]:
    """Jobs that held what no GPU of their model is partitioned into today, where all its layouts are known."""
    whole, cut = set[str](), dict[str, str]()
    unknown = pl.col("mig_enabled").fill_null(value=False) & pl.col("layouts").is_null()
    told = inventory.filter(pl.col("gpus") > 0, ~unknown.any().over("gpu_model"))
    for model, layouts in told.select("gpu_model", "layouts").iter_rows():
        parts = str(layouts or WHOLE_GPU).split(";")
        whole |= {str(model)} if WHOLE_GPU in parts else set()
        cut[str(model)] = f"{cut.get(str(model), '')};{layouts or ''}"
    hours = pl.col("gpus") * _run_h()
    key = ("gpu_model", "whole", "profile_requested")
    held = jobs.filter(pl.col("gpus") > 0, pl.col("gpu_model").is_in(list(cut)))
    held = held.with_columns(whole=pl.col("instances").is_null() & (pl.col("gpus") % 1 == 0))
    held = held.group_by(key).agg(rows=pl.len(), hours=hours.sum()).sort(key)
    found = []
    for model, full, profile, rows, gpu_hours in held.iter_rows():
        jobs_ask = f"{counted(rows, 'job')} ask{'s' * (rows == 1)} for"
        if full and model not in whole:
            text = f"{jobs_ask} a whole {model}; no GPU is whole today"
        elif not full and profile is not None and f"{profile}:" not in cut[model]:
            text = f"{jobs_ask} {profile} of {model}; no GPU has such an instance today"
        else:
            continue
        effect = "counted in the past as it ran, and not used for today's nodes"
        found.append(Finding(text, "warning", rows, effect, "", gpu_hours))
    return found


def believed(jobs: pl.DataFrame) -> pl.DataFrame:
    """The jobs that figures are made of: all that are not in quarantine.

    Examples
    --------
    >>> believed(pl.DataFrame({"job_id": ["a", "b"], "quarantined": [None, FAR_AWAY]}))["job_id"].to_list()
    ['a']
    """
    if "quarantined" not in jobs.columns or jobs["quarantined"].null_count() == jobs.height:
        return jobs  # as they are, and not another table of all of them
    return jobs.filter(pl.col("quarantined").is_null())


def require_believed(rules: pl.Series, n_jobs: int, source: str) -> None:
    """Refuse jobs of which each is in quarantine, by the rules that those in quarantine broke."""
    if len(rules) < n_jobs:
        return
    got = f"{counted(n_jobs, 'job')}, all in quarantine: {'; '.join(sorted(rules.unique()))}"
    todo = "Give the node list of the same cluster, or ingest the jobs without one into a new folder."
    raise TraceFormatError(source, "jobs that the nodes of the list can have run", got, todo)


def quarantine_findings(jobs: pl.DataFrame, until: datetime) -> list[Finding]:
    """Lines of the quality report on the jobs in quarantine, by rule, with the GPU-hours that they state."""
    marked = jobs.filter(pl.col("quarantined").is_not_null())
    found = []
    for name in RULES:
        mine = marked.filter(quarantined=name)
        if mine.is_empty():
            continue
        hours, job = stated_gpu_hours(mine, until), f"job {mine['job_id'][0]}"
        effect = f"kept in the table and left out of every figure, with the {hours:,.1f} GPU-hours they state"
        found.append(Finding(QUARANTINED + name, "error", mine.height, effect, job, hours))
    return found


def quarantine_facts(jobs: pl.DataFrame, until: datetime) -> dict[str, float]:
    """How many jobs are in quarantine, and the GPU-hours that they state; for the provenance."""
    marked = jobs.filter(pl.col("quarantined").is_not_null())
    return {"rows_quarantined": marked.height, "quarantined_gpu_hours": stated_gpu_hours(marked, until)}


def stated_gpu_hours(jobs: pl.DataFrame, until: datetime) -> float:
    """GPU-hours that jobs state to have held; what runs counts up to `until`."""
    still = pl.when(pl.col("state") == "RUNNING").then(pl.max_horizontal("start_time", pl.lit(until)))
    held = pl.coalesce("end_time", still) - pl.col("start_time")
    total = jobs.select((pl.col("gpus") * held.dt.total_microseconds()).sum() / 1e6).item()
    return float(total) / SECONDS_PER_HOUR


def _broken(jobs: pl.DataFrame, inventory: pl.DataFrame | None) -> Iterator[tuple[str, pl.Series]]:
    """Rules with the rows that break them; a row that broke one is not looked at by the next."""
    far = _far_away(jobs)
    yield FAR_AWAY, far
    jobs = _without(jobs, far)
    huge = _huge(jobs)
    yield UNBELIEVABLE, huge
    jobs = _without(jobs, huge)
    if inventory is None or not int(inventory["gpus"].sum()):
        return
    own = _on_each_node(jobs, inventory).group_by("row").agg(pl.col("own").first())
    if unlisted_nodes(jobs, inventory).is_empty():
        own = own.clear()
    listed = pl.col("gpus") - pl.col("own").fill_null(0.0)
    jobs = jobs.join(own, on="row", how="left", maintain_order="left").with_columns(least=listed).drop("own")
    past = with_past_nodes(jobs, inventory)
    is_listed = pl.col("node").is_in(inventory["node"].implode())
    here = past.filter(is_listed)
    fits = pl.col("least") <= int(here["gpus"].sum()) + ROUNDING_GPUS
    yield BEYOND_INVENTORY, jobs.filter(~fits)["row"]
    held = _ran(jobs).filter(fits).sort("start_time", "row")
    largest = pl.when(is_listed).then("gpus").otherwise(MAX_GPUS_PER_NODE)
    full = _on_full_nodes(held, past.with_columns(gpus=pl.min_horizontal("gpus", largest)))
    yield FULL_NODE, full
    yield FULL_POOL, _beyond_boards(_without(held, full), here)


def _without(jobs: pl.DataFrame, rows: pl.Series) -> pl.DataFrame:
    return jobs.filter(~pl.col("row").is_in(rows.implode())) if len(rows) else jobs


def _far_away(jobs: pl.DataFrame) -> pl.Series:
    """Few jobs whose every instant, or whose last one, is a year or more from all those of the others."""
    rows = jobs["row"].clear()
    for instant in (pl.col("submit_time"), pl.max_horizontal("submit_time", "start_time", "end_time")):
        ordered = _without(jobs, rows).select("row", at=instant).sort("at")
        group = (ordered["at"].diff() > ALONE).fill_null(value=False).cum_sum()
        if group.is_empty() or group[-1] == 0:
            continue
        sizes = ordered.with_columns(group=group).with_columns(size=pl.len().over("group"))
        most = int(sizes["size"].max())  # type: ignore[arg-type]
        few = max(FEW, int(FEW_SHARE * jobs.height))
        if most >= OTHERS:
            rows = pl.concat([rows, sizes.filter(pl.col("size") <= few, pl.col("size") < most)["row"]])
    return rows


def _huge(jobs: pl.DataFrame) -> pl.Series:
    """Jobs that ask for many times what all others ever held at once; the smaller ones are judged first."""
    huge = jobs.filter(pl.col("gpus") > HUGE_GPUS).sort("gpus", "row")
    if huge.is_empty():
        return huge["row"]
    held = _ran(jobs).filter(pl.col("gpus") <= HUGE_GPUS)
    if held.height < OTHERS:
        return huge["row"].clear()
    most, broken = _peak(held), []
    for row, gpus in huge.select("row", "gpus").iter_rows():
        if gpus > HUGE_FACTOR * most:
            broken.append(row)
        else:
            held = pl.concat([held, _ran(huge.filter(row=row))])
            most = max(most, _peak(held))
    return pl.Series("row", broken, huge.schema["row"])


def _on_full_nodes(held: pl.DataFrame, inventory: pl.DataFrame) -> pl.Series:
    """Jobs that started on a node of which others held too much, the first to come being believed.

    Of a job over several nodes each is counted with what must be on it if the others are full; a job that is
    larger than its nodes says nothing about them.
    """
    spread = (
        _on_each_node(held, inventory)
        .with_columns(least=pl.col("gpus") - pl.col("all") + pl.col("room"))
        .filter(pl.col("absent") == 0, pl.col("gpus") <= pl.col("all") + ROUNDING_GPUS, pl.col("least") > 0)
        .with_columns(until=_ticks("end_time") - CLOCKS_US, begin=_ticks("start_time"))
        .filter(pl.col("until") > pl.col("begin"))
    )
    level = _levels(spread)
    full = level.filter(pl.col("level") > pl.col("room") + ROUNDING_GPUS)["node"].unique()
    over_full = spread.filter(pl.col("node").is_in(full.implode())).partition_by("node", maintain_order=True)
    broken: set[int] = set()
    for mine in over_full:
        mine = mine.filter(~pl.col("row").is_in(list(broken)))
        broken |= set(_last_to_come(mine, pl.Series([0]), mine["room"].head(1)))
    return pl.Series("row", sorted(broken), held.schema["row"])


def _beyond_boards(held: pl.DataFrame, inventory: pl.DataFrame) -> pl.Series:
    """Jobs that started when all GPUs of the model that they name, or all GPUs, were held.

    Words that may mean the same model, and models that are on one node, are one pool.
    """
    held = held.with_columns(begin=_ticks("start_time"), until=_ticks("end_time")).filter(pl.col("least") > 0)
    nodes = inventory.with_columns(begin=_ticks("installed", 0), until=_ticks("retired"))
    pools = [(held, nodes)]
    if not nodes["gpu_model"].has_nulls():
        named = held["gpu_model"].drop_nulls().cast(pl.String)
        pool_of = _pools_of_models([*nodes["gpu_model"].unique().sort(), *named.unique().sort()])
        model = pl.col("gpu_model").cast(pl.String)
        pool = model.replace_strict(pool_of, default=None, return_dtype=pl.Int64)
        of_node = nodes.with_columns(pool=pool)
        apart = [(held.filter(pool == i), of_node.filter(pool=i)) for i in of_node["pool"].unique().sort()]
        pools = [*apart, *pools]
    broken: list[int] = []
    for jobs, there in pools:
        jobs = jobs.filter(~pl.col("row").is_in(broken))
        gpus = pl.col("gpus").cast(pl.Float64)
        steps = pl.concat([there.select(at="begin", change=gpus), there.select(at="until", change=-gpus)])
        steps = steps.group_by("at").agg(pl.col("change").sum()).sort("at")
        broken += _last_to_come(jobs, steps["at"], steps["change"].cum_sum())
    return pl.Series("row", sorted(broken), held.schema["row"])


def _pools_of_models(models: Iterable[str]) -> dict[str, int]:
    """Models and the number of their pool.

    Examples
    --------
    >>> _pools_of_models(["A100-40GB", "T4", "a100", "T4|V100", "h100"])
    {'A100-40GB': 0, 'T4': 1, 'a100': 0, 'T4|V100': 1, 'h100': 2}
    """
    pools: list[set[str]] = []
    meant = {model: set(possible_boards(model)) for model in models}
    for boards in meant.values():
        joined = boards.union(*(pool for pool in pools if pool & boards))
        pools = [*(pool for pool in pools if not pool & boards), joined]
    number = {gpu_model: i for i, pool in enumerate(pools) for gpu_model in pool}
    return {model: number[min(boards)] for model, boards in meant.items()}


def _last_to_come(held: pl.DataFrame, at: pl.Series, room: pl.Series) -> list[int]:
    """Rows to take away, the last to start first, so that what is held never exceeds a step function.

    Ends come before starts, and both after a change of what there is.
    """
    start, until, gpus = (held[name].to_numpy() for name in ("begin", "until", "least"))
    tick = np.concatenate([until, at.to_numpy(), start])
    kind = np.repeat([0, 1, 2], [len(until), len(at), len(start)])
    change = np.concatenate([-gpus, np.diff(room.to_numpy(), prepend=0.0), gpus])
    order = np.lexsort((kind, tick))
    over = np.cumsum(np.where(kind == 1, -change, change)[order]) > ROUNDING_GPUS
    if not over[tick[order] < _NEVER].any():
        return []
    number = np.concatenate([np.arange(len(until)), np.zeros(len(at), int), np.arange(len(start))])
    running: list[int] = []
    ended = np.zeros(held.height, dtype=bool)
    broken, held_now, room_now = [], 0.0, 0.0
    for place in order:
        job = number[place]
        if tick[place] == _NEVER:
            break
        if kind[place] == 0:
            if not ended[job]:
                held_now, ended[job] = held_now - gpus[job], True
            continue
        if kind[place] == 1:
            room_now += change[place]
        else:
            held_now += gpus[job]
            running.append(job)
        while running and held_now > room_now + ROUNDING_GPUS:
            last = running.pop()
            if not ended[last]:
                held_now, ended[last] = held_now - gpus[last], True
                broken.append(last)
    return held["row"].gather(broken).to_list()


def _peak(held: pl.DataFrame) -> float:
    """Most GPUs held at once."""
    one = held.with_columns(
        node=pl.lit(0), room=0.0, least="gpus", begin=_ticks("start_time"), until=_ticks("end_time")
    )
    return float(_levels(one)["level"].max() or 0.0)  # type: ignore[arg-type]


def _levels(held: pl.DataFrame) -> pl.DataFrame:
    """What is held of each node after each instant at which that changes: ``node, room, level``."""
    instants = [
        held.select("node", "room", at="begin", change="least"),
        held.select("node", "room", at="until", change=-pl.col("least")),
    ]
    changes = pl.concat(instants).group_by("node", "room", "at").agg(pl.col("change").sum())
    return changes.sort("node", "at").select("node", "room", level=pl.col("change").cum_sum().over("node"))


def _ticks(column: str, missing: int = _NEVER) -> pl.Expr:
    """Microseconds since 1970; a job without an end holds what it holds."""
    return pl.col(column).cast(pl.Datetime("us", "UTC")).dt.timestamp("us").fill_null(missing)
