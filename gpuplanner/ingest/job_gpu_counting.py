"""Counting of jobs in GPUs: full GPUs, MIG instances and shares of GPUs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from gpuplanner.core.errors import GeometryError, examples
from gpuplanner.core.schema_checks import add_absent_columns
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR
from gpuplanner.hardware.catalog import MAX_CATALOG_GPUS_PER_NODE, infer_partitions
from gpuplanner.hardware.gpu_model_names import parse_device_name
from gpuplanner.hardware.mig_layouts import parse_layout
from gpuplanner.ingest.chunked_tables import ChunkedTable
from gpuplanner.ingest.gpu_model_resolution_and_node_lists import (
    AMBIGUOUS_DEVICE_WORD,
    PARTITION_WORD_PATTERN,
    SHARE_PATTERN,
    SHARE_RESOURCES,
    DeviceResolver,
    ResolvedDevice,
    mapping_keys,
    try_expand_node_list,
)
from gpuplanner.ingest.quality_report import Finding, check_text, source_finding
from gpuplanner.ingest.source_fields import map_unique_texts

DEVICES_COLUMN = "devices"
"""Intermediate column of jobs: allocated devices by device word with their number (``a100=2,a100_1g.5gb=3``). Where it
is null, the job has ``gpus`` devices of ``profile_requested`` on ``gpu_model``."""

JOB_DEVICE_COLUMNS = (DEVICES_COLUMN, "gpu_model", "profile_requested", "node_list", "instances", "gpus")
"""Columns of jobs from which their devices are counted in GPUs."""
SHARED_DEVICE_KEY_COLUMNS = (DEVICES_COLUMN, "gpu_model", "device_near")
"""Columns of jobs that form the device key: jobs with equal values count as equally many GPUs, so that the result is
computed once for each distinct key."""
DEVICE_FACT_TYPES = {
    **{"device_count": pl.Float64, "device_compute": pl.Float64, "device_memory": pl.Float64},
    **{"device_cut": pl.Int32, "device_board": pl.String, "device_profile": pl.String},
}
"""Columns that are computed for each device key, with their types: number of devices, what they are in GPUs by compute
and by memory, number of MIG instances, GPU model, MIG profile."""

NODE_LIST_DEPENDENT_CHECKS = frozenset(
    check_text(f"devices: {name}")
    for name in ("MIG of an unknown model", "ambiguous model", "unknown type", "unknown shares", "untracked shares")
)
"""Findings that a node list may resolve; they are computed again whenever a node list is added."""
DIE_MODEL_SUFFIX = "-GCD"
"""Suffix of GPU models that are one die of a card, such as MI250X-GCD; each die is a GPU to Slurm, ROCm and Kubernetes.
"""
DIES_PER_CARD = 2
"""Dies of a card whose dies are GPUs of their own (models with :data:`DIE_MODEL_SUFFIX`)."""


def format_device_counts(counts: Mapping[str, float]) -> str | None:
    """Format the numbers of devices by device word for the column ``devices``; None if there are none.

    Examples
    --------
    >>> format_device_counts({"a100": 2, "a100_1g.5gb": 3, "t4": 0})
    'a100=2,a100_1g.5gb=3'
    """
    items = [f"{word.replace(',', '_')}={count:.17g}" for word, count in counts.items() if count]
    return ",".join(items) or None


def count_jobs_in_gpus(
    jobs: pl.DataFrame,
    inventory: pl.DataFrame | None,
    stated_models: Mapping[str, str] | None = None,
    *,
    any_device: bool = False,
) -> tuple[pl.DataFrame, pl.DataFrame | None, list[Finding]]:
    """Resolve the devices of jobs and nodes to GPU models, and replace devices of jobs by numbers of GPUs.

    Parameters
    ----------
    jobs : polars.DataFrame
        Jobs as :class:`DeviceCounter` takes them.
    inventory : polars.DataFrame, optional
        Nodes, table ``schemas.Inventory``.
    stated_models : mapping of str to str, optional
        Word of the source → GPU model, as the user stated it.
    any_device : bool
        GPUs without a type may be full GPUs or MIG instances, as Slurm counts them.

    Returns
    -------
    tuple of polars.DataFrame, polars.DataFrame or None, and list of Finding
        Jobs in GPUs, nodes with their GPU models, and findings for the quality report.

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_id": ["1", "2"], "gpus": [1.0, 2.0], "devices": ["a100_1g.5gb=1", "a100=2"]})
    >>> told, _, findings = count_jobs_in_gpus(jobs, None)
    >>> told.select(pl.col("gpus").round(3), "instances", "gpu_model").rows()
    [(0.143, 1, 'A100-40GB'), (2.0, None, 'A100-40GB')]
    >>> [finding.check for finding in findings]
    ['MIG instances counted as shares of GPUs', 'GPU model inferred from its MIG profiles']
    """
    counter = DeviceCounter.from_jobs(ChunkedTable(chunks=[jobs]), inventory, stated_models, any_device=any_device)
    return counter.count_gpus(jobs), counter.inventory, counter.findings


@dataclass(frozen=True, eq=False)
class DeviceCounter:
    """Converter of the devices of jobs (full GPUs, MIG instances, shares) to GPUs, built from all jobs and nodes.

    - ``inventory``: Nodes with their GPU models.
    - ``findings``: Findings on how devices were resolved.
    - ``facts``: Columns :data:`DEVICE_FACT_TYPES` for each device key; None where no job has a device word, so that
      jobs are unchanged.
    - ``any_device``: GPUs without a type may be full GPUs or MIG instances.
    """

    inventory: pl.DataFrame | None
    findings: list[Finding]
    facts: pl.DataFrame | None
    any_device: bool = False

    @classmethod
    def from_jobs(
        cls,
        job_table: ChunkedTable,
        inventory: pl.DataFrame | None,
        stated_models: Mapping[str, str] | None = None,
        *,
        any_device: bool = False,
    ) -> DeviceCounter:
        """Build the counter from a chunked table of jobs.

        Parameters
        ----------
        job_table : ChunkedTable
            All jobs.
        inventory : polars.DataFrame, optional
            Nodes, table ``schemas.Inventory``.
        stated_models : mapping of str to str, optional
            Word of the source → GPU model, as the user stated it.
        any_device : bool
            GPUs without a type may be full GPUs or MIG instances.
        """
        job_words: dict[str, None] = {}
        needs_words = inventory is not None or bool(stated_models)
        if not needs_words and not any(map(_has_device_words, job_table.tables(JOB_DEVICE_COLUMNS))):
            return cls(None, [], None)
        for chunk in job_table.tables(JOB_DEVICE_COLUMNS):
            job_words |= dict.fromkeys(_job_device_words(_add_device_text(chunk)))
        words = [*job_words, *_node_device_words(inventory)]
        resolver = DeviceResolver.from_words(words, stated_models)
        nodes: pl.DataFrame | None = None
        findings: list[Finding] = []
        if inventory is not None:
            nodes, findings = _resolve_nodes(_infer_from_jobs(inventory, job_table, resolver), resolver)
        chunks = job_table.tables(JOB_DEVICE_COLUMNS)
        keys = pl.concat(_count_keys(_add_node_facts(chunk, nodes, any_device)) for chunk in chunks)
        summed = keys.group_by(*SHARED_DEVICE_KEY_COLUMNS).agg(pl.col("rows", "asking").sum())
        facts, key_findings = _resolve_keys(summed, replace(resolver, installed_models=_installed_models(nodes)))
        key_findings += _untracked_share_findings(job_table, nodes)
        # Nodes are counted before jobs, and have the GPU models that were stated for their words already.
        models = {model.partition(":")[0]: word for word, model in resolver.stated_models.items()}
        words += [models[word] for word in words if word in models]
        return cls(nodes, [*key_findings, *findings, *_unused_mapping_findings(resolver, words)], facts, any_device)

    def count_gpus(self, jobs: pl.DataFrame) -> pl.DataFrame:
        """Replace the device columns of a batch of jobs by numbers of GPUs, GPU model and MIG profile."""
        if self.facts is None:
            with_text = _add_device_text(jobs).drop(DEVICES_COLUMN)
            if "gpu_model_requested" in jobs.columns:
                return with_text
            return with_text.with_columns(gpu_model_requested=pl.when(pl.col("gpus") > 0).then(pl.lit(value=False)))
        return _count_in_gpus(_add_node_facts(jobs, self.inventory, self.any_device), self.facts)


def resolve_node_models(
    inventory: pl.DataFrame, stated_models: Mapping[str, str] | None = None
) -> tuple[pl.DataFrame, list[Finding]]:
    """Resolve the GPU models of the nodes of an inventory.

    Examples
    --------
    >>> nodes = pl.DataFrame({"node": ["n1"], "gpu_model": "a100", "gpus": 1, "layouts": "1g.5gb:7"})
    >>> resolve_node_models(nodes)[0]["gpu_model"].to_list()
    ['A100-40GB']
    """
    words = _node_device_words(inventory)
    resolver = DeviceResolver.from_words(words, stated_models)
    nodes, findings = _resolve_nodes(inventory, resolver)
    return nodes, [*findings, *_unused_mapping_findings(resolver, words)]


def _unused_mapping_findings(resolver: DeviceResolver, words: Sequence[str]) -> list[Finding]:
    """Report words of the user's mapping (--map-gpu) that no device has, as findings."""
    used_keys = {key for word in (*words, None) for key in mapping_keys(word)}
    unused_words = sorted(word for word in resolver.stated_models if word not in used_keys)
    return [source_finding("devices: unused --map-gpu", 0, examples(unused_words))] if unused_words else []


