"""What is installed in a window, by board: from the inventory, else as few GPUs as could have run the jobs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import polars as pl

from gpuplanner.errors import examples
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.ledger.pools import inferred_inventory
from gpuplanner.ledger.pools import gpu_jobs, with_boards
from gpuplanner.ledger.window import Window
from gpuplanner.study.past.held_nodes import seen_nodes, with_seen_layouts


@dataclass(frozen=True)
class Pool:
    """GPUs of one board that are in service; ``board`` is None where all boards are one pool."""

    board: str | None
    gpus: int


@dataclass(frozen=True, eq=False)
class Installed:
    """What is installed in a window: the number that ledger, plan, simulation and page share.

    - ``inventory``: Table ``schemas.Inventory``: as given, or inferred from what was held at once.
    - ``inferred``: Which of the two.
    - ``pools``: GPUs in service at the end of the window by board, those that jobs held first, then most first; a
      single pool of no board if jobs cannot be told apart by it.
    - ``words``: Boards that the data name, most GPUs first, or most jobs first where no inventory names any.
    - ``instances``: Whether jobs held MIG instances.
    - ``busy``: Boards of the pools that jobs held.
    - ``by_node``: Nodes are known by their names: from the inventory, or inferred from where jobs ran.
    - ``remarks``: How it was inferred, in sentences.
    """

    inventory: pl.DataFrame
    inferred: bool
    pools: tuple[Pool, ...]
    words: tuple[str, ...]
    instances: bool = False
    busy: frozenset[str] = frozenset()
    by_node: bool = True
    remarks: tuple[str, ...] = ()

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
        >>> Installed(pl.DataFrame(), True, (Pool(None, 3),), (), by_node=False).origin
        'inferred: the most that were held at once; there may be more'
        """
        if not self.inferred:
            return "from the inventory"
        held = "held of each node" if self.by_node else "held"
        return f"inferred: the most that were {held} at once; there may be more"


def installed(trace: Dataset, begin: datetime, end: datetime) -> Installed:
    """What is installed according to the inventory, else as few GPUs as could have run the jobs of the window.

    Examples
    --------
    >>> from gpuplanner.study.past.history import begin_of, end_of, load_trace
    >>> sample = load_trace("sample")
    >>> installed(sample, begin_of(sample), end_of(sample)).pools
    (Pool(board='H100-80GB-SXM5', gpus=64),)
    """
    seen: pl.DataFrame | None = None
    remarks: tuple[str, ...] = ()
    if trace.inventory is None or not int(trace.inventory["gpus"].sum() or 0):
        seen = seen_nodes(trace.long, begin, end)
        inferred = True
        inventory = inferred_inventory(trace.long, start=begin, end=end) if seen is None else seen
    else:
        inferred = False
        inventory, cut = with_seen_layouts(trace.inventory, trace.long, begin, end)
        if cut:
            remarks = (
                f"The inventory does not say how {examples(cut)} are cut: their layouts are the fewest GPUs that hold "
                "the instances that jobs held there at once.",
            )
    held = (
        gpu_jobs(trace.long.believed(), Window(begin, end))
        .filter(pl.col("start_time").is_not_null())
        .group_by(pl.col("gpu_model").cast(pl.String))
        .agg(jobs=pl.len(), cut=pl.col("instances").is_not_null().sum())
        .collect(engine="streaming")
    )
    by_word, nodes = with_boards(held, in_service(inventory, end))
    busy = frozenset(by_word["board"].drop_nulls())
    by_board = (
        nodes.group_by("board")
        .agg(pl.col("gpus").sum())
        .sort(pl.col("board").is_in(list(busy)), "gpus", "board", descending=[True, True, False])
    )
    pools = tuple(Pool(board, int(gpus)) for board, gpus in by_board.iter_rows())
    return Installed(
        inventory=inventory,
        inferred=inferred,
        pools=pools or (Pool(None, 0),),
        words=_words(nodes, held),
        instances=bool(held["cut"].sum()),
        busy=busy,
        by_node=not inferred or seen is not None,
        remarks=remarks,
    )


def in_service(inventory: pl.DataFrame, end: datetime) -> pl.DataFrame:
    """Nodes with GPUs that are in service after `end`; all of them if none is left."""
    there = inventory.filter(pl.col("gpus") > 0)
    for name, kept in (("installed", pl.col("installed") < end), ("retired", pl.col("retired") > end)):
        if name in there.columns:
            there = there.filter(kept.fill_null(value=True))
    return there if there.height else inventory.filter(pl.col("gpus") > 0)


def _words(nodes: pl.DataFrame, held: pl.DataFrame) -> tuple[str, ...]:
    named = nodes.drop_nulls("gpu_model").group_by("gpu_model").agg(weight=pl.col("gpus").sum())
    if named.is_empty():
        named = held.drop_nulls("gpu_model").group_by("gpu_model").agg(weight=pl.col("jobs").sum())
    return tuple(named.sort("weight", "gpu_model", descending=[True, False])["gpu_model"])
