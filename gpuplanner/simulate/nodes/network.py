"""Slow-down of jobs on several nodes by tier: one node, one rack, and beyond."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from gpuplanner.errors import refuse
from gpuplanner.simulate.tables import Floats, Ints


@dataclass(frozen=True, eq=False)
class NodeNetwork:
    """Domains of nodes that reach each other quickly, and how much longer work takes beyond them.

    Parameters
    ----------
    domains : array of int, shape (n_tiers, n_nodes)
        Number of the domain of each node, narrow tiers first: NVLink domains, racks, spines. Islands within a node are
        nodes of their own, and the node is their domain.
    slowdowns : array of float, shape (n_tiers + 2,)
        How many times as long work takes on one node, within one domain of each tier, and beyond all.

    Raises
    ------
    ScenarioError
        If the shapes do not fit, or work is faster where nodes are further apart.

    Examples
    --------
    >>> pairs = NodeNetwork([[0, 0, 1, 1]], [1.0, 1.2, 1.5])
    >>> pairs.only([2, 3]).domains.tolist()
    [[1, 1]]
    """

    domains: Ints
    slowdowns: Floats

    def __post_init__(self) -> None:
        """Cast and check the tables."""
        object.__setattr__(self, "domains", np.array(self.domains, np.int64))
        object.__setattr__(self, "slowdowns", np.array(self.slowdowns, np.float64))
        fits = (
            self.domains.ndim == 2
            and self.slowdowns.shape == (len(self.domains) + 2,)
            and bool((self.domains >= 0).all() and (np.diff(self.slowdowns) >= 0).all())
            and bool((self.slowdowns > 0).all())
        )
        if not fits:
            refuse(
                "network of nodes",
                "a domain of each tier for every node, and a slow-down for one node, each tier and the fleet, none "
                "below the one before",
                f"domains {self.domains.shape}, slowdowns {self.slowdowns.shape}",
                "Give every node a row.",
            )

    def only(self, nodes: ArrayLike) -> Self:
        """Some of the nodes, by mask or number."""
        return replace(self, domains=self.domains[:, np.asarray(nodes)])
