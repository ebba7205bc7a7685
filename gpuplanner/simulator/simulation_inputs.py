"""Inputs of a simulation (requests, nodes, MIG instances, network) and its outcome."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Self

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.hardware.layout_enumeration import list_placed_layouts
from gpuplanner.hardware.mig_layouts import order_driver_starts
from gpuplanner.hardware.repartitioning_cost import ChangeCost
from gpuplanner.simulator.simulation_state import NO_INDEX, Floats, InstanceSets, Ints

EMPTY_INSTANCE_SET = 0
"""Number of the instance set without instances."""


@dataclass(frozen=True, eq=False)
class DynamicMig:
    """Pools with dynamic MIG: an instance is made for its job, and removed when the job ends.

    Full GPUs are offered only where the capacity of the pool has them.

    Parameters
    ----------
    pools : tuple of bool
        Whether the GPUs of each pool are partitioned on demand.
    places : InstanceSets
        Legal sets of MIG instances of the GPU model.
    make_s : float
        Delay before a job begins on an instance. [s]
    whole_s : float
        Delay before a job begins on full GPUs of which some were partitioned last. [s]
    """

    pools: tuple[bool, ...]
    places: InstanceSets
    make_s: float
    whole_s: float

    @classmethod
    def from_change_cost(cls, gpu_model: GpuModel, profiles: tuple[str, ...], cost: ChangeCost) -> Self:
        """Set up node pools with dynamic MIG for a GPU model.

        Parameters
        ----------
        gpu_model : GpuModel
            Model of the GPUs.
        profiles : tuple of str
            Names of the profiles that jobs request, the full GPU first.
        cost : ChangeCost
            Durations of repartitioning: a job removes one instance and makes one; a GPU that becomes full may have to
            remove all.

        Returns
        -------
        DynamicMig
            One pool; where MIG mode needs a reboot, the second pool beside one of full GPUs.
        """
        max_instances = max(profile.max_instances for profile in gpu_model.profiles)
        instance_s, change_s = cost.instance_s.value, cost.change_s.value
        pools = (True,) if cost.reboot_s is None else (False, True)
        sets = instance_sets(gpu_model, profiles)
        return cls(pools, sets, change_s + 2 * instance_s, change_s + max_instances * instance_s)

    def capacity(self, gpus: int, *, whole: bool) -> list[int]:
        """Count the instances of each profile on a node of empty GPUs, as if there were no other profile.

        Parameters
        ----------
        gpus : int
            GPUs of the node.
        whole : bool
            Whether it offers full GPUs as well.
        """
        room = gpus * self.places.room[EMPTY_INSTANCE_SET]
        room[0] = gpus if whole else 0
        return [int(count) for count in room]


InstanceSet = frozenset[tuple[int, int]]
"""Instances on a GPU: number of the profile and start slice of each."""


@functools.lru_cache(maxsize=64)
def instance_sets(gpu_model: GpuModel, profiles: tuple[str, ...]) -> InstanceSets:
    """Tabulate the legal sets of MIG instances of a GPU model, and what they become as instances come and go.

    A new instance goes where the most stays possible: instances of each profile, and full GPUs, that could be added
    count by their compute slices, as if there were no other profile. Of equals the driver's order decides.

    Parameters
    ----------
    gpu_model : GpuModel
        Model of the GPUs.
    profiles : tuple of str
        Names of the profiles, the full GPU first.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> sets = instance_sets(load_gpu_model("H100-80GB-SXM5"), ("gpu", "1g.10gb", "3g.40gb"))
    >>> sets.room[EMPTY_INSTANCE_SET].tolist()
    [1, 7, 2]
    >>> after = sets.after_adding[EMPTY_INSTANCE_SET, 1]  # one 3g.40gb less has room, but still seven 1g.10gb
    >>> sets.start_slice[EMPTY_INSTANCE_SET, 1].item(), sets.room[after].tolist()
    (6, [0, 6, 1])
    """
    mig_profiles = [gpu_model.profile(name) for name in profiles if name != FULL_GPU]
    number_of = {profile.name: number for number, profile in enumerate(mig_profiles, start=1)}
    layouts = list_placed_layouts(gpu_model, list(number_of)) if mig_profiles else ()
    layout_sets = [
        frozenset((number_of[placement.profile], placement.start) for placement in layout.placements)
        for layout in layouts
    ]
    sets = [InstanceSet(), *sorted(layout_sets, key=lambda instances: (len(instances), sorted(instances)))]
    set_number = {instances: number for number, instances in enumerate(sets)}
    slices = [gpu_model.compute_slices, *(profile.compute_slices for profile in mig_profiles)]
    starts = [(), *(order_driver_starts(gpu_model, profile) for profile in mig_profiles)]

    shape = (len(sets) + 1, len(slices))
    after_adding, start_slice = np.full(shape, NO_INDEX), np.full(shape, NO_INDEX)
    room, loss = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    after_removing = np.full((len(sets) + 1, gpu_model.memory_slices), NO_INDEX)
    max_room = np.zeros_like(room)  # with the best places for each profile alone
    value = np.zeros(len(sets) + 1, np.int64)  # compute slices that may still be added, over all profiles

    # The full GPU has the last number; it fits on an empty GPU alone.
    after_adding[EMPTY_INSTANCE_SET, 0], start_slice[EMPTY_INSTANCE_SET, 0], after_removing[-1, 0] = (
        len(sets),
        0,
        EMPTY_INSTANCE_SET,
    )
    room[EMPTY_INSTANCE_SET, 0] = max_room[EMPTY_INSTANCE_SET, 0] = 1

    # Larger sets come first, so that the sets with one instance more are known.
    for number in reversed(range(len(sets))):
        additions = _possible_additions(sets[number], starts, set_number)
        for profile, options in enumerate(additions):
            rooms = [1 + max_room[after, profile] for _, after in options]
            max_room[number, profile] = max([max_room[number, profile], *rooms])
        value[number] = max_room[number] @ slices
        for profile, options in enumerate(additions):
            if options:
                start, after = max(options, key=lambda option: value[option[1]])
                after_adding[number, profile], start_slice[number, profile] = after, start
                room[number, profile] = 1 + room[after, profile]
        for profile, start in sets[number]:
            after_removing[number, start] = set_number[sets[number] - {(profile, start)}]

    fits = after_adding != NO_INDEX
    loss[fits] = (value[:, None] - value[after_adding])[fits]
    return InstanceSets(after_adding, start_slice, after_removing, room, loss)


def _possible_additions(
    instances: InstanceSet, starts: Sequence[tuple[int, ...]], set_number: dict[InstanceSet, int]
) -> list[list[tuple[int, int]]]:
    """List, by profile, where one more instance can be added to a set: (start slice, number of the new set).

    `starts` are the start slices of each profile, in the driver's order; `set_number` numbers all legal sets.
    """
    additions = []
    for profile, profile_starts in enumerate(starts):
        options = []
        for start in profile_starts:
            after = instances | {(profile, start)}
            if after in set_number and after != instances:
                options.append((start, set_number[after]))
        additions.append(options)
    return additions


@dataclass(frozen=True, eq=False)
class NodeNetwork:
    """Network domains of nodes, and the slowdown of jobs that are spread over several.

    Parameters
    ----------
    domains : array of int, shape (n_tiers, n_nodes)
        Number of the domain of each node by tier, narrow tiers first: NVLink domains, racks, spines. NVLink islands
        within a node are nodes of their own, and the node is their domain.
    slowdowns : array of float, shape (n_tiers + 2,)
        Run time over that on one node: on one node, within one domain of each tier, and beyond all domains.

    Raises
    ------
    ScenarioError
        If the shapes do not fit, or a slowdown is below that of a narrower tier.

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
        """Select some of the nodes, by mask or number."""
        return replace(self, domains=self.domains[:, np.asarray(nodes)])


