"""The fleet of a study: GPU model, nodes and sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

import polars as pl

from gpuplanner.core.errors import GeometryError, ScenarioError, examples
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.hardware.catalog import mig_model_names, non_mig_model_names
from gpuplanner.hardware.gpu_model_names import possible_gpu_models
from gpuplanner.hardware.gpu_models import GpuModel, load_any_gpu_model, make_non_mig_model
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.gpu_model_resolution_and_node_lists import try_expand_node_list
from gpuplanner.usage.current_nodes import (
    TodaysNodes,
    count_layouts,
    describe_smaller_nodes,
    describe_snapshot,
    largest_single_node_job,
    make_numbered_nodes,
    nodes_from_inventory,
    partition_as_allocated,
)
from gpuplanner.usage.installed_capacity import InstalledGpus, find_installed, nodes_in_service


def explain_full_gpus(name: str | None) -> str:
    """Explain why GPUs of a model are planned without MIG: its name is missing, ambiguous or unknown, or it has none.

    Examples
    --------
    >>> explain_full_gpus("h100"), explain_full_gpus("L40S")
    ('the GPU model h100 is ambiguous', 'L40S has no MIG')
    """
    if name is None:
        return "the data do not name one GPU model"
    if is_catalogue_model(name):
        return f"{name} has no MIG"
    is_ambiguous = len(possible_gpu_models(name, None)) > 1
    return f"the GPU model {name} is {'ambiguous' if is_ambiguous else 'not in the catalog'}"


UNNAMED_GPU_MODEL = "unnamed"
"""GPU model name of GPUs whose model no source states; the catalogue has no such model."""


@dataclass(frozen=True, eq=False)
class PlannedFleet:
    """Fleet that a study plans for: GPU model, GPUs, nodes and today's layouts.

    - ``installed``: All installed GPUs of the data.
    - ``gpu_model``: Model that is planned for; without profiles where it has no MIG or is unknown.
    - ``name``: The GPU model as the catalogue names it, else the source; None if no source names one.
    - ``chosen``: Whether the scenario names a GPU model other than that of the data: a what-if analysis.
    - ``pool``: GPU model whose jobs alone are planned; None: all jobs.
    - ``accounted``: Installed GPUs of all tables of the study: those of the pool that the scenario names, else all.
    - ``gpus``: Number of GPUs that are planned.
    - ``node_size``: GPUs of a node in plans and exports; the last node may have fewer.
    - ``node_names``: Names of the nodes, where they are known and all are of that size, but for a smaller last one.
    - ``note``: Where the number of GPUs comes from.
    - ``layouts``: GPUs by the layout that they have today.
    - ``today``: Today's nodes with their layouts.
    """

    installed: InstalledGpus
    accounted: InstalledGpus
    gpu_model: GpuModel
    name: str | None
    chosen: bool
    pool: str | None
    gpus: int
    node_size: int
    node_names: tuple[str, ...] | None
    note: str
    layouts: Mapping[str, int]
    today: TodaysNodes

    @property
    def in_catalogue(self) -> bool:
        """Whether the catalogue has prices, power and profiles of the GPU model."""
        return self.name is not None and is_catalogue_model(self.name)

    @property
    def cut_gpus(self) -> int:
        """Number of GPUs that are MIG-partitioned today."""
        return sum(gpus for layout, gpus in self.layouts.items() if layout != FULL_GPU)

    @property
    def can_be_cut(self) -> bool:
        """Whether the GPU model has MIG profiles."""
        return bool(self.gpu_model.profiles)

    @property
    def has_jobs_without_gpu_model(self) -> bool:
        """Whether the nodes have several GPU models and jobs do not state on which one they ran."""
        return self.name is None and len(self.installed.words) > 1 and not self.installed.inferred

    def require_catalogue_model(self, subject: str) -> None:
        """Raise if the catalogue does not have the GPU model."""
        if not self.in_catalogue:
            got = "no GPU model in the data" if self.name is None else repr(self.name)
            if self.name is None and len(self.installed.words) > 1:
                got = f"several, and jobs do not name theirs: {examples(self.installed.words)}"
            raise ScenarioError(subject, "a GPU model of the catalog", got, "Name one with --gpu-model.")

    def require_mig(self, subject: str) -> None:
        """Raise if the GPU model has no MIG."""
        self.require_catalogue_model(subject)
        if not self.can_be_cut:
            raise ScenarioError(subject, "a GPU model with MIG", repr(self.name), "Name one with --gpu-model.")

    def jobs_of(self, jobs: pl.DataFrame) -> pl.DataFrame:
        """Select the jobs of the planned GPU pool, waiting jobs without a GPU model included.

        A job that names a GPU model which is not installed belongs to the pool of its nodes. A waiting job that names
        none belongs to the pool with most GPUs in its partition, else to the largest pool.
        """
        if self.pool is None:
            return jobs
        word = pl.col("gpu_model").cast(pl.String).str.to_lowercase()
        is_at_home = word.is_null() & self._home_pool_of_jobs(jobs).eq_missing(self.pool.lower())
        is_planned = (word == self.pool.lower()) | is_at_home
        installed_models = [str(pool.gpu_model).lower() for pool in self.installed.pools]
        if "node_list" in jobs.columns:
            pool_nodes = set(self.installed.of_model(self.pool).inventory["node"])
            lists = jobs.filter(~word.is_in(installed_models))["node_list"].drop_nulls().cast(pl.String).unique()
            pool_lists = [text for text in lists if pool_nodes.intersection(try_expand_node_list(text) or ())]
            is_planned |= ~word.is_in(installed_models) & pl.col("node_list").cast(pl.String).is_in(pool_lists)
        kept = jobs.filter(is_planned)
        return kept if kept.height else jobs

    def _home_pool_of_jobs(self, jobs: pl.DataFrame) -> pl.Expr:
        """Find the GPU model with most GPUs in a job's partition, in lower case; else that of the largest GPU pool."""
        largest = pl.lit(str(self.installed.pools[0].gpu_model).lower())
        if "partition" not in jobs.columns:
            return largest
        word = pl.col("gpu_model").cast(pl.String).str.to_lowercase()
        by = jobs.drop_nulls(["gpu_model", "partition"]).group_by("partition", word, maintain_order=True)
        gpus_by_partition = by.agg(pl.col("gpus").sum()).sort("gpus", "gpu_model", descending=[True, False])
        gpus_by_partition = gpus_by_partition.unique("partition", keep="first", maintain_order=True)
        homes = dict(gpus_by_partition.select(pl.col("partition").cast(pl.String), "gpu_model").iter_rows())
        if not homes:
            return largest
        partition = pl.col("partition").cast(pl.String)
        return partition.replace_strict(homes, default=None, return_dtype=pl.String).fill_null(largest)

    def hours_of(self, ledger: pl.DataFrame) -> pl.DataFrame:
        """Select the rows of a ledger for the planned GPUs."""
        return ledger if self.pool is None else ledger.filter(pl.col("gpu_model") == self.pool)

    def remarks(self) -> list[str]:
        """List remarks on the GPU model and the size of the fleet, as sentences."""
        other_pools = [pool for pool in self.accounted.pools if pool.gpu_model != self.pool]
        sentences = []
        if self.pool is not None and other_pools:
            listed = ", ".join(f"{pool.gpus} × {pool.gpu_model}" for pool in other_pools)
            sentences.append(
                f"Of {self.installed.gpus:,} GPUs, the plan is for the {self._gpus_of_pool():,} × {self.pool} and the "
                f"jobs on them. Not planned, but in the ledger: {listed}. Plan for these with --gpu-model."
            )
        elif self.chosen:
            data_models = ", ".join(self.installed.words) or "not named in the data"
            sentences.append(
                f"What-if: the GPU models of the data ({data_models}) are not {self.name}; layouts, cost and energy "
                f"count each of its GPUs as one {self.name}."
            )
        elif self.name is None and len(self.installed.words) > 1:
            sentences.append(
                f"The {self.installed.gpus:,} GPUs are of {len(self.installed.words)} models "
                f"({', '.join(self.installed.words)}), and not all jobs name a single one: all GPUs are "
                f"planned as one pool without MIG. {GPU_MODEL_NEEDED_TEXT}"
            )
        elif self.name is None and self.can_be_cut:
            sentences.append(
                f"The data name no GPU model. Its MIG profiles are those of {self.gpu_model.name}: layouts are "
                "planned for it, without cost and energy. Name it with --gpu-model."
            )
        elif self.name is None:
            sentences.append(f"The data name no GPU model: full GPUs are planned. {GPU_MODEL_NEEDED_TEXT}")
        elif not self.in_catalogue:
            why = explain_full_gpus(self.name)
            sentences.append(f"{why[:1].upper()}{why[1:]}: full GPUs are planned. {GPU_MODEL_NEEDED_TEXT}")
        if self.in_catalogue and not self.can_be_cut:
            text = "full GPUs are planned, and there are no layouts to export."
            sentences.append(f"{self.name} has no MIG: {text}")
        if self.installed.instances and self.can_be_cut and not self.cut_gpus and not self.chosen:
            sentences.append(
                "Jobs ran on MIG instances, and the data have no MIG layouts: plans start with full GPUs, and today's "
                "waits are simulated with the fewest partitioned GPUs that hold these instances. Import the nodes "
                "with their layouts."
            )
        if self.gpus != self._gpus_of_pool():
            text = f"{self.gpus:,} GPUs ({self.note}), of {self.installed.gpus:,} installed."
            sentences.append(f"The plan is for {text}")
        return [*sentences, *self.today.remarks]

    def _gpus_of_pool(self) -> int:
        """Sum the GPUs in service of the planned GPU pool; of all pools if none is chosen."""
        return sum(pool.gpus for pool in self.installed.pools if self.pool in (None, pool.gpu_model))