def _add_device_text(jobs: pl.DataFrame) -> pl.DataFrame:
    """Add the column ``devices`` to jobs where devices must be resolved, and null columns for absent ones."""
    text_columns = (DEVICES_COLUMN, "gpu_model", "profile_requested", "node_list")
    rows = add_absent_columns(jobs, dict.fromkeys(text_columns, pl.String()) | {"instances": pl.Int32()}).with_columns(
        [] if "gpus_by_memory" in jobs.columns else [pl.col("gpus").alias("gpus_by_memory")]
    )
    one_board = ~pl.col("gpu_model").str.contains("|", literal=True).fill_null(value=False)
    model_word = pl.concat_str(
        [pl.when(one_board).then("gpu_model"), "profile_requested"], separator="_", ignore_nulls=True
    )
    profile = pl.col("profile_requested")
    is_sliced = profile.is_not_null() & (profile != FULL_GPU)
    device_text = (
        pl.when(is_sliced & pl.col("instances").is_null() & (pl.col("gpus") > 0))
        .then(_device_item(model_word))
        # Shares that were read before the nodes were known.
        .when(profile.is_in(SHARE_RESOURCES) & pl.col("gpus").is_null())
        .then(_device_item(profile, "instances"))
    )
    return rows.with_columns(pl.coalesce(pl.col(DEVICES_COLUMN).cast(pl.String), device_text).alias(DEVICES_COLUMN))


