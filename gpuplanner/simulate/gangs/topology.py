"""How far the GPUs of a gang are apart, what that costs, and how nodes are chosen for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from gpuplanner.errors import ScenarioError, message
from gpuplanner.names import resolve

TIERS = ("island", "node", "rack", "spine", "fleet")
PLACEMENTS = ("consolidate", "best_fit", "first_fit", "spread")
FAR = 1 << 20
"""More nodes or racks than any fleet has: all are in one."""


@dataclass(frozen=True)
class Topology:
    """Tiers of the network between GPUs, and how much longer a gang runs by the worst tier that it spans.

    Parameters
    ----------
    island_gpus : int
        GPUs that reach each other over NVLink alone; divides ``node_gpus``.
    node_gpus : int
        GPUs of a node.
    nodes_per_rack, racks_per_spine : int
        The last rack and the last spine may have fewer.
    slowdowns : tuple of float, length 5
        Factor on the run time of a gang within one island, node, rack or spine, or across spines; at least 1,
        none below the one before. The defaults are assumptions without a published source: measure your own.

    Raises
    ------
    ScenarioError
        If a number is out of range.

    Examples
    --------
    >>> topology = Topology(island_gpus=4, node_gpus=8, nodes_per_rack=4, racks_per_spine=8)
    >>> topology.gpus_of_tiers
    (4, 8, 32, 256)
    >>> topology.slowdown("rack")
    1.3
    """

    island_gpus: int
    node_gpus: int
    nodes_per_rack: int = FAR
    racks_per_spine: int = FAR
    slowdowns: tuple[float, float, float, float, float] = (1.0, 1.1, 1.3, 1.6, 2.0)

    def __post_init__(self) -> None:
        """Check the numbers."""
        sizes = (self.island_gpus, self.node_gpus, self.nodes_per_rack, self.racks_per_spine)
        if min(sizes) < 1 or self.node_gpus % self.island_gpus:
            _refuse("topology", "sizes above 0, and nodes made of whole islands", sizes)
        steps = zip((1.0, *self.slowdowns), self.slowdowns, strict=False)
        if len(self.slowdowns) != len(TIERS) or not all(low <= high < math.inf for low, high in steps):
            _refuse(
                "topology", f"{len(TIERS)} slowdowns from 1 up, none below the one before", self.slowdowns
            )

    @classmethod
    def flat(cls, node_gpus: int) -> Self:
        """One tier: it makes no difference where a gang runs.

        Examples
        --------
        >>> Topology.flat(8).slowdowns
        (1.0, 1.0, 1.0, 1.0, 1.0)
        """
        return cls(node_gpus, node_gpus, slowdowns=(1.0,) * 5)

    @classmethod
    def consolidated_or_not(cls, node_gpus: int, slowdown: float) -> Self:
        """Two tiers: on one node, or on several.

        References
        ----------
        D. Narayanan et al., Heterogeneity-aware cluster scheduling policies for deep learning workloads (Gavel),
        OSDI 2020, whose throughput tables tell consolidated from unconsolidated jobs.

        Examples
        --------
        >>> Topology.consolidated_or_not(8, slowdown=1.4).slowdowns
        (1.0, 1.0, 1.4, 1.4, 1.4)
        """
        return cls(node_gpus, node_gpus, slowdowns=(1.0, 1.0, slowdown, slowdown, slowdown))

    @property
    def gpus_of_tiers(self) -> tuple[int, int, int, int]:
        """GPUs of an island, a node, a rack and a spine."""
        rack = self.node_gpus * self.nodes_per_rack
        return self.island_gpus, self.node_gpus, rack, rack * self.racks_per_spine

    def slowdown(self, tier: str) -> float:
        """Factor on the run time of a gang that spans a tier: ``"island"`` to ``"fleet"``."""
        return self.slowdowns[TIERS.index(resolve(tier, TIERS, what="topology: tier", error=ScenarioError))]


@dataclass(frozen=True)
class GangPlacement:
    """Which nodes a gang gets, and for how long it waits for better ones.

    Parameters
    ----------
    topology : Topology
        Tiers and slow-downs. Its ``node_gpus`` are those of the fleet.
    rule : {"consolidate", "best_fit", "first_fit", "spread"}
        ``"consolidate"``: within the lowest tier that has room, in that domain of it (one rack, say) with the
        fewest idle GPUs. On one node if it has at most its size, else on wholly idle nodes, lowest numbers
        first. ``"best_fit"``: the same, but over any idle GPUs: as long as no node holds what remains, that
        with the most idle GPUs is taken, at last that with the fewest that holds it. ``"first_fit"``: the first
        node that holds it, else idle GPUs in the order of the nodes. ``"spread"``: GPU by GPU, from the node
        with the most idle ones. Islands within a node likewise.
    patience_s : float
        Time that a job waits for the best tier that its size allows before it takes the next worse one, and as
        long again before the one after (delay scheduling) [s]. 0: it takes what there is. Infinite: it takes
        the best alone. Only for the rules that look at tiers, ``"consolidate"`` and ``"best_fit"``.

    Raises
    ------
    ScenarioError
        If the parts do not go together.

    References
    ----------
    M. Zaharia et al., Delay scheduling, EuroSys 2010.

    Examples
    --------
    >>> GangPlacement(Topology.flat(8), "spread", patience_s=60.0)
    Traceback (most recent call last):
        ...
    gpuplanner.errors.ScenarioError: placement 'spread': expected patience_s 0, ...
    """

    topology: Topology
    rule: str = "consolidate"
    patience_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the parts."""
        rule = resolve(self.rule, PLACEMENTS, what="placement: rule", error=ScenarioError)
        object.__setattr__(self, "rule", rule)
        if not self.patience_s >= 0:
            _refuse("placement", "patience_s not below 0", self.patience_s)
        if self.patience_s > 0 and rule in ("first_fit", "spread"):
            _refuse(f"placement {rule!r}", "patience_s 0, since it does not look for tiers", self.patience_s)


def _refuse(what: str, expected: str, got: object) -> None:
    raise ScenarioError(message(what, expected, str(got), "Change it."))
