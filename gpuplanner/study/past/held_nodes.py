"""Nodes as jobs were seen to hold them: how large each must be, and how its GPUs must be cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import polars as pl

from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.hardware.spread import fewest_gpus
from gpuplanner.hardware.layout import format_layout
from gpuplanner.hardware.names import profile_on
from gpuplanner.inbox.core.long_jobs import LongJobs
from gpuplanner.inbox.core.node_names import on_nodes
from gpuplanner.ledger.pools import inferred_inventory
from gpuplanner.ledger.pools import gpu_jobs
from gpuplanner.ledger.window import Window
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.schemas.domain import Inventory, Jobs
from gpuplanner.schemas.check import some_columns

HELD = (
    "submit_time", "start_time", "end_time", "state", "gpus", "gpus_by_memory", "gpu_model", "profile_requested",
    "instances", "node_list",
)  # fmt: skip
"""Columns of ``schemas.Jobs`` that are looked at."""
UNNAMED_SHARE = 0.1
"""Share of the GPU-hours on nodes that are not named, above which the nodes are not known."""
CLOCK = timedelta(seconds=1)
"""What one job gives back another may take within the same second of a clock that counts seconds."""
MANY = 1 << 20
"""Rows that are put in order at a time."""
RECENT = timedelta(days=7)
BESIDE = "inferred"
"""Name of the GPUs that jobs held of which nobody says on which node."""


def seen_nodes(jobs: pl.DataFrame | LongJobs, begin: datetime, end: datetime) -> pl.DataFrame | None:
    """Inventory that jobs were seen on: each node as large as the most that was held of it at once.

    Of each profile a node has the most instances that were held at once, all beside each other, on the fewest boards
    that hold them. How a job over several nodes was spread over them is not known: where its GPUs cannot be spread
    evenly, its nodes are taken to be no larger than they must be.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"gpus": [8.0, 2.0], "node_list": ["n[1-2]", "n1"], "state": "COMPLETED",
    ...     "submit_time": nine, "start_time": nine, "end_time": nine + timedelta(hours=1)})
    >>> seen_nodes(jobs, nine, nine + timedelta(hours=2)).select("node", "gpus").rows()
    [('n1', 6), ('n2', 4)]
    """
    known = LongJobs.of(jobs)
    used = _use_of_nodes(known, begin, end)
    total, unnamed = used.select(
        pl.col("gpus").sum(), no=pl.col("gpus").filter(pl.col("node").is_null()).sum()
    ).row(0)
    if used["node"].null_count() == used.height or unnamed > UNNAMED_SHARE * total:
        return None
    boards = _boards(used)
    found = _seen(
        lambda: (
            rows.filter(pl.col("node").is_not_null())
            for first, last in known.spans(begin, end)
            if (rows := _on_named_nodes(known.there(first, last, HELD), begin, end, boards)) is not None
        )
    )
    models = _models_of_mixed_nodes(used, found, known, begin, end)
    table = [
        {
            "node": name,
            "gpu_model": models.get(name, node.board),
            "gpus": node.gpus,
            "mig_enabled": True if node.cut else None,
            "layouts": ";".join([WHOLE_GPU] * (node.gpus - len(node.cut)) + node.cut) if node.cut else None,
        }
        for name, node in sorted(found.items())
        if node.gpus
    ]
    if unnamed:
        most = int(inferred_inventory(known, start=begin, end=end)["gpus"].sum())
        more = most - sum(node.gpus for node in found.values())
        words = {row["gpu_model"] for row in table}
        only = words.pop() if len(words) == 1 else None
        table += [{"node": BESIDE, "gpu_model": only, "gpus": more}] if more > 0 else []
    schema = {name: column.dtype for name, column in Inventory.columns().items()}
    return pl.DataFrame(table, schema=schema) if table else None


def _models_of_mixed_nodes(
    used: pl.DataFrame, found: Mapping[str, _Seen], jobs: LongJobs, begin: datetime, end: datetime
) -> dict[str, str]:
    """All GPU models that jobs held on a node, where the nodes by their usual model are too few for the jobs."""
    named = used.drop_nulls(["node", "gpu_model"]).group_by("node").agg(pl.col("gpu_model").unique().sort())
    mixed = named.filter(pl.col("gpu_model").list.len() > 1)
    if mixed.is_empty():
        return {}
    listed = Counter[str | None]()
    for node in found.values():
        listed[node.board] += node.gpus
    held = inferred_inventory(jobs, start=begin, end=end).select("gpu_model", "gpus").iter_rows()
    enough = all(gpus <= listed[model] for model, gpus in held)
    return {} if enough else dict(mixed.with_columns(pl.col("gpu_model").list.join("|")).iter_rows())


def with_seen_layouts(
    inventory: pl.DataFrame, jobs: LongJobs, begin: datetime, end: datetime
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """An inventory with layouts for nodes of which it has none, though jobs held instances on them."""
    without = pl.col("layouts").is_null() & (pl.col("gpus") > 0)
    if inventory["layouts"].null_count() < inventory.height:
        without &= pl.col("mig_enabled").fill_null(value=False)  # beside stated layouts, none means not cut
    asked = inventory.filter(without)
    any_cut = not asked.is_empty() and any(
        "instances" in part and part["instances"].drop_nulls().len() for part in jobs.parts(["instances"])
    )
    rows = _on_named_nodes(jobs.rows(HELD), begin, end) if any_cut else None
    if rows is None:
        return inventory, ()
    boards = dict(asked.select("node", "gpu_model").iter_rows())
    rows = rows.filter(pl.col("node").is_in(list(boards)))
    rows = rows.with_columns(board=pl.col("node").replace_strict(boards, return_dtype=pl.String))
    found = _seen(lambda: [rows])
    late = rows.filter(
        pl.col("start") > pl.col("end").filter(pl.col("number") > 0).max().over("node") - RECENT
    )
    lately = _seen(lambda: [late])
    texts: dict[str, str] = {}
    for name, gpus in asked.select("node", "gpus").iter_rows():
        # Cut anew in between, what was held at one time does not fit beside what was held at another.
        fits = [found[name].cut if name in found else [], lately[name].cut if name in lately else []]
        cut = next((each for each in fits if 0 < len(each) <= gpus), None)
        if cut:
            texts[name] = ";".join([WHOLE_GPU] * (gpus - len(cut)) + cut)
    layouts = pl.col("node").replace_strict(texts, default=None, return_dtype=pl.String)
    table = inventory.with_columns(layouts=pl.coalesce("layouts", layouts))
    mig = pl.when(pl.col("node").is_in(list(texts))).then(pl.lit(value=True)).otherwise("mig_enabled")
    return table.with_columns(mig_enabled=mig), tuple(sorted(texts))


def fewest_cut(jobs: pl.DataFrame, board: GpuModel, begin: datetime, end: datetime) -> list[str]:
    """Layouts of the fewest GPUs of a board that hold the instances of all jobs, wherever these ran."""
    everywhere = jobs.with_columns(node_list=pl.lit("all"), gpu_model=pl.lit(board.name))
    rows = _on_named_nodes(everywhere, begin, end)
    return [] if rows is None else _seen(lambda: [rows])["all"].cut


def spans_in(jobs: pl.DataFrame, begin: datetime, end: datetime) -> pl.DataFrame:
    """Jobs with ``start`` and ``end``, the part of the time in which they ran."""
    return jobs.with_columns(
        start=pl.max_horizontal(pl.col("start_time"), pl.lit(begin)),
        end=pl.min_horizontal(pl.col("end_time").fill_null(end), pl.lit(end)),
    )


def most_held(rows: pl.DataFrame, amount: str, *by: str) -> pl.DataFrame:
    """Most that was held at one time, ends before starts, in the column ``level``."""
    groups = -(-rows.height // MANY) if by else 1
    if groups > 1:  # what is put in order takes several times the room of the rows
        number = rows.select(pl.col(by[0]).hash() % groups).to_series()
        return pl.concat(_most_held(rows.filter(number == each), amount, *by) for each in range(groups))
    return _most_held(rows, amount, *by)


def _most_held(rows: pl.DataFrame, amount: str, *by: str) -> pl.DataFrame:
    until = pl.when(pl.col("end") - CLOCK > pl.col("start")).then(pl.col("end") - CLOCK).otherwise("end")
    steps = pl.concat(
        [
            rows.select(*by, at="start", change=pl.col(amount)),
            rows.select(*by, at=until, change=-pl.col(amount)),
        ]
    )
    steps = steps.group_by(*by, "at").agg(pl.col("change").sum()).sort(*by, "at")
    level = pl.col("change").cum_sum()
    levels = steps.with_columns(level=level.over(*by) if by else level)
    return levels.group_by(*by).agg(pl.col("level").max()) if by else levels.select(pl.col("level").max())


@dataclass(frozen=True)
class _Seen:
    """What was held of a node: its board, its GPUs, and the layouts of those that are cut."""

    board: str | None
    gpus: int
    cut: list[str]


def _use_of_nodes(jobs: LongJobs, begin: datetime, end: datetime) -> pl.DataFrame:
    """Jobs and GPU-seconds (``gpus``) by node and the board that jobs name; a null node is one not known."""
    held_s = (pl.col("end") - pl.col("start")).dt.total_seconds() * pl.col("gpus")
    texts = pl.col("node_list", "gpu_model").cast(pl.String)
    each = []
    for part in jobs.parts(HELD):
        held = gpu_jobs(some_columns(part, Jobs, HELD, where="jobs"), Window(begin, end))
        inside = spans_in(held.filter(pl.col("start_time") < end), begin, end)
        each.append(inside.group_by(texts, maintain_order=True).agg(jobs=pl.len(), gpus=held_s.sum()))
    lists = pl.concat(each).group_by("node_list", "gpu_model", maintain_order=True).agg(pl.all().sum())
    return (
        on_nodes(lists).group_by("node", "gpu_model", maintain_order=True).agg(pl.col("jobs", "gpus").sum())
    )


def _boards(used: pl.DataFrame) -> pl.DataFrame:
    """Board that most jobs on a node name."""
    usual = used.drop_nulls().sort("node", "jobs", "gpu_model", descending=[False, True, False])
    return usual.group_by("node", maintain_order=True).agg(board=pl.first("gpu_model"))


def _on_named_nodes(
    jobs: pl.DataFrame, begin: datetime, end: datetime, boards: pl.DataFrame | None = None
) -> pl.DataFrame | None:
    """What jobs held: a row for each job and node, GPUs or instances of a profile of its board."""
    boards = _boards(_use_of_nodes(LongJobs.of(jobs), begin, end)) if boards is None else boards
    held = gpu_jobs(some_columns(jobs, Jobs, HELD, where="jobs"), Window(begin, end))
    held = held.filter(pl.col("start_time") < end, pl.col("node_list").is_not_null().any())
    if held.is_empty():
        return None
    # Words as categories, and no column more than is needed: these are the most rows of all.
    texts = pl.col("node_list", "gpu_model", "profile_requested").cast(pl.String).cast(pl.Categorical)
    asked = (
        spans_in(held, begin, end).select("start", "end", "gpus", "instances", texts).with_row_index("row")
    )
    spread = on_nodes(asked).drop("node_list").with_columns(pl.col("node").cast(pl.Categorical))
    one = pl.lit(1, pl.UInt32), pl.lit(0, pl.Int64)
    many = (pl.len().over("row"), pl.int_range(pl.len()).over("row")) if spread.height > asked.height else one
    spread = spread.with_columns(many=many[0], place=many[1])
    boards = boards.cast(pl.Categorical)
    rows = spread.join(boards, on="node", how="left", maintain_order="left", nulls_equal=True)
    pairs = rows.select("board", "profile_requested").unique().drop_nulls().rows()
    known = [(board, name, on_it) for board, name in pairs if (on_it := profile_on(board, name)) is not None]
    profiles = pl.DataFrame(
        known, schema=dict.fromkeys(("board", "profile_requested", "profile"), pl.Categorical), orient="row"
    )
    rows = rows.join(profiles, on=["board", "profile_requested"], how="left", maintain_order="left")
    sliced = pl.col("profile").is_not_null() & pl.col("instances").is_not_null()
    total = (pl.col("instances") * pl.col("many")).round()
    number = total // pl.col("many") + (pl.col("place") < total % pl.col("many")).cast(pl.Float64)
    # Of a job with whole GPUs and slices the whole ones are sure to be on boards of their own.
    mixed = pl.col("instances").is_not_null() & pl.col("profile_requested").is_null() & (pl.col("gpus") >= 1)
    shared = (pl.col("many") == 1) & ~mixed
    evenly = pl.when(shared).then("gpus").otherwise((pl.col("gpus") + 1e-9).floor())
    return rows.select(
        "row", "node", "board", "start", "end", "gpus",
        profile=pl.when(sliced).then("profile"),
        number=pl.when(sliced).then(number).otherwise(0.0),
        whole=pl.when(sliced).then(0.0).otherwise(evenly),
        rest=pl.when(sliced | mixed | shared).then(0.0)
        .otherwise(((pl.col("gpus") - evenly) * pl.col("many")).round()),
    )  # fmt: skip


def _seen(parts: Callable[[], Iterable[pl.DataFrame]]) -> dict[str, _Seen]:
    """Nodes by what was held of them, in parts each of which has all that was held in some of the time."""
    boards: dict[str, str | None] = {}
    most, of_profiles, spans = [], [], []
    for rows in parts():
        boards |= dict(rows.select("node", "board").unique(maintain_order=True).iter_rows())
        most.append(most_held(_with_rests(rows), "whole", "node"))
        cut = rows.filter(pl.col("number") > 0)
        of_profiles.append(most_held(cut, "number", "node", "profile"))
        spans.append(cut.group_by("node").agg(first=pl.col("start").min(), last=pl.col("end").max()))
    counts_of: dict[str, dict[str, int]] = {}
    for node, profile, number in _largest(of_profiles, "node", "profile").sort("node", "profile").iter_rows():
        counts_of.setdefault(node, {})[profile] = round(number)
    of_cut = pl.concat(spans).group_by("node").agg(pl.col("first").min(), pl.col("last").max())
    first, last = pl.max_horizontal("start", "first"), pl.min_horizontal("end", "last")
    beside, after = [most[0].clear()], [most[0].clear()]
    for rows in parts() if of_cut.height else ():
        near = _with_rests(rows).join(of_cut, on="node")
        # A node that was cut for a part of the time had its GPUs whole in the rest of it.
        during = near.with_columns(start=first, end=last).filter(pl.col("start") < pl.col("end"))
        beside.append(most_held(during, "whole", "node"))
        after.append(most_held(near.filter(pl.col("start") >= pl.col("last")), "whole", "node"))
    held, with_cut, later = (dict(_largest(each, "node").iter_rows()) for each in (most, beside, after))
    fewest: dict[tuple[str, tuple[tuple[str, int], ...]], list[str]] = {}
    found: dict[str, _Seen] = {}
    for node, board in boards.items():
        counts = counts_of.get(node, {})
        key = (str(board), tuple(counts.items()))
        if key not in fewest:
            layouts = fewest_gpus(str(board), counts) if counts else []
            fewest[key] = [format_layout(each) for each in layouts or ()]
        texts = fewest[key]
        gpus = max(_gpus(with_cut.get(node)) + len(texts), _gpus(held.get(node)))
        uncut = _gpus(later.get(node)) > gpus - len(texts)
        found[node] = _Seen(board, gpus, [] if uncut else list(texts))
    return found


def _largest(each: list[pl.DataFrame], *by: str) -> pl.DataFrame:
    return pl.concat(each).group_by(*by, maintain_order=True).agg(pl.col("level").max())


def _gpus(held: float | None) -> int:
    return int(np.ceil((held or 0.0) - 1e-6))


def _with_rests(rows: pl.DataFrame) -> pl.DataFrame:
    """Whole GPUs held, with those that a job held beyond an even share of its nodes: where there is room, else more."""
    columns = ("node", "start", "end", "whole")
    held = rows.filter(pl.col("whole") > 0).select(columns)
    uneven = rows.filter(pl.col("rest") > 0)
    if uneven.is_empty():
        return held
    room = dict(most_held(held, "whole", "node").iter_rows())
    names = uneven["node"].unique().to_list()
    on_node = {node: held.filter(node=node) for node in names}
    for (_,), job in uneven.sort("start", "row", maintain_order=True).group_by("row", maintain_order=True):
        start, end, left = job["start"][0], job["end"][0], round(job["rest"][0])
        during = (pl.col("start") < end) & (pl.col("end") > start)
        free = {}
        for node in job["node"]:
            level = dict(most_held(on_node[node].filter(during), "whole", "node").iter_rows()).get(node, 0.0)
            free[node] = max(_gpus(room.get(node)) - _gpus(level), 0)
        taken: Counter[str] = Counter()
        for node in sorted(free, key=lambda name: -free[name]):
            taken[node] += min(free[node], left - taken.total())
        for place in range(left - taken.total()):
            taken[list(free)[place % len(free)]] += 1
        for node, more in taken.items():
            if more:
                row = pl.DataFrame([(node, start, end, float(more))], schema=held.schema, orient="row")
                on_node[node] = pl.concat([on_node[node], row])
                room[node] = max(dict(most_held(on_node[node], "whole", "node").iter_rows()).values())
    return pl.concat([held.filter(~pl.col("node").is_in(names)), *on_node.values()])