def _device_item(word: pl.Expr | str, count: str = "gpus") -> pl.Expr:
    """Expression for one item of the column ``devices``, ``word=number``."""
    return pl.concat_str(word, pl.lit("="), pl.col(count).cast(pl.String))


def _has_device_words(jobs: pl.DataFrame) -> bool:
    """Whether any job has a device word, so that its devices must be resolved."""
    names = [name for name in (DEVICES_COLUMN, "gpu_model", "profile_requested") if name in jobs.columns]
    return any(jobs[name].null_count() < jobs.height for name in names)


def _parse_device_text(text: str | None) -> list[tuple[str, float]]:
    """Parse the text of the column ``devices`` to device words and their numbers."""
    pairs = [item.rpartition("=") for item in (text or "").split(",") if item]
    return [(word, float(count)) for word, _, count in pairs]


def _job_device_words(jobs: pl.DataFrame) -> list[str]:
    """List the distinct device words of jobs."""
    devices = [word for text in jobs[DEVICES_COLUMN].drop_nulls().unique() for word, _ in _parse_device_text(text)]
    models = [word for text in jobs["gpu_model"].drop_nulls().unique() for word in text.split("|")]
    return list(dict.fromkeys([*devices, *models]))


def _node_device_words(inventory: pl.DataFrame | None) -> list[str]:
    """List the GPU model words of nodes, alone and with the MIG profiles of their layouts."""
    if inventory is None:
        return []
    words: dict[str, None] = {}
    for model, layouts in inventory.select("gpu_model", "layouts").unique().iter_rows():
        for word in (model or "").split("|"):
            words |= dict.fromkeys([word] if word else [])
            if "|" not in (model or ""):
                words |= dict.fromkeys(f"{word}_{profile}" for profile in _layout_profiles(layouts))
    return list(words)


