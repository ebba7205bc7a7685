"""How far nodes are apart, what that costs jobs on several of them, and what racks may draw."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from gpuplanner.errors import ScenarioError, message
from gpuplanner.simulate.slices.world import Floats, Ints


@dataclass(frozen=True, eq=False)
class NodeNetwork:
    """Domains of nodes that reach each other quickly, how much longer work takes beyond them, and power of racks.

    Parameters
    ----------
    domains : array of int, shape (n_tiers, n_nodes)
        Number of the domain of each node, narrow tiers first: NVLink domains, racks, spines. Islands within a node are
        nodes of their own, and the node is their domain.
    slowdowns : array of float, shape (n_works, n_tiers + 2)
        How many times as long each kind of work takes on one node, within one domain of each tier, and beyond all.
    racks : array of int, shape (n_nodes,), optional
        Rack of each node; None: power has no limit.
    rack_watts : array of int, shape (n_racks,)
        What all that is in use in a rack may draw [W].
    watts : array of int, shape (n_profiles,)
        What an instance in use draws [W].

    Raises
    ------
    ScenarioError
        If the shapes do not fit, or work is faster where nodes are further apart.

    Examples
    --------
    >>> pairs = NodeNetwork([[0, 0, 1, 1]], [[1.0, 1.2, 1.5]])
    >>> pairs.only([2, 3]).domains.tolist()
    [[1, 1]]
    """

    domains: Ints
    slowdowns: Floats
    racks: Ints | None = None
    rack_watts: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    watts: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        """Cast and check the tables."""
        for name in ("domains", "rack_watts", "watts"):
            object.__setattr__(self, name, np.array(getattr(self, name), np.int64))
        object.__setattr__(self, "slowdowns", np.array(self.slowdowns, np.float64))
        tiers = len(self.domains)
        fits = (
            self.domains.ndim == 2
            and self.slowdowns.ndim == 2
            and self.slowdowns.shape[1] == tiers + 2
            and bool((self.domains >= 0).all() and (np.diff(self.slowdowns, axis=1) >= 0).all())
            and bool((self.slowdowns > 0).all() and (self.watts >= 0).all())
        )
        if self.racks is not None:
            object.__setattr__(self, "racks", np.array(self.racks, np.int64))
            fits = fits and self.racks.shape == self.domains.shape[1:] and len(self.watts) > 0
            fits = fits and bool((self.racks >= 0).all() and (self.racks < len(self.rack_watts)).all())
        if not fits:
            text = message(
                "network of nodes",
                "a domain of each tier for every node, a slow-down for each tier, one node and the fleet, none below "
                "the one before, and where racks are limited a rack for every node, with its power",
                f"domains {self.domains.shape}, slowdowns {self.slowdowns.shape}, {len(self.rack_watts)} racks",
                "Give every node a row.",
            )
            raise ScenarioError(text)

    def only(self, nodes: ArrayLike) -> Self:
        """Some of the nodes, by mask or number."""
        kept = np.asarray(nodes)
        return replace(
            self, domains=self.domains[:, kept], racks=None if self.racks is None else self.racks[kept]
        )
