"""The one fleet of a study: which boards are installed, for which of them is planned, and how that is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import polars as pl

from gpuplanner.catalog import board_names, whole_board_names
from gpuplanner.errors import ScenarioError, examples, message
from gpuplanner.hardware import GpuModel, any_board, whole_board
from gpuplanner.inbox import Dataset
from gpuplanner.ledger import inferred_inventory
from gpuplanner.ledger.pools import gpu_jobs, with_boards
from gpuplanner.ledger.window import Window
from gpuplanner.scenario import Scenario
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.study.past.todays_layouts import todays_layouts

UNNAMED = "unnamed"
"""Name of the board of a fleet of which nobody says which it has; it is no board of any catalogue."""


@dataclass(frozen=True)
class Pool:
    """GPUs of one board that are in service; ``board`` is None where all boards are one pool."""

    board: str | None
    gpus: int


@dataclass(frozen=True, eq=False)
class Installed:
    """What is installed in a window: the number that ledger, plan, simulation and page share.

    Attributes
    ----------
    inventory : polars.DataFrame
        Table ``schemas.Inventory``: as given, or inferred from what was held at once.
    inferred : bool
        Which of the two.
    pools : tuple of Pool
        GPUs in service at the end of the window by board, most first; a single pool of no board if jobs cannot
        be told apart by it.
    words : tuple of str
        Boards that the data name, most GPUs first, or most jobs first where no inventory names any.
    instances : bool
        Whether jobs held MIG instances.
    """

    inventory: pl.DataFrame
    inferred: bool
    pools: tuple[Pool, ...]
    words: tuple[str, ...]
    instances: bool = False

    @property
    def gpus(self) -> int:
        """GPUs in service at the end of the window."""
        return sum(pool.gpus for pool in self.pools)

    @property
    def listed(self) -> str:
        """GPUs by board in words.

        Examples
        --------
        >>> Installed(pl.DataFrame(), False, (Pool("T4", 8), Pool("L4", 2)), ()).listed
        '8 × T4, 2 × L4'
        """
        if self.pools[0].board is not None:
            return ", ".join(f"{pool.gpus} × {pool.board}" for pool in self.pools)
        if not self.words:
            return "not named"
        return ", ".join(self.words) + (
            "" if len(self.words) == 1 else "; not all jobs say on which they ran"
        )

    @property
    def origin(self) -> str:
        """Where the number comes from, in words.

        Examples
        --------
        >>> Installed(pl.DataFrame(), True, (Pool(None, 3),), ()).origin
        'inferred: the most that were held at once; there may be more'
        """
        if self.inferred:
            return "inferred: the most that were held at once; there may be more"
        return "from the inventory"


def installed(trace: Dataset, begin: datetime, end: datetime) -> Installed:
    """What is installed according to the inventory, else as few GPUs as could have run the jobs of the window.

    Examples
    --------
    >>> from gpuplanner.study.past.history import begin_of, end_of, load_trace
    >>> sample = load_trace("sample")
    >>> installed(sample, begin_of(sample), end_of(sample)).pools
    (Pool(board='H100-80GB-SXM5', gpus=64),)
    """
    inferred = trace.inventory is None or not int(trace.inventory["gpus"].sum() or 0)
    if trace.inventory is None or inferred:
        inventory = inferred_inventory(trace.jobs, start=begin, end=end)
    else:
        inventory = trace.inventory
    held = (
        gpu_jobs(trace.jobs.lazy(), Window(begin, end))
        .filter(pl.col("start_time").is_not_null())
        .group_by(pl.col("gpu_model").cast(pl.String))
        .agg(jobs=pl.len(), cut=pl.col("instances").is_not_null().sum())
        .collect()
    )
    _, nodes = with_boards(held, in_service(inventory, end))
    by_board = (
        nodes.group_by("board").agg(pl.col("gpus").sum()).sort("gpus", "board", descending=[True, False])
    )
    pools = tuple(Pool(board, int(gpus)) for board, gpus in by_board.iter_rows())
    instances = bool(held["cut"].sum())
    return Installed(inventory, inferred, pools or (Pool(None, 0),), _words(nodes, held), instances)


def in_service(inventory: pl.DataFrame, end: datetime) -> pl.DataFrame:
    """Nodes with GPUs that were not retired before `end`; all of them if none is left."""
    there = inventory.filter(pl.col("gpus") > 0)
    for name, kept in (("installed", pl.col("installed") < end), ("retired", pl.col("retired") >= end)):
        if name in there.columns:
            there = there.filter(kept.fill_null(value=True))
    return there if there.height else inventory.filter(pl.col("gpus") > 0)


def _words(nodes: pl.DataFrame, held: pl.DataFrame) -> tuple[str, ...]:
    named = nodes.drop_nulls("gpu_model").group_by("gpu_model").agg(weight=pl.col("gpus").sum())
    if named.is_empty():
        named = held.drop_nulls("gpu_model").group_by("gpu_model").agg(weight=pl.col("jobs").sum())
    return tuple(named.sort("weight", "gpu_model", descending=[True, False])["gpu_model"])


@dataclass(frozen=True, eq=False)
class PlannedFleet:
    """The GPUs that a study plans for.

    Attributes
    ----------
    installed : Installed
        All GPUs of the data.
    board : GpuModel
        What is planned; without profiles where nothing can be cut or nothing is known of the board.
    name : str or None
        The board in the words of the catalogue, else of the source; None if nobody names one.
    chosen : bool
        The scenario names the board, and it is not that of the data: a what-if.
    pool : str or None
        Board whose jobs alone are planned; None: all jobs.
    gpus : int
        GPUs that are planned; ``note`` says where the number comes from.
    nodes, gpus_per_node : int
        Nodes of equal size for the simulation; one node with all GPUs where the nodes are not known.
    node_size : int
        GPUs of a node in plans and exports; the last node may have fewer.
    node_names : tuple of str or None
        Names of the nodes where the inventory has them.
    note : str
        Where the number of GPUs comes from.
    layouts : mapping of str to int
        GPUs by the layout that they have today.
    """

    installed: Installed
    board: GpuModel
    name: str | None
    chosen: bool
    pool: str | None
    gpus: int
    nodes: int
    gpus_per_node: int
    node_size: int
    node_names: tuple[str, ...] | None
    note: str
    layouts: Mapping[str, int]

    @property
    def in_catalogue(self) -> bool:
        """Whether prices, power and profiles of the board can be looked up."""
        return self.name is not None and _known(self.name)

    @property
    def cut_gpus(self) -> int:
        """GPUs that are cut today."""
        return sum(gpus for layout, gpus in self.layouts.items() if layout != WHOLE_GPU)

    @property
    def can_be_cut(self) -> bool:
        """Whether the board has MIG profiles."""
        return bool(self.board.profiles)

    def require_board(self, what: str) -> None:
        """Raise if the catalogue does not know the board.

        Raises
        ------
        ScenarioError
            That asks for one.
        """
        if not self.in_catalogue:
            got = "no board named in the data" if self.name is None else repr(self.name)
            if self.name is None and len(self.installed.words) > 1:
                got = f"several that jobs cannot be told apart by: {examples(self.installed.words)}"
            raise ScenarioError(message(what, "a board of the catalogue", got, "Name one with --board."))

    def require_mig(self, what: str) -> None:
        """Raise if there is nothing to cut.

        Raises
        ------
        ScenarioError
            That asks for a board with MIG.
        """
        self.require_board(what)
        if not self.can_be_cut:
            raise ScenarioError(message(what, "a board with MIG", repr(self.name), "Name one with --board."))

    def jobs_of(self, jobs: pl.DataFrame) -> pl.DataFrame:
        """Jobs that are planned: of several pools those of one, with those that have not started and name none."""
        if self.pool is None:
            return jobs
        word = pl.col("gpu_model").str.to_lowercase()
        return jobs.filter(word.is_null() | (word == self.pool.lower()))

    def hours_of(self, ledger: pl.DataFrame) -> pl.DataFrame:
        """Rows of a ledger that are about the planned GPUs."""
        return ledger if self.pool is None else ledger.filter(pl.col("gpu_model") == self.pool)

    def remarks(self) -> list[str]:
        """What a reader must know of the board and the size of the fleet, in sentences."""
        others = [pool for pool in self.installed.pools if pool.board != self.pool]
        found = []
        if self.pool is not None and others:
            listed = ", ".join(f"{pool.gpus} × {pool.board}" for pool in others)
            found.append(
                f"Of {self.installed.gpus:,} GPUs, the plan is for the {self._gpus_of_pool():,} × {self.pool} and the "
                f"jobs on them. Not planned, but in the ledger: {listed}. Plan for these with --board."
            )
        elif self.chosen:
            own = ", ".join(self.installed.words) or "not named in the data"
            found.append(
                f"What if: the boards of the source ({own}) are not {self.name}; layouts, cost and energy count each "
                f"of its GPUs as one of {self.name}."
            )
        elif self.name is None and len(self.installed.words) > 1:
            found.append(
                f"The {self.installed.gpus:,} GPUs are of {len(self.installed.words)} kinds "
                f"({', '.join(self.installed.words)}), and not all jobs say on which they ran: all GPUs "
                f"are planned as one pool of whole GPUs. {ASK}"
            )
        elif self.name is None:
            found.append(f"The data name no board: whole GPUs are planned. {ASK}")
        elif not self.in_catalogue:
            found.append(f"The board {self.name!r} is not in the catalogue: whole GPUs are planned. {ASK}")
        if self.in_catalogue and not self.can_be_cut:
            found.append(
                f"{self.name} has no MIG: whole GPUs are planned, and there are no layouts to export."
            )
        if self.installed.instances and self.can_be_cut and not self.cut_gpus and not self.chosen:
            found.append(
                "Jobs hold MIG instances, and the data do not say how the GPUs are cut: today's fleet is taken to be "
                "whole GPUs, so its waits are not those of today. Give the nodes with their layouts."
            )
        if self.gpus != self._gpus_of_pool():
            found.append(
                f"The plan is for {self.gpus:,} GPUs ({self.note}), of {self.installed.gpus:,} installed."
            )
        return found

    def _gpus_of_pool(self) -> int:
        return sum(pool.gpus for pool in self.installed.pools if self.pool in (None, pool.board))


ASK = (
    "GPU-hours, demand, forecast and policies of whole GPUs need no board; MIG layouts, exports, cost and energy do: "
    "name one with --board."
)


def planned_fleet(scenario: Scenario, trace: Dataset, begin: datetime, end: datetime) -> PlannedFleet:
    """Choose what is planned: the scenario's board, else the data's own, of several the largest pool.

    Examples
    --------
    >>> from gpuplanner.study.past.history import begin_of, end_of, load_trace
    >>> sample = load_trace("sample")
    >>> found = planned_fleet(Scenario(), sample, begin_of(sample), end_of(sample))
    >>> found.name, found.gpus, found.nodes, found.note
    ('H100-80GB-SXM5', 64, 8, 'from the inventory')
    """
    there = installed(trace, begin, end)
    name, pool = _board(scenario.board, there)
    board = whole_board(UNNAMED) if name is None else any_board(name) if _known(name) else whole_board(name)
    one_pool = PlannedFleet(
        installed=there,
        board=board,
        name=name,
        chosen=scenario.board is not None and pool is None and there.words != (scenario.board,),
        pool=pool,
        gpus=1,
        nodes=1,
        gpus_per_node=1,
        node_size=scenario.gpus_per_node,
        node_names=None,
        note=there.origin,
        layouts={},
    )
    nodes = in_service(there.inventory, end).sort("node")
    if pool is not None:
        nodes = nodes.filter(pl.col("gpu_model").str.to_lowercase() == pool.lower())
    if scenario.nodes > 0:
        gpus, size = scenario.nodes * scenario.gpus_per_node, scenario.gpus_per_node
        kept = nodes.filter(gpus=size).head(0 if one_pool.chosen else scenario.nodes)
        return replace(
            one_pool,
            gpus=gpus,
            nodes=scenario.nodes,
            gpus_per_node=size,
            note="as given in the scenario",
            layouts=_with_whole(todays_layouts(kept, board), gpus - int(kept["gpus"].sum())),
        )
    gpus = max(int(nodes["gpus"].sum()), 1)
    one_pool = replace(one_pool, gpus=gpus, gpus_per_node=gpus, layouts={WHOLE_GPU: gpus})
    if not one_pool.chosen and nodes.height:
        one_pool = replace(one_pool, layouts=todays_layouts(nodes, board) or one_pool.layouts)
    if there.inferred:
        return replace(one_pool, node_size=min(scenario.gpus_per_node, gpus))
    sizes = nodes["gpus"].unique().sort()
    if len(sizes) > 1:
        note = f"{there.origin}, nodes of unlike sizes as one pool"
        return replace(one_pool, node_size=int(sizes[-1]), note=note)
    # Plans count nodes that stay whole from the first on, and cut from the last: as the nodes are cut today.
    by_cuts = [todays_layouts(nodes[row], board).get(WHOLE_GPU, 0) for row in range(nodes.height)]
    nodes = nodes.with_columns(whole=pl.Series(by_cuts, dtype=pl.Int64)).sort(
        "whole", descending=True, maintain_order=True
    )
    size, names = int(sizes[0]), tuple(nodes["node"])
    return replace(one_pool, nodes=len(names), gpus_per_node=size, node_size=size, node_names=names)


def _with_whole(layouts: Mapping[str, int], more: int) -> dict[str, int]:
    """Layouts of the nodes that are there already, and so many further GPUs, which nobody has cut."""
    whole = layouts.get(WHOLE_GPU, 0) + more
    return {**layouts, WHOLE_GPU: whole} if whole or not layouts else dict(layouts)


def _board(asked: str | None, there: Installed) -> tuple[str | None, str | None]:
    """Name of the board to plan for, and of the pool whose jobs alone are planned, if there are several."""
    apart = {pool.board: pool.board for pool in there.pools if pool.board is not None}
    several = len(apart) > 1
    if asked is not None:
        return asked, asked if several and asked in apart else None
    if apart:
        largest = there.pools[0].board
        return largest, largest if several else None
    return (there.words[0] if len(there.words) == 1 else None), None


def _known(name: str) -> bool:
    return name in board_names() or name in whole_board_names()