GPU_MODEL_NEEDED_TEXT = "Layouts, cost and energy need a GPU model: name it with --gpu-model."
"""Remark for a fleet whose GPU model is unknown."""


def planned_fleet(scenario: Scenario, dataset: Dataset, begin: datetime, end: datetime) -> PlannedFleet:
    """Choose the planned fleet: the scenario's GPU model, else that of the data, of several the largest GPU pool.

    Parameters
    ----------
    scenario : Scenario
        Scenario of the study.
    dataset : Dataset
        Jobs, nodes and telemetry.
    begin : datetime
        Begin of the window.
    end : datetime
        End of the window.

    Examples
    --------
    >>> from gpuplanner.usage.planning_history import observation_begins_at, observation_ends_at, load_dataset
    >>> sample = load_dataset("sample")
    >>> found = planned_fleet(Scenario(), sample, observation_begins_at(sample), observation_ends_at(sample))
    >>> found.name, found.gpus, found.node_size, found.note
    ('H100-80GB-SXM5', 64, 8, 'from the inventory')
    """
    capacity = find_installed(dataset, begin, end)
    name, pool = _planned_model_and_pool(scenario, capacity)
    if name is None:
        profiles = dataset.jobs["profile_requested"].drop_nulls().unique().to_list()
        gpu_model = find_model_with_profiles(profiles) or make_non_mig_model(UNNAMED_GPU_MODEL)
    else:
        gpu_model = load_any_gpu_model(name) if is_catalogue_model(name) else make_non_mig_model(name)
    is_data_model = capacity.words == (scenario.gpu_model,) if pool is None else scenario.gpu_model == pool
    chosen = scenario.gpu_model is not None and not is_data_model
    planned = capacity if pool is None else capacity.of_model(pool)
    nodes = nodes_in_service(planned.inventory, end).sort("node")
    # Where the data name no board, the one that is given is theirs.
    as_cut = nodes.drop("layouts") if chosen and capacity.words else nodes
    note = capacity.origin
    if scenario.nodes > 0:
        gpus, size = scenario.nodes * scenario.gpus_per_node, scenario.gpus_per_node
        kept = nodes.filter(gpus=size).head(0 if chosen else scenario.nodes)
        layouts = _add_full_gpus(count_layouts(kept, gpu_model), gpus - int(kept["gpus"].sum()))
        today, note = make_numbered_nodes(gpus, size, layouts), "as given in the scenario"
    elif capacity.by_node and nodes.height:
        today = nodes_from_inventory(as_cut, gpu_model, inferred=capacity.inferred)
        gpus, layouts = today.total, count_layouts(as_cut, gpu_model) or {FULL_GPU: today.total}
        size = max(today.gpus)
    else:
        gpus = max(int(nodes["gpus"].sum()), 1)
        size = min(max(scenario.gpus_per_node, largest_single_node_job(dataset.jobs)), gpus)
        layouts = {FULL_GPU: gpus}
        today = replace(make_numbered_nodes(gpus, size, layouts), inferred=capacity.inferred)
        size = min(scenario.gpus_per_node, gpus)
    if capacity.by_node and len(set(today.gpus)) != 1:
        note = f"{capacity.origin}, nodes of unlike sizes as one pool"
    whole = all(text == FULL_GPU for texts in today.layouts for text in texts)
    if whole and capacity.instances and gpu_model.profiles and not chosen:
        today = partition_as_allocated(today, dataset.jobs, gpu_model, begin, end)
    snapshot = describe_snapshot(dataset.jobs, begin, end)
    remarks = [*capacity.remarks, *today.remarks, *([snapshot] if snapshot else [])]
    if today.inferred and today.named:
        remarks += describe_smaller_nodes(today)
    return PlannedFleet(
        installed=capacity,
        accounted=capacity if scenario.pool is None else planned,
        gpu_model=gpu_model,
        name=name,
        chosen=chosen,
        pool=pool,
        gpus=gpus,
        node_size=size,
        # Whoever counts nodes of one size may have a smaller one only at the end.
        node_names=today.names if today.named and len({size, *today.gpus[:-1]}) == 1 else None,
        note=note,
        layouts=layouts,
        today=replace(today, remarks=tuple(remarks), snapshot=snapshot is not None),
    )


