"""Shares of GPUs and instances of jobs and nodes."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from gpuplanner.core.errors import GeometryError, examples
from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.core.units import SECONDS_PER_HOUR
from gpuplanner.hardware.catalog import MAX_GPUS_PER_NODE, partitions_of_units
from gpuplanner.hardware.gpu_model_names import parse_device
from gpuplanner.hardware.mig_layouts import parse_layout
from gpuplanner.ingest.gpu_model_resolution import (
    AMBIGUOUS,
    PARTITION,
    SHARED,
    SHARES,
    Boards,
    Device,
    keys_of,
    known_nodes,
    stated_boards,
    told_by_profiles,
)
from gpuplanner.ingest.large_tables import LongTable
from gpuplanner.ingest.quality_report import Finding
from gpuplanner.ingest.source_fields import map_texts

DEVICES = "devices"
"""Column of rows on their way to jobs: words for the devices held, each with its number (``a100=2,a100_1g.5gb=3``).
Where it is null, ``gpus`` devices of ``profile_requested`` on the board ``gpu_model`` are meant."""

LOOKED_AT = (DEVICES, "gpu_model", "profile_requested", "node_list", "instances", "gpus")
"""Columns of jobs that say what their devices are."""
KEY = (DEVICES, "gpu_model", "device_near")
FACTS = {
    **{"device_count": pl.Float64, "device_compute": pl.Float64, "device_memory": pl.Float64},
    **{"device_cut": pl.Int32, "device_board": pl.String, "device_profile": pl.String},
}
"""Of one key: number of devices in its words, their share of a GPU by compute and by memory, instances among them."""

SHARED_OUT = "their GPU-hours are their share of the GPU's compute slices"
STATE_IT = "--map-gpu NAME=MODEL, or NAME=MODEL:PROFILE for a MIG instance"
NOT_COUNTED = f"GPU-hours leave them out and are too low: name the GPU model of the word, {STATE_IT}"
NOT_DECIDED = f"GPU-hours are right; money, energy and layouts need the GPU model: {STATE_IT}"
NOT_KNOWN = f"each counts as a full GPU: if it is a part of one, GPU-hours are too high; name it, {STATE_IT}"
UNKNOWN_SHARES = "shares of GPUs on nodes that are not known"
LIST_NODES = (
    "GPU-hours leave them out and are too low: add the node list with its Gres (scontrol show node), which states how "
    "many shard or mps a GPU has"
)
UNTRACKED = "shares of GPUs that accounting does not track"
TRACK_SHARES = (
    "GPU-hours leave them out, at least a share for each job there, so the nodes look idle and are not released: set "
    "AccountingStorageTRES=gres/{} in slurm.conf; past jobs stay without"
)
UNTYPED = "untyped GPUs on nodes of several kinds"
TRACK_TYPES = (
    "GPU-hours leave them out and are too low: their GPU types are not distinguishable; set "
    "AccountingStorageTRES=gres/gpu:TYPE for each type in slurm.conf; past jobs stay left out"
)
TOO_MANY = f"nodes that list more than {MAX_GPUS_PER_NODE} GPUs"
PARTITIONS = "GPUs of nodes that are partitions of a GPU"
OF_PARTITIONS = "no server has as many GPUs: a job is counted with the share of a GPU that its partitions are"
UNDECIDED = frozenset(
    {
        "MIG instances of an unknown GPU model",
        "GPU model ambiguous by its name",
        "unknown GPU type",
        UNKNOWN_SHARES,
        UNTRACKED,
    }
)
"""Findings that a node list may settle: found again over all jobs whenever one is added."""
GCD, GCDS_OF_BOARD = "-GCD", 2
"""How models are called of which a board has two dies, each a GPU to Slurm, ROCm and Kubernetes."""
DIES = "GPU-hours, power and prices are per die; a card has two"
NOT_TOLD_APART = "the model of each GPU is not known: list each GPU model as its own node"
TOLD = (
    "only one of the GPU models that the name may mean has all the MIG profiles named with it; change it with --map-gpu"
)


def device_words(counts: Mapping[str, float]) -> str | None:
    """Text for the column ``devices``; None if there are none.

    Examples
    --------
    >>> device_words({"a100": 2, "a100_1g.5gb": 3, "t4": 0})
    'a100=2,a100_1g.5gb=3'
    """
    items = [f"{word.replace(',', '_')}={count:.17g}" for word, count in counts.items() if count]
    return ",".join(items) or None


def resolve_jobs(
    jobs: pl.DataFrame,
    inventory: pl.DataFrame | None,
    stated: Mapping[str, str] | None = None,
    *,
    any_device: bool = False,
) -> tuple[pl.DataFrame, pl.DataFrame | None, list[Finding]]:
    """Decide what the devices of jobs and nodes are, and count jobs in GPUs.

    Parameters
    ----------
    jobs : polars.DataFrame
        Jobs as :class:`Counting` takes them.
    inventory : polars.DataFrame, optional
        Nodes, table ``schemas.Inventory``.
    stated : mapping of str to str, optional
        Word of the source → GPU model, as the user stated it.
    any_device : bool
        GPUs without a word may be whole ones or MIG instances, as Slurm counts them.

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_id": ["1", "2"], "gpus": [1.0, 2.0], "devices": ["a100_1g.5gb=1", "a100=2"]})
    >>> told, _, findings = resolve_jobs(jobs, None)
    >>> told.select(pl.col("gpus").round(3), "instances", "gpu_model").rows()
    [(0.143, 1, 'A100-40GB'), (2.0, None, 'A100-40GB')]
    >>> [finding.check for finding in findings]
    ['MIG instances counted as shares of GPUs', 'GPU model inferred from its MIG profiles']
    """
    counting = Counting.of(LongTable(kept=[jobs]), inventory, stated, any_device=any_device)
    return counting.count(jobs), counting.inventory, counting.findings


@dataclass(frozen=True, eq=False)
class Counting:
    """How the devices of jobs are counted in GPUs, as all of the jobs and nodes together decide it.

    - ``inventory``: Nodes with their boards.
    - ``findings``: What was decided how.
    - ``facts``: What each key comes to; None where no job has a word for its devices, so that there is nothing to do.
    - ``any_device``: GPUs without a word may be whole ones or MIG instances.
    """

    inventory: pl.DataFrame | None
    findings: list[Finding]
    facts: pl.DataFrame | None
    any_device: bool = False

    @classmethod
    def of(
        cls,
        jobs: LongTable,
        inventory: pl.DataFrame | None,
        stated: Mapping[str, str] | None = None,
        *,
        any_device: bool = False,
    ) -> Counting:
        """Decide it for jobs that stand in pieces."""
        said: dict[str, None] = {}
        if inventory is None and not stated and not any(map(_has_words, jobs.tables(LOOKED_AT))):
            return cls(None, [], None)
        for part in jobs.tables(LOOKED_AT):
            said |= dict.fromkeys(_words_of_jobs(_with_words(part)))
        words = [*said, *_words_of_nodes(inventory)]
        boards = Boards(stated_boards(stated), told_by_profiles(map(parse_device, words)))
        nodes, findings = (None, []) if inventory is None else _nodes(_following_jobs(inventory, jobs, boards), boards)
        keys = pl.concat(_keys(_placed(part, nodes, any_device)) for part in jobs.tables(LOOKED_AT))
        summed = keys.group_by(*KEY).agg(pl.col("rows", "asking").sum())
        facts, found = _facts(summed, replace(boards, installed=_installed(nodes)))
        found += _untracked(jobs, nodes)
        # Nodes are counted before jobs, and have the GPU models that were stated for their words already.
        models = {model.partition(":")[0]: word for word, model in boards.stated.items()}
        words += [models[word] for word in words if word in models]
        return cls(nodes, [*found, *findings, *_unused(boards, words)], facts, any_device)

    def count(self, jobs: pl.DataFrame) -> pl.DataFrame:
        """Jobs, or a piece of them, in GPUs."""
        if self.facts is None:
            plain = _with_words(jobs).drop(DEVICES)
            if "gpu_model_requested" in jobs.columns:
                return plain
            return plain.with_columns(gpu_model_requested=pl.when(pl.col("gpus") > 0).then(pl.lit(value=False)))
        return _counted(_placed(jobs, self.inventory, self.any_device), self.facts)


def resolve_nodes(
    inventory: pl.DataFrame, stated: Mapping[str, str] | None = None
) -> tuple[pl.DataFrame, list[Finding]]:
    """Decide which boards the nodes of an inventory have.

    Examples
    --------
    >>> nodes = pl.DataFrame({"node": ["n1"], "gpu_model": "a100", "gpus": 1, "layouts": "1g.5gb:7"})
    >>> resolve_nodes(nodes)[0]["gpu_model"].to_list()
    ['A100-40GB']
    """
    words = _words_of_nodes(inventory)
    boards = Boards(stated_boards(stated), told_by_profiles(map(parse_device, words)))
    nodes, findings = _nodes(inventory, boards)
    return nodes, [*findings, *_unused(boards, words)]


def _unused(boards: Boards, words: Sequence[str]) -> list[Finding]:
    """What the user said of boards that nothing is called by."""
    met = {key for word in (*words, None) for key in keys_of(word)}
    unused = sorted(word for word in boards.stated if word not in met)
    effect = "--map-gpu changed nothing there: no job and no node has this word"
    return [Finding("--map-gpu of no device", "warning", 0, effect, examples(unused))] if unused else []


def _with_words(jobs: pl.DataFrame) -> pl.DataFrame:
    """Jobs with a text of devices where there is anything to decide, and all columns that are looked at."""
    texts = (DEVICES, "gpu_model", "profile_requested", "node_list")
    rows = jobs.with_columns(
        *(pl.lit(None, pl.String).alias(name) for name in texts if name not in jobs.columns),
        *([] if "instances" in jobs.columns else [pl.lit(None, pl.Int32).alias("instances")]),
        *([] if "gpus_by_memory" in jobs.columns else [pl.col("gpus").alias("gpus_by_memory")]),
    )
    one_board = ~pl.col("gpu_model").str.contains("|", literal=True).fill_null(value=False)
    word = pl.concat_str([pl.when(one_board).then("gpu_model"), "profile_requested"], separator="_", ignore_nulls=True)
    profile = pl.col("profile_requested")
    sliced = profile.is_not_null() & (profile != WHOLE_GPU)
    plain = (
        pl.when(sliced & pl.col("instances").is_null() & (pl.col("gpus") > 0))
        .then(_item(word))
        # Shares that were read before the nodes were known.
        .when(profile.is_in(SHARES) & pl.col("gpus").is_null())
        .then(_item(profile, "instances"))
    )
    return rows.with_columns(pl.coalesce(pl.col(DEVICES).cast(pl.String), plain).alias(DEVICES))


def _item(word: pl.Expr | str, count: str = "gpus") -> pl.Expr:
    """One device of a text of devices, with its number."""
    return pl.concat_str(word, pl.lit("="), pl.col(count).cast(pl.String))


def _has_words(jobs: pl.DataFrame) -> bool:
    """Whether a job has a word for its devices."""
    names = [name for name in (DEVICES, "gpu_model", "profile_requested") if name in jobs.columns]
    return any(jobs[name].null_count() < jobs.height for name in names)


def _items(text: str | None) -> list[tuple[str, float]]:
    pairs = [item.rpartition("=") for item in (text or "").split(",") if item]
    return [(word, float(count)) for word, _, count in pairs]


def _words_of_jobs(jobs: pl.DataFrame) -> list[str]:
    devices = [word for text in jobs[DEVICES].drop_nulls().unique() for word, _ in _items(text)]
    models = [word for text in jobs["gpu_model"].drop_nulls().unique() for word in text.split("|")]
    return list(dict.fromkeys([*devices, *models]))


def _words_of_nodes(inventory: pl.DataFrame | None) -> list[str]:
    """Words for the boards of nodes, and with the profiles of their layouts."""
    if inventory is None:
        return []
    words: dict[str, None] = {}
    for model, layouts in inventory.select("gpu_model", "layouts").unique().iter_rows():
        for word in (model or "").split("|"):
            words |= dict.fromkeys([word] if word else [])
            if "|" not in (model or ""):
                words |= dict.fromkeys(f"{word}_{profile}" for profile in _profiles(layouts))
    return list(words)


def _profiles(layouts: str | None) -> list[str]:
    """MIG profiles of the layouts of a node, each once; none where the text is none."""
    found: dict[str, None] = {}
    for text in (layouts or "").split(";"):
        try:
            names = parse_layout(text) if text.strip() else ()
            found |= dict.fromkeys(name for name in names if name != WHOLE_GPU)
        except GeometryError:
            return []
    return list(found)


def _nodes(inventory: pl.DataFrame, boards: Boards) -> tuple[pl.DataFrame, list[Finding]]:
    """Nodes with their boards, and those whose boards the catalogue does not know by the words for them."""
    models = map_texts(inventory["gpu_model"], lambda text: _joined(text, boards), pl.String)
    nodes, found = _with_partitions(inventory.with_columns(models))
    undecided, strange = Counter[str](), Counter[str]()
    for text in inventory.filter(pl.col("gpus") > 0)["gpu_model"].drop_nulls():
        for word in text.split("|"):
            device = boards.device(word)
            if device.gpu_model is None:
                (undecided if device.maybe else strange).update([word])
    mixed = Counter(nodes.filter(pl.col("gpu_model").str.contains("|", literal=True))["gpu_model"].to_list())
    half = nodes.filter(pl.col("gpu_model").str.ends_with(GCD))
    dies = int(half["gpus"].sum())
    pairs = f"{dies} GCDs = {dies / GCDS_OF_BOARD:g} {half['gpu_model'][0].removesuffix(GCD)}" if dies else ""
    findings = [
        *found,
        *([Finding("GPUs that are one die of a card", "info", half.height, DIES, pairs)] if dies else []),
        *_finding("GPU model of nodes ambiguous by its name", "info", undecided, NOT_DECIDED),
        *_finding("unknown GPU type of nodes", "warning", strange, NOT_KNOWN),
        *_finding("several GPU models on one node", "warning", mixed, NOT_TOLD_APART),
    ]
    return nodes, findings


def _following_jobs(inventory: pl.DataFrame, jobs: LongTable, boards: Boards) -> pl.DataFrame:
    """Nodes whose word leaves several GPU models, with the one that all jobs name which name one there."""
    of_one = inventory.filter(~pl.col("gpu_model").str.contains("|", literal=True))
    maybe = {node: boards.device(word).maybe for node, word in of_one["node", "gpu_model"].iter_rows()}
    maybe = {node: several for node, several in maybe.items() if len(several) > 1}
    named: dict[str, set[str]] = {}
    for part in jobs.tables(LOOKED_AT) if maybe else ():
        texts = _with_words(part).select("node_list", text=pl.coalesce(DEVICES, "gpu_model"))
        for node_list, text in texts.drop_nulls().unique().iter_rows():
            words = [word.partition("=")[0] for word in text.split(",")]
            decided = {boards.device(word).gpu_model for word in words} - {None}
            for node in (known_nodes(node_list) or ()) if decided else ():
                named.setdefault(node, set()).update(decided)  # type: ignore[arg-type]
    told = {node: found.pop() for node, found in named.items() if len(found) == 1 and found <= {*maybe.get(node, ())}}
    model = pl.col("node").replace_strict(told, default=None, return_dtype=pl.String)
    return inventory.with_columns(gpu_model=pl.coalesce(model, "gpu_model")) if told else inventory


def _with_partitions(nodes: pl.DataFrame) -> tuple[pl.DataFrame, list[Finding]]:
    """Nodes that list more units than a server has, in GPUs where the units are partitions of them."""
    parts, words, many = dict[str, int](), [], []
    large = nodes.filter(pl.col("gpus") > MAX_GPUS_PER_NODE)
    for node, model, gpus in large["node", "gpu_model", "gpus"].iter_rows():
        each = partitions_of_units(model or "", int(gpus))
        if each is None:
            many.append(f"{node}: {gpus:g}")
            continue
        parts[node] = each
        words.append(f"{node}: {gpus:g} = {gpus // each:g} {model} x {each}")
    effect = "no server has as many GPUs: if they are shares or partitions of GPUs, GPU-hours are too high"
    findings = [Finding(TOO_MANY, "warning", len(many), effect, examples(many))] if many else []
    if not parts:
        return nodes, findings
    size = pl.col("node").replace_strict(parts, default=None, return_dtype=pl.Int64)
    nodes = nodes.with_columns(
        gpus=pl.col("gpus") // size.fill_null(1),
        shares=pl.coalesce(pl.format(f"{WHOLE_GPU}:{{}}", size), "shares"),
    )
    return nodes, [*findings, Finding(PARTITIONS, "warning", len(parts), OF_PARTITIONS, examples(words))]


def _joined(text: str, boards: Boards, near: Collection[str] = ()) -> str:
    """Words for boards, joined by ``|``, as the catalogue has them if it knows them all."""
    names = [boards.device(word, near).gpu_model for word in text.split("|")]
    return text if None in names else "|".join(dict.fromkeys(filter(None, names)))


def _installed(nodes: pl.DataFrame | None) -> tuple[str, ...]:
    """Boards of the inventory; none where a node does not say which it has."""
    if nodes is None:
        return ()
    models = nodes.filter(pl.col("gpus") > 0)["gpu_model"]
    return () if models.has_nulls() else tuple(models.unique().sort())


def _places(jobs: pl.DataFrame, nodes: pl.DataFrame | None) -> pl.DataFrame:
    """By node list: the boards on its nodes, their one kind of instance, and the parts that GPUs are shared in."""
    places = []
    if nodes is not None:
        columns = ("node", "gpu_model", "layouts", "shares")
        absent = [name for name in columns if name not in nodes.columns]
        there = nodes.with_columns(pl.lit(None, pl.String).alias(name) for name in absent)
        facts = {row[0]: row[1:] for row in there.select(columns).iter_rows()}
        places = [(text, *_place(text, facts)) for text in jobs["node_list"].drop_nulls().unique()]
    names = ("node_list", "device_near", "device_only", "device_parts")
    return pl.DataFrame(places, schema=dict.fromkeys(names, pl.String), orient="row")


def _place(
    node_list: str, facts: Mapping[str, tuple[str | None, str | None, str | None]]
) -> tuple[str | None, str | None, str | None]:
    here = {facts[name] for name in known_nodes(node_list) or () if name in facts}
    near = "|".join(sorted({model for model, _, _ in here if model})) or None
    kinds = {(model, _only_profile(layouts)) for model, layouts, _ in here}
    model, profile = kinds.pop() if len(kinds) == 1 else (None, None)
    shares = {text for _, _, text in here}
    only = AMBIGUOUS if profile == AMBIGUOUS else f"{model}_{profile}" if model and profile else None
    return near, only, shares.pop() if len(shares) == 1 else None


def _only_profile(layouts: str | None) -> str | None:
    """The profile of all GPUs of a node, where they have but one; None if all are whole, ``"?"`` of several."""
    profiles = _profiles(layouts)
    whole = any(text.strip() == WHOLE_GPU for text in (layouts or "").split(";"))
    if len(profiles) + whole > 1:
        return AMBIGUOUS
    return profiles[0] if profiles else None


def _untracked(jobs: LongTable, nodes: pl.DataFrame | None) -> list[Finding]:
    """Nodes whose GPUs are shared, while no job there has a share of a GPU."""
    if nodes is None or "shares" not in nodes.columns or nodes["shares"].null_count() == nodes.height:
        return []
    of_jobs = pl.col("shares").is_not_null() & ~pl.col("shares").str.starts_with(f"{WHOLE_GPU}:")
    shared = dict(nodes.filter(of_jobs).select("node", "shares").iter_rows())
    rows, tracked, gpu_hours = 0, False, 0.0
    parts = [int(count) for each in shared.values() for count in re.findall(r":(\d+)", each)]
    hours = (pl.col("end_time") - pl.col("start_time")).dt.total_seconds() / SECONDS_PER_HOUR
    for table in jobs.tables((*LOOKED_AT, "start_time", "end_time")):
        part = _with_words(table)
        texts = part["node_list"].drop_nulls().unique()
        near = [text for text in texts if shared.keys() & {*(known_nodes(text) or ())}]
        there = part.filter(pl.col("node_list").is_in(near))
        share = pl.col("gpus").is_null() | (pl.col("gpus") % 1 > 0) & pl.col("instances").is_null()
        tracked |= bool(there.select(share.any()).item())
        without = there.filter(pl.col("gpus") == 0)
        rows += without.height
        gpu_hours += float(without.select(hours.sum()).item()) / max(parts, default=1)
    if tracked or not rows:
        return []
    names = dict.fromkeys(text.partition(":")[0] for each in shared.values() for text in each.split(","))
    effect = TRACK_SHARES.format(",gres/".join(names))
    return [Finding(UNTRACKED, "warning", rows, effect, examples(sorted(shared)), gpu_hours)]


def _placed(jobs: pl.DataFrame, nodes: pl.DataFrame | None, any_device: bool) -> pl.DataFrame:
    """Jobs with the words for their devices, and what their nodes say of these."""
    jobs, held, known = _with_words(jobs), pl.col("gpus") > 0, pl.col("instances").is_not_null()
    nameless = held & ~known & pl.col("gpu_model").is_null()
    if not any_device:
        nameless &= pl.col("device_only") != AMBIGUOUS
    of_node = pl.when(nameless).then(_item("device_only"))
    rows = jobs.join(_places(jobs, nodes), on="node_list", how="left", maintain_order="left")
    partitioned = held & ~known & pl.col("device_parts").str.starts_with(f"{WHOLE_GPU}:")
    whole = _item(pl.col("gpu_model").fill_null(WHOLE_GPU))
    rows = rows.with_columns(pl.coalesce(DEVICES, pl.when(partitioned).then(whole)).alias(DEVICES))
    if nodes is not None and rows["device_parts"].null_count() < rows.height:
        both = rows.select(DEVICES, "device_parts").drop_nulls().unique()
        texts = [_in_parts(devices, parts) for devices, parts in both.iter_rows()]
        told = both.with_columns(in_parts=pl.Series(texts, dtype=pl.String))
        rows = rows.join(told, on=[DEVICES, "device_parts"], how="left", maintain_order="left")
        rows = rows.with_columns(pl.coalesce("in_parts", DEVICES).alias(DEVICES)).drop("in_parts")
    if "gpu_model_requested" not in rows.columns:
        rows = rows.with_columns(gpu_model_requested=pl.when(held).then(_names_board(rows)))
    return rows.with_columns(pl.coalesce(DEVICES, of_node))


def _in_parts(devices: str, parts: str) -> str:
    """Words for shares of GPUs with the number of such parts that a GPU of the node has.

    Examples
    --------
    >>> _in_parts("shard:a100=4", "shard:a100:4,shard:h100:8"), _in_parts("shard:a100=4,shard=1", "shard:8")
    ('shard:a100@4=4', 'shard:a100@8=4,shard@8=1')
    """
    stated = {word.casefold(): size for word, _, size in (text.rpartition(":") for text in parts.split(","))}
    found = {}
    for word, count in _items(devices):
        of_name = [size for key, size in stated.items() if key.partition(":")[0] == word.partition(":")[0]]
        size = stated.get(word.casefold()) or (of_name[0] if len(of_name) == 1 else None)
        size = size if SHARED.fullmatch(word) else stated.get(WHOLE_GPU)
        found[f"{word}@{size}" if size else word] = count
    return device_words(found) or devices


def _keys(rows: pl.DataFrame) -> pl.DataFrame:
    """How many rows have each key, and how many of them ask for GPUs."""
    held = (pl.col("gpus") > 0).fill_null(value=False)
    return rows.group_by(*KEY).agg(rows=pl.len().cast(pl.Int64), asking=held.sum().cast(pl.Int64))


def _counted(rows: pl.DataFrame, facts: pl.DataFrame) -> pl.DataFrame:
    """Rows in GPUs, as their keys come to."""
    held = pl.col("gpus") > 0
    known = pl.col("instances").is_not_null() & (
        pl.col("gpus").is_not_null() | ~pl.col("profile_requested").is_in(SHARES).fill_null(value=False)
    )
    counted = pl.coalesce("gpus", "device_count")
    # Devices that a job holds beyond its words are whole GPUs; where it holds fewer than its words, they shrink.
    fewer = (counted / pl.col("device_count")).clip(upper_bound=1.0)
    beyond = (counted - pl.col("device_count")).clip(lower_bound=0.0)
    cut = (pl.col("device_cut") > 0).fill_null(value=False) & ~known
    of_share = ~known & pl.col("gpus").is_null() & pl.col("device_compute").is_not_null()
    either = pl.col(DEVICES).str.starts_with(f"{AMBIGUOUS}=").fill_null(value=False)
    gpu_model = pl.when(held | pl.col(DEVICES).is_not_null()).then("device_board")

    def held_gpus(stated: str, share: str) -> pl.Expr:
        return pl.when(cut | of_share).then(pl.col(share) * fewer + beyond).when(~either).then(stated)

    table = rows.join(facts, on=KEY, how="left", nulls_equal=True, maintain_order="left").with_columns(
        gpus=held_gpus("gpus", "device_compute"),
        gpus_by_memory=held_gpus("gpus_by_memory", "device_memory"),
        instances=pl.when(cut).then("device_cut").when(~of_share).then("instances"),
        gpu_model=pl.coalesce(gpu_model, "gpu_model"),
        profile_requested=pl.when(cut).then("device_profile").when(~of_share).then("profile_requested"),
    )
    return table.drop("device_near", "device_only", "device_parts", DEVICES, *FACTS)


def _names_board(rows: pl.DataFrame) -> pl.Expr:
    """Whether the words of a row say a board; where it ran says nothing of that."""

    def named(text: str) -> bool:
        return any(parse_device(word.partition("@")[0]).gpu_model is not None for word, _ in _items(text))

    said = map_texts(rows[DEVICES], named, pl.Boolean).fill_null(value=False)
    return pl.col("gpu_model").is_not_null() | said


def _facts(keys: pl.DataFrame, boards: Boards) -> tuple[pl.DataFrame, list[Finding]]:
    """What each key comes to, and how many rows were decided in which way."""
    lines, cut_rows, of_several = [], 0, Counter[str]()
    of_unknown_shares = Counter[str]()
    unknown, undecided, strange, told = (Counter[str]() for _ in range(4))
    without = replace(boards, told={})
    for text, model, near_text, rows, asking in keys.sort(*KEY).iter_rows():
        near = tuple(near_text.split("|")) if near_text else ()
        items = [(word, count, boards.device(word, near)) for word, count in _items(text)]
        lines.append((text, model, near_text, *_line(items, model, boards, near)))
        cut_rows += rows if any(device.profile and device.share for _, _, device in items) else 0
        named = [word for word, _, _ in items] or (model or "").split("|")
        for word in dict.fromkeys(filter(None, named)):
            device = boards.device(word, near)
            if word == AMBIGUOUS:
                of_several[near_text or ""] += rows
            elif SHARED.fullmatch(word):
                of_unknown_shares[word] += rows if device.share is None else 0
            elif device.share is None:
                unknown[word] += rows
            elif device.gpu_model is None and word.casefold() != WHOLE_GPU:
                (undecided if device.maybe else strange)[word] += rows if items else asking
            elif device.gpu_model is not None and without.device(word, near).gpu_model is None:
                told[word] += rows
    table = pl.DataFrame(lines, schema={**dict.fromkeys(KEY, pl.String), **FACTS}, orient="row")
    findings = [
        *_finding("MIG instances counted as shares of GPUs", "info", Counter({"": cut_rows}), SHARED_OUT),
        *_finding("MIG instances of an unknown GPU model", "warning", unknown, NOT_COUNTED),
        *_finding(UNKNOWN_SHARES, "warning", of_unknown_shares, LIST_NODES),
        *_finding(UNTYPED, "warning", of_several, TRACK_TYPES),
        *_finding("GPU model ambiguous by its name", "info", undecided, NOT_DECIDED),
        *_finding("unknown GPU type", "warning", strange, NOT_KNOWN),
        *_finding("GPU model inferred from its MIG profiles", "info", told, TOLD),
    ]
    return table, findings


def _line(
    items: Sequence[tuple[str, float, Device]], model: str | None, boards: Boards, near: Collection[str]
) -> tuple[float | None, float | None, float | None, int | None, str | None, str | None]:
    """The columns :data:`FACTS` of one key."""
    if not items:
        only = boards.device(None, near).gpu_model
        return None, None, None, None, only if model is None else _joined(model, boards, near), None
    shares = [(count, device.share) for _, count, device in items if device.share is not None]
    compute = [count * share.compute for count, share in shares]
    memory = [count * share.memory for count, share in shares if share.memory is not None]
    names: dict[str | None, None] = {}
    for word, _, device in items:
        is_share = word == AMBIGUOUS or SHARED.fullmatch(word)
        stated = None if is_share else parse_device(word.partition("@")[0]).gpu_model
        names[device.gpu_model or stated] = None
    profiles = {device.profile for _, _, device in items}
    return (
        sum(count for _, count, _ in items),
        sum(compute) if len(compute) == len(items) else None,
        sum(memory) if len(memory) == len(items) else None,
        sum(
            math.ceil(count)
            for word, count, device in items
            if device.profile or (PARTITION.fullmatch(word) and not SHARED.fullmatch(word))
        ),
        "|".join(name for name in names if name) or None,
        profiles.pop() if len(profiles) == 1 else None,
    )


def _finding(check: str, severity: str, rows: Counter[str], effect: str) -> list[Finding]:
    """One line for all words, with the rows that have them; none if there are none."""
    words = [word for word, count in sorted(rows.items()) if word and count]
    count = sum(rows.values())
    return [Finding(check, severity, count, effect, examples(words) if words else "")] if count else []