def _layout_profiles(layouts: str | None) -> list[str]:
    """List the distinct MIG profiles in the layouts text of a node; empty for malformed layouts."""
    profiles: dict[str, None] = {}
    for text in (layouts or "").split(";"):
        try:
            names = parse_layout(text) if text.strip() else ()
            profiles |= dict.fromkeys(name for name in names if name != FULL_GPU)
        except GeometryError:
            return []
    return list(profiles)


def _resolve_nodes(inventory: pl.DataFrame, resolver: DeviceResolver) -> tuple[pl.DataFrame, list[Finding]]:
    """Resolve the GPU models of nodes, and report ambiguous, unknown and mixed models."""
    models = map_unique_texts(inventory["gpu_model"], lambda text: _join_model_names(text, resolver), pl.String)
    nodes, partition_findings = _merge_partitions(inventory.with_columns(models))
    ambiguous_words, unknown_words = Counter[str](), Counter[str]()
    for text in inventory.filter(pl.col("gpus") > 0)["gpu_model"].drop_nulls():
        for word in text.split("|"):
            device = resolver.resolve_word(word)
            if device.gpu_model is None:
                (ambiguous_words if device.candidates else unknown_words).update([word])
    mixed_models = Counter(nodes.filter(pl.col("gpu_model").str.contains("|", literal=True))["gpu_model"].to_list())
    die_nodes = nodes.filter(pl.col("gpu_model").str.ends_with(DIE_MODEL_SUFFIX))
    n_dies = int(die_nodes["gpus"].sum())
    die_findings = []
    if n_dies:
        card = die_nodes["gpu_model"][0].removesuffix(DIE_MODEL_SUFFIX)
        example = f"{n_dies} GCDs = {n_dies / DIES_PER_CARD:g} {card}"
        die_findings.append(source_finding("nodes: dies", die_nodes.height, example))
    findings = [
        *partition_findings,
        *die_findings,
        *_word_findings("nodes: ambiguous model", ambiguous_words),
        *_word_findings("nodes: unknown type", unknown_words),
        *_word_findings("nodes: several models", mixed_models),
    ]
    return nodes, findings


def _infer_from_jobs(inventory: pl.DataFrame, job_table: ChunkedTable, resolver: DeviceResolver) -> pl.DataFrame:
    """Set the GPU model of nodes with an ambiguous model to the one that all jobs on them name."""
    single_model_nodes = inventory.filter(~pl.col("gpu_model").str.contains("|", literal=True))
    candidates = {
        node: resolver.resolve_word(word).candidates
        for node, word in single_model_nodes["node", "gpu_model"].iter_rows()
    }
    candidates = {node: models for node, models in candidates.items() if len(models) > 1}
    models_by_node: dict[str, set[str]] = {}
    for chunk in job_table.tables(JOB_DEVICE_COLUMNS) if candidates else ():
        texts = _add_device_text(chunk).select("node_list", text=pl.coalesce(DEVICES_COLUMN, "gpu_model"))
        for node_list, text in texts.drop_nulls().unique().iter_rows():
            words = [word.partition("=")[0] for word in text.split(",")]
            decided_models = {resolver.resolve_word(word).gpu_model for word in words} - {None}
            for node in (try_expand_node_list(node_list) or ()) if decided_models else ():
                models_by_node.setdefault(node, set()).update(decided_models)  # type: ignore[arg-type]
    model_by_node = {
        node: models.pop()
        for node, models in models_by_node.items()
        if len(models) == 1 and models <= {*candidates.get(node, ())}
    }
    model = pl.col("node").replace_strict(model_by_node, default=None, return_dtype=pl.String)
    return inventory.with_columns(gpu_model=pl.coalesce(model, "gpu_model")) if model_by_node else inventory


