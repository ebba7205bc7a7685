"""What the loop over placed gangs reads and writes besides the gangs: islands, domains of each tier, places held."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from gpuplanner.errors import ScenarioError, SchemaError, message
from gpuplanner.simulate.fleet import Fleet
from gpuplanner.simulate.gangs.arrays import Gangs
from gpuplanner.simulate.gangs.topology import PLACEMENTS, GangPlacement
from gpuplanner.simulate.rules import Rules
from gpuplanner.simulate.slices.world import Floats, Ints

CONSOLIDATE, BEST_FIT, FIRST_FIT, SPREAD = range(len(PLACEMENTS))


class Places(NamedTuple):
    """Islands are numbered node by node, so that every domain of every tier is a run of numbers."""

    rule: int
    patience: float
    per_node: int  # islands of a node
    span: Ints  # [tier] islands of a domain
    step: Ints  # [tier] counts tiers, those of the same size as one
    slowdowns: Floats  # [tier]
    sensitivity: Floats  # [job] by how much of the slow-down a job suffers
    best: Ints  # [job] lowest tier that its size allows
    idle: Ints  # [island] idle GPUs
    node_idle: Ints  # [node] idle GPUs
    chosen: Ints  # [rank] islands chosen for a start
    taken: Ints  # [rank] GPUs of each
    number: Ints  # [0] how many are chosen
    spot: Ints  # [job] where its places stand
    held: Ints  # [spot + rank] islands of a job
    gpus: Ints  # [spot + rank] GPUs of each
    pieces: Ints  # [job] how many


def to_places(gangs: Gangs, jobs: pl.DataFrame, fleet: Fleet, placement: GangPlacement) -> Places:
    """Fill the arrays for the jobs of ``gangs``, whose rows are those of ``jobs``."""
    topology = placement.topology
    islands = fleet.gpus // topology.island_gpus
    sizes = np.minimum([*topology.gpus_of_tiers, fleet.gpus], fleet.gpus)
    most = np.minimum(gangs.jobs.gpus, islands)
    return Places(
        rule=PLACEMENTS.index(placement.rule),
        patience=float(placement.patience_s),
        per_node=topology.node_gpus // topology.island_gpus,
        span=sizes // topology.island_gpus,
        step=np.unique(sizes, return_inverse=True)[1],
        slowdowns=np.array(topology.slowdowns),
        sensitivity=jobs["sensitivity"].to_numpy()[gangs.jobs.row],
        best=np.searchsorted(sizes, gangs.jobs.gpus),
        idle=np.full(islands, topology.island_gpus),
        node_idle=np.full(fleet.nodes, topology.node_gpus),
        chosen=np.zeros(islands, np.int64),
        taken=np.zeros(islands, np.int64),
        number=np.zeros(1, np.int64),
        spot=np.cumsum(most) - most,
        held=np.zeros(int(most.sum()), np.int64),
        gpus=np.zeros(int(most.sum()), np.int64),
        pieces=np.zeros(len(gangs.jobs), np.int64),
    )


def with_sensitivity(table: pl.DataFrame, jobs: pl.DataFrame) -> pl.DataFrame:
    """Add the column ``sensitivity`` of the input to the checked jobs; 1 where it says nothing."""
    if "sensitivity" not in jobs.columns:
        return table.with_columns(sensitivity=pl.lit(1.0))
    given = jobs["sensitivity"].cast(pl.Float64).fill_null(1.0)
    if not (given.is_finite() & (given >= 0)).all():
        text = message(
            "jobs to schedule: column 'sensitivity'",
            "finite numbers not below 0",
            str(given.filter(~(given.is_finite() & (given >= 0))).head(3).to_list()),
            "Mend them, or leave them null.",
        )
        raise SchemaError(text)
    return table.with_columns(sensitivity=given.gather(table["row"]))


def refuse_for_placement(rules: Rules, fleet: Fleet, placement: GangPlacement) -> None:
    """Raise if the rules are more than the loop over placed gangs knows, or the nodes are others."""
    plain = type(rules) is Rules
    if not plain or rules != Rules(queue=rules.queue, order=rules.order, fair_share=rules.fair_share):
        text = message(
            "rules of a run with a placement",
            "order 'fifo', 'sjf', 'qssf' or 'fair', queue 'strict', 'pass' or 'easy', and no stops or failures",
            f"order {rules.order!r}, queue {rules.queue!r}" + (" and more" if plain else ""),
            "Change them, or leave the placement out.",
        )
        raise ScenarioError(text)
    if rules.queue == "easy" and placement.patience_s > 0:
        text = message(
            "rules of a run with a placement: queue 'easy'",
            "patience_s 0, since the head of the queue is promised a start and not a tier",
            str(placement.patience_s),
            "Change one of them.",
        )
        raise ScenarioError(text)
    if placement.topology.node_gpus != fleet.gpus_per_node:
        text = message(
            "placement: topology",
            f"node_gpus of the fleet, {fleet.gpus_per_node}",
            str(placement.topology.node_gpus),
            "Give both the same.",
        )
        raise ScenarioError(text)