def find_model_with_profiles(profiles: Sequence[str]) -> GpuModel | None:
    """Find the first GPU model of the catalogue that has all of some MIG profiles, or None.

    Profiles tell how a GPU may be partitioned, not which model it is: use the result for layouts alone.

    Examples
    --------
    >>> find_model_with_profiles(["1g.10gb", "3g.40gb"]).name
    'A100-80GB'
    >>> find_model_with_profiles([]), find_model_with_profiles(["1g.5gb", "3g.40gb"])
    (None, None)
    """
    for name in mig_model_names() if profiles else ():
        gpu_model = load_any_gpu_model(name)
        with suppress(GeometryError):
            for profile in profiles:
                gpu_model.profile(profile)
            return gpu_model
    return None


def _add_full_gpus(layouts: Mapping[str, int], added_gpus: int) -> dict[str, int]:
    """Add full GPUs to the layouts of a fleet."""
    whole = layouts.get(FULL_GPU, 0) + added_gpus
    return {**layouts, FULL_GPU: whole} if whole or not layouts else dict(layouts)


def _planned_model_and_pool(scenario: Scenario, installed: InstalledGpus) -> tuple[str | None, str | None]:
    """Choose the GPU model to plan for, and, where there are several, the GPU pool whose jobs are planned."""
    requested = scenario.gpu_model
    models = {pool.gpu_model: pool.gpu_model for pool in installed.pools if pool.gpu_model is not None}
    several = len(models) > 1
    if scenario.pool is not None:
        pool_model = {gpu_model.lower(): gpu_model for gpu_model in models}.get(scenario.pool.lower())
        if pool_model is None:
            got_models = examples(list(models)) if models else "none: jobs do not name their GPU model"
            raise ScenarioError(f"pool {scenario.pool!r}", "a GPU model of the data", got_models, "Fix pool.")
        return requested or pool_model, pool_model if several else None
    if requested is not None:
        if several and requested in models and installed.busy and requested not in installed.busy:
            busy_models = ", ".join(gpu_model for gpu_model in models if gpu_model in installed.busy)
            got, todo = f"jobs on {busy_models} alone", "Name one of these with --gpu-model."
            raise ScenarioError(f"GPU model {requested}", "a GPU model with jobs", got, todo)
        return requested, requested if several and requested in models else None
    if models:
        largest = installed.pools[0].gpu_model
        return largest, largest if several else None
    return (installed.words[0] if len(installed.words) == 1 else None), None


def is_catalogue_model(name: str) -> bool:
    """Whether the catalogue has a GPU model of this name, with MIG or without."""
    return name in mig_model_names() or name in non_mig_model_names()