def _merge_partitions(nodes: pl.DataFrame) -> tuple[pl.DataFrame, list[Finding]]:
    """Convert nodes that list compute partitions of GPUs as GPUs to their number of GPUs."""
    parts, merged, unknown = dict[str, int](), [], []
    large = nodes.filter(pl.col("gpus") > MAX_CATALOG_GPUS_PER_NODE)
    for node, model, gpus in large["node", "gpu_model", "gpus"].iter_rows():
        parts_per_gpu = infer_partitions(model or "", int(gpus))
        if parts_per_gpu is None:
            unknown.append(f"{node}: {gpus:g}")
            continue
        parts[node] = parts_per_gpu
        merged.append(f"{node}: {gpus:g} = {gpus // parts_per_gpu:g} {model} x {parts_per_gpu}")
    findings = [source_finding("nodes: many GPUs", len(unknown), examples(unknown))] if unknown else []
    if not parts:
        return nodes, findings
    size = pl.col("node").replace_strict(parts, default=None, return_dtype=pl.Int64)
    nodes = nodes.with_columns(
        gpus=pl.col("gpus") // size.fill_null(1), shares=pl.coalesce(pl.format(f"{FULL_GPU}:{{}}", size), "shares")
    )
    return nodes, [*findings, source_finding("nodes: partitions", len(parts), examples(merged))]


def _join_model_names(text: str, resolver: DeviceResolver, node_models: Collection[str] = ()) -> str:
    """Resolve GPU model words joined by ``|`` to catalogue names; unchanged if one of them is unknown."""
    names = [resolver.resolve_word(word, node_models).gpu_model for word in text.split("|")]
    return text if None in names else "|".join(dict.fromkeys(filter(None, names)))


def _installed_models(nodes: pl.DataFrame | None) -> tuple[str, ...]:
    """List the GPU models of the inventory; empty if the model of a node is unknown."""
    if nodes is None:
        return ()
    models = nodes.filter(pl.col("gpus") > 0)["gpu_model"]
    return () if models.has_nulls() else tuple(models.unique().sort())


def _describe_node_lists(jobs: pl.DataFrame, nodes: pl.DataFrame | None) -> pl.DataFrame:
    """Describe each node list: GPU models on its nodes, kind of device if all are alike, and shares per GPU.

    The last are the numbers of Slurm shards or MPS shares of each GPU, as text.
    """
    descriptions = []
    if nodes is not None:
        columns = ("node", "gpu_model", "layouts", "shares")
        complete_nodes = add_absent_columns(nodes, dict.fromkeys(columns, pl.String()))
        facts = {row[0]: row[1:] for row in complete_nodes.select(columns).iter_rows()}
        descriptions = [(text, *_describe_node_list(text, facts)) for text in jobs["node_list"].drop_nulls().unique()]
    names = ("node_list", "device_near", "device_only", "device_parts")
    return pl.DataFrame(descriptions, schema=dict.fromkeys(names, pl.String), orient="row")


def _describe_node_list(
    node_list: str, facts_by_node: Mapping[str, tuple[str | None, str | None, str | None]]
) -> tuple[str | None, str | None, str | None]:
    """Describe the nodes of one node list: GPU models, kind of device if all are alike, shard or MPS shares per GPU."""
    node_facts = {facts_by_node[name] for name in try_expand_node_list(node_list) or () if name in facts_by_node}
    models = "|".join(sorted({model for model, _, _ in node_facts if model})) or None
    device_kinds = {(model, _sole_profile(layouts)) for model, layouts, _ in node_facts}
    model, profile = device_kinds.pop() if len(device_kinds) == 1 else (None, None)
    shares = {text for _, _, text in node_facts}
    sole_device = f"{model}_{profile}" if model and profile else None
    if profile == AMBIGUOUS_DEVICE_WORD:
        sole_device = AMBIGUOUS_DEVICE_WORD
    return models, sole_device, shares.pop() if len(shares) == 1 else None


def _sole_profile(layouts: str | None) -> str | None:
    """Return the MIG profile of all GPUs of a node; None if all are full GPUs, ``"?"`` for several kinds."""
    profiles = _layout_profiles(layouts)
    has_full_gpu = any(text.strip() == FULL_GPU for text in (layouts or "").split(";"))
    if len(profiles) + has_full_gpu > 1:
        return AMBIGUOUS_DEVICE_WORD
    return profiles[0] if profiles else None


