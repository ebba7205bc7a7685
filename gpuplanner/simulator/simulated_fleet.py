"""Requests, nodes and instances of a simulation, and its outcome."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Self

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.hardware.layout_enumeration import placed_layouts
from gpuplanner.hardware.mig_layouts import driver_starts
from gpuplanner.hardware.repartitioning_cost import ChangeCost
from gpuplanner.simulator.simulation_state import NONE, Floats, InstanceSets, Ints

EMPTY = 0
"""Number of the set without instances."""


@dataclass(frozen=True, eq=False)
class Flexible:
    """Pools whose GPUs hold what jobs on them ask for: an instance is made for its job, and removed with it.

    ``make_s`` passes before a job begins on an instance, ``whole_s`` before one begins on whole GPUs of which some
    were cut last. Whole GPUs are there for jobs only where the capacity of the pool has them.
    """

    pools: tuple[bool, ...]
    places: InstanceSets
    make_s: float
    whole_s: float

    @classmethod
    def of(cls, gpu_model: GpuModel, profiles: tuple[str, ...], cost: ChangeCost) -> Self:
        """The only pool, or, where MIG mode needs a reboot, the second beside one of whole GPUs.

        One instance is removed and one made for a job; on a GPU that becomes whole all may have to go.
        """
        most = max(profile.max_instances for profile in gpu_model.profiles)
        each, change = cost.instance_s.value, cost.change_s.value
        pools = (True,) if cost.reboot_s is None else (False, True)
        return cls(pools, instance_sets(gpu_model, profiles), change + 2 * each, change + most * each)

    def capacity(self, gpus: int, *, whole: bool) -> list[int]:
        """What a node of so many empty GPUs offers, of each profile by itself."""
        room = gpus * self.places.room[EMPTY]
        room[0] = gpus if whole else 0
        return [int(count) for count in room]


@functools.lru_cache(maxsize=64)
def instance_sets(gpu_model: GpuModel, profiles: tuple[str, ...]) -> InstanceSets:
    """Tables of a board for some profiles, the whole GPU first.

    A new instance goes where the most stays possible: the instances of each profile, and whole GPUs, that could be
    added by themselves count by their compute slices. Of equals it goes where the driver would put it.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> found = instance_sets(load_gpu_model("H100-80GB-SXM5"), ("gpu", "1g.10gb", "3g.40gb"))
    >>> found.room[EMPTY].tolist()
    [1, 7, 2]
    >>> one = found.add[EMPTY, 1]  # at slice 6: two instances of 3g.40gb become one, but seven small ones still fit
    >>> found.slot[EMPTY, 1].item(), found.room[one].tolist()
    (6, [0, 6, 1])
    """
    used = [gpu_model.profile(name) for name in profiles if name != WHOLE_GPU]
    number = {profile.name: place for place, profile in enumerate(used, start=1)}
    layouts = placed_layouts(gpu_model, list(number)) if used else ()
    sets = [frozenset((number[one.profile], one.start) for one in layout.placements) for layout in layouts]
    sets = [frozenset[tuple[int, int]](), *sorted(sets, key=lambda held: (len(held), sorted(held)))]
    place_of = {held: place for place, held in enumerate(sets)}
    size = [gpu_model.compute_slices, *(profile.compute_slices for profile in used)]
    starts = [(), *(driver_starts(gpu_model, profile) for profile in used)]
    add, slot, room, lose = (np.full((len(sets) + 1, len(size)), fill) for fill in (NONE, NONE, 0, 0))
    take = np.full((len(sets) + 1, gpu_model.memory_slices), NONE)
    most = np.zeros_like(room)  # how many could be added if places were chosen for this profile alone
    worth = np.zeros(len(sets) + 1, np.int64)
    add[EMPTY, 0], slot[EMPTY, 0], take[-1, 0] = len(sets), 0, EMPTY
    room[EMPTY, 0] = most[EMPTY, 0] = 1
    for held in reversed(range(len(sets))):  # larger sets first: what follows is known
        further = _further(sets[held], starts, place_of)
        for profile, ways in enumerate(further):
            most[held, profile] = max([most[held, profile], *(1 + most[after, profile] for _, after in ways)])
        worth[held] = most[held] @ size
        for profile, ways in enumerate(further):
            if ways:
                start, after = max(ways, key=lambda way: worth[way[1]])
                add[held, profile], slot[held, profile] = after, start
                room[held, profile] = 1 + room[after, profile]
        for profile, start in sets[held]:
            take[held, start] = place_of[sets[held] - {(profile, start)}]
    able = add != NONE
    lose[able] = (worth[:, None] - worth[add])[able]
    return InstanceSets(add, slot, take, room, lose)


def _further(
    held: frozenset[tuple[int, int]],
    starts: Sequence[tuple[int, ...]],
    place_of: dict[frozenset[tuple[int, int]], int],
) -> list[list[tuple[int, int]]]:
    """For each profile the starts where one more may be, in the driver's order, and the set that it makes."""
    return [
        [
            (start, place_of[after])
            for start in begins
            if (after := held | {(profile, start)}) in place_of and after != held
        ]
        for profile, begins in enumerate(starts)
    ]


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
        fits = self.domains.ndim == 2 and self.slowdowns.shape == (len(self.domains) + 2,)
        fits = fits and bool((self.domains >= 0).all() and (self.slowdowns > 0).all())
        if not (fits and (np.diff(self.slowdowns) >= 0).all()):
            expected = (
                "a domain of each tier for every node, and a slow-down for one node, each tier and the fleet, none "
                "below the one before"
            )
            got = f"domains {self.domains.shape}, slowdowns {self.slowdowns.shape}"
            raise ScenarioError("network of nodes", expected, got, "Give every node a row.")

    def only(self, nodes: ArrayLike) -> Self:
        """Some of the nodes, by mask or number."""
        return replace(self, domains=self.domains[:, np.asarray(nodes)])


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
        sound = len(lengths) == 1 and bool(np.isfinite(self.ready_s).all())
        sound = sound and all((column >= 0).all() for column in (self.run_s, self.profile))
        if not (sound and all((column >= 1).all() for column in (self.nodes, self.rest))):
            expected = "columns of one length, finite times, run_s >= 0, and at least one GPU or instance on every node"
            todo = "Leave such rows out, or correct them."
            raise ScenarioError("requests", expected, f"lengths {sorted(lengths)}", todo)

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
            expected = "at least one node, and capacity (and places, where GPUs are flexible) by node, pool and profile"
            got = f"{nodes} nodes, {wide} profiles, capacity {self.capacity.shape}"
            raise ScenarioError("fleet of nodes", expected, got, "Give every node a row.")

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
            raise ScenarioError("switching", "times and counts not below 0", str(self), "Change them.")


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

    def peak_gpus(self, gpus: Ints, begin_s: float, end_s: float) -> int:
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
