"""What is played: requests, nodes, and how nodes come and go; and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Self

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from gpuplanner.simulate.nodes.instance_sets import Flexible
from gpuplanner.simulate.nodes.network import NodeNetwork
from gpuplanner.errors import refuse
from gpuplanner.simulate.tables import Floats, Ints

OFF = -1
"""Pool of a node that is off."""


@dataclass(frozen=True, eq=False)
class NodeRequests:
    """What jobs ask for, a row each, in any order.

    Parameters
    ----------
    ready_s, submit_s : array of float, shape (n_requests,)
        When a request may start at the earliest, and when it was made [s]; queues go by both, then by the row.
    run_s, limit_s : array of float, shape (n_requests,)
        How long it holds what it gets, and how long it may by its limit [s].
    profile : array of int, shape (n_requests,)
        Number of the profile; 0 is the whole GPU.
    total : array of int, shape (n_requests,)
        GPUs, or instances of the profile, in all.
    nodes : array of int, shape (n_requests,)
        Nodes over which they are spread, each with as many but the last, which takes the rest.
    per : array of int, shape (n_requests,), optional
        GPUs or instances on each node but the last; without any, as evenly as whole numbers allow.

    Raises
    ------
    ScenarioError
        If the arrays differ in length, or a request takes no GPU, no time or more nodes than GPUs.
    """

    ready_s: Floats
    submit_s: Floats
    run_s: Floats
    limit_s: Floats
    profile: Ints
    total: Ints
    nodes: Ints
    per: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        """Cast and check the columns."""
        # Copies: an array that must not be written to, as tables give them, would be another type to the compiler.
        for one in fields(self):
            kind = np.float64 if one.name.endswith("_s") else np.int64
            object.__setattr__(self, one.name, np.array(getattr(self, one.name), kind))
        if not len(self.per) and len(self.total) == len(self.nodes):
            object.__setattr__(self, "per", -(-self.total // np.maximum(self.nodes, 1)))
        object.__setattr__(self, "limit_s", np.maximum(self.limit_s, self.run_s))
        lengths = {len(getattr(self, one.name)) for one in fields(self)}
        sound = len(lengths) == 1 and bool(
            (self.run_s >= 0).all()
            and np.isfinite(self.ready_s).all()
            and (self.nodes >= 1).all()
            and (self.profile >= 0).all()
            and (self.rest >= 1).all()
        )
        if not sound:
            refuse(
                "requests",
                "columns of one length, finite times, run_s >= 0, and at least one GPU or instance on every node",
                f"lengths {sorted(lengths)}",
                "Leave such rows out, or correct them.",
            )

    def __len__(self) -> int:
        """Number of requests."""
        return len(self.ready_s)

    @property
    def rest(self) -> Ints:
        """GPUs or instances on the last node."""
        return np.asarray(self.total - self.per * (self.nodes - 1), np.int64)

    def take(self, rows: ArrayLike) -> Self:
        """Some of the requests, by mask or number."""
        chosen = np.asarray(rows)
        return type(self)(*(getattr(self, one.name)[chosen] for one in fields(self)))

    def at(self, ready_s: Floats) -> Self:
        """The same requests, ready at other times."""
        return replace(self, ready_s=ready_s)


@dataclass(frozen=True, eq=False)
class NodeFleet:
    """Nodes, and what each offers in each pool that it may be in.

    Parameters
    ----------
    profiles : tuple of str
        Names of the profiles; the first is the whole GPU, all others are slices.
    gpus : array of int, shape (n_nodes,)
        GPUs of each node.
    capacity : array of int, shape (n_nodes, n_pools, n_profiles)
        What a node offers in a pool; nothing at all where it cannot be in it.
    first : array of int, shape (n_nodes,)
        Pool that it begins in; -1: it is off.
    weights : array of float, shape (n_profiles,)
        Share of a GPU that an instance is.
    flexible : Flexible, optional
        Pools whose GPUs are cut as jobs come and go; their capacity is that of empty GPUs, profile by profile.
    network : NodeNetwork, optional
        How far nodes are apart, and what that costs; None: distance makes no difference.

    Raises
    ------
    ScenarioError
        If the shapes do not fit, or a node begins in a pool that it cannot be in.

    Examples
    --------
    >>> fleet = NodeFleet.whole([8, 4])
    >>> fleet.capacity[:, 0, 0].tolist(), fleet.first.tolist()
    ([8, 4], [0, 0])
    """

    profiles: tuple[str, ...]
    gpus: Ints
    capacity: Ints
    first: Ints
    weights: Floats
    flexible: Flexible | None = None
    network: NodeNetwork | None = None

    def __post_init__(self) -> None:
        """Cast and check the tables."""
        for name in ("gpus", "capacity", "first", "weights"):
            kind = np.float64 if name == "weights" else np.int64
            object.__setattr__(self, name, np.array(getattr(self, name), kind))
        nodes, wide = len(self.gpus), len(self.profiles)
        fits = (
            self.capacity.ndim == 3
            and self.capacity.shape[0] == nodes == len(self.first)
            and self.capacity.shape[2] == wide == len(self.weights)
            and (self.flexible is None or self.flexible.places.add.shape[1] == wide)
            and bool((self.first < self.capacity.shape[1]).all() and (self.capacity >= 0).all())
            and (self.network is None or self.network.domains.shape[1] == nodes)
        )
        if not fits or nodes == 0:
            refuse(
                "fleet of nodes",
                "at least one node, and capacity (and places, where GPUs are flexible) by node, pool and profile",
                f"{nodes} nodes, {wide} profiles, capacity {self.capacity.shape}",
                "Give every node a row.",
            )

    @classmethod
    def whole(cls, gpus: Sequence[int]) -> Self:
        """Nodes of whole GPUs that are always on."""
        sizes = np.asarray(gpus, np.int64)
        return cls(("gpu",), sizes, sizes[:, None, None], np.zeros(len(sizes), np.int64), np.ones(1))

    def only(self, nodes: ArrayLike) -> Self:
        """Some of the nodes, by mask or number."""
        kept = np.asarray(nodes)
        network = self.network and self.network.only(kept)
        some = {name: getattr(self, name)[kept] for name in ("gpus", "capacity", "first")}
        return replace(self, network=network, **some)


@dataclass(frozen=True)
class Switching:
    """How nodes come when requests wait, and go when they are idle.

    Parameters
    ----------
    idle_s : float
        How long a node has been idle when it goes [s].
    lead_s : float
        How long it takes to come, its cut included [s].
    kept : tuple of int
        Idle nodes that each pool keeps on.
    cool_s : float
        For how long after a node was brought none goes [s].
    look_s : float
        How often somebody looks whether nodes that were called are there [s]; 0: all the time.
    """

    idle_s: float
    lead_s: float
    kept: tuple[int, ...] = ()
    cool_s: float = 0.0
    look_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the values."""
        numbers = (self.idle_s, self.lead_s, self.cool_s, self.look_s, *self.kept)
        if not all(0 <= number < np.inf for number in numbers):
            refuse("switching", "times and counts not below 0", str(self), "Change them.")


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of requests.

    Attributes
    ----------
    start_s : array of float, shape (n_requests,)
        When each started, in the order of the rows; NaN: never.
    on : polars.DataFrame
        ``node, pool, from_s, until_s``: when each node was on or coming; infinite where nothing bounds it.
    held : polars.DataFrame
        ``request, node, profile, amount``: what each request held, by its row.
    factor : array of float, shape (n_requests,)
        How many times as long each ran, by its board and network, as on what it asked for; NaN: never.
    changes : polars.DataFrame
        ``row, began_s, drained_s, ended_s, outcome``: for each planned change when its cordon began, when the last
        request left its node, when it was over, and whether it was ``"done"`` or ``"given up"``; null where it did not
        come to that.
    """

    start_s: Floats
    on: pl.DataFrame
    held: pl.DataFrame
    factor: Floats
    changes: pl.DataFrame

    def most_gpus(self, gpus: Ints, begin_s: float, end_s: float) -> int:
        """GPUs of nodes that were on at once, at most, within a window."""
        node, since, until = (self.on[name].to_numpy() for name in ("node", "from_s", "until_s"))
        inside = (until > begin_s) & (since < end_s)
        node, since, until = node[inside], since[inside], until[inside]
        change = np.concatenate([gpus[node], -gpus[node]])
        # What goes at an instant makes room for what comes at it.
        order = np.lexsort((change, np.concatenate([since.clip(begin_s), until])))
        return int(np.cumsum(change[order]).max(initial=0))


def serving_table(wide: int, larger: Sequence[Sequence[int]] | None) -> Ints:
    """For each of so many profiles those that serve it: itself, then larger ones, then -1 [profile, rank]."""
    rows = [[number, *(larger[number] if larger is not None else ())] for number in range(wide)]
    most = max(map(len, rows))
    return np.array([[*one, *[-1] * (most - len(one))] for one in rows], np.int64)


def kinds_of(requests: NodeRequests) -> tuple[Ints, Ints]:
    """Requests that ask for the same, as rows of profile, per node, nodes and rest; and which of them each is."""
    asked = np.stack([requests.profile, requests.per, requests.nodes, requests.rest], axis=1)
    # As np.unique of rows, which compares records and takes several times as long: a play asks twice.
    order = np.lexsort(asked.T[::-1])
    first = np.concatenate([[True], (np.diff(asked[order], axis=0) != 0).any(axis=1)])[: len(asked)]
    kind = np.empty(len(asked), np.int64)
    kind[order] = np.cumsum(first) - 1
    return asked[order][first], kind
