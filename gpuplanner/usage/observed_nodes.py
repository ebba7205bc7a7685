"""Nodes and layouts of today's fleet, stated or observed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice

import numpy as np
import polars as pl

from gpuplanner.core.errors import GeometryError, examples
from gpuplanner.core.schema_checks import some_columns
from gpuplanner.core.schemas import WHOLE_GPU, Inventory, Jobs
from gpuplanner.hardware.gpu_model_names import profile_on
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.hardware.layout_enumeration import fewest_gpus
from gpuplanner.hardware.mig_layouts import OFF, format_layout, parse_layout, prove
from gpuplanner.ingest.gpu_model_resolution import on_nodes
from gpuplanner.ingest.large_tables import LongJobs
from gpuplanner.usage.occupancy import HOUR, Window, gpu_jobs, inferred_inventory

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
    total = float(used["gpus"].sum())
    unnamed = float(used.filter(pl.col("node").is_null())["gpus"].sum())
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
            "gpu_model": models.get(name, node.gpu_model),
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
        listed[node.gpu_model] += node.gpus
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
    held = (part["instances"] for part in jobs.parts(["instances"]) if "instances" in part)
    any_cut = not asked.is_empty() and any(instances.drop_nulls().len() for instances in held)
    rows = _on_named_nodes(jobs.rows(HELD), begin, end) if any_cut else None
    if rows is None:
        return inventory, ()
    boards = dict(asked.select("node", "gpu_model").iter_rows())
    rows = rows.filter(pl.col("node").is_in(list(boards)))
    rows = rows.with_columns(board=pl.col("node").replace_strict(boards, return_dtype=pl.String))
    found = _seen(lambda: [rows])
    last = pl.col("end").filter(pl.col("number") > 0).max().over("node")
    late = rows.filter(pl.col("start") > last - RECENT)
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
    up = rows.select(*by, at="start", change=pl.col(amount))
    down = rows.select(*by, at=until, change=-pl.col(amount))
    steps = pl.concat([up, down]).group_by(*by, "at").agg(pl.col("change").sum()).sort(*by, "at")
    level = pl.col("change").cum_sum()
    levels = steps.with_columns(level=level.over(*by) if by else level)
    return levels.group_by(*by).agg(pl.col("level").max()) if by else levels.select(pl.col("level").max())


@dataclass(frozen=True)
class _Seen:
    """What was held of a node: its board, its GPUs, and the layouts of those that are cut."""

    gpu_model: str | None
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
    by_node = on_nodes(lists).group_by("node", "gpu_model", maintain_order=True)
    return by_node.agg(pl.col("jobs", "gpus").sum())


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
    asked = spans_in(held, begin, end).select("start", "end", "gpus", "instances", texts)
    asked = asked.with_row_index("row")
    spread = on_nodes(asked).drop("node_list").with_columns(pl.col("node").cast(pl.Categorical))
    one = pl.lit(1, pl.UInt32), pl.lit(0, pl.Int64)
    many = (pl.len().over("row"), pl.int_range(pl.len()).over("row")) if spread.height > asked.height else one
    spread = spread.with_columns(many=many[0], place=many[1])
    boards = boards.cast(pl.Categorical)
    rows = spread.join(boards, on="node", how="left", maintain_order="left", nulls_equal=True)
    pairs = rows.select("board", "profile_requested").unique().drop_nulls().rows()
    known = [
        (gpu_model, name, on_it) for gpu_model, name in pairs if (on_it := profile_on(gpu_model, name)) is not None
    ]
    schema = dict.fromkeys(("board", "profile_requested", "profile"), pl.Categorical)
    profiles = pl.DataFrame(known, schema=schema, orient="row")
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
    for node, gpu_model in boards.items():
        counts = counts_of.get(node, {})
        key = (str(gpu_model), tuple(counts.items()))
        if key not in fewest:
            layouts = fewest_gpus(str(gpu_model), counts) if counts else []
            fewest[key] = [format_layout(each) for each in layouts or ()]
        texts = fewest[key]
        gpus = max(_gpus(with_cut.get(node)) + len(texts), _gpus(held.get(node)))
        uncut = _gpus(later.get(node)) > gpus - len(texts)
        found[node] = _Seen(gpu_model, gpus, [] if uncut else list(texts))
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


def todays_layouts(nodes: pl.DataFrame, gpu_model: GpuModel) -> dict[str, int]:
    """GPUs by layout, by the board's own names of profiles.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> nodes = pl.DataFrame({"gpus": [4, 2], "layouts": ["1g.5gb:7;1g.5gb:7;gpu", None]})
    >>> todays_layouts(nodes, load_gpu_model("A100-40GB"))
    {'1g.5gb:7': 2, 'gpu': 4}
    """
    counts: Counter[str] = Counter()
    if "layouts" not in nodes.columns:
        nodes = nodes.with_columns(layouts=pl.lit(None, pl.String))
    for gpus, stated in nodes.select("gpus", "layouts").iter_rows():
        counts.update(layouts_of_node(gpus, stated, gpu_model))
    return {layout: count for layout, count in sorted(counts.items()) if count and layout != OFF}


def layouts_of_node(gpus: int, stated: str | None, gpu_model: GpuModel) -> tuple[str, ...]:
    """Layout of each GPU of a node, whole ones first; GPUs beyond those that are stated are whole.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> layouts_of_node(3, "1g.5gb:7;gpu", load_gpu_model("A100-40GB"))
    ('gpu', 'gpu', '1g.5gb:7')
    """
    texts = [text.strip() for text in (stated or "").split(";") if text.strip()][:gpus]
    each = [_canonical(text, gpu_model) for text in texts] + [WHOLE_GPU] * (gpus - len(texts))
    return tuple(sorted(each, key=lambda text: (text != WHOLE_GPU, text == OFF, text)))


def _canonical(text: str, gpu_model: GpuModel) -> str:
    try:
        counts = parse_layout(text)
        if WHOLE_GPU in counts:
            return WHOLE_GPU
        held = {gpu_model.profile(name).name: count for name, count in counts.items()}
        return format_layout(held) if not held or prove(gpu_model, held) else WHOLE_GPU
    except GeometryError:
        return WHOLE_GPU


STILL_RUN, TIMES_BEFORE = 1 / 3, 2.0
"""A list of jobs of which a larger share ran in the last hour, with more GPUs than so many times those of the median
hour before, tells what there was at one moment."""
NOT_A_DIGIT = re.compile(r"\d+")


@dataclass(frozen=True)
class TodaysNodes:
    """Nodes as they are today.

    - ``names``: Those with most uncut GPUs first: plans cut from the last on.
    - ``gpus``: GPUs of each.
    - ``layouts``: One text for each GPU: ``"gpu"`` if it is not cut, its instances as
      :func:`gpuplanner.hardware.mig_layouts.parse_layout` reads them, or ``"off"`` if it is cut and holds none.
    - ``inferred``: Sizes follow from what jobs held at once: there may be more.
    - ``named``: Whether nodes of these names exist; otherwise they are made up for the simulation, and no file may
      have them.
    - ``remarks``: What a reader must know of them, in sentences.
    - ``snapshot``: The jobs are those of one moment rather than of a time.
    - ``shared``: Nodes whose GPUs jobs share: they are kept as they are, whoever used them.

    Examples
    --------
    >>> nodes = TodaysNodes(("n1", "n2"), (2, 1), (("gpu", "gpu"), ("1g.5gb:7",)), inferred=False, named=True)
    >>> nodes.total
    3
    """

    names: tuple[str, ...]
    gpus: tuple[int, ...]
    layouts: tuple[tuple[str, ...], ...]
    inferred: bool
    named: bool
    remarks: tuple[str, ...] = ()
    snapshot: bool = False
    shared: frozenset[str] = frozenset()

    @property
    def total(self) -> int:
        """GPUs of all nodes."""
        return sum(self.gpus)


def numbered_nodes(gpus: int, size: int, layouts: Mapping[str, int]) -> TodaysNodes:
    """So many GPUs on nodes that are not known: of one size, and one smaller node with what is left.

    Examples
    --------
    >>> nodes = numbered_nodes(21, 8, {"1g.5gb:7": 1, "gpu": 20})
    >>> nodes.gpus, nodes.layouts[2]
    ((8, 8, 5), ('gpu', 'gpu', 'gpu', 'gpu', '1g.5gb:7'))
    """
    full, rest = divmod(gpus, size)
    sizes = [size] * full + ([rest] if rest else [])
    cut = [text for text in sorted(layouts) if text != WHOLE_GPU for _ in range(layouts[text])]
    texts = [WHOLE_GPU] * layouts.get(WHOLE_GPU, 0) + cut
    texts += [OFF] * (gpus - len(texts))
    names = tuple(f"node{number:0{len(str(len(sizes) - 1))}d}" for number in range(len(sizes)))
    return TodaysNodes(names, tuple(sizes), _dealt(texts, sizes), inferred=False, named=False)


def nodes_of(inventory: pl.DataFrame, gpu_model: GpuModel, *, inferred: bool) -> TodaysNodes:
    """Nodes of an inventory, in the order in which plans count them: the larger and the less cut first.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> table = pl.DataFrame({"node": ["a", "b"], "gpus": [1, 2], "layouts": ["1g.5gb:7", None]})
    >>> found = nodes_of(table, load_gpu_model("A100-40GB"), inferred=False)
    >>> found.names, found.layouts
    (('b', 'a'), (('gpu', 'gpu'), ('1g.5gb:7',)))
    """
    stated = inventory["layouts"] if "layouts" in inventory.columns else [None] * inventory.height
    each = [
        (str(name), int(gpus), layouts_of_node(int(gpus), text, gpu_model))
        for name, gpus, text in zip(inventory["node"], inventory["gpus"], stated, strict=True)
    ]
    each.sort(key=lambda node: (-node[1], -node[2].count(WHOLE_GPU), node[0]))
    names, gpus, layouts = (tuple(part) for part in zip(*each, strict=True)) if each else ((), (), ())
    shared = inventory.filter(pl.col("shares").is_not_null())["node"] if "shares" in inventory.columns else ()
    remark = f"{examples(sorted(shared))}: jobs share its GPUs, so no GPU of it is released."
    remarks = (remark,) if len(shared) else ()
    return TodaysNodes(names, gpus, layouts, inferred, BESIDE not in names, remarks, shared=frozenset(shared))


def smaller_than_their_like(nodes: TodaysNodes) -> tuple[str, ...]:
    """A remark for nodes that were seen with fewer GPUs than most of the nodes that are called like them.

    Examples
    --------
    >>> sizes = (8, 8, 8, 5)
    >>> nodes = TodaysNodes(("g1", "g2", "g3", "g4"), sizes, tuple(("gpu",) * n for n in sizes), True, True)
    >>> smaller_than_their_like(nodes)
    ("Jobs were allocated at most 5 GPUs of 'g4', and 8 of most nodes with names like it: there may be more.",)
    """
    alike: dict[str, list[int]] = {}
    for place, name in enumerate(nodes.names):
        alike.setdefault(NOT_A_DIGIT.sub("#", name), []).append(place)
    remarks = []
    for places in alike.values():
        size, most = Counter(nodes.gpus[place] for place in places).most_common(1)[0]
        small = [place for place in places if nodes.gpus[place] < size]
        if small and 2 * most > len(places):
            named = examples(sorted(nodes.names[place] for place in small))
            seen, it = max(nodes.gpus[place] for place in small), "it" if len(small) == 1 else "them"
            remarks.append(
                f"Jobs were allocated at most {seen} GPU{'s' * (seen > 1)} of {named}, and {size} of most nodes with "
                f"names like {it}: there may be more."
            )
    return tuple(remarks)


def cut_as_held(
    nodes: TodaysNodes, jobs: pl.DataFrame, gpu_model: GpuModel, begin: datetime, end: datetime
) -> TodaysNodes:
    """Nodes of which nobody says how they are cut, with the fewest GPUs cut that hold what was held at once.

    The last GPUs are cut, as plans do it. Where it would take more GPUs than there are, all stay whole.
    """
    everywhere = jobs.with_columns(node_list=pl.lit("all"), gpu_model=pl.lit(gpu_model.name))
    rows = _on_named_nodes(everywhere, begin, end)
    cut = [] if rows is None else _seen(lambda: [rows])["all"].cut
    if not cut or len(cut) > nodes.total:
        return nodes
    texts = [WHOLE_GPU] * (nodes.total - len(cut)) + cut
    return replace(nodes, layouts=_dealt(texts, nodes.gpus))


def largest_on_one_node(jobs: pl.DataFrame) -> int:
    """GPUs of the largest job that held a single node; 0 where no job says so."""
    if "nodes" not in jobs.columns:
        return 0
    return int(np.ceil(jobs.filter(pl.col("nodes") == 1)["gpus"].max() or 0.0))  # type: ignore[arg-type]


def snapshot_remark(jobs: pl.DataFrame, begin: datetime, end: datetime) -> str | None:
    """A sentence if the jobs were listed at one moment rather than recorded over the time; else None."""
    last = end - HOUR
    if last <= begin:
        return None
    window = Window(begin, end)
    held = gpu_jobs(some_columns(jobs, Jobs, HELD, where="jobs"), window).filter(pl.col("start_time") < end)
    running = held.filter(pl.col("end_time").fill_null(end) > last)
    if running.height <= STILL_RUN * held.height:
        return None
    spans = window.spans(held, "start_time", "end_time", "gpus")
    by_hour = spans.by_hour(window.hours, np.zeros(held.height, dtype=np.int64), 1)[0]
    usual = float(np.median(by_hour[: max((last - window.origin) // HOUR, 1)]))
    now = spans_in(running, last, end)
    most = float(most_held(now, "gpus")["level"].max() or 0.0)  # type: ignore[arg-type]
    if most <= TIMES_BEFORE * usual:
        return None
    return (
        f"The job list looks like a snapshot of one moment, not a record of what ran: {running.height:,} of "
        f"{held.height:,} ran in the last hour, with {most:,.0f} GPUs allocated, against {usual:,.0f} in the median "
        "hour before."
    )


def _dealt(texts: Sequence[str], sizes: Sequence[int]) -> tuple[tuple[str, ...], ...]:
    """One text for each GPU, parted by nodes."""
    dealt = iter(texts)
    return tuple(tuple(islice(dealt, size)) for size in sizes)
