"""The fleet of a study: GPU model, nodes and sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

import polars as pl

from gpuplanner.core.errors import GeometryError, ScenarioError, examples
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.hardware.catalog import board_names, whole_board_names
from gpuplanner.hardware.gpu_models import GpuModel, any_board, whole_board
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.gpu_model_resolution import known_nodes
from gpuplanner.usage.installed_capacity import Installed, Pool, in_service, installed
from gpuplanner.usage.observed_nodes import (
    TodaysNodes,
    cut_as_held,
    largest_on_one_node,
    nodes_of,
    numbered_nodes,
    smaller_than_their_like,
    snapshot_remark,
    todays_layouts,
)

__all__ = ["UNNAMED", "Installed", "PlannedFleet", "Pool", "in_service", "installed", "planned_fleet"]

UNNAMED = "unnamed"
"""Name of the board of a fleet of which nobody says which it has; it is no board of any catalogue."""


@dataclass(frozen=True, eq=False)
class PlannedFleet:
    """The GPUs that a study plans for.

    - ``installed``: All GPUs of the data.
    - ``board``: What is planned; without profiles where nothing can be cut or nothing is known of the board.
    - ``name``: The board in the words of the catalogue, else of the source; None if nobody names one.
    - ``chosen``: The scenario names the board, and it is not that of the data: a what-if.
    - ``pool``: Board whose jobs alone are planned; None: all jobs.
    - ``gpus``: GPUs that are planned; ``note`` says where the number comes from.
    - ``node_size``: GPUs of a node in plans and exports; the last node may have fewer.
    - ``node_names``: Names of the nodes, where they are known and all are of that size, but for a smaller last one.
    - ``note``: Where the number of GPUs comes from.
    - ``layouts``: GPUs by the layout that they have today.
    - ``today``: The nodes one by one, as they are today.
    """

    installed: Installed
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
        """Whether prices, power and profiles of the board can be looked up."""
        return self.name is not None and known_board(self.name)

    @property
    def cut_gpus(self) -> int:
        """GPUs that are cut today."""
        return sum(gpus for layout, gpus in self.layouts.items() if layout != WHOLE_GPU)

    @property
    def can_be_cut(self) -> bool:
        """Whether the board has MIG profiles."""
        return bool(self.gpu_model.profiles)

    @property
    def untold(self) -> bool:
        """Whether the nodes have several boards, and jobs do not say on which they ran."""
        return self.name is None and len(self.installed.words) > 1 and not self.installed.inferred

    def require_board(self, what: str) -> None:
        """Raise if the catalogue does not know the board."""
        if not self.in_catalogue:
            got = "no GPU model in the data" if self.name is None else repr(self.name)
            if self.name is None and len(self.installed.words) > 1:
                got = f"several, and jobs do not name theirs: {examples(self.installed.words)}"
            raise ScenarioError(what, "a GPU model of the catalog", got, "Name one with --gpu-model.")

    def require_mig(self, what: str) -> None:
        """Raise if there is nothing to cut."""
        self.require_board(what)
        if not self.can_be_cut:
            raise ScenarioError(what, "a GPU model with MIG", repr(self.name), "Name one with --gpu-model.")

    def jobs_of(self, jobs: pl.DataFrame) -> pl.DataFrame:
        """Jobs that are planned: of several pools those of one, with those that have not started and name none.

        A job that names a board which is not installed belongs to the pool of its nodes, and one that waits and names
        none to the pool that holds most of its partition, else to the largest: to one pool each.
        """
        if self.pool is None:
            return jobs
        word = pl.col("gpu_model").cast(pl.String).str.to_lowercase()
        own = (word == self.pool.lower()) | (word.is_null() & self._home(jobs).eq_missing(self.pool.lower()))
        others = [str(pool.gpu_model).lower() for pool in self.installed.pools]
        if "node_list" in jobs.columns:
            inventory = self.installed.inventory
            mine = set(inventory.filter(pl.col("gpu_model").str.to_lowercase() == self.pool.lower())["node"])
            lists = jobs.filter(~word.is_in(others))["node_list"].drop_nulls().cast(pl.String).unique()
            here = [text for text in lists if mine.intersection(known_nodes(text) or ())]
            own |= ~word.is_in(others) & pl.col("node_list").cast(pl.String).is_in(here)
        kept = jobs.filter(own)
        return kept if kept.height else jobs

    def _home(self, jobs: pl.DataFrame) -> pl.Expr:
        """Board that most GPUs of a job's partition are of, in small letters; the largest pool's where nobody knows."""
        largest = pl.lit(str(self.installed.pools[0].gpu_model).lower())
        if "partition" not in jobs.columns:
            return largest
        word = pl.col("gpu_model").cast(pl.String).str.to_lowercase()
        by = jobs.drop_nulls("gpu_model").group_by("partition", word)
        most = by.agg(pl.col("gpus").sum()).sort("gpus", "gpu_model", descending=[True, False])
        most = most.drop_nulls("partition").unique("partition", keep="first", maintain_order=True)
        homes = dict(most.select(pl.col("partition").cast(pl.String), "gpu_model").iter_rows())
        if not homes:
            return largest
        place = pl.col("partition").cast(pl.String)
        return place.replace_strict(homes, default=None, return_dtype=pl.String).fill_null(largest)

    def hours_of(self, ledger: pl.DataFrame) -> pl.DataFrame:
        """Rows of a ledger that are about the planned GPUs."""
        return ledger if self.pool is None else ledger.filter(pl.col("gpu_model") == self.pool)

    def remarks(self) -> list[str]:
        """What a reader must know of the board and the size of the fleet, in sentences."""
        others = [pool for pool in self.installed.pools if pool.gpu_model != self.pool]
        found = []
        if self.pool is not None and others:
            listed = ", ".join(f"{pool.gpus} × {pool.gpu_model}" for pool in others)
            found.append(
                f"Of {self.installed.gpus:,} GPUs, the plan is for the {self._gpus_of_pool():,} × {self.pool} and the "
                f"jobs on them. Not planned, but in the ledger: {listed}. Plan for these with --gpu-model."
            )
        elif self.chosen:
            own = ", ".join(self.installed.words) or "not named in the data"
            found.append(
                f"What-if: the GPU models of the data ({own}) are not {self.name}; layouts, cost and energy count "
                f"each of its GPUs as one {self.name}."
            )
        elif self.name is None and len(self.installed.words) > 1:
            found.append(
                f"The {self.installed.gpus:,} GPUs are of {len(self.installed.words)} models "
                f"({', '.join(self.installed.words)}), and not all jobs name theirs: all GPUs are "
                f"planned as one pool without MIG. {ASK}"
            )
        elif self.name is None and self.can_be_cut:
            found.append(
                f"The data name no GPU model. Its MIG profiles are those of {self.gpu_model.name}: layouts are "
                "planned for it, without cost and energy. Name it with --gpu-model."
            )
        elif self.name is None:
            found.append(f"The data name no GPU model: full GPUs are planned. {ASK}")
        elif not self.in_catalogue:
            found.append(f"The GPU model {self.name!r} is not in the catalog: full GPUs are planned. {ASK}")
        if self.in_catalogue and not self.can_be_cut:
            told = "full GPUs are planned, and there are no layouts to export."
            found.append(f"{self.name} has no MIG: {told}")
        if self.installed.instances and self.can_be_cut and not self.cut_gpus and not self.chosen:
            found.append(
                "Jobs ran on MIG instances, and the data have no MIG layouts: plans start with full GPUs, and today's "
                "waits are simulated with the fewest partitioned GPUs that hold these instances. Import the nodes "
                "with their layouts."
            )
        if self.gpus != self._gpus_of_pool():
            told = f"{self.gpus:,} GPUs ({self.note}), of {self.installed.gpus:,} installed."
            found.append(f"The plan is for {told}")
        return [*found, *self.today.remarks]

    def _gpus_of_pool(self) -> int:
        return sum(pool.gpus for pool in self.installed.pools if self.pool in (None, pool.gpu_model))


ASK = "Layouts, cost and energy need a GPU model: name it with --gpu-model."


def planned_fleet(scenario: Scenario, trace: Dataset, begin: datetime, end: datetime) -> PlannedFleet:
    """Choose what is planned: the scenario's board, else the data's own, of several the largest pool.

    Examples
    --------
    >>> from gpuplanner.usage.job_history import begin_of, end_of, load_trace
    >>> sample = load_trace("sample")
    >>> found = planned_fleet(Scenario(), sample, begin_of(sample), end_of(sample))
    >>> found.name, found.gpus, found.node_size, found.note
    ('H100-80GB-SXM5', 64, 8, 'from the inventory')
    """
    there = installed(trace, begin, end)
    name, pool = _gpu_model(scenario, there)
    if name is None:
        profiles = trace.jobs["profile_requested"].drop_nulls().unique().to_list()
        gpu_model = board_like(profiles) or whole_board(UNNAMED)
    else:
        gpu_model = any_board(name) if known_board(name) else whole_board(name)
    own = there.words == (scenario.gpu_model,) if pool is None else scenario.gpu_model == pool
    chosen = scenario.gpu_model is not None and not own
    nodes = in_service(there.inventory, end).sort("node")
    if pool is not None:
        nodes = nodes.filter(pl.col("gpu_model").str.to_lowercase() == pool.lower())
    # Where the data name no board, the one that is given is theirs.
    as_cut = nodes.drop("layouts") if chosen and there.words else nodes
    note = there.origin
    if scenario.nodes > 0:
        gpus, size = scenario.nodes * scenario.gpus_per_node, scenario.gpus_per_node
        kept = nodes.filter(gpus=size).head(0 if chosen else scenario.nodes)
        layouts = _with_whole(todays_layouts(kept, gpu_model), gpus - int(kept["gpus"].sum()))
        today, note = numbered_nodes(gpus, size, layouts), "as given in the scenario"
    elif there.by_node and nodes.height:
        today = nodes_of(as_cut, gpu_model, inferred=there.inferred)
        gpus, layouts = today.total, todays_layouts(as_cut, gpu_model) or {WHOLE_GPU: today.total}
        size = max(today.gpus)
    else:
        gpus = max(int(nodes["gpus"].sum()), 1)
        size = min(max(scenario.gpus_per_node, largest_on_one_node(trace.jobs)), gpus)
        layouts = {WHOLE_GPU: gpus}
        today = replace(numbered_nodes(gpus, size, layouts), inferred=there.inferred)
        size = min(scenario.gpus_per_node, gpus)
    if there.by_node and len(set(today.gpus)) != 1:
        note = f"{there.origin}, nodes of unlike sizes as one pool"
    whole = all(text == WHOLE_GPU for texts in today.layouts for text in texts)
    if whole and there.instances and gpu_model.profiles and not chosen:
        today = cut_as_held(today, trace.jobs, gpu_model, begin, end)
    snapshot = snapshot_remark(trace.jobs, begin, end)
    remarks = [*there.remarks, *today.remarks, *([snapshot] if snapshot else [])]
    if today.inferred and today.named:
        remarks += smaller_than_their_like(today)
    return PlannedFleet(
        installed=there,
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


def board_like(profiles: Sequence[str]) -> GpuModel | None:
    """The first board of the catalogue that can be cut into all of some profiles; None if none can, or none is named.

    Slices say how a board can be cut, and not which it is: nothing but layouts may be read from what is found.

    Examples
    --------
    >>> board_like(["1g.10gb", "3g.40gb"]).name, board_like([]), board_like(["1g.5gb", "3g.40gb"])
    ('A100-80GB', None, None)
    """
    for name in board_names() if profiles else ():
        gpu_model = any_board(name)
        with suppress(GeometryError):
            for profile in profiles:
                gpu_model.profile(profile)
            return gpu_model
    return None


def _with_whole(layouts: Mapping[str, int], more: int) -> dict[str, int]:
    """Layouts of the nodes that are there already, and so many further GPUs, which nobody has cut."""
    whole = layouts.get(WHOLE_GPU, 0) + more
    return {**layouts, WHOLE_GPU: whole} if whole or not layouts else dict(layouts)


def _gpu_model(scenario: Scenario, there: Installed) -> tuple[str | None, str | None]:
    """Name of the board to plan for, and of the pool whose jobs alone are planned, if there are several."""
    asked = scenario.gpu_model
    apart = {pool.gpu_model: pool.gpu_model for pool in there.pools if pool.gpu_model is not None}
    several = len(apart) > 1
    if scenario.pool is not None:
        found = {gpu_model.lower(): gpu_model for gpu_model in apart}.get(scenario.pool.lower())
        if found is None:
            known = examples(list(apart)) if apart else "none: jobs do not name their GPU model"
            raise ScenarioError(f"pool {scenario.pool!r}", "a GPU model of the data", known, "Fix pool.")
        return asked or found, found if several else None
    if asked is not None:
        if several and asked in apart and there.busy and asked not in there.busy:
            held = ", ".join(gpu_model for gpu_model in apart if gpu_model in there.busy)
            got, todo = f"jobs on {held} alone", "Name one of these with --gpu-model."
            raise ScenarioError(f"GPU model {asked}", "a GPU model with jobs", got, todo)
        return asked, asked if several and asked in apart else None
    if apart:
        largest = there.pools[0].gpu_model
        return largest, largest if several else None
    return (there.words[0] if len(there.words) == 1 else None), None


def known_board(name: str) -> bool:
    """Whether the catalogue has a board of this name, with MIG or without."""
    return name in board_names() or name in whole_board_names()