POWERED_DOWN_POOL = -1
"""Number in place of the node pool of a node that is powered down at first."""


@dataclass(frozen=True, eq=False)
class NodeRequests:
    """Requests of jobs for GPUs or MIG instances, one row each, in any order.

    Parameters
    ----------
    ready_s, submit_s : array of float, shape (n_requests,)
        Earliest start and submission; queues go by both, then by the row. [s]
    run_s, limit_s : array of float, shape (n_requests,)
        Run time and time limit. [s]
    profile : array of int, shape (n_requests,)
        Number of the profile; 0 is the full GPU.
    total : array of int, shape (n_requests,)
        GPUs, or instances of the profile, on all nodes together.
    nodes : array of int, shape (n_requests,)
        Nodes over which they are spread.
    per : array of int, shape (n_requests,), optional
        GPUs or instances on each node but the last, which takes what is left; by default as even as possible.

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
        for column in fields(self):
            dtype = np.float64 if column.name.endswith("_s") else np.int64
            # A read-only array, as data frames give them, is copied: it would be another type to the compiler.
            object.__setattr__(self, column.name, np.require(getattr(self, column.name), dtype, ["C", "W"]))
        if not len(self.per) and len(self.total) == len(self.nodes):
            object.__setattr__(self, "per", -(-self.total // np.maximum(self.nodes, 1)))
        object.__setattr__(self, "limit_s", np.maximum(self.limit_s, self.run_s))
        lengths = {len(getattr(self, column.name)) for column in fields(self)}
        is_valid = len(lengths) == 1 and bool(np.isfinite(self.ready_s).all())
        is_valid = is_valid and all(values.min(initial=0) >= 0 for values in (self.run_s, self.profile))
        if not (is_valid and all(values.min(initial=1) >= 1 for values in (self.nodes, self.on_last_node))):
            expected = "columns of one length, finite times, run_s >= 0, and at least one GPU or instance on every node"
            todo = "Leave such rows out, or correct them."
            raise ScenarioError("requests", expected, f"lengths {sorted(lengths)}", todo)

    def __len__(self) -> int:
        """Count the requests."""
        return len(self.ready_s)

    @property
    def on_last_node(self) -> Ints:
        """GPUs or instances on the last node of each request."""
        return np.asarray(self.total - self.per * (self.nodes - 1), np.int64)

    def select(self, rows: ArrayLike) -> Self:
        """Select some of the requests, by mask or number."""
        chosen = np.asarray(rows)
        return type(self)(*(getattr(self, column.name)[chosen] for column in fields(self)))

    def with_ready_times(self, ready_s: Floats) -> Self:
        """Copy the requests with other earliest starts [s]."""
        return replace(self, ready_s=ready_s)


@dataclass(frozen=True, eq=False)
class NodeFleet:
    """Nodes, and the capacity of each in each node pool that it may be in.

    Parameters
    ----------
    profiles : tuple of str
        Names of the profiles; the first is the full GPU, all others are MIG slices.
    gpus : array of int, shape (n_nodes,)
        GPUs of each node.
    capacity : array of int, shape (n_nodes, n_pools, n_profiles)
        GPUs or instances of each profile that a node offers in a pool; all 0 where it cannot be in that pool.
    first : array of int, shape (n_nodes,)
        Pool at the beginning; -1: the node is powered down.
    weights : array of float, shape (n_profiles,)
        Share of a GPU of one instance. [0-1]
    flexible : DynamicMig, optional
        Pools with dynamic MIG; their capacity is that of empty GPUs, of each profile as if there were no other.
    network : NodeNetwork, optional
        Network domains and slowdowns; None: placement does not change run times.

    Raises
    ------
    ScenarioError
        If the shapes do not fit, or a node begins in a pool that does not exist.

    Examples
    --------
    >>> fleet = NodeFleet.of_full_gpus([8, 4])
    >>> fleet.capacity[:, 0, 0].tolist(), fleet.first.tolist()
    ([8, 4], [0, 0])
    """

    profiles: tuple[str, ...]
    gpus: Ints
    capacity: Ints
    first: Ints
    weights: Floats
    flexible: DynamicMig | None = None
    network: NodeNetwork | None = None

    def __post_init__(self) -> None:
        """Cast and check the tables."""
        for name in ("gpus", "capacity", "first", "weights"):
            dtype = np.float64 if name == "weights" else np.int64
            object.__setattr__(self, name, np.array(getattr(self, name), dtype))
        nodes, profiles = len(self.gpus), len(self.profiles)
        fits = (
            self.capacity.ndim == 3
            and self.capacity.shape[0] == nodes == len(self.first)
            and self.capacity.shape[2] == profiles == len(self.weights)
            and (self.flexible is None or self.flexible.places.after_adding.shape[1] == profiles)
            and bool((self.first < self.capacity.shape[1]).all() and (self.capacity >= 0).all())
            and (self.network is None or self.network.domains.shape[1] == nodes)
        )
        if not fits or nodes == 0:
            expected = "at least one node, and capacity (and places, where GPUs are flexible) by node, pool and profile"
            got = f"{nodes} nodes, {profiles} profiles, capacity {self.capacity.shape}"
            raise ScenarioError("fleet of nodes", expected, got, "Give every node a row.")

    @classmethod
    def of_full_gpus(cls, gpus: Sequence[int]) -> Self:
        """Make a fleet of nodes with full GPUs (MIG disabled) that are always on, from their numbers of GPUs."""
        sizes = np.asarray(gpus, np.int64)
        return cls(("gpu",), sizes, sizes[:, None, None], np.zeros(len(sizes), np.int64), np.ones(1))

    def only(self, nodes: ArrayLike) -> Self:
        """Select some of the nodes, by mask or number."""
        chosen = np.asarray(nodes)
        network = self.network and self.network.only(chosen)
        tables = {name: getattr(self, name)[chosen] for name in ("gpus", "capacity", "first")}
        return replace(self, network=network, **tables)


@dataclass(frozen=True)
class NodeAutoscaling:
    """Autoscaling of nodes: they power up for waiting requests, and power down when idle.

    Parameters
    ----------
    idle_s : float
        Idle time after which a node powers down. [s]
    lead_s : float
        Time to power up, partitioning included. [s]
    kept : tuple of int
        Idle nodes that each pool keeps powered up.
    cool_s : float
        Time after a power-up in which no node powers down. [s]
    look_s : float
        Interval at which nodes that power up are polled; 0: continuously. [s]
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
    """Outcome of a simulation: starts, powered-up nodes, allocations and planned changes.

    Attributes
    ----------
    start_s : array of float, shape (n_requests,)
        Start of each request, in the order of the rows; NaN: it never started. [s]
    power_intervals : polars.DataFrame
        ``node, pool, from_s, until_s``: when each node was on or powering up; infinite where it is not bounded. [s]
    allocations : polars.DataFrame
        ``request, node, profile, amount``: GPUs or instances allocated to each request, by its row.
    factor : array of float, shape (n_requests,)
        Run time over that on one node with the requested profile; NaN: it never started.
    changes : polars.DataFrame
        ``row, began_s, drained_s, ended_s, outcome``: for each planned change begin of the cordon, end of the last
        request on its node, end of the change, and ``"done"`` or ``"given up"``; null where that did not happen. [s]
    """

    start_s: Floats
    power_intervals: pl.DataFrame
    allocations: pl.DataFrame
    factor: Floats
    changes: pl.DataFrame

    def peak_gpus(self, gpus: Ints, begin_s: float, end_s: float) -> int:
        """Find the peak of GPUs on nodes that were on at once, within a window.

        Parameters
        ----------
        gpus : array of int, shape (n_nodes,)
            GPUs of each node.
        begin_s, end_s : float
            Window. [s]
        """
        inside = self.power_intervals.filter(pl.col("until_s") > begin_s, pl.col("from_s") < end_s)
        node_gpus = gpus[inside["node"].to_numpy()]
        from_s = inside["from_s"].to_numpy().clip(begin_s)
        change = np.concatenate([node_gpus, -node_gpus])
        # Of changes at one instant power-downs come first.
        order = np.lexsort((change, np.concatenate([from_s, inside["until_s"].to_numpy()])))
        return int(np.cumsum(change[order]).max(initial=0))