def _untracked_share_findings(job_table: ChunkedTable, nodes: pl.DataFrame | None) -> list[Finding]:
    """Report nodes whose GPUs jobs share (Slurm shard, MPS) if no job has a share: accounting does not track them."""
    if nodes is None or "shares" not in nodes.columns or nodes["shares"].null_count() == nodes.height:
        return []
    is_shared = pl.col("shares").is_not_null() & ~pl.col("shares").str.starts_with(f"{FULL_GPU}:")
    shares = dict(nodes.filter(is_shared).select("node", "shares").iter_rows())
    n_untracked = 0
    is_tracked = False
    gpu_hours = 0.0
    share_counts = [int(count) for text in shares.values() for count in re.findall(r":(\d+)", text)]
    hours = (pl.col("end_time") - pl.col("start_time")).dt.total_seconds() / SECONDS_PER_HOUR
    for table in job_table.tables((*JOB_DEVICE_COLUMNS, "start_time", "end_time")):
        chunk = _add_device_text(table)
        texts = chunk["node_list"].drop_nulls().unique()
        shared_lists = [text for text in texts if shares.keys() & {*(try_expand_node_list(text) or ())}]
        jobs_on_shared = chunk.filter(pl.col("node_list").is_in(shared_lists))
        is_share = pl.col("gpus").is_null() | (pl.col("gpus") % 1 > 0) & pl.col("instances").is_null()
        is_tracked |= bool(jobs_on_shared.select(is_share.any()).item())
        untracked_jobs = jobs_on_shared.filter(pl.col("gpus") == 0)
        n_untracked += untracked_jobs.height
        gpu_hours += float(untracked_jobs.select(hours.sum()).item()) / max(share_counts, default=1)
    if is_tracked or not n_untracked:
        return []
    items = ",".join(shares.values()).split(",")
    names = dict.fromkeys(item.partition(":")[0] for item in items)
    example, resources = examples(sorted(shares)), ",gres/".join(names)
    return [source_finding("devices: untracked shares", n_untracked, example, gpu_hours, resources=resources)]


def _add_node_facts(jobs: pl.DataFrame, nodes: pl.DataFrame | None, any_device: bool) -> pl.DataFrame:
    """Add the device text of jobs and the description of their nodes."""
    jobs, has_gpus, has_instances = _add_device_text(jobs), pl.col("gpus") > 0, pl.col("instances").is_not_null()
    is_nameless = has_gpus & ~has_instances & pl.col("gpu_model").is_null()
    if not any_device:
        is_nameless &= pl.col("device_only") != AMBIGUOUS_DEVICE_WORD
    of_node = pl.when(is_nameless).then(_device_item("device_only"))
    rows = jobs.join(_describe_node_lists(jobs, nodes), on="node_list", how="left", maintain_order="left")
    is_partitioned = has_gpus & ~has_instances & pl.col("device_parts").str.starts_with(f"{FULL_GPU}:")
    full_gpu_item = _device_item(pl.col("gpu_model").fill_null(FULL_GPU))
    rows = rows.with_columns(
        pl.coalesce(DEVICES_COLUMN, pl.when(is_partitioned).then(full_gpu_item)).alias(DEVICES_COLUMN)
    )
    if nodes is not None and rows["device_parts"].null_count() < rows.height:
        distinct_pairs = rows.select(DEVICES_COLUMN, "device_parts").drop_nulls().unique()
        texts = [_add_share_sizes(devices, parts) for devices, parts in distinct_pairs.iter_rows()]
        sized_texts = distinct_pairs.with_columns(in_parts=pl.Series(texts, dtype=pl.String))
        rows = rows.join(sized_texts, on=[DEVICES_COLUMN, "device_parts"], how="left", maintain_order="left")
        rows = rows.with_columns(pl.coalesce("in_parts", DEVICES_COLUMN).alias(DEVICES_COLUMN)).drop("in_parts")
    if "gpu_model_requested" not in rows.columns:
        rows = rows.with_columns(gpu_model_requested=pl.when(has_gpus).then(_names_gpu_model(rows)))
    return rows.with_columns(pl.coalesce(DEVICES_COLUMN, of_node))


