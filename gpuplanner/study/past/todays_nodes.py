"""gpuplanner.study.past.nodes: todays_nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuplanner.study.past.history import History
from gpuplanner.study.past.nodes import TodaysNodes, numbered_nodes


def todays_nodes(known: History) -> TodaysNodes:
    """Nodes that a study plays today's fleet on; their GPUs are those of the fleet that is planned.

    Examples
    --------
    >>> from gpuplanner.scenario import Scenario
    >>> from gpuplanner.study.past.history import history
    >>> nodes = todays_nodes(history(Scenario()))
    >>> len(nodes.names), set(nodes.gpus), nodes.total, nodes.named
    (8, {8}, 64, True)
    """
    fleet = known.fleet
    if fleet.today.total == fleet.gpus:
        return fleet.today
    # A study of small jobs plans for as many GPUs as these held, whatever else there is.
    played = numbered_nodes(fleet.gpus, fleet.node_size, fleet.layouts)
    return replace(played, inferred=fleet.today.inferred, snapshot=fleet.today.snapshot)