def serving_profile_table(profiles: int, larger: Sequence[Sequence[int]] | None) -> Ints:
    """Tabulate the profiles that may serve each profile, in order of preference.

    Parameters
    ----------
    profiles : int
        Number of profiles.
    larger : sequence of sequence of int or None
        For each profile the larger ones that may serve in its place; None: none may.

    Returns
    -------
    array of int, shape (n_profiles, n_preferences)
        The profile itself, then the larger ones, then -1.
    """
    rows = [[number, *(larger[number] if larger is not None else ())] for number in range(profiles)]
    width = max(map(len, rows))
    return np.array([[*row, *[-1] * (width - len(row))] for row in rows], np.int64)


MAX_KIND_NUMBERS = 1 << 20
"""Largest table of all combinations of what requests may ask for; kinds are sorted beyond it."""


def request_kinds(requests: NodeRequests) -> tuple[Ints, Ints]:
    """Group requests of one kind: with the same profile, number of nodes, and GPUs or instances on each.

    Returns
    -------
    tuple of (array of int, shape (n_kinds, 4), array of int, shape (n_requests,))
        For each kind: profile, GPUs or instances on each node but the last, nodes, and those on the last node; and
        the kind of each request.
    """
    columns = requests.profile, requests.per, requests.nodes, requests.on_last_node
    # As np.unique of rows, which compares records and takes many times as long.
    number: Ints = np.asarray(np.ravel_multi_index(columns, [column.max(initial=0) + 1 for column in columns]))
    if number.max(initial=0) > MAX_KIND_NUMBERS:
        number = np.unique(number, return_inverse=True)[1]
    row_of_number = np.full(number.max(initial=-1) + 1, -1)
    row_of_number[number] = np.arange(len(number))
    is_used = row_of_number >= 0
    kinds = np.stack([column[row_of_number[is_used]] for column in columns], axis=1)
    return kinds, (np.cumsum(is_used) - 1)[number]