def _add_share_sizes(devices: str, shares_text: str) -> str:
    """Add the number of shares per GPU to the share words in the text of column ``devices``.

    Examples
    --------
    >>> _add_share_sizes("shard:a100=4", "shard:a100:4,shard:h100:8")
    'shard:a100@4=4'
    >>> _add_share_sizes("shard:a100=4,shard=1", "shard:8")
    'shard:a100@8=4,shard@8=1'
    """
    size_by_word = {
        word.casefold(): size for word, _, size in (text.rpartition(":") for text in shares_text.split(","))
    }
    counts_by_word = {}
    for word, count in _parse_device_text(devices):
        sizes_of_name = [size for key, size in size_by_word.items() if key.partition(":")[0] == word.partition(":")[0]]
        size = size_by_word.get(word.casefold()) or (sizes_of_name[0] if len(sizes_of_name) == 1 else None)
        size = size if SHARE_PATTERN.fullmatch(word) else size_by_word.get(FULL_GPU)
        counts_by_word[f"{word}@{size}" if size else word] = count
    return format_device_counts(counts_by_word) or devices


def _count_keys(rows: pl.DataFrame) -> pl.DataFrame:
    """Count the jobs of each device key, and those of them that request GPUs."""
    has_gpus = (pl.col("gpus") > 0).fill_null(value=False)
    return rows.group_by(*SHARED_DEVICE_KEY_COLUMNS).agg(
        rows=pl.len().cast(pl.Int64), asking=has_gpus.sum().cast(pl.Int64)
    )


def _count_in_gpus(rows: pl.DataFrame, facts: pl.DataFrame) -> pl.DataFrame:
    """Replace device columns of jobs by the GPUs, instances, GPU model and profile of their device key."""
    has_gpus = pl.col("gpus") > 0
    is_counted = pl.col("instances").is_not_null() & (
        pl.col("gpus").is_not_null() | ~pl.col("profile_requested").is_in(SHARE_RESOURCES).fill_null(value=False)
    )
    device_count = pl.coalesce("gpus", "device_count")
    # Devices that a job holds beyond its words are whole GPUs; where it holds fewer than its words, they shrink.
    shrink_factor = (device_count / pl.col("device_count")).clip(upper_bound=1.0)
    extra_gpus = (device_count - pl.col("device_count")).clip(lower_bound=0.0)
    is_sliced = (pl.col("device_cut") > 0).fill_null(value=False) & ~is_counted
    is_share = ~is_counted & pl.col("gpus").is_null() & pl.col("device_compute").is_not_null()
    is_ambiguous = pl.col(DEVICES_COLUMN).str.starts_with(f"{AMBIGUOUS_DEVICE_WORD}=").fill_null(value=False)
    gpu_model = pl.when(has_gpus | pl.col(DEVICES_COLUMN).is_not_null()).then("device_board")

    def allocated_gpus(column: str, share: str) -> pl.Expr:
        """Return an expression for the GPUs of a job: column `share` for MIG instances and shares, else `column`."""
        return (
            pl.when(is_sliced | is_share)
            .then(pl.col(share) * shrink_factor + extra_gpus)
            .when(~is_ambiguous)
            .then(column)
        )

    joined = rows.join(facts, on=SHARED_DEVICE_KEY_COLUMNS, how="left", nulls_equal=True, maintain_order="left")
    table = joined.with_columns(
        gpus=allocated_gpus("gpus", "device_compute"),
        gpus_by_memory=allocated_gpus("gpus_by_memory", "device_memory"),
        instances=pl.when(is_sliced).then("device_cut").when(~is_share).then("instances"),
        gpu_model=pl.coalesce(gpu_model, "gpu_model"),
        profile_requested=pl.when(is_sliced).then("device_profile").when(~is_share).then("profile_requested"),
    )
    return table.drop("device_near", "device_only", "device_parts", DEVICES_COLUMN, *DEVICE_FACT_TYPES)


def _names_gpu_model(rows: pl.DataFrame) -> pl.Expr:
    """Expression for whether the device words of a job name a GPU model, wherever it ran."""

    def names_model(text: str) -> bool:
        """Whether any device word of the text names a GPU model."""
        return any(
            parse_device_name(word.partition("@")[0]).gpu_model is not None for word, _ in _parse_device_text(text)
        )

    has_model_word = map_unique_texts(rows[DEVICES_COLUMN], names_model, pl.Boolean).fill_null(value=False)
    return pl.col("gpu_model").is_not_null() | has_model_word


