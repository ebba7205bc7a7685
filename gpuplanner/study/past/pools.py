"""The pools of a fleet: for each board, and for each cluster, a scenario of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from gpuplanner.errors import ScenarioError, examples, message
from gpuplanner.scenario import Scenario
from gpuplanner.study.past.history import history


@dataclass(frozen=True)
class FleetPools:
    """A fleet as pools that are planned and judged each by itself.

    - ``pools``: By name, the scenario of each pool that jobs held, most GPUs first; the one scenario itself where
      there is nothing to tell apart.
    - ``idle``: GPUs of the boards that no job held, by name: installed, in the ledger, and not planned.
    """

    pools: Mapping[str, Scenario]
    idle: Mapping[str, int]

    @property
    def several(self) -> bool:
        """Whether there is more than one pool."""
        return len(self.pools) > 1


def pools_of(scenario: Scenario) -> FleetPools:
    """The pools of a scenario's fleet: one for each board that jobs can be told apart by.

    A scenario that names a board, a pool or a number of nodes asks for one pool, and gets it.

    Examples
    --------
    >>> found = pools_of(Scenario())
    >>> found.several, list(found.pools), found.idle
    (False, ['H100-80GB-SXM5'], {})
    """
    fleet = history(scenario).fleet
    there = fleet.installed
    whole = scenario.board is not None or scenario.pool is not None or scenario.nodes > 0
    busy = [str(pool.board) for pool in there.pools if pool.board in there.busy]
    if whole or len(there.pools) < 2 or not busy:
        return FleetPools({fleet.name or scenario.name: scenario}, {})
    idle = {str(pool.board): pool.gpus for pool in there.pools if pool.board not in there.busy}
    # The largest pool is the one that the scenario has by itself: nothing is read or computed twice for it.
    return FleetPools(
        {board: scenario if board == fleet.pool else scenario.but(pool=board) for board in busy}, idle
    )


def clusters_of(scenarios: Sequence[Scenario]) -> FleetPools:
    """The pools of several clusters, each a dataset of its own: named ``cluster/board``, whatever boards they share.

    Two clusters that are the same dataset, or bear one name, are a ``ScenarioError``.
    """
    places = [str(Path(one.data).resolve()) for one in scenarios]
    names = [one.name for one in scenarios]
    for what, listed in (("dataset", places), ("name", names)):
        twice = sorted({one for one in listed if listed.count(one) > 1})
        if twice:
            todo = "Give each cluster once, in a folder of its own name."
            raise ScenarioError(
                message("fleet", f"clusters that differ in their {what}", examples(twice), todo)
            )
    found = [(one.name, pools_of(one)) for one in scenarios]
    return FleetPools(
        {f"{name}/{board}": own for name, fleet in found for board, own in fleet.pools.items()},
        {f"{name}/{board}": gpus for name, fleet in found for board, gpus in fleet.idle.items()},
    )


def pool_table(fleet: FleetPools) -> pl.DataFrame:
    """What there is, pool by pool: nodes and GPUs, how many are cut, and the jobs that are planned for."""
    rows = []
    for name, own in fleet.pools.items():
        known = history(own)
        one = known.fleet
        rows.append((name, len(one.today.names), one.gpus, one.cut_gpus, known.jobs.height, one.can_be_cut))
    rows += [(name, 0, gpus, 0, 0, False) for name, gpus in fleet.idle.items()]
    return pl.DataFrame(rows, orient="row", schema=POOL_COLUMNS)


POOL_COLUMNS = {
    "pool": pl.String, "nodes": pl.Int64, "gpus": pl.Int64, "cut_gpus": pl.Int64, "jobs": pl.Int64,
    "can_be_cut": pl.Boolean,
}  # fmt: skip
