"""In which order pods arrive, and in which order nodes are preferred where scores are equal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuplanner.errors import ScenarioError, message
from gpuplanner.lab.placement.pods import Integers, Nodes, Pods

UP_TO = 1.3
"""Demand that arrives in the published experiments, over the GPUs that there are."""

MOST = 100.0
"""More arrivals than this, over the GPUs that there are, are refused."""


@dataclass(frozen=True, eq=False)
class Arrivals:
    """An order of arrival.

    Parameters
    ----------
    pods : ndarray of int, shape (n_arrivals,)
        Which pod arrives; one may come again.
    nodes : ndarray of int, shape (n_nodes,)
        All nodes; of equally good ones, the first in this order takes the pod.
    """

    pods: Integers
    nodes: Integers


def as_listed(pods: Pods, nodes: Nodes) -> Arrivals:
    """Every pod once, in the order of the lists.

    Examples
    --------
    >>> pods, nodes = Pods(["a"], [1], [1], [1], [500]), Nodes(["n1", "n2"], [1, 1], [1, 1], [1, 1])
    >>> as_listed(pods, nodes).nodes.tolist()
    [0, 1]
    """
    return Arrivals(np.arange(len(pods.names)), np.arange(len(nodes.names)))


def draw_arrivals(pods: Pods, nodes: Nodes, *, seed: int, up_to: float = UP_TO) -> Arrivals:
    """Shuffle pods and nodes; then draw further pods, with replacement, until enough demand has arrived.

    Parameters
    ----------
    pods, nodes : Pods, Nodes
        The lists.
    seed : int
        Seed of the order.
    up_to : float
        GPU demand that arrives, over the GPUs of all nodes. The order ends before the first pod that would
        exceed it, among the listed pods too if they ask for more.

    Returns
    -------
    Arrivals
        The same for the same seed; orders of one seed agree on their common part.

    Raises
    ------
    ScenarioError
        If no pod or no node has GPUs, or `up_to` is not above 0 and at most 100.

    References
    ----------
    Weng et al., Beware of Fragmentation, USENIX ATC 2023: their experiments let 130 % arrive so. ``gpuplanner
    claims fgd`` has the very orders of these.

    Examples
    --------
    >>> pods, nodes = Pods(["a"], [1], [1], [1], [500]), Nodes(["n1", "n2"], [9, 9], [9, 9], [1, 1])
    >>> draw_arrivals(pods, nodes, seed=7).pods.tolist()
    [0, 0, 0, 0, 0]
    """
    if not 0 < up_to <= MOST:
        raise ScenarioError(
            message("up_to", f"above 0 and at most {MOST:.0f}", repr(up_to), "1.3 is what others use.")
        )
    demand = pods.demand
    if not (nodes.capacity and demand.any()):
        got = f"{nodes.capacity // 1000} GPUs and {int(demand.sum()) // 1000} wanted"
        raise ScenarioError(message("arrivals", "GPUs, and pods that want some", got, "Check the lists."))
    rng = np.random.default_rng(seed)
    node_order = rng.permutation(len(nodes.names))
    order = rng.permutation(len(pods.names))
    limit = up_to * nodes.capacity
    while demand[order].sum() <= limit:
        order = np.concatenate([order, rng.integers(0, len(pods.names), len(pods.names))])
    return Arrivals(order[: int(np.searchsorted(demand[order].cumsum(), limit, side="right"))], node_order)