def _resolve_keys(keys: pl.DataFrame, resolver: DeviceResolver) -> tuple[pl.DataFrame, list[Finding]]:
    """Resolve the devices of each device key, and count the jobs by how they were resolved, as findings."""
    key_rows, mig_rows, mixed_rows = [], 0, Counter[str]()
    share_rows = Counter[str]()
    unknown, ambiguous, unknown_words, inferred = (Counter[str]() for _ in range(4))
    bare_resolver = replace(resolver, models_by_word={})
    for text, model, near_text, rows, asking in keys.sort(*SHARED_DEVICE_KEY_COLUMNS).iter_rows():
        node_models = tuple(near_text.split("|")) if near_text else ()
        items = [(word, count, resolver.resolve_word(word, node_models)) for word, count in _parse_device_text(text)]
        key_rows.append((text, model, near_text, *_key_facts(items, model, resolver, node_models)))
        mig_rows += rows if any(device.profile and device.share for _, _, device in items) else 0
        device_words = [word for word, _, _ in items] or (model or "").split("|")
        for word in dict.fromkeys(filter(None, device_words)):
            device = resolver.resolve_word(word, node_models)
            if word == AMBIGUOUS_DEVICE_WORD:
                mixed_rows[near_text or ""] += rows
            elif SHARE_PATTERN.fullmatch(word):
                share_rows[word] += rows if device.share is None else 0
            elif device.share is None:
                unknown[word] += rows
            elif device.gpu_model is None and word.casefold() != FULL_GPU:
                (ambiguous if device.candidates else unknown_words)[word] += rows if items else asking
            elif device.gpu_model is not None and bare_resolver.resolve_word(word, node_models).gpu_model is None:
                inferred[word] += rows
    schema = {**dict.fromkeys(SHARED_DEVICE_KEY_COLUMNS, pl.String), **DEVICE_FACT_TYPES}
    table = pl.DataFrame(key_rows, schema=schema, orient="row")
    findings = [
        *_word_findings("devices: MIG shares", Counter({"": mig_rows})),
        *_word_findings("devices: MIG of an unknown model", unknown),
        *_word_findings("devices: unknown shares", share_rows),
        *_word_findings("devices: untyped on mixed nodes", mixed_rows),
        *_word_findings("devices: ambiguous model", ambiguous),
        *_word_findings("devices: unknown type", unknown_words),
        *_word_findings("devices: inferred model", inferred),
    ]
    return table, findings


def _key_facts(
    items: Sequence[tuple[str, float, ResolvedDevice]],
    model: str | None,
    resolver: DeviceResolver,
    node_models: Collection[str],
) -> tuple[float | None, float | None, float | None, int | None, str | None, str | None]:
    """Compute the columns :data:`DEVICE_FACT_TYPES` of one device key.

    Parameters
    ----------
    items : sequence of tuple
        Device word, number of devices, and what the word means.
    model : str, optional
        GPU model word of the job.
    resolver : DeviceResolver
        Resolver of the source.
    node_models : collection of str
        GPU models on the nodes of the job.
    """
    if not items:
        sole = resolver.resolve_word(None, node_models).gpu_model
        known_model = sole if model is None else _join_model_names(model, resolver, node_models)
        return None, None, None, None, known_model, None
    shares = [(count, device.share) for _, count, device in items if device.share is not None]
    compute = [count * share.compute for count, share in shares]
    memory = [count * share.memory for count, share in shares if share.memory is not None]
    names: dict[str | None, None] = {}
    for word, _, device in items:
        is_share = word == AMBIGUOUS_DEVICE_WORD or SHARE_PATTERN.fullmatch(word)
        stated = None if is_share else parse_device_name(word.partition("@")[0]).gpu_model
        names[device.gpu_model or stated] = None
    profiles = {device.profile for _, _, device in items}
    return (
        sum(count for _, count, _ in items),
        sum(compute) if len(compute) == len(items) else None,
        sum(memory) if len(memory) == len(items) else None,
        sum(
            math.ceil(count)
            for word, count, device in items
            if device.profile or (PARTITION_WORD_PATTERN.fullmatch(word) and not SHARE_PATTERN.fullmatch(word))
        ),
        "|".join(name for name in names if name) or None,
        profiles.pop() if len(profiles) == 1 else None,
    )


def _word_findings(name: str, rows: Counter[str]) -> list[Finding]:
    """Create the finding `name` for all device words with their row counts; none without words."""
    words = [word for word, count in sorted(rows.items()) if word and count]
    count = sum(rows.values())
    return [source_finding(name, count, examples(words) if words else "")] if count else []
